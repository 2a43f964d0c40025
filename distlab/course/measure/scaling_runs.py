"""Measures the step of a Keras model under a strategy, and what it consists of.

    step = time_step(build, dl.make_strategy("mirrored"), data)
    step.compute_secs, step.communication_secs, step.input_secs

The parts come from leaving things out: the whole step, the step on a batch that is there already,
and that step without its all-reduce. The optimizer is plain SGD in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distlab.course.measure.timing import time_in_turns
from distlab.errors import ModelError
from distlab.process_state import kept_state

_RATE = 1e-3
_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class MeasuredStep:
    """One training step on so many replicas, as it was measured.

    Attributes:
        replicas: How many replicas share the global batch.
        global_batch: How many examples a step has.
        gradient_bytes: How many bytes of gradients each replica gives to the all-reduce.
        compute_secs: Seconds of the forward pass, the backward pass and the update.
        communication_secs: Seconds that the all-reduce adds; 0 if noise hides it.
        input_secs: Seconds that the step waits for its next batch; 0 if noise hides it.
        whole_secs: The median seconds of the whole step.
        middle_half_secs: The quartiles of the whole step's blocks, in seconds.
    """

    replicas: int
    global_batch: int
    gradient_bytes: int
    compute_secs: float
    communication_secs: float
    input_secs: float
    whole_secs: float
    middle_half_secs: tuple[float, float]


@kept_state()
def time_step(
    build: Callable[[], Any], strategy: Any, data: Any, *, blocks: int = 9, calls: int = 4
) -> MeasuredStep:
    """Times the training step of a model: input, forward and backward pass, all-reduce, update.

    The update is that of plain SGD, whatever the model was compiled with: other optimizers add the
    same arithmetic on every replica, and send nothing.

    Args:
        build: Returns a compiled Keras model.
        strategy: The strategy; with one replica there is nothing to reduce.
        data: A `tf.data.Dataset` of full global batches `(x, y)`; it is repeated.
        blocks: How many blocks of steps are timed.
        calls: How many steps a block has.

    Raises:
        ModelError: Only the model's own `train_step` knows its loss.
    """
    import tensorflow as tf

    with strategy.scope():
        model = build()
    weights = model.trainable_variables

    def replica_step(batch: Any, reduces: bool) -> None:
        x, y = batch
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            try:
                loss = model.compute_loss(x=x, y=y, y_pred=outputs)
            except ValueError as error:  # Keras's "No loss to compute"
                raise ModelError(
                    asked=f"time a step of the model {model.name!r}",
                    found=f"no loss outside of its own train_step: {error}",
                    do="compile the model with a loss, or override compute_loss",
                ) from error
        gradients = tape.gradient(loss, weights)
        if reduces:
            gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.value.assign_sub(_RATE * gradient)

    def compiled(reduces: bool) -> Callable[[Any], None]:
        def step(batch: Any) -> None:
            strategy.run(replica_step, args=(batch, reduces))

        return tf.function(step, autograph=False)  # type: ignore[no-any-return]

    def next_step() -> None:
        strategy.run(replica_step, args=(next(batches), True))

    batches = iter(strategy.experimental_distribute_dataset(data.repeat()))
    kept = next(batches)
    step, alone = compiled(reduces=True), compiled(reduces=False)
    timings = time_in_turns(
        {
            "whole": tf.function(next_step, autograph=False),
            "kept batch": lambda: step(kept),
            "no all-reduce": lambda: alone(kept),
        },
        blocks=blocks,
        calls=calls,
    )
    whole, on_kept, without = (timing.median_secs for timing in timings.values())
    if strategy.num_replicas_in_sync == 1:
        without = on_kept  # nothing is sent: what differs is chance
    labels = strategy.experimental_local_results(kept[1])
    return MeasuredStep(
        replicas=strategy.num_replicas_in_sync,
        global_batch=sum(int(share.shape[0]) for share in labels),
        gradient_bytes=sum(
            _FLOAT32_BYTES * weight.value.shape.num_elements() for weight in weights
        ),
        compute_secs=without,
        communication_secs=max(0.0, on_kept - without),
        input_secs=max(0.0, whole - on_kept),
        whole_secs=whole,
        middle_half_secs=timings["whole"].middle_half_secs,
    )


def small_cnn() -> Any:
    """Returns the CNN of lesson 14, compiled: 28 x 28 pixels, two convolutions, 420,000 weights."""
    import keras

    layers = [
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential([keras.Input((28, 28, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(_RATE), loss=loss)
    return model
