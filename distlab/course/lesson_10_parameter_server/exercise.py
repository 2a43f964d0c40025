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
# How do you keep all workers busy, and still learn each loss soon? The lesson's loop shows no loss
# before its last step, so you can't stop early. If you fetch each loss before you send the next
# step, only one worker ever has something to do. Write `train`, a loop between the two. Six lines
# are enough.
#
# <details><summary>Hint</summary>
#
# If at most 3 steps may be under way, which step do you wait for before you send step number 3 (the
# first is 0)? What waits for one particular step?
# </details>


# %%
# task: coordinate
def train(coordinator, step, make_data, steps, ahead):
    """Trains with at most `ahead` steps in flight. Runs on the coordinator.

    Args:
        coordinator: A `ClusterCoordinator` with two workers, which should work at the same time.
        step: A `tf.function` that takes an iterator and returns a loss.
        make_data: Returns a data set, which **each worker** makes for itself and goes through. It
            doesn't repeat, but it has enough examples for all steps.
        steps: The number of steps in all, whichever worker takes them.
        ahead: At any time, at most so many steps are sent and not yet done. At least 2.

    Returns:
        A list of all losses, as numbers in any order, when all steps are done.
    """
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
# How stale was the gradient of each step? Write `staleness`, which reads it from the log of a
# training. One worker died, and a different worker did its step again, so that step has **two**
# `"read"` events and one `"written"`. Only the reading of the worker that wrote counts. About eight
# lines are enough.
#
# <details><summary>Hint</summary>
#
# You go through the log once. Which number do you need at the moment when a step writes, and when
# could you have noted it?
# </details>


# %%
# task: staleness
def staleness(log):
    """The staleness of each step of a training.

    Args:
        log: All events in order, as pairs such as `("read", 4)`: an event, and its step's number.
            `"sent"`: the coordinator put the step into its queue. `"read"`: a worker took it and
            read the weights. `"written"`: its update was applied.

    Returns:
        A list: the staleness of step 0, of step 1, and so on.
    """
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
# Into how many shards can you cut a table if none may be too small? Write `shard_rows`, the core of
# a partitioner. TensorFlow's `MinSizePartitioner` has a similar rule, but rounds the number of
# shards **up**: it would cut the docstring's example into three, two of them with only 48 bytes.
# Four lines are enough.
#
# <details><summary>Hint</summary>
#
# How many shards of `least_bytes` bytes fit into the table? Which number may that not exceed, and
# what is the fewest shards that a table can have?
# </details>


# %%
# task: shard_rows
def shard_rows(rows, row_bytes, least_bytes, servers):
    """Cuts a table into as many shards as it can, and as equal ones as possible.

    Args:
        rows: The number of rows of the table.
        row_bytes: The bytes of each row.
        least_bytes: No shard may have fewer bytes. It's a multiple of `row_bytes`, and a table
            smaller than that is one shard.
        servers: There is at most one shard for each server.

    Returns:
        A list: the number of rows of each shard. If the rows don't divide evenly, the first shards
        have one row more. 10 rows of 16 bytes, at least 64 bytes and 4 servers give `[5, 5]`.
    """
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
# Why is this sum wrong after a worker was killed? The check kills a worker that has done all that
# its step says, but hasn't reported it yet. Run the check before you change anything: is the
# difference that it prints one of the results of `work`? Then repair `add_up`, for which four lines
# are enough.
#
# <details><summary>Hint</summary>
#
# A step may be done twice, and then it adds to the variable twice. How many results does the step's
# promise have? Where could you add up these results?
# </details>


# %%
# task: survive_kill
def add_up(coordinator, work, numbers):
    """The sum of `work(number)` over all numbers, although a worker is killed on the way.

    Args:
        coordinator: The `ClusterCoordinator`, in whose process this function runs.
        work: Takes a number and returns one. It's expensive: call it inside a step, on a worker,
            and send one step for each number.
        numbers: A list of floats. Pass each one to its step as `tf.constant(number)`.

    Returns:
        The sum of all results, each of them **once**, as a float.
    """
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
