"""One meaning has one colour in all figures, and every figure can be read aloud."""

import base64
import io
import itertools

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from distlab.authoring.execute import execute
from distlab.course import palette
from distlab.errors import InvalidArgument
from tests.support.repository import ROOT

MEANINGS = {
    **{f"replica {number}": palette.replica(number) for number in range(4)},
    "one device": palette.ONE_DEVICE,
    "right": palette.RIGHT,
    "wrong": palette.WRONG,
}
# What people without red cones, without green ones, and all others see: Machado et al. 2009.
SIGHTS = {
    "all cones": np.eye(3),
    "no red cones": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


def linear(colour):
    values = np.array(to_rgb(colour))
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def seen(colour, sight):
    """The colour in CIE Lab, in which distances are about those that people see."""
    light = np.clip(np.array(SIGHTS[sight]) @ linear(colour), 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.array(to_xyz) @ light / [0.95047, 1, 1.08883])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_colours_of_different_meanings_can_be_told_apart():
    near = {
        (sight, first, second): round(distance)
        for sight in SIGHTS
        for (first, a), (second, b) in itertools.combinations(MEANINGS.items(), 2)
        if (distance := np.linalg.norm(seen(a.colour, sight) - seen(b.colour, sight))) < 12
    }
    assert near == {}


def test_every_colour_stands_out_on_white():
    looks = [*MEANINGS.values(), *palette.CATEGORIES]
    light = {look.colour: linear(look.colour) @ [0.2126, 0.7152, 0.0722] for look in looks}
    assert {colour for colour, value in light.items() if 1.05 / (value + 0.05) < 3} == set()


def test_words_in_a_colour_can_be_read_on_white():
    inks = {palette.ink(look.colour) for look in [*MEANINGS.values(), *palette.CATEGORIES]}
    light = {ink: linear(ink) @ [0.2126, 0.7152, 0.0722] for ink in inks}
    assert {ink for ink, value in light.items() if 1.05 / (value + 0.05) < 4.5} == set()


def test_replicas_and_categories_differ_by_more_than_colour():
    for looks in ([palette.replica(n) for n in range(4)], palette.CATEGORIES):
        for part in ("marker", "dashes"):
            assert len({getattr(look, part) for look in looks}) == 4
    hatched = [look for look in [*MEANINGS.values(), *palette.CATEGORIES] if look.hatch]
    assert hatched == [palette.WRONG, palette.category(2)]
    assert palette.worker(2) == palette.replica(2) == palette.replica(6)


def test_a_finished_figure_is_closed_and_has_title_words_and_units():
    before = plt.get_fignums()
    figure, axes = palette.panels()
    palette.label_axes(axes, x="time", y="loss", x_unit="ms")
    with pytest.raises(InvalidArgument, match="no alternative text"):
        palette.finish(figure, alt=" ")
    shown = palette.finish(figure, title="Nothing is drawn", alt="Empty\n  axes.")
    assert shown.alt == "Nothing is drawn. Empty axes."
    assert figure.get_suptitle() == "Nothing is drawn"
    assert plt.get_fignums() == before
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time (ms)", "loss")


def test_names_at_the_ends_of_lines_keep_their_order_and_lie_on_nothing():
    figure, axes = palette.panels()
    # The first two are equal but for rounding, so their order is that in which they were drawn.
    for number, end in enumerate((0.5, 0.500001, 0.45, 0.55, 0.0)):
        axes.plot([0, 1], [1, end], label=f"ends at {end}", **palette.category(number).line())
    axes.plot([0, 1], [np.nan, np.nan], label="diverges", **palette.WRONG.line())
    palette.label_axes(axes, x="step", y="loss")
    palette.label_ends(axes)
    palette.finish(figure, alt="Five lines.").draw_without_rendering()
    names = sorted(axes.texts, key=lambda text: text.get_window_extent().y0)
    assert [name.get_text().strip() for name in names] == [
        "diverges",
        *(f"ends at {end}" for end in (0.0, 0.45, 0.500001, 0.5, 0.55)),
    ]
    for low, high in itertools.pairwise(names):
        assert low.get_window_extent().y1 <= high.get_window_extent().y0 + 1
    assert max(name.get_window_extent().x1 for name in names) <= figure.bbox.x1


SHOWN = """
from distlab.course.palette import NARROW, finish, panels, replica
figure, axes = panels(width=NARROW, height=1)
axes.plot([1, 2], **replica(0).line())
finish(figure, alt='One < two, "so to say".')
"""


def test_a_figure_is_shown_at_its_width_with_twice_the_pixels_and_its_words():
    # Where JupyterLab runs a kernel, its server says in this variable which notebook it is.
    in_lab = f"import os\nos.environ['JPY_SESSION_NAME'] = 'a.ipynb'\n{SHOWN}"
    cells = [nbformat.v4.new_code_cell(source) for source in (SHOWN, in_lab)]
    stored, lab = (c.outputs[0] for c in execute(nbformat.v4.new_notebook(cells=cells)).cells)
    assert set(stored.data) == {"image/png", "text/plain"}
    words = {"alt": 'One < two, "so to say".', "width": 384}
    assert stored.metadata["image/png"] == words
    assert size_and_colours(stored.data["image/png"]) == ((768, 192), 64)
    image = lab.data["text/html"]
    assert image.startswith(
        '<img class="distlab-figure" alt="One &lt; two, &quot;so to say&quot;." width="384" '
        'src="data:image/png;'
    )
    assert "".join(lab.data["image/png"].split()) in image.replace("\n", "")


def size_and_colours(png):
    """The pixels of a picture in base64, and how many colours its file may name."""
    picture = Image.open(io.BytesIO(base64.b64decode(png)))
    return picture.size, len(picture.getpalette()) // 3


def test_figures_of_the_notebooks_have_one_of_three_widths_and_are_light():
    for path in sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*.ipynb")]):
        cells = nbformat.read(path, as_version=4).cells
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        for output in outputs:
            if png := output.get("data", {}).get("image/png"):
                width = output.metadata["image/png"]["width"]
                (pixels, _), colours = size_and_colours(png)
                assert width in (384, 576, 768) and pixels == 2 * width, path.name
                assert colours <= 64 and len(png) < 110_000, path.name
