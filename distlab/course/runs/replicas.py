"""Makes the replicas on which a learner's function runs.

strategy = mirrored(2)
strategy.run(learner_function, args=(give_each(strategy, [first, second]),))
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

# Every exercise begins by splitting four devices, and devices are fixed once TensorFlow runs.
MOST_REPLICAS = 4


@functools.cache
def mirrored(replicas: int) -> Any:
    """Returns a mirrored strategy, always the same for the same number of replicas."""
    from distlab.devices import split_devices
    from distlab.strategy.factory import make_strategy

    return make_strategy("mirrored", devices=split_devices(MOST_REPLICAS)[:replicas])


def take_each(strategy: Any, value: Any) -> list[Any]:
    """Returns what each replica returned, also where all returned one and the same object."""
    values: list[Any] = list(strategy.experimental_local_results(value))
    return values * int(strategy.num_replicas_in_sync // len(values))


def give_each(strategy: Any, values: Sequence[Any]) -> Any:
    """Returns one value for each replica, as a distributed data set would give them."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group]
    )
