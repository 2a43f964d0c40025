# %% [markdown]
# # Ring all-reduce: how gradients travel
#
# In 2017 Uber ran TensorFlow's own benchmark on 128 GPUs, and about half of the GPUs' capacity was
# lost to communication. Then Uber replaced TensorFlow's parameter servers ([lesson
# 10](10_parameter_server.ipynb)) with Horovod, which adds up gradients around a ring, and the same
# models reached [88 % of the ideal speed](https://arxiv.org/abs/1802.05799). In this benchmark the
# workers waited for each other in each step, and the parameter servers applied the gradients of all
# of them. So with SGD the training computed the same sums, and they travelled on a different route.
# NCCL, NVIDIA's library for such operations, still has rings among its routes. At the end of this
# lesson you can calculate what a route costs.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - build an all-reduce in three ways, and count the bytes and the steps of each,
# - name the two halves of a ring all-reduce, and say what each rank has in between,
# - say which results of an all-reduce agree in every bit, and which differ,
# - predict how long a route takes, before you run anything,
# - measure how many bytes TensorFlow's all-reduce sends.
#
# **Time:** {minutes}. **Needs:** [lesson 01](01_mirrored_strategy.ipynb) (what an all-reduce
# is) and [lesson 09](09_multi_worker.ipynb) (workers). No GPU, and nothing is downloaded. The last
# part starts four processes on this machine. Linux counts the bytes that they send; on other
# systems the lesson shows those of a simulated network in their place.

# %% [markdown]
# ### Two questions on earlier lessons
#
# 1. Lesson 09: three of four workers have begun an all-reduce. When does it end for them?
# 2. Lesson 11: one of 16 synchronous workers dies, and the others hold the variables. Why do all
#    16 start again?
#
# <details><summary>Answers</summary>
#
# 1. Not before the fourth has begun it, too. An all-reduce needs the values of all workers.
# 2. Every step needs the gradients of all workers, so the 15 cannot finish the next all-reduce.
# </details>

# %%
# %load_ext distlab
import numpy as np

import distlab as dl

devices = dl.split_devices(4)
dl.show("data set", "small vectors: nothing is downloaded")

# %% [markdown]
# (If you see *TensorFlow is already running*, restart the kernel and run from the top. The line
# `%load_ext distlab` prepares worker processes in the background.)
#
# ## All to one, and back
#
# Four replicas have a gradient each, here four numbers. Each wants the sum. In this lesson we call
# a member of an [all-reduce](../docs/glossary.md#all-reduce) a
# [*rank*](../docs/glossary.md#rank), as the communication libraries MPI and NCCL do. `Network` is
# a simulated network: `network.step` sends messages, and returns what each rank has received.

# %%
from distlab.course.lesson_12_ring_all_reduce.simulated_network import Network

given = [[1, 3, 2, 5], [0, 3, 1, 1], [4, 1, 0, 2], [2, 2, 2, 0]]
gradients = [np.array(numbers, np.float32) for numbers in given]
VECTOR_BYTES = gradients[0].nbytes

network = Network(4)
print(network.step({(0, 1): gradients[0], (2, 3): gradients[2]}))  # {(source, target): message}

# %% [markdown]
# Each rank has one link, a cable to the network. In one step it sends at most one message and
# receives at most one, both at the same time. This is how the literature counts the steps of
# collectives.
#
# The simplest route is called *naive*. All ranks send their gradients to rank 0, one after the
# other. Rank 0 adds them up and sends the sum back. (`|=` adds the entries of a dictionary to
# the one on its left.)


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
from distlab.course.lesson_12_ring_all_reduce.figures import (
    draw_busiest,
    draw_seconds,
    draw_traffic,
    shown_bytes,
)

draw_traffic(used, vector_bytes=VECTOR_BYTES)

# %% [markdown]
# The sum is right, and **rank 0's cable is the problem.** It carries three vectors in each
# direction, and the other cables carry one. With 64 ranks it would carry 63 in and after them 63
# out, while the other ranks wait. A gradient of 100 MB takes 10 ms on a link of 10 GB/s, so these
# 126 messages take 1.3 seconds in every training step.

# %% [markdown]
# ## In pairs: a tree
#
# Half of the ranks can send at the same time. In the first step rank 1 sends to rank 0 and rank 3
# to rank 2. In the second step rank 2 sends to rank 0. The way back is the same in reverse. Drawn
# on paper, these messages are a tree with rank 0 at its root.


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
# The tree needs 2 log2 N steps, here 4, where naive needs 2 (N - 1), here 6. The cable of rank 0
# now carries log2 N vectors in each direction. That is better, but each doubling of the ranks adds
# one more vector. (The number of ranks must be a power of two here.)

# %% [markdown]
# ## Around a ring
#
# The idea of the [ring](../docs/glossary.md#ring): **cut the vector into as many chunks as there
# are ranks, and keep all cables busy in every step.** Each rank sends to the next one only. Here
# are the four gradients from above, in chunks of one number, on the devices of four ranks:
#
# ![A moving picture of a ring all-reduce. Four devices hold four numbers each. In three steps each
# device adds what its neighbour sends; in three more the finished sums go around, until all four
# devices hold the sum.](../docs/_static/all_reduce.svg)
#
# Now at your own pace: move the slider "steps that are over", and follow chunk 0, on the left its
# arrows, on the right its column.

# %%
from distlab.course.lesson_12_ring_all_reduce.view import explore_ring

explore_ring()

# %% [markdown]
# The number in a cell says how many ranks' values a chunk contains. In the first N - 1 steps a rank
# adds what arrives to its own. In the last N - 1 steps it keeps what arrives.
#
# ### Reduce-scatter: each rank finishes one chunk
#
# Here is the first half. `chunks[rank]` is the list of a rank's chunks. The chunk that rank r sends
# in step s is number r - s, counted around the ring.


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
# The sum is 7, 9, 5, 8. Rank 0 has the 9, rank 1 the 5, rank 2 the 8 and rank 3 the 7: **each rank
# has one finished chunk of the sum**, and the unfinished chunks are of no more use. This operation
# is a [reduce-scatter](../docs/glossary.md#reduce-scatter): *reduce*, because values are added up;
# *scatter*, because the sum is spread over the ranks.
#
# ### All-gather: the finished chunks go around
#
# In the second half each rank first sends its own finished chunk, and then always the one that it
# received last. This operation is an [all-gather](../docs/glossary.md#all-gather).


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
# Both halves together are the ring all-reduce. You will meet each half alone in [lesson
# 16](16_shard_everything.ipynb): if rank r updates only the weights of its chunk, it needs
# the optimizer's state of that chunk only. The all-gather then sends new weights in place of sums.
# This is the first stage of ZeRO, which saves the memory of large models.

# %%
used["ring"] = ring_network
draw_traffic(used, vector_bytes=VECTOR_BYTES)

# %% [markdown]
# The ring's load is the same on every cable: 1.5 vectors in each direction, with 4 ranks. And if
# the ring grows?

# %% tags=["predict"]
growth_guess = dl.predict(
    "With 4 ranks, each rank of the ring sends 1.5 times its vector. How much does each send with "
    "64 ranks?",
    [
        "about 24 vectors",
        "about 3 vectors",
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


def counted(route, ranks):
    network = Network(ranks)
    ROUTES[route](network, [np.ones(ranks, np.float32)] * ranks)
    return network


def busiest(route, ranks):
    return counted(route, ranks).busiest_link_bytes / (4 * ranks)  # in vectors


draw_busiest({route: {n: busiest(route, n) for n in (2, 4, 8, 16, 32, 64)} for route in ROUTES})

# %% tags=["reveal"]
growth_guess.reveal(
    f"about {busiest('ring', 64):.0f} vectors",
    {
        "about 24 vectors": "There are 21 times as many steps, but each chunk is 16 times smaller: "
        "1.5 * 21 / 16 is 1.97.",
        "about 3 vectors": "It grows, but never beyond 2: in each half a rank sends all chunks "
        "but one.",
        "about 0.1 vectors": "A chunk is 1/64 of the vector, but each rank sends 126 chunks.",
        "about 2 vectors": "2 (N - 1) chunks of 1/N of the vector.",
    },
)

# %% [markdown] tags=["after-reveal"]
# ## What each link carries
#
# A rank sends 2 (N - 1) chunks of S / N bytes, where S is the size of the vector. That is
# **2 S (N - 1) / N bytes, always less than two vectors, however many ranks there are.** If only the
# ranks add, and not the switches, no all-reduce can do better on its busiest link. [Patarasuk and
# Yuan](https://doi.org/10.1016/j.jpdc.2008.09.002) proved this in 2009. Here are the counts beside
# the theory:

# %% tags=["after-reveal"]
for ranks in (4, 16, 64):
    network = counted("ring", ranks)
    sent = network.bytes_sent.max() / (4 * ranks)
    dl.show(f"{ranks} ranks, vectors sent", sent, expected=2 * (ranks - 1) / ranks)
    dl.show(f"{ranks} ranks, steps", network.steps, expected=2 * (ranks - 1))

# %% [markdown] tags=["after-reveal"]
# | route | steps | busiest link, one direction |
# |---|---|---|
# | naive | 2 (N - 1) | (N - 1) S |
# | tree | 2 log2 N | log2 N · S |
# | ring | 2 (N - 1) | 2 S (N - 1) / N |

# %% [markdown]
# ## Which bits are equal
#
# Four ranks now add 102,400 random numbers in float32, by each of the three routes.

# %% tags=["predict"]
bits_guess = dl.predict(
    "Which results are equal in every bit?",
    [
        "all of them",
        "those of all ranks, if they used the same route",
        "those of all ranks with naive and tree, but not with the ring",
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
    "those of all ranks, if they used the same route",
    {
        "all of them": "Each route adds in its own order, and each addition rounds. The results "
        "differ in the last bits.",
        "those of all ranks with naive and tree, but not with the ring": "In the ring, no rank "
        "adds up a chunk by itself. The chunk is added up once, on its way, and then copied.",
        "those of all ranks, if they used the same route": "Each route adds every number up once, "
        "in one order, and then copies the sum.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Every addition rounds, so the order of additions matters in the last bits: `(a + b) + c` is not
# always `a + (b + c)`. Naive adds in the order 0, 1, 2, 3. The tree adds (0 + 1) + (2 + 3). In the
# ring, every chunk begins on a different rank. But in every route, **each number is added up once,
# in one order, and then copied.** So all ranks get the same bits, and the copies of a weight stay
# equal, as lesson 01 requires. Chunk 0 of the ring starts on rank 0 and is added in naive's
# order. The other three quarters are not.
#
# A route that you might invent yourself does worse. Each rank could collect all vectors and add
# them up, beginning with its own. No rank is a bottleneck for adding. But:

# %% tags=["after-reveal"]
own_first = []
for rank in range(4):
    order = [(rank + n) % 4 for n in range(4)]
    own_first.append(sum(numbers[other] for other in order))
differ = (own_first[0] != own_first[1]).sum()
dl.show("numbers of 102,400 that differ between ranks 0 and 1", differ)

# %% [markdown] tags=["after-reveal"]
# 42 % of the gradients that ranks 0 and 1 now apply differ in the last bits. So the copies of the
# weights drift apart from the first step on, and TensorFlow raises no error. If you gather, add in
# the same order on every rank.

# %% [markdown]
# ## What a message costs
#
# Bytes are not the only cost. Even an almost empty message takes time, because it passes through
# drivers, cables and switches. This time is the [latency](../docs/glossary.md#latency), written
# alpha. Beta is the time of one byte, the inverse of the
# [bandwidth](../docs/glossary.md#bandwidth). So a message of n bytes takes alpha + n · beta. A
# route with k steps of such messages takes k (alpha + n · beta). Let us take a latency of 10 µs and
# links of 10 GB/s, as an example. Lesson 14 measures both.

# %%
LATENCY_S, BYTES_PER_S = 10e-6, 10e9


def seconds(route, size, ranks):
    network = counted(route, ranks)
    part = max(message.bytes for message in network.messages) / (4 * ranks)  # of the vector
    return network.steps * (LATENCY_S + part * size / BYTES_PER_S)


for route in ROUTES:
    dl.show(f"{route}: 100 MB on 64 ranks, ms", 1000 * seconds(route, 100e6, 64), digits=1)

# %% [markdown]
# For a large gradient, the ring is almost six times quicker than the tree.

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
        "never: the ring sends less": "It sends fewer bytes in more messages: 126 steps against "
        "12. A small message costs almost only latency.",
        "about 1 KB": "At 1 KB the tree is already ten times quicker.",
        "about 50 MB": "At 50 MB the ring is five times quicker, because the tree sends whole "
        "vectors.",
        "about 1 MB": "Below that, 126 latencies cost more than the bytes.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **Small messages need few steps, large messages need few bytes.** Small ones are common: a
# synchronised BatchNormalization layer of 256 channels (lesson 01) all-reduces three vectors of 1
# KB in each forward pass. On 64 ranks the curves cross at about 1 MB, and with more ranks they
# cross at larger sizes. So libraries choose a route for each message. The authors of the MPI
# library MPICH describe how in [a paper of 2005](https://doi.org/10.1177/1094342005051521). MPICH
# has a route with both advantages, too: *recursive halving and doubling* needs 2 log2 N steps and
# the bytes of a ring. In some of its steps the partners are far apart, so it is quick only in a
# network in which all pairs are equally fast. Until 2019 NCCL had only rings. Its [version
# 2.4](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/) added
# trees, because the latency of a ring grows with every GPU. NCCL's trees are better than ours: they
# send a vector in small pieces, through two trees at once, so a rank sends about two vectors, as in
# a ring.

# %% [markdown]
# ## TensorFlow's own ring
#
# `cross_device_ops` of a MirroredStrategy chooses the route between the devices of one process.
# TensorFlow has four of them. Three run on CPUs, and we give them our random numbers, on four real
# replicas. (`NcclAllReduce` needs GPUs. `CollectiveAllReduce` is what TensorFlow takes by default.)

# %%
import tensorflow as tf

tf.get_logger().setLevel("ERROR")
OPS = {
    "ReductionToOneDevice": tf.distribute.ReductionToOneDevice(),
    "HierarchicalCopyAllReduce": tf.distribute.HierarchicalCopyAllReduce(),
    "CollectiveAllReduce, the default here": None,
}


def all_reduced(ops):
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=ops)
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(numbers[context.replica_id_in_sync_group])
    )

    @tf.function
    def step(values):
        return strategy.run(add_up, args=(values,))

    return [total.numpy() for total in strategy.experimental_local_results(step(values))]


def add_up(mine):
    here = tf.identity(mine)  # on this replica's device, where a gradient would be
    return tf.distribute.get_replica_context().all_reduce("SUM", here)


# %% [markdown]
# For each of the three: how many of the 102,400 sums have different bits than those of our own
# routes?

# %%
exact = np.sum(numbers, axis=0, dtype=np.float64)
for name, ops in OPS.items():
    total = all_reduced(ops)[0]
    differ = {own: (total != vectors[0]).sum() for own, vectors in results.items()}
    dl.show(f"{name}, numbers that differ", differ)
    dl.show("  largest error", np.abs(total - exact).max(), below=1e-6)

# %% [markdown]
# `ReductionToOneDevice` is our naive route, and `CollectiveAllReduce` is our ring: **your few lines
# and TensorFlow's C++ ring add in the same order.** (The 34 are at the borders of chunks.
# TensorFlow's chunks are 64 bytes, or 16 numbers, longer than ours. So its three inner borders lie
# 16, 32 and 48 numbers further on, and these 96 numbers are added in a different order. 34 of them
# round differently.) `HierarchicalCopyAllReduce` adds in yet a different order. All three are
# within 0.000001 of the exact sum.
#
# One process cannot tell us what its devices sent, because they share memory. Real workers can.
# Linux counts the bytes of every connection, and `tcp_bytes_sent` reads these counters. We start
# four workers, and each makes its strategy, as in lesson 09. (On a machine that you share, write
# `dl.LocalCluster(workers=4, isolate=True)`: on Linux the workers then run in a network of their
# own, which no other program reaches.)
#
# Each worker computes the gradient of a dense layer, and all workers add their gradients up.

# %%
cluster = dl.LocalCluster(workers=4)

# %%
# %%workers
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

# %% tags=["predict"]
bytes_guess = dl.predict(
    "Each worker trains on 8 examples in a step. Then the batch grows to 64 examples on each "
    "worker. How does the number of bytes change that a worker sends in a step?",
    ["it grows 8 times", "it doubles, about", "it stays the same", "it falls"],
)


# %%
def megabytes_sent(examples):
    from __main__ import strategy  # the worker's own
    from distlab.course.lesson_12_ring_all_reduce.tcp_bytes import tcp_bytes_sent

    inputs, weights = tf.ones([examples, 1000]), tf.ones([1000, 1000])

    def a_gradient():
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = tf.reduce_mean((inputs @ weights) ** 2)
        return add_up(tape.gradient(loss, weights))

    def one_number():
        return add_up(tf.ones([1]))

    @tf.function
    def step(on_replica):
        return strategy.run(on_replica)

    for on_replica in (a_gradient, one_number):  # the first ones also connect the workers
        step(on_replica)
    before = tcp_bytes_sent()
    for _ in range(10):
        step(a_gradient)
    step(one_number)  # it ends when all workers have begun it, so all bytes of the ten have arrived
    return (tcp_bytes_sent() - before) / 10 / 1e6


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
        "it grows 8 times": "In this step only gradients travel: no examples and no activations.",
        "it doubles, about": "No part of what is sent belongs to an example.",
        "it falls": "A gradient of more examples is no shorter vector.",
        "it stays the same": "A gradient has one number for each weight, for any batch.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **The weights decide the bytes, and not the examples.** So a larger batch on each worker sends
# fewer bytes for each example. How large it may become is a question of training, not of bytes
# ([lesson 02](02_batch_scaling.ipynb)).
#
# The layer has 1,000 x 1,000 weights of 4 bytes, so its gradient has 4 MB. The 6 MB are 2 · 4 MB ·
# 3/4, as the theory says. (The headers of messages are rounded away here.)
# `CommunicationOptions(implementation=...)` of a MultiWorkerMirroredStrategy takes `RING`, `NCCL`
# or `AUTO`. On CPUs all three mean TensorFlow's ring, even for tiny vectors. On GPUs `NCCL` chooses
# by itself among rings, trees, *NVLS* and *NVLSTree*. In the last two the switch of a server sums,
# so a rank sends less than 2 S (N - 1) / N: that bound is for ranks that add themselves.
# [Lesson 14](14_scaling.ipynb) shows what that brings.

# %% [markdown]
# ## Many small gradients
#
# A model has many gradients, and most of them are small. A bias of 10 numbers needs all 2 (N - 1)
# steps, as a large matrix does.

# %% tags=["predict"]
fused_guess = dl.predict(
    "A compiled step all-reduces a list of six gradients. How many all-reduces does each worker "
    "run?",
    ["one", "two, a reduce-scatter and an all-gather", "six"],
)


# %%
def all_reduces_in_a_step(bytes_per_pack):
    from __main__ import strategy

    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)

    def on_replica():
        gradients = [tf.ones([1000]) for _ in range(6)]
        return tf.distribute.get_replica_context().all_reduce("SUM", gradients, options)

    graph = tf.function(lambda: strategy.run(on_replica)).get_concrete_function().graph
    return sum("CollectiveReduce" in operation.type for operation in graph.get_operations())


all_reduces = cluster.run(all_reduces_in_a_step, 0)[0]
dl.show("all-reduces", all_reduces)

# %% tags=["reveal"]
fused_guess.reveal(
    {1: "one", 6: "six"}.get(all_reduces, str(all_reduces)),
    {
        "six": "That is what TensorFlow does outside a tf.function.",
        "two, a reduce-scatter and an all-gather": "One call of the collective does both halves of "
        "the ring.",
        "one": "It joins the gradients first.",
    },
)

# %% [markdown] tags=["after-reveal"]
# TensorFlow writes all six into one vector, reduces it once, and cuts it up again. The latency is
# then paid once. The price: nothing is sent before the last gradient is ready. `bytes_per_pack`
# sets the size above which TensorFlow closes a pack. (The 0 above is the default: one pack,
# whatever its size.) The first pack can then leave during the backward pass:

# %% tags=["after-reveal"]
for bytes_per_pack in (4_000, 1):
    count = cluster.run(all_reduces_in_a_step, bytes_per_pack)[0]
    dl.show(f"bytes_per_pack={bytes_per_pack}", count)
cluster.close()

# %% [markdown] tags=["after-reveal"]
# Each gradient has 4,000 bytes. TensorFlow closes a pack when it has *more* than `bytes_per_pack`,
# so packs of 4,000 hold two gradients each. In the exercise you pack gradients yourself.
#
# <details><summary>In plain TensorFlow</summary>
#
# `tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)` takes the options for
# all collectives of a strategy. The optimizers of Keras 3 hand all gradients to one `all_reduce`,
# so that they share a message. `dl.make_strategy` chooses `ReductionToOneDevice` for logical CPUs:
# they share one memory, so a ring would only copy more often.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# **PyTorch:** `torch.distributed.reduce_scatter_tensor` and `all_gather_into_tensor` are the two
# halves, `all_reduce` is both. `DistributedDataParallel` packs gradients into buckets of 25 MB
# (`bucket_cap_mb`), and reduces a bucket while the backward pass computes the next. `FSDP` uses the
# halves one by one. **JAX:** inside `shard_map`, `jax.lax.psum_scatter`, `all_gather` and `psum`.
# Under `jit` the compiler chooses them. In both, NCCL chooses a ring, a tree or a switch that sums
# (NVLS, NVLSTree) on GPUs, and `NCCL_ALGO=Ring` forces a ring.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You double the number of ranks of a ring from 32 to 64, with the same
# gradient. How do the bytes that each rank sends change?</summary>
#
# By less than 2 %: from 1.94 to 1.97 vectors.
# </details>
#
# <details><summary>2. What does a rank have after a reduce-scatter, and what after the
# all-gather?</summary>
#
# One finished chunk of the sum, and then all of them.
# </details>
#
# <details><summary>3. Two runs of the same training use 4 and 8 replicas of a ring. Can their
# weights be equal in every bit?</summary>
#
# Hardly. The order of additions is different, and each addition rounds. Within one run all replicas
# have the same bits.
# </details>
#
# <details><summary>4. On 256 GPUs a model with many small gradients spends most of its time in
# all-reduces, and the links are almost idle. What do you suspect?</summary>
#
# Latency: too many small messages, each with 510 steps of a ring. Pack gradients into larger
# messages, or use trees.
# </details>
#
# <details><summary>5. A benchmark says "all-reduce of 1 GB on 8 GPUs: 100 GB/s algorithm
# bandwidth", which is the size of the vector divided by the time. How many bytes per second does
# each link of a ring carry?</summary>
#
# 175 GB/s, because each GPU sends 2 · 7/8 of a vector. nccl-tests calls that number the bus
# bandwidth.
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
# - [The glossary](../docs/glossary.md) explains the terms.
# - [Baidu's ring all-reduce of 2017](https://github.com/baidu-research/baidu-allreduce) brought the
#   ring to deep learning. "Independent of the number of GPUs" is true of the bytes, not of the
#   latency.
# - [Horovod](https://arxiv.org/abs/1802.05799) made it common, and
#   [Thakur and others](https://doi.org/10.1177/1094342005051521) compare routes by size.
# - [NCCL's collective operations][nccl]. An [older page][operations] says that the order of the
#   ranks does not affect the result. A different order of the ranks is a different order of
#   additions, and you have seen what that does to the last bits.
#
# [nccl]: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html
# [operations]: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/operations.html
