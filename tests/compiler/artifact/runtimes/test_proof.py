"""A written entry proves itself: a damaged file, another graph and another runtime are found first."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from rationale import CheckFailedError, DeepShap, RepositoryError, compile_model, explain_batches
from rationale.artifact.checks import proof
from rationale.artifact.checks.expected import _first_finite_answers
from rationale.artifact.entry import open_entry
from rationale.artifact.recheck import check_entry
from rationale.errors import DriftWarning
from rationale.schema.manifest import FILE_NAME, Manifest
from rationale.schema.probes import ALLOW, BROKEN, Probes
from rationale_service.cli.main import app
from tests.compiler.models import mlp, rows

X = rows(3, 5, seed=7)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proof")
    compile_model(mlp(), DeepShap(rows(5, 5))).write(folder, "net")
    compile_model(mlp(seed=1), DeepShap(rows(5, 5))).write(folder, "other")
    return folder


@pytest.fixture
def repository(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "models")


def flip(file: Path) -> None:
    """Turn the lowest bit of a weight, which moves no answer by a rounding."""
    model = onnx.load(file)
    (weight,) = (t for t in model.graph.initializer if t.name == "w1")
    array = onnx.numpy_helper.to_array(weight).copy()
    array.view(np.uint32)[0, 0] ^= 1
    weight.CopyFrom(onnx.numpy_helper.from_array(array, "w1"))
    onnx.save(model, file)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def swap(folder: Path) -> None:
    shutil.copyfile(folder.parents[1] / "other_explain" / "1" / "model.onnx", folder / "model.onnx")


FAULTS: dict[str, Callable[[Path], object]] = {
    "a bit of the plain graph": lambda models: flip(models / "net" / "1" / "model.onnx"),
    "another graph": lambda models: swap(models / "net_explain" / "1"),
    "a byte of a graph": lambda models: cut(models / "net_explain" / "1" / "model.onnx"),
    "a file more": lambda models: (models / "net_explain" / "1" / "model.onnx.data").write_bytes(b""),
    "no probe rows": lambda models: (models / "net_explain" / "1" / "probes.json").unlink(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_files_that_are_not_those_that_were_compiled_are_named(repository: Path, fault: str) -> None:
    open_entry(repository, "net")
    FAULTS[fault](repository)
    with pytest.raises(RepositoryError, match=r"/1/\S+: "):
        open_entry(repository, "net")


def resigned(version: Path) -> None:
    """Write the digests of the files as they are: whoever swapped them could have done so."""
    Probes.read(version).write(version)


def test_another_graph_under_its_digest_is_found_by_its_answers(repository: Path) -> None:
    swap(repository / "net_explain" / "1")
    resigned(repository / "net_explain" / "1")
    compiled = open_entry(repository, "net")
    with pytest.raises(CheckFailedError, match=r"ONNX Runtime \S+ on .+: .+ differs by \S*\d"):
        compiled.explain(X)


@pytest.mark.parametrize("error", [3e-4, 3e-3])
def test_a_runtime_that_rounds_otherwise_warns_or_is_refused(
    repository: Path, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounded(probes: Probes, run: object, runtime: str | None = None) -> object:
        scales = {output.name: output.scale for output in probes.outputs}
        answers = {n: a + error * scales[n] for n, a in run(probes.feeds).items()}
        return demand(probes, lambda _: answers, runtime)

    demand = proof.demand_proof
    monkeypatch.setattr("rationale.artifact.compiled.demand_proof", rounded)
    compiled = open_entry(repository, "net")
    if error > BROKEN:
        with pytest.raises(CheckFailedError, match="differs by"):
            compiled.explain(X)
        monkeypatch.setenv(ALLOW, "true")
    with pytest.warns(DriftWarning, match="differs by"):
        answer = open_entry(repository, "net").explain(X)
    assert np.isfinite(answer["y"]).all()


def test_the_check_tells_the_figure_and_the_command_fails(repository: Path) -> None:
    measured = check_entry(repository, "net").measured
    assert measured.drift is not None
    assert measured.drift <= 1e-6
    result = CliRunner().invoke(app, ["check", "net", "--repository", str(repository)])
    assert result.exit_code == 0
    assert f"{measured.probe_rows}, answered to" in result.output
    swap(repository / "net_explain" / "1")
    resigned(repository / "net_explain" / "1")
    result = CliRunner().invoke(app, ["check", "net", "--repository", str(repository)])
    assert result.exit_code == 2
    assert "probe rows" in result.stderr
    result = CliRunner().invoke(app, ["check", "net", "--repository", str(repository)], env={ALLOW: "true"})
    assert "warning: ONNX Runtime" in result.stderr


def test_an_entry_of_before_answers_without_proof(repository: Path) -> None:
    for name in ("net", "net_explain"):
        (repository / name / "1" / "probes.json").unlink()
    file = repository / "net_explain" / FILE_NAME
    manifest = Manifest.read(file)
    measured = manifest.measured.model_copy(update={"probe_rows": 0})
    file.write_text(manifest.model_copy(update={"measured": measured}).to_json())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(open_entry(repository, "net").explain(X)["y"]).all()
    assert check_entry(repository, "net").measured.drift is None


def test_a_portfolio_is_not_explained_by_another_graph(repository: Path) -> None:
    """Record batches are explained by a session of their own."""
    batch = pa.RecordBatch.from_arrays([pa.array(column) for column in X.T], [f"x[{i}]" for i in range(5)])
    assert next(iter(explain_batches(repository / "net", [batch]))).num_rows == len(X)
    shutil.copyfile(repository / "net_explain/1/model.onnx", repository / "other_explain/1/model.onnx")
    resigned(repository / "other_explain" / "1")
    with pytest.raises(CheckFailedError, match=r"ONNX Runtime .+ differs by \S*\d"):
        next(iter(explain_batches(repository / "other", [batch])))


@pytest.mark.parametrize(
    ("sets", "taken"),
    [
        ([[1.0, 2.0]], [1.0, 2.0]),
        ([[1.0, -2.0, 3.0]], [1.0, 3.0]),  # the rows with finite answers
        ([[-1.0, -2.0], [3.0, -4.0]], [3.0]),  # of the first set that has some
        ([[-1.0]], None),
        ([], None),
    ],
)
def test_probe_rows_are_those_with_finite_answers(sets: list[list[float]], taken: list[float] | None) -> None:
    def run(feeds: dict[str, np.ndarray], _: object = None) -> dict[str, np.ndarray]:
        with np.errstate(invalid="ignore"):
            return {"y": np.sqrt(feeds["x"]), "names": np.array(["a"] * len(feeds["x"]), object)}

    feeds, answers = _first_finite_answers(run, [{"x": np.array(each)} for each in sets])
    assert (feeds["x"].tolist() if feeds else None) == taken
    assert (np.square(answers["y"]).tolist() if answers else None) == pytest.approx(taken)
    assert not answers or len(answers["names"]) == len(answers["y"])
