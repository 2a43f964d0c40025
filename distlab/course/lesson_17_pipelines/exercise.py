# %% [markdown]
# # Exercise: pipelines that run
#
# This exercise follows [lesson 17](../notebooks/17_pipelines.ipynb). Each task is a puzzle: you
# write an order, the engine runs it with real gradients, and par says how many ticks are enough
# and how little a device can keep.

# %% [markdown]
# ## Overview
#
# | task | what you do | minutes | difficulty | path |
# |---|---|---|---|---|
# | 1. `gpipe` | all micro-batches forward, then all backward | 6 | easy | core |
# | 2. `one_f_one_b` | the same ticks, and half of the memory | 15 | medium | core |
# | 3. `interleaved` | two pieces of the model on each device | 25 | hard | extra |
# | 4. `zero_bubble` | put off the half that nobody waits for | 15 | hard | extra |
#
# | par, for four devices and eight micro-batches | ticks | kept at most |
# |---|---|---|
# | 1. GPipe | 33 | 8 |
# | 2. 1F1B | 33 | 4 |
# | 3. interleaved | 28.5 | 5.5 |
# | 4. zero bubble | 27 | 4 |
#
# In task 3 a device keeps pieces, and each of them counts half.
#
# Write your answers in the cells that start with `# task:` and run them. The cell below each one
# draws your lanes, also if they get stuck. Then run the check.

# %%
import distlab as dl
from distlab.course.lesson_17_pipelines.figures import show_lanes
from distlab.course.runs.outcomes import waits_for

dl.split_devices(4)
dl.show("data set", "random numbers: nothing is downloaded")

# %% [markdown]
# ## Task 1: all forward, then all backward
#
# How does a pipeline look in which nobody turns around before everybody is there? Write
# `gpipe(devices, micro_batches)`, where each device takes all micro-batches forward, and then all
# of them backward. The check runs it for several numbers of both, and about 3 lines are enough.
#
# <details><summary>Hint</summary>
#
# The devices differ in when they work, and the engine finds that out by itself. Does their order
# differ, too?
# </details>


# %%
# task: gpipe
def gpipe(devices, micro_batches):
    """Returns a list with one list of items for each device.

    A device's items are, for example, `["F0", "F1", "B1", "B0"]`.
    """
    ### BEGIN SOLUTION
    forward = [f"F{k}" for k in range(micro_batches)]
    backward = [f"B{k}" for k in reversed(range(micro_batches))]
    return [forward + backward for _ in range(devices)]
    ### END SOLUTION


# %%
with waits_for("gpipe"):
    show_lanes("par is 33 ticks; yours", gpipe(4, 8), micro_batches=8)

# %%
dl.check("gpipe")

# %% [markdown]
# **Try next:** draw it with 8, 16 and 32 micro-batches. What falls, and what grows?
#
# <details><summary>Answer</summary>
#
# The idle share falls from 27 to 16 and 9 %, because the bubble has the same ticks in a longer
# step. What each device keeps grows from 8 to 16 and 32 micro-batches.
# </details>

# %% [markdown]
# ## Task 2: one forward, one backward
#
# Can you keep GPipe's ticks and only half of its memory? Write `one_f_one_b(devices,
# micro_batches)`, in about 9 lines. A device warms up with forward passes, and how many depends on
# the device. Then it takes one micro-batch backward and one forward in turn, and at the end only
# backward.
#
# <details><summary>Hint</summary>
#
# Device 3 of four can send its first micro-batch back at once. Device 2 has to wait for that, so
# what can it do in the meantime?
# </details>


# %%
# task: one_f_one_b
def one_f_one_b(devices, micro_batches):
    """Returns a list with one list of items for each device.

    No device keeps more micro-batches than there are devices. There can be fewer micro-batches than
    devices.
    """
    ### BEGIN SOLUTION
    schedule = []
    for device in range(devices):
        warm_up = min(micro_batches, devices - device)
        items = [f"F{k}" for k in range(warm_up)]
        for k in range(micro_batches):
            items.append(f"B{k}")
            if k + warm_up < micro_batches:
                items.append(f"F{k + warm_up}")
        schedule.append(items)
    return schedule
    ### END SOLUTION


# %%
with waits_for("one_f_one_b"):
    show_lanes("par is 33 ticks, kept 4; yours", one_f_one_b(4, 8), micro_batches=8)

# %%
dl.check("one_f_one_b")

# %% [markdown]
# **Try next:** can any order of these F and B take fewer than 33 ticks? Look at the last device.
#
# <details><summary>Answer</summary>
#
# No. The last device can't begin before tick 3, and it has 24 ticks of work. Its last gradient
# then needs two ticks on each of three more devices, which makes 33. To beat that, you have to cut
# the work itself differently, and that's what the next two tasks do.
# </details>

# %% [markdown]
# ## Task 3: interleaved
#
# What if a micro-batch reached the last device in half of the time? Write `interleaved(devices,
# micro_batches)` with two pieces of the model on each device, where piece 1 of device 0 follows
# piece 0 of the last device. The docstring says how to name an item, and you'll need about 13
# lines.
#
# <details><summary>Hint</summary>
#
# Take the micro-batches in groups of as many as there are devices: a whole group through piece 0,
# then through piece 1, then the next group. Which piece comes first on the way back? And the
# warm-up of device 3 ends with its first `F0.1`: how many items is that? Each device before it has
# two more.
# </details>


# %%
# task: interleaved
def interleaved(devices, micro_batches):
    """Returns a list with one list of items for each device.

    `"F5.0"` takes micro-batch 5 through the device's first piece, `"F5.1"` through its second one.
    The number of micro-batches is a multiple of the number of devices.
    """
    ### BEGIN SOLUTION
    forward, backward = [], []
    for first in range(0, micro_batches, devices):
        group = range(first, first + devices)
        forward += [f"F{k}.{piece}" for piece in (0, 1) for k in group]
        backward += [f"B{k}.{piece}" for piece in (1, 0) for k in group]
    schedule = []
    for device in range(devices):
        warm_up = devices + 2 * (devices - device - 1) + 1
        items = forward[:warm_up]
        for n, item in enumerate(backward):
            items += [item, *forward[n + warm_up : n + warm_up + 1]]
        schedule.append(items)
    return schedule
    ### END SOLUTION


# %%
with waits_for("interleaved"):
    show_lanes("par is 28.5 ticks, kept 5.5; yours", interleaved(4, 8), micro_batches=8)

# %%
dl.check("interleaved")

# %% [markdown]
# **Try next:** there's a hole in this par. Let a warm-up grow by one item for each device behind
# it instead of two, and you still need 28.5 ticks, but keep no more than four. So why does
# Megatron-LM use two? Show both with `message_ticks=0.25`.
#
# <details><summary>Answer</summary>
#
# With one item per device the step takes 36 ticks, and with two 32. A short warm-up leaves a
# device without work while a message is on its way, so the step waits for each of them. The two
# micro-batches that you'd save are the slack that hides the messages.
#
# </details>

# %% [markdown]
# ## Task 4: zero bubble
#
# Who waits for the gradient of the weights? In `zero_bubble(devices, micro_batches)` each backward
# pass is cut in two, B and W, and a device keeps a micro-batch until its W is done. The draft below
# hangs. Find out why, and then put off each W to where its device would wait. Change about 4 lines.
#
# <details><summary>Hint</summary>
#
# First put every W right behind its B, and look at the lanes. Which device has idle ticks at the
# end, which one at the beginning, and who could put off a W?
# </details>


# %%
# task: zero_bubble
def zero_bubble(devices, micro_batches):
    """Returns a list with one list of items for each device.

    `"B5"` computes only the gradient of the inputs, and takes one tick. `"W5"` computes the
    gradient of the weights, at any time after `"B5"`, and takes one tick, too.
    """
    ### BEGIN SOLUTION
    schedule = []
    for device in range(devices):
        warm_up = min(micro_batches, devices - device)
        items = [f"F{k}" for k in range(warm_up)]
        for k in range(micro_batches):
            items.append(f"B{k}")
            if k >= device:
                items.append(f"W{k - device}")
            if k + warm_up < micro_batches:
                items.append(f"F{k + warm_up}")
        items += [f"W{k}" for k in range(micro_batches - device, micro_batches)]
        schedule.append(items)
    ### STUB
    schedule = []
    for device in range(devices):
        items = [f"F{k}" for k in range(devices - device)]
        for k in range(micro_batches):
            items += [f"W{k}", f"B{k}"]
            if k + devices - device < micro_batches:
                items.append(f"F{k + devices - device}")
        schedule.append(items)
    ### END SOLUTION
    return schedule


# %%
with waits_for("zero_bubble"):
    show_lanes("par is 27 ticks, kept 4; yours", zero_bubble(4, 8), micro_batches=8)

# %%
dl.check("zero_bubble")

# %% [markdown]
# **Try next:** three idle ticks are left on each device, and your lanes show where. Which limit
# would you have to give up to fill those of device 0?
#
# <details><summary>Answer</summary>
#
# Device 0 waits between its last warm-up item and its first B. To work there it would have to take
# more micro-batches forward, so it would keep more than four. The authors call that schedule
# ZB-H2: about twice the memory, and nearly no bubble.
# </details>

# %% [markdown]
# ## Next steps
#
# - [Lesson 17](../notebooks/17_pipelines.ipynb), if a check sent you back to it.
# - [The glossary](../docs/glossary.md) explains the terms.
# - [Zero Bubble Pipeline Parallelism](https://arxiv.org/abs/2401.10241) has the fourth puzzle's
#   solution, and others that use even more memory.
