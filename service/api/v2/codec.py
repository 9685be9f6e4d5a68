"""Messages of the Open Inference Protocol over HTTP ↔ tensors, with the binary tensor extension.

A body is JSON, or JSON followed by raw tensors; then the header `Inference-Header-Content-Length`
says where the JSON ends.
"""

from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import ValidationError

from service.api.schemas import InferRequest, InputTensor, RequestedOutput
from service.errors import InvalidInputError, MalformedError
from service.faults import Faults, from_validation
from service.inference.request import (
    Answer,
    InferenceRequest,
    check_form,
    check_parameters,
    name_of,
    note_twice,
    parse_json,
    timeout_of,
)
from service.tensors import Array, Tensors, datatype_of, from_binary, from_json, to_binary, to_json

LENGTH_HEADER = "Inference-Header-Content-Length"


def decode_request(
    body: bytes | bytearray, header_length: str | None, most_json_bytes: int
) -> InferenceRequest:
    """Reads a request. An input that does not fit its own shape or datatype is among its faults.

    Raises:
        MalformedError: not JSON, or not a request of this protocol.
        TooLargeError: as `parse_json`.
        InvalidInputError: a feature is not supported.
    """
    view = memoryview(body)
    end = _header_end(body, header_length)
    try:
        message = InferRequest.model_validate(parse_json(body, most_json_bytes, end))
    except ValidationError as error:
        raise from_validation(error, MalformedError, "the body") from error
    parameters, faults = message.parameters, Faults()
    return InferenceRequest(
        id=message.id,
        inputs=_decode_inputs(message.inputs, view[end:], faults),
        faults=faults,
        outputs=_decode_outputs(message.outputs, faults),
        binary_by_default=parameters.get("binary_data_output") is True,
        binary={
            output.name: output.parameters["binary_data"] is True
            for output in message.outputs
            if "binary_data" in output.parameters
        },
        timeout_s=timeout_of(parameters.get("timeout")),
        explainer=name_of(parameters, "explainer"),
        reference_set=name_of(parameters, "reference_set"),
    )


def encode_answer(answer: Answer) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON part if raw tensors follow it.

    Raises:
        InvalidInputError: an output is not UTF-8 and was not asked for in binary.
    """
    outputs, raw = [], []
    for name, array in answer.tensors.items():
        output: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": array.shape}
        if answer.request.wants_binary(name):
            raw.append(to_binary(array))
            output["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            output["data"] = to_json(name, array.reshape(-1))
        outputs.append(output)
    message: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version}
    if identity := answer.identity:
        message["parameters"] = identity
    if answer.request.id:
        message["id"] = answer.request.id
    text = orjson.dumps({**message, "outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join([text, *raw]), len(text)) if raw else (text, None)


def _header_end(body: bytes | bytearray, header_length: str | None) -> int:
    if header_length is None:
        return len(body)
    if not (header_length.isascii() and header_length.isdecimal() and 0 < int(header_length) <= len(body)):
        raise MalformedError(
            f"{LENGTH_HEADER} is '{header_length[:20]}', but must be the length of the JSON that leads "
            f"the body of {len(body)} bytes"
        )
    return int(header_length)


def _decode_outputs(outputs: Sequence[RequestedOutput], faults: Faults) -> tuple[str, ...] | None:
    """The names of those that are asked for; None where none is named."""
    for output in outputs:
        with faults:
            check_parameters(output.name, output.parameters)
    return tuple(output.name for output in outputs) or None


def _decode_inputs(tensors: Sequence[InputTensor], raw: memoryview, faults: Faults) -> Tensors:
    """Raises MalformedError where it cannot be told which bytes are whose."""
    arrays: Tensors = {}
    at = 0
    for tensor in tensors:
        name = tensor.name
        if name in arrays:
            note_twice(name, faults)
        size = _binary_size(tensor, raw[at:], faults)
        own = None if size is None else raw[at : at + size]
        at += size or 0
        try:
            arrays[name] = _decode(tensor, own)
        except (InvalidInputError, MalformedError) as fault:
            faults.add(fault, name)
    if at != len(raw):
        faults.end(MalformedError(f"{len(raw) - at} bytes follow the JSON that belong to no input"))
    return arrays


def _decode(tensor: InputTensor, raw: memoryview | None) -> Array:
    check_parameters(tensor.name, tensor.parameters)
    check_form(tensor.name, tensor.datatype, tensor.shape)
    if raw is None:
        return from_json(tensor.name, tensor.datatype, tensor.shape, tensor.data)
    return from_binary(tensor.name, tensor.datatype, tensor.shape, raw)


def _binary_size(tensor: InputTensor, raw: memoryview, faults: Faults) -> int | None:
    """Bytes of the tensor, which lead `raw`; None where its data is in the JSON."""
    size = tensor.parameters.get("binary_data_size")
    if size is None:
        return None
    name = tensor.name[:80]
    if tensor.data is not None:
        faults.end(MalformedError(f"input '{name}' has both data and binary_data_size"))
    if type(size) is not int or size < 0:
        faults.end(MalformedError(f"input '{name}': binary_data_size must be a number of bytes"))
    if size > len(raw):
        left = len(raw)
        faults.end(MalformedError(f"input '{name}' announces {size} bytes, but {left} are left in the body"))
    return size
