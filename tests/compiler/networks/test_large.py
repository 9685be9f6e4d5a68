"""Models whose weights lie in a file beside them; above 2 GB protobuf cannot hold them in one piece."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from rationale import Compiled, DeepShap, Deployment, compile_model
from rationale.artifact.entry import open_entry
from rationale.errors import CheckFailedError
from rationale.graph.runtime import session
from tests.compiler.models import parsed, rows
from tests.tolerances import COMPLETE_32, PARITY_32

CHANNELS, PATCH, IMAGE = 2, 16, 48  # a patch embedding is walked back in 16² phases: a Split into as many
ALL = 10**9  # bytes: a budget for all references at once
WIDTH, FEATURES, CLASSES = 17_000, 6, 3  # two matrices of 1.16 GB each


def _save(path: Path) -> None:
    rng = np.random.default_rng(0)
    square = rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(np.sqrt(WIDTH))
    weights = {
        "first": rng.standard_normal((FEATURES, WIDTH), dtype=np.float32),
        "second": square,
        "third": square[:, ::-1],
        "last": rng.standard_normal((WIDTH, CLASSES), dtype=np.float32) / np.float32(np.sqrt(WIDTH)),
    }
    nodes, value = [], "x"
    for name in weights:
        after = "y" if name == "last" else f"{name}_activation"
        nodes.append(helper.make_node("MatMul", [value, name], [f"{name}_product"], f"{name}_layer"))
        nodes.append(helper.make_node("Tanh" if name == "third" else "Relu", [f"{name}_product"], [after]))
        value = after
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=1024)


def explained(budget: int = ALL) -> Compiled:
    """y [N, 3], the mean over the patches of an image."""
    text = f"""patches (float[N, {CHANNELS}, {IMAGE}, {IMAGE}] x) => (float[N, 3] y) {{
        c = Conv <strides = [{PATCH}, {PATCH}]> (x, k)
        t = Tanh (c)
        p = GlobalAveragePool (t)
        y = Flatten (p)
    }}"""
    model = parsed(text, {"k": rows(3, CHANNELS, PATCH, PATCH, seed=2) / PATCH})
    references, deployment = rows(5, CHANNELS, IMAGE, IMAGE), Deployment(memory_budget=budget)
    return compile_model(model, DeepShap(references), targets=[2, 0], deployment=deployment)


def splits(model: onnx.ModelProto) -> list[int]:
    return [len(n.output) for n in model.graph.node if n.op_type == "Split"]


@pytest.mark.full
@pytest.mark.parametrize("budget", [ALL, 1_000_000], ids=["whole", "in chunks"])
def test_sizes_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    """Shape inference reads no other: neither of what is held while compiling, nor of what is written."""
    x = rows(2, CHANNELS, IMAGE, IMAGE, seed=1)
    expected = explained().explain(x)["x_attributions"]
    for limit in ("MAPPED_BYTES", "EXTERNAL_BYTES"):
        monkeypatch.setattr(session, limit, 1)
    compiled = explained(budget=budget)
    assert (compiled.manifest.memory.chunk is None) == (budget == ALL)
    compiled.write(tmp_path, "m")
    assert (tmp_path / "m_explain/1/model.onnx.data").is_file()
    for answer in (compiled.explain(x), open_entry(tmp_path, "m").explain(x)):
        difference = np.abs(answer["x_attributions"] - expected)
        assert difference.max() <= PARITY_32 * np.abs(expected).max()


@pytest.mark.full
def test_a_split_into_many_parts() -> None:
    """Its sizes, of 8 bytes each, decide shapes as few do."""
    parts = [f"s{i}" for i in range(1100)]
    split = parsed(
        f"""split (float[N, 2200] x) => (float[N, 2] y) {{
            {", ".join(parts)} = Split <axis = 1> (x, sizes)
            c = Concat <axis = 1> ({", ".join(reversed(parts))})
            z = MatMul (c, w)
            y = Tanh (z)
        }}""",
        {"sizes": np.full(1100, 2), "w": rows(2200, 2, seed=3) / 50},
    )
    answer = compile_model(split, DeepShap(rows(3, 2200)), targets="all").explain(rows(2, 2200, seed=1))
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * difference


@pytest.mark.full
def test_a_graph_of_ours_that_does_not_load_is_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAPPED_BYTES", 1)
    monkeypatch.setattr(session, "SIZES_BYTES", 1)
    with pytest.raises(CheckFailedError, match=r"^ONNX Runtime [\d.]+ .*external tensors.*Rationale"):
        explained()


class Patches(nn.Module):
    """A network of 57 MB that embeds 16 × 16 patches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 768, 16, 16)
        self.mix = nn.Sequential(nn.Linear(768, 9000), nn.GELU(), nn.Linear(9000, 768), nn.LayerNorm(768))
        self.head = nn.Linear(768, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(x).flatten(2).transpose(1, 2)).mean(1))


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False], ids=["torch.export", "TorchScript"])
def test_a_network_of_pytorchs_above_the_limit(dynamo: bool) -> None:
    torch.manual_seed(0)
    network, x = Patches().eval(), rows(5, 3, 96, 96)
    buffer, options = io.BytesIO(), {"input_names": ["x"], "output_names": ["y"]}
    batch: dict[str, Any] = {"dynamic_axes": {"x": {0: "N"}, "y": {0: "N"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both exporters warn about themselves
        if dynamo:
            batch = {"dynamic_shapes": ({0: torch.export.Dim("N")},), "verbose": False}
        program = torch.onnx.export(
            network, (torch.from_numpy(x[:2]),), None if dynamo else buffer, dynamo=dynamo, **options, **batch
        )
    model = program.model_proto if dynamo else onnx.load_model_from_string(buffer.getvalue())
    compiled = compile_model(model, DeepShap(x[:3]), targets=[4, 1])
    assert splits(compiled.model) == [256]
    answer = compiled.explain(x[3:])
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * difference


@pytest.mark.slow
def test_a_model_over_two_gigabytes(tmp_path: Path) -> None:
    """Compiled, written and read back: takes about two minutes and 12 GB of memory."""
    _save(tmp_path / "model.onnx")
    assert (tmp_path / "weights").stat().st_size > 2**31
    compiled = compile_model(
        tmp_path / "model.onnx",
        DeepShap(rows(3, FEATURES)),
        targets=[0],
        deployment=Deployment(memory_budget=16_000_000_000),
    )
    compiled.write(tmp_path / "repository", "large")
    answer = open_entry(tmp_path / "repository", "large").explain(rows(2, FEATURES, seed=1))
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert difference > 0
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * difference
