"""The report is complete, and its figures are those of the runs."""

import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.timing import machine
from loadtests import __main__ as command
from loadtests.load.locust import LocustSummary
from loadtests.load.measure import LoadRun, Result
from loadtests.load.questions import WrongAnswerError
from loadtests.load.workloads import PROFILES, SCENARIOS
from loadtests.report import CLAIMS, MEDIAN, PEER, RATE, ReportFacts, compare, write_report
from loadtests.systems.variants import OURS, SystemSettings

COMMAND = "python -m loadtests --system rationale shap"
ABOUT = ReportFacts(COMMAND, PROFILES["short"], cores=2, machine=machine())
SEEN = LocustSummary(99.0, 500, 2.0, 3.0, 12.3, {})


def result(system: str, slower: float) -> Result:
    """A system that takes `slower` times as long and sustains as much less."""
    variant, seen = SystemSettings(system, 1, 2), replace(SEEN, p50_ms=SEEN.p50_ms * slower)
    slow = LoadRun("credit-100", variant, "alone", False, seen, int(300_000_000 * slower))
    probe = replace(slow, load="80 per s", is_open=True, seen=replace(seen, errors={"HTTP 429": 7}))
    runs = [slow, slow, probe, *(replace(slow, load=scenario.name) for scenario in SCENARIOS)]
    return Result("credit-100", system, variant, slow, slow, 1234.5 / slower, runs)


@pytest.fixture
def results() -> list[Result]:
    return [result("rationale", 1.0), result("shap", 7.5)]


def test_ratios_are_computed_from_the_runs(results: list[Result]) -> None:
    assert [actual.ratio for actual in compare(results)] == pytest.approx([7.5, 7.5, 7.5])


def test_a_system_without_a_figure_has_no_ratio(results: list[Result]) -> None:
    rate, *_ = compare([results[0], replace(results[1], sustainable=0.0)])
    assert (rate.ratio, rate.verdict) == (None, "not measured")


def test_the_report_is_complete(results: list[Result], tmp_path: Path) -> None:
    written = write_report(results, ABOUT, tmp_path / "results")
    assert [path.name for path in written] == ["runs.csv", "report.html"]
    table, page = (path.read_text() for path in written)
    rows = list(csv.DictReader(table.splitlines()))
    assert len(rows) == sum(len(result.runs) for result in results)
    assert {row["errors"] for row in rows} == {"", "7 × HTTP 429"}
    for text in (COMMAND, "7 × HTTP 429", "1.23e+03 explanations per s (2 × 1 thread)", "torch", "captum"):
        assert text in page
    assert page.count("<td>open</td>") == 2
    assert "credit-100, beside shap, sustainable rate: 7.5 (asked 6: met)" in page


@pytest.mark.parametrize(("slower", "words"), [(3.0, ["missed", "missed"]), (5.0, ["missed", "met"])])
def test_what_is_claimed_stands_beside_what_was_measured(slower: float, words: list[str]) -> None:
    actual = compare([result("rationale", 1.0), result("shap", slower)])
    assert [ratio.verdict for ratio in actual] == [*words, ""]
    assert not any(ratio.verdict for ratio in compare([result("rationale", 1.0), result("captum", slower)]))


def test_the_claim_profile_measures_every_claim() -> None:
    profile = PROFILES["claim"]
    assert {workload for workload, _ in CLAIMS} == set(profile.workloads)
    assert {figure for _, figure in CLAIMS} == {RATE, MEDIAN}
    assert set(profile.systems) == {OURS, PEER}


def test_what_was_measured_before_a_wrong_answer_is_kept_and_is_no_finished_report(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    results: list[Result],
) -> None:
    def one_and_a_fault(*_: object) -> Iterator[Result]:
        yield results[0]
        raise WrongAnswerError("credit-100: shap gave 3 wrong answers")

    monkeypatch.setattr(command, "run", one_and_a_fault)
    monkeypatch.setattr(command, "restrict", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["loadtests", "--out", str(tmp_path)])
    assert command.main() == 1
    assert (tmp_path / "runs.csv").read_text().count("credit-100") == len(results[0].runs)
    assert "did not finish" in (tmp_path / "report.html").read_text()
    assert "asked" not in capsys.readouterr().out, "no verdicts"


def test_a_report_of_one_system_compares_nothing(results: list[Result], tmp_path: Path) -> None:
    *_, page = write_report(results[:1], ABOUT, tmp_path)
    assert "nothing" in page.read_text()
