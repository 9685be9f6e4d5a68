"""Bodies that cost more than they weigh, at each route that reads some, from two connections at a time.

Each is answered as it should, liveness and an honest call beside it within seconds, in bounded memory.
"""

import contextlib
import gzip
import io
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2

from tests.service.child import PATIENCE_S, grpc_address, ready_line, serve

CREDIT = Path(__file__).parents[3] / "examples" / "credit"
MOST_GROWN = 300_000_000
WITHIN_S = 5.0  # other tests share the cores
JSON, CSV, NPZ, NPY = (
    {"Content-Type": kind}
    for kind in ("application/json", "text/csv", "application/x-npz", "application/x-npy")
)
ROW = (
    b'{"income":24500,"loan_amount":15000,"term_months":60,"debt_to_income":0.52,"credit_history_years":3.5,'
    b'"late_payments_2y":3,"open_accounts":4,"utilisation":0.91,"recent_inquiries":4,"employment_years":0.8}'
)
INFER, EXPLAIN = "/v2/models/credit/infer", "/v2/models/credit/explain"
PREDICT, REASONS, DECIDE = (f"/v1/models/credit:{verb}" for verb in ("predict", "explain", "decide"))
SET, EXPLAINER = "/v2/reference-sets/r?model=credit", "/v2/models/credit/explainers/e"
LOAD, INDEX = "/v2/repository/models/credit/load", "/v2/repository/index"
TENSOR = b'{"name":"applicant","datatype":"FP32","shape":[1,10],"data":[0,0,0,0,0,0,0,0,0,0]}'


def many(piece: bytes, size: int, before: bytes = b"[", after: bytes = b"]") -> bytes:
    """`piece` again and again, in a body of about so many bytes."""
    return before + b",".join([piece] * (size // (len(piece) + 1))) + after


def members(size: int) -> bytes:
    """An object of as many members, each with a name of its own."""
    return b"{" + b",".join(b'"%d":0' % i for i in range(size // 10)) + b"}"


def instances(rows: bytes, more: bytes = b"") -> bytes:
    return b'{"instances":' + rows + more + b"}"


def inputs(text: bytes, more: bytes = b"") -> bytes:
    return b'{"inputs":' + text + more + b"}"


def archive() -> bytes:
    """An .npz of 64 KB whose array would have 64 MB."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        array = io.BytesIO()
        np.save(array, np.zeros((1_600_000, 10), np.float32))
        file.writestr("applicant.npy", array.getvalue())
    return packed.getvalue()


def claimed() -> bytes:
    """An .npy that says it has 40 TB."""
    array = io.BytesIO()
    np.save(array, np.zeros((3, 10), np.float32))
    return array.getvalue().replace(b"(3, 10), }          ", b"(1000000000000, 10), }")


@dataclass(frozen=True)
class Body:
    """What is sent, to which path, and which answers are right."""

    path: str
    make: Callable[[], bytes]
    statuses: tuple[int, ...] = (413,)
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: JSON)


MB = 1_000_000
BODIES = {
    "a million empty inputs": Body(INFER, lambda: inputs(many(b"{}", 3 * MB))),
    "5 million empty inputs": Body(INFER, lambda: inputs(many(b"{}", 15 * MB))),
    "15 million empty inputs": Body(INFER, lambda: inputs(many(b"{}", 45 * MB))),
    "a million empty outputs": Body(
        EXPLAIN, lambda: inputs(b"[" + TENSOR + b"]", b',"outputs":' + many(b"{}", 3 * MB))
    ),
    "300,000 empty inputs": Body(INFER, lambda: inputs(many(b"{}", MB)), (400,)),
    "a million parameters": Body(
        INFER, lambda: inputs(b"[" + TENSOR + b"]", b',"parameters":' + members(10 * MB)), (400,)
    ),
    "a million unknown members": Body(INFER, lambda: members(14 * MB), (400, 413)),
    "a shape of a million axes": Body(
        INFER,
        lambda: inputs(
            b'[{"name":"applicant","datatype":"FP32","shape":' + many(b"1", 2 * MB) + b',"data":[1]}]'
        ),
        (422,),
    ),
    "two million numbers too many": Body(
        INFER, lambda: inputs(b"[" + TENSOR[:-2] + b"," + many(b"0.1", 8 * MB, b"") + b"}]"), (422,)
    ),
    "lists in lists": Body(
        INFER, lambda: inputs(b"[" + TENSOR[:-22] + many(b"[0.1]", 3 * MB) + b"}]"), (422,)
    ),
    "deep lists": Body(INFER, lambda: b"[" * (15 * MB), (413,)),
    "JSON that ends early": Body(PREDICT, lambda: instances(many(ROW, 15 * MB, after=b"")), (400,)),
    "a million empty instances": Body(PREDICT, lambda: instances(many(b"{}", 3 * MB))),
    "300,000 empty instances": Body(REASONS, lambda: instances(many(b"{}", MB))),
    "instances that are numbers": Body(PREDICT, lambda: instances(many(b"1", 3 * MB))),
    "an instance of a million features": Body(PREDICT, lambda: instances(b"[" + members(14 * MB) + b"]")),
    "4 million features": Body(REASONS, lambda: instances(b"[" + members(45 * MB) + b"]")),
    "a feature given a million times": Body(
        REASONS, lambda: instances(b"[" + many(b'"income":1', 11 * MB, b"{", b"}") + b"]"), (422,)
    ),
    "a feature of two million numbers": Body(
        REASONS, lambda: instances(b'[{"income":' + many(b"0.1", 7 * MB) + b"}]"), (422,)
    ),
    "45 MB of instances": Body(PREDICT, lambda: instances(many(ROW, 45 * MB))),
    "16 MB of instances, predicted": Body(PREDICT, lambda: instances(many(ROW, 16 * MB)), (200,)),
    "16 MB of instances, explained": Body(REASONS, lambda: instances(many(ROW, 16 * MB)), (200, 504)),
    "16 MB of instances, within 60 ms": Body(
        PREDICT,
        lambda: instances(many(ROW, 16 * MB)),
        (408, 504),
        headers={**JSON, "x-request-timeout-ms": "60"},
    ),
    "16 MB of references": Body(
        REASONS, lambda: instances(b"[" + ROW + b"]", b',"references":' + many(ROW, 16 * MB)), (422,)
    ),
    "decisions on 16 MB": Body(DECIDE, lambda: instances(many(ROW, 16 * MB))),
    "decisions on 9,000 applicants": Body(DECIDE, lambda: instances(many(ROW, 9000 * 200)), (200, 504)),
    "decisions on a million features": Body(DECIDE, lambda: instances(b"[" + members(14 * MB) + b"]")),
    "an explainer of a million options": Body(EXPLAINER, lambda: members(MB), (422,), "PUT"),
    "an explainer of many groups": Body(
        EXPLAINER, lambda: b'{"groups":' + members(MB - 100) + b"}", (422,), "PUT"
    ),
    "an explainer of wrong names": Body(
        EXPLAINER, lambda: b'{"features":' + many(b"1", MB - 100) + b"}", (422,), "PUT"
    ),
    "an explainer of 64 MB": Body(EXPLAINER, lambda: members(64 * MB), (413,), "PUT"),
    "references: empty rows": Body(SET, lambda: many(b"{}", 2 * MB), (413,), "PUT"),
    "references: 2 MB of rows": Body(SET, lambda: many(ROW, 2 * MB), (201, 200), "PUT"),
    "references: commas": Body(SET, lambda: b"," * (60 * MB), (413, 422), "PUT", CSV),
    "references: short lines": Body(SET, lambda: b"1\n" * (30 * MB), (413, 422), "PUT", CSV),
    "references: a packed array": Body(SET, archive, (200, 201), "PUT", NPZ),
    "references: an array of 40 TB": Body(SET, claimed, (413, 422), "PUT", NPY),
    "an index of a million": Body(INDEX, lambda: members(14 * MB)),
    "a load of many parameters": Body(LOAD, lambda: b'{"parameters":' + members(MB - 100) + b"}", (501,)),
    "gzip of 45 MB": Body(
        PREDICT,
        lambda: gzip.compress(instances(many(ROW, 45 * MB))),
        (413,),
        headers={**JSON, "Content-Encoding": "gzip"},
    ),
}  # fmt: skip


def _number(value: int) -> bytes:
    """As protobuf writes it."""
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _number(rest) if rest else bytes([low])


def _field(number: int, content: bytes) -> bytes:
    return _number(number << 3 | 2) + _number(len(content)) + content


_NAMED = _field(1, b"credit")  # model_name
# Fields of ModelInferRequest: 4 parameters, 5 inputs (with 3 shape, 5 contents), 6 outputs, 7 raw tensors.
MESSAGES: dict[str, Callable[[], bytes]] = {
    "empty inputs": lambda: _NAMED + _field(5, b"") * (32 * MB),
    "empty outputs": lambda: _NAMED + _field(6, b"") * (32 * MB),
    "empty parameters": lambda: _NAMED + _field(4, b"") * (32 * MB),
    "empty raw tensors": lambda: _NAMED + _field(7, b"") * (32 * MB),
    "empty texts": lambda: _NAMED + _field(5, _field(5, _field(8, b"") * (30 * MB))),
    "a shape of 60 million axes": lambda: _NAMED + _field(5, _field(3, b"\1" * (60 * MB))),
    "60 million typed values": lambda: _NAMED + _field(5, _field(5, _field(3, b"\1" * (60 * MB)))),
    "7 million typed values": lambda: _NAMED + _field(5, _field(5, _field(3, b"\1" * (7 * MB)))),
    "100,000 inputs": lambda: _NAMED + _field(5, _field(1, b"x")) * 100_000,
}


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
    "60 million typed values",
    "7 million typed values",
}


def cases(names: dict[str, object]) -> list[object]:
    def mark(name: str) -> Any:
        if name not in SHORT:
            return pytest.mark.slow
        return pytest.mark.full if name in TWINS else ()

    return [pytest.param(name, marks=mark(name)) for name in names]


@dataclass(frozen=True)
class Gateway:
    http: str
    grpc: str
    process: psutil.Process

    def ask(self, body: Body, content: bytes) -> int:
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
        honest = ((Body("/v2/health/live", bytes, method="GET"), b""), (Body(REASONS, bytes), row))

        def watch() -> int:
            most = 0
            while not over.wait(0.02):
                most = max(most, self.process.memory_info().rss)
            return most

        def go_on(body: Body, content: bytes) -> float:
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
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Of the credit example with its decision profile."""
    folder = tmp_path_factory.mktemp("models")
    options = {"--references": "near_threshold.csv", "--decision": "decision.yaml"}
    given = [str(each) for name, file in options.items() for each in (name, CREDIT / file)]
    command = [
        sys.executable,
        "-m",
        "rationale_service.cli",
        "compile",
        str(CREDIT / "credit.onnx"),
        "--name",
        "credit",
    ]
    subprocess.run([*command, *given, "--repository", str(folder)], check=True, capture_output=True)
    state = str(tmp_path_factory.mktemp("state"))
    settings = {"RATIONALE_STATE": state, "RATIONALE_REQUEST_TIMEOUT_S": str(PATIENCE_S)}
    with serve("--port", "0", "--repository", str(folder), **settings) as child:
        url, lines = ready_line(child)
        yield Gateway(url.removeprefix("http://"), grpc_address(lines), psutil.Process(child.pid))


@pytest.mark.parametrize("name", cases({**BODIES}))
def test_no_body_hurts(gateway: Gateway, name: str) -> None:
    body = BODIES[name]
    content = body.make()
    with gateway.unhurt(), ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(gateway.ask, [body] * 2, [content] * 2))
    assert set(answers) <= set(body.statuses)


@pytest.mark.parametrize("name", cases({**MESSAGES}))
def test_no_message_hurts(gateway: Gateway, name: str) -> None:
    message = MESSAGES[name]()
    with gateway.unhurt(), ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(gateway.call, [message] * 2))
    assert set(answers) <= {"RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"}


def test_callers_that_take_no_answer_hurt_nobody(gateway: Gateway) -> None:
    body = instances(many(ROW, 100_000))
    lines = (f"POST {REASONS} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "\r\n")
    host, _, port = gateway.http.rpartition(":")
    with gateway.unhurt(), contextlib.ExitStack() as connections:
        for _ in range(4):
            caller = connections.enter_context(socket.create_connection((host, int(port)), timeout=0.5))
            with contextlib.suppress(TimeoutError):  # it reads no more of who takes nothing
                caller.sendall(("\r\n".join(lines).encode() + body) * 20)
