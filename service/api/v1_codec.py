"""v1's instances ↔ tensors: named features in, named attributions out."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.manifest import Manifest, TensorSpec
from compiler.open_references import own_inputs
from service.errors import InvalidInputError, MalformedError
from service.faults import Faults, listed
from service.repository.entry import Entry
from service.tensors import DTYPES, Array, Tensors, flatten, from_values, json_type_name


@dataclass(frozen=True)
class Form:
    """How an entry's instances may be written: `features` maps a name to (input, flat index)."""

    inputs: tuple[TensorSpec, ...]
    features: dict[str, tuple[str, int]]

    def names(self) -> list[str]:
        """What an object must hold: the features, and the inputs that have none."""
        owners = {tensor for tensor, _ in self.features.values()}
        return [*self.features, *(spec.name for spec in self.inputs if spec.name not in owners)]


@dataclass(frozen=True)
class _Row:
    """One input's part of one instance: values in row-major order and their shape."""

    values: list[Any]
    shape: tuple[int, ...]


# An explained tensor in an answer: the output that attributes it, its own name, its features' names.
_Part = tuple[str, str | None, str, tuple[str, ...] | None]


def form_of(entry: Entry, manifest: Manifest | None) -> Form:
    """The form of `entry`; without a manifest there are no feature names. References are no instances."""
    opened = own_inputs(manifest.open_references) if manifest else ()
    specs = tuple(spec for spec in entry.inputs if spec.name not in opened)
    inputs = {spec.name for spec in specs}
    features = {
        feature: (name, index)
        for name, names in named_tensors(manifest).items()
        for index, feature in enumerate(names)
        if name in inputs
    }
    return Form(specs, features)


def named_tensors(manifest: Manifest | None) -> dict[str, tuple[str, ...]]:
    """Explained tensors whose features have names that no other tensor's features share."""
    named = {item.tensor.name: item.feature_names for item in manifest.explained} if manifest else {}
    uses = Counter(feature for names in named.values() for feature in names or ())
    return {
        name: names for name, names in named.items() if names and all(uses[feature] == 1 for feature in names)
    }


def note_duplicates(body: bytes | bytearray, faults: Faults) -> None:
    """Notes each member that an object names twice: most parsers keep the last, silently."""

    def members(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for name, _ in pairs:
            if name in seen:
                faults.note(f"feature '{name[:80]}' is given twice")
            seen.add(name)

    try:
        json.loads(body, object_pairs_hook=members)
    except (ValueError, RecursionError) as error:  # valid JSON by now, but this parser has other limits
        raise MalformedError(
            "the body is not valid JSON: a number is too long or the nesting too deep"
        ) from error


def to_tensors(form: Form, instances: Sequence[Any], faults: Faults, called: str = "instances") -> Tensors:
    """Instances → one [N, …] array per input.

    Args:
        faults: takes what is wrong, with the instances, and the features or inputs, at fault. Where it takes
            something the tensors are not whole.
        called: the member that they are.
    """
    if not instances:
        faults.note(f"{called} is empty: send at least one")
    rows = [_split(form, instance, f"{called}[{i}]", faults) for i, instance in enumerate(instances)]
    tensors: Tensors = {}
    if faults:
        return tensors
    for spec in form.inputs:
        with faults:
            tensors[spec.name] = _stack(spec, [row[spec.name] for row in rows])
    return tensors


def predictions(outputs: Sequence[str], tensors: Tensors) -> list[Any]:
    """Per row the output's own row, or {output: row} where there are several. Made for orjson."""
    readable = {name: _readable(tensors[name]) for name in outputs}
    if len(readable) == 1:
        return list(next(iter(readable.values())))
    return [dict(zip(readable, row, strict=True)) for row in zip(*readable.values(), strict=True)]


def explanations(manifest: Manifest, tensors: Tensors) -> list[dict[str, Any]]:
    """Per row one explanation, or {"targets": […]} where T > 1. Made for orjson."""
    rows = len(tensors[manifest.explained_value])
    targets, named = _targets(manifest, tensors, rows), named_tensors(manifest)
    layout = [
        (item.attributions, item.standard_error, item.tensor.name, named.get(item.tensor.name))
        for item in manifest.explained
    ]
    answers: list[dict[str, Any]] = []
    for i in range(rows):
        row = {name: array[i] for name, array in tensors.items()}
        told = [_explanation(manifest, layout, row, t, targets[i][t]) for t in range(manifest.target_count)]
        answers.append(told[0] if len(told) == 1 else {"targets": told})
    return answers


def _split(form: Form, instance: Any, where: str, faults: Faults) -> dict[str, _Row]:
    """One instance → a row per input."""
    if isinstance(instance, dict):
        return _split_object(form, instance, where, faults)
    rows: dict[str, _Row] = {}
    if len(form.inputs) > 1:
        names = listed([spec.name for spec in form.inputs])
        faults.note(f"{where} must be an object with a member for each of the inputs {names}")
        return rows
    spec = form.inputs[0]
    with faults:
        rows[spec.name] = _array_row(spec, instance, where)
    return rows


def _split_object(form: Form, instance: dict[str, Any], where: str, faults: Faults) -> dict[str, _Row]:
    rows: dict[str, _Row] = {}
    named: dict[str, dict[int, Any]] = {}
    unknown: list[str] = []
    specs = {spec.name: spec for spec in form.inputs}
    for name, value in instance.items():
        if name in form.features and not (name in specs and isinstance(value, list)):
            tensor, index = form.features[name]
            if (wrong := _scalar_fault(specs[tensor], value)) is not None:
                faults.note(f"{where}: feature '{name}' {wrong}")
            named.setdefault(tensor, {})[index] = value
        elif name in specs:
            with faults:
                rows[name] = _array_row(specs[name], value, f"{where}.{name[:80]}")
        else:
            unknown.append(name)
    if unknown:
        faults.note(f"{where}: unknown feature {listed(unknown)}; the model takes {listed(form.names())}")
    for name, values in named.items():
        if name in rows:
            faults.note(f"{where}: input '{name}' is given twice, whole and by its features")
        rows[name] = _Row(_complete(form, name, values, where, faults), specs[name].shape)
    for name in specs:
        if name not in rows and name not in instance:
            missing = [feature for feature, (tensor, _) in form.features.items() if tensor == name] or [name]
            faults.note(f"{where}: missing {listed(missing)}")
    return rows


def _complete(form: Form, tensor: str, values: dict[int, Any], where: str, faults: Faults) -> list[Any]:
    """All features' values in row-major order."""
    order = {index: feature for feature, (owner, index) in form.features.items() if owner == tensor}
    missing = [feature for index, feature in sorted(order.items()) if index not in values]
    if missing:
        faults.note(f"{where}: missing feature {listed(missing)}")
        return []
    return [values[index] for index in range(len(order))]


def _array_row(spec: TensorSpec, data: Any, where: str) -> _Row:
    try:
        values, shape = flatten(data)
    except ValueError as error:
        raise InvalidInputError(f"{where} is ragged: {error}") from error
    single = shape == () and all(size == 1 for size in spec.shape)
    if single:
        shape = spec.shape
    fits = len(shape) == len(spec.shape) and all(
        size == expected or expected == -1 for size, expected in zip(shape, spec.shape, strict=True)
    )
    if not fits:
        given = f"a list of shape {list(shape)}" if shape else json_type_name(data)
        raise InvalidInputError(
            f"{where} is {given}, but input '{spec.name}' takes {list(spec.shape)} per row"
        )
    return _Row(values, shape)


def _stack(spec: TensorSpec, rows: Sequence[_Row]) -> Array:
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise InvalidInputError(
            f"input '{spec.name}' has rows of different shapes ({', '.join(map(str, sorted(shapes)[:4]))}): "
            "send them in requests of their own"
        )
    values = [value for row in rows for value in row.values]
    return from_values(spec.name, spec.datatype, (len(rows), *shapes.pop()), values)


_SCALARS: dict[str, tuple[tuple[type, ...], str]] = {
    "b": ((bool,), "true or false"),
    "u": ((int,), "a whole number"),
    "i": ((int,), "a whole number"),
    "f": ((int, float), "a number"),
    "O": ((str,), "a string"),
}


def _scalar_fault(spec: TensorSpec, value: Any) -> str | None:
    """What is wrong with the value of a feature."""
    allowed, said = _SCALARS[DTYPES[spec.datatype].kind]
    if type(value) in allowed:
        return None
    if isinstance(value, list):
        return "is one value, not a list"
    return f"must be {said}, not {json_type_name(value)[:80]}"


def _targets(manifest: Manifest, tensors: Tensors, rows: int) -> list[Sequence[int | None]]:
    """[N][T] flat indices; None for 'predicted' where the explained output is not among the answers."""
    if manifest.targets != "predicted":
        return [manifest.targets] * rows
    explained = tensors.get(manifest.explained_output)
    if explained is None:
        return [(None,)] * rows
    return [(int(row.argmax()),) for row in explained.reshape(rows, -1)]


def _explanation(
    manifest: Manifest, layout: Sequence[_Part], row: Tensors, t: int, target: int | None
) -> dict[str, Any]:
    """One target of one row; `row` holds [T, …] arrays."""
    scalars = {
        "explained_value": manifest.explained_value,
        "base_value": manifest.base_value,
        "completeness_gap": manifest.completeness_gap,
        "completeness_gap_standard_error": manifest.completeness_gap_standard_error,
    }
    told = {"target": target} | {member: row[name][t] for member, name in scalars.items() if name is not None}
    attributions: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    for attributed, error, tensor, names in layout:
        attributions |= _by_feature(row[attributed][t], tensor, names)
        errors |= _by_feature(row[error][t], tensor, names) if error else {}
    return told | {"attributions": attributions} | ({"standard_errors": errors} if errors else {})


def _by_feature(values: Array, tensor: str, names: Sequence[str] | None) -> dict[str, Any]:
    if not names:
        return {tensor: np.ascontiguousarray(values)}
    return dict(zip(names, values.reshape(-1), strict=True))


def _readable(array: Array) -> Any:
    if array.dtype.kind != "O":
        return np.ascontiguousarray(array)
    decoded = [element.decode(errors="replace") for element in array.reshape(-1)]
    return np.array(decoded, dtype=np.object_).reshape(array.shape).tolist()
