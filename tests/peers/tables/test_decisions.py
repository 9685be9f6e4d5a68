"""Decisions on real credit data: every row, every attribution, and their reasons beside shap's.

Trees on UCI "Default of Credit Card Clients" and a network on the same; on UCI "Statlog (German Credit
Data)" a pipeline that takes words. The data: tests.needs.
"""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from rationale import DeepShap, TreeShap, compile_model
from rationale.artifact.compiled import Compiled
from rationale.decisions.decide import Decision, decide
from rationale.decisions.rows import explained_rows, feature_values, profile_of
from rationale.errors import InvalidProfileError
from rationale_service.app import create_app, create_backend
from rationale_service.settings import Settings
from tests.grid import each
from tests.needs import GERMAN, TAIWAN, need_data
from tests.peers.tables.test_german import NAMES
from tests.peers.tables.test_taiwan import trained
from tests.references.trees import shapley_of
from tests.service import patient
from tests.service.child import PATIENCE_S
from tests.service.conftest import serving

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside what it imports
    import shap

ADDS_UP = 1e-4  # score − base value − Σ attributions
TIE = 1e-6  # where shap's values are nearer, either order is right
NEAR = 1e-5  # an attribution and shap's; scores are probabilities
LEAST = 0.01  # of all adverse attributions: a profile's least_share where it says none
SCORES = 1e-6  # a score and the fitted model's

pytestmark = pytest.mark.filterwarnings("ignore")  # of the converters and boosters, about themselves

TAIWAN_REASONS = {
    "R01": "Credit limit in relation to the account's history",
    "R02": "Length of credit history",
    "R03": "Delinquent in past payments on this account",
    "R04": "Balances of recent statements",
    "R05": "Payments of recent months are too small",
    "R06": "Personal circumstances",
}
TAIWAN_PLAIN = {
    "LIMIT_BAL": {"title": "Credit limit", "unit": "TWD", "reason": "R01"},
    "AGE": {"reason": "R02"},
    "EDUCATION": {"reason": "R06"},
    "MARRIAGE": {"reason": "R06"},
}
MONTHS = {"PAY_": "R03", "BILL_AMT": "R04", "PAY_AMT": "R05"}
MONTHLY = {f"{name}{i}": code for name, code in MONTHS.items() for i in range(1, 7)}
GROUPS = {
    name.strip("_").lower(): {"members": [f"{name}{i}" for i in range(1, 7)], "reason": code}
    for name, code in MONTHS.items()
}
RULES: dict[str, Any] = {
    "threshold": 0.3,
    "adverse": "above",
    "references": {"policy": "near_threshold"},
    "protected": ["SEX"],
    "reasons": TAIWAN_REASONS,
}
APART = {"features": TAIWAN_PLAIN | {name: {"reason": code} for name, code in MONTHLY.items()}}
TOGETHER = {"features": TAIWAN_PLAIN, "groups": GROUPS}


@dataclass(frozen=True)
class Case:
    """A model with its rows and its profile.

    Attributes:
        score: of rows, by the fitted model.
        peer: attributions of rows by feature or group, computed outside: [N, keys].
    """

    compiled: Compiled
    rows: pd.DataFrame
    score: Callable[[pd.DataFrame], np.ndarray]
    peer: Callable[[pd.DataFrame], pd.DataFrame]


@functools.cache
def taiwan() -> tuple[pd.DataFrame, np.ndarray]:
    """[30000, 23] in float32; whether a client defaulted."""
    table = pd.read_csv(need_data(TAIWAN))
    return table.iloc[:, 1:-1].astype(np.float32), table.iloc[:, -1].to_numpy()


@functools.cache
def booster(sex: bool = False) -> xgboost.XGBClassifier:
    x, label = taiwan()
    model = xgboost.XGBClassifier(n_estimators=60, max_depth=4, learning_rate=0.15, n_jobs=1, random_state=0)
    return model.fit(x if sex else x.drop(columns="SEX"), label)


def passing(score: np.ndarray, threshold: float, count: int) -> np.ndarray:
    """Of those that pass the `count` rows nearest to the threshold."""
    order = np.argsort(np.where(score <= threshold, threshold - score, np.inf), kind="stable")
    return order[:count]


def by_trees(model: Any, coded: pd.DataFrame, encode: Callable[[pd.DataFrame], pd.DataFrame]) -> Any:
    masker = shap.maskers.Independent(coded, max_samples=len(coded))
    explainer = shap.TreeExplainer(
        model, masker, feature_perturbation="interventional", model_output="probability"
    )

    def values(rows: pd.DataFrame) -> pd.DataFrame:
        attributions = explainer.shap_values(encode(rows), check_additivity=False)
        return pd.DataFrame(np.asarray(attributions), columns=coded.columns)

    return values


def trees(profile: Mapping[str, Any], references: int, peer: Callable[..., Any]) -> Case:
    rows = taiwan()[0].drop(columns="SEX")
    model = booster()
    compared = rows.iloc[passing(model.predict_proba(rows)[:, 1], RULES["threshold"], references)]
    decision = {"output": "probabilities[1]", **RULES, **profile}
    compiled = compile_model(model, TreeShap(compared), decision=decision)
    return Case(compiled, rows, lambda x: model.predict_proba(x)[:, 1], peer(model, compared))


def apart() -> Case:
    """Every feature by itself; codes are shared."""
    return trees(APART, 100, lambda model, compared: by_trees(model, compared, lambda rows: rows))


def together() -> Case:
    """Months are groups, which are players: every coalition of the seven against every reference."""

    def peer(model: Any, compared: pd.DataFrame) -> Callable[[pd.DataFrame], pd.DataFrame]:
        keys = [*TAIWAN_PLAIN, *GROUPS]
        of = {member: name for name, group in GROUPS.items() for member in group["members"]}
        owners = [keys.index(of.get(name, name)) for name in compared.columns]

        def margins(x: np.ndarray) -> np.ndarray:
            odds = model.get_booster().inplace_predict(x, predict_type="margin")
            return np.asarray(odds, np.float64)[:, None]

        def values(rows: pd.DataFrame) -> pd.DataFrame:
            """Each reference is a game of its own, rescaled from margins to probabilities."""
            x = np.repeat(rows.to_numpy(), len(compared), axis=0)
            r = np.tile(compared.to_numpy(), (len(rows), 1))
            games = shapley_of(
                lambda coalition: margins(np.where(np.isin(owners, coalition), x, r)), len(keys)
            )[:, 0]
            high, low = margins(x), margins(r)
            raised = 1 / (1 + np.exp(-high)) - 1 / (1 + np.exp(-low))
            scale = np.divide(raised, high - low, out=np.zeros_like(raised), where=high != low)
            decided = (games * scale).reshape(len(rows), len(compared), -1).mean(axis=1)
            return pd.DataFrame(decided, columns=keys)

        return values

    return trees(TOGETHER, 50, peer)


def network() -> Case:
    """shap's DeepExplainer; a group is the sum of its members."""
    table, label = taiwan()
    rows = table.drop(columns="SEX")
    x = rows.to_numpy()
    model = trained(torch.from_numpy(x), torch.from_numpy(label.astype(np.float32)), epochs=3)

    def score(rows: pd.DataFrame) -> np.ndarray:
        with torch.no_grad():
            return model(torch.from_numpy(rows.to_numpy()))[:, 0].numpy()

    compared = rows.iloc[passing(score(rows), RULES["threshold"], 100)]
    explainer = shap.DeepExplainer(model, torch.from_numpy(compared.to_numpy()))

    def peer(rows: pd.DataFrame) -> pd.DataFrame:
        x = torch.from_numpy(rows.to_numpy())
        attributions = pd.DataFrame(
            explainer.shap_values(x, check_additivity=False)[..., 0], columns=rows.columns
        )
        groups = {name: attributions[group["members"]].sum(axis=1) for name, group in GROUPS.items()}
        return attributions[[*TAIWAN_PLAIN]].assign(**groups)

    named = {"feature_names": list(rows.columns)}
    plain = compile_model(model, DeepShap(compared.to_numpy()), **named)
    decision = {"output": plain.manifest.outputs[0].name, **RULES, **TOGETHER}
    compiled = compile_model(model, DeepShap(compared.to_numpy()), **named, decision=decision)
    return Case(compiled, rows, score, peer)


def pipeline() -> Case:
    """Words in; the pipeline codes each column by itself, so that shap explains the same players."""
    table = pd.read_csv(need_data(GERMAN), sep="\t", header=None)
    rows, bad = table.iloc[:, :-1].set_axis(NAMES, axis=1), table.iloc[:, -1].to_numpy() == 2
    numbers = [*rows.select_dtypes("number")]
    rows = rows.astype(dict.fromkeys(numbers, np.float32))
    words = [name for name in rows if name not in numbers]
    prepared = make_column_transformer((OrdinalEncoder(), words), remainder="passthrough")
    model = GradientBoostingClassifier(n_estimators=60, max_depth=3, random_state=0)
    fitted = make_pipeline(prepared, model).fit(rows, bad)

    def encode(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(prepared.transform(rows).astype(float), columns=[*words, *numbers])

    profile = {
        "output": "probabilities[1]",
        "threshold": 0.35,
        "refer": [0.3, 0.4],
        "adverse": "above",
        "references": {"policy": "all_applicants"},
        "features": {name: {"reason": f"R{NAMES.index(name) // 2:02}"} for name in rows},
        "reasons": {f"R{i:02}": f"{NAMES[2 * i]} or {NAMES[2 * i + 1]}" for i in range(10)},
        "knock_outs": [{"feature": "bankruptcies", "above": 0, "reason": "R09"}],
        "protected": ["religion"],
    }
    compared = rows.iloc[::5]
    compiled = compile_model(fitted, TreeShap(compared), decision=profile)
    peer = by_trees(model, encode(compared), encode)
    return Case(compiled, rows, lambda x: fitted.predict_proba(x)[:, 1], peer)


CASES = {"apart": apart, "together": together, "network": network, "pipeline": pipeline}
SAMPLE = {
    "apart": 400,
    "together": 200,
    "network": 300,
    "pipeline": 1000,
}  # adverse, beside shap
each_case = each("name", CASES, in_every_run=["pipeline"])


@functools.cache
def case_of(name: str) -> Case:
    return CASES[name]()


def decisions(case: Case, rows: pd.DataFrame) -> Iterator[Decision]:
    """As a report over a file decides: in batches of the compiled graph."""
    manifest = case.compiled.manifest
    for start in range(0, len(rows), 1000):
        answer = case.compiled.explain(rows[start : start + 1000])
        explained, values = explained_rows(manifest, answer), feature_values(manifest, answer.inputs)
        for row, value in zip(explained, values, strict=True):
            yield decide(profile_of(manifest), row, value)


@each_case
def test_every_row_is_decided_and_adds_up(name: str) -> None:
    case = case_of(name)
    profile = profile_of(case.compiled.manifest).profile
    decided = list(decisions(case, case.rows))
    expected_score = case.score(case.rows)
    score = np.array([decision.score for decision in decided])
    np.testing.assert_allclose(score, expected_score, atol=SCORES)
    for decision in decided:
        assert decision.base_value is not None
        missed = decision.score - decision.base_value - sum(decision.attributions.values())
        assert abs(missed) <= ADDS_UP
    low, high = profile.refer or (profile.threshold, profile.threshold)
    clear = np.minimum(np.abs(expected_score - low), np.abs(expected_score - high)) > SCORES
    expected = np.where(expected_score > high, "decline", np.where(expected_score >= low, "refer", "approve"))
    outcomes = np.array([decision.decision for decision in decided])
    np.testing.assert_array_equal(outcomes[clear], expected[clear])
    assert clear.mean() > 0.99
    assert min((outcomes == "approve").mean(), (outcomes == "decline").mean()) > 0.1
    reasons = [len(decision.reasons) for decision in decided]
    assert all((1 <= n <= 4) == (row != "approve") for n, row in zip(reasons, outcomes, strict=True))


@each_case
def test_reasons_are_in_the_order_of_shap(name: str) -> None:
    """All that are declined or referred among the first rows, up to SAMPLE."""
    case = case_of(name)
    profile = profile_of(case.compiled.manifest).profile
    adverse = np.flatnonzero(case.score(case.rows) > (profile.refer or (profile.threshold,))[0] + SCORES)
    rows = case.rows.iloc[adverse[: SAMPLE[name]]]
    assert len(rows) == min(SAMPLE[name], len(adverse)) >= 30
    peers = case.peer(rows)
    strict = 0
    for decision, (_, peer) in zip(decisions(case, rows), peers.iterrows(), strict=True):
        np.testing.assert_allclose([decision.attributions[key] for key in peer.index], peer, atol=NEAR)
        strict += in_order(decision, peer, profile.rule)
    assert strict > 0.95 * len(rows)  # without a tie, shap's order is ours and no other's


def in_order(decision: Decision, peer: pd.Series, rule: Callable[[str], Any]) -> bool:
    """Whether no two of the adverse sums by code were near enough to change places.

    Asserts that the reasons are the largest, in their order.
    """
    sizes = peer.where(peer > 0, 0.0).groupby([rule(key).reason for key in peer.index]).sum()
    codes = [reason.code for reason in decision.reasons]
    assert len(codes) == len({*codes})
    least = LEAST * sizes.sum()
    assert min((sizes > least - NEAR).sum(), 4) >= len(codes) >= min((sizes > least + NEAR).sum(), 4)
    rest_size = sizes.drop(codes).max() if len(codes) < len(sizes) else 0.0
    sizes_told = [*sizes[codes], rest_size]
    assert all(before >= after - TIE for before, after in itertools.pairwise(sizes_told)), (codes, sizes)
    for reason in decision.reasons:
        assert reason.attribution == pytest.approx(sizes[reason.code], abs=NEAR)
        assert reason.share == pytest.approx(sizes[reason.code] / sizes.sum(), abs=1e-3)
    return all(before > after + TIE for before, after in itertools.pairwise(sizes_told))


def test_a_protected_input_stops_the_compile() -> None:
    rows, _ = taiwan()
    decision = {"output": "probabilities[1]", **RULES, **TOGETHER}
    features = {**TAIWAN_PLAIN, "SEX": {"reason": "R06"}}
    method = TreeShap(rows[:10])
    with pytest.raises(InvalidProfileError, match="SEX"):
        compile_model(booster(sex=True), method, decision={**decision, "features": features})
    allowed = {**decision, "features": features, "allow_protected": ["SEX"]}
    assert profile_of(compile_model(booster(sex=True), method, decision=allowed).manifest).profile.protected


# -- over HTTP -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    repository = tmp_path_factory.mktemp("repository")
    for name in CASES:
        case_of(name).compiled.write(repository, name)
    state = tmp_path_factory.mktemp("state")
    settings = Settings(repository=repository, state=state, request_timeout_s=PATIENCE_S)
    with serving(create_app(settings, create_backend(settings))) as served:
        yield f"http://{served}/v1/models"


def ask(address: str, name: str, rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Decisions without what is each answer's own."""
    instances = rows.to_dict("records")
    if name == "pipeline":
        instances = [{**row, "bankruptcies": 0} for row in instances]
    answer = patient.post(f"{address}/{name}:decide", json={"instances": instances})
    assert answer.status_code == 200, answer.text
    decided: list[dict[str, Any]] = answer.json()["decisions"]
    assert all(row.pop("id") for row in decided)
    return decided


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_the_same_request_has_the_same_answer(address: str, name: str) -> None:
    """Bit for bit: alone, in batches of different sizes, and beside others."""
    case = case_of(name)
    rows = case.rows[:60]
    whole = ask(address, name, rows)
    assert whole == ask(address, name, rows)
    for size in (1, 7):
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        assert whole == [row for batch in parts for row in ask(address, name, batch)]
    with ThreadPoolExecutor(8) as pool:
        together: Sequence[list[dict[str, Any]]] = list(
            pool.map(lambda i: ask(address, name, rows[i : i + 3]), [*range(0, 60, 3)] * 2)
        )
    assert whole * 2 == [row for batch in together for row in batch]


def check_over_http(address: str, name: str, rows: pd.DataFrame) -> None:
    """The gateway's decisions are those of the compiled entry run here, but for batches' rounding."""
    case = case_of(name)
    answered = [row for i in range(0, len(rows), 500) for row in ask(address, name, rows[i : i + 500])]
    for row, offline in zip(answered, decisions(case, rows), strict=True):
        assert row["score"] == pytest.approx(offline.score, abs=SCORES)
        assert row["decision"] == offline.decision or abs(row["score"] - row["threshold"]) < SCORES
        missed = row["score"] - row["base_value"] - sum(row["attributions"].values())
        assert abs(missed) <= ADDS_UP
        for mine, theirs in itertools.zip_longest(row["reasons"], offline.reasons):
            assert mine["code"] == theirs.code or mine["tied"] or theirs.tied


def test_words_over_http(address: str) -> None:
    check_over_http(address, "pipeline", case_of("pipeline").rows)


def test_a_knock_out_is_the_only_reason(address: str) -> None:
    row = {**case_of("pipeline").rows.iloc[0].to_dict(), "bankruptcies": 1}
    answer = patient.post(f"{address}/pipeline:decide", json={"instances": [row]}).json()["decisions"][0]
    assert answer["decision"] == "decline"
    assert [(reason["code"], reason["value"]) for reason in answer["reasons"]] == [("R09", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["apart", "together", "network"])
def test_all_clients_over_http(address: str, name: str) -> None:
    check_over_http(address, name, case_of(name).rows)
