# %% [markdown]
# # Exercise: scaling
#
# This exercise follows [lesson 14](../notebooks/14_scaling.ipynb). You repair a stopwatch, test a
# line on sizes that it has not seen, send gradients in buckets, and find the number of replicas
# beyond which a step gets slower. Then you write a report.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `step_timer` | repair a stopwatch with two mistakes | 8 | easy | core |
# | 2. `fit_link` | fit alpha and beta, and test them on unseen sizes | 12 | medium | core |
# | 3. `bucket_overlap` | send gradients in buckets while you compute | 15 | medium | core |
# | 4. `predict_knee` | find the number of replicas with the fastest step | 12 | medium | extra |
# | report `one_against_many` | one device against many, for a CNN | 15 | medium | extra |
# | your own model | measure it on your machine (no points) | 15 | open | extra |
#
# Write your answers in the cells that start with `# task:` and run them. Then run the check below
# each. If you get stuck, open the hint.

# %%
import numpy as np
from IPython.display import display

import distlab as dl
from distlab.course.figures.step_costs import draw_spread, draw_step_parts
from distlab.course.lesson_14_scaling.recorded import recorded_scaling
from distlab.course.lesson_14_scaling.runs import scale_recorded

dl.show("points of the tasks", 12)
dl.show("points of the report", 6)

# %% [markdown]
# ## Task 1: a stopwatch that lies
#
# How long does one step take, on a GPU that works through a queue? `secs_per_step` should return
# the mean seconds of a step, but it's wrong in two ways, which pull in opposite directions. Run the
# check before you change anything: it simulates the GPU and the clock, and takes no time. Then
# repair the function in about 7 lines.
#
# <details><summary>Hint</summary>
#
# At which two moments is the clock read? Is the GPU idle at both of them?
# </details>


# %%
# task: step_timer
def secs_per_step(step, wait, clock, calls):
    """Returns the mean seconds of one step, over the steps that count.

    Args:
        step: Gives a compiled training step to the GPU, and returns as soon as the step is in the
            GPU's queue. The GPU takes its steps in order, one after the other. The very first call
            also traces the function, which shouldn't count.
        wait: Returns when all queued steps are done.
        clock: Returns the time in seconds.
        calls: The number of steps that count.
    """
    ### BEGIN SOLUTION
    step()
    wait()
    start = clock()
    for _ in range(calls):
        step()
    wait()
    return (clock() - start) / calls
    ### STUB
    start = clock()
    for _ in range(calls):
        step()
    return (clock() - start) / calls
    ### END SOLUTION


# %%
dl.check("step_timer")

# %% [markdown]
# **Try next:** wait after every step instead of once at the end. The check accepts it. When would
# this make a real training look slower than it is?
#
# <details><summary>Answer</summary>
#
# When steps are short. Python usually prepares the next step while the device computes this one. If
# you wait after every step, the device is idle in that time, and so the clock counts it. With long
# steps it hardly matters.
# </details>

# %% [markdown]
# ## Task 2: alpha, beta and a test
#
# How well does a line predict the sizes that it wasn't fitted to? Write `fit_and_test` in about 10
# lines: fit `milliseconds = alpha + beta * megabytes` by least squares, as `np.polyfit` does it.
# Here alpha covers all rounds together, and if it falls below 0, return the best line whose alpha
# is 0.
#
# <details><summary>Hint 1</summary>
#
# Which pairs may decide the line, and which only test it? `np.polyfit(sizes, times, 1)` returns
# beta and alpha, in this order.
# </details>
#
# <details><summary>Hint 2</summary>
#
# If alpha is 0, the sum of squares of `times - beta * sizes` is smallest for
# `beta = sizes @ times / (sizes @ sizes)`.
# </details>


# %%
# task: fit_link
def fit_and_test(known, unseen):
    """Returns a dictionary with "latency_ms" (alpha), "ms_per_mb" (beta) and "largest_error".

    "largest_error" is the largest relative error of the line on the sizes that it was **not**
    fitted to: 0.2 if a prediction is 20 % too large, or 20 % too small, compared with what was
    measured.

    Args:
        known: A list of pairs `(megabytes, milliseconds)`, one for each measured all-reduce.
        unseen: A list of such pairs, for other sizes.
    """
    ### BEGIN SOLUTION
    sizes, times = np.array(known).T
    beta, alpha = np.polyfit(sizes, times, 1)
    if alpha < 0:
        alpha, beta = 0.0, sizes @ times / (sizes @ sizes)
    sizes, times = np.array(unseen).T
    errors = np.abs((alpha + beta * sizes) / times - 1)
    return {"latency_ms": alpha, "ms_per_mb": beta, "largest_error": errors.max()}
    ### END SOLUTION


# %%
dl.check("fit_link")

# %% [markdown]
# **Try next:** `polyfit` counts an error of 1 ms equally for a message of 1 ms and for one of
# 100 ms. `distlab.course.measure.cost_model.fit` counts relative errors. Which line would you trust
# for small messages?
#
# <details><summary>Answer</summary>
#
# The one with relative errors. Suppose that the message of 100 ms is measured 2 % too long. For
# `polyfit` these 2 ms are a large error, so it tilts the line, and alpha moves, too. But alpha is
# what decides the time of a small message.
# </details>

# %% [markdown]
# ## Task 3: when has the last bucket arrived?
#
# When has the last gradient arrived, if gradients leave in buckets while the backward pass goes on?
# Write `last_arrival` in about 10 lines. A bucket is full as soon as it holds at least
# `bucket_mb`, and the last one leaves full or not. The network carries one bucket at a time.
#
# <details><summary>Hint</summary>
#
# Which two things must be over before a bucket can leave?
# </details>


# %%
# task: bucket_overlap
def last_arrival(layers, bucket_mb, latency_ms, mb_per_ms):
    """Returns how many ms after the backward pass began the last bucket has arrived.

    Args:
        layers: A list of pairs, the model's first layer first: how many ms the backward pass of a
            layer takes, and how many MB its gradient has.
        bucket_mb: How many MB a bucket holds, at least, when it's full.
        latency_ms: How many ms each bucket takes on the network, whatever its size.
        mb_per_ms: How many MB of a bucket the network then moves in a ms.
    """
    ### BEGIN SOLUTION
    now = free = held = 0.0
    for ms, mb in reversed(layers):
        now += ms
        held += mb
        if held >= bucket_mb:
            free = max(now, free) + latency_ms + held / mb_per_ms
            held = 0.0
    if held > 0:
        free = max(now, free) + latency_ms + held / mb_per_ms
    return free
    ### END SOLUTION


# %%
dl.check("bucket_overlap")

# %% [markdown]
# **Try next:** 24 layers of 4 ms and 10 MB, a latency of 2 ms and 5 MB per ms. Which `bucket_mb` of
# 1, 10, 25, 60 and 1,000 is best? Then let the first layer have 200 MB, like an embedding.
#
# <details><summary>Answer</summary>
#
# Sending takes 2 ms for each 10 MB and computing takes 4 ms, so everything but the last bucket can
# hide. Small buckets win, because a latency of 2 ms still fits: 1 and 10 MB take 100 ms, 25 MB
# takes 104, and one bucket takes 146. With an embedding the last bucket is large anyway, and
# every size but the largest comes close to the best.
# </details>

# %% [markdown]
# ## Task 4: the fastest step
#
# On how many replicas is a step the fastest? In strong scaling the global batch stays, so each
# replica computes less and less, until more replicas make a step slower again. Write `fastest` in
# about 8 lines, for a ring all-reduce that follows the compute without any overlap.
#
# <details><summary>Hint</summary>
#
# How many rounds has a ring of `n` replicas, and how many megabytes does one link carry in all of
# them? [Lesson 12](../notebooks/12_ring_all_reduce.ipynb) counts both.
# </details>


# %%
# task: predict_knee
def fastest(compute_ms, latency_ms, gradient_mb, mb_per_ms, counts):
    """Returns the number of replicas with the fastest step, and the ms of that step.

    Args:
        compute_ms: How long one replica computes on the whole global batch. The replicas share it
            equally, and each has a device of its own.
        latency_ms: The latency of each round of the all-reduce.
        gradient_mb: How many MB each replica has to add.
        mb_per_ms: How many MB a link moves in a ms.
        counts: A list of numbers of replicas to choose from.
    """

    ### BEGIN SOLUTION
    def step_ms(n):
        rounds = 2 * (n - 1)
        return compute_ms / n + rounds * (latency_ms + gradient_mb / n / mb_per_ms)

    best = min(counts, key=step_ms)
    return best, step_ms(best)
    ### END SOLUTION


# %%
dl.check("predict_knee")

# %% [markdown]
# **Try next:** halve the latency, or double the bandwidth instead. Which of the two moves the
# fastest step to more replicas, and which one makes it much faster?
#
# <details><summary>Answer</summary>
#
# Take 400 ms of compute, 0.02 ms of latency, 100 MB and 10 MB per ms, and any number of replicas.
# The fastest step is at 97 replicas and takes 28 ms, of which 20 ms are bytes. Half the latency
# moves it to 138 replicas, for 25.5 ms. Twice the bandwidth moves it only to 99, for 17.9 ms: the
# bytes cost nearly the same on any number of replicas.
# </details>

# %% [markdown]
# ## Your report: one device against many
#
# A CNN with 420,000 weights was recorded on 1, 2 and 4 replicas that share two cores: with 64
# images in a step (strong), and with 64 on each replica (weak). Each mark is the median of a step,
# and the band behind it is its middle half: half of all blocks were between its ends.

# %%
# report: one_against_many
scaled = scale_recorded()
display(draw_spread(scaled.steps, scaled.efficiency))
display(draw_step_parts(scaled.steps["strong"]))
dl.show("recorded on", recorded_scaling().machine)

# %% [markdown]
# <!-- report: one_against_many -->
# A person reads this, with the pictures above. Answer each question below it in two to four
# sentences, and name numbers that you see.
#
# **1. Between which steps is there a difference that you would report, and between which would you
# report none? Say how you decide.**
#
# <!-- BEGIN SOLUTION -->
# I report a difference if the bands do not overlap. In strong scaling the step of 4 replicas takes
# 11 ms and the step of one 5 ms, and their bands lie apart. The bands of 1 and 2 replicas overlap
# at about 6 ms. There I would report neither a speedup nor a slowdown, and measure longer blocks in
# turns on a quiet machine first. In weak scaling no bands overlap: the first ends at 6.1 ms, the
# second goes from 8.9 to 9.4 ms, and the third starts at 17.9 ms.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **2. In strong scaling, which parts grow from 1 to 2 replicas, and which from 2 to 4, by about how
# many milliseconds? What on this machine could explain the difference?**
#
# <!-- BEGIN SOLUTION -->
# From 1 to 2 replicas only the communication grows, by about 1 ms. From 2 to 4 the compute grows by
# about 3 ms and the communication by about 1 ms. The replicas share two cores, and every replica
# adds what is not divided: it starts its own operations and updates all 420,000 weights. One
# replica probably does not keep both cores busy all the time, so a second one can use the rest. A
# third and a fourth find both cores busy. The all-reduce has 2 rounds on 2 replicas and 6 on 4.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
#
# **3. The 64 images move to 4 machines with one such processor each. Compared with the step of
# one replica, which part of the compute becomes shorter, and which stays as it is? Which other part
# of the step could become longer?**
#
# <!-- BEGIN SOLUTION -->
# Each replica then computes 16 images on cores of its own, so the part that depends on the examples
# falls to a quarter. What a replica does in every step stays. The all-reduce goes through a network
# whose latency and bandwidth are worse than those of one memory, so I would measure it before I
# promise a speedup.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->

# %% [markdown]
# ## Your own model
#
# This task has no check. Write a file `train.py` with two functions: `build()` returns your
# compiled Keras model, and `data(batch_size)` returns a `tf.data.Dataset` of batches `(x, y)`. Then
# run this in a terminal, in the folder of the file:
#
# ```
# distlab bench train.py --replicas 1 2 4 --batch 64 --plot scaling.png
# ```
#
# Each number of replicas runs in a process of its own. You get the efficiency of strong and weak
# scaling, and the parts of each step.
#
# 1. Which part is the largest on one replica? What would you change first?
# 2. Which part grows with the replicas? Which of the differences are larger than their spread?
# 3. Write down what you expect with twice the batch, before you measure it.

# %% [markdown]
# ## Next steps
#
# - [Lesson 14](../notebooks/14_scaling.ipynb), if a check sent you back to it.
# - [Lesson 15](../notebooks/15_fit_into_memory.ipynb): the step doesn't fit, so what do you drop?
# - [The glossary](../docs/glossary.md) explains the terms.
