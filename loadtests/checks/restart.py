"""Restarts under load: no call may be lost, or answered wrongly.

    python -m loadtests.checks.restart [--restarts 10]

Callers send one call after the other: by grpcio with `wait_for_ready`, by HTTP with another try if a
connection is refused. SIGTERM stops the gateway, which starts again at the same addresses, again and again.
Every answer is compared with ONNX Runtime's. Ends with 1 if one was lost or wrong.
"""

import argparse
import contextlib
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx
import numpy as np
from tritonclient.grpc import InferResult, service_pb2_grpc

from loadtests.load.questions import EXPLAIN
from loadtests.systems import models
from loadtests.systems.process import gateway

CALLERS = 4  # of each kind
TIMEOUT_S = 60.0
BETWEEN_S = 1.0
ATTRIBUTIONS = "x_attributions"
QUESTION = models.question(models.NETWORK, EXPLAIN)
PAUSE_S = 0.05
Ask = Callable[[], np.ndarray]


@dataclass
class RestartTally:
    """Answers, lost calls, wrong answers and the longest time of a call, by kind."""

    answered: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    longest_s: dict[str, float] = field(default_factory=dict)


def by_http(address: str, clients: contextlib.ExitStack) -> Ask:
    client = clients.enter_context(httpx.Client(base_url=f"http://{address}", timeout=TIMEOUT_S))
    body, headers = QUESTION.as_json

    def ask() -> np.ndarray:
        end_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                reply = client.post(QUESTION.path, content=body, headers=headers)
                break
            except httpx.ConnectError:
                if time.monotonic() > end_s:
                    raise
            time.sleep(PAUSE_S)
        if reply.is_error:
            raise RuntimeError(f"{reply.status_code}: {reply.text[:300]}")
        (output,) = (each for each in reply.json()["outputs"] if each["name"] == ATTRIBUTIONS)
        return np.reshape(output["data"], output["shape"])

    return ask


def by_grpc(address: str, clients: contextlib.ExitStack) -> Ask:
    options = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1)]
    channel = clients.enter_context(grpc.insecure_channel(address, options))
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def ask() -> np.ndarray:
        answer = stub.ModelInfer(QUESTION.as_message, timeout=TIMEOUT_S, wait_for_ready=True)
        return np.asarray(InferResult(answer).as_numpy(ATTRIBUTIONS))

    return ask


def go_on(kind: str, ask: Ask, expected: np.ndarray, tally: RestartTally, over: threading.Event) -> None:
    """Send one call after the other until it is over."""
    while not over.is_set():
        began_s = time.perf_counter()
        try:
            tally.wrong += not np.allclose(ask(), expected, rtol=0, atol=1e-4)
            tally.answered[kind] += 1
        except grpc.RpcError as error:
            tally.lost[f"{kind}: {error.code().name}, {error.details()}"] += 1
        except (RuntimeError, httpx.HTTPError) as error:
            tally.lost[f"{kind}: {error}"] += 1
        took_s = time.perf_counter() - began_s
        tally.longest_s[kind] = max(tally.longest_s.get(kind, 0.0), took_s)


def measure(repository: Path, restarts: int) -> RestartTally:
    """Run the load from the first start to the end of the last one."""
    answers = models.session(repository, QUESTION.entry).run([ATTRIBUTIONS], QUESTION.inputs)
    tally, over, ports = RestartTally(), threading.Event(), free_ports()
    http, grpc_ = (f"127.0.0.1:{port}" for port in ports)
    callers = [("HTTP", by_http, http), ("gRPC", by_grpc, grpc_)] * CALLERS
    with (
        contextlib.ExitStack() as clients,
        ThreadPoolExecutor(len(callers)) as threads,
        contextlib.ExitStack() as end,
    ):
        end.callback(over.set)  # a gateway that does not start ends the callers too
        for number in range(restarts + 1):
            with gateway(repository, "--port", str(ports[0]), "--grpc-port", str(ports[1])):
                for kind, way, address in callers if number == 0 else ():
                    threads.submit(go_on, kind, way(address, clients), answers[0], tally, over)
                time.sleep(BETWEEN_S)
                if number == restarts:
                    over.set()
                    threads.shutdown()
    return tally


def free_ports() -> list[int]:
    """Return two ports that were free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as other:
        return [each.getsockname()[1] for each in (first, other)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--restarts", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models.write_network(Path(folder), width=64, references=20)
        tally = measure(Path(folder), options.restarts)
    for kind, count in tally.answered.items():
        print(f"{kind}: {count} answers, the longest after {tally.longest_s[kind]:.1f} s")
    print(f"wrong: {tally.wrong}; lost: {sum(tally.lost.values())}", *tally.lost.items(), sep="\n  ")
    return int(bool(tally.wrong or tally.lost))


if __name__ == "__main__":
    sys.exit(main())
