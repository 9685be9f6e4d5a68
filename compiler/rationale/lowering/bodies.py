"""Branches, bodies and functions of nodes, and operators that ONNX itself defines by others.

The function body of such an operator replaces it. Later opsets add such operators (SwiGLU, say), and they
work without further code: an operator with a rule or rewrite of ours keeps it, for any other the standard's
own definition is explained.
"""

from collections.abc import Callable, Iterator, MutableSequence
from typing import Any

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from rationale.errors import UnsupportedModelError
from rationale.graph.nodes import graphs_of
from rationale.lowering.inference import note_shapes


def inner_protos(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the branches and bodies of a node in a file."""
    return [g for attribute in node.attribute for g in (attribute.g, *attribute.graphs) if g.node]


def node_lists(*lists: MutableSequence[onnx.NodeProto]) -> Iterator[MutableSequence[onnx.NodeProto]]:
    """Yield lists of nodes in a file, and those of the branches and bodies inside them."""
    for nodes in lists:
        yield nodes
        yield from node_lists(*(graph.node for node in nodes for graph in inner_protos(node)))


def all_node_lists(proto: onnx.ModelProto) -> Iterator[MutableSequence[onnx.NodeProto]]:
    """Yield the lists of nodes of a model's graph and functions."""
    return node_lists(proto.graph.node, *(function.node for function in proto.functions))


def name_outputs(graph: ir.Graph) -> None:
    """Give a graph own values for outputs that are inputs, constants, outer values or duplicates."""
    inside = {v for node in graph for v in node.outputs}
    for i, value in enumerate(list(graph.outputs)):
        if value in inside and value not in list(graph.outputs)[:i]:
            continue
        graph.outputs[i] = _append_identity(graph, value, f"{value.name}/output_{i}")


def remove_identities(model: ir.Model) -> None:
    """Remove each Identity, in place; outputs that share a value become separate values with their names."""
    names = [v.name for v in model.graph.outputs]
    passes.IdentityEliminationPass()(model)
    for i, value in enumerate(list(model.graph.outputs)):
        if value.name != names[i]:
            model.graph.outputs[i] = _append_identity(model.graph, value, names[i])


def _append_identity(graph: ir.Graph, value: ir.Value, name: str | None) -> ir.Value:
    """Append an Identity of a value to the graph; return its result, which has the name."""
    node = ir.node("Identity", [value], name=name)
    result = node.outputs[0]
    result.name, result.type, result.shape = name, value.type, value.shape
    graph.append(node)
    return result


def detach_bodies(node: ir.Node) -> None:
    """Detach the values that branches and bodies of a removed node read, so that it no longer uses them."""
    for attribute in node.attributes.values():
        for graph in graphs_of(attribute):
            for inner in graph:
                detach_bodies(inner)
                for i in range(len(inner.inputs)):
                    inner.replace_input_with(i, None)


DOMAIN = "rationale.body"  # domain of the functions until they are inlined
DEEPEST = 8  # levels of bodies within bodies
_NOT_INLINED = frozenset({"Range", "Bernoulli", "SequenceMap"})
"""Operators on sizes, random numbers and sequences: their bodies carry no attributions."""


def inline_bodies(model: ir.Model, is_known: Callable[[str, str], bool]) -> bool:
    """Replace, in place, every node of floats that has a function body; return True if there was any.

    Args:
        is_known: function that tells whether an operator of a domain has a rule or a rewrite.
    """
    changed = False
    for _ in range(DEEPEST):
        nodes = [
            node for node in model.graph if not is_known(node.op_type, node.domain) and _has_body(model, node)
        ]
        if not nodes:
            break
        note_shapes(model)
        called = [_turn_into_call(model, node) for node in nodes if _has_floats(node)]
        if not any(called):
            break
        changed = True
        passes.InlinePass(lambda function: function.domain == DOMAIN)(model)
        passes.RemoveUnusedFunctionsPass()(model)
        passes.RemoveUnusedNodesPass()(model)  # it removes the nodes of outputs without names
        model.graph.opset_imports.pop(DOMAIN, None)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return changed


def has_body(op_type: str, opset: int) -> bool:
    """Tell whether ONNX defines an operator of ai.onnx by others."""
    try:
        schema: Any = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function) and op_type not in _NOT_INLINED


def _has_body(model: ir.Model, node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx") and has_body(node.op_type, model.graph.opset_imports.get("", 21))


def _has_floats(node: ir.Node) -> bool:
    """Tell whether a node computes floats, or reads floats; True if a type is unknown."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    return any(v.dtype is None or v.dtype.is_floating_point() for v in values)


def _turn_into_call(model: ir.Model, node: ir.Node) -> bool:
    """Make the node a call of its body; return False if the body needs types that are unknown."""
    opset = model.graph.opset_imports.get("", 21)
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    for name, attribute in schema.attributes.items():
        if name not in node.attributes and attribute.default_value.name:
            node.attributes[name] = ir.from_proto(attribute.default_value)
    proto = _body(schema, node, opset)
    if proto is None:
        return False
    _complete_outputs(proto, node)
    proto.domain, proto.name = DOMAIN, f"{node.op_type}/{node.name or node.outputs[0].name}"
    function = ir.from_proto(proto)
    function.opset_imports[""] = opset
    model.functions[function.identifier()] = function
    model.graph.opset_imports[DOMAIN] = 1
    node.domain, node.op_type, node.version = DOMAIN, proto.name, None
    return True


def _body(schema: Any, node: ir.Node, opset: int) -> onnx.FunctionProto | None:
    """Return the newest definition in the operators of the opset."""
    proto = onnx.FunctionProto()
    fixed = [v for v in schema.function_opset_versions if v <= opset]
    if schema.has_function and fixed:
        proto.ParseFromString(schema.get_function_with_opset_version(max(fixed)))
        return proto
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    types = [_type(v) for v in node.inputs]
    if not versions or None in types:
        return None
    serialised = ir.serde.serialize_node(node).SerializeToString()
    try:
        body = schema.get_context_dependent_function_with_opset_version(max(versions), serialised, types)
    except RuntimeError as error:  # an attribute or a type that the definition does not allow
        raise UnsupportedModelError(
            f"{node.op_type} node {node.name!r}: ONNX does not define it for these inputs: {error}"
        ) from error
    proto.ParseFromString(body)
    return proto


def _complete_outputs(proto: onnx.FunctionProto, node: ir.Node) -> None:
    """Leave out outputs that the node lacks; an Identity makes those that the body does not compute."""
    del proto.output[len(node.outputs) :]
    computed = {name for inner in proto.node for name in inner.output}
    for name in proto.output:
        if name not in computed:
            proto.node.append(onnx.helper.make_node("Identity", [proto.input[0]], [name]))


def _type(value: ir.Value | None) -> bytes | None:
    """Return a serialised type; empty for an omitted input, None if it is unknown."""
    if value is None:
        return b""
    if value.dtype is None:
        return None
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = int(value.dtype)
    if value.shape is not None:
        for dim in value.shape:
            entry = proto.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                entry.dim_value = dim
    return proto.SerializeToString()
