# %% [markdown]
# # Fault tolerance: a training run that resumes
#
# While Llama 3 trained on 16,384 GPUs, something failed unexpectedly [419 times in 54
# days](https://arxiv.org/abs/2407.21783). Synchronous training needs every GPU, so each failure
# stopped all of them, about once in three hours. More than 90 % of the time went into training all
# the same, because the team had made checkpoints and restarts quick.
#
# A script of your own can lose more than time. It may come back without what its optimizer
# remembered, train on some batches twice, or resume from half of a step, and no error appears. So
# how can a run that was killed end with the same weights as one that wasn't? After this lesson you
# can
#
# - name every part of a training run, and show what it costs to lose one,
# - save so that a kill in the middle of saving does no harm,
# - kill one of two workers, and end with exactly the weights of an undisturbed run,
# - save in time when a scheduler asks you to stop,
# - say how often to save (extra).
#
# **Time:** {minutes}. **Needs:** lessons [08](08_save_and_load.ipynb) and
# [09](09_multi_worker.ipynb), but no GPU and no download. The lesson starts two processes on this
# machine, which works on Linux and macOS; on Windows, use WSL2.
#
# <details><summary>Do you remember? Lesson 08: every prediction of a loaded model is right. Is
# everything restored?</summary>
#
# You can't know, because predictions don't need the optimizer, and it may be lost. Today you'll see
# what that costs.
# </details>
#
# Here is what you'll do. The last [checkpoint](../docs/glossary.md#checkpoint) has 15 steps when
# worker 1 dies in step 17, so both workers start again and train from step 16 on:

# %%
# %load_ext distlab
import distlab as dl
from distlab.course.figures.workers import draw_lanes
from distlab.course.lesson_11_fault_tolerance.figures import A_RESTART

dl.split_devices(1)
draw_lanes(A_RESTART, xlabel="time (a sketch, without a scale)")

# %% tags=["hide-input"]
import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from distlab.course.lesson_11_fault_tolerance import failure_costs, figures
from distlab.course.lesson_11_fault_tolerance.training import Training, fit, write_script
from distlab.course.lesson_11_fault_tolerance.worker_kill import killed_once
from distlab.course.runs.process_calls import call_in_process
from distlab.course.runs.script_runs import launch_here

until_the_end = tempfile.TemporaryDirectory()  # removed with the kernel
folder = Path(until_the_end.name)

# %% [markdown]
# ## A training run that can be stopped
#
# Our model is small, but it has the two things that make a restart difficult: dropout, which draws
# random masks, and Adam, which remembers earlier gradients. `Training` holds the model, the
# optimizer and a variable `step`. An epoch has 10 batches, in an order that follows from its
# number.
#
# A usual loop asks which epoch comes next, and a run that stopped in the middle of an epoch has no
# good answer. This loop asks **how many steps are done**, because a division turns that number into
# the epoch and the batch. `skip` leaves out the batches of this epoch that are done:


# %%
STEPS, STOPPED_AT, LEFT = 80, 57, 23


def run(training, until):
    losses = []
    while training.step < until:
        epoch, batch = divmod(int(training.step), training.batches)
        for x, y in training.batches_of(epoch).skip(batch).take(until - int(training.step)):
            training.train_on(x, y)
            losses.append(training.loss())
    return losses


# %% [markdown]
# One run takes 80 steps undisturbed. Another one, with the same seed, stops after 57 steps, in the
# middle of an epoch. `parts_of` names what we save of it:


# %%
def parts_of(training):
    return {
        "model": training.model,
        "optimizer": training.optimizer,
        "step": training.step,
        "seeds": training.model.layers[2].seed_generator.state,  # dropout's
    }


dl.set_seed(1, deterministic=True)
undisturbed = run(Training(), STEPS)
dl.set_seed(1, deterministic=True)
stopped = Training()
run(stopped, STOPPED_AT)
everything = tf.train.Checkpoint(**parts_of(stopped)).write(str(folder / "everything"))

# %% [markdown]
# A new process begins with a new `Training`, whose weights are different until you restore them.
# `resumed_without` does that, restores everything except the parts that you name, and trains up to
# step 80. Without the step it goes back to the beginning of the epoch:


# %%
def resumed_without(*lost):
    fresh = Training()
    kept = {name: part for name, part in parts_of(fresh).items() if name not in lost}
    tf.train.Checkpoint(**kept).read(everything).expect_partial()
    if "step" in lost:
        fresh.step.assign(STOPPED_AT // fresh.batches * fresh.batches)
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
figures.draw_resumed(undisturbed, resumed, stopped_at=STOPPED_AT)

# %% tags=["reveal"]
right, partial, _ = resumed.values()
curve_guess.reveal(
    "it jumps up" if partial[0] > 2 * right[0] else "it is the same: the weights are the same",
    {
        "it jumps up": "A fresh Adam has no averages, so its first steps take the full rate for "
        "every weight.",
        "it is the same: the weights are the same": "That would be nearly so under plain SGD, "
        "whose step needs only the weights and a batch. Adam's step also depends on what it "
        "remembers, and that's gone.",
        "it falls more slowly": "That would be so if a fresh Adam were careful. It steps further "
        "instead, because it takes the full rate for every weight.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The run that restored everything lies on the undisturbed one, while "weights only" begins with
# almost three times the loss. The third run lost nothing but the optimizer, and it jumps as well.
# Adam divides each gradient by what it remembers of that gradient's size, so a fresh Adam, which
# remembers nothing, takes a step of the full rate for every weight, however small the gradient is.
#
# > **Takeaway.** Let your loop ask how many steps are done, and restore the optimizer with the
# > weights. A fresh Adam makes the loss jump.
#
# <details><summary>Fine print</summary>
#
# In the figure "weights only" ends seven steps later, because it began its epoch again.
# </details>

# %% [markdown]
# ## What a training run consists of
#
# The run "weights only" lost three things at once. Now we lose one at a time, and compare the
# losses of the last 23 steps, which all runs have in common, with those of the undisturbed run.

# %% tags=["predict"]
parts_guess = dl.predict(
    "Three runs resume: one without the optimizer, one without the step, one without the seeds. "
    "How many of them end like the undisturbed run, bit for bit?",
    ["none", "one: without the seeds", "two: without the step, without the seeds"],
)

# %%
ends_alike = {}
for lost in ("nothing", "optimizer", "step", "seeds"):
    ends_alike[lost] = resumed_without(lost)[-LEFT:] == undisturbed[-LEFT:]
    dl.show(f"lost: {lost}; equal bit for bit", ends_alike[lost])

# %% tags=["reveal"]
parts_guess.reveal(
    {
        ("nothing",): "none",
        ("nothing", "seeds"): "one: without the seeds",
        ("nothing", "step", "seeds"): "two: without the step, without the seeds",
    }[tuple(lost for lost, alike in ends_alike.items() if alike)],
    {
        "none": "Each of the three changes what the next steps compute: Adam's averages, the "
        "place in the data, or the masks.",
        "one: without the seeds": "That would be so if `seed=1` stood for one mask. It starts a "
        "sequence that advances with every step, and if its place isn't restored, dropout draws "
        "the masks of step 1 again.",
        "two: without the step, without the seeds": "That would be so if only the optimizer "
        "changed the steps. But without the step, seven batches are trained twice, and without "
        "the seeds, dropout draws different masks.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Only the run that lost nothing ends like the undisturbed one, so a training run has four parts:
#
# | part | where it is | in `Checkpoint(model=model)`? |
# |---|---|---|
# | the weights | `model` | yes |
# | what the optimizer remembers and counts | `optimizer` | only of a compiled model |
# | the place in the data | here `step`, which gives the epoch and the batch | no |
# | the state of the seeds | each `SeedGenerator`, here dropout's | no |
#
# The seeds are the part that you're most likely to lose, because dropout belongs to the model and
# `Checkpoint(model=...)` looks as if it held the whole model. Its file says otherwise:

# %% tags=["after-reveal"]
weights_only = tf.train.Checkpoint(model=stopped.model).write(str(folder / "weights"))
saved = [name for name, _ in tf.train.list_variables(weights_only)]
dl.show("names with 'seed' in them", [name for name in saved if "seed" in name])

# %% [markdown] tags=["after-reveal"]
# A `.keras` file doesn't hold them either, so save them by name, as `parts_of` does. You wouldn't
# see such a loss, because **a smooth curve proves nothing**. Under plain SGD, which remembers
# nothing, no run would have jumped, although the place in the data and the seeds are lost all the
# same.
#
# > **Takeaway.** Save the weights, the optimizer, the place in the data and the seeds. To prove
# > that you did, compare with an undisturbed run, bit for bit.
#
# <details><summary>Fine print</summary>
#
# This model isn't compiled, so its optimizer isn't a part of it. In lesson 08 the model was
# compiled, and its checkpoint held the optimizer's variables. Callbacks, metrics and the history
# have a state, too, while a learning-rate schedule reads the optimizer's count.
# </details>

# %% [markdown]
# ## Killed while it saves
#
# A kill can come at any moment, even while a checkpoint is being written. Here a process writes a
# second checkpoint over the first one, and `most_bytes=600` lets the system kill it when the file
# would grow beyond 600 bytes:


# %%
def save_in_place(path, data):
    path.write_bytes(data)


path, first, second = folder / "newest", b"1" * 1000, b"2" * 1000
save_in_place(path, first)
call_in_process(save_in_place, path, second, most_bytes=600)
found = path.read_bytes()
dl.show("the first checkpoint", found == first)
dl.show("the second checkpoint", found == second)

# %% [markdown]
# There was a checkpoint before the save, and now there is none, because opening a file for writing
# empties it before the first new byte arrives. You keep your old key until you've tried the new one
# in the lock, and a save should keep the old checkpoint in the same way. So write to a **different
# name**, let `os.fsync` bring the bytes to the disk, and only then `replace` the old file. On a
# local file system of Linux or macOS a replace is atomic, so a reader finds the old file or the new
# one, and never a part:


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

# %% [markdown]
# Keep a few checkpoints as well, because a run may have produced NaN before you noticed.
# `tf.train.CheckpointManager(checkpoint, folder, max_to_keep=3)` keeps three and writes the name of
# the newest one last, and when your script starts again, `restore_or_initialize()` restores it.
#
# > **Takeaway.** Write a checkpoint under a different name and rename it last, so that a whole one
# > is there at every moment. Keep more than one.
#
# <details><summary>Fine print</summary>
#
# If only the process is killed, you don't need `os.fsync`. If the power fails, you do, because the
# new name could be on the disk before the bytes are. On macOS the drive may still hold them in a
# buffer. Many object stores have no atomic rename, S3's general-purpose buckets among them, and
# there a library copies and deletes instead. So write the checkpoint's files first, and last a
# small file that names the newest checkpoint.
# </details>

# %% [markdown]
# ## Kill a worker
#
# For `fit` you write none of this, because `dl.Resume` saves all four parts and restores them when
# the script starts again:
#
# ```diff
# - model.fit(data, epochs=4)
# + model.fit(data, epochs=4, callbacks=[dl.Resume("checkpoints", every_steps=5)])
# ```
#
# It skips the batches that are done, so it needs a seed in each shuffle. In the next cell, our
# `fit` trains a model from `dl.distribute` for 40 steps, and returns its weights and the
# optimizer's count of steps.


# %%
def train(path, *callbacks, epochs=4):
    resume = dl.Resume(path, every_steps=5)
    trained = fit(dl.make_strategy("multi_worker"), *callbacks, resume, epochs=epochs)
    return trained | {"resumed from": str(resume.resumed_from)}


# %% [markdown]
# Synchronous workers wait for each other, so if one of them is lost, **all** have to start again,
# and `restart=1` allows the cluster to do that once. We train undisturbed first. Then `killed_once`
# makes worker 1 kill its own process at the end of step 17, by SIGKILL, which no code can catch:

# %%
cluster = dl.LocalCluster(workers=2, restart=1)
calm = cluster.run(train, folder / "calm", timeout_secs=60)

cluster.restart()  # new processes: each makes its strategy first of all
kill = killed_once(worker=1, step=17, note=folder / "was-killed")
recovered = cluster.run(train, folder / "disturbed", kill, timeout_secs=90)

# %%
for task, killed, whole in zip(cluster.tasks, recovered, calm, strict=True):
    dl.show(f"{task} resumed from", killed["resumed from"])
    dl.show(f"{task} steps", killed["steps"])
    dl.show(f"{task} equal bit for bit", np.array_equal(killed["weights"], whole["weights"]))

# %% [markdown]
# A process was killed, and the result is the same in every bit. Besides the four parts, that took
# three things:
#
# - **Both** workers started again, because worker 0 can't finish an all-reduce without worker 1.
# - Only the chief saved, and both read what it had saved, so several machines need a disk that all
#   of them share.
# - Each step counts once. Steps 16 and 17 were computed twice, but the first time they changed only
#   variables of processes that are gone.
#
# Now suppose that one machine is gone for good. We train two epochs on two workers, and resume from
# their checkpoint on one device, with the same global batch, the same seed and the same dropout.

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
cluster.close()
on_one = fit(dl.make_strategy("one_device"), dl.Resume(folder / "halfway", every_steps=5))
largest = float(np.abs(on_one["weights"] - calm[0]["weights"]).max())
dl.show("equal bit for bit", largest == 0)

# %% tags=["reveal"]
fewer_guess.reveal(
    "they differ by rounding only, less than 1e-4"
    if largest < 1e-4
    else "they differ by more than rounding",
    {
        "they differ by rounding only, less than 1e-4": "One device sums the same 32 examples, "
        "behind the same masks, in a different order than two workers.",
        "they are equal, bit for bit": "That would be so if the order of a sum didn't matter. One "
        "device drops the same units as two workers, but it sums 32 examples in a different order, "
        "and each addition rounds.",
        "they differ by more than rounding": "That would be so if each worker drew masks of its "
        "own. But two workers draw the masks of one device, each the rows of its examples.",
        "there are none: Resume refuses the checkpoint": "That would be so if a checkpoint knew "
        "the number of workers. It doesn't, so Resume takes it, and counts the steps on to 40.",
    },
)

# %% tags=["after-reveal"]
dl.show("largest difference of a weight", largest, below=1e-4)

# %% [markdown] tags=["after-reveal"]
# So you can continue with the machines that you have, and it's still the same training run. Even
# the masks of dropout are the same, because under `dl.distribute` they don't depend on the number
# of replicas. If you ever see a larger difference, look for a bug.
#
# > **Takeaway.** If a synchronous worker dies, start all of them again from one checkpoint. As many
# > workers as before give the same bits, and fewer give the same run up to rounding.
#
# <details><summary>Fine print</summary>
#
# Equal bits need seeds, deterministic operations and equal hardware, as in [lesson
# 06](06_reproducibility.ipynb). `dl.Resume` saves every `every_steps` steps and at the end of each
# epoch.
#
# Without distlab the survivor gets an error as well. Workers send heartbeats to the chief, and when
# those of worker 1 stop, the all-reduce of worker 0 raises `UnavailableError`, in our runs after 7
# to 11 seconds. If the *chief* dies, the others notice within a second or so. TensorFlow itself
# brings no worker back.
# </details>
#
# <details><summary>And Keras's own BackupAndRestore?</summary>
#
# We stopped a run of 40 steps in step 17, with a save after each step, and at the end its optimizer
# had counted 46. `keras.callbacks.BackupAndRestore` restored the weights of step 16, but went back
# to the beginning of the epoch, step 10, so it trained on six batches twice. In each restart it
# also begins with the order of the first epoch, and it restores neither the seeds of dropout nor
# the history.
# </details>

# %% [markdown]
# ## Asked to leave: SIGTERM
#
# A scheduler usually asks before it kills. It sends **SIGTERM** first, and SIGKILL some time later:
# by default after 30 seconds in Kubernetes, and in Slurm when a job's time is over. In many cases
# that's enough for a save.
#
# The obvious idea is to save right in the *handler*, the function that Python calls when the signal
# comes, and to end the process there. Here the signal comes in the middle of a step, between the
# change of the weight and the count of the step:


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
    ["weight 6, step 6", "weight 7, step 6", "weight 7, step 7"],
)

# %%
dl.show("exit code", call_in_process(train_and_save_in_handler, 9, 6).code)

# %% tags=["reveal"]
handler_guess.reveal(
    "weight 7, step 6",
    {
        "weight 7, step 6": "The signal came between the two lines of a step: the weight had "
        "changed, and the step wasn't counted yet.",
        "weight 6, step 6": "That would be so if the signal came before the step. The weight had "
        "already changed when it came.",
        "weight 7, step 7": "That would be so if the handler waited for the end of the step. "
        "Python runs it as soon as it can, even in the middle of a line.",
    },
)

# %% [markdown] tags=["after-reveal"]
# It saved half of a step, because Python runs a handler soon after the signal, wherever the program
# is, and a run that resumes from there trains step 7 twice. The exit code is a mistake, too: 0
# means "I'm done", so a supervisor, a program that starts failed runs again, won't start this one.
#
# A handler should therefore only take a note. The loop looks at the note after each step, where the
# state is whole, saves, and exits with 143, which means "I was asked to stop": it's 128 + 15, and
# 15 is the number of SIGTERM. In the exercise you'll write that.
#
# <details><summary>The signal comes at the same place. What does the repaired function save?
# </summary>
#
# Weight 7, step 7: the step in which the signal came is finished, and then it saves.
# </details>

# %% [markdown]
# `dl.Resume` does this on all workers at once. Here two workers train for 40 steps, worker 1 gets
# SIGTERM in step 17, and the launcher may start both of them again, once. The script asks for a
# checkpoint every 1,000 steps, so without the signal the newest one would be that of an epoch's
# end, step 10:

# %%
write_script(folder)
launched = launch_here("--workers", "2", "--max-restarts", "1", "train.py", folder=folder)
print(*launched.lines_with("life"), *launched.lines_with("steps"), sep="\n")
steps = {int(line.split()[-1]) for line in launched.lines_with("resumed from step")}
dl.show("all resumed from one step, 17 or soon after", len(steps) == 1 and 17 <= min(steps) <= 20)
dl.show("exit code", launched.exit_code)

# %% [markdown]
# Both workers started twice and ended with 40 steps, although only worker 1 got the signal.
# `dl.Resume` let them agree on a step, the chief saved it, and all exited with 143, so `distlab
# launch` started all of them again.
#
# > **Takeaway.** A handler only takes a note. Save between two steps, and exit with 143, so that a
# > supervisor starts you again.
#
# <details><summary>Fine print</summary>
#
# Python runs a handler between two of the small instructions into which it compiles a line. Only
# during a call into C code does the handler wait, so a worker in an all-reduce runs it when the
# all-reduce ends. With several workers, the notes must be exchanged, so that all leave after the
# same step.
# </details>
#
# <details><summary>On your machines: two things that must be true</summary>
#
# - **The signal reaches Python.** Often it reaches only a shell, which doesn't pass it on, so end
#   your shell script with `exec python train.py`. In Slurm, `--signal=TERM@120` sends SIGTERM to
#   the processes that `srun` started, about two minutes before the end, while `--signal=B:TERM@120`
#   sends it only to the batch shell.
# - **Something starts it again.** Kubernetes restarts a failed container on its node, according to
#   the pod's `restartPolicy`, but if the pod itself is taken away, only a controller such as a Job
#   creates a new one. Slurm requeues a job after a [preemption](../docs/glossary.md#preemption) or
#   a failed node, or when the script calls `scontrol requeue`; don't rely on the exit code there.
#
# A [spot instance](../docs/glossary.md#spot-instance) gets a notice instead of a signal. AWS writes
# it into the [instance's
# metadata](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html)
# two minutes before, and a program on the machine must turn it into SIGTERM.
# </details>
#
# <details><summary>TensorFlow's own handler, PyTorch and JAX</summary>
#
# `tf.distribute.experimental.PreemptionCheckpointHandler` is for loops of your own. It hears
# SIGTERM (on Google's cloud: the notice), lets the workers agree on a step, saves and exits with 42
# (on Google's cloud: 143), so give your supervisor that code, or pass an `exit_fn`. It saves what
# your `tf.train.Checkpoint` names, so seeds and the place in the data are yours to add.
#
# In PyTorch, `torchrun --max-restarts=3` starts all workers again if one fails, as `distlab launch`
# does on this machine. You save the `state_dict` of model *and* optimizer, the random states, and
# the place in the data, which `torchdata`'s `StatefulDataLoader` keeps. In JAX, Orbax writes
# checkpoints to a temporary name and renames them last, and random keys are explicit values, so you
# save them like weights.
# </details>

# %% [markdown]
# ## Extra: How often to save
#
# Saving costs time, and so does every failure, because it loses the work since the last checkpoint.
# Two numbers that you can measure decide between them: the seconds $C$ that a checkpoint takes, and
# the mean seconds $M$ between two failures of the whole training.
#
# If you save every $T$ seconds, saving takes the share $C/T$ of your time. A failure comes on
# average in the middle of an interval, so it loses $T/2$ seconds once in $M$: the share $T/(2M)$.
# The figure shows both for the opening's numbers, if a checkpoint takes 20 seconds:

# %%
every_secs, shares, best_secs = failure_costs.interval_costs()
figures.draw_interval(every_secs, shares, best_secs=best_secs)

# %% [markdown]
# You lose the least where the two curves meet, and solving $C/T = T/(2M)$ for $T$ gives [Young's
# rule](https://doi.org/10.1145/361147.361115) of 1974: $T = \sqrt{2CM}$. You needn't hit it
# exactly, because half or twice the best interval costs 7.5 % of the time instead of 6 %.
#
# One failure stops all machines, so ten times the machines fail ten times as often, and each time
# they also need to start again.

# %%
lost_on_1000 = 100 * failure_costs.lost_share(1000, restart_secs=300)
dl.show("1,000 machines lose, in %", lost_on_1000, digits=0)

# %% tags=["predict"]
waste_guess = dl.predict(
    "1,000 machines lose 5 % if a restart takes 5 minutes. What do 10,000 lose, if they save at "
    "their own best interval?",
    ["about 5 %", "about 23 %", "about 50 %"],
)

# %%
restarts = {"no time": 0.0, "1 minute": 60.0, "5 minutes": 300.0}
lost = failure_costs.lost_shares(
    {f"a restart takes {name}": secs for name, secs in restarts.items()}
)
figures.draw_waste(failure_costs.COUNTS, lost)

# %% tags=["reveal"]
percents = {5: "about 5 %", 23: "about 23 %", 50: "about 50 %"}
percent = 100 * failure_costs.lost_share(10_000, restart_secs=300)
waste_guess.reveal(
    percents[min(percents, key=lambda choice: abs(choice - percent))],
    {
        "about 23 %": "Saving and lost work grow about three times, and restarts ten times.",
        "about 5 %": "That would be so if saving more often cost nothing and made restarts rarer. "
        "It takes time itself, and no interval prevents a restart.",
        "about 50 %": "That would be so if everything grew ten times. Only the restarts do, "
        "because with a shorter interval saving and lost work grow about three times.",
    },
)

# %% [markdown] tags=["after-reveal"]
# On 1,000 machines restarts hardly matter, but on 100,000 they cost more than saving and lost work
# together, and a better interval can't reduce that part. There you need a quicker restart, or rarer
# failures.
#
# > **Takeaway.** Save every $\sqrt{2CM}$ seconds. The more machines you have, the more a quicker
# > restart is worth.
#
# <details><summary>Fine print</summary>
#
# We count each of the 419 interruptions as a failure of one of 2,048 machines with 8 GPUs, although
# some came from software or from the network, so one machine fails once in about 6,300 hours.
# `dl.Resume(folder, every_secs=...)` takes the interval in seconds.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. A run is resumed, and its loss continues smoothly. Was everything
# restored?</summary>
#
# The curve can't tell you, since a lost place in the data or lost seeds don't show in it. Compare
# the last weights with those of an undisturbed run, bit for bit.
# </details>
#
# <details><summary>2. One of eight synchronous workers dies. Why are all eight started again?
# </summary>
#
# The other seven wait for it in a collective, and their weights may be steps ahead of the
# checkpoint from which the eighth must begin.
# </details>
#
# <details><summary>3. A handler of SIGTERM saves at once and calls <code>sys.exit(0)</code>. What
# are the two mistakes?</summary>
#
# It may save half of a step, and exit code 0 says that training is done.
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/11_fault_tolerance.ipynb): write the parts one by one, and then a
#   pipeline that recovers, which the check runs on two workers while it kills one.
# - [Lesson 12](12_ring_all_reduce.ipynb): how an all-reduce travels, and how many bytes it sends.
# - TensorFlow's [fault-tolerance
#   section](https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras#fault_tolerance)
#   recommends `BackupAndRestore`, which trains on some batches twice, as you saw in "Kill a
#   worker".
