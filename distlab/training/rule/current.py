"""The step that this thread is in, and how replicas meet in it.

    with in_step(step):
        current()                                  # the step; None outside of one
        run_collective(context.all_reduce, SUM, value)

Replicas are traced in turns, each in a thread of its own.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from distlab.training.keras_private import registry
from distlab.training.rule.refusal import refusal

if TYPE_CHECKING:
    from distlab.training.rule.step import Step

_NOW = threading.local()


def current() -> Step | None:
    """The step that this thread is in, None outside of one."""
    return getattr(_NOW, "step", None)


# Declares what is called in place of a name while a step is traced.
replaces = functools.partial(registry.replaces, when=current)


@contextlib.contextmanager
def in_step(step: Step) -> Iterator[Step]:
    """Inside the block, in a replica's function, layers and losses go by the step."""
    before, _NOW.step = current(), step
    try:
        yield step
    finally:
        _NOW.step = before


def run_collective(collective: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns what a collective returns, and leaves each layer's attributes to its replica.

    Replicas change turns at each collective, and share their layers. So in `self.hidden = ...`,
    then a collective, `self.hidden` would be that of the last replica.
    """
    step = current()
    if step is None:
        return collective(*args, **kwargs)
    if step.in_loop:
        raise refusal(
            step,
            "rows that are put together in tf.vectorized_map or a jacobian, where replicas cannot "
            "wait for each other",
            "call layers outside of it",
        )
    layers = [step.model, *step.called.values()]
    kept = [(vars(layer), dict(vars(layer))) for layer in layers]
    lists = {
        id(value): (value, list(value))
        for _, own in kept
        for value in own.values()
        if type(value) is list
    }
    before, step.is_meeting = step.is_meeting, True
    try:
        result = collective(*args, **kwargs)
    finally:
        step.is_meeting = before
    for now, own in kept:
        kept_names = (name for name in own if not name.startswith("_distlab"))
        now.update({name: own[name] for name in kept_names if now.get(name) is not own[name]})
    for value, own_items in lists.values():
        value[:] = own_items
    return result
