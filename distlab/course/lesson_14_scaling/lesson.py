# %% [markdown]
# # Scaling: when do more devices make training slower?
#
# Suppose you measure a training on 8 to 128 GPUs, fit a curve to the numbers, and order 256. A
# straight line promises 19,371 tokens a second for each GPU, and a logarithmic one 25,410. When
# the authors of the [Ultra-Scale
# Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook) ran it, they measured
# 15,700.
#
# A curve knows nothing about what happens inside a step. You'll do better if you know where its
# time goes, and one ratio tells you most of it: the time to send divided by the time to compute.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - time a step without the two classic mistakes, and say which kind of scaling a number is about,
# - predict a cluster from one server and a test of its network, and say how far to trust yourself,
# - read what an all-reduce test says about NVLink, the network and a switch that sums,
# - cut gradients into buckets, so that sending hides behind the backward pass.
#
# **Time:** {minutes}. **Needs:** lessons [01](01_mirrored_strategy.ipynb),
# [09](09_multi_worker.ipynb) and [12](12_ring_all_reduce.ipynb). No GPU, and nothing is downloaded.
# Two worker processes run on this machine for about half a minute.

# %% [markdown]
# <details><summary>Do you remember? Lesson 12: a ring of 4 replicas sums 100 MB. How many MB does
# each of them send, and in how many rounds?</summary>
#
# 150 MB in 6 rounds, because a reduce-scatter and an all-gather have 3 rounds each, and each round
# sends a quarter. With N replicas it's 2(N-1)/N of the gradients in 2(N-1) rounds.
# </details>

# %%
# %load_ext distlab
import time

import numpy as np
import tensorflow as tf

import distlab as dl

# %% [markdown]
# ## A clock that tells the truth
#
# Everything below depends on times, so here are the two mistakes that spoil most of them. The first
# one is to count the first call, in which a `tf.function` [traces](../docs/glossary.md#trace)
# itself.


# %%
@tf.function
def step(x):
    for _ in range(40):
        x = tf.matmul(x, x) / 320.0
    return x


def secs_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


x = tf.ones([320, 320])
first, second, third = (secs_of(lambda: step(x)) for _ in range(3))
dl.show("the first call took more than twice as long", first > 2 * min(second, third))

# %% [markdown]
# The second mistake needs a GPU, or a setting that makes TensorFlow hand work to this CPU nearly as
# it does to a GPU, while the step stays the same.

# %% tags=["predict"]
queue_guess = dl.predict(
    "In this mode you read the clock before and after `step(x)`, which is traced already. How much "
    "of the step's time do you see?",
    ["nearly all of it", "about half", "less than a quarter"],
)

# %%
tf.config.experimental.set_synchronous_execution(False)
step(x)
tf.test.experimental.sync_devices()  # wait until the devices are done
returned, waited = np.transpose(
    [(secs_of(lambda: step(x)), secs_of(tf.test.experimental.sync_devices)) for _ in range(20)]
)
tf.config.experimental.set_synchronous_execution(True)

# %% tags=["reveal"]
seen = min(returned) / min(returned + waited)
queue_guess.reveal(
    "less than a quarter" if seen < 0.25 else "about half" if seen < 0.75 else "nearly all of it",
    {
        "nearly all of it": "That would be so if the call returned when the work is done, as it "
        "does on a CPU by default. A queue returns earlier.",
        "about half": "Then Python would have to do half of the work. It only hands the work over.",
        "less than a quarter": "You timed how fast Python fills the queue. The work comes later.",
    },
)

# %% [markdown] tags=["after-reveal"]
# A GPU works while Python goes on, so **wait for the devices before you read the clock, both
# times.** You wait with `sync_devices`, or by reading a result. If you forget the first wait, work
# from before is counted; if you forget the second, the step seems faster than the device can be.
#
# > **Takeaway.** Leave out the first calls, and wait for the device before each look at the clock.

# %% [markdown]
# ## Strong or weak?
#
# "Twice the GPUs" has two meanings, and a number tells you little until you know which one it has.
# In [strong scaling](../docs/glossary.md#strong-scaling) the global batch stays, so each replica
# has less and less to do. In [weak scaling](../docs/glossary.md#weak-scaling) each replica keeps
# its batch, and the global batch grows, which changes the training itself ([lesson
# 02](02_batch_scaling.ipynb)). The *efficiency* says how much of a replica's speed is left, and
# papers like to publish the weak one, because it hardly falls.
#
# The Playbook's run is strong scaling, because a model of 1.34 billion parameters trains on 256
# sequences of 4,096 tokens in each step, on any number of H100s.

# %%
from distlab.course.lesson_14_scaling.published import (
    TOKENS_PER_SEC,
    TOKENS_PER_STEP,
    curve,
    sending_secs,
    step_secs,
    step_secs_measured,
)

for gpus, speed in TOKENS_PER_SEC.items():
    dl.show(f"{gpus} GPUs", {"tokens/s each": speed, "step": f"{step_secs_measured(gpus):.2f} s"})

# %% [markdown]
# From 8 to 16 GPUs the step takes a little more than half as long. On 256 the efficiency is down to
# 39 % of that of one server, so you pay for 256 GPUs and get the work of 100.

# %% [markdown]
# ## What a curve can't know
#
# Take the last doubling, after which each GPU has a single sequence, half as much as on 128.

# %% tags=["predict"]
last_guess = dl.predict(
    "From 128 to 256 GPUs each GPU has half as much to compute. What happens to the time of a "
    "step?",
    ["it falls by half", "it falls by a third", "it falls by a sixth", "it grows"],
)

# %%
fallen = 1 - step_secs_measured(256) / step_secs_measured(128)

# %% tags=["reveal"]
falls = {"it falls by half": 1 / 2, "it falls by a third": 1 / 3, "it falls by a sixth": 1 / 6}
last_guess.reveal(
    min(falls, key=lambda words: abs(falls[words] - fallen)) if fallen > 0 else "it grows",
    {
        "it falls by half": "It would if a step did nothing but compute.",
        "it falls by a third": "That's what the straight line says. It would be right if sending "
        "took as long on 256 GPUs as on 128, but the network gets slower.",
        "it grows": "Then the network would have to lose more than the GPUs save. That's close, "
        "but not yet so on 256.",
        "it falls by a sixth": "The GPUs compute half as long, and a good part of that is lost "
        "again, because sending takes longer.",
    },
)

# %% [markdown] tags=["after-reveal"]
# What the GPUs save while computing, the network takes back. So let's describe both parts, with
# numbers that have nothing to do with the curve. On 8 GPUs a step takes 3.26 s, and nearly all of
# that is compute, which more GPUs divide. The gradients are 4 bytes for each parameter, and the
# Playbook's authors tested on their cluster how fast an all-reduce of 256 MB is on each number of
# GPUs. So the model below knows **one server and a test of the network**, and not one of the other
# points.

# %% tags=["after-reveal"]
compute_of_8 = step_secs_measured(8) - sending_secs(8)
for gpus in (16, 64, 256):
    computes, sends = compute_of_8 * 8 / gpus, sending_secs(gpus)
    said = TOKENS_PER_STEP / gpus / (computes + sends)
    parts = {"computes": f"{computes:.2f} s", "sends": f"{sends:.2f} s", "tokens/s": f"{said:,.0f}"}
    dl.show(f"{gpus} GPUs", parts)

# %% tags=["after-reveal"]
from distlab.course.lesson_14_scaling.figures import draw_promises

draw_promises()

# %% [markdown] tags=["after-reveal"]
# *The line and the logarithm were fitted to the first five points, while the model has seen only
# the first one, and all three are tested on the sixth.*

# %% tags=["after-reveal"]
told = {kind: curve(kind)[256] for kind in ("line", "logarithm")}
told["model"] = TOKENS_PER_STEP / 256 / step_secs(256)
for name, tokens in told.items():
    error = 100 * (tokens / TOKENS_PER_SEC[256] - 1)
    dl.show(name, f"{tokens:,.0f} tokens/s, {error:+.0f} %")

# %% [markdown] tags=["after-reveal"]
# The line isn't stupid, because it says that a step computes for so long and sends for so long,
# whatever the number of GPUs. That's exactly the ring of lesson 12, whose bytes hardly grow with N,
# and on the five points that it saw, the line is nearer than the model. What it can't know is that
# 32 servers share a network that one server doesn't need. On 256 GPUs the **ratio** of sending to
# computing has passed 1, and from there on you buy mostly waiting.
#
# > **Takeaway.** Predict from the parts of a step, and test on a point that you kept back. If
# > sending takes longer than computing, more GPUs mostly wait.
#
# <details><summary>Fine print</summary>
#
# On the other counts the model is off by up to 6 %, in both directions. It assumes that nothing is
# hidden and that buckets travel as fast as the tested 256 MB. Both are wrong and here the errors
# cancel, so the data can't tell more hiding from a slower network. The Playbook doesn't state the
# model beside this curve; its table of all runs does, by the same numbers. That gradients have 4
# bytes is from [nanotron's script](https://github.com/huggingface/nanotron),
# `scripts/scaling_benchmarks.py`. The model has no stragglers either, although replicas whose
# compute times scatter wait for the slowest one, which `jitter` in
# `distlab.course.measure.cost_model` counts.
# </details>

# %% [markdown]
# ## What the network gives
#
# The Playbook's authors used `all_reduce_perf` of
# [nccl-tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md), and you should
# run it on each new cluster before anything else. Its *bus bandwidth* is the speed that each link
# of a ring would have had, so it's 2(N-1)/N times the size divided by the time. Inside a server
# GPUs talk through NVLink, which moves 450 GB/s out of an H100; between servers there's a slower
# network. On the Playbook's cluster the test gave 436 GB/s in one server, 100 on 8 servers, and 65
# on 32.

# %% [markdown]
# AWS ran the same test on [one server of eight
# H100s](https://github.com/aws-samples/awsome-distributed-training), where an all-reduce of 16 GiB
# took 62.2 ms.

# %% tags=["predict"]
switch_guess = dl.predict(
    "That makes a bus bandwidth of 483 GB/s, and a link moves 450 GB/s at most. How can that be?",
    [
        "the GPUs sent fewer bytes than a ring must",
        "the links are faster than they should be",
        "a part of the time wasn't counted",
    ],
)

# %%
from distlab.course.lesson_14_scaling.published import H200_BUS_GB_PER_SEC, bus_gb_per_sec

dl.show("bus bandwidth, GB/s", bus_gb_per_sec(2**34, 62.239e-3, gpus=8), digits=0)
for algorithm, speed in H200_BUS_GB_PER_SEC.items():
    dl.show(f"eight H200s, {algorithm}, GB/s", speed, digits=0)

# %% tags=["reveal"]
switch_guess.reveal(
    "the GPUs sent fewer bytes than a ring must"
    if H200_BUS_GB_PER_SEC["NVLS"] > 450 > H200_BUS_GB_PER_SEC["ring"]
    else "the links are faster than they should be",
    {
        "the links are faster than they should be": "Then a ring would be faster, too. On the same "
        "links it reaches about 370.",
        "a part of the time wasn't counted": "A ring is timed in the same way, and stays below "
        "450.",
        "the GPUs sent fewer bytes than a ring must": "The switch between the GPUs sums, so a GPU "
        "neither collects the others' parts nor passes them on.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Since Hopper, the switch between the GPUs of a server can add, which NCCL calls
# [*NVLS*](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-nvls-enable),
# NVLink SHARP. Each GPU hands its gradients to the switch once, and gets the sum back once. It's
# like a vote in which you give your slip to a teller, instead of passing all slips around the room.
# A GPU then sends about S bytes, so **the bound of 2 S (N-1)/N doesn't hold**, because it's a bound
# for networks in which only the ranks add.
#
# So NCCL has more than rings and trees to choose from. Inside a server it may take NVLS, and
# between servers *NVLSTree*, a tree of servers in each of which the switch sums. In a rack of [72
# GB200s](https://github.com/coreweave/nccl-tests) NVLink reaches all of them, and an all-reduce of
# 512 MiB gets 586 GB/s. The 64 H100s of eight servers got 100 for 256 MB. Where NVLink ends matters
# more than how many GPUs there are.
#
# How much of that speed you get depends on the size. Here is AWS's test for all sizes from 1 MiB.

# %% tags=["after-reveal"]
from distlab.course.lesson_14_scaling.figures import draw_bandwidth

draw_bandwidth()

# %% [markdown] tags=["after-reveal"]
# *Along a curve nothing changes but the size. Small all-reduces spend most of their time on
# latency, and only from about 256 MiB on do you get what you paid for. The black line is what a
# link of an H100 moves in one direction.*
#
# > **Takeaway.** A fast domain ends at its switch. Inside, the switch may even sum; outside, the
# > network decides, and small messages get little of either.
#
# <details><summary>Fine print</summary>
#
# NVIDIA's engineers give [370 GB/s for a ring and about 480 with
# NVLS](https://github.com/NVIDIA/nccl-tests/issues/212) on eight H100s, and say that with NVLS the
# bus bandwidth is no longer what a wire carries. The H200s are
# [ml-engineering's](https://github.com/stas00/ml-engineering/tree/master/network), measured with
# `NCCL_ALGO=Ring` and with NVLS. Counted in detail, a GPU's link carries [1 + 1/N of the
# gradients](https://github.com/NVIDIA/nccl/issues/2140) in each direction with NVLS, 1.13 instead
# of 1.75 for eight GPUs, although the measured gain is smaller. InfiniBand's switches can sum as
# well, and on two servers NCCL's trees [can look
# faster](https://github.com/NVIDIA/nccl/issues/1031) than on more.
# </details>

# %% [markdown]
# ## Send while you compute
#
# The model above lets a GPU compute first and send afterwards. But a backward pass starts at the
# last layer, and the gradients of that layer are ready long before those of the first. So
# frameworks cut the list of gradients into [*buckets*](../docs/glossary.md#bucket), and send a
# bucket as soon as it's full.
#
# Let's watch that on two workers, which train 16 dense layers, and TensorFlow's ring sums their
# gradients, 16 MiB in all. Both workers share this machine, whose memory is faster than any
# network, so a relay between them lets only 160 MB a second through. We note when each layer's
# gradient is there, and when the sum of each bucket is. Without these notes the code looks like
# this:

# %% [markdown]
# ```python
# gradients = tape.gradient(loss, weights)  # of all 16 layers
# for layers in buckets:  # the last layers first
#     context.all_reduce("SUM", [gradients[layer] for layer in layers])
# ```

# %% tags=["predict"]
leave_guess = dl.predict(
    "The code asks for all gradients, and then for the first all-reduce. There are four buckets. "
    "When does the first one leave?",
    [
        "after the whole backward pass, as the code says",
        "during the backward pass, when its own four gradients are there",
        "during the forward pass",
    ],
)

# %%
from distlab.course.lesson_14_scaling.overlap import connect, recorded_overlap, time_steps

with dl.LocalCluster(workers=2) as cluster:
    cluster.run(connect, timeout_secs=120)
    steps = cluster.run(time_steps, (1, 4), timeout_secs=120)[0]

early = {count: step.first_sent_ms < step.backward_ms for count, step in steps.items()}
dl.show("the first bucket left before the backward pass ended, by buckets", early)

# %% tags=["reveal"]
leave_guess.reveal(
    "during the backward pass, when its own four gradients are there"
    if early[4]
    else "after the whole backward pass, as the code says",
    {
        "after the whole backward pass, as the code says": "That's so if Python runs the lines one "
        "after the other. A `tf.function` makes a graph of them, in which an operation waits for "
        "its inputs, and for no line.",
        "during the forward pass": "A gradient needs the loss, so none is there before the forward "
        "pass has ended.",
        "during the backward pass, when its own four gradients are there": "In the graph the first "
        "all-reduce has four inputs, the gradients of the last four layers.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Here is the same step as it was recorded on two cores, the fastest of 50 for each number of
# buckets.

# %% tags=["after-reveal"]
from distlab.course.lesson_14_scaling.figures import draw_overlap

draw_overlap(recorded_overlap())

# %% [markdown] tags=["after-reveal"]
# *One bucket waits for the last gradient, so computing and sending follow each other, while four
# buckets overlap. Sixteen buckets begin even earlier, but each of them pays its own latency, and
# the step ends later than with one.*
#
# Hiding has a limit: nothing can leave before the backward pass begins, and the last bucket always
# leaves after its end. So sending that takes longer than the backward pass stays visible, however
# you cut it. It has a price as well, and the price list is AWS's test. On two servers, an
# all-reduce of 1 GiB takes 4.6 ms.

# %% tags=["predict"]
cut_guess = dl.predict(
    "You cut this 1 GiB into 64 buckets of 16 MiB, which travel one after the other between the "
    "same two servers. How long do all of them take together?",
    ["about as long", "about twice as long", "about four times as long", "64 times as long"],
)

# %%
from distlab.course.lesson_14_scaling.published import TWO_SERVERS_MICROS

together = {mib: 1024 / mib * TWO_SERVERS_MICROS[mib] / 1e3 for mib in (1024, 256, 64, 16)}

# %% tags=["reveal"]
longer = together[16] / together[1024]
times = {"about as long": 1, "about twice as long": 2, "about four times as long": 4}
cut_guess.reveal(
    min(times, key=lambda words: abs(np.log(times[words] / longer))),
    {
        "about as long": "The bytes are the same, so this would be true if there were no latency.",
        "about twice as long": "That's what buckets of 64 MiB cost.",
        "64 times as long": "Then 16 MiB would take as long as 1 GiB, and size wouldn't count at "
        "all.",
        "about four times as long": "A bucket of 16 MiB gets a quarter of the speed, because most "
        "of its time is latency.",
    },
)

# %% tags=["after-reveal"]
for mib, ms in together.items():
    dl.show(f"1 GiB in buckets of {mib} MiB", f"{ms:.1f} ms")

# %% [markdown] tags=["after-reveal"]
# So a bucket should be large enough for the network and small enough to leave early. PyTorch's
# `DistributedDataParallel` takes 25 MiB, while TensorFlow takes one pack for everything, and
# `bytes_per_pack` of its `CommunicationOptions` cuts it ([lesson 12](12_ring_all_reduce.ipynb)).
# The last bucket can't be hidden, so a large first layer, such as an embedding, sets the least that
# you'll see.
#
# > **Takeaway.** Buckets hide sending behind the backward pass, and behind nothing else. Too few
# > of them leave too late, and too many pay too much latency.
#
# <details><summary>Fine print</summary>
#
# The times are our own events, small Python functions in the graph that note the clock when their
# input is there. `tf.timestamp` won't do, because `tf.function` lets its stateful operations wait
# for each other, and that would change what we measure. The workers compute on the same two cores
# that send, so the backward pass gets slower while buckets travel. On a GPU that happens too, since
# NCCL sums with the GPU's own processors. If you accumulate gradients over micro-batches, only the
# last backward pass has something to hide.
# </details>

# %% [markdown]
# ## What to do when it stops scaling
#
# Everything that helps lowers the same ratio of sending to computing. This is what the model says
# of 256 GPUs of the Playbook's cluster:

# %%
computes, sends = compute_of_8 * 8 / 256, sending_secs(256)
backward = 2 / 3 * computes
remedies = {
    "as it is": (1, sends),
    "hide it behind the backward pass": (1, sends - min(sends, backward)),
    "gradients in 16 bits": (1, sends / 2),
    "twice the global batch": (2, sends),
    "16 bits and hidden": (1, sends / 2 - min(sends / 2, backward)),
}
for name, (batches, visible) in remedies.items():
    secs = batches * computes + visible
    speed = batches * TOKENS_PER_STEP / 256 / secs
    dl.show(name, {"tokens/s": f"{speed:,.0f}", "efficiency": f"{batches * computes / secs:.0%}"})

# %% [markdown]
# Twice the batch and half the bytes are worth the same, because each of them halves the ratio. They
# don't cost the same, though, so try them in this order:
#
# | try | costs you |
# |---|---|
# | buckets of a sensible size | nothing, and usually it's on |
# | gradients in 16 bits | rounding: [lesson 07](07_mixed_precision.ipynb) |
# | more examples before each all-reduce | a larger batch: [lesson 02](02_batch_scaling.ipynb) |
# | fewer GPUs in an all-reduce | [splitting the model](18_split_layer_and_text.ipynb) in a server |
# | fewer GPUs | patience; it's the cheapest one, if the ratio is above 1 |
#
# The Playbook's authors took the fourth, and with the model split over four GPUs, 256 of them
# reached 23,775 tokens a second instead of 15,700.
#
# Now move the sliders: with how many sequences in a step do 512 GPUs compute half of the time, and
# does a larger model scale better or worse?

# %%
from distlab.course.lesson_14_scaling.view import explore_cost

explore_cost()

# %% [markdown]
# <details><summary>Answers</summary>
#
# You need between 1,024 and 4,096 sequences, so at least two for each GPU. A larger model scales
# neither better nor worse here, because its compute and its gradients grow by the same factor and
# the ratio stays. What decides is how many tokens each GPU has in a step.
# </details>
#
# > **Takeaway.** Divide the time to send by the time to compute. Whatever lowers that ratio helps,
# > and nothing else does.
#
# <details><summary>On your own machine</summary>
#
# `measure_here` times a CNN and the all-reduce by themselves, in about half a minute, and `fit`
# finds alpha, beta and the compute of an example. Keep some measurements back for the test:
#
# ```python
# from distlab.course.lesson_14_scaling.own_machine import measure_here
# from distlab.course.measure.cost_model import fit, relative_errors
#
# own = measure_here(dl.make_strategy("mirrored"))
# model = fit(own.all_reduces, own.steps[:2], shared=True)  # on GPUs: shared=False
# relative_errors(model, own.steps[2:])
# ```
#
# For a model of your own, write `build()` and `data(batch_size)` into a file, and `distlab bench
# train.py --plot scaling.png` measures it on 1, 2 and 4 replicas.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# In PyTorch, call `torch.cuda.synchronize()` before you read the clock; `bucket_cap_mb` of
# `DistributedDataParallel` sets the size of a bucket, and `model.no_sync()` leaves the all-reduce
# out. In JAX calls return early too, so use `jax.block_until_ready(result)`, and XLA joins
# all-reduces and schedules them beside the compute. With both, set `NCCL_DEBUG=INFO` if you want to
# know which algorithm NCCL takes.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. "We scale to 64 GPUs with 95 % efficiency." What do you ask?</summary>
#
# Is it strong or weak scaling, and is it compared with one GPU or with one server? How many tokens
# does each GPU have in a step, and does the training still reach its accuracy?
# </details>
#
# <details><summary>2. A test gives 480 GB/s of bus bandwidth on links of 450. Is it
# broken?</summary>
#
# No, because bus bandwidth assumes a ring's bytes, and with a switch that sums fewer travel.
# </details>
#
# <details><summary>3. You cut the gradients into twice as many buckets, and the step gets slower.
# What happened?</summary>
#
# Each bucket pays its latency, and smaller ones get less of the bandwidth. Or sending was hidden
# already, so there was nothing to win.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 14](../exercises/14_scaling.ipynb): a stopwatch, a line and its test, buckets, and the
#   number of replicas with the fastest step.
# - [Lesson 15](15_fit_into_memory.ipynb): the step doesn't fit, so what do you drop?
# - [The glossary](../docs/glossary.md) explains the terms.
# - [The Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook) has
#   thousands of such runs, and [PyTorch's DDP paper](https://arxiv.org/abs/2006.15704) is where
#   buckets are explained best.
