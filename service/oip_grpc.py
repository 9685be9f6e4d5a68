"""Messages of the Open Inference Protocol over gRPC ↔ tensors.

A request's tensors come as `raw_input_contents`, one for each input, or typed in each input's `contents`.
Answers are always raw, as Triton's are.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import service_pb2 as pb

from service.errors import InvalidInputError, MalformedError
from service.oip import Request, check_form, check_parameters, name_of, timeout_of
from service.tensors import Array, Tensors, datatype_of, from_binary, from_values, to_binary

# Where the protocol puts the values of a datatype. FP16 has no place: it must come raw.
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


def parse(kind: type[Message], body: bytes) -> Any:
    """A message of `kind`. Raises MalformedError."""
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise MalformedError(f"the message is no {kind.DESCRIPTOR.name}") from error


def decode_request(message: pb.ModelInferRequest) -> Request:
    """Reads a request.

    Raises:
        MalformedError: not a request of this protocol.
        InvalidInputError: a tensor does not fit its own shape or datatype, or a feature is not supported.
    """
    for tensor in (*message.inputs, *message.outputs):
        check_parameters(tensor.name, _plain(tensor.parameters))
    parameters = _plain(message.parameters)
    return Request(
        id=message.id,
        inputs=_decode_inputs(message),
        outputs=tuple(output.name for output in message.outputs) or None,
        binary_by_default=True,
        binary={},
        timeout_s=timeout_of(parameters.get("timeout")),
        explainer=name_of(parameters, "explainer"),
        reference_set=name_of(parameters, "reference_set"),
    )


def encode_answer(head: Mapping[str, Any], tensors: Tensors) -> pb.ModelInferResponse:
    """The answer; `head` holds its model_name, model_version and id."""
    answer = pb.ModelInferResponse(**head)
    for name, array in tensors.items():
        answer.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        answer.raw_output_contents.append(to_binary(array))
    return answer


def _plain(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """Values in place of messages; None for a parameter that was given none."""
    if not parameters:
        return {}
    chosen = {name: each.WhichOneof("parameter_choice") for name, each in parameters.items()}
    return {
        name: None if choice is None else getattr(parameters[name], choice) for name, choice in chosen.items()
    }


def _decode_inputs(message: pb.ModelInferRequest) -> Tensors:
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise MalformedError(
            f"{len(raw)} raw_input_contents for {len(message.inputs)} inputs: send one for each, or none"
        )
    arrays: Tensors = {}
    for i, tensor in enumerate(message.inputs):
        name = tensor.name
        if name in arrays:
            raise InvalidInputError(f"input '{name[:80]}' is given twice")
        check_form(name, tensor.datatype, tensor.shape)
        if not raw:
            arrays[name] = _from_contents(tensor)
        elif tensor.HasField("contents"):
            raise MalformedError(f"input '{name[:80]}' has both contents and raw_input_contents")
        else:
            arrays[name] = from_binary(name, tensor.datatype, tensor.shape, memoryview(raw[i]))
    return arrays


def _from_contents(tensor: pb.ModelInferRequest.InferInputTensor) -> Array:
    """Typed values → an array.

    Raises:
        InvalidInputError: they are of another datatype, out of its range, too many or too few.
    """
    name, shape = tensor.name, list(tensor.shape)
    place = _CONTENTS.get(tensor.datatype)
    if place is None:
        raise InvalidInputError(
            f"input '{name[:80]}': {tensor.datatype} has no typed contents: send raw_input_contents"
        )
    for filled, _ in tensor.contents.ListFields():
        if filled.name != place:
            raise InvalidInputError(
                f"input '{name[:80]}' is {tensor.datatype} and takes {place}, not {filled.name}"
            )
    values = list(getattr(tensor.contents, place))
    if tensor.datatype != "BYTES":
        return from_values(name, tensor.datatype, shape, values)
    array = np.array(values, dtype=np.object_)
    if array.size != np.prod(shape, dtype=np.int64):
        raise InvalidInputError(
            f"input '{name[:80]}' has {array.size} values, but its shape {shape} does not hold as many"
        )
    return array.reshape(shape)
