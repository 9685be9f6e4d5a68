"""`rationale serve` as users run it: a child process, from its start to its drain."""

import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from onnx import helper

from service.security import Scope, new_key
from tests.service import handmade as made
from tests.service import patient
from tests.service.child import grpc_address, ready_line, serve
from tests.service.explaining import GRADIENT, PATH, write_plain
from tests.triton import clients

SECONDS = 60


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
        with triton.InferenceServerClient(grpc_address(lines)) as client:
            assert client.is_server_ready()
        assert patient.get(f"{url}/v2/health/ready").status_code == 200
        answer = patient.post(f"{url}/v1/models/score:explain", json={"instances": made.X.tolist()}).json()
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


def test_a_grpc_port_in_use(repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (line,) = refused("--repository", str(repository), "--port", "0", "--grpc-port", str(port))
    assert line == (
        f"error: port {port} is taken: choose another with --grpc-port, or --grpc-port 0 for a free one"
    )


def test_two_gateways_do_not_share_a_grpc_port(repository: Path) -> None:
    """gRPC would let them, and clients would meet the one or the other."""
    with serve("--repository", str(repository), "--port", "0") as first:
        port = grpc_address(ready_line(first)[1]).split(":")[1]
        (line,) = refused("--repository", str(repository), "--port", "0", "--grpc-port", port)
    assert f"port {port} is taken" in line


def test_a_grpc_port_of_ones_choice_and_none(repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serve("--repository", str(repository), "--port", "0", "--grpc-port", str(port)) as child:
        assert grpc_address(ready_line(child)[1]) == f"127.0.0.1:{port}"
    with serve("--repository", str(repository), "--port", "0", "--grpc-port", "off") as child:
        _, lines = ready_line(child)
        assert not [line for line in lines if "gRPC" in line]


def test_a_grpc_port_that_is_none(repository: Path) -> None:
    (line,) = refused("--repository", str(repository), "--grpc-port", "none")
    assert line == (
        "error: setting grpc_port (RATIONALE_GRPC_PORT): 'none' must be a port, 0 for a free one, or off"
    )


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


def wait_for_requests(url: str, count: int) -> None:
    """Until that many are on their way."""
    end = time.monotonic() + SECONDS
    while f"rationale_requests_in_flight {count:.1f}" not in patient.get(f"{url}/metrics").text:
        assert time.monotonic() < end, "the requests did not arrive"
        time.sleep(0.02)


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
            answers.append(patient.post(f"{url}/v1/models/slow:predict", json=body))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_for_requests(url, 3)
        child.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert child.wait(SECONDS) == 0
    assert [answer.status_code for answer in answers] == [200] * 3
    for answer in answers:
        np.testing.assert_allclose(answer.json()["predictions"], np.ones((8, 400)), rtol=1e-3)


def test_running_grpc_calls_finish_when_the_server_stops(tmp_path: Path) -> None:
    """Ten rows are three batches: those that come after the signal run too."""
    write_slow(tmp_path)
    rows = np.ones((10, 400), np.float32)
    with serve("--repository", str(tmp_path), "--port", "0") as child:
        url, lines = ready_line(child)
        address = grpc_address(lines)
        with triton.InferenceServerClient(address) as client, ThreadPoolExecutor(2) as threads:
            given = clients.tensors(triton, {"x": rows}, None)
            calls = [threads.submit(client.infer, "slow", **given, client_timeout=SECONDS) for _ in range(2)]
            wait_for_requests(url, 2)
            assert not any(call.done() for call in calls)
            child.send_signal(signal.SIGTERM)
            for call in calls:
                np.testing.assert_allclose(call.result().as_numpy("y"), np.ones((10, 400)), rtol=1e-3)
        assert child.wait(SECONDS) == 0
        assert child.stderr.read() == ""


def test_a_stop_while_loading(tmp_path: Path) -> None:
    """SIGTERM before the server is ready ends it as cleanly as later."""
    made.write_score(tmp_path)
    with serve("--repository", str(tmp_path), "--port", "0") as child:
        time.sleep(0.4)
        child.send_signal(signal.SIGTERM)
        assert child.wait(SECONDS) in (0, -signal.SIGTERM)  # the latter before Python could listen


def begun(url: str, path: str, sent: bytes, length: int) -> socket.socket:
    """A connection that has sent the head of a request and `sent` of its body of `length` bytes."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=SECONDS)
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    connection.sendall(head.encode() + f"content-length: {length}\r\n\r\n".encode() + sent)
    return connection


def stopped_within(child: subprocess.Popen[str], seconds: float) -> float:
    began = time.monotonic()
    assert child.wait(SECONDS) == 0
    took = time.monotonic() - began
    assert took < seconds, f"{took:.1f} s"
    return took


def test_unready_then_refusing_then_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First unready and answering, for load balancers; then it refuses what is new and answers the rest."""
    write_slow(tmp_path)
    made.write_score(tmp_path)
    monkeypatch.setenv("RATIONALE_SHUTDOWN_DELAY_S", "1.5")
    body = {"instances": [[1.0] * 400] * 40}  # on a fast machine, too, longer than the delay
    score = {"instances": made.X.tolist()}
    with (
        serve("--repository", str(tmp_path), "--port", "0") as child,
        ThreadPoolExecutor(1) as threads,
        httpx.Client(timeout=SECONDS) as client,
    ):
        url, lines = ready_line(child)
        client.base_url = httpx.URL(url)
        post = client.post
        child.send_signal(signal.SIGTERM)
        assert became(lambda: patient.get(f"{url}/v2/health/ready").status_code == 503)
        assert "about to stop" in patient.get(f"{url}/v2/health/ready").text
        assert patient.get(f"{url}/v2/health/live").status_code == 200
        assert post("/v1/models/score:predict", json=score).status_code == 200
        with triton.InferenceServerClient(grpc_address(lines)) as grpc_client:
            assert grpc_client.is_server_live()
            assert not grpc_client.is_server_ready()
        slow = threads.submit(post, "/v1/models/slow:predict", json=body)
        wait_for_requests(url, 1)
        assert became(lambda: post("/v1/models/score:predict", json=score).status_code == 503)
        refusal = post("/v1/models/score:predict", json=score)
        assert (refusal.status_code, refusal.headers["retry-after"]) == (503, "1")
        assert not slow.done()
        assert slow.result().status_code == 200
        assert child.wait(SECONDS) == 0


def became(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + SECONDS
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_a_client_that_stands_still_does_not_hold_the_stop(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATIONALE_DRAIN_TIMEOUT_S", "1")
    with serve("--repository", str(repository), "--port", "0") as child:
        url, _ = ready_line(child)
        with begun(url, "/v2/models/score/infer", b'{"inputs', 1000):
            wait_for_requests(url, 1)
            child.send_signal(signal.SIGTERM)
            stopped_within(child, 20)


def test_a_second_signal_gives_up_what_runs(repository: Path) -> None:
    with serve("--repository", str(repository), "--port", "0") as child:
        url, _ = ready_line(child)
        with begun(url, "/v2/models/score/infer", b'{"inputs', 1000):
            wait_for_requests(url, 1)
            child.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert child.poll() is None
            child.send_signal(signal.SIGTERM)
            stopped_within(child, 20)  # the drain would last 30


def test_the_admin_port(repository: Path) -> None:
    """Its routes are there alone; so is what Prometheus asks for."""
    with serve("--repository", str(repository), "--port", "0", "--admin-port", "0") as child:
        url, lines = ready_line(child)
        (admin,) = (line.removeprefix("admin API on ") for line in lines if line.startswith("admin API on "))
        statuses = {
            path: [patient.get(end + path).status_code for end in (url, admin)]
            for path in (
                "/metrics",
                "/v2/models/score/explainers",
                "/v2/models/score",
                "/v2/health/ready",
                "/v2/health/live",
            )
        }
        assert statuses == {
            "/metrics": [404, 200],
            "/v2/models/score/explainers": [404, 200],
            "/v2/models/score": [200, 404],
            "/v2/health/ready": [200, 200],
            "/v2/health/live": [200, 200],
        }
        page = patient.get(f"{admin}/metrics").text
        assert "rationale_ready 1.0" in page
        assert 'rationale_requests_total{model="",protocol="http",status="404",verb=""}' in page
        (cold_start,) = re.findall(r"^rationale_cold_start_seconds (\S+)$", page, re.MULTILINE)
        assert 0 < float(cold_start) < SECONDS
        child.send_signal(signal.SIGTERM)
        assert child.wait(SECONDS) == 0


def test_an_admin_port_in_use(repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (line,) = refused("--repository", str(repository), "--port", "0", "--admin-port", port)
    assert f"port {port} is taken: choose another with --admin-port" in line


def test_keys_that_change_while_serving(tmp_path: Path, repository: Path) -> None:
    """A key that is taken out of the file is refused within seconds; no restart."""
    file = tmp_path / "keys.toml"
    token, table = new_key("app", [Scope.INFER], None)
    file.write_text(table)
    with serve("--repository", str(repository), "--port", "0", "--keys-file", str(file)) as child:
        url, _ = ready_line(child)

        def status(sent: str) -> int:
            ask = {"instances": made.X.tolist()}
            return patient.post(
                f"{url}/v1/models/score:predict", json=ask, headers={"x-api-key": sent}
            ).status_code

        assert status(token) == 200
        other, table = new_key("other", [Scope.INFER], None)
        file.write_text(table)
        assert became(lambda: status(token) == 401)
        assert status(other) == 200


def test_the_network_is_warned_of(repository: Path) -> None:
    with serve("--repository", str(repository), "--port", "0", "--host", "0.0.0.0") as child:  # noqa: S104
        for line in child.stdout:
            if line.startswith("ready on"):
                break
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=SECONDS)
    assert "everybody who reaches 0.0.0.0 may predict and explain" in err
    assert "the admin API is closed on 0.0.0.0" in err


def test_a_stop_during_a_compile(tmp_path: Path) -> None:
    """The worker ends with the gateway, and the repository is as it was."""
    models = tmp_path / "models"
    write_plain(models)
    with serve("--repository", str(models), "--port", "0") as child:
        url, _ = ready_line(child)
        asked = patient.put(f"{url}{PATH}/one", json=GRADIENT)
        assert asked.status_code == 202
        assert became(lambda: patient.get(f"{url}{PATH}/one").json()["state"] == "compiling")
        child.send_signal(signal.SIGTERM)
        assert child.wait(SECONDS) == 0
        assert sorted(path.name for path in models.iterdir()) == ["score"]
    assert became(lambda: str(tmp_path) not in commands())


def commands() -> str:
    """The command lines of all processes of this machine."""
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
