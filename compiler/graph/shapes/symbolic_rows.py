"""Shapes for every value of a finished graph, with the number of rows as a symbol: N, 10·N.

A combined graph reshapes between [N, K, …] and [N·K, …], and a runtime that infers its shapes makes a new
unknown of each −1. ONNX Runtime then neither works in place nor fuses an Add into a convolution, since it
does not see that two shapes are equal. So they are inferred here, for two numbers of rows, and what differs
is written down in terms of N (docs/performance.md has what that gives).
"""

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from compiler.graph.shapes.inference import Spec, infer_graph

ROWS, TIMES = "N", "·"
_COUNTS = (5, 7)  # rows, for which shapes are inferred
Specs = dict[str, Spec]  # by name


def state_shapes(model: ir.Model) -> None:
    """Give every value whose shape is known but for the number of rows that shape, in place.

    What an operator with a body makes, or counts, is known only where it was known before.
    """
    nothing: list[Specs] = [{} for _ in _COUNTS]
    _state(model.graph, model.graph.opset_imports, nothing)


def rename_rows(graph: ir.Graph, name: str) -> None:
    """Rename the number of rows in the shapes of what the nodes of a graph make."""
    for node in ir.traversal.RecursiveGraphIterator(graph):
        for value in node.outputs:
            if value.shape is not None:
                value.shape = ir.Shape([d if isinstance(d, int) else _renamed(d, name) for d in value.shape])


def _each(dim: ir.SymbolicDim) -> int | None:
    """Return how many for each row, of what `in_rows` calls so."""
    count, times, rows = (dim.value or "").rpartition(TIMES)
    return int(count or 1) if rows == ROWS and (count.isdecimal() or not times) else None


def _renamed(dim: ir.SymbolicDim, name: str) -> str | None:
    return dim.value if _each(dim) is None else f"{str(dim.value).removesuffix(ROWS)}{name}"


def _state(graph: ir.Graph, opsets: Mapping[str, int], outside: Sequence[Specs]) -> None:
    """Shapes of one graph, then of the bodies in it, which see what is `outside` of them, for each count."""
    known = [_inferred(graph, opsets, count, specs) for count, specs in zip(_COUNTS, outside, strict=True)]
    for node in graph:
        for value in node.outputs:
            few, many = (specs.get(str(value.name)) for specs in known)
            if few is not None and many is not None and not value.is_graph_output():
                value.shape, value.dtype = _shape(few[0], many[0]), few[1]
    for node in graph:
        for body in _bodies(node):
            _state(body, opsets, known)


def _bodies(node: ir.Node) -> list[ir.Graph]:
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def _inferred(graph: ir.Graph, opsets: Mapping[str, int], rows: int, outside: Specs) -> Specs:
    """Infer static shapes at so many rows, with those `outside`."""
    made = {v for n in graph for v in n.outputs}
    read = [v for v in _read(graph) if v not in made]
    constants = [v for v in read if v.const_value is not None]
    hidden = {n for n in graph if _bodies(n) or n.op_type == "Range"}
    given: Specs = {}
    for value in (*read, *(v for n in hidden for v in n.outputs)):
        if value.const_value is None and (spec := _at(value, rows) or outside.get(str(value.name))):
            given[str(value.name)] = spec
    nodes = [ir.serde.serialize_node(n) for n in graph if n not in hidden]
    return {**outside, **infer_graph(nodes, given, constants, opsets)}


def _read(graph: ir.Graph) -> Iterable[ir.Value]:
    """Return what the nodes of a graph read, each once, and its inputs."""
    return dict.fromkeys([*graph.inputs, *(v for n in graph for v in n.inputs if v is not None)])


def _at(value: ir.Value, rows: int) -> Spec | None:
    """Its own shape, where it has one; what an input leaves open on axis 0 is its rows."""
    if value.dtype is None or value.shape is None:
        return None
    dims: list[int] = []
    for axis, dim in enumerate(value.shape):
        if isinstance(dim, int):
            dims.append(dim)
        elif (each := _each(dim)) is not None:
            dims.append(rows * each)
        elif axis == 0 and value.is_graph_input():
            dims.append(rows)
        else:
            return None
    return tuple(dims), value.dtype


def _shape(few: Sequence[int], many: Sequence[int]) -> ir.Shape | None:
    """Return the shape that is `few` and `many` at these counts."""
    if len(few) != len(many):
        return None
    return ir.Shape([_dim(a, b) for a, b in zip(few, many, strict=True)])


def _dim(few: int, many: int) -> int | str | None:
    """Return a·N, a number, or None for what is neither."""
    if few == many:
        return few
    each, rest = divmod(few, _COUNTS[0])
    if rest or many != each * _COUNTS[1]:
        return None
    return in_rows(each)


def in_rows(each: int) -> str:
    """Return the name of a dimension of so many for each row."""
    return ROWS if each == 1 else f"{each}{TIMES}{ROWS}"
