"""Runs the schedule of a pipeline with the gradients of a real model, and counts its ticks.

    pipeline = Pipeline(model.layers, x, y, loss, devices=4, micro_batches=8)
    run = pipeline.run([["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]])
    run.ticks, run.idle_share, run.kept, pipeline.difference(run)

`loss(outputs, y)` is the sum over a micro-batch, divided by the examples of the whole batch, so
that the gradients of the micro-batches add up to the gradient of the batch. `timetable.py` plays
the schedule, and here each piece of its work is computed on its device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from distlab.course.lesson_17_pipelines.timetable import Timetable, Work, play
from distlab.devices import split_devices
from distlab.errors import InvalidArgument

MOST_DEVICES = 4


@dataclass(frozen=True)
class Run:
    """A schedule that was run.

    Attributes:
        table: When each device did what.
        gradients: Of each variable of the model, over the whole batch.
    """

    table: Timetable
    gradients: list[Any]


class Pipeline:
    """Layers on the devices of a pipeline, and a batch that is cut into micro-batches."""

    def __init__(
        self,
        layers: Sequence[Any],
        x: Any,
        y: Any,
        loss: Callable[..., Any],
        *,
        devices: int,
        micro_batches: int,
    ) -> None:
        self.layers, self.x, self.y, self.loss = list(layers), x, y, loss
        self.devices, self.micro_batches = devices, micro_batches
        asked = f"Pipeline(devices={devices}, micro_batches={micro_batches})"
        if not 1 <= devices <= MOST_DEVICES:
            found = f"devices={devices}"
            raise InvalidArgument(asked=asked, found=found, do=f"pass 1 to {MOST_DEVICES} devices")
        if micro_batches < 1 or len(x) % micro_batches:
            found = f"{len(x)} examples in {micro_batches} micro-batches"
            raise InvalidArgument(asked=asked, found=found, do="choose a number that divides them")

    def run(self, schedule: Sequence[Sequence[str]]) -> Run:
        """Runs a schedule, a list of items for each device.

        Raises:
            InvalidArgument: If the schedule can't run to its end.
        """
        table = play(schedule, self.micro_batches)
        asked = f"run a schedule on {self.devices} devices"
        if len(schedule) != self.devices:
            found = f"lists for {len(schedule)} devices"
            raise InvalidArgument(asked=asked, found=found, do="pass one list for each device")
        if table.waits:
            do = "put what is waited for before what waits"
            raise InvalidArgument(asked=asked, found=table.why, do=do)
        step = _Step(self, self._stages(table.pieces), split=table.split)
        play(schedule, self.micro_batches, step.compute)
        return Run(table, [gradient for own in step.gradients for gradient in own])

    def difference(self, run: Run) -> float:
        """Returns the largest difference between a run's gradients and a single device's."""
        with tf.GradientTape() as tape:
            loss = self.loss(_through(self.layers, self.x), self.y)
        of_one = tape.gradient(loss, _weights(self.layers))
        return max(
            float(np.abs(mine - whole).max())
            for mine, whole in zip(run.gradients, of_one, strict=True)
        )

    def _stages(self, pieces: int) -> list[list[Any]]:
        count = self.devices * pieces
        if len(self.layers) % count:
            raise InvalidArgument(
                asked=f"cut {len(self.layers)} layers into {count} stages",
                found=f"{self.devices} devices with {pieces} pieces each",
                do="choose numbers of devices and pieces that divide the layers",
            )
        each = len(self.layers) // count
        return [self.layers[each * s : each * (s + 1)] for s in range(count)]


class _Step:
    """A batch on its way: what has arrived at each stage, what is kept, and the gradients."""

    def __init__(self, pipeline: Pipeline, stages: list[list[Any]], *, split: bool) -> None:
        self._names = split_devices(MOST_DEVICES)[: pipeline.devices]
        self._stages, self._loss, self._split = stages, pipeline.loss, split
        self._y = tf.split(pipeline.y, pipeline.micro_batches)
        parts = tf.split(pipeline.x, pipeline.micro_batches)
        self._arrived: dict[Work, Any] = {Work("F", 0, k): part for k, part in enumerate(parts)}
        self._kept: dict[tuple[int, int], Any] = {}
        self.gradients = [[tf.zeros_like(weight) for weight in _weights(own)] for own in stages]

    def compute(self, work: Work) -> None:
        """Takes one micro-batch through one stage, forward or backward."""
        with tf.device(self._names[work.stage % len(self._names)]):
            {"F": self._forward, "B": self._backward, "W": self._of_weights}[work.kind](work)

    def _forward(self, work: Work) -> None:
        _, stage, k = work
        x = self._arrived.pop(work)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            out = _through(self._stages[stage], x)
            if stage == len(self._stages) - 1:
                out = self._loss(out, self._y[k])
                self._arrived[Work("B", stage, k)] = None
            else:
                self._arrived[Work("F", stage + 1, k)] = out
        self._kept[stage, k] = tape, x, out

    def _backward(self, work: Work) -> None:
        """Without a "W" in the schedule both halves of the backward pass; with one, the first."""
        _, stage, k = work
        back = self._arrived.pop(work)
        tape, x, out = self._kept[stage, k]
        of_weights = [] if self._split else _weights(self._stages[stage])
        of_input, own = tape.gradient(out, (x, of_weights), output_gradients=back)
        if stage:
            self._arrived[Work("B", stage - 1, k)] = of_input
        if self._split:
            self._arrived[Work("W", stage, k)] = back
        else:
            self._add(stage, k, own)

    def _of_weights(self, work: Work) -> None:
        _, stage, k = work
        back = self._arrived.pop(work)
        tape, _, out = self._kept[stage, k]
        own = tape.gradient(out, _weights(self._stages[stage]), output_gradients=back)
        self._add(stage, k, own)

    def _add(self, stage: int, k: int, own: list[Any]) -> None:
        """Adds a micro-batch's gradients, and forgets what was kept for them."""
        del self._kept[stage, k]
        self.gradients[stage] = [
            total + one for total, one in zip(self.gradients[stage], own, strict=True)
        ]


def _through(layers: Sequence[Any], x: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def _weights(layers: Sequence[Any]) -> list[Any]:
    return [variable.value for layer in layers for variable in layer.trainable_variables]
