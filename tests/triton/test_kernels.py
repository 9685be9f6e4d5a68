"""Operators that a kernel library computes, served by Triton: the library as config.pbtxt names it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rationale import DeepShap, Gradient, compile_model
from scripts.triton.serve import TritonAddresses
from tests.compiler.models import rows
from tests.kernels import LIBRARY, declare, network, own_rules, predict, slope
from tests.service.child import both_ends
from tests.triton.clients import infer
from tests.triton.conftest import StartTriton

X, REFERENCES = rows(5, 3), rows(4, 3, seed=1)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    with own_rules():
        declare()
        compile_model(network(), DeepShap(REFERENCES), custom_ops=[LIBRARY]).write(folder, "leaky")
        compile_model(network(), Gradient(), custom_ops=[LIBRARY]).write(folder, "slope")
    return folder


@pytest.fixture(scope="module")
def triton(repository: Path, start_triton: StartTriton) -> Iterator[TritonAddresses]:
    with start_triton(repository) as at:
        yield at


async def test_triton_answers_with_the_kernels(triton: TritonAddresses) -> None:
    plain = await infer("http", triton.http, "leaky", {"x": X})
    np.testing.assert_allclose(plain["y"], predict(X), rtol=1e-5, atol=1e-6)
    answer = await infer("http", triton.http, "leaky_explain", {"x": X})
    risen = answer["explained_value"] - answer["base_value"]
    np.testing.assert_allclose(answer["x_attributions"].sum(-1), risen, atol=1e-5)
    slopes = await infer("grpc", triton.grpc, "slope_explain", {"x": X})
    np.testing.assert_allclose(slopes["x_attributions"][:, 0], slope(X), rtol=1e-5, atol=1e-6)


@pytest.mark.full
async def test_a_gateway_before_it_loads_no_library(repository: Path, triton: TritonAddresses) -> None:
    with both_ends("--repository", str(repository), "--triton", triton.grpc) as ends:
        answer = await infer("http", ends["http"], "slope_explain", {"x": X})
    np.testing.assert_allclose(answer["x_attributions"][:, 0], slope(X), rtol=1e-5, atol=1e-6)
