"""A batch plan that a reader moves: the shares, the steps and the learning rate. Lesson 02.

explore_batch_plan()             # controls: examples per replica, replicas, data, rule
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlab.batching import plan_batch
from distlab.course.palette import NOTE, WIDE, finish, label_axes, panels, replica
from distlab.course.view import Choices, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RULES = {"linear": "linear (SGD)", "square_root": "square root (Adam)", "none": "none"}
_SOURCES = {"memory": "from memory", "files": "from files"}


def explore_batch_plan(
    *, base_learning_rate: float = 0.05, reference_batch: int = 8, examples: int = 1437
) -> View:
    """Returns a view of one epoch: what each replica gets, and at which learning rate.

    Args:
        base_learning_rate: The rate that was found on one device.
        reference_batch: The batch for which it was found.
        examples: Examples of the data set at the start; 1,437 digits are lesson 02's.
    """

    def numbers(
        per_replica: int, replicas: int, examples: int, source: Any, rule: Any
    ) -> dict[str, Any]:
        plan = plan_batch(
            per_replica=per_replica,
            replicas=replicas,
            base_learning_rate=base_learning_rate,
            reference_batch=reference_batch,
            rule=rule,
        )
        steps = plan.steps(examples)
        last = plan.shares_of(examples - (steps - 1) * plan.global_batch, source=source)
        full = plan.shares_of(plan.global_batch, source=source) if steps > 1 else last
        return {
            "batch": plan.global_batch,
            "steps": steps,
            "rate": f"{plan.learning_rate:.3g}",
            "full": list(full),
            "last": list(last),
        }

    return View(
        "One epoch, cut into batches and shares",
        {
            "per_replica": Choices("examples per replica", [8, 16, 32, 64, 128], start=32),
            "replicas": Choices("replicas", [1, 2, 3, 4, 8], start=4),
            "examples": Choices(
                "examples of the data set", sorted({512, 1000, 1024, 1285, examples}), examples
            ),
            "source": Choices("the data come", list(_SOURCES), say=lambda name: _SOURCES[name]),
            "rule": Choices("rule for the rate", list(_RULES), say=lambda name: _RULES[name]),
        },
        numbers,
        _draw,
    )


def _draw(numbers: Mapping[str, Any], *, per_replica: int, examples: int, **_: Any) -> Figure:
    """Draws the shares of a full batch and of the last one, beside each other."""
    batch, steps, rate = numbers["batch"], numbers["steps"], numbers["rate"]
    full, last = numbers["full"], numbers["last"]
    figure, columns = panels(1, 2, width=WIDE, height=2.6, sharex=True, sharey=True)
    titles = (f"a full batch: {sum(full)}", f"the last batch: {sum(last)}")
    colours = [replica(number).colour for number in range(len(full))]
    for axes, shares, title in zip(columns, (full, last), titles, strict=True):
        axes.barh(range(len(shares)), shares, color=colours)
        for number, share in enumerate(shares):
            axes.text(share, number, f" {share or 'empty'}", va="center", color=NOTE, fontsize=9)
        axes.set_title(title, fontsize=10, loc="left", y=1)
        label_axes(axes, x="examples", y="")
    columns[0].set_ylabel("replica")
    columns[0].set_yticks(range(len(full)))
    columns[0].invert_yaxis()
    columns[0].set_xlim(0, 1.15 * per_replica)
    empty = [str(number) for number, share in enumerate(last) if share == 0]
    left_out = f" Nothing is left for replica {', '.join(empty)}." if empty else ""
    return finish(
        figure,
        title=f"global batch {batch}, {steps} steps an epoch, learning rate {rate}",
        alt=f"{examples} examples in global batches of {batch} are {steps} steps an epoch, at a "
        f"learning rate of {rate}. Shares of a full batch: {_listed(full)}. Shares of the last "
        f"batch: {_listed(last)}.{left_out}",
    )


def _listed(shares: Sequence[int]) -> str:
    return ", ".join(map(str, shares))
