# %% [markdown]
# # Reproducibility: the same numbers twice
#
# Train a network twice with the same code and the same data, and its accuracy can differ by up to
# 10.8 percentage points.
# [Pham et al. (2020)](https://hvpham.github.io/publication/2020-ASE-Variance) measured that with
# six well-known networks. Up to 2.9 points remained when all seeds were fixed. They asked 901
# researchers and engineers: 83.8 % did not know, or were not sure, that runs can differ even when
# all seeds are fixed. If your new idea gains one point, such a difference can hide the gain, or
# invent it.
#
# ## Overview
#
# After this lesson you can
#
# - say which seed reaches which random number, and where to set it,
# - make two training runs identical [bit for bit](../docs/glossary.md#bit-for-bit),
# - say which dropout masks each [replica](../docs/glossary.md#replica) draws, and choose them
#   yourself (a mask says which units are dropped),
# - stop a run, resume it, and end with the same bits,
# - say whether two runs can be identical, close, or different, before you compare them.
#
# It takes {minutes}. You need lesson 01 (mirrored variables and their `aggregation`) and
# lesson 03 (the replica step). You need no GPU and no download.
#
# <details><summary>Do you remember? Lesson 01: a variable with <code>aggregation</code> NONE gets a
# different value on each replica, inside <code>strategy.run</code>. What happens?</summary>
# Each copy keeps its own value, and no error is raised. In lesson 01 that was the trap. In this
# lesson it is useful.
# </details>
#
# <details><summary>Do you remember? Lesson 03: each replica has the sum of its examples' losses. By
# what do you divide it?</summary>
# By the number of examples in the global batch. The gradients are then summed over the replicas.
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %%
import random
import tempfile

import keras
import numpy as np
import tensorflow as tf

from distlab.course.lesson_06_reproducibility.figures import draw_masks, draw_seeds
from distlab.course.lesson_06_reproducibility.runs import compare, what_repeats

tf.get_logger().setLevel("ERROR")  # no reminders that we compile many small functions
(digits,) = dl.load_dataset("digits", splits=["train[:200]"], batch_size=200)
(images, labels) = next(iter(digits))

# %% [markdown]
# ## What a seed is worth
#
# Here is a small model with dropout, and a shuffled data set. `train` makes both and trains. The
# data set shuffles itself: `fit` ignores its own `shuffle` for a `tf.data.Dataset`, and
# warns if it is True, the default. So we pass `shuffle=False`.


# %%
def build(dropout=0.5):
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu")]
    layers += [keras.layers.Dropout(dropout), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])
    return model


def make_data():
    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    return examples.shuffle(200, seed=3).batch(20)


def train(epochs=2):
    model = build()
    history = model.fit(make_data(), epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights(), history.history["accuracy"]


# %% [markdown]
# Here are five training runs, from five seeds. All else is the same.

# %% tags=["numbers-vary"]
curves = {}
for seed in range(1, 6):
    dl.set_seed(seed)
    _, curves[f"seed {seed}"] = train(epochs=6)
draw_seeds(curves)

# %% [markdown]
# The curves of the *training* accuracy are up to 12 points apart, and only the seed differs. One
# run of a new design cannot show whether the design is better or only its seed was luckier. So
# compare two designs over several seeds. To find a bug, you need the opposite: two runs that are
# identical.
#
# ## Three streams of random numbers
#
# A program takes its random numbers from a stream, and a seed says where the stream begins. A Keras
# program has three streams: Python's, NumPy's and TensorFlow's.

# %% tags=["predict"]
stream_guess = dl.predict(
    "A script calls tf.random.set_seed(1) in its first line, then builds a Keras model. "
    "Do two runs of the script begin with the same weights?",
    ["yes", "no: the weights come from NumPy's stream", "no: they come from Python's stream"],
)

# %% [markdown]
# `what_repeats` seeds, draws four things, seeds again and draws again.

# %%
python, numpy = what_repeats(random.seed), what_repeats(np.random.seed)
tensorflow, all_three = what_repeats(tf.random.set_seed), what_repeats(dl.set_seed)
dl.show("random.seed       ", python)
dl.show("np.random.seed    ", numpy)
dl.show("tf.random.set_seed", tensorflow)
dl.show("dl.set_seed       ", all_three)

# %% tags=["reveal"]
ANSWERS = {
    "yes": tensorflow,
    "no: the weights come from NumPy's stream": numpy,
    "no: they come from Python's stream": python,
}
(right,) = [answer for answer, found in ANSWERS.items() if found["weights"] == "same"]
stream_guess.reveal(
    right,
    {
        "no: they come from Python's stream": "Keras 3 seeds its layers from Python's `random`.",
        "yes": "In Keras 3, TensorFlow's seed reaches only what TensorFlow itself draws: here "
        "the order of the data.",
        "no: the weights come from NumPy's stream": "You are right that TensorFlow's seed misses "
        "them. NumPy's stream gives only what you draw from np.random yourself.",
    },
)

# %% [markdown] tags=["after-reveal"]
# For each weight matrix and each dropout layer, Keras 3 draws one number from Python's stream, and
# computes every weight or mask from that number. Each dropout layer has its own small generator. It
# starts from that one number and then counts by itself. No single stream reaches everything, so
# `dl.set_seed` seeds all three.
#
# <details><summary>In plain TensorFlow</summary>
#
# `dl.set_seed(1)` is `keras.utils.set_random_seed(1)`. With `deterministic=True` it also calls
# `tf.config.experimental.enable_op_determinism()`.
# </details>

# %% [markdown]
# Seeds are not always enough. Some operations let many threads add to one number, in an order that
# changes from run to run. Most of them do so only **on a GPU**. The next line turns on [op
# determinism](../docs/glossary.md#op-determinism): TensorFlow then allows only operations that give
# the same bits each time. It costs speed. To undo it, you must restart the kernel, the Python
# process of the notebook
# ([more](../docs/pitfalls.md#two-runs-on-a-gpu-differ-although-all-seeds-are-set)).

# %%
dl.set_seed(1, deterministic=True)

# %% [markdown]
# A seed acts only on the lines after it. A layer takes its number from Python's stream in its
# constructor. So seed **before** the first layer is made: here, before `build`. A second run
# continues the streams where the first one stopped, so seed before **each** run.
#
# `compare` says whether two lists of weights are identical bit for bit, closer than 1e-6
# everywhere, or different:

# %%
dl.set_seed(1)
(first, _), (second, _) = train(), train()
dl.show("seeded once, then two runs", compare(first, second))

dl.set_seed(1)
again, _ = train()
dl.show("seeded before each run", compare(first, again))

# %% [markdown]
# ## The order of the data
#
# `shuffle` takes its own seed, as in `make_data`. The order comes from this seed and from
# TensorFlow's seed, which `dl.set_seed` sets. A data set also counts how often it was read: each
# reading has a new order. Here are eight examples.

# %%
data = tf.data.Dataset.range(8).shuffle(8, seed=3)
dl.show("first reading ", list(data.as_numpy_iterator()))
dl.show("second reading", list(data.as_numpy_iterator()))

data = tf.data.Dataset.range(8).shuffle(8, seed=3)
dl.show("made again, first reading", list(data.as_numpy_iterator()))

# %% [markdown]
# A second model that is trained on the same `data` begins where the first one stopped counting. So
# **make the data set again for each run.** A run that resumes after a crash also needs its place in
# the data, which [lesson 11](11_fault_tolerance.ipynb) saves.
#
# ## Dropout: the masks of two replicas
#
# Now two replicas. The dropout layer is made in the [scope](../docs/glossary.md#scope). It gets
# ones, so its output *is* the mask: 0 for a unit that it dropped, 2 for one that it kept. Each
# replica has 8 examples of 12 units. `on_replicas` compiles a function, runs it on each replica,
# and returns the replicas' results as a list of NumPy arrays.

# %%
strategy = dl.make_strategy("mirrored", devices=devices[:2])
with strategy.scope():
    dropout = keras.layers.Dropout(0.5)


def draw_mask():
    return dropout(tf.ones([8, 12]), training=True)


def on_replicas(function, *args):
    values = strategy.run(tf.function(function), args=args)
    return [value.numpy() for value in strategy.experimental_local_results(values)]


# %% tags=["predict"]
masks_guess = dl.predict(
    "Two replicas draw three masks each from a Keras dropout layer. How do their masks compare?",
    [
        "different in every draw",
        "identical in the first draw, different afterwards",
        "identical in every draw",
    ],
)

# %%
keras_masks = [on_replicas(draw_mask) for _ in range(3)]
for draw, (on_0, on_1) in enumerate(keras_masks, 1):
    dl.show(f"draw {draw}, the masks of both replicas are", compare([on_0], [on_1]))

# %% tags=["reveal"]
equal = [compare([on_0], [on_1]) == "identical" for on_0, on_1 in keras_masks]
masks_guess.reveal(
    "identical in every draw"
    if all(equal)
    else "identical in the first draw, different afterwards"
    if equal[0]
    else "different in every draw",
    {
        "different in every draw": "Each replica has its own copy of the generator's count. But "
        "both copies start equal.",
        "identical in the first draw, different afterwards": "Each replica adds 1 to its own copy "
        "after each draw, so the copies stay equal.",
        "identical in every draw": "The copies start equal, and each replica changes its copy in "
        "the same way.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **Both replicas drop the same units, in every step.** The layer's generator, its `seed_generator`,
# keeps its count in a variable, the *state*. It was made in the scope, so each device has a copy,
# and these copies stay equal. That is right for weights, and wrong for masks.
#
# No error is raised. But dropout adds noise to the gradient, and different masks average that noise
# out better than equal ones. The effect is small for this lesson's model.
#
# <details><summary>How much noisier?</summary>
#
# We drew masks 400 times for one batch of 32 digits, and computed the gradient of this lesson's
# model each time. Equal masks make its noise 1.06 times as large on 2 replicas, and 1.2 times on 8.
# It can reach at most √8 = 2.8 times on 8 replicas, if all examples have the same gradient.
# </details>
#
# ## Stop and resume
#
# A cloud provider can take a [spot instance](../docs/glossary.md#spot-instance) back at any time,
# and jobs reach their time limit. So you must be able to stop training and resume it. Here you
# train one epoch, save, and train the second epoch in a new model.
#
# The seed of the shuffle is the epoch's number. So each epoch has its own order, and a new process
# can compute that order again. `reshuffle_each_iteration=False` keeps the order, however often the
# data set is read.


# %%
def data_of(epoch):
    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    return examples.shuffle(200, seed=epoch, reshuffle_each_iteration=False).batch(20)


def train_epochs(make, epochs, restored=None):
    dl.set_seed(1)
    model = make()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    if restored:
        checkpoint.read(restored).assert_existing_objects_matched()
    for epoch in epochs:
        model.fit(data_of(epoch), shuffle=False, verbose=0)
    return model.get_weights(), checkpoint


# %% [markdown]
# `resume` compares two runs: one trains both epochs, one stops after the first, and a new
# model resumes. The [checkpoint](../docs/glossary.md#checkpoint) has all weights and the optimizer.
# `assert_existing_objects_matched` raises an error if one of their variables was not restored.


# %%
def resume(make):
    whole, _ = train_epochs(make, [1, 2])
    _, checkpoint = train_epochs(make, [1])
    path = checkpoint.write(tempfile.mkdtemp() + "/epoch_1")
    resumed, _ = train_epochs(make, [2], restored=path)
    return compare(whole, resumed)


def in_scope(dropout=0.5):
    with strategy.scope():
        return build(dropout)


# %% tags=["predict"]
resume_guess = dl.predict(
    "Seed, weights, optimizer and the order of the data are restored. The model has dropout and is "
    "trained by Keras's own `fit`. How do the weights of the two runs compare?",
    ["identical", "closer than 1e-6", "different"],
)

# %%
with_dropout, without_dropout = resume(in_scope), resume(lambda: in_scope(0.0))
dl.show("resumed, with dropout", with_dropout)
dl.show("resumed, without dropout", without_dropout)

# %% tags=["reveal"]
resume_guess.reveal(
    with_dropout,
    {
        "identical": "This is what you get without dropout, so the restored parts are complete. "
        "But the count of the layer's generator is not in the checkpoint.",
        "closer than 1e-6": "Rounding is the same in both runs: same devices, same order. What "
        "differs is what was drawn.",
        "different": "The resumed layer starts to count from the seed again, so the second epoch "
        "gets the masks of the first.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Everything was restored except one variable, the generator's state. A `tf.train.Checkpoint` does
# not contain it, and neither do Keras's weights files and `.keras` files. Keras's `OrbaxCheckpoint`
# callback saves it, but both replicas still drop the same units.
#
# ## Compute the state
#
# In a loop of your own, one cure repairs both mistakes: equal masks on all replicas, and masks that
# are lost at a restart.
# The state has `aggregation` NONE, so each replica may assign its own. **Compute it** from what is
# known at the start of each step: a base seed for the whole run, the step, and the replica's index.
# The step is the optimizer's `iterations`, which the checkpoint has.
#
# A state is two numbers. Keras adds 1 to the second one after each draw. So let the second number
# be different for each step and replica:

# %%
BASE = 7


def two_masks(step):
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    state = tf.stack([BASE, 2 * step + replica])
    dropout.seed_generator.state.assign(tf.cast(state, tf.int64))
    return tf.stack([draw_mask(), draw_mask()])


# %% tags=["predict"]
twice_guess = dl.predict(
    "`two_masks` draws twice, as in a model that calls the layer twice in a step. Which of the "
    "four masks of a step are the same?",
    ["none", "both draws of one replica", "draw 2 of replica 0 and draw 1 of replica 1"],
)

# %%
on_0, on_1 = on_replicas(two_masks, 3)
pairs = {
    "both draws of one replica": (on_0[0], on_0[1]),
    "draw 2 of replica 0 and draw 1 of replica 1": (on_0[1], on_1[0]),
}
same = [name for name, (one, two) in pairs.items() if compare([one], [two]) == "identical"]
dl.show("the same masks", same or "none")

# %% tags=["reveal"]
twice_guess.reveal(
    same[0] if same else "none",
    {
        "none": "The two replicas start from different numbers, 6 and 7 in step 3. But replica 0 "
        "reaches 7 after its first draw.",
        "both draws of one replica": "After the first draw Keras adds 1, so the second draw of a "
        "replica starts from a different state.",
        "draw 2 of replica 0 and draw 1 of replica 1": "In step 3, replica 0 starts at 6. Keras "
        "adds 1, and replica 1 starts at 7.",
    },
)

# %% [markdown]
# So let step and replica change the *first* number, and leave the second one to Keras.
# `stateless_fold_in(seed, number)`, a *fold*, mixes both numbers of `seed` into a new first number,
# and stores `number` as the second:


# %%
def seed_replica(layer, step):
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    seed = tf.constant([BASE, 0], tf.int64)
    for number in (step, replica, 0):
        number = tf.cast(number, tf.int64)
        seed = tf.random.experimental.stateless_fold_in(seed, number)
    layer.seed_generator.state.assign(seed)


# %% [markdown]
# With letters for the mixed numbers, the state changes like this:
#
# `[7, 0]` → `[a, step]` → `[b, replica]` → `[c, 0]`
#
# Only the last fold mixes the replica into the first number. It also leaves a 0 in the second
# place, where Keras counts: it adds 1 after each draw. The 0 in `[7, 0]` only fills its place.


# %%
def seeded_mask(step):
    seed_replica(dropout, step)
    return draw_mask()


repaired = on_replicas(seeded_mask, 3)
dl.set_seed(99)  # a second run, which drew different numbers before
second_run = on_replicas(seeded_mask, 3)
draw_masks({"Keras alone": keras_masks[0], "repaired": repaired, "second run": second_run})

# %% [markdown]
# On the left, both replicas drop the same units. In the middle, each replica has its own mask. On
# the right, a second run draws these two masks again. For the masks you need to
# save nothing besides the checkpoint.
#
# <details><summary>Why not assign random numbers? And can folded states repeat?</summary>
#
# `tf.random.uniform` gives each replica different numbers, because each replica runs its own copy
# of the operation, with its own place in TensorFlow's stream. But a resumed run has a different
# place.
#
# Folded states can repeat too, but rarely and by chance: Keras uses 31 bits of the first number. Of
# 100,000 states (50,000 steps, 2 replicas), 3 pairs were the same.
# </details>

# %% [markdown]
# One number is missing. Give a model two dropout layers, and call `seed_replica(layer, step)` for
# both:

# %%
with strategy.scope():
    layers = [dropout, keras.layers.Dropout(0.5)]


def mask_of_each_layer(step):
    for layer in layers:
        seed_replica(layer, step)
    return tf.stack([layer(tf.ones([8, 12]), training=True) for layer in layers])


on_replica_0, _ = on_replicas(mask_of_each_layer, 3)
dl.show("the masks of both layers are", compare(on_replica_0[:1], on_replica_0[1:]))

# %% [markdown]
# `seed_replica` gives both states the same two numbers. So one more number must tell the layers
# apart. You write that in the exercise.
#
# ## What can be equal
#
# Masks that you compute come again, but only on the same number of replicas, because two masks for
# 10 examples are different numbers from one mask for 20. So with dropout you couldn't compare
# replicas with one device, although that comparison finds bugs that no error reports.
#
# `dl.distribute` goes one step further: its replicas draw the masks of one device. They all keep
# the same state, as under Keras, and this state says what the mask of the whole
# [global batch](../docs/glossary.md#global-batch) is. Each replica draws only the rows of that mask
# that belong to its own examples. So the replicas drop different units, and together they drop
# exactly what one device drops.


# %%
def train_on(replicas):
    dl.set_seed(1)
    some = dl.make_strategy("mirrored", devices=devices[:replicas])
    model = dl.distribute(build, some)
    model.fit(make_data(), shuffle=False, verbose=0)
    return model.get_weights()


# %% tags=["predict"]
across_guess = dl.predict(
    "The same seed and data, and 10 steps with dropout. How do the weights of 4 replicas compare "
    "with those of plain `fit` on one device?",
    ["identical", "closer than 1e-6", "different"],
)

# %%
dl.set_seed(1)
plain, _ = train(epochs=1)
four = train_on(4)

# %% tags=["reveal"]
across_guess.reveal(
    compare(plain, four),
    {
        "closer than 1e-6": "The same units are dropped, so the same terms are added. But four "
        "replicas add them in a different order, and each addition rounds.",
        "identical": "Seeds and op determinism fix what is drawn, and the order of additions on "
        "each device. But four replicas add the same numbers in a different order.",
        "different": "So it would be if each replica drew a mask of its own. Here each has its "
        "rows of one device's mask, so the sum over all replicas has the same terms.",
    },
)

# %% tags=["after-reveal"]
dl.show("4 replicas and 4 again", compare(four, train_on(4)))
dl.show("4 replicas and 2", compare(four, train_on(2)))

# %% [markdown] tags=["after-reveal"]
# The same number of replicas gives identical weights. A different number adds the same gradients in
# a different order, and a float is rounded after each addition. Nothing else is left, so one device
# is now a test for any number of replicas: whatever differs by more than rounding is a bug, in your
# code or in distlab.
#
# <details><summary>How far apart can two sums be?</summary>
#
# We added 65,536 numbers between 0 and 1 in float32, one by one and in parts, and compared with the
# exact sum in float64. One by one, the result was off by -1.19 millionths of the sum, in 2 parts by
# 2.86, in 4 parts by -0.12, and in 64 parts by less than 0.01. No order is always the best. But
# more parts are usually better, because each partial sum stays smaller and is rounded less often:
# in 174 of 200 draws of such numbers, 4 parts were nearer than one by one. If you must know which
# of two runs is nearer to the truth, compute the sum in float64.
# </details>

# %% [markdown] tags=["after-reveal"]
# | two runs under `dl.distribute`, with the same seeds and data unless stated otherwise | weights |
# |---|---|
# | the same number of replicas, the same machine | identical |
# | resumed, with its place in the data and the state of its masks | identical |
# | a different number of replicas, even with dropout or `BatchNormalization` | close (rounding) |
# | a seed missing, or the place in the data lost | different |
#
# Resume with `dl.Resume`, because a plain checkpoint misses the state under `dl.distribute`, too.
# [Lesson 11](11_fault_tolerance.ipynb) shows what else `dl.Resume` saves.
#
# `BatchNormalization` draws nothing, and still depends on how the batch is divided: under a
# strategy, Keras's own `fit` by default takes the mean and the variance of each replica's own
# examples. `dl.distribute` takes those of the global batch.
#
# <details><summary>Fine print: how close, and with what</summary>
#
# - **Close** is below 1e-6 for the 10 steps above. The difference can grow with every further step.
# - **Functions that hide their state**, such as `tf.nn.dropout` and `tf.random.normal`, cannot draw
#   one device's numbers on several replicas, so `dl.distribute` refuses a step that calls them.
#   Draw with `keras.random` or `tf.random.stateless_normal`.
# - **Keras's own `fit`** under a strategy is close to one device only without random layers and
#   `BatchNormalization`, with equal shares, and without gradient clipping, because it clips on each
#   replica.
# </details>
#
# On a GPU, "identical" needs op determinism, and "close" depends on two settings. First, by default
# `fit` compiles with XLA, TensorFlow's compiler, on one GPU but not under a strategy. Op
# determinism turns this automatic XLA off. Without op determinism, pass `jit_compile=False` to
# `compile`. Second, TF32 shortens the factors of a matrix product to 10 bits of fraction (float32
# has 23). GPUs since Ampere use it by default, so turn it off with
# `tf.config.experimental.enable_tensor_float_32_execution(False)`
# ([more](../docs/pitfalls.md#on-a-gpu-a-strategy-is-far-from-plain-fit)).
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch DDP runs one process per replica: `torch.manual_seed(base + rank)` gives each its own
# masks, and DDP copies the weights of rank 0 to all. Choose bases that are further apart than the
# number of ranks: rank 1 of base 1 and rank 0 of base 2 have the same seed.
# `DistributedSampler.set_epoch(epoch)` sets the order of the data.
# `torch.use_deterministic_algorithms(True)` is op determinism. JAX has no hidden stream: you pass
# keys, and `jax.random.fold_in(key, step)` does what `stateless_fold_in` did here.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You call <code>set_seed</code> once and then build two models.
# Do they start equal?</summary>
# No. The second one continues the stream. Seed before each.
# </details>
#
# <details><summary>2. Why does the dropout seed contain the step, and not the count of the layer's
# own generator?</summary>
# After a restart you know the step. The generator's count is not in the checkpoint, and it is the
# same on every replica.
# </details>
#
# <details><summary>3. Under <code>dl.distribute</code>, a colleague's run on 4 GPUs differs from
# yours on 2, by 2e-7 after ten steps with dropout. A bug?</summary>
# No: the sums were made in a different order. With 2e-3, compare seeds, XLA and TF32 first. Then
# look for a bug.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/06_reproducibility.ipynb): make two runs identical, give every layer
#   on every replica its own masks, and sort what can be equal.
# - [Lesson 07](07_mixed_precision.ipynb): numbers of 16 bits, where rounding is no longer small.
# - [Pitfalls](../docs/pitfalls.md): what else makes two runs differ.
# - [Glossary](../docs/glossary.md).
# - TensorFlow's guide to
#   [random numbers](https://www.tensorflow.org/guide/random_numbers) explains global and operation
#   seeds. It does not say that Keras 3 layers take theirs from Python's stream.
