# %% [markdown]
# # Many workers: who waits, and where
#
# Synchronous workers meet once a step, and the one that arrives first waits for the others, forever
# if need be. A worker that crashes is easy to notice: in our runs, the other workers got an error
# within 11 seconds. A worker that's alive but runs different code is worse, because the others wait
# for it, every process looks healthy, and TensorFlow sets no limit to the wait. In PyTorch the
# limit was 30 minutes, so one hang on 100 machines cost 50 machine hours, until PyTorch [cut it to
# ten minutes for NCCL](https://github.com/pytorch/pytorch/pull/110947) in 2023.
#
# It takes one file too few, one batch too many, or a line under the wrong `if`. After this lesson
# you can
#
# - start two real workers, and say who is who among them,
# - write a loop in which every worker reaches every collective, in the same order,
# - tell a training that hangs from one that goes on and is wrong,
# - say within seconds which worker waits, and in which line.
#
# **Time:** {minutes}. **Needs:** lessons [03](03_custom_training_loop.ipynb) (the training loop)
# and [08](08_save_and_load.ipynb) (saving), but no GPU and no download. The lesson starts two
# processes on this machine, which works on Linux and macOS; on Windows, use WSL2.
#
# <details><summary>Do you remember? Lesson 08: two workers, and only the chief saves. When does
# that hang?</summary>
#
# It hangs if a saved variable must be read from all workers, such as a count of examples. The chief
# asks for the other worker's part, and the other worker, which isn't saving, doesn't answer.
#
# </details>

# %%
# %load_ext distlab
import distlab as dl
from distlab.course.figures.workers import draw_lanes
from distlab.course.lesson_09_multi_worker import runs

dl.split_devices(1)
draw_lanes(runs.A_STEP, xlabel="time (a sketch, without a scale)")

# %% [markdown]
# The sketch shows one step. Each worker computes its gradients, and then both sum them in an
# [all-reduce](../docs/glossary.md#all-reduce), where the faster worker waits.
#
# ## Who is who: TF_CONFIG
#
# Until now all replicas shared one process. Now each [worker](../docs/glossary.md#worker) is a
# process of its own, with its own memory and its own TensorFlow, and it could just as well run on
# another machine. You start your script once for each worker, and change one line of it:
#
# ```diff
# - strategy = tf.distribute.MirroredStrategy()
# + strategy = tf.distribute.MultiWorkerMirroredStrategy()
# ```
#
# Here `dl.LocalCluster` starts two workers. A cell that begins with `%%workers` runs on both of
# them, and `%%workers worker:1` runs it on one:

# %%
cluster = dl.LocalCluster(workers=2)
dl.show("tasks", list(cluster.tasks))

# %%
# %%workers worker:1
secret = 42

# %%
# %%workers
print("secret" in globals())

# %% [markdown]
# Workers share no memory, so they must send what the others need. Where the others are, and which
# of them it is itself, a worker reads from the environment variable TF_CONFIG when it makes its
# strategy:

# %%
import json
import re

for task in cluster.tasks:
    print(re.sub(r":\d{5}", ":PORT", json.dumps(cluster.tf_config(task))))

# %% [markdown]
# The list under `cluster` is the same on every worker, in the same order, and only the `index`
# differs. Worker 0 is the [chief](../docs/glossary.md#chief), which does what must be done once,
# such as writing a file.
#
# TensorFlow starts no other worker for you. If you set the first TF_CONFIG in a terminal and run
# your script there, making the strategy is already the first line that waits. It waits up to an
# hour, and its log names the missing worker, but only at the level INFO, so set
# `TF_CPP_MIN_LOG_LEVEL=0` to see it:
#
# ```
# Waiting for 1/2 tasks to connect.
# Example stragglers: /job:worker/replica:0/task:1
# ```
#
# > **Takeaway.** Every worker runs your whole script and reads the same list of workers. Only the
# > index says which one it is, and nobody trains until all have started.
#
# <details><summary>Fine print</summary>
#
# In a terminal, `distlab launch --workers 2 train.py` sets TF_CONFIG and starts both workers. The
# site's page "From your laptop to two machines" (`docs/two_machines.md`) continues from there, and
# "Beyond one machine" (`docs/engines.md`) has Slurm, Kubernetes and Ray.
# `dl.make_strategy("multi_worker")` waits five minutes instead of an hour, and its error names the
# missing worker.
#
# </details>
#
# ## The first all-reduce
#
# Each worker makes its strategy once, at its start, and that's where the workers find each other.
# Then worker 0 has 10, worker 1 has 20, and both ask for the sum:

# %%
# %%workers
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
mine = tf.constant(10 * (me + 1))
total = strategy.reduce("SUM", mine, axis=None)
print("worker", me, "of", strategy.num_replicas_in_sync, "has", mine.numpy(), "->", total.numpy())

# %% [markdown]
# Neither of them collected the sum for the other one: both sent, both received, and both went on
# with the same number. Such an operation is a [collective](../docs/glossary.md#collective), and the
# rest of this lesson follows from one rule: **it returns only after every worker has called it.**
#
# Some collectives don't look like one. Next, each worker draws three random numbers without a seed,
# and starts a variable from them in the strategy's scope. If the mean over both workers is a
# worker's own value, then both have the same:

# %%
# %%workers
drawn = tf.random.normal([3])
with strategy.scope():
    variable = tf.Variable(drawn)
for name, value in {"numbers drawn": drawn, "variables": variable.read_value()}.items():
    mean = strategy.reduce("MEAN", value, axis=None)
    print(f"{name} are equal:", bool(tf.reduce_all(tf.abs(mean - value) < 1e-6)))

# %% [markdown]
# Both drew numbers of their own, and still their variables agree, because a variable that you make
# in the scope starts with the chief's value everywhere. You don't need a seed for that, but you do
# need all workers: one that makes a variable alone waits for the others.
#
# > **Takeaway.** A collective returns only after every worker has called it. The first to arrive
# > waits there.
#
# ## The loop
#
# Now both workers train on 325 digits, in global batches of 20. The model is a single layer, and
# plain `fit` on one device says what should come out.

# %%
import time

import keras
import tensorflow as tf

folder = runs.temporary_folder()  # removed with the kernel
logs_of_one, weights_of_one = runs.fit_on_one_device()

# %% [markdown]
# The loop is that of lesson 03: `strategy.run` takes a step on each replica, and the optimizer sums
# the gradients of all workers. Each loss is divided by the number of examples on *all* workers, so
# every example weighs the same, even in a partial batch.
#
# `cluster.run` will copy this function to both workers and call it there. Its first line gets the
# strategy that each worker made above, and `taken` plays no part in the training: it only tells us
# how many examples this worker got in each step.


# %%
def train(batch_size, examples=325):
    from __main__ import strategy  # the worker's own

    with strategy.scope():
        model = runs.build()

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            losses = runs.each_loss(y, model(x, training=True))
            mine = tf.cast(tf.size(losses), tf.float32)
            count = tf.distribute.get_replica_context().all_reduce("SUM", mine)
            loss = tf.reduce_sum(losses) / count
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    step = tf.function(lambda batch: strategy.run(replica_step, args=batch), autograph=False)
    taken = []
    for batch in strategy.experimental_distribute_dataset(runs.batches(batch_size, examples)):
        step(batch)
        taken.append(runs.examples_here(strategy, batch))
    return {"weights": model.get_weights(), "taken": taken}


# %% [markdown]
# Batch the data by the **global** size, because each worker takes its half of a distributed batch.
# If you pass 10 for 10 examples on each worker, nothing crashes, and yet you train with half of the
# batch that you wanted. With batches of 20, both workers end with the weights of a single device:

# %%
for worker in cluster.run(train, 20):
    difference = runs.max_difference(worker["weights"], weights_of_one)
    dl.show("max difference to one device", difference, below=1e-6)
ten, _ = cluster.run(train, 10)
dl.show("batches of 10: worker:0 takes", ten["taken"][0])

# %% [markdown]
# Now leave out the last four digits. In batches of 20, the 321 digits that are left fill 16 steps,
# and the last batch holds a single digit, which worker 0 gets.

# %% tags=["predict"]
share_guess = dl.predict(
    "What does worker 1 do while worker 0 trains on the last digit?",
    [
        "nothing: it's done after 16 steps",
        "it takes a step without an example",
        "it takes a step with the same digit",
        "it hangs in the all-reduce of a step too many",
    ],
)

# %%
fewer = [worker["taken"] for worker in cluster.run(train, 20, 321)]
dl.show("steps with 321 digits", [len(taken) for taken in fewer])
dl.show("examples in the last step", [taken[-1] for taken in fewer])

# %% tags=["reveal"]
share_guess.reveal(
    "nothing: it's done after 16 steps"
    if len(fewer[1]) == 16
    else ("it takes a step without an example", "it takes a step with the same digit")[
        fewer[1][-1]
    ],
    {
        "it takes a step without an example": "Worker 0 can't finish its all-reduce without it, so "
        "a distributed data set hands worker 1 an empty batch.",
        "nothing: it's done after 16 steps": "A loop over the worker's own digits would end like "
        "this, and worker 0 would wait in its all-reduce. A distributed data set asks all workers "
        "whether any of them still has data.",
        "it takes a step with the same digit": "Then that digit would count twice, and the weights "
        "would differ from a single device's. The workers share each batch, also the last.",
        "it hangs in the all-reduce of a step too many": "For that it would have to take more "
        "steps than worker 0. Both take 17, so every all-reduce has its partner.",
    },
)

# %% [markdown] tags=["after-reveal"]
# A distributed data set makes all workers take equally many steps. Worker 1 adds nothing to the
# last sum, and because the loss is divided by the count on all workers, its empty batch does no
# harm either.
#
# > **Takeaway.** Batch by the global size, and loop over a distributed data set. Then nobody is
# > missing in the last step, and the weights are those of a single device.
#
# <details><summary>Fine print</summary>
#
# If you add workers and keep 10 examples on each, the global batch grows, and the learning rate
# needs a new choice: see `dl.plan_batch`. A `shuffle` needs the same seed on all workers here,
# because otherwise some examples are trained twice and others never. A data set from
# `distribute_datasets_from_function` takes equally many steps, too.
#
# </details>

# %% [markdown]
# ## One file too few
#
# Before it takes a step, a worker needs data. If a data set reads files, TensorFlow deals out whole
# files to the workers unless you choose otherwise, and [lesson 05](05_input_pipelines.ipynb) has
# all the policies. Here two workers read one file:


# %%
def read_one_file(file):
    from __main__ import strategy

    data = strategy.experimental_distribute_dataset(tf.data.TextLineDataset([file]).batch(8))
    return len(list(data))


# %% tags=["predict"]
file_guess = dl.predict(
    "One file, two workers. What do they do?",
    [
        "both read the file and share its lines",
        "both stop with an error",
        "one reads the file, and the other has no data and finishes",
        "one stops with an error, and the other waits",
    ],
)

# %%
try:
    cluster.run(runs.as_in_a_cell, read_one_file, runs.write_a_file(folder), timeout_secs=4)
except TimeoutError as late:
    waits = cluster.waits(late)
print(*waits, sep="\n")

# %% tags=["reveal"]
at_file = [wait.task for wait in waits if not wait.is_over]
file_guess.reveal(
    "one stops with an error, and the other waits"
    if len(at_file) == 1
    else "both read the file and share its lines",
    {
        "one stops with an error, and the other waits": "The chief has the only file and finds out "
        "that there are too few. Worker 1 has none, and waits for a worker that has left the loop.",
        "both read the file and share its lines": "They would under the policy `DATA`. The default "
        "sees files, and deals out nothing smaller.",
        "both stop with an error": "If both looked for files, both would find too few. Only the "
        "worker with a file finds out, and nobody tells the other one.",
        "one reads the file, and the other has no data and finishes": "Then they'd take different "
        "numbers of steps, which a distributed data set never allows. It asks all workers whether "
        "any of them has data, and one of them has left.",
    },
)

# %% [markdown] tags=["after-reveal"]
# The error names the cause and the cure: choose the policy `DATA`, or write at least as many files
# as there are workers. But only the chief printed it. Worker 1 got no error at all, and still
# waited in a collective when `timeout_secs` ended it, which is what `cluster.waits` shows.
#
# It waits because the chief's *process* lives on, as it does after an error in a notebook or under
# an `except`. In a script that process would end, and worker 1 would soon get an error of its own:
# `UnavailableError`, `Socket closed`. It says nothing about files, so it hides the cause.
#
# > **Takeaway.** When a job hangs or a connection breaks, read every worker's log. The cause may be
# > in only one of them.

# %% [markdown]
# ## One batch too many
#
# A plain loop over each worker's own batches doesn't promise equal steps. Let worker 0 have three
# batches and worker 1 only two, in each of two epochs. In every step they sum a number that names
# epoch and step, such as 12 for epoch 1 and step 2, so a right sum is twice that number. A worker
# that was stopped while it waited can't be used again, so `begin_again` starts both workers, and
# each of them makes its strategy again.


# %%
def two_epochs(folder):
    from __main__ import strategy

    me = strategy.cluster_resolver.task_id
    with (folder / f"sums-{me}.txt").open("w") as file:
        for epoch in (1, 2):
            for step in range(1, 4 if me == 0 else 3):
                total = strategy.reduce("SUM", 10.0 * epoch + step, axis=None)
                print(f"{10 * epoch + step} -> {float(total):g}", file=file, flush=True)


runs.begin_again(cluster)

# %% tags=["predict"]
unequal_guess = dl.predict(
    "In step 3 of epoch 1, worker 1 has no batch left. What does worker 0 get for its 13?",
    ["an error", "a hang, there and then", "a wrong sum", "13, because nothing counts as 0"],
)

# %%
try:
    cluster.run(two_epochs, folder, timeout_secs=5)
except TimeoutError as late:
    print(*cluster.waits(late), sep="\n")
sums = [(folder / f"sums-{me}.txt").read_text().splitlines() for me in (0, 1)]
for task, lines in zip(cluster.tasks, sums, strict=True):
    dl.show(f"{task}: its number -> the sum", lines)

# %% tags=["reveal"]
unequal_guess.reveal(
    "a hang, there and then"
    if len(sums[0]) < 3
    else "13, because nothing counts as 0"
    if sums[0][2].endswith(" 13")
    else "a wrong sum",
    {
        "a wrong sum": "Worker 1 has gone on to epoch 2, and its next sum is the partner that "
        "worker 0 was waiting for. TensorFlow raises no error.",
        "an error": "You'd get one if a collective knew to which step it belongs. TensorFlow "
        "compares shapes and types, and those agree.",
        "a hang, there and then": "It would hang there if worker 1 had stopped after its two "
        "batches. Worker 1 goes on to the next epoch, though, so the hang comes later.",
        "13, because nothing counts as 0": "A collective that knew the batches could count it so. "
        "It knows nothing of them, and waits for a number.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **Collectives have no names, so only their order counts.** When worker 0 asked for its third sum,
# worker 1 was already in the next epoch, and TensorFlow summed the two numbers without an error.
# It's like a shirt that you button one hole too low: every button finds a hole, and you notice only
# at the collar. From the third step on, both workers sum numbers that don't belong together, and
# the hang comes when worker 1 has finished. So a run that hangs in its last epoch may have been
# wrong since its first.
#
# So let a distributed data set count the steps, or give every worker the same number of steps
# yourself.
#
# > **Takeaway.** All workers must reach the same collectives, in the same order. One step too many
# > gives you wrong sums first, and a hang much later.
#
# <details><summary>Fine print</summary>
#
# In our tests TensorFlow raised an error if the two shapes or types differed, but the gradients of
# the next step have the shapes of this one's.
#
# </details>

# %% [markdown]
# ## A line under the wrong if
#
# At the end of an epoch, the chief writes down the mean loss of both workers, and the other worker
# waits until the file is there:


# %%
def end_of_epoch(path, losses):
    from __main__ import strategy

    me = strategy.cluster_resolver.task_id
    if me == 0:
        mean = strategy.reduce("MEAN", losses[me], axis=None)
        path.write_text(str(float(mean)))
    while not path.exists():
        time.sleep(0.1)


runs.begin_again(cluster)

# %% tags=["predict"]
waits_guess = dl.predict(
    "Both workers call `end_of_epoch`. Which one waits without end?",
    ["neither", "worker:0", "worker:1", "both"],
)

# %%
try:
    cluster.run(end_of_epoch, folder / "mean.txt", [1.0, 3.0], timeout_secs=5)
except TimeoutError as late:
    waits = cluster.waits(late)
print(*waits, sep="\n")

# %% tags=["reveal"]
waiting = [wait.task for wait in waits if not wait.is_over]
waits_guess.reveal(
    "both" if len(waiting) == 2 else "".join(waiting) or "neither",
    {
        "both": "Worker 0 needs a `reduce` of worker 1, and worker 1 needs the file that worker 0 "
        "writes after its `reduce`.",
        "neither": "If `reduce` could fetch the loss of worker 1, both would finish. It waits "
        "until worker 1 calls `reduce` too, and worker 1 never does.",
        "worker:0": "A worker 1 that needed nothing would leave it alone there. But worker 1 waits "
        "for the file, and worker 0, which waits in `reduce`, never writes it.",
        "worker:1": "Worker 0 would have to go on without writing. It doesn't get past its "
        "`reduce`, which needs worker 1.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Each waits for the other, and without our time limit they'd wait until you stop them, while both
# processes look alive. A `reduce` can't fetch a value from a worker that runs different code, so
# **every worker must reach every collective**. Keep them all out of an `if` that can differ between
# workers, and put only what needs none under `if me == 0`, such as printing, or writing a number
# that the chief already has:
#
# ```python
# mean = strategy.reduce("MEAN", losses[me], axis=None)  # on both workers
# if me == 0:
#     path.write_text(str(float(mean)))
# ```
#
# `cluster.waits` is ours, so what do you do in a script of your own? Python's `faulthandler` prints
# the stack of every thread when a time is over. Write this before the part that may hang:
#
# ```python
# import faulthandler
#
# faulthandler.dump_traceback_later(600)  # seconds
# ```
#
# We put it into a script with our `end_of_epoch` and start two workers. In each stack, look for the
# first line that names your own file, because Python prints the most recent call first, and the
# lines above it are TensorFlow's:

# %% tags=["after-reveal"]
print(*runs.stacks_of_a_hang(), sep="\n")

# %% [markdown] tags=["after-reveal"]
# Worker 0 waits in a collective, and worker 1 is elsewhere, so worker 1's line shows what keeps it
# away. If a script already hangs and has no `faulthandler`, ask each process from outside with
# `py-spy dump --pid PROCESS_ID`.
#
# > **Takeaway.** In a hang, compare the stacks of all workers, and look for the worker that isn't
# > in a collective. It's the one for which the others wait.
#
# <details><summary>Fine print</summary>
#
# TensorFlow doesn't find this hang by itself, because a worker's
# [heartbeats](../docs/glossary.md#heartbeat) only say that its *process* is alive. With
# [CommunicationOptions][options]`(timeout_seconds=120)`, a worker that waits longer in a collective
# gets a `DeadlineExceededError`. Use that for debugging only, since each collective then starts a
# thread that lives as long as the limit.
#
# [options]: https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/CommunicationOptions
#
# </details>

# %% [markdown]
# ## Save from many
#
# Writing a file looks like a job for the chief alone. But a variable can have a value of its own on
# each worker, such as the count in a metric, and **reading such a variable is a collective**, so a
# chief that saves it alone waits. That's why all workers save: the chief to the path, and every
# other worker to a temporary folder that it then removes.
#
# For a Keras model you needn't write that, nor the loop. `fit` of a model from `dl.distribute`
# counts examples as above, and its `save` lets every worker take part:


# %%
def fit_on_workers(path):
    from __main__ import strategy

    model = dl.distribute(runs.build, strategy)
    logs = model.fit(runs.batches(20), shuffle=False, verbose=0).history
    model.save(path)
    return logs


runs.begin_again(cluster)
fitted = cluster.run(fit_on_workers, folder / "model.keras")
dl.show("logs equal on both workers", fitted[0] == fitted[1])
dl.show("loss", fitted[0]["loss"], expected=logs_of_one["loss"])
loaded = keras.saving.load_model(folder / "model.keras")
difference = runs.max_difference(loaded.get_weights(), weights_of_one)
dl.show("max difference to one device", difference, below=1e-6)

# %% [markdown]
# Both workers saved to the same path, and the file is whole. Both also log the loss of *all*
# examples, so a callback such as early stopping decides the same on both.
#
# So workers meet in more places than it seems at first:
#
# | line | every worker waits there for |
# |---|---|
# | making the strategy | all workers to start |
# | making a variable in the scope | the chief's first value |
# | the next batch of a distributed data set | each worker to say whether it has data |
# | `reduce`, `all_reduce`, an optimizer's step | each worker's numbers |
# | reading or saving a metric or another count | each worker's part |
#
# > **Takeaway.** Saving can be a collective, so all workers save. Only the place to which they
# > write may differ.
#
# <details><summary>Fine print</summary>
#
# Keras's own `fit` [crashes under this
# strategy](https://github.com/keras-team/keras/issues/20585).
#
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# In PyTorch, `torchrun --nproc-per-node 2 train.py` starts the processes and sets `RANK`,
# `WORLD_SIZE` and `MASTER_ADDR` in place of TF_CONFIG, and `init_process_group` joins them. In JAX,
# `jax.distributed.initialize()` joins the processes. In both, collectives match by their order, as
# here, but a PyTorch `DataLoader`'s batch size is that of one process.
#
# </details>
#
# ## Check yourself
#
# <details><summary>1. A script hangs at the end of its last epoch, and only there. What is likely,
# and do you keep the weights?</summary>
#
# One worker probably has a batch more than the others, because its loop goes over a plain data set.
# In earlier epochs the extra step may have met a step of the next epoch, so don't trust the
# weights.
#
# </details>
#
# <details><summary>2. <code>if chief: print(strategy.reduce(...))</code> doesn't hang. Is it right?
# </summary>
#
# No. The chief's <code>reduce</code> may have met a later collective of the other workers, and then
# all of them have a wrong number.
#
# </details>
#
# <details><summary>3. Your script on 8 workers reads 4 files, and at its first batch worker 7 ends
# with <code>Socket closed</code>. Which logs do you read?</summary>
#
# All of them. TensorFlow deals out files, and four workers have none. The workers with a file got
# the error that names the cause, and when their processes ended, the others lost the connection.
#
# </details>

# %%
from distlab.course.predictions import recap

cluster.close()
recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/09_multi_worker.ipynb): a loop on two workers, and four programs to
#   diagnose.
# - [Lesson 10](10_parameter_server.ipynb): workers that don't wait for each other.
# - TensorFlow's [multi-worker
#   tutorial](https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras) is the
#   primary source, but its Keras `fit` crashes on Keras 3, and [its custom
#   loop](https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl) stops at
#   `reset_states`, which is now `reset_state`.
