"""The steps that lesson 13 times: a small transformer, a large product, and a slow input.

step = TrainingStep(width=128)
step.flops, step()                     # the FLOPs of a step, and one step
time_steps([64, 256])                  # {64: MeasuredMfu(...), ...}
train = loop_with_slow_input(ahead=2)  # train(steps=4) trains, with prefetch(2)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from distlab.course.lesson_13_step_cost.recorded import MeasuredMfu
from distlab.course.measure.flops import gradients_of
from distlab.course.measure.timeline import COMPUTE, Event
from distlab.course.measure.timing import time_in_turns
from distlab.course.tiny_transformer import VOCABULARY, build_transformer, text_windows

ROWS, LENGTH, LAYERS = 16, 64, 2
# A square product of this size runs at about the peak of a CPU, and at much less of a GPU's.
PEAK_SIZE = 1024
_BATCH_SECS = 0.04


def entropy(y: Any, logits: Any) -> Any:
    """Returns the mean loss of the next token."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(y, tf.int32), logits)
    return tf.reduce_mean(losses)


class TrainingStep:
    """A compiled training step of a small transformer, with Adam, on one batch.

    Args:
        width: How many numbers the model has for each token.
        rows: How many texts a batch has.
        length: How many tokens a text has.
        xla: Whether XLA compiles the step.
    """

    def __init__(
        self, width: int, *, rows: int = ROWS, length: int = LENGTH, xla: bool = False
    ) -> None:
        self.width = width
        self.model = model = build_transformer(width, LAYERS, length=length)
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        self.batch = next(iter(text_windows(length).batch(rows)))
        self.gradients = gradients_of(model, entropy)

        def step(x: Any, y: Any) -> Any:
            loss, gradients = self.gradients(x, y)
            optimizer.apply(gradients, model.trainable_variables)
            return loss

        self.compiled = tf.function(step, jit_compile=xla)

    @property
    def flops(self) -> int:
        """The FLOPs of the step's matrix products, counted by the lesson's three rules."""
        width, (rows, length) = self.width, self.batch[0].shape
        weights = LAYERS * 12 * width**2 + width * VOCABULARY
        return int(3 * rows * length * (2 * weights + LAYERS * 4 * length * width))

    def __call__(self) -> float:
        """Takes a step, and returns its loss."""
        return float(self.compiled(*self.batch).numpy())


def large_product() -> Callable[[], float]:
    """Returns a call that multiplies two large matrices."""
    matrix = tf.random.stateless_normal((PEAK_SIZE, PEAK_SIZE), (1, 2))
    product = tf.function(lambda: tf.matmul(matrix, matrix)[0, 0])
    return lambda: float(product().numpy())


def working_clock() -> Callable[[], float]:
    """Returns a clock that other programs don't move, as far as the device has one."""
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    return time.perf_counter if has_gpu else time.process_time


def time_steps(
    widths: Iterable[int], *, xla: bool = False, blocks: int = 9
) -> dict[int, MeasuredMfu]:
    """Times steps of several widths, each in turns with a large product.

    On CPUs the processor's own clock counts, so that other programs don't; on a GPU the wall's.
    """
    measured = {}
    for width in widths:
        step = TrainingStep(width, xla=xla)
        calls: dict[str, Callable[[], float]] = {"step": step, "product": large_product()}
        times = time_in_turns(calls, blocks=blocks, calls=1, clock=working_clock())
        measured[width] = MeasuredMfu(
            width=width,
            xla=xla,
            flops=step.flops,
            step_secs=times["step"].median_secs,
            product_secs=times["product"].median_secs,
        )
    return measured


def share_of_products(events: Iterable[Event]) -> float:
    """Returns the part of the computing time, of all threads, that matrix products take."""
    spent = {"products": 0.0, "others": 0.0}
    for event in events:
        if event.kind in COMPUTE:
            spent["products" if event.work == "products" else "others"] += event.ms
    return spent["products"] / sum(spent.values())


@dataclass(frozen=True)
class SlowLoop:
    """A training loop whose batches arrive late; `train(steps)` goes on where it stopped."""

    step: TrainingStep
    data: Any

    def __call__(self, steps: int) -> None:
        """Trains, and waits for each step."""
        for _ in range(steps):
            self.step.compiled(*next(self.data)).numpy()


def loop_with_slow_input(step: TrainingStep, *, ahead: int) -> SlowLoop:
    """Returns a loop in which a disk takes 40 ms for each batch.

    Args:
        step: What trains.
        ahead: The batches that `prefetch` keeps ready; 0 for none.
    """

    def disk(x: Any) -> Any:
        time.sleep(_BATCH_SECS)
        return x

    def read(x: Any, y: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(disk, [x], x.dtype), x.shape), y

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # TensorFlow would add one itself
    data = text_windows(LENGTH).batch(ROWS, drop_remainder=True).repeat().map(read)
    data = (data.prefetch(ahead) if ahead else data).with_options(options)
    loop = SlowLoop(step, iter(data))
    loop(2)  # traces, and fills the prefetch buffer
    return loop
