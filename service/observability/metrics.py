"""What the gateway counts, for Prometheus: `GET /metrics`.

Every app has a registry of its own. Labels are `model` (the plain model's name, also for its explanations),
`verb` (infer, explain), `protocol` (http, grpc) and the reasons and outcomes listed here: names that a caller
makes up never become labels, and explainers that come and go add none.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version as package_version

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from compiler.manifest import Manifest
from service.repository.entry import Entry
from service.tensors import Tensors

INFER, EXPLAIN = "infer", "explain"
UNKNOWN = ""  # the model, or verb, of a request that was refused before it named a known one

_DURATIONS_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
)  # fmt: skip
_LONG_DURATIONS_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_ROWS = tuple(2**power for power in range(13))
_GAPS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class EntryMetrics:
    """One model's series of one verb, looked up once: observing costs about a microsecond each."""

    request_s: Callable[[float], None]
    queue_s: Callable[[float], None]
    compute_s: Callable[[float], None]
    batch_rows: Callable[[float], None]
    gaps: "GapCounts"


@dataclass(frozen=True)
class CacheMetrics:
    hit: Callable[[], None]
    miss: Callable[[], None]


class Metrics:
    """The registry of one app and everything in it. All methods may be called from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._tallies = _Tallies()
        self.registry.register(self._tallies)  # before the counters: they are read in this order
        by_verb = ("model", "verb")
        self._requests = self._counter(
            "requests",
            "Requests answered; status is HTTP's, also over gRPC.",
            (*by_verb, "protocol", "status"),
        )
        self._rejections = self._counter(
            "rejections", "Requests not answered with a result, by the problem's name.", (*by_verb, "reason")
        )
        self._request_s = self._histogram(
            "request_duration_seconds", "From the request's first byte to its answer.", by_verb, _DURATIONS_S
        )
        self._queue_s = self._histogram(
            "queue_duration_seconds", "What a request waited before it was run.", by_verb, _DURATIONS_S
        )
        self._compute_s = self._histogram(
            "compute_duration_seconds",
            "What the run of a batch took; with Triton, what its answer took.",
            by_verb,
            _DURATIONS_S,
        )
        self._batch_rows = self._histogram("batch_size", "Rows of a batch that was run.", by_verb, _ROWS)
        self._gaps = _GapCollector()
        self.registry.register(self._gaps)
        self._cache = self._counter("cache_requests", "Questions to a cache.", ("cache", "result"))
        self._compile_s = self._histogram(
            "compile_duration_seconds", "Compiles of explainers.", ("outcome",), _LONG_DURATIONS_S
        )
        self._load_s = self._histogram(
            "load_duration_seconds", "Loading and warming of an entry.", by_verb, _LONG_DURATIONS_S
        )
        self.in_flight = self._gauge("requests_in_flight", "Requests accepted and not answered yet.")
        self.loaded_explainers = self._gauge("loaded_explainers", "Explain entries that are loaded.")
        self.ready = self._gauge(
            "ready", "1 while every model is loaded and no stop has begun; says nothing of a Triton behind."
        )
        self.cold_start_s = self._gauge(
            "cold_start_seconds", "From the start of the process until the gateway was ready."
        )
        Info("rationale_build", "What runs here.", registry=self.registry).info(
            {"version": package_version("rationale")}
        )
        ProcessCollector(registry=self.registry)
        self._entries: dict[tuple[str, str], EntryMetrics] = {}
        self._counted: dict[tuple[str, str, str, int], Callable[[], None]] = {}
        self._rejected: dict[tuple[str, str, str], Callable[[], None]] = {}

    def of(self, entry: Entry) -> EntryMetrics:
        """The series of the entry's model and verb."""
        labels = labels_of(entry)
        found = self._entries.get(labels)
        if found is None:
            found = self._entries[labels] = EntryMetrics(
                request_s=self._request_s.labels(*labels).observe,
                queue_s=self._queue_s.labels(*labels).observe,
                compute_s=self._compute_s.labels(*labels).observe,
                batch_rows=self._batch_rows.labels(*labels).observe,
                gaps=self._gaps.of(labels[0]),
            )
        return found

    def answered(self, entry: Entry | None, protocol: str, status: int) -> None:
        """Counts an answer. `entry` is None where the request named none that is known."""
        key = (*labels_of(entry), protocol, status)
        count = self._counted.get(key)
        if count is None:
            model, verb, *_ = key
            count = self._counted[key] = self._requests.labels(model, verb, protocol, str(status)).inc
        count()

    def rejected(self, entry: Entry | None, reason: str) -> None:
        """Counts a request without a result; `reason` is the problem's slug, such as queue-full."""
        key = (*labels_of(entry), reason)
        count = self._rejected.get(key)
        if count is None:
            count = self._rejected[key] = self._rejections.labels(*key).inc
        count()

    def refusals(self, entry: Entry, protocol: str, status: int, reason: str) -> "Tally":
        """Counts refusals as `answered` and `rejected` do, but on the event loop alone."""
        labels = labels_of(entry)
        key = (*labels, protocol, status, reason)
        found = self._tallies.kept.get(key)
        if found is None:
            answered = self._requests.labels(*labels, protocol, str(status))
            rejected = self._rejections.labels(*labels, reason)
            found = self._tallies.kept[key] = Tally(answered, rejected)
        return found

    def cache(self, name: str) -> CacheMetrics:
        """The counters of a cache: answers, artefacts …"""
        hits, misses = (self._cache.labels(name, result) for result in ("hit", "miss"))
        return CacheMetrics(hits.inc, misses.inc)

    def compiled(self, seconds: float, outcome: str) -> None:
        """A compile that ended: `outcome` is ready or failed."""
        self._compile_s.labels(outcome).observe(seconds)

    def loaded(self, entry: Entry, seconds: float) -> None:
        """An entry that was loaded and warmed."""
        self._load_s.labels(*labels_of(entry)).observe(seconds)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The page, and its content type: Prometheus' text format, or OpenMetrics for whoever accepts it."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"rationale_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"rationale_{name}", text, registry=self.registry)

    def _histogram(
        self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(f"rationale_{name}", text, labels, buckets=buckets, registry=self.registry)


class Tally:
    """Counts what comes too often for a Counter: those are told when somebody reads them."""

    __slots__ = ("_counters", "_known", "count")

    def __init__(self, *counters: Counter) -> None:
        self.count = 0  # for one thread to raise
        self._known = 0
        self._counters = counters

    def tell(self) -> None:
        """Brings the counters up to date. For one thread at a time."""
        new = self.count - self._known
        self._known += new
        for counter in self._counters:
            counter.inc(new)


class _Tallies(Collector):
    """All tallies; has no series of its own."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str, str, int, str], Tally] = {}
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            for tally in list(self.kept.values()):
                tally.tell()
        return ()

    def describe(self) -> Iterable[Metric]:
        return ()


class GapCounts:
    """How many explained rows had which relative gap: a histogram that takes an answer at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(_GAPS) + 1)
        self._sum = 0.0

    def observe(self, manifest: Manifest, tensors: Tensors) -> None:
        """Counts the rows of an answer, as far as it holds the gap and what the gap is relative to."""
        gaps = relative_gaps(manifest, tensors)
        places = [bisect_left(_GAPS, gap) for gap in gaps]
        with self._lock:
            for place in places:
                self._counts[place] += 1
            self._sum += sum(gaps)

    def snapshot(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, and the sum."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        bounds = [*(str(bound) for bound in _GAPS), "+Inf"]
        return [(bound, float(sum(counts[: i + 1]))) for i, bound in enumerate(bounds)], total


class _GapCollector(Collector):
    def __init__(self) -> None:
        self._models: dict[str, GapCounts] = {}

    def of(self, model: str) -> GapCounts:
        return self._models.setdefault(model, GapCounts())

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(
            "rationale_completeness_gap_ratio",
            "Largest completeness gap of an explained row, over its explained or base value.",
            labels=("model",),
        )
        for model, counts in list(self._models.items()):
            buckets, total = counts.snapshot()
            if buckets[-1][1]:
                family.add_metric((model,), buckets, total)
        yield family

    def describe(self) -> Iterator[HistogramMetricFamily]:
        yield from self.collect()


def labels_of(entry: Entry | None) -> tuple[str, str]:
    """Model and verb."""
    if entry is None:
        return UNKNOWN, UNKNOWN
    if entry.manifest is None:
        return entry.name, INFER
    return entry.manifest.model, EXPLAIN


def relative_gaps(manifest: Manifest, tensors: Tensors) -> list[float]:
    """For each row the largest |gap| over the larger of |explained| and |base|, over all targets.

    That is about 1e-7 where a float32 explanation adds up, and never divides by a difference of almost
    nothing. Empty where the method promises no completeness, or the gap was not asked for.
    """
    gap, explained = (
        tensors.get(name or "") for name in (manifest.completeness_gap, manifest.explained_value)
    )
    if gap is None or explained is None:
        return []
    base = tensors.get(manifest.base_value or "")
    tiny = float(np.finfo(explained.dtype).tiny)
    if gap.shape == (1, 1):  # most requests: a row, and a target
        scales = [abs(explained.item()), tiny] + ([] if base is None else [abs(base.item())])
        return [abs(gap.item()) / max(scales)]
    scale = np.abs(explained) if base is None else np.maximum(np.abs(explained), np.abs(base))
    ratios: list[float] = (np.abs(gap).max(axis=1) / np.maximum(scale.max(axis=1), tiny)).tolist()
    return ratios
