"""Where SHAP and captum are right, the same answer; where they are wrong, float64 says so and agrees with us.

docs/differences.md tells users of it, with the figures that `tests.peers.deepshap.differences` prints.
"""

from pathlib import Path

import pytest

from tests.peers.agreement import GAP, TRUTH
from tests.peers.deepshap.differences import AGREED, CASES, DIFFERENT, RIGHT, Judged, judged

WRONG = 0.1  # of the largest attribution
PAGE = Path(__file__).parents[3] / "docs" / "differences.md"
RIGHT_THERE = {
    ("max pool right behind an activation", "SHAP"),
    ("GELU (BERT, ViT)", "SHAP"),
}
REFUSES = {("one activation module used twice", "captum")}


@pytest.mark.parametrize("name", CASES)
def test_ours_is_the_truth(name: str) -> None:
    ours = judged(name, "Rationale")
    assert isinstance(ours, Judged)
    assert ours.error <= TRUTH
    assert ours.missing <= GAP


@pytest.mark.parametrize("tool", ["SHAP", "captum"])
@pytest.mark.parametrize("name", AGREED)
def test_agrees(name: str, tool: str) -> None:
    theirs = judged(name, tool)
    assert isinstance(theirs, Judged)
    assert max(theirs.error, theirs.missing) <= RIGHT


@pytest.mark.parametrize("tool", ["SHAP", "captum"])
@pytest.mark.parametrize("name", DIFFERENT)
def test_differs(name: str, tool: str) -> None:
    theirs = judged(name, tool)
    if (name, tool) in REFUSES:
        assert isinstance(theirs, str)
        assert "used more than once" in theirs
        return
    assert isinstance(theirs, Judged)
    if (name, tool) in RIGHT_THERE:
        assert max(theirs.error, theirs.missing) <= RIGHT
    else:
        assert theirs.error > WRONG


def test_the_page_says_what_is_measured() -> None:
    """Row by row who is right; the percentages are those of one machine."""
    lines = PAGE.read_text().splitlines()
    rows = {cells[0]: cells[1:] for line in lines if len(cells := _cells(line)) == 4}
    for name in CASES:
        for outcome, tool in zip(rows[name], ("Rationale", "SHAP", "captum"), strict=True):
            result = judged(name, tool)
            if isinstance(result, str):
                assert outcome == "raises"
            else:
                assert (outcome == "right") == (max(result.error, result.missing) <= RIGHT), (name, tool)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
