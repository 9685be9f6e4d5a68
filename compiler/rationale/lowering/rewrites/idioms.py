"""Patterns of nodes in exporters' graphs, and the forms that replace them."""

from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.lowering.rewrites.engine import dtype_of, idiom


@idiom("Where")
def guarded_softplus(_op: Any, condition: ir.Value, a: ir.Value, b: ir.Value) -> Any:
    """Read Where(βx > 20, x, softplus(βx)/β) as softplus(βx)/β: ONNX needs no guard against overflow."""
    guard, soft, beta = _operands(condition, "Greater"), b, None
    if _operands(b, "Div"):
        soft, beta = _operands(b, "Div")
    argument = _operands(soft, "Softplus")
    if not guard or not argument or guard[0] is not argument[0]:
        return None
    reads_x = argument[0] is a if beta is None else set(_operands(argument[0], "Mul")) == {a, beta}
    limit = guard[1].const_value
    return b if reads_x and limit is not None and limit.numpy().min() >= 20 else None


@idiom("Transpose")
def gathered_indices(op: Any, gathered: ir.Value, *, perm: list[int] | None = None) -> Any:
    """Replace Transpose(GatherND(Transpose(x), indices)), indices of a plane, to keep the batch on axis 0.

    torch.export writes an adaptive pool in this way if its windows differ in size.
    """
    gather = gathered.producer()
    if (
        perm is None
        or gather is None
        or gather.op_type != "GatherND"
        or gather.attributes.get_int("batch_dims")
    ):
        return None
    transposed, indices = gather.inputs
    before = transposed.producer() if transposed is not None else None
    constant = indices.const_value if indices is not None else None
    if before is None or before.op_type != "Transpose" or "perm" not in before.attributes or constant is None:
        return None
    x, order = before.inputs[0], list(before.attributes["perm"].as_ints())
    index = constant.numpy()
    count, depth = index.ndim - 1, index.shape[-1]
    if x is None or x.shape is None:
        return None
    sizes = [n for n in (x.shape[a] for a in order[:depth]) if isinstance(n, int)]
    if len(sizes) < depth:
        return None
    flat = np.ravel_multi_index(tuple(np.moveaxis(index, -1, 0)), sizes, mode="wrap")
    other_axes = order[depth:]
    plane = op.Reshape(_transpose(op, x, [*other_axes, *order[:depth]]), [0] * len(other_axes) + [-1])
    picked = op.Gather(plane, flat.astype(np.int64), axis=len(other_axes))
    return _transpose(op, picked, [len(other_axes) + a if a < count else a - count for a in perm])


def _transpose(op: Any, x: ir.Value, perm: list[int]) -> ir.Value:
    return x if perm == sorted(perm) else op.Transpose(x, perm=perm)


def _operands(value: ir.Value, op_type: str) -> list[ir.Value]:
    """Return the inputs of the node that computes `value`, if it is an `op_type`; else an empty list."""
    node = value.producer()
    if node is None or node.op_type != op_type:
        return []
    return [v for v in node.inputs if v is not None]


@idiom("Where")
def masked_rows(op: Any, condition: ir.Value, a: ir.Value, b: ir.Value) -> Any:
    """Move the guard in Where(c, a, Softmax(x)) inside, for one c per softmax: Softmax(Where(c, 0, x)).

    The shares of a row that is −∞ everywhere are 0/0: nothing reads them, yet no multiplier survives them.
    """
    softmax, cast = b.producer(), None
    if softmax is not None and softmax.op_type == "Cast":
        cast, scores = softmax.attributes["to"].as_int(), softmax.inputs[0]
        softmax = None if scores is None else scores.producer()
    if softmax is None or softmax.op_type != "Softmax":
        return None
    x = softmax.inputs[0]
    if x is None or x.shape is None or condition.shape is None or _is_guarded(x, condition):
        return None
    axis = softmax.attributes.get_int("axis", -1) % x.shape.rank()
    own_axis = axis - x.shape.rank() + condition.shape.rank()
    if own_axis >= 0 and condition.shape[own_axis] != 1:
        return None
    zero = np.zeros((), dtype_of(x).numpy())
    shares = op.Softmax(op.Where(condition, zero, x), axis=axis)
    return op.Where(condition, a, shares if cast is None else op.Cast(shares, to=cast))


def _is_guarded(x: ir.Value, condition: ir.Value) -> bool:
    """Tell whether x is guarded already."""
    before = x.producer()
    return before is not None and before.op_type == "Where" and before.inputs[0] is condition
