"""One call of a model's step that changes nothing, and what came by in it.

with in_trial():
    make_variables(model, "train_step", batch)     # inside the strategy's scope
    seen = run(model, "train_step", share, place)  # outside of it, as on one device
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import keras
import tensorflow as tf

from distlab.training.keras_private import held, hooks, models, states
from distlab.training.keras_private.batch import Batch, working_on
from distlab.training.keras_private.results import Change, noted_results, split_logs
from distlab.training.trial.draws import replaced_draws, same_draws
from distlab.training.trial.seen import Place, Seen


@contextlib.contextmanager
def in_trial(model: keras.Model) -> Iterator[None]:
    """Inside the block, steps can be tried. Raw TensorFlow variables get their values back.

    Args:
        model: The model that is tried.
    """
    raw = {id(one): one for one in held.raw_variables(model)}.values()
    kept = [one.numpy() for one in raw]
    with hooks.installed(), replaced_draws(), _batch_norms_at_rest():
        try:
            yield
        finally:
            for variable, value in zip(raw, kept, strict=True):
                variable.assign(value)


def make_variables(model: keras.Model, method: str, batch: Any) -> Seen:
    """Calls a step in the strategy's scope, so that all it needs is made there.

    Args:
        model: A compiled model.
        method: "train_step" or "test_step".
        batch: A global batch.
    """
    place = _whole(batch)
    seen = Seen()
    with model.distribute_strategy.scope():
        try:
            trial = _Trial(seen, model, differentiate=False)
            _call(model, method, batch, place, trial, seen)
        finally:
            if method == "train_step" and not seen.applied and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
    return seen


def make_variables_of(model: keras.Model, spec: Any) -> None:
    """As `make_variables`, of all steps, where no batch is at hand yet.

    Args:
        model: A compiled model.
        spec: What the data set says of its batches. Unknown sizes are taken for 4.
    """
    if not models.has_own(model, "train_step"):
        return

    def zeros(one: Any) -> Any:
        shape = [4 if size is None else size for size in one.shape]
        return tf.zeros(shape, one.dtype) if one.dtype != tf.string else tf.fill(shape, "")

    with in_trial(model):
        make_variables(model, "train_step", tf.nest.map_structure(zeros, spec))


def run(
    model: keras.Model,
    method: str,
    batch: Any,
    *,
    place: Place | None = None,
    whole: Seen | None = None,
    of_sum: bool = False,
    change: Change | None = None,
) -> Seen:
    """Calls a step on a batch, or a share of it, as on one device.

    Args:
        model: A compiled model, with all its variables.
        method: "train_step" or "test_step".
        batch: The examples.
        place: Which they are; None for a whole batch.
        whole: What the trial of the whole batch returned, for one of a share.
        of_sum: See `Batch`.
        change: See `noted_results`.
    """
    seen = Seen(of_sum=of_sum)
    trial = _Trial(seen, model, differentiate=method == "train_step", whole=whole)
    place = place or _whole(batch)
    _call(model, method, batch, place, trial, seen, whole=whole, change=change)
    return seen


def examples_in(batch: Any) -> int:
    """Returns how many examples a batch has.

    Args:
        batch: Tensors, or a structure of them.
    """
    return int(next(p.shape[0] for p in tf.nest.flatten(batch) if p is not None and p.shape.rank))


def _whole(batch: Any) -> Place:
    examples = examples_in(batch)
    return Place(first=0, examples=examples, in_all=examples)


def _call(
    model: keras.Model,
    method: str,
    data: Any,
    place: Place,
    trial: _Trial,
    seen: Seen,
    *,
    whole: Seen | None = None,
    change: Change | None = None,
) -> None:
    batch = _TrialBatch(
        examples=tf.constant(place.examples, tf.float32),
        in_all=tf.constant(place.in_all, tf.float32),
        as_mean=True,
        of_sum=seen.of_sum,
        seen=seen,
        first=place.first,
        totals=None if whole is None else iter(whole.totals),
        rows=None if whole is None else iter(whole.gathered),
    )
    rows = dataclasses.asdict(place)
    with (
        same_draws(**rows),
        states.put_back(held.raw_variables(model)) as seen.changes,
        working_on(batch),
        hooks.using(trial),
        noted_results(change) as results,
    ):
        try:
            logs = getattr(model, method)(data)
        finally:
            trial.put_back(raw=held.raw_variables(model))
    seen.logs = split_logs(logs, results)[1]
    seen.results = bool(results)


@dataclasses.dataclass(frozen=True)
class _TrialBatch(Batch):
    is_trial: ClassVar[bool] = True
    seen: Seen = dataclasses.field(default_factory=Seen)
    first: int = 0
    totals: Iterator[tf.Tensor] | None = None
    rows: Iterator[tf.Tensor] | None = None

    def over_all(self, here: tf.Tensor) -> tf.Tensor:
        total = here if self.totals is None else next(self.totals)
        self.seen.totals.append(total)
        return total

    def gathered(self, rows: tf.Tensor) -> tf.Tensor:
        of_all = rows if self.rows is None else next(self.rows)
        self.seen.gathered.append(of_all)
        end = self.first + int(self.examples)
        if self.rows is None or rows.shape[0] != end - self.first:
            return of_all
        return tf.concat([of_all[: self.first], rows, of_all[end:]], 0)  # gradients reach its rows

    def tries_update(self, update: Any, args: Any, kwargs: Any) -> bool:
        if self.totals is None:
            update.try_out(args, kwargs, examples=int(self.in_all))
        return not update.of_numbers  # on replicas, too, it then goes by no other hook

    def note_loss(self, value: tf.Tensor) -> None:
        self.seen.losses.append(value)

    def note_added_loss(self, value: tf.Tensor) -> None:
        self.seen.added.append(value)


class _Writes(hooks.Hooks):
    """Keeps what TensorFlow variables were before they were written."""

    def __init__(self) -> None:
        self.before: dict[int, tuple[tf.Variable, Any]] = {}

    def write(self, variable: tf.Variable) -> None:
        if tf.executing_eagerly():
            self.before.setdefault(id(variable), (variable, variable.numpy()))


class _Trial(_Writes):
    """Keeps what comes by, and lets nothing be written."""

    keras_scales_losses = False

    def __init__(
        self, seen: Seen, model: keras.Model, *, differentiate: bool, whole: Seen | None = None
    ) -> None:
        super().__init__()
        self.of_model = {id(variable) for variable in model.variables}
        self.seen = seen
        self.whole = whole
        self.differentiate = differentiate
        self._backward = _Writes()
        self._backward.before = self.before

    def in_backward_pass(self) -> hooks.Hooks:
        return self._backward

    def gradient(
        self, compute: Callable[..., Any], target: Any, sources: Any, output_gradients: Any
    ) -> Any:
        if not self.differentiate:
            return tf.nest.map_structure(tf.zeros_like, sources)
        found = compute(target, sources, output_gradients)
        if any(held.is_variable(source) for source in tf.nest.flatten(sources)):
            number = len(self.seen.gradients)
            self.seen.gradients.append(tf.nest.flatten(found))
            parts = [tf.reduce_sum(part) for part in tf.nest.flatten(target) if part is not None]
            self.seen.targets.append(tf.add_n([tf.cast(part, tf.float32) for part in parts]))
            if self.whole is not None and number < len(self.whole.gradients):
                of_batch = self.whole.gradients[number]  # what the step has on replicas
                found = tf.nest.pack_sequence_as(
                    found, list(map(_valued, self.seen.gradients[-1], of_batch))
                )
        return found

    def update_mean(self, update: Any, values: Any, sample_weight: Any) -> None:
        self.seen.means.append(tf.convert_to_tensor(values))
        is_number = tf.is_tensor(sample_weight) and sample_weight.shape.rank == 0
        self.seen.weights.append(sample_weight if is_number else None)

    def update_sum(self, update: Any, values: Any, sample_weight: Any) -> None:
        self.update_mean(update, values, sample_weight)

    def assign(self, assign: Any, variable: Any, value: Any) -> None:
        if id(variable) not in self.of_model and variable.synchronization != "on_read":
            assign(value)  # it is put back, and told of: a loss may keep a value for itself

    def put_back(self, *, raw: list[tf.Variable]) -> None:
        """Gives variables that neither Keras nor the model knows of their values back.

        Args:
            raw: The model's.
        """
        known = {id(part) for one in raw for part in getattr(one, "values", [one])}
        with hooks.using(hooks.Hooks()):
            for number, (variable, old) in enumerate(self.before.values()):
                if id(variable) in known:
                    continue
                new = variable.numpy()
                if variable.dtype.is_floating and (new != old).any():
                    self.seen.changes[f"{variable.name} ({number}, no layer's)"] = old, new, False
                variable.assign(old)

    def apply(self, apply: Any, optimizer: Any, grads: Any, variables: Any) -> None:
        if variables is None:
            return
        variables = list(variables)
        self.seen.applied.append((optimizer, variables))
        if not optimizer.built:
            with hooks.using(hooks.Hooks()):
                optimizer.build(variables)


def _valued(here: Any, of_batch: Any) -> Any:
    """A gradient with the value of another, which is differentiated like itself."""
    if not isinstance(here, tf.Tensor) or not isinstance(of_batch, tf.Tensor):
        return here
    return here + tf.stop_gradient(of_batch - here)


@contextlib.contextmanager
def _batch_norms_at_rest() -> Iterator[None]:
    """Statistics of a batch are not what a trial looks for: take the moving ones."""
    kind = keras.layers.BatchNormalization
    call = kind.call

    def at_rest(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return call(self, inputs, training=False, mask=mask)

    kind.call = at_rest
    try:
        yield
    finally:
        kind.call = call
