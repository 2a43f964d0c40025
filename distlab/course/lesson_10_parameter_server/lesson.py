# %% [markdown]
# # Parameter servers: training without waiting
#
# In synchronous training, everybody waits for the slowest worker in every step, and you pay for
# every machine that waits. So why not let each worker start its next batch as soon as it has
# finished the last one? Google's researchers [compared the two in
# 2016](https://arxiv.org/abs/1604.00981), and waiting won: with a few backup workers, synchronous
# training reached a better test accuracy than training that never waits. The workers that never
# waited were always busy, but often with gradients of weights that no longer existed.
#
# This lesson is about those old gradients. When you've finished it, you can
#
# - say what a [coordinator](../docs/glossary.md#coordinator), a
#   [worker](../docs/glossary.md#worker) and a [parameter
#   server](../docs/glossary.md#parameter-server) each do, and which of them you can lose,
# - measure how old a gradient is, and limit the damage that it does,
# - write steps that may run twice without harm,
# - train a Keras model on parameter servers with one command, and say when you'd better not.
#
# Allow {minutes}, and the longer time if you open every fold. You need lesson
# [09](09_multi_worker.ipynb), but no GPU and no download. The lesson starts up to six processes on
# this machine, which works on Linux and macOS; on Windows, use WSL2.
#
# <details><summary>Do you remember? Lesson 09: one of two workers takes twice as long for its
# steps. How fast is the training?</summary>
#
# As fast as the slow worker, because every all-reduce waits for both. Today nobody waits, and
# you'll see what that costs instead.
#
# </details>

# %%
# %load_ext distlab
import distlab as dl
from distlab.course.lesson_10_parameter_server.figures import draw_roles

dl.split_devices(1)
draw_roles(workers=2, servers=2)

# %% [markdown]
# ## Your script runs once
#
# In lesson 09 every worker ran your script, and all workers took each step together. Here your
# script runs once, on the *coordinator*, which sends each step to a single *worker*. That worker
# reads the weights from the *parameter servers*, computes a gradient, writes its update back to
# them, and reports the result. Workers never talk to each other, as the figure shows, so they have
# nobody to wait for.

# %%
cluster = dl.LocalCluster(workers=2, parameter_servers=2)
dl.show("tasks", list(cluster.tasks))

# %% [markdown]
# You now have five processes, because TensorFlow calls the coordinator `chief` and a parameter
# server `ps`. A cell that starts with `%%workers chief` runs on the coordinator:

# %%
# %%workers chief
import tensorflow as tf

import distlab as dl

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    variables = [tf.Variable(float(n)) for n in range(4)]
homes = [tf.DeviceSpec.from_string(variable.device) for variable in variables]
dl.show("each variable is on server", [home.task for home in homes])

# %% [markdown]
# Each variable exists only once, and the strategy has dealt them out to the two servers in turn,
# like cards. If `step` is a `tf.function` that takes one training step, this is the whole loop:
#
# ```python
# data = iter(coordinator.create_per_worker_dataset(make_data))
# losses = [coordinator.schedule(step, args=(data,)) for _ in range(steps)]
# coordinator.join()
# losses = coordinator.fetch(losses)
# ```
#
# `schedule` puts a step into a queue and returns at once, so the second line is over before the
# first step is done. What you get back is a promise of the step's result. `join` waits until every
# step has finished, and `fetch` turns promises into numbers. It's tempting to fetch each loss
# before you send the next step, as in every loop so far, but then only one worker ever has
# something to do.
#
# > **Takeaway.** `schedule` sends, `join` waits, `fetch` reads. Keep several steps in flight, or
# > all workers but one stand idle.
#
# <details><summary>Fine print</summary>
#
# While the cluster runs, any program that reaches the ports of its servers can run code as you, and
# lesson 09 says how to close them. `create_per_worker_dataset` gives each worker the whole data set
# in the same order, so let `make_data` shuffle it, without a seed. The two workers count as one
# replica because they never take a step together, so you don't divide the loss by their number.
#
# </details>
#
# ## What an old gradient does
#
# A worker reads the weights and starts to compute. Before it has finished, another worker writes an
# update, so the first one hands in a gradient of weights that are gone. The number of updates
# between a step's reading and its writing is its [staleness](../docs/glossary.md#staleness).
#
# You know the feeling from a shower that answers late. The water is cold, so you turn the tap; it
# stays cold, so you turn further; and then it burns, because you kept correcting a temperature that
# was already about to change. A stale gradient does the same to a weight.
#
# We watch it on the smallest model there is: a single weight that starts at 1, should become 0, and
# has the loss $weight^2/2$, so its gradient is the weight itself. A clock decides when each step
# reads and when it writes, so you'll see the same numbers as we did.

# %%
# %%workers chief
from distlab.course.lesson_10_parameter_server.runs import ordered_by_clock, wait_for

with strategy.scope():
    state = tf.Variable([1.0, 0.0, 0.0])  # the weight, the number of updates, the clock


@tf.function
def step(read_at, write_at, rate, limit):
    before = wait_for(state, read_at)  # read: the weight, and how many updates there were
    state.assign_add([0, 0, 1])  # the clock moves on
    gradient = before[0]
    now = wait_for(state, write_at)
    staleness = now[1] - before[1]  # updates since the reading
    if staleness > limit:
        gradient = 0.0  # too old: leave this update out
    state.assign_add([-rate * gradient, 1, 1])  # write
    return staleness, now[0] - rate * gradient


train = ordered_by_clock(coordinator, step, state)

# %% [markdown]
# The variable `state` holds all three numbers, and `wait_for` waits for a turn of the clock.
# `train` sends one such step for each pair of turns: when it reads and when it writes.
#
# A worker that's alone reads, writes, reads, writes, and nothing is ever stale. At a learning rate
# of 1.5, each step turns the weight into -0.5 times itself, so the sign flips and the distance to 0
# is halved:

# %%
# %%workers chief
alone = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13), (14, 15)]
dl.show("weights", [weight for *_, weight in train(alone, 1.5)])

# %% [markdown]
# Now a second worker joins, exactly as fast as the first, and while one of them computes the other
# one writes. The learning rate and the number of steps stay as they are.

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
        "it moves away from 0": "Each gradient is one update old and corrects an error that's no "
        "longer there, so the weight swings further and further: to -2, to 3.6, to -5.9.",
        "it comes to 0 as before": "It would if each gradient belonged to the current weight, but "
        "here one update always comes in between.",
        "it comes to 0, but in twice as many steps": "That would be so if stale steps were merely "
        "lost steps. They do harm, because each one corrects the weight of one update ago and "
        "overshoots.",
    },
)

# %% [markdown] tags=["after-reveal"]
# We doubled the workers, changed nothing else, and a training that worked now diverges. A worker
# that's alone brings this weight to 0 at any rate below 2, but when every gradient is one update
# old, the rate must stay below 1. At 0.4 the same two workers do well again:

# %% tags=["after-reveal"]
# %%workers chief
dl.show("the last weight", train(two, 0.4)[-1][-1])

# %% [markdown] tags=["after-reveal"]
# The problem grows with your cluster: while one of $n$ equal workers computes, each of the others
# writes about once, so expect a staleness of about $n-1$.
#
# What if the workers aren't equal? Parameter servers are made for this case, because a fast worker
# doesn't have to wait for a slow one. Let one of two be so slow that the other takes seven steps in
# the meantime. We run that twice, and the second time a step leaves its update out if its gradient
# is more than three updates old:

# %% tags=["after-reveal"]
# %%workers chief
from distlab.course.lesson_10_parameter_server.figures import draw_staleness

slow = [(0, 15), *((turn, turn + 1) for turn in range(1, 15, 2))]
slow += [(read + 16, write + 16) for read, write in slow]
draw_staleness(
    {"no limit": train(slow, 1.5), "limit 3": train(slow, 1.5, limit=3.0)},
    title="Two old gradients undo what fourteen fresh ones did",
)

# %% [markdown] tags=["after-reveal"]
# On the left, each gradient of the slow worker throws the weight away from 0, and the second one
# leaves it at 2.27. On the right the same two updates are left out, and the weight ends at 0.00006.
#
# So there are three remedies, and each has its price. A smaller learning rate makes every step
# smaller, even the fresh ones. A limit wastes everything that the slow worker does. Or the fast
# workers wait when they're too far ahead, which is called [stale synchronous
# parallel](https://proceedings.neurips.cc/paper/2013/hash/b7bb35b9c6ca2aee2df08cf09d7016c2-Abstract.html)
# training, and then somebody is waiting again.
#
# > **Takeaway.** A stale gradient corrects an error that's already gone. The older your gradients
# > are, the smaller your learning rate must be.
#
# <details><summary>Fine print</summary>
#
# The limits of 2 and 1 belong to this loss, and another model has other limits. A softer remedy,
# [staleness-aware training](https://arxiv.org/abs/1511.05950), lowers the learning rate of an old
# update instead of dropping it.
#
# </details>

# %% [markdown]
# ## Four workers without a clock
#
# So far we wrote the timetable. Now four real workers take 200 steps, and nobody tells them when.
# Each step reads the count of updates, multiplies matrices for a while, reads the count again and
# adds 1, so the difference between its two readings is its staleness. Every 20th step multiplies 40
# times as much, like a worker that's slow for a moment.

# %%
from distlab.course.lesson_10_parameter_server import runs

cluster.close()
cluster = dl.LocalCluster(workers=4, parameter_servers=1)

# %% tags=["predict"]
mean_guess = dl.predict(
    "With four workers, $n-1$ is 3. Some steps take much longer and become very stale. What "
    "happens to the mean staleness?",
    ["it rises above 3", "it is exactly 3", "it stays below 3"],
)

# %%
cluster.run(runs.begin, tasks="chief", timeout_secs=60)
(measured,) = cluster.run(runs.measure_staleness, 200, tasks="chief", timeout_secs=60)
mean = sum(measured) / len(measured)
dl.show("the mean, compared with 3", "<" if mean < 3 else "=" if mean == 3 else ">")
dl.show("the largest is above 3", max(measured) > 3)

# %% tags=["reveal"]
mean_guess.reveal(
    "it stays below 3" if mean < 3 else "it is exactly 3" if mean == 3 else "it rises above 3",
    {
        "it stays below 3": "Look at it from the side of the worker that writes: its update makes "
        "only those steps older that are in flight at this moment, and on three other workers "
        "there are at most three of them.",
        "it rises above 3": "A slow step does collect many updates, but meanwhile the steps of the "
        "fast workers collect few. Each update still makes at most three steps older.",
        "it is exactly 3": "That needs three other steps in flight at every single update, but "
        "workers also wait for their next step.",
    },
)

# %% [markdown] tags=["after-reveal"]
# So the mean stays small, and tells you little. In twelve of our runs it never rose above 2, while
# the oldest gradient had missed 32 updates or more. Nothing limits the age of a single gradient,
# and you've just seen what two of them can do.
#
# > **Takeaway.** Look at the largest staleness, or at a histogram. The mean hides the steps that do
# > the damage.

# %% [markdown]
# ## Which process can you lose?
#
# Three kinds of process can die here, and training survives the death of only one kind by itself.
# Let's start with the coordinator, which runs your program, while the variables live on the server
# and all workers have processes of their own. `runs.begin` made this coordinator and its variable,
# the count of updates. We note that count, kill the coordinator, and start a new one, which runs
# `begin` again.

# %%
(before,) = cluster.run(runs.count_updates, tasks="chief")
dl.show("updates", before)
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
cluster.run(runs.begin, tasks="chief", timeout_secs=60)
(after,) = cluster.run(runs.count_updates, tasks="chief")
dl.show("updates", after)

# %% tags=["reveal"]
coordinator_guess.reveal(
    "0: the new variable starts again" if after == 0 else "200: the server kept the variable",
    {
        "0: the new variable starts again": "A new coordinator makes a new variable on the server, "
        "with the first value that your program gives it.",
        "200: the server kept the variable": "The server is indeed the same process, but your "
        "program asked it for a new variable, and got one.",
        "none: begin raises an error, because the variable exists": "That would be so if the "
        "variable had a name that only one can have. A new variable is a new resource on the "
        "server, so it doesn't collide with the old one.",
        "200: begin restores the newest checkpoint": "`begin` restores nothing, and TensorFlow "
        "doesn't write checkpoints by itself.",
    },
)

# %% [markdown] tags=["after-reveal"]
# All other processes lived, and the training is lost all the same, because your program started
# from its first line. So write checkpoints, and let a new coordinator restore the newest one before
# it sends a step. In `fit`, `dl.Resume` from lesson 11 does both.
#
# Next we kill a worker. On a fresh cluster of two workers, each of two steps counts itself and then
# waits at a gate:

# %%
cluster.close()
cluster = dl.LocalCluster(workers=2, parameter_servers=1)

# %%
# %%workers chief
import tensorflow as tf

import distlab as dl
from distlab.course.lesson_10_parameter_server.runs import make_coordinator

coordinator = make_coordinator()
with coordinator.strategy.scope():
    count, gate = tf.Variable(0), tf.Variable(0)


@tf.function
def count_then_wait():
    count.assign_add(1)
    while gate < 1:
        pass


for _ in range(2):
    coordinator.schedule(count_then_wait)
while count < 2:
    pass

# %% [markdown]
# The last loop has ended, so both steps have counted. We kill worker 1 in the middle of its step,
# open the gate, and join.

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
        "worker that's left, although the step had already counted.",
        "it raises an error": "It would if the step itself had failed. A lost worker is an "
        "everyday event here, so the coordinator just gives its step to another one.",
        "it waits forever": "That was lesson 09, where a collective needs every worker. Here a "
        "step needs one worker, and one is left.",
        "it returns, and the count is 2": "The coordinator can't know how far the lost worker had "
        "come. It sends the whole step again, and the step counts again.",
    },
)

# %% [markdown] tags=["after-reveal"]
# You order something online, no confirmation comes, so you order again, and two parcels arrive. The
# coordinator does the same, which is why TensorFlow promises that each step is done *at least
# once*. One small update too many seldom hurts the weights, but a sum or a counter becomes wrong.
# So let a step return its result instead of adding it on a server, or let it set a value instead of
# adding to one, because setting it twice changes nothing.
#
# A parameter server, finally, takes variables with it that exist nowhere else. How often must you
# expect that? The authors of [Monolith](https://arxiv.org/abs/2209.07663), ByteDance's
# recommendation system, plan with 1,000 servers of which 0.01 % fail each day, so they lose one
# every ten days. Each server writes a snapshot once a day, and only the lost server's updates since
# then are gone. `ParameterServerStrategy` is less forgiving: the training stops, and all of it goes
# back to a checkpoint.
#
# | what dies | what happens | what you do |
# |---|---|---|
# | a worker | another takes its step, which may count twice | nothing, if steps may run twice |
# | the coordinator | your program and its variables start again | restore a checkpoint |
# | a parameter server | `schedule` or `join` raises `UnavailableError` | see the fine print |
#
# > **Takeaway.** A lost worker costs you at most a step that counts twice. A lost coordinator or
# > server costs everything since the last checkpoint.
#
# <details><summary>Fine print</summary>
#
# After a server is lost, bring it back, restart the coordinator and restore a checkpoint; the
# workers [need no
# restart](https://www.tensorflow.org/api_docs/python/tf/distribute/coordinator/ClusterCoordinator).
# A worker that comes back takes steps again, and its data set starts from the beginning. An error
# in your own step isn't repeated: the next `schedule` or `join` raises it, and cancels every step
# that's still in the queue. So put `schedule` into the `try` as well, and test a doubtful batch
# inside the step.
#
# </details>

# %% [markdown]
# ## Your own model, with one command
#
# For a Keras model you don't write any of this. `fit` of a model from `dl.distribute` sends each
# batch to a worker that's free, and the strategy is the only thing you change:


# %%
def fit_on_servers():
    model = dl.distribute(runs.build, dl.make_strategy("parameter_server"))
    logs = model.fit(runs.batches(), shuffle=False, epochs=2, verbose=0).history
    return logs["loss"], model.get_weights()


cluster.close()
with dl.LocalCluster(workers=1, parameter_servers=1) as cluster:
    ((losses, weights),) = cluster.run(fit_on_servers, tasks="chief")
loss_of_one, weights_of_one = runs.fit_on_one_device()
dl.show("losses", losses, expected=loss_of_one)
apart = runs.max_difference(weights, weights_of_one)
dl.show("max difference of a weight", apart, below=1e-6)

# %% [markdown]
# With one worker nothing is stale, so you get the losses and the weights of a single device. With
# two workers the order of the updates can change from run to run, and the weights change with it. A
# script of your own needs one command, which starts the coordinator, the workers and the server:
#
# ```bash
# distlab launch --workers 2 --ps 1 train.py
# ```
#
# Before you type it, ask what you'd gain. Parameter servers aren't a slower kind of
# `MirroredStrategy`, because they answer another question:
#
# | use parameter servers if | use a synchronous strategy if |
# |---|---|
# | some machines are slower, or come and go | machines are equal and the network is fast |
# | a table is too large for one machine | the model fits on each device |
# | a step needs few rows, so little travels | each step needs all weights |
# | a little staleness is harmless | runs must be repeatable, or equal to a single device |
#
# They're worth their price if your model is mostly one enormous table, such as a row of weights for
# each of a hundred million products. A `variable_partitioner` cuts such a table into
# [shards](../docs/glossary.md#shard), which the servers share, and a step fetches only the rows
# that it needs.
#
# > **Takeaway.** Choose parameter servers for huge tables and for machines that come and go. For
# > everything else, let the workers wait for each other.
#
# <details><summary>Fine print</summary>
#
# In `fit` the coordinator reads the data and sends the batches, so its network is the limit.
# Keras's own `fit` raises an error under this strategy. A partitioner cuts a raw `tf.Variable`,
# which you read with `tf.nn.embedding_lookup`, but [no layer of Keras
# 3](../docs/pitfalls.md#a-layer-that-is-cut-into-shards-no-attribute-handle); a Keras `Embedding`
# runs uncut and fetches its whole table in each step. In a loop of your own, don't trust
# `optimizer.iterations`, because two workers can [lose a
# count](../docs/pitfalls.md#fewer-iterations-than-steps) between them.
#
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch has no such strategy, but `torch.distributed.rpc` lets you build one. Its library TorchRec
# divides large tables over the workers and trains synchronously, and in JAX such a table is a
# sharded array. In both, a lost worker usually stops the job, and a supervisor such as `torchrun`
# restarts it from a checkpoint.
#
# </details>
#
# ## Check yourself
#
# <details><summary>1. Eight workers are equally fast. Which staleness do you expect, and what
# follows for your learning rate?</summary>
#
# About 7, because each of the other seven writes about once while one computes. A rate that was
# fine for a single worker is probably too large.
#
# </details>
#
# <details><summary>2. You scheduled 1,000 steps and joined, and a counter on the server says 1,002.
# Is that a bug in <code>schedule</code>?</summary>
#
# No, it promises each step at least once, and two steps were done again. The bug is in your
# counter: count what comes back to the coordinator.
#
# </details>
#
# <details><summary>3. The mean staleness of your run is 2. Can you be sure that it does no
# harm?</summary>
#
# You can't, since a single gradient may have missed dozens of updates. Look at the largest
# staleness.
#
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/10_parameter_server.ipynb): write a loop that keeps a few steps in
#   flight, and a sum that survives a killed worker.
# - [Lesson 11](11_fault_tolerance.ipynb): checkpoints, and training that resumes.
# - [TensorFlow's
#   tutorial](https://www.tensorflow.org/tutorials/distribute/parameter_server_training) is the
#   primary source, but it stops on Keras 3, because it uses `optimizers.legacy`.
