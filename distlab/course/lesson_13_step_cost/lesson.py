# %% [markdown]
# # What a step costs
#
# An H100 can do [989 TFLOP/s](https://www.nvidia.com/en-us/data-center/h100/) in bfloat16, but when
# Meta trained Llama 3 405B on 8,192 of these GPUs, each of them did 430, and on 16,384 of them
# [each did 400](https://arxiv.org/abs/2407.21783). So most of what had been paid for was doing
# something else, and in this business that counts as a very good result.
#
# Where does the rest go, and how much of it could you have back? For your own training you can find
# out in an afternoon, with a pencil, a stopwatch and a picture.

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - count the FLOPs of a training step by hand, and find out who's right if two counters disagree,
# - say how much of a machine a step uses, and what that depends on,
# - read in a timeline what a step does with the rest of its time, and choose the remedy.
#
# **Time:** {minutes}. **Needs:** [lesson 03](03_custom_training_loop.ipynb) (a training step) and
# [lesson 05](05_input_pipelines.ipynb) (`prefetch`), but no GPU and no download.
#
# **Do you remember?**
#
# <details><summary>Lesson 12: a ring grows from 8 ranks to 64. How many more bytes does each rank
# send?</summary>
#
# Hardly any: it sends 1.75 times the vector with 8 ranks, and never more than twice. What grows is
# the number of messages. Today we leave the network alone, and ask what a single device does.
#
# </details>
#
# <details><summary>Lesson 11: a run saves a checkpoint every 100 steps, and is killed in step 250.
# What does it pay for twice?</summary>
#
# The steps behind the checkpoint of step 200. How much such a step should cost is today's question.
#
# </details>

# %%
import distlab as dl
from distlab.course.lesson_13_step_cost.runs import TrainingStep
from distlab.course.measure.flops import (
    flops_of,
    profiler_others,
    profiler_products,
    xla_products,
)
from distlab.course.tiny_transformer import VOCABULARY

dl.show("data set", "Python's own help: nothing is downloaded")

# %% [markdown]
# ## Count the work before you run it
#
# You can know a step's work without running it, because nearly all of it is matrix products. A
# product of an [a, b] and a [b, c] matrix takes a · c sums of b terms, so 2abc multiplications and
# additions, which are called [FLOPs](../docs/glossary.md#flop). For a transformer of width *d* that
# leaves three rules:
#
# - Each token meets each weight of the dense layers once, which is **2 FLOPs for each weight**. A
#   layer has 12 d² such weights: 4 d² in its attention, and 8 d² behind it.
# - Attention compares each token with all T tokens of its text, and then mixes their values. These
#   two products have no weights, and take **4 · T · d FLOPs** for each token and layer.
# - The way back needs two gradients for each product, one for either factor, and each is a product
#   of the same size. So **a step takes three times its forward pass**.
#
# The embedding multiplies nothing, because it's a lookup. Softmax, norms and the like do a few
# operations for each number, which is little beside the hundreds in a product, so the count leaves
# them out.
#
# Here's a small transformer, and its step counted by these rules:

# %%
width, layers, length, rows = 64, 2, 128, 8
step = TrainingStep(width, length=length, rows=rows)

weights = layers * 12 * width**2 + width * VOCABULARY  # those that multiply: layers and head
forward = rows * length * (2 * weights + layers * 4 * length * width)
dl.show("by hand", f"{3 * forward:,} FLOPs")

# %% [markdown]
# TensorFlow has a counter of its own, `tf.compat.v1.profiler`, which walks through the operations
# of a traced function. `profiler_products` asks it about each matrix product of the step.

# %%
profiled = profiler_products(step.gradients, *step.batch)
dl.show("TensorFlow's profiler", f"{flops_of(profiled):,} FLOPs")

# %% [markdown]
# The two differ by more than a quarter, so we'll ask a third counter who's right: `xla_products`
# hands the step to XLA, TensorFlow's compiler, and counts the products in the program that XLA
# gets.

# %% tags=["predict"]
counter_guess = dl.predict(
    "Your count is larger than the profiler's. Who is right?",
    [
        "the profiler: it sees the operations that run",
        "the profiler: the causal mask hides half of the attention",
        "the count by hand",
        "neither: softmax and norms are missing",
    ],
)

# %%
compiled = xla_products(step.gradients, *step.batch)
dl.show("XLA's program", f"{flops_of(compiled):,} FLOPs")

# %% tags=["reveal"]
counter_guess.reveal(
    "the count by hand" if flops_of(compiled) == 3 * forward else "neither",
    {
        "the profiler: it sees the operations that run": "It would be if it knew what each "
        "operation costs. It has a formula for some types of operations, and counts 0 for others.",
        "the profiler: the causal mask hides half of the attention": "It would be if the hidden "
        "half weren't computed. Keras computes all of it, and the mask then throws half away.",
        "neither: softmax and norms are missing": "They'd have to be as costly as a product. Both "
        "counters leave them out here, so they can't explain the difference.",
        "the count by hand": "XLA's program has the same FLOPs to the last digit.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Because both name the products alike, you can see where the profiler goes wrong:

# %% tags=["after-reveal"]
from collections import Counter

right = {product.name: product.flops for product in compiled}
wrong = [each for each in profiled if each.flops != right[each.name]]
dl.show("products that the profiler gets wrong", dict(Counter(each.kind for each in wrong)))
one = next(each for each in wrong if each.kind == "BatchMatMulV2")
dl.show("a BatchMatMulV2", f"{right[one.name]:,} FLOPs, by the profiler {one.flops:,}")

# %% [markdown] tags=["after-reveal"]
# It makes two mistakes. Keras writes attention as an `Einsum`, for which the profiler has no
# formula, so it counts nothing for all of the attention. And if the first factor of a batched
# product is transposed, as in some gradients, it counts sums of 64 terms, the width, although they
# have 128, the length. So it finds half of the FLOPs, and in texts of 64 tokens you'd never have
# noticed.
#
# A wrong count doesn't raise an error. It only makes your machine look a quarter slower than it is,
# so you'd go looking for a loss that isn't there.
#
# Where the work is depends on the sizes. If you can move the controls, first make the model wide,
# and then the text long:

# %% tags=["after-reveal"]
from distlab.course.lesson_13_step_cost.view import explore_flops

explore_flops()

# %% [markdown] tags=["after-reveal"]
# In wide models the weights behind the attention do most of the work, and in long texts the
# attention does. If T is much smaller than 6 d, you can forget the attention, and get the rule of
# thumb that you find in papers: 6 FLOPs for each parameter and token.
#
# > **Takeaway.** A step takes 6 FLOPs for each weight and token, and 12 · T · d more for each layer
# > and token. Believe a counter once a second one agrees.
#
# <details><summary>Fine print</summary>
#
# We saw the profiler's mistakes in TensorFlow 2.21, and a test of this lesson tells us if they go
# away. `xla_products` counts a product in a loop once, however often the loop runs. Some authors
# count half of the attention, since the mask hides the other half, and a fast kernel does skip it.
#
# </details>

# %% [markdown]
# ## How close do you get?
#
# Divide the FLOPs of a step by its seconds, and by what the machine could do at best, and you have
# its [MFU](../docs/glossary.md#mfu), the *model FLOPs utilization* that [the PaLM
# paper](https://arxiv.org/abs/2204.02311) introduced. A GPU's best is on its data sheet, while ours
# is what this machine reaches in a product of two matrices of 1,024 by 1,024. The step and this
# product are timed in turns, so that what else your machine does disturbs both. On a CPU the
# seconds are those in which the processor's cores worked for us, added up.
#
# With 16 texts of 64 tokens, a step at a width of 256 has 13.6 times the FLOPs of a step at a width
# of 64. The question is about the machine of our recording, and yours is timed beside it.

# %% tags=["predict"]
width_guess = dl.predict(
    "At a width of 256 the step has 13.6 times the FLOPs of a width of 64. How long did it take on "
    "the machine of the recording?",
    ["about 14 times as long", "about 9 times", "about 5 times", "about 1.5 times"],
)

# %%
from distlab.course.lesson_13_step_cost.recorded import recorded_steps
from distlab.course.lesson_13_step_cost.runs import time_steps

recording = recorded_steps()
steps = {row.width: row for row in recording.mfu if not row.xla}
dl.show("recorded on", recording.machine)
longer = steps[256].step_secs / steps[64].step_secs
dl.show("times the seconds, recorded", longer, digits=1)

here = time_steps([64, 256])
dl.show("here less than 11 times", here[256].step_secs < 11 * here[64].step_secs)

# %% tags=["reveal"]
width_guess.reveal(
    "about 5 times" if 3 < longer < 6.5 else "about 9 times",
    {
        "about 14 times as long": "It would if a FLOP took as long in one step as in the other.",
        "about 9 times": "It would if a FLOP of the wide step took two thirds of the time.",
        "about 5 times": "A FLOP of the wide step took about a third of the time.",
        "about 1.5 times": "It would if a FLOP of the wide step took a tenth of the time, so that "
        "FLOPs would hardly matter.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **A narrow model wastes the machine**, and in our recording each doubling of the width raised the
# MFU:

# %% tags=["after-reveal"]
from distlab.course.lesson_13_step_cost.figures import draw_mfu, draw_roofline, draw_rows

draw_mfu(recording.mfu)

# %% [markdown] tags=["after-reveal"]
# A step can lose time in its products and beside them. Let's begin with the products, and multiply
# one row of numbers by a matrix of 1,024 by 1,024, and then 32 rows by the same matrix.

# %% tags=["predict"]
rows_guess = dl.predict(
    "A product of 32 rows has 32 times the FLOPs of a product of one row. How long did it take on "
    "the machine of the recording?",
    ["about 32 times as long", "about 10 times as long", "less than twice as long"],
)

# %%
secs = {product.rows: product.secs for product in recording.products}
dl.show("32 rows, times as long as one", secs[32] / secs[1], digits=1)
draw_rows(recording)

# %% tags=["reveal"]
rows_guess.reveal(
    "less than twice as long" if secs[32] < 2 * secs[1] else "about 10 times as long",
    {
        "about 32 times as long": "It would if nothing but FLOPs took time, as in the right part "
        "of the picture, where twice the rows take about twice the time.",
        "about 10 times as long": "It would if each further row took 30 % of the time of the "
        "first. Here it takes about 2 %.",
        "less than twice as long": "Most of the time is spent whether there's one row or 32.",
    },
)

# %% [markdown] tags=["after-reveal"]
# **The first rows cost almost nothing more**, like passengers in a bus that's half empty. A part of
# the bus's own price is the start of an operation, because even a product of two 8 by 8 matrices
# takes as long as the flat line says. The rest has to do with the matrix, and a stopwatch can't say
# whether it's spent on reading the 4 MB or on what else TensorFlow does with them.
#
# On a GPU you can say it from the data sheet. An
# [H100](https://www.nvidia.com/en-us/data-center/h100/) does 989 TFLOP/s and reads 3.35 TB/s from
# its memory, so it could do 295 FLOPs in the time in which a byte arrives. A weight in bfloat16 has
# 2 bytes and takes 2 FLOPs for each row, so a product of one row has a single FLOP for each byte.

# %% tags=["after-reveal"]
draw_roofline(peak_tflops=989, bytes_per_sec=3.35e12, rows=(1, 32, 295))

# %% [markdown] tags=["after-reveal"]
# This picture is called a *roofline*: to the right a product has more FLOPs for each byte, and the
# line is the most that the GPU can reach with them. A product on the slope waits for its weights,
# so more rows cost it nothing, and under the flat part the arithmetic decides.
#
# So if your products have few rows, the cheapest way to a better MFU is a larger batch, as long as
# it fits and the training allows it ([lesson 02](02_batch_scaling.ipynb)). A chatbot that writes
# one token at a time is far down the slope, so its provider serves many people in one batch.
#
# ### From FLOPs to days
#
# With an MFU you can say how long a training should take before it starts. Llama 3 405B was trained
# with [15.6 trillion tokens](https://arxiv.org/abs/2407.21783), and a run of this kind reaches an
# MFU of about 40 %, so:

# %% tags=["after-reveal"]
flops = 6 * 405e9 * 15.6e12  # FLOPs, parameters, tokens
hours = flops / (0.40 * 989e12) / 3600
dl.show("millions of GPU hours", hours / 1e6, digits=1)

# %% [markdown] tags=["after-reveal"]
# Its [model
# card](https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md) says
# 30.84 million. One line of arithmetic comes within 15 % of one of the largest trainings ever done,
# although it knows nothing of crashes, checkpoints or attention. Do this before you ask for money,
# and if a run then takes twice as long, you'll know that something's wrong.
#
# > **Takeaway.** MFU says how much of a machine your model's products use. Small products leave it
# > idle, so make them larger before you buy a faster machine.
#
# <details><summary>Fine print</summary>
#
# The processor's clock stops while other programs run, and also while our own threads idle; on a
# GPU the lesson reads the wall's. The roofline reads each weight once, and leaves out the bytes of
# the rows. Published MFUs differ in what they count and in the peak that they divide by, as the
# exercise shows, so compare tokens a second if you can. *HFU*, hardware FLOPs utilization, also
# counts what you compute twice to save memory (lesson 15), so it can rise while your training gets
# slower.
#
# </details>

# %% [markdown]
# ## A timeline shows who waits
#
# MFU says how much is lost, and not to whom. For that you need a timeline, with a lane for each
# thread and a bar for each operation. TensorFlow can record one: `record_timeline` runs a function
# under `tf.profiler.experimental` and returns what ran where, from when to when. Here it watches
# three steps of the narrow model.

# %% tags=["predict"]
share_guess = dl.predict(
    "What part of the computing time do the products take, at a width of 64?",
    ["nearly all of it", "about nine tenths", "less than three quarters"],
)

# %%
from distlab.course.lesson_13_step_cost.runs import share_of_products
from distlab.course.measure.timeline import COMPUTE, busy_ms, overlap_ms, record_timeline

small = TrainingStep(64)
small()  # the first step traces
events = record_timeline(lambda: [small() for _ in range(3)])
share = recording.products_share
dl.show("products' part of the computing time, recorded", f"{100 * share:.0f} %")
dl.show("here less than three quarters", share_of_products(events) < 0.75)

# %% tags=["reveal"]
share_guess.reveal(
    "less than three quarters" if share < 0.75 else "about nine tenths",
    {
        "nearly all of it": "It would be if time followed FLOPs, because the products have nearly "
        "all that the profiler finds, as you'll see below.",
        "about nine tenths": "It would be if a FLOP outside of the products took about four times "
        "as long as one inside. Here it takes dozens of times as long.",
        "less than three quarters": "The other operations have hardly any FLOPs, and take more "
        "than half of the time.",
    },
)

# %% tags=["after-reveal"]
others = profiler_others(small.gradients, *small.batch)
dl.show("products' part of the FLOPs", f"{100 * small.flops / (small.flops + others):.0f} %")

# %% [markdown] tags=["after-reveal"]
# So what no FLOP counter shows takes most of the step. GELU, softmax, norms, sums of gradients and
# Adam all read an array, do a few operations for each number, and write an array back. XLA joins
# such operations into one that reads and writes once. You switch it on with one argument, as in
# this recipe for the MFU of a step of your own, here without Adam's update:

# %% tags=["after-reveal", "numbers-vary"]
import tensorflow as tf

from distlab.course.lesson_13_step_cost.runs import large_product, working_clock
from distlab.course.measure.timing import time_in_turns

step = tf.function(small.gradients, jit_compile=True)  # here XLA is switched on
flops = flops_of(xla_products(small.gradients, *small.batch))
calls = {"step": lambda: step(*small.batch), "product": large_product()}
times = time_in_turns(calls, clock=working_clock())
best = 2 * 1024**3 / times["product"].median_secs
dl.show("MFU of this step", f"{100 * flops / times['step'].median_secs / best:.0f} %")

# %% [markdown] tags=["after-reveal"]
# Put in your own function of a batch, and compare with `jit_compile=False`. In the figure above XLA
# helped the narrow models most.
#
# Now we make the input slow, as in lesson 05: a disk takes 40 ms for each batch. We record three
# steps without `prefetch` and three with it, and keep the quickest of three recordings of each.

# %% tags=["after-reveal", "numbers-vary"]
from distlab.course.figures.timeline import draw_timeline
from distlab.course.lesson_13_step_cost.runs import loop_with_slow_input
from distlab.course.measure.timeline import record_quickest

runs = {}
for name, ahead in (("without prefetch", 0), ("prefetch(2)", 2)):
    train = loop_with_slow_input(small, ahead=ahead)
    runs[name] = record_quickest(lambda train=train: train(steps=3), rounds=3)
draw_timeline(runs, title="Prefetch slides the input under the compute", by=lambda e: e.work)

# %% tags=["after-reveal"]
for name, events in runs.items():
    beside = overlap_ms(events, "input", COMPUTE) / busy_ms(events, "input")
    dl.show(f"{name}: input beside compute", beside > 0.1)

# %% [markdown] tags=["after-reveal"]
# Above, the lanes of the compute are empty while the disk works, and the grey bar says that the
# loop waits for its batch. Below, the disk works under the compute, and the grey bar is gone or
# short. Lanes that begin with `tf_data` belong to the input, and `tf_data_iterator_resource` is the
# thread in which `prefetch` reads ahead.
#
# Before you change anything, look at what's between the products, because each loss has its own
# cure:
#
# | what you see | the reason | what you do |
# |---|---|---|
# | the loop waits, the lanes are empty | no batch is ready | `prefetch`, a parallel `map` |
# | full lanes, mostly other operations | each reads and writes whole arrays | XLA |
# | gaps between short operations | starting one takes longer than doing it | a larger batch |
# | full lanes, products of few rows | each pays for its matrix, not its rows | a larger batch |
# | full lanes, products of many rows | the arithmetic decides | bfloat16, or more devices |
#
# > **Takeaway.** FLOPs tell you how long a step should take, and a timeline tells you why it takes
# > longer. Look first, and then choose between prefetch, XLA and a larger batch.
#
# <details><summary>Fine print</summary>
#
# Profiling costs time of its own, so compare parts of a timeline with each other, and time the step
# without it. On a GPU the compute's lanes are its streams, and Python's thread runs ahead of them.
# The class that reads TensorFlow's file has no public path, and may move in a new version;
# TensorBoard's profile plugin reads the same file, and shows much more.
#
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# PyTorch counts FLOPs in `torch.utils.flop_counter.FlopCounterMode` and records timelines with
# `torch.profiler`. In JAX, `jax.jit(f).lower(x).compile().cost_analysis()` gives XLA's own count,
# and `jax.profiler.trace` writes the file that you've read here.
#
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. A colleague doubles the length of all texts and halves their number, so that
# a batch has as many tokens as before. Which part of the step grows?</summary>
#
# Only the attention, which doubles: each token now meets twice as many others. All products with
# weights depend on the number of tokens alone.
#
# </details>
#
# <details><summary>2. Two teams train the same model on the same GPUs. One reports an MFU of 40 %,
# the other 45 %. Is the second one faster?</summary>
#
# You can't tell before you know what each counted: all of the attention or half, with the embedding
# or without, and which peak. Tokens a second settle it.
#
# </details>
#
# <details><summary>3. Your timeline has full lanes, and most of it is sums, GELU and products of
# single numbers. Would a GPU with twice the FLOP/s help?</summary>
#
# Hardly: with a few FLOPs for each byte they're far down a GPU's slope, and wait for memory. XLA,
# which reads and writes each array less often, would help, and so would a GPU with more bandwidth.
#
# </details>

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/13_step_cost.ipynb): count what a Llama costs, reproduce a published
#   MFU, and find the costliest work in a timeline.
# - [Lesson 14](14_scaling.ipynb): what more devices do to a step.
# - [How to Scale Your Model](https://jax-ml.github.io/scaling-book/) counts like this lesson, for
#   TPUs and for models of any size.
