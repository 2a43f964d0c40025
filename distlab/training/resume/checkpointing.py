"""Saves checkpoints while `fit` runs, and restores the newest checkpoint before it starts."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from distlab.errors import InvalidArgument, ModelError
from distlab.training import pipelines, variables
from distlab.training.keras_private import epochs, versions
from distlab.training.pending_steps import settle
from distlab.training.resume import callback_states, checkpoints
from distlab.training.resume.checkpoints import Interval, Position
from distlab.training.resume.preemption import EXIT_CODE
from distlab.training.workers.agreeing import Agreement
from distlab.training.workers.exchanging import workers_of

# What each shuffle has given in this process: batches read, by iterator.
_READ_HERE: WeakKeyDictionary[tf.data.Dataset, list[int]] = WeakKeyDictionary()


class Checkpointing(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves and resumes one `fit`. It must be the last callback, after Keras's own too.

    Of several workers all read what is to be saved, for a part of it may be on each, and the chief
    writes.

    Args:
        owner: The callback for which it works, which has no state to save.
        running: The `fit`, in its `on_train_begin`.
        agreement: What its workers agree on, called before this.
        folder: Where the checkpoints are.
        every: When to save, beside the ends of epochs.
        keep: How many checkpoints to keep.

    Attributes:
        resumed_from: Where the `fit` began, or None if it began anew.
    """

    def __init__(
        self,
        owner: keras.callbacks.Callback,
        running: epochs.RunningFit,
        agreement: Agreement,
        *,
        folder: Path,
        every: Interval,
        keep: int,
    ) -> None:
        super().__init__()
        self.resumed_from: Position | None = None
        self._folder, self._every, self._keep = folder, every, keep
        self._running, self._agreement = running, agreement
        self._others = [
            c for c in running.callbacks if c is not owner and type(c) is not Checkpointing
        ]
        self._place = epochs.Place(running.iterator)
        self._pipeline = pipelines.inspect(self._place.dataset)
        self._checkpoint: checkpoints.Checkpoint | None = None  # to be restored once more
        self._validated = False
        self._steps_before = 0  # of this epoch
        self._step = self._saved_step = 0
        self._saved_at = 0.0  # by the agreement's clock

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Resumes, now that the other callbacks have forgotten what they knew."""
        model = self.model
        self._workers = workers_of(model.distribute_strategy)
        self._agreement.listen(lambda: epochs.running_fit(model) is not None)
        self._agreement.agree()
        self._saved_at = self._agreement.now
        for complaint in self._pipeline.complaints:
            self._warn(
                f"after a stop this training may not be resumed exactly: {complaint}; the data "
                "may come in another order in another process"
            )
        self._compiled_with = variables.options_of(self.model)
        epochs.build(self.model, self._running.iterator)
        self._before = callback_states.observe(self._others)
        checkpoint = checkpoints.newest_of_all(self._folder, self._workers)
        if checkpoint is not None:
            self._go_to(checkpoint)
        elif any(_READ_HERE.get(stage) for stage in self._pipeline.reshuffling):
            self._warn(
                "after a stop this training may not be resumed exactly: an earlier fit has read "
                "from the same shuffle, which gives other orders in a process without that fit; "
                "make the data set anew for each fit"
            )

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
        batch = versions.last_batch(batch, self._running.iterator)
        self._step = self._steps_before + self._place.really_done(batch + 1)
        if self.model.stop_training:
            return  # the end of the epoch comes next
        agreed, steps = self._agreement, (self._saved_step, self._step)
        if agreed.leaves or self._every.is_over(steps, secs=agreed.now - self._saved_at):
            self._save(self._epoch, batch + 1)
        if agreed.leaves:
            self._leave()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Saves."""
        epochs.log_as_keras_does(self.model)
        self._save(epoch + 1, 0)
        if self._agreement.leaves:
            self._leave()
        self._check_validation_data()

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Leaves the model as it was, and the signal to whoever listened before."""
        epochs.start_as_told(self.model)
        self._agreement.stop_listening()

    def _save(self, epoch: int, batch: int) -> None:
        settle(self.model)
        entries, values = variables.read(self.model)
        self._saved_step, self._saved_at = self._step, self._agreement.now
        if not self._workers.is_chief:
            return
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
            "epochs": self.params["epochs"],
            "data": self._place.state(),
            "optimizer": variables.name_optimizer(self.model),
            "compiled_with": self._compiled_with,
            "variables": entries,
            "callbacks": callback_states.changes(self._others, self._before, values),
            "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
        }
        checkpoint = checkpoints.Checkpoint(
            epoch=epoch, step=self._step, state=state, values=values
        )
        checkpoints.save(self._folder, checkpoint, keep=self._keep)

    def _leave(self) -> NoReturn:
        """Ends the process, now that another can go on from here."""
        self._say(
            f"asked to leave (SIGTERM): saved step {self._step} in {self._folder}, and ends with "
            f"exit code {EXIT_CODE}, to be started again"
        )
        self._workers.exchange(None)  # whoever ends first may take the others with it
        self._agreement.stop_listening()
        raise SystemExit(EXIT_CODE)

    def _go_to(self, checkpoint: checkpoints.Checkpoint) -> None:
        state = checkpoint.state
        position = Position(**state["position"])
        self._check(state, position)
        planned = self.params["epochs"]
        is_over = state["stopped"] or position.epoch >= planned
        if is_over:
            self._check_compiled(state["compiled_with"])
        self._restore(checkpoint, metrics=False)
        self._step = self._saved_step = position.step
        self.resumed_from = position
        if is_over:
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

    def _check_compiled(self, stored: dict[str, str]) -> None:
        """Refuses a training that is over and was another: a tuner's trial before this one."""
        ours = self._compiled_with
        differing = [name for name in ours | stored if ours.get(name) != stored.get(name)]
        if differing:
            name = differing[0]
            raise ModelError(
                asked=f"train with Resume({str(self._folder)!r})",
                found=f"a training there that has ended, with {name}={stored.get(name)}, and a "
                f"model compiled with {name}={ours.get(name)}",
                do="give each training a folder of its own, or empty this one to begin anew",
            )

    def _restore(self, checkpoint: checkpoints.Checkpoint, *, metrics: bool) -> None:
        state, values = checkpoint.state, checkpoint.values
        variables.write(self.model, state["variables"], values, metrics=metrics)
        states = state["callbacks"]
        if not self._workers.is_chief:  # which has saved its own, and may have more of them
            states = callback_states.known(self._others, states)
        callback_states.restore(self._others, states, values)

    def _find_place(self, state: dict[str, Any]) -> None:
        batches, saved = self._place.batches, state["position"]["batches"]
        if batches is not None and saved is not None and batches != saved:
            self._warn(
                f"an epoch had {saved} batches, and now has {batches}: not the same data set?"
            )
        read_here = [_READ_HERE.get(stage, []) for stage in self._pipeline.reshuffling]
        if any(read_here):
            if all(r == state["data"]["read"] for r in read_here) and not state["batch_of_keras"]:
                self._place.read = list(state["data"]["read"])
                return  # another `fit` in the process that saved: the data are there already
            self._warn(
                "the shuffle of this data set has given its orders in this process already, so "
                "they cannot come again; make the data set anew before fit (in a notebook: run "
                "the cell that makes it)"
            )
        self._place.move_to(
            state["data"], batch=state["batch_of_keras"], read=self._pipeline.must_be_read
        )

    def _check_validation_data(self) -> None:
        """Orders that validation reads are never replayed."""
        dataset, steps = epochs.validation(self.model)
        if self._validated or dataset is None:
            return
        self._validated = True
        pipeline = pipelines.inspect(dataset)
        shared = [stage for stage in pipeline.stages if stage in self._pipeline.reshuffling]
        if steps and pipeline.reshuffling and not shared:
            self._warn(
                "after a stop this training may not be resumed exactly: validation reads "
                f"{steps} batches of data that are shuffled anew each time; leave "
                "validation_steps out, or shuffle with reshuffle_each_iteration=False"
            )
        if shared:
            self._warn(
                "after a stop this training may not be resumed exactly: validation reads from "
                "the same shuffle as training (and so from its examples); split the data before "
                "shuffle, or shuffle with reshuffle_each_iteration=False"
            )

    def _say(self, text: str) -> None:
        if self.params.get("verbose") and self._workers.is_chief:
            print(text, flush=True)  # noqa: T201

    def _warn(self, text: str) -> None:
        if self._workers.is_chief:
            warnings.warn(f"Resume: {text}", UserWarning, stacklevel=2)
