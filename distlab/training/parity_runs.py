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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import DatasetError, InvalidArgument, ModelError
from distlab.strategy.description import describe, short_name
from distlab.training import model_build
from distlab.training.distribute import distribute
from distlab.training.keras_private import models
from distlab.training.model_requirements import check_compiled
from distlab.training.rule.losses import is_keras
from distlab.training.rule.operations import draws_by_tensorflow
from distlab.training.workers.workers import Workers, workers_of

Train = Literal["distribute", "keras"] | Callable[[keras.Model, tf.data.Dataset], Any]
Change = Callable[[keras.Model], None]
Copies = tuple[np.ndarray, ...]  # of one weight, on every replica
Table = np.ndarray  # one row a step, one column a weight

ASKED = "check_parity(build, data, strategy=strategy)"
_ROUNDINGS_A_STEP = 4  # in units of the last digit
_NOISE_FACTOR = 8  # the probe is one sample of the noise, the strategy's steps are another

_SEED = 1

# What a mantissa of each type rounds to, relative to the number.
_ROUNDING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

# Recurrent cells have something to draw by, also where these are zero.
_RATES = ("dropout", "recurrent_dropout")


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Global batches in memory, for both sides to train on in the same order."""

    elements: tuple[Any, ...]
    spec: Any

    def sizes(self) -> list[int]:
        """How many examples each batch has."""
        return [int(tf.nest.flatten(element)[0].shape[0]) for element in self.elements]

    def dataset(self) -> tf.data.Dataset:
        """A data set of all batches, in order."""
        sizes, first = self.sizes(), tf.nest.flatten(self.elements[0])
        dense = all(isinstance(part, tf.Tensor) for part in first)
        if dense and set(sizes[:-1]) <= {sizes[0]} and sizes[-1] <= sizes[0]:
            with contextlib.suppress(tf.errors.InvalidArgumentError):  # padded to other lengths
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

    def with_shares_alike(self, replicas: int) -> Batches | None:
        """Batches that give every replica the same examples; None where one has too few.

        What a replica computes from its own share is then what one device computes from all.
        """
        shares = [size // replicas for size in self.sizes()]
        if 0 in shares:
            return None
        elements = [
            tf.nest.map_structure(lambda part, n=n: tf.concat([part[:n]] * replicas, 0), element)
            for element, n in zip(self.elements, shares, strict=True)
        ]
        return replace(self, elements=tuple(elements))


def read_batches(data: Any, steps: int) -> Batches:
    """Batches in memory, for all runs to have the same."""
    if not isinstance(data, tf.data.Dataset):
        raise InvalidArgument(
            asked=f"check_parity(build, {type(data).__name__}, strategy=strategy)",
            found="data that are no tf.data.Dataset",
            do="pass global batches: tf.data.Dataset.from_tensor_slices((x, y)).batch(32)",
        )
    elements = tuple(data.take(steps))
    if not elements:
        raise DatasetError(
            asked=ASKED,
            found="a data set without a batch",
            do="check what filters it, or make it again where a generator was used up",
        )
    if any(part.shape.rank == 0 for part in tf.nest.flatten(elements[0])):
        raise InvalidArgument(
            asked=ASKED,
            found=f"a data set of single examples: {data.element_spec}",
            do="batch it, by the global batch size: data.batch(32)",
        )
    return Batches(elements=elements, spec=data.element_spec)


def digest_of(elements: tuple[Any, ...]) -> str:
    """Returns a checksum of batches."""
    digest = hashlib.blake2b(digest_size=8)
    for part in tf.nest.flatten(elements, expand_composites=True):
        digest.update(tf.io.serialize_tensor(part).numpy())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A comparison: the trainings, and the changes to each model before it trains."""

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

    variables: tuple[Any, ...]  # the weights, then the states
    values: tuple[np.ndarray, ...]
    weights: int
    optimizer: Any

    @classmethod
    def of(cls, model: keras.Model) -> Start:
        """The start of a built model."""
        weights = model.weights
        known = {id(weight) for weight in weights}
        seeds = [v for v in model.variables if id(v) not in known and "seed" in v.path]
        variables = (*weights, *seeds)
        return cls(
            variables=variables,
            values=tuple(copies_of(variable)[0] for variable in variables),
            weights=len(weights),
            optimizer=model.optimizer,
        )

    @property
    def row(self) -> list[np.ndarray]:
        """The weights' values."""
        return list(self.values[: self.weights])

    def names(self) -> list[str]:
        """Keras's name of each weight, without the model's."""
        paths = [weight.path for weight in self.variables[: self.weights]]
        prefixes = {path.partition("/")[0] for path in paths}
        if len(prefixes) == 1 and all("/" in path.partition("/")[2] for path in paths):
            return [path.partition("/")[2] for path in paths]
        return paths

    def trained(self) -> np.ndarray:
        """Which weights are trainable."""
        return np.array([weight.trainable for weight in self.variables[: self.weights]])


@dataclass(frozen=True, kw_only=True)
class Run:
    """A model that has trained; `off` and `left` are layers that draw, switched off or not."""

    model: keras.Model
    start: Start
    steps: list[list[Copies]]  # the weights after each
    off: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def path(self) -> list[list[np.ndarray]]:
        """The first replica's weights after each step."""
        return [[copies[0] for copies in row] for row in self.steps]

    def rounding(self) -> float:
        """Returns the rounding of the coarsest type that the model computes in."""
        return max(_rounding_of(layer.compute_dtype) for layer in models.layers(self.model))

    def note(self) -> None:
        """Notes the weights."""
        self.steps.append([copies_of(weight) for weight in self.model.weights])


def _rounding_of(dtype: str) -> float:
    return _ROUNDING.get(dtype, 0.0)  # whole numbers do not round


def copies_of(weight: Any) -> Copies:
    """A weight's value on every replica; once, where all replicas share it."""
    strategy = getattr(weight.value, "distribute_strategy", None)
    if strategy is None:
        return (weight.numpy(),)
    return tuple(copy.numpy() for copy in strategy.experimental_local_results(weight.value))


def on_one_device(case: Case, start: Start | None = None) -> Run:
    """Trains with Keras's own `fit`, without a strategy."""
    with _device_like(case.strategy):
        run = _build(case, start)
        _build_optimizer(run.model)
        _fit(run, case.batches)
    return run


def _on_one_replica(case: Case, start: Start) -> Run:
    """Trains with `distribute` on the strategy's first device alone."""
    first, *_ = case.strategy.extended.worker_devices
    return under_strategy(replace(case, strategy=tf.distribute.OneDeviceStrategy(first)), start)


def under_strategy(case: Case, start: Start) -> Run:
    """Trains under the strategy, from the weights of the other side."""
    runs: list[Run] = []

    def build() -> keras.Model:
        runs.append(_build(case, start))
        return runs[0].model

    if case.train == "distribute":
        distribute(build, case.strategy)
    else:
        with case.strategy.scope():
            build()
    run = runs[0]
    if isinstance(case.train, str):
        _fit(run, case.batches)
        return run
    with case.strategy.scope():
        _build_optimizer(run.model)
    for step in range(len(case.batches.elements)):
        case.train(run.model, case.batches.single(step))
        run.note()
    return run


def _make_model(case: Case) -> keras.Model:
    model = case.build()
    check_compiled(model, asked=ASKED)
    if models.has_own(model, "train_step"):  # it makes what it needs; there may be no call
        model_build.build_for_own_step(model, case.batches.spec)
    models.build_for(model, case.batches.elements[0], model.distribute_strategy)
    return model


def _build(case: Case, start: Start | None) -> Run:
    try:
        with models.names_from_the_start():
            model = _make_model(case)
    except ValueError:  # a layer that was made outside may have one of these names
        model = _make_model(case)
    own = Start.of(model)
    if start is not None:
        _check_same(start, own)
    own = replace(own, values=_of_chief(case.workers, own) if start is None else start.values)
    for variable, value in zip(own.variables, own.values, strict=True):
        variable.assign(value)
    keras.utils.set_random_seed(_SEED)  # what layers draw by when they were given no seed
    off, left = ((), ()) if case.train == "distribute" else switch_off(model)
    for change in case.changes:
        change(model)
    # Alike on both sides: Keras compiles by XLA on one device only, and several steps in one
    # execution would hide the weights in between.
    model.jit_compile = False
    model.steps_per_execution = 1
    return Run(model=model, start=own, steps=[], off=off, left=left)


def _of_chief(workers: Workers, own: Start) -> tuple[np.ndarray, ...]:
    """Returns the values that the chief's build() drew, for all workers to start from."""
    joined = workers.gather(b"".join(value.tobytes() for value in own.values))[0]
    ends = itertools.accumulate(value.nbytes for value in own.values)
    return tuple(
        np.frombuffer(joined[end - value.nbytes : end], value.dtype).reshape(value.shape)
        for value, end in zip(own.values, ends, strict=True)
    )


def _build_optimizer(model: keras.Model) -> None:
    """A trace would lose what an optimizer assigns as it is built, as ScheduleFreeAdamW does."""
    if model.optimizer is not None:
        model.optimizer.build(model.trainable_variables)


def _fit(run: Run, batches: Batches) -> None:
    recorder = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: run.note())
    run.model.fit(batches.dataset(), verbose=0, shuffle=False, callbacks=[recorder])
    if len(run.steps) != len(batches.elements):
        raise ModelError(
            asked=ASKED,
            found=f"fit reported {len(run.steps)} steps for {len(batches.elements)} batches",
            do="compile without steps_per_execution",
        )


def _device_like(strategy: tf.distribute.Strategy) -> Any:
    """Beside a strategy on CPUs one device is a CPU too, also where there is a GPU."""
    cpus = describe(strategy).kind != "default" and all(
        short_name(device).startswith("CPU") for device in strategy.extended.worker_devices
    )
    gpus = tf.config.list_logical_devices("GPU")
    return tf.device("CPU:0") if cpus and gpus else contextlib.nullcontext()


def _check_same(first: Start, second: Start) -> None:
    """Raises where two calls of build() did not make two models of the same structure."""
    existing = {id(weight) for weight in first.variables}
    shared = any(id(weight) in existing for weight in second.variables)
    if shared or first.optimizer is second.optimizer:
        raise ModelError(
            asked=ASKED,
            found=f"build() gave the same {'weights' if shared else 'optimizer'} on two calls",
            do="let build() make a new model each time, layers and optimizer included",
        )
    both = _described(first), _described(second)
    pairs = itertools.zip_longest(*both, fillvalue=("no weight", ""))
    for (name, kind), (other_name, other_kind) in pairs:
        if kind != other_kind:
            raise ModelError(
                asked=ASKED,
                found=f"build() makes models of different structure: {name} {kind} on one call, "
                f"{other_name} {other_kind} on the next",
                do="let build() make the same layers each time: no sizes that are drawn, counted "
                "or read from something that changes",
            )


def _described(start: Start) -> list[tuple[str, str]]:
    """The name of each weight, and what it is like."""
    rows = zip(start.names(), start.row, start.trained(), strict=True)
    return [
        (name, f"{value.shape} {value.dtype}{'' if trains else ', not trainable'}")
        for name, value, trains in rows
    ]


def switch_off(model: keras.Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Stops Keras's layers that draw; returns the names of those, and of others that draw.

    They run as outside of training, which is the identity (`RandomCrop` takes the centre).
    """
    off, left = [], []
    for layer in models.layers(model):
        rates = [value for name, value in vars(layer).items() if name in _RATES]
        if not seeds_of(layer) or (rates and not any(rates)):
            continue
        if is_keras(type(layer).call):
            layer.call = _never_training(layer.call)
            off.append(layer.name)
        else:
            left.append(layer.name)
    return tuple(off), tuple(left)


def _never_training(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def without_training(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **{**kwargs, "training": False})

    return without_training


def seeds_of(layer: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """Returns the seed generators that a layer draws by."""
    held = {id(value): value for value in vars(layer).values()}
    return [value for value in held.values() if isinstance(value, keras.random.SeedGenerator)]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs, compared.

    Attributes:
        single: That of one device.
        distributed: That of the strategy.
        far: Largest difference from one device, over all replicas.
        allowed: What may be in `far`; all, once one device's weights are not finite.
        moved: How far one device's weights moved from the start.
        noise: How far rounding alone moves them: what another last digit of the start changes.
        finite: After how many steps the weights of one device were still finite.
        draws: Whether the step draws by `tf.random`. Its numbers are not plain Keras's, so one
            device is then one replica of `distribute`.
    """

    single: Run
    distributed: Run
    far: Table
    allowed: Table
    moved: Table
    noise: Table
    finite: int
    draws: bool

    @property
    def first(self) -> tuple[int, int] | None:
        """The first step, from 0, and there the first weight, that is too far away."""
        where = np.argwhere(self.far > self.allowed)
        return (int(where[0][0]), int(where[0][1])) if len(where) else None

    def ratio(self) -> Table:
        """The differences as parts of what is allowed."""
        with np.errstate(invalid="ignore"):  # where all is allowed
            ratio = self.far / np.maximum(self.allowed, np.finfo(float).tiny)
        return np.asarray(np.nan_to_num(ratio, nan=0.0, posinf=np.inf))


def compare(
    case: Case, *, like: Comparison | None = None, tolerance: float | None = None
) -> Comparison:
    """Trains both sides from the same weights; `like` an earlier comparison, of which they are.

    Floats have a few digits, so sums in another order differ in the last one, and an optimizer may
    magnify that: Adam divides a gradient by its own size, so that where the true gradient is zero
    rounding becomes a full step. So one device trains again, from weights changed in their last
    digit, to see how far rounding alone moves each weight.
    """
    on_one: Callable[[Case, Start], Run] = on_one_device
    single = on_one_device(case, None if like is None else like.single.start)
    distributed = under_strategy(case, single.start)
    if draws := case.train == "distribute" and draws_by_tensorflow(distributed.model):
        on_one = _on_one_replica
        single = on_one(case, single.start)
    path = single.path
    finite = itertools.takewhile(lambda row: all(np.isfinite(wide(v)).all() for v in row), path)
    steps = len(list(finite))
    moved = case.largest(_distances(path, [single.start.row] * len(path)))
    if like is None:
        noise = case.largest(_distances(path, on_one(case, _nudged(single.start)).path))
    else:
        noise = like.noise[: len(path)]
    far = np.zeros_like(moved)
    for step, row in enumerate(distributed.steps):
        for index, copies in enumerate(row):
            far[step, index] = max(difference(each, path[step][index]) for each in copies)
    allowed = case.largest(_rounding(single, moved)) + _NOISE_FACTOR * noise
    if tolerance is not None:
        allowed = np.full_like(allowed, tolerance)
    allowed[steps:] = np.inf
    return Comparison(
        single=single,
        distributed=distributed,
        far=case.largest(far),
        allowed=allowed,
        moved=moved,
        noise=noise,
        finite=steps,
        draws=draws,
    )


def _rounding(single: Run, moved: Table) -> Table:
    """Returns how much sums in another order may change, by step and weight."""
    sizes = [[max(1.0, float(np.abs(wide(v)).max(initial=0))) for v in row] for row in single.path]
    stored = np.array([_rounding_of(value.dtype.name) for value in single.start.row])
    steps = np.arange(1, len(sizes) + 1)[:, None]
    moves = single.rounding() * moved * (stored > 0)
    return np.asarray(_ROUNDINGS_A_STEP * (steps * stored * np.array(sizes) + moves))


def _nudged(start: Start) -> Start:
    """The start, with each weight changed in its last digit."""
    draw = np.random.default_rng(0)  # a generator apart: no random numbers of others are used up
    values = list(start.values)
    for index, value in enumerate(start.row):
        signs = draw.choice((-1.0, 1.0), size=value.shape)
        values[index] = (wide(value) * (1 + signs * _rounding_of(value.dtype.name))).astype(
            value.dtype
        )
    return replace(start, values=tuple(values))


def _distances(path: list[list[np.ndarray]], other: list[list[np.ndarray]]) -> Table:
    return np.array([list(map(difference, a, b)) for a, b in zip(path, other, strict=True)])


def difference(value: np.ndarray, other: np.ndarray) -> float:
    """The largest absolute difference: infinite where only one of two numbers is finite."""
    a, b = wide(value), wide(other)
    with np.errstate(invalid="ignore"):
        far = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.where(np.isnan(far), np.inf, far).max(initial=0))


def wide(value: np.ndarray) -> np.ndarray:
    """Numbers of any type, also bfloat16, as float64."""
    return np.asarray(value).astype(np.float64)
