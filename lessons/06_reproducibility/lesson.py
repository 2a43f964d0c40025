# %% [markdown]
# # Reproducibility: the same numbers twice
#
# ## Overview
#
# After this lesson you can
#
# - say which seed reaches which random number, and where to set it,
# - make two runs equal in every bit, and a resumed run equal to one that never stopped,
# - see that Keras draws the same dropout mask on every replica, and cure it,
# - say before you compare two runs what can be equal, what only close, and what neither.
#
# It takes about 25 minutes. You need lesson 01 (mirrored variables and their `aggregation`) and
# lesson 03 (the replica step). No GPU, no download.
#
# **What it adds.** In the lessons before, a line with a seed stood in front of every comparison,
# and you took it on trust. Now you see what it does, and what it cannot do:
#
# ```diff
# + dl.set_seed(1)                    # before anything is built
#   model = dl.distribute(build, strategy)
# + data = digits.shuffle(200, seed=3)  # made anew for each run
#   model.fit(data)
# ```
#
# **Do you remember?**
#
# <details><summary>Lesson 01: a variable with <code>aggregation</code> NONE is assigned inside
# <code>strategy.run</code>, another value on each replica. What happens?</summary>
# Each copy keeps its own value, and no error says so. There it was the trap. Today it is the cure.
# </details>
#
# <details><summary>Lesson 03: the weights of four replicas were "less than 1e-06" from one
# device's. Why not 0?</summary>
# The same numbers are added in another order, and floats round after every addition. Today you
# see how much that is.
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# This must come first in a fresh kernel. Later it fails with "TensorFlow is already running":
# restart the kernel then.

# %%
import random

import keras
import numpy as np
import tensorflow as tf

from distlab.pictures.masks import draw_masks

tf.get_logger().setLevel("ERROR")  # no reminders that we compile many small functions
(digits,) = dl.load_dataset("digits", splits=["train[:200]"], batch_size=200)
(images, labels) = next(iter(digits))
dl.show("examples", len(images))

# %% [markdown]
# ## Two runs of the same code
#
# A small model with dropout, a shuffled data set, two epochs. `run` does all of it and returns the
# weights.


# %%
def build(dropout=0.5):
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu")]
    layers += [keras.layers.Dropout(dropout), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return model


def make_data(seed=None):
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    return data.shuffle(200, seed=seed).batch(20)


def run():
    model = build()
    model.fit(make_data(), epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


# %% [markdown]
# Equal shall mean equal in every bit, not "close". **Predict:** are they?


# %%
def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


dl.show("two runs, the same weights", same(run(), run()))

# %% [markdown]
# ## Three streams of random numbers
#
# A random number in a computer is the next one of a stream, and a seed says where the stream
# begins. In our run there are three streams with three seeds: Python's, NumPy's and TensorFlow's.
# Here are four things that a training draws.


# %%
def draw():
    layer = keras.layers.Dense(3)
    layer.build((None, 4))
    mask = keras.layers.Dropout(0.5)(np.ones((4, 8)), training=True)
    order = tf.data.Dataset.range(20).shuffle(20)
    return {
        "Keras weights": layer.kernel.numpy(),
        "dropout": mask.numpy(),
        "np.random": np.random.permutation(20),
        "tf.data": list(order.as_numpy_iterator()),
    }


# %% [markdown]
# Seed, draw, seed again, draw again. What comes out the same? **Predict:** which of the three seeds
# reaches the weights of a Keras layer?


# %%
def repeats(seed):
    seed(1)
    first = draw()
    seed(1)
    again = draw()
    return {name: "same" if np.array_equal(first[name], again[name]) else "new" for name in first}


dl.show("random.seed       ", repeats(random.seed))
dl.show("np.random.seed    ", repeats(np.random.seed))
dl.show("tf.random.set_seed", repeats(tf.random.set_seed))
dl.show("dl.set_seed       ", repeats(dl.set_seed))

# %% [markdown]
# For each matrix of weights and each dropout layer Keras 3 draws one number from *Python's* stream,
# and makes all others from that. So `tf.random.set_seed` alone, which stands in many tutorials,
# leaves the weights open, and `random.seed` alone leaves the order of the data open. A part is not
# enough: seed all. `dl.set_seed` does, through Keras's own `keras.utils.set_random_seed`.

# %% [markdown]
# ## Seed before you build
#
# Somebody seeds all three, just before training. That sounds right: training is where it counts.


# %%
def run_seeded_late(seed):
    model = build()
    dl.set_seed(seed)
    model.fit(make_data(), epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


dl.show("seeded after build, the same weights", same(run_seeded_late(1), run_seeded_late(1)))

# %% [markdown]
# The weights were drawn when the model was built, and each dropout layer took the beginning of its
# own stream then. The seed came too late for both.
#
# Somebody else seeds once, at the top of the notebook. **Predict** the next cell:

# %%
dl.set_seed(1)
first, second = run(), run()
dl.show("seeded once, two runs, the same weights", same(first, second))


# %% [markdown]
# The second run goes on in the stream where the first one stopped. So seed **at the start of each
# run, before anything is built**:


# %%
def run_seeded(seed):
    dl.set_seed(seed)
    return run()


dl.show("seeded before build, the same weights", same(run_seeded(1), run_seeded(1)))
dl.show("another seed, the same weights", same(run_seeded(1), run_seeded(2)))

# %% [markdown]
# ## Operations that add in any order
#
# Seeds settle what is drawn, not how it is added up. Some operations let many threads add to one
# number, first come, first added; on GPUs more do so than on CPUs. TensorFlow can be told to use
# only operations that give the same bits each time:

# %%
dl.set_seed(1, deterministic=True)

# %% [markdown]
# It is `tf.config.experimental.enable_op_determinism()`. Three things to know:
#
# - It costs speed, and turns XLA's automatic compilation off. An operation that has no
#   deterministic form raises an error when it is called.
# - **It cannot be undone.** From here on this kernel is deterministic, until you restart it. If
#   you measure speed, do so in a kernel of its own.
# - It does not seed. It refuses random numbers that nobody seeded:

# %%
tf.random.set_seed(None)  # as in a program that sets no seed
try:
    tf.random.normal([2])
except RuntimeError as error:
    print(str(error).partition(". ")[0])
dl.set_seed(1)

# %% [markdown]
# You saw equal runs before this cell as well: the CPU operations of our small model give the same
# bits anyway. Do not count on that with your own model on a GPU.

# %% [markdown]
# ## The order of the data
#
# With the same weights and the same masks, another order of the data is another training. Let us
# look at eight examples over three epochs.


# %%
def eight():
    dl.set_seed(1)
    return tf.data.Dataset.range(8).shuffle(8, seed=3)


def order(data):
    return [int(number) for number in data]


data = eight()
epochs = [order(data) for _ in range(3)]
for number, one_epoch in enumerate(epochs, 1):
    dl.show(f"epoch {number}", one_epoch)

# %% [markdown]
# Every epoch has an order of its own. That is wanted. **Predict:** you train a second model on the
# same `data`. With which order does it begin, that of epoch 1?

# %%
dl.show("the same data set, once more", order(data) == epochs[0])
dl.show("a new one, made the same way", order(eight()) == epochs[0])

# %% [markdown]
# A data set remembers how often it was gone through. So **make the data set anew for each run**.
# And give `shuffle` a seed of its own: without one it takes the next number of TensorFlow's stream,
# and one more random line above it changes the order.


# %%
def order_after(random_lines, seed):
    dl.set_seed(1)
    for _ in range(random_lines):
        tf.random.normal([1])
    return order(tf.data.Dataset.range(8).shuffle(8, seed=seed))


dl.show("without a seed, the same order", order_after(0, None) == order_after(1, None))
dl.show("with a seed, the same order", order_after(0, 3) == order_after(1, 3))

# %% [markdown]
# From here on we take `make_data(seed=3)`.
#
# ### A resumed run needs its place in the data
#
# A run stopped in its second epoch, after five examples. You have saved the weights, and start the
# program again. Which examples come next?

# %%
left = epochs[1][5:]  # what the run would have seen
resumed = order(eight())
dl.show("next, if it had not stopped", left)
dl.show("next, after a plain restart", resumed[: len(left)], expected=left)

# %% [markdown]
# A plain restart begins with epoch 1 again: it sees some examples a third time before others come
# a second time. Weights are not enough, **the place in the data belongs to the state of a run**.
# With a seeded shuffle you can go there: play the full epochs, then skip.

# %%
data = eight()
for _ in data:
    pass  # epoch 1, played and thrown away
dl.show("next, after a restart with its place", order(data.skip(5)), expected=left)

# %% [markdown]
# In `fit` the callback `dl.Resume("checkpoints", every_steps=100)` does both for you: it saves
# weights, optimizer and place, and after a restart goes there.

# %% [markdown]
# ## Dropout: one mask for all replicas
#
# Now two replicas. A dropout layer is made in the scope and gets ones, so that what comes out *is*
# the mask: 0 where it dropped, 2 where it kept. Each replica has 8 examples of 12 units.
#
# **Predict:** are the masks of the two replicas the same?

# %%
strategy = dl.make_strategy("mirrored", devices=devices[:2])
dl.set_seed(1)
with strategy.scope():
    dropout = keras.layers.Dropout(0.5)


def masks_of(prepare):
    @tf.function
    def masks(step):
        def replica_step():
            prepare(dropout.seed_generator, step)
            return dropout(tf.ones([8, 12]), training=True)

        return strategy.experimental_local_results(strategy.run(replica_step))

    return lambda step: [mask.numpy() for mask in masks(tf.constant(step, tf.int64))]


keras_alone = masks_of(lambda generator, step: None)
same_masks = keras_alone(0)
dl.show("both replicas, the same mask", same(same_masks[:1], same_masks[1:]))

# %% [markdown]
# They are. The layer keeps the place in its stream in a variable, the state of its
# `seed_generator`. Like every variable made in the scope it has a copy on each device, the copies
# start equal, and every replica takes the same step. What keeps weights right makes masks wrong.
#
# Does it matter? Dropout adds noise to each gradient, and a batch averages the noise out. With the
# same mask on both replicas there are only half as many to average. Here is the mean over the batch
# for each unit, which is the gradient of a weight behind it, for 200 steps.


# %%
def noise(masks):
    means = [np.concatenate(masks(step)).mean(axis=0) for step in range(200)]
    return np.std(means)


of_one_device = np.sqrt(1 / 16)  # a kept unit is 2, a dropped one 0: 16 of them, averaged
in_noise_of_one = noise(keras_alone) / of_one_device
dl.show("noise, in that of one device", in_noise_of_one, digits=1, expected=1.0)

# %% [markdown]
# The square root of 2: as noisy as a batch of half the size. With eight replicas it is nearly 3
# times. Nothing crashes; training is only noisier than on one device, the more so the more devices.

# %% [markdown]
# ### A cure that cannot be repeated
#
# The state has `aggregation` NONE: inside `strategy.run`, each replica may assign its own. The
# first idea is to assign something random.


# %%
def assign_random(generator, step):
    generator.state.assign(tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int64))


def apart(one, other):
    return not any(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


first_run = masks_of(assign_random)
steps = [first_run(step) for step in range(4)]
resumed_run = masks_of(assign_random)
dl.show("masks differ between replicas", apart(steps[3][:1], steps[3][1:]))
dl.show("resumed at step 3, the same masks", same(resumed_run(3), steps[3]))

# %% [markdown]
# The masks differ, but they hang on everything that was drawn before. A run that resumes at step 3
# has drawn something else before.

# %% [markdown]
# ### The cure: a function of base seed, step and replica
#
# So do not draw the state. **Compute it**, at the start of each step, from what is known then: a
# base seed that is the same for the whole run, the step, and the replica's number.
# `stateless_fold_in` mixes a number into a seed. (What the 0 is for comes below.)

# %%
BASE = 7


def seed_replica(generator, step):
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    seed = tf.constant([BASE, 0], tf.int64)
    for number in (step, replica, 0):
        seed = tf.random.experimental.stateless_fold_in(seed, number)
    generator.state.assign(seed)


cured = masks_of(seed_replica)
cured_masks = cured(3)
dl.show("masks differ between replicas", apart(cured_masks[:1], cured_masks[1:]))

# %% [markdown]
# In a second run everything is new: a new compiled step, other numbers drawn before, another state
# left behind in the generator. It goes straight to step 3.

# %%
dl.set_seed(99)
dropout.seed_generator.state.assign([5, 6])
second_run = masks_of(seed_replica)
panels = {"Keras alone": same_masks, "cured": cured_masks, "cured, second run": second_run(3)}
draw_masks(panels)

# %% [markdown]
# On the left both replicas drop the same cells. In the middle each has its own mask, and on the
# right both have it again. Nothing had to be saved: the step is known from the optimizer's
# `iterations`, which is saved anyway.

# %%
dl.show("noise, in that of one device", noise(cured) / of_one_device, digits=1, expected=1.0)

# %% [markdown]
# ### Numbers that collide
#
# Why not simply put the three numbers in? The state has two places, so two of them must share one:
# `[BASE, step + replica]`. But 1 + 0 = 0 + 1. **Predict** what that does to step 0 on replica 1 and
# step 1 on replica 0.


# %%
def add_up(generator, step):
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    generator.state.assign([BASE, step + tf.cast(replica, tf.int64)])


added = masks_of(add_up)
dl.show("added up, the same mask", same(added(0)[1:], added(1)[:1]))
dl.show("folded in, the same mask", same(cured(0)[1:], cured(1)[:1]))

# %% [markdown]
# The second place is dangerous for another reason: Keras counts there. After each draw it adds 1,
# for a layer may draw several times in a step. And `stateless_fold_in` mixes all that came before
# into the first place, but leaves the number itself in the second:

# %%
seed = tf.random.experimental.stateless_fold_in([BASE, 0], 3)
dl.show("3 folded in, second place", seed[1])

# %% [markdown]
# Had we folded the replica in last, the second draw of replica 0 would be the first of replica 1.
# With the 0 as the last one, the counter begins at 0, in a first place that nobody else has.

# %% [markdown]
# In your own loop of lesson 03 the cure is one line for each layer that draws:
#
# ```diff
#   def replica_step(x, y):
# +     seed_replica(dropout.seed_generator, model.optimizer.iterations.value)
#       with tf.GradientTape() as tape:
# ```

# %% [markdown]
# ## A distributed model does it by itself
#
# `dl.distribute` assigns these states at the start of every step. To look into `fit`, we put a
# layer behind the dropout that remembers, on each replica, what was dropped from its first example.


# %%
class Remember(keras.layers.Layer):
    def build(self, shape):
        # Whole numbers: of floats that a layer writes, `dl.distribute` takes the mean.
        self.kept = self.add_weight(shape=shape[1:], dtype="int32", trainable=False)

    def call(self, x):
        self.kept.assign(tf.cast(x[0] != 0, tf.int32))
        return x


def build_to_look_into():
    layers = [keras.layers.Flatten(), keras.layers.Dense(16)]
    layers += [keras.layers.Dropout(0.5), Remember(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return model


# %% [markdown]
# After each step we note the masks of both replicas. Plain Keras first, then `dl.distribute`,
# twice. **Predict** all three lines.


# %%
def masks_in_fit(make):
    dl.set_seed(1)
    model, seen = make(), []
    kept = model.layers[-2].kept.value
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append([m.numpy() for m in kept.values])
    )
    model.fit(make_data(seed=3), callbacks=[note], shuffle=False, verbose=0)
    return np.stack(seen, axis=1), model.get_weights()


def in_scope():
    with strategy.scope():
        return build_to_look_into()


plain, _ = masks_in_fit(in_scope)
dl.show("Keras, steps with two different masks", int((plain[0] != plain[1]).any(axis=1).sum()))

# %%
distributed = [masks_in_fit(lambda: dl.distribute(build_to_look_into, strategy)) for _ in range(2)]
(ours, weights), (ours_again, weights_again) = distributed
differ = int((ours[0] != ours[1]).any(axis=1).sum())
dl.show("distributed, steps with two different masks", differ, expected=10)
dl.show("second run, the same masks", np.array_equal(ours, ours_again))
dl.show("second run, the same weights", same(weights, weights_again))

# %% [markdown]
# ## What can never be equal
#
# Now without dropout: the same seed, the same data, the same global batch, on 1, 2 and 4 replicas.
# **Predict:** which of these are equal in every bit, and which not?


# %%
def run_on(replicas, dropout=0.0):
    dl.set_seed(1)
    some = dl.make_strategy("mirrored", devices=devices[:replicas])
    model = dl.distribute(lambda: build(dropout), some)
    model.fit(make_data(seed=3), shuffle=False, verbose=0)
    return model.get_weights()


def furthest(one, other):
    return max(np.abs(a - b).max() for a, b in zip(one, other, strict=True))


runs = {replicas: run_on(replicas) for replicas in (1, 2, 4)}
dl.show("4 replicas, run again, the same", same(runs[4], run_on(4)))

# %%
for replicas in (2, 4):
    dl.show(f"{replicas} replicas and 1, the same", same(runs[replicas], runs[1]))
    dl.show("  the furthest weights are apart by", furthest(runs[replicas], runs[1]), below=1e-6)

# %% [markdown]
# The same number of replicas: equal in every bit. Another number: close, never equal, and no seed
# and no determinism will change that. One device adds 20 gradients in a row. Four replicas add 5
# each, and then four sums. In exact arithmetic that is the same. Floats round after each addition:

# %%
numbers = np.float32(np.random.default_rng(1).uniform(size=65536))


def add(values):
    return np.add.accumulate(values)[-1]  # one after the other


in_a_row = add(numbers)
for parts in (2, 4, 16, 64):
    in_parts = add(np.array([add(part) for part in np.split(numbers, parts)]))
    difference = float(in_parts) / float(in_a_row) - 1
    dl.show(f"in {parts} parts, difference in millionths", difference * 1e6, digits=1)

# %% [markdown]
# Each way of splitting rounds to another sum, and none is the right one. The difference does not
# grow with the number of parts. For 65,536 numbers it is some millionths, for the 20 of our batch
# far less. But a step of training can make a small difference larger, so after many epochs the
# weights of two runs may be far apart, and their accuracy alike. Compare across replicas after
# *few* steps, and with a tolerance.
#
# Last: **with dropout**, cured, on 2 replicas and on 1. Predict: equal, close, or neither?

# %%
far = furthest(run_on(2, dropout=0.5), run_on(1, dropout=0.5))
dl.show("more than 0.001 apart", bool(far > 1e-3))

# %% [markdown]
# Neither. Two masks for 10 examples each are other random numbers than one mask for 20. They are
# equally good, so the *accuracy* is alike on average; the weights are not.
#
# | two runs with the same seeds and data | what to expect |
# |---|---|
# | the same number of replicas, the same machine | equal in every bit |
# | resumed, with its place in the data | equal in every bit |
# | another number of replicas, nothing drawn in the step | close: about 1e-7 after few steps |
# | another number of replicas, with dropout | different |
# | a seed missing, or the place in the data lost | different |
#
# Another machine, processor or version of TensorFlow adds in another order as well: close at best.

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. A script calls <code>tf.random.set_seed(1)</code> in its first line. Do two
# runs of it start with the same Keras weights?</summary>
# No. Keras 3 draws them from Python's stream. Use <code>dl.set_seed</code> or
# <code>keras.utils.set_random_seed</code>, which seed all three.
# </details>
#
# <details><summary>2. Two models are built one after the other, below one <code>set_seed</code>.
# Do they start equal?</summary>
# No. The second goes on in the stream. Seed before each.
# </details>
#
# <details><summary>3. Is training with <code>deterministic=True</code> and no seed
# reproducible?</summary>
# It does not come so far: TensorFlow refuses random numbers that nobody seeded.
# </details>
#
# <details><summary>4. Why is the step part of the dropout seed, and not the place in the layer's
# own stream?</summary>
# The step is known after a restart. The place in the stream is in no checkpoint, and Keras's is the
# same on every replica.
# </details>
#
# <details><summary>5. A colleague's run on 4 GPUs differs from yours on 2, by 2e-7 after ten steps,
# without dropout. A bug?</summary>
# No: sums in another order. With 2e-3 you should look for one.
# </details>
#
# ## Next steps
#
# - [The exercise](../exercises/06_reproducibility.ipynb): make two runs identical, seed the masks,
#   and say what can be equal.
# - Your own model: run its training twice in two fresh kernels, three steps each, and compare the
#   weights in every bit. If they differ, take things out in this order: the shuffle, random
#   augmentation, dropout. What is left is a missing seed, or an operation: try
#   `deterministic=True`.
