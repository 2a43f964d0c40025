"""The net under the rule: where a cure is taken out, replicas come apart, and `fit` stops.

It sees what differs between replicas. What each of them computes alike and wrong, such as a clipped
gradient of own rows, only the rule itself and `check_parity` can see.
"""

import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import ModelError
from distlab.training.replica_steps import ReplicaSteps
from distlab.training.rule import doors, operations
from tests.support.distribution import strategy_of
from tests.training.cases import effects
from tests.training.cases.case import CASES

assert effects, "enters its cases"


def every_replica_repeats_effects(patch):
    patch.setattr(operations, "_stateful", lambda step, graph, kind, inputs, make: make())


def own_rows_leave_by_other_doors(patch):
    patch.setattr(doors, "with_all_rows", lambda step, tensor: tensor)
    patch.setattr(doors, "check_sources", lambda step, sources: None)


def replicas_share_python(patch):
    def on_each(self, batch):
        result = self._on_replicas(batch)
        local = self.strategy.experimental_local_results
        return tf.nest.map_structure(lambda value: local(value)[0], result)

    patch.setattr(ReplicaSteps, "_eagerly", on_each)


BREAKS = {
    every_replica_repeats_effects: (
        *("ReadsASecondDataSet", "CountsInATable", "KeepsLossesInAQueue", "CollectsRowsByPython"),
    ),
    own_rows_leave_by_other_doors: (
        *("AddsTheEntropyOfWhatALayerKept", "CollectsFeaturesInAList"),
    ),
    replicas_share_python: ("CountsByPythonEagerly",),
}


@pytest.mark.parametrize(
    ("take_out", "case"), [(take_out, case) for take_out, cases in BREAKS.items() for case in cases]
)
def test_replicas_that_come_apart_stop_fit(take_out, case, monkeypatch):
    take_out(monkeypatch)
    model = dl.distribute(CASES[case].seeded_build, strategy_of("mirrored", 3))
    with pytest.raises(ModelError, match="replicas that came apart, first in"):
        model.fit(**CASES[case].arguments())
