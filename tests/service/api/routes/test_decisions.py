"""Recorded decisions over HTTP: read, told as notices, replayed; by whom, and what is recorded of it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from rationale_service.cli.main import app
from rationale_service.security.keys import Scope, new_key
from rationale_service.settings import Settings
from tests.service.conftest import gateway
from tests.service.decisions.decided import CREDIT, INSTANCES, compile_all

ROWS = {"instances": INSTANCES["credit"]}
LENDER = {
    "creditor": {"name": "A Bank", "address": "1 High Street"},
    "applicant": {"name": "{{ 7 * 7 }}<script>", "address": "2 Low Street"},
    "agency": {"name": "An Agency", "address": "3 Side Street"},
    "application": "a loan",
    "consumer_report": False,
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert CREDIT.is_dir()
    repository = tmp_path_factory.mktemp("compiled") / "models"
    compile_all(repository)
    return repository


@pytest.fixture
def repository(compiled: Path, tmp_path: Path) -> Path:
    """One of its own, with a trail of its own."""
    folder = tmp_path / "models"
    for name in ("credit", "credit_explain", "net", "net_explain"):
        shutil.copytree(compiled / name, folder / name, copy_function=os.link)
    return folder


async def decide(client: httpx.AsyncClient, model: str = "credit", **more: Any) -> dict[str, Any]:
    """The answer of the first that declines, or is referred where `model` is net."""
    answer = await client.post(f"/v1/models/{model}:decide", json={"instances": INSTANCES[model], **more})
    assert answer.status_code == 200, answer.text
    outcome = "refer" if model == "net" else "decline"
    return next(decision for decision in answer.json()["decisions"] if decision["decision"] == outcome)


def problem(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["detail"])


async def test_a_decision_is_read_as_it_was_answered(repository: Path) -> None:
    async with gateway(Settings(repository=repository)) as client:
        decision = await decide(client)
        answer = await client.get(f"/v1/decisions/{decision['id']}")
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        read = answer.json()
        assert (read["answer"], read["model"], read["caller"], read["kept"]) == (
            decision,
            "credit",
            "",
            "plain",
        )
        assert read["instance"] in INSTANCES["credit"]
        assert read["runtime"]["backend"] == "onnxruntime"
        assert "no decision" in problem(await client.get(f"/v1/decisions/{'0' * 32}"), 404)
        for wrong in ("x", "%00", "A" * 32, "0" * 31):
            assert "32 digits" in problem(await client.get(f"/v1/decisions/{wrong}"), 404)


async def test_a_notice_has_the_reasons_and_names_what_is_missing(repository: Path) -> None:
    async with gateway(Settings(repository=repository)) as client:
        decision = await decide(client)
        path = f"/v1/decisions/{decision['id']}:notice"
        answer = await client.post(path, json={"variables": LENDER})
        assert answer.status_code == 200, answer.text
        answer_body = answer.json()
        for reason in decision["reasons"]:
            assert f"- {reason['text']}\n" in answer_body["text"]
        assert "{{ 7 * 7 }}<script>" in answer_body["text"]  # what is filled in is no template
        assert "title" in answer_body["warnings"][0]
        missing = problem(await client.post(path, json={"variables": {"creditor": {"name": "A"}}}), 422)
        assert "creditor.address" in missing
        assert "in variables" in missing
        assert "--set" not in missing
        eu = await client.post(path, json={"template": "eu-consumer-credit", "variables": LENDER})
        assert "creditor.contact, contest" in problem(eu, 422)
        for template in ("/etc/passwd", "../notices/adverse-action.txt", ""):
            answer_body = problem(
                await client.post(path, json={"template": template, "variables": LENDER}), 422
            )
            assert answer_body == "template: must be adverse-action or eu-consumer-credit"
        assert "reasons" in problem(
            await client.post(path, json={"variables": {**LENDER, "reasons": []}}), 422
        )
        for body, status in (("[]", 400), ("{", 400), ('{"variables": 1}', 422), ('{"other": 1}', 422)):
            problem(await client.post(path, content=body), status)
        referred = await decide(client, "net")
        path = f"/v1/decisions/{referred['id']}:notice"
        assert "person_declined" in problem(await client.post(path, json={"variables": LENDER}), 422)
        judged = {"variables": {**LENDER, "judgment": ["Short employment"]}, "person_declined": True}
        assert "- Short employment\n" in (await client.post(path, json=judged)).json()["text"]


async def test_a_replay_is_equal_bit_for_bit_or_tells_why_there_is_none(repository: Path) -> None:
    async with gateway(Settings(repository=repository)) as client:
        first, other = await decide(client), await decide(client, "net")
        for each, entry in ((first, "credit_explain"), (other, "net_explain")):
            answer = await client.post(f"/v1/decisions/{each['id']}:replay", json={})
            assert answer.status_code == 200, answer.text
            assert answer.json() == {
                "id": each["id"],
                "same": True,
                "exact": True,
                "differences": [],
                "elsewhere": [],
                "passed_over": [],
                "entry": entry,
            }
        graph = repository / "credit_explain" / "1" / "model.onnx"
        altered = graph.read_bytes() + b"\x32\x00"  # an empty doc_string: no number is another one
        graph.unlink()
        graph.write_bytes(altered)
        answer = await client.post(f"/v1/decisions/{first['id']}:replay", json={})
        assert not answer.json()["same"]
        assert "decided" in answer.json()["differences"][0]
        shutil.rmtree(repository / "credit_explain")
        body = problem(await client.post(f"/v1/decisions/{first['id']}:replay", json={}), 404)
        assert "folder of 'credit'" in body
        assert str(repository) not in body
        late = await client.post(f"/v1/decisions/{other['id']}:replay", content="[]")
        assert "an object" in problem(late, 400)


async def test_hashed_inputs_have_to_be_sent_again_and_erased_ones_are_gone(
    repository: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 40)
    hashed = Settings(repository=repository, audit_inputs="hashed", audit_key_file=key)
    async with gateway(hashed) as client:
        decision = await decide(client)
        read = (await client.get(f"/v1/decisions/{decision['id']}")).json()
        assert (read["instance"], read["kept"]) == (None, "hashed")
        assert {reason["value"] for reason in read["answer"]["reasons"]} == {None}
        path = f"/v1/decisions/{decision['id']}:replay"
        assert "as `instance`" in problem(await client.post(path, json={}), 422)
        wrong = {"instance": {**ROWS["instances"][0], "income": 1}}
        assert "another instance" in problem(await client.post(path, json=wrong), 422)
        message = [await client.post(path, json={"instance": row}) for row in ROWS["instances"]]
        assert [answer.json()["same"] for answer in message if answer.status_code == 200] == [True]
    sealed = Settings(repository=repository, audit_inputs="sealed", audit_key_file=key)
    async with gateway(sealed) as client:
        decision = await decide(client)
        assert (await client.get(f"/v1/decisions/{decision['id']}")).json()["instance"] in ROWS["instances"]
        signing = tmp_path / "signing.pem"
        signing.write_bytes(_private_key())
        settings = tmp_path / "settings.toml"
        settings.write_text(
            f'audit_inputs = "sealed"\naudit_key_file = "{key}"\nrepository = "{repository}"\n'
        )
        words = ["audit", "erase", decision["id"], "--key", str(signing), "--config", str(settings)]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        read = (await client.get(f"/v1/decisions/{decision['id']}")).json()
        assert (read["instance"], read["kept"]) == (None, "erased")
        replay = await client.post(f"/v1/decisions/{decision['id']}:replay", json={})
        assert "were erased" in problem(replay, 409)


async def test_a_dry_run_leaves_nothing_and_is_the_same_decision(repository: Path) -> None:
    async with gateway(Settings(repository=repository)) as client:
        decision, dry = await decide(client), await decide(client, dry_run=True)
        assert dry == {**decision, "id": None}
        key = {"Idempotency-Key": "a"}
        body = {**ROWS, "dry_run": True}
        refused = await client.post("/v1/models/credit:decide", json=body, headers=key)
        assert "Idempotency-Key" in problem(refused, 400)
        for wrong in (1, "yes", []):
            answer = await client.post("/v1/models/credit:decide", json={**ROWS, "dry_run": wrong})
            assert problem(answer, 400) == "dry_run must be true or false"
        for name, meant in (
            ("dry-run", "dry_run"),
            ("recurse", "recourse"),
            ("application_id", "application_ids"),
        ):
            answer = await client.post("/v1/models/credit:decide", json={**ROWS, name: True})
            assert problem(answer, 422) == f"unknown option '{name}' (do you mean '{meant}'?)"
    table = repository.parent / "decisions.parquet"
    result = CliRunner().invoke(app, ["audit", "export", str(table), "--repository", str(repository)])
    assert result.exit_code == 0, result.output
    assert f"{len(ROWS['instances'])} decisions" in result.output


async def test_who_may_read_and_what_is_on_record_of_it(repository: Path, tmp_path: Path) -> None:
    tokens = {}
    file = tmp_path / "keys.toml"
    for name, scopes in {
        "desk": [Scope.DECIDE],
        "officer": [Scope.AUDIT],
        "other": [Scope.AUDIT],
        "boss": [Scope.ADMIN, Scope.EXPLAIN, Scope.INFER],
    }.items():
        tokens[name], table = new_key(name, scopes, None)
        more = 'models = ["net"]\n' if name == "other" else ""
        file.write_text((file.read_text() if file.exists() else "") + table + more)
    async with gateway(Settings(repository=repository, keys_file=file)) as client:

        def by(name: str) -> dict[str, str]:
            return {"X-API-Key": tokens[name]}

        answer = await client.post("/v1/models/credit:decide", json=ROWS, headers=by("desk"))
        decision = next(each for each in answer.json()["decisions"] if each["decision"] == "decline")
        path = f"/v1/decisions/{decision['id']}"
        assert problem(await client.get(path, headers=by("desk")), 403) == "key 'desk' lacks the scope audit"
        problem(await client.get(path, headers=by("boss")), 403)
        problem(await client.get(path), 401)
        body = problem(await client.get(path, headers=by("other")), 403)
        assert body == "'other' may not use the model 'credit'"
        assert (await client.get(path, headers=by("officer"))).json()["caller"] == "desk"
        notice = {"variables": {**LENDER, "applicant": {"name": "Jo Doe", "address": "a"}}}
        assert (await client.post(f"{path}:notice", json=notice, headers=by("officer"))).status_code == 200
        assert (await client.post(f"{path}:replay", json={}, headers=by("officer"))).json()["same"]
    listed = CliRunner().invoke(app, ["audit", "acts", "--repository", str(repository)])
    assert listed.exit_code == 0, listed.output
    acts = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(act["caller"], act["act"], act["target"], act["status"]) for act in acts] == [
        ("other", "GET", path, 403),
        ("officer", "GET", path, 200),
        ("officer", "POST", f"{path}:notice", 200),
        ("officer", "POST", f"{path}:replay", 200),
    ]
    assert acts[2]["detail"] == {"template": "adverse-action", "person_declined": False}
    assert "Jo Doe" not in listed.stdout


async def test_without_keys_only_this_machine_reads(repository: Path) -> None:
    async with gateway(Settings(repository=repository, host="0.0.0.0")) as client:  # noqa: S104
        decision = await decide(client)
        body = problem(await client.get(f"/v1/decisions/{decision['id']}"), 403)
        assert "scope audit" in body


async def test_without_a_trail_there_is_nothing_to_read(repository: Path) -> None:
    async with gateway(Settings(repository=repository, audit="off")) as client:
        decision = await decide(client)
        assert "RATIONALE_AUDIT is off" in problem(await client.get(f"/v1/decisions/{decision['id']}"), 404)


async def test_a_trail_that_cannot_be_read_is_told_without_its_place(
    repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    nowhere = f"sqlite:///{tmp_path}/file/a.sqlite3"
    async with gateway(Settings(repository=repository, audit=nowhere)) as client:
        body = problem(await client.get(f"/v1/decisions/{'0' * 32}"), 503)
    assert str(tmp_path) not in body


def _private_key() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
