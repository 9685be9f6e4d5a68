"""`rationale serve` as users run it: a child process, from its start to its drain."""

import contextlib
import http.client
import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

from rationale.distribution import version
from rationale_service.security.keys import Scope, new_key
from tests.service import handmade, patient
from tests.service.child import (
    SECONDS,
    Child,
    admin_address,
    grpc_address,
    ready_line,
    serve,
    spare_ports,
    until,
)
from tests.service.own_time import TICK_S
from tests.triton import clients


def test_entries_of_another_version_are_named(tmp_path: Path) -> None:
    handmade.write_score(tmp_path)
    manifest = tmp_path / "score_explain" / "explanation.json"
    fields = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**fields, "tools": {"rationale": "0.0.1"}}))
    with serve("--repository", str(tmp_path), "--port", "0") as child:
        _, lines = ready_line(child)
    (named,) = (line for line in lines if line.startswith("entries that"))
    assert f"are served by {version()}: score_explain (by 0.0.1). " in named


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
        answer = patient.post(
            f"{url}/v1/models/score:explain", json={"instances": handmade.X.tolist()}
        ).json()
        np.testing.assert_allclose(answer["predictions"], handmade.predict(handmade.X), rtol=1e-6)
        expected = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        assert patient.get(f"{url}/v2/health/live", headers=expected).status_code == 200  # and not logged
        child.send_signal(number)
        assert child.wait(SECONDS) == 0
        assert child.stderr.read() == ""


@pytest.mark.full
def test_a_missing_folder(tmp_path: Path) -> None:
    (line,) = refused("--repository", str(tmp_path / "absent"))
    assert "such folder" in line


@pytest.mark.full
def test_two_gateways_do_not_share_a_grpc_port(repository: Path) -> None:
    """gRPC would let them, and clients would meet the one or the other."""
    with serve("--repository", str(repository), "--port", "0") as first:
        port = grpc_address(ready_line(first)[1]).split(":")[1]
        (line,) = refused("--repository", str(repository), "--port", "0", "--grpc-port", port)
    assert f"port {port} is taken" in line


@pytest.mark.full
def test_all_ports_that_a_second_gateway_lacks_are_told_at_once(repository: Path) -> None:
    with contextlib.ExitStack() as sockets:
        names = ("port", "admin-port", "grpc-port")
        sockets_by_name = {
            name: sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for name in names
        }
        ports = {name: each.getsockname()[1] for name, each in sockets_by_name.items()}
        flags = [f"--{name}={port}" for name, port in ports.items()]
        lines = refused("--repository", str(repository), *flags)
    assert "\n".join(lines) == "error: " + "\n".join(
        f"port {port} is taken, perhaps by another gateway: choose one with --{name} or "
        f"RATIONALE_{name.replace('-', '_').upper()} (0 takes a free one)"
        for name, port in ports.items()
    )


@pytest.mark.full
def test_a_grpc_port_of_ones_choice_and_none(repository: Path) -> None:
    (port,) = spare_ports(1)
    with serve("--repository", str(repository), "--port", "0", "--grpc-port", str(port)) as child:
        assert grpc_address(ready_line(child)[1]) == f"127.0.0.1:{port}"
    with serve("--repository", str(repository), "--port", "0", "--grpc-port", "off") as child:
        _, lines = ready_line(child)
        assert not [line for line in lines if "gRPC" in line]


@pytest.mark.full
def test_a_host_that_is_not_ours(repository: Path) -> None:
    (line,) = refused("--repository", str(repository), "--host", "192.0.2.1", "--port", "0")
    assert "192.0.2.1" in line


def test_no_triton(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "127.0.0.1:{1}".format(*silent.getsockname())
    monkeypatch.setenv("RATIONALE_TRITON_WAIT_S", "0.5")
    (line,) = refused("--repository", str(repository), "--triton", address, "--port", "0")
    assert line.startswith(f"error: no Triton answered at {address} within 0.5 s.")


@pytest.mark.full
def test_a_setting_that_makes_no_sense(repository: Path) -> None:
    (line,) = refused("--repository", str(repository), "--triton", "localhost")
    assert line.startswith(
        "error: setting triton (RATIONALE_TRITON): 'localhost' must be host:port of Triton's gRPC port"
    )


def wait_for_requests(url: str, count: int) -> None:
    """Until that many are on their way."""
    until(lambda: f"rationale_requests_in_flight {count:.1f}" in patient.get(f"{url}/metrics").text)


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[tuple[Child, Path]]:
    """A gateway that explains when the file is there."""
    handmade.write_score(folder / "models")
    gate = folder / "gate"
    arguments = ("--repository", str(folder / "models"), "--port", "0")
    with serve(*arguments, by=("tests.service.scheduling.gated", str(gate))) as child:
        yield child, gate


@pytest.fixture
def patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a request nor a stop is given up, however long a busy machine takes to get there."""
    monkeypatch.setenv("RATIONALE_REQUEST_TIMEOUT_S", "600")
    monkeypatch.setenv("RATIONALE_DRAIN_TIMEOUT_S", "600")


def is_unready(url: str) -> bool:
    """It is stopping, and still there."""
    return patient.get(f"{url}/v2/health/ready").status_code == 503


def listens(url: str) -> bool:
    """It takes connections."""
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
    except ConnectionError:
        return False
    return True


def connections_until_it_refuses(url: str, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Connections that have asked nothing, the last of them made a moment before no more are taken."""
    host, port = url.removeprefix("http://").split(":")
    connections: list[socket.socket] = []

    def refuses() -> bool:
        try:
            connections.append(
                stack.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))
            )
        except ConnectionError:
            return True
        return False

    until(refuses)
    return connections[:-1]  # that one the gateway may not have seen


def ask_late(connection: socket.socket, path: str, body: object) -> http.client.HTTPResponse:
    time.sleep(0.1)
    client = http.client.HTTPConnection("127.0.0.1")
    client.sock = connection
    client.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = client.getresponse()
    answer.read()
    return answer


@pytest.mark.usefixtures("patiently")
def test_running_requests_finish_when_the_server_stops(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as threads, holding(tmp_path) as (child, gate):
        url, _ = ready_line(child)
        body = {"instances": handmade.X.tolist()}
        responses = [
            threads.submit(patient.post, f"{url}/v1/models/score:explain", json=body) for _ in range(3)
        ]
        wait_for_requests(url, 3)
        child.send_signal(signal.SIGTERM)
        until(lambda: not listens(url))
        assert not any(answer.done() for answer in responses)
        gate.touch()
        for answer in responses:
            assert answer.result().status_code == 200
            predictions = answer.result().json()["predictions"]
            np.testing.assert_allclose(predictions, handmade.predict(handmade.X), rtol=1e-6)
        assert child.wait(SECONDS) == 0


@pytest.mark.full
@pytest.mark.usefixtures("patiently")
def test_running_grpc_calls_finish_when_the_server_stops(tmp_path: Path) -> None:
    """Ten rows are five batches: those that come after the signal run too."""
    rows = np.tile(handmade.X, (2, 1))
    with holding(tmp_path) as (child, gate):
        url, lines = ready_line(child)
        address = grpc_address(lines)
        with triton.InferenceServerClient(address) as client, ThreadPoolExecutor(2) as threads:
            input_tensors = clients.tensors(triton, {"x": rows}, None)
            calls = [
                threads.submit(client.infer, "score_explain", **input_tensors, client_timeout=SECONDS)
                for _ in range(2)
            ]
            wait_for_requests(url, 2)
            child.send_signal(signal.SIGTERM)
            until(lambda: not listens(url))
            assert not any(call.done() for call in calls)
            gate.touch()
            for call in calls:
                np.testing.assert_allclose(call.result().as_numpy("y"), handmade.predict(rows), rtol=1e-6)
        assert child.wait(SECONDS) == 0
        assert child.stderr.read() == ""


@pytest.mark.full
def test_a_stop_while_loading(tmp_path: Path) -> None:
    """SIGTERM before the server is ready ends it as cleanly as later."""
    handmade.write_score(tmp_path)
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


@pytest.mark.full
@pytest.mark.usefixtures("patiently")
def test_unready_then_refusing_then_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First unready and answering, for load balancers; then it refuses what is new and answers the rest."""
    delay_s = 3.0  # seen on a busy machine
    monkeypatch.setenv("RATIONALE_SHUTDOWN_DELAY_S", str(delay_s))
    score = {"instances": handmade.X.tolist()}
    with (
        ThreadPoolExecutor(1) as threads,  # left last: by then the gateway is gone, and with it what it holds
        holding(tmp_path) as (child, gate),
        httpx.Client(timeout=SECONDS) as client,
        contextlib.ExitStack() as connections,
    ):
        url, lines = ready_line(child)
        client.base_url = httpx.URL(url)
        post = client.post
        assert post("/v1/models/score:predict", json=score).status_code == 200
        slow = threads.submit(patient.post, f"{url}/v1/models/score:explain", json=score)
        wait_for_requests(url, 1)
        end_s = time.monotonic() + delay_s  # or later: this machine may be slow to hand the signal on
        child.send_signal(signal.SIGTERM)
        until(lambda: is_unready(url))
        unready = client.get("/v2/health/ready")
        assert "stop" in unready.text
        assert client.get("/v2/health/live").status_code == 200
        assert post("/v1/models/score:predict", json=score).status_code == 200
        with triton.InferenceServerClient(grpc_address(lines)) as grpc_client:
            assert grpc_client.is_server_live()
            assert not grpc_client.is_server_ready()
        idle = connections_until_it_refuses(url, connections)
        assert time.monotonic() > end_s - TICK_S
        # For a moment what connections are still asked is answered, as their last.
        answers = (ask_late(idle.pop(), "/v1/models/score:predict", score) for _ in range(len(idle)))
        refusal = next(answer for answer in answers if answer.status == 503)
        assert refusal.headers["retry-after"] == "1"
        assert not slow.done()
        gate.touch()
        assert slow.result().status_code == 200
        assert child.wait(SECONDS) == 0


@pytest.mark.full
def test_a_client_that_stands_still_does_not_hold_the_stop(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATIONALE_DRAIN_TIMEOUT_S", "1")
    monkeypatch.setenv("RATIONALE_REQUEST_TIMEOUT_S", "600")
    with serve("--repository", str(repository), "--port", "0") as child:
        url, _ = ready_line(child)
        with begun(url, "/v2/models/score/infer", b'{"inputs', 1000):
            wait_for_requests(url, 1)
            child.send_signal(signal.SIGTERM)
            assert child.wait(SECONDS) == 0


@pytest.mark.full
@pytest.mark.usefixtures("patiently")
def test_a_second_signal_gives_up_what_runs(repository: Path) -> None:
    with serve("--repository", str(repository), "--port", "0") as child:
        url, _ = ready_line(child)
        with begun(url, "/v2/models/score/infer", b'{"inputs', 1000):
            wait_for_requests(url, 1)
            child.send_signal(signal.SIGTERM)
            until(lambda: not listens(url))
            assert child.poll() is None
            child.send_signal(signal.SIGTERM)
            assert child.wait(SECONDS) == 0


@pytest.mark.full
def test_the_admin_port(repository: Path) -> None:
    """Its routes are there alone; so is what Prometheus asks for."""
    with serve("--repository", str(repository), "--port", "0", "--admin-port", "0") as child:
        url, lines = ready_line(child)
        admin = admin_address(lines)
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


@pytest.mark.full
def test_keys_that_change_while_serving(tmp_path: Path, repository: Path) -> None:
    """A key that is taken out of the file is refused within seconds; no restart."""
    file = tmp_path / "keys.toml"
    token, table = new_key("app", [Scope.INFER], None)
    file.write_text(table)
    with serve("--repository", str(repository), "--port", "0", "--keys-file", str(file)) as child:
        url, _ = ready_line(child)

        def status(sent: str) -> int:
            ask = {"instances": handmade.X.tolist()}
            return patient.post(
                f"{url}/v1/models/score:predict", json=ask, headers={"x-api-key": sent}
            ).status_code

        assert status(token) == 200
        other, table = new_key("other", [Scope.INFER], None)
        file.write_text(table)
        until(lambda: status(token) == 401)
        assert status(other) == 200


@pytest.mark.full
def test_the_network_is_warned_of(repository: Path) -> None:
    with serve("--repository", str(repository), "--port", "0", "--host", "0.0.0.0") as child:  # noqa: S104
        for line in child.stdout:
            if line.startswith("ready on"):
                break
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=SECONDS)
    assert "everybody who reaches 0.0.0.0" in err
    assert "closed on 0.0.0.0" in err


@pytest.mark.full
def test_callers_come_while_models_are_loaded(repository: Path) -> None:
    """They wait for them: none is refused between the listening of a gateway and its readiness."""
    (port,) = spare_ports(1)
    with serve("--repository", str(repository), "--port", str(port), "--grpc-port", "off"):
        until_s = time.monotonic() + SECONDS
        question = {"instances": handmade.X.tolist()}
        while True:
            with contextlib.suppress(httpx.ConnectError):
                answer = patient.post(f"http://127.0.0.1:{port}/v1/models/score:predict", json=question)
                break
            assert time.monotonic() < until_s
    assert answer.status_code == 200, answer.text


@pytest.mark.full
def test_the_last_answer_on_a_connection_says_so(repository: Path) -> None:
    with serve("--repository", str(repository), "--port", "0") as child:
        url, _ = ready_line(child)
        question = {"instances": handmade.X.tolist()}
        with httpx.Client(timeout=SECONDS) as client:
            seen = []
            assert client.post(f"{url}/v1/models/score:predict", json=question).status_code == 200
            child.send_signal(signal.SIGTERM)
            with contextlib.suppress(httpx.ConnectError):  # what is asked once the port is closed
                while True:
                    answer = client.post(f"{url}/v1/models/score:predict", json=question)
                    seen.append((answer.status_code, answer.headers.get("connection")))
        assert {status for status, _ in seen} <= {200}
        assert seen[-1] == (200, "close")
        assert child.wait(SECONDS) == 0
