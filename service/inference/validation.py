"""What is asked of a request's tensors, and of those that a model answers with."""

import math
from collections.abc import Collection, Sequence

import numpy as np

from compiler.manifest import TensorSpec
from compiler.references.request_time import WEIGHTS, references_name
from service.errors import InvalidInputError, NotFiniteError
from service.faults import Faults, listed
from service.repository.entry import Entry
from service.tensors import DTYPES, Array, Tensors, datatype_of

_TINY = 32  # values: so few are looked at sooner one by one than by numpy


def check_request(
    entry: Entry,
    inputs: Tensors,
    outputs: Sequence[str] | None = None,
    missing: Collection[str] = (),
) -> tuple[int, tuple[str, ...]]:
    """The number of rows N, and the outputs to compute.

    Args:
        missing: inputs in which NaN is a missing value.

    Raises:
        InvalidInputError: inputs or outputs that do not fit.
    """
    faults = Faults()
    _check_inputs(entry, inputs, missing, faults)
    wanted = _check_outputs(entry, outputs, faults)
    faults.tell()
    return len(next(iter(inputs.values()))), wanted


def tell_all(
    faults: Faults, entry: Entry, inputs: Tensors, outputs: Sequence[str] | None, missing: Collection[str]
) -> None:
    """Raises `faults` together with what else is wrong, but for references: another entry may take those."""
    faults.parts.update(name for name in entry.input_specs if _is_of_references(name))
    own = {name: array for name, array in inputs.items() if not _is_of_references(name)}
    _check_inputs(entry, own, missing, faults)
    _check_outputs(entry, outputs, faults)
    faults.tell()


def _check_inputs(entry: Entry, inputs: Tensors, missing: Collection[str], faults: Faults) -> None:
    known = entry.input_specs
    if inputs.keys() != known.keys():
        named = {
            "unknown": inputs.keys() - known.keys(),
            "missing": known.keys() - inputs.keys() - faults.parts,
        }
        for verb, names in named.items():
            if names:
                faults.note(
                    f"{verb} input {listed(sorted(names))}: model '{entry.name}' takes {listed(known)}"
                )
    for name, array in inputs.items():
        if name in known:
            with faults:
                _check_input(known[name], array, missing=name in missing)
    if not faults:
        with faults:
            _check_together(entry, inputs)


def _check_together(entry: Entry, inputs: Tensors) -> None:
    counts = {name: len(array) for name, array in inputs.items()}
    if min(counts.values()) != max(counts.values()):
        raise InvalidInputError(f"the inputs differ in their number of rows (axis 0): {counts}")
    opened = entry.manifest.open_length if entry.manifest is not None else None
    if opened is not None and (fault := opened.fault({name: a.shape for name, a in inputs.items()})):
        raise InvalidInputError(fault)


def _check_outputs(entry: Entry, outputs: Sequence[str] | None, faults: Faults) -> tuple[str, ...]:
    """The outputs to compute."""
    known = entry.output_names
    if not outputs:
        return known
    unknown = [name for name in outputs if name not in known]
    if unknown:
        faults.note(f"unknown output {listed(unknown)}: model '{entry.name}' gives {listed(known)}")
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
    index = first_non_finite(np.where(np.isnan(array), 0, array) if missing else array)
    if index is not None:
        raise InvalidInputError(
            f"input '{spec.name}' holds {array[index]} at {list(index)}: send finite numbers "
            f"within the range of {spec.datatype}"
        )


def check_answer(entry: Entry, tensors: Tensors) -> None:
    """Raises NotFiniteError."""
    for name, array in tensors.items():
        index = first_non_finite(array)
        if index is not None:
            raise NotFiniteError(
                f"model '{entry.name}' gives {array[index]} for output '{name}' at {list(index)}: "
                "the input lies outside of what it can compute"
            )


def first_non_finite(array: Array) -> tuple[int, ...] | None:
    """Index of the first NaN or infinity of a float array, None where there is none."""
    if array.dtype.kind != "f":
        return None
    if array.size <= _TINY and all(map(math.isfinite, array.reshape(-1).tolist())):
        return None
    finite = np.isfinite(array)
    if finite.all():
        return None
    return tuple(int(axis) for axis in np.unravel_index(int(finite.argmin()), array.shape))


def _is_of_references(name: str) -> bool:
    return name == WEIGHTS or name.endswith(references_name(""))
