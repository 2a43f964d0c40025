# %% [markdown]
# # Exercise: without Keras
#
# For [lesson 04](../notebooks/04_without_keras.ipynb). You write or repair three updates that run
# on every replica, without Keras. The last one leaves out most all-reduces on purpose.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `sgd_step` | a step of linear regression on unequal and empty shares | 10 | medium | core |
# | 2. `adagrad_step` | repair an optimizer with state and a clipped gradient | 12 | medium | core |
# | 3. `local_step` | train apart, and average the weights now and then | 10 | medium | extra |
# | 4. how far can you go? | accuracy against all-reduces (no points) | 10 | open | extra |
#
# Write your answers in the cells that start with `# task:`, where a docstring says what each
# function takes. Run them, and then the check below each. If you get stuck, open the hint. Inside a
# step, `tf.distribute.get_replica_context().all_reduce("SUM", values)` takes a tensor or a list of
# tensors, and with `"MEAN"` it averages.

# %%
import numpy as np
import tensorflow as tf

import distlab as dl

dl.split_devices(4)
strategy = dl.make_strategy("mirrored", devices=4)
tf.get_logger().setLevel("ERROR")  # no reminders that tf.function is faster
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## Task 1: a step of linear regression
#
# How does a replica without a single example take the right step? Write `sgd_step`, which runs **on
# every replica** and takes one step of SGD. The model is `slope * x + offset`, and the loss is the
# mean squared error over the **global** batch. After the step all copies must hold what a single
# device would. About 6 lines are enough.
#
# <details><summary>Hint</summary>
#
# You need neither a mean over a replica's own examples nor a tape, because the derivative of
# `(slope * x + offset - y) ** 2` by `slope` is `2 * (slope * x + offset - y) * x`. What is the sum
# over no examples?
# </details>


# %%
# task: sgd_step
def sgd_step(slope, offset, x, y, rate):
    """Takes one step of SGD, and returns nothing.

    Args:
        slope: A mirrored variable, one number, without an aggregation.
        offset: Another variable of the same kind.
        x: This replica's float32 vector. Replicas have different numbers of examples, and one of
            them can have none.
        y: The target of each example in `x`, a float32 vector as well.
        rate: The learning rate.
    """
    ### BEGIN SOLUTION
    context = tf.distribute.get_replica_context()
    error = slope * x + offset - y
    sums = [2 * tf.reduce_sum(error * x), 2 * tf.reduce_sum(error), tf.cast(tf.size(x), tf.float32)]
    by_slope, by_offset, count = context.all_reduce("SUM", sums)
    slope.assign_sub(rate * by_slope / count)
    offset.assign_sub(rate * by_offset / count)
    ### END SOLUTION


# %%
dl.check("sgd_step")

# %% [markdown]
# **Try next:** how many all-reduces does your step need?
#
# <details><summary>Answer</summary>
#
# One is enough, for a list of three numbers: both sums of derivatives and the number of examples.
# You can divide the sums afterwards, because the global count is the same for all examples.
# </details>

# %% [markdown]
# ## Task 2: repair an optimizer with a limit
#
# Why do equal copies still hold the wrong weights? Adagrad divides each step by the root of the sum
# of all squared gradients so far, and here the gradient is first limited to the range from `-limit`
# to `limit`. The function is right on one device, and wrong on four replicas. Change 2 lines to
# repair it.
#
# <details><summary>Hint</summary>
#
# Compare the copies of `total` first. Which lines aren't linear in the gradient, and what must come
# before such a line?
# </details>


# %%
# task: adagrad_step
def adagrad_step(weight, total, gradient, rate, limit):
    """Takes one step of Adagrad, after which all copies hold what one device would hold.

    Args:
        weight: A mirrored variable, a vector without an aggregation.
        total: The sum of squared gradients, a variable of the same kind that starts above 0. All
            copies of it must be right as well.
        gradient: This replica's part. The sum over all replicas is the gradient of one device.
        rate: The learning rate.
        limit: The gradient is clipped to the range from `-limit` to `limit`.
    """
    context = tf.distribute.get_replica_context()
    ### BEGIN SOLUTION
    gradient = context.all_reduce("SUM", gradient)
    gradient = tf.clip_by_value(gradient, -limit, limit)
    total.assign_add(gradient**2)
    weight.assign_sub(rate * gradient / tf.sqrt(total))
    ### STUB
    gradient = tf.clip_by_value(gradient, -limit, limit)
    total.assign_add(gradient**2)
    change = rate * gradient / tf.sqrt(total)
    weight.assign_sub(context.all_reduce("SUM", change))
    ### END SOLUTION


# %%
dl.check("adagrad_step")

# %% [markdown]
# **Try next:** a sign-based optimizer moves every weight by `rate * sign(gradient)`. What do you
# get if each replica takes the sign of its own part, and the all-reduce adds up the signs?
#
# <details><summary>Answer</summary>
#
# You get a whole number from -4 to 4, which counts each replica once, however large its gradient
# is. So a single large gradient loses against three small ones, while `sign(all_reduce("SUM",
# gradient))` does what one device does. signSGD with [majority
# vote](https://arxiv.org/abs/1810.05291) takes the sign of the summed signs on purpose, because
# each replica then sends only one bit for each weight.
# </details>

# %% [markdown]
# ## Task 3: fewer all-reduces
#
# How rarely can replicas meet? Between cities an all-reduce can take longer than a step, so *[local
# SGD](../docs/glossary.md#local-sgd)* lets the copies drift apart for a while, and then replaces
# them all by their mean. Write `local_step`, which runs **on every replica**, with **no
# all-reduce** in a step that doesn't average. About 3 lines are enough.
#
# <details><summary>Hint</summary>
#
# An all-reduce in an `if` is dangerous, because some replicas may wait forever. Why is it safe
# here? `weight.read_value()` is the value of this replica's copy: do you read it before the
# subtraction or after it?
# </details>


# %%
# task: local_step
def local_step(weight, gradient, rate, step, every):
    """Takes one step of local SGD, and returns nothing.

    In every step the replica subtracts `rate * gradient` from its own copy. If `step` is a
    multiple of `every`, all copies then become the mean of the copies.

    Args:
        weight: A mirrored variable, a vector without an aggregation.
        gradient: This replica's own gradient, the mean over its own examples.
        rate: The learning rate.
        step: The number of this step, counted from 1: a Python number, the same on all replicas.
        every: How many steps there are from one mean to the next, a Python number as well.
    """
    ### BEGIN SOLUTION
    weight.assign_sub(rate * gradient)
    if step % every == 0:
        mean = tf.distribute.get_replica_context().all_reduce("MEAN", weight.read_value())
        weight.assign(mean)
    ### END SOLUTION


# %%
dl.check("local_step")

# %% [markdown]
# [DiLoCo](https://arxiv.org/abs/2311.08105) adds an outer optimizer to this idea, and trained
# language models with 500 times less communication.
#
# **Try next:** an optimizer with momentum has a velocity on each replica. Must you average the
# velocities, too? Think of a replica whose velocity points away from the mean.
#
# <details><summary>Answer</summary>
#
# If you don't, this replica starts from the mean and walks on in its old direction, so the copies
# drift apart faster. If you average both, all replicas start the next round from the same weights
# and velocity, but you send twice the bytes. DiLoCo keeps the inner state on each replica, and it
# still trains.
# </details>

# %% [markdown]
# ## Task 4: how far can you go?
#
# What does it cost to average in one step of 8, which sends an eighth of the messages? This task
# has no check. The cell below trains one layer on the digits with your `local_step` for 128 steps.
# Before you run it, write down which accuracy you expect for 1, 8, 64 and 128 steps between two
# averages. With 128 the copies are averaged only once, at the end.

# %%
train, test = dl.load_dataset("digits", batch_size=32)
test_images, test_labels = next(iter(test.unbatch().batch(360)))


def train_locally(every):
    with strategy.scope():
        weight = tf.Variable(tf.zeros([64, 10]))

    def replica_step(images, labels, step):
        with tf.GradientTape() as tape:
            scores = tf.reshape(images, [-1, 64]) @ weight
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(losses)
        local_step(weight, tape.gradient(loss, weight), 0.5, step, every)

    @tf.function
    def take(batch, step):
        strategy.run(replica_step, args=(*batch, step))

    batches = strategy.experimental_distribute_dataset(train.repeat(3).take(128))
    for number, batch in enumerate(batches, 1):  # 128 steps end with an average in each case
        take(batch, every if number % every == 0 else every + 1)  # two numbers: few traces
    scores = tf.reshape(test_images, [-1, 64]) @ weight
    return np.mean(np.argmax(scores, axis=-1) == test_labels)


# %%
try:
    for every in (1, 8, 64, 128):
        dl.show(f"average every {every} steps", train_locally(every), digits=2)
except NotImplementedError:
    print("write local_step first (task 3)")

# %% [markdown]
# **Try next:** why do so few averages cost so little here? When would they cost more?
#
# <details><summary>Answer</summary>
#
# The accuracies are 0.97, 0.96, 0.96 and 0.96, which on 360 digits is no difference. One layer has
# a convex loss, and each replica's quarter is a similar mix of digits, so the copies drift towards
# similar places and their mean is a good model. With a hidden layer, or with other kinds of digits
# on each replica, they can drift to different places, and then their mean can be worse than each of
# them.
# </details>

# %% [markdown]
# ## Next steps
#
# - [Lesson 04](../notebooks/04_without_keras.ipynb), if a check sent you back to it.
# - [Lesson 05](../notebooks/05_input_pipelines.ipynb) feeds the replicas.
# - [Local SGD](https://arxiv.org/abs/1805.09767) proves, for strongly convex losses, how rarely you
#   can average and still converge at the same rate as with an average in every step.
# - [The glossary](../docs/glossary.md) explains the terms.
