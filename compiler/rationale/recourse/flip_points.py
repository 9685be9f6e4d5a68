"""Flip points: for each feature alone, the value nearest to the applicant's that changes the decision."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rationale.decisions.decide import Outcome, triggered
from rationale.recourse.applicant import Applicant
from rationale.recourse.cells import CellSpace
from rationale.recourse.levers import Lever, Region, widened, within
from rationale.recourse.points import PointSpace

_TRIES = 4  # candidates next to each other that may tie with the threshold


@dataclass(frozen=True)
class FlipPoint:
    """The flip point of one feature or one-hot group.

    Attributes:
        value: the value; of a group, the member that is 1.
        to: the decision there.
        region: the least and the greatest number around the value at which the decision is `to`; None for an
            open end. None if the value is no number.
        exact: whether no nearer value exists: the search reads the split points of trees, or tries each of a
            few choices.
    """

    feature: str
    value: Any
    to: Outcome
    region: Region | None
    exact: bool


def flip_points(applicant: Applicant, spaces: Iterable[CellSpace | PointSpace]) -> list[FlipPoint]:
    """Return the flip point of each lever that has one; none if a knock-out declines, whatever the score."""
    if triggered(applicant.profile, applicant.values):
        return []
    return [point for space in spaces for point in _of_space(applicant, space)]


def _of_space(applicant: Applicant, space: CellSpace | PointSpace) -> Iterator[FlipPoint]:
    outcomes, cost = space.outcomes(), space.candidates.cost
    for place, lever in enumerate(space.candidates.levers):
        own = space.candidates.of(place)
        others = own[outcomes[own] != applicant.answer.decision]
        for i in others[np.argsort(cost[others], kind="stable")][:_TRIES].tolist():
            to = outcomes[i]

            def flips(value: Any, lever: Lever = lever, to: Outcome = to) -> bool:
                return bool(applicant.outcomes([lever.setting(value)])[0] == to)

            if flips(space.candidates.value(i)):
                value = space.nearest(i, flips)
                rules = applicant.profile.knock_outs if to != "decline" else ()
                region = None
                if lever.is_number:
                    region = within(widened(space.around(i, outcomes == to), value), value, lever, rules)
                yield FlipPoint(lever.name, value, to, region, space.is_exact or not lever.is_continuous)
                break
