# %% [markdown]
# # Exercise: parameter servers
#
# For [lesson 10](../notebooks/10_parameter_server.ipynb). Two of your functions run on a real
# coordinator with two real workers, and during one of them a worker is killed. If something hangs,
# the check stops it after some seconds and names the line.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `coordinate` | **a coordinator's loop with few steps in flight** | 14 | medium | core |
# | 2. `staleness` | the staleness of every step, from a log | 8 | medium | core |
# | 3. `shard_rows` | cut a table for several servers | 5 | easy | extra |
# | 4. `survive_kill` | find the bug that only a killed worker shows | 9 | medium | core |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below. If
# you get stuck, open the hint.
#
# The first check starts the processes, and they end with this notebook. While they run, any program
# that reaches their ports can run code here, as lesson 09 explains.

# %%
# %load_ext distlab
import distlab as dl

dl.split_devices(1)
dl.show("data set", "made by the checks: nothing is downloaded")

# %%
import tensorflow as tf

# %% [markdown]
# ## Task 1: a loop that does not run too far ahead
#
# The lesson's loop sends all steps, joins once, and fetches afterwards. In a training of a million
# steps that has two faults: you see the first loss only after the last step, and you cannot stop
# early. Fetching each loss before you send the next step is no way out, because then only one
# worker ever has something to do. Write a loop between the two:
# `train(coordinator, step, make_data, steps, ahead)`.
#
# - It runs on the coordinator. `step` is a `tf.function` that takes an iterator and returns a loss.
# - `make_data()` returns a data set. Let **each worker** make its own, and go through it.
#   The data set does not repeat, but it has enough examples for all steps.
# - `steps` is the number of steps in all, whichever worker takes them.
# - At most `ahead` steps are sent and not yet done at any time. `ahead` is at least 2,
#   and both workers should work at the same time.
# - It returns a list of all losses, as numbers in any order, when all steps are done. About 6
#   lines.
#
# <details><summary>Hint</summary>
#
# If at most 3 steps may be under way, which step do you wait for before you send step number 3 (the
# first is 0)? What waits for one particular step?
# </details>


# %%
# task: coordinate
def train(coordinator, step, make_data, steps, ahead):
    ### BEGIN SOLUTION
    data = iter(coordinator.create_per_worker_dataset(make_data))
    promises, losses = [], []
    for number in range(steps):
        if number >= ahead:
            losses.append(promises[number - ahead].fetch())
        promises.append(coordinator.schedule(step, args=(data,)))
    return losses + coordinator.fetch(promises[len(losses) :])
    ### END SOLUTION


# %%
dl.check("coordinate")

# %% [markdown]
# **Try next:** stop as soon as a loss is below a target. How many steps do you take too many?

# %% [markdown]
# ## Task 2: staleness from a log
#
# A training has logged each event, in order. Write `staleness(log)`.
#
# - `log` is a list of pairs such as `("read", 4)`: an event, and the number of its step.
# - `"sent"`: the coordinator put the step into its queue. `"read"`: a worker took it and read the
#   weights. `"written"`: its update was applied.
# - One worker died. A different worker did its step again: that step has **two** `"read"` events
#   and one `"written"`. Only the reading of the worker that wrote counts.
# - It returns a list: the staleness of step 0, of step 1, and so on. About 8 lines.
#
# <details><summary>Hint</summary>
#
# You go through the log once. Which number do you need at the moment when a step writes, and when
# could you have noted it?
# </details>


# %%
# task: staleness
def staleness(log):
    ### BEGIN SOLUTION
    updates, seen, found = 0, {}, {}
    for event, step in log:
        if event == "read":
            seen[step] = updates
        elif event == "written":
            found[step] = updates - seen[step]
            updates += 1
    return [found[step] for step in sorted(found)]
    ### END SOLUTION


# %%
dl.check("staleness")

# %% [markdown]
# **Try next:** compute the mean staleness of a log, and compare it with the number of workers less
# one. Then write a log in which a single step is more stale than that.

# %% [markdown]
# ## Task 3: rows in shards
#
# Write `shard_rows(rows, row_bytes, least_bytes, servers)`, the core of a partitioner.
#
# - A table has `rows` rows of `row_bytes` bytes each.
# - Make as many shards as you can, but at most one for each server.
# - `least_bytes` is a multiple of `row_bytes`, and no shard may have fewer bytes. A table
#   smaller than that is one shard.
# - The shards are as equal as possible. If the rows do not divide evenly, the first shards have one
#   row more.
# - It returns a list: the number of rows of each shard. About 4 lines.
#
# TensorFlow's `MinSizePartitioner` has a similar rule, with one difference: it rounds the number of
# shards **up**. For 10 rows of 16 bytes, 64 bytes at least and 4 servers, it makes 3 shards, and
# two of them have only 48 bytes. Your function returns `[5, 5]`.
#
# <details><summary>Hint</summary>
#
# How many shards of `least_bytes` bytes fit into the table? Which number may that not exceed, and
# what is the fewest shards that a table can have?
# </details>


# %%
# task: shard_rows
def shard_rows(rows, row_bytes, least_bytes, servers):
    ### BEGIN SOLUTION
    shards = max(1, min(servers, rows * row_bytes // least_bytes))
    each, more = divmod(rows, shards)
    return [each + 1] * more + [each] * (shards - more)
    ### END SOLUTION


# %%
dl.check("shard_rows")

# %% [markdown]
# **Try next:** a step asks for a row by its number. Which shard has the row, and at which place?

# %% [markdown]
# ## Task 4: a sum that survives a kill
#
# `add_up(coordinator, work, numbers)` has been right a thousand times. It runs on the coordinator.
# While its steps are under way, **a worker is killed** at the worst time: it has done all that the
# step says, and has not yet reported it. Run the check before you change anything. It prints
# one result of `work` for each number (some are equal) and by how much your sum is off. Is this
# difference one of the results? Then repair the function.
#
# - `numbers` is a list of floats.
# - `work(number)` returns a number. It is expensive: call it inside a step, on a worker, and send
#   one step for each number.
# - It returns the sum of all results, each of them **once**, as a float.
# - Pass a number to a step as `tf.constant(number)`. About 4 lines, if you repair it well.
#
# <details><summary>Hint</summary>
#
# A step may be done twice, and then it adds to the variable twice. How many results does the step's
# promise have? Where could you add up these results?
# </details>


# %%
# task: survive_kill
def add_up(coordinator, work, numbers):
    ### BEGIN SOLUTION
    step = tf.function(work)
    results = [coordinator.schedule(step, args=(tf.constant(number),)) for number in numbers]
    coordinator.join()
    return float(sum(coordinator.fetch(results)))
    ### STUB
    with coordinator.strategy.scope():
        total = tf.Variable(0.0)

    @tf.function
    def step(number):
        total.assign_add(work(number))

    for number in numbers:
        coordinator.schedule(step, args=(tf.constant(number),))
    coordinator.join()
    return float(total)
    ### END SOLUTION


# %%
dl.check("survive_kill")

# %% [markdown]
# **Try next:** repair it differently: with a variable on the server, in which each step sets its
# own place.

# %% [markdown]
# ## Next steps
#
# - Your own model: put `dl.distribute(build, dl.make_strategy("parameter_server"))` into a script,
#   and start it with `distlab launch --workers 2 --ps 1 train.py`. Compare an optimizer with
#   momentum to one without: which one tolerates staleness better?
# - [Lesson 10](../notebooks/10_parameter_server.ipynb), if a check sent you back to it.
# - [Lesson 11](../notebooks/11_fault_tolerance.ipynb): checkpoints, and runs that resume.
