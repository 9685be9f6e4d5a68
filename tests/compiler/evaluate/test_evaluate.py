"""`rationale evaluate`: closed forms of a linear model, the credit example, bad input, files."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from rationale import DeepShap, ExpectedGradients, Gradient, IntegratedGradients, SmoothGrad, compile_model
from rationale.artifact.entry import open_entry
from rationale.errors import InvalidReferencesError
from rationale.evaluate.evaluate import Evaluation, EvaluationSettings, evaluate
from rationale.evaluate.explained_model import ExplainedModel, evaluated_pairs
from rationale.evaluate.faithfulness import cut_counts, rank_players
from rationale.methods.engine import Method
from rationale.methods.propagation.lrp.lrp import Lrp
from rationale.methods.propagation.lrp.rules import Epsilon
from rationale.pictures.panels import Bars
from tests.compiler.models import FEATURES, cnn, mlp, parsed, rows, two_inputs

RATIONALE = Path(sys.executable).with_name("rationale")
CREDIT = Path(__file__).parents[3] / "examples" / "credit"
WIDE = 40
SMALL = EvaluationSettings(rows=30, orders=4)


def linear(features: int, seed: int = 7, bias: float = 0.5) -> tuple[onnx.ModelProto, np.ndarray]:
    """y [N, 1] = x·w + b, and w."""
    w = rows(features, 1, seed=seed)
    text = f"g (float[N, {features}] x) => (float[N, 1] y) {{ [head] y = Gemm (x, w, b) }}"
    return parsed(text, {"w": w, "b": np.float32([bias])}), w[:, 0].astype(np.float64)


def entry(folder: Path, name: str, model: object, method: Method, **options: object) -> None:
    compile_model(model, method, **options).write(folder / "repo", name)


def judge(folder: Path, *names: str, x: object, **options: object) -> list[Evaluation]:
    file = folder / "rows.npz"
    np.savez(file, **(x if isinstance(x, dict) else {"x": x}))
    return evaluate(folder / "repo", names, file, **{"settings": SMALL, **options})


# -- closed forms --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def linear_case(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray, np.ndarray]:
    """A folder with DeepSHAP and the gradient of a linear model; w, the reference mean, and rows."""
    folder = tmp_path_factory.mktemp("linear")
    model, w = linear(6)
    references = rows(3, 6, seed=1) + 1
    np.save(folder / "r.npy", references)
    entry(folder, "shap", model, DeepShap(references))
    entry(folder, "grad", model, Gradient())
    return folder, w, references.mean(axis=0, dtype=np.float64), rows(8, 6, seed=2)


def test_curves_of_a_linear_model_are_the_sorted_attributions(
    linear_case: tuple[Path, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    folder, w, mean, x = linear_case
    (evaluation,) = judge(folder, "shap", x=x)
    shares = np.sort(w * (x - mean), axis=1)[:, ::-1]
    after = np.concatenate([np.zeros((8, 1)), shares.cumsum(axis=1)], axis=1)
    deleted, put_back = (x @ w + 0.5)[:, None] - after, (mean @ w + 0.5) + after
    np.testing.assert_allclose(evaluation.deletion.fractions, np.arange(7) / 6, atol=1e-15)
    np.testing.assert_allclose(evaluation.deletion.values, deleted.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(evaluation.insertion.values, put_back.mean(axis=0), atol=1e-5)
    curve = deleted.mean(axis=0)
    assert evaluation.deletion.area == pytest.approx(
        (curve[0] / 2 + curve[1:-1].sum() + curve[-1] / 2) / 6, abs=1e-5
    )
    assert (evaluation.rows, evaluation.targets, evaluation.features, evaluation.baseline) == (
        8,
        1,
        6,
        "reference mean",
    )


def test_random_orders_start_and_end_with_the_curve(
    linear_case: tuple[Path, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    folder, _, _, x = linear_case
    (evaluation,) = judge(folder, "shap", x=x)
    for curve in (evaluation.deletion, evaluation.insertion):
        assert curve.control.shape == (4, 7)
        for end in (0, -1):
            np.testing.assert_allclose(curve.control[:, end], curve.values[end], atol=1e-5)
    assert np.ptp(evaluation.deletion.control[:, 3]) > 1e-3, "orders differ"
    assert (evaluation.deletion.control_areas > evaluation.deletion.area).all()
    assert (evaluation.insertion.control_areas < evaluation.insertion.area).all()


def test_entries_of_one_model_share_a_baseline(tmp_path: Path) -> None:
    model, _ = linear(6)
    entry(tmp_path, "a", model, DeepShap(rows(3, 6, seed=1)))
    entry(tmp_path, "b", model, DeepShap(rows(3, 6, seed=2) + 2))
    a, b = judge(tmp_path, "a", "b", x=rows(8, 6))
    assert (a.baseline, b.baseline) == ("reference mean", "reference mean of a")
    np.testing.assert_allclose(a.deletion.values[[0, -1]], b.deletion.values[[0, -1]], atol=1e-6)


def test_a_constant_model(tmp_path: Path) -> None:
    model = parsed(
        "g (float[N, 3] x) => (float[N, 1] y) { y = Gemm (x, w, b) }",
        {"w": np.zeros((3, 1), np.float32), "b": np.float32([2])},
    )
    entry(tmp_path, "flat", model, DeepShap(rows(2, 3)))
    np.save(tmp_path / "r.npy", rows(2, 3))
    (evaluation,) = judge(tmp_path, "flat", x=rows(4, 3, seed=3), references=[tmp_path / "r.npy"])
    assert (evaluation.deletion.area, evaluation.insertion.area) == (2.0, 2.0)
    assert [s.correlation for s in evaluation.randomised.stages] == [None]


# -- the order of features -----------------------------------------------------------------------------


def test_ranks_and_cuts() -> None:
    random = np.random.default_rng(0)
    np.testing.assert_array_equal(rank_players(np.array([[0.5, -2.0, 3.0]]), random), [[1, 2, 0]])
    ties = np.concatenate([rank_players(np.zeros((1, 4)), random) for _ in range(30)])
    assert set(ties[:, 0]) == {0, 1, 2, 3}, "ties come in any order"
    np.testing.assert_array_equal(np.sort(ties, axis=1), np.tile(np.arange(4), (30, 1)))
    np.testing.assert_array_equal(cut_counts(3, 100), [0, 1, 2, 3])
    np.testing.assert_array_equal(cut_counts(10, 4), [0, 2, 5, 8, 10])
    assert (len(cut_counts(150_528, 25)), cut_counts(150_528, 25)[-1]) == (26, 150_528)


def test_many_features_are_replaced_in_steps(tmp_path: Path) -> None:
    model, w = linear(250)
    entry(tmp_path, "shap", model, DeepShap(np.zeros((1, 250), np.float32)))
    x = rows(3, 250, seed=4)
    (evaluation,) = judge(tmp_path, "shap", x=x, settings=EvaluationSettings(orders=2))
    cuts = (evaluation.deletion.fractions * 250).round().astype(int)
    assert (len(cuts), cuts[0], cuts[-1]) == (101, 0, 250)
    shares = np.sort(w * x, axis=1)[:, ::-1]
    expected = [(shares[:, cut:].sum(axis=1) + 0.5).mean() for cut in cuts]
    np.testing.assert_allclose(evaluation.deletion.values, expected, atol=1e-4)


# -- rows, targets and inputs of every kind ------------------------------------------------------------


@pytest.mark.parametrize("names", [("grad", "shap"), ("shap", "grad")])
def test_features_are_drawn_in_one_order_and_by_one_name(tmp_path: Path, names: tuple[str, str]) -> None:
    """Names were given to one of the entries; the sizes of attributions differ."""
    model, _ = linear(15)
    columns = [f"c{i}" for i in range(15)]
    entry(tmp_path, "shap", model, DeepShap(rows(3, 15, seed=1) + 1), feature_names=columns)
    entry(tmp_path, "grad", model, Gradient())
    first, second = (
        [p for p in e.panels if isinstance(p, Bars)] for e in judge(tmp_path, *names, x=rows(4, 15))
    )
    assert [p.title.split(" ")[0] for p in (first[0], second[0])] == list(names)
    for a, b in zip(first, second, strict=True):
        assert a.labels == b.labels
        assert a.labels[0].startswith("c")
        assert (np.diff(np.abs(a.values[:-1])) <= 0).all()
        assert (np.diff(np.abs(b.values[:-1])) > 0).any()


def test_a_predicted_class_is_fixed_at_the_row(tmp_path: Path) -> None:
    model = mlp()
    entry(tmp_path, "m", model, DeepShap(rows(4, FEATURES)))
    x = rows(20, FEATURES, seed=9)
    (evaluation,) = judge(tmp_path, "m", x=x, settings=EvaluationSettings(orders=2))
    y = open_entry(tmp_path / "repo", "m").explain(x)["y"]
    predicted = y.argmax(axis=1)
    assert set(predicted) == {0, 1, 2}
    assert evaluation.deletion.values[0] == pytest.approx(y.max(axis=1).mean(), abs=1e-6)
    base = open_entry(tmp_path / "repo", "m").explain(rows(4, FEATURES).mean(axis=0, keepdims=True))["y"]
    assert evaluation.deletion.values[-1] == pytest.approx(base[0, predicted].mean(), abs=1e-6), (
        "the same class there"
    )


@pytest.mark.parametrize("output", ["z2", "y"])
def test_an_inner_output_is_answered_by_the_plain_model(tmp_path: Path, output: str) -> None:
    entry(tmp_path, "m", mlp(), DeepShap(rows(4, FEATURES)), output=output, targets=[2, 0])
    compiled, x = open_entry(tmp_path / "repo", "m"), rows(7, FEATURES, seed=9)
    subject = ExplainedModel(compiled, {"x": x})
    pairs = evaluated_pairs(subject)
    explained = compiled.explain(x)
    order = np.argsort(-explained["explained_value"], axis=1)
    np.testing.assert_array_equal(pairs.positions, order)
    np.testing.assert_array_equal(pairs.elements.reshape(7, 2), np.array([2, 0])[order])
    answers = np.take_along_axis(explained["explained_value"], order, axis=1)
    np.testing.assert_allclose(pairs.answers.reshape(7, 2), answers, rtol=1e-6)
    shares = np.take_along_axis(explained["x_attributions"], order[:, :, None], axis=1)
    np.testing.assert_array_equal(pairs.attributions.reshape(7, 2, FEATURES), shares)


def test_contrasts_are_differences_of_elements(tmp_path: Path) -> None:
    entry(tmp_path, "m", mlp(), DeepShap(rows(4, FEATURES)), targets=[2, "0-1"])
    x = rows(7, FEATURES, seed=9)
    subject = ExplainedModel(open_entry(tmp_path / "repo", "m"), {"x": x})
    answers = subject.answer(x.astype(np.float64), np.arange(7))
    assert answers[:, 0].min() > 0
    np.testing.assert_array_equal(answers[:, -1], answers[:, 0] - answers[:, 1])
    np.testing.assert_array_equal(subject.columns, [2, answers.shape[1] - 1])


def test_several_inputs_are_one_row_of_features(tmp_path: Path) -> None:
    references = {"a": rows(4, 3), "b": rows(4, 4)}
    np.savez(tmp_path / "r.npz", **references)
    entry(tmp_path, "two", two_inputs(), DeepShap(references), targets="all")
    x = {"a": rows(9, 3, seed=5), "b": rows(9, 4, seed=6)}
    (evaluation,) = judge(tmp_path, "two", x=x, references=[tmp_path / "r.npz"])
    assert (evaluation.features, evaluation.targets, evaluation.rows) == (7, 2, 9)
    base = {k: v.mean(axis=0, keepdims=True) for k, v in references.items()}
    y = open_entry(tmp_path / "repo", "two").explain(base)["y"].mean()
    assert evaluation.deletion.values[-1] == pytest.approx(y, abs=1e-6)
    assert evaluation.deletion.area < evaluation.deletion.control_areas.mean() < evaluation.insertion.area
    assert [s.layers for s in evaluation.randomised.stages] == [1, 2]


def test_inputs_that_are_not_explained_stay_with_their_row(tmp_path: Path) -> None:
    text = """g (float[N, 3] x, float[N, 3] z) => (float[N, 1] y)
        { p = Mul (x, z) y = ReduceSum <keepdims = 1> (p, axes) }"""
    model = parsed(text, {"axes": np.array([1])})
    entry(tmp_path, "m", model, Gradient(), inputs=["x"])
    x = {"x": rows(5, 3), "z": rows(5, 3, seed=1)}
    (evaluation,) = judge(tmp_path, "m", x=x, settings=EvaluationSettings(rows=3))
    index = np.sort(np.random.default_rng([0, 0]).choice(5, 3, replace=False))
    y = (x["x"] * x["z"])[index].sum(axis=1)
    assert evaluation.deletion.values[0] == pytest.approx(y.mean(), abs=1e-5)
    assert evaluation.deletion.values[-1] == pytest.approx(0, abs=1e-6), "zeros where there are no references"
    assert evaluation.randomised.left_out == "no layer has weights"


def test_an_image_model(tmp_path: Path) -> None:
    references = rows(3, 2, 6, 8, seed=8)
    np.save(tmp_path / "r.npy", references)
    entry(tmp_path, "cnn", cnn(), DeepShap(references), targets=[1])
    (evaluation,) = judge(tmp_path, "cnn", x=rows(6, 2, 6, 8), references=[tmp_path / "r.npy"])
    assert (evaluation.features, len(evaluation.deletion.values)) == (96, 97)
    margin = 5 * evaluation.deletion.control_areas.std()
    assert evaluation.deletion.area < evaluation.deletion.control_areas.mean() - margin
    assert evaluation.insertion.area > evaluation.insertion.control_areas.mean() + margin
    assert [(s.layers, s.of, s.first) for s in evaluation.randomised.stages] == [
        (1, 2, "head"),
        (2, 2, "conv"),
    ]
    correlation = evaluation.randomised.stages[-1].correlation
    assert correlation is not None
    assert abs(correlation) < 0.3


# -- the credit example --------------------------------------------------------------------------------


def test_deepshap_beats_random_orders_on_the_credit_example(tmp_path: Path) -> None:
    table = np.loadtxt(CREDIT / "references.csv", delimiter=",", skiprows=1, dtype=np.float32)
    base, x = table[:50], table[50:]
    entry(tmp_path, "credit", CREDIT / "credit.onnx", DeepShap(base), output="score_logit")
    (evaluation,) = judge(tmp_path, "credit", x={"applicant": x}, settings=EvaluationSettings())
    margin = 0.4  # of the logit; seen 0.6
    assert evaluation.deletion.area < evaluation.deletion.control_areas.mean() - margin
    assert evaluation.insertion.area > evaluation.insertion.control_areas.mean() + margin
    assert evaluation.deletion.control_areas.std() < 0.1


# -- redrawn weights -----------------------------------------------------------------------------------


def test_redrawn_weights_decorrelate(tmp_path: Path) -> None:
    model, _ = linear(WIDE)
    references = rows(4, WIDE)
    np.save(tmp_path / "r.npy", references)
    entry(tmp_path, "shap", model, DeepShap(references))
    x = rows(20, WIDE, seed=3)
    (evaluation,) = judge(tmp_path, "shap", x=x, references=[tmp_path / "r.npy"])
    (stage,) = evaluation.randomised.stages
    assert stage.correlation is not None
    assert stage.absolute is not None
    assert abs(stage.correlation) < 0.25, "a correlation of 40 numbers has a spread of 0.16"
    assert stage.absolute < 0.6, "the distance from the reference stays in it"
    (without,) = judge(tmp_path, "shap", x=x)
    assert without.randomised.left_out == "a recompile needs the references: give --references FILE"
    assert without.deletion.area == evaluation.deletion.area


def test_each_entry_finds_its_own_references(tmp_path: Path) -> None:
    sets = {name: rows(k, FEATURES, seed=k) for name, k in (("a", 3), ("b", 4), ("c", 5))}
    for name, references in sets.items():
        entry(tmp_path, name, mlp(), DeepShap(references), targets=[0])
        np.save(tmp_path / f"{name}.npy", references)
    files = [tmp_path / "b.npy", tmp_path / "a.npy"]
    a, b, c = judge(tmp_path, "a", "b", "c", x=rows(5, FEATURES, seed=9), references=files)
    assert [bool(e.randomised.stages) for e in (a, b, c)] == [True, True, False]
    assert [e.baseline for e in (a, b, c)] == ["reference mean", *["reference mean of a"] * 2]
    for curve in ("deletion", "insertion"):
        np.testing.assert_array_equal(getattr(a, curve).control, getattr(b, curve).control)
        assert getattr(a, curve).values[-1] == pytest.approx(getattr(b, curve).values[-1], abs=1e-6)
    with pytest.raises(InvalidReferencesError, match=r"c\.npy: .*'a'.*digest"):
        judge(tmp_path, "a", x=rows(5, FEATURES), references=[tmp_path / "c.npy"])


# -- other methods -------------------------------------------------------------------------------------

OTHER_METHODS: dict[str, Any] = {
    "integrated-gradients": lambda r: IntegratedGradients(r, steps=8),
    "expected-gradients": lambda r: ExpectedGradients(r, samples=400, seed=2, standard_error=True),
    "smoothgrad": lambda _: SmoothGrad(samples=4, sigma=0.1, seed=2),
    "lrp": lambda _: Lrp("EpsilonPlus", rules=(("last", Epsilon(0.01)),)),
    "integrated-gradients from zeros": lambda _: IntegratedGradients(steps=8),
}


@pytest.mark.parametrize("name", OTHER_METHODS)
def test_every_method_is_judged_and_made_again(tmp_path: Path, name: str) -> None:
    model, _ = linear(WIDE)
    references = rows(4, WIDE)
    method = OTHER_METHODS[name](references)
    entry(tmp_path, "m", model, method)
    np.save(tmp_path / "r.npy", references)
    reference_files = [tmp_path / "r.npy"] if isinstance(method.reference_set, np.ndarray) else []
    (evaluation,) = judge(
        tmp_path,
        "m",
        x=rows(9, WIDE, seed=3),
        references=reference_files,
        settings=EvaluationSettings(orders=2),
    )
    assert evaluation.manifest.method.name == name.split()[0] == method.name
    assert evaluation.randomised.left_out is None
    (stage,) = evaluation.randomised.stages
    assert stage.correlation is not None
    assert abs(stage.correlation) < 0.3
    assert evaluation.baseline == ("reference mean" if reference_files else "zeros")
