# %% [markdown]
# # Many workers: from one process to several
#
# ## Overview
#
# After this lesson you can
#
# - say what each process of a cluster must be told, and write it: TF_CONFIG,
# - start two real workers from a cell, and talk to them,
# - say which worker reads which example, and see when some are read by nobody,
# - write a training loop for several workers that takes exactly the steps of one device,
# - find out who waits for whom when nothing moves any more.
#
# It takes about 30 minutes. You need lesson 03 (the training loop) and lesson 08 (who saves). No
# GPU, no download. It starts two processes on this machine, which works on Linux and macOS; on
# Windows use WSL2.
#
# **What it adds.** Until now all replicas lived in one process. Now each has a process of its own,
# which could as well stand on another machine. The script stays almost the same:
#
# ```diff
# - strategy = tf.distribute.MirroredStrategy()
# + strategy = tf.distribute.MultiWorkerMirroredStrategy()
# ```
#
# and is started once for each worker. This lesson is about all that is not in this line.
#
# **Do you remember?**
#
# <details><summary>Lesson 08: two workers, and only the chief saves. When does that hang?</summary>
# When a variable is saved that all workers must be asked for, such as a counter of examples. The
# chief asks, and nobody is there to answer. Today this comes back as a rule.
# </details>
#
# <details><summary>Lesson 06: a data set is shuffled without a seed. What does that cost you?
# </summary>
# Another order in each run. Today it costs you examples.
# </details>

# %%
# %load_ext distlab
import distlab as dl

dl.split_devices(1)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# (If that says *TensorFlow is already running*: restart the kernel and run from the top. The first
# line begins to prepare worker processes, in the background.)

# %% [markdown]
# ## Two processes
#
# `dl.LocalCluster` starts two workers. Each is a Python of its own, with TensorFlow and memory of
# its own, and a number of the operating system. They end when this notebook does.

# %%
cluster = dl.LocalCluster(workers=2)
dl.show("tasks", list(cluster.tasks))

# %% [markdown]
# The line above is meant: the last section comes back to it.
#
# A cell that begins with `%%workers` does not run here. It runs there, on both workers at once, and
# what each one prints stands under its name. With a task's name it runs on that one only:

# %%
# %%workers worker:1
secret = 42

# %% [markdown]
# **Predict:** which worker knows the secret?

# %%
# %%workers
print("secret" in globals())

# %% [markdown]
# In lesson 01 the replicas shared a process, and Python code saw all of them. Nobody here sees
# anything of the other. Whatever they have in common, they must send each other.

# %% [markdown]
# ## Who is who: TF_CONFIG
#
# To send something, a worker must know where the others are, and which of them it is itself. It is
# told by an environment variable, TF_CONFIG, before its strategy is made. The cluster has set it.
# (Ports differ from run to run, so we hide them.)

# %%
import json
import re

for task in cluster.tasks:
    print(re.sub(r":\d{5}", ":PORT", json.dumps(cluster.tf_config(task))))

# %% [markdown]
# Two parts:
#
# - `cluster` lists the address of every task, itself included. It is **the same text everywhere**,
#   in the same order.
# - `task` says who I am: an index into that list. It is **the only thing that differs**.

# %%
first, second = (cluster.tf_config(task) for task in cluster.tasks)
dl.show("the same cluster", first["cluster"] == second["cluster"])
dl.show("their indexes", [config["task"]["index"] for config in (first, second)])

# %% [markdown]
# Worker 0 is the **chief**: it does what must be done once, such as writing files. (A cluster may
# also have a task of the type `chief`. Then that is the chief, and there is one worker more.)
#
# Nobody starts the other workers for you. Set the first TF_CONFIG in a notebook, make the strategy,
# and it waits for a worker that does not exist: for **an hour**, without a word.
# (`dl.make_strategy("multi_worker")` waits five minutes, and names who is missing.)

# %% [markdown]
# ## The first all-reduce
#
# Each worker makes its strategy, once, at its start. That is when they look for each other.

# %%
# %%workers
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
print("I am worker", me, "of", strategy.num_replicas_in_sync)

# %% [markdown]
# Worker 0 has 10, worker 1 has 20, and both ask for the sum. **Predict:** what does each print?

# %%
# %%workers
mine = tf.constant(10 * (me + 1))
print(mine.numpy(), "->", strategy.reduce("SUM", mine, axis=None).numpy())

# %% [markdown]
# Both have the sum. No worker collects for the others: each sends and receives, and all end with
# the same. Such an operation is called a **collective**. Remember one thing about it: it ends for
# nobody before it has begun for all.
#
# ## The same variables
#
# Each worker draws three random numbers, without a seed, and makes a variable of them in the scope.
# How can a worker find out if it has what all have? By a collective: if the mean over all workers
# is its own value.

# %%
# %%workers
drawn = tf.random.normal([3])
with strategy.scope():
    variable = tf.Variable(drawn)


def all_have(value):
    mean = strategy.reduce("MEAN", value, axis=None)
    return bool(tf.reduce_all(tf.abs(mean - value) < 1e-6))


# %% [markdown]
# **Predict:** the numbers drawn, and the variables: which of them are the same on both workers?

# %%
# %%workers
print("numbers drawn:", all_have(drawn))
print("variables:    ", all_have(variable.read_value()))

# %% [markdown]
# A variable that is made in the scope gets the chief's first value, on all workers. So you need no
# seed for equal weights.
#
# ## Who reads what
#
# From here on this notebook needs TensorFlow itself: the digits, and later one device to compare
# with.

# %%
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from distlab.pictures.workers import draw_readers

(digits,) = dl.load_dataset("digits", splits=["train[:325]"], batch_size=325)
images, labels = next(digits.as_numpy_iterator())
until_the_end = tempfile.TemporaryDirectory()  # removed with the kernel
folder = Path(until_the_end.name)

# %% [markdown]
# To bring results back into this notebook, `cluster.run` calls a function of ours on every worker,
# and returns one result for each. The function travels with its code; the names of a worker's
# cells stay there. So a function that needs the strategy asks for it:


# %%
def strategy_here():
    import __main__  # where a worker's cells keep their names

    if not hasattr(__main__, "strategy"):  # a process that was started anew
        __main__.strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return __main__.strategy


def replicas():
    return strategy_here().num_replicas_in_sync


dl.show("replicas", cluster.run(replicas))

# %% [markdown]
# 32 digits lie in four files, 8 in each. In place of pictures our files hold their numbers, so that
# we can follow each one.

# %%
files = [str(folder / f"part-{number}.txt") for number in range(4)]
for number, file in enumerate(files):
    Path(file).write_text("\n".join(str(8 * number + place) for place in range(8)))

# %% [markdown]
# Both workers open this data set, in batches of 8: the global batch. Distributing it gives each
# worker its part, and `auto_shard_policy` says how. We ask for two of the policies.


# %%
def what_it_reads(policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    lines = tf.data.TextLineDataset(files).batch(8).with_options(options)
    return local_batches(lines.map(lambda line: tf.strings.to_number(line, tf.int32)))


def local_batches(data):
    strategy = strategy_here()
    batches = strategy.experimental_distribute_dataset(data)
    return [strategy.experimental_local_results(batch)[0] for batch in batches]


# %% [markdown]
# `AUTO` is what you get when you say nothing. **Predict:** which digits are in its first global
# batch?

# %%
read = {policy: cluster.run(what_it_reads, policy) for policy in ("AUTO", "DATA")}
draw_readers(images[:32], read)

# %% [markdown]
# - `AUTO` sees files and shares out *files*: each worker opens its own two. That is cheap. But the
#   first global batch is not digits 0 to 7, as on one device: it is the first four of two files.
# - `DATA` lets both read everything, and each keeps its part of every batch. It costs more reading,
#   and the global batches are those of one device.
#
# Data in memory has no files, so there `AUTO` means `DATA`. `dl.distribute` takes `DATA` unless you
# say otherwise.
#
# ## A shuffle that loses examples
#
# Now with a shuffle before the batches. Each worker shuffles the whole data set, and keeps its part
# of what *it* shuffled. Without a seed each draws one by itself. (Here we draw it for them, so that
# the picture is the same each time.)


# %%
def what_it_reads_shuffled(seed):
    if seed is None:
        seed = 100 + strategy_here().cluster_resolver.task_id
    return local_batches(tf.data.Dataset.range(32).shuffle(32, seed=seed).batch(8))


# %% [markdown]
# **Predict:** `shuffle(32)`, without a seed. How many of the 32 digits does some worker read?

# %%
shuffled = {
    "shuffle(32)": cluster.run(what_it_reads_shuffled, None),
    "shuffle(32, seed=1)": cluster.run(what_it_reads_shuffled, 1),
}
draw_readers(images[:32], shuffled)

# %% [markdown]
# Two orders, and half of each: some digits are read twice, and some by nobody. No error says so,
# the loss looks well, and every epoch loses other examples. The cure is `seed=`: all workers
# shuffle alike. (TensorFlow mixes in the seed of `tf.random.set_seed`, so that must be the same
# everywhere too, or not be set at all.)

# %% [markdown]
# ## The loop
#
# Now we train: all 325 digits, in global batches of 20. The last batch has 5. As in lesson 03 the
# model is one layer, and plain `fit` on one device, in this notebook, is our measure.


# %%
GLOBAL_BATCH = 20


def batches(size):
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(size)


def build():
    dl.set_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss=loss, metrics=["accuracy"])
    return model


one = build()
logs_of_one = one.fit(batches(GLOBAL_BATCH), shuffle=False, verbose=0).history
dl.show("steps of one device", len(batches(GLOBAL_BATCH)))

# %% [markdown]
# (The seed is for the comparison: two processes and this notebook shall begin alike.)
#
# The loop for many workers is the loop of lesson 03, to the letter: a step for each replica, the
# optimizer adds up the gradients, and the loss is divided so that the sum is right. How it is
# divided is an argument once more. (`autograph=False`: the step has no Python `if` or `for` that
# would have to be translated.)

# %%
each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def train(batch_size, divided):
    strategy = strategy_here()
    with strategy.scope():
        model = build()

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = divided(each_loss(y, model(x, training=True)))
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    step = tf.function(lambda batch: strategy.run(replica_step, args=batch), autograph=False)
    distributed = strategy.experimental_distribute_dataset(batches(batch_size))
    for batch in distributed:
        step(batch)
    return {"weights": model.get_weights(), "steps": model.optimizer.iterations}


# %% [markdown]
# ### First mistake: a worker's batch for the global batch
#
# "Each worker shall take 10 examples, so I write `batch(10)`." **Predict:** how many steps is that?


# %%
def mean_of_means(losses):
    return tf.reduce_mean(losses) / 2  # two workers


def apart(weights):
    pairs = zip(weights, one.get_weights(), strict=True)
    return max(np.abs(ours - theirs).max() for ours, theirs in pairs)


per_worker, _ = cluster.run(train, 10, mean_of_means)
dl.show("steps", per_worker["steps"], expected=17)
dl.show("weights apart from one device's by", apart(per_worker["weights"]), below=1e-6)

# %% [markdown]
# What you distribute is batched by the **global** size, and each worker takes its share of it: 5 of
# 10. So this was a training with batches of 10. Nothing crashed.
#
# ### Second mistake: the mean of means
#
# With `batch(20)` each worker has 10 examples, and the mean of two means is the mean of all. Until
# the last batch: of its 5, one worker gets 3 and the other 2.

# %%
means, _ = cluster.run(train, GLOBAL_BATCH, mean_of_means)
dl.show("steps", means["steps"], expected=17)
dl.show("weights apart from one device's by", apart(means["weights"]), below=1e-6)

# %% [markdown]
# ### Right: count
#
# Add up, and divide by the number of examples that *all* workers have in this batch. Each counts
# its own, an all-reduce adds the counts.


# %%
def counted(losses):
    mine = tf.cast(tf.size(losses), tf.float32)
    count = tf.distribute.get_replica_context().all_reduce("SUM", mine)
    return tf.reduce_sum(losses) / count


right, other = cluster.run(train, GLOBAL_BATCH, counted)
dl.show("weights apart from one device's by", apart(right["weights"]), below=1e-6)
dl.show("those of worker:1 from one device's", apart(other["weights"]), below=1e-6)

# %% [markdown]
# Two processes, one device's steps. On two machines it would be the same.
#
# ### Why the steps are equally many
#
# A batch of 5 gives shares of 3 and 2. **Predict:** with 321 digits, what does worker 1 get in the
# last step? Does it take that step?


# %%
def shares(examples):
    batches = local_batches(tf.data.Dataset.range(examples).batch(GLOBAL_BATCH))
    return len(batches), len(batches[-1])


for examples in (325, 321):
    steps, last = zip(*cluster.run(shares, examples), strict=True)
    dl.show(f"{examples} digits", {"steps": steps, "in the last one": last})

# %% [markdown]
# It gets nothing, and takes the step all the same: a distributed data set sees to it that **all
# workers take equally many steps**. Share out the examples by your own hand, 161 here and 160
# there, in batches of 10: then one worker has a 17th step, and waits in its all-reduce for ever.
#
# ## The same with fit
#
# Keras's own `fit` crashes under this strategy. Of a model from `dl.distribute` it runs, with the
# counting loss and `DATA`, and a shuffle without a seed is an error instead of a loss of examples.


# %%
def fit_on_workers(path):
    model = dl.distribute(build, strategy_here())
    history = model.fit(batches(GLOBAL_BATCH), shuffle=False, verbose=0).history
    model.save(path)
    return {"weights": model.get_weights(), "logs": history}


fitted = cluster.run(fit_on_workers, folder / "model.keras")
dl.show("weights apart from one device's by", apart(fitted[0]["weights"]), below=1e-6)
dl.show("logs equal on both workers", fitted[0]["logs"] == fitted[1]["logs"])
for name, values in fitted[0]["logs"].items():
    dl.show(name, values, expected=logs_of_one[name])

# %% [markdown]
# Each worker saw half of the examples and logs the loss of *all*: logs are added up before anybody
# sees them. So a callback that stops at a loss stops on both.
#
# ## Save from many
#
# `model.save(path)` above was called by both workers, with the same path. Yet there is one file,
# and it is the model:

# %%
dl.show("files", [file.name for file in sorted(folder.glob("*model*"))])
loaded = keras.saving.load_model(folder / "model.keras")
dl.show("weights apart from one device's by", apart(loaded.get_weights()), below=1e-6)

# %% [markdown]
# `dl.distribute` did what lesson 08 asks of you by hand: the chief's file is kept, the other worker
# writes to a place of its own, which is removed. Why does it write at all? Look at a metric. Worker
# 0 counts 3 examples, worker 1 counts 4:


# %%
def count_examples():
    strategy = strategy_here()
    with strategy.scope():
        counter = keras.metrics.Sum()
    mine = 3.0 + strategy.cluster_resolver.task_id
    strategy.run(tf.function(lambda: counter.update_state(mine)))
    return {"counted": mine, "read": counter.result()}


for task, result in zip(cluster.tasks, cluster.run(count_examples), strict=True):
    dl.show(task, result)

# %% [markdown]
# Each keeps its own count, and **reading it is a collective**: 7, on both. To save such a variable
# is to read it. So all workers must take part in saving, and none may stop in front of it.
#
# ## A hang, diagnosed
#
# Here is that mistake in its purest form. At the end of an epoch the chief writes down the loss
# of all. The other worker waits until it is written.


# %%
def end_of_epoch(path, loss):
    strategy, path = strategy_here(), Path(path)
    if strategy.cluster_resolver.task_id == 0:
        mean = strategy.reduce("MEAN", loss, axis=None)
        path.write_text(str(float(mean)))
    while not path.exists():
        time.sleep(0.1)


# %% [markdown]
# Read it again. **Predict:** who waits, in which line?
#
# A function that runs on several workers should never be called without a time limit. When it is
# over, the workers are asked where they are:

# %%
from distlab.cluster.local.waiting import read_waits

try:
    cluster.run(end_of_epoch, folder / "loss.txt", 1.0, timeout_secs=5)
except TimeoutError as late:
    for wait in read_waits(late, cluster.tasks):
        print(wait)

# %% [markdown]
# There it is. The chief is inside a collective, to which worker 1 never comes: the line stands
# under `if`. Worker 1 waits for the chief's file. Each waits for the other. Without the limit this
# would go on until somebody stops it, with both processes looking busy.
#
# (`print(late)` tells every frame, and names a worker whose process is gone.)
#
# **The rule:** a collective stands where all workers pass. What is for the chief alone goes under
# `if`: writing, printing.


# %%
def end_of_epoch_for_all(path, loss):
    strategy, path = strategy_here(), Path(path)
    mean = strategy.reduce("MEAN", loss, axis=None)
    if strategy.cluster_resolver.task_id == 0:
        path.write_text(str(float(mean)))
    return mean


cluster.restart()  # a worker that waited for another one cannot be used again
dl.show("both have", cluster.run(end_of_epoch_for_all, folder / "loss.txt", 1.0, timeout_secs=30))

# %% [markdown]
# ### Worse than a hang
#
# A hang you notice. Now the chief adds up a loss, alone; then both add up a count, 1 and 2; then
# worker 1 adds up something else, alone. **Predict:** who hangs, and where?


# %%
def three_sums():
    strategy, answers = strategy_here(), {}
    me = strategy.cluster_resolver.task_id
    if me == 0:
        answers["loss"] = strategy.reduce("SUM", 100.0, axis=None)
    answers["count"] = strategy.reduce("SUM", me + 1.0, axis=None)
    if me == 1:
        answers["size"] = strategy.reduce("SUM", 1000.0, axis=None)
    return answers


for task, answers in zip(cluster.tasks, cluster.run(three_sums, timeout_secs=30), strict=True):
    dl.show(task, answers)

# %% [markdown]
# Nobody. And the count is 3 nowhere. **A collective has no name**: the first of one worker meets
# the first of the other, the second the second.
#
# | | first | second |
# |---|---|---|
# | worker:0 | loss 100 | count 1 |
# | worker:1 | count 2 | size 1000 |
# | both get | 102 | 1001 |
#
# The chief's loss was added to worker 1's count. No error, no warning, wrong numbers. So the rule
# is stricter than it looked: all workers come to the same collectives, **in the same order**.
#
# ## Who else may listen
#
# Now to the line that was printed when the cluster started. For its collectives each worker runs a
# server, and TensorFlow's server listens on **every network interface, without a password**,
# whatever address TF_CONFIG names. Whoever reaches the port can run code as you. So:
#
# - many workers belong in a network that you trust, behind a firewall; never on a public address,
# - on a shared machine use `dl.LocalCluster(workers=2, isolate=True)`: on Linux the workers then
#   have a network of their own, in which nobody else is.
#
# ## Take it along
#
# What you wrote here is a script. Whoever starts it sets TF_CONFIG:

# %%
script = """
import distlab as dl

strategy = dl.make_strategy("multi_worker")
total = strategy.reduce("SUM", 1.0, axis=None)
print("one of", int(total))
"""
Path(folder, "train.py").write_text(script)
dl.show("lines", len(script.splitlines()) - 1)

# %% [markdown]
# In a terminal you type `distlab launch --workers 2 train.py`. From here it takes a little more:

# %%
import os
import subprocess
import sys

from distlab.warm.keeper import shared_keeper

command = [sys.executable, "-m", "distlab.cli", "launch", "--workers", "2", "train.py"]
env = os.environ | {"DISTLAB_WARM_ADDRESS": shared_keeper().address}  # what we have warmed already
done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)

print(*sorted(line for line in done.stdout.splitlines() if "one of" in line), sep="\n")
dl.show("exit code", done.returncode)

# %% [markdown]
# Every line says which worker wrote it. On several machines somebody else starts the workers, and
# the script does not change:
#
# - **Slurm** (`srun`): `dl.make_strategy("multi_worker")` reads Slurm's variables,
# - **Kubernetes**: Kubeflow's TFJob sets TF_CONFIG in every pod,
# - **Ray Train**: `TensorflowTrainer` sets it on every worker.
#
# The page "Beyond one machine" of the documentation has an example of each, and says which to
# choose.

# %%
cluster.close()

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. Four workers. In what do their TF_CONFIGs differ?</summary>
# In the index of the task, 0 to 3, and in nothing else.
# </details>
#
# <details><summary>2. Four workers, 32 examples for each in a step. By what do you batch the data
# set that you distribute?</summary>
# By 128, the global batch. Distributing it gives each worker its 32.
# </details>
#
# <details><summary>3. Two workers are a little less accurate than one, with the same global batch.
# The data set is shuffled. What do you look at first?</summary>
# The seed of the shuffle. Without one, about a quarter of the examples is read by nobody in an
# epoch, and another quarter twice.
# </details>
#
# <details><summary>4. A script hangs in the last step of an epoch, and only then. What is likely?
# </summary>
# One worker has a batch more than the others: the data were shared out by hand.
# </details>
#
# <details><summary>5. <code>if chief: print(strategy.reduce(...))</code>. It does not hang. Is it
# right?</summary>
# No. The chief's collective may have met another one of the others, and both got a wrong number.
# </details>
#
# ## Next steps
#
# - [The exercise](../exercises/09_multi_worker.ipynb): configs, shards, a loop on two workers, and
#   four programs to diagnose.
# - Your own model: put `dl.distribute(build, dl.make_strategy("multi_worker"))` into a script, and
#   start it by `distlab launch --workers 2`. First on data in memory, without a shuffle: then one
#   device must give the same numbers.
# - [Lesson 10](10_parameter_server.ipynb): workers that do not wait for each other.
