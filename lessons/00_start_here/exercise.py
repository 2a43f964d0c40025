# %% [markdown]
# # Exercise: start here
#
# A warm-up for [lesson 00](../notebooks/00_start_here.ipynb). Nobody sees your wrong answers but
# you, and each check tells you what it expected. Try as often as you like.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `slices` | find the rule by which a batch is shared | 5 | easy |
# | 2. `brightness` | find a bug that no error tells you about | 4 | easy |
# | 3. `who_saw` | write down which replica saw which example | 6 | medium |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below. If
# you get stuck, open the hint.

# %%
import math

import numpy as np
import tensorflow as tf

import distlab as dl

devices = dl.split_devices(4)
strategy = dl.make_strategy("mirrored", devices=devices)
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## Task 1: how many does each replica get?
#
# Before you write, ask TensorFlow. This function makes one batch, lets the strategy share it, and
# looks at what arrives on each of the four replicas.


# %%
def ask_tensorflow(examples):
    dataset = tf.data.Dataset.range(examples).batch(examples)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    return [len(share) for share in strategy.experimental_local_results(batch)]


for examples in (32, 10, 9, 5):
    dl.show(f"{examples} examples", ask_tensorflow(examples))

# %% [markdown]
# Write `split(examples, replicas)`. It returns a list with one whole number for each replica: how
# many of the `examples` of one batch it gets, in the order of the replicas.
#
# - `split(10, 4)` is `[3, 3, 3, 1]`.
# - The list always has `replicas` entries, also when a replica gets nothing, as with `split(5, 4)`.
# - It must hold for any numbers, not only for those above. About 3 lines.
#
# <details><summary>Hint</summary>
#
# Divide and round up: that is the size of a piece (`math.ceil`). Now walk through the replicas.
# Replica number `i` gets a whole piece if so many are left, else what is left, but never less than
# 0.
# </details>


# %%
# task: slices
def split(examples, replicas):
    ### BEGIN SOLUTION
    piece = math.ceil(examples / replicas)
    left = [examples - piece * replica for replica in range(replicas)]
    return [max(0, min(piece, rest)) for rest in left]
    ### END SOLUTION


# %%
dl.check("slices")

# %% [markdown]
# **Try next:** predict `ask_tensorflow(13)` with your `split`, then ask. Which batch sizes leave a
# replica of four with nothing?

# %% [markdown]
# ## Task 2: find the bug
#
# `brightness` goes through a data set of images and adds up all their pixels on the replicas. It
# returns
#
# - `"images"`: how many images each replica worked on, over all batches,
# - `"total"`: the sum of all pixels of all images.
#
# It runs without an error, and it is wrong. `look` is what one replica does with the images it is
# given; it is fine.


# %%
# given
@tf.function
def look(images):
    return tf.shape(images)[0], tf.reduce_sum(images)


# %%
# task: brightness
def brightness(strategy, dataset):
    ### BEGIN SOLUTION
    batches = strategy.experimental_distribute_dataset(dataset)
    ### STUB
    batches = dataset
    ### END SOLUTION
    images, total = 0, 0.0
    for batch in batches:
        counts, sums = strategy.run(look, args=(batch,))
        images = images + np.array(strategy.experimental_local_results(counts))
        total = total + float(strategy.reduce("SUM", sums, axis=None))
    return {"images": images, "total": total}


# %% [markdown]
# Twelve images of one white pixel each. The total should be 12, and each replica should work on 3.

# %%
white = tf.data.Dataset.from_tensors(tf.ones([1, 1, 1])).repeat(12).batch(12)
found = brightness(strategy, white)
dl.show("images on each replica", found["images"], expected=[3, 3, 3, 3])
dl.show("total", found["total"], expected=12)

# %% [markdown]
# Repair `brightness` above, so that the replicas share the work. One line is enough.
#
# <details><summary>Hint</summary>
#
# What does `run` do with a tensor that nobody has cut into shares? Who should do the cutting, and
# at what place in the function?
# </details>

# %%
dl.check("brightness")

# %% [markdown]
# **Try next:** put the bug back and reduce with `"MEAN"` in place of `"SUM"`. The total is right.
# What does the check say, and why is it not content?

# %% [markdown]
# ## Task 3: who saw what?
#
# Write `who_saw(strategy, dataset)`. The data set gives batches of numbers, one number for each
# example. Return a list with one list for each replica: the numbers that it saw, over all batches,
# in the order in which it saw them.
#
# For 6 numbers in batches of 4, on 2 replicas, that is `[[0, 1, 4], [2, 3, 5]]`.
#
# - Let the strategy do the sharing: do not work it out yourself.
# - The last batch may be smaller. The strategy may have any number of replicas.
# - About 6 lines.
#
# <details><summary>Hint</summary>
#
# Start with an empty list for each replica (`strategy.num_replicas_in_sync` says how many). Go
# through the distributed data set. `strategy.experimental_local_results(batch)` gives the shares of
# a batch in the order of the replicas; extend each replica's list by its share.
# </details>


# %%
# task: who_saw
def who_saw(strategy, dataset):
    ### BEGIN SOLUTION
    seen = [[] for _ in range(strategy.num_replicas_in_sync)]
    for batch in strategy.experimental_distribute_dataset(dataset):
        shares = strategy.experimental_local_results(batch)
        for numbers, share in zip(seen, shares, strict=True):
            numbers.extend(share.numpy().tolist())
    return seen
    ### END SOLUTION


# %%
dl.check("who_saw")

# %% [markdown]
# **Try next:** make `shuffled = tf.data.Dataset.range(20).shuffle(20).batch(8)` and call
# `who_saw(strategy, shuffled)` twice. Does a replica keep its examples from one pass to the next?

# %% [markdown]
# ## Next steps
#
# - All three passed? Go on to [lesson 01](../notebooks/01_mirrored_strategy.ipynb): a model on
#   every replica.
# - Something still puzzles you? [Lesson 00](../notebooks/00_start_here.ipynb) has a picture of it
#   near its end.
