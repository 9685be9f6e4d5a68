"""Counts and durations of a model in the form of Triton's statistics: another view of Prometheus' metrics."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from rationale_service.observability.metrics import PHASES, Metrics, labels_of
from rationale_service.repository.entry import Entry

_REQUESTS = "rationale_requests_total"
_SUCCESS = "rationale_request_duration_seconds"
_PHASES = "rationale_request_phase_seconds_total"
_BATCHES = "rationale_batch_size"
_FAILED_FROM = 400

Sums = dict[tuple[str, str, str], float]  # by model, verb and sample, phase or "failed"


def statistics_of(metrics: Metrics, entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return one item for each entry, with the members of Triton's `ModelStatistics`.

    Every explainer of a model counts in one place, so the items of a model's explain entries are equal, and
    requests for decisions count with those for explanations: an explain entry answers both.
    Durations count requests, each in every phase; `inference_count` is rows and `execution_count` batches.
    """
    sums = _sums(metrics)
    return [_item(entry, sums) for entry in entries]


def _sums(metrics: Metrics) -> Sums:
    sums: Sums = defaultdict(float)
    for family in metrics.all_processes().collect():
        for sample in family.samples:
            name, labels = sample.name, sample.labels
            if name == _REQUESTS and int(labels["status"]) >= _FAILED_FROM:
                name = "failed"
            elif name == _PHASES:
                name = labels["phase"]
            sums[labels.get("model", ""), labels.get("verb", ""), name] += sample.value
    return sums


def _item(entry: Entry, sums: Sums) -> dict[str, Any]:
    label_sets = {labels_of(entry), labels_of(entry, decides=True)}

    def total(name: str) -> float:
        return sum(sums[*labels, name] for labels in label_sets)

    def duration(count: int, name: str) -> dict[str, int]:
        return {"count": count, "ns": int(total(name) * 1e9)}

    answered = int(total(f"{_SUCCESS}_count"))

    return {
        "name": entry.name,
        "version": entry.version,
        "inference_count": int(total(f"{_BATCHES}_sum")),
        "execution_count": int(total(f"{_BATCHES}_count")),
        "inference_stats": {
            "success": duration(answered, f"{_SUCCESS}_sum"),
            "fail": {"count": int(total("failed")), "ns": 0},
            **{phase: duration(answered, phase) for phase in PHASES},
        },
    }
