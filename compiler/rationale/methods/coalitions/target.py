"""The players and the output of a game between features: any inputs, any output, any operators between."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from rationale.errors import InvalidModelError, InvalidOptionError, UnsupportedModelError
from rationale.graph.runtime.session import Runner
from rationale.lowering import Lowered
from rationale.methods.engine import Method, References
from rationale.methods.environment import demand_rows
from rationale.methods.leaves import Leaf, choose_leaves, is_float
from rationale.methods.logits import choose_logits
from rationale.methods.target import Target, check_shapes, choose_output, choose_targets, reach_backward
from rationale.references.frames import columns_of
from rationale.references.reference_set import Baseline, OpenReferences
from rationale.schema.request import CompileRequest

_ROWS = 3  # number of rows that a model is run on if nothing declares an output's shape


def choose_target(lowered: Lowered, method: Method, request: CompileRequest) -> tuple[Lowered, Target]:
    """Choose the explained tensors, whose elements are the players, and the explained output.

    By default the players are the inputs for which references are given by name, else every float input, else
    every numeric input.

    Raises:
        InvalidOptionError: if a name does not exist, there are no logits, or references come with requests.
        UnsupportedModelError: if the output does not have one row for each row of the batch.
    """
    references = method.reference_set
    if isinstance(references, OpenReferences):
        raise InvalidOptionError(
            f"{method.name} holds its references in the graph: they cannot come with a request. "
            "Give a reference set."
        )
    leaves = players_leaves(lowered, request.inputs, _names_of(lowered, references))
    ends = tuple(s.tensor for s in leaves)
    check_shapes(lowered, ends)
    graph = lowered.model.graph
    name = choose_output(lowered, request.output, ends)
    if request.logits:
        name = choose_logits(lowered.source, name)
    needed = reach_backward(graph, name, ends)
    leaves = tuple(s for s in leaves if s.tensor in needed)
    if name not in lowered.specs:
        lowered = _with_spec(lowered, name, references)
    if not lowered.specs[name][1].is_floating_point():
        raise UnsupportedModelError(
            f"{name!r} holds {lowered.specs[name][1].name}: explain floats, such as the scores behind it "
            "(--output)."
        )
    demand_rows(lowered, name, needed)
    elements = choose_targets(request.targets, name, lowered)
    return lowered, Target(leaves, name, elements, notes=_kept_note(lowered, leaves, needed))


def _names_of(lowered: Lowered, references: References | None) -> list[str]:
    """Return the inputs for which references are given; for a table, the inputs among its columns."""
    if isinstance(references, Mapping):
        return [*references]
    columns = columns_of(references) or ()
    return [str(v.name) for v in lowered.model.graph.inputs if v.name in columns]


def players_leaves(
    lowered: Lowered, inputs: Sequence[str] | None, referenced: Sequence[str]
) -> tuple[Leaf, ...]:
    values = {str(v.name): v for v in lowered.model.graph.inputs}
    played = {n: v for n, v in values.items() if v.shape is not None and v.shape.rank() > 0}
    if inputs is not None:
        own = [name for name in inputs if name in played]
        if isinstance(inputs, str) or len(set(inputs)) < len(inputs):
            return choose_leaves(lowered, inputs).leaves  # it raises the error
        others = [name for name in inputs if name not in own]
        inner = choose_leaves(lowered, others).leaves if others or not own else ()
        found = {s.name: s for s in (*(Leaf(n, n) for n in own), *inner)}
        return tuple(found[name] for name in inputs)
    named = [n for n in values if n in referenced]
    if named or referenced:
        return players_leaves(lowered, named + [n for n in referenced if n not in named], ())
    floats = [n for n, v in played.items() if is_float(lowered, v)]
    numbers = [n for n, v in played.items() if v.dtype != ir.DataType.STRING]
    if not played:
        raise UnsupportedModelError(
            f"none of the model's inputs {list(values)} holds rows that references could replace."
        )
    return tuple(Leaf(n, n) for n in floats or numbers or played)


def _kept_note(lowered: Lowered, leaves: Sequence[Leaf], needed: frozenset[str]) -> tuple[str, ...]:
    ends = [s.tensor for s in leaves]
    kept = [str(v.name) for v in lowered.model.graph.inputs if v.name in needed and v.name not in ends]
    if not kept:
        return ()
    return (f"as they are in each row, and so no players: {', '.join(kept)} (--input names others)",)


# -- an output without a declared shape ---------------------------------------------------------------


def _with_spec(lowered: Lowered, name: str, references: References | None) -> Lowered:
    """Add a tensor's row shape and type, read from the model's answers to a few rows.

    ONNX infers no shapes for a Loop or for trees.

    Raises:
        UnsupportedModelError: if the rows have no common shape.
    """
    answer = _answer(lowered, name, references)
    if answer is None or answer.ndim < 1 or len(answer) != _ROWS or answer.dtype.kind in "OUS":
        shape = "no rows" if answer is None else list(answer.shape)
        raise UnsupportedModelError(
            f"{name!r} cannot be explained: it answers {_ROWS} rows by {shape}. Name an output of shape "
            "[N, …] that holds floats (--output)."
        )
    spec = ((1, *answer.shape[1:]), ir.DataType.from_numpy(answer.dtype))
    return replace(lowered, specs={**lowered.specs, name: spec}, batched=lowered.batched | {name})


def _answer(lowered: Lowered, name: str, references: References | None) -> np.ndarray | None:
    """Return the model's answers to its references if they are known, else to random numbers and zeros."""
    model, random, rows = lowered.model.clone(), np.random.default_rng(0), {}
    graph, needed = model.graph, reach_backward(model.graph, name, ())
    graph.outputs[:] = [v for node in graph for v in node.outputs if v.name == name]
    graph.inputs[:] = [v for v in graph.inputs if v.name in needed]
    passes.RemoveUnusedNodesPass()(model)
    for value in graph.inputs:
        own = str(value.name)
        if own not in lowered.specs:
            return None
        (_, *row), dtype = (lowered.specs[own][0] or (1,)), lowered.specs[own][1]
        known = _known(own, len(graph.inputs) == 1, references)
        if known is not None and list(known.shape[1:]) == row and len(known):
            with suppress(ValueError), np.errstate(all="ignore"):  # bad references get an exact error later
                rows[own] = known[np.arange(_ROWS) % len(known)].astype(dtype.numpy())
        if own in rows:
            continue
        if dtype == ir.DataType.STRING:
            rows[own] = np.full((_ROWS, *row), "", object)
        else:
            draw = random.uniform(0.2, 0.8, (_ROWS, *row) if lowered.specs[own][0] else ())
            rows[own] = np.asarray(draw, dtype.numpy())
    run = Runner(model, optimise=False, given=True)
    with suppress(InvalidModelError):
        if not lowered.single_row_only:
            return np.asarray(run(rows)[name])
        alone = [{n: a[i : i + 1] if a.ndim else a for n, a in rows.items()} for i in range(_ROWS)]
        return np.concatenate([run(row)[name] for row in alone])
    return None


def _known(name: str, only: bool, references: References | None) -> np.ndarray | None:
    """Return the references of one input: an array, the column of that name, or all for an only input."""
    if references is None or isinstance(references, Baseline | OpenReferences):
        return None
    given: Any = references
    if isinstance(references, Mapping):
        array = np.asarray(given.get(name, np.empty(())))
    elif name in (columns_of(references) or ()):
        array = np.asarray(given[name])
    else:
        array = np.asarray(references if only else np.empty(()))
    return array[:, None] if array.ndim == 1 else array if array.ndim else None
