"""Recourse, however it is asked for: two inputs, four workers, Triton, restricted keys, hidden inputs."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from rationale import DeepShap, compile_model
from rationale_service.app import create_app, create_backend
from rationale_service.decisions.audit.evidence.retention import erase
from rationale_service.decisions.audit.evidence.verify import verify
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.records.replay import Replayer
from rationale_service.settings import Settings
from tests.compiler.models import NAMES, rows
from tests.service import patient
from tests.service.child import ready_line, serve
from tests.service.conftest import serving, with_hidden_trail
from tests.service.decisions.audit.conftest import key_pair
from tests.service.decisions.recourse.test_recourse import ROWS, write_all
from tests.service.decisions.test_grpc import decisions, request
from tests.service.grpc_end import grpc_end, refused
from tests.service.security.test_keys import key_file
from tests.triton.conftest import StartTriton, start_triton

__all__ = ["start_triton"]  # a fixture, found by its name

PAIR = [
    {"income": 1.0, "debt": 4.0, "years": 1.0, "age": 3.0},
    {"income": 0.5, "debt": 3.0, "years": 0.0, "age": 2.0},
]
ASKED = {**{name: ROWS[name] for name in ("net", "trees", "words")}, "pair": PAIR}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("twins") / "models"
    write_all(folder)
    write_pair(folder)
    return folder


def write_pair(folder: Path) -> None:
    """Write a network with an input of float32 and one of float64."""
    money = helper.make_tensor_value_info("money", onnx.TensorProto.FLOAT, ["N", 2])
    person = helper.make_tensor_value_info("person", onnx.TensorProto.DOUBLE, ["N", 2])
    risk = helper.make_tensor_value_info("risk", onnx.TensorProto.FLOAT, ["N", 1])
    weights = [
        numpy_helper.from_array(np.array([[-1], [1]], np.float32), "w"),
        numpy_helper.from_array(np.array([[-1], [0.5]], np.float32), "v"),
    ]
    nodes = [
        helper.make_node("MatMul", ["money", "w"], ["a"]),
        helper.make_node("Cast", ["person"], ["narrow"], to=onnx.TensorProto.FLOAT),
        helper.make_node("MatMul", ["narrow", "v"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Sigmoid", ["sum"], ["risk"]),
    ]
    graph = helper.make_graph(nodes, "pair", [money, person], [risk], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    known = np.random.default_rng(0).uniform(0, 5, (40, 4))
    references: dict[str, np.ndarray] = {"money": known[:, :2].astype(np.float32), "person": known[:, 2:]}
    profile = {
        "output": "risk",
        "threshold": 0.6,
        "adverse": "above",
        "actionable": {"income": {"direction": "up"}, "debt": {"direction": "down"}, "years": {"most": 1}},
    }
    names = {"money": ["income", "debt"], "person": ["years", "age"]}
    compile_model(model, DeepShap(references), feature_names=names, decision=profile).write(folder, "pair")


def decide(url: str, name: str, own: Any = None, **members: Any) -> list[dict[str, Any]]:
    body = {"instances": own or ASKED[name], "recourse": True} | members
    answer = patient.post(f"{url}/v1/models/{name}:decide", json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["decisions"]
    return found


def without_ids(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "id": ""} for each in found]


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    settings = Settings(repository=folder, request_timeout_s=60)
    with serving(create_app(settings, create_backend(settings))) as address:
        yield f"http://{address}"


async def test_two_inputs_change_together(url: str, folder: Path, tmp_path: Path) -> None:
    """Of two number types; plans of both inputs, within the rules, over HTTP and gRPC."""
    found = decide(url, "pair")
    settings = Settings(repository=folder, request_timeout_s=60, state=tmp_path / "state")
    async with grpc_end(settings) as end:
        over_grpc = decisions(await end.stub.ModelInfer(request("pair:decide", PAIR, recourse=True)))
    assert without_ids(over_grpc) == without_ids(found)
    changed = set[str]()
    for row, decision in zip(PAIR, found, strict=True):
        assert decision["decision"] == "decline"
        assert {point["feature"] for point in decision["recourse"]["flip_points"]} >= {"income", "years"}
        for plan in decision["recourse"]["plans"]:
            changed |= {*plan["changes"]}
            after = {**row, **plan["changes"]}
            assert (after["income"] >= row["income"], after["debt"] <= row["debt"]) == (True, True)
            assert abs(after["years"] - row["years"]) <= 1
            assert after["age"] == row["age"]
            total = after["debt"] - after["income"] - after["years"] + 0.5 * after["age"]
            assert plan["score"] == pytest.approx(1 / (1 + np.exp(-total)), abs=1e-6)
            assert (plan["decision"], plan["score"] <= 0.6) == ("approve", True)
    assert changed == {"income", "debt", "years"}


@pytest.mark.full
def test_four_workers_answer_alike(url: str, folder: Path, tmp_path: Path) -> None:
    due = {name: without_ids(decide(url, name)) for name in ASKED}
    state = str(tmp_path / "state")
    arguments = ("--repository", str(folder), "--port", "0", "--workers", "4")
    with serve(*arguments, RATIONALE_STATE=state, RATIONALE_REQUEST_TIMEOUT_S="60") as child:
        address, _ = ready_line(child)
        with ThreadPoolExecutor(8) as callers:
            asked = [(name, callers.submit(decide, address, name)) for name in [*ASKED] * 4]
            answers = [(name, each.result()) for name, each in asked]
    assert all(without_ids(found) == due[name] for name, found in answers)
    settings = Settings(repository=folder, state=tmp_path / "state")
    ledger, replayer = open_ledger(settings), Replayer(settings)
    try:
        assert [*verify(ledger.store)][-1] == sum(len(found) for _, found in answers)
        for decision in (each for _, found in answers[: len(ASKED)] for each in found):
            record = ledger.read(decision["id"])
            assert record.answer == decision
            assert replayer.replay(record).differences == ()
    finally:
        ledger.close()


def test_over_triton(url: str, folder: Path, tmp_path: Path, start_triton: StartTriton) -> None:
    """The plans are Triton's own: it decides each, and what it decided is replayed here."""
    with start_triton(folder) as server:
        settings = Settings(
            repository=folder, triton=server.grpc, state=tmp_path / "state", request_timeout_s=60
        )
        with serving(create_app(settings, create_backend(settings))) as address:
            routed = f"http://{address}"
            found = {name: decide(routed, name) for name in ASKED}
            for name, own in found.items():
                for row, decision in zip(ASKED[name], own, strict=True):
                    for plan in decision["recourse"]["plans"]:
                        (after,) = decide(routed, name, [{**row, **plan["changes"]}], dry_run=True)
                        assert (after["decision"], after["score"]) == ("approve", plan["score"])
    ledger, replayer = open_ledger(settings), Replayer(settings)
    try:
        for name, own in found.items():
            for one, other in zip(own, decide(url, name), strict=True):
                costs = [[plan["cost"] for plan in each["recourse"]["plans"]] for each in (one, other)]
                assert costs[0] == pytest.approx(costs[1], rel=1e-3), name
                assert replayer.replay(ledger.read(one["id"])).differences == ()
    finally:
        ledger.close()


async def test_a_key_sees_what_its_scopes_and_models_allow(folder: Path, tmp_path: Path) -> None:
    """Without the scope no flip points of a profile without rules; of another model nothing, case or row."""
    tokens = key_file(
        tmp_path,
        teller="decide review explain audit",
        staff="decide recourse",
        other="decide recourse review explain audit",
    )
    keys = tmp_path / "keys.toml"
    keys.write_text(keys.read_text().replace('[keys."other"]', '[keys."other"]\nmodels = ["net"]'))
    settings = Settings(repository=folder, keys_file=keys, state=tmp_path / "state", request_timeout_s=60)
    body = {"instances": ROWS["trees"], "recourse": True}
    with serving(create_app(settings, create_backend(settings))) as address:

        def ask(caller: str, path: str, sent: Any) -> tuple[int, str]:
            headers = {"X-API-Key": tokens[caller]}
            answer = patient.post(f"http://{address}{path}", json=sent, headers=headers)
            return answer.status_code, answer.text

        statuses = {
            (caller, name): ask(caller, f"/v1/models/{name}:decide", body)
            for caller in tokens
            for name in ("trees", "silent")
        }
        first = statuses["teller", "trees"][1]
        decision = id_in(first)
        reads = [
            ask("other", f"/v1/decisions/{decision}:contest", {"reason": "x"}),
            ask("other", f"/v1/decisions/{decision}:review", {"reviewer": "M", "decision": "approve"}),
            ask("other", f"/v1/decisions/{decision}:replay", {}),
            ask("other", f"/v1/decisions/{decision}:notice", {"variables": {}}),
        ]
        headers = {"X-API-Key": tokens["other"]}
        for path in ("", ":history"):
            answer = patient.get(f"http://{address}/v1/decisions/{decision}{path}", headers=headers)
            reads.append((answer.status_code, answer.text))
        listed = patient.get(f"http://{address}/v1/decisions", headers=headers)
    assert {who: status for who, (status, _) in statuses.items()} == {
        ("teller", "trees"): 200,
        ("teller", "silent"): 403,
        ("staff", "trees"): 200,
        ("staff", "silent"): 200,
        ("other", "trees"): 403,
        ("other", "silent"): 403,
    }
    assert not [text for status, text in statuses.values() if status == 403 and "flip_points" in text]
    assert [status for status, _ in reads] == [403] * 6
    assert not [text for _, text in reads if "attributions" in text]
    assert decision not in listed.text
    own = Settings(repository=folder, keys_file=keys, state=tmp_path / "grpc", request_timeout_s=60)
    async with grpc_end(own) as end:
        for caller, name, told in (
            ("teller", "silent", "recourse"),
            ("other", "trees", "may not use the model 'trees'"),
        ):
            call = end.stub.ModelInfer(
                request(f"{name}:decide", ROWS["trees"], recourse=True),
                metadata=(("x-api-key", tokens[caller]),),
            )
            await refused(call, "PERMISSION_DENIED", told)


def id_in(text: str) -> str:
    """Return the id of the first decision of an answer."""
    return text.split('"id":"', 1)[1][:32]


@pytest.mark.parametrize("kept", ["hashed", "sealed"])
@pytest.mark.parametrize("name", ["net", "words", "pair"])
def test_hidden_inputs_are_replayed_with_their_plans(
    folder: Path, tmp_path: Path, kept: Any, name: str
) -> None:
    settings = with_hidden_trail(folder, tmp_path, kept)
    with serving(create_app(settings, create_backend(settings))) as address:
        found = decide(f"http://{address}", name)
    ledger, replayer, plans = open_ledger(settings), Replayer(settings), 0
    try:
        for row, decision in zip(ASKED[name], found, strict=True):
            record = ledger.read(decision["id"], row if kept == "hashed" else None)
            assert record.answer == decision
            assert replayer.replay(record).differences == ()
            for plan in decision["recourse"]["plans"]:
                plans += 1
                forged = {**decision["recourse"], "plans": [{**plan, "score": plan["score"] + 1}]}
                altered = replace(record, answer={**record.answer, "recourse": forged})
                (told,) = replayer.replay(altered).differences
                assert told.startswith("recourse.plans[0]")
        assert plans
        if kept == "sealed":
            erase(ledger.store, found[0]["id"], key_pair(tmp_path).private)
            erased = ledger.read(found[0]["id"])
            assert (erased.kept, erased.instance, erased.answer["recourse"]) == ("erased", None, None)
            assert ledger.read(found[1]["id"]).answer == found[1]
            assert all(isinstance(fault, int) for fault in verify(ledger.store))
    finally:
        ledger.close()


def test_each_row_of_a_mixed_batch_is_answered_as_alone(url: str) -> None:
    """Approved, declined, referred, and declined by a knock-out; with one invalid row none is decided."""
    drawn = [
        {**dict(zip(NAMES, row, strict=True)), "bankruptcies": 0} for row in rows(40, 5, seed=5).tolist()
    ]
    outcomes = [each["decision"] for each in decide(url, "net", drawn, dry_run=True)]
    by_outcome = dict(zip(outcomes, drawn, strict=True))
    low, high = by_outcome["decline"], by_outcome["approve"]
    for _ in range(60):
        middle = {name: (low[name] + high[name]) / 2 for name in low}
        (between,) = decide(url, "net", [middle], dry_run=True)
        if between["decision"] == "refer":
            break
        low, high = (middle, high) if between["decision"] == "decline" else (low, middle)
    batch = [by_outcome["approve"], by_outcome["decline"], middle, {**high, "bankruptcies": 1}]
    together = decide(url, "net", batch)
    assert [each["decision"] for each in together] == ["approve", "decline", "refer", "decline"]
    alone = [decide(url, "net", [row])[0] for row in batch]
    assert without_ids(together) == without_ids(alone)
    approved, declined, referred, knocked_out = (each["recourse"] for each in together)
    assert (approved["plans"], bool(approved["flip_points"])) == ([], True)
    assert {point["to"] for point in approved["flip_points"]} <= {"decline", "refer"}
    assert all(plan["decision"] == "approve" for each in (declined, referred) for plan in each["plans"])
    assert declined["plans"]
    assert referred["plans"]
    assert (knocked_out["plans"], knocked_out["flip_points"], knocked_out["search"]) == ([], [], "complete")
    for wrong in ({**high, "age": None}, {**high, "age": "1"}, {"age": 1.0}, {**high, "age": 1e39}):
        body = {"instances": [*batch, wrong], "recourse": True}
        answer = patient.post(f"{url}/v1/models/net:decide", json=body)
        assert (answer.status_code, "decisions" in answer.json()) == (422, False), answer.text
