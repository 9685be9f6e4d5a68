"""Explainers made over the API in a real Triton, which loads and unloads them by request."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient

from rationale_service.models.explainers import builder as builder
from scripts.triton.serve import ENDS, TritonAddresses
from tests.service import handmade
from tests.service.child import spare_ports
from tests.service.explaining import (
    ATTRIBUTIONS,
    DEEPSHAP,
    GRADIENT,
    OTHER,
    PATH,
    SECONDS,
    administered,
    explain,
    made_ready,
    sets_of,
    settled,
    until,
)
from tests.triton.conftest import StartTriton, start_triton

__all__ = ["start_triton"]  # a fixture, found by its name


pytestmark = pytest.mark.usefixtures("quick")


@contextlib.contextmanager
def explicit(folder: Path, start: StartTriton) -> Iterator[TritonAddresses]:
    with start(folder / "models", load=("score",)) as triton:
        yield triton


def loaded(triton: TritonAddresses) -> list[str]:
    """What Triton itself serves."""
    with InferenceServerClient(triton.grpc) as client:
        index = client.get_model_repository_index(as_json=True).get("models", [])
        return sorted(model["name"] for model in index if model.get("state") == "READY")


def assert_explains(answer: dict[str, Any], kind: str) -> None:
    np.testing.assert_allclose(answer["x_attributions"], ATTRIBUTIONS[kind], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(answer["y"], handmade.predict(handmade.X), rtol=1e-5)


@pytest.mark.full
async def test_published_switched_unloaded_and_back_again(folder: Path, start_triton: StartTriton) -> None:
    sets = sets_of(folder)
    with explicit(folder, start_triton) as addresses:
        settings: dict[str, Any] = {"triton": addresses.grpc, "grace_s": 1}
        async with administered(folder, sets, **settings) as client:
            first = await made_ready(client, f"{PATH}/one", DEEPSHAP)
            assert loaded(addresses) == ["score", first["serving"]["entry"]]
            digests = await switched_under_load(client)
            second = (await client.get(f"{PATH}/one")).json()
            assert digests == {
                first["serving"]["digests"]["explanation"]: "typical",
                second["serving"]["digests"]["explanation"]: "other",
            }
            await until(lambda: loaded(addresses) == ["score", second["serving"]["entry"]])
            old = folder / "models" / first["serving"]["entry"]
            await until(lambda: not old.exists())  # it is deleted after Triton has let go of it
            await made_ready(client, f"{PATH}/two", GRADIENT)
        async with administered(folder, sets, max_loaded_explainers=1, **settings) as client:
            for name, kind in (("one", "other"), ("two", "gradient"), ("one", "other")):
                assert_explains(await explain(client, explainer=name), kind)
                entry = (await client.get(f"{PATH}/{name}")).json()["serving"]["entry"]
                await until(lambda entry=entry: entry in loaded(addresses) and len(loaded(addresses)) == 2)
    with explicit(folder, start_triton) as addresses:  # one that has loaded no explainer yet
        async with administered(folder, sets, triton=addresses.grpc) as client:
            assert len(loaded(addresses)) == 3
            assert_explains(await explain(client), "other")


async def switched_under_load(client: httpx.AsyncClient) -> dict[str, str]:
    """{digest in the answers: whose attributions they held}, while another explainer takes over."""
    collected: dict[str, str] = {}
    is_over = asyncio.Event()

    async def ask() -> None:
        while not is_over.is_set():
            answer = await explain(client)
            kind = next(
                k for k, a in ATTRIBUTIONS.items() if np.allclose(answer["x_attributions"], a, atol=1e-4)
            )
            assert collected.setdefault(answer["parameters"]["explanation"], kind) == kind

    asking = [asyncio.create_task(ask()) for _ in range(4)]
    await made_ready(client, f"{PATH}/one", OTHER)
    await until(lambda: len(collected) == 2)
    is_over.set()
    await asyncio.gather(*asking)
    return collected


@pytest.mark.full
async def test_a_triton_that_restarts_has_what_the_gateway_made(
    folder: Path, start_triton: StartTriton
) -> None:
    """Started as the recipes do: with all that is there, and more by request."""
    ports = dict(zip(ENDS, spare_ports(len(ENDS)), strict=True))
    with contextlib.ExitStack() as triton:
        server = triton.enter_context(start_triton(folder / "models", ports=ports))
        async with administered(folder, triton=server.grpc) as client:
            status = await made_ready(client, f"{PATH}/one", GRADIENT)
            assert loaded(server) == ["score", status["serving"]["entry"]]
            triton.close()
            server = triton.enter_context(start_triton(folder / "models", ports=ports))
            assert loaded(server) == ["score", status["serving"]["entry"]]
            await served(client)
            assert_explains(await explain(client), "gradient")


async def served(client: httpx.AsyncClient) -> None:
    """Returns when the connection to Triton is there again."""
    async with asyncio.timeout(SECONDS):
        while (await client.get("/v2/health/ready")).status_code != 200:
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_triton_that_loads_nothing_by_request(folder: Path, start_triton: StartTriton) -> None:
    with start_triton(folder / "models", control_mode="none") as server:
        async with administered(folder, triton=server.grpc, grace_s=0.5) as client:
            await client.put(f"{PATH}/one", json=GRADIENT)
            status = await settled(client, f"{PATH}/one")
            assert status["state"] == "failed"
            assert "--model-control-mode=explicit" in status["error"]
            await until(lambda: [path.name for path in (folder / "models").iterdir()] == ["score"])
    async with administered(folder) as client:
        await made_ready(client, f"{PATH}/one", GRADIENT)
    with start_triton(
        folder / "models", control_mode="none"
    ) as server:  # and one that was there when Triton started is served
        async with administered(folder, triton=server.grpc) as client:
            assert_explains(await explain(client), "gradient")
