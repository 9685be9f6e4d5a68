"""`rationale kserve` as KServe starts it, and the manifests that do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from rationale_service.cli.main import app
from tests.docs.pages import ROOT
from tests.service import handmade, patient
from tests.service.child import ready_line, serve

MANIFESTS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "deploy/kserve").glob("*.yaml")}
INSTANCES = {"instances": [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]}


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mnt") / "models"
    handmade.write_score(folder)
    return folder


def arguments(container: dict[str, Any], mounted: Path) -> list[str]:
    """As KServe fills them in for the InferenceService `score`, on a free port."""
    rows_sent = [
        argument.replace("{{.Name}}", "score").replace("credit", "score") for argument in container["args"]
    ]
    assert rows_sent.pop(0) == "kserve"
    arguments_without_ports = [
        argument for argument in rows_sent if not argument.startswith(("--http_port", "--model_dir"))
    ]
    return [*arguments_without_ports, f"--model_dir={mounted}", "--http_port=0", "--grpc_port=0"]


@pytest.fixture(
    scope="module",
    params=[
        MANIFESTS["servingruntime"]["spec"]["containers"][0],
        MANIFESTS["explainer"]["spec"]["explainer"]["containers"][0],
    ],
    ids=["predictor", "explainer"],
)
def url(request: pytest.FixtureRequest, mounted: Path) -> Iterator[str]:
    more = ["--predictor_host", "score-predictor.default", "--workers", "4", "--enable_docs_url=true"]
    inputs = [*arguments(request.param, mounted), *more]
    with serve(*inputs, command="kserve", RATIONALE_LOG_FORMAT="plain", TMPDIR=str(mounted.parent)) as child:
        actual, lines = ready_line(child)
        assert any("does not call the predictor score-predictor.default" in line for line in lines)
        assert any("containerConcurrency is 4" in line for line in lines)
        yield f"http://127.0.0.1:{actual.rpartition(':')[2]}"
        child.terminate()
        _, output = child.communicate(timeout=60)
        assert "warning: --enable_docs_url=true is unknown" in output
        assert "this pod" in output


def test_it_answers_all_that_kserve_sends(url: str) -> None:
    model = f"{url}/v1/models/score"
    described = patient.get(model).json()
    assert (described["name"], described["ready"]) == ("score", True)
    predicted = patient.post(f"{model}:predict", json=INSTANCES).json()
    np.testing.assert_allclose(predicted["predictions"], handmade.predict(handmade.X), rtol=1e-6)
    explained = patient.post(f"{model}:explain", json=INSTANCES).json()
    np.testing.assert_allclose(explained["predictions"], handmade.predict(handmade.X), rtol=1e-6)
    assert len(patient.post(f"{model}:decide", json=INSTANCES).json()["decisions"]) == len(handmade.X)
    assert patient.get(f"{url}/v2/health/ready").status_code == 200
    assert patient.get(f"{url}/v2/models/score/ready").status_code == 200


def test_the_probes_of_the_manifests_are_answered(url: str) -> None:
    runtime = MANIFESTS["servingruntime"]["spec"]["containers"][0]
    for kind in ("readinessProbe", "livenessProbe"):
        assert patient.get(f"{url}{runtime[kind]['httpGet']['path']}").status_code == 200


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("", "it holds score"),
        ("score", "set STORAGE_URI to the folder above it"),
        ("none", "it holds no entry"),
    ],
)
def test_what_is_mounted_and_is_not_the_model(mounted: Path, folder: str, message: str) -> None:
    command = ["kserve", "--model_name", "credit", "--model_dir", str(mounted / folder)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
