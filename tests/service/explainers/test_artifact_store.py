"""Entries that machines share: fetched whole, by every Python that is supported."""

import contextlib
import os
import tarfile
import time
from pathlib import Path

import pytest

from rationale_service.errors import StateUnavailableError
from rationale_service.models.explainers import artifact_store
from rationale_service.models.explainers.artifact_store import ArtifactStore, copies_in
from rationale_service.models.explainers.records import Artifact, lease_of
from rationale_service.state.blobs import Blobs
from rationale_service.state.state import State


@pytest.mark.parametrize("has_filter", [True, False], ids=["filter", "before 3.11.4"])
def test_an_entry_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_filter: bool) -> None:
    if not has_filter and hasattr(tarfile, "data_filter"):
        extract = tarfile.TarFile.extractall
        monkeypatch.delattr(tarfile, "data_filter")
        monkeypatch.setattr(
            tarfile.TarFile, "extractall", lambda self, path: extract(self, path, filter="tar")
        )
    first, second = (
        ArtifactStore(tmp_path / name, State(tmp_path / f"{name}.state"), Blobs(f"file://{tmp_path}/blobs"))
        for name in ("one", "two")
    )
    folder = first.staging() / "net_explain_1"
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.onnx").write_bytes(b"graph")
    artifact = Artifact("d", "net_explain_1", "net", "m", None, 5, sha256=first.keep(folder, "d"))
    assert second.fetch(artifact)
    assert (tmp_path / "two/net_explain_1/1/model.onnx").read_bytes() == b"graph"
    for store in (first, second):
        store.state.close()


@pytest.mark.parametrize("recorded", ["", "0" * 64, "the digest of another entry"])
def test_an_entry_that_is_not_the_recorded_one_is_not_unpacked(tmp_path: Path, recorded: str) -> None:
    """Nor is one without a recorded digest: whoever writes to the bucket could put any file there."""
    blobs = Blobs(f"file://{tmp_path}/blobs")
    with contextlib.closing(State(tmp_path / "state")) as state:
        store = ArtifactStore(tmp_path / "models", state, blobs)
        folder = store.staging() / "net_explain_1"
        (folder / "1").mkdir(parents=True)
        store.keep(folder, "d")
        artifact = Artifact("d", "net_explain_1", "net", "m", None, 5, sha256=recorded)
        with pytest.raises(StateUnavailableError, match="is not the file that was recorded"):
            store.fetch(artifact)
        assert not store.served(artifact.entry)


@pytest.mark.parametrize("entry_name", ["a", "z"])
def test_old_copies_go_and_a_repository_of_ones_own_stays(tmp_path: Path, entry_name: str) -> None:
    state = State(tmp_path / "kept")
    for folder in (tmp_path / entry_name, copies_in(state)):
        entry = folder / "net_explain_1"
        entry.mkdir(parents=True)
        os.utime(entry, (0, 0))
        ArtifactStore(folder, state, Blobs(f"file://{tmp_path}/blobs")).sweep([])
    state.close()
    assert (tmp_path / entry_name / "net_explain_1").is_dir()
    assert not list(copies_in(state).iterdir())


@pytest.mark.parametrize(("age_s", "stays"), [(0, True), (30, True), (90, False)])
def test_a_copy_that_was_just_fetched_stays(tmp_path: Path, age_s: float, stays: bool) -> None:
    """Its record may be written after this process has read them."""
    with contextlib.closing(State(tmp_path / "kept")) as state:
        entry = copies_in(state) / "net_explain_1"
        entry.mkdir(parents=True)
        os.utime(entry, (time.time() - age_s,) * 2)
        ArtifactStore(copies_in(state), state, Blobs(f"file://{tmp_path}/blobs")).sweep([])
        assert entry.is_dir() == stays


def test_what_another_process_publishes_stays(tmp_path: Path) -> None:
    """While it holds the lease, and no longer."""
    artifact = Artifact("d", "net_explain_1", "net", "m", None, 5)
    folder = tmp_path / "state"
    with contextlib.closing(State(folder)) as state, contextlib.closing(State(folder)) as other:
        store = ArtifactStore(tmp_path / "models", state)
        aside = store.repository / f"{artifact_store._ON_THE_WAY}{artifact.entry}"
        aside.mkdir(parents=True)
        assert other.take(lease_of(artifact.digest)) is not None
        store.sweep([artifact])
        assert aside.is_dir()
        other.release(lease_of(artifact.digest))
        store.sweep([artifact])
        assert not aside.exists()


@pytest.mark.parametrize("is_shared", [True, False])
def test_what_others_removed_is_forgotten_where_it_is_a_copy(tmp_path: Path, is_shared: bool) -> None:
    """Processes of one machine have one repository: an entry of that name is what another has made anew."""
    artifact = Artifact("d", "net_explain_1", "net", "m", None, 5)
    with contextlib.closing(State(tmp_path / "state")) as state:
        blobs = Blobs(f"file://{tmp_path}/blobs") if is_shared else None
        store = ArtifactStore(tmp_path / "models", state, blobs)
        (store.repository / artifact.entry).mkdir(parents=True)
        store.forget(artifact)
        assert store.served(artifact.entry) != is_shared


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_shared_file_appears_as_a_whole(
    tmp_path: Path, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks while it is being written finds nothing, or what was there before."""
    blobs, other = (Blobs(f"file://{tmp_path}/blobs") for _ in range(2))
    collected: list[str | None] = []

    def seen() -> str | None:
        got = tmp_path / "got"
        return got.read_text() if other.get("artefacts/d.tar", got) else None

    def half(_: str, target: str) -> None:
        Path(target).write_text("ha")
        collected.append(seen())
        if is_killed:
            raise OSError("killed")
        Path(target).write_text("half")

    monkeypatch.setattr(blobs._files, "put_file", half)
    for expected in (None, None if is_killed else "half"):
        with pytest.raises(StateUnavailableError) if is_killed else contextlib.nullcontext():
            blobs.put("artefacts/d.tar", tmp_path / "given")
        assert collected.pop() == expected
        assert seen() == (None if is_killed else "half")
