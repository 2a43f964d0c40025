# %% [markdown]
# # Many workers: from one process to several
#
# In every step synchronous workers add up their gradients, and wait for each other there. If one
# worker is alive but runs different code, all other workers wait, and you pay for every machine.
# TensorFlow sets no limit to that wait. (If a worker has died, the live ones get an error: in our
# runs within 11 seconds.) PyTorch's limit is 30 minutes. For NCCL, its usual transport between
# GPUs, it [shortened the limit to 10 minutes in
# 2023](https://github.com/pytorch/pytorch/pull/110947) to save cluster time in such hangs. On 100
# machines one hang then costs 17 instead of 50 machine hours. Three simple mistakes cause the hangs
# of this lesson: fewer files than workers, one batch too many, and a line under the wrong `if`. You
# will find each of them in seconds.
#
# ## Overview
#
# After this lesson you can
#
# - write TF_CONFIG, which tells each process its place in the cluster,
# - start two real workers from a cell, and talk to them,
# - say which worker trains on which example, and notice examples that no worker trains on,
# - write a training loop for several workers that ends with one device's weights, up to 1e-6,
# - find out which worker waits, in which line, and why.
#
# It takes {minutes}. You need [lesson 03](03_custom_training_loop.ipynb) (the training loop)
# and [lesson 08](08_save_and_load.ipynb) (saving). You need no GPU and no download. The lesson
# starts two processes on this machine, which works on Linux and macOS. On Windows use WSL2.
#
# **What is new.** Until now all replicas were in one process. Now there are several processes,
# called [workers](../docs/glossary.md#worker), which could run on different machines. Here each
# worker has one replica. A worker with four GPUs would have four. You start the script once for
# each worker. In the script you change the line that makes the strategy. This lesson shows what
# else must change: the batch size, the seed of a shuffle, `fit` and saving.
#
# ```diff
# - strategy = tf.distribute.MirroredStrategy()
# + strategy = tf.distribute.MultiWorkerMirroredStrategy()
# ```
#
# **Do you remember?**
#
# <details><summary>Lesson 08: two workers, and only the chief saves. When does that hang?</summary>
# It hangs if a saved variable must be read from all workers, such as a counter of examples. The
# chief asks for the other worker's part, and the other worker does not answer.
# </details>
#
# <details><summary>Lesson 06: a data set is shuffled without a seed. What does that cost you?
# </summary>
# You cannot repeat the run: each run sees the examples in a different order. Today it costs more.
# </details>

# %%
# %load_ext distlab
import distlab as dl

dl.split_devices(1)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# (If you see *TensorFlow is already running*, restart the kernel and run from the top. The line
# `%load_ext distlab` prepares worker processes in the background.)
#
# Here is one step on two workers, as a sketch. Each worker computes its gradients, and then both
# add them up in an [all-reduce](../docs/glossary.md#all-reduce). The quicker worker waits there.

# %%
from distlab.course.figures.workers import draw_lanes, draw_readers

one_step = {
    "worker:0": [("computes", 2.0), ("waits", 1.0), ("all-reduce", 0.5), ("computes", 2.0)],
    "worker:1": [("computes", 3.0), ("all-reduce", 0.5), ("computes", 2.0)],
}
draw_lanes(one_step, xlabel="time (a sketch, without a scale)")

# %% [markdown]
# ## Two processes
#
# `dl.LocalCluster` starts two workers. Each is a Python process with its own memory, its own
# TensorFlow and its own process ID. The workers end when this notebook ends.

# %%
cluster = dl.LocalCluster(workers=2)
dl.show("tasks", list(cluster.tasks))

# %% [markdown]
# The cluster prints the warning above because other machines can reach its workers' ports. The
# section "Extra: Who else may listen", further down, explains it.
#
# `%%workers` runs a cell on both workers, not here. `%%workers worker:1` runs it on worker 1 only.
# Each worker's output appears under its name, or once under both names if they print the same.

# %%
# %%workers worker:1
secret = 42

# %%
# %%workers
print("secret" in globals())

# %% [markdown]
# In lesson 01 all replicas shared a process, so Python code saw all of them. Workers share no
# memory: each has its own Python variables. To share a value, a worker must send it.
#
# ## Who is who: TF_CONFIG
#
# To send something, a worker needs the addresses of all workers, and its own place among them. It
# reads both in the environment variable TF_CONFIG when it makes its strategy. The cluster has set
# the variable here. (Ports differ from run to run, so this cell hides them.)

# %%
import json
import re

for task in cluster.tasks:
    print(re.sub(r":\d{5}", ":PORT", json.dumps(cluster.tf_config(task))))

# %% [markdown]
# TF_CONFIG has two parts:
#
# - `cluster` lists the address of every [task](../docs/glossary.md#task), this one included. The
#   list is **the same on every worker**, in the same order.
# - `task` says which entry of the list this process is. **Only the index differs.**
#
# Worker 0 is the [chief](../docs/glossary.md#chief): it does what must be done once, such as
# writing files. It also runs TensorFlow's coordination service, a server that records which workers
# are connected. (A cluster may have a separate task of the type `chief`. That task then trains
# too.)
#
# TensorFlow starts no other worker for you. If you set the first TF_CONFIG in a notebook and make
# the strategy, it waits for the second worker for **an hour**. Its log names the missing worker:
#
# ```
# Waiting for 1/2 tasks to connect.
# Example stragglers: /job:worker/replica:0/task:1
# ```
#
# The line has the log level INFO. `TF_CPP_MIN_LOG_LEVEL=1` or more hides it, 0 shows it.
# `dl.make_strategy("multi_worker")` waits five minutes, and its error names the missing worker.
#
# ## The first all-reduce
#
# Each worker makes its strategy once, at its start. That is when the workers find each other. Then
# worker 0 has 10, worker 1 has 20, and both ask for the sum. (`axis=None` adds up over the workers
# only, and over no dimension of the values.)

# %%
# %%workers
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
mine = tf.constant(10 * (me + 1))
total = strategy.reduce("SUM", mine, axis=None)
print("worker", me, "of", strategy.num_replicas_in_sync, "has", mine.numpy(), "->", total.numpy())

# %% [markdown]
# Both workers have the sum. No worker collects it for all: both send, both receive, and both end
# with the same number. Such an operation is a [collective](../docs/glossary.md#collective).
# Remember: **an all-reduce returns only after every worker has called it.**
#
# ## The same variables
#
# Each worker draws three random numbers, without a seed. Then it makes a variable with these
# numbers as first value, in the strategy's scope: see the folded cell.

# %% tags=["hide-input"]
# %%workers
drawn = tf.random.normal([3])
with strategy.scope():
    variable = tf.Variable(drawn)


def all_have(value):
    mean = strategy.reduce("MEAN", value, axis=None)
    return bool(tf.reduce_all(tf.abs(mean - value) < 1e-6))


# %% [markdown]
# `all_have` compares by a collective: if the mean over both workers is this worker's own value,
# then both have the same value.

# %%
# %%workers
print("numbers drawn:", all_have(drawn))
print("variables:    ", all_have(variable.read_value()))

# %% [markdown]
# Each process draws its own numbers. But a variable that you make in the scope starts with the
# chief's value on all workers. So you need no seed for equal weights.
#
# ## Who reads what
#
# From here on this notebook itself uses TensorFlow: for the data, and for one device to compare
# with.

# %% tags=["hide-input"]
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

tf.config.experimental.enable_tensor_float_32_execution(False)  # a GPU as exact as CPUs
(digits,) = dl.load_dataset("digits", splits=["train[:325]"], batch_size=325)
images, labels = next(digits.as_numpy_iterator())
until_the_end = tempfile.TemporaryDirectory()  # removed with the kernel
folder = Path(until_the_end.name)

# %% [markdown]
# `cluster.run` calls a function on every worker and returns one result for each. The function is
# **copied** to the worker, with every notebook variable and function that it uses, such as
# `local_batches` in the next cell. Changes to a copy are lost. For a worker's own variable, such as
# its `strategy`, the function says `from __main__ import strategy`.
#
# Our 32 examples are in four files of 8 lines. Line k of all 32 holds k, the index of an image in
# `images`, so that we can follow it. Both workers run the same code. It names all four files, and
# makes batches of 8: the [global batch](../docs/glossary.md#global-batch). Distributing the data
# set gives each worker its part, and `auto_shard_policy` says how. (`experimental_local_results`
# returns the part of this worker's own replicas, here one.)
#
# The folded cell writes the files and has three functions. `what_it_reads` returns this worker's
# batches, and how often `map` was called. `counted_call` is what `map` calls: it stands for your
# preprocessing, counts, and turns the line into a number. `local_batches` distributes a data set
# and returns this worker's part of each batch.

# %% tags=["hide-input"]
files = [str(folder / f"part-{number}.txt") for number in range(4)]
for number, file in enumerate(files):
    Path(file).write_text("\n".join(str(8 * number + place) for place in range(8)))


def what_it_reads(policy, files):
    calls = []
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    lines = tf.data.TextLineDataset(files).map(lambda line: counted_call(line, calls))
    read = local_batches(lines.batch(8).with_options(options))
    return read, len(calls)


def counted_call(line, calls):
    def number_in(text):
        calls.append(text)
        return np.int32(text)

    return tf.numpy_function(number_in, [line], tf.int32)


def local_batches(data):
    from __main__ import strategy  # the worker's own

    local = []
    for batch in strategy.experimental_distribute_dataset(data):
        local.append(strategy.experimental_local_results(batch)[0])
    return local


# %% tags=["predict"]
auto_guess = dl.predict(
    "If you set no policy, you get AUTO. Which images, by index, are in the third global batch, "
    "four from each worker?",
    ["16 to 19 and 20 to 23", "16 to 19 and 24 to 27", "8 to 11 and 24 to 27"],
)

# %%
read, calls = {}, {}
for policy in ("AUTO", "DATA"):
    of_workers = cluster.run(what_it_reads, policy, files)
    read[policy] = [batches for batches, _ in of_workers]
    calls[policy] = [count for _, count in of_workers]
draw_readers(images[:32], read)

# %% tags=["reveal"]
first, second = (batches[2] for batches in read["AUTO"])
auto_guess.reveal(
    f"{first[0]} to {first[-1]} and {second[0]} to {second[-1]}",
    {
        "16 to 19 and 24 to 27": "AUTO means FILE here. Files are dealt out in turn: worker 0 has "
        "files 0 and 2, and worker 1 has files 1 and 3. Each file gives its worker two batches.",
        "16 to 19 and 20 to 23": "These would be one device's batches. AUTO sees files, and deals "
        "out whole files.",
        "8 to 11 and 24 to 27": "Each worker does open two files. But files are dealt out in turn, "
        "like cards: the second one of worker 0 is file 2, not file 1.",
    },
)

# %% [markdown] tags=["after-reveal"]
# - `AUTO` sees files and deals out *files*: each worker opens two. The global batches are not those
#   of one device.
# - `DATA` lets both workers read everything, and each keeps its part of every batch. The global
#   batches are those of one device.
#
# Data in memory has no files, so `AUTO` then means `DATA`. `dl.distribute` takes `DATA` unless you
# choose differently. What does `DATA` cost?

# %% tags=["after-reveal"]
for policy, counts in calls.items():
    dl.show(f"{policy}: calls of map on each worker", counts)

# %% [markdown]
# Under `DATA` **the whole pipeline runs on every worker**: reading, decoding, augmentation. Eight
# workers decode each image eight times. If your preprocessing is slow, shard early instead: select
# this worker's files before you read them. With
# `strategy.distribute_datasets_from_function(make_data)` each worker calls your function and
# reads only what it returns.
#
# Files can be dealt out only if there are at least as many as workers. What does the default `AUTO`
# do with one file and two workers? `timeout_secs` limits how long we wait, and `cluster.waits`
# tells where each worker was:


# %% tags=["hide-input"]
def reads_one_file(files):
    try:
        return local_batches(tf.data.TextLineDataset(files[:1]).batch(8))
    except tf.errors.InvalidArgumentError as error:
        print(re.search("Could not apply.* DATA or OFF", error.message)[0])


try:
    cluster.run(reads_one_file, files, timeout_secs=4)
except TimeoutError as late:
    for wait in cluster.waits(late):
        print(wait)

# %% [markdown]
# The chief stops with an error, which names the cause and the cure. (TensorFlow's documentation
# says that `AUTO` falls back to `DATA`. It does so only if it finds no reader of files in the data
# set, such as `TFRecordDataset`. Files that `map` opens do not count.) Worker 1 gets no error, and
# waits for the chief in a collective. So look into **every** worker's log when a job hangs: the
# cause may be in only one of them.
#
# ## A shuffle on two workers
#
# A worker that was stopped while it waited cannot be used again, so we start both again.
#
# Under `DATA` each worker shuffles the whole data set, and keeps its part of what *it* shuffled.
# Without a seed each worker draws its own order. (The function below gives each worker its own
# fixed seed in that case, so that the picture is the same in each run.)

# %%
cluster.restart()

# %%
# %%workers
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()


# %%
def what_it_reads_shuffled(seed):
    from __main__ import strategy

    if seed is None:
        seed = 100 + strategy.cluster_resolver.task_id
    return local_batches(tf.data.Dataset.range(32).shuffle(32, seed=seed).batch(8))


# %% tags=["predict"]
lost_guess = dl.predict(
    "Both workers shuffle without a common seed. How many of the 32 images does at least one "
    "worker train on?",
    unit="images",
)

# %%
shuffled = {
    "shuffle(32)": cluster.run(what_it_reads_shuffled, None),
    "shuffle(32, seed=1)": cluster.run(what_it_reads_shuffled, 1),
}
draw_readers(images[:32], shuffled)

# %% tags=["reveal"]
read_by_some = {int(n) for worker in shuffled["shuffle(32)"] for batch in worker for n in batch}
lost_guess.reveal(
    len(read_by_some),
    {
        24: "Each worker misses half of the images, so both miss an image with probability 1/4. "
        "That is 8 of 32 on average, and 9 with these seeds.",
        32: "That needs one common order, of which the workers take different halves. Here there "
        "are two orders.",
        16: "Then both workers would have picked the very same half.",
    },
    within=3,
)

# %% [markdown] tags=["after-reveal"]
# Each worker takes half of a *different* order. So about a quarter of the images is trained
# on twice, and about a quarter by no worker. You get no error, the loss looks normal, and every
# epoch loses different examples. The cure is `seed=`, the same on all workers. (TensorFlow also
# mixes in the seed of `tf.random.set_seed`. So that seed must be equal everywhere, or set nowhere.)
#
# This happens under `DATA`, and with a `shard` of your own *after* an unseeded shuffle. If files
# are dealt out, each worker shuffles its own examples, and none is lost.

# %% [markdown]
# ## The loop
#
# Now we train on all 325 digits, in global batches of 20. The last batch has 5. As in lesson 03 the
# model is one layer. Plain `fit` on one device, in this notebook, is what we compare with: see the
# folded cell. (The seed in `build` is for this comparison only.)

# %% tags=["hide-input"]
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
# The loop is that of lesson 03: `strategy.run` takes a step on each replica, and the optimizer adds
# up the gradients of all workers. The count of examples is summed over all workers too, so each
# example weighs the same even in a partial batch. (`autograph=False` skips the translation of
# Python's `if` and `for`, because this step has none.)

# %%
each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def train(batch_size):
    from __main__ import strategy

    with strategy.scope():
        model = build()

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            losses = each_loss(y, model(x, training=True))
            mine = tf.cast(tf.size(losses), tf.float32)
            count = tf.distribute.get_replica_context().all_reduce("SUM", mine)
            loss = tf.reduce_sum(losses) / count
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    step = tf.function(lambda batch: strategy.run(replica_step, args=batch), autograph=False)
    for batch in strategy.experimental_distribute_dataset(batches(batch_size)):
        step(batch)
    return {"weights": model.get_weights(), "steps": int(model.optimizer.iterations.numpy())}


# %% [markdown]
# You want 10 examples on each worker, and call `train(10)`, which batches the data by 10.

# %% tags=["predict"]
steps_guess = dl.predict("How many steps does `train(10)` take on 325 digits?", unit="steps")

# %%
ten, _ = cluster.run(train, 10)
dl.show("steps", ten["steps"])

# %% tags=["reveal"]
steps_guess.reveal(
    ten["steps"],
    {
        33: "325 / 10, rounded up: the batch of 10 is the global batch, and each worker takes 5"
        " of it.",
        17: "That is 325 / 20, if each worker took 10 of a batch of 20. But the data was batched "
        "by 10, and each worker took 5.",
        16: "That is 325 / 20, rounded down. The data was batched by 10, so each worker took 5, "
        "and the last batch counts as a step too.",
    },
)


# %% [markdown] tags=["after-reveal"]
# What you distribute is batched by the **global** size. Each worker takes its share of it: here 5
# of 10. Nothing crashed, yet this run had half of the intended batch. With the right size the
# workers take one device's steps:


# %% tags=["after-reveal"]
def apart(weights):
    pairs = zip(weights, one.get_weights(), strict=True)
    return max(np.abs(ours - theirs).max() for ours, theirs in pairs)


right, other = cluster.run(train, GLOBAL_BATCH)
dl.show("steps", right["steps"], expected=17)
dl.show("weights apart from one device's by", apart(right["weights"]), below=1e-6)
dl.show("those of worker:1 from one device's", apart(other["weights"]), below=1e-6)

# %% [markdown]
# If you add workers and keep 10 examples on each, the global batch grows. Then the learning rate
# needs a new choice too. `dl.plan_batch` computes the batch, and suggests a rate by the rule that
# you name.
#
# ### Why all workers take equally many steps
#
# A batch of 5 gives shares of 3 and 2. With 321 digits the last batch has one digit:


# %%
def shares(examples):
    batches = local_batches(tf.data.Dataset.range(examples).batch(GLOBAL_BATCH))
    return len(batches), len(batches[-1])


for examples in (325, 321):
    steps, last = zip(*cluster.run(shares, examples), strict=True)
    dl.show(f"{examples} digits", {"steps": steps, "in the last one": last})

# %% [markdown]
# Worker 1 gets nothing, and still takes the step. A distributed data set makes **all workers take
# equally many steps**. A plain `tf.data` loop over your own share does not. Suppose that worker 0
# has 3 batches and worker 1 has 2, in each of two epochs. In every step both add up a number that
# names epoch and step, such as 12 for epoch 1, step 2. Each worker writes down the sums it gets:


# %%
def two_epochs(folder):
    from __main__ import strategy

    me = strategy.cluster_resolver.task_id
    with Path(folder, f"sums-{me}.txt").open("w") as file:
        for epoch in (1, 2):
            for step in range(1, 4 if me == 0 else 3):
                total = strategy.reduce("SUM", 10.0 * epoch + step, axis=None)
                print(f"{10 * epoch + step} -> {float(total):g}", file=file, flush=True)


# %% tags=["predict"]
unequal_guess = dl.predict(
    "Worker 0 wants to take 6 steps, worker 1 wants to take 4. Where does worker 0 stop?",
    [
        "in step 3 of epoch 1, where worker 1 has no batch",
        "in step 2 of epoch 2",
        "in step 3 of epoch 2",
        "nowhere: a missing batch counts as 0",
    ],
)

# %%
try:
    cluster.run(two_epochs, str(folder), timeout_secs=5)
except TimeoutError as late:
    for wait in cluster.waits(late):
        print(wait)
sums = [(folder / f"sums-{me}.txt").read_text().splitlines() for me in (0, 1)]
for task, lines in zip(cluster.tasks, sums, strict=True):
    dl.show(f"{task}: its number -> the sum", lines)

# %% tags=["reveal"]
unequal_guess.reveal(
    {
        2: "in step 3 of epoch 1, where worker 1 has no batch",
        4: "in step 2 of epoch 2",
        5: "in step 3 of epoch 2",
    }.get(len(sums[0]), "nowhere: a missing batch counts as 0"),
    {
        "in step 2 of epoch 2": "Worker 1 takes part in four sums. For worker 0 these are the "
        "three of epoch 1 and the first of epoch 2. The fifth sum has no partner.",
        "in step 3 of epoch 1, where worker 1 has no batch": "There worker 1 is in epoch 2. Its "
        "next sum meets the third one of worker 0: 13 + 21 = 34.",
        "in step 3 of epoch 2": "Worker 1 takes part in 4 sums, so worker 0 ends no fifth one. Its "
        "fifth one is step 2 of epoch 2.",
        "nowhere: a missing batch counts as 0": "Nothing counts as 0. A sum ends when both workers "
        "have begun it.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Collectives have no names: **only their order counts.** The third sum of worker 0 met the first
# step of worker 1's second epoch, without an error, and gave 34 to both. From there on both add up
# numbers that do not belong together. The hang comes later, when worker 1 has finished. So a run
# that hangs in its last epoch may have been wrong since its first one. (In our tests TensorFlow
# raised an error if shapes or types differed.) The full rule: all workers reach the same
# collectives, in the same order. We start the workers again.

# %%
cluster.restart()

# %%
# %%workers
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

# %% [markdown]
# ## The same with fit
#
# Keras's own `fit` crashes under this strategy
# ([keras#20585](https://github.com/keras-team/keras/issues/20585)). `fit` of a model from
# `dl.distribute` works. It counts examples as above, takes `DATA`, and raises an error if a shuffle
# has no seed.


# %%
def fit_on_workers(path):
    from __main__ import strategy

    model = dl.distribute(build, strategy)
    history = model.fit(batches(GLOBAL_BATCH), shuffle=False, verbose=0).history
    model.save(path)
    return {"weights": model.get_weights(), "logs": history}


fitted = cluster.run(fit_on_workers, folder / "model.keras")
dl.show("weights apart from one device's by", apart(fitted[0]["weights"]), below=1e-6)
dl.show("logs equal on both workers", fitted[0]["logs"] == fitted[1]["logs"])
for name, values in fitted[0]["logs"].items():
    dl.show(name, values, expected=logs_of_one[name])

# %% [markdown]
# Each worker saw half of the examples, and both log the loss of *all* examples. So a callback that
# decides by the logged loss decides the same on both workers.
#
# ## Save from many
#
# Both workers called `model.save(path)` above, with the same path. There is one file:

# %%
dl.show("files", [file.name for file in sorted(folder.glob("*model*"))])
loaded = keras.saving.load_model(folder / "model.keras")
dl.show("weights apart from one device's by", apart(loaded.get_weights()), below=1e-6)

# %% [markdown]
# `dl.distribute` did what lesson 08 does by hand. The chief writes to `path`. The other worker
# writes to a temporary folder, which is then removed. Why does it write at all? A variable can have
# its own value on each worker, such as the count in a metric. **Reading such a variable is a
# collective**, and saving it reads it. (Keras saves no metrics, so this file needed no collective.
# But a checkpoint or a layer of yours may hold such a count.) So all workers save, and
# `dl.distribute` lets them wait for each other.
#
# ## A hang, diagnosed
#
# At the end of an epoch the chief writes down the mean loss of both workers. The other worker waits
# until the file is there:


# %%
def end_of_epoch(path, loss):
    from __main__ import strategy

    path = Path(path)
    if strategy.cluster_resolver.task_id == 0:
        mean = strategy.reduce("MEAN", loss, axis=None)
        path.write_text(str(float(mean)))
    while not path.exists():
        time.sleep(0.1)


# %% tags=["predict"]
waits_guess = dl.predict(
    "Both workers call `end_of_epoch`. Which one waits without end?",
    ["neither", "worker:0", "worker:1", "both"],
)

# %%
LIMIT_SECS = 5.0
try:
    cluster.run(end_of_epoch, folder / "loss.txt", 1.0, timeout_secs=LIMIT_SECS)
except TimeoutError as late:
    waits = cluster.waits(late)
for wait in waits:
    print(wait)

# %% tags=["reveal"]
waiting = [wait.task for wait in waits if not wait.is_over]
waits_guess.reveal(
    "both" if len(waiting) == 2 else "".join(waiting) or "neither",
    {
        "both": "Worker 0 needs a `reduce` of worker 1. Worker 1 needs the file, which worker 0 "
        "writes after its `reduce`.",
        "neither": "`reduce` does not fetch the loss of worker 1. It waits until worker 1 calls "
        "`reduce` too, and worker 1 never does.",
        "worker:0": "Worker 0 does wait in `reduce`. So it never writes the file, and worker 1 "
        "waits for that file.",
        "worker:1": "Worker 1 does wait for the file. It is missing because worker 0 waits, too: "
        "its `reduce` needs worker 1.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Here are both workers as two lanes, drawn from what we saw at the time limit:

# %% tags=["after-reveal"]
hang = {wait.task: [("waits", LIMIT_SECS, wait.code)] for wait in waits}
draw_lanes(hang, xlabel="seconds after the call", limit=LIMIT_SECS)

# %% [markdown] tags=["after-reveal"]
# Each waits for the other one. `reduce` cannot fetch a value from a worker that runs different
# code: worker 1 would have to call `reduce` itself. Without a time limit this lasts until you stop
# it, and both processes look alive. So **every worker must reach every collective.** Under `if` you
# put only what needs no collective: printing, or writing a number that the chief already has.
# Saving may need one, so all workers save.
#
# `cluster.waits` is ours. In a script of your own, Python's `faulthandler` prints the line in which
# each thread is after some seconds. The folded cell writes a script, `hang.py`. It calls
# `faulthandler.dump_traceback_later(4)`, then the same function, and gives up after 8 seconds.

# %% tags=["hide-input"]
script = """
import faulthandler, os, threading, time
from pathlib import Path

import distlab as dl

strategy = dl.make_strategy("multi_worker")


def end_of_epoch(path, loss):
    if strategy.cluster_resolver.task_id == 0:
        mean = strategy.reduce("MEAN", loss, axis=None)
        path.write_text(str(float(mean)))
    while not path.exists():
        time.sleep(0.1)


faulthandler.dump_traceback_later(4)  # after 4 seconds: where is this process?
threading.Timer(8, os._exit, [1]).start()  # after 8 seconds: give up
end_of_epoch(Path("mean.txt"), 1.0)
"""
written = (folder / "hang.py").write_text(script)

# %%
from distlab.course.runs.script_runs import launch_here

hung = launch_here("--workers", "2", "hang.py", folder=folder)
stacks = {line for line in hung.errors.splitlines() if "hang.py" in line and " in " in line}
print(*sorted(line.replace(f"{folder}/", "") for line in stacks), sep="\n")
dl.show("exit code", hung.exit_code)

# %% [markdown]
# The cell prints only the lines that name `hang.py`. (The full output starts inside TensorFlow.
# There, look for the first line of each stack that names your own file: Python prints the most
# recent call first.) Worker 0 is in line 12, which calls `reduce`. Worker 1 is in line 15, the
# `sleep` in the `while` loop. If the script already hangs and has no `faulthandler`, install py-spy
# on each worker's machine, and ask the process from outside:
#
# ```
# py-spy dump --pid PROCESS_ID
# ```
#
# <details><summary>Time limits in plain TensorFlow</summary>
#
# `cluster.run(..., timeout_secs=...)` and `cluster.waits` are ours. In your own script you can give
# collectives a limit:
#
# ```python
# options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=120)
# strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
# ```
#
# A collective that takes longer then raises `DeadlineExceededError` on the worker that waits. Use
# it to debug only: each collective starts a thread that lives as long as the limit. With a limit of
# 120 seconds and 10 collectives a second, those are 1,200 threads. The same options choose the
# transport: `NCCL`, NVIDIA's library for all-reduce between GPUs, or `RING`, TensorFlow's own
# [ring](../docs/glossary.md#ring). Two workers on one GPU cannot use NCCL.
#
# Heartbeats do not find this hang. By its [heartbeats](../docs/glossary.md#heartbeat) each worker
# tells the chief's coordination service that its *process* is alive, and both processes are. A
# missing heartbeat reveals a *dead* process: see [lesson 11](11_fault_tolerance.ipynb).
# </details>

# %% [markdown]
# In the repaired function `reduce` is outside of the `if`. Worker 0 has a loss of 1, and worker 1 a
# loss of 3. First we start the workers again.


# %%
def end_of_epoch_for_all(path, losses):
    from __main__ import strategy

    me = strategy.cluster_resolver.task_id
    total = strategy.reduce("SUM", losses[f"worker:{me}"], axis=None)
    if me == 0:
        Path(path).write_text(f"mean {float(total) / len(losses)}")
    return total


cluster.restart()

# %%
# %%workers
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

# %%
losses = {"worker:0": 1.0, "worker:1": 3.0}
summed = cluster.run(end_of_epoch_for_all, folder / "loss.txt", losses, timeout_secs=30)
dl.show("both have the sum of 1 and 3", summed)
dl.show("in the file", (folder / "loss.txt").read_text())

# %% [markdown]
# <details><summary>In plain TensorFlow</summary>
#
# | here | without distlab |
# |---|---|
# | `dl.LocalCluster`, `%%workers` | a terminal for each worker: `TF_CONFIG='...' python train.py` |
# | `dl.make_strategy("multi_worker")` | `tf.distribute.MultiWorkerMirroredStrategy()`, made first |
# | `dl.distribute(build, strategy)` and `fit` | the loop above; Keras 3's own `fit` crashes |
# | `model.save(path)` | the chief saves to `path`, each other worker to a folder that it removes |
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# **PyTorch:** `torchrun --nproc-per-node 2 train.py` starts the processes and sets `RANK`,
# `WORLD_SIZE` and `MASTER_ADDR` in place of TF_CONFIG. `init_process_group` joins them,
# `DistributedDataParallel` averages the gradients in the backward pass, and `DistributedSampler`
# gives each process its part of the data. A `DataLoader`'s batch size is that of one process.
# Collectives match by their order, as here. **JAX:** `jax.distributed.initialize()` joins the
# processes. Afterwards each process runs the same program over a mesh of all devices, and each
# must run the same computations in the same order.
# </details>
#
# ## Extra: Who else may listen
#
# Now to the warning at the start of the cluster. For its collectives each worker runs a server.
# TensorFlow's server listens on **every network interface, without a password**, whatever address
# TF_CONFIG names. Any program that reaches the port can run code as you. So:
#
# - run workers in a network that you trust, behind a firewall, and never on a public address;
# - on a shared machine use `dl.LocalCluster(workers=2, isolate=True)`. On Linux the workers then
#   have their own network, which only they can reach.
#
# ## Extra: Take it along
#
# Your own training is a script, and the program that starts it sets TF_CONFIG. The folded cell
# writes `train.py`, which makes the strategy and adds up a 1 from each worker:

# %% tags=["hide-input"]
script = """
import distlab as dl

strategy = dl.make_strategy("multi_worker")
total = strategy.reduce("SUM", 1.0, axis=None)
print("one of", int(total))
"""
Path(folder, "train.py").write_text(script)
dl.show("lines", len(script.splitlines()) - 1)

# %% [markdown]
# In a terminal you type `distlab launch --workers 2 train.py`. `launch_here` does the same from a
# notebook:

# %%
launched = launch_here("--workers", "2", "train.py", folder=folder)
print(*launched.lines_with("one of"), sep="\n")
dl.show("exit code", launched.exit_code)

# %% [markdown]
# Every line names the worker that printed it. On several machines a batch system starts the
# workers, and the script does not change:
#
# - **Slurm** (`srun`): `dl.make_strategy("multi_worker")` reads Slurm's variables.
# - **Kubernetes**: Kubeflow's TFJob sets TF_CONFIG in every pod.
# - **Ray Train**: `TensorflowTrainer` sets it on every worker.
#
# The page "Beyond one machine" of the site and of the repository (`docs/engines.md`) has an example
# of each.

# %%
cluster.close()

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. Four workers. In what do their TF_CONFIGs differ?</summary>
# Only in the index of the task, 0 to 3.
# </details>
#
# <details><summary>2. Four workers, 32 examples on each in a step. What is the batch size of the
# data set that you distribute?</summary>
# 128, the global batch. Distributing it gives each worker
# its 32.
# </details>
#
# <details><summary>3. Two workers are a little less accurate than one device, with the same global
# batch. The data set is shuffled. What do you check first?</summary>
# The seed of the shuffle.
# Without a common seed about a quarter of the examples is read by no worker in an epoch, and about
# a quarter is read twice.
# </details>
#
# <details><summary>4. A script hangs at the end of its last epoch, and only there. What is likely?
# </summary>
# One worker has a batch more than the other workers: its loop goes over a plain data set that you
# shared out yourself. In earlier epochs the extra step may have met a step of the next epoch,
# silently.
# </details>
#
# <details><summary>5. <code>if chief: print(strategy.reduce(...))</code> does not hang. Is it
# right?</summary>
# No. The chief's <code>reduce</code> may have met a later collective of the other
# workers. Then all of them have a wrong number.
# </details>
#
# <details><summary>6. Your job on 8 workers reads 4 files and hangs at its first batch. Why?
# </summary>
# AUTO deals out files, and there are fewer files than workers. Some workers have raised an error,
# and the other workers wait for them. Choose DATA, or write more files.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/09_multi_worker.ipynb): configs, shards, a loop on two workers, and
#   four programs to diagnose.
# - [Lesson 10](10_parameter_server.ipynb): workers that do not wait for each other.
# - [Glossary](../docs/glossary.md): every term of the course on one page.
# - TensorFlow's [multi-worker
#   tutorial](https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras) explains the
#   parts. Its Keras `fit` crashes on Keras 3, and [its custom
#   loop](https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl) stops at
#   `reset_states`, which is now `reset_state`.
# - Transport and time limits of collectives: [CommunicationOptions][options].
#
# [options]: https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/CommunicationOptions
