"""Numbers of reports; tests/service/console/test_functions.py holds the same rule of the pages."""

import math

import pytest

from rationale.pictures.numbers import feature_value, format_effect, number, writer


@pytest.mark.parametrize(
    ("effects", "values", "expected"),
    [
        ([2_172_000, -29.7], [2_415_167.84], ["+2,172,000", "-30", "2,415,168"]),
        ([39610.11, 0.3023], [2346165.2], ["+39,610.1", "+0.3", "2,346,165.2"]),
        ([-0.0694, 0.0008], [0.1969], ["-0.0694", "+0.0008", "0.1969"]),
        ([1.0, 1e-9], [2.0], ["+1.00", "0.00", "2.00"]),
        ([-1e-9, 1.0], [2.0], ["0.00", "+1.00", "2.00"]),
        ([], [3.14159], ["3.14"]),
        ([0.0], [0.0], ["0", "0"]),
        ([math.nan, 0.5], [math.inf], ["nan", "+0.500", "inf"]),
        ([3e-12], [1.0], ["+3.0e-12", "1.0e+00"]),
    ],
)
def test_numbers_that_stand_together(effects: list[float], values: list[float], expected: list[str]) -> None:
    write = writer(effects, values)
    assert [*(format_effect(write, item) for item in effects), *map(write, values)] == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.19694, "0.1969"),
        (24500, "24,500"),
        (2_415_167.84, "2,415,167.84"),
        (2.172e6, "2,172,000"),
        (1.2e-7, "1.2e-07"),
        (1e16, "1.0e+16"),
        (-29.7, "-29.7"),
        (0, "0"),
        (math.nan, "nan"),
    ],
)
def test_a_number_alone(value: float, expected: str) -> None:
    assert number(value) == expected


@pytest.mark.parametrize(
    ("value", "due"), [(1956, "1956"), (-9999.5, "-9999.5"), (10_000, "10,000"), (0.125, "0.125")]
)
def test_a_value_of_a_feature_may_be_a_year(value: float, due: str) -> None:
    assert feature_value(value) == due


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (0.0001, 4, "0.0001"),
        (0.00009, 4, "9.0e-05"),
        (0.001, 3, "0.001"),
        (0.0004, 3, "4.0e-04"),  # not 0
        (0.00001, 6, "1.0e-05"),
        (1e15, 4, "1.0e+15"),
    ],
)
def test_no_small_number_is_written_as_0(value: float, digits: int, expected: str) -> None:
    assert number(value, digits) == expected
    assert number(-value, digits) == f"-{expected}"
