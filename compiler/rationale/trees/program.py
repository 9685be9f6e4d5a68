"""Tables as a text from which a kernel computes the sums of `emit_tables`.

A program has lines, separated by ";", of words, separated by spaces:

- `columns C`: the number of sums;
- `reached F B1 B2 …`: a rank, how many of these ascending bounds a feature's number has reached; 0 for NaN.
  `passed` counts the bounds that it exceeds, `reached_or_missing` and `passed_or_missing` count all of them
  for NaN, and `missing F` is 1 for NaN, else 0 (`SplitTest`);
- `table FIRST ROWS WIDTH C1 C2 … RANK POSITION STEP …`: the place of a table's first number, its size, and
  the sum to which each number of a row is added. The row to read is the sum of the steps of those ranks that
  are larger than their positions.
"""

from collections.abc import Sequence
from itertools import groupby, takewhile

import numpy as np
import onnx_ir as ir

from rationale.trees.tables import Bit, Tables

PROGRAM, INSIDE = "rationale.tables", "rationale.tables.inside"  # keys in the `meta` of nodes
BEYOND = 3  # numbers that a kernel may read after a table
_MOST_BITS = (1 << 15) - 1  # a kernel counts bounds in 16 bits


def table_program(tables: Tables, dtype: ir.DataType) -> str | None:
    """Return the program of tables; None if they have more bits than a kernel counts.

    Args:
        dtype: the type in which features are compared with bounds.
    """
    counts = tables.first
    if len(counts.bits) > _MOST_BITS:
        return None
    ranks, place_of = _ranks(counts.bits, dtype)
    widths = np.bincount(tables.group, minlength=len(counts.starts))[:-1]
    columns = np.split(tables.column, np.cumsum(widths)[:-1])
    lines = [f"columns {tables.targets * len(tables.units)}", *ranks]
    for i in np.flatnonzero(widths).tolist():
        width, used = int(widths[i]), np.flatnonzero(counts.steps[i])
        rows = (counts.starts[i + 1] - counts.starts[i]) // width
        slots = np.column_stack([place_of[counts.reads[i, used]], counts.steps[i, used] // width])
        words = [counts.starts[i], rows, width, *columns[i].tolist(), *slots.reshape(-1).tolist()]
        lines.append(" ".join(["table", *map(str, words)]))
    return ";".join(lines)


def _ranks(bits: Sequence[Bit], dtype: ir.DataType) -> tuple[list[str], np.ndarray]:
    """Return the lines of ranks, and for each bit its rank and its position there: [bits, 2]."""
    order = sorted(range(len(bits)), key=lambda i: (bits[i][1], bits[i][0], bits[i][2]))
    lines, place_of = list[str](), np.zeros((len(bits), 2), np.int64)
    for (test, feature), members in groupby(order, key=lambda i: (bits[i][1], bits[i][0])):
        tested = list(members)
        place_of[tested, 0], place_of[tested, 1] = len(lines), np.arange(len(tested))
        name = test.replace(" ", "_")
        bounds = [] if name == "missing" else np.array([bits[i][2] for i in tested], dtype.numpy()).tolist()
        lines.append(" ".join([name, str(feature), *map(repr, bounds)]))
    return lines, place_of


def mark(graph: ir.Graph, before: ir.Node | None, sums: ir.Value, program: str | None) -> None:
    """Mark the nodes after `before`, which compute the sums of tables, for `fuse_tables`."""
    producer = sums.producer()
    if program is None or producer is None:
        return
    for node in takewhile(lambda n: n is not before, reversed(graph)):
        node.meta[INSIDE] = True
    producer.meta[PROGRAM] = program
