# %% [markdown]
# # Reproducibility: the same numbers twice
#
# Train a network twice with the same code and the same data, and its accuracy can differ by up to
# 10.8 percentage points. [Pham et al.
# (2020)](https://hvpham.github.io/publication/2020-ASE-Variance) measured that with six well-known
# networks, and with all seeds fixed, up to 2.9 points still remained. Most of the 901 researchers
# and engineers whom they asked didn't know, or weren't sure, that fixed seeds aren't enough. If
# your new idea gains one point, such a difference can hide the gain, or invent it.
#
# So what does it take to get the same numbers twice, and when can't you have them? After this
# lesson you can
#
# - say which seed reaches which random number, and where to set it,
# - make two training runs identical [bit for bit](../docs/glossary.md#bit-for-bit),
# - give each [replica](../docs/glossary.md#replica) dropout masks of its own, and draw them again
#   after a restart,
# - say whether two runs can be identical, close or different before you compare them.
#
# Allow {minutes}, and the longer time if you open every fold. You need lesson
# [01](01_mirrored_strategy.ipynb) (mirrored variables and their `aggregation`) and lesson
# [03](03_custom_training_loop.ipynb) (the replica step), but no GPU and no download.
#
# <details><summary>Do you remember? Lesson 01: a variable with <code>aggregation</code> NONE gets a
# different value on each replica, inside <code>strategy.run</code>. What happens?</summary>
#
# Each copy keeps its own value, and no error is raised. In lesson 01 that was the trap, and today
# it's the tool.
#
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)

# %%
import random
import tempfile

import keras
import numpy as np
import tensorflow as tf

from distlab.course.lesson_06_reproducibility.figures import draw_masks, draw_seeds
from distlab.course.lesson_06_reproducibility.runs import compare, on_replicas, what_repeats

tf.get_logger().setLevel("ERROR")  # no reminders that we compile many small functions
(digits,) = dl.load_dataset("digits", splits=["train[:200]"], batch_size=200)
(images, labels) = next(iter(digits))

# %% [markdown]
# ## What a seed is worth
#
# Our model is small and has dropout, and our data set is shuffled. `train` makes both before it
# trains:


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
# We train this model five times, each time from another seed, and change nothing else:

# %% tags=["numbers-vary"]
curves = {}
for seed in range(1, 6):
    dl.set_seed(seed)
    _, curves[f"seed {seed}"] = train(epochs=6)
draw_seeds(curves)

# %% [markdown]
# Only the seed differs, and yet the curves of the training accuracy are up to 12 points apart. A
# single run of a new design can't tell you whether the design is better or its seed was luckier, so
# compare two designs over several seeds. When you look for a bug you need the opposite, namely two
# runs in which nothing differs, and the rest of this lesson shows how to get them.
#
# > **Takeaway.** Compare designs over several seeds, because luck alone can be worth more than your
# > idea. Hunt bugs with runs that are identical.
#
# <details><summary>Fine print</summary>
#
# The data set shuffles itself, because `fit` ignores its own `shuffle` for a `tf.data.Dataset`.
# That argument is True by default, and Keras warns about it, so we pass `shuffle=False`.
#
# </details>
#
# ## Three streams of random numbers
#
# A program takes its random numbers from a stream, and a seed says where the stream begins. The
# trouble is that a Keras program has three of them: Python's, NumPy's and TensorFlow's.

# %% tags=["predict"]
stream_guess = dl.predict(
    "A script calls tf.random.set_seed(1) in its first line, then builds a Keras model. "
    "Do two runs of the script begin with the same weights?",
    ["yes", "no: the weights come from NumPy's stream", "no: they come from Python's stream"],
)

# %% [markdown]
# `what_repeats` seeds, draws four things, seeds again and draws again. What comes out the same is
# what that seed reaches:

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
        "no: they come from Python's stream": "Keras 3 seeds its layers from Python's `random`, "
        "whatever computes their weights.",
        "yes": "It would be so if TensorFlow drew the weights from a stream of its own. In Keras 3 "
        "its seed reaches only what TensorFlow itself draws, here the order of the data.",
        "no: the weights come from NumPy's stream": "You're right that TensorFlow's seed misses "
        "them. But NumPy's stream gives only what you draw from np.random yourself.",
    },
)

# %% [markdown] tags=["after-reveal"]
# For each weight matrix and each dropout layer, Keras 3 draws one number from Python's stream, and
# computes every weight or mask from that number. A dropout layer keeps a small generator, which
# starts from its number and then counts by itself. No single stream reaches everything, so
# `dl.set_seed` seeds all three.
#
# It matters where you do it. A layer takes its number in its constructor, so seed **before** the
# first layer is made, which here means before `build`. A second run continues the streams where the
# first one stopped, so seed before **each** run.
#
# Seeds still don't fix everything. Some operations, most of them **on a GPU**, let many threads add
# to one number in an order that changes from run to run. [Op
# determinism](../docs/glossary.md#op-determinism) allows only operations that give the same bits
# each time, and you pay for it with speed. Below, `deterministic=True` turns it on, and `compare`
# says whether two lists of weights are identical bit for bit, closer than 1e-6 everywhere, or
# different:

# %%
dl.set_seed(1, deterministic=True)
(first, _), (second, _) = train(), train()
dl.show("seeded once, then two runs", compare(first, second))

dl.set_seed(1)
again, _ = train()
dl.show("seeded before each run", compare(first, again))

# %% [markdown]
# After a single seed, the second run took the numbers that the first one had left in the streams.
# With the seed in front of it, the run repeats the first one bit for bit.
#
# > **Takeaway.** Call `dl.set_seed` before the first layer is made, and again before each run. On a
# > GPU, add `deterministic=True`.
#
# <details><summary>Fine print</summary>
#
# In plain TensorFlow, `dl.set_seed(1)` is `keras.utils.set_random_seed(1)`, and
# `deterministic=True` calls `tf.config.experimental.enable_op_determinism()` as well. To undo op
# determinism, you must restart the kernel, which is the Python process of the notebook
# ([more](../docs/pitfalls.md#two-runs-on-a-gpu-differ-although-all-seeds-are-set)).
#
# </details>
#
# ## The order of the data
#
# `shuffle` takes a seed of its own, as in `make_data`, and combines it with TensorFlow's seed. But
# a data set also counts how often it was read, as these eight examples show:

# %%
data = tf.data.Dataset.range(8).shuffle(8, seed=3)
dl.show("first reading ", list(data.as_numpy_iterator()))
dl.show("second reading", list(data.as_numpy_iterator()))

data = tf.data.Dataset.range(8).shuffle(8, seed=3)
dl.show("made again, first reading", list(data.as_numpy_iterator()))

# %% [markdown]
# Each reading has a new order, which is what you want from one epoch to the next. A second model
# that trains on the same `data` begins where the first one stopped counting, though, and so it sees
# other orders. A run that resumes after a crash needs its place in the data besides, and [lesson
# 11](11_fault_tolerance.ipynb) saves it.
#
# > **Takeaway.** A data set remembers how often it was read, so make it again for each run.
#
# <details><summary>Fine print</summary>
#
# Give `shuffle` a seed even after `dl.set_seed`. Without one it takes the next number of
# TensorFlow's stream, and [one more random line above
# it](../docs/pitfalls.md#a-different-order-of-data-after-an-unrelated-change) changes the order.
#
# </details>
#
# ## Dropout: the masks of two replicas
#
# So far a single device did all the work, and now two replicas share a dropout layer that's made in
# the [scope](../docs/glossary.md#scope). A *mask* says which units are dropped. We give the layer
# ones, so its output *is* the mask: 0 for a unit that it dropped, and 2 for one that it kept. Each
# replica has 8 examples of 12 units, and `on_replicas` returns what a function gives on each:

# %%
strategy = dl.make_strategy("mirrored", devices=devices[:2])
with strategy.scope():
    dropout = keras.layers.Dropout(0.5)


def draw_mask():
    return dropout(tf.ones([8, 12]), training=True)


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
keras_masks = [on_replicas(strategy, draw_mask) for _ in range(3)]
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
        "different in every draw": "It would be so if each replica started to count from a number "
        "of its own. Each has its own copy of the generator's count, but all copies start equal.",
        "identical in the first draw, different afterwards": "That needs copies that count "
        "differently. Each replica adds 1 to its own copy after each draw, so they stay equal.",
        "identical in every draw": "The copies of the generator's count start equal, and each "
        "replica changes its copy in the same way.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **Both replicas drop the same units, in every step.** The layer's generator, its `seed_generator`,
# keeps its count in a variable, the *state*. Because the layer was made in the scope, each device
# has a copy of that variable, and the copies stay equal, which is right for weights and wrong for
# masks.
#
# You ask two witnesses because each may have missed something, and if both looked away at the same
# moment, the second one is no help. Dropout is like that: it adds noise to the gradient, which
# different masks average out better than equal ones. The effect is small for our model, and you'd
# have to look for it, because no error is raised.
#
# > **Takeaway.** Under a strategy, Keras's dropout drops the same units on every replica, and no
# > error says so.
#
# <details><summary>Fine print</summary>
#
# How much noisier does the gradient get? Equal masks make the noise of this lesson's model 1.06
# times as large on 2 replicas, and 1.2 times on 8 (measured with 400 draws for one batch of 32
# digits). The most would be √8 = 2.8 times on 8 replicas, if all examples had the same gradient.
#
# </details>

# %% [markdown]
# ## Stop and resume
#
# A cloud provider can take a [spot instance](../docs/glossary.md#spot-instance) back at any time,
# and jobs reach their time limit, so you must be able to stop a training and resume it. Here you
# train one epoch, save a [checkpoint](../docs/glossary.md#checkpoint), and train the second epoch
# in a new model.


# %%
def data_of(epoch):
    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    return examples.shuffle(200, seed=epoch, reshuffle_each_iteration=False).batch(20)


def train_epochs(dropout, epochs, restored=None):
    dl.set_seed(1)
    with strategy.scope():
        model = build(dropout)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    if restored:
        checkpoint.read(restored).assert_existing_objects_matched()
    for epoch in epochs:
        model.fit(data_of(epoch), shuffle=False, verbose=0)
    return model.get_weights(), checkpoint


def resume(dropout):
    whole, _ = train_epochs(dropout, [1, 2])
    _, checkpoint = train_epochs(dropout, [1])
    path = checkpoint.write(tempfile.mkdtemp() + "/epoch_1")
    resumed, _ = train_epochs(dropout, [2], restored=path)
    return compare(whole, resumed)


# %% [markdown]
# The seed of the shuffle is the epoch's number, so a new process can compute the order of any
# epoch. `assert_existing_objects_matched` raises an error if a weight or a variable of the
# optimizer wasn't restored. `resume` then compares a run that never stopped with one that did.

# %% tags=["predict"]
resume_guess = dl.predict(
    "Seed, weights, optimizer and the order of the data are restored. The model has dropout and is "
    "trained by Keras's own `fit`. How do the weights of the two runs compare?",
    ["identical", "closer than 1e-6", "different"],
)

# %%
with_dropout, without_dropout = resume(dropout=0.5), resume(dropout=0.0)
dl.show("resumed, with dropout", with_dropout)
dl.show("resumed, without dropout", without_dropout)

# %% tags=["reveal"]
resume_guess.reveal(
    with_dropout,
    {
        "identical": "This is what you get without dropout, so all that was restored is right. "
        "With dropout, the count of the layer's generator would have to be in the checkpoint, too.",
        "closer than 1e-6": "That would be so if the two runs added the same numbers in another "
        "order. They have the same devices and the same order, and differ in what was drawn.",
        "different": "The resumed layer starts to count from the seed again, so the second epoch "
        "gets the masks of the first.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Everything was restored except a single variable, the generator's state. A `tf.train.Checkpoint`
# doesn't contain it, and neither do Keras's weights files and `.keras` files. So the resumed run
# raises no error, and goes through the masks of the first epoch again.
#
# > **Takeaway.** A Keras model with dropout doesn't resume bit for bit, because its files don't
# > hold what its random layers count.
#
# <details><summary>Fine print</summary>
#
# `reshuffle_each_iteration=False` keeps an epoch's order, however often the data set is read.
# Keras's `OrbaxCheckpoint` callback does save the state, but both replicas still drop the same
# units.
#
# </details>

# %% [markdown]
# ## Compute the state
#
# Equal masks and lost masks have one cause: a state that follows from whatever was drawn before. In
# a loop of your own you can repair both at once if you don't keep the state, but **compute it** at
# the start of each step from what you know for certain. That's a base seed for the whole run, the
# step, and the replica's index. The step is the optimizer's `iterations`, which the checkpoint has.
#
# A state is two numbers, and Keras adds 1 to the second one after each draw. So leave the second
# one to Keras, and let step and replica change the first. `stateless_fold_in(seed, number)`, a
# *fold*, mixes both numbers of `seed` into a new first number, and stores `number` as the second:


# %%
def seed_replica(layer, step):
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    seed = tf.constant([7, 0], tf.int64)  # 7 is the base seed
    for number in (step, replica, 0):
        number = tf.cast(number, tf.int64)
        seed = tf.random.experimental.stateless_fold_in(seed, number)
    layer.seed_generator.state.assign(seed)


# %% [markdown]
# With letters for the mixed numbers, the state changes like this:
#
# `[7, 0]` → `[a, step]` → `[b, replica]` → `[c, 0]`
#
# The last fold mixes the replica into the first number, and leaves a 0 where Keras begins to count.
# Each replica may assign a state of its own, because that variable has `aggregation` NONE.


# %%
def seeded_mask(step):
    seed_replica(dropout, step)
    return draw_mask()


repaired = on_replicas(strategy, seeded_mask, 3)
dl.set_seed(99)  # a second run, which drew different numbers before
second_run = on_replicas(strategy, seeded_mask, 3)
draw_masks({"Keras alone": keras_masks[0], "repaired": repaired, "second run": second_run})

# %% [markdown]
# On the left, both replicas drop the same units, and in the middle each has a mask of its own. On
# the right, a second run draws the same two masks again, whatever it drew before. So for the masks
# you have to save nothing besides the checkpoint.
#
# One number is still missing. In a model with two dropout layers, `seed_replica` gives both states
# the same two numbers, so [both layers drop the same
# units](../docs/pitfalls.md#one-mask-for-two-layers). In the exercise you add the number that tells
# them apart.
#
# > **Takeaway.** Compute a random state from base seed, step and replica, and you can draw each
# > mask again, after any restart.
#
# <details><summary>Fine print</summary>
#
# Why fold, and not just add? In `[7, step + replica]`, replica 1 in step 3 would get the mask of
# replica 0 in step 4. Folded states repeat only rarely and by chance, because Keras uses 31 bits of
# the first number: of 100,000 states (50,000 steps, 2 replicas), 3 pairs were the same. And why not
# `tf.random.uniform`? It does differ by replica, because each runs its own copy of the operation,
# with its own place in TensorFlow's stream, but a resumed run has another place.
#
# </details>
#
# ## What can be equal
#
# Masks that you compute come back only on the same number of replicas, because two masks for 10
# examples aren't one mask for 20. So with dropout you still couldn't compare four replicas with a
# single device, although that comparison finds bugs that no error reports.
#
# `dl.distribute` goes one step further, and lets its replicas draw the masks of one device. They
# all keep the same state, as in Keras's own `fit`, but this state says what the mask of the whole
# [global batch](../docs/glossary.md#global-batch) is. Each replica draws only the rows of that mask
# that belong to its own examples. So the replicas drop different units, and together they drop
# exactly what a single device drops.


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
        "identical": "That needs the same additions in the same order. Seeds and op determinism "
        "fix what is drawn and the order on each device, but four replicas sum in another order.",
        "different": "That would be so if each replica drew a mask of its own. Here each has its "
        "rows of one device's mask, so the sum over all replicas has the same terms.",
    },
)

# %% tags=["after-reveal"]
dl.show("4 replicas and 4 again", compare(four, train_on(4)))
dl.show("4 replicas and 2", compare(four, train_on(2)))

# %% [markdown] tags=["after-reveal"]
# On the same number of replicas, the weights are identical. A different number sums the same
# gradients in a different order, and a float is rounded after each addition. Nothing else is left,
# so one device is now a test for any number of replicas: whatever differs by more than rounding is
# a bug, in your code or in distlab.
#
# | two runs under `dl.distribute`, with the same seeds and data unless stated otherwise | weights |
# |---|---|
# | the same number of replicas, the same machine | identical |
# | resumed, with its place in the data and the state of its masks | identical |
# | a different number of replicas, even with dropout or `BatchNormalization` | close (rounding) |
# | a seed missing, or the place in the data lost | different |
#
# To resume, use `dl.Resume` from [lesson 11](11_fault_tolerance.ipynb), because a plain checkpoint
# misses the state of the masks under `dl.distribute`, too.
#
# > **Takeaway.** With the same number of replicas, expect the same bits, and with another number
# > expect rounding. Anything more is a bug to look for.
#
# <details><summary>Fine print</summary>
#
# - **Close** is below 1e-6 for the 10 steps above, and the difference can grow with every further
#   step. No order of a sum is always nearest to the exact one, although more parts usually are: in
#   174 of 200 draws of 65,536 numbers, four partial sums beat adding one by one. If you must know
#   which of two runs is nearer, [compute the sum in
#   float64](../docs/pitfalls.md#which-of-two-sums-is-right).
# - **Functions that hide their state**, such as `tf.nn.dropout` and `tf.random.normal`, can't draw
#   one device's numbers on several replicas, so `dl.distribute` refuses a step that calls them.
#   Draw with `keras.random` or `tf.random.stateless_normal`.
# - **Keras's own `fit`** under a strategy is close to one device only without random layers and
#   gradient clipping, with equal shares, and without `BatchNormalization`, because by default it
#   takes the mean and the variance of each replica's own examples. `dl.distribute` takes those of
#   the global batch.
# - **On a GPU**, "identical" needs op determinism, and "close" needs [two
#   settings](../docs/pitfalls.md#on-a-gpu-a-strategy-is-far-from-plain-fit) in both runs. One is
#   `jit_compile=False`, because by default `fit` compiles with XLA, TensorFlow's compiler, on one
#   GPU but not under a strategy, unless op determinism is on. The other turns off TF32, the default
#   since Ampere, which shortens the factors of a matrix product to 10 bits of fraction.
#
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch's DDP runs one process per replica, so `torch.manual_seed(base + rank)` gives each its own
# masks, while DDP copies the weights of rank 0 to all. Choose bases that are further apart than the
# number of ranks, because rank 1 of base 1 and rank 0 of base 2 have the same seed.
# `DistributedSampler.set_epoch(epoch)` sets the order of the data, and
# `torch.use_deterministic_algorithms(True)` is op determinism. JAX has no hidden stream: you pass
# keys, and `jax.random.fold_in(key, step)` does what `stateless_fold_in` did here.
#
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You call <code>set_seed</code> once and then build two models.
# Do they start equal?</summary>
#
# They don't, because the second one continues the streams where the first one stopped. Seed before
# each.
#
# </details>
#
# <details><summary>2. Why does the dropout seed contain the step, and not the count of the layer's
# own generator?</summary>
#
# After a restart you know the step. The generator's count isn't in the checkpoint, and it's the
# same on every replica.
#
# </details>
#
# <details><summary>3. Under <code>dl.distribute</code>, a colleague's run on 4 GPUs differs from
# yours on 2, by 2e-7 after ten steps with dropout. A bug?</summary>
#
# No, the sums were made in a different order. If it were 2e-3, you'd compare seeds, XLA and TF32
# first, and then look for a bug.
#
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
# - TensorFlow's guide to [random numbers](https://www.tensorflow.org/guide/random_numbers) explains
#   global and operation seeds, but it doesn't say that Keras 3 layers take theirs from Python's
#   stream.
