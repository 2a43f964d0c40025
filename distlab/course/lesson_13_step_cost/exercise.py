# %% [markdown]
# # Exercise: what a step costs
#
# This exercise follows [lesson 13](../notebooks/13_step_cost.ipynb). You count what a modern
# transformer costs, reproduce two published MFUs, find the costliest work in a timeline, and choose
# a remedy.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `transformer_cost` | count the parameters and FLOPs of a Llama | 18 | medium | core |
# | 2. `mfu` | reproduce the MFU that a page publishes | 12 | medium | core |
# | 3. `costliest` | repair a search for the costliest work | 15 | medium | core |
# | 4. `remedy` | choose between prefetch, XLA and a larger batch | 8 | easy | extra |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint.

# %%
from IPython.display import display

import distlab as dl
from distlab.course.figures.timeline import draw_timeline, one_operation
from distlab.course.lesson_13_step_cost.published import (
    LLAMA_3_8B,
    LLAMA_3_8B_PARAMETERS,
    PUBLISHED,
)
from distlab.course.lesson_13_step_cost.recorded import recorded_steps
from distlab.course.runs.outcomes import waits_for

dl.show("points of the tasks", 15)

# %% [markdown]
# ## Task 1: what a transformer costs
#
# How many parameters does a model have, and how many FLOPs does a training step take? Write
# `transformer_cost(sizes, length, batch)` for models like Llama 3. It returns both numbers as whole
# numbers, for `batch` texts of `length` tokens.
#
# `sizes` is a dictionary like this one:

# %%
LLAMA_3_8B

# %% [markdown]
# - Queries and the attention's output are products with d by d matrices, where d is the `width`.
#   The keys have only `key_heads` of the `heads`, and so have the values: d · d · `key_heads` /
#   `heads` weights each.
# - Behind the attention come three matrices of d by `hidden`: up, gate and down.
# - Each layer has two norms with d weights, and one more norm follows the last layer. Norms count
#   as parameters; for the FLOPs, count matrix products only, and attention without a causal half.
# - Two tables of `vocabulary` by d: the embedding, which is a lookup, and the head, a product.
#
# About 10 lines.
#
# <details><summary>Hint</summary>
#
# How many multiplications does one weight do for one token, in the forward pass and in a whole
# step? Then add the two products that have no weights.
# </details>


# %%
# task: transformer_cost
def transformer_cost(sizes, length, batch):
    ### BEGIN SOLUTION
    d, layers = sizes["width"], sizes["layers"]
    keys = d * sizes["key_heads"] // sizes["heads"]
    layer = 2 * d * d + 2 * d * keys + 3 * d * sizes["hidden"]
    table = sizes["vocabulary"] * d
    parameters = layers * (layer + 2 * d) + d + 2 * table
    weights = layers * layer + table  # those that multiply
    flops_of_a_token = 6 * weights + 12 * layers * d * length
    return parameters, batch * length * flops_of_a_token
    ### END SOLUTION


# %%
dl.check("transformer_cost")

# %%
with waits_for("transformer_cost"):
    parameters, flops = transformer_cost(LLAMA_3_8B, 8192, 2)
    dl.show("the published parameters", parameters == LLAMA_3_8B_PARAMETERS)
    dl.show("PFLOP in a step of two texts", flops / 1e15, digits=2)

# %% [markdown]
# **Try next:** at which length does attention take as many FLOPs as all weights together?
#
# <details><summary>Answer</summary>
#
# Where 12 · L · d · T is 6 times the weights that multiply: with 7.5 billion of them, at a T of
# about 28,600 tokens. Llama 3 was trained with 8,192 tokens for most of the time, and with 131,072
# at the end.
# </details>

# %% [markdown]
# ## Task 2: a published MFU
#
# How does a page get from tokens a second to a percentage? Write `mfu(run)`, which returns a part
# of 1 and reproduces the 33 % and 39 % of [torchtitan's
# benchmarks](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md).
# Its speeds are those of one GPU.

# %%
PUBLISHED[0]

# %% [markdown]
# - torchtitan counts the weights without the embedding, and attention without a causal half.
# - Some pages leave a number out. It's `None` then: raise a `ValueError` whose text names the key,
#   such as `"length"`. `name` and `published` don't enter.
#
# About 8 lines.
#
# <details><summary>Hint</summary>
#
# Multiply the tokens a second by the FLOPs of one token, and compare the result with what the GPU
# can do in a second.
# </details>


# %%
# task: mfu
def mfu(run):
    ### BEGIN SOLUTION
    for name in ("parameters", "embedding", "layers", "width", "length", "peak", "tokens_per_sec"):
        if run[name] is None:
            raise ValueError(f"the page doesn't state {name!r}")
    weights = run["parameters"] - run["embedding"]
    flops_of_a_token = 6 * weights + 12 * run["layers"] * run["width"] * run["length"]
    return run["tokens_per_sec"] * flops_of_a_token / run["peak"]
    ### END SOLUTION


# %%
dl.check("mfu")

# %%
with waits_for("mfu"):
    for run in PUBLISHED:
        percent = f"{100 * mfu(run):.1f} %, published {run['published']} %"
        dl.show(run["name"], percent)

# %% [markdown]
# Your 33.7 % becomes the page's 33 % if the decimals are cut off, as they seem to be there.

# %% [markdown]
# **Try next:** with float8 products the same page reports 8,532 tokens a second, and no MFU. Why?
#
# <details><summary>Answer</summary>
#
# Some products then run in float8 and others in bfloat16, and the GPU has a different peak for
# each. So the page says that MFU isn't well defined there, and leaves it out. Tokens a second still
# compare.
# </details>

# %% [markdown]
# ## Task 3: the costliest work
#
# Which kind of operation takes the largest part of a step? `costliest(events)` should return its
# name and its share of the whole time, from the first start to the last end. The function below
# adds up what overlaps, so its share is too large, and in some timelines it names the wrong
# operation. Repair it.
#
# - An event is `(thread, operation, start_ms, ms)`, and events come in any order.
# - Two threads can run the same operation at the same time, and an event can lie within another.
#   Count such a time once.
# - `"waits"` is no operation, but its time belongs to the whole.
#
# About 15 lines.
#
# <details><summary>Hint</summary>
#
# Draw the events of one operation on one line of time, and colour what they cover. How would you
# add up the coloured parts, from left to right?
# </details>


# %%
# task: costliest
def costliest(events):
    ### BEGIN SOLUTION
    def covered(spans):
        total, until = 0, float("-inf")
        for start, end in sorted(spans):
            total += max(0, end - max(start, until))
            until = max(until, end)
        return total

    spans = {}
    for _, operation, start, ms in events:
        spans.setdefault(operation, []).append((start, start + ms))
    first = min(start for _, _, start, _ in events)
    last = max(start + ms for _, _, start, ms in events)
    spans.pop("waits", None)
    name = max(spans, key=lambda operation: covered(spans[operation]))
    return name, covered(spans[name]) / (last - first)
    ### STUB
    spent = {}
    for _, operation, _, ms in events:
        spent[operation] = spent.get(operation, 0) + ms
    first = min(start for _, _, start, _ in events)
    last = max(start + ms for _, _, start, ms in events)
    del spent["waits"]
    name = max(spent, key=spent.get)
    return name, spent[name] / (last - first)
    ### END SOLUTION


# %%
dl.check("costliest")

# %% [markdown]
# Now your function reads two steps of the recorded transformer, whose input is slow.

# %%
with waits_for("costliest"):
    for name, events in recorded_steps().timelines.items():
        rows = [
            (e.thread, "waits" if e.kind == "waits" else e.operation, e.start_ms, e.ms)
            for e in events
            if e.kind != "input"
        ]
        operation, share = costliest(rows)
        dl.show(name, f"{operation}, {100 * share:.0f} % of the time")
    by, title = one_operation(operation), "The costliest operation in two steps"
    display(draw_timeline(recorded_steps().timelines, title=title, by=by))

# %% [markdown]
# **Try next:** the operation is the same in both, and its share isn't. What would you speed up
# first in each of the two?
#
# <details><summary>Answer</summary>
#
# Without prefetch the step mostly waits, so even a free operation would gain little: read ahead
# first. With prefetch the share says what a faster kernel could win.
# </details>

# %% [markdown]
# ## Task 4: the remedy
#
# What would you change first, if a timeline gives you three shares of a step in percent: `waits`,
# the time in which the step waits for its batch; `products`, matrix products; and `others`, all
# other operations? What's left of 100 is idle: the device waits for its next operation.
#
# Write `remedy(waits, products, others)`. It returns `"nothing"` if the products take more than
# twice as much as the largest of the three losses. Otherwise it returns the cure for the largest
# loss: `"prefetch"`, `"XLA"` or `"larger batch"`. About 6 lines.
#
# <details><summary>Hint</summary>
#
# Which of the three cures joins small operations, which one makes each operation longer, and which
# one reads ahead?
# </details>


# %%
# task: remedy
def remedy(waits, products, others):
    ### BEGIN SOLUTION
    idle = 100 - waits - products - others
    losses = {"prefetch": waits, "XLA": others, "larger batch": idle}
    cure = max(losses, key=losses.get)
    return "nothing" if products > 2 * losses[cure] else cure
    ### END SOLUTION


# %%
dl.check("remedy")

# %% [markdown]
# **Try next:** a step waits 30 %, its products take 30 % and the others 30 %. Which cure would you
# try first, and why doesn't the timeline alone decide?
#
# <details><summary>Answer</summary>
#
# All three losses are about equal, so try the cheapest cure: `prefetch` is a word at the end of
# your pipeline and changes no result. Then record again, because the shares of a shorter step are
# others.
#
# </details>

# %% [markdown]
# ## Next steps
#
# - [Lesson 13](../notebooks/13_step_cost.ipynb), if a check sent you back to it.
# - [Lesson 14](../notebooks/14_scaling.ipynb) asks what more devices do to a step.
# - [The glossary](../docs/glossary.md) explains the terms.
