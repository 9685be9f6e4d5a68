"""The tree ensemble behind the explained output, read so that its scores are explained without a walk.

The model may preprocess its inputs before the ensemble, as long as no feature of the ensemble depends on two
input elements: all features made from one element are one player. Between the scores and the output, values
are only moved. The ensemble's own transform (LOGISTIC, SOFTMAX) is left out: the graph explains the margin,
which it answers beside the probabilities.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from rationale.errors import InvalidOptionError, UnsupportedModelError, quoted
from rationale.graph.nodes import extract
from rationale.graph.runtime.session import Runner
from rationale.lowering import Lowered
from rationale.methods.engine import EngineChoice
from rationale.methods.environment import demand_rows
from rationale.methods.leaves import raw_leaves
from rationale.methods.players import NOBODY, CoalitionGame
from rationale.methods.target import (
    Target,
    check_shapes,
    choose_output,
    choose_targets,
    computes,
    reach_backward,
)
from rationale.methods.trees.method import TreeMethod
from rationale.methods.trees.provenance import copied_elements, element_origins
from rationale.schema.request import CompileRequest
from rationale.trees.ensemble import Ensemble
from rationale.trees.read import OPERATORS, is_ensemble, read_ensemble

_MOVES = frozenset("Cast Flatten Identity Reshape Squeeze Unsqueeze".split())
_LINKS = frozenset({"Exp", "Sigmoid", "Softmax"})  # functions of scores that boosters write as operators
_PROBES = 64  # rows that compare a margin with the model's output
_SAME = 1e-4
MOST_SPLITS = 20_000  # split points in a manifest; a page asks about each
_WIDE = 1e30  # CatBoost compares with the largest float32 number to detect missing values


@dataclass(frozen=True)
class TreeChoice(EngineChoice):
    """A tree ensemble whose scores are explained.

    Attributes:
        reads: the name of the tensor that holds its features.
        margin: the name of the scores, if the probabilities made of them are explained instead.
        game: the players and their elements.
        player_of: [features] the player of each feature.
        link: the operator that makes the requested output from the scores, such as Exp; empty if there is
            none.
        answers: the name of the ensemble's output.
    """

    ensemble: Ensemble
    reads: str
    answers: str
    margin: str | None = None
    game: CoalitionGame = NOBODY
    player_of: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    link: str = ""

    def splits(self, lowered: Lowered, target: Target) -> dict[str, list[list[float]]]:
        """Return the split points of the elements that trees read unchanged.

        The result is empty if there are more than MOST_SPLITS.
        """
        dtype = lowered.specs[self.reads][1].numpy()
        sizes = {name: prod(row) for name, row in _rows(lowered).items() if prod(row)}
        splits: dict[str, list[set[float]]] = {
            name: [set() for _ in range(size)] for name, size in sizes.items()
        }
        ensemble, elements = self.ensemble, self.elements(lowered, target)
        for node in np.flatnonzero(ensemble.feature >= 0):
            if (place := elements[int(ensemble.feature[node])]) is None:
                continue
            name, element = place
            span = ensemble.bounds_of(int(node))
            bounds = ensemble.bounds[span].astype(dtype)
            with np.errstate(over="ignore"):  # no number is above the largest one
                crossing = np.where(ensemble.strict[span], np.nextafter(bounds, dtype.type(np.inf)), bounds)
            splits[name][element].update(float(str(bound)) for bound in crossing[np.abs(crossing) < _WIDE])
        if sum(len(points) for span in splits.values() for points in span) > MOST_SPLITS:
            return {}
        return {name: [sorted(points) for points in span] for name, span in splits.items()}

    def elements(self, lowered: Lowered, target: Target) -> list[tuple[str, int] | None]:
        """Return, for each feature of the trees, the input and the element of its row that it copies.

        None stands for a feature that the model computes.
        """
        graph, rows = lowered.model.graph, _rows(lowered)
        behind = reach_backward(graph, self.reads, target.tensors)
        nodes = [n for n in graph if any(v.name in behind for v in n.outputs)]
        places = [(name, j) for name, row in rows.items() for j in range(prod(row))]
        first = {name: places.index((name, 0)) for name, row in rows.items() if prod(row)}
        numbers = {
            name: start + np.arange(prod(rows[name])).reshape(rows[name]) for name, start in first.items()
        }
        copied = copied_elements(lowered, nodes, numbers, self.reads)
        return [None if place is None else places[place] for place in copied]


def _rows(lowered: Lowered) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input's row."""
    inputs = [str(v.name) for v in lowered.model.graph.inputs if v.name in lowered.specs]
    return {name: lowered.specs[name][0] for name in inputs}


def choose_ensemble(
    lowered: Lowered, method: TreeMethod, request: CompileRequest
) -> tuple[Lowered, Target, TreeChoice]:
    """Find the tree ensemble whose scores are the output; the returned model has its margin beside it.

    Raises:
        InvalidOptionError: if a name does not exist, or there is no LOGISTIC.
        UnsupportedModelError: if the output does not come from exactly one tree ensemble.
        InvalidModelError: if the trees are invalid.
    """
    leaves = raw_leaves(lowered, request.inputs)
    check_shapes(lowered, [s.tensor for s in leaves])
    ends = tuple(s.tensor for s in leaves)
    name = choose_output(lowered, request.output, ends)
    node, scores, link = _ensemble_behind(lowered, method.name, name)
    read = node.inputs[0]
    assert read is not None
    reads = str(read.name)
    shape, dtype = lowered.specs[reads]
    ensemble = read_ensemble(ir.serde.serialize_node(node), prod(shape[1:]), dtype.numpy())
    notes, margin, closed = tuple[str, ...](), None, name
    if link:
        notes += (
            f"explains {scores.name!r}, of which {name!r} is the {link}: Shapley values of {name!r} itself "
            "are those of exactshap or permutationshap",
        )
        name = str(scores.name)
    if ensemble.post_transform != "NONE":
        lowered, margin = _with_margin(lowered, node, scores, ensemble)
        notes += _margin_notes(name, margin, ensemble, method.probability)
        name = name if method.probability else margin or name
    if method.probability and (margin is None or ensemble.post_transform != "LOGISTIC"):
        raise InvalidOptionError(
            f"space 'probability' needs an ensemble with post_transform LOGISTIC, and {node.op_type} node "
            f"{node.name or scores.name!r} has {ensemble.post_transform}: leave it out."
        )
    if name not in lowered.specs:
        lowered = _with_spec(lowered, name, ensemble, scores.dtype or ir.DataType.FLOAT)
    demand_rows(lowered, name, {name, *ends})
    elements = choose_targets(request.targets, name, lowered)
    answers = str(node.outputs[-1].name)
    trees = TreeChoice(ensemble, reads, answers, margin if method.probability else None, link=link)
    return lowered, Target(leaves, name, elements, notes=notes, closed=closed), trees


def _ensemble_behind(lowered: Lowered, method: str, output: str) -> tuple[ir.Node, ir.Value, str]:
    """Return the tree ensemble behind the output, its scores, and the link applied to them."""
    value = next(v for node in lowered.model.graph for v in node.outputs if v.name == output)
    unmoved = _behind_moves(value)
    node = unmoved.producer()
    if _has_scores(node, unmoved):
        return node, unmoved, ""
    if node is not None and not node.domain and node.op_type in _LINKS and node.inputs[0] is not None:
        scores = _behind_moves(node.inputs[0])
        if _has_scores(ensemble := scores.producer(), scores):
            return ensemble, scores, node.op_type
    scores = unmoved
    origin = "is an input" if node is None else f"is made by {node.op_type} node {node.name or scores.name!r}"
    raise UnsupportedModelError(
        f"{method} explains the scores of one tree ensemble ({', '.join(OPERATORS)}), and output {output!r} "
        f"{origin}. {_other_choices(lowered, output)}"
    )


def _other_choices(lowered: Lowered, output: str) -> str:
    """Return advice: name the scores of the only ensemble behind an output, or take another method."""
    behind = reach_backward(lowered.model.graph, output, ())
    scores = [
        str(node.outputs[-1].name)
        for node in lowered.model.graph
        if is_ensemble(node.op_type, node.domain) and node.outputs[-1].name in behind
    ]
    if len(scores) == 1:
        return (
            f"Name the ensemble's own output (--output {scores[0]}), or choose exactshap or permutationshap."
        )
    many = f"It is made of {len(scores)} ensembles: c" if scores else "C"
    return f"{many}hoose exactshap or permutationshap."


def _has_scores(node: ir.Node | None, value: ir.Value) -> TypeGuard[ir.Node]:
    """Tell whether a value holds the scores of an ensemble's node."""
    return node is not None and is_ensemble(node.op_type, node.domain) and value is node.outputs[-1]


def players_of_features(lowered: Lowered, target: Target, trees: TreeChoice, method: str) -> np.ndarray:
    """Return the player of each of the [features] that an ensemble reads.

    The player of a constant feature does not matter.

    Raises:
        UnsupportedModelError: if a feature depends on elements of several players, or on an unexplained
            input.
    """
    graph, ends, tensor = lowered.model.graph, target.tensors, trees.reads
    player_of_element = np.concatenate([trees.game.player_of[end].reshape(-1) for end in ends])
    behind = reach_backward(graph, tensor, ends)
    nodes = [n for n in graph if not computes(n, ends) and any(v.name in behind for v in n.outputs)]
    numbers, words = dict[str, np.ndarray](), list[str]()
    for name in (*ends, *(str(v.name) for v in graph.inputs)):
        if name not in numbers and name in lowered.specs:
            row = lowered.specs[name][0]
            numbers[name] = len(words) + np.arange(prod(row)).reshape(row)
            words += [f"{name}[{', '.join(map(str, i[1:]))}]" for i in np.ndindex(*row)]
    origins = element_origins(lowered, nodes, numbers, tensor)
    for feature, elements in enumerate(origins.players_of):
        if len({int(player_of_element[i]) for i in elements if i < len(player_of_element)}) > 1:
            raise UnsupportedModelError(
                f"{method} has a player for each element of {', '.join(target.inputs)}, and feature "
                f"{feature} of {tensor!r}, which the trees read, depends on several elements: "
                f"{quoted([words[i] for i in sorted(elements)])} ({origins.joined[elements]}). Make them "
                f"one player (groups=, --group), or explain what the trees read (--input {tensor}), with "
                "references of it or of the model's inputs."
            )
        if max(elements, default=0) >= len(player_of_element):
            raise UnsupportedModelError(
                f"{method} explains all features that the trees read: feature {feature} of {tensor!r} "
                f"depends on {quoted([words[i] for i in sorted(elements)])}, which is not explained "
                f"(explained: {', '.join(target.inputs)}). Explain it too, or {tensor!r} itself (--input)."
            )
    return np.asarray([player_of_element[min(elements, default=0)] for elements in origins.players_of])


def _margin_notes(output: str, margin: str | None, ensemble: Ensemble, probability: bool) -> tuple[str, ...]:
    if margin is None:
        return ()
    if probability:
        return (
            f"explains {output!r} by Shapley values of its margin, to each reference rescaled to the "
            "probability: they add up to it, and are not its own Shapley values",
        )
    return (
        f"explains {margin!r}, the margin of {output!r} before its {ensemble.post_transform}: Shapley values "
        "of the probability itself are not computed",
    )


def _behind_moves(value: ir.Value) -> ir.Value:
    """Return the value before any moves."""
    while True:
        node = value.producer()
        if node is None or node.domain or node.op_type not in _MOVES or node.inputs[0] is None:
            return value
        value = node.inputs[0]


def _with_spec(lowered: Lowered, name: str, ensemble: Ensemble, dtype: ir.DataType) -> Lowered:
    """Add a specification, since ONNX infers no shapes for these operators' older versions."""
    specs = {**lowered.specs, name: ((1, ensemble.columns), dtype)}
    return replace(lowered, specs=specs, batched=lowered.batched | {name})


def with_scores_behind(lowered: Lowered, output: str) -> tuple[Lowered, str | None]:
    """Return the model with an ensemble's margin as an extra tensor, and that tensor's name.

    Raises:
        UnsupportedModelError: for the reasons of `_with_margin`, or if no ensemble makes the output.
    """
    node, scores, _ = _ensemble_behind(lowered, "a margin", output)
    read = node.inputs[0]
    assert read is not None
    shape, dtype = lowered.specs[str(read.name)]
    ensemble = read_ensemble(ir.serde.serialize_node(node), prod(shape[1:]), dtype.numpy())
    return _with_margin(lowered, node, scores, ensemble)


def _with_margin(
    lowered: Lowered, node: ir.Node, scores: ir.Value, ensemble: Ensemble
) -> tuple[Lowered, str | None]:
    """Return the model with a twin of the ensemble without a transform, and the twin's output name.

    The name is None if the ensemble itself has no transform.

    Raises:
        UnsupportedModelError: if ONNX Runtime's result differs from the transform that the model names.
    """
    name = f"{scores.name}_margin"
    while name in lowered.specs:
        name += "_"
    model = lowered.model.clone()
    position = list(lowered.model.graph).index(node)
    twin = model.graph[position]
    attributes = [a for a in twin.attributes.values() if a.name != "post_transform"]
    if twin.op_type == "TreeEnsemble":
        attributes.append(ir.AttrInt64("post_transform", 0))
    bare = ir.Node(
        twin.domain, twin.op_type, list(twin.inputs), attributes, num_outputs=len(twin.outputs), name=name
    )
    for copied, original in zip(bare.outputs, twin.outputs, strict=True):
        copied.name, copied.type = f"{original.name}_of_margin", original.type
    margin = bare.outputs[-1]
    margin.name, margin.dtype = name, scores.dtype or ir.DataType.FLOAT
    model.graph.insert_after(twin, bare)
    read = twin.inputs[0]
    assert read is not None
    probe = {str(read.name): _probes(ensemble, lowered.specs[str(read.name)])}
    run = Runner(
        extract(model, [twin, bare], [read], [twin.outputs[-1], margin]), optimise=False, users_model=True
    )
    answered = run(probe)
    transformed, plain = (answered[str(v.name)].astype(np.float64) for v in (twin.outputs[-1], margin))
    if np.allclose(transformed, plain, atol=_SAME):
        return lowered, None
    for shift in (np.zeros(plain.shape[1]), np.eye(1, plain.shape[1])[0]):
        # for two classes, −s stands beside the only score s, or 1 − s if no leaf is negative
        if np.allclose(_TRANSFORM_FUNCTIONS[ensemble.post_transform](plain - shift), transformed, atol=_SAME):
            break
    else:
        raise UnsupportedModelError(
            f"{node.op_type} node {node.name or scores.name!r}: ONNX Runtime's answer differs from the "
            f"{ensemble.post_transform} of its scores, so the margin is unknown. Export it "
            "with post_transform NONE."
        )
    dtype = margin.dtype or ir.DataType.FLOAT
    if shift.any():
        _subtract_constant(model, margin, shift)
    for tensor in {name, str(margin.name)}:
        lowered = _with_spec(lowered, tensor, ensemble, dtype)
    return replace(lowered, model=model), name


def _subtract_constant(model: ir.Model, margin: ir.Value, shift: np.ndarray) -> None:
    """Subtract a constant in place, under the same name."""
    name, node = str(margin.name), margin.producer()
    assert node is not None
    margin.name = f"{name}_given"
    dtype = margin.dtype or ir.DataType.FLOAT
    array = ir.Tensor(shift[None].astype(dtype.numpy()), name=f"{name}_shift")
    constant = ir.Value(name=array.name, const_value=array)
    constant.dtype, constant.shape = dtype, ir.Shape([1, len(shift)])
    model.graph.register_initializer(constant)
    subtraction = ir.node("Sub", [margin, constant], name=f"{name}_shifted")
    subtraction.outputs[0].name, subtraction.outputs[0].dtype = name, dtype
    model.graph.insert_after(node, subtraction)


def _probes(ensemble: Ensemble, spec: tuple[tuple[int, ...], ir.DataType]) -> np.ndarray:
    """Return rows with numbers on both sides of the trees' split points."""
    random = np.random.default_rng(0)
    (_, *row), dtype = spec
    rows = random.standard_normal((_PROBES, prod(row)))
    splits = np.flatnonzero(ensemble.feature >= 0)
    for feature in np.unique(ensemble.feature[splits]):
        spans = [
            ensemble.bounds[ensemble.bounds_of(int(n))] for n in splits if ensemble.feature[n] == feature
        ]
        bounds = np.concatenate(spans)
        bounds = bounds[np.abs(bounds) < _WIDE].astype(np.float64)
        if len(bounds):
            spread = 1e-3 * (1 + np.abs(bounds).mean()) + bounds.std()
            rows[:, feature] = random.choice(bounds, _PROBES) + spread * rows[:, feature]
    return rows.reshape(_PROBES, *row).astype(dtype.numpy())


def _logistic(scores: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-np.logaddexp(0, -scores)))


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _softmax_zero(scores: np.ndarray) -> np.ndarray:
    """Return the Softmax of the scores that are not 0; a 0 remains 0."""
    powers = np.where(np.abs(scores) > 1e-7, np.exp(scores - scores.max(axis=1, keepdims=True)), 0)
    return np.asarray(powers / np.maximum(powers.sum(axis=1, keepdims=True), 1e-300))


_TRANSFORM_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "LOGISTIC": _logistic,
    "SOFTMAX": _softmax,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": lambda scores: np.full_like(scores, np.nan),  # none is known
}
