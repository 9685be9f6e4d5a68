"""Tables and plots of what was measured, from times that are known."""

import io
import json

from rich.console import Console
from rich.table import Table

from compiler.bench.apart import Alone
from compiler.bench.budget import MOST, Largest
from compiler.bench.cases import OURS, SHAP, Case, Settings
from compiler.bench.measure import Measured, Outcome
from compiler.bench.report import contents, curves, show, show_alone, show_limits, write_report

GIB = 1 << 30


def outcome(references: int, rows: int = 1) -> Outcome:
    """SHAP takes ten times as long as we do; the third round is slow."""
    times = [[0.001 * references, 0.001 * references], [0.0012 * references], [0.005 * references]]
    return Outcome(
        case=Case("credit", (24,), references, rows),
        compile_s=0.5,
        model_bytes=10,
        plain_bytes=5,
        systems={
            OURS: Measured(times, 0.1, 1e-7, 2e-7),
            SHAP: Measured([[10 * t for t in turn] for turn in times], 0.1, 0.3, 0.2, ["loses something"]),
        },
        left_out={},
        alone={
            OURS: [
                Alone(0.2, 0.3, first_s, size << 20) for first_s, size in ((0.9, 40), (0.4, 80), (0.5, 60))
            ]
        },
    )


def text(table: Table) -> str:
    console = Console(file=io.StringIO(), width=300)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_spread_stands_beside_the_median() -> None:
    told = text(show([outcome(10, rows=4)]))
    assert "12 ms (11–31)" in told
    assert "333.3 rows/s" in told, "by the median over rounds"
    assert "10.00 (10.00–10.00)" in told


def test_starts_are_told_by_their_median_and_the_largest_peak() -> None:
    assert "0.20 s" in (told := text(show_alone([outcome(10)])))
    assert "0.50 s" in told
    assert "80 MB" in told


def test_limits_are_told_by_network() -> None:
    found = [Largest(Case("credit", (24,), 10), {OURS: MOST, SHAP: 70}, {})]
    told = text(show_limits(found, GIB))
    assert "references within 1 GB" in told
    assert "credit 24-256-256-2" in told
    assert "1000 or more" in told
    assert "70" in told
    (written,) = contents([outcome(3)], found, Settings(), {})["most_references"]
    assert written["systems"] == {OURS: MOST, SHAP: 70}


def test_curves_are_of_networks_with_several_numbers_of_references() -> None:
    found = curves([outcome(30), outcome(3), outcome(10, rows=4)])
    assert list(found) == ["credit 24-256-256-2"]
    assert list(found["credit 24-256-256-2"][SHAP]) == [3, 30]


def test_a_sweep_has_a_plot_of_its_own(tmp_path) -> None:
    names, said = write_report([outcome(3), outcome(30)], [], Settings(), {}, tmp_path)
    assert names == ["bench.json", "bench.png", "references.png"]
    assert not said
    assert (tmp_path / "references.png").read_bytes().startswith(b"\x89PNG")
    case = json.loads((tmp_path / "bench.json").read_text())["cases"][0]
    assert case["ratios"][SHAP]["median"] == 10
