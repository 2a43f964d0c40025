"""Three replicas take the steps of one device, for everyday and for odd models."""

import functools
import warnings

import numpy as np
import pytest

import distlab as dl
from tests.support.distribution import alone
from tests.training.cases import everyday, metrics, steps
from tests.training.cases.case import CASES

assert all((everyday, metrics, steps)), "each enters its cases"

# Losses of the batch as a whole, which are exact today if they are asked to be.
GATHERED = {"loss_of_pairs", "loss_of_a_ratio"}


@functools.cache
def replicas():
    return dl.make_strategy("mirrored", devices=3)


def distributed(build):
    gathers = {"batch_losses": "gather"} if build.__self__.build.__name__ in GATHERED else {}
    return dl.distribute(build, replicas(), **gathers)


@pytest.mark.parametrize("name", CASES)
def test_three_replicas_take_the_steps_of_one_device(name):
    case = CASES[name]
    plain, model = alone(case.seeded_build), distributed(case.seeded_build)
    expected = plain.fit(**case.arguments()).history
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "(?s).*(as a whole|a step writes|the shares)")
        logs = model.fit(**case.arguments()).history

    variables = plain.variables + plain.optimizer.variables
    ours = model.variables + model.optimizer.variables
    for variable, reference in zip(ours, variables, strict=True):
        for copy in replicas().experimental_local_results(variable.value):
            np.testing.assert_allclose(
                copy.numpy(), reference.numpy(), atol=case.atol, rtol=0, err_msg=reference.path
            )
    assert logs.keys() == expected.keys()
    for log, values in expected.items():
        np.testing.assert_allclose(logs[log], values, rtol=1e-5, atol=1e-5, err_msg=log)
