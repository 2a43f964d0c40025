"""The colours and the form of every figure of the course: one meaning a colour, and words for it.

    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    axes.plot(steps, losses, **replica(0).line(), label="replica 0")
    axes.plot(steps, diverged, **WRONG.line(), label="divided twice")
    label_axes(axes, x="step", y="loss")
    add_legend(axes)
    return finish(figure, alt="Two curves of the loss by step. Replica 0 falls to 0.4, ...")

Colour-blind readers can tell the colours apart, each has a contrast of 3:1 or more on white, and
markers, lines and hatches repeat what a colour says. Figures have a white ground on every theme.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from distlab.errors import InvalidArgument

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Grid lines, frames without a meaning, and cells that nothing filled.
PALE = "#CCCCCC"
# Arrows, notes, and what is beside the point.
NOTE = "#666666"
# Lines that a reader compares with: a target, a limit, the mean.
REFERENCE = "#000000"
GROUND = "#FFFFFF"


@dataclass(frozen=True)
class Look:
    """How one meaning is drawn, in every figure."""

    colour: str
    marker: str = "o"
    hatch: str = ""
    dashes: str = "-"

    def line(self, *, width: float = 1.5, size: float = 6) -> dict[str, Any]:
        """Returns the arguments for `plot`: a thin line with hollow markers."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "markersize": size,
            "linewidth": width,
            "fillstyle": "none",
        }

    def band(self, *, width: float = 8) -> dict[str, Any]:
        """Returns the arguments for `plot`: a broad pale line, so that others on it are seen."""
        return {"color": self.colour, "linewidth": width, "alpha": 0.35, "solid_capstyle": "butt"}

    def bar(self) -> dict[str, Any]:
        """Returns the arguments for `bar` and `barh`."""
        return {"color": self.colour, "hatch": self.hatch, "edgecolor": GROUND}


_REPLICAS = (
    Look("#00508F", "o", "", "-"),
    Look("#B88A00", "x", "///", "--"),
    Look("#C0609A", "^", "...", "-."),
    Look("#2C96D1", "s", "xxx", ":"),
)
ONE_DEVICE = Look("#404040", "o")
RIGHT = Look("#008A6B", "o")
WRONG = Look("#C93A00", "x", "////", "--")
# For parts and kinds that are no replica, worker or verdict: the parts of a cost, say.
CATEGORIES = (
    Look("#332288", "D", "", "-"),
    Look("#8A8A2E", "v", "\\\\\\", "--"),
    Look("#882255", "P", "oo", "-."),
    Look("#2F8C83", "*", "++", ":"),
)


def replica(number: int) -> Look:
    """Returns the look of a replica, which is the same in every figure."""
    return _REPLICAS[number % len(_REPLICAS)]


def worker(number: int) -> Look:
    """Returns the look of a worker: that of the replica with its number."""
    return replica(number)


def category(number: int) -> Look:
    """Returns the look of a part or kind that is no replica, worker or verdict."""
    return CATEGORIES[number % len(CATEGORIES)]


def label_axes(axes: Any, *, x: str, y: str, x_unit: str = "", y_unit: str = "") -> None:
    """Names both axes with their units, and takes away the frame on the right and on top."""
    axes.set_xlabel(f"{x} ({x_unit})" if x_unit else x)
    axes.set_ylabel(f"{y} ({y_unit})" if y_unit else y)
    axes.spines[["top", "right"]].set_visible(False)


def add_legend(axes: Any, **places: Any) -> Any:
    """Adds the course's form of a legend to axes or to a figure, and returns it."""
    return axes.legend(**{"frameon": False, "fontsize": 9, **places})


def finish(figure: Figure, *, alt: str) -> Figure:
    """Closes a figure, so that a notebook shows it once, and gives it its alternative text.

    The site, nbconvert and GitHub take the text from the output's metadata. JupyterLab ignores it
    there, so in JupyterLab the figure is sent as HTML as well.
    """
    import matplotlib.pyplot as plt

    if not alt.strip():
        raise InvalidArgument(
            asked=f"finish(figure, alt={alt!r})",
            found="no alternative text",
            do="say in a sentence or two what the figure shows",
        )
    words = " ".join(alt.split())
    shown: Any = figure
    shown.alt = words
    shown._repr_mimebundle_ = lambda **_: _shown(figure, words)  # the name that IPython looks for
    plt.close(figure)
    return figure


def _shown(figure: Figure, alt: str) -> tuple[dict[str, str], dict[str, Any]]:
    """What IPython sends beside the picture itself, and the metadata of the output."""
    metadata = {"image/png": {"alt": alt}}
    # Jupyter's server names the notebook here; neither a build nor a test has it.
    if "JPY_SESSION_NAME" not in os.environ:
        return {}, metadata
    from IPython.core.pylabtools import print_figure

    png = print_figure(figure, fmt="png", base64=True)
    image = f'<img alt="{escape(alt)}" src="data:image/png;base64,{png}">'
    return {"text/html": image}, metadata
