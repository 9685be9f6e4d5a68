"""OpenTelemetry metrics: what `GET /metrics` shows, sent to a collector (OTLP over gRPC). An optional extra.

Nothing is counted twice: what is sent is read from the registry that Prometheus' page is made of, and has
its names.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family

from rationale.distribution import install
from rationale.errors import InvalidOptionError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export as otel
    from opentelemetry.sdk.resources import Resource

log = logging.getLogger(__name__)

CLOSE_S = 2.0  # a collector that does not answer does not hold the stop up for longer
_Read = Callable[[], CollectorRegistry]


class MetricsPush:
    """Sends the metrics at an interval, by a thread that no request waits for, and the stop for CLOSE_S."""

    def __init__(
        self, exporter: "otel.MetricExporter", resource: "Resource", read: _Read, interval_s: float
    ) -> None:
        self._exporter = exporter
        self._resource = resource
        self._read = read
        self._interval_s = interval_s
        self._began_ns = time.time_ns()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-push", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send what was counted last, within a bounded time."""
        self._closing.set()
        self._thread.join(CLOSE_S)
        self._exporter.shutdown()  # ends a call that is under way

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(self._interval_s)
            try:
                self._exporter.export(self._snapshot())
            except Exception:
                log.exception("metrics were not sent")

    def _snapshot(self) -> "otel.MetricsData":
        from opentelemetry.sdk.metrics import export as otel
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        now_ns = time.time_ns()
        found = [
            metric
            for family in self._read().collect()
            for metric in metrics_of(family, self._began_ns, now_ns)
        ]
        scope = otel.ScopeMetrics(InstrumentationScope("rationale"), found, "")
        return otel.MetricsData([otel.ResourceMetrics(self._resource, [scope], "")])


def metrics_of(family: Family, began_ns: int, now_ns: int) -> Iterator["otel.Metric"]:
    """Yield a family of Prometheus' as OpenTelemetry metrics: sums, gauges, or a histogram.

    Args:
        began_ns: since when its counters count.
    """
    from opentelemetry.sdk.metrics import export as otel

    cumulative = otel.AggregationTemporality.CUMULATIVE
    if family.type == "histogram":
        if points := _histogram_points(family, began_ns, now_ns):
            yield otel.Metric(family.name, family.documentation, "", otel.Histogram(points, cumulative))
        return
    by_name: dict[str, list[otel.NumberDataPoint]] = {}
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            point = otel.NumberDataPoint(sample.labels, began_ns, now_ns, sample.value)
            by_name.setdefault(sample.name, []).append(point)
    for name, numbers in by_name.items():
        data = otel.Sum(numbers, cumulative, True) if family.type == "counter" else otel.Gauge(numbers)
        yield otel.Metric(name, family.documentation, "", data)


def _histogram_points(family: Family, began_ns: int, now_ns: int) -> list["otel.HistogramDataPoint"]:
    """Return a point for each series.

    Prometheus' buckets count what is up to a bound, OpenTelemetry's what is between two.
    """
    from opentelemetry.sdk.metrics import export as otel

    up_to: dict[tuple[tuple[str, str], ...], dict[float, int]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        series = tuple(sorted((name, text) for name, text in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            up_to.setdefault(series, {})[float(sample.labels["le"])] = int(sample.value)
        elif sample.name.endswith("_sum"):
            sums[series] = sample.value
    points = []
    for series, counts in up_to.items():
        bounds = sorted(counts)
        reached = [counts[bound] for bound in bounds]
        points.append(
            otel.HistogramDataPoint(
                attributes=dict(series),
                start_time_unix_nano=began_ns,
                time_unix_nano=now_ns,
                count=reached[-1],
                sum=sums[series],
                bucket_counts=[high - low for low, high in zip([0, *reached], reached, strict=False)],
                explicit_bounds=bounds[:-1],  # the last is infinity
                min=None,  # type: ignore[arg-type]  # optional in the protocol, and not known here
                max=None,  # type: ignore[arg-type]
            )
        )
    return points


def resource() -> "Resource":
    """Return what this gateway is called; OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME come first."""
    from opentelemetry.sdk.resources import (
        SERVICE_INSTANCE_ID,
        SERVICE_NAME,
        OTELResourceDetector,
        Resource,
    )

    ours = {SERVICE_NAME: "rationale", SERVICE_INSTANCE_ID: f"{socket.gethostname()}:{os.getpid()}"}
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def create_metrics_push(endpoint: str, interval_s: float, read: _Read) -> MetricsPush:
    """Create what sends metrics to the OpenTelemetry collector at `endpoint`, such as http://localhost:4317.

    Raises:
        InvalidOptionError: the extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        raise InvalidOptionError(
            f"metrics for a collector need OpenTelemetry: {install('tracing')}"
        ) from error
    exporter = OTLPMetricExporter(endpoint, insecure=endpoint.startswith("http://"))
    return MetricsPush(exporter, resource(), read, interval_s)
