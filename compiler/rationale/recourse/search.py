"""The search for plans: the cheapest changes of a few features together that make a score pass.

A search space lists candidates, each a change of one lever with its cost, and tells the risk of a row after
every candidate at once. Larger risks are more adverse; a row passes if its risk is at most the space's cut.
The search is a beam over the number of changes, with the best risk of each range of costs; then each plan is
polished, by exchanging one change for a cheaper one, and loses the changes that it does not need.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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

    def scan(self, changes: "Changes") -> "Scan":
        """Return the risk after these changes, and [M] after each candidate, which replaces its lever's."""
        ...


Changes = Mapping[int, int]  # the candidate of each changed lever
Scan = tuple[float, np.ndarray]


@dataclass(frozen=True)
class FoundPlan:
    """Changes that pass, and their cost."""

    changes: Changes
    cost: float

    @property
    def key(self) -> frozenset[tuple[int, int]]:
        """The changes, whatever their order."""
        return frozenset(self.changes.items())


def find_plans(space: Space, wanted: int = 3, most_changes: int = MOST_CHANGES) -> list[FoundPlan]:
    """Return plans, cheapest first, of which none contains a change that it does not need.

    No plan changes all levers of a cheaper one.

    Args:
        wanted: the largest number of plans.
        most_changes: the largest number of levers that a plan changes.
    """
    search, plans = _Search.of(space), _Plans(wanted)
    beam: list[tuple[float, Changes]] = [(0.0, {})]
    for size in range(most_changes):
        states = list[_States]()
        for spent, changes in beam:
            i, totals, risks = search.extended(changes, spent, plans.bound())
            passes = (risks <= space.cut) & (len(search.unsettled(changes)) <= 1)
            for k in _firsts(search.owner[i], passes):
                plans.keep(FoundPlan({**changes, int(search.owner[i[k]]): int(i[k])}, float(totals[k])))
            rest = np.flatnonzero(~passes)
            states.append(_States(changes, i[rest], totals[rest], risks[rest]).frontier())
        if size + 1 == most_changes:
            break
        beam = search.thinned(states, plans.bound())
        if not beam:
            break
    seen = set[frozenset[tuple[int, int]]]()
    while (plan := next((p for p in plans.different() if p.key not in seen), None)) is not None:
        if (needed := search.needed(plan)) is not plan:
            plans.replace(plan, needed)
        plans.keep(search.polished(needed))
        seen.add(needed.key)
    return plans.different()


class _Plans:
    """The cheapest plan of each set of levers."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._kept = dict[frozenset[int], FoundPlan]()
        self._best: list[FoundPlan] | None = []

    def keep(self, plan: FoundPlan) -> None:
        """Keep a plan if it is cheaper than others."""
        levers = frozenset(plan.changes)
        if plan.cost < self.bound() and (levers not in self._kept or plan.cost < self._kept[levers].cost):
            self._kept[levers], self._best = plan, None

    def replace(self, plan: FoundPlan, other: FoundPlan) -> None:
        """Keep another plan in place of one."""
        del self._kept[frozenset(plan.changes)]
        self._best = None
        self.keep(other)

    def bound(self) -> float:
        """Return the cost that a plan must not reach to be wanted."""
        best = self.different()
        return best[-1].cost if len(best) == self._wanted else np.inf

    def different(self) -> list[FoundPlan]:
        """Return the cheapest plans, without those that change all levers of a cheaper one."""
        if self._best is None:
            self._best = []
            for plan in sorted(
                self._kept.values(), key=lambda plan: (plan.cost, sorted(plan.changes.items()))
            ):
                if not any(other.changes.keys() <= plan.changes.keys() for other in self._best):
                    self._best.append(plan)
                if len(self._best) == self._wanted:
                    break
        return self._best


@dataclass(frozen=True, eq=False)
class _States:
    """Extensions of changes by one candidate each, cheapest first.

    Attributes:
        candidate, total, risk: [n], the candidate, and the cost and the risk of all changes.
    """

    changes: Changes
    candidate: np.ndarray
    total: np.ndarray
    risk: np.ndarray

    def frontier(self) -> "_States":
        """Return the states whose risk is below that of every cheaper state."""
        least = np.minimum.accumulate(self.risk)
        better = np.ones(len(least), bool)
        better[1:] = self.risk[1:] < least[:-1]
        return _States(self.changes, self.candidate[better], self.total[better], self.risk[better])


@dataclass(frozen=True, eq=False)
class _Search:
    """The search of one space.

    Attributes:
        order: the candidates that the rules allow, cheapest first; costs: their costs.
        scan: the space's, which remembers answers.
    """

    space: Space
    owner: np.ndarray
    order: np.ndarray
    costs: np.ndarray
    scan: Callable[[Changes], Scan]

    @classmethod
    def of(cls, space: Space) -> "_Search":
        """Return the search of a space."""
        cost, known = space.candidates.cost, dict[frozenset[tuple[int, int]], Scan]()
        order = np.argsort(cost, kind="stable")[: int(np.isfinite(cost).sum())]

        def scan(changes: Changes) -> Scan:
            key = frozenset(changes.items())
            if key not in known:
                known[key] = space.scan(changes)
            return known[key]

        return cls(space, space.candidates.owner, order, cost[order], scan)

    def unsettled(self, changes: Changes) -> list[int]:
        """Return the levers that have to change besides."""
        return [lever for lever in self.space.candidates.unsettled if lever not in changes]

    def extended(
        self, changes: Changes, spent: float, bound: float, levers: Sequence[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return candidates that may follow changes, cheapest first, and costs and risks with them.

        Args:
            spent: the cost of the changes.
            bound: the cost that no plan may reach.
            levers: the levers to change; those that have to, if there are any, else all others.
        """
        chosen = levers if levers is not None else self.unsettled(changes)
        may = np.full(max(int(self.owner.max(initial=0)), *chosen, *changes, 0, 0) + 1, not chosen)
        may[chosen] = True
        may[list(changes)] = False
        cheap = self.order[: np.searchsorted(self.costs, bound - spent)]
        i = cheap.compress(may.take(self.owner.take(cheap)))
        return i, spent + self.space.candidates.cost.take(i), self.scan(changes)[1].take(i)

    def thinned(self, states: Sequence[_States], bound: float) -> list[tuple[float, Changes]]:
        """Return the state of the least risk in each of BEAM ranges of costs, equal on a log scale."""
        total, risk, candidate = (
            np.concatenate([getattr(each, name) for each in states])
            for name in ("total", "risk", "candidate")
        )
        parent = np.repeat(np.arange(len(states)), [len(each.total) for each in states])
        there = np.flatnonzero(total < bound)
        if not len(there):
            return []
        logs = np.log(total[there])
        place = np.digitize(logs, np.linspace(logs.min(), logs.max() + 1e-9, BEAM + 1))
        by_place = np.lexsort([risk[there], place])
        is_best = np.zeros(len(there), bool)
        is_best[by_place[np.unique(place[by_place], return_index=True)[1]]] = True
        chosen = dict[frozenset[tuple[int, int]], tuple[float, Changes]]()
        for k in there[np.lexsort([risk[there], ~is_best])].tolist():
            i = int(candidate[k])
            changes = {**states[parent[k]].changes, int(self.owner[i]): i}
            chosen.setdefault(frozenset(changes.items()), (float(total[k]), changes))
            if len(chosen) == BEAM:
                break
        return list(chosen.values())

    def needed(self, plan: FoundPlan) -> FoundPlan:
        """Return a plan without the changes that it does not need, the dearest ones first."""
        cost = self.space.candidates.cost
        for lever, _ in sorted(plan.changes.items(), key=lambda change: -cost[change[1]]):
            others = {k: i for k, i in plan.changes.items() if k != lever}
            if lever not in self.space.candidates.unsettled and self.scan(others)[0] <= self.space.cut:
                return self.needed(FoundPlan(others, float(sum(cost[i] for i in others.values()))))
        return plan

    def polished(self, plan: FoundPlan) -> FoundPlan:
        """Return a plan that no exchange of one change makes cheaper, without needless changes."""
        for _ in range(_ROUNDS):
            best = min((self.without(plan, lever) for lever in plan.changes), key=lambda other: other.cost)
            if not best.cost < plan.cost:
                break
            plan = best
        return plan

    def without(self, plan: FoundPlan, lever: int) -> FoundPlan:
        """Return the cheapest plan with the other changes alone, or with one change in place of a lever's."""
        others = {k: i for k, i in plan.changes.items() if k != lever}
        spent = float(sum(self.space.candidates.cost[i] for i in others.values()))
        must_change = lever in self.space.candidates.unsettled
        if not must_change and self.scan(others)[0] <= self.space.cut:
            return FoundPlan(others, spent)
        i, totals, risks = self.extended(others, spent, plan.cost, [lever] if must_change else ())
        passes = np.flatnonzero(risks <= self.space.cut)
        if not len(passes):
            return plan
        k = passes[0]
        return FoundPlan({**others, int(self.owner[i[k]]): int(i[k])}, float(totals[k]))


def _firsts(owner: np.ndarray, passes: np.ndarray) -> Iterator[int]:
    """Yield the first candidate of each lever that passes."""
    there = np.flatnonzero(passes)
    yield from there[np.unique(owner[there], return_index=True)[1]].tolist()
