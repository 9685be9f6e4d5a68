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
    levers: Sequence[Lever], numbers: Sequence[np.ndarray], values: Values, knock_outs: Sequence[KnockOut]
) -> Candidates:
    """Return the candidates of levers.

    Args:
        numbers: the values of each lever that is a number; NaN is excluded. Others list their choices.
    """
    owners, places, costs = [np.zeros(0, np.int64)], [np.zeros(0)], [np.zeros(0)]
    unsettled = list[int]()
    for place, (lever, points) in enumerate(zip(levers, numbers, strict=True)):
        value, choices = lever.current(values), lever.choices or ()
        if lever.is_number:
            low, high = lever.span(value)
            allowed = (low <= points) & (points <= high) & (points != value)
            cost, chosen = np.where(allowed, lever.costs(value, points), np.inf), points.tolist()
        else:
            points = np.arange(len(choices), dtype=np.float64)
            cost = np.array([np.inf if choice == value else lever.action.cost for choice in choices])
            chosen = list(choices)
        if tested := [rule for rule in knock_outs if rule.feature in lever.members]:
            hits = [triggers(tested, changed(values, [(lever, choice)])) for choice in chosen]
            cost = np.where(np.array(hits, bool), np.inf, cost)
            unsettled += [place] * triggers(tested, values)
        owners.append(np.full(len(points), place))
        places.append(points)
        costs.append(cost)
    owner, number, cost = (np.concatenate(each) for each in (owners, places, costs))
    return Candidates(tuple(levers), values, owner, number, cost, tuple(unsettled))
