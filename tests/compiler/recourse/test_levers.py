"""Limits of the rules for changes: spans, costs, regions, and features that move together."""

import math
from typing import Any

import numpy as np
import pytest

from rationale.recourse.levers import Lever, changed, fewest_digits, within
from rationale.schema.profile import Action, KnockOut

INF = math.inf


def lever(step: float | None = None, scale: float = 1.0, name: str = "x", **action: Any) -> Lever:
    return Lever(name, (name,), Action(**action), -100.0, 100.0, step, None, scale)


@pytest.mark.parametrize(
    ("action", "value", "span"),
    [
        ({}, 40.0, (-100, 100)),
        ({}, None, (-100, 100)),
        ({"direction": "up"}, 40.0, (40, 100)),
        ({"direction": "up"}, -40.0, (-40, 100)),
        ({"direction": "up"}, None, (-100, 100)),  # any value may come in place of a missing one
        ({"direction": "down"}, 40.0, (-100, 40)),
        ({"direction": "down"}, -40.0, (-100, -40)),
        ({"direction": "up"}, -200.0, (-100, 100)),
        ({"most": 5.0}, 40.0, (35, 45)),
        ({"most": 5.0}, 98.0, (93, 100)),
        ({"most": "20%"}, 40.0, (32, 48)),
        ({"most": "20 %"}, -40.0, (-48, -32)),  # a share is of the size
        ({"most": "20%"}, 0.0, (0, 0)),
        ({"most": "12.5%", "direction": "up"}, -40.0, (-40, -35)),
        ({"most": 5.0, "direction": "down"}, -40.0, (-45, -40)),
    ],
)
def test_how_far_a_number_can_change(
    action: dict[str, Any], value: float | None, span: tuple[float, float]
) -> None:
    assert lever(**action).span(value) == pytest.approx(span)


@pytest.mark.parametrize(
    ("scale", "factor", "value", "costs"),
    [
        (1.0, 1.0, 2.0, [2, 0, 3]),
        (4.0, 1.0, 2.0, [0.5, 0, 0.75]),  # a larger spread makes a change cheaper
        (4.0, 2.0, 2.0, [1, 0, 1.5]),
        (0.5, 1.0, -1.0, [2, 6, 12]),
        (4.0, 3.0, None, [3, 3, 3]),
    ],
)
def test_a_change_costs_its_size_in_units_of_the_spread(
    scale: float, factor: float, value: float | None, costs: list[float]
) -> None:
    numbers = np.array([0.0, 2.0, 5.0])
    assert lever(scale=scale, cost=factor).costs(value, numbers).tolist() == costs


def knock_out(**condition: Any) -> KnockOut:
    return KnockOut(feature="x", reason="R", **condition)


@pytest.mark.parametrize(
    ("rules", "step", "value", "region"),
    [
        # the ends of a condition do not decline: a value there has the side that it ends
        ([{"above": 5}], None, 5.0, (None, 5)),
        ([{"above": 5}], None, 4.0, (None, 5)),
        ([{"below": 5}], None, 5.0, (5, None)),
        ([{"below": 5}], None, 6.0, (5, None)),
        ([{"above": 2, "below": 5}], None, 2.0, (None, 2)),
        ([{"above": 2, "below": 5}], None, 5.0, (5, None)),
        ([{"below": 0}, {"above": 2, "below": 5}], None, 1.0, (0, 2)),
        ([{"below": 0}, {"above": 2, "below": 5}], None, 0.0, (0, 2)),
        ([{"equals": 3}], 1.0, 2.0, (None, 2)),
        ([{"equals": 3}], 1.0, 4.0, (4, None)),
        ([{"equals": 3}], 0.5, 2.5, (None, 2.5)),
        ([{"equals": 3}], None, 2.0, (None, np.nextafter(3, -INF))),
        ([{"equals": 3}], None, 4.0, (np.nextafter(3, INF), None)),
        ([], None, 4.0, (None, None)),
    ],
)
def test_a_region_ends_where_a_knock_out_begins(
    rules: list[dict[str, Any]], step: float | None, value: float, region: tuple[float | None, float | None]
) -> None:
    knock_outs = [*(knock_out(**rule) for rule in rules), KnockOut(feature="y", reason="R", above=-9)]
    assert within((None, None), value, lever(step), knock_outs) == region
    assert within((value, value), value, lever(step), knock_outs) == (value, value)


VALUES = {"a": 1.0, "b": 10.0, "total": 11.0, "gap": None}


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ([("a", 3.0, ["total"])], {"a": 3, "total": 13}),
        ([("a", 3.0, ["total"]), ("b", 5.0, ["total"])], {"a": 3, "b": 5, "total": 8}),  # both move it
        ([("a", 3.0, []), ("b", 5.0, ["total"])], {"a": 3, "b": 5, "total": 6}),
        ([("a", 3.0, ["total", "gap"])], {"a": 3, "total": 13, "gap": 2}),
        ([("gap", 3.0, ["total"])], {"gap": 3, "total": 14}),
        ([("a", 3.0, ["b"]), ("b", 5.0, [])], {"a": 3, "b": 7}),  # what is set moves along too
    ],
)
def test_features_move_by_the_sum_of_all_changes(
    changes: list[tuple[str, float, list[str]]], after: dict[str, float]
) -> None:
    levers = [(lever(name=name, moves=tuple(moves)), value) for name, value, moves in changes]
    assert changed(VALUES, levers) == after


@pytest.mark.parametrize(
    ("low", "high", "number"),
    [
        (1234.5, 1300, 1300),
        (1234.5, 1299, 1240),
        (1234.5, 1234.5, 1234.5),
        (0.30000001, 0.31, 0.31),
        (-1300, -1234, -1300),
        (-0.05, 0.04, 0),
        (-INF, 3, -INF),
        (INF, INF, INF),
    ],
)
def test_the_number_of_the_fewest_digits(low: float, high: float, number: float) -> None:
    assert fewest_digits(low, high) == pytest.approx(number)


@pytest.mark.parametrize(
    ("value", "start", "furthest", "short"),
    [
        (10.68, 0.0, INF, 10.7),
        (10.68, 0.0, 10.69, 10.68),  # no further than where the answer may change
        (98.87, 0.0, INF, 99),
        (99.987, 0.0, INF, 100),  # and no further than the lever goes
        (-99.987, 0.0, -INF, -100),
        (-10.68, 0.0, -INF, -10.7),
        (-10.68, 0.0, -10.69, -10.68),
        (10.68, 10.6, INF, 10.68),  # a hundredth of the change is little of it
    ],
)
def test_a_number_with_fewer_digits_costs_little_more(
    value: float, start: float, furthest: float, short: float
) -> None:
    assert lever().shortened(value, start, furthest) == short


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_with_fewer_digits_is_one_that_the_lever_takes(sign: int) -> None:
    narrow = Lever("x", ("x",), Action(), -10.694, 10.694, None, None, 1.0)
    assert narrow.shortened(sign * 10.6872, 0.0, sign * INF) == sign * 10.69
    assert lever(most=10.694).shortened(sign * 10.6872, 0.0, sign * INF) == sign * 10.69
