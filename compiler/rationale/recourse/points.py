"""The search space of any model: points of each lever, which the entry itself scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np

from rationale.recourse.applicant import Applicant, as_element
from rationale.recourse.candidates import Candidates, candidates
from rationale.recourse.cells import run_around
from rationale.recourse.levers import Lever, Region, changed, triggers
from rationale.recourse.search import Changes, Scan
from rationale.schema.form import FormField

_DIGITS = 7  # of a float32; further ones are rounding
_FINE = 32  # points between two neighbours, in each round of a refinement
_ROUNDS = 3  # of a refinement
_INSIDE = 64  # random rows of a region that the entry scores
_SHRINKS = 6  # of a region


def point_space(
    applicant: Applicant, levers: Sequence[Lever], fields: Mapping[str, FormField]
) -> "PointSpace":
    """Return the search space of one applicant.

    Args:
        fields: the description of each feature.
    """
    values, rules = applicant.values, applicant.profile.knock_outs
    numbers = [
        _grid(lever, fields[lever.name], lever.current(values))
        if lever.is_number
        else np.arange(float(len(lever.choices or ())))
        for lever in levers
    ]
    owner = np.repeat(np.arange(len(levers)), [len(each) for each in numbers])
    return PointSpace(
        applicant, candidates(levers, owner, np.concatenate([np.zeros(0), *numbers]), values, rules)
    )


def _grid(lever: Lever, field: FormField, value: float | None) -> np.ndarray:
    """Return numbers of a lever: its choices, or where trees split it, and the references' quantiles."""
    if lever.choices is not None:
        return np.asarray(lever.choices, np.float64)
    quantiles = np.asarray(field.quantiles or (), np.float64)
    middles = [float(f"{middle:.{_DIGITS}g}") for middle in (quantiles[1:] + quantiles[:-1]) / 2]
    ends = [end for end in lever.span(value) if np.isfinite(end)]
    numbers = np.concatenate([quantiles, middles, np.asarray(field.splits or (), np.float64), ends])
    return np.unique(lever.on_grid(numbers, value))


@dataclass(frozen=True, eq=False)
class PointSpace:
    """The points of the levers of one applicant."""

    applicant: Applicant
    candidates: Candidates

    is_exact = False

    @cached_property
    def cut(self) -> float:
        return self.applicant.cut(of_margin=False)

    def scan(self, changes: Changes) -> Scan:
        risks = np.full(len(self.candidates.owner), np.inf)
        own, *risks[self.allowed] = self.applicant.sign * self.applicant.entry.scores(self._rows(changes))
        return float(own), risks

    @cached_property
    def allowed(self) -> np.ndarray:
        """The candidates that the rules allow."""
        return np.flatnonzero(np.isfinite(self.candidates.cost))

    def _rows(self, changes: Changes) -> dict[str, np.ndarray]:
        """Return the row after changes, and after each candidate that the rules allow."""
        listed = self.candidates
        if any(lever.action.moves for lever in listed.levers):  # what moves along depends on the changes
            each = [{**changes, int(listed.owner[i]): int(i)} for i in self.allowed]
            return self.applicant.rows([listed.after(one) for one in (changes, *each)])
        row = self.applicant.rows([listed.after(changes)])
        rows = {name: np.repeat(array, len(self.allowed) + 1, axis=0) for name, array in row.items()}
        for (tensor, index), (places, values) in self._settings.items():
            rows[tensor].reshape(len(rows[tensor]), -1)[places, index] = values
        return rows

    @cached_property
    def _settings(self) -> dict[tuple[str, int], tuple[list[int], list[Any]]]:
        """The rows and the values that candidates set, by input and flat index."""
        listed, places = self.candidates, self.applicant.places
        flat = {name: array.reshape(-1) for name, array in self.applicant.inputs.items()}
        found = dict[tuple[str, int], tuple[list[int], list[Any]]]()
        for row, i in enumerate(self.allowed.tolist(), 1):
            for name, value in listed.after({int(listed.owner[i]): i}).items():
                if name in places:
                    tensor, index = places[name]
                    rows, values = found.setdefault((tensor, index), ([], []))
                    rows.append(row)
                    values.append(as_element(value, flat[tensor][index]))
        return found

    def scores(self) -> np.ndarray:
        """Return the score of each candidate alone."""
        return self.applicant.sign * self.scan({})[1]

    def is_impossible(self) -> bool:
        """Return False: points prove nothing."""
        return False

    def nearest(self, i: int, holds: Callable[[Sequence[Any]], np.ndarray]) -> Any:
        """Return the value nearest to the applicant's between it and a candidate at which a test holds."""
        lever = self.candidates.levers[int(self.candidates.owner[i])]
        if not lever.is_continuous:
            return self.candidates.value(i)
        return self._nearer(lever, self.candidates.value(i), holds)

    def refined(self, changes: Changes) -> dict[int, Any]:
        """Return a value of each changed lever, each number as near to the applicant's as still passes."""
        chosen = {lever: self.candidates.value(i) for lever, i in changes.items()}
        for place in changes:
            if (lever := self.candidates.levers[place]).is_continuous:
                chosen[place] = self._nearer(lever, chosen[place], partial(self._pass_with, chosen, place))
        return chosen

    def around(self, i: int, same: np.ndarray) -> Region:
        """Return the numbers around a candidate for which [M] `same` is true."""
        own = self.candidates.of(int(self.candidates.owner[i]))
        first, last = run_around(same[own], int(np.flatnonzero(own == i)[0]))
        return float(self.candidates.numbers[own[first]]), float(self.candidates.numbers[own[last]])

    def regions(self, changes: Changes, values: Mapping[int, Any]) -> dict[int, Region]:
        """Return regions of numbers whose corners, and some random rows within, the entry approves."""
        ends = dict[int, tuple[float, float]]()
        for place in changes:
            if self.candidates.levers[place].is_continuous:
                own = self.candidates.of(place)
                numbers = np.unique(np.append(self.candidates.numbers[own], values[place]))
                passes = self._passes([{**values, place: float(n)} for n in numbers])
                first, last = run_around(passes, int(np.searchsorted(numbers, values[place])))
                ends[place] = (float(numbers[first]), float(numbers[last]))
        random = np.random.default_rng(0)
        for _ in range(_SHRINKS):
            corners = [dict(zip(ends, corner, strict=True)) for corner in product(*ends.values())]
            inner = [
                {
                    place: float(self._rounded(place, random.uniform(low, high)))
                    for place, (low, high) in ends.items()
                }
                for _ in range(_INSIDE)
            ]
            if self._passes([{**values, **each} for each in corners + inner]).all():
                return dict(ends)
            ends = {
                place: (
                    self._rounded(place, (low + values[place]) / 2),
                    self._rounded(place, (high + values[place]) / 2),
                )
                for place, (low, high) in ends.items()
            }
        return {place: (values[place], values[place]) for place in ends}

    def _rounded(self, place: int, number: float) -> float:
        step = self.candidates.levers[place].step
        return number if step is None else float(np.round(number / step) * step)

    def _pass_with(self, chosen: Mapping[int, Any], place: int, numbers: Sequence[float]) -> np.ndarray:
        """Tell for each number of a lever whether it passes, the other levers as chosen."""
        return self._passes([{**chosen, place: number} for number in numbers])

    def _passes(self, chosen: Sequence[Mapping[int, Any]]) -> np.ndarray:
        """Tell whether the entry's score approves values of levers, and no knock-out declines."""
        levers, values = self.candidates.levers, self.candidates.values
        after = [
            changed(values, [(levers[place], value) for place, value in each.items()]) for each in chosen
        ]
        rules = self.applicant.profile.knock_outs
        settled = [not triggers(rules, {**values, **each}) for each in after]
        return np.asarray((self.applicant.risks(after) <= self.cut) & np.array(settled))

    def _nearer(self, lever: Lever, value: float, holds: Callable[[Sequence[float]], np.ndarray]) -> float:
        """Return the number nearest to the applicant's at which a test still holds, by ever finer points."""
        start = lever.current(self.candidates.values)
        if start is None:
            return value
        near = start
        for _ in range(_ROUNDS):
            numbers = np.unique(lever.on_grid(np.linspace(near, value, _FINE + 2)[1:-1], near))
            numbers = numbers[(numbers != near) & (numbers != value)]
            numbers = numbers[np.argsort(np.abs(numbers - near))]
            if not len(numbers):
                break
            held = np.flatnonzero(holds(numbers.tolist()))
            first = int(held[0]) if len(held) else len(numbers)
            near = float(numbers[first - 1]) if first else near
            value = float(numbers[first]) if len(held) else value
        short = lever.shortened(value, start, np.inf if value > start else -np.inf)
        return short if short != value and holds([short])[0] else value
