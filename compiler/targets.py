"""What is explained: which output, which of its elements, which inputs; and the operators between."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from compiler.errors import InvalidOptionError, UnsupportedModelError
from compiler.lowering import Lowered
from compiler.rule import Rule, find_rule

Targets = Sequence[int] | Literal["all", "predicted"] | None


@dataclass(frozen=True)
class Path:
    """The operators whose multipliers are needed.

    Attributes:
        inputs: names of the explained inputs.
        targets: flat indices into the output's row, or "predicted".
        dependent: names of all values that depend on the explained inputs, integers included.
        active: names of the float values through which they reach the output.
        nodes: the operators of the path, in topological order, with their rules.
    """

    inputs: tuple[str, ...]
    output: str
    targets: tuple[int, ...] | Literal["predicted"]
    dependent: frozenset[str]
    active: frozenset[str]
    nodes: tuple[tuple[ir.Node, Rule], ...]


def choose_path(lowered: Lowered, output: str | None, targets: Targets, inputs: Sequence[str] | None) -> Path:
    """Raises InvalidOptionError for names that do not exist, UnsupportedModelError for what has no rule."""
    chosen = _choose_inputs(lowered, inputs)
    dependent = _reach_forward(lowered.model.graph, chosen, lambda _: True)
    name = _choose_output(lowered, output, dependent)
    floats = _reach_forward(lowered.model.graph, chosen, lambda v: _is_float(lowered, str(v.name)))
    if name not in floats:
        raise UnsupportedModelError(
            f"output {name!r} depends on {', '.join(chosen)} through integers or conditions alone: "
            "nothing differentiable connects them. Explain another output (--output)."
        )
    active = floats & _reach_backward(lowered.model.graph, name)
    return Path(
        tuple(i for i in chosen if i in active),
        name,
        _choose_targets(lowered, name, targets),
        dependent,
        active,
        _nodes_with_rules(lowered.model.graph, active),
    )


def _is_float(lowered: Lowered, name: str) -> bool:
    spec = lowered.specs.get(name)
    return spec is None or spec[1].is_floating_point()


def _choose_inputs(lowered: Lowered, inputs: Sequence[str] | None) -> tuple[str, ...]:
    graph = lowered.model.graph
    names = [str(v.name) for v in graph.inputs]
    if inputs is not None:
        unknown = [name for name in inputs if name not in names]
        if unknown:
            raise InvalidOptionError(f"no input {unknown}; the model has {names}.")
        integer = [name for name in inputs if not _is_float(lowered, name)]
        if integer:
            raise InvalidOptionError(f"input {integer} holds no floats, so it has no attributions.")
        return tuple(inputs)
    chosen = tuple(name for name in names if _is_float(lowered, name))
    if not chosen:
        raise UnsupportedModelError(f"none of the model's inputs {names} holds floats.")
    return chosen


def _choose_output(lowered: Lowered, output: str | None, dependent: frozenset[str]) -> str:
    graph = lowered.model.graph
    if output is not None:
        if output not in dependent:
            names = [v.name for v in graph.outputs]
            raise InvalidOptionError(
                f"no tensor {output!r} that depends on the explained inputs; the model's outputs are {names}, "
                "and any inner tensor can be named (look it up in Netron)."
            )
        return output
    for value in graph.outputs:
        producer = value.producer()
        if producer is not None and producer.op_type == "ZipMap":
            value = producer.inputs[0]
        if value is not None and value.name in dependent and _is_float(lowered, str(value.name)):
            return str(value.name)
    raise UnsupportedModelError("no float output depends on the explained inputs.")


def _choose_targets(
    lowered: Lowered, output: str, targets: Targets
) -> tuple[int, ...] | Literal["predicted"]:
    if output not in lowered.specs or output not in lowered.batched or lowered.specs[output][0][0] != 1:
        raise UnsupportedModelError(f"output {output!r} must have the batch on axis 0 and a known shape.")
    size = int(np.prod(lowered.specs[output][0]))
    if targets is None:
        return (0,) if size == 1 else "predicted"
    if targets == "predicted":
        return "predicted"
    if targets == "all":
        return tuple(range(size))
    if isinstance(targets, str):
        raise InvalidOptionError(f"targets {targets!r}: give indices, 'all' or 'predicted'.")
    outside = [t for t in targets if not 0 <= t < size]
    if outside or not targets:
        raise InvalidOptionError(f"targets {list(targets)}: output {output!r} has indices 0 to {size - 1}.")
    return tuple(int(t) for t in targets)


def _reach_forward(
    graph: ir.Graph, inputs: Sequence[str], through: Callable[[ir.Value], bool]
) -> frozenset[str]:
    reached = set(inputs)
    for node in graph:
        if any(v is not None and v.name in reached for v in node.inputs):
            reached.update(str(v.name) for v in node.outputs if v.name and through(v))
    return frozenset(reached)


def _reach_backward(graph: ir.Graph, output: str) -> frozenset[str]:
    reached = {output}
    for node in reversed(graph):
        if any(v.name in reached for v in node.outputs):
            reached.update(str(v.name) for v in node.inputs if v is not None and v.name)
    return frozenset(reached)


def _nodes_with_rules(graph: ir.Graph, active: frozenset[str]) -> tuple[tuple[ir.Node, Rule], ...]:
    """Every node of the path with its rule.

    Raises:
        UnsupportedModelError: lists every node that has none.
    """
    path = [
        node
        for node in graph
        if any(v.name in active for v in node.outputs)
        and any(v is not None and v.name in active for v in node.inputs)
    ]
    found = [(node, find_rule(node.op_type, node.domain)) for node in path]
    missing = [(i, node) for i, (node, rule) in enumerate(found, start=1) if rule is None]
    if missing:
        lines = [
            f"  {node.domain or 'ai.onnx'}.{node.op_type} (opset {graph.opset_imports.get(node.domain, '?')}), "
            f"node {node.name or node.outputs[0].name!r}, {i} of {len(path)} on the path, "
            f"{', '.join(str(v.name) for v in node.inputs if v is not None)} -> {node.outputs[0].name}"
            for i, node in missing
        ]
        raise UnsupportedModelError(
            f"{len(missing)} node(s) on the way to the explained output have no rule:\n"
            + "\n".join(lines)
            + "\n"
            "Explain an output before them (--output), export with other operators, or see "
            "`rationale operators` for what is supported."
        )
    return tuple((node, rule) for node, rule in found if rule is not None)
