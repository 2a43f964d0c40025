"""Checks of lesson 19: layers to unfreeze, what a step sends, and a leak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Form,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)
from distlab.course.runs.replicas import mirrored

_BLOCKS, _REPLICAS = 3, 2

# --- unfreeze_from: the upper layers of a trained model learn again, and nothing else moves

_WIDTH, _CLASSES, _ROWS = 4, 3, 6


def _unfreeze_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "first": int(draw.integers(2, _BLOCKS + 1)),
        "rate": float(draw.choice([0.002, 0.005, 0.01])),
        "images": draw.normal(0, 1, (_ROWS, _WIDTH)).astype("float32"),
        "labels": draw.integers(_CLASSES, size=_ROWS),
    }


def _unfreeze_call(unfreeze: Callable[..., Any], inputs: Inputs) -> Plain:
    model = _trained_head(inputs)
    unfreeze(model, f"block_{inputs['first']}", inputs["rate"])
    before = _weights(model)
    error = ""
    try:
        _fit(model, inputs)
    except ValueError as refused:
        error = str(refused).splitlines()[0][:200]
    names = [name for name, old in before.items() if old != _weights(model)[name]]
    return {
        "error": error,
        "kernels": [name for name in names if not name.startswith("norm")],
        "normalizations": [name for name in names if name.startswith("norm")],
        "rate": float(model.optimizer.learning_rate.numpy()),
    }


def _weights(model: Any) -> dict[str, Any]:
    """Each layer's weights, as lists: an array could share the memory of a variable."""
    return {
        layer.name: [weight.numpy().tolist() for weight in layer.weights] for layer in model.layers
    }


def _trained_head(inputs: Inputs) -> Any:
    """A model on two replicas, whose head has been trained for a step on a frozen body."""
    from distlab.training.distribute import distribute

    model = distribute(lambda: _frozen_body(inputs), mirrored(_REPLICAS))
    _fit(model, inputs)
    return model


def _frozen_body(inputs: Inputs) -> Any:
    import keras

    layers: list[Any] = [keras.Input((_WIDTH,))]
    for number in range(1, _BLOCKS + 1):
        layers.append(keras.layers.Dense(_WIDTH, "tanh", name=f"block_{number}"))
        layers.append(keras.layers.BatchNormalization(name=f"norm_{number}"))
    model = keras.Sequential([*layers, keras.layers.Dense(_CLASSES, name="head")])
    draw = np.random.default_rng(int(inputs["labels"].sum()))
    for weight in model.trainable_weights:
        weight.assign(draw.normal(0, 0.5, weight.shape))
    for layer in model.layers[:-1]:
        layer.trainable = False
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    return model


def _fit(model: Any, inputs: Inputs) -> None:
    model.fit(inputs["images"], inputs["labels"], batch_size=_ROWS, shuffle=False, verbose=0)


def _unfreeze_reference(
    given: Inputs,
    *,
    first: int | None = None,
    normalizations: str = "none",
    rate: float | None = None,
) -> Plain:
    first = given["first"] if first is None else first
    blocks = range(first, _BLOCKS + 1)
    norms = {"none": (), "upper": blocks, "all": range(1, _BLOCKS + 1)}[normalizations]
    return {
        "error": "",
        "kernels": [*(f"block_{number}" for number in blocks), "head"],
        "normalizations": [f"norm_{number}" for number in norms],
        "rate": given["rate"] if rate is None else rate,
    }


UNFREEZE = Check(
    name="unfreeze_from",
    title="The upper layers learn again",
    question="Which weights does the next call of `fit` change, and when was that decided?",
    direction=(
        "Check three things: which layers have `trainable = True`, what a BatchNormalization does "
        "in the next step, and whether `fit` has heard of the change."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_unfreeze_inputs,
    call=_unfreeze_call,
    reference=_unfreeze_reference,
    criteria=(
        Gate(
            Holds(
                "the model can be trained again",
                lambda given, out: not out["error"],
                lambda given, out: f"`fit` raised an error: {out['error']}",
            )
        ),
        Equal("kernels", "the dense layers that the next step changes", points=2),
        Then(
            Equal("normalizations", "the BatchNormalizations that it changes", points=1),
            Close("rate", "the learning rate", atol=1e-6, points=1),
        ),
    ),
    hint="Walk through `model.layers` with a flag that becomes true at `first`. Set `trainable` of "
    "each layer to the flag, but to False for a BatchNormalization. Then call `model.compile` with "
    "a new optimizer and `model.loss`.",
    revisit='"Unfreeze the body" in lesson 19',
    mistakes=(
        Observed("same_optimizer", lambda given, out: "Unknown variable" in out["error"]).feedback(
            "You compiled the model with the optimizer that has trained the head. It has state "
            "for the head's weights only, so it refuses the others. Which optimizer knows nothing "
            "yet?"
        ),
        Fault("no_recompile", sees="kernels", first=_BLOCKS + 1).feedback(
            "You set the layers free, and only the head has moved. `fit` still runs the step that "
            "it traced before your change. Which call makes it trace a new one?"
        ),
        Fault("all_layers_unfrozen", sees="kernels", first=1).feedback(
            "You unfroze every layer, so the lowest layers move as well. They were meant to stay "
            "as the old data made them. From which layer on should the model learn?"
        ),
        Fault("bn_in_training_mode", sees="normalizations", normalizations="upper")
        .or_with(normalizations="all")
        .feedback(
            "You unfroze BatchNormalizations as well. They normalize with the few rows of a "
            "batch, and overwrite the statistics of the old data. How do you train the "
            "dense layers between them and keep these statistics?"
        ),
        Fault("same_lr", sees="rate", rate=0.1).feedback(
            "You kept the learning rate of the head. Its steps are large, for weights that start "
            "from random numbers. How large may a step be for weights that know something?"
        ),
    ),
)


# --- numbers_sent: how many numbers a replica sends in a step of a half-frozen model

# Mean, squares and count, of each replica, there and back.
_OF_A_FEATURE = 3 * _REPLICAS * 2


def _sent_inputs(seed: int) -> Inputs:
    """The first block is frozen, and one more normalization: the second or the third."""
    draw = np.random.default_rng(seed)
    widths = [int(width) for width in draw.choice(np.arange(3, 12), _BLOCKS + 1, replace=False)]
    frozen = ["dense_1", "norm_1", f"norm_{int(draw.integers(2, _BLOCKS + 1))}"]
    return {"features": widths[0], "widths": widths[1:], "classes": 3, "frozen": frozen}


def _sent_call(numbers_sent: Callable[..., Any], inputs: Inputs) -> Plain:
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


def _sent_read(given: Inputs, outputs: Plain) -> Plain:
    sent = outputs["sent"]
    if isinstance(sent, (float, np.ndarray)) and np.ndim(sent) == 0 and int(sent) == sent:
        sent = int(sent)
    whole = isinstance(sent, int) and not isinstance(sent, bool)
    return {"form": outputs["sent"], "whole": whole, "sent": sent if whole else None}


def _sent_reference(
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
    inputs=_sent_inputs,
    call=_sent_call,
    read=_sent_read,
    reference=_sent_reference,
    criteria=(
        Form("a whole number", lambda _, out: out["whole"], key="form"),
        Equal("sent", "how many numbers a replica sends in a step", points=3),
    ),
    hint="`layer.trainable_weights` have gradients. A BatchNormalization that is trainable sends "
    "12 numbers more for each feature. The size of a weight is the product of its `shape`.",
    revisit='"A new head on a frozen body" in lesson 19',
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
        Fault("frozen_statistics", statistics="of all").feedback(
            "You counted the statistics of every BatchNormalization. A frozen one is in inference "
            "mode. Do its statistics move in a step?"
        ),
    ),
)


# --- pretraining_rows: which rows may be used in pretraining, so that a test stays a test


def _leak_inputs(seed: int) -> Inputs:
    """Small images, of which some stand under an old and a new class."""
    draw = np.random.default_rng(seed)
    classes = draw.permutation(6)
    old, new = np.sort(classes[:3]), np.sort(classes[3:])
    labels = np.concatenate([np.repeat(np.arange(6), 6), draw.choice(old, 3)])
    images = draw.integers(0, 17, (len(labels), 3, 3))
    test = np.sort(np.concatenate([np.flatnonzero(labels == each)[:2] for each in new]))
    images[-3:-1] = images[test[0]]  # a test image stands twice under old classes
    images[-1] = images[test[-1]]
    kept = np.flatnonzero(labels == new[0])[-1]  # an image of a new class that is no test image
    images[np.flatnonzero(labels == old[0])[0]] = images[kept]
    order = draw.permutation(len(labels))
    return {
        "images": images[order],
        "labels": labels[order],
        "new_classes": new,
        "test_rows": np.flatnonzero(np.isin(order, test)),
    }


def _leak_call(pretraining_rows: Callable[..., Any], inputs: Inputs) -> Plain:
    given = [np.array(inputs[key]) for key in ("images", "labels", "new_classes", "test_rows")]
    return {"rows": pretraining_rows(*given)}


def _leak_read(given: Inputs, outputs: Plain) -> Plain:
    rows = outputs["rows"]
    rows = rows.tolist() if isinstance(rows, np.ndarray) else rows
    good = isinstance(rows, list) and all(
        isinstance(row, int) and not isinstance(row, bool) for row in rows
    )
    return {"form": outputs["rows"], "good": good, "rows": sorted(rows) if good else None}


def _leak_reference(given: Inputs, *, classes: str = "out", copies: str = "out") -> Plain:
    images, labels, tests = given["images"], given["labels"], given["test_rows"]
    new = np.isin(labels, given["new_classes"])
    out = np.isin(np.arange(len(labels)), tests)
    if classes == "out":
        out |= new
    flat = images.reshape(len(images), -1)
    for row in {"out": tests, "of all": np.flatnonzero(new), "in": []}[copies]:
        out |= (flat == flat[row]).all(axis=1) & ~new
    return {"form": [], "good": True, "rows": np.flatnonzero(~out).tolist()}


LEAK = Check(
    name="pretraining_rows",
    title="Pretraining that has not seen the test",
    question="In how many ways can a test image, or what it shows, get into the pretraining data?",
    direction=(
        "Ask two questions of each row. Does its label belong to the new task? Is its image the "
        "same, pixel for pixel, as an image of the test?"
    ),
    cost=Cost.PURE,
    inputs=_leak_inputs,
    call=_leak_call,
    read=_leak_read,
    reference=_leak_reference,
    criteria=(
        Form("a list of row numbers", lambda _, out: out["good"], key="form"),
        Equal("rows", "the rows that may be used in pretraining", points=3),
    ),
    hint="`np.isin(labels, new_classes)` marks the rows of the new classes. For copies, compare "
    "`images[row]` with `images[test]` for each test row, with `np.array_equal`.",
    revisit='"What pretraining must not see" in lesson 19',
    mistakes=(
        Fault("targets_in_pretraining", classes="in")
        .or_with(classes="in", copies="in")
        .feedback(
            "You let the new classes into the pretraining, and only their test rows are left out. "
            "The body then learns from labels that the new task is not supposed to have. What "
            'does "10 labels for each class" mean after that?'
        ),
        Fault("copies_in_pretraining", copies="in").feedback(
            "You left out the new classes, and kept rows whose image is also in the test, under an "
            "old class. The body has seen these test images. What besides a label can tell you "
            "that two rows are one photo?"
        ),
        Fault("too_careful", copies="of all").feedback(
            "You also left out copies of images that are not in the test. They do no harm to the "
            "test, and without them the body has fewer examples. Which images must stay unseen?"
        ),
    ),
)


CHECKS = (UNFREEZE, NUMBERS, LEAK)
