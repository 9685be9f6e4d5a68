"""Columns of recourse in a portfolio: the cheapest plan of each row that is not approved."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from rationale import decide_batches, decisions_schema
from rationale.errors import InvalidOptionError
from rationale.portfolios.decisions import RECOURSE_COLUMNS
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.records.replay import Replayer
from rationale_service.settings import Settings
from tests.service.decisions.portfolio.test_portfolio import decide, lines
from tests.service.decisions.recourse.test_recourse import ROWS, opened, write_all

NAMES = ("recourse_changes", "recourse_cost")
MODELS = ["net", "once", "trees", "words"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recourse") / "models"
    write_all(folder)
    return folder


@pytest.fixture
def trail(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of a trail of its own, which commands use too."""
    monkeypatch.setenv("RATIONALE_STATE", str(tmp_path / "state"))
    return Settings(repository=folder, state=tmp_path / "state")


def cheapest(folder: Path, name: str) -> list[Any]:
    """Return the changes and the cost of each row's cheapest plan, as the library finds it."""
    table, compiled = pa.Table.from_pylist(ROWS[name]), opened(folder, name)
    found = [each.plans for each in compiled.recourse(table)]
    return [(dict(plans[0].changes), plans[0].cost) if plans else (None, None) for plans in found]


def table(tmp_path: Path, name: str) -> Path:
    parquet.write_table(pa.Table.from_pylist(ROWS[name]), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "folder"])
def test_a_row_that_is_not_approved_has_its_cheapest_plan(
    folder: Path,
    tmp_path: Path,
    name: str,
    kind: str,
) -> None:
    rows, save = table(tmp_path, name), tmp_path / f"saved.{kind}"
    given = rows
    if kind == "folder":
        (tmp_path / "in").mkdir()
        rows.rename(tmp_path / "in" / "rows.parquet")
        given, save = tmp_path / "in", tmp_path / "out"
    code, _, fault = decide(name, "--input", given, "--save", save, "--repository", folder, "--recourse")
    assert code == 0, fault
    if kind == "jsonl":
        answers = [line["decision"] for line in lines(save)]
        assert all(("recourse" in each) == (each["decision"] != "approve") for each in answers)
        found = [[column.cell(each) for column in RECOURSE_COLUMNS] for each in answers]
        outcomes = [each["decision"] for each in answers]
    else:
        text = csv.ConvertOptions(
            column_types={"recourse_changes": pa.string(), "recourse_cost": pa.float64()},
            strings_can_be_null=True,
        )
        read = (
            csv.read_csv(save, convert_options=text)
            if kind == "csv"
            else parquet.read_table(save / "rows.parquet" if kind == "folder" else save)
        )
        assert read.schema.names[-2:] == [*NAMES]
        assert read.schema.field("recourse_cost").type == pa.float64()
        found = [[row[key] for key in NAMES] for row in read.to_pylist()]
        outcomes = read.column("decision").to_pylist()
    due = cheapest(folder, name)
    for (changes, cost), (own, own_cost), outcome in zip(found, due, outcomes, strict=True):
        if outcome == "approve" or own is None:
            assert (changes, cost) == (None, None)
        else:
            assert cost == pytest.approx(own_cost, rel=1e-3)
            assert json.loads(changes).keys() == own.keys()
    assert any(cost is not None for _, cost in found)


def test_a_profile_without_actions_has_no_such_columns(folder: Path, tmp_path: Path) -> None:
    rows = table(tmp_path, "trees")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.parquet").write_bytes(rows.read_bytes())
    for given, save in ((rows, "a.csv"), (tmp_path / "in", "out")):
        words = ("silent", "--input", given, "--save", tmp_path / save, "--repository", folder, "--recourse")
        code, _, fault = decide(*words)
        assert (code, "give actionable" in fault) == (2, True), fault
        assert not (tmp_path / save).exists()
    for call in (
        lambda: decide_batches(folder / "silent", [], recourse=True),
        lambda: decisions_schema(folder / "silent", recourse=True),
    ):
        with pytest.raises(InvalidOptionError, match="give actionable"):
            call()


def test_without_the_option_files_are_as_before(folder: Path, tmp_path: Path) -> None:
    rows = table(tmp_path, "trees")
    assert decide("trees", "--input", rows, "--save", tmp_path / "a.csv", "--repository", folder)[0] == 0
    assert "recourse" not in (tmp_path / "a.csv").read_text()
    for asked in (False, True):
        schema = decisions_schema(folder / "trees", recourse=asked)
        assert ("recourse_cost" in schema.names) == asked


@pytest.mark.parametrize("name", MODELS)
def test_batches_have_the_columns_too(folder: Path, name: str) -> None:
    batches = pa.Table.from_pylist(ROWS[name]).to_batches(max_chunksize=2)
    answers = pa.Table.from_batches(decide_batches(folder / name, batches, recourse=True))
    assert answers.schema == decisions_schema(folder / name, recourse=True)
    found = [(row["recourse_changes"], row["recourse_cost"]) for row in answers.to_pylist()]
    for (changes, cost), (own, own_cost) in zip(found, cheapest(folder, name), strict=True):
        assert (None if changes is None else json.loads(changes).keys()) == (
            None if own is None else own.keys()
        )
        assert cost == (None if own_cost is None else pytest.approx(own_cost, rel=1e-3))


def test_it_is_recorded_replayed_and_found_again(trail: Settings, folder: Path, tmp_path: Path) -> None:
    rows, save = table(tmp_path, "trees"), tmp_path / "a.jsonl"
    words = ("trees", "--input", rows, "--save", save, "--repository", folder, "--audit")
    code, told, fault = decide(*words, "--recourse")
    assert (code, "0 found, 6 new" in told) == (0, True), fault
    answers = [line["decision"] for line in lines(save)]
    ledger, replayer = open_ledger(trail), Replayer(trail)
    try:
        for answer in answers:
            record = ledger.read(answer["id"])
            assert record.answer == answer
            assert not replayer.replay(record).differences
    finally:
        ledger.close()
    code, told, _ = decide(*words, "--recourse")
    assert (code, "6 found, 0 new" in told) == (0, True)
    assert [line["decision"] for line in lines(save)] == answers


def test_decisions_that_were_recorded_without_have_columns_and_no_second_record(
    trail: Settings,
    folder: Path,
    tmp_path: Path,
) -> None:
    rows, save = table(tmp_path, "trees"), tmp_path / "a.parquet"
    words = ("trees", "--input", rows, "--save", save, "--repository", folder, "--audit")
    assert "6 new" in decide(*words)[1]
    ids = parquet.read_table(save).column("id").to_pylist()
    assert "6 found, 0 new" in decide(*words, "--recourse")[1]
    read = parquet.read_table(save)
    assert read.column("id").to_pylist() == ids
    assert any(cost is not None for cost in read.column("recourse_cost").to_pylist())
    ledger = open_ledger(trail)
    try:
        assert all("recourse" not in ledger.read(each).answer for each in ids)
    finally:
        ledger.close()


def test_a_folder_that_was_decided_without_is_decided_again(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table(tmp_path, "trees").rename(tmp_path / "in" / "rows.parquet")
    words = ("trees", "--input", tmp_path / "in", "--save", tmp_path / "out", "--repository", folder)
    assert "wrote 1 files" in decide(*words)[1]
    assert "wrote 1 files" in decide(*words, "--recourse")[1]
    assert "wrote 0 files" in decide(*words, "--recourse")[1]
    assert "recourse_cost" in parquet.read_schema(tmp_path / "out" / "rows.parquet").names


def test_an_interrupted_run_goes_on_with_runs_of_its_own_kind(folder: Path, tmp_path: Path) -> None:
    """Rows that a run without recourse left behind lack it."""
    from rationale_service.decisions.audit.trail import NoTrail
    from rationale_service.decisions.portfolio import decide_portfolio, read_portfolio

    rows, seen = table(tmp_path, "trees"), list[int]()
    own = Settings(repository=folder, state=tmp_path / "state")

    def interrupted(_: str, done: int, __: int) -> None:
        seen.append(done)
        if done == 3:
            raise KeyboardInterrupt

    for recourse in (False, True):
        portfolio = read_portfolio(own, "trees", rows, options={"recourse": recourse})
        with pytest.raises(KeyboardInterrupt):
            decide_portfolio(portfolio, own, tmp_path / "a.csv", NoTrail(), interrupted)
    assert seen == [0, 1, 2, 3] * 2  # each row shows
    assert len({file.name for file in tmp_path.glob("a.csv.*.partial")}) == 2
