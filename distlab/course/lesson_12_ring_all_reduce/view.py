"""A view of one all-reduce, step by step: who sends which chunk, and what each rank holds.

explore_ring()      # controls: the algorithm, the number of ranks, and how many steps are over
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course.figures.shapes import box
from distlab.course.lesson_12_ring_all_reduce.ring_schedule import (
    ALGORITHMS,
    Transfer,
    all_reduce_steps,
    holdings,
)
from distlab.course.palette import (
    GROUND,
    NOTE,
    REFERENCE,
    RIGHT,
    WIDE,
    category,
    finish,
    panels,
    replica,
)
from distlab.course.view import Choices, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RANKS = [2, 4, 8]
_MOST_STEPS = 2 * (max(_RANKS) - 1)


def explore_ring() -> View:
    """Returns the view; it starts with a ring of four ranks, before the first step."""
    return View(
        "An all-reduce, step by step",
        {
            "algorithm": Choices("algorithm", list(ALGORITHMS), start="ring"),
            "ranks": Choices("ranks", _RANKS, start=4),
            "step": Choices(
                "steps that are over",
                range(_MOST_STEPS + 1),
                start=1,
                last=lambda algorithm, ranks: len(all_reduce_steps(algorithm, ranks)),
            ),
        },
        _numbers,
        _draw,
        plays="step",
    )


def _numbers(algorithm: str, ranks: int, step: int) -> dict[str, Any]:
    """The messages of the last step, and how many ranks' values each chunk contains after it."""
    steps = all_reduce_steps(algorithm, ranks)
    moves = [dataclasses.asdict(transfer) for transfer in steps[step - 1]] if step else []
    counts = holdings(steps[:step], ranks)[-1].sum(axis=-1)
    return {"steps": len(steps), "moves": moves, "counts": counts.tolist()}


def _draw(numbers: Mapping[str, Any], *, algorithm: str, ranks: int, step: int) -> Figure:
    last = [Transfer(**move) for move in numbers["moves"]]
    counts = np.array(numbers["counts"])
    figure, (left, right) = panels(1, 2, width=WIDE, height=3.4, layout="none")
    figure.subplots_adjust(left=0.02, right=0.98, bottom=0.13, top=0.82)  # quicker than a layout
    _draw_ranks(left, ranks, last, counts)
    _draw_chunks(right, counts, last)
    title = f"{algorithm}, step {step} of {numbers['steps']}"
    words = _in_words(algorithm, step, numbers["steps"], last, counts)
    return finish(figure, title=title, alt=words)


def _draw_ranks(axes: Any, ranks: int, last: Sequence[Transfer], counts: Any) -> None:
    """The ranks on a circle, and an arrow for each message of the last step."""
    angles = np.pi / 2 - 2 * np.pi * np.arange(ranks) / ranks
    places = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for transfer in last:
        tail, head = places[transfer.source], places[transfer.target]
        style = {
            "arrowstyle": "-|>",
            "color": _arrow_colour(transfer),
            "linestyle": "-" if transfer.adds else "--",
            "shrinkA": 13,
            "shrinkB": 13,
            # The two arrows of a ring of two would hide each other.
            "connectionstyle": "arc3,rad=-0.15",
        }
        axes.annotate("", xy=head, xytext=tail, arrowprops=style)
        text = "all" if len(transfer.chunks) == ranks > 1 else str(transfer.chunks[0])
        middle = 0.5 * (tail + head) + 0.16 * np.array([tail[1] - head[1], head[0] - tail[0]])
        box = {"facecolor": GROUND, "edgecolor": "none", "pad": 0.5}
        place = {"ha": "center", "va": "center", "fontsize": 8, "bbox": box}
        axes.text(*(middle), text, color=_arrow_colour(transfer), **place)
    done = (counts == ranks).all(axis=1)
    colours = [RIGHT.colour if finished else replica(0).colour for finished in done]
    axes.scatter(*places.T, s=330, c=colours)
    for rank, place in enumerate(places):
        axes.text(*place, str(rank), ha="center", va="center", color=GROUND, weight="bold")
    axes.set_title("in this step: who sends which chunk", fontsize=9, y=1)
    axes.set_xlim(-1.3, 1.3)
    axes.set_ylim(-1.3, 1.3)
    axes.set_aspect("equal")
    axes.axis("off")


def _draw_chunks(axes: Any, counts: Any, last: Sequence[Transfer]) -> None:
    """A row for each rank, a column for each chunk: how many ranks' values it contains."""
    from matplotlib.colors import LinearSegmentedColormap

    ranks = len(counts)
    shades = LinearSegmentedColormap.from_list("values", [GROUND, RIGHT.colour])
    axes.imshow(counts, cmap=shades, vmin=0, vmax=ranks, aspect="auto")
    for (rank, chunk), count in np.ndenumerate(counts):
        colour = GROUND if count == ranks else REFERENCE
        axes.text(chunk, rank, str(count), ha="center", va="center", fontsize=9, color=colour)
    for transfer in last:
        left, wide = transfer.chunks[0] - 0.46, len(transfer.chunks) - 0.08
        box(axes, (left, transfer.target - 0.46), (wide, 0.92), fill="none", edge=REFERENCE)
    axes.tick_params(length=0, colors=NOTE)
    axes.set_xticks(range(ranks))
    axes.set_yticks(range(ranks))
    axes.set_xlabel("chunk", fontsize=9)
    axes.set_ylabel("rank", fontsize=9)
    axes.set_title("how many ranks' values each chunk contains", fontsize=9, y=1)
    axes.spines[:].set_visible(False)


def _arrow_colour(transfer: Transfer) -> str:
    return REFERENCE if transfer.adds else category(3).colour


def _in_words(algorithm: str, over: int, of: int, last: Sequence[Transfer], counts: Any) -> str:
    if last:
        does = "adds it to its own" if last[0].adds else "keeps it in place of its own"
        sent = "; ".join(
            f"rank {move.source} sends {_chunks(move, len(counts))} to rank {move.target}"
            for move in last
        )
        happened = f"In this step {sent}; each target {does}. "
    else:
        happened = "Nothing has been sent yet. "
    finished = int((counts == len(counts)).sum())
    return (
        f"An all-reduce of {len(counts)} ranks, {algorithm}, after step {over} of {of}. {happened}"
        f"{finished} of {counts.size} chunks are finished."
    )


def _chunks(transfer: Transfer, ranks: int) -> str:
    whole = len(transfer.chunks) == ranks
    return "the whole vector" if whole else f"chunk {transfer.chunks[0]}"
