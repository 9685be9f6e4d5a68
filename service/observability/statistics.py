"""Counts and durations of a model as Triton's statistics tell them: another view of what Prometheus gets."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from service.observability.metrics import Metrics, labels_of
from service.repository.entry import Entry

# Triton's duration: where its count and its sum of seconds come from.
_DURATIONS = {
    "success": "rationale_request_duration_seconds",
    "queue": "rationale_queue_duration_seconds",
    "compute_infer": "rationale_compute_duration_seconds",
}
_BATCHES = "rationale_batch_size"
_REQUESTS = "rationale_requests_total"
_NS = 1e9
_FAILED_FROM = 400

Sums = dict[tuple[str, str, str], float]  # by sample, model and verb


def statistics_of(metrics: Metrics, entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """One item for each entry, in the members of Triton's `ModelStatistics`.

    Every explainer of a model counts in one place, so the items of a model's explain entries are equal.
    What a gateway does not measure apart (moving tensors in and out, single batch sizes) is left out.
    """
    sums = _sums(metrics)
    return [_item(entry, sums) for entry in entries]


def _sums(metrics: Metrics) -> Sums:
    sums: Sums = defaultdict(float)
    for family in metrics.all_processes().collect():
        for sample in family.samples:
            name = sample.name
            if name == _REQUESTS and int(sample.labels["status"]) >= _FAILED_FROM:
                name = "failed"
            sums[name, sample.labels.get("model", ""), sample.labels.get("verb", "")] += sample.value
    return sums


def _item(entry: Entry, sums: Sums) -> dict[str, Any]:
    labels: Sequence[str] = labels_of(entry)

    def total(name: str) -> float:
        return sums[name, labels[0], labels[1]]

    durations = {
        name: {"count": int(total(f"{source}_count")), "ns": int(total(f"{source}_sum") * _NS)}
        for name, source in _DURATIONS.items()
    }
    return {
        "name": entry.name,
        "version": entry.version,
        "inference_count": int(total(f"{_BATCHES}_sum")),
        "execution_count": int(total(f"{_BATCHES}_count")),
        "inference_stats": {**durations, "fail": {"count": int(total("failed")), "ns": 0}},
    }
