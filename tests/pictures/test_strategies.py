"""The pictures of strategies put boxes, arrows and words where a reader looks for them."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from distlab.coursework.strategy_card import CARD, OTHERWISE
from distlab.pictures.palette import replica
from distlab.pictures.strategies import Layout, draw_card, draw_layouts

MIRRORED = Layout(
    "mirrored", ("first", "second"), (0, 1), (0, 1), ((1, 0, "gradients"), (0, 1, "their sum"))
)
CENTRAL = Layout("central", ("first", "store", "second"), (0, 2), (1,), ((1, 2, "weights"),))


def words(axes):
    return {text.get_text(): text.get_position() for text in axes.texts if text.get_text()}


def arrows(axes):
    """From where to where each arrow points, from the left edge of the first box."""
    notes = [text for text in axes.texts if getattr(text, "arrow_patch", None)]
    return [(note.xyann, note.xy) for note in notes]


def filled(axes):
    """Left edge and colour of the filled boxes."""
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [
        (box.get_x(), to_hex(box.get_facecolor()))
        for box in boxes
        if to_hex(box.get_facecolor()) != "#ffffff"
    ]


def test_every_device_holds_what_its_layout_says():
    axes = draw_layouts([CENTRAL]).axes[0]
    places = words(axes)
    assert places["first"][0] < places["store"][0] < places["second"][0]
    boxes = sorted(filled(axes))
    left, store, right = (colour for _, colour in boxes)
    assert [left, right] == [replica(0).colour.lower(), replica(1).colour.lower()]
    assert store not in (left, right)
    assert [text.get_text() for text in axes.texts].count("variables") == 1
    assert [text.get_text() for text in axes.texts].count("a replica") == 2


def test_an_arrow_goes_from_the_sender_to_the_receiver():
    (back, there) = arrows(draw_layouts([MIRRORED]).axes[0])
    assert back[0][0] > back[1][0]
    assert there[0][0] < there[1][0]


def test_two_arrows_between_the_same_devices_have_lanes_of_their_own():
    axes = draw_layouts([MIRRORED]).axes[0]
    (back, there) = arrows(axes)
    assert abs(back[0][1] - there[0][1]) > 0.3
    assert words(axes)["gradients"][1] > words(axes)["their sum"][1]


def test_an_arrow_past_a_device_goes_below_it():
    past = Layout("central", ("store", "first", "second"), (1, 2), (0,), ((0, 2, "weights"),))
    axes = draw_layouts([past]).axes[0]
    ((tail, head),) = arrows(axes)
    assert tail[0] == head[0], "its last piece goes up, into the box"
    assert tail[1] < head[1] == -1.5
    assert words(axes)["weights"][1] == tail[1] < -1.5


def test_each_layout_has_a_row_of_its_own():
    axes = draw_layouts([MIRRORED, CENTRAL]).axes[0]
    assert words(axes)["mirrored"][1] > words(axes)["central"][1] + 1


@pytest.fixture
def card():
    return draw_card([("Is it enough?", "default"), ("A TPU?", "tpu")], otherwise="mirrored").axes[
        0
    ]


def test_a_yes_leads_right_and_a_no_down(card):
    directions = [(end[0] - start[0], end[1] - start[1]) for start, end in arrows(card)]
    rights = [move for move in directions if move[0] > 0 and move[1] == 0]
    downs = [move for move in directions if move[0] == 0 and move[1] < 0]
    assert (len(rights), len(downs)) == (2, 2)


def test_questions_are_numbered_beside_their_answers_and_the_last_answer_is_below(card):
    places = words(card)
    assert places["1. Is it enough?"][1] == places["default"][1]
    assert places["2. A TPU?"][1] == places["tpu"][1]
    assert places["default"][0] > places["1. Is it enough?"][0]
    assert places["mirrored"][1] < places["2. A TPU?"][1]


def test_a_long_question_is_broken_into_lines():
    question = "Do the weights and the state of the optimizer not fit on every device, but once?"
    axes = draw_card([(question, "central_storage")], otherwise="mirrored").axes[0]
    (text,) = [text for text in words(axes) if text.startswith("1.")]
    assert max(len(line) for line in text.splitlines()) <= 64
    assert " ".join(text.split()) == f"1. {question}"


def test_each_question_of_the_decision_card_is_inside_its_box():
    figure = draw_card(list(CARD.values()), otherwise=OTHERWISE)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [patch.get_window_extent() for patch in axes.patches if isinstance(patch, Rectangle)]
    for text in axes.texts:
        if text.get_text()[:1].isdigit():
            (x0, y0), (x1, y1) = text.get_window_extent().get_points()
            around = [b for b in boxes if b.x0 < x0 and x1 < b.x1 and b.y0 < y0 and y1 < b.y1]
            assert len(around) == 1, text.get_text()


def test_the_alternative_text_says_where_things_are_and_what_is_sent():
    alt = draw_layouts([MIRRORED, CENTRAL]).alt
    assert "mirrored: replicas on first and second, variables on first and second" in alt
    assert "second sends first gradients; first sends second their sum" in alt
    assert "variables on store; store sends second weights" in alt
