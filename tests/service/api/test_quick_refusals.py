"""Under overload a request is refused by its headers: without a task, and with the ordinary way's answer."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from service.api import refusals
from service.api.hot_routes import Gateway
from service.api.http_headers import scope_of
from service.api.http_limits import _CROWD, BoundedHttp, Refusal
from service.app import create_app
from service.errors import QueueFullError
from service.observability.logs import ACCESS
from service.observability.metrics import Metrics
from service.security.keys import Scope as KeyScope
from service.security.keys import new_key, read_keyring
from service.settings import Settings
from tests.service.connection import Connections, Written, request
from tests.service.faulty import FaultyBackend
from tests.service.own_time import standing_still

PATHS = {
    "/v2/models/score/infer": ("score", "infer"),
    "/v2/models/score/versions/1/explain": ("score", "explain"),
    "/v1/models/score:explain": ("score", "explain"),
}


class FullBackend(FaultyBackend):
    """Has no place for anyone."""

    def admit(self, *_: object) -> None:
        raise QueueFullError("256 requests are waiting", 7)


async def full(repository: Path, **given: Any) -> AsyncIterator[tuple[Gateway, Metrics]]:
    metrics = Metrics()
    app = create_app(Settings(repository=repository, **given), FullBackend(None), metrics)
    async with app.router.lifespan_context(app):
        await app.state.loading
        yield app, metrics


def asked(path: str, method: str = "POST", **headers: str) -> dict[str, Any]:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "headers": given, "query_string": b""}


def refused(app: Gateway, path: str, method: str = "POST", **headers: str) -> Refusal | None:
    """What the app says to a crowd's connection."""
    scope = asked(path, method, **headers)
    assert app.refusal is not None
    return app.refusal(scope_of(method, path, dict(scope["headers"])), 0)


def lines(refusal: Refusal) -> list[tuple[bytes, ...]]:
    return [tuple(line.split(b": ", 1)) for line in refusal.headers.split(b"\r\n")[:-1]]


async def answered(app: Gateway, scope: dict[str, Any]) -> list[Any]:
    """The messages of the ordinary way."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("path", PATHS)
async def test_it_is_the_answer_of_the_ordinary_way(repository: Path, path: str) -> None:
    async for app, metrics in full(repository):
        quick = refused(app, path, x_request_id="r1")
        assert quick is not None
        head, body = await answered(app, asked(path, x_request_id="r1"))
        assert lines(quick) == head["headers"]
        assert quick.body == body["body"]
        assert quick.status == head["status"] == 429
        assert {(b"retry-after", b"7"), (b"x-request-id", b"r1")} <= set(head["headers"])
        model, verb = PATHS[path]
        counted = metrics.registry.get_sample_value(
            "rationale_rejections_total", {"model": model, "verb": verb, "reason": "queue-full"}
        )
        assert counted == 2


async def test_what_is_said_to_one_is_said_to_the_next_by_its_own_name(repository: Path) -> None:
    path = "/v2/models/score/infer"
    async for app, metrics in full(repository):
        told = [refused(app, path, x_request_id=name) for name in ("r1", "r2")]
        assert [dict(lines(each))[b"x-request-id"] for each in told if each] == [b"r1", b"r2"]
        patient = refused(app, path, x_request_timeout_ms="60000")
        assert patient is not None
        counted = metrics.registry.get_sample_value(
            "rationale_rejections_total", {"model": "score", "verb": "infer", "reason": "queue-full"}
        )
        assert counted == 3


async def test_a_place_that_comes_free_is_given_away(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v2/models/score/infer"
    clock = Ticking()
    monkeypatch.setattr(refusals, "time", clock)
    async for app, _ in full(repository):
        assert refused(app, path) is not None
        monkeypatch.setattr(FullBackend, "admit", lambda *_: None)
        assert refused(app, path) is not None  # at the same moment
        clock.now_s += 0.01
        assert refused(app, path) is None


class Ticking:
    """Stands in for the module `time`."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


async def test_whoever_names_many_paths_fills_no_memory(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_MOST", 3)
    async for app, _ in full(repository):
        for i in range(10):
            assert refused(app, "/v2/models/score/infer", x_request_timeout_ms=str(i + 1)) is not None
        assert isinstance(app.refusal, refusals.Refusals)
        assert len(app.refusal._verdicts) <= 3


@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [
        ("/v2/models/nobody/infer", "POST", {}),
        ("/v2/models/score/versions/9/infer", "POST", {}),
        ("/v2/models/score/infer", "GET", {}),
        ("/v2/models/score", "POST", {}),
        ("/v2/models/score/infer", "POST", {"x_request_timeout_ms": "soon"}),
    ],
)
async def test_other_answers_are_left_to_the_ordinary_way(
    repository: Path, path: str, method: str, headers: dict[str, str]
) -> None:
    async for app, _ in full(repository):
        assert refused(app, path, method, **headers) is None


async def test_who_asks_comes_first(repository: Path, tmp_path: Path) -> None:
    token, table = new_key("clerk", [KeyScope.INFER], None)
    (tmp_path / "keys.toml").write_text(table)
    explain, infer = "/v2/models/score/explain", "/v2/models/score/infer"
    async for app, _ in full(repository, keys_file=tmp_path / "keys.toml"):
        told = [
            refused(app, infer),
            refused(app, infer, x_api_key="rk_another"),
            refused(app, infer, x_api_key=token),
            refused(app, explain, authorization=f"Bearer {token}"),
        ]
        assert [each.status for each in told if each] == [401, 401, 429, 403]


async def test_the_same_words_are_judged_anew_each_time(repository: Path, tmp_path: Path) -> None:
    """Their scope is one (see plain_post), and what is kept in it must not let anyone in."""
    token, table = new_key("clerk", [KeyScope.INFER], None)
    (tmp_path / "keys.toml").write_text(table)
    _, other = new_key("another", [KeyScope.INFER], None)
    path = "/v2/models/score/infer"
    scope = scope_of("POST", path, {b"x-api-key": token.encode()})
    async for app, metrics in full(repository, keys_file=tmp_path / "keys.toml"):
        assert app.refusal is not None
        told = [app.refusal(scope, 0) for _ in range(3)]
        app.state.gate.take_keys(read_keyring(None, other, admin_is_local=True))
        told.append(app.refusal(scope, 0))
        assert [b"queue-full" in each.body for each in told if each] == [True, True, True, False]
        assert [each.status for each in told if each] == [429, 429, 429, 401]
        names = {dict(lines(each))[b"x-request-id"] for each in told if each}
        assert len(names) == len(told)
        for reason, count in {"queue-full": 3, "unauthenticated": 1}.items():
            labels = {"model": "score", "verb": "infer", "reason": reason}
            assert metrics.registry.get_sample_value("rationale_rejections_total", labels) == count


async def test_each_has_its_log_line_where_those_are_written(
    repository: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v2/models/score/infer"
    monkeypatch.setattr(refusals, "_STANDS_S", -1.0)  # each is judged by itself
    async for app, metrics in full(repository):
        before = refused(app, path, x_request_id="r0")
        with caplog.at_level(logging.INFO, ACCESS.name):
            logged = [refused(app, path, x_request_id=f"r{i}") for i in (1, 2)]
        assert before is not None
        assert all(each is not None and each.body == before.body for each in logged)
        lines_of = [record.__dict__ for record in caplog.records if record.name == ACCESS.name]
        assert [(line["request_id"], line["problem"], line["status"]) for line in lines_of] == [
            ("r1", "queue-full", 429),
            ("r2", "queue-full", 429),
        ]
        labels = {"model": "score", "verb": "infer", "protocol": "http", "status": "429"}
        assert metrics.registry.get_sample_value("rationale_requests_total", labels) == 3


class Crowded:
    """An app that answers nobody until it may, and knows a refusal."""

    def __init__(self) -> None:
        self.called = 0
        self.may_answer = asyncio.Event()

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        self.called += 1
        await self.may_answer.wait()
        for message in _answer(200):
            await send(message)

    def refusal(self, _: Scope, under_way: int) -> Refusal:
        assert under_way >= _CROWD
        return Refusal(429, b"content-length: 2\r\n", b"hi")


def _answer(status: int) -> list[Any]:
    return [
        {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]},
        {"type": "http.response.body", "body": b"hi"},
    ]


def statuses(transport: Written) -> list[int]:
    return [int(each.split()[1]) for each in transport.sent]


@contextlib.asynccontextmanager
async def crowd() -> AsyncIterator[tuple[Crowded, Connections, tuple[BoundedHttp, Written]]]:
    """An app with as many requests under way as make a crowd, and the first connection of it."""
    app = Crowded()
    connections = Connections(app)
    opened = [connections.open() for _ in range(_CROWD)]
    for protocol, _ in opened:
        protocol.data_received(request())
    await asyncio.sleep(0)
    assert app.called == _CROWD
    yield app, connections, opened[0]
    app.may_answer.set()
    await connections.settled()
    assert {200} == {status for _, transport in opened[1:] for status in statuses(transport)}


async def test_a_crowd_is_refused_without_a_call_and_the_connection_goes_on() -> None:
    post = request("POST", **{"content-length": "4"})
    async with crowd() as (app, connections, _):
        protocol, refused = connections.open()
        for _ in range(3):
            protocol.data_received(post)
            protocol.data_received(b"body")
        assert statuses(refused) == [429] * 3
        assert all(each.endswith(b"\r\n\r\nhi") for each in refused.sent)
    assert app.called == _CROWD
    protocol.data_received(post + b"body")
    await connections.settled()
    assert statuses(refused) == [429] * 3 + [200]
    protocol.connection_lost(ConnectionResetError())


async def test_a_flood_of_pipelined_requests_is_answered_in_order() -> None:
    post = request("POST", **{"content-length": "2"}) + b"{}"
    async with crowd() as (_, connections, (protocol, flooded)):
        other, refused = connections.open()
        other.data_received(post * 1000)
        assert statuses(refused) == [429] * 1000
        protocol.data_received(post * 1000)
        assert statuses(flooded) == []
    assert statuses(flooded) == [200] * 1001


async def test_a_refusal_closes_where_the_caller_asked_for_it() -> None:
    async with crowd() as (app, connections, _):
        protocol, transport = connections.open()
        protocol.data_received(request("POST", **{"connection": "close", "content-length": "4"}) + b"body")
        assert statuses(transport) == [429]
        assert b"connection: close\r\n" in transport.sent[0]
        assert transport.closed
        assert app.called == _CROWD


@pytest.mark.parametrize("pieces", [(b"", b"bo", b"dy"), (b"bo", b"dy"), (b"body",)])
async def test_a_refused_body_is_read_past_in_however_many_pieces(pieces: tuple[bytes, ...]) -> None:
    head = request("POST", **{"content-length": "4"})
    async with crowd() as (app, connections, _):
        protocol, transport = connections.open()
        for _ in range(3):
            protocol.data_received(head + pieces[0])
            for piece in pieces[1:]:
                protocol.data_received(piece)
        assert statuses(transport) == [429] * 3
        assert app.called == _CROWD


async def test_what_comes_behind_a_refused_request_is_not_lost() -> None:
    head = request("POST", **{"content-length": "4"})
    async with crowd() as (app, connections, _):
        protocol, transport = connections.open()
        protocol.data_received(head + b"bo")
        protocol.data_received(b"dy" + head + b"body" + request())
        assert statuses(transport) == [429] * 2
        assert app.called == _CROWD
        await asyncio.sleep(0)
        assert app.called == _CROWD + 1
    assert statuses(transport) == [429, 429, 200]


async def test_an_answer_on_its_way_comes_before_a_refusal() -> None:
    post = request("POST", **{"content-length": "4"}) + b"body"
    async with crowd() as (_, _, (protocol, transport)):
        protocol.data_received(post)
        assert statuses(transport) == []
    assert statuses(transport)[0] == 200
    assert len(statuses(transport)) == 2


async def test_a_connection_that_is_refused_is_as_idle_as_any() -> None:
    """It is closed when nothing has come for uvicorn's keep-alive timeout since the last refusal."""
    post = request("POST", **{"content-length": "4"}) + b"body"
    with standing_still() as clock:
        async with crowd() as (_, connections, _):
            protocol, transport = connections.open()
            protocol.data_received(post)
            clock.pass_by(protocol.timeout_keep_alive * 0.75)
            protocol.data_received(post)
            clock.pass_by(protocol.timeout_keep_alive * 0.75)
            protocol.timeout_keep_alive_handler()
            assert not transport.closed
            clock.pass_by(protocol.timeout_keep_alive * 0.75)
            protocol.timeout_keep_alive_handler()
            assert transport.closed
