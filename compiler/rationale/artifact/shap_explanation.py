"""An answer as a `shap.Explanation`, for SHAP's own plots."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rationale.errors import InvalidOptionError
from rationale.schema.manifest import Attributed, Manifest

Arrays = Mapping[str, np.ndarray]


def shap_explanation(
    answer: Arrays, rows: Arrays, manifest: Manifest, target: int | None, inputs: Sequence[str] | None
) -> Any:
    """Return the result of `Explanation.to_shap`.

    Args:
        answer: the combined graph's outputs.
        rows: its inputs, by name.
    """
    _check_target(target, manifest.target_count)
    explained = _select(manifest, inputs)
    try:
        import shap
    except ModuleNotFoundError as error:
        raise InvalidOptionError("to_shap() needs the shap package: pip install shap.") from error
    tensors = [e.tensor.name for e in explained]
    has_data = rows.keys() >= set(tensors) and not any(e.of_players for e in explained)
    errors = [e.standard_error for e in explained if e.standard_error]
    single_target = target is not None or manifest.target_count == 1
    return shap.Explanation(
        values=_of_target(_side_by_side(answer, [e.attributions for e in explained], 2), target),
        base_values=_of_target(answer[manifest.base_value], target) if manifest.base_value else None,
        error_std=_of_target(_side_by_side(answer, errors, 2), target) if errors else None,
        data=_side_by_side(rows, tensors, 1) if has_data else None,  # inner tensors and groups have none
        feature_names=_feature_names(answer, explained),
        output_names=None if single_target else [str(t) for t in manifest.targets],
    )


def _check_target(target: int | None, count: int) -> None:
    if target is not None and target not in range(count):
        raise InvalidOptionError(
            f"to_shap(target={target!r}): give the position of one of the targets, 0 to {count - 1}."
        )


def _select(manifest: Manifest, inputs: Sequence[str] | None) -> list[Attributed]:
    """Return the requested explained inputs and players: any number of tables, or one array of any shape."""
    by_name = {e.tensor.name: e for e in manifest.attributed}
    names = list(by_name) if inputs is None else list(inputs)
    if isinstance(inputs, str) or not names or len({*names} & {*by_name}) < len(names):
        raise InvalidOptionError(
            f"to_shap(inputs={inputs!r}): give a list of different names out of {list(by_name)}."
        )
    arrays = [name for name in names if len(by_name[name].tensor.shape) > 1]
    if arrays and len(names) > 1:
        raise InvalidOptionError(
            f"to_shap(): {arrays} are not tables, so their features cannot be joined in one row. Convert "
            f"one input at a time, such as to_shap(inputs={arrays[:1]})."
        )
    return [by_name[name] for name in names]


def _side_by_side(arrays: Arrays, names: Sequence[str], lead: int) -> np.ndarray:
    """Return the features of tables in one axis, behind `lead` others; a single array unchanged."""
    if len(names) == 1 and arrays[names[0]].ndim > lead:
        return arrays[names[0]]
    return np.concatenate([arrays[n].reshape(*arrays[n].shape[:lead], -1) for n in names], axis=lead)


def _of_target(array: np.ndarray, target: int | None) -> np.ndarray:
    """Return [N, T, …] as [N, …] for one target, or as [N, …, T]."""
    if array.shape[1] == 1:
        target = 0
    return np.moveaxis(array, 1, -1) if target is None else array[:, target]


def _feature_names(answer: Arrays, explained: Sequence[Attributed]) -> list[str] | None:
    """Return the names of the features side by side; None for a single input without names."""
    if len(explained) == 1:
        return list(explained[0].feature_names or ()) or None
    return [name for e in explained for name in e.names(answer[e.attributions][0, 0].size)]
