"""Ids of applications: answered, recorded, found by and exported; over HTTP, gRPC and of files."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rationale_service.app import create_app, create_backend
from rationale_service.decisions.audit.export import export
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.portfolio import _application_ids
from rationale_service.settings import Settings
from tests.service import patient
from tests.service.conftest import serving
from tests.service.decisions.decided import INSTANCES, Decided
from tests.service.decisions.portfolio.test_portfolio import decide as decide_file
from tests.service.decisions.test_grpc import decisions, recorded, request
from tests.service.grpc_end import grpc_end, refused
from tests.service.security.test_keys import key_file

ROWS = [row for row in INSTANCES["net"] if not row["bankruptcies"]][:3]
IDS = ["A-1", None, "Ä/3: 二"]


@pytest.fixture
def settings(decided: Decided, tmp_path: Path) -> Settings:
    return Settings(repository=decided.settings.repository, state=tmp_path / "state", request_timeout_s=60)


@pytest.fixture
def url(settings: Settings) -> Iterator[str]:
    with serving(create_app(settings, create_backend(settings))) as address:
        yield f"http://{address}"


def decide(url: str, ids: Any, key: str = "", **more: Any) -> httpx.Response:
    body = {"instances": ROWS, "application_ids": ids, **more}
    return patient.post(
        f"{url}/v1/models/net:decide", json=body, headers={"Idempotency-Key": key} if key else {}
    )


def listed(url: str, **asked: Any) -> list[dict[str, Any]]:
    answer = patient.get(f"{url}/v1/decisions", params=asked)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["decisions"]
    return found


def test_decisions_are_found_by_them(url: str) -> None:
    answered = decide(url, IDS).json()["decisions"]
    assert [each.get("application_id") for each in answered] == IDS
    for decision, own in zip(answered, IDS, strict=True):
        record = patient.get(f"{url}/v1/decisions/{decision['id']}").json()
        assert (record["application_id"], record["answer"]) == (own, decision)
        if own is not None:
            (found,) = listed(url, application_id=own)
            assert (found["id"], found["decision"]) == (decision["id"], decision["decision"])
    again = decide(url, ["A-1", "A-1", None]).json()["decisions"]
    assert [each["id"] for each in listed(url, application_id="A-1", limit=2)] == [
        each["id"] for each in again[1::-1]
    ]
    assert len(listed(url)) == 2 * len(ROWS)
    assert listed(url, application_id="else") == listed(url, model="else") == listed(url, until="2026") == []
    assert patient.get(f"{url}/v1/decisions", params={"since": "tomorrow"}).status_code == 422


def test_a_list_has_no_decision_of_a_model_that_the_caller_must_not_use(
    settings: Settings, tmp_path: Path
) -> None:
    tokens = key_file(tmp_path, officer="decide audit", other="audit")
    file = tmp_path / "keys.toml"
    head, _, tail = file.read_text().partition('[keys."other"]')
    file.write_text(f'{head}[keys."other"]{tail}models = ["margin"]\n' if tail else head)
    own = settings.model_copy(update={"keys_file": file})
    with serving(create_app(own, create_backend(own))) as address:
        url = f"http://{address}"
        headers = {name: {"X-API-Key": token} for name, token in tokens.items()}
        body = {"instances": ROWS, "application_ids": IDS}
        assert (
            patient.post(f"{url}/v1/models/net:decide", json=body, headers=headers["officer"]).status_code
            == 200
        )
        found = {
            name: patient.get(f"{url}/v1/decisions", headers=headers[name]).json()["decisions"]
            for name in headers
        }
        assert {name: len(each) for name, each in found.items()} == {"officer": 3, "other": 0}
        asked = patient.get(f"{url}/v1/decisions", params={"model": "net"}, headers=headers["other"])
        assert asked.status_code == 403


def test_a_key_repeats_the_same_applications_alone(url: str) -> None:
    first = decide(url, IDS, "k").json()
    assert decide(url, IDS, "k").json() == first
    for others in (["A-2", None, IDS[2]], [None, None, None], None):
        assert decide(url, others, "k").status_code == 409


@pytest.mark.parametrize(
    ("ids", "status"),
    [
        ("A-1", 400),
        (["A-1"], 400),
        ([1, 2, 3], 400),
        (["", None, None], 422),
        ([" ", None, None], 422),
        (["a\0b", None, None], 422),
        (["a" * 256, None, None], 422),
        (["a" * 255, None, None], 200),
    ],
)
def test_what_no_trail_stores_is_refused(url: str, ids: Any, status: int) -> None:
    answer = decide(url, ids)
    assert answer.status_code == status, answer.text
    assert status == 200 or "application_ids" in answer.text


def test_half_a_surrogate_pair_is_refused(url: str) -> None:
    body = json.dumps({"instances": ROWS, "application_ids": ["\ud800", None, None]})
    headers = {"Content-Type": "application/json"}
    assert patient.post(f"{url}/v1/models/net:decide", content=body, headers=headers).status_code in (
        400,
        422,
    )


def test_a_dry_run_says_them_and_records_nothing(url: str) -> None:
    answered = decide(url, IDS, dry_run=True).json()["decisions"]
    assert [each.get("application_id") for each in answered] == IDS
    assert listed(url) == []


async def test_over_grpc_they_are_a_second_input(settings: Settings) -> None:
    async with grpc_end(settings) as end:
        message = request("net:decide", ROWS)
        own = request("net:decide", [(each or "").encode() for each in IDS], name="application_ids")
        message.inputs.append(own.inputs[0])
        answered = decisions(await end.stub.ModelInfer(message))
        short = request("net:decide", ROWS)
        short.inputs.append(request("net:decide", [b"A-1"], name="application_ids").inputs[0])
        await refused(end.stub.ModelInfer(short), "INVALID_ARGUMENT", "application_ids has 1 ids for 3")
        odd = request("net:decide", ROWS)
        odd.inputs.append(request("net:decide", [b"\xff", b"", b""], name="application_ids").inputs[0])
        await refused(end.stub.ModelInfer(odd), "INVALID_ARGUMENT", "no UTF-8")
    assert [each.get("application_id") for each in answered] == IDS
    assert [record.application_id for record in recorded(settings)] == IDS


@pytest.mark.parametrize("kind", [".csv", ".parquet", "folder"])
def test_each_row_of_a_file_has_its_own(settings: Settings, tmp_path: Path, kind: str) -> None:
    """Rows of one portfolio share an idempotency key, and no id."""
    columns = pa.Table.from_pylist([{**row, "loan": f"L-{i}"} for i, row in enumerate(ROWS)])
    source, save = tmp_path / f"loans{kind.removeprefix('folder')}", tmp_path / "decisions.jsonl"
    if kind == ".csv":
        with source.open("w") as file:
            writer = csv.DictWriter(file, columns.column_names)
            writer.writeheader()
            writer.writerows(columns.to_pylist())
    elif kind == ".parquet":
        pq.write_table(columns, source)
    else:
        source.mkdir()
        pq.write_table(columns, source / "a.parquet")
        save = tmp_path / "decisions"
    (tmp_path / "gateway.toml").write_text(f'state = "{settings.state_folder}"\n')
    words = ["net", "--input", source, "--save", save, "--audit", "--application-id", "loan"]
    place = ["--repository", settings.repository, "--config", tmp_path / "gateway.toml"]
    for run in range(2):  # the second finds them all
        status, output, error = decide_file(*words, *place)
        assert status == 0, error
        assert f"{3 * run} found" in output or kind == "folder", output
    assert sorted(str(record.application_id) for record in recorded(settings)) == ["L-0", "L-1", "L-2"]
    words[4] = save.with_name(f"other-{save.name}")
    status, _, error = decide_file(*words[:-1], "branch", *place)
    assert (status, "branch" in error) == (2, True), error


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_they_are_exported(url: str, settings: Settings, tmp_path: Path, kind: str) -> None:
    decide(url, IDS)
    file, ledger = tmp_path / f"out.{kind}", open_ledger(settings)
    try:
        assert export(ledger, file) == len(IDS)
        if kind == "parquet":
            found = pq.read_table(file).column("application_id").to_pylist()
        elif kind == "jsonl":
            found = [json.loads(line)["application_id"] for line in file.read_text().splitlines()]
        else:
            with file.open(newline="") as opened:
                found = [row["application_id"] or None for row in csv.DictReader(opened)]
        assert found == IDS
        assert export(ledger, file, application="A-1") == 1
    finally:
        ledger.close()


def test_an_empty_cell_of_a_column_is_none() -> None:
    cells = ["A-1", "", None, float("nan"), 17]
    assert _application_ids("id", cells) == ["A-1", None, None, None, "17"]
