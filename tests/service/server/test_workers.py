"""`rationale serve --workers 2`: several processes on the same ports, and the one that watches over them."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from rationale_service.cli.main import app
from rationale_service.settings import Settings
from rationale_service.workers import _Supervisor
from tests.needs import need
from tests.service import handmade, patient
from tests.service.child import SECONDS, Child, grpc_address, ready_line, serve, spare_ports, until
from tests.service.server.test_lifecycle import refused

Gateway = tuple[Child, str, list[str]]


@pytest.fixture
def gateway(repository: Path) -> Iterator[Gateway]:
    with serve("--repository", str(repository), "--port", "0", "--workers", "2") as child:
        yield child, *ready_line(child)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """The address of a Redis."""
    program = need("Redis")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        until(lambda: _takes_calls(port))
        yield f"redis://127.0.0.1:{port}"
        server.terminate()


def _takes_calls(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def workers_of(child: Child) -> list[psutil.Process]:
    return psutil.Process(child.pid).children()


def kill(worker: psutil.Process) -> None:
    """Until it is gone, its port takes connections that nobody answers."""
    worker.kill()
    worker.wait()


def explain(url: str) -> None:
    answer = patient.post(f"{url}/v1/models/score:explain", json={"instances": handmade.X.tolist()}).json()
    np.testing.assert_allclose(answer["predictions"], handmade.predict(handmade.X), rtol=1e-6)


def served_by(url: str, child: Child) -> set[int]:
    """The workers that hold one of some new connections."""
    with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port)) as connection:
        address = connection.getsockname()
        until(lambda: any(_holds(worker, address) for worker in workers_of(child)))
        return {worker.pid for worker in workers_of(child) if _holds(worker, address)}


def _holds(worker: psutil.Process, address: tuple[str, int]) -> bool:
    return any(tuple(connection.raddr or ()) == address for connection in worker.net_connections("tcp"))


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)], ids=lambda n: n.name
)
def test_all_of_them_serve_and_end_with_status_0(gateway: Gateway, number: signal.Signals) -> None:
    child, url, lines = gateway
    workers = workers_of(child)
    assert len(workers) == 2
    assert "2 workers" in lines
    reached: set[int] = set()
    until(lambda: bool(reached.update(served_by(url, child)) or len(reached) == 2))
    explain(url)
    assert patient.get(f"{url}/v2/models/score/explainers").status_code == 200
    with triton.InferenceServerClient(grpc_address(lines)) as client:
        assert client.is_server_ready()
    child.send_signal(number)
    assert child.wait(SECONDS) == 0
    assert child.stderr.read() == ""
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_to_a_worker_that_has_just_started_waits(repository: Path, number: signal.Signals) -> None:
    """It would end a process that has no handler yet, and the gateway with it."""
    with serve("--repository", str(repository), "--port", "0", "--workers", "2") as child:
        until(lambda: bool(workers_of(child)))
        if number == signal.SIGHUP:
            for worker in workers_of(child):
                worker.send_signal(number)
            explain(ready_line(child)[0])
        child.send_signal(signal.SIGTERM)
        assert child.wait(SECONDS) == 0
        assert child.stderr.read() == ""


async def test_a_stop_while_a_worker_starts_reaches_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It stops before the worker is known: once it runs, the worker is stopped."""
    opened, told, signals = asyncio.Event(), asyncio.Event(), list[int]()

    class Worker:
        pid, stdin, stdout = 1, None, None

        def send_signal(self, number: int) -> None:
            signals.append(number)
            told.set()

        async def wait(self) -> int:
            await told.wait()
            return 0

    async def started(_: object, __: int) -> Worker:
        await opened.wait()
        return Worker()

    monkeypatch.setattr(_Supervisor, "_start", started)
    monkeypatch.setattr("rationale_service.workers.mark_process_dead", lambda *_: None)
    supervisor = _Supervisor(Settings(workers=2), tmp_path, tmp_path / "started", lambda _: None)
    running = asyncio.create_task(supervisor.run())
    for _ in range(5):
        await asyncio.sleep(0)
    supervisor._stop()
    opened.set()
    assert await asyncio.wait_for(running, 5) == 0
    assert signals == [signal.SIGTERM]


@pytest.mark.full
def test_a_worker_that_is_killed_comes_back_and_all_end_with_the_one_that_watches_over_them(
    gateway: Gateway, repository: Path
) -> None:
    child, url, _ = gateway
    for killed in workers_of(child):
        (other,) = (process for process in workers_of(child) if process != killed)
        kill(killed)
        explain(url)
        until(lambda: len(workers_of(child)) == 2)
        new = next(process for process in workers_of(child) if process != other)
        until(lambda: served_by(url, child) == {new.pid})  # noqa: B023
        explain(url)
    port = str(httpx.URL(url).port)
    (line,) = refused("--repository", str(repository), "--port", port, "--workers", "2")
    assert f"port {port} is taken" in line
    workers = workers_of(child)
    child.kill()
    until(lambda: not any(worker.is_running() and worker.status() != "zombie" for worker in workers))


@pytest.mark.full
def test_a_worker_that_hangs_is_killed_and_comes_back(gateway: Gateway) -> None:
    child, url, _ = gateway
    hung, other = workers_of(child)
    hung.suspend()
    until(lambda: not hung.is_running())
    explain(url)
    until(lambda: _counters(url) == {"": 2.0})
    assert len(workers_of(child)) == 2
    assert other in workers_of(child)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=SECONDS)
    assert child.returncode == 0
    assert "worker 0 shows no life, and is killed" in err or "worker 1 shows no life, and is killed" in err


@pytest.mark.full
def test_a_stop_does_not_wait_for_a_worker_that_hangs(gateway: Gateway, repository: Path) -> None:
    """One gateway is ready, one is starting; both are stopped at once."""
    ready, *_ = gateway
    with serve("--repository", str(repository), "--port", "0", "--workers", "2") as starting:
        until(lambda: bool(workers_of(starting)))
        began_s = time.monotonic()
        for child in (starting, ready):
            workers_of(child)[0].suspend()
            child.send_signal(signal.SIGTERM)
        for child in (starting, ready):
            child.communicate(timeout=SECONDS)
            assert child.returncode == 128 + signal.SIGKILL
    assert time.monotonic() - began_s < 40


@pytest.mark.full
def test_none_is_ready_before_all_have_started(repository: Path) -> None:
    """Else a rollout would count on a gateway that has a part of its workers yet."""
    arguments = ("--repository", str(repository), "--workers", "2", "--grpc-port", "off")
    with serve(*arguments, "--port", str(port := spare_ports(1)[0])) as child:
        url, statuses = f"http://127.0.0.1:{port}", []

        def is_ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                statuses.append((len(workers_of(child)), patient.get(f"{url}/v2/health/ready").status_code))
            return statuses[-1:] == [(2, 200)]

        until(is_ready)
        assert any(status == 503 for _, status in statuses)
        assert all(status == 503 for count, status in statuses if count < 2)
        ready_line(child)
        assert _metrics(url, "rationale_workers") == _metrics(url, "rationale_workers_ready") == {"": 2.0}
        kill(workers_of(child)[0])
        until(lambda: _counters(url) == {"": 1.0})
        until(lambda: _counters(url) == {"": 2.0})


def _counters(url: str) -> dict[str, float]:
    with contextlib.suppress(httpx.TransportError):
        return _metrics(url, "rationale_workers_ready")
    return {}


@pytest.mark.full
def test_a_broken_entry_is_told_once(tmp_path: Path) -> None:
    handmade.write_score(tmp_path)
    (tmp_path / "score" / "1" / "model.onnx").write_bytes(b"no model")
    (line,) = refused("--repository", str(tmp_path), "--port", "0", "--workers", "2", "--strict")
    assert "score/1/model.onnx: ONNX Runtime" in line


@pytest.mark.full
@pytest.mark.parametrize("value", ["0", "-1", "65", "two"])
def test_how_many(repository: Path, value: str) -> None:
    command = ["serve", "--repository", str(repository)]
    for flags, settings in ((["--workers", value], {}), ([], {"RATIONALE_WORKERS": value})):
        result = CliRunner().invoke(app, [*command, *flags], env=settings)
        assert (result.exit_code, "WORKERS" in result.output.upper()) == (2, True), result.output


@pytest.mark.full
def test_rates_and_metrics_are_counted_over_all(repository: Path, redis: str) -> None:
    rates = {"RATIONALE_RATE_LIMIT_PER_S": "0.1", "RATIONALE_RATE_LIMIT_BURST": "20"}
    rates["RATIONALE_RATE_LIMIT_STORAGE"] = redis
    with serve("--repository", str(repository), "--port", "0", "--workers", "2", **rates) as child:
        url, _ = ready_line(child)
        question = {"instances": handmade.X.tolist()}
        statuses = [
            patient.post(f"{url}/v1/models/score:explain", json=question).status_code for _ in range(30)
        ]
        assert statuses == [200] * 20 + [429] * 10  # whichever worker took the connection
        for killed in workers_of(child):  # what it counted stays
            kill(killed)
            until(lambda: len(workers_of(child)) == 2 and _ready(url))
            assert _metrics(url, "rationale_requests_total") == {"200": 20.0, "429": 10.0}
        assert _metrics(url, "rationale_requests_in_flight") == {"": 0.0}
        assert patient.post(f"{url}/v1/models/score:explain", json=question).status_code == 429


def _ready(url: str) -> bool:
    try:
        return _metrics(url, "rationale_ready") == {"": 1.0}
    except httpx.ConnectError:  # the other worker is being started again
        return False


def _metrics(url: str, name: str) -> dict[str, float]:
    """The samples of a metric, by status."""
    page = text_string_to_metric_families(patient.get(f"{url}/metrics").text)
    return {
        each.labels.get("status", ""): each.value
        for family in page
        for each in family.samples
        if each.name == name
    }


@pytest.mark.full
def test_each_tells_that_it_cannot_decide_and_decides_when_it_can(tmp_path: Path) -> None:
    handmade.write_score(tmp_path / "models")
    (tmp_path / "state").write_text("in the way")
    rows = [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]
    arguments = ("--repository", str(tmp_path / "models"), "--port", "0", "--workers", "2")
    with serve(*arguments, RATIONALE_STATE=str(tmp_path / "state"), RATIONALE_LOG_FORMAT="plain") as child:
        url, lines = ready_line(child)

        def decided() -> int:
            return patient.post(f"{url}/v1/models/score:decide", json={"instances": rows}).status_code

        def counted() -> dict[str, float]:
            families = text_string_to_metric_families(patient.get(f"{url}/metrics").text)
            samples = [sample for family in families for sample in family.samples]
            return {
                metric.name: metric.value for metric in samples if metric.name.startswith("rationale_audit_")
            }

        assert len([line for line in lines if line.startswith("decisions are refused until")]) == 1
        assert [decided() for _ in range(6)] == [503] * 6
        assert counted()["rationale_audit_unavailable"] == 1
        assert counted()["rationale_audit_write_failures_total"] == 6
        assert patient.get(f"{url}/v2/models/score/ready").status_code == 503
        assert patient.get(f"{url}/v2/health/ready").status_code == 200
        (tmp_path / "state").unlink()
        until(lambda: counted()["rationale_audit_unavailable"] == 0)
        assert [decided() for _ in range(6)] == [200] * 6
        assert counted()["rationale_audit_write_seconds_count"] == 6
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=SECONDS)
    assert err.count("[error] decisions are refused: ") == 2
    assert err.count("[warning] the audit trail is back") == 2
    assert "Traceback" not in err
