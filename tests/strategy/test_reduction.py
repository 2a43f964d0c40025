"""The all-reduce that `make_strategy` chooses: TensorFlow's numbers, in a graph traced soon."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import custom_gradient  # what walks over the graph, to be counted

import distlab as dl

DRAW = np.random.default_rng(0)


def strategies(replicas):
    """Ours, and one that differs only in that TensorFlow's own class adds."""
    plain = tf.distribute.ReductionToOneDevice()
    return [
        dl.make_strategy("mirrored", devices=replicas, cross_device_ops=operations)
        for operations in (None, plain)
    ]


def parts(strategy, sizes):
    x = DRAW.normal(size=(sum(sizes), 5)).astype("float32")
    ends = np.cumsum(sizes)
    return lambda context: tf.constant(
        x[ends[context.replica_id_in_sync_group] - sizes[context.replica_id_in_sync_group] :][
            : sizes[context.replica_id_in_sync_group]
        ]
    )


def normalised(strategy, part_of, *, in_graph):
    """What a synchronised layer gives, its moving statistics, and three gradients."""
    with strategy.scope():
        layer = keras.layers.BatchNormalization(synchronized=True)
        layer.build((None, 5))
    x = strategy.experimental_distribute_values_from_function(part_of)

    def step(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                loss = tf.reduce_sum(tf.sin(y) * tf.cast(tf.range(5), tf.float32))
            by_x, by_gamma = tape.gradient(loss, [x, layer.gamma.value])
        return y, by_x, by_gamma, outer.gradient(by_x, x)

    def run(x):
        return strategy.run(step, args=(x,))

    seen = (tf.function(run) if in_graph else run)(x)
    seen = [*seen, layer.moving_mean.value, layer.moving_variance.value]
    return [part.numpy() for one in seen for part in strategy.experimental_local_results(one)]


@pytest.mark.parametrize("in_graph", [True, False])
@pytest.mark.parametrize("sizes", [(3, 4), (3, 2, 2), (2, 1, 0)])
def test_synchronised_layers_get_the_same_bits_and_gradients(sizes, in_graph):
    ours, plain = strategies(len(sizes))
    part_of = parts(ours, sizes)
    expected = normalised(plain, part_of, in_graph=in_graph)
    for value, reference in zip(
        normalised(ours, part_of, in_graph=in_graph), expected, strict=True
    ):
        # Two numbers have one sum; three may be added in another order.
        np.testing.assert_allclose(value, reference, rtol=0, atol=0 if len(sizes) == 2 else 1e-5)
    assert np.abs(expected[len(sizes)]).max() > 1e-3  # there is a gradient to compare


def test_slices_of_sparse_gradients_are_added():
    strategy, _ = strategies(2)

    @tf.function
    def total():
        def step():
            context = tf.distribute.get_replica_context()
            index = tf.reshape(context.replica_id_in_sync_group, [1])
            row = tf.IndexedSlices(tf.ones((1, 2)), index, tf.constant([2, 2]))
            return tf.convert_to_tensor(context.all_reduce("SUM", row))

        return strategy.run(step)

    for part in strategy.experimental_local_results(total()):
        np.testing.assert_array_equal(part, np.ones((2, 2)))


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
@pytest.mark.parametrize("reduction", ["SUM", "MEAN"])
def test_what_is_reduced_outside_of_replicas_still_has_a_gradient(kind, reduction):
    strategy = dl.make_strategy(kind, devices=2)

    @tf.function
    def gradient(x):
        parts = strategy.run(lambda: x**2)
        return tf.gradients(strategy.reduce(reduction, parts, axis=None), x)[0]

    assert float(gradient(tf.constant(3.0))) == {"SUM": 12, "MEAN": 6}[reduction]


def visited_operations(monkeypatch, layers):
    """How many operations TensorFlow looks at for variables while it traces a step."""
    visited = []
    walk = custom_gradient.op_selector.get_backward_walk_ops

    def counted(*args, **kwargs):
        found = walk(*args, **kwargs)
        visited.append(len(found))
        return found

    monkeypatch.setattr(custom_gradient.op_selector, "get_backward_walk_ops", counted)

    def build():
        pairs = [
            (keras.layers.Dense(3), keras.layers.BatchNormalization(synchronized=True))
            for _ in range(layers)
        ]
        model = keras.Sequential([keras.Input((3,)), *(one for pair in pairs for one in pair)])
        model.compile("sgd", "mse")
        return model

    model = dl.distribute(build, dl.make_strategy("mirrored", devices=2))
    x = np.ones((4, 3), "float32")
    model.fit(x, x, verbose=0)
    monkeypatch.undo()
    return sum(visited)


def test_twice_the_layers_are_twice_the_search_for_variables(monkeypatch):
    few, many = (visited_operations(monkeypatch, layers) for layers in (4, 8))
    assert 0 < many < 2.3 * few
