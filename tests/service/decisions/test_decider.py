"""`:decide` over HTTP, with a trail in memory that can fail: what is answered, refused and recorded."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from rationale import DeepShap, Deployment, TreeShap, compile_model
from rationale.schema.manifest import EXPLAIN_SUFFIX
from rationale_service.app import create_app, create_backend
from rationale_service.decisions import decider
from rationale_service.decisions.audit.trail import RecordedDecision
from rationale_service.decisions.decider import Decider, Drift
from rationale_service.errors import ConflictError, StateUnavailableError
from rationale_service.protocols.rest.endpoint import TIMEOUT_HEADER
from rationale_service.settings import Settings
from tests.compiler.models import NAMES, mlp, rows
from tests.compiler.trees.test_text_files import AGE, CODE, HOUSING, model
from tests.references import trees as of
from tests.service import handmade, patient
from tests.service.conftest import gateway, serving
from tests.service.observability.test_metrics import samples

BASE = float(handmade.predict(handmade.R)[0])
INSTANCES = [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]
SCORES = handmade.predict(handmade.X)[:, 0]
KNOCK_OUTS = [
    {"feature": "bankruptcies", "above": 0, "reason": "R09"},
    {"feature": "income", "below": -5, "reason": "R01"},
    {"feature": "standing", "equals": "insolvent", "reason": "R09"},
]
QUEUE = 3  # requests
FEATURE_RULES: Mapping[str, Mapping[str, Any]] = handmade.PROFILE["features"]
BOUNDS: dict[str, dict[str, Any]] = {
    "income": {"least": -50, "most": 50},
    "debt": {"categories": {"1": "one", "2": "two"}},
}


class MemoryTrail:
    """Keeps what was recorded. `failure` is raised instead; where it `hangs`, it is waited for in vain.

    `earlier` is what another process has recorded meanwhile, under the same key.
    """

    fault: str | None = None

    def __init__(self) -> None:
        self.records: list[RecordedDecision] = []
        self.failure: Exception | None = None
        self.hangs = False
        self.earlier: list[RecordedDecision] = []

    def start(self) -> None: ...

    async def wait_until_open(self) -> None: ...

    async def find(
        self, model: str, caller: str, key: str, instances: Sequence[Mapping[str, Any]]
    ) -> Sequence[RecordedDecision]:
        wanted_key = (model, caller, key)
        actual = [
            record
            for record in self.records
            if (record.model, record.caller, record.idempotency_key) == wanted_key
        ]
        if actual and [record.instance for record in actual] != list(instances):
            raise ConflictError("the key was used for other instances")
        return actual

    async def record(self, decisions: Sequence[RecordedDecision]) -> Sequence[RecordedDecision]:
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        if self.earlier:
            return self.earlier
        self.records += decisions
        return decisions

    async def stop(self) -> None: ...


NETWORK = {
    "output": "y",
    "threshold": 0.53,
    "adverse": "above",
    "max_reasons": 4,
    "groups": {"means": {"members": ["income", "debt"], "title": "Means"}},
}
WORDS = {
    "output": "y[0]",
    "threshold": -2,
    "adverse": "above",
    "features": {"housing": {"reason": "H"}, "age": {"reason": "A"}, "code": {"reason": "C"}},
    "reasons": {
        "H": {"text": "Housing", "when": [{"equals": "rent", "text": "Rents"}]},
        "A": {"text": "Age", "missing": "Age not stated"},
        "C": "Code",
    },
}


@pytest.fixture(scope="module")
def trail() -> MemoryTrail:
    return MemoryTrail()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, trail: MemoryTrail) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("repository")
    handmade.write_score(folder)
    handmade.write_score(folder, "secret", {**handmade.PROFILE, "never_disclose": ["late_payments"]})
    reasons = {**handmade.PROFILE["reasons"], "R09": "Insolvency"}
    handmade.write_score(folder, "strict", {**handmade.PROFILE, "knock_outs": KNOCK_OUTS, "reasons": reasons})
    for name, outside in {"bounded": "refuse", "warned": "warn"}.items():
        features = {feature: {**rule, **BOUNDS.get(feature, {})} for feature, rule in FEATURE_RULES.items()}
        handmade.write_score(folder, name, {**handmade.PROFILE, "features": features, "outside": outside})
    handmade.write_gradient(folder)
    network = mlp((5, 64, 64, 1), last="Sigmoid")
    compile_model(network, DeepShap(rows(7, 5)), feature_names=NAMES, decision=NETWORK).write(folder, "net")
    deployment = Deployment(one_shot=True)
    compile_model(
        network, DeepShap(rows(7, 5)), feature_names=NAMES, decision=NETWORK, deployment=deployment
    ).write(folder, "once")
    table = pa.table({"age": AGE, "housing": HOUSING, "code": CODE})
    compile_model(model(), TreeShap(table), decision=WORDS).write(folder, "words")
    missing = {"output": "y[0]", "threshold": -4, "adverse": "above"}
    trees = of.regressor(of.random_trees(1, ("LEQ",)))
    compile_model(trees, TreeShap(of.rows(1, 4)), feature_names=NAMES, decision=missing).write(folder, "gaps")
    settings = Settings(repository=folder, max_queue_size=QUEUE, request_timeout_s=60)
    app = create_app(settings, create_backend(settings))
    app.state.gateway.decider = Decider(app.state.gateway.plane, trail, Drift(app.state.gateway.metrics))
    with serving(app) as address:
        yield f"http://{address}/v1/models"


@pytest.fixture(autouse=True)
def mended(trail: MemoryTrail) -> None:
    trail.records.clear()
    trail.failure, trail.hangs, trail.earlier = None, False, []


def decide(url: str, instances: Any, name: str = "score", **options: Any) -> httpx.Response:
    return patient.post(f"{url}/{name}:decide", json={"instances": instances}, **options)


def decisions(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    decisions_list: list[dict[str, Any]] = answer.json()["decisions"]
    return decisions_list


def without_id(decision: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in decision.items() if name != "id"}


def detail(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    text: str = answer.json()["detail"]
    return text


# --- what is answered ---------------------------------------------------------------------------------


async def test_a_decision_is_computed_for_itself_whatever_answers_are_kept(repository: Path) -> None:
    """A row's bits may depend on its batch, and a decision is replayed alone."""
    of_two = handmade.X[:2].tolist()
    instances = [dict(zip(handmade.FEATURES, row, strict=True)) for row in of_two]
    async with gateway(Settings(repository=repository, answer_cache_bytes=1 << 20, audit="off")) as client:

        async def counts() -> dict[str, float]:
            of_all = samples((await client.get("/metrics")).text)
            return {name: value for name, value in of_all.items() if "cache=answers" in name}

        for _ in range(2):
            assert (await client.post("/v1/models/score:explain", json={"instances": of_two})).is_success
        counts_before = await counts()
        assert counts_before["rationale_cache_requests_total{cache=answers,result=hit}"] == 1
        for _ in range(2):
            body = {"instances": instances, "dry_run": True}
            answer = await client.post("/v1/models/score:decide", json=body)
            assert answer.status_code == 200, answer.text
        assert await counts() == counts_before


def test_decisions_are_those_of_the_formula(url: str) -> None:
    answered = decisions(decide(url, INSTANCES))
    assert len({decision["id"] for decision in answered}) == len(INSTANCES)
    for row, instance, score, decision in zip(handmade.X, INSTANCES, SCORES, answered, strict=True):
        expected = dict(zip(handmade.FEATURES, handmade.attribute(row[None])[0, 0].tolist(), strict=True))
        assert (decision["score"], decision["base_value"], decision["threshold"]) == (score, BASE, -5)
        assert decision["attributions"] == expected
        assert decision["decision"] == ("decline" if score > -5 else "approve")
        scored = {
            "R02": [expected["late_payments"]],
            "R01": [expected[name] for name in handmade.FEATURES[:3] if expected[name] > 0],
        }
        ranked = sorted(((sum(v), code) for code, v in scored.items() if sum(v) > 0), reverse=True)
        reasons = decision["reasons"]
        assert [(r["attribution"], r["code"]) for r in reasons] == (ranked if score > -5 else [])
        assert all(reason["value"] == instance[reason["feature"]] for reason in reasons)
        assert decision["warnings"] == []
        digests = {"model": "m", "references": "r", "explainer": "e"}
        profile = decision["digests"].pop("profile")
        assert decision["digests"] == {name: letter * 64 for name, letter in digests.items()}
        assert len(profile) == 64
    assert {decision["decision"] for decision in answered} == {"approve", "decline"}


@pytest.mark.parametrize("name", ["net", "once"])
def test_a_row_gets_the_same_numbers_in_any_company(url: str, name: str) -> None:
    instances = [dict(zip(NAMES, row, strict=True)) for row in rows(50, 5, seed=3).tolist()]
    together = decisions(decide(url, instances, name))
    alone = [decisions(decide(url, [instance], name))[0] for instance in instances]
    assert list(map(without_id, together)) == list(map(without_id, alone))
    for decision in together:
        assert decision["attributions"].keys() == {"age", "years", "cards", "means"}
        total = decision["base_value"] + sum(decision["attributions"].values()) + decision["completeness_gap"]
        assert total == pytest.approx(decision["score"], abs=1e-6)
    assert {decision["decision"] for decision in together} == {"approve", "decline"}


def test_many_rows_take_one_place_in_the_queue(url: str) -> None:
    assert len(decisions(decide(url, INSTANCES * 60))) == 300 > QUEUE


def test_an_explain_entry_s_own_name(url: str) -> None:
    (decision,) = decisions(decide(url, INSTANCES[:1], "score" + EXPLAIN_SUFFIX))
    assert without_id(decision) == without_id(decisions(decide(url, INSTANCES[:1]))[0])


def test_words_and_inputs_of_their_own(url: str) -> None:
    """By the names of features, and as lists of each input: reasons tell what the model read."""
    named = {"age": 0.25, "housing": "rent", "code": "03"}
    listed = {name: [value] for name, value in named.items()}
    first, second = decisions(decide(url, [named, listed], "words"))
    assert without_id(first) == without_id(second)
    reasons = {reason["feature"]: (reason["value"], reason["text"]) for reason in first["reasons"]}
    expected = {"age": (0.25, "Age"), "housing": ("rent", "Rents"), "code": ("03", "Code")}
    assert reasons
    assert reasons.items() <= expected.items()


def test_null_is_missing_and_numbers_are_told_as_written(url: str) -> None:
    instances = [dict.fromkeys(NAMES, 0.1) | {name: None for name in NAMES if name != keep} for keep in NAMES]
    values = {
        (reason["feature"] == keep, reason["value"])
        for keep, decision in zip(NAMES, decisions(decide(url, instances, "gaps")), strict=True)
        for reason in decision["reasons"]
    }
    assert values == {(True, 0.1), (False, None)}
    (listed,) = decisions(decide(url, [{"x": [0.1] * 5}], "gaps"))
    assert {reason["value"] for reason in listed["reasons"]} == {0.1}


# --- knock-outs ---------------------------------------------------------------------------------------

CLEAN = INSTANCES[0] | {"bankruptcies": 0, "standing": "sound"}


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ({}, []),
        ({"bankruptcies": None, "standing": None}, []),
        ({"bankruptcies": 2}, [("R09", ["bankruptcies"], 2)]),
        ({"income": -6}, [("R01", ["income"], -6)]),
        (
            {"bankruptcies": True, "standing": "insolvent"},
            [("R09", ["bankruptcies", "standing"], True)],
        ),
    ],
)
def test_knock_outs_look_at_what_the_model_does_not_take(
    url: str, trail: MemoryTrail, beside: dict[str, Any], expected: list[Any]
) -> None:
    instance = CLEAN | beside
    (decision,) = decisions(decide(url, [instance], "strict"))
    assert decision["decision"] == ("decline" if expected else "approve")
    assert [(r["code"], r["features"], r["value"]) for r in decision["reasons"]] == expected
    assert decision["attributions"].keys() == set(handmade.FEATURES)
    assert trail.records[0].instance == instance


@pytest.mark.parametrize(
    ("instance", "text"),
    [
        (INSTANCES[0], "feature 'bankruptcies' is missing, and a knock-out declines by it"),
        (CLEAN | {"bankruptcies": "1"}, "feature 'bankruptcies' must be a number or null, not a string"),
        (CLEAN | {"bankruptcies": [1]}, "feature 'bankruptcies' must be a number or null, not a list"),
        (CLEAN | {"standing": 1}, "feature 'standing' must be a string or null, not 1"),
        (CLEAN | {"income": None}, "feature 'income' must be a number, not null"),
    ],
)
def test_what_no_knock_out_can_look_at(url: str, instance: dict[str, Any], text: str) -> None:
    assert text in detail(decide(url, [CLEAN, instance], "strict"), 422)


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"instances": []}, 422, "instances is empty"),
        ({}, 400, "the body must be an object with a list"),
        ({"instances": handmade.X.tolist()}, 422, "instances[0] must be an object of features"),
        ({"instances": [{**INSTANCES[0], "age": 3}]}, 422, "instances[0]: unknown feature 'age'"),
        ({"instances": [{"income": 1}]}, 422, "missing feature 'debt'"),
        ({"instances": [{**INSTANCES[0], "debt": None}]}, 422, "takes no missing values"),
        ({"instances": [{**INSTANCES[0], "debt": 1e39}]}, 422, "send finite numbers"),
        *(
            ({"instances": INSTANCES, member: value}, 422, f"'{member}' is of explanations")
            for member, value in (
                ("explainer", "fast"),
                ("reference_set", "typical"),
                ("references", INSTANCES),
                ("reference_weights", [1.0]),
            )
        ),
    ],
)
def test_what_cannot_be_decided(
    url: str, trail: MemoryTrail, body: dict[str, Any], status: int, text: str
) -> None:
    assert text in detail(patient.post(f"{url}/score:decide", json=body), status)
    assert trail.records == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("absent", "no model 'absent' here"), ("slope", "compile it with `rationale compile … --decision")],
)
def test_models_that_do_not_decide(url: str, name: str, text: str) -> None:
    assert text in detail(decide(url, INSTANCES, name), 404)


def test_one_row_without_reasons_leaves_all_undecided(url: str, trail: MemoryTrail) -> None:
    text = detail(decide(url, INSTANCES, "secret"), 422)
    without = [i for i, score in enumerate(SCORES) if score > -5]
    assert len(without) > 1
    assert [f"instances[{i}]: " in text for i in range(len(INSTANCES))] == [
        i in without for i in range(len(INSTANCES))
    ]
    assert "late_payments is a principal reason" in text
    assert trail.records == []
    many = [INSTANCES[min(set(range(len(INSTANCES))) - {*without})]] * 70  # more than are decided at once
    for i in (0, 31, 32, 33, 64, 69):
        rows = [*many[:i], INSTANCES[without[0]], *many[i + 1 :]]
        assert f"instances[{i}]: " in detail(decide(url, rows, "secret"), 422)
    approved = [instance for i, instance in enumerate(INSTANCES) if i not in without]
    assert len(decisions(decide(url, approved, "secret"))) == len(approved)


# --- the trail ----------------------------------------------------------------------------------------


def test_what_is_recorded_is_what_was_answered(url: str, trail: MemoryTrail) -> None:
    headers = {"Idempotency-Key": "k1", "x-request-id": "application-7"}
    answered = decisions(decide(url, INSTANCES, headers=headers))
    assert [record.answer for record in trail.records] == answered
    assert [record.instance for record in trail.records] == INSTANCES
    assert [record.id for record in trail.records] == [decision["id"] for decision in answered]
    assert [record.place for record in trail.records] == list(range(len(INSTANCES)))
    recorded = {(r.model, r.version, r.request_id, r.idempotency_key, r.caller) for r in trail.records}
    assert recorded == {("score", "1", "application-7", "k1", "")}
    assert all(0 < record.latency_ms < 60_000 for record in trail.records)


def test_nothing_is_answered_that_is_not_recorded(url: str, trail: MemoryTrail) -> None:
    trail.failure = StateUnavailableError("the disk is full")
    answer = decide(url, INSTANCES)
    assert detail(answer, 503) == "the disk is full"
    assert "decisions" not in answer.json()
    trail.failure = None
    assert len(decisions(decide(url, INSTANCES))) == len(trail.records) == len(INSTANCES)


def test_a_trail_that_stands_still(url: str, trail: MemoryTrail) -> None:
    trail.hangs = True
    answer = decide(url, INSTANCES, headers={TIMEOUT_HEADER: "300"})
    assert "same Idempotency-Key" in detail(answer, 504)


def test_the_same_key_gives_the_same_decision(url: str, trail: MemoryTrail) -> None:
    first = decisions(decide(url, INSTANCES[:2], headers={"Idempotency-Key": "order/66"}))
    repeated = decisions(decide(url, INSTANCES[:2], headers={"Idempotency-Key": "order/66"}))
    other = decisions(decide(url, INSTANCES[:2], headers={"Idempotency-Key": "order/67"}))
    assert repeated == first
    assert list(map(without_id, other)) == list(map(without_id, first))
    assert {item["id"] for item in other}.isdisjoint(item["id"] for item in first)
    assert len(trail.records) == 4
    refusal = decide(url, INSTANCES[:1], headers={"Idempotency-Key": "order/66"})
    assert detail(refusal, 409) == "the key was used for other instances"


def test_two_keys_are_none(url: str, trail: MemoryTrail) -> None:
    """Nobody knows which of them the caller will repeat."""
    for keys in (["a", "b"], ["a", "a"]):
        answer = decide(url, INSTANCES[:1], headers=[("Idempotency-Key", key) for key in keys])
        assert "1 to 255 visible ASCII characters" in detail(answer, 400)
    assert trail.records == []


def in_window(url: str) -> float:
    page = samples(patient.get(url.replace("/v1/models", "/metrics")).text)
    return sum(value for name, value in page.items() if "in_window{model=net}" in name)


def test_who_loses_the_race_for_a_key_is_answered_and_counted_once(
    url: str, trail: MemoryTrail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process was the first: its decisions are the answer, and it has counted them."""
    monkeypatch.setattr(decider, "REFRESH_S", 0.0)
    table = [dict(zip(NAMES, row, strict=True)) for row in rows(2, 5, seed=3).tolist()]
    first = decisions(decide(url, table, "net", headers={"Idempotency-Key": "race"}))
    counted, earlier = in_window(url), [*trail.records]
    assert counted >= 2
    trail.records.clear()
    trail.earlier = earlier
    assert decisions(decide(url, table, "net", headers={"Idempotency-Key": "race"})) == first
    assert in_window(url) == counted


@pytest.mark.parametrize("value", [[""], ["a b"], ["x" * 256], ["é"], ["one", "two"]])
def test_keys_that_are_none(url: str, value: list[str]) -> None:
    headers = [("Idempotency-Key", key.encode()) for key in value]
    assert detail(decide(url, INSTANCES, headers=headers), 400) == (
        "Idempotency-Key must be 1 to 255 visible ASCII characters"
    )
    assert decide(url, INSTANCES, headers={"Idempotency-Key": "x" * 255}).status_code == 200


# --- values that the profile does not take ---------------------------------------------------------------

INSIDE = {**INSTANCES[0], "income": 50, "debt": 2.0}


def test_a_value_outside_is_refused_by_its_feature(url: str, trail: MemoryTrail) -> None:
    assert len(decisions(decide(url, [INSIDE, {"x": [*INSIDE.values()]}], "bounded"))) == 2
    trail.records.clear()
    rows = [INSIDE, {**INSIDE, "income": 900, "debt": 3}, {"x": [-51, 1, 0, 0]}]
    output = detail(decide(url, rows, "bounded"), 422)
    assert "3 problems" in output
    assert "instances[1]: feature 'income' is outside of the decision profile's -50 to 50: 900" in output
    assert "instances[1]: feature 'debt' is none of the decision profile's categories '1', '2': 3" in output
    assert "instances[2]: feature 'income' is outside of the decision profile's -50 to 50: -51" in output
    assert not trail.records


def test_a_value_outside_is_warned_of_where_the_profile_says_so(url: str) -> None:
    inside, beyond = decisions(decide(url, [INSIDE, {**INSIDE, "income": 50.5}], "warned"))
    assert inside["warnings"] == []
    assert beyond["warnings"] == ["feature 'income' is outside of the decision profile's -50 to 50"]
