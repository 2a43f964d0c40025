"""Where a picture computes something, what it draws is that."""

from itertools import pairwise

import numpy as np
import pytest

from distlab.course.figures.step_costs import draw_scaling, draw_step_parts
from distlab.course.figures.underflow import Lost, lost_in_float16
from distlab.course.lesson_05_input_pipelines.figures import draw_overlap, recorded_splits
from distlab.course.lesson_10_parameter_server.figures import draw_staleness, lanes
from distlab.course.lesson_11_fault_tolerance.figures import draw_resumed
from distlab.course.lesson_16_choosing_a_strategy.figures import FIELD
from distlab.course.measure.cost_model import CostModel
from distlab.course.measure.scaling_runs import MeasuredStep


def ends_of(axes):
    """From where to where each bar goes."""
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]


def lines_of(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


# Recorded times, which must show what the lessons say if they are recorded again


def test_the_recorded_times_show_what_the_lesson_says():
    """Prefetch gains little, each of the others much."""
    slow, prefetch, at_once, cached, all_three = recorded_splits().values()
    assert slow.compute_ms < 0.1 * slow.real_ms
    assert prefetch.real_ms > 0.8 * slow.real_ms
    assert max(at_once.real_ms, cached.real_ms) < 0.2 * slow.real_ms
    assert all_three.real_ms == pytest.approx(cached.real_ms, rel=0.15)
    assert all_three.real_ms == pytest.approx(all_three.compute_ms + all_three.input_ms, rel=0.2)


# Costs and times


@pytest.mark.parametrize(("read", "compute", "in_turns", "ahead"), [(3, 2, 20, 14), (1, 2, 12, 9)])
def test_reading_ahead_ends_when_the_longer_part_ends(read, compute, in_turns, ahead):
    figure = draw_overlap(read=read, compute=compute, steps=4)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"nothing is read ahead: {in_turns} units of time",
        f"one batch is read ahead: {ahead} units of time",
    ]
    for axes in figure.axes:
        bars = ends_of(axes)
        for (_, is_read), (computes, _) in zip(bars[:4], bars[4:], strict=True):
            assert computes >= is_read


def test_parts_of_a_step_are_stacked_and_a_prediction_has_the_measured_step_on_it():
    one = MeasuredStep(1, 64, 400, 0.010, 0.0, 0.002, 0.012, (0.011, 0.014))
    four = MeasuredStep(4, 64, 400, 0.020, 0.008, 0.002, 0.030, (0.029, 0.033))
    ends = ends_of(draw_step_parts([one, four]).axes[0])
    expected = [(0, 10), (0, 20), (10, 10), (20, 28), (10, 12), (28, 30)]
    assert [pytest.approx(pair) for pair in ends] == expected

    model = CostModel(secs_per_example=1e-4, latency_secs=1e-4, bytes_per_sec=1e8)
    cost = model.step(4, per_replica_batch=16, gradient_bytes=400)
    axes = draw_step_parts([four], predicted=[cost]).axes[0]
    assert axes.patches[0].get_width() == pytest.approx(1.6)
    assert list(axes.lines[0].get_xdata()) == [30.0]
    assert axes.texts[0].get_text().strip() == "predicted 2, measured 30 ms"

    sizes = {"per_replica_batch": 10, "gradient_bytes": 1e5}
    scaling = draw_scaling({"small": (model, sizes)}, published=[("small", 512, 0.4)])
    curve, point = scaling.axes[0].lines
    assert (curve.get_xdata()[0], curve.get_xdata()[-1]) == (1, 4096)
    assert curve.get_ydata()[1] == pytest.approx(100 * model.efficiency(2, **sizes))
    assert (list(point.get_xdata()), list(point.get_ydata())) == ([512], [40.0])


# Training and recovery


def test_a_resumed_loss_stands_at_the_step_after_the_stop():
    curves = {"all": [2.0, 1.0], "half": [4.5]}
    lines = lines_of(draw_resumed([5.0, 4.0, 3.0, 2.0, 1.0], curves, stopped_at=3))
    assert list(lines["all"].get_xdata()) == [4, 5]
    assert list(lines["half"].get_xdata()) == [4]


def test_stale_steps_lie_in_the_row_of_the_first_free_worker_and_weights_in_order_of_writing():
    assert lanes([(0, 2, 0, 0.0), (1, 4, 1, 0.0), (3, 6, 1, 0.0), (5, 7, 0, 0.0)]) == [0, 1, 0, 1]
    # The first one is slow: it reads first, and writes last.
    slow = [(0, 7, 3, -0.5), (1, 2, 0, 0.5), (3, 4, 0, 0.25), (5, 6, 0, 0.125)]
    steps, counts, path = draw_staleness({"slow": slow}).axes
    rows = [round(bar.get_y() + bar.get_height() / 2) for bar in steps.patches]
    assert rows == [0, 1, 1, 1]
    assert ends_of(steps) == [(reads, writes + 1) for reads, writes, *_ in slow]
    assert [(bar.get_x() + 0.4, bar.get_height()) for bar in counts.patches] == [(0, 3), (3, 1)]
    assert list(path.lines[1].get_ydata()) == [0.5, 0.25, 0.125, -0.5]


# Numbers in float16


def test_what_is_lost_is_what_float16_rounds_to_zero_or_infinity():
    sizes = 2.0 ** np.array([-30.5, -20.5, 0.5, 20.5])
    assert lost_in_float16(sizes) == Lost(zero=0.25, infinite=0.25)
    assert lost_in_float16(sizes, scale=2.0**-10) == Lost(zero=0.5, infinite=0.0)
    assert lost_in_float16(-sizes, scale=2.0**16) == Lost(zero=0.0, infinite=0.5)
    smallest, largest = 2.0**-25, 65520.0
    assert lost_in_float16([smallest]).zero == 1
    assert lost_in_float16([np.nextafter(smallest, 1)]).zero == 0
    assert lost_in_float16([largest]).infinite == 1
    assert lost_in_float16([np.nextafter(largest, 0)]).infinite == 0
    # Zeros that were there before are not lost.
    assert lost_in_float16([0.0, 0.0, 1e-9, 1.0]).zero == 0.5
    assert lost_in_float16(np.zeros(3)) == Lost(zero=0.0, infinite=0.0)


# Who has what


def test_the_devices_together_have_the_whole_batch_and_the_whole_model():
    def covered(pieces):
        """What pieces between 0 and 1 cover together, each part counted once."""
        pieces = [piece for piece in pieces if piece]
        cuts = sorted({edge for piece in pieces for edge in piece})
        return sum(
            end - start
            for start, end in pairwise(cuts)
            if any(piece[0] <= start and end <= piece[1] for piece in pieces)
        )

    for kind in FIELD:
        assert covered([part.batch for part in kind.parts]) == 1, kind.name
        for layer in range(3):
            assert covered([part.layers[layer] for part in kind.parts]) == 1, kind.name
