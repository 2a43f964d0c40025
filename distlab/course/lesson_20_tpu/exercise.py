# %% [markdown]
# # Exercise: ready for a TPU, as far as a CPU can tell
#
# This exercise follows [lesson 20](../notebooks/20_tpu.ipynb). You repair a loss that cannot be
# traced, evaluate a model in batches of one shape, and give verdicts on a team's findings. It needs
# no TPU, and nothing in it was run on one.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `labelled_loss` | repair a loss so that XLA compiles it | 12 | medium | core |
# | 2. `evaluate_padded` | test all examples in batches of one shape | 12 | medium | core |
# | 3. `give_verdict` | give a verdict and a next step for six findings | 8 | easy | extra |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint.

# %%
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.course.runs.outcomes import waits_for

tf.get_logger().setLevel("ERROR")
dl.show("data set", "random numbers: nothing is downloaded")

# %% [markdown]
# ## Task 1: a loss that cannot be compiled
#
# What would let `labelled_loss` train a model? Called without `tf.function` it returns the right
# loss, but its gradient stops at NumPy's clip, `.numpy()` fails in a trace on every device, and XLA
# refuses `tf.py_function`. Run the check first. Then change about 6 lines, so that no shape depends
# on the values of `labels`.
#
# <details><summary>Hint</summary>
#
# Compute a loss for every row, even for rows without a label. Which label could such a row have
# until the mask removes its loss? And which division gives 0 for 0 divided by 0?
# </details>


# %%
# task: labelled_loss
def labelled_loss(scores, labels):
    """Returns the mean cross-entropy of the examples that have a label, or 0 if none has.

    The scores are clipped to between -3 and 3 first. The gradient is the one of this loss, without
    a NaN, and scores that are clipped have the gradient 0.

    Args:
        scores: A tensor of the fixed shape [rows, classes].
        labels: A tensor of the fixed shape [rows]. An example without a label has the label -1.
    """
    ### BEGIN SOLUTION
    scores = tf.clip_by_value(scores, -3.0, 3.0)
    mask = tf.cast(labels >= 0, scores.dtype)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), scores)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * mask), tf.reduce_sum(mask))
    ### STUB
    scores = tf.py_function(lambda values: np.clip(values, -3.0, 3.0), [scores], tf.float32)
    labelled = labels >= 0
    if not labelled.numpy().any():
        return tf.constant(0.0)
    scores, labels = tf.boolean_mask(scores, labelled), tf.boolean_mask(labels, labelled)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
    return tf.reduce_mean(losses)
    ### END SOLUTION


# %% [markdown]
# Here is your function, run without a compiler. Repairs must not change this number.

# %%
draw = np.random.default_rng(15)
some_scores = tf.constant(draw.normal(size=(6, 4)), tf.float32)
some_labels = tf.constant([2, -1, 0, 3, -1, 1])
with waits_for("labelled_loss"):
    dl.show("loss", labelled_loss(some_scores, some_labels))

# %%
dl.check("labelled_loss")

# %% [markdown]
# **Try next:** put `tf.print(scores)` into your function, and compile it again. Then read what
# [`set_soft_device_placement`][soft] says about TPUs. Would you leave the line in?
#
# <details><summary>Answer</summary>
#
# XLA on this CPU refuses it. A TPUStrategy may run it on the host, and the TPU then waits for the
# host in each step. So leave it in while you look for a mistake, and not in a long training run.
# </details>
#
# [soft]: https://www.tensorflow.org/api_docs/python/tf/config/set_soft_device_placement

# %% [markdown]
# ## Task 2: test every example, in one shape
#
# How do you test every example if the compiled `step` takes only batches of `size` rows? Write
# `evaluate_padded(step, images, labels, size)`, which calls `step` as few times as possible. You
# may fill rows with any images, and with the label of any class, such as 0. You'll need about 10
# lines.
#
# <details><summary>Hint</summary>
#
# The last piece has `len(piece)` examples. How many rows does it lack, and which of the numbers
# that `step` returns are of examples?
# </details>


# %%
# task: evaluate_padded
def evaluate_padded(step, images, labels, size):
    """Returns the mean loss and the accuracy over all examples, as a tuple.

    Args:
        step: Takes exactly `size` images and their labels, and returns two arrays: the loss of each
            row, and its hit, which is 1.0 if the answer is right.
        images: A NumPy array. The number of images need not be a multiple of `size`.
        labels: A NumPy array with the label of each image.
        size: The number of rows that `step` is compiled for.
    """
    ### BEGIN SOLUTION
    loss_sum = hit_sum = 0.0
    for start in range(0, len(images), size):
        some, their_labels = images[start : start + size], labels[start : start + size]
        count, missing = len(some), size - len(some)
        losses, hits = step(
            np.pad(some, [(0, missing), (0, 0)]), np.pad(their_labels, (0, missing))
        )
        loss_sum += np.sum(losses[:count])
        hit_sum += np.sum(hits[:count])
    return loss_sum / len(images), hit_sum / len(images)
    ### END SOLUTION


# %% [markdown]
# Twenty examples in batches of 8, with a step that counts its compilations:

# %%
compiled_for = []


@tf.function(jit_compile=True)
def step(images, labels):
    compiled_for.append(images.shape[0])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images)
    return losses, tf.cast(tf.argmax(images, axis=1, output_type=tf.int32) == labels, tf.float32)


def numpy_step(images, labels):
    return [result.numpy() for result in step(tf.constant(images), tf.constant(labels))]


rows = draw.normal(size=(20, 4)).astype("float32")
right = draw.integers(4, size=20).astype("int32")
with waits_for("evaluate_padded"):
    loss, accuracy = evaluate_padded(numpy_step, rows, right, 8)
    dl.show("loss", loss)
    dl.show("accuracy", accuracy, expected=np.mean(rows.argmax(axis=1) == right))
    dl.show("compiled for rows", compiled_for)

# %%
dl.check("evaluate_padded")

# %% [markdown]
# **Try next:** a sentence has between 3 and 200 words. If you pad each batch to its longest
# sentence, how many programs might an epoch need? What do you win and lose if you pad to the next
# multiple of 32 instead?
#
# <details><summary>Answer</summary>
#
# Up to 198, one for each length from 3 to 200. Padded to multiples of 32 there are at most 7
# lengths, from 32 to 224, so 7 programs. You pay with up to 31 more words of padding a sentence.
# </details>

# %% [markdown]
# ## Task 3: what do you tell your team?
#
# What do six findings from a laptop tell a team that wants to train on a TPU next month, and has
# none yet? Open the findings, and write `give_verdict(case)`, which returns a verdict and the
# team's next step. Its docstring lists all verdicts and steps, and the function takes about 9
# lines.
#
# <details><summary>The six findings</summary>
#
# - **A.** A step looks up the number of each word in a `tf.lookup.StaticHashTable`. It runs under
#   plain `tf.function`. `jit_compile=True` raises an error that names the type `DT_STRING`.
# - **B.** A step compiles, and its program has no shape with `<=`. One line of the code is
#   `scores = scores[:count]`, and `count` is computed from the labels.
# - **C.** A step compiles, with fixed shapes and in float32. A colleague asks how many examples a
#   second a v5e will train.
# - **D.** A step ends with `np.sqrt(loss)`. Plain `tf.function` raises an error: *cannot convert a
#   symbolic tf.Tensor to a numpy array*.
# - **E.** A step multiplies the losses by `tf.constant(np.linspace(0.5, 1.5, 64))`. TensorFlow
#   refused to multiply two types, so a colleague cast the losses to the type of this constant. It
#   compiles. Its program has `f64[64]`.
# - **F.** A step compiles, with fixed shapes, and gives the loss of plain TensorFlow to 1e-7. A
#   colleague asks whether a TPU will give the loss to 1e-7, too.
# </details>
#
# <details><summary>Hint</summary>
#
# What was run, on which machine, and is there a sign of trouble?
# </details>


# %%
# task: give_verdict
def give_verdict(case):
    """Returns a verdict on a finding and the next step, as two texts.

    Args:
        case: A letter from `"A"` to `"F"`.

    Returns:
        The verdict is `"fails_everywhere"`, `"refused_here"`, `"suspect_on_tpu"`, `"not_checked"`,
        `"runs_on_tpu"` or `"fails_on_tpu"`. The next step is `"rewrite_in_tensorflow"`,
        `"move_to_input_pipeline"`, `"mask_instead_of_select"`, `"use_float32"` or
        `"measure_on_tpu"`.
    """
    ### BEGIN SOLUTION
    verdicts = {
        "A": ("refused_here", "move_to_input_pipeline"),
        "B": ("suspect_on_tpu", "mask_instead_of_select"),
        "C": ("not_checked", "measure_on_tpu"),
        "D": ("fails_everywhere", "rewrite_in_tensorflow"),
        "E": ("suspect_on_tpu", "use_float32"),
        "F": ("not_checked", "measure_on_tpu"),
    }
    return verdicts[case]
    ### END SOLUTION


# %%
dl.check("give_verdict")

# %% [markdown]
# **Try next:** a colleague replaces `scores[:count]` in case B by `tf.boolean_mask`, and reports:
# the program now has `f32[<=64,10]`, so it became worse. Did it?
#
# <details><summary>Answer</summary>
#
# No. The slice had the values of one batch in its program, so a batch with different labels needed
# a new program. `tf.boolean_mask` needs one program for all batches, with a bounded shape that a
# TPU may refuse. Both are suspect. The repair is a mask that multiplies the losses of all 64 rows:
# one program, with fixed shapes.
# </details>

# %% [markdown]
# ## Next steps
#
# - [Lesson 20](../notebooks/20_tpu.ipynb), if a check sent you back to it.
# - The page "Training on a TPU" of the site and of the repository (`docs/tpu.md`): which packages
#   you need, and how to install them.
# - [The glossary](../docs/glossary.md) explains the terms.
