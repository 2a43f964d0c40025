"""Training that goes on where it was stopped, as if nothing had happened.

model.fit(train, epochs=3, callbacks=[Resume("checkpoints", every_steps=100, keep=3)])
# killed; then the same script again: it goes on from the newest checkpoint
"""

from __future__ import annotations

from pathlib import Path

import keras

from distlab.errors import InvalidArgument, ModelError
from distlab.strategy.describing import CLUSTER_KINDS, describe
from distlab.training.keras_private import epochs
from distlab.training.recording import Position, Recorder


class Resume(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves a training as it goes, and takes it up again exactly where it was.

    It saves every `every_steps` steps and at the end of each epoch. When `fit` is called again,
    in a new process and with the same arguments, it goes on from the newest checkpoint: with the
    variables of model, optimizer and metrics, what the callbacks remember (also the whole
    `History`), the epoch, and the place in the data. The batches of the epoch that were trained
    on are read again and dropped. Weights and logs are then, bit by bit, those of a training
    that nothing stopped. Where training was finished, nothing more is trained.

    That needs data that come in the same order: a shuffle with a seed, and no random `map` that
    runs in parallel. A stage that may not keep it is warned of by name when training starts.
    Earlier epochs are opened and not read, or read where the order depends on it (a shuffle
    below `repeat` or `cache`).

    One folder holds one training, of one process. A checkpoint from one strategy can be resumed
    under another; it is then as close as the two strategies are. A callback that writes a file
    as it goes must not start that file anew: `CSVLogger(..., append=True)`.

    Args:
        folder: Where the checkpoints are, made if need be.
        every_steps: Steps between checkpoints, None for the ends of epochs only. With several
            steps per execution, the first end of an execution from there on.
        keep: How many checkpoints to keep, the newest ones.

    Raises:
        InvalidArgument: `every_steps` or `keep` is below 1, the folder is a file, none of its
            checkpoints is whole, or `fit` is to start later than the checkpoint.
        ModelError: A checkpoint is of another model or optimizer. Raised by `fit`.
        DatasetError: The data end before the place where training was. Raised by `fit`.
    """

    def __init__(
        self, folder: str | Path, *, every_steps: int | None = None, keep: int = 3
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
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidArgument(
                asked=f"Resume({str(folder)!r})",
                found="a file of that name",
                do="give a folder, or the name of one that is to be made",
            )
        self.every_steps = every_steps
        self.keep = keep
        self._recorder: Recorder | None = None

    @property
    def resumed_from(self) -> Position | None:
        """Where the last `fit` began, or None if it began anew."""
        return None if self._recorder is None else self._recorder.resumed_from

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Puts what does the work behind all other callbacks: it must see what they did.

        Args:
            logs: Not used.
        """
        running = epochs.running_fit(self.model)
        kind = describe(self.model.distribute_strategy).kind
        if running is None or kind in CLUSTER_KINDS:
            raise ModelError(
                asked=f"train with Resume({str(self.folder)!r})",
                found="a training that Keras's own fit does not run"
                if running is None
                else f"a strategy of kind {kind!r}, of several processes",
                do="call fit of a model from distlab.distribute, or of a Keras model, under a "
                "strategy of one process",
            )
        last = Recorder(
            self, running, folder=self.folder, every_steps=self.every_steps, keep=self.keep
        )
        last.set_params(self.params)
        last.set_model(self.model)
        if isinstance(running.callbacks[-1], Recorder):  # of a `fit` with the same CallbackList
            running.callbacks[-1] = last
        else:
            running.callbacks.append(last)
        self._recorder = last
