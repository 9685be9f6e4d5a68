"""The Open Inference Protocol, with JSON in and out; values asserted."""

import httpx
import numpy as np
import pytest

from tests.service import handmade

pytestmark = pytest.mark.asyncio(loop_scope="session")


def oip(array: np.ndarray, name: str = "x", datatype: str = "FP32") -> dict:
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.ravel().tolist()}


def tensors(answer: httpx.Response) -> dict[str, np.ndarray]:
    assert answer.status_code == 200, answer.text
    return {item["name"]: np.array(item["data"]).reshape(item["shape"]) for item in answer.json()["outputs"]}


async def test_server_tells_what_it_is(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/v2")).json()
    assert answer["name"] == "rationale"
    assert answer["extensions"][:2] == ["binary_tensor_data", "explain"]


@pytest.mark.parametrize("path", ["/v2/models/score_explain", "/v2/models/score_explain/versions/1"])
async def test_metadata(client: httpx.AsyncClient, path: str) -> None:
    answer = (await client.get(path)).json()
    assert answer["name"] == "score_explain"
    assert answer["versions"] == ["1"]
    assert answer["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert answer["outputs"][1] == {"name": "x_attributions", "datatype": "FP32", "shape": [-1, 3, 4]}
    assert (await client.get(path + "/ready")).json() == {"name": "score_explain", "ready": True}


@pytest.mark.parametrize("rows", [1, 4, 5])  # 5 is more than max_batch_size
async def test_infer(client: httpx.AsyncClient, rows: int) -> None:
    x = handmade.X[:rows]
    answer = await client.post("/v2/models/score/infer", json={"id": "42", "inputs": [oip(x)]})
    body = answer.json()
    assert (body["model_name"], body["model_version"], body["id"]) == ("score", "1", "42")
    assert [item["name"] for item in body["outputs"]] == ["y"]
    np.testing.assert_allclose(tensors(answer)["y"], handmade.predict(x), rtol=1e-6)


async def test_every_verb_says_what_explained(client: httpx.AsyncClient) -> None:
    body = {"inputs": [oip(handmade.X[:2])]}
    message = {"method": "deepshap", "explanation": "e" * 64, "explained_output": "y"}
    for path in ("score/explain", "score_explain/infer", "score_explain/versions/1/infer"):
        assert (await client.post(f"/v2/models/{path}", json=body)).json()["parameters"] == message
    assert "parameters" not in (await client.post("/v2/models/score/infer", json=body)).json()


async def test_nested_data_is_taken(client: httpx.AsyncClient) -> None:
    x = handmade.X[:2]
    tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": x.tolist()}
    answer = await client.post("/v2/models/score/versions/1/infer", json={"inputs": [tensor]})
    np.testing.assert_allclose(tensors(answer)["y"], handmade.predict(x), rtol=1e-6)


async def test_nested_data_has_the_depth_of_its_shape(client: httpx.AsyncClient) -> None:
    rows = handmade.X[:2].tolist()
    for data, shape in ((rows, [8]), ([rows], [2, 4]), ([[row] for row in rows], [2, 4]), (rows, [2, 4, 1])):
        tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": data}
        answer = await client.post("/v2/models/score/infer", json={"inputs": [tensor]})
        assert answer.status_code == 422
        assert f"says shape {shape}" in answer.json()["detail"]


async def test_explain_gives_prediction_and_attributions_in_one_answer(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v2/models/score/explain", json={"inputs": [oip(handmade.X)]})
    got = tensors(answer)
    assert answer.json()["model_name"] == "score"
    assert answer.json()["parameters"] == {
        "method": "deepshap",
        "explanation": "e" * 64,
        "explained_output": "y",
    }
    assert list(got) == ["y", "x_attributions", "base_value", "explained_value", "completeness_gap"]
    np.testing.assert_allclose(got["y"], handmade.predict(handmade.X), rtol=1e-6)
    np.testing.assert_allclose(got["x_attributions"], handmade.attribute(handmade.X), rtol=1e-6)
    np.testing.assert_allclose(got["base_value"], np.tile(handmade.predict(handmade.R), (5, 1)), rtol=1e-6)
    np.testing.assert_allclose(
        got["explained_value"], got["base_value"] + got["x_attributions"].sum(-1), atol=1e-5
    )
    np.testing.assert_allclose(got["completeness_gap"], 0, atol=1e-5)


async def test_the_explain_entry_is_a_model_of_its_own(client: httpx.AsyncClient) -> None:
    for path in ("/v2/models/score_explain/infer", "/v2/models/score_explain/explain"):
        answer = await client.post(path, json={"inputs": [oip(handmade.X[:1])]})
        assert answer.json()["model_name"] == "score_explain"
        np.testing.assert_allclose(
            tensors(answer)["x_attributions"], handmade.attribute(handmade.X[:1]), rtol=1e-6
        )


async def test_outputs_select(client: httpx.AsyncClient) -> None:
    request = {"inputs": [oip(handmade.X)], "outputs": [{"name": "base_value"}, {"name": "y"}]}
    got = tensors(await client.post("/v2/models/score/explain", json=request))
    assert list(got) == ["base_value", "y"]
    np.testing.assert_allclose(got["y"], handmade.predict(handmade.X), rtol=1e-6)


async def test_several_inputs(client: httpx.AsyncClient) -> None:
    a = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    b = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    request = {"inputs": [oip(b, "b"), oip(a, "a")]}
    got = tensors(await client.post("/v2/models/pair/explain", json=request))
    np.testing.assert_allclose(got["y"][:, 0], a.sum(1) + 10 * b.sum((1, 2)))
    np.testing.assert_allclose(got["a_attributions"][:, 0], a)
    np.testing.assert_allclose(got["b_attributions"][:, 0], 10 * b)


async def test_an_image_explained_at_its_own_argmax(client: httpx.AsyncClient) -> None:
    image = np.random.default_rng(3).normal(size=(3, 2, 3, 3)).astype(np.float32)
    got = tensors(await client.post("/v2/models/image/explain", json={"inputs": [oip(image, "image")]}))
    winner = image.sum((2, 3)).argmax(1)
    expected = np.zeros_like(image)
    for row, channel in enumerate(winner):
        expected[row, channel] = image[row, channel]
    np.testing.assert_allclose(got["image_attributions"][:, 0], expected, rtol=1e-6)


async def test_int64_keeps_every_digit(client: httpx.AsyncClient) -> None:
    ids = np.array([[2**63 - 1, -(2**63)]])
    text = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}
    request = {"inputs": [oip(ids, "ids", "INT64"), text], "outputs": [{"name": "ids_out"}]}
    answer = await client.post("/v2/models/typed/infer", json=request)
    assert answer.json()["outputs"][0]["data"] == [2**63 - 1, -(2**63)]


async def test_a_reshape_in_the_config_is_honoured(client: httpx.AsyncClient) -> None:
    x = np.array([[1.5], [2.5]], np.float32)
    got = tensors(await client.post("/v2/models/vector/infer", json={"inputs": [oip(x)]}))
    np.testing.assert_array_equal(got["y"], 2 * x)
    np.testing.assert_array_equal(got["grid"], np.hstack([x, x]))
