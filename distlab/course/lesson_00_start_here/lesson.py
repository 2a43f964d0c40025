# %% [markdown]
# # Start here
#
# Training Llama 3.1 405B took [30.84 million GPU
# hours](https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md). A
# single GPU would have worked for 3,500 years, so [up to 16,384 of
# them](https://arxiv.org/abs/2407.21783) trained one model together. With so many devices you'd
# expect a mistake to make some noise. It usually doesn't: the loss falls, the program ends, and the
# model is wrong.
#
# In this course you make such mistakes yourself, on your own machine, where you can look at every
# number. We start with the smallest question that you can get wrong: which of four devices saw
# which example? After this lesson you can
#
# - run a function on four replicas and combine their results,
# - say how many examples each replica gets, even when they don't divide evenly,
# - tell a result that's right from one that only looks right.
#
# **Time:** {minutes}. **Needs:** Python and a little NumPy, but no GPU and no download. From lesson
# 01 on, you should also have trained a Keras model with `fit` and know what a gradient is.
#
# **How to work:** run the cells with Shift+Enter, from the top. Where a cell asks for a prediction,
# choose an answer before you go on. A wrong one costs nothing, and you'll learn most from it,
# because the answer says what would have to be true for your choice.

# %% [markdown]
# ## Four devices from one processor
#
# You don't need four GPUs to share work among four devices. TensorFlow sees your whole processor as
# one [device](../docs/glossary.md#device), which you can split into four [logical
# devices](../docs/glossary.md#logical-device). They share the same cores, so nothing gets faster,
# but you can share work among them wrongly in the same ways as among four GPUs.

# %%
import distlab as dl

devices = dl.split_devices(4)
dl.show("logical devices", len(devices), expected=4)

# %% [markdown]
# You have to split devices before TensorFlow does anything else. If the cell stops with *TensorFlow
# is already running*, restart the kernel (menu **Kernel**, then **Restart**) and run from the top;
# if anything else fails, `dl.doctor()` names the cure.
#
# Here's what the four devices will share: 42 handwritten digits, which come with distlab. Below
# each digit is its index, so that you can follow it later.

# %%
import numpy as np

from distlab.course.lesson_00_start_here.figures import draw_digits, draw_shares

(digits,) = dl.load_dataset("digits", splits=["train[:42]"])  # pairs of (image, label)
images = np.stack([image for image, label in digits])
draw_digits(images)

# %% [markdown]
# ## One function on four replicas
#
# A [strategy](../docs/glossary.md#strategy) decides how devices work together, and the mirrored
# strategy puts a [replica](../docs/glossary.md#replica) on each of them: a copy of the model, which
# trains on its own part of each batch. We don't have a model yet, so each replica only runs a copy
# of a function, and ours asks which replica it's running on:

# %%
import tensorflow as tf

strategy = dl.make_strategy("mirrored", devices=devices)


@tf.function
def who_am_i():
    return tf.distribute.get_replica_context().replica_id_in_sync_group


answers = strategy.run(who_am_i)
answers

# %% [markdown]
# `strategy.run` called the function on every replica, and each of them found its own index in the
# [replica context](../docs/glossary.md#replica-context), through which replicas will also talk to
# each other. What you get back is a [`PerReplica`](../docs/glossary.md#perreplica), which is a box
# of four tensors rather than an array, so `answers * 10` raises an error. Calculate inside the
# function, or take the tensors out first:

# %%
results = strategy.experimental_local_results(answers)
dl.show("ten times each", [10 * result for result in results], expected=[0, 10, 20, 30])

# %% [markdown]
# > **Takeaway.** `run` calls a function on every replica and combines nothing: you get one result
# > from each.
#
# <details><summary>In plain TensorFlow</summary>
#
# On a machine without a GPU, the two calls of distlab are
#
# ```python
# cpu = tf.config.list_physical_devices("CPU")[0]
# tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
# devices = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
# ops = tf.distribute.ReductionToOneDevice()
# strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=ops)
# ```
#
# `cross_device_ops` is the way in which numbers travel between devices, and `dl.make_strategy`
# chooses one that suits yours. `@tf.function` compiles a function, so that it runs without Python.
# </details>

# %% [markdown]
# ## Count ten digits together
#
# Now the replicas get some work: `count` returns how many images it was given, and
# `strategy.reduce("SUM", ...)` adds the four results. (`axis=None` means that nothing but the
# replicas is summed.)

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
        10: "That would be right if `run` cut the batch into shares. It gives all of it to each "
        "replica.",
        4: "That would be the sum if each replica counted itself. Each counts the images that it "
        "was given.",
        40: "Each of the four replicas was given the whole batch, and counted all ten.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **`run` doesn't split an ordinary array or tensor: every replica gets the whole batch.** The sum
# is four times too large, because all four did the same work, and no error tells you. Worse, a
# different reduction hides it:

# %% tags=["after-reveal"]
dl.show("MEAN over replicas", strategy.reduce("MEAN", counts, axis=None), expected=10)

# %% [markdown] tags=["after-reveal"]
# The mean is the number that you wanted, although nothing was shared. If four people count the same
# ten coins, they'll agree on ten as well, but you've paid four of them.
#
# > **Takeaway.** A plausible number doesn't prove that the replicas shared the data. Look at what
# > each replica was given.

# %% [markdown]
# ## Let the strategy share the data
#
# Examples are shared only if the strategy distributes them, so put them into a `tf.data.Dataset`,
# batch them, and hand the data set over. The batch size is that of all replicas together, the
# [global batch](../docs/glossary.md#global-batch), which means that 32 digits are 8 on each
# replica. In our data set, each digit travels with its index:

# %%
numbered = tf.data.Dataset.from_tensor_slices((np.arange(42), images))
dataset = numbered.batch(32)
distributed = strategy.experimental_distribute_dataset(dataset)

for step, (_, images_of) in enumerate(distributed, 1):
    shares = strategy.experimental_local_results(images_of)
    counts = strategy.run(count, args=(images_of,))
    dl.show(f"batch {step}, images on each replica", [len(share) for share in shares])
    dl.show("  SUM over replicas", strategy.reduce("SUM", counts, axis=None))

# %% [markdown]
# Now the sums are right. The second batch is what's left of the 42, and since ten digits don't
# divide evenly by four, one replica gets fewer than the others.

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

# %% tags=["reveal"]
nine_guess.reveal(
    ", ".join(str(len(share)) for share in shares),
    {
        "3, 2, 2, 2": "This would be the most even way. By this rule, ten digits would be 3, 3, 2 "
        "and 2, and you saw 3, 3, 3 and 1.",
        "3, 3, 2, 1": "This would be so if one example were kept for the last replica. TensorFlow "
        "keeps none back: it hands out pieces of 3 until nothing is left.",
        "3, 3, 3, 0": "9 / 4 is rounded up to 3. Three pieces of 3 are all nine digits, so nothing "
        "is left for replica 3.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **A replica can get nothing, even if there are more examples than replicas.** TensorFlow divides
# the batch by the number of replicas, rounds up, and hands out pieces of that size while they last.
# So replica 3 can go without while the others have three each, and the mean over its examples
# would be 0 / 0.
#
# > **Takeaway.** Only a distributed data set arrives in shares, and the last share may be smaller,
# > or empty.

# %% [markdown]
# ## Three ways to cut a batch
#
# Our digits start in memory, while data that are read from files are cut by a second rule, and
# `fit` of a model from `dl.distribute` (lesson 01) follows a third. You needn't learn the rules by
# heart, because `dl.plan_batch` knows all three. After full batches of 32, the last 10 examples are
# shared like this:

# %%
plan = dl.plan_batch(global_batch=32, replicas=4)
for source in ("memory", "files", "distribute"):
    dl.show(source, plan.shares_of(10, source=source))

# %% [markdown]
# From files, TensorFlow keeps the pieces of a full batch, so here two replicas get nothing, while
# `dl.distribute` cuts as equally as it can. Only a full batch that divides evenly is sure to be
# shared in the same way by all three.
#
# > **Takeaway.** If a batch isn't full, **count the examples on each replica**, because unequal
# > shares can break a mean.
#
# <details><summary>Fine print</summary>
#
# The [auto-shard](../docs/glossary.md#auto-shard) policy decides which of the first two rules
# holds. A data set that reads files, such as `TFRecordDataset`, makes it the second. If a `map`
# opens files whose paths are in memory, as in `keras.utils.image_dataset_from_directory`, it's the
# first. Keras's own `fit` in one process follows these two rules, and so does `fit` from
# `dl.distribute` on GPUs.
# </details>

# %% [markdown]
# ## Which replica saw which example
#
# So far we only counted, but it also matters *which* examples a replica gets. Many data sets are
# stored class by class: first all zeros, then all ones, and so on. Suppose you sort our digits like
# that, with the eight zeros in front, and don't shuffle them.

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
        "different ones in each run": "That would need something random. Without a shuffle, every "
        "run cuts the same batch in the same places.",
        "zeros only": "A piece is 8 neighbours, and the eight zeros come first.",
    },
)

# %% [markdown] tags=["after-reveal"]
# A layer that computes statistics of its replica's images, such as `BatchNormalization`, would take
# them from zeros alone on replica 0. So shuffle *before* you batch. Our own digits aren't sorted,
# and because their indices travelled with them, you can see who got which:

# %% tags=["after-reveal"]
seen = []
for numbers, _ in distributed:
    shares = strategy.experimental_local_results(numbers)
    seen.append([share.numpy() for share in shares])
draw_shares(images, seen)

# %% [markdown] tags=["after-reveal"]
# Find image 41: in batch 2 it's alone on replica 3. If each replica takes the mean of its share,
# and you take the mean of the four means, image 41 counts three times as much as image 40. Lesson
# 01 shows what that does to a gradient. At least every image was seen, and none twice:

# %% tags=["after-reveal"]
everything = np.concatenate([share for batch in seen for share in batch])
dl.show("digits seen", len(everything), expected=42)
dl.show("different ones among them", len(set(everything)), expected=42)

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** TensorFlow cuts a batch in order, so each replica gets neighbours. Shuffle before
# > you batch, and let an index travel along if you want to know who saw what.

# %% [markdown]
# ## Are four devices faster?
#
# One question is left, and it's about speed. `seconds_to_sum` measures how long a single device
# takes to sum the pixels of 32 digits, and how long the four logical devices take if each of them
# sums 8 digits and the four results are added.

# %% tags=["predict"]
speed_guess = dl.predict(
    "How fast do the four logical devices sum these pixels, compared with a single device?",
    ["about four times as fast", "about as fast", "slower"],
)

# %% tags=["nbval-ignore-output"]
from distlab.course.lesson_00_start_here.runs import seconds_to_sum

one, four = seconds_to_sum(strategy, dataset)
dl.show("four devices take longer", four > one)

# %% tags=["reveal", "nbval-ignore-output"]
speed_guess.reveal(
    "slower" if four > one else "about as fast",
    {
        "about four times as fast": "Four GPUs can come near that if the work is large. Logical "
        "devices share the cores that a single device had for itself.",
        "about as fast": "The four share the cores of the single device, so expect no gain. And "
        "these pieces are small: starting four of them and waiting for all costs more than summing "
        "the pixels.",
        "slower": "All four share the same cores, and starting four pieces of work and waiting for "
        "all of them costs more than the work itself.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Four logical devices still have only one processor, and TensorFlow must start four pieces of work
# and wait for all of them. With pieces as small as ours, this overhead is larger than the work. So
# don't measure speed here: look for mistakes, and then check your numbers again on your GPUs.
#
# > **Takeaway.** Logical devices teach correctness, not speed.

# %% [markdown]
# ## What can this machine do?
#
# `dl.doctor()` looks at your machine and changes nothing. If it says *none* under **Problems**, at
# the end, you're ready for the course, and otherwise each problem comes with its cure. Your
# versions and devices may differ from those stored here.

# %% tags=["nbval-ignore-output"]
dl.doctor()

# %% [markdown]
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch runs one process for each replica: `torchrun --nproc-per-node 4 train.py`. There a
# [`DistributedSampler`](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
# shares the examples, and repeats some at the end of an epoch so that all shares are equal. JAX
# makes four CPU devices with `XLA_FLAGS=--xla_force_host_platform_device_count=4`, and a
# [`NamedSharding`](https://docs.jax.dev/en/latest/jax.sharding.html) cuts an array over them into
# pieces that must be equal.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. The last batch has 6 examples, from memory, and there are 4 replicas. How
# many does each get?</summary>
#
# 2, 2, 2 and 0, because 6 / 4 is rounded up to 2, and then nothing is left for the last replica.
# </details>
#
# <details><summary>2. You pass a tensor of 100 values to <code>strategy.run</code> on 4 replicas
# and add up their counts. What do you get?</summary>
#
# You get 400, because an ordinary tensor isn't split, and each replica counts all 100.
# </details>
#
# <details><summary>3. The MEAN over replicas gives exactly the number that you expected. Were the
# data shared?</summary>
#
# You can't tell, because the mean is the same if every replica saw everything. Look at the shapes
# on each replica.
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
#   replicas end with the same weights as a single device.
# - [The glossary](../docs/glossary.md) explains every term of the course.
# - [Distributed input](https://www.tensorflow.org/tutorials/distribute/input) is TensorFlow's own
#   guide to sharing data. Its examples of how a batch is cut are in memory, and it warns you not to
#   depend on them.
