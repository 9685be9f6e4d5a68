"""Helpers for the nodes of a graph: values they read, constant folding, and plain new nodes."""

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.graph.runtime.session import Runner, threads_of_few_runs
from rationale.graph.tensor import DOMAIN


def graphs_of(attribute: ir.Attr) -> Sequence[ir.Graph]:
    """Return the branches and bodies in an attribute."""
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return attribute.as_graphs() if attribute.type == ir.AttributeType.GRAPHS else []


def values_read(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node reads, as inputs or inside its branches and bodies."""
    values = [v for v in node.inputs if v is not None]
    for attribute in node.attributes.values():
        for graph in graphs_of(attribute):
            values += [v for inner in graph for v in values_read(inner)]
            values.extend(graph.outputs)
    return values


def constant_array(value: ir.Value) -> np.ndarray:
    """Return the array of a constant."""
    assert value.const_value is not None
    return value.const_value.numpy()


def names_read(node: ir.Node) -> set[str]:
    """Return the names of the values that a node reads."""
    return {v.name for v in values_read(node) if v.name}


def reached_from(names: Iterable[str], nodes: Iterable[ir.Node]) -> frozenset[str]:
    """Return `names` and the names of all values that the nodes, in order, compute from them."""
    reached = set(names)
    for node in nodes:
        if not reached.isdisjoint(names_read(node)):
            reached.update(v.name for v in node.outputs if v.name)
    return frozenset(reached)


def values_of(model: ir.Model) -> Iterator[ir.Value]:
    """Yield every value with a name, also in subgraphs."""
    for graph in model.graphs():
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from (v for v in node.outputs if v.name)


def rename(value: ir.Value, name: str) -> None:
    """Rename a value and its constant.

    The constant may belong to the source model and must keep its name there: the value gets a copy.
    """
    tensor, value.const_value = value.const_value, None
    value.name = name
    value.const_value = None if tensor is None else ir.Tensor(tensor.numpy(), name=name)


def rename_inner_values(model: ir.Model, is_needed: Callable[[str], bool]) -> None:
    """Rename inner values of a model, in place, if another value needs their names."""
    public, used_names = {*model.graph.inputs, *model.graph.outputs}, {v.name for v in values_of(model)}
    for value in list(values_of(model)):
        if value not in public and is_needed(old := str(value.name)):
            name = next(n for i in itertools.count() if (n := f"inner/{old}_{i}") not in used_names)
            rename(value, name)
            used_names.add(name)


def nodes_behind(
    nodes: Iterable[ir.Node], values: Iterable[ir.Value], available: Collection[ir.Value] = ()
) -> list[ir.Node]:
    """Return the nodes, in order, that `values` need in addition to the `available` values."""
    needed = {v for v in values if v not in available}
    chosen = []
    for node in reversed(list(nodes)):
        if not needed.isdisjoint(node.outputs):
            chosen.append(node)
            needed.update(v for v in node.inputs if v is not None and v not in available)
    return chosen[::-1]


RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)

LISTS = frozenset(
    {"Optional", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence"}
)  # operators whose results are no tensors


def fold_constants(
    model: ir.Model, chosen: Sequence[ir.Node] | None = None, *, users_model: bool = False
) -> int:
    """Replace every node that depends only on initializers by its value, in place; return their number.

    Args:
        chosen: some of `constant_nodes`, with all nodes before them.
        users_model: whether these are nodes of the user's model.
    """
    graph = model.graph
    nodes = constant_nodes(graph) if chosen is None else list(chosen)
    if not nodes:
        return 0
    read_values = frontier(nodes)
    arrays = {}
    if read_values:
        computed = extract(model, nodes, (), read_values)
        threads = threads_of_few_runs(computed)
        arrays = Runner(computed, optimise=False, threads=threads, users_model=users_model)({})
    for value in read_values:
        replace_by_constant(graph, value, arrays[str(value.name)])
    graph.remove(nodes, safe=True)
    drop_unused_constants(graph)
    return len(nodes)


def constant_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes that depend only on initializers."""
    constant_values = set(graph.initializers.values())
    nodes: list[ir.Node] = []
    for node in graph:
        if node.op_type in RANDOM | LISTS or node.domain == DOMAIN or not _reads_only_inputs(node):
            continue
        if all(v is None or v in constant_values for v in node.inputs):
            constant_values.update(node.outputs)
            nodes.append(node)
    return nodes


def _reads_only_inputs(node: ir.Node) -> bool:
    """Tell whether the bodies of a node read only the node's own inputs."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPHS:
            return False
        if attribute.type != ir.AttributeType.GRAPH:
            continue
        body = attribute.as_graph()
        inside = {*body.inputs, *body.initializers.values(), *(v for inner in body for v in inner.outputs)}
        if any(v is not None and v not in inside for inner in body for v in inner.inputs):
            return False
        if not all(_reads_only_inputs(inner) for inner in body):
            return False
    return True


def frontier(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Return the values of these nodes that other nodes read."""
    inside = set(nodes)
    values = [v for n in nodes for v in n.outputs]
    return [v for v in values if v.is_graph_output() or any(n not in inside for n in v.consumers())]


def extract(
    model: ir.Model, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> ir.Model:
    """Return a model with copies of these nodes, which share the constants that they read."""
    mapping = {v: ir.Value(name=v.name, type=v.type, shape=v.shape) for v in inputs}
    used = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v.is_initializer())
    for v in used:
        mapping[v] = ir.Value(name=v.name, type=v.type, shape=v.shape, const_value=v.const_value)
    initializers = [mapping[v] for v in used]
    copies = []
    for node in nodes:
        values = [None if v is None else mapping[v] for v in node.inputs]
        copy_ = ir.Node(
            node.domain, node.op_type, values, list(node.attributes.values()), num_outputs=len(node.outputs)
        )
        for old, new in zip(node.outputs, copy_.outputs, strict=True):
            mapping[old], new.name, new.type = new, old.name, old.type
        copies.append(copy_)
    graph = ir.Graph(
        [mapping[v] for v in inputs],
        [mapping[v] for v in outputs],
        nodes=copies,
        initializers=initializers,
        opset_imports=model.graph.opset_imports,
        name="constants",
    )
    return ir.Model(graph, ir_version=model.ir_version, functions=[*model.functions.values()])


def replace_by_constant(graph: ir.Graph, value: ir.Value, array: np.ndarray) -> None:
    """Replace `value` by an initializer of `array`, under its name."""
    name = value.name
    value.name = None
    constant = new_constant(graph, str(name), array)
    ir.convenience.replace_all_uses_with(value, constant, replace_graph_outputs=True)


def new_constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    tensor = _tensor(np.asarray(array, order="C"), name)
    constant = ir.Value(name=name, const_value=tensor)
    constant.dtype, constant.shape = tensor.dtype, ir.Shape(array.shape)
    graph.register_initializer(constant)
    return constant


def _tensor(array: np.ndarray, name: str) -> ir.Tensor[Any] | ir.StringTensor:
    if array.dtype.kind not in "OUT":
        return ir.Tensor(array, name=name)
    texts = np.array([str(text).encode() for text in array.reshape(-1)], object).reshape(array.shape)
    return ir.StringTensor(texts, shape=ir.Shape(array.shape), name=name)


def drop_unused_constants(graph: ir.Graph) -> None:
    for initializer in list(graph.initializers.values()):
        if not initializer.uses() and not initializer.is_graph_output():
            del graph.initializers[str(initializer.name)]


def take_place_of(old: ir.Value, new: ir.Value) -> None:
    """Replace `old` by `new`, under its name."""
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    (new.name, old.name), new.type, new.shape = (old.name, None), old.type, old.shape


class NodeBuilder:
    """A builder: `op.Mul(a, b)` appends a node with one output to a graph, or puts it before another node.

    Operands may be arrays or lists of integers, which become initializers; None leaves an operand out.

    Args:
        prefix: the beginning of the new nodes' names.
        before: the node before which they go; None for the end of the graph.
    """

    def __init__(self, graph: ir.Graph, prefix: str, before: ir.Node | None = None) -> None:
        self.graph, self.prefix, self.before = graph, prefix, before
        self.count = 0

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)
        return functools.partial(self._emit, op_type)

    def _emit(self, op_type: str, *operands: Any, **attributes: Any) -> ir.Value:
        values = [o if o is None or isinstance(o, ir.Value) else self.constant(o) for o in operands]
        node = ir.node(op_type, values, attributes, name=self.fresh(op_type))
        node.outputs[0].name = node.name
        self.insert([node])
        return node.outputs[0]

    def insert(self, nodes: Sequence[ir.Node]) -> None:
        if self.before is None:
            self.graph.extend(nodes)
        else:
            self.graph.insert_before(self.before, nodes)

    def constant(self, operand: Any) -> ir.Value:
        """Return an initializer."""
        is_array = isinstance(operand, np.ndarray | np.generic)  # numpy makes scalars of arrays without axes
        array = np.asarray(operand) if is_array else np.asarray(operand, np.int64)
        return new_constant(self.graph, self.fresh("constant"), array)

    def fresh(self, kind: str) -> str:
        """Return an unused name."""
        self.count += 1
        return f"{self.prefix}/{kind}_{self.count}"
