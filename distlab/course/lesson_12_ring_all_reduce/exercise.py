# %% [markdown]
# # Exercise: ring all-reduce
#
# For [lesson 12](../notebooks/12_ring_all_reduce.ipynb). You write both halves of an all-reduce in
# a form that needs fewer steps, choose a route for servers of GPUs, and repair how gradients are
# packed. Nothing here runs TensorFlow, so every check is quick.

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
# Write your answers in the cells that start with `# task:`, where a docstring says what each
# function takes and returns. Run them, and then the check below each. If you get stuck, open the
# hint.

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
# How do you scatter in log2 N steps, if the ring needs N - 1? Write `reduce_scatter` by *recursive
# halving*: in each step, a rank gives away half of the chunks that it hasn't given away yet, and
# adds what it receives to the half that it keeps. About 12 lines are enough.
#
# <details><summary>Hint</summary>
#
# Rank 0 of four exchanges with rank 2 first. Which two chunks will ranks 0 and 1 finish, and which
# two will ranks 2 and 3 finish?
# </details>


# %%
# task: reduce_scatter
def reduce_scatter(network, chunks):
    """Sums each chunk over all ranks by recursive halving.

    Rank r first exchanges with `r ^ (N // 2)`, then with `r ^ (N // 4)`, and finally with `r ^ 1`.
    (`^` flips a bit: `5 ^ 1` is 4 and `5 ^ 4` is 1.)

    Args:
        network: `network.step({(source, target): {number: array, ...}, ...})` sends dictionaries
            of arrays, and returns a dictionary from each rank to what it received.
        chunks: `chunks[rank][number]` is the array that this rank has of chunk `number`. Chunks
            have different lengths, there are 4 or 8 ranks, and you may change `chunks`.

    Returns:
        A list with the sum of chunk r for each rank r.
    """
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


# %%
dl.check("reduce_scatter")

# %% [markdown]
# This is what your ranks send if the chunks have 10, 20, 30 and 40 numbers. Why do the bars differ?

# %%
lengths = (10, 20, 30, 40)
given = [[draw.normal(size=n).astype("float32") for n in lengths] for _ in range(4)]
with waits_for("reduce_scatter"):
    network = Network(4)
    reduce_scatter(network, [list(mine) for mine in given])
    display(draw_traffic({"yours": network}, vector_bytes=400))

# %% [markdown]
# <details><summary>Why do the bars differ?</summary>
#
# Each rank sends every chunk but its own, so rank 0 sends 100 - 10 numbers, while rank 3 keeps the
# longest chunk and sends only 100 - 40.
# </details>
#
# **Try next:** a rank sends as many bytes as in a ring, in fewer steps. Why would you still prefer
# the ring if each rank has cables only to its two neighbours in a row?
#
# <details><summary>Answer</summary>
#
# In the first step every rank sends half of its vector to the other half of the row, and all these
# messages pass through the one cable in the middle. It carries N / 2 times half a vector in each
# direction. In the ring each cable carries less than one vector in each direction: one way the
# messages to the next rank, and the other way the last rank's, which travel back to rank 0.
# </details>

# %% [markdown]
# ## Task 2: gather by doubling
#
# How do all ranks get all arrays in log2 N steps? Write `all_gather` by *recursive doubling*, so
# that each rank has twice as much after each step, and no rank sends an array to a rank that has it
# already. About 8 lines are enough.
#
# <details><summary>Hint</summary>
#
# Which arrays does rank 0 have before the last step, and which does its partner have?
# </details>


# %%
# task: all_gather
def all_gather(network, mine):
    """Gives every rank the arrays of all ranks by recursive doubling.

    Rank r exchanges with `r ^ 1`, then with `r ^ 2`, `r ^ 4` and so on up to `r ^ (N // 2)`.

    Args:
        network: A message may be a dictionary of arrays: `network.step({(0, 1): {0: array}, ...})`
            returns a dictionary from each rank to what it received.
        mine: `mine[rank]` is the array of this rank, and there are 8 or 16 ranks.

    Returns:
        A list with a dictionary for each rank, from the number of every rank to its array.
    """
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
dl.check("all_gather")

# %%
rows = draw.normal(size=(8, 100)).astype("float32")
with waits_for("all_gather"):
    network = Network(8)
    have = all_gather(network, list(rows))
    dl.show("arrays on each rank", [len(arrays) for arrays in have])
    display(draw_traffic({"yours": network}, vector_bytes=rows.nbytes))

# %% [markdown]
# **Try next:** exchange *sums* instead of arrays, so that in each step both partners add what they
# receive to what they have. That's an all-reduce in log2 N steps. How many bytes does each rank
# send, and are the results of all ranks equal in every bit?
#
# <details><summary>Answer</summary>
#
# Each rank sends log2 N vectors, as many as the busiest link of a tree. The bits are equal, because
# in each step both partners add the same two numbers, and `a + b` is always `b + a`.
# </details>

# %% [markdown]
# ## Task 3: one ring or two levels
#
# Which route is quicker if GPUs have fast links inside a server, while all of them share **one**
# slower link to the other servers? Write `choose_route`, which returns the quicker of the two
# routes that its docstring describes, in the lesson's model of latency and bandwidth. About 8 lines
# are enough.
#
# <details><summary>Hint</summary>
#
# After the reduce-scatter each GPU has a chunk of `size_bytes / gpus`. How many bytes does one
# server's link carry in one step of the rings between servers?
# </details>


# %%
# task: choose_route
def choose_route(servers, gpus, size_bytes, inside, between):
    """Returns the name of the route whose all-reduce takes less time.

    - `"flat"` is one ring over all GPUs, which enters and leaves each server once. In every step
      some message goes from one server to the next, so each step takes as long as this message.
    - `"two levels"` begins with a ring reduce-scatter inside each server. Then each GPU
      all-reduces its chunk with the GPUs of the same number in the other servers, around a ring,
      and all these rings use the servers' links at the same time. A ring all-gather inside each
      server ends it.

    Args:
        servers: The number of servers.
        gpus: The number of GPUs in each server.
        size_bytes: The size of the vector in bytes.
        inside: A link inside a server, as `(latency in seconds, gigabits per second)`.
        between: The one link between a server and the others, in the same form.
    """

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


# %%
dl.check("choose_route")

# %% [markdown]
# These are your choices for 1 KB to 1 GB, with 8 GPUs in each server, 1 µs and 600 Gbit/s inside,
# and 10 µs and 200 Gbit/s between servers. Which route wins for large vectors, and why?

# %%
with waits_for("choose_route"):
    for servers in (4, 32):
        chosen = [choose_route(servers, 8, 10.0**n, (1e-6, 600), (1e-5, 200)) for n in range(3, 10)]
        dl.show(f"{servers} servers", ", ".join(chosen))

# %% [markdown]
# <details><summary>Which route wins for large vectors?</summary>
#
# With 4 servers it's the flat ring, which puts 1.94 vectors on a server's link. Two levels put 1.5
# vectors there, but 1.75 more on the links inside, one after the other. Small vectors take two
# levels, which need 6 slow steps instead of 62. With 32 servers, two levels save so many steps that
# they also win at 100 MB.
# </details>

# %% [markdown]
# **Try next:** many clusters have one link *for each GPU*. Which route wins then if the vector is
# large and the links inside a server are faster?
#
# <details><summary>Answer</summary>
#
# Two levels, for every size, because each link then carries only its own GPU's chunk, in messages
# of `size_bytes / gpus / servers`. That's at least `gpus` times fewer bytes on a slow link than in
# the flat ring, and all other bytes travel inside the servers. NCCL, though, runs several flat
# rings at once, one through each link, so that the slow links carry nearly the same on both routes.
# What two levels still save then is steps.
# </details>

# %% [markdown]
# ## Task 4: messages that leave too late
#
# Why does the first message leave only at the end of the backward pass, and why is a buffer of
# `limit` bytes too small for some messages? Repair `pack_gradients`, which packs gradients into
# messages in the order in which they're ready: the backward pass computes the *last* layer's
# gradient first. Change about 2 lines.
#
# <details><summary>Hint</summary>
#
# In which order are the gradients ready?
# </details>


# %%
# task: pack_gradients
def pack_gradients(sizes, limit):
    """Packs gradients into messages, in the order in which they're ready.

    Args:
        sizes: A dictionary from a layer's name to the size of its gradient in bytes, from the
            first layer to the last.
        limit: The largest size of a message in bytes. If the next gradient would make a message
            larger than that, it starts a new one. A gradient that's larger than `limit` goes
            alone.

    Returns:
        A list of messages, each a list of names.
    """
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


# %%
dl.check("pack_gradients")

# %% [markdown]
# The picture shows how long the messages of a small network take on a ring of 64 ranks (10 µs, 100
# Gbit/s). Which limits are too small, and what does a large one cost that you can't see here?

# %%
layers = {f"layer {n}": size for n, size in enumerate([40_000, 2_000, 300_000, 2_000] * 12)}
with waits_for("pack_gradients"):
    seconds = {}
    for limit in (1_000, 10_000, 100_000, 1_000_000, 10_000_000):
        messages = [sum(map(layers.get, names)) for names in pack_gradients(layers, limit)]
        seconds[limit] = sum(126 * (10e-6 + size / 64 / 12.5e9) for size in messages)
    display(draw_seconds({"yours": seconds}, ranks=64, x="limit of a message"))

# %% [markdown]
# <details><summary>Which limits are too small?</summary>
#
# Every limit below 4.1 MB, the size of all gradients together, is too small for the shortest time,
# because each message waits 126 times for the latency. But a large limit costs overlap, since a
# message leaves only when its last gradient is ready, and by then more of the backward pass is
# over.
# </details>
#
# **Try next:** print the gradients of a model of your own, with their sizes. How many of them are
# smaller than 10 KB, and what share of all bytes do these hold?
#
# <details><summary>Answer</summary>
#
# In `keras.applications.ResNet50`, 160 of the 214 gradients are smaller than 10 KB, and together
# they hold 0.3 % of all bytes. So if each went alone, most messages would carry almost nothing.
# </details>

# %% [markdown]
# ## Next steps
#
# - [Lesson 12](../notebooks/12_ring_all_reduce.ipynb), if a check sent you back to it.
# - [The glossary](../docs/glossary.md) explains the terms.
# - [The DDP paper](https://arxiv.org/abs/2006.15704) measures what packing gradients
#   saves, and what sending during the backward pass saves.
