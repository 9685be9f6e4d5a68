"""`python -m benchmarks.blocks`: both ways to cut a node's work, side by side."""

import pytest

from benchmarks import blocks


def test_explanation_and_forward_pass_are_timed_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    blocks.main(["credit", "--rounds", "3"])
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert [line[:28].strip() for line in lines] == [
        "explanation, equal blocks",
        "explanation, large blocks",
        "forward pass, equal blocks",
        "forward pass, large blocks",
    ]
    for line in lines:
        fastest, low, middle, high, slowest = map(float, line[28:].split())
        assert 0 < fastest <= low <= middle <= high <= slowest


@pytest.mark.parametrize("flag", ["--rounds", "--threads"])
def test_nothing_is_timed_no_times(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        blocks.main(["credit", flag, "0"])
    assert "must be 1 or more" in capsys.readouterr().err
