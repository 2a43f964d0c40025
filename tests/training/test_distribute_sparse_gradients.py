"""Sparse gradients give the steps of one device, wherever their rows come from."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
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


class Trimmed(keras.layers.Layer):
    """Embeds tokens and their positions, up to the end of the longest example. 0 is padding."""

    def build(self, shape):
        self.tokens = keras.layers.Embedding(ROWS + 1, 4)
        self.positions = keras.layers.Embedding(6, 4)
        self.tokens.build(None)
        self.positions.build(None)

    def call(self, tokens):
        longest = tf.reduce_max(tf.math.count_nonzero(tokens, axis=1))
        tokens = tokens[:, :longest]
        counts = tf.cast(tokens != 0, tf.float32)[..., None]
        embedded = self.tokens(tokens) + self.positions(tf.range(longest))
        return tf.reduce_sum(embedded * counts, 1) / tf.reduce_sum(counts, 1)


LONG, MIXED, SHORT = [6] * BATCH, [6, 5, 6, 4, 2, 1, 2, 3, 4, 2, 3], [3, 4, 2, 1, 2]


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, keras.optimizers.SGD])
@pytest.mark.parametrize(
    "lengths", [[*LONG, *MIXED, *SHORT], [*MIXED, *LONG, *SHORT]], ids=["long first", "mixed first"]
)
@pytest.mark.parametrize("eagerly", [False, True])
def test_positions_up_to_the_longest_example_of_each_share(lengths, eagerly, optimizer, replicas):
    def build():
        model = building(lambda inputs: Trimmed()(inputs), lambda: optimizer(0.01))()
        model.run_eagerly = eagerly
        return model

    tokens = np.where(np.arange(6) < np.array(lengths)[:, None], TOKENS + 1, 0)
    data = tf.data.Dataset.from_tensor_slices((tokens, TARGETS)).batch(BATCH)
    assert_equal_to_one_device(build, data, replicas=replicas)


class Distances(Trimmed):
    """Embeds how far two places are apart: most rows are looked up several times."""

    farthest = 5

    def build(self, shape):
        super().build(shape)
        self.distances = keras.layers.Embedding(11, 4)
        self.distances.build(None)

    def call(self, tokens):
        longest = tf.reduce_max(tf.math.count_nonzero(tokens, axis=1))
        places = tf.range(longest)
        apart = tf.clip_by_value(places[:, None] - places, -self.farthest, self.farthest)
        pairs = self.distances(apart + 5)
        counts = tf.cast(tokens[:, :longest] != 0, tf.float32)
        counts = counts / tf.reduce_sum(counts, 1, keepdims=True)
        return super().call(tokens) * tf.einsum("bi,bj,ijk->bk", counts, counts, pairs)


class Clipped(Distances):
    farthest = 2


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize(
    ("layer", "optimizer", "lengths"),
    [
        (Distances, keras.optimizers.Adam, [*LONG, *MIXED, *SHORT]),
        (Clipped, keras.optimizers.Adam, [*LONG, *[4] * BATCH, *[2] * 5]),
        (Clipped, keras.optimizers.SGD, [*LONG, *MIXED, *SHORT]),
    ],
    ids=["distances", "clipped, of equal lengths", "clipped, with sgd"],
)
def test_rows_that_every_share_looks_up_several_times(layer, lengths, optimizer, replicas):
    build = building(lambda inputs: layer()(inputs), lambda: optimizer(0.01))
    tokens = np.where(np.arange(6) < np.array(lengths)[:, None], TOKENS + 1, 0)
    data = tf.data.Dataset.from_tensor_slices((tokens, TARGETS)).batch(BATCH)
    assert_equal_to_one_device(build, data, replicas=replicas)


class Twice(Trimmed):
    def call(self, tokens):
        return super().call(tokens) + 2 * super().call(tokens[:, :2])


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("first", [LONG, MIXED], ids=["long first", "mixed first"])
def test_positions_that_are_looked_up_twice(first, replicas):
    build = building(lambda inputs: Twice()(inputs), lambda: keras.optimizers.Adam(0.01))
    lengths = np.array([*first, *MIXED, *SHORT])[:, None]
    tokens = np.where(np.arange(6) < lengths, TOKENS + 1, 0)
    data = tf.data.Dataset.from_tensor_slices((tokens, TARGETS)).batch(BATCH)
    assert_equal_to_one_device(build, data, replicas=replicas)


@pytest.mark.parametrize("steps", [1, 3])
def test_tensorflows_own_all_reduce_takes_batches_of_several_sizes_in_one_execution(steps):
    """On several GPUs and workers it gathers slices, in a loop always as many."""

    def build():
        inputs = keras.Input((6,), dtype="int64")
        model = keras.Model(inputs, keras.layers.Embedding(ROWS, 1)(inputs))
        model.compile("adam", "mse", steps_per_execution=steps)
        return model

    size, even = 8, slice(0, 20)  # the last batch has 4: equal shares, smaller than those before
    targets = np.repeat(TARGETS[even, None], 6, axis=1)
    data = tf.data.Dataset.from_tensor_slices((TOKENS[even], targets)).batch(size)
    keras.utils.set_random_seed(1)
    one, strategy = build(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    keras.utils.set_random_seed(1)
    model = dl.distribute(build, strategy)
    expected, found = [m.fit(data, epochs=2, verbose=0).history["loss"] for m in (one, model)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for weight, reference in zip(model.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(weight, reference, atol=1e-6)
