"""Messages of the Open Inference Protocol over gRPC ↔ tensors.

A request's tensors come as `raw_input_contents`, one for each input, or typed in each input's `contents`.
Answers are always raw, as Triton's are.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from rationale_service.engine.checks import Faults
from rationale_service.engine.request import (
    InferenceAnswer,
    InferenceRequest,
    check_form,
    check_parameters,
    choices_of,
    note_duplicate,
    timeout_of,
)
from rationale_service.errors import InvalidInputError, MalformedError
from rationale_service.tensors import DTYPES, Array, Tensors, datatype_of, from_binary, to_binary

# The protocol's field for the values of each datatype. FP16 has none: it must come raw.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

# The fields whose values may be out of the range of their datatype.
_TYPED_VALUE = 8  # bytes, at most
_WIDE = {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}


def decode_request(message: pb.ModelInferRequest) -> InferenceRequest:
    """Decode a request. An input that does not fit its own shape or datatype is among its faults.

    Raises:
        MalformedError: if it is no request of this protocol.
        InvalidInputError: if it uses an unsupported feature.
    """
    parameters = parameters_of(message.parameters)
    faults = Faults()
    return InferenceRequest(
        id=message.id,
        inputs=inputs_of(message, faults),
        faults=faults,
        outputs=_decode_outputs(message, faults),
        timeout_s=timeout_of(parameters.get("timeout")),
        **choices_of(parameters, faults),
    )


def typed_bytes(message: pb.ModelInferRequest) -> int:
    """Count the bytes of typed tensors, whose values are checked one by one; raw ones count as 0."""
    if message.raw_input_contents:
        return 0
    filled = (field for tensor in message.inputs for field in tensor.contents.ListFields())
    return sum(_TYPED_VALUE * len(values) for _, values in filled)


def encode_answer(answer: InferenceAnswer) -> pb.ModelInferResponse:
    message = pb.ModelInferResponse(
        model_name=answer.model,
        model_version=answer.version,
        id=answer.request.id,
        raw_output_contents=[to_binary(array) for array in answer.tensors.values()],
    )
    for name, array in answer.tensors.items():
        message.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
    for name, value in answer.identity.items():
        message.parameters[name].string_param = value
    return message


def parameters_of(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """Return the parameters' values; None for a parameter without a value."""
    if not parameters:
        return {}
    chosen = {name: each.WhichOneof("parameter_choice") for name, each in parameters.items()}
    return {
        name: None if choice is None else getattr(parameters[name], choice) for name, choice in chosen.items()
    }


def inputs_of(message: pb.ModelInferRequest, faults: Faults) -> Tensors:
    """Decode the inputs; `faults` collects the faults of each.

    Raises:
        MalformedError: if the number of raw contents differs from that of the inputs.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise MalformedError(
            f"{len(raw)} raw_input_contents for {len(message.inputs)} inputs: send one for each, or none"
        )
    arrays: Tensors = {}
    for i, tensor in enumerate(message.inputs):
        name = tensor.name
        if name in arrays:
            note_duplicate(name, faults)
        try:
            arrays[name] = _decode(name, tensor, raw[i] if raw else None)
        except (InvalidInputError, MalformedError) as fault:
            faults.add(fault, name)
    return arrays


def _decode(name: str, tensor: pb.ModelInferRequest.InferInputTensor, raw: bytes | None) -> Array:
    datatype, shape = tensor.datatype, list(tensor.shape)  # each access to a message makes an object
    check_parameters(name, parameters_of(tensor.parameters))
    check_form(name, datatype, shape)
    if raw is None:
        return _from_contents(name, datatype, shape, tensor.contents)
    if tensor.HasField("contents"):
        raise MalformedError(f"input '{name[:80]}' has both contents and raw_input_contents")
    return from_binary(name, datatype, shape, memoryview(raw))


def _decode_outputs(message: pb.ModelInferRequest, faults: Faults) -> tuple[str, ...] | None:
    """Return the names of the requested outputs, or None."""
    if not message.outputs:
        return None
    for output in message.outputs:
        with faults:
            check_parameters(output.name, parameters_of(output.parameters))
    return tuple(output.name for output in message.outputs)


def _from_contents(name: str, datatype: str, shape: list[int], contents: pb.InferTensorContents) -> Array:
    """Convert typed values → an array.

    Raises:
        InvalidInputError: if they have another datatype, are out of its range, or their number is wrong.
    """
    place = _CONTENTS.get(datatype)
    if place is None:
        raise InvalidInputError(
            f"input '{name[:80]}': {datatype} cannot have typed contents: send raw_input_contents"
        )
    for filled, _ in contents.ListFields():
        if filled.name != place:
            raise InvalidInputError(f"input '{name[:80]}' is {datatype} and takes {place}, not {filled.name}")
    values, dtype = getattr(contents, place), DTYPES[datatype]
    if len(values) != math.prod(shape):
        raise InvalidInputError(
            f"input '{name[:80]}' has {len(values)} values, but its shape {shape} holds {math.prod(shape)}"
        )
    wide = np.fromiter(values, _WIDE.get(place, dtype), len(values))
    narrow = wide.astype(dtype, copy=False)
    if place in _WIDE and (wrong := np.flatnonzero(narrow != wide)).size:
        raise InvalidInputError(f"input '{name[:80]}': {wide[wrong[0]]} is outside the range of {datatype}")
    return narrow.reshape(shape)
