"""Checks of lesson 13: what a transformer costs, the MFU of a run, the costliest kind of work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Form,
    Holds,
    Inputs,
    Observed,
    Plain,
    Raises,
)
from distlab.course.lesson_13_step_cost.published import H100_PEAK, LLAMA_3_8B, PUBLISHED

# --- transformer_cost: parameters, and FLOPs of a training step


def _cost_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    heads = int(draw.choice([4, 8]))
    base = {
        "width": heads * int(draw.choice([16, 32])),
        "layers": int(draw.integers(2, 6)),
        "heads": heads,
        "key_heads": heads // 2,
        "hidden": int(draw.integers(5, 9)) * 32,
        "vocabulary": int(draw.integers(4, 9)) * 64,
    }
    length, batch = int(draw.choice([32, 64])), int(draw.integers(2, 6))
    cases = [[base, length, batch]]
    # One number changes at a time, so that each one's part in the cost is seen alone.
    cases.append([base, 64 * length, batch])
    cases.append([{**base, "vocabulary": 40 * base["vocabulary"]}, length, batch])
    cases.append([{**base, "layers": 3 * base["layers"]}, length, 7 * batch])
    cases.append([{**base, "key_heads": 1}, length, batch])
    cases.append([dict(LLAMA_3_8B), 8192, 2])
    return {"cases": cases}


def _cost_asked(given: Inputs) -> str:
    """Says which calls the values belong to, in their order."""
    sizes, length, batch = given["cases"][0]
    said = ", ".join(f"{key} {value}" for key, value in sizes.items())
    wide, many, shared = (given["cases"][place] for place in (2, 3, 4))
    return (
        f"values of 6 calls: a model with {said}, length {length}, batch {batch}; then with "
        f"length {given['cases'][1][1]}; vocabulary {wide[0]['vocabulary']}; layers "
        f"{many[0]['layers']} and batch {many[2]}; key_heads {shared[0]['key_heads']}; and "
        "Llama 3 8B with length 8192, batch 2"
    )


def _cost_call(transformer_cost: Callable[..., Any], inputs: Inputs) -> Plain:
    found = [
        transformer_cost(dict(sizes), length, batch) for sizes, length, batch in inputs["cases"]
    ]
    if not all(isinstance(each, (tuple, list)) and len(each) == 2 for each in found):
        return {"other": found[0], "parameters": None, "flops": None}
    return {
        "other": "",
        "parameters": [float(parameters) for parameters, _ in found],
        "flops": [float(flops) for _, flops in found],
    }


def _cost_reference(
    given: Inputs,
    *,
    passes: int = 3,
    per_weight: int = 2,
    attention: bool = True,
    embedding: bool = False,
    norms: bool = False,
    tied: bool = False,
    shared_keys: bool = True,
    gated: bool = True,
    one_text: bool = False,
) -> Plain:
    """Parameters and FLOPs of each case."""
    parameters, flops = [], []
    for sizes, length, batch in given["cases"]:
        width, hidden = sizes["width"], sizes["hidden"]
        keys = width * sizes["key_heads"] // sizes["heads"] if shared_keys else width
        layer = 2 * width * width + 2 * width * keys + (3 if gated else 2) * width * hidden
        table = sizes["vocabulary"] * width
        products = sizes["layers"] * layer + table * (2 if embedding else 1)
        scales = 2 * width * sizes["layers"] + width
        products += scales if norms else 0
        parameters.append(float(sizes["layers"] * layer + scales + table * (1 if tied else 2)))
        tokens = length * (1 if one_text else batch)
        pairs = 2 * sizes["layers"] * length * width if attention else 0
        flops.append(float(passes * per_weight * tokens * (products + pairs)))
    return {"other": "", "parameters": parameters, "flops": flops}


class _Ratio(Close):
    """Numbers of very different sizes: each may be off by a part of itself."""

    def compare(self, yours: Plain, expected: Plain) -> Any:
        scaled = [
            mine / right if right else mine for mine, right in zip(yours, expected, strict=True)
        ]
        if all(abs(each - 1) <= self.atol for each in scaled):
            return super().compare(expected, expected)
        return super().compare(yours, expected)

    def agrees(self, yours: Plain, other: Plain) -> bool:
        return bool(np.allclose(yours, other, rtol=self.atol, atol=0))


COST = Check(
    name="transformer_cost",
    title="What a transformer costs",
    question="How many multiplications does one weight do for one token, in the forward pass and "
    "in a whole step?",
    direction="Count the weights of one layer first. Then ask which of all weights multiply a "
    "token, and which products have no weights at all.",
    cost=Cost.PURE,
    inputs=_cost_inputs,
    call=_cost_call,
    reference=_cost_reference,
    criteria=(
        Form(
            "it returns two numbers, the parameters and the FLOPs",
            lambda given, out: out["other"] == "" and out["parameters"] is not None,
            key="other",
        ),
        _Ratio("parameters", "the parameters", atol=1e-9, points=1.5, asked=_cost_asked),
        _Ratio("flops", "the FLOPs of a training step", atol=1e-9, points=2.5, asked=_cost_asked),
    ),
    hint="A layer has 2 d² weights for queries and output, 2 d² · key_heads / heads for keys and "
    "values, and 3 d · hidden. A step takes 6 FLOPs for each token and each weight of layers and "
    "head, and 12 · T · d for each token and layer.",
    revisit="Count the work before you run it",
    mistakes=(
        Fault("forward_only", sees="flops", passes=1)
        .or_with(passes=2)
        .feedback(
            "Your FLOPs are those of a part of the step: each product of the forward pass needs "
            "two more on the way back. For y = xW, which two gradients must be computed, and what "
            "does each of them multiply?"
        ),
        Fault("macs_for_flops", sees="flops", per_weight=1).feedback(
            "You counted each multiplication with its addition as one, so your FLOPs are half of "
            "what XLA counts. How many operations is a · b + c?"
        ),
        Fault("attention_forgotten", sees="flops", attention=False).feedback(
            "You counted the products with weights only. In a text of 8,192 tokens your number is "
            "much too small, and in a short one it's hardly wrong. Which two products of a layer "
            "grow with the square of the length?"
        ),
        Fault("six_n", sees="flops", attention=False, embedding=True, norms=True)
        .or_with(attention=False, embedding=True)
        .feedback(
            "You took 6 FLOPs for each parameter and token, the rule of thumb from papers. It "
            "lets the embedding multiply, and it has no products of tokens with tokens, so it "
            "doesn't hold for small models and long texts. Which parameters does no product use, "
            "and which products use no parameter?"
        ),
        Fault("norms_multiplied", sees="flops", norms=True).feedback(
            "You let the norms' weights count as a product. Your FLOPs are a little too large, "
            "because a norm scales numbers one by one and sums nothing over the width. Which of "
            "the parameters belong to a matrix that multiplies a token?"
        ),
        Fault("embedding_as_product", sees="flops", embedding=True)
        .or_with(embedding=True, norms=True)
        .feedback(
            "You let each token multiply the whole embedding. With a vocabulary of 128,256 that's "
            "a large number for a lookup: the layer reads one row for each token. Which of the "
            "two tables of V · d weights does a product use?"
        ),
        Fault("tied_tables", sees="parameters", tied=True).feedback(
            "You counted one table for the vocabulary. This model has two, one that turns tokens "
            "into vectors and one that turns vectors into logits. What would have to be true for "
            "them to be the same weights?"
        ),
        Fault("keys_of_all_heads", sees=("parameters", "flops"), shared_keys=False).feedback(
            "Your keys and values have as many weights as your queries. Here several heads share "
            "one key head, which is how Llama saves memory. How wide are keys and values of "
            "`key_heads` heads together?"
        ),
        Fault("not_gated", sees=("parameters", "flops"), gated=False).feedback(
            "You counted two matrices behind the attention, up and down. This model multiplies the "
            "upward result by a gate, which has a matrix of its own. How many matrices of d by "
            "hidden are there?"
        ),
        Fault("one_text", sees="flops", one_text=True).feedback(
            "Your FLOPs don't grow with the batch, so they're those of a single text. How many "
            "tokens does a step have?"
        ),
    ),
)


# --- mfu: the model FLOPs utilization of a published run

_NUMBERS = ("parameters", "embedding", "layers", "width", "length", "peak", "tokens_per_sec")


def _mfu_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    own = {
        # Its page gives neither a name nor an MFU, which don't enter.
        "name": None,
        "published": None,
        "parameters": int(draw.integers(2, 9)) * 10**8,
        "embedding": int(draw.integers(2, 9)) * 10**7,
        "layers": int(draw.integers(12, 40)),
        "width": int(draw.choice([1024, 2048])),
        "length": int(draw.choice([2048, 16384])),
        "peak": float(draw.choice([312e12, H100_PEAK])),
        "tokens_per_sec": int(draw.integers(20, 60)) * 1000,
    }
    runs = [{key: value for key, value in run.items() if key != "published"} for run in PUBLISHED]
    incomplete = [{**own, key: None} for key in draw.permutation(_NUMBERS)[:3]]
    return {"runs": [*runs, own], "incomplete": incomplete}


def _mfu_call(mfu: Callable[..., Any], inputs: Inputs) -> Plain:
    errors = []
    for run in inputs["incomplete"]:
        try:
            errors.append(f"returned {mfu(dict(run))!r}")
        except ValueError as error:
            errors.append(f"ValueError: {error}")
        except Exception as error:  # what a learner's code does with a None
            errors.append(f"{type(error).__name__}: {error}")
    return {"mfu": [mfu(dict(run)) for run in inputs["runs"]], "errors": errors}


def _mfu_reference(
    given: Inputs,
    *,
    per_weight: float = 6,
    embedding: bool = False,
    attention: float = 12,
    percent: bool = False,
) -> Plain:
    """The MFU of each run, by the formula that torchtitan uses."""
    found = []
    for run in given["runs"]:
        weights = run["parameters"] - (0 if embedding else run["embedding"])
        pairs = attention * run["layers"] * run["width"] * run["length"]
        share = run["tokens_per_sec"] * (per_weight * weights + pairs) / run["peak"]
        found.append(100 * share if percent else share)
    return {"mfu": found, "errors": [_missing(run) for run in given["incomplete"]]}


def _are_numbers(values: Plain) -> bool:
    return all(isinstance(each, (int, float)) for each in values)


def _missing(run: Inputs) -> str:
    return "ValueError: " + next(name for name in _NUMBERS if run[name] is None)


def _says_what_is_missing(given: Inputs, out: Plain) -> bool:
    return all(
        said.startswith("ValueError") and _missing(run).partition(": ")[2] in said
        for run, said in zip(given["incomplete"], out["errors"], strict=True)
    )


def _first_unsaid(given: Inputs, out: Plain) -> str:
    for run, said in zip(given["incomplete"], out["errors"], strict=True):
        name = _missing(run).partition(": ")[2]
        if not (said.startswith("ValueError") and name in said):
            return f"for a run without {name!r}, yours: {said[:80]}"
    return ""


MFU = Check(
    name="mfu",
    title="The MFU of a published run",
    question="Which of the 8 billion weights multiply a token, and which don't?",
    direction="Multiply the tokens a second by the FLOPs of one token, and compare the result "
    "with what the GPU can do in a second.",
    cost=Cost.PURE,
    inputs=_mfu_inputs,
    call=_mfu_call,
    reference=_mfu_reference,
    criteria=(
        Form(
            "it returns a number for each run",
            lambda given, out: _are_numbers(out["mfu"]),
            key="mfu",
        ),
        Close("mfu", "the MFU, as a part of 1", atol=2e-3, points=3),
        Holds(
            "a number that's missing is named in a ValueError",
            _says_what_is_missing,
            _first_unsaid,
            points=1,
        ),
    ),
    hint="FLOPs of a token: 6 · (parameters - embedding) + 12 · layers · width · length. Times "
    "tokens_per_sec, divided by peak. Before that, raise ValueError(name) for a number that is "
    "None.",
    revisit="How close do you get?",
    mistakes=(
        Fault("six_n", sees="mfu", embedding=True, attention=0)
        .or_with(attention=0)
        .feedback(
            "You used 6 FLOPs for each weight and nothing else. At a length of 8,192, the two "
            "products without weights add about a quarter. What do queries and keys of all tokens "
            "multiply?"
        ),
        Fault("causal_half", sees="mfu", attention=6)
        .or_with(attention=6, embedding=True)
        .feedback(
            "You counted half of the attention, because a causal mask hides the other half. That's "
            "a sound convention, and the page that published 33 % and 39 % doesn't follow it. How "
            "large must the attention's part be to reproduce its numbers?"
        ),
        Fault("with_embedding", sees="mfu", embedding=True).feedback(
            "You let the embedding's weights multiply, too, so your MFU is about 2 points above "
            "the published one. What does an embedding do with a token, and how many FLOPs is that?"
        ),
        Fault("forward_only", sees="mfu", per_weight=2, attention=4).feedback(
            "Your MFU is a third of the published one, because you counted the forward pass. What "
            "does a training step do after it?"
        ),
        Fault("percent_for_part", sees="mfu", percent=True).feedback(
            "You returned percent. The exercise compares a part of 1 with other parts. By what "
            "must you divide?"
        ),
        Raises("published_asked", r"ValueError: .*(?:name|published)").feedback(
            "Your function refuses a run whose page gives no name or no MFU, although neither "
            "enters the calculation. So it gives no MFU for a page that has none, where you'd need "
            "it most. Which of the run's numbers do you calculate with?"
        ),
        Observed(
            "none_multiplied",
            lambda given, out: any("unsupported operand" in said for said in out["errors"]),
        ).feedback(
            "Where a page leaves a number out, your function calculates with None, and its error "
            "doesn't say which number is missing. What would you want to read there?"
        ),
        Observed(
            "guessed_for_missing",
            lambda given, out: (
                _are_numbers(out["mfu"])
                and any(said.startswith("returned") for said in out["errors"])
            ),
        ).feedback(
            "Where a page leaves a number out, your function returns something all the same. A "
            "reader takes it for a measurement. What should happen instead?"
        ),
    ),
)


# --- costliest: the kind of work that takes the largest part of the wall time

_OPERATIONS = ("MatMul", "Mul", "Softmax", "AddN", "Gelu")


def _costliest_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    names = [str(name) for name in draw.permutation(_OPERATIONS)]
    busy, twice, often = names[:3]
    events: list[list[Any]] = []
    # `busy` is alone for long; `twice` runs on both threads at once, so its sum is larger.
    at = round(float(draw.uniform(20, 40)), 3)
    for _ in range(4):
        long, both = float(draw.uniform(9, 11)), float(draw.uniform(6, 7))
        # Two short ones lie within the long one, apart from each other.
        events += [["compute 1", busy, at, long], ["compute 2", busy, at + 1, 2.0]]
        events.append(["compute 2", busy, at + 5, 1.5])
        at += long
        events += [[f"compute {thread}", twice, at, both] for thread in (1, 2)]
        events.append(["compute 3", twice, at + 1, both - 3])
        at += both
        for _ in range(6):
            short = float(draw.uniform(0.2, 0.3))
            events.append(["compute 2", often, at, short])
            at += short
        # The step waits for its batch, longer than anything else takes.
        pause = float(draw.uniform(14, 18))
        events.append(["python", "waits", at, pause])
        at += pause
    rounded = [[thread, name, round(start, 3), round(ms, 3)] for thread, name, start, ms in events]
    return {"events": [rounded[place] for place in draw.permutation(len(rounded))]}


def _costliest_call(costliest: Callable[..., Any], inputs: Inputs) -> Plain:
    found = costliest([tuple(event) for event in inputs["events"]])
    if not (isinstance(found, (tuple, list)) and len(found) == 2):
        return {"other": found, "operation": "", "share": 0.0}
    operation, share = found
    is_number = isinstance(share, (int, float, np.floating))
    return {
        "other": "" if isinstance(operation, str) and is_number else found,
        "operation": operation,
        "share": float(share) if is_number else 0.0,
    }


def _busy_ms(events: Iterable[Any], *, overlaps: bool, last_ends: str = "") -> float:
    """The milliseconds of some events, those that run at once counted once or added.

    Args:
        events: As the learner gets them.
        overlaps: Adds up what runs at once.
        last_ends: What the end of a nested event ends, too early: the `span` of all that overlap,
            or the `sweep` over what is covered.
    """
    rows = sorted((float(start), float(start + ms)) for _, _, start, ms in events)
    if overlaps:
        return sum(end - start for start, end in rows)
    if last_ends == "span":
        spans: list[list[float]] = []
        for start, end in rows:
            if spans and start <= spans[-1][1]:
                spans[-1][1] = end
            else:
                spans.append([start, end])
        return sum(end - start for start, end in spans)
    total, until = 0.0, float("-inf")
    for start, end in rows:
        total += max(0.0, end - max(start, until))
        until = end if last_ends == "sweep" else max(until, end)
    return total


def _costliest_reference(
    given: Inputs,
    *,
    overlaps: bool = False,
    waits: bool = False,
    by_count: bool = False,
    of_busy: bool = False,
    last_ends: str = "",
) -> Plain:
    """The operation that runs for most of the wall time, and its share of that time."""
    by_name: dict[str, list[Any]] = {}
    for event in given["events"]:
        if waits or event[1] != "waits":
            by_name.setdefault(event[1], []).append(event)
    cost: dict[str, float] = {
        name: len(rows) if by_count else _busy_ms(rows, overlaps=overlaps, last_ends=last_ends)
        for name, rows in by_name.items()
    }
    name = max(cost, key=lambda each: cost[each])
    first = min(start for *_, start, _ in given["events"])
    wall = max(start + ms for *_, start, ms in given["events"]) - first
    if of_busy:
        wall = _busy_ms(itertools.chain(*by_name.values()), overlaps=overlaps)
    share = _busy_ms(by_name[name], overlaps=overlaps, last_ends=last_ends) / wall
    return {"other": "", "operation": name, "share": share}


COSTLIEST = Check(
    name="costliest",
    title="The costliest kind of work",
    question="Two threads multiply at the same time, for 6 ms each. How much of the step is that?",
    direction="Draw the events of one operation on one line of time, and colour what they cover.",
    cost=Cost.PURE,
    inputs=_costliest_inputs,
    call=_costliest_call,
    reference=_costliest_reference,
    criteria=(
        Form(
            "it returns an operation's name and a number",
            lambda given, out: isinstance(out["other"], str) and out["other"] == "",
            key="other",
        ),
        Equal("operation", "the operation that covers most of the time", points=2),
        Close("share", "its share of the whole time", atol=1e-3, points=2),
    ),
    hint="Leave out the events that are called waits. For each operation sort its events by start, "
    "and add only what lies behind the end of all earlier ones. Divide by the time from the first "
    "start to the last end, of all events.",
    revisit="A timeline shows who waits",
    mistakes=(
        Fault("overlaps_added", sees=("operation", "share"), overlaps=True).feedback(
            "You added up the events of both threads, so an operation that runs on two threads at "
            "once counts twice, and shares can exceed 100 %. How long did a clock on the wall run "
            "meanwhile?"
        ),
        Fault("nested_ends", sees="share", last_ends="span")
        .or_with(last_ends="sweep")
        .feedback(
            "An event that lies within a longer one ends your count where the short one ends, "
            "although the long one goes on. So you count too little or too much wherever events "
            "nest. Which of the two ends must you go on from?"
        ),
        Fault("waiting_as_work", sees=("operation", "share"), waits=True).feedback(
            "Your costliest operation is the wait for a batch. It's the longest entry, and nothing "
            "is computed in it, so no faster kernel would help. Which events are work?"
        ),
        Fault("counted_not_timed", sees="operation", by_count=True).feedback(
            "You chose the operation that runs most often. It takes a few tenths of a millisecond "
            "each time. What does a step pay for: calls, or time?"
        ),
        Fault("share_of_the_busy_time", sees="share", of_busy=True).feedback(
            "You divided by the time in which something computes, so the waits have vanished from "
            "the step. Whoever speeds up this operation will see less than you promise. How long "
            "does the step take on the wall?"
        ),
    ),
)


# --- remedies: which of three changes helps a step

_REMEDIES = ("prefetch", "XLA", "larger batch", "nothing")


def _remedy_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # waits: the step waits for its batch; products, others: what the device computes; the rest of
    # the time it does nothing, because the next operation hasn't been started yet.
    cases = [
        {"waits": 52, "products": 26, "others": 18},
        {"waits": 2, "products": 28, "others": 64},
        {"waits": 1, "products": 17, "others": 12},
        {"waits": 2, "products": 83, "others": 12},
    ]
    shifts = [int(shift) for shift in draw.integers(-2, 3, size=len(cases))]
    rows: list[dict[str, float]] = [
        {**case, "products": case["products"] + shift}
        for case, shift in zip(cases, shifts, strict=True)
    ]
    # Near the borders: two losses that are almost equal, and products of 1.5 to 2.5 times a loss.
    rows += [
        {"waits": 5, "products": 30, "others": 32},
        {"waits": 4, "products": 31, "others": 32.75},
        {"waits": 30, "products": 60, "others": 5},
        {"waits": 2, "products": 65, "others": 26},
        {"waits": 5, "products": 48, "others": 32},
    ]
    return {"cases": [rows[place] for place in draw.permutation(len(rows))]}


def _remedy_call(remedy: Callable[..., Any], inputs: Inputs) -> Plain:
    return {"words": [remedy(**case) for case in inputs["cases"]]}


def _remedy_reference(
    given: Inputs, *, idle: str = "larger batch", others: str = "XLA", waits: str = "prefetch"
) -> Plain:
    """The word for the largest loss of each case."""
    words = []
    for case in given["cases"]:
        losses = {
            waits: case["waits"],
            others: case["others"],
            idle: 100 - sum(case.values()),
        }
        loss = max(losses.values())
        words.append(
            "nothing"
            if case["products"] > 2 * loss
            else next(word for word, share in losses.items() if share == loss)
        )
    return {"words": words}


REMEDY = Check(
    name="remedy",
    title="The remedy that a timeline asks for",
    question="What is the largest part of the time in which no product runs?",
    direction="Work out the idle time first: what is left of 100. Then find the largest of the "
    "three losses.",
    cost=Cost.PURE,
    inputs=_remedy_inputs,
    call=_remedy_call,
    reference=_remedy_reference,
    criteria=(
        Form(
            f"one of {', '.join(_REMEDIES)} for each case",
            lambda given, out: all(word in _REMEDIES for word in out["words"]),
            key="words",
        ),
        Equal("words", "the remedy for each case", points=3),
    ),
    hint="The losses are waits, others and 100 - waits - products - others. If the products take "
    "more than twice the largest loss, the answer is nothing. Otherwise prefetch cures waits, XLA "
    "cures others, and a larger batch the idle time.",
    revisit="A timeline shows who waits",
    mistakes=(
        Fault("xla_for_idle", idle="XLA", others="larger batch").feedback(
            "You use XLA against idle time and a larger batch against small operations. A larger "
            "batch makes every operation longer, whatever its kind. Which of the two losses does "
            "XLA remove by joining operations into one?"
        ),
        Fault("prefetch_for_idle", idle="prefetch", waits="larger batch").feedback(
            "You use prefetch where the device is idle between operations. The batch is already "
            "there, so reading ahead changes nothing. What does the device wait for in these gaps?"
        ),
        Observed(
            "never_nothing",
            lambda given, out: "nothing" not in out["words"] and len(set(out["words"])) > 1,
        ).feedback(
            "You prescribe something for every step, also for the one whose products take four "
            "fifths of the time. What could you win there at most?"
        ),
    ),
)

CHECKS = (COST, MFU, COSTLIEST, REMEDY)
