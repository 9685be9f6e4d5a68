"""The load generator against a real gateway."""

import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from loadtests import __main__ as command
from loadtests import measure
from loadtests.measure import Bench, GeneratorError, StuckError, Target, WrongAnswerError, drain, generate
from loadtests.plan import EXPLAIN, PREDICT, Phase, Plan
from loadtests.prepare import prepare
from loadtests.systems import Variant, serving
from loadtests.wanted import ATTRIBUTIONS, EXPECTED
from loadtests.workloads import PROFILES, SCENARIOS
from tests.loadtests.conftest import TREES

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("name", ["mix", "batches", "grpc-explain"])
def test_a_scenario_runs_and_its_answers_are_compared(bench, target, name):
    found = bench.by_scenario(target, BY_NAME[name]).figures
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


@pytest.mark.slow
def test_trees_are_served(tmp_path):
    prepare(TREES, tmp_path)
    variant = Variant("shap-trees", threads=1, workers=1)
    with serving(variant, tmp_path) as server:
        run = Bench(TREES, tmp_path, PROFILES["tiny"], print).by_scenario(
            Target(variant, server), BY_NAME["mix"]
        )
    assert run.figures.faultless, run.figures.errors
    assert run.figures.compared > 0


def test_an_open_load_offers_its_rate_whatever_is_answered(bench, target):
    run = bench.run(
        target, "", (Phase(1, rate=20.0), Phase(1, rate=80.0)), verbs={PREDICT: 0.5, EXPLAIN: 0.5}
    )
    assert run.figures.faultless
    assert 60 < run.figures.requests < 145  # 100 ± 4.5 standard deviations


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_a_wrong_answer_fails_the_run(bench, target, folder, tmp_path, protocol):
    """One attribution of one row is other than it must be."""
    tampered = tmp_path / "workload"
    shutil.copytree(folder, tampered, ignore=shutil.ignore_patterns("repository*"))
    with np.load(folder / EXPECTED) as file:
        expected = dict(file)
    expected[ATTRIBUTIONS][3, 0, 5] += 0.01 * np.abs(expected[ATTRIBUTIONS]).max()
    np.savez(tampered / EXPECTED, **expected)
    with pytest.raises(WrongAnswerError, match=r"wrong answers out of \d+ compared"):
        replace(bench, folder=tampered).run(
            target, "", (Phase(1, users=2),), check_every=1, protocol=protocol
        )


def test_a_wrong_answer_ends_the_command_with_status_1(monkeypatch, capsys):
    def wrong(*_: object) -> None:
        raise WrongAnswerError("credit: shap gave 3 wrong answers")

    monkeypatch.setattr(command, "run", wrong)
    monkeypatch.setattr(sys, "argv", ["loadtests", "--cores", "1"])
    monkeypatch.setattr(command, "restrict", lambda _: None)
    assert command.main() == 1
    assert "3 wrong answers" in capsys.readouterr().err


def test_refusals_are_counted_as_errors(folder):
    """A server that is not there: every request fails, and the run says how."""
    plan = Plan("127.0.0.1:9", "rest", str(folder), EXPECTED, {EXPLAIN: 1}, (Phase(0.3, rate=20.0),))
    seen = generate(plan)
    assert seen.answers
    assert {answer.error for answer in seen.answers} == {"ConnectionRefusedError"}


def test_a_generator_that_fails_is_told_with_its_reason(folder):
    plan = Plan("127.0.0.1:9", "rest", str(folder), "missing.npz", {EXPLAIN: 1}, (Phase(0.1, rate=1.0),))
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
    monkeypatch.setitem(measure.PATHS, EXPLAIN, "/v2/models/missing/explain")
    with pytest.raises(StuckError, match="after an overload"):
        drain(bench, target)


def test_draining_returns_when_a_request_is_answered(bench, target):
    drain(bench, target)
