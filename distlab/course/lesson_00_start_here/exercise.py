# %% [markdown]
# # Exercise: start here
#
# This is a warm-up for [lesson 00](../notebooks/00_start_here.ipynb). Try as often as you like:
# only you see your tries, and each check shows your result beside the one it expected.

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
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint.

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
# Before you write, ask TensorFlow. This function makes one batch in memory and lets the strategy
# share it. It returns how many examples arrive on each of the four replicas.


# %%
def ask_tensorflow(examples):
    dataset = tf.data.Dataset.range(examples).batch(examples)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    return [len(share) for share in strategy.experimental_local_results(batch)]


for examples in (32, 10, 9, 5):
    dl.show(f"{examples} examples", ask_tensorflow(examples))

# %% [markdown]
# Write `split(examples, replicas)`. It returns a list with one whole number for each replica, in
# the order of the replicas: how many of the `examples` of one batch in memory that replica gets.
#
# - `split(10, 4)` is `[3, 3, 3, 1]`.
# - The list always has `replicas` entries, even if a replica gets nothing, as with `split(5, 4)`.
# - It must hold for any numbers, not only for those above. About 3 lines.
#
# <details><summary>Hint</summary>
#
# How large is a piece? (`math.ceil` rounds up.) And how many examples are left when replica `i`
# comes, if each replica before it took a whole piece?
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
# find them, then ask TensorFlow about one.

# %% [markdown]
# ## Task 2: and from files?
#
# A partial batch that is read from files is cut differently. Write
# `split_from_files(examples, replicas, batch_size)`, which returns a list as `split` does.
#
# - `examples` is how many examples this batch has: `batch_size`, or fewer in the last batch.
# - `batch_size` is the size of a full batch, and divides evenly by `replicas`.
# - `split_from_files(10, 4, 32)` is `[8, 2, 0, 0]`. About 3 lines.
#
# <details><summary>Hint</summary>
#
# Which line of your `split` decides how large a piece is? Which numbers does it need here?
# </details>


# %%
# task: file_slices
def split_from_files(examples, replicas, batch_size):
    ### BEGIN SOLUTION
    piece = batch_size // replicas
    left = [examples - piece * replica for replica in range(replicas)]
    return [max(0, min(piece, here)) for here in left]
    ### END SOLUTION


# %%
dl.check("file_slices")

# %% [markdown]
# **Try next:** how large may the last batch be, so that at least two of four replicas get nothing
# from files? And from memory?

# %% [markdown]
# ## Task 3: find the bug
#
# `brightness` goes through a data set of images and adds up all their pixels on the replicas. It
# returns
#
# - `"images"`: how many images each replica worked on, over all batches,
# - `"total"`: the sum of all pixels of all images.
#
# It runs without an error, and its result is wrong. `look` is what one replica does with its
# images, and `look` is right.


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
# Twelve images of one white pixel each. The total should be 12, and each replica should work on 3.

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
# What does `run` do with an ordinary tensor? At which place in the function could the strategy cut
# the batches instead?
# </details>

# %%
dl.check("brightness")

# %% [markdown]
# **Try next:** put the bug back and reduce with `"MEAN"` in place of `"SUM"`. The total is right.
# Why does the check still fail?

# %% [markdown]
# ## Task 4: which replica saw what?
#
# Write `who_saw(strategy, dataset)`. The data set gives batches of numbers, one number for each
# example. Return one list for each replica: the numbers that this replica saw, over all batches,
# in the order in which it saw them.
#
# For 6 numbers in batches of 4, on 2 replicas, that is `[[0, 1, 4], [2, 3, 5]]`.
#
# - Let the strategy share the data. Do not compute the shares yourself.
# - The last batch may be smaller. The strategy may have any number of replicas.
# - About 6 lines.
#
# <details><summary>Hint</summary>
#
# Lesson 00 kept a list for each batch. Which lists do you need here, and when do you make them?
# `strategy.num_replicas_in_sync` is the number of replicas.
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
# ## Task 5: your own data
#
# This task has no check. Take a data set that you have trained with, and find out how its batches
# are shared.
#
# 1. Build it as you would for `fit`, with your own batch size. (If you have none at hand, the
#    digits below come from files.)
# 2. Before you run, write down the shares that you expect of the first and of the last batch.
# 3. Count the examples on each replica, with the strategy of this exercise.
# 4. Does a replica get nothing? What would a mean over the replicas do then?

# %%
(own,) = dl.load_dataset("digits", splits=["train[:75]"], batch_size=32)  # put your own here

for batch in strategy.experimental_distribute_dataset(own):
    parts = strategy.experimental_local_results(tf.nest.flatten(batch)[0])
    dl.show("examples on each replica", [len(part) for part in parts])

# %% [markdown]
# `tf.nest.flatten(batch)[0]` is the first part of a batch, here the images, as a
# [`PerReplica`](../docs/glossary.md#perreplica). If your batches are dictionaries, it is the part
# whose key comes first in sorted order.
#
# If a replica gets nothing, `tf.reduce_mean` gives 0 / 0 there, which is NaN, and a mean over the
# replicas is NaN as well. In Keras's own `fit` the loss is not NaN, because Keras's losses give 0
# for a share without examples. The mean over the replicas is then too small, and so is the step
# that the optimizer takes. But a `BatchNormalization` takes a mean of nothing there, and from then
# on the weights of all replicas are NaN. One remedy is `dl.distribute`. Or you train on full
# batches only, with a batch size that is a multiple of the number of replicas. If this size does
# not divide the number of your examples, leave the last examples out with `batch(...,
# drop_remainder=True)`.

# %% [markdown]
# ## Next steps
#
# - All four passed? Go on to [lesson 01](../notebooks/01_mirrored_strategy.ipynb): a model on
#   every replica.
# - To read again, [lesson 00](../notebooks/00_start_here.ipynb) shows all shares in a picture.
# - [The glossary](../docs/glossary.md) explains the terms.
