"""An entry whose rows may have any length: the gateway loads it, and answers each length."""

from pathlib import Path

import numpy as np
import pytest

from compiler import Gradient, compile_model
from service.settings import Settings
from tests.compiler.models import parsed, rows
from tests.service.conftest import gateway

MODEL = parsed(
    """g (float[N, steps, 4] x) => (float[N, 3] y) <int64[1] one = {1}> {
        a = MatMul (x, w)  b = Tanh (a)  y = ReduceMean <keepdims = 0> (b, one)
    }""",
    {"w": rows(4, 3)},
)


@pytest.mark.asyncio(loop_scope="session")
async def test_rows_of_several_lengths(tmp_path: Path) -> None:
    """The plain entry takes any length, the explanation all that it was compiled for."""
    compiled = compile_model(MODEL, Gradient(), targets=[0, 2], sizes={"steps": (1, 9)})
    compiled.write(tmp_path, "m")
    async with gateway(Settings(repository=tmp_path)) as client:
        for length in (2, 9):
            x = rows(3, length, 4, seed=length)
            tensor = {"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.tolist()}
            for entry in ("m", "m_explain"):
                answer = await client.post(f"/v2/models/{entry}/infer", json={"inputs": [tensor]})
                assert answer.status_code == 200, answer.text
            outputs = {o["name"]: o for o in answer.json()["outputs"]}
            got = np.reshape(outputs["x_attributions"]["data"], outputs["x_attributions"]["shape"])
            np.testing.assert_allclose(got, compiled.explain(x)["x_attributions"], atol=1e-6)
