"""Which searches for recourse a process keeps, and when a plan is the same again."""

from typing import Any

import numpy as np
import pytest

from rationale import DeepShap, compile_model
from rationale_service.decisions.options import recourse
from rationale_service.decisions.options.options import Replay
from rationale_service.decisions.options.recourse import RecourseSearch
from tests.compiler.models import parsed


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


@pytest.mark.parametrize(
    ("threshold", "score", "moved", "tolerance", "differs"),
    [
        (1.0, 0.0, 5e-5, 1e-4, False),  # by the larger of both, as the decision's own score is compared
        (1.0, 0.0, 2e-4, 1e-4, True),
        (0.0, -1.0, 5e-5, 1e-4, False),
        (0.0, -1.0, 2e-4, 1e-4, True),
        (1.0, 0.0, 5e-5, 0.0, True),  # the same runtime
        (1.0, 0.0, 0.0, 0.0, False),
        (1.0, 0.0, 2.0, 4.0, True),  # another decision
    ],
)
def test_a_plan_is_compared_by_the_scale_of_its_score(
    threshold: float, score: float, moved: float, tolerance: float, differs: bool
) -> None:
    graph = "g (float[N, 2] x) => (float[N, 1] y) { y = MatMul (x, w) }"
    decision = {"output": "y", "threshold": threshold, "adverse": "above", "output_range": [-9, 9]}
    model = parsed(graph, {"w": np.ones((2, 1), np.float32)})
    compiled = compile_model(model, DeepShap(np.zeros((2, 2))), feature_names=["a", "b"], decision=decision)
    row = {"x": np.array([[5, 0]], np.float32)}
    replay = Replay(
        compiled.manifest, row, {"a": 5.0, "b": 0.0}, lambda each: compiled.explain(each["x"]), tolerance
    )
    plan = {"changes": {"a": score + moved}, "decision": "approve", "score": score}
    assert bool(list(recourse.differences(replay, {"plans": [plan]}))) == differs


class _Entry:
    def __init__(self, model_path: str) -> None:
        self.model_path = model_path
