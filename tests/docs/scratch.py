"""A reader's folder: a copy of the checkout, in which the commands of a page are run as they are typed.

What is not as the reader has it is out of their sight. `rationale serve` goes on in the background, once it
is ready; the next one takes its place, as after Ctrl-C. It listens on ports of its own (by the environment,
which a flag overrides), and curl is led there, where a page says localhost:8080. curl fails where the
answer is an error. pip does nothing: the environment of the tests has what pages install.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rationale_service.settings import PREFIX
from tests.docs.pages import ROOT
from tests.service.child import spare_ports

_NOT_TYPED = shutil.ignore_patterns(".*", "__pycache__", "*.state", "build", "dist", "results")
_CURL = """
fail-with-body
silent
show-error
connect-to = "localhost:8080:localhost:{port}"
"""
TIMEOUT_S = 300


@dataclass(frozen=True)
class Scratch:
    folder: Path
    environment: dict[str, str]

    def run(self, script: str) -> None:
        """Runs a shell script. Raises AssertionError, with what it printed, where a command fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"status {done.returncode}:\n{done.stdout[-4000:]}"


@contextmanager
def scratch(folder: Path) -> Iterator[Scratch]:
    """Within `folder`, which is empty. What was left running is ended on the way out."""
    checkout, home, bin_folder = folder / "checkout", folder / "home", folder / "bin"
    shutil.copytree(ROOT, checkout, ignore=_NOT_TYPED)
    for made in (home, bin_folder):
        made.mkdir()
    http, grpc = spare_ports(2)
    (home / ".curlrc").write_text(_CURL.format(port=http))
    command = _command(bin_folder / "rationale", (Path(__file__).parent / "rationale_command.py").read_text())
    _command(bin_folder / "pip", "")
    own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environment = {
        **own,
        "HOME": str(home),
        "PATH": os.pathsep.join([str(bin_folder), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "RATIONALE_PORT": str(http),
        "RATIONALE_GRPC_PORT": str(grpc),
        "SERVED": str(home / "served"),
    }
    try:
        yield Scratch(checkout, environment)
    finally:
        subprocess.run([str(command), "--stop"], env=environment, check=True)


def _command(path: Path, script: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return path
