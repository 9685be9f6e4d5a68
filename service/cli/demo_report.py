"""What `rationale demo` prints: for each applicant the score, and what each feature did to it.

Fits 80 columns, and reads the same without colour: bars point left or right as well as being green or red.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from compiler.manifest import Manifest

CUT_OFF = 0.20  # as in examples/credit/make_credit.py: declined from this default probability on
WIDTH = 78
HALF_BAR = 17  # columns on either side of the middle


@dataclass(frozen=True)
class Applicant:
    """One applicant's features and answer; `base`, `probability`, `effects` and `gap` are probabilities."""

    features: Mapping[str, float]
    base: float
    probability: float
    effects: Mapping[str, float]
    gap: float

    @property
    def decision(self) -> str:
        return "DECLINED" if self.probability >= CUT_OFF else "APPROVED"


@dataclass(frozen=True)
class Latency:
    """Medians of `requests` requests each, for one applicant."""

    predict_ms: float
    explain_ms: float
    requests: int


def report(
    console: Console, manifest: Manifest, applicants: Sequence[Applicant], latency: Latency, example: Path
) -> None:
    say(console, "")
    say(console, graph(manifest))
    say(console, "")
    say(console, introduction(manifest, applicants))
    for number, applicant in enumerate(applicants, start=1):
        say(console, "")
        console.print(heading(applicant, number, len(applicants)))
        console.print(table(applicant, ascii_only=console.options.ascii_only))
        say(console, summary(applicant))
    say(console, "")
    say(console, timing(latency))
    for line in ("", "Next:", *next_steps(example)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def introduction(manifest: Manifest, applicants: Sequence[Applicant]) -> str:
    count = manifest.references.count if manifest.references else 0
    return (
        f"Every applicant is compared with {count} typical approved applicants. Their mean default "
        f"probability, {applicants[0].base:.2%}, is the base value. The effect of a feature is its DeepSHAP "
        "attribution, an estimate of its Shapley value, in percentage points: what the applicant's value, "
        "rather than theirs, adds to the probability. Base value and effects add up to it."
    )


def graph(manifest: Manifest) -> str:
    measured = manifest.measured
    gap = measured.completeness_gap
    promised = "" if gap is None else f", completeness gaps by {gap:.1e}"
    return (
        f"The combined graph: {measured.nodes} nodes, {measured.model_bytes / 1e3:.0f} kB. Checked on "
        f"{measured.rows} rows when compiled: outputs off by {measured.outputs_error:.1e} of the largest"
        f"{promised}."
    )


def heading(applicant: Applicant, number: int, count: int) -> Text:
    return Text.assemble(
        (f"Applicant {number} of {count}: {applicant.decision}", "bold"),
        f"   default probability {applicant.probability:.2%} (declined from {CUT_OFF:.0%} on)",
    )


def table(applicant: Applicant, ascii_only: bool = False) -> Table:
    """One line per feature, the largest effect first."""
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    rows.add_column("feature", no_wrap=True)
    rows.add_column("value", justify="right", no_wrap=True)
    rows.add_column("effect", justify="right", no_wrap=True)
    rows.add_column("lowers the risk".rjust(HALF_BAR) + " | " + "raises it", no_wrap=True)
    largest = max(map(abs, applicant.effects.values()), default=0.0)
    for name, effect in sorted(applicant.effects.items(), key=lambda item: -abs(item[1])):
        style = "red" if effect > 0 else "green"
        length = effect / largest if largest else 0.0
        rows.add_row(
            name,
            f"{applicant.features[name]:,.7g}",
            Text(f"{100 * effect:+.2f}", style),
            Text(bar(length, ascii_only), style),
        )
    return rows


def bar(length: float, ascii_only: bool = False) -> str:
    """A bar from the middle, to the right for a positive length; `length` is −1 to 1.

    Half columns where the terminal has them; an effect too small to be drawn leaves the middle alone.
    """
    middle, full = ("|", "#") if ascii_only else ("│", "█")
    half = "" if ascii_only else ("▌" if length > 0 else "▐")
    halves = round(abs(length) * 2 * HALF_BAR)
    drawn, rest = full * (halves // 2), half * (halves % 2)
    if length > 0:
        return " " * HALF_BAR + f" {middle} " + drawn + rest
    return (rest + drawn).rjust(HALF_BAR) + f" {middle}"


def summary(applicant: Applicant) -> str:
    total = 100 * sum(applicant.effects.values())
    return (
        f"base value {applicant.base:.2%}, effects {total:+.2f} points = {applicant.probability:.2%}; "
        f"completeness gap {abs(applicant.gap):.1e}"
    )


def timing(latency: Latency) -> str:
    return (
        f"Latency over HTTP, one applicant, median of {latency.requests} requests: "
        f"{latency.predict_ms:.1f} ms for the prediction alone, "
        f"{latency.explain_ms:.1f} ms for prediction and explanation."
    )


def next_steps(example: Path) -> tuple[str, ...]:
    """The same by hand, with commands that work where the reader stands."""
    folder = short(example)
    command = "rationale" if shutil.which("rationale") else short(Path(sys.executable).parent / "rationale")
    return (
        f"  {command} compile {folder}/credit.onnx --method deepshap --output default_probability \\",
        f"      --references {folder}/references.csv --name credit --repository model_repository",
        f"  {command} serve --repository model_repository",
        "  curl -H 'content-type: application/json' http://127.0.0.1:8080/v1/models/credit:explain \\",
        f"      -d @{folder}/applicants.json",
    )


def short(path: Path) -> str:
    """Relative to where the reader stands, where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


def say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, width=min(console.width, WIDTH))
