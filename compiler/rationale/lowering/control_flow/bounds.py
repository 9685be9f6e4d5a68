"""Bounds of numbers for any data, which limit the iterations of a Loop.

Interval arithmetic over the nodes behind a value finds them. If a value may overflow, its bounds are its
type's.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from rationale.graph.nodes import names_read

Span = tuple[float, float]  # least and largest number of a tensor; integers as int, so that they are exact
DEEPEST = 100  # nodes behind a value, one after the other

ANY: Span = (-math.inf, math.inf)
_UNIT: Span = (0, 1)


def span(value: ir.Value | None) -> Span:
    """Return the least and the largest value of any element.

    Requires: shapes and types are inferred, as far as they are known.
    """
    return _span(value, {}, DEEPEST)


def positions_read(body: ir.Graph) -> float:
    """Return the number of Loop iterations that find data at their own index; infinite without such reads.

    A model that goes on for longer fails, since Gather has no data there.
    """
    needed = {str(v.name) for v in body.outputs}
    numbers, lengths = {body.inputs[0]}, []
    for node in body:
        if node.op_type in _COPIES and not node.domain and node.inputs[0] in numbers:
            numbers.update(v for v in node.outputs if v.dtype in (None, ir.DataType.INT32, ir.DataType.INT64))
    for node in reversed(list(body)):
        if not any(v.name in needed for v in node.outputs):
            continue
        needed |= names_read(node)
        if node.op_type == "Gather" and not node.domain and node.inputs[1] in numbers:
            length = _length(node.inputs[0], node.attributes.get_int("axis", 0) or 0)
            lengths += [] if length is None else [length]
    return min(lengths, default=math.inf)


def _span(value: ir.Value | None, spans: dict[ir.Value, Span], depth: int) -> Span:
    if value is None:
        return ANY
    if value in spans:
        return spans[value]
    type_span, node = _of_type(value.dtype), value.producer()
    if value.const_value is not None and value.dtype is not None and value.dtype != ir.DataType.STRING:
        array = value.const_value.numpy()
        return (array.min().item(), array.max().item()) if array.size else type_span
    result = type_span
    if node is not None and not node.domain and node.op_type in _SPANS and depth:
        low, high = _SPANS[node.op_type](node, [_span(v, spans, depth - 1) for v in node.inputs])
        result = (low, high) if type_span[0] <= low <= high <= type_span[1] else type_span
    spans[value] = result
    return result


def _of_type(dtype: ir.DataType | None) -> Span:
    if dtype == ir.DataType.BOOL:
        return _UNIT
    if dtype is None or not dtype.is_integer():
        return ANY
    info = np.iinfo(dtype.numpy())
    return int(info.min), int(info.max)


def _length(x: ir.Value | None, axis: int) -> int | None:
    if x is None or x.shape is None or not -len(x.shape) <= axis < len(x.shape):
        return None
    length = x.shape[axis]
    return length if isinstance(length, int) else None


# -- the operators ------------------------------------------------------------------------------------

Spans = Sequence[Span]
Rule = Callable[[ir.Node, Spans], Span]

_COPIES = frozenset({"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze"})
_MOVES = _COPIES | frozenset(
    "Expand Flatten Gather GatherElements GatherND ReduceMax ReduceMean Slice Split Tile Transpose".split()
)


def _hull(spans: Spans) -> Span:
    return min(low for low, _ in spans), max(high for _, high in spans)


def _corners(pairs: Sequence[tuple[float, float]]) -> Span:
    products = [0 if 0 in pair else pair[0] * pair[1] for pair in pairs]  # 0·∞ is 0 too
    return min(products), max(products)


def _outward(bounds: Span) -> Span:
    """Return the bounds rounded outward to integers."""
    low, high = bounds
    return low if math.isinf(low) else math.floor(low), high if math.isinf(high) else math.ceil(high)


def _clip(_: ir.Node, spans: Spans) -> Span:
    (low, high), *bounds = [*spans, ANY, ANY][:3]
    (least, least_at_most), (most_at_least, most) = bounds
    return min(max(low, least), most_at_least), min(max(high, least_at_most), most)


def _index(node: ir.Node, _: Spans) -> Span:
    length = _length(node.inputs[0], node.attributes.get_int("axis", 0) or 0)
    return ANY if length is None else (0, length - 1)


def _remainder(node: ir.Node, spans: Spans) -> Span:
    """Return the bounds of a remainder by a positive integer; with fmod, it has the dividend's sign."""
    least, most = spans[1]
    if least <= 0 or math.isinf(most):
        return ANY
    return (1 - most if node.attributes.get_int("fmod", 0) else 0), most - 1


def _sum(node: ir.Node, spans: Spans) -> Span:
    x, axes_input = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if x is None or x.shape is None or (axes_input is not None and axes_input.const_value is None):
        return ANY
    constant = None if axes_input is None else axes_input.const_value
    axes = range(len(x.shape)) if constant is None else constant.numpy()
    lengths = [_length(x, int(axis)) for axis in axes]
    if not lengths or None in lengths:
        return ANY
    count = math.prod(n for n in lengths if n is not None)
    return _corners([(count, end) for end in spans[0]])


_SPANS: dict[str, Rule] = {
    **dict.fromkeys(_MOVES, lambda _, s: _outward(s[0])),
    **dict.fromkeys(("Floor", "Ceil", "Round"), lambda _, s: _outward(s[0])),
    **dict.fromkeys(("Sigmoid", "HardSigmoid", "Softmax"), lambda *_: _UNIT),
    **dict.fromkeys(("ArgMax", "ArgMin"), _index),
    "Abs": lambda _, s: (0, max(abs(s[0][0]), abs(s[0][1]))),
    "Add": lambda _, s: (s[0][0] + s[1][0], s[0][1] + s[1][1]),
    "Clip": _clip,
    "Concat": lambda _, s: _hull(s),
    "Max": lambda _, s: (max(low for low, _ in s), max(high for _, high in s)),
    "Min": lambda _, s: (min(low for low, _ in s), min(high for _, high in s)),
    "Mod": _remainder,
    "Mul": lambda _, s: _corners([(a, b) for a in s[0] for b in s[1]]),
    "Neg": lambda _, s: (-s[0][1], -s[0][0]),
    "ReduceSum": _sum,
    "Relu": lambda _, s: (max(0, s[0][0]), max(0, s[0][1])),
    "Sub": lambda _, s: (s[0][0] - s[1][1], s[0][1] - s[1][0]),
    "Where": lambda _, s: _hull(s[1:]),
}
