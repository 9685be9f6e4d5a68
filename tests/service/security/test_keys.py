"""Scopes and rate limits, over HTTP and gRPC."""

import asyncio
import datetime
import hashlib
import math
import socket
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakeredis
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from rationale_service.errors import RateLimitedError, UnauthenticatedError
from rationale_service.repository.registry import read_repository
from rationale_service.security import rate_limit
from rationale_service.security.circuit import Circuit
from rationale_service.security.keys import (
    Caller,
    Keyring,
    Scope,
    is_loopback,
    needed_by_entry,
    new_key,
    read_keys,
)
from rationale_service.security.rate_limit import RateLimits, window_of
from rationale_service.security.watch import WatchedSource, watch
from rationale_service.settings import Settings
from tests.service import handmade
from tests.service.conftest import gateway
from tests.service.grpc_end import grpc_end
from tests.service.messages import GOOD, request

SESSION = pytest.mark.asyncio(loop_scope="session")

INFER, EXPLAIN, DECIDE, _, REVIEW, AUDIT, ADMIN = (frozenset({scope}) for scope in Scope)
ROWS = {"instances": handmade.X.tolist()}


def key_file(folder: Path, **scopes: str) -> dict[str, str]:
    """Writes folder/keys.toml; the tokens by name."""
    made_keys = {name: new_key(name, map(Scope, names.split()), None) for name, names in scopes.items()}
    (folder / "keys.toml").write_text("\n".join(table for _, table in made_keys.values()))
    return {name: token for name, (token, _) in made_keys.items()}


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("gateway", False)],  # noqa: S104
)
def test_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) == local


def test_after_a_pause_one_call_is_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """All others go on without the machine until that one is answered."""
    clock, counted = [0.0], list[int]()
    monkeypatch.setattr(
        "rationale_service.security.circuit.time", SimpleNamespace(monotonic=lambda: clock[0])
    )
    circuit = Circuit(5, lambda: counted.append(1))
    assert [circuit.lets_through() for _ in range(3)] == [True] * 3
    circuit.report_failure()
    for clock[0] in (0.0, 4.9):
        assert not circuit.lets_through()
    for clock[0] in (5.0, 10.0):  # nothing was reported of the first test
        assert [circuit.lets_through() for _ in range(3)] == [True, False, False]
    circuit.report_answer()
    assert [circuit.lets_through() for _ in range(3)] == [True] * 3
    assert len(counted) == 1


@pytest.mark.parametrize(
    ("seen", "read"),
    [
        ("aaa", []),
        ("abbb", ["b"]),
        ("abcddd", ["d"]),  # half-written ones are not read
        ("abbbccc", ["b", "c"]),
        ("abab", []),
        ("abaa", []),  # as it was
        ("abb?bb", ["b"]),  # for a moment it could not be looked at
        ("a?bb", ["b"]),
    ],
)
async def test_a_thing_is_read_again_once_it_stays(seen: str, read: list[str]) -> None:
    """It is looked at once in an interval: `?` is an error."""
    looks, found, last = iter(seen), list[str](), ""

    def look() -> str:
        nonlocal last
        last = next(looks, "")
        if not last:
            raise LookupError("over")
        if last == "?":
            raise OSError("gone")
        return last

    async def note() -> None:
        found.append(last)

    with pytest.raises(LookupError, match="over"):
        await watch(WatchedSource(look, note, 0.0))
    assert found == read


# --- over HTTP ------------------------------------------------------------------------------------------


@SESSION
async def test_keys_over_http(repository: Path, tmp_path: Path) -> None:
    tokens = key_file(tmp_path, scoring="infer", analyst="infer explain", desk="decide", boss="admin")
    settings = Settings(repository=repository, keys_file=tmp_path / "keys.toml", audit="off")
    verbs = {"infer": "predict", "explain": "explain", "decide": "decide"}
    paths = {scope: f"/v1/models/score:{verb}" for scope, verb in verbs.items()}
    rows = {"instances": [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]}
    async with gateway(settings) as client:
        for path in paths.values():
            nobody = await client.post(path, json=ROWS)
            assert nobody.status_code == 401
            assert nobody.headers["www-authenticate"] == 'Bearer realm="rationale"'
            assert nobody.json()["type"] == "urn:rationale:problem:unauthenticated"
            unknown = await client.post(path, json=ROWS, headers={"X-API-Key": "rk_wrong"})
            assert unknown.status_code == 401
            assert 'error="invalid_token"' in unknown.headers["www-authenticate"]
            assert "rk_wrong" not in unknown.text
        allowed = {"scoring": "infer", "analyst": "infer explain", "desk": "decide", "boss": ""}
        for name, scopes in allowed.items():
            for headers in ({"X-API-Key": tokens[name]}, {"Authorization": f"Bearer {tokens[name]}"}):
                for scope, path in paths.items():
                    answer = await client.post(path, json=rows, headers=headers)
                    assert answer.status_code == (200 if scope in scopes.split() else 403), (name, scope)
        forbidden = await client.post(paths["explain"], json=ROWS, headers={"X-API-Key": tokens["scoring"]})
        assert 'error="insufficient_scope", scope="explain"' in forbidden.headers["www-authenticate"]
        assert forbidden.json()["detail"] == "key 'scoring' lacks the scope explain"
        forbidden = await client.post(paths["decide"], json=rows, headers={"X-API-Key": tokens["analyst"]})
        assert forbidden.json()["detail"] == "key 'analyst' lacks the scope decide"
        for path in ("/v2/models/score/explain", "/v2/models/score_explain/infer"):
            assert (await client.post(path, headers={"X-API-Key": tokens["desk"]})).status_code == 403
        assert (await client.get("/v2/models/score")).status_code == 401
        assert (
            await client.get("/v2/models/score", headers={"X-API-Key": tokens["boss"]})
        ).status_code == 200
        for path in ("/v2/health/ready", "/v2/models/score/ready", "/metrics", "/openapi.json"):
            assert (await client.get(path)).status_code == 200


@SESSION
async def test_refused_before_the_body_is_read(repository: Path, tmp_path: Path) -> None:
    key_file(tmp_path, scoring="infer")
    read = 0

    async def body() -> Any:
        nonlocal read
        for _ in range(10):
            read += 1
            yield b" "

    async with gateway(Settings(repository=repository, keys_file=tmp_path / "keys.toml")) as client:
        assert (await client.post("/v2/models/score/infer", content=body())).status_code == 401
    assert read == 0


@SESSION
async def test_metrics_can_need_a_scope(repository: Path, tmp_path: Path) -> None:
    tokens = key_file(tmp_path, scoring="infer", boss="admin")
    settings = Settings(repository=repository, keys_file=tmp_path / "keys.toml", metrics_scope="admin")
    async with gateway(settings) as client:
        statuses = [
            (await client.get("/metrics", headers=headers)).status_code
            for headers in ({}, {"X-API-Key": tokens["scoring"]}, {"X-API-Key": tokens["boss"]})
        ]
    assert statuses == [401, 403, 200]


@SESSION
async def test_the_admin_api_needs_its_scope(repository: Path, tmp_path: Path) -> None:
    tokens = key_file(tmp_path, analyst="infer explain", boss="admin")
    async with gateway(Settings(repository=repository, keys_file=tmp_path / "keys.toml")) as client:
        for path in ("/v2/reference-sets", "/v2/models/score/explainers"):
            for headers, status in (
                ({}, 401),
                ({"X-API-Key": tokens["analyst"]}, 403),
                ({"X-API-Key": tokens["boss"]}, 200),
            ):
                assert (await client.get(path, headers=headers)).status_code == status, path


@SESSION
async def test_without_keys_the_network_may_not_administer(repository: Path) -> None:
    for host, status in (("127.0.0.1", 404), ("0.0.0.0", 403)):  # noqa: S104
        async with gateway(Settings(repository=repository, host=host)) as client:
            answer = await client.get("/v2/models/score/explainers/absent")
            assert answer.status_code == status, host
            assert (await client.post("/v1/models/score:explain", json=ROWS)).status_code == 200
    assert "rationale keys new" in answer.json()["detail"]


ALL = "0.0.0.0"  # noqa: S104  # the network
OPEN = frozenset({Scope.INFER, Scope.EXPLAIN, Scope.DECIDE, Scope.RECOURSE})


@pytest.mark.parametrize(
    ("settings", "anyone"),
    [
        ({}, OPEN | {Scope.ADMIN, Scope.AUDIT, Scope.REVIEW}),
        ({"admin_port": 9000}, OPEN | {Scope.ADMIN, Scope.AUDIT, Scope.REVIEW}),
        ({"admin_port": 9000, "admin_host": ALL}, OPEN | {Scope.AUDIT, Scope.REVIEW}),
        ({"host": ALL}, OPEN),
        ({"host": ALL, "admin_port": 9000}, OPEN | {Scope.ADMIN}),
        ({"host": ALL, "admin_port": 9000, "admin_host": ALL}, OPEN),
        ({"host": ALL, "admin_host": "127.0.0.1"}, OPEN),  # without a port of its own
    ],
)
@pytest.mark.parametrize("has_keys", [False, True])
def test_what_is_open_without_keys(
    settings: dict[str, Any], anyone: frozenset[Scope], has_keys: bool, tmp_path: Path
) -> None:
    """Old decisions if only this machine reaches the gateway; the admin API if only it reaches that one."""
    if has_keys:
        tokens = key_file(tmp_path, one="infer")
        settings = {**settings, "keys_file": tmp_path / "keys.toml"}
    keyring = read_keys(Settings(**settings))
    if has_keys:
        assert keyring.identify(tokens["one"]).scopes == {Scope.INFER}
        with pytest.raises(UnauthenticatedError):
            keyring.identify(None)
    else:
        assert keyring.identify(None).scopes == anyone


@pytest.mark.parametrize(("days", "expired"), [(-1, True), (0, True), (2, False)])
def test_a_key_expires_with_the_beginning_of_its_day(days: int, expired: bool) -> None:
    caller = Caller("shop", frozenset({Scope.INFER}))
    day = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days)
    keyring = Keyring({hashlib.sha256(b"token").digest(): (caller, day)}, caller)
    with pytest.raises(UnauthenticatedError, match=f"expired on {day}") if expired else nullcontext():
        assert keyring.identify("token") is caller


def test_what_explains_needs_its_scope_whatever_its_name(repository: Path) -> None:
    entries = read_repository(repository).entries
    assert {entry.manifest is None for entry in entries.values()} == {True, False}
    for entry in entries.values():
        for name in ("plain", "m_explain"):
            needed = EXPLAIN if entry.manifest is not None else INFER
            assert needed_by_entry(replace(entry, name=name)) == needed


# --- rates ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per_s", "burst", "requests", "seconds"),
    [
        (2, 10, 10, 5),
        (2, None, 2, 1),
        (100, 20, 100, 1),
        (2.5, None, 5, 2),
        (0.05, 2, 2, 40),
        (0.1, 3, 3, 30),
        (0.7, 1, 1, 2),
        (0.7, 2, 2, 3),
        (1.9, 1, 1, 1),
    ],
)
def test_windows_let_a_burst_through_and_hold_the_rate(
    per_s: float, burst: int | None, requests: int, seconds: int
) -> None:
    window = window_of(per_s, burst)
    assert (window.amount, window.get_expiry()) == (requests, seconds)


@given(st.floats(0.01, 1000), st.none() | st.integers(1, 1000))
def test_no_window_lets_more_in_than_the_rate_and_a_burst(per_s: float, burst: int | None) -> None:
    window = window_of(per_s, burst)
    assert window.amount <= max(burst or math.ceil(per_s), per_s * window.get_expiry())
    assert (window.get_expiry() - 1) * per_s < window.amount  # and no longer than it takes


async def use_up(limits: RateLimits, caller: Caller, times: int) -> None:
    for _ in range(times):
        await limits.check(caller)
    with pytest.raises(RateLimitedError, match=f"key '{caller.name}' may send"):
        await limits.check(caller)


async def test_each_key_has_its_own_rate() -> None:
    limits = RateLimits(0.1, 1)
    await use_up(limits, Caller("one", INFER), 1)
    await use_up(limits, Caller("two", INFER), 1)
    await use_up(limits, Caller("fast", INFER, 0.3, 3), 3)


@pytest.mark.parametrize(
    ("key_rate", "setting", "at_once"), [(None, 2, 2), (5, 2, 5), (1, 4, 1), (3, None, 3)]
)
async def test_a_keys_own_rate_comes_before_the_setting(
    key_rate: float | None, setting: float | None, at_once: int
) -> None:
    limits = RateLimits(setting, None)
    caller = Caller("one", INFER, key_rate)
    for _ in range(at_once):
        await limits.check(caller)
    with pytest.raises(RateLimitedError, match=f"{at_once} requests"):
        await limits.check(caller)


async def test_gateways_with_one_redis_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    server = fakeredis.FakeServer()
    monkeypatch.setattr(
        "redis.asyncio.Redis.from_url", lambda *_, **__: fakeredis.FakeAsyncRedis(server=server, protocol=2)
    )
    first, another = (RateLimits(0.1, 3, "redis://localhost:6379") for _ in range(2))
    await first.check(Caller("one", INFER))
    await use_up(another, Caller("one", INFER), 2)
    with pytest.raises(RateLimitedError) as raised:
        await first.check(Caller("one", INFER))
    assert 0 < raised.value.retry_after_s <= 30


async def test_without_its_redis_a_gateway_counts_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    limits = RateLimits(0.1, 3, "redis://127.0.0.1:1")
    await use_up(limits, Caller("one", INFER), 3)
    (record,) = caplog.records
    assert "for 5 s" in record.message


async def test_a_redis_that_hangs_is_waited_for_by_one_request_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes connections, and what is sent, and never answers: as one that is frozen."""
    monkeypatch.setattr(rate_limit, "_REDIS_PAUSE_S", 0.5)
    failures: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = "redis://127.0.0.1:{1}".format(*silent.getsockname())
        limits = RateLimits(1000, None, url, lambda: failures.append(time.monotonic()))
        waits_s = []
        end_s = time.monotonic() + 2
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            await limits.check(Caller("one", INFER))
            waits_s.append(time.monotonic() - began_s)
            await asyncio.sleep(0.01)
    long = [wait_s for wait_s in waits_s if wait_s > 0.1]
    assert 2 <= len(long) == len(failures) <= 4
    assert max(long) < 1


async def test_a_redis_that_is_back_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_REDIS_PAUSE_S", 0.05)
    server = fakeredis.FakeServer()
    monkeypatch.setattr(
        "redis.asyncio.Redis.from_url", lambda *_, **__: fakeredis.FakeAsyncRedis(server=server, protocol=2)
    )
    limits, another = (RateLimits(0.1, 3, "redis://localhost:6379") for _ in range(2))
    await use_up(another, Caller("one", INFER), 3)
    server.connected = False
    await limits.check(Caller("one", INFER))
    server.connected = True
    await asyncio.sleep(0.1)
    with pytest.raises(RateLimitedError):
        await limits.check(Caller("one", INFER))


@SESSION
async def test_a_key_that_asks_too_often(repository: Path, tmp_path: Path) -> None:
    tokens = key_file(tmp_path, scoring="infer", other="infer")
    settings = Settings(
        repository=repository, keys_file=tmp_path / "keys.toml", rate_limit_per_s=0.05, rate_limit_burst=2
    )
    async with gateway(settings) as client:
        answers = [
            await client.post("/v1/models/score:predict", json=ROWS, headers={"X-API-Key": tokens[name]})
            for name in ("scoring", "scoring", "scoring", "other")
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 200]
        assert answers[2].json()["type"] == "urn:rationale:problem:rate-limited"
        assert 0 < int(answers[2].headers["retry-after"]) <= 40
        page = (await client.get("/metrics")).text
        assert 'rationale_rejections_total{model="",reason="rate-limited",verb=""} 1.0' in page


# --- over gRPC ------------------------------------------------------------------------------------------


async def code(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


@SESSION
async def test_keys_over_grpc(repository: Path, tmp_path: Path) -> None:
    tokens = key_file(tmp_path, scoring="infer", analyst="infer explain", boss="admin")
    async with grpc_end(Settings(repository=repository, keys_file=tmp_path / "keys.toml")) as end:
        stub = end.stub
        assert await code(stub.ServerReady(pb.ServerReadyRequest())) == "OK"
        assert await code(stub.ModelInfer(request("score", GOOD))) == "UNAUTHENTICATED"
        assert await code(stub.ModelConfig(pb.ModelConfigRequest(name="score"))) == "UNAUTHENTICATED"
        allowed = {"scoring": (True, False), "analyst": (True, True), "boss": (False, False)}
        for name, verbs in allowed.items():
            for metadata in ((("x-api-key", tokens[name]),), (("authorization", f"Bearer {tokens[name]}"),)):
                for model, may in zip(("score", "score_explain"), verbs, strict=True):
                    status = await code(stub.ModelInfer(request(model, GOOD), metadata=metadata))
                    assert status == ("OK" if may else "PERMISSION_DENIED"), (name, model)


@SESSION
async def test_streams_are_admitted_and_limited(repository: Path, tmp_path: Path) -> None:
    tokens = key_file(tmp_path, scoring="infer")
    settings = Settings(
        repository=repository, keys_file=tmp_path / "keys.toml", rate_limit_per_s=0.01, rate_limit_burst=3
    )
    async with grpc_end(settings) as end:

        async def answers(sent: list[pb.ModelInferRequest], metadata: Any) -> list[str]:
            stream = end.stub.ModelStreamInfer(iter(sent), metadata=metadata)
            return sorted([answer.error_message[:25] async for answer in stream])

        with pytest.raises(grpc.aio.AioRpcError, match=r"key .*needed"):
            await answers([], ())
        sent = [request(model, GOOD) for model in ("score", "score_explain", "score")]
        actual = await answers(sent, (("x-api-key", tokens["scoring"]),))
    assert actual == ["", "The key does not allow th", "Too many requests from th"]
