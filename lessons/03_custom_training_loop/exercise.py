# %% [markdown]
# # Exercise: write the training loop yourself
#
# For [lesson 03](../notebooks/03_custom_training_loop.ipynb). All tasks are checked by gradients
# and weights under SGD: Adam would let half of the mistakes pass.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `repair_losses` | find three bugs by what they do to the step | 10 | easy |
# | 2. `exact_loss` | a loss that is right for every share of a batch | 8 | medium |
# | 3. `train_in_calls` | compile many steps into one call | 10 | medium |
# | 4. `train` | the whole loop, against one device's weights (optional) | 12 | hard |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below. If
# you get stuck, open the hint.

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
# A model has two heads: one names the digit, the other says whether it is odd. A penalty keeps the
# weights of its body small. So there are three losses, and whoever wrote `replica_loss` scaled each
# of them wrongly, each in another way. Nothing crashes.
#
# Run the check before you change anything. It adds the gradients of four replicas up, as the
# optimizer does, and tells you how often each loss counts in the sum. It should be once.
#
# - `replica_loss(model, x, y, global_batch)` runs on each replica, inside `strategy.run`.
# - `x` and `y` are this replica's examples, a quarter of the batch. All shares are equal here.
# - `global_batch` is how many examples all replicas have together.
# - It returns this replica's loss, one number. Change about 3 lines.
#
# <details><summary>Hint</summary>
#
# For each of the three ask: who divides here, by what, and is that all? There are several right
# answers. One that always works is the sum over the examples, divided by `global_batch`.
# </details>


# %%
# task: repair_losses
def replica_loss(model, x, y, global_batch):
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    digit_logits, odd_logits = model(x, training=True)
    is_odd = tf.cast(y % 2, tf.float32)[:, None]
    ### BEGIN SOLUTION
    digit_losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    digit = tf.reduce_sum(digit_losses(y, digit_logits)) / global_batch

    odd_losses = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
    odd = tf.reduce_sum(odd_losses(is_odd, odd_logits)) / global_batch

    penalty = tf.add_n(model.losses) / replicas
    ### STUB
    digit_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    digit = digit_loss(y, digit_logits) / replicas

    odd_losses = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
    odd = tf.reduce_mean(odd_losses(is_odd, odd_logits))

    penalty = tf.add_n(model.losses)
    ### END SOLUTION
    return digit + odd + penalty


# %%
dl.check("repair_losses")

# %% [markdown]
# **Try next:** what would each of the three bugs do with 64 replicas?

# %% [markdown]
# ## Task 2: the exact step on a partial batch
#
# Now the batch may be smaller than planned, and the shares unequal: 3, 3, 3, 1, or 2, 2, 1, 0.
#
# - `exact_loss(per_example, batch_size)` runs on each replica, inside `strategy.run`.
# - `per_example` holds the loss of each of this replica's examples, perhaps of none.
# - `batch_size` is what the data set was batched with. The last batch may be smaller.
# - It returns this replica's loss, one number, so that the sum over all replicas is the mean over
#   the examples that are there. About 3 lines.
#
# <details><summary>Hint</summary>
#
# Each example weighs one over the number of examples in this batch. No replica knows that number
# alone, but `tf.distribute.get_replica_context().all_reduce("SUM", value)` adds up what each has.
# </details>


# %%
# task: exact_loss
def exact_loss(per_example, batch_size):
    ### BEGIN SOLUTION
    mine = tf.cast(tf.size(per_example), tf.float32)
    in_batch = tf.distribute.get_replica_context().all_reduce("SUM", mine)
    return tf.reduce_sum(per_example) / in_batch
    ### END SOLUTION


# %%
dl.check("exact_loss")

# %% [markdown]
# **Try next:** do you need `batch_size` at all? What if some examples had a weight of their own?

# %% [markdown]
# ## Task 3: compile the loop
#
# Here is a loop as one writes it first. It is right, and Python goes round it for every step:


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
# Write `train_in_calls`, which does the same in one call of a compiled function for each number in
# `steps_of_calls`.
#
# - `steps_of_calls` is a list such as `[2, 5, 3]`: 2 steps in the first call, 5 in the second, ...
# - The loop over the steps is inside the `tf.function`.
# - It is traced once, although the numbers differ.
# - It returns a list: for each call the mean over its steps of the losses, each summed over the
#   replicas. About 9 lines.
#
# <details><summary>Hint</summary>
#
# Define inside `train_in_calls` a `tf.function` with the arguments `iterator` and `steps`. In it,
# start with `total = 0.0` and loop over `tf.range(steps)`. A Python number as `steps` is traced
# anew for each value; `tf.constant(n)` is not.
# </details>


# %%
# task: train_in_calls
def train_in_calls(strategy, replica_step, iterator, steps_of_calls):
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
# Put it together. `train` must end with the weights that `fit` on one device ends with.
#
# - `train(strategy, model, dataset, epochs)` trains `model`, which was built in the strategy's
#   scope, with `model.optimizer` (SGD).
# - `dataset` has batches of `(x, y)`, not yet distributed: the replicas shall share each of them.
#   The last batch is a partial one.
# - The loss is the sparse categorical cross-entropy of logits, plus the penalty in `model.losses`.
# - Each epoch goes through the whole data set. It returns nothing. About 16 lines.
#
# <details><summary>Hint</summary>
#
# Use your `exact_loss`. The penalty is divided by the number of replicas. In the step that runs on
# each replica: a tape, the loss, `model.optimizer.apply(gradients, weights)`. Each epoch begins
# with a new `iter(...)` of the distributed data set.
# </details>


# %%
# task: train
def train(strategy, model, dataset, epochs):
    ### BEGIN SOLUTION
    losses_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    weights = model.trainable_variables
    with strategy.scope():
        model.optimizer.build(weights)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = exact_loss(losses_of(y, model(x, training=True)), None)
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
# **Try next:** `dl.distribute(build, strategy)` and its `fit`, with the same first weights and the
# same data. How far apart are the two after two epochs?

# %% [markdown]
# ## Next steps
#
# - Take your `train` to a model and data of your own: SGD first, one epoch, and compare the weights
#   with those of `fit` on one device.
# - Then let `dl.distribute(build, strategy).fit(...)` do it, and keep your loop for what `fit`
#   cannot do.
