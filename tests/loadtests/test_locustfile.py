"""locust with our locustfile: against the gateway, and against a server whose answers are none."""

import csv
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from loadtests.systems.process import Server, gateway

pytestmark = pytest.mark.full

LOCUSTFILE = Path(__file__).parents[2] / "loadtests" / "locustfile.py"
MODELS = Path(__file__).parents[2] / "model_repository"
LOGGED = "stats", "failures"


def locust(folder: Path, host: str, *arguments: str, status: int = 0) -> tuple[Any, ...]:
    """The rows of its statistics and of its failures."""
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", host, "--headless"]
    command += ["--only-summary", "--csv", str(folder / "run"), "--users", "6", "--spawn-rate", "100"]
    process = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
    assert process.returncode == status, process.stderr
    files = [folder / f"run_{name}.csv" for name in LOGGED]
    return (*(list(csv.DictReader(path.read_text().splitlines())) for path in files), process.stderr)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with gateway(MODELS) as started:
        yield started


def test_every_kind_of_user_asks_every_model_and_nothing_is_wrong(server: Server, tmp_path: Path) -> None:
    arguments = ("--run-time", "2s", "--rows", "3", "--grpc", str(server.grpc))
    stats, failures, _ = locust(tmp_path, f"http://{server.http}", *arguments)
    assert not failures
    request_counts = {(row["Type"], row["Name"]): int(row["Request Count"]) for row in stats if row["Type"]}
    assert set(request_counts) == set(
        itertools.product(("JSON", "binary", "gRPC"), ("predict credit", "explain credit"))
    )
    assert min(request_counts.values()) > 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "debit,credit"], "no model debit is ready; those are: credit"),
        (["GrpcUser"], "GrpcUser needs --grpc HOST:PORT"),
    ],
)
def test_what_cannot_be_asked_ends_the_run(
    server: Server, tmp_path: Path, arguments: list[str], message: str
) -> None:
    *_, error = locust(tmp_path, f"http://{server.http}", "--run-time", "60s", *arguments, status=2)
    assert message in error


def test_a_server_that_is_none_ends_the_run(tmp_path: Path) -> None:
    *_, message = locust(tmp_path, "http://127.0.0.1:9", "--run-time", "60s", status=2)
    assert "which models" in message


# --- answers that are none ----------------------------------------------------------------------------

ABOUT = {
    "": {"name": "fake", "extensions": []},
    "/repository/index": [{"name": "a", "state": "READY"}, {"name": "b", "state": "UNAVAILABLE"}],
    "/models/a": {
        "inputs": [{"name": "x", "datatype": "INT64", "shape": [-1, -1]}],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
        ],
    },
}


def answer(y: list[list[float]], *names: str) -> bytes:
    """One in binary, with these outputs."""
    raw = {"y": np.asarray(y, np.float32).tobytes(), "label": b"\1\0\0\0g" * len(y)}
    about = {"y": ("FP32", [len(y), len(y[0])]), "label": ("BYTES", [len(y)])}
    outputs = [
        {
            "name": name,
            "datatype": about[name][0],
            "shape": about[name][1],
            "parameters": {"binary_data_size": len(raw[name])},
        }
        for name in names
    ]
    head = json.dumps({"outputs": outputs}).encode()
    return len(head).to_bytes(2, "big") + head + b"".join(raw[name] for name in names)


GOOD = [[0.25, 0.75], [1.0, 2.0]]
ANSWERS = {
    "": answer(GOOD, "y", "label"),
    "label is missing": answer(GOOD, "y"),
    "y has another shape": answer(GOOD[:1], "y", "label"),
    "y is not finite": answer([[0.25, np.nan], [1.0, 2.0]], "y", "label"),
    "the answer cannot be read": b"\0\3abc",
    "HTTP 429": None,
}


@pytest.fixture
def fake() -> Iterator[str]:
    """A server that gives each of the answers in turn."""
    answers = itertools.cycle(ANSWERS.values())

    class FaultyHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.tell(200, json.dumps(ABOUT[self.path.removeprefix("/v2")]).encode())

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.endswith("index"):
                return self.do_GET()
            head = json.loads(sent[: int(self.headers["Inference-Header-Content-Length"])])
            assert head["inputs"][0]["shape"] == [2, 8]
            body = next(answers)
            if body is None:
                return self.tell(429, b"busy")
            return self.tell(200, body[2:], int.from_bytes(body[:2], "big"))

        def tell(self, status: int, body: bytes, head: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if head is not None:
                self.send_header("Inference-Header-Content-Length", str(head))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), FaultyHandler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_every_fault_is_a_failure_with_its_name(fake: str, tmp_path: Path) -> None:
    """Of a plain server too, which has no explanations; what is not ready is not asked."""
    arguments = ("BinaryUser", "--run-time", "1s", "--rows", "2")
    stats, failures, _ = locust(tmp_path, fake, *arguments, status=1)
    assert {row["Name"] for row in stats if row["Type"]} == {"predict a"}
    failure_counts = Counter({row["Error"]: int(row["Occurrences"]) for row in failures})
    for fault in filter(None, ANSWERS):
        assert sum(count for error, count in failure_counts.items() if fault in error) > 1, fault
    assert len(failure_counts) == len(ANSWERS) - 1
