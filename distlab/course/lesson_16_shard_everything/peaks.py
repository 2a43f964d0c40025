"""Prints what each stage keeps, sends and takes at its peak, and whether one device agrees.

    python -m distlab.course.lesson_16_shard_everything.peaks

Peaks are those of two workers, in processes of their own; the rest is of four replicas in this one.
Linux only, and a minute on two idle cores.
"""

from __future__ import annotations

from distlab.course.lesson_16_shard_everything.limited_workers import DeepModel, train_together
from distlab.course.lesson_16_shard_everything.sharded_training import (
    Momentum,
    max_difference,
    train,
    train_on_one,
)
from distlab.course.lesson_16_shard_everything.stages import STAGES
from distlab.course.runs.replicas import mirrored

_ENOUGH_MB = 400
_ROW = "{:10}{:>16}{:>16}{:>18}{:>12}{:>12}"


def main() -> None:
    """Prints a row for each stage."""
    strategy = mirrored(4)  # before anything starts TensorFlow
    model, step = DeepModel(replicas=4, layers=1), Momentum(0.01)
    one = train_on_one(model, step, steps=10)
    print(_ROW.format("", "bytes a weight", "sent / weights", "difference", "kept MiB", "peak MiB"))  # noqa: T201
    for stage in STAGES:
        run = train(strategy, model, stage, step, steps=10)
        parameters = sum(value.size for value in model.first)
        ended = train_together(stage, megabytes=_ENOUGH_MB)[0]
        print(  # noqa: T201
            _ROW.format(
                stage.name,
                f"{sum(run.held.values()) / parameters:.2f}",
                f"{run.notes.sent_bytes() / (4 * parameters):.2f}",
                f"{max_difference(run, one):.1e}",
                f"{sum(ended.result['held'].values()):.1f}" if not ended.error else "-",
                f"{ended.result['peak']:.1f}" if not ended.error else ended.error[:60],
            )
        )


if __name__ == "__main__":
    main()
