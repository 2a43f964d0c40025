# %% [markdown]
# # Parameter servers: training that waits for nobody
#
# ## Overview
#
# After this lesson you can
#
# - say who does what: a coordinator, workers, parameter servers,
# - send steps to workers, and say what is known of them and when,
# - measure how stale a gradient is, and say what one slow worker does to it,
# - lose a worker in the middle of a step, train on, and count right all the same,
# - train a model in this way, share out a variable that is too large for one machine, and evaluate
#   meanwhile,
# - say what parameter servers are for, and what they are not for.
#
# It takes about 35 minutes. You need lesson 09 (several processes). No GPU, no download. It starts
# up to five processes on this machine, which works on Linux and macOS; on Windows use WSL2.
#
# **What it adds.** The workers of lesson 09 took each step together: one that is slow makes all
# slow, and one that dies stops all. Now a program of its own, the coordinator, hands out steps, and
# whoever is free takes the next one:
#
# ```diff
# - strategy = tf.distribute.MultiWorkerMirroredStrategy()
# + strategy = tf.distribute.ParameterServerStrategy(resolver)
# + coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
#
# - step(next(batches))                              # all workers, together
# + coordinator.schedule(step, args=(batches,))      # one of them, some time
# ```
#
# **Do you remember?**
#
# <details><summary>Lesson 09: one worker dies in the middle of an epoch. What do the others do?
# </summary>
# They stop, with an error or for ever: their next collective needs it. Today there are no
# collectives.
# </details>
#
# <details><summary>Lesson 07: a step whose gradient is not finite is left out. Why does that not
# spoil the training?</summary>
# One step among thousands changes little. Today we shall say the same of a step that is done twice.
# </details>

# %%
# %load_ext distlab
import distlab as dl

dl.split_devices(1)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# (If that says *TensorFlow is already running*: restart the kernel and run from the top.)

# %% [markdown]
# ## Three kinds of tasks

# %%
cluster = dl.LocalCluster(workers=2, parameter_servers=2)
dl.show("tasks", list(cluster.tasks))

# %% [markdown]
# (Whoever reaches such a server can run code there: lesson 09 said what to do about it.)
#
# | task | has | does |
# |---|---|---|
# | `chief` | your program | hands out steps: it is the **coordinator** |
# | `worker` | the data | takes a step when it is told to: reads weights, computes, writes |
# | `ps` | the variables | lets itself be read and written: a **parameter server** |
#
# In lesson 09 your script ran on every worker. Here it runs **once**, on the coordinator. Workers
# and servers run nothing of yours: each starts a TensorFlow server, and waits to be told.
# (`dl.LocalCluster` has done that. In a script it is `tf.distribute.Server(...)`.)
#
# So in this lesson almost every cell begins with `%%workers chief`: it runs on the coordinator. As
# before, TF_CONFIG tells who is who, and a *resolver* reads it.

# %%
# %%workers chief
import tensorflow as tf

import distlab as dl

tf.get_logger().setLevel("CRITICAL")  # of a lost worker TensorFlow tells at length
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
big = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=4096, max_shards=2)
strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=big)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

# %% [markdown]
# (What `big` is for comes later.)
#
# **Predict:** there are two workers. What is `num_replicas_in_sync`?

# %%
# %%workers chief
dl.show("replicas in sync", strategy.num_replicas_in_sync)

# %% [markdown]
# One. No two workers ever take a step together. So there is nothing to divide a loss by, and no
# global batch: each step is the step of one worker, with a batch of its own.
#
# Where are the variables?


# %%
# %%workers chief
def place(variable):
    spec = tf.DeviceSpec.from_string(variable.device)
    return f"{spec.job}:{spec.task}"


with strategy.scope():
    variables = [tf.Variable(float(n)) for n in range(4)]
dl.show("variables on", [place(variable) for variable in variables])

# %% [markdown]
# In turn on each of the servers, and **each once**. In lesson 09 every worker had a copy of all.
# Here a worker has none: it fetches what it needs, in every step.
#
# ## Send a step
#
# A step is a `tf.function`. This one waits until we open a gate, and then counts itself. (A gate
# makes certain what otherwise depends on who is faster.)

# %%
# %%workers chief
with strategy.scope():
    count, gate = tf.Variable(0), tf.Variable(0)


@tf.function
def counting_step():
    opened = gate.read_value()
    while opened < 1:
        opened = gate.read_value()
    return count.assign_add(opened)


# %% [markdown]
# `schedule` puts a step into a queue. **Predict:** after this loop, how many of the six steps are
# done?

# %%
# %%workers chief
for _ in range(6):
    coordinator.schedule(counting_step)
dl.show("counted", count)
dl.show("all done", coordinator.done())

# %% [markdown]
# None: the gate is closed, and yet the cell is done. `schedule` waits for nothing. So what you read
# right after a loop is not what the loop did. `join` waits until all that was sent is done:

# %%
# %%workers chief
gate.assign(1)
coordinator.join()
dl.show("counted", count, expected=6)

# %% [markdown]
# ### First mistake: fetch every step
#
# `schedule` returns a promise of what the step will return. Its `fetch()` waits for it. So why not
# look at every step's loss, as always? Here each step tells how many workers are in a step at once
# with it. Each takes a while, so that another one has time to come.

# %%
# %%workers chief
with strategy.scope():
    inside = tf.Variable(0)


@tf.function
def workers_at_once():
    inside.assign_add(1)
    most = inside.read_value()
    for _ in tf.range(100):
        if most < 2:
            most = inside.read_value()
    inside.assign_sub(1)
    return most


# %% [markdown]
# **Predict** both lines:

# %%
# %%workers chief
fetched = [coordinator.schedule(workers_at_once).fetch() for _ in range(3)]
dl.show("fetched one by one", max(fetched))

promised = [coordinator.schedule(workers_at_once) for _ in range(6)]
coordinator.join()
dl.show("fetched after join", max(coordinator.fetch(promised)))

# %% [markdown]
# Who fetches every step sends the second one when the first is done: one worker works, the other
# one never does. Send many steps, join, and then fetch. A loss that you see some steps late is as
# good.

# %% [markdown]
# ## Stale gradients
#
# Nobody waits for anybody. This has a price. A worker reads the weights, and computes; meanwhile
# others write theirs. Its gradient is right for weights that are no more. How many updates came in
# between is the **staleness** of its step.
#
# To see it we take the smallest model there is: one weight `w`, the loss `w²/2`, so the gradient is
# `w` itself and the best weight is 0. And, so that it is the same each time, we say who comes when:
# a clock counts all that is read and written, and a step waits for its turns.


# %%
# %%workers chief
with strategy.scope():
    w, updates, clock = tf.Variable(1.0), tf.Variable(0), tf.Variable(0)


def wait(turn):
    now = clock.read_value()
    while now < turn:
        now = clock.read_value()
    return now


# %% [markdown]
# The rest is any step: read, compute, write. It notes how many updates there were when it reads,
# and again when it writes. (TensorFlow keeps the order of operations on one variable only; where we
# want more, `control_dependencies` says what comes first.)


# %%
# %%workers chief
@tf.function
def step(reads, writes, rate):
    turn = wait(reads)
    with tf.control_dependencies([turn]):
        gradient, seen = w.read_value(), updates.read_value()
    with tf.control_dependencies([gradient, seen]):
        clock.assign_add(1)
    turn = wait(writes)
    with tf.control_dependencies([turn]):
        weight = w.assign_sub(rate * gradient).read_value()
        stale = updates.assign_add(1).read_value() - 1 - seen
    with tf.control_dependencies([weight, stale]):
        clock.assign_add(1)
    return stale, weight


# %% [markdown]
# A training sends such steps, each with two turns: when it reads, and when it writes.


# %%
# %%workers chief
def train(turns, rate):
    w.assign(1.0), updates.assign(0), clock.assign(0)
    numbers = [(tf.constant(r), tf.constant(w), tf.constant(rate)) for r, w in turns]
    steps = [coordinator.schedule(step, args=each) for each in numbers]
    coordinator.join()
    return [(*turn, *each) for turn, each in zip(turns, coordinator.fetch(steps), strict=True)]


def tell(steps):
    dl.show("stale", [stale for _, _, stale, _ in steps])
    dl.show("weight", [weight for *_, weight in steps])


# %% [markdown]
# First a worker that is alone: it reads, it writes, it reads again. The rate is 1.5, which is bold,
# but each step halves the distance.

# %%
# %%workers chief
alone = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13), (14, 15)]
tell(train(alone, 1.5))

# %% [markdown]
# Now two that are equally fast: while one computes, the other one writes. **Predict:** how stale is
# each step? And does the weight still come to 0, with the same rate?

# %%
# %%workers chief
two = [(0, 2), (1, 4), (3, 6), (5, 8), (7, 10), (9, 12), (11, 14), (13, 15)]
tell(train(two, 1.5))

# %% [markdown]
# One update is always in between, and the training that was fine with one worker runs away with
# two. Staleness makes a rate too large that was not. With less of it all is well:

# %%
# %%workers chief
tell(train(two, 0.5))

# %% [markdown]
# ### One slow worker
#
# Now the case for which this was made: one worker needs seven times as long. In lesson 09 the other
# one would wait, and be as slow. Here it goes on. **Predict:** which staleness do you see, and how
# often?

# %%
# %%workers chief
from distlab.pictures.staleness import draw_staleness

slow = [(0, 15), *((turn, turn + 1) for turn in range(1, 15, 2))]
slow += [(reads + 16, writes + 16) for reads, writes in slow]
trained = {"two, equally fast": train(two, 1.5), "one of two is slow": train(slow, 1.5)}
draw_staleness({"one worker": train(alone, 1.5), **trained})

# %% [markdown]
# Above are the steps, from reading to writing, each with its staleness. In the middle, how often
# each staleness occurs: **this is what to look at in a training of your own.** Two equal workers
# give a bar at 1. With one that is slow nearly all steps are fresh, and a few are very stale. One
# of those takes the weight back to where it was long before: its gradient is from there.
#
# What helps: a smaller rate, a limit on how much is under way, dropping what is too stale, and
# above all workers that are equally fast. What is measured is the staleness **when a step is
# written**. How many steps were in the queue when it was sent says nothing: a worker reads the
# weights when it begins.

# %% [markdown]
# ## A worker dies
#
# Each of these two steps counts itself and then waits. So both workers have one, and both have
# counted:


# %%
# %%workers chief
@tf.function
def step_that_waits():
    count.assign_add(1)
    while gate < 1:
        pass


count.assign(0), gate.assign(0)
for _ in range(2):
    coordinator.schedule(step_that_waits)
while count < 2:
    pass
dl.show("counted", count)

# %% [markdown]
# Now one of them is killed, in the middle of its step. Then the gate opens.
#
# **Predict:** does `join` fail, or wait for ever, or return? What is the count?

# %%
cluster.kill("worker:1")

# %%
# %%workers chief --timeout 60
gate.assign(1)
coordinator.join()
dl.show("counted", count)

# %% [markdown]
# It returns. What worker 1 had under way went back into the queue, and worker 0 did it. Nothing is
# lost. But two steps were sent, and **three** were counted: the dead worker had counted before it
# died. `schedule` promises that a step is done **at least once**. It does not promise once.
#
# For an update of weights this is harmless: one small step twice. For a count it is wrong. Two
# cures:
#
# - count what comes back to the coordinator: each promise is kept once,
# - let a step **set** something rather than add: to set it twice is to set it once.


# %%
# %%workers chief
with strategy.scope():
    done = tf.Variable(tf.zeros([4], tf.int32))


@tf.function
def marking_step(number):
    done.scatter_nd_update([[number]], [1])


for number in [0, 1, 2, 3, 3]:  # the last one is done twice
    coordinator.schedule(marking_step, args=(tf.constant(number),))
coordinator.join()
dl.show("steps done", tf.reduce_sum(done), expected=4)

# %% [markdown]
# The worker comes back, and takes part as if nothing had been. Each of these steps waits until two
# workers are inside, so that the cell could not end without it:

# %%
cluster.restart("worker:1")


# %%
# %%workers chief --timeout 60
@tf.function
def step_for_two():
    inside.assign_add(1)
    while inside < 2:
        pass


for _ in range(2):
    coordinator.schedule(step_for_two)
coordinator.join()
dl.show("workers inside", inside)

# %% [markdown]
# A **parameter server** that dies is another matter: with it the variables are gone, and nobody has
# a copy. Then all tasks start again, from a checkpoint. That is lesson 11.

# %% [markdown]
# ## A variable in shards
#
# Parameter servers are at home where a model is mostly one enormous table: an embedding of a
# hundred million products. No single machine holds it. So a variable may be shared out over the
# servers, and a *partitioner* says which and how. Ours was `big`: a shard for every 4096 bytes, two
# at most.


# %%
# %%workers chief
def shards(variable):
    return [(part.shape[0], place(part)) for part in getattr(variable, "variables", [variable])]


with strategy.scope():
    table = tf.Variable(tf.zeros([1001, 4]))
    small = tf.Variable(tf.zeros([9, 4]))
print("1001 rows of 16 bytes:", *shards(table))
print("9 rows of 16 bytes:   ", *shards(small))

# %% [markdown]
# The large one is on both servers, the small one is whole. `FixedShardsPartitioner` does not ask
# for a size. It cuts all:

# %%
# %%workers chief
fixed = tf.distribute.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
for rows in (1001, 9):
    shape = tf.TensorShape([rows, 4])
    shards_of = {"min size": big(shape, tf.float32)[0], "fixed": fixed(shape, tf.float32)[0]}
    dl.show(f"{rows} rows, shards", shards_of)

# %% [markdown]
# A step that needs a few rows looks them up, and only those are sent, from whichever server has
# them. The gradient comes back for each shard:


# %%
# %%workers chief
@tf.function
def lookup_step(ids):
    with tf.GradientTape() as tape:
        rows = tf.nn.embedding_lookup(table, ids)
        loss = tf.reduce_sum(tf.square(rows - 1.0))
    gradients = tape.gradient(loss, table.variables)
    for part, gradient in zip(table.variables, gradients, strict=True):
        part.scatter_nd_sub(gradient.indices[:, None], 0.5 * gradient.values)


coordinator.schedule(lookup_step, args=(tf.constant([2, 500, 1000]),))
coordinator.join()
learned = tf.concat(table.variables, axis=0)
dl.show("rows that have learned", tf.where(learned[:, 0] == 1.0)[:, 0])

# %% [markdown]
# These are raw variables. **Predict:** does that also work with a layer of Keras 3 whose weights
# are large enough for shards?


# %%
# %%workers chief
import keras

with strategy.scope():
    layer = keras.layers.Dense(400)
    layer.build((None, 8))


@tf.function
def keras_step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones((1, 8))))
    return tape.gradient(loss, layer.trainable_variables)


try:
    coordinator.schedule(keras_step)
except AttributeError as problem:
    print(str(problem).strip().splitlines()[-1].strip())

# %% [markdown]
# It can be made, and not trained. Leave the partitioner out for a Keras model: its variables then
# lie whole, in turn, on the servers.

# %%
cluster.close()

# %% [markdown]
# ## A model
#
# Now the digits: 325 of them, one layer, and `fit` on one device, in this notebook, as our measure.

# %%
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

(digits,) = dl.load_dataset("digits", splits=["train[:325]"], batch_size=325)
images, labels = next(digits.as_numpy_iterator())


def batches():
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(20)


# %%
def build():
    dl.set_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss=loss, metrics=["accuracy"])
    return model


one = build()
logs_of_one = one.fit(batches(), shuffle=False, epochs=2, verbose=0).history
steps_of_one = int(one.optimizer.iterations)
dl.show("steps of one device", steps_of_one)

# %% [markdown]
# ### The loop
#
# The function below runs on the coordinator; `cluster.run` sends it there, as in lesson 09. Model
# and optimizer are made in the scope, and the optimizer is built there too: its variables belong on
# the servers.
#
# The step takes an **iterator**. Each worker has a data set of its own, made there by a function:
# the coordinator reads no example. (Our few digits travel with that function, once. Files are
# opened by the worker.)


# %%
def coordinator_here():
    import __main__  # a process has one coordinator

    if not hasattr(__main__, "coordinator"):
        tf.get_logger().setLevel("CRITICAL")
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        __main__.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    return __main__.coordinator


# %%
def train(steps, make_data):
    coordinator = coordinator_here()
    strategy = coordinator.strategy
    with strategy.scope():
        model, taken = build(), tf.Variable(0)
        model.optimizer.build(model.trainable_variables)
    tf.random.set_seed(None)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        taken.assign_add(1)
        return loss

    step = tf.function(lambda data: strategy.run(replica_step, args=next(data)), autograph=False)
    data = iter(coordinator.create_per_worker_dataset(make_data))
    losses = [coordinator.schedule(step, args=(data,)) for _ in range(steps)]
    coordinator.join()
    losses = coordinator.fetch(losses)
    return {"losses": losses, "steps": int(taken), "weights": model.get_weights()}


# %% [markdown]
# **One** worker first. Nobody is beside it, so nothing is stale. **Predict:** has it the weights of
# one device?


# %%
def apart(weights):
    pairs = zip(weights, one.get_weights(), strict=True)
    return max(np.abs(ours - theirs).max() for ours, theirs in pairs)


cluster = dl.LocalCluster(workers=1, parameter_servers=1)
(alone,) = cluster.run(train, steps_of_one, lambda: batches().repeat(), tasks="chief")
dl.show("steps", alone["steps"], expected=steps_of_one)
dl.show("weights apart from one device's by", apart(alone["weights"]), below=1e-6)

# %% [markdown]
# It has. (`repeat`: a worker's data set must not end before the steps do. What an epoch is, the
# coordinator says: a number of steps.)
#
# ### Second mistake: the data of the coordinator
#
# The data set above is made by a function, on each worker. **Predict:** what if the function hands
# out one that the coordinator has made already?


# %%
def with_data_from_here():
    made_here = batches().repeat()
    return train(3, lambda: made_here)


try:
    cluster.run(with_data_from_here, tasks="chief")
except Exception as problem:
    dl.show("it cannot be sent", "Unable to parse tensor proto" in str(problem))

# %% [markdown]
# *Unable to parse tensor proto*: a data set lies in the memory of the process that made it, and
# what arrives at the worker is a handle to nothing. Make it **inside** the function.
#
# (A loop that reads batches on the coordinator and sends each as an argument would run. Then all
# examples go through one process, and that one is soon the slowest.)
#
# ### The same with fit
#
# Keras's own `fit` stops under this strategy. Of a model from `dl.distribute` it runs: it sends
# steps ahead, never fetches one by one, and makes the data sets on the workers.


# %%
def fit():
    model = dl.distribute(build, coordinator_here().strategy)
    logs = model.fit(batches(), shuffle=False, epochs=2, verbose=0).history
    return {"weights": model.get_weights(), "logs": logs}


(fitted,) = cluster.run(fit, tasks="chief")
dl.show("weights apart from one device's by", apart(fitted["weights"]), below=1e-6)
for name, values in fitted["logs"].items():
    dl.show(name, values, expected=logs_of_one[name])

# %% [markdown]
# In a script it is `dl.make_strategy("parameter_server")`, which reads TF_CONFIG and makes workers
# and servers wait for the coordinator, and `distlab launch --workers 2 --ps 1 train.py`.

# %%
cluster.close()

# %% [markdown]
# ## Two workers
#
# With two, no two runs have the same weights: who comes first differs. What holds?
#
# - every step that was sent is done,
# - the loss ends low, if the rate bears a staleness of about 1.
#
# (The loop counts its steps by `assign_add`, one operation on the server. The optimizer's own
# `iterations` may end below: Keras reads it, adds one and writes it, and of two workers that do so
# at once one is not counted. That too is staleness. `dl.distribute` mends it.)
#
# And the data? In lesson 09 a shuffle without a seed lost examples, for the workers shared each
# batch. Here **every worker reads everything**, by itself. We ask both for their first batch. (Each
# of the two steps waits for the other one, so that they are on two workers.)


# %%
def first_batches(seed):
    coordinator = coordinator_here()
    tf.random.set_seed(seed)
    with coordinator.strategy.scope():
        inside = tf.Variable(0)

    @tf.function
    def look(data):
        inside.assign_add(1)
        while inside < 2:
            pass
        return next(data)

    def make_data():
        return tf.data.Dataset.range(325).shuffle(325).batch(20)

    data = iter(coordinator.create_per_worker_dataset(make_data))
    looks = [coordinator.schedule(look, args=(data,)) for _ in range(2)]
    coordinator.join()
    return coordinator.fetch(looks)


# %% [markdown]
# **Predict:** without a seed, do both workers begin with the same examples? And after
# `tf.random.set_seed(1)`?

# %%
cluster = dl.LocalCluster(workers=2, parameter_servers=1, evaluator=True)

for seed in (None, 1):
    ((first, second),) = cluster.run(first_batches, seed, tasks="chief")
    dl.show(f"seed {seed}, the same batch", np.array_equal(first, second))

# %% [markdown]
# Without a seed each worker has an order of its own, and that is what you want here. With one, both
# learn from the same examples at the same time, half a step apart. So: **shuffle, and no seed.**
# (`build` sets one, for equal first weights; so `train` above takes it back.)


# %%
def shuffled():
    return batches().unbatch().shuffle(325).batch(20).repeat()


(both,) = cluster.run(train, 120, shuffled, tasks="chief")
dl.show("steps", both["steps"], expected=120)
dl.show("the first loss is above 1.5", bool(both["losses"][0] > 1.5))
dl.show("mean loss of the last 20", np.mean(both["losses"][-20:]), below=0.8)

one = build()
losses = one.fit(shuffled(), steps_per_epoch=20, epochs=6, shuffle=False, verbose=0).history["loss"]
dl.show("of one device", losses[-1], below=0.8)

# %% [markdown]
# As low as one device, after equally many steps, and each worker took about half of them.
#
# Now with a worker less. Training goes on; when it is back, it is given its data set anew.

# %%
cluster.kill("worker:1")
(left,) = cluster.run(train, 120, shuffled, tasks="chief")
dl.show("steps with a dead worker", left["steps"], expected=120)

cluster.restart("worker:1")
(back,) = cluster.run(train, 120, shuffled, tasks="chief")
dl.show("steps when it is back", back["steps"], expected=120)

# %% [markdown]
# (No worker was killed inside a step here. Else it could be 121: at least once.)
#
# ## Evaluation: inline or beside
#
# - **Inline**: join, evaluate, train on. `model.evaluate` does it; training stands still meanwhile,
#   so what is evaluated is well defined.
# - **Beside**, by a *side-car*: the training writes checkpoints, and another task, the `evaluator`,
#   evaluates each one as it comes. Training never waits.
#
# The evaluator is in TF_CONFIG, but not in the cluster: nobody sends it steps. All it shares with
# the training is a folder.

# %%
from distlab.training.side_car import evaluate_checkpoints

until_the_end = tempfile.TemporaryDirectory()  # removed with the kernel
folder = str(Path(until_the_end.name, "checkpoints"))


def train_and_evaluate():
    task = tf.distribute.cluster_resolver.TFConfigClusterResolver().task_type
    if task == "evaluator":
        found = evaluate_checkpoints(build, batches(), folder=folder, verbose=False)
        return [(one.epoch, one.logs["loss"]) for one in found]
    model = dl.distribute(build, coordinator_here().strategy)
    model.fit(batches(), shuffle=False, epochs=4, verbose=0, callbacks=[dl.Resume(folder, keep=9)])
    return model.evaluate(batches(), verbose=0, return_dict=True)["loss"]


inline, beside = cluster.run(train_and_evaluate, tasks=["chief", "evaluator"], timeout_secs=60)

# %%
epochs, losses = zip(*beside, strict=True)
dl.show("epochs evaluated beside", epochs)
dl.show("the loss falls", bool(losses[-1] < losses[0]))
dl.show("inline and beside, at the end, apart by", abs(inline - losses[-1]), below=1e-5)

# %%
cluster.close()

# %% [markdown]
# ## What it is for, and what not
#
# Often one reads that parameter servers are a slower `MirroredStrategy`. They are not the same
# thing made worse, they answer another question.
#
# | for | not for |
# |---|---|
# | many machines, some slow, some taken away at any time | one machine with some GPUs: lesson 01 |
# | tables too large for one machine | equal machines, a fast network: lesson 09 |
# | few weights needed in a step, so little travels | large dense models: all weights travel |
# | a bit of staleness is harmless | two runs must be equal, or equal one device |
#
# In TensorFlow 1 they could also wait for each other. In TensorFlow 2 `ParameterServerStrategy` is
# always asynchronous.
#
# ## Check yourself
#
# <details><summary>1. Four workers, equally fast. Which staleness do you expect?</summary>
# About 3: while one computes, each of the others writes once.
# </details>
#
# <details><summary>2. A loop of <code>loss = coordinator.schedule(step, ...).fetch()</code> is no
# faster with eight workers than with one. Why?</summary>
# It sends a step when the one before is done. One worker works at a time.
# </details>
#
# <details><summary>3. 1000 steps were scheduled and joined. The counter on the server says 1002. Is
# that a bug?</summary>
# No: workers were lost in a step, and their steps were done again. At least once. Count what came
# back, or mark steps instead of counting them.
# </details>
#
# <details><summary>4. A worker dies, a parameter server dies. Which one does the training survive?
# </summary>
# The worker. The server takes variables with it that nobody else has.
# </details>
#
# <details><summary>5. Your data set is shuffled without a seed. In lesson 09 that lost examples.
# Here?</summary>
# It is what you want. Every worker reads all examples by itself, each in another order.
# </details>
#
# ## Next steps
#
# - [The exercise](../exercises/10_parameter_server.ipynb): a coordinator's loop, staleness from a
#   log, a variable in shards, and a count that survives a kill.
# - [Lesson 11](11_fault_tolerance.ipynb): when the parameter server dies, or all do.
# - [Lesson 09](09_multi_worker.ipynb): the same workers, in step.
# - [Lesson 16](16_choosing_a_strategy.ipynb): which strategy for which case.
