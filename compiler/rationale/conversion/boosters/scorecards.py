"""optbinning's scorecards: sums of points, read from the card's scores for a value of each bin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rationale.conversion.boosters import tables
from rationale.conversion.boosters.tables import BoosterTable, Categories, is_text
from rationale.conversion.boosters.trees import DOUBLE, BoostedTrees, Split, Tree
from rationale.conversion.graphs import ConversionResult
from rationale.conversion.rows import Features, Rows
from rationale.errors import UnsupportedModelError

_UNKNOWN = "\0"  # no category
_MISSING = ""  # a missing text, as an input of ONNX


def features(model: Any) -> Features:
    return _table_of(_variables(model)).features


def as_onnx(model: Any, example: Any) -> ConversionResult:
    """Convert a scorecard; raise UnsupportedModelError for any model that is no fitted scorecard of bins."""
    variables = _variables(model)
    table = _table_of(variables)
    trees = _card_trees(model, variables, table)
    return tables.as_onnx(trees, table, "score", example, lambda rows: (_scores(model, rows),))


@dataclass(frozen=True)
class _CardVariable:
    """A variable that the card reads.

    Attributes:
        bounds: bounds between the bins of a numerical variable.
        values: values with points of their own: categories, and special codes.
    """

    name: str
    bounds: Sequence[float]
    values: Sequence[Any]

    @property
    def codes(self) -> Categories | None:
        """Return the codes of texts, with one for a missing text; None for a numerical variable."""
        if not any(isinstance(value, str) for value in self.values):
            return None
        return {value: float(code) for code, value in enumerate([*map(str, self.values), _MISSING])}

    @property
    def probes(self) -> list[Any]:
        """Values of all bins: those of `values`, a missing one, any other, and one above each bound."""
        if self.codes is not None:
            return [*self.values, None, _UNKNOWN]
        return [*self.values, np.nan, *map(self._free, [min(self.bounds, default=0.0) - 1, *self.bounds])]

    def tree(self, feature: int, points: Sequence[float]) -> Tree:
        """Return a chain of splits, each with the points of one bin or of several values on one side.

        Args:
            points: the points of each probe.
        """
        coded, by_points = self.codes, dict[float, list[float]]()
        for value, bin_points in zip(self.values, points, strict=False):
            by_points.setdefault(bin_points, []).append(float(value) if coded is None else coded[value])
        tests: list[tuple[float, dict[str, Any]]] = [
            (bin_points, {"missing": False, "among": tuple(values)})
            for bin_points, values in by_points.items()
        ]
        missing, *bins = points[len(self.values) :]
        if coded is None:
            tests.append((missing, {"missing": True, "bound": -np.inf, "strict": True}))
        else:
            tests.append((missing, {"missing": False, "among": (coded[_MISSING],)}))
        tests += [
            (bin_points, {"missing": False, "bound": bound, "strict": True})
            for bin_points, bound in zip(bins, self.bounds, strict=False)
        ]
        last = len(tests)
        splits = {n: Split(feature, last + 1 + n, n + 1, **test) for n, (_, test) in enumerate(tests)}
        leaves = [bins[-1], *(bin_points for bin_points, _ in tests)]
        return splits | {last + n: {0: bin_points} for n, bin_points in enumerate(leaves)}

    def _free(self, value: float) -> float:
        """Return the next number that has no points of its own."""
        while value in self.values:
            value = float(np.nextafter(value, np.inf))
        return value


class _ScorecardTable(BoosterTable):
    def frame(self, rows: Rows) -> Any:
        """Return a DataFrame with texts as they are: a card may bin unknown and missing ones apart."""
        texts = {
            self.column_name(i): {_MISSING: None}
            for i, categories in enumerate(self.categories)
            if is_text(categories)
        }
        return rows.frame().replace(texts)


def _variables(model: Any) -> list[_CardVariable]:
    if type(model).__name__ != "Scorecard":
        raise UnsupportedModelError(
            f"optbinning.{type(model).__name__} is not converted: give a fitted optbinning.Scorecard, which "
            "joins it with its estimator, such as Scorecard(binning_process, LogisticRegression()).fit(X, y)."
        )
    model._check_is_fitted()
    return [_variable(model, str(name)) for name in model.binning_process_.get_support(names=True)]


def _variable(model: Any, name: str) -> _CardVariable:
    binned = model.binning_process_.get_binned_variable(name)
    if not hasattr(binned, "special_codes") or "PW" in type(binned).__name__:
        raise UnsupportedModelError(
            f"optbinning.{type(binned).__name__} of {name!r} is not a list of bins: fit the binning "
            "process without piecewise binning."
        )
    special = binned.special_codes or ()
    groups = special.values() if isinstance(special, dict) else special
    codes = [code for codes in groups for code in np.atleast_1d(np.asarray(codes, object))]
    if binned.dtype == "numerical":
        return _CardVariable(
            name, list(map(float, binned.splits)), [c for c in codes if not isinstance(c, str)]
        )
    categories = [category for group in binned.splits for category in group]
    texts = any(isinstance(category, str) for category in categories)
    return _CardVariable(name, [], [v for v in [*categories, *codes] if isinstance(v, str) == texts])


def _table_of(variables: Sequence[_CardVariable]) -> BoosterTable:
    return _ScorecardTable(len(variables), tuple(v.name for v in variables), [v.codes for v in variables])


def _card_trees(model: Any, variables: Sequence[_CardVariable], table: BoosterTable) -> BoostedTrees:
    """Return a tree for each variable: a bin's points are its score less that of the row of first probes."""
    probes = [variable.probes for variable in variables]
    rows = [[values[0] for values in probes]]
    for i, values in enumerate(probes):
        rows += [[*rows[0][:i], probe, *rows[0][i + 1 :]] for probe in values]
    first, *scores = map(float, _scores(model, _frame(rows, table)))
    trees, next_score = [], iter(scores)
    for i, variable in enumerate(variables):
        trees.append(variable.tree(i, [next(next_score) - first for _ in probes[i]]))
    return BoostedTrees(trees=trees, base=np.array([first]), dtype=DOUBLE)


def _scores(model: Any, rows: Any) -> np.ndarray:
    """Return the card's scores of a DataFrame, or of numbers [K, F] in the columns that it reads."""
    import pandas as pd

    names = list(map(str, model.binning_process_.get_support(names=True)))
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows, columns=names)
    return np.asarray(model.score(frame.reindex(columns=model.binning_process_.variable_names)))


def _frame(rows: Sequence[Sequence[Any]], table: BoosterTable) -> Any:
    import pandas as pd

    columns = zip(table.names or (), table.categories, zip(*rows, strict=True), strict=True)
    return pd.DataFrame(
        {
            name: np.array(values, object if is_text(categories) else float)
            for name, categories, values in columns
        }
    )
