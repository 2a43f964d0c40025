"""A step reads the old value of every variable, whatever TensorFlow's graph optimizer removes."""

import pytest
import tensorflow as tf

import distlab as dl
from tests.support.distribution import BATCH, X, Y, strategy_of
from tests.support.graph_orders import functions_that_run, in_order, unordered

LIBRARIES = ["keras", "tf_keras"]
NAME = "in_no_other_model"
KINDS = [("default", None), ("mirrored", 3), ("central_storage", 2)]


def builder(library):
    class Scaled(library.layers.Layer):
        """A loss whose gradient by `scale` does not depend on its value; that by `x` does."""

        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, x):
            self.add_loss(0.1 * self.scale * tf.reduce_mean(x**2))
            return x

    def build():
        layers = [library.layers.Dense(6, name=NAME), Scaled(), library.layers.Dense(4)]
        model = library.Sequential([library.Input((8,)), *layers])
        loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(library.optimizers.SGD(0.1), loss)
        return model

    return build


def orders_lost(model, **options):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    with functions_that_run() as functions:
        model.fit(data, verbose=0, **options)
    # A thread that an earlier test has left may run functions of other models meanwhile.
    functions = [
        graphs
        for graphs in functions
        if any(NAME in node.name for graph in graphs for node in graph.node)
    ]
    assert any(
        node.op == "ReadVariableOp" for graphs in functions for g in graphs for node in g.node
    )
    return [name for graphs in functions for name, _ in unordered(graphs)]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("kind", "replicas"), KINDS)
@pytest.mark.parametrize("checks_finite", [True, False])
def test_every_read_comes_before_the_update(library, kind, replicas, checks_finite):
    library = pytest.importorskip(library, reason="the legacy extra is not installed")
    model = dl.distribute(builder(library), strategy_of(kind, replicas))
    callbacks = [] if checks_finite else [library.callbacks.TerminateOnNaN()]
    assert orders_lost(model, callbacks=callbacks) == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_plain_keras_loses_the_order_and_without_one_pass_keeps_it(library):
    """Were nothing lost, there would be nothing to mend."""
    library = pytest.importorskip(library, reason="the legacy extra is not installed")
    assert [name.split("/")[-1] for name in orders_lost(builder(library)())] == ["ReadVariableOp"]
    with in_order():
        assert orders_lost(builder(library)()) == []
