"""Counts the FLOPs of a Keras model's forward pass or training step, in two independent ways.

    step = gradients_of(model, loss)                     # or the model itself, for a forward pass
    flops_of(profiler_products(step, x, y))              # by TensorFlow's profiler
    flops_of(xla_products(step, x, y))                   # by the program that XLA is given
    profiler_others(step, x, y)                          # what isn't a product, by the profiler

Both list the step's matrix products, which do nearly all of a transformer's work: a product of an
[a, b] and a [b, c] matrix takes 2 abc FLOPs. Nothing runs on data, so the counts depend on shapes
alone, and not on the machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from distlab.errors import InvalidArgument, UnsupportedEnvironment

_PRODUCTS = ("MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile")
# An instruction of XLA's text: its name, the shape of its result, its operation and the rest.
_INSTRUCTION = re.compile(r"%?([\w.\-]+) = \w+\[([\d,]*)\]\S* ([\w\-]+)\((.*)")
_OPERAND = re.compile(r"%([\w.\-]+)")


@dataclass(frozen=True, kw_only=True)
class Product:
    """A matrix product of a step, and what it costs.

    Attributes:
        name: TensorFlow's name of the operation; both ways of counting give the same one.
        kind: TensorFlow's type of the operation, such as `MatMul` or `Einsum`.
        flops: Additions and multiplications, as this way of counting finds them.
    """

    name: str
    kind: str
    flops: int


def flops_of(products: Iterable[Product]) -> int:
    """Returns the FLOPs of all products together."""
    return sum(product.flops for product in products)


def gradients_of(model: Any, loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a training step without its update: from a batch to the loss and the gradients.

    Args:
        model: A built Keras model.
        loss: From targets and outputs to a number.
    """
    import tensorflow as tf

    weights = [weight.value for weight in model.trainable_variables]

    def step(x: Any, y: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        return value, tape.gradient(value, weights)

    return step


def profiler_products(function: Callable[..., Any], *batch: Any) -> list[Product]:
    """Returns a function's matrix products with the FLOPs that TensorFlow's profiler counts.

    They aren't always right. The profiler knows no `Einsum` and counts 0 for it, and in a batched
    product whose first factor is transposed it takes the wrong axis.

    Args:
        function: A Keras model, a step, or any other function that `tf.function` can trace.
        batch: Its arguments, as tensors or arrays.

    Raises:
        InvalidArgument: The function calls another `tf.function` or has a loop, into which the
            profiler doesn't look.
    """
    operations, counted = _profiled(function, batch)
    return [
        Product(name=each.name, kind=each.type, flops=counted.get(each.name, 0))
        for each in operations
        if each.type in _PRODUCTS
    ]


def profiler_others(function: Callable[..., Any], *batch: Any) -> int:
    """Returns the FLOPs that TensorFlow's profiler counts outside of matrix products.

    Args:
        function: As for `profiler_products`.
        batch: Its arguments, as tensors or arrays.

    Raises:
        InvalidArgument: As for `profiler_products`.
    """
    operations, counted = _profiled(function, batch)
    return sum(counted.get(each.name, 0) for each in operations if each.type not in _PRODUCTS)


def _profiled(
    function: Callable[..., Any], batch: tuple[Any, ...]
) -> tuple[list[Any], dict[str, int]]:
    """Returns a function's operations, and the profiler's FLOPs by an operation's name."""
    import tensorflow as tf

    tensors = [tf.convert_to_tensor(part) for part in batch]
    graph = tf.function(function).get_concrete_function(*tensors).graph
    operations = graph.get_operations()
    if hidden := [operation.name for operation in operations if operation.type in _CALLS]:
        raise InvalidArgument(
            asked=f"profiler_products({_name_of(function)}, ...)",
            found=f"a call or a loop that the profiler doesn't look into: {hidden[0]}",
            do="count by xla_products, or call the inner function's Python code",
        )
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    with _no_warnings():
        root = tf.compat.v1.profiler.profile(
            graph, run_meta=tf.compat.v1.RunMetadata(), cmd="scope", options=options
        )
    counted = {node.name: int(node.float_ops) for node in _nodes(root)}
    return operations, counted


def xla_products(
    function: Callable[..., Any], *batch: Any, optimized: bool = False
) -> list[Product]:
    """Returns a function's matrix products with their FLOPs, from the program that XLA is given.

    A product inside a loop counts once.

    Args:
        function: As for `profiler_products`.
        batch: Its arguments, as tensors or arrays.
        optimized: Reads the program after XLA's optimizer, which merges equal products. On a GPU,
            and with some libraries for CPUs, that program has no plain products to count.

    Raises:
        UnsupportedEnvironment: XLA isn't there, or it can't compile the function.
    """
    return list(_dots(_program(function, batch, optimized=optimized)))


def _program(function: Callable[..., Any], batch: tuple[Any, ...], *, optimized: bool) -> str:
    """Returns XLA's program as text."""
    import tensorflow as tf

    compiled = tf.function(function, jit_compile=True)
    stage = "optimized_hlo" if optimized else "hlo"
    try:
        read = compiled.experimental_get_compiler_ir(*map(tf.convert_to_tensor, batch))
        text = read(stage=stage)
    except (tf.errors.OpError, AttributeError, NotImplementedError, TypeError, ValueError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedEnvironment(
            asked=f"xla_products({_name_of(function)}, ...)",
            found=f"XLA gives no program: {first[0][:200]}",
            do="count by profiler_products, or install a TensorFlow that is built with XLA",
        ) from error
    found = text if isinstance(text, str) else text.decode()
    if optimized and (hidden := re.search(r'custom_call_target="([^"]*(?:mat|gemm)[^"]*)"', found)):
        raise UnsupportedEnvironment(
            asked=f"xla_products({_name_of(function)}, ..., optimized=True)",
            found=f"a product that a library computes: {hidden[1]}",
            do="leave out optimized=True, or count on a device whose program has plain products",
        )
    return found


def _dots(program: str) -> Iterator[Product]:
    """Yields the products of a program in XLA's text."""
    shapes: dict[str, list[int]] = {}
    for line in program.splitlines():
        if not (match := _INSTRUCTION.search(line)):
            continue
        name, shape, operation, rest = match.groups()
        shapes[name] = _numbers(shape)
        if operation != "dot":
            continue
        left = shapes[_OPERAND.findall(rest)[0]]
        summed = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", rest)
        axes = _numbers(summed[1]) if summed else []
        terms = math.prod(left[axis] for axis in axes)
        yield Product(
            name=_quoted("op_name", rest) or name,
            kind=_quoted("op_type", rest) or operation,
            flops=2 * math.prod(shapes[name]) * terms,
        )


def _quoted(key: str, text: str) -> str:
    match = re.search(f'{key}="([^"]*)"', text)
    return match[1] if match else ""


def _numbers(listed: str) -> list[int]:
    return [int(number) for number in listed.split(",") if number]


def _nodes(root: Any) -> Iterator[Any]:
    """Yields a node of the profiler's tree and all below it."""
    yield root
    for child in root.children:
        yield from _nodes(child)


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", None) or getattr(function, "name", "function"))


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Hides TensorFlow's warning that its own profiler calls something deprecated."""
    import tensorflow as tf

    logger = tf.get_logger()
    before = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(before)
