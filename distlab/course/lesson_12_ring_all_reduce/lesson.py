# %% [markdown]
# # Ring all-reduce: how gradients travel
#
# In 2017 Uber ran TensorFlow's own benchmark on 128 GPUs, and lost about half of what they can
# compute while gradients were on their way. Then it sent the same gradients from neighbour to
# neighbour around a ring, and the GPUs reached [88 % of the ideal
# speed](https://arxiv.org/abs/1802.05799). Nothing in your model tells you which road its gradients
# take, and yet you pay for it in every step.
#
# You'll build three such roads in a few lines each, and your ring will add in the same order as
# TensorFlow's own. After this lesson you can
#
# - build an all-reduce in three ways, and count the bytes and the steps of each,
# - predict how long a route takes before you run it,
# - say which results agree in every bit, and which don't,
# - measure how many bytes TensorFlow's all-reduce sends.
#
# **Time:** {minutes}. **Needs:** [lesson 01](01_mirrored_strategy.ipynb) (what an all-reduce is)
# and [lesson 09](09_multi_worker.ipynb) (workers), but no GPU and no download. The last part starts
# four processes on this machine.
#
# <details><summary>Do you remember? Lesson 09: three of four workers have begun an all-reduce. When
# does it end for them?</summary>
#
# Not before the fourth has begun it as well, because the sum needs the values of all workers.
# </details>

# %%
# %load_ext distlab
import numpy as np

import distlab as dl
from distlab.course.lesson_12_ring_all_reduce.figures import (
    draw_busiest,
    draw_seconds,
    draw_traffic,
    shown_bytes,
)
from distlab.course.lesson_12_ring_all_reduce.runs import (
    all_reduced,
    all_reduces_in_a_step,
    busiest,
    counted,
    megabytes_sent,
)
from distlab.course.lesson_12_ring_all_reduce.simulated_network import Network

devices = dl.split_devices(4)

# %% [markdown]
# ## All to one, and back
#
# Four replicas have a gradient of four numbers each, and each of them needs the sum of all four.
# The members of such an [all-reduce](../docs/glossary.md#all-reduce) are called
# [*ranks*](../docs/glossary.md#rank), as in the communication libraries MPI and NCCL. On a
# simulated network, `network.step` sends messages and returns what each rank has received:

# %%
given = [[1, 3, 2, 5], [0, 3, 1, 1], [4, 1, 0, 2], [2, 2, 2, 0]]
gradients = [np.array(numbers, np.float32) for numbers in given]
VECTOR_BYTES = gradients[0].nbytes

network = Network(4)
print(network.step({(0, 1): gradients[0], (2, 3): gradients[2]}))  # {(source, target): message}

# %% [markdown]
# Each rank has one link, a cable to the network, on which it sends at most one message in a step
# and receives at most one, both at the same time. On the simplest route, called *naive*, all ranks
# send their gradients to rank 0, one after the other. Rank 0 sums them and sends the sum back.


# %%
def naive(network, values):
    ranks, total = len(values), values[0]
    for rank in range(1, ranks):
        total = total + network.step({(rank, 0): values[rank]})[0]
    results = {0: total}
    for rank in range(1, ranks):
        results |= network.step({(0, rank): total})
    return list(results.values())


used = {"naive": Network(4)}
for rank, total in enumerate(naive(used["naive"], gradients)):
    dl.show(f"rank {rank} has", total)

# %%
draw_traffic(used, vector_bytes=VECTOR_BYTES)

# %% [markdown]
# The sum is right, and **rank 0's cable is the problem**, because everything passes through it
# while the other ranks wait. With 64 ranks it would carry 126 messages, one after the other. If a
# gradient crosses a cable in 10 ms, you'd lose 1.3 seconds in every training step.
#
# > **Takeaway.** A route is as slow as its busiest cable, and the naive route sends everything
# > through one.
#
# <details><summary>Fine print</summary>
#
# Before its ring, Uber's benchmark used parameter servers ([lesson
# 10](10_parameter_server.ipynb)), but its workers waited for each other in each step. So with SGD
# both computed the same sums.
# </details>

# %% [markdown]
# ## In pairs: a tree
#
# Half of the ranks can send at the same time if each of them has a partner. It works like a
# knockout tournament: rank 1 sends to rank 0 while rank 3 sends to rank 2, and in the next round
# only ranks 0 and 2 are left. The way back is the same in reverse. Drawn on paper, these messages
# are a tree with rank 0 at its root. Ours works for 2, 4, 8 ranks and so on, and real ones for any
# number.


# %%
def tree(network, values):
    held, apart = dict(enumerate(values)), 1
    while apart < len(values):
        sends = {(n + apart, n): held[n + apart] for n in range(0, len(values), 2 * apart)}
        for rank, vector in network.step(sends).items():
            held[rank] = held[rank] + vector
        apart *= 2
    while apart > 1:
        apart //= 2
        sends = {(n, n + apart): held[n] for n in range(0, len(values), 2 * apart)}
        held |= network.step(sends)
    return list(held.values())


used["tree"] = Network(4)
for rank, total in enumerate(tree(used["tree"], gradients)):
    dl.show(f"rank {rank} has", total)
dl.show("steps", {name: network.steps for name, network in used.items()})

# %% [markdown]
# Each round of a tournament halves the players, so the tree needs only 2 log2 N steps for N ranks,
# where naive needs 2 (N - 1). Rank 0's cable now carries log2 N vectors in each direction. That's
# far better, but the load is still uneven: ranks 0 and N / 2 send log2 N vectors, while most others
# send only one or two, and every doubling of the ranks adds one vector to the busiest cables.
#
# > **Takeaway.** A tree needs few steps, because half of the ranks send at once. But its busiest
# > cables carry more with every doubling of the ranks.

# %% [markdown]
# ## Around a ring
#
# On both routes most cables are idle most of the time. A [ring](../docs/glossary.md#ring) changes
# that with a single idea: **cut the vector into as many chunks as there are ranks, and keep all
# cables busy in every step.** Each rank sends to the next one only, a different chunk each time.
# Here are the four gradients from above, in chunks of one number:
#
# ![A moving picture of a ring all-reduce. Four devices hold four numbers each. In three steps each
# device adds what its neighbour sends; in three more the finished sums go around, until all four
# devices hold the sum.](../docs/_static/all_reduce.svg)
#
# Now at your own pace: move the slider "steps that are over", and follow chunk 0, on the left by
# its arrows and on the right in its column.

# %%
from distlab.course.lesson_12_ring_all_reduce.view import explore_ring

explore_ring()

# %% [markdown]
# The number in a cell says how many ranks' values a chunk contains. It grows during the first
# N - 1 steps, because a rank adds what arrives to its own chunk. In the last N - 1 steps the chunks
# that arrive are finished, so the rank keeps them instead.
#
# ### Reduce-scatter: each rank finishes one chunk
#
# Here is the first half, in which `chunks[rank]` is the list of a rank's chunks. In step s, rank r
# sends chunk number r - s, counted around the ring, and the next rank adds it to its own. So rank 0
# sends chunk 0, then 3, then 2:


# %%
def reduce_scatter(network, chunks):
    ranks = len(chunks)
    for step in range(ranks - 1):
        sends = {}
        for rank in range(ranks):
            sends[rank, (rank + 1) % ranks] = chunks[rank][(rank - step) % ranks]
        for rank, arrived in network.step(sends).items():
            chunks[rank][(rank - 1 - step) % ranks] += arrived


ring_network = Network(4)
chunks = [np.split(vector.copy(), 4) for vector in gradients]
reduce_scatter(ring_network, chunks)
for rank, mine in enumerate(chunks):
    dl.show(f"rank {rank} has", np.concatenate(mine))

# %% [markdown]
# The sum is 7, 9, 5, 8. Rank 0 now has the 9, rank 1 the 5, rank 2 the 8 and rank 3 the 7, so
# **each rank has one finished chunk of the sum**, and the others are no longer needed. This is a
# [reduce-scatter](../docs/glossary.md#reduce-scatter): *reduce*, because values are summed, and
# *scatter*, because the sum is spread over the ranks.
#
# ### All-gather: the finished chunks go around
#
# In the second half each rank first sends its own finished chunk, and from then on always the one
# that it received last, so rank 0 sends chunk 1, then 0, then 3. This operation is an
# [all-gather](../docs/glossary.md#all-gather):


# %%
def all_gather(network, chunks):
    ranks = len(chunks)
    for step in range(ranks - 1):
        sends = {}
        for rank in range(ranks):
            sends[rank, (rank + 1) % ranks] = chunks[rank][(rank + 1 - step) % ranks]
        for rank, arrived in network.step(sends).items():
            chunks[rank][(rank - step) % ranks] = arrived


all_gather(ring_network, chunks)
for rank, mine in enumerate(chunks):
    dl.show(f"rank {rank} has", np.concatenate(mine))

# %% [markdown]
# Both halves together are the ring all-reduce, and you'll meet each of them alone in [lesson
# 16](16_shard_everything.ipynb). There rank r updates only the weights of its chunk, so it needs
# the optimizer's state of that chunk only, and the all-gather sends new weights in place of sums.
# That's the first stage of ZeRO, which saves the memory of large models.
#
# > **Takeaway.** A ring all-reduce has two halves. After the reduce-scatter, each rank has finished
# > one chunk of the sum; the all-gather then takes the finished chunks to all ranks.

# %% [markdown]
# ## What each link carries
#
# A route is as slow as its busiest cable, so we look at all cables of the three routes:

# %%
used["ring"] = ring_network
draw_traffic(used, vector_bytes=VECTOR_BYTES)

# %% [markdown]
# The ring's cables all carry the same, 1.5 vectors with four ranks. The load of naive grows with
# the number of ranks and the tree's with each doubling, so what does the ring's do?

# %% tags=["predict"]
growth_guess = dl.predict(
    "With 4 ranks, each rank of the ring sends 1.5 times its vector. How much does each send with "
    "64 ranks?",
    [
        "about 32 vectors",
        "about 4.5 vectors",
        "about 2 vectors",
        "about 0.1 vectors",
    ],
)


# %%
def ring(network, values):
    chunks = [np.array_split(vector.copy(), len(values)) for vector in values]
    reduce_scatter(network, chunks)
    all_gather(network, chunks)
    return [np.concatenate(mine) for mine in chunks]


ROUTES = {"naive": naive, "tree": tree, "ring": ring}
draw_busiest(
    {name: {n: busiest(route, n) for n in (2, 4, 8, 16, 32, 64)} for name, route in ROUTES.items()}
)

# %% tags=["reveal"]
growth_guess.reveal(
    f"about {busiest(ring, 64):.0f} vectors",
    {
        "about 32 vectors": "A rank does send 126 chunks, and they'd be 32 vectors if each were "
        "still a quarter of one. But each is 16 times smaller.",
        "about 4.5 vectors": "The load of the tree's busiest link does grow threefold. The ring's "
        "never gets to 2, because in each half a rank sends all chunks but one.",
        "about 0.1 vectors": "Six chunks would be that little, as with 4 ranks. A chunk is only "
        "1/64 of the vector, but each rank now sends 126 of them.",
        "about 2 vectors": "In each half a rank sends 63 of the 64 chunks, which is nearly the "
        "whole vector, and there are two halves.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Let S be the size of the vector in bytes. A rank sends N - 1 chunks of S / N bytes in each half,
# so together it sends **2 S (N - 1) / N bytes, always less than two vectors.** Here are the counts
# beside the theory:

# %% tags=["after-reveal"]
for ranks in (4, 16, 64):
    network = counted(ring, ranks)
    sent = network.bytes_sent.max() / (4 * ranks)
    dl.show(f"{ranks} ranks, vectors sent", sent, expected=2 * (ranks - 1) / ranks)
    dl.show(f"{ranks} ranks, steps", network.steps, expected=2 * (ranks - 1))

# %% [markdown] tags=["after-reveal"]
# | route | steps | busiest link, one direction |
# |---|---|---|
# | naive | 2 (N - 1) | (N - 1) S |
# | tree | 2 log2 N | log2 N · S |
# | ring | 2 (N - 1) | 2 S (N - 1) / N |
#
# As long as the ranks do the adding, no route keeps its busiest link below the ring's, as
# [Patarasuk and Yuan](https://doi.org/10.1016/j.jpdc.2008.09.002) proved in 2009. A switch that
# sums by itself can (NCCL's *NVLS* and *NVLSTree*), as [lesson 14](14_scaling.ipynb) shows.
#
# > **Takeaway.** In a ring each rank sends less than two vectors, whether it has 4 ranks or 4,000.
# > What grows with the ranks is the number of steps.

# %% [markdown]
# ## Which bits are equal
#
# Each of four ranks gets 102,400 random numbers in float32, and we sum them on all three routes.
# That gives twelve results, one on each rank for each route.

# %% tags=["predict"]
bits_guess = dl.predict(
    "Which of the twelve results are equal in every bit?",
    [
        "all twelve",
        "the eight of naive and tree, because rank 0 sums in both",
        "the four of each route, and no others",
        "the four of naive and those of tree, while the ring's differ",
    ],
)

# %%
draw = np.random.default_rng(0)
numbers = list(draw.normal(size=(4, 102_400)).astype(np.float32))
results = {name: route(Network(4), numbers) for name, route in ROUTES.items()}
for name, vectors in results.items():
    same = all(np.array_equal(vectors[0], vector) for vector in vectors)
    dl.show(f"{name}: all ranks have the same bits", same)
for name in ("tree", "ring"):
    differ = (results[name][0] != results["naive"][0]).sum()
    dl.show(f"{name}: numbers of 102,400 that differ from naive", differ)

# %% tags=["reveal"]
bits_guess.reveal(
    "the four of each route, and no others",
    {
        "all twelve": "They would be if additions didn't round. Each route adds in its own order, "
        "so the results differ in the last bits.",
        "the eight of naive and tree, because rank 0 sums in both": "The last addition is rank 0's "
        "in both, but the tree adds the sum of ranks 2 and 3, and naive adds one after the other.",
        "the four of naive and those of tree, while the ring's differ": "If each rank of the ring "
        "summed all chunks by itself, its results could differ. But a chunk is summed once, on its "
        "way, and then copied.",
        "the four of each route, and no others": "Each route sums every number once, in one order "
        "of its own, and then copies the sum.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Every addition rounds, so `(a + b) + c` isn't always `a + (b + c)`, and each route has an order of
# its own. Naive adds one rank after the other, the tree adds sums of pairs, and in the ring every
# chunk begins on a different rank. But on every route **each number is summed once, in one order,
# and then copied.** That's why all ranks get the same bits, and why the copies of a weight stay
# equal, as lesson 01 requires.
#
# A route that you might invent yourself breaks this rule. Let each rank collect all vectors and sum
# them, beginning with its own, so that no rank has to add for the others:

# %% tags=["after-reveal"]
own_first = []
for rank in range(4):
    order = [(rank + n) % 4 for n in range(4)]
    own_first.append(sum(numbers[other] for other in order))
differ = (own_first[0] != own_first[1]).sum()
dl.show("numbers of 102,400 that differ between ranks 0 and 1", differ)

# %% [markdown] tags=["after-reveal"]
# Now 42 % of the gradients that ranks 0 and 1 apply differ in the last bits. The copies of the
# weights drift apart from the first step on, and TensorFlow raises no error.
#
# > **Takeaway.** Sum each number once and copy the result, or add in the same order on every rank.
# > Otherwise the copies of your weights drift apart.
#
# <details><summary>Fine print</summary>
#
# Chunk 0 of the ring starts on rank 0, so it's added in naive's order and has naive's bits. The
# other three quarters of the vector are added in other orders.
# </details>

# %% [markdown]
# ## What a message costs
#
# So far the ring looks unbeatable, but bytes aren't the only cost. You pay for a message as you do
# for a taxi: once for getting in, and then for every kilometre. Getting in is the
# [latency](../docs/glossary.md#latency), written alpha, because even an almost empty message passes
# through drivers, cables and switches. Each byte then takes another beta, the inverse of the
# [bandwidth](../docs/glossary.md#bandwidth). So a message of n bytes takes alpha + n · beta, and a
# route with k steps takes k times as long. As an example, we take a latency of 10 µs and links of
# 10 GB/s; lesson 14 measures both.

# %%
LATENCY_S, BYTES_PER_S = 10e-6, 10e9


def seconds(route, size, ranks):
    network = counted(ROUTES[route], ranks)
    part = max(message.bytes for message in network.messages) / (4 * ranks)  # of the vector
    return network.steps * (LATENCY_S + part * size / BYTES_PER_S)


for route in ROUTES:
    dl.show(f"{route}: 100 MB on 64 ranks, ms", 1000 * seconds(route, 100e6, 64), digits=1)

# %% [markdown]
# For a large gradient the ring is almost six times quicker than the tree, although it takes 126
# short rides and the tree only 12 long ones. So where does the tree catch up?

# %% tags=["predict"]
small_guess = dl.predict(
    "How small must the vector be so that the tree is as quick as the ring, on 64 ranks?",
    ["never: the ring sends less", "about 1 KB", "about 1 MB", "about 50 MB"],
)

# %%
sizes = np.logspace(3, 9, 25)
times = {route: {size: seconds(route, size, 64) for size in sizes} for route in ("tree", "ring")}
draw_seconds(times, ranks=64)

# %% tags=["reveal"]
even = max(size for size in sizes if times["tree"][size] <= times["ring"][size])
small_guess.reveal(
    f"about {shown_bytes(10 ** round(np.log10(even)))}",
    {
        "never: the ring sends less": "If only bytes cost time, the ring would always win. But it "
        "takes 126 steps against 12, and a small message costs almost only latency.",
        "about 1 KB": "With a latency a thousand times shorter the two would meet there. Here the "
        "tree is already ten times quicker at 1 KB.",
        "about 50 MB": "That takes a latency fifty times longer. Here the ring is five times "
        "quicker at 50 MB, because the tree sends whole vectors.",
        "about 1 MB": "Below that, 126 latencies cost more than the bytes that the ring saves.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **Small messages need few steps, and large messages need few bytes.** On 64 ranks the curves cross
# at about 1 MB, and with more ranks they cross at larger sizes, so a library chooses a route for
# each message. You send small ones more often than you'd think: a synchronized BatchNormalization
# layer of 256 channels (lesson 01) all-reduces three vectors of 1 KB in every forward pass, and for
# each of them the tree is ten times quicker than the ring.
#
# > **Takeaway.** The best route depends on the size of the vector: small ones pay for steps, and
# > large ones for bytes.
#
# <details><summary>How libraries choose</summary>
#
# The authors of the MPI library MPICH describe in [a paper of
# 2005](https://doi.org/10.1177/1094342005051521) how it chooses by size. One of its routes,
# *recursive halving and doubling*, has the bytes of a ring in 2 log2 N steps, but its partners are
# sometimes far apart, so it's quick only if all pairs are equally fast. NCCL had only rings until
# its [version
# 2.4](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/) of 2019
# added trees, because the latency of a ring grows with every GPU. Its trees are better than ours:
# they send a vector in small pieces through two trees at once, so a rank sends about two vectors,
# as in a ring.
# </details>

# %% [markdown]
# ## TensorFlow's own ring
#
# Which of these routes do your gradients take in TensorFlow? You can tell by the bits, because each
# route leaves its order of additions in them like a fingerprint. For the devices of one process,
# the argument `cross_device_ops` of MirroredStrategy chooses the route. We sum our random numbers
# on four real replicas, and count how many of the 102,400 sums differ from those of our own routes:

# %%
import tensorflow as tf

tf.get_logger().setLevel("ERROR")
OPS = {
    "ReductionToOneDevice": tf.distribute.ReductionToOneDevice(),
    "HierarchicalCopyAllReduce": tf.distribute.HierarchicalCopyAllReduce(),
    "CollectiveAllReduce, the default here": None,
}
exact = np.sum(numbers, axis=0, dtype=np.float64)
for name, ops in OPS.items():
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=ops)
    total = all_reduced(strategy, numbers)[0]
    differ = {own: (total != vectors[0]).sum() for own, vectors in results.items()}
    dl.show(f"{name}, numbers that differ", differ)
    dl.show("  largest error", np.abs(total - exact).max(), below=1e-6)

# %% [markdown]
# `ReductionToOneDevice` has the bits of our naive route, and `CollectiveAllReduce`, the default,
# has those of our ring, but for a few numbers at the borders of chunks. So **your few lines and
# TensorFlow's C++ ring add in the same order.** `HierarchicalCopyAllReduce` has yet another order,
# and its sums are no worse.
#
# What devices of one process send, nobody can count, because they share its memory. Real workers
# have connections, whose bytes Linux counts. So we start four, and each makes its strategy, as in
# lesson 09:

# %%
cluster = dl.LocalCluster(workers=4)

# %%
# %%workers
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

# %% [markdown]
# In each step, every worker computes the gradient of a dense layer with 1,000 x 1,000 weights, and
# the four all-reduce it. `megabytes_sent` reads the counters before and after ten such steps.

# %% tags=["predict"]
bytes_guess = dl.predict(
    "Each worker trains on 8 examples in a step. Then the batch grows to 64 examples on each "
    "worker. How does the number of bytes change that a worker sends in a step?",
    ["it grows 8 times", "it doubles, about", "it stays the same", "it falls"],
)

# %%
from distlab.course.lesson_12_ring_all_reduce.tcp_bytes import can_count

if can_count():
    sent = {examples: cluster.run(megabytes_sent, examples) for examples in (8, 64)}
else:
    print("This system counts no bytes of a connection: below are a simulated network's.")
    simulated = Network(4)
    ring(simulated, [np.ones(1_000_000, np.float32)] * 4)  # a gradient, whatever the examples
    sent = dict.fromkeys((8, 64), simulated.bytes_sent / 1e6)
for examples, megabytes in sent.items():
    dl.show(f"{examples} examples, MB that each worker sent in a step", megabytes, digits=0)

# %% tags=["reveal"]
growth = np.mean(sent[64]) / np.mean(sent[8])
ways = {"it grows 8 times": 8, "it doubles, about": 2, "it stays the same": 1, "it falls": 0.5}
bytes_guess.reveal(
    min(ways, key=lambda way: abs(ways[way] - growth)),
    {
        "it grows 8 times": "Examples or activations would have to travel for that. In this step "
        "only gradients do.",
        "it doubles, about": "No part of the message belongs to the examples, as it would have to, "
        "because a gradient is already a mean over all of them.",
        "it falls": "That's true for each example, since eight times as many share one message. "
        "The message itself gets no shorter.",
        "it stays the same": "A gradient has one number for each weight, for any batch.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **The weights decide the bytes, and the examples don't.** A million weights have a gradient of
# 4 MB, and each of four ranks sends 2 · 3/4 of it, so the 6 MB are what the theory says. With a
# larger batch on each worker, the same message serves more examples. How large it may become is a
# question of training and not of bytes ([lesson 02](02_batch_scaling.ipynb)).
#
# > **Takeaway.** TensorFlow's default is the ring that you've built. What it sends in a step
# > depends on the number of weights, so larger batches send fewer bytes for each example.
#
# <details><summary>Fine print</summary>
#
# TensorFlow's chunks are 64 bytes longer than ours, so at their borders 96 numbers are added in a
# different order, and 34 of these round differently.
#
# On several workers, `CommunicationOptions(implementation=...)` takes `RING`, `NCCL` or `AUTO`. On
# CPUs all three mean TensorFlow's ring, even for tiny vectors, and on GPUs NCCL chooses by itself.
# </details>

# %% [markdown]
# ## Many small gradients
#
# A model has many gradients, and most of them are small. On 64 ranks a bias of ten numbers needs
# 126 steps, just like a large matrix, so almost all that it costs is latency. Our next step hands
# six gradients of 4,000 bytes each to one call of `all_reduce`, as a list.

# %% tags=["predict"]
fused_guess = dl.predict(
    "The step is compiled. How many all-reduces are in its graph?",
    ["one", "two, a reduce-scatter and an all-gather", "six, so that each can leave at once"],
)

# %%
all_reduces = cluster.run(all_reduces_in_a_step, 0)[0]
dl.show("all-reduces", all_reduces)

# %% tags=["reveal"]
fused_guess.reveal(
    {1: "one", 6: "six, so that each can leave at once"}.get(all_reduces, str(all_reduces)),
    {
        "six, so that each can leave at once": "That's what TensorFlow does outside a "
        "`tf.function`. In a compiled step it joins the gradients first.",
        "two, a reduce-scatter and an all-gather": "Each half would have to be an operation of its "
        "own. One call of the collective does both halves of the ring.",
        "one": "It joins the gradients first, and then reduces one long vector.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The six share a taxi: TensorFlow writes them into one vector, all-reduces it, and cuts it up
# again, so the latency is paid once. The price is that nothing leaves before the last gradient is
# ready. If you set `bytes_per_pack`, TensorFlow closes a pack as soon as it holds more than so many
# bytes, and the first pack can then leave during the backward pass:

# %% tags=["after-reveal"]
for bytes_per_pack in (4_000, 1):
    count = cluster.run(all_reduces_in_a_step, bytes_per_pack)[0]
    dl.show(f"bytes_per_pack={bytes_per_pack}", count)
cluster.close()

# %% [markdown] tags=["after-reveal"]
# With 4,000 two gradients share each pack, because a pack with one of them isn't larger than the
# limit yet. In the exercise you pack gradients yourself.
#
# > **Takeaway.** Hand all gradients over in one call, so that they share a message. Smaller packs
# > pay more latency, but the first one leaves earlier.
#
# <details><summary>In plain TensorFlow</summary>
#
# `tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)` takes the options for
# all collectives of a strategy, and a `bytes_per_pack` of 0, the default, means one pack whatever
# its size. The optimizers of Keras 3 hand all gradients to one `all_reduce`, so that they share a
# message. `dl.make_strategy` chooses `ReductionToOneDevice` for logical CPUs, because they share
# one memory and a ring would only copy more often.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# **PyTorch:** `torch.distributed.reduce_scatter_tensor` and `all_gather_into_tensor` are the two
# halves, which `FSDP` uses one by one, and `all_reduce` is both. `DistributedDataParallel` packs
# gradients into buckets of 25 MB (`bucket_cap_mb`), and reduces a bucket while the backward pass
# computes the next. **JAX:** inside `shard_map` you call `jax.lax.psum_scatter`, `all_gather` and
# `psum`, and under `jit` the compiler chooses them. In both, NCCL chooses the route on GPUs, and
# `NCCL_ALGO=Ring` forces a ring.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You double the number of ranks of a ring from 32 to 64, with the same
# gradient. How do the bytes that each rank sends change?</summary>
#
# They grow by less than 2 %, from 1.94 to 1.97 vectors, and more ranks never bring them to two.
# </details>
#
# <details><summary>2. What does a rank have after a reduce-scatter, and what after the
# all-gather?</summary>
#
# It has one finished chunk of the sum after the first, and all chunks after the second.
# </details>
#
# <details><summary>3. Two runs of the same training use 4 and 8 replicas of a ring. Can their
# weights be equal in every bit?</summary>
#
# Hardly, because the order of additions is different and each addition rounds. Within one run,
# though, all replicas have the same bits.
# </details>
#
# <details><summary>4. On 256 GPUs a model with many small gradients spends most of its time in
# all-reduces, and the links are almost idle. What do you suspect?</summary>
#
# Latency, because each of too many small messages takes 510 steps of a ring. Pack the gradients
# into larger messages, or use trees.
# </details>
#
# <details><summary>5. A benchmark says "all-reduce of 1 GB on 8 GPUs: 100 GB/s algorithm
# bandwidth", which is the size of the vector divided by the time. How many bytes per second does
# each link of a ring carry?</summary>
#
# It carries 175 GB/s, because each GPU sends 2 · 7/8 of a vector. nccl-tests calls that number the
# bus bandwidth.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 12](../exercises/12_ring_all_reduce.ipynb): both halves in a different form, the
#   choice of a route, and packing.
# - [Lesson 14](14_scaling.ipynb) measures latency and bandwidth, and predicts when more devices
#   make training slower.
# - [Baidu's ring all-reduce of 2017](https://github.com/baidu-research/baidu-allreduce) brought the
#   ring to deep learning. It calls its speed "independent of the number of GPUs", which is true of
#   the bytes and not of the latency.
# - [NCCL's collective operations][nccl] are the field's reference. An [older page][operations] says
#   that the order of the ranks doesn't affect the result, but you've seen what another order of
#   additions does to the last bits.
#
# [nccl]: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html
# [operations]: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/operations.html
