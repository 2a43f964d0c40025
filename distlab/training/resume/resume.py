"""Training that goes on where it was stopped, as if nothing had happened.

model.fit(train, epochs=3, callbacks=[Resume("checkpoints", every_steps=100, keep=3)])
# killed; then the same script again: it goes on from the newest checkpoint
Resume("checkpoints", every_secs=60)         # by the clock
"""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from distlab.cluster.spec import read_cluster
from distlab.environment import is_writable
from distlab.errors import InvalidArgument, ModelError, UnsupportedEnvironment
from distlab.training import model_build, pipelines, variables
from distlab.training.keras_private import last_batch, registry, runs
from distlab.training.resume import callback_states, checkpoints
from distlab.training.resume.checkpoints import Position
from distlab.training.workers.agreement import Agreement
from distlab.training.workers.workers import workers_of

# What a process ends with that SIGTERM ends: 128 + 15. Supervisors take it for "restart me".
EXIT_CODE = 143

# What each shuffle has given in this process: batches read, by iterator.
_READ_HERE: WeakKeyDictionary[tf.data.Dataset, list[int]] = WeakKeyDictionary()


class Resume(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves checkpoints during `fit`, and resumes a stopped training exactly where it was.

    It saves every `every_steps` steps, every `every_secs` seconds, and at the end of each epoch.
    Run the same script again and `fit` resumes from the newest checkpoint: the variables of model,
    optimizer and metrics, what the callbacks remember (also the whole `History`), the epoch, and
    the place in the data. Weights and logs are then, bit by bit, those of a training that nothing
    stopped. If training was finished, nothing more is trained.

    That needs data that come in the same order: a shuffle with a seed, and no random `map` that
    runs in parallel. A stage that may not keep the order is warned of by name when training starts.

    SIGTERM while `fit` runs is a request to leave: when the current execution ends, a checkpoint is
    saved and the process ends with exit code 143, which supervisors take for "start me again". A
    second SIGTERM ends it at once.

    Several workers give the same folder, on a disk that they share: the chief writes and all read.
    If any of them was lost, start all of them again. With parameter servers the coordinator alone
    saves; with several workers there, the rest of the training is like an undisturbed one's, and
    not equal to it.

    One folder holds one training. A checkpoint can be resumed under another strategy, as close as
    the two are. A callback that writes a file as it goes must not start that file again:
    `CSVLogger(..., append=True)`.

    Args:
        folder: Where the checkpoints are, made if need be.
        every_steps: Steps between checkpoints; None saves by the clock or at the ends of epochs
            only. With several steps per execution, the first end of an execution from there on.
        every_secs: Seconds between checkpoints, counted from the last one and looked at where an
            execution ends; None doesn't look at the clock.
        keep: How many checkpoints to keep, the newest ones.

    Attributes:
        resumed_from: Where the last `fit` began, with its `epoch`, `batch` and `step`; None if it
            began from the start.

    Raises:
        InvalidArgument: `every_steps` or `keep` is below 1, `every_secs` isn't above 0, the folder
            is a file or can't be written, none of its checkpoints is whole, a worker can't read
            what the chief has written, or this task is the evaluator.
        ModelError: A checkpoint is of another model or optimizer. Raised by `fit`.
        DatasetError: The data end before the place where training was. Raised by `fit`.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10, "softmax")])
        >>> model.compile("adam", "sparse_categorical_crossentropy")
        >>> train, _ = dl.load_dataset("digits", batch_size=64)
        >>> resume = dl.Resume("checkpoints", every_steps=10, keep=2)
        >>> for epochs in (1, 3):  # stopped after one epoch, and started again
        ...     history = model.fit(train, epochs=epochs, callbacks=[resume], verbose=0)
        >>> resume.resumed_from.epoch, history.epoch
        (1, [0, 1, 2])
    """

    listens_to_executions = True

    def __init__(
        self,
        folder: str | Path,
        *,
        every_steps: int | None = None,
        every_secs: float | None = None,
        keep: int = 3,
    ) -> None:
        super().__init__()
        registry.install(runs)
        numbers: dict[str, Any] = {
            "every_steps": every_steps,
            "every_secs": every_secs,
            "keep": keep,
        }
        for name, number in numbers.items():
            whole = int if name != "every_secs" else int | float
            positive = isinstance(number, whole) and not isinstance(number, bool) and number > 0
            if not positive and (number is not None or name == "keep"):
                raise InvalidArgument(
                    asked=f"Resume({str(folder)!r}, {name}={number!r})",
                    found=f"{name}={number!r}",
                    do=f"pass a {'whole ' if whole is int else ''}number above 0: "
                    f"{name}={3 if name == 'keep' else 100}",
                )
        self.folder = Path(folder)
        self.every_steps = every_steps
        self.every_secs = every_secs
        self.keep = keep
        self.resumed_from: Position | None = None  # where the last fit began, None if afresh
        self._checkpoint: checkpoints.Checkpoint | None = None  # to be restored again
        self._step = self._saved_step = 0
        self._steps_before = 0  # of this epoch
        self._saved_at = 0.0  # by the agreement's clock
        self._validated = False

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Resumes, once the other callbacks have forgotten what they knew.

        Args:
            logs: Not used.
        """
        if _is_evaluator():
            raise InvalidArgument(
                asked=f"train with Resume({str(self.folder)!r}) on the evaluator",
                found="a task beside the training, which would write to the same folder",
                do="call distlab.training.side_car.evaluate_checkpoints(build, data, folder=...) "
                "on the evaluator, and fit on the others",
                pitfall="Workers that overwrite each other's file",
            )
        run = runs.begun_run()
        if run is None:
            raise ModelError(
                asked=f"train with Resume({str(self.folder)!r})",
                found="a training that Keras's own fit does not run",
                do="call fit of a model from distlab.distribute, or of a Keras model",
            )
        agreement = next((c for c in run.callbacks if isinstance(c, Agreement)), None)
        if agreement is not None and run.callbacks[-1] is self:
            self._agreement = agreement
            self._begin(run)
            return
        # It must see what the others did, Keras's own too: it goes to the end, and is called again.
        run.callbacks[run.callbacks.index(self)] = keras.callbacks.Callback()
        if agreement is None:  # of a model that `distribute` never saw
            agreement = Agreement(workers_of(self.model.distribute_strategy))
            agreement.set_model(self.model)
            run.callbacks.append(agreement)
        run.callbacks.append(self)

    def _begin(self, run: runs.FitRun) -> None:
        self._run, self._workers = run, workers_of(self.model.distribute_strategy)
        self.resumed_from, self._checkpoint, self._validated = None, None, False
        self._step = self._saved_step = self._steps_before = 0
        self._others = [c for c in run.callbacks if c is not self]
        self._place = runs.DataPosition(run.iterator)
        self._pipeline = pipelines.inspect(runs.read_by(run.iterator))
        self._agreement.listen()
        self._agreement.agree()
        self._saved_at = self._agreement.now
        for complaint in self._pipeline.complaints:
            self._warn(
                f"after a stop this training may not be resumed exactly: {complaint}; the data "
                "may come in another order in another process"
            )
        self._compiled_with = variables.options_of(self.model)
        model_build.build_all(self.model, runs.spec_of_replica(run.iterator))
        self._before = callback_states.observe(self._others)
        checkpoint = checkpoints.newest_of_all(self.folder, self._workers)
        if checkpoint is None and self._workers.is_chief and not is_writable(self.folder):
            raise InvalidArgument(
                asked=f"train with Resume({str(self.folder)!r})",
                found="a folder in which nothing can be written",
                do="choose a folder that you can write in",
            )
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
        runs.start_as_given(self.model)
        _READ_HERE.update(dict.fromkeys(self._pipeline.reshuffling, self._place.read))
        self._epoch, self._steps_before = epoch, self._step
        if self._checkpoint is not None:
            # In mid-epoch: what `fit` and the callbacks did to begin it was done already.
            self._steps_before -= self._checkpoint.state["position"]["batch"]
            self._restore(self._checkpoint, metrics=True)
            runs.log_metrics_without_batches(self.model)
            self._checkpoint = None

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Saves where it is time to."""
        self._place.count_execution()
        batch = last_batch(batch, self._run.iterator)
        self._step = self._steps_before + self._place.really_done(batch + 1)
        if self.model.stop_training:
            return  # the end of the epoch comes next
        agreed, every = self._agreement, self.every_steps
        by_steps = every is not None and self._step // every > self._saved_step // every
        secs = agreed.now - self._saved_at
        by_clock = self.every_secs is not None and secs >= self.every_secs
        if agreed.leaves or by_steps or by_clock:
            self._save(self._epoch, batch + 1)
        if agreed.leaves:
            self._leave()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Saves."""
        runs.log_as_keras_does(self.model)
        self._save(epoch + 1, 0)
        if self._agreement.leaves:
            self._leave()
        self._check_validation_data()

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Leaves the model as it was, and the signal to its earlier handler."""
        runs.start_as_given(self.model)
        self._agreement.stop_listening()

    def _save(self, epoch: int, batch: int) -> None:
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
        checkpoints.save(self.folder, checkpoint, keep=self.keep)

    def _leave(self) -> NoReturn:
        """Ends the process, now that another can go on from here."""
        self._say(
            f"asked to leave (SIGTERM): saved step {self._step} in {self.folder}, and ends with "
            f"exit code {EXIT_CODE}, to be started again"
        )
        self._workers.exchange(None)  # the first to end may take the others with it
        self._agreement.stop_listening()
        raise SystemExit(EXIT_CODE)

    def _go_to(self, checkpoint: checkpoints.Checkpoint) -> None:
        state = checkpoint.state
        position = Position(**state["position"])
        variables.check(
            self.model,
            state["variables"],
            optimizer=state["optimizer"],
            metrics=state["batch_of_keras"] > 0,
        )
        planned = self.params["epochs"]
        is_over = state["stopped"] or position.epoch >= planned
        if is_over:
            self._check_compiled(state["compiled_with"])
        self._restore(checkpoint, metrics=False)
        self._step = self._saved_step = position.step
        self.resumed_from = position
        if is_over:
            runs.start_at_epoch(self.model, max(planned, 1))
            done = "a callback stopped it" if state["stopped"] else "all epochs are done"
            self._say(
                f"nothing left to train, {done}: {position.epoch} epochs, {position.step} steps"
            )
            return
        self._find_place(state)
        runs.start_at_epoch(self.model, position.epoch)
        self._checkpoint = checkpoint if state["batch_of_keras"] else None
        self._say(f"resumed from {position}")

    def _check_compiled(self, stored: dict[str, str]) -> None:
        """Refuses a training that is over and was another: a tuner's trial before this one."""
        compiled_with = self._compiled_with
        differing = [
            name for name in compiled_with | stored if compiled_with.get(name) != stored.get(name)
        ]
        if differing:
            name = differing[0]
            raise ModelError(
                asked=f"train with Resume({str(self.folder)!r})",
                found=f"a training there that has ended, with {name}={stored.get(name)}, and a "
                f"model compiled with {name}={compiled_with.get(name)}",
                do="keep each training in a folder of its own, or empty this one to begin again",
            )

    def _restore(self, checkpoint: checkpoints.Checkpoint, *, metrics: bool) -> None:
        state, values = checkpoint.state, checkpoint.values
        variables.write(self.model, state["variables"], values, metrics=metrics)
        # The chief has saved its own, and may have more callbacks than the others.
        callback_states.restore(
            self._others, state["callbacks"], values, warn=self._workers.is_chief
        )

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
        dataset, steps = runs.validation(self.model)
        if self._validated or dataset is None:
            return
        self._validated = True
        pipeline = pipelines.inspect(dataset)
        shared = [stage for stage in pipeline.reshuffling if stage in self._pipeline.reshuffling]
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


def _is_evaluator() -> bool:
    try:
        cluster = read_cluster()
    except UnsupportedEnvironment:  # make_strategy says what is wrong, where it is asked
        return False
    return cluster is not None and cluster.task is not None and cluster.task.job == "evaluator"
