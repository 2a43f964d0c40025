# %% [markdown]
# # Exercise: ring all-reduce
#
# This exercise follows [lesson 12](../notebooks/12_ring_all_reduce.ipynb). You write both halves of
# an all-reduce in forms that the lesson does not show, choose a route for a network, and repair how
# gradients are packed. Nothing here needs TensorFlow to run, so every check is quick.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `reduce_scatter` | let rank r end with the sum of chunk r | 12 | medium |
# | 2. `all_gather` | gather in log2 N steps instead of N - 1 | 12 | medium |
# | 3. `choose_route` | choose ring or tree for a network | 10 | medium |
# | 4. `pack_gradients` | repair the packing of gradients into messages | 8 | easy |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint.

# %%
from math import log2

import numpy as np
from IPython.display import display

import distlab as dl
from distlab.coursework.unfinished_answers import waits_for
from distlab.measure.simulated_network import Network
from distlab.pictures.all_reduce_traffic import draw_seconds, draw_traffic

draw = np.random.default_rng(0)
dl.show("data set", "random numbers: nothing is downloaded")

# %% [markdown]
# ## Task 1: your own chunk
#
# After the lesson's reduce-scatter, rank r has the sum of chunk r + 1. NCCL and MPI hand rank r the
# sum of chunk r, because the next operation on rank r works on chunk r. Write
# `reduce_scatter(network, chunks)` so that it does, too.
#
# - `chunks[rank][number]` is an array: what this rank has of this chunk. Chunks have different
#   lengths.
# - Each rank sends to the next one only, `(rank + 1) % ranks`. After N - 1 steps it has sent every
#   chunk but one.
# - `network.step({(source, target): array, ...})` sends, and returns what each rank received.
# - Return a list: for each rank the sum of its own chunk. You may change `chunks`. About 9 lines.
#
# <details><summary>Hint</summary>
#
# Chunk 0 must end on rank 0. It travels N - 1 steps. On which rank does it begin?
# </details>


# %%
# task: reduce_scatter
def reduce_scatter(network, chunks):
    ### BEGIN SOLUTION
    ranks = len(chunks)
    for step in range(ranks - 1):
        sends = {}
        for rank in range(ranks):
            sends[rank, (rank + 1) % ranks] = chunks[rank][(rank - 1 - step) % ranks]
        for rank, arrived in network.step(sends).items():
            place = (rank - 2 - step) % ranks
            chunks[rank][place] = chunks[rank][place] + arrived
    return [chunks[rank][rank] for rank in range(ranks)]
    ### END SOLUTION


# %% [markdown]
# Here is what your ranks send. The chunks have 10, 20, 30 and 40 numbers. Why do the bars differ?

# %%
lengths = (10, 20, 30, 40)
given = [[draw.normal(size=n).astype("float32") for n in lengths] for _ in range(4)]
with waits_for("reduce_scatter"):
    network = Network(4)
    reduce_scatter(network, [list(mine) for mine in given])
    display(draw_traffic({"yours": network}, vector_bytes=400))

# %%
dl.check("reduce_scatter")

# %% [markdown]
# **Try next:** send to the left, `(rank - 1) % ranks`. A cable carries as many bytes to the left as
# to the right at the same time. How could two rings use both directions, and what would that save?

# %% [markdown]
# ## Task 2: gather by doubling
#
# Write `all_gather(network, mine)` so that it needs log2 N steps. In step 0, rank r exchanges with
# rank r ^ 1, in step 1 with rank r ^ 2, and then with r ^ 4. (`^` flips a bit: `5 ^ 1` is 4 and
# `5 ^ 2` is 7.) It is called *recursive doubling*, because each rank has twice as much after each
# step.
#
# - `mine[rank]` is the array of this rank. The number of ranks is 8 or 16.
# - A message may be a dictionary of arrays: `network.step({(0, 1): {0: array}, ...})`.
# - Return a list with a dictionary for each rank: the number of every rank, with its array.
# - No rank sends an array to a rank that has it already. About 8 lines.
#
# <details><summary>Hint</summary>
#
# Which arrays does rank 0 have before the last step, and which does its partner have?
# </details>


# %%
# task: all_gather
def all_gather(network, mine):
    ### BEGIN SOLUTION
    have = [{rank: array} for rank, array in enumerate(mine)]
    apart = 1
    while apart < len(mine):
        sends = {(rank, rank ^ apart): arrays for rank, arrays in enumerate(have)}
        for rank, arrays in network.step(sends).items():
            have[rank].update(arrays)
        apart *= 2
    return have
    ### END SOLUTION


# %%
rows = draw.normal(size=(8, 100)).astype("float32")
with waits_for("all_gather"):
    network = Network(8)
    have = all_gather(network, list(rows))
    dl.show("arrays on each rank", [len(arrays) for arrays in have])
    display(draw_traffic({"yours": network}, vector_bytes=rows.nbytes))

# %%
dl.check("all_gather")

# %% [markdown]
# **Try next:** exchange *sums* instead of arrays: in each step both partners add what they receive
# to what they have. That is an all-reduce in log2 N steps. How many bytes does each rank send? Are
# the results of all ranks equal in every bit?

# %% [markdown]
# ## Task 3: ring or tree
#
# You run the same training on several clusters. Write `choose_route(ranks, size_bytes, latency_s,
# gbit_per_s)`. It returns `"ring"` or `"tree"`, whichever takes less time in the lesson's model.
#
# - `ranks` is a power of two, and at least 4.
# - `latency_s` is what each message takes besides its bytes, in seconds.
# - `gbit_per_s` is the bandwidth of a link as vendors state it, in gigabits per second.
# - About 5 lines.
#
# <details><summary>Hint</summary>
#
# Both routes take their number of steps times the time of one step. What differs in one step?
# </details>


# %%
# task: choose_route
def choose_route(ranks, size_bytes, latency_s, gbit_per_s):
    ### BEGIN SOLUTION
    vector_s = size_bytes * 8 / (gbit_per_s * 1e9)
    ring_s = 2 * (ranks - 1) * (latency_s + vector_s / ranks)
    tree_s = 2 * log2(ranks) * (latency_s + vector_s)
    return "ring" if ring_s < tree_s else "tree"
    ### END SOLUTION


# %% [markdown]
# Your choice for 1 KB to 1 GB, on 8 and on 256 ranks, with a latency of 10 µs and 100 Gbit/s:

# %%
with waits_for("choose_route"):
    for ranks in (8, 256):
        words = [choose_route(ranks, 10.0**power, 10e-6, 100) for power in range(3, 10)]
        dl.show(f"{ranks} ranks", ", ".join(words))

# %%
dl.check("choose_route")

# %% [markdown]
# **Try next:** add a third route. Task 2's exchange of sums takes log2 N steps, and each message is
# the whole vector. When does it beat both? Which of its costs does the model not see?

# %% [markdown]
# ## Task 4: messages that leave too late
#
# The backward pass computes the gradient of the *last* layer first. Gradients should leave as soon
# as possible, but not each in a message of its own. The function below packs them, and its users
# report two faults: the first message leaves only at the end of the backward pass, and a buffer of
# `limit` bytes is too small for some messages. Repair `pack_gradients(sizes, limit)`.
#
# - `sizes` is a dictionary from a layer's name to the size of its gradient in bytes, from the first
#   layer to the last.
# - It returns a list of messages, each a list of names. Gradients are sent in the order in which
#   they are ready.
# - If the next gradient would make the message larger than `limit` bytes, it starts a new message.
#   A gradient that is larger than `limit` goes alone.
# - Change about 2 lines.
#
# <details><summary>Hint</summary>
#
# In which order are the gradients ready? And when is the size of the next gradient compared?
# </details>


# %%
# task: pack_gradients
def pack_gradients(sizes, limit):
    messages, room = [], 0
    ### BEGIN SOLUTION
    for name in reversed(sizes):
        if not messages or sizes[name] > room:
            messages.append([])
            room = limit
        messages[-1].append(name)
        room -= sizes[name]
    ### STUB
    for name in sizes:
        if not messages or room <= 0:
            messages.append([])
            room = limit
        messages[-1].append(name)
        room -= sizes[name]
    ### END SOLUTION
    return messages


# %% [markdown]
# A small network, and the time of its messages on a ring of 64 ranks (10 µs, 100 Gbit/s). Where is
# your limit too small, and what does a large limit cost that this picture does not show?

# %%
layers = {f"layer {n}": size for n, size in enumerate([40_000, 2_000, 300_000, 2_000] * 12)}
with waits_for("pack_gradients"):
    seconds = {}
    for limit in (1_000, 10_000, 100_000, 1_000_000, 10_000_000):
        messages = [sum(map(layers.get, names)) for names in pack_gradients(layers, limit)]
        seconds[limit] = sum(126 * (10e-6 + size / 64 / 12.5e9) for size in messages)
    display(draw_seconds({"yours": seconds}, ranks=64, x="limit of a message"))

# %%
dl.check("pack_gradients")

# %% [markdown]
# **Try next:** print the gradients of a model of your own, with their sizes. How many of them are
# smaller than 10 KB, and what share of all bytes do these hold?

# %% [markdown]
# ## Next steps
#
# - [Lesson 12](../notebooks/12_ring_all_reduce.ipynb), if a check sent you back to it.
# - [The glossary](../docs/glossary.md) explains the terms.
# - [The DDP paper](https://arxiv.org/abs/2006.15704) measures what packing gradients
#   saves, and what sending during the backward pass saves.
