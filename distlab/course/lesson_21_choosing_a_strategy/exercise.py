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
# | 2. `compare_strategies` | one model, many strategies: where it differs | 12 | medium | core |
# | 3. `worth_it` | find three bugs in how measurements are read | 8 | easy | extra |
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
# What would you do in each of six cases, and which fact decides it? Open the cases, and write
# `choose(case)`, which takes about 8 lines. It returns an answer and its reason, each worth half a
# point, and its docstring lists all answers and reasons. Not every reason is true, and an answer
# may fit no case.
#
# <details><summary>The six cases</summary>
#
# - **A.** A model learns only from batches of **4** examples. It fits on one GPU, where one example
#   takes as long as four. A host with eight GPUs is free.
# - **B.** A model fits on one GPU, where an epoch takes three hours. Two hosts have four equal GPUs
#   each, and a quick network. Auditors will compare the weights with those of one device.
# - **C.** Four hosts stay, and forty rented ones are slow or vanish at any minute. The embeddings
#   are too large for a host, but each step reads a few rows. A gradient that's some steps old does
#   no harm.
# - **D.** One host has two GPUs of 16 GB. With Adam a GPU would need 4 GB for weights, 4 GB for
#   gradients, 8 GB for Adam's state and 2 GB for activations. With Lion the model learns as well.
# - **E.** One host has eight GPUs of 80 GB. The weights take 60 GB, the gradients 60 GB, Adam's
#   state 120 GB, but each layer less than 2 GB. Batches have 64 examples, and the activations of
#   eight take 10 GB.
# - **F.** The same host, and the largest layer of another model takes 100 GB with its gradients.
#   Its texts are short, and it has no experts.
# </details>
#
# <details><summary>Hint</summary>
#
# Ask the card's questions for one case at a time. In D, E and F, what must a GPU hold at the same
# time under your answer, and does it fit?
# </details>


# %%
# task: choose_and_defend
def choose(case):
    """Returns an answer and its reason for a case, as two names.

    Args:
        case: A letter from `"A"` to `"F"`.

    Returns:
        The answer is a strategy (`"one_device"`, `"mirrored"`, `"multi_worker"`,
        `"parameter_server"` or `"tpu"`), or `"smaller_step"`, which first makes the step smaller,
        or a way to divide the model (`"sharded_data"`, `"tensor"`, `"pipeline"` or `"expert"`). The
        reasons, and what they say:
        `"no_waiting"`: No step may wait for the slowest host, and old gradients are allowed.
        `"always_faster"`: More devices are always faster.
        `"layer_too_large"`: A device can't hold a single layer.
        `"state_too_large"`: A device holds everything, if the optimizer keeps less.
        `"replica_too_large"`: A device holds each layer, but not all of them.
        `"less_memory_each"`: Under Mirrored, more devices mean less memory for weights on each.
        `"batch_too_small"`: The batch has too few examples for several devices.
        `"hosts_step_together"`: Several hosts take each step together.
    """
    ### BEGIN SOLUTION
    answers = {
        "A": ("one_device", "batch_too_small"),
        "B": ("multi_worker", "hosts_step_together"),
        "C": ("parameter_server", "no_waiting"),
        "D": ("smaller_step", "state_too_large"),
        "E": ("sharded_data", "replica_too_large"),
        "F": ("tensor", "layer_too_large"),
    }
    return answers[case]
    ### END SOLUTION


# %%
dl.check("choose_and_defend")

# %% [markdown]
# **Try next:** import `choose` and `divide` from
# `distlab.course.lesson_21_choosing_a_strategy.strategy_card` under different names, and answer
# the card's questions for each case, such as `by_card(several_hosts=True)`. Does the card agree
# with you? And what would change in case F if the model had to train on four such hosts?

# %% [markdown]
# ## Task 2: where does it differ?
#
# Under which strategies does a model end with other weights, and *where* do they begin to differ?
# Keras's own `fit` doesn't tell you, so write `compare_strategies`. It trains with that `fit` for
# **one epoch**, once without a strategy and once under each one, and names the first weight that
# differs. You'll need about 9 lines.
#
# <details><summary>Hint</summary>
#
# What does a Keras weight know about itself that its array doesn't? And if you compared only the
# weights that are trained, which would you leave out?
# </details>
#
# <details><summary>Second hint</summary>
#
# Go through the weights of both models in pairs. After how many pairs can you stop? A difference
# may be below zero as well as above, and two replicas may sum in another order.
# </details>


# %%
# task: compare_strategies
def compare_strategies(build, dataset, strategies):
    """Returns where a model's weights first differ from one device's, under each strategy.

    Args:
        build: Returns a new compiled model, always with the same initial weights.
        dataset: The batches of `(x, y)` of one epoch, for Keras's own `fit`.
        strategies: A dictionary from a name to a strategy.

    Returns:
        A dictionary from each name to the path of a weight, such as `"model/dense/kernel"`. It's
        the first one, in the order of `model.weights`, that has a number more than 1e-5 away from
        one device's. Where no weight has, it's `None`.
    """
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
        table[name] = apart[0] if apart else None
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
# Which strategy would you take, by what was measured on real devices? `worth_it(measured)` should
# say so, but it has **three bugs**, each a common way to misread measurements. Compare it with its
# docstring, find all three before you run the check, and change about 3 lines.
#
# <details><summary>Hint</summary>
#
# One strategy takes 64 examples in a step and another one 256. What do steps per second tell
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
    """Returns the name of the strategy with the most examples per second.

    Args:
        measured: A row for each strategy's name. `equal` says whether it ended with the weights of
            one device, `global_batch` is the number of examples in a step, and `step_ms` has the
            milliseconds of seven steps. One step may be disturbed, and the clock may be wrong
            once, but neither may change the answer.

    Returns:
        A name. A strategy that doesn't end with the right weights is out. If no strategy is at
        least 10 % faster, it's `"one_device"`, which is always measured, and always equal.
    """

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
# - [When to leave tf.distribute](../docs/leaving.md), if your own model is like E or F.
