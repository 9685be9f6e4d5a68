"""How many references fit, and what a system in a process of its own needs."""

from dataclasses import replace
from pathlib import Path

import pytest

from compiler.bench import apart, budget, subjects
from compiler.bench.apart import alone, start, written
from compiler.bench.budget import MOST, PRECISION, largest, limit
from compiler.bench.cases import FORWARD, OURS, SHAP, TORCH, Case, Settings
from compiler.bench.networks import Encoder
from compiler.bench.process import ProcessDiedError
from compiler.bench.subjects import compile_ours, make_subject

CASE = Case("credit", (24,), 3)
SETTINGS = Settings(threads=1, peers=(), memory_budget=1 << 30)


@pytest.mark.parametrize("capacity", [0, 1, 2, 7, 41, 300, 999, 1000, 5000])
def test_the_most_references_are_found(capacity: int) -> None:
    tried: dict[int, bool] = {}

    def fits(references: int) -> bool:
        return tried.setdefault(references, references <= capacity)

    found = largest(fits)
    assert found == 0 or tried[found], "the figure is one that was measured"
    assert found <= capacity
    assert found == MOST or capacity < max(found * PRECISION, found + 1)
    assert len(tried) < 14


def test_our_graph_fits_what_the_claim_is_about() -> None:
    assert limit(CASE, SETTINGS, lambda *_: None).references == {OURS: MOST}


def test_what_the_compiler_or_the_process_refuses_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise ProcessDiedError("std::bad_alloc")

    monkeypatch.setattr(budget, "start", stopped)
    assert limit(CASE, SETTINGS, lambda *_: None).references == {OURS: 0}
    monkeypatch.undo()
    assert limit(CASE, replace(SETTINGS, memory_budget=1000), lambda *_: None).references == {OURS: 0}


def test_a_peer_that_cannot_explain_a_network_is_left_out_and_not_given_a_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The PyTorch baseline has no rule for a transformer's layers, however few the references are."""
    monkeypatch.setitem(subjects.NETWORKS, "transformer", lambda width: Encoder(width, blocks=1))
    monkeypatch.setattr(budget, "largest", lambda _: 7)
    found = limit(Case("transformer", (3, 8), 2), replace(SETTINGS, peers=(TORCH,)), lambda *_: None)
    assert found.references == {OURS: 7}
    assert "the PyTorch baseline has no rule" in found.left_out[TORCH]


def test_a_peer_that_dies_alone_is_left_out_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(*_: object) -> None:
        raise ProcessDiedError("Traceback:\n  a line\nRuntimeError: too large")

    monkeypatch.setattr(apart, "start", died)
    subject = make_subject(CASE, 0)
    found, left_out = alone(subject, compile_ours(subject, 1), Settings(threads=1, peers=()))
    assert (found, left_out) == ({}, {OURS: "RuntimeError: too large"})


def test_a_process_that_asks_for_too_much_is_stopped() -> None:
    subject = make_subject(replace(CASE, references=2000, rows=200), 0)
    with written(subject, compile_ours(subject, 1)) as folder, pytest.raises(ProcessDiedError):
        start(OURS, folder, 1, most_bytes=200_000_000)


def test_each_start_is_told_in_order() -> None:
    subject = make_subject(CASE, 0)
    found, left_out = alone(subject, compile_ours(subject, 1), Settings(threads=1, peers=(FORWARD, SHAP)))
    assert (list(found), left_out) == ([OURS, SHAP], {})
    for (one,) in found.values():
        assert 0 < one.imported_s < one.ready_s < one.first_s
        assert one.peak_bytes > 1e5


def test_a_start_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProcessDiedError, match=r"NoSuchFile|No such file|exist"):
        start(OURS, tmp_path, 1)
