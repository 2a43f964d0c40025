# %% [markdown]
# # Start here
#
# In this course you train one model on many devices at once, for real, on the machine in front of
# you. Every lesson asks you to predict something, lets you run it, and shows whether the numbers
# agree. One promise holds it together: many devices, used rightly, take the same steps as one.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - say whether this machine is ready,
# - run a function on four replicas at once and bring their answers together,
# - tell which replica sees which example, also when a batch does not divide evenly,
# - see the trap that makes a sum four times too large.
#
# **Time:** two minutes to run, ten to read and predict. **Needs:** Python and a little NumPy. No
# GPU. For the course: you have once trained a Keras model with `compile` and `fit`, and know what a
# gradient is.
#
# **How to work:** read, say your prediction aloud (or write it down), run the cell with
# Shift+Enter, compare. A wrong prediction is where you learn most.

# %% [markdown]
# ## Make four devices
#
# Most machines have one processor that TensorFlow counts as one device. We ask it for four *logical
# devices*: four names for parts of the same hardware. This must come before TensorFlow does
# anything else.

# %%
import distlab as dl

DATASET = "digits"  # part of distlab: nothing is downloaded
devices = dl.split_devices(4)

dl.show("data set", DATASET)
dl.show("logical devices", len(devices), expected=4)

# %% [markdown]
# If this cell ever stops with an error that says *TensorFlow is already running*, it came too late:
# restart the kernel (menu **Kernel**, then **Restart**) and run from the top.
#
# Here is what the four devices will share: 42 handwritten digits, each with its number below.

# %%
import numpy as np

from distlab.pictures.examples import draw_digits, draw_shares

(digits,) = dl.load_dataset(DATASET, splits=["train[:42]"])  # pairs of (image, label)
images = np.stack([image for image, label in digits])
draw_digits(images)

# %% [markdown]
# ### Will four devices be four times as fast?
#
# Predict it, then open the answer.
#
# <details><summary>Answer</summary>
#
# No, mostly they are *slower* than one. All four share the same hardware, so there is no more power
# than before, and they must now wait for each other as well. **Logical devices teach correctness,
# not speed.** What is right on four of them is right on four real GPUs; how fast those are is a
# question for a later lesson.
# </details>

# %% [markdown]
# ## Is this machine ready?
#
# `dl.doctor()` looks and changes nothing. Read its end first: *none* under **Problems** means that
# you can go on; anything else comes with its cure. **Strategies** says what can run here. Your
# versions and devices may differ from those stored below; that is fine.

# %% tags=["nbval-ignore-output"]
dl.doctor()

# %% [markdown]
# ## The first replicated step
#
# A *strategy* knows the devices. The mirrored strategy puts one *replica*, a copy of the work, on
# each of them.

# %%
import tensorflow as tf

strategy = dl.make_strategy("mirrored", devices=devices)
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# `strategy.run` calls a function once on every replica. Ours asks: which replica am I?
# (`tf.function` compiles it, as one should for anything that runs more than once.)
#
# **Predict:** how many values come back?


# %%
@tf.function
def who_am_i():
    return tf.distribute.get_replica_context().replica_id_in_sync_group


answers = strategy.run(who_am_i)
answers

# %% [markdown]
# One call, four answers, kept side by side in a `PerReplica`. TensorFlow does not combine them:
# that is for you to say. To get them as an ordinary tuple, in the order of the replicas:

# %%
dl.show("replica ids", strategy.experimental_local_results(answers), expected=[0, 1, 2, 3])

# %% [markdown]
# ## The trap: an ordinary tensor
#
# Now let the replicas count ten examples together. Each counts what it is given, and
# `strategy.reduce` adds up.
#
# **Predict:** what does each replica count, and what is the sum?


# %%
@tf.function
def count(batch):
    return tf.shape(batch)[0]


ten = images[32:]  # the last ten digits
counts = strategy.run(count, args=(ten,))
dl.show("each replica counted", strategy.experimental_local_results(counts))
dl.show("SUM over replicas", strategy.reduce("SUM", counts, axis=None), expected=10)

# %% [markdown]
# Forty. **`run` does not split an ordinary array or tensor: every replica gets the whole batch.**
# The sum is four times too large, and no error says so.
#
# It can hide even better. Take the mean in place of the sum:

# %%
dl.show("MEAN over replicas", strategy.reduce("MEAN", counts, axis=None), expected=10)

# %% [markdown]
# The number is right and the work is wrong: four replicas each did all of it. Nothing was shared.
# So do not trust a right total alone; look at what each replica was given.

# %% [markdown]
# ## The cure: let the strategy share the data
#
# Put the examples into a `tf.data.Dataset`, batched by the number that *all replicas together* take
# in one step: the *global batch*. Then let the strategy distribute it. Each digit travels with its
# number.

# %%
only_images = digits.map(lambda image, label: image)
dataset = tf.data.Dataset.zip(tf.data.Dataset.range(42), only_images).batch(32)
distributed = strategy.experimental_distribute_dataset(dataset)

# %% [markdown]
# 42 examples in global batches of 32 make one full batch and a last one of 10.
#
# **Predict:** how many images does each of the four replicas get from the full batch, and how many
# from the last?

# %%
for step, (_, images_of) in enumerate(distributed, 1):
    shares = strategy.experimental_local_results(images_of)
    counts = strategy.run(count, args=(images_of,))
    dl.show(f"batch {step}, images on each replica", [len(share) for share in shares])
    dl.show("  SUM over replicas", strategy.reduce("SUM", counts, axis=None))
    dl.show("  shape on replica 3", tuple(shares[3].shape))

# %% [markdown]
# 8 each, then 3, 3, 3 and 1. And now the sums are right: 32, then 10. (A shape reads: so many
# images, of 8 by 8 pixels, with one grey value each.)
#
# Why not 3, 3, 2, 2? TensorFlow cuts a batch, in order, into pieces of 10 / 4 rounded *up*, which
# is 3. What is left for the last replicas may be less. It may even be nothing: you will meet that
# in the exercise. (Data read straight from files can be cut in another way, as lesson 03 shows. So
# look, or count; do not assume.)

# %% [markdown]
# ## Which replica saw which example
#
# The numbers travelled with the images. So we can read off each replica's share, batch after batch,
# which digits it was given.
#
# **Predict:** who sees number 8? And who sees number 41, the last?

# %%
seen = []
for numbers, _ in distributed:
    shares = strategy.experimental_local_results(numbers)
    seen.append([share.numpy() for share in shares])
draw_shares(images, seen)

# %% [markdown]
# In the full batch the replicas do equal work. In the last one replica 3 looks at a single digit.
# Remember that lonely digit: if each replica takes the mean over its share, and you then take the
# mean of those four means, it weighs three times as much as its neighbours. Lesson 01 comes back to
# it.
#
# Was every digit seen, and none twice?

# %%
everything = np.concatenate([share for batch in seen for share in batch])
dl.show("digits seen", len(everything), expected=42)
dl.show("different ones among them", len(set(everything)), expected=42)

# %% [markdown]
# ## Words so far
#
# | word | meaning |
# |---|---|
# | logical device | a device that TensorFlow sees; several may share one piece of hardware |
# | replica | one copy of the work, on one device |
# | strategy | decides where replicas and variables live, and how values are combined |
# | global batch | the examples that all replicas together take in one step: 32 here |
# | per-replica batch | one replica's share of it: 8 here, and 3, 3, 3, 1 of the last ten |
# | `PerReplica` | one value for each replica, not combined |
# | distributed data set | a data set whose every batch comes already cut into shares |
# | reduce | make one value of many: SUM or MEAN over the replicas |

# %% [markdown]
# ## Check yourself
#
# 1. A global batch of 64 on 4 replicas: how many examples does each get?
#
#    <details><summary>Answer</summary>16 each. 64 is the global batch, shared by all.</details>
#
# 2. And 6 examples on 4 replicas?
#
#    <details><summary>Answer</summary>6 / 4 rounded up is 2, so 2, 2, 2 and 0: the last replica
#    gets nothing.</details>
#
# 3. You pass a tensor of 100 values to `strategy.run` on 4 replicas, and reduce their counts with
#    SUM. What do you get?
#
#    <details><summary>Answer</summary>400. An ordinary tensor is not split; each replica counts all
#    100.</details>
#
# 4. The MEAN over replicas gives exactly the number you expected. Was the data shared?
#
#    <details><summary>Answer</summary>You cannot tell. If every replica saw everything, the mean is
#    right as well. Look at the shapes on each replica.</details>
#
# 5. Training on 4 logical CPUs is slower than on one. Is something broken?
#
#    <details><summary>Answer</summary>No. They share the same cores. Logical devices are for
#    learning what is right.</details>

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/00_start_here.ipynb): three short tasks, about 15 minutes. Each
#   answer is checked at once.
# - [Lesson 01](01_mirrored_strategy.ipynb): put a model on the replicas, and see that four end with
#   the weights of one.
