"""Which reads of variables TensorFlow's optimized graphs no longer put before the updates."""

import contextlib

import tensorflow as tf
from tensorflow.python.eager import context  # the only way to the graphs as they run


@contextlib.contextmanager
def functions_that_run():
    """Yields a list which, after the block, has the functions that ran in it as they were run.

    Each is a list of graphs, one for each device.
    """
    functions = []
    context.context().enable_run_metadata()
    context.context().export_run_metadata()  # what a callback of an earlier test has left there
    try:
        yield functions
        metadata = context.context().export_run_metadata()
        functions.extend(list(each.partition_graphs) for each in metadata.function_graphs)
    finally:
        context.context().disable_run_metadata()


@contextlib.contextmanager
def in_order():
    """Leaves out the pass of the graph optimizer that loses them, for a reference to be certain."""
    tf.config.optimizer.set_experimental_options({"dependency_optimization": False})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"dependency_optimization": True})


def unordered(graphs) -> list[tuple[str, str]]:
    """The reads and the updates of one variable that a function may run in any order."""
    nodes = {
        (device, node.name): node for device, graph in enumerate(graphs) for node in graph.node
    }
    sends = {_sent(node): key for key, node in nodes.items() if node.op in ("_Send", "_HostSend")}
    inputs = {}
    for (device, name), node in nodes.items():
        given = [(device, one.removeprefix("^").partition(":")[0]) for one in node.input]
        if node.op == "NextIteration":
            given = []  # the next turn of a loop comes before nothing in this one
        elif node.op in ("_Recv", "_HostRecv"):
            given.append(sends[_sent(node)])
        inputs[device, name] = given
    before = {}
    for start in inputs:
        waiting = [start]
        while waiting:
            key = waiting[-1]
            unknown = [one for one in inputs[key] if one not in before]
            if unknown and key not in before:
                waiting.extend(unknown)
            else:
                waiting.pop()
                before[key] = set(inputs[key]).union(*(before[one] for one in inputs[key]))
    reads = [key for key, node in nodes.items() if node.op == "ReadVariableOp"]
    updates = [
        key for key, node in nodes.items() if node.op.startswith(("Assign", "ResourceApply"))
    ]
    return [
        (read[1], update[1])
        for update in updates
        for read in reads
        if inputs[read][0] == inputs[update][0]
        and read not in before[update]
        and update not in before[read]
    ]


def _sent(node):
    return node.attr["tensor_name"].s
