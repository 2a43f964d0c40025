"""What `Resume` does while `fit` runs: it saves, and goes to where a checkpoint was made."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from distlab.errors import InvalidArgument
from distlab.training import callback_states, checkpoints, pipelines, variables
from distlab.training.keras_private import epochs, seeds

# What each shuffle has given in this process: batches read, by iterator.
_READ_HERE: WeakKeyDictionary[tf.data.Dataset, list[int]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in a training.

    Attributes:
        epoch: Epochs that are done.
        batch: Batches that are done of the next one.
        batches: Batches in an epoch, where that is known.
        step: Steps that are done, over all epochs.
    """

    epoch: int
    batch: int
    batches: int | None
    step: int

    def __str__(self) -> str:
        """As in "step 240: epoch 3, batch 40 of 100"."""
        of = "" if self.batches is None else f" of {self.batches}"
        here = f", batch {self.batch}{of}" if self.batch else ""
        return f"step {self.step}: epoch {self.epoch + 1}{here}"


class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves and resumes one `fit`. It must be the last callback, after Keras's own too.

    Args:
        owner: The callback for which it works, which has no state to save.
        running: The `fit`, in its `on_train_begin`.
        folder: Where the checkpoints are.
        every_steps: Steps between checkpoints, None for the ends of epochs only.
        keep: How many checkpoints to keep.

    Attributes:
        resumed_from: Where the `fit` began, or None if it began anew.
    """

    def __init__(
        self,
        owner: keras.callbacks.Callback,
        running: epochs.RunningFit,
        *,
        folder: Path,
        every_steps: int | None,
        keep: int,
    ) -> None:
        super().__init__()
        self.resumed_from: Position | None = None
        self._folder, self._every, self._keep = folder, every_steps, keep
        self._running = running
        self._others = [c for c in running.callbacks if c is not owner and type(c) is not Recorder]
        self._place = epochs.Place(running.iterator)
        self._pipeline = pipelines.inspect(self._place.dataset)
        self._checkpoint: checkpoints.Checkpoint | None = None  # to be restored once more
        self._validated = False
        self._steps_before = 0  # of this epoch
        self._step = self._saved_step = 0

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Resumes, now that the other callbacks have forgotten what they knew."""
        for complaint in self._pipeline.complaints:
            _warn(
                f"after a stop this training may not be resumed exactly: {complaint}; the data "
                "may come in another order in another process"
            )
        epochs.build(self.model, self._running.iterator)
        self._before = callback_states.observe(self._others)
        checkpoint = checkpoints.newest(self._folder)
        if checkpoint is not None:
            self._go_to(checkpoint)

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Resumes an epoch that had begun."""
        epochs.start_as_told(self.model)
        _READ_HERE.update(dict.fromkeys(self._pipeline.reshuffling, self._place.read))
        self._epoch, self._steps_before = epoch, self._step
        if self._checkpoint is not None:
            # In mid-epoch: what `fit` and the callbacks did to begin it was done already.
            self._steps_before -= self._checkpoint.state["position"]["batch"]
            self._restore(self._checkpoint, metrics=True)
            epochs.log_metrics_without_batches(self.model)
            self._checkpoint = None

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Saves where it is time to."""
        self._place.count_execution()
        self._step = self._steps_before + self._place.really_done(batch + 1)
        every = self._every
        due = every is not None and self._step // every > self._saved_step // every
        if due and not self.model.stop_training:  # else the end of the epoch comes next
            self._save(self._epoch, batch + 1)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Saves."""
        epochs.log_as_keras_does(self.model)
        self._save(epoch + 1, 0)
        self._check_validation_data()

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Leaves the model as it was."""
        epochs.start_as_told(self.model)

    def _save(self, epoch: int, batch: int) -> None:
        entries, values = variables.read(self.model)
        position = Position(
            epoch=epoch,
            batch=self._place.really_done(batch),
            batches=self._place.batches,
            step=self._step,
        )
        state = {
            "position": asdict(position),
            "batch_of_keras": batch,
            "stopped": bool(self.model.stop_training),
            "data": self._place.state(),
            "optimizer": variables.name_optimizer(self.model),
            "variables": entries,
            "seeds": seeds.read(self.model),
            "callbacks": callback_states.changes(self._others, self._before, values),
            "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
        }
        checkpoint = checkpoints.Checkpoint(
            epoch=epoch, step=self._step, state=state, values=values
        )
        checkpoints.save(self._folder, checkpoint, keep=self._keep)
        self._saved_step = self._step

    def _go_to(self, checkpoint: checkpoints.Checkpoint) -> None:
        state = checkpoint.state
        position = Position(**state["position"])
        self._check(state, position)
        self._restore(checkpoint, metrics=False)
        self._step = self._saved_step = position.step
        self.resumed_from = position
        planned = self.params["epochs"]
        if state["stopped"] or position.epoch >= planned:
            epochs.start_at_epoch(self.model, max(planned, 1))
            done = "a callback stopped it" if state["stopped"] else "all epochs are done"
            self._say(
                f"nothing left to train, {done}: {position.epoch} epochs, {position.step} steps"
            )
            return
        self._find_place(state)
        epochs.start_at_epoch(self.model, position.epoch)
        self._checkpoint = checkpoint if state["batch_of_keras"] else None
        self._say(f"resumed from {position}")

    def _check(self, state: dict[str, Any], position: Position) -> None:
        if self._running.initial_epoch > position.epoch:
            raise InvalidArgument(
                asked=f"fit(initial_epoch={self._running.initial_epoch}) with a checkpoint in "
                f"{str(self._folder)!r}",
                found=f"a checkpoint of {position}, which comes before that epoch",
                do="leave initial_epoch out, or give Resume another folder",
            )
        variables.check(
            self.model,
            state["variables"],
            optimizer=state["optimizer"],
            metrics=state["batch_of_keras"] > 0,
        )

    def _restore(self, checkpoint: checkpoints.Checkpoint, *, metrics: bool) -> None:
        state, values = checkpoint.state, checkpoint.values
        variables.write(self.model, state["variables"], values, metrics=metrics)
        if len(state["seeds"]) == len(seeds.read(self.model)):  # none outside of `distribute`
            seeds.write(self.model, state["seeds"])
        callback_states.restore(self._others, state["callbacks"], values)

    def _find_place(self, state: dict[str, Any]) -> None:
        batches, saved = self._place.batches, state["position"]["batches"]
        if batches is not None and saved is not None and batches != saved:
            _warn(f"an epoch had {saved} batches, and now has {batches}: not the same data set?")
        read_here = [_READ_HERE.get(stage, []) for stage in self._pipeline.reshuffling]
        if any(read_here):
            if all(r == state["data"]["read"] for r in read_here) and not state["batch_of_keras"]:
                self._place.read = list(state["data"]["read"])
                return  # another `fit` in the process that saved: the data are there already
            _warn(
                "the shuffle of this data set has given its orders in this process already, so "
                "they cannot come again; make the data set anew before fit (in a notebook: run "
                "the cell that makes it)"
            )
        self._place.move_to(
            state["data"], batch=state["batch_of_keras"], read=self._pipeline.must_be_read
        )

    def _check_validation_data(self) -> None:
        """A shuffle that validation reads too gives away orders that are never replayed."""
        if self._validated or (dataset := epochs.validation_dataset(self.model)) is None:
            return
        self._validated = True
        stages = pipelines.inspect(dataset).stages
        if any(stage is shuffle for stage in stages for shuffle in self._pipeline.reshuffling):
            _warn(
                "after a stop this training may not be resumed exactly: validation reads from "
                "the same shuffle as training (and so from its examples); split the data before "
                "shuffle, or shuffle with reshuffle_each_iteration=False"
            )

    def _say(self, text: str) -> None:
        if self.params.get("verbose"):
            print(text)  # noqa: T201


def _warn(text: str) -> None:
    warnings.warn(f"Resume: {text}", UserWarning, stacklevel=2)
