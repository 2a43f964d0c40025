"""The view of a batch plan draws what the library returns, and marks replicas without examples."""

import pytest

from distlab.batching import plan_batch
from distlab.pictures.palette import replica
from distlab.views.batch_plan import explore_batch_plan


@pytest.fixture(scope="module")
def view():
    return explore_batch_plan()


def bars(figure):
    """The lengths of the bars of each panel."""
    return [tuple(bar.get_width() for bar in axes.patches) for axes in figure.axes]


def test_it_shows_the_shares_that_the_plan_gives(view):
    figure = view.draw_now(per_replica=16, replicas=3, examples=1000)
    plan = plan_batch(per_replica=16, replicas=3)
    assert bars(figure) == [plan.shares, plan.shares_of(1000 % 48)]
    assert [axes.get_title() for axes in figure.axes] == ["a full batch: 48", "the last batch: 40"]


def test_a_replica_that_stays_empty_is_named(view):
    figure = view.draw_now(source="files")
    assert bars(figure)[1] == (29, 0, 0, 0)
    assert "Nothing is left for replica 1, 2, 3." in figure.alt
    assert [text.get_text() for text in figure.axes[1].texts] == [" 29", *[" empty"] * 3]
    assert "Nothing is left" not in view.draw_now().alt


@pytest.mark.parametrize(
    ("rule", "rate"), [("linear", "0.8"), ("square_root", "0.2"), ("none", "0.05")]
)
def test_the_rate_follows_the_rule(view, rule, rate):
    figure = view.draw_now(rule=rule)
    assert figure.get_suptitle() == f"global batch 128, 12 steps an epoch, learning rate {rate}"


def test_a_data_set_smaller_than_a_batch_is_one_partial_step(view):
    figure = view.draw_now(per_replica=128, replicas=8, examples=512)
    assert bars(figure)[0] == bars(figure)[1] == (64,) * 8
    assert "are 1 steps an epoch" in figure.alt


def test_a_replica_keeps_its_colour(view):
    from matplotlib.colors import to_hex

    (first, *_), _ = [axes.patches for axes in view.draw_now().figure.axes]
    assert to_hex(first.get_facecolor()).upper() == replica(0).colour
