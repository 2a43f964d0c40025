# %% [markdown]
# # Split a layer, split a text
#
# Tensor parallelism cuts every layer of a model over several GPUs, so a layer that's too large for
# one of them fits on two. The authors of the [Ultra-Scale
# Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook) took 2 GPUs and doubled them
# four times. The first two doublings cost 11 % and 12 % of the tokens that each GPU trains on in a
# second. The third one cost **43 %**, and the fourth 66 %, although the method was the same.
#
# What changed was the place: a host has eight GPUs, and the third doubling needs sixteen. So you
# can cut what is too large, and the price depends on what then has to travel, and how far. In this
# lesson you cut the two things that are left when everything else has been sharded: one layer, and
# one text. After it you can
#
# - cut two layers so that nothing travels from one to the other,
# - say what a layout makes travel, although no result shows it,
# - compute exact attention over a text that no device holds,
# - deal a text out so that no device waits for the others,
# - say in which order to divide a model that's too large.
#
# **Time:** {minutes}. **Needs:** lessons [03](03_custom_training_loop.ipynb) and
# [12](12_ring_all_reduce.ipynb), but no GPU and no download.
#
# <details><summary>Do you remember? Lesson 12: which collective gives every device the sum of what
# all devices have, and which one gives every device the pieces of all others?</summary>
#
# The all-reduce gives the sum, and the all-gather gives the pieces. Today the first one completes a
# layer, and the second one is what you avoid.
#
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

kind = dtensor.initialize_accelerator_system("CPU", num_logical_cpu_devices=4)
dl.show("devices", len(devices))

# %% [markdown]
# This cell must be the first one in a fresh kernel, because DTensor, TensorFlow's tool for cutting
# tensors, has to know its devices before anything runs. Here are the Playbook's measurements:

# %%
from distlab.course.lesson_18_split_layer_and_text.figures import draw_doublings
from distlab.course.lesson_18_split_layer_and_text.published_runs import BY_TENSOR_GPUS, GPUS_A_HOST

draw_doublings(BY_TENSOR_GPUS, gpus_a_host=GPUS_A_HOST)

# %% [markdown]
# ## Cut two layers by hand
#
# Sharding, as in lesson 16, divides what a device *stores*, but each device still computes every
# layer with all of the layer's weights. If a single layer is too large, you must divide the
# computation as well. We take 8 examples with 6 inputs, a kernel `[6, 10]`, ReLU, and a second
# kernel `[10, 4]`. Each entry of a list stands for what one of two devices would hold.
#
# Cut the first kernel by **column**, as in the cell below. A column belongs to one hidden unit, so
# each device computes five of the ten hidden units completely, and needs nothing from the other:

# %%
from distlab.course.lesson_18_split_layer_and_text.layouts import random_layers

x, y, first, second = data = random_layers()
whole = tf.nn.relu(x @ first) @ second

columns = tf.split(first, 2, axis=1)  # [6, 5] on each device
hidden = [tf.nn.relu(x @ part) for part in columns]  # [8, 5] on each device

# %% tags=["predict"]
second_guess = dl.predict(
    "Can you cut the second kernel the same way, by column, with nothing sent in between?",
    [
        "yes, and each device computes two of the four outputs",
        "no, each output needs hidden units of both devices",
        "no, ReLU needs all hidden units at once",
    ],
)

# %%
halves = tf.split(second, 2, axis=1)  # [10, 2] on each device
try:
    hidden[0] @ halves[0]
    fits = True
except tf.errors.InvalidArgumentError as error:
    print(error.message.partition("}} ")[2].partition(" [Op")[0])
    fits = False

# %% tags=["reveal"]
second_guess.reveal(
    "yes, and each device computes two of the four outputs"
    if fits
    else "no, each output needs hidden units of both devices",
    {
        "yes, and each device computes two of the four outputs": "That would work if an output "
        "used only half of the hidden units. It's a sum over all ten, and the device has five, so "
        "the shapes don't match.",
        "no, ReLU needs all hidden units at once": "That would be so for an activation that looks "
        "at several units, such as softmax. ReLU treats each number alone, so a device can apply "
        "it to its own units.",
        "no, each output needs hidden units of both devices": "Each column of the second kernel "
        "has ten rows, one for each hidden unit, and five of these units are on the other device.",
    },
)

# %% [markdown] tags=["after-reveal"]
# So the second kernel needs the other cut, because its **rows** belong to hidden units. If device 0
# gets the five rows of its own units, it can compute its share of *every* output. Like two people
# who have each added up half of a bill, the devices then need a single sum:

# %% tags=["after-reveal"]
rows = tf.split(second, 2, axis=0)  # [5, 4] on each device
partial = [part @ row for part, row in zip(hidden, rows, strict=True)]
summed = partial[0] + partial[1]  # between devices: an all-reduce
dl.show("device 0 alone has the output", bool(np.abs(partial[0] - whole).max() < 1e-5))
dl.show("max difference, with the sum", np.abs(summed - whole).max(), below=1e-5)

# %% tags=["after-reveal"]
from distlab.course.lesson_18_split_layer_and_text.figures import draw_split_layers

draw_split_layers(examples=8, inputs=6, hidden=10, outputs=4)

# %% [markdown] tags=["after-reveal"]
# The order of the two cuts matters, because a first kernel cut by row would leave each device with
# a part of every hidden unit's sum. ReLU can't be applied to such parts: relu(3) + relu(-2) is 3,
# while relu(3 - 2) is 1.
#
# [Megatron-LM](https://arxiv.org/abs/1909.08053) cuts both halves of a transformer layer like this:
# attention by its heads, because each head is computed alone, and the two dense layers behind it by
# column and row. Each half ends with an all-reduce, and the backward pass needs another two for the
# gradient of the inputs. So every layer stops **four times in a step** and waits for a sum. Inside
# a host these sums are quick, but between hosts they aren't, as the first figure shows. That's why
# you keep tensor parallelism inside a host.
#
# > **Takeaway.** Cut the first kernel by column and the second by row. Nothing travels between
# > them, and one sum completes the output.
#
# <details><summary>Fine print</summary>
#
# The Playbook's batch for each group of GPUs grows with the group, as far as the memory allows. A
# bias of the second layer is added once, after the sum, and not on each device. Each device needs
# all of `x`, and a smarter form, *sequence parallelism*, cuts it between the layers: it replaces
# each all-reduce by its two halves, with the same bytes and less memory.
#
# </details>

# %% [markdown]
# ## Let DTensor find what's missing
#
# By hand, three of the four ways to cut two kernels fail or give wrong numbers. With DTensor you
# write the step of a single device, which names no other device and no collective, and say beside
# it how each tensor is cut:


# %%
@tf.function
def step(x, y, first, second):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.nn.relu(x @ first) @ second - y) ** 2)
    of_first, of_second = tape.gradient(loss, (first, second))
    first.assign_sub(0.1 * of_first)
    second.assign_sub(0.1 * of_second)
    return loss


# %% [markdown]
# A *mesh* names the devices, and a *layout* says for each axis of a tensor along which axis of the
# mesh it's cut. So `(WHOLE, "model")` cuts a kernel by column, and `("model", WHOLE)` by row.
# `train` takes three steps with the layouts that you give it, and also returns what each device
# holds of the first kernel.

# %%
from distlab.course.lesson_18_split_layer_and_text.layouts import WHOLE, train, train_on_one_device

COLUMN, ROW = (WHOLE, "model"), ("model", WHOLE)
pair = dtensor.create_mesh([("model", 2)], devices=["CPU:0", "CPU:1"])
expected_losses = train_on_one_device(step, data)

losses, pieces = train(step, data, mesh=pair, first=COLUMN, second=ROW)
dl.show("on each device", [list(piece.shape) for piece in pieces])
dl.show("losses", losses, digits=3, expected=expected_losses)

# %% tags=["predict"]
layouts_guess = dl.predict(
    "There are four ways to cut the two kernels. With how many of them does DTensor train with the "
    "losses of a single device?",
    [
        "one: column, then row",
        "two: those that begin with a column",
        "three: all but column and column",
        "four",
    ],
)

# %%
cuts, is_same = {"column": COLUMN, "row": ROW}, {}
for name in ("column, row", "column, column", "row, column", "row, row"):
    of_first, of_second = (cuts[cut] for cut in name.split(", "))
    losses, _ = train(step, data, mesh=pair, first=of_first, second=of_second)
    is_same[name] = bool(np.allclose(losses, expected_losses, atol=1e-4))
dl.show("the losses of one device", is_same)

# %% tags=["reveal"]
layouts_guess.reveal(
    {
        1: "one: column, then row",
        2: "two: those that begin with a column",
        3: "three: all but column and column",
        4: "four",
    }[sum(is_same.values())],
    {
        "one: column, then row": "That would be so if DTensor computed only with what a device "
        "holds, as we did by hand. It sees from the layouts what's missing, and sends it.",
        "two: those that begin with a column": "That would be so if DTensor applied ReLU to a part "
        "of a sum. It sees from the layouts that a sum is due, and completes it before the ReLU.",
        "three: all but column and column": "That would be so if DTensor stopped where our shapes "
        "didn't match. It fetches the hidden units that a device lacks.",
        "four": "A layout says where a tensor is, and never what is computed.",
    },
)

# %% [markdown] tags=["after-reveal"]
# All four give the right losses, and you can't see which of them is slow. Take the two cuts by
# column, which raised an error by hand: DTensor
# [inserts](https://github.com/tensorflow/tensorflow/blob/master/tensorflow/dtensor/mlir/expansions/matmul_spmd_expander.cc)
# an [all-gather](../docs/glossary.md#all-gather) of the hidden units into every step, and doesn't
# report it. So a new layout that trains as before proves nothing, and you have to know what it
# makes travel, or time a step on the real links.
#
# Keras has layouts, too, with `keras.distribution.ModelParallel`, but nothing in its TensorFlow
# backend reads the layout of a weight. On the JAX backend it works, and if your Keras model has
# become too large, that is the shortest way.
#
# > **Takeaway.** A layout changes what travels, and the result only by rounding. Equal losses don't
# > tell you that a layout is a good one.
#
# <details><summary>Keras's own layouts on JAX: a script that we ran</summary>
#
# Run it in an environment with Keras and JAX. With Keras 3.15, JAX 0.10 and two CPU devices it
# prints `[(64, 16), (64, 16)]`: a kernel `[64, 32]` in two pieces.
#
# ```python
# import os
#
# os.environ["KERAS_BACKEND"] = "jax"
# os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
# import keras
# import numpy as np
#
# names = keras.distribution.list_devices()
# mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], devices=names)
# layout = keras.distribution.LayoutMap(mesh)
# layout[".*kernel"] = (None, "model")
# with keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch").scope():
#     model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32), keras.layers.Dense(10)])
#     model.compile("adam", "mse")
#     model.fit(np.ones((8, 64)), np.ones((8, 10)), verbose=0)
# print([piece.data.shape for piece in model.weights[0].value.addressable_shards])
# ```
# </details>

# %% [markdown]
# ## Combine the cuts in a mesh
#
# A mesh can have two axes, one for each thing that you cut. Here the examples are cut along `data`,
# and the kernels along `model`:
#
# | | `model` 0 | `model` 1 |
# |---|---|---|
# | `data` 0 | CPU:0 | CPU:1 |
# | `data` 1 | CPU:2 | CPU:3 |

# %% tags=["predict"]
mesh_guess = dl.predict(
    "The first kernel is cut by column along `model`. After the backward pass, with which devices "
    "must CPU:0 sum the gradient of its piece?",
    ["none", "CPU:1", "CPU:2", "CPU:1, CPU:2 and CPU:3"],
)

# %%
names = [f"CPU:{number}" for number in range(4)]
square = dtensor.create_mesh([("data", 2), ("model", 2)], devices=names)
_, pieces = train(step, data, mesh=square, first=COLUMN, second=ROW, examples="data")
same_piece = [name for name, piece in zip(names, pieces, strict=True) if np.all(piece == pieces[0])]

# %% tags=["reveal"]
mesh_guess.reveal(
    ", ".join(same_piece[1:]) or "none",
    {
        "none": "That would be so if no other device trained the same piece. CPU:2 does, with "
        "other examples, and without a sum the two would drift apart.",
        "CPU:1": "That would be so if the two held the same columns. CPU:1 has the other columns, "
        "so its gradient belongs to other weights.",
        "CPU:1, CPU:2 and CPU:3": "That would be so if each device held the whole kernel. CPU:1 "
        "and CPU:3 hold the other columns, so their gradients belong to other weights.",
        "CPU:2": "It holds the same columns and sees other examples.",
    },
)

# %% [markdown] tags=["after-reveal"]
# CPU:0 and CPU:2 are replicas of the same piece, so they sum its gradient once a step. The sums
# along `model` come four times in each layer, and the layer waits for them, so that's the axis for
# the fast links. You also see a waste, because both replicas store the same half of the kernel, and
# lesson 16 divides that, too. So here's the order in which to divide a model:
#
# 1. **Shard the data axis first**, because it changes no layer, and weights and gradients can
#    travel while the devices compute.
# 2. **Cut layers inside a host** if one layer or its activations are still too large, or if there
#    are more devices than examples in a batch.
# 3. **Build a pipeline across hosts** if a whole host isn't enough (lesson 17), because a pipeline
#    sends only activations between two stages.
# 4. **Spread experts** where the model has experts. You don't add experts to save memory.
#
# Llama 3 with 405 billion parameters was trained with [the first
# three](https://arxiv.org/abs/2407.21783): tensor parallelism over the eight GPUs of a host,
# pipelines of 16 stages, and sharded data over all that was left. For long texts it added a fourth
# axis, and that's the next section.
#
# > **Takeaway.** Each axis of a mesh has its own traffic. The axis that talks most gets the fastest
# > links.

# %% [markdown]
# ## Send a text around a ring
#
# What if one *text* is too large? Llama 3.1 8B, sharded over eight GPUs of 96 GB, [takes 84
# GiB](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md)
# on each of them with a single text of 32,768 tokens. A smaller batch doesn't help, because one
# example is all there is. So cut the text, and give each of four devices a part of its tokens. The
# dense layers don't even notice, since they treat each token alone. Attention does, because each
# token compares its *query* with the *keys* of all tokens before it. Then it takes a mean of their
# *values*, weighted by a softmax of these scores.
#
# You know a way to show everything to everybody without storing it, because [lesson
# 12](12_ring_all_reduce.ipynb) sent chunks around a ring. Here queries stay where they are, and
# keys and values travel. In each turn a device computes its queries against the keys that have just
# arrived, and passes the keys on. After four turns it has met all of them, one piece at a time.
#
# There's a catch, because softmax divides by a sum over *all* scores of a token, and a device never
# has all of them at once.

# %% tags=["predict"]
state_guess = dl.predict(
    "What must a device remember of the earlier pieces, so that its softmax is exact in the end?",
    [
        "all scores so far",
        "the softmax of each piece, to average them",
        "the largest score and a sum for each token",
    ],
)

# %%
pieces = [np.array([1.0, 3.0]), np.array([2.0, 5.0])]  # the scores of one token, in two pieces
highest, total = -np.inf, 0.0
for scores in pieces:
    new = max(highest, scores.max())
    total = np.exp(highest - new) * total + np.exp(scores - new).sum()
    highest = new

everything = np.concatenate(pieces)
is_exact = bool(np.isclose(total, np.exp(everything - everything.max()).sum()))
dl.show("the divisor of the whole softmax", is_exact)

# %% tags=["reveal"]
state_guess.reveal(
    "the largest score and a sum for each token" if is_exact else "all scores so far",
    {
        "all scores so far": "That would be so if earlier scores had to be computed again for a "
        "larger maximum. All of them change by one common factor, so it's enough to correct their "
        "sum.",
        "the softmax of each piece, to average them": "That would be right if every piece deserved "
        "the same weight. A piece with high scores deserves more, and an average forgets that.",
        "the largest score and a sum for each token": "If a later piece has a higher score, the "
        "sum so far shrinks by a factor that depends only on the old and the new maximum.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Softmax subtracts the largest score before it takes exponentials, because `exp` of a large score
# overflows. When a new piece brings a larger one, everything that was summed so far used the wrong
# maximum, and a single factor, `exp(highest - new)`, repairs it. The output is a sum as well, of
# weighted values, so it shrinks by the same factor. `ring_attention` does this on four devices, for
# a text of 32 tokens that we cut into eight pieces:

# %% tags=["after-reveal"]
from distlab.course.lesson_18_split_layer_and_text.causal_ring import max_differences

draw = np.random.default_rng(0)
q, k, v = (tf.constant(draw.normal(size=(32, 8)), tf.float32) for _ in "qkv")


def deal(numbers):
    """The tokens of each device, if it gets the pieces with these numbers."""
    return [[4 * piece + n for piece in mine for n in range(4)] for mine in numbers]


in_order = deal([[0, 1], [2, 3], [4, 5], [6, 7]])
output_gap, gradient_gap = max_differences(q, k, v, in_order)
dl.show("max difference to one device, output", output_gap, below=1e-5)
dl.show("max difference to one device, gradients", gradient_gap, below=1e-4)

# %% [markdown] tags=["after-reveal"]
# The result is attention on one device, to within rounding, and so are the gradients. But no device
# held more than 8 of the 32 rows of keys, and no more than 8 by 8 of the 1,024 scores. That's how
# [ring attention](https://arxiv.org/abs/2310.01889) makes room: the longer your text, the more
# devices you give it, and what each of them holds stays the same.
#
# > **Takeaway.** Softmax can be computed piece by piece. A running maximum and a running sum keep
# > it exact, so no device ever needs the whole text.
#
# <details><summary>Fine print</summary>
#
# While a device computes one piece, the next one can already be on its way. Whether that hides the
# message depends on the length: computing grows with the square of a piece, and sending with its
# length. Llama 3's authors [don't use a ring](https://arxiv.org/abs/2407.21783): they all-gather
# the keys and values of a layer, which are small there because several query heads share them. The
# running maximum is older than rings ([online softmax](https://arxiv.org/abs/1805.02867)), and
# FlashAttention uses it inside a single GPU.
#
# </details>

# %% [markdown]
# ## Deal the text so that nobody waits
#
# A token sees itself and the tokens *before* it. So a device with the beginning of the text has
# little to compare, and one with the end has much. All of them pass keys on at the end of a turn,
# so a turn lasts as long as its slowest device needs.

# %% tags=["predict"]
busy_guess = dl.predict(
    "Dealt in order, device 0 gets the first quarter of the text and device 3 the last. For how "
    "much of the time are the four devices busy?",
    ["100 %", "58 %", "25 %"],
)

# %%
from distlab.course.lesson_18_split_layer_and_text.causal_ring import busy_share, pairs_by_turn

work = pairs_by_turn(in_order)  # pairs of tokens, by turn and device
dl.show("pairs of each device", {f"turn {turn}": pairs for turn, pairs in enumerate(work.tolist())})

# %% tags=["reveal"]
busy_guess.reveal(
    f"{100 * busy_share(work):.0f} %",
    {
        "100 %": "That would be so if every token saw the whole text. Here device 0 has nothing to "
        "do after turn 0, because all keys that arrive belong to later tokens.",
        "25 %": "That would be so if the devices worked one after the other, as in a pipeline with "
        "a single micro-batch. In turn 0 all four work, and in turn 1 three.",
        "58 %": "In turn 0 everybody works on its own part. Then device 0 is done, after turn 1 "
        "device 1 as well, and every turn still lasts as long as a full piece.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The remedy is to change who gets what, and it costs nothing. Cut the text into twice as many
# pieces as there are devices, and give each device one from the front and one from the back. You'd
# pair the strongest player with the weakest in the same way:

# %% tags=["after-reveal"]
from distlab.course.lesson_18_split_layer_and_text.figures import draw_turns

zigzag = deal([[0, 7], [1, 6], [2, 5], [3, 4]])
dl.show("max difference to one device", max_differences(q, k, v, zigzag)[0], below=1e-5)
draw_turns({"in order": work, "zigzag": pairs_by_turn(zigzag)})

# %% [markdown] tags=["after-reveal"]
# In zigzag, as this deal is called, every device has the same number of pairs in every turn, so the
# same text takes little more than half the time. Since the tokens keep their positions for the
# mask, the result is the same as before. Llama 3's authors [pair their
# pieces](https://arxiv.org/abs/2407.21783) like this as well.
#
# > **Takeaway.** With a causal mask, the end of a text is more work than its beginning. Give each
# > device some of both.

# %% [markdown]
# ## Extra: a forecast for data that you haven't seen
#
# How far does counting take you, on runs that you haven't seen? The authors of torchtitan trained
# [Llama 3.1
# 8B](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md)
# on eight GPUs, first with texts of 32,768 tokens on one GPU each. Then they doubled the length and
# the GPUs of a text, three times, up to 262,144 tokens on all eight. Each GPU held about 84 GiB in
# all four runs, which is what *context parallelism*, the ring's other name, promises. We take the
# speed of the first run, and forecast the others by the FLOPs of a token. It needs 6 for each
# parameter, and in each layer 12 for each token of the text, times the layer's width.

# %% tags=["predict"]
forecast_guess = dl.predict(
    "How good is the forecast for the longest text, which is eight times as long?",
    [
        "within 10 %",
        "too fast by about half: real training is slower",
        "too slow by about half: real training is faster",
    ],
)

# %%
from distlab.course.lesson_18_split_layer_and_text.published_runs import BY_TEXT_LENGTH, LLAMA_8B

parameters, layers, width = LLAMA_8B.values()
flops = {length: 6 * parameters + 12 * layers * width * length for length in BY_TEXT_LENGTH}
shortest, (_, known) = next(iter(BY_TEXT_LENGTH.items()))
too_fast = {}
for length, (gpus, measured) in BY_TEXT_LENGTH.items():
    forecast = known * flops[shortest] / flops[length]
    too_fast[length] = forecast / measured - 1
    print(f"{length:,} tokens on {gpus} of 8: forecast {forecast:,.0f}, measured {measured:,}")

# %% tags=["reveal"]
forecast_guess.reveal(
    "too fast by about half: real training is slower"
    if too_fast[length] > 0.4
    else "too slow by about half: real training is faster"
    if too_fast[length] < -0.4
    else "within 10 %",
    {
        "within 10 %": "That would be so if a device did nothing but compute. The forecast for two "
        "GPUs is that good, but not the others.",
        "too slow by about half: real training is faster": "That would be so if longer products "
        "used a GPU much better than short ones. At 32,768 tokens they're long enough already.",
        "too fast by about half: real training is slower": "FLOPs alone know nothing of keys and "
        "values that travel, or of devices that wait.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Two GPUs do what the FLOPs say, almost to the percent, while four and eight are far slower. The
# table doesn't say why, and a count can't: it leaves out everything but products. So take a count
# as the best case, and let the first measurement that falls short of it tell you where to look.
#
# > **Takeaway.** A count of FLOPs is a limit and not a forecast. What's missing from your speed is
# > what you haven't counted.

# %% [markdown]
# <details><summary>In plain TensorFlow</summary>
#
# All of `dtensor` above is plain TensorFlow, and so is the ring, in some forty lines of
# `causal_ring.py`. TensorFlow has no public API for either kind of attention over several devices.
#
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# In PyTorch, `parallelize_module` with `ColwiseParallel` and `RowwiseParallel` cuts layers as in
# this lesson, and `torch.distributed.tensor.experimental.context_parallel` is a ring for attention.
# In JAX, a `Mesh`, a `NamedSharding` for each array and `jax.jit` give you all layouts, and
# `jax.lax.ppermute` inside `shard_map` sends a piece to the next device.
#
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. Why is the second of two layers cut by row?</summary>
#
# Its rows belong to hidden units, so a device needs only the units that it has computed itself, and
# nothing travels until the final sum.
# </details>
#
# <details><summary>2. With a new layout DTensor gives the losses of one device. Is the layout a
# good one?</summary>
#
# You don't know, because every layout that DTensor accepts gives these losses, and layouts differ
# in what travels.
# </details>
#
# <details><summary>3. A ring attention is right for small scores and returns NaN for large ones.
# What was forgotten?</summary>
#
# The running maximum, without which `exp` of a large score overflows.
# </details>
#
# <details><summary>4. You have 16 GPUs in two hosts, and your model fits when everything is sharded
# over all of them. Should you add tensor parallelism?</summary>
#
# No, as long as a batch has at least 16 examples. Tensor parallelism would stop each layer four
# times in a step for a problem that you don't have.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 18](../exercises/18_split_layer_and_text.ipynb): split a layer of a modern language
#   model, choose a mesh for a cluster, and build the ring yourself.
# - [Lesson 21](21_choosing_a_strategy.ipynb) puts all kinds of parallelism on one card.
# - [Megatron-LM](https://arxiv.org/abs/1909.08053) (2019) is still the best explanation of column
#   and row, but it doesn't show what the same split costs across hosts.
# - [Ring attention](https://arxiv.org/abs/2310.01889) (2023) deals the text out in order. [Striped
#   attention](https://arxiv.org/abs/2311.09431) noticed what that costs, and deals single tokens.
# - [TensorFlow's DTensor guide](https://www.tensorflow.org/guide/dtensor_overview) explains meshes
#   and layouts. Its tutorial with Keras uses `tf.keras.dtensor`, which Keras 3 doesn't have.
