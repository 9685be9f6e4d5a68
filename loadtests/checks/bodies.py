"""Bodies that cost more than they weigh, at each route that reads some: see `loadtests.checks.hostile`."""

import contextlib
import gzip
import io
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from loadtests.load import raw
from loadtests.systems import models
from loadtests.systems.process import Server, gateway, memory_watched

EXAMPLE = Path("examples/credit")
MEMORY = 1 << 30  # bytes, as a small container has
# Control groups of version 1 and 2, and what bounds the memory of one.
_GROUPS = {
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}
MOST_GROWN = 300_000_000
WITHIN_S = 1.0
JSON, _CSV, _NPZ, _NPY = (
    {"Content-Type": kind}
    for kind in ("application/json", "text/csv", "application/x-npz", "application/x-npy")
)
_BETWEEN_S = 0.02
_TIMEOUT_S = 120.0
_ROW = (
    b'{"income":24500,"loan_amount":15000,"term_months":60,"debt_to_income":0.52,"credit_history_years":3.5,'
    b'"late_payments_2y":3,"open_accounts":4,"utilisation":0.91,"recent_inquiries":4,"employment_years":0.8}'
)
_INFER, _EXPLAIN = "/v2/models/credit/infer", "/v2/models/credit/explain"
_PREDICT, _REASONS, _DECIDE = (f"/v1/models/credit:{verb}" for verb in ("predict", "explain", "decide"))
_SET, _EXPLAINER = "/v2/reference-sets/r?model=credit", "/v2/models/credit/explainers/e"
_LOAD, _INDEX = "/v2/repository/models/credit/load", "/v2/repository/index"
_TENSOR = b'{"name":"applicant","datatype":"FP32","shape":[1,10],"data":[0,0,0,0,0,0,0,0,0,0]}'


def write_credit(repository: Path) -> None:
    """The credit example, with its decision profile."""
    given = {
        "--references": EXAMPLE / "near_threshold.csv",
        "--decision": EXAMPLE / "decision.yaml",
        "--name": models.CREDIT,
        "--repository": repository,
    }
    options = [str(each) for pair in given.items() for each in pair]
    command = [sys.executable, "-m", "service.cli", "compile", str(EXAMPLE / "credit.onnx"), *options]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 (a command of ours)


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


_MB = 1_000_000
BODIES = {
    "a million empty inputs": Body(_INFER, lambda: inputs(many(b"{}", 3 * _MB))),
    "5 million empty inputs": Body(_INFER, lambda: inputs(many(b"{}", 15 * _MB))),
    "15 million empty inputs": Body(_INFER, lambda: inputs(many(b"{}", 45 * _MB))),
    "a million empty outputs": Body(
        _EXPLAIN, lambda: inputs(b"[" + _TENSOR + b"]", b',"outputs":' + many(b"{}", 3 * _MB))
    ),
    "300,000 empty inputs": Body(_INFER, lambda: inputs(many(b"{}", _MB)), (400,)),
    "a million parameters": Body(
        _INFER, lambda: inputs(b"[" + _TENSOR + b"]", b',"parameters":' + members(10 * _MB)), (400,)
    ),
    "a million unknown members": Body(_INFER, lambda: members(14 * _MB), (400, 413)),
    "a shape of a million axes": Body(
        _INFER,
        lambda: inputs(
            b'[{"name":"applicant","datatype":"FP32","shape":' + many(b"1", 2 * _MB) + b',"data":[1]}]'
        ),
        (422,),
    ),
    "two million numbers too many": Body(
        _INFER, lambda: inputs(b"[" + _TENSOR[:-2] + b"," + many(b"0.1", 8 * _MB, b"") + b"}]"), (422,)
    ),
    "lists in lists": Body(
        _INFER, lambda: inputs(b"[" + _TENSOR[:-22] + many(b"[0.1]", 3 * _MB) + b"}]"), (422,)
    ),
    "deep lists": Body(_INFER, lambda: b"[" * (15 * _MB), (413,)),
    "JSON that ends early": Body(_PREDICT, lambda: instances(many(_ROW, 15 * _MB, after=b"")), (400,)),
    "a million empty instances": Body(_PREDICT, lambda: instances(many(b"{}", 3 * _MB))),
    "300,000 empty instances": Body(_REASONS, lambda: instances(many(b"{}", _MB))),
    "instances that are numbers": Body(_PREDICT, lambda: instances(many(b"1", 3 * _MB))),
    "an instance of a million features": Body(_PREDICT, lambda: instances(b"[" + members(14 * _MB) + b"]")),
    "4 million features": Body(_REASONS, lambda: instances(b"[" + members(45 * _MB) + b"]")),
    "a feature given a million times": Body(
        _REASONS, lambda: instances(b"[" + many(b'"income":1', 11 * _MB, b"{", b"}") + b"]"), (422,)
    ),
    "a feature of two million numbers": Body(
        _REASONS, lambda: instances(b'[{"income":' + many(b"0.1", 7 * _MB) + b"}]"), (422,)
    ),
    "45 MB of instances": Body(_PREDICT, lambda: instances(many(_ROW, 45 * _MB))),
    "16 MB of instances, predicted": Body(_PREDICT, lambda: instances(many(_ROW, 16 * _MB)), (200,)),
    "16 MB of instances, explained": Body(_REASONS, lambda: instances(many(_ROW, 16 * _MB)), (200, 504)),
    "16 MB of instances, within 60 ms": Body(
        _PREDICT,
        lambda: instances(many(_ROW, 16 * _MB)),
        (408, 504),
        headers={**JSON, "x-request-timeout-ms": "60"},
    ),
    "16 MB of references": Body(
        _REASONS, lambda: instances(b"[" + _ROW + b"]", b',"references":' + many(_ROW, 16 * _MB)), (422,)
    ),
    "decisions on 16 MB": Body(_DECIDE, lambda: instances(many(_ROW, 16 * _MB))),
    "decisions on 9,000 applicants": Body(_DECIDE, lambda: instances(many(_ROW, 9000 * 200)), (200, 504)),
    "decisions on a million features": Body(_DECIDE, lambda: instances(b"[" + members(14 * _MB) + b"]")),
    "an explainer of a million options": Body(_EXPLAINER, lambda: members(_MB), (422,), "PUT"),
    "an explainer of many groups": Body(
        _EXPLAINER, lambda: b'{"groups":' + members(_MB - 100) + b"}", (422,), "PUT"
    ),
    "an explainer of wrong names": Body(
        _EXPLAINER, lambda: b'{"features":' + many(b"1", _MB - 100) + b"}", (422,), "PUT"
    ),
    "an explainer of 64 MB": Body(_EXPLAINER, lambda: members(64 * _MB), (413,), "PUT"),
    "references: empty rows": Body(_SET, lambda: many(b"{}", 2 * _MB), (413,), "PUT"),
    "references: 2 MB of rows": Body(_SET, lambda: many(_ROW, 2 * _MB), (201, 200), "PUT"),
    "references: commas": Body(_SET, lambda: b"," * (60 * _MB), (413, 422), "PUT", _CSV),
    "references: short lines": Body(_SET, lambda: b"1\n" * (30 * _MB), (413, 422), "PUT", _CSV),
    "references: a packed array": Body(_SET, archive, (200, 201), "PUT", _NPZ),
    "references: an array of 40 TB": Body(_SET, claimed, (413, 422), "PUT", _NPY),
    "an index of a million": Body(_INDEX, lambda: members(14 * _MB)),
    "a load of many parameters": Body(_LOAD, lambda: b'{"parameters":' + members(_MB - 100) + b"}", (501,)),
    "gzip of 45 MB": Body(
        _PREDICT,
        lambda: gzip.compress(instances(many(_ROW, 45 * _MB))),
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
    "empty inputs": lambda: _NAMED + _field(5, b"") * (32 * _MB),
    "empty outputs": lambda: _NAMED + _field(6, b"") * (32 * _MB),
    "empty parameters": lambda: _NAMED + _field(4, b"") * (32 * _MB),
    "empty raw tensors": lambda: _NAMED + _field(7, b"") * (32 * _MB),
    "empty texts": lambda: _NAMED + _field(5, _field(5, _field(8, b"") * (30 * _MB))),
    "a shape of 60 million axes": lambda: _NAMED + _field(5, _field(3, b"\1" * (60 * _MB))),
    "60 million typed values": lambda: _NAMED + _field(5, _field(5, _field(3, b"\1" * (60 * _MB)))),
    "7 million typed values": lambda: _NAMED + _field(5, _field(5, _field(3, b"\1" * (7 * _MB)))),
    "100,000 inputs": lambda: _NAMED + _field(5, _field(1, b"x")) * 100_000,
}


def sent_by_grpc(address: str, message: bytes) -> str:
    """The name of the status."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=bytes,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        try:
            call(message, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def sent_by_http(address: str, body: Body, content: bytes) -> str:
    """The status, or how the connection ended."""
    with contextlib.closing(HTTPConnection(address, timeout=_TIMEOUT_S)) as connection:
        try:
            # An answer may come, and the connection close, before the whole body is there.
            with contextlib.suppress(ConnectionError):
                connection.request(body.method, body.path, content, body.headers)
            return str(connection.getresponse().status)
        except (OSError, HTTPException) as error:
            return type(error).__name__


@dataclass(frozen=True)
class Cost:
    """What a body did: its answers, the longest that liveness and an honest call took, and the memory."""

    answers: tuple[str, ...]
    live_s: float
    honest_s: float
    failed: tuple[str, ...]
    grown: int

    def faults(self, right: tuple[str, ...]) -> list[str]:
        """What of it must not be."""
        found = [f"answered {each}, not {' or '.join(right)}" for each in self.answers if each not in right]
        found += self.failed[:3]
        if self.live_s > WITHIN_S:
            found.append(f"liveness took {self.live_s:.2f} s")
        if self.grown > MOST_GROWN:
            found.append(f"the memory grew by {self.grown / 1e6:.0f} MB")
        return found


@contextlib.contextmanager
def limited(pid: int) -> Iterator[bool]:
    """Within it the process has the memory of a small container, and is killed where it wants more.

    Gives whether that can be done here: it takes root, and control groups that may be written.
    """
    for root, limit in _GROUPS.items():
        group = root / f"rationale-{pid}"
        if not (root / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
            (group / limit).write_text(str(MEMORY))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        try:
            yield True
        finally:
            _leave(group, root)
        return
    yield False


def _leave(group: Path, root: Path) -> None:
    """Moves who is in a group out of it, compiles that were begun too, and removes it."""
    end_s = time.monotonic() + _TIMEOUT_S
    while group.exists() and time.monotonic() < end_s:
        for member in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                (root / "cgroup.procs").write_text(member)
        with contextlib.suppress(OSError):  # one was begun meanwhile
            group.rmdir()
        time.sleep(_BETWEEN_S)


class _Asked:
    """Asks one thing again and again, in a thread, while a `with` runs."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_s = 0.0
        self.failed: list[str] = []

    def _run(self) -> None:
        while not self._over.wait(_BETWEEN_S):
            began_s = time.perf_counter()
            try:
                self._ask()
            except (OSError, HTTPException, RuntimeError) as error:
                self.failed.append(f"{type(error).__name__}: {error}")
            self.longest_s = max(self.longest_s, time.perf_counter() - began_s)

    def __enter__(self) -> "_Asked":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def cost(server: Server, send: Callable[[], str], connections: int = 2) -> Cost:
    """What it costs when `send` is called by so many at a time."""
    answers: list[str] = []
    senders = [threading.Thread(target=lambda: answers.append(send())) for _ in range(connections)]
    live = HTTPConnection(server.http, timeout=_TIMEOUT_S)
    honest = HTTPConnection(server.http, timeout=_TIMEOUT_S)
    row = instances(b"[" + _ROW + b"]")
    with (
        contextlib.closing(live),
        contextlib.closing(honest),
        memory_watched(server) as memory,
        _Asked(lambda: _expect_ok(live, "GET", "/v2/health/live", None)) as lives,
        _Asked(lambda: _expect_ok(honest, "POST", _REASONS, row)) as asked,
    ):
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        time.sleep(2 * _BETWEEN_S)
    grown = max(memory) - memory[0]
    return Cost(tuple(answers), lives.longest_s, asked.longest_s, (*lives.failed, *asked.failed), grown)


def _expect_ok(connection: HTTPConnection, method: str, path: str, body: bytes | None) -> None:
    connection.request(method, path, body, JSON)
    reply = connection.getresponse()
    said = reply.read()
    if reply.status != raw.OK:
        raise RuntimeError(f"{path} was answered with {reply.status}: {said[:200]!r}")


def names() -> list[str]:
    """Of all that `cases` gives."""
    return [*BODIES, *(f"{name}, grpc" for name in MESSAGES)]


def case(server: Server, name: str) -> tuple[Callable[[], str], tuple[str, ...]]:
    """What sends a body, and what is right to answer."""
    if name in BODIES:
        body = BODIES[name]
        content = body.make()
        return lambda: sent_by_http(server.http, body, content), tuple(map(str, body.statuses))
    message = MESSAGES[name.removesuffix(", grpc")]()
    return lambda: sent_by_grpc(server.grpc or "", message), ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT")


def check(only: Collection[str]) -> bool:
    """Prints a line for each body, and says whether one was too much."""
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        write_credit(Path(folder) / "models")
        with gateway(Path(folder) / "models") as server, limited(server.pid) as is_limited:
            print(
                f"{'a body, from 2 connections':38} {'answered':>24} {'live':>7} {'honest':>7} {'memory':>8}"
            )
            if not is_limited:
                print("its memory cannot be limited here: watched alone")
            for name in only:
                send, right = case(server, name)
                found = cost(server, send)
                faults = found.faults(right)
                failed |= bool(faults)
                answered = "/".join(sorted(set(found.answers)))
                took = f"{found.live_s:5.2f} s {found.honest_s:5.2f} s {found.grown / 1e6:5.0f} MB"
                print(f"{name:38} {answered:>24} {took}", *faults, sep="\n  ", flush=True)
    return failed
