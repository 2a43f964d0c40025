# %% [markdown]
# # Exercise: choose a strategy
#
# For [lesson 21](../notebooks/21_choosing_a_strategy.ipynb). First you decide six cases and say
# why. Then you write a function that compares strategies for any model. Last you repair a
# function that reads measurements wrongly.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `choose_and_defend` | six cases, each with a reason | 12 | medium | core |
# | 2. `compare_strategies` | one model, many strategies: where it differs | 15 | medium | core |
# | 3. `worth_it` | find three bugs in how measurements are read | 10 | easy | core |
#
# Write your answers in the cells that start with `# task:`, run them, and then run the check
# below each one. If you get stuck, open the hint.

# %%
import numpy as np

import distlab as dl

devices = dl.split_devices(4)
dl.show("devices", len(devices), expected=4)

# %% [markdown]
# ## Task 1: choose and defend
#
# - **A.** A model that learns only from batches of **4** examples. It fits on one GPU, where a step
#   with one example takes as long as with four. A host with eight GPUs is free.
# - **B.** A CNN without BatchNormalization, batches of 256. With its optimizer it fits on one GPU,
#   where an epoch takes three hours. One host has four equal GPUs.
# - **C.** The same CNN on two such hosts with a quick network. Auditors will compare the weights
#   with those of one device.
# - **D.** Four hosts that stay, and forty rented ones. Some of the rented hosts are slow, and each
#   of them may be taken away at any minute. The embeddings are too large for a single host, and
#   each step reads a few rows of them. A gradient that is some steps old does no harm.
# - **E.** One host with 128 GB of memory and two GPUs of 16 GB. For each GPU: weights 6 GB,
#   gradients 6 GB, activations 2 GB. Adam's state has 12 GB.
# - **F.** Weights 60 GB, gradients 60 GB, Adam's state 120 GB. One host with eight GPUs of 80 GB.
#
# `choose(case)` takes a letter and returns two names: a strategy and the reason for it.
#
# - Strategies: `"none"` (no strategy of `tf.distribute` can do it on these devices), `"default"`,
#   `"one_device"`, `"mirrored"`, `"central_storage"`, `"multi_worker"`, `"parameter_server"`,
#   `"tpu"`.
# - Reasons:
#
# | reason | says |
# |---|---|
# | `"no_waiting"` | no step may wait for the slowest host, and old gradients are allowed |
# | `"always_faster"` | more devices are always faster |
# | `"replica_too_large"` | a device cannot hold the weights and gradients of one replica |
# | `"copies_in_one_host"` | one host, and each of its devices can hold a copy of everything |
# | `"less_memory_each"` | under Mirrored, more devices mean less memory for weights on each |
# | `"copies_too_large"` | a device holds what a step needs, but not a copy of everything |
# | `"batch_too_small"` | the batch has too few examples for several devices |
# | `"hosts_step_together"` | several hosts take each step together |
#
# Not every reason is true, and a reason may fit no case. Each strategy and each reason is worth
# half a point. About 9 lines.
#
# <details><summary>Hint</summary>
#
# Ask the card's questions for one case at a time. Which bytes of E and F must be on a GPU at the
# same time under Mirrored? And which under CentralStorage, where a GPU fetches the weights for a
# step and the optimizer's state stays in the host?
# </details>


# %%
# task: choose_and_defend
def choose(case):
    ### BEGIN SOLUTION
    answers = {
        "A": ("one_device", "batch_too_small"),
        "B": ("mirrored", "copies_in_one_host"),
        "C": ("multi_worker", "hosts_step_together"),
        "D": ("parameter_server", "no_waiting"),
        "E": ("central_storage", "copies_too_large"),
        "F": ("none", "replica_too_large"),
    }
    return answers[case]
    ### END SOLUTION


# %%
dl.check("choose_and_defend")

# %% [markdown]
# **Try next:** import `choose` from
# `distlab.course.lesson_21_choosing_a_strategy.strategy_card` under a different name, and answer
# the card's questions for each case, such as `by_card(several_hosts=True)`. Does the card agree
# with you? If case A also learnt from batches of 256 and one GPU were too slow, what would the card
# answer?

# %% [markdown]
# ## Task 2: the table for any model
#
# In the lesson's table every line is equal, because `dl.distribute` trained. Keras's own `fit` can
# differ from one device, and then you have a question: *where*? Write `compare_strategies(build,
# dataset, strategies)`, whose table answers it.
#
# - `build()` returns a new compiled Keras model, always with the same initial weights and the same
#   names.
# - `dataset` has batches of `(x, y)`, which every strategy shares equally.
# - `strategies` is a dictionary from a name to a strategy.
# - Train for **one epoch**, always by Keras's own `fit`: once without a strategy, and once under
#   each strategy. Some models end with different weights, and some of these differences do not show
#   in the loss.
# - Return a dictionary from each name to `{"differs": ..., "copies": ...}`. `differs` is the
#   **path** of the first weight with a number that differs from one device's by more than 1e-5,
#   such as `"model/dense/kernel"`, or `None`. The order is that of `model.weights`.
#   `copies` is how many copies there are of the model's first weight.
# - About 12 lines.
#
# <details><summary>Hint</summary>
#
# What does a Keras weight know about itself that its array does not? Two layers may each have a
# weight called `kernel`: what tells them apart? And if you compared only the weights that are
# trained, which would you leave out?
# </details>
#
# <details><summary>Second hint</summary>
#
# Go through the weights of both models in pairs. After how many pairs can you stop? A difference
# may be below zero as well as above, and two replicas may add up in a different order. The copies
# are counted as in the lesson's table.
# </details>


# %%
# task: compare_strategies
def compare_strategies(build, dataset, strategies):
    ### BEGIN SOLUTION
    one = build()
    one.fit(dataset, verbose=0, shuffle=False)
    table = {}
    for name, strategy in strategies.items():
        with strategy.scope():
            model = build()
        model.fit(dataset, verbose=0, shuffle=False)
        pairs = zip(one.weights, model.weights, strict=True)
        apart = [a.path for a, b in pairs if not np.allclose(a, b, rtol=0, atol=1e-5)]
        table[name] = {
            "differs": apart[0] if apart else None,
            "copies": len(strategy.experimental_local_results(model.weights[0].value)),
        }
    return table
    ### END SOLUTION


# %%
dl.check("compare_strategies")

# %% [markdown]
# **Try next:** give your function a model with `keras.layers.BatchNormalization()`, and then with
# `BatchNormalization(synchronized=True)`. Which weight does it name, and would the loss have shown
# it? Then put `dl.distribute(build, strategy)` in the place of the scope: what does it name now?

# %% [markdown]
# ## Task 3: is it worth it?
#
# A model was measured under some strategies, on real devices. `worth_it(measured)` should say
# which one to take, and it gives wrong answers. It has **three bugs**, and each is a common way
# to misread measurements. Find them before you run the check.
#
# - `measured` is a dictionary from a strategy's name to what was measured under it: `{"equal":
#   ..., "global_batch": ..., "step_ms": [...]}`. `equal` says whether it ended with the weights
#   of one device. `global_batch` is the number of examples in a step. `step_ms` has the
#   milliseconds that each of seven steps took.
# - `worth_it` returns the name of the strategy with the **most examples per second**. A strategy
#   that does not end with the right weights is out.
# - One step may be disturbed, and the clock may be wrong once. Neither may change the answer.
# - `"one_device"` is always measured, and always equal. If no strategy is at least 10 % faster,
#   return `"one_device"`.
# - Change about 3 lines.
#
# <details><summary>Hint</summary>
#
# One strategy takes 64 examples in a step and a different one 256. What do steps per second tell
# you about them?
# </details>
#
# <details><summary>Second hint</summary>
#
# Which number of seven measurements hardly changes if one of them is much too small or much too
# large?
# </details>


# %%
# task: worth_it
def worth_it(measured):
    ### BEGIN SOLUTION
    def speed(name):
        row = measured[name]
        return row["global_batch"] / np.median(row["step_ms"])

    equal = [name for name, row in measured.items() if row["equal"]]
    best = max(equal, key=speed)
    return best if speed(best) >= 1.1 * speed("one_device") else "one_device"

    ### STUB
    def speed(name):
        return 1 / min(measured[name]["step_ms"])

    best = max(measured, key=speed)
    return best if speed(best) >= 1.1 * speed("one_device") else "one_device"
    ### END SOLUTION


# %%
dl.check("worth_it")

# %% [markdown]
# **Try next:** the larger global batch has more examples per second. After how many epochs does
# it reach the loss of the smaller one? What else would you have to measure?

# %% [markdown]
# ## Next steps
#
# - [Lesson 21](../notebooks/21_choosing_a_strategy.ipynb), if a check sent you back to it.
# - Keep `compare_strategies`. If a colleague says "under this strategy it trains differently",
#   you can say in a minute which weight differs first.
