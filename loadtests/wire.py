"""HTTP/1.1 in as few microseconds as Python allows: the client must not be what is measured."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_LENGTH = b"\r\ncontent-length:"


@dataclass(frozen=True)
class Reply:
    """An answer; `took_s` from when its request was written."""

    status: int
    body: bytes
    took_s: float


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time. Answers must have a Content-Length."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answered: Answered | None = None
        self._asked_s = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self._buffer[:head_end].lower()
        at = head.index(_LENGTH) + len(_LENGTH)
        body_end = head_end + 4 + int(head[at : head.find(b"\r", at) if b"\r" in head[at:] else None])
        if len(self._buffer) < body_end or self._answered is None:
            return
        took_s = time.perf_counter() - self._asked_s
        reply = Reply(int(head[9:12]), self._buffer[head_end + 4 : body_end], took_s)
        self._buffer = self._buffer[body_end:]
        self._tell(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell(exc or ConnectionResetError("the server closed the connection"))

    def _tell(self, reply: "Reply | Exception") -> None:
        if self._answered is not None:
            answered, self._answered = self._answered, None
            answered(self, reply)

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def send(self, request: bytes, answered: "Answered") -> None:
        """`answered` is called with this connection and the reply, or with what broke it. No task, no future.

        Raises:
            ConnectionResetError: it is closed; `answered` is not called.
        """
        if self._transport is None or self.is_closed:
            raise ConnectionResetError("the connection is closed")
        self._answered = answered
        self._asked_s = time.perf_counter()
        self._transport.write(request)

    async def ask(self, request: bytes) -> Reply:
        """Raises OSError where the connection breaks."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answered(_: Connection, told: Reply | Exception) -> None:
            if reply.done():
                return  # whoever asked has left
            if isinstance(told, Exception):
                reply.set_exception(told)
            else:
                reply.set_result(told)

        self.send(request, answered)
        return await reply

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


Answered = Callable[[Connection, Reply | Exception], None]


async def connect(address: str) -> Connection:
    """`address` is host:port."""
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
    return connection


def post(address: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """The bytes of a request, made once and sent many times."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {address}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def json_request(
    address: str, path: str, inputs: dict[str, np.ndarray], headers: dict[str, str] | None = None
) -> bytes:
    """An OIP request with FP32 tensors as JSON."""
    body = json.dumps(
        {"inputs": [_described(name, x) | {"data": x.ravel().tolist()} for name, x in inputs.items()]}
    )
    return post(address, path, body.encode(), {"Content-Type": "application/json", **(headers or {})})


def binary_request(address: str, path: str, inputs: dict[str, np.ndarray]) -> bytes:
    """An OIP request with FP32 tensors after its JSON, which asks for such an answer."""
    tensors = [
        _described(name, x) | {"parameters": {"binary_data_size": x.nbytes}} for name, x in inputs.items()
    ]
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(x.tobytes() for x in inputs.values())
    return post(
        address,
        path,
        body,
        {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))},
    )


def _described(name: str, x: np.ndarray) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": list(x.shape)}
