"""CPU time that the gateway spends on a small request, beside a server that does the least.

    python -m loadtests.checks.overhead [--requests 20000] [--rounds 40] [--only "json explain" …]

Each kind of request is sent one after the other over one connection, in rounds that alternate, so that a
change of the machine meets all alike. Counted is the CPU time of the *server's* process, from the system.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from loadtests.load import raw
from loadtests.load.questions import EXPLAIN, PREDICT, Question
from loadtests.systems import models
from loadtests.systems.process import Server, gateway, started

REPOSITORY = Path("model_repository")
LEAST = {"json": "minimal", "binary": "minimal", "grpc": "bare grpc"}  # what each form is held against
Ask = Callable[[int], Coroutine[None, None, None]]


@dataclass(frozen=True)
class Kind:
    """One way to ask: `ask(n)` sends n requests to `server`, one after the other."""

    server: Server
    ask: Ask


def over_http(server: Server, path: str, body: bytes, headers: dict[str, str]) -> Kind:
    request = raw.request(server.http, path, body, headers)

    async def ask(count: int) -> None:
        connection = await raw.connect(server.http)
        for _ in range(count):
            status, said = await connection.ask(request)
            if status != raw.OK:
                raise RuntimeError(f"{status}: {said!r}")
        connection.close()

    return Kind(server, ask)


def over_grpc(server: Server, question: Question) -> Kind:
    async def ask(count: int) -> None:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for _ in range(count):
                await stub.ModelInfer(question.as_message)

    return Kind(server, ask)


@contextlib.contextmanager
def kinds() -> Iterator[dict[str, Kind]]:
    """Every way to ask, its servers running; the least servers run one entry each."""
    with contextlib.ExitStack() as servers:
        ours = servers.enter_context(gateway(REPOSITORY))
        found = {}
        for verb in (PREDICT, EXPLAIN):
            question = models.question(models.CREDIT, verb)
            graph = str(REPOSITORY / question.entry / "1/model.onnx")
            minimal, bare = (
                servers.enter_context(started([sys.executable, "-m", f"loadtests.systems.{name}", graph], {}))
                for name in ("minimal", "bare_grpc")
            )
            found[f"minimal {verb}"] = over_http(minimal, "/infer", *question.as_json)
            found[f"bare grpc {verb}"] = over_grpc(bare, question)
            found[f"json {verb}"] = over_http(ours, question.path, *question.as_json)
            found[f"binary {verb}"] = over_http(ours, question.path, *question.as_binary)
            found[f"grpc {verb}"] = over_grpc(ours, question)
        yield found


def measure(chosen: dict[str, Kind], requests: int, rounds: int) -> dict[str, list[float]]:
    """CPU µs per request of every round, by kind."""
    spent: dict[str, list[float]] = {name: [] for name in chosen}
    for kind in chosen.values():
        asyncio.run(kind.ask(max(requests // 20, 20)))
    each = requests // rounds
    for _ in range(rounds):
        for name, kind in chosen.items():
            began_s = kind.server.cpu_s()
            asyncio.run(kind.ask(each))
            spent[name].append((kind.server.cpu_s() - began_s) / each * 1e6)
    return spent


def report(spent: dict[str, list[float]]) -> None:
    """Medians, and the median ratio to the yardstick of the same round, which a busy machine spares."""
    for name, each in spent.items():
        form, _, verb = name.rpartition(" ")
        yardstick = f"{LEAST.get(form, form)} {verb}"
        ratio = statistics.median(a / b for a, b in zip(each, spent.get(yardstick, each), strict=True))
        print(
            f"{name:17} {statistics.median(each):5.0f} µs of CPU per request, least {min(each):5.0f}; "
            f"{ratio:.2f} times {yardstick}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="of each kind")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="*", help="names of kinds")
    given = parser.parse_args()
    with kinds() as every:
        chosen = {name: kind for name, kind in every.items() if not given.only or name in given.only}
        report(measure(chosen, given.requests, given.rounds))


if __name__ == "__main__":
    main()
