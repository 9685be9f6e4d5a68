"""The report on decisions over two real data sets, beside the fitted models' own probabilities and pandas."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from rationale import Comparisons, TreeShap, compile_model
from rationale.evaluate.decisions.measures import DecisionReport, report
from rationale.evaluate.decisions.moved import ScoreMovement
from tests.needs import GERMAN, TAIWAN, need_data
from tests.peers.tables.test_german import NAMES

EDGE = 1e-6  # of a threshold: float32 and float64 may decide otherwise
AROUND = 0.01


def check(result: DecisionReport, bad: np.ndarray, groups: pd.Series, threshold: float) -> None:
    """Against probabilities [N] of the fitted model itself."""
    assert (np.abs(bad - threshold) > EDGE).all()
    declined = bad > threshold
    assert result.outcomes == {"approve": (~declined).sum(), "refer": 0, "decline": declined.sum()}
    scores = np.array([row.explained.score for row in result.file.rows])
    np.testing.assert_allclose(scores, bad, atol=1e-5)
    approved = pd.Series(~declined).groupby(groups.to_numpy()).mean()
    assert {group.value: group.approved for group in result.groups} == pytest.approx(approved.to_dict())
    ratios = approved / approved.max()
    assert {group.value: group.ratio for group in result.groups} == pytest.approx(ratios.to_dict())
    assert result.gaps.largest is not None
    assert result.gaps.largest <= 1e-4
    for row in result.file.rows:
        explained = row.explained
        assert explained.base_value is not None
        assert explained.base_value + sum(explained.attributions.values()) == pytest.approx(
            explained.score, abs=1e-4
        )
    assert isinstance(result.moved, ScoreMovement)
    assert result.moved.named > 5 * abs(result.moved.others)
    assert result.moved.larger > 0.95
    baseline, drawn = result.agreements
    for group in (baseline, drawn):
        assert 0 <= group.same_order <= group.same_set < 1
        assert group.changed >= 1 - group.same_set - 1e-12


def between(bad: np.ndarray, about: float) -> float:
    """The middle of the widest gap between two probabilities there."""
    there = np.sort(bad[np.abs(bad - about) < AROUND])
    widest = int(np.diff(there).argmax())
    return float(there[widest : widest + 2].mean())


def near(table: pd.DataFrame, bad: np.ndarray, low: float, high: float, count: int) -> pd.DataFrame:
    return table[(bad > low) & (bad < high)].iloc[:count]


def written(
    folder: Path,
    model: Any,
    references: pd.DataFrame,
    everybody: pd.DataFrame,
    profile: dict[str, Any],
    draws: int,
) -> None:
    comparisons = Comparisons({"all_applicants": TreeShap(everybody)}, draws)
    compile_model(model, TreeShap(references), decision=profile, comparisons=comparisons).write(
        folder, "credit"
    )
    references.to_csv(folder / "near.csv", index=False)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of the converter, about itself
def test_german(tmp_path: Path) -> None:
    table = pd.read_csv(need_data(GERMAN), sep="\t", header=None)
    x, y = table.iloc[:, :-1].set_axis(NAMES, axis=1), (table.iloc[:, -1] == 2).astype(int)
    numbers = x.select_dtypes("number").columns
    x = x.astype(dict.fromkeys(numbers, np.float32))
    encoder = OneHotEncoder(handle_unknown="ignore")
    coded = make_column_transformer(
        (encoder, [n for n in NAMES if n not in numbers]), remainder="passthrough"
    )
    model = make_pipeline(coded, GradientBoostingClassifier(n_estimators=25, random_state=0)).fit(x, y)
    bad = model.predict_proba(x)[:, 1]
    profile = {
        "output": "probabilities[1]",
        "threshold": 0.3,
        "adverse": "above",
        "references": {"policy": "near_threshold"},
        "groups": {"loan": {"members": ["amount", "duration"]}},
    }
    written(tmp_path, model, near(x, bad, 0.2, 0.3, 60), x.iloc[::7], profile, 2)
    sex = pd.Series(np.where(x.personal.isin(["A92", "A95"]), "female", "male"), name="sex")
    x.assign(sex=sex, bad=y).to_csv(tmp_path / "data.csv", index=False)
    result = report(
        tmp_path,
        "credit",
        tmp_path / "data.csv",
        label="bad",
        groups=["sex"],
        references=tmp_path / "near.csv",
    )
    check(result, bad, sex, 0.3)
    assert result.label is not None
    assert result.label.by_outcome["decline"] == pytest.approx(y[bad > 0.3].mean())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_taiwan(tmp_path: Path) -> None:
    """All 30,000 rows; sex is no input of the model."""
    table = pd.read_csv(need_data(TAIWAN))
    x = table.drop(columns=["ID", "SEX", "default.payment.next.month"]).astype(np.float32)
    model = GradientBoostingClassifier(n_estimators=50, subsample=0.3, max_features=6, random_state=0)
    bad = model.fit(x, table["default.payment.next.month"]).predict_proba(x)[:, 1]
    threshold = between(bad, 0.25)
    profile = {"output": "probabilities[1]", "threshold": threshold, "adverse": "above"}
    written(tmp_path, model, near(x, bad, 0.2, threshold, 100), x.iloc[::100], profile, 2)
    result = report(tmp_path, "credit", TAIWAN, groups=["SEX"], references=tmp_path / "near.csv")
    check(result, bad, table["SEX"], threshold)
