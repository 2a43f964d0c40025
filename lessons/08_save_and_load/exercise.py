# %% [markdown]
# # Exercise: save and load
#
# For [lesson 08](../notebooks/08_save_and_load.ipynb). You move a model to other replicas without
# losing its optimizer, restore a part of one and nothing less, export one that takes raw pixels,
# and say which worker writes where.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty |
# |---|---|---|---|
# | 1. `move_model` | repair a move that loses two things | 8 | easy |
# | 2. `partial_restore` | restore a body without its head, or refuse | 10 | medium |
# | 3. `export_service` | export a model together with its preprocessing | 12 | medium |
# | 4. `where_to_write` | who of several workers writes which file | 8 | medium |
#
# Write your answers in the cells that start with `# task:`, run them, then run the check below. If
# you get stuck, open the hint. The tasks do not need each other.

# %%
import keras
import tensorflow as tf

import distlab as dl

devices = dl.split_devices(4)
strategy = dl.make_strategy("mirrored", devices=devices)
tf.get_logger().setLevel("ERROR")  # no reminders that tf.function is faster
dl.show("replicas", strategy.num_replicas_in_sync, expected=4)

# %% [markdown]
# ## Task 1: move a model
#
# A model was trained on one device and saved as a `.keras` file. Somebody wrote `move`, which shall
# bring it to several replicas. Its predictions are right, and nothing else is. Repair it.
#
# - `path` is the file. The model was compiled, and trained for some steps with Adam.
# - `strategy` is where it shall go on, with two or three replicas.
# - It returns the model, ready for `fit`: all its variables are on all replicas, and its optimizer
#   goes on where it was.
# - Two lines are enough.
#
# <details><summary>Hint</summary>
#
# When does a variable get its copies? And what does `compile` do with an optimizer that a model
# has already?
# </details>


# %%
# task: move_model
def move(path, strategy):
    ### BEGIN SOLUTION
    with strategy.scope():
        return keras.saving.load_model(path)
    ### STUB
    model = keras.saving.load_model(path)
    with strategy.scope():
        model.compile(keras.optimizers.Adam(0.1), loss="mse")
    return model
    ### END SOLUTION


# %%
dl.check("move_model")

# %% [markdown]
# **Try next:** move the first line of the old version into the scope and leave the `compile` where
# it is. What does the check say now? Then take `dl.distribute` and no scope at all.

# %% [markdown]
# ## Task 2: restore a part, and nothing less
#
# A model of two parts, a body and a head, was written by a loop of somebody's own:
#
# ```python
# tf.train.Checkpoint(body=body, head=head, optimizer=optimizer).write(path)
# ```
#
# You want the body for a task of yours, with a new head. Write `restore_body(path, body)`.
#
# - `body` is a Keras model that was built: its variables are there, with random values.
# - Afterwards they have the values from the file. Head and optimizer stay in the file; that is no
#   error.
# - Where the file does not have **all** of `body`, it raises an error. Somebody may have called
#   the part by another name, or have made a shorter one.
# - It returns nothing. About 2 lines.
#
# <details><summary>Hint</summary>
#
# `read` returns something that you can ask. There are several questions: is all that *I* have in
# the file, is all of *the file* used, was there anything at all? Which one is yours?
# </details>


# %%
# task: partial_restore
def restore_body(path, body):
    ### BEGIN SOLUTION
    status = tf.train.Checkpoint(body=body).read(path)
    status.assert_existing_objects_matched()
    ### END SOLUTION


# %%
dl.check("partial_restore")

# %% [markdown]
# **Try next:** `assert_consumed` and `assert_nontrivial_match` in place of yours. Which file does
# each of them judge wrongly?

# %% [markdown]
# ## Task 3: export with the preprocessing
#
# Write `export(model, prepare, folder)` for people who have a camera and no Python of yours.
#
# - `model` was trained on images that `prepare` had made from raw pixels, and returns **scores**,
#   one for each of ten classes.
# - `prepare(pixels)` is a function of tensors; it takes uint8 pixels and returns float32 images.
# - `folder` is where the export goes, a string.
# - Its default signature takes raw pixels: uint8, of shape `(None, 8, 8, 1)`, any number of images.
#   It returns the **probabilities** of the classes, as its only output.
# - About 8 lines.
#
# <details><summary>Hint</summary>
#
# Write a function from pixels to probabilities first, then give it to a
# `keras.export.ExportArchive` as its endpoint, with an `input_signature`. The archive must know the
# model: `track` it.
# </details>


# %%
# task: export_service
def export(model, prepare, folder):
    ### BEGIN SOLUTION
    def probabilities(pixels):
        return tf.nn.softmax(model(prepare(pixels), training=False))

    archive = keras.export.ExportArchive()
    archive.track(model)
    raw = tf.TensorSpec((None, 8, 8, 1), tf.uint8)
    archive.add_endpoint("serve", probabilities, input_signature=[raw])
    archive.write_out(folder, verbose=False)
    ### END SOLUTION


# %%
dl.check("export_service")

# %% [markdown]
# **Try next:** `model.export(folder)`, which is one line. What do the people with the camera get?

# %% [markdown]
# ## Task 4: who writes where
#
# Several workers call `model.save(where(...))` at the same time, on a disk that all of them see.
# Write `where(folder, job, index, jobs)`.
#
# - `folder` is a string, the folder where the model shall be.
# - `job` and `index` say which task asks, such as `"worker"` and `2`.
# - `jobs` is how many tasks of each job there are: `{"chief": 1, "worker": 3}` or `{"worker": 2}`.
# - The chief gets `folder/model.keras`. It is the task of the job `chief`; where there is none,
#   worker 0 is chief.
# - Every other task gets a path that nobody else has. It ends with `.keras` as well, since
#   `model.save` asks for that.
# - About 4 lines.
#
# <details><summary>Hint</summary>
#
# Decide first, in one line, whether the task is the chief. What must be in the path of the others,
# so that no two of them share it?
# </details>


# %%
# task: where_to_write
def where(folder, job, index, jobs):
    ### BEGIN SOLUTION
    is_chief = job == "chief" or ("chief" not in jobs and index == 0)
    if is_chief:
        return f"{folder}/model.keras"
    return f"{folder}/temporary-{job}-{index}/model.keras"
    ### END SOLUTION


# %%
dl.check("where_to_write")

# %% [markdown]
# **Try next:** the disk is not shared: each machine sees its own. Which of your rules is still
# needed, and where is the model afterwards?

# %% [markdown]
# ## Next steps
#
# - [Lesson 08](../notebooks/08_save_and_load.ipynb), if a check sent you back to it.
# - Take `move` to a model of your own: train, save, move, train on, and compare with a run that
#   stayed. If the weights differ, what do its layers or callbacks remember that is in no file?
