"""Hostile peers, restarts, workers and perf_analyzer, in short."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.checks import hostile, perf_analyzer, restart, workers
from loadtests.systems import models
from loadtests.systems.process import Server, gateway

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    models.write_network(folder, width=16, references=5)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with gateway(repository) as started:
        yield started


@pytest.mark.parametrize("name", hostile.ATTACKS)
def test_honest_calls_come_beside_every_attack(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From two connections, and short: what it costs from thirty, the command tells."""
    monkeypatch.setattr(hostile, "ATTACK_S", 0.5)
    monkeypatch.setattr(hostile, "_FLOOD", 200)
    found = hostile.measure(server, hostile.ATTACKS[name], 2)
    assert not found.failed
    assert len(found.took_s["http"]) == len(found.took_s["grpc"]) > 0
    assert 0 <= found.grown < 500_000_000
    assert found.report(name, most=-1), "more than may be"
    assert f"{name:21} {len(found.took_s['http'])} honest calls" in capsys.readouterr().out


def test_an_honest_call_that_fails_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "ATTACK_S", 0.1)
    monkeypatch.setattr(hostile, "PREDICTED", models.question("missing", "predict"))
    found = hostile.measure(server, hostile.ATTACKS["heads without end"], 1)
    assert "http: an honest call was answered with 404" in found.failed[0]
    assert found.report("", most=1 << 40)


def test_a_restart_loses_no_call(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "BETWEEN_S", 0.3)
    tally = restart.measure(repository, restarts=1)
    assert not tally.lost
    assert not tally.wrong
    assert min(tally.answered["HTTP"], tally.answered["gRPC"]) > restart.CALLERS


def test_a_wrong_answer_is_told(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def run(self, *_: object) -> list[float]:
            return [0.0]

    monkeypatch.setattr("loadtests.checks.restart.models.session", lambda *_: Other())
    monkeypatch.setattr(restart, "BETWEEN_S", 0.3)
    assert restart.measure(repository, restarts=0).wrong > 1


def test_perf_analyzer_is_run_every_way(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "perf_analyzer"
    script = "import sys", "print(*sys.argv[1:])", "sys.exit('--fail' in sys.argv)"
    program.write_text("\n".join([f"#!{sys.executable}", *script]))
    program.chmod(0o755)
    ends = {"http": "h:1", "grpc": "g:2"}
    assert perf_analyzer.run(str(program), "m", ends, ["--shape", "x:3"])
    assert "-m m -u h:1 -i http --shape x:3" in (told := capfd.readouterr().out)
    assert "-m m -u g:2 -i grpc --streaming --shape x:3" in told
    assert not perf_analyzer.run(str(program), "m", ends, ["--fail"])


def test_what_workers_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether that is too much is for the command to say, on a machine that does nothing else."""
    with gateway(Path("model_repository"), "--workers", "2") as several:
        used_us, rate = workers.cost(several, 0.5)
    assert 0 < used_us < 1e6
    assert rate > 1
    assert capsys.readouterr().out == ""
