"""`Compiled.explain` and `to_shap`: rows that do not fit, and what SHAP's plots get."""

import importlib
import warnings
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
import numpy as np
import pytest

from rationale import Compiled, DeepShap, Explanation, Gradient, compile_model
from rationale.errors import InvalidOptionError
from tests.compiler.models import CLASSES, FEATURES, NAMES, cnn, mlp, parsed, rows, two_inputs
from tests.grid import grid

ROWS = rows(3, FEATURES, seed=9)


# -- Compiled.explain ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(mlp(), DeepShap(rows(4, FEATURES)), targets="all", feature_names=NAMES)


def test_it_is_told_in_a_line(compiled: Compiled) -> None:
    assert repr(compiled) == f"Compiled(y[0, 1, 2] by deepshap, {compiled.manifest.measured.nodes} nodes)"
    assert repr(compile_model(mlp(), Gradient(), targets="predicted")).startswith("Compiled(y[predicted] by")


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
    inputs, words = BAD_ROWS[name]
    with pytest.raises(InvalidOptionError, match=words):
        compiled.explain(inputs)


def test_an_unknown_array_is_named_with_those_that_there_are(compiled: Compiled) -> None:
    answer = compiled.explain(ROWS)
    with pytest.raises(KeyError, match=r"'z_attributions': the arrays are 'y', .*to_frame\(\)"):
        answer["z_attributions"]
    assert answer.get("z_attributions") is None


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
    compiled = compile_model(parsed(text), DeepShap(rows(4, 3)), inputs=["x"], targets=[0])
    x = rows(2, 3)
    good = {"x": x, "i": [[1, 2, 3], [4, 5, 6]], "b": np.eye(2, 3), "s": [["a"], ["ü"]], "f": 2.0}
    answer = compiled.explain(good)
    np.testing.assert_allclose(answer["y"], x * np.array(good["i"]) * 2 + np.eye(2, 3), rtol=1e-6)
    assert answer["t"].tolist() == [["a"], ["ü"]]
    for missing in ([["a"], [None]], np.array([["a"], [np.nan]], object)):
        assert compiled.explain({**good, "s": missing})["t"].tolist() == [["a"], [""]]
    for change, words in (
        ({"i": np.full((2, 3), 1.5)}, r"'i' holds 1\.5 at \[0, 0\], which cannot be explained as int64"),
        ({"b": np.full((2, 3), 2)}, r"'b' holds 2 at \[0, 0\], which cannot be explained as bool"),
        ({"s": [[1], [2]]}, "'s' holds int64; the model takes object"),
        ({"f": np.nan}, r"'f' holds nan at \[\]"),
        ({"f": [2.0]}, r"'f' has shape \[1\]; the model takes \[\]"),
        ({"i": np.ones((3, 3), int)}, "same number of rows"),
    ):
        with pytest.raises(InvalidOptionError, match=words):
            compiled.explain({**good, **change})


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


@pytest.mark.usefixtures("shap")
def test_shap_has_the_targets_on_its_last_axis(compiled: Compiled) -> None:
    answer = compiled.explain(ROWS)
    whole = answer.to_shap()
    assert whole.shape == (3, FEATURES, CLASSES)
    assert whole.output_names == ["0", "1", "2"]
    for target in range(CLASSES):
        single_target = answer.to_shap(target)
        assert single_target.output_names is None
        for selected in (whole[:, :, target], whole[..., target], whole[:, :, str(target)]):
            np.testing.assert_array_equal(selected.values, single_target.values)
            np.testing.assert_array_equal(selected.base_values, single_target.base_values)
            np.testing.assert_array_equal(selected.data, single_target.data)
            assert selected.feature_names == single_target.feature_names
    chosen = compile_model(mlp(), DeepShap(rows(4, FEATURES)), targets=[2, 0]).explain(ROWS).to_shap()
    assert chosen.output_names == ["2", "0"]
    np.testing.assert_allclose(chosen[:, :, "0"].values, whole[:, :, 0].values, atol=1e-6)
    predicted = compile_model(mlp(), DeepShap(rows(4, FEATURES))).explain(ROWS).to_shap()
    assert (predicted.shape, predicted.output_names) == ((3, FEATURES), None)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # within shap
def test_players_stand_in_place_of_their_features(shap: ModuleType) -> None:
    from matplotlib import pyplot

    references, x = {"a": rows(4, 3), "b": rows(4, 4)}, {"a": rows(6, 3, seed=1), "b": rows(6, 4, seed=2)}
    compiled = compile_model(
        two_inputs(), DeepShap(references), targets=[1], groups={"ends": ["b[0]", "b[3]"]}
    )
    with pytest.raises(InvalidOptionError, match=r"no names, but the model takes 2 inputs \('a', 'b'\)"):
        compiled.explain(x["a"])
    answer = compiled.explain(x)
    whole = answer.to_shap()
    assert whole.feature_names == ["a[0]", "a[1]", "a[2]", "ends", "b[1]", "b[2]"]
    assert whole.data is None  # a group has no one value
    np.testing.assert_array_equal(whole.values[:, 3:], answer["group_attributions"][:, 0])
    np.testing.assert_allclose(whole.base_values + whole.values.sum(1), answer["y"][:, 1], atol=1e-6)
    np.testing.assert_array_equal(answer.to_shap(inputs=["group"]).values, answer["group_attributions"][:, 0])
    np.testing.assert_array_equal(answer.to_shap(inputs=["a"]).data, x["a"])
    with pytest.raises(InvalidOptionError, match=r"\['b'\].*\['a', 'group'\]"):
        answer.to_shap(inputs=["b"])
    for plot, drawn in {"bar": whole, "beeswarm": whole, "heatmap": whole, "waterfall": whole[1]}.items():
        getattr(shap.plots, plot)(drawn, show=False)
        texts = {text.get_text() for text in pyplot.gcf().findobj(mpl.text.Text)}
        pyplot.close("all")
        assert any("ends" in text for text in texts)


PLOTS = {
    "bar": lambda explanation: explanation,
    "beeswarm": lambda explanation: explanation,
    "violin": lambda explanation: explanation,
    "heatmap": lambda explanation: explanation,
    "waterfall": lambda explanation: explanation[1],
    "scatter": lambda explanation: explanation[:, "income"],
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # within shap
@grid("chosen, plot", ["a target", "all targets", "two inputs"], PLOTS)
def test_shap_draws_them(
    shap: ModuleType, compiled: Compiled, together: Explanation, plot: str, chosen: str, tmp_path: Path
) -> None:
    from matplotlib import pyplot

    answer = compiled.explain(rows(8, FEATURES, seed=9))
    explanation = {
        "a target": lambda: answer.to_shap(1),
        "all targets": lambda: answer.to_shap()[:, :, "1"],
        "two inputs": lambda: together.to_shap()[..., 1],
    }[chosen]()
    getattr(shap.plots, plot)(PLOTS[plot](explanation), show=False)
    pyplot.savefig(tmp_path / "plot.png")
    texts = {text.get_text() for text in pyplot.gcf().findobj(mpl.text.Text)}
    pyplot.close("all")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert any("income" in text for text in texts)
    if plot == "waterfall":  # it ends at the output
        value = answer["y"][1, 1] if chosen != "two inputs" else together["y"][1, 1]
        assert any(f"{value:.3f}".lstrip("-") in text for text in texts), texts


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # within shap
def test_shap_draws_pictures(shap: ModuleType, tmp_path: Path) -> None:
    from matplotlib import pyplot

    text = "g (float[N, 3, 4, 5] x) => (float[N, 6] y) { f = Flatten (x) t = Tanh (f) y = MatMul (t, w) }"
    compiled = compile_model(parsed(text, {"w": rows(60, 6)}), DeepShap(rows(3, 3, 4, 5)), targets=[2, 0])
    explanation = compiled.explain(np.random.default_rng(0).random((2, 3, 4, 5))).to_shap()
    assert explanation.shape == (2, 3, 4, 5, 2)
    last = shap.Explanation(
        np.moveaxis(explanation.values, 1, 3),
        data=np.moveaxis(explanation.data, 1, 3),
        output_names=explanation.output_names,
    )
    shap.plots.image(last, show=False)
    titles = {axes.get_title() for axes in pyplot.gcf().axes}
    pyplot.savefig(tmp_path / "image.png")
    pyplot.close("all")
    assert {"2", "0"} <= titles


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
    with pytest.raises(InvalidOptionError, match=rf"to_shap\(target=.*\b0 to {CLASSES - 1}\b"):
        compiled.explain(ROWS).to_shap(target)


@pytest.fixture(scope="module")
def together() -> Explanation:
    """Of two tables, of which one has names."""
    method = DeepShap({"a": rows(4, 3), "b": rows(4, 4)}, standard_error=True)
    names = {"a": ["age", "income", "debt"]}
    compiled = compile_model(two_inputs(), method, targets="all", feature_names=names)
    return compiled.explain({"a": rows(8, 3, seed=1), "b": rows(8, 4, seed=2)})


@pytest.mark.usefixtures("shap")
def test_shap_of_several_inputs_has_their_features_side_by_side(together: Explanation) -> None:
    explanation = together.to_shap()
    assert explanation.feature_names == ["age", "income", "debt", "b[0]", "b[1]", "b[2]", "b[3]"]
    total = explanation.base_values + explanation.values.sum(1)
    np.testing.assert_allclose(total, together["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(explanation.data, np.hstack([rows(8, 3, seed=1), rows(8, 4, seed=2)]))
    np.testing.assert_array_equal(explanation.error_std[:, 3:, 1], together["b_standard_error"][:, 1])
    turned = together.to_shap(1, inputs=["b", "a"])
    np.testing.assert_array_equal(turned.values[:, 4:], explanation.values[:, :3, 1])
    alone = together.to_shap(0, inputs=["b"])
    np.testing.assert_array_equal(alone.values, together["b_attributions"][:, 0])
    np.testing.assert_array_equal(alone.data, rows(8, 4, seed=2))


@pytest.mark.parametrize("inputs", ["a", ["c"], ["a", "a"], []])
def test_shap_of_inputs_that_are_not_there(together: Explanation, inputs: list[str] | str) -> None:
    with pytest.raises(InvalidOptionError, match=r"to_shap\(inputs=.*\['a', 'b'\]"):
        together.to_shap(inputs=inputs)


@pytest.mark.usefixtures("shap")
def test_shap_of_a_picture_beside_a_table() -> None:
    text = """g (float[N, 2, 3] picture, float[N, 4] table, float[N] age) => (float[N, 1] y) {
        flat = Flatten (picture)
        axis = Constant <value_ints = [1]> ()
        years = Unsqueeze (age, axis)
        x = Concat <axis = 1> (flat, table, years)
        y = MatMul (x, w)
    }"""
    compiled = compile_model(parsed(text, {"w": rows(11, 1)}), Gradient(times_input=True))
    inputs = {"picture": rows(5, 2, 3), "table": rows(5, 4), "age": rows(5)}
    answer = compiled.explain(inputs)
    with pytest.raises(InvalidOptionError, match=r"\['picture'\].*to_shap\(inputs=\['picture'\]\)"):
        answer.to_shap()
    assert answer.to_shap(inputs=["picture"]).shape == (5, 2, 3)
    tables = answer.to_shap(inputs=["age", "table"])
    assert tables.shape == (5, 5)
    assert tables.feature_names[:2] == ["age[0]", "table[0]"]
    np.testing.assert_array_equal(tables.data[:, 0], inputs["age"])
    assert answer.to_shap(inputs=["age"]).shape == (5, 1)


@pytest.mark.usefixtures("shap")
def test_shap_of_an_inner_tensor_has_no_data() -> None:
    compiled = compile_model(mlp(), DeepShap(rows(4, FEATURES)), inputs=["h1"], targets=[0])
    assert compiled.explain(ROWS).to_shap().data is None
