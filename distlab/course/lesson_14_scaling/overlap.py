"""A training step of two workers that send gradients in buckets, and when each part was ready.

    cluster.run(connect, timeout_secs=120)                # on both workers, once
    times = cluster.run(time_steps, (1, 4, 16))[0]        # of worker 0, by the number of buckets
    times[4].step_ms, times[4].backward_ms, times[4].arrived_ms

The step has 16 dense layers. Their gradients are TensorFlow's, and so is the ring that sums each
bucket. Only the network is slow on purpose: a relay lets 160 MB a second through.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAYERS, WIDTH, EXAMPLES = 16, 512, 1024
MEGABYTES_PER_SEC, DELAY_MS = 160, 1
_WARM_UP = 2
_FILE = Path(__file__).with_name("recorded_overlap.json")

_kept: dict[str, Any] = {}  # a worker's strategy and relays


@dataclass(frozen=True)
class StepTimes:
    """When each part of one step was ready, in milliseconds after the step began.

    Attributes:
        forward_ms: When the forward pass ended.
        ready_ms: When each layer's gradient was there, in the order of the backward pass.
        arrived_ms: When the sum of each bucket was there.
    """

    forward_ms: float
    ready_ms: tuple[float, ...]
    arrived_ms: tuple[float, ...]

    @property
    def backward_ms(self) -> float:
        """When the backward pass ended."""
        return self.ready_ms[-1]

    @property
    def step_ms(self) -> float:
        """When all sums were there."""
        return max(*self.arrived_ms, self.backward_ms)

    @property
    def first_sent_ms(self) -> float:
        """When the first bucket had all its gradients."""
        return self.ready_ms[len(self.ready_ms) // len(self.arrived_ms) - 1]

    @property
    def sent_ms(self) -> tuple[float, ...]:
        """When each bucket left: it had all its gradients, and the link was free."""
        size = len(self.ready_ms) // len(self.arrived_ms)
        left, free = [], 0.0
        for ready, arrived in zip(self.ready_ms[size - 1 :: size], self.arrived_ms, strict=True):
            left.append(max(ready, free))
            free = arrived
        return tuple(left)


def connect() -> None:
    """Makes a worker's strategy, whose all-reduces travel through a slow network."""
    from distlab.course.lesson_14_scaling.relay import slow_peers

    _kept["relays"] = slow_peers(megabytes_per_sec=MEGABYTES_PER_SEC, delay_ms=DELAY_MS)
    import tensorflow as tf

    _kept["strategy"] = tf.distribute.MultiWorkerMirroredStrategy()


def time_steps(bucket_counts: Sequence[int], rounds: int = 8) -> dict[int, StepTimes]:
    """Returns the fastest step for each number of buckets; the numbers take turns."""
    steps = {count: _step(_buckets(count)) for count in bucket_counts}
    taken: dict[int, list[StepTimes]] = {count: [] for count in bucket_counts}
    for number in range(_WARM_UP + rounds):
        for count, step in steps.items():
            times = step()
            if number >= _WARM_UP:
                taken[count].append(times)
    return {count: min(rows, key=lambda row: row.step_ms) for count, rows in taken.items()}


def recorded_overlap() -> dict[int, StepTimes]:
    """Returns the steps that were recorded, by the number of buckets."""
    stored = json.loads(_FILE.read_text(encoding="utf-8"))["steps"]
    return {
        int(count): StepTimes(row["forward_ms"], tuple(row["ready_ms"]), tuple(row["arrived_ms"]))
        for count, row in stored.items()
    }


def _buckets(count: int) -> list[list[int]]:
    """The layers of each bucket, those first whose gradients come first: the last ones."""
    backward, size = list(reversed(range(LAYERS))), LAYERS // count
    return [backward[start : start + size] for start in range(0, LAYERS, size)]


def _step(buckets: list[list[int]]) -> Callable[[], StepTimes]:
    import numpy as np
    import tensorflow as tf

    events: dict[str, float] = {}
    weights = [
        tf.random.stateless_normal([WIDTH, WIDTH], [layer, 0]) / np.sqrt(WIDTH)
        for layer in range(LAYERS)
    ]
    x = tf.random.stateless_normal([EXAMPLES, WIDTH], [LAYERS, 0])

    def note(name: str, tensor: Any) -> Any:
        """A number of the tensor, which notes the time as soon as it is there."""

        def now(value: Any) -> Any:
            events[name] = time.perf_counter()
            return value

        # Not stateful: TensorFlow would let stateful operations wait for each other.
        number = tf.reshape(tensor, [-1])[0]
        return tf.numpy_function(now, [number], tensor.dtype, stateful=False)

    def on_replica() -> list[Any]:
        h = x + 0.0 * note("begin", x)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            for weight in weights:
                h = tf.nn.relu(h @ weight)
            loss = tf.reduce_mean(h**2)
        noted = [note("forward", loss)]
        gradients = tape.gradient(loss, weights)
        noted += [note(f"ready {layer}", gradient) for layer, gradient in enumerate(gradients)]
        context = tf.distribute.get_replica_context()
        for number, layers in enumerate(buckets):
            sums = context.all_reduce("SUM", [gradients[layer] for layer in layers])
            noted.append(note(f"arrived {number}", tf.add_n([each[:1, :1] for each in sums])))
        return noted

    compiled = tf.function(lambda: _kept["strategy"].run(on_replica), autograph=False)

    def step() -> StepTimes:
        compiled()
        ms = {name: 1e3 * (secs - events["begin"]) for name, secs in events.items()}
        return StepTimes(
            forward_ms=ms["forward"],
            ready_ms=tuple(ms[f"ready {layer}"] for layer in reversed(range(LAYERS))),
            arrived_ms=tuple(ms[f"arrived {number}"] for number in range(len(buckets))),
        )

    return step
