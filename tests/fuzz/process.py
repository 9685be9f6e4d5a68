"""Compiling files in another process, which may die, hang or run out of memory."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import psutil

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120.0  # of computing, for one file, which a busy machine does not add to; the slowest takes 2


def _computed_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


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
        computing = psutil.Process(process.pid)
        end_s = _computed_s(computing) + SECONDS
        while not select.select([process.stdout], [], [], 1.0)[0]:
            if _computed_s(computing) > end_s:
                self.close()
                return {"verdict": "hang", "text": f"no answer from {SECONDS} s of computing"}
        line = process.stdout.readline()
        if line:
            verdict: dict[str, str] = json.loads(line)
            return verdict
        self.close()
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
