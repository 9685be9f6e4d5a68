"""`rationale serve` as users run it: a child process, from its start to its drain."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from onnx import helper

from tests.service import handmade as made

SECONDS = 60


@contextlib.contextmanager
def serve(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "service.cli", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def ready_line(child: subprocess.Popen[str]) -> tuple[str, list[str]]:
    """The address, and the lines before."""
    lines: list[str] = []
    for line in child.stdout:
        found = re.fullmatch(r"ready on (http://127\.0\.0\.1:\d+)\n", line)
        if found:
            return found[1], lines
        lines.append(line.rstrip())
    raise AssertionError(f"never ready: {lines} {child.stderr.read()}")


def refused(*arguments: str) -> list[str]:
    """What a start that fails prints on stderr."""
    with serve(*arguments) as child:
        out, err = child.communicate(timeout=SECONDS)
    assert (child.returncode, out) == (2, "")
    assert "Traceback" not in err
    return err.splitlines()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_announces_and_ends_with_status_0(repository: Path, number: signal.Signals) -> None:
    with serve("--repository", str(repository), "--port", "0") as child:
        url, lines = ready_line(child)
        assert "model score_explain: explains score by deepshap" in lines
        assert "model typed" in lines
        assert httpx.get(f"{url}/v2/health/ready").status_code == 200
        answer = httpx.post(f"{url}/v1/models/score:explain", json={"instances": made.X.tolist()}).json()
        np.testing.assert_allclose(answer["predictions"], made.predict(made.X), rtol=1e-6)
        child.send_signal(number)
        assert child.wait(SECONDS) == 0
        assert child.stderr.read() == ""


def test_a_missing_folder(tmp_path: Path) -> None:
    (line,) = refused("--repository", str(tmp_path / "absent"))
    assert "there is no such folder" in line


def test_a_broken_entry_stops_the_start(tmp_path: Path) -> None:
    made.write_score(tmp_path)
    (tmp_path / "score" / "1" / "model.onnx").write_bytes(b"no model")
    (line,) = refused("--repository", str(tmp_path), "--port", "0")
    assert "score/1/model.onnx: ONNX Runtime cannot load it" in line


def test_a_port_in_use(repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (line,) = refused("--repository", str(repository), "--port", str(port))
    assert f"port {port} is taken" in line


def test_a_host_that_is_not_ours(repository: Path) -> None:
    (line,) = refused("--repository", str(repository), "--host", "192.0.2.1", "--port", "0")
    assert "cannot listen on 192.0.2.1" in line


def test_no_triton(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "127.0.0.1:{1}".format(*silent.getsockname())
    monkeypatch.setenv("RATIONALE_TRITON_WAIT_S", "0.5")
    (line,) = refused("--repository", str(repository), "--triton", address, "--port", "0")
    assert line == (
        f"error: no Triton answered at {address} within 0.5 s. Is that its gRPC port (8001 by default), "
        "and has it started?"
    )


def test_a_setting_that_makes_no_sense(repository: Path) -> None:
    (line,) = refused("--repository", str(repository), "--triton", "localhost")
    assert line.startswith(
        "error: setting triton (RATIONALE_TRITON): 'localhost' must be host:port of Triton's gRPC end"
    )


def write_slow(repository: Path) -> None:
    """A model that takes a while: y = A·A·…·x with a matrix large enough."""
    size, steps = 400, 120
    matrix = np.full((size, size), 1 / size, np.float32)
    nodes = [helper.make_node("MatMul", [f"h{i}", "A"], [f"h{i + 1}"]) for i in range(steps)]
    start = [
        helper.make_node("Unsqueeze", ["x", "one"], ["x1"]),
        helper.make_node("Expand", ["x1", "wide"], ["h0"]),
    ]
    end = [helper.make_node("ReduceMean", [f"h{steps}", "axes"], ["y"], keepdims=0)]
    constants = {
        "A": matrix,
        "one": np.array([1]),
        "wide": np.array([1, size, size]),
        "axes": np.array([1]),
    }
    made.write_entry(
        repository,
        "slow",
        [*start, *nodes, *end],
        [made.spec("x", "FP32", size)],
        [made.spec("y", "FP32", size)],
        constants,
    )


def test_running_requests_finish_when_the_server_stops(tmp_path: Path) -> None:
    write_slow(tmp_path)
    row = [1.0] * 400
    answers: list[httpx.Response] = []
    with serve("--repository", str(tmp_path), "--port", "0") as child:
        url, _ = ready_line(child)
        body = {"instances": [row] * 8}

        def ask() -> None:
            answers.append(httpx.post(f"{url}/v1/models/slow:predict", json=body, timeout=SECONDS))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        child.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert child.wait(SECONDS) == 0
    assert [answer.status_code for answer in answers] == [200] * 3
    for answer in answers:
        np.testing.assert_allclose(answer.json()["predictions"], np.ones((8, 400)), rtol=1e-3)


def test_a_stop_while_loading(tmp_path: Path) -> None:
    """SIGTERM before the server is ready ends it as cleanly as later."""
    made.write_score(tmp_path)
    with serve("--repository", str(tmp_path), "--port", "0") as child:
        time.sleep(0.4)
        child.send_signal(signal.SIGTERM)
        assert child.wait(SECONDS) in (0, -signal.SIGTERM)  # the latter before Python could listen
