"""What `rationale compile` writes, served as it is: by ONNX Runtime, by Triton, by the gateway on either."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from compiler import Compiled, DeepShap, Gradient, compile_model
from scripts.triton.serve import TritonAddresses
from service.app import create_app, create_backend
from service.settings import Settings
from tests.compiler.models import cnn, mlp, rows, two_inputs
from tests.service.conftest import serving
from tests.triton.conftest import StartTriton

AGREE = 1e-6  # of the largest value: batches are cut differently, the arithmetic is the same
CLIENTS = {"http": triton_http, "grpc": triton_grpc}


def compile_all() -> dict[str, Compiled]:
    """Targets of every kind; one and two inputs; with references and without."""
    image = [d.dim_value for d in cnn().graph.input[0].type.tensor_type.shape.dim[1:]]
    pair = {
        v.name: rows(6, *(d.dim_value for d in v.type.tensor_type.shape.dim[1:]), seed=i)
        for i, v in enumerate(two_inputs().graph.input)
    }
    return {
        "perceptron": compile_model(mlp(), DeepShap(rows(6, 5)), targets="all"),
        "image": compile_model(cnn(), DeepShap(rows(4, *image))),
        "pair": compile_model(two_inputs(), DeepShap(pair)),
        "slope": compile_model(mlp(), Gradient(), targets=[2]),
    }


@pytest.fixture(scope="module")
def compiled() -> dict[str, Compiled]:
    return compile_all()


@pytest.fixture(scope="module")
def repository(compiled: dict[str, Compiled], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    for name, model in compiled.items():
        model.write(folder, name)
    return folder


@pytest.fixture(scope="module")
def triton(repository: Path, start_triton: StartTriton) -> Iterator[TritonAddresses]:
    with start_triton(repository) as at:
        yield at


@pytest.fixture(scope="module")
def gateways(repository: Path, triton: TritonAddresses) -> Iterator[dict[str, str]]:
    """Addresses of the embedded gateway and of the one in front of Triton."""
    alone, routed = Settings(repository=repository), Settings(repository=repository, triton=triton.grpc)
    with (
        serving(create_app(alone, create_backend(alone))) as embedded,
        serving(create_app(routed, create_backend(routed))) as on_triton,
    ):
        yield {"embedded": embedded, "triton": on_triton}


def inputs_of(compiled: Compiled, count: int) -> dict[str, np.ndarray]:
    return {
        spec.name: rows(count, *spec.shape, seed=40 + i) for i, spec in enumerate(compiled.manifest.inputs)
    }


def ask(module: Any, address: str, model: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    inputs = []
    for name, array in arrays.items():
        inputs.append(module.InferInput(name, list(array.shape), "FP32"))
        inputs[-1].set_data_from_numpy(array)
    with module.InferenceServerClient(address) as client:
        answer = client.infer(model, inputs)
        described = answer.get_response() if module is triton_http else answer.get_response(as_json=True)
        return {o["name"]: answer.as_numpy(o["name"]) for o in described["outputs"]}


def assert_agree(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert set(want) <= set(got)
    for name, value in want.items():
        scale = max(np.abs(value).max(), 1e-3)
        assert got[name].shape == value.shape
        assert np.abs(got[name] - value).max() <= AGREE * scale, name


@pytest.mark.parametrize("protocol", CLIENTS)
@pytest.mark.parametrize("name", ["perceptron", "image", "pair", "slope"])
def test_triton_answers_as_the_compiler_does(
    compiled: dict[str, Compiled], triton: TritonAddresses, name: str, protocol: str
) -> None:
    arrays = inputs_of(compiled[name], 3)
    address = triton.http if protocol == "http" else triton.grpc
    assert_agree(
        ask(CLIENTS[protocol], address, f"{name}_explain", arrays), dict(compiled[name].explain(arrays))
    )


@pytest.mark.parametrize("backend", ["embedded", "triton"])
@pytest.mark.parametrize("name", ["perceptron", "image", "pair", "slope"])
def test_the_gateway_answers_as_the_compiler_does(
    compiled: dict[str, Compiled], gateways: dict[str, str], name: str, backend: str
) -> None:
    arrays = inputs_of(compiled[name], 3)
    want = dict(compiled[name].explain(arrays))
    assert_agree(ask(triton_http, gateways[backend], f"{name}_explain", arrays), want)
    body = {
        "inputs": [
            {"name": n, "shape": list(a.shape), "datatype": "FP32", "data": a.ravel().tolist()}
            for n, a in arrays.items()
        ]
    }
    answer = httpx.post(f"http://{gateways[backend]}/v2/models/{name}/explain", json=body).json()
    got = {o["name"]: np.asarray(o["data"], np.float32).reshape(o["shape"]) for o in answer["outputs"]}
    assert_agree(got, want)


def test_more_rows_than_a_batch_holds(compiled: dict[str, Compiled], gateways: dict[str, str]) -> None:
    arrays = inputs_of(compiled["perceptron"], 150)
    want = dict(compiled["perceptron"].explain(arrays))
    for address in gateways.values():
        assert_agree(ask(triton_http, address, "perceptron_explain", arrays), want)
