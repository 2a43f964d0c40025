# %% [markdown]
# # Shard everything: ZeRO 1 to 3
#
# Meta's torchtitan trains Llama 3.1 with 8 billion weights on 8 GPUs, and each of them gets through
# 5,762 tokens a second. On 128 GPUs, with sixteen times the batch, it's
# [5,605](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md),
# so sixteen times the devices cost each of them less than 3 % of its speed. Plain data parallelism
# wouldn't have survived the first step. Adam in float32 needs 16 bytes for each weight, 128 GB in
# all, while these GPUs have 96 GB, and `MirroredStrategy` would put all of it on every single one.
#
# What they do instead is called FSDP, and TensorFlow doesn't have it. You'll write it in this
# lesson, and its heart is one line.

# %% [markdown]
# ## Overview
#
# Must every replica keep the same? After this lesson you can
#
# - say which of weights, gradients and state a replica really needs whole, and when,
# - divide them one after the other, as ZeRO 1, 2 and 3 do, and still take the steps of one device,
# - count what each stage holds and sends, and choose one for your own model,
# - give each worker of a cluster its own part, and check that it's there.
#
# **Time:** {minutes}. **Needs:** lessons [09](09_multi_worker.ipynb) (workers), 12 (the two halves
# of an [all-reduce](12_ring_all_reduce.ipynb)) and [15](15_fit_into_memory.ipynb) (recomputing a
# layer). No GPU, and nothing is downloaded, but the part with two processes needs Linux.
#
# <details><summary>Do you remember? Lesson 12: which two operations make up an all-reduce around a
# ring, and what does each rank have in between?</summary>
#
# A reduce-scatter and an all-gather. In between, each rank has the finished sum of its own rows and
# of nothing else.
# </details>

# %%
# %load_ext distlab
import distlab as dl

devices = dl.split_devices(4)
dl.show("devices", len(devices))

# %% [markdown]
# ## What every replica keeps
#
# We train the small language model on four replicas. All weights of one of its layers lie in one
# vector, so that a layer can be cut into four equal pieces. Between two steps a replica keeps three
# things: the weights, a gradient for each weight, and the optimizer's state. Our optimizer is
# momentum, which keeps one number for each weight, while Adam keeps two.
#
# A `Stage` says what happens to them, and here is plain data parallelism: sum the gradients of all
# replicas, and take the optimizer's step on everything.

# %%
import tensorflow as tf

from distlab.course.lesson_16_shard_everything.sharded_training import (
    Momentum,
    Stage,
    TextModel,
    max_difference,
    train,
    train_on_one,
)

strategy = tf.distribute.MirroredStrategy(devices)
momentum = Momentum(rate=0.1)
model = TextModel(replicas=4)
one_device = train_on_one(model, momentum)


def update_all(context, weight, gradient, state, step):
    return step(weight, context.all_reduce("SUM", gradient), state)


mirrored = Stage("mirrored", update=update_all)


# %%
def report(run):
    dl.show("each keeps, KiB", {part: size / 1024 for part, size in run.held.items()}, digits=1)
    dl.show("each sends, KiB a step", run.notes.sent_bytes() / 1024, digits=1)
    dl.show("max difference to one device", max_difference(run, one_device), below=1e-5)


whole = train(strategy, model, mirrored, momentum)
report(whole)

# %% [markdown]
# Four replicas keep the same three vectors four times. What a replica keeps is counted from the
# variables that it has made, and what it sends from notes: while the step is traced, `context`
# writes down each collective, and lesson 12 says what a ring sends for it.
#
# Now look at the update again. A replica updates weight number 7 with gradient number 7 and state
# number 7, and so do the other three, with the same numbers and the same result. Three quarters of
# all updates are done for nothing, and so three quarters of the state are kept for nothing.
#
# > **Takeaway.** Mirrored replicas repeat each other. Whatever each weight needs for itself alone
# > could lie on one replica only.

# %% [markdown]
# ## ZeRO 1: divide the state
#
# So let replica 0 update the first quarter of every layer, replica 1 the second, and so on. Then
# each needs the state of its own quarter only. But the next forward pass needs all weights on every
# replica, so after the update the new quarters have to go around.

# %% tags=["predict"]
bytes_guess = dl.predict(
    "Mirrored replicas only sum gradients. With ZeRO 1 the new weights travel as well. How much "
    "does each replica send in a step?",
    [
        "more than before, because the weights travel as well",
        "as much as before",
        "less than before, because each replica needs only its own sums",
    ],
)

# %% [markdown]
# A replica needs only its own rows of the summed gradient, and a
# [reduce-scatter](../docs/glossary.md#reduce-scatter) gives it just these. The new rows of all
# replicas are put together by an [all-gather](../docs/glossary.md#all-gather).


# %%
def update_own_rows(context, weight, gradient, state, step):
    own_gradient = context.reduce_scatter(gradient)
    own_weight, state = step(context.own_rows(weight), own_gradient, state)
    return context.all_gather(own_weight, axis=0), state


zero_1 = Stage("ZeRO 1", update=update_own_rows, divides=["state"])
run_1 = train(strategy, model, zero_1, momentum)
report(run_1)

# %% tags=["reveal"]
sent = run_1.notes.sent_bytes() / whole.notes.sent_bytes()
bytes_guess.reveal(
    "as much as before" if sent == 1 else f"{sent:.2f} times as much",
    {
        "more than before, because the weights travel as well": "It would be more if the summed "
        "gradients still went to everybody first. They don't: the gathered weights take the place "
        "of the second half of the all-reduce.",
        "less than before, because each replica needs only its own sums": "That's true of the "
        "gradients, and it saves half of an all-reduce. But then the new weights must go around, "
        "and they're exactly as large as what you've saved.",
        "as much as before": "An all-reduce is a reduce-scatter and an all-gather. ZeRO 1 uses "
        "both, and only lets weights travel in the second half instead of sums.",
    },
)

# %% [markdown] tags=["after-reveal"]
# You've known both halves since lesson 12. **ZeRO 1 does nothing but move the update between
# them**, so it costs no additional byte, divides the state by the number of replicas, and takes the
# steps of one device. There's hardly a reason not to use it.
#
# > **Takeaway.** Sum the gradients to their owners, update there, and gather the new weights. The
# > state is divided, and not one byte more travels.

# %% [markdown] tags=["after-reveal"]
# <details><summary>Fine print</summary>
#
# The notes count what a ring would send. `tf.distribute` has no reduce-scatter, so ours sums all
# rows and cuts out its own, and then really sends 1.5 times as much as mirrored. PyTorch's
# `ZeroRedundancyOptimizer` with `DistributedDataParallel` pays the same price, because it
# all-reduces the gradients and then broadcasts the new weights.
#
# If the rows of a layer can't be divided by the number of replicas, pad them with zeros, which
# change nothing, and cut them off after the gather. `own_rows` refuses to guess, and says how many
# rows to add.
# </details>

# %% [markdown]
# ## ZeRO 2: sum gradients as they come
#
# Each replica still keeps a gradient for every weight, because our step makes a buffer for each,
# and so we've counted them. With a single backward pass you could do without these buffers, and sum
# and drop each gradient as soon as it's there. But if you accumulate gradients over
# [micro-batches](../docs/glossary.md#micro-batch), they wait until the last of these is done. Even
# then replica 0 only needs the sum of its own rows, so reduce-scatter after each micro-batch, and
# keep only the rows that you own.


# %%
def collect_own_rows(context, gradient):
    return context.reduce_scatter(gradient)


def update_with_own_rows(context, weight, own_gradient, state, step):
    own_weight, state = step(context.own_rows(weight), own_gradient, state)
    return context.all_gather(own_weight, axis=0), state


zero_2 = Stage(
    "ZeRO 2",
    divides=["state", "gradients"],
    collect=collect_own_rows,
    update=update_with_own_rows,
)
two_parts = TextModel(replicas=4, micro_batches=2)
report(train(strategy, two_parts, zero_2, momentum))

# %% [markdown]
# The gradients shrink to a quarter, the weights still come out right, and the bill is in the second
# line. Two micro-batches mean two reduce-scatters, so this step sends 1.5 times as much as before,
# while with a single backward pass ZeRO 2 sends what ZeRO 1 sends. With many micro-batches ZeRO 1
# is the better deal, unless the gradients are what doesn't fit.
#
# > **Takeaway.** ZeRO 2 keeps only the owner's gradients, and pays with one reduce-scatter for each
# > micro-batch.

# %% [markdown]
# ## ZeRO 3: gather, use, drop
#
# That leaves the weights. A layer needs all of its weights, but only while it computes, and a model
# computes one layer at a time. So each replica could keep its own rows, and gather a layer just
# before using it. On the way forward that's easy. On the way back, each replica wants the gradient
# of its own rows, summed over the examples of all replicas, although an all-gather stands between
# these rows and the loss.
#
# Take the smallest case: each replica owns one row. It gathers all four, multiplies them by its own
# number, which is 1, 2, 3 or 4, and calls their sum its loss.


# %% tags=["predict"]
gradient_guess = dl.predict(
    "Which gradient does TensorFlow give each replica for its own row?",
    [
        "its own number: 1 on the first replica, 4 on the last",
        "all four numbers, on every replica",
        "10, on every replica",
    ],
)


# %%
def on_replica(number):
    own_row = tf.zeros([1])
    with tf.GradientTape() as tape:
        tape.watch(own_row)
        rows = tf.distribute.get_replica_context().all_gather(own_row, axis=0)
        loss = tf.reduce_sum(number * rows)
    return tape.gradient(loss, own_row)


numbers = strategy.experimental_distribute_values_from_function(
    lambda context: tf.constant(context.replica_id_in_sync_group + 1.0)
)
gradients = tf.function(lambda: strategy.run(on_replica, args=(numbers,)))()
gradients = [float(each[0]) for each in strategy.experimental_local_results(gradients)]
dl.show("gradients", gradients)

# %% tags=["reveal"]
gradient_guess.reveal(
    "10, on every replica" if gradients == [10] * 4 else str(gradients),
    {
        "its own number: 1 on the first replica, 4 on the last": "That would be so if nothing "
        "travelled on the way back. But your row has gone to all four replicas, so it's part of "
        "all four losses.",
        "all four numbers, on every replica": "That would be so if the gradients were gathered, "
        "too. But a gradient has the shape of what it belongs to, and that's one row.",
        "10, on every replica": "Your row is in all four losses, so its gradient is the sum of all "
        "four: 1 + 2 + 3 + 4. That's your row of a reduce-scatter.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **The gradient of an all-gather is a reduce-scatter**, and TensorFlow knows it. Each copy that
# goes out comes back as a gradient, and all of them are summed at the owner. So we needn't write a
# backward pass at all, and only have to make sure that a gathered layer is dropped after its use.
# [Lesson 15](15_fit_into_memory.ipynb) has the tool: `tf.recompute_grad` forgets what happens
# inside, and repeats it when the backward pass gets there. It gives gradients only for what you
# pass as arguments, so `own` is one of them.


# %% tags=["after-reveal"]
def forward_gathered(context, layer, own_rows, x):
    return tf.recompute_grad(lambda own, x: layer(context.all_gather(own, axis=0), x))(own_rows, x)


def update_alone(context, own_weight, own_gradient, state, step):
    return step(own_weight, own_gradient, state)


zero_3 = Stage(
    "ZeRO 3",
    divides=["state", "gradients", "weights"],
    forward=forward_gathered,
    update=update_alone,
)
run_3 = train(strategy, model, zero_3, momentum)
report(run_3)

# %% [markdown] tags=["after-reveal"]
# The line in `forward_gathered` is FSDP. Every replica now keeps a quarter of everything, holds no
# more than one whole layer at a time, and updates without any collective. Here is what `context`
# has noted, in order: `g` is an all-gather, `l` a layer that computes, and `s` a reduce-scatter.

# %% tags=["after-reveal"]
dl.show("mirrored, then r: all-reduce", whole.notes.letters)
dl.show("ZeRO 3", run_3.notes.letters)
ratio = run_3.notes.sent_bytes() / whole.notes.sent_bytes()
dl.show("ZeRO 3 sends, compared with mirrored", ratio)
run_3_in_parts = train(strategy, two_parts, zero_3, momentum)
ratio = run_3_in_parts.notes.sent_bytes() / whole.notes.sent_bytes()
dl.show("with two micro-batches", ratio)

# %% [markdown] tags=["after-reveal"]
# Three layers are gathered and used on the way forward. On the way back each is gathered and
# computed a second time, and its gradient leaves. That makes two gathers and a reduce-scatter,
# where an all-reduce has one of each, so ZeRO 3 sends half as much again. Each further micro-batch
# does all of it again, because its layers have been dropped, while mirrored replicas still sum only
# once. Without `tf.recompute_grad` the second gathers disappear, but every layer stays whole until
# the end of the step.
#
# > **Takeaway.** Gather a layer, use it, drop it, gather it again on the way back. The gradient of
# > the gather is the sum that you need.

# %% [markdown] tags=["after-reveal"]
# <details><summary>Fine print</summary>
#
# TensorFlow computes the gradient of its all-gather as an all-reduce and a cut, so its ZeRO 3
# really sends twice as much as mirrored, and not 1.5 times. Our notes have the reduce-scatter that
# a library for GPUs would use. Our gathers also wait for the layer before them. FSDP gathers the
# next layer while the current one computes, which needs room for two layers and hides much of the
# time, and that's one reason why torchtitan loses so little.
# </details>

# %% [markdown]
# ## Two processes of 64 MiB
#
# So far we've counted bytes on a machine that had plenty. Now two workers get 64 MiB each, with the
# limit of [lesson 15](15_fit_into_memory.ipynb), for a model of 5.8 million weights that keeps 66
# MiB when it's mirrored. We hand them the same two stages that you've just seen.

# %%
from distlab.course.lesson_16_shard_everything.limited_workers import first_rows, train_together


def ends(outcomes):
    return [outcome.error.partition(":")[0] or "trained" for outcome in outcomes]


dl.show("mirrored with 64 MiB", ends(train_together(mirrored, megabytes=64)))

# %% [markdown]
# Both stop with the error of a full GPU. For ZeRO 3 each worker has to begin with its own half of
# every layer. Lesson 09 made its variables inside `strategy.scope()`, so we do that too, and pass
# the worker's own rows as the first value. We try it with two numbers, and tell TensorFlow that the
# copies may differ (`ON_READ`, without aggregation).

# %% tags=["predict"]
rows_guess = dl.predict(
    "Worker 0 passes the first value [0, 0] and worker 1 passes [1, 1]. What do their variables "
    "hold?",
    [
        "[0, 0] and [1, 1]",
        "[0, 0] on both",
        "nothing: an error says that the values differ",
    ],
)

# %%
held = [outcome.result.tolist() for outcome in first_rows(megabytes=64)]
dl.show("the workers hold", held)

# %% tags=["reveal"]
rows_guess.reveal(
    "[0, 0] on both" if held == [[0, 0], [0, 0]] else str(held),
    {
        "[0, 0] and [1, 1]": "That would be so without the scope. Inside it the strategy makes all "
        "copies equal, even of a variable whose copies may differ later.",
        "nothing: an error says that the values differ": "Nobody compares them. The strategy sends "
        "the chief's first value to all workers, and throws theirs away.",
        "[0, 0] on both": "The scope sends the chief's first value to everybody, so all copies "
        "begin alike. For replicas that's the right thing, and for pieces it's fatal.",
    },
)

# %% [markdown] tags=["after-reveal"]
# There's no error and no warning, and now both workers own the first half of every layer. So assign
# the own rows *after* the variable is there, or make the variable outside of the scope, as `train`
# does. Then ZeRO 3 trains in 64 MiB, and we compare its losses with those of mirrored workers that
# get 400 MiB.

# %% tags=["after-reveal"]
import numpy as np

sharded = train_together(zero_3, megabytes=64)
enough = train_together(mirrored, megabytes=400)
dl.show("ZeRO 3 with 64 MiB", ends(sharded))
dl.show("mirrored with 400 MiB", ends(enough))
for name, outcomes in {"ZeRO 3": sharded, "mirrored": enough}.items():
    dl.show(f"{name} keeps, MiB", sum(outcomes[0].result["held"].values()), digits=1)
losses = [outcome.result["losses"] for outcome in sharded + enough]
dl.show("max difference between their losses", np.ptp(losses, axis=0).max(), below=1e-4)

# %% [markdown] tags=["after-reveal"]
# It's the same model with the same losses, and half of the bytes on each side. With four workers
# each would keep a quarter, and with a hundred hardly more than the layer that it's computing.
#
# > **Takeaway.** Sharded workers train what none of them could hold. Check the first rows on each
# > worker, because the scope makes all of them the chief's.

# %% [markdown] tags=["after-reveal"]
# <details><summary>Fine print</summary>
#
# Near the limit one worker may run out of memory while the other waits for its sum, and TensorFlow
# sets no limit to that wait. So `train_together` ends both after 90 seconds and says why. What a
# worker keeps isn't all that it needs: a step also takes a layer or two, gradients on their way,
# and activations, which brought this run from 33 to about 50 MiB.
# </details>

# %% [markdown]
# ## Which stage do you need?
#
# Take a model of 30 billion weights, and GPUs of 80 GB. With Adam in float32 each weight takes 16
# bytes, 4 for itself, 4 for its gradient and 8 for the state, which makes 480 GB.

# %% tags=["predict"]
floor_guess = dl.predict(
    "You divide state and gradients (ZeRO 2), and may buy as many GPUs as you like. How many do "
    "you need until it fits?",
    [
        "8, because 480 GB are fewer than 8 times 80 GB",
        "64, because dividing only two of three parts takes more",
        "no number is enough",
    ],
)

# %%
from distlab.course.lesson_16_shard_everything.figures import draw_memory_by_replicas
from distlab.course.lesson_16_shard_everything.sharded_training import Adam, bytes_per_weight
from distlab.course.measure.step_bytes import held_bytes

BILLIONS = 30
STAGES = {"mirrored": mirrored, "ZeRO 1": zero_1, "ZeRO 2": zero_2, "ZeRO 3, FSDP": zero_3}
replicas = [1, 2, 4, 8, 16, 32, 64]
curves, measured = {}, {}
for name, stage in STAGES.items():
    held = [held_bytes(BILLIONS * 10**9, replicas=n, sharding=name) for n in replicas]
    curves[name] = [sum(parts.values()) / 1e9 for parts in held]
    points = {n: bytes_per_weight(model, stage, Adam(0.01), replicas=n) for n in (1, 2, 4)}
    measured[name] = {n: BILLIONS * size for n, size in points.items()}
draw_memory_by_replicas(replicas, curves, measured=measured, limit_gb=80)

# %% tags=["reveal"]
fits = min(curves["ZeRO 2"]) <= 80
floor_guess.reveal(
    "some number is enough" if fits else "no number is enough",
    {
        "8, because 480 GB are fewer than 8 times 80 GB": "That would be right if everything were "
        "divided, and with ZeRO 3 it is. With ZeRO 2 each of the 8 still holds all weights.",
        "64, because dividing only two of three parts takes more": "More GPUs shrink the two parts "
        "that are divided, down to nothing. The third part doesn't move.",
        "no number is enough": "The weights stay whole on every GPU, and they alone take 120 GB.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **What isn't divided is a floor that no number of devices lowers.** The points are measured, from
# the variables that a replica of our small model makes for Adam, and scaled up to 30 billion
# weights. Dotted lines are the floors. Only ZeRO 3 has none, and 8 is the first of these numbers
# with which it goes under the line.
#
# So take the first stage whose floor is low enough for you, because each one costs a little more:
#
# | stage | whole on each replica | sends, compared with mirrored | take it if a device holds |
# |---|---|---|---|
# | mirrored (PyTorch's DDP) | weights, gradients, state | 1 | everything |
# | ZeRO 1 | weights, gradients | 1 | all but the state |
# | ZeRO 2 | weights | 1, and ½ for each further micro-batch | the weights, and little else |
# | ZeRO 3, FSDP | a layer at a time | 1.5 for each micro-batch | one layer, and its share |
#
# The calculator does it for your own model, for a step of one micro-batch. It begins with another
# one than above, 7 billion weights in mixed precision. It leaves out activations, which no stage
# divides, so if they're what's too large, go back to [lesson 15](15_fit_into_memory.ipynb). And if
# a single layer doesn't fit, [lesson 18](18_split_layer_and_text.ipynb) splits it.

# %% tags=["after-reveal"]
from distlab.course.lesson_16_shard_everything.view import explore_memory

explore_memory()

# %% [markdown] tags=["after-reveal"]
# In practice you won't maintain this yourself. PyTorch has `fully_shard`, DeepSpeed, by ZeRO's
# authors, has all three stages, and in JAX you give each array a sharding and let the compiler
# place the collectives. With all of them somebody has to choose what is divided, and now you know
# what that buys.
#
# > **Takeaway.** Take the first stage whose floor fits. ZeRO 1 is free, while ZeRO 3 sends 1.5
# > times as much as mirrored, for each micro-batch.

# %% [markdown] tags=["after-reveal"]
# <details><summary>Fine print</summary>
#
# The paper counts mixed precision, where weights and gradients take 2 bytes each and the state
# takes 12: Adam's two averages and a float32 copy of the weights. That's 16 bytes as well, but the
# floors of ZeRO 1 and 2 are at 4 and 2 bytes instead of 8 and 4. Keras keeps float32 weights and
# makes 16-bit copies, which adds up to 18, and the calculator has all of these.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. Why does ZeRO 1 send no more than mirrored, although the weights travel, too?
# </summary>
#
# The gathered weights replace the second half of the all-reduce, which would have carried the
# summed gradients to everybody.
# </details>
#
# <details><summary>2. Your ZeRO 3 step reduces the gradients with one more all-reduce before the
# update. What happens?</summary>
#
# They've been summed already, by the gradient of the gather. The second sum adds up gradients of
# different rows, which belong to different weights.
# </details>
#
# <details><summary>3. You use ZeRO 1 on 8 GPUs, and the model doesn't fit by a hair. Do you buy 8
# more?</summary>
#
# Look at the floor first. If weights and gradients alone fill the GPU, no purchase helps, and you
# need ZeRO 2 or 3. If the state is what's still too large, 8 more GPUs halve it.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 16](../exercises/16_shard_everything.ipynb): repair an Adam whose state is divided
#   only for show, write FSDP for a stack of layers, and count what it sends.
# - [Lesson 18](18_split_layer_and_text.ipynb) is for a layer, or a text, that's too large by
#   itself.
# - [ZeRO](https://arxiv.org/abs/1910.02054) (2019) has the table of stages. It counts gradients in
#   16 bits, while many runs of today keep them in float32.
# - [PyTorch's FSDP tutorial](https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html)
#   explains FSDP as DDP's all-reduce cut into its halves. Count the gathers: FSDP needs two.
