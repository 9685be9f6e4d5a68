"""Decision profiles held against models: what is explained is the score, and what does not fit is refused."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from skl2onnx import to_onnx
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression

import rationale
from rationale import (
    Auto,
    Compiled,
    DeepShap,
    ExactShap,
    Gradient,
    IntegratedGradients,
    TreeShap,
    compile_model,
)
from rationale.artifact.entry import open_entry
from rationale.artifact.recheck import check_entry
from rationale.decisions.rows import attribution_keys, explained_rows, profile_of
from rationale.errors import InvalidOptionError, InvalidProfileError
from rationale.methods.engine import Method
from rationale.methods.logits import is_probability
from rationale.references.reference_set import Baseline, OpenReferences
from rationale_service.repository.entry import read_entry
from tests.compiler.models import FEATURES, NAMES, contents, mlp, parsed, rows, two_inputs

K, N = 6, 4
R, X = rows(K, FEATURES, seed=1), rows(N, FEATURES, seed=2)
W, B = rows(FEATURES, 2, seed=3), rows(2, seed=4)
HEAD = "g (float[N, 5] x) =>"
LOGITS = "m = MatMul(x, w)  z = Add(m, b)"
SOFTMAX = parsed(f"{HEAD} (float[N, 2] p) {{ {LOGITS}  p = Softmax<axis = 1>(z) }}", {"w": W, "b": B})
LINEAR_WEIGHTS = {"w": W[:, :1], "b": B[:1], "one": np.ones(1, np.float32)}
SIGMOID = parsed(f"{HEAD} (float[N, 1] p) {{ {LOGITS}  p = Sigmoid(z) }}", LINEAR_WEIGHTS)
BESIDE = parsed(
    f"{HEAD} (float[N, 2] p, int64[N] label) {{ {LOGITS}  s = Sigmoid(z)  r = Sub(one, s)"
    "  p = Concat<axis = 1>(r, s)  label = ArgMax<axis = 1, keepdims = 0>(p) }",
    LINEAR_WEIGHTS,
)
THREE = parsed(
    f"{HEAD} (float[N, 3] p) {{ {LOGITS}  p = Softmax<axis = 1>(z) }}",
    {"w": rows(FEATURES, 3, seed=3), "b": rows(3, seed=4)},
)
COMPLEMENT = parsed(f"{HEAD} (float[N, 1] p) {{ {LOGITS}  s = Sigmoid(z)  p = Sub(one, s) }}", LINEAR_WEIGHTS)
LINEAR = parsed(f"{HEAD} (float[N, 2] z) {{ {LOGITS} }}", {"w": W, "b": B})
CODES = {name: {"reason": f"R{i}"} for i, name in enumerate(NAMES)}
GOOD: Mapping[str, Any] = {
    "output": "p",
    "threshold": 0.5,
    "adverse": "above",
    "references": {"policy": "all_applicants"},
    "features": CODES,
    "reasons": {f"R{i}": f"text {i}" for i in range(FEATURES)},
}


def decided(
    model: Any, change: Mapping[str, Any] = {}, method: Method | None = None, **options: Any
) -> Compiled:
    options = {"feature_names": NAMES, **options}
    return compile_model(model, method or DeepShap(R), decision={**GOOD, **change}, **options)


def difference(target: int) -> np.ndarray:
    """What a linear margin's attributions are: weights times how far a row is from the mean reference."""
    weights = W[:, target] - W[:, 1 - target]
    return np.asarray((X - R.mean(axis=0)) * weights)


# -- what is explained -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0, 1])
def test_the_margin_of_a_softmax_of_two_is_their_difference(target: int) -> None:
    compiled = decided(SOFTMAX, {"output": f"p[{target}]", "space": "margin"})
    answered = compiled.explain(X)
    np.testing.assert_allclose(answered["x_attributions"][:, 0], difference(target), rtol=1e-4, atol=1e-5)
    decided_rows = explained_rows(compiled.manifest, answered)
    scores = [1 / (1 + math.exp(-row.explained_value)) for row in decided_rows]
    np.testing.assert_allclose([row.score for row in decided_rows], scores, rtol=1e-14)
    np.testing.assert_allclose([row.score for row in decided_rows], answered["p"][:, target], atol=2e-7)


def test_the_margin_of_a_sigmoid_beside_its_rest_is_of_class_1() -> None:
    compiled = decided(BESIDE, {"space": "margin"}, ExactShap(R))
    answered = compiled.explain(X)
    expected = (X - R.mean(axis=0)) * W[:, 0]
    np.testing.assert_allclose(answered["x_attributions"][:, 0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        [row.score for row in explained_rows(compiled.manifest, answered)], answered["p"][:, 1], atol=2e-7
    )


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize(
    ("space", "method"), [("margin", TreeShap), ("output", TreeShap), ("output", ExactShap)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_of_trees_near_0_and_1_are_the_margin_s(end: int, space: str, method: Any, dtype: Any) -> None:
    """Whose LOGISTIC answers in steps of 6e-8 near 0, and float32 alike near 1."""
    every = rows(200, FEATURES, seed=5).astype(dtype)
    fitted = GradientBoostingClassifier(n_estimators=9, max_depth=2, random_state=0)
    fitted.fit(every, every[:, 0] + every[:, 1] + every[:, 2] > 0)
    fitted.learning_rate *= 25 / np.abs(fitted.decision_function(every)).max()
    margins = np.unique(fitted.decision_function(every))
    i = -3 if end else 3
    between = float(margins[i - 1] + margins[i]) / 2
    threshold = 1 / (1 + math.exp(-between))
    assert abs(end - threshold) < 1e-7
    change = {"output": "probabilities[1]", "space": space, "threshold": threshold}
    compiled = decided(fitted, change, method(every[:40]))
    assert not any("in no strict order" in warning for warning in compiled.manifest.warnings)
    decisions = compiled.decide(every)
    assert [decision.decision == "decline" for decision in decisions] == [
        *(fitted.decision_function(every) > between)
    ]
    assert {decision.decision for decision in decisions} == {"approve", "decline"}


def test_a_model_that_clips_its_probability_is_decided_by_its_own_answer() -> None:
    most = np.array(0.9, np.float32)
    model = parsed(
        f"{HEAD} (float[N, 1] p) {{ {LOGITS}  s = Sigmoid(z)  p = Min(s, most) }}",
        {**LINEAR_WEIGHTS, "most": most},
    )
    compiled = decided(model, {"space": "margin"})
    far = np.outer([0, 50], W[:, 0]).astype(np.float32)
    (_, score) = (row.score for row in explained_rows(compiled.manifest, compiled.explain(far)))
    assert score == 0.9


@pytest.mark.parametrize("threshold", [0, 1e-8, 1e-5, 1 - 1e-8, 1])
def test_a_threshold_near_0_or_1_is_decided_in_the_margin_or_warned_of(threshold: float) -> None:
    def warnings_of(model: Any, method: Method | None = None, **change: Any) -> tuple[list[str], str | None]:
        manifest = decided(model, {"threshold": threshold, **change}, method).manifest
        return [w for w in manifest.warnings if "in no strict order" in w], profile_of(manifest).margin

    for model, output in (
        (SIGMOID, "p"),
        (COMPLEMENT, "p"),
        (BESIDE, "p[0]"),
        (SOFTMAX, "p[0]"),
        (BESIDE, "s"),
    ):
        assert warnings_of(model, output=output) == ([], "score_margin")
    assert warnings_of(SIGMOID, threshold=0.4, refer=[0.3, 1 - 1e-7]) == ([], "score_margin")
    for change in ({"space": "margin"}, {"threshold": 0.1}, {"threshold": 0.5, "refer": [0, 1]}):
        assert warnings_of(SIGMOID, **change) == ([], None)
    (warning,), margin = warnings_of(THREE, output="p[1]")
    assert warning.endswith("choose a threshold farther away")
    assert margin is None
    (warning,), margin = warnings_of(SIGMOID, DeepShap(Baseline(0.25)))
    assert warning.endswith("use space: margin, so that rows are decided by the margin")
    assert margin is None


@pytest.mark.parametrize(
    ("space", "margin"),
    [("output", -18.5), ("output", 18.5), ("margin", -18.5), ("margin", 18.5), ("margin", 0.3)],
)
@pytest.mark.parametrize("adverse", ["above", "below"])
@pytest.mark.parametrize("digits", [15, 17])
def test_a_margin_that_is_the_threshold_s_passes(
    space: str, margin: float, adverse: str, digits: int
) -> None:
    """The next ones on either side do not both pass, and the threshold is its score."""
    model = parsed(
        f"{HEAD} (float[N, 1] p) {{ m = MatMul(x, w)  p = Sigmoid(m) }}",
        {"w": np.eye(5, 1, dtype=np.float32)},
    )
    margin32 = np.float32(margin)
    threshold = float(f"{1 / (1 + math.exp(-float(margin32))):.{digits}g}")
    compiled = decided(model, {"space": space, "threshold": threshold, "adverse": adverse})
    x = np.zeros((3, FEATURES), np.float32)
    x[:, 0] = np.nextafter(margin32, -np.inf), margin32, np.nextafter(margin32, np.inf)
    decisions = compiled.decide(x)
    declined = [False, False, True] if adverse == "above" else [True, False, False]
    assert [decision.decision == "decline" for decision in decisions] == declined
    assert decisions[1].score == threshold


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (SOFTMAX, {}),
        (SOFTMAX, {"output": "p[0]"}),
        (SIGMOID, {}),
        (BESIDE, {"output": "s"}),
        (COMPLEMENT, {}),
    ],
    ids=["class 1 of two", "class 0", "one", "inner", "rest"],
)
def test_attributions_add_up_to_the_score(model: onnx.ModelProto, change: Mapping[str, Any]) -> None:
    compiled = decided(model, change)
    for row in explained_rows(compiled.manifest, compiled.explain(X)):
        assert row.base_value is not None
        assert sum(row.attributions.values()) == pytest.approx(row.score - row.base_value, abs=1e-5)
    assert profile_of(compiled.manifest).output_range == (0, 1)
    assert profile_of(compiled.manifest).tolerance == 1e-4


@pytest.mark.parametrize(
    ("model", "output"), [(COMPLEMENT, "p"), (BESIDE, "p[0]")], ids=["1 - p alone", "1 - p beside p"]
)
def test_a_margin_of_the_other_sign_is_refused(model: onnx.ModelProto, output: str) -> None:
    with pytest.raises(InvalidProfileError, match="Sigmoid"):
        decided(model, {"output": output, "space": "margin"})


# -- what goes into the entry ----------------------------------------------------------------------------


def test_the_entry_keeps_the_profile_and_is_run_for_one_request_alone(tmp_path: Path) -> None:
    groups = {"money": {"members": NAMES[1:3], "reason": "R1"}}
    codes = {name: CODES[name] for name in (NAMES[0], *NAMES[3:])}
    compiled = decided(SOFTMAX, {"groups": groups, "features": codes, "tolerance": 0.01})
    compiled.write(tmp_path, "credit")
    check_entry(tmp_path, "credit")
    manifest = open_entry(tmp_path, "credit").manifest
    assert manifest.decision == compiled.manifest.decision
    assert attribution_keys(manifest) == ("money", NAMES[0], *NAMES[3:])
    assert profile_of(manifest).tolerance == 0.01
    assert any("'R2'" in warning for warning in manifest.warnings)
    assert [read_entry(tmp_path / name).batching for name in ("credit", "credit_explain")] == [True, False]
    decided(SOFTMAX, deployment=rationale.Deployment(one_shot=True)).write(tmp_path, "once")
    assert not read_entry(tmp_path / "once").batching


def test_auto_compiles_a_profile() -> None:
    compiled = decided(SOFTMAX, {"space": "margin"}, Auto(R))
    assert compiled.manifest.method.name == "deepshap"  # exact, since the margin is linear
    np.testing.assert_allclose(
        compiled.explain(X)["x_attributions"][:, 0], difference(1), rtol=1e-4, atol=1e-5
    )


def test_the_names_at_the_top() -> None:
    profile = rationale.DecisionProfile.model_validate(GOOD)
    compiled = compile_model(SIGMOID, DeepShap(R), decision=profile, feature_names=NAMES)
    assert profile_of(compiled.manifest).digest == profile.digest
    assert issubclass(rationale.InvalidProfileError, InvalidOptionError)


def test_other_names_are_another_explanation() -> None:
    """Reasons are by names: the same graph with two of them swapped gives other reasons."""
    swapped = [NAMES[1], NAMES[0], *NAMES[2:]]
    digests = [
        compile_model(SIGMOID, DeepShap(R), decision=GOOD, feature_names=names).manifest.digests.explanation
        for names in (NAMES, NAMES, swapped)
    ]
    assert digests[0] == digests[1] != digests[2]


# -- the range of the score ------------------------------------------------------------------------------


def test_a_logistic_regression_is_explained_in_its_margin() -> None:
    every = np.concatenate([R, X])
    fitted = LogisticRegression().fit(every, every[:, 0] + every[:, 1] > 0)
    compiled = decided(fitted, {"output": "probabilities[1]", "space": "margin"})
    expected = (X - R.mean(axis=0)) * fitted.coef_[0]
    np.testing.assert_allclose(compiled.explain(X)["x_attributions"][:, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("space", ["output", "margin"])
def test_boosted_trees_are_explained_in_either_space(space: str) -> None:
    every = np.concatenate([R, X])
    fitted = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(every, every[:, 0] > every[:, 1])
    change = {"output": "probabilities[0]", "space": space, "adverse": "below"}
    compiled = decided(fitted, change, TreeShap(R))
    explained = explained_rows(compiled.manifest, compiled.explain(X))
    scores = fitted.predict_proba(X)[:, 0]
    np.testing.assert_allclose([row.score for row in explained], scores, atol=1e-6)
    expected = np.log(scores / (1 - scores)) if space == "margin" else scores
    np.testing.assert_allclose([row.explained_value for row in explained], expected, rtol=1e-5)
    sums = [
        row.base_value + sum(row.attributions.values()) for row in explained if row.base_value is not None
    ]
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    with pytest.raises(InvalidProfileError, match=r"treeshap.*exactshap"):
        decided(fitted, change | {"space": "margin"}, ExactShap(R))


def test_a_score_that_nothing_closes_ranges_as_the_references_show() -> None:
    scores = R @ W[:, 1] + B[1]
    least, most = float(scores.min()), float(scores.max())
    profile = profile_of(decided(LINEAR, {"output": "z[1]"} | {"threshold": (least + most) / 2}).manifest)
    assert profile.output_range == pytest.approx((least, most), rel=1e-5)
    assert profile.tolerance == pytest.approx(1e-4 * (most - least), rel=1e-4)
    with pytest.raises(InvalidProfileError, match=r"\b700\b.*'z\[1\]'.*references"):
        decided(LINEAR, {"output": "z[1]", "threshold": 700})
    profile = profile_of(
        decided(LINEAR, {"output": "z[1]", "threshold": 700, "output_range": [300, 850]}).manifest
    )
    assert profile.output_range == (300, 850)


def test_constants_close_nothing() -> None:
    """A scorecard: points by bin, and the larger of a score and a constant."""
    for form in ("m = Max(s, most)", "h = Sub(s, s)  i = Cast<to = 7>(h)  m = Gather(points, i)"):
        model = parsed(
            f"{HEAD} (float[N, 1, 1] p) {{ {LOGITS}  s = Sigmoid(z)  {form}  p = Reshape(m, shape) }}",
            {
                **LINEAR_WEIGHTS,
                "most": np.array([600], np.float32),
                "points": np.array([600, 300], np.float32),
                "shape": np.array([-1, 1, 1]),
            },
        )
        assert not is_probability(model, "p")
    assert is_probability(SIGMOID, "p")


def test_reasons_are_of_inputs() -> None:
    with pytest.raises(InvalidProfileError, match=r"\['z'\]"):
        compile_model(LINEAR, DeepShap(R @ W + B), inputs=["z"], decision={**GOOD, "output": "z[1]"})


def test_trees_that_average_probabilities_range_from_0_to_1() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        labels = X[:, 0] > 0
        forest = RandomForestClassifier(5, max_depth=2, random_state=0).fit(
            np.concatenate([R, X]), [*(R[:, 0] > 0), *labels]
        )
        model = rationale.convert(forest, R)
    compiled = decided(model, {"output": "probabilities"}, TreeShap(R))
    assert profile_of(compiled.manifest).output_range == (0, 1)
    with pytest.raises(InvalidProfileError, match="Sigmoid"):
        decided(model, {"output": "probabilities", "space": "margin"}, TreeShap(R))
    np.testing.assert_allclose(
        [row.score for row in explained_rows(compiled.manifest, compiled.explain(X))],
        forest.predict_proba(X)[:, 1],
        atol=1e-6,
    )


# -- what is refused -------------------------------------------------------------------------------------

REFUSED: list[tuple[onnx.ModelProto, Mapping[str, Any], str]] = [
    (SOFTMAX, {"output": "q"}, r"output: the model has no tensor 'q': its outputs are \['p'\]"),
    (SOFTMAX, {"output": "x"}, "output: the model has no tensor 'x'"),
    (SOFTMAX, {"output": "p[2]"}, r"output 'p\[2\]': the elements of 'p' are 0 to 1"),
    (
        BESIDE,
        {"output": "label"},
        r"output 'label' holds INT64, which cannot be a score: the model has \['p'\]",
    ),
    (SOFTMAX, {"threshold": 1.5}, "threshold 1.5 is outside of 'p', 0 to 1"),
    (SOFTMAX, {"refer": [0.4, 18]}, "refer 0.4, 18 is outside of 'p', 0 to 1"),
    (SOFTMAX, {"output_range": [0, 2]}, "output_range is that of 'p', a probability, 0 to 1: leave it out"),
    (LINEAR, {"output": "z", "output_range": [1, 0]}, "output_range, .* is from a number to a larger one"),
    (
        LINEAR,
        {"output": "z", "space": "margin", "output_range": [0, 1]},
        "not the output of a Sigmoid or of a Softmax",
    ),
    (BESIDE, {"output": "s", "space": "margin"}, "not one of the model's outputs"),
    (SOFTMAX, {"features": {"debts": {"reason": "R0"}}}, r"no feature 'debts' \(do you mean 'debt'\?\)"),
]


@pytest.mark.parametrize(("model", "change", "fault"), REFUSED, ids=range(len(REFUSED)))
def test_a_profile_that_does_not_fit_its_model(
    model: onnx.ModelProto, change: Mapping[str, Any], fault: str
) -> None:
    with pytest.raises(InvalidProfileError, match=f"^decision: .*{fault}"):
        decided(model, change)


OPTIONS: list[tuple[dict[str, Any], Method, str]] = [
    ({"output": "z"}, DeepShap(R), "output is 'p', and --output 'z' is given"),
    ({"targets": [0]}, DeepShap(R), r"output is 'p', and --targets \[0\] is given"),
    ({"groups": {"a": NAMES[:2]}}, DeepShap(R), "groups are the profile's: leave --group out"),
    ({"logits": True}, DeepShap(R), "space is 'output', and --logits is given"),
    ({}, Gradient(), "attributions by gradient do not add up to the score"),
    ({}, DeepShap(OpenReferences(3)), "a decision's references are baked"),
]


@pytest.mark.parametrize(("options", "method", "fault"), OPTIONS, ids=range(len(OPTIONS)))
def test_what_is_asked_for_beside_a_profile(options: dict[str, Any], method: Method, fault: str) -> None:
    with pytest.raises(InvalidProfileError, match=f"^decision: {fault}"):
        decided(SOFTMAX, method=method, **options)


def test_three_classes_need_an_index() -> None:
    with pytest.raises(InvalidProfileError, match=r"\b3\b.*\[2\]'"):
        decided(mlp(), {"output": mlp().graph.output[0].name, "output_range": [0, 1]})


def test_the_range_is_not_asked_for_before_the_index() -> None:
    model = parsed(f"{HEAD} (float[N, 5] z) {{ z = Mul(x, x) }}")
    with pytest.raises(InvalidProfileError, match=r"^decision: output 'z' has 5 elements, .* 'z\[4\]'\.$"):
        decided(model, {"output": "z"})


def test_a_method_whose_sum_is_not_exact_is_warned_about() -> None:
    compiled = decided(SIGMOID, method=IntegratedGradients(R, steps=20))
    assert any("quadrature" in warning for warning in compiled.manifest.warnings)


def test_inputs_without_attributions_are_refused() -> None:
    model = parsed(
        "g (float[N, 5] x, int64[N, 1] kind) => (float[N, 1] p) {"
        "  m = MatMul(x, w)  k = Cast<to = 1>(kind)  z = Mul(m, k)  p = Sigmoid(z) }",
        {"w": W[:, :1]},
    )
    with pytest.raises(InvalidProfileError, match=r"\['kind'\]"):
        decided(model)


def test_trees_of_covers_explain_a_margin_alone() -> None:
    forest = RandomForestRegressor(3, max_depth=2, random_state=0).fit(X, X[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = to_onnx(forest, X)
    change = {"output": "variable", "threshold": 0.0}
    assert decided(model, change, TreeShap(covers=X)).manifest.method.name == "treeshap"
    with pytest.raises(InvalidProfileError, match=r"output_range\b.*references"):
        decided(model, change, TreeShap())


def softmax_of_three(kind: str) -> onnx.ModelProto:
    """Trees whose three scores a Softmax makes probabilities, in the ensemble or behind it."""
    every = np.concatenate([R, X])
    labels = (every[:, 0] > 0).astype(int) + (every[:, 1] > 0)
    if kind == "ensemble":
        model = GradientBoostingClassifier(n_estimators=2, max_depth=2, random_state=0)
        return rationale.convert(model.fit(every, labels), R)
    forest = RandomForestRegressor(3, max_depth=2, random_state=0).fit(every, np.eye(3)[labels])
    model = to_onnx(forest, X)
    (output,) = model.graph.output
    model.graph.node.append(onnx.helper.make_node("Softmax", [output.name], ["probabilities"], axis=1))
    output.name = "probabilities"
    return model


@pytest.mark.parametrize("kind", ["ensemble", "operator"])
def test_advice_about_a_softmax_of_three_works(kind: str) -> None:
    model, change = softmax_of_three(kind), {"output": "probabilities[1]"}
    with pytest.raises(InvalidProfileError, match="say space: output") as margin:
        decided(model, {**change, "space": "margin"}, TreeShap(R))
    with pytest.raises(InvalidProfileError, match="choose exactshap or permutationshap") as output:
        decided(model, change, TreeShap(R))
    assert "space: margin" not in str(output.value)
    assert ("choose exactshap" in str(margin.value)) == (kind == "ensemble")
    with pytest.raises(InvalidProfileError, match="say space: output"):
        decided(model, {**change, "space": "margin"}, ExactShap(R))
    assert decided(model, change, ExactShap(R)).manifest.explained_output == "probabilities"


def test_eight_faults_at_once_and_nothing_is_compiled(tmp_path: Path) -> None:
    file = tmp_path / "decision.yaml"
    file.write_text(
        """
        output: p[5]
        threshold: 1.5
        adverse: above
        features: {age: {reason: R0}, incom: {reason: R0}, debt: {}}
        groups:
          one: {members: [years, cards], reason: R0}
          two: {members: [years], reason: R9}
        reasons: {R0: text}
        protected: [AGE]
        never_disclose: [cards]
        """
    )
    with pytest.raises(InvalidProfileError) as caught:
        compile_model(SOFTMAX, DeepShap(R), decision=file, feature_names=NAMES)
    message = str(caught.value)
    assert message.startswith(f"{file}: 8 problems: (1) ")
    for fault in (
        "output 'p[5]': the elements of 'p' are 0 to 1",
        "threshold 1.5 is outside of 'p[5]', 0 to 1",
        "the model has no feature 'incom' (do you mean 'income'?)",
        "no reason code for 'income', 'debt'",
        "feature 'years' is in the groups 'one', 'two'",
        "the code 'R9' has no text",
        "the model has the input 'age'",
        "never_disclose: 'cards' is explained with the group 'one'",
    ):
        assert fault in message
    assert list(contents(tmp_path)) == ["decision.yaml"]


def test_several_inputs_are_named_by_their_own_features() -> None:
    inputs = two_inputs()
    names = {
        v.name: [f"{v.name} {i}" for i in range(v.type.tensor_type.shape.dim[1].dim_value)]
        for v in inputs.graph.input
    }
    references = {name: rows(K, len(columns), seed=5) for name, columns in names.items()}
    every = [name for columns in names.values() for name in columns]
    change = {
        "output": f"{inputs.graph.output[0].name}[0]",
        "features": {name: {} for name in every[1:-1]},
        "groups": {"ends": {"members": [every[0], every[-1]]}},
        "reasons": {},
        "threshold": 0.0,
        "output_range": [-9, 9],
    }
    compiled = decided(inputs, change, DeepShap(references), feature_names=names)
    assert set(attribution_keys(compiled.manifest)) == {"ends", *every[1:-1]}


# -- the base against the threshold ----------------------------------------------------------------------

ONLY = parsed(
    "g (float[N, 1] x) => (float[N, 2] p) { r = Sub (one, x)  p = Concat <axis = 1> (r, x) }", LINEAR_WEIGHTS
)


def told_of_base(scores: list[float], change: Mapping[str, Any], **options: Any) -> list[str]:
    """Of references whose scores are as given, at a threshold of 0.5."""
    profile = {**GOOD, "features": {}, "reasons": {}, "output_range": [0, 1], **change}
    references = np.array(scores, np.float32)[:, None]
    method = ExactShap(references, options.pop("weights", None))
    warnings = compile_model(ONLY, method, feature_names=["age"], decision=profile).manifest.warnings
    return [
        text
        for text in warnings
        if "references stand" in text or "and the profile" in text or "not near" in text
    ]


POLICIES = {policy: {"references": {"policy": policy}} for policy in ("near_threshold", "approved", "custom")}


@pytest.mark.parametrize(
    ("scores", "change"),
    [
        ([0.3, 0.4, 0.5], {}),
        ([0.52, 0.58, 0.6], {}),  # a little beyond
        ([0.1, 0.9], POLICIES["custom"]),
        ([0.41, 0.49], POLICIES["near_threshold"]),
        ([0.5, 0.1], POLICIES["approved"]),
        ([0.2, 0.1], {**POLICIES["approved"], "threshold": 0.2}),  # 0.2 of float32 is a little more
        ([0.8, 0.9], {"adverse": "below"}),
        ([0.2, 0.3], {"output": "p[0]", "adverse": "below"}),
    ],
)
def test_references_that_fit(scores: list[float], change: Mapping[str, Any]) -> None:
    assert not told_of_base(scores, change)


@pytest.mark.parametrize("policy", ["near_threshold", "approved", "all_applicants", "custom"])
@pytest.mark.parametrize("change", [{"output": "p[0]"}, {"adverse": "below"}], ids=["output", "adverse"])
def test_swapped_labels_are_told(change: Mapping[str, Any], policy: str) -> None:
    (warning,) = told_of_base([0.2, 0.3, 0.6], {**change, "references": {"policy": policy}})
    assert "references" in warning
    mean, side = (0.633333, "above") if "output" in change else (0.366667, "below")
    assert all(text in warning for text in (f"{mean:g}", f"{side} 0.5", "67%"))


def test_references_that_are_not_of_the_policy() -> None:
    (warning,) = told_of_base([0.2, 0.3, 0.4, 0.6], POLICIES["approved"])
    assert warning == "decision: the references are 'approved', and the profile declines 25.0% of them"
    (warning,) = told_of_base([0.2, 0.3], POLICIES["near_threshold"])
    assert "'near_threshold', and 'p' is 0.25 on average, not near 0.5" in warning


def test_the_mean_of_weighted_references() -> None:
    assert not told_of_base([0.1, 0.9], {}, weights=[0.5, 0.5])
    (warning,) = told_of_base([0.1, 0.9], {}, weights=[0.2, 0.8])
    assert "is 0.74 on average, above 0.5, and 80% of them" in warning
