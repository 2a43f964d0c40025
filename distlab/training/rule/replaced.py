"""All that a distributed training replaces in Keras and TensorFlow, for the whole process.

    install()                                           # once; what is replaced stays

    python -m distlab.training.rule.replaced            # prints each name, and what is done there

Outside of a step each name does what it did. A test holds that, and so finds a version of Keras or
TensorFlow that has moved a name.
"""

from __future__ import annotations

from distlab.training.keras_private import registry, runs
from distlab.training.rule import (
    contexts,
    draws,
    gradients,
    layers,
    losses,
    operations,
    tracing,
)

PARTS = (contexts, draws, gradients, layers, losses, operations, tracing)


def install() -> None:
    """Replaces all of them."""
    for part in (runs, *PARTS):
        registry.install(part)


if __name__ == "__main__":
    print(registry.described(registry.declared_in(runs, *PARTS)))  # noqa: T201  its purpose
