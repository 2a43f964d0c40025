# %% [markdown]
# # Exercise: input pipelines
#
# This exercise follows [lesson 05](../notebooks/05_input_pipelines.ipynb). You repair a pipeline
# that is slow and wrong, share files between workers, continue an epoch on fewer of them, and
# predict the time of a step.
# The checks read no clock: they count calls, and look at which examples came and in which order.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `repair_pipeline` | repair the order of six stages | 10 | easy | core |
# | 2. `shard_files` | deal out files, or lines if there are too few files | 12 | medium | extra |
# | 3. `rest_of_epoch` | continue an interrupted epoch on fewer workers | 12 | hard | extra |
# | 4. `predict_step` | predict the time of a step on several workers | 8 | medium | extra |
# | 5. your own pipeline | find out what your training waits for (no points) | 15 | open | extra |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint.

# %%
import math

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
# This pipeline has all the right stages, in the wrong order. Training runs without an error,
# slowly, and it overfits. Repair `make_pipeline(numbers, read, augment, batch, seed)`.
#
# - `numbers` is an array of numbers, all different.
# - `read(number)` reads the example from a slow disk. It returns the same for the same number.
# - `augment(example)` changes an example at random, differently with every call. It is cheap.
# - It returns a data set of batches. Each epoch has every number once.
# - Over all epochs, `read` is called once for each number. In each epoch every example is augmented
#   again, in a new order and in new batches, and `seed` decides the orders.
# - In the first epoch several calls of `read` run at once, and the pipeline keeps finished batches
#   ready.
# - Change the order of the stages and one argument: about 6 lines.
#
# <details><summary>Hint</summary>
#
# Which stages should run in every epoch? Everything else belongs before the cache.
# </details>


# %%
# task: repair_pipeline
def make_pipeline(numbers, read, augment, batch, seed):
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
# Two epochs of six numbers. What should these lines say?

# %%
calls = CountedCalls()
read, augment = calls.counted("read"), calls.counted("augment")
pipeline = make_pipeline(range(6), read, augment, 2, 1)
for epoch in (1, 2):
    dl.show(f"epoch {epoch}", [batch.numpy().tolist() for batch in pipeline])
dl.show("calls", {name: calls[name] for name in ("read", "augment")})

# %%
dl.check("repair_pipeline")

# %% [markdown]
# **Try next:** move `cache()` to the end of your answer, and run the two cells above. Then move it
# behind `shuffle`. Which of the numbers tells you that something is wrong, and which looks even
# better?
#
# <details><summary>Answer</summary>
#
# At the end, both epochs show the same batches, and `augment` is called 6 times instead of 12,
# which looks better. Behind `shuffle`, the epochs have the same order. Both counts look right if
# you augment after `shuffle`. If you augment before it, `augment` is called 6 times here, too.
# </details>

# %% [markdown]
# ## Task 2: files for workers
#
# A pipeline for one worker of several. If there are at least as many files as workers, each worker
# reads files of its own. If there are fewer, AUTO would stop with an error; yours deals out the
# lines. Write `my_examples(context, files, load, decode, seed)`.
#
# - `context.num_input_pipelines` says how many workers there are, `context.input_pipeline_id` which
#   one this is.
# - `files` is a list of file names, the same on all workers. `load(file)` returns a data set of the
#   file's lines. `data.flat_map(load)` calls `load` for each file name in `data`, and gives the
#   lines of all these files, one after the other. `decode(line)` makes an example from a line, and
#   is slow.
# - It returns a data set of **this worker's** decoded examples, one at a time, shuffled by `seed`
#   into a new order in each epoch. A worker has at most 1,000 lines.
# - In each epoch each example is in the data set of exactly one worker, and is decoded once in all,
#   without a cache. With enough files, each file is opened by one worker only. About 8 lines.
#
# <details><summary>Hint 1</summary>
#
# A list of file names is a data set, too: `tf.data.Dataset.from_tensor_slices(files)`. What do you
# shard in each of the two cases, and where is `flat_map(load)`?
# </details>
#
# <details><summary>Hint 2</summary>
#
# You can shuffle lines before they are decoded. They need less memory, too.
# </details>


# %%
# task: shard_files
def my_examples(context, files, load, decode, seed):
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
# Files: one worker has 3 files, 12 lines and 6 steps, the other 8 lines and 4 steps. In the last
# two steps the second one has no data. Lines: 10 each and 5 steps. The shares are equal, but each
# worker opens all files.
# </details>

# %% [markdown]
# ## Task 3: an epoch that continues on fewer workers
#
# Your job trains on [spot instances](../docs/glossary.md#spot-instance), machines that the provider
# may take back at any time. In the middle of an epoch some are taken away, and it continues on the
# others. The examples that were trained must not count twice, and the steps must be those of one
# device. Write `rest_of_epoch(context, numbers, decode, global_batch, steps_done)`. It is a
# function for `distribute_datasets_from_function`.
#
# - `context` is as in task 2, for the workers that are left. There are **two replicas on each
#   worker**, and `context.num_replicas_in_sync` counts the replicas of all workers.
# - `numbers` is this epoch's order, the same on all workers. Its length is a multiple of
#   `global_batch`, which is a multiple of the number of replicas. The first `steps_done` steps
#   trained the first `steps_done * global_batch` of them, on a different number of workers.
# - In each step, each replica takes the next batch from its worker's data set. All replicas
#   together must take the examples of one device's next batch, in any order within the step.
# - Over all workers, `decode(number)` is called once for each number that is left. About 5 lines.
#
# <details><summary>Hint</summary>
#
# How would you deal out cards so that the first eight cards go to all four players? Which cards
# would you put aside, and when? And how large is the batch that *one replica* takes?
# </details>


# %%
# task: rest_of_epoch
def rest_of_epoch(context, numbers, decode, global_batch, steps_done):
    ### BEGIN SOLUTION
    left = tf.data.Dataset.from_tensor_slices(numbers).skip(steps_done * global_batch)
    mine = left.shard(context.num_input_pipelines, context.input_pipeline_id)
    batch = context.get_per_replica_batch_size(global_batch)
    return mine.map(decode, num_parallel_calls=tf.data.AUTOTUNE).batch(batch)
    ### END SOLUTION


# %%
dl.check("rest_of_epoch")

# %% [markdown]
# **Try next:** `numbers` was in this epoch's order. If it is not, where must your function shuffle,
# and what must a worker that starts in the middle of epoch 7 know?
#
# <details><summary>Answer</summary>
#
# First of all: before you drop the trained numbers (with a slice or with `skip`) and before
# `shard`, so that both act on one order. All workers need the seed with which epoch 7 began, such
# as `seed + 7`: a `shuffle` that starts again begins with the order of its first epoch.
# </details>

# %% [markdown]
# ## Task 4: predict before you buy
#
# You want more workers because training is slow. Will they help? Write `step_ms(read_ms,
# compute_ms, global_batch, workers, policy, at_once, reads_ahead)`. It predicts how many
# milliseconds a step takes.
#
# - One call of the slow stage reads one example and takes `read_ms`. Each worker
#   calls it in rounds of up to `at_once` calls at a time. A round reads for one step only.
# - `compute_ms` is the computation of a step, with the all-reduce. Take it as given.
# - `policy` is `"FILE"` or `"DATA"`. `global_batch` is a multiple of `workers`.
# - `reads_ahead` is `True` if batches are read during the previous step. Predict a step in the
#   middle of an epoch. About 4 lines.
#
# <details><summary>Hint</summary>
#
# How many examples does one worker read for a step, under each policy? How many rounds of calls is
# that?
# </details>


# %%
# task: predict_step
def step_ms(read_ms, compute_ms, global_batch, workers, policy, at_once, reads_ahead):
    ### BEGIN SOLUTION
    examples = global_batch // workers if policy == "FILE" else global_batch
    input_ms = math.ceil(examples / at_once) * read_ms
    return max(input_ms, compute_ms) if reads_ahead else input_ms + compute_ms
    ### END SOLUTION


# %%
dl.check("predict_step")

# %% [markdown]
# With your function you can ask the question of this task: 10 ms to read an example, 50 ms of
# computation, a global batch of 64, 8 calls at once, batches read ahead.

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
# From two workers on: the input takes 40 ms there, less than the computation. If the computation
# takes 50 / 8 = 6.25 ms on 8 workers, both wait: `FILE` reads for 10 ms, and `DATA` still for 80.
# </details>

# %% [markdown]
# ## Task 5: your own pipeline
#
# This task has no check. Put your own training step and data in place of `own_step` and `own_data`.
# `split_step` runs the step, so it trains the model: use a copy. It looks at no more than 200
# batches of a pass, so a `cache()` of more batches never gets full: give a larger `most_steps`
# then. Print `split`, and answer: do your replicas wait for data? If they do, which stage would you
# repair first, and what do you expect of the next measurement? Write the expectation down before
# you run.

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
# - [The glossary](../docs/glossary.md) explains the terms.
