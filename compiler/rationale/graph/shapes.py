"""Shapes and types of the nodes' results, for one row and for N rows.

A combined graph reshapes between [N, K, …] and [N·K, …], and a runtime that infers its shapes makes a new
unknown of each −1. ONNX Runtime then neither works in place nor fuses an Add into a convolution, since it
does not see that two shapes are equal. So `set_symbolic_shapes` infers them for two numbers of rows, and
writes differing lengths in terms of N (docs/performance.md shows the gain).
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import defs, helper

from rationale.errors import RationaleError, UnsupportedModelError
from rationale.graph.runtime.session import MOST_SIZES
from rationale.graph.tensor import Tensor

Shape = tuple[int, ...]
ShapeForm = Callable[..., Shape | list[Shape]]

CUSTOM_VERSION = 1 << 20  # above any version that a model imports, so that ONNX's checker skips such nodes
_ONNX = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"})
_FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
)
_registered: set[tuple[str, str]] = set()


def is_custom_domain(domain: str) -> bool:
    """Tell whether a domain is custom, that is, none of ONNX's."""
    return domain not in _ONNX


def inference_opsets(imports: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    """Return a model's imports, so that inference finds the shapes that `declare_shape` registered."""
    return [helper.make_opsetid(d, CUSTOM_VERSION if is_custom_domain(d) else v) for d, v in imports.items()]


def broadcast_shape(*shapes: Shape | None) -> Shape:
    """Return the shape of an elementwise operator's result."""
    return np.broadcast_shapes(*(s for s in shapes if s is not None))


def declare_shape(op_type: str, domain: str, form: ShapeForm) -> None:
    """Register the shape of an operator's value with ONNX's inference; the newest declaration wins.

    Args:
        form: function of one tuple per input (None for an omitted one) and of the attributes that its
            signature names as keywords; returns a tuple, or a list of tuples.
    """
    if (domain, op_type) in _registered:
        defs.deregister_schema(op_type, CUSTOM_VERSION, domain)
    _registered.add((domain, op_type))
    defs.register_schema(_schema(op_type, domain, form))


def _schema(op_type: str, domain: str, form: ShapeForm) -> defs.OpSchema:
    """Return a schema with any number of inputs and outputs, of any type."""
    parameter = defs.OpSchema.FormalParameter
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    several: dict[str, Any] = {"param_option": variadic, "is_homogeneous": False, "min_arity": 0}
    schema = defs.OpSchema(
        op_type,
        domain,
        CUSTOM_VERSION,
        inputs=[parameter("inputs", "T", **several)],
        outputs=[parameter("outputs", "T", **several)],
        type_constraints=[("T", list(defs.get_schema("Identity").inputs[0].types), "")],
    )
    schema.set_type_and_shape_inference_function(lambda context: _infer(context, op_type, domain, form))
    return schema


def _infer(context: Any, op_type: str, domain: str, form: ShapeForm) -> None:
    input_types = [context.get_input_type(i) for i in range(context.get_num_inputs())]
    types = [t if t is not None and t.HasField("tensor_type") else None for t in input_types]
    shapes = [None if t is None else _static_shape(t) for t in types]
    present = [t for t in types if t is not None and t.tensor_type.elem_type]
    if not present or any(t is not None and s is None for t, s in zip(types, shapes, strict=True)):
        return
    first = next((t for t in present if t.tensor_type.elem_type in _FLOATS), present[0])
    result_shapes = _call_form(form, shapes, context, f"{domain}.{op_type}")
    for i, shape in zip(range(context.get_num_outputs()), result_shapes, strict=False):
        context.set_output_type(i, helper.make_tensor_type_proto(first.tensor_type.elem_type, shape))


def _call_form(form: ShapeForm, shapes: list[Shape | None], context: Any, name: str) -> Iterable[Shape]:
    try:
        result = form(*shapes, **_attributes(form, context))
        return [tuple(map(int, shape)) for shape in (result if isinstance(result, list) else [result])]
    except Exception as error:  # a user's own code
        raise RationaleError(
            f"{name}: the shape of its value cannot be inferred for inputs {shapes}: its rule's shape "
            f"form raised {type(error).__name__}: {error}. Repair the form."
        ) from error


def _attributes(form: ShapeForm, context: Any) -> dict[str, Any]:
    named = [p.name for p in inspect.signature(form).parameters.values() if p.kind is p.KEYWORD_ONLY]
    attributes = {name: context.get_attribute(name) for name in named}
    return {name: _value(a) for name, a in attributes.items() if a is not None}


def _value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _static_shape(kind: onnx.TypeProto) -> Shape | None:
    tensor = kind.tensor_type
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return tuple(d.dim_value for d in tensor.shape.dim)


Spec = tuple[tuple[int, ...], ir.DataType]

MOST_SCALES = 256  # elements of a constant that is no integer, such as a Resize's scales


def may_be_sizes(dtype: ir.DataType, elements: int) -> bool:
    """Tell whether a constant may determine a shape; larger ones are weights and tables."""
    return elements <= (MOST_SIZES if dtype.is_integer() else MOST_SCALES)


def spec_of(kind: onnx.TypeProto) -> Spec | None:
    """Return a type's specification; None if it is no tensor, or has no static shape."""
    shape, elements = _static_shape(kind), kind.tensor_type.elem_type
    return None if shape is None or not elements else (shape, ir.DataType(elements))


def infer_outputs(
    op_type: str,
    domain: str,
    opset: int,
    attributes: Mapping[str, Any],
    tensors: Sequence[Tensor | None],
    outputs: int,
) -> list[Spec]:
    """Return the shape and dtype of each output for one row, by ONNX's own inference.

    Raises:
        UnsupportedModelError: if a shape depends on values, or attributes do not fit.
    """
    names = ["" if t is None else f"i{i}" for i, t in enumerate(tensors)]
    results = [f"o{i}" for i in range(outputs)]
    used = {k: v for k, v in attributes.items() if v is not None}
    node = ir.node(op_type, [None] * len(names), used, domain=domain, num_outputs=outputs)
    proto = ir.serde.serialize_node(node)
    proto.ClearField("input")
    proto.ClearField("output")
    proto.input.extend(names)
    proto.output.extend(results)
    types, data = {}, {}
    for name, tensor in zip(names, tensors, strict=True):
        if tensor is None:
            continue
        types[name] = onnx.helper.make_tensor_type_proto(int(tensor.dtype), tensor.shape)
        is_small = tensor.rank <= 1 and may_be_sizes(tensor.dtype, math.prod(tensor.shape))
        constant = tensor.constant if is_small else None
        if constant is not None:
            data[name] = onnx.numpy_helper.from_array(np.asarray(constant), name)
    imports = inference_opsets({domain: opset if not domain else max(onnx.defs.onnx_ml_opset_version(), 1)})
    try:
        schema = onnx.defs.get_schema(op_type, imports[0].version, domain)
        if schema.deprecated:  # such as TreeEnsembleClassifier, which files still contain
            imports = inference_opsets({domain: schema.since_version - 1})
            schema = onnx.defs.get_schema(op_type, imports[0].version, domain)
    except onnx.defs.SchemaError as error:
        raise UnsupportedModelError(
            f"{domain}.{op_type}: the shape of its value is not known. Declare it beside its rule, by "
            "`@RULE.shape`."
        ) from error
    try:
        inferred = onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=imports)
    except onnx.shape_inference.InferenceError as error:
        raise UnsupportedModelError(f"{op_type}: {error}. Export it again.") from error
    return [_spec(inferred.get(name), op_type) for name in results]


def result_dtype(
    op_type: str, domain: str, opset: int, tensors: Sequence[Tensor | None], attributes: Mapping[str, Any]
) -> ir.DataType:
    """Return the dtype of an operator's first output by its schema.

    It is that of an operand, the only one that the schema allows, or the attribute `to`.
    """
    source = _dtype_in_schema(op_type, domain, opset)
    if isinstance(source, int):
        operand = tensors[source]
        assert operand is not None
        return operand.dtype
    return ir.DataType(attributes["to"] if source is None else onnx.TensorProto.DataType.Value(source))


@functools.cache
def _dtype_in_schema(op_type: str, domain: str, opset: int) -> int | str | None:
    """Return the position of the operand that determines it, the name of a fixed dtype, or None."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:  # a user's own operator
        return 0
    output = schema.outputs[0]
    for position, operand in enumerate(schema.inputs):
        if operand.type_str == output.type_str:
            return position
    names = [str(kind).removeprefix("tensor(").removesuffix(")") for kind in output.types]
    return names[0].upper() if len(names) == 1 else None


def _spec(proto: onnx.TypeProto | None, op_type: str) -> Spec:
    shape = None if proto is None else _static_shape(proto)
    if proto is None or shape is None:
        raise UnsupportedModelError(f"{op_type}: the shape of its output depends on values")
    return shape, ir.DataType(proto.tensor_type.elem_type)


def infer_graph(
    nodes: Iterable[onnx.NodeProto],
    input_specs: Mapping[str, Spec],
    constants: Iterable[ir.Value],
    opsets: Mapping[str, int],
) -> dict[str, Spec]:
    """Infer static shapes of all values that nodes make or read, by name, without their large constants.

    Args:
        input_specs: specifications of the values that they read, apart from constants.
    """
    skeleton = onnx.GraphProto(name="skeleton", node=nodes)
    specs = dict(input_specs)
    for value in constants:
        array, name = value.const_value, str(value.name)
        assert array is not None
        if may_be_sizes(array.dtype, array.size):
            skeleton.initializer.append(ir.serde.serialize_tensor(array))
            skeleton.initializer[-1].name = name
        else:
            specs[name] = tuple(array.shape.numpy()), array.dtype
    for name, (shape, dtype) in specs.items():
        skeleton.input.append(onnx.helper.make_tensor_value_info(name, int(dtype), shape))
    model = onnx.helper.make_model(skeleton, opset_imports=inference_opsets(opsets))
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.value_info
    return specs | {v.name: spec for v in inferred if (spec := spec_of(v.type)) is not None}


ROWS, TIMES = "N", "·"
_COUNTS = (5, 7)  # numbers of rows for which shapes are inferred
Specs = dict[str, Spec]  # by name


def set_symbolic_shapes(model: ir.Model) -> None:
    """Set the shape of every value whose shape is known in terms of N, in place.

    The shapes of outputs of operators with bodies, and of those that count, must be known before.
    """
    nothing: list[Specs] = [{} for _ in _COUNTS]
    _set_shapes(model.graph, model.graph.opset_imports, nothing)


def rename_rows(graph: ir.Graph, name: str) -> None:
    """Rename the number of rows in the shapes of the outputs of a graph's nodes."""
    for node in ir.traversal.RecursiveGraphIterator(graph):
        for value in node.outputs:
            if value.shape is not None:
                value.shape = ir.Shape(
                    [d if isinstance(d, int) else _rename_dim(d, name) for d in value.shape]
                )


def _length_per_row(dim: ir.SymbolicDim) -> int | None:
    """Return the length per row of a dimension that `rows_dim` named, or None."""
    count, times, rows = (dim.value or "").rpartition(TIMES)
    return int(count or 1) if rows == ROWS and (count.isdecimal() or not times) else None


def _rename_dim(dim: ir.SymbolicDim, name: str) -> str | None:
    return dim.value if _length_per_row(dim) is None else f"{str(dim.value).removesuffix(ROWS)}{name}"


def _set_shapes(graph: ir.Graph, opsets: Mapping[str, int], outside: Sequence[Specs]) -> None:
    """Set the shapes of one graph, then of its bodies, which see the values `outside`, for each count."""
    hidden = {n for n in graph if _bodies(n) or n.op_type == "Range"}
    nodes = [ir.serde.serialize_node(n) for n in graph if n not in hidden]
    computed = {v for n in graph for v in n.outputs}
    read = [v for v in _values_read(graph) if v not in computed]
    constants = [v for v in read if v.const_value is not None]
    given = [v for v in (*read, *(v for n in hidden for v in n.outputs)) if v.const_value is None]
    by_count = []
    for rows, specs in zip(_COUNTS, outside, strict=True):
        known = {str(v.name): _spec_at(v, rows) or specs.get(str(v.name)) for v in given}
        read_specs = {name: spec for name, spec in known.items() if spec}
        by_count.append({**specs, **infer_graph(nodes, read_specs, constants, opsets)})
    for node in graph:
        for value in node.outputs:
            few, many = (specs.get(str(value.name)) for specs in by_count)
            if few is not None and many is not None and not value.is_graph_output():
                value.shape, value.dtype = _row_shape(few[0], many[0]), few[1]
    for node in graph:
        for body in _bodies(node):
            _set_shapes(body, opsets, by_count)


def _bodies(node: ir.Node) -> list[ir.Graph]:
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def _values_read(graph: ir.Graph) -> Iterable[ir.Value]:
    """Return the values that the nodes of a graph read, each once, and its inputs."""
    return dict.fromkeys([*graph.inputs, *(v for n in graph for v in n.inputs if v is not None)])


def _spec_at(value: ir.Value, rows: int) -> Spec | None:
    """Return a value's specification at `rows` rows; an open axis 0 of an input is its rows."""
    if value.dtype is None or value.shape is None:
        return None
    dims: list[int] = []
    for axis, dim in enumerate(value.shape):
        if isinstance(dim, int):
            dims.append(dim)
        elif (each := _length_per_row(dim)) is not None:
            dims.append(rows * each)
        elif axis == 0 and value.is_graph_input():
            dims.append(rows)
        else:
            return None
    return tuple(dims), value.dtype


def _row_shape(few: Sequence[int], many: Sequence[int]) -> ir.Shape | None:
    """Return the shape that is `few` and `many` at these counts."""
    if len(few) != len(many):
        return None
    return ir.Shape([_row_dim(a, b) for a, b in zip(few, many, strict=True)])


def _row_dim(at_few_rows: int, at_many_rows: int) -> int | str | None:
    """Return a length by its values at two row counts: fixed, or a multiple of N; None if neither."""
    if at_few_rows == at_many_rows:
        return at_few_rows
    per_row, remainder = divmod(at_few_rows, _COUNTS[0])
    if remainder or at_many_rows != per_row * _COUNTS[1]:
        return None
    return rows_dim(per_row)


def rows_dim(each: int) -> str:
    """Return the name of a dimension with `each` elements per row."""
    return ROWS if each == 1 else f"{each}{TIMES}{ROWS}"
