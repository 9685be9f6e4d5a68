"""Each alert of docs/alerts.yml fires at the fault that it is for, and none of them at a gateway without one.

The gateways are real, and so are the faults: promtool evaluates the alerts on what `GET /metrics` said, as if
two minutes had gone by between two scrapes.
"""

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
import yaml
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from rationale_service.app import create_app, create_backend
from rationale_service.observability.metrics import Metrics
from rationale_service.settings import Settings
from tests.needs import need
from tests.service import handmade
from tests.service.decisions.audit.postgres import postgres
from tests.service.explaining import PATH, Sets, settled
from tests.service.in_process import client_of

ALERTS = Path(__file__).parents[2] / "docs" / "alerts.yml"
STEP_MIN = 2
FAULTY_ROUNDS, ROUNDS = 7, 34  # after the first scrape
ROW = dict(zip(handmade.FEATURES, handmade.X[0].tolist(), strict=True))
SLOW_S = 0.6
DECIDE = "/v1/models/score:decide"
# What fires, by gateway and minute: while it is ill, and an hour after.
FIRING: Mapping[str, Mapping[int, set[str]]] = {
    "healthy": {2 * FAULTY_ROUNDS: set(), 66: set()},
    "faulty": {
        2 * FAULTY_ROUNDS: {
            "RationaleUnservedEntries",
            "RationaleFaults",
            "RationaleRefusing",
            "RationaleSlow",
            "RationaleCompilesFail",
            "RationaleAuditSlow",
            "RationaleAuditWaiting",
        },
        66: {"RationaleUnservedEntries", "RationaleGaps"},
    },
    "without a trail": {
        2 * FAULTY_ROUNDS: {"RationaleCannotDecide", "RationaleDecisionsRefused", "RationaleAuditWritesFail"},
        66: {"RationaleCannotDecide"},
    },
    "with a trail that hangs": {
        2 * FAULTY_ROUNDS: {"RationaleCannotDecide"},
        66: {"RationaleCannotDecide"},
    },
    "without its state": {2 * FAULTY_ROUNDS: {"RationaleDependencyFails"}},
    "with one of two workers": {2 * FAULTY_ROUNDS: {"RationaleWorkersMissing"}},
    "without its Triton": {2 * FAULTY_ROUNDS: {"RationaleDependencyFails", "RationaleNotReady"}},
}
Series = dict[str, list[float | None]]  # by name and labels, as Prometheus writes them


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scrapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Series]:
    """What each gateway told, every STEP_MIN minutes."""
    folder = tmp_path_factory.mktemp("alerts")
    async with contextlib.AsyncExitStack() as stack:
        gateways = {name: await stack.enter_async_context(ill(folder)) for name, ill in ILL.items()}
        found: dict[str, Series] = {name: defaultdict(list) for name in gateways}
        for number in range(ROUNDS + 1):
            if 0 < number <= FAULTY_ROUNDS:
                await asyncio.gather(*(one.fall_ill() for one in gateways.values()))
            for name, one in gateways.items():
                if (number - 1) * STEP_MIN <= max(FIRING[name]):  # later ones are evaluated nowhere
                    await scrape(one.client, found[name], number)
            if 0 < number <= FAULTY_ROUNDS:
                await asyncio.gather(*(one.recover() for one in gateways.values()))
    return found


async def scrape(client: httpx.AsyncClient, found: Series, number: int) -> None:
    """Adds the `number`-th sample of each series, as a scrape does."""
    page = await client.get("/metrics")
    assert page.status_code == 200
    for sample in (each for family in text_string_to_metric_families(page.text) for each in family.samples):
        if sample.name.startswith("rationale_") and not sample.name.endswith("_created"):
            labels = ", ".join(
                f"{name}={json.dumps(value)}"
                for name, value in {**sample.labels, "instance": "gateway:8080"}.items()
            )
            values = found[f"{sample.name}{{{labels}}}"]
            values += [None] * (number - len(values))
            values.append(sample.value)


@pytest.mark.full
@pytest.mark.parametrize("name", FIRING)
def test_what_fires(scrapes: dict[str, Series], name: str, tmp_path: Path) -> None:
    tests = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": f"{STEP_MIN}m",
                "input_series": [
                    {"series": key, "values": " ".join("_" if one is None else repr(one) for one in values)}
                    for key, values in scrapes[name].items()
                ],
                "promql_expr_test": [
                    {
                        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{minute}m",
                        "exp_samples": [
                            {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)
                        ],
                    }
                    for minute, alerts in FIRING[name].items()
                ],
            }
        ],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", str(tmp_path / "tests.yml"))


# The index, ten minutes apart. References that are other people than those who apply are no drift.
DRIFTS: Mapping[str, tuple[str, set[str]]] = {
    "near the threshold": ("0x12 1.9+0.001x160", set()),
    "drifts": ("0x12 0.05x80 0.4x80", {"RationaleDecisionsDrift"}),
    "drifts further": ("0x12 1.9x80 2.3x80", {"RationaleDecisionsDrift"}),
    "restarts": ("0x12 1.9x80 0x6 1.9x74", set()),
}


# Reviews, ten minutes apart: two replicas that tell the same number.
WAITS: Mapping[str, tuple[str, set[str]]] = {
    "in time": ("0x160", set()),
    "overdue": ("0x10 2x150", {"RationaleReviewsOverdue"}),
    "overdue for half an hour": ("0x157 2x3", set()),
}


@pytest.mark.parametrize("name", WAITS)
def test_reviews_that_are_overdue(name: str, tmp_path: Path) -> None:
    values, alerts = WAITS[name]
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]
    series = [f'rationale_reviews_overdue{{model="m", instance="{each}"}}' for each in "ab"]
    test = {
        "interval": "10m",
        "input_series": [{"series": each, "values": values} for each in series],
        "promql_expr_test": [{"expr": firing, "eval_time": "1600m", "exp_samples": samples}],
    }
    content = {"rule_files": [str(ALERTS)], "evaluation_interval": "10m", "tests": [test]}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(content))
    promtool("test", "rules", str(tmp_path / "tests.yml"))


@pytest.mark.parametrize("name", DRIFTS)
@pytest.mark.parametrize(
    "series", ['rationale_score_psi{model="m"}', 'rationale_attribution_psi{model="m", feature="a"}']
)
def test_drift_is_a_change(name: str, series: str, tmp_path: Path) -> None:
    values, alerts = DRIFTS[name]
    firing = 'group by (alertname) (ALERTS{alertstate="firing", alertname="RationaleDecisionsDrift"})'
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]
    test = {
        "interval": "10m",
        "input_series": [{"series": series, "values": values}],
        "promql_expr_test": [{"expr": firing, "eval_time": "1600m", "exp_samples": samples}],
    }
    content = {"rule_files": [str(ALERTS)], "evaluation_interval": "10m", "tests": [test]}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(content))
    promtool("test", "rules", str(tmp_path / "tests.yml"))


def test_each_alert_has_been_fired() -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    fired = set().union(*(alerts for minutes in FIRING.values() for alerts in minutes.values()))
    series = (*DRIFTS.values(), *WAITS.values())
    assert {rule["alert"] for rule in rules} == fired.union(*(alerts for _, alerts in series))


def test_the_file_is_one_of_prometheus() -> None:
    promtool("check", "rules", str(ALERTS))


def promtool(*arguments: str) -> None:
    done = subprocess.run([need("Prometheus"), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# --- gateways and what befalls them -----------------------------------------------------------------------


class Gateway:
    """One that is well: it is asked, and answers."""

    def __init__(self, app: FastAPI, client: httpx.AsyncClient) -> None:
        self.app = app
        self.client = client

    async def fall_ill(self) -> None:
        for verb in ("predict", "explain", "decide"):
            await self.post(verb, 200)

    async def recover(self) -> None: ...

    async def post(self, verb: str, status: int, rows: Sequence[Any] = (ROW,), model: str = "score") -> None:
        answer = await self.client.post(f"/v1/models/{model}:{verb}", json={"instances": list(rows)})
        assert answer.status_code == status, answer.text


class Faulty(Gateway):
    """Overloaded; a model fails, another one's explanations do not add up; somebody holds its trail."""

    def __init__(self, app: FastAPI, client: httpx.AsyncClient, trail: Path) -> None:
        super().__init__(app, client)
        self._trail = sqlite3.connect(trail, isolation_level=None)
        self._deciding: list[asyncio.Task[None]] = []

    async def fall_ill(self) -> None:
        if not self._deciding:
            await self.client.put(f"{PATH}/wide", json={"method": "deepshap", "reference_set": "wide"})
            assert (await settled(self.client, f"{PATH}/wide"))["state"] == "failed"
        self._trail.execute("BEGIN IMMEDIATE")
        self._deciding.append(asyncio.create_task(self.post("decide", 200, [ROW] * 128)))
        await self.post("predict", 500, [[1.0], [2.0]], "mixing")
        await self.post("explain", 200, [[1.0]], "gappy")
        while not self.app.state.gateway.metrics.registry.get_sample_value("rationale_audit_waiting"):
            await asyncio.sleep(0.01)
        waiting_since_s = time.monotonic()
        many = await asyncio.gather(
            *(self.client.post("/v1/models/score:predict", json={"instances": [ROW]}) for _ in range(40))
        )
        assert {answer.status_code for answer in many} == {200, 429}
        await asyncio.sleep(waiting_since_s + SLOW_S - time.monotonic())

    async def recover(self) -> None:
        self._trail.execute("ROLLBACK")
        await self._deciding[-1]


class WithoutTrail(Gateway):
    async def fall_ill(self) -> None:
        await self.post("decide", 503)
        await self.post("predict", 200)


class HungTrail(Gateway):
    """Its database was frozen while nobody decided."""

    async def fall_ill(self) -> None:
        assert (await self.client.get("/v2/models/score/ready")).status_code == 503
        await self.post("predict", 200)


class WithoutState(Gateway):
    def _failures(self) -> float:
        name, labels = "rationale_dependency_failures_total", {"dependency": "state"}
        found: float = self.app.state.gateway.metrics.registry.get_sample_value(name, labels)
        return found

    async def fall_ill(self) -> None:
        before = self._failures()
        while self._failures() == before:
            await asyncio.sleep(0.1)
        await self.post("predict", 200)


class WithoutTriton(Gateway):
    async def fall_ill(self) -> None:
        assert (await self.client.get("/v2/health/ready")).status_code == 503


@contextlib.asynccontextmanager
async def running(
    settings: Settings, sets: Sets | None = None
) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    metrics = Metrics()
    app = create_app(settings, create_backend(settings, metrics), metrics, references=sets)
    async with app.router.lifespan_context(app), client_of(app) as client:
        if settings.triton is None:
            await app.state.gateway.loading
        yield app, client


@contextlib.asynccontextmanager
async def healthy(folder: Path) -> AsyncIterator[Gateway]:
    handmade.write_score(folder / "healthy")
    async with running(Settings(repository=folder / "healthy")) as (app, client):
        yield Gateway(app, client)


@contextlib.asynccontextmanager
async def faulty(folder: Path) -> AsyncIterator[Gateway]:
    repository = folder / "faulty"
    handmade.write_score(repository)
    handmade.write_faulty(repository)
    # All references are below the decisions.
    manifest = repository / "score_explain" / "explanation.json"
    told = json.loads(manifest.read_text())
    told["decision"]["classes"] = {"": {"bounds": [-1000], "shares": [1, 0]}}
    manifest.write_text(json.dumps(told))
    handmade.write_pair_of(
        repository,
        "gappy",
        ("float[N, 1] x", "float[N, 1] y", "y = Identity (x)"),
        (
            "float[N, 1, 1] x_attributions, float[N, 1] explained_value, float[N, 1] completeness_gap",
            "explained_value = Identity (y)  completeness_gap = Identity (y)  "
            "x_attributions = Unsqueeze (x, one)",
        ),
        handmade.SMALL,
        [("x",)],
        completeness_gap="completeness_gap",
    )
    (repository / "log" / "1" / "model.onnx").write_bytes(b"broken")
    sets = Sets(folder / "sets")
    sets.add("wide", np.ones((2, 5), np.float32))
    trail = folder / "faulty.sqlite3"
    settings = Settings(repository=repository, audit=f"sqlite:///{trail}", max_queue_size=4)
    async with running(settings, sets) as (app, client):
        gateway = Faulty(app, client, trail)
        await gateway.post("decide", 200, [ROW] * 256)
        yield gateway


@contextlib.asynccontextmanager
async def without_a_trail(folder: Path) -> AsyncIterator[Gateway]:
    handmade.write_score(folder / "refusing")
    (folder / "refusing.state").write_text("in the way")
    async with running(Settings(repository=folder / "refusing")) as (app, client):
        yield WithoutTrail(app, client)


@contextlib.asynccontextmanager
async def with_a_trail_that_hangs(folder: Path) -> AsyncIterator[Gateway]:
    handmade.write_score(folder / "hung")
    with postgres() as database:
        settings = Settings(repository=folder / "hung", audit=database.new_schema())
        async with running(settings) as (app, client):
            gateway = HungTrail(app, client)
            await gateway.post("decide", 200)
            with database.frozen():
                while not app.state.gateway.metrics.registry.get_sample_value("rationale_audit_unavailable"):
                    await asyncio.sleep(0.1)
                yield gateway


@contextlib.asynccontextmanager
async def without_its_state(folder: Path) -> AsyncIterator[Gateway]:
    handmade.write_score(folder / "alone")
    settings = Settings(
        repository=folder / "alone",
        state="postgresql://u:p@127.0.0.1:1/state",
        artifacts=f"file://{folder}/artifacts",
        audit="off",
    )
    async with running(settings) as (app, client):
        yield WithoutState(app, client)


@contextlib.asynccontextmanager
async def with_one_of_two_workers(folder: Path) -> AsyncIterator[Gateway]:
    handmade.write_score(folder / "one")
    async with running(Settings(repository=folder / "one", workers=2)) as (app, client):
        yield Gateway(app, client)


@contextlib.asynccontextmanager
async def without_its_triton(folder: Path) -> AsyncIterator[Gateway]:
    handmade.write_gradient(folder / "waiting")
    settings = Settings(repository=folder / "waiting", triton="127.0.0.1:1", triton_wait_s=600)
    async with running(settings) as (app, client):
        yield WithoutTriton(app, client)


ILL = {
    "healthy": healthy,
    "faulty": faulty,
    "without a trail": without_a_trail,
    "with a trail that hangs": with_a_trail_that_hangs,
    "without its state": without_its_state,
    "with one of two workers": with_one_of_two_workers,
    "without its Triton": without_its_triton,
}
