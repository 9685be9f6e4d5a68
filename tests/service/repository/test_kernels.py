"""Libraries of kernels in the gateway: loaded where that is allowed, from an entry's own folder alone."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rationale import DeepShap, Manifest, RepositoryError, compile_model
from rationale_service.engine.backends.devices import Devices
from rationale_service.engine.backends.onnxruntime import load_warmed
from rationale_service.repository.entry import read_entry
from tests.compiler.models import rows
from tests.compiler.rules.packaged import installed
from tests.kernels import LIBRARY, declare, network, own_rules, predict, slope
from tests.service import patient
from tests.service.child import ready_line, serve

X, REFERENCES = rows(5, 3), rows(4, 3, seed=1)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels") / "models"
    with own_rules():
        declare()
        compile_model(network(), DeepShap(REFERENCES), custom_ops=[LIBRARY]).write(folder, "leaky")
    return folder


def test_a_library_is_loaded_where_it_is_allowed(repository: Path) -> None:
    entry = read_entry(repository / "leaky")
    assert entry.custom_ops == (repository / "leaky" / "1" / LIBRARY.name,)
    sessions = load_warmed(entry, devices=Devices("cpu", custom_ops=True)).sessions
    (session,) = sessions.by_device.values()
    np.testing.assert_allclose(session.run(["y"], {"x": X})[0], predict(X), rtol=1e-5, atol=1e-6)


def test_else_the_entry_is_refused_and_the_setting_named(repository: Path) -> None:
    with pytest.raises(
        RepositoryError,
        match=r"leaky/1/model\.onnx: .*\.so .*RATIONALE_ALLOW_CUSTOM_OPS=true",
    ):
        load_warmed(read_entry(repository / "leaky"), devices=Devices("cpu"))


@pytest.mark.parametrize("name", ["elsewhere.so", "/lib/elsewhere.so", "leaky/../elsewhere.so", "link"])
def test_a_library_outside_the_entry_is_refused(repository: Path, tmp_path: Path, name: str) -> None:
    models = tmp_path / "models"
    shutil.copytree(repository, models)
    (models / "elsewhere.so").write_bytes(b"")
    config = models / "leaky" / "config.pbtxt"
    path = f"leaky/1/{LIBRARY.name}"
    if name == "link":  # out of the folder
        (models / path).unlink()
        (models / path).symlink_to(models / "elsewhere.so")
    else:
        config.write_text(config.read_text().replace(path, name))
    with pytest.raises(RepositoryError, match=r"op_library_filename '.*' is outside"):
        read_entry(models / "leaky")


def test_a_library_that_is_gone(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository, tmp_path / "models")
    (tmp_path / "models" / "leaky" / "1" / LIBRARY.name).unlink()
    with pytest.raises(RepositoryError, match=r"\.so: is missing"):
        read_entry(tmp_path / "models" / "leaky")


@pytest.mark.parametrize("allowed", [pytest.param(True, marks=pytest.mark.full), False])
def test_the_gateway_and_its_compile_worker(repository: Path, tmp_path: Path, allowed: bool) -> None:
    models = tmp_path / "models"
    shutil.copytree(repository, models)
    installed(tmp_path / "site", "kernel-rules", "from tests.kernels import declare\ndeclare()\n")
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"PYTHONPATH": path, "RATIONALE_ALLOW_CUSTOM_OPS": str(allowed)}
    arguments = ("--port", "0", "--grpc-port", "off", "--repository", str(models))
    with serve(*arguments, **settings) as child:
        if not allowed:
            assert "RATIONALE_ALLOW_CUSTOM_OPS=true" in refusal(child)
            return
        url, _ = ready_line(child)
        leaky = f"{url}/v2/models/leaky"
        answer = patient.explain(leaky, X)
        slopes = f"{leaky}/explainers/slope"
        assert patient.put(slopes, json={"method": "gradient"}).status_code in (200, 202)
        status = patient.settled(slopes)
        assert status["state"] == "ready", str(status)
        explained = patient.explain(leaky, X, explainer="slope")
    risen = answer["explained_value"] - answer["base_value"]
    np.testing.assert_allclose(answer["x_attributions"].sum(-1), risen, atol=1e-5)
    np.testing.assert_allclose(explained["x_attributions"][:, 0], slope(X), rtol=1e-5, atol=1e-6)
    (written,) = models.glob("leaky_explain_*/explanation.json")
    assert [library.file for library in Manifest.read(written).custom_ops] == [LIBRARY.name]
    assert (written.parent / "1" / LIBRARY.name).is_file()


def refusal(child: Any) -> str:
    """What is said of entries that are not served."""
    lines = []
    for line in child.stderr:
        lines.append(line)
        if "leaky" in line and "custom" in line.lower():
            return line
    raise AssertionError(lines)
