"""Sizes that exporters compute in the graph: constant where they do not depend on the batch."""

import io
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from rationale import AttnLrp, DeepShap, Gradient, compile_model
from rationale.lowering.inference import infer
from rationale.lowering.sizes import fold_sizes
from rationale.methods.engine import Method
from tests.compiler.models import parsed, rows
from tests.models.transformers import drawn, heads, merge
from tests.tolerances import COMPLETE_32, PARITY_32

SEQUENCE, EMBEDDING, HEAD = 7, 12, 4
DATA = rows(5, SEQUENCE, EMBEDDING)


class Attention(nn.Module):
    """PyTorch's own attention, over heads whose sizes it reads from x; the last place is classified."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.qkv, self.head = nn.Linear(EMBEDDING, 3 * EMBEDDING), nn.Linear(EMBEDDING, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(projection, HEAD) for projection in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.head(merge(y)[:, -1])


def by_torch_export(module: nn.Module, fixed: bool) -> onnx.ModelProto:
    row = torch.from_numpy(DATA[:1] if fixed else DATA[:2])
    batch = {} if fixed else {"dynamic_shapes": ({0: torch.export.Dim("N")},)}
    names = {"input_names": ["x"], "output_names": ["y"], "verbose": False}
    return torch.onnx.export(module, (row,), dynamo=True, opset_version=18, **names, **batch).model_proto


def by_torchscript(module: nn.Module, fixed: bool) -> onnx.ModelProto:
    row = torch.from_numpy(DATA[:1] if fixed else DATA[:2])
    batch = {} if fixed else {"dynamic_axes": {"x": {0: "N"}, "y": {0: "N"}}}
    names = {"input_names": ["x"], "output_names": ["y"], "opset_version": 17}
    buffer = io.BytesIO()
    torch.onnx.export(module, (row,), buffer, dynamo=False, **names, **batch)
    return onnx.load_model_from_string(buffer.getvalue())


@pytest.mark.full
@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.full), True])
def test_attention_as_pytorch_exports_it(causal: bool) -> None:
    """Four exports of one module are explained alike: sizes known, sizes computed, batch fixed or not."""
    module = drawn(Attention(causal))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [
            export(module, fixed) for export in (by_torch_export, by_torchscript) for fixed in (True, False)
        ]
    assert any(n.op_type == "Shape" for n in models[1].graph.node)
    assert any(n.op_type == "Slice" for n in models[2].graph.node)
    with torch.no_grad():
        y = module(torch.from_numpy(DATA[3:])).numpy()
    methods: list[Method] = [DeepShap(DATA[:3]), Gradient(), AttnLrp()]
    for method in methods:
        answers = [compile_model(model, method, targets=[1]).explain(DATA[3:]) for model in models]
        for answer in answers:
            want = answers[0]["x_attributions"]
            assert np.abs(want).max() > 0
            assert np.abs(answer["x_attributions"] - want).max() <= PARITY_32 * np.abs(want).max()
            assert np.abs(answer["y"] - y).max() <= PARITY_32 * np.abs(y).max()
    gap = compile_model(models[3], methods[0], targets=[1]).explain(DATA[3:])["completeness_gap"]
    assert np.abs(gap).max() <= COMPLETE_32 * np.abs(y).max()


def folded(graph: str) -> dict[str, list[int]]:
    """The constants after one round, by name."""
    model = ir.from_proto(parsed(graph))
    fold_sizes(model)
    return {name: v.const_value.numpy().tolist() for name, v in model.graph.initializers.items()}


def test_what_depends_on_the_batch_stays() -> None:
    constants = folded(
        """g (float[N, 6, 4] x) => (float[N, 6, 4] y, int64[1] rest, int64[1] half, int64[2] inner) {
            size = Shape (x)
            inner = Shape <start = 1> (x)
            first = Constant <value_ints = [0]> ()
            last = Constant <value_ints = [-1]> ()
            four = Constant <value_ints = [4]> ()
            columns = Gather (size, last)
            rest = Div (columns, four)
            batch = Gather (size, first)
            half = Div (batch, four)
            y = Identity (x)
        }"""
    )
    assert constants["rest"] == [1]
    assert constants["inner"] == [6, 4]
    assert not {"half", "batch"} & set(constants)


def test_a_number_of_elements() -> None:
    constants = folded(
        """g (float[N, 6] x) => (int64 a, int64 b) {
            a = Size (x)
            w = Constant <value_floats = [1.0, 2.0, 3.0]> ()
            b = Size (w)
        }"""
    )
    assert constants["b"] == 3
    assert "a" not in constants


@pytest.mark.parametrize("columns", [4, 97])
def test_a_size_that_some_batches_alone_have_stays(columns: int) -> None:
    """x of 2 rows has no lines of 97, and x of 97 rows none of 4."""
    constants = folded(
        f"""g (float[N, 6] x) => (float[M, {columns}] y) <int64[2] lines = {{-1, {columns}}}> {{
            l = Reshape (x, lines)
            size = Shape (l)
            t = Tanh (l)
            y = Reshape (t, size)
        }}"""
    )
    assert "size" not in constants


def test_a_shape_follows_from_sizes_that_are_computed() -> None:
    model = ir.from_proto(
        parsed(
            """g (float[N, 6] x) => (float[A, B] y) <int64[1] six = {6}, float[1, 1] w = {2}> {
                n = Shape <end = 1> (x)
                target = Concat <axis = 0> (n, six)
                y = Expand (w, target)
            }"""
        )
    )
    assert infer(model, 5)["y"] == ((5, 6), ir.DataType.FLOAT)


def test_what_is_computed_asks_for_another_round() -> None:
    text = "g (float[N, 6] x) => (float[N, 6] y, int64[1] size) { y = Relu (x) size = Shape <start = 1> (x) }"
    model = ir.from_proto(parsed(text))
    assert fold_sizes(model)
    assert not fold_sizes(model)


def test_a_graph_without_sizes_is_left_alone() -> None:
    model = ir.from_proto(parsed("g (float[N, 6] x) => (float[N, 6] y) { y = Relu (x) }"))
    assert not fold_sizes(model)


@pytest.mark.parametrize("other", ["z = ConstantOfShape (t)", "z = Expand (nothing, t)"])
def test_a_target_that_something_else_reads_too_keeps_its_rows(other: str) -> None:
    """torch.zeros(x.shape) makes such a shape: −1 stands for the rows in a Reshape alone."""
    graph = f"""g (float[N, 2, 3] x) => (float[N, 1] y)
        <int64[1] six = {{6}}, float[1] nothing = {{0}}, float[6, 1] w = {{1, 2, 3, 4, 5, 6}}> {{
            n = Shape <end = 1> (x)
            t = Concat <axis = 0> (n, six)
            flat = Reshape (x, t)
            {other}
            sum = Add (flat, z)
            y = MatMul (sum, w)
        }}"""
    data = rows(4, 2, 3)
    answer = compile_model(parsed(graph), Gradient(times_input=True)).explain(data)
    np.testing.assert_allclose(answer["y"][:, 0], data.reshape(4, 6) @ np.arange(1, 7), rtol=1e-5)
    assert not {"t"} & set(folded(graph))
