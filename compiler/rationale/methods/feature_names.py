"""Feature names: they order the columns of references and bounds that are given as tables."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.errors import InvalidOptionError, InvalidReferencesError, RationaleError
from rationale.lowering import Lowered
from rationale.methods.engine import ChoiceT, Method, MethodT, Selection
from rationale.methods.players import choose_players
from rationale.methods.target import Target
from rationale.references.reference_set import OpenReferences, map_rows
from rationale.schema.manifest import default_names
from rationale.schema.request import CompileRequest, FeatureNames
from rationale.tables.frames import (
    are_default_labels,
    columns_in_order,
    divide_columns,
    frame_of,
    positions_of,
    row_labels,
)

NAMED_FEATURES = 4096  # inputs with more features, or with inner axes, are answered as arrays
_ROWS = ("references", "covers")
_OPTIONS = (*_ROWS, "low", "high", "sigma")  # options of methods with a value for each feature


def with_named_features(
    selection: Selection[MethodT, ChoiceT], request: CompileRequest
) -> Selection[MethodT, ChoiceT]:
    """Return the selection with the names of its features, arrays for tables, and groups as players.

    Raises:
        InvalidReferencesError, InvalidOptionError: if columns are unknown, missing, doubled or not numeric,
            or names or groups do not fit.
    """
    lowered, target = selection.lowered, selection.target
    method, names = with_named_columns(selection.method, lowered, target, request.features)
    if request.groups:
        rows = {name: tuple(lowered.specs[name][0][1:]) for name in target.inputs}
        names_of_inputs = features_of(target.inputs, rows, names)
        features = {i: n or default_names(i, math.prod(rows[i])) for i, n in names_of_inputs.items()}
        target = replace(target, players=choose_players(request.groups, features))
    return replace(selection, target=target, method=method, feature_names=names)


def with_frames(method: Method) -> Method:
    """Return the method with frames in place of its tables, so that a query is run once."""
    tables = {option: value for option in _ROWS if (value := getattr(method, option, None)) is not None}
    if tables:
        copy: Any = method  # a frozen dataclass, as all methods are
        method = replace(copy, **{option: map_rows(value, _as_frame) for option, value in tables.items()})
    return method


def _as_frame(rows: Any) -> Any:
    frame = None if isinstance(rows, np.ndarray) else frame_of(rows)
    return rows if frame is None else frame


def with_named_columns(
    method: MethodT, lowered: Lowered, target: Target, names: FeatureNames | None
) -> tuple[MethodT, FeatureNames | None]:
    """Return the method with arrays in place of its tables, and the names of the features.

    Without names, the first table's columns name the features, and other tables must have the same columns.

    Raises:
        InvalidReferencesError, InvalidOptionError: if columns are unknown, missing, doubled or not numeric.
    """
    tables = {option: value for option in _OPTIONS if (value := getattr(method, option, None)) is not None}
    if not tables:
        return method, names
    only = target.inputs[0] if len(target.inputs) == 1 else None
    by_input = names if isinstance(names, Mapping) else {only: names} if only and names is not None else {}
    missing = target.inputs if method.engine.takes_missing else target.filled
    features = _Features(lowered, target.inputs, missing, dict(by_input))
    copy: Any = method  # a frozen dataclass, like every method
    copy = replace(copy, **{option: features.arrays(option, value) for option, value in tables.items()})
    return copy, features.names or names


def features_of(
    explained: Sequence[str], rows: Mapping[str, Sequence[int]], feature_names: FeatureNames | None
) -> dict[str, tuple[str, ...] | None]:
    """Return the names of each explained tensor's flattened features; None if too many, or unknown.

    Args:
        rows: the shape of one row of each tensor; −1 is an open length.

    Raises:
        InvalidOptionError: if names do not fit or repeat.
    """
    if feature_names is not None and not isinstance(feature_names, Mapping):
        if len(explained) != 1:
            raise InvalidOptionError(f"name the features of each input: {list(explained)}.")
        feature_names = {explained[0]: feature_names}
    unknown = sorted(set(feature_names or {}) - set(explained))
    if unknown:
        raise InvalidOptionError(f"feature names for {unknown}; the explained inputs are {list(explained)}.")
    names = {i: _checked_names(i, rows[i], (feature_names or {}).get(i)) for i in explained}
    every = [n for group in names.values() if group for n in group]
    repeated = sorted({n for n in every if every.count(n) > 1}) if len(set(every)) < len(every) else []
    if repeated:
        raise InvalidOptionError(f"feature names must be unique; {repeated} are not.")
    return names


def _checked_names(name: str, row: Sequence[int], names: Sequence[str] | None) -> tuple[str, ...] | None:
    count = math.prod(row)
    if -1 in row:
        if names is not None:
            raise InvalidOptionError(
                f"{name!r} has no fixed number of features, so they cannot have names: give its length."
            )
        return None
    if names is not None:
        if isinstance(names, str) or not all(isinstance(n, str) and n.strip() for n in names):
            raise InvalidOptionError(f"feature names of {name!r} must be a list of words: {names!r}.")
        if len(names) != count:
            raise InvalidOptionError(
                f"{len(names)} feature names for {name!r}, which has {count} features a row."
            )
        return tuple(names)
    if len(row) != 1 or count > NAMED_FEATURES:
        return None
    return default_names(name, count)


@dataclass(frozen=True)
class _Features:
    """The explained inputs, and the names of their features so far."""

    lowered: Lowered
    inputs: Sequence[str]
    missing: Collection[str]  # inputs that may have missing values
    names: dict[str, Sequence[str]]

    def arrays(self, option: str, setting: Any) -> Any:
        """Return an option's value: an array, an array for each input, or the unchanged value."""
        if isinstance(setting, OpenReferences):
            return replace(setting, examples=self.arrays(option, setting.examples))
        if isinstance(setting, Mapping):
            return {name: self.array(option, name, value) for name, value in setting.items()}
        if len(self.inputs) == 1:
            return self.array(option, self.inputs[0], setting)
        frame = frame_of(setting) if option in _ROWS else None
        if frame is None:
            return setting
        inputs = {name: self.names.get(name, self.name_of_single_feature(name)) for name in self.inputs}
        fault = partial(_fault, option, "")
        return self.arrays(option, divide_columns(frame, inputs, self.model_inputs.difference(inputs), fault))

    def array(self, option: str, name: str, value: Any) -> Any:
        """Return one input's array, in the order of its features."""
        if isinstance(value, np.ndarray):
            return value
        frame = frame_of(value)
        labels = frame.labels if frame else None if option in _ROWS else row_labels(value)
        if labels is None:
            return value
        row = self.lowered.specs[name][0][1:] if name in self.inputs else None
        if row in ((len(labels),), ()) and not are_default_labels(labels):
            self.names.setdefault(name, tuple(map(str, labels)))
        whole = row == (len(labels),) or name in self.model_inputs  # else it is the source of an inner tensor
        names = self.names.get(name) if whole else None
        fault = partial(_fault, option, f" of {name!r}")
        if frame is None:
            return np.asarray(value)[positions_of(labels, names, fault)]
        text = self.lowered.specs[name][1] == ir.DataType.STRING
        rows = columns_in_order(frame, names, fault, words=text, missing=name in self.missing)
        rows = rows[:, 0] if row == () else rows
        return rows[0] if option not in _ROWS and len(rows) == 1 else rows

    @property
    def model_inputs(self) -> set[str]:
        """The model's inputs."""
        return {str(value.name) for value in self.lowered.model.graph.inputs}

    def name_of_single_feature(self, name: str) -> Sequence[str] | None:
        """Return an input's own name as its feature name if it has one feature; None for other inputs."""
        return (name,) if self.lowered.specs[name][0][1:] in ((1,), ()) else None


def _fault(option: str, subject: str, text: str) -> RationaleError:
    kind = InvalidReferencesError if option in _ROWS else InvalidOptionError
    return kind(f"{option}{subject}: {text}")
