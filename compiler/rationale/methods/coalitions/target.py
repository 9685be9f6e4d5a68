"""The players and the output of a game between features: any inputs, any output, any operators between."""

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
            f"{method.name} keeps its references in the graph, so requests cannot bring them. Give a "
            "reference set."
        )
    leaves = leaves_of_players(lowered, request.inputs, _names_of(lowered, references))
    ends = tuple(s.tensor for s in leaves)
    check_shapes(lowered, ends)
    graph = lowered.model.graph
    name = choose_output(lowered, request.output, ends)
    if request.logits:
        name = choose_logits(lowered.source, name)
    needed = reach_backward(graph, name, ends)
    leaves = tuple(s for s in leaves if s.tensor in needed)
    if name not in lowered.specs:
        lowered = _with_row_spec(lowered, name, references)
    if not lowered.specs[name][1].is_floating_point():
        raise UnsupportedModelError(
            f"{name!r} holds {lowered.specs[name][1].name}: explain floats, such as the scores that it is "
            "computed from (--output)."
        )
    demand_rows(lowered, name, needed)
    elements = choose_targets(request.targets, name, lowered)
    return lowered, Target(leaves, name, elements, notes=_fixed_note(lowered, leaves, needed))


def _names_of(lowered: Lowered, references: References | None) -> list[str]:
    """Return the inputs for which references are given; for a table, the inputs among its columns."""
    if isinstance(references, Mapping):
        return [*references]
    frame = frame_of(references)
    return [str(v.name) for v in lowered.model.graph.inputs if frame and v.name in frame.labels]


def leaves_of_players(
    lowered: Lowered, inputs: Sequence[str] | None, referenced: Sequence[str]
) -> tuple[Leaf, ...]:
    values = {str(v.name): v for v in lowered.model.graph.inputs}
    with_rows = {n: v for n, v in values.items() if v.shape is not None and v.shape.rank() > 0}
    if inputs is not None:
        model_inputs = [name for name in inputs if name in with_rows]
        if isinstance(inputs, str) or len(set(inputs)) < len(inputs):
            return choose_leaves(lowered, inputs).leaves  # it raises the error
        inner_names = [name for name in inputs if name not in model_inputs]
        inner = choose_leaves(lowered, inner_names).leaves if inner_names or not model_inputs else ()
        leaf_of = {s.name: s for s in (*(Leaf(n, n) for n in model_inputs), *inner)}
        return tuple(leaf_of[name] for name in inputs)
    known_inputs = [n for n in values if n in referenced]
    if known_inputs or referenced:
        return leaves_of_players(lowered, known_inputs + [n for n in referenced if n not in known_inputs], ())
    floats = [n for n, v in with_rows.items() if is_float(lowered, v)]
    numbers = [n for n, v in with_rows.items() if v.dtype != ir.DataType.STRING]
    if not with_rows:
        raise UnsupportedModelError(
            f"none of the model's inputs {list(values)} has rows that references could replace."
        )
    return tuple(Leaf(n, n) for n in floats or numbers or with_rows)


def _fixed_note(lowered: Lowered, leaves: Sequence[Leaf], needed: frozenset[str]) -> tuple[str, ...]:
    ends = [s.tensor for s in leaves]
    fixed_inputs = [
        str(v.name) for v in lowered.model.graph.inputs if v.name in needed and v.name not in ends
    ]
    if not fixed_inputs:
        return ()
    return (
        "these inputs keep the values of the explained row and get no attributions: "
        f"{', '.join(fixed_inputs)} (--input names others)",
    )


# -- an output without a declared shape ---------------------------------------------------------------


def _with_row_spec(lowered: Lowered, name: str, references: References | None) -> Lowered:
    """Add a tensor's row shape and type, read from the model's answers to a few rows.

    ONNX infers no shapes for a Loop or for trees.

    Raises:
        UnsupportedModelError: if the rows have no common shape.
    """
    answer = _sample_answers(lowered, name, references)
    if answer is None or answer.ndim < 1 or len(answer) != _ROWS or answer.dtype.kind in "OUS":
        shape = "no rows" if answer is None else list(answer.shape)
        raise UnsupportedModelError(
            f"{name!r} cannot be explained: {_ROWS} rows give {shape}. Name an output of shape "
            "[N, …] that holds floats (--output)."
        )
    spec = ((1, *answer.shape[1:]), ir.DataType.from_numpy(answer.dtype))
    return replace(lowered, specs={**lowered.specs, name: spec}, batched=lowered.batched | {name})


def _sample_answers(lowered: Lowered, name: str, references: References | None) -> np.ndarray | None:
    """Return the model's answers to its references if they are known, else to random numbers and zeros."""
    model, random, rows = lowered.model.clone(), np.random.default_rng(0), {}
    graph, needed = model.graph, reach_backward(model.graph, name, ())
    graph.outputs[:] = [v for node in graph for v in node.outputs if v.name == name]
    graph.inputs[:] = [v for v in graph.inputs if v.name in needed]
    passes.RemoveUnusedNodesPass()(model)
    for value in graph.inputs:
        name_of_input = str(value.name)
        if name_of_input not in lowered.specs:
            return None
        (_, *row), dtype = (lowered.specs[name_of_input][0] or (1,)), lowered.specs[name_of_input][1]
        own_rows = _references_of_input(name_of_input, len(graph.inputs) == 1, references)
        if own_rows is not None and list(own_rows.shape[1:]) == row and len(own_rows):
            with suppress(ValueError), np.errstate(all="ignore"):  # bad references get an exact error later
                rows[name_of_input] = own_rows[np.arange(_ROWS) % len(own_rows)].astype(dtype.numpy())
        if name_of_input in rows:
            continue
        if dtype == ir.DataType.STRING:
            rows[name_of_input] = np.full((_ROWS, *row), "", object)
        else:
            draw = random.uniform(0.2, 0.8, (_ROWS, *row) if lowered.specs[name_of_input][0] else ())
            rows[name_of_input] = np.asarray(draw, dtype.numpy())
    run = Runner(model, optimise=False, users_model=True)
    with suppress(InvalidModelError):
        if not lowered.single_row_only:
            return np.asarray(run(rows)[name])
        alone = [{n: a[i : i + 1] if a.ndim else a for n, a in rows.items()} for i in range(_ROWS)]
        return np.concatenate([run(row)[name] for row in alone])
    return None


def _references_of_input(name: str, is_only: bool, references: References | None) -> np.ndarray | None:
    """Return the references of one input: an array, the column of that name, or all for an only input."""
    if references is None or isinstance(references, Baseline | OpenReferences):
        return None
    if isinstance(references, Mapping):
        array = np.asarray(references.get(name, np.empty(())))
    elif (frame := frame_of(references)) and name in frame.labels:
        array = frame[name]
    else:
        array = np.asarray(references if is_only else np.empty(()))
    return array[:, None] if array.ndim == 1 else array if array.ndim else None
