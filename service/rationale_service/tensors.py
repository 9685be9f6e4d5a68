"""Open Inference Protocol tensors ↔ numpy arrays: JSON data and the binary tensor extension."""

import math
import struct
import sys
from array import array as c_array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from rationale_service.errors import InvalidInputError, MalformedError

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = dict[str, Array]

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(np.object_),
}
# Datatypes whose values Python's own arrays store as numpy does.
_C_FLOATS = {"FP32": "f", "FP64": "d"} if sys.byteorder == "little" else {}
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}

# JSON types that a kind of dtype accepts, and their name in errors.
_JSON_TYPES: dict[str, tuple[set[type], str]] = {
    "b": ({bool}, "true or false"),
    "u": ({int}, "whole numbers"),
    "i": ({int}, "whole numbers"),
    "f": ({int, float}, "numbers"),
    "O": ({str}, "strings"),
}
_BLOCK = 100_000  # values per step, which holds Python's lock
_JSON_NAMES = {bool: "a boolean", str: "a string", dict: "an object", type(None): "null", list: "a list"}


def json_type_name(value: object) -> str:
    """Return a JSON value's name for an error: 'a string', 'null', '1.5'."""
    return _JSON_NAMES.get(type(value), str(value))


def datatype_of(array: Array) -> str:
    """Return the OIP datatype of an array; a dtype that OIP lacks is a fault of the calling code."""
    return "BYTES" if array.dtype.kind == "U" else DATATYPES[array.dtype]


def encode_texts(array: Array) -> Array:
    """Return the array; texts become bytes, the elements of BYTES."""
    if array.dtype.kind not in "OU":
        return array
    return np.array([str(text).encode() for text in array.reshape(-1)], object).reshape(array.shape)


def bytes_of(array: Array) -> int:
    """Return an array's size in bytes; BYTES elements are objects, each with its own size."""
    return array.nbytes + (sum(map(len, array.reshape(-1))) if array.dtype.kind == "O" else 0)


def flatten(data: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Flatten nested lists → their values in row-major order, and their shape (`()` for a single value).

    Raises:
        ValueError: if the lists are ragged.
    """
    shape: list[int] = []
    values = [data]
    while list in (types := types_of(values)):
        if len(types) > 1 or len(set(map(len, values))) > 1:
            raise ValueError(f"its lists at depth {len(shape) + 1} differ in length or nesting")
        shape.append(len(values[0]))
        values = list(chain.from_iterable(values))
    return values, tuple(shape)


def from_values(name: str, datatype: str, shape: Sequence[int], values: list[Any]) -> Array:
    """Convert flat JSON values → an array.

    Raises:
        InvalidInputError: if a value has the wrong type or is out of range, or their number is wrong.
    """
    dtype = DTYPES[datatype]
    if len(values) != math.prod(shape):
        raise InvalidInputError(
            f"input '{name}' has {len(values)} values, but its shape {list(shape)} holds {math.prod(shape)}"
        )
    allowed, expected = _JSON_TYPES[dtype.kind]
    if not types_of(values) <= allowed:
        index = next(i for i, value in enumerate(values) if type(value) not in allowed)
        raise InvalidInputError(
            f"input '{name}' is {datatype} and takes {expected}, but value {index} is "
            f"{json_type_name(values[index])}"
        )
    if dtype.kind in "iu":
        _check_range(name, datatype, values)
    if dtype.kind == "O":
        values = [value.encode() for value in values]
    if datatype in _C_FLOATS:  # takes a third of numpy's time for a row
        numbers = c_array(_C_FLOATS[datatype])
        for block in _parts(values):
            numbers.fromlist(block)
        return np.frombuffer(numbers, dtype).reshape(shape)
    with np.errstate(over="ignore"):  # too large a number becomes inf, which is refused later
        wide = np.float64 if dtype.kind == "f" else dtype
        arrays = [np.array(block, dtype=wide) for block in _parts(values)]
        return np.concatenate(arrays).astype(dtype, copy=False).reshape(shape)


def types_of(values: list[Any]) -> set[type]:
    """Return the types of JSON values."""
    return set().union(*(set(map(type, block)) for block in _parts(values)))


def _parts(values: list[Any]) -> Iterable[list[Any]]:
    """Return the values in parts; one empty part if there are no values."""
    if len(values) <= _BLOCK:
        return (values,)
    return (values[start : start + _BLOCK] for start in range(0, len(values), _BLOCK))


def from_json(name: str, datatype: str, shape: Sequence[int], data: Any) -> Array:
    """Convert OIP's `data`, flat or nested like `shape`, → an array; `null` is a missing value.

    Raises:
        MalformedError: if `data` is no list.
        InvalidInputError: if it does not fit the shape or datatype.
    """
    if not isinstance(data, list):
        raise MalformedError(f"input '{name}': data must be a list, not {json_type_name(data)}")
    values = data
    if list in types_of(data):
        try:
            values, nested = flatten(data)
        except ValueError as error:
            raise InvalidInputError(f"input '{name}' is ragged: {error}") from error
        if len(nested) > 1 and nested != tuple(shape):
            raise InvalidInputError(
                f"input '{name}' says shape {list(shape)}, but its data has {list(nested)}"
            )
    return from_values(name, datatype, shape, without_null(datatype, values))


def without_null(datatype: str, values: list[Any]) -> list[Any]:
    """Replace `null`, a missing value, in flat JSON values: NaN among floats, an empty text among texts."""
    missing = {"f": math.nan, "O": ""}.get(DTYPES[datatype].kind)
    if missing is None or None not in values:
        return values
    return [missing if value is None else value for value in values]


def from_binary(name: str, datatype: str, shape: Sequence[int], data: memoryview) -> Array:
    """Read little-endian row-major bytes (BYTES: each led by its length in 4 bytes) → a read-only array.

    Raises:
        InvalidInputError: if the bytes do not fill the shape.
    """
    dtype, size = DTYPES[datatype], math.prod(shape)
    if dtype.kind == "O":
        elements = _split_elements(name, data)
        if len(elements) != size:
            raise InvalidInputError(
                f"input '{name}' has {len(elements)} elements, but its shape {list(shape)} holds {size}"
            )
        return np.array(elements, dtype=np.object_).reshape(shape)
    if len(data) != size * dtype.itemsize:
        raise InvalidInputError(
            f"input '{name}' has {len(data)} bytes, but {datatype} of shape {list(shape)} "
            f"takes {size * dtype.itemsize}"
        )
    if dtype.kind == "b":  # any byte but 0 is true; numpy's own booleans must be 0 or 1
        return np.frombuffer(data, np.uint8).astype(np.bool_).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


def to_binary(array: Array) -> bytes:
    """Convert an array → the bytes that `from_binary` reads."""
    if array.dtype.kind != "O":
        return array.tobytes()  # row-major, in any memory layout
    return b"".join(struct.pack("<I", len(element)) + element for element in array.reshape(-1))


def to_json(name: str, array: Array) -> Any:
    """Return the array as orjson (OPT_SERIALIZE_NUMPY) takes it: unchanged, or nested strings for BYTES.

    Raises:
        InvalidInputError: if an element is not UTF-8, so that JSON cannot hold it.
    """
    if array.dtype.kind != "O":
        return np.ascontiguousarray(array)
    try:
        decoded = [element.decode() for element in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"output '{name}' holds bytes that are not UTF-8: request it with binary_data: true"
        ) from error
    return np.array(decoded, dtype=np.object_).reshape(array.shape).tolist()


def _check_range(name: str, datatype: str, values: list[int]) -> None:
    info = np.iinfo(DTYPES[datatype])
    if values and not (info.min <= min(values) and max(values) <= info.max):
        wrong = next(value for value in values if not info.min <= value <= info.max)
        raise InvalidInputError(
            f"input '{name}': {wrong} is outside the range of {datatype}, {info.min} to {info.max}"
        )


def _split_elements(name: str, data: memoryview) -> list[bytes]:
    elements, offset = [], 0
    while offset < len(data):
        end = offset + 4
        if end <= len(data):
            end += int.from_bytes(data[offset : offset + 4], "little")
        if end > len(data) or end < offset + 4:
            raise InvalidInputError(f"input '{name}': the BYTES element at byte {offset} runs past the end")
        elements.append(bytes(data[offset + 4 : end]))
        offset = end
    return elements
