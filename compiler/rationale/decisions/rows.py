"""Answers of a combined graph, row by row and by the names of features and groups."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rationale.schema.manifest import Attributed, EmbeddedProfile, Manifest, names_of
from rationale.schema.profile import DecisionProfile

Tensors = Mapping[str, np.ndarray]
# ONNX Runtime's Sigmoid and LOGISTIC of float32 are off by 1.5e-7 at most, and near 0 and 1 not in order
SIGMOID_ERROR = 1e-6
ENDS = 1e-5  # from 0 or 1, where that error is more than a hundredth of the way there


@dataclass(frozen=True)
class ExplainedRow:
    """One row of an answer.

    Attributes:
        score: the number that is compared with the threshold; see `decision_scores`.
        explained_value: the sum of base value and attributions: the score, or its margin.
        attributions: attributions by feature or group.
        gap: explained_value − base_value − Σ attributions.
    """

    score: float
    explained_value: float
    base_value: float | None
    attributions: Mapping[str, float]
    standard_errors: Mapping[str, float] | None
    gap: float | None


def profile_of(manifest: Manifest) -> EmbeddedProfile:
    """Return a manifest's decision profile, and assert that there is one."""
    assert manifest.decision is not None
    return manifest.decision


def attribution_keys(manifest: Manifest) -> tuple[str, ...]:
    """Return the features and groups that get attributions, in the order of the answers."""
    return tuple(
        key
        for item in manifest.attributed
        for key in names_of(item.tensor.name, item.feature_names, math.prod(item.tensor.shape))
    )


def explained_rows(manifest: Manifest, tensors: Tensors) -> list[ExplainedRow]:
    """Return the rows of the combined graph's answers.

    Args:
        tensors: answers of the combined graph, [N, …] each, with one target.
    """
    explained = tensors[manifest.explained_value][:, 0]
    base = None if manifest.base_value is None else tensors[manifest.base_value][:, 0]
    gap = None if manifest.completeness_gap is None else tensors[manifest.completeness_gap][:, 0]
    score = _scores(manifest, tensors)
    attributed = manifest.attributed
    attributions = _by_name(attributed, tensors, [item.attributions for item in attributed])
    errors = [item.standard_error for item in attributed]
    spread = _by_name(attributed, tensors, [error for error in errors if error]) if all(errors) else None
    return [
        ExplainedRow(
            score[i],
            float(explained[i]),
            None if base is None else float(base[i]),
            {name: values[i] for name, values in attributions.items()},
            None if spread is None else {name: values[i] for name, values in spread.items()},
            None if gap is None else float(gap[i]),
        )
        for i in range(len(explained))
    ]


def feature_values(
    manifest: Manifest, inputs: Tensors, instances: Sequence[Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return the features of each row as plain values, None for a missing one.

    An input of one value is there by the input's name too.

    Args:
        inputs: inputs of the model, [N, …] each.
        instances: the N instances that they were made from. Single values are taken from there as they were
            written, not as a tensor rounds them, and so are those that the model does not take.
    """
    rows = len(next(iter(inputs.values())))
    values: list[dict[str, Any]] = [{} for _ in range(rows)]
    feature_names = manifest.feature_names
    single_features: dict[str, str] = {}
    for spec in manifest.inputs:
        if spec.name not in inputs:
            continue
        table = inputs[spec.name].reshape(rows, -1)
        names = names_of(spec.name, feature_names.get(spec.name), table.shape[1])
        for row, elements in zip(values, table, strict=True):
            row.update(zip(names, map(_plain, elements), strict=True))
        if len(names) == 1:
            single_features[spec.name] = names[0]
    for row in values:  # a caller may say either, where no feature has the name of the input
        for name, feature in single_features.items():
            row.setdefault(name, row[feature])
    for row, instance in zip(values, instances or (), strict=instances is not None):
        row.update(
            (name, None if value == "" else value)
            for name, value in instance.items()
            if not isinstance(value, list | dict)
        )
    return values


def shortest(scores: np.ndarray) -> list[float]:
    """Return the scores by their shortest texts: 0.2 in float32, not 0.2000000030.

    So a score that is the threshold is equal to it.
    """
    return [float(str(score)) for score in scores]


def score_index(index: int | None, elements: int) -> int:
    """Return the index of the score in a row: the requested one, the only one, or class 1 of two."""
    return index if index is not None else int(elements == 2)


def score_location(manifest: Manifest) -> tuple[str, int]:
    """Return the tensor that holds the score, and the score's index in its row.

    If the entry does not decide, or decides by an inner tensor, this is the explained value.
    """
    profile = manifest.decision.profile if manifest.decision else None
    for spec in manifest.outputs:
        if profile is not None and spec.name == profile.tensor:
            return spec.name, score_index(profile.index, math.prod(spec.shape))
    return manifest.explained_value, 0


def margin_output(manifest: Manifest) -> str | None:
    """Return the output whose Sigmoid is the score; None if the score is the model's own answer."""
    embedded = profile_of(manifest)
    return manifest.explained_value if embedded.profile.space == "margin" else embedded.margin


def sigmoid(margins: np.ndarray) -> np.ndarray:
    """Return 1/(1 + e^-margin) in float64, which tells margins apart near 0 and 1 too."""
    small = np.exp(-np.abs(margins.astype(np.float64)))
    return np.asarray(np.where(margins < 0, small, 1) / (1 + small))


def logit(score: float) -> np.float64:
    """Return the margin whose Sigmoid is the score, in float64; an infinity for 0 and 1, NaN beyond them."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.float64(np.log(score) - np.log1p(-score))


def decision_scores(profile: DecisionProfile, scores: np.ndarray, margins: np.ndarray | None) -> list[float]:
    """Return the scores of rows; if margins are known, their Sigmoids in float64.

    So a margin is compared with the bound's own: one that is equal to it, as its type rounds that, has the
    bound for its score.

    Args:
        scores: [N] the model's own answers.
        margins: [N] margins whose Sigmoids these are, but for rounding; None if none are known.
    """
    if margins is None:
        return shortest(scores)
    sigmoids = sigmoid(margins)
    for bound in (*(profile.refer or ())[::-1], profile.threshold):
        sigmoids[margins == logit(bound).astype(margins.dtype)] = bound
    is_same = np.abs(sigmoids - scores) <= SIGMOID_ERROR  # else the model clips or rounds its answers
    return [float(score) for score in np.where(is_same, sigmoids, shortest(scores))]


def _scores(manifest: Manifest, tensors: Tensors) -> list[float]:
    profile, margin = profile_of(manifest).profile, margin_output(manifest)
    scores = tensors[manifest.explained_value][:, 0]
    if profile.tensor in tensors:  # else an inner tensor, the explained one
        output = tensors[profile.tensor].reshape(len(scores), -1)
        scores = output[:, score_index(profile.index, output.shape[1])]
    margins = tensors.get(margin) if margin else None  # a comparison's graph has none
    return decision_scores(profile, scores, None if margins is None else margins[:, 0])


def _by_name(
    attributed: Sequence[Attributed], tensors: Tensors, outputs: Sequence[str]
) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for item, output in zip(attributed, outputs, strict=True):
        values = tensors[output][:, 0].reshape(len(tensors[output]), -1)
        names = names_of(item.tensor.name, item.feature_names, values.shape[1])
        columns.update(zip(names, values.T.tolist(), strict=True))
    return columns


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | str):  # a missing text is an empty one
        return (value.decode(errors="replace") if isinstance(value, bytes) else value) or None
    if isinstance(value, np.floating):  # through text, which is the shortest: 0.52, not 0.5199999809
        return None if np.isnan(value) else float(str(value))
    return value.item() if isinstance(value, np.generic) else value
