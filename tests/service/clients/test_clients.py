"""tritonclient's own HTTP clients against a real server."""

import numpy as np
import pytest
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.service import handmade

IDS = np.array([[1, 250], [0, 3], [7, 9]])
TEXT = np.array([["a"], [b"\xc3\xbc"], [""]], dtype=np.object_)


def input_tensor(name: str, array: np.ndarray, datatype: str, binary: bool) -> triton_http.InferInput:
    tensor = triton_http.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


@pytest.fixture
def triton_client(address: str) -> triton_http.InferenceServerClient:
    client = triton_http.InferenceServerClient(address)
    yield client
    client.close()


def test_health_and_metadata(triton_client: triton_http.InferenceServerClient) -> None:
    assert triton_client.is_server_live()
    assert triton_client.is_server_ready()
    assert triton_client.is_model_ready("score")
    assert triton_client.is_model_ready("score", "1")
    assert not triton_client.is_model_ready("score", "2")
    assert not triton_client.is_model_ready("absent")
    assert triton_client.get_server_metadata()["name"] == "rationale"
    assert triton_client.get_model_metadata("score")["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    ]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])  # None: no outputs named, the client's default
def test_explanations_through_tritonclient(
    triton_client: triton_http.InferenceServerClient, binary_in: bool, binary_out: bool | None
) -> None:
    names = ("x_attributions", "base_value")
    outputs = None
    if binary_out is not None:
        outputs = [triton_http.InferRequestedOutput(name, binary_data=binary_out) for name in names]
    result = triton_client.infer(
        "score_explain", [input_tensor("x", handmade.X, "FP32", binary_in)], outputs=outputs, request_id="r1"
    )
    assert result.get_response()["id"] == "r1"
    assert result.as_numpy("x_attributions").dtype == np.float32
    np.testing.assert_allclose(result.as_numpy("x_attributions"), handmade.attribute(handmade.X), rtol=1e-6)
    np.testing.assert_allclose(
        result.as_numpy("base_value"), np.tile(handmade.predict(handmade.R), (5, 1)), rtol=1e-6
    )
    assert (result.as_numpy("y") is None) == (binary_out is not None)


@pytest.mark.parametrize("binary", [True, False])
def test_every_datatype(triton_client: triton_http.InferenceServerClient, binary: bool) -> None:
    inputs = [input_tensor("ids", IDS, "INT64", binary), input_tensor("text", TEXT, "BYTES", binary)]
    names = ("ids_out", "text_out", "half", "double", "small", "positive")
    outputs = [triton_http.InferRequestedOutput(name, binary_data=binary) for name in names]
    result = triton_client.infer("typed", inputs, outputs=outputs)
    text = [item if isinstance(item, str) else item.decode() for item in result.as_numpy("text_out").ravel()]
    assert text == ["a", "ü", ""]
    for name, dtype in [
        ("ids_out", np.int64),
        ("half", np.float16),
        ("double", np.float64),
        ("small", np.uint8),
    ]:
        assert result.as_numpy(name).dtype == dtype
        np.testing.assert_array_equal(result.as_numpy(name), IDS)
    np.testing.assert_array_equal(result.as_numpy("positive"), IDS > 0)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(triton_client: triton_http.InferenceServerClient, algorithm: str) -> None:
    result = triton_client.infer(
        "score", [input_tensor("x", handmade.X, "FP32", True)], request_compression_algorithm=algorithm
    )
    np.testing.assert_allclose(result.as_numpy("y"), handmade.predict(handmade.X), rtol=1e-6)


def test_errors_reach_the_client_with_text_and_status(
    triton_client: triton_http.InferenceServerClient,
) -> None:
    with pytest.raises(InferenceServerException, match="no model 'absent'") as caught:
        triton_client.infer("absent", [input_tensor("x", handmade.X, "FP32", True)])
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match=r"shape \[5, 3\].*\[-1, 4\]") as caught:
        triton_client.infer("score", [input_tensor("x", handmade.X[:, :3].copy(), "FP32", True)])
    assert caught.value.status() == "422"


async def test_the_asyncio_client(address: str) -> None:
    async with triton_aio.InferenceServerClient(address) as client:
        assert await client.is_server_ready()
        for binary in (True, False):
            result = await client.infer("score_explain", [input_tensor("x", handmade.X[:2], "FP32", binary)])
            np.testing.assert_allclose(
                result.as_numpy("x_attributions"), handmade.attribute(handmade.X[:2]), rtol=1e-6
            )
        with pytest.raises(InferenceServerException, match="no model 'absent'"):
            await client.get_model_metadata("absent")
