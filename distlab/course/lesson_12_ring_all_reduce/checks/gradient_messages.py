"""A check of lesson 12: which gradients go together into one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Form, Holds, Inputs, Plain, Then


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    layers = int(draw.integers(9, 13))
    sizes = [int(size) for size in draw.integers(1, 40, size=layers)]
    sizes[int(draw.integers(2, layers - 2))] = 120  # larger than a message may be
    return {"sizes": {f"layer_{n}": size for n, size in enumerate(sizes)}, "limit": 64}


def _call(pack: Callable[..., Any], inputs: Inputs) -> Plain:
    return {"messages": pack(dict(inputs["sizes"]), inputs["limit"])}


def _read(given: Inputs, outputs: Plain) -> Plain:
    messages = outputs["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, list) for message in messages):
        return {"messages": messages, "form": False}
    return _judged(given, messages)


def _judged(given: Inputs, messages: list[list[str]]) -> Plain:
    names = [name for message in messages for name in message]
    return {
        "messages": messages,
        "form": True,
        "order": names,
        "bytes": [sum(given["sizes"].get(name, 0) for name in message) for message in messages],
    }


def _reference(
    given: Inputs,
    *,
    backward: bool = True,
    together: str = "up to the limit",
    last_is_sent: bool = True,
) -> Plain:
    """Gradients in the order in which they are ready; a new message if the next does not fit."""
    sizes, limit = given["sizes"], given["limit"]
    names = list(sizes)[::-1] if backward else list(sizes)
    messages: list[list[str]] = [[]]
    for name in names:
        full = sum(sizes[other] for other in messages[-1])
        fits = {
            "up to the limit": full + sizes[name] <= limit,
            "beyond the limit": full < limit,
            "never": False,
            "all": True,
        }[together]
        if messages[-1] and not fits:
            messages.append([])
        messages[-1].append(name)
    return _judged(given, messages if last_is_sent else messages[:-1])


def _within_the_limit(given: Inputs, outputs: Plain) -> bool:
    return all(
        size <= given["limit"] or len(message) == 1
        for size, message in zip(outputs["bytes"], outputs["messages"], strict=True)
    )


MESSAGES = Check(
    name="pack_gradients",
    title="Which gradients go into one message",
    question="Which gradient is ready first in the backward pass?",
    direction="Go through the layers from the last to the first, and ask before each gradient "
    "whether it still fits.",
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form(
            "it returns a list of messages, each a list of names",
            lambda given, out: out["form"],
            key="messages",
        ),
        Equal("order", "each gradient is sent once, as soon as it is ready", points=1.5),
        Then(
            Holds(
                "a message of several gradients is not larger than the limit",
                _within_the_limit,
                lambda given, out: f"the messages have {out['bytes']} bytes",
                points=0.5,
            ),
            Equal("bytes", "each message holds as many gradients as fit", points=1),
        ),
    ),
    hint="Go through `reversed(sizes)`. Start a new message if there is none, or if `sizes[name]` "
    "is larger than the room that is left.",
    revisit="Many small gradients",
    mistakes=(
        Fault("one_message_per_tensor", sees=("order", "bytes"), together="never").feedback(
            "You sent each gradient in a message of its own. Each all-reduce then waits for the "
            "latency in all its steps, even for a bias of 40 bytes. Which gradients could share a "
            "message?"
        ),
        Fault("one_message_for_all", sees=("order", "bytes"), together="all").feedback(
            "You put all gradients into one message. It can leave only after the whole backward "
            "pass, so no sending overlaps with computing. How early could the first gradients "
            "leave?"
        ),
        Fault("forward_order", sees="order", backward=False).feedback(
            "You packed the gradients from the first layer on. The backward pass computes the "
            "first layer's gradient last, so the first message has to wait for it. Which gradient "
            "is ready first?"
        ),
        Fault("closed_too_late", sees=("order", "bytes"), together="beyond the limit").feedback(
            "You closed a message only after it had grown beyond the limit. The buffer that it is "
            "copied into would be too small. When do you compare with the limit, before or after "
            "you append?"
        ),
        Fault("last_message_lost", sees=("order", "bytes"), last_is_sent=False).feedback(
            "The message that was still open at the end is not in your list. Its gradients are "
            "never added up, so the replicas' copies of those layers drift apart. What happens to "
            "the open message after the loop?"
        ),
    ),
)
