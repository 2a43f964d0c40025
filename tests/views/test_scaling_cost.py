"""The view of lesson 13 draws the model's efficiency, and published points where they belong."""

import pytest

from distlab.measure.published import RESNET_101, VGG_16, hidden_share, model_of
from distlab.views.scaling_cost import LATENCY_SECS, explore_cost


@pytest.fixture(scope="module")
def view():
    return explore_cost()


def test_it_starts_at_the_published_runs_of_vgg_16(view):
    curve, *points = view.draw_now().axes[0].lines
    hidden = hidden_share(RESNET_101, latency_secs=LATENCY_SECS)
    model = model_of(VGG_16, hidden=hidden, latency_secs=LATENCY_SECS)
    assert curve.get_ydata()[9] == pytest.approx(100 * model.efficiency(512, **VGG_16.sizes))
    assert {(point.get_xdata()[0], point.get_ydata()[0]) for point in points} == {
        (512, 68.0),
        (128, 79.0),
    }


def test_a_faster_link_raises_the_curve_and_takes_the_points_away(view):
    before, *_ = view.draw_now().axes[0].lines
    after, *points = view.draw_now(link_gbit=100).axes[0].lines
    assert after.get_ydata()[9] > before.get_ydata()[9] + 10
    assert points == []


def test_more_latency_lowers_the_end_of_the_curve(view):
    before, *_ = view.draw_now(network="ResNet-50").axes[0].lines
    after, *_ = view.draw_now(network="ResNet-50", latency_us=100).axes[0].lines
    assert after.get_ydata()[12] < before.get_ydata()[12] - 20
