"""Operators that are defined by others: one function each, in terms of operators that have rules.

The lowering defines the method: Softmax with and without its max shift are both complete, yet their
attributions differ. What stands here is what the documentation of each method refers to.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from compiler.errors import UnsupportedModelError

Rewrite = Callable[..., Any]
_REWRITES: dict[tuple[str, str], Rewrite] = {}
_IDIOMS: dict[tuple[str, str], Rewrite] = {}


class _Nodes:
    """`op.Mul(a, b)` inserts a plain node before the one that is rewritten."""

    def __init__(self, graph: ir.Graph, before: ir.Node) -> None:
        self.graph, self.before, self.count = graph, before, 0

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)
        return functools.partial(self._emit, op_type)

    def _emit(self, op_type: str, *operands: Any, **attributes: Any) -> ir.Value:
        values = [o if o is None or isinstance(o, ir.Value) else self._constant(o) for o in operands]
        node = ir.node(op_type, values, attributes, name=self._fresh(op_type))
        node.outputs[0].name = node.name
        self.graph.insert_before(self.before, node)
        return node.outputs[0]

    def _constant(self, operand: float | list[int] | np.ndarray) -> ir.Value:
        if isinstance(operand, list):
            array = np.asarray(operand, np.int64)
        elif isinstance(operand, np.ndarray):
            array = operand
        else:
            dtype = self.before.outputs[0].dtype or ir.DataType.FLOAT
            array = np.asarray(operand, dtype.numpy())
        name = self._fresh("constant")
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        value.dtype, value.shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
        self.graph.register_initializer(value)
        return value

    def _fresh(self, what: str) -> str:
        self.count += 1
        return f"{self.before.outputs[0].name}/{what}_{self.count}"


def rewrites(op_type: str, domain: str = "") -> Callable[[Rewrite], Rewrite]:
    """Declares the definition of an operator by others."""

    def declare(function: Rewrite) -> Rewrite:
        _REWRITES[domain, op_type] = function
        return function

    return declare


def idiom(op_type: str) -> Callable[[Rewrite], Rewrite]:
    """Declares what several nodes, of which the last is an `op_type`, stand for in exporters' graphs."""

    def declare(function: Rewrite) -> Rewrite:
        _IDIOMS["", op_type] = function
        return function

    return declare


def rewritten_operators() -> dict[tuple[str, str], Rewrite]:
    """By domain and operator."""
    return dict(sorted(_REWRITES.items()))


def rewrite(model: ir.Model) -> None:
    """Replaces, in place, every node of an operator that stands here; names of outputs are kept.

    A function that returns None leaves its node as it is.
    """
    ShapeInferencePass(data_prop=True)(model)
    for node in list(model.graph):
        key = node.domain, node.op_type
        function = _REWRITES.get(key, _IDIOMS.get(key))
        if function is None:
            continue
        attributes = {a.name: a.value for a in node.attributes.values()}
        op = _Nodes(model.graph, node)
        replacement = function(op, *node.inputs, **attributes)
        if replacement is None:
            continue
        if replacement in node.inputs or replacement.is_graph_input():
            replacement = op.Identity(replacement)
        old = node.outputs[0]
        ir.convenience.replace_all_uses_with(old, replacement, replace_graph_outputs=True)
        name, old.name = old.name, None
        replacement.name, replacement.type, replacement.shape = name, old.type, old.shape
        model.graph.remove(node, safe=True)


@rewrites("LogSoftmax")
def log_softmax(op: Any, x: ir.Value, *, axis: int = -1) -> Any:
    """z − LSE(z)."""
    return op.Sub(x, op.ReduceLogSumExp(x, [axis], keepdims=1))


@rewrites("HardSwish")
def hard_swish(op: Any, x: ir.Value) -> Any:
    """x · max(0, min(1, x/6 + 1/2))."""
    return op.Mul(x, op.Clip(op.Add(op.Mul(x, 1 / 6), 0.5), 0.0, 1.0))


@rewrites("Swish")
def swish(op: Any, x: ir.Value, *, alpha: float = 1.0) -> Any:
    """x · σ(αx)."""
    return op.Mul(x, op.Sigmoid(op.Mul(x, float(alpha)) if alpha != 1.0 else x))


@rewrites("Mish")
def mish(op: Any, x: ir.Value) -> Any:
    """x · tanh(ln(1 + e^x))."""
    return op.Mul(x, op.Tanh(op.Softplus(x)))


@rewrites("Gelu")
def gelu(op: Any, x: ir.Value, *, approximate: str = "none") -> Any:
    """x/2 · (1 + erf(x/√2)), or its approximation by tanh."""
    if approximate == "tanh":
        inner = op.Mul(op.Add(x, op.Mul(op.Mul(op.Mul(x, x), x), 0.044715)), float(np.sqrt(2 / np.pi)))
        return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, float(np.sqrt(0.5)))), 1.0))


def _rank(x: ir.Value) -> int:
    if x.shape is None:
        raise UnsupportedModelError(f"the rank of {x.name!r} is not known before the model runs")
    return x.shape.rank()


@rewrites("GlobalMaxPool")
def global_max_pool(op: Any, x: ir.Value) -> Any:
    """The maximum over all spatial axes."""
    return op.ReduceMax(x, list(range(2, _rank(x))), keepdims=1)


@rewrites("Mean")
def mean(op: Any, *xs: ir.Value) -> Any:
    """Σ x / n."""
    return op.Mul(op.Sum(*xs), 1.0 / len(xs))


@rewrites("Max")
def maximum(op: Any, *xs: ir.Value) -> Any:
    """Pairwise, from the left."""
    return None if len(xs) == 2 else functools.reduce(op.Max, xs)


@rewrites("Min")
def minimum(op: Any, *xs: ir.Value) -> Any:
    """−max(−x)."""
    return xs[0] if len(xs) == 1 else op.Neg(functools.reduce(op.Max, [op.Neg(x) for x in xs]))


@rewrites("ReduceMin")
def reduce_min(op: Any, x: ir.Value, axes: ir.Value | None = None, **attributes: int) -> Any:
    """−max(−x) over the axes."""
    return op.Neg(op.ReduceMax(op.Neg(x), axes, **attributes))


@rewrites("Celu")
def celu(op: Any, x: ir.Value, *, alpha: float = 1.0) -> Any:
    """α · elu(x/α)."""
    return op.Mul(op.Elu(op.Mul(x, 1.0 / alpha)), float(alpha))


@rewrites("Scaler", domain="ai.onnx.ml")
def scaler(op: Any, x: ir.Value, *, offset: list[float], scale: list[float]) -> Any:
    """(x − offset) · scale, per feature."""
    return op.Mul(op.Sub(x, np.asarray(offset, np.float32)), np.asarray(scale, np.float32))


@idiom("Where")
def guarded_softplus(_op: Any, condition: ir.Value, a: ir.Value, b: ir.Value) -> Any:
    """Where(βx > 20, x, softplus(βx)/β) is softplus(βx)/β: PyTorch guards an overflow that ONNX has not."""
    guard, soft, beta = _operands(condition, "Greater"), b, None
    if _operands(b, "Div"):
        soft, beta = _operands(b, "Div")
    argument = _operands(soft, "Softplus")
    if not guard or not argument or guard[0] is not argument[0]:
        return None
    reads_x = argument[0] is a if beta is None else set(_operands(argument[0], "Mul")) == {a, beta}
    limit = guard[1].const_value
    return b if reads_x and limit is not None and limit.numpy().min() >= 20 else None


def _operands(value: ir.Value, op_type: str) -> list[ir.Value]:
    """The inputs of the node that computes `value`, if it is an `op_type`; else none."""
    node = value.producer()
    if node is None or node.op_type != op_type:
        return []
    return [v for v in node.inputs if v is not None]
