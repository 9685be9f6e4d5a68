"""Shapes of operators that ONNX does not know, as their rules say them: told to ONNX's own inference."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper

from compiler.errors import RationaleError

Shape = tuple[int, ...]
ShapeForm = Callable[..., Shape | list[Shape]]

OWN_VERSION = 1 << 20  # above what a model imports, so that ONNX's checker leaves such nodes alone
_ONNX = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"})
_FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
)
_told: set[tuple[str, str]] = set()


def is_own(domain: str) -> bool:
    """Tell whether a domain is none of ONNX's."""
    return domain not in _ONNX


def own_opsets(imports: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    """Return a model's imports, so that inference finds what `declare_shape` registered."""
    return [helper.make_opsetid(d, OWN_VERSION if is_own(d) else v) for d, v in imports.items()]


def broadcast_shape(*shapes: Shape | None) -> Shape:
    """Of an operator that runs element by element."""
    return np.broadcast_shapes(*(s for s in shapes if s is not None))


def declare_shape(op_type: str, domain: str, form: ShapeForm) -> None:
    """Register the shape of an operator's value with ONNX's inference; the newest declaration wins.

    Args:
        form: called with a tuple for each input (None for one left out) and the attributes that its
            signature names as keywords; returns a tuple, or a list of them.
    """
    if (domain, op_type) in _told:
        defs.deregister_schema(op_type, OWN_VERSION, domain)
    _told.add((domain, op_type))
    defs.register_schema(_schema(op_type, domain, form))


def _schema(op_type: str, domain: str, form: ShapeForm) -> defs.OpSchema:
    """Any number of inputs and outputs, of any type."""
    parameter = defs.OpSchema.FormalParameter
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    several: dict[str, Any] = {"param_option": variadic, "is_homogeneous": False, "min_arity": 0}
    schema = defs.OpSchema(
        op_type,
        domain,
        OWN_VERSION,
        inputs=[parameter("inputs", "T", **several)],
        outputs=[parameter("outputs", "T", **several)],
        type_constraints=[("T", list(defs.get_schema("Identity").inputs[0].types), "")],
    )
    schema.set_type_and_shape_inference_function(lambda context: _infer(context, op_type, domain, form))
    return schema


def _infer(context: Any, op_type: str, domain: str, form: ShapeForm) -> None:
    given = [context.get_input_type(i) for i in range(context.get_num_inputs())]
    types = [t if t is not None and t.HasField("tensor_type") else None for t in given]
    shapes = [None if t is None else _static(t) for t in types]
    present = [t for t in types if t is not None and t.tensor_type.elem_type]
    if not present or any(t is not None and s is None for t, s in zip(types, shapes, strict=True)):
        return
    first = next((t for t in present if t.tensor_type.elem_type in _FLOATS), present[0])
    found = _called(form, shapes, context, f"{domain}.{op_type}")
    for i, shape in zip(range(context.get_num_outputs()), found, strict=False):
        context.set_output_type(i, helper.make_tensor_type_proto(first.tensor_type.elem_type, shape))


def _called(form: ShapeForm, shapes: list[Shape | None], context: Any, name: str) -> Iterable[Shape]:
    try:
        found = form(*shapes, **_attributes(form, context))
        return [tuple(map(int, shape)) for shape in (found if isinstance(found, list) else [found])]
    except Exception as error:  # a user's own code
        raise RationaleError(
            f"{name}: the shape of its value cannot be told for inputs {shapes}: its rule's shape form "
            f"ends in {type(error).__name__}: {error}. Repair the form."
        ) from error


def _attributes(form: ShapeForm, context: Any) -> dict[str, Any]:
    named = [p.name for p in inspect.signature(form).parameters.values() if p.kind is p.KEYWORD_ONLY]
    found = {name: context.get_attribute(name) for name in named}
    return {name: _value(a) for name, a in found.items() if a is not None}


def _value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _static(kind: onnx.TypeProto) -> Shape | None:
    tensor = kind.tensor_type
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return tuple(d.dim_value for d in tensor.shape.dim)
