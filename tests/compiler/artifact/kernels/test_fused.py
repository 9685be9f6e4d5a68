"""Chains of elementwise operators as functions of the file: what a stock runtime computes stays as it was."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from rationale import (
    AttnLrp,
    DeepShap,
    Deployment,
    Gradient,
    IntegratedGradients,
    compile_model,
)
from rationale.artifact.entry import open_entry
from rationale.artifact.finishing import fused
from rationale.artifact.finishing.fused import DOMAIN, fuse_chains
from rationale.graph.shapes import set_symbolic_shapes
from tests.compiler.models import FEATURES, cnn, mlp, parsed, rows

REFERENCES = rows(4, FEATURES, seed=1)
METHODS: dict[str, Callable[[], Any]] = {
    "deepshap": lambda: DeepShap(REFERENCES),
    "standard error": lambda: DeepShap(REFERENCES, standard_error=True),
    "gradient": Gradient,
    "integrated": lambda: IntegratedGradients(REFERENCES[:1]),
    "attnlrp": AttnLrp,
}


def calls(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the calls of functions, also in subgraphs."""
    inner = [g for n in graph.node for a in n.attribute for g in (a.g, *a.graphs)]
    return [n for n in graph.node if n.domain == DOMAIN] + [c for g in inner for c in calls(g)]


def programs(text: str) -> list[str]:
    """Return the programs of the chains in a graph of which y is the explanation."""
    model = ir.from_proto(parsed(text))
    set_symbolic_shapes(model)
    fuse_chains(model, ())
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return [call.attribute[0].s.decode() for call in calls(proto.graph)]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("last", ["Softmax", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("one_shot", [False, True], ids=["two entries", "one shot"])
def test_a_stock_runtime_answers_bit_for_bit_as_without_functions(
    name: str, last: str, one_shot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATIONALE_KERNELS", "off")
    x, deployment = rows(5, FEATURES, seed=2), Deployment(one_shot=one_shot)
    fused = compile_model(mlp(last=last), METHODS[name](), deployment=deployment)
    assert calls(fused.model.graph)
    monkeypatch.setattr("rationale.artifact.finishing.finish.fuse_chains", lambda *_: None)
    apart = compile_model(mlp(last=last), METHODS[name](), deployment=deployment)
    assert not calls(apart.model.graph)
    assert apart.manifest.measured.nodes == fused.manifest.measured.nodes
    answer, expected = fused.explain(x), apart.explain(x)
    for output in expected:
        np.testing.assert_array_equal(answer[output], expected[output])


def test_references_in_chunks_have_functions_in_the_body() -> None:
    """A Scan's body calls them too."""
    references = rows(40, FEATURES, seed=1)
    whole = compile_model(mlp(), DeepShap(references))
    needed = whole.manifest.memory.needed
    chunked = compile_model(mlp(), DeepShap(references), deployment=Deployment(memory_budget=needed - 1))
    body = next(n for n in chunked.model.graph.node if n.op_type == "Scan").attribute
    assert any(calls(a.g) for a in body)
    x = rows(3, FEATURES, seed=2)
    np.testing.assert_allclose(
        chunked.explain(x)["x_attributions"], whole.explain(x)["x_attributions"], atol=1e-6
    )


def test_without_its_functions_the_graph_is_a_plain_one() -> None:
    compiled = compile_model(mlp(), DeepShap(REFERENCES))
    x = rows(2, FEATURES, seed=2)
    expected = compiled.explain(x)["x_attributions"]
    names = [output.name for output in compiled.model.graph.output]
    evaluator = ReferenceEvaluator(onnx.inliner.inline_local_functions(compiled.model))
    with np.errstate(over="ignore"):
        answer = dict(zip(names, evaluator.run(None, {"x": x}), strict=True))
    np.testing.assert_allclose(answer["x_attributions"], expected, atol=1e-5)


def test_tools_of_onnx_read_it() -> None:
    """The version converter drops functions, so they are inlined first (docs/kernels.md)."""
    compiled = compile_model(mlp(last="Softmax"), DeepShap(REFERENCES))
    onnx.checker.check_model(compiled.model, full_check=True)
    bare = onnx.ModelProto()
    bare.CopyFrom(compiled.model)
    del bare.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(bare, check_type=True, strict_mode=True, data_prop=True)
    known = {value.name for value in inferred.graph.value_info}
    assert {call.output[0] for call in calls(bare.graph)} <= known | {v.name for v in bare.graph.output}
    converted = onnx.version_converter.convert_version(onnx.inliner.inline_local_functions(bare), 22)
    session = ort.InferenceSession(converted.SerializeToString(), providers=["CPUExecutionProvider"])
    x = rows(2, FEATURES, seed=2)
    (answer,) = session.run(["x_attributions"], {"x": x})
    np.testing.assert_allclose(answer, compiled.explain(x)["x_attributions"], atol=1e-6)


@pytest.mark.parametrize(
    "deployment", [Deployment(runtime="openvino"), Deployment(provider="cuda")], ids=["openvino", "cuda"]
)
def test_graphs_for_other_machines_have_none(deployment: Deployment) -> None:
    assert not compile_model(mlp(), DeepShap(REFERENCES), deployment=deployment).model.functions


def test_equal_chains_are_one_function(tmp_path: Any) -> None:
    compiled = compile_model(cnn(), DeepShap(rows(3, 2, 6, 8)), targets=[0])
    assert {f.name for f in compiled.model.functions} == {c.op_type for c in calls(compiled.model.graph)}
    assert not any(f.overload for f in compiled.model.functions)  # ONNX Runtime 1.26 and older know none
    compiled.write(tmp_path, "cnn")
    assert open_entry(tmp_path, "cnn").model.functions


def test_what_the_model_itself_computes_stays() -> None:
    """ONNX Runtime fuses it better by itself."""
    compiled = compile_model(mlp(last="Sigmoid"), DeepShap(REFERENCES))
    producers = {o: n for n in compiled.model.graph.node for o in n.output}
    pending, forward = ["y"], []
    while pending:
        node = producers.get(pending.pop())
        if node is not None:
            forward.append(node.domain)
            pending += node.input
    assert DOMAIN not in forward


X = "network (float[N, 3] x, float[1, 3] r) => (float[N, 3] y) <int64[1] last = {1}, int64[1] first = {0}>"
CHAINS: dict[str, tuple[str, list[str]]] = {
    "one operator": ("y = Sub (x, r)", []),
    "two": ("a = Sub (x, r) y = Mul (a, a)", ["Sub 0 1;Mul 2 2"]),
    "a value read twice": ("a = Sub (x, r) b = Exp (a) y = Add (a, b)", ["Sub 0 1;Exp 2;Add 2 3"]),
    "fewer rows": ("a = Exp (r) b = Neg (a) y = Add (x, b)", ["Exp 0;Neg 1"]),
    "moved elements": (
        "a = Neg (x) b = Transpose <perm = [1, 0]> (a) c = Transpose <perm = [1, 0]> (b) y = Neg (c)",
        [],
    ),
    "a condition": (
        "a = Greater (x, r) b = Cast <to = 1> (a) y = Mul (b, x)",
        ["Greater 0 1;Cast 2;Mul 3 0"],
    ),
    "a choice": ("a = Greater (x, r) b = Not (a) y = Where (b, x, r)", ["Greater 0 1;Not 2;Where 3 0 1"]),
    "an operator without a kernel": ("a = Round (x) b = Neg (a) y = Exp (b)", ["Neg 0;Exp 1"]),
    "a sum of rows": (
        "a = Mul (x, r) s = ReduceSum (a, last) d = Sqrt (s) y = Div (a, d)",
        ["rows 1;Mul 0 1;ReduceSum 2;r.Sqrt 3;Div 2 4"],
    ),
    "a sum that loses its axis": (
        "s = ReduceSum <keepdims = 0> (x, last) t = Unsqueeze (s, last) b = Exp (x) y = Div (b, t)",
        ["Exp 0;Div 2 1"],
    ),
    "a sum of columns": ("a = Mul (x, r) s = ReduceSum (a, first) y = Div (a, s)", []),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str) -> None:
    graph, expected = CHAINS[name]
    assert programs(f"{X} {{ {graph} }}") == expected


def test_rows_of_a_chain_have_one_length() -> None:
    text = """network (float[N, 2, 3] x) => (float[N, 2, 3] y) <int64[1] one = {2}, int64[2] two = {1, 2}> {
        a = Exp (x) s = ReduceSum (a, one) b = Div (a, s) t = ReduceSum (b, two) y = Div (b, t) }"""
    assert programs(text) == ["rows 2;Div 0 1;ReduceSum 2;Div 2 3"]


def test_an_output_in_the_middle_ends_a_chain() -> None:
    nodes = "a = Neg (x) y = Exp (a) b = Abs (y) z = Neg (b)"
    text = f"network (float[N, 3] x) => (float[N, 3] y, float[N, 3] z) {{ {nodes} }}"
    assert sorted(programs(text)) == ["Abs 0;Neg 1", "Neg 0;Exp 1"]


def test_types_do_not_mix() -> None:
    outside = "network (float[N, 3] x, bool[N, 3] c) => (float[N, 3] y) { a = Where (c, x, x) y = Neg (a) }"
    assert programs(outside) == []
    double = "network (double[N, 3] x) => (double[N, 3] y) { a = Exp (x) y = Neg (a) }"
    assert programs(double) == ["Exp 0;Neg 1"]
    for kind in ("float16", "bfloat16"):
        assert programs(f"network ({kind}[N, 3] x) => ({kind}[N, 3] y) {{ a = Exp (x) y = Neg (a) }}") == []


def test_a_chain_ends_at_an_operator_that_reads_another_type() -> None:
    condition = """network (float[N, 3] x, bool[N, 3] c) => (float[N, 3] y) {
        a = Exp (x) b = Neg (a) d = Where (c, b, x) e = Neg (d) y = Exp (e) }"""
    assert sorted(programs(condition)) == ["Exp 0;Neg 1", "Neg 0;Exp 1"]
    compared = """network (float[N, 3] x, int64[N, 3] i) => (float[N, 3] y) {
        d = Greater (i, i) c = Cast <to = 1> (d) e = Mul (c, x) y = Exp (e) }"""
    assert programs(compared) == ["Mul 0 1;Exp 2"]


@pytest.mark.parametrize(("operators", "lengths"), [(96, [96]), (97, [1, 96]), (250, [58, 96, 96])])
def test_long_chains_are_split(operators: int, lengths: list[int]) -> None:
    steps = " ".join(f"v{i + 1} = Tanh (v{i})" for i in range(operators))
    text = f"network (float[N, 3] v0) => (float[N, 3] v{operators}) {{ {steps} }}"
    assert sorted(len(p.split(";")) for p in programs(text)) == [n for n in lengths if n > 1]


def test_chains_of_many_inputs_are_split() -> None:
    inputs = ", ".join(f"float[N, 3] x{i}" for i in range(60))
    steps = " ".join(f"v{i} = Add ({f'v{i - 1}' if i > 1 else 'x0'}, x{i})" for i in range(1, 60))
    found = programs(f"network ({inputs}) => (float[N, 3] v59) {{ {steps} }}")
    assert sorted(len(p.split(";")) for p in found) == [13, 23, 23]


def test_a_graph_without_chains_does_not_import_their_domain() -> None:
    """It may have functions of its own."""
    model = ir.from_proto(
        onnx.parser.parse_model("""
            <ir_version: 10, opset_import: ["": 21, "own": 1]>
            network (float[N, 3] x) => (float[N, 3] y) { y = own.twice (x) }
            <domain: "own", opset_import: ["": 21]> twice (a) => (b) { b = Add (a, a) }
        """)
    )
    fuse_chains(model, ())
    assert DOMAIN not in model.graph.opset_imports


def test_the_kernels_have_every_operator() -> None:
    """The table of the compiler and that of the library are one."""
    text = Path("kernels/src/operators.h").read_text()
    lines = re.findall(r"^(ONE|TWO|THREE|ROW)\((\w+),", text, re.M)
    operands = {"ONE": 1, "TWO": 2, "THREE": 3}
    assert {name: operands[kind] for kind, name in lines if kind != "ROW"} == fused._OPERANDS
    assert {name for kind, name in lines if kind == "ROW"} == fused._REDUCTIONS


def test_a_file_has_as_many_chains_as_there_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_MOST_CHAINS", 1)
    nodes = "{ c = Exp(x) a = Mul(c, x) d = Abs(x) b = Add(d, x) }"
    assert len(programs(f"network (float[N] x) => (float[N] a, float[N] b) {nodes}")) == 1
