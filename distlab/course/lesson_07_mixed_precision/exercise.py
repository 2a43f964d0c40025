# %% [markdown]
# # Exercise: mixed precision with MirroredStrategy
#
# For [lesson 07](../notebooks/07_mixed_precision.ipynb). You write what Keras does for you, and the
# step that it gets wrong on several replicas. A CPU rounds a single number to 16 bits exactly as a
# GPU does, so the zeros and overflows that you find here appear there, too. All training is with
# SGD, because Adam would hide some of the mistakes.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `float32_head` | repair a head that loses small probabilities | 8 | easy | core |
# | 2. `scaled_update` | write a dynamic loss scale for four replicas | 25 | hard | extra |
# | 3. `train_float16` | write a whole loop in float16, with a fixed scale | 15 | medium | core |
# | 4. `training_bytes` | compute the memory of one replica | 10 | medium | core |
# | 5. `choose_policy` | choose a policy for each device | 5 | easy | core |
# | report `what_float16_loses` | explain a picture of your loop and scale | 15 | medium | extra |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open a hint. Task 2 is the one to remember, but the tasks after it don't
# need it.

# %%
import keras
import tensorflow as tf
from IPython.display import display

import distlab as dl
from distlab.course.lesson_07_mixed_precision.figures import draw_loss_scale
from distlab.course.lesson_07_mixed_precision.runs import run_in_float16
from distlab.course.runs.outcomes import waits_for

devices = dl.split_devices(4)
strategy = dl.make_strategy("mirrored", devices=devices)
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## Task 1: a head that forgets
#
# Which probabilities does this head lose, and how do you keep them? `head` makes the last layers of
# a model under the policy `mixed_float16`. The version below ignores the `temperature`, and turns
# every probability below 3e-8 into zero. Run the check, then repair `head`. Two or three lines are
# enough.
#
# <details><summary>Hint 1</summary>
#
# In which precision is the softmax computed, and in which is it returned? Where are the scores, if
# a `Dense` layer has the activation inside?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Make the scores and the probabilities in two layers. Every layer takes `dtype`, which overrides
# the policy for this layer.
# </details>
#
# <details><summary>Hint 3</summary>
#
# Make the scores with `Dense(classes)`, divide them by `temperature`, and make the probabilities
# with `Activation("softmax", dtype="float32")`.
# </details>


# %%
# task: float32_head
def head(features, classes, temperature):
    """Adds a head to the body of a model, under the policy `mixed_float16`.

    Args:
        features: What the body returns, a float16 Keras tensor.
        classes: The number of classes.
        temperature: A number above 1. The scores are divided by it before the softmax, which makes
            the probabilities more equal.

    Returns:
        The probabilities of the classes in float32, right even if they're as small as 1e-12.
    """
    ### BEGIN SOLUTION
    scores = keras.layers.Dense(classes)(features)
    return keras.layers.Activation("softmax", dtype="float32")(scores / temperature)
    ### STUB
    return keras.layers.Dense(classes, activation="softmax")(features)
    ### END SOLUTION


# %%
dl.check("float32_head")

# %% [markdown]
# **Try next:** add `keras.layers.Activation("linear", dtype="float32")` after the first version's
# layer, and read what the check says.

# %% [markdown]
# ## Task 2: the loss scale, on four replicas
#
# What must all replicas do if one of them overflows? Write `scaled_update`, which runs **on every
# replica, inside `strategy.run`**. A replica has already summed the losses of its own examples,
# divided them by the global batch, multiplied this share by `scale`, and taken the gradient. You
# write what follows, for which nine lines are enough.
#
# <details><summary>Hint 1</summary>
#
# What does a replica know about an overflow on a different replica, before the all-reduce and after
# it? [Lesson 01](../notebooks/01_mirrored_strategy.ipynb) shows the call of an
# [all-reduce](../docs/glossary.md#all-reduce).
# </details>
#
# <details><summary>Hint 2</summary>
#
# `tf.reduce_all(tf.math.is_finite(v))` is one boolean. `tf.where(finite, a, b)` takes `a` or `b`
# without an `if`, and drops a NaN in the one that it does not take. `tf.clip_by_norm(v, limit)`
# clips a vector.
# </details>
#
# <details><summary>Hint 3</summary>
#
# The order is reduce, check, unscale, clip, step or skip. The shares are parts of one mean, so sum
# them. With plain SGD, a step of zero leaves the weights as they are. With momentum or Adam it
# doesn't, so there Keras doesn't call the optimizer at all.
# </details>


# %%
# task: scaled_update
def scaled_update(gradient, scale, good_steps, clip_norm, grow_every):
    """Returns `(step, scale, good_steps)`, which are the same on all replicas.

    `step` is the gradient of the global batch, unscaled and then clipped. After an overflow on any
    replica, `step` is zero, `scale` is halved and `good_steps` starts at 0.

    Args:
        gradient: This replica's gradient of the scaled loss, a vector in float32 that was float16
            before. Some numbers may be infinite or NaN, on one replica or on several.
        scale, good_steps: What you returned in the step before, a float32 and an int32.
        clip_norm: The largest norm of `step`.
        grow_every: After so many good steps in a row, `scale` doubles and `good_steps` starts at 0.
    """
    ### BEGIN SOLUTION
    context = tf.distribute.get_replica_context()
    total = context.all_reduce("SUM", gradient)
    finite = tf.reduce_all(tf.math.is_finite(total))

    step = tf.clip_by_norm(total / scale, clip_norm)
    step = tf.where(finite, step, tf.zeros_like(step))

    good_steps = tf.where(finite, good_steps + 1, 0)
    row_complete = good_steps == grow_every
    good_steps = tf.where(row_complete, 0, good_steps)
    factor = tf.where(finite, tf.where(row_complete, 2.0, 1.0), 0.5)
    return step, scale * factor, good_steps
    ### END SOLUTION


# %%
dl.check("scaled_update")

# %% [markdown]
# **Try next:** move the check to before the reduction. Which replicas skip now, and what would
# their weights be after ten more steps?

# %% [markdown]
# ## Task 3: a loop in float16
#
# How do you train with gradients of about 1e-8, which float16 rounds to 0? Write `train`, a loop
# with a fixed loss scale that reads `dataset` once. The replicas must share each batch, and the
# loss is the mean squared error over the global batch. About 16 lines are enough.
#
# <details><summary>Hint 1</summary>
#
# Which two lines does [the loop of lesson 03](../notebooks/03_custom_training_loop.ipynb) lack?
# </details>
#
# <details><summary>Hint 2</summary>
#
# The scale comes in before the gradient is taken, and must be gone before the optimizer uses it.
# </details>
#
# <details><summary>Hint 3</summary>
#
# Write `loss * scale` inside the tape, and divide each gradient by `scale` before
# `optimizer.apply`. Return the loss that is not scaled.
# </details>


# %%
# task: train_float16
def train(strategy, model, optimizer, dataset, scale):
    """Returns the loss of each global batch before its update, as you would log it, in a list.

    Args:
        strategy: The strategy in whose scope the model and the optimizer were made.
        model: A model under `mixed_float16` that returns float32.
        optimizer: A plain SGD.
        dataset: Batches of `(x, y)`, not distributed yet. All shares of a batch are equal.
        scale: The loss scale, a number.
    """
    ### BEGIN SOLUTION
    weights = model.trainable_variables
    error_of = keras.losses.MeanSquaredError(reduction="none")

    def replica_step(x, y):
        global_batch = len(x) * strategy.num_replicas_in_sync
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(error_of(y, model(x, training=True))) / global_batch
            scaled = loss * scale
        gradients = [g / scale for g in tape.gradient(scaled, weights)]
        optimizer.apply(gradients, weights)
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    return [float(step(batch)) for batch in strategy.experimental_distribute_dataset(dataset)]
    ### END SOLUTION


# %%
dl.check("train_float16")

# %% [markdown]
# **Try next:** let a `LossScaleOptimizer` do both. In the scope, wrap the optimizer
# (`initial_scale=scale`) and call `wrapper.build(weights)`. Inside the tape, write
# `wrapper.scale_loss(loss)` in place of `loss * scale`, and leave the division out, because
# `wrapper.apply` divides. The check passes with this loop, too, since nothing overflows here. If
# replica 1 overflowed, what would this loop do?

# %% [markdown]
# ## Task 4: a memory budget
#
# How many bytes does training with Adam take on **one replica** of a `MirroredStrategy`? Write
# `training_bytes`, which computes four parts from the sizes of the model and the batch. Leave out
# the 16-bit copies of the weights. Eight lines are enough.
#
# <details><summary>Hint 1</summary>
#
# Which of the four parts changed with the policy in the lesson's output?
# </details>
#
# <details><summary>Hint 2</summary>
#
# For each part ask: how many numbers, how many bytes each, and does every replica hold all of them?
# </details>
#
# <details><summary>Hint 3</summary>
#
# Weights and gradients take 4 bytes, Adam 8, in every policy and on every replica. Activations take
# 4 or 2 bytes, for `global_batch // replicas` examples.
# </details>


# %%
# task: training_bytes
def training_bytes(parameters, activations, global_batch, replicas, policy):
    """The memory that training with Adam takes on one replica.

    Args:
        parameters: The number of weights of the model.
        activations: The number of values that its layers return for one example. All of them are
            kept for the backward pass.
        global_batch: The number of examples in a step, shared equally among the replicas.
        replicas: The number of replicas.
        policy: `"float32"`, `"mixed_float16"` or `"mixed_bfloat16"`.

    Returns:
        A dictionary with the bytes of `"weights"`, `"gradients"` (those of the weights),
        `"optimizer"` and `"activations"`.
    """
    ### BEGIN SOLUTION
    computed = 4 if policy == "float32" else 2
    return {
        "weights": 4 * parameters,
        "gradients": 4 * parameters,
        "optimizer": 2 * 4 * parameters,
        "activations": computed * activations * global_batch // replicas,
    }
    ### END SOLUTION


# %%
dl.check("training_bytes")

# %% [markdown]
# **Try next:** a model has 25 million weights and 20 million activations per example. How large can
# the per-replica batch be in 16 GB, in float32 and in 16 bits?

# %% [markdown]
# ## Task 5: choose
#
# Which policy would you try first on each of these devices, for speed, and does it need a loss
# scale? Write `choose`, which gets the name of one device. The docstring lists them, each with its
# generation. Five lines are enough.
#
# <details><summary>Hint 1</summary>
#
# Which 16-bit format do the fast units of each device know?
# </details>
#
# <details><summary>Hint 2</summary>
#
# If a device is as fast in both formats, take the one that needs no loss scale.
# </details>
#
# <details><summary>Hint 3</summary>
#
# The table near the end of the lesson names generations of GPUs. Is your GPU one of these, older,
# or newer?
# </details>


# %%
# task: choose_policy
def choose(device):
    """The policy to try first on a device, and whether it needs a loss scale.

    Args:
        device: One of five names. `"GTX 1080"` is a GPU of the Pascal generation (2016),
            `"Titan V"` of Volta (2017), `"RTX 2080"` of Turing (2018), and `"L4"` of Ada Lovelace
            (2022). `"TPU v5e"` is a TPU.

    Returns:
        Two things: the name of the policy, and `True` or `False`.
    """
    ### BEGIN SOLUTION
    if device in ("Titan V", "RTX 2080"):
        return "mixed_float16", True
    if device in ("L4", "TPU v5e"):
        return "mixed_bfloat16", False
    return "float32", False
    ### END SOLUTION


# %%
dl.check("choose_policy")

# %% [markdown]
# **Try next:** ask `dl.doctor()` which device your machine has, or the one that you rent. Train one
# epoch in the policy that you chose, and one in float32.

# %% [markdown]
# ## Your report: what float16 loses
#
# What does float16 lose, and what brings it back? A linear model decides from 64 pixels whether a
# digit is 5 or more, trained with SGD on four replicas. Pixels and targets are divided by 8192, so
# the gradients of the weights are as small as in task 3, and that of the model's output is about
# 1e-5. The losses below are shown 8192² times as large, so that the first one is 1. One cell trains
# the model four times, from the same weights:
#
# 1. your `train` of task 3 in float32,
# 2. your `train` in float16, without a scale (`scale` is 1),
# 3. your `train` in float16, with a scale of 2 to the power of 20,
# 4. in float16 with your `scaled_update` of task 2, whose scale starts at 2 to the power of 36 and
#    doubles after 6 good steps in a row.

# %%
# report: what_float16_loses
with waits_for("train_float16", "scaled_update"):
    runs = run_in_float16(train, scaled_update)
    dl.show("steps skipped", runs.skipped)
    for name, losses in runs.losses.items():
        dl.show(f"mean loss of the last four steps, {name}", sum(losses[-4:]) / 4, digits=2)
    display(draw_loss_scale(runs.losses, runs.scales, skipped=runs.skipped))

# %% [markdown]
# <!-- report: what_float16_loses -->
# A person reads this, with the picture that the cell above draws. Answer each question below it in
# two to four sentences, and name numbers that you see.
#
# **1. One curve does not move at all. At which point of the step is its training lost, and why does
# your loop with a scale not lose it?**
#
# <!-- BEGIN SOLUTION -->
# "Float16, no scale" stays at 1. Its predictions and losses are right, but the gradients of its
# weights are about 1e-8, and float16 turns everything up to 3e-8 into 0, so every step is 0.
# Multiplied by 2 to the power of 20 they are about 0.01, which float16 can hold. Because the
# division afterwards is done in float32, that curve lies on the one of float32.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **2. Which steps did your scale skip, and why these? What does it cost, and what would make it
# cheaper?**
#
# <!-- BEGIN SOLUTION -->
# It skipped the first four, because the scale had to fall from 2 to the power of 36 to 32. At 33
# the gradient of the output, about 1e-5, still becomes larger than 65504. Then it skipped every
# seventh, because after six good steps the scale doubles to 33, overflows and falls again. So its
# curve is a few steps behind, and then loses one step in seven. A lower start saves the first four,
# and doubling only after 2000 good steps, as Keras does, makes the later ones rare.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **3. A T4, an H200 and a TPU v5e: on which of them would you need the code that you wrote here?
# Say why.**
#
# <!-- BEGIN SOLUTION -->
# Only on the T4, because its tensor cores know float16 and not bfloat16, so the loss must be
# scaled. The H200 is as fast in bfloat16, and the TPU is made for it. bfloat16 has the exponents of
# float32, so it keeps a gradient of 1e-8 without any scale, although with fewer digits.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->

# %% [markdown]
# ## Next steps
#
# - Train a model of your own for one epoch in each policy, with `dl.distribute(build, strategy)`,
#   and compare the losses. If you have a GPU, time the second epoch of each run. (`time_on_gpu` of
#   [the lesson](../notebooks/07_mixed_precision.ipynb) measures a model of its own.)
# - Before you choose float16, draw the gradients of your layers' outputs, as the lesson does:
#   `draw_underflow(gradients_by_layer(model, x, y))`, for a `Sequential` model in float32 that
#   returns scores.
# - [Lesson 08](../notebooks/08_save_and_load.ipynb): keep what was trained, and move it.
