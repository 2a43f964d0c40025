"""FLOPs are counted by TensorFlow's profiler, by XLA, and by hand."""

import keras
import pytest
import tensorflow as tf

from distlab.course.measure.flops import (
    Product,
    flops_of,
    gradients_of,
    profiler_products,
    xla_products,
)
from distlab.course.tiny_transformer import VOCABULARY, build_transformer, text_windows
from distlab.errors import InvalidArgument, UnsupportedEnvironment

WIDTH, LAYERS, LENGTH, ROWS = 64, 2, 32, 4
ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def by_hand():
    """The FLOPs of a forward pass: each weight once a token, and attention's two products."""
    tokens = ROWS * LENGTH
    weights = LAYERS * 12 * WIDTH**2 + WIDTH * VOCABULARY
    return 2 * tokens * weights + LAYERS * 4 * tokens * LENGTH * WIDTH


@pytest.fixture(scope="module")
def model():
    return build_transformer(WIDTH, LAYERS, 4, LENGTH)


@pytest.fixture(scope="module")
def batch():
    return next(iter(text_windows(LENGTH).batch(ROWS)))


def test_xla_counts_what_a_hand_counts_and_a_step_is_three_forward_passes(model, batch):
    x, y = batch
    assert flops_of(xla_products(model, x)) == by_hand()
    step = xla_products(gradients_of(model, ENTROPY), x, y)
    assert flops_of(step) == 3 * by_hand()
    assert len(step) == 3 * len(xla_products(model, x))


def test_the_profiler_is_wrong_about_einsums_and_transposed_first_factors_alone(model, batch):
    step = gradients_of(model, ENTROPY)
    right = {product.name: product.flops for product in xla_products(step, *batch)}
    counted = profiler_products(step, *batch)
    assert {product.name for product in counted} == set(right)
    wrong = [product for product in counted if product.flops != right[product.name]]
    assert {product.kind for product in wrong} == {"Einsum", "BatchMatMulV2"}
    for product in wrong:
        # The sum over the rows of a batch becomes one over the width.
        factor = 0 if product.kind == "Einsum" else WIDTH / LENGTH
        assert product.flops == factor * right[product.name], product


@pytest.mark.parametrize("first", [(3, 5, 7), (3, 7, 5)])
def test_the_profiler_takes_the_wrong_axis_of_a_transposed_first_factor(first):
    second = tf.ones([3, 7, 11])

    def product(a, b):
        return tf.matmul(a, b, transpose_a=a.shape[-1] != 7)

    (profiled,) = profiler_products(product, tf.ones(first), second)
    (compiled,) = xla_products(product, tf.ones(first), second)
    assert compiled.flops == 2 * 3 * 5 * 7 * 11
    assert profiled.flops == 2 * 3 * 5 * first[-1] * 11


def test_a_product_has_a_name_a_kind_and_its_flops():
    def product(a, b):
        return tf.matmul(a, b, name="mine")

    expected = [Product(name="mine", kind="MatMul", flops=2 * 2 * 3 * 4)]
    matrices = tf.ones([2, 3]), tf.ones([3, 4])
    assert profiler_products(product, *matrices) == expected
    assert xla_products(product, *matrices) == expected


def test_an_inner_function_is_refused_by_the_profiler_and_counted_by_xla():
    inner = tf.function(lambda a: tf.matmul(a, a))

    def outer(a):
        return inner(a)

    with pytest.raises(InvalidArgument, match=r"profiler_products\(outer, ...\)") as error:
        profiler_products(outer, tf.ones([2, 2]))
    assert "the profiler doesn't look into" in str(error.value)
    assert flops_of(xla_products(outer, tf.ones([2, 2]))) == 16


def test_where_xla_gives_no_program_the_error_says_what_to_do(monkeypatch):
    def printing(a):
        return tf.strings.as_string(a)  # XLA has no strings

    def without_xla(*args, **named):
        raise tf.errors.UnimplementedError(None, None, "XLA is not linked in")

    with pytest.raises(UnsupportedEnvironment, match="XLA gives no program") as error:
        xla_products(printing, tf.ones([2]))
    assert "count by profiler_products" in str(error.value)

    function = type(tf.function(printing))
    monkeypatch.setattr(function, "experimental_get_compiler_ir", without_xla)
    with pytest.raises(UnsupportedEnvironment, match="XLA is not linked in"):
        xla_products(printing, tf.ones([2]))


def test_the_optimized_program_merges_equal_products():
    def twice(a):
        return tf.matmul(a, a) + tf.matmul(a, a)

    assert flops_of(xla_products(twice, tf.ones([32, 32]))) == 2 * 2 * 32**3
    try:
        merged = xla_products(twice, tf.ones([32, 32]), optimized=True)
    except UnsupportedEnvironment:
        pytest.skip("a library computes the products of this machine")
    assert flops_of(merged) == 2 * 32**3


def test_a_product_that_a_library_computes_is_not_missed(monkeypatch):
    program = '%a = f32[2,2] custom-call(), custom_call_target="__cublas$gemm"'
    function = type(tf.function(lambda: 0))
    monkeypatch.setattr(
        function, "experimental_get_compiler_ir", lambda *args: lambda stage: program
    )
    with pytest.raises(UnsupportedEnvironment, match=r"__cublas\$gemm"):
        xla_products(lambda a: a, tf.ones([2]), optimized=True)
