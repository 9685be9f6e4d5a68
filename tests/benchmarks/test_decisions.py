"""`python -m benchmarks.decisions`: its lines, and what it refuses."""

import pytest

from benchmarks import decisions


@pytest.mark.full
def test_a_line_for_each_trail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(decisions, "WARM", 1)
    monkeypatch.setattr(decisions, "REST_S", 0.0)
    decisions.main(["credit", "--audit", "off,sqlite", "--instances", "4"])
    heads, *lines = capsys.readouterr().out.splitlines()
    assert heads.split() == ["audit", "explain", "decide", "added", "quartiles", "sync", "ms"]
    assert [line.split()[:2] for line in lines] == [["credit", "off"], ["credit", "sqlite"]]
    for line in lines:
        explain, decide, added = map(float, line.split()[2:5])
        assert min(explain, decide) > 0.1
        assert abs(added) < explain + decide


@pytest.mark.full
def test_what_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        decisions.main(["forests"])
    assert "choose from credit, trees, not 'forests'" in capsys.readouterr().err
