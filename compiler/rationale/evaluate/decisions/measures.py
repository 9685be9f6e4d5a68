"""Statistics of decisions and their reasons over all rows of a file; they count and do not judge."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from rationale.decisions.decide import Outcome
from rationale.decisions.rows import profile_of
from rationale.decisions.stability import DRAWS, reason_survival
from rationale.errors import InvalidOptionError
from rationale.evaluate.decisions.decided import DecidedFile, DecidedRow, decide_file, plain_cell
from rationale.evaluate.decisions.moved import ScoreMovement, measure_movement
from rationale.evaluate.evaluate import read_references
from rationale.schema.manifest import Manifest
from rationale.schema.request import Progress, silent

SMALL = 30  # rows; rates of smaller groups say little
MOST_GROUPS = 20  # values of a protected attribute
OUTCOMES: tuple[Outcome, ...] = ("approve", "refer", "decline")
NOT_RECORDED = (
    "the audit trail contains none of these decisions: use `rationale decide --audit` to record decisions"
)
NO_COMPARISONS = (
    "the stability of the reasons is unknown, since the entry has no comparisons: compile it with "
    "--compare all_applicants=FILE --draws 10"
)
NO_REFERENCES = "the effect of the named reasons on the score is left out: give --references FILE"


@dataclass(frozen=True)
class ReasonCount:
    """Frequency and stability of a reason's code.

    Attributes:
        declines: number of declines with the code as a principal reason.
        first: number of declines with the code as the first reason.
        share: mean share of a decline's adverse attributions; None for a knock-out's code.
        survival: share of these declines, without knock-outs, in which the code stays under another
            baseline; for draws, the mean share of draws.
    """

    code: str
    text: str
    declines: int
    first: int
    share: float | None
    survival: dict[str, float]


@dataclass(frozen=True)
class Agreement:
    """Shares of the declines by score with the same codes, in any order and in the same order.

    `changed` is the share whose set of codes changes; for draws, in at least one draw.
    """

    name: str
    same_set: float
    same_order: float
    changed: float


@dataclass(frozen=True)
class GroupRates:
    """Rates of a protected group; `ratio` is its approval rate over the highest of groups not small.

    Attributes:
        value: the group's value; None if the cell is empty.
        ratio: ratio of approval rates; None if no group that is not small has approvals.
    """

    column: str
    value: str | float | None
    rows: int
    approved: float
    referred: float
    declined: float
    ratio: float | None
    small: bool


@dataclass(frozen=True)
class LabelRates:
    """Rate of the label's `positive` value, the larger of its two values, by outcome."""

    column: str
    positive: str | float
    rate: float
    by_outcome: dict[str, float | None]


@dataclass(frozen=True)
class Gaps:
    """Completeness gaps over all rows; `above` counts gaps larger than the profile's tolerance."""

    largest: float | None
    tolerance: float
    above: int


@dataclass(frozen=True)
class DecisionReport:
    """Statistics of the decisions on a file.

    Attributes:
        outcomes: counts of rows by outcome, with or without reasons.
        without_reasons: counts of declined or referred rows without reasons, by cause.
        knocked_out: number of rows that a knock-out declined.
        by_score: number of rows declined for reasons from attributions; only these are compared and moved.
        moved: effect of moving the reasons' features, or the reason why it is left out.
    """

    name: str
    manifest: Manifest
    file: DecidedFile
    outcomes: dict[str, int]
    without_reasons: dict[str, int]
    knocked_out: int
    by_score: int
    reasons: tuple[ReasonCount, ...]
    agreements: tuple[Agreement, ...]
    moved: ScoreMovement | str
    groups: tuple[GroupRates, ...]
    label: LabelRates | None
    gaps: Gaps

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader of the numbers."""
        small = sorted({f"{group.column} = {cell_text(group.value)}" for group in self.groups if group.small})
        return (
            NOT_RECORDED,
            *((NO_COMPARISONS,) if not self.file.comparisons else ()),
            *((self.moved,) if isinstance(self.moved, str) else ()),
            *((f"fewer than {SMALL} rows: {', '.join(small)}",) if small else ()),
        )


def report(
    repository: Path,
    name: str,
    data: Path,
    *,
    label: str | None = None,
    groups: Sequence[str] = (),
    keep: Sequence[str] = (),
    references: Path | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> DecisionReport:
    """Decide every row of `data` and return statistics of the decisions.

    Args:
        label: a column of two values; the larger is the adverse outcome, such as a default.
        groups: columns of protected attributes, which need not be inputs of the model.
        keep: columns that identify a row, such as an application's id.
        references: the file that the entry was compiled with, for `moved`.
        seed: seed of the random choices for `moved`.

    Raises:
        RepositoryError, InvalidOptionError, InvalidReferencesError: if `decide_file` fails, a column is no
            label or has too many groups, or the references are not the entry's.
    """
    columns = [*keep, *groups, *([] if label is None else [label])]
    file = decide_file(repository, name, data, columns, progress)
    manifest = file.compiled.manifest
    reference_set = None if references is None else read_references(file.compiled, name, references)
    rated = [rate for column in dict.fromkeys(groups) for rate in _rates(column, file)]
    labelled = None if label is None else _label(label, file)
    by_score = [row for row in file.rows if row.by_score]
    without = Counter(_without(row) for row in file.rows if row.outcome != "approve" and not row.codes)
    return DecisionReport(
        name,
        manifest,
        file,
        {outcome: sum(row.outcome == outcome for row in file.rows) for outcome in OUTCOMES},
        dict(_by_cause(without)),
        sum(row.outcome == "decline" and not row.by_score and bool(row.codes) for row in file.rows),
        len(by_score),
        tuple(_reasons(file)),
        tuple(_agreements(file, by_score)),
        NO_REFERENCES if reference_set is None else measure_movement(file, reference_set, seed, progress),
        tuple(rated),
        labelled,
        _gaps(file),
    )


def _without(row: DecidedRow) -> str:
    """Return the cause why a row has no reasons."""
    return row.fault or "" if row.decision is None else row.decision.warnings[0]


def cell_text(value: str | float | None) -> str:
    """Write a cell in words: whole numbers without a point."""
    return "empty" if value is None else f"{value:g}" if isinstance(value, float) else value


def _by_cause(faults: Counter[str]) -> Counter[str]:
    """Merge causes that differ only in the numbers of their texts."""
    causes: Counter[str] = Counter()
    for text, count in faults.items():
        causes["attributions do not add up" if "miss the score" in text else text] += count
    return causes


def _reasons(file: DecidedFile) -> list[ReasonCount]:
    """Return the counts of reasons, most frequent first."""
    occurrences: dict[str, list[tuple[int, float | None, dict[str, float]]]] = {}
    texts: dict[str, str] = {}
    profile = profile_of(file.compiled.manifest).profile
    for row in file.rows:
        if row.outcome != "decline" or row.decision is None:
            continue
        compared = list(zip(file.comparisons, row.comparison_codes, strict=False))
        for rank, reason in enumerate(row.decision.reasons):
            stays = {name: float(share) for name, share in reason_survival(reason.code, compared).items()}
            occurrences.setdefault(reason.code, []).append((rank, reason.share, stays))
            of_code = profile.reasons.get(reason.code)
            texts[reason.code] = profile.title(reason.feature) if of_code is None else of_code.text
    counts = [
        ReasonCount(
            code,
            texts[code],
            len(counted),
            sum(rank == 0 for rank, _, _ in counted),
            _mean([share for _, share, _ in counted if share is not None]),
            _means([stays for _, _, stays in counted if stays]),
        )
        for code, counted in occurrences.items()
    ]
    return sorted(counts, key=lambda count: (-count.declines, count.code))


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _means(survivals: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: mean(shares[name] for shares in survivals) for name in survivals[0]} if survivals else {}


def _agreements(file: DecidedFile, declines: Sequence[DecidedRow]) -> list[Agreement]:
    """Return the agreement with each other baseline, and with all draws together."""
    if not declines:
        return []
    kinds = [comparison.kind for comparison in file.comparisons]
    same_codes = np.array(
        [[{*row.codes} == {*codes} for codes in row.comparison_codes] for row in declines], bool
    )
    same_order = np.array([[row.codes == codes for codes in row.comparison_codes] for row in declines], bool)
    baselines = [(c.name, [j]) for j, c in enumerate(file.comparisons) if c.kind == "baseline"]
    drawn = [j for j, kind in enumerate(kinds) if kind == "draw"]
    return [
        Agreement(
            name,
            float(same_codes[:, columns].mean()),
            float(same_order[:, columns].mean()),
            float((~same_codes[:, columns]).any(axis=1).mean()),
        )
        for name, columns in [*baselines, *([(DRAWS, drawn)] if drawn else [])]
    ]


def _rates(column: str, file: DecidedFile) -> list[GroupRates]:
    cells = [plain_cell(cell) for cell in file.further[column]]
    values = sorted({*cells}, key=lambda value: (value is None, isinstance(value, str), value or 0))
    if len(values) > MOST_GROUPS:
        raise InvalidOptionError(
            f"--group {column}: has {len(values)} values; give a column of at most {MOST_GROUPS}, such as "
            "bands of ages."
        )
    members: dict[Any, list[DecidedRow]] = {value: [] for value in values}
    for cell, row in zip(cells, file.rows, strict=True):
        members[cell].append(row)
    rates = {value: {o: _share(rows, o) for o in OUTCOMES} for value, rows in members.items()}
    highest = max((rates[value]["approve"] for value in values if len(members[value]) >= SMALL), default=0.0)
    return [
        GroupRates(
            column,
            value,
            len(members[value]),
            rates[value]["approve"],
            rates[value]["refer"],
            rates[value]["decline"],
            rates[value]["approve"] / highest if highest else None,
            len(members[value]) < SMALL,
        )
        for value in values
    ]


def _share(rows: Sequence[DecidedRow], outcome: Outcome) -> float:
    return sum(row.outcome == outcome for row in rows) / len(rows)


def _label(column: str, file: DecidedFile) -> LabelRates:
    cells = [plain_cell(cell) for cell in file.further[column]]
    values: list[Any] = sorted({*cells}, key=str)
    if len(values) != 2 or None in values or len({type(value) for value in values}) > 1:
        raise InvalidOptionError(
            f"--label {column}: has the values {', '.join(map(cell_text, values[:5]))}; a label has two, in "
            "every row."
        )
    positive = max(values)
    is_positive = [cell == positive for cell in cells]
    labels = list(zip(map(float, is_positive), file.rows, strict=True))
    by_outcome: dict[str, float | None] = {
        outcome: _mean([label for label, row in labels if row.outcome == outcome]) for outcome in OUTCOMES
    }
    return LabelRates(column, positive, mean(map(float, is_positive)), by_outcome)


def _gaps(file: DecidedFile) -> Gaps:
    tolerance = profile_of(file.compiled.manifest).tolerance
    gaps = [abs(row.explained.gap) for row in file.rows if row.explained.gap is not None]
    return Gaps(max(gaps, default=None), tolerance, sum(not gap <= tolerance for gap in gaps))
