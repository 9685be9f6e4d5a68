"""The gateway's metrics for Prometheus: `GET /metrics`.

Every app has its own registry. Labels are `model` (the plain model's name, also for its explanations),
`verb` (infer, explain, and for requests also decide, which runs an explanation), `protocol` (http, grpc),
`arm` (default, canary), the features of a compiled decision profile, and the reasons and outcomes listed
here. A caller's text never becomes a label, and explainers that come and go add none.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from rationale.distribution import version
from rationale.schema.manifest import Manifest
from rationale_service.observability.processes import metrics_of_processes
from rationale_service.repository.entry import Entry
from rationale_service.tensors import Tensors

INFER, EXPLAIN, DECIDE = "infer", "explain", "decide"
OUTCOMES = ("ready", "failed")  # outcomes of compiles
PHASES = ("compute_input", "queue", "compute_infer", "compute_output")  # Triton's phases of a request
Labels = tuple[str, str]  # model and verb
DEFAULT, CANARY = "default", "canary"  # the arms of a model with a canary
BAD = 400  # from here on a status has no result
UNKNOWN = ""  # model and verb of requests refused before these are known

_DURATIONS_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
)  # fmt: skip
_LONG_DURATIONS_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_DAYS_S = tuple(86_400 * days for days in (1 / 24, 0.25, 1, 2, 5, 10, 20, 30, 60, 90))
_ROWS = tuple(2**power for power in range(13))
_Mode = Literal["livesum", "livemax", "livemin"]
_GAPS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class EntryMetrics:
    """Metrics of one model's runs for one verb, looked up once: an observation costs about a microsecond."""

    queue_s: Callable[[float], None]
    compute_s: Callable[[float], None]
    batch_rows: Callable[[float], None]
    gap: Callable[[float], None]


@dataclass(frozen=True)
class _RequestMetrics:
    """Metrics of the requests for one model and verb, looked up once like EntryMetrics."""

    seconds: Callable[[float], None]
    phases_s: Mapping[str, Callable[[float], None]]


@dataclass(frozen=True)
class CacheMetrics:
    hit: Callable[[], None]
    miss: Callable[[], None]


@dataclass(frozen=True)
class AuditMetrics:
    """The metrics of the audit trail.

    Attributes:
        write_s: observes the duration of a successful transaction.
        write_failed: counts a failed transaction.
        waiting: adds to the decisions that wait for the disk.
        unavailable: sets 1 if the trail is unavailable, else 0.
        review_s: observes the time that a decision of a model waited for its review.
        set_waiting_reviews: sets how many decisions of a model wait for a review, and are overdue.
    """

    write_s: Callable[[float], None]
    write_failed: Callable[[], None]
    waiting: Callable[[float], None]
    unavailable: Callable[[float], None]
    review_s: Callable[[str, float], None]
    set_waiting_reviews: Callable[[str, int, int], None]


class Metrics:
    """The registry of one app and its metrics. Any thread may call any method."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        by_verb = ("model", "verb")
        self._requests = self._counter(
            "requests",
            "Requests answered; status is HTTP's, also over gRPC.",
            (*by_verb, "protocol", "status"),
        )
        self._request_counter = cache(lambda *labels: self._requests.labels(*labels).inc)
        self._rejections = self._counter(
            "rejections", "Requests not answered with a result, by the problem's name.", (*by_verb, "reason")
        )
        self._arm_requests = self._counter(
            "canary_requests",
            "Explain requests of models with a canary, by who answered: default or canary.",
            ("model", "arm", "status"),
        )
        self._arm_s = self._histogram(
            "canary_duration_seconds",
            "Like request_duration_seconds, for models with a canary, by who answered.",
            ("model", "arm"),
            _DURATIONS_S,
        )
        self._request_s = self._histogram(
            "request_duration_seconds", "From the request's first byte to its answer.", by_verb, _DURATIONS_S
        )
        self._phases_s = self._counter(
            "request_phase_seconds", "Seconds of requests with a result, by phase.", (*by_verb, "phase")
        )
        self._queue_s = self._histogram(
            "queue_duration_seconds", "Time that a request waited before its run.", by_verb, _DURATIONS_S
        )
        self._compute_s = self._histogram(
            "compute_duration_seconds",
            "Time of a batch's run; with Triton, until its answer.",
            by_verb,
            _DURATIONS_S,
        )
        self._batch_rows = self._histogram("batch_size", "Rows of a batch that was run.", by_verb, _ROWS)
        self._gaps = self._histogram(
            "completeness_gap_ratio",
            "Largest completeness gap of an explained row, over its explained or base value.",
            ("model",),
            _GAPS,
        )
        self._cache = self._counter("cache_requests", "Lookups in a cache.", ("cache", "result"))
        self._compile_s = self._histogram(
            "compile_duration_seconds", "Compiles of explainers.", ("outcome",), _LONG_DURATIONS_S
        )
        for outcome in OUTCOMES:  # shown as 0 first: a series that begins at 1 shows no rise
            self._compile_s.labels(outcome)
        self._load_s = self._histogram(
            "load_duration_seconds", "Loading and warming of an entry.", by_verb, _LONG_DURATIONS_S
        )
        self.in_flight = self._gauge(
            "requests_in_flight", "Requests accepted and not answered yet.", "livesum"
        )
        self.loaded_explainers = self._gauge(
            "loaded_explainers", "Explain entries that are loaded.", "livemax"
        )
        self.ready = self._gauge(
            "ready",
            "1 while every model is loaded and no stop has begun; a Triton behind is not asked.",
            "livemin",
        )
        self.workers = self._gauge("workers", "Configured number of processes (--workers).", "livemax")
        self.workers_ready = self._gauge("workers_ready", "Number of processes that are ready.", "livesum")
        self.unserved_entries = self._gauge(
            "unserved_entries",
            "Folders of the repository whose current content is not served.",
            "livemax",
        )
        self.cold_start_s = self._gauge(
            "cold_start_seconds", "From the start of the process until the gateway was ready.", "livemax"
        )
        self._windows = self._gauge(
            "decisions_in_window",
            "Decisions over which drift is measured.",
            "livesum",
            ("model",),
        )
        self._score_psi = self._gauge(
            "score_psi", "Population stability of the window's scores.", "livemax", ("model",)
        )
        self._attribution_psi = self._gauge(
            "attribution_psi",
            "Population stability of a feature's attributions: the window against the references.",
            "livemax",
            ("model", "feature"),
        )
        self._failures = self._counter(
            "dependency_failures",
            "Calls to another machine that failed or took too long.",
            ("dependency",),
        )
        self.audit = self._audit_metrics()
        self._gauge("build_info", "The running version.", "livemax", ("version",)).labels(version()).set(1)
        ProcessCollector(registry=self.registry)
        self._entries: dict[Labels, EntryMetrics] = {}
        self._of_requests = cache(self._series_of_requests)

    def _audit_metrics(self) -> AuditMetrics:
        waited = self._histogram(
            "review_wait_seconds",
            "Time from a decision's wait for a review to that review.",
            ("model",),
            _DAYS_S,
        )
        waiting = self._gauge(
            "reviews_waiting", "Decisions that wait for a person's review.", "livemax", ("model",)
        )
        overdue = self._gauge(
            "reviews_overdue",
            "Decisions that wait for longer than the profile allows.",
            "livemax",
            ("model",),
        )

        def set_waiting_reviews(model: str, count: int, late: int) -> None:
            waiting.labels(model).set(count)
            overdue.labels(model).set(late)

        return AuditMetrics(
            self._histogram(
                "audit_write_seconds", "Transactions that recorded decisions.", (), _DURATIONS_S
            ).observe,
            self._counter(
                "audit_write_failures", "Transactions that failed: their decisions were not answered.", ()
            ).inc,
            self._gauge("audit_waiting", "Decisions that wait until they are recorded.", "livesum").inc,
            self._gauge(
                "audit_unavailable", "1 while the audit trail refuses decisions, else 0.", "livemax"
            ).set,
            lambda model, seconds: waited.labels(model).observe(seconds),
            set_waiting_reviews,
        )

    def of(self, entry: Entry) -> EntryMetrics:
        """Return the series of the entry's model and verb.

        From now on the page also shows the series of requests for it.
        """
        labels = labels_of(entry)
        series = self._entries.get(labels)
        if series is None:
            for verb in (labels[1], *((DECIDE,) if entry.has_profile else ())):
                self._of_requests((labels[0], verb))
            series = self._entries[labels] = EntryMetrics(
                queue_s=self._queue_s.labels(*labels).observe,
                compute_s=self._compute_s.labels(*labels).observe,
                batch_rows=self._batch_rows.labels(*labels).observe,
                gap=self._gaps.labels(labels[0]).observe,
            )
        return series

    def count_answer(self, labels: Labels, protocol: str, status: int) -> None:
        """Count an answer."""
        self._request_counter(*labels, protocol, status)()

    def time_answer(self, labels: Labels, seconds: float, phases: Mapping[str, float]) -> None:
        """Time an answer with a result, and each of its PHASES."""
        of = self._of_requests(labels)
        of.seconds(seconds)
        for phase, phase_s in phases.items():
            of.phases_s[phase](phase_s)

    def count_canary(self, model: str, arm: str, status: int, seconds: float) -> None:
        """Count and time an answer of one arm of a model with a canary."""
        self._arm_requests.labels(model, arm, status).inc()
        if status < BAD:
            self._arm_s.labels(model, arm).observe(seconds)

    def count_rejection(self, labels: Labels, reason: str) -> None:
        """Count a request without a result; `reason` is the problem's slug, such as queue-full."""
        self._rejections.labels(*labels, reason).inc()

    def observe_gaps(self, entry: Entry, tensors: Tensors) -> None:
        """Count the rows of an explanation by their completeness gap, if the answer has it."""
        if entry.manifest is not None:
            observe = self.of(entry).gap
            for gap in relative_gaps(entry.manifest, tensors):
                observe(gap)

    def cache(self, name: str) -> CacheMetrics:
        """Return the counters of a cache, such as answers or artifacts."""
        hits, misses = (self._cache.labels(name, result) for result in ("hit", "miss"))
        return CacheMetrics(hits.inc, misses.inc)

    def dependency(self, name: str) -> Callable[[], None]:
        """Return a function that counts failures of another machine, named such as state or rates."""
        return self._failures.labels(name).inc

    def time_compile(self, seconds: float, outcome: str) -> None:
        """Time a finished compile: `outcome` is ready or failed."""
        self._compile_s.labels(outcome).observe(seconds)

    def time_load(self, entry: Entry, seconds: float) -> None:
        """Time the loading and warming of an entry."""
        self._load_s.labels(*labels_of(entry)).observe(seconds)

    def set_drift(self, model: str, decisions: int, figures: Mapping[str, float]) -> None:
        """Set the drift of a window of decisions from the references by feature or group; '' is the score."""
        self._windows.labels(model).set(decisions)
        for key, figure in figures.items():
            gauge = self._score_psi.labels(model) if key == "" else self._attribution_psi.labels(model, key)
            gauge.set(figure)

    def all_processes(self) -> CollectorRegistry:
        """Return the metrics to show.

        In prometheus_client's multiprocess mode they cover all processes that share a folder.
        """
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return self.registry
        together = metrics_of_processes(os.environ["PROMETHEUS_MULTIPROC_DIR"])
        ProcessCollector(registry=together)  # metrics of the process that answers
        return together

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type: Prometheus' text, or OpenMetrics if `accept` allows it."""
        encode, content_type = choose_encoder(accept)
        return encode(self.all_processes()), content_type

    def _series_of_requests(self, labels: Labels) -> _RequestMetrics:
        return _RequestMetrics(
            self._request_s.labels(*labels).observe,
            {phase: self._phases_s.labels(*labels, phase).inc for phase in PHASES},
        )

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"rationale_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, over_processes: _Mode, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(
            f"rationale_{name}", text, labels, registry=self.registry, multiprocess_mode=over_processes
        )

    def _histogram(
        self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(f"rationale_{name}", text, labels, buckets=buckets, registry=self.registry)


def labels_of(entry: Entry | None, *, decides: bool = False) -> Labels:
    """Return the labels of model and verb.

    Args:
        entry: entry of the request; None if the request named no known one.
        decides: True if the request asks the entry to decide, not to explain.
    """
    if entry is None:
        return UNKNOWN, UNKNOWN
    if entry.manifest is None:
        return entry.name, INFER
    return entry.manifest.model, DECIDE if decides else EXPLAIN


def relative_gaps(manifest: Manifest, tensors: Tensors) -> list[float]:
    """Return per row the largest |gap| over the larger of |explained| and |base|, over all targets.

    It is about 1e-7 if a float32 explanation is complete, and never divides by a difference of almost zero.
    The list is empty if the method promises no completeness, or the request did not ask for the gap.
    """
    gap, explained = (
        tensors.get(name or "") for name in (manifest.completeness_gap, manifest.explained_value)
    )
    if gap is None or explained is None:
        return []
    base = tensors.get(manifest.base_value or "")
    tiny = float(np.finfo(explained.dtype).tiny)
    if gap.shape == (1, 1):  # most requests: one row and one target
        scales = [abs(explained.item()), tiny] + ([] if base is None else [abs(base.item())])
        return [abs(gap.item()) / max(scales)]
    scale = np.abs(explained) if base is None else np.maximum(np.abs(explained), np.abs(base))
    ratios: list[float] = (np.abs(gap).max(axis=1) / np.maximum(scale.max(axis=1), tiny)).tolist()
    return ratios
