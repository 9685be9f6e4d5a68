"""What a game between features is about: any inputs, any output, whatever lies between."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

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
from rationale.references.reference_set import Baseline, OpenReferences
from rationale.schema.request import CompileRequest
from rationale.tables.frames import frame_of

_ROWS = 3  # on which the shape of an output is looked at that nothing says


def choose_target(lowered: Lowered, method: Method, request: CompileRequest) -> tuple[Lowered, Target]:
    """Choose the explained tensors, whose elements play, and the output that they play for.

    By default every input for which references are given by name plays, else every float input, else every
    input of numbers.

    Raises:
        InvalidOptionError: names that do not exist, no logits, or references that come with a request.
        UnsupportedModelError: an output without a row for each of the batch.
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
    """Return the inputs for which references are given: of a table, those among its columns."""
    if isinstance(references, Mapping):
        return [*references]
    frame = frame_of(references)
    return [str(v.name) for v in lowered.model.graph.inputs if frame and v.name in frame.labels]


def players_leaves(
    lowered: Lowered, inputs: Sequence[str] | None, referenced: Sequence[str]
) -> tuple[Leaf, ...]:
    values = {str(v.name): v for v in lowered.model.graph.inputs}
    played = {n: v for n, v in values.items() if v.shape is not None and v.shape.rank() > 0}
    if inputs is not None:
        own = [name for name in inputs if name in played]
        if isinstance(inputs, str) or len(set(inputs)) < len(inputs):
            return choose_leaves(lowered, inputs).leaves  # which says what is wrong
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


# -- an output of which nothing says the shape -----------------------------------------------------------


def _with_spec(lowered: Lowered, name: str, references: References | None) -> Lowered:
    """Add a tensor's row and type, as the model answers a few rows.

    ONNX knows no shapes of a Loop, or of trees.

    Raises:
        UnsupportedModelError: rows of no common shape.
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
    """Return the answer to references, as far as they are known yet; else to random numbers and zeros."""
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
            with suppress(ValueError), np.errstate(all="ignore"):  # odd ones are refused later, by place
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
    """Return the references of one input: an array, the column of that name, or all for the only input."""
    if references is None or isinstance(references, Baseline | OpenReferences):
        return None
    if isinstance(references, Mapping):
        array = np.asarray(references.get(name, np.empty(())))
    elif (frame := frame_of(references)) and name in frame.labels:
        array = frame[name]
    else:
        array = np.asarray(references if only else np.empty(()))
    return array[:, None] if array.ndim == 1 else array if array.ndim else None
