"""The colours and the form of every figure of the course: one meaning a colour, and words for it.

    figure, axes = panels(width=MIDDLE, height=3)
    axes.plot(steps, losses, **replica(0).line(), label="replica 0")
    axes.plot(steps, diverged, **WRONG.line(), label="divided twice")
    label_axes(axes, x="step", y="loss")
    label_ends(axes)
    return finish(figure, title="Divided twice, it stops early", alt="Two curves of the loss. ...")

A figure is 768, 576 or 384 pixels wide on a page and has twice as many in its file. Its title is
what it shows, so it stands where readers have predicted that. Colour-blind readers can tell the
colours apart, each has a contrast of 3:1 or more on white, and markers, dashes and names repeat
what a colour says. Only what is wrong, and a third category, is hatched. The ground is white, and a
dark theme of JupyterLab inverts the figure (course.css).
"""

from __future__ import annotations

import io
import os
import textwrap
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distlab.errors import InvalidArgument

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The widths of a figure in inches, each of 96 pixels on a page.
WIDE, MIDDLE, NARROW = 8.0, 6.0, 4.0
PIXELS_PER_INCH = 96
_COLOURS_IN_FILE = 64
_FONTS = Path(__file__).with_name("fonts")

# Frames without a meaning, and cells that nothing filled.
PALE = "#CCCCCC"
GRID = "#E5E7EB"
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
    dashes: str = "-"
    hatch: str = ""

    def line(self, *, size: float = 5) -> dict[str, Any]:
        """Returns the arguments for `plot`: a line of 2.4 pixels with filled markers."""
        return {"color": self.colour, "marker": self.marker, "markersize": size, "linewidth": 1.8}

    def band(self) -> dict[str, Any]:
        """Returns the arguments for `plot`: a broad pale line, so that others on it are seen."""
        return {"color": self.colour, "linewidth": 9, "alpha": 0.3, "solid_capstyle": "butt"}

    def bar(self) -> dict[str, Any]:
        """Returns the arguments for `bar`, `barh` and patches."""
        return {"facecolor": self.colour, "hatch": self.hatch, "edgecolor": GROUND}


_REPLICAS = (
    Look("#00508F", "o", "-"),
    Look("#B88A00", "D", "--"),
    Look("#C0609A", "^", "-."),
    Look("#2C96D1", "s", ":"),
)
ONE_DEVICE = Look("#404040", "o")
RIGHT = Look("#008A6B", "o")
WRONG = Look("#C93A00", "X", "--", hatch="////")
# For parts and kinds that are no replica, worker or verdict: the parts of a cost, say.
CATEGORIES = (
    Look("#332288", "D", "-"),
    Look("#8A8A2E", "v", "--"),
    Look("#882255", "P", "-.", hatch="...."),
    Look("#2F8C83", "o", ":"),
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


def ink(colour: str) -> str:
    """Returns a colour dark enough for words in it."""
    return "#" + "".join(f"{round(0.75 * part):02X}" for part in bytes.fromhex(colour[1:]))


def panels(
    rows: int = 1, columns: int = 1, *, width: float = MIDDLE, height: float = 3, **form: Any
) -> tuple[Figure, Any]:
    """Returns a figure of one of the three widths with its axes, as `plt.subplots` does."""
    import matplotlib.pyplot as plt

    form = {"layout": "constrained", **form, "figsize": (width, height)}
    figure, axes = plt.subplots(rows, columns, **form)
    return figure, axes


def diagram(
    *, width: float = WIDE, x: tuple[float, float], y: tuple[float, float]
) -> tuple[Figure, Any]:
    """Returns a figure for shapes, with axes of equal units that show nothing of their own."""
    figure, axes = panels(width=width, height=width * abs(y[1] - y[0]) / abs(x[1] - x[0]))
    axes.set(xlim=x, ylim=y, aspect="equal")
    axes.axis("off")
    return figure, axes


def label_axes(axes: Any, *, x: str, y: str, x_unit: str = "", y_unit: str = "") -> None:
    """Names both axes with their units, and leaves of the frame what a reader needs.

    Without a name the y axis has categories, so that the grid is that of the other axis. Of panels
    beside each other with one y axis the first one names it.
    """
    axes.set_xlabel(f"{x} ({x_unit})" if x_unit else x)
    shares = len(axes.get_shared_y_axes().get_siblings(axes)) > 1
    if not shares or axes.get_subplotspec().is_first_col():
        axes.set_ylabel(f"{y} ({y_unit})" if y_unit else y)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(NOTE)
    axes.grid(axis="y" if y else "x", color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9)
    axes.minorticks_off()


def label_ends(axes: Any) -> None:
    """Writes each line's name at its end, none over another; call it when the limits are final.

    The end of a line is its last point that the limits show; the name of a line without one, whose
    numbers are NaN, goes to the lower right corner. Lines that end almost at the right have their
    names in one column.
    """
    axes.autoscale_view()
    handles, names = axes.get_legend_handles_labels()
    lines = [getattr(handle, "lines", [handle])[0] for handle in handles]  # of an error bar's, too
    paths = [(axes.transScale + axes.transLimits).transform(line.get_xydata()) for line in lines]
    visible = [path[(path[:, 1] >= 0) & (path[:, 1] <= 1)] for path in paths]
    ends = [path[-1] if len(path) else (1.0, 0.0) for path in visible]
    column = max(x for x, _ in ends)
    heights = [y for _, y in ends]
    gap = 0.17 / (axes.get_position().height * axes.figure.get_figheight())
    order = _bottom_up(heights)
    for _ in range(100):
        heights[order[0]] = max(0.03, heights[order[0]])
        for low, high in pairwise(order):
            missing = max(0.0, gap - (heights[high] - heights[low]))
            heights[low] -= missing / 2
            heights[high] += missing / 2
    for line, name, (x, _), height in zip(lines, names, ends, heights, strict=True):
        style = {"color": ink(line.get_color()), "fontsize": 9, "weight": "bold", "va": "center"}
        left = column if x > 0.85 * column else x
        axes.text(left, height, f"   {name}", transform=axes.transAxes, **style)


def _bottom_up(heights: Sequence[float]) -> list[int]:
    """The places of heights in rising order, where rounding doesn't decide about equal ones."""
    order = list(range(len(heights)))[::-1]
    for _ in heights:
        for place in range(len(order) - 1):
            low, high = order[place : place + 2]
            if heights[low] > heights[high] + 0.03:
                order[place : place + 2] = high, low
    return order


def add_legend(axes: Any, **places: Any) -> Any:
    """Adds the course's form of a legend to axes or to a figure, and returns it."""
    return axes.legend(**{"frameon": False, "fontsize": 9, **places})


def finish(figure: Figure, *, alt: str, title: str = "") -> Figure:
    """Gives a figure its title, font and alternative text, and closes it, to be shown once.

    The site, nbconvert and GitHub take the text and the width from the output's metadata.
    JupyterLab ignores the text there, so in JupyterLab the figure is sent as HTML as well.
    """
    import matplotlib.pyplot as plt
    from matplotlib.text import Text

    if not alt.strip():
        raise InvalidArgument(
            asked=f"finish(figure, alt={alt!r})",
            found="no alternative text",
            do="say in a sentence or two what the figure shows",
        )
    if title:
        lines = textwrap.wrap(title, round(10.5 * figure.get_figwidth()))
        figure.set_figheight(figure.get_figheight() + 0.25 * len(lines))
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=12, weight="bold")
    family = list(_font_family())
    for axes in figure.axes:
        axes.tick_params(labelfontfamily=family)
    for text in figure.findobj(Text):
        text.set_fontfamily(family)
    shown: Any = figure
    shown.alt = " ".join(f"{title}. {alt}".split()) if title else " ".join(alt.split())
    shown._ipython_display_ = lambda: _display(shown)  # the name that IPython looks for
    plt.close(figure)  # which sets the dots per inch back
    figure.set_dpi(2 * PIXELS_PER_INCH)
    return figure


@cache
def _font_family() -> tuple[str, ...]:
    """The fonts of a figure's words; the second one has what the first lacks."""
    from matplotlib import font_manager

    for file in _FONTS.glob("*.otf"):
        font_manager.fontManager.addfont(file)
    return "Inter", "DejaVu Sans"


def png_of(figure: Figure) -> bytes:
    """Returns a finished figure as a PNG of few colours."""
    from PIL import Image

    drawn, kept = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=figure.dpi, facecolor=GROUND)
    picture = Image.open(drawn).convert("RGB")
    few = picture.quantize(_COLOURS_IN_FILE, kmeans=1, dither=Image.Dither.NONE)
    few.save(kept, "PNG", optimize=True)
    return kept.getvalue()


def image_tag(figure: Any, png: str) -> str:
    """Returns the HTML of a finished figure's PNG in base64, at its width on a page."""
    width = round(PIXELS_PER_INCH * figure.get_figwidth())
    about = f'class="distlab-figure" alt="{escape(figure.alt)}" width="{width}"'
    return f'<img {about} src="data:image/png;base64,{png}">'


def _display(figure: Any) -> None:
    from IPython.display import display

    png = b64encode(png_of(figure)).decode()
    data = {"image/png": png, "text/plain": repr(figure)}
    # Jupyter's server names the notebook here; neither a build nor a test has it.
    if "JPY_SESSION_NAME" in os.environ:
        data["text/html"] = image_tag(figure, png)
    about = {"alt": figure.alt, "width": round(PIXELS_PER_INCH * figure.get_figwidth())}
    display(data, metadata={"image/png": about}, raw=True)
