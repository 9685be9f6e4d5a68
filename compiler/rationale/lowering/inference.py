"""Shapes by ONNX's own inference, from an outline without a copy of the model and its weights.

Open lengths, such as a sequence's, are fixed for the explanation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from rationale.errors import InvalidOptionError, RationaleError
from rationale.graph.shapes import Spec, inference_opsets, may_be_sizes, spec_of

BATCH = "N"


def infer(model: ir.Model, rows: int) -> dict[str, Spec]:
    """Infer static shapes with the batch set to `rows`; values of unknown shape are left out."""
    return infer_each(model, [rows])[0]


def infer_each(model: ir.Model, batches: Sequence[int]) -> list[dict[str, Spec]]:
    """Infer static shapes for several batches, without the model's own notes on shapes between nodes."""
    outline = _outline(model, noted=False)
    inputs = outline.graph.input[: len(model.graph.inputs)]
    dims = [d for v in inputs for d in v.type.tensor_type.shape.dim if d.dim_param == BATCH]
    specs = []
    for rows in batches:
        for dim in dims:
            dim.dim_value = rows
        # Not strict: a batch of 2 may be impossible in places.
        specs.append(_specs(model, _infer_shapes(outline, strict_mode=False, data_prop=True)))
    return specs


def known_specs(model: ir.Model) -> dict[str, Spec]:
    """Return static shapes from the model's notes, and those that follow without computing sizes."""
    outline = _outline(model, noted=True)
    return _specs(model, outline) | _specs(model, _infer_shapes(outline, strict_mode=True, data_prop=False))


def note_shapes(model: ir.Model) -> None:
    """Record, in place, the known types and shapes of the nodes' outputs."""
    results = {v.name: v for v in _results(model)}
    inferred = _infer_shapes(_outline(model, noted=True), strict_mode=True, data_prop=True)
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        if info.name in results:
            ir.serde.deserialize_value_info_proto(info, results[info.name])


def _infer_shapes(outline: onnx.ModelProto, *, strict_mode: bool, data_prop: bool) -> onnx.ModelProto:
    """Infer shapes; return the outline itself if inference fails: its C code raises errors of many types."""
    try:
        return onnx.shape_inference.infer_shapes(
            outline, check_type=True, strict_mode=strict_mode, data_prop=data_prop
        )
    except RationaleError:  # from a rule's own shape form
        raise
    except Exception:
        return outline


def _outline(model: ir.Model, *, noted: bool) -> onnx.ModelProto:
    """Return the model with its large constants as inputs.

    Args:
        noted: whether to keep the recorded shapes of the nodes' outputs.
    """
    graph = model.graph
    constants = list(graph.initializers.values())
    proto = onnx.ModelProto(
        ir_version=model.ir_version,
        opset_import=inference_opsets(model.opset_imports),
        functions=[
            ir.serde.serialize_function(f, create_value_info=model.ir_version >= 10)
            for f in model.functions.values()
        ],
    )
    proto.graph.name = graph.name or "graph"
    proto.graph.input.extend(_info(v) for v in graph.inputs)
    proto.graph.input.extend(_info(v) for v in constants if not v.is_graph_input())
    proto.graph.initializer.extend(_shape_constants(constants))
    for node in graph:
        ir.serde.serialize_node_into(proto.graph.node.add(), node)
    results = [v for v in _results(model) if not v.is_graph_output()]
    proto.graph.value_info.extend(_info(v, noted=noted) for v in results)
    proto.graph.output.extend(_info(v, noted=noted) for v in graph.outputs if v.producer() is not None)
    return proto


def _shape_constants(constants: Sequence[ir.Value]) -> Iterator[onnx.TensorProto]:
    """Yield the constants that may determine shapes: weights would be serialised with every inference."""
    for value in constants:
        constant = value.const_value
        if constant is not None and may_be_sizes(constant.dtype, constant.size):
            tensor = ir.serde.serialize_tensor(constant)
            tensor.name = str(value.name)
            yield tensor


def _info(value: ir.Value, *, noted: bool = True) -> onnx.ValueInfoProto:
    """Return name, type and, if `noted`, shape of a value; those of a constant are its tensor's."""
    tensor = value.const_value
    kind = ir.TensorType(tensor.dtype) if value.type is None and tensor is not None else value.type
    shape = tensor.shape if value.shape is None and tensor is not None else value.shape
    info = onnx.ValueInfoProto(name=value.name)
    if kind is not None:
        ir.serde.serialize_type_into(info.type, kind)
        if noted and shape is not None:
            ir.serde.serialize_shape_into(info.type, shape)
    return info


def _results(model: ir.Model) -> Iterator[ir.Value]:
    return (v for node in model.graph for v in node.outputs if v.name)


def _specs(model: ir.Model, proto: onnx.ModelProto) -> dict[str, Spec]:
    """Return the specifications in the model's order."""
    infos = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
    specs = {v.name: spec for v in infos if (spec := spec_of(v.type)) is not None}
    values = (*model.graph.inputs, *model.graph.initializers.values(), *_results(model))
    return {str(v.name): specs[str(v.name)] for v in values if v.name in specs}


Size = int | tuple[int, int]  # one length, or all from the first to the second
Shapes = Mapping[str | None, tuple[int, ...]]


def fix_lengths(model: ir.Model, sizes: Mapping[str, int], references: Shapes) -> dict[str, int]:
    """Give open lengths of inputs a number, in place; return the given lengths, by name.

    The name of a length is that in the model, or `input[axis]` without one.

    Args:
        sizes: lengths from the user.
        references: shapes [K, …] of references by input, for lengths that `sizes` lacks; the key None means
            the only float input, or the only input.

    Raises:
        InvalidOptionError: if no input has a length of that name, or it is not a positive integer.
    """
    names = {_name(value, axis) for value, axis in _open_axes(model)}
    unknown = sorted(set(sizes) - names)
    if unknown:
        raise InvalidOptionError(
            f"no input has an open length {unknown}; the model's open lengths are {sorted(names) or 'none'}."
        )
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise InvalidOptionError(f"length {name!r} must be a whole number, 1 or more, not {size!r}.")
    fixed = {name: int(size) for name, size in sizes.items()}
    for value, axis in _open_axes(model):
        shape = references.get(value.name) or (
            references.get(None) if value is _default_input(model) else None
        )
        if shape and axis < len(shape):
            fixed.setdefault(_name(value, axis), shape[axis])
    for value in model.graph.inputs:
        if value.shape is not None:
            dims = [fixed.get(_name(value, a), d) if a else d for a, d in enumerate(value.shape)]
            value.shape = ir.Shape(dims)
    return fixed


@dataclass(frozen=True)
class Span:
    """The lengths from `least` to `most` of an axis that a model calls `name`."""

    name: str
    least: int
    most: int


def span_of(sizes: Mapping[str, Size]) -> tuple[dict[str, int], Span | None]:
    """Return the lengths, for a span its longest, and the span, or None.

    Raises:
        InvalidOptionError: if there is more than one span, or an invalid one.
    """
    spans = {name: size for name, size in sizes.items() if isinstance(size, tuple)}
    for name, ends in spans.items():
        are_lengths = len(ends) == 2 and all(isinstance(n, int | np.integer) and n >= 1 for n in ends)
        if not are_lengths or ends[1] < ends[0] + 2:
            raise InvalidOptionError(
                f"length {name!r} must be a range of at least three whole numbers from 1 on, such as (1, "
                f"128), not {ends!r}."
            )
    if len(spans) > 1:
        raise InvalidOptionError(
            f"only one length can stay open, not {sorted(spans)}: give numbers for the others."
        )
    fixed = {name: size[1] if isinstance(size, tuple) else size for name, size in sizes.items()}
    return fixed, next((Span(name, *ends) for name, ends in spans.items()), None)


def length_warnings(lengths: Mapping[str, Size]) -> tuple[str, ...]:
    """Return warnings about lengths that the model leaves open, but the explanation fixes."""
    if not lengths:
        return ()
    named = (
        f"{name} = {size[0]} to {size[1]}" if isinstance(size, tuple) else f"{name} = {size}"
        for name, size in lengths.items()
    )
    return (f"the explanation takes only rows with {', '.join(named)}; the plain entry takes any length",)


def _open_axes(model: ir.Model) -> Iterator[tuple[ir.Value, int]]:
    """Yield inputs, and their axes behind the batch whose length the model leaves open."""
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if axis and not isinstance(dim, int):
                yield value, axis


def _name(value: ir.Value, axis: int) -> str:
    dim = value.shape[axis] if value.shape is not None else None
    named = isinstance(dim, ir.SymbolicDim) and dim.value is not None
    return str(dim) if named else f"{value.name}[{axis}]"


def _default_input(model: ir.Model) -> ir.Value | None:
    """Return the input to which an array without a name belongs."""
    inputs = list(model.graph.inputs)
    floats = [v for v in inputs if v.dtype is not None and v.dtype.is_floating_point()]
    for candidates in (floats, inputs):
        if len(candidates) == 1:
            return candidates[0]
    return None
