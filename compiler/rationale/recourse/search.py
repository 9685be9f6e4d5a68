"""The search for plans: the cheapest changes of a few features together that make a score pass.

A search space lists candidates, each a change of one lever with its cost, and tells the risk of a row after
every candidate at once. Larger risks are more adverse; a row passes if its risk is at most the space's cut.
The search is a beam over the number of changes, with the best risk of each range of costs; then each plan is
polished, by exchanging one change for a cheaper one, and loses the changes that it does not need.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

MOST_CHANGES = 4
BEAM = 24  # states that are extended at each size of a plan
_ROUNDS = 8  # exchanges of a plan's changes


class Listed(Protocol):
    """Candidates of one row.

    Attributes:
        owner: [M], the lever that each candidate changes; candidates of one lever exclude each other.
        cost: [M], the cost of each candidate, above 0; inf for one that the rules exclude.
        unsettled: levers of which one candidate must be chosen, because the row's own value declines.
    """

    @property
    def owner(self) -> np.ndarray: ...

    @property
    def cost(self) -> np.ndarray: ...

    @property
    def unsettled(self) -> tuple[int, ...]: ...


class Space(Protocol):
    """Candidates of one row, and their risks.

    Attributes:
        cut: the largest risk that passes.
    """

    @property
    def candidates(self) -> Listed: ...

    @property
    def cut(self) -> float: ...

    def scan(self, changes: "Changes") -> np.ndarray:
        """Return [M], the risk after these changes and each candidate, which replaces its lever's change."""
        ...

    def risk(self, changes: "Changes") -> float:
        """Return the risk after these changes."""
        ...


Changes = Mapping[int, int]  # the candidate of each changed lever


@dataclass(frozen=True)
class FoundPlan:
    """Changes that pass, and their cost."""

    changes: Changes
    cost: float


def find_plans(space: Space, wanted: int = 3, most_changes: int = MOST_CHANGES) -> list[FoundPlan]:
    """Return plans, cheapest first, of which none contains a change that it does not need.

    No plan changes all levers of a cheaper one.

    Args:
        wanted: the largest number of plans.
        most_changes: the largest number of levers that a plan changes.
    """
    listed, plans = space.candidates, dict[frozenset[int], FoundPlan]()
    beam: list[tuple[float, Changes]] = [(0.0, {})]
    for size in range(most_changes):
        states = dict[frozenset[tuple[int, int]], tuple[float, float, Changes]]()
        for spent, changes in beam:
            risks, costs = space.scan(changes), _costs(space, changes)
            totals = spent + costs
            open_levers = [lever for lever in listed.unsettled if lever not in changes]
            if open_levers:
                totals = np.where(np.isin(listed.owner, open_levers), totals, np.inf)
            totals = np.where(totals < _bound(plans, wanted), totals, np.inf)
            passes = (risks <= space.cut) & (len(open_levers) <= 1)
            for i in _cheapest(listed.owner, np.where(passes, totals, np.inf)):
                _keep(plans, FoundPlan({**changes, int(listed.owner[i]): i}, float(totals[i])))
            if size + 1 < most_changes:
                rest = np.where(passes, np.inf, totals)
                for i in _frontier(rest, risks):
                    after = {**changes, int(listed.owner[i]): i}
                    states[frozenset(after.items())] = (float(rest[i]), float(risks[i]), after)
        beam = _thinned(list(states.values()), _bound(plans, wanted))
        if not beam:
            break
    for plan in _different(plans.values(), wanted):
        _keep(plans, _polished(space, plan))
    return _different(plans.values(), wanted)


def _costs(space: Space, changes: Changes) -> np.ndarray:
    """Return the costs of candidates of levers that are unchanged; inf for the others."""
    if not changes:
        return space.candidates.cost
    return np.where(np.isin(space.candidates.owner, list(changes)), np.inf, space.candidates.cost)


def _bound(plans: Mapping[frozenset[int], FoundPlan], wanted: int) -> float:
    """Return the cost above which a plan is not wanted."""
    best = _different(plans.values(), wanted)
    return best[-1].cost if len(best) == wanted else np.inf


def _keep(plans: dict[frozenset[int], FoundPlan], plan: FoundPlan) -> None:
    levers = frozenset(plan.changes)
    if levers not in plans or plan.cost < plans[levers].cost:
        plans[levers] = plan


def _different(plans: Iterable[FoundPlan], wanted: int) -> list[FoundPlan]:
    """Return the cheapest plans, without those that change all levers of a cheaper one."""
    chosen = list[FoundPlan]()
    for plan in sorted(plans, key=lambda plan: (plan.cost, sorted(plan.changes.items()))):
        if not any(other.changes.keys() <= plan.changes.keys() for other in chosen):
            chosen.append(plan)
        if len(chosen) == wanted:
            break
    return chosen


def _cheapest(owner: np.ndarray, totals: np.ndarray) -> Iterator[int]:
    """Yield the cheapest candidate of each lever that has one."""
    there = np.flatnonzero(np.isfinite(totals))
    order = there[np.argsort(totals[there], kind="stable")]
    _, first = np.unique(owner[order], return_index=True)
    yield from (int(i) for i in order[first])


def _frontier(totals: np.ndarray, risks: np.ndarray) -> Iterator[int]:
    """Yield candidates of which no cheaper one has less risk, by cost."""
    there = np.flatnonzero(np.isfinite(totals))
    order = there[np.lexsort([risks[there], totals[there]])]
    least = np.minimum.accumulate(risks[order])
    better = np.ones(len(order), bool)
    better[1:] = risks[order][1:] < least[:-1]
    yield from (int(i) for i in order[better])


def _thinned(states: list[tuple[float, float, Changes]], bound: float) -> list[tuple[float, Changes]]:
    """Return the state of the least risk in each of BEAM ranges of costs, equal on a log scale."""
    states = [state for state in states if state[0] < bound]
    if len(states) > BEAM:
        logs = np.log([state[0] for state in states])
        ranges = np.linspace(logs.min(), logs.max() + 1e-9, BEAM + 1)
        best = dict[int, tuple[float, float, Changes]]()
        for state, place in zip(states, np.digitize(logs, ranges), strict=True):
            if int(place) not in best or state[1] < best[int(place)][1]:
                best[int(place)] = state
        spare = sorted((s for s in states if s not in best.values()), key=lambda s: s[1])
        states = [*best.values(), *spare[: BEAM - len(best)]]
    return [(cost, changes) for cost, _, changes in states]


def _polished(space: Space, plan: FoundPlan) -> FoundPlan:
    """Return a plan that no exchange of one change makes cheaper, without needless changes."""
    for _ in range(_ROUNDS):
        others = [_without(space, plan, lever) for lever in plan.changes]
        best = min(others, key=lambda other: other.cost)
        if not best.cost < plan.cost:
            break
        plan = best
    return plan


def _without(space: Space, plan: FoundPlan, lever: int) -> FoundPlan:
    """Return the cheapest plan with the other changes alone, or with one change in place of a lever's."""
    listed, others = space.candidates, {k: i for k, i in plan.changes.items() if k != lever}
    spent = float(sum(listed.cost[i] for i in others.values()))
    must_change = lever in listed.unsettled
    if not must_change and space.risk(others) <= space.cut:
        return FoundPlan(others, spent)
    allowed = (listed.owner == lever) | (not must_change)
    passes = allowed & (space.scan(others) <= space.cut)
    totals = np.where(passes, spent + _costs(space, others), np.inf)
    i = int(totals.argmin())
    return FoundPlan({**others, int(listed.owner[i]): i}, float(totals[i]))
