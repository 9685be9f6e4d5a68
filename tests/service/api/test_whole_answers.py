"""An answer leaves in one piece, unless its application sends it in several."""

import pytest
from starlette.types import Message, Receive, Scope, Send

from tests.service.connection import Connections, Written, request

HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
STREAMED = {"type": "http.response.start", "status": 200, "headers": []}


async def written(asked: bytes, *messages: Message, reads: bool = False) -> Written:
    """What an app that sends `messages` answers to each of the requests in `asked`."""

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        if reads:
            await receive()
        for message in messages:
            await send(message)

    connections = Connections(app)
    protocol, transport = connections.open()
    protocol.data_received(asked)
    await connections.settled()
    protocol.connection_lost(ConnectionResetError())  # closes nothing by itself
    return transport


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
