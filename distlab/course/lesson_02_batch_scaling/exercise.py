# %% [markdown]
# # Exercise: batch size and learning rate
#
# For [lesson 02](../notebooks/02_batch_scaling.ipynb). You plan a job for several replicas, repair
# a warm-up that never arrives, and say what a larger batch costs without fooling yourself. If you
# did the lesson's extra section, you can also measure a gradient's noise on the replicas.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `plan_job` | plan batch, rate and steps, with gradient accumulation | 10 | easy | core |
# | 2. `rate_at` | repair the warm-up of a Keras callback | 10 | medium | core |
# | 3. `noise_parts` | split a gradient into signal and noise, on replicas | 15 | medium | extra |
# | 4. `compare_batches` | say what a larger batch costs, seed by seed | 15 | medium | core |
# | report `where_the_rule_ends` | compare two rules for Adam's rate with none | 20 | hard | extra |
# | your own model | double its batch: and its rate? (no points) | 20 | open | extra |
#
# Write your answers in the cells that start with `# task:`, where a docstring says what each
# function takes and returns. Run them, and then the check below each. If you get stuck, open a
# hint. The report uses task 4.

# %%
import math

import tensorflow as tf
from IPython.display import display

import distlab as dl
from distlab.course.lesson_02_batch_scaling.figures import draw_by_batch
from distlab.course.lesson_02_batch_scaling.runs import train_many
from distlab.course.runs.outcomes import waits_for

devices = dl.split_devices(4)
strategy = dl.make_strategy("mirrored", devices=devices)
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## Task 1: plan a job
#
# What does a job on several replicas need, if a rate of `found_rate` worked on one device with
# batches of `found_batch`? Each replica sums the gradients of `accumulate` micro-batches before all
# of them reduce and update ([gradient accumulation](../docs/glossary.md#gradient-accumulation)).
# Write `plan_job`, for which about 8 lines are enough.
#
# <details><summary>Hint</summary>
#
# How many examples decide one update? Rate and steps follow from that number. `dl.plan_batch`
# knows nothing of accumulation, but it can plan for any `global_batch` and `reference_batch`.
# </details>


# %%
# task: plan_job
def plan_job(
    examples, epochs, per_replica, replicas, accumulate, optimizer, found_rate, found_batch
):
    """Plans the global batch, the learning rate and the steps of a job.

    Args:
        examples, epochs: The examples of one epoch, and the number of epochs.
        per_replica, replicas: The examples in one micro-batch, and the number of replicas.
        accumulate: How many micro-batches each replica takes for one update.
        optimizer: `"sgd"` or `"adam"`. It gets the mean gradient over all examples of the update.
        found_rate, found_batch: The rate that worked on one device, and its batch size.

    Returns:
        A dictionary: `"global_batch"`, the examples in one update; `"learning_rate"`, by the
        lesson's rule for the optimizer; `"steps"`, the updates in all epochs, where the partial
        batch at the end of an epoch is an update as well.
    """
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
#
# <details><summary>Answer</summary>
#
# None of them changes, because an update has as many examples as before. But each replica runs half
# as many micro-batches one after the other, so an update takes about half the time, plus what the
# all-reduce of more replicas adds. That's strong scaling.
# </details>

# %% [markdown]
# ## Task 2: a warm-up that never arrives
#
# Why does this warm-up never reach its full rate? A Keras callback asks `rate_at` for the rate of
# each step, and **the count of batches starts again in every epoch**. The function raises no error,
# although it breaks the rules in its docstring in two ways. About 5 lines repair it.
#
# <details><summary>Hint</summary>
#
# How many steps has the optimizer taken before this one, and in which step is the climb over? At
# the end try `warmup_epochs=0`: does your repair still give `full_rate` in the first step?
# </details>


# %%
# task: rate_at
def rate_at(epoch, batch, steps_per_epoch, warmup_epochs, first_rate, full_rate):
    """The learning rate of one step, with a linear warm-up.

    The very first step has `first_rate`, and the first step after the warm-up has `full_rate`. In
    between, the rate grows by the same amount in each step, and after the warm-up it stays.

    Args:
        epoch: The epoch of the step, counted from 0.
        batch: The batch of the step within its epoch, counted from 0.
        steps_per_epoch: The number of batches in an epoch.
        warmup_epochs: The length of the warm-up. With 0 epochs every step has `full_rate`.
        first_rate: The rate at which the warm-up begins.
        full_rate: The rate at which it ends.
    """
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
# **Try next:** compare your rates with those of `plan.warmup(steps=...)` in the lesson. A training
# is killed in epoch 2: where does its rate resume, with a callback and with a schedule?
#
# <details><summary>Answer</summary>
#
# The rates are the same. The schedule reads the optimizer's count of steps, which a checkpoint
# keeps, so it resumes where it was. The callback gets its epoch from `fit`, which counts from 0
# again unless you pass `initial_epoch=2` or use `keras.callbacks.BackupAndRestore`, so without them
# the warm-up starts again.
# </details>

# %% [markdown]
# ## Task 3: signal and noise on the replicas
#
# How much of a gradient is noise, if it's too large to leave its replica, as in a real job? Write
# `noise_parts`, which runs **on every replica, inside `strategy.run`**, and returns the same two
# numbers on each of them. It must hold for any number of replicas from two on, and about 8 lines
# are enough.
#
# <details><summary>Hint 1</summary>
#
# The lesson has two formulas, with $|g_b|^2$ and $|g_B|^2$. Which of them can a replica compute
# alone, and what must be averaged before it is squared?
# </details>
#
# <details><summary>Hint 2</summary>
#
# With `context = tf.distribute.get_replica_context()`, `context.all_reduce("MEAN", value)` takes a
# vector or a number. `context.num_replicas_in_sync` is the number of replicas.
# </details>


# %%
# task: noise_parts
def noise_parts(gradient, per_replica):
    """The noise and the signal in the gradient of one step.

    Args:
        gradient: This replica's float32 vector, the mean over its own examples.
        per_replica: The number of examples on each replica.

    Returns:
        `(noise, signal)`: the lesson's variance of one example's gradient, and the squared norm of
        the true gradient, both estimated from this one step.
    """
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
# **Try next:** your two numbers come from one step, and the signal can even be negative. So average
# each over many steps *before* you divide. What if you average the ratios of single steps instead?
#
# <details><summary>Answer</summary>
#
# In some steps the signal is nearly 0, so their ratio is huge, with either sign. A few such steps
# decide the mean, and it doesn't settle however many steps you add.
# </details>

# %% [markdown]
# ## Task 4: what does the larger batch cost?
#
# How much accuracy does a larger batch cost after equal epochs, and how sure is that? Seed 3 gives
# both batches the same initial weights and the same order of digits, so compare **seed by seed**:
# each seed gives one difference. Write `compare_batches`, which takes each batch size at its own
# best rate. About 8 lines are enough.
#
# <details><summary>Hint</summary>
#
# Which digits may choose a rate, so that the accuracy on the test digits stays honest? And how many
# differences do five seeds give?
# </details>


# %%
# task: compare_batches
def compare_batches(small, large, epochs):
    """Compares the test accuracy of two batch sizes, each at its own best rate.

    Args:
        small: What `train_many` returned for the small batch. `small.rates` are its rates, and
            `small.accuracy_after(epochs, on="validation")` or `on="test"` has the shape
            `[rates, seeds]`.
        large: The same for the large batch.
        epochs: After how many epochs to choose the rates and to compare. Runs may be longer.

    Returns:
        Three values: the best rates as a pair `(small's, large's)`, the mean over the seeds of
        large's test accuracy minus small's, and the standard error of that mean (`ddof=1`).
    """
    ### BEGIN SOLUTION
    rates, accuracies = [], []
    for runs in (small, large):
        best = runs.accuracy_after(epochs, on="validation").mean(axis=1).argmax()
        rates.append(runs.rates[best])
        accuracies.append(runs.accuracy_after(epochs, on="test")[best])
    differences = accuracies[1] - accuracies[0]
    error = differences.std(ddof=1) / math.sqrt(len(differences))
    return tuple(rates), differences.mean(), error
    ### END SOLUTION


# %%
dl.check("compare_batches")

# %% [markdown]
# **Try next:** run the report's cell below. Then compute the error as if the seeds of the two
# batches had nothing in common, from the errors of both means: `math.hypot(one, other)`. How
# different is it in that sweep?
#
# <details><summary>Answer</summary>
#
# With batches of 8 and 32 it's 0.49 points instead of 0.43, and with 8 and 128 it's 0.47 instead of
# 0.53. So after 8 epochs the seeds share hardly any luck, which you couldn't know before, while
# differences of single seeds are right in either case.
# </details>

# %% [markdown]
# ## Your report: where a rule for Adam ends
#
# The lesson trained with SGD. The cell below trains the same network with Adam, for 8 epochs with
# batches of 8 to 512. A rate of 0.008 was found for a batch of 8. Whenever the batch grows 4 times,
# the square-root rule doubles that rate, while the linear rule multiplies it by 4. Your
# `compare_batches` chooses the best rate for each batch, and compares it with the batch of 8.

# %%
# report: where_the_rule_ends
BATCHES = (8, 32, 128, 512)
RATES = (0.008, 0.016, 0.032, 0.064, 0.128, 0.512)
RULES = {
    "fixed": (0.008, 0.008, 0.008, 0.008),
    "square root": (0.008, 0.016, 0.032, 0.064),
    "linear": (0.008, 0.032, 0.128, 0.512),
}

with waits_for("compare_batches"):
    sweep = [train_many(b, rates=RATES, epochs=8, seeds=10, optimizer="adam") for b in BATCHES]
    for runs in sweep[1:]:
        rates, difference, error = compare_batches(sweep[0], runs, 8)
        told = {"rate": rates[1], "points more than with 8": 100 * difference, "+-": 100 * error}
        dl.show(f"batch {runs.batch}, {8 * 1024 // runs.batch} steps", told, digits=3)
        for batch, rate in zip((8, runs.batch), rates, strict=True):
            if rate in (min(RATES), max(RATES)):
                print(f"  careful: the best rate of batch {batch}, {rate}, is at the grid's edge")
    curves = {
        name: {
            runs.batch: 100 * runs.accuracy_after(8)[RATES.index(rate)]
            for runs, rate in zip(sweep, rule_rates, strict=True)
        }
        for name, rule_rates in RULES.items()
    }
    display(draw_by_batch(curves, y="test accuracy", y_unit="%"))

# %% [markdown]
# <!-- report: where_the_rule_ends -->
# A person reads your answers, together with the picture above. Answer each question in two to four
# sentences, and name numbers that you see.
#
# **1. Up to which batch size does each of the three ways keep the accuracy of a batch of 8? How do
# you tell a loss from chance?**
#
# <!-- BEGIN SOLUTION -->
# Up to 128 the square root and even the fixed rate stay within one point of 96.1 %, which on 360
# digits is noise. At 512 the fixed rate has 82 % and the square root 94 %, and both losses are
# larger than one point and than their error bars of 0.8 and 0.4 points. The linear rule loses 2
# points at 128 already, and at 512 it's down to 18 %.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **2. All runs have 8 epochs. How many steps does a batch of 512 take, and a batch of 8? What would
# a comparison after equally many steps have shown instead?**
#
# <!-- BEGIN SOLUTION -->
# A batch of 512 takes 16 steps and a batch of 8 takes 1,024, which is 64 times as many. After
# equally many steps the batch of 512 would have seen 64 times as many digits, so it would look
# better than it is for the same amount of data. Both comparisons are possible, but they answer
# different questions, so I must say which one I made.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **3. A colleague has 16 replicas and wants 32 digits on each. What do you advise?**
#
# <!-- BEGIN SOLUTION -->
# 16 times 32 is a global batch of 512, with which even the best rate loses 2 points in 8 epochs.
# I'd take 8 digits on each replica, so 128, with the square-root rule's rate of 0.032 (0.016, the
# best on the validation digits, does as well). If the replicas are slow with 8 digits, I'd use 4 of
# them with 32 each, and train four seeds side by side. Or I'd pay for a batch of 512 with more
# epochs, but then the 16 replicas save less than their number says.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **4. The cell warns that one best rate is at the edge of the grid. What could be wrong with the
# comparison then? What do you do about it, and what do you find?**
#
# <!-- BEGIN SOLUTION -->
# The grid ends at 0.008, which is the best rate of a batch of 8. If a lower rate were better, every
# difference would be measured from too low an accuracy, so the larger batches would look too good.
# I added 0.004 and 0.002 to `RATES`. They have 95.4 % and 94.9 % on the validation digits, while
# 0.008 has 95.9 %, so 0.008 stays the best rate and the differences stay as they are.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->

# %% [markdown]
# ## Your own model
#
# Does the rule hold for a model of yours? This task has no check. Take a model that trains in a few
# minutes, with its batch and its learning rate.
#
# 1. Write down what you expect if you double the batch. Which rate is then the best: the one that
#    you have, twice as much, or something between?
# 2. Train it as it is, with three seeds. Then double the batch, and train with three rates and the
#    same seeds for as many *epochs* as before. Compare each rate's validation accuracy with your
#    old batch, seed by seed, as in task 4. Which differences are larger than their error?
# 3. If the best of the three rates is at an edge of what you tried, try one more.
# 4. Suppose you train on 8 replicas, with your batch on each. How do you set the rate in the first
#    steps, and what does your answer to 2 say about a batch that's eight times as large?

# %% [markdown]
# ## Next steps
#
# - Plan the batch of your own training run with `dl.plan_batch`, and look at it with
#   `distlab.course.lesson_02_batch_scaling.view.explore_batch_plan(examples=...)`.
# - Measure your own noise scale with `noise_parts`, in the first epoch and in a late one.
# - [Lesson 03](../notebooks/03_custom_training_loop.ipynb): the whole loop by hand.
