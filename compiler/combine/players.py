"""Attributions of players: sums over the features that each is made of."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.manifest import GROUPS
from compiler.selection.path import Path
from compiler.selection.players import Players

_TOGETHER = 8  # numbers of a vector register


def outputs_of(path: Path, of: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Whose attributions each output holds, by the tensor that it explains; all groups together are one.

    Args:
        of: by explained tensor, which player each element of its row is: those of `path.players` first.
    """
    own = {name: of[name] for name in path.ungrouped}
    return {**own, GROUPS: np.arange(len(path.players.names))} if path.players else own


def by_player(op: Ops, players: Players, values: Mapping[str, Tensor]) -> Tensor:
    """Σ over each player's features: row shape [1, P].

    Players of about as many features are summed together, each along an axis of its own that is filled up
    with zeros to a multiple of eight: so a sum begins at the same place of a vector register in every row of
    a batch, and has the same bits there. Those of a MatMul have not.

    Args:
        values: of the features, by explained tensor: row shape [1, *its row].
    """
    dtype = next(iter(values.values())).dtype
    flat = [_cast(op, op.reshape(values[tensor], (1, of.size)), dtype) for tensor, of in players.of.items()]
    x = flat[0] if len(flat) == 1 else op.Concat(*flat, axis=1)
    of = np.concatenate(list(players.of.values()))
    elements = np.split(np.argsort(of, kind="stable"), np.cumsum(np.bincount(of))[:-1])
    widths = [1 if len(own) == 1 else -(-len(own) // _TOGETHER) * _TOGETHER for own in elements]
    x = op.Concat(x, op.row_constant(np.zeros((1, 1), dtype.numpy())), axis=1)
    parts, placed = [], list[int]()
    for width in sorted({*widths}):
        chosen = [p for p, own in enumerate(widths) if own == width]
        index = np.full((len(chosen), width), len(of))  # a 0 stands behind all of them
        for row, p in zip(index, chosen, strict=True):
            row[: len(elements[p])] = elements[p]
        part = op.Gather(x, index.reshape(-1), axis=1)
        if width > 1:
            part = op.ReduceSum(op.reshape(part, (1, *index.shape)), [2], keepdims=0)
        parts.append(part)
        placed += chosen
    if len(parts) == 1:
        return parts[0]
    return op.Gather(op.Concat(*parts, axis=1), np.argsort(placed), axis=1)


def _cast(op: Ops, x: Tensor, dtype: ir.DataType) -> Tensor:
    return x if x.dtype == dtype else op.Cast(x, to=int(dtype))
