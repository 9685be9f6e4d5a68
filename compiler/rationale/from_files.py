"""The compile of files: a model, its references, a decision profile."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rationale.errors import InvalidOptionError
from rationale.schema.methods import COVERS, METHODS, REFERENCES, WEIGHTS, check_options
from rationale.schema.request import Columns, CompileRequest

if TYPE_CHECKING:
    from rationale.artifact.compiled import Compiled
    from rationale.conversion.convert import Converted
    from rationale.methods.engine import Method
    from rationale.profiles.comparisons import Comparisons
    from rationale.schema.manifest import Parity
    from rationale.schema.request import Progress
    from rationale.tables.files import Table


def check_method(request: CompileRequest, *, referenced: bool) -> None:
    """Check the method and its options, without a model.

    Args:
        referenced: whether references will be given.

    Raises:
        InvalidOptionError: if the method is unknown, or options are missing, unknown or invalid.
    """
    from rationale.methods.methods import make_method

    make_method(request.method, np.zeros((1, 1)) if referenced else None, request.options)


def compile_files(
    request: CompileRequest,
    model: Path,
    references: Path | None = None,
    progress: "Progress | None" = None,
    parity: "Parity | None" = None,
) -> "Compiled":
    """Compile a model, ONNX or a fitted model's file, with the references in a file.

    Args:
        parity: the difference between an ONNX model and the fitted model, if it was converted earlier.

    Raises:
        RationaleError: the errors of `compile_model`, `read_fitted` and `read_rows`.
    """
    from rationale.compile import compile_request
    from rationale.methods.engine import request_of

    read = read_model(model, request.features, allow_pickle=request.allow_pickle, missing=request.missing)
    subject, allow_parity = read.model, request.allow_parity
    if references is None and request.method == "deepshap":  # which needs some
        request = request.model_copy(update={"method": getattr(subject, "method", "deepshap")})
    if request.categories is not None:
        subject, allow_parity = _convert_by_rows(read, request.categories, allow_parity), None
    names = None if read.fitted else request.features
    method, table = _method(request, references, read)
    if table is not None and not read.labelled:
        names = request.features or table.columns
    columns = replace(read, columns=read.columns or names)
    recorded = request_of(method)  # options as the manifest records them, from any file
    update = {
        "features": names,
        "options": recorded.options,
        "method": recorded.method,
        "allow_parity": allow_parity,
    }
    compared = {name: _method(request, file, columns)[0] for name, file in request.compare.items()}
    open_references = request.open_references is not None
    return compile_request(
        subject,
        method,
        request.model_copy(update=update),
        request.decision,
        _comparisons(request, compared),
        progress,
        stands_for=None if table is None or open_references else table.stands_for,
        parity=parity,
    )


def _convert_by_rows(read: "ModelSource", file: Path, allow_parity: float | None) -> "Converted":
    """Convert a fitted model by the rows in a file; raise InvalidOptionError if it is none."""
    from rationale.conversion.convert import convert
    from rationale.tables.files import read_rows

    if not read.fitted:
        raise InvalidOptionError(
            "--categories works only for fitted models, and this one is ONNX: leave it out."
        )
    table = read_rows(file, read.columns, read.texts, underscored=read.underscored)
    return convert(read.model, read.labelled_rows(table), allow_parity=allow_parity)


def _comparisons(request: CompileRequest, baselines: Mapping[str, "Method"]) -> "Comparisons | None":
    """Return the requested comparisons, or None."""
    from rationale.profiles.comparisons import Comparisons

    if not baselines and not request.draws:
        return None
    return Comparisons(baselines, request.draws, request.draws_seed)


def _method(
    request: CompileRequest, references: Path | None, read: "ModelSource"
) -> "tuple[Method, Table | None]":
    """Return the method, and the table in the file of references or covers."""
    from rationale.methods.methods import make_method
    from rationale.references.reference_set import OpenReferences
    from rationale.tables.files import read_rows

    k, covers = request.open_references, request.options.get(COVERS)
    file = references or (covers if isinstance(covers, Path) and k is None else None)
    if file is None:
        return make_method(request.method, None if k is None else OpenReferences(k), request.options), None
    names = {key for key, value in request.options.items() if value is not None}
    check_options(request.method, {REFERENCES, *names} if references else names)  # before a file is read
    table = read_rows(file, read.columns, read.texts, underscored=read.underscored)
    options = {**request.options, **_weights(request, file, table)}
    rows = read.labelled_rows(table)
    if references is None:
        return make_method(request.method, None, {**options, COVERS: rows}), table
    return make_method(request.method, rows if k is None else OpenReferences(k, rows), options), table


def _weights(request: CompileRequest, file: Path, table: "Table") -> dict[str, Any]:
    """Return the rows' weights, if the file has any; raise InvalidOptionError if the method takes none."""
    weights = table.unequal_weights
    if weights is None or request.open_references is not None:
        return {}
    if not METHODS[request.method].knows(WEIGHTS):
        raise InvalidOptionError(
            f"{file}: its rows have weights (centroids?), which --method {request.method} does not take; "
            "deepshap and treeshap do. Give rows of equal weight."
        )
    return {WEIGHTS: weights}


@dataclass(frozen=True)
class ModelSource:
    """A model's file, and the way to read tables of rows for it.

    Attributes:
        model: the path of an ONNX model, or a fitted model of another library.
        columns: columns to read from a table; None for all.
        texts: columns that hold text.
        labelled: whether columns are found by name rather than by position.
        underscored: whether the model's names have underscores for spaces in a table's names.
    """

    model: Any
    fitted: bool
    columns: Columns
    texts: frozenset[str]
    labelled: bool
    underscored: bool = False

    def labelled_rows(self, table: "Table") -> Any:
        """Return the table's rows, with column names if the model needs them.

        Files with text columns beside numbers hold arrays [K, 1] by name; a fitted model takes them as one
        table.
        """
        from rationale.tables.frames import Frame

        rows = table.rows
        if self.labelled and table.columns is not None and isinstance(rows, np.ndarray):
            return Frame.of_rows(rows, table.columns)
        if self.fitted and isinstance(rows, dict) and {a.shape for a in rows.values()} == {(table.count, 1)}:
            words = [a.astype(object) for a in rows.values()]
            return Frame.of_rows(np.concatenate(words, axis=1), list(rows))
        return rows


def read_model(
    model: Path,
    features: Columns = None,
    *,
    allow_pickle: bool = False,
    missing: float | None = None,
) -> ModelSource:
    """Read a model from its file.

    Args:
        features, missing: values of the fields of `CompileRequest`.

    Raises:
        RationaleError: the errors of `read_fitted`. An ONNX model is not read here.
    """
    from rationale.conversion.convert import features_of
    from rationale.conversion.files import is_fitted_file, read_fitted
    from rationale.references.of_model import columns_of_inputs, text_columns

    if is_fitted_file(model):
        fitted = read_fitted(model, allow_pickle=allow_pickle, missing=missing)
        fitted_features = features_of(fitted)
        columns = features or fitted_features.names
        texts = text_columns(columns, fitted_features.texts)
        underscored = fitted_features.underscored
        return ModelSource(fitted, True, columns, texts, labelled=True, underscored=underscored)
    if missing is not None:
        raise InvalidOptionError(
            f"--missing works only for XGBoost's files, and {model} is not one: leave it out."
        )
    single, texts = columns_of_inputs(model)
    columns = features or single
    return ModelSource(model, False, columns, text_columns(columns, texts), labelled=columns is not features)
