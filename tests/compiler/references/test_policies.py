"""Reference sets of a decision profile's policy, as the command draws them and the compiler takes them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnx
import pandas as pd
import pytest
import xgboost
import yaml
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder
from typer.testing import CliRunner, Result

from rationale.cli.policies import column_of
from rationale.errors import InvalidOptionError, InvalidReferencesError
from rationale.lowering import lower
from rationale.profiles.policies import Band, ScoredRows, draw_systematic, parse_band, population
from rationale.profiles.scores import deciding_margin
from rationale.schema.manifest import Manifest
from rationale.schema.profile import DecisionProfile, as_profile
from rationale.tables.files import Table, read_rows
from rationale_service.cli.main import app
from tests.compiler.models import mlp, parsed, rows
from tests.needs import GERMAN, TAIWAN, need_data
from tests.tolerances import PARITY_32

DECILES = 10
SCORES = np.random.default_rng(0).integers(0, 1000, 400) / 1000
RULES = {"output": "y[1]", "threshold": 0.3, "adverse": "above", "references": {"policy": "near_threshold"}}


def profile(**rules: Any) -> DecisionProfile:
    return DecisionProfile.model_validate({**RULES, **rules})


def scored(scores: np.ndarray = SCORES, knocked_out: Sequence[int] = ()) -> ScoredRows:
    out = np.zeros(len(scores), bool)
    out[list(knocked_out)] = True
    return ScoredRows(scores, out)


# -- whom the policy names -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "approves", "passes"),
    [
        ({}, SCORES <= 0.3, SCORES <= 0.3),
        ({"adverse": "below"}, SCORES >= 0.3, SCORES >= 0.3),
        ({"refer": [0.25, 0.35]}, SCORES < 0.25, SCORES <= 0.3),
        ({"refer": [0.25, 0.35], "adverse": "below"}, SCORES > 0.35, SCORES >= 0.3),
    ],
)
def test_whom_a_policy_names(rules: dict[str, Any], approves: np.ndarray, passes: np.ndarray) -> None:
    rules_profile, knocked_out = profile(**rules), [3, 4, 5]
    remaining = ~np.isin(np.arange(len(SCORES)), knocked_out)
    approved = population(rules_profile, "approved", scored(knocked_out=knocked_out), Band(share=0.1))
    assert set(approved) == set(np.flatnonzero(approves & remaining))
    assert (np.diff(SCORES[approved]) >= 0).all(), "in the order of the scores"
    near = population(rules_profile, "near_threshold", scored(knocked_out=knocked_out), Band(width=0.05))
    assert set(near) == set(np.flatnonzero(passes & remaining & (np.abs(SCORES - 0.3) <= 0.05)))
    nearest = population(rules_profile, "near_threshold", scored(knocked_out=knocked_out), Band(share=0.1))
    away, further = np.abs(SCORES[nearest] - 0.3), np.setdiff1d(np.flatnonzero(passes & remaining), nearest)
    assert len(nearest) >= round(0.1 * (passes & remaining).sum())
    assert away.max() < np.abs(SCORES[further] - 0.3).min(), "equal scores are near together"
    everyone = population(rules_profile, "all_applicants", scored(knocked_out=knocked_out), Band(share=0.1))
    assert sorted(everyone) == list(range(len(SCORES)))


def test_nobody_is_of_it() -> None:
    with pytest.raises(InvalidReferencesError, match=r"approved.* 0\.3\b.* 0\.5 to 0\.9"):
        population(profile(), "approved", scored(np.array([0.5, 0.9])), Band(share=0.1))
    with pytest.raises(InvalidReferencesError, match=r"\b0\.2\b"):
        population(profile(), "near_threshold", scored(np.array([0.1, 0.9])), Band(width=0.05))
    with pytest.raises(InvalidOptionError, match="--policy"):
        population(profile(), "custom", scored(), Band(share=0.1))


@pytest.mark.parametrize(
    ("band", "near"),
    [
        (Band(share=0.001), [0]),  # of five: none, and at least one is taken
        (Band(share=0.29), [0]),
        (Band(share=0.31), [0, 1, 2]),  # two, and who is as far away as the second
        (Band(share=0.6), [0, 1, 2]),
        (Band(share=0.8), [0, 1, 2, 3]),
        (Band(share=1.0), [0, 1, 2, 3, 4]),
        (Band(width=0.0625), [0]),  # exactly as wide
        (Band(width=0.125), [0, 1, 2]),
        (Band(width=0.1249), [0]),
        (Band(width=9.0), [0, 1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("adverse", ["above", "below"])
def test_who_is_near_the_threshold(band: Band, near: list[int], adverse: str) -> None:
    away = np.array([0.0625, 0.125, 0.125, 0.25, 0.5])
    passed = 0.5 - away if adverse == "above" else 0.5 + away
    rules_profile = profile(threshold=0.5, adverse=adverse)
    of_all = np.concatenate([passed, 1 - passed[:2]])  # who does not pass is not near
    assert sorted(population(rules_profile, "near_threshold", scored(of_all), band)) == near


@pytest.mark.parametrize("text", ["", "0", "-1", "a", "0%", "101%", "nan", "1e400", "5 %"])
def test_no_band(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="--band"):
        parse_band(text)


@pytest.mark.parametrize(
    ("text", "band"),
    [
        ("10%", Band(share=0.1)),
        (" .05 ", Band(width=0.05)),
        ("100%", Band(share=1.0)),
        ("0.5%", Band(share=0.005)),
        ("101", Band(width=101)),
    ],
)
def test_bands(text: str, band: Band) -> None:
    assert parse_band(text) == band


@pytest.mark.parametrize(
    ("share", "count"), [(0.01, 1), (0.14, 1), (0.15, 2), (0.24, 2), (0.36, 4), (0.94, 9), (1.0, 10)]
)
def test_a_part_of_those_who_pass_is_rounded(share: float, count: int) -> None:
    """The count is rounded to the nearest row, and is at least one."""
    passed = scored(np.arange(1, 11) / 64)
    assert len(population(profile(), "near_threshold", passed, Band(share=share))) == count


@pytest.mark.parametrize("k", [1, 7, 50, 399, 400])
def test_deciles_and_values_keep_their_shares(k: int) -> None:
    strata = ["f" if i % 3 else "m" for i in range(len(SCORES))]
    order = np.argsort(SCORES, kind="stable")
    place = np.empty(len(SCORES), int)
    place[order] = np.arange(len(SCORES))
    drawn = draw_systematic(order, k, seed=1)
    assert len(set(drawn)) == k
    in_decile = np.bincount(place[drawn] * DECILES // len(SCORES), minlength=DECILES)
    assert np.abs(in_decile - k / DECILES).max() < 1 + 1e-9
    by_value = draw_systematic(order, k, seed=1, strata=strata)
    men = sum(strata[i] == "m" for i in by_value)
    assert len(set(by_value)) == k
    assert abs(men - k * strata.count("m") / len(strata)) < 1 + 1e-9


def test_strata_of_any_kind_stand_together_as_their_texts() -> None:
    """Cells of a table may be numbers, texts, dates or missing."""
    kinds = [10, 9, 2.5, None, float("nan"), "a", True, np.datetime64("2026-01-01")]
    strata = [kinds[i * 5 % len(kinds)] for i in range(40)]
    order = np.argsort(-np.arange(40))
    drawn = draw_systematic(order, 16, seed=2, strata=strata)
    np.testing.assert_array_equal(
        drawn, draw_systematic(order, 16, seed=2, strata=[str(item) for item in strata])
    )
    assert sorted(str(strata[i]) for i in drawn) == sorted(str(kind) for kind in kinds * 2)


def test_each_row_is_as_likely_and_a_seed_is_a_draw() -> None:
    order = np.arange(23)
    counts = np.zeros(23)
    for seed in range(2000):
        counts[draw_systematic(order, 5, seed)] += 1
    assert np.abs(counts / 2000 - 5 / 23).max() < 5 * np.sqrt(5 / 23 * 18 / 23 / 2000)  # standard errors
    np.testing.assert_array_equal(draw_systematic(order, 5, 3), draw_systematic(order, 5, 3))


# -- the command, on a pipeline of words and numbers ---------------------------------------------------


WORDS, NUMBERS = ["status", "purpose"], ["amount", "duration", "age"]


@pytest.fixture(scope="module")
def german() -> pd.DataFrame:
    """[1000, 6]: words, numbers with gaps, and sex, which the model does not read."""
    table = pd.read_csv(need_data(GERMAN), sep="\t", header=None)
    actual = table[[0, 3, 4, 1, 12, 8]].set_axis([*WORDS, *NUMBERS, "sex"], axis=1)
    actual["sex"] = np.where(actual["sex"].isin(["A92", "A95"]), "female", "male")
    actual["bad"] = (table[20] == 2).astype(int)
    actual = actual.astype(dict.fromkeys(NUMBERS, float))
    actual.loc[::17, "amount"] = np.nan
    return actual


@pytest.fixture(scope="module")
def pipeline(german: pd.DataFrame) -> Pipeline:
    prepared = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), WORDS), (SimpleImputer(strategy="median"), NUMBERS)
    )
    trees = GradientBoostingClassifier(n_estimators=12, max_depth=3, random_state=0)
    return make_pipeline(prepared, trees).fit(german[WORDS + NUMBERS], german["bad"])


@pytest.fixture
def place(tmp_path: Path, german: pd.DataFrame, pipeline: Pipeline) -> Path:
    """A folder with the model, its rows, and a decision profile."""
    joblib.dump(pipeline, tmp_path / "m.joblib")
    german.to_csv(tmp_path / "rows.csv", index=False)
    write_profile(tmp_path)
    return tmp_path


def write_profile(place: Path, **rules: Any) -> None:
    members = {**RULES, "output": "probabilities[1]", **rules}
    (place / "decision.yaml").write_text(yaml.safe_dump(members))


def call(place: Path, *more: str, model: str = "m.joblib", rows: str = "rows.csv") -> Result:
    paths = [str(place / rows), "--decision", str(place / "decision.yaml"), "--model", str(place / model)]
    return CliRunner().invoke(
        app, ["references", *paths, "--allow-pickle", "-o", str(place / "r.npz"), *more]
    )


def compiled(place: Path, model: str = "m.joblib") -> tuple[Manifest, str]:
    arguments = [
        "--references",
        str(place / "r.npz"),
        "--decision",
        str(place / "decision.yaml"),
        "--allow-pickle",
    ]
    arguments += ["--method", "treeshap", "--name", "m", "--repository", str(place / "repository")]
    result = CliRunner().invoke(app, ["compile", str(place / model), *arguments])
    assert result.exit_code == 0, result.output
    return Manifest.read(place / "repository/m_explain/explanation.json"), result.stderr


def as_frame(set_: Table) -> pd.DataFrame:
    arrays = {str(name): array for name, array in set_.arrays.items()}
    return pd.DataFrame({name: array[:, 0] for name, array in arrays.items()})


@pytest.mark.filterwarnings("ignore")  # of the converter, about itself
@pytest.mark.parametrize("by", ["stratified", "medoids", "whole"])
def test_what_is_drawn_is_what_is_compiled(
    place: Path, german: pd.DataFrame, pipeline: Pipeline, by: str
) -> None:
    """Words, missing numbers and weights go through the file, and the base value is their mean score."""
    result = call(place, "--by", by, *([] if by == "whole" else ["--count", "25"]))
    assert result.exit_code == 0, result.output
    drawn = read_rows(place / "r.npz")
    table = as_frame(drawn)
    arguments = german[WORDS + NUMBERS]
    scores, expected = pipeline.predict_proba(arguments)[:, 1], pipeline.predict_proba(table)[:, 1]
    passed = np.sort(scores[scores <= 0.3])[::-1]
    tenth = passed[: round(0.1 * len(passed))]
    assert tenth[-1] - PARITY_32 <= expected.min() <= expected.max() <= 0.3
    assert drawn.count == (25 if by != "whole" else (scores[scores <= 0.3] >= tenth[-1]).sum())
    near = scores[(scores <= 0.3) & (scores >= tenth[-1] - PARITY_32)]
    assert drawn.stands_for is not None
    assert drawn.stands_for.rows == len(near)
    mean = drawn.stands_for.outputs["probabilities"].mean
    assert mean == pytest.approx((1 - near.mean(), near.mean()), abs=PARITY_32), "of whom the policy names"
    there = arguments.drop_duplicates().merge(table.drop_duplicates(), how="inner")
    assert len(there) == len(table.drop_duplicates()), "all are rows of the file"
    manifest, message = compiled(place)
    assert manifest.references is not None
    assert manifest.references.base_value is not None
    base = np.average(expected, weights=drawn.weights)
    assert manifest.references.base_value[0] == pytest.approx(base, abs=PARITY_32)
    assert (drawn.weights is not None) == (by == "medoids")
    if by != "stratified":  # a draw's mean is near that of all
        assert base == pytest.approx(tenth.mean(), abs=1e-3)
    assert "drawn as" not in message
    assert "another model" not in message


@pytest.mark.filterwarnings("ignore")
def test_the_compile_knows_of_another_policy(place: Path) -> None:
    result = call(place, "--policy", "approved", "--count", "30", "--stratify", "sex")
    assert result.exit_code == 0, result.output
    assert "names near_threshold and all_applicants" in result.stderr
    assert "the compile will warn" in result.stderr
    _, message = compiled(place)
    assert "drawn as approved at the threshold 0.3, and the decision profile says near_threshold" in message
    write_profile(place, references={"policy": "approved"}, threshold=0.4)
    _, message = compiled(place)
    assert "approved at the threshold 0.3, and the decision profile says approved at 0.4" in message


@pytest.mark.filterwarnings("ignore")
def test_a_seed_is_a_set(place: Path) -> None:
    sets = []
    for seed in ("1", "1", "2"):
        assert call(place, "--count", "20", "--by", "medoids", "--seed", seed).exit_code == 0
        sets.append((place / "r.npz").read_bytes())
    assert sets[0] == sets[1]
    assert call(place, "--count", "20", "--seed", "4").exit_code == 0
    assert (place / "r.npz").read_bytes() not in sets


def test_a_column_of_a_file_is_an_input_of_one_number(tmp_path: Path) -> None:
    table = Table({"age": np.array([[20.0], [30.0]]), "income": np.ones((2, 3))})
    assert column_of(tmp_path / "r.npz", table, "age") == [20.0, 30.0]
    assert column_of(tmp_path / "r.npz", table, "income") is None
    assert column_of(tmp_path / "r.npz", table, "debt") is None


@pytest.mark.filterwarnings("ignore")
def test_knock_outs_do_not_pass(place: Path, german: pd.DataFrame) -> None:
    """By a column of the model, by one of the file alone, and by one that is nowhere."""
    rules = [
        {"feature": "age", "below": 25, "reason": "R1"},
        {"feature": "sex", "equals": "female", "reason": "R1"},
        {"feature": "bankruptcies", "above": 0, "reason": "R1"},
    ]
    write_profile(place, knock_outs=rules, reasons={"R1": "Knocked out"})
    result = call(place, "--policy", "approved", "--by", "whole")
    assert result.exit_code == 0, result.output
    assert "no column 'bankruptcies'" in result.stderr
    assert as_frame(read_rows(place / "r.npz"))["age"].min() == 25
    out = (german["age"] < 25) | (german["sex"] == "female")
    assert f"{out.sum()} decline" not in result.stdout, "the score declines others"
    write_profile(place, knock_outs=rules[:2], reasons={"R1": "Knocked out"}, threshold=1.0)
    result = call(place, "--policy", "approved", "--by", "whole")
    assert f"{(~out).sum()} approve, {out.sum()} decline" in result.stdout


@pytest.mark.filterwarnings("ignore")
def test_what_the_draw_moves(place: Path) -> None:
    result = call(place, "--count", "20", "--policy", "all_applicants", "--measure", "treeshap")
    assert result.exit_code == 0, result.output
    assert "from 200 along the score" in result.stdout
    lines = [line.split() for line in result.stdout[result.stdout.index("    K  base value") :].splitlines()]
    assert [line[0] for line in lines[1:4]] == ["10", "20", "40"]
    moved = np.array([[float(cell[:-1]) for cell in line[4:8]] for line in lines[1:4]])
    assert (moved > 0).all()
    assert (moved[2] < moved[0]).all(), "more references, less of it"


@pytest.mark.filterwarnings("ignore")
def test_knock_outs_have_no_reasons_that_a_draw_could_move(place: Path) -> None:
    rule = {"feature": "age", "above": 0, "reason": "R1"}
    write_profile(place, knock_outs=[rule], reasons={"R1": "Knocked out"})
    result = call(place, "--count", "20", "--policy", "all_applicants", "--measure", "treeshap")
    assert result.exit_code == 0, result.output
    assert "1000 decline" in result.stdout
    assert "nothing was measured, because no row is declined" in result.stderr


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (["--count", "2000"], "--count 2000: [0-9]+ rows are near_threshold"),
        (["--by", "whole", "--count", "20"], "--by whole takes every row"),
        (["--by", "half"], "--by 'half'"),
        (["--policy", "custom"], "the policy custom"),
        (["--policy", "friends"], "--policy 'friends'"),
        (["--band", "wide"], "--band 'wide'"),
        (["--policy", "all_applicants", "--band", "10%"], "--band belongs to the policy near_threshold"),
        (["--stratify", "shoe size"], "has no such column"),
        (["--by", "medoids", "--stratify", "sex"], "--by stratified"),
        (["--measure", "lrp"], "--measure 'lrp'"),
        (["--least", "3"], "--least belongs to --centroids"),
        (["--centroids", "3"], "give --centroids K .* or --decision FILE"),
        (["-o", "r.csv"], "must end in .npz"),
        (["-o", "nowhere/r.npz"], "there is no folder"),
        (["--model", "none.onnx"], "none.onnx: cannot be read"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_wrong_is_said(place: Path, more: list[str], fault: str) -> None:
    (place / "r.npz").write_text("kept")
    if more[0] == "-o":
        more = ["-o", str(place / more[1])]
    result = call(place, *more)
    assert result.exit_code == 2, result.output
    assert re.search(fault, result.stderr), result.stderr
    assert (place / "r.npz").read_text() == "kept"


# -- an ONNX network -----------------------------------------------------------------------------------


@pytest.fixture
def network(tmp_path: Path) -> Path:
    onnx.save(mlp((5, 7, 2)), tmp_path / "m.onnx")
    np.savetxt(tmp_path / "rows.csv", rows(300, 5), delimiter=",", header="a,b,c,d,e", comments="")
    write_profile(tmp_path, output="y", threshold=0.5)
    return tmp_path


@pytest.mark.parametrize("output", ["y", "y[1]", "z2[0]"])
def test_scores_are_of_the_output_an_inner_one_too(network: Path, output: str) -> None:
    write_profile(network, output=output, threshold=0.5)
    result = call(network, "--by", "whole", "--policy", "approved", model="m.onnx")
    assert result.exit_code == 0, result.output
    table = read_rows(network / "r.npz")
    weights = {w.name: onnx.numpy_helper.to_array(w).astype(float) for w in mlp((5, 7, 2)).graph.initializer}
    x = rows(300, 5).astype(float)
    z = np.maximum(x @ weights["w1"] + weights["b1"], 0) @ weights["w2"] + weights["b2"]
    expected = z[:, 0] if output == "z2[0]" else 1 / (1 + np.exp(z[:, 0] - z[:, 1]))
    assert table.columns == tuple("abcde")
    assert table.count == (expected <= 0.5).sum()
    order = np.argsort(expected[expected <= 0.5])
    np.testing.assert_allclose(table.arrays[None], x[expected <= 0.5][order], rtol=1e-6)


@pytest.mark.parametrize(
    ("rules", "content", "fault"),
    [
        ({"output": "probability"}, None, "has no such tensor; its outputs are y"),
        ({"output": "y[2]"}, None, r"has 2 elements. Name the element of the score, y\[0\] to y\[1\]"),
        ({"threshold": -1}, None, "no row is near_threshold"),
        ({}, "a,b,c,d\n1,2,3,4\n", r"the model needs \[K, 5\]"),
        ({}, "a,b,c,d,e\n1,2,3,4,\n", "1 of 1 rows have no finite score"),
        ({"output": "z2[0]"}, "a,b,c,d,e\n0,-3e38,3e38,0,0\n", "1 of 1 rows have no finite score"),
        ({}, "a,b,c,d,e\n", "no rows"),
        ({}, "a,b,c,d,e\n1,2,x,4,5\n", "'x' is not a number"),
        ({}, "", "empty"),
    ],
)
def test_what_does_not_fit(network: Path, rules: dict[str, Any], content: str | None, fault: str) -> None:
    write_profile(network, **{"output": "y", "threshold": 0.5, **rules})
    if content is not None:
        (network / "rows.csv").write_text(content)
    result = call(network, model="m.onnx")
    assert result.exit_code == 2, result.output
    assert re.search(fault, result.stderr), result.stderr
    assert not (network / "r.npz").exists()


# -- many rows -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taiwan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A folder with boosted trees of 30,000 clients, and the probabilities that xgboost says of them."""
    file = need_data(TAIWAN)
    table, place = pd.read_csv(file), tmp_path_factory.mktemp("taiwan")
    x, y = table.drop(columns=["ID", "default.payment.next.month"]), table["default.payment.next.month"]
    model = xgboost.XGBClassifier(n_estimators=30, max_depth=4, n_jobs=1).fit(x, y)
    model.get_booster().save_model(place / "m.json")
    (place / "rows.csv").symlink_to(file)
    return place, model.predict_proba(x)[:, 1]


@pytest.mark.parametrize("by", ["stratified", pytest.param("medoids", marks=pytest.mark.slow)])
def test_thirty_thousand_clients(taiwan: tuple[Path, np.ndarray], by: str) -> None:
    place, scores = taiwan
    write_profile(place, references={"policy": "all_applicants"})
    result = call(place, "--by", by, "--count", "60", model="m.json")
    assert result.exit_code == 0, result.output
    drawn = read_rows(place / "r.npz")
    assert drawn.columns is not None
    model = xgboost.Booster(model_file=place / "m.json")
    expected = model.predict(xgboost.DMatrix(drawn.arrays[None], feature_names=list(drawn.columns)))
    assert drawn.count == 60
    edges = np.quantile(scores, np.linspace(0, 1, DECILES + 1))
    if by == "stratified":
        in_decile = np.histogram(expected, edges)[0]
        assert np.abs(in_decile - 6).max() <= 1
        assert expected.mean() == pytest.approx(scores.mean(), abs=0.01)
    else:
        assert drawn.weights is not None
        assert drawn.weights.sum() == pytest.approx(1)
        assert drawn.weights @ expected == pytest.approx(scores.mean(), abs=PARITY_32)


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize(
    ("clipped", "known"),
    [(0, True), (1, True), (2, False), (3, False), (4, False)],  # of four rows: most have to agree
)
def test_a_margin_is_that_of_most_rows(clipped: int, known: bool, rest: bool) -> None:
    """A model may clip its probabilities; 1 − p is the Sigmoid of the negative."""
    text = """g (float[N, 1] x) => (float[N, 1] p) <float low = {0.2}, float high = {0.8}, float one = {1}> {
        s = Sigmoid (x) c = Clip (s, low, high) p = %s
    }"""
    lowered = lower(parsed(text % ("Sub (one, c)" if rest else "Identity (c)")))
    profile = as_profile({"output": "p", "threshold": 1e-6, "adverse": "above"})
    x = np.array([[9.0]] * clipped + [[0.5], [-0.5], [0.1], [-0.1]], np.float32)[:4]
    margin = deciding_margin(lowered, profile, {"x": x})
    assert (margin is not None) is known
    assert margin is None or margin.negated is rest
