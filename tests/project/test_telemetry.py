"""Nothing calls home: ONNX Runtime's wheels since 1.29 send usage events unless they are told not to.

Where they do, importing them is enough to make an identifier of the machine and a store of events under the
home folder; the first events leave 10 s later, through a proxy where the environment names one. Told not to,
they make no store.
"""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.child import ready_line, serve
from tests.service.patient import post

ROOT = Path(__file__).parents[2]
_IMPORT = re.compile(r"^(import|from) onnxruntime", re.MULTILINE)
_SWITCHES = ("ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "CI", "XDG_CACHE_HOME")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, in an environment that does not say whether events are wanted."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in _SWITCHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    return folder


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def run(*command: str) -> None:
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)


def importers(package: str) -> list[str]:
    """The modules of `package` that import ONNX Runtime by themselves."""
    paths = sorted((ROOT / package).rglob("*.py"))
    root = ROOT if (ROOT / package / "__init__.py").exists() else ROOT / package
    actual = [path.relative_to(root) for path in paths if _IMPORT.search(path.read_text())]
    return [".".join(path.with_suffix("").parts) for path in actual]


@pytest.mark.full
@pytest.mark.parametrize(
    "package",
    [
        "compiler",
        "service",
        pytest.param("loadtests", marks=pytest.mark.full),
        pytest.param("benchmarks", marks=pytest.mark.full),
    ],
)
def test_importing_stores_nothing(package: str, home: Path) -> None:
    modules = importers(package)
    assert modules
    run("-c", f"import {', '.join(modules)}")
    assert files(home) == []


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    [
        ("-m", "rationale_service.cli", "check", "credit"),
        pytest.param(("-m", "benchmarks.one_shot", "-h"), marks=pytest.mark.full),
    ],
)
def test_commands_store_nothing(command: tuple[str, ...], home: Path) -> None:
    run(*command)
    assert files(home) == []


@pytest.mark.full
def test_an_inherited_setting_does_not_switch_it_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    run("-c", "import rationale, onnxruntime")
    assert files(home) == []


@pytest.mark.slow
def test_a_gateway_calls_nobody(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(30)
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        proxies = {"http_proxy": url, "https_proxy": url, "HTTPS_PROXY": url, "all_proxy": url}
        with serve("--port", "0", RATIONALE_STATE=str(home.parent / "state"), **proxies) as gateway:
            answer = post(
                f"{ready_line(gateway)[0]}/v1/models/credit:explain",
                content=(ROOT / "examples/credit/applicants.json").read_bytes(),
            )
            assert answer.status_code == 200, answer.text
            with pytest.raises(TimeoutError):
                proxy.accept()
    assert files(home) == []
