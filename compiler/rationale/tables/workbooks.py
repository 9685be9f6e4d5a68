"""Excel workbooks (.xlsx) with one sheet of rows, read and written row by row."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from rationale.errors import InvalidOptionError
from rationale.tables.frames import is_missing

MOST_COLUMNS = 16_384  # limits of spreadsheets
MOST_ROWS = 1_048_576
_MOST_CHARACTERS = 32_767  # of a cell
_TYPES = (bool, int, float, Decimal, date, time, timedelta)
_OLD_OR_ENCRYPTED = b"\xd0\xcf\x11\xe0"  # an OLE file


@dataclass(frozen=True)
class CellFault:
    """A cell without a usable value, and the reason."""

    reason: str


def read_workbook(file: BinaryIO) -> Iterator[tuple[int, list[Any]]]:
    """Yield the rows of a workbook's only sheet that has any: a row's number in Excel, and its cells.

    All rows are as long as the first one, or longer. Cells are None, numbers, texts, dates or a CellFault. A
    formula stands for the value that was saved with it. Empty rows at the start and at the end are left out.

    Raises:
        ValueError: if several sheets have cells, or an empty row divides the rows.
    """
    if file.read(len(_OLD_OR_ENCRYPTED)) == _OLD_OR_ENCRYPTED:
        raise ValueError("it is an .xls, or has a password: save it as .xlsx without one")
    sheets = {sheet.title: sheet for sheet in _sheets(file, data_only=True)}
    rows = {name: _rows(sheet, _formulas_of(file, name)) for name, sheet in sheets.items()}
    filled = {name: first for name, iterator in rows.items() if (first := next(iterator, None)) is not None}
    if len(filled) > 1:
        raise ValueError(f"the sheets {list(filled)} all have cells: keep only one of them in this file")
    for name, first in filled.items():
        yield first
        width, last = len(first[1]), first[0]
        for number, cells in rows[name]:
            if number > last + 1:
                raise ValueError(f"row {last + 1} is empty, but rows follow it: remove the empty row")
            last = number
            yield number, cells + [None] * (width - len(cells))


def _sheets(file: BinaryIO, *, data_only: bool) -> list[Any]:
    import openpyxl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles that it does not know
        workbook = openpyxl.load_workbook(file, read_only=True, data_only=data_only, keep_links=False)
    for sheet in workbook.worksheets:
        sheet.reset_dimensions()  # some programs write wrong ones
    return list(workbook.worksheets)


def _formulas_of(file: BinaryIO, name: str) -> Callable[[], set[str]]:
    """Return a function that reads the coordinates of a sheet's formulas, once."""

    @cache
    def formulas() -> set[str]:
        sheet = next(sheet for sheet in _sheets(file, data_only=False) if sheet.title == name)
        return {cell.coordinate for row in sheet.rows for cell in row if cell.data_type == "f"}

    return formulas


def _rows(sheet: Any, formulas: Callable[[], set[str]]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the rows that are not empty, without empty cells at the end."""
    for number, row in enumerate(sheet.rows, 1):
        if number > MOST_ROWS:
            raise ValueError(f"more than {MOST_ROWS} rows")
        cells = [_value(cell, formulas) for cell in row]
        while cells and cells[-1] is None:
            del cells[-1]
        if cells:
            yield number, cells


def _value(cell: Any, formulas: Callable[[], set[str]]) -> Any:
    value = cell.value
    if value is None and cell.data_type == "n" and hasattr(cell, "coordinate"):  # formatted, or not computed
        if cell.coordinate in formulas():
            return CellFault("has a formula without a value: open the file in Excel, and save it")
        return None
    if cell.data_type == "e":
        return CellFault(f"holds the error {value}")
    return None if isinstance(value, str) and not value.strip() else value


def write_workbook(path: Path, names: Sequence[str], rows: Iterable[Iterable[Any]]) -> int:
    """Write a header and rows as the only sheet; return the number of rows.

    Texts stay texts, those that begin with "=" too. Numbers have 16 digits. NaN
    becomes an empty cell, an infinity a text. Control characters, which Excel does not take, become U+FFFD.

    Raises:
        InvalidOptionError: if there are more rows, columns or characters in a cell than Excel takes.
    """
    import openpyxl
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    if len(names) > MOST_COLUMNS:
        raise InvalidOptionError(
            f"Excel has at most {MOST_COLUMNS} columns, but the table has {len(names)}: save .csv."
        )
    workbook = openpyxl.Workbook(write_only=True)
    sheet = workbook.create_sheet("rows")

    def cell_of(value: Any) -> Any:
        plain = _plain(value)
        if not isinstance(plain, str):
            return plain
        if len(plain) > _MOST_CHARACTERS:
            raise InvalidOptionError(f"a text has more than {_MOST_CHARACTERS} characters: save .csv.")
        cell = WriteOnlyCell(sheet, ILLEGAL_CHARACTERS_RE.sub("\ufffd", plain))
        cell.data_type = "s"  # else "=1+1" would be a formula
        cell.quotePrefix = plain[:1] in "=+-@"  # and become one when somebody edits it
        return cell

    count = 0
    try:
        sheet.append(list(map(cell_of, names)))
        for count, row in enumerate(rows, 1):
            if count >= MOST_ROWS:
                raise InvalidOptionError(
                    f"Excel has at most {MOST_ROWS} rows: save .csv or .parquet, or fewer rows."
                )
            sheet.append(list(map(cell_of, row)))
    finally:
        sheet.close()
    workbook.save(path)
    return count


def _plain(value: Any) -> Any:
    """Return a value as one of the types of a cell; a text of any other type."""
    if is_missing(value):
        return None
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, float) and plain in (float("inf"), float("-inf")):
        return str(plain)
    has_zone = getattr(plain, "tzinfo", None) is not None
    return plain if isinstance(plain, _TYPES) and not has_zone else str(plain)
