"""The reverse walk, the same for every method."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from compiler.errors import UnsupportedModelError
from compiler.forward import Call
from compiler.graph import Ops
from compiler.rule import Kind
from compiler.tensor import Tensor

Pull = Callable[[Ops, Call, Tensor | tuple[Tensor, ...]], Sequence[Tensor | None]]


def walk(
    op: Ops, calls: Sequence[Call], output: str, seed: Tensor, pull: Pull, advance: Callable[[int], None]
) -> dict[str, Tensor]:
    """Hands the seed's multiplier from the explained output back to every value before it.

    Fan-in and broadcasting are handled here and nowhere else: what several readers of a value send back
    adds up, and is summed over the axes along which the value was repeated.

    Args:
        calls: the operators of the path in topological order.
        pull: the method's choice of multipliers for one call: one per input, None for none.
        advance: called with the number of operators done, for a progress bar.

    Returns:
        The multiplier of each value that nothing on the path computes, by name.
    """
    pending: dict[str, list[Tensor]] = defaultdict(list)
    pending[output].append(seed)
    for done, call in enumerate(reversed(calls)):
        advance(done)
        if not any(name in pending for name in call.outputs):
            continue
        op.scope = f"backward/{call.name}"
        arriving = [
            _arriving(op, pending.pop(name, []), y)
            for name, y in zip(call.outputs, call.x.outputs, strict=True)
        ]
        if call.rule.kind is not Kind.POINTWISE:
            arriving = [op.expand(m, y.shape) for m, y in zip(arriving, call.x.outputs, strict=True)]
        try:
            leaving = pull(op, call, arriving[0] if len(arriving) == 1 else tuple(arriving))
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{call.rule.op_type} node {call.name!r}: {error}") from error
        for name, x, m in zip(call.inputs, call.x.inputs, leaving, strict=False):
            if name is not None and x is not None and m is not None:
                pending[name].append(op.sum_to(m, x.shape))
    op.scope = "rationale"
    return {name: _add(op, ms) for name, ms in pending.items()}


def _arriving(op: Ops, ms: Sequence[Tensor], y: Tensor) -> Tensor:
    if not ms:  # a second output that does not reach the target
        return op.row_constant(np.zeros((1,) * y.rank, y.dtype.numpy()))
    return _add(op, ms)


def _add(op: Ops, ms: Sequence[Tensor]) -> Tensor:
    """Σ m; multipliers that vary over fewer axes first, so that they add up while they are small."""
    total, *others = sorted(ms, key=lambda m: len(m.lead))
    for m in others:
        total = op.Add(total, m)
    return total
