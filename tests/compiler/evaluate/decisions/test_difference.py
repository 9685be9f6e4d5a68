"""`rationale diff` against counts by hand: two linear models, whose difference is linear too."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from rationale import DeepShap, compile_model
from rationale.evaluate.decisions.difference import OTHER_OUTPUTS, OTHER_REFERENCES, difference
from rationale_service.cli.main import app
from tests.compiler.decisions.linear import (
    BANKRUPT,
    CODES,
    EVERYBODY,
    MEMBERS,
    MODEL,
    NEAR,
    PROFILE,
    WEIGHTS,
    N,
    X,
)
from tests.compiler.models import NAMES, parsed

SIMPLE = {name: value for name, value in PROFILE.items() if name != "refer"}
MOVED = np.array([0.4, -2.0, 0.5, 2.0, -0.7], np.float32)


def linear(weights: np.ndarray) -> Any:
    return parsed("g (float[N, 5] x) => (float[N, 1] y) { y = MatMul (x, w) }", {"w": weights[:, None]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("difference")
    models = {
        "old": (MODEL, NEAR, SIMPLE),
        "new": (linear(MOVED), NEAR, SIMPLE),
        "elsewhere": (MODEL, EVERYBODY, SIMPLE),
        "plain": (MODEL, NEAR, None),
    }
    for name, (model, references, profile) in models.items():
        compiled = compile_model(model, DeepShap(references), feature_names=NAMES, decision=profile)
        compiled.write(folder / "model_repository", name)
    with (folder / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*NAMES, "bankruptcies"])
        writer.writerows([*map(repr, row.tolist()), int(BANKRUPT[i])] for i, row in enumerate(X))
    return folder


def declined(weights: np.ndarray) -> np.ndarray:
    return np.asarray((X @ weights > SIMPLE["threshold"]) | BANKRUPT)


def first(weights: np.ndarray) -> list[list[str]]:
    """The first reason of each row, by the definition."""
    return [["R9"] if BANKRUPT[i] else codes_of(weights, x, NEAR)[:1] for i, x in enumerate(X)]


def codes_of(weights: np.ndarray, x: np.ndarray, references: np.ndarray) -> list[str]:
    each = weights * (x - references.mean(0))
    adverse: dict[str, float] = {}
    for key, members in MEMBERS.items():
        if (value := each[members].sum()) > 0:
            adverse[CODES[key]] = adverse.get(CODES[key], 0) + value
    return sorted(adverse, key=lambda key: -adverse[key])


def test_who_flips_and_why(folder: Path) -> None:
    change = difference(folder / "model_repository", "old", "new", folder / "data.csv")
    before, after = declined(WEIGHTS), declined(MOVED)
    assert (change.rows, list(change.flipped)) == (N, np.flatnonzero(before != after).tolist())
    assert change.flips == {
        "approve → decline": int((~before & after).sum()),
        "decline → approve": int((before & ~after).sum()),
    }
    assert min(change.flips.values()) > 0
    declines = np.flatnonzero(before & after)
    old, new = (first(weights) for weights in (WEIGHTS, MOVED))
    assert change.declined_by_both == len(declines)
    assert change.reasons_changed == sum(old[i] != new[i] for i in declines) > 0
    assert change.notes == []


def test_features_are_those_of_the_difference_of_both_models(folder: Path) -> None:
    change = difference(folder / "model_repository", "old", "new", folder / "data.csv")
    changes = (MOVED - WEIGHTS) * (X - NEAR.mean(0))
    expected = {key: changes[:, members].sum(axis=1) for key, members in MEMBERS.items()}
    assert {feature.feature for feature in change.features} == set(expected)
    for feature in change.features:
        assert feature.mean == pytest.approx(expected[feature.feature].mean(), abs=1e-5)
        assert feature.mean_absolute == pytest.approx(np.abs(expected[feature.feature]).mean(), abs=1e-5)
    assert [feature.mean_absolute for feature in change.features] == sorted(
        (feature.mean_absolute for feature in change.features), reverse=True
    )
    assert change.base_change == pytest.approx(NEAR.mean(0) @ (MOVED - WEIGHTS), abs=1e-5)
    total = change.base_change + sum(feature.mean for feature in change.features)
    assert total == pytest.approx(change.score_change, abs=1e-5)


def test_the_same_model_changes_nothing(folder: Path) -> None:
    same = difference(folder / "model_repository", "old", "old", folder / "data.csv")
    assert (same.flips, same.reasons_changed, same.score_change) == ({}, 0, 0.0)
    other = difference(folder / "model_repository", "old", "elsewhere", folder / "data.csv")
    assert (other.flips, other.notes) == ({}, [OTHER_REFERENCES])


def diff(folder: Path, *arguments: str) -> Result:
    options = ["--input", str(folder / "data.csv"), "--repository", str(folder / "model_repository")]
    return CliRunner().invoke(app, ["diff", *arguments, *options])


def test_the_command_is_a_gate(folder: Path) -> None:
    result = diff(folder, "old", "new", "--json", str(folder / "diff.json"))
    assert result.exit_code == 0, result.output
    share = float((declined(WEIGHTS) != declined(MOVED)).mean())
    assert f"{N} rows: {100 * share:.2f}%" in result.output
    written = json.loads((folder / "diff.json").read_text())
    assert written["flip_share"] == pytest.approx(share)
    assert len(written["flipped"]) == round(share * N)
    assert diff(folder, "old", "new", "--max-flips", f"{100 * share + 0.01}%").exit_code == 0
    refused = diff(folder, "old", "new", "--max-flips", "0.1%", "--max-reasons", "0")
    assert refused.exit_code == 1
    assert "flips" in refused.output
    assert "first reasons" in refused.output
    assert diff(folder, "old", "old", "--max-flips", "0", "--max-reasons", "0").exit_code == 0


WRONG = {
    ("old", "nowhere"): "no such entry",
    ("old", "plain"): "has no decision profile",
    ("old", "new", "--max-flips", "many"): "--max-flips 'many': give a share such as 1% or 0.01.",
    ("old", "new", "--max-reasons", "101%"): "--max-reasons '101%'",
    ("old", "new", "--max-reasons", "nan"): "--max-reasons 'nan'",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_arguments(folder: Path, arguments: tuple[str, ...]) -> None:
    result = diff(folder, *arguments)
    assert result.exit_code == 2
    assert WRONG[arguments] in result.output


def test_other_outputs_are_not_compared(folder: Path, tmp_path: Path) -> None:
    text = "g (float[N, 5] x) => (float[N, 1] z) { z = MatMul (x, w) }"
    model = parsed(text, {"w": WEIGHTS[:, None]})
    profile = {**SIMPLE, "output": "z"}
    compile_model(model, DeepShap(NEAR), feature_names=NAMES, decision=profile).write(tmp_path, "z")
    compile_model(MODEL, DeepShap(NEAR), feature_names=NAMES, decision=SIMPLE).write(tmp_path, "y")
    change = difference(tmp_path, "y", "z", folder / "data.csv")
    assert (change.flips, change.base_change, change.features, change.notes) == (
        {},
        None,
        (),
        [OTHER_OUTPUTS],
    )


def test_a_score_s_margin_is_not_compared_with_a_score(folder: Path, tmp_path: Path) -> None:
    """Both explain the same tensor: one entry decides by it, the other by its Sigmoid."""
    text = "g (float[N, 5] x) => (float[N, 1] z, float[N, 1] p) { z = MatMul (x, w) p = Sigmoid (z) }"
    model = parsed(text, {"w": WEIGHTS[:, None]})
    for name, output, threshold in (("by score", "z", 0.0), ("by margin", "p", 0.5)):
        is_margin = output == "p"
        space = {"space": "margin" if is_margin else "output"}
        profile = {**SIMPLE, "output": output, "threshold": threshold, **space}
        how = {"output": output, "logits": is_margin, "decision": profile, "feature_names": NAMES}
        compile_model(model, DeepShap(NEAR), **how).write(tmp_path, name.replace(" ", "_"))
    change = difference(tmp_path, "by_score", "by_margin", folder / "data.csv")
    assert (change.flips, change.base_change, change.features) == ({}, None, ())
    assert change.notes == [OTHER_OUTPUTS]
