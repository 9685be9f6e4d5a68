"""Stated shapes are the shapes that values have, whatever the number of rows."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from rationale import AttnLrp, DeepShap, Deployment, ExpectedGradients, Gradient, Lrp, compile_model
from rationale.methods.engine import Method
from tests.compiler.models import FEATURES, cnn, mlp, parsed, rows, two_inputs

IMAGE = (2, 6, 8)
SYMBOL = "·N"
METHODS: dict[str, Method] = {
    "deepshap": DeepShap(rows(4, *IMAGE)),
    "expected gradients": ExpectedGradients(rows(4, *IMAGE), samples=6),
    "gradient": Gradient(),
    "lrp": Lrp(),
    "attnlrp": AttnLrp(),
}
Shape = list[int | str]


def stated(graph: onnx.GraphProto) -> dict[str, Shape]:
    """By value; a dimension that is not known is an empty string."""
    return {
        v.name: [
            d.dim_value if d.HasField("dim_value") else d.dim_param for d in v.type.tensor_type.shape.dim
        ]
        for v in graph.value_info
        if v.type.tensor_type.HasField("shape")
    }


def shape_at(shape: Shape, count: int) -> Shape:
    """With so many rows."""
    numbers = {d: int(d.removesuffix(SYMBOL)) if d != "N" else 1 for d in shape if isinstance(d, str) and d}
    return [count * numbers[d] if isinstance(d, str) and d else d for d in shape]


def every_value(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """What every node of the main graph makes."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    output_names = {v.name for v in shown.graph.output}
    for node in model.graph.node:
        shown.graph.output.extend(
            onnx.ValueInfoProto(name=o) for o in node.output if o and o not in output_names
        )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    yield from zip(names, session.run(names, dict(inputs)), strict=True)


def check(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], *, known_share: float) -> None:
    """Shapes hold for each of several numbers of rows, and a share of values has one."""
    shapes = stated(model.graph)
    for count in (1, 3):
        repeated = {name: np.resize(array, (count, *array.shape[1:])) for name, array in inputs.items()}
        values = dict(every_value(model, repeated))
        edges = {o.name for o in model.graph.output}  # whose shapes are the interface's
        inner = {name: value.shape for name, value in values.items() if name not in edges}
        assert {name: list(shape) for name, shape in inner.items() if name in shapes} == {
            name: shape_at(shapes[name], count) for name in inner if name in shapes
        }
        assert len(inner.keys() & shapes) >= known_share * len(inner)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_of_images(method: Method) -> None:
    check(compile_model(cnn(), method).model, {"x": rows(1, *IMAGE)}, known_share=1.0)


def test_of_all_targets() -> None:
    model = compile_model(mlp(), DeepShap(rows(4, FEATURES)), targets="all").model
    shapes = stated(model.graph)
    assert any(isinstance(d, str) and d.endswith(SYMBOL) for shape in shapes.values() for d in shape)
    check(model, {"x": rows(1, FEATURES)}, known_share=1.0)


def test_of_two_inputs() -> None:
    model = two_inputs()
    inputs = {
        v.name: rows(1, *(d.dim_value for d in v.type.tensor_type.shape.dim[1:])) for v in model.graph.input
    }
    check(compile_model(model, Gradient()).model, inputs, known_share=1.0)


def test_a_name_for_the_batch_is_no_matter() -> None:
    source = parsed("t (float[batch, 3] x) => (float[batch, 3] y) { a = Tanh(x) y = Softmax(a) }")
    check(compile_model(source, DeepShap(rows(2, 3))).model, {"x": rows(1, 3)}, known_share=1.0)


def test_inside_a_scan() -> None:
    """References in chunks: the body's values too."""
    whole = compile_model(cnn(), DeepShap(rows(64, *IMAGE)))
    assert whole.manifest.memory is not None
    budget = whole.manifest.memory.needed // 3
    chunked = compile_model(
        cnn(), DeepShap(rows(64, *IMAGE)), deployment=Deployment(memory_budget=budget)
    ).model
    (scan,) = (n for n in chunked.graph.node if n.op_type == "Scan")
    body = next(a.g for a in scan.attribute if a.name == "body")
    shapes, results = stated(body), [o for n in body.node for o in n.output]
    assert sum(name in shapes for name in results) > len(results) / 2
    check(chunked, {"x": rows(1, *IMAGE)}, known_share=0.5)


def test_behind_a_gate_rows_are_those_that_ask() -> None:
    model = compile_model(cnn(), DeepShap(rows(4, *IMAGE)), deployment=Deployment(one_shot=True)).model
    (gate,) = (n for n in model.graph.node if n.op_type == "If")
    branch = next(a.g for a in gate.attribute if a.name == "then_branch")
    names = {d for shape in stated(branch).values() for d in shape if isinstance(d, str)}
    assert {"asking", "4·asking"} <= names
    assert not any("N" in name for name in names)


def test_an_open_length_leaves_shapes_open() -> None:
    source = parsed("t (float[batch, seq, 3] x) => (float[batch, seq, 3] y) { y = Tanh(x) }")
    graph = compile_model(source, Gradient(), sizes={"seq": (1, 8)}, targets=[0]).model
    assert stated(graph.graph).keys().isdisjoint(o for n in graph.graph.node for o in n.output)
