"""`ExactShap` and `PermutationShap` against every coalition, enumerated in float64."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from rationale import (
    Deployment,
    ExactShap,
    InvalidOptionError,
    InvalidReferencesError,
    OpenReferences,
    PermutationShap,
    RationaleError,
    UnsupportedModelError,
    compile_model,
)
from rationale.artifact.entry import open_entry
from rationale.methods.coalitions import emit
from rationale.references.reference_set import Baseline
from tests import kernels
from tests.references import trees as forest

NEAR = 1e-5  # of outputs between −4 and 4 (issue: 1e-5)

STAYING_LOOP = """
<ir_version: 8, opset_import: ["": 21]>
g (float[N, 4] x, int64 steps) => (float[N] y) {
    go = Constant<value: tensor = bool {1}>()
    scale = Constant<value: tensor = float[4] {1.0, 2.0, 0.5, 1.1}>()
    axis = Constant<value: tensor = int64[1] {1}>()
    first = ReduceProd<keepdims=0>(x, axis)
    y = Loop(steps, go, first) <body = b (int64 i, bool going, float[N] a) => (bool on, float[N] next) {
        on = Identity(going)
        scaled = Mul(x, scale)
        sum = ReduceSum<keepdims=0>(scaled, axis)
        more = Add(a, sum)
        next = Sin(more)
    }>
}"""
ONE_ROW = """
<ir_version: 8, opset_import: ["": 21]>
g (float[1, 4] x) => (float[1, 2] y) {
    weight = Constant<value: tensor = float[4] {0.5, -1.0, 0.3, 0.8}>()
    limit = Constant<value: tensor = float {0.4}>()
    halves = Constant<value: tensor = int64[2] {2, 2}>()
    z = Mul(x, weight)
    largest = ReduceMax<keepdims=0>(z)
    far = Greater(largest, limit)
    s = If(far) <then_branch = t () => (float[1, 4] a) { a = Sin(z) },
                 else_branch = e () => (float[1, 4] b) { b = Exp(z) }>
    left, right = Split<axis=1>(s, halves)
    y = Mul(left, right)
}"""
BESIDE = """
<ir_version: 8, opset_import: ["": 21]>
g (float[N, 2] a, int64[N, 3] b, float[N, 1] scale) => (float[N, 3] y) {
    axis = Constant<value: tensor = int64[1] {1}>()
    f = Cast<to=1>(b)
    p = ReduceProd(a, axis)
    t = Mul(f, p)
    u = Sin(t)
    y = Mul(u, scale)
}"""
FOREST = forest.random_trees(3, ("LEQ", "GT"), features=5, columns=3)
REFERENCES, X = forest.rows(1, 7), forest.rows(2, 3)
RANDOM = np.random.default_rng(0)
R4, X4 = RANDOM.normal(size=(6, 4)).astype(np.float32), RANDOM.normal(size=(3, 4)).astype(np.float32)
A, B = RANDOM.normal(size=(4, 2)).astype(np.float32), RANDOM.integers(0, 5, (4, 3))
SCALE = RANDOM.normal(size=(4, 1)).astype(np.float32)
R_A, R_B = RANDOM.normal(size=(6, 2)).astype(np.float32), RANDOM.integers(0, 5, (6, 3))


def answers(model: onnx.ModelProto, output: str, more: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The model's own answers [N, elements], row by row."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def f(rows: np.ndarray) -> np.ndarray:
        each = [
            session.run([output], {name: row[None].astype(np.float32), **(more or {})})[0] for row in rows
        ]
        return np.stack(each).reshape(len(rows), -1).astype(np.float64)

    return f


SUBJECTS: dict[str, tuple[onnx.ModelProto, str, np.ndarray, np.ndarray, dict[str, Any]]] = {
    "probabilities of trees": (
        forest.classifier(FOREST, 3, post_transform="SOFTMAX"),
        "p",
        REFERENCES,
        X,
        {},
    ),
    "a loop": (parser.parse_model(STAYING_LOOP), "y", R4, X4, {"steps": np.array(5)}),
    "one row's alone": (parser.parse_model(ONE_ROW), "y", R4, X4, {}),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_coalition(name: str) -> None:
    model, output, references, x, more = SUBJECTS[name]
    compiled = compile_model(model, ExactShap(references), inputs=["x"], targets="all")
    answer = compiled.explain({"x": x, **more})
    f = answers(model, output, more)
    np.testing.assert_allclose(answer["x_attributions"], forest.shapley(f, x, references), atol=NEAR)
    np.testing.assert_allclose(answer["base_value"], np.tile(f(references).mean(0), (3, 1)), atol=NEAR)
    np.testing.assert_allclose(answer["explained_value"], f(x), atol=NEAR)
    assert np.abs(answer["completeness_gap"]).max() < 1e-6
    alone = [compiled.explain({"x": x[i : i + 1], **more})["x_attributions"] for i in range(3)]
    np.testing.assert_array_equal(np.concatenate(alone), answer["x_attributions"])


def beside() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """[N, outputs, players] over a and b, with `scale` as it is in each row; and what is asked."""
    model = parser.parse_model(BESIDE)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = []
    for a, b, scale in zip(A, B, SCALE, strict=True):

        def f(rows: np.ndarray, scale: np.ndarray = scale) -> np.ndarray:
            fed = {"a": rows[:, :2].astype(np.float32), "b": rows[:, 2:].astype(np.int64)}
            return np.asarray(session.run(["y"], {**fed, "scale": np.tile(scale, (len(rows), 1))})[0], float)

        row, references = np.concatenate([a, b])[None], np.concatenate([R_A, R_B], axis=1)
        values.append(forest.shapley(f, row, references, WEIGHTS))
    return np.concatenate(values), {"a": A, "b": B, "scale": SCALE}


WEIGHTS = np.arange(1.0, 7)


@pytest.mark.parametrize("targets", [["2-0", 1], "predicted", [2]])
def test_inputs_beside_each_other(targets: Any) -> None:
    expected, rows_of_inputs = beside()
    model = parser.parse_model(BESIDE)
    method = ExactShap({"b": R_B, "a": R_A}, WEIGHTS)
    compiled = compile_model(model, method, targets=targets)
    answer = compiled.explain(rows_of_inputs)
    if targets == "predicted":
        expected = np.take_along_axis(expected, answer["y"].argmax(axis=1)[:, None, None], axis=1)
    else:
        expected = (
            np.stack([expected[:, 2] - expected[:, 0], expected[:, 1]], axis=1)
            if len(targets) > 1
            else expected[:, [2]]
        )
    np.testing.assert_allclose(answer["a_attributions"], expected[..., :2], atol=NEAR)
    np.testing.assert_allclose(answer["b_attributions"], expected[..., 2:], atol=NEAR)
    assert any("scale (--input" in w for w in compiled.manifest.warnings)


def test_floats_are_the_players_where_nothing_names_any() -> None:
    compiled = compile_model(parser.parse_model(BESIDE), ExactShap(Baseline(0.5)))
    assert [item.tensor.name for item in compiled.manifest.explained] == ["a", "scale"]
    assert any("b (--input" in w for w in compiled.manifest.warnings)


def test_chunks_and_a_gate_change_nothing() -> None:
    """But for the last bits of the model itself: ONNX Runtime's Sin has others at the end of a tensor."""
    _, rows_of_inputs = beside()
    model, method = parser.parse_model(BESIDE), PermutationShap({"b": R_B, "a": R_A}, 5, seed=3)
    whole = compile_model(model, method).explain(rows_of_inputs)
    for deployment in (Deployment(memory_budget=30_000), Deployment(one_shot=True)):
        other = compile_model(model, method, deployment=deployment).explain(rows_of_inputs)
        for name in ("a_attributions", "b_attributions", "base_value"):
            np.testing.assert_allclose(other[name], whole[name], atol=1e-6)


@pytest.mark.parametrize("at_once", range(1, 8))
def test_however_many_rows_at_once(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six mixed rows, whole chunks of references and parts of one left over among them."""
    monkeypatch.setattr(emit, "AT_ONCE", at_once)
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 21]>
        g (float[N, 2] x) => (float[N, 1] y) {
            one = Constant<value: tensor = int64[1] {1}>()
            y = ReduceProd(x, one)
        }""")
    x, references = X4[:, :2], R4[:2, :2]
    answer = compile_model(model, ExactShap(references)).explain(x)
    expected = forest.shapley(
        lambda z: z.prod(axis=1, keepdims=True), x.astype(float), references.astype(float)
    )
    np.testing.assert_allclose(answer["x_attributions"], expected, atol=NEAR)


def test_an_input_that_the_output_does_not_read() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 21]>
        g (float[N, 2] x, float[N, 13] other) => (float[N, 2] y, float[N, 13] z) {
            y = Sin(x)
            z = Sin(other)
        }""")
    compiled = compile_model(model, ExactShap(R4[:, :2]), output="y", targets="all")
    assert [item.tensor.name for item in compiled.manifest.explained] == ["x"]


def test_an_inner_tensor() -> None:
    model = parser.parse_model(BESIDE)
    compiled = compile_model(model, ExactShap({"a": R_A, "b": R_B}), inputs=["p"], targets="all")
    answer = compiled.explain({"a": A, "b": B, "scale": SCALE})
    gained = answer["explained_value"] - answer["base_value"]
    np.testing.assert_allclose(answer["p_attributions"][:, :, 0], gained, atol=1e-6)
    base = (np.sin(B[:, None] * R_A.prod(axis=1)[:, None]) * SCALE[:, None]).mean(axis=1)
    np.testing.assert_allclose(answer["base_value"], base, atol=NEAR)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_precisions(dtype: type) -> None:
    kind = {np.float16: "float16", np.float64: "double"}[dtype]
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 21]>
        g ({kind}[N, 3, 2] x) => ({kind}[N, 3] y) {{
            axis = Constant<value: tensor = int64[1] {{2}}>()
            s = ReduceProd<keepdims=0>(x, axis)
            y = Tanh(s)
        }}""")
    references = np.random.default_rng(1).normal(size=(4, 3, 2)).astype(dtype)
    x = np.random.default_rng(2).normal(size=(5, 3, 2)).astype(dtype)
    answer = compile_model(model, ExactShap(references), targets="all").explain(x)
    expected = forest.shapley(
        lambda z: np.tanh(z.reshape(-1, 3, 2).prod(axis=2)),
        x.reshape(5, 6).astype(float),
        references.reshape(4, 6).astype(float),
    )
    limit = {np.float16: 2e-3, np.float64: 1e-12}[dtype]
    np.testing.assert_allclose(answer["x_attributions"].reshape(5, 3, 6), expected, atol=limit)


def test_an_operator_without_a_rule() -> None:
    references, x = R4[:, :3], X4[:, :3]
    compiled = compile_model(kernels.network(), ExactShap(references), custom_ops=[kernels.LIBRARY])
    expected = forest.shapley(kernels.predict, x, references)
    np.testing.assert_allclose(compiled.explain(x)["x_attributions"], expected, atol=NEAR)


def test_small_whole_numbers_and_conditions() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 21]>
        g (int8[N, 2] a, bool[N, 1] b) => (float[N, 1] y) {
            f = Cast<to=1>(a)
            c = Cast<to=1>(b)
            one = Constant<value: tensor = int64[1] {1}>()
            p = ReduceProd(f, one)
            y = Mul(p, c)
        }""")
    a, b = np.array([[1, 2], [-3, 4], [5, 6]], np.int8), np.array([[True], [False], [True]])
    r_a, r_b = np.array([[7, -1], [2, 2]], np.int8), np.array([[False], [True]])
    answer = compile_model(model, ExactShap({"a": r_a, "b": r_b})).explain({"a": a, "b": b})
    x, references = (np.concatenate(pair, axis=1).astype(float) for pair in ((a, b), (r_a, r_b)))
    expected = forest.shapley(lambda z: z.prod(axis=1, keepdims=True), x, references)
    np.testing.assert_allclose(answer["a_attributions"], expected[..., :2], atol=NEAR)
    np.testing.assert_allclose(answer["b_attributions"], expected[..., 2:], atol=NEAR)


def test_text() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 21, "ai.onnx.ml": 3]>
        g (string[N, 1] word, float[N, 2] x) => (float[N, 1] y) {
            f = ai.onnx.ml.LabelEncoder <keys_strings = ["low", "high"], values_floats = [1.5, -2.0]> (word)
            one = Constant<value: tensor = int64[1] {1}>()
            p = ReduceProd(x, one)
            y = Mul(p, f)
        }""")
    number = {"low": 1.5, "high": -2.0}
    words, references = np.array([["low"], ["high"], ["low"]], object), np.array([["high"], ["low"]], object)
    x, r_x = X4[:, :2], R4[:2, :2]
    rows_of_inputs = {"word": words, "x": x}
    answer = compile_model(model, ExactShap({"word": references, "x": r_x})).explain(rows_of_inputs)
    rows, reference_rows = (
        np.concatenate([np.vectorize(number.get)(w).astype(float), v.astype(float)], axis=1)
        for w, v in ((words, x), (references, r_x))
    )
    expected = forest.shapley(lambda z: z.prod(axis=1, keepdims=True), rows, reference_rows)
    np.testing.assert_allclose(answer["word_attributions"], expected[..., :1], atol=NEAR)
    np.testing.assert_allclose(answer["x_attributions"], expected[..., 1:], atol=NEAR)


# -- orders that are drawn ---------------------------------------------------------------------------------


def test_standard_errors_cover() -> None:
    model = SUBJECTS["probabilities of trees"][0]
    x = forest.rows(5, 40)
    expected = forest.shapley(answers(model, "p"), x, REFERENCES)
    method = PermutationShap(REFERENCES, 30, seed=1, standard_error=True)
    answer = compile_model(model, method, targets="all").explain(x)
    error, off = answer["x_standard_error"], np.abs(answer["x_attributions"] - expected)
    assert np.abs(answer["completeness_gap"]).max() < 1e-6
    assert off.max() > 1e-3  # orders are few: it is an estimate
    near = (off < 2 * error + NEAR).mean()  # of 600 values: 95% where errors are normal
    assert 0.88 < near < 1
    method = PermutationShap(REFERENCES, 480, standard_error=True)
    more = compile_model(model, method, targets="all").explain(x)
    ratio = np.median(error[error > 1e-4] / more["x_standard_error"][error > 1e-4])
    assert 3 < ratio < 5  # √16


@pytest.mark.parametrize("pairs", [2, 3, 5])
def test_the_standard_error_is_that_of_a_mean_over_pairs(pairs: int) -> None:
    model = SUBJECTS["probabilities of trees"][0]
    f, method = answers(model, "p"), PermutationShap(REFERENCES, pairs, seed=2, standard_error=True)
    errors = compile_model(model, method, targets="all").explain(X)["x_standard_error"]
    c = method.coalitions(5)
    for row, expected in zip(X, errors, strict=True):
        v = np.stack([f(np.where(mask, row, REFERENCES)).mean(axis=0) for mask in c.masks])  # [C, targets]
        each = (v[c.joined] - v[c.before]).reshape(pairs, 2, 5, -1).mean(axis=1)  # [pairs, P, targets]
        np.testing.assert_allclose(expected, each.std(axis=0, ddof=1).T / np.sqrt(pairs), atol=1e-6)


def test_no_more_than_two_players_interact() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 21]>
        g (float[N, 4] x) => (float[N, 1] y) {
            w = Constant<value: tensor = float[4, 4] {1,2,0,1, 0,3,1,-1, 2,0,0,1, 1,-1,2,0}>()
            one = Constant<value: tensor = int64[1] {1}>()
            z = MatMul(x, w)
            q = Mul(z, x)
            y = ReduceSum(q, one)
        }""")
    attributions = compile_model(model, PermutationShap(R4, 1, seed=7)).explain(X4)["x_attributions"]
    np.testing.assert_allclose(attributions, forest.shapley(answers(model, "y"), X4, R4), atol=NEAR)


def test_the_seed_is_part_of_the_artifact(tmp_path: Path) -> None:
    model = SUBJECTS["probabilities of trees"][0]
    first, same_seed, other = (
        compile_model(model, PermutationShap(REFERENCES, 2, seed=seed), targets="all") for seed in (4, 4, 5)
    )
    assert first.model.SerializeToString() == same_seed.model.SerializeToString()
    assert first.manifest.digests == same_seed.manifest.digests
    assert first.manifest.digests.options != other.manifest.digests.options
    first.write(tmp_path, "m")
    reopened, fresh, other_seed = open_entry(tmp_path, "m").explain(X), first.explain(X), other.explain(X)
    np.testing.assert_array_equal(reopened["x_attributions"], fresh["x_attributions"])
    assert np.abs(other_seed["x_attributions"] - fresh["x_attributions"]).max() > 1e-4


def test_each_coalition_is_called_once() -> None:
    for players, permutations in ((1, 3), (2, 5), (6, 9)):
        game = PermutationShap(REFERENCES, permutations).coalitions(players)
        assert len(np.unique(game.masks, axis=0)) == len(game.masks)
        assert (len(game.masks) == 2**players) == (players < 6)
        assert not game.masks[0].any()
        assert game.masks[-1].all()
        for p in range(players):
            entered = game.masks[game.joined[:, p]] ^ game.masks[game.before[:, p]]
            assert np.array_equal(entered, np.tile(np.arange(players) == p, (len(entered), 1)))


def images() -> onnx.ModelProto:
    return parser.parse_model("""
        <ir_version: 8, opset_import: ["": 21]>
        g (float[N, 3, 20, 10] x) => (float[N, 3, 20, 10] y) { y = Tanh(x) }""")


def whole_numbers() -> onnx.ModelProto:
    return parser.parse_model("""
        <ir_version: 8, opset_import: ["": 21]>
        g (float[N, 4] x) => (int64[N, 4] y) { y = Cast<to=7>(x) }""")


def all_summed() -> onnx.ModelProto:
    text = STAYING_LOOP.replace("float[N] y", "float y").replace("float[N] a", "float a")
    text = text.replace("float[N] next", "float next").replace("ReduceProd<keepdims=0>(x, axis)", "Sum(bias)")
    text = text.replace("ReduceSum<keepdims=0>(scaled, axis)", "ReduceSum<keepdims=0>(scaled)")
    return parser.parse_model(
        text.replace("axis = ", "bias = Constant<value: tensor = float {0.1}>() axis = ")
    )


REFUSALS: dict[str, tuple[Callable[[], Any], type[RationaleError], str]] = {
    "players": (
        lambda: compile_model(images(), PermutationShap(np.zeros((2, 3, 20, 10)))),
        InvalidOptionError,
        "up to 512 players, not 600: join features to groups",
    ),
    "players of each coalition": (
        lambda: compile_model(forest.regressor(FOREST, 13), ExactShap(np.zeros((2, 13)))),
        InvalidOptionError,
        "at most 12 players, not 13: join features to groups .* or choose permutationshap",
    ),
    "calls": (
        lambda: compile_model(forest.regressor(FOREST, 12), ExactShap(np.arange(240_000.0).reshape(-1, 12))),
        InvalidOptionError,
        "4096 coalitions of 12 players and 20000 references need 81900000 rows of the model",
    ),
    "memory": (
        lambda: compile_model(
            parser.parse_model(BESIDE), ExactShap({"a": R_A}), deployment=Deployment(memory_budget=100)
        ),
        InvalidOptionError,
        "memory budget .* is too small",
    ),
    "open references": (
        lambda: compile_model(forest.regressor(FOREST), ExactShap(OpenReferences(3))),
        InvalidOptionError,
        "requests cannot bring",
    ),
    "no references": (
        lambda: compile_model(forest.regressor(FOREST), ExactShap(None)),
        InvalidReferencesError,
        "exactshap needs references",
    ),
    "references of text": (
        lambda: compile_model(forest.classifier(FOREST, 3), ExactShap([["a"] * 5])),
        InvalidReferencesError,
        "not numbers",
    ),
    "an input twice": (
        lambda: compile_model(parser.parse_model(BESIDE), ExactShap({"a": R_A}), inputs=["a", "a"]),
        InvalidOptionError,
        "give a list of different names",
    ),
    "layers": (
        lambda: compile_model(forest.regressor(FOREST), ExactShap(REFERENCES), layers="all"),
        InvalidOptionError,
        "walks through no layers",
    ),
    "permutations": (lambda: PermutationShap(REFERENCES, 0), InvalidOptionError, "permutations must be"),
    "one pair's error": (
        lambda: PermutationShap(REFERENCES, 1, standard_error=True),
        InvalidOptionError,
        "permutations must be a whole number, 2 to",
    ),
    "seed": (lambda: PermutationShap(REFERENCES, 3, -1), InvalidOptionError, "seed must be"),
    "an input": (
        lambda: compile_model(forest.regressor(FOREST), ExactShap({"z": REFERENCES})),
        InvalidOptionError,
        "no input",
    ),
    "whole numbers": (
        lambda: compile_model(parser.parse_model(BESIDE), ExactShap({"a": R_A, "b": R_B + 0.5})),
        InvalidReferencesError,
        "references of 'b' must be whole numbers",
    ),
    "an output without rows": (
        lambda: compile_model(all_summed(), ExactShap(R4)),
        UnsupportedModelError,
        r"'y' .*\d+ rows .*\[\]",
    ),
    "an output of whole numbers": (
        lambda: compile_model(whole_numbers(), ExactShap(R4), output="y"),
        UnsupportedModelError,
        "'y' holds INT64: explain floats",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    act, kind, text = REFUSALS[name]
    with pytest.raises(kind) as error:
        act()
    assert re.search(text, str(error.value)), str(error.value)
