"""What `rationale compile` writes, served as it is: by ONNX Runtime, by Triton, by the gateway on either."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from rationale import Compiled, DeepShap, ExactShap, Gradient, TreeShap, compile_model
from scripts.triton.serve import TritonAddresses
from tests.compiler.models import cnn, mlp, rows, two_inputs
from tests.grid import grid
from tests.references import trees as of
from tests.service import patient
from tests.service.child import both_ends
from tests.triton.clients import ENDS, infer
from tests.triton.conftest import StartTriton

AGREE = 1e-6  # of the largest value: batches are cut differently, the arithmetic is the same
NAMES = ("perceptron", "image", "pair", "slope", "trees", "called")
SERVERS = ("triton", "gateway", "gateway on triton")
GATEWAYS = SERVERS[1:]


def compile_all() -> dict[str, Compiled]:
    """Targets of every kind; one and two inputs; with references and without; with a walk and without."""
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
        "trees": compile_model(of.regressor(of.random_trees(1, ("LEQ",))), TreeShap(of.rows(1, 9))),
        "called": compile_model(mlp(), ExactShap(rows(4, 5)), targets=[1, "2-0"]),
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
def servers(repository: Path, triton: TritonAddresses) -> Iterator[dict[str, dict[str, str]]]:
    """By name of the server and of its end: `host:port`."""
    here = ("--repository", str(repository))
    with both_ends(*here) as embedded, both_ends(*here, "--triton", triton.grpc) as routed:
        real = {"http": triton.http, "grpc": triton.grpc}
        yield dict(zip(SERVERS, (real, embedded, routed), strict=True))


def inputs_of(compiled: Compiled, count: int) -> dict[str, np.ndarray]:
    return {
        spec.name: rows(count, *spec.shape, seed=40 + i) for i, spec in enumerate(compiled.manifest.inputs)
    }


def assert_agree(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert set(want) <= set(got)
    for name, value in want.items():
        scale = max(np.abs(value).max(), 1e-3)
        assert got[name].shape == value.shape
        assert np.abs(got[name] - value).max() <= AGREE * scale, name


@grid("name, end", NAMES, ENDS)
async def test_the_same_call_gets_the_compilers_answer_everywhere(
    compiled: dict[str, Compiled], servers: dict[str, dict[str, str]], name: str, end: str
) -> None:
    """tritonclient's four clients, on Triton and on the gateway with either backend."""
    arrays = inputs_of(compiled[name], 3)
    want = dict(compiled[name].explain(arrays))
    protocol, model = end.split()[0], f"{name}_explain"
    answers = {server: await infer(end, ends[protocol], model, arrays) for server, ends in servers.items()}
    for answer in answers.values():
        assert_agree(answer, want)
        assert_agree(answer, answers["triton"])
        assert list(answer) == list(answers["triton"])


@pytest.mark.parametrize("server", GATEWAYS)
@pytest.mark.parametrize("name", NAMES)
def test_the_explain_verb_answers_as_the_compiler_does(
    compiled: dict[str, Compiled], servers: dict[str, dict[str, str]], name: str, server: str
) -> None:
    arrays = inputs_of(compiled[name], 3)
    body = {
        "inputs": [
            {"name": n, "shape": list(a.shape), "datatype": "FP32", "data": a.ravel().tolist()}
            for n, a in arrays.items()
        ]
    }
    answer = patient.post(f"http://{servers[server]['http']}/v2/models/{name}/explain", json=body).json()
    got = {o["name"]: np.asarray(o["data"], np.float32).reshape(o["shape"]) for o in answer["outputs"]}
    assert_agree(got, dict(compiled[name].explain(arrays)))


@grid("server, end", GATEWAYS, ENDS)
async def test_more_rows_than_a_batch_holds(
    compiled: dict[str, Compiled], servers: dict[str, dict[str, str]], server: str, end: str
) -> None:
    arrays = inputs_of(compiled["perceptron"], 150)
    want = dict(compiled["perceptron"].explain(arrays))
    address = servers[server][end.split()[0]]
    assert_agree(await infer(end, address, "perceptron_explain", arrays), want)


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_triton_that_serves_other_graphs_proves_nothing(
    repository: Path, start_triton: StartTriton, tmp_path: Path, is_allowed: bool
) -> None:
    """Its repository is another copy, in which one entry was swapped."""
    theirs = shutil.copytree(repository, tmp_path / "models")
    slope = theirs / "slope_explain" / "1" / "model.onnx"
    model = onnx.load(slope)
    for tensor in model.graph.initializer:
        if tensor.name == "w1":
            halved = onnx.numpy_helper.to_array(tensor) / 2
            tensor.CopyFrom(onnx.numpy_helper.from_array(halved, "w1"))
    onnx.save(model, slope)
    flags = ("--repository", str(repository))
    allowed = {"RATIONALE_ALLOW_DRIFT": "true"} if is_allowed else {}
    with (
        start_triton(theirs) as triton,
        both_ends(*flags, "--triton", triton.grpc, **allowed) as ends,
    ):
        url = f"http://{ends['http']}/v2"
        index = patient.post(f"{url}/repository/index", json={}).json()
        states = {one["name"]: (one["state"], one["reason"]) for one in index}
        row = {"name": "x", "shape": [1, 5], "datatype": "FP32", "data": [0.5] * 5}
        answer = patient.post(f"{url}/models/slope/explain", json={"inputs": [row]})
    state, reason = states.pop("slope_explain")
    assert {each for each, _ in states.values()} == {"READY"}
    if is_allowed:
        assert state == "READY"
        assert float(answer.json()["parameters"]["drift"]) > 1e-3
    else:
        assert (state, answer.status_code) == ("UNAVAILABLE", 503)
        assert f"the Triton at {triton.grpc} answers its probe rows otherwise than is due" in reason
