# %% [markdown]
# # Exercise: reproducibility
#
# For [lesson 06](../notebooks/06_reproducibility.ipynb). You repair a run that is never the same
# twice, give each replica masks of its own, and say of two runs whether they can be equal.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `equal_runs` | repair a run, so that it can be repeated | 8 | easy |
# | 2. `replica_masks` | masks for each replica, the same on a second run | 12 | medium |
# | 3. `expectations` | sort pairs of runs: equal in every bit, close, different | 10 | medium |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below. If
# you get stuck, open the hint.
#
# Switch `deterministic=True` on if you like: it stays on until you restart the kernel, and the
# checks hold with it and without.

# %%
import random

import keras
import numpy as np
import tensorflow as tf

import distlab as dl

devices = dl.split_devices(4)
strategy = dl.make_strategy("mirrored", devices=devices)
tf.get_logger().setLevel("ERROR")  # no reminders that tf.function is faster
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## Task 1: a run that can be repeated
#
# These two functions draw random numbers. Do not change them; `train_once`, further below, calls
# them. Before you go on: which of the streams does each of them draw from?


# %%
# given
def build():
    layers = [keras.layers.Flatten(), keras.layers.Dense(16, "relu")]
    layers += [keras.layers.Dropout(0.5), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return model


def make_data():
    (digits,) = dl.load_dataset("digits", splits=["train[:120]"], batch_size=120)
    images, labels = next(iter(digits))
    noise = np.random.normal(scale=0.1, size=images.shape)
    data = tf.data.Dataset.from_tensor_slices((images + noise.astype("float32"), labels))
    return data.shuffle(120).batch(20)


# %% [markdown]
# Somebody wanted runs that can be repeated, and wrote a line for it. It does nothing: find out
# why, and repair `train_once`.
#
# - `train_once(seed, build, make_data)` trains for two epochs and returns the weights.
# - The same seed gives the same run, whatever was drawn before it. Another seed gives another run.
# - `build` and `make_data` make a model and a data set, as above. The check brings its own, which
#   draw from the same streams.
# - Change 1 line, or move it, or both.
#
# <details><summary>Hint</summary>
#
# Two things are wrong: which streams it seeds, and when. Who draws first: `fit`, `make_data` or
# `build`?
# </details>


# %%
# task: equal_runs
def train_once(seed, build, make_data):
    ### BEGIN SOLUTION
    dl.set_seed(seed)
    model = build()
    data = make_data()
    ### STUB
    model = build()
    data = make_data()
    random.seed(seed)
    ### END SOLUTION
    model.fit(data, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


# %% [markdown]
# Try it. Both lines should say True.


# %%
def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def train(seed):
    return train_once(seed, build, make_data)


random.seed()  # Python's stream from anywhere
dl.show("the same seed, the same weights", same(train(1), train(1)))
dl.show("another seed, other weights", not same(train(1), train(2)))

# %%
dl.check("equal_runs")

# %% [markdown]
# **Try next:** move your line down by one, then by two. What does the check say each time? Then
# take Keras's `keras.utils.set_random_seed` in its place, and then three lines, one for each
# stream.

# %% [markdown]
# ## Task 2: masks for every replica
#
# Four replicas, one seed generator, made in the scope: Keras draws the same mask on all four. Write
# `seed_replica`, which runs **on each replica, at the start of each step**, so that
#
# - each replica draws masks of its own, and new ones in each step,
# - a second run draws the same masks, also one that resumes at this step,
# - another base seed gives other masks,
# - no mask comes twice. A layer may draw several times in a step: after each draw Keras adds 1 to
#   the second number of the state.
#
# `seed_replica(generator, base_seed, step)` gets
#
# - `generator`, a `keras.random.SeedGenerator`; assign to its `state`, two int64 numbers,
# - `base_seed`, a Python number, the same for the whole run,
# - `step`, an int64 tensor, as the optimizer's `iterations`.
#
# It returns nothing. About 5 lines.
#
# <details><summary>Hint</summary>
#
# `tf.random.experimental.stateless_fold_in(seed, number)` takes a seed of two numbers and returns
# another one: all of `seed` mixed in the first place, `number` itself in the second. Fold in what
# must make a difference, one after the other. Keras counts draws in the second place: what should
# stand there at the start of a step? A replica's number is
# `tf.distribute.get_replica_context().replica_id_in_sync_group`.
# </details>


# %%
# task: replica_masks
def seed_replica(generator, base_seed, step):
    ### BEGIN SOLUTION
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    seed = tf.constant([base_seed, 0], tf.int64)
    for number in (step, replica, 0):
        seed = tf.random.experimental.stateless_fold_in(seed, number)
    generator.state.assign(seed)
    ### END SOLUTION


# %%
dl.check("replica_masks")

# %% [markdown]
# **Try next:** put `generator.state.assign([base_seed, step + replica])` in, with the types made to
# fit, and find two places that get the same mask. The check says whether there are any.

# %% [markdown]
# ## Task 3: what can be equal
#
# Two runs train the same model on the same data with the same global batch, on the same machine,
# with op determinism, for few steps. Write `expect(first, second)`, which says what to expect of
# their weights:
#
# - `"bitwise"`: equal in every bit,
# - `"close"`: apart by rounding only,
# - `"different"`: anything else.
#
# Each run is a dictionary:
#
# | key | value |
# |---|---|
# | `"seed"` | the seed that was set before all else, or `None`: nobody set one |
# | `"replicas"` | how many replicas it ran on |
# | `"dropout"` | the rate, the same for both runs; `0.0` is no dropout. Masks are those of task 2 |
# | `"resumed"` | `"no"`, or after a stop `"with place"` or `"without place"` in the data |
#
# Weights and optimizer are always restored. No pair has two runs `"without place"`. About 7 lines.
#
# <details><summary>Hint</summary>
#
# Begin with what makes them different whatever else they share: seeds, and the place in the data.
# What is left differs in the number of replicas at most. When is that rounding, and when are other
# numbers drawn?
# </details>


# %%
# task: expectations
def expect(first, second):
    ### BEGIN SOLUTION
    if first["seed"] is None or first["seed"] != second["seed"]:
        return "different"
    if "without place" in (first["resumed"], second["resumed"]):
        return "different"
    if first["replicas"] == second["replicas"]:
        return "bitwise"
    return "different" if first["dropout"] > 0 else "close"
    ### END SOLUTION


# %%
dl.check("expectations")

# %% [markdown]
# **Try next:** do not believe it, run it. `dl.distribute(build, strategy)` on 2 and on 4 devices,
# one epoch, with and without dropout: `dl.show("apart by", ..., below=1e-6)`.

# %% [markdown]
# ## Next steps
#
# - [Lesson 06](../notebooks/06_reproducibility.ipynb), if a check sent you back to it.
# - Take `train_once` to a model of your own, and run it in two fresh kernels. What is not equal
#   tells you which stream you forgot.
