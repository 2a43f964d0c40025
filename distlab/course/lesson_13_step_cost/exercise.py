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
# How many parameters does a model like Llama 3 have, and how many FLOPs does a training step take?
# Write `transformer_cost` in about 10 lines. It returns both as whole numbers, from a dictionary
# of sizes like this one:

# %%
LLAMA_3_8B

# %% [markdown]
# The docstring says which matrices a model has, and what to count.
#
# <details><summary>Hint</summary>
#
# How many multiplications does one weight do for one token, in the forward pass and in a whole
# step? Then add the two products that have no weights.
# </details>


# %%
# task: transformer_cost
def transformer_cost(sizes, length, batch):
    """Returns the parameters and the FLOPs of a training step, as whole numbers.

    Norms count as parameters. For the FLOPs, count matrix products only, and attention without a
    causal half. With d for the `width`, a model has these weights:

    - Queries and the attention's output: a d by d matrix each, in every layer.
    - Keys and values: d * d * `key_heads` / `heads` weights each, in every layer.
    - Behind the attention, in every layer: three matrices of d by `hidden`, up, gate and down.
    - Norms: two with d weights in every layer, and one more behind the last layer.
    - Two tables of `vocabulary` by d: the embedding, which is a lookup, and the head, a product.

    Args:
        sizes: A dictionary like `LLAMA_3_8B`.
        length: The number of tokens of a text.
        batch: The number of texts.
    """
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
# How does a page get from tokens a second to a percentage? Write `mfu` in about 8 lines. It
# returns a part of 1 and reproduces the 33 % and 39 % of [torchtitan's
# benchmarks](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md),
# whose speeds are those of one GPU. Here's one of its runs:

# %%
PUBLISHED[0]

# %% [markdown]
# Some pages leave a number out, and the docstring says what to do then.
#
# <details><summary>Hint</summary>
#
# Multiply the tokens a second by the FLOPs of one token, and compare the result with what the GPU
# can do in a second.
# </details>


# %%
# task: mfu
def mfu(run):
    """Returns the MFU of a run, as a part of 1.

    torchtitan counts the weights without the embedding, and attention without a causal half.

    Args:
        run: A dictionary like `PUBLISHED[0]`. A number that the page leaves out is `None`. `name`
            and `published` don't enter.

    Raises:
        ValueError: A number is left out. The text names its key, such as "length".
    """
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
# Which kind of operation takes the largest part of a step? `costliest` should return its name and
# its share of the whole time. The function below adds up what overlaps, so its share is too large,
# and in some timelines it names the wrong operation. Repair it in about 15 lines, so that
# overlapping time counts once.
#
# <details><summary>Hint</summary>
#
# Draw the events of one operation on one line of time, and colour what they cover. How would you
# add up the coloured parts, from left to right?
# </details>


# %%
# task: costliest
def costliest(events):
    """Returns the costliest operation's name, and its share of the whole time.

    The whole time goes from the first start to the last end. "waits" is no operation, but its
    time belongs to the whole. Two threads can run the same operation at the same time, and an event
    can lie within another: count such a time once.

    Args:
        events: A list of tuples `(thread, operation, start_ms, ms)`, in any order.
    """

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
# What would you change first, if you know three shares of a step? Write `remedy` in about 6
# lines. It returns the cure for the largest of three losses: `"prefetch"`, `"XLA"` or `"larger
# batch"`. If the products take more than twice as much as that loss, it returns `"nothing"`.
#
# <details><summary>Hint</summary>
#
# Which of the three cures joins small operations, which one makes each operation longer, and which
# one reads ahead?
# </details>


# %%
# task: remedy
def remedy(waits, products, others):
    """Returns "prefetch", "XLA", "larger batch" or "nothing".

    All shares are percentages of a step. What's left of 100 is idle: the device waits for its next
    operation. The three losses are `waits`, `others` and the idle rest.

    Args:
        waits: The share in which the step waits for its batch.
        products: The share of matrix products.
        others: The share of all other operations.
    """
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
