"""`rationale triton start|stop|logs` on a real Docker engine, with an image that stands for Triton's."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from typer.testing import CliRunner

from rationale_service.cli import triton
from tests.docker.conftest import SECONDS
from tests.service.child import spare_ports

ROOT = Path(__file__).parent.parent.parent
NAME = triton.OPTIONS["name"]
# Where the tests run in the background of a shell, their children ignore Ctrl-C.
HEEDING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{HEEDING}; from rationale_service.cli.triton import app; app()"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "credit").mkdir(parents=True)
    (folder / "credit" / "config.pbtxt").write_text('name: "credit"\n')
    return folder


@pytest.fixture
def ports() -> list[int]:
    return spare_ports(len(triton.PORTS))


@pytest.fixture
def start(engine: docker.DockerClient, triton_image: str, repository: Path, ports: list[int]) -> list[str]:
    """The arguments of a start that succeeds."""
    if left := named(engine):
        left.remove(force=True)
    flags = [f"--{end}-port={port}" for end, port in zip(triton.PORTS, ports, strict=True)]
    return ["start", "--repository", str(repository), "--image", triton_image, *flags]


@pytest.fixture
def started(start: list[str], engine: docker.DockerClient) -> Iterator[str]:
    """What a start printed; the container runs."""
    status, out, err = rationale_triton(*start)
    assert (status, err) == (0, "")
    yield out
    if left := named(engine):
        left.remove(force=True)


def named(engine: docker.DockerClient) -> docker.models.containers.Container | None:
    found = engine.containers.list(all=True, filters={"name": NAME}, ignore_removed=True)
    return next(iter(found), None)


def rationale_triton(*arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `rationale triton ARGUMENTS`."""
    done = CliRunner().invoke(triton.app, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_start_logs_and_stop(
    started: str, engine: docker.DockerClient, repository: Path, ports: list[int]
) -> None:
    http, grpc, metrics = (f"127.0.0.1:{port}" for port in ports)
    assert f"Triton is ready: http {http}, grpc {grpc}, metrics {metrics}\n" in started
    assert f"--triton {grpc}" in started
    host = named(engine).attrs["HostConfig"]
    assert host["Binds"] == [f"{repository}:/models:ro"]
    bound = {inner: [tuple(each.values()) for each in outer] for inner, outer in host["PortBindings"].items()}
    assert bound == {
        f"{inner}/tcp": [("127.0.0.1", str(port))]
        for inner, port in zip(triton.PORTS.values(), ports, strict=True)
    }
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert "ORT_DISABLE_TELEMETRY=1" in named(engine).attrs["Config"]["Env"]
    assert rationale_triton("logs") == (0, " ".join(triton.COMMAND[1:]) + "\n", "")
    assert rationale_triton("stop") == (0, "Triton stopped.\n", "")
    assert named(engine) is None
    assert rationale_triton("stop") == (0, "Triton is not running.\n", "")
    assert rationale_triton("logs") == (
        2,
        "",
        "error: Triton is not running; start it with `rationale triton start`.\n",
    )


def test_a_running_triton_is_not_started_twice(start: list[str], started: str) -> None:
    assert started
    status, _, err = rationale_triton(*start)
    assert (status, err) == (
        2,
        "error: rationale-triton is running already; stop it with `rationale triton stop`.\n",
    )


@pytest.mark.full
def test_what_an_earlier_run_left_is_replaced(
    start: list[str], started: str, engine: docker.DockerClient
) -> None:
    assert started
    named(engine).kill()
    assert rationale_triton(*start)[0] == 0
    assert named(engine).status == "running"


@pytest.mark.full
def test_the_log_is_followed_to_the_end_that_stop_lets_triton_find(started: str) -> None:
    assert started
    with subprocess.Popen([*COMMAND, "logs", "-f"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == " ".join(triton.COMMAND[1:]) + "\n"
        assert rationale_triton("stop")[0] == 0
        rest, _ = process.communicate(timeout=SECONDS)
    assert rest == "stopped\n"


def test_a_triton_that_ends_early_shows_its_log_and_goes(
    start: list[str], repository: Path, engine: docker.DockerClient
) -> None:
    (repository / "broken").touch()
    status, _, err = rationale_triton(*start)
    assert status == 2
    assert "Triton ended while starting" in err
    assert "a model is broken" in err
    assert named(engine) is None


def test_a_triton_that_takes_too_long_is_removed(
    start: list[str], repository: Path, engine: docker.DockerClient
) -> None:
    (repository / "slow").touch()
    status, _, err = rationale_triton(*start, "--timeout", "1")
    assert status == 2
    assert "was not ready after 1 s (--timeout gives it longer)" in err
    assert named(engine) is None


def test_ctrl_c_leaves_no_container(start: list[str], repository: Path, engine: docker.DockerClient) -> None:
    (repository / "slow").touch()
    with subprocess.Popen([*COMMAND, *start], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        end_s = time.monotonic() + SECONDS
        while not ((container := named(engine)) and container.status == "running"):
            assert time.monotonic() < end_s
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) != 0
    assert named(engine) is None


def test_a_port_in_use_is_told(start: list[str], ports: list[int], engine: docker.DockerClient) -> None:
    with socket.create_server(("127.0.0.1", ports[1])):
        status, _, err = rationale_triton(*start)
    assert status == 2
    assert "Choose others with --http-port" in err
    assert named(engine) is None


def test_a_gpu_that_is_not_there_is_told(start: list[str], engine: docker.DockerClient) -> None:
    if "nvidia" in engine.info().get("Runtimes", {}):
        pytest.skip("this engine has GPUs")
    status, _, err = rationale_triton(*start, "--gpu")
    assert status == 2
    assert "--gpu needs NVIDIA's driver and its container toolkit." in err
    assert named(engine) is None


def test_an_image_that_cannot_be_had_is_told(start: list[str]) -> None:
    status, _, err = rationale_triton(*start, "--image", "127.0.0.1:1/nothing:1")
    assert status == 2
    assert "Check --image, and that this machine reaches its registry." in err


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, None], ids=["empty", "file", "missing"])
def test_a_folder_without_models_is_refused(tmp_path: Path, make: object) -> None:
    folder = tmp_path / "nothing"
    if callable(make):
        make(folder)
    status, _, err = rationale_triton("start", "--repository", str(folder))
    assert (status, err) == (2, f"error: {folder} contains no models; write one with `rationale compile`.\n")


@pytest.mark.parametrize("command", ["start", "stop", "logs"])
def test_without_an_engine_the_alternatives_are_named(command: str, tmp_path: Path) -> None:
    """In a process of its own: the SDK leaves the socket that could not connect to the garbage collector."""
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"}
    asked = [*COMMAND, command]
    done = subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Is a Docker engine installed and running?" in done.stderr
    assert "`rationale serve`" in done.stderr
    assert "`make triton`" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_socket_names_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, *_: object) -> None:
        self.close()
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    status, _, err = rationale_triton("stop")
    assert status == 2
    assert "is it in the group `docker`?" in err


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    status, _, err = rationale_triton("stop")
    assert status == 2
    assert "pip install 'docker<" in err


def test_the_module_needs_no_sdk_to_be_imported() -> None:
    code = "import sys; import rationale_service.cli.triton; assert 'docker' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
