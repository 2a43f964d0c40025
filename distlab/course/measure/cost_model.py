"""Predicts how long a step of synchronous data parallelism takes, part by part.

    model = fit(all_reduces, steps, shared=True)       # from measurements on few replicas
    relative_errors(model, more_steps)                 # on measurements that it has not seen
    step = model.step(4, per_replica_batch=32, gradient_bytes=1_680_168)
    step.secs, step.compute_secs, step.communication_secs
    model.efficiency(512, per_replica_batch=64, gradient_bytes=2**27)

The parts, for N replicas, B examples on each, and S bytes of gradients:

* compute: B times `secs_per_example`, and `secs_per_step` that no batch size changes.
* waiting: the slowest of N replicas decides. For normally distributed times it is later than the
  mean by `jitter` times the expected largest of N standard normals (Blom's approximation, 1958).
* communication: a ring all-reduce has 2(N-1) rounds, each with a latency (alpha), and moves
  2(N-1)/N S bytes through each link (Patarasuk and Yuan, 2009). A part of it is hidden behind the
  backward pass, at most as long as that takes: two thirds of the compute.
* input: prefetching overlaps it with the rest of the step, so only what is longer counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from distlab.course.measure.bandwidth import AllReduceTime
from distlab.course.measure.scaling_runs import MeasuredStep
from distlab.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

# The backward pass computes two gradients for each product of the forward pass.
_BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """The predicted parts of one step: only what makes the step longer, so they add up.

    Attributes:
        compute_secs: Seconds of computing on a replica.
        waiting_secs: Seconds until the slowest replica has computed as well.
        communication_secs: Seconds of the all-reduce that nothing hides.
        input_secs: Seconds until the next batch is there.
    """

    compute_secs: float
    waiting_secs: float
    communication_secs: float
    input_secs: float

    @property
    def secs(self) -> float:
        """Seconds of the whole step."""
        return self.compute_secs + self.waiting_secs + self.communication_secs + self.input_secs


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """A model of a step's cost in a few numbers.

    Attributes:
        secs_per_example: Seconds to compute one example on one replica, there and back.
        secs_per_step: Seconds of a replica's step that do not depend on its batch.
        latency_secs: Alpha, the seconds that a round of the ring takes for any size.
        bytes_per_sec: How many bytes one link moves in a second; the inverse of beta.
        hidden: The share of the communication that can overlap the backward pass, from 0 to 1.
        jitter: The standard deviation of a replica's compute time, divided by its mean.
        input_secs_per_example: Seconds to make one example ready.
        shared: Whether all replicas share one processor and one memory, as logical devices do. N
            replicas then take N times as long for their computing, their bytes and their input.
    """

    secs_per_example: float
    secs_per_step: float = 0.0
    latency_secs: float = 0.0
    bytes_per_sec: float = math.inf
    hidden: float = 0.0
    jitter: float = 0.0
    input_secs_per_example: float = 0.0
    shared: bool = False

    def __post_init__(self) -> None:
        times = (self.secs_per_example, self.secs_per_step, self.latency_secs, self.jitter)
        shares = 0 <= self.hidden <= 1
        if min(*times, self.input_secs_per_example) < 0 or self.bytes_per_sec <= 0 or not shares:
            raise InvalidArgument(
                asked=repr(self),
                found="a time below 0, a bandwidth that is not above 0, or hidden outside 0 to 1",
                do="give times of at least 0 seconds, bytes_per_sec above 0, and 0 <= hidden <= 1",
            )

    def step(self, replicas: int, *, per_replica_batch: float, gradient_bytes: float) -> StepCost:
        """Returns the parts of one step.

        Args:
            replicas: How many replicas train, at least 1.
            per_replica_batch: How many examples each replica has in a step.
            gradient_bytes: How many bytes of gradients each replica gives to the all-reduce.
        """
        in_turn = replicas if self.shared else 1
        compute = in_turn * (self.secs_per_step + per_replica_batch * self.secs_per_example)
        waiting = self.jitter * compute * _expected_largest(replicas)
        reduce = self.all_reduce_secs(replicas, gradient_bytes)
        exposed = reduce - min(self.hidden * reduce, _BACKWARD_SHARE * compute)
        busy = compute + waiting + exposed
        reading = in_turn * per_replica_batch * self.input_secs_per_example
        return StepCost(
            compute_secs=compute,
            waiting_secs=waiting,
            communication_secs=exposed,
            input_secs=max(0.0, reading - busy),
        )

    def all_reduce_secs(self, replicas: int, size_bytes: float) -> float:
        """Returns the seconds of a ring all-reduce, hidden or not.

        Args:
            replicas: How many replicas take part.
            size_bytes: How many bytes each of them has to add.
        """
        rounds, link_bytes = _ring(replicas, size_bytes, shared=self.shared)
        return rounds * self.latency_secs + link_bytes / self.bytes_per_sec

    def efficiency(
        self, replicas: int, *, per_replica_batch: float, gradient_bytes: float
    ) -> float:
        """Returns the efficiency of weak scaling: the step of one replica by that of many.

        Args:
            replicas: How many replicas train.
            per_replica_batch: How many examples each replica has in a step, one or many.
            gradient_bytes: As for `step`.
        """
        sizes = {"per_replica_batch": per_replica_batch, "gradient_bytes": gradient_bytes}
        return self.step(1, **sizes).secs / self.step(replicas, **sizes).secs


def fit(
    all_reduces: Sequence[AllReduceTime], steps: Sequence[MeasuredStep], *, shared: bool = False
) -> CostModel:
    """Returns the model that fits measurements best, with no time below 0.

    Each part is fitted by itself, by least squares of the relative errors, so that a short time
    counts as much as a long one.

    Args:
        all_reduces: All-reduces by themselves, of at least two sizes. Without any, communication
            costs nothing.
        steps: Steps with at least two numbers of examples on a replica.
        shared: Whether the replicas shared one processor; see `CostModel`.

    Raises:
        InvalidArgument: There are fewer measurements than numbers to fit.
    """
    if len(steps) < 2 or len(all_reduces) == 1:
        raise InvalidArgument(
            asked=f"fit of {len(all_reduces)} all-reduces and {len(steps)} steps",
            found="fewer measurements than numbers to fit",
            do="measure at least two sizes of each",
            pitfall="A cost model that misses the next measurement",
        )
    rows = [
        (step.global_batch, step.replicas) if shared else (step.global_batch / step.replicas, 1)
        for step in steps
    ]
    per_example, per_step = _least_squares(rows, [step.compute_secs for step in steps])
    latency, secs_per_byte = 0.0, 0.0
    if all_reduces:
        rings = [_ring(row.replicas, row.size_bytes, shared=shared) for row in all_reduces]
        latency, secs_per_byte = _least_squares(rings, [row.secs for row in all_reduces])
    return CostModel(
        secs_per_example=per_example,
        secs_per_step=per_step,
        latency_secs=latency,
        bytes_per_sec=1 / secs_per_byte if secs_per_byte else math.inf,
        shared=shared,
    )


def predict_steps(model: CostModel, steps: Sequence[MeasuredStep]) -> list[StepCost]:
    """Returns what a model says of steps that were measured."""
    return [
        model.step(
            step.replicas,
            per_replica_batch=step.global_batch / step.replicas,
            gradient_bytes=step.gradient_bytes,
        )
        for step in steps
    ]


def relative_errors(
    model: CostModel, measured: Sequence[AllReduceTime] | Sequence[MeasuredStep]
) -> list[float]:
    """Returns by which part of each measurement the model is too long; below 0 if too short."""
    errors = []
    for row in measured:
        if isinstance(row, AllReduceTime):
            forecast_secs, secs = model.all_reduce_secs(row.replicas, row.size_bytes), row.secs
        else:
            forecast_secs, secs = predict_steps(model, [row])[0].secs, row.whole_secs
        errors.append(forecast_secs / secs - 1)
    return errors


def _ring(replicas: int, size_bytes: float, *, shared: bool) -> tuple[float, float]:
    """The rounds of a ring all-reduce, and the bytes that one link, or the one memory, moves."""
    rounds = 2 * (replicas - 1)
    return rounds, rounds * size_bytes * (1 if shared else 1 / replicas)


def _expected_largest(count: int) -> float:
    """How many standard deviations the largest of `count` normal numbers is above the mean."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _least_squares(rows: Sequence[tuple[float, float]], secs: Sequence[float]) -> tuple[float, ...]:
    """The two numbers, neither below 0, by which rows give the seconds with least relative error.

    With two numbers it is enough to try both, and each of them alone.
    """
    import numpy as np

    scaled = np.asarray(rows, float) / np.asarray(secs, float)[:, None]
    best: tuple[float, np.ndarray] = (math.inf, np.zeros(2))
    for kept in itertools.chain(([0, 1],), ([0], [1])):
        numbers = np.zeros(2)
        numbers[kept] = np.linalg.lstsq(scaled[:, kept], np.ones(len(secs)), rcond=None)[0]
        error = float(np.sum((scaled @ numbers - 1) ** 2))
        if numbers.min() >= 0 and error < best[0]:
            best = (error, numbers)
    return tuple(float(number) for number in best[1])
