"""NaN in rows for trees: a missing value, which the explanation of trees takes."""

from pathlib import Path

import numpy as np
import pytest

from compiler import TreeShap, compile_model
from service.errors import InvalidInputError
from service.inference.validation import check_request
from service.repository.registry import read_repository
from tests.references import trees as of


def test_nan_is_a_missing_value_to_trees_alone(tmp_path: Path) -> None:
    compile_model(of.regressor(of.random_trees(1, ("LEQ",))), TreeShap(of.rows(1, 4))).write(tmp_path, "m")
    entries = read_repository(tmp_path).entries
    x = np.array([[1, 2, np.nan, 4, 5]], np.float32)
    assert check_request(entries["m_explain"], {"x": x})[0] == 1
    with pytest.raises(InvalidInputError, match="holds inf at"):
        check_request(entries["m_explain"], {"x": np.where(np.isnan(x), np.inf, x)})
    with pytest.raises(InvalidInputError, match="holds nan at"):
        check_request(entries["m"], {"x": x})
