"""Steps that were written for replicas, with TensorFlow's own means."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras import layers

from tools.step_features.plan import Moment, Own, Plan, feature, mean_square, number, spread


def context() -> Any:
    return tf.distribute.get_replica_context()


@feature("learn")
def gradients_that_are_summed_over_replicas(plan: Plan) -> None:
    def by_context(gradients: Any) -> Any:
        return context().all_reduce("sum", gradients)

    def by_enum(gradients: Any) -> Any:
        return context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients)

    def one_by_one(gradients: Any) -> Any:
        return [context().all_reduce("sum", gradient) for gradient in gradients]

    reduce = plan.choose(by_context, by_enum, one_by_one)

    def learn(now: Moment, loss: Any) -> None:
        weights = now.model.trainable_variables
        gradients = reduce(now.tape.gradient(loss, weights))
        now.model.optimizer.apply(gradients, weights)

    plan.learn = learn


@feature()
def a_loss_that_is_divided_by_replicas(plan: Plan) -> None:
    def of_strategy() -> Any:
        return tf.distribute.get_strategy().num_replicas_in_sync

    def of_context() -> Any:
        return context().num_replicas_in_sync

    replicas = plan.choose(of_strategy, of_context)
    plan.losses.append(lambda now: mean_square(now.outputs) / replicas())


@feature()
def rows_that_are_gathered(plan: Plan) -> None:
    def by_context(x: Any) -> Any:
        return context().all_gather(x, axis=0)

    def in_part(x: Any) -> Any:
        return context().all_gather(x[:1], axis=0)

    function = plan.choose(by_context, in_part)
    if plan.choose("in a layer", "in the step") == "in a layer":
        layer = Own(lambda x: x - tf.reduce_mean(function(x), 0), keeps_shape=True)
        plan.layers += [layers.Dense(5), layer]
    else:
        plan.losses.append(lambda now: spread(function(now.outputs)))


@feature()
def a_mean_over_replicas_in_a_layer(plan: Plan) -> None:
    """As an own BatchNormalization for replicas has it."""

    def centred(x: Any) -> Any:
        return x - context().all_reduce("mean", tf.reduce_mean(x, 0))

    plan.layers += [layers.Dense(5), Own(centred, keeps_shape=True)]


@feature()
def the_number_of_a_replica(plan: Plan) -> None:
    def scaled(x: Any) -> Any:
        return x * (1 + 0.1 * number(context().replica_id_in_sync_group))

    def by_replicas(x: Any) -> Any:
        return x / context().num_replicas_in_sync

    function = plan.choose(scaled, by_replicas)
    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers.append(Own(function, keeps_shape=True))
    else:
        plan.losses.append(lambda now: spread(function(now.outputs)))


@feature()
def a_merge(plan: Plan) -> None:
    def by_merge_call(now: Moment) -> Any:
        return context().merge_call(lambda strategy, value: value, args=(number(1.0),))

    def by_reduce(now: Moment) -> Any:
        return tf.distribute.get_strategy().reduce("SUM", number(1.0), axis=None)

    def by_update(now: Moment) -> Any:
        return context().merge_call(
            lambda strategy, value: strategy.reduce("SUM", value, axis=None),
            args=(tf.reduce_mean(now.outputs),),
        )

    def by_gather(now: Moment) -> Any:
        return tf.reduce_sum(tf.distribute.get_strategy().gather(now.outputs, axis=0))

    def by_local_results(now: Moment) -> Any:
        return tf.distribute.get_strategy().experimental_local_results(number(2.0))[0]

    plan.logs["merged"] = plan.choose(
        by_merge_call, by_reduce, by_update, by_gather, by_local_results
    )


@feature()
def a_question_after_the_strategy(plan: Plan) -> None:
    def branch(now: Moment) -> Any:
        if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
            replicas = context().num_replicas_in_sync
            return context().all_reduce("sum", mean_square(now.outputs)) / replicas
        return mean_square(now.outputs)

    plan.losses.append(branch)


@feature()
def helpers_that_know_replicas(plan: Plan) -> None:
    def average(now: Moment) -> Any:
        return tf.nn.compute_average_loss(tf.reduce_sum(now.outputs**2, -1))

    def of_a_number(now: Moment) -> Any:
        each = tf.reduce_sum(now.outputs**2, -1)
        return tf.nn.compute_average_loss(each, global_batch_size=5)

    def scaled(now: Moment) -> Any:
        return tf.nn.scale_regularization_loss(mean_square(now.outputs))

    plan.losses.append(plan.choose(average, of_a_number, scaled))
