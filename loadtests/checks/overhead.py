"""The gateway's overhead on a small request: CPU time and latency, compared with minimal servers.

    python -m loadtests.checks.overhead [--requests 20000] [--rounds 40] [--only "json explain" …]
    python -m loadtests.checks.overhead --triton

Each kind of request is sent one after the other over one connection, in rounds that alternate, so that a
change of the machine meets all alike. The system counts the CPU time of the *server's* process.
With `--triton` (which needs `make triton`) the gateway stands before a Triton, beside a bare proxy
(`loadtests.systems.bare_grpc`), whose overhead is the price of any hop.
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
LEAST = {"json": "minimal", "binary": "minimal", "grpc": "bare grpc"}  # yardsticks by form
Ask = Callable[[int], list[float]]


@dataclass(frozen=True)
class RequestKind:
    """`ask(n)` sends n requests to `server`, one after the other, and returns the seconds that each took."""

    server: Server
    ask: Ask


@dataclass(frozen=True)
class RequestCost:
    """A round's CPU µs of a request on average, and its milliseconds at the median."""

    cpu_us: float
    took_ms: float


def timed(ask: Callable[[], object], count: int) -> list[float]:
    took_s = []
    for _ in range(count):
        began_s = time.perf_counter()
        ask()
        took_s.append(time.perf_counter() - began_s)
    return took_s


def over_http(server: Server, path: str, body: bytes, headers: dict[str, str]) -> RequestKind:
    def ask(count: int) -> list[float]:
        with httpx.Client(base_url=f"http://{server.http}", timeout=_TIMEOUT_S) as client:
            return timed(lambda: client.post(path, content=body, headers=headers).raise_for_status(), count)

    return RequestKind(server, ask)


def over_grpc(server: Server, question: Question) -> RequestKind:
    def ask(count: int) -> list[float]:
        with grpc.insecure_channel(server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            return timed(lambda: stub.ModelInfer(question.as_message), count)

    return RequestKind(server, ask)


def of_gateway(server: Server, question: Question) -> dict[str, RequestKind]:
    """Return all three forms of a request, by name."""
    return {
        f"json {question.label}": over_http(server, question.path, *question.as_json),
        f"binary {question.label}": over_http(server, question.path, *question.as_binary),
        f"grpc {question.label}": over_grpc(server, question),
    }


def least(module: str, argument: str) -> contextlib.AbstractContextManager[Server]:
    return started([sys.executable, "-m", f"loadtests.systems.{module}", argument], {})


@contextlib.contextmanager
def kinds() -> Iterator[dict[str, RequestKind]]:
    """Yield every kind of request, its servers running; the minimal servers run one entry each."""
    with contextlib.ExitStack() as servers:
        ours = servers.enter_context(gateway(REPOSITORY))
        kinds_by_name = {}
        for verb in (PREDICT, EXPLAIN):
            question = models.question(models.CREDIT, verb)
            graph = str(REPOSITORY / question.entry / "1/model.onnx")
            minimal, bare = (servers.enter_context(least(name, graph)) for name in ("minimal", "bare_grpc"))
            kinds_by_name[f"minimal {verb}"] = over_http(minimal, "/infer", *question.as_json)
            kinds_by_name[f"bare grpc {verb}"] = over_grpc(bare, question)
            kinds_by_name |= of_gateway(ours, question)
        yield kinds_by_name


@contextlib.contextmanager
def kinds_before_triton() -> Iterator[dict[str, RequestKind]]:
    """Yield Triton, a proxy before it and the gateway before it, on one model of 24 features."""
    question = models.question(models.NETWORK, PREDICT)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        models.write_network(Path(folder), width=64, references=20)
        triton = servers.enter_context(run_triton(Path(folder)))
        proxy = servers.enter_context(least("bare_grpc", triton.grpc))
        ours = servers.enter_context(gateway(Path(folder), "--triton", triton.grpc))
        yield {
            TRITON: over_grpc(Server(triton.pid, triton.http, triton.grpc), question),
            "bare proxy": over_grpc(proxy, question),
            **of_gateway(ours, question),
        }


def measure(chosen: dict[str, RequestKind], requests: int, rounds: int) -> dict[str, list[RequestCost]]:
    """Return the rounds of each kind."""
    rounds_by_kind: dict[str, list[RequestCost]] = {name: [] for name in chosen}
    for kind in chosen.values():
        kind.ask(max(requests // 20, 20))
    each = requests // rounds
    for _ in range(rounds):
        for name, kind in chosen.items():
            began_s = kind.server.cpu_s()
            took_s = kind.ask(each)
            used_s = kind.server.cpu_s() - began_s
            rounds_by_kind[name].append(RequestCost(used_s / each * 1e6, median(took_s) * 1e3))
    return rounds_by_kind


def report(rounds_by_kind: dict[str, list[RequestCost]]) -> None:
    """Print medians, also of the comparison with the round's own yardstick, which a busy machine spares."""
    for name, rounds in rounds_by_kind.items():
        yardstick = yardstick_of(name, rounds_by_kind)
        cpu_us, took_ms = ([getattr(each, figure) for each in rounds] for figure in ("cpu_us", "took_ms"))
        pairs = list(zip(rounds, rounds_by_kind[yardstick], strict=True))
        times = median(a.cpu_us / b.cpu_us for a, b in pairs)
        added_ms = median(a.took_ms - b.took_ms for a, b in pairs)
        print(
            f"{name:17} {median(cpu_us):5.0f} µs of CPU per request, least {min(cpu_us):5.0f}; "
            f"{times:.2f} times {yardstick}; "
            f"{median(took_ms):.2f} ms at the median, {added_ms:+.2f} ms"
        )


def yardstick_of(name: str, measured: Container[str]) -> str:
    """Return Triton's name if it is measured, else the minimal server's for that form and verb."""
    form, _, verb = name.rpartition(" ")
    least = TRITON if TRITON in measured else f"{LEAST.get(form, form)} {verb}"
    return least if least in measured else name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="requests of each kind (default: 20000)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="*", help="run only these kinds")
    parser.add_argument("--triton", action="store_true", help="run the gateway in front of a Triton")
    options = parser.parse_args()
    with kinds_before_triton() if options.triton else kinds() as every:
        chosen = {name: kind for name, kind in every.items() if not options.only or name in options.only}
        report(measure(chosen, options.requests, options.rounds))


if __name__ == "__main__":
    main()
