"""Tests on a real GPU. Install onnxruntime-gpu (docs/operations/gpu.md), then run `pytest -m gpu`."""

from pathlib import Path

import numpy as np
import pytest

from rationale import DeepShap, compile_model
from rationale_service.settings import Settings
from tests.compiler.models import FEATURES, mlp, rows
from tests.service.conftest import gateway

pytestmark = pytest.mark.gpu


async def test_a_gpu_explains_as_the_cpu_does(tmp_path: Path) -> None:
    compile_model(mlp(), DeepShap(rows(4, FEATURES))).write(tmp_path, "m")
    x = rows(7, FEATURES, seed=1)
    ask = {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}]}
    answers = {}
    for device in ("cpu", "cuda"):
        async with gateway(Settings(repository=tmp_path, device=device)) as client:
            devices = (await client.get("/v2")).json()["devices"]
            assert all(each.startswith(device) for each in devices), devices
            answer = (await client.post("/v2/models/m/explain", json=ask)).json()
            answers[device] = {each["name"]: np.array(each["data"]) for each in answer["outputs"]}
    for name, expected in answers["cpu"].items():
        np.testing.assert_allclose(answers["cuda"][name], expected, rtol=1e-4, atol=1e-5, err_msg=name)
    assert np.abs(answers["cuda"]["completeness_gap"]).max() < 1e-4
