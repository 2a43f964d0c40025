# %% [markdown]
# # Parameter servers: training without waiting
#
# In synchronous training, one slow worker delays every step, and one lost worker stops all workers.
# With parameter servers, workers do not wait for each other. That has a price: in [Google's
# comparison of 2016](https://arxiv.org/abs/1604.00981), synchronous training with a few backup
# workers reached a better test accuracy than training that never waits.
#
# The servers also hold models that fit on no single machine. ByteDance's recommendation system
# [Monolith](https://arxiv.org/abs/2209.07663) keeps its tables there. Its authors plan with 1,000
# servers, of which 0.01 % fail each day: one server is lost every ten days. Each server writes a
# snapshot once a day, so only the lost server's updates since then are lost. Under
# `ParameterServerStrategy`, a lost server stops the training, and you go back to a checkpoint.
#
# ## Overview
#
# After this lesson you can
#
# - say what a [coordinator](../docs/glossary.md#coordinator), a
#   [worker](../docs/glossary.md#worker) and a [parameter
#   server](../docs/glossary.md#parameter-server) each do,
# - send steps to workers, and say when a step is done and what a failure changes,
# - measure the [staleness](../docs/glossary.md#staleness) of a step and limit its damage,
# - train a Keras model on parameter servers, and say when you should not.
#
# It takes {minutes}. You need lesson 09 (several processes). No GPU, no download. The lesson
# starts up to six processes on this machine. It runs on Linux and macOS; on Windows use WSL2.
#
# **Do you remember?**
#
# <details><summary>Lesson 09: one of two workers takes twice as long for its steps. How fast is the
# training?</summary>
# As fast as the slow worker, because each all-reduce waits for both. Here workers do not wait for
# each other.
# </details>
#
# <details><summary>Lesson 01: on which device is a mirrored variable?</summary>
# On every device: each replica has a copy. Here each variable exists once, on a server.
# </details>

# %%
# %load_ext distlab
import distlab as dl
from distlab.course.lesson_10_parameter_server.figures import draw_roles

dl.split_devices(1)
dl.show("data set", "digits, part of distlab: nothing is downloaded")
draw_roles(workers=2, servers=2)

# %% [markdown]
# If you see *TensorFlow is already running*, restart the kernel and run from the top.
#
# In lesson 09 your script ran on every worker. All workers took each step together, because each
# step contained a [collective](../docs/glossary.md#collective), which needs all of them. Here your
# script runs **once**, on the coordinator. It sends each step to one worker. That worker reads the
# weights from the servers, computes a gradient, writes its update, and reports its result.
#
# ## Three kinds of tasks

# %%
cluster = dl.LocalCluster(workers=2, parameter_servers=2)
dl.show("tasks", list(cluster.tasks))

# %% [markdown]
# The cluster has five processes. `ps` means parameter server, and the coordinator is called
# `chief`. Workers and servers run no script of yours: they wait for work.
#
# The warning above is serious: any program that reaches the port of such a server can run code as
# you. Lesson 09 says what to do, in the section "Who else may listen".
#
# <details><summary>In plain TensorFlow</summary>
# Each worker and each server has its own <code>TF_CONFIG</code>, makes a resolver as below, and
# runs
# <code>server = tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type,
# task_index=resolver.task_id)</code> and <code>server.join()</code>. Only the coordinator runs your
# program.
# </details>

# %% [markdown]
# A cell that starts with `%%workers chief` runs on the coordinator. There,
# `TFConfigClusterResolver` reads the cluster's addresses from
# [`TF_CONFIG`](../docs/glossary.md#tf_config). The strategy decides where variables go, and the
# `ClusterCoordinator` sends steps:

# %%
# %%workers chief
import tensorflow as tf

import distlab as dl

tf.get_logger().setLevel("CRITICAL")  # TensorFlow logs much about a lost worker
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    variables = [tf.Variable(float(n)) for n in range(4)]
homes = [tf.DeviceSpec.from_string(variable.device) for variable in variables]
dl.show("each variable is on server", [home.task for home in homes])
dl.show("replicas in sync", strategy.num_replicas_in_sync)

# %% [markdown]
# Each variable exists once, and the servers take turns. (`variable.device` is a string that names
# job, task and processor. `tf.DeviceSpec.from_string` splits it, and `.task` is the server's
# number.) There is one [replica](../docs/glossary.md#replica) although there are two workers,
# because the workers never take a step together. So the loss is not divided by the number of
# workers. (If each worker had 4 GPUs, there would be 4 replicas: the GPUs of one worker do take a
# step together.)
#
# ## Send a step
#
# A step is a `tf.function`. This one waits until a gate opens, and then counts itself: it adds the
# 1 that it has read at the gate. (TensorFlow turns the `while` into a loop of the graph. The worker
# runs this loop, and reads the gate each time.)

# %%
# %%workers chief
with strategy.scope():
    count, gate = tf.Variable(0), tf.Variable(0)


@tf.function
def counting_step():
    opened = gate.read_value()
    while opened < 1:
        opened = gate.read_value()
    count.assign_add(opened)


# %% [markdown]
# Why not `count.assign_add(1)`? `gate` and `count` are different variables. Inside a `tf.function`,
# TensorFlow does not order operations on different variables, unless one needs the result of the
# other or you demand an order. So that step could count while the gate is closed.
#
# `coordinator.schedule(step)` sends one step. We send six, and the gate is closed:

# %%
# %%workers chief
for _ in range(6):
    coordinator.schedule(counting_step)
dl.show("counted", count)

# %% [markdown]
# The loop has ended, and no step is done: `schedule` puts a step into a queue and returns.
# So a number that you read right after the loop says nothing about the loop. (`schedule` blocks
# only if its queue is full. In TensorFlow 2.21, the queue has room for 262,144 steps.) `join` waits
# until all steps are done:

# %%
# %%workers chief
gate.assign(1)
coordinator.join()
dl.show("counted", count, expected=6)

# %% [markdown]
# ## Fetch a result
#
# `schedule` returns a promise of the step's result, which TensorFlow calls a `RemoteValue`. Its
# method `fetch` waits for the result, and `coordinator.fetch` waits for a list of them. So you
# could fetch each step's loss before you send the next step, as in every loop so far.
#
# Here is a step that shows what happens then. Each worker makes its own data set with the function
# that you give to `create_per_worker_dataset`, here the numbers from 0 to 99. A step returns the
# next number of its worker's data set.


# %%
# %%workers chief
@tf.function
def next_number(numbers):
    return next(numbers)


# %% tags=["predict"]
numbers_guess = dl.predict(
    "Ten steps on two workers, each fetched before the next one is sent. Which numbers come back?",
    ["0 to 9", "0 to 4, and then again 0 to 4", "0, 0, 1, 1 and so on to 4, 4"],
)

# %%
# %%workers chief
numbers = iter(coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(100)))
fetched = [coordinator.schedule(next_number, args=(numbers,)).fetch() for _ in range(10)]
dl.show("numbers", fetched)

# %% tags=["reveal"]
numbers_guess.reveal(
    "0, 0, 1, 1 and so on to 4, 4",
    {
        "0, 0, 1, 1 and so on to 4, 4": "Each worker has the whole data set, and a step usually "
        "goes to the worker that has been free for longer. So they take turns.",
        "0 to 9": "That needs one data set for both workers, or one worker that takes all steps. "
        "Here each worker has its own, and they take turns.",
        "0 to 4, and then again 0 to 4": "A step usually goes to the worker that has been free for "
        "longer. So one seldom takes two in a row.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The two workers take turns. You send a step only when the last result is here, so only one worker
# works at a time, however many you have. Send many steps, join, and fetch the promises afterwards.
# Or fetch the losses of earlier steps while later steps are under way, as in the exercise. A loss
# that you see some steps late is still useful.
#
# The numbers show one more thing: **both workers read the same examples, in the same order.**
# `create_per_worker_dataset` gives each worker the whole data set. So in your own loop shuffle it
# there, without a seed: then each worker has its own order. (Set no global seed either. With
# `tf.random.set_seed` both workers shuffled alike in our test.) In lesson 09 the orders had to be
# equal, because each worker kept only its part of every batch.
#
# ## Which weights?
#
# A worker reads the weights and computes. Meanwhile a different worker writes its update. The
# gradient then belongs to weights that are no longer there. The number of updates between a step's
# reading and its writing is its **staleness**.
#
# We show it on the smallest possible model: one weight, the loss $weight^2/2$, and so a gradient
# equal to the weight. The best weight is 0. To see the same order in every run, we script it: a
# clock decides when each step reads and when it writes. So we choose the order, and then look at
# what happens to the weight. One variable holds all three numbers: `[weight, updates, clock]`.

# %% tags=["hide-input"]
# %%workers chief
with strategy.scope():
    state = tf.Variable([1.0, 0.0, 0.0])  # weight, updates, clock


def wait_for(turn):
    now = state.read_value()
    while now[2] < turn:
        now = state.read_value()
    return now


# %% [markdown]
# `wait_for(turn)`, in the folded cell, reads the variable again and again until the clock shows
# this turn. It returns what it read last: all three numbers at the same moment. Now the step. Its
# order is that of every training step: read, compute, write.


# %%
# %%workers chief
@tf.function
def step(read_at, write_at, rate, limit):
    before = wait_for(read_at)  # read: the weight, and how many updates there were
    state.assign_add([0, 0, 1])  # the clock moves on: the next turn may begin
    gradient = before[0]
    now = wait_for(write_at)
    staleness = now[1] - before[1]  # updates since the reading
    if staleness > limit:
        gradient = 0.0  # too old: leave this update out
    state.assign_add([-rate * gradient, 1, 1])  # write
    return staleness, now[0] - rate * gradient


# %% tags=["hide-input"]
# %%workers chief
def train(turns, rate, limit=100.0):
    state.assign([1, 0, 0])
    given = [(float(read), float(write), rate, limit) for read, write in turns]
    steps = [coordinator.schedule(step, args=tuple(map(tf.constant, each))) for each in given]
    coordinator.join()
    told = [(int(stale), float(weight)) for stale, weight in coordinator.fetch(steps)]
    return [(*turn, *each) for turn, each in zip(turns, told, strict=True)]


# %% [markdown]
# `train`, in the folded cell, sends such steps and returns the turns, the staleness and the new
# weight of each. (It passes numbers as tensors, because TensorFlow traces a `tf.function` again for
# each new Python number.) Each step is a pair
# of turns: when it reads and when it writes. First, the turns of one worker: read, write, read,
# write. The learning rate is 1.5, so each step computes weight - 1.5 · weight = -0.5 · weight. The
# sign flips, and the distance to 0 is halved:

# %%
# %%workers chief
alone = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13), (14, 15)]
dl.show("weights", [weight for *_, weight in train(alone, 1.5)])

# %% [markdown]
# Now two workers that are equally fast. While one computes, the other one writes:

# %% tags=["predict"]
two_guess = dl.predict(
    "Two equal workers, the same rate of 1.5. What happens to the weight in eight steps?",
    [
        "it comes to 0 as before",
        "it comes to 0, but in twice as many steps",
        "it moves away from 0",
    ],
)

# %%
# %%workers chief
two = [(0, 2), (1, 4), (3, 6), (5, 8), (7, 10), (9, 12), (11, 14), (13, 15)]
dl.show("staleness", [stale for *_, stale, _ in train(two, 1.5)])
dl.show("weights", [weight for *_, weight in train(two, 1.5)])

# %% tags=["reveal"]
two_guess.reveal(
    "it moves away from 0",
    {
        "it moves away from 0": "Each gradient is one update old, so it corrects an error that "
        "is no longer there. The weight swings further and further: to -2, to 3.6, to -5.9.",
        "it comes to 0 as before": "That holds if each gradient belongs to the current weight. "
        "Here one update comes in between, each time.",
        "it comes to 0, but in twice as many steps": "Stale steps are not just lost steps. Each "
        "one corrects the weight of one update ago, so the weight overshoots.",
    },
)

# %% [markdown] tags=["after-reveal"]
# So a rate that was fine is now too large: without staleness every rate below 2 brings this weight
# to 0, and with a staleness of 1 only a rate below 1. While one of $n$ equal workers computes, each
# other worker writes about once, so the staleness is about $n-1$. Now let one of two workers be so
# slow that the fast one takes seven steps in the meantime. Parameter servers are made for this
# case: the fast worker does not wait.

# %% tags=["after-reveal"]
# %%workers chief
from distlab.course.lesson_10_parameter_server.figures import draw_staleness

slow = [(0, 15), *((turn, turn + 1) for turn in range(1, 15, 2))]
slow += [(read + 16, write + 16) for read, write in slow]
draw_staleness({"two, equally fast": train(two, 1.5), "one of two is slow": train(slow, 1.5)})

# %% [markdown]
# Most steps are fresh, and two are stale by seven updates. Each of the two throws the weight far
# back, because its gradient is seven updates old.
#
# **Remedies.** You can use a smaller rate. Or a step drops its update if too many updates were
# written since it read. ([Staleness-aware training](https://arxiv.org/abs/1511.05950) does not drop
# such an update: it lowers the learning rate for it.) Or fast workers wait when they are too far
# ahead, which is called [stale synchronous
# parallel](https://proceedings.neurips.cc/paper/2013/hash/b7bb35b9c6ca2aee2df08cf09d7016c2-Abstract.html)
# training. Here are a smaller rate for the equal workers and a limit for the slow one, with the
# same turns as before:

# %%
# %%workers chief
smaller, limited = train(two, 0.4), train(slow, 1.5, limit=3.0)
draw_staleness({"equal workers, rate 0.4": smaller, "one is slow, limit 3": limited})

# %% [markdown]
# Both weights come close to 0: 0.008 for the equal workers, 0.00006 with the limit. (Do not
# compare these two numbers: the turns and the rates differ.) Each remedy has a price. A smaller
# rate makes smaller steps, and the limit wastes all work of the slow worker.
#
# ### Without a script
#
# So far a clock chose the order. Now four real workers take 200 steps, and no clock orders them.
# Each step reads the count of updates, multiplies matrices, reads the count again, and adds 1.
# Every 20th step multiplies 40 times as much, like a worker that is slow for a moment.

# %%
cluster.close()
cluster = dl.LocalCluster(workers=4, parameter_servers=1)


# %% tags=["hide-input"]
def begin():
    """Makes a coordinator, a count of updates and a step, and keeps them on the coordinator."""
    import tensorflow as tf

    import __main__

    tf.get_logger().setLevel("CRITICAL")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        updates = tf.Variable(0)

    @tf.function
    def step(products):
        before = updates.read_value()
        with tf.control_dependencies([before]):
            matrix = tf.random.uniform((200, 200))
        for _ in tf.range(products):
            matrix = tf.matmul(matrix, matrix) / 100.0
        with tf.control_dependencies([matrix]):
            staleness = updates.read_value() - before
        updates.assign_add(1)
        return staleness

    __main__.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    __main__.updates, __main__.step = updates, step


# %% tags=["hide-input"]
def measure_staleness(steps):
    import tensorflow as tf

    from __main__ import coordinator, step

    products = [800 if number % 20 == 10 else 20 for number in range(steps)]
    sent = [coordinator.schedule(step, args=(tf.constant(each),)) for each in products]
    coordinator.join()
    return [int(staleness) for staleness in coordinator.fetch(sent)]


# %% tags=["predict"]
mean_guess = dl.predict(
    "Four workers, so $n-1$ is 3. Some steps take much longer, and become very stale. What happens "
    "to the mean staleness?",
    ["it rises above 3", "it is exactly 3", "it stays below 3"],
)

# %%
cluster.run(begin, tasks="chief", timeout_secs=60)
(measured,) = cluster.run(measure_staleness, 200, tasks="chief", timeout_secs=60)
dl.show("steps", len(measured))
dl.show("some steps are stale", max(measured) > 0)
mean = sum(measured) / len(measured)
dl.show("the mean, compared with 3", "<" if mean < 3 else "=" if mean == 3 else ">")
dl.show("the largest is above 3", max(measured) > 3)

# %% tags=["reveal"]
mean_guess.reveal(
    "it stays below 3" if mean < 3 else "it is exactly 3" if mean == 3 else "it rises above 3",
    {
        "it stays below 3": "Each update makes the steps that are under way one update older. "
        "Besides the step that writes, these are three at most.",
        "it rises above 3": "A slow step collects many updates, but the steps of the fast workers "
        "collect few then. Each update makes at most three steps older.",
        "it is exactly 3": "That needs three other steps under way at each update. Workers also "
        "wait for their next step.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Each update makes only those steps older that are under way on the three other workers. So the
# mean is at most 3, and less because workers wait for their next step. But a single slow step can
# collect any number of updates. In twelve of our runs the mean was between 1.6 and 2.0, and the
# largest staleness between 32 and 46. So look at the largest staleness, or at a histogram.
#
# ## The coordinator dies
#
# The coordinator runs your program. The variables are on the server, and the workers and the server
# have their own processes. We note the count of updates, kill the coordinator, and start a new
# one, which runs the same function `begin` again.


# %%
def count_updates():
    from __main__ import updates

    return int(updates.read_value())


(before,) = cluster.run(count_updates, tasks="chief")
dl.show("updates", before, expected=200)
lived = {task.task: task.pid for task in cluster.status().tasks}
cluster.kill("chief")

# %% tags=["predict"]
coordinator_guess = dl.predict(
    "The new coordinator runs `begin`. What does `count_updates` return?",
    [
        "200: the server kept the variable",
        "0: the new variable starts again",
        "none: begin raises an error, because the variable exists",
        "200: begin restores the newest checkpoint",
    ],
)

# %%
cluster.restart("chief")
same = [task.task for task in cluster.status().tasks if task.pid == lived[task.task]]
dl.show("still the same processes", same)
cluster.run(begin, tasks="chief", timeout_secs=60)
(after,) = cluster.run(count_updates, tasks="chief")
dl.show("updates", after)

# %% tags=["reveal"]
coordinator_guess.reveal(
    "0: the new variable starts again" if after == 0 else "200: the server kept the variable",
    {
        "0: the new variable starts again": "A new coordinator makes a new variable on the "
        "server, with the first value of your program.",
        "200: the server kept the variable": "The server's process lives. But the new coordinator "
        "makes a new variable, with the first value that your program gives it.",
        "none: begin raises an error, because the variable exists": "A new variable is a new "
        "resource on the server. It meets no old one.",
        "200: begin restores the newest checkpoint": "`begin` restores nothing, and TensorFlow "
        "writes no checkpoint by itself.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The workers and the server lived. But your program started from its first line, and made its
# variables again, so the training is lost. Write checkpoints, and let a new coordinator restore
# the newest one before it sends a step. In `fit`, lesson 11's `dl.Resume` does both.

# %%
cluster.close()

# %% [markdown]
# ## A worker dies
#
# We start a new cluster with two workers, and a coordinator with a count and a gate as above:

# %%
cluster = dl.LocalCluster(workers=2, parameter_servers=1)

# %% tags=["hide-input"]
# %%workers chief
import tensorflow as tf

import distlab as dl

tf.get_logger().setLevel("CRITICAL")
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    count, gate = tf.Variable(0), tf.Variable(0)

# %% [markdown]
# Each of two steps counts itself, and ends only when the gate opens. We wait until both have
# counted:


# %%
# %%workers chief
@tf.function
def count_then_wait():
    count.assign_add(1)
    while gate < 1:
        pass


for _ in range(2):
    coordinator.schedule(count_then_wait)
while count < 2:
    pass
dl.show("counted", count)

# %% [markdown]
# Now we kill worker 1 in the middle of its step, open the gate, and join.

# %% tags=["predict"]
kill_guess = dl.predict(
    "Two steps were sent, both have counted, one worker is killed. What does `join` do?",
    [
        "it raises an error",
        "it waits forever",
        "it returns, and the count is 2",
        "it returns, and the count is 3",
    ],
)

# %%
cluster.kill("worker:1")

# %%
# %%workers chief --timeout 60
gate.assign(1)
coordinator.join()
dl.show("counted", count)

# %% tags=["reveal"]
kill_guess.reveal(
    "it returns, and the count is 3",
    {
        "it returns, and the count is 3": "The coordinator sends the lost worker's step to the "
        "worker that is left, although the step had counted already.",
        "it raises an error": "A lost worker is an everyday event here. The coordinator sends its "
        "step to a different worker.",
        "it waits forever": "That was lesson 09, where a collective needs every worker. Here a "
        "step needs one worker, and one is left.",
        "it returns, and the count is 2": "The coordinator cannot know how far the lost worker "
        "came. It sends the whole step again, and the step counts again.",
    },
)

# %% [markdown] tags=["after-reveal"]
# `schedule` guarantees that a step is done **at least once**, not exactly once. For the weights,
# that is usually harmless: one small update too many. A sum or a count becomes wrong. Two remedies:
#
# - **Return** the result instead of adding it on a server.
# - Let the step **set** something instead of adding to it. Setting it twice changes nothing.
#
# A worker that comes back takes steps again, and its data set starts from the beginning
# ([ClusterCoordinator, "Handling task
# failure"](https://www.tensorflow.org/api_docs/python/tf/distribute/coordinator/ClusterCoordinator)).
# Nothing in your program changes:

# %%
cluster.restart("worker:1")

# %% [markdown]
# <details><summary>And if a parameter server dies?</summary>
# Its variables are gone: no other task has a copy. <code>schedule</code>, <code>join</code> or
# <code>done</code> (which asks whether all steps are done) raises <code>UnavailableError</code>.
# TensorFlow's way back: bring the server back, restart the coordinator, and restore the variables
# from a checkpoint. The new coordinator connects to the workers again, and they need no restart (<a
# href="https://www.tensorflow.org/api_docs/python/tf/distribute/coordinator/ClusterCoordinator">ClusterCoordinator,
# "Handling task failure"</a>).
# </details>
#
# ## A step raises an error
#
# A lost worker is an event outside your program. Now an error comes from the step itself: the fifth
# of 200 steps meets a bad batch. All steps wait at the gate until 200 are sent. By itself,
# TensorFlow does not order the check `assert_none_equal` before the addition.
# `tf.control_dependencies` does, so the bad step cannot count.


# %%
# %%workers chief
@tf.function
def step_with_data(number):
    opened = gate.read_value()
    while opened < 1:
        opened = gate.read_value()
    good = tf.debugging.assert_none_equal(number, 4, message="a bad batch")
    with tf.control_dependencies([good]):  # first the check, then the count
        count.assign_add(opened)


def send_200():
    count.assign(0), gate.assign(0)
    for number in range(200):
        coordinator.schedule(step_with_data, args=(tf.constant(number),))
    gate.assign(1)


# %% tags=["predict"]
error_guess = dl.predict(
    "200 steps are sent, the fifth raises an error, and `join` follows at once. How many of the "
    "199 good steps are done after `join`?",
    [
        "all 199, and join raises the error",
        "all 199, and join repeats the fifth",
        "about 100: one of the two workers stops",
        "fewer than 50, and join raises the error",
    ],
)

# %%
# %%workers chief --timeout 60
send_200()
try:
    coordinator.join()
except tf.errors.InvalidArgumentError:
    dl.show("fewer than 50 steps done", int(count) < 50)

# %% tags=["reveal"]
error_guess.reveal(
    "fewer than 50, and join raises the error",
    {
        "fewer than 50, and join raises the error": "After the error, `join` cancels the steps "
        "under way and all that wait in the queue. How many were done by then differs between "
        "runs.",
        "all 199, and join raises the error": "`join` raises the error, but it does not wait for "
        "the queue: it cancels all steps that wait there.",
        "about 100: one of the two workers stops": "Both workers could go on. But `join` cancels "
        "the queue for all of them.",
        "all 199, and join repeats the fifth": "A step is repeated if its worker is lost. An error "
        "of your own code would come again each time, so `join` raises it.",
    },
)

# %% [markdown] tags=["after-reveal"]
# In 120 runs on ten clusters, 3 to 10 steps counted, in 90 of them 4 or 5. After a step has
# failed, the next call of `schedule`, `join` or `done` raises its error, and **cancels everything
# in the queue** and the steps under way. Until that call the workers go on. Here the program waits
# before it calls `join`:

# %% tags=["after-reveal"]
# %%workers chief --timeout 60
send_200()
while count < 199:
    pass
try:
    coordinator.join()
except tf.errors.InvalidArgumentError:
    dl.show("counted", count)

# %% [markdown] tags=["after-reveal"]
# So the error may come late, and `schedule` may raise it: put `schedule` into the `try`, too. If
# you fetch the promise of a cancelled step, it raises `CancelledError`. If a batch may be bad, test
# it inside the step and leave its update out.

# %%
cluster.close()

# %% [markdown]
# ## A model
#
# For a Keras model you need not write this loop. `fit` of a model from `dl.distribute` trains on
# each batch once an epoch, unless a worker is lost. The coordinator reads the data and sends each
# batch to a worker that is free, so its network is the limit. First the reference: one device, in
# this notebook. (The folded cell has the digits and a small model.)

# %% tags=["hide-input"]
import keras
import numpy as np
import tensorflow as tf

tf.config.experimental.enable_tensor_float_32_execution(False)  # a GPU as exact as CPUs
(digits,) = dl.load_dataset("digits", splits=["train[:325]"], batch_size=325)
images, labels = next(digits.as_numpy_iterator())


def batches():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(20)


def build():
    dl.set_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss=loss)
    return model


one = build()
loss_of_one = one.fit(batches(), shuffle=False, epochs=2, verbose=0).history["loss"]

# %% [markdown]
# Now the same with one worker and one server. `tasks="chief"` means the coordinator.


# %%
def fit_on_servers():
    model = dl.distribute(build, dl.make_strategy("parameter_server"))
    logs = model.fit(batches(), shuffle=False, epochs=2, verbose=0).history
    return logs["loss"], model.get_weights()


with dl.LocalCluster(workers=1, parameter_servers=1) as cluster:
    ((losses, weights),) = cluster.run(fit_on_servers, tasks="chief")
dl.show("losses", losses, expected=loss_of_one)
apart = [np.abs(a - b).max() for a, b in zip(weights, one.get_weights(), strict=True)]
dl.show("weights apart from one device's by", max(apart), below=1e-6)

# %% [markdown]
# With one worker nothing is stale, so the result is that of one device. With two workers the order
# of the updates can differ from run to run, and then the weights differ, too.
#
# Start a script with `distlab launch --workers 2 --ps 1 train.py`.
#
# <details><summary>In plain TensorFlow: the loop</summary>
#
# ```python
# with strategy.scope():
#     model = build()
#     model.optimizer.build(model.trainable_variables)
#
# @tf.function
# def step(data):
#     def replica_step(x, y):
#         with tf.GradientTape() as tape:
#             loss = model.loss(y, model(x, training=True))
#         weights = model.trainable_variables
#         model.optimizer.apply(tape.gradient(loss, weights), weights)
#         return loss
#     return strategy.run(replica_step, args=next(data))
#
# data = iter(coordinator.create_per_worker_dataset(make_data))
# losses = [coordinator.schedule(step, args=(data,)) for _ in range(steps)]
# coordinator.join()
# losses = coordinator.fetch(losses)
# ```
#
# TensorFlow traces `make_data` once, on the coordinator, and runs its graph on each worker. So
# Python code in it gives all workers the same value. It must make the data set itself, shuffle it
# without a seed, and repeat it. (The `build` of this lesson sets a global seed. Leave that out, or
# both workers shuffle alike.) Keras's own `fit` raises an error under this strategy.
#
# In this loop the count of steps can be too small: Keras reads `optimizer.iterations` and then
# writes it, and if two workers do so at the same time, one count is lost. In one of our runs it was
# 209 after 301 steps. A learning-rate schedule then sees too few steps. `fit` of a model from
# `dl.distribute` counts in one operation on the server, so it loses none.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
# PyTorch has no parameter-server strategy, but you can build one with
# <code>torch.distributed.rpc</code>. For large tables, PyTorch's library TorchRec divides them over
# the workers, and the workers train synchronously. JAX has no such strategy: a table is a sharded
# array, of which each device holds a part. In both, a lost worker usually stops the job, and
# <code>torchrun</code> or a supervisor restarts it from a checkpoint.
# </details>
#
# ## A table in shards
#
# Servers are worth their price if the model is mostly one enormous table, such as an embedding of a
# hundred million products: one row of weights for each product. A *partitioner* cuts the table into
# [shards](../docs/glossary.md#shard), which the servers share, and a step fetches only the rows
# that it needs. You give it to the strategy as `variable_partitioner`. In the exercise you compute
# the shards' sizes.
#
# <details><summary>Does that work with a Keras model?</summary>
# Not with Keras 3: a layer whose weights are cut raises <code>AttributeError: 'ShardedVariable'
# object has no attribute 'handle'</code> in its first training step. Without a partitioner, a Keras
# <code>Embedding</code> runs, but each step fetches its whole table. So use a raw
# <code>tf.Variable</code> and <code>tf.nn.embedding_lookup</code> for the table.
# </details>
#
# ## What parameter servers are for
#
# Parameter servers are not a slower kind of `MirroredStrategy`. They answer a different question:
#
# | use them if | use a synchronous strategy if |
# |---|---|
# | some machines are slower, or come and go | machines are equal, the network is fast: lesson 09 |
# | a table is too large for one machine | the model fits on each device: lesson 01 |
# | a step needs few rows, so little travels | the model is dense: each step needs all weights |
# | a little staleness is harmless | runs must be reproducible, or equal one device |
#
# ## Check yourself
#
# <details><summary>1. Four workers are equally fast. Which staleness do you expect?</summary>
# At most about 3: each of the other three writes about once meanwhile.
# </details>
#
# <details><summary>2. A loop of <code>loss = coordinator.schedule(step, ...).fetch()</code> keeps
# only one of eight workers busy at a time. Why?</summary>
# It sends a step when the result of the
# last one is here. So no second step is ever under way.
# </details>
#
# <details><summary>3. You scheduled 1000 steps and joined. A counter on the server says 1002. Is
# that a bug in <code>schedule</code>?</summary>
# No. <code>schedule</code> guarantees each step at
# least once. Two steps were done again, for example because their workers were lost. The bug is in
# your counter: count what comes back to the coordinator.
# </details>
#
# <details><summary>4. A worker dies; a parameter server dies. Which one does the training survive?
# </summary>
# The worker. A server takes variables with it that exist nowhere else.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/10_parameter_server.ipynb): a loop that limits what is under way,
#   staleness from a log, a table in shards, and a sum that survives a kill.
# - [Lesson 11](11_fault_tolerance.ipynb): checkpoints, and runs that resume.
# - [Lesson 09](09_multi_worker.ipynb): the same workers, in step.
# - [The glossary](../docs/glossary.md) has every term.
# - TensorFlow's [parameter-server
#   tutorial](https://www.tensorflow.org/tutorials/distribute/parameter_server_training) is the
#   primary source. As it stands it stops on Keras 3, because it uses `optimizers.legacy`.
