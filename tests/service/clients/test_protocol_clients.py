"""Clients that others wrote, unchanged: tritonclient's streams and requests in flight, curl, KServe's, gRPC's
for JavaScript.
"""

import json
import os
import queue
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.http as triton_http
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException

from tests.needs import need
from tests.service import handmade
from tests.triton import clients

WAIT_S = 60
ROWS = np.random.default_rng(4).normal(size=(20, 2, 4)).astype(np.float32)


def input_tensors(module: Any, x: np.ndarray) -> Any:
    return clients.tensors(module, {"x": x}, None)["inputs"]


# --- tritonclient -------------------------------------------------------------------------------------


def test_a_stream_of_the_sync_client(ends: dict[str, str]) -> None:
    """Answers come by id, whatever their order; an error is one request's own."""
    came: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(ends["grpc"]) as client:
        client.start_stream(lambda result, error: came.put((result, error)))
        for number, x in enumerate(ROWS):
            client.async_stream_infer("score_explain", input_tensors(triton, x), request_id=str(number))
        client.async_stream_infer("absent", input_tensors(triton, ROWS[0]), request_id="absent")
        answers = [came.get(timeout=WAIT_S) for _ in range(len(ROWS) + 1)]
        client.stop_stream()
    errors = [error for _, error in answers if error is not None]
    assert len(errors) == 1
    assert "no model 'absent'" in str(errors[0])
    results = {result.get_response().id: result for result, error in answers if error is None}
    for number, x in enumerate(ROWS):
        got = results[str(number)].as_numpy("x_attributions")
        np.testing.assert_allclose(got, handmade.attribute(x), rtol=1e-5, atol=1e-5)


async def test_a_stream_of_the_asyncio_client(ends: dict[str, str]) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number, x in enumerate(ROWS):
            yield {"model_name": "score", "inputs": input_tensors(triton_aio, x), "request_id": str(number)}

    async with triton_aio.InferenceServerClient(ends["grpc"]) as client:
        seen = set()
        async for result, error in client.stream_infer(requests()):
            assert error is None
            number = int(result.get_response().id)
            np.testing.assert_allclose(
                result.as_numpy("y"), handmade.predict(ROWS[number]), rtol=1e-5, atol=1e-5
            )
            seen.add(number)
    assert seen == set(range(len(ROWS)))


def test_decoupled_clients_are_told_which_answer_is_the_last(ends: dict[str, str]) -> None:
    came: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(ends["grpc"]) as client:
        client.start_stream(lambda result, error: came.put((result, error)))
        client.async_stream_infer("score", input_tensors(triton, ROWS[0]), enable_empty_final_response=True)
        result, error = came.get(timeout=WAIT_S)
        client.stop_stream()
    assert error is None
    assert result.get_response().parameters["triton_final_response"].bool_param


def test_requests_in_flight(ends: dict[str, str]) -> None:
    """`async_infer` of both sync clients."""
    with clients.sync_client("http", ends["http"]) as client:
        requests = [client.async_infer("score", input_tensors(triton_http, x)) for x in ROWS]
        for x, answer in zip(ROWS, requests, strict=True):
            np.testing.assert_allclose(
                answer.get_result().as_numpy("y"), handmade.predict(x), rtol=1e-5, atol=1e-5
            )
    came: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(ends["grpc"]) as client:
        client.async_infer(
            "score", input_tensors(triton, ROWS[0]), lambda result, error: came.put((result, error))
        )
        result, error = came.get(timeout=WAIT_S)
    assert error is None
    np.testing.assert_allclose(result.as_numpy("y"), handmade.predict(ROWS[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_answers(ends: dict[str, str], algorithm: str) -> None:
    """A server may leave an answer as it is."""
    with clients.sync_client("http", ends["http"]) as client:
        answer = client.infer(
            "score", input_tensors(triton_http, ROWS[0]), response_compression_algorithm=algorithm
        )
    np.testing.assert_allclose(answer.as_numpy("y"), handmade.predict(ROWS[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("end", clients.ENDS)
async def test_the_explainer_is_a_parameter(ends: dict[str, str], end: str) -> None:
    """`compiled` is the explainer that the command line made."""
    address = ends[end.partition(" ")[0]]
    module = (clients.SYNC | clients.AIO)[end]
    arguments = {"inputs": input_tensors(module, ROWS[0])}

    async def ask(explainer: str) -> Any:
        if end in clients.SYNC:
            with clients.sync_client(end, address) as client:
                return client.infer("score_explain", **arguments, parameters={"explainer": explainer})
        async with clients.aio_client(end, address) as client:
            return await client.infer("score_explain", **arguments, parameters={"explainer": explainer})

    got = (await ask("compiled")).as_numpy("x_attributions")
    np.testing.assert_allclose(got, handmade.attribute(ROWS[0]), rtol=1e-5, atol=1e-5)
    with pytest.raises(InferenceServerException, match="no explainer 'absent'"):
        await ask("absent")


# --- curl ---------------------------------------------------------------------------------------------


def test_curl(ends: dict[str, str], tmp_path: Path) -> None:
    def curl(path: str, *options: str) -> bytes:
        return subprocess.run(
            [need("curl"), "-sS", "--fail-with-body", *options, f"http://{ends['http']}{path}"],
            stdout=subprocess.PIPE,
            check=True,
        ).stdout

    body = {"instances": [dict(zip(handmade.FEATURES, handmade.X[0].tolist(), strict=True))]}
    kind = ("-H", "Content-Type: application/json")
    answer = json.loads(curl("/v1/models/score:predict", *kind, "-d", json.dumps(body)))
    np.testing.assert_allclose(answer["predictions"], handmade.predict(handmade.X[:1]), rtol=1e-6)
    # A body over a kilobyte: curl asks by `Expect: 100-continue` whether it may send it.
    many = {"instances": body["instances"] * 200}
    file = tmp_path / "many.json"
    file.write_text(json.dumps(many))
    answer = json.loads(
        curl("/v1/models/score:predict", *kind, "-H", "Expect: 100-continue", "-d", f"@{file}")
    )
    assert len(answer["predictions"]) == 200
    assert json.loads(curl("/v2/health/ready")) == {"ready": True}
    assert json.loads(curl("/v2/repository/index", "-X", "POST"))[0]["state"] == "READY"


# --- KServe -------------------------------------------------------------------------------------------

KSERVE = "kserve==0.21.*"


@pytest.fixture(scope="session")
def kserve_python(pytestconfig: pytest.Config) -> Path:
    """KServe's client in an environment of its own, as it wants another protobuf. Made once and kept."""
    folder = pytestconfig.cache.mkdir("kserve")
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", KSERVE], check=True)
        (folder / "made").touch()
    return python


@pytest.mark.slow
def test_kserves_own_client(ends: dict[str, str], kserve_python: Path) -> None:
    script = Path(__file__).parent / "kserve_client.py"
    x = handmade.X[:3]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    output = subprocess.run(
        [str(kserve_python), str(script), ends["http"], ends["grpc"], json.dumps(x.tolist())],
        stdout=subprocess.PIPE,
        check=True,
        env=environment,
    ).stdout
    answers = json.loads(output)
    for name, message in answers["health"].items():
        assert message is not name.endswith("absent"), name
    for name, y in answers["predictions"].items():
        np.testing.assert_allclose(y, handmade.predict(x), rtol=1e-6, err_msg=name)
    for name, attributions in answers["attributions"].items():
        np.testing.assert_allclose(attributions, handmade.attribute(x), rtol=1e-6, err_msg=name)
    assert len(answers["predictions"]) == 6
    assert len(answers["attributions"]) == 5


# --- @grpc/grpc-js ------------------------------------------------------------------------------------

GRPC_JS = ("@grpc/grpc-js@1.14", "@grpc/proto-loader@0.8")


@pytest.fixture(scope="session")
def node_modules(pytestconfig: pytest.Config) -> Path:
    """gRPC's client for JavaScript, from npm. Made once and kept."""
    folder = pytestconfig.cache.mkdir("grpc_js")
    if not (folder / "made").exists():
        quiet = ("--silent", "--no-audit", "--no-fund")
        subprocess.run([need("npm"), "install", *quiet, "--prefix", str(folder), *GRPC_JS], check=True)
        (folder / "made").touch()
    return folder / "node_modules"


@pytest.mark.slow
def test_grpc_for_javascript(ends: dict[str, str], node_modules: Path, tmp_path: Path) -> None:
    """Raw and typed tensors, compressed, in a stream; errors by their codes and metadata."""
    files = FileDescriptorSet()
    for descriptor in (model_config_pb2.DESCRIPTOR, service_pb2.DESCRIPTOR):
        descriptor.CopyToProto(files.file.add())
    descriptors = tmp_path / "oip.bin"
    descriptors.write_bytes(files.SerializeToString())
    script = Path(__file__).parent / "grpc_js_client.js"
    x = handmade.X[:3]
    message = subprocess.run(
        [need("Node.js"), str(script), ends["grpc"], str(descriptors), json.dumps(x.tolist())],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "NODE_PATH": str(node_modules)},
    ).stdout
    answers = json.loads(message)
    assert answers["ready"] is True
    assert answers["metadata"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    stream = answers["streamed"]
    for answer in (answers["raw"], answers["typed"], answers["compressed"], stream["0 score"]):
        np.testing.assert_allclose(answer["y"], handmade.predict(x).ravel(), rtol=1e-6)
    for answer in (answers["explained"], stream["1 score_explain"]):
        np.testing.assert_allclose(answer["x_attributions"], handmade.attribute(x).ravel(), rtol=1e-6)
    assert "no model 'absent'" in stream["2 absent"]
    absent, late = answers["absent"], answers["late"]
    assert (absent["code"], absent["problem"]) == ("NOT_FOUND", ["unknown-model"])
    assert "no model 'absent'" in absent["said"]
    assert late["code"] == "DEADLINE_EXCEEDED"
