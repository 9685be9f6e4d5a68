"""The Dockerfile and the compose files, without an engine."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

from service.cli import triton as triton_command

ROOT = Path(__file__).parent.parent.parent
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


def test_compose_and_the_sdk_start_the_same_triton() -> None:
    triton = compose("docker-compose.yml")["triton"]
    assert triton["image"] == triton_command.IMAGE
    assert triton["command"] == list(triton_command.COMMAND)
    for name in ("environment", "security_opt", "working_dir"):
        assert triton[name] == triton_command.OPTIONS[name]
    assert triton["ports"] == [f"{triton_command.HOST}:{p}:{p}" for p in triton_command.PORTS.values()]
    [mount] = triton["volumes"]
    assert (mount["target"], mount["read_only"]) == ("/models", True)


def test_the_image_sends_no_usage_events() -> None:
    assert "ORT_DISABLE_TELEMETRY=1" in DOCKERFILE


def test_triton_is_past_the_shared_memory_holes() -> None:
    year, month = re.search(r":(\d\d)\.(\d\d)-py3$", triton_command.IMAGE).groups()
    assert (int(year), int(month)) >= (25, 7)


def test_the_gateway_waits_for_triton_and_reads_the_same_folder() -> None:
    services = compose("docker-compose.yml")
    gateway, triton = services["gateway"], services["triton"]
    assert gateway["depends_on"] == {"triton": {"condition": "service_healthy"}}
    assert gateway["command"][-2:] == ["--triton", f"triton:{triton_command.PORTS['grpc']}"]
    [models] = triton["volumes"]
    assert gateway["volumes"][0] | {"read_only": True} == models
    assert (gateway["read_only"], gateway["cap_drop"]) == (True, ["ALL"])
    assert f"http://127.0.0.1:{triton_command.PORTS['http']}/v2/health/ready" in triton["healthcheck"]["test"]


def test_the_gpu_file_only_adds_to_services_that_exist() -> None:
    over = compose("docker-compose.gpu.yml")
    assert over.keys() <= compose("docker-compose.yml").keys()
    [device] = over["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
