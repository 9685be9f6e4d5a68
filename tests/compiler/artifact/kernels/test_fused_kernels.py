"""The library of kernels answers as the functions do that it replaces."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from rationale import AttnLrp, DeepShap, Gradient, InvalidOptionError, compile_model
from rationale.artifact.entry import open_entry
from rationale.artifact.finishing.fused import DOMAIN, NAME, PROGRAM
from rationale.artifact.recheck import check_entry
from rationale.graph.runtime import kernels
from rationale.graph.runtime.session import Runner
from rationale.schema.machine import KERNELS
from rationale.testing import Sample, Var, check_rule
from tests.compiler.models import FEATURES, mlp, rows
from tests.fused_library import library

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 88.5, -88.0, 20.0, -20.0, 0.5, 3e4]
UNARY = (
    "Abs",
    "Erf",
    "Exp",
    "Identity",
    "Log",
    "Neg",
    "Reciprocal",
    "Relu",
    "Sigmoid",
    "Sign",
    "Sqrt",
    "Tanh",
)
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sessions take the library, as if the package were installed."""
    path = library()
    monkeypatch.delenv(KERNELS, raising=False)
    monkeypatch.setattr(kernels, "_installed", lambda: path)
    return path


def model(program: str, inputs: int, dtype: Any) -> onnx.ModelProto:
    """A call of a chain, beside the function of which it is a call."""
    kind, values, nodes, row_axes = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [], [], 0
    values = [f"x{i}" for i in range(inputs)]
    for step in program.split(";"):
        op_type, *operands = step.split()
        if op_type == "rows":
            row_axes = int(operands[0])
            continue
        op_type, names = op_type.removeprefix("r."), [values[int(i)] for i in operands]
        if op_type.startswith("Reduce"):
            axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [row_axes], range(-row_axes, 0))
            nodes.append(helper.make_node("Constant", [], [f"axes{len(values)}"], value=axes))
            names.append(f"axes{len(values)}")
        attributes = {"to": kind} if op_type == "Cast" else {}
        values.append(f"v{len(values)}")
        nodes.append(helper.make_node(op_type, names, [values[-1]], **attributes))
    opset = helper.make_opsetid("", 18)
    function = helper.make_function(
        DOMAIN, f"{NAME}0", values[:inputs], [values[-1]], nodes, [opset], attributes=[PROGRAM]
    )
    call = helper.make_node(f"{NAME}0", values[:inputs], ["y"], domain=DOMAIN, **{PROGRAM: program})
    edges = [helper.make_tensor_value_info(name, kind, None) for name in (*values[:inputs], "y")]
    graph = helper.make_graph([call], "chain", edges[:-1], edges[-1:])
    imports = [opset, helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=10)


def both(program: str, *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the answers of the function, inlined, and of the kernel."""
    proto = model(program, len(inputs), inputs[0].dtype).SerializeToString()
    answers = []
    for path in (None, library()):
        options = ort.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 2
        if path is not None:
            options.register_custom_ops_library(str(path))
        session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
        answers.append(session.run(None, {f"x{i}": x for i, x in enumerate(inputs)})[0])
    return answers[0], answers[1]


def assert_equal(program: str, *inputs: np.ndarray, rtol: float = 1e-6) -> None:
    expected, actual = both(program, *inputs)
    tolerance = rtol if inputs[0].dtype == np.float32 else rtol * 1e-8
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("op_type", "dtype"),
    [(f, d) for f in UNARY for d in (np.float32, np.float64) if (f, d) != ("Erf", np.float64)],
)
def test_functions_of_one_number(op_type: str, dtype: Any) -> None:
    spread = np.random.default_rng(0).uniform(-95, 95, 5000)
    near = np.random.default_rng(1).standard_normal(5000)
    assert_equal(f"{op_type} 0;Identity 1", np.concatenate([SPECIAL, spread, near]).astype(dtype))


def test_erf_in_float64() -> None:
    x = np.linspace(-4, 4, 999)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library()))
    proto = model("Erf 0;Identity 1", 1, np.float64).SerializeToString()
    session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x0": x})[0], np.vectorize(math.erf)(x), rtol=1e-14)


@DTYPES
@pytest.mark.parametrize("op_type", [*BINARY, *COMPARISONS])
@pytest.mark.parametrize("shapes", ["both", "first", "second"])
def test_functions_of_two_numbers(op_type: str, dtype: Any, shapes: str) -> None:
    """Ties, infinities and NaN among them; either may be one number for all."""
    a, b = (np.ascontiguousarray(m.reshape(-1)) for m in np.meshgrid(SPECIAL, SPECIAL))
    if shapes != "both":
        a, b = (a[2:3], b) if shapes == "first" else (a, b[2:3])
    last = "Cast 2" if op_type in COMPARISONS else "Identity 2"
    with np.errstate(all="ignore"):
        assert_equal(f"{op_type} 0 1;{last}", a.astype(dtype), b.astype(dtype))


@DTYPES
def test_functions_of_three_numbers(dtype: Any) -> None:
    a, b = (np.ascontiguousarray(m.reshape(-1)).astype(dtype) for m in np.meshgrid(SPECIAL, SPECIAL))
    assert_equal("Greater 0 1;Where 2 0 1", a, b)
    assert_equal("Greater 0 1;Less 0 2;And 3 4;Or 5 3;Not 6;Cast 7", a, b, np.full(1, 2, dtype))
    assert_equal("Clip 0 1 2;Identity 3", a, np.array(-1, dtype), np.array(2, dtype))


@DTYPES
def test_bounds_that_are_nan_do_not_bound(dtype: Any) -> None:
    x = np.array(SPECIAL, dtype)
    for low in (np.nan, -np.inf, -1, 0.0, 3):
        for high in (np.nan, np.inf, 2, -0.0):
            assert_equal("Clip 0 1 2;Identity 3", x, np.array(low, dtype), np.array(high, dtype))


@DTYPES
def test_zeros_keep_their_signs(dtype: Any) -> None:
    """1/0 and 1/-0 differ."""
    zeros, other = np.array([0.0, -0.0, 0.0, -0.0], dtype), np.array([0.0, 0.0, -0.0, -0.0], dtype)
    for op_type in ("Abs", "Identity", "Neg", "Relu", "Sign", "Sqrt", "Tanh"):
        assert_equal(f"{op_type} 0;Reciprocal 1", zeros)
    for op_type in ("Add", "Sub", "Mul", "Max", "Min"):
        assert_equal(f"{op_type} 0 1;Reciprocal 2", zeros, other)


@DTYPES
def test_subnormal_numbers_stay(dtype: Any) -> None:
    tiny = np.geomspace(np.finfo(dtype).smallest_subnormal, np.finfo(dtype).tiny, 40).astype(dtype)
    steps, last = ["Exp 0", "Identity 0", "Sqrt 0", "Log 0"], np.log(tiny.astype(np.float64)).astype(dtype)
    for step in steps:
        expected, actual = both(f"{step};Identity 1", last if step == "Exp 0" else tiny)
        np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=2 * np.finfo(dtype).smallest_subnormal)


@DTYPES
@pytest.mark.parametrize(
    "shapes",
    [
        [(3, 1, 5, 7), (1, 4, 5, 7)],
        [(3, 4, 1, 7), (3, 4, 5, 1)],
        [(1, 4, 1, 1), (3, 4, 5, 7)],
        [(5, 1), (2, 3, 1, 6)],
        [(), (3, 4)],
        [(0, 3), (1, 3)],
        [(2, 0, 3), (2, 1, 3)],
        [(40, 1, 50, 30), (1, 9, 50, 30)],
        [(2, 1, 3000), (2, 9, 1)],
    ],
    ids=str,
)
def test_shapes_broadcast(shapes: list[tuple[int, ...]], dtype: Any) -> None:
    draw = np.random.default_rng(0)
    assert_equal("Mul 0 1;Add 2 0;Sub 3 1", *(draw.standard_normal(s).astype(dtype) for s in shapes))


@DTYPES
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceMax"])
@pytest.mark.parametrize(
    "shape", [(3, 4, 50), (3, 4, 2), (7, 3, 1), (2, 3, 3000), (0, 4), (5000, 3)], ids=str
)
def test_rows(op_type: str, shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    assert_equal(f"rows 1;{op_type} 0;r.Tanh 1;Mul 0 2", x)


@DTYPES
def test_rows_of_two_axes_beside_numbers_of_rows(dtype: Any) -> None:
    draw = np.random.default_rng(0)
    x, scale = (draw.standard_normal(s).astype(dtype) for s in [(3, 4, 5, 6), (1, 4, 1, 1)])
    assert_equal("rows 2;ReduceSum 0;r.Mul 2 1;Sub 0 3;Mul 4 1", x, scale, rtol=1e-5)


@DTYPES
def test_long_rows(dtype: Any) -> None:
    """Their blocks are larger than what a thread keeps, and a short chain follows in the same threads."""
    x = np.random.default_rng(0).standard_normal((3, 400_000)).astype(dtype)
    for _ in range(2):
        assert_equal("rows 1;Exp 0;ReduceMean 1;r.Sqrt 2;Mul 1 3", x, rtol=1e-5)
        assert_equal("rows 1;ReduceMax 0;Sub 0 1;Exp 2", x[:, :5].copy())


@DTYPES
def test_the_largest_of_a_row_with_nan_is_nan(dtype: Any) -> None:
    """ONNX Runtime's own depends on the place of the NaN."""
    for place in range(40):
        x = np.zeros((2, 40), dtype)
        x[0, place] = np.nan
        answer = both("rows 1;ReduceMax 0;Add 0 1", x)[1]
        np.testing.assert_array_equal(np.isnan(answer), [[True] * 40, [False] * 40])


@pytest.mark.parametrize("dtype", [np.float16, np.int32], ids=["float16", "int32"])
def test_other_types_are_refused(dtype: Any) -> None:
    with pytest.raises(Exception, match=r"Type Error: .*Fused.*invalid"):
        both("Add 0 0;Neg 1", np.ones(3, dtype))


def test_a_number_for_each_row_is_one() -> None:
    with pytest.raises(Exception, match="rationale:Fused: an input has several numbers for a row, not one"):
        both("rows 1;r.Neg 1;Add 0 2", np.ones((4, 3), np.float32), np.ones((4, 3), np.float32))


def test_random_chains() -> None:
    """Each is a random program over inputs that broadcast in random ways."""
    draw = np.random.default_rng(0)
    for _ in range(60):
        dims = draw.integers(1, 9, draw.integers(1, 5))
        inputs = [
            draw.uniform(0.5, 2, np.where(draw.random(len(dims)) < 0.3, 1, dims)).astype(np.float32)
            for _ in range(draw.integers(1, 5))
        ]
        first = len(inputs)
        steps = ["Abs 0", *(f"Add {first + i - 1} {i}" for i in range(1, first))]
        for i in range(len(steps), len(steps) + draw.integers(2, 25)):
            known = len(inputs) + i
            op_type = draw.choice(["Add", "Sub", "Mul", "Max", "Min", "Tanh", "Sigmoid", "Neg", "Abs"])
            operands = [known - 1, draw.integers(known)] if op_type in BINARY else [known - 1]
            steps.append(" ".join([str(op_type), *map(str, operands)]))
        program = ";".join(steps)
        expected, actual = both(program, *inputs)
        scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=1.0)))
        np.testing.assert_allclose(actual / scale, expected / scale, atol=2e-6)


@pytest.mark.parametrize(
    "program",
    [
        "",
        "Nonsense 0",
        "Add 0",
        "Add 0 7",
        "Add 0 -1",
        "Neg 0 0",
        "ReduceSum 0",
        "rows 1;r.Abs 0",
        "rows 1;r.ReduceSum 0;Neg 1",
        "rows;ReduceSum 0;Neg 1",
        "rows 1 1;ReduceSum 0;Neg 1",
        "rows 9;ReduceSum 0;Neg 1",
        "rows -1;ReduceSum 0;Neg 1",
        "Neg 0;;Neg 1",
    ],
    ids=repr,
)
def test_programs_that_cannot_be_read(program: str) -> None:
    proto = model("Abs 0;Neg 1", 1, np.float32)
    proto.graph.node[0].attribute[0].s = program.encode()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library()))
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match="rationale:Fused"):
        session.run(None, {"x0": np.ones(3, np.float32)})


@pytest.mark.parametrize(
    "method",
    [DeepShap(rows(4, FEATURES, seed=1)), Gradient(), AttnLrp()],
    ids=["deepshap", "gradient", "attnlrp"],
)
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("last", ["Softmax", "Sigmoid", "Tanh"])
def test_explanations_are_those_without_the_library(
    method: Any, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rows(6, FEATURES, seed=3)
    compiled = compile_model(mlp(last=last), method)
    answer = compiled.explain(x)
    monkeypatch.setenv(KERNELS, "off")
    expected = compile_model(mlp(last=last), method).explain(x)
    for output in ("y", "x_attributions"):
        np.testing.assert_allclose(answer[output], expected[output], atol=1e-6)


@pytest.mark.usefixtures("installed")
def test_an_entry_has_the_same_graph_and_proves_itself_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = DeepShap(rows(4, FEATURES, seed=1))
    with_library = compile_model(mlp(), method)
    with_library.write(tmp_path, "m")
    monkeypatch.setenv(KERNELS, "off")
    without = compile_model(mlp(), method)
    assert with_library.model.SerializeToString() == without.model.SerializeToString()
    assert with_library.manifest.digests == without.manifest.digests
    open_entry(tmp_path, "m").explain(rows(2, FEATURES))
    assert (check_entry(tmp_path, "m").measured.completeness_gap or 0) < 1e-5


RULES = {
    "Sigmoid": Sample("Sigmoid", [Var((3, 4))]),
    "Tanh": Sample("Tanh", [Var((3, 4))]),
    "Softplus": Sample("Softplus", [Var((3, 4))]),
    "Softmax": Sample("Softmax", [Var((3, 5))]),
    "LayerNormalization": Sample("LayerNormalization", [Var((2, 3, 5)), np.linspace(0.5, 1.5, 5)]),
}


def by_kernels(proto: onnx.ModelProto, inputs: Any, outputs: Any = None, /) -> dict[str, np.ndarray]:
    """Run a graph with the library if it has chains: see `Runner`."""
    return Runner(proto)(inputs, outputs)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", RULES)
def test_rules_hold_by_kernels(name: str) -> None:
    check_rule(RULES[name], by_kernels)


def test_a_library_that_is_given_is_not_loaded_twice(installed: Path) -> None:
    assert kernels.installed_kernels() == [installed]
    assert kernels.installed_kernels([Path("elsewhere") / installed.name]) == []


def test_a_library_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    monkeypatch.setattr(kernels, "_installed", lambda: tmp_path / "text.so")
    monkeypatch.delenv(KERNELS, raising=False)
    with pytest.raises(InvalidOptionError, match=r"text\.so: ONNX Runtime .* cannot load"):
        compile_model(mlp(), Gradient())
    monkeypatch.setenv(KERNELS, "off")
    compile_model(mlp(), Gradient())
