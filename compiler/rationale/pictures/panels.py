"""Panels of an explanation: bars for tables, a heatmap for images, shaded words for tokens.

There is a panel for each row, target and explained input. The features of all tables of a row share a panel,
and so do all layers.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from rationale.pictures.numbers import feature_value, score_text
from rationale.pictures.words import NUMBERS, Vocabulary, Word
from rationale.schema.manifest import Attributed, ExplainedConcepts, Manifest
from rationale.schema.profile import DecisionProfile

_CHANNELS = (1, 3, 4)  # possible numbers of an image's channels
_LONGEST_NAME = 34
_CUT = 12  # characters to keep of a long name's end


class ExplanationLike(Protocol):
    """The result of `Compiled.explain`: outputs by name, with the inputs and the graph's manifest."""

    manifest: Manifest
    inputs: dict[str, np.ndarray]
    index: Sequence[object]

    def __getitem__(self, name: str, /) -> np.ndarray: ...

    def __contains__(self, name: object, /) -> bool: ...

    def items(self) -> Iterable[tuple[str, np.ndarray]]: ...


@dataclass(frozen=True)
class Estimate:
    """Values [F] and their standard errors."""

    values: np.ndarray
    errors: np.ndarray


@dataclass(frozen=True)
class Bars:
    """Attributions [F] by size and their standard errors; Shapley values with theirs, if known.

    `order` holds the indices of all features in the order of the bars. From `base`, the bars add up to
    `score`, which the figure calls `total`, except for the completeness gap; both are None if there is
    no such sum. `is_share`: they are of a probability, and written in percent.
    """

    title: str
    labels: tuple[str, ...]
    values: np.ndarray
    errors: np.ndarray | None = None
    shapley: Estimate | None = None
    order: tuple[int, ...] = ()
    base: float | None = None
    score: float | None = None
    total: str = "score"
    is_share: bool = False


@dataclass(frozen=True)
class Heat:
    """Attributions [H, W] over a grey picture [H, W] from 0 to 1; None if there is no picture."""

    title: str
    values: np.ndarray
    picture: np.ndarray | None


@dataclass(frozen=True)
class Words:
    """Tokens, each with its attribution [L]."""

    title: str
    words: tuple[Word, ...]
    values: np.ndarray


@dataclass(frozen=True)
class LayerFlow:
    """The flow of attributions: sums of the raising and the lowering ones, for inputs and each layer [L].

    `total` is explained − base value: the sum of any layer through which every path leads.
    """

    title: str
    labels: tuple[str, ...]
    raising: np.ndarray
    lowering: np.ndarray
    total: float
    is_share: bool = False


Panel = Bars | Heat | Words | LayerFlow


@dataclass(frozen=True)
class TensorAttributions:
    """An explained input of one row, or all players: attributions; values and standard errors if known.

    Attributes:
        names: titles of the features.
    """

    explained: Attributed
    attributions: np.ndarray
    values: np.ndarray | None
    errors: np.ndarray | None
    names: tuple[str, ...] = ()


def targets_of(answer: ExplanationLike) -> np.ndarray:
    """Return indices [N, T] into the explained output's row; "predicted" if the output is not answered."""
    manifest = answer.manifest
    n, t = answer[manifest.explained_value].shape
    if manifest.targets != "predicted":
        return np.broadcast_to(np.asarray(manifest.targets), (n, t))
    if manifest.explained_output not in answer:
        return np.full((n, t), "predicted")
    return np.asarray(answer[manifest.explained_output].reshape(n, -1).argmax(axis=1)[:, None])


def largest_targets(answer: ExplanationLike, i: int, most: int) -> Sequence[int]:
    """Return the positions of row i's targets; if more than `most`, those with the largest values."""
    explained = answer[answer.manifest.explained_value][i]
    if len(explained) <= most:
        return range(len(explained))
    return [int(j) for j in np.argsort(-explained, kind="stable")[:most]]


def panels_of(
    answer: ExplanationLike, i: int, row: int | str, top: int, vocabulary: Vocabulary, most: int | None = None
) -> Iterator[Panel]:
    """Yield the panels of row i of an answer, target by target.

    Args:
        row: the row's number in titles, from 1 as people count, or its name.
        top: number of features with a bar of their own; the others share one.
        most: number of targets, those with the largest values; None for all.
    """
    manifest, elements = answer.manifest, targets_of(answer)[i]
    for j in largest_targets(answer, i, len(elements) if most is None else most):
        items = [_tensor_attributions(answer, e, (i, j)) for e in manifest.attributed]
        score = score_text(answer[manifest.explained_value][i, j], manifest.explains_share)
        heading = f"{element_name(manifest, elements[j])}: {score}"
        if manifest.base_value is not None:
            base = score_text(answer[manifest.base_value][i, j], manifest.explains_share)
            heading += f", base value {base}"
        whole = manifest.completeness_gap is not None and all(map(_is_table, items))
        for panel in panels(f"row {row}, {heading}", items, top, vocabulary):
            yield _with_total(panel, answer, i, j) if isinstance(panel, Bars) and whole else panel
        if manifest.layers:
            yield flow(f"row {row}, {heading}: layer by layer", answer, i, j)
        if manifest.concepts is not None:
            yield from _concepts(f"row {row}, {heading}", manifest.concepts, answer, i, j, top, vocabulary)


def _with_total(panel: Bars, answer: ExplanationLike, i: int, j: int) -> Bars:
    """Return bars with their base value, 0 without references, and the score that they add up to."""
    manifest = answer.manifest
    base = 0.0 if manifest.base_value is None else float(answer[manifest.base_value][i, j])
    score = float(answer[manifest.explained_value][i, j])
    is_output = manifest.explained_output in {spec.name for spec in manifest.outputs}
    total = "score" if is_output else "explained value"  # such as a margin
    return replace(panel, base=base, score=score, total=total, is_share=manifest.explains_share)


def _concepts(
    title: str,
    concepts: ExplainedConcepts,
    answer: ExplanationLike,
    i: int,
    j: int,
    top: int,
    vocabulary: Vocabulary,
) -> Iterator[Panel]:
    """Yield panels of the inputs' contributions to each of the most relevant channels."""
    for c, channel in enumerate(answer[concepts.channels][i, j]):
        share = answer[concepts.attributions][i, j, channel]
        heading = f"{title}: channel {channel} of {shorten_name(concepts.tensor.name)}, {share:+.4g}"
        inputs = (e.attributed(concepts.heatmaps[e.tensor.name]) for e in answer.manifest.explained)
        each = [_tensor_attributions(answer, e, (i, j, c)) for e in inputs]
        yield from panels(heading, each, top, vocabulary)


def flow(title: str, answer: ExplanationLike, i: int, j: int) -> LayerFlow:
    """Return the flow of row i's attributions of target j through the layers that the entry answers."""
    manifest = answer.manifest
    inputs = [answer[e.attributions][i, j].reshape(-1) for e in manifest.attributed]
    layers = [answer[layer.attributions][i, j].reshape(-1) for layer in manifest.layers]
    each = [a.astype(np.float64) for a in (np.concatenate(inputs), *layers)]
    base = 0.0 if manifest.base_value is None else float(answer[manifest.base_value][i, j])
    names = [shorten_name(e.tensor.name) for e in manifest.explained]
    return LayerFlow(
        title,
        (", ".join(names), *(shorten_name(layer.tensor.name) for layer in manifest.layers)),
        np.asarray([a[a > 0].sum() for a in each]),
        np.asarray([a[a < 0].sum() for a in each]),
        float(answer[manifest.explained_value][i, j]) - base,
        manifest.explains_share and manifest.completeness_gap is not None,
    )


def element_name(manifest: Manifest, element: object) -> str:
    """Name the explained output; of several elements, name the class or the index, too."""
    output = shorten_name(manifest.explained_output)
    if math.prod(manifest.explained_shape) == 1:
        return output
    if named := manifest.class_name(element):
        which = f" of class {named}"
    else:
        which = "" if element == "predicted" else f"[{element}]"
    return output + which + " (predicted)" * (manifest.targets == "predicted")


def panels(
    title: str,
    items: Sequence[TensorAttributions],
    top: int,
    vocabulary: Vocabulary = NUMBERS,
    shapley: Estimate | None = None,
    order: Sequence[int] = (),
) -> Iterator[Panel]:
    """Yield the panels of one row and target.

    It draws Shapley values if all parts are tables. `order`: see `bars`.
    """
    tables = [item for item in items if _is_table(item)]
    if tables:
        yield bars(title, tables, top, shapley if len(tables) == len(items) else None, order)
    for item in items:
        several = f"{title}: {item.explained.tensor.name}" if len(items) > 1 else title
        if item.explained.at and item.values is not None and item.values.ndim == 1:
            yield _words(several, item, item.values, vocabulary)
        elif not _is_table(item):
            yield _heat(several, item)


def split_attributions(
    manifest: Manifest, attributions: np.ndarray, values: np.ndarray
) -> list[TensorAttributions]:
    """Split attributions, and values [F] of all explained inputs, into parts."""
    tensors = [e.tensor for e in manifest.explained]
    ends = np.cumsum([math.prod(t.shape) for t in tensors])[:-1]
    each = zip(tensors, np.split(values, ends), strict=True)
    values_by_tensor = {t.name: v.reshape(t.shape) for t, v in each}
    ends = np.cumsum([math.prod(e.tensor.shape) for e in manifest.attributed])[:-1]
    return [
        TensorAttributions(
            e, a.reshape(e.tensor.shape), None if e.of_players else values_by_tensor[e.tensor.name], None
        )
        for e, a in zip(manifest.attributed, np.split(attributions, ends), strict=True)
    ]


def _tensor_attributions(
    answer: ExplanationLike, e: Attributed, position: tuple[int, ...]
) -> TensorAttributions:
    """Return the part at a row and target, and at a channel for a concept."""
    i = position[0]
    attributions = answer[e.attributions][position]
    keys = e.names(attributions.size)
    errors = answer[e.standard_error][position] if e.standard_error else None
    values: np.ndarray | None = None
    if e.of_players:
        columns = feature_columns(answer)
        values = np.array([columns[key][i] if key in columns else None for key in keys], object)
    elif e.tensor.name in answer.inputs:
        values = answer.inputs[e.tensor.name][i]
    if values is not None and values.size == len(keys) and answer.manifest.decision is not None:
        values = _in_words(answer.manifest.decision.profile, keys, values.reshape(-1))
    return TensorAttributions(e, attributions, values, errors, titles(answer.manifest, e, attributions.size))


def feature_columns(answer: ExplanationLike) -> dict[str, np.ndarray]:
    """Return the values [N] of each named feature."""
    columns: dict[str, np.ndarray] = {}
    for e in answer.manifest.explained:
        given = answer.inputs.get(e.tensor.name)
        if given is not None and e.feature_names and given[0].size == len(e.feature_names):
            columns |= zip(e.feature_names, given.reshape(len(given), -1).T, strict=True)
    return columns


def _in_words(profile: DecisionProfile, keys: Sequence[str], values: np.ndarray) -> np.ndarray:
    """Return values [F] with the profile's words for codes, and units behind numbers."""
    texts = values.astype(object)
    for k, (key, value) in enumerate(zip(keys, values, strict=True)):
        rule = profile.features.get(key)
        if rule is None or value is None:
            continue
        label = rule.label(value)
        if label is None and rule.unit and not isinstance(value, str) and not math.isnan(value):
            label = f"{feature_value(value)} {rule.unit}"
        texts[k] = value if label is None else label
    return texts


def titles(manifest: Manifest, e: Attributed, count: int) -> tuple[str, ...]:
    """Return the decision profile's titles of features or groups, or else their names."""
    names, decision = e.names(count), manifest.decision
    return tuple(names) if decision is None else tuple(decision.profile.title(name) for name in names)


def _is_table(item: TensorAttributions) -> bool:
    """Tell whether a part is drawn as bars: rows of numbers, or arrays with too many axes for a picture."""
    return is_table(item.explained, item.attributions.ndim)


def is_table(explained: Attributed, axes: int) -> bool:
    """Tell whether attributions with this number of axes per row are drawn as bars."""
    return not (explained.at and axes == 1) and axes not in (2, 3)


# -- tables --------------------------------------------------------------------------------------------


def bars(
    title: str,
    items: Sequence[TensorAttributions],
    top: int,
    shapley: Estimate | None = None,
    order: Sequence[int] = (),
) -> Bars:
    """Return bars of the largest features first, with the others together in the last bar.

    Args:
        order: feature indices in the order of an earlier panel; by size if empty.
    """
    values = np.concatenate([item.attributions.reshape(-1) for item in items]).astype(np.float64)
    labels = [label for item in items for label in _labels(item)]
    errors = [item.errors.reshape(-1) for item in items if item.errors is not None]
    indices = np.asarray(order, np.intp)
    if len(indices) != len(values):
        indices = np.argsort(-np.abs(values), kind="stable")
    first, others = (indices, indices[:0]) if len(indices) <= top + 1 else (indices[:top], indices[top:])
    names = [labels[i] for i in first] + [f"{len(others)} others"] * bool(len(others))

    def together(array: np.ndarray) -> np.ndarray:
        return np.append(array[first], [array[others].sum()] * bool(len(others)))

    def spread(array: np.ndarray) -> np.ndarray:
        return np.append(array[first], [np.nan] * bool(len(others)))  # the error of a sum is unknown

    return Bars(
        title,
        tuple(names),
        together(values),
        spread(np.concatenate(errors)) if errors else None,
        Estimate(together(shapley.values), spread(shapley.errors)) if shapley else None,
        tuple(map(int, indices)),
    )


def _labels(item: TensorAttributions) -> list[str]:
    """Return a label "name = value" for each feature."""
    names = item.names or item.explained.names(item.attributions.size)
    if item.values is None or item.values.size != len(names):
        return [shorten_name(name) for name in names]
    return [
        shorten_name(n) if v is None else f"{shorten_name(n)} = {format_value(v)}"
        for n, v in zip(names, item.values.reshape(-1), strict=True)
    ]


def format_value(value: str | float) -> str:
    if isinstance(value, str):
        return shorten_name(value)
    return "missing" if math.isnan(value) else feature_value(value)


def shorten_name(name: str) -> str:
    """Shorten a long name by cutting its middle."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - _CUT - 1]}…{name[-_CUT:]}"


# -- images and tokens ---------------------------------------------------------------------------------


def _heat(title: str, item: TensorAttributions) -> Heat:
    """Return a heat map: the sum of attributions over channels, and the mean of the picture."""
    values = item.attributions.astype(np.float64)
    picture = None if item.values is None else item.values.astype(np.float64)
    if values.ndim == 3:
        axis = 2 if values.shape[2] in _CHANNELS and values.shape[0] not in _CHANNELS else 0
        if picture is not None and values.shape[axis] not in _CHANNELS:
            picture = None
        values = values.sum(axis=axis)
        picture = None if picture is None else picture.mean(axis=axis)
    return Heat(title, values, None if picture is None else _grey(picture))


def _grey(picture: np.ndarray) -> np.ndarray:
    span = np.ptp(picture)
    return (picture - picture.min()) / span if span else np.full(picture.shape, 0.5)


def _words(title: str, item: TensorAttributions, ids: np.ndarray, vocabulary: Vocabulary) -> Words:
    """Return words without the padding at the end: equal ids without attributions."""
    values = item.attributions.astype(np.float64)
    last = np.flatnonzero((ids != ids[-1]) | (values != 0))
    length = int(last[-1]) + 1 if len(last) and last[-1] < len(ids) - 2 else len(ids)
    return Words(title, tuple(vocabulary.words(ids[:length].tolist())), values[:length])
