# %% [markdown]
# # Exercise: beyond data parallelism
#
# This exercise follows [lesson 17](../notebooks/17_beyond_data_parallelism.ipynb). You split a
# layer of a modern language model, repair a step of Adam, count the bubble of an uneven pipeline,
# and choose for five models.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `split_gated` | split a layer with three kernels over the devices | 12 | medium |
# | 2. `sharded_adam` | repair a step of Adam whose state should be divided | 10 | medium |
# | 3. `pipeline_idle` | count the bubble of a pipeline with a slow stage | 10 | hard |
# | 4. `choose_parallelism` | choose a kind of parallelism for five models | 8 | easy |
#
# Write your answers in the cells that start with `# task:`, run them, and then run the check
# below each one. If you get stuck, open the hint.

# %%
import tensorflow as tf

import distlab as dl

devices = dl.split_devices(4)
dl.show("devices", len(devices), expected=4)

# %% [markdown]
# ## Task 1: split a gated layer
#
# Llama and many other language models use a layer with **three** kernels and no ReLU:
#
# ```python
# output = (tf.nn.silu(x @ gate) * (x @ up)) @ down + bias
# ```
#
# With `h` hidden units, `gate` and `up` have the shape `[inputs, h]` and `down` has `[h, outputs]`.
# `silu` and `*` work on each element alone. Write `split_gated(gate, up, down, devices)`. It
# returns two things: `(pieces, forward)`.
#
# - `pieces` is a list with one tuple `(gate, up, down)` for each device: what this device holds.
#   Each device holds `1 / devices` of every kernel. `devices` divides `h` and all other axes.
# - `forward(x, gate, up, down, bias)` runs **on every replica**, inside a `tf.function`. It gets
#   the device's own pieces, and the whole `x` and `bias`. On every device it returns the output
#   of the whole layer.
# - Use one collective. About 9 lines.
#
# <details><summary>Hint</summary>
#
# Take hidden unit 0. Which column of `gate`, which column of `up` and which row of `down` belong to
# it? And what would be wrong if every device added the bias?
# </details>


# %%
# task: split_gated
def split_gated(gate, up, down, devices):
    ### BEGIN SOLUTION
    columns = [tf.split(kernel, devices, axis=1) for kernel in (gate, up)]
    pieces = list(zip(*columns, tf.split(down, devices, axis=0), strict=True))

    def forward(x, gate, up, down, bias):
        partial = (tf.nn.silu(x @ gate) * (x @ up)) @ down
        return tf.distribute.get_replica_context().all_reduce("SUM", partial) + bias

    return pieces, forward
    ### END SOLUTION


# %%
dl.check("split_gated")

# %% [markdown]
# **Try next:** an attention layer has a kernel each for queries, keys and values, and one for its
# output. What plays the part of the hidden units there, if each device should compute its part of
# the layer alone until the last kernel?

# %% [markdown]
# ## Task 2: a state that is divided, and then is not
#
# In the lesson DTensor moved the pieces. Here the collectives of a replica do it. A colleague
# divided Adam's state for storage, and gathers it for each step. The weights come out right, but
# in every step each replica holds all of the state. Repair `sharded_adam(update, weights, gradient,
# m, v)`. It runs **on every replica, inside a `tf.function`**, and returns three vectors: the new
# weights, `m` and `v`.
#
# - `weights` is a vector of all weights, the same on every replica. Its length is a multiple of
#   the number of replicas.
# - `gradient` has the same length. It comes from the replica's own examples, and its loss is
#   already divided by the number of all examples in the global batch.
# - `m` and `v` are Adam's averages for the replica's **own piece** of the weights. Replica 0 has
#   the first piece.
# - `update(weights, gradient, m, v)` is one step of Adam on vectors of one length. It returns the
#   new weights, `m` and `v`.
# - Return all new weights on every replica, and `m` and `v` for the own piece only. No replica may
#   gather `m` or `v`. About 6 lines change.
#
# <details><summary>Hint</summary>
#
# `tf.distribute.get_replica_context()` has `all_gather(value, axis=0)`, `num_replicas_in_sync` and
# `replica_id_in_sync_group`. Inside a `tf.function` the last one is a tensor, so cut with
# `tf.reshape(vector, [replicas, -1])[index]`.
# </details>


# %%
# task: sharded_adam
def sharded_adam(update, weights, gradient, m, v):
    context = tf.distribute.get_replica_context()
    total = context.all_reduce("SUM", gradient)
    ### BEGIN SOLUTION
    replicas, index = context.num_replicas_in_sync, context.replica_id_in_sync_group
    my_gradient = tf.reshape(total, [replicas, -1])[index]
    my_weights = tf.reshape(weights, [replicas, -1])[index]
    my_weights, m, v = update(my_weights, my_gradient, m, v)
    weights = context.all_gather(my_weights, axis=0)
    ### STUB
    m = context.all_gather(m, axis=0)
    v = context.all_gather(v, axis=0)
    weights, m, v = update(weights, total, m, v)
    ### END SOLUTION
    return weights, m, v


# %%
dl.check("sharded_adam")

# %% [markdown]
# **Try next:** your function holds the gradient of all weights, as ZeRO 1 does. Which line would a
# reduce-scatter replace, and what could a replica then free?

# %% [markdown]
# ## Task 3: the bubble of an uneven pipeline
#
# The lesson's formula needs stages that take the same time. Yours do not: an output layer with a
# large vocabulary makes one stage slow. Write `pipeline_idle(stage_ms, micro_batches)`. It returns
# which share of all stages' time is idle in a **forward pass**, as a number from 0 to 1.
#
# - `stage_ms` is a list: the milliseconds that each stage takes for the **whole batch**.
# - A micro-batch is `1 / micro_batches` of the batch, and takes this share of the time.
# - A stage computes one micro-batch at a time, in order, as soon as it is there. Sending takes no
#   time.
# - All stages count from the start of the first one to the end of the last one.
# - Two stages of 10 ms and two micro-batches: each stage works 10 of 15 ms, so 1/3 is idle. About
#   4 lines.
#
# <details><summary>Hint</summary>
#
# Draw three micro-batches through stages of 1, 3 and 1 ms. How long is it between two micro-batches
# that leave the last stage? When does the first one leave it?
# </details>


# %%
# task: pipeline_idle
def pipeline_idle(stage_ms, micro_batches):
    ### BEGIN SOLUTION
    first = sum(stage_ms) / micro_batches
    others = (micro_batches - 1) * max(stage_ms) / micro_batches
    available = len(stage_ms) * (first + others)
    return 1 - sum(stage_ms) / available
    ### END SOLUTION


# %%
dl.check("pipeline_idle")

# %% [markdown]
# **Try next:** stages of 10, 10, 10 and 20 ms. Which share stays idle however many micro-batches
# you take? What would you change instead?

# %% [markdown]
# ## Task 4: choose for five models
#
# Each model is a dictionary of facts. These two are examples:

# %%
small = {
    "parameters": 100_000_000,
    "bytes_per_parameter": 16,  # weights, gradients and optimizer state together
    "largest_layer_gb": 1.0,  # its weights, its gradients and its activations at work
    "device_gb": 80,
    "devices": 8,
    "link": "fast",  # or "slow": between the devices
    "experts": 1,  # in one layer; each example uses two of many
}
spread_out = {**small, "parameters": 15_000_000_000, "link": "slow"}

# %% [markdown]
# Write `choose_parallelism(model)`. It returns one of five words. Ask in this order; the first yes
# decides:
#
# 1. `"data"`: does one device hold the whole model, all its bytes?
# 2. `"expert"`: has a layer several experts?
# 3. `"pipeline"`: is the link slow?
# 4. `"sharded"`: does a device hold its part of the whole model **and** the largest layer?
# 5. `"tensor"`: in all other cases.
#
# A GB is 1e9 bytes. The check uses five models, in any order. About 10 lines.
#
# <details><summary>Hint</summary>
#
# Question 1 compares with one device, however many there are. Question 4 adds two numbers.
# </details>


# %%
# task: choose_parallelism
def choose_parallelism(model):
    ### BEGIN SOLUTION
    total = model["parameters"] * model["bytes_per_parameter"] / 1e9
    part = total / model["devices"]
    if total <= model["device_gb"]:
        return "data"
    if model["experts"] > 1:
        return "expert"
    if model["link"] == "slow":
        return "pipeline"
    if part + model["largest_layer_gb"] <= model["device_gb"]:
        return "sharded"
    return "tensor"
    ### END SOLUTION


# %%
dl.check("choose_parallelism")

# %% [markdown]
# **Try next:** real training runs combine these kinds. Take the model with the slow link: which
# kind would you use inside each host, where the link is fast?

# %% [markdown]
# ## Next steps
#
# - [Lesson 17](../notebooks/17_beyond_data_parallelism.ipynb), if a check sent you back to it.
# - [Lesson 16](../notebooks/16_choosing_a_strategy.ipynb) has the map of all kinds as a figure.
# - Your own model: `held_bytes` from `distlab.measure.step_bytes` counts its memory for a number
#   of replicas. [The glossary](../docs/glossary.md) explains the terms.
