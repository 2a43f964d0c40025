"""Sparse gradients give the steps of one device, wherever their rows come from."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.test_distribute_models import assert_equal_to_one_device

ROWS, EXAMPLES, BATCH = 7, 27, 11  # the last batch has 5
DRAW = np.random.default_rng(0)
TOKENS = DRAW.integers(0, ROWS, (EXAMPLES, 6))
TARGETS = DRAW.normal(size=(EXAMPLES, 1)).astype("float32")


class Bag(keras.layers.Layer):
    """The mean of the rows that an example names, looked up from a sparse tensor."""

    def build(self, shape):
        self.table = self.add_weight(shape=(ROWS, 4), name="table")

    def call(self, tokens):
        table, sparse = tf.convert_to_tensor(self.table), tf.sparse.from_dense(tokens)
        return tf.nn.safe_embedding_lookup_sparse(table, sparse, combiner="mean")


def bag_of_rows(inputs):
    return Bag()(inputs)


def one_table_twice(inputs):
    bag = Bag()
    return bag(inputs) + 2 * bag(keras.ops.flip(inputs[:, :4], axis=1))


class Segments(Bag):
    def call(self, tokens):
        table, sparse = tf.convert_to_tensor(self.table), tf.sparse.from_dense(tokens + 1)
        rows, examples = sparse.values - 1, sparse.indices[:, 0]
        return tf.sparse.segment_mean(table, rows, examples, sparse_gradient=True)


def by_segments(inputs):
    return Segments()(inputs)


class Unique(keras.layers.Layer):
    """Looks up each row once, and then repeats it where it is asked for again."""

    def build(self, shape):
        self.embedding = keras.layers.Embedding(ROWS, 4)
        self.embedding.build(shape)

    def call(self, tokens):
        rows, places = tf.unique(tf.reshape(tokens, [-1]))
        found = tf.gather(self.embedding(rows), places)
        return tf.reduce_mean(tf.reshape(found, [-1, 6, 4]), axis=1)


def each_row_once(inputs):
    return Unique()(inputs)


def several_at_once(inputs):
    lookup = keras.layers.IntegerLookup(
        vocabulary=list(range(ROWS)), output_mode="multi_hot", sparse=True
    )
    return keras.layers.Dense(4)(lookup(inputs))


def building(features, optimizer):
    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,), dtype="int64")
        model = keras.Model(inputs, keras.layers.Dense(1)(features(inputs)))
        model.compile(optimizer(), "mse")
        return model

    return build


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize(
    "features", [bag_of_rows, one_table_twice, by_segments, each_row_once, several_at_once]
)
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(0.01),
        lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
    ],
    ids=["adam", "clipped"],
)
def test_rows_that_tensorflow_makes_distinct_are_merged_over_replicas(
    features, optimizer, replicas
):
    data = tf.data.Dataset.from_tensor_slices((TOKENS, TARGETS)).batch(BATCH)
    assert_equal_to_one_device(building(features, optimizer), data, replicas=replicas)


FIRST = [[1, 2], [3, 4], [1, 2], [3, 4]]  # on two replicas both shares look up rows 1 to 4


@pytest.mark.parametrize(
    "second",
    [[[1, 2], [3, 4], [5, 6], [2, 1]], [[1, 2], [1, 2], [5, 6], [2, 1]], [[0, 0]] * 4],
    ids=["as many rows", "fewer rows", "no row"],
)
@pytest.mark.parametrize("first", [FIRST, [[0, 0]] * 4], ids=["rows 1 to 4", "no row"])
@pytest.mark.parametrize("features", [bag_of_rows, one_table_twice])
def test_rows_that_are_alike_in_the_first_batch_only(first, second, features):
    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((2,), dtype="int64")
        model = keras.Model(inputs, keras.layers.Dense(1)(features(inputs)))
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    tokens = np.array([*first, *second, *FIRST])
    data = tf.data.Dataset.from_tensor_slices((tokens, TARGETS[: len(tokens)])).batch(4)
    assert_equal_to_one_device(build, data)
