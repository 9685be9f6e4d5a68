"""Applicants' rows: the model's inputs, and further columns that knock-outs read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rationale.artifact.compiled import Compiled
from rationale.artifact.rows import inputs_of_arrow, read_inputs
from rationale.decisions.decided import find_knock_out_cells, knock_out_columns, read_knock_out_cells
from rationale.tables.files import read_columns


def read_applicants(
    compiled: Compiled, file: Path, columns: Sequence[str] = ()
) -> tuple[dict[str, np.ndarray], dict[str, list[Any]], set[str]]:
    """Read the rows of a file.

    Returns:
        The model's inputs; further columns, with those of knock-outs among them; the names of the latter.

    Raises:
        InvalidOptionError, InvalidReferencesError: if rows or columns do not fit.
    """
    inputs = read_inputs(compiled, file, any_text=True)
    names = knock_out_columns(compiled.manifest, inputs)
    further = read_columns(file, sorted({*columns, *names}), len(next(iter(inputs.values()))))
    return inputs, further | read_knock_out_cells(compiled.manifest, further, names), names


def applicants_of(compiled: Compiled, batch: Any) -> tuple[dict[str, np.ndarray], dict[str, list[Any]]]:
    """Return the rows of an Arrow record batch, one or more, as `read_applicants` does for a file."""
    inputs = inputs_of_arrow(compiled, batch, any_text=True)
    names = knock_out_columns(compiled.manifest, inputs)
    further = {name: batch.column(name).to_pylist() for name in names.intersection(batch.schema.names)}
    return inputs, find_knock_out_cells(compiled.manifest, inputs, further)
