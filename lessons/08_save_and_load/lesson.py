# %% [markdown]
# # Save and load: a model that outlives its strategy
#
# ## Overview
#
# After this lesson you can
#
# - say what a training is made of, and which part of it is in which file,
# - train on two replicas, save, and go on with four, or with one, as if nothing had happened,
# - make a restore fail that would have restored nothing,
# - notice that an optimizer was lost, though every prediction is right,
# - say which worker's file counts, and why the others write one too,
# - export a model so that whoever calls it needs neither your code nor your preprocessing.
#
# It takes about 35 minutes. You need lesson 01 (the scope, copies of a variable) and an idea of
# what Adam remembers. No GPU, no download. One section runs two worker processes; on Windows it
# needs WSL2.
#
# **What it adds.** Until now each model ended with its kernel. Now it stays, and moves:
#
# ```diff
#   model = dl.distribute(build, two_replicas)
#   model.fit(data)
# + model.save("model.keras")
# + model = dl.distribute(lambda: keras.saving.load_model("model.keras"), four_replicas)
# + model.fit(data)
# ```
#
# **Do you remember?**
#
# <details><summary>Lesson 07: Adam, float32. How many numbers are kept for each weight, activations
# and gradients not counted?</summary>
# Three: the weight, and Adam's two averages. Today we look for all three in the file.
# </details>
#
# <details><summary>Lesson 06: a run was stopped and started again from its weights. What did it
# get wrong?</summary>
# It began its data anew. The place in the data is no weight, so no model file holds it.
# </details>

# %%
import distlab as dl

# %load_ext distlab
devices = dl.split_devices(4)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# (If that says *TensorFlow is already running*: restart the kernel and run from the top. The line
# `%load_ext` begins to prepare worker processes in the background, for later.)

# %%
import shutil
import tempfile
import warnings
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import tensorflow as tf

from distlab.pictures.saving import draw_differences
from distlab.pictures.underflow import draw_training

tf.get_logger().setLevel("ERROR")  # no reminders that we compile many small functions

(digits,) = dl.load_dataset("digits", splits=["train[:320]"], batch_size=320)
images, labels = next(iter(digits))
data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(64)

until_the_end = tempfile.TemporaryDirectory()  # removed with the kernel
folder = Path(until_the_end.name)
dl.show("batches", len(data))

# %% [markdown]
# ## What a training is made of
#
# A small model, trained on two replicas.


# %%
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build():
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile(keras.optimizers.Adam(0.01), loss=loss_of, metrics=["accuracy"])
    return model


dl.set_seed(1)
two = dl.make_strategy("mirrored", devices=2)
model = dl.distribute(build, two)
model.fit(data, epochs=8, shuffle=False, verbose=0)
dl.show("loss", float(loss_of(labels, model(images))), digits=1)

# %% [markdown]
# What does this model consist of, so that it could go on tomorrow? Four things:
#
# - its **architecture**: which layers, and how they are joined,
# - its **weights**,
# - what `compile` was told: which optimizer with which rate, which loss,
# - the **optimizer's state**: how many steps it took, and for Adam two averages of each gradient.
#
# (Metrics begin anew in each epoch, so no file keeps them.)

# %%
variables = {"weights": model.weights, "optimizer": model.optimizer.variables}
numbers = {name: sum(int(np.size(v)) for v in kept) for name, kept in variables.items()}
dl.show("numbers", numbers)
dl.show("together", sum(numbers.values()))

# %% [markdown]
# The larger part is the optimizer's. And each number is there twice, once on each replica.
#
# **Predict:** how many numbers are in the file?

# %%
model.save(folder / "model.keras")
with zipfile.ZipFile(folder / "model.keras") as file:
    dl.show("a zip file of", sorted(file.namelist()))
    file.extract("model.weights.h5", folder / "unpacked")


def numbers_in(h5_file):
    sizes = []
    with h5py.File(h5_file) as file:
        file.visititems(lambda name, item: sizes.append(getattr(item, "size", 0)))
    return sum(sizes)


dl.show("numbers in it", numbers_in(folder / "unpacked" / "model.weights.h5"), expected=7232)

# %% [markdown]
# Each once. A file knows nothing of replicas; it gets the first copy of each variable. That is
# why a model can move to any number of them. (And it is why copies must be equal: in lesson 01 you
# saw how they drift apart. A file keeps the first, and the others are gone.)
#
# ## Four ways to keep it

# %%
model.save_weights(folder / "model.weights.h5")
written = tf.train.Checkpoint(model=model).write(str(folder / "checkpoint"))
model.export(folder / "exported", verbose=False)

# %% [markdown]
# `save_weights` is the smaller sister of `save`. The checkpoint is TensorFlow's: it holds the
# variables of any object that you name, also those of a loop without Keras. `export` is for whoever
# wants predictions.
#
# **Predict:** which of these three hold the optimizer's state?

# %%
in_checkpoint = dict(tf.train.list_variables(written))
exported = tf.saved_model.load(folder / "exported")

dl.show("in model.weights.h5", numbers_in(folder / "model.weights.h5"))
dl.show("in the checkpoint", sum(int(np.prod(s)) for n, s in in_checkpoint.items() if "/" in n))
dl.show("in the export", sum(v.shape.num_elements() for v in exported.variables))

# %% [markdown]
# | | architecture | weights | optimizer | to load it you need | made for |
# |---|---|---|---|---|---|
# | `.keras` | yes | yes | yes | only Keras | a model to go on with |
# | `.weights.h5` | no | yes | yes | your `build` | the same model, in small |
# | `tf.train.Checkpoint` | no | yes | yes | your `build` | loops of your own |
# | `export` | as a graph | yes | no | only TensorFlow | predictions |
#
# (Layers or losses that you wrote yourself are code: `.keras` keeps their names and settings, and
# asks for the classes when it is loaded.)

# %% [markdown]
# ## The same predictions everywhere
#
# Now somewhere else: four other strategies. Each of these functions makes a model out of a file.
# They are what `dl.distribute` calls `build`: it runs them in the scope.


# %%
def from_keras():
    return keras.saving.load_model(folder / "model.keras")


def from_weights():
    fresh = build()
    with warnings.catch_warnings(action="ignore"):  # what it says comes further below
        fresh.load_weights(folder / "model.weights.h5")
    return fresh


def from_checkpoint():
    fresh = build()
    tf.train.Checkpoint(network=fresh).read(written)
    return fresh


# %% [markdown]
# An export is no Keras model. It is loaded in the scope, and called.

# %%
strategies = {
    "none": dl.make_strategy("default"),
    "one device": dl.make_strategy("one_device"),
    "mirrored(4)": dl.make_strategy("mirrored", devices=4),
    "central storage(2)": dl.make_strategy("central_storage", devices=2),
}
ways = {".keras": from_keras, ".weights.h5": from_weights, "Checkpoint": from_checkpoint}

# %% [markdown]
# Everything is loaded, and nothing complains. How far are the predictions from those of the model
# that we saved? **Predict:** in which of the sixteen cells are they equal?

# %%
expected = model(images).numpy()


def difference(predict):
    return float(np.abs(predict(images) - expected).max())


def difference_of_export(strategy):
    with strategy.scope():
        loaded = tf.saved_model.load(folder / "exported")
    return difference(loaded.serve)


moved = {
    way: {name: difference(dl.distribute(load, s)) for name, s in strategies.items()}
    for way, load in ways.items()
}
moved["export"] = {name: difference_of_export(s) for name, s in strategies.items()}
draw_differences(moved, below=1e-6, title="largest difference of a prediction")

# %% [markdown]
# Three ways, four strategies, the same predictions. And a row that is plainly wrong, on all
# strategies alike, without an error or a warning. Look at `from_checkpoint` again: do you see it?
#
# ## A restore that restored nothing
#
# A checkpoint files each variable under its *path*: the names by which one gets to it from the
# checkpoint object.

# %%
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # each path ends so

for path in list(in_checkpoint)[1:5]:
    dl.show("in the file", path.removesuffix(VALUE))

# %% [markdown]
# We saved `Checkpoint(model=...)` and restored `Checkpoint(network=...)`. In the file nothing is
# called `network`, so nothing was restored, and the model kept the random weights of `build`.
#
# That is no error, because it can be wanted: a file may hold more than you need today, and a
# program may have variables that the file never saw. TensorFlow cannot know. **You must say what
# you expect**, of the object that `read` and `restore` return:


# %%
def complaint(path, **objects):
    """What TensorFlow says when all that we have should be in the file."""
    status = tf.train.Checkpoint(**objects).read(path)
    try:
        status.assert_existing_objects_matched()
    except AssertionError as error:
        return str(error).split(",")[0].strip(".")
    return "nothing"


dl.show("network=", complaint(written, network=build()))
dl.show("model=", complaint(written, model=build()))

# %% [markdown]
# Six of six: four weights, and two numbers of the optimizer. There are three things to say:
#
# | you say | it raises unless |
# |---|---|
# | `assert_existing_objects_matched()` | each variable *you* have was in the file |
# | `assert_consumed()` | and each one *in the file* was used |
# | `expect_partial()` | never: it only silences remarks about what was left over |
#
# The same line saves you from the other classic. The folder is empty, or misspelt, and the newest
# checkpoint in it is `None`:

# %%
newest = tf.train.latest_checkpoint(folder / "chekpoints")
dl.show("newest", newest)
dl.show("restored from it", complaint(newest, model=build()))

# %% [markdown]
# Without the assertion this, too, would have gone on with random weights. Now the cure:


# %%
def from_checkpoint():
    fresh = build()
    status = tf.train.Checkpoint(model=fresh).read(written)
    status.assert_existing_objects_matched()
    return fresh


ways["Checkpoint"] = from_checkpoint
for name, strategy in strategies.items():
    dl.show(name, difference(dl.distribute(from_checkpoint, strategy)), below=1e-6)

# %% [markdown]
# (Build first, then assert: where a model has no variables yet, there is nothing to miss.)
#
# ## The same predictions, another training
#
# All predictions are equal now, so all models are equal. Are they? Train each for **two more
# epochs**, on the same data, and compare the weights with those of the model that never moved.


# %%
def train_on(model):
    losses = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(float(loss_of(labels, model(images))))
    )
    model.fit(data, epochs=2, callbacks=[note], shuffle=False, verbose=0)
    return losses


def apart(one, other):
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return float(max(np.abs(a - b).max() for a, b in pairs))


curves = {"never moved": train_on(model)}


def went_on(way, strategy):
    other = dl.distribute(ways[way], strategy)
    curves[way] = train_on(other)
    return apart(other, model)


# %% [markdown]
# **Predict:** which of the three ways can go on?

# %%
further = {way: {name: went_on(way, s) for name, s in strategies.items()} for way in ways}
further["export"] = dict.fromkeys(strategies)
draw_differences(
    further,
    below=1e-5,
    title="largest difference of a weight, two epochs later",
    missing="no training",
)

# %% [markdown]
# From two mirrored replicas to four, to one, to a central storage: `.keras` and the checkpoint go
# on as if they had never moved. Another row is wrong now, and its predictions *were* right. Here
# is what the loss did in the ten steps of those epochs (in the last column):

# %%
draw_training(
    {way: curves[way] for way in ("never moved", ".weights.h5", ".keras")},
    every_steps=1,
    level=("when saved", float(loss_of(labels, expected))),
)

# %% [markdown]
# It jumps. `model.weights.h5` *holds* Adam's averages (you counted them), but the model did not
# take them. An optimizer makes its variables when it is first used. Ours was new, so there was no
# place to load them to. Keras said so, in a warning that we had switched off:

# %%
with warnings.catch_warnings(record=True) as said:
    build().load_weights(folder / "model.weights.h5")
print(str(said[0].message).split("because ")[1].strip())

# %% [markdown]
# Without its averages Adam divides the first gradient by itself: each weight moves by the full
# learning rate, whatever the size of its gradient. A model that was nearly done is shaken up.
#
# The cure: **build the optimizer before you load.**


# %%
def from_weights():
    fresh = build()
    fresh.optimizer.build(fresh.trainable_variables)
    fresh.load_weights(folder / "model.weights.h5")
    return fresh


ways[".weights.h5"] = from_weights
dl.show("two epochs later, apart by", went_on(".weights.h5", strategies["none"]), below=1e-5)

# %% [markdown]
# There is a second way to the same loss, and no warning comes with it. **Predict** the last line:

# %%
loaded = from_keras()
dl.show("steps that the optimizer knows of, loaded", int(loaded.optimizer.iterations.numpy()))
loaded.compile(keras.optimizers.Adam(0.005), loss=loss_of)  # "only another rate"
dl.show("compiled again", int(loaded.optimizer.iterations.numpy()))

# %% [markdown]
# `.keras` brings its optimizer with it. Who compiles again throws it away. If you want another
# rate, set it: `loaded.optimizer.learning_rate = 0.005`.
#
# ## Loaded outside the scope
#
# `dl.distribute` ran our functions in the scope of the new strategy. What if we load first, and
# think of the strategy when we train?

# %%
four = strategies["mirrored(4)"]
loaded = from_keras()
loaded.fit(data, epochs=2, shuffle=False, verbose=0)
dl.show("weights apart from the right ones", apart(loaded, model), below=1e-5)
dl.show("replicas that trained", loaded.distribute_strategy.num_replicas_in_sync)

# %% [markdown]
# All is right, and three devices were idle: a variable gets its copies when it is **made**, and
# these were made without a strategy. And with the training in the scope? **Predict:** four
# replicas, one replica, or an error?

# %%
loaded = from_keras()
try:
    with four.scope():
        loaded.fit(data, shuffle=False, verbose=0)
except AssertionError as error:
    dl.show("an AssertionError that says", repr(str(error)))

# %% [markdown]
# Nothing. (`dl.distribute` would have said what is wrong.) The cure is to load **in** the scope:

# %%
with four.scope():
    loaded = from_keras()

for variable in (loaded.weights[0], loaded.optimizer.variables[2]):
    copies = four.experimental_local_results(variable.value)
    dl.show(f"copies of {variable.name}", len(copies), expected=4)

# %% [markdown]
# ## What is in no file
#
# A dropout layer has a variable too: the place in its stream of random numbers (lesson 06).


# %%
def with_dropout():
    layers = [keras.layers.Flatten(), keras.layers.Dropout(0.5, seed=5), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile(keras.optimizers.Adam(0.01), loss=loss_of)
    return model


dropping = with_dropout()
dropping.fit(data, shuffle=False, verbose=0)  # a mask is drawn in each step
dropping.save(folder / "dropping.keras")
loaded = keras.saving.load_model(folder / "dropping.keras")
masks = [m.layers[1](tf.ones((4, 64)), training=True).numpy() for m in (dropping, loaded)]
dl.show("the next mask, the same", np.array_equal(*masks))

# %% [markdown]
# The place is in none of the files, so the loaded layer begins its stream anew. In a *distributed*
# model the mask is a function of the layer's seed, the step and the replica. The seed is in the
# architecture, the step in the optimizer, and there the run goes on with the right masks:

# %%
one = strategies["one device"]
dropping = dl.distribute(with_dropout, one)
dropping.fit(data, shuffle=False, verbose=0)
dropping.save(folder / "dropping.keras")
dropping.fit(data, shuffle=False, verbose=0)

loaded = dl.distribute(lambda: keras.saving.load_model(folder / "dropping.keras"), one)
loaded.fit(data, shuffle=False, verbose=0)
dl.show("with dropout, apart by", apart(loaded, dropping), below=1e-6)

# %% [markdown]
# Also in no file:
#
# - **the place in the data**: we saved between epochs, where there is none,
# - the **global batch**. Keep 64 on four replicas, and each has 16: the same training. Keep 32 *per
#   replica*, and you train with 128, with the rate and Adam's averages of 64,
# - what callbacks remember: the patience of `EarlyStopping`, the whole `History`,
# - **what you do to the inputs** before the model sees them. That comes at the end.
#
# For a run that is stopped anywhere there is `dl.Resume`; lesson 11 is about it. The formats of
# today are for a model that you *keep*.

# %% [markdown]
# ## Who saves?
#
# Weights have equal copies, so the first is as good as any. Some variables are meant to differ: a
# counter that each replica keeps for itself, and that is added up when somebody looks. TensorFlow
# calls it `ON_READ`; metrics are made of such.


# %%
def make_counter(strategy):
    with strategy.scope():
        return tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )


def count_own_examples():
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    counter.assign([40.0, 24.0][replica])


counter = make_counter(two)
two.run(count_own_examples)
dl.show("the copies", two.experimental_local_results(counter))

# %% [markdown]
# **Predict:** which number is in the checkpoint, and what do four replicas make of it?

# %%
counted = tf.train.Checkpoint(counter=counter).write(str(folder / "counter"))
dl.show("in the file", tf.train.load_variable(counted, "counter" + VALUE))

counter = make_counter(four)
tf.train.Checkpoint(counter=counter).read(counted).assert_consumed()
dl.show("four copies", four.experimental_local_results(counter))
dl.show("read together", counter.numpy(), expected=64)

# %% [markdown]
# Added up to save, shared out to restore. To read such a variable, **every replica is asked**. If
# some of them are in another process, that process must be at the same line.
#
# ### Two workers, real ones
#
# Each worker is a process with a replica of its own, and all run the same program. One of them is
# the *chief*, here worker 0. Surely it is enough that the chief saves, if all weights are equal?
# Each worker takes our model from the file, counts its examples, and writes a checkpoint, if its
# number is among `savers`.


# %%
def save(folder, savers):
    strategy = dl.make_strategy("multi_worker")
    worker = strategy.cluster_resolver.task_id
    with strategy.scope():
        model = keras.saving.load_model(folder / "model.keras")
    counter = make_counter(strategy)
    strategy.run(tf.function(lambda: counter.assign([40.0, 24.0][worker])))

    if worker not in savers:
        return "did not save"
    mine = folder / "workers" / ("kept" if worker == 0 else f"temporary-{worker}")
    tf.train.Checkpoint(model=model, counter=counter).write(str(mine / "checkpoint"))
    if worker > 0:
        shutil.rmtree(mine)
    return f"saved in {mine.name}"


# %% [markdown]
# `dl.LocalCluster` starts two processes, and `run` calls a function in each, with a time limit.
# (Lesson 09 is about both, and about the line that is printed.) **Predict:** only the chief saves.
# What comes back?

# %%
cluster = dl.LocalCluster(workers=2)
try:
    cluster.run(save, folder, [0], timeout_secs=4)
except TimeoutError as error:
    dl.show("still waiting after 4 seconds", error.task)

# %% [markdown]
# The chief asks for the counter, the other worker is not there to answer, and without our limit the
# chief would wait for ever. Now both save:

# %%
cluster.restart()
for number, said in enumerate(cluster.run(save, folder, [0, 1], timeout_secs=60)):
    dl.show(f"worker {number}", said)
cluster.close()
dl.show("what is left", [path.name for path in (folder / "workers").iterdir()])

# %% [markdown]
# One folder, with everything. The model has come from two replicas to two processes; from there it
# comes back to this notebook:

# %%
fresh, counter = build(), make_counter(two)
status = tf.train.Checkpoint(model=fresh, counter=counter).read(
    str(folder / "workers" / "kept" / "checkpoint")
)
status.assert_existing_objects_matched()
dl.show("examples counted", counter.numpy(), expected=64)
dl.show("predictions apart by", difference(fresh), below=1e-6)

# %% [markdown]
# So this is the rule for several workers:
#
# - **all workers save**, at the same point of the program,
# - the **chief's** file counts: it is the task called `chief`, or worker 0 where there is none,
# - each of the others writes to **a place of its own**, and removes it.
#
# (Had there been no counter, the chief alone would not have hung: what a Keras 3 model saves has no
# `ON_READ` variable. Do not build on it.)
#
# And if all write to the *same* place? We let two workers do it thirty times. `.weights.h5` raised
# an error on one of them nearly every time, a checkpoint once, `.keras` never. That is not the same
# as safe: what goes well twenty-nine times in thirty will go wrong one night.
#
# ## For those who only want predictions
#
# These digits come from a scanner: whole numbers, 0 is ink and 255 is paper. Somebody turned that
# round for the training, long ago, in a line that nobody looks at any more.


# %%
def prepare(pixels):
    return 1 - tf.cast(pixels, tf.float32) / 255


pixels = tf.cast(tf.round(255 * (1 - images)), tf.uint8)  # as they come from the scanner
dl.show("prepared, off by", np.abs(prepare(pixels) - images).max(), below=1e-6)

# %% [markdown]
# Our export goes to the people with the scanner. It takes numbers and gives scores. **Predict** the
# accuracy that they get.


# %%
def accuracy(scores):
    return float(np.mean(np.argmax(scores, axis=1) == labels))


scanned = tf.cast(pixels, tf.float32)  # that is what it takes
dl.show("our accuracy", accuracy(exported.serve(images)), digits=1)
dl.show("theirs", accuracy(exported.serve(scanned)), digits=1)

# %% [markdown]
# There is no error: an image is an image. What stands before the model is no part of it, so put it
# **into** the export. An `ExportArchive` takes any function of tensors, and says what it takes: raw
# pixels, any number of images.


# %%
def classify(pixels):
    scores = model(prepare(pixels), training=False)
    return {"digit": tf.argmax(scores, axis=1)}


archive = keras.export.ExportArchive()
archive.track(model)
raw = tf.TensorSpec((None, 8, 8, 1), tf.uint8, name="pixels")
archive.add_endpoint("serve", classify, input_signature=[raw])
archive.write_out(folder / "service", verbose=False)

# %% [markdown]
# Now as somebody who has only that folder:

# %%
service = tf.saved_model.load(folder / "service")
ask = service.signatures["serving_default"]
dl.show("digits", ask(pixels=pixels[:5])["digit"], expected=np.argmax(model(images[:5]), axis=1))

everywhere = ask(pixels=pixels)["digit"]
dl.show("all 320 as the model says", np.array_equal(everywhere, np.argmax(model(images), axis=1)))

# %% [markdown]
# No `build`, no `prepare`, no Keras, no strategy. It was traced from a model with two copies of
# each weight, and has one. What is *not* in it:

# %%
for what in ("fit", "layers", "optimizer"):
    dl.show(f"it has {what}", hasattr(service, what))

# %% [markdown]
# An export answers questions; it cannot learn, and nobody makes a model of it again. Keep the
# `.keras` file as well.
#
# ## Check yourself
#
# <details><summary>1. Trained on eight replicas. How many copies of a weight are in
# <code>model.keras</code>?</summary>
# One: the first. So it can be loaded for any number of replicas.
# </details>
#
# <details><summary>2. After loading, all predictions are right to the last digit. What may still be
# missing?</summary>
# The optimizer's state. Look at <code>optimizer.iterations</code>, or at the loss of the next
# steps.
# </details>
#
# <details><summary>3. <code>tf.train.Checkpoint(model=m).restore(path)</code> runs without an
# error. What do you know?</summary>
# That the file exists. Only an assertion on what it returns says that something was restored.
# </details>
#
# <details><summary>4. You load a model and call <code>fit</code> inside
# <code>with strategy.scope():</code>. Why does it fail?</summary>
# Variables get their copies when they are made, and these were made before, without the strategy.
# Load inside the scope.
# </details>
#
# <details><summary>5. Two workers, and only the chief calls save. When does that hang?</summary>
# When something that it saves can be read by all replicas together only: an <code>ON_READ</code>
# counter or metric.
# </details>
#
# ## Next steps
#
# - [The exercise](../exercises/08_save_and_load.ipynb): move a model, restore a part of one, export
#   one, and say which worker writes where.
# - [Lesson 09](09_multi_worker.ipynb): many workers in earnest, each a process.
# - Your own model: save it in the middle of a training, load it under another strategy, train both
#   for one epoch and compare the weights. What is not equal is in no file.
# - [Lesson 06](06_reproducibility.ipynb) has more on the place in the data, and on masks.
