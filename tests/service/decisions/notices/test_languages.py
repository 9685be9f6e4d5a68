"""Notices of recorded decisions in the languages of their profile, with the plans of their recourse."""

import copy
import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx import numpy_helper
from pyarrow import parquet
from typer.testing import CliRunner

from rationale import DeepShap, TreeShap, compile_model
from rationale_service.app import create_app, create_backend
from rationale_service.cli.main import app
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.records.replay import Replayer
from rationale_service.settings import Settings
from tests.compiler.models import NAMES, mlp, rows
from tests.compiler.trees.test_text_files import AGE, CODE, HOUSING, model
from tests.service import patient
from tests.service.api.routes.test_decisions import LENDER
from tests.service.conftest import serving
from tests.service.decisions.decided import NETWORK, TABLE, WORDS
from tests.service.decisions.test_grpc import decisions, request
from tests.service.grpc_end import grpc_end, refused


def both(text: str, other: str) -> dict[str, str]:
    return {"en": text, "de": other}


LANGUAGES: dict[str, Any] = {"languages": ["en", "de"], "notice": {"recourse": True}}
HOME: dict[str, Any] = {
    **WORDS,
    **LANGUAGES,
    "actionable": {"housing": {}, "age": {}},
    "features": {
        "housing": {
            "title": both("Home", "Wohnung"),
            "categories": {"own": both("owned", "Eigentum"), "rent": both("rented", "Miete")},
            "open": True,
            "reason": "H",
        },
        "age": {"title": both("Age", "Alter"), "unit": both("years", "Jahre"), "reason": "A"},
        "code": {"reason": "H"},
    },
    "reasons": {
        "H": both("Housing situation", "Wohnsituation"),
        "A": {
            "text": both("Applicant's age", "Alter des Antragstellers"),
            "missing": both("No age", "Ohne Alter"),
        },
    },
}
GROUP: dict[str, Any] = {
    **{key: value for key, value in NETWORK.items() if key != "refer"},
    **LANGUAGES,
    "threshold": 0.52,
    "actionable": {name: {} for name in ("age", "cards", "years")},
    "features": {
        name: {"title": both(name, name.upper()), "unit": both("units", "Einheiten")} | reason
        for name, reason in {
            "age": {"reason": "A"},
            "cards": {"reason": "A"},
            "years": {"reason": "Y"},
        }.items()
    }
    | {name: {"title": both(name, name.upper()), "unit": both("EUR", "Euro")} for name in ("income", "debt")},
    "groups": {"means": {"members": ["income", "debt"], "title": both("Means", "Mittel"), "reason": "M"}},
    "reasons": {
        "M": both("Means are insufficient", "Mittel reichen nicht"),
        "A": both("Age or cards", "Alter oder Karten"),
        "Y": both("Years at work", "Jahre im Beruf"),
        "R09": both("Bankruptcy", "Insolvenz"),
    },
}
ROWS: dict[str, list[dict[str, Any]]] = {
    "home": [{"age": 0.25, "housing": "rent", "code": "03"}, {"age": 0.75, "housing": "own", "code": "01"}],
    "group": [{**row, "bankruptcies": 0} for row in TABLE],
    "double": [{**row, "bankruptcies": 0} for row in TABLE],
}
ENGLISH = (
    "Home",
    "Housing",
    "owned",
    "years",
    "Years",
    "Means",
    "units",
    "EUR",
    "at most",
    "promise",
    "Action",
)


def in_float64(network: onnx.ModelProto) -> onnx.ModelProto:
    double = copy.deepcopy(network)
    for value in (*double.graph.input, *double.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for weight in double.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(float), weight.name))
    return double


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("languages") / "models"
    write_languages(folder)
    return folder


def write_languages(folder: Path) -> None:
    """Write the entries that decide on ROWS, in two languages."""
    words = TreeShap(pa.table({"age": AGE, "housing": HOUSING, "code": CODE}))
    compile_model(model(), words, decision=HOME).write(folder, "home")
    network = mlp((5, 64, 64, 1), last="Sigmoid")
    for name, proto in (("group", network), ("double", in_float64(network))):
        references = DeepShap(rows(7, 5).astype(np.float32 if name == "group" else np.float64))
        compile_model(proto, references, feature_names=NAMES, decision=GROUP).write(folder, name)


@pytest.fixture(scope="module")
def settings(folder: Path) -> Settings:
    return Settings(repository=folder, request_timeout_s=60)


def decline(url: str, name: str, **options: Any) -> dict[str, Any]:
    """Return the first decline; with recourse, the first with a plan."""
    answer = patient.post(f"{url}/v1/models/{name}:decide", json={"instances": ROWS[name], **options})
    assert answer.status_code == 200, answer.text
    return next(
        each
        for each in answer.json()["decisions"]
        if each["decision"] == "decline" and (not options or each["recourse"]["plans"])
    )


def letter(url: str, decision: dict[str, Any], query: str = "", status: int = 200) -> dict[str, Any]:
    path = f"{url}/v1/decisions/{decision['id']}:notice{query}"
    answer = patient.post(path, json={"variables": {**LENDER, "applicant": {"name": "Jo", "address": "2"}}})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("name", ["home", "group", "double"])
def test_a_notice_is_in_the_language_that_was_asked_for(url: str, name: str) -> None:
    decision = decline(url, name, recourse=True)
    record = patient.get(f"{url}/v1/decisions/{decision['id']}").json()
    assert record["languages"] == ["en", "de"]
    assert record["answer"] == decision  # which has the texts of the first language
    english, german = letter(url, decision), letter(url, decision, "?language=de")
    assert letter(url, decision, "?language=en") == english
    assert (english["language"], german["language"]) == ("en", "de")
    for reason in decision["reasons"]:
        assert f"- {reason['text']}" in english["text"]
        assert reason["text"] not in german["text"]
    assert not [word for word in ENGLISH if word in german["text"]]
    assert german["text"].count("\n- ") == len(decision["reasons"]) + len(decision["recourse"]["plans"])
    assert english["text"].count("\n- ") == german["text"].count("\n- ")
    assert "0." not in german["text"].replace(decision["id"], "")  # numbers have a comma
    refused = letter(url, decision, "?language=fr", 422)["detail"]
    assert refused == "language 'fr': the decision profile has 'en', 'de'"


def test_a_form_has_the_texts_of_a_language(url: str) -> None:
    def form(name: str, query: str = "", status: int = 200) -> dict[str, Any]:
        answer = patient.get(f"{url}/v1/models/{name}/features{query}")
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    assert form("home") == form("home", "?language=en")
    german = {name: form(name, "?language=de") for name in ("home", "group")}
    titles = {field["name"]: (field.get("title"), field.get("unit")) for field in german["home"]["features"]}
    assert (titles["housing"], titles["age"]) == (("Wohnung", None), ("Alter", "Jahre"))
    assert german["home"]["features"][1]["value_labels"] == {"own": "Eigentum", "rent": "Miete"}
    assert [group["title"] for group in german["group"]["groups"]] == ["Mittel"]
    assert german["home"]["decision"] == form("home")["decision"]  # languages, threshold and knock-outs
    assert german["home"]["decision"]["languages"] == ["en", "de"]
    refused = form("home", "?language=fr", 422)["detail"]
    assert refused == "language 'fr': the decision profile has 'en', 'de'"


def test_without_recourse_it_says_nothing_of_plans(url: str) -> None:
    told, asked = (letter(url, decline(url, "home", **more))["text"] for more in ({}, {"recourse": True}))
    assert "promise" in asked
    assert "promise" not in told


async def test_a_decision_over_grpc_has_the_same_notice(settings: Settings, url: str, tmp_path: Path) -> None:
    own = Settings(repository=settings.repository, request_timeout_s=60, state=tmp_path / "state")
    async with grpc_end(own) as end:
        found = decisions(await end.stub.ModelInfer(request("home:decide", ROWS["home"], recourse=True)))
    over_http = decline(url, "home", recourse=True)
    over_grpc = next(each for each in found if each["recourse"]["plans"] and each["decision"] == "decline")
    ids = [over_grpc["id"], over_http["id"]]
    with serving(create_app(own, create_backend(own))) as address:
        texts = [
            letter(f"http://{address}", over_grpc, "?language=de")["text"],
            letter(url, over_http, "?language=de")["text"],
        ]
    one, other = (text.replace(each, "") for text, each in zip(texts, ids, strict=True))
    assert one == other


def test_the_command_writes_the_same(url: str, folder: Path, tmp_path: Path) -> None:
    decision = decline(url, "home", recourse=True)
    lender = tmp_path / "lender.json"
    lender.write_text(json.dumps({**LENDER, "applicant": {"name": "Jo", "address": "2"}}))
    own = tmp_path / "elsewhere"
    shutil.copytree(folder / "home_explain", own / "home_explain")

    def run(*words: str) -> tuple[int, str, str]:
        arguments = [
            "notice",
            decision["id"],
            "--variables",
            str(lender),
            "--repository",
            str(folder),
            *words,
        ]
        result = CliRunner().invoke(app, arguments)
        return result.exit_code, result.stdout, result.stderr

    for query, words in (("", []), ("?language=de", ["--language", "de"])):
        assert run(*words) == (0, letter(url, decision, query)["text"], "")
        assert run(*words, "--entries", str(own))[:2] == run(*words)[:2]
    code, _, message = run("--language", "fr")
    assert (code, "the decision profile has 'en', 'de'" in message) == (2, True)
    lost = tmp_path / "empty"
    lost.mkdir()
    code, text, message = run("--entries", str(lost))
    assert (code, "promise" in text, "tells no plans" in message) == (0, False, True)
    code, _, message = run("--entries", str(lost), "--language", "de")
    assert (code, "is not in the repository" in message) == (2, True)


@pytest.mark.parametrize("name", ["home", "group"])
@pytest.mark.parametrize("options", [{"language": "de"}, {"language": "de", "recourse": True}], ids=len)
def test_a_file_has_each_option_as_over_http(
    url: str, folder: Path, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    """A row that is approved has neither reasons nor plans in a file."""
    body = {"instances": ROWS[name], "dry_run": True, **options}
    due = patient.post(f"{url}/v1/models/{name}:decide", json=body).json()["decisions"]
    parquet.write_table(pa.Table.from_pylist(ROWS[name]), tmp_path / "rows.parquet")
    words = [["--" + key, *([] if value is True else [value])] for key, value in options.items()]
    found = decide_file(folder, tmp_path, name, *chain.from_iterable(words))
    german = [reason["text"] for each in due for reason in each["reasons"]]
    assert german
    assert not [text for text in german if text in ENGLISH]
    for one, other in zip(found, due, strict=True):
        if other["decision"] == "approve":
            assert "recourse" not in one
            continue
        texts = [[reason["text"] for reason in each["reasons"]] for each in (one, other)]
        assert (texts[0], one["score"]) == (texts[1], other["score"])
        plans = [(each.get("recourse") or {"plans": []})["plans"] for each in (one, other)]
        changes = [[(plan["changes"], plan["score"]) for plan in each] for each in plans]
        assert changes[0] == changes[1]  # costs are from values as the model takes them, in float32
        assert bool(plans[0]) == ("recourse" in options)


def decide_file(folder: Path, tmp_path: Path, name: str, *words: str) -> list[dict[str, Any]]:
    """Return the decisions on rows.parquet, as the command writes them with a trail of its own."""
    places = ["--input", tmp_path / "rows.parquet", "--repository", folder, "--save", tmp_path / "d.jsonl"]
    result = CliRunner().invoke(app, ["decide", name, *map(str, places), *words])
    assert result.exit_code == 0, result.output
    return [json.loads(line)["decision"] for line in (tmp_path / "d.jsonl").read_text().splitlines()]


def test_another_language_is_another_file(folder: Path, tmp_path: Path) -> None:
    """The trail keeps the first language; a run in another goes on with no file of the first."""
    (tmp_path / "in").mkdir()
    parquet.write_table(pa.Table.from_pylist(ROWS["home"]), tmp_path / "in" / "rows.parquet")
    texts, state = dict[str, list[str]](), {"RATIONALE_STATE": str(tmp_path / "state")}
    for language in ("en", "de", "fr"):
        places = ["--input", tmp_path / "in", "--save", tmp_path / "out", "--repository", folder]
        words = ["decide", "home", *map(str, places), "--audit", "--language", language]
        result = CliRunner().invoke(app, words, env=state)
        if language == "fr":
            assert (result.exit_code, "has 'en', 'de'" in result.output) == (2, True)
            break
        assert ("0 new" in result.output) == (language == "de"), result.output
        texts[language] = parquet.read_table(tmp_path / "out")["reason_1_text"].to_pylist()
    assert texts["en"] != texts["de"]
    ledger = open_ledger(Settings(repository=folder, state=tmp_path / "state"))
    try:
        kept = [each.answer["reasons"] for each in ledger.in_order(None, None)]
    finally:
        ledger.close()
    assert [[*texts, None][0] for texts in ([r["text"] for r in own] for own in kept)] == texts["en"]


def test_where_the_entry_is_gone_a_notice_warns(folder: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    own = Settings(repository=models, request_timeout_s=60)
    for name in ("home", "home_explain", "group", "group_explain"):
        shutil.copytree(folder / name, models / name)
    with serving(create_app(own, create_backend(own))) as address:
        decision = decline(f"http://{address}", "home", recourse=True)
    for name in ("home", "home_explain"):
        shutil.rmtree(models / name)
    with serving(create_app(own, create_backend(own))) as address:
        url = f"http://{address}"
        assert patient.get(f"{url}/v1/decisions/{decision['id']}").json()["languages"] == []
        told = letter(url, decision)
        assert "tells no plans" in told["warnings"][0]
        assert "promise" not in told["text"]
        assert "is not in the repository" in letter(url, decision, "?language=de", 422)["detail"]


def test_hidden_inputs_are_in_no_language(folder: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 44)
    own = Settings(
        repository=folder,
        state=tmp_path / "state",
        audit_inputs="hashed",
        audit_key_file=key,
        request_timeout_s=60,
    )
    with serving(create_app(own, create_backend(own))) as address:
        decision = decline(f"http://{address}", "home", recourse=True)
        text = letter(f"http://{address}", decision, "?language=de")["text"]
        assert "Wohnsituation" in text or "Alter des Antragstellers" in text
        assert "Jahre" not in text
        assert "keine Zusage" not in text


def test_a_replay_compares_the_first_language(url: str, settings: Settings) -> None:
    decision = decline(url, "group", recourse=True)
    letter(url, decision, "?language=de")
    ledger = open_ledger(settings)
    try:
        assert not Replayer(settings).replay(ledger.read(decision["id"])).differences
    finally:
        ledger.close()


@pytest.mark.parametrize("name", ["home", "group", "double"])
async def test_a_decision_is_answered_in_the_language_that_was_asked_for(
    url: str, settings: Settings, tmp_path: Path, name: str
) -> None:
    """The trail keeps the first language, over HTTP and gRPC; a repeated key may ask for another one."""
    path, key = f"{url}/v1/models/{name}:decide", {"Idempotency-Key": f"language-{name}"}
    own = Settings(repository=settings.repository, request_timeout_s=60, state=tmp_path / "state")
    answers = {}
    async with grpc_end(own) as end:
        for language in ("de", "en", None):
            body = {"instances": ROWS[name], "language": language}
            answers[language] = patient.post(path, json=body, headers=key).json()["decisions"]
            asked = {} if language is None else {"language": language}
            dry = patient.post(path, json=body | {"dry_run": True}).json()["decisions"]
            over_grpc = decisions(await end.stub.ModelInfer(request(f"{name}:decide", ROWS[name], **asked)))
            for each, other, one in zip(dry, over_grpc, answers[language], strict=True):
                assert {**each, "id": ""} == {**other, "id": ""} == {**one, "id": ""}
        wrong = request(f"{name}:decide", ROWS[name], language="fr")
        await refused(end.stub.ModelInfer(wrong), "INVALID_ARGUMENT", "the decision profile has 'en', 'de'")
    assert answers[None] == answers["en"]
    for german, english in zip(answers["de"], answers["en"], strict=True):
        record = patient.get(f"{url}/v1/decisions/{english['id']}").json()["answer"]
        assert record == english
        texts = [(reason["text"], reason["shown"]) for reason in german["reasons"]]
        assert not [word for word in ENGLISH if word in str(texts)]
        letters = letter(url, english, "?language=de")["text"] if english["decision"] == "decline" else ""
        assert all(text in letters for text, _ in texts if letters)
        codes = [[reason["code"] for reason in each["reasons"]] for each in (german, english)]
        assert codes[0] == codes[1]
    answer = patient.post(path, json={"instances": ROWS[name], "language": "fr"})
    assert (answer.status_code, "has 'en', 'de'" in answer.json()["detail"]) == (422, True)
    assert patient.post(path, json={"instances": ROWS[name], "language": 1}).status_code == 400


def test_a_decision_of_another_profile_is_in_its_own_language(folder: Path, tmp_path: Path) -> None:
    models, key = tmp_path / "models", {"Idempotency-Key": "k"}
    own = Settings(repository=models, request_timeout_s=60)
    for name in ("group", "group_explain"):
        shutil.copytree(folder / name, models / name)
    with serving(create_app(own, create_backend(own))) as address:
        body = {"instances": ROWS["group"]}
        first = patient.post(f"http://{address}/v1/models/group:decide", json=body, headers=key).json()
    network = mlp((5, 64, 64, 1), last="Sigmoid")
    compile_model(
        network, DeepShap(rows(7, 5)), feature_names=NAMES, decision=GROUP | {"threshold": 0.53}
    ).write(models, "group")
    with serving(create_app(own, create_backend(own))) as address:
        path = f"http://{address}/v1/models/group:decide"
        assert patient.post(path, json=body, headers=key).json() == first
        answer = patient.post(path, json=body | {"language": "de"}, headers=key)
        assert (answer.status_code, "has changed since" in answer.json()["detail"]) == (409, True)
