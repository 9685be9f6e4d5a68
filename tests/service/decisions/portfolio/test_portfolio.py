"""`rationale decide`: files of rows, as the gateway decides them, interrupted, and recorded once."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pydantic import SecretStr
from typer.testing import CliRunner

from rationale import TreeShap, compile_model
from rationale.decisions.rows import profile_of
from rationale.errors import InvalidOptionError
from rationale_service.cli.main import app
from rationale_service.decisions.audit.evidence.verify import verify
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.audit.trail import AuditTrail, NoTrail, RecordedDecision
from rationale_service.decisions.audit.writer import trail_of
from rationale_service.decisions.decider import decisions_of
from rationale_service.decisions.portfolio import decide_portfolio, read_portfolio, trail_for
from rationale_service.decisions.rows import DecidingEntry
from rationale_service.errors import UndecidedError
from rationale_service.settings import Settings
from tests.compiler.trees.test_text_files import AGE, CODE, HOUSING, model
from tests.service.decisions.audit.conftest import key_pair
from tests.service.decisions.decided import INSTANCES, WORDS, Decided


def table(folder: Path, rows: Sequence[dict[str, Any]], name: str = "rows.csv") -> Path:
    with (folder / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return folder / name


def decide(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["decide", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def with_rounded_values(decision: dict[str, Any]) -> dict[str, Any]:
    reasons = [{**reason, "value": rounded(reason["value"])} for reason in decision["reasons"]]
    return {**decision, "id": None, "reasons": reasons}


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return float(np.float32(value)) if isinstance(value, float) else value


@pytest.fixture
def settings(decided: Decided, tmp_path: Path) -> Settings:
    """The gateway's repository, with a trail of its own."""
    return Settings(repository=decided.settings.repository, state=tmp_path / "state")


@pytest.mark.parametrize("name", ["net", "once", "margin", "words", "credit"])
def test_rows_of_a_file_are_decided_as_the_gateway_does(
    decided: Decided, tmp_path: Path, name: str, settings: Settings
) -> None:
    """Bit for bit, but for values of features: a file's are told as the model takes them."""
    rows = [row for row in INSTANCES[name] if not any(isinstance(cell, list) for cell in row.values())]
    file, save = table(tmp_path, rows), tmp_path / "decisions.jsonl"
    status, output, _ = decide(name, "--input", file, "--save", save, "--repository", settings.repository)
    assert (status, output.split(":")[0]) == (0, str(save))
    saved_lines = lines(save)
    assert [line["row"] for line in saved_lines] == list(range(len(rows)))
    answers = [decided.answers[decision] for decision in decided.ids[name]]
    expected = [
        gateway_answer for gateway_answer, row in zip(answers, INSTANCES[name], strict=True) if row in rows
    ]
    for line, answer in zip(saved_lines, expected, strict=True):
        assert with_rounded_values(line["decision"]) == with_rounded_values(answer)


def test_a_table_of_decisions(decided: Decided, tmp_path: Path, settings: Settings) -> None:
    file, save = table(tmp_path, INSTANCES["net"]), tmp_path / "decisions.csv"
    save.write_text("an older one")
    status, output, _ = decide("net", "--input", file, "--save", save, "--repository", settings.repository)
    assert status == 0
    with save.open() as opened:
        table_rows = list(csv.DictReader(opened))
    answers = [decided.answers[decision_id] for decision_id in decided.ids["net"]]
    assert [row["decision"] for row in table_rows] == [answer["decision"] for answer in answers]
    for row, answer in zip(table_rows, answers, strict=True):
        assert float(row["score"]) == answer["score"]
        codes = [row[f"reason_{k}_code"] for k in (1, 2)]
        assert [code for code in codes if code] == [reason["code"] for reason in answer["reasons"]]
        assert "reason_4_code" not in row
        assert row["fault"] == ""
    counts = {outcome: sum(a["decision"] == outcome for a in answers) for outcome in ("approve", "decline")}
    assert all(f"{count} {outcome}" in output for outcome, count in counts.items() if count)
    assert not list(tmp_path.glob("*.partial"))
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("file_type", [".csv", ".parquet"])
def test_columns_to_keep_stand_beside_the_decisions_of_one_file(
    tmp_path: Path, settings: Settings, file_type: str
) -> None:
    rows = [{"application": 4711 + i, "branch": "Łódź", **row} for i, row in enumerate(INSTANCES["net"])]
    file = table(tmp_path, rows)
    if file_type == ".parquet":
        file = tmp_path / "rows.parquet"
        parquet.write_table(pa.Table.from_pylist(rows), file)
    ids = [row["application"] if file_type == ".parquet" else str(row["application"]) for row in rows]
    for kind in (".csv", ".jsonl", ".parquet"):
        save = tmp_path / f"decisions{kind}"
        words = ("net", "--input", file, "--save", save, "--keep", "application, branch,bankruptcies")
        assert decide(*words, "--repository", settings.repository)[0] == 0
        if kind == ".csv":
            with save.open() as opened:
                table_rows = list(csv.DictReader(opened))
            assert [row["application"] for row in table_rows] == [str(decision_id) for decision_id in ids]
            assert [row["bankruptcies"] for row in table_rows] == [str(row["bankruptcies"]) for row in rows]
        else:
            table_ = parquet.read_table(save).to_pylist() if kind == ".parquet" else lines(save)
            table_rows = [line.get("kept", line) for line in table_]
            assert [row["application"] for row in table_rows] == ids
        assert {row["branch"] for row in table_rows} == {"Łódź"}


def test_columns_that_cannot_be_kept_are_refused(tmp_path: Path, settings: Settings) -> None:
    file, to = table(tmp_path, INSTANCES["net"]), ("--repository", settings.repository)
    array = tmp_path / "rows.npy"
    np.save(array, np.zeros((2, 5), np.float32))
    for columns, keep, message in (
        (file, "absent", "no column 'absent'"),
        (file, "score", "['score'] to keep"),
        (array, "branch", "columns branch need a table"),
    ):
        words = ("margin", "--input", columns, "--save", tmp_path / "d.csv", "--keep", keep)
        status, _, errors = decide(*words, *to)
        assert status == 2
        assert message in " ".join(errors.split())


def test_rows_without_a_decision_are_told_beside_the_others(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided, calls = decisions_of, iter(range(len(INSTANCES["net"])))

    async def one_is_refused(*arguments: Any) -> list[dict[str, Any]]:
        if next(calls) == 1:
            raise UndecidedError("instances[0]: no reason can be given")
        return await decided(*arguments)

    monkeypatch.setattr("rationale_service.decisions.rows.decisions_of", one_is_refused)
    file, save = table(tmp_path, INSTANCES["net"]), tmp_path / "decisions.csv"
    words = ("net", "--input", file, "--save", save, "--audit")
    monkeypatch.setenv("RATIONALE_STATE", str(settings.state_folder))
    status, output, _ = decide(*words, "--repository", settings.repository)
    with save.open() as opened:
        table_rows = list(csv.DictReader(opened))
    assert status == 1
    assert "1 without a decision" in output
    assert "; its column fault says why" in output
    assert (table_rows[1]["decision"], table_rows[1]["id"], table_rows[1]["fault"]) == (
        "",
        "",
        "no reason can be given",
    )
    decided_rows = table_rows[:1] + table_rows[2:]
    assert all(row["decision"] and not row["fault"] for row in decided_rows)
    store = open_ledger(settings)
    try:
        assert [decision.id for decision in store.in_order(None, None)] == [row["id"] for row in decided_rows]
    finally:
        store.close()


def test_rows_that_the_profile_does_not_take(tmp_path: Path) -> None:
    """To the letter, also from a file."""
    of_words = {**WORDS["features"], "housing": {"reason": "H", "categories": {"own": "o", "rent": "r"}}}
    of_words["age"] = {"reason": "A", "least": 0}
    references = TreeShap(pa.table({"age": AGE, "housing": HOUSING, "code": CODE}))
    compile_model(model(), references, decision={**WORDS, "features": of_words}).write(tmp_path / "m", "w")
    words_and_numbers = [("own", 0.5), ("free", 0.5), ("Own", 0.5), ("own ", 0.5), ("rent", -0.25)]
    rows = [{"age": age, "housing": housing, "code": "1"} for housing, age in words_and_numbers]
    file, save = table(tmp_path, rows), tmp_path / "d.jsonl"
    status, output, _ = decide("w", "--input", file, "--save", save, "--repository", tmp_path / "m")
    assert status == 1
    assert "4 without a decision" in output
    faults = [line.get("fault") for line in lines(save)]
    assert faults[0] is None
    for fault, word in zip(faults[1:4], ("free", "Own", "own "), strict=True):
        assert (
            f"feature 'housing' is none of the decision profile's categories 'own', 'rent': '{word}'" in fault
        )
    assert faults[4] == "feature 'age' is less than the decision profile's 0: -0.25"


class InterruptedRunError(Exception):
    """In the place of a power cut."""


class FailingTrail:
    """Records for a while, in the trail that it stands before."""

    fault = None

    def __init__(self, trail: AuditTrail, calls: int, *, after: bool) -> None:
        self._trail = trail
        self._left = calls
        self._after = after

    async def record(self, decisions: Sequence[RecordedDecision]) -> Sequence[RecordedDecision]:
        self._left -= 1
        if self._left < 0 and not self._after:
            raise InterruptedRunError
        recorded = await self._trail.record(decisions)
        if self._left < 0:
            raise InterruptedRunError
        return recorded

    def start(self) -> None:
        self._trail.start()

    async def wait_until_open(self) -> None:
        await self._trail.wait_until_open()

    async def find(self, *arguments: Any) -> Sequence[RecordedDecision]:
        return await self._trail.find(*arguments)

    async def stop(self) -> None:
        await self._trail.stop()


@pytest.mark.parametrize("after", [False, True], ids=["before it is recorded", "before it is saved"])
@pytest.mark.parametrize("torn", [0, 7])
def test_an_interrupted_run_goes_on_and_records_nothing_twice(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, torn: int
) -> None:
    monkeypatch.setattr("rationale_service.decisions.portfolio._AT_ONCE", 2)
    rows = [*INSTANCES["net"], *INSTANCES["net"]]
    save = tmp_path / "decisions.jsonl"
    portfolio = read_portfolio(settings, "net", table(tmp_path, rows))
    with pytest.raises(InterruptedRunError):
        decide_portfolio(portfolio, settings, save, FailingTrail(trail_of(settings), 2, after=after))
    assert not save.exists()
    (partial_file,) = tmp_path.glob("*.partial")
    before = lines(partial_file)
    assert len(before) == 4
    if torn:
        partial_file.write_bytes(partial_file.read_bytes()[:-torn])
    outcomes = decide_portfolio(portfolio, settings, save, trail_for(settings, audited=True))
    assert outcomes.counts.total() == len(rows)
    assert outcomes.recorded == len(rows) - (6 if after else 4)
    saved_lines = lines(save)
    assert [line["row"] for line in saved_lines] == list(range(len(rows)))
    assert saved_lines[:4] == before
    store = open_ledger(settings)
    try:
        recorded = [decision.id for decision in store.in_order(None, None)]
        assert [fault for fault in verify(store.store, []) if not isinstance(fault, int)] == []
    finally:
        store.close()
    assert sorted(recorded) == sorted(line["decision"]["id"] for line in saved_lines)


def test_other_rows_begin_anew(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rationale_service.decisions.portfolio._AT_ONCE", 1)
    save = tmp_path / "decisions.jsonl"
    first = read_portfolio(settings, "net", table(tmp_path, INSTANCES["net"]))
    with pytest.raises(InterruptedRunError):
        decide_portfolio(first, settings, save, FailingTrail(NoTrail(), 2, after=False))
    changed = [{**row, "income": row["income"] + 1} for row in INSTANCES["net"]]
    other = read_portfolio(settings, "net", table(tmp_path, changed))
    assert other.digest != first.digest
    decide_portfolio(other, settings, save, NoTrail())
    scores = [line["decision"]["score"] for line in lines(save)]
    decide_portfolio(first, settings, save, NoTrail())
    assert [line["decision"]["score"] for line in lines(save)] != scores
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(("options", "first"), [({}, 2), ({"language": "en"}, 0)], ids=str)
def test_the_same_rows_with_another_option_begin_anew(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    first: int,
) -> None:
    """Nothing of a run without the option is taken over, although the trail has the same decisions."""
    monkeypatch.setattr("rationale_service.decisions.portfolio._AT_ONCE", 1)
    save, begun = tmp_path / "decisions.jsonl", list[int]()
    plain = read_portfolio(settings, "credit", table(tmp_path, INSTANCES["credit"][:4]))
    with pytest.raises(InterruptedRunError):
        decide_portfolio(plain, settings, save, FailingTrail(NoTrail(), 2, after=False))
    again = read_portfolio(settings, "credit", tmp_path / "rows.csv", options=options)
    assert again.digest == plain.digest
    decide_portfolio(again, settings, save, NoTrail(), lambda _, done, __: begun.append(done))
    assert (min(begun), len(lines(save))) == (first, 4)


@pytest.mark.parametrize("changed", ["graph", "profile", "explanation"])
def test_the_same_rows_by_another_entry_begin_anew(decided: Decided, changed: str) -> None:
    """Whatever of the entry is another: its graph, its profile or its explanation alone."""
    repository = Path(decided.settings.repository)
    first = DecidingEntry.of(repository, "net")
    manifest, other = first.manifest, "0" * 64
    if changed == "graph":
        changed_entry = replace(first, entry=replace(first.entry, graph_digest=other))
    elif changed == "profile":
        decision = profile_of(manifest).model_copy(update={"digest": other})
        changed_entry = replace(first, manifest=manifest.model_copy(update={"decision": decision}))
    else:
        digests = manifest.digests.model_copy(update={"explanation": other})
        changed_entry = replace(first, manifest=manifest.model_copy(update={"digests": digests}))
    rows = INSTANCES["net"]
    assert first.digest(rows) == DecidingEntry.of(repository, "net").digest(rows)
    assert changed_entry.digest(rows) != first.digest(rows) != first.digest(rows[::-1])


def test_a_second_run_finds_what_the_first_recorded_also_after_an_erasure(
    decided: Decided, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file, signing = tmp_path / "inputs.key", key_pair(tmp_path).private_file
    key_file.write_bytes(bytes(range(32)))
    monkeypatch.setenv("RATIONALE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("RATIONALE_AUDIT_KEY_FILE", str(key_file))
    monkeypatch.setenv("RATIONALE_AUDIT_INPUTS", "sealed")
    file, save = table(tmp_path, INSTANCES["net"]), tmp_path / "decisions.jsonl"
    to = ("--repository", decided.settings.repository)
    words = ("net", "--input", file, "--save", save, "--audit", *to)
    count = len(INSTANCES["net"])
    assert decide(*words)[1].endswith(f"; in the audit trail: 0 found, {count} new\n")
    first = lines(save)
    assert decide(*words)[1].endswith(f"; in the audit trail: {count} found, 0 new\n")
    assert lines(save) == first
    gone = next(line for line in first if line["decision"]["reasons"])
    erase = ["audit", "erase", gone["decision"]["id"], "--key", str(signing), *map(str, to)]
    assert CliRunner().invoke(app, erase).exit_code == 0
    status, output, _ = decide(*words)
    assert (status, output.split("; ")[-1]) == (0, f"in the audit trail: {count} found, 0 new\n")
    for before, line in zip(first, lines(save), strict=True):
        if before["row"] != gone["row"]:
            assert line == before
            continue
        assert line["decision"]["id"] == before["decision"]["id"]
        assert line["decision"]["decision"] == before["decision"]["decision"]
        assert "were erased" in line["decision"]["warnings"][-1]
        values = [reason["value"] for reason in line["decision"]["reasons"]]
        assert all(reason_values is None or set(reason_values.values()) == {None} for reason_values in values)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("net", "--save", "decisions.xls"), "its name must end in .csv, .jsonl, .parquet"),
        (("absent", "--save", "decisions.csv"), "no model 'absent'"),
        (("net", "--save", "missing/decisions.csv"), "cannot be written: No such file or directory"),
        (("net", "--save", "decisions.csv", "--input", "absent.csv"), "absent.csv"),
    ],
)
def test_what_cannot_be_done(
    settings: Settings, tmp_path: Path, words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    input_option = ["--input", str(table(tmp_path, INSTANCES["net"]))] if "--input" not in words else []
    status, _, err = decide(*words, *input_option, "--repository", settings.repository)
    assert status == 2
    assert message in err


def test_a_trail_that_is_off_cannot_be_asked_for(settings: Settings) -> None:
    with pytest.raises(InvalidOptionError, match="--audit: RATIONALE_AUDIT=off"):
        trail_for(settings.model_copy(update={"audit": SecretStr("off")}), audited=True)
