"""Trains models whose step, layers and callbacks a seed draws, on replicas and by plain Keras.

    python tools/random_steps.py                              # 300 steps
    python tools/random_steps.py --steps 20 --first 400       # others
    python tools/random_steps.py --steps 1 --first 17 --verbose
    python tools/random_steps.py --features a_queue a_stop    # of these alone, with other variants

Each step has one to three features of `tools.step_features`, which are what people write: effects,
tensors that leave a layer by a side door, gradients of their own, loops, functions given to Keras.
It ends as plain Keras does to 1e-8, in float64, or is refused by an error that names the thing.
Where a feature draws by `tf.random`, one replica is the reference, since plain Keras draws other
numbers. What plain Keras can't train, or trains otherwise if rounding moves its first weights,
doesn't count.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import logging
import os
import random
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import distlab as dl
from distlab.errors import DistlabError
from tests.support.parity import Run
from tools.random_models import (
    ALLOWED,
    LOSSES,
    METRICS,
    draw_metrics,
    draw_optimizer,
    farthest,
    in_another_process,
)
from tools.step_features import FEATURES
from tools.step_features.plan import CLASSES, Drawn, DrawnLoss, DrawnStep, Plan

EQUAL, REFUSED, DIFFERS, CRASHED = "equal", "refused", "DIFFERS", "crashed"
NOT_COUNTED = "not counted"

# How a refusal names what is at fault: the user's line, a layer, or what came apart.
_NAMED = re.compile(r"\(\w+\.py, line \d+: |the (layer|metric|loss|optimizer) '|came apart, first")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a drawn step ended.

    Attributes:
        seed: Its seed.
        kind: One of the words above.
        features: What was drawn.
        text: What differs, or the error.
    """

    seed: int
    kind: str
    features: str
    text: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether distlab is at fault."""
        return self.kind in (DIFFERS, CRASHED)

    @property
    def is_unnamed(self) -> bool:
        """Whether it is a refusal that doesn't say what is at fault."""
        return self.kind == REFUSED and not _NAMED.search(self.text)

    def __str__(self) -> str:
        return f"step {self.seed}: {self.kind}: {self.features}: {self.text}"


Names = tuple[str, ...]


def features_of(seed: int) -> Names:
    """Returns the names of a seed's features; as many seeds as there are draw each of them."""
    names, draw = sorted(FEATURES), random.Random(seed)
    in_turn = random.Random(0).sample(names, len(names))
    chosen = [in_turn[seed % len(names)]]
    for name in draw.sample(names, draw.choice([0, 1, 1, 2])):
        slots = {FEATURES[each].slot for each in chosen} - {""}
        if name not in chosen and FEATURES[name].slot not in slots:
            chosen.append(name)
    return tuple(chosen)


def build_model(seed: int, features: Names) -> keras.Model:
    """Builds the model of a seed with its plan; each time the same."""
    plan = Plan(random.Random(seed))
    keras.utils.set_random_seed(seed)
    for name in features:
        FEATURES[name].add(plan)
    body = _body(plan)
    draw = random.Random(seed + 1)
    is_plain = not (plan.has_own_step or plan.methods or plan.beside)
    if is_plain and draw.random() < 0.7:
        model = body
        model.plan = plan
    else:
        only_losses = not (plan.changes or plan.logs or plan.after or plan.learn)
        own = DrawnLoss if only_losses and draw.random() < 0.3 else DrawnStep
        if "compute_loss" in plan.methods:
            own = DrawnStep
        kind = type("Drawn", (own if plan.has_own_step else Drawn,), plan.methods)
        model = kind(plan, body)
        model.build((None, *body.input_shape[1:]))
    model.of_row = body.input_shape[1:]
    options = {
        "optimizer": draw_optimizer(draw),
        "loss": draw.choice(LOSSES[:1] * 3 + LOSSES)(),
        "metrics": draw_metrics(draw, METRICS),
        "steps_per_execution": draw.choice([1, 1, 3]),
    }
    model.compile(**options | plan.compiled)
    return model


def _body(plan: Plan) -> keras.Model:
    x = inputs = keras.Input((4, 3) if plan.sequence_layers else (7,))
    for layer in plan.sequence_layers:
        x = layer(x)
    if plan.sequence_layers:
        x = layers.Flatten()(x)
    x = layers.Dense(5, "tanh")(x)
    for layer in plan.layers:
        x = layer(x)
    apart = keras.initializers.RandomNormal(stddev=1.0)
    return keras.Model(inputs, layers.Dense(CLASSES, bias_initializer=apart)(x))


def _data(seed: int, of_row: tuple[int, ...]) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Three batches to train on, the last a partial one, and two to validate on."""
    draw, numbers = random.Random(seed + 2), np.random.default_rng(seed)
    examples, batch = draw.choice([(13, 5), (11, 5), (14, 6), (11, 4)])
    parts = [numbers.normal(size=(examples, *of_row)), numbers.integers(0, CLASSES, examples)]
    if draw.random() < 0.3:
        parts.append(numbers.choice([0.5, 1.0, 2.0], examples))
    rows = tf.data.Dataset.from_tensor_slices(tuple(parts))
    return rows.batch(batch), rows.take(7).batch(batch)


def train(model: keras.Model, seed: int, *, nudge: bool = False) -> Run:
    """Returns the logs of a training, and by name the copies of each value that it ends with."""
    draw, plan = random.Random(seed + 3), model.plan
    train, validation = _data(seed, tuple(model.of_row))
    if nudge:
        moved = np.random.default_rng(0)
        model.set_weights(
            [
                w * (1 + 1e-14 * moved.normal(size=w.shape)) if w.dtype == np.float64 else w
                for w in model.get_weights()
            ]
        )
    keras.utils.set_random_seed(seed)  # what is drawn without a seed
    options = {"validation_data": validation} if draw.random() < 0.3 else {}
    logs = model.fit(train, epochs=2, verbose=0, callbacks=plan.callbacks, **options).history
    found = {}
    if "predict_step" in plan.methods or draw.random() < 0.2:
        outputs = tf.nest.flatten(model.predict(validation, verbose=0))
        found |= {f"output {i}": [np.asarray(each)] for i, each in enumerate(outputs)}
    seen: collections.Counter[str] = collections.Counter()
    for variable in (*model.weights, *model.optimizer.variables):
        seen[variable.path] += 1
        found[f"{variable.path} {seen[variable.path]}"] = _copies(variable.value)
    for name, value in plan.kept.items():
        found[f"kept {name}"] = _copies(value())
    return logs, found


def _copies(value: Any) -> list[np.ndarray]:
    is_variable = isinstance(value, tf.Variable | tf.distribute.DistributedValues)
    of_each = getattr(value, "values", [value]) if is_variable else [value]
    return [np.asarray(each) for each in of_each]


def _difference(expected: Run, found: Run) -> tuple[float, str]:
    """Returns how far the copies of the second are from the first of the first, and where."""
    values, others = dict(expected[1]), dict(found[1])
    # What a step of one's own makes is seen without its gradients, so weights have slots that
    # plain Keras doesn't make where they have no gradient. They stay as they began.
    slots = {
        name
        for name in others.keys() - values.keys()
        if "_average " in name or not np.any(np.ptp(others[name]))
    }
    if names := values.keys() ^ (others.keys() - slots):
        return np.inf, f"the names {sorted(names)}"
    return farthest(expected, (found[0], {name: others[name] for name in values}))


@functools.cache
def _strategy(replicas: int) -> tf.distribute.Strategy:
    return dl.make_strategy("mirrored", devices=replicas)


class _Trainings:
    """The trainings of a seed, by plain Keras and on replicas."""

    def __init__(self, seed: int, features: Names) -> None:
        self.seed, self._features = seed, features
        self.replicas = 3 if seed % 3 == 0 else 2
        self._first: keras.Model | None = self._build()
        self.plan: Plan = self._first.plan

    def _build(self, replicas: int = 0) -> keras.Model:
        keras.backend.clear_session()  # so that names are the same each time
        build = functools.partial(build_model, self.seed, self._features)
        return dl.distribute(build, _strategy(replicas)) if replicas else build()

    def plainly(self, *, eagerly: bool = False, nudge: bool = False) -> Run:
        """By plain Keras; where numbers are TensorFlow's own, on one replica."""
        if self.plan.draws:
            model = self._build(replicas=1)
        else:
            model, self._first = self._first or self._build(), None
            model.run_eagerly = eagerly or model.run_eagerly
        return train(model, self.seed, nudge=nudge)

    def expected(self) -> Run:
        """What plain Keras gives: eagerly, which spares a trace, if nothing speaks against it."""
        if not (self.plan.draws or self.plan.is_symbolic):
            with contextlib.suppress(Exception):
                return self.plainly(eagerly=True)
        return self.plainly()

    def on_replicas(self) -> Run:
        """What `distribute` gives."""
        return train(self._build(self.replicas), self.seed)


def judge(seed: int, features: Names = ()) -> Outcome:
    """Trains the step of a seed in both ways, and says how that ended."""
    features = features or features_of(seed)

    drawn = "+".join(features)

    def outcome(kind: str, text: str = "") -> Outcome:
        return Outcome(seed, kind, drawn, text)

    with _silence():
        try:
            trainings = _Trainings(seed, features)
            notes = ", ".join(trainings.plan.notes)
            drawn += f" [{notes}] on {trainings.replicas} replicas"
            expected = trainings.expected()
        except Exception as error:
            return outcome(NOT_COUNTED, f"plain Keras can't: {_told(error)}")
        found = None
        try:
            found = trainings.on_replicas()
            far, where = _difference(expected, found)
        except DistlabError as error:
            return outcome(REFUSED if error.found else CRASHED, f"{error}")
        except Exception as error:
            far, where = np.inf, _told(error)
        if far <= ALLOWED:
            return outcome(EQUAL, f"{far:.1e}")
        # Is plain Keras the same in a graph, and if rounding moves its weights?
        try:
            in_graph = trainings.plainly()
        except Exception as error:
            return outcome(NOT_COUNTED, f"plain Keras can't in a graph: {_told(error)}")
        drift, there = _difference(in_graph, trainings.plainly(nudge=True))
        if drift > ALLOWED:
            return outcome(NOT_COUNTED, f"plain Keras drifts {drift:.1e} from itself, {there}")
        if found is None:
            return outcome(CRASHED, where)
        far, where = _difference(in_graph, found)
        return outcome(EQUAL if far <= ALLOWED else DIFFERS, f"{far:.1e} away, {where}")


def _told(error: Exception) -> str:
    """An error in one line, with the last line of the user's that it passed."""
    lines = [
        f"{frame.name}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "step_features" in frame.filename
    ]
    return f"{type(error).__name__} at {' '.join(lines[-1:])}: {' '.join(str(error).split())[:400]}"


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Inside the block warnings, as of weights without a gradient, are not printed."""
    level = logging.getLogger("tensorflow").level
    logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("tensorflow").setLevel(level)


def main() -> int:
    """Reads the command line, and prints a line for each step that fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--features", nargs="+", choices=FEATURES, default=[], metavar="FEATURE")
    parser.add_argument("--verbose", action="store_true", help="print every outcome")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.steps)
    judge_one: Callable[[int], Outcome] = functools.partial(judge, features=tuple(asked.features))
    counts: collections.Counter[str] = collections.Counter()
    for seed, result in zip(seeds, in_another_process(judge_one, seeds), strict=True):
        features = "+".join(asked.features or features_of(seed))
        done = result or Outcome(seed, CRASHED, features, "it hangs, or the process ended")
        counts[done.kind] += 1
        counts["of the refusals name neither a line nor a layer"] += done.is_unnamed
        if asked.verbose or done.is_failure or done.is_unnamed:
            print(done, flush=True)
    print(f"{asked.steps} steps: " + ", ".join(f"{n} {kind}" for kind, n in counts.items() if n))
    return 1 if counts[DIFFERS] + counts[CRASHED] else 0


if __name__ == "__main__":
    sys.exit(main())
