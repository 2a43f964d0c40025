# %% [markdown]
# # Input pipelines: feed replicas that wait
#
# A GPU that waits for data costs as much as one that computes. Researchers at UT Austin and
# Microsoft [measured nine models](https://arxiv.org/abs/2007.06775) on the servers of a large
# production cluster, and in many cases most of the training time went into waiting for the next
# batch. A second GPU on the same server doesn't help there, because both wait for the same
# pipeline.
#
# Your log won't tell you, since a slow step looks like any other step. The usual advice is to add
# `.prefetch(tf.data.AUTOTUNE)` and hope. But a pipeline owes its replicas two things: each batch
# must be there in time, and each replica must get its own share of it. `prefetch` makes sure of
# neither. After this lesson you can
#
# - find out with three measurements whether your replicas wait,
# - put `map`, `cache`, `shuffle`, `batch` and `prefetch` in the right order,
# - notice when the model sees the same "random" images in every epoch,
# - say which examples each replica and each worker gets, and who decodes them.
#
# **Time:** {minutes}. **Needs:** [lesson 03](03_custom_training_loop.ipynb), and `tf.data` as far
# as `map` and `batch`, but no GPU and no download.
#
# <details><summary>Do you remember? Lesson 01: one of two replicas takes twice as long as the
# other. How fast is a step?</summary>
#
# As slow as the slower replica, because nobody gets past the all-reduce before all have arrived. So
# a single replica that waits for data makes all of them wait.
# </details>

# %%
import tensorflow as tf

import distlab as dl
from distlab.course.lesson_05_input_pipelines import figures, runs
from distlab.course.measure.step_split import split_step

strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4))
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# ## Does the step wait for its input?
#
# Before a step can compute, its batch must be there. Suppose that the input takes 3 units of time
# for a batch, and the computation takes 2:

# %%
figures.draw_overlap(read=3, compute=2, steps=4)

# %% [markdown]
# If nothing is read ahead, a step costs the *sum* of its two parts. If the next batch is read while
# the step computes, a step costs only the *larger* of the two, and the smaller one is hidden behind
# it. So which part of your own step is the larger one? Three times tell you:
#
# 1. **the real step**, which is the training loop as it is,
# 2. **the step on one batch that's already there**, again and again, so that nothing is read,
# 3. **the input alone**, which is the loop without the step.
#
# `split_step` takes all three. We give it a slow pipeline, in which `read` looks up one digit after
# a disk has answered, and the disk needs 2 milliseconds for that. The step is the one of lesson 03,
# on four replicas:

# %%
(digits,) = dl.load_dataset("digits", splits=["train[:256]"], batch_size=256)
images, labels = next(digits.as_numpy_iterator())
read = runs.slow_disk(images, labels)
as_found = tf.data.Dataset.range(256).map(read).batch(32)

step = runs.make_step(strategy, batch=32)
split = split_step(step, strategy.experimental_distribute_dataset(as_found), passes=2)
dl.show("the replicas wait for more than half of each step", split.waits > 0.5)

# %% [markdown]
# `split.waits` is 1 - computation / real step, the part of a step that's waiting, and
# `print(split)` in a new cell shows your own milliseconds. Since they depend on your machine, the
# figure shows times that we recorded once, with a slower disk and a larger model. Read its three
# marks before you answer the question below. A few milliseconds more or less are chance, so don't
# wonder that the real step is a little shorter than its input.

# %%
recorded = figures.recorded_splits()
figures.draw_step_splits({"as found": recorded["as found"]})

# %% tags=["predict"]
prefetch_guess = dl.predict(
    "You add .prefetch(tf.data.AUTOTUNE) at the end of this pipeline. How long does a step take "
    "then?",
    ["as long as the computation alone", "half as long as now", "about as long as now"],
)

# %%
figures.draw_step_splits(recorded)

# %% tags=["reveal"]
part = recorded["prefetch alone"].real_ms / recorded["as found"].real_ms
prefetch_guess.reveal(
    "about as long as now" if part > 0.8 else f"{part:.1f} times as long as now",
    {
        "about as long as now": "The input alone already takes as long as the step, and on average "
        "no step can use its batches faster than they're made.",
        "as long as the computation alone": "For that, the input would have to be the shorter "
        "part, which can be hidden. `prefetch` only reads earlier, and each batch takes as long "
        "as before.",
        "half as long as now": "With two equal parts, yes, because the overlap then hides one of "
        "them. Here nearly all of the step is input.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **`prefetch` hides the shorter part behind the longer one, and makes nothing cheaper.** Here the
# computation is less than a tenth of a step, so there was hardly anything to hide. If the input is
# the longer part, you must make the input itself cheaper, either by parallel calls or by less work.
# Each of these repairs alone makes the step in the figure many times shorter, and the next section
# shows you how.
#
# > **Takeaway.** Measure the real step, the step on one batch, and the input alone. If the input
# > takes longer than the computation, `prefetch` alone can't feed your replicas.
#
# <details><summary>Fine print</summary>
#
# `split_step` calls your step, so it trains your model: give it a copy, or measure before you
# train. TensorFlow reads at least one batch ahead even if you don't ask for it, and a distributed
# data set reads more. The times are from two processors and two replicas, and `python
# benchmarks/input_pipelines.py` measures your machine. In the last row `prefetch` doesn't hide the
# input, probably because pipeline and replicas share both processors.
# </details>

# %% [markdown]
# ## Make the input cheaper
#
# An input that waits should do its waiting in parallel. `map(read)` makes one call after the other,
# while `map(read, num_parallel_calls=16)` makes up to 16 calls at once and returns the results in
# the same order. It's the difference between 16 letters that each wait for the answer to the last
# one, and 16 letters posted on the same day: the mail is no faster, but you wait only once.
#
# The calls need threads to run on, though, and by default a pipeline has only as many threads as
# your machine has processors. Here are eight calls, each of which waits until all eight have
# started. If there are too few threads, they give up after two seconds:

# %%
dl.show("calls that met, 2 threads", runs.calls_that_meet(8, threads=2))
dl.show("calls that met, 8 threads", runs.calls_that_meet(8, threads=8))

# %% [markdown]
# So if `read` waits for a disk or for a network, give its pipeline more threads, as the last cell
# of this lesson does with `options.threading.private_threadpool_size`. More threads don't help a
# `read` that computes, since computing takes processors. If it computes in Python they help even
# less, because only one thread at a time can run Python code. Decode with TensorFlow's own
# operations instead, such as `tf.io.decode_jpeg`.
#
# The other repair is less work. `cache()` keeps what comes out of the stage before it, and from the
# second epoch on it hands out these elements without calling anything before it. In the figure, a
# cache alone then does as much as all repairs together. It can't help in the first epoch, though,
# nor with data that don't fit into memory, and there you need the parallel calls.
#
# > **Takeaway.** If the input waits, give it parallel calls and threads to run them. If it repeats
# > its work in every epoch, give it a cache.
#
# <details><summary>Fine print</summary>
#
# With `num_parallel_calls=tf.data.AUTOTUNE` TensorFlow chooses the number while the pipeline runs.
# A cache is complete only after a full pass, so an epoch that you stop early leaves no cache.
# `cache("file")` keeps the elements on a disk instead of in memory.
# </details>

# %% [markdown]
# ## What a cache must not keep
#
# In the right place a cache makes every epoch faster, and in the wrong place it makes every epoch
# the same. To see how, we let the pipeline [augment](../docs/glossary.md#augmentation): `shift`
# moves an image sideways by up to 2 pixels, so that the model sees a new version in each epoch.
#
# We want draws that we can repeat, so `shift` draws by a *stateless* operation. It remembers
# nothing: you give it a *key*, and for the same key it draws the same number. A new version
# therefore needs a new key, and `with_key` puts one beside each example, a random number. With
# `rerandomize_each_iteration` it makes new keys in every epoch.


# %%
def with_key(data):
    keys = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True)
    return tf.data.Dataset.zip(data, keys)


def shift(example, key):
    number, image = example
    pixels = tf.random.stateless_uniform([], [key, 0], -2, 3, tf.int32)
    return number, tf.roll(image, pixels, axis=1)


eight = tf.data.Dataset.range(8).map(lambda number: (number, tf.gather(images, number)))
cache_early = with_key(eight.cache()).map(shift).shuffle(8, seed=1).batch(4)
cache_in_the_middle = with_key(eight).cache().map(shift).shuffle(8, seed=1).batch(4)
cache_last = with_key(eight).map(shift).shuffle(8, seed=1).batch(4).cache()

# %% [markdown]
# The three pipelines differ only in the place of the cache. `shuffle` draws a new order in each
# pass that reaches it, even with a seed.

# %% tags=["predict"]
middle_guess = dl.predict(
    "`cache_in_the_middle`: what does the model see differently in each of three epochs?",
    ["the order and the shifts", "the order only", "the shifts only", "neither"],
)

# %%
middle = runs.epochs_of(cache_in_the_middle)
dl.show("cache in the middle: orders", runs.orders(middle))
dl.show("cache in the middle: versions of the first digit", runs.versions_of_0(middle))

# %% tags=["reveal"]
changes = {
    (True, True): "the order and the shifts",
    (True, False): "the order only",
    (False, True): "the shifts only",
    (False, False): "neither",
}
middle_guess.reveal(
    changes[runs.orders(middle) > 1, runs.versions_of_0(middle) > 1],
    {
        "the order only": "`shuffle` comes after the cache. So does `shift`, but it draws from "
        "keys, and they were made before the cache, which kept them.",
        "the order and the shifts": "`shift` is called in each epoch, but with the same key for "
        "the same digit, because the cache kept the keys. New shifts need new keys.",
        "the shifts only": "You're thinking of a cache after `shuffle` and before the keys. Here "
        "the keys come before the cache, and `shuffle` after it.",
        "neither": "That's what `cache_last` does. Here `shuffle` comes after the cache, and draws "
        "a new order in each epoch.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Here is what the model sees, beside the pipeline with the cache before anything random. The number
# below an image is its place in the data set.

# %% tags=["after-reveal"]
early = runs.epochs_of(cache_early)
figures.draw_epochs({"cache in the middle": middle, "cache before anything random": early}, batch=4)

# %% tags=["after-reveal"]
dl.show("cache last: orders", runs.orders(runs.epochs_of(cache_last)))

# %% [markdown] tags=["after-reveal"]
# On the left you pay for 24 shifts, and the model sees only eight different images. With the cache
# at the end it doesn't even get a new order. No error appears, and the training loss may look
# better than before, since eight images that never change are easy to memorize. You'd notice it in
# the validation accuracy, and blame the model.
#
# > **Takeaway.** Cache what's expensive and always the same, and put everything random after the
# > cache: the order, the augmentation, and the keys that it draws from.
#
# <details><summary>Fine print</summary>
#
# `shuffle` belongs before `batch`, because after it whole batches are shuffled, and the same
# examples always come together. `shuffle(n)` holds n elements and draws from these, so an element
# can come at most n - 1 places earlier than before, and data sorted by class stay nearly sorted if
# n is small. Take n as large as the data set, or shuffle the list of files as well.
# </details>

# %% [markdown]
# ## Extra: What a seed does to the draws
#
# Most augmentations ask for no key and draw for themselves, for example with `tf.random.uniform`.
# There is no cache this time, but you want runs that you can repeat, so your program begins with
# `dl.set_seed(1)`, as lesson 06 will recommend. `versions` counts how many different values the
# first example gets in three passes over the data, and `fit` makes one such pass in each epoch.


# %%
def versions(data, epochs=3):
    return len({float(next(iter(data))) for _ in range(epochs)})


drawn_in_map = eight.map(lambda number, image: tf.random.uniform([]))
dl.show("versions without a seed", versions(drawn_in_map))

# %% tags=["predict"]
seed_guess = dl.predict(
    "The same pipeline after dl.set_seed(1). How many different values does the first example get "
    "in three epochs?",
    ["three, and in each run the same three", "three, and in each run new ones", "one"],
)

# %%
dl.set_seed(1)
drawn_in_map = eight.map(lambda number, image: tf.random.uniform([]))
in_three_passes = versions(drawn_in_map)
dl.show("versions with a seed", in_three_passes)

# %% tags=["reveal"]
seed_guess.reveal(
    "one" if in_three_passes == 1 else "three, and in each run the same three",
    {
        "one": "Each pass over the data starts the operations in its `map` again, from the same "
        "seed, so the first draw of every epoch is the same number.",
        "three, and in each run the same three": "In a plain program, yes: there a seed starts "
        "one long stream of numbers. In a data set the stream starts again with each pass.",
        "three, and in each run new ones": "That's what you get without a seed, because then "
        "TensorFlow chooses a new one for each pass.",
    },
)

# %% [markdown] tags=["after-reveal"]
# So the line that should make runs repeatable repeats every *epoch*, as if the augmentation were
# cached. The cure is `with_key` from above, because its keys differ between epochs and still repeat
# when you run the program again:

# %% tags=["after-reveal"]
keyed = with_key(eight).map(lambda example, key: tf.random.stateless_uniform([], [key, 0]))
dl.show("versions with keys, in three epochs", versions(keyed))

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** If you set a seed, let the augmentation draw from keys. An operation that draws
# > for itself starts again in every pass.
#
# <details><summary>Fine print</summary>
#
# After a `shuffle`, an image gets the draw of its new place. A seed of the operation's own freezes
# it, too. If you iterate once over `data.repeat(3)`, all three epochs are one pass, and the draws
# continue. A stateless operation also doesn't care in which order parallel calls are made.
# </details>

# %% [markdown]
# ## Which examples does each replica get?
#
# Your batches now come in time, and the second half of the question is who gets what. You batch a
# distributed data set by the [global batch](../docs/glossary.md#global-batch), and a full one is
# shared equally. Now take 44 digits in batches of 32, so that the last batch has only 12:


# %%
def last_shares(data):
    *_, last = strategy.experimental_distribute_dataset(data.batch(32))
    return [len(share) for share in strategy.experimental_local_results(last)]


dl.show("the last 12 from memory", last_shares(tf.data.Dataset.range(44)))

# %% [markdown]
# Each replica gets three, as you'd expect. If a reader of files such as `TFRecordDataset` makes the
# data set, the second rule of lesson 00 holds: a full batch of 32 has pieces of 8, the last batch
# keeps that size, and its 12 digits are shared as 8, 4, 0 and 0.
#
# Now each of 44 digits is in a file of its own. The data set begins with a list of the names, and a
# `map` opens the files, as in `keras.utils.image_dataset_from_directory`.

# %% tags=["predict"]
files_guess = dl.predict(
    "Each digit is in a file of its own, and a `map` opens the files. How are the last 12 shared?",
    ["3, 3, 3, 3", "12, 0, 0, 0", "8, 4, 0, 0"],
)

# %%
names = runs.write_numbers(files=44, lines=1)
opened_in_map = last_shares(tf.data.Dataset.from_tensor_slices(names).map(tf.io.read_file))
dl.show("the last 12 from files that a map opens", opened_in_map)

# %% tags=["reveal"]
files_guess.reveal(
    ", ".join(map(str, opened_in_map)),
    {
        "3, 3, 3, 3": "This data set begins with names in memory. TensorFlow can't see what a "
        "`map` opens, so it finds no reader of files, and cuts each batch as it comes.",
        "8, 4, 0, 0": "You're thinking of a reader such as `TFRecordDataset`. All that TensorFlow "
        "finds here is a list of names in memory, and a `map` that it can't look into.",
        "12, 0, 0, 0": "Workers can get whole files, as you'll see in a moment, but the replicas "
        "of one worker always share each of its batches.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Why does TensorFlow fix the pieces of a reader's data beforehand? If several workers read files,
# each reads different ones, so no worker ever holds a whole global batch that it could divide.
#
# You needn't learn the rules, because `dl.plan_batch` of lesson 00 knows them. What counts is the
# loss: if each replica divides by the number of examples of the whole batch, as in lesson 03, the
# gradient is the same however the batch is cut, while a mean of the replicas' means is wrong
# whenever their shares are unequal.
#
# > **Takeaway.** Count the examples on each replica. A partial batch can leave some replicas with
# > little or nothing, so only the number of all examples may divide the loss.
#
# <details><summary>Fine print</summary>
#
# Keras's own `fit` follows these two rules, and so does `fit` of `dl.distribute` on GPUs, while on
# CPUs the latter cuts as equally as possible. A `map` after `batch` can hide the batch size, and
# then each batch is cut as it comes. `drop_remainder=True` avoids partial batches, but never use it
# to evaluate, because your accuracy would miss the dropped examples.
# </details>

# %% [markdown]
# ## Which examples does each worker get?
#
# On several [workers](../docs/glossary.md#worker), which lesson 09 starts for real, each worker
# runs the whole program and so has a pipeline of its own. Which part of the data it trains on, its
# [shard](../docs/glossary.md#shard), is up to the [auto-shard](../docs/glossary.md#auto-shard)
# policy, which is an option of the data set:
#
# ```python
# options = tf.data.Options()
# options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
# data = data.with_options(options)
# ```
#
# Two files hold the indices of 16 digits, eight in each. The global batch is 8, so each of two
# workers takes 4 examples a step. `sharded` sets the policy, asks TensorFlow for each worker's
# pipeline, here in our process, and returns the batches that each worker reads.

# %%
from distlab.course.figures.workers import draw_readers

calls = runs.CountedCalls()
decode = calls.counted("decode", runs.to_number)
files = runs.write_numbers(files=2, lines=8)
data = tf.data.TextLineDataset(files).map(decode).batch(8)
read_by = {policy: runs.sharded(policy, data, workers=2) for policy in ("FILE", "DATA", "OFF")}
draw_readers(images[:16], read_by, columns=4)

# %% [markdown]
# - `FILE` deals out whole files, like cards, and here each worker gets one. No batch has the
#   examples that it would have on a single device.
# - `DATA` gives each worker its part of every batch, so the global batches are those of a single
#   device. If you shuffle, all workers need the same seed, because each cuts its part out of its
#   own order. Otherwise some examples are trained twice in an epoch, and some never.
# - `OFF` leaves the data as they are. Both workers read the same digits and compute the same
#   gradient twice, unless you have sharded the data yourself.
#
# The default, `AUTO`, is `FILE` if TensorFlow finds a reader of files in the pipeline, and `DATA`
# if it doesn't.

# %% tags=["predict"]
calls_guess = dl.predict(
    "Now eight workers share the 16 examples under DATA. How many calls of `decode` does each "
    "worker make in an epoch?",
    ["2", "8", "16"],
)

# %%
calls.reset()
runs.sharded("DATA", data, workers=8)
decoded = calls["decode"]
dl.show("calls of decode on 8 workers", decoded)
dl.show("on each of them", decoded // 8)

# %% tags=["reveal"]
calls_guess.reveal(
    str(decoded // 8),
    {
        "16": "TensorFlow drops what isn't this worker's share only after the last stage, when "
        "everything has been decoded.",
        "2": "Each worker trains on 2 examples, but TensorFlow doesn't drop the other 14 before "
        "`decode`. It runs the whole pipeline first, and drops them then.",
        "8": "Those are the lines of one file, and only `FILE` deals out files. Under `DATA` every "
        "worker reads both files, however many workers there are.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Under `DATA` **each worker runs the whole pipeline and then drops what isn't its share.** If your
# replicas wait for decoding, more workers don't help, because before each step every worker still
# decodes a whole global batch. A cache holds the whole data set on every worker, too.
#
# `FILE` shares the work, but it needs files to share. With fewer files than workers, the workers
# that have a file raise an error, while the ones without a file get no error and no data, and wait.
# Lesson 09 shows that hang, and how to find it.
#
# > **Takeaway.** `DATA` gives you the batches of a single device, and every worker decodes
# > everything. `FILE` shares the decoding, and needs at least one file for each worker.
#
# <details><summary>Fine print</summary>
#
# Write files of equal size, and make their number a multiple of the number of workers. TensorFlow
# mixes the global seed into the seed of `shuffle`, so give all workers the same `dl.set_seed`, or
# none. `dl.distribute` takes `DATA` unless you choose another policy.
# </details>

# %% [markdown]
# ## Shard before the work
#
# If you have too few files, or none, shard the data yourself, and do it early. `shard(n, i)` keeps
# every n-th element from the i-th on, and in front of `decode` it leaves each worker only its own
# examples to decode. `strategy.distribute_datasets_from_function` is made for this: it calls your
# function once on each worker, trains on what it returns, and neither shards nor cuts anything. Its
# argument, the context, says how many workers read and which one this is. We make the contexts of
# eight workers ourselves:


# %%
def own_part(context):
    lines = tf.data.TextLineDataset(files)
    mine = lines.shard(context.num_input_pipelines, context.input_pipeline_id)
    return mine.map(decode).batch(context.get_per_replica_batch_size(8))


calls.reset()
of_workers = runs.contexts(workers=8)  # as TensorFlow makes them, one replica to each
read_by_all = [int(n) for context in of_workers for n in own_part(context).unbatch()]
dl.show("every example once", sorted(read_by_all) == list(range(16)))
dl.show("calls of decode on 8 workers", calls["decode"])

# %% [markdown]
# Now all workers together decode each example once. But look at the batch size: **the function
# makes batches for one replica**, and in a step each replica takes one of them. On our four
# replicas we want a global batch of 16:


# %%
def first_shares(batch_of):
    first, *_ = strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.range(64).batch(batch_of(context))
    )
    return [len(share) for share in strategy.experimental_local_results(first)]


per_replica = first_shares(lambda context: context.get_per_replica_batch_size(16))
dl.show("get_per_replica_batch_size(16)", per_replica)
dl.show("batches of 16", first_shares(lambda context: 16))

# %% [markdown]
# With batches of 16 a step silently takes 64 examples, and a loss that divides by the constant 16
# gives a gradient four times too large.
#
# > **Takeaway.** Shard in front of the expensive stage, and return batches of
# > `context.get_per_replica_batch_size(global_batch)`.
#
# <details><summary>Fine print</summary>
#
# If you shuffle before `shard`, all workers need the same seeds, as under `DATA`. With at least as
# many files as workers, shard the list of files, so that each file is opened by one worker only. A
# partial batch from a function is cut like one that's read from files.
# </details>

# %% [markdown]
# ## The repaired pipeline
#
# You now know a place for each stage, and why it belongs there:
#
# | stage | place | why there |
# |---|---|---|
# | `shard` | first, if you shard yourself | each worker works only for itself |
# | `map(read, num_parallel_calls=...)` | after `shard` | many calls wait or compute at once |
# | `cache` | after what's expensive and always the same | the expensive work is done only once |
# | `shuffle` | after `cache`, before `batch` | a new order and new batches in each epoch |
# | `map(augment, num_parallel_calls=...)` | after `cache` | a new version in each epoch |
# | `batch` | after `shuffle` | the global size, or one replica's size in a function |
# | `prefetch` | last | reads ahead everything before it |
#
# We repair our pipeline in this order and measure it again. The cache is full by then, because
# `split_step` makes a pass before it starts the clock, so this is a step from the second epoch on.

# %%
options = tf.data.Options()
options.threading.private_threadpool_size = 16
kept = tf.data.Dataset.range(256).map(read, num_parallel_calls=16).cache()
batches = kept.shuffle(256, seed=1).batch(32)
repaired = batches.prefetch(tf.data.AUTOTUNE).with_options(options)

after = split_step(step, strategy.experimental_distribute_dataset(repaired), passes=5)
dl.show("a step is shorter than as found", after.real_ms < split.real_ms)

# %% [markdown]
# > **Takeaway.** Read once, keep what never changes, draw everything random after that, and let
# > `prefetch` come last.
#
# <details><summary>Fine print</summary>
#
# A `prefetch` before a slow `map` keeps ready only what comes before the slow part. A cheap `map`
# that works on whole batches, such as scaling, belongs after `batch`, where it's called once for
# each batch. The [TensorFlow Profiler](https://www.tensorflow.org/guide/data_performance_analysis)
# shows the stages on a timeline, and names the slowest one.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# **PyTorch:** `DataLoader(num_workers=8)` reads ahead in 8 processes, while the default of 0 reads
# in the training process, between two steps. `DistributedSampler` gives each process its examples,
# and it needs `set_epoch(epoch)`, or each epoch has the same order. **JAX** reads with `tf.data`,
# with PyTorch's `DataLoader`, or with [Grain](https://google-grain.readthedocs.io/), which gives a
# random transformation a generator for each example, as `with_key` gives it a key.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. The real step takes 50 ms, on one cached batch 48 ms, and the input alone 30
# ms. What do you repair?</summary>
#
# Not the input, because it's hidden already, and at most 2 ms can be gained. Make the computation
# faster.
# </details>
#
# <details><summary>2. The real step takes 78 ms, on one cached batch 48 ms, and the input alone 30
# ms. What do you repair?</summary>
#
# 78 is the sum, so probably nothing is read ahead, for example because a Python loop makes the
# batches. Put that loop into a <code>tf.data</code> pipeline that ends in <code>prefetch</code>,
# and a step takes about 48 ms.
# </details>
#
# <details><summary>3. A colleague moves <code>cache()</code> to the end of the pipeline. Each epoch
# is faster, and the validation accuracy falls by 2 points. Why?</summary>
#
# The cache froze the order, the batches and the augmentation of the first epoch.
# </details>
#
# <details><summary>4. 16 workers read one file of 100,000 images, and decoding is the slow part.
# Why do they take as long as a single worker for a global batch?</summary>
#
# Under DATA each worker decodes every image. Under AUTO the job would fail, because there are fewer
# files than workers. Shard before decoding.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/05_input_pipelines.ipynb): repair a pipeline that's slow and wrong,
#   share files between workers, and predict the time of a step.
# - [Lesson 06](06_reproducibility.ipynb): what can be the same in two runs, and what can't.
# - [Better performance with the tf.data API](https://www.tensorflow.org/guide/data_performance) is
#   TensorFlow's guide. Its examples have no random stage, so it doesn't say that a cache freezes
#   one.
