"""Which nodes of a graph belong to the whole run, and which to the chunks of an axis."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from compiler.graph.chunk_markers import DOMAIN
from compiler.graph.traverse import reads


@dataclass
class Region:
    """The nodes that run once for each chunk of an axis, in topological order.

    Attributes:
        baked: those that depend on the chunk and on constants alone: they can be computed beforehand.
        body: those that depend on the row to be explained, too.
        baked_sums, sums: the Sum and Moments nodes by which values leave either.
    """

    axis: str
    baked: list[ir.Node] = field(default_factory=list)
    body: list[ir.Node] = field(default_factory=list)
    baked_sums: list[ir.Node] = field(default_factory=list)
    sums: list[ir.Node] = field(default_factory=list)

    @property
    def made(self) -> set[ir.Value]:
        """The values that can be baked, and those that enter."""
        return {v for n in self.baked for v in n.outputs}

    @property
    def demanded(self) -> list[ir.Value]:
        """What the body reads of them, each once."""
        made = self.made
        return list(dict.fromkeys(v for n in (*self.body, *self.sums) for v in n.inputs if v in made))

    def add(self, node: ir.Node, runs: bool) -> None:
        if is_pseudo(node, "Sum", "Moments"):
            (self.sums if runs else self.baked_sums).append(node)
        else:
            (self.body if runs else self.baked).append(node)


def is_pseudo(node: ir.Node, *op_types: str) -> bool:
    return node.domain == DOMAIN and (not op_types or node.op_type in op_types)


def entries(nodes: Iterable[ir.Node]) -> set[ir.Value]:
    """Return the outputs of the Chunk nodes among them."""
    return {n.outputs[0] for n in nodes if is_pseudo(n, "Chunk")}


def regions(graph: ir.Graph) -> list[Region]:
    """Return the regions of a sorted graph."""
    inside: dict[ir.Value, str] = {}
    live = set(graph.inputs)  # what depends on the row to be explained
    found: dict[str, Region] = {}
    for node in graph:
        inputs = reads(node)
        axes = {inside[v] for v in inputs if v in inside}
        if is_pseudo(node, "Chunk"):
            axes = {node.attributes["axis"].as_string()}
        runs = any(v in live for v in inputs)
        if runs:
            live.update(node.outputs)
        if not axes:
            continue
        (axis,) = axes  # the compiler never chunks two axes of one walk
        found.setdefault(axis, Region(axis)).add(node, runs)
        if not is_pseudo(node, "Sum", "Moments"):
            inside.update(dict.fromkeys(node.outputs, axis))
    return list(found.values())
