# %% [markdown]
# # Mixed precision: 16 bits, and what becomes of the gradient
#
# Meta trained OPT-175B in float16, on 992 A100 GPUs. The loss diverged several times, and the team
# noticed that the loss scale, which this lesson explains, crashed to 0 with it. Each time they went
# back to an older checkpoint and lowered the learning rate
# ([Zhang et al. 2022](https://arxiv.org/abs/2205.01068), section 2.5). Trials of BLOOM with
# 104 billion weights diverged for good in float16. The team suspected the format, and trained the
# final model in bfloat16 ([Le Scao et al. 2022](https://arxiv.org/abs/2211.05100)).
#
# ## Overview
#
# After this lesson you can
#
# - say what [float16](../docs/glossary.md#float16) and [bfloat16](../docs/glossary.md#bfloat16) do
#   to a gradient, and which of them your device wants,
# - keep in float32 what must stay there: the weights and the last layer,
# - see which gradients float16 loses, and save them with a
#   [loss scale](../docs/glossary.md#loss-scale),
# - train in float16 under `MirroredStrategy` when one replica overflows,
# - count what 16 bits save in memory.
#
# It takes {minutes}. You need lesson 03. You
# need no GPU and no download.
#
# **What your CPU can show.** It rounds a single number to 16 bits exactly as a GPU does. So a
# number that becomes 0 here, or infinite ([overflow](../docs/glossary.md#overflow)), does so on a
# GPU, too. Sums can be rounded differently there. In a step that XLA compiles, as Keras's `fit`
# does by default on a single GPU, some roundings can be left out. The CPU cannot show the speed or
# the memory of a GPU.
#
# <details><summary>Do you remember? Lesson 01: what do all replicas do with their gradients before
# the update?</summary>
# They add them up (the all-reduce), and all take the same step.
# </details>
#
# <details><summary>Do you remember? Lesson 03: a loop takes steps that are four times too long.
# Which optimizer shows it, and which nearly hides it?</summary>
# SGD shows it. Adam divides each gradient by its usual size, so a constant factor cancels.
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %%
import keras
import numpy as np
import tensorflow as tf

from distlab.course.figures.underflow import draw_training, draw_underflow, lost_in_float16
from distlab.course.runs.precision_probes import (
    gradients_by_layer,
    step_with_overflow,
    time_on_gpu,
    train_scaled,
    training_memory,
)

tf.get_logger().setLevel("ERROR")  # no reminders that tf.function is faster
(digits,) = dl.load_dataset("digits", splits=["train[:1024]"], batch_size=1024)
x, y = next(iter(digits))

# %% [markdown]
# ## Two formats of 16 bits
#
# A floating-point number has a sign, an exponent (its size) and a fraction (its digits).
#
# | format | exponent | fraction | largest | smallest above 0 | next after 1 |
# |---|---|---|---|---|---|
# | float32 | 8 bits | 23 bits | 3e38 | 1e-38 | 1.0000001 |
# | float16 | 5 bits | 10 bits | 65504 | 6e-8 | 1.001 |
# | bfloat16 | 8 bits | 7 bits | 3e38 | 1e-38 | 1.008 |
#
# float16 has more digits, and bfloat16 has the range of float32. float16's smallest number above 0
# is 2⁻²⁴, about 6e-8. Anything up to half of it, 2⁻²⁵ (3e-8), is rounded to 0.
#
# In each format, the last numbers before 0 have fewer digits. In float16, these are the numbers
# below 2⁻¹⁴ (6e-5). float32 and bfloat16 have such numbers below 1e-38, but TensorFlow's kernels
# (the code of its operations) replace those by 0, so the table leaves them out.

# %%
FORMATS = (tf.float32, tf.float16, tf.bfloat16)
for number in (70000.0, 1e-8, 1.003):
    kept = {to.name: f"{float(tf.cast(number, to)):.5g}" for to in FORMATS}
    dl.show(f"{number:g}", kept)

# %% [markdown]
# ## A weight and small steps
#
# Training adds many small steps to a weight. In the next cell, each sum is rounded to its format.

# %% tags=["predict"]
weight_guess = dl.predict(
    "A weight is 1. A thousand steps each add 0.005, in bfloat16. Where does the weight end?",
    ["6", "about 6, within 0.1", "2", "1"],
)


# %%
def walk(to, step):
    weight = tf.ones((), to)
    for _ in range(1000):
        weight += tf.cast(step, to)
    return float(weight)


ends = {to.name: walk(to, 0.005) for to in FORMATS}
dl.show("after a thousand steps of 0.005", ends)

# %% tags=["reveal"]
weight_guess.reveal(
    {1.0: "1", 2.0: "2", 6.0: "6"}.get(ends["bfloat16"], "about 6, within 0.1"),
    {
        "6": "This is the exact result, and float32 comes near to it.",
        "about 6, within 0.1": "Rounding errors would have to cancel. But at each place every step "
        "makes the same error.",
        "1": "This would be right for steps below 0.004, half of the way from 1 to 1.008. A step "
        "of 0.005 is above that, and is rounded up.",
        "2": "Up to 2, each step is rounded up to 0.008. Above 2 the next number is 2.016, so a "
        "step of 0.005 is rounded away.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The gap between two neighbouring numbers doubles at each power of two. From 1 to 2, bfloat16 has
# gaps of 0.008. A step of 0.005 is rounded up to a whole gap, so the weight grows too fast. From 2
# on the gaps are 0.016, every step is rounded away, and the weight stands still. float16 has
# smaller gaps. Its steps are rounded to 0.0049, then to 0.0059 from 2 on, and to 0.0039 from 4 on,
# so it ends too low. A smaller step moves neither of them at all:

# %% tags=["after-reveal"]
dl.show("after a thousand steps of 0.0004", {to.name: walk(to, 0.0004) for to in FORMATS})

# %% [markdown]
# So a *mixed* policy keeps the weights in float32 and computes with a 16-bit copy.
# `dl.mixed_precision` sets Keras's policy for a block. A layer reads the policy when it is made, so
# build the model inside.

# %%
with dl.mixed_precision("mixed_float16"):
    layer = keras.layers.Dense(10)
    layer.build((None, 64))

dl.show("computes in", layer.compute_dtype)
dl.show("keeps its weights in", layer.kernel.dtype)

# %% [markdown]
# <details><summary>In plain TensorFlow</summary>
#
# `keras.config.set_dtype_policy("mixed_float16")` sets the policy for all layers made after it.
# `dl.mixed_precision` also puts the old policy back.
# </details>
#
# <details><summary>Sums in 16 bits: true on your CPU, different on a GPU</summary>
#
# A sum needs a wide accumulator, the number that collects the terms. Matrix products have one in
# float32. The gradient of a *bias* in `mixed_bfloat16` has none on a CPU: with a batch of 1024
# equal examples it is 0.25 of the true value, because 256 + 1 is rounded to 256. A GPU adds in
# float32. So do not judge how exact bfloat16 is by large batches on a CPU
# ([more](../docs/pitfalls.md#biases-learn-too-slowly-in-bfloat16)). The bfloat16 run below has a
# batch of 1024. It shows only that small gradients survive.
# </details>
#
# ## The last layer
#
# Many models end in a softmax. The last layers of a model are its *head*: they make a score for
# each class (TensorFlow says *logits*), and the softmax turns the scores into probabilities. Take
# one example whose true class has the score 0, while a wrong class has the score `gap`. The
# gradient should push the true class up by 1 minus its probability, that is, by nearly 1. `push`
# returns what the true class gets: minus the gradient of the loss by its score.

# %%
cross_entropy = keras.losses.SparseCategoricalCrossentropy()


def push(precision, after, gap):
    scores = tf.constant([[gap] + 9 * [0.0]], precision)  # class 0 leads, class 3 is true
    with tf.GradientTape() as tape:
        tape.watch(scores)
        loss = cross_entropy(tf.constant([3]), after(keras.ops.softmax(scores)))
    return -float(tape.gradient(loss, scores)[0, 3])


# %% [markdown]
# Models often do something more with the probabilities: cast them, mask them, or average them. The
# smallest such operation is a product with 1.0.

# %% tags=["predict"]
head_guess = dl.predict(
    "The softmax is computed in float32, then multiplied by 1.0. By how much is the true class "
    "pushed up at a gap of 20?",
    ["by nearly 1", "by much less than 1, but not by 0", "by 0"],
)

# %%
GAPS = (5.0, 15.0, 20.0)
HEADS = {
    "float16, then cast": ("float16", lambda p: tf.cast(p, "float32")),
    "bfloat16, then cast": ("bfloat16", lambda p: tf.cast(p, "float32")),
    "float32, times 1.0": ("float32", lambda p: p * 1.0),
    "float32, unchanged": ("float32", lambda p: p),
}
pushes = {name: [push(*head, gap) for gap in GAPS] for name, head in HEADS.items()}

# %% tags=["reveal"]
at_20 = pushes["float32, times 1.0"][-1]
head_guess.reveal(
    "by 0"
    if at_20 == 0
    else "by nearly 1"
    if at_20 > 0.99
    else "by much less than 1, but not by 0",
    {
        "by 0": "After the product Keras no longer finds the scores. It cuts the probability "
        "off at 1e-7, and a constant has no gradient.",
        "by nearly 1": "The factor 1.0 changes no number. But Keras finds the scores behind a "
        "softmax only if nothing is done to its output.",
        "by much less than 1, but not by 0": "Rounding would make the push a little smaller. But "
        "nothing is rounded here: Keras cuts the probability off, and then no push is left.",
    },
)

# %% tags=["after-reveal"]
for name, by_gap in pushes.items():
    dl.show(f"softmax in {name}, pushed by", by_gap, digits=2)

# %% [markdown] tags=["after-reveal"]
# Two things go wrong here, and only one of them is float16's:
#
# - **At a gap of 20, in every precision, if something follows the softmax.** Keras computes the
#   loss from the scores, if it finds them on the softmax's output. After a cast or a product it
#   does not. Then it cuts each probability off at 1e-7, and the gradient of a constant is zero. The
#   example that the model gets most wrong teaches it nothing.
# - **At a gap of 15, in float16 only.** The probability *p* is 3e-7. The gradient of log *p* is
#   1/*p*, about 3e6, and float16 ends at 65504. So 1/*p* becomes infinite, and the gradient of the
#   scores is not a number (NaN). The same happens for every *p* from 1.5e-5 down to 1e-7, that is,
#   for gaps from about 11 to 16. (This range is for one example and no loss scale. A mean over a
#   batch makes the gradient smaller and a loss scale makes it larger, so they move the upper end of
#   the range of *p*.)
#
# So let the model return scores in float32, and give the loss `from_logits=True`. A last
# `Activation("softmax", dtype="float32")` with nothing after it works, too.
#
# ## Small gradients
#
# Now the layers below. This model has eight layers of sigmoids, which make gradients small. Other
# causes are a mean over many pixels, a loss with a small weight, or a model that is nearly right.


# %%
def build(policy):
    dl.set_seed(1)
    with dl.mixed_precision(policy):
        body = [keras.layers.Dense(32, "sigmoid") for _ in range(8)]
        scores = [keras.layers.Dense(10), keras.layers.Activation("linear", dtype="float32")]
        return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), *body, *scores])


loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


# %% [markdown]
# `train_scaled` is the loop of lesson 03 on one device, for 80 steps of Adam, with two changes. For
# now the scale is 1.
#
# ```diff
#   with tf.GradientTape() as tape:
#       loss = loss_of(y, model(x))
# +     scaled = loss * scale
# - gradients = tape.gradient(loss, weights)
# + gradients = [g / scale for g in tape.gradient(scaled, weights)]
# ```

# %% tags=["predict"]
unscaled_guess = dl.predict(
    "float16 without a scale, 80 steps: where does the loss go, compared with float32?",
    ["down, as in float32", "down, but more slowly", "it stays near guessing", "it becomes NaN"],
)

# %%
runs = {
    "float32": train_scaled(build("float32"), x, y),
    "float16": train_scaled(build("mixed_float16"), x, y),
    "bfloat16": train_scaled(build("mixed_bfloat16"), x, y),
}
GUESSING = np.log(10)
ends = {name: run.losses[-1] for name, run in runs.items()}
dl.show("loss at the end", ends, digits=1)
dl.show("loss of a guess", GUESSING, digits=1)

# %% tags=["reveal"]
unscaled_guess.reveal(
    "it becomes NaN"
    if np.isnan(ends["float16"])
    else "it stays near guessing"
    if ends["float16"] > GUESSING - 0.05
    else "down, but more slowly"
    if ends["float16"] > ends["float32"] + 0.05
    else "down, as in float32",
    {
        "down, as in float32": "This is true of bfloat16, which has fewer digits than float16. It "
        "is not the digits that are missing.",
        "down, but more slowly": "The upper layers do get gradients. But without the lowest layers "
        "they learn nothing in 80 steps, as you will see.",
        "it becomes NaN": "That needs a number that is too large. Here numbers are too small, and "
        "become 0 without a sign of it.",
        "it stays near guessing": "The gradients of layer 1, and most of layer 2's, are below "
        "3e-8, and float16 rounds them to 0.",
    },
)

# %% tags=["numbers-within-0.1", "after-reveal"]
for name, run in runs.items():
    dl.show(f"largest change of a weight, layers 1 to 9, {name:8}", run.moved, digits=1)
dl.show("layer 1 in float16 did not move at all", bool(runs["float16"].moved[0] == 0))

# %% [markdown] tags=["after-reveal"]
# In float16, layers 1 and 2 moved by less than 0.05, so both print as 0. Layer 1 did not move at
# all, because all of its gradients became 0. (Layer 9 makes the scores.) Here is what the layers
# should have got:

# %% tags=["after-reveal"]
true_gradients = gradients_by_layer(build("float32"), x, y)
draw_underflow(true_gradients)

# %% [markdown]
# Each row is the gradient of the loss by one layer's *outputs*, computed in float32. It reaches the
# layer in the [backward pass](../docs/glossary.md#backward-pass), which goes from layer 8 to layer
# 1, and shrinks by about two powers of two a layer. Left of the first line, at 2⁻²⁵, float16
# rounds to 0 ([underflow](../docs/glossary.md#underflow)). Left of the dotted line it has fewer
# digits. So layer 1 gets zeros and never learns. No error is raised. bfloat16 has the exponents of
# float32 and keeps all of these numbers.

# %% [markdown]
# ### A larger batch makes it worse
#
# Eight layers of sigmoids were chosen to make it visible. A transformer has no such chain, so is it
# safe? Here is the one of lesson 03, with four blocks, on 512 tokens:

# %%
from distlab.course.runs.precision_probes import gradients_by_block
from distlab.course.tiny_transformer import build_transformer, text_windows

dl.set_seed(1)
transformer = build_transformer(width=32, layers=4)
tokens, following = next(iter(text_windows(64).batch(8)))
of_blocks = gradients_by_block(transformer, tokens, following)
lost = lost_in_float16(of_blocks["block 1"]).zero
dl.show("of 512 tokens, block 1 would lose less than 1 %", lost < 0.01)

# %% tags=["predict"]
batch_guess = dl.predict(
    "Llama 3 was trained on batches of 4 million tokens and more. How much of such a gradient "
    "would float16 round to 0, without a scale?",
    ["as little: less than 1 %", "about a tenth", "more than half"],
)

# %%
lost = lost_in_float16(of_blocks["block 1"], scale=512 / 4_000_000).zero

# %% tags=["reveal"]
shares = {"as little: less than 1 %": 0.01, "about a tenth": 0.3, "more than half": 1.0}
batch_guess.reveal(
    next(choice for choice, share in shares.items() if lost <= share),
    {
        "as little: less than 1 %": "That would be so if a larger batch only added examples. The "
        "loss is a mean, so each token's part of it shrinks as their number grows.",
        "about a tenth": "A batch of 500,000 tokens would lose that much. With 4 million, the "
        "typical number itself is below 3e-8.",
        "more than half": "Each token weighs one over the number of tokens, so with 8,000 times as "
        "many tokens the whole gradient moves 13 powers of two towards 0.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Nothing in the model has changed, and no layer is to blame: it's the mean over the batch. (The
# cell shrinks the gradient as a larger batch would. The gradient of a *weight* doesn't shrink,
# because it sums over all tokens.) More replicas bring larger batches, so a loop without a loss
# scale can learn in float16 on one GPU, and stand still on sixteen. (This holds if you divide by
# the global batch before the backward pass, as in TensorFlow. PyTorch's DDP divides the finished
# gradients of the weights.) [Llama 3](https://arxiv.org/abs/2407.21783) was trained in bfloat16.

# %% [markdown]
# ## Scale the loss
#
# There is room on the right of the picture. Multiply the loss by 2¹⁵. By the chain rule every
# gradient is multiplied too, and the histogram slides to the right by 15 powers of two.

# %%
draw_underflow(true_gradients, scales=(1, 2**15, 2**30))

# %% [markdown]
# In the middle, nearly all numbers are kept. On the right, numbers of layers 7 and 8 overflow: 2³⁰
# is too large a scale. (Each row is rounded by itself. In a backward pass, the layers below would
# get infinite numbers or NaN from them.)
#
# With a scale of 2¹⁵ the gradients are 32768 times too large. So divide them by the scale, in
# float32, before anything else uses them: `train_scaled` does both. Adam would nearly hide a
# missing division, and SGD would take steps that are 32768 times too long. And log the loss that
# you did *not* scale.

# %%
runs["float16, loss scaled"] = train_scaled(build("mixed_float16"), x, y, scale=2.0**15)
names = ("float32", "float16", "float16, loss scaled", "bfloat16")
losses = {name: runs[name].losses for name in names}
draw_training(losses, every_steps=10, level=("guessing", GUESSING))

# %% [markdown]
# With a scale, and in bfloat16 without one, the curve follows that of float32. float16 without a
# scale never does better than guessing, although the layers above the second got gradients and
# moved. Is layer 1 alone the cause? Freeze the lowest layers in float32, where nothing underflows,
# and train for 240 steps:

# %%
for layers in (1, 3):
    frozen = build("float32")
    for layer in frozen.layers[1 : 1 + layers]:  # layer 0 flattens the image
        layer.trainable = False
    losses = train_scaled(frozen, x, y, steps=240).losses  # one loss for ten steps
    after = {"after 80 steps": losses[7], "after 240 steps": losses[-1]}
    dl.show(f"float32, lowest {layers} frozen, loss", after, digits=1)

# %% [markdown]
# For these 80 steps, yes: with layer 1 frozen, float32 stays at guessing for as long. But a frozen
# layer 1 only delays the learning. After 240 steps, the layers above it have brought the loss to
# 1.6. With layers 1 to 3 frozen, 240 steps are not enough. Why do the upper layers need the lower
# ones? At the start, the outputs of layer 8 differ by only 4 millionths from digit to digit
# (distlab's tests measure this). So the scores can hardly depend on the digit until lower layers
# have changed. And float16 loses more than layer 1: as the first histograms show, it loses all
# gradients of layer 1, two thirds of layer 2's, and a fifth of layer 3's.
#
# ## A scale that adapts
#
# A scale that is too small loses gradients silently. One that is too large overflows, and you can
# *see* that: a gradient is infinite or NaN. `keras.optimizers.LossScaleOptimizer` uses this. Its
# `scale_loss` multiplies the loss by the scale, and its `apply` divides the gradients by it. If a
# gradient is not finite, `apply` skips the step and halves the scale.

# %% tags=["predict"]
scale_guess = dl.predict(
    "The scale starts far too high, at 2 to the power of 24, with `dynamic_growth_steps=3`. What "
    "does it do in 30 steps?",
    ["falls, then stays", "falls, then goes up and down", "falls until the end"],
)

# %%
model = build("mixed_float16")
weights = model.trainable_variables
optimizer = keras.optimizers.LossScaleOptimizer(
    keras.optimizers.SGD(0.1), initial_scale=2.0**24, dynamic_growth_steps=3
)
optimizer.build(weights)
scales = []
for _ in range(30):
    scales.append(int(np.log2(optimizer.dynamic_scale.numpy())))
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(loss_of(y, model(x)))
    optimizer.apply(tape.gradient(loss, weights), weights)

# %% tags=["reveal"]
lowest = scales.index(min(scales))
scale_guess.reveal(
    "falls until the end"
    if lowest == len(scales) - 1
    else "falls, then stays"
    if len(set(scales[lowest:])) == 1
    else "falls, then goes up and down",
    {
        "falls, then goes up and down": "Each overflow halves the scale, and every 3 good "
        "steps in a row double it.",
        "falls, then stays": "With Keras's default, `dynamic_growth_steps=2000`, you would see "
        "this in 30 steps. Here the optimizer doubles the scale after 3 good steps in a row.",
        "falls until the end": "Only a step that overflows halves the scale. Once all gradients "
        "are finite, it stops falling.",
    },
)

# %% tags=["numbers-within-2", "after-reveal"]
dl.show("the scale, as a power of two", scales)

# %% [markdown] tags=["after-reveal"]
# Why do 2²⁴ to 2²⁰ overflow, when the histograms leave room for 2²⁶? They show gradients of
# outputs. The gradients of the last layer's weights are sums over 1024 examples, up to 2⁻³, so they
# overflow first.
#
# After some good steps in a row the optimizer doubles the scale: here 3, by `dynamic_growth_steps`,
# and 2000 by default. Each fall is a lost step. Once the scale has settled, a doubling costs at
# most one lost step. By default it comes after 2000 good steps, so you lose at most about one step
# in 2000. If step after step overflows, the scale is halved each time, towards 0. A loss scale that
# crashes to 0, as OPT-175B's did, suggests such a series.
#
# Under `mixed_float16`, `compile` wraps your optimizer in this one (`auto_scale_loss=True` is the
# default). Clipping must come after the division by the scale: write `clipnorm` into the inner
# optimizer ([why](../docs/pitfalls.md#float16-with-clipping-stands-still)).
#
# **This is the end of the first part.** What you know now holds on one device.
#
# ## One replica overflows
#
# Each replica has its own examples, so one may overflow where the others do not.
# `step_with_overflow` gives two replicas 16 images, one of them 1000 times too bright. It takes
# one step of `fit` and looks at both copies of the weights.

# %%
strategy = dl.make_strategy("mirrored", devices=2)


def build_small():
    dl.set_seed(1)
    scores = keras.layers.Dense(10, kernel_initializer="zeros")
    as_float32 = keras.layers.Activation("linear", dtype="float32")
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), scores, as_float32]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), loss=loss_of)
    return model


# %% tags=["predict"]
replica_guess = dl.predict(
    "The bright image is on replica 1. What does one step of Keras's `fit` do to the weights?",
    [
        "nothing: both replicas skip the step",
        "replica 0 takes the step, replica 1 skips it",
        "both copies are infinite or NaN",
    ],
)

# %%
found = {}
for replica in (1, 0):
    with dl.mixed_precision("mixed_float16"), strategy.scope():
        model = build_small()
    found[replica] = step_with_overflow(model, strategy, x, y, on_replica=replica)
    dl.show(f"Keras's fit, overflow on replica {replica}", found[replica])

# %% tags=["reveal"]
finite = found[1]["copies finite"]
replica_guess.reveal(
    "both copies are infinite or NaN"
    if not any(finite)
    else "nothing: both replicas skip the step"
    if all(finite)
    else "replica 0 takes the step, replica 1 skips it",
    {
        "nothing: both replicas skip the step": "This is what a loss scale is for, and what "
        "happens if the bright image is on replica 0. But Keras looks at one replica only.",
        "replica 0 takes the step, replica 1 skips it": "Then the copies would drift apart. Keras "
        "decides once for all replicas.",
        "both copies are infinite or NaN": "Keras checks the gradient of replica 0, finds it "
        "finite, and lets all replicas add the infinite sum.",
    },
)

# %% [markdown] tags=["after-reveal"]
# With the overflow on replica 0, the step was skipped and the scale halved. An overflow on replica
# 1 destroyed **both** copies, and the scale is as high as before. Keras's optimizer checks replica
# 0's gradient and applies the answer to all. [A comment in its
# source](https://github.com/keras-team/keras/blob/v3.15.1/keras/src/optimizers/loss_scale_optimizer.py)
# (Keras 3.15) gives the reason: the gradients are all-reduced, so they are equal. But the inner
# optimizer reduces them only afterwards.
#
# The cure is the order: **reduce, then check.** Infinity plus anything is not finite. Here is a
# gradient with an infinite number on replica 1. `experimental_distribute_values_from_function`
# gives each replica its own tensor. Each replica checks its own gradient, and then the sum:


# %% tags=["after-reveal"]
def check(gradient):
    total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
    return [tf.reduce_all(tf.math.is_finite(each)) for each in (gradient, total)]


gradients = ([1.0, 2.0], [np.inf, 4.0])
on_replicas = strategy.experimental_distribute_values_from_function(
    lambda context: tf.constant(gradients[context.replica_id_in_sync_group])
)
own, reduced = strategy.run(check, args=(on_replicas,))
dl.show("own gradient finite, on replicas 0 and 1", strategy.experimental_local_results(own))
dl.show("sum finite, on replicas 0 and 1", strategy.experimental_local_results(reduced))

# %% [markdown] tags=["after-reveal"]
# Before the reduction, the replicas disagree. After it, both see the overflow. The whole order is:
# scale, gradient, reduce, check, unscale, clip, step or skip. You write it in the exercise.
# `dl.distribute` keeps this order under Keras's own `fit`: it reduces the gradients first, and the
# optimizer on each replica then does with them what it does on one device. Without distlab, use
# `mixed_bfloat16`, or a loop of your own as in the exercise.

# %%
for replica in (0, 1):
    with dl.mixed_precision("mixed_float16"):
        model = dl.distribute(build_small, strategy)
    after = step_with_overflow(model, strategy, x, y, on_replica=replica)
    dl.show(f"dl.distribute, overflow on replica {replica}", after)

# %% [markdown]
# <details><summary>On several GPUs, with <code>jit_compile=True</code></summary>
#
# `merge_call` is the call in which all replicas meet (lesson 01). If XLA, TensorFlow's compiler,
# compiles the step and all devices are GPUs, `MirroredStrategy` does without it. Keras's
# `LossScaleOptimizer` then lets each replica decide by its own gradient. If one replica overflows,
# it skips the step, and the others enter a branch with the all-reduce, which needs every replica.
# We have read this in the source, and have not run it on several GPUs: the others may wait without
# end, or the copies may differ
# ([more](../docs/pitfalls.md#a-hang-with-jit_compile-float16-and-several-gpus)).
# </details>
#
# ## What 16 bits save
#
# Four parts fill the memory while a model trains: weights, gradients, Adam's state and activations.
# Activations are the outputs of the layers, which the backward pass needs.

# %% tags=["predict"]
memory_guess = dl.predict(
    "Which of them take half the memory in mixed_float16?",
    ["all four", "all but the weights", "gradients and activations", "the activations"],
)

# %%
policies = ("float32", "mixed_float16", "mixed_bfloat16")
memory = {policy: training_memory(build(policy), x[:256], y[:256]) for policy in policies}

# %% tags=["reveal"]
full, mixed = memory["float32"], memory["mixed_float16"]
halved = tuple(part for part in full if 0 < mixed[part] < 0.6 * full[part])
memory_guess.reveal(
    {
        ("weights", "gradients", "Adam", "activations"): "all four",
        ("gradients", "Adam", "activations"): "all but the weights",
        ("gradients", "activations"): "gradients and activations",
        ("activations",): "the activations",
    }[halved],
    {
        "the activations": "Of these four parts, only the outputs of the layers are kept in "
        "16 bits.",
        "all four": "This holds if you train in 16 bits throughout. A mixed policy keeps float32 "
        "wherever small steps are added up.",
        "all but the weights": "Adam's state is added up over many steps, as weights are, and "
        "stays in float32.",
        "gradients and activations": "In the backward pass gradients have 16 bits. But a weight's "
        "gradient is cast to float32 when it leaves the tape.",
    },
)

# %% tags=["after-reveal"]
for policy, parts in memory.items():
    dl.show(f"{policy}, KiB", parts, digits=1)

# %% [markdown] tags=["after-reveal"]
# Only the activations halve. (The cell counts the bytes of the tensors. It does not measure what a
# device allocates.) The 16-bit copies of the weights are one more part, the fifth: the backward
# pass needs them, so they live from the forward pass on. With Adam a weight takes 16 bytes, and up
# to 18 with its copy. Every replica of a `MirroredStrategy` holds all of these. Activations grow
# with the **per-replica** batch, so the gain depends on the batch. If the weights need far more
# memory than the activations, mixed precision can need more memory than float32. The pitfalls page
# says [what to try when memory runs out](../docs/pitfalls.md#out-of-memory).
#
# If you have a GPU, the next cell measures there how long a step takes and how much memory it
# needs, for a model of its own: eight `Dense` layers of 2048 units, with 4096 examples in a step.
# On NVIDIA GPUs since Ampere (2020), TensorFlow's float32 uses TF32 in matrix products by default.
# TF32 is faster, because it rounds the factors to 10 bits of fraction. `time_on_gpu` measures with
# this default, because you would run it without mixed precision. (`dl.split_devices` switches TF32
# off if replicas share a GPU, so that you can compare results.) This lesson was written on a CPU,
# so there are no figures of ours to compare with.

# %% tags=["nbval-ignore-output"]
for policy in policies:
    print(time_on_gpu(policy))

# %% [markdown]
# ## Which one, where
#
# Tensor cores and matrix units are the parts of a device that multiply matrices fast in 16 bits.
# How much faster? By NVIDIA's [data
# sheet](https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf),
# an A100 multiplies matrices at 312 TFLOPS in 16 bits, at 156 in TF32 and at 19.5 in plain float32.
# A whole model gains less. A TPU [multiplies in
# bfloat16](https://cloud.google.com/tpu/docs/bfloat16) even under `float32`, so there a 16-bit
# policy mostly saves memory and the time to move it.
#
# | device | take | because |
# |---|---|---|
# | TPU | `mixed_bfloat16` | its matrix units are made for it; no loss scale needed |
# | GPU since Ampere, 2020 (A100, H200) | `mixed_bfloat16` | as fast as float16, needs no scale |
# | Volta or Turing GPU with tensor cores (V100, T4) | `mixed_float16` | these know no bfloat16 |
# | GPU without tensor cores | `float32` | measure before you change it |
# | CPU | `float32` | some new ones have bfloat16 units: measure |
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch: `torch.autocast("cuda", dtype=torch.float16)` around the forward pass, and
# `torch.amp.GradScaler`, with `scaler.unscale_(optimizer)` before you clip. DDP all-reduces during
# the backward pass, so the scaler checks gradients that are already reduced. JAX: you cast by hand
# or with a library such as `jmp`, whose `DynamicLossScale` works as in this lesson. Reduce before
# you check there, too.
# </details>
#
# ## Check yourself
#
# <details><summary>1. A gradient of 1e-9 in float16 and in bfloat16?</summary>
# 0 in float16. About 1e-9 in bfloat16, with two or three digits.
# </details>
#
# <details><summary>2. You cast a softmax to float32 and train with Keras's loss. What is lost, and
# in which precision?</summary>
# Probabilities below 1e-7 are cut off and have no gradient, in any precision: the loss no longer
# finds the scores. In float16, the gradient for a single example is NaN already between 1e-7 and
# about 1.5e-5, because 1/*p* is above 65504 there.
# </details>
#
# <details><summary>3. Your float16 loop without a loss scale was fine on one GPU and stands still
# on sixteen, with sixteen times the batch. What do you suspect first?</summary>
# Each example weighs a sixteenth of what it did. The gradients of the layers' outputs moved four
# powers of two to the left, below float16's line. Look at the share of zeros, and scale the loss.
# </details>
#
# <details><summary>4. Replica 3 of 4 overflows. What must the other three do?</summary>
# Skip the step and halve the scale, too. They see it only in the reduced gradient.
# </details>
#
# <details><summary>5. Adam, mixed_float16: how many bytes for each weight, without
# activations?</summary>
# 16, as in float32: 4 for the weight, 4 for its gradient, 8 for Adam's two numbers. With the 16-bit
# copy it is up to 18.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/07_mixed_precision.ipynb): a head, a loss scale and a loop for
#   four replicas, a memory budget, and a choice.
# - [Lesson 08](08_save_and_load.ipynb): keep what was trained, and move it.
# - Your own model, if it is `Sequential` and returns scores: pass `gradients_by_layer(model, x, y)`
#   to `draw_underflow`. Build it in float32. Are any left of the line?
# - [Pitfalls](../docs/pitfalls.md), [glossary](../docs/glossary.md).
# - Micikevicius et al., [Mixed Precision Training](https://arxiv.org/abs/1710.03740) (2018), is
#   where loss scaling and these histograms come from. It is older than bfloat16 on GPUs.
# - TensorFlow's guide to
#   [mixed precision](https://www.tensorflow.org/guide/mixed_precision) uses names of Keras 2:
#   `get_scaled_loss` is `scale_loss` today.
