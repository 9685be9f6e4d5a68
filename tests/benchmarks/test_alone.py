"""How many references fit, and what a system in a process of its own needs."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import typer

from benchmarks import alone
from benchmarks.alone import MOST, PRECISION, fits, largest, limits_of, line_of, starts_of
from benchmarks.one_system import Alone, start, written
from compiler.bench import subjects
from compiler.bench.cases import OURS, SHAP, TORCH, Case
from compiler.bench.networks import Encoder
from compiler.bench.process import ProcessDiedError
from compiler.bench.subjects import compile_ours, make_subject

CASE = Case("credit", (24,), 3)
GIB = 1 << 30


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


def test_our_graph_fits_what_the_claim_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    alone.main(["credit", "--references", "3", "--peers", "", "--threads", "1", "--budget", "1GB"])
    told, ours = capsys.readouterr().out.splitlines()
    assert told == "credit 24-256-256-2: references within 1 GB"
    assert ours.split(maxsplit=1) == [OURS, f"{MOST} or more"]


def test_what_the_compiler_or_the_process_refuses_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise ProcessDiedError("std::bad_alloc")

    within = partial(fits, OURS, CASE, 1)
    assert within(GIB, 1)
    assert not within(1000, 1)
    monkeypatch.setattr(alone, "start", stopped)
    assert not within(GIB, 1)


def test_a_peer_that_cannot_explain_a_network_is_left_out_and_not_given_a_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The PyTorch baseline has no rule for a transformer's layers, however few the references are."""
    monkeypatch.setitem(subjects.NETWORKS, "transformer", lambda width: Encoder(width, blocks=1))
    monkeypatch.setattr(alone, "largest", lambda _: 7)
    _, ours, peer = limits_of(Case("transformer", (3, 8), 2), [OURS, TORCH], 1, GIB)
    assert ours.split() == [OURS, "7"]
    assert "the PyTorch baseline has no rule" in peer


def test_a_peer_that_dies_alone_is_left_out_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(*_: object) -> None:
        raise ProcessDiedError("Traceback:\n  a line\nRuntimeError: too large")

    monkeypatch.setattr(alone, "start", died)
    *_, line = starts_of(CASE, [OURS], 1, 1)
    assert line.split(maxsplit=1) == [OURS, "RuntimeError: too large"]


def test_a_process_that_asks_for_too_much_is_stopped() -> None:
    subject = make_subject(replace(CASE, references=2000, rows=200), 0)
    with written(subject, compile_ours(subject, 1)) as folder, pytest.raises(ProcessDiedError):
        start(OURS, folder, 1, most_bytes=200_000_000)


@pytest.mark.parametrize("name", [OURS, SHAP])
def test_each_start_is_told_in_order(name: str) -> None:
    subject = make_subject(CASE, 0)
    with written(subject, compile_ours(subject, 1)) as folder:
        one = start(name, folder, 1)
    assert 0 < one.imported_s < one.ready_s < one.first_s
    assert one.peak_bytes > 1e5


def test_starts_are_told_by_their_median_and_the_largest_peak() -> None:
    starts = [Alone(0.2, 0.3, first_s, size << 20) for first_s, size in ((0.9, 40), (0.4, 80), (0.5, 60))]
    assert line_of(starts).split() == ["0.20", "s", "0.30", "s", "0.50", "s", "80", "MB"]


def test_a_start_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProcessDiedError, match=r"NoSuchFile|No such file|exist"):
        start(OURS, tmp_path, 1)


def test_garbage_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit, match=r"^2$"):
        alone.main(["credit", "--budget", "much"])
    assert "is not an amount of memory" in capsys.readouterr().err
