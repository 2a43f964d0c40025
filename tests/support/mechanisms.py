"""The mechanisms of the rule, and which of them a training uses.

    with noted() as used:
        model.fit(...)
    unused = mechanisms() - used

A mechanism is what a step replaces in Keras or TensorFlow, or a function of the rule. Each is found
where it is defined, so a new one needs no entry here.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distlab.training import replica_steps
from distlab.training.keras_private import registry
from distlab.training.rule import doors, mixing, replaced, rows, step, tensors
from distlab.training.rule.current import current

_RULE = (*replaced.PARTS, doors, mixing, rows, step, tensors, replica_steps)
_FILES = {module.__file__: Path(module.__file__).stem for module in _RULE}

# What the core of the zoo need not use, by the file of tests that shows it.
ELSEWHERE = {
    "tests/training/test_distribute_table.py": (
        *("Function.__call__", "LossScaleOptimizer.apply", "LossScaleOptimizer._tf_apply"),
        "TFOptimizer._backend_increment_gradient_accumulators",
        "TFOptimizer._overwrite_model_variables_with_average_value",
        *("nn.compute_average_loss", "nn.scale_regularization_loss"),
        *(f"random.{name}" for name in ("gamma", "binomial", "beta", "categorical", "shuffle")),
        "gen_stateless_random_ops_v2.stateless_truncated_normal_v2",
        "gen_stateless_random_ops_v2.stateless_random_uniform_int_v2",
        "gen_stateless_random_ops_v2.stateless_random_uniform_full_int_v2",
        *("Layer._losses", "DistributedVariable.*scatter_*", "DistributedVariable.__*__"),
        "seed_generator.global_seed_generator",
        *("ReplicaContextBase.all_reduce", "ReplicaContext.all_gather", "contexts.OneReplica.*"),
        *("gradients._numbered", "gradients._merged", "gradients._times"),
        *("rows.Rows.given", "step._at_least_one_row", "rows.all_gather"),
        *("mixing._last", "mixing._matmul", "mixing._one_hot", "mixing._squeeze"),
        *("mixing._padded", "mixing._tiled", "mixing._slice", "mixing._broadcast"),
        *("mixing._pooling", "mixing._normalized", "mixing._each_alone"),
        *("control_flow_ops._pfor_impl", "gradients.writes", "layers._times"),
        *("layers._try_whole_batch", "operations.Shared.change", "rows.Rows.asked_for_all"),
        *("doors._all_rows", "step.Step._is_data", "tensors.is_differentiable"),
        "tensors.counts_rows",
        "replica_steps.ReplicaSteps._eagerly",
    ),
    "tests/training/test_distribute_refusals.py": (
        *("ForwardAccumulator._push_accumulator", "operations._draws", "operations._look_into"),
        *("GradientTape.jacobian", "GradientTape.batch_jacobian", "tensorflow.gradients"),
        *("gradients.watched", "replica_steps.ReplicaSteps._on_one", "contexts._check"),
        *("ReplicaContextBase.merge_call", "Strategy.reduce", "Generator.*"),
    ),
    "tests/training/test_distribute_fit.py": (
        *("replica_steps.ReplicaSteps._own_outputs", "replica_steps.make_predict_function"),
        *("replica_steps.ReplicaSteps._put_together", "replica_steps._concatenated"),
    ),
    "tests/training/test_rule.py": (
        *("layers._bring_together", "mixing._Flow._of_means"),
        *("Strategy.num_replicas_in_sync", "random_seed.get_seed"),
    ),
    "tests/training/test_parity.py": ("operations.draws_by_tensorflow",),
    "tests/training/test_distribute_workers.py": (
        *("replica_steps.parts_to_compare", "replica_steps._checksum"),
        *("replica_steps._fingerprint", "replica_steps._is_whole"),
        "replica_steps._may_end_anywhere",
    ),
    "tests/training/test_parameter_server.py": ("AggregatingVariable._assign_func",),
}

# A function's name, and where it is looked up when it is called: an object or a table, a key.
Place = tuple[str, Any, str]


def mechanisms() -> set[str]:
    """Returns the names of all."""
    return {name for name, _ in _replacements()} | {name for name, _, _ in _functions()}


@contextlib.contextmanager
def noted() -> Iterator[set[str]]:
    """Inside the block, notes the mechanisms that are used: of replacements, those in a step."""
    used: set[str] = set()
    replaced.install()
    with pytest.MonkeyPatch.context() as patch:
        for name, replacement in _replacements():
            noting = functools.partial(_noting, replacement.when, used, name)
            patch.setitem(vars(replacement), "when", noting)
        for name, owner, key in _functions():
            note = functools.partial(used.add, name)
            change = patch.setitem if isinstance(owner, dict) else patch.setattr
            change(owner, key, _before(note, _members(owner)[key]))
        yield used


def without(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """Returns the names that no pattern matches."""
    return {name for name in names if not any(fnmatch.fnmatchcase(name, each) for each in patterns)}


def needless(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns the patterns that match no name."""
    return [each for each in patterns if not fnmatch.filter(names, each)]


def _noting(when: Callable[[], Any], used: set[str], name: str) -> Any:
    given = when()
    if given is not None and current() is not None:
        used.add(name)
    return given


def _before(note: Callable[[], None], function: Any) -> Any:
    """The function, which first takes a note."""
    if isinstance(function, classmethod):
        return classmethod(_before(note, function.__func__))

    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        note()
        return function(*args, **kwargs)

    return noting


def _replacements() -> list[tuple[str, registry.Replacement]]:
    declared = registry.declared_in(*replaced.PARTS)
    return [(".".join(each.name.split(".")[-2:]), each) for each in declared]


def _functions() -> list[Place]:
    """The rule's functions, wherever a module, a class or a table of distlab's has them."""
    modules = [
        module for name, module in sys.modules.items() if name.startswith("distlab.training")
    ]
    parts = [part for module in _RULE for part in vars(module).values()]
    tables = [part for part in parts if isinstance(part, dict)]
    kinds = dict.fromkeys(part for part in parts if isinstance(part, type))
    return [
        (name, owner, key)
        for owner in [*modules, *tables, *kinds]
        for key, value in list(_members(owner).items())
        if (name := _name_of(value)) is not None
    ]


def _members(owner: Any) -> Any:
    return owner if isinstance(owner, dict) else vars(owner)


def _name_of(value: Any) -> str | None:
    """The name of a function of the rule; None of all else."""
    function = getattr(value, "__func__", value)
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    # What is called in place of a name has the name's own entry.
    replaces = any(
        function in (each.when, getattr(each.function, "func", each.function))
        for each in registry.DECLARED
    )
    if code is None or code.co_filename not in _FILES or replaces:
        return None
    return f"{_FILES[code.co_filename]}.{code.co_qualname}"
