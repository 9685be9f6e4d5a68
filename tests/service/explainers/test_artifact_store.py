"""Entries that machines share: fetched whole, by every Python that is supported."""

import os
import tarfile
from pathlib import Path

import pytest

from rationale_service.models.explainers.artifact_store import ArtifactStore, copies_in
from rationale_service.models.explainers.records import Artifact
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
    one, two = (
        ArtifactStore(tmp_path / name, State(tmp_path / f"{name}.state"), Blobs(f"file://{tmp_path}/blobs"))
        for name in ("one", "two")
    )
    made = one.staging() / "net_explain_1"
    (made / "1").mkdir(parents=True)
    (made / "1/model.onnx").write_bytes(b"graph")
    kept = Artifact("d", "net_explain_1", "net", "m", None, 5, sha256=one.keep(made, "d"))
    assert two.fetch(kept)
    assert (tmp_path / "two/net_explain_1/1/model.onnx").read_bytes() == b"graph"
    for store in (one, two):
        store.state.close()


@pytest.mark.parametrize("own", ["a", "z"])
def test_old_copies_go_and_a_repository_of_ones_own_stays(tmp_path: Path, own: str) -> None:
    state = State(tmp_path / "kept")
    for folder in (tmp_path / own, copies_in(state)):
        entry = folder / "net_explain_1"
        entry.mkdir(parents=True)
        os.utime(entry, (0, 0))
        ArtifactStore(folder, state, Blobs(f"file://{tmp_path}/blobs")).sweep([])
    state.close()
    assert (tmp_path / own / "net_explain_1").is_dir()
    assert not list(copies_in(state).iterdir())
