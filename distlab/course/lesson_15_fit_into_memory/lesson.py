# %% [markdown]
# # Fit the step into memory
#
# One line that promises nothing but less memory can cost a network 19 points of accuracy. Ours
# recognizes 98 % of the test digits, and with its layers wrapped in `tf.recompute_grad` it
# recognizes 79 %. No error appears, so you'd blame the data before you blamed that line. You'll
# train both networks yourself, and find the reason.
#
# People write the line because a training step keeps far more than its weights, until one day the
# step doesn't fit, and then the question of this lesson is what to drop. After it you can
#
# - say which part of a step fills the memory, and how large a batch fits,
# - accumulate gradients that are those of the whole batch, also over texts of different lengths,
# - recompute layers instead of keeping them, and say what that saves and costs,
# - keep dropout right in a layer that's computed twice.
#
# **Time:** {minutes}. **Needs:** [lesson 03](03_custom_training_loop.ipynb) (the weight of an
# example) and `tf.GradientTape`, but no GPU and no download. The memory limit was tried on Linux.
#
# <details><summary>Do you remember? Lesson 03: four replicas have 5, 5, 0 and 0 examples of a
# batch. By what does each divide its sum of losses?</summary>
#
# By 10, the number of examples on all replicas. Today the parts of a batch come one after the other
# instead of side by side, and the answer stays the same.
# </details>

# %%
import distlab as dl

dl.memory_limit(64)

# %%
import keras
import tensorflow as tf

from distlab.course.lesson_15_fit_into_memory.figures import draw_peaks
from distlab.course.lesson_15_fit_into_memory.runs import (
    build,
    count_products,
    entries_of_another_mask,
    keras_accumulates,
    largest_difference,
    lines_of,
    make_step,
    run_out,
    token_losses,
    train_with_dropout,
    windows,
)
from distlab.course.measure.peak import peak_bytes

tf.get_logger().setLevel("ERROR")  # it warns of several compiled steps
model = build()
weights_mb = 4 * model.count_params() / 2**20
dl.show("MB of weights", weights_mb, digits=1)

# %% [markdown]
# ## What fills the memory
#
# Your laptop now has a GPU's problem: `dl.memory_limit(64)` gives all of TensorFlow's tensors 64 MB
# together, and a tensor beyond that raises a GPU's own error. It has to come first, because
# TensorFlow reads the limit once, when it starts.
#
# The model is a small transformer that reads rows of 64 characters, from Python's own help. It has
# eight layers, and each layer turns every character into a vector of 64 numbers, so one row is 16
# KB wherever you cut the model. Weights and gradients take 1.6 MB each, and 60 MB are left for the
# batch.

# %% tags=["predict"]
batch_guess = dl.predict(
    "How many rows fit into a step with 64 MB?",
    ["about 15", "about 450", "about 200,000"],
)

# %% [markdown]
# `peak_bytes` returns the most bytes that a call holds at once, on top of what was there before. We
# measure one batch of 8 rows, and then let two processes with 64 MB each try 8 rows and 32:

# %%
plain = make_step(model)
plain_peak = peak_bytes(lambda: plain(*windows(8)))
rows_that_fit = 8 * (64 - weights_mb) * 2**20 / plain_peak
dl.show("8 rows take more than 20 MB", plain_peak > 20 * 2**20)
for rows, ended in zip((8, 32), run_out(("plain", 8), ("plain", 32)), strict=True):
    dl.show(f"{rows} rows", ended)

# %% tags=["reveal"]
batch_guess.reveal(
    "about 15" if 8 <= rows_that_fit < 32 else "about 450",
    {
        "about 15": "A row keeps about 4 MB until the backward pass: queries, keys, values, "
        "attention's scores, four times as many numbers behind `up`, and more, in each layer.",
        "about 450": "That would be so if a step kept only what each layer returns: 16 KB for a "
        "row and layer, so 128 KB for a row. The backward pass needs what each operation inside "
        "the layer was given, too.",
        "about 200,000": "That would be so if a step kept only its input, 64 characters a row. The "
        "backward pass begins at the loss, and needs everything in between.",
    },
)

# %% [markdown] tags=["after-reveal"]
# A backward pass multiplies the gradient by what each operation was given, so the forward pass must
# leave all of that behind. These leftovers are the *activations*, and they alone grow with the
# batch. Weights, gradients and the optimizer's state stay as large as they are, which is why a
# smaller batch helps here and wouldn't help if the weights were the problem.
#
# The lines show how the peak grows for four ways to take the same step, and you'll meet the other
# three on the way. The dashed parts carry each line on towards the limit.

# %% tags=["after-reveal"]
draw_peaks()

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** What fills the memory are activations, because they grow with the batch, while
# > weights, gradients and state don't.
#
# <details><summary>Fine print</summary>
#
# Before TensorFlow reports that it's out of memory, it waits 10 seconds for another operation to
# free some, on a GPU as well. Operations that run side by side hold their tensors at the same time,
# so peaks vary by up to a quarter. `memory_limit` was tried on Linux only; it counts tensors, and
# nothing that Python holds. The points of the figure were recorded.
# </details>

# %% [markdown]
# ## Drop most of the batch
#
# The simplest way to a smaller batch that trains like a large one is [gradient
# accumulation](../docs/glossary.md#gradient-accumulation). You cut the batch into *micro-batches*,
# compute the gradient of one after the other, add these gradients, and update the weights once. At
# any moment only one micro-batch has activations, so 32 rows in four micro-batches need about as
# much as 8 rows at once. In a compiled step they have to be made to wait for each other, so
# `make_step` runs them in a `tf.while_loop` with `parallel_iterations=1`:

# %% tags=["numbers-within-0.4"]
in_four = make_step(model, micro_batches=4)
ratio = peak_bytes(lambda: in_four(*windows(32))) / plain_peak
dl.show("peak of 4 x 8 rows, in peaks of 8 rows", ratio, digits=1)

# %% [markdown]
# The price is a copy of the gradients, in which the sum grows, and in our step a few MB more that
# grow with the rows. What's easy to get wrong is the division. Lines of text have different
# lengths, and what fills up a row has a weight of 0 in the loss. Here are 16 lines, in four
# micro-batches of four:

# %%
small = build(layers=1)
x, y, counts = lines_of(10, 20, 40, 60)
parts = [(x[n : n + 4], y[n : n + 4], counts[n : n + 4]) for n in range(0, 16, 4)]
tokens = [float(tf.reduce_sum(count)) for _, _, count in parts]
dl.show("tokens of each micro-batch", tokens)
dl.show("tokens of the batch", sum(tokens))

# %% [markdown]
# Suppose you do what many trainers did until October 2024 (lesson 03): you take the mean loss of
# each micro-batch, and average the four means.

# %% tags=["predict"]
means_guess = dl.predict(
    "You average four means over 40, 80, 160 and 240 tokens. Which tokens count too much?",
    ["none: each mean is right", "those of the short lines", "those of the long lines"],
)

# %% [markdown]
# `accumulate` divides each micro-batch's sum of losses by a number of its own, and adds the
# gradients. So the two ways differ in four numbers only:


# %%
def accumulate(divisors):
    values = [weight.value for weight in small.trainable_variables]
    sums = [tf.zeros_like(value) for value in values]
    for (x, y, count), divisor in zip(parts, divisors, strict=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(count * token_losses(small, x, y)) / divisor
        gradients = tape.gradient(loss, values)
        sums = [total + part for total, part in zip(sums, gradients, strict=True)]
    return sums


of_whole_batch = make_step(small)(x, y, counts)
means = [4 * number for number in tokens]
sums = [sum(tokens)] * 4
exact = largest_difference(accumulate(sums), of_whole_batch)
dl.show("sums, divided by all tokens: the same to 5 digits", exact < 1e-5)
off = largest_difference(accumulate(means), of_whole_batch)
dl.show("the mean of means is off by more than 5 %", off > 0.05)
too_much = [sum(tokens) / divisor for divisor in means]
dl.show("a token counts this many times as much", too_much, digits=2)

# %% tags=["reveal"]
means_guess.reveal(
    "those of the short lines" if too_much[0] > too_much[-1] else "those of the long lines",
    {
        "none: each mean is right": "Each is right for its own tokens. The mean of all four would "
        "be right if they had equally many.",
        "those of the short lines": "Each micro-batch gets a quarter of the gradient, and in the "
        "first one only 40 tokens share that quarter.",
        "those of the long lines": "That would be so if you added the sums and divided each by the "
        "same number of lines. Means give each micro-batch the same weight.",
    },
)

# %% [markdown] tags=["after-reveal"]
# With sums, it doesn't matter how you cut the batch, because every token is divided by the same
# number. That's lesson 03's rule again: a replica is a micro-batch that runs beside the others, and
# a micro-batch is a replica that comes later. If you have both, divide each token's loss by the
# tokens of all micro-batches on all replicas, and never divide again.
#
# Keras accumulates as well, if you give its optimizer `gradient_accumulation_steps=4`. It divides
# the sum of the gradients by 4, so it averages what each micro-batch's loss gave:

# %% tags=["after-reveal"]
equal = keras_accumulates("sum_over_batch_size")
dl.show("Keras's default loss, 4 x 4 lines", equal, below=1e-4)
partial = keras_accumulates("sum_over_batch_size", rows=14)
dl.show("4 + 4 + 4 + 2 lines: off by more than 5 %", partial > 0.05)
per_token = keras_accumulates("mean_with_sample_weight")
dl.show("a mean over tokens: off by more than 5 %", per_token > 0.05)

# %% [markdown] tags=["after-reveal"]
# Keras's default loss divides by all places of a micro-batch, filled up or not, so equal
# micro-batches give the gradient of the whole batch. A partial micro-batch breaks that, and so does
# the loss that divides by its tokens. Keras is right for full rows, then, and for everything else
# you'd write the loop of task 1.
#
# > **Takeaway.** Add sums of losses, and divide once, by the tokens of the whole batch. A mean of
# > means is right only if all micro-batches have equally many.
#
# <details><summary>Fine print</summary>
#
# Because the default loss also divides by the places without a token, it gives a batch of short
# lines a smaller step than a batch of long ones. If an epoch doesn't end with a multiple of four
# micro-batches, Keras adds the rest to the next epoch's first update. A `tf.while_loop` starts up
# to ten iterations at once by default, and in a compiled step a Python loop doesn't wait at all.
# BatchNormalization sees micro-batches and not the batch, so its statistics change.
# </details>

# %% [markdown]
# ## Drop what you can compute again
#
# Micro-batches end at one row. If a single row is too long, drop activations instead, which is
# called [recomputation](../docs/glossary.md#recomputation): `tf.recompute_grad(layer)` keeps only
# what goes into a layer, and when the backward pass reaches that layer, it computes the rest a
# second time. PyTorch calls that *checkpointing*, although no file is written.
#
# It's like a long calculation on a small board: you note each interim result, wipe the rest, and
# work a part out again when you need it. So how many layers should one part have? We wrap each
# layer by itself, and then all eight together.

# %% tags=["predict"]
whole_guess = dl.predict(
    "You wrap all eight layers in one `tf.recompute_grad`. How high is the peak?",
    [
        "the lowest: only the input of the model is kept",
        "between: about a third, near the square root of eight layers",
        "about as high as without it",
    ],
)

# %% tags=["numbers-within-0.15"]
eight_rows = windows(8)
gradients = plain(*eight_rows)
shares, products = {}, {"plain": count_products(plain, *eight_rows)}
for layers in (1, 8):
    step = make_step(model, group=layers)
    shares[layers] = peak_bytes(lambda step=step: step(*eight_rows)) / plain_peak
    products[f"recomputed by {layers}"] = count_products(step, *eight_rows)
    apart = largest_difference(step(*eight_rows), gradients)
    dl.show(f"{layers} at a time: gradients equal to 5 digits", apart < 1e-5)
    dl.show("  peak, in peaks of the plain step", shares[layers], digits=1)

# %% tags=["reveal"]
whole_guess.reveal(
    "about as high as without it" if shares[8] > 0.8 else "between",
    {
        "the lowest: only the input of the model is kept": "That's true of the forward pass. But "
        "the backward pass begins by computing all eight layers, and keeps them all to go back.",
        "between: about a third, near the square root of eight layers": "That's the best "
        "number of parts if a layer's input is as large as all that it keeps. One part holds all "
        "eight layers in any network.",
        "about as high as without it": "The forward pass keeps nothing, and then the backward pass "
        "computes all layers again, and holds all of them at once.",
    },
)

# %% [markdown] tags=["after-reveal"]
# A step has to hold the inputs that it noted, and beside them all activations of the one part that
# it's computing again. Eight small parts make the second as small as it gets. A single part notes
# next to nothing and still holds everything at once, so it costs time and saves no memory.
#
# How much time that costs, you can count in matrix products, which are most of the work:

# %% tags=["after-reveal"]
dl.show("matrix products", products)
dl.show("recomputed / plain", products["recomputed by 1"] / products["plain"], digits=2)

# %% [markdown] tags=["after-reveal"]
# A product needs two more for its gradients, so a step of three becomes a step of four. That's a
# third more work at most, whatever the size of the parts. And because the two ways of saving don't
# touch each other, you can use both:

# %% tags=["after-reveal"]
tries = (("4 micro-batches", 32), ("recomputed", 32), ("both", 128))
for (way, rows), ended in zip(tries, run_out(*tries), strict=True):
    dl.show(f"{way}, {rows} rows", ended)

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** If you recompute each layer by itself, you keep little more than the layers'
# > inputs, and pay a third more work. If you recompute everything at once, you save nothing.
#
# <details><summary>Fine print</summary>
#
# `keras.remat` does the same as `tf.recompute_grad`, but inside a `keras.RematScope` Keras's `fit`
# [raises an error](https://github.com/keras-team/keras/issues/21207). The products that read the
# tokens and write the logits aren't recomputed, so you see a bit less than 4/3. In `jit_compile`,
# XLA chooses by itself what it keeps.
# </details>
#
# <details><summary>Only a part of each layer</summary>
#
# Attention's scores grow with the square of the length, and cost few FLOPs. If you recompute them
# alone, you save most of what a long text costs. NVIDIA's researchers call this [selective
# recomputation](https://arxiv.org/abs/2205.05198), and for the model of GPT-3's size they report
# that it saves 70 % of the activations for 2.7 % more FLOPs. In TensorFlow, wrap the function from
# queries, keys and values to the weighted sum, and leave the products with weights outside.
# </details>

# %% [markdown]
# ## What must not be drawn again
#
# Now to the line that cost 19 points. The network has four layers with dropout of 0.5, and
# `recomputed` wraps each of them in `tf.recompute_grad`. Each number is a mean over two seeds:

# %% tags=["numbers-within-8"]
for way in ("plain", "recomputed"):
    dl.show(f"{way}: % of the test digits", train_with_dropout(way, seeds=2), digits=0)

# %% [markdown]
# To compute again is safe only if the second time gives what the first one gave, and dropout draws
# a mask each time. So the forward pass silences one half of the units, while the backward pass
# sends its gradient through a different half, and much of it reaches units that had no part in the
# loss.
#
# How far the two masks differ, we can count: how many of 4,096 gradients go through a mask that the
# forward pass didn't have?

# %% tags=["predict"]
mask_guess = dl.predict(
    "Now the layer is `keras.layers.Dropout(0.5, seed=1)`. How many gradients go through a "
    "different mask?",
    ["none", "about half", "all"],
)


# %%
def with_a_seed():
    dropout = keras.layers.Dropout(0.5, seed=1)
    return tf.recompute_grad(lambda x: dropout(x, training=True))


def drawn_outside():
    def drop(x):
        seed = tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)
        return tf.recompute_grad(lambda x: tf.nn.experimental.stateless_dropout(x, 0.5, seed))(x)

    return drop


wrong = entries_of_another_mask(with_a_seed, compiled=True)
dl.show("with seed=1, between 1,500 and 2,500", 1500 < wrong < 2500)
dl.show("seed drawn outside", entries_of_another_mask(drawn_outside, compiled=True))

# %% tags=["reveal"]
mask_guess.reveal(
    "about half" if wrong else "none",
    {
        "none": "That would be so if `seed=1` stood for one mask. It stands for a sequence, or "
        "each step would drop the same units, and the second computation takes the next mask.",
        "about half": "The seed fixes a sequence of masks, and each computation takes the next "
        "one. Two masks agree at half of the places by chance, so a seed cures nothing here.",
        "all": "That would be so if the second mask were the first one's opposite. The two are "
        "independent, so half of the places agree.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The cure is in `drawn_outside`, which draws two whole numbers *before* the part that's computed
# twice, and `stateless_dropout` makes its mask of these numbers and of nothing else. Both
# computations therefore get the same mask, and the next step draws new numbers:

# %% tags=["after-reveal", "numbers-within-8"]
dl.show("repaired: % of the test digits", train_with_dropout("repaired", seeds=2), digits=0)

# %% [markdown] tags=["after-reveal"]
# Dropout is the common case, but the rule is wider: what's computed twice must be a function of its
# inputs. BatchNormalization updates its moving statistics twice, and a counter counts twice.
#
# > **Takeaway.** Before you recompute, look for everything that's random or remembers, and draw it
# > outside of what is computed twice.
#
# <details><summary>Fine print</summary>
#
# `keras.remat` draws again, too, and so does `tf.nn.dropout`. With a `seed`, `tf.nn.dropout` is
# right inside a `tf.function` by chance of how graphs number their operations, and wrong outside.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch's `torch.utils.checkpoint` stores the state of the generators and restores it for the
# second computation (`preserve_rng_state=True`), so dropout is right by default, although a [bug
# of this kind](https://github.com/pytorch/pytorch/issues/190717) was open for compiled code in July
# 2026. In JAX, random functions take their key as an argument, so `jax.checkpoint` can't go wrong
# here.
# </details>

# %% [markdown]
# ## Which one first
#
# | you drop | you pay | drop it if |
# |---|---|---|
# | most of the batch | a copy of the gradients | a micro-batch still fills the device |
# | activations | up to a third more work | micro-batches get tiny, or one row is too long |
# | [bits](07_mixed_precision.ipynb) | precision | you have a GPU |
# | copies of weights and state | messages | one row, recomputed, doesn't fit |
#
# The first three leave the weights where they are. When weights, gradients and the optimizer's
# state are themselves too large, no batch is small enough, and several devices must share them, as
# in the lessons that follow.

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. A step runs out of memory at 16 rows and fits at 8. Does it fit with 16 rows
# in two micro-batches?</summary>
#
# Probably, because only 8 rows have activations at a time. It needs a further copy of the
# gradients, so it can fail if 8 rows were close to the limit or the weights are large.
# </details>
#
# <details><summary>2. You accumulate four micro-batches on each of two replicas. By what do you
# divide a token's loss?</summary>
#
# By the number of tokens in all eight micro-batches. You need that number before the first backward
# pass, so count the tokens of the whole batch first, and all-reduce the count.
# </details>
#
# <details><summary>3. A colleague wraps the whole model in one <code>tf.recompute_grad</code> and
# says that memory didn't change. What do you advise?</summary>
#
# Wrap each layer by itself. The whole model is computed again at the start of the backward pass,
# and then all of its activations are there at once.
# </details>
#
# <details><summary>4. After you turned on recomputation, a model trains worse, and its gradients
# agree with the plain ones if dropout is 0. What happened?</summary>
#
# The second computation drew another mask. Draw the seed outside of what is recomputed.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/15_fit_into_memory.ipynb): write the accumulation, repair dropout,
#   predict the largest batch and test it against the real limit.
# - [The Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook) draws
#   where the memory of a large model goes.
# - [Chen and others, 2016](https://arxiv.org/abs/1604.06174) is where recomputation for networks
#   was described, with the rule of the square root.
