"""Under overload a request is refused by its headers: without a task, and with the ordinary way's answer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from service.app import create_app
from service.errors import QueueFullError
from service.hot_routes import Gateway
from service.http_protocol import _CROWD
from service.metrics import Metrics
from service.security import Scope as KeyScope
from service.security import new_key
from service.settings import Settings
from tests.service.connection import Connections, Written, request
from tests.service.faulty import FaultyBackend

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
        quick = app.refusal(asked(path, x_request_id="r1"))
        assert quick is not None
        head, body = await answered(app, asked(path, x_request_id="r1"))
        assert quick[0] == head
        assert quick[1]["body"] == body["body"]
        assert head["status"] == 429
        assert {(b"retry-after", b"7"), (b"x-request-id", b"r1")} <= set(head["headers"])
        model, verb = PATHS[path]
        counted = metrics.registry.get_sample_value(
            "rationale_rejections_total", {"model": model, "verb": verb, "reason": "queue-full"}
        )
        assert counted == 2


@pytest.mark.parametrize(
    "scope",
    [
        asked("/v2/models/nobody/infer"),
        asked("/v2/models/score/versions/9/infer"),
        asked("/v2/models/score/infer", "GET"),
        asked("/v2/models/score"),
        asked("/v2/models/score/infer", x_request_timeout_ms="soon"),
    ],
)
async def test_other_answers_are_left_to_the_ordinary_way(repository: Path, scope: dict[str, Any]) -> None:
    async for app, _ in full(repository):
        assert app.refusal(scope) is None


async def test_who_asks_comes_first(repository: Path, tmp_path: Path) -> None:
    token, table = new_key("clerk", [KeyScope.INFER], None)
    (tmp_path / "keys.toml").write_text(table + "requests_per_s = 0.001\nburst = 1\n")
    explain, infer = "/v2/models/score/explain", "/v2/models/score/infer"
    async for app, _ in full(repository, keys_file=tmp_path / "keys.toml"):
        told = [
            app.refusal(scope)[0]["status"]  # type: ignore[index]
            for scope in (
                asked(infer),
                asked(infer, x_api_key="rk_another"),
                asked(infer, x_api_key=token),
                asked(explain, authorization=f"Bearer {token}"),
            )
        ]
        assert told == [401, 401, 429, 429]
        limited = app.refusal(asked(infer, x_api_key=token))
        assert limited is not None
        assert b"rate-limited" in limited[1]["body"]


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

    def refusal(self, _: Scope) -> list[Any]:
        return _answer(429)


def _answer(status: int) -> list[Any]:
    return [
        {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]},
        {"type": "http.response.body", "body": b"hi"},
    ]


def statuses(transport: Written) -> list[int]:
    return [int(each.split()[1]) for each in transport.sent]


async def test_a_crowd_is_refused_without_a_call_and_the_connection_goes_on() -> None:
    app = Crowded()
    connections = Connections(app)
    crowd = [connections.open() for _ in range(_CROWD)]
    post = request("POST", **{"content-length": "4"})
    for protocol, _ in crowd:
        protocol.data_received(post + b"body")
    protocol, refused = connections.open()
    for _ in range(3):
        protocol.data_received(post)
        protocol.data_received(b"body")
    assert statuses(refused) == [429] * 3
    assert all(each.endswith(b"\r\n\r\nhi") for each in refused.sent)
    app.may_answer.set()
    await connections.settled()
    assert app.called == _CROWD
    assert [statuses(transport) for _, transport in crowd] == [[200]] * _CROWD
    protocol.data_received(post + b"body")
    await connections.settled()
    assert statuses(refused) == [429] * 3 + [200]
    protocol.connection_lost(ConnectionResetError())


async def test_a_flood_of_pipelined_requests_is_answered_in_order() -> None:
    app = Crowded()
    connections = Connections(app)
    crowd = [connections.open() for _ in range(_CROWD)]
    for protocol, _ in crowd:
        protocol.data_received(request())
    app.may_answer.set()
    protocol, flooded = crowd[0]
    protocol.data_received(request() * 2000)
    await connections.settled()
    assert len(flooded.sent) == 2001
    assert set(statuses(flooded)) <= {200, 429}


async def test_a_refusal_closes_where_the_caller_asked_for_it() -> None:
    app = Crowded()
    connections = Connections(app)
    for _ in range(_CROWD):
        connections.open()[0].data_received(request())
    protocol, transport = connections.open()
    protocol.data_received(request(connection="close"))
    assert statuses(transport) == [429]
    assert transport.closed
    app.may_answer.set()
    await connections.settled()
