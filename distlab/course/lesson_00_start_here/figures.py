"""Figures: the digits of a batch, and who gets which.

draw_digits(images)                                # a numbered grid
draw_shares(images, [[[0, 1], [2]], [[3], []]])    # a panel a batch, a row a replica
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distlab.course.palette import PALE, finish, replica

_TILE_INCHES = 0.48


def draw_digits(images: Any, *, columns: int = 14) -> Any:
    """Draws images in their order, each with its number below."""
    import matplotlib.pyplot as plt

    rows = -(-len(images) // columns)
    figure, axes = plt.subplots(figsize=(columns * _TILE_INCHES * 1.2, rows * _TILE_INCHES * 1.5))
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        _draw_tile(axes, image, number, left=column * 1.15, top=row * 1.4)
    _frame(axes, width=columns * 1.15, height=rows * 1.4)
    return finish(figure, alt=f"{len(images)} small grey images in rows, numbered from 0.")


def draw_shares(images: Any, seen: Sequence[Sequence[Sequence[int]]]) -> Any:
    """Draws which replica saw which examples: a panel for each batch, a row for each replica.

    Every replica has its colour and its name, every example its number; the end of a
    row says how many its replica saw.
    """
    import matplotlib.pyplot as plt

    # Room for the count at the end of each row, even in a panel with few examples.
    widths = [max([3, *(len(share) for share in batch)]) * 1.15 + 0.9 for batch in seen]
    heights = [len(batch) * 1.6 for batch in seen]
    figure, panels = plt.subplots(
        1,
        len(seen),
        squeeze=False,
        width_ratios=widths,
        figsize=((sum(widths) + 1.6) * _TILE_INCHES, (max(heights) + 1) * _TILE_INCHES),
    )
    for position, (axes, batch) in enumerate(zip(panels[0], seen, strict=True)):
        for number_of_replica, share in enumerate(batch):
            colour = replica(number_of_replica).colour
            top = number_of_replica * 1.6
            if position == 0:
                axes.text(-0.3, top + 0.5, f"replica {number_of_replica}", ha="right", va="center")
            for column, number in enumerate(share):
                left = column * 1.15
                _draw_tile(axes, images[number], number, left=left, top=top, colour=colour)
            end = len(share) * 1.15 + 0.15
            axes.text(end, top + 0.5, f"= {len(share)}", va="center")
        examples = sum(len(share) for share in batch)
        axes.set_title(f"batch {position + 1}: {examples} examples", fontsize=10, loc="left")
        _frame(axes, width=widths[position], height=heights[position])
    return finish(figure, alt=_shares_in_words(seen))


def _shares_in_words(seen: Sequence[Sequence[Sequence[int]]]) -> str:
    sentences = ["A row of small images for each replica."]
    for position, batch in enumerate(seen):
        counts = ", ".join(str(len(share)) for share in batch)
        sentences.append(
            f"Batch {position + 1}: replicas 0 to {len(batch) - 1} got {counts} images."
        )
    return " ".join(sentences)


def _draw_tile(
    axes: Any, image: Any, number: int, *, left: float, top: float, colour: str = PALE
) -> None:
    import matplotlib.patches as patches

    place = (left, left + 1, top + 1, top)
    axes.imshow(image[..., 0], cmap="gray_r", vmin=0, vmax=1, extent=place)
    frame = patches.Rectangle((left, top), 1, 1, fill=False, edgecolor=colour, linewidth=2)
    axes.add_patch(frame)
    axes.text(left + 0.5, top + 1.06, str(number), ha="center", va="top", fontsize=6.5)


def _frame(axes: Any, *, width: float, height: float) -> None:
    axes.set_xlim(-0.1, width)
    axes.set_ylim(height, -0.1)
    axes.set_aspect("equal")
    axes.axis("off")
