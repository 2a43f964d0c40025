"""A model's own methods, its updates, and what it counts and masks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tools.step_features.plan import (
    CLASSES,
    Moment,
    Own,
    Plan,
    base,
    cross_entropy,
    feature,
    mean_square,
    number,
    own_layer,
    partial,
    spread,
)

SGD = keras.optimizers.SGD


# How it updates


@feature("learn")
def an_optimizer_beside(plan: Plan) -> None:
    other = plan.call_beside(layers.Dense(CLASSES))
    optimizer = SGD(0.02, momentum=0.5)

    def learn(now: Moment, loss: Any) -> None:
        weights = [v for v in now.model.trainable_variables if all(v is not w for w in mine)]
        now.model.optimizer.apply(now.tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            own = mean_square(other(now.outputs) - tf.stop_gradient(now.outputs[::-1]))
        optimizer.apply(tape.gradient(own, mine), mine)

    mine = other.trainable_variables
    optimizer.build(mine)
    plan.learn = learn
    plan.kept["optimizer"] = lambda: np.concatenate(
        [v.numpy().ravel() for v in optimizer.variables]
    )


@feature("learn")
def gradients_that_are_accumulated(plan: Plan) -> None:
    """In variables that the first step makes out of the weights."""
    every = plan.choose(2, 3)
    store: list[tf.Variable] = []

    def learn(now: Moment, loss: Any) -> None:
        weights = now.model.trainable_variables
        if not store:
            with tf.init_scope():
                for weight in weights:
                    zeros = tf.zeros(weight.shape, tf.float64)
                    store.append(tf.Variable(zeros, trainable=False))
        for total, gradient in zip(store, now.tape.gradient(loss, weights), strict=True):
            total.assign_add(tf.convert_to_tensor(gradient))
        is_due = tf.equal((now.model.steps_taken + 1) % every, 0)
        now.model.steps_taken.assign_add(1)

        def update() -> Any:
            now.model.optimizer.apply([total / every for total in store], weights)
            for total in store:
                total.assign(tf.zeros_like(total))
            return True

        tf.cond(is_due, update, lambda: False)

    def on_build(self: Any, shape: Any) -> None:
        self.steps_taken = self.add_weight(shape=(), dtype="int32", trainable=False)
        base(self).build(self, shape)

    plan.learn, plan.methods["build"] = learn, on_build


@feature("learn")
def weights_that_are_averaged(plan: Plan) -> None:
    """An average of the weights, in weights of its own."""
    average = layers.Dense(CLASSES)
    live = plan.call_beside(layers.Dense(CLASSES))
    plan.call_beside(average)
    average.trainable = False

    def learn(now: Moment, loss: Any) -> None:
        weights = now.model.trainable_variables
        now.model.optimizer.apply(now.tape.gradient(loss, weights), weights)
        for mean, weight in zip(average.weights, live.weights, strict=True):
            mean.assign(0.8 * mean + 0.2 * weight)

    plan.losses.append(
        lambda now: mean_square(live(now.outputs) - tf.stop_gradient(average(now.outputs)))
    )
    plan.learn = learn


@feature("learn")
def several_tapes(plan: Plan) -> None:
    def learn(now: Moment, loss: Any) -> None:
        weights = now.model.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            outputs = now.model(now.x, training=True)
            parts = [mean_square(outputs), 0.1 * spread(outputs)]
        totals = now.tape.gradient(loss, weights)
        for part in parts:
            others = tape.gradient(part, weights, unconnected_gradients="zero")
            # Gradient surgery: a part that points against another is left out.
            product = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(totals, others, strict=True)])
            keep = tf.cast(product > 0, tf.float64)
            totals = [a + keep * b for a, b in zip(totals, others, strict=True)]
        now.model.optimizer.apply(totals, weights)

    plan.learn = learn


@feature("learn")
def gradients_of_each_class(plan: Plan) -> None:
    def learn(now: Moment, loss: Any) -> None:
        weights = now.model.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            values = cross_entropy(now.y, now.model(now.x, training=True))
            y = tf.reshape(now.y, [-1])
            parts = [
                tf.reduce_sum(tf.where(y == each, values, tf.zeros_like(values)))
                for each in range(CLASSES)
            ]
        totals = [
            [tf.clip_by_norm(g, 0.1) for g in tape.gradient(part, weights, None, "zero")]
            for part in parts
        ]
        now.model.optimizer.apply([tf.add_n(each) for each in zip(*totals, strict=True)], weights)

    plan.learn = learn


@feature("learn")
def a_step_up_and_back(plan: Plan) -> None:
    def learn(now: Moment, loss: Any) -> None:
        weights = now.model.trainable_variables
        up = [0.5 * g for g in tf.clip_by_global_norm(now.tape.gradient(loss, weights), 0.1)[0]]
        for weight, change in zip(weights, up, strict=True):
            weight.assign_add(change)
        with tf.GradientTape() as tape:
            above = now.model.compute_loss(now.x, now.y, now.model(now.x, training=True))
        gradients = tape.gradient(above, weights, unconnected_gradients="zero")
        for weight, change in zip(weights, up, strict=True):
            weight.assign_sub(change)
        now.model.optimizer.apply(gradients, weights)

    plan.learn = learn


@feature()
def gradients_that_are_changed(plan: Plan) -> None:
    def by_norm(now: Moment, gradients: list[Any]) -> list[Any]:
        return list(tf.clip_by_global_norm(gradients, 0.1)[0])

    def centralized(now: Moment, gradients: list[Any]) -> list[Any]:
        return [g - tf.reduce_mean(g, 0) if g.shape.rank > 1 else g for g in gradients]

    def with_noise(now: Moment, gradients: list[Any]) -> list[Any]:
        seed = [1, tf.cast(now.model.optimizer.iterations, tf.int32)]
        return [
            g + 0.01 * tf.random.stateless_normal(tf.shape(g), seed, dtype=g.dtype)
            for g in gradients
        ]

    def by_signs(now: Moment, gradients: list[Any]) -> list[Any]:
        return [0.1 * tf.tanh(50 * g) for g in gradients]

    plan.changes.append(plan.choose(by_norm, centralized, with_noise, by_signs))


# Methods that Keras calls


@feature("train_step")
def a_train_step_around_that_of_keras(plan: Plan) -> None:
    def train_step(self: Any, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        shifted = x - tf.reduce_mean(x, 0)
        logs = base(self).train_step(self, (shifted, y, weights))
        return logs | {"largest": tf.reduce_max(shifted)}

    plan.methods["train_step"] = train_step


@feature("train_step")
def rows_that_are_mixed_before_the_step(plan: Plan) -> None:
    def train_step(self: Any, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        x = ops.concatenate([x, 0.5 * (x + ops.flip(x, 0))], 0)
        y = ops.concatenate([y, y], 0)
        weights = None if weights is None else ops.concatenate([weights, weights], 0)
        return base(self).train_step(self, (x, y, weights))

    plan.methods["train_step"] = train_step


@feature("test_step")
def a_test_step(plan: Plan) -> None:
    def test_step(self: Any, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        outputs = self(x, training=False)
        loss = self.compute_loss(x, y, outputs, weights, training=False)
        self._loss_tracker.update_state(loss)
        logs = self.compute_metrics(x, y, outputs, weights)
        return logs | {"spread": spread(outputs)}

    plan.methods["test_step"] = test_step


@feature("predict_step")
def a_predict_step(plan: Plan) -> None:
    def of_rows(outputs: Any) -> Any:
        return {"classes": tf.argmax(outputs, -1), "sizes": tf.norm(outputs, axis=-1)}

    def less_the_mean(outputs: Any) -> Any:
        return outputs - tf.reduce_mean(outputs, 0)

    def as_strings(outputs: Any) -> Any:
        return tf.strings.as_string(tf.argmax(outputs, -1))

    function = plan.choose(of_rows, less_the_mean, as_strings)

    def predict_step(self: Any, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return function(self(x, training=False))

    plan.methods["predict_step"] = predict_step


@feature("compute_loss")
def a_loss_of_the_model(plan: Plan) -> None:
    def logarithm(value: Any, x: Any, outputs: Any) -> Any:
        return ops.log1p(ops.abs(value))

    def with_a_spread(value: Any, x: Any, outputs: Any) -> Any:
        return value + 0.1 * spread(outputs)

    def with_inputs(value: Any, x: Any, outputs: Any) -> Any:
        return value + tf.reduce_mean(x) * tf.reduce_mean(outputs)

    function = plan.choose(logarithm, with_a_spread, with_inputs)

    def compute_loss(
        self: Any,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        value = base(self).compute_loss(self, x, y, y_pred, sample_weight, training)
        return function(value, x, y_pred)

    plan.methods["compute_loss"] = compute_loss


@feature("compute_metrics")
def metrics_of_the_model(plan: Plan) -> None:
    def compute_metrics(
        self: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        logs: dict[str, Any] = base(self).compute_metrics(self, x, y, y_pred, sample_weight)
        return logs | {"spread": spread(y_pred), "rows": number(tf.shape(y_pred)[0])}

    plan.methods["compute_metrics"] = compute_metrics


@feature()
def a_layer_that_its_first_call_builds(plan: Plan) -> None:
    kind = plan.choose(layers.Dense, layers.BatchNormalization)
    layer = kind(3) if kind is layers.Dense else kind()
    plan.beside.append(layer)
    plan.losses.append(lambda now: mean_square(layer(now.outputs)))


@feature("call")
def a_call_of_the_model(plan: Plan) -> None:
    def less_the_mean(x: Any) -> Any:
        return x - tf.reduce_mean(x, 0)

    function = plan.choose(tf.tanh, less_the_mean)

    def call(self: Any, x: Any, training: bool = False) -> Any:
        outputs = self.body(function(x), training=training)
        self.add_loss(1e-2 * ops.mean(ops.square(outputs)))
        return outputs + function(outputs)

    plan.methods["call"] = call


# What is added, counted and masked


@feature()
def a_loss_of_a_layer(plan: Plan) -> None:
    def of_a_mean(x: Any) -> Any:
        return 0.1 * ops.mean(ops.square(x))

    def of_a_sum(x: Any) -> Any:
        return 0.01 * ops.sum(ops.square(x))

    def of_a_spread(x: Any) -> Any:
        return 0.1 * spread(x)

    function = plan.choose(of_a_mean, of_a_sum, of_a_spread)

    def add(layer: Any, x: Any) -> None:
        layer.add_loss(function(x))

    def openly(self: Any, x: Any) -> Any:
        self.add_loss(function(x))
        return x

    def by_a_helper(self: Any, x: Any) -> Any:
        add(self, x)
        return x

    plan.layers += [layers.Dense(5), own_layer(plan.choose(openly, by_a_helper))]


@feature()
def a_metric_of_a_layer(plan: Plan) -> None:
    kind = plan.choose(keras.metrics.Mean, keras.metrics.MeanSquaredError)
    metric = kind(name="of_layer")

    def update(metric: Any, x: Any) -> None:
        args = (x,) if isinstance(metric, keras.metrics.MeanMetricWrapper) else ()
        metric.update_state(x**2, *args)

    def openly(self: Any, x: Any) -> Any:
        args = (x,) if isinstance(self.metric, keras.metrics.MeanMetricWrapper) else ()
        self.metric.update_state(x**2, *args)
        return x

    def by_a_helper(self: Any, x: Any) -> Any:
        update(self.metric, x)
        return x

    call = plan.choose(openly, by_a_helper)
    plan.layers += [layers.Dense(5), own_layer(call, metric=metric)]


@feature()
def losses_that_the_step_sums(plan: Plan) -> None:
    plan.layers.append(layers.Dense(5, activity_regularizer="l2", kernel_regularizer="l2"))
    plan.losses.append(lambda now: sum(now.model.losses))


@feature()
def a_mask(plan: Plan) -> None:
    class Masked(layers.Layer):  # type: ignore[misc]
        def __init__(self, by_batch: bool) -> None:
            super().__init__()
            self.supports_masking, self.by_batch = True, by_batch

        def call(self, x: Any) -> Any:
            return 1.0 * x

        def compute_mask(self, x: Any, mask: Any = None) -> Any:
            center = tf.reduce_mean(x, 0)[..., 0] if self.by_batch else 0.0
            return x[..., 0] > center

    plan.sequence_layers += [
        Masked(plan.choose(True, False)),
        plan.choose(layers.GRU, layers.LSTM)(3, return_sequences=True),
    ]


@feature()
def a_mask_that_a_layer_takes(plan: Plan) -> None:
    def call(self: Any, x: Any, mask: Any = None) -> Any:
        if mask is None:
            return x
        kept = tf.cast(mask, x.dtype)[..., None]
        return x - tf.reduce_sum(x * kept, 1, keepdims=True) / (1 + tf.reduce_sum(kept))

    layer = own_layer(call, supports_masking=True)
    plan.sequence_layers += [layers.Masking(-1.0), Own(lambda x: x), layer]


@feature()
def attention_with_a_mask(plan: Plan) -> None:
    attention = layers.MultiHeadAttention(1, 3)

    def call(self: Any, x: Any) -> Any:
        steps = tf.shape(x)[1]
        mask = tf.linalg.band_part(tf.ones((steps, steps), tf.bool), -1, 0)
        return self.attention(x, x, attention_mask=mask)

    plan.sequence_layers.append(own_layer(call, attention=attention))


@feature()
def weights_of_rows_by_the_step(plan: Plan) -> None:
    def loss(now: Moment) -> Any:
        values = cross_entropy(now.y, now.outputs)
        ranks = tf.argsort(tf.argsort(tf.stop_gradient(values)))
        weights = 1 / (1 + number(ranks))
        return tf.reduce_sum(weights * values) / tf.reduce_sum(weights)

    plan.losses.append(loss)


@feature()
def rows_that_are_chosen(plan: Plan) -> None:
    """Only the hardest rows are computed again."""

    def loss(now: Moment) -> Any:
        values = cross_entropy(now.y, now.outputs)
        chosen = tf.math.top_k(values, (tf.shape(values)[0] + 1) // 2 if half else 1).indices
        again = now.model(tf.gather(now.x, chosen), training=True)
        return tf.reduce_mean(cross_entropy(tf.gather(now.y, chosen), again))

    half = plan.choose(True, False)
    plan.losses.append(loss)


@feature()
def rows_that_are_filtered(plan: Plan) -> None:
    def loss(now: Moment) -> Any:
        keep = tf.reshape(now.y, [-1]) != 1
        values = cross_entropy(
            tf.boolean_mask(now.y, keep), now.model(tf.boolean_mask(now.x, keep), training=True)
        )
        return tf.reduce_sum(values) / (1 + number(tf.size(values)))

    plan.losses.append(loss)


@feature()
def rows_that_are_doubled(plan: Plan) -> None:
    """Two views of each row, compared over the batch."""
    head = plan.call_beside(layers.Dense(3))

    def loss(now: Moment) -> Any:
        both = head(tf.concat([now.outputs, tf.tanh(now.outputs)], 0))
        first, second = tf.split(both, 2)
        scores = tf.matmul(first, second, transpose_b=True)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(scores)[0]), scores)
        )

    plan.losses.append(loss)


@feature()
def batch_normalization_in_the_step(plan: Plan) -> None:
    layer = plan.call_beside(layers.BatchNormalization(momentum=0.8))
    plan.losses.append(lambda now: mean_square(layer(now.outputs, training=True) ** 2))


@feature()
def metrics_that_the_step_updates(plan: Plan) -> None:
    kinds = {
        "mean": keras.metrics.Mean,
        "accuracy": keras.metrics.SparseCategoricalAccuracy,
        "auc": partial(keras.metrics.AUC, num_thresholds=20),
    }
    name = plan.choose(*kinds)
    metric = kinds[name](name=f"own_{name}")

    def update(now: Moment) -> Any:
        if name == "mean":
            metric.update_state(cross_entropy(now.y, now.outputs))
        elif name == "auc":
            metric.update_state(tf.reshape(now.y, [-1]) == 1, tf.nn.softmax(now.outputs)[:, 1])
        else:
            metric.update_state(now.y, now.outputs)
        return metric.result()

    plan.logs["own"] = update
