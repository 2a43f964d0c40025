# %% [markdown]
# # MirroredStrategy: one model, a copy on every device
#
# The front page of this course shows five training runs, A to E, and asks which of them is right.
# Run E looks faultless, because its loss falls and its test accuracy is that of the right run. And
# yet its weights are wrong, and neither an error nor the loss said so. This lesson shows you what
# went wrong in it, and in [lesson 03](03_custom_training_loop.ipynb) you'll make the mistake
# yourself.
#
# `MirroredStrategy` invites such mistakes, since it puts a copy of your model on every device and
# then never checks that the copies agree, or that what they agree on is right. So what keeps them
# equal, and when do they drift apart? After this lesson you can
#
# - find a copy that holds the wrong number,
# - say what the all-reduce sums, and when a mean of means is the wrong mean,
# - train a Keras model on two replicas that take exactly the steps of a single device.
#
# **Time:** {minutes}. **Needs:** [lesson 00](00_start_here.ipynb), a gradient and a step of SGD,
# and Keras `compile` and `fit`, but no GPU and no download.
#
# <details><summary>Do you remember? Lesson 00: three digits make one full batch, and there are two
# replicas. How many does each get?</summary>
#
# 2 and 1, because 3 / 2 is rounded up to 2, and then 1 is left. Today you'll see what happens to
# the digit that's alone.
# </details>

# %%
import numpy as np
import tensorflow as tf

import distlab as dl

strategy = dl.make_strategy("mirrored", devices=dl.split_devices(2))
tf.get_logger().setLevel("ERROR")  # hides warnings that only matter in long runs
dl.show("replicas", strategy.num_replicas_in_sync, expected=2)

# %% [markdown]
# ## What the scope does
#
# A variable that you make inside `strategy.scope()` is a [mirrored
# variable](../docs/glossary.md#mirrored-variable) with a copy on every device, while outside you
# get an ordinary one. What if you forget the scope? We make one step counter outside and one
# inside, and let every replica add 1 to both:

# %%
outside = tf.Variable(0.0)
with strategy.scope():
    inside = tf.Variable(0.0)


def copies(variable):
    return [copy.numpy() for copy in strategy.experimental_local_results(variable)]


def add_one():
    outside.assign_add(1.0)
    inside.assign_add(1.0)


strategy.run(add_one)
dl.show("made inside, copies", copies(inside))
dl.show("made outside, copies", copies(outside))

# %% [markdown]
# Inside, each replica added to a copy of its own. Outside there's only one copy, and because both
# replicas added to it, the counter counts double and no error tells you. A weight that you made
# outside would be updated twice in every step, in the same silence.
#
# > **Takeaway.** Inside the scope, make everything that a step changes: weights, the optimizer,
# > metrics and counters.
#
# <details><summary>Fine print</summary>
#
# The scope doesn't change tensors, but it does change a loss object of Keras 3, such as
# `keras.losses.MeanSquaredError()`. If you call it in the scope or in `strategy.run`, it returns
# its mean divided by the number of replicas, and lesson 03 shows when that's right.
# </details>

# %% [markdown]
# ## Two gradients, and the one we want
#
# Our model is a single layer that makes ten scores from 64 pixels, so that you can look at every
# number. Its weights are two variables of our own, and both start at zero:

# %%
with strategy.scope():
    weights = tf.Variable(tf.zeros([64, 10]))
    bias = tf.Variable(tf.zeros([10]))


def mean_loss(images, labels):
    scores = tf.reshape(images, [-1, 64]) @ weights + bias
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
    return tf.reduce_mean(losses)


def gradient(images, labels):
    with tf.GradientTape() as tape:
        loss = mean_loss(images, labels)
    return tape.gradient(loss, bias)


# %% [markdown]
# The strategy cuts a global batch of 16 digits into two shares of 8. Each replica takes the
# gradient of the mean loss over *its own* 8 digits, while a single device would take it over all
# 16. The picture shows these gradients for `bias`, which has one number for each class:

# %%
from distlab.course.lesson_01_mirrored_strategy.figures import draw_gradients

(digits,) = dl.load_dataset("digits", splits=["train[96:112]"], batch_size=16)
batch = next(iter(digits))
shared = next(iter(strategy.experimental_distribute_dataset(digits)))


def on_each_replica(function, batch):
    return strategy.experimental_local_results(strategy.run(function, args=batch))


each = on_each_replica(gradient, shared)
mean = (each[0] + each[1]) / 2
one_device = gradient(*batch)
draw_gradients(each, mean=mean, one_device=one_device, label="class (digit)")

# %% [markdown]
# The two bars of a class disagree wherever one replica saw that digit more often than the other.
# But every circle lies on its line, and the number confirms the picture:

# %%
dl.show("largest difference", tf.reduce_max(tf.abs(mean - one_device)), below=1e-6)

# %% [markdown]
# > **Takeaway.** With equal shares, the mean of the replicas' gradients is the gradient of a single
# > device.

# %% [markdown]
# ## The all-reduce, built by hand
#
# We computed that mean outside the step, but the replicas need it *inside*, before they update
# their weights. So each replica gives its gradient, and each gets the result back. That's an
# [all-reduce](../docs/glossary.md#all-reduce): *reduce*, because many values become one, and *all*,
# because every replica receives it. In NumPy it's a sum and four copies of it:

# %%
from distlab.course.lesson_01_mirrored_strategy.figures import draw_all_reduce

given = np.array([[1, 0, 2], [0, 3, 1], [4, 1, 0], [2, 2, 2]], np.float32)  # a row a replica
draw_all_reduce(given, [np.sum(given, axis=0)] * 4)

# %% [markdown]
# In TensorFlow, each replica calls `all_reduce` of its [replica
# context](../docs/glossary.md#replica-context). With `"MEAN"` in place of `"SUM"`, the sum is
# divided by the number of replicas, and our two replicas agree on the gradient of a single device:


# %%
def agreed_gradient(images, labels):
    context = tf.distribute.get_replica_context()
    return context.all_reduce("MEAN", gradient(images, labels))


agreed = on_each_replica(agreed_gradient, shared)
dl.show("both got the same", bool(tf.reduce_all(agreed[0] == agreed[1])), expected=True)
dl.show("difference from one device", tf.reduce_max(tf.abs(agreed[0] - one_device)), below=1e-6)

# %% [markdown]
# **Every replica must take part in every all-reduce**, because none of them gets past it before all
# have arrived. So keep it out of any `if` whose condition can differ between replicas. In a
# `tf.function`, keep it out of every `if` on a tensor, even if all replicas agree on its value. If
# you don't, one process gives you an error, but several workers can hang (lesson 09).
#
# > **Takeaway.** An all-reduce gives every replica the same result, and needs every replica.
#
# <details><summary>Fine print</summary>
#
# Replicas meet in a call named `merge_call`, and the two errors mention it. If only replica 0
# reaches an all-reduce, TensorFlow says that *some replicas made a different number of
# replica_context().merge_call() calls*. In a `tf.function` it says *merge_call called while
# defining a new graph*, even if all replicas would agree. Each branch of an `if` on a tensor
# becomes a graph there, and inside that graph no replica can wait for the others.
#
# `all_reduce` belongs on a replica, and `strategy.reduce` outside `run`, where it gives your
# program one value; on a replica it raises an error. On which route the numbers travel changes the
# speed, and the sum only by rounding. You'll build such a route in [lesson
# 12](12_ring_all_reduce.ipynb).
# </details>

# %% [markdown]
# ## Three digits on two replicas
#
# Three digits on two replicas are shares of 2 and 1. Each replica takes the mean over its share,
# and the all-reduce takes the mean of these two means.

# %% tags=["predict"]
weight_guess = dl.predict(
    "How much does the digit that is alone on its replica weigh in the mean of the two means?",
    ["1/4", "1/3", "1/2", "2/3"],
)

# %% [markdown]
# `weight_of_each` takes the gradient of each single digit, and finds with which weights these three
# gradients make up the one that the replicas agreed on:

# %%
from distlab.course.lesson_01_mirrored_strategy.runs import weight_of_each

(three,) = dl.load_dataset("digits", splits=["train[:3]"], batch_size=3)
(batch3,) = three
shared3 = next(iter(strategy.experimental_distribute_dataset(three)))
agreed3 = on_each_replica(agreed_gradient, shared3)[0]
each_weighs = weight_of_each(gradient, batch3, of=agreed3)
dl.show("weight of each digit", each_weighs, digits=2)

# %% tags=["reveal"]
weight_guess.reveal(
    f"1/{1 / each_weighs[2]:.0f}",
    {
        "1/4": "The first two digits weigh 1/4 each, because they share a replica. This one shares "
        "its replica with no other digit.",
        "1/3": "That's the weight it should have. But each replica's mean weighs 1/2, however many "
        "digits are in it.",
        "2/3": "For that, the smaller share would have to count twice as much as the larger one. "
        "Both count the same, so the digit that's alone gives half of the result.",
        "1/2": "The mean of two means gives each of them one half, and one of the two means is "
        "this digit alone.",
    },
)

# %% [markdown] tags=["after-reveal"]
# A mean of means is a vote with one ballot for each household: a person who lives alone has as much
# to say as a couple. Here each digit should weigh 1/3. **So sum the gradients of all examples, and
# divide by their number** (or by the number of tokens, if your loss counts tokens). In the function
# below, each replica multiplies its mean gradient by its own part of the batch, and the all-reduce
# sums what it gets:


# %% tags=["after-reveal"]
def exact_gradient(images, labels):
    context = tf.distribute.get_replica_context()
    count = tf.cast(tf.shape(labels)[0], tf.float32)  # 2 or 1
    total = context.all_reduce("SUM", count)  # 3, on both replicas
    return context.all_reduce("SUM", gradient(images, labels) * count / total)


exact = on_each_replica(exact_gradient, shared3)[0]
wanted = gradient(*batch3)
dl.show("mean of means, off by", tf.reduce_max(tf.abs(agreed3 - wanted)), digits=2)
dl.show("difference from one device", tf.reduce_max(tf.abs(exact - wanted)), below=1e-6)

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** Don't average averages. Sum over all examples, and divide by their number.
#
# <details><summary>Fine print</summary>
#
# A replica without examples contributes 0 to the sum: its mean loss is NaN, but TensorFlow's
# gradient of that loss is 0.
# </details>

# %% [markdown]
# ## An update keeps the copies equal
#
# Now that every replica has the right gradient, each of them updates its own copy of `bias`:


# %%
def step(images, labels):
    bias.assign_sub(0.8 * exact_gradient(images, labels))


on_each_replica(step, shared)
dl.show("equal", (copies(bias)[0] == copies(bias)[1]).all(), expected=True)

# %% [markdown]
# Nothing compared the two copies, and they're still equal in every bit.
#
# > **Takeaway.** Copies stay equal for one reason only: they start equal, and every replica
# > subtracts the same number.

# %% [markdown]
# ## A variable that remembers
#
# What about a variable that isn't a weight? Suppose you want to keep the loss of the last batch, so
# you make a variable for it, inside the scope, and every replica assigns to it.

# %% tags=["predict"]
memory_guess = dl.predict(
    "Each replica assigns the mean loss of its 8 digits. Then you read the variable. What do you "
    "get?",
    ["the mean of both losses", "the loss of replica 0", "the loss of replica 1", "an error"],
)

# %%
with strategy.scope():
    last_loss = tf.Variable(0.0)


def remember(images, labels):
    last_loss.assign(mean_loss(images, labels))


on_each_replica(remember, shared)
first, second = copies(last_loss)
dl.show("you read", last_loss.numpy())
dl.show("the copies", [first, second])
dl.show("loss of all 16", mean_loss(*batch))

# %% tags=["reveal"]
memory_guess.reveal(
    {first: "the loss of replica 0", second: "the loss of replica 1"}[last_loss.numpy()],
    {
        "the mean of both losses": "You'd want that, but TensorFlow combines what replicas assign "
        "only if you tell it how, when you make the variable.",
        "the loss of replica 1": "You're thinking of one variable, to which replica 1 writes after "
        "replica 0. Here each replica wrote to its own copy.",
        "an error": "TensorFlow's documentation of the default promises one. In fact each replica "
        "writes to its own copy.",
        "the loss of replica 0": "Each copy holds its own loss, and you read the first copy.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The copies differ, and you'd never know, because reading a variable shows you only one of them:
# outside `run`, that's replica 0's. The cause is the variable's
# [aggregation](../docs/glossary.md#aggregation), which is `NONE` unless you choose one, so that
# each replica assigns to its own copy. For a weight that's right, since after an all-reduce all
# replicas assign the same. For a number that comes from one replica's share, you must say how the
# assigned values are combined:

# %% tags=["after-reveal"]
with strategy.scope():
    last_loss = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)

on_each_replica(remember, shared)
dl.show("the copies", copies(last_loss), expected=[mean_loss(*batch).numpy()] * 2)

# %% [markdown] tags=["after-reveal"]
# | `aggregation` | what every copy gets | use it for |
# |---|---|---|
# | `NONE` (the default) | its own replica's value | what is already equal on all replicas |
# | `SUM` | the sum | counts and totals, with `assign_add` |
# | `MEAN` | the mean | means over *equal* shares |
# | `ONLY_FIRST_REPLICA` | replica 0's value | a step counter |
#
# > **Takeaway.** A number from one replica's share needs an aggregation or an all-reduce. To find
# > out whether copies agree, look at all of them.
#
# <details><summary>Fine print</summary>
#
# You read the copy of the device on which you ask: inside `run`, each replica reads its own, and
# outside, you can choose a device with `tf.device`. If you keep a total under `SUM` with
# `assign(total + count)`, every replica's old total is summed as well, while `assign_add(count)`
# sums only what's new.
# </details>

# %% [markdown]
# ## BatchNormalization on two replicas
#
# Here's a layer with four variables that you may use every day. In `BatchNormalization`, `gamma`
# and `beta` scale and shift what the layer has normalized, while `moving_mean` and
# `moving_variance` are running averages of the digits' statistics. We build a Keras model with it
# in the scope, and train it with Keras's own `fit`.

# %% tags=["predict"]
layer_guess = dl.predict(
    "After an epoch on two replicas, which variables of BatchNormalization differ between copies?",
    ["none", "gamma and beta", "moving_mean and moving_variance", "all four"],
)

# %%
import keras


def normalized(synchronized=False):
    norm = keras.layers.BatchNormalization(synchronized=synchronized, name="norm")
    layers = [keras.layers.Flatten(), norm, keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    return model


(some,) = dl.load_dataset("digits", splits=["train[:64]"], batch_size=32)
dl.set_seed(1)
with strategy.scope():
    model = normalized()
model.fit(some, shuffle=False, verbose=0)
norm = model.get_layer("norm")
for variable in norm.weights:
    dl.show(f"{variable.name} of pixel 20", [copy[20] for copy in copies(variable.value)])

# %% tags=["reveal"]
layer_guess.reveal(
    " and ".join(v.name for v in norm.weights if np.ptp(copies(v.value), axis=0).any()),
    {
        "none": "Only if the layer combined its statistics over the replicas. By default, each "
        "replica normalizes its own digits, and writes their statistics into its own copy.",
        "gamma and beta": "These two are trained, so their gradients go through the all-reduce.",
        "all four": "gamma and beta are trained, so the all-reduce of their gradients keeps their "
        "copies equal. Without it, all four would drift apart.",
        "moving_mean and moving_variance": "Each replica writes its own digits' statistics. "
        "Keras 3 makes these two variables without an aggregation, so each replica writes to its "
        "own copy.",
    },
)

# %% [markdown] tags=["after-reveal"]
# So this layer keeps different numbers on each device. `predict` and `evaluate` run on all
# replicas, and each replica normalizes by its own copy, which means that the prediction for an
# image depends on its place in the batch. A checkpoint keeps only one copy, and the statistics of
# the second replica's digits are lost.
#
# With `synchronized=True` the layer all-reduces its sums and counts, so all replicas normalize by
# the statistics of the whole global batch. `fitted` builds and trains a model as above, in the
# scope if you give it a strategy, so that we can compare both ways with a single device:

# %% tags=["after-reveal"]
from distlab.course.lesson_01_mirrored_strategy.runs import fitted, largest_difference

on_one, _ = fitted(normalized, some)
synchronized, _ = fitted(lambda: normalized(synchronized=True), some, strategy)
dl.show("max difference from one device", largest_difference(model, on_one), digits=3)
dl.show("the same, synchronized", largest_difference(synchronized, on_one), below=1e-6)

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** Under Keras's own `fit`, give every `BatchNormalization` `synchronized=True`.
# > Under `dl.distribute`, which comes next, you needn't, because it normalizes by the whole global
# > batch anyway.
#
# <details><summary>Fine print</summary>
#
# A Keras model remembers the strategy under which you built it, so you can call `fit` outside the
# scope. `shuffle=False` only avoids a warning, because `fit` never shuffles a `tf.data.Dataset`.
# Keras 2 saved the mean of the moving statistics over the replicas.
# </details>

# %% [markdown]
# ## The same in `fit`
#
# You now know what a step on replicas has to do, and `dl.distribute` makes Keras's `fit` do it.
# Write a function that builds and compiles your model for a single device. `dl.distribute` calls it
# in the scope, and replaces the step that `fit` runs. We train the model on one device and on two
# replicas, from the same seed and on the same data:


# %%
def build():
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    return model


train, test = dl.load_dataset("digits", batch_size=32)
one, losses_of_one = fitted(build, train, epochs=3)
two, losses_of_two = fitted(lambda: dl.distribute(build, strategy), train, epochs=3)
dl.show("steps with two replicas", int(two.optimizer.iterations.numpy()))
dl.show("largest difference of any weight", largest_difference(two, one), below=1e-6)

# %% [markdown]
# **Two replicas end with the weights of a single device.** What's left is rounding, because they
# add the same numbers in a different order. The data set that you give to `fit` has *global*
# batches: a batch of 32 digits is one step, which both replicas take together, with 16 digits each.
# So three epochs of 45 batches are 135 steps, as on a single device.
#
# ### Built in the scope, trained by Keras's fit
#
# Do you need `dl.distribute` for that? Keras's own `fit` also trains a model from the scope on both
# replicas, and there's no `BatchNormalization` in ours. We give it the same data: 1437 digits, in
# batches of 32.

# %% tags=["predict"]
fit_guess = dl.predict(
    "Built in the scope and trained by Keras's own `fit`: which of the 45 steps of an epoch aren't "
    "those of a single device?",
    ["none of them", "only the last one", "all of them"],
)

# %%
by_keras, losses_by_keras = fitted(build, train, strategy, epochs=3)
all_batches = largest_difference(by_keras, one)
full = train.take(44)
in_scope, alone = fitted(build, full, strategy, epochs=3), fitted(build, full, epochs=3)
full_batches = largest_difference(in_scope[0], alone[0])
dl.show("all 45 batches, max difference", all_batches, digits=3)
dl.show("the 44 full ones, less than a millionth", full_batches < 1e-6)

# %% tags=["reveal"]
fit_guess.reveal(
    "none of them"
    if all_batches < 1e-6
    else "only the last one"
    if full_batches < 1e-6
    else "all of them",
    {
        "none of them": "With 1440 digits, yes. But here the last of the 45 batches is partial, "
        "and its 29 digits are shared as 16 and 13.",
        "all of them": "With 16 digits on each replica, the mean of the two means is the mean of "
        "all 32, so the 44 full batches give a single device's steps.",
        "only the last one": "The last batch has 1437 - 44 * 32 = 29 digits. One replica gets 16 "
        "and the other 13, and `fit` takes the mean of the two means.",
    },
)

# %% [markdown] tags=["after-reveal"]
# This is the mistake of run E. Once an epoch, the mean of two means gives each of the 13 digits
# more weight than each of the 16, and after three such steps a weight is off by 0.004. Would the
# losses have told you?

# %% tags=["after-reveal"]
from distlab.course.lesson_01_mirrored_strategy.figures import draw_losses

losses = {"single device": losses_of_one, "dl.distribute": losses_of_two}
draw_losses({**losses, "Keras's fit": losses_by_keras})

# %% [markdown] tags=["after-reveal"]
# You can't tell the wrong run from the right ones here, so compare weights rather than losses. If
# you stay with Keras's own `fit`, choose a batch size that's a multiple of the number of replicas,
# and leave out the partial batch with `batch(..., drop_remainder=True)`.
#
# > **Takeaway.** `dl.distribute` weighs every example alike, so replicas take the steps of a single
# > device. Keras's own `fit` does that on full batches only.
#
# <details><summary>In plain TensorFlow</summary>
#
# `dl.distribute(build, strategy)` is `with strategy.scope(): model = build()`, and it replaces what
# a step of `fit` does. Layers compute each replica's own examples, and everything else sees the
# whole batch, so the mean of the replicas' gradients is the gradient of the global batch. Only that
# mean reaches the optimizer. `dl.set_seed(1)` is `keras.utils.set_random_seed(1)`.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch's `DistributedDataParallel` keeps one process and one copy of the model for each replica.
# It all-reduces the *mean* of the gradients while the backward pass runs, so it expects equal
# shares. Its `BatchNorm` layers keep the statistics of rank 0, and `SyncBatchNorm` is the cure. In
# JAX you write the mean over a global batch once, and under `jax.jit` the compiler adds the
# all-reduce. Inside `shard_map` it's `jax.lax.psum`, which the gradient of replicated weights
# doesn't need, because JAX has summed it already (lesson 03).
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You made a counter before <code>with strategy.scope():</code>, and each
# replica adds 1 to it. What does a step of two replicas add?</summary>
#
# It adds two, because there's only one copy, and every replica changes it.
# </details>
#
# <details><summary>2. What keeps the copies of a weight equal?</summary>
#
# They start equal, and after the all-reduce every replica applies the same update, although nothing
# ever compares them.
# </details>
#
# <details><summary>3. Four replicas have shares of 3, 3, 3 and 1. How much does the example that is
# alone weigh in a mean of means?</summary>
#
# It weighs 1/4, as much as three examples of another replica together, and it should weigh 1/10.
# </details>
#
# <details><summary>4. <code>variable.numpy()</code> shows what you expected. Are all copies
# right?</summary>
#
# You can't tell, because you've read one copy. Look at
# `strategy.experimental_local_results(variable)`.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 01](../exercises/01_mirrored_strategy.ipynb): four tasks and your own model, about 40
#   minutes. One task gives you a tool to keep.
# - [Lesson 02](02_batch_scaling.ipynb): what must change if the batch grows with the replicas.
# - [Lesson 03](03_custom_training_loop.ipynb) writes the whole training loop by hand.
# - [Distributed training](https://www.tensorflow.org/guide/distributed_training) is TensorFlow's
#   guide to all strategies. Its Keras examples have 100 examples in batches of 10, so no batch is
#   partial, and nothing in it can warn you.
