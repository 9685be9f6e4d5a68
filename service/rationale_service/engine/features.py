"""Rows of named features → tensors, as v1's instances and references in JSON are written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rationale.errors import quoted
from rationale.references.request_time import WEIGHTS, partner_name, references_name
from rationale.schema.manifest import Manifest, TensorSpec
from rationale_service.engine.checks import Faults
from rationale_service.errors import InvalidInputError
from rationale_service.repository.entry import Entry, agree
from rationale_service.tensors import (
    DTYPES,
    Array,
    Tensors,
    flatten,
    from_values,
    json_type_name,
    without_null,
)


@dataclass(frozen=True)
class RequestRows:
    """Rows of a request, and the references that it brings with their weights, if it brings some.

    Attributes:
        compare_with: a row for each of `rows`, or one for all: its only reference.
    """

    rows: list[Any]
    references: list[Any] | None = None
    weights: list[Any] | None = None
    compare_with: list[Any] | None = None

    def tensors(self, entry: Entry, manifest: Manifest | None, faults: Faults) -> Tensors:
        """Return the inputs of `entry`, and references under their names in the Open Inference Protocol.

        Args:
            manifest: the entry's manifest, with the names of its features.
            faults: faults that are already known.

        Raises:
            InvalidInputError: if inputs or references do not fit.
        """
        form = form_of(entry, manifest)
        tensors = to_tensors(form, self.rows, faults)
        if manifest is not None and self.references is not None:
            tensors |= _rows_beside(form, manifest, self.references, faults, "references", references_name)
        if manifest is not None and self.compare_with is not None:
            tensors |= compared_rows(form, manifest, self.compare_with, faults)
        if self.weights is not None:
            with faults:
                tensors[WEIGHTS] = from_values(WEIGHTS, "FP64", (len(self.weights),), self.weights)
        faults.report()
        return tensors


def _rows_beside(
    form: "InstanceForm",
    manifest: Manifest,
    rows: Sequence[Any],
    faults: Faults,
    called: str,
    name_in_request: Callable[[str], str],
) -> Tensors:
    tensors = to_tensors(form, rows, faults, called)
    explained = [item.tensor.name for item in manifest.explained if item.tensor.name in tensors]
    return {name_in_request(name): tensors[name] for name in explained}


def compared_rows(form: "InstanceForm", manifest: Manifest, rows: Sequence[Any], faults: Faults) -> Tensors:
    """Convert rows to compare with → tensors under their names in the Open Inference Protocol."""
    return _rows_beside(form, manifest, rows, faults, "compare_with", partner_name)


@dataclass(frozen=True)
class InstanceForm:
    """The accepted form of an entry's instances: `features` maps a name to (input, flat index).

    `missing` names the inputs in which null is a missing value.
    """

    inputs: tuple[TensorSpec, ...]
    features: dict[str, tuple[str, int]]
    missing: frozenset[str] = frozenset()

    def names(self) -> list[str]:
        """Return the required keys of an object: the features, and the inputs without features."""
        owners = {tensor for tensor, _ in self.features.values()}
        return [*self.features, *(spec.name for spec in self.inputs if spec.name not in owners)]

    @cached_property
    def allowed_keys(self) -> frozenset[str]:
        """The allowed keys of an object: the features, and the whole inputs."""
        return frozenset((*self.features, *(spec.name for spec in self.inputs)))


@dataclass(frozen=True)
class _InputValues:
    """One input's part of one instance: values in row-major order and their shape."""

    values: list[Any]
    shape: tuple[int, ...]


def form_of(entry: Entry, manifest: Manifest | None) -> InstanceForm:
    """Return the form of `entry`; without a manifest there are no feature names.

    References are no instances.
    """
    if manifest is None:
        return InstanceForm(tuple(entry.inputs), {})
    reference_inputs = manifest.open_references.names if manifest.open_references else ()
    specs = tuple(spec for spec in entry.inputs if spec.name not in reference_inputs)
    return InstanceForm(specs, manifest.places, manifest.takes_missing)


def to_tensors(
    form: InstanceForm, instances: Sequence[Any], faults: Faults, called: str = "instances"
) -> Tensors:
    """Convert instances → one [N, …] array per input.

    Args:
        faults: takes what is wrong, with the instances, and the features or inputs, at fault. Where it takes
            something the tensors are not whole.
        called: the member that they are.
    """
    if not instances:
        faults.note(f"{called} is empty: send at least one")
    rows = [_split_instance(form, instance, f"{called}[{i}]", faults) for i, instance in enumerate(instances)]
    tensors: Tensors = {}
    if faults:
        return tensors
    for spec in form.inputs:
        try:
            tensors[spec.name] = _stack(form, spec, [row[spec.name] for row in rows])
        except InvalidInputError as fault:
            faults.add(fault if called == "instances" else InvalidInputError(f"{called}: {fault}"))
    return tensors


def _split_instance(form: InstanceForm, instance: Any, where: str, faults: Faults) -> dict[str, _InputValues]:
    """Split one instance → a row per input."""
    if isinstance(instance, dict):
        return _split_object(form, instance, where, faults)
    rows: dict[str, _InputValues] = {}
    if len(form.inputs) > 1:
        names = quoted([spec.name for spec in form.inputs])
        faults.note(f"{where} must be an object with a member for each of the inputs {names}")
        return rows
    spec = form.inputs[0]
    with faults:
        rows[spec.name] = _array_row(spec, instance, where)
    return rows


def _split_object(
    form: InstanceForm, instance: dict[str, Any], where: str, faults: Faults
) -> dict[str, _InputValues]:
    rows: dict[str, _InputValues] = {}
    named: dict[str, dict[int, Any]] = {}
    unknown: list[str] = []
    whole: set[str] = set()  # inputs, as far as they could be read
    specs = {spec.name: spec for spec in form.inputs}
    for name, value in instance.items():
        if name in form.features and not (name in specs and isinstance(value, list)):
            tensor, index = form.features[name]
            if (wrong := _scalar_fault(form, specs[tensor], value)) is not None:
                faults.note(f"{where}: feature '{name}' {wrong}")
            named.setdefault(tensor, {})[index] = value
        elif name in specs:
            whole.add(name)
            with faults:
                rows[name] = _array_row(specs[name], value, f"{where}.{name[:80]}")
        else:
            unknown.append(name)
    if unknown:
        faults.note(f"{where}: unknown feature {quoted(unknown)}; the model takes {quoted(form.names())}")
    for name, values in named.items():
        if name in rows:
            faults.note(f"{where}: input '{name}' is given twice, whole and by its features")
        rows[name] = _InputValues(_complete(form, name, values, where, faults), specs[name].shape)
    for name in specs:
        if name not in rows and name not in whole:
            missing = [feature for feature, (tensor, _) in form.features.items() if tensor == name] or [name]
            faults.note(f"{where}: missing {quoted(missing)}")
    return rows


def _complete(
    form: InstanceForm, tensor: str, values: dict[int, Any], where: str, faults: Faults
) -> list[Any]:
    """Return all features' values in row-major order."""
    order = {index: feature for feature, (owner, index) in form.features.items() if owner == tensor}
    missing = [feature for index, feature in sorted(order.items()) if index not in values]
    if missing:
        faults.note(f"{where}: missing feature {quoted(missing)}")
        return []
    return [values[index] for index in range(len(order))]


def _array_row(spec: TensorSpec, data: Any, where: str) -> _InputValues:
    try:
        values, shape = flatten(data)
    except ValueError as error:
        raise InvalidInputError(f"{where} is ragged: {error}") from error
    single = shape == () and all(size == 1 for size in spec.shape)
    if single:
        shape = spec.shape
    if not agree(shape, spec.shape):
        description = f"a list of shape {list(shape)}" if shape else json_type_name(data)
        raise InvalidInputError(
            f"{where} is {description}, but input '{spec.name}' takes {list(spec.shape)} per row"
        )
    return _InputValues(values, shape)


def _stack(form: InstanceForm, spec: TensorSpec, rows: Sequence[_InputValues]) -> Array:
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise InvalidInputError(
            f"input '{spec.name}' has rows of different shapes "
            f"({', '.join(map(str, sorted(shapes)[:4]))}): send them in separate requests"
        )
    values = [value for row in rows for value in row.values]
    if spec.name in form.missing:
        values = without_null(spec.datatype, values)
    return from_values(spec.name, spec.datatype, (len(rows), *shapes.pop()), values)


_SCALARS: dict[str, tuple[tuple[type, ...], str]] = {
    "b": ((bool,), "true or false"),
    "u": ((int,), "a whole number"),
    "i": ((int,), "a whole number"),
    "f": ((int, float), "a number"),
    "O": ((str,), "a string"),
}


def _scalar_fault(form: InstanceForm, spec: TensorSpec, value: Any) -> str | None:
    """Describe the fault of a feature's value; None if it has none."""
    allowed, expected = _SCALARS[DTYPES[spec.datatype].kind]
    if type(value) in allowed:
        return None
    if isinstance(value, list):
        return "is one value, not a list"
    if value is None and spec.name in form.missing:
        return None
    if value is None:
        return f"must be {expected}, not null: the explanation takes no missing values in '{spec.name}'"
    return f"must be {expected}, not {json_type_name(value)[:80]}"
