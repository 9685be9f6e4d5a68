"""One-shot entries, served: the gateway answers as for two entries; Triton shows the gate."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rationale import Compiled, DeepShap, Deployment, compile_model
from scripts.triton.serve import TritonAddresses
from tests.compiler.models import mlp, rows, two_inputs
from tests.grid import grid
from tests.service import patient
from tests.service.child import both_ends
from tests.triton.clients import ENDS, infer
from tests.triton.conftest import StartTriton
from tests.triton.test_compiled_entries import assert_agree, inputs_of

GATEWAYS = ("gateway", "gateway on triton")
GAP = "completeness_gap"  # roundings alone: another batch, other ones
PAIR = {"a": rows(6, 3), "b": rows(6, 4, seed=1)}
Servers = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def compiled() -> dict[str, Compiled]:
    one_shot = Deployment(one_shot=True)
    return {
        "perceptron": compile_model(mlp(), DeepShap(rows(6, 5)), targets="all", deployment=one_shot),
        "pair": compile_model(two_inputs(), DeepShap(PAIR), deployment=one_shot),
        "apart": compile_model(mlp(), DeepShap(rows(6, 5)), targets="all"),
    }


@pytest.fixture(scope="module")
def repository(compiled: dict[str, Compiled], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one_shot")
    for name, model in compiled.items():
        model.write(folder, name)
    return folder


@pytest.fixture(scope="module")
def triton(repository: Path, start_triton: StartTriton) -> Iterator[TritonAddresses]:
    with start_triton(repository) as at:
        yield at


@pytest.fixture(scope="module")
def servers(repository: Path, triton: TritonAddresses) -> Iterator[Servers]:
    here = ("--repository", str(repository))
    with both_ends(*here) as embedded, both_ends(*here, "--triton", triton.grpc) as routed:
        yield {"gateway": embedded, "gateway on triton": routed}


@grid("name, server, end", ["perceptron", "pair"], GATEWAYS, ENDS)
async def test_predicted_and_explained_by_name(
    compiled: dict[str, Compiled], servers: Servers, name: str, server: str, end: str
) -> None:
    arrays, address = inputs_of(compiled[name], 3), servers[server][end.split()[0]]
    want = dict(compiled[name].explain(arrays))
    del want["explained"]
    explained = await infer(end, address, f"{name}_explain", arrays)
    assert list(explained) == list(want)
    assert_agree(explained, want)
    predicted = await infer(end, address, name, arrays)
    assert list(predicted) == ["y"]
    assert_agree(predicted, {"y": want["y"]})


@pytest.mark.parametrize("server", GATEWAYS)
@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("v2/models/{}", None),
        ("v2/models/{}_explain", None),
        ("v1/models/{}", None),
        ("v2/models/{}/infer", "v2"),
        ("v2/models/{}/explain", "v2"),
        ("v1/models/{}:predict", "v1"),
        ("v1/models/{}:explain", "v1"),
        ("v2/models/{}/infer", "gate"),
        ("v2/models/{}/explain", "gate"),
    ],
)
def test_every_answer_but_names_is_that_of_two_entries(
    servers: Servers, server: str, verb: str, body: str
) -> None:
    """Refusals too: the gate is no input that a client of the gateway may feed."""
    x = rows(3, 5, seed=9)
    tensor = {"name": "x", "shape": [3, 5], "datatype": "FP32", "data": x.ravel().tolist()}
    gate = {"name": "explain", "shape": [3, 1], "datatype": "BOOL", "data": [True] * 3}
    bodies = {
        "v1": {"instances": x.tolist()},
        "v2": {"inputs": [tensor]},
        "gate": {"inputs": [tensor, gate]},
    }
    answers = []
    for name in ("perceptron", "apart"):
        url = f"http://{servers[server]['http']}/{verb.format(name)}"
        answer = patient.get(url) if body is None else patient.post(url, json=bodies[body])
        assert answer.status_code == (422 if body == "gate" else 200)
        answers.append(answer.text.replace(name, "NAME"))
    one, two = answers
    if one != two:  # the last digits may differ: batches of two graphs
        flat_one, flat_two = numbers(one), numbers(two)
        assert flat_one.shape == flat_two.shape
        assert np.abs(flat_one - flat_two).max() <= 1e-6


def numbers(text: str) -> np.ndarray:
    return np.array([float(t) for t in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)])


def test_models_are_listed_as_two_entries_are(servers: Servers) -> None:
    for ends in servers.values():
        listed = patient.get(f"http://{ends['http']}/v1/models").json()
        assert listed == {kind: ["apart", "pair", "perceptron"] for kind in ("models", "explainable")}


@pytest.mark.parametrize("end", ENDS)
async def test_triton_shows_the_gate(
    compiled: dict[str, Compiled], triton: TritonAddresses, end: str
) -> None:
    address = {"http": triton.http, "grpc": triton.grpc}[end.split()[0]]
    arrays = inputs_of(compiled["perceptron"], 4)
    want = compiled["perceptron"].explain(arrays)
    gate = np.array([[True], [False], [False], [True]])
    answer = await infer(end, address, "perceptron", {**arrays, "explain": gate})
    assert np.array_equal(answer["explained"], gate)
    assert_agree(answer, {"y": want["y"]})
    for name in want.keys() - {"y", "explained"}:
        assert not answer[name][~gate[:, 0]].any()
    for name in want.keys() - {"y", "explained", GAP}:
        assert_agree({name: answer[name][gate[:, 0]]}, {name: want[name][gate[:, 0]]})


@pytest.mark.parametrize("server", GATEWAYS)
async def test_predictions_and_explanations_at_once(
    compiled: dict[str, Compiled], servers: Servers, server: str
) -> None:
    """Triton may put them into one batch: each answer is the one it would be alone."""
    calls, wants = [], []
    for i in range(24):
        arrays = {"x": rows(1 + i % 3, 5, seed=100 + i)}
        name = "perceptron_explain" if i % 2 else "perceptron"
        want = dict(compiled["perceptron"].explain(arrays))
        wants.append({k: v for k, v in want.items() if k != "explained" and (i % 2 or k == "y")})
        calls.append(infer("grpc aio", servers[server]["grpc"], name, arrays))
    for got, want in zip(await asyncio.gather(*calls), wants, strict=True):
        assert list(got) == list(want)
        assert_agree(got, {name: value for name, value in want.items() if name != GAP})


@pytest.mark.parametrize("server", GATEWAYS)
async def test_more_rows_than_a_batch_holds(
    compiled: dict[str, Compiled], servers: Servers, server: str
) -> None:
    arrays = inputs_of(compiled["perceptron"], 150)
    want = dict(compiled["perceptron"].explain(arrays))
    for name, outputs in (("perceptron", ["y"]), ("perceptron_explain", ["y", "x_attributions"])):
        got = await infer("http", servers[server]["http"], name, arrays, outputs)
        assert_agree(got, {output: want[output] for output in outputs})
