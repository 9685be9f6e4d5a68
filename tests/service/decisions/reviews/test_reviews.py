"""Contests and reviews: states, links, what notice and receipt say, replays, and what the trail keeps."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from rationale import DeepShap, compile_model
from rationale.decisions.notice import notice
from rationale.errors import InvalidOptionError
from rationale_service.app import create_app, create_backend
from rationale_service.cli.main import app
from rationale_service.decisions.audit import writer
from rationale_service.decisions.audit.evidence.retention import erase
from rationale_service.decisions.audit.evidence.verify import verify
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.records.cases import link_faults, standing_notice
from rationale_service.decisions.records.receipt import write_receipt
from rationale_service.decisions.records.replay import Replayer
from rationale_service.settings import Settings
from tests.compiler.models import NAMES, mlp, rows
from tests.service import patient
from tests.service.child import until
from tests.service.conftest import serving
from tests.service.decisions.audit.conftest import key_pair
from tests.service.decisions.audit.postgres import postgres
from tests.service.decisions.decided import INSTANCES, NETWORK, Decided
from tests.service.security.test_keys import key_file

ROW = next(row for row in INSTANCES["net"] if row["bankruptcies"])  # declines, whatever its score
BETTER = {**ROW, "bankruptcies": 0}
TEXT = "The bankruptcy is another person's"
VARIABLES = {
    "creditor": {"name": "A Bank", "address": "1 High Street"},
    "agency": {"name": "Bureau", "address": "1700 G Street NW"},
    "applicant": {"name": "Jo Doe", "address": "2 Low Street"},
    "application": "personal loan",
    "consumer_report": False,
}
DECLINE = {
    "reviewer": "M. Officer",
    "decision": "decline",
    "reasons": [{"code": "R09", "text": "It is confirmed"}],
}


@pytest.fixture(scope="module")
def settings(decided: Decided, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    state = tmp_path_factory.mktemp("state")
    return Settings(repository=decided.settings.repository, state=state, request_timeout_s=60)


def decide(url: str, row: Any = None, name: str = "net", **more: Any) -> dict[str, Any]:
    answer = patient.post(f"{url}/v1/models/{name}:decide", json={"instances": [row or ROW]} | more)
    assert answer.status_code == 200, answer.text
    (decision,) = answer.json()["decisions"]
    return dict(decision)


def ask(url: str, decision: str, verb: str, body: Any = None, key: str = "", **more: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return patient.post(f"{url}/v1/decisions/{decision}:{verb}", json=body or {}, headers=headers, **more)


def answered(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return dict(response.json())


def case(url: str, decision: str) -> dict[str, Any]:
    return answered(patient.get(f"{url}/v1/decisions/{decision}:history"))


def test_contested_twice_and_reviewed_by_a_person(url: str, settings: Settings, tmp_path: Path) -> None:
    """The whole story: contested, corrected, contested again, judged."""
    first = decide(url, application_ids=["A-1"])
    assert (first["decision"], case(url, first["id"])["state"]) == ("decline", "decided")
    contest = answered(ask(url, first["id"], "contest", {"reason": TEXT}))
    told = case(url, contest["id"])
    assert (told["id"], told["state"], told["standing"]) == (first["id"], "contested", first["id"])
    assert told["review_by"] == contest["review_by"] > told["events"][-1]["time"]

    corrected = answered(ask(url, first["id"], "review", {"reviewer": "M. Officer", "instance": BETTER}))
    plain = decide(url, BETTER)
    assert {name: corrected[name] for name in ("decision", "score", "reasons", "attributions")} == {
        name: plain[name] for name in ("decision", "score", "reasons", "attributions")
    }
    assert (corrected["reviews"], corrected["reviewer"]) == (first["id"], "M. Officer")
    assert corrected["application_id"] == contest["application_id"] == "A-1"
    difference = corrected["difference"]
    gaps = corrected["completeness_gap"] - first["completeness_gap"]
    total = sum(difference["attributions"].values()) + gaps
    assert difference["explained_value"] == pytest.approx(total, abs=1e-6)
    state = "referred" if corrected["decision"] == "refer" else "reviewed"
    assert case(url, first["id"])["state"] == state

    answered(ask(url, corrected["id"], "contest", {"reason": "Still wrong"}))
    assert case(url, first["id"])["state"] == "contested"
    judgment = answered(ask(url, first["id"], "review", DECLINE))
    told = case(url, corrected["id"])
    assert (told["state"], told["standing"], told["review_by"]) == ("reviewed", judgment["id"], None)
    assert [event["kind"] for event in told["events"]] == [
        *("decision", "contest", "decision", "contest", "judgment")
    ]
    assert [event["words"] for event in told["events"]] == [None, TEXT, None, "Still wrong", None]
    assert [event["reviewer"] for event in told["events"]] == [None, None, "M. Officer", None, "M. Officer"]

    listed = answered(patient.get(f"{url}/v1/decisions", params={"application_id": "A-1"}))["decisions"]
    assert [row["id"] for row in reversed(listed)] == [event["id"] for event in told["events"]]

    # Notice: the first decision's is refused, the person's says what it replaces.
    refused = ask(url, first["id"], "notice", {"variables": VARIABLES})
    assert (refused.status_code, judgment["id"] in refused.text) == (422, True)
    text = answered(ask(url, judgment["id"], "notice", {"variables": VARIABLES}))["text"]
    assert "made by a person" in text
    assert first["id"] in text
    assert "- It is confirmed\n" in text
    assert first["reasons"][0]["text"] not in text

    # Replays: every decision is computed again, and the links are right.
    for decision, passed_over in ((first, []), (corrected, []), (judgment, ["judgment"])):
        replayed = answered(ask(url, decision["id"], "replay"))
        assert (replayed["same"], replayed["passed_over"]) == (True, passed_over), replayed
    assert ask(url, contest["id"], "replay").status_code == 409

    ledger = open_ledger(settings)
    try:
        assert all(isinstance(fault, int) for fault in verify(ledger.store))
        replayer, whole = Replayer(settings), ledger.case_of(ledger.read(first["id"]))
        for event in whole.events:
            folder = tmp_path / event.id
            if event.kind == "contest":
                with pytest.raises(InvalidOptionError, match="is a contest"):
                    write_receipt(event, None, folder, whole)
                continue
            entry = None if event.kind == "judgment" else replayer.entry(event)
            write_receipt(event, entry, folder, whole)
            readme = " ".join((folder / "README.txt").read_text().split())
            assert "contested the decision 2 times" in readme
            assert ("reviewed by a person (M. Officer)" in readme) == (event.id != judgment["id"])
            assert ("a review by a person" in readme) == (event.id == judgment["id"])
            history = json.loads((folder / "reviews.json").read_text())
            assert [each["kind"] for each in history] == [each["kind"] for each in told["events"]]
            assert (folder / "check.py").exists() == (event.id != judgment["id"])
    finally:
        ledger.close()


def test_a_referral_ends_in_a_review(url: str) -> None:
    refers = [row for row in INSTANCES["net"] if decide(url, row, dry_run=True)["decision"] == "refer"]
    if not refers:  # the band of the profile is narrow: search between two rows
        refers = [_between(url)]
    referred = decide(url, refers[0])
    told = case(url, referred["id"])
    assert (told["state"], bool(told["review_by"])) == ("referred", True)
    waiting = answered(patient.get(f"{url}/v1/decisions", params={"open": True}))["decisions"]
    assert referred["id"] in [row["id"] for row in waiting]
    judgment = answered(ask(url, referred["id"], "review", DECLINE))
    waiting = answered(patient.get(f"{url}/v1/decisions", params={"open": True}))["decisions"]
    assert referred["id"] not in [row["id"] for row in waiting]
    text = answered(ask(url, judgment["id"], "notice", {"variables": VARIABLES}))["text"]
    assert "- It is confirmed\n" in text  # where score and person decided together, the reasons of both
    assert all(reason["text"] in text for reason in referred["reasons"])


def _between(url: str) -> dict[str, Any]:
    rows = [row for row in INSTANCES["net"] if not row["bankruptcies"]]
    low, high = (
        next(row for row in rows if decide(url, row, dry_run=True)["decision"] == kind)
        for kind in ("decline", "approve")
    )
    for _ in range(60):
        middle = {name: (low[name] + high[name]) / 2 for name in low}
        kind = decide(url, middle, dry_run=True)["decision"]
        if kind == "refer":
            return middle
        low, high = (middle, high) if kind == "decline" else (low, middle)
    raise AssertionError("no row is referred")


@pytest.mark.parametrize(
    ("verb", "body"),
    [("contest", {"reason": TEXT}), ("review", DECLINE), ("review", {"reviewer": "M", "instance": BETTER})],
    ids=["contest", "judgment", "correction"],
)
def test_a_repeated_key_gives_the_same_answer(url: str, verb: str, body: dict[str, Any]) -> None:
    first, other = decide(url), decide(url)
    key = first["id"]
    once = answered(ask(url, first["id"], verb, body, key))
    assert answered(ask(url, first["id"], verb, body, key)) == once
    assert len(case(url, first["id"])["events"]) == 2
    assert ask(url, other["id"], verb, body, key).status_code == 409  # of another case
    changed = body | ({"reason": "else"} if verb == "contest" else {"reviewer": "else"})
    changed |= {"instance": ROW} if "instance" in body else {}
    assert ask(url, first["id"], verb, changed, key).status_code == 409
    assert len(case(url, other["id"])["events"]) == 1


@pytest.mark.parametrize(
    ("verb", "body", "status", "told"),
    [
        ("contest", {}, 422, "reason"),
        ("contest", {"reason": " "}, 422, "empty"),
        ("contest", {"reason": "a\0b"}, 422, "NUL"),
        ("contest", {"reason": "a" * 2001}, 422, "2000"),
        ("review", {"decision": "approve"}, 422, "reviewer"),
        ("review", {"reviewer": "M"}, 422, "either instance"),
        ("review", {"reviewer": "M", "decision": "approve", "instance": BETTER}, 422, "either instance"),
        ("review", {"reviewer": "M", "decision": "refer"}, 422, "decision"),
        ("review", {"reviewer": "M", "decision": "decline"}, 422, "at least one"),
        ("review", {"reviewer": "M", "instance": BETTER, "reasons": [{"text": "x"}]}, 422, "reasons"),
        ("review", {"reviewer": "M", "decision": "decline", "reasons": [{"text": "\0"}]}, 422, "NUL"),
        ("review", {"reviewer": "M", "instance": {"age": 1}}, 422, "instance: missing"),
        ("review", {"reviewer": "M", "instance": BETTER | {"age": "1"}}, 422, "instance: feature 'age'"),
        ("review", {"reviewer": "M", "instance": BETTER | {"b": 1}}, 422, "instance: unknown feature 'b'"),
        ("review", {"reviewer": "M", "instance": BETTER | {"age": 1e39}}, 422, "finite"),
        ("review", {"reviewer": "M" * 256, "decision": "approve"}, 422, "255"),
        ("review", {"reviewer": "M\nN", "decision": "approve"}, 422, "line end"),
        ("review", {"reviewer": "\u202eM", "decision": "approve"}, 422, "nobody sees"),
    ],
)
def test_what_is_refused(url: str, verb: str, body: dict[str, Any], status: int, told: str) -> None:
    first = decide(url)
    answer = ask(url, first["id"], verb, body)
    assert (answer.status_code, told in answer.text) == (status, True), answer.text
    assert "instances[" not in answer.text
    assert len(case(url, first["id"])["events"]) == 1
    assert ask(url, "0" * 32, verb, {"reason": "x"} if verb == "contest" else DECLINE).status_code == 404


@pytest.mark.parametrize(
    ("verb", "body", "twice"),
    [
        ("contest", '{"reason": "a", "reason": "b"}', "reason"),
        ("review", json.dumps({"reviewer": "M", "instance": BETTER})[:-2] + ', "age": 9}}', "age"),
        ("review", json.dumps(DECLINE)[:-3] + ', "text": "It: is not"}]}', "text"),
    ],
)
def test_no_member_is_given_twice(url: str, verb: str, body: str, twice: str) -> None:
    first = decide(url)["id"]
    answer = patient.post(f"{url}/v1/decisions/{first}:{verb}", content=body)
    assert (answer.status_code, f"member '{twice}' is given twice" in answer.text) == (422, True), answer.text
    assert len(case(url, first)["events"]) == 1


@pytest.mark.parametrize("language", ["fr", "e" * 5000, "..", "/", "\0", "../notices/en"])
def test_a_judgments_notice_in_no_language(url: str, language: str) -> None:
    judgment = answered(ask(url, decide(url)["id"], "review", DECLINE))
    path = f"{url}/v1/decisions/{judgment['id']}:notice"
    answer = patient.post(path, json={"variables": VARIABLES}, params={"language": language})
    assert (answer.status_code, "it is in de, en, and not in" in answer.text) == (422, True), answer.text


def test_scopes(settings: Settings, tmp_path: Path) -> None:
    tokens = key_file(tmp_path, shop="decide", officer="review", reader="audit")
    own = settings.model_copy(update={"keys_file": tmp_path / "keys.toml"})
    with serving(create_app(own, create_backend(own))) as address:
        url = f"http://{address}"

        def status(caller: str, path: str, body: Any = None) -> int:
            headers = {"X-API-Key": tokens[caller]}
            if body is None:
                return patient.get(f"{url}{path}", headers=headers).status_code
            return patient.post(f"{url}{path}", json=body, headers=headers).status_code

        body = {"instances": [ROW]}
        answer = patient.post(f"{url}/v1/models/net:decide", json=body, headers={"X-API-Key": tokens["shop"]})
        of = f"/v1/decisions/{answer.json()['decisions'][0]['id']}"
        correction = {"reviewer": "M", "instance": BETTER}
        statuses = {
            caller: [
                status(caller, f"{of}:contest", {"reason": TEXT}),
                status(caller, f"{of}:review", DECLINE),
                status(caller, f"{of}:review", correction),
                status(caller, f"{of}:history"),
                status(caller, of),
            ]
            for caller in tokens
        }
    assert statuses == {
        "shop": [200, 403, 403, 403, 403],
        "officer": [200, 200, 200, 200, 403],
        "reader": [403, 403, 403, 200, 200],
    }


def test_another_entry_corrects_nothing(url: str, settings: Settings) -> None:
    """Attributions of another model or profile would not be comparable."""
    from rationale_service.decisions.audit.trail import Case
    from rationale_service.decisions.decider import Correction
    from rationale_service.errors import ConflictError
    from rationale_service.repository.entry import read_entry

    ledger = open_ledger(settings)
    first = ledger.read(decide(url)["id"])
    ledger.close()
    of = {
        name: read_entry(Path(settings.repository) / f"{name}_explain").manifest for name in ("net", "margin")
    }
    assert of["net"] is not None
    assert of["margin"] is not None
    Correction(Case([first]), "M").check(of["net"])
    with pytest.raises(ConflictError, match="another version"):
        Correction(Case([first]), "M").check(of["margin"])


@pytest.mark.parametrize("profile", ["the same", "another"])
def test_an_entry_that_was_loaded_again(decided: Decided, tmp_path: Path, profile: str) -> None:
    """The same entry corrects inputs as before; of another profile only a person's judgment is taken."""
    models = tmp_path / "models"
    for name in ("net", "net_explain"):
        shutil.copytree(Path(decided.settings.repository) / name, models / name)
    settings = Settings(repository=models, state=tmp_path / "state", request_timeout_s=60)
    network, references = mlp((5, 64, 64, 1), last="Sigmoid"), DeepShap(rows(7, 5))
    rules = NETWORK if profile == "the same" else NETWORK | {"threshold": 0.53, "refer": [0.53, 0.54]}
    correction = {"reviewer": "M", "instance": BETTER}
    with serving(create_app(settings, create_backend(settings))) as address:
        url = f"http://{address}"
        first, other = decide(url), decide(url)
        before = answered(ask(url, other["id"], "review", correction))
        compile_model(network, references, feature_names=NAMES, decision=rules).write(models, "net")
        for name in ("net", "net_explain"):
            assert patient.post(f"{url}/v2/repository/models/{name}/load").status_code == 200
        answer = ask(url, first["id"], "review", correction)
        if profile == "the same":
            same = {"decision", "score", "attributions", "difference", "reasons"}
            assert {name: answered(answer)[name] for name in same} == {name: before[name] for name in same}
            assert answered(ask(url, first["id"], "replay"))["same"]
        else:
            assert (answer.status_code, "another version of 'net'" in answer.text) == (409, True)
            assert len(case(url, first["id"])["events"]) == 1
        answered(ask(url, first["id"], "contest", {"reason": TEXT}))
        judgment = answered(ask(url, first["id"], "review", DECLINE))
        assert case(url, first["id"])["standing"] == judgment["id"]


def test_links_that_are_wrong_show(url: str, settings: Settings) -> None:
    first, other = decide(url), decide(url, application_ids=["A-2"])
    corrected = answered(ask(url, first["id"], "review", {"reviewer": "M", "instance": BETTER}))
    ledger = open_ledger(settings)
    one, two, review = (ledger.read(each["id"]) for each in (first, other, corrected))
    ledger.close()
    assert not list(link_faults(review, one))
    assert [fault for fault in link_faults(review, two) if "application_id" in fault]
    assert [fault for fault in link_faults(one, review) if "no first decision" in fault]
    assert list(link_faults(replace(review, time=one.time), one))
    forged = {**review.answer, "difference": {**review.answer["difference"], "explained_value": 9.0}}
    assert [fault for fault in link_faults(replace(review, answer=forged), one) if "difference" in fault]


@pytest.mark.parametrize("kept", ["hashed", "sealed"])
def test_the_words_of_an_applicant_are_kept_as_inputs_are(
    decided: Decided, tmp_path: Path, kept: Any
) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 44)
    settings = Settings(
        repository=decided.settings.repository,
        state=tmp_path / "state",
        audit_inputs=kept,
        audit_key_file=key,
        request_timeout_s=60,
    )
    with serving(create_app(settings, create_backend(settings))) as address:
        url = f"http://{address}"
        first = decide(url)
        answered(ask(url, first["id"], "contest", {"reason": TEXT}))
        judgment = answered(ask(url, first["id"], "review", DECLINE))
        told = case(url, first["id"])
    assert told["events"][1]["words"] == (None if kept == "hashed" else TEXT)
    assert told["events"][2]["reasons"] == DECLINE["reasons"]
    assert TEXT not in (settings.state_folder / "audit.sqlite3").read_bytes().decode(errors="ignore")
    ledger = open_ledger(settings)
    try:
        assert all(isinstance(fault, int) for fault in verify(ledger.store))
        if kept == "sealed":  # an erasure of the first decision takes those of its case with it
            erase(ledger.store, first["id"], key_pair(tmp_path).private)
            whole = ledger.case_of(ledger.read(first["id"]))
            assert [event.kept for event in whole.events] == ["erased"] * 3
            assert all(isinstance(fault, int) for fault in verify(ledger.store))
            record = ledger.read(judgment["id"])
            assert Replayer(settings).replay(record, whole.first).differences == ()
    finally:
        ledger.close()


def test_a_case_without_its_first_decision(url: str, settings: Settings) -> None:
    """Retention took it: what is left is read, and neither contested nor reviewed."""
    first = decide(url)
    judgment = answered(ask(url, first["id"], "review", DECLINE))
    ledger = open_ledger(settings)
    record, alone = ledger.read(judgment["id"]), ledger.case_of(ledger.read(judgment["id"]))
    ledger.close()
    alone = replace(alone, events=alone.events[1:])
    assert standing_notice(record, alone, VARIABLES, "adverse-action", person_declined=False).text
    assert "reviews" in Replayer(settings).replay(record).passed_over


def test_the_command_line(decided: Decided, tmp_path: Path) -> None:
    repository = decided.settings.repository
    settings = Settings(repository=repository, state=tmp_path / "state", request_timeout_s=60)
    with serving(create_app(settings, create_backend(settings))) as address:
        url = f"http://{address}"
        first = decide(url)
        answered(ask(url, first["id"], "contest", {"reason": TEXT}))
        answered(ask(url, first["id"], "review", {"reviewer": "M. Officer", "instance": BETTER}))
        judgment = answered(ask(url, first["id"], "review", DECLINE))
    (tmp_path / "gateway.toml").write_text(f'state = "{settings.state_folder}"\n')
    (tmp_path / "lender.json").write_text(json.dumps(VARIABLES))
    place = ["--repository", settings.repository, "--config", tmp_path / "gateway.toml"]

    def run(*words: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*map(str, words), *map(str, place)])
        return result.exit_code, result.output

    status, output = run("replay", "--since", "2026")
    assert (status, "2 equal bit for bit; 1 judged by a person" in output) == (0, True), output
    status, output = run("replay", judgment["id"])
    assert (status, "a person's judgment (M. Officer)" in output) == (0, True), output
    status, output = run("notice", judgment["id"], "--variables", tmp_path / "lender.json")
    assert (status, "made by a person" in output) == (0, True), output
    status, output = run("notice", first["id"], "--variables", tmp_path / "lender.json")
    assert (status, judgment["id"] in output) == (2, True), output
    status, output = run("receipt", judgment["id"], "--out", tmp_path / "receipt")
    assert (status, "a person judged" in output) == (0, True), output
    files = sorted(path.name for path in (tmp_path / "receipt").iterdir())
    assert files == ["README.txt", "answer.json", "request.json", "reviews.json"]
    status, output = run("audit", "verify")
    assert (status, "4 decisions" in output) == (0, True), output


def test_a_judgment_that_approves_has_no_notice() -> None:
    answer = {
        "id": "x",
        "decision": "approve",
        "reasons": [],
        "reviewer": "M",
        "reviews": "y",
        "warnings": [],
    }
    with pytest.raises(InvalidOptionError, match="is an approval"):
        notice(answer, VARIABLES)


def test_with_postgresql(decided: Decided, tmp_path: Path) -> None:
    with postgres() as server:
        settings = Settings(
            repository=decided.settings.repository,
            state=tmp_path / "state",
            audit=server.new_schema(),
            request_timeout_s=60,
        )
        with serving(create_app(settings, create_backend(settings))) as address:
            url = f"http://{address}"
            first = decide(url, application_ids=["A-1"])
            answered(ask(url, first["id"], "contest", {"reason": TEXT}, "k-1"))
            judgment = answered(ask(url, first["id"], "review", DECLINE, "k-2"))
            assert answered(ask(url, first["id"], "review", DECLINE, "k-2")) == judgment
            assert case(url, first["id"])["state"] == "reviewed"
            found = answered(patient.get(f"{url}/v1/decisions", params={"application_id": "A-1"}))[
                "decisions"
            ]
            assert [row["kind"] for row in found] == ["judgment", "contest", "decision"]


def test_erasure_and_retention_with_postgresql(decided: Decided, tmp_path: Path) -> None:
    """An erasure takes the inputs of the whole case; a case whose first decision is gone is over."""
    (tmp_path / "key").write_text("k" * 44)
    with postgres() as server:
        settings = Settings(
            repository=decided.settings.repository,
            state=tmp_path / "state",
            audit=server.new_schema(),
            audit_inputs="sealed",
            audit_key_file=tmp_path / "key",
            request_timeout_s=60,
        )
        ledger = open_ledger(settings, is_made=True)
        with serving(create_app(settings, create_backend(settings))) as address:
            url = f"http://{address}"
            erased, pruned = decide(url), decide(url)
            for first in (erased, pruned):
                answered(ask(url, first["id"], "contest", {"reason": TEXT}))
            corrected = answered(ask(url, erased["id"], "review", {"reviewer": "M", "instance": BETTER}))
            erase(ledger.store, erased["id"], key_pair(tmp_path).private)
            whole = ledger.case_of(ledger.read(erased["id"]))
            assert [event.kept for event in whole.events] == ["erased"] * 3
            assert case(url, erased["id"])["events"][1]["words"] is None
            assert ask(url, erased["id"], "replay").status_code == 409
            judgment = answered(ask(url, erased["id"], "review", DECLINE))
            assert case(url, corrected["id"])["standing"] == judgment["id"]
            contest = ledger.case_of(ledger.read(pruned["id"])).events[1]
            assert ledger.store.prune(contest.time) >= 1
            for verb, body in (("contest", {"reason": TEXT}), ("review", DECLINE)):
                assert ask(url, pruned["id"], verb, body).status_code == 404
                assert ask(url, contest.id, verb, body).status_code in (404, 409)
            faults = [*verify(ledger.store, kept_since=contest.time)][:-1]
            assert faults == []
        ledger.close()


def test_what_waits_is_counted(decided: Decided, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contest waits until a review; a second contest is one more that waits."""
    for name in ("_COUNT_S", "_LOOK_S"):
        monkeypatch.setattr(writer, name, 0.05)
    settings = Settings(
        repository=decided.settings.repository, state=tmp_path / "state", request_timeout_s=60
    )
    with serving(create_app(settings, create_backend(settings))) as address:
        url = f"http://{address}"
        first = decide(url)

        def tells(waiting: float) -> bool:
            return f'rationale_reviews_waiting{{model="net"}} {waiting}' in patient.get(f"{url}/metrics").text

        for count in (1.0, 2.0):
            answered(ask(url, first["id"], "contest", {"reason": TEXT}))
            until(lambda count=count: tells(count))
        answered(ask(url, first["id"], "review", DECLINE))
        until(lambda: tells(0.0))
        page = patient.get(f"{url}/metrics").text
        assert 'rationale_reviews_overdue{model="net"} 0.0' in page
        assert 'rationale_review_wait_seconds_count{model="net"} 1.0' in page
        answered(ask(url, first["id"], "contest", {"reason": TEXT}))
    ledger = open_ledger(settings)
    later = (datetime.now(UTC) + timedelta(days=30, minutes=1)).isoformat()
    assert ledger.store.waiting(datetime.now(UTC).isoformat()) == {"net": (1, 0)}
    assert ledger.store.waiting(later) == {"net": (1, 1)}
    ledger.close()
