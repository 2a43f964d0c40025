# %% [markdown]
# # Exercise: choose a strategy
#
# For [lesson 16](../notebooks/16_choosing_a_strategy.ipynb). First you decide six cases and say
# why. Then you write the function that settles such questions for any model, and repair one that
# settles them wrongly.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `choose_and_defend` | six cases, each with a reason | 12 | medium |
# | 2. `compare_strategies` | one model under many strategies, by its weights | 15 | medium |
# | 3. `worth_it` | find three bugs in how measurements are read | 10 | medium |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below. If
# you get stuck, open the hint.

# %%
import numpy as np

import distlab as dl

devices = dl.split_devices(4)
dl.show("devices", len(devices), expected=4)

# %% [markdown]
# ## Task 1: choose and defend
#
# - **A.** A method that takes batches of **4** examples: with more it does not learn. The model
#   fits on one GPU. A host with eight GPUs is free.
# - **B.** A CNN for photographs, batches of 256. With its optimizer it fits on one GPU, where an
#   epoch takes three hours. One host has four equal GPUs.
# - **C.** The same CNN, and now two such hosts with a quick network. The auditors will compare the
#   weights with those of one device.
# - **D.** Forty rented hosts, some of them slow; each may be taken away at any minute. Embeddings
#   that no single host can hold. A gradient that is some steps old does no harm.
# - **E.** One host with 128 GB of memory and two GPUs of 16 GB. Weights 6 GB, gradients 6 GB,
#   activations 2 GB, Adam's state 12 GB.
# - **F.** Weights 60 GB, gradients 60 GB, Adam's state 120 GB. One host with eight GPUs of 80 GB.
#
# `choose(case)` takes a letter and returns two names: a strategy and the reason for it.
#
# - Strategies: `"none"` (no strategy of `tf.distribute` can do it), `"default"`, `"one_device"`,
#   `"mirrored"`, `"central_storage"`, `"multi_worker"`, `"parameter_server"`, `"tpu"`.
# - Reasons:
#
# | reason | says |
# |---|---|
# | `"batch_too_small"` | there is nothing to share out |
# | `"copies_in_one_host"` | one host, and each of its devices can hold a copy of everything |
# | `"hosts_step_together"` | several hosts take each step together |
# | `"nobody_waits"` | no step may wait for the slowest, and old gradients are allowed |
# | `"copies_too_large"` | a device holds a step's work, but not all that is kept for the next |
# | `"replica_too_large"` | no device holds what one replica works on |
# | `"always_faster"` | more devices are faster |
# | `"less_memory_each"` | with more devices, each needs less memory for weights |
#
# Two of the reasons are never true. You earn half a point for each strategy and each reason. About
# 9 lines.
#
# <details><summary>Hint</summary>
#
# Go down the card of the lesson for one case at a time. For E and F add up: what must be on a GPU
# at the same time under Mirrored, and what under CentralStorage, where weights are fetched for a
# step and the optimizer's state stays at home?
# </details>


# %%
# task: choose_and_defend
def choose(case):
    ### BEGIN SOLUTION
    answers = {
        "A": ("one_device", "batch_too_small"),
        "B": ("mirrored", "copies_in_one_host"),
        "C": ("multi_worker", "hosts_step_together"),
        "D": ("parameter_server", "nobody_waits"),
        "E": ("central_storage", "copies_too_large"),
        "F": ("none", "replica_too_large"),
    }
    return answers[case]
    ### END SOLUTION


# %%
dl.check("choose_and_defend")

# %% [markdown]
# **Try next:** in which of the six would a larger batch change your answer? And what would you ask
# before you let it grow?

# %% [markdown]
# ## Task 2: the table for any model
#
# Write `compare_strategies(build, dataset, strategies)`.
#
# - `build()` returns a new compiled Keras model, always with the same first weights.
# - `dataset` has batches of `(x, y)`. The last batch may be smaller, and its shares unequal.
# - `strategies` is a dictionary from a name to a strategy.
# - Train for **one epoch**: once without a strategy, by plain `fit`, and once under each strategy.
#   Not every model comes out equal, and not every difference shows in the loss.
# - Return a dictionary from each name to `{"equal": ..., "copies": ...}`. `equal` is `True` where
#   no weight is more than 1e-5 from one device's, else `False`. `copies` is how many copies there
#   are of the model's first weight.
# - About 12 lines.
#
# <details><summary>Hint</summary>
#
# `dl.distribute(build, strategy)` gives you the model. `model.get_weights()` has all weights, also
# those that are not trained. The copies of a weight are listed by
# `strategy.experimental_local_results(model.weights[0].value)`.
# </details>


# %%
# task: compare_strategies
def compare_strategies(build, dataset, strategies):
    ### BEGIN SOLUTION
    one = build()
    one.fit(dataset, verbose=0, shuffle=False)
    table = {}
    for name, strategy in strategies.items():
        model = dl.distribute(build, strategy)
        model.fit(dataset, verbose=0, shuffle=False)
        pairs = zip(one.get_weights(), model.get_weights(), strict=True)
        table[name] = {
            "equal": all(bool(np.abs(a - b).max() <= 1e-5) for a, b in pairs),
            "copies": len(strategy.experimental_local_results(model.weights[0].value)),
        }
    return table
    ### END SOLUTION


# %%
dl.check("compare_strategies")

# %% [markdown]
# **Try next:** give your function a model with `keras.layers.BatchNormalization()`, and then with
# `BatchNormalization(synchronized=True)`.

# %% [markdown]
# ## Task 3: is it worth it?
#
# A model was measured under some strategies, on real devices. `worth_it(measured)` shall say which
# one to take, and it says wrong things. There are **three bugs**: each of them a way in which
# measurements are misread every day. Run the check before you change anything.
#
# - `measured` is a dictionary from a strategy's name to what was measured under it:
#   `{"equal": ..., "global_batch": ..., "step_ms": [...]}`. `equal` says whether it ended with the
#   weights of one device, `global_batch` how many examples a step takes, and `step_ms` how many
#   milliseconds each of seven steps took.
# - It returns a name: that of the strategy with the **most examples a second**. One that does not
#   end with the right weights is out.
# - A step may be disturbed, and a clock may be wrong for once: neither of them may decide.
# - `"one_device"` is always measured, and always equal. What is not at least 10 % faster is not
#   worth the trouble: then return `"one_device"`.
# - Change about 3 lines.
#
# <details><summary>Hint</summary>
#
# What does a step per second say where one step takes 64 examples and the other 256? And of seven
# measurements, which number does not mind one that is much too small, or much too large?
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
# **Try next:** the larger global batch has more examples a second. After how many epochs is it as
# far as the smaller one? What else would you have to measure?

# %% [markdown]
# ## Next steps
#
# - [Lesson 16](../notebooks/16_choosing_a_strategy.ipynb), if a check sent you back to it.
# - Keep `compare_strategies`. The next time somebody says "under this strategy it trains
#   differently", you can answer in a minute.
