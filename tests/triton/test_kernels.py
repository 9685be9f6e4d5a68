"""Operators that a kernel library computes, served by Triton: the library as config.pbtxt names it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException

from rationale import DeepShap, Gradient, compile_model
from rationale.artifact.finishing.fused import DOMAIN
from scripts.triton.fetch import DEFAULT_FOLDER, read_stamp
from scripts.triton.serve import TritonAddresses
from tests.compiler.models import FEATURES, mlp, rows
from tests.fused_library import library
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
    """The server, whose Python has to be this one: the library is an extension module of this Python."""
    runs, this = read_stamp(DEFAULT_FOLDER)["python"].rpartition(".")[0], "{}.{}".format(*sys.version_info)
    if runs != this:
        pytest.skip(f"the library of onnxruntime-extensions is for Python {this}, and Triton runs {runs}")
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


@pytest.mark.full
@pytest.mark.parametrize(
    "method", [DeepShap(rows(4, FEATURES, seed=1)), Gradient()], ids=["deepshap", "gradient"]
)
async def test_the_same_entry_answers_with_and_without_the_library_for_chains(
    method: DeepShap | Gradient, start_triton: StartTriton, tmp_path: Path
) -> None:
    """A third copy, whose chains nobody can read, shows that the library computes them."""
    compiled = compile_model(mlp(last="Softmax"), method)
    for name in ("stock", "kernels", "unreadable"):
        compiled.write(tmp_path, name)
    line = f'model_operations {{ op_library_filename: "{library()}" }}\n'  # as docs/kernels.md says
    for name in ("kernels_explain", "unreadable_explain"):
        with (tmp_path / name / "config.pbtxt").open("a") as config:
            config.write(line)
    _make_unreadable(tmp_path / "unreadable_explain")
    x = rows(6, FEATURES, seed=2)
    with start_triton(tmp_path) as at:
        expected = await infer("http", at.http, "stock_explain", {"x": x})
        for end, address in (("http", at.http), ("grpc", at.grpc)):
            answer = await infer(end, address, "kernels_explain", {"x": x})
            assert set(answer) == set(expected)
            for output, value in expected.items():
                np.testing.assert_allclose(answer[output], value, atol=1e-6, err_msg=output)
        with pytest.raises(InferenceServerException, match="rationale:Fused cannot read"):
            await infer("http", at.http, "unreadable_explain", {"x": x})


def _make_unreadable(entry: Path) -> None:
    """Change the programs of an entry's chains, and leave out its warm-up, which would fail."""
    path = entry / "1" / "model.onnx"
    model = onnx.load(path)
    chains = [node for node in model.graph.node if node.domain == DOMAIN]
    assert chains
    for node in chains:
        node.attribute[0].s = b"Nonsense 0"
    onnx.save(model, path)
    config = text_format.Parse((entry / "config.pbtxt").read_text(), ModelConfig())
    config.ClearField("model_warmup")
    (entry / "config.pbtxt").write_text(text_format.MessageToString(config))
