"""Messages of the Open Inference Protocol over HTTP ↔ tensors, with the binary tensor extension.

The checks without an underscore are the protocol's own; `oip_grpc.py` calls them too.

A body is JSON, or JSON followed by raw tensors; then the header `Inference-Header-Content-Length`
says where the JSON ends.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from service.body import parse_json
from service.errors import InvalidInputError, MalformedError
from service.schemas import InferRequest, InputTensor, RequestedOutput
from service.tensors import DTYPES, Array, Tensors, datatype_of, from_binary, from_json, to_binary, to_json

LENGTH_HEADER = "Inference-Header-Content-Length"
# What numpy can shape at all; how much really comes is bounded by the body.
_MAX_RANK = 32
_MAX_SIZE = 1 << 48
_SHARED_MEMORY = "shared_memory_region"


@dataclass(frozen=True)
class Request:
    """Decoded. `outputs` None asks for all, `explainer` and `reference_set` None for the default."""

    id: str
    inputs: Tensors
    outputs: tuple[str, ...] | None
    binary_by_default: bool
    binary: Mapping[str, bool]
    timeout_s: float | None
    explainer: str | None = None
    reference_set: str | None = None

    def wants_binary(self, output: str) -> bool:
        return self.binary.get(output, self.binary_by_default)


def decode_request(body: bytes | bytearray, header_length: str | None) -> Request:
    """Reads a request.

    Raises:
        MalformedError: not JSON, or not a request of this protocol.
        InvalidInputError: a tensor does not fit its own shape or datatype, or a feature is not supported.
    """
    end = _header_end(body, header_length)
    view = memoryview(body)
    message = _validated(parse_json(view[:end]))
    named: list[InputTensor | RequestedOutput] = [*message.inputs, *message.outputs]
    for tensor in named:
        check_parameters(tensor.name, tensor.parameters)
    return Request(
        id=message.id,
        inputs=_decode_inputs(message.inputs, view[end:]),
        outputs=tuple(output.name for output in message.outputs) or None,
        binary_by_default=message.parameters.get("binary_data_output") is True,
        binary={
            output.name: output.parameters["binary_data"] is True
            for output in message.outputs
            if "binary_data" in output.parameters
        },
        timeout_s=timeout_of(message.parameters.get("timeout")),
        explainer=name_of(message.parameters, "explainer"),
        reference_set=name_of(message.parameters, "reference_set"),
    )


def encode_answer(head: dict[str, Any], tensors: Tensors, request: Request) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON part if raw tensors follow it.

    Args:
        head: members that lead the answer: model_name, model_version …

    Raises:
        InvalidInputError: an output is not UTF-8 and was not asked for in binary.
    """
    outputs, raw = [], []
    for name, array in tensors.items():
        output: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": array.shape}
        if request.wants_binary(name):
            raw.append(to_binary(array))
            output["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            output["data"] = to_json(name, array.reshape(-1))
        outputs.append(output)
    if request.id:
        head = {**head, "id": request.id}
    text = orjson.dumps({**head, "outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join([text, *raw]), len(text)) if raw else (text, None)


def check_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    """Raises InvalidInputError where an input or output asks for an extension that is not offered."""
    if _SHARED_MEMORY in parameters:
        raise InvalidInputError(f"'{name[:80]}': shared memory is not offered; send the data itself")
    if parameters.get("classification"):
        raise InvalidInputError(f"output '{name[:80]}': the classification extension is not offered")


def check_form(name: str, datatype: str, shape: Sequence[int]) -> None:
    """Raises InvalidInputError where no tensor can have this datatype and shape."""
    if datatype not in DTYPES:
        raise InvalidInputError(
            f"input '{name[:80]}': datatype '{datatype[:20]}' is none of {', '.join(DTYPES)}"
        )
    if len(shape) > _MAX_RANK:
        raise InvalidInputError(f"input '{name[:80]}': shape {list(shape[:8])} is too large")
    if min(shape, default=0) < 0:
        raise InvalidInputError(f"input '{name[:80]}': shape {list(shape)} has a negative size")
    if math.prod([size or 1 for size in shape]) > _MAX_SIZE:
        raise InvalidInputError(f"input '{name[:80]}': shape {list(shape)} is too large")


def timeout_of(timeout: Any) -> float | None:
    """The request parameter `timeout`, microseconds, in seconds; None and 0 ask for nothing.

    Raises:
        MalformedError: it is no number of microseconds.
    """
    if timeout is None or timeout == 0:
        return None
    if type(timeout) is not int or timeout < 0:
        raise MalformedError("parameters.timeout must be a number of microseconds")
    return timeout / 1e6


def name_of(parameters: Mapping[str, Any], key: str) -> str | None:
    """The name that the request parameter `key` holds; None where there is none.

    Raises:
        MalformedError: it is no name.
    """
    name = parameters.get(key)
    if name is not None and not (isinstance(name, str) and name):
        raise MalformedError(f"{key} must be a name")
    return name


def _header_end(body: bytes | bytearray, header_length: str | None) -> int:
    if header_length is None:
        return len(body)
    if not (header_length.isascii() and header_length.isdecimal() and 0 < int(header_length) <= len(body)):
        raise MalformedError(
            f"{LENGTH_HEADER} is '{header_length[:20]}', but must be the length of the JSON that leads "
            f"the body of {len(body)} bytes"
        )
    return int(header_length)


def _validated(message: Any) -> InferRequest:
    try:
        return InferRequest.model_validate(message)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise MalformedError(f"{where}: {first['msg']}") from error


def _decode_inputs(tensors: list[InputTensor], raw: memoryview) -> Tensors:
    arrays: Tensors = {}
    at = 0
    for tensor in tensors:
        name = tensor.name
        if name in arrays:
            raise InvalidInputError(f"input '{name[:80]}' is given twice")
        check_form(name, tensor.datatype, tensor.shape)
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            arrays[name] = from_json(name, tensor.datatype, tensor.shape, tensor.data)
        else:
            arrays[name] = _decode_binary(tensor, size, raw[at:])
            at += size
    if at != len(raw):
        raise MalformedError(f"{len(raw) - at} bytes follow the JSON that belong to no input")
    return arrays


def _decode_binary(tensor: InputTensor, size: Any, raw: memoryview) -> Array:
    name = tensor.name[:80]
    if tensor.data is not None:
        raise MalformedError(f"input '{name}' has both data and binary_data_size")
    if type(size) is not int or size < 0:
        raise MalformedError(f"input '{name}': binary_data_size must be a number of bytes")
    if size > len(raw):
        raise MalformedError(f"input '{name}' announces {size} bytes, but {len(raw)} are left in the body")
    return from_binary(tensor.name, tensor.datatype, tensor.shape, raw[:size])
