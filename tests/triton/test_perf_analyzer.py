"""Triton's load generator against the gateway: it stops where the statistics it reads disagree."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.triton.fetch import DEFAULT_FOLDER
from tests.service.child import both_ends
from tests.triton.conftest import StartTriton

pytestmark = pytest.mark.full

REPOSITORY = Path(__file__).parents[2] / "model_repository"
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


@pytest.fixture(scope="module")
def libraries(start_triton: StartTriton, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What perf_analyzer is linked to, by the names that it knows; Triton's wheel has longer ones."""
    assert start_triton  # it came with the server
    folder = tmp_path_factory.mktemp("libraries")
    for name, pattern in LIBRARIES.items():
        (found,) = DEFAULT_FOLDER.glob(f"venv/lib/python*/site-packages/nvidia_pytriton.libs/{pattern}")
        (folder / name).symlink_to(found)
    return folder


@pytest.fixture(scope="module")
def ends() -> Iterator[dict[str, str]]:
    with both_ends("--repository", str(REPOSITORY)) as ends:
        yield ends


@pytest.mark.parametrize(
    ("end", "options"), [("http", []), ("grpc", []), ("grpc", ["--streaming", "--async"])]
)
@pytest.mark.parametrize("model", ["credit", "credit_explain"])
def test_it_runs_to_its_end(
    ends: dict[str, str], libraries: Path, model: str, end: str, options: list[str]
) -> None:
    command = [str(DEFAULT_FOLDER / "venv/bin/perf_analyzer"), "-m", model, "-i", end, "-u", ends[end]]
    measured = ["--measurement-mode", "count_windows", "--measurement-request-count", "50", "-s", "999"]
    environment = {"LD_LIBRARY_PATH": str(libraries)}
    done = subprocess.run(
        [*command, *measured, *options], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    server = done.stdout.partition("Server:")[2]
    assert "compute input" in server, done.stdout
    assert "Concurrency: 1, throughput:" in done.stdout
