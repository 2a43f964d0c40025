# %% [markdown]
# # Batch size and learning rate: what more replicas change
#
# Eight GPUs can finish an epoch eight times as fast as one, and no error tells you that you're now
# running a different training: each update of the weights sees eight times as many examples. In
# 2017 [Goyal et al.](https://arxiv.org/abs/1706.02677) went as far as 256 GPUs, and trained
# ResNet-50 on ImageNet in an hour. They scaled the learning rate with the batch, and the error rose
# from 23.6 % to 24.8 %. A gentler start brought it back to 23.7 %, but with more than 8,192 images
# in a batch it rose all the same.
#
# So how large a batch is worth having? You'll find out on digits, in seconds, and then look the
# answer up for models from BERT to a Llama of 70 billion parameters. After this lesson you can
#
# - say what a [global batch](../docs/glossary.md#global-batch) changes, and what replicas don't,
# - scale a learning rate with the batch, and warm it up,
# - compare batch sizes fairly: with several seeds, at equal epochs and at equal accuracy,
# - find with two or three trainings up to which batch more replicas save time.
#
# **Time:** {minutes}. **Needs:** [lesson 01](01_mirrored_strategy.ipynb), a step of SGD, and
# Keras's `compile` and `fit`, but no GPU and no download.
#
# <details><summary>Do you remember? Lesson 01: <code>fit</code> gets batches of 64, and there are 4
# replicas. How many examples does each replica get?</summary>
#
# 16, because `fit` takes the global batch. Today each replica keeps as many examples as one device
# had, so it's the global batch that grows.
# </details>

# %%
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.course.lesson_02_batch_scaling.view import explore_batch_plan

devices = dl.split_devices(4)
tf.get_logger().setLevel("ERROR")
explore_batch_plan()

# %% [markdown]
# ## Replicas change the batch, and nothing else
#
# If each replica gets as many examples as the single device had, the global batch grows with the
# replicas, which is called [weak scaling](../docs/glossary.md#weak-scaling). Move the slider for
# the replicas, and you'll see how an epoch loses steps, because each step uses up more examples.
# The learning rate in the title follows a rule that comes below.
#
# Do the replicas do anything besides? The network for this whole lesson has 64 pixels, 32 hidden
# units and 10 classes. We train it for one epoch in batches of 64, once on a single device and once
# on four replicas with 16 digits each:

# %%
from distlab.course.lesson_02_batch_scaling.network import build, weights_after_an_epoch

strategy = dl.make_strategy("mirrored", devices=devices)
one_device = weights_after_an_epoch(build)
four_replicas = weights_after_an_epoch(lambda: dl.distribute(build, strategy))
dl.show("max difference of the weights", np.abs(one_device - four_replicas).max(), below=1e-6)

# %% [markdown]
# The weights agree up to rounding, so it's the batch that you have to study. A single device that
# gets the global batch of 32 replicas trains as they would, and that's how we train from here on.
#
# > **Takeaway.** With `dl.distribute`, the weights depend on the global batch and not on the number
# > of replicas. So you can rehearse 32 replicas on one device.

# %% [markdown]
# ## How sure is an accuracy?
#
# You're about to compare many trainings, so you need to know how much of a difference is luck.
# `train_many` trains the same network with several learning rates and several seeds at once, where
# a seed decides the first weights and the order of the digits. It uses 1,024 digits for training,
# 413 for validation and 360 for the test. Here are ten seeds, with everything else equal:

# %%
from distlab.course.lesson_02_batch_scaling.runs import train_many

runs = train_many(8, rates=(0.05,), epochs=8, seeds=10)
accuracies = 100 * runs.accuracy_after(8)[0]  # a row for each rate: this is the only one's
dl.show("test accuracy of ten seeds (%)", np.sort(accuracies), digits=1)
dl.show("mean", accuracies.mean(), digits=1)
dl.show("standard error", accuracies.std(ddof=1) / np.sqrt(10), digits=1)

# %% [markdown]
# The luckiest seed is 3.6 points above the unluckiest, so two single runs could prove almost
# anything. Their mean is surer: its **standard error** is the standard deviation of the ten
# accuracies, divided by $\sqrt{10}$, and the figures below draw it as a bar. But all ten seeds
# share the same 360 test digits, and with 360 others every accuracy could move by about a point.
#
# > **Takeaway.** Train several seeds, and treat a difference of one point as noise.
#
# <details><summary>Fine print</summary>
#
# The point is $\sqrt{0.95 \cdot 0.05 / 360}$, which is 1.1 %. A part of this error cancels in a
# difference between two runs, because both are tested on the same digits.
#
# One loop trains all the networks, because their weights are in the same tensors: `first` has the
# shape `[rates, seeds, 64, 32]`, so `x @ first` does this layer for all of them. Each network's
# loss depends on its own weights only, so one `GradientTape` over the sum of the losses gives every
# network its own gradient. A `tf.function` holds the loop over the steps.
# </details>

# %% [markdown]
# ## A rule for the learning rate
#
# The simplest plan lets the batch grow and changes nothing else. We try it with a learning rate of
# 0.05, which suits a batch of 8, and count the steps until 95 % of the *validation* digits are
# right.

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
        "an eighth of them": "It would if eight times the digits made a step eight times as long. "
        "But with any batch the average step is the rate times the true gradient, so an eighth of "
        "the steps gets an eighth as far.",
        "about half of them": "It would if noise were what slows this training down, because a "
        "mean over more digits has less of it. At a rate of 0.05 the steps are merely short, and "
        "less noise doesn't lengthen them.",
        "about as many": "At this rate the average step decides: the rate times the true gradient. "
        "It doesn't depend on the batch.",
        "many more": "It would if a larger batch pointed in a worse direction. On average its "
        "direction is the same, and with less noise.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The batch of 64 took as many *steps*, and so 8 times as many *epochs*. Eight replicas would arrive
# when a single one does, and you'd have paid for eight. A gradient from more digits has less noise,
# which **saves steps only if you use it to take longer ones**. How much longer?
#
# With $k$ times the batch, the **linear rule** for SGD multiplies the learning rate by $k$, because
# one large step then goes as far as the $k$ small ones that it replaces:
#
# $$-r\,(g_1 + g_2 + \cdots + g_k) \;=\; -k\,r \cdot \frac{1}{k}(g_1 + \cdots + g_k)$$
#
# The right side is *one* step with the rate $kr$ and the mean gradient of the larger batch. The
# rule holds as long as the gradient changes little during the $k$ small steps, and you'll see soon
# what happens when it doesn't. `dl.plan_batch` applies it for you:

# %% tags=["after-reveal"]
for replicas in (1, 4, 16):
    plan = dl.plan_batch(per_replica=8, replicas=replicas, base_learning_rate=0.05)
    told = {"global batch": plan.global_batch, "steps in an epoch": plan.steps(1024)}
    dl.show(f"replicas {replicas}", {**told, "learning rate": plan.learning_rate})

# %% [markdown] tags=["after-reveal"]
# Adam needs a different rule, because it divides each gradient by its usual size. Where that size
# is mostly noise, $k$ times the examples make it $\sqrt k$ times smaller, and Adam's steps are
# $\sqrt k$ times longer already. So the rate supplies only the other $\sqrt k$, which is
# `dl.plan_batch(..., rule="square_root")`.
#
# > **Takeaway.** With $k$ times the batch, multiply SGD's learning rate by $k$ and Adam's by
# > $\sqrt k$.
#
# <details><summary>Fine print</summary>
#
# We test on the validation digits every 128 training digits, or after each step if the batch is
# larger. If your loss is a *sum* over examples, its gradient has already grown $k$ times, so leave
# SGD's rate as it is. [Malladi et al.](https://arxiv.org/abs/2205.10287) derive the square root for
# Adam and RMSProp, and their rule changes more than the rate: $1 - \beta_1$ and $1 - \beta_2$ are
# multiplied by $k$, and $\epsilon$ is divided by $\sqrt k$. `dl.plan_batch` returns only the rate,
# and the report of the exercise measures how far that gets you.
# </details>

# %% [markdown]
# ## Equal epochs
#
# How far does the rule carry? We let the batch grow from 8 to 256, as if 1 to 32 replicas had 8
# digits each, and train every batch size with six rates and ten seeds. That gives three choices for
# each batch: the rate that stays at 0.05, the rule's rate, and the best of the six. The
# *validation* digits choose the best one, so that the test digits decide nothing and stay honest.
# Every batch trains for more than 8 epochs, because the next section needs them, but here we
# compare all of them after 8.

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
        "about 96 %": "It would if only the digits that were seen counted. But 8 epochs are 32 "
        "steps of this batch, and none of the six rates makes 32 steps as good as the 1,024 of a "
        "batch of 8.",
        "about 90 %": "32 steps at the best rate get far, but not as far as 1,024 short ones.",
        "about 70 %": "You'd get that with a rate between 0.1 and 0.2. A batch of 256 gives a good "
        "direction, so it can afford longer steps.",
        "about 40 %": "That's what the rate of 0.05 gives, 38 %, because 32 short steps don't get "
        "far. The linear rule's 1.6 fails, too.",
    },
)

# %% tags=["numbers-within-0.5", "after-reveal"]
from distlab.course.lesson_02_batch_scaling.tables import rates_table

print(rates_table(sweep, best=best, rule=linear))

# %% [markdown] tags=["after-reveal"]
# **The linear rule works up to some batch, and then it ends.** Here it keeps the accuracy up to a
# batch of 64, which is 8 times the first one. At 128 it loses 4 to 5 points, and at 256 it asks for
# a rate of 1.6, which fails with every batch in the table. The best rates never get
# past 0.8, so from some batch on the steps get fewer without getting longer. You can buy the lost
# accuracy back with more epochs, and the next section counts how many.
#
# > **Takeaway.** At equal epochs, a batch that's too large costs accuracy, even at its best rate.
#
# <details><summary>Fine print</summary>
#
# The figure shows the test digits and the table the validation digits, so their numbers differ a
# little. Where the rule ends depends on the first rate: with 0.2 for a batch of 8, it would reach
# 1.6 at 64 already. The second-best rate is always within a point of the best one, so read a best
# rate as "about this". If the best rate were at the edge of the grid, a rate outside might be
# better, so you'd have to extend the grid before you conclude anything.
# </details>

# %% [markdown]
# ## Equal accuracy
#
# Now ask the other way round: how many steps does each batch need until 95 % of the validation
# digits are right? For each batch, `fewest` takes the rate that needs the fewest steps, among the
# rates with which all ten seeds arrive.


# %%
def with_rule(batch):
    return sweep[batch].steps_to(0.95)[linear(batch)]


def fewest(batch):
    steps = sweep[batch].steps_to(0.95)  # NaN where a seed never arrives
    return steps[np.nanargmin(steps.mean(axis=1))]


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
draw_steps({"rate fixed at 0.05": fixed_steps, **steps}, lines_from=["linear rule", "best rate"])

# %% tags=["reveal"]
kinds = {"a quarter of them": 0.25, "half of them": 0.5, "about three quarters of them": 0.75}
kinds["more than all of them"] = 1.3
best_guess.reveal(
    min(kinds, key=lambda kind: abs(kinds[kind] - part)),
    {
        "a quarter of them": "It would if noise still limited a batch of 64. That's the dashed "
        "line, on which four times the batch needs a quarter of the steps.",
        "half of them": "It would if the curve bent later, at about 128. It bends before 64, so "
        "more digits save less.",
        "about three quarters of them": "The gradient of 64 digits is already good enough, so more "
        "digits refine what needs no refining.",
        "more than all of them": "It would if a larger batch did harm. It has less noise, and with "
        "its best rate it needs no more steps.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The dashed lines show what you'd hope for: twice the batch, half the steps. The linear rule
# follows its line, bends away from it, and ends, because at 256 no seed arrives. The best rate
# bends as well, since two limits meet here:
#
# - **Noise** limits small batches. Each gradient points in a rather random direction, and only
#   short steps average it out, so more digits in a step help as much as more steps.
# - **Curvature** limits large ones. The loss is a valley, and a step that's too long lands on its
#   other side, and higher. More digits don't change the valley.
#
# Where one limit takes over from the other is a single number. If $S$ steps are the fewest that any
# batch can reach, a batch of $b$ needs about $S\,(1 + B_\text{bend}/b)$. Multiply by $b$, and the
# examples are a straight line in the batch: $S\,(b + B_\text{bend})$. Our six batches lie within 7
# % of such a line, and this is its bend:

# %% tags=["after-reveal", "numbers-within-5"]
from distlab.course.lesson_02_batch_scaling.published_batches import fit_bend, published_runs

our_bend = fit_bend({batch: batch * fewest(batch).mean() for batch in BATCHES})
dl.show("digits in a batch at the bend", our_bend.batch, digits=0)

# %% [markdown] tags=["after-reveal"]
# A batch at the bend needs twice the examples of a tiny batch, and twice the steps of a huge one.
# [Shallue et al.](https://arxiv.org/abs/1811.03600) found such a bend in every combination of data,
# model and optimizer that they tried, at batch sizes that differ by orders of magnitude.
#
# > **Takeaway.** Far below the bend, twice the batch needs half the steps. Far above it, twice the
# > batch saves hardly any.

# %% [markdown]
# ## Warm-up
#
# The linear rule assumes that the gradient changes little during the $k$ small steps. It can change
# most at the beginning of training, so the rule can fail there first. A
# [warm-up](../docs/glossary.md#warm-up) therefore starts at the small rate, and climbs to the large
# one during the first epochs. We try it with a batch of 128, from two kinds of first weights:
# Keras's usual ones, and weights that are four times as large.
#
# A warm-up also lowers the average rate, and perhaps that alone helps. So we train a **control**
# for as many steps at one constant rate, which is the warm-up's average.

# %% tags=["predict"]
warmup_guess = dl.predict(
    "Compare training with a warm-up and without one. From which first weights does the warm-up "
    "win more than 2 points of test accuracy?",
    ["from the usual ones only", "from the large ones only", "from both", "from neither"],
)

# %% tags=["numbers-within-0.5"]
from distlab.course.lesson_02_batch_scaling.runs import compare_warm_ups

plan = dl.plan_batch(global_batch=128, replicas=16, base_learning_rate=0.05)
usual = compare_warm_ups(plan, start_scale=1)
large = compare_warm_ups(plan, start_scale=4)
for kind in usual:
    means = {"usual weights": usual[kind].mean(), "large weights": large[kind].mean()}
    dl.show(f"accuracy (%), {kind}", means, digits=1)

# %% tags=["reveal"]
gains = [each["2 epochs of warm-up"] - each["no warm-up"] for each in (usual, large)]
became = {(True, False): "from the usual ones only", (False, True): "from the large ones only"}
became |= {(True, True): "from both", (False, False): "from neither"}
warmup_guess.reveal(
    became[gains[0].mean() > 2, gains[1].mean() > 2],
    {
        "from the usual ones only": "It would if the usual weights gave the larger gradients. "
        "Keras chooses them so that the first gradients are of moderate size, and the full rate "
        "does no lasting harm there.",
        "from both": "It would if the first steps did lasting harm in both cases, as they did with "
        "ResNet-50. From the usual weights of this network they don't.",
        "from neither": "It would if training always recovered from its first steps. Large first "
        "weights give large gradients, and after such steps it doesn't.",
        "from the large ones only": "Large first weights give large gradients, so the full rate "
        "takes steps that are too long, and their harm lasts.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **A warm-up protects the first steps, and it helps only when they need protection.** With the
# usual weights all three runs end within a point of each other, warm-up or not. With the large
# weights, training without a warm-up ends 10 points lower, and the warm-up wins 9 of them back. You
# might think that it only lowers the average rate. But the control has the same average and still
# ends 7 points below the warm-up, so what counts is *where* the rate is low.
#
# You can't know beforehand whether your first steps need protection, and a warm-up costs little.
# `plan.warmup(steps=...)` is a Keras schedule, which you pass as the optimizer's learning rate:

# %% tags=["after-reveal"]
schedule = plan.warmup(steps=2 * plan.steps(1024))
for step in (0, 8, 16, 100):
    dl.show(f"rate in step {step}", float(schedule(step)), digits=3)

# %% [markdown] tags=["after-reveal"]
# The schedule counts the optimizer's steps, and a larger batch has fewer of them in an epoch. So if
# you change the batch, change `steps` as well.
#
# > **Takeaway.** If you scale the rate, warm it up. That costs little, and protects the first
# > steps, in which a large rate can do harm that lasts.
#
# <details><summary>Fine print</summary>
#
# The means of 20 seeds have standard errors of up to 1.8 points, so the control's gain over no
# warm-up, 1.5 points, could be chance. A warm-up doesn't win back what the rule loses at a batch of
# 128, so those points aren't lost in the first steps, and at 256 it doesn't help either. The
# schedule is `keras.optimizers.schedules.CosineDecay(0.05, 1, alpha=1.0, warmup_target=0.8,
# warmup_steps=16)`.
# </details>

# %% [markdown]
# ## The same bend in models that cost millions
#
# Our network has 2,410 weights, so you may wonder whether its bend survives in BERT or Llama.
# MLPerf lets you look: for its benchmarks it
# [publishes](https://github.com/mlcommons/logging/tree/master/mlperf_logging/rcp_checker) how much
# training reaches the target quality with batches of many sizes, each with settings that somebody
# tuned for that batch. Every point is the mean of 10 to 28 full trainings.
#
# If the examples of these models lie on a straight line like ours, two numbers describe a model,
# and two trainings are enough to find them.

# %%
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
# Now all six models go into one figure, each measured in its own bend: the batch as a share of it,
# and the training as a multiple of what a tiny batch needs.

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
# al.](https://arxiv.org/abs/1812.06162) compare how much the gradients of single examples scatter
# with how long their mean is. That ratio is a number of examples, the [gradient noise
# scale](../docs/glossary.md#gradient-noise-scale):
#
# $$B_\text{simple} = \frac{\text{variance of one example's gradient}}{|\text{true gradient}|^2}$$
#
# Well below it, twice the batch saves half of the steps, and well above it almost nothing. Replicas
# give you both parts for free, because each has the gradient $g_b$ of its own $b$ examples, while
# the all-reduce gives that of all $B$. Noise makes a gradient longer: on average, $|g_b|^2$ is
# $|\text{true}|^2 + \text{variance}/b$. Two batch sizes make two such equations, and solved they
# give
#
# $$\text{variance} = \frac{|g_b|^2 - |g_B|^2}{1/b - 1/B}, \qquad
# |\text{true}|^2 = \frac{B\,|g_B|^2 - b\,|g_b|^2}{B - b}.$$
#
# `variance_and_signal` compares the two norms over an epoch and returns both parts. It takes means
# first, and leaves the ratio to the end, because a ratio of single batches is far too noisy.

# %%
from distlab.course.lesson_02_batch_scaling.network import gradients_of

(digits,) = dl.load_dataset("digits", splits=["train[:1024]"])
shuffled = digits.shuffle(1024, seed=1).batch(64)
dl.set_seed(1)
model = dl.distribute(lambda: build(rate=0.1), strategy)
gradients = gradients_of(model, strategy)


def variance_and_signal(few=16, many=64):
    small, large = [], []
    for batch in strategy.experimental_distribute_dataset(shuffled):
        each = gradients(batch)  # [4 replicas, 2410 weights]
        small.append((each**2).sum(axis=1).mean())  # of 16 digits
        large.append((each.mean(axis=0) ** 2).sum())  # of 64 digits
    small, large = np.mean(small), np.mean(large)
    variance = (small - large) / (1 / few - 1 / many)
    return variance, (many * large - few * small) / (many - few)


# %% [markdown]
# One model isn't enough either, so we measure at the first weights of five seeds, and again after
# each of them has trained for 8 epochs.

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
        "it falls to less than half": "It would if single digits came to agree with each other. "
        "They scatter about as much as before, while the true gradient has become much shorter.",
        "it stays about the same": "It would if the gradient kept its length. But training ends "
        "where the gradient is 0.",
        "it grows several times": "The noise scale is a ratio: the scatter stays, while the true "
        "gradient becomes shorter.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The variance hardly changes, while $|\text{true gradient}|^2$ falls to about a fifth. The better
# the model, the shorter the true gradient, although single digits still pull in different
# directions. So large batches help most at the end of training and least at the beginning, which is
# one reason to let the batch grow with time.
#
# And the bend? Ours, near 60, lies between the average noise scales of the first weights and of the
# last ones, about 35 and 180. So you learn **tens to hundreds, and not thousands**, and five
# trainings are enough for that, while the sweep needed 360. The paper finds tens of thousands for
# ImageNet, and millions for agents that play Dota 2.
#
# > **Takeaway.** The noise scale gives the order of magnitude of the bend, and no more. It grows
# > during training.
#
# <details><summary>Fine print</summary>
#
# This is the simple form of the noise scale, which assumes the same curvature in all directions.
# The variance is that of all weights together: the trace of the covariance matrix. The five seeds
# differ by a factor of 2 to 3.
# </details>

# %% [markdown]
# <details><summary>In PyTorch and JAX</summary>
#
# In PyTorch, the `batch_size` of a `DataLoader` under `DistributedDataParallel` is that of one
# process, so the global batch grows by itself when you add processes. The gradients are averaged,
# so the same rules hold. In JAX you give `jit` one array that holds the global batch. Optax has
# `warmup_cosine_decay_schedule`, whose `decay_steps` include the warm-up, while Keras's don't.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You go from one to four replicas with 32 examples each. What do you pass to
# <code>fit</code>, and by what do you multiply SGD's rate?</summary>
#
# Batches of 128, because `fit` takes the global batch, and the rate times 4.
# </details>
#
# <details><summary>2. You keep a global batch of 128 and go from one to four replicas. What
# changes?</summary>
#
# Each replica gets 32 examples, and the weights end the same, up to rounding. More replicas with
# the same global batch are called [strong scaling](../docs/glossary.md#strong-scaling).
# </details>
#
# <details><summary>3. A colleague compares batches of 32 and 512 after 1,000 steps each, and
# prefers 512. What is unfair?</summary>
#
# The batch of 512 has seen 16 times as many examples.
# </details>
#
# <details><summary>4. Your model's bend is near 2,000, and your global batch is 64. What can you
# expect of 4 times as many replicas?</summary>
#
# A little more than a quarter of the steps, if you scale the rate as well, because 256 is still far
# below the bend.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 02](../exercises/02_batch_scaling.ipynb): plan a job, repair a warm-up, and say what a
#   larger batch costs without fooling yourself.
# - [Lesson 03](03_custom_training_loop.ipynb): write the training loop by hand, and scale a loss.
# - [Accurate, large minibatch SGD](https://arxiv.org/abs/1706.02677) has the linear rule and the
#   warm-up. Its limit of 8,192 was measured with ResNet-50 on ImageNet, so take the rule, and not
#   the number.
# - [Measuring the effects of data parallelism](https://arxiv.org/abs/1811.03600) tunes the rate for
#   each batch size. It finds no evidence that large batches then generalize worse, and no simple
#   rule for the rate that holds everywhere.
# - [The glossary](../docs/glossary.md) explains the terms.
