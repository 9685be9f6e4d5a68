"""An entry whose rows may have several lengths: each is answered, one beyond them is refused."""

import json
import re
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from rationale import Compiled, Gradient, compile_model
from rationale.errors import RepositoryError
from rationale_service.repository.entry import read_entry
from rationale_service.settings import Settings
from tests.compiler.models import parsed, rows
from tests.service.conftest import gateway
from tests.service.grpc_end import SECONDS, grpc_end
from tests.service.messages import request, typed

MODEL = parsed(
    """g (float[N, steps, 4] x) => (float[N, 3] y) <int64[1] one = {1}> {
        a = MatMul (x, w)  b = Tanh (a)  y = ReduceMean <keepdims = 0> (b, one)
    }""",
    {"w": rows(4, 3)},
)
REFUSED = {
    1: r"steps = 1, but the explanation was compiled for 2 to 9: .* --size steps=1\.\.9",
    10: r"steps = 10, but the explanation was compiled for 2 to 9: .* --size steps=2\.\.10",
}


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(MODEL, Gradient(), targets=[0, 2], sizes={"steps": (2, 9)})


@pytest.fixture
def repository(compiled: Compiled, tmp_path: Path) -> Path:
    compiled.write(tmp_path, "m")
    return tmp_path


def request_of_length(length: int) -> dict[str, Any]:
    x = rows(3, length, 4, seed=length)
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.tolist()}]}


@pytest.mark.asyncio(loop_scope="session")
async def test_rows_of_several_lengths(repository: Path, compiled: Compiled) -> None:
    """The plain entry takes any length, the explanation all that it was compiled for."""
    async with gateway(Settings(repository=repository)) as client:
        for length in (2, 9):
            for entry in ("m", "m_explain"):
                answer = await client.post(f"/v2/models/{entry}/infer", json=request_of_length(length))
                assert answer.status_code == 200, answer.text
            outputs = {o["name"]: o for o in answer.json()["outputs"]}
            got = np.reshape(outputs["x_attributions"]["data"], outputs["x_attributions"]["shape"])
            want = compiled.explain(rows(3, length, 4, seed=length))["x_attributions"]
            np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_length_that_was_not_compiled_for_is_refused(repository: Path) -> None:
    async with gateway(Settings(repository=repository)) as client:
        for length, words in REFUSED.items():
            instances = {"instances": rows(3, length, 4).tolist()}
            for path, body in (
                ("/v2/models/m/explain", request_of_length(length)),
                ("/v2/models/m_explain/infer", request_of_length(length)),
                ("/v1/models/m:explain", instances),
            ):
                answer = await client.post(path, json=body)
                assert answer.status_code == 422, answer.text  # as for any shape that does not fit
                assert re.search(words, answer.text), answer.text
            assert (await client.post("/v1/models/m:predict", json=instances)).status_code == 200


@pytest.mark.asyncio(loop_scope="session")
async def test_it_is_refused_over_grpc(repository: Path) -> None:
    async with grpc_end(Settings(repository=repository)) as end:
        for length, words in REFUSED.items():
            message = request("m_explain", typed("x", rows(3, length, 4)))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await end.stub.ModelInfer(message, timeout=SECONDS)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert re.search(words, refused.value.details() or "")


@pytest.mark.asyncio(loop_scope="session")
async def test_the_length_counts_in_what_an_answer_takes(repository: Path) -> None:
    """Three rows of nine steps: 864 bytes of attributions; of four steps, 384."""
    expected = {"outputs": [{"name": "x_attributions"}]}
    async with gateway(Settings(repository=repository, max_answer_bytes=800)) as client:
        answers = [
            await client.post("/v2/models/m_explain/infer", json=request_of_length(n) | expected)
            for n in (4, 9)
        ]
    assert [answer.status_code for answer in answers] == [200, 413]
    assert "864 bytes" in answers[1].text


@pytest.mark.parametrize("axis", [["z", 1], ["x", 0], ["x", 2], ["x", 3]])
def test_a_manifest_that_lies_about_the_axis(repository: Path, axis: list[Any]) -> None:
    path = repository / "m_explain" / "explanation.json"
    manifest = json.loads(path.read_text())
    assert manifest["open_length"] == {"name": "steps", "least": 2, "most": 9, "axes": [["x", 1]]}
    manifest["open_length"]["axes"] = [axis]
    path.write_text(json.dumps(manifest))
    with pytest.raises(RepositoryError, match=f"'{axis[0]}' .*open length"):
        read_entry(path.parent)
