"""The search space of trees: the cells of each feature, between whose numbers no tree tells."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from rationale.decisions.decide import outcomes_of
from rationale.recourse.applicant import SAFE, Applicant
from rationale.recourse.candidates import Candidates, candidates
from rationale.recourse.levers import ROUNDED, Lever, Region, round_up
from rationale.recourse.search import Changes
from rationale.trees.boxes import Boxes


@dataclass(frozen=True, eq=False)
class TreeLevers:
    """Levers on features that the trees of an entry read unchanged.

    Attributes:
        boxes: the leaves; a larger score is more adverse.
        features: the feature of the model that each feature of the trees is; None where they split by none.
    """

    boxes: Boxes
    features: tuple[str | None, ...]
    levers: tuple[Lever, ...]

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The feature of the trees that each lever changes."""
        return tuple(self.features.index(lever.name) for lever in self.levers)

    @cached_property
    def numbers(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """The number of each cell that is nearest to smaller, and to larger numbers, for each lever."""
        pairs = zip(self.columns, self.levers, strict=True)
        return tuple(_in_cells(self.boxes.starts[column], lever) for column, lever in pairs)

    def space(self, applicant: Applicant) -> "CellSpace":
        """Return the search space of one applicant."""
        flat = {name: array.reshape(-1) for name, array in applicant.inputs.items()}
        places = [None if name is None else applicant.places[name] for name in self.features]
        row = np.array([0.0 if place is None else flat[place[0]][place[1]] for place in places])
        cells, numbers = self.boxes.cells(row), list[np.ndarray]()
        for column, (up, down) in zip(self.columns, self.numbers, strict=True):
            nearest = np.where(np.arange(len(up)) > cells[column], up, down)
            nearest[cells[column]] = np.nan
            numbers.append(nearest)
        listed = candidates(self.levers, numbers, applicant.values, applicant.profile.knock_outs)
        return CellSpace(self, applicant, listed, cells)


@dataclass(frozen=True, eq=False)
class CellSpace:
    """The cells of the levers of one applicant; their risks are sums of leaves."""

    trees: TreeLevers
    applicant: Applicant
    candidates: Candidates
    cells: np.ndarray

    is_exact = True

    @cached_property
    def cut(self) -> float:
        """The largest sum of leaves of an approval."""
        return self.applicant.cut(of_margin=True) - self.constant - self.applicant.error

    @cached_property
    def constant(self) -> float:
        """The difference between the applicant's risk, as a margin, and the leaves of the row."""
        leaves = self.trees.boxes.range(self.cells, self.cells + 1)[0]
        return self.applicant.sign * self.applicant.total - leaves

    @cached_property
    def places(self) -> np.ndarray:
        """[M], the place of each candidate among the cells of all features."""
        boxes = self.trees.boxes
        own = [boxes.offsets[column] + np.arange(boxes.sizes[column]) for column in self.trees.columns]
        return np.concatenate([np.zeros(0, np.int64), *own])

    def after(self, changes: Changes) -> np.ndarray:
        """Return the cells of the row after changes."""
        cells = self.cells.copy()
        for lever, i in changes.items():
            column = self.trees.columns[lever]
            cells[column] = self.places[i] - self.trees.boxes.offsets[column]
        return cells

    def scan(self, changes: Changes) -> np.ndarray:
        return np.asarray(self.trees.boxes.scan(self.after(changes))[self.places])

    def risk(self, changes: Changes) -> float:
        cells = self.after(changes)
        return self.trees.boxes.range(cells, cells + 1)[1]

    def outcomes(self) -> np.ndarray:
        """Return the outcome of each candidate alone, by the score alone."""
        totals = self.applicant.sign * (self.constant + self.scan({}))
        return outcomes_of(self.applicant.profile, self.applicant.scores_of(totals))

    def is_impossible(self) -> bool:
        """Tell whether no changes that the rules allow, however many, lead to an approval."""
        low, high = self.cells.copy(), self.cells + 1
        for lever, column in enumerate(self.trees.columns):
            own = self.places[self.candidates.of(lever)] - self.trees.boxes.offsets[column]
            if len(own):
                low[column], high[column] = min(low[column], own.min()), max(high[column], own.max() + 1)
        return self.trees.boxes.range(low, high)[0] > self.cut + 2 * (SAFE + self.applicant.error)

    def nearest(self, i: int, holds: Callable[[Any], bool]) -> Any:
        """Return the candidate's own value: the row gets the same answer anywhere in its cell."""
        del holds
        return self.candidates.value(i)

    def refined(self, changes: Changes) -> dict[int, Any]:
        """Return the value of each changed lever."""
        return {lever: self.candidates.value(i) for lever, i in changes.items()}

    def around(self, i: int, same: np.ndarray) -> Region:
        """Return the numbers around a candidate for whose cells [M] `same` is true."""
        lever = int(self.candidates.owner[i])
        column = self.trees.columns[lever]
        own = np.flatnonzero(self.candidates.owner == lever)[:-1]  # the last one is NaN's
        return self._numbers(lever, *run_around(same[own], self.places[i] - self.trees.boxes.offsets[column]))

    def regions(self, changes: Changes, values: Mapping[int, Any]) -> dict[int, Region]:
        """Return the numbers that each changed lever may have, whatever the others are within theirs."""
        del values
        boxes, low = self.trees.boxes, self.after(changes)
        high = low + 1
        for lever in changes:
            column = self.trees.columns[lever]
            room = int(boxes.sizes[column]) - 1 - int(high[column])  # NaN's cell stays outside
            low[column] -= _furthest(int(low[column]), partial(self._passes, low, high, column, -1))
            high[column] += _furthest(room, partial(self._passes, low, high, column, 1))
        columns = {lever: self.trees.columns[lever] for lever in changes}
        return {
            lever: self._numbers(lever, int(low[column]), int(high[column]) - 1)
            for lever, column in columns.items()
        }

    def _passes(self, low: np.ndarray, high: np.ndarray, column: int, side: int, steps: int) -> bool:
        """Tell whether all rows of a box pass that reaches some cells further on one side of a feature."""
        first, last = low.copy(), high.copy()
        if side < 0:
            first[column] -= steps
        else:
            last[column] += steps
        return self.trees.boxes.range(first, last)[1] <= self.cut

    def _numbers(self, place: int, first: int, last: int) -> Region:
        """Return the numbers from one cell to another; None where nothing follows."""
        starts, lever = self.trees.boxes.starts[self.trees.columns[place]], self.trees.levers[place]
        low = float(str(starts[first - 1])) if first else None
        high = None
        if last < len(starts):
            high = float(str(np.nextafter(starts[last], starts.dtype.type(-np.inf))))
        if lever.step is not None:
            low = None if low is None else float(np.ceil(low / lever.step) * lever.step)
            high = None if high is None else float(np.floor(high / lever.step) * lever.step)
        return low, high


def run_around(same: np.ndarray, place: int) -> tuple[int, int]:
    """Return the first and the last place of the run of true values around a place."""
    others = np.flatnonzero(~same)
    k = int(np.searchsorted(others, place))
    return int(others[k - 1]) + 1 if k else 0, int(others[k]) - 1 if k < len(others) else len(same) - 1


def _furthest(room: int, holds: Callable[[int], bool]) -> int:
    """Return the largest n ≤ room up to which a monotone test holds; 0 if it never does."""
    reached, step = 0, 1
    while reached < room and holds(min(reached + step, room)):
        reached, step = min(reached + step, room), step * 2
    while step > 1:
        step //= 2
        if reached + step <= room and holds(reached + step):
            reached += step
    return reached


def _in_cells(starts: np.ndarray, lever: Lever) -> tuple[np.ndarray, np.ndarray]:
    """Return a number in each cell: the one nearest to smaller numbers, and the one nearest to larger ones.

    It is NaN for a cell in which the lever takes no number, such as NaN's, which is the last one.
    """
    lowest = np.concatenate([[-np.inf], starts.astype(np.float64)])
    past = np.nextafter(starts, starts.dtype.type(-np.inf))
    highest = np.concatenate([past.astype(np.float64), [np.inf]])
    if lever.choices is not None:
        choices = np.sort(np.asarray(lever.choices, np.float64))
        after = np.minimum(np.searchsorted(choices, lowest), len(choices) - 1)
        before = np.maximum(np.searchsorted(choices, highest, "right") - 1, 0)
        return _inside(starts, choices[after]), _inside(starts, choices[before])
    if lever.step is not None:
        up, down = np.ceil(lowest / lever.step) * lever.step, np.floor(highest / lever.step) * lever.step
        return _inside(starts, up), _inside(starts, down)
    near = lever.scale * ROUNDED
    up = _inside(starts, round_up(lowest, np.minimum(highest, lowest + near)))
    down = _inside(starts, -round_up(-highest, np.minimum(-lowest, near - highest)))
    return _exact(starts, up, lowest), _exact(starts, down, highest)


def _inside(starts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the numbers that lie in their cells, NaN for the others and for NaN's cell."""
    cell = np.searchsorted(starts, numbers.astype(starts.dtype), "right")
    is_inside = np.isfinite(numbers) & (cell == np.arange(len(numbers)))
    return np.append(np.where(is_inside, numbers, np.nan), np.nan)


def _exact(starts: np.ndarray, numbers: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the numbers; for those that are NaN, the end of their cell, if it has one."""
    short = np.array([float(str(starts.dtype.type(end))) for end in ends])
    own = numbers[:-1]
    return np.append(np.where(np.isnan(own) & np.isfinite(short), short, own), np.nan)
