"""A gateway whose model `net` is asked with references of the request's own, and with sets of them."""

import contextlib
import functools
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from rationale import Compiled, DeepShap, compile_model
from tests.compiler.models import mlp, rows
from tests.service.explaining import Gate, administered

SETS = "/v2/reference-sets"
EXPLAINERS = "/v2/models/net/explainers"
X, R, OTHER = rows(3, 5, seed=1), rows(6, 5, seed=2), rows(4, 5, seed=3) + 1
BASE = rows(5, 5, seed=4)  # of the explainer that is there
ATTRIBUTIONS = "x_attributions"


@functools.cache
def _expected(references: bytes, weights: bytes | None) -> dict[str, np.ndarray]:
    reference_rows = np.frombuffer(references, np.float32).reshape(-1, 5)
    w = None if weights is None else np.frombuffer(weights)
    return compile_model(mlp(), DeepShap(reference_rows, w), targets="all").explain(X)


def expected(references: np.ndarray, weights: Any = None) -> dict[str, np.ndarray]:
    """Of X."""
    return _expected(references.tobytes(), None if weights is None else np.array(weights, float).tobytes())


@functools.cache
def net() -> Compiled:
    names = ["age", "income", "debt", "years", "cards"]
    return compile_model(mlp(), DeepShap(BASE), targets="all", feature_names=names)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with `net` and its explainer."""
    net().write(tmp_path / "models", "net")
    return tmp_path


@pytest_asyncio.fixture
async def client(folder: Path, quick: Gate) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ARG001
    async with administered(folder, answer_cache_bytes=1 << 20) as client:
        yield client


def tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    datatype = {"float32": "FP32", "float64": "FP64"}[str(array.dtype)]
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.ravel().tolist()}


async def ask(
    client: httpx.AsyncClient, *more: dict[str, Any], x: np.ndarray = X, **parameters: Any
) -> httpx.Response:
    body = {"inputs": [tensor("x", x), *more], "parameters": parameters}
    return await client.post("/v2/models/net/explain", json=body)


def arrays(answer: httpx.Response) -> dict[str, np.ndarray]:
    assert answer.status_code == 200, answer.text
    return {o["name"]: np.array(o["data"]).reshape(o["shape"]) for o in answer.json()["outputs"]}


def assert_explains(answer: httpx.Response, references: np.ndarray, weights: Any = None) -> None:
    expected_value = expected(references, weights)
    for name, array in arrays(answer).items():
        if name != "completeness_gap":
            np.testing.assert_allclose(array, expected_value[name], rtol=1e-5, atol=1e-6, err_msg=name)


async def put(client: httpx.AsyncClient, name: str, references: np.ndarray, **query: str) -> httpx.Response:
    buffer = io.BytesIO()
    np.savez(buffer, x=references)
    return await client.put(
        f"{SETS}/{name}",
        content=buffer.getvalue(),
        params={"model": "net", **query},
        headers={"content-type": "application/x-npz"},
    )


def served(client: Any) -> set[str]:
    """Entries on the disk that explain `net`, beside the one that was compiled."""
    folder = client.app.state.gateway.settings.repository
    return {path.name for path in folder.iterdir()} - {"net", "net_explain"}


def holding(folder: Path, references: np.ndarray) -> list[Path]:
    """Files anywhere below that hold the first row, as bytes; they may come and go meanwhile."""
    row = references[0].tobytes()
    while True:
        with contextlib.suppress(FileNotFoundError):
            return [path for path in folder.rglob("*") if path.is_file() and row in path.read_bytes()]
