"""An answer leaves in one piece, unless its application sends it in several."""

import asyncio
from typing import Any

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from service.http_protocol import BoundedHttp

HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
STREAMED = {"type": "http.response.start", "status": 200, "headers": []}


class Written(asyncio.Transport):
    """What the protocol writes, a call in each item."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.sent.append(bytes(data))

    def writelines(self, data: Any) -> None:
        self.write(b"".join(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def written(request: bytes, *messages: Message, reads: bool = False) -> Written:
    """What an app that sends `messages` answers to each of the requests in `request`."""

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        if reads:
            await receive()
        for message in messages:
            await send(message)

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    transport = Written()
    protocol = BoundedHttp(config, state, {}, asyncio.get_running_loop())
    protocol.connection_made(transport)
    protocol.data_received(request)
    while state.tasks:
        await asyncio.sleep(0)
    protocol.connection_lost(ConnectionResetError())  # closes nothing by itself
    return transport


def request(method: str = "GET", **headers: str) -> bytes:
    lines = [f"{method} / HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


def body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def test_head_and_body_are_one_write() -> None:
    (only,) = (await written(request(), HEAD, body(b"ok"))).sent
    assert only.startswith(b"HTTP/1.1 200 OK\r\n")
    assert only.endswith(b"\r\n\r\nok")


async def test_each_answer_of_a_connection_is() -> None:
    sent = (await written(request() * 3, HEAD, body(b"ok"))).sent
    assert len(sent) == 3
    assert all(each.startswith(b"HTTP/1.1 200 OK\r\n") and each.endswith(b"\r\n\r\nok") for each in sent)


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_an_answer_without_a_body(connection: str) -> None:
    answer = await written(request("HEAD", connection=connection), HEAD, body(b""))
    assert [each.startswith(b"HTTP/1.1 200 OK\r\n") for each in answer.sent] == [True]
    assert answer.closed == (connection == "close")


async def test_pieces_go_out_as_they_come() -> None:
    first, second, last = (
        await written(request(), STREAMED, body(b"ab", more=True), body(b"cd", more=True), body(b""))
    ).sent
    assert first.endswith(b"\r\n\r\n2\r\nab\r\n")
    assert (second, last) == (b"2\r\ncd\r\n", b"0\r\n\r\n")


async def test_a_caller_that_waits_to_be_asked_for_its_body_is_asked_at_once() -> None:
    asked = request("POST", expect="100-continue", **{"content-length": "2"}) + b"hi"
    first, second = (await written(asked, HEAD, body(b"ok"), reads=True)).sent
    assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert second.endswith(b"\r\n\r\nok")


async def test_an_answer_that_breaks_off_shows_that_it_began() -> None:
    answer = await written(request(), HEAD)
    (only,) = answer.sent
    assert only.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.closed
