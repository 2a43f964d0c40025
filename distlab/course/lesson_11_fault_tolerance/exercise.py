# %% [markdown]
# # Exercise: a pipeline that recovers
#
# For [lesson 11](../notebooks/11_fault_tolerance.ipynb). What does it take to make a training that
# you can kill at any moment? You write its parts one by one, and if you go on to task 7, you put
# them together in a training that the check runs on two workers, kills, and compares in every bit.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `whole_state` | put every part of a training into one checkpoint | 8 | easy | core |
# | 2. `save_atomically` | save so that a kill does no harm | 12 | medium | core |
# | 3. `newest_checkpoint` | find the newest checkpoint | 5 | easy | core |
# | 4. `resume_in_a_loop` | resume in the middle of an epoch | 12 | medium | core |
# | 5. `leave_when_told` | repair a loop that is asked to stop | 8 | medium | core |
# | 6. `save_interval` | compute how often to save | 6 | medium | extra |
# | 7. `recovers` | **a pipeline that recovers**, on two workers | 35 | hard | extra |
# | report `what_comes_back` | your training, killed: a picture and its text | 10 | medium | extra |
# | your own model | kill a training of yours, and compare (no points) | 15 | open | extra |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint. (The two workers of the last check run servers, and any
# program that reaches their ports can run code here, as lesson 09 explains.)

# %%
# %load_ext distlab
import math
import os
import signal
import sys

import distlab as dl

dl.split_devices(1)

import keras
import tensorflow as tf
from IPython.display import display

from distlab.course.lesson_11_fault_tolerance.figures import draw_resumed
from distlab.course.lesson_11_fault_tolerance.runs import KILLED_IN, run_and_kill
from distlab.course.runs.outcomes import waits_for

dl.show("points of the tasks", 27)
dl.show("points of the report", 5)

# %% [markdown]
# ## Task 1: the whole state
#
# What does a resumed run need that isn't in the weights? Write `whole_state(model, optimizer,
# step)`. It returns one `tf.train.Checkpoint` that holds **every** part of the training.
#
# - `model` has one dropout layer or several, `optimizer` is a built Adam, and `step` counts steps.
# - The check restores your checkpoint in a new process, with new objects. About 3 lines.
#
# <details><summary>Hint 1</summary>
#
# Which part of the state is in a layer, and not among the model's weights?
# </details>
#
# <details><summary>Hint 2</summary>
#
# `hasattr(layer, "seed_generator")` finds the layers that draw random numbers.
# </details>


# %%
# task: whole_state
def whole_state(model, optimizer, step):
    ### BEGIN SOLUTION
    random = [layer for layer in model.layers if hasattr(layer, "seed_generator")]
    seeds = [layer.seed_generator.state for layer in random]
    return tf.train.Checkpoint(model=model, optimizer=optimizer, step=step, seeds=seeds)
    ### END SOLUTION


# %%
dl.check("whole_state")

# %% [markdown]
# **Try next:** leave one part out, and predict what the check will say.

# %% [markdown]
# ## Task 2: save, and be killed meanwhile
#
# What is in the folder if a kill comes in the middle of a save? Write `save`, so that whenever a
# kill comes, every `step-*.ckpt` is whole, and none goes before the new one is there. The next save
# removes what a kill left. The docstring says what stays, and you need about 8 lines.
#
# <details><summary>Hint 1</summary>
#
# At which moment may the file have its final name? At which moment may an older one go?
# </details>
#
# <details><summary>Hint 2</summary>
#
# `folder.glob("step-*.ckpt")` finds the checkpoints. Sort them by the number in the name, which is
# `int(path.stem.removeprefix("step-"))`.
# </details>


# %%
# task: save_atomically
def save(folder, step, data, keep):
    """Writes a checkpoint, and removes the old ones.

    Args:
        folder: The `Path` of an existing folder.
        step: The number of the step. If it's 12, the checkpoint is `folder / "step-12.ckpt"`.
        data: The bytes to write.
        keep: How many checkpoints stay. They are the newest, and no other file stays.
    """
    ### BEGIN SOLUTION
    unfinished = folder / "unfinished"
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / f"step-{step}.ckpt")
    there = folder.glob("step-*.ckpt")
    for path in sorted(there, key=lambda path: int(path.stem.removeprefix("step-")))[:-keep]:
        path.unlink()
    ### END SOLUTION


# %%
dl.check("save_atomically")

# %% [markdown]
# **Try next:** write the unfinished file to `/tmp`. If `/tmp` is on another disk, what does
# `replace` do? And why wouldn't `shutil.move` be safe, although it works there?

# %% [markdown]
# ## Task 3: the newest
#
# From which checkpoint does a run resume? Write `newest(folder)`. It returns the `Path` of the
# checkpoint with the highest step, or `None` if there is none.
#
# - The folder may hold other files, such as those that a killed save has left. About 2 lines.
#
# <details><summary>Hint</summary>
#
# `max(..., key=..., default=None)`
# </details>


# %%
# task: newest_checkpoint
def newest(folder):
    ### BEGIN SOLUTION
    there = folder.glob("step-*.ckpt")
    return max(there, key=lambda path: int(path.stem.removeprefix("step-")), default=None)
    ### END SOLUTION


# %%
dl.check("newest_checkpoint")

# %% [markdown]
# **Try next:** choose names that sort correctly as text. How does `dl.Resume` name its folders?

# %% [markdown]
# ## Task 4: resume in the middle of an epoch
#
# Which batch comes next after a restart? Write the loop `run_from_checkpoint`, whose arguments are
# in its docstring. The check kills it in the middle of a step, and calls it again with new objects.
#
# - It resumes after the step of the newest checkpoint, and ends as if it hadn't been killed.
# - It counts `step`, because `train_on` doesn't. About 8 lines.
#
# <details><summary>Hint 1</summary>
#
# `manager.restore_or_initialize()` restores the newest checkpoint, if there is one.
# </details>
#
# <details><summary>Hint 2</summary>
#
# With 10 batches in an epoch, step 37 is batch 7 of epoch 3. Only the first epoch after a restart
# begins in its middle.
# </details>


# %%
# task: resume_in_a_loop
def run_from_checkpoint(manager, step, batches_of, train_on, epochs, every_steps):
    """Trains from the newest checkpoint to the end of the last epoch.

    Args:
        manager: A `tf.train.CheckpointManager`. Its checkpoint holds every part, `step` included.
        step: A `tf.Variable` that starts at 0.
        batches_of: Returns the list of batches of an epoch, as many in each epoch.
        train_on: Takes a training step on a batch.
        epochs: The number of epochs in all.
        every_steps: After so many steps `manager.save()` is called.
    """
    ### BEGIN SOLUTION
    manager.restore_or_initialize()
    for epoch in range(epochs):
        batches = batches_of(epoch)
        done = max(0, int(step.numpy()) - epoch * len(batches))
        for batch in batches[done:]:
            train_on(batch)
            step.assign_add(1)
            if int(step.numpy()) % every_steps == 0:
                manager.save()
    ### END SOLUTION


# %%
dl.check("resume_in_a_loop")

# %% [markdown]
# **Try next:** what goes wrong if `batches_of(epoch)` returns a different order in each call?

# %% [markdown]
# ## Task 5: leave when you're asked to
#
# What did this run save, and why does no supervisor start it again? Run the check first: `[4, 3]`
# means four steps begun and three finished. Repair **two bugs** in `run_until_told`, so that on
# SIGTERM it finishes its step, even the last one, calls `save()` once, and exits with 143. About 7
# lines are enough.
#
# <details><summary>Hint</summary>
#
# What may a handler do that does no harm in the middle of a step? Where does the loop look at it?
# </details>


# %%
# task: leave_when_told
def run_until_told(steps, do_step, save):
    """Takes all steps and doesn't save, unless a SIGTERM ends it early.

    Args:
        steps: The number of steps.
        do_step: Takes the step of a number, from 0 on.
        save: Saves the training. It takes no arguments.
    """
    ### BEGIN SOLUTION
    told = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    for step in range(steps):
        do_step(step)
        if told:
            save()
            sys.exit(143)

    ### STUB
    def handler(number, frame):
        save()
        sys.exit(0)

    signal.signal(signal.SIGTERM, handler)
    for step in range(steps):
        do_step(step)
    ### END SOLUTION


# %%
dl.check("leave_when_told")

# %% [markdown]
# **Try next:** `signal.signal` returns the handler that was set before. Set it again when your
# function returns. How would you let a *second* SIGTERM end the process at once?

# %% [markdown]
# ## Task 6: how often to save
#
# After how many steps should you save, to lose the least time? Write `save_every_steps`, whose
# arguments are in its docstring.
#
# - If one of your `workers` fails, all of them stop.
# - Use the mean of the measured save times.
# - It returns an `int` of at least 1. Round as you like. About 5 lines.
#
# <details><summary>Hint</summary>
#
# How many seconds pass between two failures on the workers that were watched? And on yours?
# </details>


# %%
# task: save_interval
def save_every_steps(save_secs, step_secs, failures, watched_hours, watched_workers, workers):
    """The best number of steps from one checkpoint to the next.

    Args:
        save_secs: A list of measured times, one for each save.
        step_secs: The time of one step.
        failures: How many failures all watched workers had together.
        watched_hours: How long they were watched.
        watched_workers: How many workers were watched.
        workers: How many workers will train.
    """
    ### BEGIN SOLUTION
    cost = sum(save_secs) / len(save_secs)
    between_failures = watched_hours * 3600 / failures * watched_workers / workers
    return max(1, round(math.sqrt(2 * cost * between_failures) / step_secs))
    ### END SOLUTION


# %%
dl.check("save_interval")

# %% [markdown]
# **Try next:** measure it for your own model. Time `manager.save()` ten times, and count the
# failures of the last month in the log of your cluster.

# %% [markdown]
# ## Task 7: a pipeline that recovers
#
# Can you kill a worker, and still get the same bits? Put the parts together in `train`, which runs
# on two workers. The check runs it undisturbed, then kills a worker in the middle of a step and
# starts both again.
#
# - Save every `every_steps` steps with a `tf.train.CheckpointManager`, on one worker only.
# - It returns the model. About 30 lines.
#
# <details><summary>The arguments of <code>train</code></summary>
#
# - `strategy` is this worker's `MultiWorkerMirroredStrategy`.
# - `build()` returns a Keras model with a dropout layer, compiled with an Adam and without a loss.
#   Use the sparse categorical cross-entropy; the model's outputs are logits.
# - `batches_of(epoch)` returns a `tf.data.Dataset` of full global batches, the same on both workers
#   and in each call.
# - `folder` is the same for both workers, and empty at first. At the end it holds the `keep` newest
#   checkpoints and the manager's small file `checkpoint`, and nothing else.
#
# You may call `whole_state` of task 1. You need no `dl.Resume`, and no handler for SIGTERM.
# </details>
#
# <details><summary>Hint 1: in which order</summary>
#
# What must exist before a checkpoint can be restored into it? (An optimizer has no variables until
# `model.optimizer.build(model.trainable_variables)`.) Which workers must restore?
# </details>
#
# <details><summary>Hint 2: which worker writes</summary>
#
# `strategy.cluster_resolver.task_id` is 0 on the chief. This checkpoint holds no metric, so the
# chief can save it without the other worker.
# </details>
#
# <details><summary>Hint 3: the step</summary>
#
# Use the step of lesson 09. Batches are full and of even size, so each worker has the same number
# of examples, and the optimizer sums the gradients.
# </details>
#
# <details><summary>Hint 4: the place in the data</summary>
#
# `batches_of(epoch).cardinality()` is the number of batches, and `.skip(done)` leaves some out.
# Skip before you distribute. `step.numpy()` reads a counter wherever you made it, while
# `int(step)` doesn't work if you made it in the scope.
# </details>


# %%
# task: recovers
def train(strategy, build, batches_of, epochs, folder, every_steps, keep):
    ### BEGIN SOLUTION
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    with strategy.scope():
        model = build()
        model.optimizer.build(model.trainable_variables)
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = whole_state(model, model.optimizer, step)
    if newest := tf.train.latest_checkpoint(folder):
        checkpoint.restore(newest)
    is_chief = strategy.cluster_resolver.task_id == 0
    manager = tf.train.CheckpointManager(checkpoint, folder, keep) if is_chief else None

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            losses = loss_of(y, model(x, training=True))
            loss = tf.reduce_mean(losses) / strategy.num_replicas_in_sync
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    train_on = tf.function(lambda batch: strategy.run(replica_step, args=batch))
    for epoch in range(epochs):
        batches = batches_of(epoch)
        done = max(0, int(step.numpy()) - epoch * int(batches.cardinality()))
        for batch in strategy.experimental_distribute_dataset(batches.skip(done)):
            train_on(batch)
            step.assign_add(1)
            if int(step.numpy()) % every_steps == 0 and is_chief:
                manager.save()
    return model
    ### END SOLUTION


# %%
dl.check("recovers")

# %% [markdown]
# **Try next:** write the same with `dl.distribute` and `dl.Resume`, in five lines.

# %% [markdown]
# ## Your report: what comes back
#
# What does a restart lose if only the weights come back? Your `train` of task 7 trains on the
# digits, with 10 steps in an epoch and a checkpoint every 5 steps. In about ten seconds it runs
#
# 1. undisturbed,
# 2. killed in step 48, and started again,
# 3. resumed with the weights of the last checkpoint and **nothing else**.

# %% tags=["predict"]
resumed_guess = dl.predict("How many steps are done when the killed run resumes?", unit="steps")

# %%
# report: what_comes_back
with waits_for("recovers"):
    runs = run_and_kill(train)
    dl.show("steps done when it resumed", runs.went_on_from)
    dl.show("it ends equal, bit for bit", runs.equal_to_the_bit)
    where = {"stopped_at": runs.went_on_from, "killed_in": KILLED_IN}
    display(draw_resumed(runs.undisturbed, runs.resumed, **where))

# %% tags=["reveal"]
if "runs" in globals():
    resumed_guess.reveal(
        runs.went_on_from,
        {
            48: "Step 48 was never finished, and its weights were only in memory.",
            47: "47 steps were finished, but the last checkpoint is older.",
            40: "40 is the beginning of the epoch. The place inside the epoch was saved, too.",
        },
    )

# %% [markdown]
# <!-- report: what_comes_back -->
# A person reads this, with the picture that the cell above draws. Answer below each question in two
# to four sentences, and name numbers that you see.
#
# **1. Which steps were trained twice, and why doesn't the result show it?**
#
# <!-- BEGIN SOLUTION -->
# The kill came in step 48, and the last checkpoint has 45 steps, so steps 46, 47 and a part of 48
# were trained a second time. The first time they changed weights in a process that is gone, so each
# step counts once in the end. The seeds and the place in the data were restored as well, which is
# why the second time gave the same numbers.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **2. One curve jumps. Which one, by how much, and what was lost? Would you see it with SGD?**
#
# <!-- BEGIN SOLUTION -->
# "Weights only" jumps: its first loss is about 0.36, where the undisturbed one has 0.14. It has the
# right weights, but a fresh Adam has no averages, so it takes a step of the full rate for every
# weight, however small the gradient is. Plain SGD remembers nothing, so no curve would jump,
# although the place in the data and the seeds would be lost all the same.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **3. A colleague shows you a curve that continues smoothly. What do you ask for, before you
# believe that nothing was lost?**
#
# <!-- BEGIN SOLUTION -->
# The weights at the end, compared bit for bit with those of an undisturbed run. Some batches that
# were read twice, or other dropout masks, move a curve less than its own noise. Here the third run
# ends at 0.11 and the undisturbed one at 0.09, which looks harmless.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->

# %% [markdown]
# ## Your own model
#
# Would a training of yours survive? Nothing here is checked. Take a script that trains for at least
# a minute.
#
# 1. Train it on two workers (`distlab launch --workers 2 train.py`), with `dl.set_seed(1,
#    deterministic=True)` first, and save the weights at the end.
# 2. Add `dl.Resume("checkpoints", every_secs=10)` and start it by `distlab launch --workers 2
#    --max-restarts 3 train.py`. Find a worker's process ID with `ps`, and end it with `kill -9`.
# 3. Compare the weights, bit for bit. If they differ, which part was lost: is the data shuffled
#    with a seed, and does every layer draw from one?
# 4. Remove the checkpoints, start it again, and end the process of `distlab launch` with `kill
#    -TERM`. What is its exit code, and from which step does the next start resume?

# %% [markdown]
# ## Next steps
#
# - [Lesson 11](../notebooks/11_fault_tolerance.ipynb), to read a section again.
# - [Lesson 12](../notebooks/12_ring_all_reduce.ipynb): how an all-reduce travels, and how many
#   bytes it sends.
# - [Glossary](../docs/glossary.md): every term of the course on one page.
