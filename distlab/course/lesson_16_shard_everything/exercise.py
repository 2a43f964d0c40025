# %% [markdown]
# # Exercise: shard everything
#
# This exercise follows [lesson 16](../notebooks/16_shard_everything.ipynb). You repair an Adam
# whose state is divided only between two steps, write FSDP for a stack of layers, and count what it
# sends.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `sharded_adam` | keep a divided state divided | 10 | medium | core |
# | 2. `fsdp_gradients` | gather, use, drop: ZeRO 3 for any layers | 15 | hard | core |
# | 3. `sent_bytes` | count what a step sends, from its notes | 8 | easy | extra |
#
# Write your answers in the cells that start with `# task:`, run them, and then run the check below
# each one. If you get stuck, open the hint.

# %%
import tensorflow as tf

import distlab as dl
from distlab.course.lesson_16_shard_everything.piece_gradients import draw_stack, piece_gradients
from distlab.course.runs.outcomes import waits_for

devices = dl.split_devices(4)
dl.show("devices", len(devices), expected=4)

# %% [markdown]
# ## Task 1: divided, but only between the steps
#
# Which vectors must be whole? A colleague's ZeRO 1 gathers Adam's state and updates all of it on
# every replica, so the weights are right, but the memory is that of mirrored replicas. Repair
# `sharded_adam`, which runs on every replica inside a `tf.function`, by changing about 6 lines.
#
# <details><summary>Hint</summary>
#
# Adam treats each weight alone. Which piece of each vector does `update` need for the own piece?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Cut the own piece with `tf.reshape(vector, [replicas, -1])[index]`.
# </details>


# %%
# task: sharded_adam
def sharded_adam(update, weights, gradient, m, v):
    """Returns all new weights, and the new `m` and `v` of the replica's own piece.

    The context is TensorFlow's own, without the lesson's `reduce_scatter` and `own_rows`. It has
    `all_gather(value, axis=0)`, `num_replicas_in_sync`, and the tensor `replica_id_in_sync_group`.

    Args:
        update: `update(weights, gradient, m, v)` takes one step of Adam on vectors of one length,
            and returns the new weights, `m` and `v`.
        weights: One vector, the same on every replica. Its length is a multiple of the number of
            replicas, and replica 0 owns the first piece.
        gradient: A vector as long as `weights`, from the replica's own examples. Its loss is
            already divided by all examples of the global batch.
        m: Adam's first average, for the own piece only.
        v: Adam's second average, for the own piece only.
    """
    context = tf.distribute.get_replica_context()
    total = context.all_reduce("SUM", gradient)
    ### BEGIN SOLUTION
    replicas, index = context.num_replicas_in_sync, context.replica_id_in_sync_group
    own_gradient = tf.reshape(total, [replicas, -1])[index]
    own_weights = tf.reshape(weights, [replicas, -1])[index]
    own_weights, m, v = update(own_weights, own_gradient, m, v)
    weights = context.all_gather(own_weights, axis=0)
    ### STUB
    m = context.all_gather(m, axis=0)
    v = context.all_gather(v, axis=0)
    weights, m, v = update(weights, total, m, v)
    ### END SOLUTION
    return weights, m, v


# %%
dl.check("sharded_adam")

# %% [markdown]
# **Try next:** your function still sums the gradient of all weights on every replica. Which two
# lines would one reduce-scatter replace, and what could a replica then free early?
#
# <details><summary>Answer</summary>
#
# It would replace the line with `all_reduce` and the one that cuts the gradient. After it, a
# replica needs the gradient of its own piece only. If it frees the rest of each layer's gradient as
# soon as that's summed, it's ZeRO 2.
# </details>

# %% [markdown]
# ## Task 2: FSDP in a handful of lines
#
# How does a replica get the gradients of its own rows, from the examples of **all** replicas,
# without ever holding two whole kernels? Write `fsdp_gradients` in about 8 lines: gather each
# kernel just before its layer, and again on the way back. It runs on every replica inside a
# `tf.function`.
#
# <details><summary>Hint</summary>
#
# What's the gradient of an all-gather? And which function of TensorFlow forgets what was computed
# inside it, and computes it again on the way back?
# </details>


# %%
# task: fsdp_gradients
def fsdp_gradients(context, layer, loss, pieces, x):
    """Returns a list with the gradient of each piece, from the examples of all replicas.

    Args:
        context: The lesson's context, with `all_gather(value, axis=0)`. It notes what you do.
        layer: `layer(kernel, x)` returns the layer's output, and needs a whole kernel.
        loss: `loss(x)` returns the replica's part of the loss, already divided by all examples.
        pieces: A list with the replica's own rows of each kernel, in the order of the layers.
        x: The replica's own examples, which go through all layers.
    """

    ### BEGIN SOLUTION
    def gathered(piece, x):
        return layer(context.all_gather(piece, axis=0), x)

    with tf.GradientTape() as tape:
        tape.watch(pieces)
        for piece in pieces:
            x = tf.recompute_grad(gathered)(piece, x)
        value = loss(x)
    return tape.gradient(value, pieces)
    ### END SOLUTION


# %% [markdown]
# Here's what replica 0 notes of three layers: `g` is an all-gather, `l` a layer, `s` a
# reduce-scatter and `r` an all-reduce. Where is a kernel dropped?

# %%
with waits_for("fsdp_gradients"):
    _, notes = piece_gradients(fsdp_gradients, draw_stack(0))
    dl.show("your notes", notes.letters)

# %%
dl.check("fsdp_gradients")

# %% [markdown]
# <details><summary>Where is a kernel dropped?</summary>
#
# After each `l`, because nothing that's kept needs it. That's why every kernel is gathered a second
# time before its gradient leaves with `s`.
# </details>
#
# **Try next:** the last layer's kernel is dropped after the forward pass and gathered again at
# once. What would it cost to keep this one, and what would it save?
#
# <details><summary>Answer</summary>
#
# It costs no memory at the peak, because this kernel would be whole at that moment anyway, and it
# saves one gather. PyTorch's `fully_shard` has `reshard_after_forward=False` for such a layer.
# </details>

# %% [markdown]
# ## Task 3: what does a step send?
#
# Does your FSDP keep its promise of sending only 1.5 times as much as mirrored replicas? Write
# `sent_bytes` in about 4 lines. It returns how many bytes each replica sends in a step, if every
# collective goes around a ring.
#
# <details><summary>Hint</summary>
#
# Lesson 12: how many chunks of `size / replicas` does a rank pass on in each half of an all-reduce?
# </details>


# %%
# task: sent_bytes
def sent_bytes(notes, replicas):
    """Returns how many bytes each replica sends in a step.

    Args:
        notes: A list of pairs `(letter, size)`. The letter is "g" for an all-gather, "s" for a
            reduce-scatter, "r" for an all-reduce and "l" for a layer. The size is that of the
            **whole** tensor in bytes, gathered or summed, and 0 for a layer.
        replicas: The number of replicas, by which all sizes can be divided.
    """
    ### BEGIN SOLUTION
    halves = {"g": 1, "s": 1, "r": 2, "l": 0}
    return sum(halves[letter] * size * (replicas - 1) / replicas for letter, size in notes)
    ### END SOLUTION


# %% [markdown]
# Your function counts your own FSDP of task 2, and a mirrored step that all-reduces every gradient.

# %%
with waits_for("fsdp_gradients", "sent_bytes"):
    stack = draw_stack(0)
    _, notes = piece_gradients(fsdp_gradients, stack)
    sharded = [(note.letter, note.bytes) for note in notes.notes]
    mirrored = [("r", kernel.nbytes) for kernel in stack["kernels"]]
    dl.show("FSDP against mirrored", sent_bytes(sharded, 4) / sent_bytes(mirrored, 4))

# %%
dl.check("sent_bytes")

# %% [markdown]
# **Try next:** on a slow network 1.5 times may be too much. A server has 8 GPUs with fast links,
# and 64 servers are joined by slow ones. What could you divide among 8 GPUs instead of among 512,
# and what would that cost?
#
# <details><summary>Answer</summary>
#
# The weights. Each server then keeps one whole copy, divided among its 8 GPUs, so both gathers stay
# inside, and only summed gradients cross the slow links. A GPU keeps an eighth of the weights
# instead of a 512th. That's called hybrid sharding.
# </details>

# %% [markdown]
# ## Next steps
#
# - [Lesson 16](../notebooks/16_shard_everything.ipynb), if a check sent you back to it.
# - [Lesson 18](../notebooks/18_split_layer_and_text.ipynb) splits a layer that's too large by
#   itself.
# - Your own model: `held_bytes` from `distlab.course.measure.step_bytes` counts its memory for each
#   stage and number of replicas. [The glossary](../docs/glossary.md) explains the terms.
