"""Compiling files in another process, which may die, hang or run out of memory."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120.0  # for one file; the slowest takes 2 here, on a machine with nothing else to do


class Refuser:
    """Runs `tests.fuzz.refuse`, and starts it again where it had to be ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, path: Path) -> dict[str, str]:
        """The verdict on a file, with its text: see `refuse`; also "hang" and "died"."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path}\n".encode())
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], SECONDS)
        line = process.stdout.readline() if ready else b""
        if line:
            verdict: dict[str, str] = json.loads(line)
            return verdict
        self.close()
        if not ready:
            return {"verdict": "hang", "text": f"no answer within {SECONDS} s"}
        return {"verdict": "died", "text": f"exit status {process.returncode}"}

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.refuse"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> "Refuser":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()
