"""An independent float64 interpreter of ONNX graphs, on torch.

It shares no code with ONNX Runtime or with this project: what an emitted float32 graph answers is
compared with what its nodes mean in float64. `observe` sees every node's outputs and may replace them,
which is how test models get weights that keep the signal alive.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.inliner import inline_local_functions

from tests.references.by_onnx import by_onnx, wide
from tests.references.operators.layout import LAYOUT
from tests.references.operators.mathematics import MATH
from tests.references.operators.normalisation import NORMALISATIONS
from tests.references.operators.pointwise import POINTWISE
from tests.references.operators.recurrent import recurrent
from tests.references.operators.sampling import SAMPLING
from tests.references.operators.windows import WINDOWS

_MUCH = 1 << 20  # numbers that a model starts with
T = torch.Tensor
Observe = Callable[[onnx.NodeProto, dict[str, T]], None]


def run64(
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str] | None = None,
    observe: Observe | None = None,
    operators: Mapping[str, Callable[..., Any]] | None = None,
) -> dict[str, np.ndarray]:
    """Runs a model with every float in float64.

    Args:
        operators: in place of OPERATORS' own.

    Returns:
        The graph's outputs (or the named tensors) by name, as arrays.
    """
    model = inline_local_functions(model) if model.functions else model
    values = _constants(model.graph)
    values |= {name: wide(np.asarray(array)) for name, array in inputs.items()}
    names = list(outputs or (o.name for o in model.graph.output))
    table = {**OPERATORS, **(operators or {})}
    with torch.no_grad(), _threads_for(values):
        _run(model.graph, values, names, table, observe)
    return {name: values[name].numpy() for name in names}


@contextlib.contextmanager
def _threads_for(values: Mapping[str, T]) -> Iterator[None]:
    """One, unless there is much to compute: several wait for each other, milliseconds on a busy machine."""
    before = torch.get_num_threads()
    if sum(value.numel() for value in values.values()) < _MUCH:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _constants(graph: onnx.GraphProto) -> dict[str, T]:
    return {t.name: wide(numpy_helper.to_array(t)) for t in graph.initializer}


def _run(
    graph: onnx.GraphProto,
    values: dict[str, T],
    result_names: Sequence[str],
    table: Mapping[str, Callable[..., Any]],
    observe: Observe | None = None,
) -> None:
    """Adds what the nodes compute to `values`; what is read no more and not wanted is dropped."""
    last = {name: i for i, node in enumerate(graph.node) for name in _names_read(node)}
    for i, node in enumerate(graph.node):
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        operands = [values[name] if name else None for name in node.input]
        if node.op_type == "Scan":
            results = _scan(operands, values, table, **attributes)
        else:
            run = table.get(node.op_type) or functools.partial(
                by_onnx, node.op_type, domain=node.domain, outputs=len(node.output)
            )
            results = run(*operands, **attributes)
        results = results if isinstance(results, tuple | list) else (results,)
        values.update(zip(node.output, results, strict=False))
        if observe is not None:
            observe(node, values)
        elif i % 16 == 0:
            dead = [n for n in values if last.get(n, -1) < i and n not in result_names and n in last]
            for name in dead:
                del values[name]


def _names_read(node: onnx.NodeProto) -> set[str]:
    """With what its subgraphs take from outside."""
    bodies = [a.g for a in node.attribute if a.HasField("g")]
    return set(node.input).union(*(_names_read(n) for g in bodies for n in g.node))


def _scan(
    operands: Sequence[Any],
    outside: Mapping[str, T],
    table: Mapping[str, Callable[..., Any]],
    *,
    body: onnx.GraphProto,
    num_scan_inputs: int,
) -> list[T]:
    """Along axis 0 of the scan inputs and outputs, forwards."""
    count = len(operands) - num_scan_inputs
    states, sequences = list(operands[:count]), operands[count:]
    stacks: list[list[T]] = []
    names, result_names = [v.name for v in body.input], [v.name for v in body.output]
    constants = _constants(body)
    for parts in zip(*sequences, strict=True):
        inside = {**outside, **constants, **dict(zip(names, [*states, *parts], strict=True))}
        _run(body, inside, result_names, table)
        states = [inside[name] for name in result_names[:count]]
        stacks.append([inside[name] for name in result_names[count:]])
    return [*states, *(torch.stack(parts) for parts in zip(*stacks, strict=True))]


OPERATORS: dict[str, Callable[..., Any]] = {
    **LAYOUT,
    **MATH,
    **NORMALISATIONS,
    **POINTWISE,
    **SAMPLING,
    **WINDOWS,
    **{kind.upper(): recurrent(kind) for kind in ("rnn", "gru", "lstm")},
}
