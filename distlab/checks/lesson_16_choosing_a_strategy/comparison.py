"""One check of lesson 16: let Keras's `fit` train a model under each strategy, and compare it.

Some of its models differ from one device's, and one of these has the same losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import Check, Cost, Inputs, Plain
from distlab.checks.criteria import Equal, Form, Then
from distlab.checks.lesson_16_choosing_a_strategy.compared_models import (
    APART,
    compared_model,
    strategy_of,
)
from distlab.checks.mistakes import Fault, Observed

# Each draw's model, and the replicas of each strategy.
_DRAWS: tuple[tuple[str, dict[str, int]], ...] = (
    ("plain", {"mirrored": 2, "central_storage": 3}),
    ("watches", {"one_device": 1, "mirrored": 2}),
    ("centres", {"mirrored": 4}),
)
_EXAMPLES, _BATCH = 36, 12  # which 2, 3 and 4 replicas share equally
_ROUNDED = 1e-6


def _inputs(seed: int) -> Inputs:
    model, strategies = _DRAWS[seed % len(_DRAWS)]
    draw = np.random.default_rng(seed)
    return {
        "model": model,
        "strategies": strategies,
        "x": draw.normal(size=(_EXAMPLES, 4)).astype("float32"),
        "y": draw.normal(size=(_EXAMPLES, 2)).astype("float32"),
        "kernel": draw.normal(size=(4, 2)).astype("float32"),
    }


def _call(compare_strategies: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    built: list[tuple[int, Any]] = []

    def build() -> Any:
        model = compared_model(inputs["model"], inputs["kernel"])
        built.append((tf.distribute.get_strategy().num_replicas_in_sync, model))
        return model

    data = tf.data.Dataset.from_tensor_slices((inputs["x"], inputs["y"])).batch(_BATCH)
    strategies = {name: strategy_of(name, count) for name, count in inputs["strategies"].items()}
    table = compare_strategies(build, data, strategies)
    # How far from one device the weights are of each model that several replicas built.
    shared = [_apart(model, built[0][1]) for replicas, model in built if replicas > 1]
    return {"table": table, "shared": shared}


def _apart(model: Any, other: Any) -> float:
    pairs = zip(model.weights, other.weights, strict=True)
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)


def _read(given: Inputs, outputs: Plain) -> Plain:
    """The two columns of the table, if it is one; where a row lacks an entry, the whole row."""
    table = outputs["table"]
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        return {**outputs, "is_table": False}
    columns = {
        column: {name: row.get(column, row) for name, row in table.items()}
        for column in ("differs", "copies")
    }
    return {**outputs, "is_table": True, **columns}


def _reference(given: Inputs, *, copies: str = "of a weight", named: str = "path") -> Plain:
    """The first path that differs under each strategy with several replicas; None under others."""
    apart, strategies = APART[given["model"]], given["strategies"]
    first = next(iter(apart), None)
    if first and named == "name":
        first = first.rsplit("/", 1)[1]
    counts = {
        "of a weight": {name: n if name == "mirrored" else 1 for name, n in strategies.items()},
        "of its name": dict.fromkeys(strategies, 1),
        "of the replicas": strategies,
    }
    return {
        "differs": {name: first if n > 1 else None for name, n in strategies.items()},
        "copies": counts[copies],
        "shared": [1.0 if first else 0.0],
        "is_table": True,
    }


def _wrong(given: Inputs, out: Plain) -> list[Any]:
    """What a table says of the strategies about which it is wrong."""
    right = _reference(given)["differs"]
    return [found for name, found in out["differs"].items() if found != right.get(name)]


def _says(what: Callable[[Any, list[str]], bool]) -> Callable[[Inputs, Plain], bool]:
    """Whether this holds of a wrong answer and of the paths that differ."""
    return lambda given, out: any(
        what(found, APART[given["model"]]) for found in _wrong(given, out)
    )


COMPARE = Check(
    name="compare_strategies",
    title="The table of strategies for any model",
    question=(
        "With what does your function compare each model, and under which strategy was that model "
        "built?"
    ),
    direction=(
        "Check three things for each strategy: where the model is built, how it is trained, and "
        "which weights you compare."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form("a dictionary for each strategy", lambda _, out: out["is_table"], key="table"),
        Equal("differs", "the first weight that differs", points=3),
        Then(Equal("copies", "copies of a weight")),
    ),
    hint="Train one model without a strategy, by plain fit. Then, for each strategy, call build in "
    "strategy.scope(), and the same fit. Go through the weights of both models in "
    "pairs, and take the path of the first pair that np.allclose(a, b, rtol=0, atol=1e-5) refuses. "
    "strategy.experimental_local_results(weight.value) lists the copies.",
    revisit="Your model under each strategy",
    mistakes=(
        Observed(
            "built_outside_scope", lambda _, out: out["is_table"] and not out["shared"]
        ).feedback(
            "You built no model on several replicas. It trains on one device whatever the "
            "strategy, so it always ends with one device's weights. Where must `build` be called?"
        ),
        Observed(
            "by_distribute",
            lambda given, out: bool(APART[given["model"]]) and max(out["shared"]) < _ROUNDED,
        ).feedback(
            "You trained by `dl.distribute`. There a layer that looks at the whole batch gets the "
            "whole batch, so every model ends with one device's weights and your table has nothing "
            "to find. Whose `fit` does the task ask about?"
        ),
        Fault("name_for_path", named="name").feedback(
            "You returned a weight's name. Several layers have a weight of this name, so it does "
            "not say where to look. Which attribute of a weight names its layer as well?"
        ),
        Observed("all_that_differ", _says(lambda found, _: isinstance(found, list))).feedback(
            "You returned a list. The task asks for one path, or `None`. Which of the weights that "
            "differ comes first in `model.weights`?"
        ),
        Observed(
            "exact_equality",
            _says(lambda found, apart: found not in apart and str(found).endswith("/kernel")),
        ).feedback(
            "You named a weight that is one device's but for its last digits. Two replicas add up "
            "in a different order, so these differ by some 1e-7. Which difference does the task "
            "allow?"
        ),
        Observed("differs_later", _says(lambda found, apart: found in apart[1:])).feedback(
            "You named a weight that differs, but an earlier one differs as well. You would look "
            "for the cause in a later layer. Does your function stop at the first, and would it "
            "see a difference below zero, or in a weight that is not trained?"
        ),
        Observed(
            "compares_losses_only",
            _says(
                lambda found, apart: found == next((p for p in apart if p.endswith("kernel")), None)
            ),
        ).feedback(
            "You compared a part of what the model keeps. The losses and the trained weights agree "
            "here, but one weight that is not trained differs, and a saved model would have it. "
            "Which attribute has every weight?"
        ),
        Observed(
            "too_tolerant", _says(lambda found, apart: found is None and apart == APART["centres"])
        ).feedback(
            "Your comparison lets too large a difference pass. This model is apart by more than "
            "1e-5, and more steps would increase that. How do you compare each weight's largest "
            "difference with 1e-5?"
        ),
        Observed("never_differs", _says(lambda found, _: found is None)).feedback(
            "Your table finds no difference in any model, and some differ. A model that is "
            "compared with itself never does. With which model do you compare, and how was that "
            "one trained?"
        ),
        Fault("counts_the_name", sees=("differs", "copies"), copies="of its name").feedback(
            "You counted Keras's variables. Keras shows one variable, however many copies it has. "
            "Where does a Keras variable keep the TensorFlow variable with the copies?"
        ),
        Fault("counts_replicas", sees=("differs", "copies"), copies="of the replicas").feedback(
            "You counted the replicas. CentralStorage has several replicas and one copy of each "
            "weight. Which function of a strategy lists the copies themselves?"
        ),
    ),
)
