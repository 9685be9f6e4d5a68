"""Restarts under load, in short."""

from pathlib import Path

import pytest

from loadtests.checks import restart
from loadtests.systems import models

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    models.write_network(folder, width=16, references=5)
    return folder


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
