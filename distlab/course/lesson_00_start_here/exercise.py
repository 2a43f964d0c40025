# %% [markdown]
# # Exercise: start here
#
# A warm-up for [lesson 00](../notebooks/00_start_here.ipynb). Try as often as you like, because
# only you see your tries, and each check shows your result beside the one that it expected.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `slices` | write the rule by which a batch is shared | 5 | easy | core |
# | 2. `file_slices` | the same for a batch that is read from files | 4 | easy | core |
# | 3. `brightness` | find a bug that raises no error | 4 | easy | core |
# | 4. `who_saw` | write down which replica saw which example | 6 | medium | core |
# | 5. your own data | see how your batches are shared (no points) | 10 | open | extra |
#
# Write your answer in the cell that starts with `# task:`, run it, and then run the check below. If
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
# By which rule is a batch cut that doesn't divide evenly? Before you write it down, ask TensorFlow.
# The function below makes one batch in memory, lets the strategy share it, and returns how many
# examples arrive on each of the four replicas.


# %%
def ask_tensorflow(examples):
    dataset = tf.data.Dataset.range(examples).batch(examples)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    return [len(share) for share in strategy.experimental_local_results(batch)]


for examples in (32, 10, 9, 5):
    dl.show(f"{examples} examples", ask_tensorflow(examples))

# %% [markdown]
# Write `split(examples, replicas)`, which returns how many examples of one batch in memory each
# replica gets, as a list of whole numbers.
#
# - `split(10, 4)` is `[3, 3, 3, 1]`.
# - The list has `replicas` entries, even if a replica gets nothing, as with `split(5, 4)`.
# - It holds for any numbers. About 3 lines.
#
# <details><summary>Hint</summary>
#
# How large is a piece? (`math.ceil` rounds up.) And how many examples are left for replica `i` if
# each replica before it took a whole piece?
# </details>


# %%
# task: slices
def split(examples, replicas):
    ### BEGIN SOLUTION
    piece = math.ceil(examples / replicas)
    left = [examples - piece * replica for replica in range(replicas)]
    return [max(0, min(piece, here)) for here in left]
    ### END SOLUTION


# %%
dl.check("slices")

# %% [markdown]
# **Try next:** which batch sizes leave at least one of four replicas with nothing? Let your `split`
# find them, and then ask TensorFlow about one.

# %% [markdown]
# ## Task 2: and from files?
#
# How is a batch cut if it's read from files? TensorFlow then fixes the pieces before it reads, so a
# partial batch is cut into pieces as large as a full batch's. Write `split_from_files(examples,
# replicas, batch_size)`, for which about 3 lines are enough. For example, `split_from_files(10, 4,
# 32)` is `[8, 2, 0, 0]`.
#
# <details><summary>Hint</summary>
#
# Which line of your `split` decides how large a piece is? Which numbers does it need here?
# </details>


# %%
# task: file_slices
def split_from_files(examples, replicas, batch_size):
    """Returns how many examples of one batch from files each replica gets, as a list.

    `examples` is the size of this batch, and `batch_size` that of a full one, which divides evenly
    by `replicas`.
    """
    ### BEGIN SOLUTION
    piece = batch_size // replicas
    left = [examples - piece * replica for replica in range(replicas)]
    return [max(0, min(piece, here)) for here in left]
    ### END SOLUTION


# %%
dl.check("file_slices")

# %% [markdown]
# **Try next:** up to which size of the last batch do at least two of four replicas get nothing from
# files? And from memory?

# %% [markdown]
# ## Task 3: find the bug
#
# Why is the result of `brightness` wrong, although it runs without an error? It sums the pixels of
# a data set of images on the replicas, and returns
#
# - `"images"`: how many images each replica worked on, over all batches,
# - `"total"`: the sum of all pixels.
#
# `look`, which each replica does with its images, is right.


# %%
# given
@tf.function
def look(images):
    return tf.shape(images)[0], tf.reduce_sum(images)


# %%
# task: brightness
def brightness(strategy, dataset):
    images, total = 0, 0.0
    ### BEGIN SOLUTION
    for batch in strategy.experimental_distribute_dataset(dataset):
        counts, sums = strategy.run(look, args=(batch,))
        images = images + np.array(strategy.experimental_local_results(counts))
        total = total + float(strategy.reduce("SUM", sums, axis=None))
    ### STUB
    for batch in dataset:
        counts, sums = strategy.run(look, args=(batch,))
        images = images + np.array(strategy.experimental_local_results(counts))
        total = total + float(strategy.reduce("SUM", sums, axis=None))
    ### END SOLUTION
    return {"images": images, "total": total}


# %% [markdown]
# Here are twelve images of one white pixel each, so the total should be 12, and each replica should
# work on 3.

# %%
white = tf.data.Dataset.from_tensors(tf.ones([1, 1, 1])).repeat(12).batch(12)
found = brightness(strategy, white)
dl.show("images on each replica", found["images"], expected=[3, 3, 3, 3])
dl.show("total", found["total"], expected=12)

# %% [markdown]
# Repair `brightness` above, so that the replicas share the work. Change one line.
#
# <details><summary>Hint</summary>
#
# What does `run` do with an ordinary tensor? Where in the function could the strategy cut the
# batches instead?
# </details>

# %%
dl.check("brightness")

# %% [markdown]
# **Try next:** put the bug back and reduce with `"MEAN"` in place of `"SUM"`. Now the total is
# right, so why does the check still fail?

# %% [markdown]
# ## Task 4: which replica saw what?
#
# Which examples did each replica see? Write `who_saw(strategy, dataset)`, which lets the strategy
# share a data set of numbers and returns a list for each replica. For 6 numbers in batches of 4, on
# 2 replicas, that's `[[0, 1, 4], [2, 3, 5]]`. You need about 6 lines.
#
# <details><summary>Hint</summary>
#
# Lesson 00 kept a list for each batch. Which lists do you need here, and when do you make them?
# `strategy.num_replicas_in_sync` is the number of replicas.
# </details>


# %%
# task: who_saw
def who_saw(strategy, dataset):
    """Returns a list for each replica: the numbers that it saw, over all batches, in order.

    `dataset` gives batches of numbers, and `strategy` may have any number of replicas.
    """
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
# ## Task 5: your own data
#
# How are the batches of your own training shared? This task has no check.
#
# 1. Build a data set that you've trained with as you would for `fit`, in batches of your size. (If
#    you have none at hand, take the digits below, which come from files.)
# 2. Before you run, write down the shares that you expect of the first batch and of the last.
# 3. Does a replica get nothing? What would a mean over the replicas do then?

# %%
(own,) = dl.load_dataset("digits", splits=["train[:75]"], batch_size=32)  # put your own here

for batch in strategy.experimental_distribute_dataset(own):
    parts = strategy.experimental_local_results(tf.nest.flatten(batch)[0])
    dl.show("examples on each replica", [len(part) for part in parts])

# %% [markdown]
# If a replica gets nothing, its mean is 0 / 0, which is NaN, and a mean over the replicas is NaN as
# well. Keras's losses avoid that, because they give 0 for a share without examples, but then the
# mean over the replicas is too small, and so is the step that the optimizer takes. With a
# `BatchNormalization` it's worse: the layer takes a mean of nothing, and from then on the weights
# of all replicas are NaN.
#
# `dl.distribute` is one remedy. The other is to train on full batches only, with a batch size that
# is a multiple of the number of replicas and `batch(..., drop_remainder=True)`, which leaves out
# the last examples.
#
# <details><summary>Fine print</summary>
#
# `tf.nest.flatten(batch)[0]` is the first part of a batch, here the images, as a
# [`PerReplica`](../docs/glossary.md#perreplica). If your batches are dictionaries, it's the part
# whose key comes first in sorted order.
# </details>

# %% [markdown]
# ## Next steps
#
# - If all four passed, go on to [lesson 01](../notebooks/01_mirrored_strategy.ipynb), which puts a
#   model on every replica.
# - [Lesson 00](../notebooks/00_start_here.ipynb) shows all shares in a picture.
# - [The glossary](../docs/glossary.md) explains the terms.
