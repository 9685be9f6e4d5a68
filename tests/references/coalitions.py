"""Attributions through one operator by its values alone: what each input adds, averaged over orders.

Nothing is asked of an operator but its values where some of its inputs are at x and the others at r. Players
are operands, or parts of them; what each element of a player adds must not depend on the others of it, which
is checked: where the parts do not add up to f(x) − f(r), an operator needs a formula (see `multipliers`).

Shapley, "A Value for n-Person Games", 1953; with players in groups, groups in groups: Owen, "Values of Games
with a Priori Unions", 1977, and Winter, "A Value for Cooperative Games with Levels Structure", 1989.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

Run = Callable[[list[np.ndarray]], np.ndarray]  # operands [B, *shape] to outputs [B, outputs]
ADDITIVE = 1e-10  # Σ − (f(x) − f(r)), over max(1, largest |f|)


@dataclass(frozen=True)
class Player:
    """An operand, or what of it an index takes."""

    operand: int
    index: Any = ...

    def mask(self, shape: tuple[int, ...]) -> np.ndarray:
        chosen = np.zeros(shape, bool)
        chosen[self.index] = True
        return chosen


Group = Player | tuple[Any, ...]  # a player, or groups that enter together


def attributions(run: Run, xs: Sequence[np.ndarray], rs: Sequence[np.ndarray], players: Group) -> Any:
    """What each element of each operand adds to each output: arrays [outputs, *shape].

    Raises:
        AssertionError: the elements of a player do not add up.
    """
    ends = [run([v[None] for v in values])[0] for values in (xs, rs)]
    totals = [np.zeros((ends[0].size, *x.shape)) for x in xs]
    for player, contexts in _contexts(players):
        mask = player.mask(xs[player.operand].shape) & (xs[player.operand] != rs[player.operand])
        for weight, present in contexts:
            totals[player.operand][:, mask] += weight * _added(run, xs, rs, player.operand, mask, present).T
    total = sum(t.reshape(len(t), -1).sum(-1) for t in totals)
    size = max(1.0, *(np.abs(e).max() for e in ends))
    assert np.abs(total - (ends[0] - ends[1])).max() <= ADDITIVE * size, "elements that work together"
    return totals


def _added(
    run: Run,
    xs: Sequence[np.ndarray],
    rs: Sequence[np.ndarray],
    operand: int,
    mask: np.ndarray,
    present: Sequence[Player],
) -> np.ndarray:
    """What each masked element adds to those players that are at x already: [elements, outputs]."""
    base = [np.array(r) for r in rs]
    for player in present:
        chosen = player.mask(base[player.operand].shape)
        base[player.operand][chosen] = xs[player.operand][chosen]
    places = np.argwhere(mask)
    rows = [np.repeat(b[None], len(places) + 1, axis=0) for b in base]
    for row, place in enumerate(places):
        rows[operand][(row, *place)] = xs[operand][tuple(place)]
    values = run(rows)
    return values[:-1] - values[-1]


def _contexts(group: Group) -> Iterator[tuple[Player, list[tuple[float, list[Player]]]]]:
    """Each player with the coalitions that it may join and their weights."""
    if isinstance(group, Player):
        yield group, [(1.0, [])]
        return
    for i, members in enumerate(group):
        other_groups = [g for j, g in enumerate(group) if j != i]
        outer = [
            (_weight(size, len(group)), [p for g in chosen for p in _members(g)])
            for size in range(len(group))
            for chosen in combinations(other_groups, size)
        ]
        for player, inner in _contexts(members):
            yield player, [(v * w, [*b, *a]) for v, a in inner for w, b in outer]


def _members(group: Group) -> list[Player]:
    return [group] if isinstance(group, Player) else [p for g in group for p in _members(g)]


def _weight(before: int, count: int) -> float:
    """The share of the orders in which just these `before` stand before one of `count`."""
    return math.factorial(before) * math.factorial(count - before - 1) / math.factorial(count)
