"""Lengths that a model leaves open, such as a sequence's, are fixed for its explanation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from compiler.errors import InvalidOptionError

Size = int | tuple[int, int]  # one length, or all from the first to the second
Shapes = Mapping[str | None, tuple[int, ...]]


def fix_lengths(model: ir.Model, sizes: Mapping[str, int], references: Shapes) -> dict[str, int]:
    """Give open lengths of inputs a number, in place; return those that were given, by name.

    A length is called by its name in the model, or `input[axis]` where it has none.

    Args:
        sizes: as the user says.
        references: shapes [K, …] of what is given for inputs, from which lengths are read that `sizes` leaves
            out; under None for the only input that holds floats, or is there.

    Raises:
        InvalidOptionError: a length that no input has, or one that is no positive number.
    """
    known = {_name(value, axis) for value, axis in _open(model)}
    unknown = sorted(set(sizes) - known)
    if unknown:
        raise InvalidOptionError(
            f"no input has an open length {unknown}; the model's are {sorted(known) or 'none'}."
        )
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise InvalidOptionError(f"length {name!r} must be a whole number, 1 or more, not {size!r}.")
    fixed = {name: int(size) for name, size in sizes.items()}
    for value, axis in _open(model):
        shape = references.get(value.name) or (references.get(None) if value is _only(model) else None)
        if shape and axis < len(shape):
            fixed.setdefault(_name(value, axis), shape[axis])
    for value in model.graph.inputs:
        if value.shape is not None:
            dims = [fixed.get(_name(value, a), d) if a else d for a, d in enumerate(value.shape)]
            value.shape = ir.Shape(dims)
    return fixed


@dataclass(frozen=True)
class Span:
    """The lengths from `least` to `most` of an axis that a model calls `name`."""

    name: str
    least: int
    most: int


def span_of(sizes: Mapping[str, Size]) -> tuple[dict[str, int], Span | None]:
    """Return the lengths, a span's longest among them; and the span, where there is one.

    Raises:
        InvalidOptionError: more than one span, or one that is none.
    """
    spans = {name: size for name, size in sizes.items() if isinstance(size, tuple)}
    for name, ends in spans.items():
        whole = len(ends) == 2 and all(isinstance(n, int | np.integer) and n >= 1 for n in ends)
        if not whole or ends[1] < ends[0] + 2:
            raise InvalidOptionError(
                f"length {name!r} must span three whole numbers or more, from 1 on, such as (1, 128), "
                f"not {ends!r}."
            )
    if len(spans) > 1:
        raise InvalidOptionError(f"one length can be open, not {sorted(spans)}: give numbers for the others.")
    fixed = {name: size[1] if isinstance(size, tuple) else size for name, size in sizes.items()}
    return fixed, next((Span(name, *ends) for name, ends in spans.items()), None)


def length_warnings(lengths: Mapping[str, Size]) -> tuple[str, ...]:
    """Return warnings of lengths that the model leaves open, and the explanation does not."""
    if not lengths:
        return ()
    named = (
        f"{name} = {size[0]} to {size[1]}" if isinstance(size, tuple) else f"{name} = {size}"
        for name, size in lengths.items()
    )
    return (f"the explanation takes rows with {', '.join(named)} alone; the plain entry takes any",)


def _open(model: ir.Model) -> Iterator[tuple[ir.Value, int]]:
    """Yield inputs, and the axes behind the batch whose length is not written in the model."""
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if axis and not isinstance(dim, int):
                yield value, axis


def _name(value: ir.Value, axis: int) -> str:
    dim = value.shape[axis] if value.shape is not None else None
    named = isinstance(dim, ir.SymbolicDim) and dim.value is not None
    return str(dim) if named else f"{value.name}[{axis}]"


def _only(model: ir.Model) -> ir.Value | None:
    """Return the input that an array without a name is for."""
    inputs = list(model.graph.inputs)
    floats = [v for v in inputs if v.dtype is not None and v.dtype.is_floating_point()]
    for chosen in (floats, inputs):
        if len(chosen) == 1:
            return chosen[0]
    return None
