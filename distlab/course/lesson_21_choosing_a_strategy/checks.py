"""Checks of lesson 21: cases to decide, strategies compared by weights, and by measured time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Form, Inputs, Observed, Plain, Then
from distlab.course.checks.shared_checks import PairsByCase

# --- choose_and_defend: choose a strategy for six cases, each with a reason
# Its feedback asks about the case and never says the answer: there are few to guess from.

STRATEGIES = ("one_device", "mirrored", "multi_worker", "parameter_server", "tpu")
DIVISIONS = ("sharded_data", "tensor", "pipeline", "expert")
ANSWERS = (*STRATEGIES, "smaller_step", *DIVISIONS)
REASONS = (
    "batch_too_small",
    "hosts_step_together",
    "no_waiting",
    "state_too_large",
    "replica_too_large",
    "layer_too_large",
    "always_faster",
    "less_memory_each",
)
CASES = PairsByCase(
    {
        "A": (
            "one_device",
            "batch_too_small",
            "how many of the 4 examples would each of eight GPUs get?",
        ),
        "B": (
            "multi_worker",
            "hosts_step_together",
            "which of the answers reaches a second host, and still takes the steps of one device?",
        ),
        "C": (
            "parameter_server",
            "no_waiting",
            "what does your answer do while one host is slow, or gone?",
        ),
        "D": (
            "smaller_step",
            "state_too_large",
            "add up what one GPU holds. Which of the four parts could be smaller?",
        ),
        "E": (
            "sharded_data",
            "replica_too_large",
            "which parts does one GPU hold under your answer, and what does the order try first?",
        ),
        "F": (
            "tensor",
            "layer_too_large",
            "what does a GPU hold while it computes the largest layer, under your answer?",
        ),
    },
    answer=ANSWERS,
    reason=REASONS,
)
_always_faster, _less_memory_each = map(CASES.any_is, ("always_faster", "less_memory_each"))


CHOOSE = Check(
    name="choose_and_defend",
    function="choose",
    title="An answer and a reason for each of six cases",
    question="Which fact of each case rules out the most answers?",
    direction="Take one case at a time, and ask the card's questions in their order.",
    cost=Cost.PURE,
    inputs=CASES.inputs,
    call=CASES.call,
    read=CASES.read,
    reference=CASES.reference,
    criteria=CASES.criteria,
    hint="Answer the card's questions for one case at a time, and stop at the first yes. For D, E "
    "and F sum the gigabytes on one GPU: with everything, then with the smaller optimizer, then "
    "with an eighth of everything and one whole layer.",
    revisit="The card",
    mistakes=(
        Observed(
            "more_devices_always",
            lambda given, out: (
                out["A"] in (*STRATEGIES[1:], *DIVISIONS) or _always_faster(given, out)
            ),
        ).feedback(
            "You gave more devices to a case that they can't help. They help only if each of them "
            "gets enough examples, and otherwise they wait. Which of your cases fails this "
            "condition?"
        ),
        Fault("mirrored_across_hosts", B="mirrored")
        .or_with(C="mirrored")
        .feedback(
            "You chose MirroredStrategy for several hosts. It ends at the edge of its host, so "
            "each host would train a model of its own. Which strategies connect hosts?"
        ),
        Fault("waits_for_the_slowest", C="multi_worker").feedback(
            "You let forty hosts take each step together in case C. All then go at the pace of the "
            "slowest one, and stop when one is taken away. What does the case say of its hosts?"
        ),
        Fault("ps_for_bitwise", B="parameter_server").feedback(
            "You chose parameter servers for case B. Each worker then takes a step when it is "
            "ready, on weights that the other workers have changed in the meantime. What will the "
            "auditors compare?"
        ),
        Observed(
            "mirrored_saves_memory",
            lambda given, out: (
                "mirrored" in (out["D"], out["E"], out["F"]) or _less_memory_each(given, out)
            ),
        ).feedback(
            "You counted on less memory for each device. Under Mirrored every device has all "
            "weights, all gradients and all of the optimizer's state. What is the only thing that "
            "it divides?"
        ),
        Observed("divides_at_once", lambda _, out: out["D"] in DIVISIONS).feedback(
            "You divided the model of case D. A divided model sends more in every step, and here "
            "one line would have made room. What does the card ask before it divides?"
        ),
        Observed("experts_save_memory", lambda _, out: "expert" in (out["E"], out["F"])).feedback(
            "You spread experts in a model that has none. This way divides only the experts of a "
            "layer, and copies everything else. What else is there in your case to divide?"
        ),
        Fault("layers_cut_first", E="tensor")
        .or_with(E="pipeline")
        .feedback(
            "You changed how the layers of case E are computed. Each of them fits on a GPU whole, "
            "so there is a way that only stores them in parts. Where does the order begin?"
        ),
        Fault("layer_left_whole", F="sharded_data")
        .or_with(F="pipeline")
        .feedback(
            "You left a layer whole in case F. Your way divides the model between layers, or "
            "gathers a layer before it is computed, so a GPU would still hold 100 GB at a time. "
            "Which way cuts inside a layer?"
        ),
    ),
)


# --- compare_strategies: let Keras's `fit` train a model under each strategy, and compare it
# Some of its models differ from one device's, and one of these has the same losses.

# Each draw's model, and the replicas of each strategy.
_DRAWS: tuple[tuple[str, dict[str, int]], ...] = (
    ("plain", {"three": 3, "two": 2}),
    ("watches", {"one": 1, "two": 2}),
    ("centres", {"four": 4}),
)
_EXAMPLES, _SHARED_BATCH = 36, 12  # which 2, 3 and 4 replicas share equally
_ROUNDED = 1e-6
_RATE, _SMALL_RATE = 0.2, 1e-3  # with the small one even what is wrong ends near one device
# Which weights differ where Keras's `fit` shares, in the model's order; only a kernel is trained.
_APART: dict[str, list[str]] = {
    "plain": [],
    "watches": ["model/watch/seen", "model/second_watch/seen"],
    "centres": ["model/watch/seen", "model/first/kernel"],
}


def _compare_inputs(seed: int) -> Inputs:
    model, strategies = _DRAWS[seed % len(_DRAWS)]
    draw = np.random.default_rng(seed)
    return {
        "model": model,
        "strategies": strategies,
        "x": draw.normal(size=(_EXAMPLES, 4)).astype("float32"),
        "y": draw.normal(size=(_EXAMPLES, 2)).astype("float32"),
        "kernel": draw.normal(size=(4, 2)).astype("float32"),
    }


def _compare_call(compare_strategies: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    built: list[tuple[int, Any]] = []

    def build() -> Any:
        model = _compared_model(inputs["model"], inputs["kernel"])
        built.append((tf.distribute.get_strategy().num_replicas_in_sync, model))
        return model

    data = tf.data.Dataset.from_tensor_slices((inputs["x"], inputs["y"])).batch(_SHARED_BATCH)
    strategies = {name: _strategy_of(count) for name, count in inputs["strategies"].items()}
    table = compare_strategies(build, data, strategies)
    # How far from one device the weights are of each model that several replicas built.
    shared = [_apart(model, built[0][1]) for replicas, model in built if replicas > 1]
    return {"table": table, "shared": shared}


def _strategy_of(replicas: int) -> Any:
    """Returns a strategy with so many replicas."""
    from distlab.course.runs.replicas import MOST_REPLICAS, mirrored
    from distlab.devices import split_devices
    from distlab.strategy.factory import make_strategy

    if replicas > 1:
        return mirrored(replicas)
    return make_strategy("one_device", devices=split_devices(MOST_REPLICAS)[:1])


def _compared_model(kind: str, kernel: Any) -> Any:
    """Returns a compiled model, with or without layers that see their batch as a whole."""
    import keras

    class Watches(keras.layers.Layer):  # type: ignore[misc]
        """Remembers the least input of the last batch; no loss and no gradient knows of it."""

        def __init__(self, name: str, times: float) -> None:
            super().__init__(name=name)
            self.times = times

        def build(self, shape: Any) -> None:
            self.seen = self.add_weight((), name="seen", trainable=False, aggregation="mean")

        def call(self, inputs: Any) -> Any:
            self.seen.assign(self.times * keras.ops.min(inputs))
            return inputs

    class Centres(keras.layers.Layer):  # type: ignore[misc]
        """Subtracts the batch's mean. Each replica subtracts the mean of its own share."""

        def call(self, inputs: Any) -> Any:
            return inputs - keras.ops.mean(inputs, axis=0)

    first, last = (keras.layers.Dense(2, use_bias=False, name=name) for name in ("first", "last"))
    # Their signs make a difference below zero and one above it.
    layers = {
        "plain": [first],
        "watches": [first, Watches("watch", 1.0), last, Watches("second_watch", -10.0)],
        "centres": [Watches("watch", -1e-3), Centres(), first],
    }[kind]
    model = keras.Sequential([keras.Input((4,)), *layers], name="model")
    model.compile(keras.optimizers.SGD(_SMALL_RATE if kind == "centres" else _RATE), loss="mse")
    first.set_weights([kernel])
    if last.built:
        last.set_weights([np.eye(2)])
    return model


def _apart(model: Any, other: Any) -> float:
    pairs = zip(model.weights, other.weights, strict=True)
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)


def _compare_read(given: Inputs, outputs: Plain) -> Plain:
    """The table, if it is one: of paths, or None."""
    table = outputs["table"]
    is_table = isinstance(table, dict) and all(
        path is None or isinstance(path, str) for path in table.values()
    )
    return {**outputs, "is_table": is_table, "differs": table}


def _compare_reference(given: Inputs) -> Plain:
    """The first path that differs under each strategy with several replicas; None under others."""
    first = next(iter(_APART[given["model"]]), None)
    return {
        "differs": {name: first if n > 1 else None for name, n in given["strategies"].items()},
        "shared": [1.0 if first else 0.0],
        "is_table": True,
    }


def _names_wrongly(condition: Callable[[Any, list[str]], bool]) -> Callable[[Inputs, Plain], bool]:
    """Whether this holds of a wrong entry of the table and the paths of what differs."""

    def when(given: Inputs, out: Plain) -> bool:
        right, apart = _compare_reference(given)["differs"], _APART[given["model"]]
        wrong = [path for name, path in out["differs"].items() if path != right.get(name)]
        return any(condition(path, apart) for path in wrong)

    return when


COMPARE = Check(
    name="compare_strategies",
    title="Where strategies differ, for any model",
    question=(
        "With what does your function compare each model, and under which strategy was that model "
        "built?"
    ),
    direction=(
        "Check three things for each strategy: where the model is built, how it is trained, and "
        "which weights you compare."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_compare_inputs,
    call=_compare_call,
    read=_compare_read,
    reference=_compare_reference,
    criteria=(
        Form("a path or None for each strategy", lambda _, out: out["is_table"], key="table"),
        Equal("differs", "the first weight that differs", points=4),
    ),
    hint="Train one model without a strategy, by plain fit. Then, for each strategy, call build in "
    "strategy.scope(), and the same fit. Go through the weights of both models in "
    "pairs, and take the path of the first pair that np.allclose(a, b, rtol=0, atol=1e-5) refuses.",
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
            lambda given, out: bool(_APART[given["model"]]) and max(out["shared"]) < _ROUNDED,
        ).feedback(
            "You trained by `dl.distribute`. There a layer that looks at the whole batch gets the "
            "whole batch, so every model ends with one device's weights and your table has nothing "
            "to find. Whose `fit` does the task ask about?"
        ),
        Observed(
            "exact_equality",
            _names_wrongly(lambda path, apart: path not in apart and str(path).endswith("/kernel")),
        ).feedback(
            "You named a weight that is one device's but for its last digits. Two replicas add up "
            "in a different order, so these differ by some 1e-7. Which difference does the task "
            "allow?"
        ),
        Observed(
            "compares_losses_only",
            _names_wrongly(
                lambda path, apart: path == next((p for p in apart if p.endswith("kernel")), None)
            ),
        ).feedback(
            "You compared a part of what the model keeps. The losses and the trained weights agree "
            "here, but one weight that is not trained differs, and a saved model would have it. "
            "Which attribute has every weight?"
        ),
    ),
)


# --- worth_it: which strategy is worth it, by what was measured

_STEPS, _BATCH, _WORTH = 7, 64, 1.1
_Row = dict[str, Any]
# Each table has one difficulty, which catches one way to misread it. Three of them have
# the same one in different steps, so that no step is right to look at alone.
_TABLES = {
    "weights": slice(0, 1),
    "examples": slice(1, 2),
    "single": slice(2, 5),
    "noise": slice(5, 6),
}


def _worth_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    alone_ms = float(draw.uniform(8, 30))

    def row(speed: float, *, batch: int = _BATCH, equal: bool = True) -> _Row:
        """Measured where so many times the examples of one device are done in a second."""
        around = alone_ms * (batch / _BATCH) / speed
        measured = around * draw.uniform(0.985, 1.015, size=_STEPS)
        return {"equal": equal, "global_batch": batch, "step_ms": measured.round(2).tolist()}

    def disturbed(row: _Row, factor: float, place: int) -> _Row:
        times = [ms * factor if n == place else ms for n, ms in enumerate(row["step_ms"])]
        return {**row, "step_ms": [round(ms, 2) for ms in times]}

    # The slow one is more than 10 % faster than one device, and less than 21 %, in any noise.
    fast, slow = float(draw.uniform(1.6, 1.9)), float(draw.uniform(1.14, 1.17))
    places = [int(place) for place in draw.permutation([0, _STEPS // 2, _STEPS - 1])]
    pairs = (
        (row(slow), row(fast, equal=False)),
        (row(fast, batch=4 * _BATCH), row(slow)),
        *((disturbed(row(fast), 12, n), disturbed(row(slow), 0.3, n)) for n in places),
        (row(0.9), disturbed(row(1.03), 0.7, places[0])),
    )
    return {"tables": [_table(draw, row(1.0), *pair) for pair in pairs]}


def _table(draw: Any, alone: _Row, *others: _Row) -> dict[str, _Row]:
    """A table in an order, and under names, that tell nothing."""
    names = draw.permutation(["mirrored", "parameter_server", "multi_worker"]).tolist()
    rows = {"one_device": alone, **dict(zip(names, others, strict=False))}
    return {name: rows[name] for name in draw.permutation(sorted(rows)).tolist()}


def _worth_call(worth_it: Callable[..., Any], inputs: Inputs) -> Plain:
    return [worth_it(table) for table in inputs["tables"]]


def _worth_read(given: Inputs, outputs: Plain) -> Plain:
    """The names by the difficulty of their tables."""
    choices = {key: outputs[tables] for key, tables in _TABLES.items()}
    return {key: names[0] if len(names) == 1 else names for key, names in choices.items()}


def _worth_reference(
    given: Inputs,
    *,
    equal_only: bool = True,
    by_examples: bool = True,
    of_steps: Callable[[Any], Any] = np.median,
    worth: float = _WORTH,
) -> Plain:
    """Returns the choice that a reader with these habits makes from each table."""

    def best_of(table: dict[str, _Row]) -> str:
        def speed(name: str) -> float:
            examples = table[name]["global_batch"] if by_examples else 1
            return float(examples / of_steps(table[name]["step_ms"]))

        best = max((n for n, row in table.items() if row["equal"] or not equal_only), key=speed)
        return best if speed(best) >= worth * speed("one_device") else "one_device"

    return _worth_read(given, [best_of(table) for table in given["tables"]])


WORTH_IT = Check(
    name="worth_it",
    title="Is it worth it?",
    question="Would the fastest strategy of your answer still win in a second measurement?",
    direction=(
        "A fair comparison asks three things of each row: are the weights right, how many examples "
        "has a step, and how is the time measured?"
    ),
    cost=Cost.PURE,
    inputs=_worth_inputs,
    call=_worth_call,
    read=_worth_read,
    reference=_worth_reference,
    criteria=(
        Equal("weights", "a table where the fastest ends with wrong weights"),
        Equal("examples", "a table where the steps of one strategy have more examples"),
        Equal("single", "three tables where single measurements are far off"),
        # Here one device is right, as it is for a reader that always takes one device.
        Then(
            Equal("noise", "a table where the fastest is hardly faster than one device"), after=any
        ),
    ),
    hint="Leave out the rows that are not equal. The speed of the others is global_batch / "
    "np.median(step_ms), so that no single step decides.",
    revisit="Your model under each strategy",
    mistakes=(
        Fault("wrong_weights_win", equal_only=False).feedback(
            "You chose the fastest, although its weights are wrong. It may be fast because it does "
            "less than it should. Which column says whether a strategy may win at all?"
        ),
        Fault("steps_for_examples", by_examples=False).feedback(
            "You compared steps per second. One strategy has four times as many examples in each "
            "step, so it looks slower than it is. What should be counted for each second?"
        ),
        Fault("lucky_step", of_steps=min).feedback(
            "You let the quickest of seven steps decide. If the clock is wrong once, that strategy "
            "wins. Which number does one wrong value not change?"
        ),
        Fault("mean_of_steps", sees=("single", "noise"), of_steps=np.mean)
        .or_with(of_steps=lambda times: np.mean(times[1:]))
        .feedback(
            "You let one disturbed step decide. It took twelve times as long, so it dominates a "
            "mean or a maximum, and it is no property of the strategy. Which number of the seven "
            "ignores it?"
        ),
        Fault("speedup_within_noise", sees=("single", "noise"), worth=1.0).feedback(
            "You chose a strategy that is a few per cent faster. Such a difference is within the "
            "noise of these measurements. How much faster must it be, by the task?"
        ),
    ),
)


CHECKS = (CHOOSE, COMPARE, WORTH_IT)
