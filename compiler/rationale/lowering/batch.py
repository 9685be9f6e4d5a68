"""The batch on axis 0: made symbolic if it was fixed at 1, and followed through the graph."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from rationale.errors import InvalidModelError, UnsupportedModelError
from rationale.graph.nodes import new_constant, reached_from
from rationale.graph.runtime.session import Runner
from rationale.graph.shapes import Spec
from rationale.lowering.inference import BATCH, infer_each
from rationale.lowering.loading.newer import RECURRENT
from rationale.schema.manifest import is_float

SAME = 1e-3  # relative to the largest value: rows that mix differ by far more
ONE_SCALE = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul"})  # one scale for a whole batch
_SHAPE_READERS = frozenset({"Shape", "Size"})
_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_PARTS = _RESHAPES | {"Cast", "Gather", "Identity", "Slice", "Split"}


def free_batch(model: ir.Model, fixed: bool) -> None:
    """Make the batch symbolic, in place.

    A Reshape (Flatten, Squeeze, Unsqueeze) of batched rows is row-major, so a batch on axis 0 stays there:
    its target becomes [−1, *row shape], in place of the target that the exporter computed or wrote.

    Args:
        fixed: whether the batch was fixed at 1: then the sizes of a Reshape do not show where it is.

    Raises:
        UnsupportedModelError: if the batch is fixed at another size.
    """
    name_batch(model)
    specs, two = infer_each(model, (1, 2))
    batched = dependent_on_rows(model)
    sized = dependent_on_batch(model)
    elsewhere = _elsewhere(specs, two)
    for node in list(model.graph):
        data = node.inputs[0] if node.op_type in _RESHAPES and not node.domain else None
        is_known = not fixed or node.op_type == "Unsqueeze"  # [N, …] to [1, N, …], or [L·N, …] to [L, N, …]
        is_moved = is_known and node.outputs[0].name in elsewhere
        if data is not None and data.name in batched and data.name not in elsewhere and not is_moved:
            _reshape_rows(model, node, specs)
    passes.RemoveUnusedNodesPass()(model)
    for node in model.graph:  # the exporter's shapes may contain the old batch
        for value in node.outputs:
            spec = specs.get(str(value.name))
            unknown = value.name in elsewhere or (value.name in sized and value.name not in batched)
            value.shape = None if unknown else _symbolic(spec, value.name in batched)
            if spec is not None:
                value.dtype = spec[1]


def name_batch(model: ir.Model) -> bool:
    """Make axis 0 of every input N, in place; return True if it was 1.

    Raises:
        UnsupportedModelError: if the batch is fixed at another size, or lies on another axis.
    """
    batched = [v for v in model.graph.inputs if v.shape is not None and v.shape.rank()]
    lengths = {str(v.name): v.shape[0] for v in batched if v.shape is not None}
    for value in batched:
        _demand_no_state(model, value)
    for name, first in lengths.items():
        _demand_batch(name, first, set(lengths.values()))
    for value in batched:
        value.shape = ir.Shape([BATCH, *(value.shape or ())[1:]])
    return any(isinstance(first, int) for first in lengths.values())


def _demand_no_state(model: ir.Model, value: ir.Value) -> None:
    """Raise UnsupportedModelError for a recurrent layer's state, unless it has one row and layer."""
    first, *row_shape = list(value.shape or (None,))
    if not isinstance(first, int) or (first == 1 and all(isinstance(n, int) for n in row_shape)):
        return
    layer = _layer_of_state(model, value)
    if layer is not None:
        shape, (_, *row) = ", ".join(map(str, (first, *row_shape))), row_shape
        raise UnsupportedModelError(
            f"input {value.name!r} [{shape}] is a state of {layer.op_type} node "
            f"{layer.name or layer.outputs[0].name!r}: axis 0 counts its layers and directions, and the "
            "batch is axis 1. The batch must be axis 0: export a module without states (they are zeros "
            f"then), or one that takes them as [{', '.join(map(str, ('N', first, *row)))}] and transposes "
            "them (transpose(0, 1))."
        )


def _demand_batch(name: str, first: int | ir.SymbolicDim, lengths: Collection[int | ir.SymbolicDim]) -> None:
    """Raise UnsupportedModelError if axis 0 of an input has a fixed length other than 1.

    Args:
        lengths: the lengths of all inputs on axis 0.
    """
    if not isinstance(first, int) or first == 1:
        return
    if len(lengths) > 1:
        raise UnsupportedModelError(
            f"input {name!r} has the fixed length {first} on axis 0, which must be the batch, and other "
            "inputs have another length there. Export the model with the batch on axis 0 of every input, "
            f"or make {name!r} a constant of it."
        )
    raise UnsupportedModelError(
        f"input {name!r} has a fixed batch of {first}. Export the model with a dynamic batch "
        "on axis 0 (dynamic_axes or dynamic_shapes in torch.onnx.export), or with a batch of 1."
    )


def _layer_of_state(model: ir.Model, value: ir.Value) -> ir.Node | None:
    """Return the recurrent node that starts from an input, or from parts of it."""
    parts = {value.name}
    for node in model.graph:
        names = [None if v is None else v.name for v in node.inputs]
        if node.op_type in RECURRENT and not parts.isdisjoint(names[5:7]):
            return node
        if node.op_type in _PARTS and names[0] in parts:
            parts.update(v.name for v in node.outputs)
    return None


def outputs_grow(model: ir.Model) -> bool:
    """Tell whether axis 0 of every output is the batch, as far as shapes are known."""
    single, double = infer_each(model, (1, 2))
    outputs = {str(v.name) for v in model.graph.outputs} & single.keys() & double.keys()
    return outputs <= rows_on_axis_0(single, double)


_ALONG = dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "TopK"), -1)
_FROM = frozenset({"LayerNormalization", "RMSNormalization"})
_SCANS = frozenset({"CumSum", "CumProd"})
_WINDOWS = frozenset(
    "AveragePool Conv ConvTranspose GroupNormalization InstanceNormalization LRN LpPool MaxPool".split()
)


def first_to_mix(
    model: ir.Model,
    single: Mapping[str, Spec],
    double: Mapping[str, Spec],
    needed: Collection[str] | None = None,
) -> ir.Node | None:
    """Return the first node that mixes rows: it reduces, normalises, scans or picks along an axis of rows.

    The function compares shapes, which do not depend on values: a run on some rows shows nothing behind a
    ReLU that is 0.

    Args:
        single, double: specifications of all values for one row, and for two.
        needed: names of the values whose nodes are examined; all by default.
    """
    rows = dependent_on_rows(model)
    growing = {
        name: {i for i, (a, b) in enumerate(zip(single[name][0], double[name][0], strict=False)) if a != b}
        for name in rows & single.keys() & double.keys()
    }
    for node in model.graph:
        results = [str(v.name) for v in node.outputs if v.name]
        if node.op_type in _SHAPE_READERS | _RESHAPES or (
            needed is not None and not any(name in needed for name in results)
        ):
            continue
        grown = {str(v.name): growing.get(str(v.name), set()) for v in node.inputs if v is not None}
        lost = any(grown.values()) and all(name in growing and not growing[name] for name in results)
        x = node.inputs[0] if node.inputs else None
        if lost or (x is not None and x.name in single and _works_along(node, x, single, grown[str(x.name)])):
            return node
    return None


def _works_along(node: ir.Node, x: ir.Value, single: Mapping[str, Spec], axes: Collection[int]) -> bool:
    """Tell whether a node works along one of these axes of its first input, whose lengths it keeps."""
    rank, attribute = len(single[str(x.name)][0]), node.attributes.get_int
    if not axes or node.domain:
        return False
    if node.op_type in _ALONG:
        return attribute("axis", _ALONG[node.op_type]) % rank in axes
    if node.op_type in _FROM:
        return max(axes) >= attribute("axis", -1) % rank
    if node.op_type in _SCANS:
        axis = None if node.inputs[1] is None else node.inputs[1].const_value
        return axis is not None and int(axis.numpy().reshape(-1)[0]) % rank in axes
    return node.op_type in _WINDOWS and max(axes) > 0


def how_rows_mix(
    model: ir.Model,
    single: ir.Model | None = None,
    outputs: Sequence[str] | None = None,
    *,
    batch_leading: bool = False,
) -> str | None:
    """Return how answers to a batch of two rows differ from those to single rows; None if they agree.

    Args:
        single: another model, which answers the single rows.
        outputs: the outputs to compare; all by default.
        batch_leading: whether rows must be on axis 0 of the answer, or on an axis before it.
    """
    if _two_rows(model, *_SPANS[0]) is None:
        return None
    try:
        batch_runner = Runner(model, optimise=False, users_model=True)
        row_runner = Runner(single or model, optimise=False, users_model=True)
        rows = [_two_rows(model, *span) or {} for span in _SPANS]
        answers = [_answers(batch_runner, row_runner, pair, outputs) for pair in rows]
    except InvalidModelError as error:
        return f"the model does not run on batches of two rows and of one: {error}"
    for both, singles in answers:
        if not all(_stay_apart(both[name], [a[name] for a in singles], batch_leading) for name in both):
            return "the model mixes the rows of a batch: it answers two otherwise than one by one"
    return None


_SPANS = ((0.2, 0.8), (-10.0, 10.0))  # of floats in rows; far out, other sides of a ReLU show


def _two_rows(model: ir.Model, low: float, high: float) -> dict[str, np.ndarray] | None:
    """Return two rows of inputs: random floats; for other types zeros and ones, valid ids in every table.

    The zeros and ones are also both sides of a mask. The result is None if a shape or type is unknown, and
    for texts.
    """
    random = np.random.default_rng(0)
    rows = {}
    for value in model.graph.inputs:
        if value.dtype is None or value.shape is None or value.dtype == ir.DataType.STRING:
            return None
        dims = [2 if i == 0 else d for i, d in enumerate(value.shape)]
        shape = [d for d in dims if isinstance(d, int)]
        if len(shape) < len(dims):
            return None
        draw = random.uniform(low, high, shape) if value.dtype.is_floating_point() else np.zeros(shape)
        if shape and not value.dtype.is_floating_point():
            draw[1] = 1
        rows[str(value.name)] = draw.astype(value.dtype.numpy())
    return rows


def _answers(
    batch_runner: Runner, row_runner: Runner, rows: Mapping[str, np.ndarray], outputs: Sequence[str] | None
) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Return answers to both rows and to each; if the model fails for ones (lengths, say), for zeros."""

    def answers(rows: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
        single_rows = [{n: a[i : i + 1] if a.ndim else a for n, a in rows.items()} for i in range(2)]
        return batch_runner(rows, outputs), [row_runner(row, outputs) for row in single_rows]

    try:
        return answers(rows)
    except InvalidModelError:
        return answers({n: a if is_float(a.dtype) else np.zeros_like(a) for n, a in rows.items()})


def _stay_apart(pair: np.ndarray, answers: Sequence[np.ndarray], batch_leading: bool) -> bool:
    """Tell whether the answer to both rows holds them side by side, on any axis or on a new first one."""
    arrays = (pair, *answers)
    if not all(isinstance(a, np.ndarray) and a.dtype.kind not in "OU" for a in arrays):
        return False
    rows = [np.asarray(a, np.float64) for a in answers]
    near = max(np.abs(a[np.isfinite(a)]).max(initial=1e-3) for a in rows) * SAME
    if batch_leading and pair.shape[1:] not in (rows[0].shape, rows[0].shape[1:]):
        return False
    return rows[0].shape == rows[1].shape and any(
        np.allclose(
            np.asarray(pair, np.float64).reshape(parts, 2, rows[0].size // parts),
            np.stack([a.reshape(parts, -1) for a in rows], axis=1),
            0,
            near,
            equal_nan=True,
        )
        for parts in _parts_of_rows(pair.shape, rows[0].shape)
        if parts == 1 or not batch_leading
    )


def _parts_of_rows(pair: tuple[int, ...], row: tuple[int, ...]) -> Iterator[int]:
    """Yield numbers of parts into which each row may be cut so that equal parts of both rows are adjacent.

    1 for [2, …], a new first axis or axis 0; for another axis, the lengths before it times its parts.
    """
    if pair == (2, *row):
        yield 1
    for axis, length in enumerate(row):
        if pair == (*row[:axis], 2 * length, *row[axis + 1 :]):
            divisors = (n for n in range(1, length + 1) if length % n == 0)
            yield from (math.prod(row[:axis]) * n for n in divisors)


def _elsewhere(single: dict[str, Spec], double: dict[str, Spec]) -> frozenset[str]:
    """Return the names of the values that are known to grow with the batch, but not on axis 0."""
    common = {name: (spec[0], double[name][0]) for name, spec in single.items() if name in double}
    return frozenset(name for name, (a, b) in common.items() if a != b and a[:1] == b[:1])


def _symbolic(spec: Spec | None, batched: bool) -> ir.Shape | None:
    if spec is None or not batched or not spec[0]:
        return None if spec is None else ir.Shape(spec[0])
    first, *row_shape = spec[0]
    return ir.Shape([BATCH if first == 1 else None, *row_shape])


def _reshape_rows(model: ir.Model, node: ir.Node, specs: dict[str, Spec]) -> None:
    shape, _ = specs.get(name := str(node.outputs[0].name), ((), None))
    if not shape or f"{name}/shape" in model.graph.initializers:  # or reshaped before
        return
    target = new_constant(model.graph, f"{name}/shape", np.asarray([-1, *shape[1:]], np.int64))
    node.op_type = "Reshape"
    node.attributes.clear()
    node.resize_inputs(2)
    node.replace_input_with(1, target)


def dependent_on_rows(model: ir.Model) -> frozenset[str]:
    """Return the names of the values that hold rows: data of a batched input flows into them."""
    return reached_from(_batched_inputs(model), (n for n in model.graph if n.op_type not in _SHAPE_READERS))


def rows_on_axis_0(single: dict[str, Spec], double: dict[str, Spec]) -> frozenset[str]:
    """Return the names of the values whose axis 0 doubles from one row to two."""
    common = {name: (spec[0], double[name][0]) for name, spec in single.items() if name in double}
    return frozenset(name for name, (a, b) in common.items() if a and b == (2 * a[0], *a[1:]))


def dependent_on_batch(model: ir.Model) -> frozenset[str]:
    """Return the names of the values that hold rows, or sizes that grow with their number."""
    return reached_from(_batched_inputs(model), model.graph)


def _batched_inputs(model: ir.Model) -> list[str]:
    return [str(v.name) for v in model.graph.inputs if v.shape is None or v.shape.rank()]
