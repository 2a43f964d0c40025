"""What is needed of TensorFlow's ClusterCoordinator, and its strategy, beyond public methods.

iterators = make_on_workers(coordinator, make, spec=spec)     # one for each worker
remote = coordinator.schedule(function, args=(iterators,))
is_ready(remote, timeout_secs=1.0)

All of it is private to TensorFlow, and held by tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def make_on_workers(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    make: Callable[..., Any],
    *,
    spec: tf.TypeSpec,
    args: tuple[Any, ...] = (),
) -> Any:
    """Makes something on every worker, and again on a worker that comes back after a loss."""
    made = coordinator._create_per_worker_resources(make, args=args)
    for one in made._values:
        one._type_spec = spec  # a function that is called with it is traced by this
    return made


def is_ready(remote: Any, *, timeout_secs: float) -> bool:
    """Whether a scheduled function has ended, or has failed for good."""
    return bool(remote._status_available_event.wait(timeout_secs))


def addresses_of(strategy: tf.distribute.Strategy) -> dict[str, str]:
    """Returns "host:port" of each worker and parameter server, by name as in "worker:1"."""
    jobs = strategy._cluster_resolver.cluster_spec().as_dict()
    return {
        f"{job}:{index}": address
        for job in ("worker", "ps")
        for index, address in enumerate(jobs[job])
    }
