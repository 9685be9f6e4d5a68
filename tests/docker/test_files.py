"""The Dockerfile and the compose files, without an engine."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from rationale_service.cli import triton as triton_command

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
DOCKERFILE_GPU = (ROOT / "Dockerfile.gpu").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
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


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.gpu"])
def test_the_dockerfiles_pass_their_linter(name: str) -> None:
    run_tool("hadolint", name)


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_compose_files_follow_the_specification(name: str) -> None:
    run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", name)


def test_the_default_image_is_the_small_one_and_not_root() -> None:
    """Docker's old builder makes every stage before the last: none of them is the GPU's."""
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?", DOCKERFILE, re.MULTILINE)
    assert stages == [("python:${PYTHON}-slim", "build"), ("python:${PYTHON}-slim", "")]
    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE) == ["10001"]
    assert 'ENTRYPOINT ["rationale"]' in DOCKERFILE


def test_what_the_image_copies_is_there_and_sent() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE + DOCKERFILE_GPU, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert len(copied) == 8
    assert set(copied) == sent - {"examples"}
    assert all((ROOT / name).exists() for name in copied)


def test_what_the_package_is_built_from_is_copied() -> None:
    """A file that pyproject.toml names and the image lacks would break its build."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = pyproject["project"]
    named = [*wheel["packages"], *wheel["force-include"], project["readme"], *project["license-files"]]
    for name in named:
        places = [re.escape(str(path)) for path in (Path(name), *Path(name).parents[:-1])]
        assert re.search(rf"^COPY .*\b({'|'.join(places)}) ", DOCKERFILE, re.MULTILINE), name


def locked(name: str) -> dict[str, list[tuple[str, Marker | None]]]:
    """The versions of a lock file by name, each with where it holds. All of them have hashes."""
    found: dict[str, list[tuple[str, Marker | None]]] = {}
    text = (ROOT / name).read_text()
    assert "://" not in text, "it names a host"
    assert "file:" not in text
    for entry in re.split(r"\n(?=\S)", text[text.index("\n", text.index("make lock")) + 1 :].strip()):
        requirement, *hashes = entry.split(" \\\n")
        assert hashes, requirement
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", each) for each in hashes), requirement
        parsed = Requirement(requirement)
        (pin,) = parsed.specifier
        assert pin.operator == "==", requirement
        found.setdefault(canonicalize_name(parsed.name), []).append((pin.version, parsed.marker))
    return found


def test_the_lock_follows_the_project() -> None:
    """`make lock` mends it."""
    versions = locked("requirements.lock")
    extras = [
        each for extra in ("audit", "redis", "tracing") for each in PROJECT["optional-dependencies"][extra]
    ]
    for text in [*PROJECT["dependencies"], *extras, "hatchling>=1.27"]:
        wanted = Requirement(text)
        for version, _ in versions[canonicalize_name(wanted.name)]:
            assert wanted.specifier.contains(version), text


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_lock_has_one_version_for_each_machine(version: str, machine: str) -> None:
    here = {
        "python_version": version,
        "python_full_version": f"{version}.9",
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    for name, versions in locked("requirements.lock").items():
        assert sum(marker is None or marker.evaluate(here) for _, marker in versions) <= 1, name


def test_the_gpu_image_follows_the_gpu_extra() -> None:
    wanted = Requirement(PROJECT["optional-dependencies"]["gpu"][0])
    versions = locked("requirements-gpu.lock")
    [(version, _)] = versions[wanted.name]
    assert wanted.specifier.contains(version)
    assert any(name.startswith("nvidia-cudnn") for name in versions)
    assert "pip uninstall --yes onnxruntime" in DOCKERFILE_GPU


def test_compose_and_the_sdk_start_the_same_triton() -> None:
    triton = compose("docker-compose.yml")["triton"]
    assert triton["image"] == triton_command.IMAGE
    assert triton["command"] == list(triton_command.COMMAND)
    for name in ("environment", "security_opt", "working_dir"):
        assert triton[name] == triton_command.OPTIONS[name]
    assert triton["ports"] == [
        f"{triton_command.HOST}:${{RATIONALE_TRITON_{end.upper()}_PORT:-{port}}}:{port}"
        for end, port in triton_command.PORTS.items()
    ]
    [mount] = triton["volumes"]
    assert (mount["target"], mount["read_only"]) == ("/models", True)


def test_the_pages_name_the_same_triton() -> None:
    page = (ROOT / "docs/operations/triton.md").read_text()
    (block,) = re.findall(r"```text\n(\S*/tritonserver:.*?)```", page, re.DOTALL)
    assert block.split() == [triton_command.IMAGE, *triton_command.COMMAND]


@pytest.mark.parametrize("of", ["tritonserver:", "--load-model="])
def test_no_other_file_names_a_triton(of: str) -> None:
    """A new place for its version or its flags needs a test beside these."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = {name for name in tracked.stdout.split() if f"{of}" in _text(ROOT / name)}
    assert named - {"CHANGELOG.md"} <= {
        "docker-compose.yml",
        "deploy/helm/rationale/values.yaml",
        "deploy/helm/rationale/templates/deployment.yaml",
        "docs/operations/explainers.md",
        "docs/operations/triton.md",
        "scripts/triton/serve.py",
        "service/rationale_service/cli/triton.py",
        "service/rationale_service/engine/backends/triton_client.py",  # in an error
        "tests/docker/test_files.py",
    }


def _text(path: Path) -> str:
    return path.read_text(errors="ignore") if path.is_file() else ""


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


def test_the_gateways_state_outlives_its_container() -> None:
    gateway = compose("docker-compose.yml")["gateway"]
    state = re.search(r"^VOLUME (\S+)", DOCKERFILE, re.MULTILINE)[1]
    assert gateway["volumes"][1] == {"type": "volume", "source": "state", "target": state}
    assert f"RATIONALE_STATE={state} " in DOCKERFILE
    assert f":{state} " in re.search(r"docker run .*", DOCKERFILE)[0]


def test_replicas_differ_in_their_names_alone_and_only_the_proxy_is_reached() -> None:
    services = compose("docker-compose.yml")
    of_profile = {name: each for name, each in services.items() if each.get("profiles") == ["replicas"]}
    replicas = [each for name, each in of_profile.items() if name.startswith("replica-")]
    assert len(replicas) == 3
    assert all(each == replicas[0] for each in replicas)
    assert (replicas[0]["read_only"], replicas[0]["cap_drop"]) == (True, ["ALL"])
    assert [name for name, each in of_profile.items() if "ports" in each] == ["proxy"]
    assert of_profile.keys() & {"gateway", "triton"} == set()
    # Every container of ours has what the database and the bucket were made with.
    environment = replicas[0]["environment"]
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] in environment["RATIONALE_STATE"]
    assert services["s3"]["environment"]["ROOT_SECRET_KEY"] == environment["AWS_SECRET_ACCESS_KEY"]
    assert services["s3"]["environment"]["ROOT_ACCESS_KEY"] == environment["AWS_ACCESS_KEY_ID"]
    assert services["bucket"]["environment"].items() <= environment.items()


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_nothing_is_published_beyond_this_machine_by_itself(name: str) -> None:
    ports = [port for service in compose(name).values() for port in service.get("ports", ())]
    assert all(port.startswith(("127.0.0.1:", "${RATIONALE_ADDRESS:-127.0.0.1}:")) for port in ports), ports
    assert (name == "docker-compose.yml") == bool(ports)


def test_documented_containers_are_reached_from_this_machine_alone() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs/operations").glob("*.md"))
    published = re.findall(r"docker run .*?-p (\S+)", pages + DOCKERFILE + DOCKERFILE_GPU)
    assert published == ["127.0.0.1:8080:8080"] * 4


def test_no_password_is_known() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{\w*PASSWORD[^}]*\}", text)) == {"${RATIONALE_DATABASE_PASSWORD-}"}
    secrets = [
        value
        for service in compose("docker-compose.yml").values()
        for name, value in service.get("environment", {}).items()
        if re.search("PASSWORD|SECRET", name)
    ]
    assert len(secrets) == 6
    assert set(secrets) == {"${RATIONALE_DATABASE_PASSWORD-}"}
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_proxy_asks_every_replica() -> None:
    services = compose("docker-compose.yml")
    [mount] = services["proxy"]["volumes"]
    text = (ROOT / mount["source"]).read_text()
    asked = re.findall(r"^    server \w+ (\S+):8080$", text, re.MULTILINE)
    assert asked == [name for name in services if name.startswith("replica-")]
    assert services["proxy"]["depends_on"].keys() == set(asked)
    page = (ROOT / "docs/replicas.md").read_text()
    assert re.search(r"```text\ndefaults\n(.*?)\n\n", page, re.DOTALL)[1] in text
    delay_s = float(services[asked[0]]["environment"]["RATIONALE_SHUTDOWN_DELAY_S"])
    inter_ms, fall = map(int, re.search(r"inter (\d+)ms fall (\d+)", text).groups())
    assert inter_ms * fall / 1000 < delay_s  # it has found out before a replica takes no more


def test_the_gpu_file_only_adds_to_services_that_exist() -> None:
    over = compose("docker-compose.gpu.yml")
    assert over.keys() <= compose("docker-compose.yml").keys()
    [device] = over["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
