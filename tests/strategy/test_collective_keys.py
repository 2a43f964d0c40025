"""Two MirroredStrategies of one process, and the all-reduces of both."""

import textwrap

import pytest
import tensorflow as tf

import distlab as dl

# A failed all-reduce stops all later ones of its process, so each case has one of its own.
TWO_MODELS = """
import keras
import numpy as np
import tensorflow as tf
import distlab as dl

devices = dl.split_devices(3)
x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")

def build(units=2):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    return model

def by_keras(build, strategy):
    with strategy.scope():
        return build()

for units, replicas in (2, 2), (5, 2), (7, 3):
    strategy = tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(replicas)])
    model = TRAINS(lambda: build(units), strategy)
    model.fit(x[:6], y[:6], batch_size=6, verbose=0)
    print("trained", units, model.count_params())
"""


def test_tensorflows_own_takes_the_second_strategys_all_reduces_for_the_firsts(run_python):
    error = run_python(TWO_MODELS.replace("TRAINS", "by_keras"), fails=True, warm=True)
    assert "Shape mismatch in the collective instance 100" in error


def test_each_strategy_given_to_distribute_has_all_reduces_of_its_own(run_python):
    said = run_python(TWO_MODELS.replace("TRAINS", "dl.distribute"), warm=True)
    assert [line.split()[1] for line in said.splitlines() if "trained" in line] == ["2", "5", "7"]


def test_gathering_under_two_strategies_of_make_strategy(run_python):
    code = """
        import distlab as dl
        import tensorflow as tf

        dl.split_devices(3)
        for replicas in (2, 3):
            strategy = dl.make_strategy("mirrored", devices=replicas)
            rows = strategy.run(lambda: tf.ones([1, replicas]))
            print(strategy.gather(rows, axis=0).shape)
    """
    assert run_python(textwrap.dedent(code), warm=True).split("\n")[:2] == ["(2, 2)", "(3, 3)"]


@pytest.mark.parametrize(
    "make", [lambda: dl.make_strategy("mirrored"), tf.distribute.MirroredStrategy]
)
def test_a_strategy_is_numbered_once(make):
    from distlab.strategy import collective_keys

    strategy = make()
    collective_keys.separate(strategy)
    first = strategy.extended._collective_ops
    collective_keys.separate(strategy)
    assert strategy.extended._collective_ops is first
