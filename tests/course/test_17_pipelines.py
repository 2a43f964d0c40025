"""Lesson 17: the engine of pipelines, its schedules, and the checks that judge a learner's."""

import itertools

import keras
import numpy as np
import pytest

from distlab.course.checks.help_steps import with_help
from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from distlab.course.lesson_17_pipelines.engine import Pipeline
from distlab.course.lesson_17_pipelines.figures import show_lanes
from distlab.course.lesson_17_pipelines.schedules import (
    gpipe,
    interleaved,
    one_at_a_time,
    one_f_one_b,
    zero_bubble,
)
from distlab.course.lesson_17_pipelines.timetable import Work, play
from distlab.errors import InvalidArgument
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
)

STEM = "17_pipelines"
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = checks_of(STEM)

SIZES = list(itertools.product((1, 2, 3, 4), (1, 2, 4, 8)))


# --- the timetable


def test_ticks_idle_shares_and_what_is_kept_are_those_of_the_formulas():
    for p, m in SIZES:
        table = play(gpipe(p, m), m)
        assert table.ticks == 3 * (m + p - 1)
        assert table.idle_share == pytest.approx((p - 1) / (m + p - 1))
        assert table.kept == [m] * p
        table = play(one_f_one_b(p, m), m)
        assert table.ticks == 3 * (m + p - 1)
        assert table.kept == [min(m, p - device) for device in range(p)]
        assert play(one_at_a_time(p, m), m).ticks == 3 * m * p
    for p, m in [(p, m) for p, m in SIZES if m % p == 0]:
        assert play(interleaved(p, m), m).ticks == pytest.approx(3 * m + 3 * (p - 1) / 2)
        if m >= p:
            table = play(zero_bubble(p, m), m)
            assert table.ticks == 3 * m + p - 1 == play(one_f_one_b(p, m), m).ticks - 2 * (p - 1)
            assert max(table.kept) == min(p, m)


def test_each_device_does_each_item_once_and_never_before_its_input_is_there():
    for make, p, m in itertools.product(
        (gpipe, one_f_one_b, interleaved, zero_bubble), (2, 4), (8,)
    ):
        done = []
        table = play(make(p, m), m, done.append)
        assert len(done) == len(set(done)) == sum(map(len, make(p, m)))
        for kind, stage, k in done:
            place = done.index(Work(kind, stage, k))
            before = {"F": ("F", stage - 1, k), "B": ("B", stage + 1, k), "W": ("B", stage, k)}
            if before[kind] in done:
                assert done.index(before[kind]) < place
        for lane in table.lanes:
            assert all(a.end <= b.start for a, b in itertools.pairwise(lane))


def test_par_is_what_the_last_device_leaves_no_choice():
    """Its first input needs p - 1 ticks, its work 3 m, and its last gradient 2 for each device."""
    for p, m in SIZES:
        assert play(one_f_one_b(p, m), m).ticks == (p - 1) + 3 * m + 2 * (p - 1)
        assert play(gpipe_in_order(p, m), m).ticks == play(gpipe(p, m), m).ticks


def test_slack_in_the_warm_up_hides_the_messages():
    for m in (8, 32):
        gpipe_ticks = play(gpipe(4, m), m, message_ticks=0.5).ticks
        assert gpipe_ticks == 3 * (m + 3) + 6 * 0.5  # three messages in each direction
        assert play(one_f_one_b(4, m), m, message_ticks=0.5).ticks > gpipe_ticks + m / 2
        slack = play(one_f_one_b(4, m, per_device=2), m, message_ticks=0.5)
        assert (slack.ticks, slack.kept) == (gpipe_ticks, [7, 5, 3, 1])
    short, long = (
        [play(interleaved(4, 8, per_device=n), 8, message_ticks=ticks) for ticks in (0, 0.25)]
        for n in (1, 2)
    )
    assert [table.ticks for table in short] == [28.5, 36]
    assert [table.ticks for table in long] == [28.5, 32]
    assert (max(short[0].kept), max(long[0].kept)) == (4, 5.5)


def test_messages_take_from_interleaved_what_it_saves_and_zero_bubble_has_work_in_hand():
    def ticks(order, message):
        return play(order, 8, message_ticks=message).ticks

    messages = (0, 0.25, 0.5)
    with_slack = [ticks(one_f_one_b(4, 8, per_device=2), message) for message in messages]
    saved = [33 - 28.5, 34.5 - 32, 36 - 35.5]
    assert [
        slack - ticks(interleaved(4, 8), message)
        for slack, message in zip(with_slack, messages, strict=True)
    ] == saved
    late = play(zero_bubble(4, 8), 8, message_ticks=0.5)
    assert (late.ticks, max(late.kept)) == (33, 4)
    for m in (8, 16, 32):  # on eight devices, as in torchtitan's table
        kept = max(play(interleaved(8, m), m).kept)
        assert kept >= max(play(one_f_one_b(8, m), m).kept)


def test_devices_that_wait_forever_say_for_what():
    table = play(one_f_one_b(2, 4, longer=-1), 4)
    assert table.waits == {0: "B0", 1: "B0"}
    assert table.why == (
        "device 0 waits at B0 for device 1's B0; "
        "device 1 waits at B0 for its own F0, which is later in its list"
    )
    assert [[span.item for span in lane] for lane in table.lanes] == [["F0"], []]


def test_a_schedule_that_is_none_is_refused():
    good = ["F0", "B0"]
    cases = {
        "pass a list of items for each device": (None, [], ["F0 B0"], [good, "F0"]),
        "write F, B or W and a micro-batch, such as 'F0'": ([["F0", "C0"]], [[0, 1]], [["f0"]]),
        "number the micro-batches from 0 to 0": ([["F0", "B1"]],),
        "let each device do F and B of each micro-batch once": (
            [good, ["F0"]],
            [good, []],
            [good, [*good, "B0"]],
            [["F0.0", "F0.1", "B0.0"], good],
        ),
        "let each device do F and B and W of each micro-batch once": ([["F0", "B0", "W0"], good],),
    }
    for do, schedules in cases.items():
        for schedule in schedules:
            with pytest.raises(InvalidArgument) as refused:
                play(schedule, 1)
            assert do in refused.value.do, schedule
    with pytest.raises(InvalidArgument) as refused:
        play([good, ["F0"]], 1)
    assert refused.value.asked == "a schedule for 2 devices and 1 micro-batches"
    assert refused.value.found == "device 1 never does B0"
    many = [f"F{k}" for k in range(9)]
    with pytest.raises(InvalidArgument, match="never does B0, B1, B2, B3, B4, B5 and 3 more"):
        play([many], 9)
    with pytest.raises(InvalidArgument, match="device 0 does twice or more F0"):
        play([["F0", *good]], 1)


# --- the engine


@pytest.fixture(scope="module")
def pipeline():
    keras.utils.set_random_seed(1)
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(24, 6)).astype("float32"), draw.integers(0, 3, 24)
    layers = [keras.layers.Dense(5, "tanh") for _ in range(8)]
    keras.Sequential(layers)(x)
    measure = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def loss(outputs, y):
        return measure(y, outputs) / 24

    def make(devices, micro_batches):
        return Pipeline(layers, x, y, loss, devices=devices, micro_batches=micro_batches)

    return make


def test_every_schedule_gives_the_gradients_of_one_device(pipeline):
    for make in (gpipe, one_f_one_b, interleaved, zero_bubble, one_at_a_time):
        for p, m in ((4, 4), (2, 6)):
            pipe = pipeline(p, m)
            run = pipe.run(make(p, m))
            assert len(run.gradients) == 16
            assert pipe.difference(run) < 1e-6, (make.__name__, p, m)
    run = pipe.run(one_at_a_time(2, 6))
    run.gradients[3] += 1.0
    assert pipe.difference(run) == pytest.approx(1)


def test_what_does_not_fit_is_refused(pipeline):
    with pytest.raises(InvalidArgument, match="device 1 waits at B0 for its own F0"):
        pipeline(2, 4).run(one_f_one_b(2, 4, longer=-1))
    with pytest.raises(InvalidArgument, match="pass one list for each device"):
        pipeline(4, 4).run(gpipe(2, 4))
    with pytest.raises(InvalidArgument, match="cut 8 layers into 3 stages"):
        pipeline(3, 4).run(gpipe(3, 4))
    with pytest.raises(InvalidArgument, match="24 examples in 5 micro-batches"):
        pipeline(4, 5)
    with pytest.raises(InvalidArgument, match="pass 1 to 4 devices"):
        pipeline(5, 4)


# --- the checks


def gpipe_in_order(devices, micro_batches):
    return [[f"{kind}{k}" for kind in "FB" for k in range(micro_batches)]] * devices


def one_f_one_b_without_min(devices, micro_batches):
    """A warm-up that doesn't look at how many micro-batches there are."""
    schedule = []
    for place in reversed(range(devices)):
        items = [f"F{k}" for k in range(place + 1)]
        for k in range(micro_batches):
            items.append(f"B{k}")
            if k + place + 1 < micro_batches:
                items.append(f"F{k + place + 1}")
        schedule.append(items)
    return schedule


def one_f_one_b_forward_last(devices, micro_batches):
    """Megatron-LM's form: a warm-up that is one shorter, then one forward and one backward."""
    schedule = []
    for place in reversed(range(devices)):
        forward = [f"F{k}" for k in range(micro_batches)]
        backward = [f"B{k}" for k in range(micro_batches)]
        items, forward = forward[:place], forward[place:]
        for item in forward:
            items += [item, backward.pop(0)]
        schedule.append((*items, *backward))
    return schedule


def interleaved_by_greed(devices, micro_batches):
    """Each device takes the next backward item if its turn has come, else a forward one."""
    groups = [range(first, first + devices) for first in range(0, micro_batches, devices)]
    forward = [f"F{k}.{piece}" for group in groups for piece in (0, 1) for k in group]
    backward = [item.replace("F", "B")[:-1] + str(1 - int(item[-1])) for item in forward]
    schedule = []
    for device in range(devices):
        left, back, items, ahead = forward[:], backward[:], [], 3 * devices - 2 * device - 1
        while left or back:
            waiting = len(forward) - len(left) - (len(backward) - len(back))
            items.append((left if left and waiting < ahead else back).pop(0))
        schedule.append(items)
    return schedule


def zero_bubble_newest_first(devices, micro_batches):
    """The weights' half that comes next is that of the newest micro-batch."""
    schedule = []
    for device in range(devices):
        late, forward = [], [f"F{k}" for k in range(micro_batches)]
        items, forward = forward[: devices - device], forward[devices - device :]
        for k in range(micro_batches):
            items.append(f"B{k}")
            late.append(f"W{k}")
            if len(late) > device:
                items.append(late.pop())
            if forward:
                items.append(forward.pop(0))
        schedule.append([*items, *late])
    return schedule


def test_schedules_are_judged():
    assert_right_answers_pass(GPIPE, gpipe_in_order, one_f_one_b)
    assert_right_answers_pass(ONE_F_ONE_B, one_f_one_b_forward_last)
    assert_right_answers_pass(INTERLEAVED, interleaved_by_greed)
    assert_right_answers_pass(ZERO_BUBBLE, zero_bubble_newest_first)


def test_a_hang_is_told_apart_from_a_slow_order_and_from_one_that_keeps_too_much():
    wrong = {
        "warm_up_one_short": lambda p, m: one_f_one_b(p, m, longer=-1),
        "same_warm_up_on_all": lambda p, m: one_f_one_b(p, m, like_device=0),
        "one_at_a_time": one_at_a_time,
        "warm_up_one_long": lambda p, m: one_f_one_b(p, m, longer=1),
        "warm_up_too_long": lambda p, m: one_f_one_b(p, m, per_device=2, longer=1),
        "gpipe_again": gpipe_in_order,
        "cool_down_forgotten": lambda p, m: [items[:-1] for items in one_f_one_b(p, m)],
    }
    earned = {"warm_up_one_short": 0, "same_warm_up_on_all": 1, "one_at_a_time": 1}
    earned |= {
        "warm_up_too_long": 3,
        "warm_up_one_long": 3,
        "gpipe_again": 3,
        "cool_down_forgotten": 0,
    }
    assert_mistakes_are_caught(ONE_F_ONE_B, wrong, earned=earned)
    few = {"warm_up_unlimited": one_f_one_b_without_min}
    assert_mistakes_are_caught(ONE_F_ONE_B, few, earned=0, seeds=(1, 2, 3))
    said = "device 3 waits at B0 for its own F0, which is later in its list"
    assert_feedback_says(ONE_F_ONE_B, {said: wrong["warm_up_one_short"]})
    assert_feedback_says(ONE_F_ONE_B, {"69; par is 33": wrong["same_warm_up_on_all"]}, earned=1)
    assert_feedback_says(ONE_F_ONE_B, {"5; par is 4": wrong["warm_up_one_long"]}, earned=3)
    assert_feedback_says(INTERLEAVED, {"33; par is 28.5": one_f_one_b}, earned=1)


def test_what_is_no_schedule_is_said():
    said = {
        "yours returned '1 items for 4 devices'": lambda p, m: gpipe(1, m),
        "yours returned 'a str'": lambda p, m: "F0 B0",
        "yours returned nothing: is there a `return`?": lambda p, m: None,
    }
    assert_feedback_says(GPIPE, said)
    for wrong in said.values():
        assert first_help(GPIPE, wrong).question == ""
    said = {
        "device 0 never does B0": lambda p, m: [[f"F{k}" for k in range(m)]] * p,
        "device 0 does twice or more B0": lambda p, m: [[*items, "B0"] for items in gpipe(p, m)],
        "'forward 0' in the list of device 0": lambda p, m: [["forward 0"]] * p,
        "device 0 never does W0": lambda p, m: [[*items, "W1"] for items in gpipe(p, m)],
        "('F', 0) in the list of device 0": lambda p, m: [[("F", 0)]] * p,
    }
    assert_feedback_says(GPIPE, said)
    for wrong in said.values():
        assert first_help(GPIPE, wrong).question == ""
    hangs = first_help(GPIPE, lambda p, m: [gpipe(p, m)[0][::-1], *gpipe(p, m)[1:]])
    assert hangs.question == GPIPE.question  # it is written as it should be


def first_help(check, answer):
    """The report that a first try gets."""
    return with_help(check, run_check(check, answer, seeds=(1,)), tries=1)


def test_lanes_are_shown_or_what_is_wrong_with_the_schedule(capsys):
    for wrong in (None, ["F0", "B0"], [[("F", 0)]], [["F0"]]):
        show_lanes("yours", wrong, 1)
        assert capsys.readouterr().out.startswith("nothing to draw")
    show_lanes("yours", [["F0", "B0"]], 1)
    assert "nothing to draw" not in capsys.readouterr().out
