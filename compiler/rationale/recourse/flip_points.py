"""Flip points: for each feature alone, the value nearest to the applicant's that changes the decision."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rationale.decisions.decide import OUTCOMES, Outcome, find_knock_outs, outcomes_of
from rationale.recourse.applicant import Applicant
from rationale.recourse.candidates import Candidates
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
    if find_knock_outs(applicant.profile, applicant.values):
        return []
    return [point for space in spaces for point in _of_space(applicant, space)]


def _of_space(applicant: Applicant, space: CellSpace | PointSpace) -> Iterator[FlipPoint]:
    scores, listed = space.scores(), space.candidates
    outcomes, current = outcomes_of(applicant.profile, scores), OUTCOMES.index(applicant.answer.decision)
    near = applicant.is_near(scores)
    may_flip = ((outcomes != current) | near) & np.isfinite(listed.cost)
    pending = _tries(listed, may_flip, near)
    found = dict[int, tuple[int, Outcome]]()
    while pending:
        tried = [own.pop(0) for own in pending.values()]
        answers = applicant.confirmed(
            [listed.levers[p].setting(listed.value(i)) for p, i in zip(pending, tried, strict=True)]
        )
        found |= {
            place: (i, to)
            for place, i, to in zip(pending, tried, answers, strict=True)
            if to != applicant.answer.decision
        }
        pending = {place: own for place, own in pending.items() if own and place not in found}
    for place, (i, to) in sorted(found.items()):
        lever, flips = listed.levers[place], partial(_flip, applicant, listed.levers[place], to)
        value, region = space.nearest(i, flips), None
        if lever.is_number:
            rules = applicant.profile.knock_outs if to != "decline" else ()
            same = outcomes == OUTCOMES.index(to)
            same[i] = True
            region = within(widened(space.around(i, same), value), value, lever, rules)
        yield FlipPoint(lever.name, value, to, region, space.is_exact or not lever.is_continuous)


def _tries(listed: Candidates, may_flip: np.ndarray, near: np.ndarray) -> dict[int, list[int]]:
    """Return for each lever its first candidates that may flip: some near a bound, and one that surely flips.

    Args:
        near: [M], whether rounding decides on a candidate.
    """
    certain, least = np.flatnonzero(may_flip & ~near), np.full(len(listed.levers), np.inf)
    np.minimum.at(least, listed.owner[certain], listed.cost[certain])
    order = np.flatnonzero(may_flip & (listed.cost <= least[listed.owner]))
    order = order[np.lexsort([listed.cost[order], listed.owner[order]])]
    columns = (each.tolist() for each in (order, listed.owner[order], near[order]))
    tries, settled = dict[int, list[int]](), set[int]()
    for i, place, is_near in zip(*columns, strict=True):
        own = tries.setdefault(place, [])
        if place not in settled and (len(own) < _TRIES or not is_near):
            own.append(i)
        if not is_near:
            settled.add(place)
    return tries


def _flip(applicant: Applicant, lever: Lever, to: Outcome, values: Sequence[Any]) -> np.ndarray:
    """Tell for each value of a lever whether the decision there is `to`."""
    outcomes = applicant.confirmed([lever.setting(value) for value in values])
    return np.array([outcome == to for outcome in outcomes], bool)
