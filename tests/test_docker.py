"""The Docker files, and `rationale triton` against a fake engine (the SDK is the real one)."""

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML
from typer.testing import CliRunner

from service.cli import triton as docker_engine
from tests.fake_docker import Engine, answering, fake_engine

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE_FILES = ("docker-compose.yml", "docker-compose.gpu.yml")


def compose(name: str) -> dict[str, Any]:
    services: dict[str, Any] = YAML(typ="safe").load(ROOT / name)["services"]
    return services


# --- the files ----------------------------------------------------------------------------------------


def run_tool(*arguments: str) -> None:
    done = subprocess.run(
        [str(BIN / arguments[0]), *arguments[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_passes_its_linter() -> None:
    run_tool("hadolint", "Dockerfile")


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_compose_files_follow_the_specification(name: str) -> None:
    run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", name)


def test_the_default_image_is_the_small_one_and_not_root() -> None:
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?", DOCKERFILE, re.MULTILINE)
    assert stages[-1] == ("runtime", "cpu")
    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE) == ["10001"]
    assert 'ENTRYPOINT ["rationale"]' in DOCKERFILE


def test_what_the_image_copies_is_there_and_sent() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert len(copied) == 7
    assert set(copied) == sent - {"examples"}
    assert all((ROOT / name).exists() for name in copied)


def test_what_the_package_is_built_from_is_copied() -> None:
    """A file that pyproject.toml names and the image lacks would break its build."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = pyproject["project"]
    named = [*wheel["packages"], *wheel["force-include"], project["readme"], *project["license-files"]]
    for name in named:
        assert re.search(rf"^COPY .*{re.escape(name)}\b", DOCKERFILE, re.MULTILINE), name


def test_the_gpu_image_follows_the_gpu_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    wanted, built = Requirement(extra[0]), Requirement(re.search(r'ONNXRUNTIME_GPU="(.+)"', DOCKERFILE)[1])
    assert (built.name, built.specifier) == (wanted.name, wanted.specifier)
    assert "pip uninstall --yes onnxruntime && pip install" in DOCKERFILE


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_follows_the_live_route(status: int, code: int) -> None:
    check = json.loads(re.search(r"HEALTHCHECK (?:.|\n)*?CMD (\[.+\])", DOCKERFILE)[1])
    with answering([status]) as (port, paths):
        command = [sys.executable, *(part.replace("8080", str(port)) for part in check[1:])]
        done = subprocess.run(command, capture_output=True, check=False)
    assert (check[0], done.returncode, paths) == ("python", code, ["/v2/health/live"])


def test_compose_and_the_sdk_start_the_same_triton() -> None:
    triton = compose("docker-compose.yml")["triton"]
    assert triton["image"] == docker_engine.IMAGE
    assert triton["command"] == list(docker_engine.COMMAND)
    assert triton["environment"] == docker_engine.ENVIRONMENT == {"ORT_DISABLE_TELEMETRY": "1"}
    assert triton["security_opt"] == list(docker_engine.SECURITY)
    assert triton["ports"] == [f"{docker_engine.HOST}:{p}:{p}" for p in docker_engine.PORTS.values()]
    [mount] = triton["volumes"]
    assert (mount["target"], mount["read_only"]) == (docker_engine.MODELS, True)


def test_the_image_sends_no_usage_events() -> None:
    assert "ORT_DISABLE_TELEMETRY=1" in DOCKERFILE


def test_triton_is_past_the_shared_memory_holes() -> None:
    year, month = re.search(r":(\d\d)\.(\d\d)-py3$", docker_engine.IMAGE).groups()
    assert (int(year), int(month)) >= (25, 7)


def test_the_gateway_waits_for_triton_and_reads_the_same_folder() -> None:
    services = compose("docker-compose.yml")
    gateway, triton = services["gateway"], services["triton"]
    assert gateway["depends_on"] == {"triton": {"condition": "service_healthy"}}
    assert gateway["command"][-2:] == ["--triton", f"triton:{docker_engine.PORTS['grpc']}"]
    [models] = triton["volumes"]
    assert gateway["volumes"][0] | {"read_only": True} == models
    assert (gateway["read_only"], gateway["cap_drop"]) == (True, ["ALL"])
    assert f"http://127.0.0.1:{docker_engine.PORTS['http']}/v2/health/ready" in triton["healthcheck"]["test"]


def test_the_gpu_file_only_adds_to_services_that_exist() -> None:
    over = compose("docker-compose.gpu.yml")
    assert over.keys() <= compose("docker-compose.yml").keys()
    [device] = over["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


# --- `rationale triton` -------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with fake_engine(tmp_path / "docker.sock") as engine:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.socket}")
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))  # nobody's login, nobody's helpers
        engine.images.add(docker_engine.IMAGE)
        yield engine


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "credit").mkdir(parents=True)
    (folder / "credit" / "config.pbtxt").write_text('name: "credit"\n')
    return folder


def rationale_triton(*arguments: object) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `rationale triton ARGUMENTS`."""
    done = CliRunner().invoke(docker_engine.app, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_start_creates_the_container_and_waits(engine: Engine, repository: Path) -> None:
    with answering([503, 503, 200]) as (port, paths):
        code, out, err = rationale_triton("start", "--repository", repository, "--http-port", port)
    assert (code, err) == (0, "")
    assert paths == ["/v2/health/ready"] * 3
    assert engine.asked == ["version", "inspect", "image", "create", "inspect", "start", *["inspect"] * 2]
    made = engine.created
    assert (made["name"], made["Image"], made["Cmd"]) == (
        "rationale-triton",
        docker_engine.IMAGE,
        list(docker_engine.COMMAND),
    )
    assert made["HostConfig"]["Binds"] == [f"{repository}:/models:ro"]
    assert made["HostConfig"]["PortBindings"] == {
        "8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}],
        "8001/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8001"}],
        "8002/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8002"}],
    }
    assert made["Env"] == ["ORT_DISABLE_TELEMETRY=1"]
    assert made["HostConfig"]["SecurityOpt"] == ["no-new-privileges:true"]
    assert not made["HostConfig"].get("DeviceRequests")
    assert f"Triton is ready: http 127.0.0.1:{port}, grpc 127.0.0.1:8001" in out
    assert "--triton 127.0.0.1:8001" in out


def test_gpu_asks_for_every_device(engine: Engine, repository: Path) -> None:
    with answering([200]) as (port, _):
        code, _, err = rationale_triton("start", "--gpu", "--repository", repository, "--http-port", port)
    assert (code, err) == (0, "")
    [request] = engine.created["HostConfig"]["DeviceRequests"]
    assert (request["Count"], request["Capabilities"]) == (-1, [["gpu"]])


def test_a_missing_image_is_downloaded_with_progress(
    engine: Engine, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "PROGRESS_S", 0)
    image = "example.org:5000/other/triton:26.11"
    engine.pull_events = [
        {"status": "Pulling from other/triton", "id": "26.11"},
        {"status": "Pull complete", "id": "a1"},
        {"status": "Downloading", "id": "b2"},
    ]
    with answering([200]) as (port, _):
        code, out, err = rationale_triton(
            "start", "--repository", repository, "--http-port", port, "--image", image
        )
    assert (code, err) == (0, "")
    assert engine.asked[:4] == ["version", "inspect", "image", "pull"]
    assert image in engine.images
    assert "1 of 2 layers" in out
    assert engine.created["Image"] == image


def test_an_image_that_is_not_there_is_named(engine: Engine, repository: Path) -> None:
    engine.pull_events = [{"error": "manifest unknown: not found"}]
    code, _, err = rationale_triton("start", "--repository", repository, "--image", "nobody/nothing:1")
    assert code == 2
    assert err.startswith("rationale: nobody/nothing:1 cannot be downloaded: manifest unknown")
    assert "Check --image" in err
    assert "create" not in engine.asked


def test_a_triton_that_ends_early_shows_its_log_and_goes(engine: Engine, repository: Path) -> None:
    engine.status_after_start = "exited"
    with answering([503]) as (port, _):
        code, _, err = rationale_triton("start", "--repository", repository, "--http-port", port)
    assert code == 2
    assert "Triton ended while starting" in err
    assert "    second line" in err
    assert "Traceback" not in err
    assert engine.container is None


def test_a_triton_that_takes_too_long_is_removed(engine: Engine, repository: Path) -> None:
    with answering([503]) as (port, _):
        code, _, err = rationale_triton(
            "start", "--repository", repository, "--http-port", port, "--timeout", 1
        )
    assert code == 2
    assert "was not ready after 1 s (--timeout gives it longer)" in err
    assert engine.container is None


def test_ctrl_c_leaves_no_container(
    engine: Engine, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(docker_engine, "wait_until_ready", interrupted)
    code, _, _ = rationale_triton("start", "--repository", repository)
    assert code != 0
    assert engine.container is None


def test_a_running_triton_is_not_started_twice(engine: Engine, repository: Path) -> None:
    engine.container = "running"
    code, _, err = rationale_triton("start", "--repository", repository)
    assert (code, engine.container) == (2, "running")
    assert err == "rationale: rationale-triton is running already; `rationale triton stop` ends it.\n"


def test_what_an_earlier_run_left_is_replaced(engine: Engine, repository: Path) -> None:
    engine.container = "exited"
    with answering([200]) as (port, _):
        code, _, _ = rationale_triton("start", "--repository", repository, "--http-port", port)
    assert code == 0
    assert engine.asked.index("remove") < engine.asked.index("create")


REFUSALS = {
    "Bind for 127.0.0.1:8001 failed: port is already allocated": "Choose others with --http-port",
    'could not select device driver "" with capabilities: [[gpu]]': "container toolkit",
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_the_engine_refuses_is_said_with_advice(engine: Engine, repository: Path, message: str) -> None:
    engine.failures["start"] = (500, message)
    code, _, err = rationale_triton("start", "--repository", repository)
    assert code == 2
    assert err.startswith(f"rationale: the Docker engine did not do it: {message}\n")
    assert REFUSALS[message] in err
    assert engine.container is None


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, None], ids=["empty", "file", "missing"])
def test_a_folder_without_models_is_refused_before_anything_starts(
    engine: Engine, tmp_path: Path, make: Any
) -> None:
    folder = tmp_path / "nothing"
    if make:
        make(folder)
    code, _, err = rationale_triton("start", "--repository", folder)
    assert (code, engine.asked) == (2, [])
    assert "holds no models" in err


def test_stop_drains_and_removes(engine: Engine) -> None:
    engine.container = "running"
    assert rationale_triton("stop") == (0, "Triton stopped.\n", "")
    assert engine.asked == ["version", "inspect", "stop t=40", "remove"]
    assert rationale_triton("stop") == (0, "Triton is not running.\n", "")


def test_logs_are_printed(engine: Engine) -> None:
    engine.container = "running"
    assert rationale_triton("logs", "--tail", 7) == (0, "first line\nsecond line\n", "")
    assert "logs tail=7 follow=0" in engine.asked
    assert rationale_triton("logs", "--follow")[0] == 0
    assert "logs tail=100 follow=1" in engine.asked


def test_logs_without_a_container_say_so(engine: Engine) -> None:
    assert engine.container is None
    code, _, err = rationale_triton("logs")
    assert (code, err) == (2, "rationale: Triton is not running; `rationale triton start` starts it.\n")


@pytest.mark.parametrize("command", ["start", "stop", "logs"])
def test_without_an_engine_two_lines_name_the_alternatives(
    command: str, repository: Path, tmp_path: Path
) -> None:
    """In a process of its own: the SDK leaves the socket that could not connect to the garbage collector."""
    done = subprocess.run(
        [sys.executable, "-c", "from service.cli.triton import app; app()", command]
        + (["--repository", str(repository)] if command == "start" else []),
        cwd=ROOT,
        env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("rationale: no Docker engine answers.")
    assert "`rationale serve`" in second
    assert "`make triton`" in second


def test_a_closed_socket_names_the_group(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: socket.socket, *_: object) -> None:
        self.close()
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    code, _, err = rationale_triton("start", "--repository", repository)
    assert code == 2
    assert "is it in the group `docker`?" in err


def test_without_the_sdk_the_extra_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    code, _, err = rationale_triton("start", "--repository", repository)
    assert code == 2
    assert "pip install 'rationale[docker]'" in err


def test_the_module_needs_no_sdk_to_be_imported() -> None:
    code = "import sys; import service.cli.triton; assert 'docker' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
