# %% [markdown]
# # Mixed precision: 16 bits, and what becomes of the gradient
#
# ## Overview
#
# After this lesson you can
#
# - say what float16 and bfloat16 do to a gradient, and which of them your device wants,
# - keep in float32 what must be kept there: the weights and the head,
# - see which gradients float16 turns to zero, and bring them back by scaling the loss,
# - write the loss scale that finds itself, and use Keras's,
# - train so under `MirroredStrategy` without losing the model to one replica's overflow,
# - count what 16 bits save in memory, and what they do not.
#
# It takes about 35 minutes. You need lesson 03 (the loop, and why loops are tested with SGD). No
# GPU, no download.
#
# **What changes.** With bfloat16, one line:
#
# ```diff
# - model = dl.distribute(build, strategy)
# + with dl.mixed_precision("mixed_bfloat16"):
# +     model = dl.distribute(build, strategy)
# ```
#
# **What your CPU can show.** The *numbers*: they are 16 bits wide here too, so every zero and
# every overflow in this lesson is real. Not the *speed*, and not the memory of a GPU: a CPU is
# seldom faster in 16 bits. Near the end is a cell that measures both where there is a GPU.
#
# **Do you remember?**
#
# <details><summary>Lesson 01: what do all replicas do with their gradients before the
# update?</summary>
# They add them up (the all-reduce), and all take the same step.
# </details>
#
# <details><summary>Lesson 03: a loop takes steps that are four times too long. Which optimizer
# shows it, and which nearly hides it?</summary>
# SGD shows it. Adam divides each gradient by its usual size, so a constant factor cancels.
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# (If that says *TensorFlow is already running*: restart the kernel and run from the top.)

# %%
import keras
import numpy as np
import tensorflow as tf

from distlab.pictures.underflow import draw_training, draw_underflow, lost_in_float16

tf.get_logger().setLevel("ERROR")  # no reminders that tf.function is faster

(digits,) = dl.load_dataset("digits", splits=["train[:1024]"], batch_size=1024)
x, y = next(iter(digits))
dl.show("one batch", list(x.shape))

# %% [markdown]
# ## Two ways to use 16 bits
#
# A floating-point number has a sign, an exponent (how large) and a fraction (which digits).
#
# | format | exponent | fraction | largest | smallest above 0 | next after 1 |
# |---|---|---|---|---|---|
# | float32 | 8 bits | 23 bits | 3e38 | 1e-45 | 1.0000001 |
# | float16 | 5 bits | 10 bits | 65504 | 6e-8 | 1.001 |
# | bfloat16 | 8 bits | 7 bits | 3e38 | 9e-41 | 1.008 |
#
# float16 has the better digits, bfloat16 the range of float32. **Predict:** what becomes of
# 70000, of 0.00000001 and of 1.003 in each?

# %%
FORMATS = (tf.float32, tf.float16, tf.bfloat16)

for number in (70000.0, 1e-8, 1.003):
    kept = [float(tf.cast(tf.constant(number), to)) for to in FORMATS]
    names = [to.name for to in FORMATS]
    dl.show(f"{number:g}", {name: f"{k:.5g}" for name, k in zip(names, kept, strict=True)})

# %% [markdown]
# float16 loses what is large (infinite) and what is small (zero). A gradient is often small.
# bfloat16 keeps every size, with two or three digits. A gradient can live with that: the next
# batch will give another one anyway.
#
# ## What stays in float32: the weights
#
# A *mixed* policy computes in 16 bits and keeps the weights in 32. Why not keep them in 16 as
# well? Add 0.0004 to a weight of 1, a thousand times. **Predict:** where does it end in each
# format?

# %%
for to in FORMATS:
    weight = tf.ones((), to)
    for _ in range(1000):
        weight += tf.cast(0.0004, to)
    dl.show(to.name, float(weight), digits=3)

# %% [markdown]
# In 16 bits the weight never moves: 1.0004 rounds back to 1, every time. Small steps on large
# weights are what training is. So Keras keeps a float32 weight, and rounds a copy for each use.
#
# `dl.mixed_precision` sets Keras's policy for a block and puts the old one back. The policy is
# read when a layer is **made**, so build the model inside.

# %%
with dl.mixed_precision("mixed_float16"):
    layer = keras.layers.Dense(10)
    layer.build((None, 64))

dl.show("computes in", layer.compute_dtype)
dl.show("keeps its weights in", layer.kernel.dtype)
dl.show("policy after the block", keras.config.dtype_policy().name)

# %% [markdown]
# ## What stays in float32: the head
#
# A softmax in float16 cannot write down a probability below 6e-8. Here is what that costs. One
# example, ten classes; the model prefers a wrong class, and its score is ahead by `gap`. Three
# ways to write the last layer:


# %%
def head(kind):
    """The last layer, with all weights 0."""
    dense = keras.layers.Dense(10, kernel_initializer="zeros")
    if kind == "softmax in float32":
        return [dense, keras.layers.Activation("softmax", dtype="float32")]
    softmax = [dense, keras.layers.Activation("softmax")]
    if kind == "float16, cast after":
        softmax.append(keras.layers.Activation("linear", dtype="float32"))
    return softmax


def score_model(kind, gap):
    with dl.mixed_precision("mixed_float16"):
        model = keras.Sequential([keras.Input((4,)), *head(kind)])
    weights = np.zeros((4, 10))
    weights[:, 0] = gap / 4  # class 0 is ahead
    model.layers[0].set_weights([weights, np.zeros(10)])
    return model


# %% [markdown]
# The true class is 3. One step of SGD should push its weights up, by 1 here where the model was
# very wrong. **Predict:** by how much does each push at a gap of 20?

# %%
KINDS = ("softmax in float16", "float16, cast after", "softmax in float32")
cross_entropy = keras.losses.SparseCategoricalCrossentropy()


def push(kind, gap):
    model = score_model(kind, gap)
    weights = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = cross_entropy(tf.constant([3]), model(tf.ones((1, 4))))
    keras.optimizers.SGD(1.0).apply(tape.gradient(loss, weights), weights)
    return float(weights[0][0, 3]), float(loss)


for kind in KINDS:
    pushes, losses = zip(*[push(kind, gap) for gap in (5, 15, 20)], strict=True)
    dl.show(f"{kind}: pushed by", pushes, digits=1)
    dl.show(f"{kind}: the loss", losses, digits=1, expected=(5.1, 15, 20))

# %% [markdown]
# At 15 the probability is 3e-7, its inverse overflows, and the step makes the weights NaN. At 20
# the probability is 0. Keras clips it so that the loss is finite, 16.1 for the true 20, and the
# gradient is **zero: the example that the model gets most wrong teaches it nothing.** Casting
# afterwards helps nothing: what is lost is lost.
#
# So give the last activation `dtype="float32"`. Or let the model return scores, cast to float32,
# and tell the loss `from_logits=True`. From here on we do that.
#
# ## A gradient falls below the line
#
# Now the body of the model. Ours is a deep one, eight layers of sigmoids, because there gradients
# get small. (Other ways to small gradients: a loss that is a mean over many pixels, a loss with a
# small weight, a model that is nearly right.)


# %%
def build(policy):
    dl.set_seed(1)
    with dl.mixed_precision(policy):
        body = [keras.layers.Dense(32, "sigmoid") for _ in range(8)]
        scores = [keras.layers.Dense(10), keras.layers.Activation("linear", dtype="float32")]
        return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), *body, *scores])


loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

# %% [markdown]
# On the way back each layer is given the gradient of its output, and hands on the one of its
# input. In mixed precision these are 16 bits wide. We look at them layer by layer.


# %%
def handed_back(policy, scale=1.0, batch=1024):
    """The gradient that each of the eight layers is given, by the layer's name."""
    outputs, last = [], x[:batch]
    with tf.GradientTape() as tape:
        for layer in build(policy).layers:
            last = layer(last)
            tape.watch(last)
            outputs.append(last)
        loss = loss_of(y[:batch], last) * scale
    gradients = tape.gradient(loss, outputs)[1:9]  # between Flatten and the scores
    return {f"layer {i}": tf.cast(g, tf.float32) for i, g in enumerate(gradients, 1)}


true = handed_back("float32")
draw_underflow(true)

# %% [markdown]
# This is the float32 model: the true sizes. From layer 8 back to layer 1 the gradient shrinks by
# about two powers of two a layer. On the left of the black line at 2⁻²⁵ float16 has only 0. On
# the left of the dotted one, at 2⁻¹⁴, it has fewer and fewer digits.
#
# That is a forecast. **Predict** from it: which layers of the float16 model get zeros?

# %%
for policy in ("mixed_float16", "mixed_bfloat16"):
    first_three = list(handed_back(policy).values())[:3]
    zeros = [float(np.mean(gradient == 0)) for gradient in first_three]
    dl.show(f"{policy}, zeros in layers 1 to 3", zeros, digits=1)

# %% [markdown]
# Layer 1 is given nothing but zeros. bfloat16 has lost nothing.
#
# ### More replicas, smaller gradients
#
# In lesson 03 each example weighed one over the **global** batch. Twice the replicas, twice the
# global batch: every gradient is half as large, and the whole picture moves one to the left.

# %%
for batch in (64, 256, 1024):
    (layer_1, *_) = handed_back("float32", batch=batch).values()
    dl.show(f"batch {batch}, layer 1 would lose", lost_in_float16(layer_1).zero, digits=1)

# %% [markdown]
# So a model that trains well in float16 on one GPU can fail on sixteen. Nothing in it has
# changed.
#
# ## What zeros do to training
#
# A training loop with two places for what comes next: it multiplies the loss by `scale`, and
# divides the gradients by `divide_by` before the update. For now both are 1.


# %%
def train(policy, scale=1.0, *, divide_by=1.0, optimizer=None, reports=8):
    model, losses = build(policy), []
    optimizer = optimizer or keras.optimizers.Adam(0.01)
    weights = model.trainable_variables
    optimizer.build(weights)

    @tf.function
    def ten_steps():
        loss = 0.0
        for _ in tf.range(10):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x))
                scaled = loss * scale
            gradients = [g / divide_by for g in tape.gradient(scaled, weights)]
            optimizer.apply(gradients, weights)
        return loss

    for _ in range(reports):
        losses.append(float(ten_steps()))
    return model, losses


# %%
exact, exact_losses = train("float32")
stuck, stuck_losses = train("mixed_float16")
bfloat, bfloat_losses = train("mixed_bfloat16")


def moved(model):
    """The largest change of a weight, for each of the eight layers."""
    pairs = zip(build("float32").layers[1:9], model.layers[1:9], strict=True)
    return [np.abs(new.kernel.numpy() - old.kernel.numpy()).max() for old, new in pairs]


dl.show("layer 1 moved in float32", bool(moved(exact)[0] > 0.1))
dl.show("layer 1 moved in float16", moved(stuck)[0], digits=6)
dl.show("layer 8 moved in float16", bool(moved(stuck)[7] > 0.1))

# %% [markdown]
# After 80 steps layer 1 is where it was. The layers above learn, from a layer that tells them
# little. There is no error and no NaN, only a loss that does not go down. You will see the curves
# in a moment, with the cure among them.
#
# ## Scale the loss
#
# There is room on the right of the picture. Multiply the loss by 2¹⁵: the chain rule multiplies
# every gradient by it, and the histogram slides to the right by 15. **Predict** what a scale of
# 2³⁰ does, then look.

# %%
draw_underflow(true, scales=(1, 2**15, 2**30))

# %% [markdown]
# Slide it yourself: `draw_underflow(true, scales=(2**8,))`. For this model there is a wide range
# of scales that lose next to nothing.
#
# **The mistake: nobody divides again.** The gradients are now 2¹⁵ times too large. With SGD that
# is the learning rate times 32768. We see it in the first step, and in the loss after ten.


# %%
def first_step(scale, divide_by):
    model = build("mixed_float16")
    before = model.layers[8].kernel.numpy()
    weights = model.trainable_variables
    with tf.GradientTape() as tape:
        scaled = loss_of(y, model(x)) * scale
    gradients = [g / divide_by for g in tape.gradient(scaled, weights)]
    keras.optimizers.SGD(0.1).apply(gradients, weights)
    return np.linalg.norm(model.layers[8].kernel.numpy() - before)


SCALE = 2.0**15
longer = first_step(SCALE, 1.0) / first_step(SCALE, SCALE)
dl.show("never unscaled: first step in right steps", longer, digits=0, expected=SCALE)
_, wild = train("mixed_float16", SCALE, optimizer=keras.optimizers.SGD(0.1), reports=1)
dl.show("and the loss after ten steps is above 1000", not wild[0] < 1000)

# %% [markdown]
# **The cure: divide the gradients by the scale**, in float32, before anything else looks at them.

# %%
scaled, scaled_losses = train("mixed_float16", SCALE, divide_by=SCALE)
dl.show("layer 1 moved", bool(moved(scaled)[0] > 0.1))

draw_training(
    {
        "float32": exact_losses,
        "float16": stuck_losses,
        "float16, loss scaled": scaled_losses,
        "bfloat16": bfloat_losses,
    },
    every_steps=10,
    level=("guessing", np.log(10)),
)

# %% [markdown]
# float16 without a scale never does better than guessing. With a scale, and in bfloat16 without
# one, the curve follows that of float32.
#
# And report the loss that you did *not* scale. A log that is 32768 times too large is the other
# half of this mistake.
#
# ## The scale that finds itself
#
# Which scale? One that is too small loses small gradients, silently. One that is too large
# overflows, and that can be *seen*: the gradient is infinite or NaN. What does a step with such a
# gradient do?

# %%
huge = 2.0**30
model = build("mixed_float16")
weights = model.trainable_variables
with tf.GradientTape() as tape:
    loss = loss_of(y, model(x)) * huge
gradients = [g / huge for g in tape.gradient(loss, weights)]
keras.optimizers.SGD(0.1).apply(gradients, weights)
finite = sum(bool(np.isfinite(weight.numpy()).all()) for weight in weights)
dl.show("weights and biases that are still finite", f"{finite} of {len(weights)}")

# %% [markdown]
# Dividing an infinity gives an infinity. One such step, and the model is gone. So, in each step:
#
# - a gradient is not finite: **skip** the step, halve the scale;
# - all are finite: take the step, and after `grow_every` good ones in a row double the scale.
#
# It starts too high and comes down fast. From then on it touches the limit now and then, and
# follows the gradient: as that shrinks, the scale can grow.


# %%
def dynamic(steps, scale, grow_every):
    model, scales, good = build("mixed_float16"), [], 0
    weights, sgd = model.trainable_variables, keras.optimizers.SGD(0.1)
    for _ in range(steps):
        scales.append(scale)
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x)) * scale
        gradients = tape.gradient(loss, weights)
        if not all(np.isfinite(g).all() for g in gradients):
            scale, good = scale / 2, 0  # and no step
            continue
        sgd.apply([g / scale for g in gradients], weights)
        good += 1
        if good == grow_every:
            scale, good = scale * 2, 0
    return model, [int(np.log2(s)) for s in scales]


mine, scales = dynamic(steps=30, scale=2.0**24, grow_every=3)
dl.show("the scale, as a power of two", scales)

# %% [markdown]
# `keras.optimizers.LossScaleOptimizer` does the same around any optimizer. In your own loop it
# takes two lines: `scale_loss` before the gradient, and `apply`, which unscales, checks, and then
# steps or skips.

# %%
model = build("mixed_float16")
weights = model.trainable_variables
optimizer = keras.optimizers.LossScaleOptimizer(
    keras.optimizers.SGD(0.1), initial_scale=2.0**24, dynamic_growth_steps=3
)
optimizer.build(weights)
keras_scales = []
for _ in range(30):
    keras_scales.append(int(np.log2(optimizer.dynamic_scale.numpy())))
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(loss_of(y, model(x)))
    optimizer.apply(tape.gradient(loss, weights), weights)


# %%
def apart(a, b):
    pairs = zip(a.get_weights(), b.get_weights(), strict=True)
    return max(np.abs(p - q).max() for p, q in pairs)


dl.show("the same scales as mine", keras_scales == scales, expected=True)
dl.show("weights apart by", apart(model, mine), below=1e-6)

# %% [markdown]
# (We doubled after 3 good steps, to see it. Keras starts at 2¹⁵ and doubles after 2000: one lost
# step in 2000 is a fair price.) And where the policy is mixed_float16,
# `compile` puts it around your optimizer without being asked.
#
# ### Clip after unscaling
#
# Clipping compares the gradient with a number that you chose for the *true* gradient. Suppose the
# true norm is 0.5 and you clip at 1. **Predict:** what is left if you clip first and unscale
# then?

# %%
true_gradient = tf.constant([0.3, 0.4])
clipped_first = tf.clip_by_norm(true_gradient * SCALE, 1.0) / SCALE
unscaled_first = tf.clip_by_norm(true_gradient * SCALE / SCALE, 1.0)
dl.show("clipped, then unscaled", tf.norm(clipped_first), digits=5, expected=0.5)
dl.show("unscaled, then clipped", tf.norm(unscaled_first), digits=5, expected=0.5)

# %% [markdown]
# Clipped first, every step has a length of at most 1/32768: training stands still. With Keras
# write `clipnorm` into the inner optimizer, `SGD(0.1, clipnorm=1.0)`; the outer one refuses it.
#
# ## With replicas: who looks?
#
# Each replica has its own examples, so **one replica may overflow where the others do not.** But
# all must decide alike. We take 16 digits for two replicas, and make one of them a thousand times
# too bright: the first, on replica 0, or the last, on replica 1.

# %%
strategy = dl.make_strategy("mirrored", devices=2)


def build_small():
    dl.set_seed(1)
    scores = keras.layers.Dense(10, kernel_initializer="zeros")
    as_float32 = keras.layers.Activation("linear", dtype="float32")
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), scores, as_float32]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), loss=loss_of)  # Keras adds the loss scale
    return model


def with_a_bright_one(place):
    images = x[:16].numpy()
    images[place] *= 1000
    return tf.data.Dataset.from_tensor_slices((images, y[:16])).batch(16)


# %% [markdown]
# One step of Keras's own `fit` under `MirroredStrategy`, then a look at both copies of the
# weights. **Predict:** does it matter on which replica the bright one is?


# %%
def step_and_look(model, data):
    model.fit(data, verbose=0, shuffle=False)
    kernel = model.layers[1].kernel.value
    copies = [copy.numpy() for copy in strategy.experimental_local_results(kernel)]
    finite = [bool(np.isfinite(copy).all()) for copy in copies]
    return {"copies finite": finite, "scale": int(model.optimizer.dynamic_scale.numpy())}


for replica, place in enumerate((0, 15)):
    with dl.mixed_precision("mixed_float16"), strategy.scope():
        model = build_small()
    found = step_and_look(model, with_a_bright_one(place))
    dl.show(f"Keras's fit, overflow on replica {replica}", found)

# %% [markdown]
# It matters. On replica 0 the step was skipped and the scale halved, as it should be. On replica
# 1 nobody noticed: **both copies are destroyed**, and the scale is as high as before.
#
# Keras's `LossScaleOptimizer` believes what replica 0 sees. A note in its source says why:
# the gradients are the same everywhere, being all-reduced. They are not, not yet. The inner
# optimizer reduces them, after the check: the infinity of replica 1 is added then.
#
# Could each replica decide for itself? Then replica 0 would step and replica 1 would not: copies
# that drift apart. The cure is the order: **reduce, then check.** Infinity plus anything is not
# finite, so the sum tells everyone.


# %%
def checks(value):
    context = tf.distribute.get_replica_context()
    total = context.all_reduce("SUM", value)
    return tf.math.is_finite(value), tf.math.is_finite(total)


each = strategy.experimental_distribute_values_from_function(
    lambda context: tf.constant([1.0, np.inf][context.replica_id_in_sync_group])
)
before, after = strategy.run(checks, args=(each,))
dl.show("each looks at its own", strategy.experimental_local_results(before))
dl.show("each looks at the sum", strategy.experimental_local_results(after))

# %% [markdown]
# The order of a step with replicas is therefore: **scale, gradient, reduce, check, unscale, clip,
# step or skip.** In the exercise you write it. `dl.distribute` keeps that order under Keras's own
# `fit`:

# %%
for replica, place in enumerate((0, 15)):
    with dl.mixed_precision("mixed_float16"):
        model = dl.distribute(build_small, strategy)
    found = step_and_look(model, with_a_bright_one(place))
    dl.show(f"dl.distribute, overflow on replica {replica}", found)

# %% [markdown]
# Both skip, both halve, and both go on. That is the whole of mixed precision with
# `MirroredStrategy`. How far from float32 on one device does it end?

# %%
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)
one_device = build_small()
one_device.fit(data, epochs=2, verbose=0, shuffle=False)
with dl.mixed_precision("mixed_float16"):
    model = dl.distribute(build_small, strategy)
model.fit(data, epochs=2, verbose=0, shuffle=False)
dl.show("its optimizer", type(model.optimizer).__name__)
dl.show("weights apart from one device's by", apart(model, one_device), below=0.01)

# %% [markdown]
# Parity, in 16 bits, holds to 16 bits: each sum is rounded, and two replicas round other sums
# than one. Expect two or three digits, not seven. To find a bug in a loop, compare in float32
# first.
#
# ## What 16 bits save
#
# Four things fill the memory while a model is trained: weights, gradients, the optimizer's state,
# and the outputs of all layers, which the way back needs (activations). **Predict** which of them
# halve.


# %%
def kibibytes(tensors):
    return sum(int(tf.size(t)) * tf.as_dtype(t.dtype).size for t in tensors) / 1024


def memory(policy, batch):
    model = build(policy)
    weights, adam = model.trainable_variables, keras.optimizers.Adam()
    adam.build(weights)
    outputs, last = [], x[:batch]
    with tf.GradientTape() as tape:
        for layer in model.layers:
            last = layer(last)
            outputs.append(last)
        loss = loss_of(y[:batch], last)
    parts = {
        "weights": weights,
        "gradients": tape.gradient(loss, weights),
        "optimizer": adam.variables,
        "activations": outputs[1:9],
    }
    return {name: kibibytes(part) for name, part in parts.items()}


for policy in ("float32", "mixed_float16", "mixed_bfloat16"):
    dl.show(f"{policy}, KiB", memory(policy, batch=256), digits=1)

# %% [markdown]
# **Only the activations halve.** Weights stay in float32, so do their gradients when they reach
# the optimizer, so does Adam's state, twice the weights. While a layer runs there is a 16-bit
# copy of its weights on top.
#
# So the gain depends on the batch. The first three parts are fixed, and whole on *each* replica
# of a `MirroredStrategy`; activations grow with the **per-replica** batch. How large a batch
# fits?

# %%
ROOM = 1024.0  # KiB on one device


def largest_batch(policy):
    *fixed, per_256 = memory(policy, batch=256).values()
    return int((ROOM - sum(fixed)) / (per_256 / 256))


dl.show("largest batch", {p: largest_batch(p) for p in ("float32", "mixed_float16")})

# %% [markdown]
# Twice the batch in the same room, since what is left for activations is the same and each is
# half as large. A model that is all weights gains nothing.
#
# When a GPU runs out, TensorFlow says `ResourceExhaustedError: OOM when allocating tensor`. In
# this order: a smaller per-replica batch (`dl.plan_batch` says what becomes of the learning
# rate); 16 bits; compute activations again instead of keeping them (`keras.RematScope`). More
# replicas help only where the batch is shared among them: a model whose *fixed* parts do not fit
# needs another kind of parallelism (lesson 16).
#
# ## On a GPU: speed and memory
#
# The next cell measures what a CPU cannot show. Without a GPU it says so and does nothing; we had
# none when this lesson was written, so there is no figure of ours here to compare with. On four
# GPUs or more float32 may use TF32, which is fast as well; where `split_devices` shares a GPU it
# is off.


# %%
import time


def on_the_gpu(policy, width=2048, batch=4096, steps=20):
    with dl.mixed_precision(policy):
        layers = [keras.layers.Dense(width, "relu") for _ in range(8)]
        model = keras.Sequential([keras.Input((width,)), *layers])
        model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones((batch, width)),) * 2).repeat(steps)
    model.fit(data, verbose=0)  # once to trace
    tf.config.experimental.reset_memory_stats("GPU:0")
    start = time.perf_counter()
    model.fit(data, verbose=0)
    milliseconds = (time.perf_counter() - start) / steps * 1000
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20
    print(f"{policy}: {milliseconds:.1f} ms a step, at most {peak:.0f} MiB")


# %% tags=["nbval-ignore-output"]
if tf.config.list_physical_devices("GPU"):
    for policy in ("float32", "mixed_float16", "mixed_bfloat16"):
        on_the_gpu(policy)
else:
    print("no GPU here: nothing to measure")

# %% [markdown]
# ## Which one, where
#
# | device | take | because |
# |---|---|---|
# | TPU | `mixed_bfloat16` | its matrix units are made for it; no loss scale needed |
# | GPU since Ampere (A100, H200) | `mixed_bfloat16` | it knows both; this one needs no scale |
# | V100 and T4 | `mixed_float16` | their fast units know float16 only: scale the loss |
# | older GPU | `float32` | no units for 16 bits; measure before you believe otherwise |
# | CPU | `float32` | some new ones have bfloat16 units: measure |
#
# The fast units want whole tiles: layers and batches that are multiples of 8, of 128 on a TPU.
#
# ## Check yourself
#
# <details><summary>1. A gradient of 1e-9 in float16 and in bfloat16?</summary>
# 0 in float16. About 1e-9 in bfloat16, with two or three digits.
# </details>
#
# <details><summary>2. Why does it not help to cast a float16 softmax to float32?</summary>
# A probability below 6e-8 is 0 by then. Its gradient is zero, whatever comes after.
# </details>
#
# <details><summary>3. Your float16 training was fine on one GPU and stands still on sixteen, with
# sixteen times the batch. A first suspect?</summary>
# Each example weighs a sixteenth of what it did: gradients moved four powers of two to the left,
# below float16's line. Look at the share of zeros, and scale the loss.
# </details>
#
# <details><summary>4. Replica 3 of 4 overflows. What must the other three do?</summary>
# Skip the step too, and halve the scale too. They know it only from the reduced gradient.
# </details>
#
# <details><summary>5. Adam, mixed_float16: how many bytes for each weight, without
# activations?</summary>
# Sixteen, as in float32: 4 for the weight, 4 for its gradient, 8 for Adam's two numbers.
# </details>
#
# ## Next steps
#
# - [The exercise](../exercises/07_mixed_precision.ipynb): a head, a loss scale and a loop for
#   four replicas, a memory budget, and a choice.
# - [Lesson 08](08_save_and_load.ipynb): what was trained is kept, and moved.
# - Your own model: give its gradients to `draw_underflow`. Are any left of the line?
# - Micikevicius et al., *Mixed Precision Training* (2018), is where loss scaling and such
#   histograms come from.
