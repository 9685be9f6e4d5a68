"""Decisions on rows, from applicants' values and the graph's answers.

All deciding commands and routes call it: `:decide`, `rationale decide`, `Compiled.decide` and
`decide_batches`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rationale.decisions.decide import Decision, NoReasonsError, decide, read_cell
from rationale.decisions.domain import domain_faults
from rationale.decisions.rows import Tensors, explained_rows, feature_values, profile_of
from rationale.errors import InvalidOptionError, quoted
from rationale.schema.manifest import Manifest
from rationale.tables.frames import frame_of

Cells = Mapping[str, Sequence[Any]]  # a cell for each row, by column


@dataclass(frozen=True)
class Undecided:
    """A row without a decision.

    Attributes:
        fault: the reason why there is none.
        decision, score, reasons: empty values of a `Decision`'s attributes.
    """

    fault: str
    decision: None = None
    score: None = None
    reasons: tuple[()] = ()

    def as_json(self) -> dict[str, Any]:
        return {"fault": self.fault}


def decide_rows(
    manifest: Manifest, answers: Tensors, values: Sequence[Mapping[str, Any]], inputs: Tensors
) -> Iterator[Decision | Undecided]:
    """Yield the decision on each row.

    Args:
        answers: answers of the combined graph, [N, …] each.
        values: N mappings, one per row, from each feature and each column that a knock-out reads to its
            value; see `values_of`.
        inputs: inputs of the model, [N, …] each.
    """
    embedded = profile_of(manifest)
    warnings = manifest.unknown_texts(inputs)
    for row, row_values, row_warnings in zip(
        explained_rows(manifest, answers), values, warnings, strict=True
    ):
        try:
            decision = decide(embedded, row, row_values)
            yield (
                replace(decision, warnings=(*decision.warnings, *row_warnings)) if row_warnings else decision
            )
        except NoReasonsError as error:
            yield Undecided(str(error))


def refusals(
    manifest: Manifest, inputs: Tensors, values: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int, str]]:
    """Yield rows that get no decision, and the reason, for each value that the model or the profile refuses.

    Args:
        inputs, values: see `decide_rows`.
    """
    yield from manifest.refused_texts(inputs)
    profile = profile_of(manifest).profile
    if profile.outside == "refuse":
        yield from ((i, fault) for i, row in enumerate(values) for fault in domain_faults(profile, row))


def decision_answer(manifest: Manifest, decision: Decision) -> dict[str, Any]:
    """Return a decision as `:decide` answers it, with the digests of its sources, but without an id."""
    digests = manifest.digests
    made_by = {
        "model": digests.model,
        "references": digests.references,
        "explainer": digests.explanation,
        "profile": profile_of(manifest).digest,
    }
    return {**decision.as_json(), "digests": made_by}


def decide_inputs(
    manifest: Manifest,
    run: Callable[[Mapping[str, np.ndarray]], Tensors],
    inputs: Tensors,
    knock_out_cells: Cells,
) -> Iterator[Decision | Undecided]:
    """Decide rows of the model's inputs, each run by itself: its numbers do not depend on the others.

    Args:
        run: a function that runs the combined graph.
        inputs: rows by input, [N, …] each.
        knock_out_cells: cells of the columns that knock-outs read and the model does not; see
            `read_knock_out_cells`.
    """
    for i, features in enumerate(feature_values(manifest, inputs)):
        values = {**features, **{name: cells[i] for name, cells in knock_out_cells.items()}}
        row = {name: rows[i : i + 1] for name, rows in inputs.items()}
        if faults := [fault for _, fault in refusals(manifest, row, [values])]:
            yield Undecided("; ".join(faults))
            continue
        answers = run(row)
        infinite = next(
            (name for name, a in answers.items() if a.dtype.kind == "f" and not np.isfinite(a).all()), None
        )
        if infinite is not None:
            yield Undecided(f"output '{infinite}' is not finite: the row is outside the range of the model")
        else:
            yield from decide_rows(manifest, answers, [values], row)


def knock_out_columns(manifest: Manifest, inputs: Tensors) -> set[str]:
    """Return the features that knock-outs read and the model does not take."""
    known = feature_values(manifest, {tensor: rows[:1] for tensor, rows in inputs.items()})[0]
    return {rule.feature for rule in profile_of(manifest).profile.knock_outs} - known.keys()


def read_knock_out_cells(manifest: Manifest, columns: Cells, names: Collection[str]) -> dict[str, list[Any]]:
    """Return cells of a table in the types that knock-outs compare; raise InvalidOptionError for others."""
    rules = profile_of(manifest).profile.knock_outs
    return {name: [read_cell(cell, name, rules) for cell in columns[name]] for name in names}


def find_knock_out_cells(manifest: Manifest, inputs: Tensors, rows: Any) -> dict[str, list[Any]]:
    """Return the cells of the columns that knock-outs read and the model does not.

    Raises:
        InvalidOptionError: if a column is not there, or holds values of another type than the knock-outs
            need.
    """
    names = sorted(knock_out_columns(manifest, inputs))
    table: Any = rows if isinstance(rows, Mapping) else frame_of(rows)
    columns = table if isinstance(rows, Mapping) else table.labels if table else ()
    missing = [name for name in names if name not in columns]
    if missing:
        raise InvalidOptionError(
            f"the rows: columns {quoted(missing)} are missing, and knock-outs need them. Give a table with "
            "these columns, and leave unknown cells empty."
        )
    return read_knock_out_cells(manifest, {name: _cells(table[name]) for name in names}, names)


def _cells(column: Any) -> list[Any]:
    cells = np.asarray(column).reshape(-1).tolist()
    return [None if type(cell).__name__ == "NAType" else cell for cell in cells]  # pandas.NA
