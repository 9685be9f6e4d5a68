"""`examples/notebooks`: each runs from top to bottom, and holds the outputs of such a run."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
QUICK = ("credit_network",)  # the others train, and run in make test-full
# What each shows once it ran: the numbers that it is about.
SHOWS = {
    "credit_network": (r"first reason by DeepSHAP: (\[.*\])\nfirst reason by Shapley : \1\n",),
    "credit_trees": (r"AUC on applications it never saw: 0\.8\d", r"4 rows: 1 approve, 2 decline, 1 refer"),
    "digits_lrp": (r"it never saw: 9\d\.\d%", r"relevance: .* falls by 1\d\..*\n.*random: .* by [1-6]\."),
    "sequences_attnlrp": (r"it never saw: (9\d|100)\.\d%", r"since the last cure +mean relevance \+"),
}


def outputs(notebook: Any, kind: str) -> str:
    """What the cells gave: "text/html", or "text" that was printed."""
    sample = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    if kind == "text":
        return "".join(output.text for output in sample if output.output_type == "stream")
    return "".join(output.data.get(kind, "") for output in sample if "data" in output)


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_holds_what_a_run_shows(path: Path) -> None:
    """A reader sees numbers and pictures without running it: no warning, nothing of a machine."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    kinds = {output.get("name", output.output_type) for cell in code for output in cell.outputs}
    assert kinds <= {"stdout", "execute_result", "display_data"}
    demand_shown(path, notebook)
    assert not re.search(r"(?<![\w.])/(tmp|home|root|work|Users)/", path.read_text(encoding="utf-8"))
    assert notebook.metadata.kernelspec.name == "python3"
    assert path.name in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.full
def test_the_readme_leads_to_them() -> None:
    assert "examples/notebooks" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert SHOWS.keys() == {path.stem for path in NOTEBOOKS}


@pytest.mark.full
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, id=p.stem, marks=[] if p.stem in QUICK else pytest.mark.full) for p in NOTEBOOKS],
)
def test_it_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
    demand_shown(path, notebook)


def demand_shown(path: Path, notebook: Any) -> None:
    printed, shown = outputs(notebook, "text"), outputs(notebook, "text/html")
    for pattern in SHOWS[path.stem]:
        assert re.search(pattern, printed), printed
    assert shown.count('class="rationale"') >= 2
    assert "<script" not in shown
