"""Collectives are noted once, with a ring's bytes, and give what the replica's own ones give."""

import numpy as np
import pytest
import tensorflow as tf

from distlab.course.runs.noted_collectives import Notes, own_rows
from distlab.course.runs.replicas import give_each, mirrored, take_each
from distlab.errors import InvalidArgument

REPLICAS = 4


def run(on_replica, *values):
    """Runs a compiled step twice, and returns each output with its values of all replicas."""
    strategy = mirrored(REPLICAS)
    given = [give_each(strategy, [tf.constant(each) for each in value]) for value in values]
    step = tf.function(lambda *args: strategy.run(on_replica, args=args))
    step(*given)
    return [take_each(strategy, output) for output in step(*given)]


@pytest.fixture
def pieces():
    return np.random.default_rng(0).normal(size=(REPLICAS, 2, 3)).astype("float32")


def test_collectives_are_noted_in_their_order_with_a_rings_bytes(pieces):
    notes = Notes()

    def on_replica(piece):
        context = notes.context()
        layer = notes.layer(lambda kernel: 2 * kernel)
        whole = layer(context.all_gather(piece, axis=0))
        assert whole.shape == (8, 3)
        total = context.all_reduce("SUM", piece)
        return whole, total, context.reduce_scatter(whole)

    for index, (whole, total, own) in enumerate(zip(*run(on_replica, pieces), strict=True)):
        np.testing.assert_allclose(whole, 2 * pieces.reshape(8, 3), atol=1e-6)
        np.testing.assert_allclose(total, pieces.sum(axis=0), atol=1e-5)
        np.testing.assert_allclose(own, 8 * pieces[index], atol=1e-5)
    assert notes.letters == "g l r s"
    assert [note.bytes for note in notes.notes] == [96, 0, 24, 96]
    assert notes.sent_bytes() == 72 + 2 * 18 + 72


@pytest.mark.parametrize("again", [False, True])
def test_the_gradient_of_an_all_gather_is_noted_as_a_reduce_scatter(pieces, again):
    """It's the sum over all replicas of the gradients of the own rows."""
    notes = Notes()

    def on_replica(piece):
        context = notes.context()
        layer = notes.layer(lambda kernel: kernel**2)
        index = tf.cast(context.replica_id_in_sync_group, tf.float32)

        def gathered(piece):
            return layer(context.all_gather(piece, axis=0))

        with tf.GradientTape() as tape:
            tape.watch(piece)
            out = (tf.recompute_grad(gathered) if again else gathered)(piece)
            loss = (1 + index) * tf.reduce_sum(out)
        return [tape.gradient(loss, piece)]

    (gradients,) = run(on_replica, pieces)
    for index, gradient in enumerate(gradients):
        np.testing.assert_allclose(gradient, 10 * 2 * pieces[index], rtol=1e-5)
    assert notes.letters == ("g l g l s" if again else "g l s")


def test_rows_that_cannot_be_divided_are_refused():
    with pytest.raises(InvalidArgument) as refused:
        own_rows(np.zeros((10, 3)), 4, 0)
    assert refused.value.asked == "the own rows of a tensor [10, 3] on 4 replicas"
    assert refused.value.found == "10 rows, and 10 / 4 leaves 2"
    assert refused.value.do.startswith("pad it with 2 rows of zeros")
