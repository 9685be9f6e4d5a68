"""The graph to serve, made from a fitted graph: its own types, open lengths, a gate."""

from collections.abc import Callable

import onnx
import onnx_ir as ir

from rationale.artifact.checks.check import FinishedGraph
from rationale.artifact.finishing.fused import fuse_chains
from rationale.artifact.finishing.lookups import fuse_tables
from rationale.artifact.finishing.one_shot import check_gate_names, put_behind_gate
from rationale.artifact.finishing.open_length import edges_at_longest, merge_lengths
from rationale.artifact.finishing.portable import merge_axes, separate_squares
from rationale.graph.memory.fit import Combined, move_nodes_early
from rationale.graph.runtime.session import interface, serialize
from rationale.graph.shapes import ROWS, set_symbolic_shapes
from rationale.lowering import Lowered, narrow
from rationale.lowering.inference import Span
from rationale.schema.machine import Deployment
from rationale.trees.program import PROGRAM


def finish(
    lowered: Lowered,
    combined: Combined,
    deployment: Deployment,
    span: Span | None,
    build: Callable[[dict[str, int]], ir.Model],
) -> FinishedGraph:
    """Return the graph to serve; this consumes the combined model.

    Args:
        span: the open lengths.
        build: a function that makes the combined graph for one of them: `{name: length}`.

    Raises:
        InvalidOptionError: if the model has a name that a gate needs.
        UnsupportedModelError: if no one graph serves every length.
    """
    if deployment.one_shot:
        check_gate_names(lowered)
    if span is not None:
        merge_lengths(combined.model, build, span)
    graph = narrow(combined.model, lowered.narrow)
    if span is None:
        set_symbolic_shapes(graph)
        _declare_outputs(graph, lowered.source)
    if deployment.is_portable:
        merge_axes(graph)
    elif deployment.provider == "cpu":
        lookups = [node for node in graph.graph if PROGRAM in node.meta]
        if lookups:
            fuse_tables(graph, lookups)
        fuse_chains(graph, {output.name for output in lowered.source.graph.output})
        move_nodes_early(graph.graph)
    edges = interface(graph)
    longest = edges if span is None else edges_at_longest(edges, span)
    served = put_behind_gate(lowered, graph) if deployment.one_shot else graph
    if deployment.is_portable:
        separate_squares(served)
    return FinishedGraph(
        serialize(served), edges, longest, combined.memory, combined.exact, deployment.one_shot, span
    )


def _declare_outputs(model: ir.Model, source: onnx.ModelProto) -> None:
    """Give outputs of unknown shape (a tree ensemble's) the shape that the model declares, of N rows."""
    declared = {value.name: value.type.tensor_type for value in source.graph.output}
    for value in model.graph.outputs:
        kind = declared.get(str(value.name))
        if value.shape is None and kind is not None and kind.HasField("shape") and kind.shape.dim:
            value.shape = ir.Shape([ROWS, *(dim.dim_value or None for dim in kind.shape.dim[1:])])
