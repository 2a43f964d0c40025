import random
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import InvalidArgument


def draws():
    return random.random(), np.random.rand(), float(tf.random.uniform(())), keras.random.uniform(())


def test_the_same_seed_gives_the_same_numbers_everywhere():
    dl.set_seed(42)
    first = [float(draw) for draw in draws()]
    dl.set_seed(42)
    assert [float(draw) for draw in draws()] == first
    dl.set_seed(43)
    assert not set(first) & {float(draw) for draw in draws()}


def test_deterministic_operations_can_be_asked_for(run_python):
    code = (
        "import distlab as dl\n"
        "from tensorflow.python.framework import config\n"
        "dl.set_seed(1); print(config.is_op_determinism_enabled())\n"
        "dl.set_seed(1, deterministic=True); print(config.is_op_determinism_enabled())"
    )
    assert run_python(code, warm=True).split()[-2:] == ["False", "True"]


def test_a_seed_that_is_none_is_refused():
    for seed in (-1, 2**32, 1.0, True, "1"):
        with pytest.raises(InvalidArgument, match=re.escape(f"found: seed={seed!r}\n")):
            dl.set_seed(seed)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float32"])
def test_layers_made_inside_compute_in_that_precision(policy):
    with dl.mixed_precision(policy):
        layer = keras.layers.Dense(2)
    assert layer.dtype_policy.name == policy
    assert layer.compute_dtype == policy.removeprefix("mixed_")
    assert layer.variable_dtype == "float32"


def test_the_former_policy_comes_back_also_after_an_error():
    before = keras.config.dtype_policy().name
    with dl.mixed_precision("mixed_bfloat16"):
        with pytest.raises(KeyError), dl.mixed_precision("mixed_float16"):
            raise KeyError
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert keras.config.dtype_policy().name == before


def test_an_unknown_policy_is_answered_with_the_near_one():
    with (
        pytest.raises(InvalidArgument, match="did you mean 'mixed_float16'"),
        dl.mixed_precision("mixed_fp16"),
    ):
        pass
