"""What `GET /metrics` says, and that it cannot be made to say too much."""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rationale_service.observability.metrics import DECIDE, EXPLAIN, INFER, Metrics, labels_of, relative_gaps
from rationale_service.observability.processes import metrics_of_processes
from rationale_service.observability.statistics import statistics_of
from rationale_service.repository.registry import read_repository
from rationale_service.settings import Settings
from tests.service import handmade
from tests.service.conftest import gateway
from tests.service.grpc_end import grpc_end

SESSION = pytest.mark.asyncio(loop_scope="session")


def samples(page: str) -> dict[str, float]:
    """{'name{label=value,…}': value}, labels in alphabetical order, without empty ones."""
    collected = {}
    for sample in (each for family in text_string_to_metric_families(page) for each in family.samples):
        labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if value)
        collected[f"{sample.name}{{{labels}}}"] = sample.value
    return collected


async def scraped(client: httpx.AsyncClient) -> dict[str, float]:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    return samples(answer.text)


def test_labels_are_the_plain_model_and_the_verb(repository: Path) -> None:
    entries = read_repository(repository).entries
    assert labels_of(entries["score"]) == ("score", INFER)
    assert labels_of(entries["score_explain"]) == ("score", EXPLAIN)
    assert labels_of(entries["score_explain"], decides=True) == ("score", DECIDE)
    assert labels_of(None, decides=True) == ("", "")


def test_each_app_has_its_own_numbers(repository: Path) -> None:
    entry = read_repository(repository).entries["score"]
    first, other = Metrics(), Metrics()
    first.time_answer(labels_of(entry), 0.003, {})
    name = "rationale_request_duration_seconds_count{model=score,verb=infer}"
    assert samples(first.exposition()[0].decode())[name] == 1
    assert name not in samples(other.exposition()[0].decode())


# Two processes, each with numbers of its own; the second reads what all have.
PROCESS = """
import sys
from pathlib import Path
from rationale_service.observability.metrics import Metrics, labels_of
from rationale_service.observability.statistics import statistics_of
from rationale_service.repository.registry import read_repository

entry = read_repository(Path(sys.argv[1])).entries["score_explain"]
metrics = Metrics()
of = metrics.of(entry)
for observe in (of.batch_rows, of.gap):
    observe(0.5)
metrics.time_answer(labels_of(entry), 0.5, {})
metrics.time_answer(labels_of(entry, decides=True), 0.25, {})
metrics.count_answer(labels_of(entry), "http", 200)
metrics.in_flight.inc()
metrics.ready.set(int(sys.argv[2]))
metrics.cold_start_s.set(int(sys.argv[2]))
metrics.set_drift("score", 300, {"": 0.2, "debt": float(sys.argv[2])})
print(metrics.exposition()[0].decode())
print("#", statistics_of(metrics, [entry])[0]["inference_stats"]["success"])
"""


def test_processes_with_one_folder_add_up(repository: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for number in "10":
        command = [sys.executable, "-c", PROCESS, str(repository), number]
        text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    page = samples(text)
    labels = "model=score,verb=explain"
    assert page["rationale_requests_total{model=score,protocol=http,status=200,verb=explain}"] == 2
    assert page[f"rationale_request_duration_seconds_bucket{{le=0.5,{labels}}}"] == 2
    assert page["rationale_completeness_gap_ratio_sum{model=score}"] == 1
    assert page["rationale_requests_in_flight{}"] == 2
    assert (page["rationale_ready{}"], page["rationale_cold_start_seconds{}"]) == (0, 1)
    assert page["rationale_decisions_in_window{model=score}"] == 600
    assert page["rationale_score_psi{model=score}"] == 0.2
    assert page["rationale_attribution_psi{feature=debt,model=score}"] == 1  # the window that moved most
    assert text.splitlines()[-1] == "# {'count': 4, 'ns': 1500000000}"


def test_requests_that_failed_are_those_from_400_on(repository: Path) -> None:
    entry, metrics = read_repository(repository).entries["score_explain"], Metrics()
    for status in (200, 304, 399, 400, 499, 500):
        metrics.count_answer(labels_of(entry), "http", status)
    (item,) = statistics_of(metrics, [entry])
    assert item["inference_stats"]["fail"] == {"count": 3, "ns": 0}


def test_a_file_that_a_process_is_just_creating_is_left_out(tmp_path: Path) -> None:
    """A restarted worker opens its files empty; a scrape in that moment was a 500."""
    (tmp_path / "counter_1.db").touch()
    (tmp_path / "gauge_livesum_2.db").symlink_to(tmp_path / "gone")  # one that an ended worker leaves
    assert list(metrics_of_processes(str(tmp_path)).collect()) == []


def test_everything_that_can_be_counted(repository: Path) -> None:
    entries = read_repository(repository).entries
    metrics = Metrics()
    of = metrics.of(entries["score_explain"])
    assert metrics.of(entries["score_explain"]) is of
    for observe, value in (
        (of.queue_s, 0.0004),
        (of.compute_s, 40),
        (of.batch_rows, 3),
    ):
        observe(value)
    explained = labels_of(entries["score_explain"])
    metrics.time_answer(explained, 0.004, {})
    metrics.count_answer(explained, "grpc", 200)
    metrics.count_answer(labels_of(None), "http", 404)
    metrics.count_rejection(labels_of(None), "unknown-model")
    metrics.cache("answers").hit()
    metrics.cache("answers").miss()
    metrics.time_compile(12, "failed")
    metrics.time_load(entries["score"], 0.2)
    metrics.in_flight.inc()
    metrics.loaded_explainers.set(2)
    page = samples(metrics.exposition()[0].decode())
    labels = "model=score,verb=explain"
    assert page[f"rationale_request_duration_seconds_bucket{{le=0.005,{labels}}}"] == 1
    assert page[f"rationale_request_duration_seconds_bucket{{le=0.0025,{labels}}}"] == 0
    assert page[f"rationale_queue_duration_seconds_bucket{{le=0.0005,{labels}}}"] == 1
    assert page[f"rationale_compute_duration_seconds_bucket{{le=30.0,{labels}}}"] == 0
    assert page[f"rationale_compute_duration_seconds_sum{{{labels}}}"] == 40
    assert page[f"rationale_batch_size_bucket{{le=4.0,{labels}}}"] == 1
    assert page["rationale_requests_total{model=score,protocol=grpc,status=200,verb=explain}"] == 1
    assert page["rationale_requests_total{protocol=http,status=404}"] == 1
    assert page["rationale_rejections_total{reason=unknown-model}"] == 1
    assert page["rationale_cache_requests_total{cache=answers,result=hit}"] == 1
    assert page["rationale_cache_requests_total{cache=answers,result=miss}"] == 1
    assert page["rationale_compile_duration_seconds_count{outcome=failed}"] == 1
    assert page["rationale_load_duration_seconds_count{model=score,verb=infer}"] == 1
    assert page["rationale_requests_in_flight{}"] == 1
    assert page["rationale_loaded_explainers{}"] == 2
    assert any(name.startswith("rationale_build_info{version=") for name in page)
    assert page["process_resident_memory_bytes{}"] > 1e6


def test_relative_gaps(repository: Path) -> None:
    manifest = read_repository(repository).entries["score_explain"].manifest
    tensors = {
        manifest.completeness_gap: np.array([[0.0, -0.02], [0.001, 0.0], [0.0, 0.0]], np.float32),
        manifest.explained_value: np.array([[1.0, -2.0], [0.1, 0.0], [0.0, 0.0]], np.float32),
        manifest.base_value: np.array([[0.5, 1.0], [0.0, -1.0], [0.0, 0.0]], np.float32),
    }
    np.testing.assert_allclose(relative_gaps(manifest, tensors), [0.01, 0.001, 0], rtol=1e-6)
    assert relative_gaps(manifest, {}) == []
    numbers = np.array([[2.0, -3.0, 0.0, 4.0], [-8.0, 1.0, 5.0, 0.0], [-0.01, 0.02, 0.03, 0.04]], np.float32)
    names = (manifest.explained_value, manifest.base_value, manifest.completeness_gap)
    rows = {name: own[:, None] for name, own in zip(names, numbers, strict=True)}
    without = {name: own for name, own in rows.items() if name != manifest.base_value}
    for given in (rows, without):  # most requests have one row and one target, which is counted apart
        alone = [
            relative_gaps(manifest, {name: own[i : i + 1] for name, own in given.items()}) for i in range(4)
        ]
        assert np.concatenate(alone) == pytest.approx(relative_gaps(manifest, given), rel=1e-6)
    np.testing.assert_allclose(
        relative_gaps(manifest, rows), [0.01 / 8, 0.02 / 3, 0.03 / 5, 0.04 / 4], rtol=1e-6
    )


@SESSION
async def test_gaps_of_answers_are_counted_by_row(repository: Path) -> None:
    async with gateway(Settings(repository=repository)) as client:
        body = {"instances": handmade.X.tolist()}
        assert (await client.post("/v1/models/score:explain", json=body)).status_code == 200
        page = await scraped(client)
        assert page["rationale_completeness_gap_ratio_count{model=score}"] == len(handmade.X)
        assert page["rationale_completeness_gap_ratio_bucket{le=1e-05,model=score}"] == len(handmade.X)
        assert page["rationale_completeness_gap_ratio_sum{model=score}"] < 1e-4


@SESSION
async def test_decisions_are_counted_and_logged_as_such(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are; the batches that the backend runs for them are explanations."""
    caplog.set_level(logging.INFO, "rationale.access")
    async with gateway(Settings(repository=repository, audit="off")) as client:
        started = await scraped(client)
        assert started["rationale_request_duration_seconds_count{model=score,verb=decide}"] == 0
        rows = [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]
        answers = [await client.post("/v1/models/score:decide", json={"instances": rows}) for _ in "12"]
        assert [answer.status_code for answer in answers] == [200, 200]
        refused = await client.post("/v1/models/score:decide", json={"instances": [{}]})
        assert refused.status_code == 422
        assert (await client.post("/v1/models/score:explain", json={"instances": rows})).status_code == 200
        page = await scraped(client)
        (body,) = (await client.get("/v2/models/score_explain/stats")).json()["model_stats"]
    logged = [getattr(record, "verb", "") for record in caplog.records if record.name == "rationale.access"]
    assert logged == ["decide", "decide", "decide", "explain", ""]
    decide, explain = "model=score,verb=decide", "model=score,verb=explain"
    assert page["rationale_requests_total{model=score,protocol=http,status=200,verb=decide}"] == 2
    assert page["rationale_requests_total{model=score,protocol=http,status=200,verb=explain}"] == 1
    assert page["rationale_rejections_total{model=score,reason=invalid-input,verb=decide}"] == 1
    assert page[f"rationale_request_duration_seconds_count{{{decide}}}"] == 2
    assert page["rationale_request_phase_seconds_total{model=score,phase=compute_infer,verb=decide}"] > 0
    assert page[f"rationale_batch_size_sum{{{explain}}}"] == 3 * len(rows)
    assert f"rationale_batch_size_sum{{{decide}}}" not in page
    assert body["inference_count"] == 3 * len(rows)
    assert (body["inference_stats"]["success"]["count"], body["inference_stats"]["fail"]["count"]) == (3, 1)


@SESSION
async def test_prometheus_own_format_and_openmetrics(client: httpx.AsyncClient) -> None:
    plain = await client.get("/metrics")
    assert re.match(r"text/plain; version=[\d.]+; charset=utf-8", plain.headers["content-type"])
    opened = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert opened.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert opened.text.endswith("# EOF\n")


def test_the_documentation_lists_every_metric_and_alerts_use_no_other() -> None:
    docs = Path(__file__).parents[3] / "docs"
    text = Metrics().exposition()[0].decode()
    families = set(re.findall(r"^# TYPE (rationale_\w+) ", text, re.MULTILINE))
    families = {name for name in families if not name.endswith("_created")}
    listed = set(
        re.findall(r"^\| `(rationale_\w+)` \|", (docs / "operations/monitoring.md").read_text(), re.MULTILINE)
    )
    assert listed == families
    used = set(re.findall(r"\brationale_\w+", (docs / "alerts.yml").read_text()))
    assert used
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in used} <= families


@SESSION
async def test_answers_of_a_triton_are_counted(repository: Path) -> None:
    """Another gateway stands for the Triton: it speaks its protocol."""
    async with (
        grpc_end(Settings(repository=repository)) as behind,
        gateway(Settings(repository=repository, triton=behind.address)) as client,
    ):
        body = {"instances": handmade.X[:2].tolist()}
        assert (await client.post("/v1/models/score:predict", json=body)).status_code == 200
        page = await scraped(client)
    labels = "model=score,verb=infer"
    assert page[f"rationale_batch_size_sum{{{labels}}}"] == 2
    assert page[f"rationale_compute_duration_seconds_sum{{{labels}}}"] > 0
    assert page[f"rationale_request_duration_seconds_count{{{labels}}}"] == 1
    assert page["rationale_requests_total{model=score,protocol=http,status=200,verb=infer}"] == 1
    assert page["rationale_requests_in_flight{}"] == 0
    assert page["rationale_ready{}"] == 1
