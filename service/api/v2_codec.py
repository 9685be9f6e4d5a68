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

from service.api.body import parse_json
from service.api.schemas import InferRequest
from service.errors import InvalidInputError, MalformedError
from service.faults import Faults, from_validation
from service.tensors import DTYPES, Array, Tensors, datatype_of, from_binary, from_json, to_binary, to_json

LENGTH_HEADER = "Inference-Header-Content-Length"
# What numpy can shape at all; how much really comes is bounded by the body.
_MAX_RANK = 32
_MAX_SIZE = 1 << 48
_SHARED_MEMORY = "shared_memory_region"
_SIZES = {int}
_LONGEST_KEPT = 2048  # bytes of JSON before binary tensors
_MOST_KEPT = 256

Message = dict[str, Any]  # as it was parsed
_NO_PARAMETERS: Message = {}
_NO_OUTPUTS: list[Message] = []


@dataclass(frozen=True)
class Request:
    """Decoded. `outputs` None asks for all, `explainer` and `reference_set` None for the default.

    Attributes:
        inputs: those that are tensors; `faults` are of the others.
    """

    id: str
    inputs: Tensors
    faults: Faults
    outputs: tuple[str, ...] | None
    binary_by_default: bool
    binary: Mapping[str, bool]
    timeout_s: float | None
    explainer: str | None = None
    reference_set: str | None = None

    def wants_binary(self, output: str) -> bool:
        return self.binary.get(output, self.binary_by_default)


def decode_request(body: bytes | bytearray, header_length: str | None) -> Request:
    """Reads a request. An input that does not fit its own shape or datatype is among its faults.

    Raises:
        MalformedError: not JSON, or not a request of this protocol.
        InvalidInputError: a feature is not supported.
    """
    end = _header_end(body, header_length)
    view = memoryview(body)
    message = _read(view) if header_length is None else _read_kept(bytes(view[:end]))
    inputs, outputs = message["inputs"], message.get("outputs", _NO_OUTPUTS)
    parameters = message.get("parameters", _NO_PARAMETERS)
    faults = Faults()
    return Request(
        id=message.get("id", ""),
        inputs=_decode_inputs(inputs, view[end:], faults),
        faults=faults,
        outputs=tuple(output["name"] for output in outputs) or None,
        binary_by_default=parameters.get("binary_data_output") is True,
        binary={
            output["name"]: output["parameters"]["binary_data"] is True
            for output in outputs
            if "binary_data" in output.get("parameters", _NO_PARAMETERS)
        },
        timeout_s=timeout_of(parameters.get("timeout")),
        explainer=name_of(parameters, "explainer"),
        reference_set=name_of(parameters, "reference_set"),
    )


def _read(text: bytes | memoryview) -> Message:
    """Raises what `decode_request` raises."""
    message, faults = _checked(parse_json(text)), Faults()
    for tensor in (*message["inputs"], *message.get("outputs", _NO_OUTPUTS)):
        if "parameters" in tensor:
            with faults:
                check_parameters(tensor["name"], tensor["parameters"])
    faults.tell()
    return message


_kept: dict[bytes, Message] = {}  # whoever has one from here does not change it


def _read_kept(text: bytes) -> Message:
    """`_read`, once for all requests that begin with the same bytes: clients write them so before tensors."""
    message = _kept.get(text)
    if message is None:
        message = _read(text)
        if len(text) <= _LONGEST_KEPT and _is_of_many(message):
            if len(_kept) >= _MOST_KEPT:
                _kept.clear()
            _kept[text] = message
    return message


def _is_of_many(message: Message) -> bool:
    """Whether there is nothing of one request alone in it, values least of all."""
    return not message.get("id") and not any("data" in tensor for tensor in message["inputs"])


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


def note_twice(name: str, faults: Faults) -> None:
    """Notes an input of a name that is known already."""
    faults.note(f"input '{name[:80]}' is given twice", name)


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


def is_request(message: Any) -> bool:
    """Whether it is an `InferRequest` beyond doubt: at a glance, where pydantic makes objects of it all."""
    return (
        type(message) is dict
        and type(message.get("id", "")) is str
        and type(message.get("parameters", _NO_PARAMETERS)) is dict
        and type(inputs := message.get("inputs")) is list
        and all(map(_is_input, inputs))
        and type(outputs := message.get("outputs", _NO_OUTPUTS)) is list
        and all(map(_is_named, outputs))
    )


def _is_input(tensor: Any) -> bool:
    return (
        _is_named(tensor)
        and type(tensor.get("datatype")) is str
        and type(shape := tensor.get("shape")) is list
        and set(map(type, shape)) <= _SIZES
    )


def _is_named(tensor: Any) -> bool:
    return (
        type(tensor) is dict
        and type(tensor.get("name")) is str
        and type(tensor.get("parameters", _NO_PARAMETERS)) is dict
    )


def _checked(message: Any) -> Message:
    """The message, if it is an `InferRequest`; what is wrong with another one is pydantic's to say."""
    if is_request(message):
        known: Message = message
        return known
    try:
        return InferRequest.model_validate(message).model_dump()
    except ValidationError as error:
        raise from_validation(error, MalformedError, "the body") from error


def _decode_inputs(tensors: Sequence[Message], raw: memoryview, faults: Faults) -> Tensors:
    """Raises MalformedError where it cannot be told which bytes are whose."""
    arrays: Tensors = {}
    at = 0
    for tensor in tensors:
        name = tensor["name"]
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


def _decode(tensor: Message, raw: memoryview | None) -> Array:
    name, datatype, shape = tensor["name"], tensor["datatype"], tensor["shape"]
    check_form(name, datatype, shape)
    if raw is None:
        return from_json(name, datatype, shape, tensor.get("data"))
    return from_binary(name, datatype, shape, raw)


def _binary_size(tensor: Message, raw: memoryview, faults: Faults) -> int | None:
    """Bytes of the tensor, which lead `raw`; None where its data is in the JSON."""
    size = tensor.get("parameters", _NO_PARAMETERS).get("binary_data_size")
    if size is None:
        return None
    name = tensor["name"][:80]
    if tensor.get("data") is not None:
        faults.end(MalformedError(f"input '{name}' has both data and binary_data_size"))
    if type(size) is not int or size < 0:
        faults.end(MalformedError(f"input '{name}': binary_data_size must be a number of bytes"))
    if size > len(raw):
        left = len(raw)
        faults.end(MalformedError(f"input '{name}' announces {size} bytes, but {left} are left in the body"))
    return size
