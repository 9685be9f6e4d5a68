"""Rows of a real table as a network of 24 features takes them.

A table is a file of text with a line for each row, with or without names of columns, that pandas can read.
Columns of words become numbers; every column is standardised. A column of identifiers and a last column of
two values (the label) are left out. What the columns mean is not needed: what is measured is time, and every
system is asked about the same rows.
"""

from pathlib import Path

import numpy as np
import pandas

SUFFIXES = (".csv", ".tsv", ".txt", ".data")
IDENTIFIERS = ("", "id", "index")


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
    columns = [_standardised(values) for _, values in _features(find(place)).items()][:width]
    table = np.zeros((len(columns[0]), width), np.float32)
    table[:, : len(columns)] = np.stack(columns, axis=1)
    return np.random.default_rng(seed).permutation(np.unique(table, axis=0))


def _features(path: Path) -> pandas.DataFrame:
    try:
        first, _, _ = path.read_text(encoding="utf-8-sig").partition("\n")
        separator = max("\t;,", key=first.count)
        table = pandas.read_csv(path, sep=separator, header=None, dtype=str, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UnusableTableError(f"{path}: no table: {error}") from error
    if table.isna().to_numpy().any() or len(table) < 2:
        raise UnusableTableError(f"{path}: no table: its lines have different numbers of cells, or are few")
    if pandas.to_numeric(table.iloc[0], errors="coerce").isna().all():
        table = table[1:].set_axis(table.iloc[0].str.strip().str.lower(), axis=1)
        table = table.drop(columns=[name for name in IDENTIFIERS if name in table])
    label = table.shape[1] > 1 and table.iloc[:, -1].nunique() == 2
    return table.iloc[:, :-1] if label else table


def _standardised(cells: pandas.Series) -> np.ndarray:
    """Mean 0 and deviation 1, [M]; words count as their place in the alphabet."""
    values = pandas.to_numeric(cells, errors="coerce").to_numpy(np.float64)
    if not np.isfinite(values).all():
        values = np.unique(cells, return_inverse=True)[1].astype(np.float64)
    return np.asarray((values - values.mean()) / (values.std() or 1.0))
