"""The output of `rationale evaluate`: a table, evaluation.csv, .json and .html."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from rich.table import Table

from rationale.artifact.repository.folder import write
from rationale.evaluate.evaluate import Evaluation, EvaluationSettings
from rationale.evaluate.faithfulness import Curve
from rationale.evaluate.shapley import LARGEST, ShapleyComparison
from rationale.methods.coalitions.shapley import MOST_ENUMERATED
from rationale.pictures.figures import ChartLine, figures, lines
from rationale.pictures.markup import element, page

_EXACT = ("exactshap", "treeshap")
CSV_FILE, JSON_FILE, HTML_FILE = "evaluation.csv", "evaluation.json", "evaluation.html"


def csv_row(e: Evaluation) -> dict[str, str | int | float | None]:
    """Return an entry's row of evaluation.csv."""
    last = e.randomised.stages[-1] if e.randomised.stages else None
    return {
        "entry": e.name,
        "method": e.manifest.method.name,
        "options": json.dumps(e.manifest.method.options, sort_keys=True),
        "output": e.manifest.explained_output,
        "rows": e.rows,
        "targets": e.targets,
        "features": e.features,
        "baseline": e.baseline,
        "deletion_area": e.deletion.area,
        "deletion_random": float(e.deletion.control_areas.mean()),
        "deletion_random_spread": float(e.deletion.control_areas.std()),
        "insertion_area": e.insertion.area,
        "insertion_random": float(e.insertion.control_areas.mean()),
        "insertion_random_spread": float(e.insertion.control_areas.std()),
        "randomised_correlation": last.correlation if last else None,
        "randomised_spread": last.spread if last else None,
        "randomised_correlation_absolute": last.absolute if last else None,
        "randomised_left_out": e.randomised.left_out,
        **_shapley_numbers(e),
        "explanation_digest": e.manifest.digests.explanation,
    }


def _shapley_numbers(e: Evaluation) -> dict[str, str | int | float | None]:
    """Return the Shapley columns, the same for every entry; None without Shapley values."""
    comparison = e.shapley if isinstance(e.shapley, ShapleyComparison) else None
    columns: dict[str, Callable[[ShapleyComparison], float | int | None]] = {
        "shapley_distance": lambda c: _median(c.distances),
        "shapley_distance_least": lambda c: min(c.distances, default=None),
        "shapley_distance_largest": lambda c: max(c.distances, default=None),
        "shapley_correlation": lambda c: _median(c.correlations),
        "shapley_correlation_least": lambda c: min(c.correlations, default=None),
        "shapley_same_first": lambda c: c.first,
        "shapley_same_largest": lambda c: c.largest,
        "shapley_declines": lambda c: c.reasons.declines if c.reasons else None,
        "shapley_same_list": lambda c: c.reasons.same_list if c.reasons else None,
        "shapley_same_set": lambda c: c.reasons.same_set if c.reasons else None,
        "shapley_standard_error": lambda c: _median(c.errors),
        "shapley_standard_error_largest": lambda c: max(c.errors, default=None),
        "shapley_rounds": lambda c: c.rounds,
        "shapley_evaluations": lambda c: c.evaluations,
    }
    return {name: column(comparison) if comparison else None for name, column in columns.items()}


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def summary_table(evaluations: Sequence[Evaluation]) -> Table:
    """Return a table of the numbers that a person compares."""
    table = Table(
        "entry",
        "method",
        "deletion ↓\n(random)",
        "insertion ↑\n(random)",
        "randomised\nweights → 0",
        box=None,
        pad_edge=False,
    )
    for e in evaluations:
        last = e.randomised.stages[-1] if e.randomised.stages else None
        table.add_row(
            e.name,
            e.method.replace(", ", "\n", 1),
            f"{e.deletion.area:.4g}\n{_control(e.deletion)}",
            f"{e.insertion.area:.4g}\n{_control(e.insertion)}",
            _number(last.correlation if last else None, "+.2f")
            + (f" ± {last.spread:.2f}" if last and last.spread is not None else ""),
        )
    return table


def shapley_table(evaluations: Sequence[Evaluation]) -> Table | None:
    """Return a table of distances from Shapley values; None without Shapley values."""
    compared = {e.name: e.shapley for e in evaluations if isinstance(e.shapley, ShapleyComparison)}
    decides = any(c.reasons for c in compared.values())
    table = Table(
        "entry",
        "distance from\nShapley values ↓",
        "standard error\nof these",
        "rank\ncorrelation ↑",
        "same first\nfeature ↑",
        f"same {LARGEST}\nlargest ↑",
        *(["same reasons,\nin order ↑", "same reasons,\nin any order ↑"] if decides else []),
        box=None,
        pad_edge=False,
    )
    for name, c in compared.items():
        spans = (_span(c.distances, ".1%"), _span(c.errors, ".1%"), _span(c.correlations, ".2f"))
        reasons = (c.reasons.same_list, c.reasons.same_set) if c.reasons else (None, None)
        shares = (_number(share, ".0%") for share in (c.first, c.largest, *reasons))
        table.add_row(name, *spans, *[*shares][: len(table.columns) - 4])
    return table if compared else None


def _span(values: Sequence[float], form: str) -> str:
    if not values:
        return "–"
    least, largest = format(min(values), form), format(max(values), form)
    return f"{_number(_median(values), form)}\n({least} to {largest})"


def _control(curve: Curve) -> str:
    return f"({curve.control_areas.mean():.4g} ± {curve.control_areas.std():.1g})"


def _number(value: float | None, form: str = ".3g") -> str:
    return "–" if value is None else format(value, form)


def notes(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return notes for the reader of the table, one line each."""
    lines = []
    for e in evaluations:
        rows = f"{e.name}: {e.rows} rows, {e.targets} target(s) of {e.manifest.explained_output} a row"
        lines.append(f"{rows}, {e.features} features replaced by: {e.baseline}")
        if e.baseline == "zeros":
            lines.append(
                f"{e.name}: zeros may be far from any real row; compare it with an entry of the same model "
                "that has references"
            )
        if e.randomised.left_out:
            lines.append(f"{e.name}: no randomised-weights check: {e.randomised.left_out}")
        if isinstance(e.shapley, ShapleyComparison):
            players, rounds = e.shapley.players, e.shapley.rounds
            scope = f"up to {rounds} rounds a row" if rounds else f"every coalition of {players} players"
            lines.append(
                f"{e.name}: Shapley values by {scope}, {e.shapley.evaluations} answers of the model; medians "
                "over rows and targets, least to largest"
            )
            if e.shapley.reasons:
                declines = e.shapley.reasons.declines
                lines.append(f"{e.name}: principal reasons of {declines} rows that the score declines")
            if players <= MOST_ENUMERATED and e.manifest.method.name not in _EXACT:
                lines.append(
                    f"{e.name}: {players} players are few enough for exact Shapley values: compile with "
                    "--method exactshap"
                )
        elif e.shapley:
            lines.append(f"{e.name}: no Shapley values: {e.shapley}")
    return lines


# -- files ---------------------------------------------------------------------------------------------


def write_report(
    evaluations: Sequence[Evaluation], settings: EvaluationSettings, input_file: Path, folder: Path
) -> list[str]:
    """Write the files; return their names.

    Raises:
        InvalidOptionError: if the folder cannot be created or written.
    """
    contents = {
        HTML_FILE: page("Evaluation of explanations", _page_elements(evaluations)),
        CSV_FILE: csv_of([csv_row(e) for e in evaluations]),
        JSON_FILE: _json(evaluations, settings, input_file),
    }
    write(folder, contents)
    return list(contents)


def _page_elements(evaluations: Sequence[Evaluation]) -> Iterator[Element]:
    """Yield the notes, the curves, and the first rows as each entry explains them."""
    yield from (element("p", note, class_="note") for note in notes(evaluations))
    for kind in ("deletion", "insertion"):
        yield from _curves(evaluations, kind)
    if redrawn := [e for e in evaluations if e.randomised.stages]:
        yield _randomised_lines(redrawn)
    side_by_side = zip_longest(*(e.panels for e in evaluations))
    yield from figures(panel for row in side_by_side for panel in row if panel)


def _curves(evaluations: Sequence[Evaluation], kind: str) -> Iterator[Element]:
    """Draw one figure per model, output, baseline and list of targets; only such curves start alike."""
    groups: dict[object, list[Evaluation]] = {}
    for e in evaluations:
        model, output = e.manifest.digests.model, e.manifest.explained_output
        groups.setdefault((model, output, e.baseline.split(" of ")[0], str(e.manifest.targets)), []).append(e)
    for group in groups.values():
        named: list[tuple[str, Curve]] = [(f"{e.name} ({e.method})", getattr(e, kind)) for e in group]
        control = named[0][1]
        band = ChartLine(
            f"random orders: mean and range of {len(control.control)}",
            f"area {control.control_areas.mean():.4g} ± {control.control_areas.std():.1g}",
            control.fractions,
            control.control.mean(axis=0),
            (control.control.min(axis=0), control.control.max(axis=0)),
        )
        drawn = (ChartLine(label, f"area {c.area:.4g}", c.fractions, c.values) for label, c in named)
        verb = "replaced" if kind == "deletion" else "put back"
        about = f"mean {group[0].manifest.explained_output}; features {verb}, most relevant first"
        yield lines(kind.capitalize(), about, [band, *drawn])


def _randomised_lines(evaluations: Sequence[Evaluation]) -> Element:
    drawn = []
    for e in evaluations:
        stages = [s for s in e.randomised.stages if s.correlation is not None]
        shares = np.array([0.0, *(s.layers / s.of for s in stages)])
        last = _number(stages[-1].correlation if stages else None, "+.2f")
        values = np.array([1.0, *(s.correlation or 0.0 for s in stages)])
        drawn.append(ChartLine(f"{e.name} ({e.method})", last, shares, values))
    about = "rank correlation with the attributions before; layers redrawn, from the output on"
    return lines("Weights redrawn", about, drawn)


def csv_of(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as a CSV file, with a column for each key of any row."""
    text = io.StringIO(newline="")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def json_of(content: Mapping[str, Any]) -> bytes:
    """Return a JSON file."""
    return (json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _json(evaluations: Sequence[Evaluation], settings: EvaluationSettings, input_file: Path) -> bytes:
    entries = [
        {
            **csv_row(e),
            "options": e.manifest.method.options,
            "deletion": _curve(e.deletion),
            "insertion": _curve(e.insertion),
            "randomised": [asdict(stage) for stage in e.randomised.stages],
            "shapley": asdict(e.shapley) if isinstance(e.shapley, ShapleyComparison) else None,
            "digests": e.manifest.digests.model_dump(),
        }
        for e in evaluations
    ]
    return json_of({"version": 1, "input": input_file.name, "settings": asdict(settings), "entries": entries})


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "fractions": curve.fractions.tolist(),
        "values": curve.values.tolist(),
        "control": curve.control.tolist(),
    }
