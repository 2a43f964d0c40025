import base64
import io
import math

from nbformat.v4 import new_output
from PIL import Image, ImageDraw

from distlab.authoring.compare import (
    MOVED_PICTURE_LIMIT,
    PICTURE_LIMIT,
    Tolerance,
    differences,
    with_stored_numbers,
)


def png(shade=0, size=(64, 48), mode="L"):
    picture = Image.new(mode, size, "white")
    ImageDraw.Draw(picture).rectangle((8, 8, 40, 40), fill=(shade if mode == "L" else (shade,) * 3))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def shown(data):
    return [new_output("display_data", {"image/png": data, "text/plain": "a picture"})]


def test_a_picture_that_is_another_is_found():
    for stored, found in (
        ("Z2FyYmFnZQ==", "the stored one is no picture"),
        ("not base64 at all", "the stored one is no picture"),
        (png()[: len(png()) // 2], "the stored one is no picture"),
        (png(size=(65, 48)), "stored 65x48, fresh 64x48"),
        (png(shade=40), "mean difference 11 of 255"),
    ):
        assert list(differences(shown(stored), shown(png()))) == [f"image/png 0: {found}"]
    for stored in (png(), png(shade=1), png(mode="RGB")):
        assert list(differences(shown(stored), shown(png()))) == []


def test_where_streams_come_and_an_output_that_was_taken_back_do_not_matter():
    stream = [new_output("stream", name="stdout", text="a\n")]
    text = [new_output("execute_result", {"text/plain": "1"})]
    assert list(differences(stream + text, text + stream)) == []
    taken_back = [new_output("display_data")]
    assert list(differences(text, taken_back + text)) == []
    assert list(differences(text, [])) == [
        "stored outputs are execute_result text/plain, fresh ones none"
    ]


def test_numbers_may_move_as_far_as_the_tag_says_and_words_not_at_all():
    cases = (
        ((), "loss 0.50", "loss 0.51", False),
        (("numbers-within-0.02",), "honest: 0.72", "honest: 0.70", True),
        (("numbers-within-0.02",), "honest: 0.72", "honest: 0.69", False),
        (("numbers-within-0.02",), "honest: 0.72", "leaky: 0.72", False),
        (("hide-input", "numbers-within-5%"), "batch  8:  9.5* 100", "batch  8: 9.9* 104", True),
        (("numbers-within-5%",), "batch  8:  9.5* 100", "batch  8: 9.5 100*", False),
        (("numbers-within-5%",), "100", "106", False),
        (("numbers-within-5%",), "below 0: -100", "below 0: -104", True),
        (("numbers-within-5%",), "apart 1e-06", "apart 1.04e-06", True),
        (("numbers-within-5%",), "[1, 2]", "[1, 2, 2]", False),
        (("numbers-vary",), "ends at -3.5", "ends at 400", True),
        (("numbers-vary",), "ends at -3.5", "ends at nan", False),
    )
    wrong = [
        case
        for *case, allowed in cases
        if Tolerance.of_tags(case[0]).allows(case[1], case[2]) is not allowed
    ]
    assert wrong == []


def test_fresh_outputs_take_the_stored_numbers_where_they_are_close_enough():
    def outputs(number):
        said = f"loss {number}"
        shown = {"text/html": f"<b>{said}</b>", "image/png": str(number)}
        return [
            new_output("stream", name="stdout", text=said),
            new_output("execute_result", shown),
        ]

    stored, fresh = outputs(0.5), outputs(0.52)
    close = with_stored_numbers(stored, fresh, Tolerance(absolute=0.05))
    assert close[0] == stored[0]
    assert close[1].data == stored[1].data | {"image/png": "0.52"}
    assert with_stored_numbers(stored, fresh, Tolerance(absolute=0.01)) == fresh
    assert with_stored_numbers(stored, fresh[:1], Tolerance(absolute=0.05)) == fresh[:1]


def test_a_picture_of_numbers_that_move_may_differ_by_more():
    limits = [Tolerance.of_tags([tag]).picture_limit for tag in ("", "numbers-within-1")]
    assert limits == [PICTURE_LIMIT, MOVED_PICTURE_LIMIT]
    stored, fresh = shown(png()), shown(png(shade=5))  # 1.3 of 255
    assert list(differences(stored, fresh)) != []
    assert list(differences(stored, fresh, picture_limit=MOVED_PICTURE_LIMIT)) == []
    vary = Tolerance.of_tags(["numbers-vary"]).picture_limit
    assert list(differences(stored, shown(png(shade=200)), picture_limit=vary)) == []
    assert vary == math.inf
