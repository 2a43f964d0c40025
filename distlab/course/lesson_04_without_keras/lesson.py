# %% [markdown]
# # Without Keras: what a training step needs
#
# In 2020 the Keras of TensorFlow refused to clip gradients under a strategy, because [its
# developers](https://github.com/tensorflow/tensorflow/issues/33929) didn't want to clip silently in
# the wrong place. Keras 3 clips. Whether it does so in the right place no error will tell you, so
# you have to know yourself what happens between a gradient and the weights.
#
# In this lesson you take Keras away and write a step from variables and arithmetic. Whatever Keras
# has done around your steps until now becomes a line of yours, or a mistake that you can measure.
# After it you can
#
# - train raw `tf.Variable`s on four replicas, and show that a single device would have learned the
#   same,
# - find a mistake in a step that raises no error,
# - say which calculations must wait for the all-reduce,
# - decide when a step without Keras is worth its lines.
#
# **Time:** {minutes}. **Needs:** lessons [01](01_mirrored_strategy.ipynb) and
# [03](03_custom_training_loop.ipynb), and the update rules of momentum and Adam, but no GPU and no
# download.
#
# <details><summary>Do you remember? Lesson 03: each replica has a gradient of the <em>sum</em> of
# its losses, divided by the number of examples in the global batch. How do you combine four such
# gradients?</summary>
#
# You add them, because each is one part of the mean over the global batch. From here on we call it
# a replica's part.
# </details>

# %%
import numpy as np

import distlab as dl

dl.split_devices(4)

# %%
import keras
import tensorflow as tf

from distlab.course.lesson_04_without_keras.figures import draw_drift
from distlab.course.lesson_04_without_keras.runs import (
    copies,
    largest_difference,
    loss_and_accuracy,
    own_gradients,
    scores,
    start,
    train_alone,
    train_with_keras,
)

strategy = dl.make_strategy("mirrored", devices=4)
tf.get_logger().setLevel("ERROR")  # no reminders that tf.function is faster
train, _ = dl.load_dataset("digits", batch_size=32)
batches = list(strategy.experimental_distribute_dataset(train))  # each cut into four shares
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## What surrounds a step
#
# Our network is four arrays, which `start` draws from a fixed seed, and a function
# `scores(weights, images)`: two matrix products with a ReLU between them. Everything else that
# Keras did around a step has to become code, and three parts of it are easy to see:


# %%
def all_reduce(way, values):
    return tf.distribute.get_replica_context().all_reduce(way, values)


def gradients_of(weights, images, labels):
    count = all_reduce("SUM", tf.cast(tf.shape(labels)[0], tf.float32))  # in the global batch
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores(weights, images))
        loss = tf.reduce_sum(losses) / count
    return tape.gradient(loss, weights)


def train_by(step, **how_to_make):
    with strategy.scope():
        weights = [tf.Variable(values, **how_to_make) for values in start()]
    compiled = tf.function(lambda batch: strategy.run(step, args=(weights, *batch)))
    path = [copies(weights[-1])]
    for batch in batches + batches:  # two epochs
        compiled(batch)
        path.append(copies(weights[-1]))
    return weights, np.array(path)


# %% [markdown]
# `gradients_of` **scales the loss** by lesson 03's rule, so it has to ask all replicas for the
# number of their examples. `train_by` **makes the variables** in the scope, which gives every
# replica a copy of each, and it **traces the step**: `tf.function` turns `strategy.run` into a
# graph once, and all later calls reuse that graph. Then it trains for two epochs, and after each
# step it notes every replica's copy of the last biases.
#
# > **Takeaway.** Without Keras you make the variables in the scope, divide the loss by the examples
# > of the global batch, and trace the step.

# %% [markdown]
# ## A step of SGD
#
# What's left is the step itself, which in SGD subtracts the learning rate times the gradient:


# %%
def subtract(weights, images, labels, rate=0.5):
    for weight, gradient in zip(weights, gradients_of(weights, images, labels), strict=True):
        weight.assign_sub(rate * gradient)


# %% tags=["predict"]
drift_guess = dl.predict(
    "`strategy.run` calls `subtract` on four replicas, for 90 steps. The variables were made in "
    "the scope. What becomes of the four copies of a weight?",
    [
        "equal, and right: the strategy adds up the gradients",
        "equal, but the steps are too short",
        "they drift apart",
        "the first step raises an error",
    ],
)

# %% [markdown]
# We watch the last bias of digit 3, because every batch changes it.

# %%
drifted, path = train_by(subtract)
equal = all(np.array_equal(copies(w)[0], copy) for w in drifted for copy in copies(w))
dl.show("copies of the watched weight", path[-1, :, 3], digits=3)

# %% tags=["reveal"]
drift_guess.reveal(
    "equal, but the steps are too short" if equal else "they drift apart",
    {
        "equal, and right: the strategy adds up the gradients": "It would with Keras, whose "
        "optimizer adds them up. A strategy makes copies, shares batches and offers an all-reduce, "
        "and for variables like these it never calls that all-reduce for you.",
        "equal, but the steps are too short": "That would need an all-reduce that averages the "
        "gradients. This step all-reduces only the number of examples.",
        "the first step raises an error": "TensorFlow's page on `VariableAggregation` says so. But "
        "in `strategy.run` a replica assigns to its own copy, and no error is raised.",
        "they drift apart": "Each replica subtracts its own gradient from its own copy.",
    },
)

# %% [markdown] tags=["after-reveal"]
# You've trained four models, one on each replica. For comparison, `train_alone` hands the same step
# to a single device, where it gets whole batches and its all-reduce has nobody to ask.

# %% tags=["after-reveal"]
one_device, one_path = train_alone(subtract)
draw_drift(path[:, :, 3], one_path[:, 3], label="last bias of digit 3")

# %% [markdown] tags=["after-reveal"]
# `weight.numpy()` and a `tf.train.Checkpoint` each give you one of the four copies, and don't
# mention the others. So how good is each of them, beside the single device?

# %% tags=["after-reveal"]
models = [[copies(weight)[replica] for weight in drifted] for replica in range(4)]
accuracies = [loss_and_accuracy(model)["accuracy"] for model in models]
dl.show("accuracy of the copies", accuracies, digits=2)
dl.show("accuracy of one device", loss_and_accuracy(one_device)["accuracy"], digits=2)

# %% [markdown] tags=["after-reveal"]
# Each copy gets about three of four test digits right. If you saw only that number, you'd think
# that the model is too small, because the loss falls and nothing raises an error. In truth each
# copy has learned from a quarter of the digits, and in steps of a quarter of the length, since its
# part of the gradient was divided by the examples of all four replicas.
#
# > **Takeaway.** A strategy makes copies, but it doesn't keep them equal. If nobody all-reduces the
# > gradients, four models train, and you save one of them.

# %% [markdown]
# ## The line that was missing
#
# Keras's optimizer all-reduces the gradients before it touches a weight, and now that line is
# yours:


# %%
def add_up_and_subtract(weights, images, labels):
    gradients = all_reduce("SUM", gradients_of(weights, images, labels))
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.assign_sub(0.5 * gradient)


summed, path = train_by(add_up_and_subtract)
dl.show("copies of the watched weight", path[-1, :, 3], digits=3)
dl.show("difference from one device", largest_difference(summed, one_device), below=1e-6)

# %% [markdown]
# The copies are equal now, and they're the weights of a single device. But the single device ran
# your own `gradients_of`, so a mistake in there would be in both. That's why we also ask Keras,
# whose `fit` trains the same network on one device from the same weights:

# %%
by_keras = train_with_keras(keras.optimizers.SGD(0.5))
dl.show("difference from Keras", largest_difference(summed, by_keras), below=1e-6)

# %% [markdown]
# > **Takeaway.** All-reduce the gradients with SUM before you use them, and compare the weights
# > with a single device that shares none of your code.
#
# <details><summary>Fine print</summary>
#
# One call takes all four gradients as a list. A call for each would be right as well, but between
# GPUs or machines each call costs the time of a message ([lesson 12](12_ring_all_reduce.ipynb)).
# </details>

# %% [markdown]
# ## An optimizer with a memory
#
# SGD forgets each gradient, while momentum and Adam keep *state* for each weight, which Keras also
# made and kept for you. `momentum` and `adam` below turn gradients into changes of the weights.
# Python runs them only while TensorFlow traces the step, and only the first trace may make
# variables, hence `if not state`. Variables that are made inside `strategy.run` are mirrored, so
# each replica has a state of its own.


# %%
def momentum(state, gradients):
    if not state:
        state["velocity"] = [tf.Variable(tf.zeros_like(each)) for each in gradients]
    for velocity, gradient in zip(state["velocity"], gradients, strict=True):
        velocity.assign(0.9 * velocity - 0.1 * gradient)
    return [tf.identity(velocity) for velocity in state["velocity"]]


def adam(state, gradients):
    if not state:
        state["step"] = tf.Variable(0.0)
        state["mean"] = [tf.Variable(tf.zeros_like(each)) for each in gradients]
        state["square"] = [tf.Variable(tf.zeros_like(each)) for each in gradients]
    step = state["step"].assign_add(1.0)
    rate, changes = 0.01 * tf.sqrt(1 - 0.999**step) / (1 - 0.9**step), []
    for mean, square, gradient in zip(state["mean"], state["square"], gradients, strict=True):
        mean.assign(0.9 * mean + 0.1 * gradient)
        square.assign(0.999 * square + 0.001 * gradient**2)
        changes.append(-rate * mean / (tf.sqrt(square) + 1e-7))
    return changes


# %% [markdown]
# The all-reduce can sum the **gradients** before the optimizer gets them, or it can average the
# **changes** that four optimizers return. In the second case each replica first multiplies its part
# by 4, which makes it the mean over its own 8 digits.


# %%
def step_with(optimizer, *, reduce_first):
    state = {}

    def step(weights, images, labels):
        gradients = gradients_of(weights, images, labels)
        if reduce_first:
            changes = optimizer(state, all_reduce("SUM", gradients))
        else:
            changes = all_reduce("MEAN", optimizer(state, [4 * each for each in gradients]))
        for weight, change in zip(weights, changes, strict=True):
            weight.assign_add(change)

    return step


# %% tags=["predict"]
order_guess = dl.predict(
    "You reduce the changes instead of the gradients. With which optimizer do you still get the "
    "weights of one device?",
    ["with neither", "with momentum only", "with Adam only", "with both"],
)

# %%
references = {momentum: keras.optimizers.SGD(0.1, momentum=0.9), adam: keras.optimizers.Adam(0.01)}
distances, losses = {}, {}
for optimizer, reference in references.items():
    wanted = train_with_keras(reference)
    for reduce_first in (True, False):
        weights, _ = train_by(step_with(optimizer, reduce_first=reduce_first))
        distances[optimizer.__name__, reduce_first] = largest_difference(weights, wanted)
        losses[optimizer.__name__, reduce_first] = loss_and_accuracy(weights)["loss"]

# %% tags=["reveal"]
held = [name for name in ("momentum", "adam") if distances[name, False] < 1e-6]
order_guess.reveal(
    {("momentum",): "with momentum only", ("adam",): "with Adam only", (): "with neither"}.get(
        tuple(held), "with both"
    ),
    {
        "with neither": "That would be so if momentum did anything but multiply and add. Its "
        "change is a sum of gradients with fixed factors, and the mean of four such sums is the "
        "same sum of the mean gradients.",
        "with Adam only": "It would need the division to come after the sum. But each replica "
        "divides by the root of its own square, and the mean of four quotients isn't the quotient "
        "of the means.",
        "with both": "It would if equal copies were enough, because they stay equal with both. But "
        "with Adam each replica divides by the root of its own square.",
        "with momentum only": "A velocity is a sum of gradients with fixed factors, and the order "
        "of sums doesn't matter. Adam divides.",
    },
)

# %% tags=["after-reveal"]
for name in ("momentum", "adam"):
    dl.show(f"{name}, gradients reduced, from Keras", distances[name, True], below=1e-6)
dl.show("momentum, changes reduced, from Keras", distances["momentum", False], below=1e-6)
dl.show("adam, changes reduced: more than 0.1 from Keras", bool(distances["adam", False] > 0.1))
dl.show("adam, gradients reduced, loss on the test digits", losses["adam", True], digits=2)
dl.show("adam, changes reduced, loss on the test digits", losses["adam", False], digits=2)

# %% [markdown] tags=["after-reveal"]
# The copies of the weights stayed equal in all four runs, because every change came out of an
# all-reduce. So **equal copies prove nothing**, and only the comparison with Keras finds the wrong
# Adam, which ends with a loss of 0.37 instead of 0.25.
#
# You can see the reason in Adam's first step, in which it divides each gradient by its own size, so
# only the *sign* is left. Here's the gradient of our bias on each replica:

# %% tags=["after-reveal"]
own = own_gradients(strategy, gradients_of, batches[0], digit=3)
dl.show("gradients of the four replicas", own, digits=3)
dl.show("sign of their mean", np.sign(np.mean(own)), expected=-1)
dl.show("mean of their signs", np.mean(np.sign(own)), expected=-0.5)

# %% [markdown] tags=["after-reveal"]
# Three replicas move this weight up and one moves it down, so the mean of their changes is half of
# what a single device does. You know the effect from a bill: if you round every price and then add,
# you don't get the rounded sum. The more the replicas disagree, the shorter the step becomes.
#
# > **Takeaway.** Reduce before anything that isn't linear: squares, roots, norms, clipping, signs.
#
# <details><summary>Fine print</summary>
#
# Adam's running means start at zero, so they're too small at first, and the factors with `step` in
# `rate` correct for that as in Keras. `momentum` returns `tf.identity`, a tensor with the
# variable's value, because TensorFlow documents the all-reduce for tensors only. The copies of the
# wrong Adam's `mean` and `square` do differ, if you think of comparing them.
# </details>

# %% [markdown]
# ## A gradient that's clipped
#
# Keras all-reduces the gradients before its optimizer updates its state, so its Adam is right. Now
# you can answer the question from the beginning: what about an optimizer of Keras that clips?

# %% tags=["predict"]
clip_guess = dl.predict(
    "A weight starts at 0. Four replicas have the parts 5, -2, -2 and -2 of its gradient, and "
    "their sum is -1. The optimizer is `keras.optimizers.SGD(1.0, clipvalue=1.0)`, which limits "
    "gradients to the range from -1 to 1. Where is the weight after one step?",
    ["at 1, as on one device", "at 0.5", "at 2", "the copies differ"],
)

# %%
with strategy.scope():
    weight = keras.Variable([0.0])
    optimizer = keras.optimizers.SGD(1.0, clipvalue=1.0)
    optimizer.build([weight])


def clipped_step():
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    part = tf.gather([5.0, -2.0, -2.0, -2.0], [replica])
    optimizer.apply([part], [weight])


strategy.run(clipped_step)
clipped = [float(copy[0]) for copy in copies(weight.value)]
dl.show("the weight's copies", clipped)

# %% tags=["reveal"]
places = {1.0: "at 1, as on one device", 0.5: "at 0.5", 2.0: "at 2"}
clip_guess.reveal(
    places[clipped[0]] if len(set(clipped)) == 1 else "the copies differ",
    {
        "at 1, as on one device": "It would if Keras summed first, because -1 is within the limit. "
        "But Keras clips the four parts to 1, -1, -1 and -1, and then adds them up.",
        "at 0.5": "It would if Keras took the mean of the clipped parts. It adds them up.",
        "the copies differ": "They would without an all-reduce. Keras does all-reduce the "
        "gradients, so all copies change by the same sum.",
        "at 2": "The clipped parts are 1, -1, -1 and -1. Their sum is -2, and the step is twice as "
        "long as on one device.",
    },
)

# %% [markdown] tags=["after-reveal"]
# With `clipnorm`, `clipvalue` and `global_clipnorm`, Keras 3 clips [each replica's own part][clip],
# and the all-reduce comes after that, without an error. That's the wrong place which the developers
# of 2020 were afraid of. `dl.distribute` clips the reduced gradient, as a single device does.
#
# > **Takeaway.** Under a strategy, Keras's own optimizer clips before it sums. Clip the sum
# > yourself, or let `dl.distribute` do it.
#
# <details><summary>Fine print</summary>
#
# In Keras's own `fit`, the optimizer adds up whatever your `train_step` hands it. If your
# `train_step` adds up the gradients itself, divide the sum by the number of replicas after you clip
# it, or the gradient becomes too large. Under `dl.distribute`, `tape.gradient` in a `train_step`
# already returns the gradient of the global batch, so clip that, and neither add up nor divide.
# </details>
#
# [clip]: https://github.com/keras-team/keras/blob/v3.15.1/keras/src/optimizers/base_optimizer.py

# %% [markdown]
# ## When would you do without Keras?
#
# Here's all that you've taken over, and each row was a line or two:
#
# | what Keras did | what you wrote |
# |---|---|
# | gave each replica a copy of each weight | `tf.Variable` in `strategy.scope()` |
# | scaled the loss | an all-reduce of the number of examples |
# | traced the step | `tf.function` around `strategy.run` |
# | summed the gradients before it used them | `all_reduce("SUM", gradients)` |
# | kept the optimizer's state | variables that the first trace makes |
#
# So a step without Keras is short, but each of its lines can be wrong without an error, and you
# lose callbacks, progress bars and `model.save`. Is that worth it?
#
# | you want | with Keras | without |
# |---|---|---|
# | a network, a loss, an optimizer that exist | `dl.distribute`, `fit` | no reason |
# | a step of your own for a network | `train_step` (lesson 03) | no reason |
# | to clip the sum | `dl.distribute` with `clipnorm` | no reason |
# | to compress what each replica sends | `train_step` in Keras's own `fit` | clearer |
# | fewer all-reduces: average the weights now and then (exercise 04) | hard | natural |
# | a model that is no network: a simulation, a matrix factorization | in the way | natural |
#
# > **Takeaway.** Leave Keras when your model is no network, or when you want to decide yourself
# > what is all-reduced and when. Otherwise let Keras write these lines.
#
# <details><summary>Fine print</summary>
#
# Without a Keras model, `tf.train.Checkpoint` still saves your variables, and Keras's metrics still
# work.
# </details>

# %% [markdown]
# ## Extra: A variable with an aggregation
#
# In lesson 01 a variable had an [aggregation](../docs/glossary.md#aggregation), so that all its
# copies held the sum or the mean of what the replicas assigned. Here `subtract`, the step without
# an all-reduce, stays as it is, and only the weights are made with an aggregation.

# %% tags=["predict"]
aggregation_guess = dl.predict(
    "With which aggregation of the weights does `subtract` end at the weights of one device?",
    ["with SUM", "with MEAN", "with both", "with neither"],
)

# %%
ends = {}
for way in (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN):
    ends[way.name], _ = train_by(subtract, aggregation=way)
distances = {way: largest_difference(weights, one_device) for way, weights in ends.items()}

# %% tags=["reveal"]
right = [way for way, distance in distances.items() if distance < 1e-6]
aggregation_guess.reveal(
    {("SUM",): "with SUM", ("MEAN",): "with MEAN", (): "with neither"}.get(
        tuple(right), "with both"
    ),
    {
        "with MEAN": "It would if each part were the mean over its own digits. But each is already "
        "divided by the examples of all replicas, so MEAN divides by 4 a second time.",
        "with both": "It would if equal copies were enough, because they're equal with both. But "
        "MEAN divides by 4 what's already divided by the examples of all replicas.",
        "with neither": "It would if `assign_sub` changed each copy by itself. With an "
        "aggregation, it all-reduces what the replicas subtract, and gives every copy the result.",
        "with SUM": "`assign_sub` adds up what the replicas subtract: the parts of one mean.",
    },
)

# %% tags=["after-reveal"]
dl.show("SUM, difference from one device", distances["SUM"], below=1e-6)
short_steps, _ = train_alone(subtract, rate=0.5 / 4)
from_short = largest_difference(ends["MEAN"], short_steps)
dl.show("MEAN, difference from one device with a quarter of the rate", from_short, below=1e-6)

# %% [markdown] tags=["after-reveal"]
# This is shorter than a line of your own, but it hides an all-reduce inside `assign_sub`, one for
# each variable. Most code writes the all-reduce instead, because then you can do something with the
# sum before you use it, and Adam needs just that.
#
# > **Takeaway.** An aggregation puts the all-reduce into the assignment, which is too late for
# > anything that isn't linear.

# %% [markdown]
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch's `DistributedDataParallel` puts the all-reduce into the backward pass: when
# `loss.backward()` returns, `parameter.grad` holds the mean over all processes. The optimizer comes
# after it, so the order is right by construction. In JAX, under `jax.jit` with a sharded batch, the
# compiler inserts the all-reduce for you. Inside `jax.shard_map` the gradient with respect to
# replicated weights already contains the sum by default, so call `jax.lax.psum` yourself only if
# you switch that off (`check_vma=False`). Doing both makes the gradient N times too large.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. A raw training loop runs on eight replicas and doesn't all-reduce the
# gradients. What does the loss of replica 0 look like?</summary>
#
# It falls, and nothing raises an error. It's about an eighth as large as usual, because it's
# divided by the global batch.
# </details>
#
# <details><summary>2. All copies of all weights are equal after 1,000 steps. Is the training
# right?</summary>
#
# Not necessarily, because Adam on each replica's own gradient keeps the copies equal, too, if the
# changes are averaged. Compare with a single device.
# </details>
#
# <details><summary>3. You clip each replica's gradient to norm 1 and then add up. Is that what one
# device does?</summary>
#
# It isn't, because a norm isn't linear. Add up first and clip the sum, although Keras 3's
# `global_clipnorm` does it the other way round.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 04](../exercises/04_without_keras.ipynb): write or repair three steps by hand, of
#   which the last leaves out all-reduces on purpose.
# - [Lesson 05](05_input_pipelines.ipynb) feeds the replicas.
# - [Adam](https://arxiv.org/abs/1412.6980), Algorithm 1, defines the update. Keras and this lesson
#   use the form at the end of the paper's section 2, in which the correction moves into the rate.
# - [TensorFlow's guide](https://www.tensorflow.org/guide/distributed_training) has a custom loop
#   with a Keras optimizer. It says in one note that `apply_gradients` sums the gradients over all
#   replicas, which is the all-reduce that you wrote here.
# - [The glossary](../docs/glossary.md) explains the terms.
