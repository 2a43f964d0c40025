# %% [markdown]
# # Without Keras: what a training step needs
#
# Some mistakes in a training step raise no error: the loss falls, and you save a model that is
# worse than it should be. You do not have to look far: such mistakes are in libraries that
# thousands of people use, and this lesson finds one.
#
# In this lesson you take Keras away and write a step from variables and arithmetic. You will find
# out what Keras has done for you until now.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - train raw `tf.Variable`s on four replicas, and show that one device would have learnt the same,
# - check a step that raises no error, and measure what a mistake in it costs,
# - say which calculations must wait for the all-reduce,
# - decide when a step without Keras is worth its lines.
#
# **Time:** {minutes}. **Needs:** lessons 01 and 03; the update rules of momentum and Adam.
# No GPU, and nothing is downloaded.

# %% [markdown]
# ### Two questions on lessons 03 and 01
#
# 1. Each replica has a gradient of the *sum* of its losses, divided by the number of examples in
#    the global batch. How do you combine four such gradients?
# 2. Four replicas assign to a variable with `aggregation=MEAN`. What do its copies hold?
#
# <details><summary>Answers</summary>
#
# 1. Add them up. Each is one part of the mean over the global batch.
# 2. All hold the mean of the four values.
# </details>

# %%
import functools

import numpy as np

import distlab as dl

dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %%
import tensorflow as tf

strategy = dl.make_strategy("mirrored", devices=4)
tf.get_logger().setLevel("ERROR")  # no reminders that tf.function is faster
train, test = dl.load_dataset("digits", batch_size=32)
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## A model of four arrays
#
# Our network has one hidden layer. Its weights are four arrays, which `start` draws from a fixed
# seed, and its whole definition is the function `scores`.


# %%
def start():
    draw = np.random.default_rng(4)
    shapes = [(64, 32), (32,), (32, 10), (10,)]
    return [draw.normal(0, 0.2, shape).astype("float32") for shape in shapes]


def scores(weights, images):
    kernel, bias, last_kernel, last_bias = weights
    hidden = tf.nn.relu(tf.reshape(images, [-1, 64]) @ kernel + bias)
    return hidden @ last_kernel + last_bias


# %% [markdown]
# The loss follows the rule of lesson 03: add up the losses of a replica's own examples, and divide
# by the examples of the global batch. `count_in_batch` finds that number with an all-reduce.


# %%
def all_reduce(way, values):
    return tf.distribute.get_replica_context().all_reduce(way, values)


def count_in_batch(labels):
    return all_reduce("SUM", tf.cast(tf.shape(labels)[0], tf.float32))


def gradients_of(weights, images, labels):
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores(weights, images))
        loss = tf.reduce_sum(losses) / count_in_batch(labels)
    return tape.gradient(loss, weights)


# %% [markdown]
# `train_by` trains for two epochs with any step that we hand it, and notes the copies of one
# weight after each step. We watch the last bias of digit 3, which every batch changes.


# %%
def copies(variable):
    return [copy.numpy() for copy in strategy.experimental_local_results(variable)]


def train_by(step, **how_to_make):
    with strategy.scope():
        weights = [tf.Variable(values, **how_to_make) for values in start()]
    compiled = tf.function(lambda batch: strategy.run(step, args=(weights, *batch)))
    path = [[copy[3] for copy in copies(weights[-1])]]
    for _ in range(2):
        for batch in strategy.experimental_distribute_dataset(train):
            compiled(batch)
            path.append([copy[3] for copy in copies(weights[-1])])
    return weights, np.array(path)


# %% [markdown]
# ## A step of SGD
#
# SGD subtracts the learning rate times the gradient. Here is that sentence as code:


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

# %%
drifted, path = train_by(subtract)
equal = all(np.array_equal(copies(w)[0], copy) for w in drifted for copy in copies(w))
dl.show("copies of the watched weight", path[-1], digits=3)

# %% tags=["reveal"]
drift_guess.reveal(
    "equal, but the steps are too short" if equal else "they drift apart",
    {
        "equal, and right: the strategy adds up the gradients": "A strategy makes copies, shares "
        "batches and offers an all-reduce. For variables like these it never calls the all-reduce "
        "for you: with Keras, the optimizer does.",
        "equal, but the steps are too short": "That would need an all-reduce of the gradients. "
        "This step all-reduces only the number of examples.",
        "the first step raises an error": "TensorFlow's page on `VariableAggregation` says so. But "
        "in `strategy.run` a replica assigns to its own copy, and no error is raised.",
        "they drift apart": "Each replica subtracts its own gradient from its own copy.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Four models have been trained, each on a quarter of the digits. For the picture we train one
# device on the whole batches. `get_replica_context` works there as well, with a single replica.


# %% tags=["after-reveal"]
def one_device_path(rate=0.5):
    weights, path = [tf.Variable(values) for values in start()], [start()[-1][3]]
    step = tf.function(subtract)
    for _ in range(2):
        for images, labels in train:
            step(weights, images, labels, rate)
            path.append(weights[-1].numpy()[3])
    return [weight.numpy() for weight in weights], np.array(path)


one_device, one_path = one_device_path()

# %% tags=["after-reveal"]
from distlab.course.lesson_04_without_keras.figures import draw_drift

draw_drift(path, one_path, label="last bias of digit 3")

# %% [markdown]
# ### Which of the four would you save?
#
# `weight.numpy()` reads one copy, and `tf.train.Checkpoint` stores that copy. Test all four, and
# the one device beside them:

# %%
images, labels = next(iter(test.unbatch().batch(360)))


def test_of(weights):
    """The mean loss and the accuracy on the test digits."""
    found = scores(weights, images)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, found)
    return {"loss": losses.numpy().mean(), "accuracy": np.mean(np.argmax(found, -1) == labels)}


def models_in(weights):
    return [[copies(weight)[replica] for weight in weights] for replica in range(4)]


for replica, model in enumerate(models_in(drifted)):
    dl.show(f"copy of replica {replica}", test_of(model), digits=2)
dl.show("one device", test_of(one_device), digits=2)

# %% [markdown]
# Every copy gets about three of four test digits right. If you had only this number, you might
# think that the model is too small. You see the mistake if you compare the copies with each other
# or with one device.
#
# Two things are wrong in these four models. Each learnt from a quarter of the digits. And each took
# steps of a quarter of their length: it subtracted only its own part of the gradient, and this part
# was divided by the examples of all four replicas. We can make each mistake alone. One device with
# a quarter of the learning rate sees all digits and takes short steps. Replicas with 4 times the
# learning rate see a quarter of the digits each and take steps of full length.

# %% tags=["predict"]
parts_guess = dl.predict(
    "After the same two epochs, which of the two mistakes alone gives the larger loss on the test "
    "digits, on average?",
    ["a quarter of the digits", "steps of a quarter of the length", "both the same, nearly"],
)

# %%
short_steps, _ = one_device_path(rate=0.5 / 4)
few_digits, _ = train_by(functools.partial(subtract, rate=0.5 * 4))
few_digits_losses = [test_of(model)["loss"] for model in models_in(few_digits)]

dl.show("all digits, short steps", test_of(short_steps)["loss"], digits=2)
dl.show("a quarter of the digits, full steps", few_digits_losses, digits=2)

# %% tags=["reveal"]
few, short = np.mean(few_digits_losses), test_of(short_steps)["loss"]
if abs(few - short) < 0.1 * max(few, short):
    larger = "both the same, nearly"
else:
    larger = "a quarter of the digits" if few > short else "steps of a quarter of the length"
parts_guess.reveal(
    larger,
    {
        "a quarter of the digits": "In two epochs these replicas still see hundreds of digits "
        "each. Short steps do not get far in 90 steps, however many digits they see.",
        "both the same, nearly": "They lose different things. The digits resemble each other, so a "
        "quarter of them teaches much of what all teach. Steps of a quarter of the length need "
        "about four times as many steps.",
        "steps of a quarter of the length": "A quarter of the digits teaches much of what all "
        "teach. But 90 short steps do not get far.",
    },
)

# %% [markdown] tags=["after-reveal"]
# After two epochs the short steps cost more. Is that still true later? Short steps only need more
# epochs. After 32 epochs one device has a loss of 0.10, and short steps have 0.12. The replicas
# that see a quarter of the digits have 0.18 on average, so they are now the worse ones (a test of
# this lesson trains that long). So the mistake with the smaller loss in a short test can be the
# one with the larger loss in the end. The step above made both at once.
#
# ## The line that was missing


# %%
def add_up_and_subtract(weights, images, labels):
    gradients = all_reduce("SUM", gradients_of(weights, images, labels))
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.assign_sub(0.5 * gradient)


summed, path = train_by(add_up_and_subtract)
dl.show("copies of the watched weight", path[-1], digits=3)


def apart(weights, others):
    pairs = zip(weights, others, strict=True)
    return max(np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in pairs)


dl.show("difference from one device", apart(summed, one_device), below=1e-6)

# %% [markdown]
# One call takes all four gradients as a list. A call for each would be right as well, but between
# GPUs or machines each call costs the time of a message ([lesson 12](12_ring_all_reduce.ipynb)).
#
# Could your step and your one device both be wrong? To find out, Keras's own `fit` trains the same
# network on one device, from the same weights.

# %%
import keras


def keras_weights(optimizer):
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.set_weights(start())
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(train, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


by_keras = keras_weights(keras.optimizers.SGD(0.5))
dl.show("difference from Keras", apart(summed, by_keras), below=1e-6)

# %% [markdown]
# ## A variable with an aggregation
#
# Lesson 01 gave a variable an [aggregation](../docs/glossary.md#aggregation). Take `subtract`, the
# step that does not all-reduce its gradients, and leave it as it is. Only the weights are made with
# an aggregation.

# %% tags=["predict"]
aggregation_guess = dl.predict(
    "With which aggregation of the weights does `subtract` end at the weights of one device?",
    ["with SUM", "with MEAN", "with both", "with neither"],
)

# %%
ends = {}
for way in (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN):
    ends[way.name], _ = train_by(subtract, aggregation=way)
distances = {way: apart(weights, one_device) for way, weights in ends.items()}

# %% tags=["reveal"]
right = [way for way, distance in distances.items() if distance < 1e-6]
aggregation_guess.reveal(
    {("SUM",): "with SUM", ("MEAN",): "with MEAN", (): "with neither"}.get(
        tuple(right), "with both"
    ),
    {
        "with MEAN": "Then `assign_sub` subtracts the mean of four parts. Each part is already "
        "divided by the examples of all replicas, so this divides by 4 a second time.",
        "with both": "All copies are equal with both. But with MEAN, a sum that is already divided "
        "by the examples of all replicas is divided by 4 a second time.",
        "with neither": "With an aggregation, `assign_sub` all-reduces what the replicas "
        "subtract, and gives every copy the result. You wrote no all-reduce, but there is one.",
        "with SUM": "`assign_sub` adds up what the replicas subtract: the parts of one mean.",
    },
)

# %% tags=["after-reveal"]
dl.show("SUM, difference from one device", distances["SUM"], below=1e-6)
from_short = apart(ends["MEAN"], short_steps)
dl.show("MEAN, difference from one device with short steps", from_short, below=1e-6)

# %% [markdown]
# This is shorter, and it hides an all-reduce inside `assign_sub`, one for each variable. Most code
# writes the all-reduce instead, because then you can do something with the sum before you use it.
# The next section shows why that matters.
#
# ## An optimizer with a memory
#
# Momentum and Adam keep *state* for each weight. `momentum` and `adam` below turn gradients into
# changes of the weights. Python runs these functions only while TensorFlow traces the step, and
# only the first trace makes variables: that is what `if not state` is for. A variable that is made
# inside `strategy.run` is mirrored: each replica has a copy. `momentum` returns `tf.identity`, a
# tensor with the variable's value: TensorFlow documents the all-reduce for tensors only.


# %%
def momentum(state, gradients):
    if not state:
        state["velocity"] = [tf.Variable(tf.zeros_like(each)) for each in gradients]
    for velocity, gradient in zip(state["velocity"], gradients, strict=True):
        velocity.assign(0.9 * velocity - 0.1 * gradient)
    return [tf.identity(velocity) for velocity in state["velocity"]]


# %% [markdown]
# Adam keeps a running mean of the gradient and one of its square. Both start at zero, so they are
# too small at first. The factors `1 - 0.9**step` and `1 - 0.999**step` in `rate` correct for that,
# as in Keras.


# %%
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
# There are two places for the all-reduce. It can combine the **gradients** before the optimizer
# sees them. Or each replica multiplies its own part by 4, which makes it the mean over its own 8
# digits (in a full batch). It runs the optimizer on that, and the all-reduce takes the mean of the
# four **changes**.


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
    wanted = keras_weights(reference)
    for reduce_first in (True, False):
        weights, _ = train_by(step_with(optimizer, reduce_first=reduce_first))
        distances[optimizer.__name__, reduce_first] = apart(weights, wanted)
        losses[optimizer.__name__, reduce_first] = test_of(weights)["loss"]

# %% tags=["reveal"]
held = [name for name in ("momentum", "adam") if distances[name, False] < 1e-6]
order_guess.reveal(
    {("momentum",): "with momentum only", ("adam",): "with Adam only", (): "with neither"}.get(
        tuple(held), "with both"
    ),
    {
        "with neither": "With momentum you do: its change is a sum of gradients with fixed "
        "factors, and the mean of four such sums is the same sum of the mean gradients.",
        "with Adam only": "Each replica divides by the root of its own square. The mean of four "
        "quotients is not the quotient of the means.",
        "with both": "All copies stay equal with both. But equal is not right: with Adam each "
        "replica divides by the root of its own square.",
        "with momentum only": "A velocity is a sum of gradients with fixed factors. Adam divides.",
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
# all-reduce. So comparing the copies of the weights finds nothing here. The comparison with one
# device does: after 90 steps the wrong Adam has a loss of 0.37 in place of 0.25. (The copies of its
# `mean` and `square` differ as well, if you think of comparing them.) In its first step, Adam moves
# a weight by its learning rate against the *sign* of the gradient, since it divides the gradient by
# its own size. Look at the signs for one weight:

# %% tags=["after-reveal"]
mirrored = strategy.experimental_distribute_dataset(train)
with strategy.scope():
    fresh = [tf.Variable(values) for values in start()]
batch = next(iter(mirrored))
each = strategy.experimental_local_results(
    strategy.run(lambda *batch: gradients_of(fresh, *batch)[-1][3], args=batch)
)
own = 4 * np.array(each)  # means over 8 digits
dl.show("gradients of the four replicas", own, digits=3)
dl.show("sign of their mean", np.sign(np.mean(own)), expected=-1)
dl.show("mean of their signs", np.mean(np.sign(own)), expected=-0.5)

# %% [markdown] tags=["after-reveal"]
# Three replicas move this weight up and one moves it down, so the mean of their changes is half of
# what one device does. The more the replicas disagree, the shorter the step. **Reduce before
# anything that is not linear:** squares, roots, norms, clipping, signs.
#
# Keras all-reduces the gradients before its optimizer updates its state, so its Adam is right. What
# about an optimizer of Keras that clips?

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
        "at 1, as on one device": "That needs the sum first: -1 is within the limit. Keras clips "
        "the four parts to 1, -1, -1 and -1, and then adds them up.",
        "at 0.5": "That would be the mean of the clipped parts. Keras adds them up.",
        "the copies differ": "All copies change by the same sum, because Keras does all-reduce the "
        "gradients.",
        "at 2": "The clipped parts are 1, -1, -1 and -1. Their sum is -2, and the step is twice as "
        "long as on one device.",
    },
)

# %% [markdown] tags=["after-reveal"]
# With `clipnorm`, `clipvalue` and `global_clipnorm`, Keras 3 clips [each replica's own part][clip],
# and the all-reduce comes after that. Nothing raises an error. In 2020 the Keras of TensorFlow
# raised one instead, because [its
# developers](https://github.com/tensorflow/tensorflow/issues/33929) did not want to clip silently
# in the wrong place. (`dl.distribute` clips the reduced gradient, as one device does.)
#
# [clip]: https://github.com/keras-team/keras/blob/v3.15.1/keras/src/optimizers/base_optimizer.py
#
# ## When would you do without Keras?
#
# | you want | with Keras | without |
# |---|---|---|
# | a network, a loss, an optimizer that exist | `dl.distribute`, `fit` | no reason |
# | a step of your own for a network | `train_step` (lesson 03) | no reason |
# | to clip the sum | `dl.distribute` with `clipnorm` | no reason |
# | to compress what each replica sends | `train_step` in Keras's own `fit` | clearer |
# | fewer all-reduces: average the weights now and then (exercise 04) | hard | natural |
# | a model that is no network: a simulation, a matrix factorisation | in the way | natural |
#
# In Keras's own `fit`, the optimizer adds up whatever your `train_step` hands it. If your
# `train_step` adds up the gradients itself, divide the sum by the number of replicas after you clip
# it, or the gradient becomes too large. Under `dl.distribute`, `tape.gradient` in a `train_step`
# already returns the gradient of the global batch: clip that, and neither add up nor divide.
#
# What you lose are callbacks, progress bars and `model.save`. `tf.train.Checkpoint` still saves
# your variables, and metrics of Keras still work.
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch's `DistributedDataParallel` puts the all-reduce into the backward pass: when
# `loss.backward()` returns, `parameter.grad` holds the mean over all processes. The optimizer
# comes after it, so the order is right by construction. In JAX, under `jax.jit` with a sharded
# batch, the compiler inserts the all-reduce for you. Inside `jax.shard_map` the gradient with
# respect to replicated weights already contains the sum by default. You call `jax.lax.psum`
# yourself only if you switch that off (`check_vma=False`). Doing both makes the gradient N times
# too large.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. A raw training loop runs on eight replicas and does not all-reduce the
# gradients. What does the loss of replica 0 look like?</summary> It falls, and nothing raises an
# error. It is about an eighth as large as usual, because it is divided by the global batch.
# </details>
#
# <details><summary>2. All copies of all weights are equal after 1,000 steps. Is the training
# right?</summary> Not necessarily. Adam on each replica's own gradient keeps the copies equal, too,
# if the changes are averaged. Compare with one device.
# </details>
#
# <details><summary>3. You clip each replica's gradient to norm 1 and then add up. Is that what one
# device does?</summary> No. A norm is not linear, so add up first and clip the sum. Keras 3's
# `global_clipnorm` clips first.
# </details>
#
# <details><summary>4. Which <code>aggregation</code> makes <code>assign_sub</code> right for
# gradients whose losses are divided by the global batch?</summary> SUM. MEAN would divide by the
# number of replicas once more.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 04](../exercises/04_without_keras.ipynb): three steps by hand, about 40 minutes. The
#   last one leaves out all-reduces on purpose.
# - [Lesson 05](05_input_pipelines.ipynb) feeds the replicas.
# - [The glossary](../docs/glossary.md) explains the terms.
# - [Adam](https://arxiv.org/abs/1412.6980), Algorithm 1, defines the update. Keras and this lesson
#   use the form at the end of the paper's section 2, in which the correction moves into the rate.
# - [TensorFlow's guide](https://www.tensorflow.org/guide/distributed_training) has a custom loop
#   with a Keras optimizer. It says in one note that `apply_gradients` sums the gradients over all
#   replicas: that is the all-reduce which you wrote here.
