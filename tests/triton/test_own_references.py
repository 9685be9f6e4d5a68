"""References that come with a request, answered by a real Triton: open, then baked, then gone."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc

from rationale import Compiled, DeepShap, OpenReferences, compile_model
from rationale_service.settings import Settings
from scripts.triton.serve import TritonAddresses
from tests.compiler.models import mlp, rows
from tests.service.conftest import gateway
from tests.triton.conftest import StartTriton

BASE, X = rows(5, 5, seed=4), rows(3, 5, seed=1)
SECONDS = 90


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "models"
    compile_model(mlp(), DeepShap(BASE), targets="all").write(folder, "net")
    compile_model(mlp(), DeepShap(OpenReferences(7)), targets="all").write(folder, "written")
    return folder


@pytest.fixture(scope="module")
def triton(repository: Path, start_triton: StartTriton) -> Iterator[TritonAddresses]:
    load = ("net", "net_explain", "written", "written_explain_open")
    with start_triton(repository, load=load) as at:
        yield at


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(repository: Path, triton: TritonAddresses) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(
        repository=repository, triton=triton.grpc, request_timeout_s=SECONDS, bake_references_after=2
    )
    async with gateway(settings) as client:
        yield client


def tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": "FP32", "data": array.ravel().tolist()}


@functools.cache
def baked(references: bytes) -> Compiled:
    rows = np.frombuffer(references, np.float32).reshape(-1, 5)
    return compile_model(mlp(), DeepShap(rows), targets="all")


async def explained(client: httpx.AsyncClient, references: np.ndarray, x: np.ndarray = X) -> str:
    """The digest of the explanation that answered, and answered right."""
    body = {"inputs": [tensor("x", x), tensor("x_references", references)]}
    answer = await client.post("/v2/models/net/explain", json=body)
    assert answer.status_code == 200, answer.text
    wanted = baked(references.tobytes()).explain(x)
    for output in answer.json()["outputs"]:
        if output["name"] != "completeness_gap":
            given = np.array(output["data"]).reshape(output["shape"])
            np.testing.assert_allclose(given, wanted[output["name"]], rtol=1e-4, atol=1e-5)
    return str(answer.json()["parameters"]["explanation"])


@pytest.mark.full
def test_rows_with_references_of_their_own_share_a_batch(triton: TritonAddresses) -> None:
    """As Triton itself is asked: nothing of an open entry needs the gateway."""
    references = rows(3, 7, 5, seed=2)
    fed = {"x": X, "x_references": references, "reference_weights": np.ones((3, 7), np.float32)}
    with tritonclient.grpc.InferenceServerClient(triton.grpc) as server:
        tensors = []
        for name, array in fed.items():
            tensors.append(tritonclient.grpc.InferInput(name, list(array.shape), "FP32"))
            tensors[-1].set_data_from_numpy(array)
        answer = server.infer("written_explain_open", tensors)
    for i in range(3):
        wanted = compile_model(mlp(), DeepShap(references[i]), targets="all").explain(X[i : i + 1])
        given = answer.as_numpy("x_attributions")[i : i + 1]
        np.testing.assert_allclose(given, wanted["x_attributions"], rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="module")
async def test_open_first_baked_then_and_gone_when_deleted(
    client: httpx.AsyncClient, triton: TritonAddresses, repository: Path
) -> None:
    own, others = rows(6, 5, seed=2), [rows(4, 5, seed=seed) + 1 for seed in (5, 6, 7)]
    opened = await explained(client, own)
    together = await asyncio.gather(*(explained(client, other) for other in others))
    assert set(together) == {opened}
    end_s = time.monotonic() + SECONDS
    while (later := await explained(client, own)) == opened:
        assert time.monotonic() < end_s, "never baked"
        await asyncio.sleep(0.2)
    holding = [path for path in repository.glob("*/1/*") if own[0].tobytes() in path.read_bytes()]
    (entry,) = {path.parent.parent.name for path in holding}
    with tritonclient.grpc.InferenceServerClient(triton.grpc) as server:
        assert server.is_model_ready(entry)
        (kept,) = (await client.get("/v2/reference-sets")).json()["reference_sets"]
        assert (await client.delete(f"/v2/reference-sets/{kept['name']}")).status_code == 204
        assert not server.is_model_ready(entry)
    assert not any(own[0].tobytes() in p.read_bytes() for p in repository.parent.rglob("*") if p.is_file())
    assert await explained(client, own) != later
