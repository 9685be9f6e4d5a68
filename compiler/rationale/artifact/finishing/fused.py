"""Chains of elementwise operators as functions of the file, which one kernel computes in one pass.

ONNX Runtime fuses no such chains on a CPU: each operator is a trip through memory. Each chain becomes a call
of `rationale:Fused0`, `Fused1` and so on, a function of the file whose body has the chain's operators. A
runtime inlines functions, and then runs the graph as it was. The optional library `rationale-kernels`
registers one operator under all of these names, which ONNX Runtime takes instead: it reads the chain from
the call's attribute `program`.

A program is a text of instructions, separated by ";". Values have numbers: first the call's inputs, then one
for each instruction, and the last is the output. "Mul 0 3" multiplies two of them. A chain may work along
rows, the last axes of its output: "rows 2;" says how many, "r.Mul 1 4" computes one number for each row, and
"ReduceSum 5" adds up a row. Everything else broadcasts. See docs/adr/0053-fused-chains.md.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from rationale.graph.nodes import graphs_of

DOMAIN, NAME, PROGRAM = "rationale", "Fused", "program"
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceSum"})
_OPERANDS = {  # kernels/src/operators.h computes the same
    op_type: count
    for count, op_types in {
        1: "Abs Cast Erf Exp Identity Log Neg Not Reciprocal Relu Sigmoid Sign Sqrt Tanh",
        2: "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mul Or Sub",
        3: "Clip Where",
    }.items()
    for op_type in op_types.split()
}
_MOST_INPUTS = 24
_MOST_INSTRUCTIONS = 96
_MOST_CHAINS = 64  # different ones; kernels/src/library.cpp has as many names
_Dims = tuple[object, ...]


@dataclass
class _Chain:
    """Operators of which only the last one's output is read elsewhere.

    Attributes:
        nodes: the operators, the last one first.
        read: the values that they read from outside.
        rows: the number of last axes of which a row consists; None if no operator works along rows.
    """

    dtype: ir.DataType
    dims: _Dims
    nodes: list[ir.Node] = field(default_factory=list)
    read: set[ir.Value] = field(default_factory=set)
    rows: int | None = None

    def takes(self, node: ir.Node) -> bool:
        """Add an operator if its values fit the chain's; return whether they do."""
        read = self.read - {node.outputs[0]} | set(_operands(node))
        if len(self.nodes) == _MOST_INSTRUCTIONS or len(read) > _MOST_INPUTS:
            return False
        dims = _dims(node.outputs[0])
        rows = None if dims == self.dims else self._row_axes(dims)
        if node.op_type in _REDUCTIONS:
            if rows is None or _dims(node.inputs[0]) != self.dims or _reduced_axes(node) != rows:
                return False
        elif dims != self.dims and rows is None:
            return False
        if node.outputs[0].dtype not in (self.dtype, ir.DataType.BOOL):
            return False
        self.rows = self.rows if rows is None else rows
        self.read = read
        self.nodes.append(node)
        return True

    def _row_axes(self, dims: _Dims | None) -> int | None:
        """Return the number of last axes that are 1 in `dims` and otherwise equal; None if they differ."""
        if dims is None or len(dims) != len(self.dims):
            return None
        first = next((i for i in range(len(dims)) if dims[i] != self.dims[i]), len(dims))
        count = len(dims) - first
        if not count or any(d != 1 for d in dims[first:]) or self.rows not in (None, count):
            return None
        return count


def fuse_chains(model: ir.Model, outputs: Collection[str]) -> None:
    """Replace chains of elementwise operators by calls of functions, in place.

    The shapes of values have to be known (`set_symbolic_shapes`).

    Args:
        outputs: the model's own outputs. ONNX Runtime fuses what they need by itself, so it stays.
    """
    forward = _needed_by(model.graph, outputs)
    names: dict[str, str] = {}
    for graph in _graphs(model.graph, forward):
        for chain in _chains(graph, forward):
            _replace(model, graph, chain, names)
    if names:
        model.graph.opset_imports[DOMAIN] = 1


def _needed_by(graph: ir.Graph, outputs: Collection[str]) -> set[ir.Node]:
    """Return the nodes that compute the outputs."""
    pending = [v.producer() for v in graph.outputs if v.name in outputs]
    nodes: set[ir.Node] = set()
    while pending:
        node = pending.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            pending.extend(v.producer() for v in node.inputs if v is not None)
    return nodes


def _graphs(graph: ir.Graph, forward: Collection[ir.Node]) -> Iterator[ir.Graph]:
    """Yield a graph and the bodies in it, except those of the model's own nodes."""
    yield graph
    for node in graph:
        if node not in forward:
            for attribute in node.attributes.values():
                for body in graphs_of(attribute):
                    yield from _graphs(body, forward)


def _chains(graph: ir.Graph, forward: Collection[ir.Node]) -> list[_Chain]:
    """Return the chains of two or more operators that read numbers of one type."""
    apart = set(forward)
    while True:
        chains = _grown(graph, apart)
        mixed = {
            n for c in chains for n in c.nodes for v in _operands(n) if v in c.read and v.dtype != c.dtype
        }
        if not mixed:
            return [chain for chain in chains if len(chain.nodes) > 1]
        apart |= mixed


def _grown(graph: ir.Graph, apart: Collection[ir.Node]) -> list[_Chain]:
    """Return chains, of one operator or more. An operator joins the chain that alone reads its output."""
    chain_of: dict[ir.Node, _Chain] = {}
    chains: list[_Chain] = []
    for node in reversed(graph):
        if node in apart or not _is_fusible(node):
            continue
        output = node.outputs[0]
        readers = {id(chain_of.get(use.node)): chain_of.get(use.node) for use in output.uses()}
        chain = next(iter(readers.values())) if len(readers) == 1 and not output.is_graph_output() else None
        if chain is None or not chain.takes(node):
            dims = _dims(output)
            if output.dtype not in _FLOATS or dims is None or node.op_type in _REDUCTIONS:
                continue
            chain = _Chain(output.dtype, dims, [node], set(_operands(node)))
            chains.append(chain)
        chain_of[node] = chain
    return chains


def _is_fusible(node: ir.Node) -> bool:
    if node.domain or len(node.outputs) != 1 or _dims(node.outputs[0]) is None:
        return False
    if node.op_type in _REDUCTIONS:
        return bool(_reduced_axes(node))
    if node.op_type == "Cast" and (node.inputs[0] is None or node.inputs[0].dtype != ir.DataType.BOOL):
        return False
    return len(node.inputs) == _OPERANDS.get(node.op_type) and None not in node.inputs


def _reduced_axes(node: ir.Node) -> int:
    """Return the number of last axes that a node reduces to length 1; 0 if it does something else."""
    x, axes = (*node.inputs, None)[:2]
    kept = node.attributes.get("keepdims")
    constant = axes.const_value if axes is not None else None
    if x is None or x.shape is None or constant is None or (kept is not None and kept.as_int() != 1):
        return 0
    rank = len(x.shape)
    numbers = sorted(int(a) % rank for a in constant.numpy())
    return len(numbers) if numbers == list(range(rank - len(numbers), rank)) else 0


def _operands(node: ir.Node) -> Sequence[ir.Value]:
    """Return the values that a node computes with; axes are part of the instruction."""
    inputs = [v for v in node.inputs if v is not None]
    return inputs[:1] if node.op_type in _REDUCTIONS else inputs


def _replace(model: ir.Model, graph: ir.Graph, chain: _Chain, names: dict[str, str]) -> None:
    """Put a call in the place of a chain, unless all names are taken.

    Args:
        names: names of the functions, by dtype and program; a new one is added.
    """
    nodes = chain.nodes[::-1]
    inside = {node.outputs[0] for node in nodes}
    inputs = list(dict.fromkeys(v for node in nodes for v in _operands(node) if v not in inside))
    program = _program(chain, nodes, inputs)
    key = f"{chain.dtype.name};{program}"
    if key not in names:
        if len(names) == _MOST_CHAINS:
            return
        names[key] = f"{NAME}{len(names)}"
        model.functions[DOMAIN, names[key], ""] = _function(model, nodes, inputs, names[key])
    put_call(graph, nodes, inputs, names[key], program)


def put_call(
    graph: ir.Graph, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], name: str, program: str
) -> None:
    """Put a call of a function in the place of nodes, the last of which gives its output."""
    last = nodes[-1]
    call = ir.Node(DOMAIN, name, inputs, [ir.AttrString(PROGRAM, program)], num_outputs=1, name=last.name)
    old, new = last.outputs[0], call.outputs[0]
    graph.insert_before(last, call)
    new.type, new.shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    new.name, old.name = old.name, None
    graph.remove(nodes[::-1], safe=True)


def _program(chain: _Chain, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value]) -> str:
    numbers = {value: i for i, value in enumerate(inputs)}
    steps = [] if chain.rows is None else [f"rows {chain.rows}"]
    for node in nodes:
        numbers[node.outputs[0]] = len(numbers)
        per_row = node.op_type not in _REDUCTIONS and _dims(node.outputs[0]) != chain.dims
        steps.append(
            " ".join([f"{'r.' * per_row}{node.op_type}", *(str(numbers[v]) for v in _operands(node))])
        )
    return ";".join(steps)


def _function(
    model: ir.Model, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], name: str
) -> ir.Function:
    """Return the function of a chain: copies of its operators, which read nothing from outside."""
    opsets = {"": model.graph.opset_imports[""]}
    values = {v: ir.Value(name=f"x{i}") for i, v in enumerate(inputs)}
    copies: list[ir.Node] = []
    for node in nodes:
        operands = [values[v] for v in _operands(node)]
        if node.op_type in _REDUCTIONS:
            axes = np.arange(-_reduced_axes(node), 0)
            copies.append(ir.node("Constant", [], {"value": ir.Tensor(axes)}))
            copies[-1].outputs[0].name = f"axes{len(copies)}"
            operands.append(copies[-1].outputs[0])
        attributes = [a for a in node.attributes.values() if a.name != "noop_with_empty_axes"]
        copies.append(ir.Node("", node.op_type, operands, attributes))
        values[node.outputs[0]] = copies[-1].outputs[0]
        copies[-1].outputs[0].name = f"y{len(copies)}"
    graph = ir.Graph(
        [values[v] for v in inputs], [copies[-1].outputs[0]], nodes=copies, opset_imports=opsets, name=name
    )
    attributes = [ir.Attr(PROGRAM, ir.AttributeType.UNDEFINED, None)]
    return ir.Function(DOMAIN, name, graph=graph, attributes=attributes)


def _dims(value: ir.Value | None) -> _Dims | None:
    """Return the lengths of the axes: numbers, and names of those that depend on the batch."""
    if value is None or value.shape is None:
        return None
    dims = tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return None if None in dims else dims
