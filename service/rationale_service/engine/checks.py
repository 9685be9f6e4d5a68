"""Checks of a request, which report all faults at once, and of an answer's tensors."""

import itertools
import math
import re
from collections.abc import Collection, Sequence
from typing import Never

import numpy as np
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rationale.errors import quoted
from rationale.references.request_time import WEIGHTS, partner_name, references_name
from rationale.schema.manifest import Manifest, TensorSpec
from rationale_service.errors import InvalidInputError, MalformedError, NotFiniteError, ServiceError
from rationale_service.repository.entry import Entry
from rationale_service.tensors import DTYPES, Array, Tensors, datatype_of

_MOST = 10
_MOST_TOLD = 10_000  # faults; pydantic writes this many texts in one step of 25 ms
_LONGEST = 300  # characters of one fault among several
_LONGEST_NAME = 80
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TINY = 32  # values; for so few, a loop is faster than numpy


class Faults:
    """Faults of one request. The checks stop after ten.

    Attributes:
        parts: names of the faulty inputs or members.
    """

    def __init__(self) -> None:
        self.parts: set[str] = set()
        self._found: list[ServiceError] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, fault: ServiceError, name: str | None = None) -> None:
        """Add a fault. The tenth one raises all, as `report` does."""
        self._found.append(fault)
        if name is not None:
            self.parts.add(name)
        if len(self._found) == _MOST:
            self.report()

    def note(self, text: str, name: str | None = None) -> None:
        """Add an InvalidInputError."""
        self.add(InvalidInputError(text), name)

    def __enter__(self) -> None:
        """Catch errors of a `with` block and add them."""

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> bool:
        if not isinstance(error, InvalidInputError | MalformedError):
            return False
        self.add(error)
        return True

    def report(self) -> None:
        """Raise one error for all faults, of the first one's class; return if there are none.

        This object then drops the faults: an error's traceback would keep the request in memory.
        """
        if self._found:
            try:
                raise _join_faults(self._found)
            finally:
                self._found = []

    def end(self, fault: ServiceError) -> Never:
        """Add a last fault, after which no check can go on, and raise all."""
        self._found.append(fault)
        del fault
        self.report()
        raise AssertionError("there is one to report")


def from_validation(error: ValidationError, kind: type[ServiceError], whole: str) -> ServiceError:
    """Convert pydantic's faults → one error. `whole` is the name of the validated text."""
    count = error.error_count()
    if count > _MOST_TOLD:
        return kind(f"{whole} has {count} faults, too many to tell them: compare it with GET /openapi.json")
    details = itertools.islice(error.errors(include_url=False, include_input=False), _MOST)
    return _join_faults([kind(f"{_place(each) or whole}: {each['msg']}") for each in details])


def _place(detail: ErrorDetails) -> str:
    return ".".join(str(step) for step in detail["loc"])[:_LONGEST_NAME]


def _join_faults(faults: Sequence[ServiceError]) -> ServiceError:
    if len(faults) == 1:
        return faults[0]
    first = "the first " if len(faults) == _MOST else ""
    texts = " ".join(f"({i}) {_shorten(str(fault))}" for i, fault in enumerate(faults, 1))
    return type(faults[0])(f"{first}{len(faults)} problems: {texts}")


def check_name(name: str, owner: str, error: type[ServiceError]) -> str:
    """Check and return the name of a resource, which also names a file.

    Raises `error`; its text begins with `owner`.
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise error(
            f"{owner} name must consist of letters, digits, '.', '_' and '-', begin with a letter or digit "
            "and have at most 100 characters"
        )
    return name


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


# --- tensors --------------------------------------------------------------------------------------------


def check_request(
    entry: Entry,
    inputs: Tensors,
    outputs: Sequence[str] | None = None,
    missing: Collection[str] = (),
    manifest: Manifest | None = None,
) -> tuple[int, tuple[str, ...]]:
    """Check a request; return the number of rows N and the outputs to compute.

    Args:
        missing: names of inputs in which NaN is a missing value.
        manifest: manifest with the texts that the fitted model refuses.

    Raises:
        InvalidInputError: if inputs or outputs do not fit.
    """
    faults = Faults()
    _check_inputs(entry, inputs, missing, faults)
    if manifest is not None and not faults:
        for row, fault in manifest.refused_texts(inputs):
            faults.note(f"row {row}: {fault}")
    output_names = _check_outputs(entry, outputs, faults)
    faults.report()
    return len(next(iter(inputs.values()))), output_names


def tell_all(
    faults: Faults, entry: Entry, inputs: Tensors, outputs: Sequence[str] | None, missing: Collection[str]
) -> None:
    """Raise `faults` with all other faults, except those of references: another entry may take them."""
    faults.parts.update(name for name in entry.input_specs if _is_of_references(name))
    model_inputs = {name: array for name, array in inputs.items() if not _is_of_references(name)}
    _check_inputs(entry, model_inputs, missing, faults)
    _check_outputs(entry, outputs, faults)
    faults.report()


def _check_inputs(entry: Entry, inputs: Tensors, missing: Collection[str], faults: Faults) -> None:
    specs = entry.input_specs
    if inputs.keys() != specs.keys():
        named = {
            "unknown": inputs.keys() - specs.keys(),
            "missing": specs.keys() - inputs.keys() - faults.parts,
        }
        for verb, names in named.items():
            if names:
                faults.note(
                    f"{verb} input {quoted(sorted(names))}: model '{entry.name}' takes {quoted(specs)}"
                )
    for name, array in inputs.items():
        if name in specs:
            with faults:
                _check_input(specs[name], array, missing=name in missing)
    if not faults:
        with faults:
            _check_together(entry, inputs)


def _check_together(entry: Entry, inputs: Tensors) -> None:
    counts = {name: len(array) for name, array in inputs.items()}
    if min(counts.values()) != max(counts.values()):
        raise InvalidInputError(f"the inputs differ in their number of rows (axis 0): {counts}")
    open_length = entry.manifest.open_length if entry.manifest is not None else None
    if open_length is not None and (
        fault := open_length.fault({name: a.shape for name, a in inputs.items()})
    ):
        raise InvalidInputError(fault)


def _check_outputs(entry: Entry, outputs: Sequence[str] | None, faults: Faults) -> tuple[str, ...]:
    """Check the requested outputs and return those to compute."""
    names = entry.output_names
    if not outputs:
        return names
    unknown = [name for name in outputs if name not in names]
    if unknown:
        faults.note(f"unknown output {quoted(unknown)}: model '{entry.name}' gives {quoted(names)}")
    return tuple(dict.fromkeys(outputs))


def _check_input(spec: TensorSpec, array: Array, *, missing: bool) -> None:
    if array.dtype != DTYPES[spec.datatype]:
        raise InvalidInputError(
            f"input '{spec.name}' is {datatype_of(array)}, but the model takes {spec.datatype}"
        )
    fits = array.ndim == len(spec.shape) + 1 and all(
        size == expected or (expected == -1 and size > 0)
        for size, expected in zip(array.shape[1:], spec.shape, strict=True)
    )
    if not fits:
        raise InvalidInputError(
            f"input '{spec.name}' has shape {list(array.shape)}, but the model takes "
            f"{[-1, *spec.shape]}, where -1 is any size"
        )
    if array.shape[0] == 0:
        raise InvalidInputError(f"input '{spec.name}' is empty: send at least one row")
    index = first_non_finite(
        np.where(np.isnan(array), 0, array) if missing and array.dtype.kind == "f" else array
    )
    if index is not None:
        value = array[index]
        missing_value = ", a missing value, which the model does not take there" * bool(np.isnan(value))
        raise InvalidInputError(
            f"input '{spec.name}' holds {value} at {list(index)}{missing_value}: send finite numbers "
            f"within the range of {spec.datatype}"
        )


def check_answer(entry: Entry, tensors: Tensors) -> None:
    """Raise NotFiniteError if a number of an answer is not finite."""
    for name, array in tensors.items():
        index = first_non_finite(array)
        if index is not None:
            raise NotFiniteError(
                f"model '{entry.name}' gives {array[index]} for output '{name}' at {list(index)}: the "
                "input is outside the range in which the model has finite outputs"
            )


def first_non_finite(array: Array) -> tuple[int, ...] | None:
    """Return the index of the first NaN or infinity of a float array, or None."""
    if array.dtype.kind != "f":
        return None
    if array.size <= _TINY and all(map(math.isfinite, array.reshape(-1).tolist())):
        return None
    finite = np.isfinite(array)
    if finite.all():
        return None
    return tuple(int(axis) for axis in np.unravel_index(int(finite.argmin()), array.shape))


def _is_of_references(name: str) -> bool:
    return name == WEIGHTS or name.endswith((references_name(""), partner_name("")))
