# %% [markdown]
# # Start here
#
# Training Llama 3.1 405B took [30.84 million GPU
# hours](https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md). One
# GPU would have worked for 3,500 years, so [up to 16,384 of
# them](https://arxiv.org/abs/2407.21783) trained one model together. A mistake in how devices
# share the work often raises no error: the loss falls, and the result is wrong. In this course you
# make such mistakes on your own machine, where you can look at every number.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - check whether your machine is ready,
# - run a function on four replicas at once and combine their results,
# - count how many examples each replica gets, even when a batch does not divide evenly,
# - tell which examples are on the same replica,
# - check whether the replicas really shared the data.
#
# **Time:** {minutes}. **Needs:** Python and a little NumPy, but no GPU. For the lessons
# after this one, you should have trained a Keras model with `compile` and `fit`, and know what a
# gradient is.
#
# **How to work:** run the cells with Shift+Enter, from the top. Where a cell asks for a prediction,
# choose an answer before you go on. A wrong prediction costs nothing: the answer explains why each
# choice is right or wrong.

# %% [markdown]
# ## Make four devices
#
# To TensorFlow, all cores of your processor are one [device](../docs/glossary.md#device). Let us
# split it into four [logical devices](../docs/glossary.md#logical-device), which share the same
# hardware. (With GPUs, `dl.split_devices` takes those, or splits them.) You must split devices
# before TensorFlow does anything else. `dl.show` prints a value, rounded. If you pass `expected`,
# it also prints what you should see.

# %%
import distlab as dl

DATASET = "digits"  # part of distlab: nothing is downloaded
devices = dl.split_devices(4)

dl.show("data set", DATASET)
dl.show("logical devices", len(devices), expected=4)

# %% [markdown]
# If this cell stops with *TensorFlow is already running*, it came too late. Restart the kernel
# (menu **Kernel**, then **Restart**) and run from the top. If something else fails, `dl.doctor()`
# names the cure.
#
# The four devices will share this work: 42 handwritten digits, each with its index below, from 0 to
# 41. `dl.load_dataset` returns one data set for each split in the list. `(digits,) =` takes the
# only one, and `train[:42]` means the first 42 training digits.

# %%
import numpy as np

from distlab.course.lesson_00_start_here.figures import draw_digits, draw_shares

(digits,) = dl.load_dataset(DATASET, splits=["train[:42]"])  # pairs of (image, label)
images = np.stack([image for image, label in digits])
draw_digits(images)

# %% [markdown]
# <details><summary>In plain TensorFlow</summary>
#
# On a machine without a GPU, `dl.split_devices(4)` is
#
# ```python
# cpu = tf.config.list_physical_devices("CPU")[0]
# tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
# ```
#
# It also returns the names of the devices, here `"CPU:0"` to `"CPU:3"`. `dl.load_dataset` reads
# TFRecord files that come with distlab, as `tensorflow_datasets` would.
# </details>

# %% [markdown]
# ## The first replicated step
#
# A [strategy](../docs/glossary.md#strategy) decides how devices work together. The mirrored
# strategy puts one [replica](../docs/glossary.md#replica) on each device: a copy of the model,
# which trains on its own part of each batch. This lesson has no model yet, so each replica only
# runs a copy of a function.

# %%
import tensorflow as tf

strategy = dl.make_strategy("mirrored", devices=devices)
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# <details><summary>In plain TensorFlow</summary>
#
# ```python
# ops = tf.distribute.ReductionToOneDevice()
# strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=ops)
# ```
#
# `dl.make_strategy` chooses `cross_device_ops`, the way in which numbers travel between devices,
# to suit your devices. Lesson 01 looks at them.
# </details>

# %% [markdown]
# `strategy.run(function)` calls a function on every replica. Inside the function,
# `tf.distribute.get_replica_context()` gives you the [replica
# context](../docs/glossary.md#replica-context). It knows which replica is calling, and through it a
# replica exchanges values with all replicas. Our function asks it one thing: which replica am I?
# The line `@tf.function` lets TensorFlow compile the function, so that it runs without Python.


# %%
@tf.function
def who_am_i():
    return tf.distribute.get_replica_context().replica_id_in_sync_group


answers = strategy.run(who_am_i)
answers

# %% [markdown]
# Four answers come back in a [`PerReplica`](../docs/glossary.md#perreplica). Each line is one
# replica: its index, and the tensor that it returned, here a single whole number. (The lines do not
# say on which device a tensor is.)

# %% tags=["predict"]
times_guess = dl.predict(
    "You want ten times these numbers. What does `answers * 10` give?",
    ["four numbers: 0, 10, 20 and 30", "one number: 60", "an error"],
)

# %%
from distlab.course.runs.outcomes import what_happens

product = what_happens(lambda: answers * 10)  # the result, or the error if there is one
print(product)

# %% tags=["reveal"]
times_guess.reveal(
    "an error" if isinstance(product, TypeError) else "four numbers: 0, 10, 20 and 30",
    {
        "four numbers: 0, 10, 20 and 30": "NumPy would multiply each number. But a `PerReplica` "
        "is no array.",
        "one number: 60": "For that, TensorFlow would have to add up four answers. It does so only "
        "if you ask for the sum.",
        "an error": "A `PerReplica` is a box with four tensors, and it has no `*`. You calculate "
        "with them on the replicas, or after you have taken them out.",
    },
)

# %% [markdown] tags=["after-reveal"]
# So you calculate *on* the replicas, inside a function for `run`. Or you take the tensors out:
# `experimental_local_results` returns an ordinary tuple, in the order of the replicas.

# %% tags=["after-reveal"]
results = strategy.experimental_local_results(answers)
dl.show("ten times each", [10 * result for result in results], expected=[0, 10, 20, 30])

# %% [markdown]
# ## Count ten digits together
#
# Now the replicas count a batch of ten digits. `count` returns how many images it was given, and
# `strategy.reduce("SUM", ...)` adds the four results. (`axis=None` means that only the replicas are
# added up. If each result were a vector, the sum would be a vector as well.)

# %% tags=["predict"]
sum_guess = dl.predict(
    "You pass one batch of ten digits to `strategy.run`. What is the sum of the four counts?",
    unit="images",
)


# %%
@tf.function
def count(batch):
    return tf.shape(batch)[0]


ten = images[32:]  # the last ten digits
counts = strategy.run(count, args=(ten,))
total = strategy.reduce("SUM", counts, axis=None)
dl.show("each replica counted", strategy.experimental_local_results(counts))
dl.show("SUM over replicas", total)

# %% tags=["reveal"]
sum_guess.reveal(
    int(total),
    {
        10: "That would be right if `run` cut the batch into shares. It does not.",
        4: "The four replicas are not what is counted. Each replica counts the images that it got.",
        40: "Each of the four replicas counted all ten.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **`run` does not split an ordinary array or tensor: every replica gets the whole batch.** The sum
# is four times too large, and no error tells you. A different reduction even hides it:

# %% tags=["after-reveal"]
dl.show("MEAN over replicas", strategy.reduce("MEAN", counts, axis=None), expected=10)

# %% [markdown] tags=["after-reveal"]
# The mean happens to be 10, although nothing was shared: each of the four replicas did all of the
# work. A plausible number does not prove that the replicas shared the data. Look at what each
# replica was given.

# %% [markdown]
# ## Let the strategy share the data
#
# To share examples, put them into a `tf.data.Dataset` and batch them. The batch size is that of
# all replicas together, the [global batch](../docs/glossary.md#global-batch). Then let the
# strategy distribute the data set. In ours, each digit travels with its index.

# %%
numbered = tf.data.Dataset.from_tensor_slices((np.arange(42), images))
dataset = numbered.batch(32)
distributed = strategy.experimental_distribute_dataset(dataset)

# %% [markdown]
# In global batches of 32, the 42 digits make one full batch and a last one of 10.

# %%
for step, (_, images_of) in enumerate(distributed, 1):
    shares = strategy.experimental_local_results(images_of)
    counts = strategy.run(count, args=(images_of,))
    dl.show(f"batch {step}, images on each replica", [len(share) for share in shares])
    dl.show("  SUM over replicas", strategy.reduce("SUM", counts, axis=None))

# %% [markdown]
# The sums are right now: 32, then 10. Each replica gets 8 digits of the full batch. The last 10 are
# shared as 3, 3, 3 and 1.

# %% tags=["predict"]
nine_guess = dl.predict(
    "Now you put 9 digits into one batch. How many does each of the four replicas get?",
    ["3, 2, 2, 2", "3, 3, 2, 1", "3, 3, 3, 0"],
)

# %%
nine = tf.data.Dataset.from_tensor_slices(images[:9]).batch(9)
(images_of,) = strategy.experimental_distribute_dataset(nine)  # its only batch
shares = strategy.experimental_local_results(images_of)
dl.show("9 images, on each replica", [len(share) for share in shares])
dl.show("shape on replica 3", tuple(shares[3].shape))

# %% tags=["reveal"]
nine_guess.reveal(
    ", ".join(str(len(share)) for share in shares),
    {
        "3, 2, 2, 2": "This is the most even way. By this rule, 10 digits would be 3, 3, 2 and 2, "
        "and you saw 3, 3, 3 and 1.",
        "3, 3, 2, 1": "This would keep one example back for the last replica. TensorFlow keeps "
        "none back: it hands out pieces of 3 until nothing is left.",
        "3, 3, 3, 0": "9 / 4 is rounded up to 3. Three pieces of 3 are all nine digits, so nothing "
        "is left for replica 3.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **A replica can get nothing, even if there are more examples than replicas.** TensorFlow divides
# the batch by the replicas, rounds up, and hands out pieces of that size. (A shape is (images,
# height, width, channels).)

# %% [markdown]
# ## Three ways to cut a batch
#
# Only our copy `images` is in memory. `digits` itself still reads its files. If you distribute
# `digits`, TensorFlow cuts a partial batch differently. Here are a last batch of 10 and one of 12.
# (After the inner loop, `shares` holds the last batch.)

# %%
(two_more,) = dl.load_dataset(DATASET, splits=["train[:44]"])
for data in (digits, two_more):
    for _, labels_of in strategy.experimental_distribute_dataset(data.batch(32)):
        shares = strategy.experimental_local_results(labels_of)
    dl.show("the last batch from files", [len(share) for share in shares])

# %% [markdown]
# A full batch of 32 has pieces of 32 / 4 = 8. TensorFlow keeps that size for the last batch:
# replica 0 gets 8, replica 1 gets the 2 or 4 that are left, and two replicas get nothing. Here are
# all three ways, for the whole course:
#
# | your data | the last 10, after batches of 32 | how the batch is cut |
# |---|---|---|
# | start in memory | 3, 3, 3, 1 | each batch as it comes: examples / replicas, rounded up |
# | are read from files | 8, 2, 0, 0 | pieces as large as those of a full batch, while they last |
# | go into `fit` of a model from `dl.distribute`, on CPUs | 3, 3, 2, 2 | as equally as possible |
#
# `dl.distribute`, which lesson 01 introduces, trains a Keras model on all replicas. In one process,
# its `fit` on GPUs follows the first two rows, and so does Keras's own `fit` of a model that you
# build in the strategy's [scope](../docs/glossary.md#scope).
#
# `dl.plan_batch` knows all three ways:

# %%
plan = dl.plan_batch(global_batch=32, replicas=4)
for source in ("memory", "files", "distribute"):
    dl.show(source, {last: plan.shares_of(last, source=source) for last in (10, 12)})

# %% [markdown]
# The three ways agree on a full batch that divides evenly. They can differ if a batch is not full,
# or does not divide evenly. You need not learn the table by heart. Learn to **count the examples
# on each replica**, because unequal shares can break a mean.
#
# <details><summary>Why does TensorFlow have two ways?</summary>
#
# The [auto-shard](../docs/glossary.md#auto-shard) policy decides. Its default is `AUTO`. If a
# pipeline contains a data set that reads files, such as `TFRecordDataset` or `TextLineDataset`,
# `AUTO` means `FILE`, even if that data set is inside an `interleave`. With several
# [workers](../docs/glossary.md#worker), each worker would then read different files and never see
# a whole global batch, so TensorFlow fixes the pieces beforehand, from the batch size.
#
# If it contains none, `AUTO` means `DATA`: every worker would read everything, and TensorFlow
# cuts each batch as it comes. This holds even if a `map` opens files whose paths are in memory,
# as in `keras.utils.image_dataset_from_directory`.
#
# distlab's tests show two more cases. `OFF` cuts like `FILE`. A `map` after `batch` can hide the
# batch size, and then TensorFlow cuts batches from files as they come, too.
# </details>

# %% [markdown]
# ## Which replica saw which example
#
# Back to the data in memory. Many data sets are stored class by class: first all zeros, then all
# ones, and so on. Sort the digits like that, and do not shuffle. Eight of the 42 digits are zeros.

# %% tags=["predict"]
sorted_guess = dl.predict(
    "Sorted by class, in batches of 32: which digits does replica 0 see in the first batch?",
    ["zeros only", "one or two of each class in the batch", "different ones in each run"],
)

# %%
labels = np.array([int(label) for _, label in digits])
by_class = tf.data.Dataset.from_tensor_slices(np.sort(labels)).batch(32)
first, *_ = strategy.experimental_distribute_dataset(by_class)  # the first of two batches
for replica, share in enumerate(strategy.experimental_local_results(first)):
    dl.show(f"sorted digits on replica {replica}", share)

# %% tags=["reveal"]
classes = set(strategy.experimental_local_results(first)[0].numpy())
sorted_guess.reveal(
    "zeros only" if classes == {0} else "one or two of each class in the batch",
    {
        "one or two of each class in the batch": "This would be right if TensorFlow dealt the "
        "digits out in turn, like cards. It cuts the batch into pieces of neighbours.",
        "different ones in each run": "Nothing here is random. Without a shuffle, each run cuts "
        "the same batch in the same places.",
        "zeros only": "A piece is 8 neighbours, and the eight zeros come first.",
    },
)

# %% [markdown] tags=["after-reveal"]
# A layer that computes statistics of its replica's images, such as `BatchNormalization`, would
# see only zeros on replica 0. So shuffle *before* you batch. Now read off which of the unsorted
# images each replica was given. Their indices travelled with them:

# %% tags=["after-reveal"]
seen = []
for numbers, _ in distributed:
    shares = strategy.experimental_local_results(numbers)
    seen.append([share.numpy() for share in shares])

# %% tags=["after-reveal"]
draw_shares(images, seen)

# %% [markdown] tags=["after-reveal"]
# TensorFlow cuts a batch in order, into pieces of neighbours: the image with index 8 is the first
# one on replica 1. In batch 2, image 41 is alone on replica 3. If each replica takes the mean of
# its share, and you take the mean of the four means, image 41 weighs three times as much as image
# 40. Lesson 01 shows what that does to a gradient.
#
# Was every image seen, and none twice?

# %% tags=["after-reveal"]
everything = np.concatenate([share for batch in seen for share in batch])
dl.show("digits seen", len(everything), expected=42)
dl.show("different ones among them", len(set(everything)), expected=42)

# %% [markdown]
# ## Are four devices faster?
#
# One last question. Let one device add up the pixels of a batch of 32 digits. Then let each of the
# four logical devices do it for 8 digits, and add up the four sums.

# %% tags=["predict"]
speed_guess = dl.predict(
    "How fast do the four logical devices add up these pixels, compared with one device?",
    ["about four times as fast", "about as fast", "slower"],
)

# %% tags=["nbval-ignore-output"]
from timeit import timeit

_, whole = next(iter(dataset))
_, shared = next(iter(distributed))
on_one_device = tf.function(lambda: tf.reduce_sum(whole))


@tf.function
def on_four_devices():
    sums = strategy.run(tf.reduce_sum, args=(shared,))
    return strategy.reduce("SUM", sums, axis=None)


def seconds(work):
    work()  # the first call compiles
    return min(timeit(work, number=20) for _ in range(25))


one, four = seconds(on_one_device), seconds(on_four_devices)
dl.show("four devices take longer", four > one)

# %% tags=["reveal", "nbval-ignore-output"]
speed_guess.reveal(
    "slower" if four > one else "about as fast",
    {
        "about four times as fast": "Four GPUs can come near that if the work is large. Logical "
        "devices share the cores that one device used alone.",
        "about as fast": "The four share the cores of the one device, so expect no gain. "
        "And these pieces are small: starting four of them and waiting for all costs more than "
        "adding up the pixels.",
        "slower": "All four share the same cores, and starting four pieces of work and waiting for "
        "all of them costs more than the work itself.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **Logical devices teach correctness, not speed.** They share the same cores, so do not expect them
# to be faster. TensorFlow must also start four pieces of work and wait for all of them, and with
# pieces as small as ours this overhead makes them slower. On logical devices you can find a
# mistake in how the data are shared. Still check your numbers again on your GPUs.

# %% [markdown]
# ## What can this machine do?
#
# `dl.doctor()` checks your machine and changes nothing on it. If you read *none* under
# **Problems**, at the end, you are ready for the course. Each problem comes with its cure. Your
# versions and devices may differ from those stored here.

# %% tags=["nbval-ignore-output"]
dl.doctor()

# %% [markdown]
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch runs one process for each replica: `torchrun --nproc-per-node 4 train.py`. A
# [`DistributedSampler`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
# gives each process its examples. It repeats some at the end of an epoch, so that all shares are
# equal. JAX makes four CPU devices with `XLA_FLAGS=--xla_force_host_platform_device_count=4`. An
# array is cut over them by a [`NamedSharding`](https://docs.jax.dev/en/latest/jax.sharding.html),
# whose pieces must be equal.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. A global batch of 64 on 4 replicas: how many examples does each
# get?</summary>
#
# 16 each. All replicas together take the global batch.
# </details>
#
# <details><summary>2. The last batch has 6 examples, from memory, and there are 4 replicas. How
# many does each get?</summary>
#
# 2, 2, 2 and 0. 6 / 4 rounded up is 2, so nothing is left for the last replica.
# </details>
#
# <details><summary>3. You pass a tensor of 100 values to <code>strategy.run</code> on 4 replicas
# and add up their counts. What do you get?</summary>
#
# 400. An ordinary tensor is not split, so each replica counts all 100.
# </details>
#
# <details><summary>4. The MEAN over replicas gives exactly the number that you expected. Were the
# data shared?</summary>
#
# You cannot tell. If every replica saw everything, the mean is the same. Look at the shapes on each
# replica.
# </details>
#
# <details><summary>5. Training on 4 logical CPUs is slower than on one. Is something
# broken?</summary>
#
# No. They share the same cores, so they add no speed. Starting four replicas and waiting for all
# of them takes extra time in each step.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 00](../exercises/00_start_here.ipynb): four short tasks and your own data, about 30
#   minutes. Each answer is checked at once.
# - [Lesson 01](01_mirrored_strategy.ipynb): put a model on the replicas, and see that two
#   replicas end with the same weights as one device.
# - [The glossary](../docs/glossary.md) explains every term of the course.
# - [Distributed input](https://www.tensorflow.org/tutorials/distribute/input) is TensorFlow's own
#   guide to sharing data. Its examples of how a batch is cut are in memory, and it warns you not to
#   depend on them.
