"""The rows that a written entry explains, from files and Arrow batches, in the model's dtypes."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from rationale.artifact.compiled import Compiled, demand_texts
from rationale.errors import InvalidOptionError
from rationale.references.of_model import text_columns
from rationale.schema.manifest import DATATYPES, Manifest
from rationale.tables.files import Columns, Table, read_rows


def read_inputs(
    compiled: Compiled, file: Path, *, any_text: bool = False, compare_with: Path | None = None
) -> dict[str, np.ndarray]:
    """Return the rows of a file in the model's dtypes, by input name; a table's columns are found by name.

    Args:
        compare_with: a file with the only reference of each row, or one for all.
        any_text: True to allow texts that the fitted model refuses; decisions name these row by row.

    Raises:
        InvalidOptionError, InvalidReferencesError: an error with advice, if the rows do not fit.
    """
    table = read_table(file, compiled.manifest)
    check_table(str(file), table, compiled.manifest)
    if compare_with is None:
        return _fit_rows(compiled, table.rows, any_text=any_text)
    partners = read_table(compare_with, compiled.manifest)
    check_table(str(compare_with), partners, compiled.manifest)
    return _fit_rows(compiled, table.rows, any_text=any_text, compare_with=partners.rows)


def inputs_of_arrow(compiled: Compiled, batch: Any, *, any_text: bool = False) -> dict[str, np.ndarray]:
    """Return the rows of an Arrow record batch as `read_inputs` does those of a file."""
    return _fit_rows(compiled, batch, any_text=any_text)


def _fit_rows(
    compiled: Compiled, rows: Any, *, any_text: bool, compare_with: Any = None
) -> dict[str, np.ndarray]:
    inputs = compiled.fit(rows, compare_with)
    if not any_text:
        demand_texts(compiled.manifest, inputs)
    return inputs


def read_table(file: Path, manifest: Manifest) -> Table:
    """Read rows of an entry's inputs from a file; raise InvalidReferencesError."""
    return read_rows(file, *_columns(manifest))


def _columns(manifest: Manifest) -> tuple[Columns, Collection[str]]:
    """Return the columns in which a table holds the inputs, and those of them that hold text."""
    names = own_names(manifest)
    texts = [spec.name for spec in manifest.inputs if spec.datatype == DATATYPES["STRING"]]
    return names, text_columns(names, texts)


def own_names(manifest: Manifest) -> Columns:
    """Return the feature names that someone gave, which find a table's columns, or None.

    None stands for x[0], x[1] …. Several inputs of one feature each are its columns by their own names.
    """
    if len(manifest.inputs) > 1 and all(spec.is_column for spec in manifest.inputs):
        feature_names = {e.tensor.name: e.given_names for e in manifest.explained}
        return {spec.name: feature_names.get(spec.name) or (spec.name,) for spec in manifest.inputs}
    named = {e.tensor.name: e.given_names for e in manifest.explained if e.tensor in manifest.inputs}
    names = {name: columns for name, columns in named.items() if columns}
    if len(names) < len(manifest.explained):
        return None
    return names if len(names) > 1 else next(iter(names.values()))


def check_table(file: str, table: Table, manifest: Manifest) -> None:
    """Raise InvalidOptionError if an array without a name cannot be the model's rows."""
    if None not in table.arrays:
        return
    names = [spec.name for spec in manifest.inputs]
    if len(names) > 1:
        raise InvalidOptionError(
            f"{file}: one array, but the model has the inputs {names}. Give a .npz file with an array for "
            "each, or compile the entry with --features INPUT=A,B,C for each and give a table with these "
            "columns."
        )
    width = math.prod(manifest.inputs[0].shape)
    if table.columns is not None and len(table.columns) != width:
        raise InvalidOptionError(
            f"{file}: has {len(table.columns)} columns, but the model takes {width} features. Remove the "
            "other columns, or compile the entry with --features, which finds columns by name."
        )
