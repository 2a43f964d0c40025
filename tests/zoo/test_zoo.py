"""Each family takes the steps of one device on three replicas, a partial last batch included.

One epoch has a partial batch too; callbacks act between epochs, so they get two. `make zoo` trains
all families for two epochs, also by Keras's own `fit`, and writes a table.
"""

import pytest

from tests.zoo.harness import beyond_rounding, differences, families

FAMILIES = families()


pytestmark = pytest.mark.usefixtures("graphs_that_run_a_few_times")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.bfloat16 if family.in_16_bits else ())
        for name, family in FAMILIES.items()
    ],
)
def test_a_family_takes_the_steps_of_one_device(name):
    """With its dropout, its noise and all other random layers as they are."""
    family = FAMILIES[name]
    epochs = 2 if "callbacks" in family.fit() else 1
    found = differences(family, 3, epochs=epochs)
    assert beyond_rounding(family, found, 3, epochs=epochs) == {}
