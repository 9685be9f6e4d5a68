"""What comes too slowly, too large or never: refused, in bounded memory, over real connections."""

import asyncio
import contextlib
import select
import socket
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import psutil
import pytest
from starlette.types import Receive, Scope, Send

from rationale_service.app import create_app, create_backend
from rationale_service.protocols.rest import server as http_server
from rationale_service.protocols.rest.endpoint import LENGTH_HEADER
from rationale_service.protocols.rest.server import MAX_HEADER_BYTES, uvicorn_config
from rationale_service.settings import Settings
from tests.service import patient
from tests.service.conftest import gateway, serving
from tests.service.own_time import TICK_S
from tests.service.patient import SECONDS

MEBIBYTE = 1 << 20
GOOD = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
HEADERS_S = 0.5
HEAD = b"POST /v2/models/score/infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def strict(repository: Path) -> Iterator[str]:
    """A gateway with small limits: a body of 1 MiB, 1 s for it, 0.5 s for headers."""
    settings = Settings(repository=repository, max_body_bytes=MEBIBYTE, request_timeout_s=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_server, "HEADER_TIMEOUT_S", HEADERS_S)
        app = create_app(settings, create_backend(settings))
        with serving(app, http=uvicorn_config(app).http) as address:
            yield address


@contextlib.contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        yield connection


def read_to_end(connection: socket.socket) -> bytes:
    """Everything until the server closes; an attack that it cut off may be a reset."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received


def pour(connection: socket.socket, piece: bytes, most: int) -> int:
    """Sends `piece` until the server closes, at most so many bytes; gives what went out."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    return sent


def answers(address: str) -> bool:
    """Whether it does so again: what it was busy with may have taken longer than a request has."""
    end_s = time.monotonic() + SECONDS
    while patient.post(f"http://{address}/v2/models/score/infer", json=GOOD).status_code != 200:
        if time.monotonic() > end_s:
            return False
    return True


# --- slow ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [b"", b"POST /v2", HEAD, HEAD + b"x-a: "])
def test_headers_that_never_end(strict: str, message: bytes) -> None:
    started_s = time.monotonic()
    with connected(strict) as connection:
        connection.sendall(message)
        assert read_to_end(connection).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - started_s > HEADERS_S - TICK_S
    assert answers(strict)


def test_a_second_request_that_never_ends(strict: str) -> None:
    with connected(strict) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\nGET /v2")
        received = read_to_end(connection)
    assert received.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in received


@pytest.mark.parametrize("length", [b"content-length: 100\r\n", b"transfer-encoding: chunked\r\n"])
@pytest.mark.parametrize("drip", [b"", b"1\r\n \r\n"])
def test_a_body_that_never_ends(strict: str, length: bytes, drip: bytes) -> None:
    with connected(strict) as connection:
        connection.sendall(HEAD + length + b"\r\n")
        for _ in range(6):
            with contextlib.suppress(ConnectionError):
                connection.sendall(drip)
            time.sleep(0.03)
        received = read_to_end(connection)
    assert received.startswith(b"HTTP/1.1 408")
    assert b"urn:rationale:problem:slow-body" in received
    assert b"connection: close" in received.lower()
    assert answers(strict)


# --- large --------------------------------------------------------------------------------------------

FLOODS = {
    "a header": (HEAD + b"x-a: ", b"a" * 65536),
    "headers": (HEAD, b"x-a: b\r\n" * 8192),
    "a path": (b"GET /", b"a" * 65536),
    "a chunk's extension": (HEAD + b"transfer-encoding: chunked\r\n\r\n1;", b"a" * 65536),
    "trailers": (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n", b"x-a: b\r\n" * 8192),
    "chunks": (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 8192),
    "a body": (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65536 + b"\r\n"),
}


HEADS = {
    "a header": b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-a: %s\r\n\r\n",
    "a path": b"GET /v2/health/live?%s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    "headers": b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n%sx-b: %%s\r\n\r\n"
    % (b"x-a: b\r\n" * 5000),
}


@pytest.mark.parametrize("piece", [1 << 20, 8192])
@pytest.mark.parametrize("head", HEADS)
def test_a_head_ends_where_the_pages_say(strict: str, head: str, piece: int) -> None:
    """However it comes, one that has 64 KiB is taken, and one that has a byte more is not."""
    for more, status in ((0, b"200"), (1, b"431")):
        received = HEADS[head] % (b"a" * (MAX_HEADER_BYTES - len(HEADS[head] % b"") + more))
        with connected(strict) as connection:
            for start in range(0, len(received), piece):
                connection.sendall(received[start : start + piece])
            assert read_to_end(connection).split()[1] == status


def test_trailers_are_no_headers(strict: str) -> None:
    chunked = b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    received = b"connection: close\r\n" + chunked + b"x-request-id: late\r\n\r\n"
    with connected(strict) as connection:
        connection.sendall(HEAD + received)
        assert b"late" not in read_to_end(connection)


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_is_cut_off(strict: str, flood: str) -> None:
    """64 MiB are offered; what is taken stays far below, and so does the memory."""
    start, piece = FLOODS[flood]
    process = psutil.Process()
    before = process.memory_info().rss
    with connected(strict) as connection:
        connection.sendall(start)
        sent = pour(connection, piece, 64 * MEBIBYTE)
        assert sent < 32 * MEBIBYTE, "nobody stopped it"
    assert process.memory_info().rss - before < 32 * MEBIBYTE
    assert answers(strict)


def test_bodies_of_many_are_bounded_together(repository: Path) -> None:
    """Each is within its own limit; together they are not, and the last comers are told to come back."""
    settings = Settings(repository=repository, max_body_bytes=MEBIBYTE, max_queue_bytes=2 * MEBIBYTE)
    app = create_app(settings, create_backend(settings))
    with serving(app) as address, contextlib.ExitStack() as stack:
        head = HEAD + b"content-length: %d\r\n\r\n" % MEBIBYTE
        senders = [stack.enter_context(connected(address)) for _ in range(4)]
        for sender in senders:
            sender.sendall(head + b" " * (900 * 1024))
        refused: set[socket.socket] = set()
        while len(refused) < 2:
            readable, _, _ = select.select([each for each in senders if each not in refused], [], [], SECONDS)
            assert [each.recv(65536).split(b" ")[1] for each in readable] == [b"429"] * len(readable) != []
            refused.update(readable)
        assert len(refused) == 2
    assert app.state.gateway.plane.budget._reserved == 0


async def test_an_answer_that_would_be_too_large(repository: Path) -> None:
    """A row of `score` is 16 bytes, its prediction 12, and what explains it 48 + 36 more."""
    settings = Settings(repository=repository, max_answer_bytes=960, state=repository.parent / "none")
    async with gateway(settings) as client:

        async def explain(rows: int, *outputs: str) -> httpx.Response:
            x = {"name": "x", "shape": [rows, 4], "datatype": "FP32", "data": [1.0] * 4 * rows}
            message = {"inputs": [x], "outputs": [{"name": name} for name in outputs]}
            return await client.post("/v2/models/score/explain", json=message)

        assert (await explain(10)).status_code == 200
        answer = await explain(11)
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:rationale:problem:answer-too-large")
        assert "1056 bytes, more than 960: send fewer than 11 rows" in answer.json()["detail"]
        assert (await explain(11, "y", "x_attributions")).status_code == 200
        assert (await explain(81, "y")).status_code == 413


async def test_of_an_answer_in_json_less_may_be_asked(repository: Path) -> None:
    """Ten rows have 960 bytes of tensors; as JSON they may have twice what a request may."""
    async with gateway(Settings(repository=repository, max_json_bytes=479)) as client:
        x = {"name": "x", "shape": [10, 4], "datatype": "FP32", "data": [0] * 40}
        message = {"inputs": [x]}
        answer = await client.post("/v2/models/score/explain", json=message)
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:rationale:problem:answer-too-large")
        assert "960 bytes of tensors, but JSON may hold at most 958" in answer.json()["detail"]
        binary = {"parameters": {"binary_data_output": True}}
        assert (await client.post("/v2/models/score/explain", json=message | binary)).status_code == 200
    async with gateway(Settings(repository=repository, max_json_bytes=480)) as client:
        assert (await client.post("/v2/models/score/explain", json=message)).status_code == 200


@pytest.mark.parametrize("raw", [False, True])
async def test_raw_tensors_may_be_larger_than_json(repository: Path, raw: bool) -> None:
    rows = 100
    x = {"name": "x", "shape": [rows, 4], "datatype": "FP32", "parameters": {"binary_data_size": rows * 16}}
    head = orjson.dumps({"inputs": [x], "parameters": {"binary_data_output": True}})
    body, headers = head + bytes(rows * 16), {LENGTH_HEADER: str(len(head))}
    async with gateway(Settings(repository=repository, max_json_bytes=len(head) - 1 + raw)) as client:
        answer = await client.post("/v2/models/score/infer", content=body, headers=headers)
    assert answer.status_code == (200 if raw else 413)


# --- deep and strange ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v2/models/score/infer", "/v1/models/score:predict", "/v2/repository/index"]
)
@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000],
)
def test_json_that_is_too_deep(address: str, path: str, body: bytes) -> None:
    answer = patient.post(f"http://{address}{path}", content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")


def test_json_as_deep_as_the_parser_goes(address: str) -> None:
    nested = b"[" * 900 + b"1" + b"]" * 900
    tensor = b'{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": ' + nested + b"}"
    for path, message in (
        ("/v2/models/score/infer", b'{"inputs": [' + tensor + b"]}"),
        ("/v2/models/score/infer", b'{"inputs": [], "parameters": {"deep": ' + nested + b"}}"),
        ("/v1/models/score:predict", b'{"instances": [' + nested + b', {"x": ' + nested + b"}]}"),
    ):
        answer = patient.post(f"http://{address}{path}", content=message)
        assert answer.status_code == 422, answer.text


NAMES = ["..%2f..%2fetc", "%2e%2e", "%00", "score%00", "a" * 5000, "%F0%9F%98%80", "%ff%fe", "..", "*"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "path", ["/v2/models/{}", "/v2/models/{}/config", "/v2/models/{}/stats", "/v2/models/score/versions/{}"]
)
def test_names_that_go_nowhere(address: str, path: str, name: str) -> None:
    with connected(address) as connection:  # as they are: a client would tidy them up
        target = path.format(name).encode()
        connection.sendall(b"GET " + target + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        received = read_to_end(connection)
    assert received.split(b" ")[1] == b"404", received
    assert b"application/problem+json" in received
    assert len(received) < 20_000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.asyncio(loop_scope="session")
async def test_names_that_go_nowhere_in_requests(client: httpx.AsyncClient, name: str) -> None:
    for parameter in ("explainer", "reference_set"):
        message = GOOD | {"parameters": {parameter: name}}
        answer = await client.post("/v2/models/score/infer", json=message)
        assert answer.status_code == 422, answer.text
    message = GOOD | {"parameters": {"explainer": name}}
    assert (await client.post("/v2/models/score/explain", json=message)).status_code == 404
    for verb in ("infer", "explain"):
        assert (await client.post(f"/v2/models/{name}/{verb}", json=GOOD)).status_code == 404


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [
        (b"1.1", b"", b"400"),
        (b"1.1", b"host: localhost\r\nhost: localhost\r\n", b"400"),
        (b"1.0", b"host: localhost\r\nHost: localhost\r\n", b"400"),
        (b"1.1", b"host: localhost\r\n", b"200"),
        (b"1.1", b"host:\r\n", b"400"),  # on loopback, by names of loopback alone
        (b"1.0", b"", b"200"),
    ],
)
@pytest.mark.parametrize("body", [b"", b"content-length: 2\r\n\r\n{}"])
def test_a_head_names_one_host(strict: str, version: bytes, hosts: bytes, status: bytes, body: bytes) -> None:
    with connected(strict) as connection:
        head = b"GET /v2/health/live HTTP/" + version + b"\r\n" + hosts + b"connection: close\r\n"
        connection.sendall(head + (body or b"\r\n"))
        assert read_to_end(connection).split(b" ")[1] == status


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models/unknown:decide", 404), ("/v2/models/score/infer", 413)]
)
def test_a_caller_who_closes_after_a_large_body_reads_why_it_was_refused(
    strict: str, path: str, status: int
) -> None:
    """As Python's urllib does: its `Connection: close` would cut it off in the middle of its body."""
    body = b" " * (8 * MEBIBYTE)
    http_request = urllib.request.Request(
        f"http://{strict}{path}", body, {"content-type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(http_request, timeout=SECONDS)
    assert refused.value.code == status
    assert "status" in orjson.loads(refused.value.read())


def test_who_waits_for_leave_to_send_is_answered_at_once(strict: str) -> None:
    head = HEAD.replace(b"score", b"unknown") + b"connection: close\r\nexpect: 100-continue\r\n"
    with connected(strict) as connection:
        connection.sendall(head + b"content-length: 1000000\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 404")


def test_a_connection_that_waits_for_no_answer_is_closed(strict: str) -> None:
    """In one piece, which may hold thousands of requests."""
    http_request = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with connected(strict) as connection:
        connection.sendall(http_request * 3)
        answered = b""
        while answered.count(b"HTTP/1.1 200") < 3:
            answered += connection.recv(65536)
        assert http_server.MAX_PIPELINED > 3
        with contextlib.suppress(ConnectionError):
            connection.sendall(http_request * 2000)
        assert read_to_end(connection).count(b"HTTP/1.1") <= http_server.MAX_PIPELINED
    assert patient.get(f"http://{strict}/v2/health/live").status_code == 200


def test_a_caller_who_leaves_is_no_fault() -> None:
    """With more requests behind the one being answered: that one's answer goes nowhere, they never begin."""
    begun: list[str] = []
    ended: list[str] = []

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # no lifespan
        begun.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _piece in range(1 if scope["path"] != "/long" else 100):
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            await asyncio.sleep(0.005)
        await send({"type": "http.response.body"})
        ended.append(scope["path"])

    with serving(app, http=http_server.BoundedHttp) as address:
        with connected(address) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by a reset
            connection.sendall(b"GET /long HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3)
            time.sleep(0.1)
        end_s = time.monotonic() + SECONDS
        while "/long" not in ended:
            assert time.monotonic() < end_s
            time.sleep(TICK_S)
    assert begun.count("/long") == ended.count("/long") == 1
