"""What the gateway adds to a small request: CPU time and latency, beside servers that do the least.

    python -m loadtests.checks.overhead [--requests 20000] [--rounds 40] [--only "json explain" …]
    python -m loadtests.checks.overhead --triton

Each kind of request is sent one after the other over one connection, in rounds that alternate, so that a
change of the machine meets all alike. Counted is the CPU time of the *server's* process, from the system.
With `--triton` (which needs `make triton`) the gateway stands before a Triton, beside a bare proxy
(`loadtests.systems.bare_grpc`): what that adds is the price of a hop, whatever is done there.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc
import httpx
from tritonclient.grpc import service_pb2_grpc

from loadtests.load.questions import EXPLAIN, PREDICT, Question
from loadtests.systems import models
from loadtests.systems.process import Server, gateway, started
from scripts.triton.serve import run_triton

REPOSITORY = Path("model_repository")
TRITON = "Triton"
_TIMEOUT_S = 60
LEAST = {"json": "minimal", "binary": "minimal", "grpc": "bare grpc"}  # what each form is held against
Ask = Callable[[int], list[float]]


@dataclass(frozen=True)
class Kind:
    """`ask(n)` sends n requests to `server`, one after the other, and gives the seconds that each took."""

    server: Server
    ask: Ask


@dataclass(frozen=True)
class Round:
    """CPU µs of a request on average, and its milliseconds at the median."""

    cpu_us: float
    took_ms: float


def timed(ask: Callable[[], object], count: int) -> list[float]:
    took_s = []
    for _ in range(count):
        began_s = time.perf_counter()
        ask()
        took_s.append(time.perf_counter() - began_s)
    return took_s


def over_http(server: Server, path: str, body: bytes, headers: dict[str, str]) -> Kind:
    def ask(count: int) -> list[float]:
        with httpx.Client(base_url=f"http://{server.http}", timeout=_TIMEOUT_S) as client:
            return timed(lambda: client.post(path, content=body, headers=headers).raise_for_status(), count)

    return Kind(server, ask)


def over_grpc(server: Server, question: Question) -> Kind:
    def ask(count: int) -> list[float]:
        with grpc.insecure_channel(server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            return timed(lambda: stub.ModelInfer(question.as_message), count)

    return Kind(server, ask)


def of_gateway(server: Server, question: Question) -> dict[str, Kind]:
    """All three forms, by name."""
    return {
        f"json {question.label}": over_http(server, question.path, *question.as_json),
        f"binary {question.label}": over_http(server, question.path, *question.as_binary),
        f"grpc {question.label}": over_grpc(server, question),
    }


def least(module: str, argument: str) -> contextlib.AbstractContextManager[Server]:
    return started([sys.executable, "-m", f"loadtests.systems.{module}", argument], {})


@contextlib.contextmanager
def kinds() -> Iterator[dict[str, Kind]]:
    """Every way to ask, its servers running; the least servers run one entry each."""
    with contextlib.ExitStack() as servers:
        ours = servers.enter_context(gateway(REPOSITORY))
        found = {}
        for verb in (PREDICT, EXPLAIN):
            question = models.question(models.CREDIT, verb)
            graph = str(REPOSITORY / question.entry / "1/model.onnx")
            minimal, bare = (servers.enter_context(least(name, graph)) for name in ("minimal", "bare_grpc"))
            found[f"minimal {verb}"] = over_http(minimal, "/infer", *question.as_json)
            found[f"bare grpc {verb}"] = over_grpc(bare, question)
            found |= of_gateway(ours, question)
        yield found


@contextlib.contextmanager
def kinds_before_triton() -> Iterator[dict[str, Kind]]:
    """Triton, a proxy before it and the gateway before it, on one model of 24 features."""
    question = models.question(models.NETWORK, PREDICT)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        models.write_network(Path(folder), width=64, references=20)
        at = servers.enter_context(run_triton(Path(folder)))
        proxy = servers.enter_context(least("bare_grpc", at.grpc))
        ours = servers.enter_context(gateway(Path(folder), "--triton", at.grpc))
        yield {
            TRITON: over_grpc(Server(at.pid, at.http, at.grpc), question),
            "bare proxy": over_grpc(proxy, question),
            **of_gateway(ours, question),
        }


def measure(chosen: dict[str, Kind], requests: int, rounds: int) -> dict[str, list[Round]]:
    """By kind."""
    found: dict[str, list[Round]] = {name: [] for name in chosen}
    for kind in chosen.values():
        kind.ask(max(requests // 20, 20))
    each = requests // rounds
    for _ in range(rounds):
        for name, kind in chosen.items():
            began_s = kind.server.cpu_s()
            took_s = kind.ask(each)
            used_s = kind.server.cpu_s() - began_s
            found[name].append(Round(used_s / each * 1e6, median(took_s) * 1e3))
    return found


def report(found: dict[str, list[Round]]) -> None:
    """Medians, also of the comparison with the yardstick of the same round, which a busy machine spares."""
    for name, rounds in found.items():
        yardstick = yardstick_of(name, found)
        cpu_us, took_ms = ([getattr(each, what) for each in rounds] for what in ("cpu_us", "took_ms"))
        pairs = list(zip(rounds, found[yardstick], strict=True))
        times = median(a.cpu_us / b.cpu_us for a, b in pairs)
        added_ms = median(a.took_ms - b.took_ms for a, b in pairs)
        print(
            f"{name:17} {median(cpu_us):5.0f} µs of CPU per request, least {min(cpu_us):5.0f}; "
            f"{times:.2f} times {yardstick}; "
            f"{median(took_ms):.2f} ms at the median, {added_ms:+.2f} ms"
        )


def yardstick_of(name: str, found: Container[str]) -> str:
    """Triton where it is asked, else the least server for that form and verb; itself where neither is."""
    form, _, verb = name.rpartition(" ")
    least = TRITON if TRITON in found else f"{LEAST.get(form, form)} {verb}"
    return least if least in found else name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="of each kind")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="*", help="names of kinds")
    parser.add_argument("--triton", action="store_true", help="before a Triton")
    given = parser.parse_args()
    with kinds_before_triton() if given.triton else kinds() as every:
        chosen = {name: kind for name, kind in every.items() if not given.only or name in given.only}
        report(measure(chosen, given.requests, given.rounds))


if __name__ == "__main__":
    main()
