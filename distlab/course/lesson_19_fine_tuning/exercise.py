# %% [markdown]
# # Exercise: train the right part again
#
# This exercise follows [lesson 19](../notebooks/19_fine_tuning.ipynb). You repair a function that
# unfreezes a distributed model, add adapters and say what they send, ship a layer without its
# adapter, and keep a test out of the pretraining data.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `unfreeze_from` | let the upper layers learn again, on two replicas | 12 | medium | core |
# | 2. `add_adapters` | train adapters only, and count what a step sends | 14 | medium | core |
# | 3. `without_adapter` | ship a layer that needs no adapter | 8 | easy | core |
# | 4. `pretraining_rows` | find the rows that pretraining may use | 12 | medium | extra |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint.

# %%
import numpy as np

import distlab as dl
from distlab.course.runs.outcomes import waits_for

dl.split_devices(4)
dl.show("data set", "random numbers: nothing is downloaded")

# %% [markdown]
# The strategy is the lesson's, whose all-reduce counts what a step sends. `make_small` builds a
# model whose lower layers are frozen, with the kind of norm that you name, and `moved_by_a_step`
# returns the layers whose weights a step changes.

# %%
import keras

from distlab.course.lesson_19_fine_tuning.sent_numbers import CountedSums

sums = CountedSums()
strategy = dl.make_strategy("mirrored", devices=2, cross_device_ops=sums)
rows = np.random.default_rng(19).normal(size=(4, 4))


def make_small(kind=keras.layers.BatchNormalization):
    low = keras.layers.Dense(4, name="low", trainable=False)
    norm = kind(name="norm", trainable=False)
    model = keras.Sequential([keras.Input((4,)), low, norm, keras.layers.Dense(3, name="head")])
    model.compile("sgd", "mse")
    return model


def a_step(model):
    model.fit(rows, np.ones((4, 3)), verbose=0)


def moved_by_a_step(model):
    before = {layer.name: [np.copy(w) for w in layer.weights] for layer in model.layers}
    a_step(model)
    return [
        name
        for name, old in before.items()
        if not all(map(np.array_equal, old, model.get_layer(name).weights))
    ]


# %% [markdown]
# ## Task 1: the upper layers learn again
#
# Why does only the head learn? A colleague has trained the head of a model on a frozen body, on two
# replicas, and `unfreeze_from` was meant to free the upper layers for the next `fit`. Three things
# are wrong with it. Repair it so that it does what its docstring says, which takes about 5 lines.
#
# <details><summary>Hint</summary>
#
# `trainable` belongs to each layer. What does it do to a BatchNormalization besides stopping its
# gradients? And when does `fit` look at `trainable`?
# </details>


# %%
# task: unfreeze_from
def unfreeze_from(model, first, rate):
    """Lets the dense layers from `first` up to the last one learn in the next `fit`.

    No other layer learns, and no number of a BatchNormalization changes. `fit` uses SGD and the
    model's own loss, `model.loss`. The function returns nothing.

    Args:
        model: A `keras.Sequential` of dense layers and BatchNormalizations, made by
            `dl.distribute`. It has been trained with every layer frozen but the last.
        first: The name of the first dense layer that learns.
        rate: The learning rate of SGD.
    """
    ### BEGIN SOLUTION
    free = False
    for layer in model.layers:
        free = free or layer.name == first
        layer.trainable = free and not isinstance(layer, keras.layers.BatchNormalization)
    model.compile(keras.optimizers.SGD(rate), model.loss)
    ### STUB
    for layer in model.layers:
        layer.trainable = True
    model.optimizer.learning_rate = rate
    ### END SOLUTION


# %% [markdown]
# The layers that a step moves before your function, and after it:

# %%
with waits_for("unfreeze_from"):
    small = dl.distribute(make_small, strategy)
    dl.show("before, a step moves", moved_by_a_step(small), expected=["head"])
    unfreeze_from(small, "low", 0.01)
    dl.show("after, a step moves", moved_by_a_step(small), expected=["low", "head"])

# %%
dl.check("unfreeze_from")

# %% [markdown]
# **Try next:** [ULMFiT](https://arxiv.org/abs/1801.06146) gives each layer its own learning rate,
# 2.6 times smaller than that of the layer above. Does it matter whether you multiply a gradient by
# its layer's factor before the all-reduce or after it? Why does the factor do almost nothing with
# Adam?
#
# <details><summary>Answer</summary>
#
# It doesn't matter: the factor is the same on every replica, so it can be taken out of the sum.
# Adam divides a running mean of the gradients by the root of a running mean of their squares. A
# constant factor is in both, and cancels.
# </details>

# %% [markdown]
# ## Task 2: adapters, and their bytes
#
# What will the network have to carry if only adapters learn? Write `add_adapters(model, rank,
# rate)`, which prepares a model for LoRA and returns how many **numbers** one replica gives to the
# all-reduce in each step. Afterwards a step trains the adapters on all `Dense` and `EinsumDense`
# layers, and nothing else. You'll need about 7 lines.
#
# <details><summary>Hint</summary>
#
# What does `enable_lora` freeze, and what not? A layer whose `trainable` is False has no trainable
# weights at all, not even new ones: on what else can you set `trainable`?
# </details>


# %%
# task: add_adapters
def add_adapters(model, rank, rate):
    """Adds adapters to a model, and returns how many numbers a replica sends in each step.

    Args:
        model: A built and compiled model, trainable throughout. It has `Dense` and `EinsumDense`
            layers, all with a bias, and others, but no BatchNormalization. `dl.distribute` calls
            this function while it builds the model.
        rank: The rank of the adapters.
        rate: The learning rate of SGD, which trains the adapters with the loss `model.loss`.
    """
    ### BEGIN SOLUTION
    for layer in model.layers:
        if isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)):
            layer.enable_lora(rank)
    for weight in model.weights:
        weight.trainable = "lora" in weight.path
    model.compile(keras.optimizers.SGD(rate), model.loss)
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    ### END SOLUTION


# %% [markdown]
# Your number and the measured one, for a model with two dense layers and a LayerNormalization:

# %%
with waits_for("add_adapters"):
    told = []

    def adapted_small():
        model = make_small(keras.layers.LayerNormalization)
        for layer in model.layers:
            layer.trainable = True
        told.append(add_adapters(model, 2, 0.1))
        return model

    adapted = dl.distribute(adapted_small, strategy)
    measured = sums.of_a_step(lambda: a_step(adapted))
    dl.show("numbers sent", told[-1], expected=measured)

# %%
dl.check("add_adapters")

# %% [markdown]
# **Try next:** call `make_small()` in the cell above, so that its norm is a BatchNormalization, and
# measure again. If you froze weight by weight, a step now sends more than you count, although none
# of the norm's weights learns. What does it send, and how do you stop it?
#
# <details><summary>Answer</summary>
#
# Frozen weights don't put the layer into inference mode. It still normalizes by the global batch,
# so the replicas tell each other the mean, the squares and the count of their rows for each
# feature, on the way forward and on the way back. `layer.trainable = False` ends that.
# </details>

# %% [markdown]
# ## Task 3: ship it without an adapter
#
# Why is the shipped layer wrong? A program that serves your model knows nothing of LoRA, so it
# needs a plain `Dense` layer that computes what the adapted one does. `without_adapter(layer)` was
# meant to return it. Repair it, in about 4 lines.
#
# <details><summary>Hint</summary>
#
# Compare `layer.kernel` with `layer.get_weights()[0]`. Which of the two was there before the
# adapter?
# </details>


# %%
# task: without_adapter
def without_adapter(layer):
    """Returns a new, built `Dense` layer without an adapter, which gives the same outputs.

    Args:
        layer: A built `keras.layers.Dense` with a bias, an activation and an adapter. Its
            `lora_alpha` can differ from its rank.
    """
    ### BEGIN SOLUTION
    plain = keras.layers.Dense(layer.units, activation=layer.activation)
    plain.build((None, layer.kernel.shape[0]))
    plain.set_weights([layer.kernel, layer.bias])
    return plain
    ### STUB
    correction = layer.lora_kernel_a @ layer.lora_kernel_b
    plain = keras.layers.Dense(layer.units, activation=layer.activation)
    plain.build((None, layer.kernel.shape[0]))
    plain.set_weights([layer.kernel + correction, layer.bias])
    return plain
    ### END SOLUTION


# %% [markdown]
# A layer of two inputs whose adapter has learned something, and your layer:

# %%
with waits_for("without_adapter"):
    layer = keras.layers.Dense(2)
    layer.build((None, 2))
    layer.set_weights([np.eye(2), np.zeros(2)])
    layer.enable_lora(1, lora_alpha=3)
    layer.lora_kernel_a.assign([[1.0], [0.0]])
    layer.lora_kernel_b.assign([[0.0, 2.0]])
    ones = np.ones((1, 2), np.float32)
    dl.show("outputs", without_adapter(layer)(ones), expected=layer(ones))

# %%
dl.check("without_adapter")

# %% [markdown]
# **Try next:** ten customers have an adapter each on one body. Would you merge, or serve the body
# with ten adapters?
#
# <details><summary>Answer</summary>
#
# Merged layers need no extra products, but ten merged models are ten bodies in memory. With
# adapters you keep one body, and pay two thin products for each request.
# </details>

# %% [markdown]
# ## Task 4: what pretraining must not see
#
# Which rows may you pretrain on, if you want to test on new classes? Some photos show two things,
# so they are in the data more than once, under different labels. Write `pretraining_rows`, which
# leaves out the new classes and each copy of a test image, and nothing else. You'll need about 5
# lines.
#
# <details><summary>Hint</summary>
#
# A row number says nothing about an image. What do you have to compare to find all copies of a
# test image, and can there be more than one?
# </details>


# %%
# task: pretraining_rows
def pretraining_rows(images, labels, new_classes, test_rows):
    """Returns a list of all rows that pretraining may use.

    These are the rows without a new label whose image is not the same, pixel for pixel, as an image
    of a test row.

    Args:
        images: An array of shape [rows, height, width].
        labels: An array of shape [rows].
        new_classes: The labels of the new task.
        test_rows: The indices of the new task's test rows. All of them have a new label.
    """
    ### BEGIN SOLUTION
    tests = {images[row].tobytes() for row in test_rows}
    old = np.flatnonzero(~np.isin(labels, new_classes))
    return [int(row) for row in old if images[row].tobytes() not in tests]
    ### END SOLUTION


# %% [markdown]
# Five images of one pixel. Rows 3 and 4 have the new label 9, and row 4 is the test. Row 1 shows
# the same as row 4.

# %%
pixels = np.array([10, 20, 30, 40, 20]).reshape(5, 1, 1)
with waits_for("pretraining_rows"):
    usable = pretraining_rows(pixels, np.array([0, 0, 1, 9, 9]), [9], [4])
    dl.show("rows", sorted(int(row) for row in usable), expected=[0, 2])

# %%
dl.check("pretraining_rows")

# %% [markdown]
# **Try next:** a copy that was resized or stored as a new JPEG has other pixels. How would you find
# it? The paper on [BiT](https://arxiv.org/abs/1912.11370) removed near duplicates of its test
# images from the pretraining data, and reports how little changed.
#
# <details><summary>Answer</summary>
#
# Make all images small and grey, and compare what is left. Or compare the features that a trained
# network computes. Both give distances instead of yes or no, so look at the nearest pairs yourself
# before you choose a limit.
# </details>

# %% [markdown]
# ## Next steps
#
# - [Lesson 19](../notebooks/19_fine_tuning.ipynb), if a check sent you back to it.
# - [Lesson 20](../notebooks/20_tpu.ipynb): what your CPU can tell you about a TPU.
# - [The glossary](../docs/glossary.md) explains the terms.
