"""Checks of lesson 19: layers to unfreeze, adapters and what they send, a merge, and a leak."""

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
    revisit='"The step that remembers" in lesson 19',
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


# --- add_adapters: adapters of all dense layers learn, nothing else; returns what a step sends

_ADAPTED = ("dense", "heads", "head")
_RANK = 2
_REST = ("dense/bias", "norm/gamma", "norm/beta", "heads/bias", "head/bias")


def _adapter_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    features = int(draw.integers(5, 8))
    return {
        "features": features,
        "heads": int(draw.integers(3, 5)),
        "size": int(draw.integers(4, 6)),
        "rate": float(draw.choice([0.02, 0.05])),
        "images": draw.normal(0, 1, (12, features)).astype("float32"),
        "labels": draw.integers(_CLASSES, size=12),
    }


def _adapter_call(add_adapters: Callable[..., Any], inputs: Inputs) -> Plain:
    from distlab.training.distribute import distribute

    returned: list[Any] = []

    def build() -> Any:
        model = with_heads(inputs)
        returned.append(add_adapters(model, _RANK, inputs["rate"]))
        return model

    error, moved = "", []
    model = distribute(build, mirrored(_REPLICAS))
    before = {_name(weight): weight.numpy().tolist() for weight in model.weights}
    try:
        # A moves in the second step: B, which is in its gradient, starts at zero.
        model.fit(inputs["images"], inputs["labels"], batch_size=4, shuffle=False, verbose=0)
    except ValueError as refused:
        error = str(refused).splitlines()[0][:200]
    else:
        after = {_name(weight): weight.numpy().tolist() for weight in model.weights}
        moved = [name for name, old in before.items() if after[name] != old]
    return {
        "error": error,
        "moved": sorted(moved),
        "rate": float(model.optimizer.learning_rate.numpy()),
        "numbers": returned[-1],
    }


def _name(weight: Any) -> str:
    return "/".join(weight.path.split("/")[-2:])


def with_heads(inputs: Inputs) -> Any:
    """Returns a compiled model that is trainable throughout; the kernel of one layer has heads."""
    import keras

    heads = (inputs["heads"], inputs["size"])
    model = keras.Sequential(
        [
            keras.Input((inputs["features"],)),
            keras.layers.Dense(inputs["features"], "tanh", name="dense"),
            keras.layers.LayerNormalization(name="norm"),
            keras.layers.EinsumDense("bf,fhd->bhd", heads, bias_axes="hd", name="heads"),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dense(_CLASSES, name="head"),
        ]
    )
    draw = np.random.default_rng(int(inputs["labels"].sum()))
    for weight in model.weights:
        weight.assign(draw.normal(0.5, 0.5, weight.shape))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    return model


def _adapter_read(given: Inputs, outputs: Plain) -> Plain:
    numbers = outputs["numbers"]
    if isinstance(numbers, (float, np.ndarray)) and np.ndim(numbers) == 0:
        numbers = int(numbers) if float(numbers).is_integer() else numbers
    whole = isinstance(numbers, int) and not isinstance(numbers, bool)
    shown = {key: outputs[key] for key in ("error", "moved", "rate")}
    counted = numbers if whole else None
    return {**shown, "form": outputs["numbers"], "whole": whole, "numbers": counted}


def _adapter_reference(
    given: Inputs,
    *,
    adapted: tuple[str, ...] = _ADAPTED,
    rest: tuple[str, ...] = (),
    rate: float | None = None,
    counted: str = "shapes",
) -> Plain:
    features, heads, size = given["features"], given["heads"], given["size"]
    kernels = {
        "dense": (features, features),
        "heads": (features, heads, size),
        "head": (heads * size, _CLASSES),
    }
    learned = [f"{each}/lora_kernel_{side}" for each in adapted for side in "ab"]
    return {
        "error": "",
        "moved": sorted([*learned, *rest]),
        "rate": given["rate"] if rate is None else rate,
        "form": 0,
        "whole": True,
        "numbers": sum(_adapter_numbers(kernel, counted) for kernel in kernels.values())
        + (given["features"] * 3 + heads * size + _CLASSES) * (counted == "everything"),
    }


def _adapter_numbers(kernel: tuple[int, ...], counted: str) -> int:
    """The numbers of A and B for one kernel, or what a mistake counts instead."""
    *first, last = kernel
    a, b = _RANK * int(np.prod(first)), _RANK * last
    return {
        "shapes": a + b,
        "formula": _RANK * (first[0] + int(np.prod(kernel[1:]))),
        "one side": a,
        "no rank": (a + b) // _RANK,
        "bytes": 4 * (a + b),
        "both": _REPLICAS * (a + b),
        "with kernels": a + b + int(np.prod(kernel)),
        "everything": a + b + int(np.prod(kernel)),
    }[counted]


ADAPTERS = Check(
    name="add_adapters",
    title="Adapters learn, and nothing else",
    question="Which weights of a layer with an adapter still learn, and which of the other layers?",
    direction=(
        "Print `model.trainable_weights` after your loop. Each name without `lora` in it is a "
        "weight that learns on and is sent in full."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_adapter_inputs,
    call=_adapter_call,
    read=_adapter_read,
    reference=_adapter_reference,
    criteria=(
        Gate(
            Holds(
                "the model can be trained",
                lambda given, out: not out["error"],
                lambda given, out: f"`fit` raised an error: {out['error']}",
            )
        ),
        Form("a whole number", lambda _, out: out["whole"], key="form"),
        Equal("moved", "the weights that a few steps change", points=2),
        Then(
            Close("rate", "the learning rate", atol=1e-6, points=1),
            Equal("numbers", "how many numbers a replica sends in a step", points=2),
        ),
    ),
    hint="For each `Dense` and `EinsumDense` layer call `layer.enable_lora(rank)`. Then set "
    '`weight.trainable = "lora" in weight.path` for each of `model.weights`, and compile with a '
    "new SGD. The sizes of `model.trainable_weights` add up to what is sent.",
    revisit='"LoRA: a correction of low rank" in lesson 19',
    mistakes=(
        Fault("rest_still_learns", sees="moved", rest=_REST)
        .or_with(rest=("dense/bias", "heads/bias", "head/bias"))
        .or_with(rest=("norm/gamma", "norm/beta"))
        .feedback(
            "Your adapters learn, and so do weights that have none: biases, norms or both. "
            "`enable_lora` freezes the kernel of its own layer only, so each step sends the other "
            "weights in full. Who has to freeze those?"
        ),
        Fault("dense_only", sees="moved", adapted=("dense", "head")).feedback(
            "You adapted the `Dense` layers, and the layer with heads stays as it was. In a "
            "transformer most kernels of the attention are of its kind. Which class does it have?"
        ),
        Fault("frozen_adapters", sees="moved", adapted=())
        .or_with(adapted=("head",))
        .or_with(adapted=("head",), rest=("head/bias",))
        .feedback(
            "You froze whole layers, and their adapters with them: a layer with `trainable = "
            "False` has no trainable weights, old or new. On what else can you set `trainable`?"
        ),
        Fault("same_lr", sees="rate", rate=0.1).feedback(
            "The model still trains with the rate that it came with. `compile` decides the "
            "optimizer as well as what learns. Which optimizer does `fit` use after your function?"
        ),
        Fault("formula_for_heads", sees="numbers", counted="formula").feedback(
            "You counted r · (in + out) for every kernel, and that's too few for the one with "
            "heads. Keras cuts a kernel before its last axis. Which shapes do A and B have there?"
        ),
        Fault("frozen_counted", sees="numbers", counted="everything")
        .or_with(counted="with kernels")
        .feedback(
            "You counted frozen weights, too. Each replica keeps them, but none has a gradient. "
            "What do the replicas have to agree on after a step?"
        ),
        Fault("bytes_returned", sees="numbers", counted="bytes").feedback(
            "You returned bytes, which are four for each number of float32. The task asks for "
            "numbers, so that it holds for float16 as well. What do you multiply by, and where?"
        ),
        Fault("all_replicas", sees="numbers", counted="both").feedback(
            "You counted what both replicas give together. Each has a gradient of its own for "
            "every adapter, and the task asks about one replica. How many does that one give?"
        ),
        Fault("one_side", sees="numbers", counted="one side").feedback(
            "You counted A and left out B. Both learn, so both have a gradient. What would the "
            "replicas' models be if only the gradients of A were summed?"
        ),
        Fault("rank_forgotten", sees="numbers", counted="no rank").feedback(
            "You counted one row and one column for each kernel, which is an adapter of rank 1. "
            "How many columns does A have?"
        ),
    ),
)


# --- without_adapter: a plain layer that computes what the adapted one does


def _merge_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    rows, units, rank = int(draw.integers(4, 7)), int(draw.integers(3, 6)), 2
    return {
        "kernel": draw.normal(0, 1, (rows, units)).astype("float32"),
        "bias": draw.normal(0, 1, units).astype("float32"),
        "a": draw.normal(0, 0.3, (rows, rank)).astype("float32"),
        "b": draw.normal(0, 0.3, (rank, units)).astype("float32"),
        "alpha": float(draw.choice([3.0, 6.0])),
        "images": draw.normal(0, 0.5, (3, rows)).astype("float32"),
    }


def adapted_layer(inputs: Inputs) -> Any:
    """Returns a dense layer whose adapter of rank 2 has learned something."""
    import keras

    layer = keras.layers.Dense(len(inputs["bias"]), "tanh", name="adapted")
    layer.build((None, len(inputs["kernel"])))
    layer.set_weights([inputs["kernel"], inputs["bias"]])
    layer.enable_lora(inputs["a"].shape[1], lora_alpha=inputs["alpha"])
    layer.lora_kernel_a.assign(inputs["a"])
    layer.lora_kernel_b.assign(inputs["b"])
    return layer


def _merge_call(without_adapter: Callable[..., Any], inputs: Inputs) -> Plain:
    layer = adapted_layer(inputs)
    plain = without_adapter(layer)
    if plain is layer or not hasattr(plain, "weights"):
        given = "the layer that you were given"
        form = given if plain is layer else None if plain is None else f"{plain!r}"[:200]
        return {"form": form, "other": False, "outputs": None, "weights": None}
    return {
        "form": type(plain).__name__,
        "other": True,
        "outputs": np.asarray(plain(inputs["images"])),
        "weights": sorted(int(np.prod(weight.shape)) for weight in plain.weights),
    }


def _merge_reference(
    given: Inputs,
    *,
    times: float = 1,
    scaled: bool = True,
    again: bool = False,
    bias: bool = True,
    activation: bool = True,
) -> Plain:
    scale = given["alpha"] / given["a"].shape[1] if scaled else 1.0
    kernel = given["kernel"] + (times * scale + again) * (given["a"] @ given["b"])
    outputs = given["images"] @ kernel + (given["bias"] if bias else 0)
    sizes = sorted([given["kernel"].size, *([given["bias"].size] if bias else [])])
    return {
        "form": "Dense",
        "other": True,
        "outputs": np.tanh(outputs) if activation else outputs,
        "weights": sizes,
    }


MERGED = Check(
    name="without_adapter",
    title="A layer without its adapter",
    question="How often is the correction in the kernel that you ship?",
    direction="Look at `layer.kernel` before you add anything. Is it the frozen kernel?",
    cost=Cost.TENSORFLOW,
    inputs=_merge_inputs,
    call=_merge_call,
    reference=_merge_reference,
    criteria=(
        Form("another layer", lambda _, out: out["other"], key="form"),
        Close("outputs", "what the new layer computes", atol=1e-5, points=2),
        Then(Equal("weights", "the sizes of its weights", points=1)),
    ),
    hint="Build a `keras.layers.Dense` with the same units and activation, and set its weights to "
    "`[layer.kernel, layer.bias]`: for a layer with an adapter, `layer.kernel` is merged already.",
    revisit='"Save, load, go on" in lesson 19',
    mistakes=(
        Fault("merged_twice", sees="outputs", times=2)
        .or_with(again=True)
        .feedback(
            "Your layer has the correction in it twice. `layer.kernel` of an adapted layer is the "
            "merged kernel, and you added A · B to it. What does that attribute return before "
            "`enable_lora`, and what after?"
        ),
        Fault("not_merged", sees="outputs", times=0).feedback(
            "Your layer computes what the frozen kernel computes alone. Everything that the "
            "adapter has learned is lost with it. Where is that knowledge kept?"
        ),
        Fault("scale_forgotten", sees="outputs", scaled=False).feedback(
            "You added A · B without its scale. The layer multiplies its correction by "
            "`lora_alpha / lora_rank`. When would that factor be 1?"
        ),
        Fault("bias_forgotten", sees="outputs", bias=False).feedback(
            "You left out the bias, which has no adapter and belongs to the layer all the same. "
            "Which weights did the layer have before `enable_lora`?"
        ),
        Fault("activation_forgotten", sees="outputs", activation=False).feedback(
            "Your layer's kernel is right, and it returns its sums as they are. What does the old "
            "layer do with them last?"
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
    revisit='"Extra: What pretraining must not see" in lesson 19',
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


CHECKS = (UNFREEZE, ADAPTERS, MERGED, LEAK)
