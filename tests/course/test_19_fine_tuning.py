"""The checks of lesson 19: right answers pass, mistakes are named, the lesson's claims hold."""

import ast
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.lesson_19_fine_tuning.checks import half_frozen
from distlab.course.lesson_19_fine_tuning.figures import recorded_accuracies
from distlab.datasets import loader
from tests.support.lesson_checks import (
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
    load_stub,
)
from tests.support.repository import lesson_text

STEM = "19_fine_tuning"
UNFREEZE, NUMBERS, LEAK = checks_of(STEM)
ONE_DRAW = (1,)
edited = functools.partial(edited_solution, STEM)


# unfreeze_from


def unfreeze_by_slices(model, first, rate):
    """All layers first, then what must stay frozen."""
    for layer in model.layers:
        layer.trainable = True
    at = model.layers.index(model.get_layer(first))
    norms = [each for each in model.layers if isinstance(each, keras.layers.BatchNormalization)]
    for layer in [*model.layers[:at], *norms]:
        layer.trainable = False
    model.compile(loss=model.loss, optimizer=keras.optimizers.SGD(learning_rate=rate))


def test_ways_to_unfreeze_are_judged():
    assert_right_answers_pass(UNFREEZE, unfreeze_by_slices, seeds=ONE_DRAW)
    wrong = {
        "no_recompile": load_stub(STEM)[UNFREEZE.function],
        "same_optimizer": edited(
            "unfreeze_from", {"keras.optimizers.SGD(rate)": "model.optimizer"}
        ),
    }
    assert_mistakes_are_caught(UNFREEZE, wrong, earned={"no_recompile": 0}, seeds=ONE_DRAW)


# numbers_sent


def numbers_of_layers(model):
    """A trainable normalization has four numbers a feature, two of which have gradients."""
    learn = [layer for layer in model.layers if layer.trainable]
    norms = [layer for layer in learn if isinstance(layer, keras.layers.BatchNormalization)]
    features = sum(norm.gamma.shape[0] for norm in norms)
    return np.float64(sum(layer.count_params() for layer in learn) + 10 * features)


def test_numbers_are_judged():
    assert_right_answers_pass(NUMBERS, numbers_of_layers, seeds=ONE_DRAW)
    wrong = {
        "whole_model": lambda model: model.count_params(),
        "gradients_only": lambda model: sum(w.numpy().size for w in model.trainable_weights),
    }
    assert_mistakes_are_caught(NUMBERS, wrong, seeds=ONE_DRAW)


def test_the_check_expects_what_a_step_sends():
    sent = []

    class CountedSums(tf.distribute.ReductionToOneDevice):
        def batch_reduce_implementation(self, how, pairs, options):
            shapes = [value.values[0].shape for value, _ in pairs]
            sent.extend(shape.num_elements() for shape in shapes if shape != [2])
            return super().batch_reduce_implementation(how, pairs, options)

    strategy = dl.make_strategy("mirrored", devices=2, cross_device_ops=CountedSums())
    given = NUMBERS.inputs(1)
    model = dl.distribute(lambda: half_frozen(given), strategy)
    rows = np.ones((4, given["features"])), np.ones((4, given["classes"]))
    model.fit(*rows, batch_size=4, verbose=0)
    assert sum(sent) == NUMBERS.expected(given)["sent"]


# pretraining_rows


def rows_as_an_array(images, labels, new_classes, test_rows):
    flat = images.reshape(len(images), -1)
    same = (flat[:, None] == flat[None, test_rows]).all(axis=2).any(axis=1)
    return np.flatnonzero(~same & ~np.isin(labels, new_classes))[::-1]


def test_rows_are_judged():
    assert_right_answers_pass(LEAK, rows_as_an_array)
    with_copies = edited("pretraining_rows", {" if images[row].tobytes() not in tests": ""})
    assert_mistakes_are_caught(LEAK, {"copies_in_pretraining": with_copies})


# What the lesson says


def test_the_recorded_curves_say_what_the_lesson_says():
    runs = {
        way: {labels: np.asarray(seeds) for labels, seeds in by_labels.items()}
        for way, by_labels in recorded_accuracies().items()
    }
    assert all(len(seeds) == 10 for seeds in runs["scratch"].values())

    def gain(way, other, labels):
        return (runs[way][labels] - runs[other][labels]).mean()

    said = {
        ("fine-tuned", "frozen", 1): 0.04,
        ("fine-tuned", "frozen", 10): 0.03,
        ("head for 200 steps", "frozen", 10): 0.01,
        ("head for 200 steps", "frozen", 30): 0.02,
        ("fine-tuned", "rate of the head", 1): 0.08,
        ("leaky", "frozen", 1): 0.16,
    }
    assert {case: gain(*case) for case in said} == pytest.approx(said, abs=0.005)
    for labels in (10, 30, 140):
        assert 0.025 < gain("scratch", "frozen", labels) < 0.04
        assert abs(gain("scratch", "fine-tuned", labels)) < 0.006
        assert abs(gain("normalization in training", "fine-tuned", labels)) < 0.01
    assert (runs["fine-tuned"][1] > runs["frozen"][1]).sum() == 9


def test_a_model_that_counts_as_trainable_does_not_free_its_layers():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    model.trainable = True
    assert model.trainable_weights == []
    model.trainable = False
    model.trainable = True
    assert len(model.trainable_weights) == 2


def test_a_change_between_compile_and_the_first_fit_counts():
    def build():
        layers = [keras.layers.Dense(2, trainable=False), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((2,)), *layers])
        model.compile("sgd", "mse")
        return model

    strategy = dl.make_strategy("mirrored", devices=2)
    for model in (build(), dl.distribute(build, strategy)):
        model.layers[0].trainable = True
        before = np.copy(model.layers[0].get_weights()[0])
        model.fit(np.ones((2, 2)), np.full((2, 1), 5.0), verbose=0)
        assert not np.array_equal(before, model.layers[0].get_weights()[0])


def test_a_model_compiled_again_takes_the_steps_of_one_device():
    """With more rows on one replica than on the other, after a step on a frozen body."""
    draw = np.random.default_rng(14)
    x, y = draw.normal(size=(5, 3)).astype("float32"), draw.normal(size=(5, 1))

    def build():
        keras.utils.set_random_seed(14)
        layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        layers[0].trainable = False
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    strategy = dl.make_strategy("mirrored", devices=2)
    models = [build(), dl.distribute(build, strategy)]
    first = [np.copy(weight) for weight in models[0].get_weights()]
    for model in models:
        model.fit(x, y, batch_size=5, verbose=0)
        model.layers[0].trainable = True
        model.compile(keras.optimizers.SGD(0.05), "mse")
        model.fit(x, y, batch_size=5, verbose=0)
    for start, one, other in zip(first, *(model.get_weights() for model in models), strict=True):
        assert not np.array_equal(start, one)
        np.testing.assert_allclose(one, other, atol=1e-6)


def lesson_on_photos(**names):
    """Runs the lesson's last section as it stands; of what comes before, only its functions."""
    source = lesson_text(STEM)
    first = source[: source.index("\nphoto_model = ")].count("\n") + 2
    names |= {"dl": dl, "keras": keras, "tf": tf}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) or node.lineno >= first:
            exec(compile(ast.Module([node], []), "lesson", "exec"), names)
    return names


def small_body(*, weights, include_top, pooling, input_shape):
    assert (weights, include_top, pooling) == ("imagenet", False, "avg")
    images = keras.Input(input_shape)
    below = keras.layers.Conv2D(2, 3, 8)(images)
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(below))


def test_the_cells_with_photos_train_as_they_stand(monkeypatch):
    """With random images and a body of one layer, so that nothing is downloaded."""
    resnet = keras.applications.ResNet50
    monkeypatch.setattr(keras.applications, "ResNet50", small_body)
    monkeypatch.setattr(loader, "_is_prepared", lambda *given: True)
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    with tfds.testing.mock_data(num_examples=4):
        names = lesson_on_photos(DOWNLOAD=True, strategy=strategy)
        images, labels = next(iter(names["photos"]("train[:50%]")))
    assert images.shape == (len(labels), 160, 160, 3)
    assert images.dtype == tf.float32
    assert float(tf.reduce_min(images)) < -50 and float(tf.reduce_max(images)) > 50
    model = names["photo_model"]
    assert int(model.optimizer.iterations.numpy()) == 2
    assert float(model.optimizer.learning_rate.numpy()) == pytest.approx(1e-5)
    assert len(model.trainable_weights) == 4
    names["unfreeze_except_norms"](body := resnet(weights=None, include_top=False), last=33)
    free = {layer.name.split("_")[0] for layer in body.layers if layer.trainable_weights}
    assert free == {"conv5"}
