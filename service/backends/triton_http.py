"""Inference by Triton's HTTP end, with binary tensors: a call takes 0.6 of the time of one by gRPC.

What Triton refuses is told as by gRPC, with its status and text, so that one translation fits both.
"""

import asyncio
import http
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata

from service.backends.http_client import HttpClient
from service.backends.triton_messages import tensor_of
from service.errors import ModelFailedError
from service.repository.entry import Entry
from service.security.tls import ClientTls
from service.tensors import Tensors, datatype_of, to_binary

_PROBE_S = 5.0  # a health question that takes longer counts as a no
_HEADER_LENGTH = "inference-header-content-length"
_CODES = {
    400: StatusCode.INVALID_ARGUMENT,
    404: StatusCode.NOT_FOUND,
    429: StatusCode.RESOURCE_EXHAUSTED,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}


class HttpInference:
    """Connections to Triton's HTTP end, as many as are needed at one time."""

    def __init__(self, address: str, tls: ClientTls | None) -> None:
        self._client = HttpClient(address, None if tls is None else _context(tls))

    async def infer(
        self,
        entry: Entry,
        inputs: Tensors,
        outputs: Sequence[str],
        timeout_s: float | None,
        headers: Mapping[str, str],
    ) -> Tensors:
        """As `TritonConnection.infer`; `timeout_s` is Triton's limit, its caller leaves when it will."""
        body, length = _request(inputs, outputs, timeout_s)
        path = f"/v2/models/{entry.model}/versions/{entry.version}/infer"
        try:
            reply = await self._client.ask("POST", path, {**headers, _HEADER_LENGTH: str(length)}, body)
        except OSError as error:
            raise _fault(StatusCode.UNAVAILABLE, f"connection to Triton: {error}") from error
        if reply.status != http.HTTPStatus.OK:
            raise _fault(_CODES.get(reply.status, StatusCode.INTERNAL), _error_of(reply.body))
        return _tensors(entry, outputs, reply.body, reply.headers.get(_HEADER_LENGTH.encode()))

    async def is_ready(self) -> bool:
        """Whether a Triton answers here."""
        try:
            async with asyncio.timeout(_PROBE_S):
                return (await self._client.ask("GET", "/v2/health/ready")).status == http.HTTPStatus.OK
        except OSError:  # TimeoutError is one
            return False

    def close(self) -> None:
        self._client.close()


def _context(tls: ClientTls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.authority)
    if tls.chain is not None:
        context.load_cert_chain(tls.chain, tls.key)
    return context


def _request(inputs: Tensors, outputs: Sequence[str], timeout_s: float | None) -> tuple[bytes, int]:
    """The body, and the length of the JSON that leads it."""
    raw = [to_binary(array) for array in inputs.values()]
    head: dict[str, Any] = {
        "inputs": [
            {
                "name": name,
                "datatype": datatype_of(array),
                "shape": array.shape,
                "parameters": {"binary_data_size": len(data)},
            }
            for (name, array), data in zip(inputs.items(), raw, strict=True)
        ],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in outputs],
    }
    if timeout_s is not None:
        head["parameters"] = {"timeout": max(int(timeout_s * 1e6), 1)}
    text = orjson.dumps(head)
    return b"".join([text, *raw]), len(text)


def _tensors(entry: Entry, outputs: Sequence[str], answer: bytes, length: bytes | None) -> Tensors:
    """Raises ModelFailedError where an output is missing, or the answer is none."""
    try:
        given = _parts(memoryview(answer), len(answer) if length is None else int(length))
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFailedError(f"Triton's answer of '{entry.name}' cannot be read") from error
    missing = [name for name in outputs if name not in given]
    if missing:
        raise ModelFailedError(f"Triton did not return output '{missing[0]}' of '{entry.name}'")
    return {name: tensor_of(entry, name, *given[name]) for name in outputs}


def _parts(answer: memoryview, end: int) -> dict[str, tuple[str, list[int], memoryview]]:
    """Datatype, shape and bytes of each output. Raises ValueError, KeyError, TypeError."""
    given = {}
    for output in orjson.loads(answer[:end])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        given[output["name"]] = (output["datatype"], output["shape"], answer[end : end + size])
        end += size
    return given


def _error_of(answer: bytes) -> str:
    """What Triton says, from `{"error": …}`; what is none stays as it is."""
    try:
        return str(orjson.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return answer[:500].decode(errors="replace")


def _fault(code: StatusCode, text: str) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), details=text)
