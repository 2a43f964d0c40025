# %% [markdown]
# # Save and load: a model that outlives its strategy
#
# A long training run is loaded many times. The 175-billion-parameter model OPT trained for two
# months on 992 GPUs, and failing hardware forced [at least 35 manual
# restarts](https://arxiv.org/abs/2205.01068), each one from a file. A load that loses something
# often raises no error. The training then continues from random weights, or trains differently from
# before, and you pay for each hour until you notice.
#
# ## Overview
#
# After this lesson you can
#
# - say what a training run consists of, and which file keeps which part,
# - train on two [replicas](../docs/glossary.md#replica), save, and continue with four or with one,
# - make a load raise an error if it restored less than you expect,
# - in an extra section: export a model together with its preprocessing.
#
# It takes {minutes}. You need lesson 01 (the scope, copies of a variable) and an idea of
# what Adam remembers. No GPU, no download.
#
# **Do you remember?**
#
# <details><summary>Lesson 01: when does a variable get its copies?</summary>
# When it is made inside the strategy's scope. Today we make variables by loading them.
# </details>
#
# <details><summary>Lesson 07: which numbers does Adam keep for each weight?</summary>
# Two averages: of its gradients, and of their squares. Which files keep them?
# </details>

# %%
import distlab as dl
from distlab.course.lesson_08_save_and_load.figures import draw_move

devices = dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")
draw_move(replicas=2, moved_to=4)

# %% [markdown]
# If you see *TensorFlow is already running*, restart the kernel and run from the top.
#
# ## What a training run consists of
#
# A training run that should continue tomorrow has four parts: the **architecture**, the
# **weights**, the settings that you gave to **compile**, and the **optimizer's state**. For Adam,
# this state is the number of steps, the learning rate, and two averages for each weight. Here is a
# small model, trained on two replicas. (The first folded cell imports what we need and makes five
# batches of digits. The second has two helpers.)

# %% tags=["hide-input"]
import tempfile
import warnings
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import tensorflow as tf

from distlab.course.figures.underflow import draw_training
from distlab.course.lesson_08_save_and_load.figures import draw_differences
from distlab.course.runs.process_calls import call_in_process

tf.get_logger().setLevel("ERROR")  # no reminders that we compile many small functions
warnings.filterwarnings("ignore", message="Skipping")

(digits,) = dl.load_dataset("digits", splits=["train[:320]"], batch_size=320)
images, labels = next(iter(digits))
data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(64)

until_the_end = tempfile.TemporaryDirectory()  # removed with the kernel
folder = Path(until_the_end.name)
dl.show("batches", len(data))


# %% tags=["hide-input"]
def numbers_in(path):
    """How many numbers a file holds: .keras, .weights.h5 or a checkpoint."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as file:
            path = Path(file.extract("model.weights.h5", folder / "unpacked"))
    if path.suffix != ".h5":
        found = tf.train.list_variables(str(path))
        return sum(int(np.prod(shape)) for name, shape in found if "/" in name)
    sizes = []
    with h5py.File(path) as file:
        file.visititems(lambda name, item: sizes.append(getattr(item, "size", 0)))
    return sum(sizes)


def complaint(status, assertion="assert_existing_objects_matched"):
    """What an assertion says, of an object that `read` or `restore` returned."""
    try:
        getattr(status, assertion)()
    except AssertionError as error:
        return str(error).split(",")[0].strip(".")
    return "nothing"


# %%
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build():
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile(keras.optimizers.Adam(0.01), loss=loss_of)
    return model


dl.set_seed(1)
model = dl.distribute(build, dl.make_strategy("mirrored", devices=2))
model.fit(data, epochs=8, shuffle=False, verbose=0)
variables = {"weights": model.weights, "optimizer": model.optimizer.variables}
numbers = {name: sum(int(np.size(v)) for v in group) for name, group in variables.items()}
dl.show("numbers on each replica", numbers)

# %% [markdown]
# The optimizer's 4,822 numbers are two averages for each of the 2,410 weights, the number of steps
# and the learning rate. Together that is 7,232 numbers. Each of the two replicas has a copy, so
# both together have 2 · 7,232 = 14,464. Now we save the model, and count the numbers in the file
# with `numbers_in`, from the second folded cell.

# %% tags=["predict"]
size_guess = dl.predict(
    "How many of these numbers are in the file `model.keras`?",
    ["2,410", "7,232", "14,464"],
)

# %%
model.save(folder / "model.keras")
in_keras = numbers_in(folder / "model.keras")
dl.show("numbers in model.keras", in_keras)

# %% tags=["reveal"]
size_guess.reveal(
    f"{in_keras:,}",
    {
        "7,232": "2,410 weights, two averages of Adam for each weight, and 2 numbers of the "
        "optimizer: one copy of each, however many replicas there are.",
        "2,410": "Those are the weights. The file keeps the optimizer's state, too: without it "
        "Adam would start from zero.",
        "14,464": "The copies are equal, so one is enough. The file does not record replicas, so "
        "you can load it for any number of them.",
    },
)

# %% [markdown]
# ## Four formats
#
# There are three more ways to save: Keras's `save_weights`, TensorFlow's
# [checkpoint](../docs/glossary.md#checkpoint), and an export. The export is a folder in
# TensorFlow's format SavedModel, which also holds the model's computation as a graph.
#
# `tf.train.Checkpoint` has two pairs of methods. `save` numbers its files, and you load them with
# `restore`. `write` does not, and you load its file with `read`. Here we use `write` and `read`. A
# checkpoint is more than one file: `written`, in the next cell, is the beginning of two names,
# `checkpoint.index` and `checkpoint.data-00000-of-00001`. If you move a checkpoint, copy both.

# %%
model.save_weights(folder / "model.weights.h5")
written = tf.train.Checkpoint(model=model).write(str(folder / "checkpoint"))
model.export(folder / "exported", verbose=False)

# %% tags=["predict"]
state_guess = dl.predict(
    "Which of these three files hold Adam's averages?",
    ["none", "the checkpoint", "the checkpoint and model.weights.h5", "all three"],
)

# %%
exported = tf.saved_model.load(folder / "exported")
dl.show("in model.weights.h5", numbers_in(folder / "model.weights.h5"))
dl.show("in the checkpoint", numbers_in(Path(written)))
dl.show("in the export", sum(v.shape.num_elements() for v in exported.variables))

# %% tags=["reveal"]
state_guess.reveal(
    "the checkpoint and model.weights.h5",
    {
        "the checkpoint and model.weights.h5": "Both keep the optimizer's variables. An export "
        "keeps only what it needs to predict.",
        "none": "Both files with 7,232 numbers hold them. Only the export has 2,410.",
        "the checkpoint": "In spite of its name, `model.weights.h5` holds them as well.",
        "all three": "An export computes predictions. It needs no optimizer, and has none.",
    },
)

# %% [markdown] tags=["after-reveal"]
# | format | architecture | weights | compile | optimizer | to load it you need | made for |
# |---|---|---|---|---|---|---|
# | `.keras` | yes | yes | yes | yes | Keras, and the code of your own layers | more training |
# | `.weights.h5` | no | yes | no | yes | your `build` | a model whose code you keep |
# | `tf.train.Checkpoint` | no | yes | no | yes | your `build` | loops of your own |
# | `export` | as a graph | yes | no | no | TensorFlow | predictions |
#
# ## Load it elsewhere
#
# Each of these functions makes a model from a file. `dl.distribute` will call it in the scope of a
# new strategy.


# %%
def from_keras():
    return keras.saving.load_model(folder / "model.keras")


def from_weights():
    fresh = build()
    fresh.load_weights(folder / "model.weights.h5")
    return fresh


def from_checkpoint():
    fresh = build()
    tf.train.Checkpoint(network=fresh).read(written)
    return fresh


# %% tags=["hide-input"]
strategies = {
    "none": dl.make_strategy("default"),
    "one device": dl.make_strategy("one_device"),
    "mirrored(4)": dl.make_strategy("mirrored", devices=4),
    "central storage(2)": dl.make_strategy("central_storage", devices=2),
}
ways = {".keras": from_keras, ".weights.h5": from_weights, "Checkpoint": from_checkpoint}
expected = model(images).numpy()


def difference(predict):
    return float(np.abs(predict(images) - expected).max())


def difference_of_export(strategy):
    with strategy.scope():
        loaded = tf.saved_model.load(folder / "exported")
    return difference(loaded.serve)


def load_everywhere():
    found = {
        way: {name: difference(dl.distribute(load, s)) for name, s in strategies.items()}
        for way, load in ways.items()
    }
    return found | {"export": {name: difference_of_export(s) for name, s in strategies.items()}}


# %% [markdown]
# The four strategies are: none, one device, four mirrored replicas, and central storage with two
# replicas. (Under central storage, all replicas share one copy of each variable.) The export is
# loaded in the scope and called as a function. That makes 16 loads, and none of them raises an
# error. In the picture, *equal* means that the predictions differ by less than 1e-6.

# %% tags=["predict"]
loads_guess = dl.predict(
    "How many of the 16 loads give the predictions of the saved model?",
    ["16", "12", "8", "4"],
)

# %%
moved = load_everywhere()
draw_differences(moved, tolerance=1e-6, title="largest difference of a prediction")

# %% tags=["reveal"]
equal = sum(each < 1e-6 for row in moved.values() for each in row.values())
loads_guess.reveal(
    str(equal),
    {
        "12": "Three of the four formats arrive under every strategy, and one never arrives.",
        "16": "No load raises an error, and still four of them restore nothing.",
        "8": "The strategy makes no difference, so each format counts 4 or 0. Only one counts 0.",
        "4": "Most of these loads are right: the strategy makes no difference. But one of the "
        "formats never arrives.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The strategy makes no difference: in each row, the loads are right in all four columns or in
# no column. One row is wrong, without an error. Look at `from_checkpoint` again: we saved
# `Checkpoint(model=...)` and restored `Checkpoint(network=...)`. A checkpoint stores each variable
# under its path, such as `model/optimizer/_iterations`. Nothing in the file is called `network`, so
# nothing was restored, and the model kept the random weights of `build`. (TensorFlow logs a warning
# about *unrestored values*, when the object that `read` returned is deleted. This lesson's import
# cell hides it, together with less useful warnings. In your own program, read it.)
#
# ## What a restore tells you
#
# TensorFlow cannot know whether you want a part of the file or all of it. So you must say what you
# expect, to the object that `read` and `restore` return:
#
# | you say | it raises an error unless |
# |---|---|
# | `assert_existing_objects_matched()` | each variable that *you* have was in the file |
# | `assert_consumed()` | in addition, each variable *in the file* was used |
# | `expect_partial()` | never: it only silences a warning about what was not used |
#
# A second common mistake: you misspell the folder's name. `Checkpoint.save` writes a numbered file,
# and records the newest one in the folder. `latest_checkpoint` reads that record:

# %%
tf.train.Checkpoint(model=model).save(folder / "checkpoints" / "digits")
for name in ("checkpoints", "chekpoints"):
    newest = tf.train.latest_checkpoint(folder / name)
    dl.show(f"newest in {name}", newest and Path(newest).name)

status = tf.train.Checkpoint(model=build()).restore(newest)  # restore(None)

# %% [markdown]
# The loop ended with the misspelled folder, so `newest` is None. `restore(None)` runs without an
# error, too: at the start of a new run there is no checkpoint, and the same line should run.
#
# The same assertion finds both mistakes. `complaint`, from the second folded cell, calls
# `assert_existing_objects_matched` and returns the error's text:

# %%
dl.show("restore(None)", complaint(status))
for name in ("network", "model"):
    read = tf.train.Checkpoint(**{name: build()}).read(written)
    dl.show(f"{name}=", complaint(read))

# %% [markdown]
# The 6 objects are all variables that `build` makes: the model's 4 weight arrays, and the
# optimizer's number of steps and learning rate.
#
# The cure: use the name under which you saved, and assert wherever you expect a checkpoint. (At the
# start of a new run there is none. The assertion checks only variables that exist, so build the
# model first.)


# %%
def from_checkpoint():
    fresh = build()
    status = tf.train.Checkpoint(model=fresh).read(written)
    status.assert_existing_objects_matched()
    return fresh


ways["Checkpoint"] = from_checkpoint
cured = [difference(dl.distribute(from_checkpoint, s)) for s in strategies.values()]
dl.show("largest difference of a prediction", max(cured), below=1e-6)

# %% [markdown]
# ## Train on
#
# Now all predictions are equal. Do the models also train in the same way? We train each one for two
# more epochs on the same data, and compare its weights with the model that never moved. This
# time, *equal* means that the weights differ by less than 1e-5.

# %% tags=["predict"]
on_guess = dl.predict(
    "From which of the three files does a training run continue as if it had never moved?",
    ["all three", ".keras and the checkpoint", ".keras and .weights.h5", "only .keras"],
)

# %% tags=["hide-input"]
curves = {}


def train_on(way, model):
    curves[way] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: curves[way].append(
            float(loss_of(labels, model(images)))
        )
    )
    model.fit(data, epochs=2, callbacks=[note], shuffle=False, verbose=0)
    return model


def apart(one, other):
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return float(max(np.abs(a - b).max() for a, b in pairs))


def went_on(way, strategy):
    return apart(train_on(way, dl.distribute(ways[way], strategy)), model)


# %%
train_on("never moved", model)
further = {way: {name: went_on(way, s) for name, s in strategies.items()} for way in ways}
title = "largest difference of a weight, two epochs later"
draw_differences(further, tolerance=1e-5, title=title)

# %% tags=["reveal"]
on_guess.reveal(
    ".keras and the checkpoint",
    {
        ".keras and the checkpoint": "Both give Adam its averages back, and so the next step is "
        "the one that would have followed. `.weights.h5` holds the averages, too, but they do not "
        "arrive.",
        "all three": "All three files hold Adam's averages, as you counted. But what a file holds "
        "need not arrive in a new optimizer, and from one of the files it does not.",
        ".keras and .weights.h5": "The checkpoint trains as before, and `.weights.h5` does not, "
        "although both files hold the same 7,232 numbers.",
        "only .keras": "The checkpoint does it as well: it fills the optimizer as soon as the "
        "optimizer has variables.",
    },
)

# %% tags=["hide-input", "after-reveal"]
draw_training(
    {way: curves[way] for way in ("never moved", ".weights.h5", ".keras")},
    every_steps=1,
    level=("when saved", float(loss_of(labels, expected))),
)

# %% [markdown] tags=["after-reveal"]
# The loss of `.weights.h5` jumps. Adam's averages and its number of steps start at 0 again. So
# Adam's bias correction, which scales the averages up in the first steps because they started at 0,
# treats the next step as the first one. The corrected averages then hold only the next gradient and
# its square, and Adam divides each gradient by its own size. So each weight moves by about the full
# learning rate, unless its gradient is 0 or almost 0.
#
# Why did the checkpoint not lose them? An optimizer makes its averages when it is first used, or
# when you call its `build`. In both `from_checkpoint` and `from_weights` the optimizer was new, and
# there was no place for the averages yet. Here we load first and build afterwards. (The optimizer's
# `variables` are the number of steps, the learning rate, and then the averages, so `variables[2]`
# is the first average.)

# %% tags=["after-reveal"]
loads = {
    "Checkpoint": lambda fresh: tf.train.Checkpoint(model=fresh).read(written),
    ".weights.h5": lambda fresh: fresh.load_weights(folder / "model.weights.h5"),
}
for way, load in loads.items():
    fresh = build()
    load(fresh)
    fresh.optimizer.build(fresh.trainable_variables)
    dl.show(f"{way}: averages arrived", bool(np.any(fresh.optimizer.variables[2])))

# %% [markdown] tags=["after-reveal"]
# A checkpoint keeps the values and fills each variable **later**, when the variable is made.
# `load_weights` looks only **now**. If the optimizer does not have as many variables as the file,
# `load_weights` fills none of them, not even the number of steps. It raises no error, and only
# warns: *Skipping variable loading for optimizer 'adam', because it has 2 variables whereas the
# saved optimizer has 10 variables.* The 2 are the number of steps and the learning rate. The 10 are
# these two, and two averages for each of the 4 weight arrays. (The lesson switched this warning
# off. In your own program, read it.)
#
# The cure is one line: **build the optimizer before you load.**


# %%
def from_weights():
    fresh = build()
    fresh.optimizer.build(fresh.trainable_variables)
    fresh.load_weights(folder / "model.weights.h5")
    return fresh


ways[".weights.h5"] = from_weights
dl.show("two epochs later, apart by", went_on(".weights.h5", strategies["none"]), below=1e-5)

# %% [markdown]
# The same line lets you use the stricter assertion for a checkpoint. `assert_consumed` complains
# about numbers in the file that have no variable yet:

# %%
for is_built in (False, True):
    fresh = build()
    if is_built:
        fresh.optimizer.build(fresh.trainable_variables)
    read = tf.train.Checkpoint(model=fresh).read(written)
    said = complaint(read, "assert_consumed")
    dl.show("optimizer built first" if is_built else "not built", said.partition(":")[0])

# %% [markdown]
# ## A different learning rate
#
# We saved a training run with Adam(0.01). Now it should continue with 0.001, so you write 0.001
# into your `build`, restore the checkpoint, and assert.


# %%
def build_with(rate):
    fresh = build()
    fresh.compile(keras.optimizers.Adam(rate), loss=loss_of)
    fresh.optimizer.build(fresh.trainable_variables)
    return fresh


slower = build_with(0.001)
status = tf.train.Checkpoint(model=slower).read(written).assert_consumed()

# %% tags=["predict"]
rate_guess = dl.predict(
    "With which learning rate does `slower` train now?",
    ["0.001, from your code", "0.01, from the file", "0.001, and its averages are 0"],
)

# %%
rate = float(slower.optimizer.learning_rate)
dl.show("learning rate", rate, digits=3)
dl.show("steps that the optimizer knows", int(slower.optimizer.iterations))

# %% tags=["reveal"]
rate_guess.reveal(
    "0.01, from the file" if abs(rate - 0.01) < 1e-6 else "0.001, from your code",
    {
        "0.01, from the file": "The learning rate is a variable of the optimizer, so the file "
        "overwrites the value of your code.",
        "0.001, from your code": "Your code gave the rate its first value. The restore came later, "
        "and the rate is one of the numbers in the file.",
        "0.001, and its averages are 0": "Everything was restored, the averages as well as the "
        "rate: that is what `assert_consumed` promises.",
    },
)

# %% [markdown] tags=["after-reveal"]
# So set the rate **after** the load. Here are three attempts with a `.keras` file:

# %% tags=["after-reveal"]
for way in ("set the rate", "compile with a new optimizer", "compile with the loaded optimizer"):
    loaded = from_keras()
    if way == "compile with a new optimizer":
        loaded.compile(keras.optimizers.Adam(0.001), loss=loss_of)
    else:
        loaded.optimizer.learning_rate = 0.001
    if way == "compile with the loaded optimizer":
        loaded.compile(loaded.optimizer, loss=loss_of)
    known = int(loaded.optimizer.iterations)
    dl.show(way, f"rate {float(loaded.optimizer.learning_rate):.3f}, {known} steps known")

# %% [markdown]
# All three have the new rate. But `compile` with a **new** optimizer loses the loaded one, and its
# 40 steps and averages, without a warning. To change only the rate, do not compile. If you must
# compile, for example for a different loss, pass the loaded optimizer.
#
# <details><summary>If your learning rate is a schedule</summary>
#
# A `LearningRateSchedule` is no variable. A checkpoint then holds no rate: it restores the number
# of steps and the averages, and the schedule of your code applies. A `.keras` file restores the
# schedule of the saved model, and you cannot set a number as the rate afterwards. If the saved
# run had a number as its rate, do not read its checkpoint into an optimizer with a schedule. The
# file has one variable more, so the places of the averages differ by one. If the optimizer is
# built already, `read` raises an error. If it is not, nothing warns you. Each average of the
# gradients then ends up where the average of their squares should be.
# </details>
#
# ## Loaded outside the scope
#
# `dl.distribute` called our functions in the scope. Without it, write
#
# ```python
# with strategy.scope():
#     loaded = keras.saving.load_model(path)
# ```
#
# Variables get their copies when they are made, and loading makes them. If you load first, two
# things can happen:
#
# - You call `fit` outside the scope. It trains on one device, and all further devices are idle.
# - You call `fit` inside the scope. It raises an `AssertionError` without any text.
#
# The lesson runs neither of the two. distlab's tests run both.
#
# <details><summary>What is in no file</summary>
#
# - The place in the data. We saved between epochs, where there is none.
# - A dropout layer's place in its random numbers. A loaded layer with a `seed` begins them again,
#   so its masks are those of the first steps, on one device and on replicas alike.
# - The global batch. If you keep 64 on four replicas, each one has 16: the same training. If you
#   keep 32 <i>per replica</i>, you train with 128.
# - What callbacks remember, such as the patience of <code>EarlyStopping</code>.
#
# <code>dl.Resume</code> is for a training run that may stop at any step: see lesson 11.
# </details>
#
# ## Many workers: who saves?
#
# With many workers, each process has the same weights, and one file is enough. The rule has three
# parts:
#
# - **Every** worker calls `save`, at the same line of the program.
# - The **chief's** file counts. The [chief](../docs/glossary.md#chief) is the task called `chief`,
#   or worker 0 if no task has that name.
# - Every worker but the chief writes to **a different path**, and deletes it afterwards.
#
# <details><summary>Why must every worker save?</summary>
# Some variables are spread over the replicas, such as a counter that is summed when you read it
# (<code>VariableSynchronization.ON_READ</code>). To save it, every replica must send its part. If
# only the chief saves such a counter, it waits without end. Lesson 09 saves from real workers.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
# PyTorch saves <code>{"model": model.state_dict(), "optimizer": optimizer.state_dict()}</code>.
# <code>load_state_dict</code> raises an error for missing names by default, and the optimizer's
# state is lost if you forget to save or load it. <code>torch.distributed.checkpoint</code> loads
# for a different number of ranks. JAX: weights and optimizer state are one tree of arrays, which
# Orbax saves and restores for a different mesh.
# </details>
#
# ## Extra: Export for predictions
#
# Suppose that these digits came from a scanner as whole numbers, where 0 is ink and 255 is paper.
# Before training, this function inverted and scaled them: paper became 0, and ink became 1.


# %%
def prepare(pixels):
    return 1 - tf.cast(pixels, tf.float32) / 255


pixels = tf.cast(tf.round(255 * (1 - images)), tf.uint8)  # as they come from the scanner
dl.show("prepared, off by", np.abs(prepare(pixels) - images).max(), below=1e-6)

# %% [markdown]
# We send our export to the people with the scanner. It takes images and gives scores. About 90 % of
# the images that we trained on get the right digit. They pass their raw pixels to `serve`:

# %%
try:
    exported.serve(pixels)
except TypeError as error:
    print(type(error).__name__ + ":", str(error).partition("`")[2].partition("`. ")[0])

# %% [markdown]
# The error is about the type only: the export does not convert uint8 to float32 by itself. So they
# do that, and no error is left. Without `prepare` two things are still wrong: ink and paper are
# exchanged, and the numbers are up to 255 times too large.

# %% tags=["predict"]
accuracy_guess = dl.predict(
    "They do one half of `prepare` before they call the export. Which half alone gives an accuracy "
    "of about 90 %?",
    [
        "to divide by 255",
        "to exchange ink and paper: 255 - pixels",
        "either half",
        "neither: it needs both",
    ],
)


# %% tags=["hide-input"]
def accuracy(scores):
    return float(np.mean(np.argmax(scores, axis=1) == labels))


# %%
raw = tf.cast(pixels, tf.float32)
attempts = {"unprepared": raw, "divided": raw / 255, "exchanged": 255 - raw, "both": 1 - raw / 255}
right = {what: accuracy(exported.serve(given)) for what, given in attempts.items()}
for what, share in right.items():
    dl.show(f"{what}: accuracy", share, digits=1)

# %% tags=["reveal"]
halves = (right["divided"] > 0.8, right["exchanged"] > 0.8)
accuracy_guess.reveal(
    {
        (True, False): "to divide by 255",
        (False, True): "to exchange ink and paper: 255 - pixels",
        (True, True): "either half",
    }.get(halves, "neither: it needs both"),
    {
        "to exchange ink and paper: 255 - pixels": "Without the division all scores are about "
        "255 times larger, and the largest of ten mostly stays the largest.",
        "to divide by 255": "The shapes are there, but ink and paper are exchanged. Fewer than 5 % "
        "of the digits are right, and a guess gets 10 %.",
        "either half": "Divided by 255, ink and paper are still exchanged. Fewer than 5 % of the "
        "digits are right, and a guess gets 10 %.",
        "neither: it needs both": "The division changes the size of the scores, and you need only "
        "to know which one is the largest.",
    },
)

# %% [markdown] tags=["after-reveal"]
# This network has only `relu`, so pixels that are 255 times too large make all scores about 255
# times too large (up to the biases). With a sigmoid in the network you could not count on that. So
# an accuracy can look right although half of `prepare` is missing. A softmax turns such large
# scores into 0 and 1, as if the model were sure. And no error tells you.
#
# What you do before the model is no part of the model. So put it **into** the export. An
# `ExportArchive` takes any function of tensors, and a signature that says what goes in: raw pixels,
# any number of images. `track` tells the archive whose variables to save. `add_endpoint` gives the
# function the name `serve`. The archive also saves its first endpoint as `serving_default`, the
# signature that the server TensorFlow Serving uses if a request names none.


# %%
def classify(pixels):
    scores = model(prepare(pixels), training=False)
    return {"digit": tf.argmax(scores, axis=1)}


archive = keras.export.ExportArchive()
archive.track(model)
taken = tf.TensorSpec((None, 8, 8, 1), tf.uint8, name="pixels")
archive.add_endpoint("serve", classify, input_signature=[taken])
archive.write_out(folder / "service", verbose=False)

# %% [markdown]
# Now the scanner's program: a new process, where Keras cannot even be imported. (`call_in_process`
# runs a function in a new Python process.)


# %%
def scanner(folder):
    import sys

    sys.modules["keras"] = None  # from here on `import keras` raises an error
    import numpy as np
    import tensorflow as tf

    service = tf.saved_model.load(f"{folder}/service")
    answer = service.signatures["serving_default"](pixels=tf.constant(np.load(f"{folder}/raw.npy")))
    return {"digits": answer["digit"].numpy().tolist(), "has fit": hasattr(service, "fit")}


np.save(folder / "raw.npy", pixels)
there = call_in_process(scanner, str(folder), timeout_secs=120).result
ours = np.argmax(model(images), axis=1).tolist()
dl.show("all 320 digits as the model says", there["digits"] == ours)
dl.show("the export has fit", there["has fit"])

# %% [markdown]
# To get its digits, the scanner's program needs only TensorFlow and the folder: no Keras, no
# `build`, no `prepare` and no strategy. But the loaded object has no `fit`, and an export has no
# optimizer. To train it, you would write the loop yourself, and Adam would start from zero. So keep
# the `.keras` file for more training.
#
# ## Check yourself
#
# <details><summary>1. You trained on eight replicas. How many copies of a weight are in
# <code>model.keras</code>?</summary>
# One. So you can load the file for any number of replicas.
# </details>
#
# <details><summary>2. After a load, all predictions are right to the last digit. What may still be
# missing?</summary>
# The optimizer's state. Look at <code>optimizer.iterations</code> and at the
# next losses.
# </details>
#
# <details><summary>3. <code>tf.train.Checkpoint(model=m).restore(path)</code> runs without an
# error. What do you know?</summary>
# Nothing, not even that the file exists: <code>path</code> may
# be None. An assertion on what
# <code>restore</code> returns tells you more.
# </details>
#
# <details><summary>4. You load a model, and then you call <code>fit</code> inside
# <code>with strategy.scope():</code>. Why does it fail?</summary>
# Variables get their copies when they are made. These were made before, without the strategy.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/08_save_and_load.ipynb): move a model, restore one part of a model,
#   export a model, and say which worker writes where.
# - [Lesson 09](09_multi_worker.ipynb): many workers, each one a process.
# - Your own model: save it in the middle of a training run, load it under a different strategy,
#   train both for one epoch, and compare the weights. If they differ, read *What is in no file*
#   above, and check that the optimizer was built before the load.
# - [The glossary](../docs/glossary.md) has every term.
# - Primary sources: Keras's guide to
#   [saving](https://keras.io/guides/serialization_and_saving/), and TensorFlow's to
#   [checkpoints](https://www.tensorflow.org/guide/checkpoint).
