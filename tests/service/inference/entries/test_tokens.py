"""Entries that are explained at no input of theirs: token ids, and an inner tensor."""

from pathlib import Path

import numpy as np
import pytest

from rationale import DeepShap, compile_model
from rationale_service.settings import Settings
from tests.compiler.models import mlp, rows
from tests.compiler.selection.test_tokens import IDS, MASK, REFERENCES, SEGMENTS, encoder
from tests.service.conftest import gateway


async def test_token_ids(tmp_path: Path) -> None:
    compiled = compile_model(encoder(), DeepShap(REFERENCES))
    compiled.write(tmp_path, "words")
    want = compiled.explain({"ids": IDS, "mask": MASK, "segments": SEGMENTS})
    instances = [
        {"ids": ids.tolist(), "mask": mask.tolist(), "segments": segments.tolist()}
        for ids, mask, segments in zip(IDS, MASK, SEGMENTS, strict=True)
    ]
    async with gateway(Settings(repository=tmp_path)) as client:
        about = (await client.get("/v2/models/words_explain")).json()
        assert [t["name"] for t in about["inputs"]] == ["ids", "mask", "segments"]
        (metadata,) = (t for t in about["outputs"] if t["name"] == "ids_attributions")
        assert metadata["shape"] == [-1, 1, 5]
        answer = await client.post("/v1/models/words:explain", json={"instances": instances})
    assert answer.status_code == 200, answer.text
    for i, explanation in enumerate(answer.json()["explanations"]):
        values = [explanation["attributions"][f"ids[{j}]"] for j in range(5)]
        np.testing.assert_allclose(values, want["ids_attributions"][i, 0], rtol=1e-4, atol=1e-6)
        assert explanation["base_value"] == pytest.approx(float(want["base_value"][i, 0]), rel=1e-4)


async def test_an_inner_tensor(tmp_path: Path) -> None:
    """The caller sends the model's input, and the answer names the tensor that is explained."""
    compiled = compile_model(mlp(), DeepShap(rows(4, 5)), inputs=["h1"], targets=[1])
    compiled.write(tmp_path, "m")
    x = rows(2, 5, seed=1)
    want = compiled.explain(x)["h1_attributions"]
    async with gateway(Settings(repository=tmp_path)) as client:
        features = (await client.get("/v1/models/m")).json()["features"]
        assert features == {"x": None}
        answer = await client.post("/v1/models/m:explain", json={"instances": x.tolist()})
    assert answer.status_code == 200, answer.text
    for i, explanation in enumerate(answer.json()["explanations"]):
        values = [explanation["attributions"][f"h1[{j}]"] for j in range(7)]
        np.testing.assert_allclose(values, want[i, 0], rtol=1e-4, atol=1e-6)
