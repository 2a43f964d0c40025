# %% [markdown]
# # Exercise: MirroredStrategy
#
# For [lesson 01](../notebooks/01_mirrored_strategy.ipynb). You repair a model, combine means, make
# a variable in a step, and write a tool that finds what no error tells you.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `scope` | repair a model that trains on one device only | 5 | easy | core |
# | 2. `combine_shares` | combine means of unequal and empty shares | 10 | medium | core |
# | 3. `count_examples` | make a variable inside a step, once | 7 | medium | extra |
# | 4. `find_drifted` | find variables whose copies differ | 5 | medium | core |
# | 5. your own model | train it on replicas, and compare (no points) | 15 | open | extra |
#
# Write your answer in the cell that starts with `# task:`, run it, and then run the check below. If
# you get stuck, open the hint.

# %%
import keras
import numpy as np
import tensorflow as tf

import distlab as dl

dl.split_devices(4)  # two for you; the checks use up to four
strategy = dl.make_strategy("mirrored", devices=2)
tf.get_logger().setLevel("ERROR")  # no reminders that tf.function is faster
dl.show("replicas", strategy.num_replicas_in_sync, expected=2)

# %% [markdown]
# ## Task 1: a model that ignores its replicas
#
# Why does this model train on one device only, although one line was put into the scope? Repair
# `make_model(strategy, units)`, which returns a compiled Keras model of one layer.
#
# - Everything that a training step changes must have a copy on every device.
# - You need no new lines: move about 2 lines of those that are there.
#
# <details><summary>Hint</summary>
#
# What does a training step change, besides the weights? Which lines make these variables?
# </details>


# %%
# task: scope
def make_model(strategy, units):
    ### BEGIN SOLUTION
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])
        optimizer = keras.optimizers.SGD(0.1)
        model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    ### STUB
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])
    optimizer = keras.optimizers.SGD(0.1)
    with strategy.scope():
        model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    ### END SOLUTION
    return model


# %% [markdown]
# Here's one step of training, and what it leaves behind. What should the second line say?

# %%
model = make_model(strategy, 2)
model.fit(np.ones((4, 3)), np.ones((4, 2)), batch_size=4, verbose=0)
kernel = model.weights[0].value
dl.show("steps counted", model.optimizer.iterations.numpy())
dl.show("copies of the weights", len(strategy.experimental_local_results(kernel)))

# %%
dl.check("scope")

# %% [markdown]
# **Try next:** move only the first of the two lines inside, then only the second, and run the three
# cells each time. One of the two runs stops with an `AssertionError` that has no message, while the
# other counts every step twice. How would you have noticed?

# %% [markdown]
# ## Task 2: means of unequal shares, and of none
#
# What are the mean loss and the mean accuracy of the global batch, if each replica knows only its
# own? Write `combine(means, examples)`, which runs on every replica and returns them on all. Every
# example counts the same, even if some replicas had none. You need about 4 lines.
#
# <details><summary>Hint</summary>
#
# The way in which the lesson weighted gradients earns 2 of 3 points. If four replicas read batches
# of 32 from files, they share the last 10 examples as 8, 2, 0 and 0. What's NaN times 0? And what
# happens if a replica without examples stays away from the all-reduce?
# </details>


# %%
# task: combine_shares
def combine(means, examples):
    """Returns the means over all replicas' examples, the same on every replica.

    `means` is a float32 vector of this replica's own means, and `examples`, a float32 number, is
    how many examples it had. If `examples` is 0, `means` are NaN.
    """
    ### BEGIN SOLUTION
    context = tf.distribute.get_replica_context()
    in_batch = context.all_reduce("SUM", examples)
    mine = tf.math.multiply_no_nan(means, examples)  # 0 where there was no example
    return context.all_reduce("SUM", mine / in_batch)
    ### END SOLUTION


# %%
dl.check("combine_shares")

# %% [markdown]
# **Try next:** combine a variance in the same way, where each replica knows the mean and the
# variance of its own examples. Why is the mean of the variances too small? A synchronized
# BatchNormalization must solve this in every step.

# %% [markdown]
# ## Task 3: a variable made in a step
#
# How many examples have all replicas seen together, if you can make the counter only inside a step?
# A `tf.function` runs your Python code only when it makes a [trace](../docs/glossary.md#trace), a
# graph of TensorFlow's operations. A tensor of a different shape or type makes a new trace, and
# each trace would make a new variable, which TensorFlow refuses:


# %%
@tf.function
def count_steps():
    steps = tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    steps.assign_add(1)


try:
    strategy.run(count_steps)
except ValueError as error:
    print(str(error).rpartition("ValueError: ")[2].partition(". ")[0])

# %% [markdown]
# So **make it once, and keep it** where the next trace finds it, here in the dictionary `kept`.
# Write `count_examples(kept, labels)`, which runs **on every replica, inside a `tf.function`**, and
# keeps its variable in `kept["total"]`. After each step **every copy** holds the number of examples
# that all replicas have seen since the first step. You need about 3 lines.
#
# <details><summary>Fine print</summary>
#
# TensorFlow traces one replica at a time: replica 0 finds the dictionary empty and makes the
# variable, with a copy on each device, and replica 1 finds it there. You need no `with
# strategy.scope()`, because `strategy.run` enters the scope. Outside an exercise you need all this
# if, for example, the variable's shape depends on the data.
# </details>
#
# <details><summary>Hint</summary>
#
# `count_steps` lets every replica add the same. Here each replica adds a different number,
# `tf.shape(labels)[0]`. What should all copies get?
# </details>


# %%
# task: count_examples
def count_examples(kept, labels):
    """Adds this step's examples to `kept["total"]`, a variable with a copy on every replica.

    `kept` is a dictionary, empty before the first step. `labels` is a vector, with one label for
    each of this replica's examples, whose length differs between replicas and steps.
    """
    ### BEGIN SOLUTION
    if "total" not in kept:
        kept["total"] = tf.Variable(0, aggregation=tf.VariableAggregation.SUM)
    kept["total"].assign_add(tf.shape(labels)[0])
    ### END SOLUTION


# %%
dl.check("count_examples")

# %% [markdown]
# **Try next:** solve it with an all-reduce and without an aggregation. What does the check say if
# you then add `SUM` as well?

# %% [markdown]
# ## Task 4: find what drifted
#
# Which variables of your own training have copies that differ? Write `find_drifted(strategy,
# variables)`, a tool to keep, which returns their names and changes no variable. A variable has
# drifted if any element differs on any replica, however little. You need about 5 lines.
#
# <details><summary>Hint</summary>
#
# `strategy.experimental_local_results(variable)` lists the copies, one for each replica. With which
# copy do you compare each of them, and when are two arrays equal?
# </details>


# %%
# task: find_drifted
def find_drifted(strategy, variables):
    """Returns the names of the variables that have drifted, in any order.

    `variables` is a dictionary from a name to a mirrored variable, such as a vector or a matrix.
    Where all copies have NaN, they're equal.
    """
    ### BEGIN SOLUTION
    drifted = []
    for name, variable in variables.items():
        first, *copies = strategy.experimental_local_results(variable)
        if not all(np.array_equal(first, copy, equal_nan=True) for copy in copies):
            drifted.append(name)
    return drifted
    ### END SOLUTION


# %%
dl.check("find_drifted")

# %% [markdown]
# **Try next:** give your tool the variables of a model that was made outside the scope. Which of
# them does it name, and why can't it warn you of that mistake?

# %% [markdown]
# ## Task 5: your own model
#
# Does your own model train right on replicas? This task has no check. Put your model in place of
# `build_own` and your data in place of `own_data`, and answer two questions with a run.
#
# 1. Built in the scope and trained by Keras's own `fit`: which variables drift? Before you run,
#    write down which layers you suspect, and then ask your `find_drifted`. In the model below it
#    should find none. Set `synchronized=False` and run again: which two variables does it name now?
# 2. Trained by `dl.distribute`: how far are the weights from those of a single device?
#
# <details><summary>If the second number is above 1e-5</summary>
#
# Dropout and a plain `BatchNormalization` don't change it, because `dl.distribute` draws a single
# device's random numbers and normalizes by the global batch. So look for a `shuffle` in your data,
# since each `fit` gets a new order (lesson 06), and for Adam on a weight whose gradient is 0 except
# for rounding. In Adam's first step, a gradient of 1e-7 in place of 0 moves a weight by 3 % of the
# learning rate.
# </details>


# %%
def build_own():
    layers = [keras.layers.Flatten(), keras.layers.BatchNormalization(synchronized=True)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    return model


(own_data,) = dl.load_dataset("digits", splits=["train[:150]"], batch_size=32)

# %%
with strategy.scope():
    in_scope = build_own()
in_scope.fit(own_data, shuffle=False, verbose=0)

variables = {variable.path: variable.value for variable in in_scope.variables}
try:
    print("drifted:", find_drifted(strategy, variables))
except NotImplementedError:
    print("drifted: write find_drifted first (task 4)")

# %%
dl.set_seed(1)
on_one = build_own()
on_one.fit(own_data, shuffle=False, verbose=0)
dl.set_seed(1)
on_two = dl.distribute(build_own, strategy)
on_two.fit(own_data, shuffle=False, verbose=0)

pairs = zip(on_one.get_weights(), on_two.get_weights(), strict=True)
dl.show("weights apart", max(np.abs(a - b).max() for a, b in pairs), below=1e-5)

# %% [markdown]
# ## Next steps
#
# - [Lesson 02](../notebooks/02_batch_scaling.ipynb): what must change if the batch grows with the
#   replicas.
# - [Lesson 03](../notebooks/03_custom_training_loop.ipynb) puts these pieces into a training loop
#   of your own.
