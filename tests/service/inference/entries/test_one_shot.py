"""A one-shot entry in the repository: two sides of one graph, loaded once."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from rationale import Compiled, DeepShap, Deployment, compile_model
from rationale.errors import RepositoryError
from rationale.schema.manifest import Manifest
from rationale_service.engine.backends.onnxruntime import OnnxRuntimeBackend
from rationale_service.repository.registry import read_repository
from tests.compiler.models import FEATURES, mlp, rows

R, X = rows(4, FEATURES), rows(3, FEATURES, seed=1)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(mlp(), DeepShap(R), targets="all", deployment=Deployment(one_shot=True))


def test_the_sides_are_the_two_entries_that_it_stands_for(tmp_path: Path, compiled: Compiled) -> None:
    compiled.write(tmp_path / "one", "m")
    compile_model(mlp(), DeepShap(R), targets="all").write(tmp_path / "two", "m")
    first, second = (read_repository(tmp_path / name).entries for name in ("one", "two"))
    assert list(first) == list(second) == ["m", "m_explain"]
    for name, side in first.items():
        assert (side.inputs, side.outputs) == (second[name].inputs, second[name].outputs)
        assert [v.name for v in side.config.input] == [v.name for v in second[name].config.input]
        assert [v.name for v in side.config.output] == [v.name for v in second[name].config.output]
        assert side.config.name == name
        assert {i.spec.name for warmup in side.warmups for i in warmup.inputs} == {"x"}
        digests = [each.manifest and each.manifest.digests.explanation for each in (side, second[name])]
        assert digests[0] == digests[1]
        assert side.model == "m"
        assert second[name].model == name


def test_a_side_beside_an_entry_of_its_name(tmp_path: Path, compiled: Compiled) -> None:
    """Somebody copied a one-shot entry over the plain model of two."""
    compile_model(mlp(), DeepShap(R)).write(tmp_path, "m")
    compiled.write(tmp_path / "elsewhere", "m")
    (tmp_path / "m").rename(tmp_path / "old")
    (tmp_path / "elsewhere" / "m").rename(tmp_path / "m")
    (tmp_path / "elsewhere").rmdir()
    with pytest.raises(RepositoryError, match=r"m: .*one-shot.*m_explain"):
        read_repository(tmp_path)


def test_a_manifest_that_promises_a_gate_which_is_not_there(tmp_path: Path) -> None:
    compile_model(mlp(), DeepShap(R)).write(tmp_path, "m")
    path = tmp_path / "m_explain" / "explanation.json"
    path.write_text(Manifest.read(path).model_copy(update={"one_shot": True}).to_json())
    with pytest.raises(RepositoryError, match=r"'explained'.* config\.pbtxt"):
        read_repository(tmp_path)


async def test_the_graph_is_loaded_once_and_runs_apart(
    tmp_path: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session; a queue for each side, so that no prediction waits for an explanation."""
    compiled.write(tmp_path, "m")
    want = compiled.explain(X)
    loads: list[Path] = []
    session = ort.InferenceSession

    def counted(path: Path, *remainder: object, **more: object) -> ort.InferenceSession:
        loads.append(path)
        return session(path, *remainder, **more)

    monkeypatch.setattr("rationale_service.engine.backends.onnxruntime.ort.InferenceSession", counted)
    entries = read_repository(tmp_path).entries
    backend = OnnxRuntimeBackend(16)
    await backend.start(entries.values())
    try:
        predicted = await backend.infer(entries["m"], {"x": X}, ["y"])
        explained = await backend.infer(entries["m_explain"], {"x": X}, ["y", "x_attributions"])
    finally:
        await backend.stop()
    assert loads == [tmp_path / "m" / "1" / "model.onnx"]
    assert np.array_equal(predicted["y"], want["y"])
    assert np.array_equal(explained["x_attributions"], want["x_attributions"])
