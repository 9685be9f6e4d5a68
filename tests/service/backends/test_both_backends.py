"""One repository, in ONNX Runtime here and in a real Triton: the same answers, whoever asks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from scripts.triton.serve import TritonAddresses
from service.app import create_app, create_backend
from service.settings import Settings
from tests.service import handmade as made
from tests.service import patient
from tests.service.conftest import serving
from tests.triton.conftest import StartTriton, start_triton

__all__ = ["start_triton"]  # a fixture, found by its name

A = np.array([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]], np.float32)
GRID = np.random.default_rng(5).normal(size=(5, 2, 3, 3)).astype(np.float32)
IDS = np.array([[1, 250], [0, 3], [7, 9]])
TEXT = np.array([["a"], ["ü"], [""]], dtype=np.object_)
ASKED = {
    "score": {"x": made.X},
    "score_explain": {"x": made.X},
    "slope_explain": {"x": A},
    "pair": {"a": A, "b": GRID[:, 0, :2, :2].copy()},
    "pair_explain": {"a": A, "b": GRID[:, 1, 1:, 1:].copy()},
    "image_explain": {"image": GRID},
    "typed": {"ids": IDS, "text": TEXT},
    "vector": {"x": A[:, :1].copy()},
    "open": {"x": A, "z": A[::-1].copy()},
}
DATATYPES = {"float32": "FP32", "int64": "INT64", "object": "BYTES"}


@pytest.fixture(scope="module")
def triton(repository: Path, start_triton: StartTriton) -> Iterator[TritonAddresses]:
    with start_triton(repository) as at:
        yield at


@pytest.fixture(scope="module")
def routed(repository: Path, triton: TritonAddresses) -> Iterator[str]:
    """The gateway with Triton behind it."""
    settings = Settings(repository=repository, triton=triton.grpc)
    with serving(create_app(settings, create_backend(settings))) as address:
        yield address


def ask(module: Any, address: str, model: str, rows: slice = slice(None)) -> dict[str, np.ndarray]:
    """The same call through tritonclient's HTTP or gRPC `module`."""
    client = module.InferenceServerClient(address)
    inputs = []
    for name, whole in ASKED[model].items():
        array = whole[rows]
        tensor = module.InferInput(name, list(array.shape), DATATYPES[str(array.dtype)])
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    result = client.infer(model, inputs)
    response = result.get_response()
    names = (
        [item["name"] for item in response["outputs"]]
        if isinstance(response, dict)
        else [item.name for item in response.outputs]
    )
    answer = {name: result.as_numpy(name) for name in names}
    client.close()
    return answer


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype
        assert array.shape == right[name].shape
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, right[name], rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(array, right[name])


@pytest.mark.parametrize("model", ASKED)
def test_embedded_and_triton_agree(address: str, routed: str, model: str) -> None:
    assert_same(ask(triton_http, address, model), ask(triton_http, routed, model))


@pytest.mark.parametrize("model", ASKED)
def test_the_same_call_fits_the_gateway_and_triton(address: str, triton: TritonAddresses, model: str) -> None:
    rows = slice(0, 2)  # within every entry's batch size, which Triton does not split
    ours = ask(triton_http, address, model, rows)
    assert_same(ours, ask(triton_http, triton.http, model, rows))
    assert_same(ours, ask(triton_grpc, triton.grpc, model, rows))


def test_explanations_by_name_over_triton(address: str, routed: str) -> None:
    body = {"instances": [dict(zip(made.FEATURES, row, strict=True)) for row in made.X.tolist()]}
    here, there = (
        patient.post(f"http://{at}/v1/models/score:explain", json=body).json() for at in (address, routed)
    )
    np.testing.assert_allclose(there["predictions"], made.predict(made.X), rtol=1e-6)
    for i, row in enumerate(there["explanations"]):
        for t, told in enumerate(row["targets"]):
            values = list(told["attributions"].values())
            np.testing.assert_allclose(values, made.attribute(made.X)[i, t], rtol=1e-6)
            same = here["explanations"][i]["targets"][t]
            assert told["attributions"] == pytest.approx(same["attributions"], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v2/models/absent/infer", {"inputs": []}, 404),
        ("/v2/models/score/infer", {"inputs": []}, 422),
        ("/v1/models/score:predict", {"instances": [[1, 2, 3]]}, 422),
        ("/v1/models/log:predict", {"instances": [[-1]]}, 422),
        ("/v1/models/table:predict", {"instances": [[3]]}, 422),
        ("/v1/models/open:predict", {"instances": [{"x": [1, 2], "z": [1, 2, 3]}]}, 422),
    ],
)
def test_faults_are_told_alike(address: str, routed: str, path: str, body: dict, status: int) -> None:
    here, there = (patient.post(f"http://{at}{path}", json=body) for at in (address, routed))
    assert (here.status_code, there.status_code) == (status, status)
    assert here.json() == there.json()


def test_readiness_follows_triton(routed: str) -> None:
    assert patient.get(f"http://{routed}/v2/health/ready").json() == {"ready": True}
    assert patient.get(f"http://{routed}/v2/models/score/ready").status_code == 200
