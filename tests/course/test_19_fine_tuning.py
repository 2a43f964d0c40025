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
from distlab.course.lesson_19_fine_tuning.checks import with_heads
from distlab.course.lesson_19_fine_tuning.sent_numbers import CountedSums
from distlab.course.lesson_19_fine_tuning.small_model import compile_with
from distlab.datasets import loader
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
    load_stub,
)
from tests.support.repository import lesson_text

STEM = "19_fine_tuning"
UNFREEZE, ADAPTERS, MERGED, LEAK = checks_of(STEM)
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


# add_adapters


def adapters_by_layers(model, rank, rate):
    """Freezes each layer's own weights one by one, and counts shapes."""
    total = 0
    for layer in model.layers:
        for weight in layer.weights:
            weight.trainable = False
        if hasattr(layer, "enable_lora"):
            *first, last = layer.kernel.shape
            layer.enable_lora(rank)
            total += rank * (np.prod(first) + last)
    model.compile(loss=model.loss, optimizer=keras.optimizers.SGD(learning_rate=rate))
    return np.float64(total)


def adapters_of_frozen_layers(model, rank, rate):
    for layer in model.layers:
        layer.trainable = layer.name == "head"
        if hasattr(layer, "enable_lora"):
            layer.enable_lora(rank)
    model.compile(keras.optimizers.SGD(rate), model.loss)
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def test_adapters_are_judged():
    assert_right_answers_pass(ADAPTERS, adapters_by_layers, seeds=ONE_DRAW)
    of_all = {"model.trainable_weights)": "model.weights)"}
    wrong = {
        "rest_still_learns": edited("add_adapters", {'"lora" in weight.path': "weight.trainable"}),
        "dense_only": edited(
            "add_adapters", {"(keras.layers.Dense, keras.layers.EinsumDense)": "keras.layers.Dense"}
        ),
        "frozen_adapters": adapters_of_frozen_layers,
        "frozen_counted": edited("add_adapters", of_all),
        "same_lr": edited("add_adapters", {"SGD(rate)": "SGD(0.1)"}),
        "bytes_returned": edited("add_adapters", {"return sum(": "return 4 * sum("}),
    }
    assert_mistakes_are_caught(ADAPTERS, wrong, seeds=ONE_DRAW)
    no_return = edited("add_adapters", {"return sum(": "sum("})
    assert_feedback_says(ADAPTERS, {"is there a `return`?": no_return})


@pytest.mark.parametrize("by_layer", [False, True])
def test_statistics_move_until_the_layer_is_frozen(by_layer):
    """In plain Keras, and under `dl.distribute`, where they are sent as well."""
    sums = CountedSums()
    strategy = dl.make_strategy("mirrored", devices=2, cross_device_ops=sums)
    rows = np.random.default_rng(19).normal(size=(4, 4)), np.ones((4, 2))

    def build():
        layers = [keras.layers.BatchNormalization(), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        layers[0].trainable = not by_layer
        for weight in layers[0].weights:
            weight.trainable = False
        model.compile("sgd", "mse")
        return model

    for model in (build(), dl.distribute(build, strategy)):
        sent = sums.of_a_step(functools.partial(model.fit, *rows, verbose=0))
        assert bool(np.any(model.layers[0].moving_mean.numpy())) != by_layer
    assert (sent > 4 * 2 + 2) != by_layer


def test_a_subclassed_model_keeps_statistics():
    class Fixed(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm, self.head = keras.layers.BatchNormalization(), keras.layers.Dense(1)

        def call(self, rows):
            return self.head(self.norm(rows, training=False))

    model = Fixed()
    model.compile("sgd", "mse")
    model.fit(np.full((8, 4), 5.0), np.ones(8), verbose=0)
    assert not np.any(model.norm.moving_mean.numpy())


def test_the_check_expects_what_a_step_sends():
    sums = CountedSums()
    strategy = dl.make_strategy("mirrored", devices=2, cross_device_ops=sums)
    given = ADAPTERS.inputs(1)
    add_adapters = edited("add_adapters", {})

    def build():
        model = with_heads(given)
        add_adapters(model, 2, 0.1)
        return model

    model = dl.distribute(build, strategy)
    rows = given["images"][:4], given["labels"][:4]
    sent = sums.of_a_step(lambda: model.fit(*rows, batch_size=4, verbose=0))
    assert sent == ADAPTERS.expected(given)["numbers"]


# without_adapter


def merged_by_hand(layer):
    kernel, bias, a, b = layer.get_weights()
    config = {**layer.get_config(), "lora_rank": None}
    config.pop("lora_alpha")
    plain = keras.layers.Dense.from_config(config)
    plain.build((None, len(kernel)))
    plain.set_weights([kernel + layer.lora_alpha / layer.lora_rank * a @ b, bias])
    return plain


def test_merges_are_judged():
    assert_right_answers_pass(MERGED, merged_by_hand, seeds=ONE_DRAW)
    frozen = edited("without_adapter", {"[layer.kernel,": "[layer.get_weights()[0],"})
    assert_mistakes_are_caught(MERGED, {"not_merged": frozen}, seeds=ONE_DRAW)
    says = {
        "is there a `return`?": lambda layer: None,
        "that you were given": lambda layer: layer,
        "yours returned 'array": lambda layer: layer.kernel.numpy(),
    }
    assert_feedback_says(MERGED, says)


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


def dense_with_adapter():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.layers[0].enable_lora(1)
    model.compile("sgd", "mse")
    return model


def test_a_checkpoint_keeps_adapters_that_learn(tmp_path):
    model, other = dense_with_adapter(), dense_with_adapter()
    rows = np.ones((4, 3)), np.ones((4, 2))
    model.fit(*rows, epochs=2, verbose=0)
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "adapters"))
    tf.train.Checkpoint(model=other).read(path).assert_existing_objects_matched()
    a = np.copy(other.layers[0].lora_kernel_a)
    np.testing.assert_array_equal(a, model.layers[0].lora_kernel_a)
    other.fit(*rows, verbose=0)
    assert not np.array_equal(a, other.layers[0].lora_kernel_a)


def test_a_saved_model_comes_back_with_adapters_of_zeros(tmp_path):
    model, rows = dense_with_adapter(), np.ones((4, 3))
    model.fit(rows, np.ones((4, 2)), epochs=2, verbose=0)
    model.save(tmp_path / "adapted.keras")
    loaded = keras.models.load_model(tmp_path / "adapted.keras")
    layer = loaded.layers[0]
    assert layer.lora_enabled
    assert not np.any(layer.lora_kernel_a) and not np.any(layer.lora_kernel_b)
    np.testing.assert_allclose(loaded(rows), model(rows), atol=1e-6)


def lesson_on_photos(**names):
    """Runs the lesson's last section as it stands; of what comes before, only its functions."""
    source = lesson_text(STEM)
    first = source[: source.index("\nphoto_model = ")].count("\n") + 2
    names |= {"dl": dl, "keras": keras, "tf": tf, "compile_with": compile_with}
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
