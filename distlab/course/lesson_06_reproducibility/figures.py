"""Figures: the masks that replicas draw, and how far seeds spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distlab.course.palette import (
    CATEGORIES,
    GROUND,
    NOTE,
    ONE_DEVICE,
    PALE,
    WIDE,
    add_legend,
    finish,
    label_axes,
    label_ends,
    panels,
)
from distlab.course.palette import replica as look_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_masks(runs: Mapping[str, Sequence[Any]]) -> Figure:
    """Draws dropout masks: a column for each run, a row for each replica.

    A filled cell was kept, an empty one dropped; a row of cells is an example, a column a unit. The
    text below each panel counts the cells in which the replicas differ from the first one, and
    names an earlier run that shows the very same masks.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    kept = {title: np.asarray(masks) != 0 for title, masks in runs.items()}
    replicas, examples, units = next(iter(kept.values())).shape
    columns = len(kept)
    cell = WIDE / ((units + 2) * columns)
    height = (examples + 1.2) * cell * replicas + 1.1
    figure, axes = panels(replicas, columns, width=WIDE, height=height, squeeze=False)
    for column, (title, masks) in enumerate(kept.items()):
        for replica, mask in enumerate(masks):
            ax = axes[replica, column]
            ax.pcolormesh(
                mask,
                cmap=ListedColormap([GROUND, look_of(replica).colour]),
                vmin=0,
                vmax=1,
                edgecolors=PALE,
                linewidth=0.5,
            )
            ax.set(xticks=[], yticks=[], aspect="equal")
            ax.invert_yaxis()  # the first example on top
            if column == 0:
                ax.set_ylabel(f"replica {replica}\nexamples")
        axes[0, column].set_title(title, fontsize=10, loc="left")
        axes[-1, column].set_xlabel(f"units\n{_caption(title, kept)}", fontsize=9)
    handles = [
        Patch(facecolor=look_of(replica).colour, label=f"kept on replica {replica}")
        for replica in range(replicas)
    ]
    handles.append(Patch(facecolor=GROUND, edgecolor=NOTE, label="dropped"))
    add_legend(figure, handles=handles, loc="outside lower center", ncols=len(handles))
    caption = " ".join(f"{title}: the replicas {_told(title, kept)}." for title in kept)
    return finish(
        figure,
        title="A seed of its own gives each replica a mask of its own",
        alt=f"Dropout masks of {examples} examples and {units} units, one panel for each of "
        f"{replicas} replicas. {caption}",
    )


def _told(title: str, kept: Mapping[str, Any]) -> str:
    return _caption(title, kept).replace("\nthe same", ", and the masks are the same")


def _caption(title: str, kept: Mapping[str, Any]) -> str:
    masks = kept[title]
    apart = int((masks[1:] != masks[0]).sum())
    text = f"differ in {apart} of {masks[1:].size} cells" if apart else "differ in no cell"
    for earlier, others in kept.items():
        if earlier == title:
            break
        if masks.shape == others.shape and (masks == others).all():
            return f'{text}\nthe same as "{earlier}"'
    return text


def draw_seeds(accuracies: Mapping[str, Sequence[float]]) -> Figure:
    """Draws the accuracy by epoch, one curve for each seed."""
    figure, axes = panels()
    looks = (ONE_DEVICE, *CATEGORIES)
    for (name, curve), look in zip(accuracies.items(), looks, strict=False):
        percent = [100 * value for value in curve]
        axes.plot(range(1, len(curve) + 1), percent, label=name, **look.line())
    label_axes(axes, x="epoch", y="training accuracy", y_unit="%")
    axes.xaxis.get_major_locator().set_params(integer=True)
    label_ends(axes)
    widest = max(max(column) - min(column) for column in zip(*accuracies.values(), strict=True))
    last = [curve[-1] for curve in accuracies.values()]
    return finish(
        figure,
        title="Only the seed differs, and so do the curves",
        alt=f"The training accuracy by epoch of {len(accuracies)} runs that differ only in the "
        f"seed. In one epoch they are {100 * widest:.0f} percentage points apart; after the last "
        f"epoch they lie between {100 * min(last):.0f} and {100 * max(last):.0f} %.",
    )
