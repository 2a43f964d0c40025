# %% [markdown]
# # Exercise: MirroredStrategy
#
# For [lesson 01](../notebooks/01_mirrored_strategy.ipynb). You repair a model, combine gradients,
# make a variable in a step, and write a tool that finds what no error will tell you.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `scope` | repair a model that trains on one device only | 5 | easy |
# | 2. `combine_gradients` | combine gradients of unequal shares | 8 | medium |
# | 3. `count_examples` | make a variable inside a step, once | 7 | medium |
# | 4. `find_drifted` | find variables whose copies differ (optional) | 5 | medium |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below. If
# you get stuck, open the hint.

# %%
import keras
import numpy as np
import tensorflow as tf

import distlab as dl

devices = dl.split_devices(4)
strategy = dl.make_strategy("mirrored", devices=2)
tf.get_logger().setLevel("ERROR")  # no reminders that tf.function is faster
dl.show("replicas", strategy.num_replicas_in_sync, expected=2)

# %% [markdown]
# ## Task 1: a model that ignores its replicas
#
# Somebody wrote this for one device, then put a line into the scope. It trains, without an error,
# and yet something is wrong. Find it, and repair it.
#
# - `make_model(strategy, units)` returns a compiled Keras model of one layer.
# - Everything that a training step changes must have a copy on every device.
# - Move about 2 lines; you need not write new ones.
#
# <details><summary>Hint</summary>
#
# `compile` makes no weights. Which lines make variables? There are two.
# </details>


# %%
# task: scope
def make_model(strategy, units):
    ### BEGIN SOLUTION
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])
        optimizer = keras.optimizers.SGD(0.1)
        model.compile(optimizer=optimizer, loss="mse")
    ### STUB
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])
    optimizer = keras.optimizers.SGD(0.1)
    with strategy.scope():
        model.compile(optimizer=optimizer, loss="mse")
    ### END SOLUTION
    return model


# %% [markdown]
# One step of training, and what it leaves behind. What should the second line say?

# %%
model = make_model(strategy, 2)
model.fit(np.ones((4, 3)), np.ones((4, 2)), batch_size=4, verbose=0)
kernel = model.weights[0].value
dl.show("steps counted", model.optimizer.iterations.numpy())
dl.show("copies of the weights", len(strategy.experimental_local_results(kernel)))

# %%
dl.check("scope")

# %% [markdown]
# **Try next:** take only one of the two lines inside, then only the other, and run the three cells
# each time. One way stops with an error that says nothing. The other trains, and counts every step
# twice: would you have seen it?

# %% [markdown]
# ## Task 2: gradients of unequal shares
#
# Four replicas had 3, 3, 3 and 1 examples. Each has the gradient of the *mean* loss over its own
# examples. Write `combine(gradient, examples)`, which runs **on every replica** and returns, on all
# of them, the gradient of the mean loss over the global batch.
#
# - `gradient` is this replica's, a float32 vector. `examples` is how many examples this replica
#   had, a float32 number, at least 1.
# - Every example of the global batch counts the same, wherever it was.
# - It must hold for any number of replicas and any shares. About 3 lines.
#
# <details><summary>Hint</summary>
#
# On a replica, `tf.distribute.get_replica_context().all_reduce("SUM", value)` adds a value up over
# all replicas. What must be added up, to know how many examples there are? And by what must this
# replica's gradient be multiplied, before the gradients are added?
# </details>


# %%
# task: combine_gradients
def combine(gradient, examples):
    ### BEGIN SOLUTION
    context = tf.distribute.get_replica_context()
    in_batch = context.all_reduce("SUM", examples)
    return context.all_reduce("SUM", gradient * examples / in_batch)
    ### END SOLUTION


# %%
dl.check("combine_gradients")

# %% [markdown]
# **Try next:** a replica may get no example at all (5 on 4 replicas). The mean over nothing is NaN,
# and NaN times 0 is still NaN. How would you keep it out? `tf.math.divide_no_nan` is one way.

# %% [markdown]
# ## Task 3: a variable made in a step
#
# Count the examples that all replicas have seen together. The variable does not exist yet: the
# first step makes it. Write `count_examples(kept, labels)`, which runs **on every replica, inside a
# `tf.function`**.
#
# - `kept` is a dictionary, empty before the first step. Keep the variable in `kept["total"]`.
# - `labels` are this replica's labels, a vector; how many there are differs from replica to
#   replica, and from step to step.
# - After each step **every copy** of the variable holds the number of examples that all replicas
#   have seen since the first step. About 3 lines.
#
# <details><summary>Hint</summary>
#
# The number of labels is `tf.shape(labels)[0]`. Which `aggregation` gives all copies the sum of
# what the replicas add?
# </details>


# %%
# task: count_examples
def count_examples(kept, labels):
    ### BEGIN SOLUTION
    if "total" not in kept:
        kept["total"] = tf.Variable(0, aggregation=tf.VariableAggregation.SUM)
    kept["total"].assign_add(tf.shape(labels)[0])
    ### END SOLUTION


# %%
dl.check("count_examples")

# %% [markdown]
# **Try next:** solve it without an aggregation, with an all-reduce. Then with both. What does the
# check say?

# %% [markdown]
# ## Task 4: find what drifted (optional)
#
# A tool for your own training: write `find_drifted(strategy, variables)`. It returns the names of
# the variables whose copies are not all equal.
#
# - `variables` is a dictionary from a name to a mirrored variable; the variables hold vectors.
# - Return a list of names, each once, in any order.
# - Any difference counts, however small, in any element, on any replica.
# - It changes no variable. About 5 lines.
#
# <details><summary>Hint</summary>
#
# `strategy.experimental_local_results(variable)` lists the copies, one for each replica. Compare
# every one with the first: `np.array_equal(a, b)`.
# </details>


# %%
# task: find_drifted
def find_drifted(strategy, variables):
    ### BEGIN SOLUTION
    drifted = []
    for name, variable in variables.items():
        first, *others = strategy.experimental_local_results(variable)
        if not all(np.array_equal(first, other) for other in others):
            drifted.append(name)
    return drifted
    ### END SOLUTION


# %%
dl.check("find_drifted")

# %% [markdown]
# **Try next:** train a Keras model with `keras.layers.BatchNormalization()` in the scope, and give
# your tool its variables: `{v.path: v.value for v in model.variables}`. Which of them drifted, and
# what would be saved?

# %% [markdown]
# ## Next steps
#
# - [Lesson 01](../notebooks/01_mirrored_strategy.ipynb), if a check sent you back to it.
# - [Lesson 03](../notebooks/03_custom_training_loop.ipynb) puts these pieces into a training loop
#   of your own.
