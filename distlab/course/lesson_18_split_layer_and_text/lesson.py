# %% [markdown]
# # Beyond data parallelism
#
# Adam in [mixed precision](../docs/glossary.md#mixed-precision) needs 16 bytes for each parameter,
# as the authors of [ZeRO](https://arxiv.org/abs/1910.02054) count. A model of 7 billion parameters
# then needs 112 GB before it stores a single activation, and an H100 has 80 GB. Llama 3 with 405
# billion parameters needs 6,480 GB by this count. [Its
# authors](https://arxiv.org/abs/2407.21783) trained it on up to 16,384 GPUs, and combined four
# kinds of parallelism. If each of these GPUs had to hold the whole model, 16,384 of them would be
# no better than one.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - count what a step of your own model needs on each device, and what no number of devices lowers,
# - split two layers over devices so that nothing travels from layer to layer,
# - divide Adam's state, and say what that costs in bytes,
# - count how long the stages of a pipeline are idle,
# - say which kind of parallelism your own model needs, and which tools offer it.
#
# **Time:** {minutes}. **Needs:** lessons [03](03_custom_training_loop.ipynb),
# [07](07_mixed_precision.ipynb) and [21](21_choosing_a_strategy.ipynb), and from [lesson
# 12](12_ring_all_reduce.ipynb) the two halves of an all-reduce. No GPU, and nothing is downloaded.

# %% [markdown]
# ### Two questions on lessons 12 and 21
#
# 1. Lesson 12: which two [collectives](../docs/glossary.md#collective) make an all-reduce over a
#    ring, and how many bytes of S does each device send?
#
#    <details><summary>Answer</summary>A reduce-scatter and an all-gather. Each of them sends
#    (N - 1) / N of S from each of N devices, so both together send 2 (N - 1) / N of S.</details>
#
# 2. Lesson 21: eight GPUs under Mirrored. Which part of the memory of a step is divided among them?
#
#    <details><summary>Answer</summary>Only the activations, because the batch is divided. Each
#    GPU holds all weights, all gradients and all of the optimizer's state.</details>

# %%
import distlab as dl

devices = dl.split_devices(4)
dl.show("devices", len(devices))

# %% [markdown]
# As in lesson 21, the cell above and the one below must be the first ones in a fresh kernel.
# `initialize_accelerator_system` prepares DTensor for these four [logical
# devices](../docs/glossary.md#logical-device).

# %%
import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

kind = dtensor.initialize_accelerator_system("CPU", num_logical_cpu_devices=4)
dl.show("DTensor uses", kind)

# %% [markdown]
# ## Count the memory of a step
#
# `training_memory` from lesson 07 computes the gradients of one batch, makes Adam's state, and adds
# up the bytes of these tensors. `held_bytes` only multiplies: the parameters by 4 bytes for each
# weight, 4 for its gradient and 8 for Adam's two averages. In place of `build` you can put another
# `Sequential` model that takes these digits and returns ten scores. For any other model, give
# `held_bytes` the number of its trainable parameters.

# %%
from distlab.course.measure.step_bytes import held_bytes, sent_bytes
from distlab.course.runs.precision_probes import training_memory


def build():
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers])


# %%
(digits,) = dl.load_dataset("digits", splits=["train[:256]"], batch_size=256)
images, labels = next(iter(digits))
model = build()
counted = training_memory(model, images, labels)
multiplied = held_bytes(model.count_params(), optimizer="Adam")
dl.show("counted, KiB", counted, digits=1)
dl.show("multiplied, KiB", {part: size / 1024 for part, size in multiplied.items()}, digits=1)

# %% [markdown]
# Both agree on weights, gradients and state. Activations depend on the batch, so you can make
# them smaller: by a smaller batch, or by computing them a second time in the [backward
# pass](../docs/glossary.md#backward-pass). The other three depend on the parameters only, and this
# lesson is about them.
#
# In mixed precision the total is still about 16 bytes for each parameter, but the parts differ. The
# ZeRO paper keeps weights and gradients in 16 bits, 2 + 2 bytes, and gives the optimizer 12: Adam's
# two averages and a float32 copy of the weights. Keras keeps 4 + 4 + 8, and makes 16-bit copies of
# 2 bytes for a step (lesson 07). For the next question take the paper's way.

# %% tags=["predict"]
largest_guess = dl.predict(
    "Each of your GPUs has 80 GB. You divide the optimizer's 12 bytes for each parameter among as "
    "many GPUs as you like, and nothing else. How many parameters can the model have at most?",
    [
        "about 5 billion",
        "about 7 billion",
        "about 20 billion",
        "as many as you like, with enough GPUs",
    ],
)

# %%
many = held_bytes(1_000_000_000, replicas=1_000_000, sharding="ZeRO 1", precision="mixed")
largest = 80 / (sum(many.values()) / 1e9)  # in billions

# %% tags=["reveal"]
largest_guess.reveal(
    f"about {largest:.0f} billion",
    {
        "about 5 billion": "80 / 16 is the largest model if each GPU holds everything. Now it "
        "holds only a part of the optimizer state.",
        "about 7 billion": "80 / 12 asks what fits of the part that is divided. But this part "
        "shrinks with each GPU, and the other 4 bytes stay.",
        "as many as you like, with enough GPUs": "Weights and gradients stay whole on every GPU. "
        "They take 4 bytes for each parameter, and 80 / 4 is 20.",
        "about 20 billion": "Weights and gradients stay whole, 4 bytes for each parameter.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Here is a model of 30 billion parameters, which needs 480 GB, with more and more divided:

# %% tags=["after-reveal"]
from distlab.course.lesson_18_split_layer_and_text.figures import draw_memory_by_replicas

SHARDINGS = ("mirrored", "ZeRO 1", "ZeRO 2", "ZeRO 3, FSDP")
replicas = [1, 2, 4, 8, 16, 32, 64]


def gigabytes(sharding, count):
    parts = held_bytes(30_000_000_000, replicas=count, sharding=sharding, precision="mixed")
    return sum(parts.values()) / 1e9


curves = {kind: [gigabytes(kind, count) for count in replicas] for kind in SHARDINGS}
draw_memory_by_replicas(replicas, curves, limit_gb=80)

# %% [markdown] tags=["after-reveal"]
# (FSDP is PyTorch's Fully Sharded Data Parallel.) **What is not divided is a floor that no number
# of devices lowers.** More devices help only with what is divided. Of the numbers of replicas in
# the figure, 32 is the first at which the 30 billion parameters fit if the optimizer state and the
# gradients are divided, and 8 if the weights are divided as well. The activations need memory on
# top of that. The names in the figure are the stages of ZeRO (Zero Redundancy Optimizer):
#
# | | divided among the replicas | whole on each replica |
# |---|---|---|
# | mirrored (DDP in PyTorch) | nothing | weights, gradients, optimizer state |
# | ZeRO 1 | optimizer state | weights, gradients |
# | ZeRO 2 | optimizer state, gradients | weights |
# | ZeRO 3, FSDP | all three | one layer's weights at a time |

# %% [markdown]
# ## Split two layers by hand
#
# ZeRO divides what is *stored*. Each device still computes every layer with all of the layer's
# weights. If one layer is too large, its computation must be divided too. That is tensor
# parallelism. Take 8 examples with 6 inputs, a first kernel `[6, 10]`, ReLU, and a second kernel
# `[10, 4]`. The code below runs on one device: each entry of a list stands for what one of two
# devices would hold.
#
# A kernel can be cut by column or by row. Cut by **column**, each device computes whole hidden
# units, 5 of the 10. So cut both kernels by column?

# %%
draw = np.random.default_rng(1)
shapes = [(8, 6), (8, 4), (6, 10), (10, 4)]
x, y, first, second = (tf.constant(draw.normal(size=shape), tf.float32) for shape in shapes)
whole = tf.nn.relu(x @ first) @ second

columns = tf.split(first, 2, axis=1)  # [6, 5] on each device
hidden = [tf.nn.relu(x @ part) for part in columns]  # [8, 5] on each device
try:
    hidden[0] @ tf.split(second, 2, axis=1)[0]
except tf.errors.InvalidArgumentError as error:
    print(error.message.partition("}} ")[2].partition(" [Op")[0])

# %% [markdown]
# An output is a sum over all 10 hidden units, and device 0 has 5 of them. It would have to fetch
# the other 5 in the middle of the net, for every example. Cut the second kernel by **row**
# instead. Its rows belong to hidden units, so device 0 gets the 5 rows of its own units. It
# computes its part of *every* output's sum:

# %%
rows = tf.split(second, 2, axis=0)  # [5, 4] on each device
partial = [part @ row for part, row in zip(hidden, rows, strict=True)]
summed = partial[0] + partial[1]  # between devices: an all-reduce
dl.show("device 0 alone, right", bool(np.abs(partial[0] - whole).max() < 1e-5))
dl.show("with the sum, apart by", np.abs(summed - whole).max(), below=1e-5)

# %%
from distlab.course.lesson_18_split_layer_and_text.figures import draw_split_layers

draw_split_layers(examples=8, inputs=6, hidden=10, outputs=4)

# %% [markdown]
# **Column, then row: nothing travels between the two layers, and one sum completes the output.**
# The order matters. A first kernel cut by row would give each device a part of the sum of every
# hidden unit, and the sum of two ReLUs is not the ReLU of the sum: relu(3) + relu(-2) is 3, and
# relu(3 - 2) is 1.
#
# In the backward pass each device computes the gradients of its own pieces without the other
# devices. But from its pieces it gets only a part of the gradient of `x`. If there is a layer
# below, one all-reduce adds these parts up. [Megatron-LM](https://arxiv.org/abs/1909.08053) splits
# both halves of a transformer layer like this: attention by its heads, and the two dense layers
# behind it. So each layer needs two all-reduces forward and two backward,
# and the next layer must wait for them. That is why tensor parallelism usually stays inside one
# host, where the links are fast.

# %% [markdown]
# ## The same with DTensor
#
# DTensor is TensorFlow's tool for such layouts. You met its mesh and its layouts in lesson 21.
# `put` below places a value by a layout: for each axis the name of a mesh axis along which it is
# cut, or `WHOLE`.
#
# (`put` first copies the whole value to each device, which is fine here. For a model that does not
# fit, `dtensor.call_with_layout` makes the pieces in place.)

# %%
WHOLE = dtensor.UNSHARDED


def put(value, *axes, mesh):
    everywhere = dtensor.Layout.replicated(mesh, rank=len(axes))
    return dtensor.relayout(dtensor.copy_to_mesh(value, everywhere), dtensor.Layout(axes, mesh))


def variable(value, *axes, mesh):
    return dtensor.DVariable(put(value, *axes, mesh=mesh))


# %% [markdown]
# `step` is the step of one device: it names no device and no collective. `train` takes three of
# these steps with the layouts that it is given. It returns the losses and the first kernel. In a
# layout, `(WHOLE, "model")` cuts a kernel by column and `("model", WHOLE)` by row. A `DVariable` is
# a variable with a layout, and `dtensor.unpack` returns the pieces that the devices hold.


# %%
@tf.function
def step(x, y, first, second):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.nn.relu(x @ first) @ second - y) ** 2)
    of_first, of_second = tape.gradient(loss, (first, second))
    first.assign_sub(0.1 * of_first)
    second.assign_sub(0.1 * of_second)
    return loss


def train(of_first, of_second, *, mesh, examples=WHOLE):
    batch = [put(value, examples, WHOLE, mesh=mesh) for value in (x, y)]
    kernel = variable(first, *of_first, mesh=mesh)
    second_kernel = variable(second, *of_second, mesh=mesh)
    losses = [step(*batch, kernel, second_kernel).numpy() for _ in range(3)]
    return losses, kernel.read_value()


# %%
kernels = [tf.Variable(first), tf.Variable(second)]
losses_of_one = [step(x, y, *kernels).numpy() for _ in range(3)]

pair = dtensor.create_mesh([("model", 2)], devices=["CPU:0", "CPU:1"])
losses, kernel = train((WHOLE, "model"), ("model", WHOLE), mesh=pair)
dl.show("shape of the kernel", list(kernel.shape))
dl.show("on each device", [list(piece.shape) for piece in dtensor.unpack(kernel)])
dl.show("losses", losses, digits=3, expected=losses_of_one)

# %% [markdown]
# A kernel of `[6, 10]` is there as two pieces of `[6, 5]`, and the losses are those of one device.

# %% tags=["predict"]
layouts_guess = dl.predict(
    "Two kernels can be cut in four ways: column and row, column and column, row and column, row "
    "and row. With how many of the four does DTensor train with the losses of one device?",
    [
        "one: column, then row",
        "two: those that begin with a column",
        "three: all but column and column",
        "four",
    ],
)

# %%
CUTS = {"column": (WHOLE, "model"), "row": ("model", WHOLE)}
is_same = {}
for first_cut, of_first in CUTS.items():
    for second_cut, of_second in CUTS.items():
        losses, _ = train(of_first, of_second, mesh=pair)
        apart = np.abs(np.subtract(losses, losses_of_one)).max()
        is_same[f"{first_cut} then {second_cut}"] = bool(apart < 1e-4)
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
        "one: column, then row": "By hand the other three cuts need more: half of the hidden units "
        "are missing, or a sum has to come before the ReLU. DTensor sees from the layouts what is "
        "missing, and fetches it or adds it up.",
        "two: those that begin with a column": "With a first kernel cut by row, a sum is missing "
        "before the ReLU. DTensor sees that from the layouts, and adds up before the ReLU.",
        "three: all but column and column": "By hand device 0 lacked half of the hidden units. "
        "DTensor sees from the layouts what is missing, and fetches it.",
        "four": "A layout says where a tensor is, and never what is computed.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Take column and column, which raised an error by hand. The output of the second product is cut by
# column, and device 0 has only 5 of the 10 hidden units. For these two layouts DTensor
# [inserts](https://github.com/tensorflow/tensorflow/blob/master/tensorflow/dtensor/mlir/expansions/matmul_spmd_expander.cc)
# an [all-gather](../docs/glossary.md#all-gather) of the hidden units in every step, and it does not
# tell you. **A layout changes what travels, and the result only by rounding.** So equal losses do
# not show that a layout is a good one. You must know what it makes travel, or measure the time of a
# step on the real links.

# %% [markdown]
# ## A mesh of data and model
#
# A mesh can have two axes. The examples are cut along `batch`, the kernels along `model`:
#
# | | `model` 0 | `model` 1 |
# |---|---|---|
# | `batch` 0 | CPU:0 | CPU:1 |
# | `batch` 1 | CPU:2 | CPU:3 |

# %% tags=["predict"]
mesh_guess = dl.predict(
    "The first kernel is cut by column along `model`. After the backward pass, with which devices "
    "must CPU:0 sum the gradient of its piece?",
    ["none", "CPU:1", "CPU:2", "CPU:1, CPU:2 and CPU:3"],
)

# %%
names = [f"CPU:{number}" for number in range(4)]
square = dtensor.create_mesh([("batch", 2), ("model", 2)], devices=names)
losses, kernel = train((WHOLE, "model"), ("model", WHOLE), mesh=square, examples="batch")
pieces = dtensor.unpack(kernel)
same_piece = [name for name, piece in zip(names, pieces, strict=True) if np.all(piece == pieces[0])]

# %% tags=["reveal"]
mesh_guess.reveal(
    ", ".join(same_piece[1:]) or "none",
    {
        "none": "CPU:2 trains the same piece with different examples. Without a sum the two would "
        "drift apart. After three steps their pieces are equal.",
        "CPU:1": "It sees the same examples, but holds the other columns. Its gradient belongs to "
        "other weights.",
        "CPU:1, CPU:2 and CPU:3": "CPU:1 and CPU:3 hold the other columns, so their gradients "
        "belong to other weights.",
        "CPU:2": "It has the same columns and sees different examples.",
    },
)

# %% tags=["after-reveal"]
dl.show("pieces of the four devices", [list(piece.shape) for piece in pieces])
dl.show("losses", losses, digits=3, expected=losses_of_one)

# %% [markdown] tags=["after-reveal"]
# Along a mesh axis that a layout does not name, a tensor is copied: two devices hold the left half
# of the kernel and two the right half. Each pair with the same half is a pair of replicas: they see
# different examples, and all-reduce their gradients. So the memory for weights falls with the
# `model` axis only, and `batch` makes the step faster. Large training runs choose such a mesh with
# three or four axes: the inner ones for the fast links inside a host, the outer ones for the slower
# links between hosts.

# %% [markdown]
# ## Divide Adam's state
#
# Now the replicas hold whole weights again, and only Adam's state is divided: ZeRO 1. Each replica
# keeps Adam's two averages for **its** rows of a kernel. In a step it needs the summed gradient of
# these rows only. It updates its rows, and then all replicas need all rows. In DTensor one
# `relayout` gives each replica the summed gradient of its rows, and a second one gives all replicas
# all rows. (The code sends the change of the rows instead of the new rows.)

# %%
two = dtensor.create_mesh([("batch", 2)], devices=["CPU:0", "CPU:1"])
own_rows = dtensor.Layout(["batch", WHOLE], two)
on_both = dtensor.Layout.replicated(two, rank=2)


@tf.function
def sharded_step(x, y, weights, averages, rate):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2)
    gradients = tape.gradient(loss, weights)
    for weight, gradient, (m, v) in zip(weights, gradients, averages, strict=True):
        own = dtensor.relayout(gradient, own_rows)  # add up the own rows
        m.assign(0.9 * m + 0.1 * own)
        v.assign(0.999 * v + 0.001 * own**2)
        change = rate * m / (tf.sqrt(v) + 1e-7)
        weight.assign_sub(dtensor.relayout(change, on_both))  # collect all rows


# %% [markdown]
# `rate` is the learning rate with Adam's correction for the first steps. We compare five steps
# with those of Keras's Adam on one device.

# %%
batch = [put(value, "batch", WHOLE, mesh=two) for value in (x, y)]
weights = [variable(value, WHOLE, WHOLE, mesh=two) for value in (first, second)]
averages = [
    [variable(tf.zeros_like(value), "batch", WHOLE, mesh=two) for _ in ("m", "v")]
    for value in (first, second)
]
for t in range(1, 6):
    rate = 0.01 * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t)
    sharded_step(*batch, weights, averages, tf.constant(rate, tf.float32))

# %%
kernels = [keras.Variable(first), keras.Variable(second)]
adam = keras.optimizers.Adam(0.01)
for _ in range(5):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.nn.relu(x @ kernels[0]) @ kernels[1] - y) ** 2)
    adam.apply(tape.gradient(loss, [kernel.value for kernel in kernels]), kernels)

copy, _ = dtensor.unpack(weights[0].read_value())
state = dtensor.unpack(averages[0][0].read_value())
dl.show("m on each replica", [list(piece.shape) for piece in state])
dl.show("weights on each replica", list(copy.shape))
dl.show("apart from Keras's Adam by", np.abs(copy - kernels[0].numpy()).max(), below=1e-6)

# %% [markdown]
# Each replica holds half of Adam's state, and the weights are those of Adam on one device. What
# does it cost?

# %% tags=["predict"]
bytes_guess = dl.predict(
    "Mirrored all-reduces the gradients. With ZeRO 1 over 8 replicas, the updated weights must "
    "also reach every replica. Gradients and weights have one precision. How many bytes does each "
    "device send in a step, compared with Mirrored?",
    [
        "more: the weights travel as well",
        "as many as before",
        "fewer: each replica needs a part of the gradients only",
    ],
)

# %%
sent = {
    kind: sent_bytes(7_000_000_000, replicas=8, sharding=kind, precision="mixed") / 1e9
    for kind in SHARDINGS
}

# %% tags=["reveal"]
more = round(sent["ZeRO 1"] - sent["mirrored"], 6)
bytes_guess.reveal(
    "as many as before" if more == 0 else "more: the weights travel as well",
    {
        "more: the weights travel as well": "They travel instead of the second half of the "
        "all-reduce, which would carry the summed gradients.",
        "fewer: each replica needs a part of the gradients only": "That saves the second half of "
        "the all-reduce. Then the new weights must travel, which are as large.",
        "as many as before": "The gradients need the first half of Mirrored's all-reduce, and the "
        "weights need a second half of the same size.",
    },
)

# %% tags=["after-reveal"]
dl.show("GB sent by each device, 7 billion parameters", sent, digits=1)

# %% [markdown] tags=["after-reveal"]
# A [reduce-scatter](../docs/glossary.md#reduce-scatter) of the gradients gives each replica the sum
# of its own rows, and an [all-gather](../docs/glossary.md#all-gather) gives all replicas the new
# rows. An all-reduce *is* these two, one after the other. **ZeRO 1 puts the update between the two
# halves, so it divides Adam's state for no additional byte.** ZeRO 2 costs the same if a step has
# one backward pass. With gradient accumulation, ZeRO 2 reduce-scatters after each backward pass,
# and ZeRO 1 only once a step. ZeRO 3 gathers the weights twice, once forward and once backward, so
# it sends 1.5 times as much. (You can keep the gathered weights after the forward pass. That saves
# the second gather and costs the memory.)
#
# These bytes come from the formula. On a CPU, DTensor replaces the reduce-scatter by an all-reduce
# and a cut, and the all-gather by an all-reduce. So our run shows what each replica stores, and not
# what a GPU would send.

# %% [markdown]
# Here is a calculator. It compares Mirrored with one of the stages, for a precision, an optimizer,
# a number of parameters and a number of replicas. Activations are not in it.

# %%
from distlab.course.lesson_18_split_layer_and_text.view import explore_memory

explore_memory()

# %% [markdown]
# ## A pipeline and its bubble
#
# The third way to divide a model is by layers. Device 0 has the first layer, device 1 the second:
# each device is a **stage** of the pipeline (these have nothing to do with the stages of ZeRO).
# What travels is small: the activations go forward, and their gradient comes back. The batch is cut
# into [micro-batches](../docs/glossary.md#micro-batch), so that stage 0 can start the next one
# while stage 1 works.

# %%
kernels = []
for device, value in zip(devices[:2], (first, second), strict=True):
    with tf.device(device):
        kernels.append(tf.Variable(value))


def two_stages(x, y):
    with tf.device(devices[0]), tf.GradientTape() as tape_0:
        hidden = tf.nn.relu(x @ kernels[0])
    with tf.device(devices[1]):
        with tf.GradientTape() as tape_1:
            tape_1.watch(hidden)  # what device 0 sent
            errors = hidden @ kernels[1] - y
            loss = tf.reduce_sum(errors**2) / 32  # all outputs of the whole batch
        of_second, back = tape_1.gradient(loss, [kernels[1], hidden])
    with tf.device(devices[0]):
        of_first = tape_0.gradient(hidden, kernels[0], output_gradients=back)  # from device 1
    return of_first, of_second


parts = [two_stages(*part) for part in zip(tf.split(x, 4), tf.split(y, 4), strict=True)]
once = two_stages(x, y)
gaps = [np.abs(sum(part[n] for part in parts) - once[n]).max() for n in (0, 1)]
dl.show("both gradients apart by", max(gaps), below=1e-5)

# %% [markdown]
# Four micro-batches add up to the gradient of the batch: this is [gradient
# accumulation](../docs/glossary.md#gradient-accumulation), and the loss is divided by the elements
# of the whole batch. `output_gradients=back` starts the backward pass of stage 0 with the gradient
# that stage 1 has sent, instead of with 1. (Our loop takes the micro-batches one after the other. A
# real pipeline runs both stages at the same time.)
#
# When a batch starts, stage 1 has nothing to do yet. In the middle of the step, stage 0 has sent
# its last activations and waits for the first gradient. At the end stage 0 is still busy, and stage
# 1 has nothing left to do. This idle time is the pipeline's **bubble**. `pipeline_schedule` says
# for each stage what it does in each tick, the time of one micro-batch in one direction: all
# micro-batches forward, then all of them backward, as in
# [GPipe](https://arxiv.org/abs/1811.06965).

# %% tags=["predict"]
bubble_guess = dl.predict(
    "Four equally fast stages, four micro-batches. What percentage of all stages' time is idle?",
    unit="%",
)

# %%
from distlab.course.lesson_18_split_layer_and_text.figures import draw_pipeline
from distlab.course.measure.pipeline_schedule import (
    idle_share,
    pipeline_schedule,
)

schedules = {f"m = {m}": pipeline_schedule(4, micro_batches=m) for m in (1, 4, 8)}
draw_pipeline(schedules)

# %% tags=["reveal"]
bubble_guess.reveal(
    round(100 * idle_share(schedules["m = 4"])),
    {
        0: "The last stage cannot start before the first micro-batch has passed the other three.",
        25: "One of four stages waiting would be 25 %. Here every stage waits for three of the "
        "seven ticks of each pass.",
        50: "Each stage works in four of the seven ticks of each pass, which is more than half.",
        75: "That is the idle time divided by the working time, 3 / 4. Of all time it is 3 / 7.",
    },
    within=1,
)

# %% [markdown] tags=["after-reveal"]
# With p equally fast stages and m micro-batches a pass takes m + p - 1 ticks, and each stage works
# in m of them. **The idle share is (p - 1) / (m + p - 1).** (Megatron-LM's authors divide by the
# working time instead, and get (p - 1) / m.) More micro-batches make it smaller. But small ones use
# a GPU badly, and GPipe must keep something for each of them until the backward pass: the input of
# the stage, from which it computes the activations again. A later schedule, 1F1B, starts each
# backward pass as soon as it can, so a stage keeps at most p micro-batches. Its bubble is the same.
# [Interleaved 1F1B](https://arxiv.org/abs/2104.04473) gives each device several smaller stages,
# which makes the bubble shorter and sends more messages.

# %% [markdown]
# ## What keras.distribution does
#
# Keras has an interface for layouts: `keras.distribution`, with `DataParallel` and `ModelParallel`.
# It has none for a pipeline. Lesson 21 asked Keras for half of a kernel on each device. On the
# TensorFlow backend Keras accepted the layout and placed a whole kernel. Nothing in that backend
# reads the layout of a weight. Its file for distribution lists devices, and translates a mesh and a
# layout to DTensor. But the function that would place a value by its layout is unfinished, and no
# code of this backend calls it:

# %%
import inspect

from keras.src.backend.tensorflow import distribution_lib

print(distribution_lib.__doc__.splitlines()[0])
print(inspect.getsource(distribution_lib.distribute_value))

# %% [markdown]
# On the JAX backend the same model is divided. Keras places a small weight with
# [`jax.device_put`](https://github.com/keras-team/keras/blob/master/keras/src/backend/jax/distribution_lib.py)
# and its layout. It initializes a large one in pieces, so that no device ever holds it whole, and
# `jax.jit` inserts the collectives. We ran lesson 21's layout there, with Keras 3.15, JAX 0.10 and
# two CPU devices: a kernel `[64, 32]` became two pieces `[64, 16]`, and `fit` trained. So if your
# model is written in Keras and has become too large, this is the shortest way: set
# `KERAS_BACKEND=jax` before the import, and give `ModelParallel` a layout for each kernel.
#
# <details><summary>The script that we ran on JAX</summary>
#
# Run it in an environment with Keras and JAX. It prints `[(64, 16), (64, 16)]`.
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
# ## Which kind does your model need?
#
# `tf.distribute` ends where a replica no longer fits on one device. (Its TPUStrategy and its
# parameter servers can divide some variables, as lesson 21 says.) The figure in [lesson
# 21](21_choosing_a_strategy.ipynb) shows what each kind gives to a device, and asks about slow
# links only after sharded weights. Here slow links come before sharded weights: ZeRO 3 sends three
# times the model's size in each step (the weights twice, and the gradients), and a pipeline only
# activations. Ask in this order, and take the kind of the first yes. (Experts are in the list
# because some models have them. You do not add experts to save memory.)
#
# 1. **Data:** does one device hold all weights, all gradients and all of the optimizer's state?
# 2. **Sharded state (ZeRO 1):** does one device hold all weights, all gradients and its part of the
#    optimizer's state?
# 3. **Expert:** does an example use only a few experts of many?
# 4. **Pipeline:** are the links slow, does a device hold its share of the layers whole, and can the
#    batch be cut into many micro-batches?
# 5. **Sharded weights (ZeRO 3):** does a device hold its part of everything, and the largest layer
#    beside it?
# 6. **Tensor:** is one layer too large, and are the links fast?
#
# Questions 2 and 5 are two stages of what lesson 21 calls sharded data parallelism.
#
# | kind | what travels | what to take |
# |---|---|---|
# | data | gradients, once a step | `MirroredStrategy`, PyTorch DDP |
# | sharded state | gradients and new weights, once a step | DeepSpeed (by ZeRO's authors), JAX |
# | expert | each example to its experts, and back | DeepSpeed, Megatron-LM |
# | pipeline | activations between stages | Megatron-LM, `torch.distributed.pipelining` |
# | sharded weights | weights, twice; gradients | PyTorch `fully_shard`, DeepSpeed, JAX |
# | tensor | activations, four times in each layer | JAX, Megatron-LM, DTensor |
#
# Then combine them. Llama 3 uses tensor parallelism inside a host, pipeline and sharded data
# parallelism across hosts, and cuts long texts along a fourth axis of its mesh.
#
# Before you divide anything, look at which part is too large. If it is the activations, use smaller
# micro-batches or recompute them. If it is the optimizer's state, try an optimizer with less of it.
# Only if weights, gradients and state are still too large must you divide the model.

# %% [markdown]
# <details><summary>In plain TensorFlow</summary>
#
# All of `dtensor` above is plain TensorFlow. `held_bytes` multiplies the parameters by bytes, and
# divides what is sharded by the replicas. `pipeline_schedule` lets stage s compute micro-batch k in
# tick s + k. TensorFlow has no public API for a pipeline or for ZeRO, and Keras's `fit` knows
# neither DTensor nor the two.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch: `DistributedDataParallel` with `ZeroRedundancyOptimizer` divides what ZeRO 1 divides, but
# it all-reduces the gradients and then broadcasts the new weights, so it sends 1.5 times as much.
# `fully_shard` is ZeRO 3 and divides the weights in its own DTensor. `parallelize_module` with
# `ColwiseParallel` and `RowwiseParallel` is the split of this lesson, and
# `torch.distributed.pipelining` has GPipe and later schedules. JAX: a `Mesh`, a `NamedSharding` for
# each array, and `jax.jit`. Data, sharded and tensor parallelism differ only in the layouts, as in
# DTensor.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. Weights and gradients take 28 GB on each GPU, Adam's state 84 GB. How much
# does each of 8 GPUs hold with ZeRO 1, and what is the least that a GPU can hold with ZeRO 1,
# however many GPUs you use?</summary>
#
# 28 + 84 / 8 = 38.5 GB, and never less than 28 GB.
# </details>
#
# <details><summary>2. Why is the second of two layers cut by row?</summary>
#
# Its rows belong to the hidden units that the device has computed. It needs nothing from the other
# devices until the final sum.
# </details>
#
# <details><summary>3. With a new layout DTensor gives the losses of one device. Is the layout a
# good one?</summary>
#
# You do not know. Every layout that DTensor accepts gives these losses, up to rounding. Layouts
# differ in what travels.
# </details>
#
# <details><summary>4. Which part of a step does ZeRO 1 add to data parallelism?</summary>
#
# None. It moves the update between the two halves of the all-reduce.
# </details>
#
# <details><summary>5. Eight stages and eight micro-batches. How much is idle, and how many
# micro-batches bring it below 10 %?</summary>
#
# 7 / 15, which is 47 %. With m = 64 it is 7 / 71, which is 9.9 %.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 18](../exercises/18_split_layer_and_text.ipynb): four tasks, about 45 minutes. You
#   split a layer of a modern language model and divide Adam's state with a replica's collectives.
# - This is the last lesson. Take your own model through [lesson
#   21](21_choosing_a_strategy.ipynb) again, with the memory that you have counted here.
#   [The glossary](../docs/glossary.md) has the words of all lessons.
# - [ZeRO](https://arxiv.org/abs/1910.02054) (2020) counts 16 bytes with gradients in 16 bits.
#   Many training runs today keep gradients in float32, Llama 3 among them, and need 18 or more.
# - [Megatron-LM](https://arxiv.org/abs/1909.08053) (2019) splits layers inside a host of 16 GPUs
#   with fast links. It does not show what the same split costs across hosts.
# - [GPipe](https://arxiv.org/abs/1811.06965) (2019) calls the bubble negligible for m ≥ 4 p. The
#   formula gives 16 % for p = 4 and m = 16.
# - [PyTorch's FSDP tutorial](https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html)
#   calls FSDP the two halves of DDP's all-reduce. But FSDP gathers the weights twice, so a step
#   sends 1.5 times as many bytes. The tutorial does not count them.
# - [TensorFlow's DTensor guide](https://www.tensorflow.org/guide/dtensor_overview) explains meshes
#   and layouts. Its tutorial with Keras uses `tf.keras.dtensor`, which Keras 3 does not have.
