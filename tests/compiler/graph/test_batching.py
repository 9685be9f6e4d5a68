"""Every operator gives for a row among others what it gives for that row alone, whatever axes it works on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from rationale import DeepShap, Gradient, compile_model
from rationale.errors import UnsupportedModelError
from rationale.graph.batching import Node, works_on_axis_0
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from tests.compiler.models import parsed, rows

N, K = 3, 2


@dataclass(frozen=True)
class Row:
    """An operand that is computed; `axes` are those over which it varies, none where all rows share it."""

    shape: tuple[int, ...]
    axes: str = "N"
    dtype: type = np.float32
    high: int = 2


@dataclass(frozen=True)
class Case:
    op_type: str
    operands: Sequence[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 21

    def __str__(self) -> str:
        shapes = [str(getattr(o, "shape", o)) for o in self.operands]
        return f"{self.op_type} {' '.join(shapes)} {self.attributes or ''}"


def _i(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, np.int64)


def _f(*shape: int) -> np.ndarray:
    return np.random.default_rng(9).standard_normal(shape).astype(np.float32)


def _of_rows(*shape: int, rows: bool = True) -> Tensor:
    return Tensor(ir.Value(name="v"), shape, ir.DataType.FLOAT, rows=rows)


UNPOOLED = {"kernel_shape": [2, 2], "strides": [2, 2]}
CASES = [
    *(Case("Softmax", [Row((4, 5))], {"axis": axis}) for axis in (0, 1, -2)),
    Case("Softmax", [Row((5,))]),
    *(Case("Transpose", [Row((2, 3, 4))], {"perm": p}) for p in ([1, 0, 2], [0, 2, 1], [2, 1, 0])),
    Case("Transpose", [Row((2, 3, 4))]),
    *(
        Case("ReduceSum", [Row((3, 4)), _i(*axes)], {"keepdims": k})
        for axes in ((0,), (1,), (0, 1))
        for k in (0, 1)
    ),
    Case("ReduceMax", [Row((3, 4))], {"keepdims": 0}),
    Case("ReduceSum", [Row((3, 4))], {"noop_with_empty_axes": 1}),
    Case("ReduceMean", [Row(())]),
    *(Case("Concat", [Row((2, 3)), Row((2, 3))], {"axis": axis}) for axis in (0, 1)),
    Case("Concat", [Row((2, 3)), _f(1, 3)], {"axis": 0}),
    Case("Split", [Row((4, 3)), _i(1, 3)], {"axis": 0}, outputs=2),
    Case("Gather", [Row((4, 3)), _i(2, 0)], {"axis": 0}),
    Case("Gather", [Row((4, 3)), np.asarray(2)], {"axis": 1}),
    Case("Gather", [Row((4, 3)), Row((2,), dtype=np.int64)], {"axis": 0}),
    Case("Gather", [_f(4, 3), Row((2,), dtype=np.int64)]),
    Case("Gather", [_f(4, 3), Row((), dtype=np.int64)], {"axis": 1}),
    Case("GatherElements", [Row((4, 3)), Row((2, 3), dtype=np.int64)], {"axis": 0}),
    Case("GatherElements", [Row((4, 3)), Row((2, 5), dtype=np.int64)], {"axis": 1}),
    Case("GatherElements", [Row((4, 3)), Row((2, 4), dtype=np.int64)], {"axis": 1}),
    Case("ScatterElements", [Row((4, 3)), Row((2, 1), dtype=np.int64), Row((2, 1))], {"axis": 1}),
    Case("GatherND", [Row((4, 3, 2)), Row((5, 2), dtype=np.int64)]),
    Case(
        "ScatterElements",
        [Row((4, 3)), Row((2, 3), dtype=np.int64), Row((2, 3))],
        {"axis": 0, "reduction": "add"},
    ),
    Case("ScatterND", [Row((4, 3)), _i(0, 2).reshape(2, 1), Row((2, 3))]),
    Case("Slice", [Row((5, 4)), _i(1), _i(4), _i(0), _i(2)]),
    Case("Slice", [Row((5, 4)), _i(1, 0), _i(3, 3)]),
    Case("Pad", [Row((3, 4)), _i(1, 0, 2, 1)]),
    Case("Pad", [Row((3, 4)), _i(1, 2), None, _i(0)], {"mode": "edge"}),
    Case("Pad", [Row((3, 4)), _i(0, 1, 0, 2)]),
    Case("Tile", [Row((2, 3)), _i(2, 1)]),
    Case("Tile", [Row((2, 3)), _i(1, 2)]),
    Case("Expand", [Row((1, 3)), _i(4, 3)]),
    Case("Expand", [Row((3,)), _i(2, 4, 3)]),
    Case("Reshape", [Row((2, 6)), _i(3, -1)]),
    Case("Reshape", [Row((2, 6)), _i(12)]),
    Case("Squeeze", [Row((1, 3, 1)), _i(0)]),
    Case("Unsqueeze", [Row(()), _i(0)]),
    Case("Flatten", [Row((2, 3, 4))], {"axis": 0}),
    Case("CumSum", [Row((3, 4)), np.asarray(0)]),
    Case("TopK", [Row((5, 3)), _i(2)], {"axis": 0}, outputs=2),
    Case("ArgMax", [Row((5, 3))], {"axis": 0, "keepdims": 0}),
    Case("LayerNormalization", [Row((3, 4)), _f(3, 4)], {"axis": 0}),
    Case("MatMul", [Row((2, 3)), Row((3, 4))]),
    Case("MatMul", [Row((3,)), Row((3,))]),
    Case("MatMul", [Row((3,)), _f(3, 4)]),
    Case("MatMul", [_f(2, 3), Row((3, 4))]),
    Case("MatMul", [Row((5, 2, 3)), Row((3, 4))]),
    Case("MatMul", [Row((2, 3)), Row((3, 4), "K")]),
    Case("MatMul", [Row((2, 2, 3)), Row((3, 4), "NK")]),
    Case("MatMul", [_f(2, 2, 3), Row((1, 3, 4))]),
    Case("Gemm", [Row((2, 3)), _f(3, 4), _f(2, 4)]),
    Case("Gemm", [Row((3, 2)), _f(3, 4)], {"transA": 1}),
    Case("Gemm", [Row((2, 3)), Row((3, 4), "K"), Row((4,))]),
    Case("Add", [Row((3,)), Row((2, 3))]),
    Case("Add", [Row((1, 3)), Row((2, 3))]),
    Case("Add", [Row((2, 3)), _f(2, 3)]),
    Case("Add", [Row((3,)), _f(2, 1)]),
    Case("Mul", [Row(()), Row((2, 3), "K")]),
    Case("Where", [Row((2, 1), dtype=np.bool_), Row((2, 3), "K"), _f(3)]),
    Case("Conv", [Row((2, 3, 5)), _f(4, 3, 2)]),
    Case("Conv", [Row((1, 3, 5)), Row((4, 3, 2))]),
    Case("Einsum", [Row((2, 3)), Row((3, 4), "K")], {"equation": "ij, jk -> ik"}),
    Case("Einsum", [Row((2, 3))], {"equation": "ij->ji"}),
    Case("Einsum", [Row((3, 3))], {"equation": "ii"}),
    Case("Trilu", [Row((4, 4))]),
    Case("Det", [Row((3, 3))]),
    Case("ReverseSequence", [Row((4, 2, 3)), _i(3, 4)]),
    Case("ReverseSequence", [Row((2, 4, 3)), _i(3, 2)], {"batch_axis": 0, "time_axis": 1}),
    *(Case("DFT", [Row((4, 3, 2)), np.asarray(5), np.asarray(axis)]) for axis in (0, 1)),
    Case("MaxUnpool", [Row((1, 2, 2, 2)), _i(*range(0, 32, 4)).reshape(1, 2, 2, 2)], UNPOOLED),
    # axes from the end, and parts of what is given
    *(Case(op_type, [Row((4, 5))], {"axis": -2}) for op_type in ("LogSoftmax", "Hardmax")),
    Case("Concat", [Row((2, 3)), Row((1, 3), "K"), Row((2, 3), "")], {"axis": -2}),
    Case("Concat", [Row((2, 3)), _f(2, 1)], {"axis": -1}),
    Case("Split", [Row((4, 3)), _i(1, 3)], {"axis": -2}, outputs=2),
    Case("Split", [Row((4, 3)), _i(2, 1)], {"axis": -1}, outputs=2),
    Case("Split", [Row((4, 3))], {"num_outputs": 2}, outputs=2),
    Case("TopK", [Row((5, 3)), _i(2)], {"axis": -2, "largest": 0}, outputs=2),
    Case("TopK", [Row((5, 3)), _i(2)], outputs=2),
    Case("ArgMin", [Row((5, 3))], {"axis": -2}),
    Case("ArgMax", [Row((5, 3))], {"axis": -1, "keepdims": 0}),
    *(Case("LpNormalization", [Row((4, 3))], {"axis": axis, "p": 1}) for axis in (0, -1)),
    *(
        Case("CumSum", [Row((3, 4)), np.asarray(axis)], {"reverse": 1, "exclusive": 1})
        for axis in (-2, -1, 1)
    ),
    *(Case("ReduceMin", [Row((3, 4)), _i(*axes)]) for axes in ((-2,), (-1,), (-1, -2))),
    Case("ReduceMean", [Row((3, 4)), _i()], {"noop_with_empty_axes": 1}),
    Case("ReduceSumSquare", [Row((3, 2, 4)), _i(0, -1)], {"keepdims": 0}),
    Case("Transpose", [Row((3, 4))], {"perm": [0, 1]}),
    Case("Slice", [Row((5, 4)), _i(-1, -1), _i(-5, -4), _i(-1, -2), _i(-2, -1)]),
    Case("Slice", [Row((5, 4)), _i(1), _i(3), _i(-1)]),
    Case("Slice", [Row((5, 4)), _i(1), _i(3)]),
    Case("Pad", [Row((3, 4)), _i(1, 2), np.asarray(0.5, np.float32), _i(-1)]),
    Case("Pad", [Row((3, 4)), _i(1, 0, 0, 2), None, _i(-2, -1)], {"mode": "reflect"}),
    Case("Tile", [Row((2, 3)), _i(1, 1)]),
    Case("Expand", [Row((2, 3)), _i(1, 1)]),
    Case("Expand", [Row((2, 3)), _i(4, 2, 3)]),
    Case("Expand", [Row((2, 1)), _i(3)]),
    Case("Gather", [Row((4, 3)), _i(2, 0)], {"axis": -2}),
    Case("Gather", [Row((4, 3)), _i(2, 0)], {"axis": -1}),
    Case("Gather", [_f(4, 3), Row((), dtype=np.int64)]),
    Case("GatherElements", [Row((4, 3)), Row((4, 2), dtype=np.int64)], {"axis": -1}),
    Case("GatherElements", [Row((4, 3)), Row((2, 3), dtype=np.int64, high=4)], {"axis": -2}),
    Case("ScatterElements", [Row((4, 3)), Row((4, 1), dtype=np.int64), Row((4, 1))], {"axis": -1}),
    Case("GatherND", [Row((4, 3, 2)), Row((4, 5, 1), dtype=np.int64)], {"batch_dims": 1}),
    Case("LayerNormalization", [Row((3, 4)), _f(4), _f(4)]),
    Case("LayerNormalization", [Row((3, 4)), _f(3, 4)], {"axis": -2}),
    Case("RMSNormalization", [Row((3, 4)), _f(3, 4)], {"axis": -2}, opset=23),
    Case("RMSNormalization", [Row((3, 4)), _f(4)], opset=23),
    Case("Gemm", [Row((2, 3)), _f(3, 4), _f(1, 4)]),
    Case("Gemm", [Row((2, 3)), _f(4, 3), _f(4)], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Trilu", [Row((2, 4, 4)), np.asarray(1)], {"upper": 0}),
    Case("Det", [Row((2, 3, 3))]),
    Case("DFT", [Row((4, 3, 2)), None, np.asarray(-3)]),
    Case("DFT", [Row((4, 3, 1))]),
    *(
        Case(op_type, [Row((4, 3), dtype=dtype, high=9), np.abs(_f(size)) / 9, zeros], {"axis": axis})
        for op_type, dtype in (("QuantizeLinear", np.float32), ("DequantizeLinear", np.int8))
        for size, axis, zeros in ((4, 0, np.int8([1, 2, 3, 4])), (3, -1, np.int8([4, 0, 5])))
    ),
    Case("QuantizeLinear", [Row((4, 3)), np.asarray(0.02, np.float32), np.asarray(3, np.int8)]),
    *(
        Case("Resize", [Row((1, 2, 3, 4)), None, np.float32(scales)], how)
        for scales, how in (([1, 1, 2, 3], {}), ([2, 3], {"axes": [2, 3], "mode": "linear"}))
    ),
    Case("Resize", [Row((2, 3)), None, np.float32([2, 1])], {"mode": "linear"}),
    Case("MaxUnpool", [Row((1, 1, 2, 2)), Row((1, 1, 2, 2), "", np.int64, 4)], UNPOOLED),
    Case("AveragePool", [Row((1, 3, 5))], {"kernel_shape": [2]}),
    Case("MaxPool", [Row((2, 3, 5))], {"kernel_shape": [2]}),
    Case("GridSample", [Row((1, 2, 3, 4)), Row((1, 2, 2, 2), "K")]),
    Case("GridSample", [Row((1, 2, 3, 4), ""), Row((1, 2, 2, 2))]),
    # one row at a time, beside what all of them share
    Case("Gemm", [Row((3, 2)), Row((3, 4), ""), _f(4)], {"transA": 1}),
    Case("Einsum", [Row((3, 3)), Row((3,), "")], {"equation": "ii,i"}),
    Case("ReverseSequence", [Row((4, 2, 3)), Row((2,), "", np.int64, 4)]),
]

# What combines or picks values along axis 0, where rows may be: a node, and whether it does.
TOUCHES = {
    "Softmax over axis 0": (Node("Softmax", [_of_rows(4, 5)], {"axis": 0}), True),
    "Softmax over another": (Node("Softmax", [_of_rows(4, 5)], {"axis": 1}), False),
    "of a number alone": (Node("Softmax", [_of_rows(4)], {"axis": 0}), False),
    "of what is no row": (Node("Softmax", [_of_rows(4, 5, rows=False)], {"axis": 0}), False),
    "beside what is one": (Node("Concat", [_of_rows(4, 5, rows=False), _of_rows(2, 5)], {"axis": 0}), True),
    "numbers beside numbers": (Node("Concat", [_of_rows(1), _of_rows(1)], {"axis": 0}), True),
    "an index alone": (Node("Gather", [_of_rows(4, 5, rows=False), _of_rows(2)], {"axis": 0}), False),
    "told by its shape": (Node("Transpose", [_of_rows(4, 5)], {"perm": [1, 0]}), False),
    "element by element": (Node("Relu", [_of_rows(4, 5)], {}), False),
    "left out": (Node("Concat", [None, _of_rows(4, 5)], {"axis": 0}), False),
    "only a Scan": (Node("ReverseSequence", [_of_rows(4, 5), None], {}), False),
}


@pytest.mark.parametrize("name", TOUCHES)
def test_what_touches_axis_0(name: str) -> None:
    node, touched = TOUCHES[name]
    assert works_on_axis_0(node) is touched


def _inputs(case: Case) -> tuple[list[np.ndarray | None], list[str]]:
    """Operands with all axes they vary over in front."""
    random = np.random.default_rng(5)
    arrays: list[np.ndarray | None] = []
    for operand in case.operands:
        if not isinstance(operand, Row):
            arrays.append(operand)
            continue
        shape = (*({"N": N, "K": K}[a] for a in operand.axes), *operand.shape)
        if operand.dtype is np.float32:
            arrays.append(random.standard_normal(shape).astype(np.float32))
        else:
            arrays.append(random.integers(0, operand.high, shape).astype(operand.dtype))
    return arrays, ["" if o is None else f"i{j}" for j, o in enumerate(case.operands)]


def _alone(case: Case, arrays: Sequence[np.ndarray | None], names: list[str]) -> list[np.ndarray]:
    """The node run by ONNX Runtime on one row."""
    used = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    results = [f"o{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op_type, names, results, **case.attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in used.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(n) for n in results]
    graph = helper.make_graph([node], "alone", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)
    answers: list[np.ndarray] = ort.InferenceSession(model.SerializeToString()).run(None, used)
    return answers


def _together(case: Case, arrays: Sequence[np.ndarray | None], names: list[str]) -> list[np.ndarray]:
    """The node as `Ops` lifts it over N and K; each output [N, K, *row]."""
    _, proto, inputs = _lifted_model(case, arrays, names)
    return ort.InferenceSession(proto.SerializeToString()).run(None, inputs)


def _lifted_model(
    case: Case, arrays: Sequence[np.ndarray | None], names: list[str]
) -> tuple[list[str], onnx.ModelProto, dict[str, np.ndarray]]:
    """The operators that the node becomes, in a model, with its inputs."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": case.opset}, name="together")
    op = Ops(graph, case.opset, {"T": 1, "K": K, "S": 1}, ir.DataType.FLOAT)
    operands: list[Any] = []
    inputs = {}
    for name, array, operand in zip(names, arrays, case.operands, strict=True):
        if not isinstance(operand, Row):
            operands.append(array)
            continue
        assert array is not None
        dims = [N if a == "N" else K for a in operand.axes]
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)))
        value.shape = ir.Shape([*dims, *operand.shape])
        graph.inputs.append(value)
        inputs[name] = array
        varying = bool(operand.axes)
        tensor = Tensor(
            value, operand.shape, value.dtype, frozenset(operand.axes), varying, tuple(operand.axes) or None
        )
        operands.append(tensor)
        if operand.axes == "N":
            op.bind_batch(op.reshape(tensor, (1, *operand.shape)))
    answers = op.emit(case.op_type, operands, case.attributes, outputs=case.outputs)
    op_types = [node.op_type for node in graph]
    for i, answer in enumerate(answers):
        full = op.split(op.vary(answer, frozenset("NK")), "NK")
        copy = op.Identity(full).value
        copy.name, copy.dtype, copy.shape = f"o{i}", answer.dtype, None
        graph.outputs.append(copy)
    return op_types, ir.to_proto(ir.Model(graph, ir_version=10)), inputs


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_among_others_is_as_alone(case: Case) -> None:
    arrays, names = _inputs(case)
    if "N" not in "".join(getattr(o, "axes", "") for o in case.operands):
        pytest.fail("a case needs an operand that varies over N")
    got = _together(case, arrays, names)
    for n, k in np.ndindex(N, K):
        place = {"N": n, "K": k}
        row = [
            np.asarray(a[tuple(place[axis] for axis in o.axes)])
            if isinstance(o, Row) and a is not None
            else a
            for a, o in zip(arrays, case.operands, strict=True)
        ]
        for together, alone in zip(got, _alone(case, row, names), strict=True):
            assert together[n, k].shape == alone.shape
            np.testing.assert_allclose(together[n, k], alone, rtol=1e-5, atol=1e-6)


def test_only_what_no_layout_suits_is_run_row_by_row() -> None:
    """A Scan is right for all of them, and slow."""
    scanned: Counter[str] = Counter()
    for case in CASES:
        arrays, names = _inputs(case)
        scanned[case.op_type] += "Scan" in _lifted_model(case, arrays, names)[0]
    several = {"Gather": 3, "Gemm": 4, "Einsum": 2, "ReverseSequence": 2, "MaxUnpool": 2}
    assert +scanned == {**several, "ScatterND": 1, "Conv": 1, "Resize": 1}


# --- models whose batch is not on axis 0 throughout --------------------------------------------------------


THERE_AND_BACK = parsed(
    """g (float[N, 3, 4] x) => (float[N, 3, 2] y) {
        a = Transpose <perm = [1, 0, 2]> (x)
        b = MatMul (a, w)
        c = Tanh (b)
        y = Transpose <perm = [1, 0, 2]> (c)
    }""",
    {"w": _f(4, 2)},
)
LAST_STEP = parsed(
    """g (float[N, 3, 4] x) => (float[N, 4] y) {
        a = Transpose <perm = [1, 0, 2]> (x)
        b = Sigmoid (a)
        y = Gather <axis = 0> (b, i)
    }""",
    {"i": np.asarray(-1)},
)
SIZED = parsed(
    """g (float[N, 3, 4] x) => (float[N, 6, 2] y) {
        a = Transpose <perm = [1, 0, 2]> (x)
        s = Shape <start = 1, end = 2> (a)
        two = Mul (s, t)
        target = Concat <axis = 0> (l, two, r)
        b = Reshape (a, target)
        c = Softmax <axis = 0> (b)
        back = Concat <axis = 0> (l, s, d)
        e = Reshape (c, back)
        f = Transpose <perm = [1, 0, 2]> (e)
        last = Concat <axis = 0> (s, six, r)
        y = Reshape (f, last)
    }""",
    {"t": _i(2), "l": _i(3), "r": _i(2), "d": _i(4), "six": _i(6)},
)
MOVED = {"there and back": THERE_AND_BACK, "last step": LAST_STEP, "heads beside the batch": SIZED}


@pytest.mark.parametrize("name", MOVED)
def test_the_batch_may_leave_axis_0_and_come_back(name: str) -> None:
    compiled = compile_model(MOVED[name], DeepShap(rows(3, 3, 4)), targets="all")
    x = rows(5, 3, 4, seed=1)
    together = compiled.explain(x)
    assert np.abs(together["completeness_gap"]).max() < 1e-6
    for i in range(len(x)):
        alone = compiled.explain(x[i : i + 1])
        np.testing.assert_allclose(together["x_attributions"][i], alone["x_attributions"][0], atol=1e-6)


def test_a_softmax_over_the_batch_beside_axis_0_is_found() -> None:
    mixing = parsed("""g (float[N, 3] x) => (float[N, 3] y) {
        a = Transpose (x) b = Softmax <axis = 1> (a) y = Transpose (b)
    }""")
    with pytest.raises(UnsupportedModelError, match=r"Softmax node .*--output"):
        compile_model(mixing, Gradient(), targets="all")


# --- models for one row ------------------------------------------------------------------------------------


ONE_ROW = parsed(
    """g (float[1, 3, 4] x) => (float[1, 3] y, float[3, 4] z) {
        a = Squeeze (x, zero)
        z = Softmax <axis = 0> (a)
        t = Transpose (z)
        p = MatMul (z, t)
        m = ReduceMax <keepdims = 0> (p, one)
        y = Unsqueeze (m, zero)
    }""",
    {"zero": _i(0), "one": _i(1)},
)


def test_a_model_for_one_row_gets_a_batch() -> None:
    compiled = compile_model(ONE_ROW, DeepShap(rows(3, 3, 4)), targets="all")
    x = rows(5, 3, 4, seed=1)
    answer = compiled.explain(x)
    assert np.abs(answer["completeness_gap"]).max() < 1e-6
    session = ort.InferenceSession(ONE_ROW.SerializeToString())
    for i in range(len(x)):
        y, z = session.run(None, {"x": x[i : i + 1]})
        np.testing.assert_allclose(answer["y"][i], y[0], atol=1e-6)
        np.testing.assert_allclose(answer["z"][i], z, atol=1e-6)


def test_the_plain_entry_of_a_model_for_one_row_has_a_batch_too(tmp_path: Any) -> None:
    compiled = compile_model(ONE_ROW, Gradient(), targets="all")
    compiled.write(tmp_path, "one")
    plain = ort.InferenceSession(str(tmp_path / "one" / "1" / "model.onnx"))
    x = rows(5, 3, 4, seed=1)
    y, z = plain.run(["y", "z"], {"x": x})
    assert (y.shape, z.shape) == ((5, 3), (5, 3, 4))
    want = ort.InferenceSession(ONE_ROW.SerializeToString()).run(None, {"x": x[3:4]})
    np.testing.assert_allclose(y[3], want[0][0], atol=1e-6)
    np.testing.assert_allclose(z[3], want[1], atol=1e-6)


def test_a_fixed_batch_that_can_be_symbolic_stays_as_exported() -> None:
    """The plain entry holds the model's own nodes where those are right for a batch."""
    model = parsed(
        "g (float[1, 5] x) => (float[1, 5] y) { a = Reshape (x, s) y = Tanh (a) }", {"s": _i(1, 5)}
    )
    compiled = compile_model(model, Gradient(), targets=[0])
    kinds = [n.op_type for n in onnx.ModelProto.FromString(compiled.source.SerializeToString()).graph.node]
    assert kinds == ["Reshape", "Tanh"]
    assert compiled.source.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
