"""The schedules of lesson 17, by name: which item comes when on each device.

    SCHEDULES["1F1B"](4, 8)     # for 4 devices and 8 micro-batches: a list of items for each device

Each has arguments for the mistakes that people make in it.
"""

from __future__ import annotations

from collections.abc import Callable

Schedule = list[list[str]]


def gpipe(devices: int, micro_batches: int) -> Schedule:
    """Returns GPipe's order: all micro-batches forward, then all of them backward."""
    items = [f"F{k}" for k in range(micro_batches)]
    items += [f"B{k}" for k in reversed(range(micro_batches))]
    return [list(items) for _ in range(devices)]


def one_at_a_time(devices: int, micro_batches: int) -> Schedule:
    """Returns the order in which each micro-batch waits for the one before it to come back."""
    items = [f"{kind}{k}" for k in range(micro_batches) for kind in "FB"]
    return [list(items) for _ in range(devices)]


def one_f_one_b(
    devices: int,
    micro_batches: int,
    *,
    per_device: int = 1,
    longer: int = 0,
    like_device: int | None = None,
) -> Schedule:
    """Returns 1F1B: a warm-up of forward passes, then one backward and one forward in turn.

    Args:
        devices: How many there are.
        micro_batches: Likewise.
        per_device: By how many micro-batches a warm-up grows for each device behind it.
        longer: By how many micro-batches each warm-up is too long, or too short if below 0.
        like_device: The device whose warm-up all devices have; None for their own.
    """
    schedule = []
    for device in range(devices):
        place = device if like_device is None else like_device % devices
        warm_up = min(micro_batches, per_device * (devices - place - 1) + 1 + longer)
        items = [f"F{k}" for k in range(warm_up)]
        for k in range(micro_batches):
            items.append(f"B{k}")
            items += [f"F{k + warm_up}"] * (k + warm_up < micro_batches)
        schedule.append(items)
    return schedule


def interleaved(
    devices: int,
    micro_batches: int,
    pieces: int = 2,
    *,
    per_device: int = 2,
    longer: int = 0,
    first_piece_first: bool = False,
) -> Schedule:
    """Returns Megatron-LM's interleaved 1F1B, in groups of as many micro-batches as devices.

    Args:
        devices: How many there are; their number divides that of the micro-batches.
        micro_batches: How many there are.
        pieces: How many pieces of the model each device has.
        per_device: By how many items a warm-up grows for each device behind it.
        longer: By how many items each warm-up is too long.
        first_piece_first: Whether the backward passes, too, begin with piece 0.
    """
    group, total = devices * pieces, micro_batches * pieces

    def item(kind: str, number: int) -> str:
        k = number // group * devices + number % devices
        piece = number % group // devices
        if kind == "B" and not first_piece_first:
            piece = pieces - 1 - piece
        return f"{kind}{k}.{piece}"

    schedule = []
    for device in range(devices):
        first_back = (pieces - 1) * devices + 1  # items until the last device can turn around
        warm_up = min(total, per_device * (devices - device - 1) + first_back + longer)
        items = [item("F", number) for number in range(warm_up)]
        for number in range(total):
            items.append(item("B", number))
            items += [item("F", number + warm_up)] if number + warm_up < total else []
        schedule.append(items)
    return schedule


def zero_bubble(
    devices: int, micro_batches: int, *, put_off: Callable[[int], int] = lambda device: device
) -> Schedule:
    """Returns ZB-H1: 1F1B, with the weights' halves of the backward passes put off.

    Args:
        devices: How many there are.
        micro_batches: Likewise.
        put_off: By device, how many weights' halves wait while the inputs' halves go on.
    """
    schedule = []
    for device in range(devices):
        warm_up, late = min(micro_batches, devices - device), 0
        items = [f"F{k}" for k in range(warm_up)]
        for k in range(micro_batches):
            items.append(f"B{k}")
            if k >= put_off(device):
                items.append(f"W{late}")
                late += 1
            items += [f"F{k + warm_up}"] * (k + warm_up < micro_batches)
        schedule.append(items + [f"W{k}" for k in range(late, micro_batches)])
    return schedule


SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": interleaved,
    "zero bubble": zero_bubble,
}
