"""Entries appear whole or not at all; read back, they are checked."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rationale import Compiled, DeepShap, Gradient, compile_model
from rationale.artifact.entry import open_entry
from rationale.artifact.recheck import check_entry
from rationale.errors import RepositoryError
from rationale.graph.runtime.session import save
from tests.compiler.models import FEATURES, contents, mlp, rows

R = rows(4, FEATURES)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(mlp(), DeepShap(R))


@pytest.fixture(scope="module")
def other() -> Compiled:
    return compile_model(mlp(seed=5), Gradient())


# -- whole or not at all -------------------------------------------------------------------------------


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("saves", [0, 1])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, compiled: Compiled, other: Compiled, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    compiled.write(tmp_path, "m")
    before = contents(tmp_path)
    calls = [None] * saves
    monkeypatch.setattr(
        "rationale.artifact.repository.write.save",
        lambda *a: (calls.pop(), save(*a)) if calls else full_disk(),
    )
    with pytest.raises(RepositoryError, match=os.strerror(errno.ENOSPC)):
        other.write(tmp_path, "m")
    assert contents(tmp_path) == before
    with pytest.raises(RepositoryError):
        other.write(tmp_path, "new")
    assert contents(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "m_explain"]


@pytest.mark.parametrize("fails", [1, 2, 3, 4])
@pytest.mark.parametrize("fault", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_failing_rename_leaves_what_was_there(
    tmp_path: Path,
    compiled: Compiled,
    other: Compiled,
    monkeypatch: pytest.MonkeyPatch,
    fails: int,
    fault: BaseException,
) -> None:
    compiled.write(tmp_path, "m")
    before, rename, calls = contents(tmp_path), Path.rename, []

    def failing(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == fails:
            raise fault
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises((RepositoryError, KeyboardInterrupt)):
        other.write(tmp_path, "m")
    assert contents(tmp_path) == before


def test_a_repository_that_is_no_folder(tmp_path: Path, compiled: Compiled) -> None:
    (tmp_path / "file").write_text("kept")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            RepositoryError, match=f"{os.strerror(errno.EEXIST)}|{os.strerror(errno.ENOTDIR)}"
        ):
            compiled.write(place, "m")
    assert contents(tmp_path) == {"file": b"kept"}


def test_a_refused_folder_is_reporting_errors(
    tmp_path: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("rationale.artifact.repository.write.tempfile.TemporaryDirectory", refuse)
    with pytest.raises(RepositoryError, match=os.strerror(errno.EACCES)):
        compiled.write(tmp_path, "m")
    assert contents(tmp_path) == {}


def test_compiling_again_replaces_both_entries(tmp_path: Path, compiled: Compiled, other: Compiled) -> None:
    compiled.write(tmp_path, "m")
    other.write(tmp_path, "m")
    manifest = open_entry(tmp_path, "m").manifest
    assert manifest.method.name == "gradient"
    assert manifest.digests == other.manifest.digests
    other.write(tmp_path / "fresh", "m")
    assert contents(tmp_path / "fresh").keys() == {k for k in contents(tmp_path) if not k.startswith("fresh")}


@pytest.mark.parametrize("stray", [".", "2/model.onnx", "thesis.doc", "src/main.py"])
@pytest.mark.parametrize("entry", ["m", "m_explain"])
def test_a_folder_of_someone_else_is_spared(
    tmp_path: Path, compiled: Compiled, stray: str, entry: str
) -> None:
    path = tmp_path / entry / stray
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("precious")
    with pytest.raises(RepositoryError, match="--name"):
        compiled.write(tmp_path, "m")
    assert contents(tmp_path) == {str(path.relative_to(tmp_path)): b"precious"}


def test_two_compiles_of_one_name_at_once(tmp_path: Path, compiled: Compiled, other: Compiled) -> None:
    """Whoever is last wins both entries; nobody fails."""
    errors: list[BaseException] = []

    def write(which: Compiled) -> None:
        try:
            for _ in range(5):
                which.write(tmp_path, "m")
        except RepositoryError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(which,)) for which in (compiled, other, compiled)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "m_explain"]
    assert check_entry(tmp_path, "m").measured.outputs_error < 1e-6, (
        "the two entries are of different compiles"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no file locks of this kind")
def test_a_writer_waits_for_another_process(tmp_path: Path, compiled: Compiled) -> None:
    hold = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), 2)"
    hold += "; print(flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        thread = threading.Thread(target=compiled.write, args=(tmp_path, "m"))
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert not (tmp_path / "m").exists()
        holder.communicate()
        thread.join(20)
    assert open_entry(tmp_path, "m").manifest.model == "m"


@pytest.mark.usefixtures("without_locks")
def test_a_file_system_without_locks(tmp_path: Path, compiled: Compiled, other: Compiled) -> None:
    compiled.write(tmp_path, "m")
    other.write(tmp_path, "m")
    assert open_entry(tmp_path, "m").manifest.digests == other.manifest.digests


# -- reading back --------------------------------------------------------------------------------------


def test_an_entry_that_is_not_there(tmp_path: Path, compiled: Compiled) -> None:
    compiled.write(tmp_path, "m")
    with pytest.raises(RepositoryError, match=r"n_explain: .*\['m'\].*`rationale compile`"):
        open_entry(tmp_path, "n")
    with pytest.raises(RepositoryError, match="has none"):
        open_entry(tmp_path / "nowhere", "n")


@pytest.mark.parametrize("file", ["m/1/model.onnx", "m_explain/1/model.onnx"])
@pytest.mark.parametrize("content", [None, b"", b"garbage", b"\x08\x0a"])
def test_a_damaged_entry(tmp_path: Path, compiled: Compiled, file: str, content: bytes | None) -> None:
    compiled.write(tmp_path, "m")
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(RepositoryError, match="Compile it again"):
        open_entry(tmp_path, "m")


def test_a_manifest_of_another_graph(tmp_path: Path, compiled: Compiled, other: Compiled) -> None:
    compiled.write(tmp_path, "m")
    other.write(tmp_path, "n")
    (tmp_path / "n_explain" / "1" / "model.onnx").replace(tmp_path / "m_explain" / "1" / "model.onnx")
    with pytest.raises(RepositoryError, match=r"/1/model\.onnx: "):
        open_entry(tmp_path, "m")
    compiled.probes.write(tmp_path / "m_explain" / "1")  # its digest as well
    with pytest.raises(RepositoryError, match=r"\['base_value', 'completeness_gap'\]"):
        open_entry(tmp_path, "m")


def test_warmup_of_another_size(tmp_path: Path, compiled: Compiled) -> None:
    compiled.write(tmp_path, "m")
    (tmp_path / "m_explain" / "warmup" / "input_0").write_bytes(b"123")
    with pytest.raises(RepositoryError, match="Compile it again"):
        open_entry(tmp_path, "m")
