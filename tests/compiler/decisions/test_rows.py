"""What a combined graph answers, row by row and by name: against the arrays themselves."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from rationale import Compiled, DeepShap, TreeShap, compile_model
from rationale.decisions.decide import Decision, meets_condition
from rationale.decisions.decided import Undecided, decide_inputs
from rationale.decisions.rows import (
    attribution_keys,
    decision_scores,
    explained_rows,
    feature_values,
    profile_of,
    score_index,
    shortest,
    sigmoid,
)
from rationale.decisions.stability import reason_survival
from rationale.portfolios import decisions
from rationale.schema.manifest import Comparison, Manifest
from rationale.schema.profile import DecisionProfile, FeatureRule
from tests.compiler.models import parsed, rows, two_inputs
from tests.compiler.trees.test_text_files import AGE, CODE, HOUSING, model

INPUTS = {"a": rows(3, 3, seed=5), "b": rows(3, 4, seed=6)}
PROFILE = {"output": "y[1]", "threshold": 0.5, "adverse": "above", "groups": {"g": {"members": ["a1", "b0"]}}}


REFERENCES = {"a": rows(5, 3, seed=3), "b": rows(5, 4, seed=4)}


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    method = DeepShap(REFERENCES, standard_error=True)
    names = {"a": ["a0", "a1", "a2"], "b": [f"b{i}" for i in range(4)]}
    return compile_model(two_inputs(), method, feature_names=names, decision=PROFILE)


def test_each_row_is_told_by_its_names(compiled: Compiled) -> None:
    answer = compiled.explain(INPUTS)
    manifest = compiled.manifest
    records = explained_rows(manifest, answer)
    assert len(records) == 3
    assert set(attribution_keys(manifest)) == {"g", "a0", "a2", "b1", "b2", "b3"}
    players = [player.name for player in manifest.players]
    for i, row in enumerate(records):
        assert row.score == answer["y"][i, 1]
        assert row.explained_value == answer["explained_value"][i, 0]
        assert row.base_value == answer["base_value"][i, 0]
        assert row.gap == answer["completeness_gap"][i, 0]
        for message, name in (
            (row.attributions, manifest.group_attributions),
            (row.standard_errors, manifest.group_standard_error),
        ):
            assert name is not None
            assert message == dict(zip(players, answer[name][i, 0].tolist(), strict=True))
        expected = row.score - row.base_value
        assert sum(row.attributions.values()) == pytest.approx(expected, abs=1e-5)


def test_features_that_have_no_names_are_told_by_their_places() -> None:
    profile = {"output": "y[1]", "threshold": 0.5, "adverse": "above"}
    compiled = compile_model(two_inputs(), DeepShap(REFERENCES), decision=profile)
    answer, row_values = compiled.explain(INPUTS), feature_values(compiled.manifest, INPUTS)
    for i, row in enumerate(explained_rows(compiled.manifest, answer)):
        for name, of_input in INPUTS.items():
            for j, value in enumerate(of_input[i]):
                assert row_values[i][f"{name}[{j}]"] == float(str(value))
                assert row.attributions[f"{name}[{j}]"] == answer[f"{name}_attributions"][i, 0, j]
        assert len(row.attributions) == 7


def test_values_are_the_shortest_numbers_or_as_they_were_written(compiled: Compiled) -> None:
    inputs = {"a": np.array([[0.1, 0.52, np.nan]], np.float32), "b": np.ones((1, 4), np.float32)}
    (values,) = feature_values(compiled.manifest, inputs)
    assert values == {"a0": 0.1, "a1": 0.52, "a2": None, "b0": 1, "b1": 1, "b2": 1, "b3": 1}
    written = {"a0": 0.1000000001, "a2": None, "b": [1, 1, 1, 1], "beside": "a word"}
    (values,) = feature_values(compiled.manifest, inputs, [written])
    assert (values["a0"], values["a1"], values["beside"]) == (0.1000000001, 0.52, "a word")
    assert "b" not in values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", None),  # a missing text
        ("", None),
        (b"rent", "rent"),
        (" ", " "),
        (b"\xff", "\ufffd"),
        (np.float32(0.52), 0.52),
        (np.float64("nan"), None),
        (np.int64(0), 0),
        (np.bool_(False), False),
    ],
)
def test_a_value_of_a_tensor_as_an_answer_shows_it(compiled: Compiled, value: Any, expected: Any) -> None:
    inputs = {"a": np.array([[value, value, value]], object), "b": np.ones((1, 4), np.float32)}
    (values,) = feature_values(compiled.manifest, inputs)
    actual = [values[name] for name in ("a0", "a1", "a2")]
    assert actual == [expected] * 3
    assert {type(each) for each in actual} == {type(expected)}


def test_a_value_is_known_by_its_input_s_name_too() -> None:
    """So that a knock-out sees it, however the instance was written."""
    row_values = {name: a[:2, None] for name, a in (("age", AGE), ("housing", HOUSING), ("code", CODE))}
    profile = {"output": "y[0]", "threshold": 0, "adverse": "above"}
    manifest = compile_model(model(), TreeShap(row_values), decision=profile).manifest
    assert attribution_keys(manifest) == ("age[0]", "housing[0]", "code[0]")
    for values, age, housing in zip(feature_values(manifest, row_values), AGE, HOUSING, strict=False):
        assert values["age"] == values["age[0]"] == float(str(age))
        assert values["housing"] == values["housing[0]"] == housing


@pytest.mark.parametrize("inputs", ["float[N, 1] age, float[N, 3] b", "float[N, 3] b, float[N, 1] age"])
def test_an_input_s_name_is_no_other_tensor_s_feature(inputs: str) -> None:
    """Of one element, `years`, while `age` is a feature of b: a knock-out on age looks at b."""
    graph = f"g ({inputs}) => (float[N, 1] y) {{ h = Concat <axis = 1> (age, b)  y = MatMul (h, w) }}"
    profile = {
        "output": "y",
        "threshold": 0.5,
        "adverse": "above",
        "knock_outs": [{"feature": "age", "below": 18, "reason": "young"}],
        "reasons": {"young": "Too young"},
    }
    names = {"age": ["years"], "b": ["income", "age", "debt"]}
    method = DeepShap({"age": rows(4, 1), "b": rows(4, 3)})
    model = parsed(graph, {"w": rows(4, 1, seed=1)})
    manifest = compile_model(model, method, feature_names=names, decision=profile).manifest
    row_values = {"age": np.array([[5]], np.float32), "b": np.array([[1, 40, 2]], np.float32)}
    written = {"years": 5, "income": 1, "age": 40, "debt": 2}
    for (values,) in (feature_values(manifest, row_values), feature_values(manifest, row_values, [written])):
        assert values == written
        (rule,) = profile_of(manifest).profile.knock_outs
        assert not meets_condition(rule, values[rule.feature])


def test_a_row_is_refused_by_all_that_is_wrong_with_it(compiled: Compiled) -> None:
    decision = profile_of(compiled.manifest)
    features = {"a0": FeatureRule(least=0), "b1": FeatureRule(most=0), "b2": FeatureRule(least=5, most=9)}
    profile = decision.profile.model_copy(update={"features": features, "outside": "refuse"})
    manifest = compiled.manifest.model_copy(
        update={"decision": decision.model_copy(update={"profile": profile})}
    )
    inputs = {
        "a": np.array([[-1, 0, 0], [0, 0, 0]], np.float32),
        "b": np.array([[0, 1, 4, 0], [0, 0, 9, 0]], np.float32),  # the second at the ends
    }
    first, second = decide_inputs(manifest, compiled.run, inputs, {})
    assert isinstance(first, Undecided)
    assert first.fault == (
        "feature 'a0' is less than the decision profile's 0: -1; "
        "feature 'b1' is more than the decision profile's 0: 1; "
        "feature 'b2' is outside of the decision profile's 5 to 9: 4"
    )
    assert isinstance(second, Decision)


@pytest.mark.parametrize("is_outside", [False, True])
@pytest.mark.parametrize("is_unknown", [False, True])
def test_a_row_has_the_warnings_of_all_that_is_odd(
    is_outside: bool, is_unknown: bool, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number outside of the profile's, and a text unknown to the fitted model: none hides another."""
    decision = profile_of(compiled.manifest)
    profile = decision.profile.model_copy(
        update={"features": {"a0": FeatureRule(least=0)}, "outside": "warn"}
    )
    embedded = decision.model_copy(update={"profile": profile})
    manifest = compiled.manifest.model_copy(update={"decision": embedded})
    monkeypatch.setattr(Manifest, "unknown_texts", lambda *_: [("an unknown text",) * is_unknown])
    inputs = {"a": np.array([[-is_outside, 0, 0]], np.float32), "b": np.zeros((1, 4), np.float32)}
    (found,) = decide_inputs(manifest, compiled.run, inputs, {})
    assert isinstance(found, Decision)
    due = {"less than the decision profile's 0": is_outside, "an unknown text": is_unknown}
    assert {part: any(part in each for each in found.warnings) for part in due} == due


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("", {}),
        ("B", {"B0": True}),
        ("b", {"b0": False}),
        ("D", {"draws": 1.0}),
        ("dDdd", {"draws": 0.25}),
        ("BbDd", {"B0": True, "b1": False, "draws": 0.5}),  # of the draws alone
    ],
)
def test_what_stays_of_a_reason(kinds: str, expected: dict[str, Any]) -> None:
    """B: another baseline, D: a draw; a capital where the code is among its reasons."""
    actual = [
        (
            Comparison(
                name=f"{kind}{i}",
                kind="baseline" if kind in "Bb" else "draw",
                entry="e",
                explanation="0" * 64,
            ),
            ("R1", "R2") if kind.isupper() else ("R2",),
        )
        for i, kind in enumerate(kinds)
    ]
    assert reason_survival("R1", actual) == expected


@pytest.mark.parametrize(
    ("index", "elements", "expected"),
    [(None, 1, 0), (None, 2, 1), (0, 2, 0), (1, 2, 1), (0, 1, 0), (2, 5, 2)],
)
def test_which_element_is_the_score(index: int | None, elements: int, expected: int) -> None:
    assert score_index(index, elements) == expected


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_score_that_is_the_threshold_equals_it(dtype: type) -> None:
    assert shortest(np.array([0.2, 0.35, 0.7, 700], dtype)) == [0.2, 0.35, 0.7, 700.0]


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_kept_columns_are_those_of_the_lines_rows(
    kind: str, compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check covers every group of rows that is written together, and rows without a line."""
    monkeypatch.setattr(decisions, "ROW_GROUP", 2)
    wanted = [0, 2, 3, 5, 6]
    kept = {"loan": [f"loan {i}" for i in range(8)], "amount": [10.5 * i for i in range(8)]}
    lines = [{"row": i, "fault": f"of {i}"} for i in wanted]
    file = tmp_path / f"decided{kind}"
    decisions.write_decisions(file, compiled.manifest, lines, kept)
    if kind == ".jsonl":
        found = [one | one["kept"] for one in map(json.loads, file.read_text().splitlines())]
    elif kind == ".csv":
        found = list(csv.DictReader(file.read_text().splitlines()))
    else:
        found = parquet.read_table(file).to_pylist()
    due = [(str(i), f"of {i}", f"loan {i}", str(10.5 * i)) for i in wanted]
    assert [tuple(str(one[name]) for name in ("row", "fault", "loan", "amount")) for one in found] == due


def test_no_column_of_a_file_can_be_kept_beside_it(compiled: Compiled, tmp_path: Path) -> None:
    """Names are checked before a row is decided, whatever the kind of file."""
    file = tmp_path / "decided.csv"
    decisions.write_decisions(file, compiled.manifest, [], {})
    header = file.read_text().strip().split(",")
    typed = decisions.decision_schema(compiled.manifest).names
    assert {*decisions.decision_columns(compiled.manifest)} == {*header, *typed}
    assert {*typed} - {*header} == {f"reason_{k}_value_text" for k in range(1, 5)}


@pytest.mark.parametrize(
    ("apart", "is_margins"),
    [(0.0, True), (5e-7, True), (-5e-7, True), (1.5e-6, False), (-5e-4, False), (0.1, False)],
)
def test_a_score_is_its_margins_sigmoid_unless_the_model_answers_otherwise(
    apart: float, is_margins: bool
) -> None:
    """Such as one that clips or rounds: its own answer counts, however near."""
    profile = DecisionProfile(output="y", threshold=0.3, adverse="above")
    margin = np.array([0.25, -1.5])
    exact = sigmoid(margin)
    answered = exact + np.array([apart, 0.0])
    scores = decision_scores(profile, answered, margin)
    assert scores == [exact[0] if is_margins else exact[0] + apart, exact[1]]
    assert decision_scores(profile, answered, None) == answered.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bound", [0.3, 0.2, 0.45, 1e-6])
def test_a_margin_that_is_a_bound_s_as_its_type_rounds_it_scores_the_bound(bound: float, dtype: type) -> None:
    for rule in ({"threshold": bound}, {"threshold": 0.5, "refer": (bound, 0.6)}):
        profile = DecisionProfile(output="y", adverse="above", **rule)
        own = np.log(bound) - np.log1p(-bound)
        margins = (own + abs(own) * np.array([0, 1e-6, -1e-6])).astype(dtype)
        scores = (1 / (1 + np.exp(-margins.astype(np.float64)))).astype(dtype)
        at, above, below = decision_scores(profile, scores, margins)
        assert below < at == bound < above
