"""The rewrite of rows of scores that are masked everywhere."""

from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.lowering.rewrites.engine import dtype_of, idiom


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
