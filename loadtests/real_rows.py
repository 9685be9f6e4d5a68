"""Rows of a real table as a network of 24 features takes them.

A table is a file of text with a line for each row: separated by commas, semicolons or tabs, with or without
names of columns. Columns of words become numbers; every column is standardised. A column of identifiers and a
last column of two values (the label) are left out. What the columns mean is not needed: what is measured is
time, and every system is asked about the same rows.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SUFFIXES = (".csv", ".tsv", ".txt", ".data")
IDENTIFIERS = ("", "id", "index")
_FEW = 2  # lines make no table


class UnusableTableError(Exception):
    """The message says what is wrong with the table."""


def find(place: Path) -> Path:
    """The file itself, or the largest table of a folder. Raises UnusableTableError."""
    if place.is_file():
        return place
    tables = [path for path in place.glob("*") if path.suffix in SUFFIXES]
    if not tables:
        raise UnusableTableError(f"{place}: neither a file nor a folder with a table ({', '.join(SUFFIXES)})")
    return max(tables, key=lambda path: path.stat().st_size)


def rows_and_references(
    place: Path, rows: int, references: int, width: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows [≤ N, width] and references [K, width], float32; apart where the table has enough rows for both.

    Raises:
        UnusableTableError: fewer than K distinct rows. Equal references would make less work of more.
    """
    every = drawn(place, width, seed)
    if len(every) < references:
        raise UnusableTableError(
            f"{place}: {len(every)} distinct rows, and {references} references are needed; "
            "take another table or --workload"
        )
    return every[-rows:], every[:references]


def drawn(place: Path, width: int, seed: int) -> np.ndarray:
    """The distinct rows of a table in a random order, [M, width]: its first columns, 0 where it has fewer.

    Raises:
        UnusableTableError: it is none.
    """
    columns = _standardised(_cells(find(place)))
    table = np.zeros((len(columns[0]), width), np.float32)
    for i, column in enumerate(columns[:width]):
        table[:, i] = column
    distinct = np.unique(table, axis=0)
    return np.random.default_rng(seed).permutation(distinct)


def _cells(path: Path) -> list[Sequence[str]]:
    """The columns that are features, each [M]."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableTableError(f"{path}: {error}") from error
    separator = max("\t;,", key=text.partition("\n")[0].count)
    lines = [line for line in csv.reader(text.splitlines(), delimiter=separator) if line]
    if len(lines) < _FEW or len({len(line) for line in lines}) > 1:
        raise UnusableTableError(f"{path}: no table: its lines have different numbers of cells, or are few")
    names = [] if any(_number(cell) is not None for cell in lines[0]) else lines.pop(0)
    columns: list[Sequence[str]] = list(zip(*lines, strict=True))
    if len(columns) > 1 and len(set(columns[-1])) == 2:  # a label
        columns.pop()
    return [
        column for i, column in enumerate(columns) if not names or names[i].strip().lower() not in IDENTIFIERS
    ]


def _standardised(columns: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Mean 0 and deviation 1, each [M]; words count as their place in the alphabet."""
    found = []
    for column in columns:
        numbers = [_number(cell) for cell in column]
        values = np.unique(column, return_inverse=True)[1] if None in numbers else np.array(numbers)
        spread = float(np.std(values, dtype=np.float64))
        found.append((values - np.mean(values, dtype=np.float64)) / (spread or 1.0))
    return found


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if np.isfinite(value) else None
