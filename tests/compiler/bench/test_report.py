"""Tables and plots of what was measured, from times that are known."""

import io
import json

from rich.console import Console
from rich.table import Table

from rationale.bench.cases import OURS, SHAP, Case, Settings
from rationale.bench.measure import Measured, Outcome
from rationale.bench.report import curves, show, write_report


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


def test_curves_are_of_networks_with_several_numbers_of_references() -> None:
    found = curves([outcome(30), outcome(3), outcome(10, rows=4)])
    assert list(found) == ["credit 24-256-256-2"]
    assert list(found["credit 24-256-256-2"][SHAP]) == [3, 30]


def test_a_sweep_has_a_plot_of_its_own(tmp_path) -> None:
    names, said = write_report([outcome(3), outcome(30)], Settings(), {}, tmp_path)
    assert names == ["bench.json", "bench.png", "references.png"]
    assert not said
    assert (tmp_path / "references.png").read_bytes().startswith(b"\x89PNG")
    case = json.loads((tmp_path / "bench.json").read_text())["cases"][0]
    assert case["ratios"][SHAP]["median"] == 10
