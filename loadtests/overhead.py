"""CPU time that the gateway spends on a small request, beside a server that does the least.

    python -m loadtests.overhead [--requests 20000] [--rounds 40] [--only json …]

Each kind of request is sent one after the other over one connection, in rounds that alternate, so that a
change of the machine meets all alike. Counted is the CPU time of the *server's* process, from the system, and
what ONNX Runtime itself takes of it, measured apart on the same rows.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import onnxruntime as ort
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadtests import models, wire
from loadtests.processes import Server, gateway, started

REPOSITORY = Path("model_repository")
Ask = Callable[[int], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Kind:
    """One way to ask: `ask(n)` sends n requests to `server`, one after the other."""

    name: str
    server: Server
    ask: Ask


def over_http(server: Server, request: bytes) -> Ask:
    async def ask(count: int) -> None:
        connection = await wire.connect(server.http)
        for _ in range(count):
            reply = await connection.ask(request)
            if reply.status != 200:
                raise RuntimeError(f"{reply.status}: {reply.body!r}")
        connection.close()

    return ask


def grpc_request(model: str, load: models.Load) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, x in load.inputs.items():
        request.inputs.add(name=name, datatype="FP32", shape=x.shape)
        request.raw_input_contents.append(x.tobytes())
    return request


def over_grpc(server: Server, model: str, load: models.Load) -> Ask:
    request = grpc_request(model, load)

    async def ask(count: int) -> None:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for _ in range(count):
                await stub.ModelInfer(request)

    return ask


@contextlib.contextmanager
def kinds() -> Iterator[list[Kind]]:
    """Every way to ask, its servers running."""
    load = models.credit()
    plain, explained = load.model, models.explain_entry(load)
    with contextlib.ExitStack() as servers:
        least, least_explained, bare, bare_explained = (
            servers.enter_context(
                started([sys.executable, "-m", module, str(REPOSITORY / name / "1/model.onnx")], {})
            )
            for module in ("loadtests.minimal", "loadtests.proxy")
            for name in (plain, explained)
        )
        ours = servers.enter_context(gateway(REPOSITORY))
        infer, explain = (f"/v2/models/{plain}/{verb}" for verb in ("infer", "explain"))
        at = ours.http
        yield [
            Kind("minimal", least, over_http(least, wire.json_request(least.http, "/infer", load.inputs))),
            Kind("bare grpc", bare, over_grpc(bare, plain, load)),
            Kind("json", ours, over_http(ours, wire.json_request(at, infer, load.inputs))),
            Kind("binary", ours, over_http(ours, wire.binary_request(at, infer, load.inputs))),
            Kind("grpc", ours, over_grpc(ours, plain, load)),
            Kind(
                "minimal explain",
                least_explained,
                over_http(least_explained, wire.json_request(least.http, "/infer", load.inputs)),
            ),
            Kind("bare grpc explain", bare_explained, over_grpc(bare_explained, explained, load)),
            Kind("json explain", ours, over_http(ours, wire.json_request(at, explain, load.inputs))),
            Kind("binary explain", ours, over_http(ours, wire.binary_request(at, explain, load.inputs))),
            Kind("grpc explain", ours, over_grpc(ours, explained, load)),
        ]


def compute_us(entry: str, load: models.Load, count: int) -> float:
    """CPU time of ONNX Runtime's own run, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(REPOSITORY / entry / "1/model.onnx", options)
    for _ in range(100):
        session.run(None, load.inputs)
    began_s = time.process_time()
    for _ in range(count):
        session.run(None, load.inputs)
    return (time.process_time() - began_s) / count * 1e6


async def cpu_us(kind: Kind, count: int) -> float:
    """What a request costs its server."""
    began_s = kind.server.cpu_s()
    await kind.ask(count)
    return (kind.server.cpu_s() - began_s) / count * 1e6


def measure(chosen: list[Kind], requests: int, rounds: int) -> dict[str, list[float]]:
    """CPU µs per request of every round, by kind."""
    spent: dict[str, list[float]] = {kind.name: [] for kind in chosen}
    for kind in chosen:
        asyncio.run(kind.ask(max(requests // 20, 20)))
    for _ in range(rounds):
        for kind in chosen:
            spent[kind.name].append(asyncio.run(cpu_us(kind, requests // rounds)))
    return spent


def report(spent: dict[str, list[float]]) -> None:
    """Medians, and the median ratio to the yardstick of the same round, which a busy machine spares."""
    for name, each in spent.items():
        yardstick = _yardstick(name)
        least = spent.get(yardstick, each)
        ratio = statistics.median(ours / theirs for ours, theirs in zip(each, least, strict=True))
        print(
            f"{name:19} {statistics.median(each):5.0f} µs of CPU per request, least {min(each):5.0f}; "
            f"{ratio:.2f} times {yardstick}"
        )


def _yardstick(name: str) -> str:
    least = "bare grpc" if "grpc" in name else "minimal"
    return f"{least} explain" if name.endswith("explain") else least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="of each kind")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="*", help="names of kinds")
    given = parser.parse_args()
    load = models.credit()
    for entry in (load.model, models.explain_entry(load)):
        print(f"ONNX Runtime alone, {entry}: {compute_us(entry, load, 2000):.0f} µs")
    with kinds() as all_kinds:
        chosen = [kind for kind in all_kinds if not given.only or kind.name in given.only]
        report(measure(chosen, given.requests, given.rounds))


if __name__ == "__main__":
    main()
