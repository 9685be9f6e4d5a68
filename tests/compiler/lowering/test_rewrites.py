"""Lowering by value: what a rewrite puts in an operator's place answers as the operator does."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from rationale.lowering import lower
from rationale.testing import Sample, Var
from tests.compiler.models import parsed
from tests.compiler.samples import SAMPLES, parameters
from tests.references.interpreter import run64
from tests.tolerances import COMPLETE_64, PARITY_32

N = 3
RANDOM = np.random.default_rng(11)


def lowered(model: onnx.ModelProto) -> onnx.ModelProto:
    return ir.serde.serialize_model(lower(model).model)


def assert_same(
    original: onnx.ModelProto,
    rewritten: onnx.ModelProto,
    x: dict[str, np.ndarray],
    near: float = COMPLETE_64,
    one_by_one: bool = False,
) -> None:
    """Every output that both have, on all rows at once or on one row at a time."""
    count = len(next(iter(x.values())))
    parts = [{k: v[i : i + 1] for k, v in x.items()} for i in range(count)] if one_by_one else [x]
    for batch in parts:
        want, got = run64(original, batch), run64(rewritten, batch)
        for name, value in want.items():
            assert np.isfinite(value).all(), name
            assert got[name].shape == value.shape, name
            assert np.abs(got[name] - value).max() <= near * max(1.0, np.abs(value).max()), name


def check(sample: Sample) -> onnx.ModelProto:
    dtype = np.float64 if sample.float64 else np.float32
    model = sample.model(dtype)
    rewritten = lowered(model)
    near = COMPLETE_64 if sample.float64 else PARITY_32  # what a rewrite writes down is rounded to float32
    assert_same(model, rewritten, sample.draw(N, 3, dtype), near, one_by_one=sample.bare)
    return rewritten


def array(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return RANDOM.uniform(low, high, shape)


def ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, np.int64)


@pytest.mark.parametrize("sample", parameters(SAMPLES))
@pytest.mark.usefixtures("float64_engine")
def test_what_lowering_makes_of_a_sample_answers_as_it_does(sample: Sample) -> None:
    check(sample)


def sample_of(
    op_type: str, *operands: Var | np.ndarray | None, how: object = None, **attributes: object
) -> Sample:
    """A sample with its attributes as keywords; `how` are its other fields."""
    return replace(Sample(op_type, operands, attributes), **(how or {}))


X, IMAGE, HALF = Var((3, 4)), Var((4, 5, 6)), Var((3, 4), 0.2, 2.0)
BARE, SINGLE, NEW = {"bare": True}, {"float64": False}, {"opset": 26, "float64": False}

# What the samples of the rules leave out: attributes at their defaults and away from them, negative axes, odd
# lengths, one operand and several, optional operands left out. With the operators that are left, in order:
# attributions depend on them.
REWRITTEN: list[tuple[Sample, str]] = [
    (sample_of("LogSoftmax", X, axis=-2), "ReduceLogSumExp Sub"),
    (sample_of("HardSwish", Var((6,), -7.0, 7.0)), "Mul Add Clip Mul"),
    (sample_of("Swish", X, how={"opset": 24}), "Sigmoid Mul"),
    (sample_of("Swish", X, alpha=-0.7, how={"opset": 24}), "Mul Sigmoid Mul"),
    (sample_of("Gelu", Var((7,), -4.0, 4.0)), "Mul Mul Erf Add Mul"),
    (sample_of("GlobalMaxPool", Var((2, 3, 2, 4))), "ReduceMax"),
    (sample_of("Mean", X), "Sum Mul"),
    (sample_of("Max", X), "Identity"),
    (sample_of("Min", X), "Identity"),
    (sample_of("Max", X, Var((3, 1)), Var((4,)), X), "Max Max Max"),
    (sample_of("Min", X, Var((3, 1)), Var((4,))), "Neg Neg Neg Max Max Neg"),
    (sample_of("ReduceMin", X, ints(-1), keepdims=0), "Neg ReduceMax Neg"),
    (sample_of("Celu", Var((6,), -3.0, 3.0), alpha=1.7, how=SINGLE), "Mul Elu Mul"),
    (sample_of("ReduceL1", IMAGE, ints(-2, 1), keepdims=0), "Abs ReduceSum"),
    (
        sample_of("MeanVarianceNormalization", Var((2, 3, 4)), axes=[-1]),
        "ReduceMean Sub Mul ReduceMean Sqrt Add Div",
    ),
    (sample_of("LpPool", Var((2, 9)), kernel_shape=[3]), "Mul Conv Sqrt"),
    (sample_of("LpPool", Var((2, 8)), kernel_shape=[3], strides=[2]), "Mul Conv Sqrt"),
    (sample_of("LpPool", Var((2, 9)), kernel_shape=[3], p=1, auto_pad="SAME_UPPER", strides=[2]), "Abs Conv"),
    (
        sample_of(
            "LpPool", Var((2, 8, 7)), kernel_shape=[2, 3], strides=[3, 2], dilations=[2, 1], ceil_mode=1
        ),
        "Mul Conv Sqrt",
    ),
    (
        sample_of("LpPool", Var((2, 7)), kernel_shape=[2], strides=[3], pads=[1, 0], ceil_mode=1, p=3),
        "Abs Pow Conv Pow",
    ),
    (
        sample_of("LpPool", Var((2, 5)), kernel_shape=[2], strides=[3], pads=[0, 1], ceil_mode=1),
        "Mul Conv Sqrt",
    ),
    (sample_of("CumProd", Var((2, 5)), np.asarray(-1), how=NEW), "Pad Mul Pad Mul Pad Mul"),
    (sample_of("CumProd", Var((4, 2)), np.asarray(1), exclusive=1, how=NEW), "Pad Pad Mul Pad Mul"),
    (sample_of("CumProd", Var((3, 2)), np.asarray(-2), reverse=1, how=NEW), "Pad Mul Pad Mul"),
    (sample_of("CumProd", Var((3, 1)), np.asarray(2), how=NEW), "Identity"),
    (sample_of("PRelu", X, Var((3, 1))), "Relu Neg Relu Mul Sub"),
    (sample_of("Clip", X, Var((), -0.5, -0.2), None, how=BARE), "Max"),
    (sample_of("Clip", X, None, Var((), 0.2, 0.5), how=BARE), "Neg Neg Max Neg"),
    (sample_of("Clip", X, Var((), -0.9, -0.4), Var((), 0.1, 0.5), how=BARE), "Max Neg Neg Max Neg"),
    (sample_of("Pow", HALF, X), "Log Mul Exp"),
    (
        sample_of("Pow", HALF, X, how={"given_as": {1: TensorProto.INT32}}),
        "Mul Sign Abs Floor Mul Cast Cast Log Mul Exp",
    ),
    (sample_of("Einsum", X, Var((4, 2)), Var((2, 3)), equation="nij,njk,nki->n"), "Einsum Einsum"),
    (sample_of("Einsum", X, X, X, X, equation="n...j,n...j,n...j,n...j->n..."), "Einsum Einsum Einsum"),
    (
        sample_of("LayerNormalization", X, Var((1, 4)), Var((1, 4)), axis=2),
        "ReduceMean Sub Mul ReduceMean Add Sqrt Reciprocal Mul Mul Add",
    ),
    (
        sample_of("LayerNormalization", X, Var((1, 4)), axis=-1, epsilon=0.2),
        "ReduceMean Sub Mul ReduceMean Add Sqrt Reciprocal Mul Mul",
    ),
    (
        sample_of("RMSNormalization", IMAGE, Var((1, 5, 6)), axis=2, epsilon=0.3, how={"opset": 23}),
        "RMSNormalization Mul",
    ),
    (
        sample_of("RMSNormalization", IMAGE, Var((1, 1, 6)), axis=-1, how={"opset": 23}),
        "RMSNormalization Mul",
    ),
    (
        sample_of("InstanceNormalization", IMAGE, Var((5,)), Var((5,)), epsilon=0.2, how=BARE),
        "InstanceNormalization Mul Add",
    ),
    (
        sample_of("BatchNormalization", IMAGE, *(Var((5,)),) * 3, Var((5,), 0.3, 2.0), epsilon=0.1, how=BARE),
        "Sub Add Sqrt Div Mul Add",
    ),
    (
        sample_of("BatchNormalization", X, *(array(4),) * 3, Var((4,), 0.3, 2.0), how=BARE),
        "Sub Add Sqrt Div Mul Add",
    ),
    (sample_of("CastLike", X, np.zeros(2)), "Cast"),
    (sample_of("Compress", X, np.asarray([False, True, True]), axis=0, how=BARE), "Gather"),
    (
        sample_of("OneHot", Var((3,), -6.0, 6.0), np.asarray(5), np.asarray([-0.3, 1.5]), axis=1),
        "Reshape Sub Sign Abs Sub Sub Sign Abs Sub Add Mul Add",
    ),
    (
        sample_of(
            "OneHot", np.asarray([[-5, 4, 0], [1, 5, -6]]), np.asarray(5), Var((2,)), axis=-2, how=BARE
        ),
        "Gather Gather Where",
    ),
    (
        sample_of(
            "GatherND", IMAGE, Var((6, 1), -1.3, 1.3), how={"given_as": {1: TensorProto.INT64}, **BARE}
        ),
        "Mul Sign Abs Floor Mul Cast Gather",
    ),
    (
        sample_of("TensorScatter", Var((2, 3, 5)), Var((2, 3, 2)), axis=-1, how={"opset": 24, **BARE}),
        "Reshape Reshape Shape Expand ScatterElements Reshape",
    ),
    (
        sample_of(
            "ScatterElements",
            Var((3, 4)),
            np.asarray([[0, -1], [2, 2], [1, 3]]),
            Var((3, 2)),
            axis=-1,
            reduction="max",
            how=BARE,
        ),
        "Slice GatherElements Max ScatterElements Slice GatherElements Max ScatterElements",
    ),
    (
        sample_of(
            "ScatterND",
            Var((3, 4)),
            np.asarray([[[0], [2]], [[2], [-1]]]),
            Var((2, 2, 4)),
            reduction="mul",
            how=BARE,
        ),
        "Shape Concat Reshape" + 3 * " Gather Gather Mul ScatterND",
    ),
]


def label(case: tuple[Sample, str]) -> str:
    more = " ".join(f"{k}={v}" for k, v in case[0].attributes.items())
    return f"{case[0].label} {more}".replace("[", "(").replace("]", ")")


@pytest.mark.parametrize("case", REWRITTEN, ids=label)
@pytest.mark.usefixtures("float64_engine")
def test_a_rewrite_answers_as_the_operator(case: tuple[Sample, str]) -> None:
    sample, remaining = case
    rewritten = check(sample)
    inside = [
        n.op_type
        for n in rewritten.graph.node
        if not sample.bare or n.op_type not in ("Squeeze", "Unsqueeze")
    ]
    assert inside == remaining.split()


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
def test_a_scale_for_each_block_of_an_axis(axis: int) -> None:
    scale = array(*(2 if i == axis % 3 else n for i, n in enumerate((2, 4, 6))), low=0.1, high=0.5)
    size = (2, 4, 6)[axis] // 2
    how = {"given_as": {0: TensorProto.INT8}, **SINGLE, **BARE}
    sample = sample_of("DequantizeLinear", Var((2, 4, 6)), scale, axis=axis, block_size=size, how=how)
    x = sample.draw(1, 3, np.float32)
    (y,) = run64(lowered(sample.model(np.float32)), x).values()
    want = np.trunc(3 * x["x0_row"][0]) * scale.repeat(size, axis)
    np.testing.assert_allclose(y[0], want, rtol=PARITY_32)


# -- where a rewrite does not apply ---------------------------------------------------------------------

UNCHANGED = [
    (sample_of("Max", X, Var((3, 1))), "Max"),
    (sample_of("PRelu", X, array(4)), "PRelu"),
    (sample_of("Clip", X, np.asarray(-0.5), np.asarray(0.8)), "Clip"),
    (sample_of("Pow", HALF, np.asarray(1.7)), "Pow"),
    (sample_of("Einsum", X, Var((4, 2)), equation="nij,njk->nik"), "Einsum"),
    (sample_of("Einsum", X, array(4, 5), array(5, 2), equation="nij,jk,kl->nil"), "Einsum"),
    (sample_of("LayerNormalization", X, array(4), array(4)), "LayerNormalization"),
    (sample_of("RMSNormalization", X, array(4), how={"opset": 23}), "RMSNormalization"),
    (sample_of("InstanceNormalization", IMAGE, array(4), array(4)), "InstanceNormalization"),
    (
        sample_of("BatchNormalization", IMAGE, *(array(4),) * 3, array(4, low=0.3, high=2.0)),
        "BatchNormalization",
    ),
    (
        sample_of(
            "ScatterElements", X, np.asarray([[0, 3], [1, 2]]), Var((2, 2)), axis=1, reduction="add", how=BARE
        ),
        "ScatterElements",
    ),
    (sample_of("ScatterND", X, np.asarray([[0], [0]]), Var((2, 4)), reduction="add", how=BARE), "ScatterND"),
    (sample_of("Cast", X, to="own"), "Cast"),
    (sample_of("GatherND", IMAGE, np.asarray([[2], [-1]]), how=BARE), "GatherND"),
    (
        sample_of(
            "GatherND",
            Var((2, 3)),
            Var((2, 4, 1), 0.0, 0.6),
            batch_dims=1,
            how={"given_as": {1: TensorProto.INT64}},
        ),
        "Mul Sign Abs Floor Mul Cast GatherND",
    ),
]


@pytest.mark.parametrize("case", UNCHANGED, ids=label)
@pytest.mark.usefixtures("float64_engine")
def test_an_operator_with_a_rule_of_its_own_stays(case: tuple[Sample, str]) -> None:
    test_a_rewrite_answers_as_the_operator(case)


# -- idioms of exporters: nodes that stand for something together ----------------------------------------

SOFTPLUS = """
    m = Mul (x, two)  c = Greater (m, limit)  s = Softplus (m)  d = Div (s, two)  y = Where (c, x, d)
"""
MASKED = "s = Softmax <axis = 2> (x)  y = Where (mask, zero, s)"
CONSTANTS = {
    "two": np.float32(2),
    "three": np.float32(3),
    "limit": np.float32(20),
    "low": np.float32(19),
    "zero": np.float32(0),
    "mask": np.asarray([[[False], [True], [False]]]),
    "along": np.asarray([[[False, True, False, True]]]),
    "begin": ints(0),
    "one": ints(1),
    "pair": ints(2),
    "minus": ints(-1),
    "end": ints(2**31 - 1),
    "far": ints(-(2**31)),
    "soon": ints(3),
    "axis": ints(1),
    "both": ints(0, 0),
    "ends": ints(2**31 - 1, 2**40),
    "axes": ints(0, 1),
    "late": ints(0, 1),
    "places": np.asarray([[[0, 1], [2, 3], [-1, 0]], [[1, 1], [0, -4], [2, 2]]]),
}
# By name: the graph, the operators that are left, and the shape of a row of y.
IDIOMS: dict[str, tuple[str, str]] = {
    "a guarded softplus": (SOFTPLUS, "Mul Softplus Div Identity"),
    "a guarded softplus with β = 1": (
        "c = Greater (x, limit)  s = Softplus (x)  y = Where (c, x, s)",
        "Softplus Identity",
    ),
    "a softplus guarded too early": (SOFTPLUS.replace("limit", "low"), "Mul Greater Softplus Div Where"),
    "a softplus guarded by another value": (
        SOFTPLUS.replace("Greater (m", "Greater (x"),
        "Mul Greater Softplus Div Where",
    ),
    "a softplus in place of another value": (
        SOFTPLUS.replace("(c, x, d)", "(c, m, d)"),
        "Mul Greater Softplus Div Where",
    ),
    "a softplus of another scale": (
        SOFTPLUS.replace("(s, two)", "(s, three)"),
        "Mul Greater Softplus Div Where",
    ),
    "a guard that is no guard": (SOFTPLUS.replace("Greater", "Less"), "Mul Less Softplus Div Where"),
    "rows of scores that are masked": (MASKED, "Where Softmax Where"),
    "a negative axis": (MASKED.replace("= 2", "= -1"), "Where Softmax Where"),
    "scores that are masked one by one": (MASKED.replace("mask", "along"), "Softmax Where"),
    "a softmax along another axis": (MASKED.replace("= 2", "= 1"), "Softmax Where"),
    "a slice of everything": ("y = Slice (x, begin, end)", "Identity"),
    "a slice of everything, in two axes": ("y = Slice (x, both, ends, axes)", "Identity"),
    "with steps of 1": ("y = Slice (x, begin, end, axis, one)", "Identity"),
    "a slice from a place on": ("y = Slice (x, one, end, axis)", "Slice"),
    "from a place on, in one of two axes": ("y = Slice (x, late, ends, axes)", "Slice"),
    "a slice up to a place": ("y = Slice (x, begin, soon, axis)", "Slice"),
    "a slice backwards": ("y = Slice (x, minus, far, axis, minus)", "Slice"),
    "every second of a slice": ("y = Slice (x, begin, end, axis, pair)", "Slice"),
}


def small(body: str, result: str = "float[N, ?, ?] y", shape: str = "N, 3, 4") -> onnx.ModelProto:
    return parsed(
        f"g (float[{shape}] x) => ({result}) {{ {body} }}", {k: v for k, v in CONSTANTS.items() if k in body}
    )


@pytest.mark.parametrize("name", IDIOMS)
@pytest.mark.usefixtures("float64_engine")
def test_an_idiom_answers_as_its_nodes(name: str) -> None:
    body, remaining = IDIOMS[name]
    model = small(body)
    rewritten = lowered(model)
    assert [n.op_type for n in rewritten.graph.node] == remaining.split()
    x = RANDOM.uniform(-30, 30, (N, 3, 4))
    assert_same(model, rewritten, {"x": x}, PARITY_32)


@pytest.mark.parametrize("bounds", ["n, end, axis", "begin, n, axis", "begin, end, axis, n"])
def test_a_slice_by_what_is_computed_stays(bounds: str) -> None:
    model = small(f"n = Shape <end = 1> (x)  y = Slice (x, {bounds})")
    assert [n.op_type for n in lowered(model).graph.node] == ["Shape", "Slice"]


PLACES = np.asarray([[[0, 1], [2, 3], [-1, 0]], [[1, 1], [0, -4], [2, 2]]])  # [2, 3, 2] of a plane of 3 by 4
POOLED = "t = Transpose <perm = [2, 3, 0, 1]> (x)  g = GatherND (t, places)  y = Transpose <perm = {}> (g)"


@pytest.mark.parametrize(
    ("perm", "remaining"),
    [
        ("[2, 3, 0, 1]", "Reshape Gather"),
        ("[2, 3, 1, 0]", "Reshape Gather Transpose"),
        ("[2, 0, 3, 1]", "Reshape Gather Transpose"),
    ],
)
@pytest.mark.usefixtures("float64_engine")
def test_places_of_a_plane_leave_the_batch_in_front(perm: str, remaining: str) -> None:
    text = f"g (float[N, 2, 3, 4] x) => (float[N, ?, ?, ?] y) {{ {POOLED.format(perm)} }}"
    model = parsed(text, {"places": PLACES})
    rewritten = lowered(model)
    assert [n.op_type for n in rewritten.graph.node] == remaining.split()
    assert_same(model, rewritten, {"x": array(N, 2, 3, 4)})


@pytest.mark.parametrize(
    ("body", "remaining"),
    [
        ("i = Transpose (ids)  y = Gather (table, i)", "Gather Transpose"),
        ("i = Transpose (ids)  y = Gather <axis = 1> (table, i)", "Transpose Gather"),
        ("i = Add (ids, ids)  y = Gather (table, i)", "Add Gather"),
        ("t = Mul (table, by)  i = Transpose (ids)  y = Gather (t, i)", "Mul Transpose Gather"),
    ],
    ids=["rows", "columns", "ids that are not turned", "a table that is computed"],
)
def test_turned_ids_look_up_rows_of_a_constant_table_before_they_turn(body: str, remaining: str) -> None:
    text = f"g (int64[N, 2] ids, float by) => (float[?, ?, ?] y) {{ {body} }}"
    model = parsed(text, {"table": array(5, 3).astype(np.float32)})
    rewritten = lowered(model)
    assert [n.op_type for n in rewritten.graph.node] == remaining.split()
    assert_same(
        model, rewritten, {"ids": np.asarray([[0, 1], [1, 1], [0, 0]]), "by": np.float32(2)}, PARITY_32
    )


@pytest.mark.usefixtures("float64_engine")
def test_a_concatenation_of_what_is_concatenated_already_is_nested() -> None:
    """By the longest that is there; never along another axis, nor where the beginning differs."""
    body = """
        a = Relu (x)  b = Tanh (x)  c = Sigmoid (x)
        ab = Concat <axis = 1> (a, b)
        abx = Concat <axis = 1> (a, b, x)
        abxc = Concat <axis = 1> (a, b, x, c)
        bax = Concat <axis = 1> (b, a, x)
        other = Concat <axis = 2> (a, b, x)
        s = ReduceSum <keepdims = 1> (other, axis)
        y = Concat <axis = 1> (ab, abx, abxc, bax)
        z = Concat <axis = 2> (s, s)
    """
    text = f"g (float[N, 3, 4] x) => (float[N, ?, ?] y, float[N, ?, ?] z, float[N, ?, ?] abxc) {{ {body} }}"
    model = parsed(text, {"axis": ints(1)})
    rewritten = lowered(model)
    joined = {n.output[0]: list(n.input) for n in rewritten.graph.node if n.op_type == "Concat"}
    assert joined == {
        "ab": ["a", "b"],
        "abx": ["ab", "x"],
        "abxc": ["abx", "c"],
        "bax": ["b", "a", "x"],
        "other": ["a", "b", "x"],
        "y": ["ab", "abx", "abxc", "bax"],
        "z": ["s", "s"],
    }
    assert_same(model, rewritten, {"x": array(N, 3, 4)})
