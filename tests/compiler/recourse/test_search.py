"""The search for plans on small spaces, against trying all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pytest

from rationale.recourse.search import Changes, Scan, find_plans

LEVERS, EACH = 4, 3


@dataclass(frozen=True)
class Listed:
    owner: np.ndarray
    cost: np.ndarray
    unsettled: tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """A risk that is a sum of changes' effects, and of one effect of the first two levers together."""

    candidates: Listed
    effects: np.ndarray
    together: float
    cut: float = 0.0

    def risk(self, changes: Changes) -> float:
        both = self.together * (0 in changes and 1 in changes)
        return 1.0 - float(sum(self.effects[i] for i in changes.values())) - both

    def scan(self, changes: Changes) -> Scan:
        owner = self.candidates.owner.tolist()
        return self.risk(changes), np.array([self.risk({**changes, o: i}) for i, o in enumerate(owner)])

    def passes(self, changes: Changes) -> bool:
        return self.risk(changes) <= self.cut and set(self.candidates.unsettled) <= changes.keys()

    def cost(self, changes: Changes) -> float:
        return float(sum(self.candidates.cost[i] for i in changes.values()))

    def all_plans(self) -> Iterator[dict[int, int]]:
        """Yield all changes that pass, of allowed candidates."""
        allowed = np.isfinite(self.candidates.cost)
        own = [np.flatnonzero((self.candidates.owner == lever) & allowed) for lever in range(LEVERS)]
        for count in range(LEVERS + 1):
            for levers in combinations(range(LEVERS), count):
                for chosen in product(*(own[lever] for lever in levers)):
                    if self.passes(changes := dict(zip(levers, map(int, chosen), strict=True))):
                        yield changes


def space(seed: int, unsettled: tuple[int, ...], together: float = 0.0) -> Space:
    random = np.random.default_rng(seed)
    cost = random.uniform(0.1, 3.0, LEVERS * EACH)
    cost[random.integers(LEVERS * EACH)] = np.inf
    listed = Listed(np.repeat(np.arange(LEVERS), EACH), cost, unsettled)
    return Space(listed, random.uniform(-0.2, 0.7, LEVERS * EACH), together)


@pytest.mark.parametrize("unsettled", [(), (2,), (0, 3), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("together", [0.0, -0.3])
def test_plans_are_those_of_all(unsettled: tuple[int, ...], together: float) -> None:
    found_any = 0
    for seed in range(40):
        own = space(seed, unsettled, together)
        plans, every = find_plans(own), list(own.all_plans())
        assert bool(plans) == bool(every)
        if not plans:
            continue
        found_any += 1
        costs = [plan.cost for plan in plans]
        assert costs == sorted(costs)
        assert costs[0] == pytest.approx(min(map(own.cost, every)))
        for i, plan in enumerate(plans):
            assert own.passes(plan.changes)
            assert plan.cost == pytest.approx(own.cost(plan.changes))
            needed = [{k: v for k, v in plan.changes.items() if k != lever} for lever in plan.changes]
            assert not any(map(own.passes, needed))
            assert not any(plan.changes.keys() >= other.changes.keys() for other in plans[:i])
    assert found_any > 5


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_no_more_plans_than_wanted(wanted: int) -> None:
    effects = np.full(LEVERS * EACH, 1.0)  # each change alone passes
    listed = Listed(np.repeat(np.arange(LEVERS), EACH), np.arange(1.0, 13), ())
    plans = find_plans(Space(listed, effects, 0.0), wanted)
    assert [plan.cost for plan in plans] == [1, 4, 7][:wanted]
