"""A length that stays open: one graph, which answers at each length as the one that was compiled for it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rationale import AttnLrp, DeepShap, Deployment, Gradient, Lrp, compile_model
from rationale.artifact.entry import open_entry
from rationale.artifact.finishing.formulas import Beginning, DiffersError, Polynomial, Share, formula
from rationale.artifact.finishing.open_length import differences
from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.schema.manifest import OpenLength
from tests.compiler.models import parsed, rows
from tests.models.transformers import BERT, BertLike, drawn, exported
from tests.tolerances import PARITY_32

MOST = 17
MIXED = parsed(
    """g (float[N, steps, 4] x) => (float[N, 3] y) <int64[1] first = {0}, int64[1] one = {1}> {
        steps1 = Shape <start = 1, end = 2> (x)
        places = Slice (table, first, steps1, first)
        a = Add (x, places)
        b = MatMul (a, w)
        c = Tanh (b)
        p = Softmax <axis = 1> (c)
        d = Mul (p, c)
        mean = ReduceMean <keepdims = 0> (c, one)
        sum = ReduceSum <keepdims = 0> (d, one)
        y = Mul (mean, sum)
    }""",
    {"w": rows(4, 3), "table": rows(40, 4, seed=5)},
)  # a table of positions, a mean over the steps, a softmax over them
LSTM = parsed(
    """g (float[N, S, 2] x) => (float[N, 3] y) {
        t = Transpose <perm = [1, 0, 2]> (x)
        all, last = LSTM <hidden_size = 3> (t, w, r)
        y = Squeeze (last, first)
    }""",
    {"w": rows(1, 12, 2), "r": rows(1, 12, 3), "first": np.asarray([0])},
)


# Graphs for two lengths: constants of another value may stand at one place; what else differs is said.
SAME, TWICE = "s = Add (x, c) y = Mul (s, d)", "s = Mul (x, c) t = Mul (s, c) y = Mul (t, s)"
PAIRS: dict[str, tuple[str, str, str | None]] = {
    "the same": (SAME, SAME, None),
    "read twice": (TWICE, TWICE, None),
    "an operand left out": ("y = Clip (x, c, d)", "y = Clip (x, , d)", "lacks an operand for some lengths"),
    "an operand less": ("y = Clip (x, c, d)", "y = Clip (x, c)", "for another length"),
    "another operator": (SAME, SAME.replace("Add", "Sub"), "is Sub node .* for another length"),
    "the other output": (
        "p, q = Split <axis = 0> (x, e) y = Neg (p)",
        "p, q = Split <axis = 0> (x, e) y = Neg (q)",
        "for another length",
    ),
    "another attribute": ("y = Softmax <axis = 0> (x)", "y = Softmax <axis = 1> (x)", "its axis depends"),
    "an attribute left out": ("y = Softmax <axis = 0> (x)", "y = Softmax (x)", "its axis depends"),
    "computed for one alone": ("s = Neg (x) y = Mul (s, s)", "y = Mul (x, x)", "'s' is computed only for"),
    "another input": ("y = Neg (x)", "y = Neg (z)", "'x' is computed only for some"),
    "one for several": ("s = Add (x, c) y = Mul (s, c)", "s = Add (x, c) y = Mul (s, d)", None),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_between_two_lengths(name: str) -> None:
    first, second, words = PAIRS[name]
    held = {"c": np.float32(1), "d": np.float32(2), "e": np.int64([1, 1])}
    models = [
        ir.from_proto(
            parsed(
                f"g (float[2, 3] x, float[2, 3] z) => (float[A, B] y) {{ {body} }}",
                {k: v for k, v in held.items() if f" {k}" in body.replace("(", "( ")},
            )
        )
        for body in (first, second)
    ]
    if words is not None:
        with pytest.raises(DiffersError, match=words):
            differences(models)
        return
    constants = differences(models)
    assert all(len(values) == 2 for values in constants.values())
    assert {(node.op_type, i) for node, i in constants} == {
        (node.op_type, i)
        for node in models[0].graph
        for i, value in enumerate(node.inputs)
        if value is not None and value.const_value is not None
    }


def assert_same_as_fixed(
    model: onnx.ModelProto,
    method: Any,
    name: str,
    lengths: tuple[int, ...],
    span: tuple[int, int] = (1, MOST),
) -> None:
    compiled = compile_model(model, method, targets="all", sizes={name: span})
    for length in lengths:
        fixed = compile_model(model, method, targets="all", sizes={name: length})
        width = fixed.manifest.explained[0].tensor.shape[-1]
        x = rows(3, length, width, seed=length)
        got, want = compiled.explain(x), fixed.explain(x)
        assert got.keys() == want.keys()
        for key, value in want.items():
            assert got[key].shape == value.shape
            whole = want["explained_value"] if key == "completeness_gap" else value  # what it is rounding of
            np.testing.assert_allclose(got[key], value, atol=PARITY_32 * np.abs(whole).max(), rtol=0)


@pytest.mark.parametrize(
    "method",
    [pytest.param(Gradient(times_input=True), marks=pytest.mark.slow), AttnLrp()],
    ids=lambda m: m.name,
)
def test_attention_over_any_length(method: Any) -> None:
    """1 and lengths that other axes have, too: three heads of 4, of 12 together."""
    model = exported(drawn(BertLike(blocks=1)), BERT, dynamo=method.name == "gradient", open_length=True)
    name = model.graph.input[0].type.tensor_type.shape.dim[1].dim_param
    assert_same_as_fixed(model, method, name, (1, 12))


def test_positions_and_means_over_any_length() -> None:
    assert_same_as_fixed(MIXED, Gradient(), "steps", (1, 4))


def test_a_share_that_is_one_number() -> None:
    """A mean's share of relevance, 1/S, has no axes."""
    model = parsed(
        """g (float[N, S, 4] x) => (float[N, 2] y) {
            z = MatMul (x, w)
            h = Relu (z)
            m = ReduceMean <keepdims = 0> (h, one)
            y = MatMul (m, v)
        }""",
        {"w": rows(4, 5), "v": rows(5, 2, seed=1), "one": np.int64([1])},
    )
    assert_same_as_fixed(model, Lrp(), "S", (2, 5, 9), (2, 9))


def test_the_entry_says_that_the_length_is_open(tmp_path: Path) -> None:
    compiled = compile_model(MIXED, Gradient(), targets=[0, 2], sizes={"steps": (2, MOST)})
    assert compiled.manifest.explained[0].tensor.shape == (-1, 4)
    assert any("steps = 2 to 17" in warning for warning in compiled.manifest.warnings)
    compiled.write(tmp_path, "m")
    entry = open_entry(tmp_path, "m")
    for length in (1, MOST + 1):
        with pytest.raises(InvalidOptionError, match=rf"steps = {length}, but .* compiled for 2 to {MOST}"):
            entry.explain(rows(3, length, 4))
    for length in (2, 5, MOST):
        assert entry.explain(rows(3, length, 4))["x_attributions"].shape == (3, 2, length, 4)


def test_other_lengths_are_another_explainer() -> None:
    """Its digest names the artefact: one for 2 to 9 steps does not answer as one for 3 to 9 does."""
    text = """g (float[N, steps, 2] x) => (float[N, 2] y) <int64[1] one = {1}> {
        y = ReduceSum <keepdims = 0> (x, one)
    }"""
    digests = [
        compile_model(parsed(text), Gradient(), targets=[0], sizes={"steps": ends}).manifest.digests
        for ends in ((2, 9), (2, 9), (3, 9), (2, 8))
    ]
    assert digests[0] == digests[1]
    assert len({one.explanation for one in digests}) == 3
    assert len({one.model for one in digests}) == 1


@pytest.mark.parametrize(
    ("sizes", "options", "reason"),
    [
        ({"steps": (5, 6)}, {}, r"\(1, 128\)"),
        ({"steps": (0, 6)}, {}, r"\(1, 128\)"),
        ({"steps": (1, 9)}, {"deployment": Deployment(one_shot=True)}, "leave one-shot out"),
        ({"steps": (1, 9)}, {"method": DeepShap(rows(2, 9, 4))}, "take a method without references"),
    ],
)
def test_what_has_one_length(sizes: dict[str, Any], options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidOptionError, match=reason):
        compile_model(MIXED, **{"method": Gradient(), "targets": "all", "sizes": sizes, **options})


def test_what_is_written_out_step_by_step_has_one_length() -> None:
    with pytest.raises(UnsupportedModelError, match=r"S = 1 to 4: .*--size S=4"):
        compile_model(LSTM, Gradient(), targets="all", sizes={"S": (1, 4)})


LENGTHS = (9, 7, 6, 4)


def test_a_constant_is_a_formula_of_the_length() -> None:
    def graph_with(constant: Any) -> Any:
        return formula([np.asarray(constant(n)) for n in LENGTHS], LENGTHS)

    table = rows(9, 3)
    assert graph_with(lambda _: [-1, 3, 5]) is None
    polynomial = graph_with(lambda n: [-1, 3 * n, n * n - n])
    assert isinstance(polynomial, Polynomial)
    assert [c.tolist() for c in polynomial.coefficients] == [[-1, 0, 0], [0, 3, -1], [0, 0, 1]]
    share = graph_with(lambda n: np.float32(2.5 / n))
    assert isinstance(share, Share)
    assert share.numerator == pytest.approx(2.5)
    beginning = graph_with(lambda n: table[:n])
    assert isinstance(beginning, Beginning)
    assert beginning.axes == (0,)


NO_FORMULA = {
    "cube": lambda n: n**3,
    "half": lambda n: n // 2,
    "root": np.sqrt,
    "turned round": lambda n: np.arange(n)[::-1],
    "drawn": lambda n: rows(n, 2, seed=n),
}


@pytest.mark.parametrize("name", NO_FORMULA)
def test_what_is_no_formula_is_found_out(name: str) -> None:
    with pytest.raises(DiffersError):
        formula([np.asarray(NO_FORMULA[name](n)) for n in LENGTHS], LENGTHS)


def test_inputs_of_different_lengths_are_refused() -> None:
    length = OpenLength(name="s", least=2, most=9, axes=(("ids", 1), ("mask", 1), ("mask", 2)))
    assert length.fault({"ids": (3, 9), "mask": (3, 9, 9)}) is None
    for ids, mask in ((8, (9, 9)), (9, (9, 8))):
        assert "'s'" in (length.fault({"ids": (3, ids), "mask": (3, *mask)}) or "")
