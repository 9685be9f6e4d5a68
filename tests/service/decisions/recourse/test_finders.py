"""Which searches for recourse a process keeps: the last ones that were used."""

from typing import Any

import pytest

from rationale_service.decisions.options import recourse
from rationale_service.decisions.options.recourse import RecourseSearch


@pytest.mark.parametrize(
    ("asked", "made", "kept"),
    [
        ("AB", "AB", "AB"),
        ("AAB", "AB", "AB"),
        ("ABC", "ABC", "BC"),
        ("ABAC", "ABC", "AC"),  # A was used after B
        ("ABCA", "ABCA", "CA"),
        ("ABABCB", "ABC", "CB"),
    ],
)
def test_the_last_used_are_kept(asked: str, made: str, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    monkeypatch.setattr(recourse, "_KEPT", 2)
    monkeypatch.setattr(recourse, "recourse_finder", lambda manifest, _: calls.append(manifest))
    monkeypatch.setattr("onnx.load", lambda *_, **__: None)
    entries = {name: _Entry(name) for name in asked}
    nothing: Any = None
    search: Any = RecourseSearch(nothing)
    for name in asked:
        search._finder(entries[name], name)
    assert calls == [*made]
    assert [entry.model_path for entry in search._finders] == [*kept]
    search.stop()


class _Entry:
    def __init__(self, model_path: str) -> None:
        self.model_path = model_path
