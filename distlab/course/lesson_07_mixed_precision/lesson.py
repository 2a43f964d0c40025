# %% [markdown]
# # Mixed precision: 16 bits, and what becomes of the gradient
#
# Meta trained OPT-175B in float16 on 992 A100 GPUs, and several times the loss diverged. The team
# noticed that a number called the loss scale crashed to 0 with it. Each time they went back to an
# older checkpoint and lowered the learning rate ([Zhang et al.
# 2022](https://arxiv.org/abs/2205.01068), section 2.5). Trials of BLOOM with 104 billion weights
# diverged in float16 for good, so its team suspected the format and trained the final model in
# bfloat16 ([Le Scao et al. 2022](https://arxiv.org/abs/2211.05100)).
#
# Which gradients does a format of 16 bits lose, and how do you keep them? After this lesson you can
#
# - say what [float16](../docs/glossary.md#float16) and [bfloat16](../docs/glossary.md#bfloat16) do
#   to a gradient, and which of them your device wants,
# - keep in float32 what must stay there: the weights and the last layer,
# - see which gradients float16 loses, and save them with a
#   [loss scale](../docs/glossary.md#loss-scale),
# - train in float16 under `MirroredStrategy` when one replica overflows,
# - say what 16 bits save in memory, and what they don't.
#
# Allow {minutes}, and the longer time if you open every fold. You need lesson
# [03](03_custom_training_loop.ipynb), but no GPU and no download. Your CPU rounds a single number
# to 16 bits exactly as a GPU does, so what becomes 0 or infinite here does so there, too. Only the
# speed of a GPU, and its memory, are things that a CPU can't show.
#
# <details><summary>Do you remember? Lesson 01: what do all replicas do with their gradients before
# the update?</summary>
#
# They sum them in an all-reduce, and then all replicas take the same step.
#
# </details>
#
# <details><summary>Do you remember? Lesson 03: a loop takes steps that are four times too long.
# Which optimizer shows it, and which nearly hides it?</summary>
#
# SGD shows it. Adam divides each gradient by its usual size, so a constant factor cancels.
#
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)

# %%
import keras
import numpy as np
import tensorflow as tf

from distlab.course.figures.underflow import draw_training, draw_underflow, lost_in_float16
from distlab.course.runs.precision_probes import (
    build_small,
    gradients_by_block,
    gradients_by_layer,
    push,
    step_with_overflow,
    time_on_gpu,
    train_scaled,
    training_memory,
)
from distlab.course.runs.replicas import give_each
from distlab.course.tiny_transformer import build_transformer, text_windows

tf.get_logger().setLevel("ERROR")  # no reminders that tf.function is faster
(digits,) = dl.load_dataset("digits", splits=["train[:1024]"], batch_size=1024)
x, y = next(iter(digits))

# %% [markdown]
# ## Two formats of 16 bits
#
# A floating-point number spends its bits on a sign, on an exponent (its size) and on a fraction
# (its digits). The two formats of 16 bits divide theirs differently:
#
# | format | exponent | fraction | largest | smallest above 0 | next after 1 |
# |---|---|---|---|---|---|
# | float32 | 8 bits | 23 bits | 3e38 | 1e-38 | 1.0000001 |
# | float16 | 5 bits | 10 bits | 65504 | 6e-8 | 1.001 |
# | bfloat16 | 8 bits | 7 bits | 3e38 | 1e-38 | 1.008 |
#
# So float16 has more digits, and bfloat16 has the range of float32. Three numbers show what each
# format loses:

# %%
FORMATS = (tf.float32, tf.float16, tf.bfloat16)
for number in (70000.0, 1e-8, 1.003):
    kept = {to.name: f"{float(tf.cast(number, to)):.5g}" for to in FORMATS}
    dl.show(f"{number:g}", kept)

# %% [markdown]
# float16 turns the large number into infinity and the small one into 0, because it rounds anything
# up to 3e-8 to 0. bfloat16 keeps both, roughly, and loses the third number's last digits.
#
# > **Takeaway.** float16 runs out of range, and bfloat16 runs out of digits.
#
# <details><summary>Fine print</summary>
#
# Half of float16's smallest number above 0 is $2^{-25}$, or 3e-8. In each format, the last numbers
# before 0 have fewer digits, which in float16 are those below 6e-5. TensorFlow's kernels (the code
# of its operations) replace such numbers of float32 and bfloat16, below 1e-38, by 0. On a GPU, sums
# can be rounded differently, and a step that XLA compiles, as `fit` does by default on a single
# GPU, can leave out some roundings.
#
# </details>
#
# ## A weight and small steps
#
# Training adds many small steps to a weight, and in the next cell each sum is rounded to the
# weight's format.

# %% tags=["predict"]
weight_guess = dl.predict(
    "A weight is 1, and a thousand steps each add 0.0004. Where does the weight end in 16 bits?",
    ["near 1.4 in both formats", "near 1.4 in float16, at 1 in bfloat16", "at 1 in both formats"],
)


# %%
def walk(to, step):
    weight = tf.ones((), to)
    for _ in range(1000):
        weight += tf.cast(step, to)
    return float(weight)


ends = {to.name: walk(to, 0.0004) for to in FORMATS}
dl.show("after a thousand steps of 0.0004", ends)

# %% tags=["reveal"]
weight_guess.reveal(
    "near 1.4 in both formats"
    if ends["bfloat16"] > 1
    else "near 1.4 in float16, at 1 in bfloat16"
    if ends["float16"] > 1
    else "at 1 in both formats",
    {
        "near 1.4 in both formats": "That would be so if rounding errors cancelled. Here every sum "
        "is rounded in the same direction, back to 1.",
        "near 1.4 in float16, at 1 in bfloat16": "It needs steps of at least half the gap from 1 "
        "to the next number. float16 has more digits, but half of its gap is still 0.0005.",
        "at 1 in both formats": "Each step is less than half the gap from 1 to the next number, so "
        "a thousand sums are all rounded back to 1.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Larger steps only postpone the end, because the gap between two neighbouring numbers doubles at
# each power of two. In bfloat16, steps of 0.005 carry a weight to 2, and there it stands still:

# %% tags=["after-reveal"]
dl.show("after a thousand steps of 0.005", {to.name: walk(to, 0.005) for to in FORMATS})

# %% [markdown] tags=["after-reveal"]
# That's why a *mixed* policy keeps the weights in float32 and computes with a 16-bit copy of them.
# `dl.mixed_precision` sets Keras's policy for a block. A layer reads the policy when it's made, so
# build the model inside:

# %%
with dl.mixed_precision("mixed_float16"):
    layer = keras.layers.Dense(10)
    layer.build((None, 64))

dl.show("computes in", layer.compute_dtype)
dl.show("keeps its weights in", layer.kernel.dtype)

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** Keep the weights in float32, because 16 bits round small steps away. A mixed
# > policy does that for you.
#
# <details><summary>Fine print</summary>
#
# In plain TensorFlow, `keras.config.set_dtype_policy("mixed_float16")` sets the policy for all
# layers made after it, and `dl.mixed_precision` also puts the old policy back. Don't judge how
# exact bfloat16 is by large batches on a CPU, because there the gradient of a *bias* is summed in
# bfloat16, and with 1024 equal examples it's a [quarter of the true
# value](../docs/pitfalls.md#biases-learn-too-slowly-in-bfloat16). A GPU sums it in float32.
#
# </details>

# %% [markdown]
# ## The last layer
#
# The last layers of a model are its *head*: they make a score for each class (TensorFlow says
# *logits*), and a softmax turns the scores into probabilities. Take an example whose true class has
# the score 0, while a wrong class leads with the score `gap`. The gradient should push the true
# class up by 1 minus its probability, which is nearly 1, because the model is so wrong. `push`
# returns what the true class really gets.
#
# Models often do something more with the probabilities, such as casting, masking or averaging them.
# The smallest such operation is a product with 1.0.

# %% tags=["predict"]
head_guess = dl.predict(
    "The softmax is computed in float32, then multiplied by 1.0. By how much is the true class "
    "pushed up at a gap of 20?",
    ["by nearly 1", "by much less than 1, but not by 0", "by 0"],
)

# %%
HEADS = {
    "float16, then cast": ("float16", lambda p: tf.cast(p, "float32")),
    "bfloat16, then cast": ("bfloat16", lambda p: tf.cast(p, "float32")),
    "float32, times 1.0": ("float32", lambda p: p * 1.0),
    "float32, unchanged": ("float32", lambda p: p),
}
pushes = {name: [push(*head, gap) for gap in (5, 15, 20)] for name, head in HEADS.items()}

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
        "by nearly 1": "It would be so if Keras found the scores, since the factor 1.0 changes no "
        "number. But it finds them only if nothing is done to the softmax's output.",
        "by much less than 1, but not by 0": "That would be rounding, which makes a push a little "
        "smaller. Nothing is rounded here: Keras cuts the probability off, and no push is left.",
    },
)

# %% tags=["after-reveal"]
for name, by_gap in pushes.items():
    dl.show(f"softmax in {name}, pushed by", by_gap, digits=2)

# %% [markdown] tags=["after-reveal"]
# Each row has gaps of 5, 15 and 20, and two things go wrong, of which only the second is float16's
# fault. **Anything that follows the softmax hides the scores.** Keras computes the loss from the
# scores if it finds them on the softmax's output, and after a cast or a product it doesn't. Then it
# cuts each probability off at 1e-7, in every precision, and the example that the model gets most
# wrong teaches it nothing.
#
# **float16 can't hold 1/*p*.** At a gap of 15 the probability *p* of the true class is 3e-7, and
# the gradient of log *p* is 1/*p*. That's far above 65504, so it becomes infinite, and the gradient
# of the scores is not a number (NaN).
#
# > **Takeaway.** Let the model return scores in float32, and give the loss `from_logits=True`.
#
# <details><summary>Fine print</summary>
#
# A last `Activation("softmax", dtype="float32")` with nothing after it works, too. For a single
# example and no loss scale, the gradient is NaN for every *p* from 1.5e-5 down to 1e-7, so for gaps
# from about 11 to 16. A mean over a batch makes the gradient smaller and a loss scale makes it
# larger, so they move the upper end of that range.
#
# </details>

# %% [markdown]
# ## Small gradients
#
# What happens in the layers below the head? This model has eight layers of sigmoids, which make
# gradients small. A mean over many pixels does that as well, and so does a loss with a small
# weight, or a model that's nearly right.


# %%
def build(policy):
    dl.set_seed(1)
    with dl.mixed_precision(policy):
        body = [keras.layers.Dense(32, "sigmoid") for _ in range(8)]
        scores = [keras.layers.Dense(10), keras.layers.Activation("linear", dtype="float32")]
        return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), *body, *scores])


# %% [markdown]
# `train_scaled` is the loop of lesson 03 on one device, for 80 steps of Adam, with two changes that
# do nothing as long as the scale is 1:
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
        "down, as in float32": "It would be so if only digits were lost, and it's true of "
        "bfloat16, which has even fewer of them. float16 lacks range.",
        "down, but more slowly": "That needs upper layers that can do without the lower ones. They "
        "do get gradients and move, but they build on layers that stay as they were, and in 80 "
        "steps that leads nowhere.",
        "it becomes NaN": "That needs a number that is too large. Here numbers are too small, and "
        "become 0 without a sign of it.",
        "it stays near guessing": "The gradients of layer 1, and most of layer 2's, are below "
        "3e-8, and float16 rounds them to 0.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Here is what the layers should have got. Each row is the gradient of the loss by one layer's
# *outputs*, computed in float32:

# %% tags=["after-reveal"]
dl.show("layer 1 in float16 did not move at all", bool(runs["float16"].moved[0] == 0))
true_gradients = gradients_by_layer(build("float32"), x, y)
draw_underflow(true_gradients)

# %% [markdown] tags=["after-reveal"]
# In the [backward pass](../docs/glossary.md#backward-pass) the gradient travels from layer 8 down
# to layer 1, and shrinks by about two powers of two a layer. Left of the first line, at $2^{-25}$,
# float16 rounds to 0, which is called [underflow](../docs/glossary.md#underflow). Layer 1 lies
# there as a whole, so it gets zeros and never learns. bfloat16 has the exponents of float32 and
# keeps all of these numbers.
#
# > **Takeaway.** float16 rounds gradients below 3e-8 to 0, and no error is raised. The lowest
# > layers lose theirs first.

# %% [markdown]
# ## Is a transformer safe?
#
# We chose eight layers of sigmoids to make lost gradients visible, and a transformer has no such
# chain. Here is the one of lesson 03, with four blocks, on 512 tokens:

# %%
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
# Nothing in the model has changed, and no layer is to blame, because it's the mean over the batch
# that makes each token's part so small. More replicas bring larger batches. So a loop without a
# loss scale can learn in float16 on one GPU, and stand still on sixteen, with the same code and the
# same model. [Llama 3](https://arxiv.org/abs/2407.21783) was trained in bfloat16.
#
# > **Takeaway.** The larger the global batch, the smaller the gradients of the layers' outputs, and
# > the more of them float16 loses.
#
# <details><summary>Fine print</summary>
#
# The cell shrinks the gradient as a larger batch would. The gradient of a *weight* doesn't shrink,
# because it sums over all tokens. PyTorch's DDP divides the finished gradients of the weights by
# the number of replicas, so there the batch of one replica decides.
#
# </details>

# %% [markdown]
# ## Scale the loss
#
# A kitchen scale shows 0 for a grain of rice, so you weigh a thousand grains and divide. You can do
# the same with gradients, since the figure has room on its right. Multiply the loss by $2^{15}$: by
# the chain rule every gradient is multiplied, too, and all histograms slide to the right by 15
# powers of two.

# %%
draw_underflow(true_gradients, scales=(1, 2**15, 2**30))

# %% [markdown]
# In the middle, nearly all numbers are kept. On the right, numbers of layers 7 and 8 become
# infinite, so a scale of $2^{30}$ is too large.
#
# With a scale of $2^{15}$ all gradients are 32,768 times too large, so divide them by it, in
# float32, before anything else uses them. `train_scaled` does that, and if you forget it, SGD takes
# steps that are as many times too long, while Adam nearly hides the mistake. And log the loss that
# you did *not* scale.

# %% tags=["numbers-within-5%"]
runs["float16, loss scaled"] = train_scaled(build("mixed_float16"), x, y, scale=2.0**15)
names = ("float32", "float16", "float16, loss scaled", "bfloat16")
losses = {name: runs[name].losses for name in names}
draw_training(losses, every_steps=10, level=("guessing", GUESSING))

# %% [markdown] tags=["after-reveal"]
# With a scale, float16 follows the curve of float32, as bfloat16 does without one. float16 without
# a scale never does better than guessing.
#
# > **Takeaway.** Multiply the loss by a scale before the backward pass, and divide the gradients by
# > it before anything else uses them.
#
# <details><summary>Fine print</summary>
#
# The figure with three scales rounds each row by itself. In a backward pass, the layers below an
# overflow would get infinite numbers or NaN from it.
#
# </details>

# %% [markdown]
# ## A scale that adapts
#
# Which scale should you take? One that's too small loses gradients silently, but one that's too
# large overflows, and you can *see* that, because a gradient is infinite or NaN.
# `keras.optimizers.LossScaleOptimizer` uses this difference. Its `scale_loss` multiplies the loss
# by the scale, and its `apply` divides the gradients by it. If a gradient isn't finite, `apply`
# skips the step and halves the scale.

# %% tags=["predict"]
scale_guess = dl.predict(
    "The scale starts far too high, at 2 to the power of 24, with `dynamic_growth_steps=3`. What "
    "does it do in 30 steps?",
    ["falls, then stays", "falls, then goes up and down", "falls until the end"],
)

# %%
model = build("mixed_float16")
weights = model.trainable_variables
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
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
        "falls until the end": "That needs an overflow in every step. Only a step that overflows "
        "halves the scale, so once all gradients are finite, it stops falling.",
    },
)

# %% tags=["numbers-within-2", "after-reveal"]
dl.show("the scale, as a power of two", scales)

# %% [markdown] tags=["after-reveal"]
# So the optimizer keeps trying a higher scale, and pays for it when a step overflows and is lost.
# By default it tries only after 2000 good steps in a row, so once the scale has settled, you lose
# at most about one step in 2000. If step after step overflows, the scale is halved each time,
# towards 0. A loss scale that crashes, as OPT-175B's did, suggests such a series.
#
# Under `mixed_float16`, `compile` wraps your optimizer in this one, unless you pass
# `auto_scale_loss=False`. Clipping must come after the division by the scale, so write `clipnorm`
# into the inner optimizer ([why](../docs/pitfalls.md#float16-with-clipping-stands-still)).
#
# > **Takeaway.** You can see an overflow, but not an underflow. So a dynamic scale stays as high as
# > it can, and loses a step now and then.
#
# <details><summary>Fine print</summary>
#
# Why do $2^{24}$ to $2^{20}$ overflow, when the histograms leave room for $2^{26}$? They show
# gradients of outputs, while the gradients of the last layer's weights are sums over 1024 examples,
# up to $2^{-3}$.
#
# </details>

# %% [markdown]
# ## One replica overflows
#
# All of this holds on one device. Under `MirroredStrategy` each replica has its own examples, so
# one may overflow where the others don't. `step_with_overflow` gives two replicas 16 images, one of
# them 1000 times too bright. It takes one step of `fit` and looks at both copies of the weights.

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
strategy, found = dl.make_strategy("mirrored", devices=2), {}
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
        "replica 0 takes the step, replica 1 skips it": "That would be so if each replica decided "
        "for itself, and the copies would drift apart. Keras decides once for all replicas.",
        "both copies are infinite or NaN": "Keras checks the gradient of replica 0, finds it "
        "finite, and lets all replicas add the infinite sum.",
    },
)

# %% [markdown] tags=["after-reveal"]
# With the overflow on replica 0, the step was skipped and the scale halved, as it should be. An
# overflow on replica 1 destroyed **both** copies, because Keras's optimizer checks replica 0's
# gradient and applies the answer to all. [A comment in its
# source](https://github.com/keras-team/keras/blob/v3.15.1/keras/src/optimizers/loss_scale_optimizer.py)
# (Keras 3.15) gives the reason: the gradients are all-reduced, so they are equal. But the inner
# optimizer reduces them only afterwards.
#
# The cure is the order, **reduce, then check**, because infinity plus anything isn't finite. Here
# the gradient has an infinite number on replica 1. Each replica checks its own gradient first, and
# then the sum:


# %% tags=["after-reveal"]
def check(gradient):
    total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
    return [tf.reduce_all(tf.math.is_finite(each)) for each in (gradient, total)]


on_replicas = give_each(strategy, [tf.constant([1.0, 2.0]), tf.constant([np.inf, 4.0])])
own, reduced = strategy.run(check, args=(on_replicas,))
dl.show("own gradient finite, on replicas 0 and 1", strategy.experimental_local_results(own))
dl.show("sum finite, on replicas 0 and 1", strategy.experimental_local_results(reduced))

# %% [markdown] tags=["after-reveal"]
# Before the reduction the replicas disagree, and after it both see the overflow. So the whole order
# is scale, gradient, reduce, check, unscale, clip, step or skip. You write it in the exercise, and
# `dl.distribute` keeps it under Keras's own `fit`:

# %%
for replica in (0, 1):
    with dl.mixed_precision("mixed_float16"):
        model = dl.distribute(build_small, strategy)
    after = step_with_overflow(model, strategy, x, y, on_replica=replica)
    dl.show(f"dl.distribute, overflow on replica {replica}", after)

# %% [markdown] tags=["after-reveal"]
# Without distlab, use `mixed_bfloat16`, or a loop of your own as in the exercise.
#
# > **Takeaway.** Reduce the gradients before you check them, because no replica sees another one's
# > overflow in its own gradient.
#
# <details><summary>Fine print: several GPUs with <code>jit_compile=True</code></summary>
#
# If XLA, TensorFlow's compiler, compiles the step and all devices are GPUs, `MirroredStrategy` does
# without `merge_call`, in which all replicas meet. Keras's `LossScaleOptimizer` then lets each
# replica decide by its own gradient. A replica that overflows skips the step, and with it the
# all-reduce for which the others wait. We've read this in the source, and haven't run it on several
# GPUs, so they may wait forever, or their copies may differ
# ([more](../docs/pitfalls.md#a-hang-with-jit_compile-float16-and-several-gpus)).
#
# </details>

# %% [markdown]
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
        "all but the weights": "It would be so if only the weights were added up over many steps. "
        "Adam's state is as well, so it stays in float32, too.",
        "gradients and activations": "In the backward pass gradients do have 16 bits. But a "
        "weight's gradient is cast to float32 when it leaves the tape.",
    },
)

# %% tags=["after-reveal"]
for policy, parts in memory.items():
    dl.show(f"{policy}, KiB", parts, digits=1)

# %% [markdown] tags=["after-reveal"]
# Only the activations halve, and a fifth part comes on top: the 16-bit copies of the weights, which
# live until the backward pass has used them. With Adam a weight takes 16 bytes (4 each for itself,
# its gradient and Adam's two averages), and up to 18 with its copy, on every replica of a
# `MirroredStrategy`. Activations grow with the **per-replica** batch, so a large batch gains most.
# If the weights need far more memory than the activations, mixed precision can even need more than
# float32.
#
# If you have a GPU, the next cell measures there how long a step takes, and how much memory it
# needs, for a model of eight wide layers:

# %% tags=["nbval-ignore-output"]
for policy in policies:
    print(time_on_gpu(policy))

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** 16 bits halve the activations and nothing else, so the gain depends on the batch.
#
# <details><summary>Fine print</summary>
#
# The KiB are those of the tensors, and not what a device allocates. The pitfalls page says [what to
# try when memory runs out](../docs/pitfalls.md#out-of-memory). `time_on_gpu` trains eight `Dense`
# layers of 2048 units on 4096 examples a step. On NVIDIA GPUs since Ampere (2020) it measures
# float32 with TF32, which is TensorFlow's default there and rounds the factors of a matrix product
# to 10 bits of fraction.
#
# </details>

# %% [markdown]
# ## Which one, where
#
# *Tensor cores*, on a TPU *matrix units*, are the parts of a device that multiply matrices fast in
# 16 bits. By its [data
# sheet](https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf),
# an A100 reaches 312 TFLOPS with them, twice as many as in TF32 and 16 times as many as in plain
# float32, and a whole model gains less. A TPU [multiplies in
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
# > **Takeaway.** Take bfloat16 wherever the device is fast in it, because it needs no loss scale.
# > On older GPUs with tensor cores, take float16 with a scale.
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch has `torch.autocast("cuda", dtype=torch.float16)` for the forward pass, and
# `torch.amp.GradScaler`, with `scaler.unscale_(optimizer)` before you clip. DDP all-reduces during
# the backward pass, so the scaler checks gradients that are already reduced. In JAX you cast by
# hand or with a library such as `jmp`, whose `DynamicLossScale` works as in this lesson. Reduce
# before you check there, too.
#
# </details>
#
# ## Check yourself
#
# <details><summary>1. You cast a softmax to float32 and train with Keras's loss. What is lost, and
# in which precision?</summary>
#
# Probabilities below 1e-7 are cut off and have no gradient, in any precision, because the loss no
# longer finds the scores. If the softmax was in float16, the gradient of a single example is NaN
# even earlier, because float16 can't hold 1/*p*.
#
# </details>
#
# <details><summary>2. Your float16 loop without a loss scale was fine on one GPU and stands still
# on sixteen, with sixteen times the batch. What do you suspect first?</summary>
#
# Each example weighs a sixteenth of what it did, so the gradients of the layers' outputs moved four
# powers of two to the left, below float16's line. Look at the share of zeros, and scale the loss.
#
# </details>
#
# <details><summary>3. Replica 3 of 4 overflows. What must the other three do?</summary>
#
# They must skip the step and halve the scale, too, and they see the overflow only in the reduced
# gradient.
#
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/07_mixed_precision.ipynb): a head, a loss scale and a loop for four
#   replicas, a memory budget, and a choice.
# - [Lesson 08](08_save_and_load.ipynb): keep what was trained, and move it.
# - Your own model, if it's `Sequential` and returns scores: build it in float32, pass
#   `gradients_by_layer(model, x, y)` to `draw_underflow`, and see what lies left of the line.
# - Micikevicius et al., [Mixed Precision Training](https://arxiv.org/abs/1710.03740) (2018), is
#   where loss scaling and these histograms come from. It's older than bfloat16 on GPUs.
# - TensorFlow's guide to [mixed precision](https://www.tensorflow.org/guide/mixed_precision) uses
#   names of Keras 2: `get_scaled_loss` is `scale_loss` today.
