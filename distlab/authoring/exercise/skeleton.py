"""The source and the checks of a new exercise, as text: one task that works, to be replaced."""

from __future__ import annotations

# <stem>, <slug> and <title> are replaced by the exercise's own.
_SOURCE = """\
# %% [markdown]
# # Exercise: <title>
#
# What it is about, in two sentences. Each check shows your values beside the expected ones. Try as
# often as you like.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `mean_<slug>` | combine unequal shares | 5 | easy |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below. If
# you get stuck, open the hint.

# %%
import numpy as np

import distlab as dl
<import>
# %% [markdown]
# ## Task 1: the mean over unequal shares
#
# Each replica had some examples, and has the sum of their losses. Write `mean_loss(sums, counts)`,
# which returns the mean loss over all examples.
#
# - `sums` and `counts` are arrays with one number for each replica.
# - Each example counts the same on every replica: `mean_loss([6, 4], [3, 1])` is 2.5.
# - About 1 line.
#
# <details><summary>Hint</summary>
#
# How many examples are there in all? What is the sum of all their losses?
# </details>


# %%
# task: mean_<slug>
def mean_loss(sums, counts):
    ### BEGIN SOLUTION
    return np.sum(sums) / np.sum(counts)
    ### END SOLUTION


# %%
dl.check(<check>)

# %% [markdown]
# **Try next:** a question that goes one step further.

# %% [markdown]
# ## Next steps
#
# - Where to go from here.
"""

_OWN_IMPORT = """
from lesson_<stem> import CHECKS

checks = {check.name: check for check in CHECKS}
"""

_CHECKS = '''\
"""Checks of <stem>: what each answer is called with, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Inputs, Plain

_CASES = ("equal", "unequal")


# Task 1: mean_<slug>


def _mean_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)  # different seeds give different inputs
    counts = {"equal": np.full(4, 3), "unequal": draw.permutation([1, 2, 3, 4])}
    return {case: {"sums": draw.normal(size=4), "counts": counts[case]} for case in _CASES}


def _mean_call(mean_loss: Callable[..., Any], inputs: Inputs) -> Plain:
    # The only part that runs the learner's code.
    return {case: mean_loss(inputs[case]["sums"], inputs[case]["counts"]) for case in _CASES}


def _of_all_examples(sums: Any, counts: Any) -> Any:
    return sums.sum() / counts.sum()


def _mean_reference(given: Inputs, *, mean: Callable[[Any, Any], Any] = _of_all_examples) -> Plain:
    # The right answer; each mistake below is one changed argument of it.
    return {case: mean(given[case]["sums"], given[case]["counts"]) for case in _CASES}


_MEAN = Check(
    name="mean_<slug>",
    function="mean_loss",
    title="The mean over unequal shares",
    cost=Cost.PURE,
    inputs=_mean_inputs,
    call=_mean_call,
    reference=_mean_reference,
    criteria=tuple(Close(case, f"{case} shares", atol=1e-6) for case in _CASES),
    question="How much does one example count, on each replica?",
    direction="Which two sums does a mean over all examples need?",
    hint="Add up all losses and all counts first, and divide once.",
    revisit="Task 1: the mean over unequal shares",
    mistakes=(
        Fault("mean_of_means", mean=lambda sums, counts: np.mean(sums / counts)).feedback(
            "You averaged the replicas' means, so a replica with few examples weighs as much as "
            "one with many. How much should each example count?"
        ),
        Fault("mean_of_sums", mean=lambda sums, counts: np.mean(sums)).feedback(
            "You divided the sum of all losses by the number of replicas. How many examples are "
            "there in all?"
        ),
        Fault("not_divided", mean=lambda sums, counts: np.sum(sums)).feedback(
            "You returned the sum of all losses, which grows with the number of examples. By what "
            "must it be divided?"
        ),
    ),
)

CHECKS = (_MEAN,)
'''


def source_text(stem: str, *, own: bool) -> str:
    """Returns the source of an exercise, in jupytext's percent format."""
    name = f"mean_{_slug(stem)}"
    text = _SOURCE.replace("<import>", _OWN_IMPORT if own else "")
    check = f'checks["{name}"]' if own else f'"{name}"'
    return filled(text.replace("<check>", check), stem)


def checks_text(stem: str) -> str:
    """Returns the module of its checks."""
    return filled(_CHECKS, stem)


def _slug(stem: str) -> str:
    return stem.partition("_")[2]


def filled(text: str, stem: str) -> str:
    """Returns a text with the names of an exercise in it."""
    title = _slug(stem).replace("_", " ")
    for word, meant in (("<stem>", stem), ("<slug>", _slug(stem)), ("<title>", title)):
        text = text.replace(word, meant)
    return text
