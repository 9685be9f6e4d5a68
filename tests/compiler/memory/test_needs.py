"""What a graph is said to take of memory, and how axes are cut: the numbers, by hand."""

import numpy as np
import onnx_ir as ir
import pytest

from rationale.errors import InvalidOptionError
from rationale.graph.memory.budget import (
    START,
    Need,
    RowNeed,
    _cost,
    _products,
    budget_warnings,
    check_budget,
    choose_axes,
    rows_that_fit,
)
from rationale.graph.runtime.session import MAPPED_BYTES
from rationale.graph.tensor import Axis
from rationale.schema.machine import MAX_BATCH
from rationale.schema.manifest import Memory

MB = 1_000_000


@pytest.mark.parametrize(
    ("need", "total"),
    [
        (Need(weights=7, baked=5, work=11, folding=0), 2 * 7 + 5 + 3 * 11),
        (Need(weights=7, baked=5, work=11, folding=34), 2 * 7 + 5 + 34),
        (Need(weights=7, baked=5, work=11, folding=32), 2 * 7 + 5 + 33),
        (Need(weights=MAPPED_BYTES - 5, baked=5, work=2, folding=0, chunked=True), MAPPED_BYTES + 6),
        (Need(weights=MAPPED_BYTES - 6, baked=5, work=2, folding=0, chunked=True), 2 * MAPPED_BYTES - 1),
        (Need(weights=MAPPED_BYTES, baked=5, work=2, folding=0), 2 * MAPPED_BYTES + 11),
    ],
)
def test_what_a_graph_takes(need: Need, total: int) -> None:
    """Weights twice, but for those in a mapped file; the work three times, or what folding takes."""
    assert need.total == total


@pytest.mark.parametrize(("budget", "fits"), [(52, True), (51, False)])
def test_a_budget_that_is_just_enough(budget: int, fits: bool) -> None:
    need = Need(weights=7, baked=5, work=11, folding=0)
    if fits:
        check_budget(need, budget)
    else:
        with pytest.raises(InvalidOptionError, match=r"too small: one row .* Raise --memory-budget"):
            check_budget(need, budget)


@pytest.mark.parametrize(
    ("count", "size", "chunks", "even"), [(7, 3, 3, False), (6, 3, 2, True), (7, 7, 1, True), (7, 1, 7, True)]
)
def test_an_axis_is_cut_into_chunks_of_one_size(count: int, size: int, chunks: int, even: bool) -> None:
    axis = Axis(count, size)
    rows = np.arange(1.0, 2 * count + 1).reshape(count, 2)
    parts = axis.cut(rows)
    assert (axis.chunks, axis.is_even) == (chunks, even)
    assert parts.shape == (chunks, size, 2)
    np.testing.assert_array_equal(parts.reshape(-1, 2)[:count], rows)
    np.testing.assert_array_equal(parts.reshape(-1, 2)[count:], np.tile(rows[-1], (chunks * size - count, 1)))
    np.testing.assert_array_equal(axis.cut(rows, zeros=True).reshape(-1, 2)[count:], 0)


def times(row: RowNeed, size: int) -> float:
    return -(-row.count // size) * (size * max(row.work, row.folding, 1) + START)


@pytest.mark.parametrize(
    ("row", "room"),
    [
        (RowNeed(100, 1 * MB, 0), 10 * MB),
        (RowNeed(100, 1 * MB, 2 * MB), 10 * MB),
        (RowNeed(23, 1000, 0), 3 * MB),
        (RowNeed(101, 0.4 * MB, 0), 13 * MB),
        (RowNeed(50, 8 * MB, 0), 3 * MB),
        (RowNeed(9, 0, 0), MB),
    ],
)
def test_a_chunk_is_the_least_that_is_about_as_quick_as_the_room_allows(row: RowNeed, room: float) -> None:
    """Room is a fourth of what weights and other work leave of the budget."""
    need = Need(weights=5 * MB, baked=3 * MB, work=2 * MB + int(row.work * row.count), folding=7)
    budget = 2 * 5 * MB + 3 * 2 * MB + int(4 * room)
    chosen = choose_axes(need, {"K": row}, budget)["K"]
    work = max(row.work, row.folding, 1)
    possible = [n for n in range(1, row.count + 1) if n * work <= room] or [1]
    quickest = min(times(row, n) for n in possible)
    assert chosen.count == row.count
    assert chosen.size == min(n for n in possible if times(row, n) <= 1.03 * quickest)


def test_without_any_room_rows_are_walked_one_by_one() -> None:
    need = Need(weights=5 * MB, baked=0, work=2 * MB, folding=0)
    assert choose_axes(need, {"S": RowNeed(17, 100, 0)}, MB) == {"S": Axis(17, 1)}


def memory(**changes: int | None) -> Memory:
    fields = {"budget": 1000, "needed": 900, "weights": 100, "baked": 60, "work": 10, **changes}
    return Memory(**fields)


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 24),  # (1000 − 2·100 − 60)/(3·10) = 24.67
        ({"work": 20}, 12),
        ({"chunk": 4}, 24),  # too few weights for a file of their own
        ({"budget": 259}, 1),
        ({"budget": 10**9}, MAX_BATCH),
        ({"work": 0}, MAX_BATCH),
        ({"budget": MAPPED_BYTES + 3000, "weights": MAPPED_BYTES, "baked": 0, "work": 100, "chunk": 4}, 10),
        ({"budget": 2 * MAPPED_BYTES + 3000, "weights": MAPPED_BYTES, "baked": 0, "work": 100}, 10),
    ],
)
def test_the_rows_that_a_budget_holds(changes: dict[str, int], count: int) -> None:
    assert rows_that_fit(memory(**changes)) == count


def test_a_graph_above_its_budget_is_told_of() -> None:
    assert budget_warnings(memory(needed=1000)) == ()
    (warning,) = budget_warnings(memory(needed=1001))
    assert "memory budget" in warning


def node(op_type: str, *shapes: tuple[int, ...]) -> ir.Node:
    weights = [
        ir.Value(name=f"w{i}", const_value=ir.Tensor(np.zeros(s, np.float32))) for i, s in enumerate(shapes)
    ]
    return ir.node(op_type, [ir.Value(name="x"), *weights])


@pytest.mark.parametrize(
    ("operator", "products"),
    [
        (node("Conv", (6, 4, 3, 2)), 4 * 3 * 2),
        (node("ConvTranspose", (4, 6, 3, 2)), 4 * 3 * 2),
        (node("MatMul", (5, 7)), 5),
        (node("Gemm", (5, 7), (7,)), 5),
        (node("Mul", (5, 7)), 0),
        (node("Relu"), 0),
        (ir.node("MatMul", [ir.Value(name="x"), ir.Value(name="y")]), 0),
    ],
)
def test_the_products_of_an_element(operator: ir.Node, products: int) -> None:
    """ConvTranspose sums over the channels that it reads, which its weight has first."""
    assert _products(operator) == products
    (y,) = operator.outputs
    assert _cost(operator, {y: 4 * 11}) == 11 * max(products, 30)
