"""The step that this thread is in, and how replicas meet in it.

    with in_step(step):
        current()                                  # the step; None outside of one
        run_collective(context.all_reduce, SUM, value)

Replicas are traced in turns, each in a thread of its own.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from distlab.training.keras_private import registry
from distlab.training.rule.refusal import is_of_user, refusal

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
    kept = [_keep(part) for part in _containers([step.model, *step.called.values()])]
    before, step.is_meeting = step.is_meeting, True
    try:
        result = collective(*args, **kwargs)
    finally:
        step.is_meeting = before
    for put_back in kept:
        put_back()
    return result


def _containers(layers: Iterable[Any]) -> Iterator[Any]:
    """Yields the attributes of layers, and the containers and objects in those of user's layers."""
    for layer in layers:
        yield vars(layer)
        if is_of_user(type(layer).__module__):
            for value in list(vars(layer).values()):
                if isinstance(value, list | dict):
                    yield value
                elif type(value).__module__ != "builtins" and is_of_user(type(value).__module__):
                    yield getattr(value, "__dict__", {})


def _keep(container: Any) -> Callable[[], None]:
    """Returns a function that puts back what a list or a dictionary holds now."""
    if isinstance(container, list):
        items = list(container)

        def put_back() -> None:  # by the base class: Keras's own lists would track it again
            if len(container) != len(items) or any(map(operator.is_not, container, items)):
                list.__setitem__(container, slice(None), items)

        return put_back
    values = {key: value for key, value in container.items() if not _is_distlabs(key)}

    def put_back_values() -> None:
        for key, value in values.items():
            if container.get(key) is not value:
                dict.__setitem__(container, key, value)

    return put_back_values


def _is_distlabs(key: Any) -> bool:
    return isinstance(key, str) and key.startswith("_distlab")
