"""Three replicas take the steps of one device, for everyday and for odd models."""

import functools
import warnings

import pytest

import distlab as dl
from distlab.training import fit_session
from distlab.training.rule.layers import sees_whole
from tests.support.mechanisms import ELSEWHERE, needless, noted
from tests.support.parity import alone, unlike
from tests.training.cases import effects, everyday, metrics, steps, whole_batches
from tests.training.cases.case import CASES

assert all((effects, everyday, metrics, steps, whole_batches)), "each enters its cases"
pytestmark = pytest.mark.usefixtures("graphs_that_run_a_few_times")


@functools.cache
def replicas():
    return dl.make_strategy("mirrored", devices=3)


def distributed(build):
    return dl.distribute(build, replicas())


# Cases with sparse gradients, gradients of inputs and outputs, draws, and conditions.
BROUGHT = (
    *("table_that_is_looked_into_twice", "several_hot_rows", "Features", "RaggedAndSparse"),
    *("dropout_and_noise", "Conditional", "means_and_sums_beside_each_other"),
)


@pytest.fixture(scope="module")
def used_by():
    """The mechanisms of the rule that each case has used."""
    return {}


@pytest.mark.parametrize("name", CASES)
def test_three_replicas_take_the_steps_of_one_device(name, used_by):
    with noted() as used:
        check(name)
    used_by[name] = used


def test_the_cases_use_the_mechanisms_that_the_zoo_leaves_to_them(used_by):
    if not used_by.keys() >= CASES.keys():
        pytest.skip("judged where all cases have passed in one process")
    left = ELSEWHERE["tests/training/test_distribute_table.py"]
    assert needless(left, set().union(*used_by.values())) == []


@pytest.mark.parametrize("name", BROUGHT)
def test_so_they_do_where_tensorflow_brings_each_its_rows_as_on_gpus(name, monkeypatch):
    monkeypatch.setattr(fit_session, "splits", lambda strategy: False)
    check(name)


def check(name):
    case = CASES[name]
    plain, model = alone(case.seeded_build), distributed(case.seeded_build)
    dl.set_seed(5)  # what is drawn without a seed
    expected = plain.fit(**case.arguments()).history
    dl.set_seed(5)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "(?s).*(as a whole|a step writes|the shares)")
        logs = model.fit(**case.arguments()).history

    reference = expected, plain.variables + plain.optimizer.variables
    found = logs, model.variables + model.optimizer.variables
    assert unlike(reference, found, atol=case.atol, equal_nan=True) == {}
    for layer in model.layers:
        if layer.name in whole_batches.MIXES:
            assert sees_whole(layer) == whole_batches.MIXES[layer.name], layer.name
