"""What the gateway adds to a Triton that is asked straight, for one client and a model of 24 features.

    python -m loadtests.checks.triton_overhead [--requests 3000]

One process asks in turns: Triton by gRPC, the gateway by the same client, the gateway by REST, with JSON and
with binary tensors. A turn is ten of each: a change of the machine meets all alike. A bare proxy
(`loadtests.systems.bare_grpc`) is asked too: what it adds is the price of a hop, whatever is done there.
Printed are medians, and the median over the turns of what each adds. Needs `make triton`.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from loadtests.load import raw
from loadtests.load.questions import PREDICT, Question
from loadtests.systems import models
from loadtests.systems.process import gateway, started
from scripts.triton.serve import run_triton

TURN, WARM = 10, 10  # requests of a turn; turns that are not counted
STRAIGHT = "Triton, gRPC"
Ask = Callable[[], Awaitable[object]]


def by_grpc(address: str, question: Question) -> Ask:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.aio.insecure_channel(address))
    return lambda: stub.ModelInfer(question.as_message)


async def by_http(address: str, path: str, body: bytes, headers: dict[str, str]) -> Ask:
    request, connection = raw.request(address, path, body, headers), await raw.connect(address)

    async def ask() -> None:
        nonlocal connection
        if (
            connection.closed
        ):  # the gateway closes it after five idle seconds, which a Triton that stalls takes
            connection = await raw.connect(address)
        status, said = await connection.ask(request)
        if status != raw.OK:
            raise RuntimeError(f"{status}: {said!r}")

    return ask


async def turns(ways: dict[str, Ask], requests: int) -> dict[str, list[float]]:
    """Median milliseconds of each turn, by way."""
    took_ms: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(requests // TURN + WARM):
        for name, ask in ways.items():
            each_ms = []
            for _ in range(TURN):
                began_s = time.perf_counter()
                await ask()
                each_ms.append((time.perf_counter() - began_s) * 1e3)
            took_ms[name].append(statistics.median(each_ms))
    return {name: each[WARM:] for name, each in took_ms.items()}


async def compare(triton: str, proxy: str, http: str, grpc: str, requests: int) -> dict[str, list[float]]:
    """`turns` of every way to ask; addresses are host:port, the last two the gateway's."""
    question = models.question(models.NETWORK, PREDICT)
    ways = {
        STRAIGHT: by_grpc(triton, question),
        "bare proxy, gRPC": by_grpc(proxy, question),
        "gateway, gRPC": by_grpc(grpc, question),
        "gateway, JSON": await by_http(http, question.path, *question.as_json),
        "gateway, binary": await by_http(http, question.path, *question.as_binary),
    }
    return await turns(ways, requests)


@contextlib.contextmanager
def servers() -> Iterator[tuple[str, str, str, str]]:
    """Addresses of Triton, of the proxy before it, and of the gateway before it, on one model."""
    with tempfile.TemporaryDirectory() as folder:
        models.write_network(Path(folder), width=64, references=20)
        with (
            run_triton(Path(folder)) as triton,
            started([sys.executable, "-m", "loadtests.systems.bare_grpc", triton.grpc], {}) as proxy,
            gateway(Path(folder), "--triton", triton.grpc) as ours,
        ):
            yield triton.grpc, proxy.grpc or "", ours.http, ours.grpc or ""


def report(took_ms: dict[str, list[float]]) -> None:
    """Prints medians, and what each way adds to Triton asked straight."""
    for name, each in took_ms.items():
        added = statistics.median(ours - direct for ours, direct in zip(each, took_ms[STRAIGHT], strict=True))
        print(f"{name:16} {statistics.median(each):6.2f} ms at the median, {added:+.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000, help="of each way")
    given = parser.parse_args()
    with servers() as addresses:
        report(asyncio.run(compare(*addresses, given.requests)))


if __name__ == "__main__":
    main()
