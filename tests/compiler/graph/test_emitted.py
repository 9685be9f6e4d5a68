"""The combined graph holds no node that could be left out: each costs a microsecond or two."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from rationale import DeepShap, compile_model
from rationale.graph.tensor import Emitter
from rationale.rules.rule import find_rule
from tests.compiler.models import CLASSES, FEATURES, HIDDEN, cnn, mlp, parsed, rows

MLP = mlp(last="Identity")


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave chains of operators in the graph: see tests/compiler/artifact/kernels/test_fused.py."""
    monkeypatch.setattr("rationale.artifact.finishing.finish.fuse_chains", lambda *_: None)


def graph(model: onnx.ModelProto, *row: int) -> onnx.GraphProto:
    return compile_model(model, DeepShap(rows(3, *row, seed=1)), targets="predicted").model.graph


@pytest.mark.parametrize("transposed", [False, True])
def test_the_predicted_row_of_the_last_layer_is_taken_by_its_number(transposed: bool) -> None:
    """And not by a product with a one-hot row, which would read the whole matrix."""
    model = onnx.ModelProto()
    model.CopyFrom(MLP)
    last = next(n for n in reversed(model.graph.node) if n.op_type == "Gemm")
    weights = next(i for i in model.graph.initializer if i.name == last.input[1])
    if transposed:
        last.attribute.append(onnx.helper.make_attribute("transB", 1))
        weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights).T.copy(), weights.name))
    compiled = graph(model, FEATURES)
    assert not {"Equal", "OneHot"} & {n.op_type for n in compiled.node}
    constants = {i.name: list(i.dims) for i in compiled.initializer}
    assert [CLASSES, HIDDEN] in [constants.get(n.input[0]) for n in compiled.node if n.op_type == "Gather"]


def test_a_row_that_is_taken_is_the_product() -> None:
    """The same numbers as with each class asked for by its index."""
    x, references = rows(8, FEATURES, seed=5), DeepShap(rows(3, FEATURES, seed=1))
    predicted = compile_model(MLP, references, targets="predicted").explain(x)
    every = compile_model(MLP, references, targets="all").explain(x)
    chosen = predicted["y"].argmax(axis=1)
    assert len(set(chosen)) > 1
    np.testing.assert_allclose(
        predicted["x_attributions"][:, 0], every["x_attributions"][np.arange(8), chosen], atol=1e-6
    )


@pytest.mark.parametrize(("model", "row"), [(MLP, (FEATURES,)), (cnn(), (2, 6, 8))], ids=["mlp", "cnn"])
def test_nothing_is_reshaped_twice(model: onnx.ModelProto, row: tuple[int, ...]) -> None:
    compiled = graph(model, *row)
    reshaped = {n.output[0] for n in compiled.node if n.op_type == "Reshape"}
    assert reshaped
    assert not any(n.input[0] in reshaped for n in compiled.node if n.op_type == "Reshape")
    assert "Identity" not in {n.op_type for n in compiled.node}


@pytest.mark.parametrize("last", ["Softmax", "Sigmoid"])
def test_numbers_have_as_many_axes_as_what_they_meet(last: str) -> None:
    """With fewer, ONNX Runtime broadcasts them over one short row after the other."""
    compiled = graph(mlp(last=last), FEATURES)
    ranks = {i.name: len(i.dims) for i in compiled.initializer if numpy_helper.to_array(i).size == 1}
    rank_of = {v.name: len(v.type.tensor_type.shape.dim) for v in compiled.value_info}
    met = [
        (ranks[n.input[1]], rank_of[n.input[0]])
        for n in compiled.node
        if n.op_type in {"Add", "Sub", "Mul", "Div", "Max"} and n.input[1] in ranks and n.input[0] in rank_of
    ]
    over_references = [pair for pair in met if pair[1] == 4]  # [N, K, 1, C]
    assert over_references
    assert all(number == tensor for number, tensor in over_references)


def test_of_a_short_softmax_all_secants_are_taken_at_once() -> None:
    """Over rows that are as long as there are references: [N, C + C + 1, K]."""
    compiled = graph(mlp(), FEATURES)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in compiled.value_info}
    secants = [shapes[n.output[0]] for n in compiled.node if n.op_type == "Tanh"]
    assert secants == [[0, 2 * CLASSES + 1, 3]]
    assert not any(n.op_type == "Where" for n in compiled.node)


def test_a_layer_with_a_bias_is_one_node() -> None:
    """Whether the bias has one axis or two."""
    model = onnx.ModelProto()
    model.CopyFrom(MLP)
    bias = next(i for i in model.graph.initializer if i.name == "b1")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias)[None], "b1"))
    for source in (MLP, model):
        compiled = compile_model(source, DeepShap(rows(3, FEATURES, seed=1)), targets=[0]).model.graph
        assert [n.op_type for n in compiled.node if n.op_type in ("Gemm", "MatMul")].count("Gemm") >= 2
        assert not any(n.op_type == "MatMul" and n.name.startswith("forward") for n in compiled.node)


# -- means that are walked before a layer ---------------------------------------------------------------

POINTWISE = {
    "1 by 1": ((1, 1), {}, True),
    "1 by 1, said": ((1, 1), {"strides": [1, 1], "pads": [0, 0, 0, 0]}, True),
    "3 by 1": ((3, 1), {}, False),
    "3 by 3, said": ((3, 3), {"strides": [1, 1], "pads": [0, 0, 0, 0]}, False),
    "strides": ((1, 1), {"strides": [1, 2]}, False),
    "pads": ((1, 1), {"pads": [0, 0, 1, 0]}, False),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_a_convolution_that_treats_each_place_alone(name: str) -> None:
    kernel, how, alone = POINTWISE[name]
    rule = find_rule("Conv")
    assert rule is not None
    assert rule.layer_form is not None
    op = Emitter(ir.Graph([], [], nodes=[]), 21, ir.DataType.FLOAT)
    weight = op.constant(np.ones((4, 2, *kernel), np.float32))
    layer = rule.layer_form(op, weight, None, group=1, **how)
    assert layer is not None
    assert layer.placewise is alone


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_mean_is_walked_before_a_layer_that_treats_each_place_alone(kernel: int) -> None:
    """The multipliers of a 1 by 1 convolution before a mean are the same at each place: one is computed."""
    pads = kernel // 2
    text = f"""g (float[N, 2, 6, 8] x) => (float[N, 3] y) {{
        r = Relu (x)  c = Conv <pads = [{pads}, {pads}, {pads}, {pads}]> (r, k)
        m = GlobalAveragePool (c)  y = Flatten (m)
    }}"""
    model = parsed(text, {"k": rows(3, 2, kernel, kernel, seed=4)})
    references, x = rows(3, 2, 6, 8), rows(2, 2, 6, 8, seed=5)
    compiled = compile_model(model, DeepShap(references), targets="all")
    weights = [
        n for n in compiled.model.graph.node if n.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm")
    ]
    backward = [n for n in weights if n.name.startswith("backward")]
    shapes = onnx.shape_inference.infer_shapes(compiled.model, data_prop=True)
    dims = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim][-2:] for v in shapes.graph.value_info}
    if kernel == 1:
        assert not any(dims.get(n.output[0]) == [6, 8] for n in backward)
    answer = compiled.explain(x)
    change = np.maximum(x, 0)[:, None] - np.maximum(references, 0)[None]
    if kernel == 1:  # R = mean over places of w·(relu x − relu r)
        held = numpy_helper.to_array(next(i for i in model.graph.initializer if i.name == "k"))[:, :, 0, 0]
        want = np.einsum("tc,nkchw->ntchw", held, change) / 3 / 48
        np.testing.assert_allclose(answer["x_attributions"], want, atol=1e-6)
    assert np.abs(answer["completeness_gap"]).max() < 1e-5
