"""Checks of lesson 17: four schedules of a pipeline, run with real gradients and held to par."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Form, Inputs, Plain, Then
from distlab.course.checks.criteria import Compared, Gate
from distlab.course.checks.matchers import expect_true
from distlab.course.checks.verdict import Criterion
from distlab.course.lesson_17_pipelines.schedules import (
    Schedule,
    gpipe,
    interleaved,
    one_at_a_time,
    one_f_one_b,
    zero_bubble,
)
from distlab.course.lesson_17_pipelines.timetable import play
from distlab.errors import InvalidArgument

# Devices and micro-batches; the first draw has the second pair.
_SIZES = ((4, 12), (4, 8), (3, 9), (2, 6))
_ALSO_FEW = ((3, 9), (4, 8), (4, 2), (2, 6))


def _inputs(seed: int, sizes: Sequence[tuple[int, int]] = _SIZES) -> Inputs:
    devices, micro_batches = sizes[seed % len(sizes)]
    draw = np.random.default_rng(seed)
    return {
        "devices": devices,
        "micro_batches": micro_batches,
        "x": draw.normal(size=(2 * micro_batches, 4)).astype("float32"),
        "y": draw.normal(size=(2 * micro_batches, 4)).astype("float32"),
    }


def _played(schedule: Any, given: Inputs) -> Plain:
    """The run of a schedule without a model; "form" says what it is if it is no schedule."""
    if not (
        isinstance(schedule, list | tuple)
        and len(schedule) == given["devices"]
        and all(isinstance(items, list | tuple) for items in schedule)
    ):
        form = None if schedule is None else f"a {type(schedule).__name__}"
        if isinstance(schedule, list | tuple):
            form = f"{len(schedule)} items for {given['devices']} devices"
        return {"form": form}
    never = {"form": "", "items": "", "waits": "", "difference": 0.0, "ticks": 0.0, "kept": [0.0]}
    try:
        table = play(schedule, given["micro_batches"])
    except InvalidArgument as error:
        return {**never, "items": error.parts["found"]}
    if table.waits:
        return {**never, "waits": table.why}
    return {**never, "ticks": table.ticks, "kept": table.kept}


def _call(make: Callable[..., Any], inputs: Inputs) -> Plain:
    schedule = make(inputs["devices"], inputs["micro_batches"])
    outputs = _played(schedule, inputs)
    if outputs.get("ticks"):
        outputs["difference"] = _difference(schedule, inputs)
    return outputs


def _difference(schedule: Schedule, given: Inputs) -> float:
    """Runs a schedule, and returns how far its gradients are from a single device's."""
    import keras
    import tensorflow as tf

    from distlab.course.lesson_17_pipelines.engine import MOST_DEVICES, Pipeline
    from distlab.devices import split_devices

    split_devices(MOST_DEVICES)
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4, "tanh") for _ in range(2 * given["devices"])]
    keras.Sequential(layers)(given["x"])
    pipeline = Pipeline(
        layers,
        given["x"],
        given["y"],
        lambda outputs, y: tf.reduce_sum((outputs - y) ** 2) / len(given["x"]),
        devices=given["devices"],
        micro_batches=given["micro_batches"],
    )
    return pipeline.difference(pipeline.run(schedule))


def _reference(schedule: Callable[..., Schedule]) -> Callable[..., Plain]:
    """A reference whose changes are another schedule, or items that are changed in this one."""

    def reference(
        given: Inputs,
        *,
        instead: Callable[[int, int], Schedule] = schedule,
        change: Callable[[list[str]], list[str]] = lambda items: items,
    ) -> Plain:
        made = instead(given["devices"], given["micro_batches"])
        return _played([change(items) for items in made], given)

    return reference


@dataclass(frozen=True)
class _Silent(Compared):
    """The complaints of the engine; passed if there are none."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        return expect_true(self.label, yours == "", message=str(yours), weight=self.points)


class _Written(Form):
    """Items as the engine reads them; otherwise the engine's complaint."""

    def __init__(self, key: str, label: str) -> None:
        Gate.__init__(self, _Silent(key, label))


@dataclass(frozen=True)
class _AtMost(Compared):
    """A number, or the largest of a list, that must not be above the reference's."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        most, par = np.max(yours), np.max(expected)
        message = f"{most:g}; par is {par:g}"
        return expect_true(self.label, most <= par + 1e-9, message=message, weight=self.points)


_RUNS = (
    Form(
        "it returns a list with a list of items for each device",
        lambda given, out: out["form"] == "",
        key="form",
    ),
    _Written("items", "each device has each of its items once"),
    Gate(_Silent("waits", "every device comes to the end of its list")),
    Close("difference", "the gradients: difference to a single device's", atol=1e-5),
    Then(_AtMost("ticks", "at par: ticks until the last device is finished", points=2)),
)
_KEPT = Then(_AtMost("kept", "at par: micro-batches that a device keeps at a time"))
_FORGOTTEN = (
    "Some of your items are missing: the devices end before every micro-batch has come back. The "
    "engine would leave their gradients out of the sum. How many micro-batches are still under "
    "way when the last one has gone forward?"
)
_ONE_AT_A_TIME = (
    "Your device 0 sends a micro-batch and waits until it has come back, before it sends the next "
    "one. So one device works at a time, and all others are idle. What could device 0 do while it "
    "waits?"
)


def _cut_off(items: Sequence[str], *, more: int) -> list[str]:
    """Without what comes behind the last forward pass, but for some items."""
    last = max(place for place, item in enumerate(items) if item.startswith("F"))
    return list(items[: last + 1 + more])


# --- gpipe: all forward, then all backward


GPIPE = Check(
    name="gpipe",
    title="GPipe: all forward, then all backward",
    question="What can device 0 do while the first micro-batch is on devices 1 to 3?",
    direction="Write down the list of one device for three micro-batches, and play it for all.",
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference(gpipe),
    criteria=_RUNS,
    hint='One list is enough for all devices: "F0" to "F" and the last number, then the same '
    "numbers with a B. Return it once for each device.",
    revisit="A list for each device",
    mistakes=(
        Fault("one_at_a_time", sees=("ticks", "kept"), instead=one_at_a_time).feedback(
            _ONE_AT_A_TIME
        ),
        Fault(
            "backward_first",
            change=lambda items: [item for kind in "BF" for item in items if item[0] == kind],
        ).feedback(
            "Your lists begin with a backward pass, and nothing has gone forward yet. Every device "
            "waits, and none will ever move. From which result does B0 of the last device start?"
        ),
        Fault("backward_forgotten", change=lambda items: _cut_off(items, more=0))
        .or_with(change=lambda items: items[:-1])
        .feedback(_FORGOTTEN),
        Fault(
            "numbered_from_one",
            change=lambda items: [f"{item[0]}{int(item[1:]) + 1}" for item in items],
        ).feedback(
            "You numbered the micro-batches from 1, so the first one never starts and the last one "
            "doesn't exist. With which number does `range` begin?"
        ),
    ),
)


# --- one_f_one_b: one forward, one backward in turn


def _reversed_warm_up(devices: int, micro_batches: int) -> Schedule:
    return one_f_one_b(devices, micro_batches)[::-1]


def _twice_the_warm_up(devices: int, micro_batches: int) -> Schedule:
    return one_f_one_b(devices, micro_batches, per_device=2, longer=1)


def _unlimited_warm_up(devices: int, micro_batches: int) -> Schedule:
    """1F1B that asks for `devices - d` forward passes, even if there are fewer micro-batches."""
    whole = one_f_one_b(devices, max(devices, micro_batches))
    return [
        [item for k, item in enumerate(items) if k < devices - d or int(item[1:]) < micro_batches]
        for d, items in enumerate(whole)
    ]


ONE_F_ONE_B = Check(
    name="one_f_one_b",
    title="1F1B: keep no more than the pipeline is long",
    question="How many micro-batches must device d send before the first one comes back to it?",
    direction="Draw four devices and follow micro-batch 0 to the last one and back. In how many of "
    "these ticks can device 0, 1, 2 and 3 begin a new one?",
    cost=Cost.TENSORFLOW,
    inputs=lambda seed: _inputs(seed, _ALSO_FEW),
    call=_call,
    reference=_reference(one_f_one_b),
    criteria=(*_RUNS, _KEPT),
    hint="Device d first has `devices - d` forward items, or all if there are fewer. Then B0 and "
    "the next F, B1 and the next F, and so on. When no F is left, only the B are.",
    revisit="One forward, one backward",
    mistakes=(
        Fault(
            "warm_up_one_short",
            instead=lambda p, m: one_f_one_b(p, m, longer=-1),
        ).feedback(
            "Your warm-ups are one micro-batch short, so the last device begins with a backward "
            "pass of a micro-batch that it has not taken forward. It waits for itself, and all "
            "others wait for it. What must the last device do before its first B?"
        ),
        Fault(
            "same_warm_up_on_all",
            sees=("ticks", "kept"),
            instead=lambda p, m: one_f_one_b(p, m, like_device=0),
        ).feedback(
            "All your devices have the warm-up of device 0. The last device then waits for more "
            "micro-batches before it sends the first one back, although it could do so at once, "
            "and in every round the devices wait for each other again. How far is each device "
            "from the end of the pipeline?"
        ),
        Fault("one_at_a_time", sees=("ticks", "kept"), instead=one_at_a_time).feedback(
            _ONE_AT_A_TIME
        ),
        Fault(
            "warm_up_one_long",
            sees="kept",
            instead=lambda p, m: one_f_one_b(p, m, longer=1),
        ).feedback(
            "Your warm-ups are one micro-batch long. The ticks are the same, and every device "
            "keeps one micro-batch more than it must. Which micro-batch does device 0 take forward "
            "that it could have left for later?"
        ),
        Fault("warm_up_too_long", sees="kept", instead=_twice_the_warm_up)
        .or_with(instead=lambda p, m: one_f_one_b(p, m, per_device=2))
        .or_with(instead=lambda p, m: one_f_one_b(p, m, longer=2))
        .or_with(instead=lambda p, m: one_f_one_b(p, m, longer=3))
        .or_with(instead=lambda p, m: one_f_one_b(p, m, longer=p))
        .feedback(
            "Your warm-ups are longer than the distance of device d to the end of the pipeline. "
            "Messages take no time here, so the ticks are the same, and the devices keep "
            "micro-batches that could have come later. After how many forward passes can the first "
            "micro-batch be back at device d?"
        ),
        Fault("warm_up_unlimited", instead=_unlimited_warm_up).feedback(
            "With fewer micro-batches than devices, your warm-ups ask for micro-batches that don't "
            "exist, so the engine refuses the lists. How many forward passes can a warm-up have at "
            "most?"
        ),
        Fault("gpipe_again", sees="kept", instead=gpipe).feedback(
            "You wrote GPipe: the gradients and the ticks are right, and every device keeps all "
            "micro-batches. With ten times as many it would keep ten times as much. Which backward "
            "pass could the last device do right after its first forward pass?"
        ),
        Fault("cool_down_forgotten", change=lambda items: _cut_off(items, more=0))
        .or_with(change=lambda items: _cut_off(items, more=1))
        .or_with(change=lambda items: items[:-1])
        .feedback(_FORGOTTEN),
        Fault("reversed_warm_up", instead=_reversed_warm_up).feedback(
            "Your device 0 has the shortest warm-up and your last device the longest. The last "
            "device waits for micro-batches that device 0 sends only when the first one has come "
            "back. Which device is further from the end of the pipeline?"
        ),
    ),
)


# --- interleaved: two pieces of the model on each device


def _short_warm_up(devices: int, micro_batches: int) -> Schedule:
    """Interleaved, with warm-ups that forget the way through the second piece."""
    return interleaved(devices, micro_batches, longer=-devices)


INTERLEAVED = Check(
    name="interleaved",
    title="Interleaved: two pieces on each device",
    question="Through which piece does device 0 take a micro-batch last on its way back?",
    direction="Write the forward items of one device as one list: as many micro-batches as there "
    "are devices through piece 0, the same ones through piece 1, then the next group. Make the "
    "backward items likewise, and lay 1F1B over the two lists.",
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference(interleaved),
    criteria=(*_RUNS, _KEPT),
    hint="With n items forward: `k = n // (2 * devices) * devices + n % devices`, `piece = n % (2 "
    "* devices) // devices`. Backward: `1 - piece`. Device d has a warm-up of `3 * devices - 2 * d "
    "- 1` items; then one backward and one forward in turn.",
    revisit="Extra: Two pieces on each device",
    mistakes=(
        Fault("one_piece", sees=("ticks", "kept"), instead=one_f_one_b).feedback(
            "You wrote 1F1B: each device has one piece, and a micro-batch passes each device once. "
            "With two smaller pieces it would reach the last device in half of the time. How do "
            "you write the way through the second piece?"
        ),
        Fault(
            "first_piece_first",
            instead=lambda p, m: interleaved(p, m, first_piece_first=True),
        ).feedback(
            "Your backward passes begin with piece 0, the beginning of the model. Its gradient "
            "comes from piece 1, which you send back later, so every device waits. From which end "
            "of the model does a backward pass start?"
        ),
        Fault("warm_up_too_short", instead=lambda p, m: interleaved(p, m, longer=-1))
        .or_with(instead=_short_warm_up)
        .feedback(
            "Your warm-ups are too short: the last device is asked for the backward pass of a "
            "micro-batch that it hasn't yet taken through piece 1. How many items does the last "
            "device need until its first micro-batch has passed both pieces?"
        ),
        Fault("warm_up_too_long", sees="kept", instead=lambda p, m: interleaved(p, m, longer=1))
        .or_with(instead=lambda p, m: interleaved(p, m, longer=p))
        .or_with(instead=lambda p, m: interleaved(p, m, longer=2 * p * m))
        .feedback(
            "Your ticks are at par, and your devices keep more than they must, because their "
            "warm-ups are too long. Which forward item could come right behind the first backward "
            "item, instead of before it?"
        ),
    ),
)


# --- zero_bubble: the backward pass in two halves


ZERO_BUBBLE = Check(
    name="zero_bubble",
    title="Zero bubble: put off what no device waits for",
    question="Which of the two halves of a backward pass does the device before wait for?",
    direction="Begin with 1F1B and a W right behind each B. Then look for a device that waits, and "
    "for a W that comes too early: could it fill that gap?",
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference(zero_bubble),
    criteria=(*_RUNS, _KEPT),
    hint="Take the loop of 1F1B. Behind B number k of device d comes the next W, but only if `k >= "
    "d`: so device d is d weights' halves late. What is left comes at the end.",
    revisit="Extra: The half that nobody waits for",
    mistakes=(
        Fault("not_split", sees=("ticks", "kept"), instead=one_f_one_b).feedback(
            "Your schedule has no W, so each backward pass takes two ticks, and the device before "
            "waits for both. It needs only the gradient of the inputs. Which half can you put off?"
        ),
        Fault(
            "weights_at_once",
            sees=("ticks", "kept"),
            instead=lambda p, m: zero_bubble(p, m, put_off=lambda device: 0),
        ).feedback(
            "Each of your W comes right behind its B. The device before gets its gradient one tick "
            "sooner, but when a device waits at the end, it has no W left to do. Which device has "
            "nothing to wait for, and could put its W off?"
        ),
        Fault(
            "weights_last",
            sees=("ticks", "kept"),
            instead=lambda p, m: zero_bubble(p, m, put_off=lambda device: m),
        ).feedback(
            "You put off every W to the end. Device 0 waits between its last B although it has "
            "many W in hand, and does all of them afterwards. Until then every device keeps all "
            "micro-batches. How many W does device d need to fill its own gap?"
        ),
        Fault(
            "same_on_all",
            sees=("ticks", "kept"),
            instead=lambda p, m: zero_bubble(p, m, put_off=lambda device: p - 1),
        ).feedback(
            "All your devices put off as many W. Device 0 has no gap at the end that a W could "
            "fill, so it only keeps more and ends later. Which device waits longest for its first "
            "B, and which one not at all?"
        ),
        Fault(
            "mirrored",
            sees=("ticks", "kept"),
            instead=lambda p, m: zero_bubble(p, m, put_off=lambda device: p - 1 - device),
        ).feedback(
            "Device 0 puts off the most W, and the last device none. But all gradients come from "
            "the last device: while it computes a W, everybody waits for its next B. On which "
            "device should a W wait?"
        ),
        Fault(
            "weights_before_inputs",
            change=lambda items: [
                {"B": "W", "W": "B"}.get(item[0], item[0]) + item[1:] for item in items
            ],
        ).feedback(
            "You put a W before the B of the same micro-batch. The engine computes the weights' "
            "half from the gradient that arrives with B, so the device waits for itself. Which "
            "half does the device before you wait for?"
        ),
    ),
)


CHECKS = (GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE)
