# %% [markdown]
# # Exercise: train the right part again
#
# This exercise follows [lesson 14](../notebooks/14_transfer_learning.ipynb). You repair a function
# that unfreezes a model, give each layer its own learning rate, and keep a test out of the
# pretraining data.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `unfreeze_from` | repair a function that unfreezes the upper layers | 12 | medium |
# | 2. `layer_rates` | a smaller learning rate for each lower layer | 8 | easy |
# | 3. `pretraining_rows` | find the rows that pretraining may use | 12 | medium |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint.

# %%
import numpy as np

import distlab as dl
from distlab.coursework.unfinished_answers import waits_for

dl.split_devices(2)
dl.show("data set", "random numbers: nothing is downloaded")

# %%
import keras

# %% [markdown]
# ## Task 1: the upper layers learn again
#
# A colleague has trained the head of a model on a frozen body. Now the upper layers are to learn as
# well. The function `unfreeze_from` below was meant to prepare that, and three things are wrong.
# Repair it.
#
# - `model` is a `keras.Sequential` of dense layers and BatchNormalizations. It was compiled, and it
#   has been trained with every layer frozen but the last.
# - After your function, the next `fit` trains the kernels from the layer called `first` up to the
#   last one, and no others.
# - No BatchNormalization changes, neither its statistics nor its weights.
# - `fit` uses SGD with the learning rate `rate` and the model's own loss, `model.loss`.
# - Return nothing. Change about 6 lines.
#
# The model calls its layers itself, so there is no place for a `training=False`.
#
# <details><summary>Hint</summary>
#
# `trainable` belongs to each layer. What does it do to a BatchNormalization besides stopping its
# gradients? And when does `fit` look at `trainable`?
# </details>


# %%
# task: unfreeze_from
def unfreeze_from(model, first, rate):
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
# What your function does to a model of two blocks and a head:

# %%
blocks = [keras.layers.Dense(4, name="low"), keras.layers.BatchNormalization(name="norm")]
small = keras.Sequential([keras.Input((4,)), *blocks, keras.layers.Dense(2, name="head")])
small.compile("sgd", "mse")
with waits_for("unfreeze_from"):
    unfreeze_from(small, "head", 0.01)
    dl.show("layers that learn", [layer.name for layer in small.layers if layer.trainable])

# %%
dl.check("unfreeze_from")

# %% [markdown]
# **Try next:** call `unfreeze_from` on a model from `dl.distribute`, inside and outside of its
# strategy's scope. Which of the two does Keras refuse, and how do you know?

# %% [markdown]
# ## Task 2: a rate for each layer
#
# One small rate for a whole model is a compromise. [ULMFiT](https://arxiv.org/abs/1801.06146) gave
# each layer its own: the last layer learns with the largest rate, and each layer below learns 2.6
# times more slowly than the one above it. Write `layer_rates(layers, head_rate, factor)`.
#
# - `layers` is a list of tuples `(name, has_weights, trainable)`, from the first layer to the last.
#   The last one is the head.
# - A layer that learns has weights and is trainable.
# - Return a dictionary from the name of each layer **that learns** to its rate. The head gets
#   `head_rate`. Each of the others gets the rate of the next higher layer that learns, divided by
#   `factor`. All other layers do not appear. About 6 lines.
#
# <details><summary>Hint</summary>
#
# In which direction do you walk through the layers, and when do you divide?
# </details>


# %%
# task: layer_rates
def layer_rates(layers, head_rate, factor):
    ### BEGIN SOLUTION
    rates, rate = {}, head_rate
    for name, has_weights, trainable in reversed(layers):
        if has_weights and trainable:
            rates[name] = rate
            rate /= factor
    return rates
    ### END SOLUTION


# %%
tower = [("conv", True, False), ("dense", True, True), ("relu", False, True), ("head", True, True)]
with waits_for("layer_rates"):
    rates = layer_rates(tower, 0.01, 2.0)
    dl.show("rates", rates, expected={"head": 0.01, "dense": 0.005})

# %%
dl.check("layer_rates")

# %% [markdown]
# **Try next:** a Keras optimizer has one learning rate. How could a `train_step` of your own give
# each layer a rate with SGD? Why would the same trick do nothing with Adam?

# %% [markdown]
# ## Task 3: what pretraining must not see
#
# Some photos show two things, so they are in the data more than once, under different labels. You
# want to pretrain on the old classes and test on the new ones. Write
# `pretraining_rows(images, labels, new_classes, test_rows)`.
#
# - `images` has the shape [rows, height, width], `labels` the shape [rows].
# - `new_classes` are the labels of the new task. `test_rows` are the numbers of the rows that test
#   it, and all of them have a new label.
# - Return a list of all rows that pretraining may use: rows without a new label whose image is not
#   the same, pixel for pixel, as an image of a test row. Leave out nothing else.
# - About 5 lines.
#
# <details><summary>Hint</summary>
#
# A row number says nothing about an image. What do you have to compare to find all copies of a
# test image, and can there be more than one?
# </details>


# %%
# task: pretraining_rows
def pretraining_rows(images, labels, new_classes, test_rows):
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
    rows = pretraining_rows(pixels, np.array([0, 0, 1, 9, 9]), [9], [4])
    dl.show("rows", sorted(int(row) for row in rows), expected=[0, 2])

# %%
dl.check("pretraining_rows")

# %% [markdown]
# **Try next:** a copy that was resized or stored as a new JPEG has other pixels. How would you find
# it? The paper on [BiT](https://arxiv.org/abs/1912.11370) removed near duplicates of its tests from
# the pretraining data, and reports what changed.

# %% [markdown]
# ## Next steps
#
# - [Lesson 14](../notebooks/14_transfer_learning.ipynb), if a check sent you back to it.
# - [Lesson 15](../notebooks/15_tpu.ipynb) compiles a step for a TPU.
# - [The glossary](../docs/glossary.md) explains the terms.
