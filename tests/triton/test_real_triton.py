"""A real `tritonserver` with our `onnxruntime` backend: every test compares values."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.triton import clients
from tests.triton.conftest import Served
from tests.triton.entries import Array

ATOL = 1e-6  # float32 sums of three terms of size one


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def address(triton_server: Served, end: str) -> str:
    return triton_server.http if end.startswith("http") else triton_server.grpc


async def ask_together(triton_server: Served, model: str, batches: list[clients.Arrays]) -> list[Any]:
    """Sends all requests at once over one gRPC connection; answers, or the exceptions, in order."""
    async with clients.aio_client("grpc aio", triton_server.grpc) as client:
        module = clients.AIO["grpc aio"]
        calls = (
            client.infer(model, **clients.tensors(module, each, None), client_timeout=clients.TIMEOUT_S)
            for each in batches
        )
        answers = await asyncio.gather(*calls, return_exceptions=True)
    return [each if isinstance(each, BaseException) else clients.arrays(each) for each in answers]


def statistics(triton_server: Served, model: str) -> dict[str, int]:
    """Requests answered, and executions they took."""
    with clients.sync_client("http", triton_server.http) as client:
        counts = client.get_inference_statistics(model)["model_stats"][0]
    return {"rows": counts["inference_count"], "executions": counts["execution_count"]}


# --- values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", clients.ENDS)
async def test_each_client_gets_the_prediction(triton_server: Served, end: str) -> None:
    x = draw(4, 3)
    answer = await clients.infer(end, address(triton_server, end), "linear", {"x": x})
    assert list(answer) == ["y"]
    np.testing.assert_allclose(answer["y"], triton_server.linear.predict(x), atol=ATOL)


@pytest.mark.parametrize("end", clients.ENDS)
async def test_each_client_gets_the_explanation(triton_server: Served, end: str) -> None:
    x = draw(2, 3)
    answer = await clients.infer(end, address(triton_server, end), "linear_explain", {"x": x})
    expected = triton_server.linear.explain(x)
    assert set(answer) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(answer[name], value, atol=ATOL, err_msg=name)


@pytest.mark.parametrize("end", clients.ENDS)
async def test_only_requested_outputs_come_back(triton_server: Served, end: str) -> None:
    x, wanted = draw(3, 3), ["completeness_gap", "x_attributions"]
    answer = await clients.infer(end, address(triton_server, end), "linear_explain", {"x": x}, wanted)
    assert sorted(answer) == wanted
    np.testing.assert_allclose(
        answer["x_attributions"], triton_server.linear.explain(x)["x_attributions"], atol=ATOL
    )


@pytest.mark.parametrize("end", ["http", "grpc"])
async def test_text_goes_in_and_out(triton_server: Served, end: str) -> None:
    first = np.array([["age", "größe"], ["", "年"]], dtype=np.object_)
    second = np.array([["=3", " ✓"], ["x", "y"]], dtype=np.object_)
    answer = await clients.infer(
        end, address(triton_server, end), "words", {"first": first, "second": second}
    )
    joined = [[item.decode() for item in row] for row in answer["joined"]]
    assert joined == [["age=3", "größe ✓"], ["x", "年y"]]


async def test_text_that_is_no_utf8_is_refused_alone(triton_server: Served) -> None:
    good, bad = np.array([["a", "b"]], dtype=np.object_), np.array([[b"\xff", b"b"]], dtype=np.object_)
    batches = [{"first": each, "second": good} for each in (good, bad, good)]
    answers = await ask_together(triton_server, "words", batches)
    assert isinstance(answers[1], InferenceServerException)
    assert "a BYTES input is not UTF-8" in answers[1].message()
    for answer in (answers[0], answers[2]):
        assert answer["joined"].tolist() == [[b"aa", b"bb"]]


@pytest.mark.parametrize("end", ["http", "grpc"])
async def test_every_data_type_keeps_its_values(triton_server: Served, end: str) -> None:
    inputs = {
        "in_bool": np.array([[True, False]]),
        "in_string": np.array([[b"no", b"zero"]], dtype=np.object_),
        **{f"in_{t}": np.array([[-3, 100]]).astype(t) for t in ("int8", "int16", "int32", "int64")},
        **{f"in_{t}": np.array([[7, 250]]).astype(t) for t in ("uint8", "uint16", "uint32", "uint64")},
        "in_float16": np.array([[0.5, -2.25]], np.float16),
        "in_float": np.array([[1e-30, 3.25]], np.float32),
        "in_double": np.array([[1e-200, np.pi]], np.float64),
    }
    answer = await clients.infer(end, address(triton_server, end), "dtypes", inputs)
    assert len(answer) == len(inputs)
    for name, value in inputs.items():
        out = answer[name.replace("in_", "out_")]
        assert np_to_triton_dtype(out.dtype) == np_to_triton_dtype(value.dtype)
        np.testing.assert_array_equal(out, value, err_msg=name)


# --- batching -----------------------------------------------------------------------------------------


async def test_requests_in_one_batch_get_their_own_rows(triton_server: Served) -> None:
    batches = [draw(1 + i % 3, 4, seed=i) for i in range(12)]  # 24 rows, at most 8 in a batch
    before = statistics(triton_server, "rows")
    answers = await ask_together(triton_server, "rows", [{"x": each} for each in batches])
    after = statistics(triton_server, "rows")
    for batch, answer in zip(batches, answers, strict=True):
        np.testing.assert_allclose(answer["y"], batch.sum(axis=1, keepdims=True), atol=ATOL)
    assert after["rows"] - before["rows"] == 24
    assert after["executions"] - before["executions"] < len(batches)


async def test_rows_of_unequal_length_are_not_joined(triton_server: Served) -> None:
    batches = [draw(2, 2 + i % 3, seed=i) for i in range(9)]
    answers = await ask_together(triton_server, "rows", [{"x": each} for each in batches])
    for batch, answer in zip(batches, answers, strict=True):
        np.testing.assert_allclose(answer["y"], batch.sum(axis=1, keepdims=True), atol=ATOL)


# --- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", clients.ENDS)
async def test_a_wrong_shape_is_named(triton_server: Served, end: str) -> None:
    with pytest.raises(
        InferenceServerException, match="unexpected shape for input 'x' for model 'linear'"
    ) as e:
        await clients.infer(end, address(triton_server, end), "linear", {"x": draw(2, 4)})
    assert e.value.status() == ("400" if end.startswith("http") else "StatusCode.INVALID_ARGUMENT")


@pytest.mark.parametrize("end", ["http", "grpc"])
async def test_an_error_of_onnx_runtime_keeps_code_and_message(triton_server: Served, end: str) -> None:
    with pytest.raises(InferenceServerException, match=r"onnx runtime error \d+: .*Reshape"):
        await clients.infer(end, address(triton_server, end), "fails", {"x": draw(2, 4)})
    answer = await clients.infer(end, address(triton_server, end), "fails", {"x": draw(2, 3)})
    np.testing.assert_array_equal(answer["y"], draw(2, 3))


async def test_every_request_of_a_failed_batch_is_answered(triton_server: Served) -> None:
    before = statistics(triton_server, "fails")["executions"]
    answers = await ask_together(triton_server, "fails", [{"x": draw(1, 5, seed=i)} for i in range(4)])
    assert [type(each) for each in answers] == [InferenceServerException] * 4
    assert all("onnx runtime error" in each.message() for each in answers)
    assert statistics(triton_server, "fails")["executions"] - before < 4


@pytest.mark.parametrize("end", ["http", "grpc"])
async def test_an_unknown_model_is_named(triton_server: Served, end: str) -> None:
    with pytest.raises(InferenceServerException, match="unknown model: 'nobody'"):
        await clients.infer(end, address(triton_server, end), "nobody", {"x": draw(1, 3)})


# --- settings -----------------------------------------------------------------------------------------


def thread_count(server: int, model: str) -> int:
    """Threads of the process that runs `model` for this server."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # others of this machine may have ended meanwhile
            command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == server and any(
                f"/{model}/" in each or each.startswith(model) for each in command
            ):
                return len(list((process / "task").iterdir()))
    raise AssertionError(f"no process runs {model}")


@pytest.mark.full
def test_the_thread_count_of_the_configuration_is_used(triton_server: Served) -> None:
    one, three = (thread_count(triton_server.pid, f"threads_{count}") for count in (1, 3))
    assert three - one == 2
