"""A compiled entry as two functions of its features: the model's answer, and its attributions.

N rows, F features of one row (those of all explained inputs, flattened and side by side), T targets of the
entry, of which t are evaluated. Without groups each feature is a player.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rationale.artifact.compiled import Compiled
from rationale.artifact.finishing.one_shot import keep_outputs, open_gate
from rationale.errors import InvalidOptionError, RepositoryError
from rationale.graph.runtime.session import Runner, kernels_of
from rationale.schema.machine import MAX_BATCH
from rationale.schema.manifest import Manifest, contrast_ends, default_names

MAX_TARGETS = 10  # targets evaluated per row: those with the largest outputs
_MOST_ROWS, _MOST_NUMBERS = 4096, 1 << 18  # limits of one batch for the plain model


@dataclass(frozen=True)
class GivenReferences:
    """The references that an entry was compiled with, by input, and their weights [K] if not all equal."""

    arrays: Mapping[str, np.ndarray]
    weights: np.ndarray | None = None

    @property
    def shares(self) -> np.ndarray:
        """Weights [K] that sum to 1."""
        count = len(next(iter(self.arrays.values())))
        weights = np.ones(count) if self.weights is None else np.asarray(self.weights, np.float64)
        return np.asarray(weights / weights.sum())


class ExplainedModel:
    """The plain model and its explanation over rows of features.

    A text is a number here: its index among the distinct texts seen so far.

    Attributes:
        features: [N, F] float64, the rows of the file.
        baseline: [F], the row that the compiler left for warmup: the mean of the references, else zeros.
        owner: [F], the player of each feature; a player's features are replaced together. Without groups
            0 … F − 1.
    """

    def __init__(self, compiled: Compiled, inputs: Mapping[str, np.ndarray]) -> None:
        self.manifest = compiled.manifest
        self._shapes = {e.tensor.name: e.tensor.shape for e in self.manifest.explained}
        self._inputs = dict(inputs)
        self._places: dict[str, int] = {}
        self.features = self.flat(inputs)
        self.baseline = self.flat(warmup_rows(compiled))[0]
        self.owner = feature_owners(self.manifest)
        self._plain = plain_runner(compiled)
        self._explainer = compiled.run

    def flat(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return [N, F] float64: rows of the explained inputs, side by side."""
        parts = [self._numbers(inputs[name]).reshape(len(inputs[name]), -1) for name in self._shapes]
        return np.concatenate(parts, axis=1, dtype=np.float64)

    def _numbers(self, array: np.ndarray) -> np.ndarray:
        if not is_text(array):
            return array
        return np.array([self._places.setdefault(str(t), len(self._places)) for t in array.reshape(-1)])

    def _of_type(self, numbers: np.ndarray, name: str) -> np.ndarray:
        """Return numbers of `flat` in the input's own type."""
        if not is_text(self._inputs[name]):
            return numbers.astype(self._inputs[name].dtype)
        return np.asarray(np.array([*self._places], object)[numbers.astype(int)])

    def values(self, row: int) -> np.ndarray:
        """Return the values [F] of a row of the file; texts stay texts."""
        if not any(is_text(self._inputs[name]) for name in self._shapes):
            return np.asarray(self.features[row])
        return np.concatenate([self._inputs[name][row].reshape(-1).astype(object) for name in self._shapes])

    def _fed(self, x: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return inputs with features x [M, F]; other inputs come from `rows` [M] of the file."""
        fed = {name: a[rows] for name, a in self._inputs.items() if name not in self._shapes}
        start = 0
        for name, shape in self._shapes.items():
            size = math.prod(shape)
            flat = x[:, start : start + size].reshape(len(x), *shape)
            fed[name], start = self._of_type(flat, name), start + size
        return fed

    def answer(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the explained output, flattened, and each contrast: [M, elements] float64 for x [M, F]."""
        name = self.manifest.explained_output
        parts = [
            self._plain(self._fed(x[batch], rows[batch]), [name])[name].reshape(batch.stop - batch.start, -1)
            for batch in slices(len(x), rows_at_once(x.shape[1]))
        ]
        answers = _finite(np.concatenate(parts, dtype=np.float64), "answers")
        pairs = map(contrast_ends, self.manifest.contrasts)
        return np.hstack([answers, *(answers[:, [a]] - answers[:, [b]] for a, b in pairs)])

    @property
    def columns(self) -> np.ndarray:
        """Index of each listed target in an answer, [T]; contrasts follow elements."""
        elements, contrasts = math.prod(self.manifest.explained_shape), self.manifest.contrasts
        return np.asarray(
            [t if isinstance(t, int) else elements + contrasts.index(t) for t in self.manifest.targets]
        )

    def attributions(self, x: np.ndarray, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return attributions [M, t, players] float64 of the targets at manifest `positions` [M, t]."""
        names = [e.attributions for e in self.manifest.attributed]
        batches = []
        for batch in slices(len(x), self.manifest.measured.max_batch):
            outputs = self._explainer(self._fed(x[batch], rows[batch]), names)
            arrays = [outputs[name].reshape(*outputs[name].shape[:2], -1) for name in names]
            index = positions[batch][:, :, None]
            batches.append(np.concatenate([np.take_along_axis(a, index, axis=1) for a in arrays], axis=2))
        return _finite(np.concatenate(batches, dtype=np.float64), "attributes")


@dataclass(frozen=True)
class Pairs:
    """The evaluated pairs: P = N·t pairs of a row and one element of the output.

    Attributes:
        rows: [P], indices of rows.
        elements: [P], places in an answer: flat indices into the explained output's row, or contrasts.
        positions: [N, t], the same targets as places in the manifest's list.
        attributions: [P, players].
        answers: [P], the explained values.
    """

    rows: np.ndarray
    elements: np.ndarray
    positions: np.ndarray
    attributions: np.ndarray
    answers: np.ndarray


def evaluated_pairs(subject: ExplainedModel) -> Pairs:
    """Return every row with its targets.

    "predicted" is the argmax of the original row, and stays fixed when x changes.
    """
    all_rows = np.arange(len(subject.features))
    answers = subject.answer(subject.features, all_rows)
    if subject.manifest.targets == "predicted":
        elements = answers.argmax(axis=1, keepdims=True)
        positions = np.zeros_like(elements)
    else:
        index = subject.columns
        positions = np.argsort(-answers[:, index], axis=1, kind="stable")[:, :MAX_TARGETS]
        elements = index[positions]
    attributions = subject.attributions(subject.features, all_rows, positions)
    return Pairs(
        rows=np.repeat(all_rows, elements.shape[1]),
        elements=elements.reshape(-1),
        positions=positions,
        attributions=attributions.reshape(-1, attributions.shape[2]),
        answers=np.take_along_axis(answers, elements, axis=1).reshape(-1),
    )


def slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def rows_at_once(features: int) -> int:
    """Return the batch size for the plain model: larger if rows have few features."""
    return max(MAX_BATCH, min(_MOST_ROWS, _MOST_NUMBERS // features))


def _finite(array: np.ndarray, verb: str) -> np.ndarray:
    if not np.isfinite(array).all():
        raise InvalidOptionError(
            f"the model {verb} NaN or infinity for rows of the file, or for such rows partly replaced by "
            "the baseline: choose rows and references in the range of the training data."
        )
    return array


def feature_owners(manifest: Manifest) -> np.ndarray:
    """Return [F]: the position of each feature's attribution among those of a row, side by side."""
    count = sum(math.prod(e.tensor.shape) for e in manifest.explained if e.attributions)
    position = {feature: count + i for i, p in enumerate(manifest.players) for feature in p.features}
    owners, start = list[int](), 0
    for e in manifest.explained:
        size = math.prod(e.tensor.shape)
        if e.attributions is None:
            owners += [position[feature] for feature in e.feature_names or default_names(e.tensor.name, size)]
        else:
            owners += range(start, start + size)
            start += size
    return np.asarray(owners)


def warmup_rows(compiled: Compiled) -> dict[str, np.ndarray]:
    """Return the warmup row of the explained inputs, [1, …] each."""
    names = [e.tensor.name for e in compiled.manifest.explained]
    missing = [name for name in names if name not in compiled.sample]
    if missing:
        raise RepositoryError(
            f"the entry has no warmup row for {missing}, and the measures replace features with its "
            "values. Compile it again."
        )
    return {name: compiled.sample[name] for name in names}


def is_text(array: np.ndarray) -> bool:
    """Tell whether an array holds texts."""
    return array.dtype.kind in "OUS"


def plain_runner(compiled: Compiled) -> Runner:
    """Return a runner of the plain model, for the explained tensor."""
    with kernels_of(compiled.custom_ops):
        return Runner(_explained_output_model(compiled), users_model=True)


def _explained_output_model(compiled: Compiled) -> ir.Model:
    """Return the plain model with the explained tensor as its only output.

    If only the lowered graph has that tensor, return the part of the combined graph that computes it.
    """
    name = compiled.manifest.explained_output
    for proto in (compiled.source, compiled.model):
        model = ir.from_proto(proto)
        if compiled.manifest.one_shot and proto is compiled.model:
            open_gate(model)
        outputs = [v for node in model.graph for v in node.outputs if v.name == name]
        if outputs:
            return keep_outputs(model, outputs)
    raise RepositoryError(f"neither graph of the entry computes {name!r}. Compile it again.")
