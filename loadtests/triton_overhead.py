"""What the gateway adds to a Triton that is asked straight, for one client and a model of 24 features.

    python -m loadtests.triton_overhead [--requests 3000]

One process asks in turns: Triton by tritonclient's gRPC, the gateway by the same client, the gateway by REST,
with JSON and with binary tensors. A turn is ten of each: a change of the machine meets all alike.
A bare proxy (`loadtests.proxy`) is asked too: what it adds is the price of a hop, whatever is done there.
Printed are medians, and the median over the turns of what each adds. Needs `make triton`.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from loadtests import models, wire
from loadtests.processes import gateway, started
from scripts.triton.serve import run_triton

TURN = 10
STRAIGHT = "Triton, gRPC"
Ask = Callable[[], Awaitable[None]]


def by_grpc(client: InferenceServerClient, load: models.Load) -> Ask:
    tensors = []
    for name, x in load.inputs.items():
        tensors.append(InferInput(name, list(x.shape), "FP32"))
        tensors[-1].set_data_from_numpy(x)

    async def ask() -> None:
        await client.infer(load.model, tensors)

    return ask


@contextlib.asynccontextmanager
async def by_http(address: str, request: bytes) -> AsyncIterator[Ask]:
    connection = await wire.connect(address)

    async def ask() -> None:
        nonlocal connection
        # The gateway closes it after five idle seconds, which a Triton that stalls takes.
        if connection.is_closed:
            connection = await wire.connect(address)
        reply = await connection.ask(request)
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {reply.body!r}")

    yield ask
    connection.close()


async def turns(ways: dict[str, Ask], requests: int) -> dict[str, list[float]]:
    """Median milliseconds of each turn, by way."""
    took_ms: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(requests // TURN + 10):
        for name, ask in ways.items():
            each_ms = []
            for _ in range(TURN):
                began_s = time.perf_counter()
                await ask()
                each_ms.append((time.perf_counter() - began_s) * 1e3)
            if turn >= 10:  # the first ones warm up
                took_ms[name].append(statistics.median(each_ms))
    return took_ms


@dataclass(frozen=True)
class Addresses:
    """host:port of each server; `http` and `grpc` are the gateway's."""

    triton: str
    proxy: str
    http: str
    grpc: str


async def compare(at: Addresses, load: models.Load, requests: int) -> dict[str, list[float]]:
    """`turns` of every way to ask."""
    path = f"/v2/models/{load.model}/infer"
    async with contextlib.AsyncExitStack() as clients:
        straight, bare, ours = [
            await clients.enter_async_context(InferenceServerClient(address))
            for address in (at.triton, at.proxy, at.grpc)
        ]
        json = by_http(at.http, wire.json_request(at.http, path, load.inputs))
        binary = by_http(at.http, wire.binary_request(at.http, path, load.inputs))
        ways = {
            STRAIGHT: by_grpc(straight, load),
            "bare proxy, gRPC": by_grpc(bare, load),
            "gateway, gRPC": by_grpc(ours, load),
            "gateway, JSON": await clients.enter_async_context(json),
            "gateway, binary": await clients.enter_async_context(binary),
        }
        return await turns(ways, requests)


@contextlib.contextmanager
def servers() -> Iterator[tuple[Addresses, models.Load]]:
    """Triton, the proxy before it, and the gateway before it, on one model."""
    with tempfile.TemporaryDirectory() as folder:
        load = models.write_network(Path(folder), width=64, references=20)
        with (
            run_triton(Path(folder)) as triton,
            started([sys.executable, "-m", "loadtests.proxy", triton.grpc], {}) as proxy,
            gateway(Path(folder), "--triton", triton.grpc) as ours,
        ):
            yield Addresses(triton.grpc, proxy.grpc or "", ours.http, ours.grpc or ""), load


def report(took_ms: dict[str, list[float]]) -> None:
    """Prints medians, and what each way adds to Triton asked straight."""
    for name, each in took_ms.items():
        added = statistics.median(ours - direct for ours, direct in zip(each, took_ms[STRAIGHT], strict=True))
        print(f"{name:16} {statistics.median(each):6.2f} ms at the median, {added:+.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000, help="of each way")
    given = parser.parse_args()
    with servers() as (addresses, load):
        report(asyncio.run(compare(addresses, load, given.requests)))


if __name__ == "__main__":
    main()
