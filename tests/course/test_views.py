"""A view draws what the library returns for its sliders, and refuses what no slider offers."""

import asyncio
import itertools
import json
import math

import matplotlib.pyplot as plt
import pytest

from distlab.batching import plan_batch
from distlab.course import view as view_module
from distlab.course.lesson_02_batch_scaling.view import explore_batch_plan
from distlab.course.lesson_12_ring_all_reduce.ring_schedule import all_reduce_steps, holdings
from distlab.course.lesson_12_ring_all_reduce.view import explore_ring
from distlab.course.lesson_13_step_cost.view import explore_flops
from distlab.course.lesson_14_scaling.published import TOKENS_PER_SEC
from distlab.course.lesson_14_scaling.view import explore_cost
from distlab.course.lesson_16_shard_everything.view import explore_memory
from distlab.course.lesson_17_pipelines.view import explore_pipeline
from distlab.course.palette import GROUND, finish, replica
from distlab.course.view import Choices, View
from distlab.errors import InvalidArgument

EXPLORED = [
    explore_batch_plan,
    explore_memory,
    explore_ring,
    explore_cost,
    explore_flops,
    explore_pipeline,
]


@pytest.fixture
def shares():
    def numbers(replicas, batch):
        return {"shares": [batch / replicas] * replicas}

    def draw(numbers, *, replicas, batch):
        figure, axes = plt.subplots(figsize=(3, 2), layout="constrained")
        axes.bar(range(replicas), numbers["shares"], **replica(0).bar())
        return finish(figure, alt=f"{batch} examples on {replicas} replicas")

    choices = {
        "replicas": Choices("replicas", [1, 2, 4], start=2),
        "batch": Choices("global batch", [32, 64], say="{} examples".format),
    }
    return View("Shares of a batch", choices, numbers, draw)


def test_a_view_draws_what_its_sliders_say_and_refuses_the_rest(shares):
    assert shares.draw_now().alt == "32 examples on 2 replicas"
    figure = shares.draw_now(replicas=4, batch=64)
    assert figure.alt == "64 examples on 4 replicas"
    assert [bar.get_height() for bar in figure.axes[0].patches] == [16] * 4
    for chosen in ({"replicas": 3}, {"workers": 2}):
        with pytest.raises(InvalidArgument) as refused:
            shares.draw_now(**chosen)
        ((name, value),) = chosen.items()
        assert refused.value.asked == f"draw_now({name}={value})"
        assert "{'replicas': [1, 2, 4], 'batch': [32, 64]}" in refused.value.found
    with pytest.raises(InvalidArgument, match="a start that is not among the values"):
        Choices("replicas", [1, 2], start=3)
    with pytest.raises(InvalidArgument, match="no values"):
        Choices("replicas", [])


@pytest.mark.parametrize("answers", [True, False])
def test_a_cell_shows_sliders_where_they_answer_and_else_a_picture(shares, monkeypatch, answers):
    shown = []
    monkeypatch.setattr(view_module, "can_answer", lambda: answers)
    monkeypatch.setattr("IPython.display.display", lambda *given, **_: shown.extend(given))
    shares._ipython_display_()
    (output,) = shown
    if answers:
        assert set(output) == {"application/vnd.jupyter.widget-view+json", "text/plain"}
        assert output["text/plain"] == "Shares of a batch. 32 examples on 2 replicas"
    else:
        assert output.alt == "32 examples on 2 replicas"


def test_the_next_moves_are_drawn_while_the_reader_looks_and_no_step_is_after_the_last():
    async def look():
        moved = view_module._Moved(explore_ring())
        await moved._ahead
        for name, value in (("step", 2), ("ranks", 8), ("algorithm", "naive")):
            assert tuple((moved._chosen | {name: value}).values()) in moved._frames
        moved._controls["step"].value = 6
        moved._controls["ranks"].value = 2
        assert moved._chosen == {"algorithm": "ring", "ranks": 2, "step": 2}
        assert len(moved._controls["step"].options) == 3
        await moved._ahead

    asyncio.run(look())


def test_nothing_that_a_slider_shows_is_cut_off():
    for explore in EXPLORED:
        view, places = explore(), []
        for end in (0, -1):  # all sliders on their left, and on their right
            choices = {name: choices.values[end] for name, choices in view.choices.items()}
            choices = {name: view.offered(name, choices)[end] for name in choices}
            figure = view.draw_now(**choices)
            places = view_module._put(figure, places)
            box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
            inside = (box.x0, box.y0, width - box.x1, height - box.y1)
            assert min(inside) > -0.01, f"{explore.__name__} {choices}"


@pytest.mark.parametrize("explore", EXPLORED)
def test_a_page_without_a_kernel_has_the_numbers_that_each_position_draws(explore):
    view = explore()
    page = json.loads(json.dumps(view.positions()))
    values = [control["values"] for control in page["controls"]]
    places = list(itertools.product(*map(list, values)))
    assert len(places) == len(page["positions"])
    start = tuple(control["values"][control["start"]] for control in page["controls"])
    for place in [start, *places[:: len(places) // 5]]:
        chosen = dict(zip(view.choices, place, strict=True))
        numbers = page["positions"][places.index(place)]
        if numbers is None:
            with pytest.raises(InvalidArgument):
                view.draw_now(**chosen)
        else:
            assert view._draw(numbers, **chosen).alt == view.draw_now(**chosen).alt


def bars(figure):
    """The lengths of the bars of each panel."""
    return [tuple(bar.get_width() for bar in axes.patches) for axes in figure.axes]


def test_a_batch_plan_shows_the_shares_that_the_plan_gives_and_names_empty_replicas():
    view = explore_batch_plan()
    figure = view.draw_now(per_replica=16, replicas=3, examples=1000)
    plan = plan_batch(per_replica=16, replicas=3)
    assert bars(figure) == [plan.shares, plan.shares_of(1000 % 48)]
    figure = view.draw_now(source="files")
    assert bars(figure)[1] == (29, 0, 0, 0)
    assert "Nothing is left for replica 1, 2, 3." in figure.alt
    for rule, rate in {"linear": "0.8", "square_root": "0.2", "none": "0.05"}.items():
        title = view.draw_now(rule=rule).get_suptitle()
        assert title == f"global batch 128, 12 steps an epoch, learning rate {rate}"


def test_an_all_reduce_is_drawn_step_by_step_as_the_schedule_says():
    def counts(figure):
        return [int(text.get_text()) for text in figure.axes[1].texts]

    view = explore_ring()
    figure = view.draw_now()
    assert figure.get_suptitle() == "ring, step 1 of 6"
    assert "rank 0 sends chunk 0 to rank 1" in figure.alt
    for algorithm, ranks, step in [("ring", 4, 3), ("tree", 8, 4), ("naive", 2, 1)]:
        figure = view.draw_now(algorithm=algorithm, ranks=ranks, step=step)
        steps = all_reduce_steps(algorithm, ranks)
        assert counts(figure) == holdings(steps, ranks)[step].sum(axis=-1).ravel().tolist()
        full = [text for text in figure.axes[1].texts if text.get_text() == str(ranks)]
        assert full == [text for text in figure.axes[1].texts if text.get_color() == GROUND]
        arrows = [text for text in figure.axes[0].texts if getattr(text, "arrow_patch", None)]
        assert len(arrows) == len(figure.axes[1].patches) == len(steps[step - 1])
    assert "16 of 16 chunks are finished." in view.draw_now(step=6).alt
    with pytest.raises(InvalidArgument, match=r"'step': \[0, 1, 2, 3, 4, 5, 6\]"):
        view.draw_now(step=7)


def test_efficiency_starts_at_the_published_run_and_follows_what_is_sent():
    view = explore_cost()
    curve, *points = view.draw_now().axes[0].lines
    drawn = {point.get_xdata()[0]: point.get_ydata()[0] for point in points}
    assert list(drawn) == list(TOKENS_PER_SEC)
    for gpus, percent in drawn.items():  # the model is the lesson's
        assert curve.get_ydata()[round(math.log2(gpus))] == pytest.approx(percent, rel=0.06)
    at_256 = curve.get_ydata()[8]
    half, doubled, large = (
        view.draw_now(**chosen).axes[0].lines
        for chosen in ({"gradient_bits": 16}, {"sequences": 512}, {"billions": 8.86})
    )
    assert len(half) == 1 and half[0].get_ydata()[8] > at_256 + 15
    assert half[0].get_ydata()[8] == pytest.approx(doubled[0].get_ydata()[8])
    assert large[0].get_ydata()[8] == pytest.approx(at_256)
    hidden = view.draw_now(hidden_percent=100).axes[0].lines[0].get_ydata()
    assert hidden[5] == pytest.approx(100) and at_256 + 10 < hidden[8] < 60
