# %% [markdown]
# # Exercise: batch size and learning rate
#
# For [lesson 02](../notebooks/02_batch_scaling.ipynb). You plan a job for several replicas, repair
# a warm-up, measure noise on the replicas, and read a sweep of your own without fooling yourself.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `plan_job` | plan batch, rate and steps, with gradient accumulation | 10 | easy |
# | 2. `rate_at` | repair the warm-up of a Keras callback | 10 | medium |
# | 3. `noise_parts` | split a gradient into signal and noise, on the replicas | 15 | medium |
# | 4. `conclude` | read a sweep: rate, accuracy and its error | 15 | medium |
# | report `where_the_rule_ends` | find where two rules for Adam end | 20 | hard |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below
# each. If you get stuck, open a hint. The report uses task 4.

# %%
import math

import tensorflow as tf
from IPython.display import display

import distlab as dl
from distlab.coursework.batch_sweeps import train_many
from distlab.coursework.unfinished_answers import waits_for
from distlab.pictures.batch_scaling import draw_by_batch

devices = dl.split_devices(4)
strategy = dl.make_strategy("mirrored", devices=devices)
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## Task 1: plan a job
#
# A learning rate of `found_rate` worked on one device, with batches of `found_batch`. Now the job
# moves to several replicas. The memory of each replica holds `per_replica` examples at a time, so
# the job also uses [gradient accumulation](../docs/glossary.md#gradient-accumulation): each replica
# adds up the gradients of `accumulate` such micro-batches, and only then all replicas reduce and
# update. Every gradient is a mean over the examples of the update.
#
# - `plan_job(examples, epochs, per_replica, replicas, accumulate, optimizer, found_rate,
#   found_batch)` returns a dictionary with three keys.
# - `"global_batch"` is the number of examples in one update.
# - `"learning_rate"` follows the lesson's rule for the `optimizer`, `"sgd"` or `"adam"`.
# - `"steps"` is the number of updates in all epochs. Each epoch ends with a partial batch, and that
#   is an update as well. About 8 lines.
#
# <details><summary>Hint</summary>
#
# How many examples decide one update? Rate and steps follow from this number. `dl.plan_batch` knows
# nothing of accumulation, but it can plan for any `global_batch` and `reference_batch`.
# </details>


# %%
# task: plan_job
def plan_job(
    examples, epochs, per_replica, replicas, accumulate, optimizer, found_rate, found_batch
):
    ### BEGIN SOLUTION
    plan = dl.plan_batch(
        global_batch=per_replica * replicas * accumulate,
        replicas=replicas,
        base_learning_rate=found_rate,
        reference_batch=found_batch,
        rule="linear" if optimizer == "sgd" else "square_root",
    )
    return {
        "global_batch": plan.global_batch,
        "learning_rate": plan.learning_rate,
        "steps": epochs * plan.steps(examples),
    }
    ### END SOLUTION


# %%
dl.check("plan_job")

# %% [markdown]
# **Try next:** the job gets twice the replicas and half the `accumulate`. Which of the three
# numbers change, and what have you gained?

# %% [markdown]
# ## Task 2: a warm-up that never arrives
#
# A Keras callback can set the learning rate before each batch. It knows the epoch and the batch,
# both counted from 0, and **the count of batches starts again in every epoch**. This function gives
# the callback a rate. It raises no error, and it is wrong in two ways. Repair it.
#
# - `rate_at(epoch, batch, steps_per_epoch, warmup_epochs, first_rate, full_rate)` returns the rate
#   for this step.
# - The very first step of the training has `first_rate`. The first step after `warmup_epochs`
#   epochs has `full_rate`. In between the rate grows by the same amount in each step.
# - After the warm-up the rate stays. With 0 epochs of warm-up every step has `full_rate`. About 5
#   lines.
#
# <details><summary>Hint</summary>
#
# How many steps has the optimizer taken before this one? In which step is the climb over?
# </details>


# %%
# task: rate_at
def rate_at(epoch, batch, steps_per_epoch, warmup_epochs, first_rate, full_rate):
    ### BEGIN SOLUTION
    step = epoch * steps_per_epoch + batch
    steps = warmup_epochs * steps_per_epoch
    if step >= steps:
        return full_rate
    return first_rate + (full_rate - first_rate) * step / steps
    ### STUB
    steps = max(1, warmup_epochs * steps_per_epoch)
    climbed = min(1, (batch + 1) / steps)
    return first_rate + (full_rate - first_rate) * climbed
    ### END SOLUTION


# %%
dl.check("rate_at")

# %% [markdown]
# **Try next:** compare your rates with those of `plan.warmup(steps=...)` in the lesson. Where would
# a training that was killed in epoch 2 go on, with a callback and with a schedule?

# %% [markdown]
# ## Task 3: signal and noise on the replicas
#
# In the lesson, the gradients left the replicas before they were compared. In a real job they are
# too large for that. Write `noise_parts(gradient, per_replica)`, which runs **on every replica,
# inside `strategy.run`**.
#
# - `gradient` is this replica's gradient, a float32 vector: the mean over its own `per_replica`
#   examples.
# - It returns two numbers, the same on every replica: `(noise, signal)`. The first is the
#   lesson's variance of one example's gradient, and the second the squared norm of the true
#   gradient, both estimated from this one step.
# - It must hold for any number of replicas from two on, each with the same number of examples.
#   About 8 lines.
#
# <details><summary>Hint 1</summary>
#
# The lesson has two formulas, with $|g_b|^2$ and $|g_B|^2$. Which of them can a replica compute
# alone, and what must be averaged before it is squared?
# </details>
#
# <details><summary>Hint 2</summary>
#
# `context.all_reduce("MEAN", value)` takes a vector or a number. `context.num_replicas_in_sync` is
# the number of replicas.
# </details>


# %%
# task: noise_parts
def noise_parts(gradient, per_replica):
    ### BEGIN SOLUTION
    context = tf.distribute.get_replica_context()
    small = context.all_reduce("MEAN", tf.reduce_sum(gradient**2))
    large = tf.reduce_sum(context.all_reduce("MEAN", gradient) ** 2)
    few, many = per_replica, per_replica * context.num_replicas_in_sync
    noise = (small - large) / (1 / few - 1 / many)
    signal = (many * large - few * small) / (many - few)
    return noise, signal
    ### END SOLUTION


# %%
dl.check("noise_parts")

# %% [markdown]
# **Try next:** your two numbers come from one step, and the signal can even be negative. Average
# each over many steps *before* you divide. What happens if you average the ratios of single steps?

# %% [markdown]
# ## Task 4: read a sweep
#
# `train_many` returns runs with several rates and seeds. Say what they show after a number of
# epochs. Write `conclude(runs, epochs)`.
#
# - `runs.batch` is the batch size, `runs.rates` the rates, and `runs.steps` the steps after which
#   `runs.validation` was measured: accuracies with the shape `[steps, rates, seeds]`.
# - `runs.accuracy_after(epochs, on="validation")` and `on="test"` have the shape `[rates, seeds]`.
#   There are 1,024 training digits.
# - It returns three numbers: the rate that you would choose, its mean accuracy over the seeds on
#   the test digits, and the standard error of that mean (with `ddof=1`).
# - All of this is after `epochs` epochs, although the runs may be longer. About 5 lines.
#
# <details><summary>Hint</summary>
#
# Which digits may choose the rate, so that the accuracy on the test digits stays an honest one?
# </details>


# %%
# task: conclude
def conclude(runs, epochs):
    ### BEGIN SOLUTION
    chosen = runs.accuracy_after(epochs, on="validation").mean(axis=1).argmax()
    seeds = runs.accuracy_after(epochs, on="test")[chosen]
    return runs.rates[chosen], seeds.mean(), seeds.std(ddof=1) / math.sqrt(len(seeds))
    ### END SOLUTION


# %%
dl.check("conclude")

# %% [markdown]
# **Try next:** choose by the test digits, and look at the accuracy that you would report. By how
# much is it better, and is that the truth?

# %% [markdown]
# ## Your report: where a rule for Adam ends
#
# The lesson trained with SGD. The cell below trains the same network with Adam, for 8 epochs each,
# with batches of 8 to 512. For a batch of 8 the rate of 0.008 was found. The square-root rule
# doubles it whenever the batch grows 4 times, and the linear rule multiplies it by 4. Your
# `conclude` chooses the best rate for each batch.

# %%
# report: where_the_rule_ends
BATCHES = (8, 32, 128, 512)
RATES = (0.008, 0.016, 0.032, 0.064, 0.128, 0.512)
RULES = {"fixed": (0, 0, 0, 0), "square root": (0, 1, 2, 3), "linear": (0, 2, 4, 5)}

with waits_for("conclude"):
    sweep = [train_many(b, rates=RATES, epochs=8, seeds=10, optimizer="adam") for b in BATCHES]
    for runs in sweep:
        rate, accuracy, error = conclude(runs, 8)
        told = {"rate": rate, "accuracy": 100 * accuracy, "+-": 100 * error}
        dl.show(f"batch {runs.batch}, {8 * 1024 // runs.batch} steps", told, digits=3)
    curves = {
        name: {
            runs.batch: 100 * runs.accuracy_after(8)[place]
            for runs, place in zip(sweep, places, strict=True)
        }
        for name, places in RULES.items()
    }
    display(draw_by_batch(curves, y="test accuracy", y_unit="%"))

# %% [markdown]
# <!-- report: where_the_rule_ends -->
# A person reads this, with the picture above. Answer each question below it in two to four
# sentences, and name numbers that you see.
#
# **1. Up to which batch size does each of the three ways keep the accuracy of a batch of 8? How do
# you tell a loss from chance?**
#
# <!-- BEGIN SOLUTION -->
# Up to 128 the square root and even the fixed rate stay within one point of 96.1 %, which is no
# difference on 360 digits. At 512 the fixed rate has 82 % and the square root 94 %. Both lose more
# than one point, and more than the error bars of about 0.4 points. The linear rule loses 2 points
# at 128 already, and at 512 it has 18 %.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **2. All runs have 8 epochs. How many steps does a batch of 512 take, and a batch of 8? What would
# a comparison after equally many steps have shown instead?**
#
# <!-- BEGIN SOLUTION -->
# 16 steps and 1,024 steps: 64 times fewer. After equally many steps the batch of 512 would have
# seen 64 times as many digits, so it would look better than it is for the same amount of data.
# Both comparisons are possible, but they answer different questions, and I must say which I made.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **3. A colleague has 16 replicas and wants 32 digits on each. What do you advise?**
#
# <!-- BEGIN SOLUTION -->
# 16 times 32 is a global batch of 512, and here even the best rate loses 2 points in 8 epochs. I
# would take 8 digits on each replica, so 128, with a rate of 0.032. If the replicas are slow with 8
# digits, I would use 4 of them with 32, and train four seeds side by side. Or I would pay for a
# batch of 512 with more epochs, and then the 16 replicas save less than their number says.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **4. Why does `conclude` not choose the rate by the test digits? Which accuracy would you get if
# it did?**
#
# <!-- BEGIN SOLUTION -->
# The highest of six accuracies is partly luck, so its own test digits flatter it. With the test
# digits the accuracy could only be equal or higher, by a few tenths of a point here, and new digits
# would not repeat it. The validation digits choose, and the test digits then tell.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->

# %% [markdown]
# ## Next steps
#
# - Plan the batch of a training of your own with `dl.plan_batch`, and move
#   `distlab.views.batch_plan.explore_batch_plan(examples=...)` with your number of examples.
# - Measure your own noise scale with `noise_parts`, in the first epoch and in a late one.
# - [Lesson 03](../notebooks/03_custom_training_loop.ipynb): the whole loop by hand.
