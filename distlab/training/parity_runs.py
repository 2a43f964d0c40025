"""A model trained on one device and under a strategy, and compared after every step.

case = Case(build=build, strategy=strategy, train="keras", batches=read_batches(data, steps=5))
comparison = compare(case)
comparison.first                # the first step and weight that rounding does not explain
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import DatasetError, InvalidArgument, ModelError
from distlab.strategy.description import describe, short_name
from distlab.training.distribute import distribute
from distlab.training.keras_private import models
from distlab.training.model_requirements import check_compiled
from distlab.training.workers.workers import Workers, workers_of

Train = Literal["distribute", "keras"] | Callable[[keras.Model, tf.data.Dataset], Any]
Change = Callable[[keras.Model], None]
Copies = tuple[np.ndarray, ...]  # of one weight, on every replica
Note = Callable[[list[Copies]], None]  # is given all weights after each step
Table = np.ndarray  # one row a step, one column a weight
Path = list[list[np.ndarray]]  # the weights after each step

ASKED = "check_parity(build, data, strategy=strategy)"
ROUNDINGS_A_STEP = 4  # in units of the last digit
NOISE_FACTOR = 8  # the probe is one sample of the noise, the strategy's steps are another
MOSTLY_NOISE = 0.25  # of a weight's movement: beyond that the weight says nothing

_SEED = 1

# What a mantissa of each type rounds to, relative to the number.
_ROUNDING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

# What to set to zero in layers that draw; dropout inside attention and recurrent cells is one of
# their layers, or an attribute.
_RATES = {
    keras.layers.Dropout: "rate",
    keras.layers.AlphaDropout: "rate",
    keras.layers.GaussianDropout: "rate",
    keras.layers.GaussianNoise: "stddev",
}
_RATES_OF_OTHERS = ("dropout", "recurrent_dropout")
_AUGMENTATIONS = ("AugMix", "CutMix", "MixUp", "Solarization")


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Global batches in memory, for both sides to train on in the same order."""

    elements: tuple[Any, ...]
    spec: Any
    rereads_alike: bool = True

    def sizes(self) -> list[int]:
        """How many examples each batch has."""
        return [int(tf.nest.flatten(element)[0].shape[0]) for element in self.elements]

    def dataset(self) -> tf.data.Dataset:
        """A data set of all batches, in order."""
        sizes = self.sizes()
        if _have_one_shape(self.elements) and len(set(sizes[:-1])) <= 1 and sizes[-1] <= sizes[0]:
            # Batched as the user's was: of no fixed size, and shared out in the same way.
            joined = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *self.elements)
            return tf.data.Dataset.from_tensor_slices(joined).batch(sizes[0])
        datasets = [tf.data.Dataset.from_tensors(element) for element in self.elements]
        return functools.reduce(tf.data.Dataset.concatenate, datasets)

    def single(self, index: int) -> tf.data.Dataset:
        """A data set of one batch."""
        return tf.data.Dataset.from_tensor_slices(self.elements[index]).batch(max(self.sizes()))

    def up_to(self, steps: int) -> Batches:
        """The first batches."""
        return replace(self, elements=self.elements[:steps])

    def reordered(self) -> Batches | None:
        """The examples inside each batch in another order; None where they have none."""
        dense = tf.Tensor | tf.RaggedTensor
        if not all(isinstance(part, dense) for part in tf.nest.flatten(self.elements)):
            return None
        draw = np.random.default_rng(0)  # a generator apart: nobody's random numbers are used up
        orders = [draw.permutation(size) for size in self.sizes()]
        return self._map(lambda part, order: tf.gather(part, order), orders)

    def in_equal_shares(self, replicas: int) -> Batches | None:
        """Full batches only, trimmed so that every replica gets as many examples."""
        sizes = self.sizes()
        share = max(sizes) // replicas * replicas
        if share == 0 or set(sizes) == {share}:
            return None
        pairs = zip(self.elements, sizes, strict=True)
        full = tuple(element for element, size in pairs if size == max(sizes))
        return replace(self, elements=full)._map(lambda part, n: part[:n], [share] * len(full))

    def with_shares_alike(self, replicas: int) -> Batches | None:
        """Batches that give every replica the same examples; None where one has too few.

        What a replica computes from its own share is then what one device computes from all.
        """
        shares = [size // replicas for size in self.sizes()]
        if 0 in shares:
            return None
        return self._map(lambda part, n: tf.concat([part[:n]] * replicas, 0), shares)

    def _map(self, change: Callable[[Any, Any], Any], arguments: Sequence[Any]) -> Batches:
        elements = [
            tf.nest.map_structure(lambda part, argument=argument: change(part, argument), element)
            for element, argument in zip(self.elements, arguments, strict=True)
        ]
        return replace(self, elements=tuple(elements))


def read_batches(data: Any, steps: int) -> Batches:
    """Batches in memory, read twice to see whether a second reading gives the same."""
    if not isinstance(data, tf.data.Dataset):
        raise InvalidArgument(
            asked=f"check_parity(build, {type(data).__name__}, strategy=strategy)",
            found="data that are no tf.data.Dataset",
            do="give global batches: tf.data.Dataset.from_tensor_slices((x, y)).batch(32)",
        )
    elements = tuple(data.take(steps))
    if not elements:
        raise DatasetError(
            asked=ASKED,
            found="a data set without a batch",
            do="look at what filters it, or make it again where a generator was used up",
        )
    if any(part.shape.rank == 0 for part in tf.nest.flatten(elements[0])):
        raise InvalidArgument(
            asked=ASKED,
            found=f"a data set of single examples: {data.element_spec}",
            do="batch it, by the global batch size: data.batch(32)",
        )
    alike = digest_of(elements) == digest_of(tuple(data.take(steps)))
    return Batches(elements=elements, spec=data.element_spec, rereads_alike=alike)


def digest_of(elements: tuple[Any, ...]) -> str:
    """What is the same for the same batches."""
    digest = hashlib.blake2b()
    for part in tf.nest.flatten(elements, expand_composites=True):
        digest.update(tf.io.serialize_tensor(part).numpy())
    return digest.hexdigest()


def _have_one_shape(elements: tuple[Any, ...]) -> bool:
    """Whether batches can be joined: dense, and the same but for the number of examples."""
    shapes = [
        [part.shape[1:] if isinstance(part, tf.Tensor) else None for part in tf.nest.flatten(each)]
        for each in elements
    ]
    return None not in shapes[0] and all(shape == shapes[0] for shape in shapes)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is compared, and what is changed in each model before it trains."""

    build: Callable[[], keras.Model]
    strategy: tf.distribute.Strategy
    train: Train
    batches: Batches
    changes: tuple[Change, ...] = ()

    @property
    def workers(self) -> Workers:
        """Those that check together."""
        return workers_of(self.strategy)

    def largest(self, table: Any) -> Table:
        """The largest numbers of all workers, by which all of them go."""
        tables = self.workers.exchange(np.asarray(table).tolist())
        return np.asarray(np.max(np.array(tables, dtype=float), axis=0))


@dataclass(frozen=True, kw_only=True)
class Start:
    """A model's weights, and the states its layers draw by, before the first step."""

    weights: tuple[Any, ...]
    values: tuple[np.ndarray, ...]
    seeds: tuple[Any, ...]
    drawn: tuple[np.ndarray, ...]
    optimizer: Any

    @classmethod
    def of(cls, model: keras.Model) -> Start:
        """The weights of a built model."""
        weights = tuple(model.weights)
        known = {id(weight) for weight in weights}
        seeds = tuple(v for v in model.variables if id(v) not in known and "seed" in v.path)
        return cls(
            weights=weights,
            values=tuple(copies(weight)[0] for weight in weights),
            seeds=seeds,
            drawn=tuple(copies(seed)[0] for seed in seeds),
            optimizer=model.optimizer,
        )

    @property
    def paths(self) -> list[str]:
        """Keras's name of each weight, without the model's."""
        paths = [weight.path for weight in self.weights]
        prefixes = {path.partition("/")[0] for path in paths}
        if len(prefixes) == 1 and all("/" in path.partition("/")[2] for path in paths):
            return [path.partition("/")[2] for path in paths]
        return paths

    def trained(self) -> np.ndarray:
        """Which weights are trainable."""
        return np.array([weight.trainable for weight in self.weights])


@dataclass(frozen=True, kw_only=True)
class Side:
    """A model that has trained; `off` and `left` are layers that draw, switched off or not."""

    model: keras.Model
    start: Start
    off: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def rounding(self) -> float:
        """What the coarsest type that the model computes in rounds to."""
        return max(_rounding_of(layer.compute_dtype) for layer in models.layers(self.model))


def _rounding_of(dtype: str) -> float:
    return _ROUNDING.get(dtype, 0.0)  # whole numbers do not round


def copies(weight: Any) -> Copies:
    """A weight's value on every replica; once, where all replicas share it."""
    strategy = getattr(weight.value, "distribute_strategy", None)
    if strategy is None:
        return (weight.numpy(),)
    return tuple(copy.numpy() for copy in strategy.experimental_local_results(weight.value))


def one_device(case: Case, note: Note, *, start: Start | None = None) -> Side:
    """Trains with Keras's own `fit`, without a strategy."""
    with _device_like(case.strategy):
        side = _build(case, start)
        _build_optimizer(side.model)
        _fit(side.model, case.batches, note)
    return side


def under_strategy(case: Case, start: Start, note: Note) -> Side:
    """Trains under the strategy, from the weights of the other side."""
    sides: list[Side] = []

    def build() -> keras.Model:
        sides.append(_build(case, start))
        return sides[0].model

    if case.train == "distribute":
        _fit(distribute(build, case.strategy), case.batches, note)
        return sides[0]
    with case.strategy.scope():
        model = build()
    if isinstance(case.train, str):
        _fit(model, case.batches, note)
        return sides[0]
    with case.strategy.scope():
        _build_optimizer(model)
    for step in range(len(case.batches.elements)):
        case.train(model, case.batches.single(step))
        note([copies(weight) for weight in model.weights])
    return sides[0]


def _build(case: Case, start: Start | None) -> Side:
    model = case.build()
    check_compiled(model, asked=ASKED)
    if models.has_own(model, "train_step"):  # it makes what it needs; there may be no call
        models.build_for_own_step(model, case.batches.spec)
    models.build_for(model, case.batches.elements[0], model.distribute_strategy)
    own = Start.of(model)
    if start is not None:
        _check_same(start, own)
    start = start or _of_chief(case.workers, own)
    for variables, values in ((own.weights, start.values), (own.seeds, start.drawn)):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    own = replace(own, values=start.values, drawn=start.drawn)
    keras.utils.set_random_seed(_SEED)  # what layers draw by when they were given no seed
    off, left = ((), ()) if case.train == "distribute" else switch_off(model)
    for change in case.changes:
        change(model)
    # Alike on both sides: Keras compiles by XLA on one device only, and several steps in one
    # execution would hide the weights in between.
    model.jit_compile = False
    model.steps_per_execution = 1
    return Side(model=model, start=own, off=off, left=left)


def _of_chief(workers: Workers, own: Start) -> Start:
    """What the chief's build() drew, for all workers to start from."""
    values = (*own.values, *own.drawn)
    joined = workers.gather(b"".join(value.tobytes() for value in values))[0]
    ends = itertools.accumulate(value.nbytes for value in values)
    parts = [
        np.frombuffer(joined[end - value.nbytes : end], value.dtype).reshape(value.shape)
        for value, end in zip(values, ends, strict=True)
    ]
    count = len(own.values)
    return replace(own, values=tuple(parts[:count]), drawn=tuple(parts[count:]))


def _build_optimizer(model: keras.Model) -> None:
    """A trace would lose what an optimizer assigns as it is built, as ScheduleFreeAdamW does."""
    if model.optimizer is not None:
        model.optimizer.build(model.trainable_variables)


class _Recorder(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, note: Note) -> None:
        super().__init__()
        self.note, self.steps = note, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self.note([copies(weight) for weight in self.model.weights])


def _fit(model: keras.Model, batches: Batches, note: Note) -> None:
    recorder = _Recorder(note)
    model.fit(batches.dataset(), verbose=0, shuffle=False, callbacks=[recorder])
    if recorder.steps != len(batches.elements):
        raise ModelError(
            asked=ASKED,
            found=f"fit reported {recorder.steps} steps for {len(batches.elements)} batches",
            do="compile without steps_per_execution",
        )


def _device_like(strategy: tf.distribute.Strategy) -> Any:
    """Beside a strategy on CPUs one device is a CPU too, also where there is a GPU."""
    cpus = describe(strategy).kind != "default" and all(
        short_name(device).startswith("CPU") for device in strategy.extended.worker_devices
    )
    gpus = tf.config.list_logical_devices("GPU")
    return tf.device("CPU:0") if cpus and gpus else contextlib.nullcontext()


def _check_same(one: Start, other: Start) -> None:
    """Raises where two calls of build() did not make two models of the same structure."""
    shared = {id(weight) for weight in one.weights} & {id(weight) for weight in other.weights}
    if shared or one.optimizer is other.optimizer:
        raise ModelError(
            asked=ASKED,
            found=f"build() gave the same {'weights' if shared else 'optimizer'} on two calls",
            do="let build() make a new model each time, layers and optimizer included",
        )
    names = plain_names(one.paths, other.paths)
    pairs = zip(names, map(_describe, one.weights), map(_describe, other.weights), strict=False)
    differing = [f"{name} is {a} on one call and {b} on the next" for name, a, b in pairs if a != b]
    if len(one.weights) != len(other.weights):
        differing += [f"{len(one.weights)} weights on one call, {len(other.weights)} on the next"]
    if differing:
        raise ModelError(
            asked=ASKED,
            found=f"build() makes models of different structure: {differing[0]}",
            do="let build() make the same layers each time: no sizes that are drawn, counted or "
            "read from something that changes",
        )


def _describe(weight: Any) -> str:
    kind = "" if weight.trainable else ", not trainable"
    return f"{tuple(weight.shape)} {weight.dtype}{kind}"


def plain_names(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Names that do not depend on how many models were made before.

    Keras numbers layers without a name through the whole process. Where two builds differ in a part
    of a name, that number is Keras's, and it is counted from the start.
    """
    counts: Counter[str] = Counter()
    given: dict[str, str] = {}

    def plain(prefix: str, a: str, b: str) -> str:
        base = re.sub(r"_\d+$", "", a)
        if a == b or base != re.sub(r"_\d+$", "", b):
            return a
        if prefix + a not in given:
            given[prefix + a] = f"{base}_{counts[base]}" if counts[base] else base
            counts[base] += 1
        return given[prefix + a]

    names = []
    for path, second in itertools.zip_longest(one, other[: len(one)]):
        parts, others = path.split("/"), (second or path).split("/")
        pairs = zip(parts, others if len(others) == len(parts) else parts, strict=True)
        names.append("/".join(plain("/".join(parts[:i]), a, b) for i, (a, b) in enumerate(pairs)))
    return names


def switch_off(model: keras.Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Stops Keras's layers that draw; returns the names of those, and of others that draw.

    Dropout and noise get the rate zero; image augmentation runs as it does outside training, which
    is the identity (`RandomCrop` takes the centre).
    """
    off, left = [], []
    for layer in models.layers(model):
        own = type(layer).__module__.partition(".")[0] != "keras"
        kind, held = type(layer).__name__, vars(layer)
        known = [rate for cls, rate in _RATES.items() if isinstance(layer, cls)]
        names = known or ([] if own else list(_RATES_OF_OTHERS))
        rates = [n for n in names if isinstance(held.get(n), int | float) and held[n] > 0]
        for name in rates:
            setattr(layer, name, 0.0)
        augments = not own and (kind.startswith("Rand") or kind in _AUGMENTATIONS)
        if augments:
            layer.call = _never_training(layer.call)
        if rates or augments:
            off.append(layer.name)
        elif own and seeds_of(layer):
            left.append(layer.name)
    return tuple(off), tuple(left)


def _never_training(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def without_training(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **{**kwargs, "training": False})

    return without_training


def seeds_of(layer: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """What a layer draws by."""
    held = {id(value): value for value in vars(layer).values()}
    return [value for value in held.values() if isinstance(value, keras.random.SeedGenerator)]


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How far rounding alone moves weights on one device.

    Floats have a few digits, so sums in another order differ in the last one, and an optimizer may
    magnify that: Adam divides a gradient by its own size, so that where the true gradient is zero
    rounding becomes a full step. One device trains again, from weights changed in their last digit.

    Attributes:
        table: Largest difference that a change of the last digit makes.
        moved: How far the weights moved from the start.
        rounding_only: For each weight whether it moves by rounding alone.
        everywhere: Whether rounding alone moves most weights as much as training does.
    """

    table: Table
    moved: Table
    rounding_only: np.ndarray
    everywhere: bool

    @classmethod
    def measure(cls, case: Case, one: Side, path: Path) -> Noise:
        """Measures it."""
        moved = case.largest(_distances(path, [list(one.start.values)] * len(path))[0])
        table, noisy = moves(case, one, path, start=_last_digits_changed(one.start))
        trains = one.start.trained() & (moved[-1] > 0)
        everywhere = bool(trains.any() and noisy[trains].mean() >= 0.5)
        if everywhere:
            table, noisy = np.zeros_like(table), np.zeros_like(noisy)
        return cls(table=table, moved=moved, rounding_only=noisy, everywhere=everywhere)

    def allowed(self, one: Side, path: Path) -> Table:
        """The largest difference that rounding explains; infinite where it is all."""
        sizes = [[max(1.0, float(np.abs(wide(v)).max(initial=0))) for v in row] for row in path]
        stored = np.array([_rounding_of(weight.dtype) for weight in one.start.weights])
        steps = np.arange(1, len(path) + 1)[:, None]
        moved = self.moved[: len(path)] * (stored > 0)
        allowed = ROUNDINGS_A_STEP * (steps * stored * np.array(sizes) + one.rounding() * moved)
        allowed += NOISE_FACTOR * self.table[: len(path)]
        allowed[:, self.rounding_only] = np.inf
        return np.asarray(allowed)


def moves(
    case: Case, one: Side, path: Path, *, start: Start | None = None, share: float = MOSTLY_NOISE
) -> tuple[Table, np.ndarray]:
    """How far one device, trained again, comes to lie elsewhere; which weights by a large share."""
    other: Path = []
    one_device(case, lambda weights: other.append(_first(weights)), start=start or one.start)
    _, moved = _distances(path, [list(one.start.values)] * len(path))
    table, apart = (case.largest(part) for part in _distances(path, other))
    return table, apart[-1] > share * np.maximum(moved[-1], np.finfo(np.float32).eps)


def _last_digits_changed(start: Start) -> Start:
    draw = np.random.default_rng(0)  # a generator apart: nobody's random numbers are used up
    values = []
    for weight, value in zip(start.weights, start.values, strict=True):
        signs = draw.choice((-1.0, 1.0), size=np.shape(value))
        changed = wide(value) * (1 + signs * _rounding_of(weight.dtype))
        values.append(changed.astype(np.asarray(value).dtype))
    return replace(start, values=tuple(values))


def _first(weights: list[Copies]) -> list[np.ndarray]:
    return [each[0] for each in weights]


def _distances(one: Path, other: Path) -> tuple[Table, Table]:
    """The largest and the root mean square difference, by step and weight."""
    pairs = [list(map(_difference, a, b)) for a, b in zip(one, other, strict=True)]
    largest = [[float(part.max(initial=0)) for part in row] for row in pairs]
    rms = [[float(np.sqrt(np.mean(p**2))) if p.size else 0.0 for p in row] for row in pairs]
    return np.array(largest), np.array(rms)


def _difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Absolute differences: infinite where only one of two numbers is finite."""
    a, b = wide(one), wide(other)
    with np.errstate(invalid="ignore"):
        far = np.abs(a - b)
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(alike, 0.0, np.where(np.isnan(far), np.inf, far))


def wide(value: np.ndarray) -> np.ndarray:
    """Numbers of any type, also bfloat16, as float64."""
    return np.asarray(value).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two sides, compared.

    Attributes:
        one: The side of one device.
        other: The side of the strategy.
        path: The weights of one device after each step.
        far: Largest difference from one device, over all replicas.
        apart: Largest difference of a replica's copy from the first replica's.
        allowed: What may be in `far`.
        noise: What rounding does on one device.
        tolerance: What may be in `far`, where it was given.
    """

    one: Side
    other: Side
    path: Path
    far: Table
    apart: Table
    allowed: Table
    noise: Noise
    tolerance: float | None

    @property
    def first(self) -> tuple[int, int] | None:
        """The first step, from 0, and there the first weight, that is too far away."""
        where = np.argwhere(self.far > self.allowed)
        return (int(where[0][0]), int(where[0][1])) if len(where) else None

    @functools.cached_property
    def names(self) -> list[str]:
        """Those of the weights, in the model's order."""
        return plain_names(self.one.start.paths, self.other.start.paths)

    @functools.cached_property
    def finite(self) -> int:
        """After how many steps the weights of one device were still finite."""
        steps = (all(np.isfinite(wide(value)).all() for value in row) for row in self.path)
        return sum(1 for _ in itertools.takewhile(bool, steps))

    def ratio(self) -> Table:
        """The differences as parts of what is allowed."""
        with np.errstate(invalid="ignore"):  # where one device is not finite all is allowed
            ratio = self.far / np.maximum(self.allowed, np.finfo(float).tiny)
        return np.asarray(np.nan_to_num(ratio, nan=0.0, posinf=np.inf))


def compare(
    case: Case, *, like: Comparison | None = None, tolerance: float | None = None
) -> Comparison:
    """Trains both sides from the same weights; `like` an earlier comparison, of which they are."""
    path: Path = []
    start = None if like is None else like.one.start
    alone = one_device(case, lambda weights: path.append(_first(weights)), start=start)
    noise = Noise.measure(case, alone, path) if like is None else like.noise
    tolerance = tolerance if like is None else like.tolerance
    far: list[list[float]] = []
    apart: list[list[float]] = []

    def farthest(each: Copies, from_value: np.ndarray) -> float:
        return max(float(_difference(copy, from_value).max(initial=0)) for copy in each)

    def note(weights: list[Copies]) -> None:
        apart.append([farthest(each, each[0]) for each in weights])
        far.append(list(map(farthest, weights, path[len(far)])))

    other = under_strategy(case, alone.start, note)
    allowed = case.largest(noise.allowed(alone, path))
    return Comparison(
        one=alone,
        other=other,
        path=path,
        far=case.largest(far),
        apart=case.largest(apart),
        allowed=allowed if tolerance is None else np.full_like(allowed, tolerance),
        noise=noise,
        tolerance=tolerance,
    )


def updates(case: Case, start: Start) -> tuple[np.ndarray, np.ndarray]:
    """How the first step moves the trainable weights on each side, in one row."""
    ends: list[list[np.ndarray]] = []
    alone = one_device(case, lambda weights: ends.append(_first(weights)), start=start)
    under_strategy(case, alone.start, lambda weights: ends.append(_first(weights)))
    rows = [
        [
            (wide(end) - wide(value)).ravel()
            for end, value, trains in zip(
                side, alone.start.values, alone.start.trained(), strict=True
            )
            if trains
        ]
        for side in ends
    ]
    return np.concatenate(rows[0]), np.concatenate(rows[1])
