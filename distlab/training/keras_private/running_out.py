"""What Keras does where data end before an epoch does, after an execution of several steps.

end_data(model, taken=3)      # in `fit` or `evaluate`: an execution of 4 steps found 3 batches

With one step after another, the step that finds no batch ends the epoch: Keras warns, and opens
the data again for the next epoch. An execution of several steps that finds some batches has no
such step. Without one, Keras would go on in data that have ended, or open them once too often.
"""

from __future__ import annotations

import keras

from distlab.training.keras_private import epochs, models


def end_data(model: keras.Model, *, taken: int) -> None:
    """Ends the running epoch as the step after the last batch would; in `fit` and `evaluate`.

    Data that know their length end by it, and so does an epoch of all of them.
    """
    iterator = epochs.running_iterator(model, "fit", "evaluate")
    if iterator is None:
        return
    if models.batches_in(iterator) is not None:
        if iterator.steps_per_epoch:
            iterator._interrupted_warning()
        return
    iterator._steps_seen += taken + 1 - iterator.steps_per_execution
    iterator._epoch_iterator = iter(())
    with iterator.catch_stop_iteration():
        raise StopIteration
