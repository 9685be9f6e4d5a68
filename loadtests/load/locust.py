"""One run of locust on our locustfile, with answers to compare, in a process of its own."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtests.load.expected import MODEL
from loadtests.load.questions import WrongAnswerError
from loadtests.systems.process import Server

LOCUSTFILE = Path(__file__).parents[1] / "locustfile.py"
_STATUSES = (0, 1)  # of locust: 1 where there were failures


@dataclass(frozen=True)
class LocustSummary:
    """Locust's figures for a run.

    Attributes:
        answers_per_s: right answers a second; requests: number of all requests.
        p50_ms, p90_ms, p99_ms: percentiles over all requests, to three digits.
        errors: counts of refusals, timeouts, broken connections and wrong answers, by message.
    """

    answers_per_s: float
    requests: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    errors: dict[str, int]

    @property
    def faultless(self) -> bool:
        """Tell whether locust sent any request, and every answer is right."""
        return not self.errors and self.requests > 0

    @property
    def wrong(self) -> int:
        """Number of wrong answers."""
        return sum(count for error, count in self.errors.items() if WrongAnswerError.__name__ in error)

    def __str__(self) -> str:
        faults = "".join(f", {count} × {error}" for error, count in self.errors.items())
        times = f"p50 {self.p50_ms:.3g} ms, p90 {self.p90_ms:.3g} ms, p99 {self.p99_ms:.3g} ms"
        return f"{self.answers_per_s:.3g} answers/s, {times}{faults}"


def run_locust(server: Server, expected: Path, options: Mapping[str, object], *users: str) -> LocustSummary:
    """Put a load on a server of the network.

    Args:
        expected: file of `write_expected`. options: locust's and the locustfile's. users: classes there.

    Raises:
        RuntimeError: if locust fails.
    """
    command_options = {
        "--host": f"http://{server.http}",
        "--grpc": server.grpc or "",
        "--models": MODEL,
        "--expected": expected,
        "--spawn-rate": 100,
        "--stop-timeout": options.get("--timeout", 30),
        **options,
    }
    with tempfile.TemporaryDirectory() as name:
        command_options["--summary"] = summary = Path(name) / "summary.json"
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"]
        command += [*users, *(str(each) for pair in command_options.items() for each in pair)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
        if process.returncode not in _STATUSES:
            raise RuntimeError(f"locust failed:\n{process.stderr.strip()}")
        return LocustSummary(**json.loads(summary.read_text(encoding="utf-8")))
