"""What is explained: which output, which of its elements, which inputs; and the operators between."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from compiler.errors import InvalidOptionError, UnsupportedModelError
from compiler.lowering import Lowered
from compiler.lowering.batch import reads
from compiler.rule import Rule, find_rule

Targets = Sequence[int] | Literal["all", "predicted"] | None
_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


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
    graph = lowered.model.graph
    chosen = _choose_inputs(lowered, inputs)
    dependent = _reach_forward(graph, chosen, lambda _: True)
    name = _choose_output(lowered, output, dependent)
    floats = _reach_forward(graph, chosen, lambda v: _is_float(lowered, v))
    if name not in floats:
        raise UnsupportedModelError(
            f"output {name!r} depends on {', '.join(chosen)} through integers or conditions alone: "
            "nothing differentiable connects them. Explain another output (--output)."
        )
    active = floats & _reach_backward(graph, name)
    nodes = _nodes_with_rules(graph, active)  # first: what has no rule often has no known shape either
    explained = tuple(i for i in chosen if i in active)
    _check_shapes(lowered, explained)
    _check_types(lowered, active)
    _check_rows(lowered, name, nodes)
    return Path(explained, name, _choose_targets(lowered, name, targets), dependent, active, nodes)


def _is_float(lowered: Lowered, value: ir.Value) -> bool:
    """Whether a value may carry attributions; True where its type is not known."""
    spec = lowered.specs.get(str(value.name))
    dtype = spec[1] if spec else value.dtype
    return dtype is None or dtype.is_floating_point()


def _choose_inputs(lowered: Lowered, inputs: Sequence[str] | None) -> tuple[str, ...]:
    """The named inputs, or every float input whose axis 0 is the batch."""
    values = {str(v.name): v for v in lowered.model.graph.inputs}
    if inputs is None:
        chosen = tuple(name for name, v in values.items() if _is_float(lowered, v) and _has_rows(v))
        if not chosen:
            raise UnsupportedModelError(
                f"none of the model's inputs {list(values)} holds rows of floats, so they can have no "
                "attributions. Explain a model that takes floats (encoded features, or embeddings)."
            )
        return chosen
    if isinstance(inputs, str) or not inputs or len(set(inputs)) < len(inputs):
        raise InvalidOptionError(f"inputs {inputs!r}: give a list of different names out of {list(values)}.")
    unknown = [name for name in inputs if name not in values]
    if unknown:
        raise InvalidOptionError(f"no input {unknown}; the model has {list(values)}.")
    integer = [name for name in inputs if not _is_float(lowered, values[name])]
    if integer:
        raise InvalidOptionError(f"input {integer} holds no floats, so it has no attributions.")
    single = [name for name in inputs if not _has_rows(values[name])]
    if single:
        raise InvalidOptionError(
            f"input {single} is one number for the whole batch: it has no attributions per row."
        )
    return tuple(inputs)


def _has_rows(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.rank() > 0


def _check_shapes(lowered: Lowered, inputs: Sequence[str]) -> None:
    """Raises UnsupportedModelError for explained inputs whose features are not countable."""
    values = {str(v.name): v for v in lowered.model.graph.inputs}
    for name in inputs:
        if name not in lowered.specs:
            shape = ", ".join(str(d) for d in values[name].shape or ())
            raise UnsupportedModelError(
                f"input {name!r} has the shape [{shape}]: every axis but the first needs a fixed size, since "
                "each feature gets an attribution. Export the model with static feature sizes."
            )
        if 0 in lowered.specs[name][0]:
            raise UnsupportedModelError(f"input {name!r} has no features: an axis of it has length 0.")


def _check_types(lowered: Lowered, active: frozenset[str]) -> None:
    for name in sorted(active & set(lowered.specs)):
        if lowered.specs[name][1] not in _TYPES:
            raise UnsupportedModelError(
                f"{name!r} holds {lowered.specs[name][1].name}, in which attributions cannot be computed. "
                "Convert the model to float32."
            )


def _check_rows(lowered: Lowered, output: str, nodes: Sequence[tuple[ir.Node, Rule]]) -> None:
    """Raises UnsupportedModelError where the output has no batch on axis 0; names the node that moved it."""
    spec = lowered.specs.get(output)
    if spec is not None and output in lowered.batched and spec[0][0] == 1:
        return
    for node, _ in nodes:
        for value in node.outputs:
            name = str(value.name)
            known = lowered.specs.get(name)
            if known is not None and name in lowered.batched and known[0][0] == 1:
                continue
            fault = (
                "its shape is not known before the model runs"
                if known is None
                else "rows of a batch mix there"
            )
            raise UnsupportedModelError(
                f"{node.op_type} node {node.name or name!r}: {name!r} does not keep the batch on axis 0 "
                f"({fault}). Each row must be explained by itself: explain an output before it "
                "(--output), or export the model so that axis 0 is the batch throughout."
            )
    raise UnsupportedModelError(f"output {output!r} must have the batch on axis 0 and a known shape.")


def _choose_output(lowered: Lowered, output: str | None, dependent: frozenset[str]) -> str:
    names = [str(v.name) for v in lowered.model.graph.outputs]
    if output is not None:
        if output not in dependent:
            raise InvalidOptionError(
                f"no tensor {output!r} depends on the explained inputs; the model's outputs are {names}, "
                "and any inner tensor can be named (look it up in Netron)."
            )
        return output
    for value in lowered.model.graph.outputs:
        if value.name in dependent and _is_float(lowered, value):
            return str(value.name)
    raise UnsupportedModelError(
        f"none of the outputs {names} holds floats that depend on the explained inputs. Name an inner tensor "
        "that does, such as the scores before an ArgMax (--output)."
    )


def _choose_targets(lowered: Lowered, output: str, targets: object) -> tuple[int, ...] | Literal["predicted"]:
    size = int(np.prod(lowered.specs[output][0]))
    if targets is None:
        return (0,) if size == 1 else "predicted"
    if targets == "predicted":
        return "predicted"
    if targets == "all":
        return tuple(range(size))
    if isinstance(targets, str) or not isinstance(targets, Iterable):
        raise InvalidOptionError(f"targets {targets!r}: give a list of indices, 'all' or 'predicted'.")
    given = list(targets)
    if not given or not all(_is_index(t, size) for t in given):
        raise InvalidOptionError(f"targets {given}: output {output!r} has indices 0 to {size - 1}.")
    return tuple(int(t) for t in given)


def _is_index(target: object, size: int) -> bool:
    if isinstance(target, bool) or not isinstance(target, int | np.integer):
        return False
    return 0 <= int(target) < size


def _reach_forward(
    graph: ir.Graph, inputs: Sequence[str], through: Callable[[ir.Value], bool]
) -> frozenset[str]:
    reached = set(inputs)
    for node in graph:
        if not reached.isdisjoint(reads(node)):
            reached.update(str(v.name) for v in node.outputs if v.name and through(v))
    return frozenset(reached)


def _reach_backward(graph: ir.Graph, output: str) -> frozenset[str]:
    reached = {output}
    for node in reversed(graph):
        if any(v.name in reached for v in node.outputs):
            reached.update(reads(node))
    return frozenset(reached)


def _nodes_with_rules(graph: ir.Graph, active: frozenset[str]) -> tuple[tuple[ir.Node, Rule], ...]:
    """Every node of the path with its rule.

    Raises:
        UnsupportedModelError: lists every node that has none.
    """
    path = [
        node
        for node in graph
        if any(v.name in active for v in node.outputs) and not active.isdisjoint(reads(node))
    ]
    found = [(node, find_rule(node.op_type, node.domain)) for node in path]
    missing = [(i, node) for i, (node, rule) in enumerate(found, start=1) if rule is None]
    if missing:
        lines = [
            f"  {node.domain or 'ai.onnx'}.{node.op_type} "
            f"(opset {graph.opset_imports.get(node.domain, '?')}), "
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
