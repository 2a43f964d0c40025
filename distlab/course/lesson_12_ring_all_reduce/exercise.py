# %% [markdown]
# # Exercise: ring all-reduce
#
# This exercise follows [lesson 12](../notebooks/12_ring_all_reduce.ipynb). You write both halves of
# an all-reduce in forms that the lesson does not show, choose a route for servers of GPUs, and
# repair how gradients are packed. Nothing here needs TensorFlow to run, so every check is quick.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `reduce_scatter` | scatter in log2 N steps instead of N - 1 | 15 | medium | core |
# | 2. `all_gather` | gather in log2 N steps instead of N - 1 | 12 | medium | extra |
# | 3. `choose_route` | one ring over all GPUs, or two levels | 12 | medium | core |
# | 4. `pack_gradients` | repair the packing of gradients into messages | 8 | easy | core |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint.

# %%
import numpy as np
from IPython.display import display

import distlab as dl
from distlab.course.lesson_12_ring_all_reduce.figures import draw_seconds, draw_traffic
from distlab.course.lesson_12_ring_all_reduce.simulated_network import Network
from distlab.course.runs.outcomes import waits_for

draw = np.random.default_rng(0)
dl.show("data set", "random numbers: nothing is downloaded")

# %% [markdown]
# ## Task 1: scatter by halving
#
# The ring's reduce-scatter needs N - 1 steps. This one needs log2 N. It is called *recursive
# halving*, because the chunks that a rank still has to finish are halved in each step. Write
# `reduce_scatter(network, chunks)`.
#
# - `chunks[rank][number]` is an array: what this rank has of this chunk. Chunks have different
#   lengths. The number of ranks is 4 or 8.
# - In the first step, rank r exchanges with the rank that is N / 2 away, `r ^ (N // 2)`. Then with
#   `r ^ (N // 4)`, and finally with `r ^ 1`. (`^` flips a bit: `5 ^ 1` is 4 and `5 ^ 4` is 1.)
# - In each step a rank gives away half of the chunks that it still has to finish, and adds what it
#   receives to the other half. In the end it has the sum of chunk r, as NCCL and MPI want it.
# - `network.step({(source, target): {number: array, ...}, ...})` sends dictionaries of arrays, and
#   returns what each rank received.
# - Return a list: for each rank the sum of its own chunk. You may change `chunks`. About 12 lines.
#
# <details><summary>Hint</summary>
#
# Rank 0 of four exchanges with rank 2 first. Which two chunks will ranks 0 and 1 finish, and which
# two will ranks 2 and 3 finish?
# </details>


# %%
# task: reduce_scatter
def reduce_scatter(network, chunks):
    ### BEGIN SOLUTION
    ranks = len(chunks)
    apart = ranks // 2
    while apart:
        sends = {}
        for rank in range(ranks):
            partner = rank ^ apart
            # The partner's block of chunks: it finishes them together with its neighbours.
            theirs = [number for number in range(ranks) if number // apart == partner // apart]
            sends[rank, partner] = {number: chunks[rank][number] for number in theirs}
        for rank, arrived in network.step(sends).items():
            for number, array in arrived.items():
                chunks[rank][number] = chunks[rank][number] + array
        apart //= 2
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
# <details><summary>Why do the bars differ?</summary>
#
# Each rank sends every chunk but its own: rank 0 sends 100 - 10 numbers, rank 3 sends 100 - 40. It
# receives the half that it keeps, and then its own chunk: rank 0 gets 30 + 10 numbers, rank 3 gets
# 70 + 40.
# </details>
#
# **Try next:** a rank sends as many bytes as in a ring, in fewer steps. Why would you still prefer
# the ring if the ranks stand in a row, and have cables only to their neighbours in the row?
#
# <details><summary>Answer</summary>
#
# In the first step every rank sends half of its vector to the other half of the row. All these
# messages pass through the one cable in the middle, so it carries N / 2 times half a vector in each
# direction. In the ring each cable carries less than one vector in each direction: one way the
# messages to the next rank, the other way those of the last rank, which travel back to rank 0 along
# the row.
# </details>

# %% [markdown]
# ## Task 2: gather by doubling
#
# Write `all_gather(network, mine)` so that it needs log2 N steps. In step 0, rank r exchanges with
# rank r ^ 1, in step 1 with rank r ^ 2, then with r ^ 4, and so on up to r ^ (N // 2). (`^` flips a
# bit: `5 ^ 1` is 4 and `5 ^ 2` is 7.) It is called *recursive doubling*, because each rank has
# twice as much after each step.
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
#
# <details><summary>Answer</summary>
#
# log2 N vectors, as on the busiest link of a tree. The bits are equal: in each step both partners
# add the same two numbers, and `a + b` is always `b + a`.
# </details>

# %% [markdown]
# ## Task 3: one ring or two levels
#
# Your GPUs are in servers. Inside a server they have fast links. All GPUs of a server share **one**
# slower link to the other servers. There are two routes:
#
# - `"flat"`: one ring over all GPUs. It enters and leaves each server once. In every step some
#   message goes from one server to the next, so each step takes as long as this message.
# - `"two levels"`: first a ring reduce-scatter inside each server. Then each GPU all-reduces its
#   chunk with the GPUs of the same number in the other servers, around a ring. All these rings use
#   the servers' links at the same time. Finally a ring all-gather inside each server.
#
# Write `choose_route(servers, gpus, size_bytes, inside, between)`. It returns the name of the route
# that takes less time in the lesson's model of latency and bandwidth.
#
# - `gpus` is the number of GPUs in each server.
# - `inside` and `between` describe a link inside a server and one between servers, each as a pair
#   `(latency in seconds, gigabits per second)`.
# - About 8 lines.
#
# <details><summary>Hint</summary>
#
# After the reduce-scatter each GPU has a chunk of `size_bytes / gpus`. How many bytes does one
# server's link carry in one step of the rings between servers?
# </details>


# %%
# task: choose_route
def choose_route(servers, gpus, size_bytes, inside, between):
    ### BEGIN SOLUTION
    def secs(link, steps, message_bytes):
        latency_s, gbit_per_s = link
        return steps * (latency_s + message_bytes * 8 / (gbit_per_s * 1e9))

    ranks = servers * gpus
    flat_s = secs(between, 2 * (ranks - 1), size_bytes / ranks)
    # The chunks of all GPUs of a server, size_bytes / gpus / servers each, share its link.
    levels_s = secs(inside, 2 * (gpus - 1), size_bytes / gpus)
    levels_s += secs(between, 2 * (servers - 1), size_bytes / servers)
    return "flat" if flat_s < levels_s else "two levels"
    ### END SOLUTION


# %% [markdown]
# Your choice for 1 KB to 1 GB, with 8 GPUs in each server: 1 µs and 600 Gbit/s inside, 10 µs and
# 200 Gbit/s between servers. Which route wins the large vectors, and why not the other one?

# %%
with waits_for("choose_route"):
    for servers in (4, 32):
        chosen = [choose_route(servers, 8, 10.0**n, (1e-6, 600), (1e-5, 200)) for n in range(3, 10)]
        dl.show(f"{servers} servers", ", ".join(chosen))

# %%
dl.check("choose_route")

# %% [markdown]
# <details><summary>Which route wins the large vectors?</summary>
#
# With 4 servers, the flat ring: it puts 1.94 vectors on a server's link. Two levels put 1.5 vectors
# there, and 1.75 more on the links inside, one after the other. Small vectors take two levels: they
# need 6 slow steps instead of 62. With 32 servers, two levels save so many steps that they win at
# 100 MB, too.
# </details>

# %% [markdown]
# **Try next:** many clusters have one link *for each GPU*. Which route wins then if the vector is
# large and the links inside a server are faster?
#
# <details><summary>Answer</summary>
#
# Two levels, for every size. Each link then carries only its own GPU's chunk, a message of
# `size_bytes / gpus / servers`. Each slow link carries at least `gpus` times fewer bytes than in
# the flat ring, and all other bytes travel inside the servers. That holds against a single flat
# ring, which uses one link of each server. NCCL runs several flat rings at once, one through each
# link, and then the slow links carry nearly the same in both. What two levels still save is
# steps.
# </details>

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
# In which order are the gradients ready?
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
# A small network, and the time of its messages on a ring of 64 ranks (10 µs, 100 Gbit/s). Which of
# these limits are too small, and what does a large limit cost that this picture does not show?

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
# <details><summary>Which limits are too small?</summary>
#
# Every limit below 4.1 MB, the size of all gradients together, is too small for the shortest time:
# each message waits 126 times for the latency. But a large limit costs overlap: a message leaves
# only when its last gradient is ready, so more of the backward pass is over by then.
# </details>
#
# **Try next:** print the gradients of a model of your own, with their sizes. How many of them are
# smaller than 10 KB, and what share of all bytes do these hold?
#
# <details><summary>Answer</summary>
#
# In `keras.applications.ResNet50`, 160 of the 214 gradients are smaller than 10 KB. Together they
# hold 0.3 % of the 102 MB. So most messages would carry almost nothing, if each went alone.
# </details>

# %% [markdown]
# ## Next steps
#
# - [Lesson 12](../notebooks/12_ring_all_reduce.ipynb), if a check sent you back to it.
# - [The glossary](../docs/glossary.md) explains the terms.
# - [The DDP paper](https://arxiv.org/abs/2006.15704) measures what packing gradients
#   saves, and what sending during the backward pass saves.
