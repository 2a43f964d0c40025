# %% [markdown]
# # Exercise: parameter servers
#
# For [lesson 10](../notebooks/10_parameter_server.ipynb). Two of your functions run on a real
# coordinator with two real workers, and in one of them a worker is killed. If something hangs, the
# check stops it after some seconds and says in which line.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `coordinate` | **a coordinator's loop** | 12 | medium |
# | 2. `staleness` | the staleness of every step, from a log | 8 | medium |
# | 3. `shard_rows` | share out a table over servers | 6 | easy |
# | 4. `survive_kill` | find the bug that only a killed worker shows | 10 | medium |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below. If
# you get stuck, open the hint.
#
# (The first check starts the processes; they end with this notebook. While they run, whoever
# reaches their ports can run code here: lesson 09, "Who else may listen".)

# %%
# %load_ext distlab
import distlab as dl

dl.split_devices(1)
dl.show("data set", "made by the checks: nothing is downloaded")

# %%
import tensorflow as tf

# %% [markdown]
# ## Task 1: a coordinator's loop
#
# Write `train(coordinator, step, make_data, steps)`. It runs on the coordinator.
#
# - `step` is a `tf.function`. It takes an iterator, works for a while, and returns a loss.
# - `make_data()` returns a data set. It is to be called **on each worker**; each goes through its
#   own.
# - `steps` is how many steps there are in all, whoever takes them. No epochs, no end of the data.
# - Both workers are to work at once.
# - It returns a list of all losses, as numbers, when all steps are done. About 4 lines.
#
# <details><summary>Hint</summary>
#
# Four calls of the coordinator: one that makes a data set on each worker, one that sends a step,
# one that waits for all, one that makes numbers of promises. Which of them stand in the loop?
# </details>


# %%
# task: coordinate
def train(coordinator, step, make_data, steps):
    ### BEGIN SOLUTION
    data = iter(coordinator.create_per_worker_dataset(make_data))
    losses = [coordinator.schedule(step, args=(data,)) for _ in range(steps)]
    coordinator.join()
    return coordinator.fetch(losses)
    ### END SOLUTION


# %%
dl.check("coordinate")

# %% [markdown]
# **Try next:** you want to see a loss every hundred steps, and no worker may wait for it. When do
# you fetch?

# %% [markdown]
# ## Task 2: staleness from a log
#
# A parameter server has written down what happened, one thing after the other. Write
# `staleness(log)`.
#
# - `log` is a list of pairs such as `("read", 4)`: what happened, and the number of the step.
# - `"sent"`: the coordinator put the step into its queue. `"read"`: a worker took it, and read the
#   weights. `"written"`: its update was applied.
# - A worker has died meanwhile. Its step was done again, by another one: that step reads **twice**,
#   and is written once.
# - It returns a list: the staleness of step 0, of step 1, and so on. About 8 lines.
#
# <details><summary>Hint</summary>
#
# Keep a counter of updates while you go through the log. What must be noted for each step, and
# when?
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
# **Try next:** which is larger, the mean staleness or the number of workers less one? Why can it
# not be much larger?

# %% [markdown]
# ## Task 3: rows in shards
#
# Write `shard_rows(rows, row_bytes, least_bytes, servers)`, the heart of a partitioner.
#
# - A table has `rows` rows of `row_bytes` bytes each.
# - Make as many shards as possible, but no more than `servers`, and so that `rows * row_bytes`
#   has room for that many of `least_bytes`. At least one.
# - The shards are as equal as can be. If it does not come out even, the first ones have one row
#   more.
# - It returns a list: how many rows each shard has. About 4 lines.
#
# <details><summary>Hint</summary>
#
# First how many shards: three numbers, of which you need the least or the largest. Then `divmod`.
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
# **Try next:** a row is asked for by its number. Which shard has it, and where in it?

# %% [markdown]
# ## Task 4: a sum that survives a kill
#
# `add_up(coordinator, work, numbers)` has been right a thousand times. It runs on the coordinator,
# and while its steps are under way **a worker is killed**, at the worst time: when it has done all
# that the step says, and has not yet told the coordinator. Run the check before you change
# anything, look at the difference, and repair it.
#
# - `numbers` is a list of floats.
# - `work(number)` returns a number. It is dear: call it inside a step, on a worker, once for each
#   of the numbers.
# - It returns the sum of all results, each of them **once**, as a float.
# - Pass a number to a step as `tf.constant(number)`. About 4 lines, when it is right.
#
# <details><summary>Hint</summary>
#
# If the step adds its result to a variable, what happens to a step that is done twice? There are
# two ways out: the lesson names both.
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
# **Try next:** solve it in the other way: with a variable on the server, in which each step sets a
# place of its own.

# %% [markdown]
# ## Next steps
#
# - Your own model: put `dl.distribute(build, dl.make_strategy("parameter_server"))` into a script,
#   and start it by `distlab launch --workers 2 --ps 1`. Try an optimizer with and without momentum.
# - [Lesson 10](../notebooks/10_parameter_server.ipynb), if a check sent you back to it.
