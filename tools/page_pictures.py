"""The pictures of measured pages, as SVG: docs/zoo.md, docs/benchmarks.md, docs/training_cost.md.

What stands for a cell is a link to the cell's row, which works where the site puts the picture into
its page (`docs/measured_pictures.py`). The colours follow the page's theme or, alone, the reader's.
`make map` draws both again, and `make zoo` the zoo's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from docutils.nodes import make_id

from distlab.course.palette import GROUND, NOTE, PALE, REFERENCE, RIGHT, WRONG, category
from tools.measured_pages import Cells, read_tables

DOCS = Path(__file__).resolve().parent.parent / "docs"
WIDTH = 480  # of a picture's own units; a phone shows 4 of them as 3 pixels
SQUARES_IN_A_ROW, PITCH = 20, WIDTH / 20
SIDE = 21.6  # of a square: 16 pixels on a phone, which a finger hits
SHADES = {-4: 0.25, -3: 0.45, -2: 0.7, -1: 1.0}  # opacity by the power of ten of a difference
DARK = {
    GROUND: "#14181e",
    REFERENCE: "#e6edf3",
    NOTE: "#9da7b3",
    PALE: "#49525d",
    RIGHT.colour: "#4dc9a6",
    WRONG.colour: "#ff8f66",
    category(0).colour: "#b3a6ff",
}
AXIS = 172  # where the benchmarks' axis begins
SLOWEST, FASTEST = 0.9, 8.0  # and the speeds at its ends
STRIPS, STRIP = 160, 24  # where the axis of errors begins, and how high a strip is


def zoo_picture(models: Cells) -> str:
    """A square for each model and way to train: how far it ends from one device."""
    columns = list(next(iter(models.values())))[-2:]
    parts, top = [], 0.0
    for column in columns:
        cells = {name: row[column] for name, row in models.items()}
        equal = f"{[*cells.values()].count('equal')} of {len(cells)} equal to one device"
        parts.append(_text(0, top + 14, f"{column.replace('`', '')}: {equal}", weight=600))
        for place, name in enumerate(sorted(cells, key=lambda name: _distance(cells[name]))):
            row, at = divmod(place, SQUARES_IN_A_ROW)
            square = _square(at * PITCH, top + 22 + row * PITCH, cells[name], SIDE)
            parts.append(_link(name, f"{name}: {cells[name]}", square))
        top += 36 + math.ceil(len(cells) / SQUARES_IN_A_ROW) * PITCH
    legend = {"equal": 0, "off by 1e-04": 72, "off by 1e-03": 188, "off by 1e-02": 258}
    legend |= {"off by 1e-01": 328, "stops": 398}
    for cell, left in legend.items():
        words = cell if left in (0, 72, 398) else cell.removeprefix("off by ")
        parts += [_square(left, top, cell), _text(left + 17, top + 12, words.replace("e-0", "e-"))]
    return _svg(top + 16, parts, letters=15)


def benchmarks_picture(cases: Cells) -> str:
    """A dot for each way to train: its speed, where that of Keras's own `fit` is 1."""
    labels = {1: "Keras's own fit", 2: "2 times", 4: "4 times as fast"}
    parts = [_text(_across(speed), 12, words, "middle") for speed, words in labels.items()]
    top = 24.0
    for case, cells in cases.items():
        name = case.replace("`", "")
        parts.append(_text(0, top + 12, name, weight=600))
        top += 20
        lanes = {way.replace("`", ""): cell for way, cell in cells.items() if cell[0].isdigit()}
        for speed in labels:
            colour = REFERENCE if speed == 1 else PALE
            parts.append(_line(_across(speed), top, _across(speed), top + 18 * len(lanes), colour))
        for way, cell in lanes.items():
            lane = _lane(way.partition(" steps")[0], re.findall(r"[\d.]+", cell), top)
            parts.append(_link(name, f"{name}, {way}: {cell}", "".join(lane)))
            top += 18
        top += 12
    return _svg(top - 10, parts)


def strips_picture(errors: Mapping[str, Sequence[float]]) -> str:
    """A dot for each prediction, in a strip for each group: how far it is from the measured one."""
    labels = {-0.5: "-50 %", -0.25: "-25 %", 0.0: "measured", 0.25: "+25 %", 0.5: "+50 %"}
    parts = [_text(_error_at(error), 12, words, "middle") for error, words in labels.items()]
    for place, (group, values) in enumerate(errors.items()):
        top = 24 + place * STRIP
        parts.append(_text(STRIPS - 8, top + 15, group, "end"))
        for error in labels:
            colour = PALE if error else REFERENCE
            parts.append(_line(_error_at(error), top, _error_at(error), top + STRIP, colour))
        for count, value in enumerate(values):
            far = abs(value) > 0.25
            height = top + 4 + 14 * (count * 0.618 % 1)  # spreads them, the same way each time
            look = f'r="2.5" fill="{WRONG.colour if far else category(0).colour}" opacity="0.7"'
            parts.append(f'<circle cx="{_error_at(value):.1f}" cy="{height:.1f}" {look}/>')
    return _svg(30 + STRIP * len(errors), parts)


def _error_at(error: float) -> float:
    """The place of an error on the axis of strips; what is beyond its ends is at them."""
    return STRIPS + (min(max(error, -0.6), 0.6) + 0.6) / 1.2 * (WIDTH - STRIPS - 6)


def _link(row: str, words: str, shapes: str) -> str:
    """A part of a picture that has a name and leads to a row of the table below."""
    place = make_id(f"row {row}")
    return f'<a href="#{place}"><title>{escape(words)}</title>{shapes}</a>'


def _distance(cell: str) -> float:
    """How far from one device a training ended; infinite where it stopped."""
    if cell == "equal":
        return 0.0
    number = re.search(r"off by (\S+)", cell)
    return float(number[1]) if number else math.inf


def _square(left: float, top: float, cell: str, side: float = 12) -> str:
    far = _distance(cell)
    place = f'x="{left:.1f}" y="{top:.1f}" width="{side}" height="{side}" rx="2"'
    if math.isinf(far):
        edge, arm = side / 4, f"{side / 2:g}"
        cross = f"M{left + edge:.1f} {top + edge:.1f}l{arm} {arm}m0 -{arm}l-{arm} {arm}"
        return (
            f'<rect {place} fill="{GROUND}" stroke="{WRONG.colour}"/>'
            f'<path d="{cross}" stroke="{WRONG.colour}"/>'
        )
    if far == 0:
        return f'<rect {place} fill="{RIGHT.colour}"/>'
    power = min(max(math.floor(math.log10(far)), min(SHADES)), max(SHADES))
    return f'<rect {place} fill="{WRONG.colour}" fill-opacity="{SHADES[power]}"/>'


def _lane(way: str, numbers: list[str], top: float) -> list[str]:
    """A way's name, its median and, if they're known, the line between its quartiles."""
    colour = category(0).colour if way == "distribute" else NOTE
    median, *quartiles = (_across(float(number)) for number in numbers)
    parts = [_text(AXIS - 8, top + 13, way, "end", colour=colour)]
    if quartiles:
        parts.append(_line(quartiles[0], top + 9, quartiles[1], top + 9, colour, width=3))
    parts.append(f'<circle cx="{median:.1f}" cy="{top + 9:.1f}" r="5" fill="{colour}"/>')
    end = max(median + 5, *quartiles, 0) + 6
    return [*parts, _text(end, top + 13, numbers[0], colour=colour)]


def _across(speed: float) -> float:
    """Where a speed is on the benchmarks' logarithmic axis."""
    share = math.log(speed / SLOWEST) / math.log(FASTEST / SLOWEST)
    return AXIS + share * (WIDTH - AXIS)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _text(
    x: float, y: float, words: str, anchor: str = "start", *, colour: str = "", weight: int = 400
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    look = f'fill="{colour or REFERENCE}" font-weight="{weight}"'
    return f"<text {place} {look}>{escape(words)}</text>"


def _svg(height: float, parts: list[str], letters: int = 13) -> str:
    scale = 16 / letters  # where there's room, letters are as high as the page's
    shown = f'width="{WIDTH * scale:g}" height="{height * scale:g}"'
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" {shown}'
    font = f'font-family="Inter, system-ui, sans-serif" font-size="{letters}"'
    ground = f'<rect width="100%" height="100%" fill="{GROUND}"/>'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" class="measured" {size} {font}>'
    dark = "".join(
        f".measured [{part}='{colour}'] {{ {part}: light-dark({colour}, {shade}) }}"
        for colour, shade in DARK.items()
        for part in ("fill", "stroke")
    )
    style = f"<style>svg:root {{ color-scheme: light dark }}{dark}</style>"
    return "\n".join([start + style, ground, *parts, "</svg>", ""])


def pictures() -> dict[Path, str]:
    """The text of each picture, by its file."""
    draw = {"zoo": zoo_picture, "benchmarks": benchmarks_picture}
    tables = {name: read_tables((DOCS / f"{name}.md").read_text(encoding="utf-8")) for name in draw}
    return {DOCS / "_static" / f"{name}.svg": draw[name](tables[name][0]) for name in draw}
