# %% [markdown]
# # Exercise: save and load
#
# For [lesson 08](../notebooks/08_save_and_load.ipynb). You move a model to more replicas without
# losing its optimizer, restore one part of a model or raise an error, export a model that takes raw
# pixels, and say which worker writes where.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `move_model` | repair a move that loses two things | 8 | medium | core |
# | 2. `partial_restore` | restore a body without its head, or raise an error | 10 | medium | core |
# | 3. `export_service` | export a model together with its preprocessing | 12 | medium | extra |
# | 4. `where_to_write` | which of several workers writes which file | 8 | medium | core |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below. If
# you get stuck, open a hint. You can do the tasks in any order.

# %%
import keras
import tensorflow as tf

import distlab as dl

devices = dl.split_devices(4)
strategy = dl.make_strategy("mirrored", devices=devices)
tf.get_logger().setLevel("ERROR")  # no reminders that tf.function is faster
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## Task 1: move a model and slow it down
#
# Why can't this model go on, although its predictions are right? `move` should bring it from one
# device to several replicas, where it continues with a smaller learning rate. Run the check, which
# will report an error from `fit`, and repair the function. The error isn't the lesson's, because
# this optimizer is made inside the scope. Four lines are enough.
#
# <details><summary>Hint 1</summary>
#
# Which variables does the version below make inside the scope, and which outside? And which part
# of the file holds the learning rate?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Look at where `load_model` is called, and at what `compile` replaces.
# </details>
#
# <details><summary>Hint 3</summary>
#
# Load inside `with strategy.scope():`, then set `model.optimizer.learning_rate`, without compiling.
# </details>


# %%
# task: move_model
def move(path, strategy, rate):
    """Loads a model onto all replicas, to continue with a smaller learning rate.

    Args:
        path: A `.keras` file. The model was compiled and trained for some steps with Adam.
        strategy: A strategy with two or three replicas.
        rate: The new learning rate.

    Returns:
        The model, ready for `fit`: all its variables are on all replicas, and its optimizer
        continues where it was, with the new rate.
    """
    ### BEGIN SOLUTION
    with strategy.scope():
        model = keras.saving.load_model(path)
    model.optimizer.learning_rate = rate
    return model
    ### STUB
    model = keras.saving.load_model(path)
    with strategy.scope():
        model.compile(keras.optimizers.Adam(rate), loss="mse")
    return model
    ### END SOLUTION


# %%
dl.check("move_model")

# %% [markdown]
# **Try next:** go back to the version that you were given, move its first line into the scope, too,
# and keep the call of `compile`. What does the check say now, and what does it say if you use
# `dl.distribute` and no scope at all?

# %% [markdown]
# ## Task 2: restore a part, and nothing less
#
# How do you restore a body for a new head, and get an error if the file hasn't all of it? Write
# `restore_body`, for which two lines are enough. A custom loop wrote the file like this:
#
# ```python
# tf.train.Checkpoint(body=body, head=head, optimizer=optimizer).write(path)
# ```
#
# <details><summary>Hint 1</summary>
#
# You can ask the object that `read` returns whether all that *you* have is in the file, whether all
# of *the file* was used, or whether there was anything at all. Which question is yours?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Look at the lesson's table of what you can say to the object that `read` returns. Which row lets
# the head and the optimizer stay in the file?
# </details>
#
# <details><summary>Hint 3</summary>
#
# Read with `tf.train.Checkpoint(body=body).read(path)`. Then call
# `assert_existing_objects_matched()` on what it returns.
# </details>


# %%
# task: partial_restore
def restore_body(path, body):
    """Gives the variables of a body their values from a checkpoint.

    Args:
        path: The checkpoint's path. That the head and the optimizer stay in the file is no error.
        body: A Keras model whose variables exist, with random values.

    Raises:
        Exception: The file doesn't have **all** of `body`, because it calls this part by a
            different name or has fewer layers. Any kind of error will do.
    """
    ### BEGIN SOLUTION
    status = tf.train.Checkpoint(body=body).read(path)
    status.assert_existing_objects_matched()
    ### END SOLUTION


# %%
dl.check("partial_restore")

# %% [markdown]
# **Try next:** the check uses a right file, one that calls the body `encoder`, and one that has
# only the first layer. First use `assert_consumed`, and then `assert_nontrivial_match`, which asks
# only whether anything but the outermost object was found. Which of the two refuses the right file,
# and which accepts a wrong one?

# %% [markdown]
# ## Task 3: export with the preprocessing
#
# What must be in an export for people who have a camera, and not your Python code? Write `export`.
# The model was trained on images that `prepare` had made from raw pixels, and it returns
# **scores**. A client sends raw pixels, and wants to know the digit and how probable it is. Nine
# lines are enough.
#
# <details><summary>Hint 1</summary>
#
# Follow one image from raw pixels to its two numbers. How many steps are there, and which of them
# does the model itself take?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Everything that a client shouldn't have to do must be inside the function that you export, and the
# function's signature says what a client sends.
# </details>
#
# <details><summary>Hint 3</summary>
#
# Write a function of pixels that computes `tf.nn.softmax(model(prepare(pixels)))`, and returns a
# dictionary with `tf.argmax` and `tf.reduce_max` of it, along axis 1. `track` the model, and give
# the function to `ExportArchive.add_endpoint`, with an `input_signature` of one `tf.TensorSpec`:
# uint8, and None for the number of images.
# </details>


# %%
# task: export_service
def export(model, prepare, folder):
    """Exports a model whose signature `serving_default` takes raw pixels.

    The pixels are uint8, of shape `(None, 8, 8, 1)`: any number of images. There are two outputs,
    with one number for each image: `digit`, the class with the highest score, and `probability`,
    the probability of this class.

    Args:
        model: Takes prepared images, and returns one score for each of ten classes.
        prepare: A function of tensors that takes uint8 pixels and returns float32 images.
        folder: Where the export goes, a string.
    """

    ### BEGIN SOLUTION
    def best(pixels):
        chances = tf.nn.softmax(model(prepare(pixels), training=False))
        return {"digit": tf.argmax(chances, axis=1), "probability": tf.reduce_max(chances, axis=1)}

    archive = keras.export.ExportArchive()
    archive.track(model)
    raw = tf.TensorSpec((None, 8, 8, 1), tf.uint8)
    archive.add_endpoint("serve", best, input_signature=[raw])
    archive.write_out(folder, verbose=False)
    ### END SOLUTION


# %%
dl.check("export_service")

# %% [markdown]
# **Try next:** `model.export(folder)`, which is one line. What do the people with the camera get?

# %% [markdown]
# ## Task 4: which worker writes where
#
# Which worker writes where, if all call `model.save(where(...))` at the same time, on a disk that
# they share? Write `where`, which only returns a path, because the program makes the folder of each
# path itself. The chief is the task of the job `chief`, or worker 0 if there's no such job. Four
# lines are enough.
#
# <details><summary>Hint 1</summary>
#
# In which of the two clusters is worker 0 the chief? And what tells any two of the other tasks
# apart?
# </details>
#
# <details><summary>Hint 2</summary>
#
# First decide by `job`, `index` and `jobs` whether the task is the chief. For the other tasks, put
# what tells them apart into the path.
# </details>
#
# <details><summary>Hint 3</summary>
#
# The task is the chief if `job` is `"chief"`, or if `jobs` has no `"chief"` and `index` is 0. The
# path of a different task has both `job` and `index` in the name of a folder.
# </details>


# %%
# task: where_to_write
def where(folder, job, index, jobs):
    """The path under which a task saves the model.

    Args:
        folder: The folder where the model should be, a string.
        job: The job of the task that calls, such as `"worker"`.
        index: The number of that task in its job, such as `2`.
        jobs: The number of tasks of each job: `{"chief": 1, "worker": 3}` or `{"worker": 2}`.

    Returns:
        `folder/model.keras` for the chief. Every other task gets a path of its own, which ends
        with `.keras` as well, because `model.save` asks for that.
    """
    ### BEGIN SOLUTION
    is_chief = job == "chief" or ("chief" not in jobs and index == 0)
    if is_chief:
        return f"{folder}/model.keras"
    return f"{folder}/temporary-{job}-{index}/model.keras"
    ### END SOLUTION


# %%
dl.check("where_to_write")

# %% [markdown]
# **Try next:** suppose that the disk isn't shared, and each machine sees its own. Which of your
# rules do you still need, and where is the model afterwards?

# %% [markdown]
# ## Next steps
#
# - [Lesson 08](../notebooks/08_save_and_load.ipynb), if a check sent you back to it.
# - Take `move` to a model of your own: train, save, move, train on, and compare with a run that
#   stayed. If the weights differ, what do its layers or callbacks remember that is in no file?
# - [Lesson 09](../notebooks/09_multi_worker.ipynb): the workers of task 4, as real processes.
