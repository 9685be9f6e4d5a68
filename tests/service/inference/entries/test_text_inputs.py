"""Rows with text, explained by a tree behind an encoder: by v1's features and by tensors."""

from pathlib import Path

import numpy as np
import pytest

from rationale import TreeShap, compile_model
from rationale_service.settings import Settings
from tests.compiler.trees.test_text_files import AGE, CODE, HOUSING, model
from tests.service.conftest import gateway

N = 4
ROWS = {"age": AGE[:N, None], "housing": HOUSING[:N, None], "code": CODE[:N, None]}


@pytest.mark.asyncio
async def test_answers_as_the_compiler(tmp_path: Path) -> None:
    references = {"age": AGE[:, None], "housing": HOUSING[:, None], "code": CODE[:, None]}
    compiled = compile_model(model(), TreeShap(references))
    compiled.write(tmp_path, "m")
    expected = compiled.explain(ROWS)
    async with gateway(Settings(repository=tmp_path)) as client:
        sent = [
            {"name": name, "shape": [N, 1], "datatype": kind, "data": ROWS[name].reshape(-1).tolist()}
            for name, kind in (("age", "FP32"), ("housing", "BYTES"), ("code", "BYTES"))
        ]
        answered = await client.post("/v2/models/m_explain/infer", json={"inputs": sent})
        assert answered.status_code == 200, answered.text
        tensors = {t["name"]: t for t in answered.json()["outputs"]}
        for name in ROWS:
            actual = np.reshape(tensors[f"{name}_attributions"]["data"], (N, 1, 1))
            np.testing.assert_allclose(actual, expected[f"{name}_attributions"], atol=1e-6)
        instances = [{name: ROWS[name][i].tolist() for name in ROWS} for i in range(N)]
        answered = await client.post("/v1/models/m:explain", json={"instances": instances})
        assert answered.status_code == 200, answered.text
        for i, explanation in enumerate(answered.json()["explanations"]):
            values = {name: np.ravel(value) for name, value in explanation["attributions"].items()}
            assert values.keys() == {f"{name}[0]" for name in ROWS}
            assert values["housing[0]"] == pytest.approx(
                expected["housing_attributions"][i].ravel(), abs=1e-6
            )
        wrong = [{**instances[0], "housing": [3]}]
        answered = await client.post("/v1/models/m:explain", json={"instances": wrong})
        assert (answered.status_code, "'housing' is BYTES" in answered.text) == (422, True)
