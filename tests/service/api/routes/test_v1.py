"""v1: named features in, named attributions out; values asserted."""

from typing import Any

import httpx
import numpy as np
import pytest

from tests.service import handmade

pytestmark = pytest.mark.asyncio(loop_scope="session")


def named(row: np.ndarray) -> dict[str, float]:
    return dict(zip(handmade.FEATURES, row.tolist(), strict=True))


async def ask(client: httpx.AsyncClient, path: str, instances: list[Any]) -> dict[str, Any]:
    answer = await client.post(f"/v1/models/{path}", json={"instances": instances})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def detail(client: httpx.AsyncClient, path: str, instances: Any) -> str:
    answer = await client.post(f"/v1/models/{path}", json={"instances": instances})
    assert answer.status_code == 422, answer.text
    return answer.json()["detail"]


async def test_models_and_what_may_be_asked_of_them(client: httpx.AsyncClient) -> None:
    models = (await client.get("/v1/models")).json()["models"]
    assert models == ["image", "log", "mixing", "open", "pair", "score", "slope", "table", "typed", "vector"]
    assert (await client.get("/v1/models/score")).json() == {
        "name": "score",
        "ready": True,
        "explainable": True,
        "method": "deepshap",
        "targets": [0, 1, 2],
        "features": {"x": list(handmade.FEATURES)},
    }
    plain = (await client.get("/v1/models/typed")).json()
    assert (plain["explainable"], plain["features"]) == (False, {"ids": None, "text": None})


@pytest.mark.parametrize("form", [named, lambda row: row.tolist(), lambda row: {"x": row.tolist()}])
async def test_predict_takes_names_and_arrays(client: httpx.AsyncClient, form: Any) -> None:
    answer = await ask(client, "score:predict", [form(row) for row in handmade.X])
    np.testing.assert_allclose(answer["predictions"], handmade.predict(handmade.X), rtol=1e-6)
    assert list(answer) == ["predictions"]


async def test_features_may_come_in_any_order(client: httpx.AsyncClient) -> None:
    backwards = dict(reversed(named(handmade.X[2]).items()))
    answer = await ask(client, "score:predict", [backwards])
    np.testing.assert_allclose(answer["predictions"], handmade.predict(handmade.X[2:3]), rtol=1e-6)


async def test_explain_with_several_targets(client: httpx.AsyncClient) -> None:
    answer = await ask(client, "score:explain", [named(row) for row in handmade.X])
    np.testing.assert_allclose(answer["predictions"], handmade.predict(handmade.X), rtol=1e-6)
    expected = handmade.attribute(handmade.X)
    for i, explanation in enumerate(answer["explanations"]):
        assert [target["target"] for target in explanation["targets"]] == [0, 1, 2]
        for t, target in enumerate(explanation["targets"]):
            assert list(target["attributions"]) == list(handmade.FEATURES)
            np.testing.assert_allclose(list(target["attributions"].values()), expected[i, t], rtol=1e-6)
            assert target["base_value"] == pytest.approx(handmade.predict(handmade.R)[t])
            assert target["explained_value"] == pytest.approx(handmade.predict(handmade.X)[i, t])
            assert target["completeness_gap"] == pytest.approx(0, abs=1e-5)


async def test_a_gradient_has_no_base_value_and_no_gap(client: httpx.AsyncClient) -> None:
    answer = await ask(client, "slope:explain", [{"v": 1, "u": 4}, [0.5, 0.5]])
    assert answer == {
        "predictions": [[5.0], [-0.5]],
        "explanations": [
            {"target": 0, "explained_value": 5.0, "attributions": {"u": 2.0, "v": -3.0}},
            {"target": 0, "explained_value": -0.5, "attributions": {"u": 2.0, "v": -3.0}},
        ],
        "explainer": {
            "name": "compiled",
            "method": "gradient",
            "digest": "e" * 64,
            "explained_output": "p",
        },
    }


async def test_two_inputs_of_which_one_has_names(client: httpx.AsyncClient) -> None:
    instance = {"b": [[1, 0], [0, 0.5]], "left": 3, "right": 4}
    answer = await ask(client, "pair:explain", [instance])
    assert answer["predictions"] == [{"y": [22.0], "a_sum": [7.0]}]
    assert answer["explanations"][0]["attributions"] == {"left": 3.0, "right": 4.0, "b": [[10, 0], [0, 5]]}
    same = await ask(client, "pair:predict", [{"a": [3, 4], "b": [[1, 0], [0, 0.5]]}])
    assert same["predictions"] == answer["predictions"]


async def test_predicted_targets_name_each_rows_argmax(client: httpx.AsyncClient) -> None:
    image = np.zeros((2, 2, 3, 3))
    image[0, 1, 2, 2] = 5
    image[1, 0, 0, 1] = 7
    answer = await ask(client, "image:explain", image.tolist())
    assert [explanation["target"] for explanation in answer["explanations"]] == [1, 0]
    assert [explanation["explained_value"] for explanation in answer["explanations"]] == [5, 7]
    np.testing.assert_allclose(answer["explanations"][0]["attributions"]["image"], image[0])


async def test_typed_inputs_by_name(client: httpx.AsyncClient) -> None:
    answer = await ask(
        client, "typed:predict", [{"ids": [5, 0], "text": "é"}, {"ids": [1, 2], "text": ["b"]}]
    )
    first, second = answer["predictions"]
    assert first == {
        "ids_out": [5, 0],
        "text_out": ["é"],
        "half": [5.0, 0.0],
        "double": [5.0, 0.0],
        "small": [5, 0],
        "positive": [True, False],
    }
    assert second["text_out"] == ["b"]


async def test_floats_keep_their_short_form(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/models/open:predict", json={"instances": [{"x": [0.1], "z": [0]}]})
    assert answer.text == '{"predictions":[[0.1]]}'


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([], "instances is empty"),
        ([{}], "instances[0]: missing 'income', 'debt', 'age_of_account', 'late_payments'"),
        (
            [named(handmade.X[0]) | {"debt": None}],
            "must be a number, not null: the explanation takes no missing values in 'x'",
        ),
        ([named(handmade.X[0]) | {"debt": True}], "feature 'debt' must be a number, not a boolean"),
        ([named(handmade.X[0]) | {"debt": 1e39}], "input 'x' holds inf at [0, 1]"),
        ([[1, 2, [3], 4]], "instances[0] is ragged"),
        ([[1, 2, 3, "4"]], "input 'x' is FP32 and takes numbers, but value 3 is a string"),
        (["abc"], "instances[0] is a string, but input 'x' takes [4] per row"),
        ([None], "instances[0] is null"),
        ([3], "instances[0] is 3, but input"),
    ],
)
async def test_faults_are_named(client: httpx.AsyncClient, instances: list[Any], message: str) -> None:
    """Beside those of test_faults.py."""
    assert message in await detail(client, "score:explain", instances)
    assert message in await detail(client, "score:predict", instances)


async def test_rows_of_different_shapes(client: httpx.AsyncClient) -> None:
    instances = [{"x": [1], "z": [1]}, {"x": [1, 2], "z": [1, 2]}]
    assert "rows of different shapes ((1,), (2,))" in await detail(client, "open:predict", instances)


async def test_a_model_of_several_inputs_wants_objects(client: httpx.AsyncClient) -> None:
    assert "an object" in await detail(client, "pair:predict", [[1, 2]])
    assert "missing 'b'" in await detail(client, "pair:predict", [{"left": 1, "right": 2}])


@pytest.mark.parametrize("body", ['{"inputs": []}', '{"instances": {}}', "[]", "3", '{"instances": null}'])
async def test_a_body_without_instances(client: httpx.AsyncClient, body: str) -> None:
    answer = await client.post("/v1/models/score:predict", content=body)
    assert answer.status_code == 400
    assert '{"instances": [ … ]}' in answer.json()["detail"]


@pytest.mark.parametrize(
    "more",
    [
        {"reference_weights": [1, 2]},  # of nothing
        {"references": None, "reference_weights": [1, 2]},
        {"references": {"x": [[1, 2, 3, 4]]}},
        {"references": [[1, 2, 3, 4]], "reference_weights": 1},
    ],
)
async def test_references_that_are_no_list_of_rows_with_weights(
    client: httpx.AsyncClient, more: dict[str, Any]
) -> None:
    body = {"instances": handmade.X[:1].tolist(), **more}
    answer = await client.post("/v1/models/score:explain", json=body)
    assert answer.status_code == 400
    assert "references must" in answer.json()["detail"]


# --- large ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "body", "message"),
    [
        ("predict", b'{"instances": [%s]}' % b",".join([b"1"] * 100_001), "instances has 100001 rows"),
        ("explain", b'{"instances": [%s]}' % b",".join([b"{}"] * 100_001), "instances has 100001 rows"),
        ("decide", b'{"instances": [%s]}' % b",".join([b"{}"] * 10_001), "instances has 10001 rows"),
        (
            "explain",
            b'{"instances": [[1, 2, 3, 4]], "references": [%s]}' % b",".join([b"1"] * 100_001),
            "references has 100001 rows",
        ),
        (
            "predict",
            b'{"instances": [{%s}]}' % b",".join(b'"%d":0' % i for i in range(100_001)),
            "an object has 100001 members",
        ),
    ],
)
async def test_more_rows_or_features_than_a_body_may_have(
    client: httpx.AsyncClient, verb: str, body: bytes, message: str
) -> None:
    answer = await client.post(f"/v1/models/score:{verb}", content=body)
    assert answer.status_code == 413
    assert message in answer.json()["detail"]


async def test_many_rows_are_written_as_each_is(client: httpx.AsyncClient) -> None:
    """In several parts, beside the event loop."""
    rows = np.random.default_rng(5).normal(size=(1203, 4)).round(3)
    named_rows = [named(row) for row in rows]
    answer = await ask(client, "score:explain", named_rows)
    assert len(answer["explanations"]) == len(answer["predictions"]) == len(rows)
    for start in (0, 499, 500, 1000, 1202):
        alone = await ask(client, "score:explain", named_rows[start : start + 1])
        assert answer["predictions"][start] == pytest.approx(alone["predictions"][0])
        together, other = answer["explanations"][start], alone["explanations"][0]
        for rows_sent, expected in zip(together["targets"], other["targets"], strict=True):
            assert rows_sent["attributions"] == pytest.approx(expected["attributions"], abs=1e-5)
            assert rows_sent["target"] == expected["target"]


@pytest.mark.parametrize("more", [b"", b', "note": "a:b"', b', "note": {"at": 1}'])
async def test_a_feature_that_is_given_twice(client: httpx.AsyncClient, more: bytes) -> None:
    """Whatever else has colons."""
    row = b", ".join(b'"%s": 1' % name.encode() for name in handmade.FEATURES)
    for body, status in ((row, 200), (row + b', "%s": 1' % handmade.FEATURES[0].encode(), 422)):
        content = b'{"instances": [{%s}]%s}' % (body, more)
        answer = await client.post("/v1/models/score:predict", content=content)
        assert answer.status_code == status, answer.text
    assert f"feature '{handmade.FEATURES[0]}' is given twice" in answer.json()["detail"]
