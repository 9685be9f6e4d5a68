"""Interactions of trees on their way through the gateway: one more tensor, which the manifest promises."""

from pathlib import Path

import numpy as np
import pytest

from rationale import Manifest, TreeShap, compile_model
from rationale.artifact.entry import open_entry
from rationale.errors import RepositoryError
from rationale_service.repository.registry import read_repository
from rationale_service.settings import Settings
from tests.references import trees as of
from tests.service.conftest import gateway

TREES = of.random_trees(1, ("LEQ",), columns=3)


async def test_answers_hold_them(tmp_path: Path) -> None:
    method = TreeShap(of.rows(1, 4), interactions=True)
    compiled = compile_model(of.regressor(TREES), method, targets=[2, 0])
    compiled.write(tmp_path, "m")
    x = np.nan_to_num(of.rows(2, 3))
    tensor = {"name": "x", "shape": [3, 5], "datatype": "FP32", "data": x.ravel().tolist()}
    async with gateway(Settings(repository=tmp_path)) as client:
        answer = (await client.post("/v2/models/m/explain", json={"inputs": [tensor]})).json()
        body = (await client.post("/v1/models/m:explain", json={"instances": x.tolist()})).json()
    (actual,) = [t for t in answer["outputs"] if t["name"] == "x_interactions"]
    assert actual["shape"] == [3, 2, 5, 5]
    np.testing.assert_allclose(actual["data"], compiled.explain(x)["x_interactions"].ravel(), rtol=1e-5)
    assert len(body["explanations"]) == 3


def test_a_graph_without_them_is_found_out(tmp_path: Path) -> None:
    compile_model(of.regressor(TREES), TreeShap(of.rows(1, 4))).write(tmp_path, "m")
    path = tmp_path / "m_explain" / "explanation.json"
    manifest = Manifest.read(path)
    (explained,) = manifest.explained
    promised = explained.model_copy(update={"interactions": "x_interactions"})
    path.write_text(manifest.model_copy(update={"explained": (promised,)}).to_json())
    with pytest.raises(RepositoryError, match="lists output 'x_interactions'"):
        read_repository(tmp_path)
    with pytest.raises(RepositoryError, match=r"lacks .*x_interactions"):
        open_entry(tmp_path, "m")
