"""Figures: the digits of a batch, and who gets which.

draw_digits(images)                                # a numbered grid
draw_shares(images, [[[0, 1], [2]], [[3], []]])    # a panel a batch, a row a replica
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distlab.course.figures.shapes import framed_digit
from distlab.course.palette import diagram, finish, ink, replica

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEP, _ROW = 1.15, 1.6


def draw_digits(images: Any, *, columns: int = 14) -> Figure:
    """Draws images in their order, each with its number below."""
    rows = -(-len(images) // columns)
    figure, axes = diagram(x=(-0.1, columns * _STEP), y=(rows * _ROW, -0.1))
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        framed_digit(axes, image, (column * _STEP, row * _ROW), str(number))
    return finish(figure, alt=f"{len(images)} small grey images in rows, numbered from 0.")


def draw_shares(images: Any, seen: Sequence[Sequence[Sequence[int]]]) -> Figure:
    """Draws which replica saw which examples: a panel for each batch, a row for each replica.

    Every replica has its colour and its name, every example its number; the end of a
    row says how many its replica saw.
    """
    # Room for the count at the end of each row, even in a panel with few examples.
    widths = [max([4, *map(len, batch)]) * _STEP + 1.6 for batch in seen]
    rows = max(map(len, seen))
    figure, axes = diagram(x=(-2.2, sum(widths)), y=(rows * _ROW, -0.8))
    left = 0.0
    for position, (batch, width) in enumerate(zip(seen, widths, strict=True)):
        examples = sum(map(len, batch))
        axes.text(left, -0.2, f"batch {position + 1}: {examples} examples", fontsize=10)
        for number, share in enumerate(batch):
            colour, middle = replica(number).colour, number * _ROW + 0.5
            if position == 0:
                name = {"ha": "right", "va": "center", "color": ink(colour), "weight": "bold"}
                axes.text(-0.3, middle, f"replica {number}", **name)
            for column, example in enumerate(share):
                corner = (left + column * _STEP, number * _ROW)
                framed_digit(axes, images[example], corner, str(example), frames=[colour])
            axes.text(left + len(share) * _STEP + 0.15, middle, f"= {len(share)}", va="center")
        left += width
    return finish(
        figure,
        title="Each replica gets a run of neighbours, and the last one what is left",
        alt=_shares_in_words(seen),
    )


def _shares_in_words(seen: Sequence[Sequence[Sequence[int]]]) -> str:
    sentences = ["A row of small images for each replica."]
    for position, batch in enumerate(seen):
        counts = ", ".join(str(len(share)) for share in batch)
        sentences.append(
            f"Batch {position + 1}: replicas 0 to {len(batch) - 1} got {counts} images."
        )
    return " ".join(sentences)
