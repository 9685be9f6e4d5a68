"""tritonclient's own gRPC clients against `rationale serve`: values, metadata, health."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

from tests.service import handmade
from tests.service.messages import GOOD, request, tensor, typed
from tests.triton import clients
from tests.triton.clients import Arrays

ENDS = ("grpc", "grpc aio")

A = np.array([[1, 2], [3, 4], [5, -6], [7, 8], [9, 10]], np.float32)
B = np.random.default_rng(3).normal(size=(5, 2, 2)).astype(np.float32)
IMAGE = np.random.default_rng(5).normal(size=(5, 2, 3, 3)).astype(np.float32)
IDS = np.array([[1, 250], [0, 3], [7, 9]])
TEXT = np.array([[b"a"], ["ü".encode()], [b""]], dtype=np.object_)
SUMS = IMAGE.sum((2, 3))
SLOPE = A @ np.array([[2], [-3]], np.float32)
PAIR = A.sum(1, keepdims=True) + 10 * B.sum((1, 2))[:, None]
SCORE = handmade.predict(handmade.X)

# By entry: what is asked and what is right. Five rows are more than most entries' batches hold.
CASES: dict[str, tuple[Arrays, Arrays]] = {
    "score": ({"x": handmade.X}, {"y": SCORE}),
    "score_explain": (
        {"x": handmade.X},
        {
            "y": SCORE,
            "x_attributions": handmade.attribute(handmade.X),
            "base_value": np.tile(handmade.predict(handmade.R), (5, 1)),
            "explained_value": SCORE,
            "completeness_gap": np.zeros((5, 3), np.float32),
        },
    ),
    "slope": ({"x": A}, {"p": SLOPE}),
    "slope_explain": (
        {"x": A},
        {
            "p": SLOPE,
            "x_attributions": np.tile(np.array([[[2, -3]]], np.float32), (5, 1, 1)),
            "explained_value": SLOPE,
        },
    ),
    "pair": ({"a": A, "b": B}, {"y": PAIR, "a_sum": A.sum(1, keepdims=True)}),
    "pair_explain": (
        {"a": A, "b": B},
        {
            "y": PAIR,
            "a_sum": A.sum(1, keepdims=True),
            "a_attributions": A[:, None],
            "b_attributions": 10 * B[:, None],
            "explained_value": PAIR,
        },
    ),
    "image": ({"image": IMAGE}, {"sums": SUMS}),
    "image_explain": (
        {"image": IMAGE},
        {
            "sums": SUMS,
            "image_attributions": (IMAGE * np.eye(2, dtype=np.float32)[SUMS.argmax(1)][:, :, None, None])[
                :, None
            ],
            "explained_value": SUMS.max(1, keepdims=True),
        },
    ),
    "typed": (
        {"ids": IDS, "text": TEXT},
        {
            "ids_out": IDS,
            "text_out": TEXT,
            "half": IDS.astype(np.float16),
            "double": IDS.astype(np.float64),
            "small": IDS.astype(np.uint8),
            "positive": IDS > 0,
        },
    ),
    "log": ({"x": np.abs(A[:, :1])}, {"y": np.log(np.abs(A[:, :1]))}),
    "mixing": ({"x": A[:1, :1]}, {"y": A[:1, :1]}),
    "table": ({"ids": np.array([[2], [0], [1]])}, {"y": np.array([[30], [10], [20]], np.float32)}),
    "open": ({"x": A, "z": A[::-1].copy()}, {"y": A + A[::-1]}),
    "vector": (
        {"x": A[:, :1].copy()},
        {"y": 2 * A[:, :1], "grid": np.repeat(A[:, :1], 2, axis=1)},
    ),
}


@pytest.fixture(scope="module")
def client(grpc_address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(grpc_address) as client:
        yield client


def assert_equal(got: Arrays, want: Arrays, rtol: float = 1e-5, atol: float = 2e-5) -> None:
    assert list(got) == list(want)
    for name, value in want.items():
        assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape), name
        if value.dtype.kind == "f":
            np.testing.assert_allclose(got[name], value, rtol=rtol, atol=atol, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], value, err_msg=name)


# --- values -------------------------------------------------------------------------------------------


def test_the_cases_are_all_entries(repository: Path) -> None:
    assert CASES.keys() == {folder.name for folder in repository.iterdir()}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("model", CASES)
@pytest.mark.asyncio(loop_scope="session")
async def test_every_entry(grpc_address: str, model: str, end: str) -> None:
    inputs, want = CASES[model]
    assert_equal(await clients.infer(end, grpc_address, model, inputs), want)


@pytest.mark.parametrize("model", CASES)
def test_every_entry_by_typed_contents(stub: Any, model: str) -> None:
    inputs, want = CASES[model]
    answer = stub.ModelInfer(request(model, *(typed(name, array) for name, array in inputs.items())))
    assert_equal(clients.arrays(triton.InferResult(answer)), want)


def test_the_answer_says_whose_it_is(stub: Any) -> None:
    answer = stub.ModelInfer(request("score_explain", GOOD, id="r-7", model_version="1"))
    assert (answer.model_name, answer.model_version, answer.id) == ("score_explain", "1", "r-7")
    parameters = {name: value.string_param for name, value in answer.parameters.items()}
    assert parameters == {"method": "deepshap", "explanation": "e" * 64, "explained_output": "y"}
    assert not stub.ModelInfer(request("score", GOOD)).parameters


@pytest.mark.parametrize(
    ("datatype", "place"),
    [("INT32", "int_contents"), ("UINT8", "uint_contents"), ("FP64", "fp64_contents")],
)
def test_typed_contents_of_other_datatypes_are_read(stub: Any, datatype: str, place: str) -> None:
    """They get as far as the model, which takes another datatype."""
    contents: dict[str, Any] = {place: [1, 2, 3, 4]}
    with pytest.raises(grpc.RpcError, match=f"'x' is {datatype}.* FP32"):
        stub.ModelInfer(request("score", tensor(datatype=datatype, **contents)))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.asyncio(loop_scope="session")
async def test_requested_outputs(grpc_address: str, end: str) -> None:
    inputs, want = CASES["score_explain"]
    names = ["base_value", "x_attributions"]
    got = await clients.infer(end, grpc_address, "score_explain", inputs, names)
    assert_equal(got, {name: want[name] for name in names})


@pytest.mark.asyncio(loop_scope="session")
async def test_many_at_once(grpc_address: str) -> None:
    """Rows share batches; each caller gets its own."""
    rows = np.random.default_rng(8).normal(size=(120, 1, 4)).astype(np.float32)

    async def ask(client: Any, x: np.ndarray) -> np.ndarray:
        input_tensors = clients.tensors(triton_aio, {"x": x}, None)
        return (await client.infer("score_explain", **input_tensors)).as_numpy("x_attributions")

    async with triton_aio.InferenceServerClient(grpc_address) as client:
        answers = await asyncio.gather(*(ask(client, x) for x in rows))
    for x, answer in zip(rows, answers, strict=True):
        np.testing.assert_allclose(answer, handmade.attribute(x), rtol=1e-5, atol=1e-5)


def test_many_threads(client: triton.InferenceServerClient) -> None:
    rows = np.random.default_rng(9).normal(size=(60, 3, 4)).astype(np.float32)

    def ask(x: np.ndarray) -> np.ndarray:
        return client.infer("score", **clients.tensors(triton, {"x": x}, None)).as_numpy("y")

    with ThreadPoolExecutor(8) as threads:
        for x, y in zip(rows, threads.map(ask, rows), strict=True):
            np.testing.assert_allclose(y, handmade.predict(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.asyncio(loop_scope="session")
async def test_large_messages(grpc_address: str, end: str) -> None:
    """16 MB there and 8 MB back; gRPC's own limit is 4."""
    x = np.arange(2_000_000, dtype=np.float32).reshape(1, -1)
    answer = await clients.infer(end, grpc_address, "open", {"x": x, "z": x + 1})
    np.testing.assert_array_equal(answer["y"], 2 * x + 1)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(client: triton.InferenceServerClient, algorithm: str) -> None:
    input_tensors = clients.tensors(triton, {"x": handmade.X}, None)
    answer = client.infer("score", **input_tensors, compression_algorithm=algorithm)
    np.testing.assert_allclose(answer.as_numpy("y"), SCORE, rtol=1e-6)


# --- what is told of server and models ----------------------------------------------------------------


def test_health(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("score")
    assert client.is_model_ready("score_explain", "1")
    assert not client.is_model_ready("score", "2")
    assert not client.is_model_ready("absent")


def test_metadata(client: triton.InferenceServerClient) -> None:
    server = client.get_server_metadata()
    assert (server.name, list(server.extensions)) == (
        "rationale",
        ["model_configuration", "model_repository", "statistics"],
    )
    model = client.get_model_metadata("pair", "1")
    assert (model.name, list(model.versions), model.platform) == ("pair", ["1"], "onnxruntime_onnx")
    tensors = [(item.name, item.datatype, list(item.shape)) for item in (*model.inputs, *model.outputs)]
    assert tensors == [
        ("a", "FP32", [-1, 2]),
        ("b", "FP32", [-1, 2, 2]),
        ("y", "FP32", [-1, 1]),
        ("a_sum", "FP32", [-1, 1]),
    ]
