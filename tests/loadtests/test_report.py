"""The report is complete, and its figures are those of the runs."""

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from markupsafe import escape

from compiler.bench.measure import machine
from loadtests import __main__ as command
from loadtests.load.measure import Result, Run, WrongAnswerError
from loadtests.load.workloads import PROFILES, SCENARIOS
from loadtests.report.comparison import CLAIMS, MEDIAN, PEER, RATE, compare, verdicts
from loadtests.report.figures import Figures
from loadtests.report.write import About, write_report
from loadtests.systems.variants import OURS, Variant

COMMAND = "python -m loadtests --system rationale shap"
ABOUT = About(COMMAND, PROFILES["short"], cores=2, machine=machine())
ONE = Figures(100.0, 99.0, 500, 0.002, 0.003, 0.0123, {}, 0, 60, 0.0001, 0.4, 300 << 20)


def result(system: str, slower: float) -> Result:
    """A system that takes `slower` times as long and sustains as much less."""
    variant = Variant(system, 1, 2)
    slow = replace(
        ONE, p50_s=0.002 * slower, p99_s=0.0123 * slower, memory_bytes=int(ONE.memory_bytes * slower)
    )
    run = Run(variant, "alone", slow)
    return Result(
        workload="credit-100",
        system=system,
        best=variant,
        alone=run,
        crowd=run,
        tried=[run, run],
        sustainable=1234.5 / slower,
        probes=[Run(variant, "80/s", replace(slow, errors={"HTTP 429": 7}))],
        curve=[Run(variant, "50/s", replace(slow, offered_rate=50.0))],
        scenarios=[Run(variant, scenario.name, slow) for scenario in SCENARIOS],
    )


@pytest.fixture
def results():
    return [result("rationale", 1.0), result("shap", 7.5)]


def test_ratios_are_computed_from_the_runs(results):
    (found,) = compare(results)
    assert (found.rate, found.median, found.memory) == pytest.approx((7.5, 7.5, 7.5))


def test_a_system_without_a_figure_has_no_ratio(results):
    (found,) = compare([results[0], replace(results[1], sustainable=0.0)])
    assert found.rate is None


def test_the_report_is_complete(results, tmp_path):
    written = write_report(results, ABOUT, tmp_path / "results")
    assert [path.name for path in written] == ["runs.csv", "report.json", "report.html"]
    table, content, page = (path.read_text() for path in written)
    rows = list(csv.DictReader(table.splitlines()))
    assert len(rows) == sum(1 for one in results for _ in one.runs())
    assert {row["errors"] for row in rows} == {"", "7 × HTTP 429"}
    report = json.loads(table and content)
    assert report["machine"]["cores_used"] == 2
    assert {"onnxruntime", "shap", "locust", "torch"} <= report["versions"].keys()
    assert report["results"][1]["sustainable"] == pytest.approx(164.6)
    assert report["comparisons"][0]["rate"] == pytest.approx(7.5)
    assert [(one["what"], one["asked"], one["got"]) for one in report["claims"]] == [
        (RATE, 6, pytest.approx(7.5)),
        (MEDIAN, 4, pytest.approx(7.5)),
    ]
    figures = ("7.5", "1234", "165 (2 × 1 thread)", "100 ms")
    for told in (COMMAND, report["machine"]["processor"], *figures):
        assert told in page
    assert all(f"{scenario.name}, shap" in page and scenario.title in page for scenario in SCENARIOS)
    compared = sum(run.figures.compared for one in results for _, run in one.runs())
    assert f"{compared} answers of" in page
    assert "did not finish" not in page
    assert page.count("<svg") == 1


@pytest.mark.parametrize(("slower", "words"), [(3.0, ["missed", "missed"]), (5.0, ["missed", "met"])])
def test_what_was_asked_stands_first_beside_what_was_got(slower, words, tmp_path):
    found = [result("rationale", 1.0), result("shap", slower)]
    assert [one.in_words for one in verdicts(found)] == words
    *_, page = write_report(found, ABOUT, tmp_path)
    first = page.read_text().partition("<h2>")[2]
    assert first.startswith("Asked, and got")
    cells = ("credit-100", escape(RATE), 6, f"{slower:g}", words[0])
    row = "".join(f"<td>{cell}</td>" for cell in cells)
    assert row in first.partition("<h2>")[0]


def test_a_claim_that_was_not_measured_is_not_met():
    (rate, median) = verdicts([result("rationale", 1.0), result("captum", 9.0)])
    assert (rate.in_words, median.in_words, rate.got) == ("not measured", "not measured", None)


def test_the_claim_profile_measures_every_claim():
    profile = PROFILES["claim"]
    assert {claim.workload for claim in CLAIMS} == set(profile.workloads)
    assert set(profile.systems) == {OURS, PEER}


def test_what_was_measured_before_a_wrong_answer_is_kept_and_is_no_finished_report(
    monkeypatch, tmp_path, capsys, results
):
    def one_and_a_fault(*_: object) -> Iterator[Result]:
        yield results[0]
        raise WrongAnswerError("credit-100: shap gave 3 wrong answers")

    monkeypatch.setattr(command, "run", one_and_a_fault)
    monkeypatch.setattr(command, "restrict", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["loadtests", "--out", str(tmp_path)])
    assert command.main() == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["finished"], len(report["results"])) == (False, 1)
    assert "did not finish" in (tmp_path / "report.html").read_text()
    assert "asked" not in capsys.readouterr().out, "no verdicts"


def test_a_report_of_one_system_compares_nothing(results, tmp_path):
    *_, page = write_report(results[:1], ABOUT, tmp_path)
    assert "nothing to compare" in page.read_text()
