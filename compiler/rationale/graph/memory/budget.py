"""What a graph takes of memory, and how references are walked so that it takes no more than its budget.

Some nodes belong to the whole run, others to the chunks of an axis.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx
import onnx_ir as ir

from rationale.errors import InvalidOptionError
from rationale.graph.nodes import constant_nodes, frontier, nodes_behind, reads
from rationale.graph.runtime.session import MAPPED_BYTES
from rationale.graph.shapes import Spec, infer_graph
from rationale.graph.tensor import DOMAIN, Axis, Chunks
from rationale.schema.machine import MAX_BATCH, in_words
from rationale.schema.manifest import Memory


@dataclass
class Region:
    """The nodes that run once for each chunk of an axis, in topological order.

    Attributes:
        precomputed: those that depend on the chunk and on constants alone: they can be computed beforehand.
        body: those that depend on the row to be explained, too.
        precomputed_sums, sums: the Sum and Moments nodes by which values leave either.
    """

    axis: str
    precomputed: list[ir.Node] = field(default_factory=list)
    body: list[ir.Node] = field(default_factory=list)
    precomputed_sums: list[ir.Node] = field(default_factory=list)
    sums: list[ir.Node] = field(default_factory=list)

    @property
    def made(self) -> set[ir.Value]:
        """The values that can be precomputed, and those that enter."""
        return {v for n in self.precomputed for v in n.outputs}

    @property
    def demanded(self) -> list[ir.Value]:
        """What the body reads of them, each once."""
        made = self.made
        return list(dict.fromkeys(v for n in (*self.body, *self.sums) for v in n.inputs if v in made))

    def add(self, node: ir.Node, runs: bool) -> None:
        if is_pseudo(node, "Sum", "Moments"):
            (self.sums if runs else self.precomputed_sums).append(node)
        else:
            (self.body if runs else self.precomputed).append(node)


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


_VIEWS = frozenset("Reshape Squeeze Unsqueeze Flatten Identity".split())

Sizes = Mapping[ir.Value, int]


def sizes(model: ir.Model, chunks: Chunks) -> dict[ir.Value, int]:
    """Bytes of each tensor of a batch of one row, as ONNX's shape inference finds them.

    What has no static shape counts as nothing: it is an index or a condition.
    """
    nodes: list[onnx.NodeProto] = []
    given = {str(value.name): _of_one_row(value) for value in model.graph.inputs}
    for node in model.graph:
        made = str(node.outputs[0].name)
        if is_pseudo(node, "Chunk"):
            _, parts = chunks.parts[node.attributes["part"].as_int()]
            given[made] = parts.shape[1:], ir.DataType.from_numpy(parts.dtype)
        elif is_pseudo(node):
            assert node.inputs[0] is not None
            nodes.append(onnx.helper.make_node("Identity", [str(node.inputs[0].name)], [made]))
        else:
            nodes.append(ir.serde.serialize_node(node))
    known = infer_graph(nodes, given, model.graph.initializers.values(), model.graph.opset_imports)
    return {v: _bytes(known.get(str(v.name))) for n in model.graph for v in n.outputs}


def _of_one_row(value: ir.Value) -> Spec:
    assert value.dtype is not None
    assert value.shape is not None
    return tuple(d if isinstance(d, int) else 1 for d in value.shape), value.dtype


def _bytes(spec: Spec | None) -> int:
    return 0 if spec is None else math.prod(spec[0]) * spec[1].numpy().itemsize


def constant_bytes(values: Iterable[ir.Value]) -> int:
    return sum(v.const_value.nbytes for v in set(values) if v.const_value is not None)


def peak(nodes: Sequence[ir.Node], size: Sizes, counted: Iterable[ir.Value] | None = None) -> int:
    """Return the most bytes alive at once when nodes run in this order, each value until its last reader.

    Args:
        counted: the values that count; all that the nodes make where None.
    """
    made = {v for n in nodes for v in n.outputs}
    counts = made if counted is None else made & set(counted)
    viewed = _viewed_values(nodes)
    last = {viewed.get(v, v): i for i, n in enumerate(nodes) for v in (*reads(n), *n.outputs)}
    ending: dict[int, list[ir.Value]] = {}
    for value, i in last.items():
        ending.setdefault(i, []).append(value)
    now = most = 0
    for i, node in enumerate(nodes):
        now += sum(size.get(v, 0) for v in node.outputs if v in counts and v not in viewed)
        most = max(most, now)
        now -= sum(size.get(v, 0) for v in ending.get(i, ()) if v in counts)
    return most


def _viewed_values(nodes: Sequence[ir.Node]) -> dict[ir.Value, ir.Value]:
    """Whose memory a value is a view of."""
    viewed: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        if node.op_type in _VIEWS and node.inputs[0] is not None:
            source = node.inputs[0]
            viewed[node.outputs[0]] = viewed.get(source, source)
    return viewed


COPIES = 2  # of weights: ONNX Runtime rearranges them for its kernels, and keeps those that it did not map
WORK_FACTOR = 3  # times the work: it runs nodes in another order, and lays memory out anew for the second run
SHARE = 4  # a chunk's work takes at most one part in so many of the room; the rest is for what is precomputed
START = 4e6  # bytes of work in the time that it takes to begin a chunk
SLOWER = 1.03  # than the quickest size: what a chunk may be for the sake of less work at once
ELEMENT = 30  # multiplications in the time of one trip to memory, per element of an elementwise operator


@dataclass(frozen=True)
class Need:
    """Bytes that a graph takes at a batch of one row.

    Attributes:
        weights: constants of the model and of the walk.
        baked: constants that run along the references or points.
        work: the most that is alive at once while it runs.
        folding: the same while it is compiled.
        chunked: references are walked in chunks: large constants of such a graph are in a mapped file.
    """

    weights: int
    baked: int
    work: int
    folding: int
    chunked: bool = False

    @property
    def total(self) -> int:
        """As ONNX Runtime takes it when it loads the file that `runtime.save` writes: see `COPIES`."""
        mapped = self.chunked and self.weights + self.baked >= MAPPED_BYTES
        weights = self.weights if mapped else COPIES * self.weights
        return int(weights + self.baked + max(WORK_FACTOR * self.work, self.folding))


@dataclass(frozen=True)
class Row:
    """What one row of an axis adds to a graph that walks it as a whole."""

    count: int
    work: float
    folding: float


def need_whole(model: ir.Model, chunks: Chunks, axes: Mapping[str, int]) -> tuple[Need, dict[str, Row]]:
    """Of a graph that walks nothing in chunks, with the part that the rows of `axes` (by name) have in it."""
    graph, size = model.graph, sizes(model, chunks)
    along = {axis: _along(graph, [v for v, a in chunks.whole.items() if a == axis]) for axis in axes}
    constant = constant_nodes(graph)
    folded = set(constant)
    running = [n for n in graph if n not in folded]
    initializers = {v for n in running for v in n.inputs if v is not None and v.is_initializer()}
    bytes_of = {v: size[v] for v in frontier(constant)} | {v: constant_bytes([v]) for v in initializers}
    runs_along = set().union(*along.values())
    baked = sum(n for v, n in bytes_of.items() if v in runs_along)
    need = Need(sum(bytes_of.values()) - baked, baked, peak(running, size), peak(constant, size))
    rows = {
        axis: Row(
            axes[axis],
            peak(running, size, values) / axes[axis],
            peak(constant, size, values) / axes[axis],
        )
        for axis, values in along.items()
    }
    return need, rows


def _along(graph: ir.Graph, starts: Iterable[ir.Value]) -> set[ir.Value]:
    found = set(starts)
    for node in graph:
        if any(v in found for v in node.inputs):
            found.update(node.outputs)
    return found


def choose_axes(need: Need, rows: Mapping[str, Row], budget: int) -> dict[str, Axis]:
    """Return how many rows of each axis to walk at a time."""
    work = max(need.work - sum(int(r.work * r.count) for r in rows.values()), 0)
    fixed = replace(need, work=work, folding=0, chunked=True).total - need.baked
    room = max(budget - fixed, 0) / SHARE
    return {name: _axis(row, room) for name, row in rows.items()}


def _axis(row: Row, room: float) -> Axis:
    """Return the least size as quick as the room allows: few chunks, and few rows that only fill up."""
    work = max(row.work, row.folding, 1)
    most = max(1, min(row.count, int(room / work)))
    choices = [Axis(row.count, size) for size in range(1, most + 1)]
    times = [axis.chunks * (axis.size * work + START) for axis in choices]
    limit = SLOWER * min(times)
    return next(a for a, time in zip(choices, times, strict=True) if time <= limit)


@dataclass(frozen=True)
class Precomputed:
    """What is kept of a region's precomputed part.

    Attributes:
        kept: values that are computed when the graph is made; the others are recomputed in each chunk.
        recomputed: of all operations of the precomputed part, the share that is done again in each run.
    """

    kept: tuple[ir.Value, ...]
    recomputed: float


def choose_precomputed(region: Region, size: Sizes, stored_size: Sizes, room: float) -> Precomputed:
    """Precompute what the body reads as far as `room` bytes for each chunk hold it.

    Where not all of it fits, the nodes are cut in two at one depth, and one side is precomputed:
    the later one, whose activations alone are kept, or the earlier one, whose last values are kept as well so
    that the walk goes on from them. The cut is the one that leaves the least to be recomputed.
    """
    nodes = _by_depth([n for n in region.precomputed if not is_pseudo(n)])
    demanded = region.demanded
    entered = entries(region.precomputed)
    cost = {n: _cost(n, size) for n in nodes}
    whole = sum(cost[n] for n in nodes_behind(nodes, demanded, entered)) or 1.0
    best = Precomputed(tuple(v for v in demanded if v in entered), 1.0)
    for kept in _cuts(nodes, demanded, entered):
        if sum(stored_size[v] for v in kept if v not in entered) > room:
            continue
        left = sum(cost[n] for n in nodes_behind(nodes, demanded, {*kept, *entered})) / whole
        if left < best.recomputed:
            best = Precomputed(tuple(kept), left)
    return best


def _by_depth(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """By distance from the first: what the walk back reads of a layer stands beside the layer."""
    depth: dict[ir.Value, int] = {}
    for node in nodes:
        depth.update(dict.fromkeys(node.outputs, 1 + max((depth.get(v, 0) for v in reads(node)), default=0)))
    return sorted(nodes, key=lambda n: depth[n.outputs[0]])


def _cuts(
    nodes: Sequence[ir.Node], demanded: Sequence[ir.Value], entered: Collection[ir.Value]
) -> Iterable[list[ir.Value]]:
    """Everything that is demanded, and what a cut at each node keeps."""
    depth = {v: i for i, n in enumerate(nodes) for v in n.outputs}
    yield list(demanded)
    for cut in range(1, len(nodes)):
        yield [v for v in demanded if depth.get(v, cut) >= cut]
        early = {v for n in nodes[:cut] for v in n.outputs}
        late = nodes_behind(nodes[cut:], [v for v in demanded if v not in early], entered)
        crossing = {v for n in late for v in n.inputs if v in early}
        yield [v for n in nodes[:cut] for v in n.outputs if v in crossing or v in demanded]


def _cost(node: ir.Node, size: Sizes) -> float:
    """Multiplications, or what takes their time."""
    elements = sum(size.get(v, 0) for v in node.outputs) / 4
    return elements * max(ELEMENT, _products(node))


def _products(node: ir.Node) -> int:
    """Return how many products are summed for one element of the output."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or weight.const_value is None:
        return 0
    shape = weight.const_value.shape.numpy()
    if node.op_type in ("Conv", "ConvTranspose"):
        return int(weight.const_value.size) // (shape[0] if node.op_type == "Conv" else shape[1])
    if node.op_type in ("MatMul", "Gemm"):
        return int(weight.const_value.size) // shape[-1]
    return 0


def need_chunked(
    model: ir.Model,
    chunks: Chunks,
    found: Sequence[Region],
    kept: Collection[ir.Value],
    size: Sizes,
    stored_size: Sizes,
) -> Need:
    """Of a graph that walks axes in chunks, with the values `kept` precomputed."""
    graph = model.graph
    walked = {n for w in found for n in (*w.precomputed, *w.body, *w.precomputed_sums, *w.sums)}
    constant = constant_nodes(graph)
    folded = set(constant)
    outer = [n for n in graph if n not in folded and n not in walked]
    bodies = {w.axis: _body(w, kept) for w in found}
    inside = sum(_constants(b) for b in bodies.values())
    weights = inside + _constants(outer) + sum(size[v] for v in frontier(constant))
    each = {w.axis: chunks.axes[w.axis].chunks for w in found}
    computed = {v: w.axis for w in found for v in w.made - entries(w.precomputed)}
    baked = sum(stored_size[v] * each[computed[v]] for v in kept if v in computed)
    entered = sum(parts.nbytes for _, parts in chunks.parts)
    work = peak(outer, size) + max((peak(b, size) for b in bodies.values()), default=0)
    folding = max((peak(w.precomputed, size) for w in found), default=0)
    return Need(weights, baked + entered, work, max(folding, peak(constant, size)), chunked=True)


def _body(region: Region, kept: Collection[ir.Value]) -> list[ir.Node]:
    known = {*kept, *entries(region.precomputed)}
    read = [v for n in (*region.body, *region.sums) for v in n.inputs if v is not None]
    again = nodes_behind([n for n in region.precomputed if not is_pseudo(n)], read, known)
    return [*again, *region.body, *region.sums]


def _constants(nodes: Sequence[ir.Node]) -> int:
    return constant_bytes(v for n in nodes for v in n.inputs if v is not None)


def refuse(need: Need, budget: int) -> None:
    """Raise InvalidOptionError where not even the smallest chunks fit."""
    if need.total > budget:
        raise InvalidOptionError(
            f"the memory budget of {in_words(budget)} is too small: one row and one reference at a time take "
            f"{in_words(need.total)} ({in_words(need.weights)} of it weights). Raise --memory-budget."
        )


def rows_that_fit(memory: Memory, most: int = MAX_BATCH) -> int:
    """Return how many rows of a batch the budget holds; one at least, and `most` at most."""
    fixed = Need(memory.weights, memory.baked, 0, 0, chunked=memory.chunk is not None).total
    each = Need(0, 0, memory.work, 0).total
    return max(1, min(most, int((memory.budget - fixed) / max(each, 1))))


def beyond_budget(memory: Memory) -> tuple[str, ...]:
    """Return a warning where there is nothing to chunk."""
    if memory.needed <= memory.budget:
        return ()
    return (
        f"the graph takes about {in_words(memory.needed)} for one row, above its memory budget of "
        f"{in_words(memory.budget)}, and walks no references that could be taken in chunks",
    )
