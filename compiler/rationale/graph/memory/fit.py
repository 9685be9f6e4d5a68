"""The step that makes an emitted graph fit its memory budget."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import onnx_ir as ir
import onnx_ir.passes.common as passes

from rationale.graph.memory.budget import (
    Need,
    Precomputed,
    Region,
    Sizes,
    check_budget,
    choose_axes,
    choose_precomputed,
    find_regions,
    is_pseudo,
    need_chunked,
    need_whole,
    sizes,
    values_of_chunks,
)
from rationale.graph.memory.scan import emit_scan, precompute, precompute_sums, to_float16
from rationale.graph.nodes import (
    drop_unused_constants,
    fold_constants,
    graphs_of,
    replace_by_constant,
    values_read,
)
from rationale.graph.tensor import Axis, Chunks
from rationale.schema.machine import Deployment
from rationale.schema.manifest import Memory
from rationale.schema.request import Progress


class GraphPlan(Protocol):
    """A graph that can be built whole, or with axes in chunks; it contains no results yet."""

    @property
    def axes(self) -> Mapping[str, int]:
        """Axes that can be computed in chunks, with the number of their rows."""

    def build(self, chunks: Chunks) -> ir.Model:
        """Emit the graph; called up to three times: whole, in chunks, and in chunks without float16."""


@dataclass(frozen=True)
class Combined:
    """The combined model, and its use of memory.

    Attributes:
        exact: a float32 version that recomputes the values stored in float16; None without such values.
    """

    model: ir.Model
    memory: Memory
    exact: ir.Model | None = None


def _memory(need: Need, deployment: Deployment, axis: Axis | None, recomputed: float) -> Memory:
    return Memory(
        budget=deployment.memory_budget,
        needed=need.total,
        weights=need.weights,
        baked=need.baked,
        work=need.work,
        chunk=axis.size if axis else None,
        chunks=axis.chunks if axis else 1,
        recomputed=recomputed,
        storage=deployment.storage,
    )


def fit(plan: GraphPlan, deployment: Deployment, progress: Progress) -> Combined:
    """Build a graph whole if that fits the memory budget, else in chunks of its axes.

    Args:
        progress: called as `progress(stage, done, total)`.

    Raises:
        InvalidOptionError: if not even chunks of one row fit the budget.
    """
    axes, chunks = plan.axes, Chunks()
    model = _sort_nodes(plan.build(chunks))
    need, rows = need_whole(model, chunks, axes)
    fits = need.total <= deployment.memory_budget
    if (fits and deployment.storage == "float32") or not axes:
        progress("computing the references", 0, 1)
        fold_constants(model)
        return Combined(_clean(model), _memory(need, deployment, None, 0.0))
    chosen = choose_axes(need, rows, deployment.memory_budget)
    if fits:  # in one chunk: ONNX Runtime would make a float32 copy of the graph's own constants
        chosen = {name: Axis(row.count, row.count) for name, row in rows.items()}
    del model
    combined = _in_chunks(plan, Chunks(chosen), deployment, progress)
    if not any(v.dtype == ir.DataType.FLOAT16 for v in combined.model.graph.initializers.values()):
        return combined
    exact = _in_chunks(plan, Chunks(chosen), deployment, progress, precomputed=False)
    return replace(combined, exact=exact.model)


def _in_chunks(
    plan: GraphPlan, chunks: Chunks, deployment: Deployment, progress: Progress, *, precomputed: bool = True
) -> Combined:
    model = _sort_nodes(plan.build(chunks))
    _merge_equal_nodes(model)
    size, regions = sizes(model, chunks), find_regions(model.graph)
    is_half = deployment.storage == "float16"
    stored_size = {v: n // 2 for v, n in size.items()} if is_half else size
    stored = _choose_stored(
        model, chunks, regions, size, stored_size, deployment.memory_budget if precomputed else 0
    )
    stored_values = {v for b in stored.values() for v in b.values}
    need = need_chunked(model, chunks, regions, stored_values, size, stored_size)
    if precomputed:
        check_budget(need, deployment.memory_budget)
    fold_constants(model)
    _compute_sums(model, chunks, progress)
    for region in regions:
        _emit_region(model, region, chunks, stored[region.axis], is_half, progress)
    passes.RemoveUnusedNodesPass()(model)
    fold_constants(model)
    walked = [w.axis for w in regions if w.sums]
    axis, recomputed = (chunks.axes[walked[0]], stored[walked[0]].recomputed) if walked else (None, 0.0)
    return Combined(_clean(model), _memory(need, deployment, axis, recomputed))


def _choose_stored(
    model: ir.Model, chunks: Chunks, regions: list[Region], size: Sizes, stored_size: Sizes, budget: int
) -> dict[str, Precomputed]:
    """Choose the values to precompute in the room that everything else leaves."""
    room = budget - need_chunked(model, chunks, regions, (), size, stored_size).total
    return {
        w.axis: choose_precomputed(w, size, stored_size, room / chunks.axes[w.axis].chunks) for w in regions
    }


def _compute_sums(model: ir.Model, chunks: Chunks, progress: Progress) -> None:
    """Replace sums over all references by their values, those that need no other such sum first."""
    while any(w.precomputed_sums for w in find_regions(model.graph)):
        pending = _values_behind_sums(model.graph)
        for region in find_regions(model.graph):
            ready = [n for n in region.precomputed_sums if pending.isdisjoint(n.inputs)]
            for node, array in precompute_sums(model, region, ready, chunks, progress).items():
                replace_by_constant(model.graph, node.outputs[0], array)
                model.graph.remove(node, safe=True)
        passes.RemoveUnusedNodesPass()(model)
        fold_constants(model)


def _values_behind_sums(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that depend on a sum that is not computed yet."""
    pending: set[ir.Value] = set()
    for node in graph:
        if is_pseudo(node, "Sum", "Moments") or any(v in pending for v in node.inputs):
            pending.update(node.outputs)
    return pending


def _emit_region(
    model: ir.Model, region: Region, chunks: Chunks, stored: Precomputed, is_half: bool, progress: Progress
) -> None:
    chunk_values = values_of_chunks(region.precomputed)
    body_inputs = [*stored.values, *(v for v in chunk_values if v not in stored.values)]
    if not region.sums:
        return
    arrays = precompute(model, region, chunks, body_inputs, progress)
    if is_half:
        for value in arrays.keys() - chunk_values:
            arrays[value] = to_float16(arrays[value])
    emit_scan(model, region, arrays)


def build_whole(model: ir.Model) -> ir.Model:
    """Return a graph without chunks, with its constants folded."""
    fold_constants(_sort_nodes(model))
    return _clean(model)


def _sort_nodes(model: ir.Model) -> ir.Model:
    for step in (passes.RemoveUnusedNodesPass(), passes.TopologicalSortPass()):
        step(model)
    return model


def _merge_equal_nodes(model: ir.Model) -> None:
    """Merge equal nodes; restore the types of outputs that the pass loses."""
    kinds = [(v.type, v.shape) for v in model.graph.outputs]
    passes.CommonSubexpressionEliminationPass()(model)
    for value, (kind, shape) in zip(model.graph.outputs, kinds, strict=True):
        value.type, value.shape = kind, shape


def _clean(model: ir.Model) -> ir.Model:
    """Return the model sorted, without duplicates and unused parts."""
    drop_unused_constants(model.graph)
    _merge_equal_nodes(model)
    for cleanup in (
        passes.RemoveUnusedNodesPass(),
        passes.DeduplicateInitializersPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.TopologicalSortPass(),
    ):
        cleanup(model)
    move_nodes_early(model.graph)
    return model


def move_nodes_early(graph: ir.Graph) -> None:
    """Move each node as early as its inputs allow, in place, also in bodies.

    ONNX Runtime takes its order from the file's: it goes back from the outputs, and among a node's inputs
    first computes the one that stands last. That is now the longest chain, the walk back, and it computes the
    other values that a step needs (the 1 + α·Γ of a ReLU, [N, K, …]) right before that step. In the order in
    which nodes are emitted, it computes all of those first and keeps them.
    """
    level: dict[ir.Value, int] = {}
    depth: dict[ir.Node, int] = {}
    for node in graph:
        depth[node] = 1 + max((level.get(v, 0) for v in values_read(node)), default=0)
        level.update(dict.fromkeys(node.outputs, depth[node]))
        for attribute in node.attributes.values():
            for body in graphs_of(attribute):
                move_nodes_early(body)
    nodes = sorted(depth, key=lambda node: depth[node])  # stable: otherwise as emitted
    graph.remove(nodes)
    graph.extend(nodes)
