"""An answer as the columns of a table: a line for each row and target."""

import math
from dataclasses import dataclass, field

import numpy as np

from rationale.errors import InvalidOptionError
from rationale.pictures.panels import ExplanationLike, targets_of
from rationale.schema.outputs import OUTPUT_KINDS
from rationale.tables.workbooks import MOST_COLUMNS

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class AnswerColumns:
    """Columns [N·T]: facts about a row and target, numbers by kind of output and feature, kept ones."""

    facts: Columns
    by_feature: dict[str, Columns]
    kept: Columns = field(default_factory=dict)

    @property
    def columns(self) -> Columns:
        return {
            **self.facts,
            **{
                f"{feature}{OUTPUT_KINDS[kind].suffix}": column
                for kind, columns in self.by_feature.items()
                for feature, column in columns.items()
            },
            **self.kept,
        }


def answer_columns(answer: ExplanationLike, first: int = 0) -> AnswerColumns:
    """Return an answer as columns [N·T]: `row` (counted from `first`), `target`, values, attributions.

    Raises:
        InvalidOptionError: if there are too many features for columns, or a name is taken.
    """
    manifest = answer.manifest
    n, t = answer[manifest.explained_value].shape
    facts = {"row": np.repeat(np.arange(first, first + n), t), "target": targets_of(answer).reshape(-1)}
    for kind, name in manifest.values.items():
        if OUTPUT_KINDS[kind].in_tables:
            facts[kind] = answer[name].reshape(-1)
    by_feature: dict[str, Columns] = {}
    for explained in manifest.attributed:
        width = math.prod(answer[explained.attributions].shape[2:])
        names = explained.names(width)
        if len(names) > MOST_COLUMNS:
            raise InvalidOptionError(
                f"{explained.tensor.name!r} has {len(names)} features, too many for a table: save .npz "
                "instead."
            )
        for kind, name in explained.outputs.items():
            values = answer[name].reshape(n * t, width).T
            by_feature.setdefault(kind, {}).update(zip(names, values, strict=True))
    clash = sorted(facts.keys() & by_feature["attributions"].keys())
    if clash:
        raise InvalidOptionError(
            f"the features {clash} have names that the file uses for its other columns: save .npz instead."
        )
    return AnswerColumns(facts, by_feature)
