"""A view draws what its sliders say, stands as a picture without widgets, and refuses nonsense."""

import matplotlib.pyplot as plt
import pytest

from distlab.errors import InvalidArgument
from distlab.pictures.palette import finish, replica
from distlab.views import view as view_module
from distlab.views.batch_plan import explore_batch_plan
from distlab.views.memory import explore_memory
from distlab.views.ring import explore_ring
from distlab.views.scaling_cost import explore_cost
from distlab.views.view import Choices, View


def draw(replicas: int, batch: int):
    figure, axes = plt.subplots(figsize=(3, 2), layout="constrained")
    axes.bar(range(replicas), batch / replicas, **replica(0).bar())
    return finish(figure, alt=f"{batch} examples on {replicas} replicas")


@pytest.fixture
def shares() -> View:
    choices = {
        "replicas": Choices("replicas", [1, 2, 4], start=2),
        "batch": Choices("global batch", [32, 64], say="{} examples".format),
    }
    return View("Shares of a batch", choices, draw)


def test_it_starts_where_its_choices_say(shares: View):
    assert shares.draw_now().alt == "32 examples on 2 replicas"


def test_a_value_that_is_named_is_drawn(shares: View):
    figure = shares.draw_now(replicas=4, batch=64)
    assert figure.alt == "64 examples on 4 replicas"
    assert [bar.get_height() for bar in figure.axes[0].patches] == [16] * 4


@pytest.mark.parametrize(
    ("chosen", "asked"), [({"replicas": 3}, "replicas=3"), ({"workers": 2}, "workers=2")]
)
def test_a_value_that_no_slider_offers_is_refused(shares: View, chosen: dict, asked: str):
    with pytest.raises(InvalidArgument) as refused:
        shares.draw_now(**chosen)
    assert refused.value.asked == f"draw_now({asked})"
    assert "{'replicas': [1, 2, 4], 'batch': [32, 64]}" in refused.value.found


def test_choices_must_hold_their_start():
    with pytest.raises(InvalidArgument, match="a start that is not among the values"):
        Choices("replicas", [1, 2], start=3)
    with pytest.raises(InvalidArgument, match="no values"):
        Choices("replicas", [])


@pytest.mark.parametrize("answers", [True, False])
def test_what_a_cell_shows(shares: View, monkeypatch: pytest.MonkeyPatch, answers: bool):
    shown = []
    monkeypatch.setattr(view_module, "can_answer", lambda: answers)
    monkeypatch.setattr("IPython.display.display", lambda *one, **_: shown.extend(one))
    shares._ipython_display_()
    (one,) = shown
    if answers:
        assert set(one) == {"application/vnd.jupyter.widget-view+json", "text/plain"}
        assert one["text/plain"] == "Shares of a batch. 32 examples on 2 replicas"
    else:
        assert one.alt == "32 examples on 2 replicas"


def labelled(words: str):
    figure, axes = plt.subplots(figsize=(4, 2), layout="constrained")
    axes.barh([words], [1])
    return finish(figure, alt=words)


def test_axes_stay_where_they_were_while_their_labels_have_room():
    places = view_module._put(labelled("four replicas"), [])
    moved = labelled("one")
    assert view_module._put(moved, places) == places
    assert moved.axes[0].get_position().bounds == places[0].bounds
    wide = labelled("as many replicas as there are")
    (place,) = view_module._put(wide, places)
    assert place.x0 > places[0].x0, "a label that needs more room gets it"
    assert wide.axes[0].yaxis.get_tightbbox().x0 >= 0


@pytest.mark.parametrize(
    "explore", [explore_batch_plan, explore_cost, explore_memory, explore_ring]
)
def test_nothing_that_a_slider_shows_is_cut_off(explore):
    view, places = explore(), []
    for name, choices in view.choices.items():
        for value in (choices.values[0], choices.values[-1]):
            figure = view.draw_now(**{name: value})
            places = view_module._put(figure, places)
            box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
            inside = (box.x0, box.y0, width - box.x1, height - box.y1)
            assert min(inside) > -0.01, f"{name}={value}"
