"""The view of lesson 14: how a model, its batch and a network decide how far it scales.

explore_cost()                       # in the last line of a cell
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distlab.course.figures.step_costs import SCALES, draw_efficiency
from distlab.course.lesson_14_scaling.published import (
    BUS_GB_PER_SEC,
    PARAMETERS,
    TOKENS_PER_SEC,
    TOKENS_PER_STEP,
    sending_secs,
    step_secs_measured,
)
from distlab.course.view import Choices, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BACKWARD_SHARE = 2 / 3
_COUNTS = [count for count in SCALES if count <= max(BUS_GB_PER_SEC)]
_START = {"billions": 1.34, "sequences": 256, "gradient_bits": 32, "hidden_percent": 0}


def explore_cost() -> View:
    """Returns a view of the efficiency of strong scaling on 1 to 512 H100.

    The network is the Playbook's, and so are the points at the start; the controls change the
    model, the global batch, the numbers that are sent and how much of the sending is hidden.
    """
    return View(
        "What a cluster makes of a model",
        {
            "billions": Choices("parameters (billions)", [0.5, 1.34, 3.57, 8.86], start=1.34),
            "sequences": Choices("sequences in a step", [128, 256, 512, 1024, 4096], start=256),
            "gradient_bits": Choices("bits of a gradient", [8, 16, 32], start=32),
            "hidden_percent": Choices("sending to hide (%)", [0, 50, 100], start=0),
        },
        _numbers,
        _draw,
    )


def efficiency(
    gpus: int, *, billions: float, sequences: int, gradient_bits: int, hidden_percent: int
) -> float:
    """Returns the part of a step in which the GPUs compute, by the lesson's model."""
    grown = (1e9 * billions / PARAMETERS) * (sequences * 4096 / TOKENS_PER_STEP)
    compute = grown * 8 * (step_secs_measured(8) - sending_secs(8)) / gpus
    # Fewer than eight GPUs share the links of one server.
    measured = max(gpus, min(BUS_GB_PER_SEC))
    each = sending_secs(measured, gradient_bytes=1e9 * billions * gradient_bits / 8)
    sends = each * (gpus - 1) / gpus * measured / (measured - 1)
    hidden = min(hidden_percent / 100 * sends, _BACKWARD_SHARE * compute)
    return compute / (compute + sends - hidden)


def _numbers(**chosen: Any) -> dict[str, Any]:
    """The efficiency by the number of GPUs, and the Playbook's if it is the Playbook's run."""
    best = 8 * (step_secs_measured(8) - sending_secs(8)) / TOKENS_PER_STEP
    published = [[gpus, round(best * speed, 6)] for gpus, speed in TOKENS_PER_SEC.items()]
    return {
        "efficiency": [round(efficiency(gpus, **chosen), 6) for gpus in _COUNTS],
        "published": published if chosen == _START else [],
        "network": f"{chosen['billions']:.2f} B",
    }


def _draw(numbers: Mapping[str, Any], **_: Any) -> Figure:
    name = numbers["network"]
    published = [(name, gpus, part) for gpus, part in numbers["published"]]
    return draw_efficiency({name: numbers["efficiency"]}, published=published)
