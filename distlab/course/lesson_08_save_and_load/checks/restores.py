"""Checks of lesson 08: a model that moves with its optimizer, and a part that is restored."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Equal,
    Fault,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)
from distlab.course.runs.replicas import mirrored

# --- move_model

_RATE, _BATCH, _STEPS = 0.1, 12, 2  # rate and steps before the move; as many steps after it


def _move_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "replicas": 2 + seed % 2,
        "rate": float(draw.choice([0.01, 0.02, 0.04])),
        "x": draw.normal(size=(_BATCH * _STEPS, 4)).astype(np.float32),
        "y": draw.normal(size=(_BATCH * _STEPS, 2)).astype(np.float32),
        "kernel": draw.normal(size=(4, 2)).astype(np.float32),
    }


def _move_call(move: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras

    strategy = mirrored(inputs["replicas"])
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.keras"
        _save_trained(path, inputs)
        model = move(path, strategy, inputs["rate"])
        if not isinstance(model, keras.Model):
            return {"returned": type(model).__name__}
        optimizer = getattr(model, "optimizer", None)  # none where it was not compiled
        variables = (model.variables, optimizer.variables if optimizer else ())
        moved = {
            "returned": "a model",
            "copies": [_fewest_copies(strategy, each) for each in variables],
            "steps": int(optimizer.iterations.numpy()) if optimizer else None,
            "error": _error_of_training(model, inputs),
        }
        return moved | {"kernel": np.array(model.get_weights()[0])}


def _save_trained(path: str, inputs: Inputs) -> None:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, use_bias=False)])
    model.compile(keras.optimizers.Adam(_RATE), loss="mse", jit_compile=False)
    model.set_weights([inputs["kernel"]])
    _fit(model, inputs)
    model.save(path)


def _fit(model: Any, inputs: Inputs) -> None:
    model.fit(inputs["x"], inputs["y"], batch_size=_BATCH, shuffle=False, verbose=0)


def _fewest_copies(strategy: Any, variables: Any) -> int:
    counts = [len(strategy.experimental_local_results(v.value)) for v in variables]
    return min(counts, default=0)


def _error_of_training(model: Any, inputs: Inputs) -> str:
    try:
        _fit(model, inputs)
    except Exception as error:  # whatever it is, it is the answer's
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    """Returns an error's first line, without TensorFlow's names for places and objects."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return re.sub(r"\{\{.*?\}\} ?| for <.*| object at 0x[0-9a-f]+", "", text)[:200].rstrip(": ")


def _move_reference(given: Inputs, *, same_optimizer: bool = True, slower: bool = True) -> Plain:
    """Linear regression by Adam, over the same batches before and after the move."""
    kernel = given["kernel"].astype(np.float64)
    first = second = np.zeros_like(kernel)
    steps = 0
    for batch in range(2 * _STEPS):
        if batch == _STEPS and not same_optimizer:
            steps, first, second = 0, np.zeros_like(kernel), np.zeros_like(kernel)
        start = batch % _STEPS * _BATCH
        x, y = (given[name][start : start + _BATCH].astype(np.float64) for name in ("x", "y"))
        gradient = 2 * x.T @ (x @ kernel - y) / y.size
        steps += 1
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        rate = given["rate"] if slower and batch >= _STEPS else _RATE
        length = rate * np.sqrt(1 - 0.999**steps) / (1 - 0.9**steps)
        kernel = kernel - length * first / (np.sqrt(second) + 1e-7)
    return {
        "returned": "a model",
        "error": "",
        "copies": [given["replicas"]] * 2,
        "steps": _STEPS if same_optimizer else 0,
        "kernel": kernel,
    }


def _no_model(given: Inputs, out: Plain) -> str:
    if out["returned"] == "NoneType":
        return "your function returned None: is there a `return`?"
    return f"your function returned no model: {out['returned']}"


_GOES_ON = "the weights after more steps, those of a run that never moved and has the new rate"

MOVE = Check(
    name="move_model",
    function="move",
    title="A model and its optimizer, on more replicas",
    question="Where were the model's variables made, and which state did the optimizer bring "
    "along?",
    direction="Compare three things with the saved model: the copies of a weight, the optimizer's "
    "step counter, and its momentum.",
    inputs=_move_inputs,
    call=_move_call,
    reference=_move_reference,
    criteria=(
        Gate(
            Holds("a model comes back", lambda given, out: out["returned"] == "a model", _no_model)
        ),
        Equal("copies", "copies of each variable: of the model, of the optimizer", points=1),
        Gate(
            Holds(
                "an optimizer",
                lambda given, out: out["steps"] is not None,
                "the model has none: is it compiled?",
            )
        ),
        Gate(
            Holds(
                _GOES_ON,
                lambda given, out: not out["error"],
                lambda given, out: f"fit raises {out['error']}",
            )
        ),
        Then(  # a model that was only loaded, and not moved, has these as well
            Equal("steps", "steps that the optimizer knows of", points=0.5),
            Close("kernel", _GOES_ON, atol=1e-4, points=1.5),
        ),
    ),
    hint="Load the model inside `with strategy.scope():`, where its variables get their copies. "
    "Then set `model.optimizer.learning_rate`. Do not compile: that makes a new optimizer.",
    revisit="Train on",
    mistakes=(
        Observed(
            "loaded_outside_scope", lambda given, out: out["copies"][0] < given["replicas"]
        ).feedback(
            "You loaded the model before you entered the scope. Its variables have one copy, so it "
            "cannot train on all replicas. When does a variable get its copies?"
        ),
        Observed("not_compiled", lambda given, out: out["steps"] is None).feedback(
            "You loaded the model without its optimizer, so it cannot train. Which part of the "
            "file did you leave out?"
        ),
        Fault("optimizer_lost", sees="steps", same_optimizer=False).feedback(
            "Your model has a new optimizer: it knows of 0 steps and has no averages. So its first "
            "steps are as long as at the very start. Which of your lines made a new optimizer?"
        ),
        Fault("rate_kept", slower=False).feedback(
            "Your model continues with the old learning rate. So it takes longer steps than you "
            "were asked for. Where does the optimizer that you loaded keep its rate?"
        ),
    ),
)

# --- partial_restore

_FEATURES, _WIDTH = 3, 4
_SHAPES = ((_FEATURES, _WIDTH), (_WIDTH,), (_WIDTH, _WIDTH), (_WIDTH,))


def _restore_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)

    def weights() -> list[Any]:
        return [draw.normal(size=shape).astype(np.float32) for shape in _SHAPES]

    return {"in the file": weights(), "before": weights()}


def _restore_call(restore_body: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:

        def restored(name: str, **parts: Any) -> tuple[str, Any]:
            """Restores a file of these parts, and returns the error and the weights that result."""
            path = tf.train.Checkpoint(**parts).write(f"{folder}/{name}")
            body = _body(inputs["before"])
            try:
                restore_body(path, body)
            except NotImplementedError:
                raise
            except Exception as error:  # which one is for the answer to choose
                return _first_line(error), body.get_weights()
            return "", body.get_weights()

        whole, short = _body(inputs["in the file"]), _body(inputs["in the file"][:2])
        rest = {"head": tf.Variable(tf.ones((_WIDTH, 2))), "optimizer": tf.Variable(7)}
        error, weights = restored("whole", body=whole, **rest)
        return {
            "error": error,
            "weights": None if error else _flat(weights),
            "renamed": restored("renamed", encoder=whole, **rest)[0],
            "short": restored("short", body=short, **rest)[0],
        }


def _body(weights: list[Any]) -> Any:
    """A model of a dense layer for each two weights."""
    import keras

    layers = [keras.layers.Dense(_WIDTH, "relu") for _ in weights[::2]]
    body = keras.Sequential([keras.Input((_FEATURES,)), *layers])
    body.set_weights(weights)
    return body


def _flat(weights: list[Any]) -> Any:
    return np.concatenate([weight.ravel() for weight in weights])


def _restore_reference(given: Inputs, *, weights: str = "in the file") -> Plain:
    refused = {"renamed": "an error", "short": "an error"}
    return {"error": "", "weights": _flat(given[weights]), **refused}


def _error_says(words: str) -> Callable[[Inputs, Plain], bool]:
    return lambda given, out: words in out["error"]


_RESTORED = "the body's weights, those of the file"

RESTORE = Check(
    name="partial_restore",
    function="restore_body",
    title="A part of a model, and nothing less",
    question="How would your function notice that a part of `body` is not in the file?",
    direction="`read` returns a status with several assertions. Each asks a different question "
    "about the file and the objects.",
    inputs=_restore_inputs,
    call=_restore_call,
    reference=_restore_reference,
    criteria=(
        Gate(
            Holds(
                _RESTORED,
                lambda given, out: not out["error"],
                lambda given, out: (
                    f"your function refused a file that has the whole body: {out['error']}"
                ),
            )
        ),
        Close("weights", _RESTORED, atol=1e-6),
        Then(  # a function that restores nothing, or refuses everything, refuses these as well
            Holds(
                "you refuse a file that calls the body `encoder`",
                lambda given, out: out["renamed"],
                "nothing was restored from that file, and your function raised no error",
                points=0.5,
            ),
            Holds(
                "you refuse a file that has only the first layer",
                lambda given, out: out["short"],
                "the second layer kept its random values, and your function raised no error",
                points=0.5,
            ),
        ),
    ),
    hint="`tf.train.Checkpoint(body=body).read(path)` returns a status. Call its "
    "`assert_existing_objects_matched()`, and let the error out of your function.",
    revisit="What a restore tells you",
    mistakes=(
        Observed("consumed_asserted", _error_says("Unresolved object")).feedback(
            "You asked whether all of the file was used. The head and the optimizer stay in the "
            "file on purpose, so this question refuses the right file. About which objects do you "
            "want to ask?"
        ),
        Observed("restore_for_read", _error_says("save_counter")).feedback(
            "You called `restore`. It also looks for a counter that only `save` puts into its "
            "files, and this file was made by `write`. Which call goes with `write`?"
        ),
        Fault("nothing_restored", weights="before").feedback(
            "Your function left the body's random values as they were. Either the file was not "
            "read, or no name in it fits. Under which name did the loop write the body?"
        ),
        Observed(
            "nothing_asserted", lambda given, out: not out["renamed"] and not out["short"]
        ).feedback(
            "You restored the right file. From two wrong files you restored nothing or a half, and "
            "no error came out of your function. Which object knows what was found?"
        ),
    ),
)
