"""Operations with an effect or a hidden state, in a step: they happen once for the whole batch.

Every replica runs a step as it is written for one device. What an operation computes is the same
on all of them, so each may compute it. But one that counts, draws, reads on or calls Python would
do so once for each replica. TensorFlow marks these as stateful, and each of them is here

- of a replica's own: it changes or reads a variable of which the replica has a copy, or asserts;
- or it happens once: the first replica makes it, and the others take what it gave. In a layer it
  would see own rows, so that layer gets the whole batch.

Whose a variable, a table or an iterator is, its handle tells: what two replicas use, they share.
Where they cannot share, in a loop or a condition, the operation is refused.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from distlab.errors import ModelError
from distlab.training.keras_private.functions import (
    definition_of,
    function_in,
    has_gradient,
    is_recorded,
)
from distlab.training.rule import doors
from distlab.training.rule.current import replaces
from distlab.training.rule.refusal import refusal
from distlab.training.rule.step import Step

# What each replica does for itself without harm. Recurrent layers call CudnnRNN on GPUs.
_OF_EACH = {
    *("Assert", "CheckNumerics", "CheckNumericsV2", "DeepCopy", "Empty", "Placeholder"),
    *("PlaceholderWithDefault", "Print", "PrintV2"),
}
_OF_EACH_BEGIN = (
    *("Collective", "CudnnRNN", "DebugIdentity", "Nccl", "Stateless", "TPU", "Xla", "_"),
)

# They look at what their handle names, and change nothing.
_READS = {
    *("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"),
    *("LookupTableFind", "LookupTableFindV2", "LookupTableSize", "LookupTableSizeV2"),
    *("LookupTableExport", "LookupTableExportV2", "QueueSizeV2", "VarIsInitializedOp"),
}
_OF_VARIABLES = ("Assign", "ReadVariable", "Resource", "VarHandle", "VarIsInit", "VariableShape")

# They hold functions, whose operations are looked at by themselves.
_CALLS = {"While", "If", "Case", "For", "StatefulPartitionedCall", "RemoteCall"}

# A tf.random.Generator made in a strategy's scope draws other numbers on each replica.
_OF_GENERATORS = {
    *("RngReadAndSkip", "RngSkip", "StatefulRandomBinomial", "StatefulStandardNormalV2"),
    *("StatefulTruncatedNormal", "StatefulUniform", "StatefulUniformFullInt", "StatefulUniformInt"),
}
# The attribute of a model whose step draws by tf.random.
_DRAWS = "_distlab_draws"
_DRAW = (
    "draw with keras.random and a keras.random.SeedGenerator(seed) made in __init__, or with "
    "tf.random.stateless_*"
)

_SAID_AS = {"EagerPyFunc": "tf.py_function"}
_WITHOUT_GRADIENT = {
    "EagerPyFunc": "write it with TensorFlow's operations, or put tf.numpy_function into a "
    "tf.custom_gradient"
}
_OWN_COPIES = (
    "make the variable in the model's __init__() or build(), where each replica gets a copy of it"
)


class Shared:
    """The state that replicas of one process share while a step is traced.

    Args:
        one_copy: Whether all replicas share the one copy of each variable, as Writes sees to.
        several_processes: Whether other processes have replicas, too.

    Attributes:
        apart: The error for a layer that computes with other numbers on other replicas. It counts
            if this trace does: a layer that turned out to look at other rows makes other constants
            on the replicas that are traced after that.
    """

    def __init__(self, *, one_copy: bool, several_processes: bool) -> None:
        self.one_copy, self.several_processes = one_copy, several_processes
        self._made: dict[Any, list[tuple[str, Any]]] = {}
        self._counts: dict[tuple[int, Any], int] = {}
        self._owners: dict[Any, Step] = {}
        self._readers: dict[Any, list[Any]] = {}
        self._changed: set[Any] = set()
        self.apart: ModelError | None = None

    def once(self, step: Step, key: Any, kind: str, make: Callable[[], Any]) -> Any:
        """Returns the nth thing of its key, which the first replica to ask makes for all."""
        made, number = self._made.setdefault(key, []), self._counts.get((id(step), key), 0)
        self._counts[id(step), key] = number + 1
        if number == len(made):
            made.append((kind, make()))
        first, result = made[number]
        if first != kind:
            raise refusal(
                step,
                f"a step that does {kind} on one replica where it does {first} on another",
                "let the step do the same on every replica",
            )
        return result

    def compare_constants(self, step: Step, constants: Counter[bytes]) -> None:
        """Notes whether a layer was traced with other numbers than on the first replica.

        It may have fewer: what it made once it may use again.
        """
        key = "constants", id(step.layer)
        if constants - self.once(step, key, "a call", lambda: constants):
            self.apart = self.apart or refusal(
                step,
                "numbers that differ from replica to replica, such as Python's or NumPy's random "
                "numbers",
                "draw with keras.random and a keras.random.SeedGenerator(seed) made in __init__",
            )

    def is_shared(self, handles: Iterable[Any], step: Step) -> bool:
        """Whether another replica was the first to use one of these handles."""
        owners = [self._owners.setdefault(each, step) for each in handles]
        return any(owner is not step for owner in owners)

    def may_read(self, handles: Iterable[Any], layer: Any) -> bool:
        """Whether a layer may read what no operation of the step changes, as far as was seen."""
        for handle in handles:
            self._readers.setdefault(handle, []).append(layer)
        return self._changed.isdisjoint(handles)

    def change(self, handles: Iterable[Any]) -> list[Any]:
        """Notes that an operation changes these, and returns the layers that have read them."""
        self._changed.update(handles)
        return [layer for handle in handles for layer in self._readers.get(handle, [])]


@replaces("tensorflow.python.framework.func_graph.FuncGraph._create_op_internal")
def create_once(
    step: Step,
    original: Callable[..., Any],
    self: Any,
    op_type: str,
    inputs: Sequence[Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Makes an operation, by which every one is made: one with an effect for all replicas once."""
    if step.shared is None:
        return original(self, op_type, inputs, *args, **kwargs)
    if step.has_doors and step.rows is None:
        inputs = [doors.with_all_rows(step, each) for each in inputs]

    def make() -> Any:
        return original(self, op_type, inputs, *args, **kwargs)

    op = _stateful(step, self, op_type, inputs, make) if _is_stateful(op_type) else make()
    if op_type == "Const" and step.site is not None and not step.is_meeting:
        step.site.note_constant(op)
    if op_type == "StatefulPartitionedCall" and not step.backward:
        _look_into(step, op)
    if step.rows is not None and step.layer is not None and not step.backward:
        doors.mark(step, op.outputs)
    return op


@functools.cache
def _is_stateful(op_type: str) -> bool:
    if op_type in _OF_EACH or op_type.startswith(_OF_EACH_BEGIN):
        return False
    if op_type.endswith(("Summary", "SummaryWriter")):  # TensorFlow writes on the first replica
        return False
    definition = definition_of(op_type)
    return definition is not None and definition.is_stateful


@functools.cache
def _draws(op_type: str) -> bool:
    """Whether an operation draws random numbers, or is given a seed to."""
    return any(attribute.name == "seed" for attribute in definition_of(op_type).attr)


def _stateful(
    step: Step, graph: Any, op_type: str, inputs: Sequence[Any], make: Callable[[], Any]
) -> Any:
    shared: Shared = step.shared
    if op_type in _CALLS or step.backward:
        return make()
    if op_type in _OF_GENERATORS:
        raise refusal(step, f"{op_type}, by which a tf.random.Generator draws", _DRAW)
    handles = [_root(each, graph, step).ref() for each in inputs if each.dtype == tf.resource]
    if handles and shared.one_copy and op_type.startswith(_OF_VARIABLES):
        return make()
    # Of another process's replicas no handle tells.
    of_process = shared.several_processes and not op_type.startswith(_OF_VARIABLES)
    is_shared = not handles or shared.is_shared(handles, step) or of_process
    if not step.can_meet():
        if is_shared and op_type not in _READS:
            raise refusal(
                step,
                f"{op_type} in a loop or a condition, where it would happen once for each replica",
                _OWN_COPIES
                if op_type.startswith(_OF_VARIABLES)
                else "do it outside of the loop or the condition"
                + (f", or {_DRAW}" if _draws(op_type) else ""),
            )
        return make()
    if step.rows is not None:
        may_see_own = getattr(step.layer, "whole_batch", True) is False and not _draws(op_type)
        may_see_own |= op_type in _READS and shared.may_read(handles, step.layer)
        if is_shared and not may_see_own:
            step.give_whole_batch(step.layer)
        return make()
    if is_shared and op_type not in _READS:
        for layer in shared.change(handles):
            step.give_whole_batch(layer)
    if is_shared and is_recorded(list(inputs)) and has_gradient(op_type):
        raise refusal(
            step,
            f"{_SAID_AS.get(op_type, op_type)}, through which a gradient flows: it would run once "
            "for each replica",
            _WITHOUT_GRADIENT.get(op_type, "stop the gradient by tf.stop_gradient")
            + (f", or {_DRAW}" if _draws(op_type) else ""),
        )
    return shared.once(step, tuple(handles), op_type, make)


@replaces("tensorflow.python.framework.random_seed.get_seed")
def same_seeds(step: Step, original: Callable[..., Any], op_seed: Any) -> Any:
    """Chooses the seeds of an operation as TensorFlow does, the same on all replicas."""
    if step.shared is None or step.rows is not None or not step.can_meet():
        return original(op_seed)
    vars(step.model)[_DRAWS] = True
    found = step.shared.once(step, "seeds", "a draw", lambda: original(op_seed))
    if step.shared.several_processes and found == (None, None):
        raise refusal(
            step,
            "random numbers without a seed, which would be others in each process",
            "call dl.set_seed(seed) before you build the model",
        )
    return found


@replaces("tensorflow.random.Generator.skip", "tensorflow.random.Generator.binomial")
def own_generator(
    step: Step, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    """Refuses an eager step the draws of a generator that has a state for each replica."""
    if step.shared is None and isinstance(self.state, tf.distribute.DistributedValues):
        raise refusal(step, "a draw of a tf.random.Generator, with a state for each replica", _DRAW)
    return original(self, *args, **kwargs)


def draws_by_tensorflow(model: Any) -> bool:
    """Whether a step of the model was seen to draw by `tf.random`, whose state is hidden."""
    return bool(vars(model).get(_DRAWS))


def _root(handle: Any, graph: Any, step: Any) -> Any:
    """The handle in the step's own graph, of which loops and conditions capture it."""
    while graph is not step.graph:
        outside = {id(inside): outside for outside, inside in graph.captures}
        if id(handle) not in outside:
            break
        handle, graph = outside[id(handle)], graph.outer_graph
    is_made_inside = graph is not step.graph and getattr(handle, "graph", step.graph) is graph
    return handle if is_made_inside else step.graph.capture(handle)


def _look_into(step: Step, op: Any) -> None:
    """Refuses a function that was traced before, if it has an effect or a hidden state."""
    waiting, seen = [op.get_attr("f").name], set()
    while waiting:
        name = waiting.pop()
        function = function_in(op.graph, name)
        if name in seen or function is None:
            continue
        seen.add(name)
        for node in function.node_def:
            waiting += [value.func.name for value in node.attr.values() if value.HasField("func")]
            if (
                _is_stateful(node.op)
                and node.op not in _READS | _CALLS
                and not node.op.startswith(_OF_VARIABLES)
            ):
                raise refusal(
                    step,
                    f"{node.op} in a function that was traced before the step",
                    "call what it does in the step itself",
                )
