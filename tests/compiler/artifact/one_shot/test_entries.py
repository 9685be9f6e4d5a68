"""One entry with a gate in a repository: written, read back, exchanged for two; on the command line."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from rationale import Compiled, DeepShap, Manifest, compile_model
from rationale.artifact.entry import open_entry
from rationale.artifact.recheck import check_entry
from rationale.cli.compile import app
from rationale.errors import RepositoryError
from rationale.evaluate.evaluate import EvaluationSettings, evaluate
from rationale.graph.runtime import session
from rationale.graph.runtime.session import Runner, with_gate
from tests.compiler.artifact.one_shot.test_one_shot import (
    AGREE,
    ONE_SHOT,
    R,
    X,
    assert_equal,
    compiled,
    weights_of,
)
from tests.compiler.models import FEATURES, contents, mlp, rows

__all__ = ["compiled"]  # a fixture, found by its name


@pytest.fixture(scope="module")
def two_entries() -> Compiled:
    return compile_model(mlp(), DeepShap(R), targets="all")


def test_one_entry_is_written_and_read_back(tmp_path: Path, compiled: Compiled) -> None:
    assert compiled.write(tmp_path, "m") == tmp_path / "m"
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    manifest = Manifest.read(tmp_path / "m" / "explanation.json")
    assert manifest.one_shot
    assert [spec.name for spec in manifest.inputs] == ["x"]
    reopened = open_entry(tmp_path, "m")
    assert_equal(reopened.explain(X), compiled.explain(X))
    assert_equal(Runner(reopened.source)({"x": X}), Runner(compiled.source)({"x": X}))
    assert check_entry(tmp_path, "m").measured.outputs_error <= AGREE


def test_from_two_entries_to_one_and_back(tmp_path: Path, compiled: Compiled, two_entries: Compiled) -> None:
    for first, two in ((compiled, two_entries), (compiled, two_entries)):
        two.write(tmp_path, "m")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "m_explain"]
        assert not (tmp_path / "m" / "explanation.json").exists()
        first.write(tmp_path, "m")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
        assert open_entry(tmp_path, "m").manifest.one_shot


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_a_failing_rename_keeps_both_entries(
    tmp_path: Path, compiled: Compiled, two_entries: Compiled, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """Of the three renames to one entry: the plain one aside, the new one in, the stale one aside."""
    two_entries.write(tmp_path, "m")
    before, rename, calls = contents(tmp_path), Path.rename, [None] * (fails - 1)

    def failing(path: Path, target: Path) -> Path:
        if path.parent == tmp_path or target.parent == tmp_path:
            if not calls:
                monkeypatch.setattr(Path, "rename", rename)
                raise OSError(5, "Input/output error")
            calls.pop()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(RepositoryError, match="Nothing was changed"):
        compiled.write(tmp_path, "m")
    assert contents(tmp_path) == before


def test_weights_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the branch too, where protobuf could not hold them."""
    single_entry = compile_model(mlp((FEATURES, 7000, 3)), DeepShap(rows(9, FEATURES)), deployment=ONE_SHOT)
    monkeypatch.setattr(session, "EXTERNAL_BYTES", 1)
    single_entry.write(tmp_path, "m")
    weights = sum(len(w) for w in weights_of(single_entry.model.graph) if len(w) > session.SIZES_BYTES)
    assert weights
    assert (tmp_path / "m" / "1" / "model.onnx.data").stat().st_size >= weights
    assert_equal(open_entry(tmp_path, "m").explain(X), single_entry.explain(X))
    assert_equal(Runner(single_entry.model)(with_gate({"x": X})), single_entry.explain(X))


def test_on_the_command_line(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    np.save(tmp_path / "r.npy", R)
    np.save(tmp_path / "x.npy", X)
    here = ["--repository", str(tmp_path / "repository")]
    runner = CliRunner()
    compiling = [str(tmp_path / "m.onnx"), "--references", str(tmp_path / "r.npy"), "--name", "m"]
    for command in (
        ["compile", *compiling, *here, "--one-shot"],
        ["check", "m", *here],
        ["explain", "m", *here, "--input", str(tmp_path / "x.npy"), "--save", str(tmp_path / "a.npz")],
    ):
        result = runner.invoke(app, command)
        assert result.exit_code == 0, result.output
    assert [p.name for p in (tmp_path / "repository").iterdir()] == ["m"]
    saved = np.load(tmp_path / "a.npz")
    assert saved["explained"].all()
    assert_equal(dict(saved), dict(compile_model(mlp(), DeepShap(R)).explain(X)))


def test_evaluated_as_two_entries_are(tmp_path: Path, compiled: Compiled, two_entries: Compiled) -> None:
    np.save(tmp_path / "x.npy", rows(12, FEATURES, seed=3))
    compiled.write(tmp_path / "repository", "one")
    two_entries.write(tmp_path / "repository", "two")
    settings = EvaluationSettings(6, 0)
    evaluations = evaluate(
        tmp_path / "repository", ["one", "two"], tmp_path / "x.npy", (), settings, lambda *_: None
    )
    first, two = evaluations
    assert first.deletion.area == pytest.approx(two.deletion.area, rel=1e-5)
