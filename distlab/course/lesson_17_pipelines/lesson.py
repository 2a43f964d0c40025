# %% [markdown]
# # Pipelines that run
#
# At the end of 2024 the team behind [torchtitan][torchtitan] trained Llama 3.1 405B on 512 H100s
# for a benchmark, and got 100 tokens a second from each GPU. Then it changed neither the GPUs nor
# the model, but only the *order* in which the devices take up their work. It got 128 tokens, and
# each GPU needed 72.7 GiB instead of 82.5. Before, it had been as if 112 of the 512 GPUs were
# switched off, although every single one was healthy.
#
# So in which order should the devices work? In this lesson you write orders as lists, and an
# engine runs them with real gradients. It draws who works when, and counts what you pay in time
# and in memory.
#
# [torchtitan]: https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md

# %% [markdown]
# ## Overview
#
# After this lesson you can
#
# - write the order of a pipeline's work as lists, run it, and read its lanes,
# - say what an order decides and what it never changes,
# - find the mistake in an order by playing it,
# - choose between GPipe, 1F1B, interleaved and zero bubble.
#
# **Time:** {minutes}. **Needs:** [lesson 03](03_custom_training_loop.ipynb). No GPU, and nothing
# is downloaded.
#
# <details><summary>Do you remember? Lesson 03: you cut a batch into small ones and sum their
# gradients. By what do you divide each loss?</summary>
#
# By the examples of the whole batch, so that the sum is the gradient of the whole batch. A
# pipeline cuts every batch like that, and its devices sum as they go.
#
# </details>

# %%
# %load_ext distlab
import distlab as dl
from distlab.course.lesson_17_pipelines.figures import draw_lanes, summary
from distlab.course.lesson_17_pipelines.runs import digits_pipeline
from distlab.course.lesson_17_pipelines.schedules import gpipe, one_f_one_b
from distlab.course.lesson_17_pipelines.timetable import play
from distlab.course.measure.peak import peak_bytes

dl.memory_limit(1024)  # TensorFlow then counts what tensors take
dl.split_devices(4)
dl.show("data set", "480 of the digits: nothing is downloaded")

# %% [markdown]
# ## A list for each device
#
# A [pipeline](../docs/glossary.md#pipeline-parallelism) divides a model by its layers, like an
# assembly line divides a car by its parts. Device 0 has the first layers and sends their output to
# device 1, and so on; then the gradient comes back the same way. If the whole batch travelled at
# once, all devices but one would always wait. So the batch is cut into
# [micro-batches](../docs/glossary.md#micro-batch), and device 0 can begin the next one while
# device 1 still works on the first.
#
# What remains for you to choose is the order. We write it as a list for each device, in which
# `"F2"` means *take micro-batch 2 forward* and `"B2"` means *take it backward*. A device goes
# through its list from left to right, and starts an item as soon as its input has arrived. Here
# are eight dense layers that classify digits, four of them on each of two devices, and three
# micro-batches:

# %%
by_hand = [
    ["F0", "F1", "F2", "B0", "B1", "B2"],  # device 0
    ["F0", "B0", "F1", "B1", "F2", "B2"],  # device 1
]
pipeline = digits_pipeline(devices=2, micro_batches=3)
run = pipeline.run(by_hand)
dl.show("max difference to a single device", pipeline.difference(run), below=1e-6)
draw_lanes({"by hand": run.table})

# %% [markdown]
# The engine computed each item on its device, and the sum is the gradient that a single device
# computes for all 480 digits. Its clock counts *ticks*: a device takes a micro-batch forward
# through its layers in one tick, and backward in two, because it then needs a gradient for its
# weights and another one for its input. What's grey is idle time, and it's called the
# [bubble](../docs/glossary.md#bubble).
#
# Now device 0 turns its backward passes around and begins with the last micro-batch.

# %% tags=["predict"]
order_guess = dl.predict(
    "Device 0 now has F0, F1, F2, B2, B1, B0; device 1 keeps its list. How many ticks does the "
    "step take, compared with the order before?",
    ["fewer", "as many", "more"],
)

# %%
turned = pipeline.run([["F0", "F1", "F2", "B2", "B1", "B0"], by_hand[1]])
draw_lanes({"by hand": run.table, "turned around": turned.table})

# %% tags=["reveal"]
later = turned.table.ticks - run.table.ticks
order_guess.reveal(
    "more" if later > 0 else "fewer" if later < 0 else "as many",
    {
        "fewer": "That would be so if B2 were the first to come back. Device 1 still does it last.",
        "as many": "That would be so if device 0 had nothing to do until B2 is back. By hand, it "
        "did B0 and B1 in that time.",
        "more": "The gradients for B0 and B1 are there long before, and now wait at device 0 until "
        "B2 has come.",
    },
)

# %% tags=["after-reveal"]
dl.show("max difference to a single device", pipeline.difference(turned), below=1e-6)

# %% [markdown] tags=["after-reveal"]
# The gradient is still that of a single device, because a sum doesn't depend on the order of what
# is summed. That makes a bad order hard to notice: the loss falls exactly as it should, every test
# of your model passes, and all you lose is time.
#
# > **Takeaway.** An order decides how long a step takes and what each device must keep. It never
# > changes the gradient, as long as all weights are updated together.
#
# <details><summary>Fine print</summary>
#
# Some pipelines do update in between, so that nobody ever waits: [PipeDream][pipedream] keeps
# several versions of the weights for that, and pays with the staleness of lesson 10. A tick is the
# same on all devices here, so these are balanced stages. A real last stage also has the loss, and
# a real first one the embedding, which is why they often get fewer layers.
#
# [pipedream]: https://arxiv.org/abs/1806.03377
#
# </details>

# %% [markdown]
# ## All forward, then all backward
#
# The simplest order for many devices is that of [GPipe](https://arxiv.org/abs/1811.06965):
# everybody takes all micro-batches forward, and only then does the first one turn around. From
# here on we have four devices with two layers each, and one GPipe step for two numbers of
# micro-batches:

# %%
draw_lanes({f"{m} micro-batches": play(gpipe(4, m), m) for m in (4, 16)})

# %% [markdown]
# `play` only moves the clock and computes nothing, so you can try an order for more devices than
# you have. The bubble has the same size in both panels, but with 16 micro-batches it belongs to a
# longer step and weighs less. Here the newest micro-batch comes back first, which costs nothing,
# because everybody waits for the last one anyway. For *p* devices and *m* micro-batches
# its share is (*p* - 1) / (*m* + *p* - 1), so it's the ratio of the two that counts.
#
# So why not simply take a hundred micro-batches? Because a device must keep what it computed
# forward until the same micro-batch comes back, and in GPipe everything comes back last. With 16
# micro-batches each device keeps the activations of all 16. You can buy idle time back, and you
# pay with the memory for which you wanted a pipeline in the first place.
#
# > **Takeaway.** More micro-batches make the bubble smaller, but in GPipe each of them costs
# > memory on every device.

# %% [markdown]
# ## One forward, one backward
#
# Nothing forces the last device to wait with its first backward pass: it can send micro-batch 0
# back as soon as it has arrived. Then the device before it can do the same, and so on. In
# [1F1B](https://arxiv.org/abs/2006.09503), device *d* of four starts with 4 - *d* forward passes,
# its *warm-up*, and from then on alternates: one backward, one forward.

# %% tags=["predict"]
bubble_guess = dl.predict(
    "1F1B starts each backward pass as early as it can. How large is its bubble, compared with "
    "GPipe's?",
    ["smaller", "the same", "larger"],
)

# %%
pipeline = digits_pipeline(devices=4, micro_batches=8)
runs = {"GPipe": pipeline.run(gpipe(4, 8)), "1F1B": pipeline.run(one_f_one_b(4, 8))}
draw_lanes({name: run.table for name, run in runs.items()})

# %% tags=["reveal"]
gpipe_idle, other_idle = (round(run.table.idle_share, 6) for run in runs.values())
bubble_guess.reveal(
    ["smaller", "the same", "larger"][1 + (other_idle > gpipe_idle) - (other_idle < gpipe_idle)],
    {
        "smaller": "It would be if the first micro-batch reached the last device sooner, or if the "
        "last one came home sooner. Both ways are as long as before.",
        "the same": "The last device still starts at tick 3, works without a break, and its last "
        "gradient still has three devices to pass. In between nobody can win anything back.",
        "larger": "It would be if a device that alternates had to wait for its neighbours. In the "
        "middle of the step the lanes have no gaps.",
    },
)

# %% tags=["after-reveal"]
for name, run in runs.items():
    dl.show(f"{name} keeps, by device", run.table.kept, digits=0)
    dl.show("  max difference to a single device", pipeline.difference(run), below=1e-6)

# %% [markdown] tags=["after-reveal"]
# It's worth it all the same, as you see from what the devices keep: in GPipe all eight
# micro-batches, in 1F1B at most four, because the first one is back before a fifth must go out.
# That number depends on the devices and not on the micro-batches. Now you can take 32 of them
# without keeping more, and that's how you get rid of the bubble:

# %% tags=["after-reveal"]
for m in (8, 16, 32):
    table = play(one_f_one_b(4, m), m)
    dl.show(f"1F1B, {m} micro-batches: % idle", 100 * table.idle_share, digits=0)
    dl.show("  a device keeps at most", max(table.kept), digits=0)

# %% [markdown] tags=["after-reveal"]
# Is that only a matter of counting? TensorFlow knows how many bytes its tensors took at the worst
# moment of a step, so we ask it for both orders of 32 micro-batches:

# %% tags=["after-reveal", "numbers-within-25%"]
many = digits_pipeline(devices=4, micro_batches=32)
peaks = {
    name: peak_bytes(lambda order=order: many.run(order(4, 32)), runs=1)
    for name, order in (("GPipe", gpipe), ("1F1B", one_f_one_b))
}
dl.show("GPipe's peak, divided by 1F1B's", peaks["GPipe"] / peaks["1F1B"], digits=1)
dl.show("more than twice as high", peaks["GPipe"] > 2 * peaks["1F1B"])

# %% [markdown] tags=["after-reveal"]
# > **Takeaway.** 1F1B doesn't make the bubble smaller, but it makes the many micro-batches
# > affordable that do.
#
# <details><summary>Fine print</summary>
#
# Too many micro-batches have a price of their own: they get so small that a GPU can't use all of
# its units, and the global batch may not be cut into so many. 1F1B is also called
# *PipeDream-Flush*. Megatron-LM counts *p* - *d* - 1 warm-up passes, since its rounds begin with
# the forward one, for the same order.
#
# </details>

# %% [markdown]
# ## When a warm-up is wrong
#
# The warm-up is where people go wrong, since each device has another one. Suppose that yours is
# one micro-batch too short on every device.

# %% tags=["predict"]
short_guess = dl.predict(
    "1F1B on four devices, and each warm-up is one micro-batch too short. What happens?",
    [
        "it takes longer, because the devices run out of work",
        "it takes as long, and each device keeps one micro-batch less",
        "every device waits forever",
    ],
)

# %%
too_short = play(one_f_one_b(4, 8, longer=-1), 8)
draw_lanes({"one too short": too_short})

# %% tags=["reveal"]
short_guess.reveal(
    "every device waits forever"
    if len(too_short.waits) == 4
    else "it takes longer, because the devices run out of work",
    {
        "it takes longer, because the devices run out of work": "It would if the last device had a "
        "forward pass before its first backward pass. Its warm-up is empty now.",
        "it takes as long, and each device keeps one micro-batch less": "It would if 1F1B kept one "
        "more than it needs. The last device keeps a single one, so there's nothing to save.",
        "every device waits forever": "The last device begins with B0, and its own F0 comes later "
        "in its list. All others wait for a gradient that never leaves it.",
    },
)

# %% tags=["after-reveal"]
print(too_short.why.replace("; ", "\n"))

# %% [markdown] tags=["after-reveal"]
# On a cluster you'd see what lesson 09 showed: all processes are alive, no error appears, and
# nobody moves. All four devices name the same item, so whom do you blame? Follow the chain to its
# end, which is device 3, and that one waits for itself.
#
# A list can also be wrong without hanging. Suppose you give every device the warm-up of device 0,
# which looks tidy and is easy to write:

# %% tags=["after-reveal"]
tables = {"1F1B": play(one_f_one_b(4, 8), 8)}
tables["the same warm-up"] = play(one_f_one_b(4, 8, like_device=0), 8)
draw_lanes(tables)

# %% [markdown] tags=["after-reveal"]
# This one trains, and its gradient is right, but device 3 insists on four micro-batches before it
# sends the first one back, and from then on neighbours wait for each other in turn. Nearly two
# thirds of what you paid for are grey. So play an order before you rent the devices: it takes a
# moment, and neither the loss nor an error will tell you later.
#
# > **Takeaway.** An order that can't work hangs without an error, and a bad one is slow without a
# > sign. Play it first, and follow each wait to its end.

# %% [markdown]
# ## When messages take time
#
# So far the clock has delivered every message at once. On a cluster an activation is on its way
# for a while, in which its sender goes on working, and `message_ticks` says for how long. We take
# half a tick, which is a slow link, because its effect is easy to see then.

# %% tags=["predict"]
message_guess = dl.predict(
    "Each message takes half a tick. GPipe and 1F1B had equally long steps. Which one has the "
    "shorter step now?",
    ["GPipe", "1F1B", "neither: they're still equally long"],
)

# %%
orders = {"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8)}
slow = {name: play(order, 8, message_ticks=0.5) for name, order in orders.items()}
draw_lanes(slow)

# %% tags=["reveal"]
faster = sorted(slow, key=lambda name: slow[name].ticks)[0]
message_guess.reveal(
    faster if slow["GPipe"].ticks != slow["1F1B"].ticks else "neither: they're still equally long",
    {
        "GPipe": "A device of GPipe has its next micro-batches in a queue, so it waits only for "
        "the first message of each direction. In 1F1B it needs each message as soon as it's sent.",
        "1F1B": "It would if it sent fewer messages, or sent them sooner. It sends the same ones, "
        "and has no other work in hand while they travel.",
        "neither: they're still equally long": "They would be if 1F1B could do something else "
        "while a message is on its way. Now its lanes have gaps in the middle of the step.",
    },
)

# %% [markdown] tags=["after-reveal"]
# 1F1B was too frugal: it has so few micro-batches in hand that a device must wait for every single
# message. So give it some slack, and let the warm-ups grow by two micro-batches from one device to
# the next, to one, three, five and seven:

# %% tags=["after-reveal"]
slack = play(one_f_one_b(4, 8, per_device=2), 8, message_ticks=0.5)
draw_lanes({"GPipe": slow["GPipe"], "1F1B with slack": slack})

# %% tags=["after-reveal"]
orders = {"GPipe": gpipe(4, 32), "1F1B": one_f_one_b(4, 32)}
orders["1F1B with slack"] = one_f_one_b(4, 32, per_device=2)
for name, order in orders.items():
    dl.show(f"{name}, 32 micro-batches", summary(play(order, 32, message_ticks=0.5)))

# %% [markdown] tags=["after-reveal"]
# Now it's as fast as GPipe, and it keeps at most seven micro-batches, of 8 as well as of 32.
# Memory buys time here, too, but you need a fixed amount of it: you pay for the messages that are
# on their way at the same time, and not for the size of the batch.
#
# > **Takeaway.** An order without slack waits for every message, while a longer warm-up hides
# > messages behind work, and costs memory for a few more micro-batches.

# %% [markdown]
# ## Extra: Two pieces on each device
#
# With 1F1B the bubble depends on how long a micro-batch needs to reach the last device. So make
# that way shorter: cut the model into eight pieces instead of four, and give device 0 the first
# and the fifth, device 1 the second and the sixth, and so on. Each piece takes half of the time,
# so a micro-batch that goes around twice is at device 3 in half of the ticks. Megatron-LM's
# authors call that [interleaved](https://arxiv.org/abs/2104.04473), and we write `"F0.1"` for the
# way through a device's second piece.

# %%
from distlab.course.lesson_17_pipelines.schedules import interleaved

runs["interleaved"] = pipeline.run(interleaved(4, 8))
difference = pipeline.difference(runs["interleaved"])
dl.show("max difference to a single device", difference, below=1e-6)
draw_lanes({name: runs[name].table for name in ("1F1B", "interleaved")})

# %% [markdown]
# The pale boxes are second pieces, and the grey triangles at both ends are half as wide, because
# every device gets its first work and hands in its last in half of the time. You pay with more
# messages, because each micro-batch is sent seven times in each direction and not three, and the
# devices keep a bit more, where a piece counts half.
#
# That's the order of torchtitan's 128 tokens. The page states eight devices in a pipeline, but
# neither the number of micro-batches *m* nor that of pieces. With two pieces, which *m* would
# explain a factor of 1.28?

# %%
for m in (8, 16, 32):
    before, after = play(one_f_one_b(8, m), m).ticks, play(interleaved(8, m), m).ticks
    dl.show(f"m = {m}: ticks of 1F1B, divided by those of interleaved", before / after, digits=2)

# %% [markdown]
# Eight micro-batches would explain it, which are few for eight devices and leave nearly half of
# the time of 1F1B idle. And torchtitan's [default][default] was then a micro-batch for each
# device, so it was eight if nobody changed it. With 32 of them you'd hardly notice the order.
#
# [default]: https://github.com/pytorch/torchtitan/pull/781
#
# > **Takeaway.** Two pieces on each device halve the bubble, and send more than twice as many
# > messages.
#
# <details><summary>Fine print</summary>
#
# torchtitan's memory fell from 82.5 to 72.7 GiB at the same time. Counting micro-batches doesn't
# explain that, since interleaved never keeps fewer of them than 1F1B, and the page gives no reason.
# Our warm-ups, which are Megatron-LM's, have slack for the messages. Interleaving needs a number of
# micro-batches that is a multiple of the devices, and it needs enough layers for all pieces.
#
# </details>

# %% [markdown]
# ## Extra: The half that nobody waits for
#
# A backward pass takes two ticks because it computes two gradients. The gradient of a device's
# input goes to the device before it, which waits for it. The gradient of the weights goes nowhere
# until the update. So let's write `"B0"` for the first half alone and `"W0"` for the second one, a
# tick each. At first we put every W right behind its B, so that each device does the same work in
# the same order as in 1F1B.

# %% tags=["predict"]
split_guess = dl.predict(
    "Each backward pass is cut in two, and each half directly follows the other one. How does the "
    "number of ticks change?",
    ["it stays the same", "it falls", "it rises"],
)

# %%
from distlab.course.lesson_17_pipelines.schedules import zero_bubble

at_once = pipeline.run(zero_bubble(4, 8, put_off=lambda device: 0))
draw_lanes({"1F1B": runs["1F1B"].table, "cut in two": at_once.table})

# %% tags=["reveal"]
change = at_once.table.ticks - runs["1F1B"].table.ticks
split_guess.reveal(
    "it falls" if change < 0 else "it rises" if change > 0 else "it stays the same",
    {
        "it stays the same": "It would if a device could send only when both halves are done. Now "
        "it sends after the first one, and its neighbour starts a tick earlier.",
        "it falls": "The first gradient passes three devices, and saves a tick at each of them.",
        "it rises": "It would if two halves were more work than the whole. They're the same two "
        "products of matrices.",
    },
)

# %% [markdown] tags=["after-reveal"]
# Nobody does less, and still the step is three ticks shorter, because messages leave earlier. And
# a W can wait as long as it likes, so it's the perfect work for idle ticks, like the ironing that
# you keep for a long phone call. Now device *d* puts off its first *d* W:

# %% tags=["after-reveal"]
runs["zero bubble"] = pipeline.run(zero_bubble(4, 8))
difference = pipeline.difference(runs["zero bubble"])
dl.show("max difference to a single device", difference, below=1e-6)
draw_lanes({"cut in two": at_once.table, "zero bubble": runs["zero bubble"].table})

# %% [markdown] tags=["after-reveal"]
# This order is called ZB-H1, and its authors [measured][zero] up to 23 % more throughput than with
# 1F1B. Of the nine ticks for which each device is idle in 1F1B, three are left. No device keeps
# more than four micro-batches, which is what device 0 kept before.
#
# > **Takeaway.** Only half of a backward pass is urgent, so put off the other half until a device
# > would wait.
#
# <details><summary>Fine print</summary>
#
# What's left is the way of the first micro-batch, and if you keep twice as much, ZB-H2 fills that,
# too. The two halves take equally long only for products of matrices; attention, for example, has
# no weights, so its B takes longer than its W. An optimizer that clips gradients by their global
# norm makes all devices wait once more at the end of the step, and the authors show how to avoid
# that.
#
# </details>
#
# [zero]: https://arxiv.org/abs/2401.10241

# %% [markdown]
# ## Choose an order
#
# All four orders do the same work and have the same gradient. Here you can move devices and
# micro-batches: from how many micro-batches on would you no longer bother about the order?

# %%
from distlab.course.lesson_17_pipelines.view import explore_pipeline

explore_pipeline()

# %% [markdown]
# <details><summary>Our answer</summary>
#
# On four devices, zero bubble saves six ticks of 1F1B's 21 for four micro-batches, and also six of
# 57 for 16. That's a tenth of the step, and with more micro-batches we'd no longer bother.
#
# </details>
#
# | order | idle, four devices and eight micro-batches | kept at most | choose it if |
# |---|---|---|---|
# | GPipe | 27 % | 8, so all | you have memory to spare |
# | 1F1B | 27 % | 4, or 7 with slack | you can take many micro-batches |
# | interleaved | 16 % | 5.5, as a piece counts half | you can't, and your links are fast |
# | zero bubble | 11 % | 4 | you can't, and your framework cuts backward passes |
#
# So what brought Llama from 100 to 128 tokens a second? torchtitan went from 1F1B to interleaved,
# which leaves less idle time where micro-batches are few.
#
# But first ask whether you need a pipeline at all. It makes you cut the model into stages, balance
# them and think in ticks, while sharding (lesson 16) leaves your model as it is. A pipeline wins
# where links are slow, because it sends only activations, and only from one neighbour to the next.
# So [Llama 3](https://arxiv.org/abs/2407.21783) was trained with split layers (lesson 18) inside a
# host and a pipeline between hosts.
#
# > **Takeaway.** Take 1F1B with as many micro-batches as your batch allows. If the bubble still
# > hurts, interleave, or put off the weights' halves.
#
# <details><summary>Fine print</summary>
#
# The table's messages take no time. The longer they take, the less interleaved saves compared with
# 1F1B with slack, since it has twice as many. With half a tick for each, zero bubble is the fastest
# and keeps four, because a W is work in hand, too. Our four devices share the cores of one machine,
# which is why we count ticks and not seconds.
#
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# `torch.distributed.pipelining` has the first three, as `ScheduleGPipe`, `Schedule1F1B` and
# `ScheduleInterleaved1F1B`, and `ScheduleInterleavedZeroBubble`, which puts off weights' halves
# with several pieces on each device. Inside they are lists like yours, in which `2F0` is
# micro-batch 0 forward through stage 2, and torchtitan takes a schedule of your own as a CSV file.
# In JAX you write the pipeline with `shard_map` and `ppermute`, and the compiler derives the
# backward pass, while `tf.distribute` has no pipeline.
#
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. Your pipeline has eight devices and takes eight micro-batches with 1F1B. How
# large is the bubble, and what do you try first?</summary>
#
# It's 7 of 15 parts, so nearly half. Try more micro-batches first: in 1F1B they cost no memory for
# activations, and with 32 of them it's 7 of 39 parts.
#
# </details>
#
# <details><summary>2. After a change of the order your step takes twice as long. The loss is the
# same in every digit that you print. Is the change correct?</summary>
#
# Correct and slow: the gradient doesn't depend on the order. Draw the lanes, and look for the
# device that makes its neighbours wait.
#
# </details>
#
# <details><summary>3. Device 2 waits for B4 of device 3, which waits for F5 of device 2. What do
# you change?</summary>
#
# One of these two lists. Either device 2 must do F5 before it waits for B4, or device 3 must do B4
# before it asks for F5.
#
# </details>
#
# <details><summary>4. Why can't zero bubble put off B instead of W?</summary>
#
# Because another device waits for it, and each B that comes later makes everything later on all
# devices before.
#
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [Exercise 17](../exercises/17_pipelines.ipynb): write all four orders yourself, and reach par.
# - [Lesson 18](18_split_layer_and_text.ipynb): what to do if a single layer is too large.
# - [Megatron-LM's paper](https://arxiv.org/abs/2104.04473) explains 1F1B and interleaving with the
#   measurements of a large cluster, and the [zero-bubble paper](https://arxiv.org/abs/2401.10241)
#   the rest.
