# %% [markdown]
# # MirroredStrategy: one model, a copy on every device
#
# In October 2024 users found that popular training libraries computed a wrong loss when they
# [accumulated gradients](../docs/glossary.md#gradient-accumulation). The libraries [averaged the
# averages of unequal batches](https://huggingface.co/blog/gradient_accumulation), so that tokens in
# a batch with few tokens counted more. No error was raised. Replicas with unequal shares make the
# same mistake possible. In this lesson you make it, measure it and repair it.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - make variables that live on every device, and read each copy,
# - say what the all-reduce adds up, and when a mean of means is the wrong mean,
# - find a variable that holds the wrong number, and cure it,
# - train a Keras model on two replicas and compare it with one device.
#
# **Time:** {minutes}. **Needs:** lesson 00; a gradient and a step of SGD; Keras `compile`
# and `fit`. No GPU, and nothing is downloaded.

# %% [markdown]
# ### Two questions on lesson 00
#
# 1. You give `strategy.run` an ordinary tensor. What does each replica see?
# 2. Three digits make one full batch (`batch(3)`), and there are two replicas. How many does each
#    get?
#
# <details><summary>Answers</summary>
#
# 1. All of it. Only a distributed data set comes cut into shares.
# 2. 2 and 1: 3 / 2, rounded up, is 2, and 1 is left.
# </details>

# %%
import numpy as np

import distlab as dl

dl.split_devices(2)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# (If that says *TensorFlow is already running*, restart the kernel and run from the top.) This
# lesson uses two replicas. The line with `get_logger` hides TensorFlow's warnings, among them the
# reminder that `tf.function` is faster: most steps here run only once. Leave that line out of your
# own code.

# %%
import tensorflow as tf

strategy = dl.make_strategy("mirrored", devices=2)
tf.get_logger().setLevel("ERROR")
dl.show("replicas", strategy.num_replicas_in_sync, expected=2)

# %% [markdown]
# ## What the scope does
#
# A variable that you make inside `strategy.scope()` is a [mirrored
# variable](../docs/glossary.md#mirrored-variable): it has a copy on every device. Outside, you get
# an ordinary variable. `copies` lists the copies:

# %%
outside = tf.Variable(0.0)
with strategy.scope():
    inside = tf.Variable(0.0)


def copies(variable):
    return [copy.numpy() for copy in strategy.experimental_local_results(variable)]


dl.show("outside", f"{type(outside).__name__}, {len(copies(outside))} copy")
dl.show("inside", f"{type(inside).__name__}, {len(copies(inside))} copies")

# %% [markdown]
# Suppose you forget the scope for a step counter. Every replica adds 1 to it, once in a step:


# %%
def add_one():
    outside.assign_add(1.0)
    inside.assign_add(1.0)


strategy.run(add_one)
dl.show("made inside, copies", copies(inside))
dl.show("made outside, copies", copies(outside))

# %% [markdown]
# Inside, each replica added to its copy. Outside there is one copy, and both replicas added to it:
# the counter counts double, and no error tells you. If your step calls `assign_sub` on a weight
# made outside, each replica updates that weight. So **inside the scope, make everything that a step
# changes:** weights, the optimizer, metrics and counters.
#
# The scope does not change tensors. It does change a loss object of Keras 3, such as
# `keras.losses.MeanSquaredError()`: in the scope and in `strategy.run`, it returns its mean divided
# by the number of replicas. Lesson 03 shows when that is right.
#
# <details><summary>In plain TensorFlow</summary>
#
# `copies(variable)` reads `variable.values`, the tuple of ordinary variables that a mirrored
# variable consists of. The first one is on the first device. `dl.set_seed(1)`, which you will meet
# below, is `keras.utils.set_random_seed(1)`, for Python, NumPy and TensorFlow together.
# </details>

# %% [markdown]
# ## A model small enough to see through
#
# Our model is one layer that makes ten scores from 64 pixels. Its weights are two variables of our
# own, so that you can look at each copy. Both start at zero.

# %%
with strategy.scope():
    weights = tf.Variable(tf.zeros([64, 10]))
    bias = tf.Variable(tf.zeros([10]))


def mean_loss(images, labels):
    scores = tf.reshape(images, [-1, 64]) @ weights + bias
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
    return tf.reduce_mean(losses)


# %% [markdown]
# Here is a global batch of 16 digits. The strategy cuts it into two shares of 8.

# %%
(digits,) = dl.load_dataset("digits", splits=["train[96:112]"], batch_size=16)
batch = next(iter(digits))
shared = next(iter(strategy.experimental_distribute_dataset(digits)))
labels = strategy.experimental_local_results(shared[1])
for replica, part in enumerate(labels):
    dl.show(f"labels on replica {replica}", part)

# %% [markdown]
# ## Two gradients, and the one we want
#
# Each replica takes the gradient of the mean loss over *its own* 8 digits. One device would take
# it over all 16. `tf.GradientTape` records how the loss was computed, and then gives its gradient.
# `on_each_replica` runs a function on both replicas and lists what they return. The picture shows
# the gradient of `bias`, one number for each class.


# %%
def gradient(images, labels):
    with tf.GradientTape() as tape:
        loss = mean_loss(images, labels)
    return tape.gradient(loss, bias)


def on_each_replica(function, batch):
    return strategy.experimental_local_results(strategy.run(function, args=batch))


each = on_each_replica(gradient, shared)
mean = (each[0] + each[1]) / 2
one_device = gradient(*batch)

# %%
from distlab.course.lesson_01_mirrored_strategy.figures import draw_gradients

draw_gradients(each, mean=mean, one_device=one_device, label="class (digit)")

# %% [markdown]
# The bars disagree wherever a digit is more frequent on one replica. But every circle lies on its
# line: **with equal shares, the mean of the two gradients is the gradient of one device.** (It
# fails if a layer lets examples influence each other, as `BatchNormalization` does.) The number
# confirms the picture:

# %%
dl.show("largest difference", tf.reduce_max(tf.abs(mean - one_device)), below=1e-6)

# %% [markdown]
# ## The all-reduce, built by hand
#
# We computed that mean outside the step. But the replicas need it *inside* the step, before they
# update their weights. So each gives its gradient, and each gets the result back. This is an
# [all-reduce](../docs/glossary.md#all-reduce): *reduce*, because many values become one; *all*,
# because every replica receives it. For four replicas, NumPy needs two lines:


# %%
def all_reduce(values):
    total = np.sum(values, axis=0)  # reduce: one row from all rows
    return [total] * len(values)  # all: the same row for each replica


given = np.array([[1, 0, 2], [0, 3, 1], [4, 1, 0], [2, 2, 2]], np.float32)
received = all_reduce(given)

# %%
from distlab.course.lesson_01_mirrored_strategy.figures import draw_all_reduce

draw_all_reduce(given, received)

# %% [markdown]
# The figure leaves out how the numbers travel. Between GPUs they often go around a ring, where each
# device talks to its neighbours only. You will build this in [lesson 12](12_ring_all_reduce.ipynb):
#
# ![A moving picture of a ring all-reduce. Four devices hold four numbers each. In three steps each
# device adds what its neighbour sends; in three more the finished sums go around, until all four
# devices hold the sum.](../docs/_static/all_reduce.svg)
#
# In TensorFlow, each replica calls `all_reduce` of its [replica
# context](../docs/glossary.md#replica-context). `"MEAN"` in place of `"SUM"` divides the sum by the
# number of replicas. With it, our two replicas agree on the gradient of one device:


# %%
def agreed_gradient(images, labels):
    mine = gradient(images, labels)
    context = tf.distribute.get_replica_context()
    return context.all_reduce("MEAN", mine)


agreed = on_each_replica(agreed_gradient, shared)
dl.show("both got the same", bool(tf.reduce_all(agreed[0] == agreed[1])), expected=True)
dl.show("difference from one device", tf.reduce_max(tf.abs(agreed[0] - one_device)), below=1e-6)

# %% [markdown]
# Every replica must take part in an all-reduce, so keep it out of an `if` that can differ between
# replicas.
#
# <details><summary>Which reduce goes where</summary>
#
# | call | where you call it | what it gives |
# |---|---|---|
# | `strategy.reduce("SUM", values, axis=None)` | outside `run` | one value, for your program |
# | `context.all_reduce("SUM", value)` | on a replica | the same value on every replica |
# | `variable.assign(value)`, with an aggregation | on a replica | the same value in every copy |
# | `strategy.extended.reduce_to(...)` | inside `merge_call` | a value where a variable lives |
#
# A variable's [aggregation](../docs/glossary.md#aggregation) says how TensorFlow combines what the
# replicas assign; you will choose one below. You will rarely need the last row. TensorFlow uses it
# inside `assign` if the aggregation is a sum or a mean. The optimizers of Keras 3 call
# `all_reduce`.
# </details>
#
# <details><summary>How the numbers travel: cross_device_ops</summary>
#
# `cross_device_ops` of a strategy chooses the route of an all-reduce: over one device and back, in
# stages, or in a ring between GPUs. It changes the speed, and the sum only by rounding.
# `dl.make_strategy` picks a good one. To choose yourself, write `dl.make_strategy("mirrored",
# cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())`. `dl.describe(strategy).all_reduce`
# names the one in use.
# </details>
#
# ## Extra: If only one replica calls it
#
# An all-reduce waits for all replicas. What if an `if` lets only replica 0 call it?

# %% tags=["predict"]
if_guess = dl.predict(
    "Replica 0 calls `all_reduce` inside an `if`, and replica 1 does not. What happens?",
    ["replica 0 waits for ever", "replica 0 gets its own value", "an error"],
)


# %%
from distlab.course.runs.outcomes import what_happens


def only_replica_0():
    context = tf.distribute.get_replica_context()
    if context.replica_id_in_sync_group == 0:
        context.all_reduce("SUM", tf.constant(1.0))


outcome = what_happens(lambda: strategy.run(only_replica_0))  # the result, or the error
print(outcome)

# %% tags=["reveal"]
if_guess.reveal(
    "an error" if isinstance(outcome, RuntimeError) else "replica 0 gets its own value",
    {
        "replica 0 waits for ever": "This can happen with several processes, because no process "
        "sees which calls the others have skipped. Here one process runs both replicas.",
        "replica 0 gets its own value": "Then the copies of a weight would drift apart. An "
        "all-reduce never returns a part of the sum.",
        "an error": "One process runs both replicas, so TensorFlow sees that replica 1 has "
        "finished and that replica 0 still waits.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The error names `merge_call`, with which `all_reduce` waits for all replicas here. If you compile
# `only_replica_0` with `@tf.function`, the error is different: *merge_call called while defining a
# new graph*. The `if` tests a tensor, the replica's index. TensorFlow makes a graph of each branch
# of such an `if`, and inside that graph no replica can wait for the others. On several workers such
# a mistake can hang instead (lesson 09). **Every replica must take part:** keep every all-reduce
# out of an `if` that can differ between replicas. In a `tf.function`, keep it out of every `if` on
# a tensor, even if all replicas would agree.

# %% [markdown]
# ## Three digits on two replicas
#
# Three digits on two replicas are shares of 2 and 1. Each replica takes the mean over its share,
# and the all-reduce takes the mean of these two means. (In the code below, `alone` holds the
# gradient of each single digit. `image[None]` is a batch of one image.)

# %% tags=["predict"]
weight_guess = dl.predict(
    "How much does the digit that is alone on its replica weigh in the mean of the two means?",
    ["1/4", "1/3", "1/2", "2/3"],
)

# %%
(three,) = dl.load_dataset("digits", splits=["train[:3]"], batch_size=3)
(batch3,) = three
shared3 = next(iter(strategy.experimental_distribute_dataset(three)))
counts = [len(part) for part in strategy.experimental_local_results(shared3[1])]
wanted = gradient(*batch3)
agreed3 = on_each_replica(agreed_gradient, shared3)[0]

alone = np.stack([gradient(image[None], label[None]) for image, label in zip(*batch3, strict=True)])
each_weighs = np.linalg.lstsq(alone.T, agreed3, rcond=None)[0]
dl.show("digits on each replica", counts)
dl.show("weight of each digit", each_weighs, digits=2)

# %% tags=["reveal"]
weight_guess.reveal(
    f"1/{1 / each_weighs[2]:.0f}",
    {
        "1/4": "Each of the two digits that share a replica weighs 1/4.",
        "1/3": "It should. But each replica's mean weighs 1/2, however many digits are in it.",
        "2/3": "The replica with one digit gives half of the result, not more.",
        "1/2": "The mean of two means gives each of them one half, and one of the two means is "
        "this digit alone.",
    },
)

# %% [markdown] tags=["after-reveal"]
# `lstsq` found which weights of the three single gradients give the mean of means: 1/4, 1/4 and
# 1/2. Each digit should weigh 1/3. So do not average averages. **Add up the gradients of all
# examples, or of all tokens if your loss counts tokens, and divide by their number.** In the
# function below, each replica multiplies its mean gradient by its number of examples, which gives
# the sum over its examples. A replica without examples contributes 0: its mean loss is NaN, but
# TensorFlow's gradient of that loss is 0.


# %% tags=["after-reveal"]
def exact_gradient(images, labels):
    context = tf.distribute.get_replica_context()
    count = tf.cast(tf.shape(labels)[0], tf.float32)  # 2 or 1
    total = context.all_reduce("SUM", count)  # 3, on both replicas
    return context.all_reduce("SUM", gradient(images, labels) * count / total)


exact = on_each_replica(exact_gradient, shared3)[0]
dl.show("mean of means", agreed3, digits=2)
dl.show("weighted by examples", exact, digits=2)
dl.show("difference from one device", tf.reduce_max(tf.abs(exact - wanted)), below=1e-6)

# %% [markdown]
# ## An update keeps the copies equal
#
# Nothing compares the copies. They stay equal for one reason only: **they start equal, and every
# replica subtracts the same number.**


# %%
def step(images, labels):
    bias.assign_sub(0.8 * exact_gradient(images, labels))


on_each_replica(step, shared)
dl.show("replica 0", copies(bias)[0], digits=2)
dl.show("replica 1", copies(bias)[1], digits=2)
dl.show("equal", (copies(bias)[0] == copies(bias)[1]).all(), expected=True)

# %% [markdown]
# ## A variable that remembers
#
# Now make a variable that is not a weight. It should hold the loss of the last batch, and you make
# it inside the scope.

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
        "the mean of both losses": "You would want that. But TensorFlow combines what replicas "
        "assign only if you tell it how, when you make the variable.",
        "the loss of replica 1": "If both wrote to one variable, the last one would count. Each "
        "replica wrote to its own copy.",
        "an error": "TensorFlow's documentation of the default promises one. In fact each replica "
        "writes to its own copy.",
        "the loss of replica 0": "Each copy holds its own loss, and you read the first copy.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The copies differ, and no error tells you. When you read the variable, you get one of them: the
# copy of the device on which you ask. Outside `run` that is replica 0's copy, unless you choose a
# device with `tf.device`. Inside `run`, each replica reads its own copy.
#
# The cause is the variable's [aggregation](../docs/glossary.md#aggregation), which is `NONE` if
# you do not choose one: each replica assigns to its own copy. That is right for weights after an
# all-reduce, because all replicas assign the same. It is wrong for values that come from one
# replica's share. The cure is to say how assigned values are combined:

# %% tags=["after-reveal"]
with strategy.scope():
    last_loss = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)

on_each_replica(remember, shared)
dl.show("the copies", copies(last_loss), expected=[mean_loss(*batch).numpy()] * 2)

# %% [markdown] tags=["after-reveal"]
# | `aggregation` | what every copy gets | use it for |
# |---|---|---|
# | `NONE` (the default) | its own replica's value | what is already equal on all replicas |
# | `SUM` | the sum | counts, totals |
# | `MEAN` | the mean | means over *equal* shares |
# | `ONLY_FIRST_REPLICA` | replica 0's value | a step counter |

# %% [markdown]
# ## BatchNormalization on two replicas
#
# Build a common Keras model in the scope, and train it with Keras's own `fit`. It has a
# `BatchNormalization` layer with four variables: `gamma` and `beta` scale and shift what the layer
# has normalised, and `moving_mean` and `moving_variance` are running averages of the digits'
# statistics. You can call `fit` outside, because a Keras model remembers the strategy under which
# you built it. `shuffle=False` only avoids a warning: `fit` never shuffles a `tf.data.Dataset`.
# `variable.value` in the last line is the TensorFlow variable inside a Keras variable.

# %% tags=["predict"]
layer_guess = dl.predict(
    "After an epoch on two replicas, which variables of BatchNormalization differ between copies?",
    ["none", "gamma and beta", "moving_mean and moving_variance", "all four"],
)

# %%
import keras


def normalized(synchronized=False):
    norm = keras.layers.BatchNormalization(synchronized=synchronized)
    layers = [keras.layers.Flatten(), norm, keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    return model, norm


(some,) = dl.load_dataset("digits", splits=["train[:64]"], batch_size=32)
dl.set_seed(1)
with strategy.scope():
    model, norm = normalized()
model.fit(some, shuffle=False, verbose=0)
for variable in norm.weights:
    dl.show(f"{variable.name} of pixel 20", [copy[20] for copy in copies(variable.value)])

# %% tags=["reveal"]
layer_guess.reveal(
    " and ".join(v.name for v in norm.weights if np.ptp(copies(v.value), axis=0).any()),
    {
        "none": "Each replica normalises its own digits, and writes their statistics into its "
        "own copy. Nothing combines them.",
        "gamma and beta": "These two are trained. Their gradients go through the all-reduce.",
        "all four": "gamma and beta are trained, so the all-reduce keeps their copies equal.",
        "moving_mean and moving_variance": "Each replica writes its own digits' statistics. "
        "Keras 3 makes these two variables without an aggregation, so each replica writes to its "
        "own copy.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **A layer that you use every day keeps different numbers on each device.** `predict` and
# `evaluate` run on all replicas, and each replica normalises by its own copy. So the prediction for
# an image depends on its place in the batch. A checkpoint keeps one copy, so the statistics of the
# second replica's digits are lost. (Keras 2 saved the mean over the replicas.)
#
# With `synchronized=True` the layer all-reduces its sums and counts, so all replicas normalise by
# the statistics of the whole global batch. (Under `dl.distribute`, in the next section, every
# BatchNormalization does so.) Train the same model on one device, and compare:


# %% tags=["after-reveal"]
def apart(model, reference):
    pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
    return max(np.abs(a - b).max() for a, b in pairs)


dl.set_seed(1)
on_one, _ = normalized()
on_one.fit(some, shuffle=False, verbose=0)
dl.set_seed(1)
with strategy.scope():
    synchronized, _ = normalized(synchronized=True)
synchronized.fit(some, shuffle=False, verbose=0)
dl.show("weights apart from one device's by", apart(model, on_one), digits=3)
dl.show("the same, synchronized", apart(synchronized, on_one), below=1e-6)

# %% [markdown]
# ## The same in `fit`
#
# You now know what happens in a step. Write a function that builds the model for one device.
# `dl.distribute` calls that function in the scope, and replaces the step that Keras's `fit` runs.


# %%
def build():
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    return model


train, test = dl.load_dataset("digits", batch_size=32)

# %% tags=["predict"]
steps_guess = dl.predict(
    "1,437 digits in batches of 32, three epochs, two replicas. How many steps does the optimizer "
    "take?",
    unit="steps",
)

# %%
dl.set_seed(1)
two = dl.distribute(build, strategy)
history_of_two = two.fit(train, epochs=3, shuffle=False, verbose=0)
steps = int(two.optimizer.iterations.numpy())
dl.show("steps with two replicas", steps)

# %% tags=["reveal"]
steps_guess.reveal(
    steps,
    {
        135: "1437 / 32, rounded up, is 45 steps an epoch. Both replicas take each step together.",
        45: "That is one epoch.",
        69: "That would need 32 digits on each replica. `fit` takes the global batch.",
        66: "That would need 32 digits on each replica, and it leaves out the last digits of each "
        "epoch. `fit` takes the global batch, and a partial batch makes a step, too.",
        270: "The two replicas take one step together, not one each.",
        132: "1437 / 32 is 44.9. The last 29 digits of each epoch make a step, too.",
    },
)

# %% [markdown]
# The data set that you give to `fit` has **global** batches: 32 digits, so 16 on each replica.
#
# Now build the same model on one device, with the same seed, and train it on the same data.

# %%
dl.set_seed(1)
one = build()
history_of_one = one.fit(train, epochs=3, shuffle=False, verbose=0)
dl.show("largest difference of any weight", apart(two, one), below=1e-6)

# %% [markdown]
# **Two replicas end with the weights of one device,** except for rounding: they add the same
# numbers in a different order. (Lesson 06 shows what can be equal in every bit.) The losses on the
# way agree as well:

# %%
from distlab.course.lesson_01_mirrored_strategy.figures import draw_losses

losses = {"one device": history_of_one.history["loss"]}
losses["two replicas"] = history_of_two.history["loss"]
draw_losses(losses)

# %% [markdown]
# ### Built in the scope, trained by Keras's fit
#
# Without `dl.distribute`, Keras's own `fit` also trains a model from the scope on both replicas.
# This model has no `BatchNormalization`.

# %% tags=["predict"]
fit_guess = dl.predict(
    "Built in the scope and trained by Keras's own `fit`: how does it compare with one device?",
    [
        "equal, except for rounding",
        "equal on full batches only",
        "different on full batches, too",
    ],
)


# %%
def difference_in_scope(data):
    dl.set_seed(1)
    alone = build()
    alone.fit(data, epochs=3, shuffle=False, verbose=0)
    dl.set_seed(1)
    with strategy.scope():
        plain = build()
    plain.fit(data, epochs=3, shuffle=False, verbose=0)
    return apart(plain, alone)


all_batches, full_batches = difference_in_scope(train), difference_in_scope(train.take(44))
dl.show("all 45 batches, apart by", all_batches, digits=3)
dl.show("the 44 full ones, less than a millionth", bool(full_batches < 1e-6))

# %% tags=["reveal"]
fit_guess.reveal(
    "equal, except for rounding"
    if all_batches < 1e-6
    else "equal on full batches only"
    if full_batches < 1e-6
    else "different on full batches, too",
    {
        "equal, except for rounding": "In each epoch one batch of 45 is partial. Its 29 digits "
        "are shared as 16 and 13.",
        "different on full batches, too": "With 16 digits on each replica, the mean of the two "
        "means is the mean of all 32.",
        "equal on full batches only": "The last batch has 1437 - 44 * 32 = 29 digits. One replica "
        "gets 16 and the other 13, and `fit` takes the mean of the two means.",
    },
)

# %% [markdown] tags=["after-reveal"]
# This is the mean of means again. The digits come from files, so TensorFlow
# cuts off 16 first and leaves 13 (lesson 00). In Keras 3, `fit` takes the mean of the two
# means: each of the 16 weighs 1/32 and each of the 13 weighs 1/26, in place of 1/29. After three
# such steps, one in each epoch, a weight is up to 0.004 away from one device's. `dl.distribute`
# weighs every example alike.
#
# If you stay with Keras's own `fit`, choose a batch size that is a multiple of the number of
# replicas, and leave out the partial batch with `batch(..., drop_remainder=True)`.

# %% [markdown]
# <details><summary>In plain TensorFlow</summary>
#
# `dl.distribute(build, strategy)` is `with strategy.scope(): model = build()`, and it replaces
# what a step of `fit` does. Every replica runs the step of one device: layers compute the replica's
# own examples, and everything else sees the whole batch. The mean of the replicas' gradients is
# then the gradient of the global batch, and only that mean reaches the optimizer. Lesson 03 writes
# a step by hand.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch's `DistributedDataParallel` keeps one process and one copy of the model for each replica.
# It all-reduces the *mean* of the gradients while the backward pass runs, so it expects equal
# shares. Its `BatchNorm` layers keep the statistics of rank 0, the first process, and
# `SyncBatchNorm` is the cure. In JAX, one array can be spread over several devices. Under `jax.jit`
# you write the mean over a global batch once, and the compiler adds the all-reduce. Inside
# `shard_map` it is `jax.lax.psum`. The gradient of replicated weights needs none: by default JAX
# has added it up already (lesson 03).
# </details>

# %% [markdown]
# ## Extra: A variable made inside a tf.function
#
# Task 3 of the exercise needs this section. Sometimes you can make a variable only in the
# first step, for example because its shape depends on the data. For that you must know what
# `tf.function` does. At the first call it runs your Python code and records TensorFlow's operations
# in a graph. This is a [trace](../docs/glossary.md#trace). Later calls run the graph, without
# Python. A tensor of a different shape or type makes a new trace.
#
# So a `tf.Variable(...)` in a `tf.function` would make a new variable with each trace, and
# TensorFlow refuses that. It finds out during the first call: if the first trace makes a variable,
# TensorFlow traces a second time, and raises an error if that trace makes one as well. (The last
# line below prints the main sentence of a long message.)


# %%
@tf.function
def count():
    steps = tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    steps.assign_add(1)


try:
    strategy.run(count)
except ValueError as error:
    print(str(error).rpartition("ValueError: ")[2].partition(". ")[0])

# %% [markdown]
# The cure: **make it once, and keep it** where the next trace finds it.

# %%
kept = {}


@tf.function
def count():
    if "steps" not in kept:
        kept["steps"] = tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    kept["steps"].assign_add(1)


strategy.run(count)
strategy.run(count)
dl.show("the copies after two steps", copies(kept["steps"]), expected=[2, 2])

# %% [markdown]
# TensorFlow traces one replica at a time. Replica 0 comes first and finds `kept` empty, so replica
# 0 makes the variable, with a copy on each device. Replica 1 finds it there. No `with
# strategy.scope()` is needed, because `strategy.run` enters the scope. In each step both replicas
# add 1, and with `ONLY_FIRST_REPLICA` every copy gets what replica 0 added.

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You made a counter before <code>with strategy.scope():</code>, and each
# replica adds 1 to it. What does a step of two replicas add?</summary>
#
# Two: it has one copy, and every replica changes it.
# </details>
#
# <details><summary>2. What keeps the copies of a weight equal?</summary>
#
# They start equal, and after the all-reduce every replica applies the same update. Nothing compares
# them.
# </details>
#
# <details><summary>3. Shares of 3, 3, 3 and 1. How much does the example that is alone weigh in a
# mean of means?</summary>
#
# 1/4. Each of the nine that share a replica weighs 1/12. All should weigh 1/10.
# </details>
#
# <details><summary>4. <code>variable.numpy()</code> shows what you expected. Are all copies
# right?</summary>
#
# You cannot tell, because you read one copy. Look at
# `strategy.experimental_local_results(variable)`.
# </details>
#
# <details><summary>5. Inside <code>strategy.run</code> you want the sum over all replicas. Do you
# call <code>strategy.reduce</code>?</summary>
#
# No, it raises an error there. Call `all_reduce` of the replica context.
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
# - [The glossary](../docs/glossary.md) explains the terms.
# - [Fixing gradient accumulation](https://huggingface.co/blog/gradient_accumulation) tells the
#   story of the first paragraph.
# - [Distributed training](https://www.tensorflow.org/guide/distributed_training) is TensorFlow's
#   guide to all strategies. Its Keras examples have 100 examples in batches of 10, so no batch is
#   partial.
