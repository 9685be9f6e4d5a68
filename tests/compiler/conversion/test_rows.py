"""Rows of a table, found by what a model says of its columns."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from rationale import InvalidReferencesError
from rationale.conversion.rows import Features, rows_of

THREE = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("columns", [["a b", "a_b"], ["a_b", "a b"]])
@pytest.mark.parametrize("names", [("a b", "a_b"), ("a_b", "a b")])
def test_a_name_as_it_stands_comes_before_one_with_underscores(columns: list[str], names: Any) -> None:
    table = pd.DataFrame(THREE[:, :2], columns=columns)
    np.testing.assert_array_equal(rows_of(table, Features(2, names)).numbers(), table[[*names]])


def test_underscores_stand_for_spaces() -> None:
    table = pd.DataFrame(THREE, columns=["c", "a b", "other"])
    np.testing.assert_array_equal(rows_of(table, Features(2, ("a_b", "c"))).numbers(), THREE[:, [1, 0]])


@pytest.mark.parametrize("example", [THREE, pd.DataFrame(THREE)], ids=["array", "positions"])
@pytest.mark.parametrize(("count", "told"), [(2, "have 3 columns; .* on 2"), (4, "have 3 columns; .* on 4")])
def test_columns_too_many_or_too_few(example: Any, count: int, told: str) -> None:
    with pytest.raises(InvalidReferencesError, match=told):
        rows_of(example, Features(count, None))
    assert rows_of(example, Features(3, None)).numbers().tolist() == THREE.tolist()


def test_whole_numbers_stay_so_in_a_frame_alone() -> None:
    table = pd.DataFrame({"age": [31, 45], "income": [1.5, 2.0], "region": ["north", "south"]})
    found = rows_of(table, Features(3, None)).frame()
    assert list(found.dtypes)[:2] == [np.int64, np.float64]
    assert rows_of(table[["age"]], Features(1, None)).numbers().dtype == np.float64
