"""`Compiled.explain` and `to_shap`: rows that do not fit, and what SHAP's plots get."""

import importlib
import warnings
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
import numpy as np
import pytest

from compiler import Compiled, DeepShap, Gradient, compile_model
from compiler.errors import InvalidOptionError
from tests.compiler.models import CLASSES, FEATURES, NAMES, cnn, mlp, parsed, rows, two_inputs

ROWS = rows(3, FEATURES, seed=9)


# -- Compiled.explain ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(mlp(), DeepShap(rows(4, FEATURES)), targets="all", feature_names=NAMES)


BAD_ROWS = {
    "another name": ({"z": ROWS}, r"inputs \['z'\] are given; the model takes \['x'\]"),
    "no input": ({}, r"inputs \[\] are given"),
    "too wide": (rows(3, 6), r"'x' has shape \[3, 6\]; the model takes \[N, 5\], N ≥ 1"),
    "one row without its axis": (ROWS[0], r"shape \[5\]; the model takes \[N, 5\]"),
    "no rows": (ROWS[:0], r"shape \[0, 5\]"),
    "a number": (3.0, r"shape \[\]"),
    "ragged": ([[1.0], [2.0, 3.0]], "rows differ in length"),
    "NaN": (np.where(ROWS[1, 2] == ROWS, np.nan, ROWS), r"'x' holds nan at \[1, 2\]"),
    "infinity": (np.where(ROWS[1, 2] == ROWS, np.inf, ROWS), r"'x' holds inf at \[1, 2\]"),
    "strings": (ROWS.astype(str), "'x' holds <U32; the model takes float32"),
    "objects": (ROWS.astype(object), "'x' holds object; the model takes float32"),
    "complex numbers": (ROWS.astype(np.complex64), "'x' holds complex64; the model takes float32"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_do_not_fit(compiled: Compiled, name: str) -> None:
    given, words = BAD_ROWS[name]
    with pytest.raises(InvalidOptionError, match=words):
        compiled.explain(given)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, bool])
def test_any_numbers_are_rounded_to_the_models_type(compiled: Compiled, dtype: type) -> None:
    x = (ROWS * 3).astype(dtype)
    answer, expected = compiled.explain(x), compiled.explain({"x": x.astype(np.float32).tolist()})
    assert answer["x_attributions"].dtype == np.float32
    for name, value in expected.items():
        np.testing.assert_array_equal(answer[name], value)


def test_other_inputs_are_checked_too() -> None:
    text = """g (float[N, 3] x, int64[N, 3] i, bool[N, 3] b, string[N, 1] s, float f)
        => (float[N, 3] y, string[N, 1] t)
        { z = Cast <to = 1> (i) c = Cast <to = 1> (b) t = Identity (s)
          p = Mul (x, z) q = Mul (p, f) y = Add (q, c) }"""
    done = compile_model(parsed(text), DeepShap(rows(4, 3)), inputs=["x"], targets=[0])
    x = rows(2, 3)
    good = {"x": x, "i": [[1, 2, 3], [4, 5, 6]], "b": np.eye(2, 3), "s": [["a"], ["ü"]], "f": 2.0}
    answer = done.explain(good)
    np.testing.assert_allclose(answer["y"], x * np.array(good["i"]) * 2 + np.eye(2, 3), rtol=1e-6)
    assert answer["t"].tolist() == [["a"], ["ü"]]
    for change, words in (
        ({"i": np.full((2, 3), 1.5)}, r"'i' holds 1\.5 at \[0, 0\], which is no int64"),
        ({"b": np.full((2, 3), 2)}, r"'b' holds 2 at \[0, 0\], which is no bool"),
        ({"s": [[1], [2]]}, "'s' holds int64; the model takes object"),
        ({"s": [["a"], [None]]}, r"'s' holds None at \[1, 0\], which is no text"),
        ({"s": np.array([[np.nan], ["a"]], object)}, r"'s' holds nan at \[0, 0\], which is no text"),
        ({"f": np.nan}, r"'f' holds nan at \[\]"),
        ({"f": [2.0]}, r"'f' has shape \[1\]; the model takes \[\]"),
        ({"i": np.ones((3, 3), int)}, "same number of rows"),
    ):
        with pytest.raises(InvalidOptionError, match=words):
            done.explain({**good, **change})


# -- to_shap -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shap() -> ModuleType:
    """Imported once, with the warnings of its dependencies apart."""
    mpl.use("Agg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("shap")


@pytest.mark.usefixtures("shap")
def test_shap_explanations_hold_the_answer(compiled: Compiled) -> None:
    answer = compiled.explain(ROWS)
    for target in range(CLASSES):
        explanation = answer.to_shap(target)
        np.testing.assert_array_equal(explanation.values, answer["x_attributions"][:, target])
        np.testing.assert_array_equal(explanation.base_values, answer["base_value"][:, target])
        np.testing.assert_array_equal(explanation.data, ROWS)
        assert explanation.feature_names == NAMES
        total = explanation.base_values + explanation.values.sum(1)
        np.testing.assert_allclose(total, answer["y"][:, target], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # within shap
def test_shap_draws_them(shap: ModuleType, compiled: Compiled, tmp_path: Path) -> None:
    from matplotlib import pyplot

    shap.plots.bar(compiled.explain(ROWS).to_shap(1), show=False)
    pyplot.savefig(tmp_path / "bar.png")
    labels = [label.get_text() for label in pyplot.gca().get_yticklabels()]
    pyplot.close("all")
    assert (tmp_path / "bar.png").read_bytes().startswith(b"\x89PNG")
    assert set(NAMES) <= set(labels)


@pytest.mark.usefixtures("shap")
def test_shap_explanations_hold_the_standard_error(compiled: Compiled) -> None:
    method = DeepShap(rows(6, FEATURES, seed=4), standard_error=True)
    answer = compile_model(mlp(), method, targets="all").explain(ROWS)
    explanation = answer.to_shap(2)
    np.testing.assert_array_equal(explanation.error_std, answer["x_standard_error"][:, 2])
    assert (explanation.error_std > 0).all()
    assert compiled.explain(ROWS).to_shap().error_std is None


@pytest.mark.usefixtures("shap")
def test_shap_without_a_base_value_or_names() -> None:
    explanation = compile_model(cnn(), Gradient(), targets=[1]).explain(rows(2, 2, 6, 8)).to_shap()
    assert explanation.values.shape == (2, 2, 6, 8)
    assert explanation.base_values is None
    assert explanation.feature_names is None


@pytest.mark.parametrize("target", [-1, CLASSES])
def test_shap_of_a_target_that_is_not_there(compiled: Compiled, target: int) -> None:
    with pytest.raises(InvalidOptionError, match="one of the targets"):
        compiled.explain(ROWS).to_shap(target)


def test_shap_of_two_inputs() -> None:
    done = compile_model(two_inputs(), DeepShap({"a": rows(4, 3), "b": rows(4, 4)}))
    with pytest.raises(InvalidOptionError, match="one input"):
        done.explain({"a": rows(2, 3), "b": rows(2, 4)}).to_shap()
