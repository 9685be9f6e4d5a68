"""Tensors ↔ Triton's own messages. tritonclient's classes make an object of each tensor; these do not."""

import functools
from collections.abc import Sequence

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from service.errors import InvalidInputError, ModelFailedError
from service.repository.entry import Entry
from service.tensors import DTYPES, Array, Tensors, datatype_of, from_binary, to_binary


def to_request(entry: Entry, inputs: Tensors, outputs: Sequence[str], timeout_s: float | None) -> bytes:
    """A serialised ModelInferRequest; `timeout_s` bounds the wait in Triton's queue."""
    request = pb.ModelInferRequest(
        model_name=entry.model,
        model_version=entry.version,
        outputs=_requested(tuple(outputs)),
        raw_input_contents=[to_binary(array) for array in inputs.values()],
    )
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
    if timeout_s is not None:
        request.parameters["timeout"].int64_param = max(int(timeout_s * 1e6), 1)
    body: bytes = request.SerializeToString()
    return body


def from_answer(entry: Entry, outputs: Sequence[str], body: bytes) -> Tensors:
    """The `outputs` of a serialised ModelInferResponse, whose tensors are raw.

    Raises:
        ModelFailedError: it lacks one, or holds what no tensor is.
    """
    try:
        message = pb.ModelInferResponse.FromString(body)
    except DecodeError as error:
        raise ModelFailedError(f"Triton's answer of '{entry.name}' cannot be read") from error
    raw = message.raw_output_contents
    given = {output.name: (output, data) for output, data in zip(message.outputs, raw, strict=False)}
    missing = [name for name in outputs if name not in given]
    if missing:
        raise ModelFailedError(f"Triton did not return output '{missing[0]}' of '{entry.name}'")
    return {name: _tensor(entry, *given[name]) for name in outputs}


def tensor_of(entry: Entry, name: str, datatype: str, shape: list[int], raw: memoryview) -> Array:
    """One output of an answer. Raises ModelFailedError where its bytes are no such tensor."""
    if datatype not in DTYPES:
        raise ModelFailedError(f"Triton gives output '{name}' of '{entry.name}' as {datatype}")
    try:
        return from_binary(name, datatype, shape, raw)
    except InvalidInputError as error:  # it is the answer that does not fit, not the caller's input
        raise ModelFailedError(
            f"Triton's output '{name}' of '{entry.name}' does not fill its shape"
        ) from error


def _tensor(entry: Entry, output: pb.ModelInferResponse.InferOutputTensor, raw: bytes) -> Array:
    return tensor_of(entry, output.name, output.datatype, list(output.shape), memoryview(raw))


@functools.lru_cache(maxsize=256)
def _requested(names: tuple[str, ...]) -> list[pb.ModelInferRequest.InferRequestedOutputTensor]:
    return [pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in names]
