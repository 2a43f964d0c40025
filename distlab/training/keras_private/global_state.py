"""Keras's settings and generators of this thread, saved and put back."""

from __future__ import annotations

import copy
from collections.abc import Callable

import keras
from keras.src.backend.common import global_state

from distlab.training.keras_private import GLOBAL_SEED_GENERATOR

# The attributes of Keras's global state that a user sets or sees. A setting that was only read, as
# by `keras.config.dtype_policy()`, stays the same whatever `set_floatx` says later.
_ATTRIBUTES = (
    *("global_random_seed", GLOBAL_SEED_GENERATOR, "object_name_uids", "dtype_policy"),
    *("traceback_filtering", "interactive_logging", "flash_attention", "distribution"),
)


def forget_generator() -> None:
    """Lets Keras make another generator for what is drawn without a seed."""
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, None)


def save_global_state() -> Callable[[], None]:
    """Returns a function that puts settings and generators back as they are now."""
    config = keras.config
    setters = (
        (config.set_floatx, config.floatx()),
        (config.set_epsilon, config.epsilon()),
        (config.set_image_data_format, config.image_data_format()),
    )
    attributes = {name: global_state.get_global_attribute(name) for name in _ATTRIBUTES}
    names = copy.copy(attributes["object_name_uids"])
    generator = attributes[GLOBAL_SEED_GENERATOR]
    drawn = None if generator is None else generator.state.numpy()

    def restore() -> None:
        for setter, value in setters:
            setter(value)
        for name, value in (attributes | {"object_name_uids": names}).items():
            if global_state.get_global_attribute(name) is not value:
                global_state.set_global_attribute(name, value)
        if generator is not None and (generator.state.numpy() != drawn).any():
            generator.state.assign(drawn)

    return restore
