"""What `rationale bench` shows and writes: tables, bench.json and plots."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from rationale.artifact.folder import write
from rationale.bench import plot
from rationale.bench.cases import CAPTUM, FORWARD, OURS, SHAP, Settings
from rationale.bench.measure import Machine, Measured, Outcome, versions
from rationale.bench.timing import Ratio, quartiles, ratio
from rationale.errors import InvalidOptionError

JSON_FILE, PLOT_FILE, CURVES_FILE = "bench.json", "bench.png", "references.png"
VERSION = 4


def ratios(outcome: Outcome) -> dict[str, Ratio]:
    """`ort-forward`: our time over that of a forward pass; of each other peer: its time over ours."""
    times = {name: one.times_s for name, one in outcome.systems.items()}
    ours = times[OURS]
    return {
        name: ratio(ours, theirs) if name == FORWARD else ratio(theirs, ours)
        for name, theirs in times.items()
        if name != OURS
    }


def median_s(outcome: Outcome, name: str) -> float:
    """Over the rounds, of each round's median."""
    return _times(outcome)[name][1]


def show(outcomes: Sequence[Outcome]) -> Table:
    """Return the ratios, each with its quartiles over the rounds and that of the fastest calls."""
    table = Table(
        "",
        "ours",
        "ours to the forward\nof N·(1+K) rows ↓",
        "SHAP\nto ours ↑",
        "captum\nto ours ↑",
        "error against\nfloat64 ↓",
        "missing from\nthe sum ↓",
        "compiled in",
        box=None,
        pad_edge=False,
    )
    for outcome in outcomes:
        found = ratios(outcome)
        table.add_row(
            outcome.case.label,
            _time(outcome),
            *(_ratio(found.get(name)) for name in (FORWARD, SHAP, CAPTUM)),
            *(_error(value) for value in (outcome.systems[OURS].error, outcome.systems[OURS].gap)),
            f"{outcome.compile_s:.1f} s",
        )
    return table


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def _time(outcome: Outcome) -> str:
    """Of one run, with its quartiles over the rounds, and what that is in rows."""
    low, median, high = (_milliseconds(seconds) for seconds in _times(outcome)[OURS])
    return f"{median} ms ({low}–{high})\n{rows_per_s(outcome, OURS):.4g} rows/s"


def rows_per_s(outcome: Outcome, name: str) -> float:
    """N over the median time of a run."""
    return outcome.case.rows / median_s(outcome, name)


def _error(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def _ratio(found: Ratio | None) -> str:
    if found is None:
        return "–"
    return f"{found.median:.2f} ({found.low:.2f}–{found.high:.2f})\nfastest: {found.least:.2f}"


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what a reader of the table must know, one line each."""
    lines = [
        "medians over the rounds, each system in turn; in brackets the quartiles; below, the fastest calls "
        "alone: where the two differ much, the machine was busy with something else",
        "error: of our attributions, over the largest one; missing from the sum: how far they are from "
        "adding up to what they explain, over the largest of that",
    ]
    for outcome in outcomes:
        for name, one in outcome.systems.items():
            if one.notes:
                said = " and ".join(one.notes)
                lines.append(f"{outcome.case.label}: {name} {said}; {_off(one)}")
        lines += [f"{outcome.case.label}: no {name}: {why}" for name, why in outcome.left_out.items()]
    return lines


def _off(one: Measured) -> str:
    if one.error is not None:
        share = f"{one.error:.0%} of" if one.error < 10 else f"{one.error:.0f} times"
        return f"it is off by {share} the largest attribution"
    return f"its values add up to something else, off by {one.gap:.3g} times what they explain"


# -- files ---------------------------------------------------------------------------------------------


def write_report(
    outcomes: Sequence[Outcome], settings: Settings, machine: Machine, folder: Path
) -> tuple[list[str], list[str]]:
    """Write bench.json and its pictures; return their names and what to say.

    The pictures need matplotlib: bench.png, and references.png where only K differs.

    Raises:
        InvalidOptionError: the folder cannot be made or written.
    """
    text = json.dumps(contents(outcomes, settings, machine), indent=1, allow_nan=False, ensure_ascii=False)
    files, said = {JSON_FILE: f"{text}\n".encode()}, []
    try:
        files[PLOT_FILE] = plot.bars({o.case.label: _times(o) for o in outcomes})
        if swept := curves(outcomes):
            files[CURVES_FILE] = plot.curves(swept)
    except InvalidOptionError as error:  # the numbers are worth having without it
        said.append(str(error))
    write(folder, files)
    return list(files), said


def curves(outcomes: Sequence[Outcome]) -> dict[str, dict[str, dict[int, tuple[float, float, float]]]]:
    """By network and system: quartiles of the times by K, where a network has several."""
    found: dict[str, dict[str, dict[int, tuple[float, float, float]]]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.case.references):
        lines = found.setdefault(outcome.case.label_without_references, {})
        for name, times in _times(outcome).items():
            lines.setdefault(name, {})[outcome.case.references] = times
    return {label: lines for label, lines in found.items() if len(lines[OURS]) > 1}


def _times(outcome: Outcome) -> dict[str, tuple[float, float, float]]:
    """Quartiles of each system's rounds, in seconds."""
    return {
        name: quartiles([statistics.median(turn) for turn in one.times_s])
        for name, one in outcome.systems.items()
    }


def contents(outcomes: Sequence[Outcome], settings: Settings, machine: Machine) -> dict[str, Any]:
    """bench.json: times in seconds, sizes in bytes, errors over the largest true attribution."""
    return {
        "version": VERSION,
        "machine": machine,
        "versions": versions(),
        "settings": asdict(settings),
        "cases": [_case(outcome) for outcome in outcomes],
    }


def _case(outcome: Outcome) -> dict[str, Any]:
    systems = {
        name: {
            "median_s": median_s(outcome, name),
            "quartiles_s": _times(outcome)[name],
            "rows_per_s": rows_per_s(outcome, name),
            **asdict(one),
        }
        for name, one in outcome.systems.items()
    }
    return {
        "label": outcome.case.label,
        **asdict(outcome.case),
        "compile_s": outcome.compile_s,
        "model_bytes": outcome.model_bytes,
        "plain_bytes": outcome.plain_bytes,
        "ratios": {name: asdict(found) for name, found in ratios(outcome).items()},
        "systems": systems,
        "left_out": outcome.left_out,
    }
