"""Lookups of a row's numbers by index, and their sums.

Everything runs along axis 1, one row of the batch after the other: there GatherElements is ten times faster
than Gather or GatherND in ONNX Runtime, and sums have the same order for any batch. A ScatterND that adds
would be neither fast nor ordered.
"""

from collections.abc import Sequence

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import BatchAxes, Tensor

_CHUNK = 32  # numbers that are added at once
_EVEN = 8  # chunk widths are multiples of it: ONNX Runtime's order of other sums depends on their alignment


class Picker:
    """A function `pick(x, indices)`: [1, indices] of x [1, n]; the same indices for every row."""

    def __init__(self, op: Ops) -> None:
        self.op = op
        self._zeros: dict[BatchAxes, Tensor] = {}

    def __call__(self, x: Tensor, indices: np.ndarray) -> Tensor:
        index = self.op.row_constant(indices[None].astype(np.int32))
        if "N" not in x.batch_axes:
            return self.op.GatherElements(x, index, axis=1)
        if x.batch_axes not in self._zeros:  # added to an index, one node repeats it for every row
            zero = self.op.vary(self.op.row_constant(np.zeros((1, 1), np.int32)), x.batch_axes)
            self._zeros[x.batch_axes] = self.op.flat(zero)
        return self.op.GatherElements(x, self.op.Add(self._zeros[x.batch_axes], index), axis=1)

    def sums(self, x: Tensor, column_of: np.ndarray, columns: int) -> Tensor:
        """Sum each column's numbers, chunk by chunk; return [1, columns].

        Args:
            column_of: the column of each number of `x`; −1 for numbers that are 0.
        """
        while not np.array_equal(column_of, np.arange(columns)):
            index, next_column_of = chunk_columns(column_of, columns)
            zero_index = np.append(np.flatnonzero(column_of < 0), len(column_of))[0]
            if zero_index == len(column_of):
                x = concatenate(self.op, [x, self.op.row_constant(np.zeros((1, 1), x.dtype.numpy()))])
            picked = self(x, np.where(index < 0, zero_index, index).reshape(-1))
            x = self.op.ReduceSum(self.op.reshape(picked, (1, *index.shape)), [2], keepdims=0)
            column_of = next_column_of
        return x


def chunk_columns(column_of: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return indices [chunks, width] of numbers to add up in one step (−1 for none), and each sum's column.

    A column with many numbers has many chunks, so that it does not lengthen the others. If one chunk is
    enough for each column, the sums are final; otherwise they are added up again, and one more sum, without
    a column, follows them.

    Args:
        column_of: the column of each number; −1 for none.
    """
    order = np.argsort(column_of, kind="stable")
    order = order[column_of[order] >= 0]
    counts = np.bincount(column_of[order], minlength=columns)
    is_final = counts.max(initial=0) <= _CHUNK
    chunks = np.ones(columns, np.int64) if is_final else -(-counts // _CHUNK)
    width = -(-int(max(counts.max(initial=1), 1)) // _EVEN) * _EVEN if is_final else _CHUNK
    starts = np.cumsum(chunks) - chunks
    within = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    index = np.full((int(chunks.sum()) + (not is_final), width), -1)
    index[starts[column_of[order]] + within // width, within % width] = order
    following = np.repeat(np.arange(columns), chunks)
    return index, following if is_final else np.append(following, -1)


def concatenate(op: Ops, parts: Sequence[Tensor]) -> Tensor:
    """Concatenate the parts along axis 1."""
    return parts[0] if len(parts) == 1 else op.emit("Concat", parts, {"axis": 1})[0]
