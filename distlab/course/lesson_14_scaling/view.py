"""The view of lesson 14: how a network, a link and a batch decide the efficiency of scaling.

explore_cost()                       # in the last line of a cell
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distlab.course.figures.step_costs import SCALES, draw_efficiency
from distlab.course.lesson_14_scaling.published import (
    PUBLISHED,
    RESNET_101,
    hidden_share,
    model_of,
)
from distlab.course.view import Choices, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LATENCY_SECS = 10e-6
_RUNS = {run.network: run for run in reversed(PUBLISHED)}


def explore_cost() -> View:
    """Returns a view of the efficiency of weak scaling on 1 to 4,096 P100 GPUs.

    The cost model is the lesson's, with what its sources state; the controls change the network,
    the batch on each GPU and the link of a server. The points are the published runs.
    """
    return View(
        "What a cluster makes of a network",
        {
            "network": Choices("network", list(_RUNS), start="VGG-16"),
            "per_gpu_batch": Choices("examples on each GPU", [8, 16, 32, 64, 128], start=64),
            "link_gbit": Choices("link (Gbit/s)", [10, 25, 50, 100, 400], start=25),
            "latency_us": Choices("latency of a round (µs)", [1, 3, 10, 30, 100], start=10),
        },
        _numbers,
        _draw,
    )


def _numbers(network: str, per_gpu_batch: int, link_gbit: int, latency_us: int) -> dict[str, Any]:
    """The efficiency by the number of GPUs, and the published ones of such a cluster."""
    hidden = hidden_share(RESNET_101, latency_secs=LATENCY_SECS)
    chosen = replace(_RUNS[network], per_gpu_batch=per_gpu_batch, link_bits_per_sec=1e9 * link_gbit)
    model = model_of(chosen, hidden=hidden, latency_secs=1e-6 * latency_us)
    published = [
        [run.gpus, run.efficiency]
        for run in PUBLISHED
        if run.network == network
        and (run.per_gpu_batch, run.link_bits_per_sec) == (per_gpu_batch, 1e9 * link_gbit)
    ]
    efficiency = [round(model.efficiency(gpus, **chosen.sizes), 6) for gpus in SCALES]
    return {"efficiency": efficiency, "published": published}


def _draw(numbers: Mapping[str, Any], *, network: str, **_: Any) -> Figure:
    published = [(network, gpus, efficiency) for gpus, efficiency in numbers["published"]]
    return draw_efficiency({network: numbers["efficiency"]}, published=published)
