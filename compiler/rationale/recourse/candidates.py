"""Candidates of one applicant: the values that each lever can change to, with their costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rationale.recourse.levers import Lever, Values, changed, triggers
from rationale.recourse.search import Changes
from rationale.schema.profile import KnockOut


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidates of all levers, one lever after the other.

    Attributes:
        values: the applicant's values.
        owner: [M], the lever that each candidate changes, by its place among `levers`.
        numbers: [M], the value of a number, or the place in `choices` of a text or a group's member.
        cost: [M], the cost of each change; inf for one that the rules exclude.
        unsettled: levers by which a knock-out declines now, so that they must change.
    """

    levers: tuple[Lever, ...]
    values: Values
    owner: np.ndarray
    numbers: np.ndarray
    cost: np.ndarray
    unsettled: tuple[int, ...] = ()

    def value(self, i: int) -> Any:
        """Return the value that a candidate changes its lever to."""
        lever, number = self.levers[int(self.owner[i])], float(self.numbers[i])
        return number if lever.is_number or lever.choices is None else lever.choices[int(number)]

    def after(self, changes: Changes) -> dict[str, Any]:
        """Return the features that candidates set, by name."""
        return changed(self.values, [(self.levers[lever], self.value(i)) for lever, i in changes.items()])

    def of(self, lever: int) -> np.ndarray:
        """Return the places of a lever's candidates that the rules allow, its numbers ascending."""
        own = np.flatnonzero((self.owner == lever) & np.isfinite(self.cost))
        return own[np.argsort(self.numbers[own], kind="stable")]


def candidates(
    levers: Sequence[Lever],
    owner: np.ndarray,
    numbers: np.ndarray,
    values: Values,
    knock_outs: Sequence[KnockOut],
) -> Candidates:
    """Return the candidates of levers.

    Args:
        owner, numbers: see `Candidates`; NaN is excluded.
    """
    currents = [lever.current(values) for lever in levers]
    rules = [_number_rule(lever, value) for lever, value in zip(levers, currents, strict=True)]
    low, high, start, unit, fixed = np.array(rules, np.float64).reshape(-1, 5).T.take(owner, axis=1)
    with np.errstate(invalid="ignore"):  # of a start at infinity, or a scale of 0
        cost = np.where(np.isnan(unit), fixed, np.abs(numbers - start) * unit)
    cost[~((low <= numbers) & (numbers <= high) & (numbers != start))] = np.inf
    ends, unsettled = np.searchsorted(owner, np.arange(len(levers) + 1)), list[int]()
    for place, lever in enumerate(levers):
        if tested := [rule for rule in knock_outs if rule.feature in lever.members]:
            own = slice(int(ends[place]), int(ends[place + 1]))
            chosen = numbers[own].tolist() if lever.is_number else lever.choices or ()
            hits = [triggers(tested, changed(values, [(lever, choice)])) for choice in chosen]
            cost[own][np.array(hits, bool)] = np.inf
            unsettled += [place] * triggers(tested, values)
    return Candidates(tuple(levers), values, owner, numbers, cost, tuple(unsettled))


def _number_rule(lever: Lever, value: Any) -> tuple[float, float, float, float, float]:
    """Return the least and the greatest number, the applicant's, and the cost per unit, or of any change.

    Of texts and members, the numbers are their places among the choices.
    """
    if not lever.is_number:
        choices = lever.choices or ()
        start = float(choices.index(value)) if value in choices else np.nan
        return 0.0, np.inf, start, np.nan, lever.action.cost
    low, high = lever.span(value)
    unit = np.nan if value is None or lever.choices is not None else lever.action.cost / lever.scale
    return low, high, np.nan if value is None else value, unit, lever.action.cost
