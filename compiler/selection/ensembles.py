"""The tree ensemble that makes the explained output, read so that its scores are explained without a walk.

Between the explained input and the ensemble, and between its scores and the output, stands nothing but what
moves values. What the ensemble makes of its scores (LOGISTIC, SOFTMAX) is left out: explained is the margin,
which the graph answers beside the probabilities.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import onnx_ir as ir

from compiler.errors import InvalidOptionError, UnsupportedModelError
from compiler.graph.fold import extract
from compiler.lowering import Lowered
from compiler.lowering.rows import demand_rows
from compiler.methods.base import References
from compiler.references.reference_set import OpenReferences
from compiler.runtime.session import Runner
from compiler.selection.leaves import Chosen, Leaf, choose_leaves
from compiler.selection.path import Path, Trees, choose_output, reach_forward
from compiler.selection.targets import Targets, choose_targets
from compiler.trees.ensemble import Ensemble
from compiler.trees.read import OPERATORS, is_ensemble, read_ensemble

_MOVES = frozenset("Cast Flatten Identity Reshape Squeeze Unsqueeze".split())
_PROBES = 64  # rows on which a margin is held against what is made of it
_SAME = 1e-4


def choose_ensemble(
    lowered: Lowered,
    method: str,
    output: str | None,
    targets: Targets,
    inputs: Sequence[str] | None,
    references: References | None,
) -> tuple[Lowered, Path]:
    """The path from an input to the scores of a tree ensemble, and the model with its margin beside it.

    Args:
        method: its name, for messages.
        references: as they were given.

    Raises:
        InvalidOptionError: names that do not exist, or references that come with a request.
        UnsupportedModelError: an output that is not made by one tree ensemble alone.
        InvalidModelError: trees that are none.
    """
    if isinstance(references, OpenReferences):
        raise InvalidOptionError(
            f"{method} computes its tables from the references: they cannot come with a request. Give a "
            "reference set."
        )
    chosen = choose_leaves(lowered, inputs, references if isinstance(references, Mapping) else ())
    ends = tuple(s.tensor for s in chosen.leaves)
    name = choose_output(lowered, output, reach_forward(lowered.model.graph, ends))
    node, scores = _ensemble_behind(lowered, method, name)
    read = node.inputs[0]
    assert read is not None
    leaf = _leaf_behind(method, node, read, chosen)
    shape, dtype = lowered.specs[str(read.name)]
    ensemble = read_ensemble(ir.serde.serialize_node(node), prod(shape[1:]), dtype.numpy())
    notes = chosen.notes
    if ensemble.post_transform != "NONE":
        lowered, margin = _with_margin(lowered, node, scores, ensemble)
        notes += _margin_notes(name, margin, ensemble)
        name = margin or name
    if name not in lowered.specs:
        lowered = _with_spec(lowered, name, ensemble, scores.dtype or ir.DataType.FLOAT)
    demand_rows(lowered, name, {name, leaf.tensor})
    return lowered, Path(
        leaves=(leaf,),
        output=name,
        targets=choose_targets(targets, name, lowered.specs[name][0][1:]),
        dependent=reach_forward(lowered.model.graph, (leaf.tensor,)),
        active=frozenset({leaf.tensor, name}),
        held=frozenset(),
        stops=(),
        nodes=(),
        notes=notes,
        trees=Trees(ensemble, str(read.name)),
    )


def _ensemble_behind(lowered: Lowered, method: str, output: str) -> tuple[ir.Node, ir.Value]:
    """The tree ensemble whose scores are the output, and these."""
    value = next(v for node in lowered.model.graph for v in node.outputs if v.name == output)
    scores = _behind_moves(value, ())
    node = scores.producer()
    if node is not None and is_ensemble(node.op_type, node.domain) and scores is node.outputs[-1]:
        return node, scores
    made = "is an input" if node is None else f"is made by {node.op_type} node {node.name or scores.name!r}"
    raise UnsupportedModelError(
        f"{method} explains the scores of one tree ensemble ({', '.join(OPERATORS)}), and output {output!r} "
        f"{made}. Name the ensemble's own output (--output), or choose another method."
    )


def _leaf_behind(method: str, node: ir.Node, read: ir.Value, chosen: Chosen) -> Leaf:
    """What is explained and moved to where the ensemble reads it."""
    start = _behind_moves(read, [s.tensor for s in chosen.leaves])
    leaf = next((s for s in chosen.leaves if s.tensor == start.name), None)
    if leaf is not None:
        return leaf
    producer = start.producer()
    made = "" if producer is None else f", made by {producer.op_type} node {producer.name or start.name!r}"
    raise UnsupportedModelError(
        f"{method} explains what a tree ensemble reads, and {node.op_type} node {node.name or read.name!r} "
        f"reads {start.name!r}{made}, which is none of what is explained ({', '.join(chosen.names)}). "
        f"Explain that (--input {read.name}), with references of it or of the model's inputs."
    )


def _margin_notes(output: str, margin: str | None, ensemble: Ensemble) -> tuple[str, ...]:
    if margin is None:
        return ()
    return (
        f"explains {margin!r}, the margin of {output!r} before its {ensemble.post_transform}: Shapley values "
        "of the probability itself are not computed",
    )


def _behind_moves(value: ir.Value, ends: Collection[str]) -> ir.Value:
    """Of what the value was moved, no further than one of the ends."""
    while value.name not in ends:
        node = value.producer()
        if node is None or node.domain or node.op_type not in _MOVES or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def _with_spec(lowered: Lowered, name: str, ensemble: Ensemble, dtype: ir.DataType) -> Lowered:
    """ONNX's inference knows no shapes of these operators' older versions."""
    specs = {**lowered.specs, name: ((1, ensemble.columns), dtype)}
    return replace(lowered, specs=specs, batched=lowered.batched | {name})


def _with_margin(
    lowered: Lowered, node: ir.Node, scores: ir.Value, ensemble: Ensemble
) -> tuple[Lowered, str | None]:
    """The model with the same ensemble beside it that makes nothing of its scores; None where it is the same.

    Raises:
        UnsupportedModelError: ONNX Runtime makes something else of the scores than it says.
    """
    name = f"{scores.name}_margin"
    if name in lowered.specs:
        raise InvalidOptionError(f"the model already has a tensor {name!r}: rename it before compiling.")
    model = lowered.model.clone()
    place = list(lowered.model.graph).index(node)
    twin = model.graph[place]
    attributes = [a for a in twin.attributes.values() if a.name != "post_transform"]
    if twin.op_type == "TreeEnsemble":
        attributes.append(ir.AttrInt64("post_transform", 0))
    bare = ir.Node(
        twin.domain, twin.op_type, list(twin.inputs), attributes, num_outputs=len(twin.outputs), name=name
    )
    for copied, own in zip(bare.outputs, twin.outputs, strict=True):
        copied.name, copied.type = f"{own.name}_of_margin", own.type
    margin = bare.outputs[-1]
    margin.name, margin.dtype = name, scores.dtype or ir.DataType.FLOAT
    model.graph.insert_after(twin, bare)
    read = twin.inputs[0]
    assert read is not None
    probe = {str(read.name): _probes(ensemble, lowered.specs[str(read.name)])}
    run = Runner(extract(model, [twin, bare], [read], [twin.outputs[-1], margin]), optimise=False, given=True)
    answered = run(probe)
    made, plain = (answered[str(v.name)].astype(np.float64) for v in (twin.outputs[-1], margin))
    if np.allclose(made, plain, atol=_SAME):
        return lowered, None
    for shift in (np.zeros(plain.shape[1]), np.eye(1, plain.shape[1])[0]):
        # beside one score s of two classes stands −s, or 1 − s where no leaf is negative
        if np.allclose(_MADE[ensemble.post_transform](plain - shift), made, atol=_SAME):
            break
    else:
        raise UnsupportedModelError(
            f"{node.op_type} node {node.name or scores.name!r}: ONNX Runtime makes something else of its "
            f"scores than {ensemble.post_transform}, so that no margin is known. Export it "
            "with post_transform NONE."
        )
    dtype = margin.dtype or ir.DataType.FLOAT
    if shift.any():
        _shifted(model, margin, shift)
    for made_there in {name, str(margin.name)}:
        lowered = _with_spec(lowered, made_there, ensemble, dtype)
    return replace(lowered, model=model), name


def _shifted(model: ir.Model, margin: ir.Value, shift: np.ndarray) -> None:
    """Takes a constant off in place, under the same name."""
    name, node = str(margin.name), margin.producer()
    assert node is not None
    margin.name = f"{name}_given"
    dtype = margin.dtype or ir.DataType.FLOAT
    array = ir.Tensor(shift[None].astype(dtype.numpy()), name=f"{name}_shift")
    constant = ir.Value(name=array.name, const_value=array)
    constant.dtype, constant.shape = dtype, ir.Shape([1, len(shift)])
    model.graph.register_initializer(constant)
    taken = ir.node("Sub", [margin, constant], name=f"{name}_shifted")
    taken.outputs[0].name, taken.outputs[0].dtype = name, dtype
    model.graph.insert_after(node, taken)


def _probes(ensemble: Ensemble, spec: tuple[tuple[int, ...], ir.DataType]) -> np.ndarray:
    """Rows with numbers on both sides of the bounds."""
    random = np.random.default_rng(0)
    (_, *row), dtype = spec
    rows = random.standard_normal((_PROBES, prod(row)))
    splits = np.flatnonzero(ensemble.feature >= 0)
    for feature in np.unique(ensemble.feature[splits]):
        own = [ensemble.bounds[ensemble.bounds_of(int(n))] for n in splits if ensemble.feature[n] == feature]
        bounds = np.concatenate(own)
        bounds = bounds[np.isfinite(bounds)]
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
    """The Softmax of the scores that are not 0; 0 stays."""
    powers = np.where(np.abs(scores) > 1e-7, np.exp(scores - scores.max(axis=1, keepdims=True)), 0)
    return np.asarray(powers / np.maximum(powers.sum(axis=1, keepdims=True), 1e-300))


def _unknown(scores: np.ndarray) -> np.ndarray:
    return np.full_like(scores, np.nan)


_MADE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "LOGISTIC": _logistic,
    "SOFTMAX": _softmax,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _unknown,
}
