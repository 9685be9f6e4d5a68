"""A gateway whose models have explainers made over the API, and what its tests ask of it."""

import asyncio
import contextlib
import hashlib
import io
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from rationale.errors import RationaleError
from rationale_service.app import create_app, create_backend
from rationale_service.errors import CompileFailedError, UnknownResourceError
from rationale_service.models.explainers import worker
from rationale_service.models.explainers.builder import OnProgress
from rationale_service.models.explainers.records import to_its_end
from rationale_service.models.explainers.service import Explainers
from rationale_service.models.explainers.worker import CompileOrder
from rationale_service.settings import Settings
from tests.service import handmade
from tests.service.in_process import client_of

SECONDS = 60
PATH = "/v2/models/score/explainers"
DEEPSHAP = {"method": "deepshap", "reference_set": "typical", "targets": "all"}
OTHER = {**DEEPSHAP, "reference_set": "other"}
GRADIENT = {"method": "input-x-gradient", "targets": "all"}
ATTRIBUTIONS = {
    "typical": (handmade.X[:, None] - handmade.X[:3].mean(0)) * handmade.W.T,
    "other": (handmade.X[:, None] - handmade.X[3:].mean(0)) * handmade.W.T,
    "gradient": handmade.X[:, None] * handmade.W.T,
}


@dataclass
class Sets:
    """Reference sets in a folder, by name."""

    folder: Path
    names: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, rows: np.ndarray) -> str:
        """Its digest."""
        digest = hashlib.sha256(rows.tobytes()).hexdigest()
        self.folder.mkdir(exist_ok=True)
        np.savez(self.folder / f"{digest}.npz", x=rows)
        self.names[name] = digest
        return digest

    def find(self, name: str, model: str) -> str:  # noqa: ARG002 (the protocol's)
        if name not in self.names:
            raise UnknownResourceError(f"there is no reference set '{name}'")
        return self.names[name]

    def path(self, digest: str) -> Path:
        return self.folder / f"{digest}.npz"


def sets_of(folder: Path) -> Sets:
    sets = Sets(folder / "sets")
    sets.add("typical", handmade.X[:3])
    sets.add("other", handmade.X[3:])
    return sets


def write_plain(repository: Path, name: str = "score", scale: float = 1.0) -> None:
    """y = x·W + b, times `scale`, without an explain entry."""
    graph = f"(float[N, 4] x) => (float[N, 3] y) {{ {handmade.LINEAR} }}"
    handmade.write_entry(repository, name, graph, {"W": handmade.W * np.float32(scale), "b": handmade.B})


async def settled(client: httpx.AsyncClient, path: str, timeout_s: float = SECONDS) -> dict[str, Any]:
    """The explainer's status when nothing is being done for it any more."""
    return await when(client, path, lambda status: status["state"] in ("ready", "failed"), timeout_s)


async def when(
    client: httpx.AsyncClient,
    path: str,
    expected: Callable[[dict[str, Any]], bool],
    timeout_s: float = SECONDS,
) -> dict[str, Any]:
    end_s = time.monotonic() + timeout_s
    while True:
        answer = await client.get(path)
        assert answer.status_code == 200, answer.text
        status: dict[str, Any] = answer.json()
        if expected(status):
            return status
        assert time.monotonic() < end_s, status
        await asyncio.sleep(0.02)


async def made_ready(client: httpx.AsyncClient, path: str, spec: dict[str, Any]) -> dict[str, Any]:
    answer = await client.put(path, json=spec)
    assert answer.status_code in (200, 202), answer.text
    status = await settled(client, path)
    assert status["state"] == "ready", status
    return status


async def explain(client: httpx.AsyncClient, **parameters: Any) -> dict[str, Any]:
    """The answer to `handmade.X`: {"parameters": …, output name: array}."""
    tensor = {
        "name": "x",
        "shape": list(handmade.X.shape),
        "datatype": "FP32",
        "data": handmade.X.ravel().tolist(),
    }
    answer = await client.post(
        "/v2/models/score/explain", json={"inputs": [tensor], "parameters": parameters}
    )
    assert answer.status_code == 200, answer.text
    body = answer.json()
    arrays = {o["name"]: np.array(o["data"]).reshape(o["shape"]) for o in body["outputs"]}
    return {"parameters": body["parameters"], **arrays}


async def until(condition: Callable[[], bool], timeout_s: float = SECONDS) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def administered(
    folder: Path, sets: Sets | None = None, grace_s: float = SECONDS, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the gateway over `folder/models`; its `app` is for a look inside.

    Args:
        grace_s: for so long answers what is out of use.
    """
    chosen_settings = Settings(**{"repository": folder / "models", "request_timeout_s": SECONDS, **settings})
    app = create_app(chosen_settings, create_backend(chosen_settings), references=sets)
    app.state.gateway.explainers.grace_s = grace_s
    async with app.router.lifespan_context(app), client_of(app) as client:
        await app.state.gateway.loading
        client.app = app  # type: ignore[attr-defined]
        yield client


class Gate:
    """Compiles in this process, while it is open: fast, where the worker is not what a test is about."""

    def __init__(self) -> None:
        self.waiting = self.cancelled = 0
        self._open = asyncio.Event()
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def __call__(self, order: CompileOrder, timeout_s: float, on_progress: OnProgress) -> int:  # noqa: ARG002
        self.waiting += 1
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        try:
            return await to_its_end(asyncio.to_thread(worker.run, order, io.StringIO()))
        except RationaleError as error:
            raise CompileFailedError(str(error)) from error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def count(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    metrics = client.app.state.gateway.metrics  # type: ignore[attr-defined]
    return metrics.registry.get_sample_value(f"rationale_{name}", labels) or 0.0


def compiles(client: httpx.AsyncClient) -> float:
    return count(client, "compile_duration_seconds_count", outcome="ready")


def explainers_of(client: httpx.AsyncClient) -> Explainers:
    explainers: Explainers = client.app.state.gateway.explainers  # type: ignore[attr-defined]
    return explainers


def assert_answers(answer: dict[str, Any], kind: str) -> None:
    np.testing.assert_allclose(answer["x_attributions"], ATTRIBUTIONS[kind], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(answer["y"], handmade.predict(handmade.X), rtol=1e-5)
