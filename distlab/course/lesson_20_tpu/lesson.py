# %% [markdown]
# # TPUs: what your CPU can tell you
#
# A team trained a language model with PyTorch/XLA on eight TPU chips. The first step took 18
# minutes and the second 1.5 seconds, which is how it should be. Then, in an earlier version of [its
# report](https://megacpp.pages.dev/blog/graph-recompilation-hell/), the 40th step took 73 seconds,
# because the program had to be compiled again, and no error said so.
#
# A TPU (Tensor Processing Unit) is Google's chip for matrix products, and it runs only what the
# compiler [XLA](https://openxla.org/xla) has compiled. Most of that compiler is in your TensorFlow,
# with a backend for your CPU. So the question of this lesson is: what can your CPU tell you before
# you pay for a TPU?

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - count how often a step is compiled, and keep it at one,
# - pad a partial batch without a change to a loss, a gradient or a metric,
# - say what a compilation on a CPU shows about a TPU, and what it doesn't.
#
# **Time:** {minutes}. **Needs:** lessons [01](01_mirrored_strategy.ipynb) and
# [03](03_custom_training_loop.ipynb), but no TPU, no GPU and no download. **We have never run this
# lesson on a TPU**, so it tells you nothing about one that a CPU can't show. The page "Training on
# a TPU" of the site and of the repository (`docs/tpu.md`) has what you need if you have one.

# %% [markdown]
# <details><summary>Do you remember? Lesson 03: the last global batch has 4 examples, and all others
# have 32. By which number do you divide the sum of its four losses?</summary>
#
# By 4, the number of examples that are there. Today the batch will have 32 rows all the same, and
# the answer is still 4.
# </details>

# %%
import re

import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.course.lesson_20_tpu.compiled import gradients_of, losses_of, program_of, refusal_of
from distlab.course.lesson_20_tpu.figures import draw_compiled_batches

tf.config.set_visible_devices([], "GPU")  # with a GPU, XLA would compile for it
tf.get_logger().setLevel("ERROR")  # no reminders about retracing
train, _ = dl.load_dataset("digits", batch_size=100)
images, labels = next(iter(train))
images = tf.reshape(images, [100, 64])
dl.show("data set", "100 digits, part of distlab: nothing is downloaded")

# %% [markdown]
# ## A program for each shape
#
# A GPU has ready-made kernels for single operations, and TensorFlow starts one after the other. A
# TPU has none, so XLA makes one program of the whole step, and `jit_compile=True` asks for such a
# program on any device. `start` makes a step of SGD for the smallest model that learns, and a list
# that notes each compilation. The argument `mask` is 1 for each example, and it changes nothing as
# long as all rows are examples.


# %%
def start():
    weights = [tf.Variable(tf.zeros([64, 10])), tf.Variable(tf.zeros([10]))]
    compiled_for = []

    @tf.function(jit_compile=True)
    def step(images, labels, mask):
        compiled_for.append(images.shape[0])
        with tf.GradientTape() as tape:
            losses = losses_of(*weights, images, labels)
            loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.5 * gradient)

    return weights, compiled_for, step


# %% [markdown]
# `compiled_for.append` is Python, so it runs when TensorFlow [traces](../docs/glossary.md#trace)
# the step, and not when the program runs; XLA compiles each of these traces once.

# %%
batches = [(images[n : n + 32], labels[n : n + 32]) for n in range(0, 100, 32)]
dl.show("rows of the batches", [len(some) for some, _ in batches])

# %% tags=["predict"]
programs_guess = dl.predict(
    "You train for two epochs with these batches, so the step runs eight times. How many programs "
    "does XLA compile?",
    ["one", "two", "four", "eight"],
)

# %%
weights, compiled_for, step = start()
ragged = []  # of each batch: its examples, its rows, and the number of its program
for some, their_labels in batches * 2:
    step(some, their_labels, tf.ones(len(some)))
    ragged.append((len(some), len(some), compiled_for.index(len(some)) + 1))

# %% tags=["reveal"]
programs_guess.reveal(
    {1: "one", 2: "two", 4: "four", 8: "eight"}[len(compiled_for)],
    {
        "one": "It would if a program could run any number of rows. The size of every array is "
        "written into it, and the last batch has 4 rows.",
        "four": "That would be so if each batch had a shape of its own. Batches of the same shape "
        "share a program.",
        "eight": "That would be so if programs were thrown away. The second batch already finds "
        "the program of the first.",
        "two": "One for 32 rows, and one for the partial batch.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **XLA writes the size of every array into the program**, so one partial batch doubles the
# compilations. Sentences that you pad to the longest of each batch are worse, because nearly every
# batch then has a shape of its own. Our step compiles in a moment, while a large model on a TPU can
# take minutes, as for the team above.
#
# > **Takeaway.** One program for each shape. Give all batches of a training one shape.
#
# <details><summary>Fine print</summary>
#
# Keras's `fit` traces once, with an open shape like `[None, 64]`, and XLA still compiles for each
# shape, so a count of traces is too small there. TPUStrategy compiles for each shape as well. Its
# [*dynamic padder*](https://www.tensorflow.org/api_docs/python/tf/distribute/RunOptions) pads each
# replica's input to the largest of that step, but a single replica's 4 rows stay 4.
# </details>

# %% [markdown]
# ## Pad, and count what is there
#
# You could drop the partial batch with `drop_remainder=True`. That's usual in training, where each
# epoch drops different examples, but in an evaluation the same ones are never tested. So we pad:
# `pad` fills the batch with zeros up to 32 rows, and returns a *mask*, which is 1 for an example
# and 0 for [padding](../docs/glossary.md#padding).


# %%
def pad(some, their_labels):
    missing = 32 - len(some)
    mask = tf.concat([tf.ones(len(some)), tf.zeros(missing)], axis=0)
    return tf.pad(some, [[0, missing], [0, 0]]), tf.pad(their_labels, [[0, missing]]), mask


last = batches[-1]
padded = pad(*last)
dl.show("shapes", [part.shape.as_list() for part in padded])

# %% [markdown]
# Now 28 of the 32 rows are padding, and suppose that you forget the
# [mask](../docs/glossary.md#mask), and train with the mean loss.

# %% tags=["predict"]
padding_guess = dl.predict(
    "The pixels of the filled rows are all zero. What do these rows change if there is no mask?",
    [
        "nothing: zero pixels give no gradient",
        "only the loss that you see",
        "the gradient of the bias, and not that of the matrix",
        "the gradients of the bias and of the matrix",
    ],
)


# %%
right = gradients_of(weights, *last)
unmasked, masked = gradients_of(weights, *padded[:2]), gradients_of(weights, *padded)
kernel_apart, bias_apart = [float(tf.norm(a - b)) for a, b in zip(right, unmasked, strict=True)]

# %% tags=["reveal"]
padding_guess.reveal(
    {
        (True, True): "the gradients of the bias and of the matrix",
        (False, True): "the gradient of the bias, and not that of the matrix",
    }[kernel_apart > 1e-3, bias_apart > 1e-3],
    {
        "nothing: zero pixels give no gradient": "That holds for the sum of the matrix's gradient. "
        "The bias gets one, since an empty image has scores, too, and its label says 0.",
        "only the loss that you see": "That would need a gradient of something else. It's the "
        "gradient of the loss that you compute, so it changes with it.",
        "the gradient of the bias, and not that of the matrix": "It would if the loss were a sum. "
        "The mean divides the matrix's gradient by 32 instead of 4.",
        "the gradients of the bias and of the matrix": "The bias is pulled towards class 0. And "
        "the mean divides by 32 instead of 4.",
    },
)

# %% tags=["after-reveal"]
ratio = tf.norm(right[0]) / tf.norm(unmasked[0])
dl.show("without a mask, the matrix's gradient is too small by a factor of", ratio, digits=2)
apart = max(float(tf.reduce_max(abs(a - b))) for a, b in zip(right, masked, strict=True))
dl.show("with the mask, largest difference from the gradient of the 4 digits", apart, below=1e-6)

# %% [markdown] tags=["after-reveal"]
# **Multiply by the mask, and divide by its sum.** The same holds for accuracy and every other mean,
# because a padding row is right or wrong by chance. With the mask, the whole training needs one
# program and ends with the same weights:

# %%
padded_weights, compiled_for, step = start()
filled = []
for batch in batches * 2:
    step(*pad(*batch))
    filled.append((len(batch[0]), 32, len(compiled_for)))

apart = max(float(tf.reduce_max(abs(a - b))) for a, b in zip(weights, padded_weights, strict=True))
dl.show("weights, largest difference from the training without padding", apart, below=1e-6)

# %%
draw_compiled_batches({"as they come": ragged, "padded": filled})

# %% [markdown]
# The price is 28 wasted rows in the last batch. For sentences, *bucketing* is a compromise: round
# the longest length of a batch up to a multiple of 32, and you have few programs and little
# padding.
#
# > **Takeaway.** Pad to one shape, multiply by the mask, and divide by its sum, in losses and
# > metrics alike.
#
# <details><summary>Fine print</summary>
#
# In Keras you hand the mask over as `sample_weight`, and that alone isn't enough: a loss multiplies
# by it and still divides by all 32 rows, unless you make it with
# `reduction="mean_with_sample_weight"`. On several replicas that loss and our step are both wrong,
# because each replica divides by its own mask's sum: see
# [pitfalls](../docs/pitfalls.md#masked-padding-makes-the-loss-small). Metrics in `metrics=` ignore
# the mask, and those in `weighted_metrics=` use it.
# </details>

# %% [markdown]
# ## What the compiler refuses
#
# Each of these three losses runs on a CPU and on a GPU. One calls NumPy, one decides by the value
# of a tensor, and one keeps only the odd digits, so that its shape depends on the labels.


# %%
def loss_of(images, labels):
    return tf.reduce_mean(losses_of(*weights, images, labels))


def with_numpy(images, labels):
    return loss_of(tf.py_function(np.sqrt, [images], tf.float32), labels)


def with_if(images, labels):
    loss = loss_of(images, labels)
    if loss > 1.0:
        loss = 1.0 + tf.math.log(loss)
    return loss


def with_selection(images, labels):
    odd = labels % 2 == 1
    return loss_of(tf.boolean_mask(images, odd), tf.boolean_mask(labels, odd))


STEPS = {step.__name__: step for step in (with_numpy, with_if, with_selection)}
dl.show("losses", {name: step(images, labels) for name, step in STEPS.items()}, digits=2)

# %% tags=["predict"]
refused_guess = dl.predict(
    "You compile each of the three with `jit_compile=True` on this CPU. Which are refused?",
    ["all three", "with_numpy and with_selection", "with_numpy only", "with_if only"],
)


# %%
refused = [name for name, step in STEPS.items() if refusal_of(step, images, labels)]

# %% tags=["reveal"]
refused_guess.reveal(
    {
        ("with_numpy",): "with_numpy only",
        ("with_numpy", "with_selection"): "with_numpy and with_selection",
        ("with_if",): "with_if only",
    }.get(tuple(refused), "all three"),
    {
        "all three": "Guides say so of an `if` on a tensor and of a shape that depends on values. "
        "But AutoGraph, a part of `tf.function`, turns this `if` into `tf.cond`, and XLA for CPUs "
        "takes a shape with a known bound.",
        "with_numpy and with_selection": "It would if XLA knew no bound. At most 100 digits are "
        "odd, and XLA for CPUs is content with that.",
        "with_if only": "It would if `tf.function` kept the `if`. AutoGraph turns it into "
        "`tf.cond`, which XLA can compile.",
        "with_numpy only": "`tf.py_function` calls back into Python. TensorFlow cannot translate "
        "that for XLA.",
    },
)

# %% tags=["after-reveal"]
operation = re.search(r"'(\w+)' OpKernel", refusal_of(with_numpy, images, labels))
dl.show(
    "TensorFlow cannot translate",
    operation[1] if operation else refusal_of(with_numpy, images, labels),
)

# %% [markdown] tags=["after-reveal"]
# `with_selection` has compiled, but is it ready for a TPU? Its program works with *at most* 100
# rows, and Google's [list of operations for TPUs](https://cloud.google.com/tpu/docs/tensorflow-ops)
# allows `tf.where`, on which the selection is built, only with three arguments. This CPU can't tell
# you, so the selection is a suspicion. The cure is the mask that you know already: compute all
# rows, and let some of them count. The cure for NumPy is an operation of TensorFlow, or
# `Dataset.map`, which always runs on the host.


# %%
def with_tensorflow(images, labels):
    return loss_of(tf.sqrt(images), labels)


def masked_loss(weights, images, labels):
    odd = tf.cast(labels % 2 == 1, tf.float32)
    return tf.reduce_sum(losses_of(*weights, images, labels) * odd) / tf.reduce_sum(odd)


def with_mask(images, labels):
    return masked_loss(weights, images, labels)


for old, new in ((with_numpy, with_tensorflow), (with_selection, with_mask)):
    compiled = tf.function(new, jit_compile=True)(images, labels)
    dl.show(
        f"{new.__name__}, difference from the old loss",
        abs(old(images, labels) - compiled),
        below=1e-5,
    )

# %% [markdown]
# So far we have compiled only a loss, and a loss may compile when its gradient doesn't. Compile
# your whole step, with its gradient and its update, as at the start of this lesson.
#
# One trap of the mask remains: it multiplies, and **NaN times 0 is NaN**. A masked row needs a loss
# that is finite, so give it a valid label and a finite input, as in exercise 20.
#
# > **Takeaway.** Shapes that depend on values are suspect even if they compile. Let all rows stay,
# > and let a mask say which of them count.

# %% [markdown]
# ## Extra: Three verdicts
#
# TensorFlow first translates a step into XLA's language, HLO, and XLA then has a *backend* for each
# kind of device. You've tried the translation for CPUs and the CPU backend, so a compilation here
# is **neither sufficient nor necessary** for a TPU. It isn't sufficient, because the TPU's backend
# may refuse what this one takes. It isn't necessary, because TPUStrategy may move an operation that
# XLA refuses to the TPU's host, if [soft device placement][soft] is on, and the TPU then waits for
# its host in each step.
#
# [soft]: https://www.tensorflow.org/api_docs/python/tf/config/set_soft_device_placement
#
# First call the step under plain `tf.function`: what fails there fails on every device, and no
# compiler was asked. If that works, there are three verdicts, and "runs on a TPU" isn't among them:
#
# | verdict | what you have seen | what to do |
# |---|---|---|
# | **refused here** | the compiler on this CPU raised an error | repair it, here and now |
# | **suspect on a TPU** | it compiled, with a sign of trouble | repair it if that is cheap |
# | **not checked** | no sign, or what a CPU cannot show | write it down, and measure on a TPU |
#
# `verdict` reads the program and searches for two signs: shapes with a bound, such as
# `f32[<=100,64]`, and float64 (`f64`), for which a TPU has no hardware.


# %%
def verdict(step):
    if refusal_of(step, images, labels):
        return "refused here"
    signs = re.findall(r"\w+\[[^]]*<=|\bf64\[", program_of(step, images, labels))
    return "suspect on a TPU" if signs else "nothing found, not checked on a TPU"


def in_float64(images, labels):
    return tf.cast(loss_of(images, labels), tf.float64) + tf.constant(1.0, tf.float64)


for doubtful in (*STEPS.values(), with_mask, in_float64):
    dl.show(doubtful.__name__, verdict(doubtful))

# %% [markdown]
# "Nothing found" proves little, since the search knows two signs. A slice with a computed end shows
# neither, because TensorFlow writes the *value* of its end into the program, so each new value
# needs one more program (`docs/tpu.md` has an example). And speed, memory, precision, random
# numbers and several replicas are never checked here.
#
# > **Takeaway.** "It compiles on my CPU" says what's refused here. Write down what wasn't checked,
# > and hand the list over with the code.
#
# <details><summary>In PyTorch and JAX</summary>
#
# **PyTorch/XLA** records operations, and compiles them at the end of a step. Each new shape and
# each new path through an `if` is one more program, and `torch_xla.debug.metrics` counts them.
# **JAX:** `jax.jit` compiles for each shape as well, and it refuses an `if` on a traced value and
# `images[mask]` on every device, so a JAX program shows these two faults early.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You train with batches of 64, 64 and 10 rows, and evaluate with batches of
# 100 and 28. How many programs does XLA make, and how many if you pad?</summary>
#
# Four, and two: training and evaluation are different steps.
# </details>
#
# <details><summary>2. You pad the last batch and use the mask in the loss. The accuracy of the
# evaluation is now too low. Why?</summary>
#
# The metric counts the padding. Give it the mask as well.
# </details>
#
# <details><summary>3. A step compiles on your CPU. What do you tell the colleague with the budget
# for a TPU?</summary>
#
# Nothing was refused here. Whether a TPU takes it, how fast it is and whether it fits isn't
# checked.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 20](../exercises/20_tpu.ipynb): a loss to repair, an evaluation in one shape, and
#   verdicts.
# - [Lesson 21](21_choosing_a_strategy.ipynb): which strategy fits your model and your machines.
# - The page "Training on a TPU" of the site and of the repository (`docs/tpu.md`): packages, Colab,
#   Google Cloud, and what a CPU doesn't check.
# - [The glossary](../docs/glossary.md) explains the terms.
# - [TensorFlow's guide to TPUs](https://www.tensorflow.org/guide/tpu) shows the whole loop, and
#   [Hugging Face's guide][hf] has three rules, to two of which you've seen exceptions.
#
# [hf]: https://huggingface.co/docs/transformers/v4.49.0/en/perf_train_tpu_tf
