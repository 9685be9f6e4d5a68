"""Bodies that cost more than they weigh, in short: those that take seconds, the command sends."""

import contextlib
from collections.abc import Iterator

import pytest

from loadtests.checks import bodies
from loadtests.systems.process import Server, gateway

WITHIN_S = 5.0  # what the command asks is 1 s: here other tests share the cores
SHORT = [
    "a million empty inputs",
    "15 million empty inputs",
    "a million empty outputs",
    "300,000 empty inputs",
    "a million parameters",
    "a million empty instances",
    "instances that are numbers",
    "4 million features",
    "a feature of two million numbers",
    "16 MB of instances, predicted",
    "16 MB of instances, within 60 ms",
    "decisions on 16 MB",
    "an explainer of many groups",
    "an explainer of wrong names",
    "references: empty rows",
    "references: a packed array",
    "an index of a million",
    "gzip of 45 MB",
    "empty inputs, grpc",
    "60 million typed values, grpc",
    "7 million typed values, grpc",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    bodies.write_credit(folder / "m")
    with gateway(folder / "m") as started, bodies.limited(started.pid):
        yield started


@pytest.mark.parametrize("name", SHORT)
def test_no_body_hurts(server: Server, name: str) -> None:
    send, right = bodies.case(server, name)
    found = bodies.cost(server, send)
    assert not found.failed
    assert set(found.answers) <= set(right)
    assert max(found.live_s, found.honest_s) < WITHIN_S
    assert found.grown < bodies.MOST_GROWN


def test_what_must_not_be_is_told() -> None:
    found = bodies.Cost(("200", "413"), 1.5, 0.1, ("OSError: gone",), 400_000_000)
    assert found.faults(("413",)) == [
        "answered 200, not 413",
        "OSError: gone",
        "liveness took 1.50 s",
        "the memory grew by 400 MB",
    ]
    assert bodies.Cost(("413",), 0.1, 0.1, (), 0).faults(("413",)) == []


def test_the_command_says_which_failed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bodies, "write_credit", lambda _: None)
    monkeypatch.setattr(bodies, "gateway", lambda _: contextlib.nullcontext(server))
    monkeypatch.setattr(bodies, "limited", lambda _: contextlib.nullcontext(False))
    monkeypatch.setattr(bodies, "WITHIN_S", 0.0)
    assert bodies.check(["an explainer of wrong names"])
    told = capsys.readouterr().out
    assert "its memory cannot be limited here: watched alone\nan explainer of wrong names" in told
    assert "liveness took" in told
