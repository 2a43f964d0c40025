"""Training that goes on where it was stopped, as if nothing had happened.

model.fit(train, epochs=3, callbacks=[Resume("checkpoints", every_steps=100, keep=3)])
# killed; then the same script again: it goes on from the newest checkpoint
Resume("checkpoints", every_secs=60)         # by the clock
"""

from __future__ import annotations

from pathlib import Path

import keras

from distlab.cluster.spec import read_cluster
from distlab.errors import InvalidArgument, ModelError, UnsupportedEnvironment
from distlab.training.keras_private import epochs
from distlab.training.resume.checkpointing import Checkpointing
from distlab.training.resume.checkpoints import Interval, Position
from distlab.training.workers.agreeing import Agreement
from distlab.training.workers.exchanging import workers_of


class Resume(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves a training as it goes, and takes it up again exactly where it was.

    It saves every `every_steps` steps, every `every_secs` seconds, and at the end of each epoch.
    When `fit` is called again, in a new process and with the same arguments, it goes on from the
    newest checkpoint: with the variables of model, optimizer and metrics, what the callbacks
    remember (also the whole `History`), the epoch, and the place in the data. The batches of the
    epoch that were trained on are read again and dropped. Weights and logs are then, bit by bit,
    those of a training that nothing stopped. Where training was finished, nothing more is trained.

    That needs data that come in the same order: a shuffle with a seed, and no random `map` that
    runs in parallel. A stage that may not keep it is warned of by name when training starts.
    Earlier epochs are opened and not read, or read where the order depends on it (a shuffle
    below `repeat` or `cache`).

    SIGTERM while `fit` runs is a request to leave: where the execution ends that is under way
    (after validation, if that runs), a checkpoint is saved, and the process ends with exit code
    143, which supervisors take for "start me again". A second SIGTERM ends it at once. Only in
    the main thread can a signal be heeded; after `fit` it is what it was before.

    Several workers (MultiWorkerMirroredStrategy) give the same folder, on a disk that they share:
    the chief writes, all read, and what callbacks remember is what the chief's do. Seconds are the
    chief's, and where one worker is asked to leave all leave. When any of them was lost, start
    all again.

    With parameter servers the coordinator alone saves, once the steps that are under way have
    ended. A lost worker needs no checkpoint; when a server or the coordinator was lost, start all
    again. What several workers do is never the same twice, so there the rest of the training is
    like that of an undisturbed one, and not equal to it.

    One folder holds one training. A checkpoint from one strategy, or of another number of workers,
    can be resumed under another; it is then as close as the two strategies are. A callback that
    writes a file as it goes must not start that file anew: `CSVLogger(..., append=True)`.

    Args:
        folder: Where the checkpoints are, made if need be.
        every_steps: Steps between checkpoints, None to save by the clock or at the ends of epochs
            only. With several steps per execution, the first end of an execution from there on.
        every_secs: Seconds between checkpoints, None not to look at the clock. Counted from the
            last one, and looked at where an execution ends.
        keep: How many checkpoints to keep, the newest ones.

    Raises:
        InvalidArgument: `every_steps` or `keep` is below 1, `every_secs` is not above 0, the folder
            is a file, none of its checkpoints is whole, a worker cannot read what the chief has
            written, `fit` is to start later than the checkpoint, or this task is the evaluator.
        ModelError: A checkpoint is of another model or optimizer. Raised by `fit`.
        DatasetError: The data end before the place where training was. Raised by `fit`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every_steps: int | None = None,
        every_secs: float | None = None,
        keep: int = 3,
    ) -> None:
        super().__init__()
        for name, number in (("every_steps", every_steps), ("keep", keep)):
            if number is None and name == "every_steps":
                continue
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InvalidArgument(
                    asked=f"Resume({str(folder)!r}, {name}={number!r})",
                    found="not a whole number from 1 on",
                    do=f"give such a number, for example {name}={100 if every_steps else 3}",
                )
        if every_secs is not None and not _is_positive(every_secs):
            raise InvalidArgument(
                asked=f"Resume({str(folder)!r}, every_secs={every_secs!r})",
                found="not a number of seconds above 0",
                do="give such a number, for example every_secs=60",
            )
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidArgument(
                asked=f"Resume({str(folder)!r})",
                found="a file of that name",
                do="give a folder, or the name of one that is to be made",
            )
        self.every_steps = every_steps
        self.every_secs = every_secs
        self.keep = keep
        self._recorder: Checkpointing | None = None

    @property
    def resumed_from(self) -> Position | None:
        """Where the last `fit` began, or None if it began anew."""
        return None if self._recorder is None else self._recorder.resumed_from

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Puts what does the work behind all other callbacks: it must see what they did.

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
        running = epochs.running_fit(self.model)
        strategy = self.model.distribute_strategy
        if running is None:
            raise ModelError(
                asked=f"train with Resume({str(self.folder)!r})",
                found="a training that Keras's own fit does not run",
                do="call fit of a model from distlab.distribute, or of a Keras model",
            )
        agreement = next((c for c in running.callbacks if isinstance(c, Agreement)), None)
        if agreement is None:  # of a Keras model that `distribute` never saw
            agreement = Agreement(workers_of(strategy))
            agreement.set_model(self.model)
            running.callbacks.append(agreement)
        last = Checkpointing(
            self,
            running,
            agreement,
            folder=self.folder,
            every=Interval(steps=self.every_steps, secs=self.every_secs),
            keep=self.keep,
        )
        last.set_params(self.params)
        last.set_model(self.model)
        # A `fit` with the same CallbackList has left one there.
        running.callbacks[:] = [c for c in running.callbacks if not isinstance(c, Checkpointing)]
        running.callbacks.append(last)
        self._recorder = last


def _is_evaluator() -> bool:
    try:
        cluster = read_cluster()
    except UnsupportedEnvironment:  # make_strategy says what is wrong, where it is asked
        return False
    return cluster is not None and cluster.task is not None and cluster.task.job == "evaluator"


def _is_positive(secs: object) -> bool:
    return isinstance(secs, int | float) and not isinstance(secs, bool) and secs > 0
