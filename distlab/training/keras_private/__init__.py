"""All that is private in Keras and TensorFlow and that `distlab.training` touches, in one place.

Each file holds what belongs to one noun, and `registry.py` what is replaced for the whole process.
Tests hold each function, and that no other file of the wing reads a private name, so an upgrade
which moves one goes red there and not in a user's training. This module has what differs between
Keras's versions.
"""

from typing import Any

import keras

from distlab.environment import require_keras

require_keras(keras.__version__)

KERAS = tuple(int(part) for part in keras.__version__.split(".")[:2])

# Up to Keras 3.13 what activity regularizers give is a sum over the examples, later their mean.
ACTIVITIES_ARE_SUMS = KERAS < (3, 14)

# The attribute of Keras's global state that holds the generator of all layers without a seed.
# From Keras 3.13 on it has this name as a constant; before, it is written out.
GLOBAL_SEED_GENERATOR = "global_seed_generator"

# Callbacks that turn the sign of their `min_delta` when they choose how to compare, which they do
# again in each process. From Keras 3.11 on EarlyStopping is one of several MonitorCallbacks.
TURN_MIN_DELTA = ("EarlyStopping", "MonitorCallback")


def last_batch(batch: int, iterator: Any) -> int:
    """Returns the number of the last batch of an execution that has ended."""
    return batch if KERAS >= (3, 11) else batch + int(iterator.steps_per_execution) - 1
