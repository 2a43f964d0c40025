# %% [markdown]
# # Choose a strategy
#
# GPT-2 with 1.5 billion parameters is a file of 3 GB. In 2019 the authors of
# [ZeRO](https://arxiv.org/abs/1910.02054) pointed out that it couldn't be trained on a GPU with 32
# GB, because a training step needs eight times the file: weights, gradients and the state of Adam
# take at least 24 GB, and activations come on top. So you rent a second GPU, and nothing changes.
# Plain data parallelism divides the examples and copies everything else, and each GPU still holds
# all of the 24 GB.
#
# So before you rent more devices, ask what a strategy divides among them, and what it copies. After
# this lesson you can
#
# - say what each strategy of `tf.distribute` copies, divides and sends in every step,
# - say what to try before you divide a model, and in which order to divide it,
# - rehearse distributed code without a second device,
# - choose with a card of six questions, and tell when to leave `tf.distribute`.
#
# **Time:** {minutes}. **Needs:** lessons [01](01_mirrored_strategy.ipynb) and
# [03](03_custom_training_loop.ipynb), but no GPU and no download. Lessons 15 to 18 build what this
# one chooses among, so they make a good start, although you can follow without them.
#
# <details><summary>Do you remember? Lesson 01: two replicas, one weight. How many copies of it are
# there, and what keeps them equal?</summary>
#
# There are two, one on each device, and they start equal. After the all-reduce every replica
# subtracts the same number, so they stay equal.
#
# </details>
#
# <details><summary>Do you remember? Lesson 03: each replica takes the mean loss of its own
# examples, and the optimizer sums the gradients. What's wrong?</summary>
#
# With four replicas the gradient is four times too large, because each mean was taken over a
# quarter of the batch.
#
# </details>

# %%
import distlab as dl

devices = dl.split_devices(4)

import keras
import tensorflow as tf

from distlab.course.lesson_21_choosing_a_strategy.rehearsal import (
    build,
    bytes_on_devices,
    max_difference,
    train_by_hand,
)

(digits,) = dl.load_dataset("digits", splits=["train[:95]"], batch_size=95)
examples = tf.data.Dataset.from_tensor_slices(next(iter(digits)))
partial = examples.batch(20)
tf.get_logger().setLevel("ERROR")  # no reminders that we compile many small functions
dl.show("examples in each step", [len(labels) for _, labels in partial])

# %% [markdown]
# ## Your model under each strategy
#
# `build` returns a small network with momentum, and `partial` has five batches of digits, the last
# of which is a partial one. We train the network with plain `fit` on one device, and then under
# three strategies with `dl.distribute`. Afterwards, `bytes_on_devices` counts what each device
# holds of the weights and of the optimizer's state.

# %% tags=["predict"]
held_guess = dl.predict(
    "On one device, weights and momentum take 19 KB. How much does each device hold under "
    "MirroredStrategy with four replicas?",
    ["a quarter of that", "all of it", "all weights, and a quarter of the momentum"],
)


# %%
def with_momentum():
    return build(keras.optimizers.SGD(0.1, momentum=0.9))


strategies = {
    "one_device": dl.make_strategy("one_device", devices=[devices[1]]),
    "mirrored, 2": dl.make_strategy("mirrored", devices=2),
    "mirrored, 4": dl.make_strategy("mirrored", devices=devices),
}
one = with_momentum()
one.fit(partial, verbose=0, shuffle=False)

for name, strategy in strategies.items():
    model = dl.distribute(with_momentum, strategy)
    model.fit(partial, verbose=0, shuffle=False)
    held = bytes_on_devices(strategy, model)
    dl.show(f"{name}: weights of one device", bool(max_difference(model, one) < 1e-6))
    dl.show(f"{name}: bytes on each device", held)

# %% tags=["reveal"]
alone = bytes_on_devices(strategies["one_device"], one)
held_guess.reveal(
    "all of it" if set(held.values()) == set(alone.values()) else "a quarter of that",
    {
        "a quarter of that": "That would be so if Mirrored cut the model. It cuts the batch, so "
        "each replica must be able to compute every layer with all of its weights.",
        "all weights, and a quarter of the momentum": "That's ZeRO 1 (lesson 16), where each "
        "replica updates a part of the weights. Under Mirrored every replica updates all of them.",
        "all of it": "Each replica computes with all weights and updates all of them, so it keeps "
        "everything that this needs.",
    },
)

# %% [markdown] tags=["after-reveal"]
# So four devices learn what one device learns, and each of them holds as much as one device does.
# Mirrored saves time and no memory, with one exception: each replica sees only its share of the
# batch, so its activations shrink. All strategies but one work like that:
#
# | strategy | copies | divides | sends in a step |
# |---|---|---|---|
# | `one_device`, or none | nothing | nothing | nothing |
# | `mirrored` | everything, to the devices of a host | examples | gradients, their sum |
# | `multi_worker` | everything, to the devices of all hosts | examples | the same |
# | `tpu` | everything, to each core | examples | the same |
# | `parameter_server` | nothing | variables, among servers | weights and gradients |
#
# Two of them are easy to mistake. `MirroredStrategy` ends at the edge of its host, so on two hosts
# it trains two models that never meet, and [lesson 09](09_multi_worker.ipynb) has what connects
# them. And [parameter servers](10_parameter_server.ipynb) aren't a slow Mirrored, because a worker
# that never waits takes other steps.
#
# > **Takeaway.** The synchronous strategies of `tf.distribute` divide the examples and copy
# > everything else. They make training faster, and they don't make room.
#
# <details><summary>Fine print</summary>
#
# Under `dl.distribute` this holds for any model and loss, up to rounding. Keras's own `fit` gives
# no such promise, because it weighs the examples of a partial batch differently
# ([lesson 03](03_custom_training_loop.ipynb)), and with several workers it crashes.
#
# TensorFlow has one more strategy with several replicas, `CentralStorageStrategy`, which keeps a
# single copy of each variable. It's experimental, and the card doesn't lead to it, because Keras's
# `fit` [logs wrong losses](../docs/pitfalls.md#centralstorage-logs-a-wrong-loss-or-nan) under it,
# and each replica still fetches all weights. `TPUStrategy` can give several cores to each replica
# and divide [single
# tensors](https://www.tensorflow.org/api_docs/python/tf/distribute/TPUStrategy#experimental_split_to_logical_devices)
# among them.
#
# </details>

# %% [markdown]
# ## First, make the step smaller
#
# If a step doesn't fit, you'll be tempted to divide the model at once. Look first at which part of
# it is too large, because two of the four parts can shrink on a single device. Activations shrink
# with smaller micro-batches, or if you recompute them ([lesson 15](15_fit_into_memory.ipynb)). The
# optimizer's state depends only on which optimizer you take, and that's one line:

# %% tags=["predict"]
state_guess = dl.predict(
    "Adam keeps two numbers for each weight. Adafactor was invented to save memory, and for a "
    "kernel of 512 by 512 its paper keeps 512 numbers for the rows and 512 for the columns. How "
    "much does Keras's Adafactor keep?",
    ["two numbers a weight, like Adam", "about one number a weight", "almost nothing"],
)


# %%
def state_per_weight(optimizer):
    kernel = keras.Variable(tf.zeros((512, 512)))
    optimizer.build([kernel])
    return sum(variable.numpy().size for variable in optimizer.variables) / 512**2


makers = {
    "SGD": keras.optimizers.SGD(),
    "SGD with momentum": keras.optimizers.SGD(momentum=0.9),
    "Lion": keras.optimizers.Lion(),
    "Adafactor": keras.optimizers.Adafactor(),
    "Adam": keras.optimizers.Adam(),
}
state = {name: state_per_weight(optimizer) for name, optimizer in makers.items()}
dl.show("numbers of state for each weight", state, digits=1)

# %% tags=["reveal"]
state_guess.reveal(
    {0: "almost nothing", 1: "about one number a weight", 2: "two numbers a weight, like Adam"}[
        round(state["Adafactor"])
    ],
    {
        "two numbers a weight, like Adam": "That would be so if it kept a momentum as well. It "
        "has none.",
        "almost nothing": "That's what its paper promises, and what you'd get if Keras kept only "
        "rows and columns. Keras makes a variable as large as the kernel beside them.",
        "about one number a weight": "Keras makes the rows and columns, and beside them a variable "
        "as large as the kernel, which only vectors need.",
    },
)

# %% [markdown] tags=["after-reveal"]
# So count instead of believing a name: [Adafactor's paper](https://arxiv.org/abs/1804.04235) is
# right, and the library does something else. Adam's state is as large as weights and gradients
# together, and momentum or Lion halve it. Whether your model then learns as well is a question that
# only a training run answers.
#
# > **Takeaway.** Before you divide a model, shrink the step: smaller micro-batches, recomputed
# > activations, an optimizer with less state.

# %% [markdown]
# ## Then divide it, in this order
#
# If weights and gradients alone are too large, no optimizer helps, and you must divide the model.
# There are five ways to do that, and in the figure each device has a coloured strip for its
# examples, and grey bars for what it keeps of three layers:

# %%
from distlab.course.lesson_21_choosing_a_strategy.figures import draw_map

draw_map()

# %% [markdown]
# The first three divide any model, and they differ in what travels. Let's count that for [LLaMA
# 7B](https://arxiv.org/abs/2302.13971), with 6.7 billion parameters in 32 layers of width 4,096, on
# eight GPUs. A step has eight texts of 4,096 tokens, and everything travels in 16 bits.

# %% tags=["predict"]
sends_guess = dl.predict(
    "With which of the three does a GPU send the most bytes in a step?",
    ["sharded data: all weights, twice", "tensor: four sums in each layer", "pipeline"],
)

# %%
parameters, layers, width, tokens = 6.7e9, 32, 4096, 8 * 4096
others = 7 / 8  # of what all eight GPUs have, the share of the other seven
sent = {
    "sharded data: all weights, twice": 3 * others * 2 * parameters,  # and gradients, once
    "tensor: four sums in each layer": 4 * layers * 2 * others * 2 * tokens * width,
    "pipeline": 2 * 2 * tokens * width,  # activations to the next stage, their gradients back
}
dl.show("GB that a GPU sends", {name: amount / 1e9 for name, amount in sent.items()}, digits=1)

# %% tags=["reveal"]
sends_guess.reveal(
    max(sent, key=sent.get),
    {
        "sharded data: all weights, twice": "That would be so with fewer than about 19,000 tokens "
        "a step, because weights don't grow with the tokens and activations do.",
        "pipeline": "That would be so if a stage sent what each of its layers computes. It sends "
        "only what its last layer computes.",
        "tensor: four sums in each layer": "Each sum is over an activation of every token, and "
        "there are 128 of them.",
    },
)

# %% [markdown] tags=["after-reveal"]
# A pipeline sends a hundredth of that, so why isn't it first? Bytes aren't all that counts, and the
# usual order is this one:
#
# 1. **Sharded data comes first** ([lesson 16](16_shard_everything.ipynb)). It changes no layer and
#    needs no particular batch, and the weights of the next layer can travel while this one
#    computes.
# 2. **Tensor parallelism stays inside a host** ([lesson 18](18_split_layer_and_text.ipynb)). Each
#    layer stops four times for its sums, so only the fastest links will do. Add it if a layer or
#    what it computes is too large, or if you have more GPUs than examples.
# 3. **Pipelines go across hosts** ([lesson 17](17_pipelines.ipynb)). They send so little that a
#    slow link is enough. In return you must cut the model into stages that take equally long, and
#    keep them busy with many micro-batches.
# 4. **Experts are spread where the model has experts.** They divide nothing else, so you don't add
#    them to save memory.
# 5. **A long text gets a further axis**, if what a single text computes is too large.
#
# You add one to the other rather than exchange them. Llama 3 with 405 billion parameters [used
# tensor parallelism inside a host](https://arxiv.org/abs/2407.21783), pipelines and sharded data
# across hosts, and a fourth axis for long texts.
#
# > **Takeaway.** Sharded data first, tensor inside a host, pipelines across hosts, experts where
# > there are experts, and one more axis for long texts.
#
# <details><summary>Fine print</summary>
#
# We count a ring's traffic ([lesson 12](12_ring_all_reduce.ipynb)): with eight GPUs an all-gather
# sends 7/8 of the result from each GPU, and an all-reduce twice that. Some libraries send gradients
# in 32 bits. "Sharded data" is ZeRO's third stage, which PyTorch calls FSDP. The first stage
# divides only the optimizer's state, needn't send more than plain data parallelism, and is worth a
# try if nothing else is too large.
#
# </details>

# %% [markdown]
# ## Rehearse before you rent
#
# Whatever you choose, try it before you pay for it, because code for many replicas also runs on one
# machine. Here are three versions of lesson 03's loop, which differ in how a replica turns the
# losses of its examples into the number whose gradient it takes. The optimizer then sums the
# gradients of all replicas.


# %%
def count_all(losses):
    mine = tf.cast(tf.size(losses), tf.float32)
    return tf.distribute.get_replica_context().all_reduce("SUM", mine)


versions = {
    "A": lambda losses, replicas: tf.reduce_mean(losses),
    "B": lambda losses, replicas: tf.reduce_mean(losses) / replicas,
    "C": lambda losses, replicas: tf.reduce_sum(losses) / count_all(losses),
}

# %% [markdown]
# One of them is right, and we rehearse each of them three times: on one device, on four logical
# devices with batches of 20, and on four logical devices with a last batch of 15. A rehearsal finds
# a mistake if the weights differ from those of `fit` on one device.

# %% tags=["predict"]
rehearsal_guess = dl.predict(
    "Which is the first rehearsal that finds a mistake in version B?",
    [
        "one device",
        "four devices, full batches",
        "four devices, a last batch of 15",
        "none: B is right",
    ],
)

# %% tags=["hide-input"]
rehearsals = {
    "one device": ("one_device", partial),
    "four devices, full batches": ("mirrored, 4", examples.take(40).batch(20)),
    "four devices, a last batch of 15": ("mirrored, 4", examples.take(35).batch(20)),
}
finds = {version: [] for version in versions}
for rehearsal, (kind, data) in rehearsals.items():
    one = build()
    one.fit(data, verbose=0, shuffle=False)
    for version, scale in versions.items():
        model = train_by_hand(strategies[kind], scale, data)
        if not max_difference(model, one) <= 1e-6:  # also if NaN
            finds[version].append(rehearsal)

# %%
for version, found in finds.items():
    dl.show(f"{version}: a mistake found by", " and by ".join(found) or "no rehearsal")

# %% tags=["reveal"]
rehearsal_guess.reveal(
    finds["B"][0] if finds["B"] else "none: B is right",
    {
        "one device": "That would be so if B were wrong everywhere. One replica has all examples, "
        "so its mean is the batch's mean, and dividing by 1 changes nothing.",
        "four devices, full batches": "That would be so if B forgot the number of replicas. Four "
        "shares of 5 weigh the same, so the mean of their means is the mean of all.",
        "none: B is right": "That would be so if all shares were equal. 15 examples are shared as "
        "4, 4, 4 and 3, and an example in the share of 3 counts too much.",
        "four devices, a last batch of 15": "Only unequal shares, 4, 4, 4 and 3, make the mean of "
        "the means another number.",
    },
)

# %% [markdown] tags=["after-reveal"]
# One device finds what is wrong everywhere, such as a shape, and misses a scale that is wrong only
# with several replicas. Four devices find A's missing division with any batch, and B's mean of
# means only with unequal shares. So rehearse twice, on one device and then on four logical ones,
# and take plain SGD, because Adam hides most of a wrong scale.
#
# > **Takeaway.** Rehearse on one device, and then on four logical devices with a last batch that
# > four doesn't divide. You need no second GPU for it.
#
# <details><summary>Fine print</summary>
#
# In a loop by hand, `OneDeviceStrategy` trains a model that was built outside of its scope without
# a word, while `MirroredStrategy` stops with an `AssertionError` that has no text. `dl.distribute`
# refuses such a model under both, and says why. Times that you measure on logical devices tell you
# nothing about GPUs, since all of them share one processor.
#
# </details>

# %% [markdown]
# ## The card
#
# Now you have everything for the decision. Ask from the top, and the first yes decides. [The card
# as a page](../docs/decision_card.md) is short enough to print, and has the order of the figure
# below it.

# %%
from distlab.course.lesson_21_choosing_a_strategy.figures import draw_card
from distlab.course.lesson_21_choosing_a_strategy.strategy_card import (
    CARD,
    OTHERWISE,
    choose,
    divide,
)

draw_card(list(CARD.values()), otherwise=OTHERWISE)

# %% [markdown]
# The two questions about memory are the first ones, because each of the strategies below needs
# devices on which a step fits. After "make the step smaller", do so and begin again at the top, and
# after "divide the model", go through the five ways in their order. Both halves are functions, too,
# to which you pass the questions that you answer with yes:

# %%
dl.show("four GPUs in one host", choose())
dl.show("two such hosts", choose(several_hosts=True))
dl.show("two such hosts, a model for a laptop", choose(several_hosts=True, one_is_enough=True))
dl.show("Adam's state is too large, Lion's isn't", choose(step_can_shrink=True))
dl.show("weights and gradients are too large", choose(too_large=True))
dl.show("and one layer, too, on several hosts", divide(layer_too_large=True, host_too_small=True))

# %% [markdown]
# If you land on "divide the model", you've reached the end of `tf.distribute`, because none of its
# strategies does that for a Keras model. TensorFlow lets you build each way by hand, as lessons 16
# to 18 do, and that's a good way to understand them and a hard way to train. [When to leave
# tf.distribute](../docs/leaving.md) says where to go: to JAX, if you want to keep Keras, or to
# PyTorch, where most of the tools in the figure are at home.
#
# > **Takeaway.** Ask about memory first, then about devices. If the model must be divided, take the
# > arithmetic with you and leave `tf.distribute`.
#
# <details><summary>Fine print</summary>
#
# With parameter servers, count only the weights that a step reads. A raw `tf.Variable` from which
# you gather gives a step some of its rows, and a Keras `Embedding` all of them. With a TPU the
# answer is `tpu` even for a single core, because `one_device` finds only GPUs and CPUs. If hosts of
# uneven speed must take each step together, answer no to question 5 and yes to question 6: each
# step then takes as long as on the slowest host.
#
# </details>
#
# <details><summary>In plain TensorFlow</summary>
#
# The names are those of `dl.make_strategy`. They stand for `tf.distribute.OneDeviceStrategy`,
# `MirroredStrategy`, `MultiWorkerMirroredStrategy`, `ParameterServerStrategy` and `TPUStrategy`. If
# you make none, `tf.distribute.get_strategy()` returns the default strategy, which has one replica.
#
# </details>
#
# <details><summary>In PyTorch and JAX</summary>
#
# In PyTorch, `DistributedDataParallel` is `mirrored` and `multi_worker` in one, and `fully_shard`
# is sharded data. In JAX, both are layouts: an array of examples, or of weights, gets a
# `NamedSharding` over an axis of the mesh, and `jax.jit` inserts what must travel.
#
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>1. Your loop runs under <code>OneDeviceStrategy</code>, with the weights of
# <code>fit</code>. Is it ready for eight GPUs?</summary>
#
# You don't know yet, because one replica can't show whether the loss is scaled for several. Try it
# with SGD on four logical devices, with a partial last batch.
#
# </details>
#
# <details><summary>2. A model doesn't fit on one GPU. Would two GPUs under Mirrored help?</summary>
#
# Only if the activations are what's too large, since they shrink with a replica's share of the
# batch. Every replica holds all weights, all gradients and all of the optimizer's state.
#
# </details>
#
# <details><summary>3. Adam's state doesn't fit, everything else does. What do you do before you
# divide anything?</summary>
#
# Take an optimizer with less state, such as Lion or SGD with momentum, and see whether the model
# learns as well.
#
# </details>
#
# <details><summary>4. A pipeline sends the fewest bytes of all. Why isn't it the first way to
# divide a model?</summary>
#
# You must cut the model into stages that take equally long, and keep them busy with many
# micro-batches. Sharded data changes no layer, and its weights can travel while a layer computes.
#
# </details>
#
# <details><summary>5. Two hosts, and the weights must be those of one device. Which strategy, and
# which not?</summary>
#
# Take `multi_worker`, because Mirrored stays within its host, and a parameter server's gradients
# may be [stale](../docs/glossary.md#staleness).
#
# </details>

# %%
from distlab.course.predictions import recap

recap()

# %% [markdown]
# ## Next steps
#
# - [The exercise](../exercises/21_choosing_a_strategy.ipynb): six cases to decide and defend, and a
#   function that names the first weight that differs under a strategy.
# - [Lesson 18](18_split_layer_and_text.ipynb) cuts a layer and a text.
# - For your own model, put your `build` and your data in place of ours and run "Your model under
#   each strategy" again. For Keras's own `fit` or a loop of yours, `dl.check_parity` names the
#   first weight that differs and looks for the cause.
# - [TensorFlow's guide to distributed
#   training](https://www.tensorflow.org/guide/distributed_training) describes the strategies, but
#   its table lists Keras's `fit` as supported under `MultiWorkerMirroredStrategy`, where Keras 3
#   crashes.
# - The [Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook) shows all
#   five ways at work on up to 512 GPUs.
