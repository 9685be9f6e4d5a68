"""Metrics over OTLP: a collector has what `GET /metrics` shows, and never holds a request or the stop up."""

import contextlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as messages
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as services
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from rationale.errors import InvalidOptionError
from rationale_service.observability import otlp
from rationale_service.observability.otlp import create_metrics_push, metrics_of
from rationale_service.settings import Settings
from tests.grid import grid
from tests.service import handmade, patient
from tests.service.child import SECONDS, ready_line, serve, until
from tests.service.conftest import gateway

ROWS = {"instances": handmade.X[:3].tolist()}
Series = tuple[str, frozenset[tuple[str, str | float]]]
Samples = dict[Series, float]
OWN_VALUES = "process_"  # of the process: they change between two looks


class Collector(services.MetricsServiceServicer):
    """An OpenTelemetry collector's gRPC end. Keeps what it was sent last."""

    def __init__(self) -> None:
        self.requests: list[messages.ExportMetricsServiceRequest] = []

    def Export(  # noqa: N802  # the protocol's name
        self, request: messages.ExportMetricsServiceRequest, _: grpc.ServicerContext
    ) -> messages.ExportMetricsServiceResponse:
        self.requests.append(request)
        return messages.ExportMetricsServiceResponse()

    @property
    def metrics(self) -> list[Metric]:
        """Those of the last request."""
        if not self.requests:
            return []
        [of_resource] = self.requests[-1].resource_metrics
        [scope] = of_resource.scope_metrics
        assert scope.scope.name == "rationale"
        return list(scope.metrics)

    @property
    def samples(self) -> Samples:
        """The last request, as Prometheus would show it."""
        return {series: value for metric in self.metrics for series, value in shown(metric)}

    @property
    def resources(self) -> list[dict[str, str]]:
        """The different ones, of all requests."""
        collected = []
        for request in self.requests:
            [of_resource] = request.resource_metrics
            named = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            collected += [] if named in collected else [named]
        return collected


def shown(metric: Metric) -> Iterator[tuple[Series, float]]:
    kind = metric.WhichOneof("data")
    if kind != "gauge":
        temporality = getattr(metric, kind).aggregation_temporality
        assert temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    for point in getattr(metric, kind).data_points:
        assert kind == "gauge" or 0 < point.start_time_unix_nano <= point.time_unix_nano
        labels = frozenset((each.key, each.value.string_value) for each in point.attributes)
        if kind != "histogram":
            yield (metric.name, labels), point.as_double
            continue
        assert not point.HasField("min")
        assert not point.HasField("max")
        counted = 0
        for bound, count in zip([*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True):
            counted += count
            yield (f"{metric.name}_bucket", labels | {("le", bound)}), counted
        yield (f"{metric.name}_count", labels), point.count
        yield (f"{metric.name}_sum", labels), point.sum


def of_page(page: str) -> Samples:
    collected = {}
    for sample in (each for family in text_string_to_metric_families(page) for each in family.samples):
        labels = {name: float(text) if name == "le" else text for name, text in sample.labels.items()}
        if not sample.name.endswith("_created"):
            collected[sample.name, frozenset(labels.items())] = sample.value
    return collected


def of_gateway(samples: Samples) -> Samples:
    return {series: value for series, value in samples.items() if not series[0].startswith(OWN_VALUES)}


@contextlib.contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    services.add_MetricsServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    with collecting() as actual:
        yield actual


@pytest.mark.asyncio(loop_scope="session")
async def test_the_collector_has_what_the_page_shows(
    repository: Path, collector: tuple[Collector, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=credit")
    received, endpoint = collector
    settings = Settings(repository=repository, metrics_endpoint=endpoint, metrics_interval_s=0.1, audit="off")
    async with gateway(settings) as client:
        for _ in range(3):
            assert (await client.post("/v1/models/score:explain", json=ROWS)).status_code == 200
        assert (await client.post("/v1/models/score:predict", json=ROWS)).status_code == 200
        assert (await client.post("/v1/models/absent:predict", json=ROWS)).status_code == 404
        page = of_page((await client.get("/metrics")).text)
        until(lambda: of_gateway(received.samples) == of_gateway(page))
        assert received.samples.keys() == page.keys()
    answered = frozenset({"model": "score", "verb": "explain", "protocol": "http", "status": "200"}.items())
    assert page["rationale_requests_total", answered] == 3
    kinds = {metric.name: metric.WhichOneof("data") for metric in received.metrics}
    assert kinds["rationale_requests_total"] == "sum"
    assert kinds["rationale_queue_duration_seconds"] == "histogram"
    assert kinds["rationale_ready"] == "gauge"
    assert {metric.name for metric in received.metrics if metric.sum.is_monotonic} >= {
        "rationale_requests_total"
    }
    [named] = received.resources
    assert named["service.name"] == "credit"
    assert named["deployment.environment.name"] == "test"
    assert named["service.instance.id"]


@pytest.mark.asyncio(loop_scope="session")
async def test_what_was_counted_last_is_sent_at_the_stop(
    repository: Path, collector: tuple[Collector, str]
) -> None:
    received, endpoint = collector
    async with gateway(Settings(repository=repository, metrics_endpoint=endpoint)) as client:
        assert (await client.post("/v1/models/score:predict", json=ROWS)).status_code == 200
        assert received.requests == []
    assert len(received.requests) == 1
    series = frozenset({"model": "score", "verb": "infer", "protocol": "http", "status": "200"}.items())
    assert received.samples["rationale_requests_total", series] == 1


@pytest.mark.full
def test_workers_are_one_instance_that_survives_them(
    repository: Path, tmp_path: Path, collector: tuple[Collector, str]
) -> None:
    received, endpoint = collector
    settings = {
        "RATIONALE_REPOSITORY": str(repository),
        "RATIONALE_STATE": str(tmp_path / "state"),
        "RATIONALE_METRICS_ENDPOINT": endpoint,
        "RATIONALE_METRICS_INTERVAL_S": "0.2",
    }
    with serve("--port", "0", "--workers", "2", **settings) as child:
        url, _ = ready_line(child)
        for _ in range(20):  # over a connection each, so that both have some
            assert patient.post(f"{url}/v1/models/score:predict", json=ROWS).status_code == 200
        page = of_page(patient.get(f"{url}/metrics").text)
        until(lambda: received.samples == of_gateway(page))
        [instance] = received.resources
        child.send_signal(signal.SIGTERM)
        assert child.wait(SECONDS) == 0
    assert received.resources == [instance]
    series = frozenset({"model": "score", "verb": "infer", "protocol": "http", "status": "200"}.items())
    assert received.samples["rationale_requests_total", series] == 20
    assert "rationale_requests_in_flight" not in {
        name for name, _ in received.samples
    }  # of processes that live


# --- a collector that is away, or slow --------------------------------------------------------------


@contextlib.contextmanager
def mute() -> Iterator[str]:
    """A collector that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def away() -> Iterator[str]:
    """A port at which nobody listens, and which stays so."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{reserved.getsockname()[1]}"


@grid("signal, collector_of", ["metrics", "trace"], [mute, away])
@pytest.mark.asyncio(loop_scope="session")
async def test_a_collector_that_does_not_answer_holds_nobody_up(
    repository: Path, collector_of: Callable[[], AbstractContextManager[str]], signal: str
) -> None:
    with collector_of() as endpoint:
        options: dict[str, Any] = {"metrics_interval_s": 0.1, f"{signal}_endpoint": endpoint}
        settings = Settings(repository=repository, **options)
        async with gateway(settings) as client:
            for _ in range(600):  # more spans than are sent in one go
                began_s = time.monotonic()
                answer = await client.post("/v1/models/score:predict", json=ROWS)
                assert answer.status_code == 200
                assert time.monotonic() - began_s < 5
            stopping_s = time.monotonic()
        assert time.monotonic() - stopping_s < otlp.CLOSE_S + 3


def test_a_collector_that_comes_back_has_all_that_was_counted() -> None:
    registry = CollectorRegistry()
    counter = Counter("asked", "", registry=registry)
    with away() as endpoint:
        push = create_metrics_push(endpoint, 0.1, lambda: registry)
        push.start()
        counter.inc(2)
        time.sleep(0.5)
    received = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    services.add_MetricsServiceServicer_to_server(received, server)
    server.add_insecure_port(endpoint.removeprefix("http://"))
    server.start()
    try:
        until(lambda: received.samples == {("asked_total", frozenset()): 2})
    finally:
        push.close()
        server.stop(0).wait()


def test_a_fault_in_reading_ends_no_sending(
    collector: tuple[Collector, str], caplog: pytest.LogCaptureFixture
) -> None:
    received, endpoint = collector
    failed = threading.Event()

    def read() -> CollectorRegistry:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("torn")
        return CollectorRegistry()

    push = create_metrics_push(endpoint, 0.1, read)
    push.start()
    until(lambda: len(received.requests) > 0)
    push.close()
    assert "not sent" in caplog.text


# --- how families are told --------------------------------------------------------------------------


def test_each_kind_of_prometheus() -> None:
    registry = CollectorRegistry()
    Counter("asked", "Requests.", ["model"], registry=registry).labels("credit").inc(3)
    Gauge("under_way", "Now.", registry=registry).set(-1.5)
    Info("build", "What runs.", registry=registry).info({"version": "1"})
    histogram = Histogram("took", "Times.", buckets=(1, 2), registry=registry)
    for value in (0.5, 1, 1.5, 9):
        histogram.observe(value)
    actual: dict[str, Any] = {
        metric.name: metric for family in registry.collect() for metric in metrics_of(family, 5, 7)
    }
    assert actual.keys() == {"asked_total", "under_way", "build_info", "took"}
    assert actual["asked_total"].description == "Requests."
    assert actual["asked_total"].data.is_monotonic
    [sum_point] = actual["asked_total"].data.data_points
    assert (sum_point.attributes, sum_point.value) == ({"model": "credit"}, 3)
    assert (sum_point.start_time_unix_nano, sum_point.time_unix_nano) == (5, 7)
    assert [point.value for point in actual["under_way"].data.data_points] == [-1.5]
    [took] = actual["took"].data.data_points
    assert (took.count, took.sum) == (4, 12)
    assert (took.explicit_bounds, took.bucket_counts) == ([1, 2], [2, 1, 1])


# --- what is given wrongly --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"metrics_endpoint": "localhost:4317"},
        {"metrics_endpoint": "http://localhost:4318/v1/metrics"},
        {"metrics_interval_s": 0},
        {"metrics_interval_s": float("inf")},
        {"metrics_interval_s": float("nan")},
    ],
)
def test_settings_that_make_no_sense(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(value))):
        Settings(**value)


def test_what_is_missing_for_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.grpc.metric_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidOptionError, match="pip install 'opentelemetry-"):
        create_metrics_push("http://127.0.0.1:4317", 60, CollectorRegistry)
