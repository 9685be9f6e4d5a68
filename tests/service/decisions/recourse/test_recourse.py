"""`"recourse": true` in `:decide`: over HTTP and gRPC, in the trail, replayed, and refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rationale import Compiled, DeepShap, Deployment, TreeShap, compile_model, load
from rationale_service.app import create_app, create_backend
from rationale_service.decisions.audit.ledger import Ledger, open_ledger
from rationale_service.decisions.options.recourse import RecourseSearch
from rationale_service.decisions.records.replay import Replayer
from rationale_service.repository.entry import read_entry
from rationale_service.settings import Settings
from tests.compiler.models import NAMES, mlp, rows
from tests.compiler.trees.test_text_files import AGE, CODE, HOUSING, model
from tests.references import trees as of
from tests.service import patient
from tests.service.conftest import serving, with_hidden_trail
from tests.service.decisions.decided import BANKRUPT, NETWORK, TABLE, WORDS
from tests.service.decisions.test_grpc import decisions, request
from tests.service.grpc_end import grpc_end, refused
from tests.service.security.test_keys import key_file

ANY: dict[str, Any] = {name: {} for name in NAMES}
SINGLE = {**NETWORK, "groups": {}, "actionable": {"age": {}, "cards": {}, "income": {}, "debt": {}}}
SINGLE["features"] = {**NETWORK["features"], **{n: {"reason": "M"} for n in ("income", "debt")}}  # type: ignore[dict-item]
ROWS: dict[str, list[dict[str, Any]]] = {
    "net": BANKRUPT,
    "once": BANKRUPT,
    "trees": TABLE,
    "words": [{"age": 0.25, "housing": "rent", "code": "03"}, {"age": 0.75, "housing": "own", "code": "01"}],
    "silent": TABLE,
    "one-hot": [
        {"rent": 1 - i, "own": i, "none": 0, "age": 30, "debt": 1} for i in (0, 1)
    ],  # whole, as JSON has them
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recourse") / "models"
    write_all(folder)
    return folder


def write_all(folder: Path) -> None:
    """Write the entries that decide on ROWS."""
    network, references = mlp((5, 64, 64, 1), last="Sigmoid"), DeepShap(rows(7, 5))
    compile_model(network, references, feature_names=NAMES, decision=SINGLE).write(folder, "net")
    once = Deployment(one_shot=True)
    compile_model(network, references, feature_names=NAMES, decision=SINGLE, deployment=once).write(
        folder, "once"
    )
    forest, some = of.regressor(of.random_trees(1, ("LEQ",))), TreeShap(of.rows(1, 40))
    profile = {"output": "y[0]", "threshold": -1, "adverse": "above"}
    compile_model(forest, some, feature_names=NAMES, decision=profile | {"actionable": ANY}).write(
        folder, "trees"
    )
    compile_model(forest, some, feature_names=NAMES, decision=profile).write(folder, "silent")
    home = {"members": ["rent", "own", "none"], "title": "Home", "reason": "H"}
    of_home: dict[str, Any] = {"groups": {"home": home}, "reasons": {"H": "Home"}, "actionable": {"home": {}}}
    of_home["features"] = {name: {"reason": "H"} for name in ("age", "debt")}
    splits = [of.Split(1, "LEQ", (0.5,), False, of.Leaf((0.0,)), of.Leaf((-3.0,)))]
    known = np.column_stack([np.eye(3), [30, 40, 50], [1, 2, 3]]).astype(np.float32)
    compile_model(
        of.regressor(splits), TreeShap(known), feature_names=[*ROWS["one-hot"][0]], decision=profile | of_home
    ).write(folder, "one-hot")
    words = TreeShap(pa.table({"age": AGE, "housing": HOUSING, "code": CODE}))
    compile_model(model(), words, decision=WORDS | {"actionable": {"housing": {}, "age": {}}}).write(
        folder, "words"
    )


@pytest.fixture(scope="module")
def settings(folder: Path) -> Settings:
    return Settings(repository=folder, request_timeout_s=60)


@pytest.fixture
def store(settings: Settings) -> Iterator[Ledger]:
    ledger = open_ledger(settings)
    yield ledger
    ledger.close()


def decide(url: str, name: str, **members: Any) -> list[dict[str, Any]]:
    answer = patient.post(f"{url}/v1/models/{name}:decide", json={"instances": ROWS[name]} | members)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["decisions"]
    return found


def opened(folder: Path, name: str) -> Compiled:
    return load(folder, name)


@pytest.mark.parametrize("name", ["net", "once", "trees", "words", "one-hot"])
def test_each_plan_is_approved_by_the_gateway_itself(url: str, name: str) -> None:
    plans = 0
    for row, decision in zip(ROWS[name], decide(url, name, recourse=True), strict=True):
        for plan in decision["recourse"]["plans"]:
            plans += 1
            body = {"instances": [{**row, **plan["changes"]}], "dry_run": True}
            (after,) = patient.post(f"{url}/v1/models/{name}:decide", json=body).json()["decisions"]
            assert (after["decision"], after["score"]) == ("approve", plan["score"])
    assert plans


@pytest.mark.parametrize("name", ["net", "trees"])
def test_it_is_what_the_library_finds(url: str, folder: Path, name: str) -> None:
    table = pa.Table.from_pylist(ROWS[name])
    due = [found.as_json() for found in opened(folder, name).recourse(table)]
    got = [decision["recourse"] for decision in decide(url, name, recourse=True)]
    for one, other in zip(got, due, strict=True):
        assert [point["feature"] for point in one["flip_points"]] == [
            point["feature"] for point in other["flip_points"]
        ]
        costs = [[plan["cost"] for plan in each["plans"]] for each in (one, other)]
        assert costs[0] == pytest.approx(costs[1], rel=1e-3)


def test_nothing_else_changes(url: str) -> None:
    asked, plain = decide(url, "net", recourse=True), decide(url, "net")
    for one, other in zip(asked, plain, strict=True):
        assert "recourse" not in other
        assert {**one, "id": ""} == {**other, "id": "", "recourse": one["recourse"]}


@pytest.mark.parametrize("name", ["net", "once", "trees", "words", "one-hot"])
def test_it_is_in_the_trail_and_replayed(url: str, store: Ledger, settings: Settings, name: str) -> None:
    replayer = Replayer(settings)
    for decision in decide(url, name, recourse=True):
        record = store.read(decision["id"])
        assert record.answer == decision
        replayed = replayer.replay(record)
        assert replayed.differences == replayed.passed_over == ()


def test_a_plan_that_does_not_hold_shows_in_a_replay(url: str, store: Ledger, settings: Settings) -> None:
    decision = next(d for d in decide(url, "trees", recourse=True) if d["recourse"]["plans"])
    record = store.read(decision["id"])
    plan = {**decision["recourse"]["plans"][0], "changes": {}}
    altered = replace(record, answer={**record.answer, "recourse": {"plans": [plan]}})
    (told,) = Replayer(settings).replay(altered).differences
    assert told.startswith("recourse.plans[0]")


async def test_over_grpc_it_is_the_same(url: str, settings: Settings, tmp_path: Path) -> None:
    own = Settings(repository=settings.repository, request_timeout_s=60, state=tmp_path / "state")
    async with grpc_end(own) as end:
        found = decisions(await end.stub.ModelInfer(request("trees:decide", ROWS["trees"], recourse=True)))
        wrong = request("trees:decide", ROWS["trees"], recourse="yes")
        await refused(end.stub.ModelInfer(wrong), "INVALID_ARGUMENT", "recourse must be true or false")
    assert [d["recourse"] for d in found] == [d["recourse"] for d in decide(url, "trees", recourse=True)]


def test_recourse_is_a_flag(url: str) -> None:
    body = {"instances": ROWS["net"], "recourse": 1}
    answer = patient.post(f"{url}/v1/models/net:decide", json=body)
    assert (answer.status_code, "recourse" in answer.json()["detail"]) == (400, True)


def test_flip_points_alone_need_a_scope(folder: Path, tmp_path: Path) -> None:
    tokens = key_file(tmp_path, officer="decide", staff="decide recourse")
    settings = Settings(repository=folder, keys_file=tmp_path / "keys.toml", state=tmp_path / "state")
    with serving(create_app(settings, create_backend(settings))) as address:
        for caller, name, status in (
            ("officer", "silent", 403),
            ("staff", "silent", 200),
            ("officer", "trees", 200),
        ):
            answer = patient.post(
                f"http://{address}/v1/models/{name}:decide",
                json={"instances": ROWS[name], "recourse": True},
                headers={"X-API-Key": tokens[caller]},
            )
            assert answer.status_code == status, (caller, name, answer.text)
            if status == 200 and name == "silent":
                found = [d["recourse"] for d in answer.json()["decisions"]]
                assert not any(each["plans"] for each in found)
                assert any(each["flip_points"] for each in found)


@pytest.mark.parametrize("kept", ["hashed", "sealed"])
def test_inputs_that_are_not_shown_are_not_in_recourse_either(
    folder: Path, tmp_path: Path, kept: Any
) -> None:
    settings = with_hidden_trail(folder, tmp_path, kept)
    with serving(create_app(settings, create_backend(settings))) as address:
        found = decide(f"http://{address}", "trees", recourse=True)
    ledger = open_ledger(settings)
    try:
        shown = ledger.read(found[0]["id"], ROWS["trees"][0])
        assert shown.answer == found[0]
        if kept == "hashed":
            assert ledger.read(found[0]["id"]).answer["recourse"] is None
    finally:
        ledger.close()


async def test_a_search_that_takes_too_long_is_a_deadline(settings: Settings, tmp_path: Path) -> None:
    many = [dict(zip(NAMES, row, strict=True)) for row in np.tile(rows(6, 5, seed=3), (40, 1)).tolist()]
    own = Settings(repository=settings.repository, request_timeout_s=60, state=tmp_path / "state")
    async with grpc_end(own) as end:
        asked = request("trees:decide", many, recourse=True)
        asked.parameters["timeout"].int64_param = 300_000
        await refused(end.stub.ModelInfer(asked), "DEADLINE_EXCEEDED", "")


def test_an_entry_with_other_rules_gets_a_finder_of_its_own(folder: Path, settings: Settings) -> None:
    """A compile with another profile may leave the graph as it was: rules of the old one must not stay."""
    old = read_entry(folder / "trees_explain")
    assert old.manifest is not None
    assert old.manifest.decision is not None
    profile = old.manifest.decision.profile.model_copy(update={"actionable": {}})
    decision = old.manifest.decision.model_copy(update={"profile": profile})
    new = replace(old, manifest=old.manifest.model_copy(update={"decision": decision}))
    search = RecourseSearch(create_app(settings, create_backend(settings)).state.gateway.plane)
    levers = [len(search._finder(entry, entry.manifest).actionable) for entry in (old, new) if entry.manifest]
    assert levers == [len(NAMES), 0]


def with_key(url: str, key: str, name: str = "trees", **members: Any) -> tuple[int, Any]:
    body, headers = {"instances": ROWS[name]} | members, {"Idempotency-Key": key}
    answer = patient.post(f"{url}/v1/models/{name}:decide", json=body, headers=headers)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("asked", [False, True], ids=["without", "with"])
async def test_a_key_repeats_the_same_request_alone(
    url: str, settings: Settings, tmp_path: Path, asked: bool
) -> None:
    """An answer without recourse is no answer to who asks for it, nor the other way round."""
    told = f"was used {'with' if asked else 'without'} recourse"
    status, first = with_key(url, told.replace(" ", "-"), recourse=asked)
    assert (status, with_key(url, told.replace(" ", "-"), recourse=asked)) == (200, (200, first))
    status, refusal = with_key(url, told.replace(" ", "-"), recourse=not asked)
    assert (status, told in refusal["detail"]) == (409, True), refusal
    own = Settings(repository=settings.repository, request_timeout_s=60, state=tmp_path / "state")
    async with grpc_end(own) as end:
        once, other = (
            request("trees:decide", ROWS["trees"], idempotency_key="k", recourse=flag)
            for flag in (asked, not asked)
        )
        assert decisions(await end.stub.ModelInfer(once)) == decisions(await end.stub.ModelInfer(once))
        await refused(end.stub.ModelInfer(other), "FAILED_PRECONDITION", told)
