"""The checks of lesson 14: right answers pass, mistakes are named, the lesson's claims hold."""

import ast
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import distlab as dl
from distlab.checks.lesson_14_transfer_learning.numbers_sent import half_frozen
from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from distlab.datasets import loader
from distlab.pictures.label_curve import recorded_accuracies
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    load_solution,
    load_stub,
)
from tests.support.repository import ROOT

STEM = "14_transfer_learning"
UNFREEZE, NUMBERS, LEAK = checks_of(STEM)
solution = functools.cache(functools.partial(load_solution, STEM))
ONE_DRAW = (1,)


def test_the_solution_unfreezes_the_right_layers():
    assert_solution_passes(UNFREEZE, solution()[UNFREEZE.function], seeds=range(2))


@pytest.mark.parametrize("check", [NUMBERS, LEAK], ids=lambda check: check.name)
def test_the_solution_passes(check):
    assert_solution_passes(check, solution()[check.function])


# unfreeze_from


def unfreezing(*, norms=False, everything=False, head=True, compiled=True, rate=None, old=False):
    def unfreeze_from(model, first, rate_asked):
        names = [layer.name for layer in model.layers]
        for place, layer in enumerate(model.layers):
            is_norm = isinstance(layer, keras.layers.BatchNormalization)
            layer.trainable = (everything or place >= names.index(first)) and (norms or not is_norm)
        model.layers[-1].trainable = head
        optimizer = model.optimizer if old else keras.optimizers.SGD(rate or rate_asked)
        if compiled:
            model.compile(optimizer, model.loss)

    return unfreeze_from


def unfreeze_by_slices(model, first, rate):
    """All layers first, then what must stay frozen."""
    for layer in model.layers:
        layer.trainable = True
    at = model.layers.index(model.get_layer(first))
    norms = [each for each in model.layers if isinstance(each, keras.layers.BatchNormalization)]
    for layer in [*model.layers[:at], *norms]:
        layer.trainable = False
    model.compile(loss=model.loss, optimizer=keras.optimizers.SGD(learning_rate=rate))


@pytest.mark.parametrize("answer", [unfreezing(), unfreeze_by_slices])
def test_other_right_ways_to_unfreeze_pass(answer):
    assert_solution_passes(UNFREEZE, answer, seeds=ONE_DRAW)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (unfreezing(compiled=False), "no_recompile"),
        (unfreezing(everything=True), "all_layers_unfrozen"),
        (unfreezing(norms=True), "bn_in_training_mode"),
        (unfreezing(head=False), "head_frozen"),
        (unfreezing(rate=0.1), "same_lr"),
        (unfreezing(old=True), "same_optimizer"),
    ],
)
def test_a_wrong_way_to_unfreeze_is_named(answer, mistake):
    assert_mistake_is_caught(UNFREEZE, answer, mistake, seeds=ONE_DRAW)


def test_the_function_as_handed_out_is_not_compiled():
    report = run_check(UNFREEZE, load_stub(STEM)[UNFREEZE.function], seeds=ONE_DRAW)
    assert (report.earned, report.mistake) == (0, "no_recompile")


# numbers_sent


def numbers_by(*, learns=True, kinds=(keras.layers.Layer,), moves=True, biases=True, each=None):
    """Adds up by kinds of weights; `learns` and `moves` say whether frozen ones are left out."""

    def numbers_sent(model):
        total = 0
        for layer in model.layers:
            norm = isinstance(layer, keras.layers.BatchNormalization)
            weights = layer.weights[: 2 if biases or norm else 1]
            free = layer.trainable or not learns
            counted = list(weights) if free and isinstance(layer, kinds) else []
            if norm and (moves is None or (moves and layer.trainable)):
                counted += layer.weights[2:]
            total += sum((each or (lambda weight: weight.numpy().size))(one) for one in counted)
        return total

    return numbers_sent


def numbers_of_layers(model):
    """A step changes all weights of a trainable layer, or none."""
    return np.float64(sum(layer.count_params() for layer in model.layers if layer.trainable))


@pytest.mark.parametrize("answer", [numbers_by(), numbers_of_layers])
def test_other_right_numbers_pass(answer):
    assert_solution_passes(NUMBERS, answer, seeds=range(3))


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda model: model.count_params(), "whole_model"),
        (numbers_by(moves=False), "gradients_only"),
        (numbers_by(moves=None), "frozen_statistics"),
        (numbers_by(moves=False, kinds=(keras.layers.Dense,)), "no_normalization"),
        (numbers_by(biases=False), "no_biases"),
        (numbers_by(each=lambda weight: 1), "arrays_counted"),
        (lambda model: len(model.trainable_weights), "arrays_counted"),
        (lambda model: 4 * numbers_of_layers(model), "bytes_counted"),
        (numbers_by(moves=False, each=lambda weight: 4 * weight.numpy().size), "bytes_counted"),
        (lambda model: 2 * numbers_of_layers(model), "all_replicas"),
        (numbers_by(moves=False, each=lambda weight: 2 * weight.numpy().size), "all_replicas"),
    ],
)
def test_wrong_numbers_are_named(answer, mistake):
    assert_mistake_is_caught(NUMBERS, answer, mistake, seeds=ONE_DRAW)


def test_the_check_expects_what_a_step_sends():
    sent = []

    class CountedSums(tf.distribute.ReductionToOneDevice):
        def batch_reduce_implementation(self, how, pairs, options):
            sent.extend(value.values[0].shape.num_elements() for value, _ in pairs)
            return super().batch_reduce_implementation(how, pairs, options)

    strategy = dl.make_strategy("mirrored", devices=2, cross_device_ops=CountedSums())
    given = NUMBERS.inputs(1)
    model = dl.distribute(lambda: half_frozen(given), strategy)
    rows = np.ones((4, given["features"])), np.ones((4, given["classes"]))
    model.fit(*rows, batch_size=4, verbose=0)
    assert sum(sent) == NUMBERS.expected(given)["sent"]


# pretraining_rows


def rows_by(*, new_out=True, copies="all"):
    def pretraining_rows(images, labels, new_classes, test_rows):
        out = set(test_rows)
        if new_out:
            out |= set(np.flatnonzero(np.isin(labels, new_classes)))
        for row in range(len(labels)) if copies == "of all" else test_rows:
            if copies == "of all" and labels[row] not in new_classes:
                continue
            same = [
                other
                for other in range(len(labels))
                if labels[other] not in new_classes and np.array_equal(images[row], images[other])
            ]
            out |= set(same[: {"none": 0, "first": 1}.get(copies)])
        return [row for row in range(len(labels)) if row not in out]

    return pretraining_rows


def rows_as_an_array(images, labels, new_classes, test_rows):
    flat = images.reshape(len(images), -1)
    same = (flat[:, None] == flat[None, test_rows]).all(axis=2).any(axis=1)
    return np.flatnonzero(~same & ~np.isin(labels, new_classes))[::-1]


@pytest.mark.parametrize("answer", [rows_by(), rows_as_an_array])
def test_other_right_rows_pass(answer):
    assert_solution_passes(LEAK, answer)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (rows_by(new_out=False), "targets_in_pretraining"),
        (rows_by(new_out=False, copies="none"), "targets_in_pretraining"),
        (rows_by(copies="none"), "copies_in_pretraining"),
        (rows_by(copies="first"), "first_copy_only"),
        (rows_by(copies="of all"), "too_careful"),
        (lambda images, *_: list(range(len(images))), "test_rows_returned"),
    ],
)
def test_wrong_rows_are_named(answer, mistake):
    assert_mistake_is_caught(LEAK, answer, mistake)


# What the lesson says


def test_the_recorded_curves_say_what_the_lesson_says():
    runs = {
        way: {labels: np.asarray(seeds) for labels, seeds in by_labels.items()}
        for way, by_labels in recorded_accuracies().items()
    }
    scratch, frozen, tuned, large = map(
        runs.get, ("scratch", "frozen", "fine-tuned", "rate of the head")
    )
    moving, leaky = runs["normalization in training"], runs["leaky"]
    assert all(len(seeds) == 10 for seeds in scratch.values())

    def gain(one, other, labels):
        return (one[labels] - other[labels]).mean()

    # With 1 label the bars overlap; freezing costs 3 to 4 points, and fine-tuning makes up for it.
    for one, other in ((scratch, frozen), (scratch, tuned), (tuned, frozen)):
        assert abs(gain(one, other, 1)) < min(one[1].std(), other[1].std())
    assert (tuned[1] > frozen[1]).sum() == 9
    assert gain(tuned, frozen, 1) == pytest.approx(0.04, abs=0.005)
    for labels in (10, 30, 140):
        assert 0.025 < gain(scratch, frozen, labels) < 0.04
        assert abs(gain(scratch, tuned, labels)) < 0.006
    assert gain(tuned, frozen, 10) == pytest.approx(0.03, abs=0.005)
    assert (round(frozen[10].min(), 2), round(frozen[10].max(), 2)) == (0.87, 0.95)
    # With 10 labels, the steps alone bring a third of it; with 30, two thirds.
    longer = runs["head for 200 steps"]
    assert gain(longer, frozen, 10) == pytest.approx(0.01, abs=0.005)
    assert gain(tuned, longer, 10) == pytest.approx(0.02, abs=0.005)
    assert gain(longer, frozen, 30) == pytest.approx(0.02, abs=0.005)
    assert gain(tuned, longer, 30) == pytest.approx(0.01, abs=0.005)
    # The rate of the head is too large for few labels.
    assert gain(tuned, large, 1) == pytest.approx(0.08, abs=0.005)
    assert gain(frozen, large, 1) == pytest.approx(0.04, abs=0.005)
    assert (tuned[1] > large[1]).sum() == 8
    for labels in (10, 30, 140):
        assert abs(gain(tuned, large, labels)) < max(tuned[labels].std(), large[labels].std())
    # Statistics that move do no harm, and a leak helps.
    assert all(abs(gain(moving, tuned, labels)) < 0.01 for labels in tuned)
    assert ((moving[140] > tuned[140]).sum(), (moving[140] == tuned[140]).sum()) == (6, 4)
    assert ((moving[10] > tuned[10]).sum(), (moving[10] == tuned[10]).sum()) == (3, 2)
    assert gain(leaky, frozen, 1) == pytest.approx(0.16, abs=0.005)


def test_a_model_that_counts_as_trainable_does_not_free_its_layers():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    model.trainable = True
    assert model.trainable_weights == []
    model.trainable = False
    model.trainable = True
    assert len(model.trainable_weights) == 2


@pytest.mark.parametrize("distributed", [False, True])
def test_a_change_between_compile_and_the_first_fit_counts(distributed):
    def build():
        layers = [keras.layers.Dense(2, trainable=False), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((2,)), *layers])
        model.compile("sgd", "mse")
        return model

    strategy = dl.make_strategy("mirrored", devices=2)
    model = dl.distribute(build, strategy) if distributed else build()
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


def test_training_false_holds_in_a_subclass_and_not_in_a_functional_model():
    class Obeys(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm, self.head = keras.layers.BatchNormalization(), keras.layers.Dense(1)

        def call(self, images):
            return self.head(self.norm(images, training=False))

    inputs, norm = keras.Input((2,)), keras.layers.BatchNormalization()
    functional = keras.Model(inputs, keras.layers.Dense(1)(norm(inputs, training=False)))
    subclass = Obeys()
    for model in (functional, subclass):
        model.compile("sgd", "mse")
        model.fit(np.full((4, 2), 5.0), np.ones(4), verbose=0)
    assert norm.moving_mean.numpy() == pytest.approx([0.05, 0.05], abs=1e-4)
    assert subclass.norm.moving_mean.numpy().tolist() == [0, 0]


def lesson_on_photos(*, only_functions=False, **names):
    """Runs the lesson's last section as it stands; of what comes before, only its functions."""
    source = (ROOT / "lessons" / STEM / "lesson.py").read_text(encoding="utf-8")
    first = source[: source.index("\nphoto_model = ")].count("\n") + 2
    names |= {"dl": dl, "keras": keras, "tf": tf}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) or (node.lineno >= first and not only_functions):
            exec(compile(ast.Module([node], []), "lesson", "exec"), names)
    return names


def test_the_photos_of_the_lesson_load_in_the_form_that_the_body_wants(monkeypatch):
    monkeypatch.setattr(loader, "_is_prepared", lambda builder: True)
    with tfds.testing.mock_data(num_examples=4):
        photos = lesson_on_photos(only_functions=True)["photos"]
        images, labels = next(iter(photos("train[:50%]")))
    assert images.shape == (len(labels), 160, 160, 3)
    assert images.dtype == tf.float32
    assert float(tf.reduce_min(images)) < -50 and float(tf.reduce_max(images)) > 50


def test_the_cells_with_photos_train_as_they_stand(monkeypatch):
    """With random images and random weights: the one thing that needs a download."""
    of_weights = keras.applications.ResNet50
    monkeypatch.setattr(
        keras.applications, "ResNet50", lambda weights, **how: of_weights(weights=None, **how)
    )
    monkeypatch.setattr(loader, "_is_prepared", lambda builder: True)
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    with tfds.testing.mock_data(num_examples=4):
        names = lesson_on_photos(DOWNLOAD=True, strategy=strategy)
    optimizer, body = names["photo_model"].optimizer, names["photo_body"]
    assert int(optimizer.iterations.numpy()) == 2
    assert float(optimizer.learning_rate.numpy()) == pytest.approx(1e-5)
    free = {layer.name.split("_")[0] for layer in body.layers if layer.trainable_weights}
    assert free == {"conv5"}
