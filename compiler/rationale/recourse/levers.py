"""Levers: features that an applicant can change, within the decision profile's rules, and the changes' costs.

A change of a number costs its size, in units of the references' median absolute deviation (Wachter et al.,
"Counterfactual explanations without opening the black box", 2017). A change of a category, and a value in
place of a missing one, costs 1. The profile's `cost` is a factor of both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from rationale.decisions.decide import meets_condition
from rationale.schema.form import FormField
from rationale.schema.profile import Action, DecisionProfile, FeatureRule, KnockOut

Values = Mapping[str, Any]  # of one applicant, by feature; None for a missing one
Region = tuple[float | None, float | None]  # the least and the greatest number; None for an open end
FREE = Action()  # any change
DEARER = 0.01  # of a change's own cost: so much more may a number with fewer digits cost


@dataclass(frozen=True)
class Lever:
    """A feature or a one-hot group that can change.

    Attributes:
        name: the feature or group.
        members: its features; several for a group, of which one is 1 and the others are 0.
        least, most: the numbers that the profile, or else the references, take; of a group, any member's.
        step: changed numbers are whole multiples of it; None for any number.
        choices: the values to choose from, numbers or texts; None for any number. A group's are its members.
        scale: the size of a change that costs 1.
        profile_least, profile_most: the numbers that the profile takes, if it says so.
    """

    name: str
    members: tuple[str, ...]
    action: Action
    least: float
    most: float
    step: float | None
    choices: tuple[Any, ...] | None
    scale: float
    profile_least: float | None = None
    profile_most: float | None = None

    @property
    def is_number(self) -> bool:
        """True if its values are numbers."""
        return self.choices is None or all(isinstance(choice, int | float) for choice in self.choices)

    @property
    def is_continuous(self) -> bool:
        """True if it takes any number, or any multiple of its step, in a range."""
        return self.choices is None

    def current(self, values: Values) -> Any:
        """Return an applicant's value of it; a group's is its member that is 1."""
        if len(self.members) > 1:
            return next((name for name in self.members if values[name] == 1), None)
        value = values.get(self.name)
        return float(value) if self.is_number and value is not None else value

    def setting(self, value: Any) -> dict[str, Any]:
        """Return the features that a value sets, without those that move along."""
        if len(self.members) > 1:
            return {member: float(member == value) for member in self.members}
        return {self.name: value}

    def can_change(self, values: Values) -> bool:
        """Tell whether an applicant's group is one-hot; single features can always change.

        A group of counts may happen to be 0, 1 and 0: the references tell.
        """
        members = [values.get(name) for name in self.members]  # as a row has them: 1, 1.0 or True
        is_one_hot = self.least >= 0 and self.most <= 1 and members.count(1) == 1
        return len(members) == 1 or (is_one_hot and members.count(0) == len(members) - 1)

    def span(self, value: float | None) -> tuple[float, float]:
        """Return the least and the greatest number that an applicant can change a number to."""
        low, high = self.least, self.most
        if value is None:
            return low, high
        if self.action.direction == "up":
            low = max(low, value)
        if self.action.direction == "down":
            high = min(high, value)
        if (change := self.action.largest_change(value)) is not None:
            low, high = max(low, value - change), min(high, value + change)
        return low, high

    def costs(self, value: float | None, numbers: np.ndarray) -> np.ndarray:
        """Return the cost of each number."""
        if value is None or self.choices is not None:
            return np.full(len(numbers), self.action.cost)
        return np.abs(numbers - value) * (self.action.cost / self.scale)

    def on_grid(self, numbers: np.ndarray, value: float | None) -> np.ndarray:
        """Return numbers as whole multiples of the step, rounded away from the applicant's value."""
        if self.step is None:
            return numbers
        is_below = numbers < (numbers if value is None else value)
        return np.where(is_below, multiple_below(numbers, self.step), multiple_above(numbers, self.step))

    def shortened(self, value: float, start: float, furthest: float) -> float:
        """Return the number with the fewest digits between a value and one further from the applicant's.

        The change costs at most DEARER more.

        Args:
            start: the applicant's value.
            furthest: the number beyond `value` that may be reached.
        """
        if self.step is not None:
            return value
        low, high = self.span(start)
        sign = 1.0 if value > start else -1.0
        reach = value + DEARER * (value - start)
        end = min(reach, furthest, high) if sign > 0 else max(reach, furthest, low)
        return sign * fewest_digits(sign * value, sign * end)


def levers_of(
    actions: Mapping[str, Action],
    profile: DecisionProfile,
    fields: Mapping[str, FormField],
    scales: Mapping[str, float],
) -> list[Lever]:
    """Return a lever for each action.

    Args:
        actions: actions by the name of a feature or group.
        fields: the description of each feature.
        scales: the size of a change that costs 1, by feature.
    """
    return [
        _group(name, members, action, fields)
        if (members := profile.groups[name].members if name in profile.groups else ())
        else _single(fields[name], profile.features.get(name), action, scales.get(name, 1.0))
        for name, action in actions.items()
    ]


def _group(name: str, members: tuple[str, ...], action: Action, fields: Mapping[str, FormField]) -> Lever:
    lows, highs = ([getattr(fields[each], end) for each in members] for end in ("least", "most"))
    least, most = min(low or 0.0 for low in lows), max(high or 0.0 for high in highs)
    return Lever(name, members, action, least, most, None, members, 1.0)


def _single(field: FormField, rule: FeatureRule | None, action: Action, scale: float) -> Lever:
    step = action.step or (1.0 if field.whole or field.integer else None)
    least = -np.inf if field.least is None else field.least
    most = np.inf if field.most is None else field.most
    known = (rule.least, rule.most) if rule else (None, None)
    return Lever(field.name, (field.name,), action, least, most, step, field.choices, scale, *known)


def changed(values: Values, changes: Sequence[tuple[Lever, Any]]) -> dict[str, Any]:
    """Return the features that changes set, and those that move with them."""
    after = dict[str, Any]()
    for lever, value in changes:
        after |= lever.setting(value)
    for lever, value in changes:
        before = values[lever.name] if lever.action.moves else None
        for name in lever.action.moves:
            after[name] = after.get(name, values[name] or 0.0) + value - (before or 0.0)
    return after


def triggers(knock_outs: Sequence[KnockOut], after: Values) -> bool:
    """Tell whether any knock-out declines by these values."""
    return any(meets_condition(rule, after.get(rule.feature)) for rule in knock_outs)


def widened(region: Region, value: float) -> Region:
    """Return a region that holds a value too."""
    low, high = region
    return None if low is None else min(low, value), None if high is None else max(high, value)


def within(region: Region, value: float, lever: Lever, knock_outs: Sequence[KnockOut]) -> Region:
    """Return the part of a region around a value that the profile takes, without knock-outs."""
    low, high = region
    bounds = [(lever.profile_least, lever.profile_most)]
    for rule in knock_outs:
        if rule.feature != lever.name:
            continue
        if isinstance(rule.equals, int | float):
            under, over = np.nextafter(rule.equals, -np.inf), np.nextafter(rule.equals, np.inf)
            if lever.step is not None:
                under, over = rule.equals - lever.step, rule.equals + lever.step
        else:  # the ends do not decline
            under = -np.inf if rule.above is None else rule.above
            over = np.inf if rule.below is None else rule.below
        bounds.append((None, float(under)) if value <= under else (float(over), None))
    lows = [end for end in (low, *(first for first, _ in bounds)) if end is not None]
    highs = [end for end in (high, *(last for _, last in bounds)) if end is not None]
    return max(lows, default=None), min(highs, default=None)


def fewest_digits(low: float, high: float) -> float:
    """Return the number with the fewest digits in [low, high], the least of them; `low` if there is none."""
    for power in range(9, -10, -1):
        number = float(multiple_above(np.array(low), 10.0**power))
        if low <= number <= high:
            return number
    return low


def multiple_above(numbers: np.ndarray, step: float) -> np.ndarray:
    """Return for each number the least multiple of a step that is not below it, without rounding's digits."""
    decimals = max(0, -int(Decimal(repr(step)).normalize().as_tuple().exponent))
    steps = np.floor(numbers / step)
    below, above = (np.round(each * step, decimals) + 0.0 for each in (steps, steps + 1))
    return np.where(below >= numbers, below, above)


def multiple_below(numbers: np.ndarray, step: float) -> np.ndarray:
    """Return for each number the greatest multiple of a step that is not above it."""
    return -multiple_above(-numbers, step) + 0.0
