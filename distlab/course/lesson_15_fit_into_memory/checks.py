"""Checks of lesson 15: accumulation over tokens, recomputation, its dropout, the largest batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Form,
    Holds,
    Inputs,
    Observed,
    Plain,
    Raises,
    Then,
)

# --- accumulated_gradients: the gradients of a mean over the tokens of all micro-batches

_VOCABULARY, _PLACES = 6, 8


def _text_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    micro_batches = []
    for rows, longest in zip((3, 3, 3, 1), draw.permutation([2, 4, 6, 8]), strict=True):
        lengths = draw.integers(1, longest + 1, size=rows)
        lengths[0] = longest
        micro_batches.append(
            {
                "x": draw.integers(0, _VOCABULARY, size=(rows, _PLACES)).astype(np.int32),
                "y": draw.integers(0, _VOCABULARY, size=(rows, _PLACES)).astype(np.int32),
                "counts": (np.arange(_PLACES) < lengths[:, None]).astype(np.float32),
            }
        )
    kernel = draw.normal(size=(_VOCABULARY, _VOCABULARY)).astype(np.float32)
    bias = draw.normal(size=_VOCABULARY).astype(np.float32)
    return {"micro_batches": micro_batches, "weights": [kernel, bias]}


def _text_call(accumulated_gradients: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    kernel, bias = (tf.Variable(weight) for weight in inputs["weights"])
    rows_at_once: list[int] = []

    def losses(x: Any, y: Any) -> Any:
        rows_at_once.append(len(x))
        logits = tf.one_hot(x, _VOCABULARY) @ kernel + bias
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)

    micro_batches = [
        tuple(tf.constant(each[name]) for name in ("x", "y", "counts"))
        for each in inputs["micro_batches"]
    ]
    gradients = accumulated_gradients([kernel, bias], micro_batches, losses)
    return {"gradients": gradients, "most_rows": max(rows_at_once, default=0)}


def _text_read(given: Inputs, outputs: Plain) -> Plain:
    """Joins the gradients to one table, the bias as its last row, if they have their form."""
    gradients = outputs["gradients"]
    shapes = [weight.shape for weight in given["weights"]]
    is_list = isinstance(gradients, list) and [np.shape(each) for each in gradients] == shapes
    return {**outputs, "gradients": np.vstack(gradients) if is_list else gradients, "list": is_list}


def _text_reference(given: Inputs, *, divide_by: str = "tokens") -> Plain:
    kernel, bias = (weight.astype(np.float64) for weight in given["weights"])
    batches, sums = given["micro_batches"], [np.zeros(kernel.shape), np.zeros(bias.shape)]
    tokens = [float(each["counts"].sum()) for each in batches]
    divisors = {
        "tokens": [sum(tokens)] * len(batches),
        "means": [len(batches) * own for own in tokens],
        "own tokens": tokens,
        "nothing": [1.0] * len(batches),
        "tokens, twice": [len(batches) * sum(tokens)] * len(batches),
        "places": [float(sum(each["counts"].size for each in batches))] * len(batches),
        "first": [len(batches) * tokens[0]] * len(batches),
    }[divide_by]
    for each, divisor in zip(batches, divisors, strict=True):
        one_hot = np.eye(_VOCABULARY)[each["x"]]
        scores = np.exp(one_hot @ kernel + bias)
        of_logits = scores / scores.sum(axis=-1, keepdims=True) - np.eye(_VOCABULARY)[each["y"]]
        of_logits *= each["counts"][..., None] / divisor
        sums[0] += np.einsum("rti,rto->io", one_hot, of_logits)
        sums[1] += of_logits.sum(axis=(0, 1))
    return {"gradients": np.vstack(sums), "list": True, "most_rows": 3}


ACCUMULATED = Check(
    name="accumulated_gradients",
    title="The gradients of a batch that comes in parts",
    inputs=_text_inputs,
    call=_text_call,
    read=_text_read,
    reference=_text_reference,
    criteria=(
        Form(
            "a list with a gradient for each weight",
            lambda given, outputs: outputs["list"],
            key="gradients",
        ),
        Close("gradients", "the gradients, those of the whole batch", atol=1e-5, points=3),
        Then(
            Holds(
                "no more rows at a time than a micro-batch has",
                lambda given, outputs: outputs["most_rows"] <= 3,
                lambda given, outputs: f"`losses` got {outputs['most_rows']} rows at once",
            )
        ),
    ),
    question="How much does one token count in your sum, in each micro-batch?",
    direction="Count the tokens of all micro-batches before the first gradient.",
    hint="Sum counts * losses in each micro-batch, divide by the tokens of all of them, and add "
    "the gradients.",
    revisit="Drop most of the batch",
    mistakes=(
        Fault("mean_of_means", divide_by="means").feedback(
            "You averaged the micro-batches' means, so a token counts more if its micro-batch has "
            "few of them. How much should each token of the batch count?"
        ),
        Fault("sum_of_means", divide_by="own tokens").feedback(
            "You divided each micro-batch by its own tokens and added the gradients, so the step "
            "is several times too large and short texts count too much. Which number is the same "
            "for all tokens?"
        ),
        Fault("divided_twice", divide_by="tokens, twice").feedback(
            "You divided by all tokens, and then by the number of micro-batches too, so the step "
            "is that many times too small. Which of the two divisions makes the mean over tokens?"
        ),
        Fault("never_divided", divide_by="nothing").feedback(
            "You added the sums and divided by nothing, so the step grows with the text. How many "
            "tokens does the batch have?"
        ),
        Fault("all_places", divide_by="places").feedback(
            "You divided by all places of the batch, also those that fill up rows, so a batch of "
            "short texts gets a smaller step. What does `counts` say about these places?"
        ),
        Fault("nominal_batch", divide_by="first").feedback(
            "You took each micro-batch to have as many tokens as the first one, and the others "
            "have more or fewer. Where does the number of tokens stand for each of them?"
        ),
        Observed("all_at_once", lambda given, outputs: outputs["most_rows"] > 3).feedback(
            "You joined the micro-batches and computed one gradient, so the activations of all "
            "rows are there at once. How many rows may have activations at the same time?"
        ),
        Raises("computed_outside_tape", r"value \(None\)|and 'NoneType'").feedback(
            "`tape.gradient` returned None, because the tape didn't see how your number was "
            "computed. Which of your lines, such as a division, belongs inside the `with`?"
        ),
    ),
)

# --- recomputed: what tf.recompute_grad does

_PARTS, _LAYERS, _ROWS, _WIDTH = 3, 6, 2048, 64
# Peaks vary by a quarter; a right answer has less than half of the plain step's.
_SAVED = 0.75


def _chain_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    shape = (_PARTS, _LAYERS, _WIDTH, _WIDTH)
    return {
        "weights": (draw.normal(size=shape) * 1.2 / _WIDTH**0.5).astype(np.float32),
        "x": draw.normal(size=(_ROWS, _WIDTH)).astype(np.float32),
    }


def _chain(x: Any, *weights: Any) -> Any:
    import tensorflow as tf

    for weight in weights:
        x = tf.tanh(x @ weight)
    return x


def _chain_call(recomputed: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    from distlab.course.measure.peak import peak_bytes

    weights = [[tf.constant(each) for each in part] for part in inputs["weights"]]
    x = tf.constant(inputs["x"])

    def step_with(wrap: Callable[..., Any]) -> Any:
        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def step(x: Any, weights: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch([x, weights])
                flow = x
                for part in weights:
                    flow = _returned(wrap(_chain))(flow, *part)
                loss = tf.reduce_sum(flow) / _WIDTH
            firsts = [part[0] for part in weights]
            return flow[:4], tape.gradient(
                loss, [x, *firsts, weights], unconnected_gradients=tf.UnconnectedGradients.ZERO
            )

        return step

    plain, saving = step_with(lambda f: f), step_with(recomputed)
    result, (of_x, *of_firsts, _) = saving(x, weights)
    types = [each.type for each in saving.get_concrete_function(x, weights).graph.get_operations()]
    steps = (functools.partial(step, x, weights) for step in (saving, plain))
    saved, whole = (peak_bytes(step, runs=1) for step in steps)
    return {
        "result": result,
        "of_x": of_x[:4],
        "of_weights": of_firsts,
        "products": types.count("MatMul"),
        # What a custom gradient leaves in a graph; a plain function has none.
        "own_gradient": types.count("IdentityN") > 0,
        "share": saved / whole,
    }


def _returned(function: Any) -> Any:
    if function is None:
        raise TypeError("your function returned None: is there a `return`?")
    return function


def _chain_read(given: Inputs, outputs: Plain) -> Plain:
    """Whether it saves memory is asked only of an answer that computes everything again."""
    is_again = outputs["products"] == 4 * _PARTS * _LAYERS
    return {**outputs, "saves": outputs["share"] < _SAVED or not is_again}


def _chain_reference(
    given: Inputs,
    *,
    computed_again: bool = True,
    saves: bool = True,
    weights_get: bool = True,
    heeds_upstream: bool = True,
) -> Plain:
    flows, x = [], given["x"].astype(np.float64)
    layers = given["weights"].astype(np.float64)
    for part in layers:
        inputs = []
        for weight in part:
            inputs.append(x)
            x = np.tanh(x @ weight)
        flows.append((inputs, x))
    upstream, of_weights = np.full(x.shape, 1 / _WIDTH), list[Any]()
    for part, (inputs, result) in zip(layers[::-1], flows[::-1], strict=True):
        upstream = upstream if heeds_upstream else np.ones(x.shape)
        after = [*inputs[1:], result]
        for weight, before, out in zip(part[::-1], inputs[::-1], after[::-1], strict=True):
            inner = upstream * (1 - out**2)
            of_weight, upstream = before.T @ inner, inner @ weight.T
        of_weights.insert(0, of_weight if weights_get else np.zeros_like(of_weight))
    products = _PARTS * _LAYERS
    return {
        "result": x[:4],
        "of_x": upstream[:4],
        "of_weights": of_weights,
        "products": (4 if computed_again else 3) * products,
        "own_gradient": True,
        "saves": saves,
    }


RECOMPUTED = Check(
    name="recomputed",
    title="Recomputation by hand",
    inputs=_chain_inputs,
    call=_chain_call,
    read=_chain_read,
    reference=_chain_reference,
    criteria=(
        Close("result", "the result", atol=1e-4, points=0.5),
        Equal("own_gradient", "the gradient comes from your `backward`", points=0.5),
        Then(
            Close("of_x", "the gradient of x", atol=1e-4, points=1),
            Close("of_weights", "the gradients of the weights", atol=2e-2, points=1),
        ),
        Then(
            Equal("products", "matrix products in the compiled step", points=1),
        ),
        Then(
            Equal("saves", "the peak is below three quarters of the plain step's", points=1),
        ),
    ),
    question="What does your function hold between the forward and the backward pass?",
    direction="Only `x` and the weights may outlive the forward pass: call `f` in `backward`.",
    hint="In `backward`: copies behind a control dependency on `upstream`, a tape that watches all "
    "of them, `f` of them, and `tape.gradient(..., output_gradients=upstream)`.",
    revisit="Drop what you can compute again",
    mistakes=(
        Fault("upstream_ignored", heeds_upstream=False).feedback(
            "Your `backward` computed the gradient of the sum of its own results and ignored "
            "`upstream`, so each part acts as if it were the last one. How does the gradient of "
            "the loss come into a part?"
        ),
        Fault("only_inputs", weights_get=False).feedback(
            "Your `backward` gave `x` its gradient and the weights zeros, so the weights will "
            "never learn. Which tensors does your tape watch?"
        ),
        Observed("never_again", lambda given, outputs: not outputs["own_gradient"]).feedback(
            "Nothing was computed again: `f` ran once, and TensorFlow kept what its own gradient "
            "needs. Which function of yours should be asked for the gradient instead?"
        ),
        Fault("kept_anyway", computed_again=False).feedback(
            "You ran `f` on a tape in the forward pass, and that tape keeps all activations until "
            "the backward pass. Where must the tape be opened, so that there's nothing to keep?"
        ),
        Fault("merged_away", saves=False).feedback(
            "You compute `f` twice, but with the same inputs, so TensorFlow merges both and keeps "
            "the first result: the peak is as high as before. What can the second computation "
            "wait for that the first one doesn't have?"
        ),
    ),
)

# --- recomputed_dropout: a mask that both computations share

_SIZE = 64


def _dropout_inputs(seed: int) -> Inputs:
    return {"rate": (0.5, 0.25, 0.4)[seed % 3], "scale": 1.0 + seed}


def _dropout_call(recomputed_dropout: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    calls: list[int] = []

    def layer(x: Any) -> Any:
        calls.append(1)
        return x * inputs["scale"]

    call = _returned(recomputed_dropout(layer, inputs["rate"]))
    x = tf.ones([_SIZE, _SIZE])

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = _returned(call(x))
        return result, tape.gradient(result, x)

    compiled = tf.function(step, autograph=False)
    eager = [step(x)]
    computed = len(calls)
    eager.append(step(x))
    return {"eager": eager, "compiled": [compiled(x), compiled(x)], "computed": computed}


def _dropout_read(given: Inputs, outputs: Plain) -> Plain:
    steps = [*outputs["eager"], *outputs["compiled"]]
    results = [np.asarray(result) for result, _ in steps]
    pairs = (outputs["eager"], outputs["compiled"])
    drops = all(abs((r == 0).mean() - given["rate"]) < 0.05 for r in results)
    kept = given["scale"] / (1 - given["rate"])
    return {
        "one_mask": max(_other(np.asarray(r), np.asarray(g)) for r, g in steps) == 0,
        "new_mask": not drops or all(_other(*map(_result, pair)) > 0 for pair in pairs),
        "dropped": drops,
        "kept": all(np.allclose(r[r != 0], kept, rtol=1e-3) for r in results),
        "computed": outputs["computed"],
    }


def _result(step: Any) -> Any:
    return np.asarray(step[0])


def _other(one: Any, other: Any) -> int:
    return int(((one == 0) != (other == 0)).sum())


def _dropout_reference(
    given: Inputs,
    *,
    same_in_both: bool = True,
    new_each_call: bool = True,
    drops: bool = True,
    computed: int = 2,
) -> Plain:
    return {
        "one_mask": same_in_both,
        "new_mask": new_each_call,
        "dropped": drops,
        "kept": drops,
        "computed": computed,
    }


DROPOUT = Check(
    name="recomputed_dropout",
    title="Dropout in a layer that is computed twice",
    inputs=_dropout_inputs,
    call=_dropout_call,
    read=_dropout_read,
    reference=_dropout_reference,
    criteria=(
        Equal("dropped", "as many entries are 0 as the rate says", points=0.5),
        Equal("kept", "the others are scaled, as dropout does", points=0.5),
        Then(
            Equal("one_mask", "gradients go through the mask of the forward pass", points=1),
            Equal("new_mask", "two calls have different masks", points=1),
            Equal("computed", "how often the layer is computed", points=1),
            after=any,
        ),
    ),
    question="Which of your lines run a second time in the backward pass?",
    direction="Draw whatever is random before the part that is computed twice begins.",
    hint="In `call(x)`: draw two whole numbers with `tf.random.uniform`, define the part that uses "
    "them in `stateless_dropout`, and return `tf.recompute_grad(part)(x)`.",
    revisit="What must not be drawn again",
    mistakes=(
        Fault("dropout_off", drops=False).feedback(
            "Your layer drops nothing now, so both computations agree, and the model loses what "
            "dropout was for. Can two computations share a mask that still drops?"
        ),
        Fault("not_recomputed", computed=1).feedback(
            "Your layer is computed only once, so its mask is right and its activations are kept, "
            "as before anybody tried to save memory. Which part must `tf.recompute_grad` wrap?"
        ),
        Fault("seed_drawn_inside", same_in_both=False).feedback(
            "Each of the two computations draws for itself, so the gradient goes through a mask "
            "that the forward pass didn't have. Which line draws, and how often does it run in "
            "one step?"
        ),
        Fault("same_mask_every_step", new_each_call=False).feedback(
            "Both computations share a mask, but so do all steps (or all steps of a compiled "
            "function), and the same units are silent for ever. When must new numbers be drawn?"
        ),
    ),
)

# --- largest_batch: what fits, from two measured peaks


def _batch_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    cases = []
    for micro_batches in (1, 2, 4, 8):
        row = float(draw.integers(3, 12)) / 4
        gradients = float(draw.integers(4, 20)) / 4
        fixed = 2 * gradients + float(draw.integers(1, 9))
        limit = float(draw.integers(48, 97))
        few = int(draw.integers(2, 5))
        cases.append(_case(limit, fixed, row, gradients, (few, 2 * few + 1), micro_batches))
    cases.append(_case(16.0, 20.0, 2.0, 6.0, (2, 4), 4))  # not a single row
    return {"cases": cases}


def _case(
    limit: float, fixed: float, row: float, gradients: float, rows: Sequence[int], cuts: int
) -> dict[str, Any]:
    peaks = [[number, fixed + number * row] for number in rows]
    return {"limit_mb": limit, "peaks": peaks, "gradients_mb": gradients, "micro_batches": cuts}


def _batch_call(largest_batch: Callable[..., Any], inputs: Inputs) -> Plain:
    return {
        "rows": [
            largest_batch(**{**case, "peaks": {int(rows): peak for rows, peak in case["peaks"]}})
            for case in inputs["cases"]
        ]
    }


def _batch_reference(
    given: Inputs,
    *,
    counts_fixed: bool = True,
    divides_fixed: bool = False,
    counts_sum: bool = True,
    from_one_peak: bool = False,
    rounds_last: bool = False,
) -> Plain:
    answers = []
    for case in given["cases"]:
        (few, low), (many, high) = case["peaks"]
        cuts = case["micro_batches"]
        row = (high - low) / (many - few)
        fixed = low - few * row
        if from_one_peak:
            row, fixed = low / few, 0.0
        if cuts > 1 and counts_sum:
            fixed += case["gradients_mb"]
        if divides_fixed:
            fixed /= cuts
        room = max(0.0, case["limit_mb"] - (fixed if counts_fixed else 0.0))
        answers.append(int(cuts * room / row) if rounds_last else cuts * int(room // row))
    return {"rows": answers}


def _has_part_of_a_row(given: Inputs, outputs: Plain) -> bool:
    return any(isinstance(rows, float) and rows % 1 for rows in outputs["rows"])


LARGEST = Check(
    name="largest_batch",
    title="The largest batch that fits",
    cost=Cost.PURE,
    inputs=_batch_inputs,
    call=_batch_call,
    reference=_batch_reference,
    criteria=(Equal("rows", "rows of the largest batch, in each case", points=3),),
    question="Which part of a peak grows with the rows, and which part is there at 0 rows?",
    direction="Take the slope from the two peaks, and then what is left at 0 rows.",
    hint="Rows of a micro-batch: what the limit leaves beside the fixed part, divided by the slope "
    "and rounded down. The batch has that many rows for each micro-batch.",
    revisit="What fills the memory",
    mistakes=(
        Fault("activations_only", counts_fixed=False).feedback(
            "You gave the whole limit to activations, as if weights and gradients took nothing, so "
            "your batch runs out of memory. What is the peak at 0 rows?"
        ),
        Fault("weights_divided_by_micro_batches", divides_fixed=True).feedback(
            "You divided weights and gradients by the micro-batches, but each of them needs "
            "both whole. Which part of the peak becomes smaller with fewer rows?"
        ),
        Fault("sum_forgotten", counts_sum=False).feedback(
            "You left out the sum in which gradients accumulate, so with micro-batches your batch "
            "is too large. What does a step hold between two micro-batches?"
        ),
        Fault("from_one_peak", from_one_peak=True).feedback(
            "You divided a peak by its rows, so each row also pays for weights and gradients, and "
            "your batch is too small. What do two peaks tell you that one doesn't?"
        ),
        Fault("rounded_last", rounds_last=True).feedback(
            "You rounded after multiplying by the micro-batches, so a micro-batch gets a fraction "
            "of a row more than fits. What must be a whole number first?"
        ),
        Observed("part_of_a_row", _has_part_of_a_row).feedback(
            "You returned a fraction, and a number of rows is whole. What must be rounded, in "
            "which direction, and before or after you multiply by the micro-batches?"
        ),
    ),
)

CHECKS = (ACCUMULATED, RECOMPUTED, DROPOUT, LARGEST)
