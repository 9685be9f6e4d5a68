"""Libraries of kernels: known to every session of the compiler, and taken along by entries."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb
from typer.testing import CliRunner

from rationale import (
    DeepShap,
    Deployment,
    Gradient,
    InvalidModelError,
    InvalidOptionError,
    RepositoryError,
    compile_model,
)
from rationale.artifact.entry import open_entry
from rationale.artifact.recheck import check_entry
from rationale.cli.compile import app
from rationale.schema.probes import Probes
from tests.compiler.models import rows
from tests.kernels import LIBRARY, declare, network, own_rules, predict, slope

X, REFERENCES = rows(5, 3), rows(4, 3, seed=1)
METHODS = pytest.mark.parametrize("method", [DeepShap(REFERENCES), Gradient()], ids=["deepshap", "gradient"])


@pytest.fixture(autouse=True, scope="module")
def _declared() -> Iterator[None]:
    with own_rules():
        declare()
        yield


@METHODS
def test_a_model_with_kernels_is_explained(method: DeepShap | Gradient) -> None:
    answer = compile_model(network(), method, custom_ops=[LIBRARY]).explain(X)
    np.testing.assert_allclose(answer["y"], predict(X), rtol=1e-5, atol=1e-6)
    attributions = answer["x_attributions"][:, 0]
    if isinstance(method, Gradient):
        np.testing.assert_allclose(attributions, slope(X), rtol=1e-5, atol=1e-6)
    else:
        risen = predict(X)[:, 0] - predict(REFERENCES).mean()
        np.testing.assert_allclose(attributions.sum(-1), risen, atol=1e-5)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    compile_model(network(), DeepShap(REFERENCES), custom_ops=[LIBRARY]).write(folder, "leaky")
    return folder


def test_the_library_travels_with_both_entries(repository: Path) -> None:
    digest = hashlib.sha256(LIBRARY.read_bytes()).hexdigest()
    for name in ("leaky", "leaky_explain"):
        assert hashlib.sha256((repository / name / "1" / LIBRARY.name).read_bytes()).hexdigest() == digest
        config = text_format.Parse((repository / name / "config.pbtxt").read_text(), pb.ModelConfig())
        assert list(config.model_operations.op_library_filename) == [f"{name}/1/{LIBRARY.name}"]
    manifest = open_entry(repository, "leaky").manifest
    assert [(k.file, k.sha256) for k in manifest.custom_ops] == [(LIBRARY.name, digest)]


def test_another_library_is_another_explanation(tmp_path: Path) -> None:
    other = tmp_path / LIBRARY.name  # called the same
    other.write_bytes(LIBRARY.read_bytes() + b"\0")  # what a loader does not look at
    first, two = (compile_model(network(), Gradient(), custom_ops=[f]).manifest for f in (LIBRARY, other))
    assert first.digests.explanation != two.digests.explanation
    assert first.digests.model == two.digests.model


def test_a_written_entry_is_opened_and_checked(repository: Path) -> None:
    actual = open_entry(repository, "leaky").explain(X)
    np.testing.assert_allclose(actual["y"], predict(X), rtol=1e-5, atol=1e-6)
    assert (check_entry(repository, "leaky").measured.completeness_gap or 0) < 1e-5


@pytest.mark.full
def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "leaky.onnx")
    np.save("r.npy", REFERENCES)
    np.save("x.npy", X)
    for command in (
        f"compile leaky.onnx --name leaky --references r.npy --custom-ops {LIBRARY}",
        "explain leaky --input x.npy --save explained.json",
        "check leaky",
        "evaluate leaky --input x.npy --rows 5 --out report --references r.npy",
    ):
        result = CliRunner().invoke(app, command.split())
        assert result.exit_code == 0, result.output
    assert json.loads(Path("explained.json").read_text())
    (evaluated,) = json.loads(Path("report/evaluation.json").read_text())["entries"]
    assert evaluated["randomised_left_out"] is None


def test_a_one_shot_entry_takes_it_along(tmp_path: Path) -> None:
    compiled = compile_model(
        network(), Gradient(), custom_ops=[LIBRARY], deployment=Deployment(one_shot=True)
    )
    compiled.write(tmp_path, "leaky")
    assert (tmp_path / "leaky" / "1" / LIBRARY.name).is_file()
    np.testing.assert_allclose(
        open_entry(tmp_path, "leaky").explain(X)["x_attributions"][:, 0], slope(X), atol=1e-5
    )


def test_an_entry_whose_library_is_another_one(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository, tmp_path / "models")
    (tmp_path / "models" / "leaky_explain" / "1" / LIBRARY.name).write_bytes(b"another")
    version = tmp_path / "models" / "leaky_explain" / "1"
    with pytest.raises(RepositoryError, match=r"\.so: .*\bfile\b"):
        open_entry(tmp_path / "models", "leaky")
    Probes.read(version).write(version)  # its digest as well
    with pytest.raises(RepositoryError, match=r"\.so: .*\blibrary\b"):
        open_entry(tmp_path / "models", "leaky")


def test_what_cannot_be_a_library(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match=r"--custom-ops .*/nowhere\.so: "):
        compile_model(network(), Gradient(), custom_ops=[tmp_path / "nowhere.so"])
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(InvalidOptionError, match=r"text\.so: ONNX Runtime [\d.]+ "):
        compile_model(network(), Gradient(), custom_ops=[tmp_path / "text.so"])
    (tmp_path / LIBRARY.name).write_bytes(LIBRARY.read_bytes())
    with pytest.raises(InvalidOptionError, match="--custom-ops"):
        compile_model(network(), Gradient(), custom_ops=[LIBRARY, tmp_path / LIBRARY.name])


def test_without_the_library_it_is_said_what_to_do() -> None:
    with pytest.raises(InvalidModelError, match=r"NegPos\(-1\) is not a registered function/op\. Give"):
        compile_model(network(), Gradient())
