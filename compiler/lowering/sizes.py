"""What exporters compute from sizes of tensors (Shape, Gather, Concat …) is constant, but for the batch."""

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from compiler.graph.fold import replace_by_constant
from compiler.graph.nodes import Nodes, stand_for
from compiler.graph.shapes.inference import Spec
from compiler.lowering.inference import infer, infer_each
from compiler.lowering.limits import fold_weights

Arrays = Mapping[str, np.ndarray]

_SIZE_READERS = frozenset({"Shape", "Size"})
_BATCHES = (2, 97)  # what is the same for both does not depend on N; 97 // 4 differs from 2 // 4


def fold_sizes(model: ir.Model) -> bool:
    """Compute, in place, what depends on sizes other than the batch's; return True where anything did.

    One round: shapes behind what is folded are known only then. Requires: the batch is named N.
    """
    if not any(_reads_size(node) for node in model.graph):
        return False
    few, many = (_folded(model, specs) for specs in infer_each(model, _BATCHES))
    values = {str(v.name): v for node in model.graph for v in node.outputs}
    same = [
        name
        for name, array in few.items()
        if name in values and name in many and np.array_equal(array, many[name])
    ]
    strided = [node for node in model.graph if _strides_over_rows(node, few, many)]
    for node in strided:
        _read_row_by_row(model, node, few[str(_value(node, 1).name)])
    targets = _free_targets(model, few, many)
    for name, target in {**{n: few[n] for n in same}, **targets}.items():
        replace_by_constant(model.graph, values[name], target)
    passes.RemoveUnusedNodesPass()(model)
    return bool(same or strided or targets)


def _free_targets(model: ir.Model, few: Arrays, many: Arrays) -> dict[str, np.ndarray]:
    """Targets of Reshapes of which one size depends on N: −1 stands for it, by name."""
    found = {}
    for node in model.graph:
        name = str(node.inputs[1].name) if node.op_type == "Reshape" and node.inputs[1] is not None else ""
        if name not in few or name not in many or few[name].shape != many[name].shape:
            continue
        differs = few[name] != many[name]
        others = {(use.node.op_type, use.idx) for use in _value(node, 1).uses()} - {("Reshape", 1)}
        if differs.sum() == 1 and few[name].min() > 0 and not others:
            found[name] = np.where(differs, -1, few[name])
    return found


def _strides_over_rows(node: ir.Node, few: Arrays, many: Arrays) -> bool:
    """Tell whether a Gather reads the same indices of every row of a flat operand: PyTorch's as_strided."""
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    if node.op_type != "Gather" or node.domain or axis:
        return False
    flat = _value(node, 0).producer()
    if flat is None or flat.op_type != "Reshape" or _value(node, 1).name not in many:
        return False
    index, more = few[str(_value(node, 1).name)], many[str(_value(node, 1).name)]
    if index.ndim < 2 or (len(index), len(more)) != _BATCHES or index.shape[1:] != more.shape[1:]:
        return False
    stride = index[1] - index[0]
    steps = np.arange(len(more)).reshape(-1, *(1 for _ in index.shape[1:]))
    return (
        np.array_equal(more, index[0] + steps * stride)
        and stride.min() == stride.max() > index[0].max()
        and index.min() >= 0
        and _row_size(node) == stride.min()
    )


def _row_size(node: ir.Node) -> int | None:
    """Return how many values a row of a flat [N·size] operand has, if all of a value with N on axis 0."""
    flat = _value(node, 0).producer()
    x = flat.inputs[0] if flat is not None else None
    target = flat.inputs[1].const_value if flat is not None and flat.inputs[1] is not None else None
    if x is None or x.shape is None or target is None or target.numpy().tolist() != [-1]:
        return None
    row = [d for d in x.shape[1:] if isinstance(d, int)]
    return math.prod(row) if len(row) == x.shape.rank() - 1 else None


def _read_row_by_row(model: ir.Model, node: ir.Node, index: np.ndarray) -> None:
    """Gather(x as [N·size], places) becomes x as [N, size] at the places of one row."""
    size, places = int(index[1].flat[0] - index[0].flat[0]), index[0].reshape(-1)
    op = Nodes(model.graph, str(node.outputs[0].name), before=node)
    x = op.Reshape(node.inputs[0], [-1, size])
    if not np.array_equal(places, np.arange(size)):
        x = op.Gather(x, places, axis=1)
    stand_for(node.outputs[0], op.Reshape(x, [-1, *index.shape[1:]]))
    model.graph.remove(node, safe=True)


def _value(node: ir.Node, position: int) -> ir.Value:
    value = node.inputs[position]
    assert value is not None
    return value


def at_batch(model: ir.Model, rows: int) -> tuple[dict[str, Spec], dict[str, np.ndarray]]:
    """Return what a batch fixes of every value: its shape and dtype, and its value if sizes decide it."""
    specs = infer(model, rows)
    constants: dict[str, np.ndarray] = {}
    if not any(_reads_size(node) for node in model.graph):
        return specs, constants
    probe = model.clone()
    while found := _folded(probe, specs):
        constants.update(found)
        for value in [v for node in probe.graph for v in node.outputs if v.name in found]:
            replace_by_constant(probe.graph, value, found[str(value.name)])
        passes.RemoveUnusedNodesPass()(probe)
        specs = {**specs, **infer(probe, rows)}
    return specs, constants


def _reads_size(node: ir.Node) -> bool:
    return node.op_type in _SIZE_READERS and not node.domain


def _folded(model: ir.Model, specs: dict[str, Spec]) -> dict[str, np.ndarray]:
    """Return the values that are constant at the shapes `specs`, as far as others read them, by name."""
    probe = model.clone()
    for node in list(probe.graph):
        x = node.inputs[0] if _reads_size(node) else None
        if x is None or x.name not in specs:
            continue
        shape = np.asarray(specs[x.name][0], np.int64)
        if node.op_type == "Size":
            size = np.asarray(shape.prod())
        else:
            start, end = (
                node.attributes.get_int(name, default) for name, default in (("start", 0), ("end", None))
            )
            size = shape[start:end]
        replace_by_constant(probe.graph, node.outputs[0], size)
        probe.graph.remove(node, safe=True)
    fold_weights(probe)
    return {
        name: v.const_value.numpy()
        for name, v in probe.graph.initializers.items()
        if v.const_value is not None and name not in model.graph.initializers
    }
