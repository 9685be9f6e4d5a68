"""NaN, and null in JSON, in rows for trees: a missing value, which the explanation of trees takes."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from rationale import DeepShap, ExactShap, TreeShap, compile_model
from rationale_service.engine.checks import check_request
from rationale_service.errors import InvalidInputError
from rationale_service.models.references.formats import parse_rows
from rationale_service.repository.registry import read_repository
from rationale_service.settings import Settings
from tests.compiler.models import rows, two_inputs
from tests.references import trees as of
from tests.service.conftest import gateway


def test_nan_is_a_missing_value_to_trees_alone(tmp_path: Path) -> None:
    compile_model(of.regressor(of.random_trees(1, ("LEQ",))), TreeShap(of.rows(1, 4))).write(tmp_path, "m")
    registry = read_repository(tmp_path)
    x = np.array([[1, 2, np.nan, 4, 5]], np.float32)
    for name in ("m", "m_explain"):
        entry = registry.entries[name]
        missing = registry.takes_missing(entry)
        assert check_request(entry, {"x": x}, None, missing)[0] == 1
        with pytest.raises(InvalidInputError, match="holds inf"):
            check_request(entry, {"x": np.where(np.isnan(x), np.inf, x)}, None, missing)
        with pytest.raises(InvalidInputError, match="holds nan"):
            check_request(entry, {"x": x})


def test_nan_is_refused_in_an_input_beside_one_that_takes_it(tmp_path: Path) -> None:
    references = {"a": rows(5, 3), "b": rows(5, 4)}
    compile_model(two_inputs(), DeepShap(references)).write(tmp_path, "m")
    entry = read_repository(tmp_path).entries["m"]
    gap = {
        name: np.where(np.arange(array.shape[1]) == 1, np.nan, array) for name, array in references.items()
    }
    for taking, other in (("a", "b"), ("b", "a")):
        assert check_request(entry, {**references, taking: gap[taking]}, None, {taking})[0] == 5
        with pytest.raises(InvalidInputError, match=f"'{other}' holds nan"):
            check_request(entry, gap, None, {taking})


async def test_null_is_a_missing_value(tmp_path: Path) -> None:
    trees, names = of.random_trees(1, ("LEQ",)), ["age", "income", "debt", "years", "rate"]
    compiled = compile_model(of.regressor(trees), TreeShap(of.rows(1, 4)), feature_names=names)
    compiled.write(tmp_path, "m")
    rows = of.rows(2, 3)
    assert np.isnan(rows).any()
    expected = compiled.explain(rows)
    values = [[None if np.isnan(v) else float(v) for v in row] for row in rows]
    named = dict(zip(names, values[0], strict=True))
    forms = [named, values[1], {"x": values[2]}]
    async with gateway(Settings(repository=tmp_path)) as client:
        answer = (await client.post("/v1/models/m:explain", json={"instances": forms})).json()
        assert_allclose(answer["predictions"], expected["y"], rtol=1e-6)
        actual = [
            [explanation["attributions"][name] for name in names] for explanation in answer["explanations"]
        ]
        assert_allclose(actual, expected["x_attributions"][:, 0], rtol=1e-6)
        answer = (await client.post("/v1/models/m:predict", json={"instances": forms})).json()
        assert_allclose(answer["predictions"], expected["y"], rtol=1e-6)
        wrong = [{**named, "age": "old"}]
        answer = await client.post("/v1/models/m:explain", json={"instances": wrong})
        assert answer.json()["detail"] == "instances[0]: feature 'age' must be a number, not a string"


@pytest.mark.parametrize("nested", [False, True])
async def test_null_is_a_missing_value_to_the_open_inference_protocol(tmp_path: Path, nested: bool) -> None:
    compiled = compile_model(of.regressor(of.random_trees(1, ("LEQ",))), TreeShap(of.rows(1, 4)))
    compiled.write(tmp_path, "m")
    rows = of.rows(2, 3)
    expected = compiled.explain(rows)
    values = [[None if np.isnan(v) else float(v) for v in row] for row in rows]
    data = values if nested else [value for row in values for value in row]
    tensor = {"name": "x", "datatype": "FP32", "shape": [3, 5], "data": data}
    async with gateway(Settings(repository=tmp_path)) as client:
        for path, name in (("m/explain", "x_attributions"), ("m_explain/infer", "y"), ("m/infer", "y")):
            answer = (await client.post(f"/v2/models/{path}", json={"inputs": [tensor]})).json()
            actual = {
                output["name"]: np.reshape(output["data"], output["shape"]) for output in answer["outputs"]
            }
            assert_allclose(actual[name], expected[name], rtol=1e-6)


def test_uploaded_references_have_missing_values_where_the_model_takes_them(tmp_path: Path) -> None:
    compile_model(of.regressor(of.random_trees(1, ("LEQ",))), TreeShap(of.rows(1, 4))).write(tmp_path, "m")
    entries = read_repository(tmp_path).entries
    entry, manifest = entries["m"], entries["m_explain"].manifest
    for kind, body in ((".csv", b"1,,3,4,5\n6,7,8,9,\n"), (".json", b"[[1,null,3,4,5],[6,7,8,9,null]]")):
        rows = parse_rows(body, kind, entry, manifest, 10**6).arrays["x"]
        np.testing.assert_array_equal(rows, [[1, np.nan, 3, 4, 5], [6, 7, 8, 9, np.nan]])
        with pytest.raises(InvalidInputError, match=r"nan|null"):
            parse_rows(body, kind, entry, None, 10**6)


def test_a_model_takes_what_its_references_show(tmp_path: Path) -> None:
    """Nothing else is known of a model that is called as it is."""
    model, held = of.regressor(of.random_trees(1, ("LEQ",))), np.nan_to_num(of.rows(1, 4))
    compile_model(model, ExactShap(of.rows(1, 4))).write(tmp_path, "missing")
    compile_model(model, ExactShap(held)).write(tmp_path, "held")
    registry = read_repository(tmp_path)
    x = np.array([[1, 2, np.nan, 4, 5]], np.float32)
    entries = registry.entries
    takes_missing = {
        name: registry.takes_missing(entries[name]) for name in ("missing_explain", "held_explain")
    }
    assert check_request(entries["missing_explain"], {"x": x}, None, takes_missing["missing_explain"])[0] == 1
    with pytest.raises(InvalidInputError, match="holds nan"):
        check_request(entries["held_explain"], {"x": x}, None, takes_missing["held_explain"])
