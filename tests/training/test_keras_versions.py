"""What differs between Keras's versions, as far as one version can show it.

`make versions` runs the tests of training with the others.
"""

import keras
import pytest

from distlab.training.keras_private import versions


class Iterator:
    steps_per_execution = 4


@pytest.mark.parametrize(("version", "last"), [((3, 10), 11), ((3, 11), 8), ((4, 0), 8)])
def test_the_last_batch_of_an_execution_is_known_where_keras_tells_its_first(
    monkeypatch, version, last
):
    monkeypatch.setattr(versions, "KERAS", version)
    assert versions.last_batch(8, Iterator()) == last


@keras.saving.register_keras_serializable("distlab-tests")
class Own(keras.regularizers.Regularizer):
    def __call__(self, x):
        return 2.0 * keras.ops.sum(x)

    def get_config(self):
        return {}


@pytest.mark.parametrize("regularizer", [keras.regularizers.L2(0.5), Own()])
def test_an_activity_regularizer_gives_what_is_added_up_and_is_saved_as_it_is(
    monkeypatch, tmp_path, regularizer
):
    monkeypatch.setattr(versions, "KERAS", (3, 13))
    layer = keras.layers.Dense(2, activity_regularizer=regularizer)
    model = keras.Sequential([keras.Input((3,)), layer])
    saved = layer.get_config()
    for _ in range(2):  # every fit prepares the model
        versions.add_up_activities(layer)
    given = layer.activity_regularizer(keras.ops.ones((4, 2)))
    assert given.shape == (1,)
    assert given[0] == regularizer(keras.ops.ones((4, 2)))
    assert layer.get_config() == saved
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").layers[-1]
    assert type(loaded.activity_regularizer) is type(regularizer)


def test_an_activity_regularizer_stays_what_it_is_where_keras_divides_it(monkeypatch):
    monkeypatch.setattr(versions, "KERAS", (3, 14))
    layer = keras.layers.Dense(2, activity_regularizer="l2")
    before = layer.activity_regularizer
    versions.add_up_activities(layer)
    assert layer.activity_regularizer is before
