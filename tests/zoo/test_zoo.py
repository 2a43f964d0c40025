"""Each family takes the steps of one device on three replicas, a partial last batch included.

One epoch has a partial batch too; callbacks act between epochs, so they get two. `make zoo` trains
all families for two epochs, also by Keras's own `fit`, and writes a table. `make test` trains the
core of the zoo (DISTLAB_ZOO=core).
"""

import os

import pytest

from distlab.training import fit_session
from tests.support.mechanisms import ELSEWHERE, mechanisms, needless, noted, without
from tests.zoo.harness import beyond_rounding, differences, families, strategy_of

FAMILIES = families()
CORE = {name for name, family in FAMILIES.items() if family.core}
CHOSEN = {"all": FAMILIES.keys(), "core": CORE}[os.environ.get("DISTLAB_ZOO", "all")]

pytestmark = pytest.mark.usefixtures("graphs_that_run_a_few_times")


@pytest.fixture(scope="module")
def used_by():
    """The mechanisms of the rule that each family of the core has used."""
    return {}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.bfloat16 if family.in_16_bits else ())
        for name, family in FAMILIES.items()
        if name in CHOSEN
    ],
)
def test_a_family_takes_the_steps_of_one_device(name, used_by):
    """With its dropout, its noise and all other random layers as they are."""
    family = FAMILIES[name]
    epochs = 2 if "callbacks" in family.fit() else 1
    with noted() as used:
        found = differences(family, 3, epochs=epochs)
    assert beyond_rounding(family, found, 3, epochs=epochs) == {}
    if family.core:
        used_by[name] = used


def test_the_core_uses_each_mechanism_of_the_rule(used_by):
    """But those that another file of tests shows."""
    judged = {name for name in CORE if not FAMILIES[name].in_16_bits}
    if not (used_by.keys() >= judged and fit_session.splits(strategy_of(3))):
        pytest.skip("judged where all of the core has passed in one process, on CPUs")
    elsewhere = [name for names in ELSEWHERE.values() for name in names]
    unused = mechanisms() - set().union(*used_by.values())
    assert sorted(without(unused, elsewhere)) == [], "the core needs a family that uses it"
    assert needless(elsewhere, mechanisms()) == []


def test_the_core_is_a_third_of_the_zoo_with_families_of_every_part():
    assert 0.30 < len(CORE) / len(FAMILIES) < 0.36
    parts = {family.make.__module__ for family in FAMILIES.values()}
    assert {FAMILIES[name].make.__module__ for name in CORE} == parts
