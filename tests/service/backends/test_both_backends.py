"""One repository, in ONNX Runtime here and in a real Triton: the same answers, whoever asks."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rationale_service.app import create_app, create_backend
from rationale_service.settings import Settings
from scripts.triton.serve import TritonAddresses
from tests.service import handmade, patient
from tests.service.clients.test_grpc import CASES, assert_equal
from tests.service.conftest import serving
from tests.triton import clients
from tests.triton.conftest import StartTriton, start_triton

__all__ = ["start_triton"]  # a fixture, found by its name

REQUESTED = "score score_explain slope_explain pair pair_explain image_explain typed vector open".split()
assert_same = partial(assert_equal, rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module")
def triton(repository: Path, start_triton: StartTriton) -> Iterator[TritonAddresses]:
    with start_triton(repository) as server:
        yield server


@pytest.fixture(scope="module")
def routed(repository: Path, triton: TritonAddresses) -> Iterator[str]:
    """The gateway with Triton behind it."""
    settings = Settings(repository=repository, triton=triton.grpc)
    with serving(create_app(settings, create_backend(settings))) as address:
        yield address


async def ask(end: str, address: str, model: str, rows: slice = slice(None)) -> clients.Arrays:
    inputs, _ = CASES[model]
    return await clients.infer(end, address, model, {name: array[rows] for name, array in inputs.items()})


@pytest.mark.parametrize("model", REQUESTED)
async def test_embedded_and_triton_agree(address: str, routed: str, model: str) -> None:
    assert_same(await ask("http", address, model), await ask("http", routed, model))


@pytest.mark.parametrize("model", REQUESTED)
async def test_the_same_call_fits_the_gateway_and_triton(
    address: str, triton: TritonAddresses, model: str
) -> None:
    rows = slice(0, 2)  # within every entry's batch size, which Triton does not split
    ours = await ask("http", address, model, rows)
    assert_same(ours, await ask("http", triton.http, model, rows))
    assert_same(ours, await ask("grpc", triton.grpc, model, rows))


def test_decisions_over_triton(address: str, routed: str) -> None:
    instances = [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]
    ours, theirs = (
        patient.post(f"http://{address_}/v1/models/score:decide", json={"instances": instances}).json()[
            "decisions"
        ]
        for address_ in (address, routed)
    )
    for first, other in zip(ours, theirs, strict=True):
        assert other | {"id": first["id"]} == first  # small whole numbers: nothing rounds
    assert {decision["decision"] for decision in theirs} == {"approve", "decline"}


def test_explanations_by_name_over_triton(address: str, routed: str) -> None:
    body = {"instances": [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]}
    here, there = (
        patient.post(f"http://{base}/v1/models/score:explain", json=body).json() for base in (address, routed)
    )
    np.testing.assert_allclose(there["predictions"], handmade.predict(handmade.X), rtol=1e-6)
    for i, row in enumerate(there["explanations"]):
        for t, target in enumerate(row["targets"]):
            values = list(target["attributions"].values())
            np.testing.assert_allclose(values, handmade.attribute(handmade.X)[i, t], rtol=1e-6)
            same = here["explanations"][i]["targets"][t]
            assert target["attributions"] == pytest.approx(same["attributions"], rel=1e-6, abs=1e-6)


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
    here, there = (patient.post(f"http://{base}{path}", json=body) for base in (address, routed))
    assert (here.status_code, there.status_code) == (status, status)
    assert here.json() == there.json()


def test_readiness_follows_triton(routed: str) -> None:
    assert patient.get(f"http://{routed}/v2/health/ready").json() == {"ready": True}
    assert patient.get(f"http://{routed}/v2/models/score/ready").status_code == 200
