"""A check of lesson 08: a part of a model restored from a checkpoint, or an error."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Fault,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)

_FEATURES, _WIDTH = 3, 4
_SHAPES = ((_FEATURES, _WIDTH), (_WIDTH,), (_WIDTH, _WIDTH), (_WIDTH,))


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)

    def weights() -> list[Any]:
        return [draw.normal(size=shape).astype(np.float32) for shape in _SHAPES]

    return {"in the file": weights(), "before": weights()}


def _call(restore_body: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:

        def restored(name: str, **parts: Any) -> tuple[str, Any]:
            """What the answer raised, and the weights that it left, for a file of these parts."""
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


def _first_line(error: Exception) -> str:
    """What an error says first, without TensorFlow's name for the place it happened at."""
    text = re.sub(r"\{\{.*?\}\} ?", "", f"{type(error).__name__}: {error}")
    return text.splitlines()[0][:200]


def _body(weights: list[Any]) -> Any:
    """A model of a dense layer for each two weights."""
    import keras

    layers = [keras.layers.Dense(_WIDTH, "relu") for _ in weights[::2]]
    body = keras.Sequential([keras.Input((_FEATURES,)), *layers])
    body.set_weights(weights)
    return body


def _flat(weights: list[Any]) -> Any:
    return np.concatenate([weight.ravel() for weight in weights])


def _reference(given: Inputs, *, weights: str = "in the file") -> Plain:
    refused = {"renamed": "an error", "short": "an error"}
    return {"error": "", "weights": _flat(given[weights]), **refused}


def _says(words: str) -> Callable[[Inputs, Plain], bool]:
    return lambda given, out: words in out["error"]


_RESTORED = "the body's weights, those of the file"

RESTORE = Check(
    name="partial_restore",
    function="restore_body",
    title="A part of a model, and nothing less",
    question="How would your function notice that a part of `body` is not in the file?",
    direction=(
        "`read` returns a status with several assertions. Each asks a different question about the "
        "file and the objects."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
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
        Observed("consumed_asserted", _says("Unresolved object")).feedback(
            "You asked whether all of the file was used. The head and the optimizer stay in the "
            "file on purpose, so this question refuses the right file. About which objects do you "
            "want to ask?"
        ),
        Observed("restore_for_read", _says("save_counter")).feedback(
            "You called `restore`. It also looks for a counter that only `save` puts into its "
            "files, and this file was made by `write`. Which call goes with `write`?"
        ),
        Observed("name_missed", _says("not bound")).feedback(
            "Your checkpoint gives the body a name that the file does not have. So nothing was "
            "found, and the assertion raised an error. Under which name did the loop write it?"
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
