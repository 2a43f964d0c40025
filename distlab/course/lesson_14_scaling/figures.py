"""Figures of lesson 14: what curves promise, what a network carries, and what buckets hide.

draw_promises()                          # tokens a second by the number of GPUs, three predictions
draw_bandwidth()                         # bus bandwidth of an all-reduce by its size
draw_overlap(recorded_overlap())         # the timeline of a step, by the number of buckets
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from distlab.course import palette
from distlab.course.lesson_14_scaling.overlap import StepTimes
from distlab.course.lesson_14_scaling.published import (
    NVLINK_GB_PER_SEC,
    ONE_SERVER_MICROS,
    TOKENS_PER_SEC,
    TOKENS_PER_STEP,
    TWO_SERVERS_MICROS,
    bus_gb_per_sec,
    curve,
    step_secs,
)
from distlab.course.palette import MIDDLE, WIDE, finish, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_promises() -> Figure:
    """Draws the Playbook's tokens a second, and what two curves and a model say of 256 GPUs."""
    figure, ax = panels(width=MIDDLE, height=3.4)
    counts = list(TOKENS_PER_SEC)
    curves = {
        "line": list(curve("line").values()),
        "logarithm": list(curve("logarithm").values()),
        "model": [TOKENS_PER_STEP / n / step_secs(n) for n in counts],
    }
    says = []
    for number, (name, points) in enumerate(curves.items()):
        along = counts[-len(points) :]
        ax.plot(
            along, points, label=f"{name}: {points[-1]:,.0f}", **palette.category(number).line()
        )
        says.append(f"{name}: {points[-1]:,.0f} on 256")
    measured = list(TOKENS_PER_SEC.values())
    style = {"color": palette.REFERENCE, "marker": "_", "markersize": 16, "markeredgewidth": 2.5}
    ax.plot(counts, measured, label=f"measured: {measured[-1]:,}", linestyle="none", **style)
    says.append("measured: " + ", ".join(f"{v:,} on {n}" for n, v in TOKENS_PER_SEC.items()))
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.set_ylim(0, 1.08 * max(measured))
    ax.yaxis.set_major_formatter("{x:,.0f}")
    palette.label_axes(ax, x="GPUs", y="tokens each", y_unit="1/s")
    palette.add_legend(figure, loc="outside lower center", ncols=2)
    return finish(
        figure,
        title="Both curves promise too much, and the model does not",
        alt=f"Tokens a second of each GPU by the number of GPUs. {'. '.join(says)}.",
    )


def draw_bandwidth() -> Figure:
    """Draws the bus bandwidth of an all-reduce by its size, in one server and between two."""
    figure, ax = panels(width=MIDDLE, height=3.2)
    says = []
    servers = {"1 server": (8, ONE_SERVER_MICROS), "2 servers": (16, TWO_SERVERS_MICROS)}
    for number, (name, (gpus, micros)) in enumerate(servers.items()):
        speeds = [bus_gb_per_sec(mib * 2**20, us / 1e6, gpus) for mib, us in micros.items()]
        ax.plot(list(micros), speeds, label=name, **palette.category(number).line(size=5))
        first, *_, last = micros
        says.append(f"{name}: {speeds[0]:.0f} for {first} MiB, {speeds[-1]:.0f} for {last} MiB")
    ax.axhline(NVLINK_GB_PER_SEC, color=palette.REFERENCE, linewidth=0.9, zorder=1)
    ax.text(1, NVLINK_GB_PER_SEC + 8, "a link: 450", fontsize=9, color=palette.NOTE)
    ax.set_xscale("log", base=4)
    ax.set_xticks([1, 16, 256, 4096], ["1 MiB", "16 MiB", "256 MiB", "4 GiB"])
    ax.set_ylim(0, 540)
    palette.label_axes(ax, x="size of the all-reduce", y="bus bandwidth", y_unit="GB/s")
    palette.label_ends(ax)
    return finish(
        figure,
        title="Small all-reduces get little of the network",
        alt=f"Bus bandwidth by the size of an all-reduce of H100s. {'. '.join(says)}. A line at "
        f"{NVLINK_GB_PER_SEC}, the speed of a link in one direction.",
    )


def draw_overlap(steps: Mapping[int, StepTimes]) -> Figure:
    """Draws steps as timelines, with a lane for computing and one for the network in each."""
    figure, axes = panels(
        len(steps), 1, width=WIDE, height=0.95 * len(steps) + 1.0, sharex=True, squeeze=False
    )
    says = []
    looks = {name: palette.category(number) for number, name in enumerate(_WORK)}
    for ax, (count, step) in zip(axes[:, 0], steps.items(), strict=True):
        starts = (step.forward_ms, *step.ready_ms[:-1])
        bars = {
            "forward": [(1, 0.0, step.forward_ms)],
            "backward": [(1, *ends) for ends in zip(starts, step.ready_ms, strict=True)],
            "all-reduce": [(0, *ends) for ends in zip(step.sent_ms, step.arrived_ms, strict=True)],
        }
        for name, pieces in bars.items():
            rows, begins, ends = zip(*pieces, strict=True)
            widths = [end - begin for begin, end in zip(begins, ends, strict=True)]
            look = looks[name].bar() | {"edgecolor": palette.GROUND, "linewidth": 0.8}
            ax.barh(rows, widths, 0.72, left=begins, label=name, **look)
        ax.axvline(step.step_ms, color=palette.REFERENCE, linewidth=0.9)
        ax.text(step.step_ms, 1, f"  {step.step_ms:.0f} ms", va="center", fontsize=9)
        ax.set_yticks([1, 0], ["computes", "sends"])
        ax.set_title(f"{count} bucket{'s' * (count > 1)}", fontsize=10, loc="left")
        palette.label_axes(ax, x="", y="")
        says.append(
            f"{count}: the first leaves at {step.first_sent_ms:.0f} ms, the backward pass ends at "
            f"{step.backward_ms:.0f}, the step at {step.step_ms:.0f}"
        )
    axes[-1, 0].set_xlim(0, 1.12 * max(step.step_ms for step in steps.values()))
    palette.label_axes(axes[-1, 0], x="time of one step", y="", x_unit="ms")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return finish(
        figure,
        title="With several buckets, sending begins while the backward pass still computes",
        alt=f"Timelines of one step by the number of buckets. {'. '.join(says)}.",
    )


_WORK = ("forward", "backward", "all-reduce")
