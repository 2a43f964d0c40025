"""A check of lesson 14: how many numbers a replica sends in a step of a half-frozen model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Form, Inputs, Plain
from distlab.course.runs.replicas import mirrored

_BLOCKS, _REPLICAS = 3, 2
# Mean, squares and count, of each replica, there and back.
_OF_A_FEATURE = 3 * _REPLICAS * 2


def _inputs(seed: int) -> Inputs:
    """The first block is frozen, and one more normalization: the second or the third."""
    draw = np.random.default_rng(seed)
    widths = [int(width) for width in draw.choice(np.arange(3, 12), _BLOCKS + 1, replace=False)]
    frozen = ["dense_1", "norm_1", f"norm_{int(draw.integers(2, _BLOCKS + 1))}"]
    return {"features": widths[0], "widths": widths[1:], "classes": 3, "frozen": frozen}


def _call(numbers_sent: Callable[..., Any], inputs: Inputs) -> Plain:
    from distlab.training.distribute import distribute

    return {
        "sent": numbers_sent(distribute(lambda: half_frozen(inputs), mirrored(_REPLICAS))),
    }


def half_frozen(inputs: Inputs) -> Any:
    """Returns a compiled model, some layers of which are frozen."""
    import keras

    layers: list[Any] = [keras.Input((inputs["features"],))]
    for number, width in enumerate(inputs["widths"], 1):
        layers.append(keras.layers.Dense(width, "relu", name=f"dense_{number}"))
        layers.append(keras.layers.BatchNormalization(name=f"norm_{number}"))
        layers.append(keras.layers.Dropout(0.1, name=f"dropout_{number}"))
    model = keras.Sequential([*layers, keras.layers.Dense(inputs["classes"], name="head")])
    for name in inputs["frozen"]:
        model.get_layer(name).trainable = False
    model.compile("sgd", "mse", jit_compile=False)
    return model


def _read(given: Inputs, outputs: Plain) -> Plain:
    sent = outputs["sent"]
    if isinstance(sent, (float, np.ndarray)) and np.ndim(sent) == 0 and int(sent) == sent:
        sent = int(sent)
    whole = isinstance(sent, int) and not isinstance(sent, bool)
    return {"form": outputs["sent"], "whole": whole, "sent": sent if whole else None}


def _reference(
    given: Inputs,
    *,
    frozen_gradients: bool = False,
    statistics: str = "of trainable",
    each: int = _OF_A_FEATURE,
) -> Plain:
    """The numbers of gradients and of statistics; `each` is how many a normalized feature sends."""

    def counts(name: str, frozen: bool) -> bool:
        return frozen or name not in given["frozen"]

    widths, total = [given["features"], *given["widths"], given["classes"]], 0
    names = [f"dense_{number}" for number in range(1, _BLOCKS + 1)] + ["head"]
    for name, below, width in zip(names, widths[:-1], widths[1:], strict=True):
        total += (below + 1) * width * counts(name, frozen_gradients)
    for number, width in enumerate(given["widths"], 1):
        name = f"norm_{number}"
        total += 2 * width * counts(name, frozen_gradients)
        if statistics != "none":
            total += each * width * counts(name, statistics == "of all")
    return {"form": 0, "whole": True, "sent": total}


NUMBERS = Check(
    name="numbers_sent",
    title="What a step sends",
    question="Which numbers differ between the replicas after each has looked at its own rows?",
    direction=(
        "Go through the layers. Which weights of this layer does a step change, by a gradient or "
        "by the rows themselves?"
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form("a whole number", lambda _, out: out["whole"], key="form"),
        Equal("sent", "how many numbers a replica sends in a step", points=3),
    ),
    hint="`layer.trainable_weights` have gradients. A BatchNormalization that is trainable sends "
    "12 numbers more for each feature. The size of a weight is the product of its `shape`.",
    revisit='"A new head on a frozen body" in lesson 14',
    mistakes=(
        Fault("whole_model", frozen_gradients=True, statistics="of all", each=2)
        .or_with(frozen_gradients=True, statistics="of all")
        .feedback(
            "You counted every weight of the model. Each replica keeps a copy of a frozen weight, "
            "and no step changes it. Which weights do the replicas have to agree on after a step?"
        ),
        Fault("gradients_only", statistics="none").feedback(
            "You counted the gradients, and something else is sent as well. Each replica "
            "normalizes with the mean and the variance of all rows, and has only its own. What do "
            "the replicas have to tell each other?"
        ),
        Fault("moving_statistics", each=2).feedback(
            "You counted the moving mean and the moving variance, and no step sends these two. "
            "They follow from what the replicas tell each other about their rows. How many numbers "
            "for each feature does the lesson count there?"
        ),
        Fault("one_way", each=_OF_A_FEATURE // 2).feedback(
            "You counted what a BatchNormalization sends on the way forward. Its mean and its "
            "variance have a gradient, too, and all replicas' outputs depend on them. What is sent "
            "on the way back?"
        ),
        Fault("frozen_statistics", statistics="of all").feedback(
            "You counted the statistics of every BatchNormalization. A frozen one is in inference "
            "mode. Do its statistics move in a step?"
        ),
    ),
)
