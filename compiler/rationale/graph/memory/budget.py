"""The memory that a graph needs, and the sizes of chunks of references that fit its budget.

Some nodes run once; others run once for each chunk of an axis.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx
import onnx_ir as ir

from rationale.errors import InvalidOptionError
from rationale.graph.nodes import constant_nodes, frontier, nodes_behind, values_read
from rationale.graph.runtime.session import MAPPED_BYTES
from rationale.graph.shapes import Spec, infer_graph
from rationale.graph.tensor import DOMAIN, Axis, Chunks
from rationale.schema.machine import MAX_BATCH, format_bytes
from rationale.schema.manifest import Memory


@dataclass
class Region:
    """The nodes that run once for each chunk of an axis, in topological order.

    Attributes:
        precomputed: nodes that depend only on the chunk and on constants, so that the compiler can run them.
        body: nodes that also depend on the explained row.
        precomputed_sums, sums: the Sum and Moments nodes through which values leave either group.
    """

    axis: str
    precomputed: list[ir.Node] = field(default_factory=list)
    body: list[ir.Node] = field(default_factory=list)
    precomputed_sums: list[ir.Node] = field(default_factory=list)
    sums: list[ir.Node] = field(default_factory=list)

    @property
    def precomputed_values(self) -> set[ir.Value]:
        """The values that can be precomputed, and the chunks that enter the region."""
        return {v for n in self.precomputed for v in n.outputs}

    @property
    def values_for_body(self) -> list[ir.Value]:
        """The precomputed values that the body reads, each once."""
        available = self.precomputed_values
        return list(dict.fromkeys(v for n in (*self.body, *self.sums) for v in n.inputs if v in available))

    def add(self, node: ir.Node, runs: bool) -> None:
        if is_pseudo(node, "Sum", "Moments"):
            (self.sums if runs else self.precomputed_sums).append(node)
        else:
            (self.body if runs else self.precomputed).append(node)


def is_pseudo(node: ir.Node, *op_types: str) -> bool:
    return node.domain == DOMAIN and (not op_types or node.op_type in op_types)


def values_of_chunks(nodes: Iterable[ir.Node]) -> set[ir.Value]:
    """Return the outputs of the Chunk nodes among some nodes."""
    return {n.outputs[0] for n in nodes if is_pseudo(n, "Chunk")}


def find_regions(graph: ir.Graph) -> list[Region]:
    """Return the regions of a sorted graph."""
    axis_of: dict[ir.Value, str] = {}
    row_dependent = set(graph.inputs)  # values that depend on the explained row
    region_of: dict[str, Region] = {}
    for node in graph:
        inputs = values_read(node)
        axes = {axis_of[v] for v in inputs if v in axis_of}
        if is_pseudo(node, "Chunk"):
            axes = {node.attributes["axis"].as_string()}
        depends_on_row = any(v in row_dependent for v in inputs)
        if depends_on_row:
            row_dependent.update(node.outputs)
        if not axes:
            continue
        (axis,) = axes  # the compiler never chunks two axes of one walk
        region_of.setdefault(axis, Region(axis)).add(node, depends_on_row)
        if not is_pseudo(node, "Sum", "Moments"):
            axis_of.update(dict.fromkeys(node.outputs, axis))
    return list(region_of.values())


_VIEWS = frozenset("Reshape Squeeze Unsqueeze Flatten Identity".split())

Sizes = Mapping[ir.Value, int]


def sizes(model: ir.Model, chunks: Chunks) -> dict[ir.Value, int]:
    """Return the bytes of each tensor for a batch of one row, by ONNX's shape inference.

    A tensor without a static shape counts as 0: it is an index or a condition.
    """
    nodes: list[onnx.NodeProto] = []
    input_specs = {str(value.name): _one_row_spec(value) for value in model.graph.inputs}
    for node in model.graph:
        result_name = str(node.outputs[0].name)
        if is_pseudo(node, "Chunk"):
            _, parts = chunks.parts[node.attributes["part"].as_int()]
            input_specs[result_name] = parts.shape[1:], ir.DataType.from_numpy(parts.dtype)
        elif is_pseudo(node):
            assert node.inputs[0] is not None
            nodes.append(onnx.helper.make_node("Identity", [str(node.inputs[0].name)], [result_name]))
        else:
            nodes.append(ir.serde.serialize_node(node))
    specs = infer_graph(nodes, input_specs, model.graph.initializers.values(), model.graph.opset_imports)
    return {v: _bytes(specs.get(str(v.name))) for n in model.graph for v in n.outputs}


def _one_row_spec(value: ir.Value) -> Spec:
    assert value.dtype is not None
    assert value.shape is not None
    return tuple(d if isinstance(d, int) else 1 for d in value.shape), value.dtype


def _bytes(spec: Spec | None) -> int:
    return 0 if spec is None else math.prod(spec[0]) * spec[1].numpy().itemsize


def constant_bytes(values: Iterable[ir.Value]) -> int:
    return sum(v.const_value.nbytes for v in set(values) if v.const_value is not None)


def peak(nodes: Sequence[ir.Node], size: Sizes, counted: Iterable[ir.Value] | None = None) -> int:
    """Return the most bytes alive at once if nodes run in this order; a value lives until its last reader.

    Args:
        counted: the values that count; None for all outputs of the nodes.
    """
    results = {v for n in nodes for v in n.outputs}
    counted_values = results if counted is None else results & set(counted)
    viewed = _viewed_values(nodes)
    last = {viewed.get(v, v): i for i, n in enumerate(nodes) for v in (*values_read(n), *n.outputs)}
    ending: dict[int, list[ir.Value]] = {}
    for value, i in last.items():
        ending.setdefault(i, []).append(value)
    current = highest = 0
    for i, node in enumerate(nodes):
        current += sum(size.get(v, 0) for v in node.outputs if v in counted_values and v not in viewed)
        highest = max(highest, current)
        current -= sum(size.get(v, 0) for v in ending.get(i, ()) if v in counted_values)
    return highest


def _viewed_values(nodes: Sequence[ir.Node]) -> dict[ir.Value, ir.Value]:
    """Return, for each view, the value whose memory it shares."""
    viewed: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        if node.op_type in _VIEWS and node.inputs[0] is not None:
            source = node.inputs[0]
            viewed[node.outputs[0]] = viewed.get(source, source)
    return viewed


COPIES = 2  # of weights: ONNX Runtime rearranges them for its kernels, and keeps those it did not map
WORK_FACTOR = 3  # on the work: ONNX Runtime reorders nodes, and plans memory anew for the second run
SHARE = 4  # a chunk's work may take 1/SHARE of the room; the rest is for precomputed values
START = 4e6  # bytes of work that take as long as the start of a chunk
SLOWER = 1.03  # factor on the shortest time that a chunk may take, for less work at once
ELEMENT = 30  # multiplications that take as long as one trip to memory, per element


@dataclass(frozen=True)
class Need:
    """The bytes that a graph takes at a batch of one row.

    Attributes:
        weights: constants of the model and of the walk.
        baked: constants that run along the references or points.
        work: the most bytes alive at once while the graph runs.
        folding: the most bytes alive at once while it is compiled.
        chunked: whether references are walked in chunks; large constants of such a graph are in a mapped
            file.
    """

    weights: int
    baked: int
    work: int
    folding: int
    chunked: bool = False

    @property
    def total(self) -> int:
        """The bytes that ONNX Runtime takes to load the file that `runtime.save` writes: see `COPIES`."""
        mapped = self.chunked and self.weights + self.baked >= MAPPED_BYTES
        weights = self.weights if mapped else COPIES * self.weights
        return int(weights + self.baked + max(WORK_FACTOR * self.work, self.folding))


@dataclass(frozen=True)
class RowNeed:
    """The memory that one row of an axis adds to a graph that walks it as a whole."""

    count: int
    work: float
    folding: float


def need_whole(model: ir.Model, chunks: Chunks, axes: Mapping[str, int]) -> tuple[Need, dict[str, RowNeed]]:
    """Return the need of a graph without chunks, and the share of each row of `axes`, by axis name."""
    graph, size = model.graph, sizes(model, chunks)
    along = {axis: _values_along(graph, [v for v, a in chunks.whole.items() if a == axis]) for axis in axes}
    constant = constant_nodes(graph)
    folded = set(constant)
    running = [n for n in graph if n not in folded]
    initializers = {v for n in running for v in n.inputs if v is not None and v.is_initializer()}
    bytes_of = {v: size[v] for v in frontier(constant)} | {v: constant_bytes([v]) for v in initializers}
    runs_along = set().union(*along.values())
    baked = sum(n for v, n in bytes_of.items() if v in runs_along)
    need = Need(sum(bytes_of.values()) - baked, baked, peak(running, size), peak(constant, size))
    rows = {
        axis: RowNeed(
            axes[axis],
            peak(running, size, values) / axes[axis],
            peak(constant, size, values) / axes[axis],
        )
        for axis, values in along.items()
    }
    return need, rows


def _values_along(graph: ir.Graph, starts: Iterable[ir.Value]) -> set[ir.Value]:
    along = set(starts)
    for node in graph:
        if any(v in along for v in node.inputs):
            along.update(node.outputs)
    return along


def choose_axes(need: Need, rows: Mapping[str, RowNeed], budget: int) -> dict[str, Axis]:
    """Return the number of rows of each axis to walk at a time."""
    work = max(need.work - sum(int(r.work * r.count) for r in rows.values()), 0)
    fixed = replace(need, work=work, folding=0, chunked=True).total - need.baked
    room = max(budget - fixed, 0) / SHARE
    return {name: _axis(row, room) for name, row in rows.items()}


def _axis(row: RowNeed, room: float) -> Axis:
    """Return the smallest size about as quick as the room allows: few chunks with few padding rows."""
    work = max(row.work, row.folding, 1)
    most = max(1, min(row.count, int(room / work)))
    choices = [Axis(row.count, size) for size in range(1, most + 1)]
    times = [axis.chunks * (axis.size * work + START) for axis in choices]
    limit = SLOWER * min(times)
    return next(a for a, time in zip(choices, times, strict=True) if time <= limit)


@dataclass(frozen=True)
class Precomputed:
    """The values of a region's precomputed part that the graph stores.

    Attributes:
        values: values to compute at compile time; each chunk recomputes the others.
        recomputed: the share of the precomputed part's operations that each run repeats.
    """

    values: tuple[ir.Value, ...]
    recomputed: float


def choose_precomputed(region: Region, size: Sizes, stored_size: Sizes, room: float) -> Precomputed:
    """Choose the values to precompute for the body, within `room` bytes per chunk.

    If not all of them fit, the nodes are cut in two at one depth, and one side is precomputed: the later one,
    of which only the activations are stored, or the earlier one, of which the last values are stored too, so
    that the walk goes on from them. The chosen cut leaves the fewest operations to repeat.
    """
    nodes = _by_depth([n for n in region.precomputed if not is_pseudo(n)])
    values_for_body = region.values_for_body
    entered = values_of_chunks(region.precomputed)
    cost = {n: _cost(n, size) for n in nodes}
    total_cost = sum(cost[n] for n in nodes_behind(nodes, values_for_body, entered)) or 1.0
    best = Precomputed(tuple(v for v in values_for_body if v in entered), 1.0)
    for stored in _cuts(nodes, values_for_body, entered):
        if sum(stored_size[v] for v in stored if v not in entered) > room:
            continue
        remaining = (
            sum(cost[n] for n in nodes_behind(nodes, values_for_body, {*stored, *entered})) / total_cost
        )
        if remaining < best.recomputed:
            best = Precomputed(tuple(stored), remaining)
    return best


def _by_depth(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Sort nodes by depth, so that a layer and the step back that reads it stand together."""
    depth: dict[ir.Value, int] = {}
    for node in nodes:
        depth.update(
            dict.fromkeys(node.outputs, 1 + max((depth.get(v, 0) for v in values_read(node)), default=0))
        )
    return sorted(nodes, key=lambda n: depth[n.outputs[0]])


def _cuts(
    nodes: Sequence[ir.Node], values_for_body: Sequence[ir.Value], entered: Collection[ir.Value]
) -> Iterable[list[ir.Value]]:
    """Yield all demanded values, then the values that each cut stores."""
    depth = {v: i for i, n in enumerate(nodes) for v in n.outputs}
    yield list(values_for_body)
    for cut in range(1, len(nodes)):
        yield [v for v in values_for_body if depth.get(v, cut) >= cut]
        early = {v for n in nodes[:cut] for v in n.outputs}
        late = nodes_behind(nodes[cut:], [v for v in values_for_body if v not in early], entered)
        crossing = {v for n in late for v in n.inputs if v in early}
        yield [v for n in nodes[:cut] for v in n.outputs if v in crossing or v in values_for_body]


def _cost(node: ir.Node, size: Sizes) -> float:
    """Return the number of multiplications that take as long as a node."""
    elements = sum(size.get(v, 0) for v in node.outputs) / 4
    return elements * max(ELEMENT, _products(node))


def _products(node: ir.Node) -> int:
    """Return the number of products summed for one element of the output."""
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
    regions: Sequence[Region],
    precomputed: Collection[ir.Value],
    size: Sizes,
    stored_size: Sizes,
) -> Need:
    """Return the need of a graph that walks axes in chunks, with the values `precomputed` precomputed."""
    graph = model.graph
    walked = {n for w in regions for n in (*w.precomputed, *w.body, *w.precomputed_sums, *w.sums)}
    constant = constant_nodes(graph)
    folded = set(constant)
    outer = [n for n in graph if n not in folded and n not in walked]
    bodies = {w.axis: _body_nodes(w, precomputed) for w in regions}
    inside = sum(_constants(b) for b in bodies.values())
    weights = inside + _constants(outer) + sum(size[v] for v in frontier(constant))
    chunk_counts = {w.axis: chunks.axes[w.axis].chunks for w in regions}
    computed = {v: w.axis for w in regions for v in w.precomputed_values - values_of_chunks(w.precomputed)}
    baked = sum(stored_size[v] * chunk_counts[computed[v]] for v in precomputed if v in computed)
    entered = sum(parts.nbytes for _, parts in chunks.parts)
    work = peak(outer, size) + max((peak(b, size) for b in bodies.values()), default=0)
    folding = max((peak(w.precomputed, size) for w in regions), default=0)
    return Need(weights, baked + entered, work, max(folding, peak(constant, size)), chunked=True)


def _body_nodes(region: Region, precomputed: Collection[ir.Value]) -> list[ir.Node]:
    available = {*precomputed, *values_of_chunks(region.precomputed)}
    read = [v for n in (*region.body, *region.sums) for v in n.inputs if v is not None]
    recomputed = nodes_behind([n for n in region.precomputed if not is_pseudo(n)], read, available)
    return [*recomputed, *region.body, *region.sums]


def _constants(nodes: Sequence[ir.Node]) -> int:
    return constant_bytes(v for n in nodes for v in n.inputs if v is not None)


def check_budget(need: Need, budget: int) -> None:
    """Raise InvalidOptionError if not even the smallest chunks fit."""
    if need.total > budget:
        raise InvalidOptionError(
            f"the memory budget of {format_bytes(budget)} is too small: one row and one reference at a time "
            f"take {format_bytes(need.total)} ({format_bytes(need.weights)} of it weights). "
            "Raise --memory-budget."
        )


def rows_that_fit(memory: Memory, most: int = MAX_BATCH) -> int:
    """Return the number of rows of a batch that fit the budget, from 1 to `most`."""
    fixed = Need(memory.weights, memory.baked, 0, 0, chunked=memory.chunk is not None).total
    each = Need(0, 0, memory.work, 0).total
    return max(1, min(most, int((memory.budget - fixed) / max(each, 1))))


def budget_warnings(memory: Memory) -> tuple[str, ...]:
    """Return a warning if the graph exceeds its budget and has nothing to chunk."""
    if memory.needed <= memory.budget:
        return ()
    return (
        f"the graph takes about {format_bytes(memory.needed)} for one row, above its memory budget of "
        f"{format_bytes(memory.budget)}, and has no references to take in chunks",
    )
