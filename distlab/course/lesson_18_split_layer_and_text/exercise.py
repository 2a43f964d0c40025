# %% [markdown]
# # Exercise: beyond data parallelism
#
# This exercise follows [lesson 18](../notebooks/18_split_layer_and_text.ipynb). You split a
# layer of a modern language model, repair a step of Adam, count the bubble of an uneven pipeline,
# and choose the mesh of a cluster.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `split_gated` | split a layer with three kernels over the devices | 12 | medium | core |
# | 2. `sharded_adam` | repair a step of Adam whose state should be divided | 10 | medium | core |
# | 3. `pipeline_idle` | count the bubble of a pipeline with a slow stage | 10 | hard | extra |
# | 4. `choose_mesh` | choose the axes of a mesh on a cluster | 12 | medium | core |
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
# `silu` and `*` work on each element alone. Write `split_gated(gate, up, down, count)`. `count` is
# the number of devices, and it divides `h` and all other axes. Return two things: `(pieces,
# forward)`.
#
# - `pieces` is a list with one tuple `(gate, up, down)` for each device: what this device holds. A
#   device holds `1 / count` of every kernel.
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
def split_gated(gate, up, down, count):
    ### BEGIN SOLUTION
    columns = [tf.split(kernel, count, axis=1) for kernel in (gate, up)]
    pieces = list(zip(*columns, tf.split(down, count, axis=0), strict=True))

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
#
# <details><summary>Answer</summary>
#
# The heads. Each device gets the columns of some heads' queries, keys and values, computes their
# attention alone, and has the rows of the output kernel that belong to these heads.
# </details>

# %% [markdown]
# ## Task 2: a state that is divided, and then is not
#
# In the lesson DTensor moved the pieces. Here the collectives of a replica do it. A colleague's
# function gathers the pieces of Adam's state, updates all of it, and returns it whole. The weights
# come out right. But after the first step each replica holds all of the state, which ZeRO 1 keeps
# divided. Repair `sharded_adam(update, weights, gradient, m, v)`. It runs **on every replica,
# inside a `tf.function`**, and returns three vectors: the new weights, `m` and `v`.
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
# Adam treats each weight alone. Which parts of `weights`, `gradient`, `m` and `v` does `update`
# need to compute the new weights of one piece?
# </details>
#
# <details><summary>Hint 2</summary>
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
#
# <details><summary>Answer</summary>
#
# It would replace the line with `all_reduce` and the one that cuts the gradient. A replica then
# needs the gradient of its own piece only. If it also frees the gradient of each layer as soon as
# that is reduced, it is ZeRO 2.
# </details>

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
# - The time of each stage, busy and idle, runs from the start of the first stage to the end of the
#   last one.
# - Two stages of 10 ms and two micro-batches: each stage works 10 of 15 ms, so 1/3 is idle. About
#   4 lines.
#
# <details><summary>Hint</summary>
#
# Draw three micro-batches through stages that take 1, 3 and 1 ms for each of them. How long is it
# between two micro-batches that leave the last stage? When does the first one leave it?
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
#
# <details><summary>Answer</summary>
#
# With many micro-batches a pass takes about as long as the slowest stage, 20 ms, and the four
# stages work for 50 of 80 ms: 37.5 % stay idle. Move layers from the slow stage to the others.
# </details>

# %% [markdown]
# ## Task 4: a mesh for a cluster
#
# A cluster has `hosts` hosts with `per_host` devices each. The links are fast inside a host, and
# slow between hosts. You combine three kinds of parallelism in a mesh with the axes `batch`,
# `pipeline` and `tensor`. A model is a dictionary of facts, like this one of 80 GB:

# %%
example = {
    "parameters": 5_000_000_000,
    "bytes_per_parameter": 16,  # weights, gradients and optimizer state together
    "activations_gb": 12,  # on each device, however you divide the model
    "device_gb": 80,
}

# %% [markdown]
# Write `choose_mesh(model, hosts, per_host)`. It returns the sizes of the axes as three whole
# numbers: `(batch, pipeline, tensor)`.
#
# - `pipeline * tensor` devices hold one copy of the model together, each an equal part. The part
#   and the activations must fit on a device. `batch` copies see different examples, and divide
#   nothing.
# - The product of the three sizes is the number of all devices.
# - `tensor` is the smallest divisor of `per_host` that is enough, and `pipeline` is then 1. Only if
#   a whole host is too small, `tensor` is `per_host`, and `pipeline` is the smallest divisor of
#   `hosts` that is enough. The cluster is always large enough.
# - A GB is 1e9 bytes. With 4 hosts of 8 devices, the model above gets `(16, 1, 2)`. About 10 lines.
#
# <details><summary>Hint</summary>
#
# Which sizes can `tensor` have, from the smallest on? How many gigabytes does each device hold of
# the model then, and how many has it left for that?
# </details>


# %%
# task: choose_mesh
def choose_mesh(model, hosts, per_host):
    ### BEGIN SOLUTION
    total = model["parameters"] * model["bytes_per_parameter"] / 1e9
    room = model["device_gb"] - model["activations_gb"]
    sizes = [(1, tensor) for tensor in range(1, per_host + 1) if per_host % tensor == 0]
    sizes += [(pipeline, per_host) for pipeline in range(2, hosts + 1) if hosts % pipeline == 0]
    for pipeline, tensor in sizes:
        if total / (pipeline * tensor) <= room:
            return hosts * per_host // (pipeline * tensor), pipeline, tensor
    raise ValueError("this cluster is too small for the model")
    ### END SOLUTION


# %%
dl.check("choose_mesh")

# %% [markdown]
# **Try next:** in `(16, 1, 2)` sixteen replicas each keep Adam's state of the same half. What would
# ZeRO 1 along `batch` change for this model, and would `tensor` still have to be 2?
#
# <details><summary>Answer</summary>
#
# Of 16 bytes, 12 are state in the ZeRO paper's count. With `tensor` 1 there are 32 replicas, and
# each holds 4 + 12 / 32 = 4.4 bytes for each parameter, so 22 GB. The model fits without tensor
# parallelism, and the four all-reduces in each layer disappear. But in `(16, 1, 2)` a device
# all-reduces the gradients of half of the model. Now it reduces the gradients and gathers the
# weights of the whole model, so it sends about twice as many bytes for them in a step.
# </details>

# %% [markdown]
# ## Next steps
#
# - [Lesson 18](../notebooks/18_split_layer_and_text.ipynb), if a check sent you back to it.
# - [Lesson 21](../notebooks/21_choosing_a_strategy.ipynb) has the map of all kinds as a figure.
# - Your own model: `held_bytes` from
#   `distlab.course.measure.step_bytes` counts its memory for a number of
#   replicas. [The glossary](../docs/glossary.md) explains the terms.
