# %% [markdown]
# # Exercise: fit the step into memory
#
# For [lesson 15](../notebooks/15_fit_into_memory.ipynb). You accumulate gradients over texts of
# different lengths, write recomputation yourself, repair its dropout, and predict the largest batch
# before you test it against a real limit.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `accumulated_gradients` | add the gradients of micro-batches | 12 | medium | core |
# | 2. `recomputed` | write `tf.recompute_grad` yourself | 25 | hard | extra |
# | 3. `recomputed_dropout` | repair a layer that draws its mask twice | 10 | medium | core |
# | 4. `largest_batch` | predict what fits from two measured peaks | 12 | medium | core |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint.

# %%
import distlab as dl

dl.memory_limit(64)

# %%
import tensorflow as tf

from distlab.course.lesson_15_fit_into_memory.runs import (
    build,
    largest_difference,
    lines_of,
    make_step,
    run_out,
    token_losses,
    windows,
)
from distlab.course.measure.peak import peak_bytes
from distlab.course.runs.outcomes import waits_for

dl.show("data set", "Python's own help: nothing is downloaded")

# %% [markdown]
# ## Task 1: accumulate gradients
#
# Which gradients does a whole batch give, if only a part of it fits? Write `accumulated_gradients`
# in about 10 lines. It returns, for each weight, the gradient of the mean loss over all tokens of
# all micro-batches, which may have different numbers of rows.
#
# <details><summary>Hint</summary>
#
# Which number must divide the loss of every token, and can you know it before the first gradient?
# </details>


# %%
# task: accumulated_gradients
def accumulated_gradients(weights, micro_batches, losses):
    """Returns, for each weight, the gradient of the mean loss over all tokens.

    Args:
        weights: A list of variables.
        micro_batches: A list of tuples `(x, y, counts)`, where `counts` is 1 for a token and 0 for
            what fills up a row.
        losses: `losses(x, y)` returns the loss of each place, in the shape of `counts`.
    """
    ### BEGIN SOLUTION
    tokens = sum(tf.reduce_sum(counts) for _, _, counts in micro_batches)
    sums = [tf.zeros_like(weight) for weight in weights]
    for x, y, counts in micro_batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(counts * losses(x, y)) / tokens
        gradients = tape.gradient(loss, weights)
        sums = [total + part for total, part in zip(sums, gradients, strict=True)]
    return sums
    ### END SOLUTION


# %% [markdown]
# Four micro-batches of text, the last one partial, beside the step on the whole batch:

# %%
with waits_for("accumulated_gradients"):
    small = build(layers=1)
    x, y, counts = (part[:14] for part in lines_of(10, 20, 40, 60))
    cut = [(x[n : n + 4], y[n : n + 4], counts[n : n + 4]) for n in range(0, 14, 4)]
    values = [weight.value for weight in small.trainable_variables]
    yours = accumulated_gradients(values, cut, lambda x, y: token_losses(small, x, y))
    apart = largest_difference(yours, make_step(small)(x, y, counts))
    dl.show("apart from the whole batch's gradients", apart, below=1e-5)

# %%
dl.check("accumulated_gradients")

# %% [markdown]
# **Try next:** your loop has to know all tokens before its first gradient. What if the
# micro-batches come from a stream, and you can't look ahead?
#
# <details><summary>Answer</summary>
#
# Leave the division to the end: add the gradients of the plain sums, count the tokens on the way,
# and divide the sums of gradients by that count. In float16 the undivided sums can overflow.
# </details>

# %% [markdown]
# ## Task 2: recomputation by hand
#
# What does `tf.recompute_grad` do? Write it yourself in about 12 lines: `recomputed(f)` returns
# a function that returns `f(x, *weights)`, keeps nothing but `x` and the weights, and computes `f`
# again when its gradient is asked for. Use `tf.custom_gradient`, and see below what a `tf.function`
# needs on top.
#
# <details><summary>In a <code>tf.function</code></summary>
#
# TensorFlow merges operations that compute the same, and would keep the first result. If the second
# computation depends on `upstream`, they aren't the same:
#
# ```python
# with tf.control_dependencies([upstream]):
#     x_again = tf.identity(x)
# ```
# </details>
#
# <details><summary>Hint</summary>
#
# In `backward`, open a tape, watch the copies of `x` and of all weights, and call `f` on them.
# Which argument of `tape.gradient` takes `upstream`?
# </details>


# %%
# task: recomputed
def recomputed(f):
    """Returns a function of `x` and `*weights` that computes `f` again for its gradient.

    `tf.custom_gradient` wraps a function that returns its result and a function `backward`. This
    `backward(upstream)` gets the gradient of the result, and returns one gradient for `x` and one
    for each weight.
    """

    ### BEGIN SOLUTION
    @tf.custom_gradient
    def run(x, *weights):
        def backward(upstream):
            with tf.control_dependencies([upstream]):
                again = [tf.identity(value) for value in (x, *weights)]
            with tf.GradientTape() as tape:
                tape.watch(again)
                result = f(*again)
            return tape.gradient(result, again, output_gradients=upstream)

        return f(x, *weights), backward

    return run
    ### END SOLUTION


# %%
with waits_for("recomputed"):
    square = recomputed(lambda x, weight: (x * weight) ** 2)
    x, weight = tf.constant(3.0), tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch([x, weight])
        result = 10 * square(x, weight)
    dl.show(
        "gradients", [float(g) for g in tape.gradient(result, [x, weight])], expected=[240, 360]
    )

# %%
dl.check("recomputed")

# %% [markdown]
# **Try next:** wrap a part that is already wrapped, as `recomputed(recomputed(f))`. Does it save
# more memory, and how often is `f` computed?
#
# <details><summary>Answer</summary>
#
# Three times, and it saves nothing more: the outer one already kept only the inputs. Nesting saves
# memory if the inner parts are smaller than the outer one.
# </details>

# %% [markdown]
# ## Task 3: dropout that is computed twice
#
# Why does this layer train badly? `recomputed_dropout` returns a function that applies a layer and
# dropout, and keeps only its input. Its gradient goes through a mask that the forward pass didn't
# have. Repair it in about 5 lines, so that each call draws a new mask and you keep both the
# recomputation and the dropout.
#
# <details><summary>Hint</summary>
#
# Which lines run twice, and which line must run once a call?
# </details>


# %%
# task: recomputed_dropout
def recomputed_dropout(layer, rate):
    """Returns a function that applies `layer` and dropout, and keeps only its input.

    `tf.nn.experimental.stateless_dropout(x, rate, seed)` makes its mask of `seed` alone, a tensor
    of two whole numbers.
    """

    ### BEGIN SOLUTION
    def call(x):
        seed = tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)

        def part(x):
            return tf.nn.experimental.stateless_dropout(layer(x), rate, seed)

        return tf.recompute_grad(part)(x)

    return call

    ### STUB
    def part(x):
        return tf.nn.dropout(layer(x), rate)

    return tf.recompute_grad(part)
    ### END SOLUTION


# %%
dl.check("recomputed_dropout")

# %% [markdown]
# **Try next:** find the places in a model of your own that you couldn't simply compute twice.
# Which of its layers draw, count or remember something?
#
# There's another right answer: recompute the layer alone and drop behind it, as
# `tf.nn.dropout(tf.recompute_grad(layer)(x), rate)`. It draws once, and keeps the mask and what
# dropout was given.

# %% [markdown]
# ## Task 4: the largest batch
#
# Which batch fits, before you wait for an error? Write `largest_batch` in about 7 lines. It
# returns the largest number of rows whose step stays within the limit, or 0 if not a single row
# fits. With more than one micro-batch, the sum of the gradients takes memory on top.
#
# <details><summary>Hint</summary>
#
# Two points make a line. What is its slope, and what is left at 0 rows?
# </details>


# %%
# task: largest_batch
def largest_batch(limit_mb, peaks, gradients_mb, micro_batches):
    """Returns the largest number of rows, of all micro-batches together, that fits.

    Args:
        limit_mb: The MB that a step may take.
        peaks: Two measured peaks of a plain step in MB, by the number of rows, as in
            `{4: 20.0, 8: 36.0}`. They contain everything, also weights and gradients.
        gradients_mb: What the sum of the gradients takes on top, with more than one micro-batch.
        micro_batches: The number of micro-batches. All have equally many rows.
    """
    ### BEGIN SOLUTION
    (few, low), (many, high) = sorted(peaks.items())
    row_mb = (high - low) / (many - few)
    fixed_mb = low - few * row_mb
    if micro_batches > 1:
        fixed_mb += gradients_mb
    rows = max(0, (limit_mb - fixed_mb) // row_mb)
    return int(rows * micro_batches)
    ### END SOLUTION


# %% [markdown]
# Now a rough test. Two peaks of the lesson's model are measured here, you predict the largest batch
# in 64 MB, and two processes with 64 MB try half and twice as many rows. It can't tell whether you
# thought of the fixed part, but the check can:

# %%
with waits_for("largest_batch"):
    model = build()
    held = 4 * model.count_params()
    step = make_step(model)
    peaks = {rows: (held + peak_bytes(lambda r=rows: step(*windows(r)))) / 2**20 for rows in (4, 8)}
    yours = largest_batch(64, peaks, held / 2**20, 1)
    half, twice = run_out(("plain", yours // 2), ("plain", yours * 2))
    dl.show("half of your batch", half)
    dl.show("twice your batch", twice)

# %%
dl.check("largest_batch")

# %% [markdown]
# **Try next:** predict the largest batch with four micro-batches, and test it with
# `run_out(("4 micro-batches", rows))`. Why should you stay a fifth below your prediction on a real
# device?
#
# <details><summary>Answer</summary>
#
# Peaks vary from step to step, because operations that happen to run side by side hold their
# tensors at the same time. Free memory also gets cut into pieces, too small for a large
# tensor. With micro-batches, the loop also holds a few MB that the formula leaves out.
# </details>

# %% [markdown]
# ## Next steps
#
# - [Lesson 15](../notebooks/15_fit_into_memory.ipynb), if a check sent you back to it.
# - [Pitfalls](../docs/pitfalls.md#out-of-memory) lists what else you can do if a step doesn't fit.
