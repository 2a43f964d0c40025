# %% [markdown]
# # Performance: where the time of a step goes
#
# When Uber measured TensorFlow's distributed training on 128 GPUs in 2017, [about half of what
# the GPUs could do was lost](https://arxiv.org/abs/1802.05799). It was still faster than one GPU,
# so without a measurement you would not see the loss. Horovod, a library with a ring all-reduce,
# [reached 90 % of the ideal
# speed](https://github.com/horovod/horovod/blob/master/docs/benchmarks.rst) on 512 GPUs with two
# neural networks. Not every neural network reaches that.
#
# Which ones lose most, and why? In this lesson you predict it from a handful of numbers, before you
# rent a single GPU.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - time a training step without the two classic mistakes, and tell a speedup from noise,
# - split a step into compute, communication and input, and compute strong and weak scaling,
# - fit a cost model to a few measurements, and test it on others that it has not seen,
# - predict how far a network scales on a cluster, and say how far to trust the prediction.
#
# **Time:** {minutes}. **Needs:** lessons 01, 10 and 12. No GPU, and nothing is downloaded.

# %% [markdown]
# ### Two questions on lessons 10 and 12
#
# 1. An asynchronous worker of lesson 10 becomes slow. Who waits for it? And in an all-reduce?
# 2. A ring of 4 replicas adds up 100 MB. How many MB does each of them send?
#
# <details><summary>Answers</summary>
#
# 1. With parameter servers nothing waits, and the slow worker's gradients become stale. An
#    all-reduce ends when the last replica has taken part, so everything waits.
# 2. 150 MB: a reduce-scatter and an all-gather have 3 rounds each, and a round sends a quarter.
# </details>

# %%
import dataclasses
import time

import distlab as dl

devices = dl.split_devices(2)

import numpy as np
import tensorflow as tf

from distlab.course.figures.step_costs import draw_step_parts
from distlab.course.lesson_14_scaling.recorded import recorded_scaling

tf.get_logger().setLevel("ERROR")
recording = recorded_scaling()
dl.show("recorded on", recording.machine)

# %% [markdown]
# Times differ from run to run, so this page works with recorded times. Each time is from the
# fastest of several runs, each in a fresh process, because whatever else runs on a machine only
# adds time. At the end you can measure your own. The recording has steps of a small CNN with
# 420,000 weights, on 1, 2 and 4 replicas. `python benchmarks/record_scaling.py` in distlab's
# repository records it again.
#
# ## Three parts of a step
#
# A step of synchronous training waits for three things: for its batch (*input*), for the forward
# pass, the backward pass and the update of the weights (*compute*), and for the
# [all-reduce](../docs/glossary.md#all-reduce) (*communication*). You measure three steps. The first
# has its batch in memory and no all-reduce, and its time is the compute. The second also has the
# all-reduce, and the time that this adds is the communication. The third also fetches its batch,
# and the time that this adds is the input. An all-reduce that runs entirely during the backward
# pass adds nothing, so it does not show.
#
# The replicas here are [logical devices](../docs/glossary.md#logical-device) that share two cores.

# %% tags=["predict"]
compute_guess = dl.predict(
    "A global batch of 64 images runs on 1 replica, or on 4 that share two cores. How long is "
    "the compute alone, without input and all-reduce, on 4 replicas?",
    ["about a quarter", "about half", "as long as on 1 replica", "longer than on 1 replica"],
)

# %%
recorded = [recording.step(replicas, 64) for replicas in (1, 2, 4)]
draw_step_parts(recorded)

# %% tags=["reveal"]
ratio = recorded[2].compute_secs / recorded[0].compute_secs
compute_guess.reveal(
    "longer than on 1 replica"
    if ratio > 1.1
    else "as long as on 1 replica"
    if ratio > 0.75
    else "about half"
    if ratio > 0.35
    else "about a quarter",
    {
        "about a quarter": "It would be, if each replica had a processor of its own.",
        "about half": "There are two cores. But one replica already uses both most of the time: "
        "TensorFlow splits each large operation over all cores.",
        "as long as on 1 replica": "The 64 images cost the same. But a replica also does work that "
        "does not depend on its batch.",
        "longer than on 1 replica": "The images cost the same. The other work of each replica adds "
        "to that.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Nothing became faster: **the work that is divided runs on the same two cores.** With 64 images
# the compute takes as long on 2 replicas as on 1, and 65 % longer on 4. The likely reason is
# **work that is not divided:** each replica starts its own operations and updates all of its own
# 420,000 weights. The all-reduce comes on top. This is why lesson 00 said that logical devices
# teach correctness and not speed.
#
# It is also the pattern of every cluster. More replicas divide one part of a step, repeat a second
# part, and add a third. To predict what a cluster does, you need numbers for these parts. So the
# next thing that you need is a stopwatch.

# %% [markdown]
# ## A stopwatch
#
# Here is a step, and a stopwatch around it.


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
# The first call of a `tf.function` [traces](../docs/glossary.md#trace) it. With a real network this
# takes seconds, so a mean over few steps says more about tracing than about training. **Do not
# count the first calls.**
#
# The next cells make TensorFlow hand operations to this CPU nearly as it does to a GPU. The step
# does the same work.

# %% tags=["predict"]
queue_guess = dl.predict(
    "In this mode you read the clock before and after `step(x)`, which is traced already. What do "
    "you see of the time that the step really takes?",
    ["nearly all of it", "about half", "less than a quarter"],
)

# %%
tf.config.experimental.set_synchronous_execution(False)
step(x)
tf.test.experimental.sync_devices()  # wait until the devices are done

# Twenty times: another program can make a time longer, but never shorter, so the shortest counts.
returned, waited = np.transpose(
    [(secs_of(lambda: step(x)), secs_of(tf.test.experimental.sync_devices)) for _ in range(20)]
)
tf.config.experimental.set_synchronous_execution(True)

# %% tags=["reveal"]
seen = min(returned) / min(returned + waited)
queue_guess.reveal(
    "less than a quarter" if seen < 0.25 else "about half" if seen < 0.75 else "nearly all of it",
    {
        "nearly all of it": "It is so on a CPU by default.",
        "about half": "Python does not take a share of the work. It only hands the work over.",
        "less than a quarter": "You timed how fast Python hands the work over.",
    },
)

# %% [markdown] tags=["after-reveal"]
# A GPU works while Python goes on: TensorFlow puts operations into the GPU's queue, and the call
# returns once the last one is in it. So **wait for the devices before you read the clock, both
# times.** If you forget the first wait, work from before is counted. `sync_devices` waits; reading
# a result (`.numpy()`) waits, too. `time_call` does all of this, and repeats it in blocks, here 7
# blocks of 5 calls. The recorded steps were timed in blocks, too:

# %% tags=["after-reveal"]
from distlab.course.measure.timing import differ, time_call

timing = time_call(lambda: step(x), blocks=7, calls=5, warm_up=2)
# `timing.median_secs` is for your machine. From here on, the steps are recorded:

for images in (64, 256):
    one, *more = (recording.step(replicas, images) for replicas in (1, 2, 4))
    for other in more:
        faster = f"{one.whole_secs / other.whole_secs:.2f} times as fast as 1"
        told = {"medians": faster, "differ": differ(one, other)}
        dl.show(f"{images} images, {other.replicas} replicas", told)

# %% [markdown] tags=["after-reveal"]
# The **median** of the blocks is better than their mean: one block that another program disturbed
# moves the mean, and hardly moves the median. The **middle half** tells how far blocks scatter: a
# quarter of them is below it, and a quarter above. `differ(one, other)` compares the middle halves.
# If they overlap, report neither a speedup nor a slowdown: here 2 replicas are "5 % faster" than 1
# with 256 images and "13 % slower" with 64, and the blocks support neither statement. With 32 and
# with 128 images the middle halves lie apart, and 2 replicas are slower. (This is a rule of thumb,
# not a statistical test, and it does not see how whole runs scatter.) To compare two programs, let
# them take turns (`time_in_turns`), so that whatever disturbs one disturbs both.

# %% [markdown]
# ## Strong and weak scaling
#
# "Twice as fast on four GPUs" has two meanings.
#
# - [Strong scaling](../docs/glossary.md#strong-scaling) keeps the **global** batch. Each replica
#   has less to do, and perfect replicas need 1/N of the time. The efficiency of N replicas is
#   `T(1) / (N * T(N))`, where `T` is the time of a step.
# - [Weak scaling](../docs/glossary.md#weak-scaling) keeps the batch **on each replica**. Perfect
#   replicas need the same time for N times the examples. The efficiency is `T(1) / T(N)`.
#
# Papers usually publish the efficiency of weak scaling, as for the five runs below: the global
# batch grows with the cluster. [Lesson 02](02_batch_scaling.ipynb) shows what that does to the
# training itself.
#
# Here are both for the recorded CNN. One replica has 64 images.

# %%
one = recording.step(1, 64).whole_secs
for n in (1, 2, 4):
    strong = one / (n * recording.step(n, 64).whole_secs)
    weak = one / recording.step(n, n * 64).whole_secs
    dl.show(f"efficiency on {n}", {"strong": strong, "weak": weak}, digits=2)

# %% [markdown]
# Perfect replicas would show 1. If one replica kept both cores busy, four could reach at most 1/4
# in both. Weak scaling shows a little more, probably because 64 images do not keep both cores busy
# all the time.
#
# An efficiency says *that* time is lost, and not where. For that we describe each part by numbers.

# %% [markdown]
# ## Two numbers for every size
#
# Start with the all-reduce by itself. `time_all_reduce` in `distlab.course.measure.bandwidth`
# measured it for sizes from 4 bytes to 8 MiB. TensorFlow sends them around a
# [ring](../docs/glossary.md#ring), as in lesson 12.

# %% tags=["predict"]
size_guess = dl.predict(
    "One all-reduce adds up 4 bytes, a second one 2,048 bytes. How many times as long does the "
    "second one take?",
    ["about 500 times", "about 20 times", "about 3 times", "about as long"],
)

# %%
factor = recording.all_reduce(2, 2048).secs / recording.all_reduce(2, 4).secs

# %% tags=["reveal"]
size_guess.reveal(
    "about as long"
    if factor < 1.8
    else "about 3 times"
    if factor < 9
    else "about 20 times"
    if factor < 100
    else "about 500 times",
    {
        "about 500 times": "It would be if time depended on bytes alone.",
        "about 20 times": "There are 512 times as many bytes. But at a few GB/s they take less "
        "than 1 µs, and the whole all-reduce takes more than 200 µs.",
        "about 3 times": "Then the bytes would need hundreds of µs. At a few GB/s, 2,048 bytes "
        "take less than 1 µs.",
        "about as long": "Both take the time that even an empty message takes.",
    },
)

# %% tags=["after-reveal"]
for size_bytes in (4, 2048):
    micros = 1e6 * recording.all_reduce(2, size_bytes).secs
    dl.show(f"all-reduce of {size_bytes:,} bytes", f"{micros:.0f} µs")

# %% [markdown] tags=["after-reveal"]
# As in [lesson 12](12_ring_all_reduce.ipynb), a message costs the **latency** alpha, whatever its
# size, and on top the time beta for each byte, the inverse of the **bandwidth**. A ring of N
# replicas that add up S bytes has 2(N-1) rounds, and sends S/N bytes in each:
#
# ```
# T = 2 * (N - 1) * (alpha + beta * S / N)
# ```
#
# Logical devices share one memory and one processor, so the bytes and the compute of N replicas
# take N times as long. That is what `shared=True` means below.
#
# Are two numbers enough for all sizes and all numbers of replicas? **Fit on some
# of the measurements and predict others.** A model always looks good on points that it has seen.
# Here it sees 2 replicas up to 1 MiB, and must predict what is larger and what has 4 replicas.

# %%
from distlab.course.figures.step_costs import draw_all_reduce_times
from distlab.course.measure.cost_model import fit, predict_steps, relative_errors

known = [r for r in recording.all_reduces if r.replicas == 2 and r.size_bytes <= 2**20]
unseen = [r for r in recording.all_reduces if r not in known]
few_steps = [s for s in recording.steps if s.replicas <= 2]
model = fit(known, few_steps, shared=True)
dl.show("latency of a round", f"{1e6 * model.latency_secs:.0f} µs")
dl.show("bandwidth", f"{model.bytes_per_sec / 1e9:.1f} GB/s")
draw_all_reduce_times(known, model=model, unseen=unseen)

# %% [markdown]
# The flat part on the left is latency, the rising part on the right is bandwidth. So 100 small
# all-reduces wait for 100 times as many rounds as one large one. This is why frameworks pack
# gradients together before they send them. Horovod calls it tensor fusion. In a compiled step
# TensorFlow makes one pack of all gradients, and `bytes_per_pack` cuts it into smaller ones, so
# that the first can leave early ([lesson 12](12_ring_all_reduce.ipynb)).

# %%
for name, rows in {"fitted": known, "not seen": unseen}.items():
    worst = max(relative_errors(model, rows), key=abs)
    dl.show(f"largest error, {name}", f"{100 * worst:+.0f} %")

# %% [markdown]
# The error on points that the model has not seen is the one that counts. Here the model's times are
# up to 2.1 times as long as the measured ones. For 4 bytes on 4 replicas it says 0.65 ms, and
# 0.35 ms were measured: 6 rounds cost 1.6 times as much as 2, and not 3 times. No alpha repairs
# that. For 8 MiB on 2 replicas it is 53 % too long, because large messages move faster. On 4 it is
# 107 %, because sharing the memory also costs less than N times. Outside its fit, such a model
# gives the order of magnitude, and not the milliseconds.

# %% [markdown]
# ## A model of the whole step
#
# `fit` also fitted the compute, with two more numbers: the seconds of one example, and the seconds
# of a replica's step that no batch size changes. It saw 1 and 2 replicas. Now it predicts the steps
# of 4. The line across each bar is what was measured.

# %%
dl.show("one example", f"{1e3 * model.secs_per_example:.3f} ms")
dl.show("each replica, each step", f"{1e3 * model.secs_per_step:.1f} ms")

four = [step for step in recording.steps if step.replicas == 4]
draw_step_parts(four, predicted=predict_steps(model, four))

# %% [markdown]
# Did we have to say `shared=True`? Without it, we fit a model in which each replica has its own
# processor and its own link. It gets the same measurements. Each list has the
# errors with 32, 64, 128 and 256 images, and a fitted list has four for 1 replica, then four for 2.

# %%
not_shared = fit(known, few_steps, shared=False)
for rows, seen in ((few_steps, "fitted, 1 and 2 replicas"), (four, "not seen, 4 replicas")):
    for name, one_model in {"shared": model, "not shared": not_shared}.items():
        errors = [f"{100 * error:+.0f} %" for error in relative_errors(one_model, rows)]
        dl.show(f"{seen}, {name}", errors)

# %% [markdown]
# On the steps to which they were fitted, the two models look alike: the largest
# error is 25 % for one and 31 % for the other. **Measurements that a model has not seen decide
# between two models.** (With 32 images both are about a third off. The three other sizes
# decide.) Look at the signs, too. If all errors of a model have the same
# sign, it probably counts a part too much, too little or not at all. The shared model's steps of 4
# replicas are all too long. With 256 images three errors nearly cancel: the compute is 1.4 ms and
# the all-reduce 0.8 ms too long, and the model leaves out 1.5 ms of input. The compute is probably
# too long because the model adds up the fixed times of four replicas, which partly overlap.

# %% [markdown]
# What is such a model good for? It answers questions that you cannot measure. For example: the same
# CNN, but **a processor and a link for each replica**, each as fast as what all of them share here.
# Change one field:

# %%
own_devices = dataclasses.replace(model, shared=False)
sizes = {"per_replica_batch": 64, "gradient_bytes": recorded[0].gradient_bytes}
for name, one_model in {"for all": model, "for each": own_devices}.items():
    weak = one_model.efficiency(4, **sizes)
    dl.show(f"weak efficiency on 4, two cores and a link {name}", weak, digits=2)

# %% [markdown]
# The measured efficiency was 0.29, not 0.21: the model makes the step of one replica
# too short. So do not read the second number as exact. The message is how far apart the two are.
#
# Three more fields are 0 in our fit:
#
# - `hidden`: the share of the communication that overlaps the backward pass. The gradients of the
#   last layers are ready first, so their all-reduce can start while the others are computed.
# - `jitter`: how much the replicas' compute times scatter. All wait for the slowest one, the
#   [straggler](../docs/glossary.md#straggler), and the more replicas there are, the slower it is.
# - `input_secs_per_example`: in the model, [prefetching](../docs/glossary.md#prefetch) hides the
#   input until it takes longer than the rest of the step. On our two cores it did not hide all of
#   it: input was up to 10 % of a step, probably because reading and computing share the cores.

# %%
scattered = dataclasses.replace(own_devices, jitter=0.05)  # a standard deviation of 5 %
for replicas in (8, 512):
    cost = scattered.step(replicas, **sizes)
    dl.show(
        f"waiting / compute, {replicas} replicas", f"{cost.waiting_secs / cost.compute_secs:.0%}"
    )

# %% [markdown]
# ## From two cores to 4,096 GPUs
#
# A model that predicts the machine on which it was fitted is a beginning. Does it hold on clusters
# that we have never seen? Horovod's pages and one paper published efficiencies, and they give the
# links. Each link belongs to a server with 4 or 8 GPUs. A ring enters and leaves a server once, so
# its GPUs do not share the link's bandwidth. We assume that Horovod's "Pascal GPUs" were as fast
# as the P100 of TensorFlow's benchmarks of 2017, and interpolate between ResNet-50 and ResNet-152
# for ResNet-101. ResNet-50's speed is from its own run: [29 hours on
# 8 GPUs](https://developer.nvidia.com/blog/facebook-trains-imagenet-in-1-hour/) for 90 epochs. Each
# GPU has 64 images in a step, and 32 for ResNet-50. `published.py` in the lesson's folder,
# `distlab/course/lesson_14_scaling/`, lists each number with its source, and what we assume.

# %%
from distlab.course.lesson_14_scaling.published import (
    PUBLISHED,
    RESNET_101,
    VGG_16,
    hidden_share,
    model_of,
    predicted_efficiency,
)

for run in PUBLISHED:
    print(f"{run.network:>12} on {run.gpus} GPUs: {run.parameters / 1e6:3.0f} M weights,", end=" ")
    print(f"{run.examples_per_sec:.0f} images/s on one, {run.link_bits_per_sec / 1e9:.0f} Gbit/s")

# %% [markdown]
# On 512 GPUs Inception V3 reached 90 %. VGG-16 computes about as many images a second, and has 5.8
# times as many weights.

# %% tags=["predict"]
network_guess = dl.predict(
    "Which efficiency did VGG-16 reach on the same 512 GPUs, with the same batch?",
    ["about 90 %", "about 70 %", "about 40 %", "below 20 %"],
)

# %%
shares = {}
for run in PUBLISHED[:3]:
    bare = model_of(run, hidden=0.0, latency_secs=0.0)
    compute = bare.step(1, **run.sizes).secs
    shares[run.network] = bare.all_reduce_secs(run.gpus, run.sizes["gradient_bytes"]) / compute

# %% tags=["reveal"]
network_guess.reveal(
    f"about {10 * round(10 * VGG_16.efficiency)} %",
    {
        "about 90 %": "It computes as fast, and sends 5.8 times as many bytes. So it cannot lose "
        "as little.",
        "about 40 %": "5.8 times 10 % would be 58 % lost. But the time lost is compared with the "
        "step, which becomes longer as well. An efficiency of 90 % means 1/0.9 - 1 = 0.11 of the "
        "compute on top, and 1 / (1 + 5.8 * 0.11) is 61 %.",
        "below 20 %": "Then the all-reduce would add more than 4 times the compute. But a ring "
        "sends about twice the gradients of one GPU, however many GPUs there are. Here that takes "
        "0.85 times as long as the compute, so 54 % would be left even if nothing were hidden.",
        "about 70 %": "It sends almost as long as it computes, and a part of that is hidden.",
    },
)

# %% tags=["after-reveal"]
for network, share in shares.items():
    dl.show(f"{network}: communication / compute", share, digits=2)

# %% [markdown] tags=["after-reveal"]
# What decides is not the number of weights, but **the time to send them compared with the
# time to compute.** Most of VGG-16's 138 million weights are in layers that compute little, so it
# sends for almost as long as it computes.
#
# Now the test. Two things are in no paper. We assume a latency of 10 µs for a round of the ring.
# We fit the share that is hidden behind the backward pass to **one** run, ResNet-101, and assume it
# for the four others. Those are predictions.

# %% tags=["after-reveal"]
LATENCY_SECS = 10e-6
hidden = hidden_share(RESNET_101, latency_secs=LATENCY_SECS)
dl.show("hidden behind the backward pass", f"{hidden:.0%}")
for run in PUBLISHED:
    said = predicted_efficiency(run, hidden=hidden, latency_secs=LATENCY_SECS)
    points = 100 * (said - run.efficiency)
    role = "fitted" if run is RESNET_101 else "predicted"
    found = f"published {run.efficiency:.0%}, {role} {said:.0%}, error {points:+.1f} points"
    print(f"{run.network} on {run.gpus}: {found}")

# %% [markdown] tags=["after-reveal"]
# One number fits one run exactly, so the error of 0 says nothing. The fitted share is not a
# measured overlap, either. It also takes up what the model leaves out: links slower than their name
# says, stragglers, and GPUs that were not quite P100s. With one fitted number the model tells
# VGG-16 from the others, and is off by 3.2 to 6.4 points on the runs that it has not seen.
# (We treat ResNet-50's run as a ring of 256 GPUs. It used halving and doubling between servers.
# With so few rounds the model would predict about 1 point more.)
#
# But look at the two rows of VGG-16. Horovod published 79 % on 128 GPUs and 68 % on 512. The model
# says almost the same for both. What grows with the cluster? Stragglers (we left `jitter` at 0)
# would slow all networks, and on the same two clusters Inception V3 and ResNet-101 reached 90 %
# both times. So stragglers are an unlikely cause. Traffic in switches that many servers share fits
# better, because VGG-16 sends the most bytes in a second. Or the software differed: the two rows
# were published months apart. The sources do not say which. An error with a pattern tells you what
# to measure next.
#
# Here are the curves up to 4,096 GPUs, with the published points. (The model knows one kind of
# link. Inside a server links are faster, so ignore the curves below 8 GPUs.)

# %% tags=["predict"]
bend_guess = dl.predict(
    "In our model, which network loses the largest part of its efficiency from 512 to 4,096 GPUs?",
    [
        "VGG-16: it sends the most bytes",
        "ResNet-101: it has the most layers",
        "ResNet-50: its step is the shortest",
        "all lose about the same part",
    ],
)

# %%
from distlab.course.figures.step_costs import draw_scaling

runs = {run.network: run for run in reversed(PUBLISHED)}
curves = {
    network: (model_of(run, hidden=hidden, latency_secs=LATENCY_SECS), run.sizes)
    for network, run in runs.items()
}
draw_scaling(curves, published=[(run.network, run.gpus, run.efficiency) for run in PUBLISHED])

# %%
lost = {
    network: 1 - one_model.efficiency(4096, **sizes) / one_model.efficiency(512, **sizes)
    for network, (one_model, sizes) in curves.items()
}
for network, (one_model, sizes) in curves.items():
    step_ms = 1e3 * one_model.step(1, **sizes).secs
    told = {
        "lost from 512 to 4,096": f"{lost[network]:.0%}",
        "step of one GPU": f"{step_ms:.0f} ms",
    }
    dl.show(network, told)

# %% tags=["reveal"]
worst = max(lost, key=lost.get)
named = {
    "VGG-16": "VGG-16: it sends the most bytes",
    "ResNet-101": "ResNet-101: it has the most layers",
    "ResNet-50": "ResNet-50: its step is the shortest",
}
alike = lost[worst] < 1.3 * min(lost.values())
bend_guess.reveal(
    "all lose about the same part" if alike else named[worst],
    {
        "VGG-16: it sends the most bytes": "It loses 5 %, no more than ResNet-101. The bytes on a "
        "link hardly grow: they are 1.996 times the gradients on 512 GPUs, and 1.9995 times on "
        "4,096.",
        "ResNet-101: it has the most layers": "Our model sends all gradients together, so the "
        "number of layers does not count.",
        "all lose about the same part": "All wait equally long for the new rounds. But the steps "
        "that this wait is added to have different lengths.",
        "ResNet-50: its step is the shortest": "The new rounds take as long for every network, so "
        "they weigh most in a short step.",
    },
)

# %% tags=["after-reveal"]
ring, size = curves["VGG-16"][0], VGG_16.sizes["gradient_bytes"]
for n in (512, 4096):
    rounds_ms = 1e3 * ring.all_reduce_secs(n, 0)  # of no bytes
    bytes_ms = 1e3 * ring.all_reduce_secs(n, size) - rounds_ms
    print(f"VGG-16 on {n:,} GPUs: {rounds_ms:.0f} ms of rounds, {bytes_ms:.0f} ms of bytes")

# %% [markdown] tags=["after-reveal"]
# A ring of 8 times as many GPUs has 8 times as many rounds, and each waits for the one before. So
# each curve bends down on the right: with few GPUs the bytes decide, with many the rounds. On 4,096
# GPUs VGG-16 still spends more time on bytes than on rounds. For ResNet-50, with 33 ms of bytes, it
# is the other way round. That is why NCCL, NVIDIA's library of collectives, added trees in version
# 2.4. A tree needs about 2 log₂ N rounds instead of 2(N-1): 24 instead of 8,190 for 4,096 GPUs. Our
# model knows rings only. How far its curves bend depends on the latency, and **the 10 µs are our
# assumption**: with 1 µs the 82 ms of rounds would be 8 ms.
#
# Move the sliders. What is left of the bend with a latency of 1 µs? Which link does VGG-16 need for
# 90 % on 512 GPUs? What does a smaller batch do to ResNet-50, and what would a larger one cost
# (lesson 02)?

# %%
from distlab.course.lesson_14_scaling.view import explore_cost

explore_cost()

# %% [markdown]
# <details><summary>Answers</summary>
#
# Hardly any of the bend is left. VGG-16 needs about 100 Gbit/s: for 90 %, 46 ms of its all-reduce
# may stay visible. With 56 % of it hidden, the whole may take 104 ms. 10 ms of that are rounds, so
# 94 ms are left for the bytes, instead of 354 ms. A smaller batch makes the compute shorter and not
# the all-reduce, so the curve falls. A larger one raises it, and changes the training itself.
# </details>

# %% [markdown]
# **Does this hold today?** Compare the peak of one GPU with the link of its server. In these runs a
# GPU had a peak of about 10 TFLOP/s in float32, and a server had one link of 25 or 50 Gbit/s: 0.2
# to 0.4 TFLOP/s for each Gbit/s. An H100 has a peak of 990 TFLOP/s in bfloat16. With eight links of
# 400 Gbit/s for a server that is 0.3, as in these runs. With one such link it is 2.5.
# Communication divided by compute is then 6 to 12 times as large, with float32 gradients and the
# same batch. Work out this number for your own cluster.

# %% [markdown]
# ## On your own machine
#
# Set `MEASURE_HERE` to `True`. In half a minute this measures the CNN on two replicas of your
# machine, and fits the model. (On CPUs `dl.make_strategy` adds up on one device, and the recording
# used TensorFlow's ring. So do not compare your all-reduce times with the recorded ones.)

# %%
MEASURE_HERE = False

if MEASURE_HERE:
    from IPython.display import display

    from distlab.course.lesson_14_scaling.own_machine import measure_here

    own = measure_here(dl.make_strategy("mirrored"))
    own_model = fit(own.all_reduces, own.steps, shared=True)
    display(draw_step_parts(own.steps, predicted=predict_steps(own_model, own.steps)))
    display(draw_all_reduce_times(own.all_reduces, model=own_model))
else:
    print("Not measured yet: set MEASURE_HERE = True.")

# %% [markdown]
# With at least two GPUs, `dl.split_devices` takes one for each replica, so write
# `shared=False` above. For a model of your own, write `build()` and `data(batch_size)` into a file,
# and let a command measure 1, 2 and 4 replicas, each in a fresh process: `distlab bench train.py
# --plot scaling.png`.
#
# <details><summary>In plain TensorFlow</summary>
#
# `tf.profiler.experimental.start("logs")` and `stop()` around 20 steps write a trace for
# TensorBoard's profiler. It shows the same three parts, operation by operation, and names the
# operation that is slow. Look at it when you know *which* part is too long. `time_step` in
# `distlab.course.measure.scaling_runs`, which recorded the steps above, is a stopwatch around three
# `tf.function`s: with the iterator, with a kept batch, and without `all_reduce`.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch: `torch.cuda.synchronize()` before you read the clock, `torch.profiler` for a trace, and
# `model.no_sync()` of `DistributedDataParallel` to leave the all-reduce out. `bucket_cap_mb` packs
# gradients. JAX: calls return before the device is done, so use `jax.block_until_ready(result)`.
# `nccl-tests` measures the links of a cluster by themselves.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. A stopwatch says that your step takes 0.2 ms on a GPU. Why do you not believe
# it?</summary>
#
# It probably measured how long Python took to put the step into the queue. Wait for the device
# before you read the clock.
# </details>
#
# <details><summary>2. "We scale to 64 GPUs with 95 % efficiency." What do you ask?</summary>
#
# Strong or weak? Compared with one GPU or with one server? With which batch on each GPU, and does
# the training still reach its accuracy?
# </details>
#
# <details><summary>3. Your model has 100 small layers, and the all-reduce is slow. What do you try
# before you buy faster links?</summary>
#
# Pack the gradients into fewer all-reduces. Small messages cost latency, and bandwidth does not
# help them. A compiled step of TensorFlow packs by itself. So look for a `bytes_per_pack` that is
# too small, or for an `all_reduce` of your own for each gradient.
# </details>
#
# <details><summary>4. Two runs differ by 4 %, and the middle halves of their blocks overlap. What
# do you report?</summary>
#
# Neither a speedup nor a slowdown: the blocks do not tell. More blocks do not make the middle half
# narrower. Longer blocks, taken in turns on a quiet machine, do.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 14](../exercises/14_scaling.ipynb): four tasks and a report, about an hour.
# - [Lesson 19](19_fine_tuning.ipynb) starts from a trained model.
# - [The glossary](../docs/glossary.md) explains the terms.
# - [Horovod](https://arxiv.org/abs/1802.05799) and [ImageNet in one
#   hour](https://arxiv.org/abs/1706.02677) are the two papers; Horovod's four efficiencies are from
#   its own pages.
# - [TensorFlow's profiler guide](https://www.tensorflow.org/guide/profiler) shows how to read a
#   trace.
