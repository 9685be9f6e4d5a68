"""`rationale decide` of parquet files: typed columns, many files, resumed and recorded once."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import fs, parquet

from rationale import DeepShap, compile_model
from rationale_service.decisions.audit.evidence.verify import verify
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.audit.writer import trail_of
from rationale_service.decisions.portfolio import decide_files
from rationale_service.settings import Settings
from tests.compiler.explanations.test_portfolio import s3
from tests.compiler.models import FEATURES, NAMES, mlp, rows
from tests.service.decisions.decided import INSTANCES, NETWORK, Decided
from tests.service.decisions.portfolio.test_portfolio import (
    FailingTrail,
    InterruptedRunError,
    decide,
    rounded,
)

__all__ = ["s3"]  # a fixture
ITEM = mlp((FEATURES, 16, 1), last="Sigmoid")


@pytest.fixture
def settings(decided: Decided, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The gateway's repository, with a trail of its own."""
    monkeypatch.setenv("RATIONALE_STATE", str(tmp_path / "state"))
    return Settings(repository=decided.settings.repository, state=tmp_path / "state")


def write(folder: Path, name: str, instances: Sequence[Mapping[str, Any]], first: int = 0) -> Path:
    """Write instances with an `id`, a date and a column that the model does not take."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    ids = pa.array([f"loan-{first + i}" for i in range(len(instances))])
    table = pa.Table.from_pylist([dict(row) for row in instances])
    parquet.write_table(table.append_column("id_", ids), folder / name)
    return folder / name


def reasons_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reasons in a row's columns, as an answer has them."""
    collected = []
    for k in range(1, 20):
        if row.get(f"reason_{k}_code") is None:
            break
        value = row[f"reason_{k}_value"]
        if (text := row[f"reason_{k}_value_text"]) is not None:
            value = json.loads(text) if text.startswith("{") else text
        parts = ("code", "text", "feature", "attribution", "share")
        collected.append({"value": value, **{piece: row[f"reason_{k}_{piece}"] for piece in parts}})
    return collected


def check(row: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Compare a row of a table with the gateway's answer: numbers bit for bit."""
    for name in ("decision", "score", "threshold", "explained_value", "base_value", "completeness_gap"):
        assert row[name] == answer[name]
    assert row["warnings"] == answer["warnings"]
    expected = [{name: reason[name] for name in reasons_of(row)[0]} for reason in answer["reasons"]]
    for actual, reason in zip(reasons_of(row), expected, strict=True):
        assert {**actual, "value": rounded(actual["value"])} == {
            **reason,
            "value": rounded(reason["value"]),
        }


@pytest.mark.parametrize("name", ["net", "words", "margin", "credit"])
def test_a_file_of_decisions_has_typed_columns(
    decided: Decided, settings: Settings, tmp_path: Path, name: str
) -> None:
    rows_sent = [row for row in INSTANCES[name] if not any(isinstance(cell, list) for cell in row.values())]
    file, save = write(tmp_path, "loans.parquet", rows_sent), tmp_path / "decisions.parquet"
    status, output, _ = decide(name, "--input", file, "--save", save, "--repository", settings.repository)
    assert (status, output.split(":")[0]) == (0, str(save))
    table = parquet.read_table(save)
    text, number = pa.string(), pa.float64()
    kinds = {"row": pa.int64(), "decision": text, "score": number, "reason_1_code": text, "fault": text}
    kinds |= {"reason_1_value": number, "reason_1_value_text": text, "reason_1_attribution": number}
    assert {column: table.schema.field(column).type for column in kinds} == kinds
    answers = dict(zip(decided.ids[name], INSTANCES[name], strict=True))
    expected = [
        decided.answers[decision_id] for decision_id, instance in answers.items() if instance in rows_sent
    ]
    for row, answer in zip(table.to_pylist(), expected, strict=True):
        check(row, answer)


@pytest.fixture
def loans(tmp_path: Path) -> Path:
    folder = tmp_path / "loans"
    write(folder, "2026/a.parquet", INSTANCES["net"])
    write(folder, "2026/b.parquet", INSTANCES["net"], 6)  # the same instances, of others
    write(folder, "c.parquet", INSTANCES["net"][::-1], 12)
    empty = parquet.read_table(folder / "c.parquet").slice(0, 0)
    parquet.write_table(empty, folder / "d.parquet")
    return folder


def recorded(settings: Settings) -> list[str]:
    store = open_ledger(settings)
    try:
        assert [fault for fault in verify(store.store, []) if not isinstance(fault, int)] == []
        return [decision.id for decision in store.in_order(None, None)]
    finally:
        store.close()


def test_each_file_has_its_decisions(
    decided: Decided, settings: Settings, loans: Path, tmp_path: Path
) -> None:
    to = tmp_path / "decisions"
    words = (
        "net",
        "--input",
        loans,
        "--save",
        to,
        "--keep",
        "id_, income",
        "--repository",
        settings.repository,
    )
    status, output, _ = decide(*words)
    assert (status, output.split(";")[0].split(":")[0]) == (0, f"wrote 4 files with 18 rows to {to}")
    names = sorted(str(file.relative_to(to)) for file in to.rglob("*.*"))
    assert names == ["2026/a.parquet", "2026/b.parquet", "c.parquet", "d.parquet"]
    answers = [decided.answers[decision_id] for decision_id in decided.ids["net"]]
    tables = [parquet.read_table(to / name) for name in names]
    for table, expected in zip(tables, (answers, answers, answers[::-1], []), strict=True):
        assert table["row"].to_pylist() == list(range(len(expected)))
        for row, answer in zip(table.to_pylist(), expected, strict=True):
            check(row, answer)
    assert tables[1]["id_"].to_pylist() == [f"loan-{i}" for i in range(6, 12)]
    assert tables[3].schema == tables[0].schema
    ids = {decision_id for table in tables for decision_id in table["id"].to_pylist()}
    assert len(ids) == 18
    repeated = decide(*words)
    assert repeated[1].startswith(f"wrote 0 files with 0 rows to {to}; 4 more are there already: 18 rows: ")
    assert {
        decision_id for name in names for decision_id in parquet.read_table(to / name)["id"].to_pylist()
    } == ids


@pytest.mark.parametrize("after", [False, True], ids=["before it is recorded", "before it is saved"])
def test_an_interrupted_run_goes_on_with_the_next_file(
    settings: Settings, loans: Path, tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded once, and saved as recorded."""
    monkeypatch.setattr("rationale_service.decisions.portfolio._AT_ONCE", 2)
    to = tmp_path / "decisions"
    failing = FailingTrail(trail_of(settings), 4, after=after)
    with pytest.raises(InterruptedRunError):
        decide_files(settings, "net", str(loans), str(to), failing)
    assert sorted(file.name for file in to.rglob("*.*")) == ["a.parquet"]
    first = parquet.read_table(to / "2026" / "a.parquet")
    words = ("--input", loans, "--save", to, "--audit", "--repository", settings.repository)
    status, output, _ = decide("net", *words)
    assert status == 0
    assert output.startswith(f"wrote 3 files with 12 rows to {to}; 1 more are there already: 18 rows: ")
    new = 18 - (10 if after else 8)  # each call of the trail is of two
    assert output.endswith(f"; in the audit trail: {18 - new} found, {new} new\n")
    assert parquet.read_table(to / "2026" / "a.parquet").equals(first)
    saved = [
        decision_id
        for file in to.rglob("*.parquet")
        for decision_id in parquet.read_table(file)["id"].to_pylist()
    ]
    assert sorted(recorded(settings)) == sorted(saved)


def test_equal_rows_of_files_elsewhere_are_decisions_of_their_own(settings: Settings, tmp_path: Path) -> None:
    """Though the files are called the same below the folders that are named."""
    for year in ("2026", "2027"):
        write(tmp_path / year, "a.parquet", INSTANCES["net"][:2])
    for year, actual, new in (("2026", 0, 2), ("2027", 0, 2), ("2026", 2, 0)):
        words = ("--input", tmp_path / year, "--save", tmp_path / f"{year}-{new}", "--audit")
        output = decide("net", *words, "--repository", settings.repository)[1]
        assert output.endswith(f"; in the audit trail: {actual} found, {new} new\n")
    assert len({*recorded(settings)}) == 4


def test_decisions_that_no_trail_has_are_made_again_where_one_is_asked_for(
    settings: Settings, loans: Path, tmp_path: Path
) -> None:
    words = ("--input", loans, "--save", tmp_path / "to", "--repository", settings.repository)
    for more, message in (((), 4), (("--audit",), 4), (("--audit",), 0), ((), 0)):
        assert decide("net", *words, *more)[1].startswith(f"wrote {message} files")
    assert len(recorded(settings)) == 18


def test_rows_without_a_decision_end_with_status_1_also_when_they_are_there_already(tmp_path: Path) -> None:
    profile: dict[str, Any] = {
        **NETWORK,
        "features": {
            "age": {"reason": "A", "least": 0},
            "cards": {"reason": "A"},
            "years": {"reason": "Y"},
        },
    }
    compiled = compile_model(ITEM, DeepShap(rows(6, FEATURES)), decision=profile, feature_names=NAMES)
    compiled.write(tmp_path / "m", "net")
    instances = [
        {**row, "age": age, "bankruptcies": 0} for row, age in zip(INSTANCES["net"], (1, -1, 2), strict=False)
    ]
    write(tmp_path / "loans", "a.parquet", instances)
    words = ("--input", tmp_path / "loans", "--save", tmp_path / "to", "--repository", tmp_path / "m")
    for _ in range(2):
        status, output, _ = decide("net", *words)
        assert status == 1
        assert "1 without a decision" in output
    table = parquet.read_table(tmp_path / "to" / "a.parquet").to_pylist()
    assert [row["decision"] is None for row in table] == [False, True, False]
    assert "feature 'age' is less than" in table[1]["fault"]


def test_every_reason_has_columns(tmp_path: Path) -> None:
    """Each knock-out gives its own, also where they are more than a score's may be."""
    knock_outs = [{"feature": name, "above": -100, "reason": name.upper()} for name in NAMES[:3]]
    reasons = {name.upper(): name for name in NAMES}
    features = {name: {"reason": name.upper()} for name in NAMES}
    profile = {"output": "y", "threshold": 0.5, "adverse": "below", "max_reasons": 1, "features": features}
    profile |= {"knock_outs": knock_outs, "reasons": reasons}
    compiled = compile_model(ITEM, DeepShap(rows(6, FEATURES)), decision=profile, feature_names=NAMES)
    compiled.write(tmp_path / "m", "net")
    file = write(tmp_path, "loans.parquet", [dict(zip(NAMES, rows(1, FEATURES)[0].tolist(), strict=True))])
    for kind in ("csv", "parquet", "xlsx"):
        save = tmp_path / f"decisions.{kind}"
        status, _, err = decide("net", "--input", file, "--save", save, "--repository", tmp_path / "m")
        assert (status, err) == (0, "")
    (row,) = parquet.read_table(tmp_path / "decisions.parquet").to_pylist()
    with (tmp_path / "decisions.csv").open() as opened:
        (line,) = csv.DictReader(opened)
    (cells,) = pd.read_excel(tmp_path / "decisions.xlsx").to_dict("records")
    for k, name in enumerate(NAMES[:3], 1):
        code = f"reason_{k}_code"
        assert row[code] == line[code] == cells[code] == name.upper()


def test_an_object_store(decided: Decided, settings: Settings, loans: Path, s3: fs.S3FileSystem) -> None:
    for bucket in ("applicants", "decisions"):  # a store's content outlives it
        s3.create_dir(bucket)
    with s3.open_output_stream("applicants/2026/a.parquet") as out:
        out.write((loans / "2026" / "a.parquet").read_bytes())
    words = ("--input", "s3://applicants/2026/*.parquet", "--save", "s3://decisions/2026", "--audit")
    for message in (1, 0):
        status, output, err = decide("net", *words, "--repository", settings.repository)
        assert (status, err) == (0, "")
        assert output.startswith(f"wrote {message} files with {6 * message} rows to s3://decisions/2026")
    table = parquet.read_table("decisions/2026/a.parquet", filesystem=s3)
    for row, decision_id in zip(table.to_pylist(), decided.ids["net"], strict=True):
        check(row, decided.answers[decision_id])
    assert recorded(settings) == table["id"].to_pylist()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--input", "loans", "--save", "loans"), "--save loans"),
        (("--input", "loans", "--save", "to", "--keep", "loan"), "no column 'loan' to keep"),
        (("--input", "loans", "--save", "to", "--keep", "id"), "no column 'id' to keep"),
        (("--input", "own", "--save", "to", "--keep", "score"), "columns ['score'] to keep"),
        (("--input", "nowhere/*.parquet", "--save", "to"), "no such file or folder"),
        (
            ("--input", "bare", "--save", "to"),
            "a.parquet: rows 0 to 2: the rows: columns 'bankruptcies' are missing",
        ),
        (("--input", "holes", "--save", "to"), "a.parquet: rows 0 to 2: "),
        (("--input", "words", "--save", "to"), "'bankruptcies' holds 'none'"),
    ],
)
def test_what_cannot_be_done(
    settings: Settings, loans: Path, words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(loans.parent)
    instances = INSTANCES["net"][:3]
    write(loans.parent, "own/a.parquet", [{**row, "score": 1} for row in instances])
    write(loans.parent, "bare/a.parquet", [{name: row[name] for name in NAMES} for row in instances])
    write(loans.parent, "holes/a.parquet", [{**row, "age": None} for row in instances])
    write(loans.parent, "words/a.parquet", [{**row, "bankruptcies": "none"} for row in instances])
    status, _, err = decide("net", *words, "--repository", settings.repository)
    assert status == 2
    assert message in err
    assert not list(Path.cwd().glob("to/*"))
