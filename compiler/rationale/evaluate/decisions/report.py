"""The output of `rationale decisions report`: tables, report.json, report.html and CSVs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from rich.table import Table

from rationale.artifact.repository.folder import write
from rationale.decisions.rows import profile_of
from rationale.decisions.stability import DRAWS
from rationale.evaluate.decisions.measures import DecisionReport, GroupRates, cell_text
from rationale.evaluate.decisions.moved import ScoreMovement
from rationale.evaluate.report import csv_of, json_of
from rationale.pictures.figures import levels
from rationale.pictures.markup import element, number_table, page
from rationale.pictures.numbers import score_text

DECISIONS, REASONS, GROUPS, WHOLE = "decisions.csv", "reasons.csv", "groups.csv", "report.json"
PAGE = "report.html"
SHOWN = 20  # reasons in a table
_TEXT = 60  # characters of a reason's text


def tables(report: DecisionReport) -> Iterator[Table]:
    """Yield the titled tables of a report."""
    yield _outcomes(report)
    yield _reasons(report)
    if report.agreements:
        yield _agreements(report)
    if isinstance(report.moved, ScoreMovement):
        yield _moved(report.moved)
    if report.groups:
        yield _groups(report)
    if report.label is not None:
        yield _label(report)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    return table


def _outcomes(report: DecisionReport) -> Table:
    count = len(report.file.rows)
    threshold = score_text(profile_of(report.manifest).profile.threshold, report.manifest.decides_share)
    table = _table(f"Decisions: {count:,} rows, threshold {threshold}")
    table.add_column("")
    table.add_column("rows", justify="right")
    table.add_column("share", justify="right")
    for outcome, rows in report.outcomes.items():
        table.add_row(outcome, f"{rows:,}", _percent(rows / count))
    table.add_row("declined by a knock-out", f"{report.knocked_out:,}", _percent(report.knocked_out / count))
    for cause, rows in report.without_reasons.items():
        table.add_row(f"without reasons: {cause}", f"{rows:,}", _percent(rows / count))
    gaps = report.gaps
    largest = "–" if gaps.largest is None else f"{gaps.largest:.1e}"
    above = f"gap above {gaps.tolerance:.1e} (largest {largest})"
    table.add_row(above, f"{gaps.above:,}", _percent(gaps.above / count))
    return table


def _reasons(report: DecisionReport) -> Table:
    stays = [f"stays by {name}" if name != DRAWS else "of draws" for name in _survivals(report)]
    declines = report.outcomes["decline"]
    columns = ("code", "text", "declines", "share", "first", "weight")
    table = _table(f"Principal reasons of {declines:,} declines", *columns)
    table.columns[1].justify = "left"
    for column in stays:
        table.add_column(column, justify="right")
    for reason in report.reasons[:SHOWN]:
        text = reason.text if len(reason.text) <= _TEXT else f"{reason.text[: _TEXT - 1]}…"
        counts = (f"{reason.declines:,}", _percent(reason.declines / declines), f"{reason.first:,}")
        survival = (_percent(reason.survival.get(name)) for name in _survivals(report))
        table.add_row(reason.code, text, *counts, _percent(reason.share), *survival)
    if len(report.reasons) > SHOWN:
        table.add_row("…", f"{len(report.reasons) - SHOWN} more")
    return table


def _survivals(report: DecisionReport) -> list[str]:
    return [agreement.name for agreement in report.agreements]


def _agreements(report: DecisionReport) -> Table:
    title = f"Other references: the same reasons, of {report.by_score} declines by score"
    table = _table(title, "by", "same set", "same order", "changed")
    drawn = sum(comparison.kind == "draw" for comparison in report.file.comparisons)
    for agreement in report.agreements:
        name = f"{drawn} draws, mean" if agreement.name == DRAWS else agreement.name
        changed = _percent(agreement.changed) + (" in any" if agreement.name == DRAWS else "")
        table.add_row(name, _percent(agreement.same_set), _percent(agreement.same_order), changed)
    return table


def _moved(movement: ScoreMovement) -> Table:
    title = f"Features moved to {movement.references} references' values: {movement.declines} declines"
    table = _table(title, "which", "score moves by", "passes after it")
    table.add_row("the named reasons", f"{movement.named:.4g}", _percent(movement.passing))
    table.add_row("as many others, at random", f"{movement.others:.4g}", _percent(movement.passing_others))
    table.add_row("named further than others", _percent(movement.larger), "")
    return table


def _groups(report: DecisionReport) -> Table:
    columns = ("group", "rows", "approved", "referred", "declined", "ratio of approvals")
    table = _table("Protected groups: each rate of approvals over the highest", *columns)
    for group in report.groups:
        name = _group_name(report, group) + " (small)" * group.small
        ratio = "–" if group.ratio is None else f"{group.ratio:.2f}"
        rates = map(_percent, (group.approved, group.referred, group.declined))
        table.add_row(name, f"{group.rows:,}", *rates, ratio)
    return table


def _group_name(report: DecisionReport, group: GroupRates) -> str:
    """Return a group in the profile's words, such as Sex = female."""
    profile = profile_of(report.manifest).profile
    rule = profile.features.get(group.column)
    label = None if rule is None or group.value is None else rule.label(group.value)
    return f"{profile.title(group.column)} = {label or cell_text(group.value)}"


def _label(report: DecisionReport) -> Table:
    label = report.label
    assert label is not None
    title = f"{label.column} = {cell_text(label.positive)}: {_percent(label.rate)} of all rows"
    table = _table(title, "decision", "share")
    for outcome, rate in label.by_outcome.items():
        table.add_row(outcome, _percent(rate))
    return table


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


# -- files ---------------------------------------------------------------------------------------------


def write_report(report: DecisionReport, data: Path, seed: int, folder: Path) -> list[str]:
    """Write the files; return their names.

    Raises:
        InvalidOptionError: if the folder cannot be created or written.
    """
    contents = {
        WHOLE: _json(report, data, seed),
        DECISIONS: csv_of(list(_decisions(report))),
        REASONS: csv_of([_flat(asdict(reason)) for reason in report.reasons]),
        PAGE: page(f"Decisions by {report.name}", _page_elements(report)),
    }
    if report.groups:
        contents[GROUPS] = csv_of([asdict(group) for group in report.groups])
    write(folder, contents)
    return list(contents)


def _page_elements(report: DecisionReport) -> Iterator[Element]:
    """Yield the elements of the page: bars of reasons, agreements and groups, and every table."""
    declines = report.outcomes["decline"]
    if report.reasons:
        shares = [(f"{r.code} {r.text}", 100 * r.declines / declines) for r in report.reasons[:SHOWN]]
        yield levels("Principal reasons", f"% of {declines:,} declines", shares)
    if report.agreements:
        shares = [(agreement.name, 100 * agreement.same_set) for agreement in report.agreements]
        yield levels("The same reasons by other references", f"% of {report.by_score} declines", shares)
    if report.groups:
        approved = [(_group_name(report, group), 100 * group.approved) for group in report.groups]
        yield levels("Approvals by protected group", "% of each group's rows", approved)
    for table in tables(report):
        heads = [(str(column.header), column.justify == "right") for column in table.columns]
        rows = zip(*(map(str, column.cells) for column in table.columns), strict=True)
        numbers = number_table(heads, rows, str(table.title))
        yield element("figure", element("figcaption", str(table.title)), numbers)


def _json(report: DecisionReport, data: Path, seed: int) -> bytes:
    manifest, embedded = report.manifest, profile_of(report.manifest)
    movement = None if isinstance(report.moved, str) else asdict(report.moved)
    content = {
        "version": 1,
        "entry": report.name,
        "data": data.name,
        "rows": len(report.file.rows),
        "seed": seed,
        "digests": {**manifest.digests.model_dump(), "profile": embedded.digest},
        "policy": embedded.profile.references.policy,
        "threshold": embedded.profile.threshold,
        "outcomes": report.outcomes,
        "without_reasons": report.without_reasons,
        "knocked_out": report.knocked_out,
        "by_score": report.by_score,
        "reasons": [asdict(reason) for reason in report.reasons],
        "comparisons": [comparison.model_dump() for comparison in report.file.comparisons],
        "agreements": [asdict(agreement) for agreement in report.agreements],
        "moved": movement,
        "groups": [asdict(group) for group in report.groups],
        "label": None if report.label is None else asdict(report.label),
        "gaps": asdict(report.gaps),
        "notes": report.notes,
    }
    return json_of(content)


def _decisions(report: DecisionReport) -> Iterator[dict[str, Any]]:
    """Yield a record for each row of the data; all have the same number of reason columns."""
    most = max((len(row.codes) for row in report.file.rows), default=0)
    for i, row in enumerate(report.file.rows):
        explained = row.explained
        reasons = () if row.decision is None else row.decision.reasons
        record: dict[str, Any] = {
            "row": i,
            "decision": row.outcome,
            "score": explained.score,
            "explained_value": explained.explained_value,
            "base_value": explained.base_value,
            "completeness_gap": explained.gap,
        }
        for rank in range(most):
            reason = reasons[rank] if rank < len(reasons) else None
            record[f"reason_{rank + 1}"] = reason and reason.code
            record[f"attribution_{rank + 1}"] = reason and reason.attribution
        for comparison, codes in zip(report.file.comparisons, row.comparison_codes, strict=False):
            record[f"reasons by {comparison.name}"] = " ".join(codes)
        record["without_reasons"] = row.fault
        for name in report.file.kept_columns:
            record[f"{name} of the data" if name in record else name] = report.file.further[name][i]
        yield record


def _flat(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return members with nested mappings flattened to a column each."""
    columns: dict[str, Any] = {}
    for key, value in members.items():
        parts = value if isinstance(value, dict) else {"": value}
        columns |= {f"{key}_{name}".rstrip("_"): value for name, value in parts.items()}
    return columns
