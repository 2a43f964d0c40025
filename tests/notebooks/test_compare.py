import base64
import io

import pytest
from nbformat.v4 import new_output
from PIL import Image, ImageDraw

from distlab.notebooks.compare import differences, render


def png(shade=0, size=(64, 48), mode="L"):
    picture = Image.new(mode, size, "white")
    ImageDraw.Draw(picture).rectangle((8, 8, 40, 40), fill=(shade if mode == "L" else (shade,) * 3))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def shown(data):
    return [new_output("display_data", {"image/png": data, "text/plain": "a picture"})]


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        ("Z2FyYmFnZQ==", "the stored one is no picture"),
        ("not base64 at all", "the stored one is no picture"),
        ("", "the stored one is no picture"),
        (png()[: len(png()) // 2], "the stored one is no picture"),
        (png(size=(65, 48)), "stored 65x48, fresh 64x48"),
        (png(shade=40), "mean difference 11 of 255"),
    ],
    ids=["garbage", "no-base64", "empty", "cut", "size", "shade"],
)
def test_a_picture_that_is_another_is_found(stored, found):
    assert list(differences(shown(stored), shown(png()))) == [f"image/png 0: {found}"]


@pytest.mark.parametrize("stored", [png(), png(shade=1), png(mode="RGB")])
def test_a_picture_that_shows_the_same_is_not(stored):
    assert list(differences(shown(stored), shown(png()))) == []


def test_the_limit_is_half_a_step_of_255():
    def grey(changed):  # of 4 pixels, this many are one step lighter
        picture = Image.new("RGBA", (2, 2), (100, 100, 100, 255))
        for pixel in range(changed):
            picture.putpixel(divmod(pixel, 2), (101, 101, 101, 255))
        file = io.BytesIO()
        picture.save(file, "PNG")
        return shown(base64.b64encode(file.getvalue()).decode())

    assert list(differences(grey(0), grey(2))) == []
    assert list(differences(grey(0), grey(4))) == ["image/png 0: mean difference 0.75 of 255"]


def test_an_output_that_is_missing_or_of_another_kind_is_found():
    text = [new_output("execute_result", {"text/plain": "1"})]
    assert list(differences(shown(png()), text)) == [
        "stored outputs are display_data image/png text/plain, fresh ones execute_result text/plain"
    ]
    assert list(differences(text, [])) == [
        "stored outputs are execute_result text/plain, fresh ones none"
    ]


def test_where_streams_come_among_the_outputs_does_not_matter():
    stream = [new_output("stream", name="stdout", text="a\n")]
    text = [new_output("execute_result", {"text/plain": "1"})]
    assert list(differences(stream + text, text + stream)) == []


def test_outputs_are_rendered_as_lines():
    outputs = [
        new_output("stream", name="stdout", text="a\nb\n"),
        *shown(png()),
        new_output("error", ename="ValueError", evalue="c", traceback=[]),
    ]
    assert render(outputs) == [
        *("[stdout]", "a", "b"),
        *("[display_data image/png]", "a picture of 64x48"),
        *("[display_data text/plain]", "a picture"),
        *("[error]", "ValueError: c"),
    ]
    assert render([]) == ["(no output)"]
