"""Plans: the cheapest changes of a few features together that lead to an approval, as the entry decides."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rationale.decisions.decide import Decision, Outcome
from rationale.recourse.applicant import Applicant
from rationale.recourse.cells import CellSpace
from rationale.recourse.levers import Region, changed, within
from rationale.recourse.points import PointSpace
from rationale.recourse.search import find_plans

PLANS = 3


@dataclass(frozen=True)
class Plan:
    """Changes that together lead to an approval; none of them is needless.

    Attributes:
        changes: the new value of each changed feature; a group's members, and features that move along, are
            features too.
        regions: the numbers that each changed number may have, whatever the others are within theirs; None
            for an open end.
        cost: the sum of the changes' costs; see `recourse.levers`.
        score, decision: the entry's own answer to the changed row.
    """

    changes: Mapping[str, Any]
    regions: Mapping[str, Region]
    cost: float
    score: float
    decision: Outcome


def plans(applicant: Applicant, space: CellSpace | PointSpace) -> list[Plan]:
    """Return up to PLANS plans, cheapest first, each of which the entry approves."""
    found, listed = find_plans(space, PLANS + 1), space.candidates
    values = [space.refined(plan.changes) for plan in found]
    after = [changed(listed.values, [(listed.levers[k], v) for k, v in own.items()]) for own in values]
    approved = list[Plan]()
    decisions = applicant.decide(after) if after else []
    for plan, own, changes, decision in zip(found, values, after, decisions, strict=True):
        if not isinstance(decision, Decision) or decision.decision != "approve":
            continue
        regions = {
            listed.levers[place].name: within(
                region, own[place], listed.levers[place], applicant.profile.knock_outs
            )
            for place, region in space.regions(plan.changes, own).items()
        }
        cost = sum(_cost(space, place, i, own[place]) for place, i in plan.changes.items())
        approved.append(Plan(changes, regions, cost, decision.score, decision.decision))
    return sorted(approved, key=lambda plan: plan.cost)[:PLANS]


def _cost(space: CellSpace | PointSpace, place: int, candidate: int, value: Any) -> float:
    """Return the cost of a change to a value, which may be nearer than the candidate."""
    lever = space.candidates.levers[place]
    if not lever.is_continuous:
        return float(space.candidates.cost[candidate])
    return float(lever.costs(lever.current(space.candidates.values), np.array([value]))[0])
