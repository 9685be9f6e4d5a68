"""Decisions on the rows of a file by an entry, and explanations by each of its comparisons."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rationale.artifact.applicants import read_applicants
from rationale.artifact.compiled import Compiled
from rationale.artifact.entry import open_entry
from rationale.decisions.decide import (
    Decision,
    NoReasonsError,
    Outcome,
    decide,
    meets_condition,
    outcome_of,
)
from rationale.decisions.decided import refusals
from rationale.decisions.rows import ExplainedRow, explained_rows, feature_values
from rationale.decisions.stability import Codes, reason_codes, with_profile
from rationale.errors import InvalidOptionError, RepositoryError
from rationale.evaluate.explained_model import slices
from rationale.schema.manifest import FILE_NAME, Comparison, EmbeddedProfile, Manifest
from rationale.schema.request import Progress


@dataclass(frozen=True)
class DecidedRow:
    """A row of a file with its decision.

    Attributes:
        decision: None if no reasons could be given; `fault` says why.
        comparison_codes: the codes of the reasons that each comparison would give; empty if the score
            approves or a knock-out declines.
    """

    explained: ExplainedRow
    outcome: Outcome
    decision: Decision | None
    fault: str | None = None
    comparison_codes: tuple[Codes, ...] = ()

    @property
    def codes(self) -> Codes:
        """Codes of the principal reasons, largest first."""
        return () if self.decision is None else tuple(reason.code for reason in self.decision.reasons)

    @property
    def by_score(self) -> bool:
        """True if declined for reasons that come from attributions, not a knock-out."""
        reasons = () if self.decision is None else self.decision.reasons
        return self.outcome == "decline" and bool(reasons) and reasons[0].attribution is not None


@dataclass(frozen=True)
class DecidedFile:
    """The rows of a file with an entry's decisions.

    Attributes:
        inputs: the model's inputs, [N, …] each.
        further: columns other than the model's inputs, [N] plain values each, None if a cell is empty.
        kept_columns: names of the further columns that the caller requested.
    """

    compiled: Compiled
    comparisons: tuple[Comparison, ...]
    rows: tuple[DecidedRow, ...]
    inputs: Mapping[str, np.ndarray]
    further: Mapping[str, Sequence[Any]]
    kept_columns: tuple[str, ...] = ()


def find_deciding_model(repository: Path) -> str:
    """Return the name of the repository's only model with a decision profile.

    Raises:
        InvalidOptionError: if there is none, or several.
        RepositoryError: if a manifest cannot be read.
    """
    manifests = [Manifest.read(file) for file in sorted(repository.glob(f"*/{FILE_NAME}"))]
    names = [manifest.model for manifest in manifests if manifest.decision is not None]
    if len(names) != 1:
        advice = f"name one of its models, {', '.join(names)}" if names else "compile one with --decision"
        raise InvalidOptionError(f"{repository} has {len(names)} models with a decision profile: {advice}.")
    return names[0]


def decide_file(
    repository: Path, name: str, file: Path, columns: Sequence[str], progress: Progress
) -> DecidedFile:
    """Decide every row of a file.

    It runs rows in batches, so their last bits may differ from the gateway's answers.

    Args:
        columns: further columns of the file to keep, such as a label or protected attributes.

    Raises:
        RepositoryError: if the entry or a comparison is missing, unreadable or another one.
        InvalidOptionError, InvalidReferencesError: if there is no profile, or rows or columns do not fit.
    """
    compiled = open_entry(repository, name)
    manifest = compiled.manifest
    if manifest.decision is None:
        raise InvalidOptionError(
            f"{name!r} has no decision profile: compile it with --decision decision.yaml."
        )
    embedded = manifest.decision
    comparisons = [_open_comparison(repository, comparison) for comparison in embedded.comparisons]
    inputs, further, knock_outs = read_applicants(compiled, file, columns)
    values = [
        {**{column: further[column][i] for column in knock_outs}, **cells}
        for i, cells in enumerate(feature_values(manifest, inputs))
    ]
    _check_domain(compiled.manifest, inputs, values)
    explained = _explain_rows(compiled, inputs, "deciding", progress)
    rows = []
    for row, cells in zip(explained, values, strict=True):
        try:
            decision = decide(embedded, row, cells)
        except NoReasonsError as error:
            hit = any(meets_condition(rule, cells.get(rule.feature)) for rule in embedded.profile.knock_outs)
            outcome = "decline" if hit else outcome_of(embedded.profile, row.score)
            rows.append(DecidedRow(row, outcome, None, str(error)))
        else:
            rows.append(DecidedRow(row, decision.decision, decision))
    by_score = [i for i, row in enumerate(rows) if row.decision is not None and _is_of_score(row)]
    if by_score:
        declined = {tensor: array[by_score] for tensor, array in inputs.items()}
        names = [comparison.name for comparison in embedded.comparisons]
        for number, (name, other) in enumerate(zip(names, comparisons, strict=True), start=1):
            stage = f"{name} ({number} of {len(comparisons)})"
            other = replace(other, manifest=with_profile(other.manifest, embedded))
            for i, row in zip(by_score, _explain_rows(other, declined, stage, progress), strict=True):
                codes = (*rows[i].comparison_codes, _codes(embedded, row, name))
                rows[i] = replace(rows[i], comparison_codes=codes)
    return DecidedFile(compiled, embedded.comparisons, tuple(rows), inputs, further, tuple(columns))


def _check_domain(
    manifest: Manifest, inputs: Mapping[str, np.ndarray], values: Sequence[Mapping[str, Any]]
) -> None:
    """Raise InvalidOptionError if rows have values that the model or the profile does not take."""
    faults = list(refusals(manifest, inputs, values))
    if faults:
        rows, (first, fault) = len({i for i, _ in faults}), faults[0]
        raise InvalidOptionError(
            f"{rows} of {len(values)} rows of the file would get no decision: in row {first + 1} {fault}. "
            "Remove such rows, or allow them in the profile (least, most, categories; outside: warn)."
        )


def _is_of_score(row: DecidedRow) -> bool:
    assert row.decision is not None
    return any(reason.attribution is not None for reason in row.decision.reasons)


def _codes(embedded: EmbeddedProfile, row: ExplainedRow, name: str) -> Codes:
    """Return the codes of a comparison's reasons; empty if it cannot give reasons."""
    try:
        return reason_codes(embedded, row, name)
    except NoReasonsError:
        return ()


def _open_comparison(repository: Path, comparison: Comparison) -> Compiled:
    """Open a comparison; raise RepositoryError if it is missing or is another one."""
    folder = repository / comparison.entry
    if not folder.is_dir():
        raise RepositoryError(
            f"{folder}: the comparison {comparison.name!r} is missing. Compile the model again."
        )
    other = open_entry(repository, comparison.entry)
    if other.manifest.digests.explanation != comparison.explanation:
        raise RepositoryError(
            f"{folder}: differs from the comparison {comparison.name!r} that was compiled with the entry. "
            "Compile the model again."
        )
    return other


def _explain_rows(
    compiled: Compiled, inputs: Mapping[str, np.ndarray], stage: str, progress: Progress
) -> list[ExplainedRow]:
    count, explained = len(next(iter(inputs.values()))), list[ExplainedRow]()
    for batch in slices(count, compiled.manifest.measured.max_batch):
        progress(stage, batch.start, count)
        answer = compiled.run({tensor: rows[batch] for tensor, rows in inputs.items()})
        explained += explained_rows(compiled.manifest, answer)
    not_finite = next((i for i, row in enumerate(explained) if not math.isfinite(row.score)), None)
    if not_finite is not None:
        raise InvalidOptionError(
            f"row {not_finite + 1} of the file has the score {explained[not_finite].score}. Leave out the "
            "rows that the model cannot answer."
        )
    return explained


def plain_cell(cell: Any) -> Any:
    """Return a cell's plain value: a number, a text, or None if it is empty or not finite."""
    if cell is None or isinstance(cell, bool):
        return cell
    text = str(cell).strip()
    try:
        number = float(text)
    except ValueError:
        return text or None
    return number if math.isfinite(number) else None
