"""The search space of trees: the cells of each feature, between whose numbers no tree tells."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from rationale.recourse.applicant import Applicant
from rationale.recourse.candidates import Candidates, candidates
from rationale.recourse.levers import Lever, Region, fewest_digits, multiple_above, multiple_below
from rationale.recourse.search import Changes, Scan
from rationale.trees.boxes import Boxes

FLOAT_TYPES: dict[str, type[np.floating]] = {  # by their names in manifests
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


@dataclass(frozen=True, eq=False)
class TreeLevers:
    """Levers on features that the trees of an entry read unchanged.

    Attributes:
        boxes: the leaves; a larger score is more adverse.
        features: the feature of the model that each feature of the trees is; None where they split by none.
        datatypes: the type of the model's input that has each lever's feature, as manifests name it.
    """

    boxes: Boxes
    features: tuple[str | None, ...]
    levers: tuple[Lever, ...]
    datatypes: tuple[str, ...]

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The feature of the trees that each lever changes."""
        return tuple(self.features.index(lever.name) for lever in self.levers)

    @cached_property
    def sizes(self) -> np.ndarray:
        """The number of cells of each lever."""
        return self.boxes.sizes[np.array(self.columns, np.int64)]

    @cached_property
    def owner(self) -> np.ndarray:
        """[M], the lever of each cell of the levers."""
        return np.repeat(np.arange(len(self.levers)), self.sizes)

    @cached_property
    def cell(self) -> np.ndarray:
        """[M], the place of each cell among those of its feature."""
        return np.concatenate([np.arange(size) for size in self.sizes])

    @cached_property
    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """[M], the number of each cell that is nearest to smaller, and to larger numbers; NaN without any."""
        each = [_in_cells(*own) for own in zip(self.starts, self.levers, self.ends, strict=True)]
        return np.concatenate([up for up, _ in each]), np.concatenate([down for _, down in each])

    @cached_property
    def given(self) -> np.ndarray:
        """[M], a number of each cell within the levers' ranges, for an applicant without a value."""
        each = zip(self.starts, self.levers, self.ends, strict=True)
        return np.concatenate([_given(*own) for own in each])

    @cached_property
    def ends(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """The least and the greatest number of each cell but NaN's, for each lever; infinite if open."""
        return tuple(
            _ends(starts, lever.step) for starts, lever in zip(self.starts, self.levers, strict=True)
        )

    @cached_property
    def starts(self) -> tuple[np.ndarray, ...]:
        """The least number of each cell but the first, for each lever, in the type of the input."""
        return tuple(
            _as_input(self.boxes.starts[column], FLOAT_TYPES.get(datatype))
            for column, datatype in zip(self.columns, self.datatypes, strict=True)
        )

    def space(self, applicant: Applicant) -> "CellSpace":
        """Return the search space of one applicant."""
        flat = {name: array.reshape(-1) for name, array in applicant.inputs.items()}
        places = [None if name is None else applicant.places[name] for name in self.features]
        row = np.array([0.0 if place is None else flat[place[0]][place[1]] for place in places])
        cells = self.boxes.cells(row)
        own = cells[np.array(self.columns)][self.owner]
        numbers = np.where(self.cell > own, *self.numbers)
        lacks = own == self.sizes[self.owner] - 1  # the last cell is NaN's
        if lacks.any():
            numbers = np.where(lacks, self.given, numbers)
        numbers[self.cell == own] = np.nan
        rules = applicant.profile.knock_outs
        listed = candidates(self.levers, self.owner, numbers, applicant.values, rules)
        return CellSpace(self, applicant, listed, self.cell, cells, self.boxes)


@dataclass(frozen=True, eq=False)
class CellSpace:
    """The cells of the levers of one applicant; their risks are sums of leaves.

    Attributes:
        cell: [M], the cell of each candidate.
        cells: the cells of the applicant's row.
        boxes: the leaves that the candidates reach.
    """

    trees: TreeLevers
    applicant: Applicant
    candidates: Candidates
    cell: np.ndarray
    cells: np.ndarray
    boxes: Boxes

    is_exact = True

    @cached_property
    def cut(self) -> float:
        """The largest sum of leaves of an approval."""
        return self.applicant.cut(of_margin=True) - self.constant - self.applicant.error

    @cached_property
    def constant(self) -> float:
        """The difference between the applicant's risk, as a margin, and the leaves of the row."""
        return self.applicant.sign * self.applicant.total - self.first[0]

    @cached_property
    def first(self) -> Scan:
        """The risk of the row, and of each candidate alone."""
        return self.scan({})

    @cached_property
    def places(self) -> np.ndarray:
        """[M], the place of each candidate among the cells of all features."""
        first = self.boxes.offsets[np.array(self.trees.columns)]
        places: np.ndarray = first[self.candidates.owner] + self.cell
        return places

    def after(self, changes: Changes) -> np.ndarray:
        """Return the cells of the row after changes."""
        cells = self.cells.copy()
        for lever, i in changes.items():
            cells[self.trees.columns[lever]] = self.cell[i]
        return cells

    def scan(self, changes: Changes) -> Scan:
        cells = self.after(changes)
        risks = self.boxes.scan(cells)
        return float(risks[cells[0]]), risks.take(self.places)

    def scores(self) -> np.ndarray:
        """Return the score of each candidate alone."""
        return self.applicant.scores_of(self.applicant.sign * (self.constant + self.first[1]))

    def is_impossible(self) -> bool:
        """Tell whether no changes that the rules allow, however many, lead to an approval."""
        low, high = self.cells.copy(), self.cells + 1
        allowed = np.isfinite(self.candidates.cost)
        columns, cell = np.array(self.trees.columns)[self.candidates.owner[allowed]], self.cell[allowed]
        np.minimum.at(low, columns, cell)
        np.maximum.at(high, columns, cell + 1)
        most = self.applicant.cut(of_margin=True, is_certain=False) - self.constant + self.applicant.error
        return self.boxes.range(low, high)[0] > most

    def reduced(self) -> "CellSpace":
        """Return the space of the leaves that the levers reach, with the cheapest of candidates alike."""
        listed, columns = self.candidates, np.array(self.trees.columns)
        low, high = self.cells.copy(), self.cells + 1
        low[columns], high[columns] = 0, self.boxes.sizes[columns]
        boxes = self.boxes.within(low, high)
        kinds = np.cumsum(boxes.edges)[self.places]
        own = np.cumsum(boxes.edges)[boxes.offsets[:-1] + self.cells][columns]
        changes = (kinds != own[listed.owner]) | np.isin(listed.owner, listed.unsettled)
        order = np.argsort(listed.cost, kind="stable")
        order = order[(np.isfinite(listed.cost) & changes)[order]]
        kept = np.sort(order[np.unique(kinds[order], return_index=True)[1]])
        own_listed = replace(
            listed, owner=listed.owner[kept], numbers=listed.numbers[kept], cost=listed.cost[kept]
        )
        return replace(self, candidates=own_listed, cell=self.cell[kept], boxes=boxes)

    def nearest(self, i: int, holds: Callable[[Sequence[Any]], np.ndarray]) -> Any:
        """Return the candidate's own value: the row gets the same answer anywhere in its cell."""
        del holds
        return self.candidates.value(i)

    def refined(self, changes: Changes) -> dict[int, Any]:
        """Return a value of each changed lever, with few digits if that makes the change little dearer."""
        return {place: self._shortened(place, i) for place, i in changes.items()}

    def _shortened(self, place: int, i: int) -> Any:
        """Return a candidate's number, or one of its cell with fewer digits."""
        lever, value = self.candidates.levers[place], self.candidates.value(i)
        start = lever.current(self.candidates.values)
        if start is None or not lever.is_continuous:
            return value
        low, high = self.trees.ends[place]
        furthest = (high if value > start else low)[self.cell[i]]
        return lever.shortened(value, start, float(furthest))

    def around(self, i: int, same: np.ndarray) -> Region:
        """Return the numbers around a candidate for whose cells [M] `same` is true."""
        lever = int(self.candidates.owner[i])
        first, end = self.candidates.owner.searchsorted((lever, lever + 1)).tolist()
        around = run_around(same[first : end - 1], int(self.cell[i]))  # the last one is NaN's
        return self._numbers(lever, *around)

    def regions(self, changes: Changes, values: Mapping[int, Any]) -> dict[int, Region]:
        """Return the numbers that each changed lever may have, whatever the others are within theirs."""
        del values
        boxes, low = self.boxes, self.after(changes)
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
        return self.boxes.range(first, last)[1] <= self.cut

    def _numbers(self, place: int, first: int, last: int) -> Region:
        """Return the numbers from one cell to another; None where nothing follows."""
        low, high = self.trees.ends[place]
        ends = float(low[first]), float(high[last])
        return ends[0] if np.isfinite(ends[0]) else None, ends[1] if np.isfinite(ends[1]) else None


def run_around(same: np.ndarray, place: int) -> tuple[int, int]:
    """Return the first and the last place of the run of true values around a place."""
    marks = same.tobytes()
    end = marks.find(0, place)
    return marks.rfind(0, 0, place) + 1, (len(marks) if end < 0 else end) - 1


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


def _as_input(starts: np.ndarray, dtype: type[np.floating] | None) -> np.ndarray:
    """Return for each number the least one of an input's type that is not below it.

    An input whose type holds more than that of the trees, or None, is rounded to theirs.
    """
    if dtype is None or np.dtype(dtype).itemsize >= starts.dtype.itemsize:
        return starts
    own = starts.astype(dtype)
    return np.where(own.astype(starts.dtype) < starts, np.nextafter(own, dtype(np.inf)), own)


def _ends(starts: np.ndarray, step: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the greatest number of each cell, as a reader may write them."""
    past = np.nextafter(starts, starts.dtype.type(-np.inf))
    low, high = (np.array([float(str(number)) for number in numbers]) for numbers in (starts, past))
    if step is not None:
        low, high = multiple_above(low, step), multiple_below(high, step)
    return np.concatenate([[-np.inf], low]), np.concatenate([high, [np.inf]])


def _in_cells(
    starts: np.ndarray, lever: Lever, ends: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return a number in each cell: the one nearest to smaller numbers, and the one nearest to larger ones.

    It is NaN for a cell in which the lever takes no number, such as NaN's, which is the last one.

    Args:
        ends: see `_ends`.
    """
    low, high = ends
    if lever.choices is not None:
        choices = np.sort(np.asarray(lever.choices, np.float64))
        low, high = (
            choices[np.minimum(np.searchsorted(choices, low), len(choices) - 1)],
            choices[np.maximum(np.searchsorted(choices, high, "right") - 1, 0)],
        )
    return _inside(starts, low), _inside(starts, high)


def _given(starts: np.ndarray, lever: Lever, ends: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return a number in each cell that the lever takes in place of a missing one; see `_in_cells`."""
    if lever.choices is not None:
        return _in_cells(starts, lever, ends)[0]
    low, high = np.maximum(ends[0], lever.least), np.minimum(ends[1], lever.most)
    if lever.step is not None:
        numbers = np.where(
            np.isfinite(low), multiple_above(low, lever.step), multiple_below(high, lever.step)
        )
    else:
        numbers = np.array([_of_few_digits(*ends) for ends in zip(low, high, strict=True)])
    return _inside(starts, np.where((low <= numbers) & (numbers <= high), numbers, np.nan))


def _of_few_digits(low: float, high: float) -> float:
    """Return the number with the fewest digits between two ends, of which one may be infinite."""
    return fewest_digits(low, high) if np.isfinite(low) else -fewest_digits(-high, -low)


def _inside(starts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the numbers that lie in their cells, NaN for the others and for NaN's cell."""
    cell = np.searchsorted(starts, numbers.astype(starts.dtype), "right")
    is_inside = np.isfinite(numbers) & (cell == np.arange(len(numbers)))
    return np.append(np.where(is_inside, numbers, np.nan), np.nan)
