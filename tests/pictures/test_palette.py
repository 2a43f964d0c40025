"""One meaning has one colour in all figures, and every figure can be read aloud."""

import ast
import itertools
import pathlib
import re

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from matplotlib.colors import to_rgb

import distlab.pictures
from distlab.errors import InvalidArgument
from distlab.notebooks.execute import execute
from distlab.pictures import palette

PICTURES = sorted(pathlib.Path(distlab.pictures.__file__).parent.glob("*.py"))
MODULES = [path for path in PICTURES if path.name not in {"__init__.py", "palette.py"}]

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


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_of_different_meanings_can_be_told_apart(sight):
    near = {
        (one, other): round(float(np.linalg.norm(seen(a.colour, sight) - seen(b.colour, sight))))
        for (one, a), (other, b) in itertools.combinations(MEANINGS.items(), 2)
    }
    assert {pair: distance for pair, distance in near.items() if distance < 12} == {}


@pytest.mark.parametrize("look", [*MEANINGS.values(), *palette.CATEGORIES])
def test_every_colour_stands_out_on_white(look):
    luminance = linear(look.colour) @ [0.2126, 0.7152, 0.0722]
    assert 1.05 / (luminance + 0.05) >= 3


def test_replicas_and_categories_differ_by_more_than_colour():
    for looks in ([palette.replica(n) for n in range(4)], palette.CATEGORIES):
        for part in ("marker", "hatch", "dashes"):
            assert len({getattr(look, part) for look in looks}) == 4
    assert palette.worker(2) == palette.replica(2) == palette.replica(6)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_picture_has_a_colour_of_its_own(path):
    source = path.read_text(encoding="utf-8")
    assert re.findall(r"#[0-9A-Fa-f]{6}\b|\"(?:black|white|red|green|blue)\"", source) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_drawing_function_ends_in_a_finished_figure(path):
    functions = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("draw_")
    ]
    assert functions
    for function in functions:
        last = function.body[-1]
        assert isinstance(last, ast.Return), function.name
        assert ast.unparse(last).startswith("return finish("), function.name


def test_a_finished_figure_is_closed_and_keeps_its_words():
    before = plt.get_fignums()
    figure = palette.finish(plt.figure(), alt="Nothing\n  is drawn.")
    assert figure.alt == "Nothing is drawn."
    assert plt.get_fignums() == before


def test_a_figure_without_words_is_refused():
    with pytest.raises(InvalidArgument, match="no alternative text"):
        palette.finish(plt.figure(), alt=" ")


def test_axes_have_units_and_no_frame_on_the_right():
    _, axes = plt.subplots()
    palette.label_axes(axes, x="time", y="loss", x_unit="ms")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time (ms)", "loss")
    assert not axes.spines["right"].get_visible()
    plt.close("all")


SHOWN = """
import matplotlib.pyplot as plt
from distlab.pictures.palette import finish
figure, axes = plt.subplots(figsize=(1, 1))
finish(figure, alt='One < two, "so to say".')
"""


def output_of(cell):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    (output,) = execute(notebook).cells[0].outputs
    return output


def test_a_stored_figure_has_its_words_in_the_metadata_of_the_output():
    output = output_of(SHOWN)
    assert set(output.data) == {"image/png", "text/plain"}
    assert output.metadata["image/png"]["alt"] == 'One < two, "so to say".'


def test_in_jupyterlab_the_figure_is_html_with_its_words():
    # Where JupyterLab runs a kernel, its server says in this variable which notebook it is.
    output = output_of(f"import os\nos.environ['JPY_SESSION_NAME'] = 'a.ipynb'\n{SHOWN}")
    image = output.data["text/html"]
    assert image.startswith('<img alt="One &lt; two, &quot;so to say&quot;." src="data:image/png;')
    assert "".join(output.data["image/png"].split()) in image.replace("\n", "")
