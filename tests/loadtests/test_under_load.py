"""Locust, as the load test runs it, against a real gateway and against servers that are none."""

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import mean, stdev
from threading import Lock, Thread

import numpy as np
import pytest

from loadtests import __main__ as command
from loadtests.load import measure
from loadtests.load.arrivals import arrivals
from loadtests.load.expected import ATTRIBUTIONS, EXPECTED, INPUT, OUTPUT, write_expected
from loadtests.load.locust import run_locust
from loadtests.load.measure import Bench, sustainable_rate
from loadtests.load.questions import WrongAnswerError
from loadtests.load.workloads import CROWD, SCENARIOS
from loadtests.systems.process import Server

pytestmark = pytest.mark.full

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
NOWHERE = Server(0, "127.0.0.1:9")


@pytest.mark.parametrize("name", ["mix", "batches", "grpc-explain"])
def test_a_scenario_runs_and_its_answers_are_compared(bench: Bench, name: str) -> None:
    actual = bench.run(BY_NAME[name])
    assert actual.seen.faultless, actual
    assert actual.seen.requests > 5
    assert 0 < actual.seen.p50_ms <= actual.seen.p90_ms <= actual.seen.p99_ms
    assert actual.memory_bytes > 10 << 20
    page = (bench.pages / f"small, rationale, 1 × 1 thread, {name}.html").read_text()
    assert "explain network" in page, "locust's own"


def test_an_open_load_offers_its_rates_whatever_is_answered(bench: Bench) -> None:
    """Half a second at 10, 40, 10 and 20 requests a second, shared by two users."""
    options = {"--rate": "10,40,10,20", "--run-time": 2, "--users": 2}
    actual = run_locust(bench.server, bench.folder / EXPECTED, options, "JsonUser", "BinaryUser")
    assert not actual.errors
    assert actual.requests == 40


def test_times_of_an_open_load_count_from_when_a_request_was_due(bench: Bench) -> None:
    """A server of one answer each 0.1 s cannot follow: the wait in the queue is in the times."""
    with answering(lambda: answer_of([0.5, 0.5], [1, 2]), pause_s=0.1) as address:
        options = {"--rate": 30, "--run-time": 1, "--explanations": 0}
        actual = run_locust(Server(0, address), bench.folder / EXPECTED, options, "JsonUser")
    assert actual.requests == 30
    assert actual.p99_ms > 1500


@pytest.mark.parametrize("form", ["JsonUser", "BinaryUser", "GrpcUser"])
def test_a_wrong_answer_fails_the_run(bench: Bench, tmp_path: Path, form: str) -> None:
    """One attribution of one row is other than it must be."""
    with np.load(bench.folder / EXPECTED) as file:
        rows, expected = file[INPUT], {name: file[name] for name in (OUTPUT, ATTRIBUTIONS)}
    expected[ATTRIBUTIONS][3, 0, 5] += 0.01 * np.abs(expected[ATTRIBUTIONS]).max()
    write_expected(tmp_path / EXPECTED, rows, expected, 1e-3)
    with pytest.raises(WrongAnswerError, match=r"\d+ wrong answers: small, rationale"):
        replace(bench, folder=tmp_path).run(replace(CROWD, form=form))


def test_a_wrong_answer_ends_the_command_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(*_: object) -> None:
        raise WrongAnswerError("credit: shap gave 3 wrong answers")

    monkeypatch.setattr(command, "run", wrong)
    monkeypatch.setattr(sys, "argv", ["loadtests", "--cores", "1"])
    monkeypatch.setattr(command, "restrict", lambda _: None)
    assert command.main() == 1
    assert "3 wrong answers" in capsys.readouterr().err


NONSENSE = [b"", b"[]", b'{"outputs": [{"name": "y"}]}', b'{"outputs": 3}']


def answer_of(y: object, shape: list[int]) -> bytes:
    y_tensor = {"name": OUTPUT, "shape": shape, "data": y}
    attributions = {"name": ATTRIBUTIONS, "shape": [1, 1, 24], "data": [0.0] * 24}
    return json.dumps({"outputs": [y_tensor, attributions]}).encode()


@contextlib.contextmanager
def answering(answer: Callable[[], bytes], pause_s: float = 0.0) -> Iterator[str]:
    """The address of a server whose answers all have status 200, one after the other."""
    lock = Lock()

    class FixedHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                time.sleep(pause_s)
                body = answer()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), FixedHandler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_answer_that_cannot_be_read_is_wrong(bench: Bench) -> None:
    """No body, no tensor, no rank, no number: none goes missing, and none passes."""
    bodies = itertools.cycle([*NONSENSE, answer_of(0.5, []), answer_of([float("nan")] * 2, [1, 2])])
    options = {"--rate": 20, "--run-time": 1}
    with answering(lambda: next(bodies)) as address:
        actual = run_locust(Server(0, address), bench.folder / EXPECTED, options, "JsonUser")
    assert actual.requests == sum(actual.errors.values()) == 20
    assert actual.wrong == 20


def test_refusals_are_counted_as_errors(bench: Bench) -> None:
    """A server that is not there: every request fails, and the run says how."""
    actual = run_locust(NOWHERE, bench.folder / EXPECTED, {"--rate": 20, "--run-time": 1}, "JsonUser")
    assert sum(actual.errors.values()) == 20
    assert all("ConnectionRefusedError" in error for error in actual.errors)


def test_locust_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"missing\.npz"):
        run_locust(NOWHERE, tmp_path / "missing.npz", {"--run-time": 1}, "JsonUser")
    with pytest.raises(RuntimeError, match="--rate "):
        run_locust(NOWHERE, tmp_path / "missing.npz", {"--run-time": 1, "--rate": "x"}, "JsonUser")


def test_a_server_that_does_not_start_ends_the_command_with_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "in_a_process", lambda *_: None)  # nothing is there to serve
    monkeypatch.setattr(command, "restrict", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["loadtests", "--profile", "tiny", "--system", "rationale"])
    assert command.main() == 2
    assert "ready" in capsys.readouterr().err


def test_draining_returns_when_a_request_is_answered_and_tells_where_none_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.drain()
    monkeypatch.setattr(measure, "_DRAIN_S", 1)
    with pytest.raises(RuntimeError, match="overload"):
        replace(bench, server=replace(bench.server, http="127.0.0.1:9")).drain()


def test_arrivals_follow_the_rates_together_and_apart_as_by_chance() -> None:
    """Of a Poisson process the gaps are exponential: they deviate by as much as their mean."""
    due_s = list(arrivals([50.0, 200.0], 100.0))
    assert due_s == sorted(due_s)
    assert [sum(arrival_s < due_s[0] + end for arrival_s in due_s) for end in (99.5, 201)] == [
        pytest.approx(5000, 0.02),
        25000,
    ]
    gaps_s = [later - sooner for sooner, later in itertools.pairwise(due_s[:5000])]
    assert stdev(gaps_s) == pytest.approx(mean(gaps_s), rel=0.05)


@pytest.mark.parametrize("capacity", [0.3, 37.0, 41.0, 5200.0])
@pytest.mark.parametrize("guess", [0.1, 40.0, 3000.0])
@pytest.mark.parametrize("precision", [1.05, 1.5])
def test_the_capacity_is_found(capacity: float, guess: float, precision: float) -> None:
    probes = []

    def holds(rate: float) -> bool:
        probes.append(rate)
        return rate <= capacity

    actual = sustainable_rate(holds, guess, precision)
    assert capacity / precision <= actual <= capacity
    assert actual in probes, "the figure is one that was measured"
    assert len(probes) < 30


def test_a_system_that_sustains_nothing_has_the_rate_0() -> None:
    assert sustainable_rate(lambda _: False, 10.0, 1.1) == 0.0
