# %% [markdown]
# # Exercise: many workers
#
# For [lesson 09](../notebooks/09_multi_worker.ipynb). Your functions run on two real workers, and
# if one of them hangs, the check stops it after some seconds and says which worker waits in which
# line.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `tf_configs` | write the TF_CONFIG of every worker | 5 | easy | core |
# | 2. `train_on_two_workers` | **a loop on two workers, as on one device** | 18 | medium | core |
# | 3. `diagnose` | four programs: which worker waits, and why? | 11 | medium | core |
# | 4. `end_of_epoch` | repair a hang that depends on the data | 6 | medium | core |
# | 5. `save_from_many` | write one checkpoint from all workers | 6 | medium | extra |
# | report `who_read_what` | compare your loop with one device, in writing | 15 | medium | extra |
# | your own model | start a script of yours on two workers (no points) | 20 | open | extra |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below. If
# you get stuck, open the hint.

# %%
# %load_ext distlab
import json
import tempfile
import time
from pathlib import Path

import distlab as dl

dl.split_devices(1)
cluster = dl.LocalCluster(workers=2)
dl.show("tasks", list(cluster.tasks))

# %%
import keras
import numpy as np
import tensorflow as tf
from IPython.display import display

from distlab.course.figures.workers import draw_losses, draw_readers
from distlab.course.lesson_09_multi_worker.runs import begin_again, run_and_note
from distlab.course.runs.outcomes import waits_for

# %% [markdown]
# ## Task 1: who is who
#
# What must each worker know before it can find the others? Write `tf_configs(addresses)`.
#
# - `addresses` is a list of strings such as `"10.0.0.7:2222"`, one for each worker.
# - It returns a list of strings in the same order: the TF_CONFIG of each worker. About 5 lines.
#
# <details><summary>Hint</summary>
#
# What is the same in all of them, and what differs? Build a dictionary for each worker, and let
# `json.dumps` write it.
# </details>


# %%
# task: tf_configs
def tf_configs(addresses):
    ### BEGIN SOLUTION
    texts = []
    for index in range(len(addresses)):
        task = {"type": "worker", "index": index}
        texts.append(json.dumps({"cluster": {"worker": addresses}, "task": task}))
    return texts
    ### END SOLUTION


# %%
dl.check("tf_configs")

# %% [markdown]
# **Try next:** call `tf_configs(["localhost:2222", "localhost:2223"])`. In a terminal, set the
# first string as TF_CONFIG and start a script that calls `dl.make_strategy("multi_worker",
# timeout_secs=5)`. Which worker does its error name?

# %% [markdown]
# ## Task 2: a loop on two workers
#
# Can two workers train like one device, and log its loss? Write `train(strategy, build, x, y,
# per_worker_batch, epochs)`, which returns the model and, for each epoch, the mean loss of **all**
# examples. Each loss is taken before its step's update. Don't shuffle. You need about 25 lines.
#
# <details><summary>The arguments of <code>train</code></summary>
#
# - `strategy` is this worker's `MultiWorkerMirroredStrategy`.
# - `build()` returns a compiled model with logits and the sparse categorical cross-entropy.
# - `x` holds the examples, and `y` their labels.
# - Each worker takes `per_worker_batch` examples a step, for so many `epochs`.
# </details>
#
# <details><summary>Hint 1: the data</summary>
#
# Which batch size do you distribute, if each of `strategy.num_replicas_in_sync` replicas takes
# `per_worker_batch` examples?
# </details>
#
# <details><summary>Hint 2: the step</summary>
#
# In the last batch, the workers have different numbers of examples. By which number must every
# example's loss be divided? Only an `all_reduce` in the replica context knows it.
# </details>
#
# <details><summary>Hint 3: the log</summary>
#
# Each worker sees only its own losses. Which two sums over all workers give the mean of every
# example's loss? Which Keras metric keeps both sums, and in which scope must you make it?
# </details>


# %%
# task: train_on_two_workers
def train(strategy, build, x, y, per_worker_batch, epochs):
    ### BEGIN SOLUTION
    global_batch = per_worker_batch * strategy.num_replicas_in_sync
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(global_batch)
    distributed = strategy.experimental_distribute_dataset(data)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    with strategy.scope():
        model = build()
        mean_loss = keras.metrics.Mean()

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            losses = loss_of(y, model(x, training=True))
            mine = tf.cast(tf.size(losses), tf.float32)
            count = tf.distribute.get_replica_context().all_reduce("SUM", mine)
            loss = tf.reduce_sum(losses) / count
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        mean_loss.update_state(losses)

    step = tf.function(lambda batch: strategy.run(replica_step, args=batch))
    log = []
    for _ in range(epochs):
        mean_loss.reset_state()
        for batch in distributed:
            step(batch)
        log.append(float(mean_loss.result()))
    return model, log
    ### END SOLUTION


# %%
dl.check("train_on_two_workers")

# %% [markdown]
# **Try next:** run your function on the workers of a `dl.LocalCluster(workers=3)`, with
# `cluster.run`. What must change?

# %% [markdown]
# ## Task 3: four programs
#
# Each of these programs runs on both workers, and none of them is right. Which worker waits, and
# for what, if any does?

# %%
until_the_end = tempfile.TemporaryDirectory()  # removed with the kernel
file = Path(until_the_end.name) / "ready"


def case_a(strategy, me):  # the end of an epoch: the chief reports the mean loss
    with strategy.scope():
        mean_loss = keras.metrics.Mean()
    strategy.run(mean_loss.update_state, args=(1.0 + me,))
    return float(mean_loss.result()) if me == 0 else None


def case_b(strategy, me):  # seven batches: each worker takes every other one
    total = 0.0
    for batch in range(1 - me, 7, 2):
        total += float(strategy.reduce("SUM", float(batch), axis=None))
    return total


def case_c(strategy, me):  # the chief announces that all workers are there
    if me == 1:
        while not file.exists():
            time.sleep(0.05)
    workers = strategy.reduce("SUM", 1.0, axis=None)
    if me == 0:
        file.touch()
    return float(workers)


# %%
def case_d(strategy, me):  # two sums, the largest first
    mine = {"losses": 2.0, "examples": 3.0} if me == 0 else {"losses": 10.0, "examples": 4.0}
    largest_first = sorted(mine, key=mine.get, reverse=True)
    return {name: float(strategy.reduce("SUM", mine[name], axis=None)) for name in largest_first}


# %% [markdown]
# `watch(case_a)` runs a program with a limit of three seconds, while what these programs do takes
# milliseconds.


# %%
def on_worker(case):
    from __main__ import strategy  # the worker's own, made by begin_again

    return case(strategy, strategy.cluster_resolver.task_id)


def watch(case):
    begin_again(cluster)
    try:
        results = cluster.run(on_worker, case, timeout_secs=3)
        for task, result in zip(cluster.tasks, results, strict=True):
            print(task, "has finished with", result)
    except TimeoutError as late:
        for wait in cluster.waits(late):
            print(wait)


# %% [markdown]
# Write down your answers first. Then remove the `#` in the next cell, and watch the four programs
# one after the other.

# %%
# watch(case_a)

# %% [markdown]
# What did you find? `diagnose(case)` takes `"A"`, `"B"`, `"C"` or `"D"` and returns two strings,
# each worth half a point: the worker that waits without end, which is `"worker:0"`, `"worker:1"`,
# `"both"` or `"nobody"`, and the cause. About 7 lines.
#
# | cause | meaning |
# |---|---|
# | `"collective_in_chief_only"` | the chief alone calls a collective |
# | `"unequal_steps"` | one worker goes through its loop more often |
# | `"wait_for_each_other"` | each needs something from the other before it can continue |
# | `"met_another_collective"` | the workers reach their collectives in different orders |
# | `"slow_network"` | the other worker's part has not arrived yet |
# | `"out_of_memory"` | a worker had no room for the result |
#
# <details><summary>Hint 1</summary>
#
# Which lines are collectives? The table at the end of the lesson has some without a `reduce`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# For each worker write down its collectives in order. The first of worker 0 meets the first of
# worker 1, and so on.
# </details>


# %%
# task: diagnose
def diagnose(case):
    ### BEGIN SOLUTION
    found = {
        "A": ("worker:0", "collective_in_chief_only"),
        "B": ("worker:1", "unequal_steps"),
        "C": ("both", "wait_for_each_other"),
        "D": ("nobody", "met_another_collective"),
    }
    return found[case]
    ### END SOLUTION


# %%
dl.check("diagnose")

# %% [markdown]
# **Try next:** move one line of case C so that it ends, and change one line of case D so that it's
# right. Before you run the old case C again, delete its file with `file.unlink()`.

# %% [markdown]
# ## Task 4: repair
#
# Why does `end_of_epoch(strategy, loss, log)`, which both workers call after each epoch, hang in
# some runs only?
#
# It should append the mean of **both** losses if that's lower than all of `log`, so that both lists
# hold the same numbers. Run the check before you change anything. Change about 3 lines.
#
# <details><summary>Hint 1</summary>
#
# When do the two workers make different decisions?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Which number is the same on both workers, so that both can decide by it?
# </details>


# %%
# task: end_of_epoch
def end_of_epoch(strategy, loss, log):
    """Appends the mean of both workers' losses to `log`, if it's the lowest so far.

    Args:
        strategy: This worker's `MultiWorkerMirroredStrategy`.
        loss: The worker's own loss, a tensor.
        log: The worker's own list. Both lists should hold the same numbers.
    """
    ### BEGIN SOLUTION
    mean = float(strategy.reduce("MEAN", loss, axis=None))
    if not log or mean < log[-1]:
        log.append(mean)
    ### STUB
    if not log or loss < log[-1]:
        mean = strategy.reduce("MEAN", loss, axis=None)
        log.append(float(mean))
    ### END SOLUTION


# %%
dl.check("end_of_epoch")

# %% [markdown]
# **Try next:** early stopping decides by a loss, too. What must be true of that loss when several
# workers train?

# %% [markdown]
# ## Task 5: save from many
#
# How do two workers write one checkpoint? Write `save(strategy, checkpoint, path)`, which both
# workers call.
#
# - `checkpoint` holds a counter that each worker counts for itself. `checkpoint.write(path)` writes
#   it.
# - Afterwards the checkpoint of the chief, worker 0, is at `path`, and no file of the other worker
#   is left. About 6 lines.
#
# <details><summary>Hint 1</summary>
#
# What happens on worker 0 when it reads the counter, if worker 1 does not write?
# </details>
#
# <details><summary>Hint 2</summary>
#
# `tempfile.TemporaryDirectory()` is a folder that is removed at the end of its `with` block.
# </details>


# %%
# task: save_from_many
def save(strategy, checkpoint, path):
    ### BEGIN SOLUTION
    if strategy.cluster_resolver.task_id == 0:
        checkpoint.write(path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.write(str(Path(folder, "unused")))
    ### END SOLUTION


# %%
dl.check("save_from_many")

# %% [markdown]
# **Try next:** on several machines, `path` may be on a disk that only the chief can see. Does your
# function still work there?

# %%
cluster.close()

# %% [markdown]
# ## Your report: who read what
#
# Your loop of task 2 now trains on 43 digits for five epochs, with 4 digits on each worker in a
# full step, and Keras's `fit` does the same on one device.

# %%
tf.config.experimental.enable_tensor_float_32_execution(False)  # a GPU as exact as CPUs
(digits,) = dl.load_dataset("digits", splits=["train[:43]"], batch_size=43)
x, y = next(digits.as_numpy_iterator())


def build():
    scores = keras.layers.Dense(10, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), scores])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3), loss)
    return model


alone = build()
losses_alone = alone.fit(x, y, batch_size=8, epochs=5, shuffle=False, verbose=0).history["loss"]
dl.show("weights of the model", alone.count_params())

# %% tags=["predict"]
last_guess = dl.predict("How many digits does worker:1 read in the last step of an epoch?")

# %%
# report: who_read_what
with waits_for("train_on_two_workers"):
    run = run_and_note(train, build, x, y, per_worker_batch=4, epochs=5)
    pairs = zip(run.weights, alone.get_weights(), strict=True)
    apart = max(np.abs(one - other).max() for one, other in pairs)
    dl.show("weights equal to one device's, up to 1e-5", bool(apart < 1e-5))
    dl.show("weights of the two workers equal, up to 1e-6", bool(run.apart < 1e-6))
    display(draw_losses(losses_alone, run.losses))
    display(draw_readers(x, {"your loop, first epoch": run.first_epoch}))

# %% tags=["reveal"]
if "run" in globals():
    last_guess.reveal(
        len(run.first_epoch[1][-1]),
        {
            1: "43 digits in batches of 8 leave 3 for the last step, and worker 0 gets 2 of them.",
            0: "It would if the last batch had a single digit. It has 3, and worker 0 gets only 2.",
            2: "That's what worker 0 gets, because it takes the larger part of an odd number.",
            3: "It would if the last batch weren't shared, but worker 0 takes 2 of its 3 digits.",
            4: "That's a full step. 43 digits in batches of 8 leave only 3 for the last one.",
        },
    )

# %% [markdown]
# <!-- report: who_read_what -->
# A person reads this, with the two pictures above. Answer below each question in two to four
# sentences, and name numbers that you see.
#
# **1. Each worker read only half of the digits. Why do both log the loss of one device? What would
# the first picture look like if each worker logged the loss of its own digits?**
#
# <!-- BEGIN SOLUTION -->
# Both log the mean over all 43 digits, because sums and counts are summed over the workers before
# they're divided. The gradients are summed, too, so after each step both workers have the weights
# of one device, and the losses of later epochs agree as well. If each worker logged the loss of its
# own digits alone, that would be a mean over about 22 of them, so you'd see two curves, one above
# the grey line and one below it.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **2. Look at the last global batch. Suppose each worker took the mean loss of its own digits, and
# the two means were averaged. What weight would a digit on worker 0 have, and one on worker 1?**
#
# <!-- BEGIN SOLUTION -->
# It has 3 digits, two on worker 0 and one on worker 1, and on one device each of them counts 1/3.
# In a mean of means, the single digit of worker 1 would count 1/2, and the two of worker 0 only 1/4
# each. With 41 digits, worker 1 would have none, and the mean of no digits is NaN.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **3. How many bytes of gradients does a worker contribute in one step, and how many in an epoch?
# What changes if a batch has twice as many digits?**
#
# <!-- BEGIN SOLUTION -->
# The model has 650 weights, and each gradient takes 4 bytes, so that's 2,600 bytes in a step, and
# 15,600 bytes in an epoch of 6 steps. With twice as many digits a step costs the same, because a
# gradient is as large as the model, whatever the batch is. An epoch of 3 steps would send half as
# much.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->

# %% [markdown]
# ## Your own model
#
# This task has no points and no check. Take a model of yours, with your own data or a part of it.
#
# 1. Set a seed in `build`, and train for one epoch on one device, with SGD and without a shuffle.
#    Save the weights.
# 2. Write a script that does the same with `dl.distribute(build, dl.make_strategy("multi_worker"))`
#    and the same global batch.
# 3. Start it with `distlab launch --workers 2 train.py`, and compare the weights with the saved
#    ones. They should agree up to about 1e-6.
# 4. Find every line that only one worker should run, such as writing and printing, and every
#    collective. Is one of them under an `if`?
# 5. Add a shuffle without a seed, and read the error.

# %% [markdown]
# ## Next steps
#
# - [Lesson 09](../notebooks/09_multi_worker.ipynb), to read a section again.
# - [Lesson 10](../notebooks/10_parameter_server.ipynb): workers that don't wait for each other.
# - [Glossary](../docs/glossary.md): every term of the course on one page.
