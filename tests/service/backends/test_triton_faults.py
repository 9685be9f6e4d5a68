"""A real Triton that is killed, frozen or robbed of an entry under load.

Whatever happens to it: what is answered is right, what is not is refused as a 429, 503 or 504, nobody is left
without an answer past the deadline, and it is served again as soon as it can be.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc

from rationale_service.settings import Settings
from scripts.triton.serve import ENDS, TritonAddresses
from tests.service import handmade
from tests.service.child import spare_ports
from tests.service.conftest import gateway
from tests.service.explaining import until
from tests.triton.conftest import run_triton, start_triton

__all__ = ["start_triton"]  # a fixture, found by its name: it fetches the server

DEADLINE_S = 1.5
HANGS_S = DEADLINE_S + 20  # an answer later than this was not brought about by the deadline
CLIENTS = 6
PATIENCE_S = 60
pytestmark = pytest.mark.usefixtures("start_triton")


@dataclass
class Load:
    """Clients that ask for explanations one after the other, until told to stop, and what they met."""

    client: httpx.AsyncClient
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stopped: bool = False

    async def run(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        while not self.stopped:
            await self.ask(generator.normal(size=(1, 4)).astype(np.float32))

    async def ask(self, x: np.ndarray) -> int:
        body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": x.ravel().tolist()}]}
        headers = {"x-request-timeout-ms": str(int(DEADLINE_S * 1000))}
        async with asyncio.timeout(HANGS_S):
            answer = await self.client.post("/v2/models/score/explain", json=body, headers=headers)
        self.statuses[answer.status_code] += 1
        if answer.status_code == 200:
            y, attributions, *_ = answer.json()["outputs"]
            right = np.allclose(y["data"], handmade.predict(x).ravel(), rtol=1e-4, atol=1e-5)
            right &= np.allclose(attributions["data"], handmade.attribute(x).ravel(), rtol=1e-4, atol=1e-5)
            if not right:
                self.wrong.append(answer.text)
        elif answer.status_code in (429, 503, 504):
            await asyncio.sleep(0.01)  # else refusals would be all that is tested
        return answer.status_code

    async def has_met(self, *statuses: int, times: int = 1) -> None:
        """Returns when so many answers were one of these."""
        await until(lambda: sum(self.statuses[each] for each in statuses) >= times)

    async def until_served(self) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while await self.ask(np.ones((1, 4), np.float32)) != 200:
            assert time.monotonic() < end_s, f"not served again: {self.statuses}"
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def load_on(repository: Path, server: TritonAddresses) -> AsyncIterator[Load]:
    """Load that runs within the block; when it ends, nothing may have been answered wrongly."""
    async with gateway(Settings(repository=repository, triton=server.grpc)) as client:
        load = Load(client)
        async with asyncio.TaskGroup() as clients:
            for seed in range(CLIENTS):
                clients.create_task(load.run(seed))
            await load.has_met(200, times=CLIENTS + 1)
            yield load
            load.stopped = True
        assert not load.wrong
        assert set(load.statuses) <= {200, 429, 503, 504}, load.statuses


@contextlib.contextmanager
def triton_at(repository: Path, ports: dict[str, int]) -> Iterator[TritonAddresses]:
    with run_triton(repository, ports=ports) as triton:
        yield triton


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    handmade.write_score(folder)
    return folder


@pytest.mark.full
async def test_killed_and_restarted_under_load(entries: Path) -> None:
    ports = dict(zip(ENDS, spare_ports(len(ENDS)), strict=True))
    with contextlib.ExitStack() as first:
        triton = await asyncio.to_thread(first.enter_context, triton_at(entries, ports))
        async with load_on(entries, triton) as load:
            os.kill(triton.pid, signal.SIGKILL)
            await load.has_met(503)
            await asyncio.sleep(1)
            await asyncio.to_thread(first.close)
            with contextlib.ExitStack() as second:
                await asyncio.to_thread(second.enter_context, triton_at(entries, ports))
                await load.until_served()
                load.stopped = True
                await asyncio.sleep(0.2)
                await asyncio.to_thread(second.close)


@pytest.mark.full
@pytest.mark.parametrize("seconds", [2.5, pytest.param(5.0, marks=pytest.mark.slow)])
async def test_frozen_under_load(entries: Path, seconds: float) -> None:
    with contextlib.ExitStack() as stack:
        triton = await asyncio.to_thread(stack.enter_context, run_triton(entries))
        async with load_on(entries, triton) as load:
            os.kill(triton.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
                await load.has_met(503, 504)
            finally:
                os.kill(triton.pid, signal.SIGCONT)
            await load.until_served()


@pytest.mark.full
async def test_an_entry_that_is_deleted_under_load(entries: Path) -> None:
    with contextlib.ExitStack() as stack:
        started = run_triton(entries, load=("score", "score_explain"))
        triton = await asyncio.to_thread(stack.enter_context, started)
        async with load_on(entries, triton) as load:
            with tritonclient.grpc.InferenceServerClient(triton.grpc) as admin:
                await asyncio.to_thread(admin.unload_model, "score_explain")
                await load.has_met(503)
                await asyncio.to_thread(admin.load_model, "score_explain")
                await load.until_served()
