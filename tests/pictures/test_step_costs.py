"""The figures of lesson 13 draw the numbers that they are given, and say them."""

import pytest

from distlab.measure.bandwidth import AllReduceTime
from distlab.measure.cost_model import CostModel
from distlab.measure.scaling_runs import MeasuredStep
from distlab.pictures.palette import category
from distlab.pictures.step_costs import (
    draw_all_reduce_times,
    draw_scaling,
    draw_spread,
    draw_step_parts,
)

ONE = MeasuredStep(1, 64, 400, 0.010, 0.0, 0.002, 0.012, (0.011, 0.014))
FOUR = MeasuredStep(4, 64, 400, 0.020, 0.008, 0.002, 0.030, (0.029, 0.033))
MODEL = CostModel(secs_per_example=1e-4, latency_secs=1e-4, bytes_per_sec=1e8)
ROWS = [AllReduceTime(2, size, secs) for size, secs in ((4, 2e-4), (2**20, 1e-2))]


def test_parts_are_stacked_and_the_sum_stands_behind_them():
    axes = draw_step_parts([ONE, FOUR]).axes[0]
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    expected = [(0, 10), (0, 20), (10, 10), (20, 28), (10, 12), (28, 30)]
    assert [pytest.approx(pair) for pair in ends] == expected
    assert [text.get_text().strip() for text in axes.texts] == ["12 ms", "30 ms"]
    assert axes.patches[0].get_hatch() != category(1).hatch


def test_the_words_of_the_parts_have_their_numbers():
    alt = draw_step_parts([ONE, FOUR]).alt
    assert "1 replica, 64 examples each: compute 10 ms, communication 0 ms, input 2 ms." in alt
    assert "4 replicas, 16 examples each: compute 20 ms, communication 8 ms" in alt


def test_a_prediction_is_drawn_with_what_was_measured_on_it():
    cost = MODEL.step(4, per_replica_batch=16, gradient_bytes=400)
    figure = draw_step_parts([FOUR], predicted=[cost])
    axes = figure.axes[0]
    assert axes.patches[0].get_width() == pytest.approx(1.6)
    assert list(axes.lines[0].get_xdata()) == [30.0]
    assert axes.texts[0].get_text().strip() == "predicted 2, measured 30 ms"
    assert "as predicted. 4 replicas, 16 examples each: compute 2 ms" in figure.alt
    assert "measured 30 ms." in figure.alt


def test_an_all_reduce_is_drawn_as_points_and_the_model_as_a_curve():
    figure = draw_all_reduce_times(ROWS[:1], model=MODEL, unseen=ROWS[1:])
    fitted, unseen, curve = figure.axes[0].lines
    assert (list(fitted.get_xdata()), list(unseen.get_xdata())) == ([4], [2**20])
    assert (fitted.get_fillstyle(), unseen.get_fillstyle()) == ("full", "none")
    assert list(curve.get_ydata()) == [
        1e6 * MODEL.all_reduce_secs(2, row.size_bytes) for row in ROWS
    ]
    assert "2 replicas: 200 µs for 4 bytes, 10000 µs for 1048576 bytes." in figure.alt


def test_scaling_reaches_4096_replicas_and_has_the_published_points():
    sizes = {"per_replica_batch": 10, "gradient_bytes": 1e5}
    figure = draw_scaling({"small": (MODEL, sizes)}, published=[("small", 512, 0.4)])
    curve, point = figure.axes[0].lines
    assert (curve.get_xdata()[0], curve.get_xdata()[-1]) == (1, 4096)
    assert curve.get_ydata()[1] == pytest.approx(100 * MODEL.efficiency(2, **sizes))
    assert (list(point.get_xdata()), list(point.get_ydata())) == ([512], [40.0])
    assert "Published for small: 40 % on 512." in figure.alt


def test_spreads_are_bands_with_the_efficiency_beside_them():
    figure = draw_spread({"strong": [ONE, FOUR]}, {"strong": [1.0, 0.1]})
    band, median, *_ = figure.axes[0].lines
    assert list(band.get_xdata()) == pytest.approx([11, 14])
    assert list(median.get_xdata()) == pytest.approx([12])
    beside = figure.axes[0].texts[1].get_text().strip()
    assert beside == "efficiency 10 %, middle half 29.00 to 33.00 ms"
    assert "middle half 29.00 to 33.00 ms, efficiency 10 %." in figure.alt
