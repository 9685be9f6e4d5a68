"""Bodies that cost more than they weigh, at each route that reads some, from two connections at a time.

Each is answered as it should, liveness and an honest call beside it within seconds, in bounded memory.
"""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2

from loadtests.load.bodies import BODIES, MESSAGES, REASONS, ROW, ApiBody, instances, many
from tests.service.child import PATIENCE_S, grpc_address, ready_line, serve

CREDIT = Path(__file__).parents[4] / "examples" / "credit"
MOST_GROWN = 300_000_000
WITHIN_S = 5.0  # other tests share the cores
TWINS = {"a million empty inputs", "16 MB of instances, predicted", "decisions on 16 MB"}  # of shorter ones
SHORT = {  # `make test` sends these; all, which takes minutes, `make test-slow`
    "a million empty inputs",
    "15 million empty inputs",
    "a million empty outputs",
    "300,000 empty inputs",
    "a million parameters",
    "a million empty instances",
    "instances that are numbers",
    "4 million features",
    "a feature of two million numbers",
    "16 MB of instances, predicted",
    "16 MB of instances, within 60 ms",
    "decisions on 16 MB",
    "an explainer of many groups",
    "an explainer of wrong names",
    "references: empty rows",
    "references: a packed array",
    "an index of a million",
    "gzip of 45 MB",
    "empty inputs",
    "15 million typed values",
    "4 million typed values",
}


def cases(names: dict[str, object]) -> list[object]:
    def mark(name: str) -> Any:
        if name not in SHORT:
            return pytest.mark.slow
        return pytest.mark.full if name in TWINS else ()

    return [pytest.param(name, marks=mark(name)) for name in names]


@dataclass(frozen=True)
class CostlyGateway:
    http: str
    grpc: str
    process: psutil.Process

    def ask(self, body: ApiBody, content: bytes) -> int:
        """The status. An answer may come, and the connection close, before the whole body is there."""
        with contextlib.closing(HTTPConnection(self.http, timeout=PATIENCE_S)) as connection:
            with contextlib.suppress(ConnectionError):
                connection.request(body.method, body.path, content, body.headers)
            return connection.getresponse().status

    def call(self, message: bytes) -> str:
        """The name of the status."""
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self.grpc, options) as channel:
            infer = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=bytes,
                response_deserializer=service_pb2.ModelInferResponse.FromString,
            )
            try:
                infer(message, timeout=PATIENCE_S)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    @contextlib.contextmanager
    def unhurt(self) -> Iterator[None]:
        """Meanwhile liveness and honest calls are answered in time, and the memory stays within bounds."""
        before, over = self.process.memory_info().rss, threading.Event()
        row = instances(b"[" + ROW + b"]")
        honest = (
            (ApiBody("/v2/health/live", bytes, method="GET"), b""),
            (ApiBody(REASONS, bytes), row),
        )

        def watch() -> int:
            most = 0
            while not over.wait(0.02):
                most = max(most, self.process.memory_info().rss)
            return most

        def go_on(body: ApiBody, content: bytes) -> float:
            longest_s = 0.0
            while not over.wait(0.02):
                began_s = time.perf_counter()
                assert self.ask(body, content) == 200
                longest_s = max(longest_s, time.perf_counter() - began_s)
            return longest_s

        with ThreadPoolExecutor(3) as threads:
            memory, *longest = threads.submit(watch), *(threads.submit(go_on, *each) for each in honest)
            try:
                yield
            finally:
                over.set()
        assert max(each.result() for each in longest) < WITHIN_S
        assert memory.result() - before < MOST_GROWN


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CostlyGateway]:
    """Of the credit example with its decision profile."""
    folder = tmp_path_factory.mktemp("models")
    options = {"--references": "near_threshold.csv", "--decision": "decision.yaml"}
    rows_sent = [str(each) for name, file in options.items() for each in (name, CREDIT / file)]
    command = [
        sys.executable,
        "-m",
        "rationale_service.cli",
        "compile",
        str(CREDIT / "credit.onnx"),
        "--name",
        "credit",
    ]
    subprocess.run([*command, *rows_sent, "--repository", str(folder)], check=True, capture_output=True)
    state = str(tmp_path_factory.mktemp("state"))
    settings = {"RATIONALE_STATE": state, "RATIONALE_REQUEST_TIMEOUT_S": str(PATIENCE_S)}
    with serve("--port", "0", "--repository", str(folder), **settings) as child:
        url, lines = ready_line(child)
        yield CostlyGateway(url.removeprefix("http://"), grpc_address(lines), psutil.Process(child.pid))


@pytest.mark.parametrize("name", cases({**BODIES}))
def test_no_body_hurts(gateway: CostlyGateway, name: str) -> None:
    body = BODIES[name]
    content = body.make()
    with gateway.unhurt(), ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(gateway.ask, [body] * 2, [content] * 2))
    assert set(answers) <= set(body.statuses)


@pytest.mark.parametrize("name", cases({**MESSAGES}))
def test_no_message_hurts(gateway: CostlyGateway, name: str) -> None:
    message = MESSAGES[name]()
    with gateway.unhurt(), ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(gateway.call, [message] * 2))
    assert set(answers) <= {"RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"}


def test_callers_that_take_no_answer_hurt_nobody(gateway: CostlyGateway) -> None:
    body = instances(many(ROW, 100_000))
    lines = (f"POST {REASONS} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "\r\n")
    host, _, port = gateway.http.rpartition(":")
    with gateway.unhurt(), contextlib.ExitStack() as connections:
        for _ in range(4):
            caller = connections.enter_context(socket.create_connection((host, int(port)), timeout=0.5))
            with contextlib.suppress(TimeoutError):  # it reads no more of who takes nothing
                caller.sendall(("\r\n".join(lines).encode() + body) * 20)
