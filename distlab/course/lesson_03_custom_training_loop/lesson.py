# %% [markdown]
# # Write the training loop yourself
#
# Until 2024, popular trainers of language models computed the wrong loss whenever they saved
# memory. They cut each batch into small ones ([gradient
# accumulation](../docs/glossary.md#gradient-accumulation)), took the mean loss of each, and
# averaged the means, although the small batches had different numbers of tokens. No error appeared,
# so it took until October 2024 before [Unsloth](https://unsloth.ai/blog/gradient) and [Hugging
# Face](https://huggingface.co/blog/gradient_accumulation) reported a bug that had first been found
# in 2021.
#
# Replicas cut batches as well, so a loop for several devices invites the same mistake, and a single
# line decides whether you make it. After this lesson you can
#
# - say how much each example must weigh in a gradient,
# - recognize a wrong scale by what it does to the weights,
# - write a loop for any number of replicas that takes exactly the steps of a single device,
# - take away that loop on one page, with epochs, a test, checkpoints and a way to resume.
#
# Allow {minutes}. You need [lesson 01](01_mirrored_strategy.ipynb) (mirrored variables, the
# all-reduce) and `tf.GradientTape`, but no GPU and no download.
#
# <details><summary>Do you remember? Lesson 00: 10 examples in memory, 4 replicas. How many does
# each get?</summary>
#
# 3, 3, 3 and 1. If they're the last batch of a data set that's read from files in batches of 20,
# the shares are 5, 5, 0 and 0. Today both become a problem.
# </details>

# %%
import distlab as dl

dl.show("devices", len(dl.split_devices(4)))

# %%
import keras
import tensorflow as tf

from distlab.course.lesson_03_custom_training_loop import runs
from distlab.course.lesson_03_custom_training_loop.figures import draw_example_weights, draw_paths
from distlab.course.lesson_03_custom_training_loop.runs import last_step, max_difference

strategy = dl.make_strategy("mirrored")

# %% [markdown]
# ## Every example weighs the same
#
# A single device takes the mean over a batch of B examples, so each example weighs 1/B in the
# gradient. Each of several [replicas](../docs/glossary.md#replica) computes the gradient of its own
# share, and the [all-reduce](../docs/glossary.md#all-reduce) sums these gradients:
#
# ```text
# single device          g    = sum over all B examples of     1/B · gradient(example)
#
# replica r computes     g[r] = sum over its own examples of   w   · gradient(example)
# the all-reduce sums    g    = g[0] + g[1] + g[2] + g[3]
# ```
#
# The two gradients are equal if **w = 1/B for every example, on whichever replica it is**. Here B
# is the [global batch](../docs/glossary.md#global-batch), the examples of all replicas together.
# The all-reduce never divides, so the loss must already contain the division. What must each
# replica divide by?
#
# Our reference is Keras's `fit` on a single device, with a model of one layer that learns from 320
# digits in batches of 20. `fit_path` trains it, and keeps the weights before the first step and
# after each step.

# %%
full = runs.digits(320)  # in batches of 20
one, one_path = runs.fit_path(runs.build(), full)

# %% [markdown]
# Now the same as a loop of your own. `replica_step` is the step that you'd write for one device,
# and it runs once on each replica, on a share of 5 examples:


# %%
def make_step(model, loss_of):
    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)  # the line that decides
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    @tf.function
    def step(iterator):
        losses = strategy.run(replica_step, args=next(iterator))
        return strategy.reduce("SUM", losses, axis=None)

    return step


try_loss = runs.train_with(make_step, strategy)

# %% [markdown]
# Three calls are new. `strategy.run` starts `replica_step` on every replica, and `optimizer.apply`
# sums the gradients of all replicas before it updates the weights. `strategy.reduce` combines what
# you give it, here the losses, and it runs after the update, so it can't repair a gradient.
#
# One line is still open, the loss. `try_loss(loss_of, data)` builds the model in the
# [scope](../docs/glossary.md#scope), lets `experimental_distribute_dataset` cut each batch into
# four shares, and trains for an epoch. It returns the model, the path of its weights, and the
# losses that the steps reported.
#
# > **Takeaway.** The all-reduce sums and never divides. So each example must weigh 1/B in the loss,
# > where B counts the examples of all replicas.

# %% [markdown]
# ## Two losses and a penalty
#
# Two colleagues write the loss for four replicas. The first takes Keras's usual loss, which is a
# mean, and divides it by the number of replicas. The second switches Keras's reduction off with
# `reduction="none"`, which leaves a loss for each example, and takes the mean over the replica's 5
# examples.

# %%
mean_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def first_loss(model, x, y):
    return mean_loss(y, model(x, training=True)) / strategy.num_replicas_in_sync


def second_loss(model, x, y):
    return tf.reduce_mean(each_loss(y, model(x, training=True)))


# %% tags=["predict"]
lengths_guess = dl.predict(
    "Under SGD, how long is each colleague's first step, compared with a single device's?",
    ["1 and 1", "1 and 4", "1/4 and 1", "1/4 and 4"],
)

# %%
_, first_path, _ = try_loss(first_loss, full)
second, second_path, _ = try_loss(second_loss, full)
steps = [runs.first_step(path) for path in (first_path, second_path)]
lengths = [step / runs.first_step(one_path) for step in steps]
dl.show("first step, compared with a single device's", lengths)

# %% tags=["reveal"]
lengths_guess.reveal(
    " and ".join({0.25: "1/4", 1.0: "1", 4.0: "4"}[round(length, 3)] for length in lengths),
    {
        "1 and 1": "At most one of the two can be right, because only the first divides by 4. Here "
        "neither is: Keras has divided the first by 4 already, and nothing divides the second.",
        "1 and 4": "You're right about the second. The first would be right if Keras returned the "
        "plain mean, but in a scope Keras divides it by 4, and the colleague divides again.",
        "1/4 and 1": "You're right about the first. The second would be right if the all-reduce "
        "took the mean of the four gradients, but it takes their sum.",
        "1/4 and 4": "The first is divided by 4 twice, by Keras and by the colleague. The second "
        "is never divided by 4, and the all-reduce sums four means.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Since version 3.8, a Keras loss with its default reduction [also divides by the number of
# replicas](https://github.com/keras-team/keras/blob/v3.8.0/keras/src/losses/loss.py), wherever you
# call it in a scope or in `strategy.run`. So the first loss is **divided twice**, each example
# weighs 1/80, and the model trains as if you had set a quarter of the learning rate. The second
# loss is **not divided** by the number of replicas: four means of 5 examples are summed, and each
# example weighs 1/5.
#
# Now let the model have an L2 penalty on large weights. Keras puts it into the list `model.losses`,
# and a loop of your own must add it to the loss of the data, for which we take Keras's mean as it
# comes:


# %%
def penalty_loss(model, x, y):
    return mean_loss(y, model(x, training=True)) + sum(model.losses)


# %% [markdown]
# All models start with the same weights, so we can compare a first step with the penalty to a
# single device's first step without it. The length of the difference is the penalty's pull.

# %% tags=["predict"]
pull_guess = dl.predict(
    "How hard does the penalty pull under `penalty_loss`, compared with a single device?",
    ["1/4 as hard", "equally hard", "4 times as hard"],
)

# %%
one_l2, one_l2_path = runs.fit_path(runs.build(l2=0.05), full)
_, heavy_path, _ = try_loss(penalty_loss, full, l2=0.05)
pulls = [runs.length(path[1] - one_path[1]) for path in (heavy_path, one_l2_path)]
dl.show("pull of the penalty, in a single device's", pulls[0] / pulls[1], digits=2)

# %% tags=["reveal"]
pull_guess.reveal(
    {0.25: "1/4 as hard", 1: "equally hard", 4: "4 times as hard"}[round(pulls[0] / pulls[1], 2)],
    {
        "1/4 as hard": "That would be so if a replica computed a quarter of the penalty. It has a "
        "quarter of the examples but all the weights, and the penalty is made from the weights.",
        "equally hard": "It would be equal if Keras divided the penalty as it divides the mean of "
        "a loss object. But `model.losses` holds plain tensors, and your loop gets them undivided.",
        "4 times as hard": "Each of the four replicas adds the whole penalty.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The all-reduce sums the *whole* penalty four times, so it's **unscaled**. The figure follows two
# of the model's weights under all three mistakes. The broad grey line is the single device, and a
# large hollow marker shows where a path ends.

# %% tags=["after-reveal"]
scales = {"one device": one_path, "divided twice": first_path, "not divided": second_path}
penalties = {"one device": one_l2_path, "penalty unscaled": heavy_path}
draw_paths({"scale of the loss": scales, "with a penalty": penalties}, weights=((36, 0), (34, 6)))

# %% [markdown] tags=["after-reveal"]
# On the left, a wrong scale acts like a wrong learning rate. On the right both models have the
# penalty, but in one of them it pulls four times as hard towards zero, and the weights end in
# another place.
#
# > **Takeaway.** A loss that's divided twice takes short steps, and one that isn't divided takes
# > long ones. A penalty that every replica adds as a whole pulls too hard. None of the three raises
# > an error.

# %% [markdown]
# ## The second loss under Adam
#
# A step of SGD is as long as the gradient makes it. Adam, with which most networks are trained,
# keeps a running average of the gradients and divides it by a running average of their size. We
# train the second colleague's loss, in which each example weighs 1/5, under both. Their learning
# rates differ, so we measure the distance from a single device in that device's own steps: one unit
# is its largest change of a weight in a step.

# %% tags=["predict"]
adam_guess = dl.predict(
    "How far from a single device does the second loss end under Adam, in such units?",
    ["four times as far as under SGD", "as far as under SGD", "almost at the same weights"],
)

# %%
adam_one, adam_path = runs.fit_path(runs.build(optimizer=runs.adam), full)
adam_second, _, adam_losses = try_loss(second_loss, full, optimizer=runs.adam)
distances = {
    "SGD": max_difference(second, one) / runs.largest_change(one_path),
    "Adam": max_difference(adam_second, adam_one) / runs.largest_change(adam_path),
}
dl.show("max difference from a single device, in its steps", distances, digits=1)

# %% tags=["reveal"]
adam_guess.reveal(
    "almost at the same weights"
    if distances["Adam"] < 0.1 * distances["SGD"]
    else "as far as under SGD",
    {
        "four times as far as under SGD": "It would be if Adam's step grew with the gradient. But "
        "a gradient four times as long has an average size four times as large, so the quotient "
        "stays the same.",
        "as far as under SGD": "It would be if Adam, like SGD, took a step four times as long for "
        "a gradient four times as long. Adam divides by the size of the gradient.",
        "almost at the same weights": "Adam divides the gradient by its usual size, so a constant "
        "factor cancels.",
    },
)

# %% [markdown] tags=["after-reveal"]
# What's left of the difference is the work of epsilon, a constant that Adam adds to what it divides
# by. The mistake is still in the loop, though, and the reported loss gives it away. All models
# start with the same weights, so their first losses should be equal:

# %% tags=["after-reveal"]
images, labels = next(iter(full))
dl.show("a single device's first loss ", float(mean_loss(labels, runs.build()(images))))
dl.show("the second loss, under Adam  ", adam_losses[0])

# %% [markdown] tags=["after-reveal"]
# The second loss is four times too large, and on the day you change to SGD, so are your steps.
#
# > **Takeaway.** Adam nearly hides a constant factor. Test a loop with SGD, and compare its first
# > loss with a single device's.

# %% [markdown]
# ## The right loss
#
# Take the loss of each example, sum these losses, and divide once, by the *global* batch. The
# penalty has no examples, so divide it by the number of replicas, which is what
# `tf.nn.scale_regularization_loss` does:


# %%
def penalty_of(model):
    return tf.nn.scale_regularization_loss(sum(model.losses))


def divide_by_20(model, x, y):
    losses = each_loss(y, model(x, training=True))
    return tf.reduce_sum(losses) / 20 + penalty_of(model)


right, _, _ = try_loss(divide_by_20, full, l2=0.05)
dl.show("max difference from a single device", max_difference(right, one_l2), below=1e-6)

# %% [markdown]
# After 16 steps with a penalty, every weight is that of a single device.
#
# > **Takeaway.** Sum the losses of the examples, and divide once by the global batch. Divide a
# > penalty by the number of replicas.

# %% [markdown]
# ## A partial batch
#
# That loss has a 20 in it, and the last batch of an epoch seldom has 20 examples. If you take 330
# digits, it has 10, and four replicas can't share them equally. The labels of a distributed batch
# are a [PerReplica](../docs/glossary.md#perreplica) value, of which `experimental_local_results`
# lists the tensors, one for each replica:

# %%
partial = runs.digits(330)
*_, (_, last) = strategy.experimental_distribute_dataset(partial)
shares = [len(part) for part in strategy.experimental_local_results(last)]
dl.show("examples on each replica, in the last batch", shares)

# %% [markdown]
# On a single device each of the 10 examples weighs 1/10. Here's what they weigh if you divide by
# 20, and if you take Keras's own loss, which averages the means of the replicas:

# %%
of_means = [1 / (4 * share) for share in shares for _ in range(share)]
draw_example_weights(shares, {"divide by 20": [1 / 20] * 10, "mean of the means": of_means})

# %% [markdown]
# The first rule gives every example half of its weight, while the second gives a single example two
# and a half times its weight. That's the arithmetic of 2024, with replicas in place of small
# batches. So count how many examples *this* batch has. A replica knows only its own number, but
# `get_replica_context().all_reduce`, an all-reduce that a step calls itself, gives every replica
# the sum.


# %%
def mean_of_means(model, x, y):
    return mean_loss(y, model(x, training=True)) + penalty_of(model)


def counted(model, x, y):
    losses = each_loss(y, model(x, training=True))
    own = tf.cast(tf.size(y), tf.float32)
    in_batch = tf.distribute.get_replica_context().all_reduce("SUM", own)
    return tf.reduce_sum(losses) / in_batch + penalty_of(model)


one_l2, _ = runs.fit_path(runs.build(l2=0.05), partial)
for loss in (divide_by_20, mean_of_means, counted):
    model, _, _ = try_loss(loss, partial, l2=0.05)
    dl.show(f"{loss.__name__} ends as a single device", max_difference(model, one_l2) < 1e-6)

# %% [markdown]
# One partial batch after 16 full ones is enough to go wrong. The count is also right for batches
# that come from files, where the last 10 examples are shared as 5, 5, 0 and 0 ([lesson
# 00](00_start_here.ipynb)), because a replica without examples adds 0 to both sums. The other two
# losses then take a last step of half the length:

# %%
from_files = runs.digits(330, from_files=True)
_, one_path = runs.fit_path(runs.build(), from_files)
lengths = {}
for loss in (divide_by_20, mean_of_means, counted):
    _, path, _ = try_loss(loss, from_files)
    lengths[loss.__name__] = last_step(path) / last_step(one_path)
dl.show("last step, compared with a single device's", lengths, digits=3)

# %% [markdown]
# > **Takeaway.** Count the examples that are really there, over all replicas, and divide the sum of
# > the losses by that number.
#
# <details><summary>Fine print</summary>
#
# In a compiled step, Keras's loss of no example is 0, but `tf.reduce_mean` of no example is NaN,
# which the all-reduce hands to every replica.
# </details>

# %% [markdown]
# ## Count tokens, not examples
#
# With digits, only the last batch of an epoch has unequal shares. With text, nearly every batch has
# them, because a language model predicts each *token*, and lines aren't equally long. So it's the
# token that must weigh the same everywhere, which the trainers of 2024 got wrong.
#
# From here on, a small [transformer](../docs/glossary.md#transformer) runs through this course. It
# reads lines of Python's own help, and predicts each next character, which is its token.
# `text_lines` fills each line up to 64 places and says in a weight, 1 or 0, which of them are
# tokens. Each batch has eight lines, so each replica gets two, and a colleague sees no problem: the
# shares are equal, and the mean over a replica's tokens, divided by four, should do.

# %%
from distlab.course.tiny_transformer import text_lines

shuffled = text_lines(length=64).shuffle(10_000, seed=1, reshuffle_each_iteration=False)
lines = shuffled.batch(8).take(6)


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
typical = runs.typical_ratio(lines, replicas=4)
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
# The cure is the same line as before, with another thing to count: the tokens on all replicas. We
# train six steps on a single device, and then on four replicas with each of the two losses.


# %% tags=["after-reveal"]
def count_tokens(losses, weights):
    context = tf.distribute.get_replica_context()
    tokens = context.all_reduce("SUM", tf.reduce_sum(weights))
    return tf.reduce_sum(losses * weights) / tokens


one_small = runs.build_small()
one_small.fit(lines, shuffle=False, verbose=0)
for loss_of in (mean_of_replica, count_tokens):
    trained = runs.train_on_lines(loss_of, strategy, lines)
    same = max_difference(trained, one_small) < 1e-5
    dl.show(f"{loss_of.__name__} ends as a single device", same)

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** Divide by what you count everywhere: examples for digits, tokens for text. And
# > count it over all replicas, in the batch that's there.

# %% [markdown]
# ## Compile the loop
#
# So far each step was compiled, and Python started every one of them. A loop inside the
# `tf.function` takes many steps in one call, so the devices needn't wait for Python. We put a
# `print` into it, which shows when Python runs.

# %%
replica_step = runs.make_replica_step(counted, strategy)


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
        "`print` isn't one of them.",
        2: "That would be so if each call recorded a graph of its own. The second call uses the "
        "first one's.",
        68: "That would be one line for each step on each of the 4 replicas, if Python ran there.",
    },
)

# %% [markdown] tags=["after-reveal"]
# At the first call TensorFlow [traces](../docs/glossary.md#trace) the function: it runs the Python
# code once and records the operations in a graph, and later calls run only that graph. A Python
# number would be recorded as a constant, so each new number of steps would cost a
# [retrace](../docs/glossary.md#retrace).
#
# > **Takeaway.** Put the loop over the steps into the `tf.function`, and pass the number of steps
# > as a tensor.
#
# <details><summary>Fine print</summary>
#
# In a compiled loop, `float(loss)` becomes an operation of the graph and no longer makes Python
# wait; to write a line for each step, use `tf.print`. Call `optimizer.build` before the first
# trace. If the loop makes the optimizer's variables, TensorFlow traces it twice, or crashes under
# its own all-reduce ("must feed a value for placeholder").
# </details>

# %% [markdown]
# ## The whole loop on one page
#
# Here's everything in one cell that you can copy into a file of your own. It counts tokens, takes
# any number of replicas and a partial batch, tests after each epoch, saves a checkpoint, and starts
# from the newest checkpoint if it finds one.

# %% tags=["whole-program"]
import keras
import tensorflow as tf

import distlab as dl
from distlab.course.tiny_transformer import build_transformer, text_lines

strategy = dl.make_strategy("mirrored")
lines = text_lines(length=64).shuffle(10_000, seed=1, reshuffle_each_iteration=False)
test_data = lines.take(40).batch(8)


def train_data(epoch):  # the same order whenever this epoch is trained
    return lines.skip(40).take(75).shuffle(75, seed=epoch).batch(8)


def train(epochs, folder):
    with strategy.scope():
        dl.set_seed(1)
        model = build_transformer(width=32, layers=1)
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)  # before the first trace
        train_loss, test_loss = keras.metrics.Mean(), keras.metrics.Mean()
    each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    epochs_done = tf.Variable(0)
    parts = {"model": model, "optimizer": optimizer, "epochs_done": epochs_done}
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(**parts), folder, max_to_keep=2)
    manager.restore_or_initialize()  # the newest checkpoint, if there is one

    def train_step(x, y, weights):  # a weight for each token, or 1 for each example
        with tf.GradientTape() as tape:
            losses = each_loss(y, model(x, training=True))
            context = tf.distribute.get_replica_context()
            count = context.all_reduce("SUM", tf.reduce_sum(weights))
            loss = tf.reduce_sum(losses * weights) / count
            # with penalties: loss += tf.nn.scale_regularization_loss(sum(model.losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        train_loss.update_state(losses, weights)

    def test_step(x, y, weights):
        test_loss.update_state(each_loss(y, model(x, training=False)), weights)

    @tf.function  # one graph for train_step, and one for test_step
    def take_steps(step, iterator, steps):
        for _ in tf.range(steps):
            strategy.run(step, args=next(iterator))

    distribute = strategy.experimental_distribute_dataset
    for epoch in range(int(epochs_done), epochs):
        for metric in (train_loss, test_loss):
            metric.reset_state()
        data = train_data(epoch)
        take_steps(train_step, iter(distribute(data)), tf.constant(len(data)))
        take_steps(test_step, iter(distribute(test_data)), tf.constant(len(test_data)))
        print(f"epoch {epoch + 1}: {train_loss.result():.2f}, test {test_loss.result():.2f}")
        epochs_done.assign(epoch + 1)
        manager.save()
    return model


# %% [markdown]
# You know `train_step` and the compiled loop. The metrics are made in the scope, so each replica
# adds to its own totals, and `result()` sums the totals of all replicas. They're exact for unequal
# shares, because they get each token's loss and weight rather than a mean.
#
# A run that resumes needs the weights, the optimizer's momentum and the number of epochs done, so
# all three are in the checkpoint. It also needs the same data, so `train_data` shuffles with the
# epoch as its seed. The 75 lines end in a batch of 3, which leaves a replica with none.
#
# Now we train three epochs, and then do it again with a stop: one run ends after its first epoch,
# and the next one, with a new model, finds its checkpoint.

# %% tags=["numbers-within-0.02"]
from tempfile import mkdtemp

tf.get_logger().setLevel("ERROR")  # it warns of several compiled loops
whole = train(epochs=3, folder=mkdtemp())
folder = mkdtemp()
print("again, with a stop")
train(epochs=1, folder=folder)
resumed = train(epochs=3, folder=folder)
dl.show("max difference of the weights", max_difference(resumed, whole), below=1e-6)

# %% [markdown]
# The resumed run began with epoch 2, and ended with the weights of the run that never stopped. If a
# run dies inside an epoch, it repeats that epoch from the beginning. Are these also a single
# device's weights, and what if you had left the loop to `dl.distribute`?

# %%
alone = runs.build_small()
easy = dl.distribute(runs.build_small, strategy)
for epoch in range(3):
    alone.fit(train_data(epoch), shuffle=False, verbose=0)
    easy.fit(train_data(epoch), shuffle=False, verbose=0)
dl.show("a single device, max difference", max_difference(whole, alone), below=1e-5)
dl.show("dl.distribute, max difference", max_difference(easy, alone), below=1e-5)

# %% [markdown]
# All three end with the same weights. `dl.distribute` returns your Keras model, whose `fit` takes
# exactly these steps without a count of your own, because the model is compiled with Keras's
# reduction for weighted tokens, `"mean_with_sample_weight"`. So use `fit` if it does what you need,
# and write the loop if it doesn't.
#
# To take the page with you, copy its cell into a file, put `dl.split_devices(4)` under the imports
# if you've no GPUs, and call `train(epochs=3, folder="checkpoints")` at the end.
#
# > **Takeaway.** Count over the replicas, build the optimizer before the first trace, seed each
# > epoch, and save what a resumed run needs. The rest of the page is a loop for one device.
#
# <details><summary>Fine print</summary>
#
# Dropout's seed must be in the checkpoint as well, and to resume in the middle of an epoch you need
# the number of the step; [lesson 11](11_fault_tolerance.ipynb) shows both. In a file,
# `tf.distribute.MirroredStrategy()` will do instead of `dl.make_strategy`.
# </details>
#
# <details><summary>A third way: keep <code>fit</code> and write only the
# <code>train_step</code></summary>
#
# Keras calls a model's own `train_step` on every replica, as in [Keras's
# guide](https://keras.io/guides/custom_train_step_in_tensorflow/). Under Keras's `fit`, such a
# model ends with a single device's weights on full batches only, because a partial batch gives a
# mean of means. On four replicas it also logs a quarter of its loss, because Keras has divided it
# by 4. `dl.distribute` trains the same class to a single device's weights and log, even if the loss
# compares examples with each other.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch's `DistributedDataParallel` takes the **mean** of the gradients over the processes, so
# with equal shares `loss.mean()` on each process is right. With unequal shares, count the examples
# with `dist.all_reduce`, and use `losses.sum() * world_size / count` as the loss.
#
# Under `jax.shard_map`, divide each device's *summed loss* by the `jax.lax.psum` of the counts. By
# default (`check_vma=True`), JAX [sums the
# gradient](https://docs.jax.dev/en/latest/301/sharding-ad.html) of a replicated parameter over the
# devices, so a `psum` of your own would make it too large. Under `jax.jit` with sharded arrays, you
# write the code of a single device.
# </details>

# %% [markdown]
# ## Extra: One rule for every loss
#
# Counting helps only if the loss of a batch is a sum over its examples. The largest error of a
# batch isn't such a sum, and neither is a loss over pairs. `dl.distribute` is right for those as
# well, because it follows one rule: **layers compute a replica's own rows, and everything else sees
# the whole batch.** With 20 rows on four replicas that looks like this:
#
# ```text
#                  replica 0               ...   replica 3
#   layers         own rows 0 to 4         ...   own rows 15 to 19
#                      └────────────── all-gather ──────────────┘
#   loss           outputs of all 20 rows  ...   outputs of all 20 rows
#                  the same number on every replica, the single device's
#   gradient       its own part, times 4   ...   its own part, times 4
#                      └───────────────── mean ─────────────────┘
#   update         gradient of the whole batch, the same on every replica
# ```
#
# Why times 4? Every replica computes the whole loss, so there are four copies of it, and each of
# them depends on the outputs of replica 0. TensorFlow's gradient of an all-gather sums over the
# four copies, so replica 0 gets its own rows' part of the gradient four times. The mean then sums
# the parts of all replicas and divides by 4, and what's left is the gradient of the whole batch,
# whatever you compute from the outputs.
#
# Here it is for the largest loss of a batch, which no division could repair. `gather` does nothing
# on a single device, and is an all-gather on replicas:

# %%
weights = tf.constant(runs.kernel(runs.build()))


def gradient_of_largest(x, y, gather):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = gather(tf.reshape(x, (-1, 64)) @ weights)  # a layer: own rows only
        loss = tf.reduce_max(each_loss(gather(y), outputs))  # of the whole batch
    return tape.gradient(loss, weights)


def replica_part(x, y):
    context = tf.distribute.get_replica_context()
    own_part = gradient_of_largest(x, y, lambda rows: context.all_gather(rows, axis=0))
    return context.all_reduce("MEAN", own_part)


batch = next(iter(strategy.experimental_distribute_dataset(full)))
on_replicas = tf.function(lambda: strategy.run(replica_part, args=batch))()
alone = gradient_of_largest(images, labels, tf.identity)
difference = tf.reduce_max(abs(strategy.experimental_local_results(on_replicas)[0] - alone))
dl.show("max difference from a single device", difference, below=1e-6)

# %% [markdown]
# Random layers follow the rule, too: they draw for the whole batch from a single device's seed, and
# keep the replica's own rows.
#
# > **Takeaway.** If you gather the outputs and take the mean of the gradients, any loss is a single
# > device's loss.

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You call a Keras loss with its default reduction inside <code>run</code>.
# Must you divide?</summary>
#
# No, because Keras has done it (since 3.8). The result is right while all replicas have equally
# many examples.
# </details>
#
# <details><summary>2. Why is the penalty divided by the number of replicas, and not by the number
# of examples?</summary>
#
# Every replica computes the whole penalty, and the all-reduce sums them all. It must count once.
# </details>
#
# <details><summary>3. Under Adam, your loop ends where a single device ends. Is the loss scaled
# correctly?</summary>
#
# You can't tell, because Adam nearly hides a constant factor. Run one epoch with SGD.
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
# - For a loop of your own, `dl.check_parity(build, data, strategy=strategy, train=my_loop)`
#   compares the first 5 steps with a single device's, and looks for the cause if they differ.
# - [TensorFlow's tutorial on custom
#   loops](https://www.tensorflow.org/tutorials/distribute/custom_training) shows such a page with
#   `tf.nn.compute_average_loss`, which is right on full batches only. With Keras 3 it stops at
#   `reset_states`, which is now `reset_state`.
