"""The four kinds of training, chosen once: what each checks, and what it replaces on a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.strategy.describing import describe
from distlab.training import model_requirements, overrides
from distlab.training.parameter_server import server_requirements
from distlab.training.workers.exchanging import workers_of


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of training.

    Attributes:
        check_model: Raises for a model that cannot be trained so; takes the strategy, too.
        table: What is replaced on the model, see `overrides`.
        check_strategy: Raises for a strategy under which no model can be, before one is built.
    """

    check_model: Callable[[Any, tf.distribute.Strategy], None]
    table: Callable[[Any], overrides.Table]
    check_strategy: Callable[[tf.distribute.Strategy], None] = lambda strategy: None


def _check_on_servers(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    model_requirements.check_model(model, strategy)
    server_requirements.check_model(model)


ONE_PROCESS = Kind(model_requirements.check_model, overrides.of_one_process)
WORKERS = Kind(model_requirements.check_model, overrides.of_workers)
PARAMETER_SERVERS = Kind(
    _check_on_servers, overrides.of_parameter_servers, server_requirements.check_strategy
)


def kind_of(strategy: tf.distribute.Strategy) -> Kind:
    """Returns the kind of training of Keras's models under a strategy."""
    if describe(strategy).kind == "parameter_server":
        return PARAMETER_SERVERS
    return WORKERS if workers_of(strategy).count > 1 else ONE_PROCESS
