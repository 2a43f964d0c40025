# %% [markdown]
# # Choose a strategy
#
# ## Overview
#
# After this lesson you can
#
# - say what each strategy of TensorFlow is for, and what it costs in memory and in bytes moved,
# - rehearse distributed code, and name the mistakes that a rehearsal on one device cannot find,
# - compare strategies on a model of your own, by its weights,
# - say what `CentralStorageStrategy` cannot do, and what no data parallelism can,
# - choose with a card of six questions.
#
# It takes about 25 minutes. You need lessons 01 and 03. No GPU, no download.
#
# **What changes.** So far we kept the strategy and changed what ran under it. Now the model stays
# and the strategy changes, by one word:
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
# Two, one on each device. They start equal, and after the all-reduce every replica subtracts the
# same number. Nothing ever compares them.
# </details>
#
# <details><summary>Lesson 03: each replica takes the mean loss of its own examples, and the
# optimizer adds the gradients. What is wrong, and on how many replicas can you see it?</summary>
# The step is as many times too long as there are replicas. On one replica it is right: you need at
# least two to see it. Today that decides how we rehearse.
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# This must come first in a fresh kernel. Later it fails with "TensorFlow is already running":
# restart the kernel then.

# %%
import keras
import numpy as np
import tensorflow as tf

from distlab.pictures.strategies import Layout, draw_card, draw_layouts

(digits,) = dl.load_dataset("digits", splits=["train[:335]"], batch_size=335)
in_memory = tf.data.Dataset.from_tensor_slices(next(iter(digits)))
partial = in_memory.batch(20)
dl.show("steps, and examples in the last", [len(partial), 335 % 20])

# %% [markdown]
# ## No strategy is a strategy
#
# **Predict:** what does `get_strategy()` return where nobody has made a strategy?

# %%
default = tf.distribute.get_strategy()
dl.show("it is dl.make_strategy('default')", default is dl.make_strategy("default"))
dl.show("replicas", default.num_replicas_in_sync, expected=1)
dl.show("variables", dl.describe(default).variables)

# %% [markdown]
# There always is one. The **default strategy** has one replica and changes nothing, so code
# written for many replicas also runs where there is no strategy. Here is a loop like that of
# lesson 03, with one of its mistakes: the mean of the replica's own examples.


# %%
each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def train_by_hand(strategy, build, data):
    with strategy.scope():
        model = build()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(each_loss(y, model(x)))  # the mistake
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(step, args=batch)
    return model


# %% [markdown]
# The model is a small one; put yours in its place later.


# %%
def build(optimizer=keras.optimizers.SGD, **options):
    dl.set_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(learning_rate=0.1, **options), loss=loss, metrics=["accuracy"])
    return model


def apart(a, b):
    pairs = zip(a.get_weights(), b.get_weights(), strict=True)
    return max(np.abs(x - y).max() for x, y in pairs)


# %% [markdown]
# ## One device, and a rehearsal
#
# `OneDeviceStrategy` also has one replica. It does two things that the default does not: it puts
# all variables and all work on the device **that you name**, and it is a strategy like the others:
# it has a scope, and what was made outside does not belong to it.

# %%
one_device = dl.make_strategy("one_device", devices=[devices[1]])
with one_device.scope():
    variable = tf.Variable(0.0)
dl.show("on the device that was named", variable.device.endswith(devices[1]), expected=True)
dl.show("variables", dl.describe(one_device).variables)

# %% [markdown]
# So it is a good rehearsal. A model that was built outside the scope, say: for eight GPUs
# `dl.distribute` refuses it. **Predict:** who refuses it at home?

# %%
built_outside = build()
for name, strategy in {"default": default, "one_device": one_device}.items():
    try:
        dl.distribute(lambda: built_outside, strategy)
        dl.show(name, "taken")
    except ValueError as error:
        dl.show(name, f"refused, {type(error).__name__}")

# %% [markdown]
# And our loop, with its mistake? **Predict:** which of these three find it?

# %%
one = build()
one.fit(partial, verbose=0, shuffle=False)

rehearsals = {"default": default, "one_device": one_device}
rehearsals["mirrored"] = dl.make_strategy("mirrored", devices=2)
for name, strategy in rehearsals.items():
    model = train_by_hand(strategy, build, partial)
    dl.show(f"{name}: weights of one device", bool(apart(model, one) < 1e-6), expected=True)

# %% [markdown]
# Only the last. A rehearsal on one device finds what cannot *run*. It cannot find a wrong *scale*:
# dividing by 1 is right by accident, one share of a partial batch is the whole batch, and one copy
# cannot drift apart. **So rehearse twice: on one device, then on two logical ones.** That costs
# no second GPU.

# %% [markdown]
# ## One copy, or a copy each
#
# Now two strategies with two replicas. `MirroredStrategy` you know. `CentralStorageStrategy` keeps
# **one** copy of each variable, in one place for all replicas.
#
# We give both of them the same two devices, and leave device 0 free.

# %%
pair = devices[1:3]
mirrored = dl.make_strategy("mirrored", devices=pair)
central = dl.make_strategy("central_storage", devices=pair)
for strategy in (mirrored, central):
    description = dl.describe(strategy)
    dl.show(f"{description.kind}, {description.replicas} replicas", description.variables)

# %% [markdown]
# Where is "the CPU" here? On a machine with GPUs it is the host's memory. Without, it is the
# logical device 0, where no replica works. Either way every replica must fetch the weights from
# elsewhere, in every step.
#
# Let S be the size of all weights. A step of Mirrored sends the gradients of the second replica to
# the first, and their sum back. A step of CentralStorage sends the weights to both replicas, and
# both gradients to the store. (TensorFlow adds the two up on the way, on the first replica's
# device. The bytes are the same.)


# %%
def bytes_moved(kind, replicas, weights):
    if kind == "mirrored":
        return 2 * (replicas - 1) * weights  # gradients in, their sum out
    if kind == "central_storage":
        return 2 * replicas * weights  # weights out, gradients in
    return 0


# %%
there_and_back = ((1, 0, "gradients: S"), (0, 1, "their sum: S"))
to_the_store = ((1, 0, "weights: S"), (0, 1, "gradients: S"))
and_from_it = ((1, 2, "weights: S"), (2, 1, "gradients: S"))
two, three = ("device 1", "device 2"), ("device 1", "the store", "device 2")
draw_layouts(
    [
        Layout("default", ("the usual device",), replicas=(0,), copies=(0,)),
        Layout("one_device", ("device 1",), replicas=(0,), copies=(0,)),
        Layout("mirrored", two, replicas=(0, 1), copies=(0, 1), moves=there_and_back),
        Layout("central_storage", three, (0, 2), (1,), moves=to_the_store + and_from_it),
    ]
)

# %% [markdown]
# These bytes are counted, not timed: logical devices share one memory, so a live timing here would
# tell you nothing about your GPUs. (A test of this lesson counts them once more, in the compiled
# step.) On your own machine, in a clone of distlab, `python benchmarks/fit.py` times a step of
# `fit`, many times and in turns.

# %% [markdown]
# ## Your model under each strategy
#
# The table that settles most arguments: train *your* model under each strategy, on your data, with
# a last batch that does not divide. Are the weights those of one device?
#
# **Predict** all four lines: equal or not, how many copies, how many bytes.

# %%
strategies = {"default": default, "one_device": one_device}
strategies |= {"mirrored": mirrored, "central_storage": central}

one = build()
one.fit(partial, epochs=2, verbose=0, shuffle=False)
size = sum(weight.nbytes for weight in one.get_weights())
dl.show("S, in bytes", size)

# %%
for name, strategy in strategies.items():
    model = dl.distribute(build, strategy)
    model.fit(partial, epochs=2, verbose=0, shuffle=False)
    kernel = model.weights[0].value
    row = {
        "equal": bool(apart(one, model) < 1e-6),
        "copies": len(strategy.experimental_local_results(kernel)),
        "bytes a step": bytes_moved(name, strategy.num_replicas_in_sync, size),
    }
    dl.show(name, row)

# %% [markdown]
# **All equal.** A synchronous strategy is not a choice of *what* is learnt. It is a choice of where
# things are and what has to travel:
#
# | | Mirrored | CentralStorage |
# |---|---|---|
# | weights and optimizer state | on every device | once |
# | who updates them | every replica its own copy | one device, once for all |
# | moved in a step | 2 (N - 1) S | 2 N S, all of it through the store |
#
# With N replicas. (Real GPUs pass Mirrored's gradients round a ring: the same sum, and each link
# carries its part.)
#
# So Mirrored is the usual choice. CentralStorage is for one case: N copies of weights and optimizer
# state do not fit beside the work, and one copy in the host's memory does.

# %% [markdown]
# ## The log that is wrong
#
# We trained with `dl.distribute`. Now Keras's own `fit`, under CentralStorage. We leave the partial
# batch out: with unequal shares the weights would differ for a reason that you know already.

# %%
full = in_memory.take(320).batch(20)


def own_fit(strategy, data, callbacks=()):
    with strategy.scope():
        model = build()
    history = model.fit(data, verbose=0, shuffle=False, callbacks=list(callbacks))
    return model, history.history["loss"][-1]


one, loss_of_one = own_fit(default, full)
plain, loss_of_plain = own_fit(central, full)
dl.show("weights of one device", bool(apart(one, plain) < 1e-6), expected=True)
dl.show("logged loss", loss_of_plain, digits=2, expected=loss_of_one)

# %% [markdown]
# Right weights, wrong log. And it gets worse with the length of an epoch. **Predict:** what is
# logged for the same digits in 160 steps of 2?

# %%
short = in_memory.take(320).batch(2)
one, loss_of_one = own_fit(default, short)
plain, loss_of_plain = own_fit(central, short)
dl.show("weights of one device", bool(apart(one, plain) < 1e-6), expected=True)
dl.show("logged loss", loss_of_plain, digits=2, expected=loss_of_one)

# %% [markdown]
# Nothing in this model is not a number. But a callback believes the log:

# %%
watch = keras.callbacks.TerminateOnNaN()
stopped, _ = own_fit(central, short, callbacks=[watch])
dl.show("all steps taken", bool(stopped.optimizer.iterations.numpy() == 160), expected=True)
dl.show("weights of one device", bool(apart(one, stopped) < 1e-6), expected=True)

# %% [markdown]
# ### Why
#
# A Keras metric adds to its total by `total.assign(total + value)`. Under CentralStorage there is
# one total, and what the replicas assign to it is summed. Do that by hand: the total is 10, and two
# replicas add 1 each. **Predict** the new total.

# %%
with central.scope():
    total = tf.Variable(10.0, aggregation=tf.VariableAggregation.SUM)


@tf.function
def track():
    total.assign(total + 1.0)


central.run(track)
dl.show("total", total.numpy(), expected=12.0)

# %% [markdown]
# (10 + 1) + (10 + 1): **the old total is added once per replica.** It doubles in every step. So
# the first batches weigh most in the mean; after some 125 steps float32 ends, and infinity divided
# by infinity is what you saw. `evaluate` is wrong in the same way. Mirrored escapes: there each
# replica has a total of its own, and they are added when you read.
#
# `dl.distribute` mends it. It brings what the replicas saw together first, and then updates the
# metrics once.

# %%
mended = dl.distribute(build, central)
history = mended.fit(short, verbose=0, shuffle=False, callbacks=[watch]).history
dl.show("logged loss", history["loss"][-1], digits=2, expected=loss_of_one)
dl.show("weights of one device", bool(apart(one, mended) < 1e-6), expected=True)

# %% [markdown]
# ## What CentralStorage cannot do
#
# Some optimizers do not work there. Keras stops in the middle of a step, with a long message about
# conditions and contexts. `dl.distribute` asks before the first step:


# %%
def with_loss_scale(learning_rate):
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(learning_rate))


attempts = {
    "EMA of the weights": {"use_ema": True},
    "loss scale (float16)": {"optimizer": with_loss_scale},
    "gradient accumulation": {"gradient_accumulation_steps": 2},
    "Muon": {"optimizer": keras.optimizers.Muon},
}
for name, options in attempts.items():
    try:
        dl.distribute(lambda options=options: build(**options), central)
    except ValueError as error:
        dl.show(name, f"refused, {type(error).__name__}")

# %% [markdown]
# It is also experimental, in TensorFlow's own words: its full name is
# `tf.distribute.experimental.CentralStorageStrategy`.

# %% [markdown]
# ## What no data parallelism can do
#
# All strategies of `tf.distribute` share out the **examples**. Each replica computes the whole
# model. Two things follow.
#
# **A batch too small to share.** Four replicas and a batch of 3:

# %%
four = dl.make_strategy("mirrored", devices=devices)
(batch,) = four.experimental_distribute_dataset(in_memory.take(3).batch(3))
shares = [len(labels) for labels in four.experimental_local_results(batch[1])]
dl.show("examples on each replica", shares)

# %% [markdown]
# One replica waits for the others, and the three do what one device could. More devices need a
# larger batch, and a larger batch is another training.
#
# **A model too large for one device.** Trained by Adam in float32, a parameter takes 4 bytes for
# itself, 4 for its gradient and 8 for Adam's two averages. Activations come on top. Under Mirrored
# each device has all of it; under CentralStorage it fetches the weights and makes the gradients.
#
# **Predict:** eight devices of 80 GB, a model of 12 billion parameters. Who can train it?

# %%
parameters = 12e9
bytes_on_a_device = {"mirrored": 4 + 4 + 8, "central_storage": 4 + 4}
for name, each in bytes_on_a_device.items():
    needed_gb = parameters * each / 1e9
    dl.show(name, f"{needed_gb:.0f} GB on each device, of 80")

# %% [markdown]
# Nobody. The eight have 640 GB together, and it does not help: with one device or with eight, each
# needs as much.
#
# Then the **model** must be split, not the batch. Keras has an interface for that,
# `keras.distribution` with `ModelParallel`. **Predict:** we ask for half of each kernel on each of
# two devices. What do we get here?

# %%
names = keras.distribution.list_devices()[:2]
mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], devices=names)
layout = keras.distribution.LayoutMap(mesh)
layout[".*kernel"] = (None, "model")

with keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch").scope():
    split = build()
kernel = split.weights[0].value
dl.show("shape of the kernel on its device", list(kernel.shape), expected=[64, 16])
dl.show("it is", type(kernel).__name__)

# %% [markdown]
# The whole kernel, an ordinary variable on one device, and no error. In Keras 3.15 model
# parallelism is there for the JAX backend; with TensorFlow the layout is taken and not applied. So
# for a model that is too large: first make it smaller (bfloat16, a smaller batch, an optimizer with
# less state), else run the same Keras code on JAX, or use another library.

# %% [markdown]
# ## Strategies of more than one process
#
# This lesson runs in one process. Three strategies need more; what they are for:
#
# - `MultiWorkerMirroredStrategy`: several hosts take each step together. A copy on every device of
#   every host, and the weights of one device. Lesson 09 (to come).
# - `ParameterServerStrategy`: hosts of uneven speed, or hosts that come and go. Each worker steps
#   when it is ready, so gradients may be stale and no two runs are alike. Lesson 10 (to come).
# - `TPUStrategy`: the cores of a TPU. Like Mirrored, compiled by XLA. Lesson 15 (to come).
#
# `MirroredStrategy` ends at the edge of its host: started on two hosts it gives two models that
# know nothing of each other. And `ParameterServerStrategy` is not a slower Mirrored: its steps are
# other steps.

# %% [markdown]
# ## The card
#
# Ask from the top. The first yes decides. It is short enough to print, and to be a function.

# %%
CARD = {
    "too_large": ("Is one replica's work too large for one device?", "split the model"),
    "one_is_enough": ("Is one device fast enough, or a batch too small to share?", "one_device"),
    "tpu": ("Are the devices TPU cores?", "tpu"),
    "uneven_hosts": ("Several hosts, and none may wait for another?", "parameter_server"),
    "several_hosts": ("Several hosts, of equal speed?", "multi_worker"),
    "copies_too_large": (
        "Do weights and optimizer state not fit on every device, but once in the host?",
        "central_storage",
    ),
}
draw_card(list(CARD.values()), otherwise="mirrored")

# %% [markdown]
# `one_device` and `default` are one answer: the first where you want to say which device, the
# second where you do not care.


# %%
def choose(**yes):
    answers = (strategy for name, (_, strategy) in CARD.items() if yes.get(name))
    return next(answers, "mirrored")


dl.show("four GPUs in one host", choose())
dl.show("two such hosts", choose(several_hosts=True))
dl.show("two such hosts, a model for a laptop", choose(several_hosts=True, one_is_enough=True))

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. Your loop runs under <code>OneDeviceStrategy</code>, with the weights of
# <code>fit</code>. Is it ready for eight GPUs?</summary>
# It runs; whether its loss is scaled rightly you have not seen. Try it on two logical devices.
# </details>
#
# <details><summary>2. Eight GPUs, Adam. How many copies of Adam's averages are there under
# Mirrored, and under CentralStorage?</summary>
# Eight, and one.
# </details>
#
# <details><summary>3. Under CentralStorage, <code>fit</code> logs NaN after 200 steps. Has training
# failed?</summary>
# Not for that reason. The log doubles its totals in every step until float32 overflows. Compare the
# weights, or log through <code>dl.distribute</code>.
# </details>
#
# <details><summary>4. A model does not fit on one GPU. Would two GPUs under Mirrored help?
# </summary>
# No. Every replica holds and computes the whole model.
# </details>
#
# <details><summary>5. Two hosts, and the weights must be those of one device. Which strategy, and
# which not?</summary>
# MultiWorkerMirrored. Mirrored stays within its host, and a parameter server's steps use stale
# gradients.
# </details>
#
# ## Next steps
#
# - [The exercise](../exercises/16_choosing_a_strategy.ipynb): six cases to decide and defend, and
#   the table as a function of your own.
# - Your own model: put your `build` and your data in place of ours, and run "Your model under each
#   strategy" again. If a line is not equal, `dl.check_parity(build, data, strategy=strategy)` names
#   the first weight that moved, and looks for the cause: what sees the batch as a whole (batch
#   normalisation), what draws random numbers (dropout).
# - [Lesson 03](03_custom_training_loop.ipynb) has the loop whose mistake we rehearsed.
