# %% [markdown]
# # Save and load: a model that outlives its strategy
#
# A model can come back from its file with every prediction right, and then train as if it had lost
# its memory. You'll make one that does: its loss was falling steadily when you saved, and one step
# after the load it's about a tenth higher, although the file held everything. No error tells you,
# so in a long training run you'd pay for every hour until you noticed.
#
# What must be in a file, and what must arrive from it, so that training on another number of
# replicas goes on as if nothing had happened? After this lesson you can
#
# - say what a training run consists of, and which file keeps which part,
# - train on two [replicas](../docs/glossary.md#replica), save, and continue with four or with one,
# - make a load raise an error if it restored less than you expect,
# - change the learning rate without losing what the optimizer remembers.
#
# **Time:** {minutes}. **Needs:** [lesson 01](01_mirrored_strategy.ipynb) (the scope, copies of a
# variable) and an idea of what Adam remembers, but no GPU and no download.
#
# <details><summary>Do you remember? Lesson 07: which numbers does Adam keep for each
# weight?</summary>
#
# Two averages, one of its gradients and one of their squares. Today's question is which files keep
# them, and which loads bring them back.
# </details>

# %%
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.course.figures.underflow import draw_training
from distlab.course.lesson_08_save_and_load.figures import draw_differences, draw_move
from distlab.course.lesson_08_save_and_load.runs import (
    complaint,
    first_digits,
    max_difference,
    numbers_in,
    numbers_of,
    quiet,
    temporary_folder,
    train_on,
)

devices = dl.split_devices(4)
quiet()
folder = temporary_folder()
draw_move(replicas=2, moved_to=4)

# %% [markdown]
# ## What a training run consists of
#
# A training run that should continue tomorrow has four parts: the **architecture**, the
# **weights**, the settings that you gave to **compile**, and the **optimizer's state**. For Adam,
# this state is the number of steps, the learning rate, and two averages for each weight, so it's
# twice as large as the model itself. Here is a small model, trained on two replicas:

# %%
images, labels, data = first_digits()
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build():
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile(keras.optimizers.Adam(0.01), loss=loss_of)
    return model


dl.set_seed(1)
model = dl.distribute(build, dl.make_strategy("mirrored", devices=2))
model.fit(data, epochs=8, shuffle=False, verbose=0)
dl.show("numbers on each replica", numbers_of(model))

# %% [markdown]
# Together that's 7,232 numbers, and each of the two replicas has a copy of all of them. Now you
# save the model, and `numbers_in` counts what's in the file.

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
        "7,232": "The weights, two averages of Adam for each of them, the number of steps and the "
        "learning rate: one copy of each, however many replicas there are.",
        "2,410": "That would be so if a file kept only the weights. This one keeps the optimizer's "
        "state, too, because without it Adam would start from zero.",
        "14,464": "That would be so if a file kept what each replica has. But the copies are "
        "equal, so one is enough.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The file is like sheet music, which has each note once, however many violins play it. Nothing in
# it says that there were two replicas, so you can load it for four, or for one.
#
# > **Takeaway.** A training run is more than its weights. Its file keeps each number once, so it
# > fits any number of replicas.

# %% [markdown]
# ## Four formats
#
# Keras's `.keras` is one of four ways to save. Its `save_weights` writes a smaller file, and
# TensorFlow has a [checkpoint](../docs/glossary.md#checkpoint) and an export, a folder in the
# format SavedModel that holds the model's computation as a graph:

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
        "the checkpoint and model.weights.h5": "Both keep the optimizer's variables, while an "
        "export keeps only what it needs to predict.",
        "none": "That would be so if the optimizer's state were lost with every format. Both files "
        "with 7,232 numbers hold it.",
        "the checkpoint": "That would be so if `model.weights.h5` kept what its name says. It "
        "holds Adam's averages as well.",
        "all three": "That would be so if an export were made for more training. It computes "
        "predictions, and needs no optimizer for them.",
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
# > **Takeaway.** To train on, keep a `.keras` file, or keep your `build` together with the weights
# > or a checkpoint. From an export you can only predict.
#
# <details><summary>Fine print</summary>
#
# `tf.train.Checkpoint` has two pairs of methods: `save` numbers its files, and you load them with
# `restore`, while `write`, which we use here, doesn't number its file, and you load it with `read`.
# If you move a checkpoint, copy both of its files, `checkpoint.index` and
# `checkpoint.data-00000-of-00001`. What `write` returns is the beginning of these names.
# </details>

# %% [markdown]
# ## Load it elsewhere
#
# Each of these functions makes a model from a file, and `dl.distribute` will call it in the scope
# of a new strategy.


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


ways = {".keras": from_keras, ".weights.h5": from_weights, "Checkpoint": from_checkpoint}
strategies = {
    "none": dl.make_strategy("default"),
    "one device": dl.make_strategy("one_device"),
    "mirrored(4)": dl.make_strategy("mirrored", devices=4),
    "central storage(2)": dl.make_strategy("central_storage", devices=2),
}
expected = model(images).numpy()


def difference(load, strategy):
    return max_difference(dl.distribute(load, strategy)(images).numpy(), expected)


# %% [markdown]
# Under central storage, all replicas share one copy of each variable. Three files under four
# strategies make twelve loads, and none of them raises an error. In the picture, *equal* means that
# the predictions differ by less than 1e-6 from those of the saved model.

# %% tags=["predict"]
loads_guess = dl.predict(
    "Which of the twelve loads don't give the predictions of the saved model?",
    ["none: all twelve do", "those on a number of replicas other than two", "all of one file's"],
)

# %%
moved = {
    way: {name: difference(load, s) for name, s in strategies.items()} for way, load in ways.items()
}
draw_differences(moved, tolerance=1e-6, title="largest difference of a prediction")

# %% tags=["reveal"]
wrong = [way for way, row in moved.items() if min(row.values()) > 1e-6]
loads_guess.reveal(
    "all of one file's" if len(wrong) == 1 else "none: all twelve do",
    {
        "none: all twelve do": "That would be so if no error meant that something was restored. "
        "Four of these loads restored nothing.",
        "those on a number of replicas other than two": "That would be so if a file remembered its "
        "replicas. Each strategy makes its own copies of the file's numbers, as many as it needs.",
        "all of one file's": "The strategy makes no difference, but one of the three functions "
        "never finds what it's looking for.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The strategy makes no difference, because in each row the loads are right in all four columns or
# in none. The wrong row is the checkpoint's, so look at `from_checkpoint` again: we saved
# `Checkpoint(model=...)` and restored `Checkpoint(network=...)`. A checkpoint stores each variable
# under its path, such as `model/optimizer/_iterations`, and nothing in the file is called
# `network`. So nothing was restored, and the model kept the random weights of `build`.
#
# > **Takeaway.** Every file loads under every strategy. But a checkpoint goes by names, and if none
# > of them fits, it restores nothing and raises no error.
#
# <details><summary>Fine print</summary>
#
# TensorFlow does log a warning about *unrestored values*, but only when the object that `read`
# returned is deleted. This lesson hides it, together with less useful warnings, and in your own
# program you should read it.
# </details>

# %% [markdown] tags=["after-reveal"]
# ## What a restore tells you
#
# TensorFlow can't know whether you want a part of the file or all of it. So you say what you
# expect, to the object that `read` and `restore` return:
#
# | you say | it raises an error unless |
# |---|---|
# | `assert_existing_objects_matched()` | each variable that *you* have was in the file |
# | `assert_consumed()` | in addition, each variable *in the file* was used |
# | `expect_partial()` | never: it only silences a warning about what was not used |
#
# There's a second way to restore nothing, which is to misspell the folder's name. `Checkpoint.save`
# writes a numbered file and records the newest one in the folder, and `latest_checkpoint` reads
# that record:

# %% tags=["after-reveal"]
tf.train.Checkpoint(model=model).save(folder / "checkpoints" / "digits")
for name in ("checkpoints", "chekpoints"):
    newest = tf.train.latest_checkpoint(folder / name)
    dl.show(f"newest in {name}", newest and Path(newest).name)

status = tf.train.Checkpoint(model=build()).restore(newest)  # restore(None)

# %% [markdown] tags=["after-reveal"]
# The loop ended with the misspelled folder, so `newest` is None. Even `restore(None)` raises no
# error, because at the start of a new run there is no checkpoint yet, and the same line should run.
#
# One assertion finds both mistakes, `assert_existing_objects_matched`. Here `complaint` calls it
# and returns the text of its error:

# %% tags=["after-reveal"]
dl.show("restore(None)", complaint(status))
for name in ("network", "model"):
    read = tf.train.Checkpoint(**{name: build()}).read(written)
    dl.show(f"{name}=", complaint(read))

# %% [markdown] tags=["after-reveal"]
# So use the name under which you saved, and assert wherever you expect a checkpoint:


# %% tags=["after-reveal"]
def from_checkpoint():
    fresh = build()
    status = tf.train.Checkpoint(model=fresh).read(written)
    status.assert_existing_objects_matched()
    return fresh


ways["Checkpoint"] = from_checkpoint
cured = [difference(from_checkpoint, strategy) for strategy in strategies.values()]
dl.show("largest difference of a prediction", max(cured), below=1e-6)

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** A restore that finds nothing says nothing. Assert, on the object that it returns,
# > what you expect to have been found.
#
# <details><summary>Fine print</summary>
#
# At the start of a new run there's no checkpoint, so don't assert there. The assertion checks only
# variables that exist, so build the model first. The 6 objects in its text are all variables that
# `build` makes: the model's 4 weight arrays, the number of steps and the learning rate.
# </details>

# %% [markdown]
# ## Train on
#
# Now all predictions are equal, but does training go on as if nothing had happened? You train each
# model for two more epochs on the same data, and compare its weights with those of the model that
# never moved. This time, *equal* means that the weights differ by less than 1e-5.

# %% tags=["predict"]
on_guess = dl.predict(
    "From which of the three files does a training run continue as if it had never moved?",
    ["all three", ".keras and the checkpoint", ".keras and .weights.h5", "only .keras"],
)

# %%
curves = {"never moved": train_on(model)}


def went_on(way, strategy):
    loaded = dl.distribute(ways[way], strategy)
    curves[way] = train_on(loaded)
    return max_difference(loaded.get_weights(), model.get_weights())


further = {way: {name: went_on(way, s) for name, s in strategies.items()} for way in ways}
title = "largest difference of a weight, two epochs later"
draw_differences(further, tolerance=1e-5, title=title)

# %% tags=["reveal"]
on_guess.reveal(
    ".keras and the checkpoint",
    {
        ".keras and the checkpoint": "Both give Adam its averages back, so the next step is the "
        "one that would have followed. `.weights.h5` holds the averages, too, but they don't "
        "arrive.",
        "all three": "That would be so if everything that a file holds arrived. All three hold "
        "Adam's averages, as you counted, but from one of them they don't reach a new optimizer.",
        ".keras and .weights.h5": "That would be so if a checkpoint lost what has no place yet. It "
        "keeps it until there is one, and it's `.weights.h5` that doesn't.",
        "only .keras": "That would be so if only a file with the whole model could restore an "
        "optimizer. The checkpoint fills it as soon as it has variables.",
    },
)

# %% tags=["after-reveal"]
draw_training(
    {way: curves[way] for way in ("never moved", ".weights.h5", ".keras")},
    every_steps=1,
    level=("when saved", float(loss_of(labels, expected))),
)

# %% [markdown] tags=["after-reveal"]
# The loss of `.weights.h5` jumps, because Adam's averages and its number of steps start at 0 again.
# Adam then believes that training has just begun, when an average holds only one gradient. It
# divides this gradient by its own size, so each weight moves by about the full learning rate.
#
# The averages were in the file, so where did they go? An optimizer makes its averages when it's
# first used, or when you call its `build`. In `from_checkpoint` and `from_weights` the optimizer
# was new, and had no place for averages yet. Let's load first and build afterwards, and see whose
# averages arrive:

# %% tags=["after-reveal"]
loads = {
    "Checkpoint": lambda fresh: tf.train.Checkpoint(model=fresh).read(written),
    ".weights.h5": lambda fresh: fresh.load_weights(folder / "model.weights.h5"),
}
for way, load in loads.items():
    fresh = build()
    load(fresh)
    fresh.optimizer.build(fresh.trainable_variables)
    first_average = fresh.optimizer.variables[2]  # after the number of steps and the rate
    dl.show(f"{way}: averages arrived", bool(np.any(first_average)))

# %% [markdown] tags=["after-reveal"]
# **A checkpoint waits, and `load_weights` doesn't.** A checkpoint keeps its values until their
# variables are made, however late that is. `load_weights` looks once, and if the optimizer doesn't
# have as many variables as the file, it fills none of them, not even the number of steps, and
# merely warns. So **build the optimizer before you load:**


# %% tags=["after-reveal"]
def from_weights():
    fresh = build()
    fresh.optimizer.build(fresh.trainable_variables)
    fresh.load_weights(folder / "model.weights.h5")
    return fresh


ways[".weights.h5"] = from_weights
difference_later = went_on(".weights.h5", strategies["none"])
dl.show("max difference of a weight, two epochs later", difference_later, below=1e-5)

# %% [markdown] tags=["after-reveal"]
# With a checkpoint, the same line lets you use the stricter `assert_consumed`, which would complain
# about averages in the file that have no variable yet.
#
# > **Takeaway.** Right predictions show that the weights arrived, and nothing about the optimizer.
# > Build it before you load, and look at `optimizer.iterations` and at the next losses.
#
# <details><summary>Fine print</summary>
#
# The warning says *Skipping variable loading for optimizer 'adam', because it has 2 variables
# whereas the saved optimizer has 10 variables.* The 2 are the number of steps and the learning
# rate, and the 10 are these two and two averages for each of the 4 weight arrays. The lesson hides
# this warning, too.
# </details>

# %% [markdown]
# ## A different learning rate
#
# The training run was saved with `Adam(0.01)`, and now it should continue with 0.001. So you write
# 0.001 into your `build`, restore the checkpoint, and assert:


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
        "0.001, from your code": "That would be so if the rate were a setting of your code. Your "
        "code gave it its first value, but it's one of the numbers in the file, and the restore "
        "came later.",
        "0.001, and its averages are 0": "That would be so if the restore had skipped the "
        "optimizer. `assert_consumed` promises that everything in the file was used.",
    },
)

# %% [markdown] tags=["after-reveal"]
# So set the rate **after** the load, for example in one of these three ways, with a `.keras` file:

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

# %% [markdown] tags=["after-reveal"]
# All three have the new rate, but `compile` with a **new** optimizer throws away the loaded one,
# with its 40 steps and its averages, and this time you don't even get a warning. If you must
# compile, for example for a different loss, pass the loaded optimizer.
#
# > **Takeaway.** The file's learning rate wins over that of your code. Set a new one after the
# > load, and don't compile a new optimizer for it.
#
# <details><summary>If your learning rate is a schedule</summary>
#
# A `LearningRateSchedule` is no variable, so a checkpoint restores the number of steps and the
# averages, and the schedule of your code applies. A `.keras` file restores the schedule of the
# saved model, and then you can't set a number as the rate. If the saved run had a number as its
# rate, don't read its checkpoint into an optimizer with a schedule: all averages [move by one
# place](../docs/pitfalls.md#the-loss-jumps-after-the-rate-became-a-schedule), and if the optimizer
# isn't built, no error tells you.
# </details>

# %% [markdown]
# ## Loaded outside the scope
#
# So far `dl.distribute` called our functions in the scope of the strategy. Without it, write
#
# ```python
# with strategy.scope():
#     loaded = keras.saving.load_model(path)
# ```
#
# Variables get their copies when they're made, and loading makes them. If you load first and call
# `fit` outside the scope, it trains on one device while the others are idle. If you call `fit`
# inside the scope, it raises an `AssertionError` without any text.
#
# > **Takeaway.** Load inside the scope of the new strategy, because a load makes variables.
#
# ## What is in no file
#
# Even a file with all four parts doesn't hold everything that a training run remembers:
#
# | what | after the load |
# |---|---|
# | the place in the data | an epoch begins from its start, so save between epochs, as we did |
# | the global batch | 32 per replica make 128 on four replicas; keep 64, so that each has 16 |
# | a dropout layer's place in its random numbers | with a `seed`, its first masks come again |
# | what callbacks remember | the patience of `EarlyStopping`, for example, begins again |
#
# If your training run may stop at any step, use `dl.Resume` from lesson 11.
#
# > **Takeaway.** Move between epochs, and keep the global batch, because no file of a model knows
# > about either of them.
#
# ## Many workers: who saves?
#
# With many workers, each process has the same weights, so one file is enough. Still **every**
# worker calls `save`, at the same line of the program, because a variable may be spread over the
# replicas, and saving it then needs all of them. The file that counts is the
# [chief's](../docs/glossary.md#chief), which is the task called `chief`, or worker 0 if no task has
# that name. All others write to **a different path**, and delete it afterwards.
#
# > **Takeaway.** Every worker saves, each to a path of its own, and only the chief's file stays.
#
# <details><summary>Fine print</summary>
#
# Such a variable is a counter that is summed when you read it
# (`VariableSynchronization.ON_READ`). If only the chief saves it, the chief waits without end, and
# lesson 09 saves from real workers.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# In PyTorch you save `{"model": model.state_dict(), "optimizer": optimizer.state_dict()}`. Its
# `load_state_dict` raises an error for missing names by default, but you lose the optimizer's state
# if you forget to save or load it. To load for a different number of ranks, use
# `torch.distributed.checkpoint`. In JAX, weights and optimizer state are one tree of arrays, which
# Orbax saves, and restores for a different mesh.
# </details>

# %% [markdown]
# ## Extra: Export for predictions
#
# An export is the model and nothing that you do before it. Suppose that these digits came from a
# scanner as whole numbers, where 0 is ink and 255 is paper, and that `prepare` turned them into
# what the model saw in training. The people who call your export have to do the same:


# %%
def prepare(pixels):
    return 1 - tf.cast(pixels, tf.float32) / 255


def accuracy(scores):
    return float(np.mean(np.argmax(scores, axis=1) == labels))


pixels = tf.cast(tf.round(255 * (1 - images)), tf.uint8)  # as they come from the scanner
raw = tf.cast(pixels, tf.float32)
attempts = {"unprepared": raw, "divided": raw / 255, "exchanged": 255 - raw, "both": 1 - raw / 255}
right = {what: accuracy(exported.serve(given)) for what, given in attempts.items()}
for what, share in right.items():
    dl.show(f"{what}: accuracy", share, digits=1)

# %% [markdown]
# No attempt raises an error. Without exchanging ink and paper nearly every answer is wrong, and
# without the division the accuracy looks right, although all scores are about 255 times too large.
# So put `prepare` **into** the export. An `ExportArchive` takes any function of tensors, and a
# signature that says what goes in:


# %%
def classify(pixels):
    scores = model(prepare(pixels), training=False)
    return {"digit": tf.argmax(scores, axis=1)}


archive = keras.export.ExportArchive()
archive.track(model)  # whose variables to save
taken = tf.TensorSpec((None, 8, 8, 1), tf.uint8, name="pixels")
archive.add_endpoint("serve", classify, input_signature=[taken])
archive.write_out(folder / "service", verbose=False)

service = tf.saved_model.load(folder / "service")
answer = service.signatures["serving_default"](pixels=pixels)
same = np.array_equal(answer["digit"], np.argmax(model(images), axis=1))
dl.show("all 320 digits as the model says", same)

# %% [markdown]
# The archive saves its first endpoint as `serving_default` as well, the signature that TensorFlow
# Serving uses if a request names none.

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. You trained on eight replicas. How many copies of a weight are in
# <code>model.keras</code>?</summary>
#
# One, because all copies are equal. That's why you can load the file for any number of replicas.
# </details>
#
# <details><summary>2. After a load, all predictions are right to the last digit. What may still be
# missing?</summary>
#
# The optimizer's state, which no prediction needs. Look at `optimizer.iterations` and at the next
# losses.
# </details>
#
# <details><summary>3. <code>tf.train.Checkpoint(model=m).restore(path)</code> runs without an
# error. What do you know?</summary>
#
# Nothing, not even that the file exists, because `path` may be None. An assertion on what `restore`
# returns tells you more.
# </details>
#
# <details><summary>4. You load a model, and then you call <code>fit</code> inside
# <code>with strategy.scope():</code>. Why does it fail?</summary>
#
# Variables get their copies when they're made, and these were made before, without the strategy.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/08_save_and_load.ipynb): move a model, restore one part of a model,
#   and say which worker writes where.
# - [Lesson 09](09_multi_worker.ipynb): many workers, each one a process.
# - Your own model: save it in the middle of a training run, load it under a different strategy,
#   train both for one epoch, and compare the weights. If they differ, check that the optimizer was
#   built before the load, and then what is in no file.
# - Keras's guide to [saving](https://keras.io/guides/serialization_and_saving/) and TensorFlow's to
#   [checkpoints](https://www.tensorflow.org/guide/checkpoint) are the primary sources.
