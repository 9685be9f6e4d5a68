"""Axis 0 is the batch: made symbolic where it was fixed at 1, and followed through the graph."""

from collections.abc import Sequence

import onnx_ir as ir
import onnx_ir.passes.common as passes

from compiler.errors import UnsupportedModelError
from compiler.shapes import Spec

BATCH = "N"
_SHAPE_READERS = frozenset({"Shape", "Size"})
_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def free_batch(model: ir.Model) -> bool:
    """Makes the batch symbolic, in place; True where it had been fixed at 1.

    A Reshape (Flatten, Squeeze, Unsqueeze) of batched rows is row-major, so the batch stays on axis 0:
    its target becomes [−1, *row shape], whatever the exporter had computed or written there.

    Raises:
        UnsupportedModelError: a batch fixed at another size.
    """
    fixed = False
    for value in model.graph.inputs:
        if value.shape is None or value.shape.rank() == 0:
            continue
        first = value.shape[0]
        if isinstance(first, int) and first != 1:
            raise UnsupportedModelError(
                f"input {value.name!r} has a fixed batch of {first}. Export the model with a dynamic batch "
                "axis (dynamic_axes or dynamic_shapes in torch.onnx.export), or with a batch of 1."
            )
        fixed |= isinstance(first, int)
        value.shape = ir.Shape([BATCH, *value.shape[1:]])
    specs = _infer(model, 1)
    batched = _depends_on_batch(model)
    for node in list(model.graph):
        data = node.inputs[0] if node.op_type in _RESHAPES and not node.domain else None
        if data is not None and data.name in batched:
            _reshape_rows(model, node, specs)
    passes.RemoveUnusedNodesPass()(model)
    for node in model.graph:  # what the exporter noted may hold the old batch
        for value in node.outputs:
            spec = specs.get(str(value.name))
            value.shape = _symbolic(spec, value.name in batched)
            if spec is not None:
                value.dtype = spec[1]
    return fixed


def _symbolic(spec: Spec | None, batched: bool) -> ir.Shape | None:
    if spec is None or not batched or not spec[0]:
        return None if spec is None else ir.Shape(spec[0])
    first, *others = spec[0]
    return ir.Shape([BATCH if first == 1 else None, *others])


def _reshape_rows(model: ir.Model, node: ir.Node, specs: dict[str, Spec]) -> None:
    output = node.outputs[0]
    if output.name not in specs or not specs[output.name][0]:
        return
    shape, _ = specs[output.name]
    name = f"{output.name}/shape"
    target = ir.Value(name=name, const_value=ir.tensor([-1, *shape[1:]], dtype=ir.DataType.INT64, name=name))
    target.dtype, target.shape = ir.DataType.INT64, ir.Shape([len(shape)])
    model.graph.register_initializer(target)
    reshaped = ir.node("Reshape", [node.inputs[0], target], name=node.name)
    replacement = reshaped.outputs[0]
    model.graph.insert_before(node, reshaped)
    ir.convenience.replace_all_uses_with(output, replacement, replace_graph_outputs=True)
    output.name, replacement.name = None, output.name
    replacement.type = output.type
    model.graph.remove(node, safe=True)


def _depends_on_batch(model: ir.Model) -> frozenset[str]:
    """Names of the values that hold rows: whatever data of a batched input flows into."""
    batched = {v.name for v in model.graph.inputs if v.shape is None or v.shape.rank()}
    for node in model.graph:
        if node.op_type not in _SHAPE_READERS and reads(node) & batched:
            batched.update(v.name for v in node.outputs)
    return frozenset(name for name in batched if name)


def row_specs(model: ir.Model) -> tuple[dict[str, Spec], frozenset[str]]:
    """Row shape and dtype of each value, and the names of those whose axis 0 grows with the batch."""
    one, two = _infer(model, 1), _infer(model, 2)
    batched = frozenset(
        name for name, (shape, _) in one.items() if name in two and _doubles(shape, two[name][0])
    )
    return one, batched


def _doubles(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    return bool(one) and two == (2 * one[0], *one[1:])


def _infer(model: ir.Model, rows: int) -> dict[str, Spec]:
    """Static shapes with the batch set to `rows`; values whose shape stays unknown are left out."""
    probe = model.clone()
    for node in probe.graph:
        for value in node.outputs:
            value.shape = None
    for value in probe.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([rows if dim == BATCH or _is(dim) else dim for dim in value.shape])
    probe = passes.ShapeInferencePass(data_prop=True)(probe).model
    return {v.name: spec for v in _values(probe) if v.name and (spec := _spec(v)) is not None}


def _is(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim) and dim.value == BATCH


def _values(model: ir.Model) -> list[ir.Value]:
    initializers = list(model.graph.initializers.values())
    return [*model.graph.inputs, *initializers, *(v for node in model.graph for v in node.outputs)]


def _spec(value: ir.Value) -> Spec | None:
    if value.shape is None or value.dtype is None or not all(isinstance(d, int) for d in value.shape):
        return None
    return tuple(int(str(d)) for d in value.shape), value.dtype


def reads(node: ir.Node) -> set[str]:
    """Names of what a node reads, by its inputs or from inside its branches and bodies."""
    names = {v.name for v in node.inputs if v is not None}
    for attribute in node.attributes.values():
        for graph in _graphs(attribute):
            names.update(v.name for inner in graph.all_nodes() for v in inner.inputs if v is not None)
            names.update(v.name for v in graph.outputs)
    return {name for name in names if name}


def _graphs(attribute: ir.Attr) -> Sequence[ir.Graph]:
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return attribute.as_graphs() if attribute.type == ir.AttributeType.GRAPHS else []
