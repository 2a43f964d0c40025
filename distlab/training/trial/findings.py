"""How what replicas compute from their shares makes that of the global batch, by experiment.

    found = find(model, "train_step", batch, replicas=2)
    found.gradients[0]                     # Way.MEAN, Way.SUM or Way.WHOLE
    found.open                             # what this batch does not decide: try a later one
found.open                             # what this batch does not decide: try a later one

Whether a loss is a mean over examples, a sum over them, or belongs to the batch as a whole
cannot be read from code. So the step is tried, without effect: once on the whole first batch, and
once on each share of it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.training.keras_private import models, results, step_methods
from distlab.training.keras_private.batch import Way
from distlab.training.splitting import can_be_split, cut
from distlab.training.step_errors import share_explained
from distlab.training.trial import trial
from distlab.training.trial.alike_slices import alike_in_each
from distlab.training.trial.seen import Place, Seen

# Relative. Rounding in float32 leaves less than a thousandth of it, in 16 bits about all.
_SAME, _SAME_IN_16_BITS = 1e-3, 5e-2


@dataclasses.dataclass(kw_only=True)
class Findings:
    """What a trial of a step has shown; empty where none was possible.

    Attributes:
        gradients: The way of each call of `GradientTape.gradient`.
        means: The way of what each call gives to a `keras.metrics.Mean` or `Sum`; None where that
            is a value for each example.
        same_weights: Whether each of these calls has a weight that is one number, and the same for
            any examples.
        losses: The way of each compiled loss.
        added: The way of each of `model.losses`.
        logs: The way of each number that the step returns.
        alike: For each call of `GradientTape.gradient`, the positions of sparse gradients whose
            slices each share has as the whole batch has them, or has some of them.
        open: What the batch does not decide, by the name of an attribute and its index or key:
            what is zero in it, and numbers that are not zero in one share alone, which may be a
            count or a ratio. Its way is what it is taken for until a later batch tells.
        off: Of "gradients", "losses", "added" and "means", how far the mean of the shares is from
            the whole batch, relative to that.
        changes: How far what replicas would write into a variable is from what one device would,
            by path, where it is; and whether they agree on the mean of it.
        reads_results: Whether numbers that the step returns are made of results of metrics.
        of_sum: Whether all is a sum over examples, but for regularisers.
        draws: Whether the step draws numbers that a trial cannot repeat, so that nothing is shown.
    """

    gradients: list[Way] = dataclasses.field(default_factory=list)
    means: list[Way | None] = dataclasses.field(default_factory=list)
    same_weights: list[bool] = dataclasses.field(default_factory=list)
    losses: list[Way] = dataclasses.field(default_factory=list)
    added: list[Way] = dataclasses.field(default_factory=list)
    logs: dict[str, Way] = dataclasses.field(default_factory=dict)
    alike: list[frozenset[str]] = dataclasses.field(default_factory=list)
    open: set[tuple[str, int | str]] = dataclasses.field(default_factory=set)
    off: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    changes: dict[str, tuple[float, bool]] = dataclasses.field(default_factory=dict)
    reads_results: bool = False
    of_sum: bool = False
    draws: bool = False

    def fill(self, other: Findings) -> None:
        """Takes over what another trial found.

        Args:
            other: The findings.
        """
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(other, field.name))

    def learn(self, later: Findings) -> list[tuple[str, Way]]:
        """Takes over what a later batch decides and this one left open.

        Args:
            later: What the trial of that batch has found.

        Returns:
            What was not as it was taken: the name of its attribute, and the way it was taken for.
        """
        changed = []
        for kind, place in sorted(self.open - later.open, key=str):
            ways, known = getattr(self, kind), getattr(later, kind)
            if place not in (known if isinstance(known, dict) else range(len(known))):
                continue  # another path through the step
            self.open.remove((kind, place))
            if ways[place] is not known[place]:
                changed.append((kind, ways[place]))
            ways[place] = known[place]
            if isinstance(place, int):
                self.off[kind][place] = later.off[kind][place]
            if kind == "gradients":
                self.of_sum = later.of_sum
        return changed


def find(model: keras.Model, method: str, batch: Any, *, replicas: int) -> Findings:
    """Tries a step; the model stays as it is.

    Call it outside of a strategy's scope.

    Args:
        model: A compiled model with all its variables.
        method: "train_step" or "test_step".
        batch: A global batch. One of a single example, or of parts that cannot be cut, shows
            nothing.
        replicas: In how many shares to cut it.
    """
    parts = [part for part in tf.nest.flatten(batch) if part is not None]  # as sample_weight is
    if not parts or not can_be_split([tf.type_spec_from_value(part) for part in parts]):
        return Findings()
    examples = trial.examples_in(batch)
    places = [
        Place(first=first, examples=end - first, in_all=examples)
        for first, end in cut(examples, replicas)
        if end > first
    ]
    if len(places) < 2:
        return Findings()
    found = _find(model, method, batch, places)
    regularised = any(one.regularizer is not None for one in model.trainable_weights)
    # Where Keras's step adds the losses up, each of them is known by itself.
    own = step_methods.is_own(model, method)
    if own and regularised and found.gradients and Way.MEAN not in found.gradients:
        of_sum = _find(model, method, batch, places, of_sum=True)
        if set(of_sum.gradients) == {Way.SUM}:
            return of_sum
    return found


def _find(
    model: keras.Model, method: str, batch: Any, places: list[Place], *, of_sum: bool = False
) -> Findings:
    whole = trial.run(model, method, batch)
    reads_results = False
    if whole.results and whole.logs:
        other = trial.run(model, method, batch, change=results.nudged)
        reads_results = any(
            not np.array_equal(_row(value), _row(other.logs[name]), equal_nan=True)
            for name, value in whole.logs.items()
        )
    shares = []
    for place in places:
        rows = slice(place.first, place.first + place.examples)
        part = tf.nest.map_structure(lambda p, r=rows: None if p is None else p[r], batch)
        with share_explained(model, place.examples, place.in_all):
            shares.append(trial.run(model, method, part, place=place, whole=whole, of_sum=of_sum))
    counts = [place.share for place in places]
    same = _SAME_IN_16_BITS if _in_16_bits(model) else _SAME

    found = Findings(reads_results=reads_results, of_sum=of_sum)

    def note(kind: str, place: int | str, value: Any, parts: list[Any]) -> Way:
        numbers = kind in ("means", "logs")
        way, off, is_open = _way(value, parts, counts, same, may_be_zero=numbers)
        if is_open:
            found.open.add((kind, place))
        if kind != "logs":
            found.off.setdefault(kind, []).append(off)
        return way

    def ways(kind: str, name: str | None = None) -> list[Way]:
        of_whole = getattr(whole, name or kind)
        parts = [getattr(seen, name or kind) for seen in shares]
        if any(len(part) != len(of_whole) for part in parts):
            return []
        return [note(kind, i, one, [part[i] for part in parts]) for i, one in enumerate(of_whole)]

    # Rows of other replicas have gradients there. In a trial of one share they are constants.
    found.gradients = ways("gradients", "targets" if whole.gathered else None)
    found.losses, found.added = ways("losses"), ways("added")
    found.alike = alike_in_each(whole, shares)
    of_batch = Way.WHOLE in (*found.gradients, *found.losses, *found.added)
    if of_batch and _differs(whole, trial.run(model, method, batch), same):
        return Findings(draws=True, alike=found.alike)
    found.means = [
        None if way is Way.MEAN and _is_of_each(whole, shares, i) else way
        for i, way in enumerate(ways("means"))
    ]
    found.same_weights = [
        all(_same_number(one, seen.weights[i]) for seen in shares)
        for i, one in enumerate(whole.weights[: len(found.means)])
    ]
    found.logs = {
        name: note("logs", name, value, [seen.logs[name] for seen in shares])
        for name, value in whole.logs.items()
        if all(name in seen.logs for seen in shares)
    }
    layers_only = not step_methods.is_own(model, method)
    found.changes = _changes(whole, shares, counts, same, layers_only)
    return found


def _is_of_each(whole: Seen, shares: list[Seen], call: int) -> bool:
    """Whether a call gives a metric a value for each example: then a share gives it fewer."""
    return any(seen.means[call].shape != whole.means[call].shape for seen in shares)


def _same_number(one: tf.Tensor | None, other: tf.Tensor | None) -> bool:
    return one is not None and other is not None and bool(np.array_equal(one, other))


def _differs(one: Seen, other: Seen, same: float) -> bool:
    """Whether two trials of the same batch show different losses."""
    rows = _row(one.targets or one.losses), _row(other.targets or other.losses)
    return not np.allclose(*rows, rtol=same, equal_nan=True)


def _way(
    whole: Any, parts: list[Any], shares: list[float], same: float, *, may_be_zero: bool
) -> tuple[Way, float, bool]:
    """How the parts make the whole, how far their mean is from it, and whether that is open.

    What a step logs may be a count, which is zero in some shares. If a loss or a gradient is zero
    in all shares but one, it may be a ratio as well as a sum.
    """
    expected = _row(whole)
    rows = [_row(part) for part in parts]
    if any(row.shape != expected.shape for row in rows):
        return Way.MEAN, 0.0, False  # a batch of examples, each of which counts
    summed = np.sum(rows, axis=0)
    mean = np.sum([row * share for row, share in zip(rows, shares, strict=True)], axis=0)
    size = max(float(np.linalg.norm(expected)), float(np.linalg.norm(mean)))
    if not np.isfinite(size) or size == 0:
        return Way.MEAN, 0.0, size == 0 and bool(expected.size)
    off = float(np.linalg.norm(mean - expected)) / size
    if off <= same:
        return Way.MEAN, off, False
    adds_up = float(np.linalg.norm(summed - expected)) <= same * size
    in_one = adds_up and sum(bool(row.any()) for row in rows) == 1
    if adds_up and (may_be_zero or not in_one):
        return Way.SUM, off, in_one
    return Way.WHOLE, off, in_one


def _changes(
    whole: Seen, shares: list[Seen], counts: list[float], same: float, layers_only: bool
) -> dict[str, tuple[float, bool]]:
    found = {}
    for path, (old, new, agreed) in whole.changes.items():
        if any(path not in seen.changes for seen in shares):
            continue
        if layers_only and agreed and not np.issubdtype(np.asarray(old).dtype, np.floating):
            continue  # a layer may keep whole numbers for each replica
        agreed = agreed and np.issubdtype(np.asarray(old).dtype, np.floating)
        expected, *parts = [_row(seen.changes[path][1]) - _row(old) for seen in (whole, *shares)]
        if agreed:  # replicas take the mean of what each writes
            parts = [np.sum([p * share for p, share in zip(parts, counts, strict=True)], axis=0)]
        far = max(float(np.linalg.norm(part - expected)) for part in parts)
        size = max(float(np.linalg.norm(part)) for part in (expected, *parts))
        rounding = 1e-5 * float(np.linalg.norm(_row(new)))
        if np.isfinite(far) and far > max(same * size, rounding):
            found[path] = far / size, agreed
    return found


def _row(value: Any) -> np.ndarray:
    parts = [one for one in (value if isinstance(value, list) else [value]) if one is not None]
    dense = [tf.convert_to_tensor(one) for one in parts]
    arrays = [np.asarray(one).astype(np.float64).ravel() for one in dense]
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _in_16_bits(model: keras.Model) -> bool:
    return any("16" in layer.compute_dtype for layer in models.layers(model))
