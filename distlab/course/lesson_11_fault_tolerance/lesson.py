# %% [markdown]
# # Fault tolerance: a training run that resumes
#
# In 54 days on 16,384 GPUs, the training of Llama 3 had 419 unexpected interruptions: one in three
# hours ([report, section 3.3.4](https://arxiv.org/abs/2407.21783)). Synchronous training needs
# every GPU, so a single failed one stops all of them. More than 90 % of the time nevertheless went
# into training, because checkpoints, restarts and the search for the cause had been made quick.
# Your own script may lose much more: if it restores the weights only, repeats batches, or saves
# half of a step. None of these mistakes raises an error.
#
# ## Overview
#
# After this lesson you can
#
# - name all parts of a training run, and show what it costs to lose each of them,
# - save so that a kill in the middle of saving does no harm,
# - kill one of two workers, and end with exactly the weights of an undisturbed run,
# - stop when you are asked to, and be started again,
# - in an extra section: say how often to save, and what share of the time failures cost on 1,000
#   and on 10,000 machines.
#
# It takes {minutes}. You need [lesson 08](08_save_and_load.ipynb) (save and load) and
# [lesson 09](09_multi_worker.ipynb) (two workers). You need no GPU and no download. The lesson
# starts two processes on this machine, which works on Linux and macOS. On Windows use WSL2.
#
# **What is new.** In [lesson 10](10_parameter_server.ipynb), under parameter servers, training
# continues without a killed worker. Synchronous workers hold the variables themselves and wait for
# each other. If one worker is lost, all must start again. The only question is from where:
#
# ```diff
# - model.fit(data, epochs=4)
# + model.fit(data, epochs=4, callbacks=[dl.Resume("checkpoints", every_steps=5)])
# ```
#
# **Do you remember?**
#
# <details><summary>If you did lesson 10: a worker under parameter servers is killed in the middle
# of a step. What happens to that step?</summary>
# A different worker gets it. The killed worker may have
# applied it already, so each step runs at least once. Today each step counts exactly once.
# </details>
#
# <details><summary>Lesson 08: every prediction of a loaded model is right. Is everything restored?
# </summary>
# No. The optimizer may be lost, because predictions do not need it. Today you see what that costs.
# </details>

# %%
# %load_ext distlab
import distlab as dl

dl.split_devices(1)
dl.show("data set", "digits, part of distlab: nothing is downloaded")

# %% [markdown]
# (If you see *TensorFlow is already running*, restart the kernel and run from the top. The line
# `%load_ext distlab` prepares worker processes in the background.)
#
# Here is a training run that resumes. The last [checkpoint](../docs/glossary.md#checkpoint) was
# saved after step 15, and worker 1 dies at the end of step 17. Both workers start again after step
# 15:

# %%
from distlab.course.figures.workers import draw_lanes
from distlab.course.lesson_11_fault_tolerance.figures import (
    A_RESTART,
    draw_interval,
    draw_resumed,
    draw_waste,
)

draw_lanes(A_RESTART, xlabel="time (a sketch, without a scale)")

# %% tags=["hide-input"]
import os
import signal
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from distlab.course.lesson_11_fault_tolerance.worker_kill import killed_once
from distlab.course.runs.process_calls import call_in_process
from distlab.course.runs.script_runs import launch_here

dl.set_seed(1, deterministic=True)  # the same numbers on every run, bit for bit
(digits,) = dl.load_dataset("digits", splits=["train[:320]"], batch_size=320)
images, labels = next(digits.as_numpy_iterator())
until_the_end = tempfile.TemporaryDirectory()  # removed with the kernel
folder = Path(until_the_end.name)

# %% [markdown]
# ## A training run that can be stopped
#
# The model is small, with dropout and Adam. An epoch has 10 batches. Each epoch has its own order,
# which follows from the epoch's number. (The folded cells have the imports, the model and the
# data.)

# %% tags=["hide-input"]
BATCHES, STEPS, STOPPED_AT = 10, 80, 57
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_model():
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu")]
    layers += [keras.layers.Dropout(0.1, seed=1), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers])


def batches_of(epoch):
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    return data.shuffle(320, seed=epoch).batch(32)


# %% tags=["hide-input"]
class Training:
    """A model, its optimizer, how many steps are done, and a function that takes one step."""

    def __init__(self):
        self.model = make_model()
        self.optimizer = keras.optimizers.Adam(0.03)
        self.optimizer.build(self.model.trainable_variables)
        self.step = tf.Variable(0, dtype=tf.int64)
        self.train_on = tf.function(self._train_on)

    def _train_on(self, x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, self.model(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.model.trainable_variables))
        self.step.assign_add(1)


# %% [markdown]
# `Training`, in the last folded cell, has the step of [lesson 03](03_custom_training_loop.ipynb).
# The loop around it has one difference. It does not ask "which epoch comes next?" but **"how many
# steps are done?"** From `step` it computes the epoch and the batch, and begins there. `skip`
# leaves out the batches of this epoch that are done, and `take` ends the epoch early if `until`
# lies inside it.


# %%
def run(training, until):
    losses = []
    while training.step < until:
        epoch, batch = divmod(int(training.step), BATCHES)
        for x, y in batches_of(epoch).skip(batch).take(until - int(training.step)):
            training.train_on(x, y)
            losses.append(float(loss_of(labels, training.model(images))))
    return losses


# %% [markdown]
# One run takes eighty steps undisturbed. A second one, with the same seed, stops after 57 steps.

# %%
dl.set_seed(1)
undisturbed = run(Training(), STEPS)

dl.set_seed(1)
stopped = Training()
first_part = run(stopped, STOPPED_AT)
dl.show("equal up to there, bit for bit", first_part == undisturbed[:STOPPED_AT])

# %% [markdown]
# We save the stopped run with all its parts. `parts_of` names them.


# %%
def parts_of(training):
    return {
        "model": training.model,
        "optimizer": training.optimizer,
        "step": training.step,
        "seeds": training.model.layers[2].seed_generator.state,  # dropout's
    }


everything = tf.train.Checkpoint(**parts_of(stopped)).write(str(folder / "everything"))

# %% [markdown]
# A new process would begin with a new `Training`, whose weights are different until you restore
# them. `resumed_without` restores everything except the parts that you name. Without the step it
# starts at the beginning of the epoch, as a script must if it knows only the epoch.
# (`expect_partial` silences the warning about saved parts that are not restored.)


# %% tags=["hide-input"]
def resumed_without(*lost):
    fresh = Training()
    kept = {name: part for name, part in parts_of(fresh).items() if name not in lost}
    tf.train.Checkpoint(**kept).read(everything).expect_partial()
    if "step" in lost:
        fresh.step.assign(STOPPED_AT // BATCHES * BATCHES)
    return run(fresh, STEPS)


# %% tags=["predict"]
curve_guess = dl.predict(
    "One run resumes with everything, one with the weights only. What does the loss of the second "
    "do in its first steps?",
    [
        "it is the same: the weights are the same",
        "it jumps up",
        "it falls more slowly",
    ],
)

# %%
resumed = {
    "everything restored": resumed_without(),
    "weights only": resumed_without("optimizer", "step", "seeds"),
    "all but the optimizer": resumed_without("optimizer"),
}
draw_resumed(undisturbed, resumed, stopped_at=STOPPED_AT)

# %% tags=["reveal"]
whole, partial, _ = resumed.values()
curve_guess.reveal(
    "it jumps up" if partial[0] > 2 * whole[0] else "it is the same: the weights are the same",
    {
        "it jumps up": "A fresh Adam has no averages, so its first steps take the full rate for"
        " every weight.",
        "it is the same: the weights are the same": "The weights are the same before the first "
        "step. But Adam's step depends on what it remembers, and that is gone.",
        "it falls more slowly": "A fresh Adam steps further, not less far: it takes the full rate "
        "for every weight.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The first curve lies on the grey line. The second begins at 0.22 instead of 0.08, and swings up to
# 0.34. It lost the optimizer, the step and the seeds. (Without the step it began its epoch again,
# so in the picture it ends seven steps later.) The third run lost the optimizer alone, and at step
# 60 its loss is 0.22 instead of 0.06. So losing the optimizer is enough for a jump. Adam divides
# each gradient by what it remembers of that gradient's size. A fresh Adam remembers nothing and
# takes a step of the full rate for every weight, however small its gradient is.
#
# Plain SGD remembers nothing, so there you would see no such jump, although the place in the data
# and the seeds are lost. **A smooth curve proves nothing.** Compare the numbers. A run that lost
# its step has more losses. So we compare the steps that all runs have in common, 58 to 80:

# %% tags=["after-reveal"]
LEFT = STEPS - STOPPED_AT
for name, losses in resumed.items():
    dl.show(f"{name}: equal bit for bit", losses[-LEFT:] == undisturbed[-LEFT:])

# %% [markdown]
# ## What a training run consists of
#
# The run "weights only" lost three parts at once: the optimizer, the step and the seeds. What does
# each of them do alone?

# %% tags=["predict"]
parts_guess = dl.predict(
    "Three runs resume: one without the optimizer, one without the step, one without the seeds. "
    "How many of them end like the undisturbed run, bit for bit?",
    ["none", "one: without the seeds", "two: without the step, without the seeds"],
)

# %%
ends_alike = {
    lost: resumed_without(lost)[-LEFT:] == undisturbed[-LEFT:]
    for lost in ("optimizer", "step", "seeds")
}
for lost, alike in ends_alike.items():
    dl.show(f"without {lost}: equal bit for bit", alike)

# %% tags=["reveal"]
parts_guess.reveal(
    {
        (): "none",
        ("seeds",): "one: without the seeds",
        ("step", "seeds"): "two: without the step, without the seeds",
    }[tuple(lost for lost, alike in ends_alike.items() if alike)],
    {
        "none": "Each of the three changes what the next steps compute: Adam's averages, the "
        "place in the data, or the masks.",
        "one: without the seeds": "Dropout's seed state advances with every step. If it is not "
        "restored, it is at its start, and dropout draws the masks of step 1 again.",
        "two: without the step, without the seeds": "Without the step, seven batches are trained "
        "twice. Without the seeds, dropout draws different masks.",
    },
)

# %% [markdown] tags=["after-reveal"]
# So a training run has at least these parts:
#
# | part | where it is | in `Checkpoint(model=model)`? |
# |---|---|---|
# | the weights | `model` | yes |
# | what the optimizer remembers, and its count of steps | `optimizer` | no: not compiled |
# | the place in the data | here `step`, which gives the epoch and the batch | no |
# | the state of the seeds | each `SeedGenerator`, here dropout's | no |
#
# This model is not compiled, so its optimizer is not part of it. In lesson 08 the model was
# compiled, and `Checkpoint(model=model)` held the optimizer's variables, too. (Callbacks, metrics
# and the history have a state as well. A learning-rate schedule reads the optimizer's count.)
#
# The seeds are the easiest part to lose. `Checkpoint(model=...)` looks as if it held the whole
# model, and dropout's seeds are part of the model. But they are not in the file:

# %% tags=["after-reveal"]
weights_only = tf.train.Checkpoint(model=stopped.model).write(str(folder / "weights"))
saved = [name for name, _ in tf.train.list_variables(weights_only)]
dl.show("names with 'seed' in them", [name for name in saved if "seed" in name])

# %% [markdown]
# They are not in a `.keras` file either. Save them by name, as `parts_of` does.
#
# ## Killed while it saves
#
# A kill can come at any moment, even while a checkpoint is being written. Here a process writes the
# second checkpoint over the first one. `call_in_process` runs a function in a new process, and with
# `most_bytes=600` the system kills the process when the file would grow beyond 600 bytes.


# %%
def save_in_place(path, data):
    path.write_bytes(data)


path, first, second = folder / "newest", b"1" * 1000, b"2" * 1000
save_in_place(path, first)
killed = call_in_process(save_in_place, path, second, most_bytes=600)
dl.show("ended by a signal", killed.code < 0)

# %%
found = path.read_bytes()
dl.show("bytes", len(found))
dl.show("the first checkpoint", found == first)
dl.show("the second checkpoint", found == second)

# %% [markdown]
# Opening the file for writing emptied it, and only the bytes before the kill arrived. Before the
# save there was a checkpoint, and now there is none. The cure has three steps: write to a
# **different name**, bring the bytes to the disk, and only then `replace` the old file. `os.fsync`
# asks the system to bring the bytes to the disk, and waits. (On macOS the drive may still hold them
# in a buffer.) If only the process is killed, you do not need `os.fsync`. If the power fails, you
# do: without it the new name could be on the disk before the bytes. On a local POSIX file system,
# as on Linux and macOS, a replace is atomic: a reader finds the old file or the new file, whole.


# %%
def save_beside(path, data):
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


save_beside(path, first)
call_in_process(save_beside, path, second, most_bytes=600)
dl.show("the first checkpoint, whole", path.read_bytes() == first)
dl.show("in the folder", sorted(file.name for file in folder.glob("newest*")))

# %% [markdown]
# <details><summary>On an object store</summary>
#
# Many object stores have no atomic rename, S3's general-purpose buckets among them. There a
# library copies and deletes, which is not atomic. Write the checkpoint's files first, and last a
# small file that names the newest checkpoint.
# </details>

# %% [markdown]
# Also **keep a few checkpoints**. A disk can return wrong bytes, and a run may have produced NaN
# before you noticed. TensorFlow's `CheckpointManager` writes the name of the newest checkpoint
# last, and removes the oldest checkpoints:


# %%
def managed(training):
    checkpoint = tf.train.Checkpoint(**parts_of(training))
    return tf.train.CheckpointManager(checkpoint, folder / "managed", max_to_keep=3)


dl.set_seed(1)
training = Training()
manager = managed(training)
for until in (5, 10, 15, 20, 25):
    run(training, until)
    manager.save(checkpoint_number=until)
dl.show("kept", [Path(one).name for one in manager.checkpoints])

training = Training()  # as in a new process
managed(training).restore_or_initialize()
dl.show("resumes after step", training.step)
dl.show("equal bit for bit", run(training, STEPS) == undisturbed[25:])

# %% [markdown]
# ## The same with fit
#
# `dl.Resume` does all of this for `fit` of a model from `dl.distribute`. If you start the script
# again, it restores the newest checkpoint and skips the batches that were trained on. To skip the
# right ones, it needs a seed in each shuffle. It saves every `every_steps` steps, and at the end
# of each epoch. The folded cell has `fit(strategy, *callbacks)`: it trains for 40 steps and
# returns the weights as one array, and the optimizer's count of steps. It calls `dl.set_seed`
# first, because the order of a shuffle follows from TensorFlow's seed, too.


# %% tags=["hide-input"]
def build():
    model = make_model()
    model.compile(keras.optimizers.Adam(0.03), loss=loss_of)
    return model


def fit(strategy, *callbacks, epochs=4):
    dl.set_seed(1, deterministic=True)
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    data = data.shuffle(320, seed=1).batch(32)
    model = dl.distribute(build, strategy)
    model.fit(data, epochs=epochs, shuffle=False, verbose=0, callbacks=[*callbacks])
    weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
    return {"weights": weights, "steps": int(model.optimizer.iterations.numpy())}


# %% [markdown]
# <details><summary>And Keras's own BackupAndRestore?</summary>
#
# `keras.callbacks.BackupAndRestore` is a part of Keras itself. We stopped a run of 40 steps in step
# 17, with a save after each step. In the end its optimizer counts 46 steps. It restored the weights
# of step 16, but went back to the beginning of the epoch, step 10: 16 + 30 = 46. Six batches were
# trained on twice.
#
# | | `dl.Resume` | `BackupAndRestore` |
# |---|---|---|
# | weights, optimizer | yes | yes |
# | resumes | at the next batch | at the start of the epoch: batches are trained twice |
# | order of the data | that of this epoch | that of the first epoch, again |
# | seeds of dropout | yes | no |
# | history, state of callbacks | yes | no |
# | saved | beside, then renamed; the newest N | in place; two with `double_checkpoint=True` |
# | when `fit` has ended | stays | is removed, unless `delete_checkpoint=False` |
# </details>
#
# ## Kill a worker
#
# Now with two workers, two processes. The callback `killed_once` makes worker 1 kill its own
# process at the end of step 17, by SIGKILL, which no code can catch. (A file notes that it
# happened, so that it happens once.) `restart=1` allows the cluster to start **all** workers again,
# once, and to call the function again. First we train undisturbed, then with the kill.


# %%
def train(path, *callbacks, epochs=4):
    resume = dl.Resume(path, every_steps=5)
    trained = fit(dl.make_strategy("multi_worker"), *callbacks, resume, epochs=epochs)
    return trained | {"resumed from": str(resume.resumed_from)}


# %%
cluster = dl.LocalCluster(workers=2, restart=1)
calm = cluster.run(train, folder / "calm", timeout_secs=60)

cluster.restart()  # new processes: each makes its strategy first of all
kill = killed_once(worker=1, step=17, note=folder / "was-killed")
recovered = cluster.run(train, folder / "disturbed", kill, timeout_secs=90)

# %%
dl.show("was killed", (folder / "was-killed").exists())
for task, one, undisturbed_one in zip(cluster.tasks, recovered, calm, strict=True):
    dl.show(f"{task} resumed from", one["resumed from"])
    dl.show(f"{task} steps", one["steps"])
    same = np.array_equal(one["weights"], undisturbed_one["weights"])
    dl.show(f"{task} equal bit for bit", same)

# %% [markdown]
# A process was killed, and the result is the same in every bit. The seeds, deterministic operations
# and equal hardware are needed for that, as in [lesson 06](06_reproducibility.ipynb). Three more
# things made it possible:
#
# - **Both** workers were started again. Worker 0 waited in an all-reduce that worker 1 could not
#   join.
# - One worker saved, the chief, and both read what it had saved. On several machines the folder
#   must be on a disk that all of them share.
# - As many workers came back as before: two.
#
# The optimizer counts 40 steps, although steps 16 and 17 were computed twice. The first time, they
# changed only variables of processes that are gone.
#
# Now suppose that one machine is gone for good, and you can't wait for another. We train two epochs
# on two workers, and resume from their checkpoint on one device, here in this notebook. The global
# batch and the seed stay the same, and the model has dropout.

# %% tags=["predict"]
fewer_guess = dl.predict(
    "Two epochs on two workers, then two on one device. How do the weights at the end compare with "
    "those of two undisturbed workers?",
    [
        "they are equal, bit for bit",
        "they differ by rounding only, less than 1e-4",
        "they differ by more than rounding",
        "there are none: Resume refuses the checkpoint",
    ],
)

# %%
cluster.restart()
cluster.run(lambda path: train(path, epochs=2), folder / "halfway", timeout_secs=60)
resume = dl.Resume(folder / "halfway", every_steps=5)
on_one = fit(dl.make_strategy("one_device"), resume)
largest = float(np.abs(on_one["weights"] - calm[0]["weights"]).max())
dl.show("resumed from", str(resume.resumed_from))
dl.show("steps at the end", on_one["steps"])
dl.show("equal bit for bit", largest == 0)

# %% tags=["reveal"]
fewer_guess.reveal(
    "they differ by rounding only, less than 1e-4"
    if largest < 1e-4
    else "they differ by more than rounding",
    {
        "they differ by rounding only, less than 1e-4": "One device sums the same 32 examples, "
        "behind the same masks, in a different order than two workers.",
        "they are equal, bit for bit": "One device drops the same units as two workers. But it "
        "sums 32 examples in a different order, and each addition rounds.",
        "they differ by more than rounding": "So it would be if each worker drew masks of its own. "
        "But two workers draw the masks of one device, each the rows of its examples.",
        "there are none: Resume refuses the checkpoint": "A checkpoint knows nothing of workers. "
        "Resume takes it, and counts the steps on to 40.",
    },
)

# %% tags=["after-reveal"]
dl.show("largest difference of a weight", largest, below=1e-4)

# %% [markdown] tags=["after-reveal"]
# So you can continue with the machines you have, and it's still the same training run: `dl.Resume`
# restores the state of the masks, and under `dl.distribute` the masks don't depend on the number of
# replicas. If the difference is ever larger than rounding, look for a bug.
#
# <details><summary>What happens to the survivor without distlab?</summary>
#
# Workers send heartbeats to the coordination service, which runs on the chief. If worker 1 dies,
# the chief misses its heartbeats, and the all-reduce of worker 0 raises `UnavailableError`. In our
# runs that took 7 to 11 seconds. If the *chief* dies, the other workers notice within a second or
# so. In both cases the processes that live must end, and all must start again: TensorFlow brings no
# worker back.
# </details>
#
# ## Asked to leave: SIGTERM
#
# Often a training run gets a warning before it is killed. The scheduler, the program that assigns
# machines to jobs, sends **SIGTERM**, and SIGKILL some time later. Kubernetes waits 30 seconds by
# default, and so does Slurm when a job's time is over. In many cases 30 seconds suffice for a save.
#
# A first attempt: save in the function that Python calls when the signal comes, the *handler*, and
# end the process. Here the signal comes in the middle of a step:


# %%
def train_and_save_in_handler(steps, asked_in):
    weight, done = 0, 0

    def handler(number, frame):
        print("saved: weight", weight, "step", done)
        sys.exit(0)

    signal.signal(signal.SIGTERM, handler)
    for step in range(steps):
        weight += 1
        if step == asked_in:
            signal.raise_signal(signal.SIGTERM)
        done = step + 1


# %% tags=["predict"]
handler_guess = dl.predict(
    "What does `train_and_save_in_handler(9, 6)` save?",
    ["weight 6, step 6", "weight 7, step 6", "weight 7, step 7", "weight 9, step 9"],
)

# %%
ended = call_in_process(train_and_save_in_handler, 9, 6)
dl.show("exit code", ended.code)

# %% tags=["reveal"]
handler_guess.reveal(
    "weight 7, step 6",
    {
        "weight 7, step 6": "The signal came between the two lines of a step: the weight had "
        "changed, and the step was not counted yet.",
        "weight 6, step 6": "That is the state before the step. The weight had already changed "
        "when the signal came.",
        "weight 7, step 7": "That is a whole step. The handler does not wait for it: Python runs a "
        "handler as soon as it can, even in the middle of a line.",
        "weight 9, step 9": "The handler does not wait for the loop: it runs at once, and ends the "
        "process.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **First mistake:** it saved half of a step. Python runs a handler soon after the signal, between
# two of the small instructions into which it compiles a line. That can be in the middle of a
# training step. A run that resumes from there trains step 7 twice. (Only during a call into C code
# does the handler wait. So a worker in an all-reduce runs it when the all-reduce ends.)
#
# **Second mistake:** exit code 0, which means "I am done". A supervisor, a program that starts
# failed runs again, does not start this one.
#
# **The cure:** the handler only takes a note. The loop looks at the note where a step is whole,
# saves, and exits with 143. That is 128 + 15, the number of SIGTERM, and means "I was asked to
# stop". In the exercise you write it.
#
# <details><summary>The signal comes at the same place. What does the repaired function save?
# </summary>
# Weight 7, step 7: the step in which the signal came is finished, and then it saves.
# </details>

# %% [markdown]
# `dl.Resume` does this on all workers at once. Here is the whole chain, as in a terminal: two
# workers train 40 steps, and worker 1 gets SIGTERM in step 17. The launcher may start them again
# once. `every_steps=1000` never comes due here, so without the signal the newest checkpoint would
# be that of an epoch's end, step 10. The folded cell writes the script `train.py`, with `fit`,
# `dl.Resume` and a callback that raises the signal:

# %% tags=["hide-input"]
script = """
import signal
from pathlib import Path

import distlab as dl
import keras
import numpy as np

strategy = dl.make_strategy("multi_worker")  # before any other call of TensorFlow

def build():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model

class AskedOnce(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        me, asked = strategy.cluster_resolver.task_id, Path("asked")
        if me == 1 and self.model.optimizer.iterations == 17 and not asked.exists():
            asked.touch()
            signal.raise_signal(signal.SIGTERM)

print("life begins")
callbacks = [AskedOnce(), resume := dl.Resume("checkpoints", every_steps=1000)]
model, (x, y) = dl.distribute(build, strategy), (np.ones((320, 8)), np.zeros(320))
model.fit(x, y, batch_size=32, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
print("steps at the end:", int(model.optimizer.iterations.numpy()))
print("resumed from step", resume.resumed_from.step)
"""
written = (folder / "train.py").write_text(script)

# %%
launched = launch_here("--workers", "2", "--max-restarts", "1", "train.py", folder=folder)
print(*launched.lines_with("life"), *launched.lines_with("steps"), sep="\n")
resumed_from = {int(line.split()[-1]) for line in launched.lines_with("resumed from step")}
dl.show("different steps from which they resumed", len(resumed_from))
dl.show("it is step 17, or soon after", 17 <= min(resumed_from) <= 20)
dl.show("exit code", launched.exit_code)

# %% [markdown]
# Both workers started twice and ended with 40 steps, although only worker 1 got the signal.
# `dl.Resume` let them agree on a step, and the chief saved it. Then all exited with 143, and
# `distlab launch` started all of them again.
#
# <details><summary>On your machines: two things that must be true</summary>
#
# - **The signal reaches Python.** It often reaches only a shell, or process 1 of a container, and a
#   shell does not pass it on. End your shell script with `exec python train.py`, so that Python
#   takes the place of the shell. In Slurm `--signal=TERM@120` sends SIGTERM to the processes that
#   `srun` started, about two minutes before the end. `--signal=B:TERM@120` sends it only to the
#   batch shell, which runs your batch script.
# - **Something starts it again.** Kubernetes restarts a failed container on the same node,
#   according to the pod's `restartPolicy`. If it takes the pod itself away, only a controller, such
#   as a Job, creates a new one. Slurm can requeue a job, which means that the job waits for
#   machines again and then starts from the top. It can do so after a
#   [preemption](../docs/glossary.md#preemption) or a failed node, or when the script calls
#   `scontrol requeue`. Do not rely on the exit code there.
# </details>
#
# <details><summary>Spot instances, and TensorFlow's own handler</summary>
#
# A [spot instance](../docs/glossary.md#spot-instance) gets a notice, not a signal. AWS writes it
# into the [instance's
# metadata](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html)
# two minutes before. A program on the machine must turn the notice into SIGTERM.
#
# `tf.distribute.experimental.PreemptionCheckpointHandler` is for loops of your own. It hears
# SIGTERM (on Google's cloud: the notice), lets the workers agree on a step, saves and exits with 42
# (on Google's cloud: 143). Tell your supervisor that code, or pass an `exit_fn`. It saves what your
# `tf.train.Checkpoint` names, so seeds and the place in the data are yours to add.
# </details>
#
# <details><summary>In plain TensorFlow</summary>
#
# To get what `dl.Resume` does in your own loop, you need: one `tf.train.Checkpoint` with the four
# parts, restored on **every** worker at the start; a `CheckpointManager` that saves on the chief
# only (for no part holds a count that must be read from all workers, as in lesson 09); `skip` to
# the batch; and a handler that takes a note. The exercise builds these parts. With several workers,
# the notes must be exchanged, too, so that all leave after the same step.
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# **PyTorch:** if one worker fails, `torchrun --max-restarts=3` starts all workers again, on every
# node, as `distlab launch` does on this machine. Saving is yours: `state_dict` of model *and*
# optimizer, the random states, and the place in the data. `torchdata`'s `StatefulDataLoader` keeps
# that place. **JAX:** Orbax writes checkpoints to a temporary name and renames them last. Random
# keys are explicit values, so you save them like weights. Grain's iterators can be saved, too.
# </details>
#
# ## Extra: How often to save
#
# Each checkpoint costs time. Each failure costs the work since the last checkpoint. Two numbers
# decide, and you can measure both:
#
# - `C`: the seconds that a checkpoint takes,
# - `M`: the mean seconds between two failures of the whole training.
#
# If you save every `T` seconds, saving takes the share `C / T`. A failure comes on average in the
# middle of an interval, so it loses `T / 2` seconds once in `M`: the share `T / (2 * M)`. Together
# you lose the sum of the two shares.
#
# Take the opening's numbers. With 8 GPUs in a machine, 16,384 GPUs are 2,048 machines. We count
# each of the 419 interruptions as the failure of one machine, although some came from software or
# from the network. Then all together fail once in 3.1 hours, and **one** machine fails once in
# 2,048 times that, about 6,300 hours. We assume that a checkpoint takes 20 seconds.

# %% tags=["hide-input"]
MACHINES, SAVE_SECS = 2048, 20.0
FAILURE_SECS = 54 * 24 * 3600 / 419 * MACHINES  # between two failures of one machine

between = FAILURE_SECS / MACHINES  # of the whole training
every_secs = np.geomspace(60, 4 * 3600, 60)
shares = {"saving": SAVE_SECS / every_secs, "lost work": every_secs / (2 * between)}
draw_interval(every_secs, shares, best_secs=float(np.sqrt(2 * SAVE_SECS * between)))

# %% [markdown]
# The sum is least where the two curves meet: `C / T = T / (2 * M)`, and so
#
# > `T = sqrt(2 * C * M)`
#
# This is [Young's rule](https://doi.org/10.1145/361147.361115) of 1974. The curve is flat: half or
# twice the interval costs 7.5 % instead of 6.0 %. Ten times the interval costs 30 %.
#
# **Each** machine can fail, and one failure stops all. So ten times the machines fail ten times as
# often. The folded cell lets failures come at random, and counts the time that is lost. A failure
# can hit a restart, too: then the restart begins again.


# %% tags=["hide-input"]
def lost_share(machines, restart_secs):
    """The share of the time that is not training, if you save at the best interval."""
    between = FAILURE_SECS / machines
    every = np.sqrt(2 * SAVE_SECS * between)
    until_failure = np.random.default_rng(1).exponential(between, size=50_000)
    training = np.maximum(until_failure - restart_secs, 0)  # each life begins with a restart
    kept = training // (every + SAVE_SECS) * every
    return 1 - kept.sum() / until_failure.sum()


# %%
dl.show("1,000 machines lose, in %", 100 * lost_share(1000, restart_secs=300), digits=0)

# %% tags=["predict"]
waste_guess = dl.predict(
    "1,000 machines lose 5 % if a restart takes 5 minutes. What do 10,000 lose, if they save at "
    "their own best interval?",
    ["about 5 %", "about 16 %", "about 23 %", "about 50 %"],
)

# %% tags=["hide-input"]
counts = [100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000]
restarts = {"no time": 0.0, "1 minute": 60.0, "5 minutes": 300.0}
lost = {
    f"a restart takes {name}": [lost_share(machines, secs) for machines in counts]
    for name, secs in restarts.items()
}
draw_waste(counts, lost)

# %% tags=["reveal"]
percents = {5: "about 5 %", 16: "about 16 %", 23: "about 23 %", 50: "about 50 %"}
percent = 100 * lost_share(10_000, restart_secs=300)
waste_guess.reveal(
    percents[min(percents, key=lambda choice: abs(choice - percent))],
    {
        "about 23 %": "Saving and lost work grow about 3 times, and restarts 10 times.",
        "about 5 %": "Saving more often softens the loss of work, and costs time itself. And no "
        "interval makes a restart rarer.",
        "about 16 %": "Saving and lost work do grow by sqrt(10), about 3 times, at the best "
        "interval. But ten times the failures need ten times the restarts.",
        "about 50 %": "That is ten times 5 %. Only the restarts grow ten times. Saving and lost "
        "work grow about 3 times, because you save more often.",
    },
)

# %% tags=["hide-input", "after-reveal"]
print("machines   save every   lost if a restart takes", *restarts, sep="   ")
for machines in (1000, 2048, 10_000, 100_000):
    minutes = np.sqrt(2 * SAVE_SECS * FAILURE_SECS / machines) / 60
    percent = [f"{lost_share(machines, secs):.0%}" for secs in restarts.values()]
    print(f"{machines:>8,}{minutes:>9.1f} min{percent[0]:>33}{percent[1]:>11}{percent[2]:>12}")

# %% [markdown] tags=["after-reveal"]
# For the 2,048 machines of the opening the calculation gives 6 to 8 %, which does not contradict
# the report's "more than 90 %". With restarts of 5 minutes, the restarts cost 1 % on 1,000 machines
# and 10 % on 10,000. On 100,000 machines they cost 47 % (83 minus 36), more than saving and lost
# work together. A better interval cannot reduce that part. A quicker **restart** can, and so can
# rarer failures. `dl.Resume(folder, every_secs=...)` takes the interval in seconds.

# %%
cluster.close()

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. A run is resumed, and its loss jumps for some steps. What was not restored?
# </summary>
# What the optimizer remembers: a fresh Adam takes steps of the full rate.
# </details>
#
# <details><summary>2. A different run is resumed, and its loss continues smoothly. Was everything
# restored?</summary>
# The curve cannot tell. A lost place in the data, or lost seeds, do not show in
# it. Compare the last weights with those of an undisturbed run, bit for bit.
# </details>
#
# <details><summary>3. Why is a checkpoint not written under its final name?</summary>
# A kill in the middle would leave half a checkpoint under a name that is trusted. On a POSIX file
# system renaming is atomic, and writing is not.
# </details>
#
# <details><summary>4. One of eight synchronous workers dies. Why are all eight started again?
# </summary>
# The seven live workers wait for it in a collective, and get an error after some seconds. Their
# weights may be steps ahead of the checkpoint from which the eighth must begin.
# </details>
#
# <details><summary>5. A handler of SIGTERM saves at once and calls <code>sys.exit(0)</code>. What
# are the two mistakes?</summary> It may save half of a step, and exit code 0 says that training is
# done.
# </details>
#
# <details><summary>6. (Extra) Your checkpoints become four times as quick. How much more often do
# you save?</summary>
# Twice as often: the interval grows with the square root of the cost.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/11_fault_tolerance.ipynb): the parts one by one, and then a pipeline
#   that recovers. Two workers run it, and the check kills one.
# - [Lesson 12](12_ring_all_reduce.ipynb): how an all-reduce travels, and how many bytes it sends.
# - [Glossary](../docs/glossary.md): every term of the course on one page.
# - [Daly, 2006](https://doi.org/10.1016/j.future.2004.11.016): Young's rule, refined for frequent
#   failures.
# - TensorFlow's [fault-tolerance
#   section](https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras#fault_tolerance)
#   recommends `BackupAndRestore`. The fold "And Keras's own BackupAndRestore?" shows what that
#   trains on twice.
