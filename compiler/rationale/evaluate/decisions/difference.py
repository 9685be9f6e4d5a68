"""Comparison of two models on one portfolio: changed decisions, reasons and attributions.

Shapley values are linear in the model: for the same references, the values of the difference of two models
are the differences of their values.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from rationale.artifact.repository.folder import atomic_file
from rationale.decisions.rows import profile_of
from rationale.evaluate.decisions.decided import DecidedFile, DecidedRow, decide_file
from rationale.schema.request import Progress, silent

SHOWN = 20  # features to print
OTHER_OUTPUTS = (
    "the entries explain different outputs (output, space), so their attributions are not compared"
)
OTHER_REFERENCES = (
    "the entries have different references, whose effect is part of the changes of attributions"
)


@dataclass(frozen=True)
class FeatureChange:
    """The change of a feature's attribution.

    Attributes:
        mean, mean_absolute: means over all rows, in the unit of the explained value.
    """

    feature: str
    mean: float
    mean_absolute: float


@dataclass(frozen=True)
class DecisionDifference:
    """The changes from an old entry to a new one on the rows of a file.

    Attributes:
        flips: counts of rows by both decisions, such as "approve → decline"; without unchanged rows.
        reasons_changed: rows among `declined_by_both` whose first reason differs.
        score_change: mean of new − old.
        base_change: mean change of the base value; None if attributions are not compared.
        features: changes by feature, the largest mean absolute change first.
        flipped: numbers of the rows that flip.
    """

    rows: int
    flips: Mapping[str, int]
    declined_by_both: int
    reasons_changed: int
    score_change: float
    base_change: float | None
    features: Sequence[FeatureChange]
    flipped: Sequence[int]
    notes: Sequence[str]

    @property
    def flip_share(self) -> float:
        """The share of the rows whose decision changes."""
        return sum(self.flips.values()) / self.rows

    @property
    def reason_share(self) -> float:
        """The share of the rows declined by both whose first reason differs."""
        return self.reasons_changed / max(self.declined_by_both, 1)


def difference(
    repository: Path, old: str, new: str, file: Path, progress: Progress = silent
) -> DecisionDifference:
    """Decide the rows of a file by two entries and return the differences.

    Raises:
        RepositoryError: if an entry does not exist.
        InvalidOptionError, InvalidReferencesError: if an entry has no profile, or rows do not fit it.
    """
    before, after = (decide_file(repository, name, file, (), progress) for name in (old, new))
    pairs = list(zip(before.rows, after.rows, strict=True))
    flipped = [i for i, (a, b) in enumerate(pairs) if a.outcome != b.outcome]
    flips = Counter(f"{pairs[i][0].outcome} → {pairs[i][1].outcome}" for i in flipped)
    declined = [(a, b) for a, b in pairs if a.outcome == b.outcome == "decline"]
    comparable = _explains(before) == _explains(after)
    return DecisionDifference(
        rows=len(pairs),
        flips=dict(flips.most_common()),
        declined_by_both=len(declined),
        reasons_changed=sum(a.codes[:1] != b.codes[:1] for a, b in declined),
        score_change=float(np.mean([b.explained.score - a.explained.score for a, b in pairs])),
        base_change=_base_change(pairs) if comparable else None,
        features=_changes(pairs) if comparable else (),
        flipped=flipped,
        notes=_notes(before, after, comparable=comparable),
    )


def lines(change: DecisionDifference) -> list[str]:
    """Return the difference as lines of text."""
    printed = [f"{change.rows} rows: {_percent(change.flip_share)} are decided otherwise"]
    printed += [f"  {count:8}  {flip}" for flip, count in change.flips.items()]
    printed.append(
        f"first reason changed: {_percent(change.reason_share)} of {change.declined_by_both} declined by both"
    )
    printed.append(f"score: {change.score_change:+.6g} in the mean")
    if change.base_change is not None:
        printed.append(
            f"base value: {change.base_change:+.6g}; attributions, in the mean and of their absolutes:"
        )
        printed += [
            f"  {feature.mean:+12.6g}  {feature.mean_absolute:12.6g}  {feature.feature}"
            for feature in change.features[:SHOWN]
        ]
        if len(change.features) > SHOWN:
            printed.append(f"  {len(change.features) - SHOWN} more features, of smaller change")
    return printed


def write_difference(change: DecisionDifference, file: Path) -> None:
    """Write the difference as JSON, atomically."""
    shares = {"flip_share": change.flip_share, "reason_share": change.reason_share}
    with atomic_file(file) as target:
        target.write_text(json.dumps({**asdict(change), **shares}, indent=1) + "\n")


def _explains(file: DecidedFile) -> tuple[str, str]:
    profile = profile_of(file.compiled.manifest).profile
    return file.compiled.manifest.explained_output, profile.space


def _base_change(pairs: Sequence[tuple[DecidedRow, DecidedRow]]) -> float | None:
    bases = [(a.explained.base_value, b.explained.base_value) for a, b in pairs]
    changes = [b - a for a, b in bases if a is not None and b is not None]
    return float(np.mean(changes)) if changes else None


def _changes(pairs: Sequence[tuple[DecidedRow, DecidedRow]]) -> list[FeatureChange]:
    """Return changes by feature; a feature that an entry lacks counts as 0 there."""
    names = dict.fromkeys(name for pair in pairs[:1] for row in pair for name in row.explained.attributions)
    changes = {
        name: np.array(
            [
                b.explained.attributions.get(name, 0.0) - a.explained.attributions.get(name, 0.0)
                for a, b in pairs
            ]
        )
        for name in names
    }
    features = [FeatureChange(name, float(c.mean()), float(np.abs(c).mean())) for name, c in changes.items()]
    return sorted(features, key=lambda feature: -feature.mean_absolute)


def _notes(before: DecidedFile, after: DecidedFile, *, comparable: bool) -> list[str]:
    if not comparable:
        return [OTHER_OUTPUTS]
    a, b = (file.compiled.manifest.digests.references for file in (before, after))
    return [] if a == b else [OTHER_REFERENCES]


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
