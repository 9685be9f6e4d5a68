"""What depends on constants alone, and constants as a graph holds them."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rationale.graph.nodes import constant_nodes, extract, fold_constants, frontier
from rationale.graph.runtime.session import Runner
from rationale.graph.tensor import Emitter
from tests.compiler.models import parsed

W, V = np.float32([1, 2, 4]), np.float32([[2, 0, 1]])
ALWAYS = np.asarray(True)


def folded(body: str, outputs: str = "float[N, 3] y") -> tuple[int, ir.Model]:
    held = {"w": W, "v": V, "always": ALWAYS, "two": np.int64([2]), "unread": W}
    held |= {"top": np.float32(3), "zero": np.int64(0), "zeros": np.int64([0])}
    proto = parsed(f"g (float[N, 3] x) => ({outputs}) {{ {body} }}", held)
    model = ir.from_proto(proto)
    return fold_constants(model), model


def left(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def held(model: ir.Model) -> dict[str, np.ndarray]:
    return {n: v.const_value.numpy() for n, v in model.graph.initializers.items() if v.const_value}


BRANCHES = """If (always) <then_branch = t () => (float[3] p) {{ {then} }},
    else_branch = e () => (float[3] q) {{ q = Constant <value_floats = [1.0, 1.0, 1.0]> () }}>"""
# What is left of the nodes, and how many were folded.
FOLDED: dict[str, tuple[str, int, list[str]]] = {
    "a chain": ("a = Add (w, v) b = Neg (a) y = Mul (x, b)", 2, ["Mul"]),
    "nothing": ("a = Relu (x) y = Mul (a, w)", 0, ["Relu", "Mul"]),
    "behind the input": ("a = Neg (x) b = Neg (w) c = Add (a, b) y = Mul (c, w)", 1, ["Neg", "Add", "Mul"]),
    "chance": ("a = RandomNormal <shape = [3]> () y = Mul (x, a)", 0, ["RandomNormal", "Mul"]),
    "of the size of a constant": (
        "a = RandomUniformLike (w) b = Neg (a) y = Mul (x, b)",
        0,
        ["RandomUniformLike", "Neg", "Mul"],
    ),
    "a list": (
        "s = SequenceConstruct (w, w) a = SequenceAt (s, zero) y = Mul (x, a)",
        0,
        ["SequenceConstruct", "SequenceAt", "Mul"],
    ),
    "a branch that is closed": (
        "a = " + BRANCHES.format(then="p = Constant <value_floats = [1.0, 2.0, 3.0]> ()") + " y = Mul (x, a)",
        1,
        ["Mul"],
    ),
    "a body that is closed": (
        "a = Scan <num_scan_inputs = 1, body = b (float s) => (float k) { k = Neg (s) }> (w) y = Mul (x, a)",
        1,
        ["Mul"],
    ),
    "a body that reads from outside": (
        "n = Relu (x) "
        "a = Scan <num_scan_inputs = 1, body = b (float s) => (float[N, 3] k) { k = Mul (s, n) }> (w) "
        "y = ReduceSum <keepdims = 0> (a, zeros)",
        0,
        ["Relu", "Scan", "ReduceSum"],
    ),
    "a branch that reads from outside": (
        "n = Relu (x) a = " + BRANCHES.format(then="p = Mul (w, w)") + " y = Add (n, a)",
        0,
        ["Relu", "If", "Add"],
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_what_depends_on_constants_alone_is_computed(name: str) -> None:
    body, count, nodes = FOLDED[name]
    done, model = folded(body)
    assert (done, left(model)) == (count, nodes)


def test_values_keep_their_names_and_what_nobody_reads_is_gone() -> None:
    count, model = folded(
        "a = Add (w, v) b = Neg (a) c = Neg (w) y = Mul (x, b) z = Identity (a)",
        "float[N, 3] y, float[1, 3] z, float[3] c",
    )
    assert count == 4
    constants = held(model)
    assert set(constants) == {"b", "c", "z"}
    np.testing.assert_array_equal(constants["b"], -(W + V))
    np.testing.assert_array_equal(constants["z"], W + V)
    np.testing.assert_array_equal(constants["c"], -W)
    assert [v.name for v in model.graph.outputs] == ["y", "z", "c"]
    assert [v.shape for v in model.graph.outputs][1:] == [(1, 3), (3,)]


def test_several_outputs_and_inputs_that_are_left_out() -> None:
    count, model = folded("a, i = TopK (w, two) c = Clip (a, , top) s = ReduceSum (c) y = Mul (x, s)")
    assert count == 3
    np.testing.assert_array_equal(held(model)["s"], 5.0)


def test_a_part_of_a_model_between_two_values() -> None:
    body = "a = Add (x, w) b = Clip (a, , top) c = Mul (b, b) y = Neg (c)"
    proto = parsed(f"g (float[N, 3] x) => (float[N, 3] y) {{ {body} }}", {"w": W, "top": np.float32(3)})
    model = ir.from_proto(proto)
    nodes = list(model.graph)[1:3]
    assert [v.name for v in frontier(nodes)] == ["c"]
    assert [v.name for v in frontier(list(model.graph))] == ["y"]
    part = extract(model, nodes, [nodes[0].inputs[0]], frontier(nodes))
    assert [v.name for v in part.graph.inputs] == ["a"]
    assert set(part.graph.initializers) == {"top"}
    (answer,) = onnx.reference.ReferenceEvaluator(ir.to_proto(part)).run(None, {"a": np.float32([[1, 3, 5]])})
    np.testing.assert_array_equal(answer, [[1, 9, 9]])
    assert left(model) == ["Add", "Clip", "Mul", "Neg"]


def test_a_node_of_what_a_chunk_holds_is_not_folded() -> None:
    chunk = ir.node("Chunk", [], {"axis": "K", "part": 0}, domain="rationale.chunks")
    after = ir.node("Neg", [chunk.outputs[0]])
    assert constant_nodes(ir.Graph([], [after.outputs[0]], nodes=[chunk, after])) == []


# -- constants --------------------------------------------------------------------------------------------


def emitter(**taken: Any) -> Emitter:
    return Emitter(ir.Graph([], [], nodes=[], opset_imports={"": 21}, **taken), 21, ir.DataType.FLOAT)


def test_small_equal_constants_are_one() -> None:
    op = emitter()
    first = op.constant(np.float32([1, 2]))
    assert op.constant(np.float32([1, 2])).value is first.value
    others = [np.float32([[1, 2]]), np.float64([1, 2]), np.float32([2, 1]), np.float32([1, 2]).view(np.int32)]
    assert len({op.constant(a).value for a in others} | {first.value}) == 5
    edge, large = np.zeros(64, np.float32), np.zeros(65, np.float32)
    assert op.constant(edge).value is op.constant(edge).value
    assert op.constant(large).value is not op.constant(large).value
    assert len(op.graph.initializers) == 8
    assert not first.rows
    assert op.row_constant(np.float32([1, 2])).rows


def test_operands_become_tensors_of_the_type_beside_them() -> None:
    op = emitter()
    wide = op.constant(np.float64([1, 2, 3]))
    made = [op.tensor(0.5), op.tensor(2, wide), op.tensor([3, 4]), op.tensor((5,)), op.tensor(np.int8([1]))]
    assert [str(t.dtype) for t in made if t] == ["FLOAT", "DOUBLE", "INT64", "INT64", "INT8"]
    assert [t.shape for t in made if t] == [(), (), (2,), (1,), (1,)]
    assert op.tensor(None) is None
    assert op.tensor(wide) is wide
    assert str(op.array([1, 2], wide).dtype) == "DOUBLE"


def test_names_are_new() -> None:
    x = ir.Value(name="rationale/Neg_1", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    graph = ir.Graph([x], [], nodes=[ir.node("Neg", [x], name="rationale/Split_3")], opset_imports={"": 21})
    op = Emitter(graph, 21, ir.DataType.FLOAT)
    (first,) = op._node("Neg", [x], {})
    parts = op._node("Split", [first], {"axis": 0, "num_outputs": 2, "left_out": None}, outputs=2)
    assert first.name == "rationale/Neg_2"
    assert [v.name for v in parts] == ["rationale/Split_4", "rationale/Split_4.1"]
    node = graph[-1]
    assert node.name == "rationale/Split_4"
    assert set(node.attributes) == {"axis", "num_outputs"}


def test_texts_are_computed_too() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 19, "ai.onnx.ml": 3]>
            g (string[N, 1] x) => (bool[N, 1] y) <int64[1] one = {1}> {
                word = ai.onnx.ml.LabelEncoder <keys_int64s = [1, 2], values_strings = ["a", "b"]> (one)
                y = Equal (x, word)
            }""")
    )
    assert fold_constants(model) == 1
    assert held(model)["word"].tolist() == [b"a"]
    run = Runner(model, optimise=False)
    assert run({"x": np.array([["a"], ["b"]], object)})["y"].tolist() == [[True], [False]]
