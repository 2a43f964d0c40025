"""A pitfall of docs/pitfalls.md: what a distributed data set gives is no tensor."""

import pytest
import tensorflow as tf

import distlab as dl


def test_a_batch_of_a_distributed_data_set_is_no_tensor_outside_of_run():
    strategy = dl.make_strategy("mirrored", devices=2)
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))
    batch = next(iter(data))
    text = r"(?s)Attempt to convert a value \(PerReplica:.*with an unsupported type.*to a Tensor"
    with pytest.raises(ValueError, match=text):
        tf.constant(batch)
    sums = strategy.run(tf.reduce_sum, args=(batch,))
    assert [int(part) for part in strategy.experimental_local_results(sums)] == [1, 5]
