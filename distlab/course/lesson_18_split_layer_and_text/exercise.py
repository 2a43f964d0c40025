# %% [markdown]
# # Exercise: split a layer, split a text
#
# This exercise follows [lesson 18](../notebooks/18_split_layer_and_text.ipynb). You split a layer
# of a modern language model, choose a mesh for a cluster, and build a ring for attention.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `split_gated` | split a layer with three kernels over the devices | 12 | medium | core |
# | 2. `choose_mesh` | choose the axes of a mesh for a model and a cluster | 12 | medium | core |
# | 3. `ring_step` | add one more piece of a text to a causal attention | 15 | hard | extra |
# | 4. `deal` | deal a text out so that no device waits | 8 | easy | extra |
#
# Write your answers in the cells that start with `# task:`, run them, and then run the check
# below each one. If you get stuck, open the hint.

# %%
import numpy as np
import tensorflow as tf

import distlab as dl

devices = dl.split_devices(4)
dl.show("devices", len(devices), expected=4)

# %% [markdown]
# ## Task 1: split a gated layer
#
# How do you cut a layer with three kernels, as in Llama and many other language models?
#
# ```python
# output = (tf.nn.silu(x @ gate) * (x @ up)) @ down + bias
# ```
#
# Write `split_gated(gate, up, down, count)`. It returns each device's pieces of the kernels, and a
# `forward` that runs **on every replica** and needs only one collective. That works because `silu`
# and `*` work on each element alone. You'll need about 6 lines.
#
# <details><summary>Hint</summary>
#
# Take hidden unit 0. Which column of `gate`, which column of `up` and which row of `down` belong to
# it? And what would be wrong if every device added the bias?
# </details>


# %%
# task: split_gated
def split_gated(gate, up, down, count):
    """Returns `(pieces, forward)`, a gated layer that is split over `count` devices.

    Args:
        gate: A kernel of shape `[inputs, h]`, for `h` hidden units.
        up: A kernel of shape `[inputs, h]`.
        down: A kernel of shape `[h, outputs]`.
        count: The number of devices.

    Returns:
        `pieces` has a tuple `(gate, up, down)` for each device, `1 / count` of every kernel.
        `forward(x, gate, up, down, bias)` gets the device's own pieces and the whole `x` and
        `bias`, and returns the layer's whole output.
    """
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
# ## Task 2: a mesh for a cluster
#
# How should a cluster divide a model such as `example`, below? Write
# `choose_mesh(model, hosts, per_host)`, which returns the first mesh `(data, tensor, pipeline)`
# that works, in the order of the lesson: all devices along `data`, then `tensor` inside a host,
# then `pipeline` between hosts. Its docstring says when a mesh works. It takes about 9 lines.
#
# <details><summary>Hint</summary>
#
# Which of the three things stays the same, however you choose the mesh? Compute it first, and then
# try the meshes one after the other.
# </details>

# %%
example = {
    "parameters": 70_000_000_000,
    "bytes_per_parameter": 16,  # weights, gradients and optimizer state together
    "layer_gb": 4,  # one layer's weights and gradients
    "activations_gb": 60,  # of one example
    "device_gb": 80,
    "examples": 64,  # in a global batch
}


# %%
# task: choose_mesh
def choose_mesh(model, hosts, per_host):
    """Returns `(data, tensor, pipeline)`, whole numbers whose product is all devices.

    It's the first mesh that works, in this order: all devices along `data`; a divisor of `per_host`
    along `tensor`, the smallest first; a whole host along `tensor` and a divisor of `hosts` along
    `pipeline`, the smallest first. For `example` on 4 hosts of 8 it's `(16, 2, 1)`.

    A mesh works if a batch has an example for each of the `data` replicas, and if a device has
    room for three things: an equal part of all parameters' bytes, because everything is sharded,
    and one layer and one example's activations, which only `tensor` divides. A GB is 1e9 bytes.

    Args:
        model: A dictionary with the keys of `example`.
        hosts: The number of hosts.
        per_host: The number of devices in each host.
    """
    ### BEGIN SOLUTION
    devices = hosts * per_host
    shard_gb = model["parameters"] * model["bytes_per_parameter"] / 1e9 / devices
    sizes = [(tensor, 1) for tensor in range(1, per_host + 1) if per_host % tensor == 0]
    sizes += [(per_host, pipeline) for pipeline in range(2, hosts + 1) if hosts % pipeline == 0]
    for tensor, pipeline in sizes:
        data = devices // (tensor * pipeline)
        layer_gb = (model["layer_gb"] + model["activations_gb"]) / tensor
        if shard_gb + layer_gb <= model["device_gb"] and data <= model["examples"]:
            return data, tensor, pipeline
    raise ValueError("this cluster doesn't fit the model")
    ### END SOLUTION


# %%
dl.check("choose_mesh")

# %% [markdown]
# **Try next:** a second model has texts that are eight times as long, so the activations of one
# example need 480 GB, and a whole host along `tensor` still leaves 60 GB of them on each device.
# Which axis of the lesson is missing from `choose_mesh`?
#
# <details><summary>Answer</summary>
#
# The one along which a text is cut. Activations belong to tokens, so a context axis of eight
# divides them by eight. It needs no further examples, because the eight devices share one.
# </details>

# %% [markdown]
# ## Task 3: one step of the ring
#
# What must a device do with one more piece of the text's keys and values? Write `ring_step` with
# NumPy. It returns the new state, and after the last piece `output / total` is the attention.
# Tokens see no later key, but a device begins with its own piece, so each token sees at
# least one. It takes about 6 lines.
#
# <details><summary>Hint</summary>
#
# Take the loop over two pieces from the lesson. Which two of the three parts of the state were
# computed with an old maximum, and by which factor do they shrink?
# </details>
#
# <details><summary>Hint 2</summary>
#
# A score of `-np.inf` becomes a weight of 0. `at_q[:, None] >= at_k` says which scores to keep, and
# `np.where` replaces the others.
# </details>


# %%
# task: ring_step
def ring_step(state, q, k, v, at_q, at_k):
    """Returns the state after one more piece, in its old shapes.

    Args:
        state: `(highest, total, output)`, of shapes `[tokens, 1]`, `[tokens, 1]` and `[tokens,
            width]`. It begins as `-np.inf`, 0 and 0.
        q: The device's queries, `[tokens, width]`. The scores are `q @ k.T / width ** 0.5`.
        k: The piece's keys, `[tokens, width]`.
        v: The piece's values, `[tokens, width]`.
        at_q: The positions of the queries' tokens in the text.
        at_k: The positions of the keys' tokens. A token sees a key whose position isn't larger
            than its own.
    """
    highest, total, output = state
    ### BEGIN SOLUTION
    scores = q @ k.T / q.shape[1] ** 0.5
    scores = np.where(at_q[:, None] >= at_k, scores, -np.inf)
    new = np.maximum(highest, scores.max(axis=1, keepdims=True))
    shrink, weights = np.exp(highest - new), np.exp(scores - new)
    total = shrink * total + weights.sum(axis=1, keepdims=True)
    output = shrink * output + weights @ v
    ### STUB
    new = highest
    ### END SOLUTION
    return new, total, output


# %%
dl.check("ring_step")

# %% [markdown]
# **Try next:** two devices have each met half of the pieces, and hold a state for the same tokens.
# How do you join the two states into one?
#
# <details><summary>Answer</summary>
#
# As in a step: take the larger maximum, shrink both sums and both outputs by their own factors, and
# add. So the pieces may come in any order, and a tree works as well as a ring.
# </details>

# %% [markdown]
# ## Task 4: deal a text
#
# Which tokens should each device get, so that none of them waits in a causal ring? Write
# `deal(length, devices)`. In every turn, all devices must have the same number of pairs of a query
# and a key that it sees. Two lines are enough.
#
# <details><summary>Hint</summary>
#
# The lesson cut a text for four devices into eight pieces. Which two pieces did device `d` get?
# </details>


# %%
# task: deal
def deal(length, devices):
    """Returns a list of positions for each device, all of the same length.

    Each position from 0 to `length - 1` is dealt once.

    Args:
        length: The number of tokens, a multiple of `2 * devices`.
        devices: The number of devices.
    """
    ### BEGIN SOLUTION
    pieces = np.split(np.arange(length), 2 * devices)
    return [[*pieces[d], *pieces[2 * devices - 1 - d]] for d in range(devices)]
    ### END SOLUTION


# %%
dl.check("deal")

# %% [markdown]
# **Try next:** a model sees only the last 4,096 tokens (a *sliding window*), and each device has
# 4,096 tokens of a long text. Which way of dealing would you take now, and how many turns does the
# ring need?
#
# <details><summary>Answer</summary>
#
# In order. Each token then sees the same number of tokens wherever it is, so nobody has more work,
# and all of these tokens are on its own device or the one before. Two turns are enough.
# </details>

# %% [markdown]
# ## Next steps
#
# - [Lesson 18](../notebooks/18_split_layer_and_text.ipynb), if a check sent you back to it.
# - [Lesson 21](../notebooks/21_choosing_a_strategy.ipynb) has the map of all kinds of parallelism
#   as a figure. [The glossary](../docs/glossary.md) explains the terms.
