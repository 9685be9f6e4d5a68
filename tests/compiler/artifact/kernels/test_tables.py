"""Lookups in trees' tables: the kernel answers as the function does, and a stock runtime as before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
import pytest
from onnx import helper

from rationale import Compiled, Deployment, TreeShap, compile_model
from rationale.artifact.finishing.fused import DOMAIN
from rationale.artifact.finishing.lookups import NAME
from rationale.trees.program import BEYOND
from tests.compiler.artifact.kernels.test_fused import calls
from tests.fused_library import library
from tests.references import trees as forest

PLAIN = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
REFERENCES = forest.rows(1, 7)
COUNTS = (0, 1, 4, 5, 16, 300)
ROWS = np.concatenate(
    [
        np.full((1, 5), number, np.float32)
        for number in (0.0, -0.0, 0.5, np.inf, -np.inf, np.nan, 1e-45, -1e-45)
    ]
    + [forest.rows(2, 292)]
)


def three(seed: int = 3) -> onnx.ModelProto:
    return forest.regressor(forest.random_trees(seed, PLAIN, columns=3, trees=9), base_values=[0.1, 0.2, 0.3])


def one_of_two() -> onnx.ModelProto:
    trees = forest.random_trees(9, ("LEQ", "GT"), trees=20)
    return forest.classifier(trees, 2, only=0, post_transform="LOGISTIC")


def wide(dtype: Any = np.float32) -> onnx.ModelProto:
    """Trees with so many numbers that they are added in several batches."""
    return forest.ensemble(forest.random_trees(5, PLAIN, trees=150), dtype=dtype)


COMPILED: dict[str, Callable[[], Compiled]] = {
    "sets": lambda: compile_model(
        forest.ensemble(forest.random_trees(3, ("MEMBER",), grid=forest.MEMBERS)), TreeShap(REFERENCES)
    ),
    "many trees": lambda: compile_model(wide(), TreeShap(REFERENCES)),
    "targets": lambda: compile_model(three(), TreeShap(REFERENCES), targets="all"),
    "contrast": lambda: compile_model(three(), TreeShap(REFERENCES), targets=["2-0", 1]),
    "predicted": lambda: compile_model(
        forest.classifier(forest.random_trees(7, ("LEQ",), columns=3), 3),
        TreeShap(REFERENCES),
        targets="predicted",
    ),
    "probability": lambda: compile_model(one_of_two(), TreeShap(REFERENCES, space="probability")),
    "covers": lambda: compile_model(three(), TreeShap(covers=forest.rows(3, 500)), targets="all"),
    "groups": lambda: compile_model(three(), TreeShap(REFERENCES), groups={"two": ["x[0]", "x[3]"]}),
}


def session_of(proto: onnx.ModelProto, path: Path | None, threads: int = 2) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    if path is not None:
        options.register_custom_ops_library(str(path))
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def answers(session: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def tables_of(compiled: Compiled) -> list[onnx.NodeProto]:
    return [call for call in calls(compiled.model.graph) if call.op_type.startswith(NAME)]


def assert_near(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], eps: float) -> None:
    numbers = [array for array in expected.values() if array.dtype.kind == "f"]
    scale = max(np.abs(array[np.isfinite(array)]).max(initial=1.0) for array in numbers)
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype
        if array.dtype.kind == "f":
            np.testing.assert_allclose(actual[name], array, rtol=0, atol=eps * scale, err_msg=name)


@pytest.mark.parametrize("name", COMPILED)
def test_the_kernel_answers_as_the_function(name: str) -> None:
    """Ties, infinities, zeros, subnormal and missing numbers among the rows."""
    compiled = COMPILED[name]()
    assert len(tables_of(compiled)) == 1
    assert_same_answers(compiled, ROWS, 1e-6)


def test_in_float64() -> None:
    compiled = compile_model(wide(np.float64), TreeShap(REFERENCES.astype(np.float64)))
    assert tables_of(compiled)
    assert_same_answers(compiled, ROWS.astype(np.float64), 1e-14)


def assert_same_answers(compiled: Compiled, rows: np.ndarray, eps: float) -> None:
    function, kernel = (session_of(compiled.model, path) for path in (None, library()))
    for count in COUNTS:
        inputs = {"x": rows[:count]}
        assert_near(answers(kernel, inputs), answers(function, inputs), eps)


@pytest.mark.parametrize("name", ["many trees", "targets"])
def test_a_row_has_the_same_bits_in_every_batch(name: str) -> None:
    model = COMPILED[name]().model
    sessions = [session_of(model, library(), threads) for threads in (1, 2)]
    whole = answers(sessions[0], {"x": ROWS})["x_attributions"]
    for count in (1, 3, 4, 5, 17, 64, 300):
        for session in sessions:
            part = answers(session, {"x": ROWS[40 : 40 + count]})["x_attributions"]
            np.testing.assert_array_equal(part, whole[40 : 40 + count])


def test_every_test_of_a_split_is_a_rank() -> None:
    """So the comparisons above are of all five."""
    (call,) = tables_of(compile_model(three(), TreeShap(REFERENCES)))
    words = {line.split()[0] for line in call.attribute[0].s.decode().split(";")}
    ranks = {"reached", "reached_or_missing", "passed", "passed_or_missing", "missing"}
    assert words == {"columns", "table", *ranks}


@pytest.mark.parametrize("one_shot", [False, True], ids=["two entries", "one shot"])
@pytest.mark.parametrize("name", ["targets", "probability"])
def test_a_stock_runtime_answers_bit_for_bit_as_without_functions(
    name: str, one_shot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATIONALE_KERNELS", "off")
    model, method, targets = {
        "targets": (three(), TreeShap(REFERENCES), "all"),
        "probability": (one_of_two(), TreeShap(REFERENCES, space="probability"), None),
    }[name]
    deployment = Deployment(one_shot=one_shot)
    fused = compile_model(model, method, targets=targets, deployment=deployment)
    assert tables_of(fused)
    onnx.checker.check_model(fused.model, full_check=True)
    monkeypatch.setattr("rationale.artifact.finishing.finish.fuse_tables", lambda *_: None)
    apart = compile_model(model, method, targets=targets, deployment=deployment)
    assert not tables_of(apart)
    assert apart.manifest.measured.nodes == fused.manifest.measured.nodes
    x = ROWS[np.isfinite(ROWS).all(axis=1) | np.isnan(ROWS).any(axis=1)]
    answer, expected = fused.explain(x), apart.explain(x)
    plain = session_of(onnx.inliner.inline_local_functions(fused.model), None)
    inlined = answers(plain, gated(fused, x))
    for output in expected:
        np.testing.assert_array_equal(answer[output], expected[output])
        np.testing.assert_array_equal(inlined[output], expected[output])
    assert_near(answers(session_of(fused.model, library()), gated(fused, x)), expected, 1e-6)


def gated(compiled: Compiled, x: np.ndarray) -> dict[str, np.ndarray]:
    asks = {"explain": np.ones((len(x), 1), bool)}
    return {"x": x} | (asks if compiled.manifest.one_shot else {})


def test_lookups_that_share_their_bits_stay() -> None:
    """Without the library, two functions would compare features with bounds twice."""
    assert not tables_of(compile_model(three(), TreeShap(REFERENCES, interactions=True)))


@pytest.mark.parametrize(
    "deployment",
    [Deployment(runtime="openvino"), Deployment(runtime="any"), Deployment(provider="cuda")],
    ids=["openvino", "any", "cuda"],
)
def test_graphs_for_other_machines_have_none(deployment: Deployment) -> None:
    assert not compile_model(three(), TreeShap(REFERENCES), deployment=deployment).model.functions


TABLE = "table 0 2 1 0 0 0 1"
PROGRAM = f"columns 1;reached 1 0.5;{TABLE}"


def call_of(program: str) -> onnx.ModelProto:
    """A call of a table of two rows, beside a function that answers 7."""
    kind, opset = onnx.TensorProto.FLOAT, helper.make_opsetid("", 18)
    seven = helper.make_node("Constant", [], ["y"], value_floats=[7.0])
    function = helper.make_function(
        DOMAIN, f"{NAME}0", ["x", "numbers", "rows"], ["y"], [seven], [opset], attributes=["program"]
    )
    call = helper.make_node(f"{NAME}0", ["x", "numbers", "rows"], ["y"], domain=DOMAIN, program=program)
    edges = [helper.make_tensor_value_info(name, kind, None) for name in ("x", "numbers", "y")]
    edges.insert(2, helper.make_tensor_value_info("rows", onnx.TensorProto.INT64, [1]))
    graph = helper.make_graph([call], "lookup", edges[:-1], edges[-1:])
    imports = [opset, helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=10)


def looked_up(program: str, x: Any, numbers: int = 2 + BEYOND) -> np.ndarray:
    array = np.asarray(x, np.float32)
    inputs = {
        "x": array,
        "numbers": np.arange(10, 10 + numbers, dtype=np.float32),
        "rows": np.array([len(array)]),
    }
    return answers(session_of(call_of(program), library()), inputs)["y"]


def test_a_table() -> None:
    np.testing.assert_array_equal(looked_up(PROGRAM, [[0, 0.4], [0, 0.5], [0, np.nan]]), [[10], [11], [10]])
    assert looked_up("columns 2", [[0.0]]).tolist() == [[0, 0]]


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("step", [32767, -32767])
def test_steps_out_of_a_table_stay_in_it(step: int, rows: int) -> None:
    bounds = "reached 1 " + " ".join(["0.5"] * 3)
    slots = " ".join(f"0 {i} {step}" for i in range(3))
    answer = looked_up(f"columns 1;{bounds};table 0 2 1 0 {slots}", np.ones((rows, 2)))
    assert set(answer.reshape(-1)) <= {10.0, 11.0}


@pytest.mark.parametrize(
    "program",
    [
        "",
        "nonsense",
        "columns",
        "columns 0",
        "columns -1",
        "columns 99999999999999999999",
        "columns 1 2",
        "columns 1;columns 1",
        TABLE,
        f"columns 1;{TABLE}",
        f"{PROGRAM};;",
        f"{PROGRAM} 0",
        f"{PROGRAM} 0 0",
        "columns 1;reached",
        "columns 1;reached -1 0.5",
        "columns 1;reached x 0.5",
        "columns 1;reached 0 half",
        "columns 1;missing 0 1",
        f"columns 1;reached 0 {' '.join(['1'] * 32768)}",
        "columns 1;missing 0;table -1 2 1 0",
        "columns 1;missing 0;table 0 0 1 0",
        "columns 1;missing 0;table 0 32768 1 0",
        "columns 1;missing 0;table 0 2 99999999",
        "columns 1;missing 0;table 0 2 1 1",
        "columns 1;missing 0;table 0 2 1 0 1 0 1",
        "columns 1;missing 0;table 0 2 1 0 0 0 32768",
    ],
    ids=lambda program: repr(program[:60]),
)
def test_programs_that_cannot_be_read(program: str) -> None:
    with pytest.raises(Exception, match="rationale:Tables"):
        looked_up(program, [[0.0, 0.0]])


@pytest.mark.parametrize(
    ("x", "numbers", "message"),
    [
        ([[1.0]], 9, r"x is not \[N, 2 or more features\]"),
        ([1.0, 2.0], 9, r"x is not \[N, 2 or more features\]"),
        ([[1.0, 2.0]], 1 + BEYOND, "fewer than 5 numbers"),
    ],
    ids=["few features", "no rows", "few numbers"],
)
def test_inputs_that_do_not_fit(x: Any, numbers: int, message: str) -> None:
    with pytest.raises(Exception, match=f"rationale:Tables: .*{message}"):
        looked_up(PROGRAM, x, numbers)
