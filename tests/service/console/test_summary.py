"""The waterfall's line, as a table of cases: the exact tie is the first."""

from typing import Any

import pytest

from tests.service.console.node import in_node

LATE = {"name": "Late payments", "shown": "0", "amount": -0.069}
DEBT = {"name": "Debt", "shown": "0.31 of income", "amount": -0.034}
AGE = {"name": "Age", "amount": 0.2}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"isShare": True, "score": 0.2, "threshold": 0.2, "base": 0.2, "items": []},
            "20%, exactly at the threshold",
        ),
        (
            {"isShare": True, "score": 0.108, "threshold": 0.2, "base": 0.177, "items": [LATE]},
            "10.8%, 9.2 points below the threshold; mainly: Late payments = 0, −6.9 points",
        ),
        (
            {"isShare": True, "score": 0.3, "threshold": 0.2, "base": 0.1, "items": [LATE, AGE]},
            "30%, 10 points above the threshold; mainly: Age, +20 points",
        ),
        (  # exactly half of the largest is named
            {"score": 3, "base": 0, "items": [{"name": n, "amount": a} for n, a in (("a", 1), ("b", 2))]},
            "3, 3 above the base value; mainly: b, +2.00; a, +1.00",
        ),
        (
            {"score": 3, "base": 0, "items": [{"name": n, "amount": a} for n, a in (("a", 0.999), ("b", 2))]},
            "3, 3 above the base value; mainly: b, +2.00",
        ),
        (  # a second one that is about as large is named, smaller ones are not
            {
                "isShare": True,
                "score": 0.1,
                "threshold": 0.2,
                "base": 0.2,
                "items": [{**LATE, "amount": -0.01}, DEBT, LATE],
            },
            "10%, 10 points below the threshold; mainly: Late payments = 0, −6.9 points",
        ),
        (
            {
                "isShare": True,
                "score": 0.1,
                "threshold": 0.2,
                "base": 0.2,
                "items": [{**DEBT, "amount": -0.04}, LATE],
            },
            "10%, 10 points below the threshold; "
            "mainly: Late payments = 0, −6.9 points; Debt = 0.31 of income, −4 points",
        ),
        (
            {"score": 24500, "base": 20000, "items": [{**AGE, "amount": 4500}]},
            "24,500, 4,500 above the base value; mainly: Age, +4,500",
        ),
        (  # an effect has the decimals of the waterfall, where the smallest one has a digit
            {
                "score": 2_415_167.8,
                "base": 2_400_000,
                "items": [{**AGE, "amount": 39610.11}, {**AGE, "amount": 0.3}],
            },
            "2,415,167.8, 15,167.8 above the base value; mainly: Age, +39,610.1",
        ),
        (
            {"score": 24500, "threshold": 20000, "base": 20000, "items": [{**AGE, "amount": 4500}]},
            "24,500, 4,500 above the threshold; mainly: Age, +4,500",
        ),
        (
            {
                "isShare": True,
                "score": 0.3,
                "threshold": 0.2,
                "value": -0.8,
                "base": -1,
                "items": [AGE],
                "unit": "margin",
            },
            "30%, 10 points above the threshold; mainly: Age, +0.200 of the margin",
        ),
        (
            {"isShare": True, "score": 0.108, "base": 0.177, "items": [LATE]},
            "10.8%, 6.9 points below the base value; mainly: Late payments = 0, −6.9 points",
        ),
        (  # a score in 0 to 1 that is no probability
            {"score": 0.3, "threshold": 0.2, "base": 0.1, "items": [AGE]},
            "0.3, 0.1 above the threshold; mainly: Age, +0.200",
        ),
        (
            {"score": 1.5, "items": [AGE, LATE]},
            "1.5; mainly: Age, +0.200",
        ),  # of a method without a base value
    ],
)
def test_the_line_of_a_waterfall(arguments: dict[str, Any], expected: str) -> None:
    script = "return own.summaryOf({write: own.writers(given.items.map((item) => item.amount)), ...given});"
    assert in_node(["format.js", "pictures/summary.js"], script, arguments) == expected
