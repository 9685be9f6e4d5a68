"""Traces and request ids: taken from the caller, given back, and carried on to the server behind."""

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rationale.errors import InvalidOptionError
from rationale_service.observability import context as exchange
from rationale_service.observability.tracing import Tracing, create_tracing
from rationale_service.settings import Settings
from tests.service import handmade
from tests.service.conftest import gateway
from tests.service.grpc_end import End, grpc_end
from tests.service.messages import GOOD, request

pytestmark = pytest.mark.asyncio(loop_scope="session")

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
ENDPOINT = "http://127.0.0.1:4317"
ROWS = {"instances": handmade.X[:2].tolist()}


class _SpanRecorder(InMemorySpanExporter):
    """Goes on when the first of two apps closes it."""

    def shutdown(self) -> None: ...


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What every app made in the test exports to."""
    actual = _SpanRecorder()
    monkeypatch.setattr(
        "rationale_service.protocols.interceptor.create_tracing",
        lambda endpoint, ratio, count: create_tracing(endpoint, ratio, count, actual),
    )
    return actual


@contextlib.asynccontextmanager
async def two_gateways(repository: Path) -> AsyncIterator[tuple[httpx.AsyncClient, End]]:
    """The second one stands for a Triton: it speaks its protocol."""
    settings = Settings(repository=repository, trace_endpoint=ENDPOINT)
    async with grpc_end(settings) as behind:
        front = Settings(repository=repository, trace_endpoint=ENDPOINT, triton=behind.address)
        async with gateway(front) as client:
            yield client, behind


def spans(exporter: InMemorySpanExporter) -> Sequence[ReadableSpan]:
    return sorted(exporter.get_finished_spans(), key=lambda span: (span.start_time, -span.end_time))


def hexed(number: int, digits: int) -> str:
    return f"{number:0{digits}x}"


async def test_one_trace_from_the_caller_to_the_server_behind(
    repository: Path, exporter: InMemorySpanExporter
) -> None:
    async with two_gateways(repository) as (client, _):
        answer = await client.post(
            "/v1/models/score:explain",
            json=ROWS,
            headers={"traceparent": TRACEPARENT, "x-request-id": "mine"},
        )
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] == "mine"
    actual = spans(exporter)
    assert {hexed(span.context.trace_id, 32) for span in actual} == {TRACE}
    front, behind = (span for span in actual if span.name == "explain score")
    assert hexed(front.parent.span_id, 16) == PARENT
    assert behind.parent.span_id == front.context.span_id
    assert [span.attributes["rationale.request_id"] for span in (front, behind)] == ["mine", "mine"]
    assert front.attributes["rationale.rows"] == len(ROWS["instances"])
    assert front.attributes["http.response.status_code"] == 200
    for request_span in (front, behind):
        inside = [span for span in actual if span.parent.span_id == request_span.context.span_id]
        for name in ("queue", "compute"):
            parts = [span for span in inside if span.name == name]
            assert parts
            assert all(request_span.start_time <= span.start_time for span in parts)
            assert all(span.end_time <= request_span.end_time for span in parts)


async def test_a_part_lies_within_its_request_whenever_the_clocks_are_read(
    repository: Path, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may come to read the second clock a while after the first."""
    late_ns = [0]
    clocks = SimpleNamespace(time_ns=time.time_ns, monotonic_ns=lambda: time.monotonic_ns() + late_ns[0])
    monkeypatch.setattr("rationale_service.observability.tracing.time", clocks)
    async with gateway(Settings(repository=repository, trace_endpoint=ENDPOINT)) as client:
        for late_ns[0] in (10**9, -(10**9)):
            assert (await client.post("/v1/models/score:predict", json=ROWS)).status_code == 200
    actual = spans(exporter)
    requests = {span.context.span_id: span for span in actual if span.parent is None}
    assert len(requests) == 2
    for piece in (span for span in actual if span.parent is not None):
        request_span = requests[piece.parent.span_id]
        assert request_span.start_time <= piece.start_time <= piece.end_time <= request_span.end_time


async def test_a_trace_begins_here_where_none_comes(repository: Path, exporter: InMemorySpanExporter) -> None:
    async with gateway(Settings(repository=repository, trace_endpoint=ENDPOINT)) as client:
        for headers in ({}, {"traceparent": "00-zz"}):
            assert (
                await client.post("/v1/models/score:predict", json=ROWS, headers=headers)
            ).status_code == 200
        await client.post("/v1/models/absent:predict", json=ROWS)
        for path in ("/v2/health/live", "/v2/health/ready", "/metrics"):
            await client.get(path)
    heads = [span for span in spans(exporter) if span.parent is None]
    assert [span.name for span in heads] == ["infer score", "infer score", "http"]
    assert heads[2].attributes["error.type"] == "unknown-model"
    assert len({span.context.trace_id for span in heads}) == 3


async def test_decisions_are_spans_of_their_own(repository: Path, exporter: InMemorySpanExporter) -> None:
    rows = [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]
    async with gateway(Settings(repository=repository, trace_endpoint=ENDPOINT, audit="off")) as client:
        assert (await client.post("/v1/models/score:decide", json={"instances": rows})).status_code == 200
    (head,) = (span for span in spans(exporter) if span.parent is None)
    assert head.name == "decide score"
    assert head.attributes["rationale.verb"] == "decide"


async def test_a_caller_that_keeps_no_trace_is_followed(
    repository: Path, exporter: InMemorySpanExporter
) -> None:
    async with gateway(Settings(repository=repository, trace_endpoint=ENDPOINT)) as client:
        unsampled = {"traceparent": TRACEPARENT.removesuffix("01") + "00"}
        assert (
            await client.post("/v1/models/score:predict", json=ROWS, headers=unsampled)
        ).status_code == 200
    assert spans(exporter) == []


async def test_the_share_that_is_kept(repository: Path, exporter: InMemorySpanExporter) -> None:
    settings = Settings(repository=repository, trace_endpoint=ENDPOINT, trace_ratio=0)
    async with gateway(settings) as client:
        assert (await client.post("/v1/models/score:predict", json=ROWS)).status_code == 200
    assert spans(exporter) == []


async def test_without_tracing_the_callers_trace_goes_along_all_the_same(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grpc_end(Settings(repository=repository)) as behind:
        met: list[dict[str, str]] = []
        infer = behind.plane.infer

        async def recorded(*arguments: Any, **named: Any) -> Any:
            met.append(exchange.headers_to_forward())
            return await infer(*arguments, **named)

        monkeypatch.setattr(behind.plane, "infer", recorded)
        async with gateway(Settings(repository=repository, triton=behind.address)) as client:
            headers = {"traceparent": TRACEPARENT, "x-request-id": "mine"}
            await client.post("/v1/models/score:predict", json=ROWS, headers=headers)
            await client.post("/v1/models/score:predict", json=ROWS)
    assert met[0] == {"x-request-id": "mine", "traceparent": TRACEPARENT}
    assert met[1].keys() == {"x-request-id"}


async def test_request_ids_over_grpc(repository: Path) -> None:
    async with grpc_end(Settings(repository=repository)) as end:
        for request_id in ("mine", None):
            metadata = () if request_id is None else (("x-request-id", request_id),)
            call = end.stub.ModelInfer(request("score", GOOD), metadata=metadata)
            await call
            echoed = dict(await call.trailing_metadata())["x-request-id"]
            assert echoed == request_id if request_id else len(echoed) == 32
            refused = end.stub.ModelInfer(request("absent", GOOD), metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await refused
            assert "x-request-id" in dict(caught.value.trailing_metadata())


@pytest.mark.parametrize("request_id", ["", " ", "a b", "ü", "x" * 129])
async def test_a_request_id_that_cannot_stand_in_a_header(repository: Path, request_id: str) -> None:
    async with gateway(Settings(repository=repository)) as client:
        headers = {b"x-request-id": request_id.encode("latin-1")}
        answer = await client.post("/v1/models/score:predict", json=ROWS, headers=headers)
    assert len(answer.headers["x-request-id"]) == 32


async def test_a_refusal_and_a_fault_have_an_id_too(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(Settings(repository=repository)) as client:
        ids = {"x-request-id": "mine"}
        answer = await client.post("/v1/models/absent:predict", json=ROWS, headers=ids)
        assert (answer.status_code, answer.headers["x-request-id"]) == (404, "mine")
        monkeypatch.setattr("rationale_service.engine.features.form_of", lambda *_: 1 / 0)
        answer = await client.post("/v1/models/score:predict", json=ROWS, headers=ids)
        assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
        assert "division" not in answer.text
    assert "ZeroDivisionError" in caplog.text


async def test_what_is_missing_for_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidOptionError, match="pip install 'opentelemetry-"):
        create_tracing(ENDPOINT, 1.0)


async def test_who_sends_the_last_spans_holds_up_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the closing nor, where sending never ends, the end of the process."""
    monkeypatch.setattr("rationale_service.observability.tracing.CLOSE_S", 0.01)
    sending, answered = list[threading.Thread](), threading.Event()

    def shutdown() -> None:
        sending.append(threading.current_thread())
        answered.wait(60)

    exporter = InMemorySpanExporter()
    provider: Any = SimpleNamespace(get_tracer=lambda _: None, shutdown=shutdown)
    Tracing(provider, exporter).close()
    assert [thread.is_alive() and thread.daemon for thread in sending] == [True]
    answered.set()
