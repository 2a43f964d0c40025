"""Whether operations keep the rows of a batch apart, seen in the graph that TensorFlow traces.

    site = CallSite.now()
    outputs = call(inputs)
    mixes = site.mixes(inputs)        # Whether a row of an output may depend on another row
    adds_up = site.adds_up(inputs, values)        # Whether these are of rows, or a mean over them

Each operation is looked up in a table: what it does to rows, which are a tensor's first axis. What
isn't there counts as mixing, so that nothing is missed; a layer then gets the whole batch, which is
right for any layer, and slower. The number of rows may be used as a size, and for nothing else.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from distlab.training.rule.tensors import has_rows

# One number for each number, or of numbers at the same place.
_ELEMENTWISE = {
    *("Abs", "Acos", "Acosh", "Add", "AddV2", "Angle", "Asin", "Asinh", "Atan", "Atan2", "Atanh"),
    *("BesselI0e", "BesselI1e", "Bitcast", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Cast", "Ceil"),
    *("CheckNumerics", "CheckNumericsV2", "ClipByValue", "Complex", "ComplexAbs", "Conj", "Cos"),
    *("Cosh", "Digamma", "Div", "DivNoNan", "Elu", "EnsureShape", "Equal", "Erf", "Erfc", "Erfinv"),
    *("Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Identity"),
    *("Imag", "Inv", "Invert", "IsFinite", "IsInf", "IsNan", "LeakyRelu", "LeftShift", "Less"),
    *("LessEqual", "Lgamma", "Log", "Log1p", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum"),
    *("Minimum", "Mod", "Mul", "MulNoNan", "Ndtri", "Neg", "NotEqual", "OnesLike"),
    *("PlaceholderWithDefault", "Pow", "PreventGradient", "Real", "RealDiv", "Reciprocal", "Relu"),
    *("Relu6", "RightShift", "Rint", "Round", "Rsqrt", "SelectV2", "Selu", "Sigmoid", "Sign"),
    *("Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Square", "SquaredDifference", "StopGradient"),
    *("Sub", "Tan", "Tanh", "TruncateDiv", "TruncateMod", "Xdivy", "Xlog1py", "Xlogy", "ZerosLike"),
}
# Along axes that their second input names.
_ALONG = {
    *("All", "Any", "ArgMax", "ArgMin", "Cumprod", "Cumsum", "EuclideanNorm", "Max", "Mean", "Min"),
    *("Prod", "ReverseV2", "Sum", "ExpandDims"),
}
# Of these, which input is the data and which the axis.
_AXES = {"ConcatV2": (0, -1), "Split": (1, 0), "SplitV": (0, 2), "Roll": (0, 2)}
# Along the last axis, or the last two.
_LAST = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2", "FFT", "IFFT", "RFFT", "IRFFT"), 2),
    **dict.fromkeys(("Cholesky", "MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant"), 3),
    **dict.fromkeys(("MatrixDiagV3", "BiasAdd"), 2),
    **dict.fromkeys(("MatrixBandPart", "MatrixDiagPartV3", "Qr", "Svd", "SelfAdjointEigV2"), 3),
    **dict.fromkeys(("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"), 1),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth", "ResizeBilinear", "ResizeBicubic"), 4),
    **dict.fromkeys(("ResizeNearestNeighbor", "ExtractImagePatches", "LRN"), 4),
}
_CONVOLVING = {
    *("Conv", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "Dilation2D"),
    *("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"),
}
_POOLING = {"AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D"}

# Bytes from which a constant is not compared.
_LARGE = 100_000

# Tensors with rows, and how many of them belong to one row of the batch.
RowsPerExample = dict[Any, int]

# What makes sizes of sizes, and what takes one as the shape of what it makes.
_OF_SIZES = {
    *("Add", "AddV2", "Cast", "ConcatV2", "ExpandDims", "FloorDiv", "Identity", "Maximum"),
    *("Minimum", "Mul", "Pack", "Prod", "Reshape", "Squeeze", "StridedSlice", "Sub", "GatherV2"),
}
_SHAPED = {"Fill": 0, "BroadcastTo": 1, "Tile": 1, "Reshape": 1, "Slice": 2, "StridedSlice": 2}
_SILENT = {"Assert", "NoOp", "PrintV2"}


@dataclasses.dataclass
class CallSite:
    """A place in the graph, at which a layer is called.

    Attributes:
        start: How many operations there were.
        inside: Operations of the layers that it calls, and what those return.
        constants: How often it made which.
    """

    start: int
    inside: list[tuple[int, int, list[Any]]] = dataclasses.field(default_factory=list)
    constants: Counter[bytes] = dataclasses.field(default_factory=Counter)

    @classmethod
    def now(cls) -> CallSite:
        """The place where we are."""
        return cls(_operations())

    def note_constant(self, op: Any) -> None:
        """Counts a constant that the layer makes itself, unless it is large."""
        value = op.get_attr("value")
        if value.ByteSize() < _LARGE:
            self.constants[value.SerializeToString()] += 1

    def note_call(self, start: int, outputs: Any) -> None:
        """Notes a call of a layer that keeps rows apart, or was looked at by itself."""
        self.inside.append((start, _operations(), _symbolic(outputs)))

    def mixes(self, inputs: Any) -> bool:
        """Whether what was called since mixes rows of what it was given."""
        return self._flow(inputs, means=False) is None

    def adds_up(self, inputs: Any, values: tf.Tensor) -> bool:
        """Whether what was called since gives a value for each row, or a mean over all of them."""
        flow = self._flow(inputs, means=True)
        return flow is not None and values.ref() in flow.rows.keys() | flow.means

    def _flow(self, inputs: Any, *, means: bool) -> _Flow | None:
        """Follows rows through the graph; None where they were mixed."""
        graph = tf.compat.v1.get_default_graph()
        operations = graph.get_operations()[self.start :]
        skipped = {i for a, b, _ in self.inside for i in range(a - self.start, b - self.start)}
        given = _symbolic(inputs) + [part for _, _, result in self.inside for part in result]
        flow = _Flow([part for part in given if has_rows(part)], may_be_mean=means)
        own = (op for i, op in enumerate(operations) if i not in skipped)
        return flow if all(map(flow.keeps, own)) else None


def _operations() -> int:
    return int(tf.compat.v1.get_default_graph().version)


def _symbolic(tree: Any) -> list[Any]:
    parts = tf.nest.flatten(tree, expand_composites=True)
    return [part for part in parts if tf.is_tensor(part) and hasattr(part, "op")]


class _Flow:
    """Which tensors have rows, and which are made of the number of rows."""

    def __init__(self, inputs: Iterable[Any], *, may_be_mean: bool) -> None:
        self.rows: RowsPerExample = {part.ref(): 1 for part in inputs}
        self.may_be_mean = may_be_mean
        self.means: set[Any] = set()  # numbers: a mean over rows, times and plus constants
        self.shapes: set[Any] = set()  # of a tensor with rows
        self.sizes: set[Any] = set()  # made of the number of rows

    def keeps(self, op: Any) -> bool:
        """Whether an operation keeps rows apart; notes what its results are."""
        inputs = list(op.inputs)
        rows = [each for each in inputs if each.ref() in self.rows]
        sizes = [each for each in inputs if each.ref() in self.sizes | self.shapes]
        means = [each for each in inputs if each.ref() in self.means]
        if op.type in _SILENT or not (rows or sizes or means):
            return True
        if means:
            return not rows and not sizes and self._of_means(op, inputs)
        if op.type == "Mean" and self.may_be_mean and not sizes and _is_number(op.outputs[0]):
            self.means.add(op.outputs[0].ref())
            return True
        if op.type in ("Shape", "Size", "ShapeN"):
            kept = self.sizes if op.type == "Size" else self.shapes
            kept |= {output.ref() for output in op.outputs}
            return True
        if sizes and not rows:
            return self._of_sizes(op, inputs)
        at = _SHAPED.get(op.type)
        if any(each is not inputs[at if at is not None else -1] for each in sizes) and not (
            op.type.startswith("Stateless") or op.type == "StridedSlice"
        ):
            return False  # by a size it computes numbers
        if not _KEEPING.get(op.type, _nothing)(op, inputs, self.rows):
            return False
        times = self.rows[rows[0].ref()]
        if op.type == "Reshape":
            times = _times(op, self.rows) or times
        self.rows |= {output.ref(): times for output in op.outputs}
        return True

    def _of_means(self, op: Any, inputs: list[Any]) -> bool:
        is_mean = [each.ref() in self.means for each in inputs]
        if op.type in ("RealDiv", "Div", "Mul"):
            linear = sum(is_mean) == 1 and (is_mean[0] or op.type == "Mul")
        else:
            linear = op.type in ("Add", "AddV2", "AddN", "Sub", "Neg", "Identity", "Cast")
        self.means |= {output.ref() for output in op.outputs}
        return linear and _is_number(op.outputs[0])

    def _of_sizes(self, op: Any, inputs: list[Any]) -> bool:
        outputs = {output.ref() for output in op.outputs}
        if op.type.startswith("Stateless") or op.type in ("Fill", "BroadcastTo", "Tile"):
            self.rows |= dict.fromkeys(outputs, 1)  # of as many rows, if that is its first axis
            return True
        if op.type == "StridedSlice" and inputs[0].ref() in self.shapes:
            begin, end = (tf.get_static_value(each) for each in inputs[1:3])
            shrinks = op.get_attr("shrink_axis_mask") & 1
            if begin is None or end is None:
                self.sizes |= outputs
            elif begin[0] == 0 and not (shrinks and begin[0] != 0):
                (self.sizes if shrinks else self.shapes).update(outputs)
            return True
        of_numbers = all(output.dtype.is_integer for output in op.outputs)
        if op.type in _OF_SIZES and of_numbers:
            self.sizes |= outputs
            return True
        return False


def _is_number(output: Any) -> bool:
    """Whether it is one number that isn't rounded to a whole one."""
    return bool(output.shape.rank == 0 and output.dtype.is_floating)


Keeping = Callable[[Any, list[Any], RowsPerExample], bool]


def _nothing(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    return False


def _elementwise(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    ranks = {each.shape.rank for each in inputs if each.ref() in rows}
    if len(ranks) != 1 or None in ranks or 0 in ranks:
        return False
    (rank,) = ranks
    others = [each.shape for each in inputs if each.ref() not in rows]
    return all(
        shape.rank is not None and (shape.rank < rank or (shape.rank == rank and shape[0] == 1))
        for shape in others
    )


def _axes(value: Any, rank: int | None) -> set[int] | None:
    axes = tf.get_static_value(value)
    return None if axes is None or not rank else {int(a) % rank for a in np.atleast_1d(axes)}


def _along(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    data, axis = _AXES.get(op.type, (0, 1))
    rank = inputs[data].shape.rank
    if op.type == "ExpandDims" and rank is not None:
        rank += 1
    axes = _axes(inputs[axis], rank)
    has_rows = inputs[data].ref() in rows or op.type == "ConcatV2"
    return has_rows and axes is not None and 0 not in axes


def _last(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    others = any(each.ref() in rows for each in inputs[1:])
    together = op.type.endswith("CrossEntropyWithLogits")
    rank = inputs[0].shape.rank
    return (together or not others) and rank is not None and rank >= _LAST[op.type]


def _convolving(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    data = 2 if "Backprop" in op.type else 0
    return inputs[data].ref() in rows and inputs[1].ref() not in rows


def _pooling(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    return bool(next(iter(op.get_attr("ksize"))) == 1)


def _matmul(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    left, right = inputs
    transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    ranks = left.shape.rank, right.shape.rank
    if None in ranks:
        return False
    both = left.ref() in rows and right.ref() in rows
    if both:
        return bool(ranks[0] == ranks[1] >= 3)
    if left.ref() in rows:
        if ranks[0] == 2:
            return not transposed and ranks[1] == 2
        return bool(ranks[1] < ranks[0] or right.shape[0] == 1)
    return bool(ranks[1] >= 3 and (ranks[0] < ranks[1] or left.shape[0] == 1))


def _einsum(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    left, _, out = op.get_attr("equation").decode().replace(" ", "").partition("->")
    terms = list(zip(left.split(","), inputs, strict=True))
    first = {term[:1] for term, each in terms if each.ref() in rows}
    others = "".join(term for term, each in terms if each.ref() not in rows)
    return len(first) == 1 and out[:1] in first and (out[0] == "." or out[0] not in others)


def _reshape(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    """RowsPerExample stay apart, in one or several of the result, where these divide an example."""
    before, after = inputs[0].shape, op.outputs[0].shape
    if inputs[0].ref() not in rows or not before.rank or not after.rank or after[0] is not None:
        return False
    row, new = before[1:], after[1:]
    if row.is_fully_defined() and new.is_fully_defined():
        return _times(op, rows) is not None
    # Sizes are not known: the last axes are to be the same ones, or the first size the batch's.
    return _starts_with_size(inputs[1]) or list(row)[len(row) - len(new) :] == list(new)


def _times(op: Any, rows: RowsPerExample) -> int | None:
    """How many rows of a reshaped tensor belong to one of the batch, if a whole number does."""
    before, after = op.inputs[0], op.outputs[0]
    row, new = before.shape[1:].num_elements(), after.shape[1:].num_elements()
    if row is None or not new or rows[before.ref()] * row % new:
        return None
    return int(rows[before.ref()] * row // new)


def _starts_with_size(shape: Any) -> bool:
    op = shape.op
    while op.type in ("Cast", "Identity"):
        op = op.inputs[0].op
    if op.type not in ("Pack", "ConcatV2"):
        return False
    op = op.inputs[0].op
    while op.type in ("Cast", "Identity", "Reshape", "ExpandDims"):
        op = op.inputs[0].op
    if op.type != "StridedSlice" or op.inputs[0].op.type != "Shape":
        return False
    begin = tf.get_static_value(op.inputs[1])
    return begin is not None and int(begin[0]) == 0


def _transpose(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    order = tf.get_static_value(inputs[1])
    return order is not None and order[0] == 0


def _squeeze(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    return 0 not in op.get_attr("squeeze_dims") and op.outputs[0].shape.rank is not None


def _stacked(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    rank = op.outputs[0].shape.rank if op.type == "Pack" else inputs[0].shape.rank
    return rank is not None and op.get_attr("axis") % rank != 0


def _gather(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    table, indices = inputs[:2]
    among, by = table.ref() in rows, indices.ref() in rows
    axis = 0 if op.type == "ResourceGather" else tf.get_static_value(inputs[2])
    batched = op.get_attr("batch_dims")
    if by and not among:
        return batched == 0 and axis == 0
    if by:
        return bool(batched >= 1)
    return axis is not None and axis != 0 and batched == 0


def _one_hot(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    return inputs[0].ref() in rows and op.get_attr("axis") != 0


def _sliced(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    def bit(name: str) -> bool:
        return bool(op.get_attr(name) & 1)

    if bit("ellipsis_mask"):
        return True
    strides = tf.get_static_value(inputs[3])
    whole = bit("begin_mask") and bit("end_mask") and strides is not None and strides[0] == 1
    return whole and not bit("new_axis_mask") and not bit("shrink_axis_mask")


def _slice(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    begin, size = (tf.get_static_value(each, partial=True) for each in inputs[1:3])
    return begin is not None and size is not None and begin[0] == 0 and size[0] in (-1, None)


def _padded(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    padding = tf.get_static_value(inputs[1])
    return padding is not None and not np.any(padding[0])


def _tiled(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    times = tf.get_static_value(inputs[1])
    return times is not None and times[0] == 1


def _broadcast(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    return bool(inputs[0].shape.rank == op.outputs[0].shape.rank is not None)


def _normalized(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    return not op.get_attr("is_training")


def _each_alone(op: Any, inputs: list[Any], rows: RowsPerExample) -> bool:
    return True


_KEEPING: dict[str, Keeping] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys((*_ALONG, *_AXES), _along),
    **dict.fromkeys(_LAST, _last),
    **dict.fromkeys(_CONVOLVING, _convolving),
    **dict.fromkeys(_POOLING, _pooling),
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    **dict.fromkeys(("Pack", "Unpack"), _stacked),
    **dict.fromkeys(("GatherV2", "ResourceGather"), _gather),
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _padded),
    "BroadcastTo": _broadcast,
    "Einsum": _einsum,
    "FusedBatchNormV3": _normalized,
    "IdentityN": _each_alone,
    "OneHot": _one_hot,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "StridedSlice": _sliced,
    "Tile": _tiled,
    "Transpose": _transpose,
}
