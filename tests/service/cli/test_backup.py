"""`rationale backup`: whole while decisions are written, and clear about what it does not copy."""

import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rationale_service.cli.main import app
from rationale_service.decisions.audit import ledger
from rationale_service.decisions.audit.evidence.verify import verify
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.state.state import State
from tests.service import handmade, patient
from tests.service.child import ready_line, serve
from tests.service.decisions.audit.memory import MemoryStore

INSTANCES = [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]


@pytest.fixture
def models(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, with a state beside it that has a record, a lease and a replica."""
    for name in ("STATE", "ARTIFACTS", "AUDIT", "CONFIG"):
        monkeypatch.delenv(f"RATIONALE_{name}", raising=False)
    folder = tmp_path / "models"
    shutil.copytree(repository, folder)
    state = State(tmp_path / "models.state")
    state.write(("note", "a", {"name": "a"}))
    state.follow(1)
    assert state.take("compile") == ""
    (state.references / "digest.npz").write_bytes(b"rows")
    return folder


def backup(models: Path, into: Path, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["backup", str(into), "--repository", str(models)])
    assert result.exit_code == status, result.output
    return result


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_copy_is_whole_while_the_gateway_decides(models: Path, tmp_path: Path) -> None:
    answered: list[str] = []
    stop = threading.Event()

    def decide(url: str) -> None:
        while not stop.is_set():
            answer = patient.post(f"{url}/v1/models/score:decide", json={"instances": INSTANCES})
            assert answer.status_code == 200, answer.text
            answered.extend(each["id"] for each in answer.json()["decisions"])

    with serve("--port", "0", "--repository", str(models)) as child:
        url, _ = ready_line(child)
        callers = [threading.Thread(target=decide, args=(url,)) for _ in range(2)]
        for caller in callers:
            caller.start()
        try:
            while len(answered) < 200:
                stop.wait(0.02)
            before = list(answered)
            backup(models, tmp_path / "copy")
        finally:
            stop.set()
            for caller in callers:
                caller.join()
    audit = SqlStore(tmp_path / "copy/state/audit.sqlite3", is_made=False)
    copied_ids = {row["id"] for row in audit.in_order(None, None, None)}
    assert set(before) <= copied_ids
    assert [collected for collected in verify(audit) if not isinstance(collected, int)] == []
    audit.close()


def test_what_is_copied(models: Path, tmp_path: Path) -> None:
    (models / ".staging").mkdir()
    output = backup(models, tmp_path / "copy").stdout
    assert "state/state.sqlite3: explainers and reference sets\n" in output
    assert "not copied" not in output
    copy = tmp_path / "copy"
    assert copy.stat().st_mode & 0o777 == 0o700
    assert names(copy) == {"state", "repository"}
    assert names(copy / "repository") == names(models) - {".staging"}
    for file in (path for path in models.rglob("*") if path.is_file()):
        assert (copy / "repository" / file.relative_to(models)).read_bytes() == file.read_bytes()
    assert (copy / "state/references/digest.npz").read_bytes() == b"rows"
    restored = State(copy / "state")
    assert restored.read("note") == [{"name": "a"}]
    restored.close()
    with sqlite3.connect(copy / "state/state.sqlite3") as connection:  # of processes that are not there
        for table in ("state_leases", "state_replicas"):
            assert connection.execute(f"SELECT * FROM {table}").fetchall() == []  # noqa: S608
    connection.close()
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_what_lies_elsewhere_is_named(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATIONALE_STATE", "postgresql://me:secret@nowhere/db")
    monkeypatch.setenv("RATIONALE_ARTIFACTS", "s3://bucket/folder")
    output = backup(models, tmp_path / "copy").stdout
    assert output.count("not copied: ") == 3
    assert "secret" not in output
    assert names(tmp_path / "copy/state") == set()
    assert names(tmp_path / "copy/repository") == names(models)


def test_a_trail_in_a_file_of_its_own(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATIONALE_AUDIT", f"sqlite:///{tmp_path}/other.sqlite3")
    with SqlStore(tmp_path / "other.sqlite3").writing():
        pass
    assert "state/audit.sqlite3: the audit trail" in backup(models, tmp_path / "copy").stdout
    monkeypatch.setenv("RATIONALE_AUDIT", "off")
    assert "audit.sqlite3" not in backup(models, tmp_path / "without").stdout


def test_a_trail_in_a_store_that_is_no_database(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "open_store", lambda _: MemoryStore())
    assert "not copied: the audit trail" in backup(models, tmp_path / "copy").stdout


def test_a_gateway_that_never_wrote_anything(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository, tmp_path / "models")
    backup(tmp_path / "models", tmp_path / "copy")
    assert names(tmp_path) == {"models", "copy"}
    assert names(tmp_path / "copy/state") == set()


def test_an_entry_that_is_replaced_meanwhile(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, replaced = shutil.copytree, []

    def copytree(source: Path, target: Path, *more: Any, **options: Any) -> Any:
        copied = real(source, target, *more, **options)
        if source == models / "score" and not replaced:
            replaced.append(real(source, tmp_path / "new"))
            (tmp_path / "new/config.pbtxt").write_text("new")
            source.rename(tmp_path / "old")
            (tmp_path / "new").rename(source)
        return copied

    monkeypatch.setattr(shutil, "copytree", copytree)
    backup(models, tmp_path / "copy")
    assert replaced
    assert (tmp_path / "copy/repository/score/config.pbtxt").read_text() == "new"


def test_an_entry_that_goes_meanwhile(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.copytree

    def copytree(source: Path, target: Path, *more: Any, **options: Any) -> Any:
        if source == models / "score":
            real(source, target, *more, **options)
            shutil.rmtree(source)
            raise shutil.Error([(str(source), str(target), "gone")])
        return real(source, target, *more, **options)

    monkeypatch.setattr(shutil, "copytree", copytree)
    backup(models, tmp_path / "copy")
    assert names(tmp_path / "copy/repository") == names(models)
    assert "score" not in names(models)


def test_what_cannot_be_copied(models: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert "already" in backup(models, tmp_path / "there", status=2).stderr
    assert "no repository" in backup(tmp_path / "none", tmp_path / "copy", status=2).stderr
    assert "first" in backup(models, tmp_path / "a/b", status=2).stderr
    (tmp_path / "models.state/audit.sqlite3").write_bytes(b"no database at all" * 100)
    assert "not a database" in backup(models, tmp_path / "copy", status=2).stderr
    assert not [name for name in names(tmp_path) if "copy" in name]
