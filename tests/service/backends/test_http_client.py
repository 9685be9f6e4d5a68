"""The client to servers behind the gateway, against servers that behave as badly as some do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from service.backends.http_client import HttpClient

OK = b"HTTP/1.1 200 OK\r\nX-Kind: a\r\nContent-Length: 2\r\n\r\nok"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Gives to each request the next of its answers, and closes where that is None.

    Attributes:
        connections: how many were made.
        requests: what was asked.
    """

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()


@contextlib.asynccontextmanager
async def client_of(server: Serve) -> AsyncIterator[HttpClient]:
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        with contextlib.suppress(ConnectionError):
            await server(reader, writer)
            writer.close()
            await writer.wait_closed()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    client = HttpClient(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    try:
        yield client
    finally:
        client.close()
        listening.close()
        await asyncio.gather(*handlers)


async def test_one_connection_serves_one_after_the_other() -> None:
    server = Server(OK, OK)
    async with client_of(server) as client:
        for body in (b"first", b""):
            reply = await client.ask("POST", "/a/b", {"X-Id": "7"}, body)
            assert (reply.status, reply.body, reply.headers[b"x-kind"]) == (200, b"ok", b"a")
    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /a/b HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.requests[0].endswith(b"\r\nContent-Length: 5\r\nX-Id: 7\r\n\r\nfirst")


async def test_as_many_connections_as_requests_at_one_time() -> None:
    server = Server(*[OK] * 12)
    async with client_of(server) as client:
        for _ in range(2):
            replies = await asyncio.gather(*(client.ask("GET", "/") for _ in range(6)))
            assert [reply.body for reply in replies] == [b"ok"] * 6
    assert server.connections == 6


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n3\r\n, I\r\n0\r\n\r\n", b"ok, I"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    ],
)
async def test_whole_answers(answer: bytes, body: bytes) -> None:
    async with client_of(Server(answer)) as client:
        reply = await client.ask("GET", "/")
        assert (reply.status, reply.body) == (int(answer[9:12]), body)


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    closing = OK.replace(b"X-Kind: a", b"Connection: close")
    server = Server(closing, OK)
    async with client_of(server) as client:
        assert [(await client.ask("GET", "/")).status for _ in range(2)] == [200, 200]
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer", [None, b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]
)
async def test_what_is_no_whole_answer_is_an_error(answer: bytes | None) -> None:
    server = Server(*([] if answer is None else [answer, None]))

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.answers = server.answers[:1]
        await server(reader, writer)

    async with client_of(once) as client:
        with pytest.raises(OSError, match=r"closed it|reset by peer|does not speak HTTP"):
            await client.ask("GET", "/")


async def test_what_nobody_asked_for_closes_the_connection() -> None:
    server = Server(OK + OK, OK)
    async with client_of(server) as client:
        assert (await client.ask("GET", "/")).body == b"ok"
        await asyncio.sleep(0.01)
        assert (await client.ask("GET", "/")).body == b"ok"


async def test_where_nobody_listens() -> None:
    with pytest.raises(OSError, match="Connect"):
        await HttpClient("127.0.0.1:1").ask("GET", "/")


async def test_who_is_cancelled_takes_the_connection_along() -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()  # until the client leaves
        left.set()

    async with client_of(silent) as client:
        asking = asyncio.create_task(client.ask("GET", "/"))
        await asyncio.wait_for(asked.wait(), 30)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(left.wait(), 30)
