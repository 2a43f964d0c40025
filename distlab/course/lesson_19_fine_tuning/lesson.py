# %% [markdown]
# # Transfer learning: which part learns again
#
# In 2024 a reader of Keras's guide to transfer learning
# [asked](https://github.com/keras-team/keras/issues/20285) whether a line of its code still
# protects a pretrained layer, as the text says. If it does not, training runs without an error, and
# the guide warns that the model can lose what it has learnt. Mistakes in freezing and unfreezing
# seldom stop a program: it runs, and only the model is worse. In this lesson you measure what each
# of your changes does.
#
# You carry a network from one task to another on two replicas. After each step you look at **which
# weights have moved**.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - say what freezing saves, and what it does not,
# - measure whether a transfer pays: from scratch, frozen and fine-tuned, by number of labels,
# - unfreeze a distributed model so that its next step trains the layers you chose,
# - keep the statistics of a BatchNormalization still, and find out what pretraining must not see.
#
# **Time:** {minutes}. **Needs:** lessons [01](01_mirrored_strategy.ipynb),
# [08](08_save_and_load.ipynb) and [14](14_scaling.ipynb). No GPU. Nothing is downloaded while
# `DOWNLOAD` below is `False`. With `True`, the last section fetches 0.1 GB of weights and 0.8 GB of
# photos.

# %% [markdown]
# ### Two questions on lessons 14 and 08
#
# 1. An all-reduce sends a tenth of the bytes. Which part of its time stays the same?
# 2. You restore a model's weights, but not its optimizer. What does Adam begin with?
#
# <details><summary>Answers</summary>
#
# 1. The latency, which each message costs whatever its size.
# 2. With zeros: its running means of the gradients and of their squares are lost.
# </details>

# %%
import numpy as np

import distlab as dl

DOWNLOAD = False  # True: the last section fetches 0.9 GB
dl.split_devices(2)
dl.show("data set", "digits, part of distlab")

# %%
import keras
import tensorflow as tf

sent = []


class CountedSums(tf.distribute.ReductionToOneDevice):
    def batch_reduce_implementation(self, how, pairs, options):
        arrays = [value.values[0] for value, _ in pairs]
        sent.extend(array.shape.num_elements() for array in arrays if array.shape != [2])
        return super().batch_reduce_implementation(how, pairs, options)


strategy = dl.make_strategy("mirrored", devices=2, cross_device_ops=CountedSums())
tf.get_logger().setLevel("ERROR")  # no reminders about retracing

# %% [markdown]
# With `cross_device_ops` you choose the object that does the all-reduce. Our strategies use
# `ReductionToOneDevice` on a CPU. `CountedSums` does the same, and notes in `sent` how many numbers
# are in each array that a step sends. (`value.values[0]` is the first replica's array. Arrays of
# two numbers are left out: in them the replicas exchange one number each, such as the loss, which a
# step checks for NaN.) It does so while the step is [traced](../docs/glossary.md#trace), so each
# traced step is counted once.
#
# ## Two tasks
#
# The **old task** has plenty of labels: tell the digits 0 to 4 apart. The **new task** is to tell 5
# to 9 apart. Suppose that labels are expensive there, and that we have ten for each digit.


# %%
def task(images, labels, digits):
    chosen = np.isin(labels, digits)
    return images[chosen], labels[chosen] - min(digits)


train, test = (next(iter(part.batch(2000))) for part in dl.load_dataset("digits"))
train, test = ([array.numpy() for array in part] for part in (train, test))
old_digits, new_digits = range(5), range(5, 10)
old_train, old_test = task(*train, old_digits), task(*test, old_digits)
new_train, new_test = task(*train, new_digits), task(*test, new_digits)
few = np.concatenate([np.flatnonzero(new_train[1] == digit)[:10] for digit in range(5)])
few_train = new_train[0][few], new_train[1][few]
dl.show("labelled images", {"old": len(old_train[1]), "new": len(few_train[1])})

# %% [markdown]
# ### Learn the old task
#
# The network has a *body*, which turns an image into 128 features, and a *head*, which turns the
# features into scores. `build` takes what we will vary: whether the body is frozen, and the
# learning rate.


# %%
def new_body():
    layers = [keras.Input((8, 8, 1))]
    for filters in (16, 32):
        layers.append(keras.layers.Conv2D(filters, 3, padding="same"))
        layers.append(keras.layers.BatchNormalization(momentum=0.9))
        layers += [keras.layers.ReLU(), keras.layers.MaxPooling2D()]
    return keras.Sequential([*layers, keras.layers.Flatten()], name="body")


def compile_with(model, rate):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])


def build(*, rate, frozen=False, classes=5, seed=14):
    keras.utils.set_random_seed(seed)
    body = new_body()
    body.trainable = not frozen
    head = keras.layers.Dense(classes, name="head")
    model = keras.Sequential([keras.Input((8, 8, 1)), body, head])
    compile_with(model, rate)
    return model


# %%
def fit(model, data, *, epochs=1, batch_size=16):
    model.fit(*data, batch_size=batch_size, epochs=epochs, verbose=0)


def accuracy(model, data):
    return model.evaluate(*data, batch_size=256, verbose=0)[1]


source = dl.distribute(lambda: build(rate=0.003), strategy)
fit(source, old_train, epochs=8, batch_size=64)
source_counts, knows = list(sent), source.get_layer("body").get_weights()
dl.show("old task, accuracy", accuracy(source, old_test), digits=2)

# %% [markdown]
# ## A new head on a frozen body
#
# `transferred` has the body's weights and a new head. `body.trainable = False` freezes the body.
# `build` sets it before `compile`. `moved_by` copies each layer's weights, trains for one epoch,
# and returns the layers whose weights differ.

# %%
transferred = dl.distribute(lambda: build(rate=0.01, frozen=True), strategy)
transferred.get_layer("body").set_weights(knows)


def moved_by(model, data):
    before = [[np.copy(weight) for weight in layer.get_weights()] for layer in model.layers]
    fit(model, data)
    pairs = zip(model.layers, before, strict=True)
    return [layer.name for layer, old in pairs if differ(old, layer.get_weights())]


def differ(some, others):
    return not all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


sent.clear()
dl.show("what an epoch moves", moved_by(transferred, few_train))

# %% tags=["predict"]
saved_guess = dl.predict(
    "The body is frozen, and the head has 645 of 5,637 numbers. Compared to a model that trains "
    "everything, what gets smaller on each replica?",
    [
        "the model's weights in memory",
        "the forward pass",
        "the all-reduce and the state of Adam",
        "all of them",
    ],
)

# %%
frozen_counts = list(sent)
sizes = {}
for name, model, counts in (
    ("everything learns", source, source_counts),
    ("the head learns", transferred, frozen_counts),
):
    adam = sum(variable.numpy().size for variable in model.optimizer.variables)
    sizes[name] = {"weights": model.count_params(), "sent": sum(counts), "Adam": adam}

# %% tags=["reveal"]
one, other = sizes.values()
smaller = {key for key in one if other[key] < one[key]}
saved_guess.reveal(
    {frozenset({"sent", "Adam"}): "the all-reduce and the state of Adam"}[frozenset(smaller)],
    {
        "the model's weights in memory": "Every replica still needs the whole body to compute "
        "features. It has its own copy, frozen or not.",
        "the forward pass": "Each image still passes through the whole body. What is left out is "
        "the backward pass below the lowest layer that learns.",
        "all of them": "The weights stay on every replica, and each image still goes through all "
        "of them. Only what exists for gradients gets smaller.",
        "the all-reduce and the state of Adam": "Both exist for gradients, and a frozen weight has "
        "none.",
    },
)

# %% tags=["after-reveal"]
for name, numbers in sizes.items():
    dl.show(f"{name}: numbers", numbers)
dl.show("bytes sent in a step", [4 * each["sent"] for each in sizes.values()])

# %% [markdown] tags=["after-reveal"]
# A frozen weight has no gradient, so nothing is sent for it and Adam keeps no state for it (two
# numbers for each weight that learns, plus its step and rate). The activations of the body need
# not be kept for a backward pass, either. **The weights and the forward pass stay.**
#
# There is one way around the forward pass. If you do not augment the images, and the body has no
# Dropout layer, a frozen body gives the same features in every epoch. Compute them once, store
# them, and train the head on those.
#
# The full model sends 6,117 numbers, and 5,541 of them are gradients. The other 576 belong to the
# BatchNormalizations, which normalise by the global batch under `dl.distribute`. For each of their
# 48 features a replica sends three numbers about its own rows: their mean, their squares and their
# count. The array has room for both replicas, so that makes 6 numbers a feature, and 6 more on the
# way back, for the gradient. Keras's own `fit` would send none of them (lesson 01). In a ring of
# two devices, each device would send as many bytes as these arrays have. [Lesson
# 12](12_ring_all_reduce.ipynb) counts the bytes for more devices.
#
# `trainable = False` has one more effect. It puts a BatchNormalization into *inference mode*: the
# layer normalizes by its stored statistics and does not update them. A Dropout layer does **not**
# change its mode: it still drops.

# %% tags=["after-reveal"]
dropout = keras.layers.Dropout(0.5, seed=1, trainable=False)
dl.show("a frozen dropout, in training", dropout(np.ones((1, 8)), training=True)[0])
fit(transferred, few_train, epochs=24)
frozen_accuracy = accuracy(transferred, new_test)
dl.show("new task, 10 labels a class", frozen_accuracy, digits=2)

# %% [markdown]
# ## How many labels is the old task worth?
#
# `benchmarks/label_curve.py` trained the new task with 1 to 140 labels a class, ten times for each
# number. Each time the body was pretrained again, and the labels were drawn again. The picture
# shows three ways, with 16 images in each step:
#
# - *scratch* knows nothing of the old task, and takes 100 steps with the rate 0.003,
# - *frozen* trains a head on the frozen body, in 100 steps with the rate 0.01,
# - *fine-tuned* continues from there for 100 more steps. It trains the convolutions as well, at a
#   tenth of the rate, and the BatchNormalizations stay frozen.

# %% tags=["predict"]
labels_guess = dl.predict(
    "With 10 labels a class, which way has the lowest accuracy on average?",
    ["scratch", "frozen", "fine-tuned"],
)

# %%
from distlab.course.lesson_19_fine_tuning.figures import draw_label_curve, recorded_accuracies

curves = recorded_accuracies()
draw_label_curve(curves, ("scratch", "frozen", "fine-tuned"))

# %% tags=["reveal"]
with_ten = {way: np.mean(curves[way][10]) for way in ("scratch", "frozen", "fine-tuned")}
labels_guess.reveal(
    min(with_ten, key=with_ten.get),
    {
        "scratch": "You usually pretrain because you hope that the old task helps. It may help if "
        "the old task has more variety than 728 images of five digits, so that its features also "
        "fit the new task.",
        "fine-tuned": "It continues from the frozen body for 100 more steps, at a small rate, and "
        "gains 3 percentage points.",
        "frozen": "The body knows what tells the digits 0 to 4 apart. While it is frozen, it "
        "cannot learn what tells 5 to 9 apart.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Points are means of the ten runs, and bars are the runs' standard deviations. With 1 label a
# class, the bars of all three overlap. Still, fine-tuning beats the frozen body in nine of ten
# runs, by 0.04 on average. From 10 labels on, freezing costs 3 to 4 percentage points.
# Fine-tuning makes up for that, but it is no better than *scratch*, which took half as many
# steps. **In these runs the transfer does not pay.**
#
# Fine-tuning has 200 steps in all. How much do the steps alone bring? In *head for 200 steps* the
# body stays frozen, and the head learns for 100 more steps at its own rate:

# %% tags=["after-reveal"]
for way in ("frozen", "head for 200 steps", "fine-tuned"):
    means = {labels: round(float(np.mean(curves[way][labels])), 3) for labels in (10, 30, 140)}
    dl.show(f"{way}, by labels", means)

# %% [markdown]
# With 10 labels a class, fine-tuning gains 3 percentage points. The steps bring about 1 of them,
# and the unfrozen body brings 2. With 30 labels it is the other way round. So give two ways the
# same number of steps before you say why one of them is better.
#
# Our own frozen body reached 0.96 with 10 labels, which is above all ten recorded runs: they range
# from 0.87 to 0.95, with a mean of 0.91. From run to run, the body and the labels differ. (Our
# batches differ from theirs, too: the last one of each of our epochs has 2 images, not 16.) So
# pretrain and draw more than once before you believe a difference of a few percentage points.
#
# Our old task may explain much of the result. It has 728 images of 5 classes, and a body keeps what
# tells these 5 apart. ImageNet has 1.2 million photos of 1,000 classes, and even after ImageNet the
# advantage vanishes with enough labels and steps ([He and others](https://arxiv.org/abs/1811.08883)
# show it for object detection on COCO). So measure the curve *scratch* as well: without it, the
# rise of the other two would look like a success.
#
# ## Unfreeze the body
#
# Now the body of `transferred` should learn as well. We unfreeze it and call `fit` again.

# %%
body = transferred.get_layer("body")
body.trainable = True

# %% tags=["predict"]
unfreeze_guess = dl.predict(
    "`transferred` has been trained, and its body is now trainable. Nothing else was changed. What "
    "does the next `fit` move?",
    ["the body and the head", "the head only", "nothing: it raises an error"],
)

# %%
moved = moved_by(transferred, few_train)

# %% tags=["reveal"]
unfreeze_guess.reveal(
    "the head only" if moved == ["head"] else "the body and the head",
    {
        "the body and the head": "`fit` runs a step that was traced when only the head was "
        "trainable. A Python attribute cannot change a traced step.",
        "nothing: it raises an error": "The traced step still fits the model, and it trains what "
        "it trained before. TensorFlow sees no error in that.",
        "the head only": "The traced step is kept until the next `compile`.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The first `fit` fixes two things: the list of gradients inside the traced step, and the variables
# for which the optimizer has state. Keras's documentation says that `compile` fixes them. In fact a
# change between `compile` and the first `fit` still counts. A later `compile` throws away the step.
# (Keras 3.15 contains a warning for this case, but its code never reaches it. A later version may
# show it.) What about the optimizer?

# %% tags=["after-reveal"]
try:
    transferred.compile(transferred.optimizer, transferred.loss)
    fit(transferred, few_train)
except (ValueError, NotImplementedError):
    dl.show("the old optimizer refuses the body", True)

# %% [markdown] tags=["after-reveal"]
# The old optimizer has state for the head only. It raises a `ValueError`, *Unknown variable*.
# (Before version 3.13, Keras could not write this message, and raised a `NotImplementedError` about
# that.) So fine-tuning needs a new one, and Adam starts from zero again. Its first steps are as
# long as the rate allows, however small the gradients are. So begin with a small rate.
#
# On TensorFlow, Keras has one more trap here. `model.trainable = True` does nothing if the model
# already counts as trainable, even if its layers are frozen. Set `trainable = True` on the part
# that you froze, or on each layer.
#
# On a model from `dl.distribute`, call `compile` as usual. In plain TensorFlow you build and
# compile the model inside `strategy.scope()`. Call the later `compile` there too, so that the new
# optimizer belongs to the strategy as well.

# %%
compile_with(transferred, 0.001)
sent.clear()
dl.show("what an epoch moves", moved_by(transferred, few_train))
dl.show("numbers sent", sum(sent))
dl.show("steps of the new optimizer", int(transferred.optimizer.iterations.numpy()))

# %% [markdown]
# `sent` was empty, and it fills only during a trace. So the step has been traced again, and it
# sends the body's gradients as well. Tracing takes seconds here, and longer for a larger model.
#
# ## A smaller rate for the body
#
# The head begins with random numbers. The body begins with weights that already work for similar
# images, and large steps can undo that. Here is fine-tuning with 0.001, and with the 0.01 of the
# head:

# %%
for way in ("frozen", "fine-tuned", "rate of the head"):
    means = {labels: round(float(np.mean(curves[way][labels])), 2) for labels in (1, 10, 140)}
    dl.show(f"{way}, by labels", means)

# %% [markdown]
# With 1 label a class the small rate is 0.08 better on average, and it wins in eight of ten runs.
# There, the large rate is even 0.04 worse than the frozen body. **From 10 labels on, the two rates
# are alike**, within the error bars. A body of two layers may recover from large steps if there are
# enough labels; we have not tested why. A tenth of the head's rate costs nothing here.
#
# ## Hold the statistics still
#
# A BatchNormalization has a moving mean and a moving variance. No gradient changes them. Each
# training step moves them towards the mean and the variance of its batch, and with a few rows these
# are noisy. Here is the smallest model that calls such a layer with
# `training=False`, in plain Keras and on one device.

# %%
norm = keras.layers.BatchNormalization()
inputs = keras.Input((4,))
outputs = keras.layers.Dense(1)(norm(inputs, training=False))
tiny = keras.Model(inputs, outputs)
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
        "0: the layer is in inference mode": "That was true in Keras 2, and the example in Keras's "
        "guide still says so. In Keras 3 `fit` calls a functional model with `training=True`, and "
        "that wins over the argument that you gave when you built it.",
        "5: the mean of the batch": "A moving mean takes a hundredth of the way in each step, with "
        "the default momentum of 0.99.",
        "0.05: it moved towards 5": "`fit` calls the model with `training=True`, and Keras 3 hands "
        "that down to every layer of a functional model.",
    },
)

# %% [markdown] tags=["after-reveal"]
# It is common advice to call the body with `training=False`. In a functional model that no longer
# holds the statistics still. Two other ways do. In a subclass of `keras.Model`, `training=False`
# inside `call` is obeyed. In any model, set `trainable = False` for each BatchNormalization and
# compile.
#
# We use the second way, on both replicas. `unfreeze_except_norms` counts the layers from the top,
# so `last=2` would unfreeze the upper two. It sets `trainable` of each layer, because of the trap
# above. The fits above have moved the body, so the cell first gives it its pretrained weights
# again, `knows`. The head continues from where it is.


# %%
def unfreeze_except_norms(body, *, last):
    body.trainable = True
    for place, layer in enumerate(reversed(body.layers)):
        is_norm = isinstance(layer, keras.layers.BatchNormalization)
        layer.trainable = place < last and not is_norm


body.set_weights(knows)
unfreeze_except_norms(body, last=len(body.layers))
compile_with(transferred, 0.001)
fit(transferred, few_train, epochs=20)
held = [np.array_equal(old, new) for old, new in zip(knows, body.get_weights(), strict=True)]
names = [weight.path.split("/")[-1] for weight in body.weights]
dl.show("did not move", [name for name, still in zip(names, held, strict=True) if still])
dl.show("accuracy, before and after", [frozen_accuracy, accuracy(transferred, new_test)], digits=2)

# %% [markdown]
# No number of a BatchNormalization has moved, and on this body fine-tuning gained nothing. Does it
# pay to hold the statistics still? In the recorded runs called *normalization in training*, the
# statistics moved, and gamma and beta learnt as well. Each replica normalized by its own 8 rows.

# %%
for way in ("fine-tuned", "normalization in training"):
    means = {labels: round(float(np.mean(curves[way][labels])), 2) for labels in (1, 10, 140)}
    dl.show(f"{way}, by labels", means)

# %% [markdown]
# Together, the two did **no harm**: the means differ by less than 0.01. With 140 labels a class,
# they were better in six runs, equal in four and worse in none; with 10, better in three, equal in
# two and worse in five. (What gamma and beta learnt may hide a small loss. We have not measured the
# statistics alone.) Keras's guide warns that moving statistics can destroy what the model has
# learnt. That did not happen with this body and these batches. We have not measured smaller
# batches. [Wu and He](https://arxiv.org/abs/1803.08494) show what batch statistics of 2 rows cost
# in training from scratch: a ResNet50's error on ImageNet is 10.6 percentage points above that with
# group normalization, which needs no batch statistics. Without a measurement of your own, hold them
# still.
#
# ## What pretraining must not see
#
# "Two labels a class" is a fair claim only if the body has not learnt from more labels of the new
# task. A test is fair only if the body has not seen its images. Suppose that a team pretrains on
# **all ten** digits. Its test images are still new, but the body has learnt from hundreds of labels
# of the new task. We give the new head two labels a class, on both bodies.

# %% tags=["numbers-within-0.05"]
leaky = dl.distribute(lambda: build(rate=0.003, classes=10), strategy)
fit(leaky, train, epochs=4, batch_size=64)
two = few[::5]  # two labels a class


def new_head_on(body_weights):
    model = dl.distribute(lambda: build(rate=0.01, frozen=True), strategy)
    model.get_layer("body").set_weights(body_weights)
    fit(model, (new_train[0][two], new_train[1][two]), epochs=30)
    return accuracy(model, new_test)


dl.show("honest", new_head_on(knows), digits=2)
dl.show("leaky", new_head_on(leaky.get_layer("body").get_weights()), digits=2)

# %% [markdown]
# That is one draw of ten images. Here are the means of the recorded runs, with a different body and
# different labels each time:

# %%
for way in ("frozen", "leaky"):
    means = {labels: round(float(np.mean(curves[way][labels])), 2) for labels in (1, 10, 140)}
    dl.show(f"{way}, by labels", means)

# %% [markdown]
# With 1 label a class the leak adds 0.16, in a comparison that claims to use five labels in all. A
# leak makes a result look better, so you have no reason to search for it.
#
# Real leaks are harder to find: the same photo under two names, for example. For its largest model,
# the team of [BiT](https://arxiv.org/abs/1912.11370) removed near duplicates of its test images
# from 300 million pretraining images. The accuracies hardly changed, but only the removal could
# show that.
#
# ## The same on photographs
#
# Here is the real case, with the same steps: a ResNet50 that knows ImageNet, and `cats_vs_dogs`
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
    compile_with(model, 0.001)
    return model


# %% [markdown]
# `preprocess_input` does to an image what was done in pretraining: swap the colours to BGR and
# subtract ImageNet's means from values up to 255. Images from 0 to 1 would raise no error, and look
# almost black to this body. `scale_images=False` leaves them as they are.

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
    compile_with(photo_model, 0.00001)
    photo_model.fit(few_photos, epochs=2)
    photo_model.evaluate(photo_test)

# %% [markdown]
# The rate of 0.00001 is a hundredth of the head's, smaller than ours above. It is a cautious choice
# that we have not tested. We have not run this cell with the real weights and photos. A test runs
# it with random weights on random images of TFDS's `mock_data`, so you know that the code runs. We
# do not know what accuracy you will get. With GPUs, leave out `split_devices`, and make the
# strategy with `dl.make_strategy("mirrored")` alone.
#
# <details><summary>In PyTorch and JAX</summary>
#
# In PyTorch `parameter.requires_grad_(False)` freezes a weight, and nothing else. A batch
# normalization changes its statistics until you call its `eval()`, and `model.train()` turns it on
# again. `DistributedDataParallel` plans its messages when you wrap a model, so freeze before that,
# and wrap again after you unfreeze. In JAX you choose the weights by which you differentiate. If
# you differentiate by all of them, `optax.partition` with `optax.set_to_zero()` freezes some.
# `optax.masked` alone does not: it passes the other gradients on
# [unchanged](https://github.com/google-deepmind/optax/issues/159).
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You freeze 99 % of a model. By how much does the memory for its weights
# shrink on each replica?</summary> Not at all. Gradients, optimizer state and kept activations
# shrink.
# </details>
#
# <details><summary>2. After <code>body.trainable = True</code> the loss continues to fall. How do
# you find out whether the body learns?</summary> Compare its weights before and after a step, or
# count what a step sends.
# </details>
#
# <details><summary>3. Why can the optimizer of the head not fine-tune the body?</summary> It was
# built for the head's variables, and has no state for the body's.
# </details>
#
# <details><summary>4. A functional model calls its body with <code>training=False</code>. What else
# does it need in Keras 3?</summary> <code>trainable = False</code> on each BatchNormalization,
# before <code>compile</code>.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 19](../exercises/19_fine_tuning.ipynb): unfreeze the right layers on two
#   replicas, say what a step sends, and find a leak. About 35 minutes.
# - [Lesson 20](20_tpu.ipynb): what a compiler on your CPU can tell about a TPU.
# - [The glossary](../docs/glossary.md) explains the terms.
# - [Keras's guide](https://keras.io/guides/transfer_learning/) has this workflow on photos. Since
#   the question of 2024, its notes also name freezing each BatchNormalization, as an alternative to
#   `training=False`. Its example still relies on `training=False` alone, which holds for Keras 2.
# - [Rethinking ImageNet pre-training](https://arxiv.org/abs/1811.08883) shows, for object
#   detection on COCO, that training from scratch reaches pretraining's accuracy if there are enough
#   labels and steps.
