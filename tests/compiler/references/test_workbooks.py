"""Excel workbooks: read with the values of formulas, refused by cell and sheet, and written as they were."""

import zipfile
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import polars as pl
import pytest

from rationale import InvalidOptionError, InvalidReferencesError
from rationale.tables.files import read_columns, read_rows
from rationale.tables.workbooks import write_workbook


def save(path: Path, *rows: list[Any], sheets: dict[str, list[list[Any]]] | None = None) -> Path:
    """Write rows into the first sheet, and others into further ones."""
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name, cells in (sheets or {}).items():
        sheet = book.create_sheet(name)
        for row in cells:
            sheet.append(row)
    book.save(path)
    return path


def with_value(path: Path, formula: str, value: str, kind: str = "n") -> Path:
    """Store a value beside a formula, as Excel does when it saves."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    old = f"><f>{formula}</f><v /></c>".encode()
    assert members[sheet].count(old) == 1
    members[sheet] = members[sheet].replace(old, f' t="{kind}"><f>{formula}</f><v>{value}</v></c>'.encode())
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_the_rows_are_those_of_a_csv(tmp_path: Path) -> None:
    rows = [["id", "age", "income"], ["a", 31, 2.5], ["b", None, 1e-7], ["007", True, " 12 "]]
    book = save(tmp_path / "r.xlsx", *rows)
    (tmp_path / "r.csv").write_text("id,age,income\na,31,2.5\nb,,1e-7\n007,1, 12 \n")
    for columns in (["income", "age"], ["age"]):
        here, there = (read_rows(tmp_path / f"r.{kind}", columns) for kind in ("xlsx", "csv"))
        np.testing.assert_array_equal(here.arrays[None], there.arrays[None])
        assert here.columns == there.columns == tuple(columns)
    assert read_columns(book, ["id"], 3) == {"id": ["a", "b", "007"]}


def test_numbers_need_no_header_and_empty_edges_do_not_count(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    for cell, value in {"A3": 1, "B3": 2.5, "A4": 3, "B4": None, "A5": None, "B5": 4}.items():
        sheet[cell] = value
    sheet["D9"].number_format = "0.00"  # formatted and empty
    book.create_sheet("empty")
    book.save(tmp_path / "r.xlsx")
    table = read_rows(tmp_path / "r.xlsx")
    np.testing.assert_array_equal(table.arrays[None], [[1, 2.5], [3, np.nan], [np.nan, 4]])
    assert table.columns is None


def test_a_formula_stands_for_its_value(tmp_path: Path) -> None:
    book = save(tmp_path / "r.xlsx", ["a", "b"], [1, "=A2*2"])
    with pytest.raises(InvalidReferencesError, match=r"row 2, column 'b': the cell has a formula without"):
        read_rows(book)
    assert read_rows(book, ["a"]).arrays[None].tolist() == [[1.0]]
    assert read_rows(with_value(book, "A2*2", "2")).arrays[None].tolist() == [[1.0, 2.0]]


def test_a_formula_may_be_empty_or_an_error(tmp_path: Path) -> None:
    book = save(tmp_path / "r.xlsx", ["a", "b", "c"], [1, '=""', "=1/0"], [2, 3, 4])
    with_value(with_value(book, '""', "", "str"), "1/0", "#DIV/0!", "e")
    np.testing.assert_array_equal(read_rows(book, ["a", "b"]).arrays[None], [[1, np.nan], [2, 3]])
    for texts in ((), ("c",)):
        with pytest.raises(
            InvalidReferencesError, match=r"row 2, column 'c': the cell holds the error #DIV/0!"
        ):
            read_rows(book, ["c"], texts)


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "date": ({"rows": [["a"], [date(2026, 1, 2)]]}, r"row 2, column 'a': '2026-01-02 00:00:00' is not a num"),
    "words": ({"rows": [["a"], [1], ["x"]]}, r"row 3, column 'a': 'x' is not a number. Encode or drop it"),
    "sheets": ({"rows": [["a"], [1]], "sheets": {"b": [[2]]}}, r"\['Sheet', 'b'\] all have cells"),
    "gap": ({"rows": [["a"], [1], [], [2]]}, "row 3 is empty"),
    "longer": ({"rows": [["a"], [1], [1, 2]]}, "row 3 has 2 cells, not 1"),
    "header": ({"rows": [["a"]]}, "a header and no rows"),
    "nothing": ({"rows": []}, "empty: at least one row is needed"),
    "twice": ({"rows": [["a", "a"], [1, 2]]}, r"more than one column is named 'a'"),
    "missing": ({"rows": [["b"], [1]]}, r"no column 'a'; it has 'b'"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_name_the_cell(name: str, tmp_path: Path) -> None:
    cells, message = FAULTS[name]
    book = save(tmp_path / "r.xlsx", *cells["rows"], sheets=cells.get("sheets"))
    with pytest.raises(InvalidReferencesError, match=message):
        read_rows(book, ["a"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "has a password: save it as .xlsx without"),
        (b"a,b\n1,2\n", "damaged"),
        (b"", "damaged"),
    ],
    ids=["password", "csv", "empty"],
)
def test_other_files_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "r.xlsx").write_bytes(data)
    with pytest.raises(InvalidReferencesError, match=message):
        read_rows(tmp_path / "r.xlsx")


def test_entities_of_xml_are_refused(tmp_path: Path) -> None:
    book = save(tmp_path / "r.xlsx", ["a"], [1])
    sheet, bomb = "xl/worksheets/sheet1.xml", b'<!DOCTYPE x [<!ENTITY a "1"><!ENTITY b "&a;&a;&a;">]>'
    with zipfile.ZipFile(book) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert b"<v>1</v>" in members[sheet]
    members[sheet] = bomb + members[sheet].replace(b"<v>1</v>", b"<v>&b;</v>")
    with zipfile.ZipFile(book, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(InvalidReferencesError, match="damaged"):
        read_rows(book)


def test_texts_stay_texts(tmp_path: Path) -> None:
    cells = ["=1+1", "+1", "-cmd|' /C calc'!A0", "@SUM(1)", "#N/A", " a ", "007", "ä\nb"]
    assert write_workbook(tmp_path / "w.xlsx", ["=name"], ([cell] for cell in cells)) == len(cells)
    book = openpyxl.load_workbook(tmp_path / "w.xlsx")
    written = [cell for (cell,) in book.active.iter_rows()]
    assert [cell.value for cell in written] == ["=name", *cells]
    assert {cell.data_type for cell in written} == {"s"}
    assert [cell.quotePrefix for cell in written[1:5]] == [True] * 4
    assert read_columns(tmp_path / "w.xlsx", ["=name"], len(cells)) == {"=name": cells}


def test_values_of_all_types_are_written(tmp_path: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4)
    row = [np.float32(0.5), np.int64(7), np.True_, np.nan, None, -np.inf, at, at.replace(tzinfo=UTC), ["x"]]
    write_workbook(tmp_path / "w.xlsx", list("abcdefghi"), [[*row[:8], "a\x0bb"], [np.str_("s"), *row[1:]]])
    _, first, second = openpyxl.load_workbook(tmp_path / "w.xlsx").active.iter_rows(values_only=True)
    assert first == (0.5, 7, True, None, None, "-inf", at, "2026-01-02 03:04:00+00:00", "a\ufffdb")
    assert (second[0], second[8]) == ("s", "['x']")


def test_what_excel_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOptionError, match=r"16384 columns, .* 16385"):
        write_workbook(tmp_path / "w.xlsx", [str(i) for i in range(16_385)], [])
    with pytest.raises(InvalidOptionError, match="more than 32767 characters"):
        write_workbook(tmp_path / "w.xlsx", ["a"], [["x" * 32_768]])
    monkeypatch.setattr("rationale.tables.workbooks.MOST_ROWS", 3)
    assert write_workbook(tmp_path / "w.xlsx", ["a"], [[1], [2]]) == 2
    with pytest.raises(InvalidOptionError, match=r"Excel has at most 3 rows: save \.csv"):
        write_workbook(tmp_path / "w.xlsx", ["a"], [[1], [2], [3]])


def test_pandas_and_polars_read_what_is_written(tmp_path: Path) -> None:
    write_workbook(tmp_path / "w.xlsx", ["row", "age"], [[0, 0.25], [1, np.nan]])
    table = pd.read_excel(tmp_path / "w.xlsx")
    assert table["row"].tolist() == [0, 1]
    assert table["age"][0] == 0.25
    assert np.isnan(table["age"][1])
    assert pl.read_excel(tmp_path / "w.xlsx", engine="openpyxl").to_dicts()[0] == {"row": 0, "age": 0.25}
