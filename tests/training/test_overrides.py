"""One table lists every method that is replaced on a model."""

import keras
import numpy as np

import distlab as dl
from distlab.training import overrides


def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def replaced_on(model):
    return {name for name in vars(model) if callable(getattr(type(model), name, None))}


def train(model):
    x = np.ones((4, 4), "float32")
    model.fit(x, x[:, :2], verbose=0)
    model.evaluate(x, x[:, :2], verbose=0)
    model.predict(x, verbose=0)
    model.compile("sgd", "mse")
    model.fit(x, x[:, :2], verbose=0)
    return model


def test_after_training_a_model_has_the_replacements_of_its_table_and_no_more():
    plain = train(build())
    model = dl.distribute(build, dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2]))
    ours = replaced_on(train(model)) - replaced_on(plain)
    assert ours == set(overrides.of_one_process(model))


def test_each_name_in_a_table_is_a_method_of_the_model():
    model = build()
    for table in (overrides.of_one_process, overrides.of_workers):
        assert [name for name in table(model) if not callable(getattr(model, name))] == []


def test_a_method_that_compile_brings_back_stays_replaced():
    model = dl.distribute(build, dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2]))
    replaced = {name: getattr(model, name) for name in overrides.of_one_process(model)}
    model.compile("sgd", "mse")
    assert {name: getattr(model, name) for name in replaced} == replaced
