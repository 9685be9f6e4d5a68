"""A repository at a URL: what is pulled is what was written, once, whole or not at all."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rationale import DeepShap, Gradient, compile_model
from rationale.artifact.repository.digest import graph_digest
from rationale.artifact.repository.remote import RemoteRepository, UnreachableError, pull_once
from rationale.cli.compile import app
from rationale.errors import InvalidOptionError, RepositoryError
from rationale.schema.manifest import Manifest
from tests.compiler.models import FEATURES, contents, mlp, rows

ENTRIES = ["m", "m_explain", "n", "n_explain"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    for name, method in (("m", DeepShap(rows(4, FEATURES))), ("n", Gradient())):
        compile_model(mlp(), method, targets=[1]).write(folder, name)
    return folder


@pytest.fixture
def bucket(written: Path, tmp_path: Path) -> Path:
    bucket = tmp_path / "bucket"
    subprocess.run(["cp", "-r", written, bucket], check=True)
    (bucket / "README.md").write_text("no entry")
    return bucket


@pytest.fixture
def remote(bucket: Path, tmp_path: Path) -> RemoteRepository:
    return RemoteRepository(f"file://{bucket}", tmp_path / "copy")


@pytest.fixture
def downloads(remote: RemoteRepository, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are downloaded from now on."""
    downloaded: list[str] = []
    storage, root = remote._storage
    get: Callable[..., Any] = storage.get

    def counted(files: list[str], *more: Any, **options: Any) -> Any:
        downloaded.extend(file.removeprefix(f"{root}/") for file in files)
        return get(files, *more, **options)

    monkeypatch.setattr(storage, "get", counted)
    return downloaded


def pull(remote: RemoteRepository) -> dict[str, str]:
    remote.pull()
    return remote.refused


def entries(remote: RemoteRepository) -> list[str]:
    return sorted(path.name for path in remote.entries.iterdir())


def same(remote: RemoteRepository, bucket: Path) -> bool:
    return all(contents(remote.entries / name) == contents(bucket / name) for name in entries(remote))


def recompile(bucket: Path, name: str = "m", seed: int = 7) -> None:
    compile_model(mlp(), DeepShap(rows(3, FEATURES, seed=seed)), targets=[1]).write(bucket, name)


def test_manifests_hold_the_digest_of_each_graph(written: Path) -> None:
    manifest = Manifest.read(written / "m_explain" / "explanation.json")
    assert manifest.graphs == {f"{name}/1": graph_digest(written / name / "1") for name in ("m", "m_explain")}
    command = "sha256sum * | sha256sum"
    result = subprocess.run(command, shell=True, cwd=written / "m" / "1", capture_output=True, check=True)  # noqa: S602
    assert result.stdout.decode().split()[0] == manifest.graphs["m/1"]


def test_all_is_pulled_and_nothing_twice(
    remote: RemoteRepository, bucket: Path, downloads: list[str]
) -> None:
    assert pull(remote) == {}
    assert entries(remote) == ENTRIES
    assert same(remote, bucket)
    assert remote.folder.stat().st_mode & 0o077 == 0
    assert len(downloads) == sum(len(contents(bucket / name)) for name in ENTRIES)
    downloads.clear()
    assert pull(remote) == {}
    restarted = RemoteRepository(
        f"file://{bucket}", remote.folder
    )  # after a restart, of the same storage object
    assert restarted.open() is None
    assert downloads == []
    config, graph = bucket / "m" / "config.pbtxt", remote.entries / "m" / "1" / "model.onnx"
    config.write_text(config.read_text() + "# tuned\n")
    before = graph.stat()
    assert pull(remote) == {}
    assert downloads == ["m/config.pbtxt"]
    assert same(remote, bucket)
    assert (graph.stat().st_ino, graph.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_comes_changes_and_goes_is_followed(remote: RemoteRepository, bucket: Path) -> None:
    remote.pull()
    seen = remote.list_entries()
    assert remote.list_entries() == seen
    recompile(bucket)
    subprocess.run(["rm", "-r", bucket / "n", bucket / "n_explain"], check=True)
    assert remote.list_entries() != seen
    assert pull(remote) == {}
    assert entries(remote) == ["m", "m_explain"]
    assert same(remote, bucket)
    assert len(list((remote.folder / "content").iterdir())) == 2  # nothing old is left


def test_two_entries_of_the_same_files_are_both_pulled(remote: RemoteRepository, bucket: Path) -> None:
    """A storage that marks files by their content marks those of a copy alike; here the time is kept."""
    subprocess.run(["cp", "-rp", bucket / "m", bucket / "copy"], check=True)
    assert pull(remote) == {}
    assert entries(remote) == ["copy", *ENTRIES]
    assert same(remote, bucket)


def test_a_model_and_what_explains_it_are_taken_up_together(remote: RemoteRepository, bucket: Path) -> None:
    remote.pull()
    before = {name: contents(remote.entries / name) for name in ENTRIES}
    whole = (bucket / "m_explain" / "1" / "model.onnx").read_bytes()
    recompile(bucket)  # an upload of it that is half way:
    new = (bucket / "m_explain" / "1" / "model.onnx").read_bytes()
    (bucket / "m_explain" / "1" / "model.onnx").write_bytes(whole)
    refused = pull(remote)
    assert set(refused) <= {"m", "m_explain"}
    assert "m_explain" in refused
    assert "m_explain/1: " in refused["m_explain"]
    assert f"file://{bucket}" in refused["m_explain"]
    assert {name: contents(remote.entries / name) for name in ENTRIES} == before
    (bucket / "m_explain" / "1" / "model.onnx").write_bytes(new)
    assert pull(remote) == {}
    assert same(remote, bucket)


@pytest.mark.parametrize("entry", ["m", "m_explain"])
def test_a_file_that_is_not_what_was_written_is_not_served(
    remote: RemoteRepository, bucket: Path, entry: str
) -> None:
    file = bucket / entry / "1" / "model.onnx"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    refused = pull(remote)
    assert refused.keys() == {"m", "m_explain"}
    assert "Upload m and its" in refused["m"]
    assert entries(remote) == ["n", "n_explain"]


def test_a_manifest_that_cannot_be_read_is_refused_by_its_address(
    remote: RemoteRepository, bucket: Path
) -> None:
    (bucket / "m_explain" / "explanation.json").write_text("{")
    refused = pull(remote)
    assert refused["m"].startswith(f"file://{bucket}/m_explain/explanation.json: not a manifest")


def test_entries_without_digests_are_taken_as_they_are(remote: RemoteRepository, bucket: Path) -> None:
    path = bucket / "m_explain" / "explanation.json"
    path.write_text(Manifest.read(path).model_copy(update={"graphs": {}}).to_json())
    assert pull(remote) == {}
    assert entries(remote) == ENTRIES


def test_a_copy_that_was_altered_is_pulled_anew(remote: RemoteRepository, bucket: Path) -> None:
    remote.pull()
    file = remote.entries / "m" / "1" / "model.onnx"
    file.write_bytes(b"damaged")
    restarted = RemoteRepository(f"file://{bucket}", remote.folder)
    assert pull(restarted) == {}
    assert same(restarted, bucket)
    file.write_bytes(b"damaged")
    bucket.rename(bucket.with_name("away"))
    third = RemoteRepository(f"file://{bucket}", remote.folder)
    third.open()
    assert entries(third) == ["n", "n_explain"]  # and never a damaged one


def test_without_the_storage_the_copy_is_read_and_says_so(remote: RemoteRepository, bucket: Path) -> None:
    with pytest.raises(UnreachableError, match="-of-nothing: "):
        RemoteRepository(f"file://{bucket}-of-nothing", remote.folder).open()
    assert remote.open() is None
    assert remote.fault is None
    bucket.rename(bucket.with_name("away"))
    assert remote.open() is None
    assert str(remote.entries) in str(remote.fault)
    assert entries(remote) == ENTRIES
    bucket.with_name("away").rename(bucket)
    remote.open()
    assert remote.fault is None


def test_a_storage_that_fails_half_way_changes_nothing(
    remote: RemoteRepository, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.pull()
    before = {name: contents(remote.entries / name) for name in ENTRIES}
    recompile(bucket)

    def failing(_: list[str], targets: list[str]) -> None:
        Path(targets[0]).write_bytes(b"half")
        raise ConnectionError("reset by ftp://me:hunter2@peer\nand more")

    monkeypatch.setattr(remote._storage[0], "get", failing)
    with pytest.raises(UnreachableError, match=r": reset by ftp://peer$"):
        remote.pull()
    assert {name: contents(remote.entries / name) for name in ENTRIES} == before
    assert [path.name for path in remote.folder.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["m/../../etc/passwd", "m/1//x", "m/./x", "m/a\\b"])
def test_names_that_lead_elsewhere_are_refused(
    remote: RemoteRepository, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    storage, root = remote._storage
    monkeypatch.setattr(storage, "find", lambda *_, **__: {f"{root}/{name}": {"size": 1}})
    with pytest.raises(RepositoryError, match=re.escape(f"'{name}'")):
        remote.pull()


@pytest.mark.parametrize("marker", ["m/1/", "n/", "empty/"])
def test_objects_that_stand_for_folders_are_none(
    remote: RemoteRepository, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    seen = remote.list_entries()
    storage, root = remote._storage
    find: Callable[..., Any] = storage.find
    more = {f"{root}/{marker}": {"size": 0, "type": "file"}}
    monkeypatch.setattr(storage, "find", lambda *paths, **options: find(*paths, **options) | more)
    assert remote.list_entries() == seen


def test_a_file_that_is_gone_from_the_copy_comes_back(remote: RemoteRepository, bucket: Path) -> None:
    remote.pull()
    (remote.entries / "m" / "warmup" / "input_0").unlink()
    (bucket / "m" / "config.pbtxt").write_text((bucket / "m" / "config.pbtxt").read_text() + "# tuned\n")
    assert pull(remote) == {}
    assert same(remote, bucket)


def test_a_manifest_names_no_files_elsewhere(remote: RemoteRepository, bucket: Path) -> None:
    path = bucket / "m_explain" / "explanation.json"
    path.write_text(Manifest.read(path).model_copy(update={"graphs": {"m/../../..": "0" * 64}}).to_json())
    refused = pull(remote)
    assert "'m/../../..'" in refused["m"]
    assert f"file://{bucket}/m_explain" in refused["m"]


def test_processes_that_share_a_copy_take_turns(remote: RemoteRepository, bucket: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from rationale.artifact.repository.remote import RemoteRepository\n"
        "RemoteRepository(sys.argv[1], Path(sys.argv[2])).pull()"
    )
    command = [sys.executable, "-c", code, f"file://{bucket}", str(remote.folder)]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in running] == [0] * 2
    assert same(remote, bucket)
    assert entries(remote) == ENTRIES


def test_what_a_killed_pull_left_goes_with_the_next(remote: RemoteRepository) -> None:
    (remote.folder / ".pulling-abc" / "m").mkdir(parents=True)
    (remote.folder / "content" / "old" / "m").mkdir(parents=True)
    remote.pull()
    assert sorted(path.name for path in remote.folder.iterdir()) == ["content", "repository"]
    assert len(list((remote.folder / "content").iterdir())) == len(ENTRIES)


@pytest.mark.usefixtures("without_locks")
def test_a_copy_on_a_file_system_without_locks(remote: RemoteRepository, bucket: Path) -> None:
    other = remote.folder / ".pulling-abc"
    other.mkdir(parents=True)
    assert pull(remote) == {}
    assert same(remote, bucket)
    assert other.exists()  # for another process may still write to it


def test_urls_that_make_no_sense_are_told(tmp_path: Path) -> None:
    for url in ("nonsense://a/b", "gs://a/b"):  # of which the second has no library here
        with pytest.raises(InvalidOptionError, match="must be a folder, or a URL"):
            RemoteRepository(url, tmp_path)
    assert RemoteRepository(f"file://{tmp_path}", tmp_path).name == f"file://{tmp_path}"
    with pytest.raises(UnreachableError) as raised:
        RemoteRepository("ftp://me:hunter2@127.0.0.1:9/models", tmp_path).pull()
    assert "hunter2" not in str(raised.value)


def test_commands_that_read_take_a_url(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows_in = tmp_path / "x.npy"
    np.save(rows_in, rows(3, FEATURES))
    url = f"file://{bucket}"
    command = ["explain", "m", "--repository", url, "--input", str(rows_in)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    folder, warnings = pull_once(url)
    assert folder.is_relative_to(tmp_path / "cache")
    assert warnings == []
    bucket.rename(bucket.with_name("away"))
    repeated = CliRunner().invoke(app, command)
    assert repeated.exit_code == 0
    assert "warning: file://" in repeated.stderr
    assert repeated.stdout == result.stdout
    away = CliRunner().invoke(app, ["check", "m", "--repository", f"{url}/other"])
    assert away.exit_code == 2
    assert f"{url}/other" in away.stderr
    model = tmp_path / "m.onnx"
    model.write_bytes(mlp().SerializeToString())
    written = CliRunner().invoke(app, ["compile", str(model), "--name", "m", "--repository", url])
    assert written.exit_code == 2
    assert "is a URL" in written.stderr.replace("\n", " ")
