"""The load generator against a real gateway."""

import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from loadtests import __main__ as command
from loadtests.load import measure
from loadtests.load.expected import ATTRIBUTIONS, EXPECTED, OUTPUT
from loadtests.load.measure import StuckError, Target, WrongAnswerError, drain
from loadtests.load.plan import GeneratorError, Phase, Plan, generate
from loadtests.load.workloads import EXPLAINING, SCENARIOS
from loadtests.systems.variants import Variant, serving

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_scenario_runs_and_its_answers_are_compared(bench, target, name):
    found = bench.by_scenario(target, BY_NAME[name], sustainable=60.0).figures
    assert found.faultless, found.errors
    assert found.requests > 5
    assert found.compared >= found.requests // 8
    assert 0 < found.p50_s <= found.p90_s <= found.p99_s
    assert found.memory_bytes > 10 << 20


def test_a_baseline_is_measured_as_we_are(bench, folder):
    """Its two workers are handed requests in turn; predictions are answered beside them."""
    variant = Variant("captum", threads=1, workers=2)
    with serving(variant, folder) as server:
        run = bench.by_scenario(Target(variant, server), BY_NAME["mix"])
    assert run.figures.faultless, run.figures.errors
    assert run.figures.compared > 0


def test_a_burst_is_a_moment_of_twice_the_sustainable_rate():
    phases = BY_NAME["burst"].phases(20.0, sustainable=100.0)
    assert [(phase.seconds, phase.rate) for phase in phases] == [(8, 50), (2, 200), (10, 50)]


def test_an_open_load_offers_its_rate_whatever_is_answered(bench, target):
    run = bench.run(
        target,
        "",
        (Phase(1, rate=20.0), Phase(1, rate=80.0)),
        mix={"predict json": 0.5, "explain binary": 0.5},
    )
    assert run.figures.faultless
    assert run.figures.requests == 100


@pytest.mark.parametrize("form", ["json", "binary", "grpc"])
def test_a_wrong_answer_fails_the_run(bench, target, folder, tmp_path, form):
    """One attribution of one row is other than it must be."""
    tampered = tmp_path / "workload"
    shutil.copytree(folder, tampered, ignore=shutil.ignore_patterns("repository*"))
    with np.load(folder / EXPECTED) as file:
        expected = dict(file)
    expected[ATTRIBUTIONS][3, 0, 5] += 0.01 * np.abs(expected[ATTRIBUTIONS]).max()
    np.savez(tampered / EXPECTED, **expected)
    with pytest.raises(WrongAnswerError, match=r"wrong answers out of \d+ compared"):
        replace(bench, folder=tampered).run(
            target, "", (Phase(1, users=2),), check_every=1, mix={f"explain {form}": 1.0}
        )


def test_a_wrong_answer_ends_the_command_with_status_1(monkeypatch, capsys):
    def wrong(*_: object) -> None:
        raise WrongAnswerError("credit: shap gave 3 wrong answers")

    monkeypatch.setattr(command, "run", wrong)
    monkeypatch.setattr(sys, "argv", ["loadtests", "--cores", "1"])
    monkeypatch.setattr(command, "restrict", lambda _: None)
    assert command.main() == 1
    assert "3 wrong answers" in capsys.readouterr().err


UNREADABLE = [b"", b"[]", b'{"outputs": [{"name": "y"}]}', b'{"outputs": 3}']
NOT_NUMBERS = [float("nan")] * 2


def answer_of(y: object, shape: list[int]) -> bytes:
    y_tensor = {"name": OUTPUT, "shape": shape, "data": y}
    attributions = {"name": ATTRIBUTIONS, "shape": [1, 1, 24], "data": [0.0] * 24}
    return json.dumps({"outputs": [y_tensor, attributions]}).encode()


@pytest.fixture
def nonsense() -> Iterator[str]:
    """The address of a server whose answers all have status 200."""
    bodies = itertools.cycle([*UNREADABLE, answer_of(0.5, []), answer_of(NOT_NUMBERS, [1, 2])])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = next(bodies)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_answer_that_cannot_be_read_is_wrong(folder, nonsense):
    """No body, no tensor, no rank, no number: none goes missing, and none passes."""
    phase = Phase(0.5, rate=40.0)
    plan = Plan(nonsense, None, folder, EXPECTED, EXPLAINING, (phase,), check_every=1)
    seen = generate(plan)
    assert len(seen.answers) > len(UNREADABLE) + 2
    assert all(answer.wrong and not answer.error for answer in seen.answers)


def test_refusals_are_counted_as_errors(folder):
    """A server that is not there: every request fails, and the run says how."""
    plan = Plan("127.0.0.1:9", None, folder, EXPECTED, EXPLAINING, (Phase(0.3, rate=20.0),))
    seen = generate(plan)
    assert seen.answers
    assert {answer.error for answer in seen.answers} == {"ConnectionRefusedError"}


def test_a_generator_that_fails_is_told_with_its_reason(folder):
    plan = Plan("127.0.0.1:9", None, folder, "missing.npz", EXPLAINING, (Phase(0.1, rate=1.0),))
    with pytest.raises(GeneratorError, match=r"missing\.npz"):
        generate(plan)


def test_a_server_that_does_not_start_ends_the_command_with_status_2(monkeypatch, capsys):
    monkeypatch.setattr(command, "prepare", lambda *_: None)  # nothing is there to serve
    monkeypatch.setattr(command, "restrict", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["loadtests", "--profile", "tiny", "--system", "rationale"])
    assert command.main() == 2
    assert "before it was ready" in capsys.readouterr().err


def test_a_server_that_stays_overloaded_is_told(bench, target, monkeypatch):
    monkeypatch.setattr(measure, "_GIVE_UP_S", 0.5)
    gone = replace(target, server=replace(target.server, http="127.0.0.1:9"))
    with pytest.raises(StuckError, match="after an overload"):
        drain(bench, gone)


def test_draining_returns_when_a_request_is_answered(bench, target):
    drain(bench, target)
