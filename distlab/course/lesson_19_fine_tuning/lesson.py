# %% [markdown]
# # Fine-tuning: train a small part, and know which
#
# You unfreeze the body of a pretrained model and train on. The loss falls, no warning appears, and
# ten epochs later the model is hardly better than before. You paid for these epochs, and no message
# will ever tell you what went wrong with them: only a look at the weights would have.
#
# Fine-tuning has several such failures, and all of them are quiet. In this lesson you take a small
# language model from Python's help to Python's source code, on two replicas and on two workers, and
# you always ask the same question: **which weights learn?** More than once the answer isn't the one
# that your code seems to give.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - say what freezing saves on each replica, and what it doesn't,
# - unfreeze a distributed model so that its next step trains what you chose,
# - fine-tune with LoRA, and count what a step sends before you pay for it,
# - save adapters so that they still learn when you load them.
#
# **Time:** {minutes}. **Needs:** lessons [01](01_mirrored_strategy.ipynb),
# [08](08_save_and_load.ipynb) and [09](09_multi_worker.ipynb), but no GPU. Nothing is downloaded
# while `DOWNLOAD` below is `False`; with `True`, the section on photographs fetches 0.1 GB of
# weights and 0.8 GB of photos. The lesson starts two processes on this machine.

# %% [markdown]
# <details><summary>Do you remember? Lesson 08: you restore a model's weights, but not its
# optimizer. What does Adam begin with?</summary>
#
# With zeros: its running means of the gradients and of their squares are lost. Today you'll throw
# them away on purpose.
# </details>

# %%
# %load_ext distlab
import numpy as np

import distlab as dl

DOWNLOAD = False  # True: the section on photographs fetches 0.9 GB
dl.split_devices(2)
dl.show("data", "Python's help and Python's own source code")

# %%
import warnings

import keras
import tensorflow as tf

from distlab.course.lesson_19_fine_tuning.figures import draw_costs
from distlab.course.lesson_19_fine_tuning.sent_numbers import CountedSums
from distlab.course.lesson_19_fine_tuning.small_model import (
    adapters_of,
    assign,
    build,
    compile_with,
    cost_by_shapes,
    cost_of,
    inner_layers,
    loss_on,
    moved_by,
    parts,
    read_texts,
    train,
)

sums = CountedSums()
strategy = dl.make_strategy("mirrored", devices=2, cross_device_ops=sums)
tf.get_logger().setLevel("ERROR")  # no reminders about retracing
warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")

# %% [markdown]
# ## A model that knows one kind of text
#
# The model is a transformer of one block, which predicts the
# next character. It learns Python's help for 100 steps, on a single device, because pretraining
# isn't today's subject. `parts` names its layers: an *embedding*, the *block*, a *norm* and the
# *head*. What we want it to know is something else: the source code of Python's own library.


# %%
help_text, code = read_texts()
source = build()
compile_with(source, 0.01)
train(source, help_text.train)
knows = source.get_weights()
on_code = {"untuned": loss_on(code, source)}
on_help = {"untuned": loss_on(help_text, source)}
dl.show("code is harder for it than help", on_code["untuned"] > on_help["untuned"])

# %% [markdown]
# ## What a frozen weight saves
#
# The simplest way to fine-tune trains only the head and freezes everything below. `distributed`
# makes such a model on two replicas: it starts from the weights in `knows`, calls the function that
# you pass to choose what learns, and compiles only then. The embedding stays frozen in each of
# them, since both texts have the same characters.


# %%
def distributed(choose, rate):
    def make():
        model = build(knows)
        choose(model)
        compile_with(model, rate)
        return model

    return dl.distribute(make, strategy)


def head_only(model):
    for layer in model.layers[:-1]:
        layer.trainable = False


# %% tags=["predict"]
saved_guess = dl.predict(
    "Only the head learns. Compared to a model that trains everything, what gets smaller on each "
    "replica?",
    [
        "the model's weights in memory",
        "the forward pass",
        "the all-reduce and the state of Adam",
        "all of them",
    ],
)


# %%
transferred = distributed(head_only, 0.01)
costs = {"everything": cost_by_shapes(source), "head": cost_of(transferred, code, sums)}

# %% tags=["reveal"]
one, other = costs.values()
smaller = {key for key in one if other[key] < one[key]}
saved_guess.reveal(
    {frozenset({"sent", "Adam"}): "the all-reduce and the state of Adam"}[frozenset(smaller)],
    {
        "the model's weights in memory": "That would need a replica that can do without the body. "
        "Each one computes features with it, so each one keeps a copy, frozen or not.",
        "the forward pass": "It would if features came from somewhere else. Here each row still "
        "passes through the whole body, and only the backward pass ends early.",
        "all of them": "The weights stay on every replica, and each row still passes through all "
        "of them. Only what exists for gradients gets smaller.",
        "the all-reduce and the state of Adam": "Both exist for gradients, and a frozen weight has "
        "none.",
    },
)

# %% tags=["after-reveal"]
for name, numbers in costs.items():
    dl.show(name, numbers)

# %% [markdown] tags=["after-reveal"]
# **Freezing shrinks what exists for gradients, and nothing else.** A frozen weight has no gradient,
# so nothing is sent for it and Adam keeps no averages. The activations below the lowest layer that
# learns needn't be kept for a backward pass, either. The model itself doesn't get any smaller, so
# one whose weights alone don't fit into your GPU is still too large when you freeze it.
#
# > **Takeaway.** Frozen weights cost memory and a forward pass. You save their gradients, their
# > bytes on the network and their optimizer state.
#
# <details><summary>Fine print</summary>
#
# `CountedSums` is TensorFlow's all-reduce for replicas in one process, and notes the size of each
# array while a step runs. Only the row *everything* is worked out: `source` runs on one device, and
# two replicas of it would send a gradient for each weight. Adam's state is two numbers for each
# weight that learns, plus its step and its rate. `trainable = False` leaves a Dropout layer active,
# because dropping isn't learning, but it does change what a BatchNormalization computes.
# </details>

# %% [markdown]
# ## The step that remembers
#
# The head is trained, and now the block and the norm should learn as well, so we set them free and
# call `fit` again. `moved_by` copies the weights of each part, trains for two steps and returns the
# parts whose weights differ.


# %%
body = [parts(transferred)["block"], parts(transferred)["norm"]]
for layer in body:
    layer.trainable = True

# %% tags=["predict"]
unfreeze_guess = dl.predict(
    "The block and the norm are trainable now, and nothing else was changed. What does the next "
    "`fit` move?",
    ["the block, the norm and the head", "the head only", "nothing: it raises an error"],
)

# %%
moved = moved_by(transferred, code)

# %% tags=["reveal"]
unfreeze_guess.reveal(
    "the head only" if moved == ["head"] else "the block, the norm and the head",
    {
        "the block, the norm and the head": "That would be so if `fit` asked for `trainable` in "
        "each step. It runs a step that was traced when only the head was trainable, and a Python "
        "attribute can't change a traced step.",
        "nothing: it raises an error": "An error would need a step that no longer fits the model. "
        "The traced step fits, and it trains what it trained before.",
        "the head only": "The traced step is kept until the next `compile`.",
    },
)

# %% tags=["after-reveal"]
train(transferred, code.first(60))
on_code["head"] = loss_on(code, transferred)
dl.show("the loss falls all the same", on_code["head"] < on_code["untuned"])
try:
    transferred.compile(transferred.optimizer, transferred.loss)
    train(transferred, code.first(1))
except (ValueError, NotImplementedError):
    dl.show("the old optimizer refuses the body", True)

# %% [markdown] tags=["after-reveal"]
# **The first `fit` decides what learns, until you call `compile`.** It fixes the list of gradients
# inside the traced step, and the loss keeps falling because the head still has something to learn.
# A new `compile` throws that step away, and it needs a new optimizer, too, since the old one has
# state for the head only and raises *Unknown variable* for the rest. So Adam starts from zeros, and
# its first steps are as long as the learning rate allows, however small the gradients are. Give it
# a small rate: the head began with random numbers, while the block has something to lose.

# %% tags=["after-reveal"]
compile_with(transferred, 0.001)
dl.show("a step moves", moved_by(transferred, code))

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** After a change of `trainable`, compile again with a new optimizer and a small
# > rate. Then compare the weights before and after one step, because the loss won't tell you.
#
# <details><summary>Fine print</summary>
#
# A change between `compile` and the first `fit` still counts. Keras 3.15 contains a warning for a
# change after that, but its code never reaches it; before version 3.13 the old optimizer's error
# was a `NotImplementedError`. `model.trainable = True` does nothing if the model already counts as
# trainable, even if its layers are frozen, so set `trainable` of each layer. In plain TensorFlow,
# call the later `compile` inside `strategy.scope()`; a model from `dl.distribute` needs no scope.
# </details>

# %% [markdown]
# ## Statistics that move without a gradient
#
# A weight without a gradient can still change. A BatchNormalization has a moving mean and a moving
# variance, which each training step moves towards its batch. Your pretrained body may contain many
# of them, and on small batches they become noise. It's common advice to call the body with
# `training=False`, which holds them still, and here is the smallest model that follows it:

# %%
norm = keras.layers.BatchNormalization()
inputs = keras.Input((4,))
tiny = keras.Model(inputs, keras.layers.Dense(1)(norm(inputs, training=False)))
tiny.compile("sgd", "mse")

# %% tags=["predict"]
statistics_guess = dl.predict(
    "The moving mean starts at 0, and all inputs are 5. What is it after one step of `fit`?",
    ["0: the layer is in inference mode", "0.05: it moved towards 5", "5: the mean of the batch"],
)

# %%
tiny.fit(np.full((8, 4), 5.0), np.ones(8), verbose=0)
moving_mean = float(norm.moving_mean.numpy()[0])

# %% tags=["reveal"]
statistics_guess.reveal(
    {
        0.0: "0: the layer is in inference mode",
        0.05: "0.05: it moved towards 5",
    }.get(round(moving_mean, 3), "5: the mean of the batch"),
    {
        "0: the layer is in inference mode": "That was true in Keras 2, and in Keras 3 it needs a "
        "subclassed model, whose `call` makes the call itself. Of a functional model, `fit` calls "
        "every layer with `training=True`, whatever you said when you built it.",
        "5: the mean of the batch": "It would be 5 with a momentum of 0. The default is 0.99, so a "
        "moving mean takes a hundredth of the way in each step.",
        "0.05: it moved towards 5": "`fit` calls the model with `training=True`, and Keras 3 hands "
        "that down to every layer of a functional model.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Keras's own guide still relied on this argument when [a reader asked about
# it](https://github.com/keras-team/keras/issues/20285) in 2024. What does hold the statistics still
# is `trainable = False` on each BatchNormalization, because a frozen one is in inference mode. Set
# it on the layer: if you freeze only its weights, its statistics still move.
# `unfreeze_except_norms` counts the layers from the top, so `last=2` frees the upper two:


# %% tags=["after-reveal"]
def unfreeze_except_norms(body, *, last):
    body.trainable = True
    for place, layer in enumerate(reversed(body.layers)):
        is_norm = isinstance(layer, keras.layers.BatchNormalization)
        layer.trainable = place < last and not is_norm


unfreeze_except_norms(tiny, last=3)
tiny.compile("sgd", "mse")
tiny.fit(np.full((8, 4), 5.0), np.ones(8), verbose=0)
dl.show("the mean has stayed", float(norm.moving_mean.numpy()[0]) == moving_mean)

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** Freeze every BatchNormalization of a pretrained body by `trainable = False`, and
# > then compile. Our transformer has none, because a LayerNormalization keeps no statistics.
#
# ## LoRA: a correction of low rank
#
# So far you choose between a head that can't learn much and a body that sends everything.
# [LoRA](../docs/glossary.md#lora) leaves each kernel frozen and learns a correction to it. The
# correction is a product of two thin matrices: *A* with `in` rows and `r` columns, and *B* with `r`
# rows and `out` columns, so `r` · (`in` + `out`) numbers do the work of `in` · `out`. *B* starts at
# zero, which means that the model computes at first exactly what it computed before. The layer
# multiplies *A* · *B* by `lora_alpha` / `r`, and that's 1 unless you choose another `lora_alpha`.
#
# In Keras this is one call a layer, and it works inside an attention, too, whose kernels are
# `EinsumDense` layers. A `LayerNormalization` has no kernel to correct, and nobody asked for an
# adapter of the embedding:


# %%
def add_adapters(model, rank):
    for layer in inner_layers(model):
        if isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)):
            layer.enable_lora(rank)


# %% tags=["predict"]
learns_guess = dl.predict(
    "A model is trainable throughout. You call `add_adapters(model, 4)`, and then compile. What "
    "will a step train?",
    [
        "A and B only",
        "A and B, and every weight without an adapter",
        "A, B and the kernels that they correct",
    ],
)

# %%
careless = build(knows)
parts(careless)["embedding"].trainable = True
add_adapters(careless, 4)
trains = sorted({weight.path.split("/")[-1] for weight in careless.trainable_weights})

# %% tags=["reveal"]
learns_guess.reveal(
    "A, B and the kernels that they correct"
    if "kernel" in trains
    else "A and B, and every weight without an adapter"
    if "embeddings" in trains
    else "A and B only",
    {
        "A and B only": "That needs somebody who freezes the rest. `enable_lora` looks at its own "
        "layer and freezes that kernel, so embeddings and norms learn on in full.",
        "A, B and the kernels that they correct": "Then nothing would be saved. `enable_lora` "
        "freezes the kernel of its layer, and that's all that it freezes.",
        "A and B, and every weight without an adapter": "`enable_lora` freezes the kernel of its "
        "own layer. It leaves the other layers as they are, and a bias, too, if there were one.",
    },
)

# %% tags=["after-reveal"]
dl.show("trainable", trains)

# %% [markdown] tags=["after-reveal"]
# **`enable_lora` freezes one kernel, and the rest is yours to freeze.** In a large model the
# embedding alone can send more than all adapters together, and you'd never see it in the loss. So
# we freeze by name, add the adapters to the comparison, and train them for 60 steps:


# %% tags=["after-reveal"]
def lora(model):
    add_adapters(model, 4)
    for weight in model.weights:
        weight.trainable = "lora" in weight.path


adapted = distributed(lora, 0.01)
costs["LoRA"] = cost_of(adapted, code, sums)
draw_costs(costs)

# %% [markdown] tags=["after-reveal"]
# LoRA sends fewer numbers than even the head alone, and it corrects every layer. The weights on
# each replica have grown a little, because *A* and *B* come on top. What it saves is the all-reduce
# and Adam's state; the forward and backward passes still go through the whole model.
#
# How well does it learn the code? Beside it, `source` trains everything for 60 steps:

# %% tags=["after-reveal", "numbers-within-0.3"]
train(adapted, code.first(60))
train(source, code.first(60))
for name, model in {"LoRA": adapted, "everything": source}.items():
    on_code[name], on_help[name] = loss_on(code, model), loss_on(help_text, model)
dl.show("loss on code", on_code, digits=2)
dl.show("loss on help", on_help, digits=2)

# %% [markdown] tags=["after-reveal"]
# LoRA gets about as far as the head alone, and a model that trains everything gets further. Both
# losses on help have risen, which is called *forgetting*. With LoRA you can undo it: leave *A* and
# *B* out, and the frozen body knows its help as before.
#
# > **Takeaway.** LoRA trains two thin matrices beside a frozen kernel. Freeze all other weights
# > yourself, and count what a step sends before you believe the saving.

# %% [markdown]
# ### How many numbers is a rank of 4?
#
# Before you rent machines you'd like to know the bytes, and the formula says `r` · (`in` + `out`).
# In the report on [Gemma](https://arxiv.org/abs/2403.08295), the model of two billion parameters
# has a width of 2,048 and eight heads of 256, so the kernel of its queries takes 2,048 numbers in
# and gives 8 · 256 out. Keras stores it with three axes: head, width, size of a head. It cuts every
# kernel before its last axis, so *A* has all axes but the last and then `r`, and *B* has `r` and
# the last one.

# %% tags=["predict"]
rank_guess = dl.predict(
    "How many numbers has Keras's adapter of rank 4 for this kernel, compared to the formula?",
    ["as many", "fewer: the heads share an adapter", "about four times as many"],
)

# %%
queries = keras.layers.EinsumDense("btd,hdk->bthk", output_shape=(None, 8, 256))
queries.build((None, None, 2048))
queries.enable_lora(4)
a, b = queries.lora_kernel_a.shape, queries.lora_kernel_b.shape
formula, keras_has = 4 * (2048 + 8 * 256), int(np.prod(a) + np.prod(b))

# %% tags=["reveal"]
rank_guess.reveal(
    "as many"
    if keras_has == formula
    else "fewer: the heads share an adapter"
    if keras_has < formula
    else "about four times as many",
    {
        "as many": "It would if Keras cut between inputs and outputs. A keeps the axis of heads, "
        "too, so it has a row for each head and each input.",
        "fewer: the heads share an adapter": "They share B. Each head has its own A, which is "
        "the larger part.",
        "about four times as many": "A keeps the axes of heads and width, and only the size of a "
        "head moves to B.",
    },
)

# %% tags=["after-reveal"]
dl.show("shapes of A and B", [a, b])
dl.show("numbers", {"formula": formula, "Keras": keras_has})

# %% [markdown] tags=["after-reveal"]
# **Count the shapes, and don't trust the formula.** For a dense layer Keras's cut gives what the
# formula says, but for a kernel with heads it doesn't. The product even has a higher rank than
# 4 when you write it as one matrix, so you pay for more and you get more.
#
# > **Takeaway.** An adapter has `r` · (the product of all axes but the last) + `r` · (the last
# > axis) numbers, and each step gives 4 bytes for each to the all-reduce.

# %% [markdown]
# ## The same on two workers
#
# Between machines LoRA pays most, because the all-reduce crosses a network. Each worker builds the
# whole model, and the gradients of the adapters are all that they exchange. Keras's own `fit`
# [stops with an error](../docs/pitfalls.md#perreplica-fit-on-several-workers-stops-at-once) under
# MultiWorkerMirroredStrategy, so we use `dl.distribute` here as well.


# %%
def tune(knows, rows, distribute):
    def make():
        model = build(knows)
        lora(model)
        compile_with(model, 0.001)
        return model

    if distribute:
        model = dl.distribute(make, tf.distribute.MultiWorkerMirroredStrategy())
    else:
        model = make()
    train(model, rows)
    return adapters_of(model)


cluster = dl.LocalCluster(workers=2)
on_workers = cluster.run(tune, knows, code.first(5), True, timeout_secs=120)
cluster.close()

# %%
alone = tune(knows, code.first(5), False)
first, second = on_workers
dl.show("both workers have the same bits", all(map(np.array_equal, first, second)))
apart = max(np.abs(x - y).max() for x, y in zip(first, alone, strict=True))
dl.show("max difference to one device", apart, below=1e-3)
dl.show("numbers in the adapters", sum(array.size for array in first))

# %% [markdown]
# The workers agree in every bit, and they took the steps of a single device. What a large model
# saves you can work out. All of Gemma's 2.5 billion weights give 10 GB to the all-reduce in each
# step, and two workers on a network of 10 Gbit/s need 8 seconds for that at best. Adapters of rank
# 4 for the queries of its 18 layers are 1.2 million numbers, so 5 MB and 4 milliseconds.
#
# The adapters are also all that you need to keep: for each task one small list of arrays, beside
# one body that all tasks share.
#
# > **Takeaway.** With LoRA, workers exchange adapters only, and a task is as small as its adapters.

# %% [markdown]
# ## Save, load, go on
#
# You've trained adapters for a day, and tomorrow you'd like to go on. So you call `save_weights`,
# build the same model with the same adapters tomorrow, call `load_weights`, and train.

# %%
from pathlib import Path
from tempfile import mkdtemp

file = Path(mkdtemp()) / "adapted.weights.h5"
adapted.save_weights(file)
tomorrow = build(knows)
lora(tomorrow)
compile_with(tomorrow, 0.01)
tomorrow.load_weights(file)
dl.show("the loss has changed by", abs(loss_on(code, tomorrow) - on_code["LoRA"]), below=1e-4)

# %% tags=["predict"]
loaded_guess = dl.predict(
    "The loaded model is as good as the saved one. You train it for 20 more steps. What happens to "
    "its adapters?",
    [
        "they go on from where they were",
        "they start again: A random, B zero",
        "nothing: not one number changes",
    ],
)

# %%
before = [np.copy(weight) for weight in tomorrow.get_weights()]
train(tomorrow, code.first(20))
still = all(map(np.array_equal, before, tomorrow.get_weights()))

# %% tags=["reveal"]
loaded_guess.reveal(
    "nothing: not one number changes"
    if still
    else "they start again: A random, B zero"
    if not any(map(np.any, adapters_of(tomorrow)))
    else "they go on from where they were",
    {
        "they go on from where they were": "That needs a file with A and B in it. Keras writes "
        "one kernel for each layer, into which it has merged A · B.",
        "they start again: A random, B zero": "That would work well, since a random A gives B a "
        "gradient. But `load_weights` sets both of them to zero.",
        "nothing: not one number changes": "The gradient of A is multiplied by B, and that of B by "
        "A. Both are zero, and stay zero.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **Saving merges the adapters, and loading sets both to zero.** The merged model is right, so every
# evaluation after loading looks fine. But the gradient of *A* has the factor *B*, and the gradient
# of *B* has the factor *A*. With both at zero no step moves anything, while `fit` reports a loss
# for each of them. It's like two people at a door who each wait for the other to go first.
#
# So keep the adapters themselves. Here they go into the model that didn't learn, with the body that
# it had before the file was merged into it:


# %% tags=["after-reveal"]
kept = adapters_of(adapted)  # `np.savez` writes them to a file
assign(tomorrow, knows, adapters=False)
assign(tomorrow, kept, adapters=True)
dl.show("the loss has changed by", abs(loss_on(code, tomorrow) - on_code["LoRA"]), below=1e-4)
dl.show("a step moves", moved_by(tomorrow, code))

# %% [markdown] tags=["after-reveal"]
# `tf.train.Checkpoint` and `dl.Resume` (lessons 08 and 11) keep *A*, *B* and Adam's state as they
# are, so use them for a training that goes on. Use `save_weights` for a model that's finished, and
# load it into one without adapters.
#
# > **Takeaway.** `save_weights` ends a LoRA training, because it merges. To go on, keep the
# > adapters themselves or a checkpoint, and check after loading that a step moves them.
#
# <details><summary>Fine print</summary>
#
# A whole model in a `.keras` file comes back with adapters that are zero, too. There Keras also
# restores Adam's state, whose averages push the zeros a little, so that such a model learns again
# from an accidental start. All of this was found with Keras 3.15.
# </details>

# %% [markdown]
# ## Extra: What pretraining must not see
#
# "It learned from 60 batches of code" is a fair claim only if the body hasn't read that code
# before. A test is fair only if no part of it was in the pretraining text. Real leaks are hard to
# find: the same file under two names, a photo that stands in two classes. A leak makes your result
# look better, so you have no reason to search for it. For its largest model, the team of
# [BiT](https://arxiv.org/abs/1912.11370) removed near duplicates of its test images from 300
# million pretraining images. The accuracies hardly changed, but only the removal could show that.
#
# > **Takeaway.** Remove the test from the pretraining data by content and not by name.

# %% [markdown]
# ## Extra: The same on photographs
#
# Here is the classic case with the same steps: a ResNet50 that knows ImageNet, and `cats_vs_dogs`
# from TensorFlow Datasets (TFDS). Without a download the weights are random, and the counts are the
# same.


# %%
def photos(split):
    (data,) = dl.load_dataset("cats_vs_dogs", splits=[split], scale_images=False)

    def prepare(image, label):
        image = tf.image.resize(tf.cast(image, tf.float32), (160, 160))
        return keras.applications.resnet50.preprocess_input(image), label

    return data.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).batch(32).prefetch(2)


def cats_or_dogs(weights):
    shape = (160, 160, 3)
    body = keras.applications.ResNet50(
        weights=weights, include_top=False, pooling="avg", input_shape=shape
    )
    body.trainable = False
    model = keras.Sequential([keras.Input(shape), body, keras.layers.Dense(2, name="head")])
    compile_with(model, 0.001, metrics=["accuracy"])
    return model


# %%
photo_model = dl.distribute(lambda: cats_or_dogs("imagenet" if DOWNLOAD else None), strategy)
photo_body, photo_head = photo_model.layers
learns = sum(weight.numpy().size for weight in photo_model.trainable_weights)
unfreeze_except_norms(photo_body, last=33)  # the last of its four stages
learns_later = sum(weight.numpy().size for weight in photo_model.trainable_weights)
photo_body.trainable = False
dl.show("numbers in the model", photo_model.count_params())
dl.show("MB sent in a step, frozen", learns * 4 / 1e6, digits=3)
dl.show("MB sent in a step, last stage free", learns_later * 4 / 1e6, digits=1)

# %%
if DOWNLOAD:
    few_photos, photo_test = photos("train[:5%]"), photos("train[90%:]")
    photo_model.fit(few_photos, epochs=2)
    photo_model.evaluate(photo_test)
    unfreeze_except_norms(photo_body, last=33)
    compile_with(photo_model, 0.00001, metrics=["accuracy"])
    photo_model.fit(few_photos, epochs=2)
    photo_model.evaluate(photo_test)

# %% [markdown]
# `preprocess_input` does to an image what was done in pretraining, and images from 0 to 1 would
# look almost black to this body without an error. We haven't run the last cell with the real
# weights and photos: a test runs it with random ones, so you know that the code runs, and not how
# good it gets.
#
# <details><summary>In PyTorch and JAX</summary>
#
# In PyTorch `parameter.requires_grad_(False)` freezes a weight, and nothing else. A batch
# normalization changes its statistics until you call its `eval()`. `DistributedDataParallel` plans
# its messages when you wrap a model, so freeze before that, and wrap again after you unfreeze. In
# JAX you choose the weights by which you differentiate. If you differentiate by all of them,
# `optax.partition` with `optax.set_to_zero()` freezes some; `optax.masked` alone passes the other
# gradients on [unchanged](https://github.com/google-deepmind/optax/issues/159).
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. A model doesn't fit into your GPU. Does it fit when you freeze 99 % of
# it?</summary> Only if its gradients, optimizer state and activations were what was too much. The
# weights themselves stay on every replica.
# </details>
#
# <details><summary>2. After <code>layer.trainable = True</code> the loss continues to fall. How do
# you find out whether the layer learns?</summary> Compare its weights before and after a step, or
# count what a step sends.
# </details>
#
# <details><summary>3. You double the rank. What doubles?</summary> The numbers in the adapters, and
# with them the bytes of a step and Adam's state. The model's own weights and the forward pass
# through them stay.
# </details>
#
# <details><summary>4. Why must <i>B</i> start at zero, but not <i>A</i> as well?</summary> <i>B</i>
# at zero leaves the model as it was. With both at zero, neither has a gradient.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 19](../exercises/19_fine_tuning.ipynb): unfreeze the right layers, add adapters and
#   say what a step sends, merge them, and find a leak.
# - [Lesson 20](20_tpu.ipynb): what your CPU can tell you about a TPU.
# - [The glossary](../docs/glossary.md) explains the terms.
# - [LoRA](https://arxiv.org/abs/2106.09685) is the paper, and [Keras's
#   guide](https://keras.io/guides/transfer_learning/) has freezing and unfreezing on photos.
