"""Callbacks that read and change the model while it is trained."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tools.step_features.plan import Moment, Own, Plan, feature, mean_square


def callback(**methods: Any) -> Any:
    """Returns a callback with these methods, which get it first."""
    return type("Drawn", (keras.callbacks.Callback,), methods)()


@feature()
def weights_that_are_set(plan: Plan) -> None:
    def pruned(self: Any, number: int, logs: Any = None) -> None:
        self.model.set_weights([w * (np.abs(w) > 0.01) for w in self.model.get_weights()])

    def assigned(self: Any, number: int, logs: Any = None) -> None:
        for weight in self.model.trainable_variables:
            weight.assign(0.99 * weight)

    when = plan.choose("on_train_batch_end", "on_train_batch_begin", "on_epoch_end")
    plan.callbacks.append(callback(**{when: plan.choose(pruned, assigned)}))


@feature()
def a_rate_that_is_changed(plan: Plan) -> None:
    def assigned(self: Any, number: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 / (1 + number)

    def by_variable(self: Any, number: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate.assign(0.05 * (1 + number % 2))

    when = plan.choose("on_train_batch_begin", "on_train_batch_end", "on_epoch_begin")
    plan.compiled.setdefault("optimizer", keras.optimizers.SGD(0.05, momentum=0.5))
    if isinstance(plan.compiled["optimizer"], keras.optimizers.SGD):
        plan.compiled["optimizer"] = keras.optimizers.SGD(0.05, momentum=0.5)
        plan.callbacks.append(callback(**{when: plan.choose(assigned, by_variable)}))


@feature()
def a_number_that_is_read(plan: Plan) -> None:
    seen: list[float] = []
    plan.kept["read"] = lambda: np.array(seen)

    def of_logs(self: Any, number: int, logs: Any = None) -> None:
        seen.append(float(logs["loss"]))

    def of_metrics(self: Any, number: int, logs: Any = None) -> None:
        seen.append(float(self.model.get_metrics_result()["loss"]))

    def of_optimizer(self: Any, number: int, logs: Any = None) -> None:
        seen.append(float(self.model.optimizer.iterations))

    def of_weights(self: Any, number: int, logs: Any = None) -> None:
        seen.append(float(sum(np.sum(w) for w in self.model.get_weights())))

    def of_outputs(self: Any, number: int, logs: Any = None) -> None:
        seen.append(float(np.sum(self.model(np.ones((5, *self.model.of_row))))))

    read = plan.choose(of_logs, of_optimizer, of_weights, of_outputs, of_metrics)
    when = "on_epoch_end" if read is of_metrics else plan.choose("on_train_batch_end")
    plan.callbacks.append(callback(**{when: read}))


@feature()
def a_variable_that_a_callback_sets(plan: Plan) -> None:
    scale = tf.Variable(1.0, trainable=False, dtype=tf.float64)
    attribute = plan.choose("on_train_batch_end", "on_epoch_end")

    def rise(self: Any, number: int, logs: Any = None) -> None:
        scale.assign_add(0.5)

    plan.callbacks.append(callback(**{attribute: rise}))
    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers += [layers.Dense(5), Own(lambda x: x * scale)]
    else:
        plan.losses.append(lambda now: scale * mean_square(now.outputs))


@feature()
def a_stop(plan: Plan) -> None:
    at = plan.draw.choice([0, 1, 3])

    def stop(self: Any, number: int, logs: Any = None) -> None:
        self.count = getattr(self, "count", 0) + 1
        if self.count > at:
            self.model.stop_training = True

    when = plan.choose("on_train_batch_end", "on_train_batch_begin", "on_epoch_end")
    plan.callbacks.append(callback(**{when: stop}))


@feature("optimizer")
def averages_that_are_swapped_in(plan: Plan) -> None:
    plan.compiled["optimizer"] = keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8)
    plan.callbacks.append(keras.callbacks.SwapEMAWeights(swap_on_epoch=plan.choose(True, False)))


@feature("predict_step")
def predictions_between_epochs(plan: Plan) -> None:
    made: list[Any] = []
    plan.kept["predicted"] = lambda: np.array(made)

    def predict(self: Any, number: int, logs: Any = None) -> None:
        x = np.linspace(-1, 1, 5 * int(np.prod(self.model.of_row)))
        made.append(self.model.predict(x.reshape(5, *self.model.of_row), verbose=0, batch_size=3))

    def evaluate(self: Any, number: int, logs: Any = None) -> None:
        x = np.linspace(-1, 1, 5 * int(np.prod(self.model.of_row)))
        x = x.reshape(5, *self.model.of_row)
        made.append(self.model.evaluate(x, np.arange(5) % 4, verbose=0, batch_size=3))

    plan.callbacks.append(callback(on_epoch_end=plan.choose(predict, evaluate)))


@feature()
def a_callback_of_keras(plan: Plan) -> None:
    kinds = {
        "early": lambda: keras.callbacks.EarlyStopping(
            "loss", patience=0, min_delta=0.5, restore_best_weights=True
        ),
        "plateau": lambda: keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=0.5),
        "schedule": lambda: keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (1 + epoch)),
    }
    plan.compiled.setdefault("optimizer", keras.optimizers.SGD(0.05))
    plan.callbacks.append(kinds[plan.choose(*kinds)]())


@feature()
def what_the_step_kept_and_a_callback_reads(plan: Plan) -> None:
    last = tf.Variable(tf.zeros((4,), tf.float64), trainable=False)
    seen: list[Any] = []
    plan.kept["seen"] = lambda: np.array(seen)

    def keep(now: Moment) -> Any:
        last.assign(tf.reduce_mean(now.outputs, 0))
        return mean_square(now.outputs)

    def read(self: Any, number: int, logs: Any = None) -> None:
        seen.append(last.numpy())

    plan.after.append(keep)
    plan.callbacks.append(callback(on_train_batch_end=read))
