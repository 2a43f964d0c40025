"""What a model sees in each epoch: which images, in which order and batches. Made for lesson 05.

draw_epochs({"cache last": [[(3, image), (1, other)], ...]}, batch=2)   # a list for each epoch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distlab.pictures.palette import NOTE, category, finish

_Epoch = Sequence[tuple[int, Any]]
_STEP, _GAP = 1.12, 0.35


def draw_epochs(pipelines: Mapping[str, Sequence[_Epoch]], *, batch: int) -> Any:
    """Draws the images of each epoch in a row, in the order in which they came.

    Each has its number below it. A space separates two batches.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    first = next(iter(pipelines.values()))
    rows, columns = len(first), len(first[0])
    width = columns * _STEP + (columns - 1) // batch * _GAP
    size = (len(pipelines) * (0.45 * width + 0.5), 0.58 * rows + 0.4)
    figure = plt.figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(pipelines), squeeze=False)[0]
    for axes, (name, epochs) in zip(panels, pipelines.items(), strict=True):
        axes.set_title(name, fontsize=10, loc="left")
        for row, epoch in enumerate(epochs):
            top = row * 1.5
            axes.text(-0.2, top + 0.5, f"epoch {row + 1}", ha="right", va="center", fontsize=8)
            for place, (number, image) in enumerate(epoch):
                left = place * _STEP + place // batch * _GAP
                where = (left, left + 1, top + 1, top)
                axes.imshow(image[..., 0], cmap="gray_r", vmin=0, vmax=1, extent=where)
                axes.add_patch(
                    Rectangle((left, top), 1, 1, fill=False, edgecolor=category(1).colour)
                )
                below = {"ha": "center", "va": "top", "fontsize": 7, "color": NOTE}
                axes.text(left + 0.5, top + 1.06, str(number), **below)
        axes.set_xlim(-2, width)
        axes.set_ylim(rows * 1.5, -0.1)
        axes.set_aspect("equal")
        axes.axis("off")
    return finish(figure, alt=" ".join(_in_words(*panel, batch) for panel in pipelines.items()))


def _in_words(name: str, epochs: Sequence[_Epoch], batch: int) -> str:
    orders = {tuple(number for number, _ in epoch) for epoch in epochs}
    mixes = {
        frozenset(number for number, _ in epoch[start : start + batch])
        for epoch in epochs
        for start in range(0, len(epoch), batch)
    }
    versions: dict[int, set[bytes]] = {}
    for epoch in epochs:
        for number, image in epoch:
            versions.setdefault(number, set()).add(bytes(image.tobytes()))
    most = max(len(seen) for seen in versions.values())
    return (
        f"{name}: {len(epochs)} epochs of {len(epochs[0])} images. Different orders: "
        f"{len(orders)}. Different batches: {len(mixes)}. Versions of one image: at most {most}."
    )
