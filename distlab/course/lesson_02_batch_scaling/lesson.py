# %% [markdown]
# # Batch size and learning rate: what more replicas change
#
# You move a training run from one GPU to eight, and each GPU gets as many examples as before. No
# error is raised, and at best an epoch takes an eighth of the time. But it is a different training
# now: each update of the weights sees eight times as many examples. What must you change with it,
# and how far can you go?
#
# In 2017, [Goyal et al.](https://arxiv.org/abs/1706.02677) trained ResNet-50 on ImageNet in one
# hour on 256 GPUs. The batch grew from 256 to 8,192, and the learning rate by the same factor.
# Without a warm-up the error rose from 23.6 % to 24.8 %. With a gradual warm-up it was 23.7 %.
# Beyond 8,192 images the error grew even with a warm-up. On digits you will see this rule work, and
# see it end, in seconds. You will also test what a warm-up is worth here.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - say what a [global batch](../docs/glossary.md#global-batch) changes, and what replicas do not,
# - scale a learning rate by a rule, and warm it up,
# - compare batch sizes fairly: at equal epochs and at equal accuracy, with several seeds, and with
#   a learning rate that was not chosen on the test digits,
# - say up to which batch more replicas save time, for a model that somebody else trained, too.
#
# **Time:** {minutes}. **Needs:** [lesson 01](01_mirrored_strategy.ipynb), a step of SGD and
# Keras `compile` and `fit`. No GPU, and nothing is downloaded.

# %% [markdown]
# ### Two questions on earlier lessons
#
# 1. Lesson 01: `fit` gets batches of 64, and there are 4 replicas. How many examples does each
#    replica get?
# 2. Lesson 00: Digits come from files, in batches of 32, for 4 replicas. How many of the last 10
#    digits does each replica get?
#
# <details><summary>Answers</summary>
#
# 1. 16. `fit` takes the global batch.
# 2. 8, 2, 0 and 0. The shares are those of a full batch, in order, while digits last.
# </details>

# %%
import keras
import numpy as np
import tensorflow as tf

import distlab as dl

devices = dl.split_devices(4)
tf.get_logger().setLevel("ERROR")
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# (If that says *TensorFlow is already running*, restart the kernel and run from the top.)
#
# Keep the number of examples per replica, and move the second slider. Watch the global batch and
# the steps in an epoch. Then let the data come from files: which replicas get nothing of the last
# batch? (The learning rate in the title follows a rule that comes below.)

# %%
from distlab.course.lesson_02_batch_scaling.view import explore_batch_plan

explore_batch_plan()

# %% [markdown]
# ## What the plan changes
#
# If you keep the examples on each replica and add replicas, you do [weak
# scaling](../docs/glossary.md#weak-scaling): the global batch grows. `dl.plan_batch` computes what
# follows for a training run that worked with a batch of 8 on one device.

# %%
for replicas in (1, 4, 16):
    plan = dl.plan_batch(per_replica=8, replicas=replicas, base_learning_rate=0.05)
    told = {"global batch": plan.global_batch, "steps in an epoch": plan.steps(1024)}
    dl.show(f"replicas {replicas}", told)

# %% [markdown]
# With 16 replicas an epoch has a sixteenth of the steps, and each step has 16 times the examples.

# %% [markdown]
# ### For this network, replicas have no effect of their own
#
# Here is the network for the whole lesson: 64 pixels, 32 hidden units, 10 classes. We train it for
# one epoch in batches of 64: on one device, and on four replicas with 16 digits each.

# %%
(train,) = dl.load_dataset("digits", splits=["train[:1024]"], batch_size=64)
strategy = dl.make_strategy("mirrored", devices=devices)


def build(rate=0.4):
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss)
    return model


def weights_after_an_epoch(make):
    dl.set_seed(1)
    model = make()
    model.fit(train, shuffle=False, verbose=0)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


one_device = weights_after_an_epoch(build)
four_replicas = weights_after_an_epoch(lambda: dl.distribute(build, strategy))
dl.show("weights apart", np.abs(one_device - four_replicas).max(), below=1e-6)

# %% [markdown]
# **With `dl.distribute`, a network's weights depend on the global batch, and not on the number of
# replicas.** Replicas are the reason why the batch grows. So you can study 32 replicas on one
# device, if you give it their global batch.

# %% [markdown]
# ## How sure is an accuracy?
#
# We will compare many training runs, so first ask how much of a difference is chance. `train_many`
# trains the same network with several learning rates and several seeds at once. A seed decides the
# first weights and the order of the digits. `train_many` uses 1,024 digits for training, 413 for
# validation and 360 for the test. Its results have one row for each rate, so `[0]` is the row of
# our only rate.

# %%
from distlab.course.lesson_02_batch_scaling.runs import train_many

runs = train_many(8, rates=(0.05,), epochs=8, seeds=10)
accuracies = 100 * runs.accuracy_after(8)[0]
dl.show("test accuracy of ten seeds (%)", np.sort(accuracies), digits=1)
dl.show("mean", accuracies.mean(), digits=1)
dl.show("standard error", accuracies.std(ddof=1) / np.sqrt(10), digits=1)

# %% [markdown]
# The ten runs differ only in the seed, and the best is 3.6 points above the worst. Their mean is
# more certain than the accuracy of a single run: its **standard error** is the standard deviation
# of the ten accuracies, divided by $\sqrt{10}$. The figures below draw it as a bar.
#
# All runs share the same 360 test digits. With a different set of 360, every accuracy near 95 %
# would move by about $\sqrt{0.95 \cdot 0.05 / 360}$, which is 1.1 points. A part of this error
# cancels in a difference between two runs. Still, **read a difference of one point here as no
# difference.**
#
# <details><summary>In plain TensorFlow: how one loop trains so many networks</summary>
#
# The weights of all networks are in the same tensors: `first` has the shape `[rates, seeds, 64,
# 32]`. `x @ first` then does this layer for all of them at once. Each network's loss depends on its
# own weights only, so one `GradientTape` over the sum of the losses gives every network its own
# gradient. A `tf.function` holds the loop over the steps, and the step is `w - rate * gradient`.
# </details>

# %% [markdown]
# ## The same rate, a larger batch
#
# Start with the simplest idea: the batch grows, and nothing else changes. We count the steps until
# 95 % of the *validation* digits are right, with a learning rate of 0.05. (It is a good rate for a
# batch of 8, but not the fastest one.) `steps_to` returns the first step at which a test on these
# digits finds 95 %. We test every 128 training digits, or after each step if the batch is larger.

# %% tags=["predict"]
fixed_guess = dl.predict(
    "With a rate of 0.05, a batch of 8 needs some number of steps to 95 %. How many does a batch "
    "of 64 need with the same rate? It sees 8 times as many digits in each step.",
    ["an eighth of them", "about half of them", "about as many", "many more"],
)

# %%
first_rate = {8: train_many(8, rates=(0.05,), epochs=12, seeds=10)}
first_rate[64] = train_many(64, rates=(0.05,), epochs=96, seeds=10)
fixed_steps = {batch: each.steps_to(0.95)[0] for batch, each in first_rate.items()}
for batch, steps in fixed_steps.items():
    dl.show(f"steps with a batch of {batch}", steps.mean(), digits=0)

# %% tags=["reveal"]
part = fixed_steps[64].mean() / fixed_steps[8].mean()
kinds = {"an eighth of them": 0.125, "about half of them": 0.5, "about as many": 1.0}
kinds["many more"] = 2.0
fixed_guess.reveal(
    min(kinds, key=lambda kind: abs(kinds[kind] - part)),
    {
        "an eighth of them": "Both runs would then see as many digits. But the average step is the "
        "rate times the true gradient, with any batch, so an eighth of the steps gets an eighth as "
        "far.",
        "about half of them": "A mean over more digits has less noise. But at a rate of 0.05 "
        "training is slow because the steps are short, not because they are noisy.",
        "about as many": "At this rate the average step decides: the rate times the true gradient. "
        "It does not depend on the batch.",
        "many more": "On average, a larger batch gives no worse direction.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The batch of 64 took as many *steps*, and so 8 times as many *epochs*. A gradient from more digits
# has less noise, but on average a step leads just as far as before. **At a rate as low as this, a
# larger batch saves steps only if you use it to take longer steps.** How much longer?

# %% [markdown]
# ## A rule for the learning rate
#
# With $k$ times the batch, the **linear rule** for SGD multiplies the learning rate by $k$. The
# reason: $k$ small steps move the weights by
#
# $$-r\,(g_1 + g_2 + \cdots + g_k) \;=\; -k\,r \cdot \frac{1}{k}(g_1 + \cdots + g_k),$$
#
# and the right side is *one* step with the rate $kr$ and the mean gradient of the larger batch.
# This holds as long as the gradient changes little during the $k$ small steps. If your loss is a
# *sum* over examples, its gradient has grown $k$ times already. Then do not scale the rate as well.
#
# Adam divides each gradient by its usual size. If that size is mostly noise, $k$ times the examples
# make it $\sqrt k$ times smaller, so Adam's average step is already $\sqrt k$ times longer. One
# step should go as far as $k$ small ones, so the rate supplies the other $\sqrt k$
# (`dl.plan_batch(..., rule="square_root")`).

# %%
for replicas in (1, 4, 16):
    plan = dl.plan_batch(per_replica=8, replicas=replicas, base_learning_rate=0.05)
    dl.show(f"rate for a batch of {plan.global_batch}", plan.learning_rate)

# %% [markdown]
# ## Equal epochs
#
# Now let the batch grow from 8 to 256, as if there were 1 to 32 replicas with 8 digits each. A
# `sweep` trains every batch size with six rates and ten seeds. The rates double, and so do the
# batches, so the linear rule picks one rate for each batch. A second way takes the rate that is
# best on the *validation* digits, so that the test digits decide nothing. All batch sizes train
# longer than 8 epochs, and the largest one longest, only because the next section needs it. This
# section looks at all of them after 8.

# %%
BATCHES = (8, 16, 32, 64, 128, 256)
RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
EPOCHS = {8: 12, 16: 12, 32: 12, 64: 16, 128: 16, 256: 24}
sweep = {batch: train_many(batch, rates=RATES, epochs=EPOCHS[batch], seeds=10) for batch in BATCHES}


def linear(batch):
    plan = dl.plan_batch(global_batch=batch, replicas=1, base_learning_rate=0.05, reference_batch=8)
    return RATES.index(plan.learning_rate)


def best(batch):
    return sweep[batch].accuracy_after(8, on="validation").mean(axis=1).argmax()


def after_8_epochs(rate_of):
    return {batch: 100 * sweep[batch].accuracy_after(8)[rate_of(batch)] for batch in BATCHES}


# %% tags=["predict"]
epochs_guess = dl.predict(
    "After 8 epochs, a batch of 8 gives about 96 % on the test digits. What does a batch of 256 "
    "give after the same 8 epochs, with the best of its six rates?",
    ["about 96 %", "about 90 %", "about 70 %", "about 40 %"],
)

# %% tags=["numbers-within-5"]
from distlab.course.lesson_02_batch_scaling.figures import draw_by_batch, draw_steps

ways = {"rate fixed at 0.05": lambda batch: 0, "linear rule": linear, "best rate": best}
draw_by_batch(
    {name: after_8_epochs(rate_of) for name, rate_of in ways.items()}, y="test accuracy", y_unit="%"
)

# %% tags=["reveal"]
at_256 = after_8_epochs(best)[256].mean()
nearest = min((40, 70, 90, 96), key=lambda percent: abs(percent - at_256))
epochs_guess.reveal(
    f"about {nearest} %",
    {
        "about 96 %": "Every digit was seen as often. But 8 epochs are 32 steps of this batch, and "
        "none of the six rates makes 32 steps as good as 1,024.",
        "about 90 %": "32 steps at the best rate get far, and not as far as 1,024.",
        "about 70 %": "The best rate does better: a batch of 256 gives a good direction, so it can "
        "afford long steps.",
        "about 40 %": "That is near what the rate of 0.05 gives, 38 %. The linear rule's 1.6 "
        "fails, too.",
    },
)

# %% tags=["numbers-within-0.5", "after-reveal"]
print("validation accuracy (%) by rate: * is the best rate, r the linear rule's")
print("rate     ", *[f"{rate:>7}" for rate in RATES])
for batch in BATCHES:
    by_rate = 100 * sweep[batch].accuracy_after(8, on="validation").mean(axis=1)
    print(f"batch {batch:3}", end="")
    for index, accuracy in enumerate(by_rate):
        marks = ("*" if index == best(batch) else "") + ("r" if index == linear(batch) else "")
        fails = index > best(batch) and accuracy < 75  # then rounding decides where it ends
        print("fails".rjust(6) if fails else f"{accuracy:6.1f}", end=f"{marks:2}")
    print()

# %% [markdown] tags=["after-reveal"]
# The figure shows the test digits and the table the validation digits, so their numbers differ a
# little. In both, the linear rule keeps the accuracy up to a batch of 64, which is 8 times the
# first one. At 128 it loses 4 to 5 points, and at 256, with a rate of 1.6, it fails. **With equal
# epochs, a batch that is too large costs accuracy, even at its best rate.** You can buy it back
# with more epochs, which is what the next section counts.
#
# The best rates do not follow the rule. For a batch of 8, the best rate is four times our 0.05. It
# is 0.8 at a batch of 64, and past 64 it grows no more: at 128 and 256 it is 0.4. The rate of 1.6,
# the last in each row, fails with every batch. (Where the rule ends depends on the first rate. With
# 0.2 for a batch of 8, it would reach 1.6 at 64.) The second-best rate is always within a point of
# the best one, so read a best rate as "about this". If it were at the edge of the grid, you would
# not know whether a rate outside is better: then extend the grid before you conclude.

# %% [markdown]
# ## Equal accuracy
#
# Count the steps to 95 % of the validation digits again, now with longer steps. `fewest` takes the
# rate with the fewest steps on average, among the rates with which all ten seeds arrive. From here
# on, this is the "best rate". It can differ from the table's, which was the best after 8 epochs.


# %%
def fewest_at(batch):
    means = sweep[batch].steps_to(0.95).mean(axis=1)  # NaN if a seed never arrives
    return np.nanargmin(means)


def with_rule(batch):
    return sweep[batch].steps_to(0.95)[linear(batch)]


def fewest(batch):
    return sweep[batch].steps_to(0.95)[fewest_at(batch)]


# %% tags=["predict"]
best_guess = dl.predict(
    "With the best rate for each batch, a batch of 32 needs a third of the steps that a batch of 8 "
    "needs. How many of the steps of a batch of 64 does a batch of 256 need?",
    ["a quarter of them", "half of them", "about three quarters of them", "more than all of them"],
)

# %%
ways = {"linear rule": with_rule, "best rate": fewest}
steps = {name: {batch: steps_of(batch) for batch in BATCHES} for name, steps_of in ways.items()}
part = fewest(256).mean() / fewest(64).mean()
dl.show("best rates", {f"batch {batch}": RATES[fewest_at(batch)] for batch in BATCHES})
draw_steps({"rate fixed at 0.05": fixed_steps, **steps}, lines_from=["linear rule", "best rate"])

# %% tags=["reveal"]
kinds = {"a quarter of them": 0.25, "half of them": 0.5, "about three quarters of them": 0.75}
kinds["more than all of them"] = 1.3
best_guess.reveal(
    min(kinds, key=lambda kind: abs(kinds[kind] - part)),
    {
        "a quarter of them": "That is the dashed line, on which four times the batch needs a "
        "quarter of the steps.",
        "half of them": "The curve bends further than that.",
        "about three quarters of them": "Past the bend, more digits refine a gradient that is "
        "already good enough.",
        "more than all of them": "A larger batch has less noise. With its best rate it "
        "needs no more steps.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The dashed lines are what "twice the batch, half the steps" would give. The curve of the linear
# rule lies on its line, bends away from it, and ends: at 256 no seed arrives. The best rate
# bends, too: past a batch of about 64, twice the digits in each step save little. Two limits meet
# here:
#
# - **Noise** limits small batches. Each gradient points in a rather random direction, and only
#   short steps average it out. More digits help as much as more steps.
# - **Curvature** limits large ones. The loss is a valley, and a step that is too long jumps to its
#   other side, and higher. More digits do not change the valley.
#
# [Shallue et al.](https://arxiv.org/abs/1811.03600) found this bend in every combination of data,
# model and optimizer that they tried, at batch sizes that differ by orders of magnitude.

# %% [markdown]
# ## Warm-up
#
# The linear rule assumes that the gradient changes little during the $k$ small steps. At the
# beginning of training it can change most, so the rule can fail there first. A
# [warm-up](https://arxiv.org/abs/1706.02677) starts at the small rate and climbs to the large one
# during the first epochs. We try it with a batch of 128 and 20 seeds, from two kinds of first
# weights: Keras's usual ones, and ones that are four times as large.
#
# A warm-up also trains with a lower rate on average. Perhaps that alone helps? As a **control**, we
# train the same number of steps at one constant rate, chosen so that all rates add up to the same
# sum as with the warm-up.

# %% tags=["predict"]
warmup_guess = dl.predict(
    "Compare training with a warm-up and without one. From which first weights does the warm-up "
    "win more than 2 points of test accuracy?",
    ["from the usual ones only", "from the large ones only", "from both", "from neither"],
)

# %% tags=["numbers-within-0.5"]
plan = dl.plan_batch(global_batch=128, replicas=16, base_learning_rate=0.05)
low, full, steps_of_climb = plan.base_learning_rate, plan.learning_rate, 2 * plan.steps(1024)
climb = [low + (full - low) * step / steps_of_climb for step in range(steps_of_climb)]
rate_sum = sum(climb) + (8 - 2) * plan.steps(1024) * full
KINDS = {
    "no warm-up": {"rates": (full,)},
    "2 epochs of warm-up": {"rates": (full,), "warmup_epochs": 2, "warmup_from": low},
    "control, constant rate": {"rates": (rate_sum / (8 * plan.steps(1024)),)},
}
means = {}
for start_scale, name in ((1, "usual"), (4, "four times as large")):
    print(f"first weights {name}")
    for kind, how in KINDS.items():
        many = train_many(128, epochs=8, seeds=20, start_scale=start_scale, **how)
        accuracies = 100 * many.accuracy_after(8)[0]
        means[start_scale, kind] = accuracies.mean()
        told = {"accuracy": accuracies.mean(), "+-": accuracies.std(ddof=1) / np.sqrt(20)}
        dl.show(f"  {kind}", told, digits=1)

# %% tags=["reveal"]
gains = [means[scale, "2 epochs of warm-up"] - means[scale, "no warm-up"] for scale in (1, 4)]
became = {(True, False): "from the usual ones only", (False, True): "from the large ones only"}
became |= {(True, True): "from both", (False, False): "from neither"}
warmup_guess.reveal(
    became[gains[0] > 2, gains[1] > 2],
    {
        "from the usual ones only": "Keras chooses the usual ones so that the first gradients are "
        "of moderate size. Steps with the full rate do no lasting harm there.",
        "from both": "It was worth 1.1 points for ResNet-50, but a warm-up helps only if the first "
        "steps do lasting harm. From the usual weights of this network they do not.",
        "from neither": "Large first weights give large gradients, and the full rate turns them "
        "into steps that are too long.",
        "from the large ones only": "Large first weights give large gradients. There the first "
        "steps with the full rate do harm that lasts.",
    },
)

# %% [markdown] tags=["after-reveal"]
# With the usual weights, the three differ by less than a point: read that as no difference. A
# warm-up does not win back the 4 points that the rule loses at a batch of 128, so these are not
# lost in the first steps. With the large ones, training without a warm-up ends 10 points lower, and
# the warm-up wins 9 of them back. The control, with the same steps and the same sum of rates, is
# 1.5 points better than no warm-up. If their seeds were different, the errors of the two means, 1.8
# and 1.4, would make an error of about $\sqrt{1.8^2 + 1.4^2}$ = 2.3 points for their difference, so
# this gain could be chance. (They share their seeds. The exercise compares seed by seed.) The
# warm-up beats the control by 7.4 points, with an error of about $\sqrt{0.5^2 + 1.4^2}$ = 1.5
# points. So most of its gain does not come from a lower rate on average, but from **where** the
# rate is low: in the first steps, while the gradient changes most. A warm-up costs little, and
# protects these steps. For ResNet-50 it was worth 1.1 points.
#
# For your own training, `plan.warmup(steps=...)` is a Keras schedule. It counts the optimizer's
# steps, and a larger batch has fewer steps in an epoch, so give `steps` again if you change the
# batch.

# %%
schedule = plan.warmup(steps=2 * plan.steps(1024))
for step in (0, 8, 16, 100):
    dl.show(f"rate in step {step}", float(schedule(step)), digits=3)

# %% [markdown]
# <details><summary>In plain TensorFlow</summary>
#
# `plan.warmup(steps=16)` is `keras.optimizers.schedules.CosineDecay(0.05, 1, alpha=1.0,
# warmup_target=0.8, warmup_steps=16)`. You pass it as the learning rate of an optimizer.
# </details>

# %% [markdown]
# ## The same bend in models that cost millions
#
# Our network has 2,410 weights, so you may wonder whether anything here survives in BERT or Llama.
# MLPerf lets you look: for its benchmarks it
# [publishes](https://github.com/mlcommons/logging/tree/master/mlperf_logging/rcp_checker) how much
# training reaches the target quality with batches of many sizes, each with settings that somebody
# tuned for that batch. Every point is the mean of 10 to 28 full trainings.
#
# If the steps bend as ours did, a batch of $b$ needs $S\,(1 + B_\text{bend}/b)$ of them, where $S$
# is the fewest that any batch can reach. Multiply by $b$, and the examples are a straight line in
# the batch: $S\,(b + B_\text{bend})$. So two numbers describe a model, and two trainings would be
# enough to find them.

# %%
from distlab.course.lesson_02_batch_scaling.published_batches import fit_bend, published_runs

runs_by_model = published_runs()
bert = runs_by_model["BERT"]
dl.show("BERT, millions of examples with a batch of 256", bert[256] / 1e6, digits=1)

# %% tags=["predict"]
bert_guess = dl.predict(
    "BERT's largest batch has 16,384 examples, 64 times as many. How many examples does it need to "
    "reach the same quality?",
    ["about as many", "about twice as many", "about eight times as many", "64 times as many"],
)

# %%
more = bert[16_384] / bert[256]
dl.show("BERT, a batch of 16,384 needs as many times the examples", more, digits=1)

# %% tags=["reveal"]
kinds = {1: "about as many", 2: "about twice as many", 8: "about eight times as many"}
bert_guess.reveal(
    kinds[min(kinds, key=lambda times: abs(times - more))],
    {
        "about as many": "That would be free scaling: 64 times fewer steps. It's nearly so up to "
        "4,096, where BERT needs a tenth more.",
        "about twice as many": "So 64 times the batch saves all but a thirtieth of the steps. "
        "Twice the examples is what the bend means, and BERT's lies near 13,000.",
        "about eight times as many": "That would be so far behind the bend, where each further "
        "doubling of the batch nearly doubles the examples.",
        "64 times as many": "Then the number of steps wouldn't fall at all, and a batch of 256 "
        "would have been as good. You'd have to be far past the bend for that.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Now put six models into one figure, each measured in its own bend: the batch as a share of it, and
# the training as a multiple of what a tiny batch needs.

# %% tags=["after-reveal"]
from distlab.course.lesson_02_batch_scaling.figures import draw_bends

draw_bends(runs_by_model)

# %% [markdown] tags=["after-reveal"]
# Six models, from an image classifier to a Llama of 70 billion parameters, lie near a single curve,
# although their bends are a thousand times apart: at 40 examples for a fine-tuned Llama, and at
# 47,000 for ResNet-50. So there's no batch size that is too large for everybody, but there is one
# for your model, and two or three trainings tell you where.
#
# How far can you trust such a line? Leave out each model's largest batch, fit the rest, and predict
# it:

# %% tags=["after-reveal"]
for model, runs in runs_by_model.items():
    *others, largest = sorted(runs)
    guessed = fit_bend({batch: runs[batch] for batch in others}).examples(largest)
    dl.show(f"{model}, its batch of {largest:,} (%)", 100 * (guessed / runs[largest] - 1), digits=0)

# %% [markdown] tags=["after-reveal"]
# Four of the six are within 8 %. The two that fail were asked about a batch three times as large as
# their bend, farther out than any point behind the line. So if you order hardware by such a line,
# train once near the batch that you're going to use.
#
# | you have | do this |
# |---|---|
# | more replicas, batch well below the bend | scale the batch, and the rate by the rule; warm up |
# | more replicas, batch at the bend | keep the global batch: each replica gets fewer examples |
# | still more replicas | train several seeds or settings side by side, or a larger model |
#
# > **Takeaway.** A batch at the bend costs twice the examples. Below it, more replicas save time;
# > beyond it they mostly repeat work.
#
# <details><summary>Fine print</summary>
#
# Each point was tuned by somebody else, and quality is tested only every so often, so the amounts
# are coarse. ResNet-50 and RetinaNet count epochs, the others examples, and an example of Llama's
# is a long sequence: if you compare language models, compare tokens. One device gains from a larger
# batch as well, because it's busier, so fill one device before you add replicas.
# </details>

# %% [markdown]
# ## Extra: How noisy is a gradient?
#
# Can you know where the bend is without a sweep? [McCandlish et
# al.](https://arxiv.org/abs/1812.06162) compare two things: how much the gradients of single
# examples scatter, and how long their mean is. The first divided by the square of the second is a
# number of examples, the [gradient noise scale](../docs/glossary.md#gradient-noise-scale). This is
# its simple form, which assumes the same curvature in all directions:
#
# $$B_\text{simple} = \frac{\text{variance of one example's gradient}}{|\text{true gradient}|^2}$$
#
# Well below it, twice the batch saves half of the steps. Well above it, almost nothing. Expect the
# **order of magnitude** from it, and no more. (The variance is that of all weights together: the
# trace of the covariance matrix.)
#
# Replicas give you both parts for free. Each has the gradient $g_b$ of its $b$ examples, and the
# all-reduce gives that of all $B$. Noise makes a gradient longer: on average, $|g_b|^2$ is
# $|\text{true}|^2 + \text{variance}/b$. Two batch sizes are two such equations, and they give
#
# $$\text{variance} = \frac{|g_b|^2 - |g_B|^2}{1/b - 1/B}, \qquad
# |\text{true}|^2 = \frac{B\,|g_B|^2 - b\,|g_b|^2}{B - b}.$$

# %%
(digits,) = dl.load_dataset("digits", splits=["train[:1024]"])
shuffled = digits.shuffle(1024, seed=1).batch(64)
dl.set_seed(1)
model = dl.distribute(lambda: build(rate=0.1), strategy)


def replica_gradient(images, labels):
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    return tf.concat([tf.reshape(each, [-1]) for each in gradients], axis=0)


@tf.function
def on_replicas(batch):
    return strategy.experimental_local_results(strategy.run(replica_gradient, args=batch))


# %% [markdown]
# `replica_gradient` returns one long vector for each replica. `variance_and_signal` compares the
# norms over an epoch, and returns the two parts. Means come first and the ratio last, because a
# ratio of single batches is far too noisy. One model is not enough either, so we measure at the
# first weights of five seeds, and after 8 epochs of each.


# %%
def variance_and_signal(few=16, many=64):
    small, large = [], []
    for batch in strategy.experimental_distribute_dataset(shuffled):
        each = np.array(on_replicas(batch))  # [4 replicas, 2410 weights]
        small.append((each**2).sum(axis=1).mean())  # of 16 digits
        large.append((each.mean(axis=0) ** 2).sum())  # of 64 digits
    small, large = np.mean(small), np.mean(large)
    variance = (small - large) / (1 / few - 1 / many)
    return variance, (many * large - few * small) / (many - few)


# %% tags=["predict"]
noise_guess = dl.predict(
    "How does the noise scale of this model change in 8 epochs of training?",
    ["it falls to less than half", "it stays about the same", "it grows several times"],
)

# %%
parts = np.zeros((2, 5, 2))  # [before and after training, seed, variance and signal]
for seed in range(5):
    dl.set_seed(seed)
    model.set_weights(build().get_weights())
    parts[0, seed] = variance_and_signal()
    model.fit(shuffled, epochs=8, shuffle=False, verbose=0)
    parts[1, seed] = variance_and_signal()

for when, both in zip(("first weights", "after 8 epochs"), parts, strict=True):
    variances, signals = both.T
    dl.show(f"{when}: variance of one digit's gradient", np.sort(variances), digits=0)
    dl.show(f"{when}: |true gradient|^2", np.sort(signals), digits=2)
    dl.show(f"{when}: noise scale in digits", np.sort(variances / signals), digits=0)

# %% tags=["reveal"]
first, last = parts[..., 0].mean(axis=1) / parts[..., 1].mean(axis=1)
became = ["it falls to less than half", "it stays about the same", "it grows several times"]
noise_guess.reveal(
    became[int(last / first > 0.5) + int(last / first > 2)],
    {
        "it falls to less than half": "The noise scale is a ratio. Single digits scatter about as "
        "much as before, and the true gradient has become much shorter.",
        "it stays about the same": "It would if the gradient kept its length. But training ends "
        "where the gradient is 0.",
        "it grows several times": "The scatter stays, and the true gradient becomes shorter.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The two parts show why. The variance hardly changes, and $|\text{true gradient}|^2$ falls to
# about a fifth: the better the model, the shorter the true gradient, while single digits still pull
# in different directions. So large batches help most at the end of training, and least at the
# beginning. That is one reason to let the batch grow with time.
#
# Above, a batch of $b$ needed $S\,(1 + B_\text{bend}/b)$ steps. The six points of the best rate
# lie near $50\,(1 + 54/b)$, within about 10 %. This bend at 54 lies between the average noise
# scales of the first weights (about 35) and of the last ones (about 180). The five seeds differ by
# a factor of 2 to 3, and the formula assumes equal curvature in all directions. So **tens to
# hundreds, and not thousands** is what you learn, from five training runs with ten more epochs of
# gradients, in place of the sweep's 360 training runs. The paper finds tens of thousands for
# ImageNet, and millions for agents that play Dota 2.

# %% [markdown]
# <details><summary>In PyTorch and JAX</summary>
#
# In PyTorch, the `batch_size` of a `DataLoader` under `DistributedDataParallel` is that of one
# process, so the global batch grows by itself if you add processes. The gradients are averaged, so
# the same rules hold. In JAX you give `jit` one array that holds the global batch. Optax has
# `warmup_cosine_decay_schedule`. Its `decay_steps` include the warm-up, and Keras's do not.
# </details>
#
# <details><summary>If you want to know more: Adam</summary>
#
# [Malladi et al.](https://arxiv.org/abs/2205.10287) derive the square root for Adam and RMSProp.
# Their rule changes more than the rate: $1 - \beta_1$ and $1 - \beta_2$ are multiplied by $k$, and
# $\epsilon$ is divided by $\sqrt k$. `dl.plan_batch` returns only the rate. The report of the
# exercise measures how far that gets you.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You go from one to four replicas with 32 examples each. What do you pass to
# <code>fit</code>, and by what do you multiply SGD's rate?</summary>
#
# Batches of 128, and the rate times 4.
# </details>
#
# <details><summary>2. You keep a global batch of 128 and go from one to four replicas. What
# changes?</summary>
#
# For this network the weights end the same, up to rounding. Each replica gets 32 examples. To add
# replicas and keep the global batch is [strong scaling](../docs/glossary.md#strong-scaling).
# </details>
#
# <details><summary>3. A colleague compares batches of 32 and 512 after 1,000 steps each, and
# prefers 512. What is unfair?</summary>
#
# The batch of 512 has seen 16 times as many examples.
# </details>
#
# <details><summary>4. Your loss is a sum over the global batch. The batch doubles. What does the
# linear rule ask of the rate?</summary>
#
# Nothing. The gradient of the sum has doubled already.
# </details>
#
# <details><summary>5. The noise scale is about 2,000, and your global batch is 64. What can you
# expect of 4 times as many replicas?</summary>
#
# A little more than a quarter of the steps, if you scale the rate as well, because 256 is still far
# below 2,000.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 02](../exercises/02_batch_scaling.ipynb): four tasks and a report, about 70 minutes,
#   and an open task on your own model.
# - [Lesson 03](03_custom_training_loop.ipynb) writes the training loop by hand, and shows how to
#   scale a loss.
# - [The glossary](../docs/glossary.md) explains the terms.
# - [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677) has the linear rule and the
#   warm-up. Its limit of 8,192 was measured with ResNet-50 on ImageNet: take the rule, and not the
#   number.
# - [Measuring the effects of data parallelism](https://arxiv.org/abs/1811.03600) tunes the rate for
#   each batch size, and finds no evidence that large batches then generalise worse, and no simple
#   rule for the rate that holds everywhere.
# - [An empirical model of large-batch training](https://arxiv.org/abs/1812.06162) has the noise
#   scale.
