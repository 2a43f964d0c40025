"""Checks of lesson 20: a loss that XLA compiles, a padded evaluation, and three verdicts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Fault,
    Form,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)
from distlab.course.checks.shared_checks import PairsByCase

# --- labelled_loss: a loss over labelled examples that XLA compiles, with fixed shapes

_ROWS, _CLASSES, _UNLABELLED, _LIMIT = 12, 5, 4, 3.0
# Operations whose result has a shape that depends on values.
_DYNAMIC = {"Where", "Unique", "UniqueV2", "UniqueWithCounts", "DynamicPartition", "ListDiff"}
_VALUE_WANTED = (
    r"has no attribute 'numpy'|as a Python `?bool|to a numpy array|not allowed in Graph"
    r"|__float__|__int__|__index__|float\(\) argument|int\(\) argument|be interpreted as an integer"
)


def _loss_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    labels = draw.integers(_CLASSES, size=_ROWS)
    labels[draw.permutation(_ROWS)[:_UNLABELLED]] = -1
    scores = draw.normal(0, 2.5, size=(_ROWS, _CLASSES))
    return {"scores": scores.astype("float32"), "labels": labels.astype("int32")}


def _loss_call(labelled_loss: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    def step(scores: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(scores)
            loss = labelled_loss(scores, labels)
        return loss, None if loss is None else tape.gradient(loss, scores)

    compiled = tf.function(step, jit_compile=True)
    scores, labels = tf.constant(inputs["scores"]), tf.constant(inputs["labels"])
    try:
        loss, gradient = compiled(scores, labels)
        empty, empty_gradient = compiled(scores, tf.fill([_ROWS], -1))
        graph = compiled.get_concrete_function(scores, labels).graph.as_graph_def()
    except Exception as error:  # what a compiler refuses is what this check is about
        return {"refused": f"{type(error).__name__}: {error}"}
    nodes = [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]
    return {
        "refused": "",
        "loss": loss,
        "gradient": gradient,
        "empty": empty,
        "empty_gradient": empty_gradient,
        "dynamic": sorted({node.op for node in nodes} & _DYNAMIC),
    }


def _loss_reference(given: Inputs, *, divisor: int = _ROWS - _UNLABELLED) -> Plain:
    scores, labels = np.asarray(given["scores"], float), np.asarray(given["labels"])
    clipped = np.clip(scores, -_LIMIT, _LIMIT)
    chances = np.exp(clipped) / np.exp(clipped).sum(axis=1, keepdims=True)
    counts = labels >= 0
    target = np.eye(_CLASSES)[np.maximum(labels, 0)]
    losses = -np.log((chances * target).sum(axis=1))
    inside = np.abs(scores) < _LIMIT
    return {
        "loss": (losses * counts).sum() / divisor,
        "gradient": (chances - target) * counts[:, None] * inside / divisor,
        "empty": 0.0,
        "empty_gradient": np.zeros_like(scores),
        "refused": "",
        "dynamic": [],
    }


def _refusal(inputs: Inputs, outputs: Plain) -> str:
    text = outputs["refused"]
    if operation := re.search(r"'(\w+)' OpKernel", text):
        return f"TensorFlow cannot translate the operation {operation[1]} for XLA"
    return f"it ended with: {text.strip().splitlines()[-1].strip()[:200]}"


def _is_a_number(inputs: Inputs, outputs: Plain) -> bool:
    return outputs["loss"] is not None and np.shape(outputs["loss"]) == ()


COMPILED_LOSS = Check(
    name="labelled_loss",
    title="A loss that XLA compiles",
    question="Which lines ask for a value while the step is traced, and which give a shape that "
    "depends on values?",
    direction=(
        "Go through the function line by line. Each line must be TensorFlow, must not ask a tensor "
        "for its value, and must give a tensor of a fixed shape."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_loss_inputs,
    call=_loss_call,
    reference=_loss_reference,
    criteria=(
        Gate(
            Holds(
                "it can be traced, and XLA compiles it",
                lambda _, out: not out["refused"],
                _refusal,
            )
        ),
        Gate(Holds("the loss is one number", _is_a_number, "it has a different form")),
        Close("loss", "the loss of a batch with labels", atol=1e-5, points=2),
        Then(
            Close("gradient", "its gradient by the scores", atol=1e-5, points=1),
            Close("empty", "the loss of a batch without labels", atol=1e-6, points=0.5),
            Close("empty_gradient", "the gradient of that loss", atol=1e-6, points=0.5),
            Holds(
                "no shape depends on values",
                lambda _, out: not out["dynamic"],
                lambda _, out: f"the graph has {', '.join(out['dynamic'])}",
                points=1,
            ),
        ),
    ),
    hint="tf.clip_by_value for the clip. tf.maximum(labels, 0) for labels that exist. Multiply "
    "the losses by the mask, and divide with tf.math.divide_no_nan by the sum of the mask.",
    revisit='"What the compiler refuses" in lesson 20',
    mistakes=(
        Observed(
            "python_branch_on_tensor", lambda _, out: re.search(_VALUE_WANTED, out["refused"])
        ).feedback(
            "You asked a tensor for its value, for example in an `if`, with `.numpy()` or with a "
            "function of NumPy. While a step is traced, its tensors have no value. "
            "How can one formula give the right loss in both cases?"
        ),
        Observed(
            "nan_times_zero",
            lambda _, out: np.isnan(out["loss"]) or np.isnan(out["gradient"]).any(),
        ).feedback(
            "You let the loss of an example without a label be computed from the label -1. That "
            "loss is NaN, and NaN times 0 is NaN, too. Which label could such an example have "
            "until the mask takes its loss away?"
        ),
        Fault("divided_by_all", sees="loss", divisor=_ROWS).feedback(
            "You divided by all examples of the batch. The loss shrinks with every example that "
            "has no label. How many losses does your sum contain?"
        ),
        Observed("dynamic_shape_op", lambda _, out: out["dynamic"]).feedback(
            "You select the labelled examples, so the shape of the result depends on the labels. "
            "It compiles on this CPU, and it is suspect on a TPU. How could all examples stay, "
            "and only some of them count?"
        ),
    ),
)


# --- evaluate_padded: an evaluation over all examples, in batches of one shape


def _evaluate_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    size = int(draw.integers(5, 9))
    rows = 2 * size + int(draw.integers(1, size - 2))
    return {
        "size": size,
        "images": draw.normal(size=(rows, 6)).astype("float32"),
        "labels": draw.integers(4, size=rows),
        "kernel": draw.normal(size=(6, 4)),
    }


def _losses_and_hits(images: Any, labels: Any, kernel: Any) -> tuple[Any, Any]:
    scores = np.asarray(images, float) @ kernel
    labels = np.asarray(labels).astype(int)
    own = scores[np.arange(len(labels)), labels]
    return np.log(np.exp(scores).sum(axis=1)) - own, (scores.argmax(axis=1) == labels) * 1.0


def _evaluate_call(evaluate: Callable[..., Any], inputs: Inputs) -> Plain:
    def run(rows: int) -> Plain:
        sizes, losses, hits = [], [], []

        def step(images: Any, labels: Any) -> tuple[Any, Any]:
            result = _losses_and_hits(images, labels, inputs["kernel"])
            sizes.append(len(result[0]))
            losses.extend(result[0])
            hits.extend(result[1])
            return result

        metrics = evaluate(step, inputs["images"][:rows], inputs["labels"][:rows], inputs["size"])
        return {"found": metrics, "sizes": sizes, "losses": losses, "hits": hits}

    return {"partial": run(len(inputs["images"])), "full": run(2 * inputs["size"])}


def _evaluate_read(given: Inputs, outputs: Plain) -> Plain:
    """Takes apart what was returned, and what the step saw."""
    partial, full = outputs["partial"], outputs["full"]
    pairs = [run["found"] for run in (partial, full)]
    pairs = [each.tolist() if isinstance(each, np.ndarray) else each for each in pairs]
    if not all(isinstance(pair, list) and np.shape(pair) == (2,) for pair in pairs):
        return {"form": pairs[0], "good": False}
    return {
        "form": pairs[0],
        "good": True,
        "loss": pairs[0][0],
        "accuracy": pairs[0][1],
        "full": pairs[1],
        "sizes": partial["sizes"],
        "padded": sum(partial["sizes"]) > len(given["images"]),
        "full_calls": len(full["sizes"]),
        "of_all_places": [np.mean(partial["losses"]), np.mean(partial["hits"])],
    }


def _evaluate_reference(
    given: Inputs, *, drops_partial: bool = False, of_batches: bool = False
) -> Plain:
    size, rows = given["size"], len(given["images"])
    both = np.array(_losses_and_hits(given["images"], given["labels"], given["kernel"]))
    full = both[:, : 2 * size].mean(axis=1)
    pieces = [both[:, at : at + size] for at in range(0, rows, size)]
    if drops_partial:
        pieces = pieces[:-1]
    mean = np.concatenate(pieces, axis=1).mean(axis=1)
    if of_batches:
        mean = np.mean([piece.mean(axis=1) for piece in pieces], axis=0)
    return {
        "form": mean,
        "good": True,
        "loss": mean[0],
        "accuracy": mean[1],
        "full": full,
        "sizes": [size] * len(pieces),
        "padded": False,
        "full_calls": 2,
    }


def _near(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, atol=1e-5))


EVALUATION = Check(
    name="evaluate_padded",
    title="An evaluation in batches of one shape",
    question="Which numbers that `step` returns belong to an example, and which to a filled place?",
    direction=(
        "Follow the last batch: how many of its rows are examples? Only their losses and hits may "
        "enter the sums, and only they may be counted."
    ),
    cost=Cost.PURE,
    inputs=_evaluate_inputs,
    call=_evaluate_call,
    read=_evaluate_read,
    reference=_evaluate_reference,
    criteria=(
        Form("two numbers, the mean loss and the accuracy", lambda _, out: out["good"], key="form"),
        Close("loss", "the mean loss over all examples", atol=1e-5, points=1.5),
        Close("accuracy", "the accuracy over all examples", atol=1e-5, points=1.5),
        Then(
            Holds(
                "each batch has the same number of rows",
                lambda given, out: set(out["sizes"]) == {given["size"]},
                lambda given, out: f"`step` saw batches of {', '.join(map(str, out['sizes']))}",
                points=1,
            ),
            Close("full", "the same, if the examples fill all batches", atol=1e-5, points=0.5),
            Holds(
                "and no batch of padding only",
                lambda _, out: out["full_calls"] == 2,
                "two full batches of examples needed more than two steps",
                points=0.5,
            ),
        ),
    ),
    hint="Pad with np.pad or np.concatenate up to `size` rows. Take `losses[:count]` and "
    "`hits[:count]` of what `step` returns, add them up, and divide once by `len(images)`.",
    revisit='"Pad, and count what is there" in lesson 20',
    mistakes=(
        Fault("remainder_dropped_in_eval", drops_partial=True).feedback(
            "You left out the last, partial batch. That is usual in training, where the next epoch "
            "shuffles again. Here some examples are never tested. Which share of the examples does "
            "your accuracy describe?"
        ),
        Fault("mean_of_batch_means", of_batches=True).feedback(
            "You averaged the means of the batches. An example of the partial batch counts more "
            "than the others. How much should each example count?"
        ),
        Observed(
            "padding_in_loss",
            lambda _, out: (
                len(set(out["sizes"])) == 1 and _near(out["loss"], out["of_all_places"][0])
            ),
        ).feedback(
            "You averaged the losses of all rows, and some rows of the last batch are padding. The "
            "loss now depends on how you fill a place. What tells a loss of an example from a loss "
            "of a filled place?"
        ),
        Observed(
            "metric_counts_padding",
            lambda _, out: out["padded"] and _near(out["accuracy"], out["of_all_places"][1]),
        ).feedback(
            "Your loss leaves the padding out, but your accuracy counts it. A filled place is "
            "right or wrong by chance. Which rows may the accuracy count?"
        ),
        Observed("ragged_batch", lambda given, out: set(out["sizes"]) != {given["size"]}).feedback(
            "You gave `step` a last batch with fewer rows. The numbers are right, and a compiler "
            "makes a second program for this shape. How can the last batch have as many rows as "
            "the others?"
        ),
    ),
)


# --- give_verdict: a verdict on each of six findings, and what to do next

FINDINGS = PairsByCase(
    {
        "A": (
            "refused_here",
            "move_to_input_pipeline",
            "can XLA read a string, and which part of a training never runs on the TPU?",
        ),
        "B": (
            "suspect_on_tpu",
            "mask_instead_of_select",
            "on what do the rows depend, and does the program always say so?",
        ),
        "C": ("not_checked", "measure_on_tpu", "which run of yours has shown the speed of a TPU?"),
        "D": (
            "fails_everywhere",
            "rewrite_in_tensorflow",
            "was a compiler asked at all, and does the loss have a value while the step is traced?",
        ),
        "E": (
            "suspect_on_tpu",
            "use_float32",
            "which type is in the program, and what is a TPU built for?",
        ),
        "F": (
            "not_checked",
            "measure_on_tpu",
            "how many bits of a float32 number does a CPU multiply, and a TPU?",
        ),
    },
    verdict=(
        "fails_everywhere",
        "refused_here",
        "suspect_on_tpu",
        "not_checked",
        "runs_on_tpu",
        "fails_on_tpu",
    ),
    step=(
        "rewrite_in_tensorflow",
        "move_to_input_pipeline",
        "mask_instead_of_select",
        "use_float32",
        "measure_on_tpu",
    ),
)

VERDICTS = Check(
    name="give_verdict",
    title="A verdict and a next step for six findings",
    question="What exactly was run in each case, and on which machine?",
    direction=(
        "First ask whether the step ran without a compiler, and then whether the compiler on your "
        "CPU refused it. If not, ask whether you have seen a reason for doubt. If not, ask whether "
        "a CPU could have answered at all."
    ),
    cost=Cost.PURE,
    inputs=FINDINGS.inputs,
    call=FINDINGS.call,
    read=FINDINGS.read,
    reference=FINDINGS.reference,
    criteria=FINDINGS.criteria,
    hint="One case fails before any compiler is asked, and one is refused by the compiler. Two "
    "compile and have a sign of trouble, in the program or in the code. Two are about what a CPU "
    "cannot show.",
    revisit='"Extra: Three verdicts" in lesson 20',
    mistakes=(
        Observed("compiled_means_ready", FINDINGS.any_is("runs_on_tpu")).feedback(
            "You took a program that compiles on a CPU for one that runs on a TPU. XLA has a "
            "different backend for each kind of device, and nothing here ran on a TPU. Which of "
            "your runs shows what a TPU does?"
        ),
        Observed("refused_means_never", FINDINGS.any_is("fails_on_tpu")).feedback(
            "You took a refusal on a CPU for a refusal on a TPU. A TPU strategy may run such an "
            "operation on the host instead, slowly. What did you see, and on which machine?"
        ),
        Fault("blames_the_compiler", D="refused_here").feedback(
            "You took an error of the step itself for a refusal by XLA. The step fails under plain "
            "`tf.function`, so it fails on every device. What had asked for a compiler then?"
        ),
        Fault("compiled_means_checked", B="not_checked")
        .or_with(E="not_checked")
        .feedback(
            "You found nothing in a step that shows a sign of trouble. The compiler let it pass, "
            "but its code or its program has a doubtful shape or type. What does the finding "
            "quote?"
        ),
        Fault("unmeasured_is_suspect", C="suspect_on_tpu")
        .or_with(F="suspect_on_tpu")
        .feedback(
            "You called something suspect that you have not looked at. A suspicion needs a "
            "sign. Which one did you see in this case?"
        ),
    ),
)


CHECKS = (COMPILED_LOSS, EVALUATION, VERDICTS)
