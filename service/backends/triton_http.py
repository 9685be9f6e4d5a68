"""Inference by Triton's HTTP end, with binary tensors: a call takes a third of the time of one by `grpc.aio`.

What Triton refuses is told as by gRPC, with its status and text, so that one translation fits both.
"""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import orjson
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata

from service.backends.triton_messages import tensor_of
from service.entries import Entry
from service.errors import ModelFailedError
from service.tensors import Tensors, datatype_of, to_binary
from service.tls import ClientTls

_PROBE_S = 5.0  # a health question that takes longer counts as a no
_HEADER_LENGTH = "Inference-Header-Content-Length"
_CODES = {
    400: StatusCode.INVALID_ARGUMENT,
    404: StatusCode.NOT_FOUND,
    429: StatusCode.RESOURCE_EXHAUSTED,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}


class HttpInference:
    """Connections to Triton's HTTP end, as many as are needed at one time. To be made on the event loop."""

    def __init__(self, address: str, tls: ClientTls | None) -> None:
        base = f"{'http' if tls is None else 'https'}://{address}/v2"
        self._models, self._ready = f"{base}/models", f"{base}/health/ready"
        connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else _context(tls))
        plain = {"Accept-Encoding": "identity"}  # compressing tensors takes longer than sending them
        self._session = aiohttp.ClientSession(connector=connector, headers=plain)

    async def infer(
        self,
        entry: Entry,
        inputs: Tensors,
        outputs: Sequence[str],
        timeout_s: float | None,
        headers: Mapping[str, str],
    ) -> Tensors:
        """As `TritonConnection.infer`."""
        body, length = _request(inputs, outputs, timeout_s)
        try:
            async with self._session.post(
                f"{self._models}/{entry.model}/versions/{entry.version}/infer",
                data=body,
                headers={**headers, _HEADER_LENGTH: str(length), "Content-Type": "application/octet-stream"},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                answer = await response.read()
        except TimeoutError as error:
            raise _fault(StatusCode.DEADLINE_EXCEEDED, "Triton gave no answer in time") from error
        except aiohttp.ClientError as error:
            raise _fault(StatusCode.UNAVAILABLE, f"connection to Triton: {error}") from error
        if response.status != 200:
            raise _fault(_CODES.get(response.status, StatusCode.INTERNAL), _error_of(answer))
        return _tensors(entry, outputs, answer, response.headers.get(_HEADER_LENGTH))

    async def is_ready(self) -> bool:
        """Whether a Triton answers here."""
        try:
            limit = aiohttp.ClientTimeout(total=_PROBE_S)
            async with self._session.get(self._ready, timeout=limit) as response:
                return response.status == 200
        except (TimeoutError, aiohttp.ClientError):
            return False

    async def close(self) -> None:
        await self._session.close()


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


def _tensors(entry: Entry, outputs: Sequence[str], answer: bytes, length: str | None) -> Tensors:
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
