# %% [markdown]
# # Write the training loop yourself
#
# In October 2024 [Unsloth](https://unsloth.ai/blog/gradient) and [Hugging
# Face](https://huggingface.co/blog/gradient_accumulation) reported a bug in the `Trainer` of the
# library Transformers and in many more trainers. To save memory, these trainers cut a batch into
# small batches ([gradient accumulation](../docs/glossary.md#gradient-accumulation)), took the
# mean loss of each, and averaged the means. The small batches had different numbers of tokens, so
# the result was not the mean over all tokens. No error appeared. Unsloth notes that the bug had
# first been found in 2021.
#
# A loop for several replicas cuts batches, too, and can average means in the same way. This lesson
# shows where your loop can do that, and how to find it.
#
# ## Overview
#
# After this lesson you can
#
# - say how much each example must weigh in a gradient, and make it weigh that much,
# - recognise a wrong scaling by what it does to the weights,
# - take exactly the step of one device, even on a partial batch,
# - write a training loop for any number of replicas and compile many steps into one call.
#
# It takes {minutes}. You need [lesson 01](01_mirrored_strategy.ipynb) (mirrored
# variables, the all-reduce) and `tf.GradientTape`. You need no GPU and download nothing.
#
# **Do you remember?**
#
# <details><summary>Lesson 00: 10 examples in memory, 4 replicas. How many does each get?</summary>
# 3, 3, 3 and 1. If they are the last batch of a data set that is read from files in batches of 20,
# the shares are 5, 5, 0 and 0. In this lesson both become a problem.
# </details>
#
# <details><summary>Lesson 01: two replicas, two different gradients. Why do their weights stay
# equal?</summary>
# The all-reduce adds up the gradients of all replicas before the update. Every replica then
# subtracts the same sum.
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# The cell above must be the first one in a fresh kernel. If it fails with "TensorFlow is already
# running", restart the kernel and run it again.

# %%
import keras
import numpy as np
import tensorflow as tf

from distlab.course.lesson_03_custom_training_loop.figures import draw_example_weights, draw_paths
from distlab.course.lesson_03_custom_training_loop.runs import apart, fit_path, kernel

strategy = dl.make_strategy("mirrored", devices=devices)
dl.show("replicas", strategy.num_replicas_in_sync)

# %% [markdown]
# ## The target: one weight for each example
#
# One device takes the mean over a batch of B examples. Each example then weighs 1/B in the
# gradient. Several [replicas](../docs/glossary.md#replica) reach the same gradient in two steps:
#
# ```text
# one device             g    = sum over all B examples of     1/B  · gradient(example)
#
# replica r computes     g[r] = sum over its own examples of   w    · gradient(example)
# the all-reduce adds    g    = g[0] + g[1] + g[2] + g[3]
# ```
#
# The two are equal if **w = 1/B for every example, on whichever replica it is**. B is the number of
# examples on all replicas together, the [global batch](../docs/glossary.md#global-batch).

# %%
BATCH = 20
draw_example_weights([5, 5, 5, 5], {"the target for 20 examples": [1 / BATCH] * BATCH})

# %% [markdown]
# The optimizer's [all-reduce](../docs/glossary.md#all-reduce) never divides, so the loss must
# already contain the division. The question of this lesson is: what must each replica divide by?
#
# ## One device is the reference
#
# The data are 330 digits of 8x8 pixels in batches of 20. The last batch is a partial one, of 10. We
# leave it out at first.

# %%
(digits,) = dl.load_dataset("digits", splits=["train[:330]"], batch_size=330)
in_memory = tf.data.Dataset.from_tensor_slices(next(iter(digits)))
full = in_memory.take(320).batch(BATCH)
partial = in_memory.batch(BATCH)
dl.show("steps", {"full batches": len(full), "with the partial one": len(partial)})

# %% [markdown]
# The model is one layer, so that you can follow single weights. `l2` is a penalty on large weights,
# and it is zero for now.


# %%
def sgd():
    return keras.optimizers.SGD(0.2)


def build(l2=0.0, make_optimizer=sgd):
    dl.set_seed(1)
    penalty = keras.regularizers.L2(l2)
    layers = [keras.layers.Flatten(), keras.layers.Dense(10, kernel_regularizer=penalty)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(make_optimizer(), loss=loss, metrics=["accuracy"])
    return model


# %% [markdown]
# `fit` on one device is the reference for everything below. `fit_path` calls it, and keeps the
# weights of the layer before the first step and after each step.

# %%
one, one_path = fit_path(build(), full)
dl.show("steps of one device", len(one_path) - 1)

# %% [markdown]
# ## The loop
#
# In lesson 01 Keras's `fit` did the work. Now you write it:
#
# ```diff
# - model.fit(data)
# + iterator = iter(strategy.experimental_distribute_dataset(data))
# + for _ in range(len(data)):
# +     losses = strategy.run(replica_step, args=next(iterator))
# +     loss = strategy.reduce("SUM", losses, axis=None)
# ```
#
# `experimental_distribute_dataset` cuts each batch into one share for each replica.
# `replica_step` runs once on each replica, on its share of 5 examples. It is the step you know from
# one device. Three calls are different with replicas:
#
# 1. `strategy.run` starts `replica_step` on every replica. `args` is the tuple of its arguments.
# 2. `optimizer.apply` adds up the gradients of all replicas, **as a sum**, and updates the weights.
# 3. `strategy.reduce` combines *what you give it*. Here these are the losses, so that you have one
#    number to look at. It runs after the update and never sees a gradient.


# %%
def make_step(model, loss_of):
    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    @tf.function
    def step(iterator):
        losses = strategy.run(replica_step, args=next(iterator))
        return strategy.reduce("SUM", losses, axis=None)

    return step


# %% [markdown]
# The loss is an argument because this lesson tries several. `train` builds the model in the
# [scope](../docs/glossary.md#scope), distributes the data and calls the step. It returns the model,
# its path of weights, and the loss that each step reported. `kernel(model)` returns the weight
# matrix of the model's layer, and `path` collects it before the first step and after each step.


# %%
def train(loss_of, data, **options):
    with strategy.scope():
        model = build(**options)
    step, path, losses = make_step(model, loss_of), [kernel(model)], []
    iterator = iter(strategy.experimental_distribute_dataset(data))
    for _ in range(len(data)):
        losses.append(float(step(iterator)))
        path.append(kernel(model))
    return model, path, losses


# %% [markdown]
# ## Two losses
#
# Two colleagues write the loss for four replicas. The first takes Keras's usual loss, which is a
# mean, and divides it by the number of replicas. The second switches Keras's reduction off: with
# `reduction="none"` the loss has one number for each example, and the colleague takes the mean over
# the replica's 5 examples. (`training=True` matters to layers such as `Dropout`.)

# %%
mean_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def first_loss(model, x, y):
    return mean_loss(y, model(x, training=True)) / strategy.num_replicas_in_sync


def second_loss(model, x, y):
    return tf.reduce_mean(each_loss(y, model(x, training=True)))


# %% tags=["predict"]
lengths_guess = dl.predict(
    "Under SGD, how long is each colleague's first step, compared with one device's first step?",
    ["1 and 1", "1 and 4", "1/4 and 1", "1/4 and 4"],
)


# %%
def first_step(path):
    return float(np.linalg.norm(path[1] - path[0]))


_, first_path, _ = train(first_loss, full)
second, second_path, second_losses = train(second_loss, full)
lengths = [first_step(path) / first_step(one_path) for path in (first_path, second_path)]
dl.show("first step, compared with one device's", lengths)

# %% tags=["reveal"]
lengths_guess.reveal(
    " and ".join({0.25: "1/4", 1.0: "1", 4.0: "4"}[round(length, 3)] for length in lengths),
    {
        "1 and 1": "At most one of the two can be right, because the first divides by 4 and the "
        "second does not. Here neither is: in the first, Keras has divided by 4 already, and in "
        "the second, nothing divides by 4.",
        "1 and 4": "You are right about the second. But in a scope, Keras's own mean is divided "
        "by 4 already, and the first colleague divides once more.",
        "1/4 and 1": "You are right about the first. For the second, the all-reduce would have to "
        "take the mean of the four gradients. It takes their sum.",
        "1/4 and 4": "The first is divided by 4 twice, by Keras and by the colleague. The second "
        "is never divided by 4, and the all-reduce adds four means.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The default reduction of a Keras loss is `"sum_over_batch_size"`, a mean. Since Keras 3.8 such a
# loss [also divides by the number of
# replicas](https://github.com/keras-team/keras/blob/v3.8.0/keras/src/losses/loss.py). It does so
# wherever you call it in a scope or in `strategy.run`, as lesson 01 said.
#
# - The first loss is **divided twice**, and each example weighs 1/80. Under SGD the model trains as
#   if the learning rate were a quarter of what you set.
# - The second loss is **not divided** by the number of replicas. Each replica divides by its 5
#   examples, the all-reduce adds four such means, and each example weighs 1/5.
#
# Neither raises an error.
#
# ## A penalty on the weights
#
# Now the model has an L2 penalty. Keras puts it into the list `model.losses`, and a loop of your
# own must add it to the loss. The data loss below is Keras's own mean, as it comes.

# %%
L2 = 0.05


def penalty_loss(model, x, y):
    return mean_loss(y, model(x, training=True)) + sum(model.losses)


# %% [markdown]
# How hard does the penalty pull at the weights? All models start with the same weights. Compare two
# first steps: one with the penalty, and the step of one device without a penalty. The length of
# their difference is the pull.

# %% tags=["predict"]
pull_guess = dl.predict(
    "How hard does the penalty pull under `penalty_loss`, measured in one device's pull?",
    ["1/4 as hard", "equally hard", "4 times as hard"],
)

# %%
one_l2, one_l2_path = fit_path(build(l2=L2), full)
heavy, heavy_path, _ = train(penalty_loss, full, l2=L2)


def pull(path):
    return float(np.linalg.norm(path[1] - one_path[1]))


in_pulls_of_one = pull(heavy_path) / pull(one_l2_path)
dl.show("pull of the penalty, in one device's", in_pulls_of_one, digits=2)

# %% tags=["reveal"]
pull_guess.reveal(
    {0.25: "1/4 as hard", 1.0: "equally hard", 4.0: "4 times as hard"}[round(in_pulls_of_one, 2)],
    {
        "1/4 as hard": "Each replica has a quarter of the examples. But it has all the weights, "
        "and the penalty is computed from the weights.",
        "equally hard": "Keras divides the mean that a loss object returns. A penalty in "
        "`model.losses` is a plain tensor, and your loop gets it undivided.",
        "4 times as hard": "Each of the four replicas adds the whole penalty.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Each replica has all the weights, so each computes the *whole* penalty, and the all-reduce adds it
# four times. The penalty is **unscaled**.
#
# ## See all three
#
# The figure follows two of the 640 weights. The broad grey line is one device. A large hollow
# marker shows where a path ends.

# %%
draw_paths(
    {
        "scale of the loss": {
            "one device": one_path,
            "divided twice": first_path,
            "not divided": second_path,
        },
        "with a penalty": {"one device": one_l2_path, "penalty unscaled": heavy_path},
    },
    weights=((36, 0), (34, 6)),
)

# %% [markdown]
# On the left a wrong scale acts like a wrong learning rate: the steps are too short or too long. On
# the right both models have the penalty. In one of them it pulls four times as hard towards zero,
# so its weights end in a different place.
#
# ## The second loss under Adam
#
# So far the optimizer was SGD. Adam keeps a running average of the gradients, and divides it by a
# running average of their size. `apart` returns the largest difference of a weight between two
# models.


# %%
def adam():
    return keras.optimizers.Adam(0.01)


# %% tags=["predict"]
adam_guess = dl.predict(
    "Where does the second loss (each example weighs 1/5) lead under Adam?",
    [
        "four times as far from one device's weights as under SGD",
        "as far from one device's weights as under SGD",
        "almost to one device's weights",
    ],
)

# %%
adam_one, adam_path = fit_path(build(make_optimizer=adam), full)
adam_second, _, adam_losses = train(second_loss, full, make_optimizer=adam)
distances = {"SGD": apart(second, one), "Adam": apart(adam_second, adam_one)}
dl.show("weights apart from one device's by", distances, digits=3)

# %% tags=["reveal"]
adam_guess.reveal(
    "almost to one device's weights"
    if distances["Adam"] < 0.1 * distances["SGD"]
    else "as far from one device's weights as under SGD",
    {
        "four times as far from one device's weights as under SGD": "Adam's step does not grow "
        "with the gradient. A gradient four times as long has an average size four times as large, "
        "so the quotient stays the same.",
        "as far from one device's weights as under SGD": "Under SGD a gradient four times as long "
        "is a step four times as long. Adam divides by the size of the gradient.",
        "almost to one device's weights": "Adam divides the gradient by its usual size, so a "
        "constant factor cancels.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The two optimizers have different learning rates, so you cannot compare 0.45 with 0.001 directly.
# Compare each distance with the largest change of a weight in one step of one device:


# %% tags=["after-reveal"]
def largest_change(path):
    return float(np.abs(np.diff(path, axis=0)).max())


sgd_change, adam_change = largest_change(one_path), largest_change(adam_path)
in_steps = {"SGD": distances["SGD"] / sgd_change, "Adam": distances["Adam"] / adam_change}
dl.show("the same, in such largest changes", in_steps, digits=1)

# %% [markdown] tags=["after-reveal"]
# Under SGD the weights end nine such changes apart, and under Adam a tenth of one. This small
# difference remains because Adam adds a constant, epsilon (1e-7), to what it divides by, and
# epsilon does not grow with the gradient.
#
# The mistake is still in the loop, and the loss that the step reports shows it. All models start
# with the same weights, so their first losses should be equal:

# %% tags=["after-reveal"]
images, labels = next(iter(full))
dl.show("one device, first loss", float(mean_loss(labels, build()(images))))
dl.show("second loss under SGD ", second_losses[0])
dl.show("second loss under Adam", adam_losses[0])

# %% [markdown]
# Under Adam, too, the loss is four times too large. If you add a correctly scaled penalty to it,
# the penalty has a quarter of its proper weight beside the loss. If your loop adds up the gradients
# and then limits the length of the sum (clipping), it compares the limit with a gradient that is
# four times too long. If you later change to SGD, the steps are four times too long. **So test a
# loop with SGD.** The exercise does.
#
# ## The right loss
#
# Take the loss of each example (`reduction="none"`), add them up, and divide once by the *global*
# batch. Divide the penalty by the number of replicas: `tf.nn.scale_regularization_loss` does that.


# %%
def penalty_of(model):
    return tf.nn.scale_regularization_loss(sum(model.losses))


def divide_by_20(model, x, y):
    losses = each_loss(y, model(x, training=True))
    return tf.reduce_sum(losses) / BATCH + penalty_of(model)


# %% [markdown]
# To test the loss, compare with `fit` on one device:

# %%
right, _, _ = train(divide_by_20, full, l2=L2)
dl.show("weights apart from one device's by", apart(right, one_l2), below=1e-6)
dl.show("the same for the unscaled penalty", apart(heavy, one_l2), below=1e-6)

# %% [markdown]
# ## A partial batch
#
# Now take all 330 digits. The last batch has 10, and four replicas cannot share them equally. The
# labels of a distributed batch are a [PerReplica](../docs/glossary.md#perreplica) value, and
# `experimental_local_results` lists its tensors, one for each replica. The first line of the next
# cell goes through all batches and keeps the labels of the last one.

# %%
*_, (_, last) = strategy.experimental_distribute_dataset(partial)
shares = [len(part) for part in strategy.experimental_local_results(last)]
dl.show("examples on each replica", shares)

# %% [markdown]
# `fit` on one device gives each of the 10 examples the weight 1/10. Compare two losses: the one
# that divides by 20, and Keras's own, which averages the replicas' means. In a full batch both give
# each example the weight 1/20.

# %%
of_means = [1 / (4 * share) for share in shares for _ in range(share)]
draw_example_weights(shares, {"divide by 20": [1 / 20] * 10, "mean of the means": of_means})


# %%
def mean_of_means(model, x, y):
    return mean_loss(y, model(x, training=True)) + penalty_of(model)


# %% [markdown]
# Train with each of them for 17 steps. Only the last batch is partial.

# %%
one_l2, _ = fit_path(build(l2=L2), partial)


def distance(loss, data):
    model, _, _ = train(loss, data, l2=L2)
    return apart(model, one_l2)


distances = {loss.__name__: distance(loss, partial) for loss in (divide_by_20, mean_of_means)}
dl.show("weights apart from one device's by", distances, digits=3)

# %% [markdown]
# After the 16 full batches, `divide_by_20` was closer than 1e-6 to one device. After one partial
# batch more, it is 0.014 away. `divide_by_20` gives every example half of its weight.
# `mean_of_means` gives one example two and a half times its weight. Which of the two ends further
# depends on the digits.
#
# The mean of means is the arithmetic of October 2024. There the small batches had different numbers
# of tokens, and here the replicas have different numbers of examples. The cure is to count how many
# examples *this* batch has. `get_replica_context().all_reduce` is an all-reduce that a step calls
# itself, in the [replica context](../docs/glossary.md#replica-context): every replica passes its
# own number and gets the sum.


# %%
def count_in_batch(y):
    mine = tf.cast(tf.size(y), tf.float32)
    return tf.distribute.get_replica_context().all_reduce("SUM", mine)


def counted(model, x, y):
    losses = each_loss(y, model(x, training=True))
    return tf.reduce_sum(losses) / count_in_batch(y) + penalty_of(model)


dl.show("counted, weights apart by", distance(counted, partial), below=1e-6)

# %% [markdown]
# The same count is right for shares that come from files, where the last 10 examples are shared as
# 5, 5, 0 and 0 ([lesson 00](00_start_here.ipynb), "Three ways to cut a batch"). A replica without
# examples adds 0 to the sum and 0 to the count. Without the count, both losses give each of these
# examples half of its weight, so the last step is half as long as one device's.

# %%
(on_disk,) = dl.load_dataset("digits", splits=["train[:330]"], batch_size=BATCH)


def last_step(path):
    return float(np.linalg.norm(path[-1] - path[-2]))


_, one_path = fit_path(build(), on_disk)
lengths = {}
for loss in (divide_by_20, mean_of_means, counted):
    _, path, _ = train(loss, on_disk)
    lengths[loss.__name__] = last_step(path) / last_step(one_path)
dl.show("last step, compared with one device's", lengths, digits=3)

# %% [markdown]
# ## Count tokens, not examples
#
# With digits, only the last batch of an epoch has unequal shares. With text, every batch has them,
# because no two lines are equally long, and a language model predicts each *token*. So it's the
# token that must weigh the same everywhere, and that's the case in which the trainers of 2024 were
# wrong.
#
# From here on, a small [transformer](../docs/glossary.md#transformer) runs through this course. It
# reads single lines of Python's own help, a character is a token, and it predicts the next one.
# `text_lines` fills each line up to 64 places and says in a weight, 1 or 0, which of them are
# tokens.

# %%
from distlab.course.lesson_03_custom_training_loop.runs import train_on_lines
from distlab.course.tiny_transformer import build_transformer, text_lines

shuffled = text_lines(length=64).shuffle(10_000, seed=1, reshuffle_each_iteration=False)
lines = shuffled.batch(8).take(6)


def build_small():
    dl.set_seed(1)
    model = build_transformer(width=32, layers=1)
    loss = keras.losses.SparseCategoricalCrossentropy(True, reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


# %% [markdown]
# Each batch has eight lines, so each replica gets two, and a colleague sees no problem: the shares
# are equal, and the mean over a replica's tokens, divided by four, should do.


# %%
def mean_of_replica(losses, weights):
    return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights) / 4


# %% tags=["predict"]
tokens_guess = dl.predict(
    "In a typical batch, how much more does a token count on the replica where it counts most than "
    "on the one where it counts least?",
    [
        "not at all: each replica has two lines",
        "up to a tenth more",
        "one and a half times or more",
    ],
)

# %%
ratios = []
for _, _, weights in lines:
    of_replica = tf.reduce_sum(tf.reshape(weights, (4, -1)), axis=1)
    ratios.append(float(tf.reduce_max(of_replica) / tf.reduce_min(of_replica)))
typical = sorted(ratios)[len(ratios) // 2]
dl.show("one and a half times or more", typical >= 1.5)

# %% tags=["reveal"]
tokens_guess.reveal(
    "one and a half times or more" if typical >= 1.5 else "up to a tenth more",
    {
        "not at all: each replica has two lines": "That would be so if a line were what counts. "
        "Two short lines share the same quarter of the gradient as two long ones.",
        "up to a tenth more": "With hundreds of lines on each replica their lengths would even "
        "out. Two lines don't.",
        "one and a half times or more": "Each replica's tokens share a quarter of the gradient, so "
        "in a replica with few tokens each of them gets more of it.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The cure is the same line as before, with another thing to count: the tokens on all replicas. The
# next cell trains six steps on one device, and then on four replicas with each of the two losses.


# %% tags=["after-reveal"]
def count_tokens(losses, weights):
    context = tf.distribute.get_replica_context()
    tokens = context.all_reduce("SUM", tf.reduce_sum(weights))
    return tf.reduce_sum(losses * weights) / tokens


one_small = build_small()
one_small.fit(lines, shuffle=False, verbose=0)
for loss_of in (mean_of_replica, count_tokens):
    trained = train_on_lines(build_small, loss_of, strategy, lines)
    dl.show(f"{loss_of.__name__}, within 1e-5 of one device", apart(trained, one_small) < 1e-5)

# %% [markdown]
# `dl.distribute` needs no count from you. Keras has a reduction for weighted tokens,
# `"mean_with_sample_weight"`, and the model above is compiled with it, so `fit` takes these steps:

# %%
same_small = dl.distribute(build_small, strategy)
same_small.fit(lines, shuffle=False, verbose=0)
dl.show("dl.distribute, weights apart by", apart(same_small, one_small), below=1e-5)

# %% [markdown]
# > **Takeaway.** Divide by what you count everywhere: examples for digits, tokens for text. And
# > count it over all replicas, in the batch that's there.

# %% [markdown]
# ## Metrics
#
# Make a metric in the scope and update it inside `run`. Each replica then adds to its own totals,
# and `result()` adds up the totals of all replicas. Give the metric each example, not a mean.
# Then it is exact for unequal shares, too.
#
# Here is the whole step with two metrics: the accuracy, and the loss as `fit` logs it. `fit` logs
# a mean over the examples. Each example counts with its own loss plus the whole penalty.
#
# `optimizer.build` makes the optimizer's variables now. If the compiled loop made them later, it
# would be traced twice or crash.

# %%
with strategy.scope():
    model = build(l2=L2)
    model.optimizer.build(model.trainable_variables)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    mean_of_losses = keras.metrics.Mean()


def replica_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        losses = each_loss(y, logits)
        loss = tf.reduce_sum(losses) / count_in_batch(y) + penalty_of(model)
    accuracy.update_state(y, logits)
    mean_of_losses.update_state(losses + sum(model.losses))
    weights = model.trainable_variables
    model.optimizer.apply(tape.gradient(loss, weights), weights)


# %% [markdown]
# Update the metric of the loss *before* the optimizer, as `fit` does. `model.losses` computes the
# penalty from the weights at the moment when you read it. After `apply` these are the weights of
# the next step.
#
# ## Compile the loop
#
# So far each step was compiled, and Python called it for every batch. Now the loop is compiled,
# too: it goes inside the `tf.function`, and Python calls it once for many steps. We put a `print`
# into it, to see when Python runs.


# %%
@tf.function
def train_steps(iterator, steps):
    for _ in tf.range(steps):
        strategy.run(replica_step, args=next(iterator))
        print("Python was here")


# %% tags=["predict"]
print_guess = dl.predict(
    "The next cell takes 10 steps, and then 7 more. How often does `print` write its line?",
    [1, 2, 17, 68],
)

# %%
iterator = iter(strategy.experimental_distribute_dataset(partial))
train_steps(iterator, tf.constant(10))
train_steps(iterator, tf.constant(7))
traces = train_steps.experimental_get_tracing_count()
dl.show("traces", traces)

# %% tags=["reveal"]
print_guess.reveal(
    traces,
    {
        1: "Python runs once, to record the operations. Both calls run the recorded graph.",
        17: "That is what a Python loop does. A compiled loop runs its recorded operations, and "
        "`print` is not one of them.",
        2: "That would be one line for each call. The second call uses the first one's graph.",
        68: "That would be one line for each step on each of the 4 replicas.",
    },
)

# %% [markdown] tags=["after-reveal"]
# At the first call TensorFlow [traces](../docs/glossary.md#trace) the function: it runs the Python
# code once and records the TensorFlow operations in a graph. Later calls run the graph only. So
# pass `steps` as a **tensor**. A Python number is recorded as a constant, and each new number costs
# a new trace. See it with 0 steps, which train nothing:

# %% tags=["after-reveal"]
for steps in (tf.constant(0), 0, tf.constant(0)):
    print("call with", steps)
    train_steps(iterator, steps)
dl.show("traces", train_steps.experimental_get_tracing_count())

# %% [markdown] tags=["after-reveal"]
# The call with the Python number ran `print` again: this was the second trace.
#
# <details><summary>Two more traps of a compiled loop: logging, and optimizers with
# state</summary>
#
# - In a Python loop, `print(loss)` or `float(loss)` makes Python wait for all replicas in each
#   step. In a compiled loop it does not: `print` runs only while tracing, and `float` becomes an
#   operation of the graph. To write a line for each step, use `tf.print`.
# - Call `optimizer.build(...)` in the scope, *before* the first trace. Adam and momentum keep
#   variables for each weight. If the compiled loop makes them first, the loop crashes under
#   TensorFlow's default all-reduce ("must feed a value for placeholder").
# </details>

# %% [markdown]
# Is the loop still right? Compare weights and metrics with `fit` on one device.

# %%
logged = one_l2.history.history
by_hand = {"loss": mean_of_losses.result(), "accuracy": accuracy.result()}
dl.show("weights apart from one device's by", apart(model, one_l2), below=1e-6)
for name, value in by_hand.items():
    dl.show(name, float(value), digits=3, expected=logged[name][-1])

# %% [markdown]
# This loop never called `strategy.reduce`, and the weights are right: the optimizer added up the
# gradients. For a second epoch your loop needs a new iterator, and it must reset the metrics as
# `fit` does (`metric.reset_state()`).
#
# ## The same in one line
#
# `dl.distribute` returns your Keras model, whose `fit` takes exactly these steps: each example
# weighs the same, and the penalty counts once. Callbacks, history and validation stay Keras's.

# %%
same = dl.distribute(lambda: build(l2=L2), strategy)
history = same.fit(partial, verbose=0, shuffle=False).history
dl.show("weights apart from your loop's by", apart(same, model), below=1e-6)
for name, value in by_hand.items():
    dl.show(f"{name}, beside your loop's", history[name][-1], digits=3, expected=float(value))

# %% [markdown]
# Use `fit` if it does what you need. Write the loop if it does not, or to know what happens.
#
# <details><summary>A third way: keep <code>fit</code> and write only the
# <code>train_step</code></summary>
#
# Many people put their training logic into the model's `train_step`, as in [Keras's
# guide](https://keras.io/guides/custom_train_step_in_tensorflow/), and Keras calls it on every
# replica:
#
# ```python
# class Classifier(keras.Model):
#     def train_step(self, data):
#         x, y = data
#         with tf.GradientTape() as tape:
#             loss = mean_loss(y, self(x, training=True))
#         weights = self.trainable_variables
#         gradients = tape.gradient(loss, weights)
#         self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
#         self.tracker.update_state(loss)  # a keras.metrics.Mean
#         return {"loss": self.tracker.result()}
# ```
#
# `apply_gradients` takes pairs, and calls `apply`. This model has no penalty. If yours has one, add
# `tf.nn.scale_regularization_loss(sum(self.losses))` to the loss.
#
# Built in the scope and trained by Keras's own `fit`, this model ends with one device's weights on
# full batches only. On a partial batch, Keras takes the mean of means. It logs a quarter of the
# loss in any case, because Keras has divided it by 4 before the tracker gets it.
#
# `dl.distribute` trains the same class, unchanged, to one device's weights and log, because every
# replica runs your `train_step` as one device would. Only the layers compute the replica's own
# examples. An all-gather puts their outputs together, so the loss is that of the whole batch, even
# if it compares examples with each other, as a contrastive loss does. `tape.gradient` returns the
# mean over the replicas, which the next section explains. Under [parameter
# servers](../docs/glossary.md#parameter-server), `dl.distribute` refuses a model with a
# `train_step`.
# </details>
#
# <details><summary>In plain TensorFlow</summary>
#
# Without `dl.distribute` you write what this lesson wrote: `counted` as the loss, `replica_step`
# with its metrics, `train_steps`, and the loop over epochs. Validation, callbacks and history are
# then yours to write as well.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch's `DistributedDataParallel` takes the **mean** of the gradients over the processes, not
# the sum. With equal shares, `loss.mean()` on each process is therefore right. With unequal
# shares it is a mean of means: count the examples with `dist.all_reduce`, and use `losses.sum() *
# world_size / count` as the loss.
#
# Under `jax.shard_map` you choose yourself: `jax.lax.psum` adds, `jax.lax.pmean` takes the mean.
# For unequal shares, divide each device's *summed loss* by the `psum` of the counts, and take the
# gradient of the quotient. By default (`check_vma=True`), JAX [adds up this
# gradient](https://docs.jax.dev/en/latest/301/sharding-ad.html) over the devices if the parameter
# is replicated. A `psum` of your own would then make it too large by the number of devices. Under
# `jax.jit` with sharded arrays you write the code of a single device, so `jnp.mean` is the mean
# over the whole array.
# </details>
#
# ## Extra: One rule for every loss
#
# Counting examples helps only if a loss adds up over them. The largest error of a batch doesn't,
# and neither does a loss over pairs. `dl.distribute` needs no such loss, because it keeps one rule:
# **layers compute a replica's own examples, and everything else sees the whole batch.** Here is
# that rule by hand, for a loss that no division could repair. `put_together` returns the outputs of
# all replicas. Its gradient sums what all replicas ask for, and keeps the rows of this one.


# %%
@tf.custom_gradient
def put_together(own):
    context = tf.distribute.get_replica_context()
    first = 5 * context.replica_id_in_sync_group

    def back(asked):
        return context.all_reduce("SUM", asked)[first : first + 5]

    return context.all_gather(own, axis=0), back


# %%
(images, labels) = next(iter(full))
weights = tf.constant(kernel(build()))


def gradient_of_the_worst(images, outputs_of_all):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = outputs_of_all(tf.reshape(images, (-1, 64)) @ weights)
        loss = tf.reduce_max(each_loss(labels, outputs))  # of the whole batch
    return tape.gradient(loss, weights)


@tf.function
def on_replicas():
    def replica_step():
        context = tf.distribute.get_replica_context()
        first = 5 * context.replica_id_in_sync_group
        own = gradient_of_the_worst(images[first : first + 5], put_together)
        return context.all_reduce("MEAN", own)

    return strategy.experimental_local_results(strategy.run(replica_step))[0]


alone = gradient_of_the_worst(images, tf.identity)
dl.show("apart from one device's by", tf.reduce_max(abs(on_replicas() - alone)), below=1e-6)

# %% [markdown]
# All four replicas compute the same loss, so without the sum in `back` each of them would find only
# its own examples' part of the gradient. With the sum each finds four times that part, and their
# mean is the gradient of the whole batch, whatever the loss is. A random layer fits into the rule
# as well: it draws for the whole batch from one device's seed, and keeps the replica's rows.
#
# **Put outputs together, and take the mean of the gradients: then any loss is one device's.**

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. What does <code>strategy.reduce</code> combine in this loop?</summary>
# What you give it: here the losses, after the update. The optimizer adds up the gradients, inside
# <code>run</code>.
# </details>
#
# <details><summary>2. With 8 replicas, each takes the mean over its own examples and divides by
# nothing else. How long are the steps under SGD?</summary>
# Eight times too long: the all-reduce adds eight means.
# </details>
#
# <details><summary>3. You call a Keras loss with its default reduction inside <code>run</code>.
# Must you divide?</summary> No, Keras has divided by the number of replicas (since 3.8). The
# result is right while all replicas have equally many examples.
# </details>
#
# <details><summary>4. Why is the penalty divided by the number of replicas, and not by the
# number of examples?</summary>
# Every replica computes the whole penalty, and the all-reduce adds them all. It must count once.
# </details>
#
# <details><summary>5. Under Adam, your loop ends where one device ends. Is the loss
# scaled correctly?</summary>
# You cannot tell: Adam nearly hides a constant factor. Run one epoch with SGD.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/03_custom_training_loop.ipynb): repair three losses, then build the
#   loop.
# - [Lesson 04](04_without_keras.ipynb): the same step without Keras, its optimizer included.
# - Your own loop: `dl.check_parity(build, data, strategy=strategy, train=my_loop)` compares every
#   weight with one device's after each of the first 5 steps, and looks for the cause where they
#   differ. `my_loop(model, data)` trains on the data that it is given.
# - The words of this lesson are in the [glossary](../docs/glossary.md).
# - [TensorFlow's tutorial on custom
#   loops](https://www.tensorflow.org/tutorials/distribute/custom_training) shows the same loop with
#   `tf.nn.compute_average_loss`, which is right on full batches only. With Keras 3 it stops at
#   `reset_states`, which is now `reset_state`.
