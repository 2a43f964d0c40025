# %% [markdown]
# # TPUs: what a compiler on your CPU can tell
#
# A team trained a language model with PyTorch/XLA on eight TPU chips. An earlier version
# of [a post on its blog](https://megacpp.pages.dev/blog/graph-recompilation-hell/) reported that
# the first step took 18 minutes and the second 1.5 seconds. The 40th step took 73 seconds, because
# the program had to be compiled again. No error was raised.
#
# A TPU (Tensor Processing Unit) is Google's accelerator chip for matrix multiplication. It is
# attached to an ordinary computer, its *host*, which reads the data and starts the programs. A TPU
# runs only what the compiler [XLA](https://openxla.org/xla) has compiled. Most of this compiler is
# in your TensorFlow, with a backend for your CPU. In this lesson you compile a step with it before
# you pay for a TPU, and you learn what that cannot show.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - count how often a step is compiled, and control it,
# - fill up a partial batch without a change to a loss, a gradient or a metric,
# - find and repair what a compiler refuses,
# - give each finding one of three verdicts: *refused here*, *suspect on a TPU*, *not checked*.
#
# **Time:** {minutes}. **Needs:** [lesson 01](01_mirrored_strategy.ipynb) and [lesson
# 03](03_custom_training_loop.ipynb); [lesson 07](07_mixed_precision.ipynb) helps. No TPU and no
# GPU, and nothing is downloaded. **We have not run this lesson on a TPU.** If you have one, its
# last experiment is written to run there.

# %% [markdown]
# ### Two questions on lessons 03 and 07
#
# 1. The last global batch has 4 examples, and all others have 32. By which number do you divide
#    the sum of its four losses?
# 2. If you did lesson 07: TPUs multiply in bfloat16. Why does training in bfloat16 need no loss
#    scale?
#
# <details><summary>Answers</summary>
#
# 1. By 4, the number of examples that are there.
# 2. bfloat16 has the exponents of float32, so small gradients do not become zero.
# </details>

# %%
import re

import numpy as np
import tensorflow as tf

import distlab as dl

tf.config.set_visible_devices([], "GPU")  # with a GPU, XLA would compile for it
tf.get_logger().setLevel("ERROR")  # no reminders about retracing
train, _ = dl.load_dataset("digits", batch_size=100)
images, labels = next(iter(train))
images = tf.reshape(images, [100, 64])
dl.show("data set", "100 digits, part of distlab: nothing is downloaded")

# %% [markdown]
# ## A program for a step
#
# A GPU has ready-made kernels for single operations, and TensorFlow starts one after the other. A
# TPU has no such kernels. XLA makes one program of the whole step, and the TPU runs this program.
# `jit_compile=True` asks for such a program on any device.
#
# Our model is the smallest that learns: one matrix and one bias. `start` makes a step of SGD for
# it, and a list that notes each compilation.


# %%
def losses_of(kernel, bias, images, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ kernel + bias)


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
# The argument `mask` is 1 for each example. All rows are examples so far, so it changes nothing.
# The line `compiled_for.append` is Python. It runs when TensorFlow
# [traces](../docs/glossary.md#trace) the step, and not when the program runs. Here XLA compiles
# each trace once, so the list counts programs.

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
        "one": "The size of every array is written into a program. The last batch has 4 rows, and "
        "no program for 32 rows can run it.",
        "four": "Batches of the same shape share a program.",
        "eight": "A program is kept. The second batch already finds the one of the first.",
        "two": "One for 32 rows, and one for the partial batch.",
    },
)

# %% tags=["after-reveal"]
from distlab.course.lesson_20_tpu.figures import draw_compiled_batches

draw_compiled_batches({"as they come": ragged})

# %% [markdown] tags=["after-reveal"]
# **One program for each shape.** XLA writes the size of every array into the program. One partial
# batch doubles the compilations. Sentences that are padded to the longest of each batch are worse,
# because nearly every batch then has a shape of its own. For our little step a compilation takes a
# moment. For a large model on a TPU it can take minutes.
#
# This way to count has a limit. Keras's `fit` traces its step once, with an open shape like `[None,
# 64]`, and XLA still compiles it for each shape. A count of traces is then too small. TPUStrategy,
# the MirroredStrategy for TPUs, also compiles for each shape. By default its [*dynamic
# padder*](https://www.tensorflow.org/api_docs/python/tf/distribute/RunOptions) pads each
# replica's input to the largest in that step. A single replica's 4 rows stay 4. If you pad
# yourself, every step has the same shapes.

# %% [markdown]
# ## Pad, and count what is there
#
# You could drop the partial batch: `batch(32, drop_remainder=True)`. That is usual in training,
# where each epoch shuffles and so drops different examples. In an evaluation it is wrong, because
# the same examples are never tested.
#
# So we pad. `pad` fills the batch with zeros up to 32 rows. It also returns the *mask*, which is 1
# for an example and 0 for padding.


# %%
def pad(some, their_labels):
    missing = 32 - len(some)
    mask = tf.concat([tf.ones(len(some)), tf.zeros(missing)], axis=0)
    return tf.pad(some, [[0, missing], [0, 0]]), tf.pad(their_labels, [[0, missing]]), mask


last = batches[-1]
padded = pad(*last)
dl.show("shapes", [part.shape.as_list() for part in padded])

# %% [markdown]
# 28 of the 32 rows are now [padding](../docs/glossary.md#padding). Suppose that you forget the
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
def gradients_of(images, labels, mask=None):
    kernel, bias = [tf.identity(weight) for weight in weights]
    with tf.GradientTape() as tape:
        tape.watch([kernel, bias])
        losses = losses_of(kernel, bias, images, labels)
        if mask is None:
            loss = tf.reduce_mean(losses)
        else:
            loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
    return tape.gradient(loss, [kernel, bias])


right = gradients_of(*last)
unmasked, masked = gradients_of(*padded[:2]), gradients_of(*padded)
kernel_apart, bias_apart = [float(tf.norm(a - b)) for a, b in zip(right, unmasked, strict=True)]

# %% tags=["reveal"]
padding_guess.reveal(
    {
        (True, True): "the gradients of the bias and of the matrix",
        (False, True): "the gradient of the bias, and not that of the matrix",
    }[kernel_apart > 1e-3, bias_apart > 1e-3],
    {
        "nothing: zero pixels give no gradient": "They give the bias one: an empty image gets "
        "scores from the bias, and its label says 0.",
        "only the loss that you see": "The gradient is that of the loss you compute, so it changes "
        "with it.",
        "the gradient of the bias, and not that of the matrix": "Zero pixels add nothing to the "
        "sum for the matrix. But the mean divides this sum by 32 instead of 4.",
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
# **Multiply by the mask, and divide by its sum.** The same rule holds for accuracy and every other
# mean: without a mask, padding rows count as right or wrong.
#
# In Keras, you hand the mask over as `sample_weight`, and that alone is not enough. A loss
# multiplies by it and still divides by all 32 rows, unless you make the loss with
# `reduction="mean_with_sample_weight"`. On several replicas, that loss and our step are both
# wrong, because each replica divides by its own mask's sum: see
# [pitfalls](../docs/pitfalls.md#masked-padding-makes-the-loss-small). The `loss` that Keras logs
# counts each batch by all its rows, padding included, and metrics in `metrics=` ignore the mask.
# Those in `weighted_metrics=` use it.

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
# You get one program and the same weights. The price is 28 wasted rows in the last batch. For
# sentences, *bucketing* is a compromise: round the longest length in a batch up to a multiple of
# 32, and pad to that. That gives few programs, and adds at most 31 words beyond the longest.

# %% [markdown]
# ## Three doubtful losses
#
# Now look inside a step. Each of these losses runs on a CPU and on a GPU. One calls NumPy,
# one decides by the value of a tensor, and one keeps only the odd digits.


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
def refusal_of(step):
    tf.function(step)(images, labels)  # an error here does not come from XLA
    try:
        tf.function(step, jit_compile=True)(images, labels)
    except Exception as error:  # compilers refuse with many kinds of errors
        return str(error)
    return ""


refused = [name for name, step in STEPS.items() if refusal_of(step)]

# %% tags=["reveal"]
refused_guess.reveal(
    {
        ("with_numpy",): "with_numpy only",
        ("with_numpy", "with_selection"): "with_numpy and with_selection",
        ("with_if",): "with_if only",
    }.get(tuple(refused), "all three"),
    {
        "all three": "Guides say that XLA refuses an `if` on a tensor and a shape that depends on "
        "values. But AutoGraph, a part of `tf.function`, turns this `if` into `tf.cond`, and XLA "
        "for CPUs takes a shape with a known bound.",
        "with_numpy and with_selection": "XLA for CPUs takes a shape that depends on values, if it "
        "knows a bound: at most 100 digits are odd.",
        "with_if only": "AutoGraph turns this `if` into `tf.cond`, which XLA can compile.",
        "with_numpy only": "`tf.py_function` calls back into Python. TensorFlow cannot translate "
        "that for XLA.",
    },
)

# %% tags=["after-reveal"]
operation = re.search(r"'(\w+)' OpKernel", refusal_of(with_numpy))
dl.show("TensorFlow cannot translate", operation[1] if operation else refusal_of(with_numpy))

# %% [markdown] tags=["after-reveal"]
# AutoGraph turned the `if` into `tf.cond`. It cannot convert `loss.numpy()` or `np.sqrt(loss)`:
# both want a value, and while a step is traced there is none.
#
# ## Read the program
#
# `with_selection` compiled. Does that mean that it is ready for a TPU? You can read the program
# that TensorFlow hands to XLA, in XLA's language, HLO. `bounded_shapes` lists its shapes with `<=`:


# %%
def program_of(step, labels=labels):
    compiled = tf.function(step, jit_compile=True)
    return compiled.experimental_get_compiler_ir(images, labels)(stage="hlo")


def bounded_shapes(step):
    return sorted(set(re.findall(r"\w+\[[^]]*<=[^]]*\]", program_of(step))))


dl.show("with_if", bounded_shapes(with_if))
dl.show("with_selection", bounded_shapes(with_selection))

# %% [markdown]
# `f32[<=100,64]` is an array of float32 with *at most* 100 rows (`pred` is true or false, `s64` an
# integer). How many there are is known only while the program runs. Google's [list of operations
# for TPUs][ops] allows `tf.where`, on which `tf.boolean_mask` is built, only with three arguments.
# But TensorFlow's source translates the form with one argument for TPUs. TPUStrategy's
# dynamic padder uses bounded shapes for *inputs* of varying size. This CPU cannot tell you whether
# a TPU supports this selection inside a step. So write it down as a suspicion.
#
# [ops]: https://cloud.google.com/tpu/docs/tensorflow-ops

# %% [markdown]
# ## Three verdicts
#
# TensorFlow first translates a step into HLO, and it can translate only operations that are
# registered for the device's compiler. XLA then has optimizations that all devices share, and a
# *backend* for each kind of device. You have tried the translation for CPUs and the CPU backend. So
# a compilation on a CPU is **neither sufficient nor necessary** for a TPU:
#
# - *Not sufficient:* the translation or the backend for TPUs may refuse what those for CPUs take.
#   TensorFlow translates complex128 for CPUs, and not for TPUs.
# - *Not necessary:* TPUStrategy may move an operation that XLA refuses to the TPU's host, if [soft
#   device placement][soft] is on, as it is by default in eager programs. Then the operation runs,
#   and the TPU waits for its host in each step.
#
# [soft]: https://www.tensorflow.org/api_docs/python/tf/config/set_soft_device_placement
#
# First call the step under plain `tf.function`. If it fails there, no compiler was asked. An error
# while the step is traced, such as that of `loss.numpy()`, appears on every device. An error that
# comes only with `jit_compile=True` is a refusal by the compiler. If `tf.function`
# alone works, give one of three verdicts. "Runs on a TPU" is not among them:
#
# | verdict | what you have seen | what to do |
# |---|---|---|
# | **refused here** | the compiler on this CPU raised an error | repair it, here and now |
# | **suspect on a TPU** | it compiled, with a sign of trouble | repair it if that is cheap |
# | **not checked** | no sign, or what a CPU cannot show | write it down, and measure on a TPU |
#
# `verdict` searches the program for two signs: bounded shapes, and float64 (`f64`), for which a TPU
# has no hardware. If it finds none, it says "nothing found, not checked on a TPU".


# %%
def verdict(step):
    if refusal_of(step):
        return "refused here"
    signs = re.findall(r"\w+\[[^]]*<=|\bf64\[", program_of(step))
    return "suspect on a TPU" if signs else "nothing found, not checked on a TPU"


def in_float64(images, labels):
    return tf.cast(loss_of(images, labels), tf.float64) + tf.constant(1.0, tf.float64)


for doubtful in (*STEPS.values(), in_float64):
    dl.show(doubtful.__name__, verdict(doubtful))

# %% [markdown]
# Here is one more loss. It keeps the first `count` digits, and computes `count` from the labels.


# %%
def with_slice(images, labels):
    count = 1 + tf.reduce_max(labels)
    return loss_of(images[:count], labels[:count])


dl.show("rows", 1 + tf.reduce_max(labels))

# %% tags=["predict"]
slice_guess = dl.predict(
    "What does `verdict(with_slice)` say?",
    ["refused here", "suspect on a TPU", "nothing found"],
)

# %%
said = verdict(with_slice)

# %% tags=["reveal"]
slice_guess.reveal(
    said.partition(",")[0],
    {
        "refused here": "XLA compiles in the call, with `labels` at hand, so the slice gets a "
        "fixed length.",
        "suspect on a TPU": "The rows do depend on values, as in `with_selection`. But TensorFlow "
        "makes the end of a slice constant if it can, and it can compute this one from `labels` in "
        "the call. So it wrote the 10 rows of this batch into the program, and our search finds no "
        "bounded shape.",
        "nothing found": "TensorFlow makes the end of a slice constant if it can, and it can "
        "compute this one from `labels` in the call. So it wrote the 10 rows of this batch into "
        "the program, and every shape is fixed.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The program is fixed to 10 rows, because the largest label is 9. What does XLA make if the largest
# label is 6?

# %% tags=["after-reveal"]
for their_labels in (labels, tf.minimum(labels, 6)):
    rows = re.findall(r"f32\[(\d+),64\]", program_of(with_slice, their_labels))
    largest = int(tf.reduce_max(their_labels))
    dl.show(f"largest label {largest}, rows in the program", sorted({int(n) for n in rows}))

# %% [markdown] tags=["after-reveal"]
# Both programs get 100 rows, and the first keeps 10 of them, the second 7. **A value can be written
# into a program, as a shape is.** Then each new value needs one more program. The whole
# array `labels` becomes a constant, not only its maximum, so `jit_compile` compiles nearly every
# shuffled batch again. TensorFlow does not trace again, so `compiled_for` would not count these
# programs.

# %% [markdown]
# ## Repair it, and prove it
#
# The cure for a selection is the mask that you know already: compute all rows, and let some of them
# count. The cure for NumPy is an operation of TensorFlow. If there is none, let the
# [input pipeline](../docs/glossary.md#input-pipeline) do it: `Dataset.map` always runs on the host.


# %%
def with_tensorflow(images, labels):
    return loss_of(tf.sqrt(images), labels)


def masked_loss(weights, images, labels):
    odd = tf.cast(labels % 2 == 1, tf.float32)
    return tf.reduce_sum(losses_of(*weights, images, labels) * odd) / tf.reduce_sum(odd)


def with_mask(images, labels):
    return masked_loss(weights, images, labels)


for old, new in ((with_numpy, with_tensorflow), (with_selection, with_mask)):
    dl.show(new.__name__, verdict(new))
    compiled = tf.function(new, jit_compile=True)(images, labels)
    dl.show("  loss, difference from the old one", abs(old(images, labels) - compiled), below=1e-5)

# %% [markdown]
# "Nothing found" proves little: our search knows two signs, and `with_slice` shows neither. Read
# your code as well. A shape that is computed from values is a sign of trouble, even if the program
# does not show it. A repaired step gives the same number, compiles here, and shows no sign. But so
# far we have compiled only the loss, and a loss may compile when its gradient does not. So compile
# your whole step, with its gradient and its update, as at the start of this lesson, and compare
# the gradient, too. For the rest you need a TPU.
#
# One trap of the mask: it multiplies, and **NaN times 0 is NaN**. A masked row needs a loss that is
# finite, so give it a valid label and a finite input. Exercise 20 has such a case.

# %% [markdown]
# ## On a TPU, if there is one
#
# `dl.make_strategy("tpu")` starts the TPU and makes a TPUStrategy. (With a TPU, first open "If you
# have a TPU" below.) If there is no TPU, it raises an error, and then we take TensorFlow's default
# strategy, which runs the same lines on this machine.

# %%
from distlab.errors import DeviceError

try:
    strategy = dl.make_strategy("tpu")
except DeviceError as error:
    strategy = tf.distribute.get_strategy()
    print(error)

# %%
with strategy.scope():
    copies = [tf.Variable(weight.numpy()) for weight in weights]


@tf.function  # on a TPU without jit_compile: TPUStrategy compiles by itself
def run(images, labels):
    each = strategy.run(masked_loss, args=(copies, images, labels))
    return strategy.reduce("MEAN", each, axis=None)


apart = abs(run(images, labels) - with_mask(images, labels))
dl.show("loss, difference from with_mask", apart, below=0.05)
dl.show("on a TPU", isinstance(strategy, tf.distribute.TPUStrategy))

# %% [markdown]
# If the last line says `False`, these lines ran on one CPU and gave the same loss. They say nothing
# about a TPU. The bound of 0.05 leaves room for bfloat16.

# %% [markdown]
# ## What is not checked here
#
# Write this list down for your own step, and hand it over with the code:
#
# - **Speed and memory.** Nothing here tells how fast a TPU is, or whether a batch fits.
# - **Numbers.** TPUs multiply float32 matrices in bfloat16 by default. "Equal to 1e-6" is a
#   statement about this CPU.
# - **Random numbers and checks.** [XLA ignores the seeds of stateful random operations, and
#   assertions][known]. Keras's own `Dropout` is stateless and keeps its seed, but a different
#   device may still draw different numbers.
# - **Feeding.** A TPU waits if the input pipeline is too slow. Nothing here has fed one.
# - **Several replicas.** Free Colab offers one v5e chip (*v5e-1*). That is **one replica**: shares
#   of a batch, all-reduce and synchronised BatchNormalization are not tested there either. Test
#   those with logical devices, as in lesson 01.
#
# [known]: https://www.tensorflow.org/xla/known_issues
#
# <details><summary>If you have a TPU: Colab and Google Cloud</summary>
#
# The page "Training on a TPU" of the site and of the repository (`docs/tpu.md`) says which packages
# you need. The package `tensorflow` from PyPI cannot use a TPU. With it, our cell prints *no TPU
# that TensorFlow can use*, and plain TensorFlow reports *No OpKernel was registered to support Op
# 'ConfigureDistributedTPU'*. [This report from Colab][colab] shows it; its author had installed
# both packages. Install `tensorflow-tpu` in an environment without `tensorflow`.
#
# `make_strategy("tpu")` looks for the environment variable `TPU_NAME`. Set it before the cell above
# runs: `%env TPU_NAME=local` if the TPU is in this machine, as in Colab and on a TPU VM of Google
# Cloud. In plain TensorFlow:
#
# ```python
# resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
# tf.config.experimental_connect_to_cluster(resolver)
# tf.tpu.experimental.initialize_tpu_system(resolver)  # early in a program
# strategy = tf.distribute.TPUStrategy(resolver)
# print(strategy.num_replicas_in_sync)          # 1 on a v5e-1
# ```
#
# We have read this, and not run it.
#
# [colab]: https://github.com/tensorflow/tensorflow/issues/96203
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# **PyTorch/XLA** records operations, and compiles them at the end of a step. Each new shape and
# each new path through an `if` is one more program, and `torch_xla.debug.metrics` counts them.
# **JAX:** `jax.jit` compiles for each shape as well, and it is stricter than TensorFlow. It refuses
# an `if` on a traced value and `images[mask]` on every device, CPUs included. So a JAX program
# shows these two faults early.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You train with batches of 64, 64 and 10 rows, and evaluate with batches of
# 100 and 28. How many programs does XLA make? How many are left if you pad the training batches to
# 64 rows, and the others to 100?</summary>
#
# Four, and two: training and evaluation are different steps.
# </details>
#
# <details><summary>2. A step compiles on your CPU, and its program has fixed shapes in float32.
# What do you tell the colleague with the budget for a TPU?</summary>
#
# Nothing was refused here, and no sign of trouble was found. Speed, memory, precision (a TPU
# multiplies in bfloat16), random numbers, the feeding of data and several replicas are not checked.
# </details>
#
# <details><summary>3. You pad the last batch and use the mask in the loss. The accuracy of the
# evaluation is now too low. Why?</summary>
#
# The metric counts the padding. Give it the mask as well.
# </details>
#
# <details><summary>4. <code>tf.print</code> in a step is refused here. Will it fail on a
# TPU?</summary>
#
# You cannot say. TPUStrategy may run it on the host, so the verdict is "refused here", and no more.
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
# - [The glossary](../docs/glossary.md) explains the terms.
# - [TensorFlow's guide to TPUs](https://www.tensorflow.org/guide/tpu) shows the whole loop. With
#   the package `tensorflow`, its cell that starts the TPU fails as in the fold above.
# - [Hugging Face's guide][hf] has three rules. Two say that XLA refuses an `if` on a tensor, and
#   shapes that depend on values; you have seen exceptions to both. It calls a compilation on a
#   CPU or GPU, with good performance, a great sign that you are ready.
#
# [hf]: https://huggingface.co/docs/transformers/v4.49.0/en/perf_train_tpu_tf
