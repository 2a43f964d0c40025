# %% [markdown]
# # Exercise: reproducibility
#
# For [lesson 06](../notebooks/06_reproducibility.ipynb). You repair a training that never gives the
# same weights twice, choose what each layer draws on each replica, and say of two runs whether
# their weights can be identical.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `equal_runs` | repair a training run, so that you can repeat it | 8 | easy | core |
# | 2. `replica_masks` | give each layer its own masks, on one replica or all | 12 | medium | core |
# | 3. `expectations` | sort pairs of runs: identical, close, different | 10 | medium | core |
#
# Write your answers in the cells that start with `# task:`, where a docstring says what each
# function takes and returns. Run them, and then the check below each. If you get stuck, open a
# hint. The checks work with `deterministic=True` and without it, and it stays on until you restart
# the kernel.

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
# ## Task 1: a run that you can repeat
#
# Why do two runs of `train_once` differ, although one line should make them repeatable? It calls
# these two functions, which you leave as they are. From which of the three streams does each of
# them draw?


# %%
# given
def build(dropout=0.5):
    layers = [keras.layers.Flatten(), keras.layers.Dense(16, "relu")]
    layers += [keras.layers.Dropout(dropout), keras.layers.Dense(10)]
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
# Change one line of `train_once`, or move it, or both. The check brings its own `build` and
# `make_data`, which draw from the same streams.
#
# <details><summary>Hint 1</summary>
#
# When the line that seeds is reached, which of the two functions have drawn already?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Two things are wrong: which streams the line seeds, and when.
# </details>
#
# <details><summary>Hint 3</summary>
#
# `dl.set_seed(seed)` seeds all three streams. It must be the first line of the function.
# </details>


# %%
# task: equal_runs
def train_once(seed, build, make_data):
    """Trains for two epochs and returns the weights.

    Args:
        seed: The same seed gives the same run, whatever was drawn before, and a different seed
            gives a different run.
        build: Returns a compiled model.
        make_data: Returns the data set.
    """
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
# Try it. Both lines should print True.


# %%
def same(one, two):
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def train(seed):
    return train_once(seed, build, make_data)


random.seed()  # Python's stream begins at a new place
dl.show("the same seed, the same weights", same(train(1), train(1)))
dl.show("a different seed, different weights", not same(train(1), train(2)))

# %%
dl.check("equal_runs")

# %% [markdown]
# **Try next:** move your line down by one, then by two, and read what the check says each time.
# Then replace it by three lines, one for each stream.

# %% [markdown]
# ## Task 2: masks that differ and masks that agree
#
# Which numbers must go into a layer's state, so that each mask is new where it should be new? Write
# `seed_layers`, which runs **on each replica, at the start of each step**, and assigns a `state` of
# two int64 numbers to each layer's generator. Its docstring says which masks must differ, and which
# must agree. About 7 lines are enough.
#
# <details><summary>Hint 1</summary>
#
# Besides the base seed, which four numbers identify a mask? Which of them does Keras count itself?
# Which of them must not change the state of a shared layer?
# </details>
#
# <details><summary>Hint 2</summary>
#
# `tf.random.experimental.stateless_fold_in(seed, number)` mixes both numbers of `seed` into a new
# first number, and stores `number` as the second. A replica's number is
# `tf.distribute.get_replica_context().replica_id_in_sync_group`.
# </details>
#
# <details><summary>Hint 3</summary>
#
# For each generator, start with `tf.constant([base_seed, 0], tf.int64)` and fold in the layer's
# place in the list, the step and the replica. For a shared layer, fold in a number that is the same
# on all replicas in place of the replica's. Fold in a 0 last, so that Keras counts from 0.
# </details>


# %%
# task: replica_masks
def seed_layers(generators, shared, base_seed, step):
    """Seeds the generator of each layer for one step on this replica.

    - In each step, a layer draws masks that no other layer and no other step draws.
    - It draws its own on each replica, unless it's shared: then all replicas draw the same.
    - A second run draws the same masks, and so does a run that resumes at this step. A different
      base seed gives different masks.
    - A layer draws up to 100 times in a step, and Keras adds 1 to the second number after each
      draw. Even so, no two draws use the same state, except by chance or in a shared layer.

    Args:
        generators: A list with one `keras.random.SeedGenerator` for each layer.
        shared: A list with one boolean for each layer. Stochastic depth shares a layer, because
            replicas that skip its block alone would leave the others waiting.
        base_seed: A Python number.
        step: An int64 tensor, like the optimizer's `iterations`.
    """
    ### BEGIN SOLUTION
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    for layer, generator in enumerate(generators):
        seed = tf.constant([base_seed, 0], tf.int64)
        for number in (layer, step, 0 if shared[layer] else replica, 0):
            seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int64))
        generator.state.assign(seed)
    ### END SOLUTION


# %%
dl.check("replica_masks")

# %% [markdown]
# **Try next:** replace the folds by a state without them, `[base_seed + layer, 1000 * step + 10 *
# replica]`, with the types made to fit. After how many draws does a layer reach the next replica's
# numbers, and what does the check say?

# %% [markdown]
# ## Task 3: what can be identical
#
# Can the weights of two runs be identical? Both train the model of task 1 with `dl.distribute` for
# a few steps, on the same data, with the same global batch, on the same machine and with op
# determinism. Write `expect`, which says of two runs how much their weights can differ. About 5
# lines are enough.
#
# <details><summary>Hint 1</summary>
#
# Which pairs draw different numbers or see different examples, whatever else they share?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Sort out the seeds and the lost place first. The pairs that are left differ in the number of
# replicas at most. Whose masks do the replicas of `dl.distribute` draw?
# </details>
#
# <details><summary>Hint 3</summary>
#
# The table at the end of the lesson has a row for each case. `None` means that no seed was set, so
# two runs with `None` don't share one.
# </details>


# %%
# task: expectations
def expect(first, second):
    """How equal the weights of two runs can be.

    Each run is a dictionary:

    - `"seed"`: the seed that was set before all else, or `None` if no seed was set
    - `"replicas"`: on how many replicas it ran
    - `"dropout"`: the rate, the same for both runs, where `0.0` is no dropout
    - `"resumed"`: `"no"` if it never stopped, and otherwise `"with place"` or `"without place"`:
      whether it kept its place in the data. Weights, optimizer and the states of random layers
      are always restored, and in no pair are both runs `"without place"`.

    Returns:
        `"bitwise"` if they can be identical bit for bit, `"close"` if they differ by rounding
        only, and `"different"` for anything else.
    """
    ### BEGIN SOLUTION
    if first["seed"] is None or first["seed"] != second["seed"]:
        return "different"
    if "without place" in (first["resumed"], second["resumed"]):
        return "different"
    return "bitwise" if first["replicas"] == second["replicas"] else "close"
    ### END SOLUTION


# %%
dl.check("expectations")

# %% [markdown]
# **Try next:** confirm one of your answers by a run with dropout, on two replicas and on four. Then
# leave `dl.set_seed` out, and look again.
#
# ```python
# def weights_after(replicas):
#     dl.set_seed(1)
#     strategy = dl.make_strategy("mirrored", devices=devices[:replicas])
#     model = dl.distribute(build, strategy)
#     model.fit(make_data(), verbose=0)
#     return model.get_weights()
#
# pairs = zip(weights_after(2), weights_after(4))
# dl.show("apart by", max(np.abs(a - b).max() for a, b in pairs), below=1e-6)
# ```

# %% [markdown]
# ## Next steps
#
# - [Lesson 06](../notebooks/06_reproducibility.ipynb), if a check sent you back to it.
# - [Lesson 07](../notebooks/07_mixed_precision.ipynb): mixed precision.
# - Use `train_once` with a model of your own, in two fresh kernels, and on a GPU turn on op
#   determinism first. If the weights differ, remove the shuffle, then random augmentation, then
#   dropout. Once they're equal, look for the missing seed in the part that you removed last.
