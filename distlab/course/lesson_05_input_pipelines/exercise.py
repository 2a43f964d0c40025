# %% [markdown]
# # Exercise: input pipelines
#
# For [lesson 05](../notebooks/05_input_pipelines.ipynb). You repair a pipeline that's slow and
# wrong, share files between workers, and predict when more workers make a step faster. The checks
# read no clock: they count calls, and look at which examples came and in which order.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `repair_pipeline` | repair the order of six stages | 10 | easy | core |
# | 2. `shard_files` | deal out files, or lines if there are too few files | 12 | medium | core |
# | 3. `predict_step` | predict the time of a step on several workers | 8 | medium | core |
# | 4. `rest_of_epoch` | continue an interrupted epoch on fewer workers | 12 | hard | extra |
# | 5. your own pipeline | find out what your training waits for (no points) | 15 | open | extra |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint.

# %%
import math
from itertools import islice

import keras
import tensorflow as tf

import distlab as dl
from distlab.course.lesson_05_input_pipelines.runs import CountedCalls
from distlab.course.measure.step_split import split_step

devices = dl.split_devices(4)
strategy = dl.make_strategy("mirrored", devices=devices)
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## Task 1: a pipeline that is slow and wrong
#
# In which order must these stages be, so that training doesn't wait and every epoch is new? Repair
# `make_pipeline`, so that `read` is called once for each number, several calls at a time. Every
# epoch needs new versions, a new order and new batches, and finished batches must be kept ready.
# You need about 6 lines.
#
# <details><summary>Hint</summary>
#
# Which stages should run in every epoch? Everything else belongs before the cache.
# </details>


# %%
# task: repair_pipeline
def make_pipeline(numbers, read, augment, batch, seed):
    """Returns a data set of batches, in a new order in each epoch.

    Args:
        numbers: The numbers to read in each epoch.
        read: Reads a number's example. It's slow, and always returns the same for a number.
        augment: Returns a new version of an example. It's cheap and random.
        batch: The number of examples in a batch.
        seed: Decides the orders of all epochs.
    """
    data = tf.data.Dataset.from_tensor_slices(numbers)
    ### BEGIN SOLUTION
    data = data.map(read, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.cache()
    data = data.shuffle(len(numbers), seed=seed)
    data = data.map(augment)
    data = data.batch(batch)
    return data.prefetch(tf.data.AUTOTUNE)
    ### STUB
    data = data.prefetch(tf.data.AUTOTUNE)
    data = data.map(read)
    data = data.map(augment)
    data = data.batch(batch)
    data = data.shuffle(len(numbers), seed=seed)
    return data.cache()
    ### END SOLUTION


# %% [markdown]
# Here are two epochs of six numbers, in batches of two. Before you run the cell: what should its
# three lines say?

# %%
calls = CountedCalls()
read, augment = calls.counted("read"), calls.counted("augment")
pipeline = make_pipeline(range(6), read, augment, 2, 1)
for epoch in (1, 2):
    dl.show(f"epoch {epoch}", [batch.numpy().tolist() for batch in islice(pipeline, 9)])
dl.show("calls", {name: calls[name] for name in ("read", "augment")})

# %%
dl.check("repair_pipeline")

# %% [markdown]
# **Try next:** move `cache()` to the end of your answer, and run the two cells above. Then move it
# after `shuffle`. Which of the numbers tells you that something is wrong, and which looks even
# better?
#
# <details><summary>Answer</summary>
#
# At the end, both epochs show the same batches, and `augment` is called 6 times instead of 12,
# which looks like a gain. After `shuffle`, the epochs have the same order, and both counts look
# right if you augment after `shuffle`. If you augment before it, `augment` is called only 6 times
# here as well.
# </details>

# %% [markdown]
# ## Task 2: files for workers
#
# Which examples does this worker read? Write `my_examples`, which deals out files, or lines if
# there are fewer files than workers. Together, all workers read each line once an epoch, and
# because decoding is slow, no line is decoded by two of them. The docstring has the arguments, and
# you need about 8 lines.
#
# <details><summary>Hint 1</summary>
#
# A list of file names is a data set, too: `tf.data.Dataset.from_tensor_slices(files)`. What do you
# shard in each of the two cases, and where is `flat_map(load)`?
# </details>
#
# <details><summary>Hint 2</summary>
#
# You can shuffle lines before they're decoded. They need less memory, too.
# </details>


# %%
# task: shard_files
def my_examples(context, files, load, decode, seed):
    """Returns a data set of this worker's decoded examples, not batched.

    Each epoch has a new order.

    Args:
        context: The worker's `tf.distribute.InputContext`.
        files: A list of file names.
        load: `data.flat_map(load)` turns names of files into their lines, at most 1,000.
        decode: Turns a line into an example.
        seed: Decides the orders of all epochs.
    """
    ### BEGIN SOLUTION
    workers, me = context.num_input_pipelines, context.input_pipeline_id
    data = tf.data.Dataset.from_tensor_slices(files)
    if len(files) >= workers:
        lines = data.shard(workers, me).flat_map(load)
    else:
        lines = data.flat_map(load).shard(workers, me)
    return lines.shuffle(1000, seed=seed).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    ### END SOLUTION


# %%
dl.check("shard_files")

# %% [markdown]
# **Try next:** five files of 4 lines, 2 workers, batches of 2 for each. How many steps has each
# worker's epoch? Would it be the same if you dealt out the lines?
#
# <details><summary>Answer</summary>
#
# With files, one worker has 12 lines and takes 6 steps, while the other one has 8 lines and takes
# 4, so it's without data in the last two steps. With lines, each worker has 10 and takes 5 steps:
# the shares are equal, but each worker opens all files.
# </details>

# %% [markdown]
# ## Task 3: predict before you buy
#
# Training is slow: will more workers help? Write `step_ms`, which predicts the milliseconds of a
# step in the middle of an epoch. A worker reads a step's examples in rounds of up to `at_once`
# calls, and a round takes `read_ms`. The docstring has the other arguments, and you need about 4
# lines.
#
# <details><summary>Hint</summary>
#
# How many examples does one worker read for a step, under each policy? How many rounds of calls is
# that?
# </details>


# %%
# task: predict_step
def step_ms(read_ms, compute_ms, global_batch, workers, policy, at_once, reads_ahead):
    """Predicts the milliseconds of a step in the middle of an epoch.

    Args:
        read_ms: The time of one call that reads an example.
        compute_ms: The time of a step's computation, all-reduce included.
        global_batch: The examples of a step on all workers together.
        workers: The number of workers.
        policy: `"FILE"` or `"DATA"`.
        at_once: How many calls a worker runs at once.
        reads_ahead: Whether batches are read during the previous step.
    """
    ### BEGIN SOLUTION
    examples = global_batch // workers if policy == "FILE" else global_batch
    input_ms = math.ceil(examples / at_once) * read_ms
    return max(input_ms, compute_ms) if reads_ahead else input_ms + compute_ms
    ### END SOLUTION


# %%
dl.check("predict_step")

# %% [markdown]
# Now your function can answer the question. Reading an example takes 10 ms, the computation 50 ms,
# the global batch is 64, 8 calls run at once, and batches are read ahead:

# %%
try:
    for policy in ("FILE", "DATA"):
        times = [step_ms(10, 50, 64, workers, policy, 8, True) for workers in (1, 2, 4, 8)]
        dl.show(f"ms for 1, 2, 4, 8 workers, {policy}", times)
except NotImplementedError:
    print("write step_ms first")

# %% [markdown]
# **Try next:** from how many workers on does `FILE` gain nothing more, and why? In reality
# `compute_ms` falls with the number of workers as well, if the global batch stays: which policy
# then waits for data at 8 workers?
#
# <details><summary>Answer</summary>
#
# From two workers on, because there the input takes 40 ms, which is less than the computation. If
# the computation takes 50 / 8 = 6.25 ms on 8 workers, both wait, but `FILE` reads for 10 ms and
# `DATA` still for 80.
# </details>

# %% [markdown]
# ## Task 4: an epoch that continues on fewer workers
#
# How do the remaining workers finish an epoch with the batches of a single device, if a
# [spot instance](../docs/glossary.md#spot-instance) is taken away? Write `rest_of_epoch` for
# `distribute_datasets_from_function`. Each worker has two replicas, and in each step both take a
# batch of their own from it. You need about 5 lines.
#
# <details><summary>Hint</summary>
#
# How would you deal out cards so that the first eight cards go to all four players? Which cards
# would you put aside, and when? And how large is the batch that *one replica* takes?
# </details>


# %%
# task: rest_of_epoch
def rest_of_epoch(context, numbers, decode, global_batch, steps_done):
    """Returns this worker's part of the epoch's rest, in batches for its replicas.

    All sizes divide evenly.

    Args:
        context: The worker's `tf.distribute.InputContext`.
        numbers: The numbers of this epoch, in its order.
        decode: Turns a number into an example. It's called once for each number that's left.
        global_batch: The examples of a step on all replicas together.
        steps_done: The number of global batches that are already trained.
    """
    ### BEGIN SOLUTION
    left = tf.data.Dataset.from_tensor_slices(numbers).skip(steps_done * global_batch)
    mine = left.shard(context.num_input_pipelines, context.input_pipeline_id)
    batch = context.get_per_replica_batch_size(global_batch)
    return mine.map(decode, num_parallel_calls=tf.data.AUTOTUNE).batch(batch)
    ### END SOLUTION


# %%
dl.check("rest_of_epoch")

# %% [markdown]
# **Try next:** `numbers` was in this epoch's order. If it isn't, where must your function shuffle,
# and what must a worker know that starts in the middle of epoch 7?
#
# <details><summary>Answer</summary>
#
# First of all, before you drop the trained numbers and before `shard`, so that both act on the same
# order. All workers need the seed with which epoch 7 began, such as `seed + 7`, because a `shuffle`
# that starts again begins with the order of its first epoch.
# </details>

# %% [markdown]
# ## Task 5: your own pipeline
#
# Do your own replicas wait for data? Put your step and your data in place of `own_step` and
# `own_data`, and print `split`. If they wait, which stage would you repair first, and what do you
# expect of the next measurement? Write it down before you run.
#
# `split_step` trains the model, so use a copy. It looks at the first 200 batches only, and a
# `cache()` of more never gets full: raise the limit then, as in `split_step(..., most_steps=1000)`.

# %%
(own_data,) = dl.load_dataset("digits", splits=["train[:128]"], batch_size=32)
with strategy.scope():
    own_model = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    )
own_step = tf.function(lambda batch: strategy.run(own_model, args=(batch[0],)))

split = split_step(own_step, strategy.experimental_distribute_dataset(own_data))
dl.show("measured", ", ".join(vars(split)))

# %% [markdown]
# ## Next steps
#
# - [Lesson 05](../notebooks/05_input_pipelines.ipynb), if a check sent you back to it.
# - [Lesson 06](../notebooks/06_reproducibility.ipynb) shows which runs can be the same in every
#   bit.
