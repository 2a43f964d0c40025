# %% [markdown]
# # Choose a strategy
#
# In 2019 the authors of [ZeRO](https://arxiv.org/abs/1910.02054) gave an example. The weights of
# GPT-2 with 1.5 billion parameters take 3 GB in 16-bit numbers. Still, the model could not be
# trained on one GPU of 32 GB in PyTorch or TensorFlow. Weights, gradients and the state of Adam
# take at least 24 GB: 16 bytes for each parameter instead of 2. (2 for the weight, 2 for its
# gradient, and 12 for Adam, which keeps a copy of the weight and two averages in 32 bits.)
# Activations come on top: these are the outputs of the layers, which the [backward
# pass](../docs/glossary.md#backward-pass) needs. Plain [data
# parallelism](../docs/glossary.md#data-parallelism) on two GPUs divides the activations if the
# batch stays the same. Each GPU still holds all of the 24 GB.
#
# So before you rent more devices, ask what a strategy divides among them, and what it copies.
#
# ## Overview
#
# After this lesson you can
#
# - say what each strategy of one process copies, what it divides, and what it moves in each step,
# - rehearse distributed code without a second device, and know what each rehearsal can find,
# - compare strategies on a model of your own, by its weights,
# - work out the memory of a step, and name the kind of parallelism that divides it,
# - choose with a card of six questions.
#
# It takes {minutes}. You need lessons [01](01_mirrored_strategy.ipynb) and
# [03](03_custom_training_loop.ipynb). You need no GPU and download nothing.
#
# **What changes.** Lesson 03 kept the strategy and changed what ran under it. Now the model stays
# the same, and the strategy changes, by one word:
#
# ```diff
# - strategy = dl.make_strategy("mirrored", devices=2)
# + strategy = dl.make_strategy("central_storage", devices=2)
#   model = dl.distribute(build, strategy)
#   model.fit(train)
# ```
#
# **Do you remember?**
#
# <details><summary>Lesson 01: two replicas, one weight. How many copies of it are there, and what
# keeps them equal?</summary>
# Two, one on each device. They start equal, and after the all-reduce
# every replica subtracts the same number.
# </details>
#
# <details><summary>Lesson 03: each replica takes the mean loss of its own examples, and the
# optimizer adds the gradients. What is wrong?</summary>
# With R replicas the gradient is R times
# too large.
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# The cell above and the one below must be the first ones in a fresh kernel. If one of them fails
# because TensorFlow is already running, restart the kernel and run both again. The last line below
# prepares DTensor, TensorFlow's interface for dividing single tensors among devices. A later
# section uses it.

# %%
import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from distlab.course.figures.step_memory import draw_memory
from distlab.course.lesson_21_choosing_a_strategy.figures import (
    Layout,
    draw_card,
    draw_layouts,
    draw_map,
)
from distlab.course.lesson_21_choosing_a_strategy.strategy_card import CARD, OTHERWISE, choose

tf.get_logger().setLevel("ERROR")  # no reminders that we compile many small functions
dtensor.initialize_accelerator_system("CPU", num_logical_cpu_devices=4)

# %%
(digits,) = dl.load_dataset("digits", splits=["train[:335]"], batch_size=335)
in_memory = tf.data.Dataset.from_tensor_slices(next(iter(digits)))
partial = in_memory.batch(20)
dl.show("steps, and examples in the last", [len(partial), 335 % 20])

# %% [markdown]
# ## Four strategies of one process
#
# There is always a strategy. If you make none, `tf.distribute.get_strategy()` returns the **default
# strategy**: one [replica](../docs/glossary.md#replica), and nothing changes. `OneDeviceStrategy`
# has one replica as well, on the device that you name. You know `MirroredStrategy`.
# `CentralStorageStrategy` has several replicas and keeps **one** copy of each variable for all of
# them.

# %%
default = tf.distribute.get_strategy()
one_device = dl.make_strategy("one_device", devices=[devices[1]])
pair = devices[1:3]
mirrored = dl.make_strategy("mirrored", devices=pair)
central = dl.make_strategy("central_storage", devices=pair)
for strategy in (default, one_device, mirrored, central):
    description = dl.describe(strategy)
    dl.show(f"{description.kind}, {description.replicas} replica(s)", description.variables)

# %% [markdown]
# On a machine with several GPUs the one copy of CentralStorage is in the host's memory. Without a
# GPU it is on logical device 0. Our replicas use devices 1 and 2. Either way every replica must
# fetch the weights in every step.
#
# Let S be the size of all weights. Here all of them are trained, so the gradients have this size,
# too. (A frozen layer sends no gradient, and an embedding sends only some rows.) With two replicas,
# a step of Mirrored sends the gradients of the second replica to the first one, and the sum back. A
# step of CentralStorage sends the weights from the store to both replicas. Then the second replica
# sends its gradients to the first one, which adds them to its own and sends the sum to the store.


# %%
def bytes_moved(kind, replicas, weights):
    if kind == "mirrored":
        return 2 * (replicas - 1) * weights  # gradients in, their sum out
    if kind == "central_storage":
        return 2 * replicas * weights  # weights out; gradients in, and their sum to the store
    return 0


# %% tags=["hide-input"]
there_and_back = ((1, 0, "gradients: S"), (0, 1, "their sum: S"))
out = ((0, 1, "weights: S"), (0, 2, "weights: S"))
and_in = ((2, 1, "gradients: S"), (1, 0, "their sum: S"))
two, three = ("device 1", "device 2"), ("the store", "device 1", "device 2")
draw_layouts(
    [
        Layout("default", ("the usual device",), replicas=(0,), copies=(0,)),
        Layout("one_device", ("device 1",), replicas=(0,), copies=(0,)),
        Layout("mirrored", two, replicas=(0, 1), copies=(0, 1), moves=there_and_back),
        Layout("central_storage", three, (1, 2), (0,), moves=out + and_in),
    ]
)

# %% [markdown]
# `bytes_moved` holds for logical devices if no replica runs on the store's device. We do not
# time steps: logical devices share one memory, so a time measured here would tell you nothing about
# your GPUs.
#
# ## Rehearse before you rent
#
# Code for many replicas also runs on one. Here are three versions of lesson 03's loop. They differ
# in one line: how a replica turns the losses of its examples into the number whose gradient it
# takes. The optimizer then adds up the gradients of all replicas. (The folded cells have the loop
# and a small model.)

# %% tags=["hide-input"]
each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def train_by_hand(strategy, scale, data):
    with strategy.scope():
        model = build()

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = scale(each_loss(y, model(x)), strategy.num_replicas_in_sync)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(step, args=batch)
    return model


# %% tags=["hide-input"]
def build():
    dl.set_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])
    return model


def apart(a, b):
    pairs = zip(a.get_weights(), b.get_weights(), strict=True)
    return max(np.abs(x - y).max() for x, y in pairs)


# %%
def count_all(losses):
    mine = tf.cast(tf.size(losses), tf.float32)
    return tf.distribute.get_replica_context().all_reduce("SUM", mine)


versions = {
    "A": lambda losses, replicas: tf.reduce_mean(losses),
    "B": lambda losses, replicas: tf.reduce_mean(losses) / replicas,
    "C": lambda losses, replicas: tf.reduce_sum(losses) / count_all(losses),
}

# %% [markdown]
# One of the versions is right. We have three rehearsals: one device; four logical devices with
# batches of 20; and four logical devices with a last batch of 15. The folded cell below runs each
# version in each rehearsal. A rehearsal finds a mistake if the weights differ from those of `fit`
# on one device.

# %% tags=["predict"]
rehearsal_guess = dl.predict(
    "Which is the first rehearsal that finds a mistake in version B?",
    [
        "one device",
        "four devices, full batches",
        "four devices, a last batch of 15",
        "none: B is right",
    ],
)

# %% tags=["hide-input"]
four = dl.make_strategy("mirrored", devices=devices)
even, odd = in_memory.take(80).batch(20), in_memory.take(95).batch(20)
rehearsals = {
    "one device": (one_device, odd),
    "four devices, full batches": (four, even),
    "four devices, a last batch of 15": (four, odd),
}
finds = {version: [] for version in versions}
for rehearsal, (strategy, data) in rehearsals.items():
    one = build()
    one.fit(data, verbose=0, shuffle=False)
    for version, scale in versions.items():
        if not apart(train_by_hand(strategy, scale, data), one) <= 1e-6:  # also if NaN
            finds[version].append(rehearsal)
for version, found in finds.items():
    dl.show(f"{version}: a mistake found by", " and by ".join(found) or "no rehearsal")

# %% tags=["reveal"]
rehearsal_guess.reveal(
    finds["B"][0] if finds["B"] else "none: B is right",
    {
        "four devices, a last batch of 15": "Only unequal shares, 4, 4, 4 and 3, make the mean "
        "of the means a different number.",
        "one device": "One replica has all examples: its mean is the batch's mean, and a division "
        "by 1 changes nothing.",
        "four devices, full batches": "Four shares of 5 weigh the same, so the mean of their means "
        "is the mean of all.",
        "none: B is right": "It is right as long as all shares are equal. 15 examples are shared "
        "as 4, 4, 4 and 3. In a mean of four means, an example of the share of 3 counts more than "
        "one of a share of 4.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Version A is lesson 03's mistake: with SGD, four devices find it with any batch. (Adam hides most
# of a wrong scale, as lesson 03 shows.) B needs the partial last batch, with its unequal shares.
# One device finds neither. It finds an error such as a wrong shape, and a scale that is wrong
# everywhere. It misses a scale that is wrong only with several replicas. **So rehearse twice with
# SGD: on one device, and then on four logical ones, with a last batch whose size is not a multiple
# of four.** You need no second GPU for that.
#
# `OneDeviceStrategy` does not find a model that was built outside of the scope. In a loop by hand
# it trains such a model without an error, and the variables stay where they were made.
# `MirroredStrategy` stops in the first step, with an `AssertionError` that has no text.
# (`dl.distribute` refuses the model under both, and says why.)
#
# ## Your model under each strategy
#
# After the prediction come two cells. The first trains the model with plain `fit` on one device,
# with a last batch of 15. The second trains it under each strategy, compares the weights with those
# of one device, and prints a line for each strategy. You can put *your* model and data in the place
# of `build` and `partial`. The table also
# counts copies: `model.weights[0].value` is the TensorFlow variable of the first weight, and
# `experimental_local_results` lists its copies.

# %% tags=["predict"]
equal_guess = dl.predict(
    "`dl.distribute` trains the model for two epochs under each of the four strategies. Which ones "
    "end with the weights of plain `fit` on one device (to 1e-6)?",
    ["only default and OneDevice", "all but CentralStorage", "all four"],
)

# %%
strategies = {"default": default, "one_device": one_device}
strategies |= {"mirrored": mirrored, "central_storage": central}

one = build()
one.fit(partial, epochs=2, verbose=0, shuffle=False)
size = sum(weight.nbytes for weight in one.get_weights())
dl.show("S, in bytes", size)

# %%
equal = []
for name, strategy in strategies.items():
    model = dl.distribute(build, strategy)
    model.fit(partial, epochs=2, verbose=0, shuffle=False)
    kernel = model.weights[0].value
    row = {
        "equal": bool(apart(one, model) < 1e-6),
        "copies": len(strategy.experimental_local_results(kernel)),
        "bytes a step": bytes_moved(name, strategy.num_replicas_in_sync, size),
    }
    equal += [name] * row["equal"]
    dl.show(name, row)

# %% tags=["reveal"]
equal_guess.reveal(
    {
        ("default", "one_device", "mirrored", "central_storage"): "all four",
        ("default", "one_device", "mirrored"): "all but CentralStorage",
        ("default", "one_device"): "only default and OneDevice",
    }[tuple(equal)],
    {
        "all four": "`dl.distribute` weighs each example alike under all four, so each "
        "step is that of one device.",
        "only default and OneDevice": "Two replicas take the step of one device if each example "
        "weighs the same. `dl.distribute` takes care of that, even for the partial batch.",
        "all but CentralStorage": "CentralStorage updates one copy with the sum of both gradients. "
        "That is the same update, in a different place.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Under `dl.distribute` these strategies do not change *what* a model learns, whatever its layers
# and its loss are. (Compare with SGD and few steps: rounding can grow beyond 1e-6.) Keras's own
# `fit` gives no such promise: it weighs the examples of a partial batch differently (lesson 03),
# its dropout draws other numbers, and a plain `BatchNormalization` sees only its replica's share. A
# strategy decides where things are and what travels in each step, here with N replicas:
#
# | | Mirrored | CentralStorage |
# |---|---|---|
# | weights and optimizer state | on every device | once |
# | what updates them | every replica its own copy | one device, once for all |
# | moved, on logical devices | 2 (N - 1) S | 2 N S: N S of weights, N S of gradients and sum |
#
# (Real GPUs can pass Mirrored's gradients round a [ring](../docs/glossary.md#ring). The bytes in
# total are the same, and each link carries a part of them. We have not measured CentralStorage on
# real GPUs: there it can move more.)
#
# Mirrored is the usual choice. CentralStorage is for one case: every device can hold weights,
# gradients and activations, but not the optimizer state as well. The host's memory must hold the
# weights and that state. With a single GPU it saves nothing by default, because TensorFlow then
# puts the one copy on that GPU.
#
# <details><summary>In plain TensorFlow</summary>
#
# `dl.make_strategy("central_storage", devices=pair)` is
# `tf.distribute.experimental.CentralStorageStrategy(compute_devices=pair,
# parameter_device="CPU:0")` with one change: NCCL adds up the gradients of several whole GPUs, and
# the first replica's device adds up those of logical devices. Without this change the CPU adds them
# up. On logical devices the sum then travels to the first replica and back: 2 S more in a step.
# `dl.describe` reads `strategy.num_replicas_in_sync` and the devices of `strategy.extended`. If you
# leave `parameter_device` out, TensorFlow takes the only compute device or, if there are several,
# the CPU. So `["GPU:0"]` with `parameter_device="CPU:0"` keeps the one copy in the host's memory
# even with a single GPU.
# </details>
#
# ## Keras's `fit` under CentralStorage
#
# In the table above, `dl.distribute` trained. Now Keras's own `fit` trains under CentralStorage, in
# 20 steps of two examples. One device trains on the same examples, and logs the mean of all their
# losses.


# %%
def own_fit(strategy, steps):
    with strategy.scope():
        model = build()
    history = model.fit(in_memory.take(2 * steps).batch(2), verbose=0, shuffle=False).history
    return model, history["loss"][-1]


one, loss_of_one = own_fit(default, 20)
plain, logged = own_fit(central, 20)
dl.show("one device logs", loss_of_one, digits=2)
dl.show("CentralStorage logs", logged, digits=2)

# %% tags=["predict"]
log_guess = dl.predict(
    "Why does CentralStorage log a larger loss?",
    [
        "wrong weights: one replica's gradients are lost",
        "right weights: the log counts one replica's examples only",
        "right weights: the log counts the first steps most",
    ],
)

# %%
dl.show("weights of one device", bool(apart(one, plain) < 1e-6))
for steps in (20, 80, 160):
    logs = [own_fit(strategy, steps)[1] for strategy in (default, central)]
    dl.show(f"{steps} steps: one device and CentralStorage log", [round(log, 2) for log in logs])

# %% tags=["reveal"]
log_guess.reveal(
    "right weights: the log counts the first steps most"
    if apart(one, plain) < 1e-6
    else "wrong weights: one replica's gradients are lost",
    {
        "right weights: the log counts the first steps most": "The weights are those of one "
        "device. A falling loss whose first steps count most has a mean that is too large.",
        "wrong weights: one replica's gradients are lost": "The shares are equal, so "
        "even Keras's own step is that of one device.",
        "right weights: the log counts one replica's examples only": "The losses of one replica "
        "fall as those of the other do, so after 80 steps such a log would be near one device's.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The weights are right. The log is wrong, because it counts the first steps most, and their losses
# are the largest. After 20 or 80 steps training seems to stand still. After some
# 125 steps the log is infinite, and the callback `TerminateOnNaN` stops a healthy training run.
# Later it is NaN, not a number.
#
# A Keras metric adds to its total by `total.assign(total + value)`. Under CentralStorage there is
# one total, and TensorFlow sums what the replicas assign to it. Here the total is 10, and two
# replicas add 1 each:

# %% tags=["after-reveal"]
with central.scope():
    total = tf.Variable(10.0, aggregation=tf.VariableAggregation.SUM)


@tf.function
def track():
    total.assign(total + 1.0)


central.run(track)
dl.show("total", total.numpy(), expected=12.0)

# %% [markdown] tags=["after-reveal"]
# (10 + 1) + (10 + 1): **the old total counts once per replica.** With two replicas it doubles in
# every step, so the first steps count most. In the end it is larger than float32's
# largest number and becomes infinite. The metric's count of examples doubles as well. Infinity
# divided by infinity is NaN. `evaluate` has the same mistake. Mirrored does not, because there each
# replica has its own total.
#
# Under `dl.distribute` every replica has the losses of the whole batch, and one of them writes the
# total:

# %%
mended = dl.distribute(build, central)
history = mended.fit(in_memory.take(40).batch(2), verbose=0, shuffle=False).history
dl.show("logged loss", history["loss"][-1], digits=2, expected=loss_of_one)
dl.show("weights of one device", bool(apart(one, mended) < 1e-6), expected=True)

# %% [markdown]
# <details><summary>Optimizers that CentralStorage cannot run</summary>
#
# Some optimizers do not work under CentralStorage with several replicas: Muon, Nadam, and any
# optimizer with EMA (a moving average of the weights), a loss scale (for float16) or gradient
# accumulation. They assign to their own variables in each replica, and there is only one copy.
# Keras stops in the first step, with "You must specify an
# [aggregation](../docs/glossary.md#aggregation) method" or an error about `merge_call`.
# `dl.distribute` trains Nadam, refuses the others, and says why.
# </details>

# %% [markdown]
# CentralStorage is experimental. Its full name is
# `tf.distribute.experimental.CentralStorageStrategy`.
#
# ## The memory of a step
#
# In float32, weights, gradients and Adam's state again take 16 bytes for each parameter: 4 for the
# weight, 4 for its gradient and 8 for Adam's two averages. We count all 16 as held at once, without
# activations and buffers.

# %% tags=["predict"]
memory_guess = dl.predict(
    "Eight devices of 80 GB each, a model of 12 billion parameters, Adam in float32. Under which "
    "strategy does it fit?",
    ["Mirrored", "CentralStorage", "both", "neither"],
)


# %%
def on_each_device(weights=1, gradients=1, state=1):
    """Gigabytes on one device; each number says over how many devices a part is divided."""
    parameters = 12e9
    return {
        "weights": 4 * parameters / weights / 1e9,
        "gradients": 4 * parameters / gradients / 1e9,
        "optimizer state": 8 * parameters / state / 1e9,
    }


two_strategies = {
    "Mirrored": on_each_device(),
    "CentralStorage": on_each_device() | {"optimizer state": 0.0},
}
totals = {name: sum(parts.values()) for name, parts in two_strategies.items()}
dl.show("GB on each device, of 80", totals, digits=0)

# %% tags=["reveal"]
fits = [name for name, gigabytes in totals.items() if gigabytes <= 80]
memory_guess.reveal(
    {0: "neither", 1: "".join(fits), 2: "both"}[len(fits)],
    {
        "neither": "Weights and gradients of 12 billion parameters take 96 GB on each device, "
        "more than 80 GB.",
        "Mirrored": "Eight devices of 80 GB have 640 GB together, but Mirrored divides only the "
        "examples. Each device needs all 192 GB.",
        "CentralStorage": "It keeps Adam's 96 GB in the host. A replica still fetches all weights "
        "and makes all gradients, 96 GB.",
        "both": "Each replica works with all weights and all gradients under either strategy. That "
        "alone is 96 GB.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Each replica holds all weights and all gradients, whether there is one device or eight. In float32
# the model fits if you divide enough of the 192 GB among the eight devices. ZeRO (Zero Redundancy
# Optimizer) has three stages. It divides the optimizer's state, then the gradients as well, and
# then the weights as well. FSDP (PyTorch's Fully Sharded Data Parallel) is like the third stage.
# Over 8 devices the three stages take 108, 66 and 24 GB on each device:

# %% tags=["after-reveal"]
draw_memory(
    {
        **two_strategies,
        "ZeRO 1: state divided": on_each_device(state=8),
        "ZeRO 2: gradients, too": on_each_device(gradients=8, state=8),
        "ZeRO 3, FSDP: all divided": on_each_device(weights=8, gradients=8, state=8),
    },
    limit_gb=80,
)

# %% [markdown]
# ## A map of the field
#
# Data parallelism divides the examples. **Sharded data parallelism** (FSDP, ZeRO 3) divides the
# examples, and stores weights, gradients and optimizer state in parts. For each layer, a device
# fetches the missing parts when it computes that layer. The kinds of [model
# parallelism](../docs/glossary.md#model-parallelism) divide the model:
#
# - **Tensor parallelism** divides the weights of each layer, and each device computes its part.
# - **Pipeline parallelism** gives each device some of the layers. The activations go from device to
#   device.
# - **Expert parallelism** is for layers that consist of many small networks, the experts, of which
#   each token uses only a few. It spreads the experts over the devices.
#
# The figure shows what each device has of a batch (the coloured strip) and of a model of three
# layers. To the right of each kind is the question that decides for it. The last row is for
# parameter servers, with two workers and two servers. There each worker takes a batch of its own.

# %%
draw_map()

# %% [markdown]
# Where does TensorFlow divide more than the examples?
#
# - `MirroredStrategy`, `MultiWorkerMirroredStrategy` and `CentralStorageStrategy` divide the
#   examples only.
# - [Parameter servers](10_parameter_server.ipynb) divide the variables among the servers. With a
#   `variable_partitioner` they cut a large raw `tf.Variable`, but no Keras layer's weights.
# - `TPUStrategy` can give several logical devices to each replica, and divide [single
#   tensors](https://www.tensorflow.org/api_docs/python/tf/distribute/TPUStrategy#experimental_split_to_logical_devices)
#   among them.
# - `tf.experimental.dtensor` divides tensors by any layout. A section below shows it.
#
# ## Model parallelism in Keras
#
# Keras has an interface for dividing a model, `keras.distribution` with `ModelParallel`. We ask
# for half of the columns of each kernel on each of two devices.

# %% tags=["predict"]
keras_guess = dl.predict(
    "On the TensorFlow backend, what is on the first device for a kernel of shape [64, 32]?",
    ["nothing: Keras raises an error", "a piece of shape [64, 16]", "all of it, shape [64, 32]"],
)


# %%
def pieces_of(variable):
    value = variable.read_value()
    return dtensor.unpack(value) if dtensor.is_dtensor(value) else [value]


# %% [markdown]
# A `LayoutMap` says which axes of which weights are cut: here the columns of each kernel, over two
# devices.

# %%
names = keras.distribution.list_devices()[:2]
mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], devices=names)
layout = keras.distribution.LayoutMap(mesh)
layout[".*kernel"] = (None, "model")

with keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch").scope():
    split = build()
shapes = [list(piece.shape) for piece in pieces_of(split.weights[0].value)]
dl.show("pieces of the first kernel", shapes)

# %% tags=["reveal"]
found = {(64, 32): "all of it, shape [64, 32]", (64, 16): "a piece of shape [64, 16]"}
keras_guess.reveal(
    found[tuple(shapes[0])],
    {
        "all of it, shape [64, 32]": "On the TensorFlow backend Keras accepts the layout and "
        "does not apply it.",
        "nothing: Keras raises an error": "Keras accepts the layout and does not apply it. It "
        "shows no error and no warning.",
        "a piece of shape [64, 16]": "You asked for that, and Keras does it on the JAX backend.",
    },
)

# %% [markdown] tags=["after-reveal"]
# `pieces_of` returns what the devices hold: the pieces of a divided tensor, or the whole tensor if
# it is not divided. In Keras 3.15 model parallelism works on the JAX backend only. Keras's module
# for TensorFlow calls itself a prototype and says "DO NOT USE". [Keras's
# guide](https://keras.io/guides/distribution/), as changed in August 2026, says that support for
# TensorFlow is in development. (It also names PyTorch, for which Keras 3.15 has no such module.)
#
# ## Divide a kernel with DTensor
#
# TensorFlow itself can divide a kernel, with DTensor. A **mesh** names the devices, here two of
# the CPU. A **layout** says for each axis of a tensor whether it is cut along the mesh or not.

# %%
mesh = dtensor.create_mesh([("model", 2)], devices=["CPU:0", "CPU:1"])
by_column = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)  # rows whole, columns cut
on_both = dtensor.Layout.replicated(mesh, rank=2)  # a whole copy on each device


# %% [markdown]
# `pack` makes one divided tensor of two pieces. We train it in three steps, and an undivided kernel
# beside it. The step does not know that the kernel is cut: see the folded cell.


# %% tags=["hide-input"]
@tf.function
def step(batch, kernel):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(batch, kernel) ** 2)
    kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
    return loss


draw = np.random.default_rng(1)
start = draw.normal(size=(6, 10)).astype("float32")
examples = draw.normal(size=(5, 6)).astype("float32")

plain = tf.Variable(start)
divided = dtensor.DVariable(dtensor.pack(tf.split(start, 2, axis=1), by_column))
for _ in range(3):
    step(examples, plain)
    step(dtensor.copy_to_mesh(examples, on_both), divided)

# %%
pieces = pieces_of(divided)
dl.show("shape of the kernel", list(divided.shape))
dl.show("shapes on the two devices", [list(piece.shape) for piece in pieces])
whole = np.concatenate([piece.numpy() for piece in pieces], axis=1)
dl.show("apart from one device by", np.abs(whole - plain.numpy()).max(), below=1e-6)

# %% [markdown]
# Each device has half of the kernel, and the three steps are those of one device. DTensor is
# experimental too, and Keras's `fit` does not use it. For large models, PyTorch and JAX have
# supported tools:
#
# <details><summary>In PyTorch and JAX</summary>
#
# - Data parallelism: `DistributedDataParallel` (DDP), started by `torchrun`. In JAX, an array of
#   examples with a `NamedSharding` over a mesh axis, under `jax.jit`.
# - Sharded data parallelism: PyTorch's `fully_shard` (FSDP). In JAX, a `NamedSharding` for the
#   parameters.
# - Tensor parallelism: PyTorch's `parallelize_module` with its own DTensor. In JAX, the same
#   `NamedSharding` with a second mesh axis; `jit` inserts the collectives.
# </details>
#
# ## Strategies for several hosts or TPUs
#
# - `MultiWorkerMirroredStrategy`: several hosts take each step together. There is a copy on every
#   device of every host, and under `dl.distribute` each example weighs the same. Keras 3's
#   own `fit` crashes with several workers: use `dl.distribute` or your own loop. See
#   [lesson 09](09_multi_worker.ipynb).
# - `ParameterServerStrategy`: workers of uneven speed, or workers that come and go. The coordinator
#   and the servers must stay. Each worker takes a step when it is ready, so its gradients may be
#   [stale](../docs/glossary.md#staleness). See [lesson 10](10_parameter_server.ipynb).
# - `TPUStrategy`: the cores of a TPU. It works like Mirrored, compiled by XLA.
#
# `MirroredStrategy` ends at the edge of its host. Started on two hosts it trains two separate
# models. And `ParameterServerStrategy` is not a slow Mirrored: it takes different steps.
#
# ## The card
#
# Ask from the top. The first yes decides. [The card as a page](../docs/decision_card.md) is short
# enough to print.

# %%
draw_card(list(CARD.values()), otherwise=OTHERWISE)

# %% [markdown]
# "Split the model" leads to the map above. Question 1 counts the weights that a step reads: some
# rows if you gather from a raw `tf.Variable`, all rows of a Keras `Embedding`. The optimizer's
# state comes early, because all answers below keep it on each device or on servers. Four special
# cases:
#
# - If a single GPU lacks room only for the optimizer's state, see the fold "In plain TensorFlow"
#   below the table of copies.
# - `one_device` and `default` are one answer. Take the first if you want to name the device.
# - With a TPU the answer is `tpu` even for a single core, because `one_device` finds only GPUs and
#   CPUs.
# - If hosts of uneven speed must take each step together, answer no to question 5 and yes to
#   question 6. Each step then takes as long as on the slowest host.
#
# The card is a function, too. Each question has a name, and you pass those with a yes:

# %%
dl.show("names", list(CARD))
dl.show("four GPUs in one host", choose())
dl.show("two such hosts", choose(several_hosts=True))
dl.show("two such hosts, a model for a laptop", choose(several_hosts=True, one_is_enough=True))
dl.show("Adam's state is too large", choose(copies_too_large=True))

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. Your loop runs under <code>OneDeviceStrategy</code>, with the weights of
# <code>fit</code>. Is it ready for eight GPUs?</summary>
# You do not know yet. One replica cannot show whether the loss is scaled correctly, and some errors
# need several replicas. Try it with SGD on four logical devices, with a partial last batch.
# </details>
#
# <details><summary>2. Eight GPUs, Adam. How many copies of Adam's averages are there under
# Mirrored, and under CentralStorage?</summary>
# Eight, and one.
# </details>
#
# <details><summary>3. Under CentralStorage, Keras's own <code>fit</code> logs NaN after 200
# steps. Has training failed?</summary>
# Not for that reason. With two replicas the log doubles its
# total and its count in every step. Both become infinite, and their quotient is NaN. Compare the
# weights, or log through <code>dl.distribute</code>.
# </details>
#
# <details><summary>4. A model does not fit on one GPU. Would two GPUs under Mirrored help?
# </summary>
# Not if its weights, gradients and optimizer state are too large: every replica holds all of them.
# Only the activations become smaller with the replica's share of the batch. Divide the model: by
# ZeRO or FSDP, by tensors, or by layers.
# </details>
#
# <details><summary>5. Two hosts, and the weights must be those of one device. Which strategy, and
# which not?</summary>
# MultiWorkerMirrored. Mirrored stays within its host, and a parameter server's
# gradients may be stale.
# </details>
#
# ## Next steps
#
# - [The exercise](../exercises/21_choosing_a_strategy.ipynb): six cases to decide and defend, and a
#   function that names the first weight that differs under a strategy.
# - [Lesson 18](18_split_layer_and_text.ipynb): what to do if the model does not fit on a device.
# - The [glossary](../docs/glossary.md) has the words of all lessons.
# - Your own model: put your `build` and your data in place of ours, and run "Your model under
#   each strategy" again. For Keras's own `fit` or a loop of yours, `dl.check_parity` names the
#   first weight that differs and looks for the cause.
# - [TensorFlow's guide to distributed
#   training](https://www.tensorflow.org/guide/distributed_training) describes the strategies. Its
#   table lists Keras's `fit` as supported under `MultiWorkerMirroredStrategy`. With Keras 3 it
#   crashes there.
# - On a clone of distlab, `python benchmarks/fit.py` times a step of `fit` on your machine.
