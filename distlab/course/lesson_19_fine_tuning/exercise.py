# %% [markdown]
# # Exercise: train the right part again
#
# This exercise follows [lesson 19](../notebooks/19_fine_tuning.ipynb). You repair a function
# that unfreezes a distributed model, count what its replicas send in a step, and keep a test out of
# the pretraining data.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `unfreeze_from` | let the upper layers learn again, on two replicas | 12 | medium | core |
# | 2. `numbers_sent` | say what a step sends, before you take one | 12 | medium | core |
# | 3. `pretraining_rows` | find the rows that pretraining may use | 12 | medium | core |
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
# The strategy is the lesson's: when a step is traced, it notes in `sent` how many numbers the step
# sends.

# %%
import keras
import tensorflow as tf

sent = []


class CountedSums(tf.distribute.ReductionToOneDevice):
    def batch_reduce_implementation(self, how, pairs, options):
        arrays = [value.values[0] for value, _ in pairs]
        sent.extend(array.shape.num_elements() for array in arrays if array.shape != [2])
        return super().batch_reduce_implementation(how, pairs, options)


strategy = dl.make_strategy("mirrored", devices=2, cross_device_ops=CountedSums())

# %% [markdown]
# `make_small` builds a model whose lower layers are frozen. `moved_by_a_step` returns the layers
# whose weights a step changes.


# %%
def make_small():
    low = keras.layers.Dense(4, name="low", trainable=False)
    norm = keras.layers.BatchNormalization(name="norm", trainable=False)
    model = keras.Sequential([keras.Input((4,)), low, norm, keras.layers.Dense(3, name="head")])
    model.compile("sgd", "mse")
    return model


def moved_by_a_step(model):
    before = {layer.name: [np.copy(w) for w in layer.get_weights()] for layer in model.layers}
    sent.clear()
    model.fit(np.ones((4, 4)), np.ones((4, 3)), verbose=0)
    return [
        name
        for name, old in before.items()
        if not all(map(np.array_equal, old, model.get_layer(name).get_weights()))
    ]


# %% [markdown]
# ## Task 1: the upper layers learn again
#
# A colleague has trained the head of a model on a frozen body, on two replicas. Now the upper
# layers should learn as well. The function `unfreeze_from` below was meant to prepare that, and
# three things are wrong. Repair it.
#
# - `model` is a `keras.Sequential` of dense layers and BatchNormalizations, made by
#   `dl.distribute`. It has been trained with every layer frozen but the last.
# - After your function, the next `fit` trains the dense layers from the one called `first` up to
#   the last one, kernels and biases, and no other layer.
# - No BatchNormalization changes, neither its statistics nor its weights.
# - `fit` uses SGD with the learning rate `rate` and the model's own loss, `model.loss`.
# - Return nothing. The repaired function has about 5 lines.
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
# **Try next:** call `unfreeze_from` on a model from `dl.distribute` and on the same model on one
# device, with the same weights. Train both for a step. Are the weights equal? What would you have
# to write in plain TensorFlow, where `compile` does not know the strategy?
#
# <details><summary>Answer</summary>
#
# They are equal up to rounding, as `dl.distribute` takes the steps of one device. In plain
# TensorFlow call `compile` inside `strategy.scope()`.
# </details>

# %% [markdown]
# ## Task 2: what will a step send?
#
# The network between your machines is slow. Before you rent them, you want to know how much traffic
# each choice of frozen layers causes. Write `numbers_sent(model)`. It looks at a compiled model and
# takes no step.
#
# - `model` is a `keras.Sequential` of layers `Dense`, `BatchNormalization` and `Dropout`, made by
#   `dl.distribute` for two replicas. Some of its layers are frozen: the first dense layer and the
#   first BatchNormalization, and one more BatchNormalization.
# - Return how many **numbers** one replica gives to the all-reduces of one training step, as `sent`
#   counts them. A BatchNormalization that learns sends more than gradients: the lesson counts 12
#   numbers for each of its features.
# - About 7 lines.
#
# <details><summary>Hint</summary>
#
# A trainable BatchNormalization has four arrays. Which of them does a step change by gradients, and
# what else does it have to know of the other replica's rows? What about a frozen one?
# </details>


# %%
# task: numbers_sent
def numbers_sent(model):
    ### BEGIN SOLUTION
    total = 0
    for layer in model.layers:
        total += sum(int(np.prod(weight.shape)) for weight in layer.trainable_weights)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            total += 12 * layer.gamma.shape[0]
    return total
    ### END SOLUTION


# %% [markdown]
# Your number and the measured one, for a model whose BatchNormalization learns:

# %%
with waits_for("numbers_sent"):
    tried = dl.distribute(make_small, strategy)
    tried.get_layer("low").trainable = tried.get_layer("norm").trainable = True
    tried.compile("sgd", "mse")
    moved_by_a_step(tried)
    dl.show("numbers sent", numbers_sent(tried), expected=sum(sent))

# %%
dl.check("numbers_sent")

# %% [markdown]
# **Try next:** [ULMFiT](https://arxiv.org/abs/1801.06146) gives each layer its own learning rate,
# 2.6 times smaller than that of the layer above. In a `train_step` of your own, multiply each
# gradient by its layer's factor before SGD applies it. Does it matter whether you multiply before
# the all-reduce or after it? Why does the factor do almost nothing with Adam?
#
# <details><summary>Answer</summary>
#
# It does not matter: the factor is the same on every replica, so it can be taken out of the sum.
# Adam divides a running mean of the gradients by the root of a running mean of their squares. A
# constant factor is in both, and cancels.
# </details>

# %% [markdown]
# ## Task 3: what pretraining must not see
#
# Some photos show two things, so they are in the data more than once, under different labels. You
# want to pretrain on the old classes and test on the new ones. Write
# `pretraining_rows(images, labels, new_classes, test_rows)`.
#
# - `images` has the shape [rows, height, width], `labels` the shape [rows].
# - `new_classes` are the labels of the new task. `test_rows` are the indices of its test
#   rows, and all of them have a new label.
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
# - [Lesson 20](../notebooks/20_tpu.ipynb) compiles a step for a TPU.
# - [The glossary](../docs/glossary.md) explains the terms.
