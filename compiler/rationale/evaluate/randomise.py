"""Randomised-weights check: do attributions depend on the learnt weights?

Adebayo et al., "Sanity Checks for Saliency Maps", 2018: cascading from the last layer to the first. It
permutes weights within each tensor, so that their distribution stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from rationale.artifact.compiled import Compiled
from rationale.compile import compile_request
from rationale.errors import InvalidOptionError, RationaleError
from rationale.evaluate.explained_model import MAX_TARGETS, ExplainedModel, GivenReferences, Pairs
from rationale.methods.engine import Method
from rationale.methods.methods import method_of
from rationale.schema.machine import HERE
from rationale.schema.request import Progress

_NO_REFERENCES = "a recompile needs the references: give --references FILE"
MAX_STAGES = 10  # stages of a cascade
LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum"})
_FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
)
_WRAPPERS = frozenset({"Identity", "Transpose", "Cast", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True)
class CascadeStage:
    """One stage of the cascade: recompiles with the same layers redrawn.

    Attributes:
        layers: number of redrawn layers, from the last on.
        of: number of all layers.
        first: name of the first redrawn layer's node.
        correlation: Spearman's, between the attributions before and after, mean over pairs and redraws; None
            if each is constant.
        spread: its standard deviation over the redraws; None if there is only one.
        absolute: the same correlation of absolute attributions.
    """

    layers: int
    of: int
    first: str
    correlation: float | None
    spread: float | None
    absolute: float | None


@dataclass(frozen=True)
class Randomised:
    """The stages of the cascade, or the reason why there are none."""

    stages: tuple[CascadeStage, ...] = ()
    left_out: str | None = None


def randomised_check(
    compiled: Compiled,
    inputs: Mapping[str, np.ndarray],
    pairs: Pairs,
    references: GivenReferences | None,
    redraws: int,
    seed: int,
    progress: Progress,
) -> Randomised:
    """Redraw more and more layers, recompile, and compare the attributions of the same pairs.

    Args:
        references: the method's references; None without a file.
    """
    layers = find_layers(compiled.source)
    if not layers:
        return Randomised(left_out="no layer has weights")
    try:
        rows, weights = (dict(references.arrays), references.weights) if references else (None, None)
        method = method_of(compiled.manifest.request, rows, weights)
        stages = []
        depths = _depths(len(layers))
        for i, depth in enumerate(depths):
            correlations = []
            for draw in range(redraws):
                progress("randomised weights", i * redraws + draw, len(depths) * redraws)
                recompiled = _recompile(compiled, method, layers[-depth:], pairs, [seed, draw])
                correlations.append(_compare(recompiled, inputs, pairs))
            stages.append(CascadeStage(depth, len(layers), layers[-depth].name, *_summary(correlations)))
    except RationaleError as error:  # a redrawn network may overflow; other measurements stay
        return Randomised(left_out=str(error))
    return Randomised(tuple(stages))


def _summary(
    correlations: Sequence[tuple[float | None, float | None]],
) -> tuple[float | None, float | None, float | None]:
    """Return the mean and spread of the signed correlations, and the mean of the absolute ones."""
    signed = [s for s, _ in correlations if s is not None]
    absolute = [a for _, a in correlations if a is not None]
    return (
        float(np.mean(signed)) if signed else None,
        float(np.std(signed)) if len(signed) > 1 else None,
        float(np.mean(absolute)) if absolute else None,
    )


def _depths(layers: int) -> list[int]:
    """Return the number of layers that each stage redraws; the last stage redraws all."""
    return sorted({round(d) for d in np.linspace(1, layers, min(layers, MAX_STAGES))})


# -- weights -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightedLayer:
    """A node with weights: its name, and the initializers or Constant outputs that it alone reads."""

    name: str
    weights: tuple[str, ...]


def find_layers(model: onnx.ModelProto) -> list[WeightedLayer]:
    """Return layers in the graph's order; a shared tensor belongs to the first layer that reads it."""
    floats = {name for name, t in _constants(model.graph).items() if t.data_type in _FLOATS}
    wrapped = {o: n.input[0] for n in model.graph.node if n.op_type in _WRAPPERS for o in n.output}
    seen: set[str] = set()
    layers = []
    for node in model.graph.node:
        if node.op_type not in LAYERS or node.domain not in ("", "ai.onnx"):
            continue
        roots = [_root(name, wrapped) for name in node.input]
        weights = tuple(dict.fromkeys(name for name in roots if name in floats and name not in seen))
        seen.update(weights)
        if weights:
            layers.append(WeightedLayer(node.name or node.output[0], weights))
    return layers


def _root(name: str, wrapped: Mapping[str, str]) -> str:
    while name in wrapped:
        name = wrapped[name]
    return name


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return initializers and the tensors of Constant nodes, each under the name that the graph reads."""
    constants = {}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    return constants | {t.name: t for t in graph.initializer}


def permute_weights(
    model: onnx.ModelProto, layers: Sequence[WeightedLayer], seed: Sequence[int]
) -> onnx.ModelProto:
    """Return a copy of the model with every weight of these layers permuted.

    A permutation depends only on the seed and the weight's name, so longer cascades keep the shorter ones'.
    """
    changed = deepcopy(model)
    constants = _constants(changed.graph)
    for layer in layers:
        for name in layer.weights:
            random = np.random.default_rng([*seed, *name.encode()])
            array = numpy_helper.to_array(constants[name])
            mixed = random.permutation(array.reshape(-1)).reshape(array.shape)
            constants[name].CopyFrom(numpy_helper.from_array(mixed, name))
    return changed


# -- recompiling ---------------------------------------------------------------------------------------


def _recompile(
    compiled: Compiled, method: Method, layers: Sequence[WeightedLayer], pairs: Pairs, seed: Sequence[int]
) -> Compiled:
    """Recompile with the same options; for "predicted", explain the most frequently predicted classes.

    Raises:
        RationaleError: if the redrawn network does not compile, or the method's references are missing.
    """
    manifest = compiled.manifest
    update: dict[str, Any] = {"custom_ops": compiled.custom_ops, "layers": [], "concepts": None}
    update["deployment"] = HERE
    request = manifest.request.model_copy(update=update)
    if manifest.targets == "predicted":
        request = request.model_copy(update={"targets": _commonest(pairs.elements)})
    recompiled = compile_request(permute_weights(compiled.source, layers, seed), method, request)
    if recompiled.manifest.digests.references != manifest.digests.references:
        raise InvalidOptionError(_NO_REFERENCES)  # the method took default references
    return recompiled


def _commonest(elements: np.ndarray) -> list[int]:
    values, counts = np.unique(elements, return_counts=True)
    return sorted(values[np.argsort(-counts, kind="stable")][:MAX_TARGETS].tolist())


def _compare(
    recompiled: Compiled, inputs: Mapping[str, np.ndarray], pairs: Pairs
) -> tuple[float | None, float | None]:
    """Return Spearman's correlation, signed and absolute, over pairs whose target is explained again."""
    subject = ExplainedModel(recompiled, inputs)
    position = {element: i for i, element in enumerate(subject.columns.tolist())}
    explained = [p for p, element in enumerate(pairs.elements.tolist()) if element in position]
    positions = np.asarray([[position[pairs.elements[p]]] for p in explained])
    rows = pairs.rows[explained]
    after = subject.attributions(subject.features[rows], rows, positions)[:, 0]
    before = pairs.attributions[explained]
    return mean_spearman(before, after), mean_spearman(np.abs(before), np.abs(after))


# -- rank correlation ----------------------------------------------------------------------------------


def mean_spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Return the rows' mean rank correlation of a and b, both [P, F]; None if every row is constant."""
    correlations = [c for c in spearmans(a, b) if c is not None]
    return float(np.mean(correlations)) if correlations else None


def spearmans(a: np.ndarray, b: np.ndarray) -> list[float | None]:
    """Return each row's rank correlation of a and b, both [P, F]; None if one of them is constant."""
    return list(map(_spearman, _ranks(a), _ranks(b)))


def _ranks(scores: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the ranks of each row, ties sharing the mean of their ranks."""
    for row in scores:
        _, index, counts = np.unique(row, return_inverse=True, return_counts=True)
        yield (counts.cumsum() - (counts - 1) / 2)[index]


def _spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])
