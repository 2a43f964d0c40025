# %% [markdown]
# # Input pipelines: feed replicas that wait
#
# A GPU that waits for data costs as much as one that computes. In a 2021 paper, researchers at
# UT Austin and Microsoft measured nine models on servers of a large production cluster. [In many of
# their cases](https://arxiv.org/abs/2007.06775) training time was dominated by *data stalls*, the
# time in which the GPU waits for the next batch to be read and prepared. A second GPU on the same
# server does not help such a training run: both wait for the same pipeline.
#
# Nothing in the log tells you. The loss falls, no error appears, and each step only takes longer
# than it should. The usual advice is to add `.prefetch(tf.data.AUTOTUNE)` at the end. In this
# lesson you find out when that helps, what to do when it does not, and which repairs are fast and
# wrong.
#
# ## Overview
#
# After this lesson you can
#
# - find out with three measurements whether replicas wait for data,
# - say what `map`, `cache`, `shuffle`, `batch` and `prefetch` do, and put them in the right order,
# - notice if the model sees the same "random" images in every epoch, and cure it;
# - in two extra sections: say which worker trains on which example, and write a pipeline for each
#   worker that reads only its own part.
#
# **Time:** {minutes}. **Needs:** [lesson 01](01_mirrored_strategy.ipynb) and [lesson
# 03](03_custom_training_loop.ipynb); `tf.data` as far as `map` and `batch`. No GPU, and nothing is
# downloaded.
#
# **Do you remember?**
#
# <details><summary>Lesson 03: by which number must each example's loss be divided, if the replicas
# have unequal shares of a batch?</summary>
# By the number of examples on all replicas together, the global batch. Today you meet unequal
# shares again.
# </details>
#
# <details><summary>Lesson 01: one of two replicas takes twice as long as the other. How fast is a
# step?</summary>
# As slow as the slower replica. No replica gets past the all-reduce before all have arrived. So one
# replica that waits for data makes all of them wait.
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %%
import time

import keras
import numpy as np
import tensorflow as tf

from distlab.course.lesson_05_input_pipelines.figures import (
    draw_overlap,
    draw_step_splits,
    recorded_splits,
)

strategy = dl.make_strategy("mirrored", devices=devices)
dl.show("replicas", strategy.num_replicas_in_sync)

# %% [markdown]
# ## A step has two parts
#
# Before a step can compute, its batch must be there. Here the input takes 3 units of time for a
# batch, and the computation takes 2.

# %%
draw_overlap(read=3, compute=2, steps=4)

# %% [markdown]
# Above, the reader waits while the step computes, so a step costs the **sum**, 5. Below, the next
# batch is read during the step, and from the second step on a step costs only **the larger of the
# two**, 3.
#
# ## Three measurements
#
# Here is a slow pipeline. `read` looks up one digit, after a disk has answered. The disk is
# `time.sleep`, which takes 2 milliseconds. Like a wait for network storage, it uses no processor.
# (`tf.numpy_function` calls Python from a `tf.data` pipeline; `tf.reshape` tells TensorFlow that
# the answer is one number.)

# %%
BATCH = 32
(digits,) = dl.load_dataset("digits", splits=["train[:256]"], batch_size=256)
images, labels = next(iter(digits))


def disk(number):
    time.sleep(0.002)
    return number


def read(number):
    number = tf.reshape(tf.numpy_function(disk, [number], tf.int64), [])
    return tf.gather(images, number), tf.gather(labels, number)


as_found = tf.data.Dataset.range(256).map(read).batch(BATCH)

# %% [markdown]
# The folded cell has the training step of lesson 03 in its simpler form: `step(batch)` trains on
# one batch, on four replicas. Each replica divides its loss by `BATCH`, which is right here because
# 256 is a multiple of 32.

# %% tags=["hide-input"]
with strategy.scope():
    layers = [keras.layers.Flatten(), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def replica_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loss_of(y, model(x, training=True))) / BATCH
    weights = model.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)


step = tf.function(lambda batch: strategy.run(replica_step, args=batch))

# %% [markdown]
# Three times tell you what a step waits for:
#
# 1. **the real step:** the training loop as it is,
# 2. **the step on one batch that is there already:** the same step again and again on the same
#    batch, so that nothing is read,
# 3. **the input alone:** the loop without the step.
#
# `split_step` measures all three, each over at most 200 batches of a pass, and keeps the time of
# the fastest pass of each. It calls your step, so it really trains your model: give it a copy, or
# measure before you train. `waits` is the part of the real step that the computation does not
# explain. The milliseconds depend on your machine, so this cell shows a comparison; `print(split)`
# in a new cell shows your milliseconds.

# %%
from distlab.course.measure.step_split import split_step

split = split_step(step, strategy.experimental_distribute_dataset(as_found), passes=2)
dl.show("the replicas wait for more than half of each step", split.waits > 0.5)

# %% [markdown]
# On one machine we measured the same kind of pipeline with a slower disk and a larger model, so
# that the parts are easy to compare. (It has two processors and two replicas. Run `python
# benchmarks/input_pipelines.py` to measure your own machine. Each mark is the shortest of ten
# rounds. Ignore differences below 10 %.)

# %%
recorded = recorded_splits()
draw_step_splits({"as found": recorded["as found"]})

# %% [markdown]
# Read the three marks before you answer.

# %% tags=["predict"]
prefetch_guess = dl.predict(
    "You add .prefetch(tf.data.AUTOTUNE) at the end of this pipeline. How long does a step take "
    "then?",
    ["as long as the computation alone", "half as long as now", "about as long as now"],
)

# %%
draw_step_splits(recorded)

# %% tags=["reveal"]
part = recorded["prefetch alone"].real_ms / recorded["as found"].real_ms
prefetch_guess.reveal(
    "about as long as now" if part > 0.8 else f"{part:.1f} times as long as now",
    {
        "as long as the computation alone": "That needs an input that is faster than the "
        "computation. `prefetch` reads earlier, but each batch takes as long as before.",
        "half as long as now": "Reading and computing overlap at best. Here the input alone takes "
        "about as long as the step, so hiding the computation behind it gains little.",
        "about as long as now": "On average, batches cannot be used faster than they are made.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **`prefetch` hides the shorter part behind the longer one. It makes nothing cheaper.** As found, a
# step took about as long as the input alone, and the computation explained less than a tenth of it.
# TensorFlow reads at least one batch ahead even if you do not ask for it, so `prefetch` had little
# left to gain. It must be **last**: before a slow `map` it keeps ready only what comes before the
# slow part.
#
# If the input is the longer part, you must make the input itself cheaper: parallel calls, or
# less work. In the figure, each of these two repairs alone makes a step many times shorter, and the
# next two sections are about them. From epoch 2 on, the cache alone does as much as all three.
# Parallel calls help in the first epoch, and with data that no cache can hold.
#
# Now look at the last row. This pipeline ends in `prefetch`, and yet its step takes about the sum
# of computation and input. Two costs remain here that `prefetch` cannot hide. The training loop
# takes each batch from the distributed data set in the same thread that starts the steps. And the
# pipeline and the replicas share two processors. We did not measure how large each part is.
#
# ## Parallel calls
#
# `map(read)` makes one call after the other, because `read` calls Python. (TensorFlow may run a
# `map` of its own operations in parallel even if you do not ask.) With `num_parallel_calls=16` it
# makes up to 16 calls at once and returns the results in the same order. While one call waits for
# the disk, the others wait at the same time. The figure shows what that gains in every epoch, the
# first one included. There the pipeline also had 16 threads, and it needs them.
#
# The number of parallel calls has a limit: the threads of `tf.data`. By default there are as many
# as processors. `private_threadpool_size` sets the number of threads. The folded cell shows it with
# eight calls that wait for each other at a barrier, for at most 2 seconds. They can meet only if
# all eight are running at once.

# %% tags=["hide-input"]
import threading


def meetings(threads):
    barrier = threading.Barrier(8)

    def meet(number):
        try:
            barrier.wait(timeout=2)
        except threading.BrokenBarrierError:
            return np.int64(0)
        return np.int64(1)

    data = tf.data.Dataset.range(8).map(
        lambda number: tf.numpy_function(meet, [number], tf.int64), num_parallel_calls=8
    )
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    return int(sum(data.with_options(options)))


dl.show("calls that met, 2 threads", meetings(threads=2))
dl.show("calls that met, 8 threads", meetings(threads=8))

# %% [markdown]
# So if `read` waits for a disk or a network, on a machine with few processors, give the pipeline
# more threads. If `read` computes in TensorFlow's operations, more threads than processors gain
# nothing. If it computes in Python, more processors gain little either, because only one thread
# at a time can run Python code. So decode with TensorFlow's own operations, such as
# `tf.io.decode_jpeg`. (Our disk only sleeps, and a thread that sleeps lets the others run.)
# `num_parallel_calls=tf.data.AUTOTUNE` lets TensorFlow choose a number while the pipeline runs.
#
# ## Less work: where the cache belongs
#
# `cache()` keeps what comes out of the stage before it, and in the next epochs it gives these
# elements without calling anything before it. `CountedCalls` counts how often a function of a
# pipeline is called. `calls.counted("read")` takes the place of `read` here: it passes each number
# on, and counts the call under this name. Three epochs of 8 digits:

# %%
from distlab.course.lesson_05_input_pipelines.runs import CountedCalls

calls = CountedCalls()
eight = tf.data.Dataset.range(8)
read_counted = calls.counted("read")


def reads_in_3_epochs(data):
    calls.reset()
    for _ in range(3):
        list(data)
    return calls["read"]


dl.show("calls without a cache", reads_in_3_epochs(eight.map(read_counted).batch(4)))
dl.show("calls with cache()", reads_in_3_epochs(eight.map(read_counted).cache().batch(4)))

# %% [markdown]
# This is the third repair of the figure: from the second epoch on, nothing is read. (The data must
# fit into memory; `cache("file")` writes them to a disk of this machine. The cache is complete only
# after a full pass: if you stop an epoch early, nothing is kept.) Now a pipeline that also
# augments:


# %%
def shift(number, image, key):
    """Augments: shifts an image by -2 to 2 pixels, drawn from a key."""
    pixels = tf.random.stateless_uniform([], [key, 0], -2, 3, tf.int32)
    return number, tf.roll(image, pixels, axis=1)


def look_up(number):
    return number, tf.gather(images, number)


def with_key(data):
    keys = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True)
    return tf.data.Dataset.zip(data, keys).map(lambda example, key: (*example, key))


# %% [markdown]
# `shift` is an [augmentation](../docs/glossary.md#augmentation): it changes each image at random,
# so that the model sees a new version in every epoch. `with_key` gives each example a random
# number, the key, and `rerandomize_each_iteration` draws new keys in each epoch. `shuffle` draws a
# new order in each pass that reaches it, even with a seed. Here are three places for the cache:

# %%
with_keys = with_key(eight.map(look_up))
cache_last = with_keys.map(shift).shuffle(8, seed=1).batch(4).cache()
cache_in_the_middle = with_keys.cache().map(shift).shuffle(8, seed=1).batch(4)
cache_early = with_key(eight.map(look_up).cache()).map(shift).shuffle(8, seed=1).batch(4)

# %% tags=["predict"]
middle_guess = dl.predict(
    "`cache_in_the_middle`: what does the model see differently in each of three epochs?",
    ["the order and the shifts", "the order only", "the shifts only", "neither"],
)


# %%
def seen(data, epochs=3):
    examples = data.unbatch()  # one at a time again
    return [[(int(number), image.numpy()) for number, image in examples] for _ in range(epochs)]


def orders(epochs):
    return len({tuple(number for number, _ in epoch) for epoch in epochs})


def versions_of_0(epochs):
    return len({image.tobytes() for epoch in epochs for number, image in epoch if number == 0})


middle = seen(cache_in_the_middle)
dl.show("cache in the middle: orders", orders(middle))
dl.show("cache in the middle: versions of the first digit", versions_of_0(middle))

# %% tags=["reveal"]
changes = {
    (True, True): "the order and the shifts",
    (True, False): "the order only",
    (False, True): "the shifts only",
    (False, False): "neither",
}
middle_guess.reveal(
    changes[orders(middle) > 1, versions_of_0(middle) > 1],
    {
        "the order and the shifts": "`shift` is called in each epoch, but with the same key for "
        "the same digit. The keys came out of the stages before the cache, so it kept them.",
        "the shifts only": "`shuffle` comes after the cache, and by default it draws a new order "
        "in each epoch, even with a seed. The keys come from before the cache.",
        "neither": "That is what `cache_last` does. Here `shuffle` comes after the cache, and by "
        "default it draws a new order in each epoch, even with a seed.",
        "the order only": "`shuffle` comes after the cache. `shift` does as well, but its keys "
        "come from before it.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Here is what the model sees, and what it sees if the cache comes right after `look_up`. (The
# number below an image is its place in the data set. A space separates the batches.)

# %% tags=["after-reveal"]
from distlab.course.lesson_05_input_pipelines.figures import draw_epochs

early = seen(cache_early)
draw_epochs({"cache in the middle": middle, "cache before anything random": early}, batch=4)

# %% tags=["after-reveal"]
dl.show("cache last: orders", orders(seen(cache_last)))

# %% [markdown] tags=["after-reveal"]
# On the left, a digit has the same shift in all three epochs. The augmentation is paid for 24
# times, and the model sees only 8 different images. With the cache at the end, even the order and
# the batches are the same. No error appears. The model sees one version of each digit instead of up
# to three, so it can memorise these versions: expect a lower training loss and a worse validation
# accuracy. So **cache what is expensive and always the same, but no random draws and no keys
# for later draws.**
#
# A different mistake is to put `shuffle` after `batch`. It then shuffles whole batches, so the same
# digits always come together:

# %% tags=["after-reveal"]
mixed = {
    "shuffle, then batch": eight.shuffle(8, seed=1).batch(4),
    "batch, then shuffle": eight.batch(4).shuffle(2, seed=1),
}
for name, data in mixed.items():
    batches = {tuple(sorted(batch.numpy().tolist())) for _ in range(3) for batch in data}
    dl.show(f"{name}: different batches in 3 epochs", len(batches))

# %% [markdown]
# `shuffle(n)` holds n elements and draws from these. With n smaller than the data set, an element
# can come at most `n - 1` places earlier than before. So data sorted by class stay nearly sorted,
# and a batch may hold one class only. Take n as large as the data set. If the memory does not allow
# that, also shuffle the list of file names before you read.
#
# ## Random draws and a seed
#
# `shift` takes a key. Most augmentations draw their random numbers themselves, with
# `tf.random.uniform` for example. You want repeatable runs, so you begin your program with
# `dl.set_seed(1)`, as lesson 06 will recommend. There is no cache now.


# %%
def brightness_drawn(number):
    return tf.random.uniform([])


def versions(data, epochs=3):
    """How many different numbers the first example is given in some epochs."""
    return len({float(next(iter(data))) for _ in range(epochs)})


dl.show("versions without a seed", versions(eight.map(brightness_drawn)))

# %% tags=["predict"]
seed_guess = dl.predict(
    "Ada and Ben both train for three epochs, after dl.set_seed(1). Ada iterates over the data "
    "three times, as `fit` does. Ben iterates once, over data.repeat(3). How many different values "
    "does the first example get in the three epochs?",
    [
        "Ada 3, Ben 3",
        "Ada 1, Ben 3",
        "Ada 3, Ben 1",
        "Ada 1, Ben 1",
    ],
)

# %%
dl.set_seed(1)
in_three_passes = versions(eight.map(brightness_drawn))
repeated = [float(draw) for draw in eight.map(brightness_drawn).repeat(3)]
with_repeat = len({repeated[0], repeated[8], repeated[16]})  # where an epoch starts

# %% tags=["reveal"]
seed_guess.reveal(
    f"Ada {in_three_passes}, Ben {with_repeat}",
    {
        "Ada 3, Ben 3": "In a plain program a seed starts one long stream of "
        "numbers. But each pass over a data set starts the operations in its `map` from the "
        "beginning, with the same seed.",
        "Ada 3, Ben 1": "`repeat` copies nothing: it calls `map` again within one "
        "pass, and the draws continue. A new pass is what starts them from the beginning.",
        "Ada 1, Ben 1": "Each new pass starts the draws from the beginning. But "
        "`repeat` is one pass, so its draws continue.",
        "Ada 1, Ben 3": "What decides is the iterator: each new one starts the "
        "operations in `map` from the same seed.",
    },
)

# %% [markdown] tags=["after-reveal"]
# With a seed, **each new pass repeats the draws of a random operation in `map`**, in the same
# order. So an image that keeps its place gets its old draw, as if that were cached. Behind a
# `shuffle`, it gets the draw of its new place. `fit` starts a new pass in each epoch. With
# `steps_per_epoch` it does so when the data end. `shuffle` is different: it reshuffles by default.
# The cure is `with_key` above: its keys differ between epochs, and repeat if you build the
# pipeline again. A [stateless
# operation](https://www.tensorflow.org/guide/random_numbers#stateless_rngs) draws from them, and
# its draws do not depend on the order of parallel calls either.

# %% tags=["after-reveal"]
keys = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True)
brightness_keyed = keys.map(lambda key: tf.random.stateless_uniform([], [key, 0]))
dl.show("versions with keys, in three epochs", versions(brightness_keyed))

# %% [markdown]
# ## Extra: Who reads which shard
#
# In one process, one pipeline feeds all replicas. On several
# [workers](../docs/glossary.md#worker), which lesson 09 starts for real, each worker runs the whole
# program, and so each has its own pipeline. The
# auto-shard policy decides which worker trains on which
# [shard](../docs/glossary.md#shard).
#
# `pipeline_of_worker` gives the pipeline that TensorFlow would make for one worker, here in our
# process. Four files hold the indices of 32 digits, 8 in each. The global batch is 8, and there are
# two workers. Under every policy, TensorFlow cuts each batch of 8 into two batches of 4, because
# a worker takes 4 examples in a step. (`counted` counts the calls of the function that it is
# given.)

# %%
import tempfile
from pathlib import Path

from distlab.course.lesson_05_input_pipelines.runs import pipeline_of_worker

until_the_end = tempfile.TemporaryDirectory()  # removed with the kernel
files = [str(Path(until_the_end.name, f"part-{number}.txt")) for number in range(4)]
for number, file in enumerate(files):
    Path(file).write_text("\n".join(str(8 * number + place) for place in range(8)))


def sharded(policy, files, workers):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    lines = tf.data.TextLineDataset(files)
    numbers = lines.map(calls.counted("decode", lambda text: tf.strings.to_number(text, tf.int32)))
    data = numbers.batch(8).with_options(options)
    parts = (pipeline_of_worker(data, workers=workers, worker=n) for n in range(workers))
    return [[batch.numpy().tolist() for batch in part] for part in parts]


# %%
from distlab.course.figures.workers import draw_readers

read_by = {policy: sharded(policy, files, 2) for policy in ("FILE", "DATA", "OFF")}
draw_readers(images.numpy()[:32], read_by, columns=4)

# %% [markdown]
# - `FILE` deals out files, like cards: worker 0 gets files 0 and 2. Each worker opens only its own.
#   The global batches differ from those of one device.
# - `DATA` gives each worker its part of each batch. The global batches are those of one device, if
#   all workers have the same order. So give `shuffle` the same seed on every worker, and give all
#   workers the same global seed (`dl.set_seed`) or none, because TensorFlow mixes it in. Without a
#   seed each worker cuts its part out of a different order: some examples are trained twice in an
#   epoch, some never, and no error appears.
# - `OFF` shards nothing. Here both workers read the same four digits in the same step, so they
#   compute the same gradient twice, and an epoch takes twice as many steps. Use it if you shard the
#   data yourself, or if each worker draws an order of its own.
# - `AUTO`, the default, is `FILE` if TensorFlow finds files in the pipeline, and `DATA` otherwise.

# %% tags=["predict"]
calls_guess = dl.predict(
    "32 examples, 8 workers, DATA. How many calls of `decode` do all workers make together in one "
    "epoch?",
    unit="calls",
)

# %%
calls.reset()
sharded("DATA", files, 8)
decoded = calls["decode"]
dl.show("calls of decode on 8 workers", decoded)

# %% tags=["reveal"]
calls_guess.reveal(
    decoded,
    {
        32: "That would be one call for each example. TensorFlow drops what is not this worker's "
        "share only after the last stage, when everything was decoded.",
        64: "That is two workers. Each of the eight workers decodes all 32.",
        256: "Each of the 8 workers decodes all 32, and keeps 4.",
        4: "That is one worker's share. But each worker decodes all 32, and then drops 28.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Under `DATA` ([glossary](../docs/glossary.md#auto-shard)) **each worker runs the whole pipeline
# and then drops what is not its share.** If decoding is what the replicas wait for, more workers do
# not help: each one decodes every example, and a step still waits for a whole global batch. A
# `cache` then holds the whole data set on every worker, too.
#
# `FILE` shares the work, but needs files to share. With fewer files than workers, the workers that
# have a file raise an error, even under `AUTO`: it falls back to `DATA` only if it finds no files
# at all. The workers without a file get no error and no data, and wait for the others. Lesson 09
# shows that hang. So look into **every** worker's log. Write files of equal size, and make their
# number a multiple of the number of workers. If you have one large file, use `DATA` or
# shard yourself.
#
# ## Extra: Shard before the work
#
# `shard(n, i)` keeps every n-th element from the i-th on. If you put it **before** the expensive
# stage, each worker does only its own part of the work. `distribute_datasets_from_function` is made
# for that: TensorFlow calls your function once on each worker and trains on what it returns. It
# cuts and shards nothing. The function is given a context:
#
# | `context.` | says |
# |---|---|
# | `num_input_pipelines` | how many workers read |
# | `input_pipeline_id` | which of them this one is, from 0 |
# | `num_replicas_in_sync` | how many replicas train, on all workers together |
# | `get_per_replica_batch_size(global_batch)` | how many examples *one replica* takes in a step |
#
# We can make such contexts ourselves, for 8 workers with one replica each:


# %%
def own_part(context):
    lines = tf.data.TextLineDataset(files)
    mine = lines.shard(context.num_input_pipelines, context.input_pipeline_id)
    decode = calls.counted("decode", lambda text: tf.strings.to_number(text, tf.int32))
    return mine.map(decode).batch(context.get_per_replica_batch_size(8))


calls.reset()
contexts = [tf.distribute.InputContext(8, worker, 8) for worker in range(8)]
read_by_all = [int(n) for context in contexts for n in own_part(context).unbatch()]
dl.show("every example once", sorted(read_by_all) == list(range(32)))
dl.show("calls of decode on 8 workers", calls["decode"])

# %% [markdown]
# 32 calls, one for each example. (Each worker still reads every line, which is cheap here. With at
# least 8 files, shard their list instead.) If you shuffle before `shard`, all workers need the same
# seeds, as under `DATA`: otherwise each takes its part of a different order, some examples are read
# twice and some by no worker.
#
# One thing differs from all data sets that you have distributed so far. Here the function returns
# batches of the global size, 16, on our four replicas:


# %%
def sizes(batch_of):
    def numbers(context):
        return tf.data.Dataset.range(74).batch(batch_of(context))

    steps = strategy.distribute_datasets_from_function(numbers)
    return [[len(part) for part in strategy.experimental_local_results(step)] for step in steps]


for shares in sizes(lambda context: 16):
    dl.show("examples on each replica", shares)

# %% [markdown]
# The first step takes 64 of the 74 examples. **A function gives batches for one replica**, and a
# step takes one such batch for each replica. Two things are then wrong, and no error tells you. A
# loss that divides by the constant 16 gives a gradient four times too large, and a learning rate
# chosen for batches of 16 may not suit batches of 64. With the context's per-replica size:

# %%
for shares in sizes(lambda context: context.get_per_replica_batch_size(16)):
    dl.show("examples on each replica", shares)

# %% [markdown]
# The last 10 examples are shared as 4, 4, 2, 0, like a partial batch from files ([lesson
# 00](00_start_here.ipynb), "Three ways to cut a batch"). A loss that divides by the number of
# examples that came is right with these shares. The step that we measured is not: it divides by 32
# even if fewer examples came. `drop_remainder=True` avoids partial batches, but never use it to
# evaluate: the dropped examples would be missing from your accuracy.
#
# ## The repaired pipeline
#
# | stage | place | why there |
# |---|---|---|
# | `shard` | first, if you shard yourself | each worker works only for itself |
# | `map(read, num_parallel_calls=...)` | after `shard` | many calls wait or compute at once |
# | `cache` | after what is expensive and always the same | pays once; freezes what is before it |
# | `shuffle` | after `cache`, before `batch` | a new order and new batches in each epoch |
# | `map(augment, num_parallel_calls=...)` | after `cache` | a new version in each epoch |
# | `batch` | after `shuffle` | the global size, or one replica's size in a function |
# | `prefetch` | last | reads ahead everything before it |
#
# On several workers, give `shuffle` the same seed everywhere, unless each worker shuffles only its
# own part.
#
# A cheap `map` that works on whole batches, such as scaling, belongs after `batch`: one call for
# each batch instead of one for each example.
#
# <details><summary>If you want to know more: what TensorFlow reads ahead by itself</summary>
#
# The next cell, which is folded, takes one batch of 4 numbers. Then a sleep of 0.3 seconds takes
# the place of a training step, and the cell counts what was read meanwhile. Without `prefetch`,
# TensorFlow has still read at least one batch ahead. Two of its
# [optimizations](https://www.tensorflow.org/api_docs/python/tf/data/experimental/OptimizationOptions)
# do that here, `inject_prefetch` and `map_and_batch_fusion`. A distributed data set reads more.
# `prefetch(2)` of your own keeps two batches ready. That helps if batches take unequal times,
# because the steps use the batches in reserve while a slow one is made.
#
# In the last line `prefetch(8)` comes before `map`. If it kept results of `read` ready, we would
# count eight calls more than the batch of 4 that is read ahead anyway. We do not: it kept eight
# bare numbers ready, and the calls of `read`, which would be the slow part of a real pipeline, were
# still to be made.
# </details>

# %% tags=["hide-input"]
numbers = tf.data.Dataset.range(400)


def read_ahead(data):
    calls.reset()
    iterator = iter(data)
    next(iterator)  # one batch of 4
    time.sleep(1)  # in place of a training step
    return calls["read"] - 4


plain = numbers.map(read_counted).batch(4)
dl.show("without prefetch: at least one batch", read_ahead(plain) >= 4)
dl.show("with prefetch(2): at least two batches", read_ahead(plain.prefetch(2)) >= 8)
ahead_of_replicas = read_ahead(strategy.experimental_distribute_dataset(plain))
dl.show("distributed: more than one batch", ahead_of_replicas > 4)
slow_part_last = numbers.prefetch(8).map(read_counted).batch(4)
dl.show("prefetch(8) before map: eight calls of read more", read_ahead(slow_part_last) >= 8 + 4)

# %% [markdown]
# We repair our pipeline and measure again, first without a cache, for data that no cache can
# hold. This version shuffles the numbers, before anything is read. `split_step` makes one
# pass before it starts the clock (up to 200 batches, and we have 8), so the cache of the second
# pipeline is full, and this is a step from epoch 2 on:

# %%
options = tf.data.Options()
options.threading.private_threadpool_size = 16
in_order = tf.data.Dataset.range(256)
repaired = {
    "without a cache": in_order.shuffle(256, seed=1).map(read, num_parallel_calls=16),
    "with a cache": in_order.map(read, num_parallel_calls=16).cache().shuffle(256, seed=1),
}
for name, examples in repaired.items():
    data = examples.batch(BATCH).prefetch(tf.data.AUTOTUNE).with_options(options)
    after = split_step(step, strategy.experimental_distribute_dataset(data), passes=5)
    dl.show(f"{name}, a step is shorter than as found", after.real_ms < split.real_ms)

# %% [markdown]
# <details><summary>In plain TensorFlow</summary>
#
# `split_step` times a `for` loop with `time.perf_counter()` three times: as it is, with one batch
# instead of the data set, and without the step. Before it reads the clock,
# `tf.test.experimental.sync_devices()` waits for the GPU. `pipeline_of_worker` calls the functions
# that `experimental_distribute_dataset` calls on each worker. The [TensorFlow
# Profiler](https://www.tensorflow.org/guide/data_performance_analysis) shows the stages of a
# pipeline on a timeline, and names the slowest one.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# **PyTorch:** `DataLoader(num_workers=8, prefetch_factor=2)` reads in 8 processes, each two batches
# ahead. `num_workers=0`, the default, reads in the training process, between two steps.
# `DistributedSampler` gives each process its examples. It needs `set_epoch(epoch)`, or each epoch
# has the same order. **JAX** reads with `tf.data`, with PyTorch's `DataLoader`, or with
# [Grain](https://google-grain.readthedocs.io/). Grain gives a random transformation a generator
# for each example, as `with_key` gives it a key. Each process loads its own part of the global
# batch.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. The real step takes 50 ms, on one cached batch 48 ms, and the input alone 30
# ms. What do you repair?</summary>
# Not the input. It is hidden already, and at most 2 ms can be gained. Make the computation faster.
# </details>
#
# <details><summary>2. The real step takes 78 ms, on one cached batch 48 ms, and the input alone 30
# ms. What do you repair?</summary> 78 is the sum. Probably nothing is read ahead, for example
# because a Python loop makes the batches; or the pipeline and the step compete for the same
# processors. With GPUs the first cause is the likelier one. Put that loop into a
# <code>tf.data</code> pipeline that ends in <code>prefetch</code>. A step then takes about 48 ms.
# </details>
#
# <details><summary>3. A colleague moves <code>cache()</code> to the end of the pipeline, and each
# epoch is faster. The validation accuracy falls by 2 points. Why?</summary>
# The cache froze the order, the batches and the augmentation of the first epoch.
# </details>
#
# <details><summary>4. (Extra) 16 workers read one file of 100,000 images. Decoding is the slow
# part. Why do 16 workers take as long as one for a global batch?</summary>
# Under DATA each worker decodes every image. Under AUTO the job would fail, because there are fewer
# files than workers. Shard before decoding.
# </details>
#
# <details><summary>5. (Extra) Four replicas, and <code>distribute_datasets_from_function</code>
# returns batches of 64. How large is the global batch?</summary>
# 256. The function gives batches for one replica.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 05](../exercises/05_input_pipelines.ipynb): repair a pipeline that is slow and wrong,
#   share files between workers, and predict the time of a step.
# - [Lesson 06](06_reproducibility.ipynb) treats seeds: what can be the same in two runs.
# - [The glossary](../docs/glossary.md) explains the terms.
# - [Better performance with the tf.data API](https://www.tensorflow.org/guide/data_performance) is
#   TensorFlow's guide. Its examples have no random stage, so it does not say that a cache freezes
#   one.
# - [Distributed input](https://www.tensorflow.org/tutorials/distribute/input) explains the
#   auto-shard policies.
# - [tf.data: A Machine Learning Data Processing Framework](https://arxiv.org/abs/2101.12127)
#   describes how the stages run, and what Google's own pipelines spend their time on.
