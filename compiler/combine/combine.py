"""The combined graph: the model at x, its rules at the references, and the walk back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from compiler.combine.concepts import emit_channels, emit_heatmaps, names_of_concepts
from compiler.combine.environment import Environment, MovedEnvironment
from compiler.combine.layers import layers_asked, layers_walked
from compiler.combine.of_coalitions import emit_of_coalitions, mixing_of
from compiler.combine.of_trees import at_references, emit_of_trees, with_values
from compiler.combine.outputs import (
    Explained,
    Seed,
    attributions_name,
    check_group_names,
    emit_outputs,
    in_two,
    names_of_outputs,
)
from compiler.errors import InvalidOptionError
from compiler.graph.axis_means import along, mean, open_rows, open_weights
from compiler.graph.chunk_markers import Chunks
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.graph.variants import Variants
from compiler.lowering import Lowered, with_model
from compiler.lowering.rewrites.discrete import spell_out_dequantising
from compiler.lowering.rows import in_front
from compiler.manifest import ends_of
from compiler.memory.fit import Plan, Progress
from compiler.methods import Method
from compiler.methods.base import OfCoalitions, OfTrees, OnPaths, Planned, Walked
from compiler.references.reference_set import ReferenceSet
from compiler.references.request_time import WEIGHTS, names_of_inputs, references_name
from compiler.selection.leaves import Leaf
from compiler.selection.path import Path
from compiler.walk.backward import Carried, walk
from compiler.walk.call import Call


def combine(
    lowered: Lowered,
    path: Path,
    method: Method,
    references: ReferenceSet | None,
    variants: Variants,
    progress: Progress,
) -> Plan:
    """The fourth stage of a compile: the combined model beside the lowered one, to be built as memory allows.

    Args:
        variants: for what machine operators choose them.
        progress: called as `progress(stage, done, total)`.

    Raises:
        InvalidOptionError: names that are taken.
    """
    own_inputs = names_of_inputs(path.tensors) if references and references.is_open else set()
    concepts = names_of_concepts(path.concepts, path.inputs) if path.concepts else set()
    _check_names(lowered, names_of_outputs(method, path) | own_inputs | concepts)

    def build(chunks: Chunks) -> ir.Model:
        return _build(_cloned(lowered, path), method, references, variants, chunks, progress)

    return Plan(build, _axes(method, references))


def _axes(method: Method, references: ReferenceSet | None) -> dict[str, int]:
    """The axes that can be walked in chunks, with their rows: of those on which a walk lies, the longer."""
    if isinstance(method, OfTrees | OfCoalitions):  # whose references are in a part of their own
        return {}
    counts = {"K": references.count} if references and not references.is_open else {}
    if not isinstance(method, OnPaths):
        return counts
    if not method.each_reference:  # the references are met by the base value alone
        return {**counts, "S": method.points}
    return {"S": method.points} if "K" not in counts or method.points > counts["K"] else counts


def _cloned(lowered: Lowered, path: Path) -> tuple[Lowered, Path, frozenset[str]]:
    """Copies whose graph may be changed; tensors are shared. And the names of `in_front`, as lowering knows
    them: what is spelled out here has inner values of which it knows nothing, unless they have to be lifted.
    """
    model = lowered.model.clone()
    copies = dict(zip(lowered.model.graph, model.graph, strict=True))
    nodes = tuple((copies[n], r) for n, r in path.nodes)
    on_path = {node for node, _ in nodes}
    before = len(model.graph)
    spell_out_dequantising(model.graph, [n for n in copies.values() if n not in on_path])
    called = {path.output} if path.game and not path.trees and not lowered.one_row else set()  # looked at
    to_be_lifted = lowered.one_row and len(model.graph) != before
    copy = with_model(lowered, model) if to_be_lifted else replace(lowered, model=model)
    return copy, replace(path, nodes=nodes), in_front(lowered) | called


def _build(
    subject: tuple[Lowered, Path, frozenset[str]],
    method: Method,
    references: ReferenceSet | None,
    variants: Variants,
    chunks: Chunks,
    progress: Progress,
) -> ir.Model:
    """The combined graph with nothing computed yet."""
    lowered, path, front = subject
    graph = lowered.model.graph
    targets = 1 if path.targets == "predicted" else len(path.targets)
    points = method.points if isinstance(method, OnPaths) else 1
    channels = path.concepts.count if path.concepts else 1
    sizes = {"T": targets, "C": channels, "K": references.count if references else 1, "S": points}
    opset = graph.opset_imports.get("", 21)
    op = Ops(graph, opset, sizes, lowered.specs[path.output][1], variants, chunks)
    variants.begin()
    at_x = Environment(op, lowered, front, path.active, path.held)
    op.bind_batch(at_x.at(_batch_source(lowered, path)))
    if isinstance(method, OfCoalitions):
        assert references is not None
        mixing = mixing_of(lowered, path, method, references, variants.deployment)
        at_x.lift_outputs()
        emit_of_coalitions(at_x, mixing, method, _seed(op, path, at_x, None, None))
        return lowered.model
    calls = [at_x.evaluate_at_sample(node, rule) for node, rule in path.nodes]
    at_x.lift_outputs()
    if isinstance(method, OfTrees):
        references = with_values(lowered, path, references)
        seed = _seed(op, path, at_x, at_references(at_x, path, references), None)
        emit_of_trees(at_x, path, method, seed, references)
        return lowered.model
    assert isinstance(method, Walked)
    at_r = None if references is None else _references(at_x, references, path)
    if at_r is not None:
        calls = [replace(call, r=at_r.evaluate(call)) for call in calls]
    starts, calls = _onto_paths(at_x, at_r, method, references, path, calls)
    weights = references.weights if references else None
    seed = _seed(op, path, at_x, at_r if method.has_base_value else None, weights)
    asked, concepts = layers_asked(path, calls), path.concepts
    own = (concepts.layer,) if concepts else ()
    watched = {*asked, *own}
    steps, pull = method.plan(op, calls, watched) if isinstance(method, Planned) else (calls, method.pull)
    kept = layers_walked(asked, calls, steps, named=path.layers != "all")
    _check_names(lowered, {attributions_name(name) for name in kept})
    check_group_names(path, kept)
    layers_walked(own, calls, steps, named=True)

    def walk_from(output: str, multiplier: Carried) -> dict[str, Any]:
        tell = partial(progress, "walking back")
        return walk(op, steps, output, multiplier, pull, lambda i: tell(i, len(steps)), {*kept, *own})

    def explained(arriving: Mapping[str, Any]) -> list[Explained]:
        return [Explained(s, at_x.at(s.tensor), arriving[s.tensor], starts[s.tensor]) for s in path.leaves]

    arriving = walk_from(path.output, seed.multiplier)
    layers = {
        n: Explained(Leaf(n, n), at_x.at(n), arriving[n], at_r.at(n) if at_r else None) for n in (*kept, *own)
    }
    if concepts is not None:
        outputs, masked = emit_channels(op, method, concepts, layers[concepts.layer], weights)
        nothing = {
            t: op.row_constant(np.zeros((1,) * at_x.at(t).rank, seed.explained.dtype.numpy()))
            for t in path.tensors
        }
        reached = explained(nothing | walk_from(concepts.layer, masked))
        graph.outputs.extend([*outputs, *emit_heatmaps(op, method, reached, weights)])
    emit_outputs(op, method, explained(arriving), [layers[n] for n in kept], seed, references, path.players)
    return lowered.model


def _batch_source(lowered: Lowered, path: Path) -> str:
    """An input whose axis 0 is the batch, an explained one if there is one."""
    names = [str(v.name) for v in lowered.model.graph.inputs if v.name in lowered.batched]
    return next(name for name in (*path.tensors, *names) if name in names)


def _check_names(lowered: Lowered, new: set[str]) -> None:
    taken = sorted(new & set(lowered.specs))
    if taken:
        raise InvalidOptionError(
            f"the model already has tensors named {taken}: rename them before compiling."
        )


def _references(at_x: Environment, references: ReferenceSet, path: Path) -> MovedEnvironment:
    op = at_x.op
    op.scope = "reference"
    if references.is_open:
        dtypes = {name: ir.DataType.from_numpy(array.dtype) for name, array in references.arrays.items()}
        op.weights["K"] = open_weights(op, WEIGHTS, "K", next(iter(dtypes.values())))
        held = {
            name: open_rows(op, references_name(name), array.shape[1:], "K", dtypes[name])
            for name, array in references.arrays.items()
        }
    else:
        held = {name: along(op, array, "K") for name, array in references.arrays.items()}
    return MovedEnvironment(at_x, "reference", held, path.dependent)


def _onto_paths(
    at_x: Environment,
    at_r: MovedEnvironment | None,
    method: Method,
    references: ReferenceSet | None,
    path: Path,
    calls: list[Call],
) -> tuple[dict[str, Tensor | None], list[Call]]:
    """Where the paths to x start, by tensor; and the calls at their points where the method walks there."""
    starts = {name: at_r.at(name) if at_r else None for name in path.tensors}
    if not isinstance(method, OnPaths):
        return starts, calls
    at_x.op.scope = "point"
    weights = references.weights if references else None
    points = {
        s.tensor: method.point(at_x.op, s.name, at_x.at(s.tensor), starts[s.tensor], weights)
        for s in path.leaves
    }
    held = {name: point.at for name, point in points.items()}
    there = MovedEnvironment(at_x, "point", held, path.dependent)
    moved = [replace(call, x=there.evaluate(call)) for call in calls]
    return {name: point.start for name, point in points.items()}, moved


def _seed(
    op: Ops, path: Path, at_x: Environment, at_r: MovedEnvironment | None, weights: np.ndarray | None
) -> Seed:
    """At x also for a method that walks elsewhere: a row is explained for its own predicted class.

    Args:
        at_r: the references; None for a method without base value.
    """
    op.scope = "seed"
    y = at_x.at(path.output)
    size = int(np.prod(y.shape))
    row = op.reshape(y, (1, size))
    base = (
        None
        if at_r is None
        else _mean_over_references(op, op.reshape(at_r.at(path.output), (1, size)), weights)
    )
    if path.targets == "predicted":
        answered = _as_answered(op, row, at_x.lowered.narrow.edges.get(path.output))
        winner = op.ArgMax(answered, axis=1, keepdims=1)
        explained = op.GatherElements(row, winner, axis=1)
        seed = op.reshape(op.one_hot(winner, size, y.dtype), y.shape)
        return Seed(seed, explained, *(_at_winner(op, b, winner) for b in in_two(op, base, y.dtype)))
    ends = [ends_of(t) if isinstance(t, str) else (t, None) for t in path.targets]
    ones = np.zeros((len(ends), size), y.dtype.numpy())
    for target, (first, second) in zip(ones, ends, strict=True):
        target[first] = 1
        if second is not None:
            target[second] = -1
    lead = frozenset("T" if len(ends) > 1 else "")
    seed = replace(op.constant(ones.reshape(-1, *y.shape[1:])), shape=y.shape, lead=lead, rows=True)
    base = None if base is None else _at_targets(op, base, ends)
    return Seed(seed, _at_targets(op, row, ends), *in_two(op, base, y.dtype))


def _mean_over_references(op: Ops, y: Tensor, weights: np.ndarray | None) -> Tensor:
    """In float64: a sum of thousands of large outputs has lost in float32 what sets them apart."""
    wide = y if y.dtype == ir.DataType.DOUBLE else op.Cast(y, to=int(ir.DataType.DOUBLE))
    return mean(op, wide, "K", weights)


def _at_targets(op: Ops, row: Tensor, ends: Sequence[tuple[int, int | None]]) -> Tensor:
    """The elements [1, T] of a row [1, elements], less those that they are held against."""
    values = op.Gather(row, [first for first, _ in ends], axis=1)
    if all(second is None for _, second in ends):
        return values
    against = op.Gather(row, [second or 0 for _, second in ends], axis=1)
    held = np.asarray([[second is not None for _, second in ends]], row.dtype.numpy())
    return op.Sub(values, op.Mul(against, op.row_constant(held)))


def _at_winner(op: Ops, base: Tensor, winner: Tensor) -> Tensor:
    """The base value of each row's winner; it differs by row where an input is not explained."""
    if base.lead:
        return op.GatherElements(base, winner, axis=1)
    return op.Gather(replace(op.reshape(base, base.shape[1:]), rows=False), winner)


def _as_answered(op: Ops, row: Tensor, narrow: ir.DataType | None) -> Tensor:
    """The output's row, rounded as the model answers it: the first of equals is the predicted one."""
    return row if narrow is None else op.Cast(op.Cast(row, to=int(narrow)), to=int(row.dtype))
