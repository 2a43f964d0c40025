# %% [markdown]
# # Exercise: write the training loop yourself
#
# For [lesson 03](../notebooks/03_custom_training_loop.ipynb). You repair three losses, count
# tokens, compile a loop, and put everything together. The checks compare gradients and weights
# under SGD, because Adam nearly hides a constant factor in the loss.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `repair_losses` | find three bugs by what they do to the step | 10 | easy | core |
# | 2. `exact_loss` | a mean over tokens, right for each share of a batch | 8 | medium | core |
# | 3. `train_in_calls` | compile many steps into one call | 10 | medium | core |
# | 4. `train` | the whole loop, against a single device's weights | 12 | hard | extra |
# | 5. your own model | compare your own loop with a single device (no points) | 15 | open | extra |
#
# Write your answers in the cells that start with `# task:`, where a docstring says what each
# function takes and returns. Run them, and then the check below each. If you get stuck, open the
# hint.

# %%
import keras
import tensorflow as tf

import distlab as dl

devices = dl.split_devices(4)
strategy = dl.make_strategy("mirrored", devices=devices)
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## Task 1: find three bugs
#
# What gives each of three losses a wrong scale? A model's two heads name the digit and say whether
# it's odd, and a penalty keeps its weights small. Run the check first, because it says with which
# factor each loss enters the sum of four replicas' gradients. Change about 3 lines of
# `replica_loss`, so that each factor is 1.
#
# <details><summary>Hint 1</summary>
#
# For each of the three ask: what divides here, and by what? How many replicas add their result?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Keras divides by the number of replicas only if the reduction of a loss is a mean, and not with
# `"none"` or `"sum"`. Which of the three losses does every replica compute as a whole?
# </details>
#
# <details><summary>Hint 3</summary>
#
# For the losses of examples, one way always works: their sum, divided by `global_batch`. Whatever
# every replica adds as a whole, divide by the number of replicas. There are other right answers.
# </details>


# %%
# task: repair_losses
def replica_loss(model, x, y, global_batch):
    """This replica's loss, one number. It runs on each replica, inside `strategy.run`.

    Args:
        model: A Keras model with two heads, whose `losses` are the penalty.
        x: This replica's images, a quarter of the batch. All shares are equal here.
        y: The digits in these images.
        global_batch: How many examples all replicas have together.
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    digit_logits, odd_logits = model(x, training=True)
    is_odd = tf.cast(y % 2, tf.float32)[:, None]
    ### BEGIN SOLUTION
    digit_losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    digit = tf.reduce_sum(digit_losses(y, digit_logits)) / global_batch

    odd_sum = keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")
    odd = odd_sum(is_odd, odd_logits) / global_batch

    penalty = tf.add_n(model.losses) / replicas
    ### STUB
    digit_losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    digit = tf.reduce_mean(digit_losses(y, digit_logits))

    odd_sum = keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")
    odd = odd_sum(is_odd, odd_logits) / global_batch / replicas

    penalty = tf.add_n(model.losses) / global_batch
    ### END SOLUTION
    return digit + odd + penalty


# %%
dl.check("repair_losses")

# %% [markdown]
# **Try next:** what would each of the three bugs do with 64 replicas and a `global_batch` of 2048?

# %% [markdown]
# ## Task 2: the mean over tokens
#
# By what do you divide if replicas have different numbers of tokens? Write `exact_loss`, which runs
# on each replica, inside `strategy.run`. Its sum over all replicas must be **the mean over the
# tokens** of the whole batch, where the padding at the end of a sentence doesn't count. About 3
# lines are enough.
#
# <details><summary>Hint 1</summary>
#
# By what must the sum over *all* tokens be divided? Which replica knows that number?
# </details>
#
# <details><summary>Hint 2</summary>
#
# A replica that gives its own number to an all-reduce learns the sum of all. What must a loss at
# padding be multiplied by?
# </details>
#
# <details><summary>Hint 3</summary>
#
# Each token weighs one over the number of tokens on all replicas, and padding weighs zero. No
# replica knows that number alone, but `tf.distribute.get_replica_context().all_reduce("SUM",
# value)` sums what each of them has.
# </details>


# %%
# task: exact_loss
def exact_loss(per_token, is_token):
    """This replica's part of the loss of the whole batch, one number.

    Args:
        per_token: The loss at each position of this replica's sentences, of shape (sentences,
            positions). At padding it's a number without a meaning. Shares may be unequal, such as
            3, 3, 3 and 1 sentences, and a replica may have no sentence at all.
        is_token: 1.0 at each token and 0.0 at padding, in the same shape.
    """
    ### BEGIN SOLUTION
    context = tf.distribute.get_replica_context()
    tokens = context.all_reduce("SUM", tf.reduce_sum(is_token))
    return tf.reduce_sum(per_token * is_token) / tokens
    ### END SOLUTION


# %%
dl.check("exact_loss")

# %% [markdown]
# **Try next:** what would be different if the loss were the mean over sentences of each one's mean?

# %% [markdown]
# ## Task 3: compile the loop
#
# Which lines of this loop must Python run? It's right and slow, because Python starts every step
# and waits for its loss.


# %%
def slow(strategy, replica_step, iterator, steps_of_calls):
    means = []
    for steps in steps_of_calls:
        total = 0.0
        for _ in range(steps):
            losses = strategy.run(replica_step, args=(next(iterator),))
            total += float(strategy.reduce("SUM", losses, axis=None))
        means.append(total / steps)
    return means


# %% [markdown]
# Write `train_in_calls`, which does the same in one `tf.function` call for each number in
# `steps_of_calls`. The loop over the steps must be inside it, and TensorFlow traces it once,
# although the numbers differ. About 9 lines are enough.
#
# <details><summary>Hint 1</summary>
#
# Which of the lines of `slow` does Python run at every step?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Put the inner loop into a `tf.function`. What may then no longer be a Python number?
# </details>
#
# <details><summary>Hint 3</summary>
#
# Define inside `train_in_calls` a `tf.function` with the arguments `iterator` and `steps`. In it,
# start with `total = 0.0` and loop over `tf.range(steps)`. A Python number as `steps` costs a
# retrace for each value, but `tf.constant(n)` doesn't. Divide by `tf.cast(steps, tf.float32)`,
# because TensorFlow divides no float tensor by an integer tensor.
# </details>


# %%
# task: train_in_calls
def train_in_calls(strategy, replica_step, iterator, steps_of_calls):
    """Trains with one call of a compiled function for many steps.

    Args:
        strategy: The strategy whose replicas take the steps.
        replica_step: Takes one argument, a batch, and returns this replica's loss.
        iterator: An iterator over distributed batches.
        steps_of_calls: A list such as `[2, 5, 3]`: 2 steps in the first call, 5 in the second, ...

    Returns:
        A list with one number for each call: the mean over its steps of the loss of a step, which
        is the sum over the replicas.
    """

    ### BEGIN SOLUTION
    @tf.function
    def call(iterator, steps):
        total = 0.0
        for _ in tf.range(steps):
            losses = strategy.run(replica_step, args=(next(iterator),))
            total += strategy.reduce("SUM", losses, axis=None)
        return total / tf.cast(steps, tf.float32)

    return [call(iterator, tf.constant(steps)) for steps in steps_of_calls]
    ### END SOLUTION


# %%
dl.check("train_in_calls")

# %% [markdown]
# **Try next:** time `slow` and your function with a step of your own and a few hundred steps.

# %% [markdown]
# ## Task 4: the whole loop (optional)
#
# Can your loop end with a single device's weights if some examples have no label? Those must not
# count, in a last batch that's partial as well. Put your pieces together in `train`, and compile
# its loop as in task 3: the optimizer's variables must exist before TensorFlow traces it. About 16
# lines are enough.
#
# <details><summary>Hint 1</summary>
#
# By how many examples must the loss of a batch be divided? Which of your functions counts such a
# number over all replicas?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Use your `exact_loss`, and divide the penalty by the number of replicas. In the step that runs on
# each replica you need a tape, the loss, and `model.optimizer.apply(gradients, weights)`.
# </details>
#
# <details><summary>Hint 3</summary>
#
# The lesson's page has all parts but the penalty. Call
# `model.optimizer.build(model.trainable_variables)` in the strategy's scope. Each epoch begins with
# a new `iter(...)` of the distributed data set, and has `len(dataset)` steps.
# </details>


# %%
# task: train
def train(strategy, model, dataset, epochs):
    """Trains `model`, built in the strategy's scope, with `model.optimizer` (SGD with momentum).

    Each epoch goes through all of `dataset`, whose batches `(x, y, has_label)` aren't distributed
    yet: each must be split among the replicas. `has_label` is 1.0 for an example with a label and
    0.0 for one without. The loss of a batch is the mean over its examples with a label, by sparse
    categorical cross-entropy of logits, plus the penalty in `model.losses`. Returns nothing.
    """
    ### BEGIN SOLUTION
    losses_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    weights = model.trainable_variables
    with strategy.scope():
        model.optimizer.build(weights)

    def replica_step(x, y, has_label):
        with tf.GradientTape() as tape:
            loss = exact_loss(losses_of(y, model(x, training=True)), has_label)
            loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    @tf.function
    def train_steps(iterator, steps):
        for _ in tf.range(steps):
            strategy.run(replica_step, args=next(iterator))

    distributed = strategy.experimental_distribute_dataset(dataset)
    for _ in range(epochs):
        train_steps(iter(distributed), tf.constant(len(dataset)))
    ### END SOLUTION


# %%
dl.check("train")

# %% [markdown]
# **Try next:** limit the length of the gradient to 1 (clipping), as one device would. Which
# gradient has to be clipped, and after which all-reduce?

# %% [markdown]
# ## Task 5: your own model (no points)
#
# Does your own loop take the steps of a single device? The next cell compares them for a small
# model, in whose place you put a model, data and a loop of your own:
#
# 1. `build` returns your compiled model. Use SGD, and leave out dropout for this comparison.
# 2. `data` has batches of your data, the last one partial. `dl.check_parity` compares the first 5
#    batches, so give it the end of an epoch: `batches.skip(len(batches) - 5)`.
# 3. `my_loop(model, data)` goes once through its data. Start with the loop that you have, mistakes
#    included. `dl.check_parity` calls it for each step with one batch.


# %%
def build():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return model


x = tf.random.stateless_normal((42, 4), seed=(1, 2))
data = tf.data.Dataset.from_tensor_slices((x, tf.range(42) % 3)).batch(16)


# %%
def my_loop(model, data):
    mean = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = mean(y, model(x, training=True))
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(replica_step, args=batch)


result = dl.check_parity(build, data, strategy=strategy, train=my_loop)
dl.show("a single device's weights", result.equal)

# %% [markdown]
# Print `result` to read which weight differs first, and why. The loop above takes other steps than
# a single device, and now you can say why. Repair it or yours until `result.equal` is `True`.

# %% [markdown]
# ## Next steps
#
# - Do the losses of your own project use `reduction="none"`, or a mean? Look for every division.
# - `dl.distribute(build, strategy).fit(...)` does what your loop does, so keep the loop for what
#   `fit` can't do.
# - [Lesson 04](../notebooks/04_without_keras.ipynb): the same step without Keras.
