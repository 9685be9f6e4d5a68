"""Files of a load test: runs.csv, report.html with the machine and versions, and locust's pages."""

import csv
import io
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.timing import versions
from loadtests.load.measure import LoadRun, Result
from loadtests.load.workloads import WORKLOADS, LoadProfile
from loadtests.systems.variants import OURS
from rationale.distribution import NAME

CSV_FILE, HTML_FILE = "runs.csv", "report.html"
PAGES = "locust"
PACKAGES = f"{NAME} onnxruntime onnx numpy torch shap captum fastapi uvicorn locust".split()
PEER = "shap"
RATE, MEDIAN = "sustainable rate", "median of one caller"
CLAIMS = {  # of explanations of one row over REST: at least so many times better than PEER
    ("credit-100", RATE): 6,
    ("credit-100", MEDIAN): 4,
    ("credit-1000", RATE): 12,
    ("credit-1000", MEDIAN): 10,
    ("resnet50", RATE): 4,
}


@dataclass(frozen=True)
class ReportFacts:
    """A load test's command, profile, cores, and the state of the machine before it."""

    command: str
    profile: LoadProfile
    cores: int
    machine: dict[str, Any]


@dataclass(frozen=True)
class PeerRatio:
    """The ratio of our figure to a peer's, if both have one; `claim` is the claimed ratio."""

    workload: str
    peer: str
    figure: str
    ratio: float | None
    claim: float | None

    @property
    def verdict(self) -> str:
        """The verdict on the claim; empty if there is none."""
        if self.claim is None:
            return ""
        if self.ratio is None:
            return "not measured"
        return "met" if self.ratio >= self.claim else "missed"

    def __str__(self) -> str:
        ratio = "—" if self.ratio is None else f"{self.ratio:.3g}"
        claim = "" if self.claim is None else f" (asked {self.claim:g}: {self.verdict})"
        return f"{self.workload}, beside {self.peer}, {self.figure}: {ratio}{claim}"


def compare(results: Sequence[Result]) -> list[PeerRatio]:
    """Compare us with each peer on each workload that both were measured on; above 1 is in our favour."""
    ours = {result.workload: result for result in results if result.system == OURS}
    return [
        PeerRatio(
            theirs.workload,
            theirs.system,
            figure,
            over / under if over and under else None,
            CLAIMS.get((theirs.workload, figure)) if theirs.system == PEER else None,
        )
        for theirs in results
        if theirs.system != OURS and (mine := ours.get(theirs.workload))
        for figure, over, under in (
            (RATE, mine.sustainable, theirs.sustainable),
            (MEDIAN, theirs.alone.seen.p50_ms, mine.alone.seen.p50_ms),
            ("memory after eight callers", theirs.crowd.memory_bytes, mine.crowd.memory_bytes),
        )
    ]


def write_report(
    results: Sequence[Result], about: ReportFacts, folder: Path, *, finished: bool = True
) -> list[Path]:
    """Write both files and return them; an unfinished report says so."""
    folder.mkdir(parents=True, exist_ok=True)
    loader = FileSystemLoader(Path(__file__).parent)
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    html = pages.get_template(HTML_FILE).render(
        about=about,
        finished=finished,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        commit=commit(),
        facts=about.machine | {"cores that were used": about.cores} | versions(PACKAGES),
        limits_s={workload.name: workload.p99_s for workload in WORKLOADS},
        comparisons=compare(results),
        results=results,
        pages=PAGES,
    )
    written = {CSV_FILE: as_csv([run for result in results for run in result.runs]), HTML_FILE: html + "\n"}
    for file, text in written.items():
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in written]


def commit() -> str | None:
    """Return the checkout's commit; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]  # the local git
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (ours)
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()


def as_csv(runs: Sequence[LoadRun]) -> str:
    """Return CSV with a line for each run."""
    lines = []
    for run in runs:
        line = asdict(run)
        line |= line.pop("variant") | line.pop("seen")
        lines.append(line | {"errors": "; ".join(f"{n} × {error}" for error, n in line["errors"].items())})
    stream = io.StringIO()
    writer = csv.DictWriter(stream, lines[0] if lines else (), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()
