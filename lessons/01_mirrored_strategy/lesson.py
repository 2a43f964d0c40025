# %% [markdown]
# # MirroredStrategy: one model, a copy on every device
#
# In lesson 00 the replicas only *looked* at their examples. Now they learn from them, each with its
# own copy of the model. At the end two replicas have the weights that one device would have.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - make variables that live on every device, and read each copy,
# - say what the all-reduce adds up, and when a mean of means is the wrong mean,
# - find the variable whose copies drift apart without an error, and cure it,
# - train a Keras model on two replicas and show that one device would have learnt the same.
#
# **Time:** 25 minutes. **Needs:** lesson 00; what a gradient and a step of SGD are; Keras `compile`
# and `fit`. No GPU, no download.
#
# The difference from lesson 00:
#
# ```diff
#   strategy = dl.make_strategy("mirrored", devices=2)
# + with strategy.scope():
# +     weights = tf.Variable(...)          # a copy on every device
#   strategy.run(step, args=(batch,))
# - # each replica looks at its examples
# + # each replica has a gradient; all add them up; every copy takes the same step
# ```

# %% [markdown]
# ### Two questions on lesson 00
#
# 1. Ten examples in one batch, four replicas: how many does each get?
# 2. You give `strategy.run` an ordinary tensor. What does each replica see?
#
# <details><summary>Answers</summary>
#
# 1. 3, 3, 3 and 1: pieces of 10 / 4 rounded up.
# 2. All of it. Only a distributed data set comes cut into shares.
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# (If that says *TensorFlow is already running*: restart the kernel and run from the top.) Two
# replicas are enough to see everything in this lesson. Our steps will run only once or twice, so
# plain Python does; the last line keeps TensorFlow from reminding us that `tf.function` is faster.

# %%
import tensorflow as tf

strategy = dl.make_strategy("mirrored", devices=2)
dl.show("replicas", strategy.num_replicas_in_sync, expected=2)
dl.show("variables", dl.describe(strategy).variables)
tf.get_logger().setLevel("ERROR")

# %% [markdown]
# ## What the scope does
#
# `strategy.scope()` changes one thing: **a variable made inside it gets a copy on every device.**
# Tensors and functions are not touched. Outside, a variable is what it always was.
#
# **Predict:** how many copies does each of these have?

# %%
outside = tf.Variable(0.0)
with strategy.scope():
    inside = tf.Variable(0.0)


def copies(variable):
    return [copy.numpy() for copy in strategy.experimental_local_results(variable)]


dl.show("outside", f"{type(outside).__name__}, {len(copies(outside))} copy")
dl.show("inside", f"{type(inside).__name__}, {len(copies(inside))} copies")

# %% [markdown]
# `copies` is how you look at a mirrored variable without being fooled. You will use it often.
#
# What if you forget the scope? Let every replica add 1 to both variables.
#
# **Predict:** what do they hold after one step?


# %%
def add_one():
    outside.assign_add(1.0)
    inside.assign_add(1.0)


strategy.run(add_one)
dl.show("made inside", copies(inside), expected=[1.0, 1.0])
dl.show("made outside", copies(outside), expected=[1.0])

# %% [markdown]
# Outside there is only one copy, and both replicas added to it. No error says so. A step counter
# would count double; a weight would be updated twice. (And a Keras model made outside, with its
# optimizer, trains on one device only, and says nothing either. You will meet it in the exercise.)
#
# So: **whatever a step changes is made inside the scope.** That means weights, the optimizer,
# metrics and counters.

# %% [markdown]
# ## A model small enough to see through
#
# One layer: ten scores from 64 pixels. We write it with two variables, to see them better than a
# Keras layer would let us. Both start at zero.

# %%
with strategy.scope():
    weights = tf.Variable(tf.zeros([64, 10]))
    bias = tf.Variable(tf.zeros([10]))


def mean_loss(images, labels):
    scores = tf.reshape(images, [-1, 64]) @ weights + bias
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
    return tf.reduce_mean(losses)


# %% [markdown]
# Now a global batch of 16, cut in two by the strategy as in lesson 00: 8 digits each.

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
# it over all 16. We look at the ten gradients of `bias`, one for each class.
#
# **Predict:** for which classes do the replicas disagree? (All scores are equal now, so a class's
# gradient is 0.1 less its share of the digits. A class that is not there gets +0.1.)


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
from distlab.pictures.gradients import draw_gradients

draw_gradients(each, mean=mean, one_device=one_device, label="class (digit)")

# %% [markdown]
# The bars disagree wherever one replica saw a digit more often than the other. But every circle
# sits on its line: **the mean of the two gradients is the gradient of one device.** A picture can
# hide small differences, so ask for the number:

# %%
dl.show("largest difference", tf.reduce_max(tf.abs(mean - one_device)), below=1e-6)

# %% [markdown]
# ## The all-reduce
#
# We computed that mean by hand, outside the step. The replicas must do it *inside*, before they
# update. They do it together: each gives its gradient, each gets the mean of all. That is an
# **all-reduce**: *reduce*, because many values become one; *all*, because all receive it.


# %%
def agreed_gradient(images, labels):
    mine = gradient(images, labels)
    context = tf.distribute.get_replica_context()
    return context.all_reduce("MEAN", mine)


agreed = on_each_replica(agreed_gradient, shared)
dl.show("both got the same", bool(tf.reduce_all(agreed[0] == agreed[1])), expected=True)
dl.show("and it is one device's", tf.reduce_max(tf.abs(agreed[0] - one_device)), below=1e-6)

# %% [markdown]
# Each replica runs the same line, and none goes on before all have arrived. So every replica must
# reach every all-reduce: an `if` that only some of them enter breaks the step.

# %% [markdown]
# ### When a mean of means is wrong
#
# Remember the lonely digit of lesson 00. Three digits on two replicas are 2 and 1.
#
# **Predict:** how much does each digit weigh in the mean of the two means?

# %%
(three,) = dl.load_dataset("digits", splits=["train[:3]"], batch_size=3)
(batch3,) = three
shared3 = next(iter(strategy.experimental_distribute_dataset(three)))
counts = [len(part) for part in strategy.experimental_local_results(shared3[1])]
dl.show("digits on each replica", counts, expected=[2, 1])

wanted = gradient(*batch3)
agreed3 = on_each_replica(agreed_gradient, shared3)[0]
dl.show("on one device", wanted, digits=2)
dl.show("mean of means", agreed3, digits=2)

# %% [markdown]
# Not the same. The two digits of replica 0 weigh 1/4 each, the lonely one 1/2. Each should weigh
# 1/3. So do not average averages: **add up what the examples say, and divide by how many there are
# in the global batch.**


# %%
def exact_gradient(images, labels):
    context = tf.distribute.get_replica_context()
    mine = tf.cast(tf.shape(labels)[0], tf.float32)  # 2 or 1
    everyone = context.all_reduce("SUM", mine)  # 3, on both replicas
    return context.all_reduce("SUM", gradient(images, labels) * mine / everyone)


exact = on_each_replica(exact_gradient, shared3)[0]
dl.show("weighted by examples", exact, digits=2)
dl.show("largest difference", tf.reduce_max(tf.abs(exact - wanted)), below=1e-6)

# %% [markdown]
# With equal shares both ways agree. The last batch of an epoch is seldom so kind.

# %% [markdown]
# ## An update keeps the copies equal
#
# Nothing ever compares the copies. They stay equal for one reason only: **they start equal, and
# every replica subtracts the same number.**


# %%
def step(images, labels):
    bias.assign_sub(0.8 * exact_gradient(images, labels))


on_each_replica(step, shared)
dl.show("replica 0", copies(bias)[0], digits=2)
dl.show("replica 1", copies(bias)[1], digits=2)
dl.show("equal", (copies(bias)[0] == copies(bias)[1]).all(), expected=True)

# %% [markdown]
# ## The trap: a variable that drifts
#
# Now a variable that is no weight: we want to remember the loss of the last batch. It is made in
# the scope, as it should be.
#
# **Predict:** what do its two copies hold after one step, and what do you read?

# %%
with strategy.scope():
    last_loss = tf.Variable(0.0)


def remember(images, labels):
    last_loss.assign(mean_loss(images, labels))


on_each_replica(remember, shared)
dl.show("the copies", copies(last_loss))
dl.show("what you read", last_loss.numpy(), expected=mean_loss(*batch).numpy())

# %% [markdown]
# The copies differ, and **no error says so**. Reading a mirrored variable gives you the copy of
# replica 0, and so does saving it. The rest is silently lost.
#
# It happened because a variable's `aggregation` is `NONE` if you do not say otherwise: each replica
# may assign what it likes to its own copy. That is right for weights after an all-reduce, since all
# assign the same. It is wrong for anything that comes from one replica's share.
#
# **The cure:** say how assigned values are to be combined.

# %%
with strategy.scope():
    last_loss = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)


def remember(images, labels):
    last_loss.assign(mean_loss(images, labels))


on_each_replica(remember, shared)
dl.show("the copies", copies(last_loss))
dl.show("what you read", last_loss.numpy(), expected=mean_loss(*batch).numpy())

# %% [markdown]
# | `aggregation` | what every copy gets | for |
# |---|---|---|
# | `NONE` (the default) | its own replica's value | what is equal on all replicas already |
# | `SUM` | the sum | counts, totals |
# | `MEAN` | the mean | means over *equal* shares |
# | `ONLY_FIRST_REPLICA` | replica 0's value | a step counter |
#
# Or all-reduce the value yourself and assign the result, as `step` did.

# %% [markdown]
# ## A variable made inside a tf.function
#
# Sometimes a variable is needed only once the step runs: its shape is not known before. Here is the
# first attempt, a counter of steps.


# %%
@tf.function
def count(images, labels):
    steps = tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    steps.assign_add(1)


try:
    strategy.run(count, args=shared)
except ValueError as error:
    print(str(error).rpartition("ValueError: ")[2].partition(". ")[0])

# %% [markdown]
# A `tf.function` is traced more than once, and would make a new variable each time. So **make it
# once, and keep it** where the next trace can find it.

# %%
kept = {}


@tf.function
def count(images, labels):
    if "steps" not in kept:
        kept["steps"] = tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    kept["steps"].assign_add(1)


strategy.run(count, args=shared)
strategy.run(count, args=shared)
dl.show("the copies after two steps", copies(kept["steps"]), expected=[2, 2])

# %% [markdown]
# It has a copy on each device although no `with strategy.scope()` is in sight: what runs in
# `strategy.run` is in the scope already. Both replicas added 1 in each step, and of these only
# replica 0's counts. In the exercise you count examples: what must be another then?

# %% [markdown]
# ## Who does the adding
#
# `cross_device_ops` chooses how the all-reduce moves the numbers: over one device and back, in
# stages, or in a ring between GPUs. It changes the speed, not the sum, and `dl.make_strategy`
# picks a good one, so you rarely need it.

# %%
in_stages = tf.distribute.HierarchicalCopyAllReduce()
other = dl.make_strategy("mirrored", devices=2, cross_device_ops=in_stages)


def add_up():
    context = tf.distribute.get_replica_context()
    return context.all_reduce("SUM", context.replica_id_in_sync_group + 1)


for each_strategy in (strategy, other):
    sums = each_strategy.experimental_local_results(each_strategy.run(add_up))
    dl.show(f"1 + 2 by {dl.describe(each_strategy).all_reduce}", sums, expected=[3, 3])

# %% [markdown]
# ## The same with Keras
#
# You now know what happens in a step. Keras can do it for you: write the model as for one device,
# in a function, and let `dl.distribute` call that function inside the scope.

# %%
import keras


def build():
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    return model


# %% [markdown]
# The batch size that `fit` gets, in the data set or as `batch_size=32`, is always the **global**
# one: 32 here, so 16 on each replica.
#
# **Predict:** 1,437 digits, three epochs, two replicas: how many steps does the optimizer take?

# %%
train, test = dl.load_dataset("digits", batch_size=32)

dl.set_seed(1)
two = dl.distribute(build, strategy)
history_of_two = two.fit(train, epochs=3, shuffle=False, verbose=0)

dl.show("steps with two replicas", two.optimizer.iterations.numpy(), expected=3 * 45)

# %% [markdown]
# 1437 / 32 rounded up is 45 steps in an epoch. If 32 were the batch of each replica, it would be
# 23. Now the same function on one device, with the same seed and the same data:

# %%
dl.set_seed(1)
one = build()
history_of_one = one.fit(train, epochs=3, shuffle=False, verbose=0)

dl.show("steps on one device", one.optimizer.iterations.numpy(), expected=3 * 45)

# %% [markdown]
# **Predict:** how far apart are the 2,410 weights of the two models after 135 steps?

# %%
import numpy as np


def apart(model, other):
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(np.abs(a - b).max() for a, b in pairs)


dl.show("largest difference of any weight", apart(one, two), below=1e-6)

# %% [markdown]
# **Two replicas end with the weights of one device.** What is left is rounding: sums taken in
# another order. The losses on the way lie on each other as well:

# %%
from distlab.pictures.gradients import draw_losses

losses = {"one device": history_of_one.history["loss"]}
losses["two replicas"] = history_of_two.history["loss"]
draw_losses(losses)

# %% [markdown]
# ### Why not simply build it in the scope?
#
# You can, and Keras's own `fit` then trains it. Compare:

# %%
dl.set_seed(1)
with strategy.scope():
    plain = build()
plain.fit(train, epochs=3, shuffle=False, verbose=0)

dl.show("more than 0.001 apart", bool(apart(one, plain) > 1e-3))

# %% [markdown]
# Not one device's weights. **Predict** why, then open this.
#
# <details><summary>Answer</summary>
#
# The last batch has 1437 - 44 * 32 = 29 digits: 16 on one replica, 13 on the other. Keras's `fit`
# takes the mean of the two means, as we did with three digits. `dl.distribute` weighs every example
# alike. With `train.take(44)`, which has full batches only, both agree: try it.
# </details>

# %% [markdown]
# ## Check yourself
#
# 1. A metric was made before `with strategy.scope():`. What happens in a step?
#
#    <details><summary>Answer</summary>It has one copy, and every replica changes it: a plain
#    counter counts double on two replicas.</details>
#
# 2. What keeps the copies of a weight equal?
#
#    <details><summary>Answer</summary>Nothing but this: they start equal, and after the all-reduce
#    every replica applies the same update.</details>
#
# 3. Shares of 3, 3, 3 and 1. How much does the lonely example weigh in a mean of means?
#
#    <details><summary>Answer</summary>1/4, and each of the others 1/12. Each should weigh
#    1/10.</details>
#
# 4. `variable.numpy()` shows what you expected. Are all copies right?
#
#    <details><summary>Answer</summary>You cannot tell. You read the first copy only. Look at
#    `strategy.experimental_local_results(variable)`.</details>
#
# 5. `fit(x, y, batch_size=64)` on 4 replicas: how many examples does each get in a step?
#
#    <details><summary>Answer</summary>16. The batch size is the global one.</details>

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/01_mirrored_strategy.ipynb): four tasks, about 25 minutes. One is to
#   find a mistake, and one gives you a tool to keep.
# - Your own model: put its `build` in place of ours and run the last section again. If the weights
#   come out apart, look for dropout or batch normalisation; each has its place later.
# - [Lesson 03](03_custom_training_loop.ipynb) writes the whole training loop by hand, with the
#   mistakes that people make in it.
