"""Parser of uploaded reference sets: npz, npy, parquet, CSV or JSON, checked against a model's inputs."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rationale.errors import InvalidReferencesError, LargeReferencesError
from rationale.schema.manifest import Manifest, TensorSpec
from rationale.tables.files import FEATURE_NAMES, WEIGHTS, Table, read_stream
from rationale.tables.frames import as_texts
from rationale_service.engine.checks import Faults, first_non_finite
from rationale_service.engine.features import form_of, to_tensors
from rationale_service.engine.large_requests import parse_json
from rationale_service.errors import InvalidInputError, MalformedError, TooLargeError
from rationale_service.repository.entry import Entry, agree
from rationale_service.tensors import DTYPES, Array, Tensors, datatype_of

JSON = "application/json"
NPZ = "application/x-npz"
MEDIA_TYPES = {
    JSON: ".json",
    NPZ: ".npz",
    "application/zip": ".npz",
    "application/x-npy": ".npy",
    "application/vnd.apache.parquet": ".parquet",
    "application/x-parquet": ".parquet",
    "text/csv": ".csv",
}
_JSON_SHARE = 32  # parsing takes about 40 times the size of the JSON
_BODY = "the body"


@dataclass(frozen=True)
class ReferenceRows:
    """A reference set.

    Attributes:
        arrays: arrays [K, …] in the model's own dtypes, by input name.
        weights: weights [K], float64, not negative and not all 0; None if all are equal.
        features: names of the columns of a single table that has them.
    """

    arrays: Tensors
    weights: Array | None = None
    features: tuple[str, ...] | None = None

    @property
    def count(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def digest(self) -> str:
        """SHA-256 of the content, independent of the upload's file format."""
        digest = hashlib.sha256()
        for name, array in sorted(self.arrays.items()):
            digest.update(f"{name}\0{datatype_of(array)}\0{array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).data)
        digest.update(b"" if self.weights is None else self.weights.tobytes())
        digest.update(repr(self.features).encode())
        return digest.hexdigest()


def parse_rows(
    body: bytes, kind: str, entry: Entry, manifest: Manifest | None, most_bytes: int
) -> ReferenceRows:
    """Parse an upload. Blocks, and takes memory in proportion to `most_bytes`.

    Args:
        kind: one of the values of MEDIA_TYPES.
        entry: plain model, whose inputs the rows must fit.
        manifest: manifest of one of its explainers, with the names of features.
        most_bytes: maximum size of the arrays.

    Raises:
        MalformedError: if the upload cannot be read.
        InvalidInputError: if the rows do not fit the model.
        TooLargeError: if they exceed `most_bytes`.
    """
    if kind == ".json":
        return _from_json(body, entry, manifest, most_bytes)
    try:
        columns = _columns(entry, manifest)
        texts = [spec.name for spec in entry.inputs if spec.datatype == "BYTES"]
        words = {column for name in texts for column in (columns or {}).get(name, ())}
        table = read_stream(io.BytesIO(body), kind, _BODY, _only(columns) or columns, most_bytes, words)
    except LargeReferencesError as error:
        raise TooLargeError(str(error)) from error
    except InvalidReferencesError as error:
        raise InvalidInputError(str(error)) from error
    names = table.columns if None in table.arrays else None
    return check_rows(_by_input(table, entry, manifest), entry, manifest, table.weights, names)


def check_rows(
    arrays_by_input: Mapping[str, Array],
    entry: Entry,
    manifest: Manifest | None,
    weights: Any = None,
    features: tuple[str, ...] | None = None,
    called: str = "references",
) -> ReferenceRows:
    """Convert reference rows → the dtypes of the entry's inputs.

    Args:
        called: the member of the request that they are.
        manifest: manifest with the inputs that take missing values and the texts that the model refuses.

    Raises:
        InvalidInputError: if the rows do not fit.
    """
    specs = {spec.name: spec for spec in entry.inputs}
    unknown = [name[:80] for name in arrays_by_input if name not in specs]
    if unknown or not arrays_by_input:
        raise InvalidInputError(
            f"{called} are given for {unknown[:10] or 'nothing'}; model '{entry.name}' takes {list(specs)}"
        )
    missing = frozenset[str]() if manifest is None else manifest.takes_missing
    arrays = {
        name: _fit(specs[name], array, f"{called} of '{name}'", missing=name in missing)
        for name, array in arrays_by_input.items()
    }
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise InvalidInputError(f"every input needs the same number of {called}, not {counts}")
    for row, fault in manifest.refused_texts(arrays) if manifest else ():
        raise InvalidInputError(f"{called}, row {row}: {fault}")
    return ReferenceRows(arrays, _check_weights(weights, next(iter(counts.values()))), features)


def to_file(rows: ReferenceRows) -> dict[str, Array]:
    """Return the members of an .npz with the rows, for `rationale compile --references`."""
    extras = {
        WEIGHTS: rows.weights,
        FEATURE_NAMES: None if rows.features is None else np.array(rows.features),
    }
    return {**rows.arrays, **{name: array for name, array in extras.items() if array is not None}}


def _from_json(body: bytes, entry: Entry, manifest: Manifest | None, most_bytes: int) -> ReferenceRows:
    """Parse `[row, …]` or `{"references": [row, …], "weights": [w, …]}`, with rows like v1's instances."""
    if len(body) > most_bytes // _JSON_SHARE:
        raise TooLargeError(
            f"references in JSON may have at most {most_bytes // _JSON_SHARE} bytes: send npz, parquet or CSV"
        )
    message = parse_json(body, most_bytes // _JSON_SHARE)
    message = {"references": message} if isinstance(message, list) else message
    rows = message.get("references") if isinstance(message, dict) else None
    if not isinstance(rows, list) or set(message) - {"references", "weights"}:
        raise MalformedError('the body must be a list of rows, or {"references": [ … ], "weights": [ … ]}')
    faults = Faults()
    tensors = to_tensors(form_of(entry, manifest), rows, faults, "references")
    faults.report()
    explained = _replaced_inputs(entry, manifest)
    return check_rows(
        {name: tensors[name] for name in explained},
        entry,
        manifest,
        message.get("weights"),
        _only(_columns(entry, manifest)),
    )


def _replaced_inputs(entry: Entry, manifest: Manifest | None) -> list[str]:
    """Return the inputs that references replace: the explained ones, or all inputs of numbers."""
    input_names = {spec.name for spec in entry.inputs}
    explained = (
        [item.tensor.name for item in manifest.explained if item.tensor.name in input_names]
        if manifest
        else []
    )
    return explained or [spec.name for spec in entry.inputs if spec.datatype not in ("BYTES", "BOOL")]


def _columns(entry: Entry, manifest: Manifest | None) -> dict[str, tuple[str, ...]] | None:
    """Return the table columns of each input; None if the names are generated, such as x[0]."""
    compiled_names = (manifest.given_names if manifest else None) or {}
    explained = _replaced_inputs(entry, manifest)
    return (
        {name: compiled_names[name] for name in explained}
        if compiled_names.keys() >= set(explained)
        else None
    )


def _only(columns: dict[str, tuple[str, ...]] | None) -> tuple[str, ...] | None:
    """Return the columns of the only input; None for several inputs."""
    return next(iter(columns.values())) if columns is not None and len(columns) == 1 else None


def _by_input(table: Table, entry: Entry, manifest: Manifest | None) -> Tensors:
    arrays = {name: array for name, array in table.arrays.items() if name is not None}
    if None not in table.arrays:
        return arrays
    explained = _replaced_inputs(entry, manifest)
    if len(explained) != 1:
        raise InvalidInputError(
            f"one array without a name, but the model has the inputs {explained}: send a .npz with one for "
            "each"
        )
    return {explained[0]: table.arrays[None]}


def _fit(spec: TensorSpec, array: Array, named: str, *, missing: bool) -> Array:
    """Convert rows → the input's dtype: floats are rounded, other values must stay equal."""
    dtype = DTYPES[spec.datatype]
    is_text = dtype.kind == "O"
    if array.dtype.kind not in ("OU" if is_text else "fiub"):
        raise InvalidInputError(f"{named} hold {array.dtype}; the model takes {spec.datatype}")
    if array.ndim == 0 or array.size == 0 or not agree(array.shape[1:], spec.shape):
        raise InvalidInputError(
            f"{named} have shape {list(array.shape)}, but the model takes {['K', *spec.shape]}, K at least 1"
        )
    if is_text:
        return _texts(named, as_texts(array))
    with np.errstate(all="ignore"):
        cast = np.ascontiguousarray(array, dtype)
        lost = None if dtype.kind == "f" else np.argwhere(cast != array)
    numbers = np.where(np.isnan(cast), 0, cast) if missing and lost is None else cast
    wrong = first_non_finite(numbers) if lost is None else tuple(map(int, lost[0])) if len(lost) else None
    if wrong is not None:
        raise InvalidInputError(
            f"{named} hold {array[wrong]} at {list(wrong)}, which does not fit {spec.datatype}: impute, "
            "scale or drop such rows"
        )
    return cast


def _texts(named: str, array: Array) -> Array:
    """Convert texts → the form that an .npz holds."""
    try:
        texts = [value.decode() if isinstance(value, bytes) else value for value in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{named} hold bytes that are not UTF-8") from error
    not_text = next((text for text in texts if not isinstance(text, str)), None)
    if not_text is not None:
        raise InvalidInputError(f"{named} hold {str(not_text)[:80]}: they must be texts")
    return np.array(texts, np.str_).reshape(array.shape)


def _check_weights(values: Any, count: int) -> Array | None:
    if values is None:
        return None
    try:
        weights = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"weights must be {count} numbers") from error
    if (
        weights.shape != (count,)
        or not np.isfinite(weights).all()
        or (weights < 0).any()
        or not weights.any()
    ):
        raise InvalidInputError(f"weights must be {count} finite numbers, not negative and not all zero")
    return None if np.ptp(weights) == 0 else weights
