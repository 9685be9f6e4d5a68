"""What a load test leaves: runs.csv, report.json with the machine and versions, report.html with plots."""

import csv
import io
import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compiler.bench.measure import Machine, versions
from loadtests.load.measure import Result
from loadtests.load.workloads import WORKLOADS, Profile
from loadtests.report.comparison import compare, verdicts
from loadtests.report.page import page

CSV_FILE, JSON_FILE, HTML_FILE = "runs.csv", "report.json", "report.html"
PACKAGES = "rationale onnxruntime onnx numpy torch shap captum fastapi uvicorn locust".split()


@dataclass(frozen=True)
class About:
    """How a run was made.

    Attributes:
        command: what was typed; cores: that it was given.
        machine: as it was before.
    """

    command: str
    profile: Profile
    cores: int
    machine: Machine


def write_report(
    results: Sequence[Result], about: About, folder: Path, *, finished: bool = True
) -> list[Path]:
    """Writes the three files and returns them; one that is not `finished` says so."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"finished": finished} | contents(results, about)
    written = {
        CSV_FILE: as_csv(results),
        JSON_FILE: json.dumps(content, indent=1),
        HTML_FILE: page(results, content),
    }
    for file, text in written.items():
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in written]


def contents(results: Sequence[Result], about: About) -> dict[str, Any]:
    """All that is known of the run, as plain values."""
    profile = about.profile
    return {
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": about.command,
        "commit": commit(),
        "machine": about.machine | {"cores_used": about.cores},
        "versions": versions(PACKAGES),
        "profile": asdict(profile),
        "limits_s": {one.name: one.p99_s for one in WORKLOADS if one.name in profile.workloads},
        "claims": [asdict(one) | {"verdict": one.in_words} for one in verdicts(results)],
        "comparisons": [asdict(one) for one in compare(results)],
        "results": [asdict(result) for result in results],
    }


def commit() -> str | None:
    """Of the checkout; None outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]  # the local git
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (ours)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def as_csv(results: Sequence[Result]) -> str:
    """A line for each run."""
    stream = io.StringIO()
    writer: Any = None
    for result in results:
        for kind, run in result.runs():
            figures = asdict(run.figures)
            figures["errors"] = "; ".join(f"{count} × {error}" for error, count in run.figures.errors.items())
            head = {"workload": result.workload, **asdict(run.variant), "kind": kind, "load": run.label}
            if writer is None:
                writer = csv.DictWriter(stream, [*head, *figures], lineterminator="\n")
                writer.writeheader()
            writer.writerow(head | figures)
    return stream.getvalue()
