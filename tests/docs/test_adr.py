"""Architecture decision records: the index holds each; what one names exists, or is said to be gone."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

FOLDER = ROOT / "docs/adr"
RECORDS = sorted(path for path in FOLDER.glob("0*.md") if path.name != "0000-template.md")
TOPS = ("compiler", "service", "loadtests", "benchmarks", "scripts", "tests")
SOURCES = [f"/{path.relative_to(ROOT)}" for top in TOPS for path in (ROOT / top).rglob("*.py")]


def test_the_index_has_each_record_by_its_title() -> None:
    lines = [line for line in (FOLDER / "README.md").read_text("utf-8").splitlines() if line.startswith("- ")]
    assert len(lines) == len(RECORDS)
    for line, path in zip(lines, RECORDS, strict=True):
        number, title = path.read_text("utf-8").splitlines()[0].removeprefix("# ").split(". ", 1)
        assert line.startswith(f"- [{number}]({path.name}) {title}")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_names_files_that_exist_or_says_that_they_are_gone(path: Path) -> None:
    text = path.read_text("utf-8")
    linked = re.findall(r"\]\((\d{4}[^)]*)\)", text)
    named = re.findall(r"`([\w/]+\.py)`", text) + [
        module.replace(".", "/") + ".py" for module in re.findall(r"`python -m ([\w.]+)", text)
    ]
    files = SOURCES + [file.replace("/__main__.py", ".py") for file in SOURCES]  # a command may be a package
    missing = [name for name in named if not any(file.endswith(f"/{name}") for file in files)]
    assert [name for name in linked if not (FOLDER / name).exists()] == []
    assert bool(missing) is ("The code is gone" in text.splitlines()[2]), missing
