"""DeepSHAP in PyTorch with all that depends on the references computed once: the baseline to beat.

Written as if it were the product: torch.fx reads a network and this writes another straight line of calls,
forward at the rows [N, …] and back by hand. No autograd and no hooks; channels last in memory; linear layers
in the form that is fastest here; one multiplier for all references until the first nonlinearity; ReLU in two
passes over [N·K, …]. The result is a module that also torch.compile takes.
"""

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from benchmarks.torch.forms import Form, fastest, last


@dataclass(frozen=True)
class Multiplier:
    """m of a value.

    Attributes:
        node: computes it.
        wide: it has N·K rows, else N: the same for all references.
        owned: nobody else reads it, so that it may be overwritten.
        chosen: computes the target of each row, where m is 1 there and 0 elsewhere.
    """

    node: fx.Node
    wide: bool
    owned: bool = True
    chosen: fx.Node | None = None


@dataclass(frozen=True)
class Value:
    """A tensor of the network.

    Attributes:
        x: computes it at the rows; r: what it is at the references [K, …]; like: what it is at the rows that
            the walk was written for [N, …].
    """

    x: fx.Node
    r: Tensor
    like: Tensor


Pull = Callable[[Multiplier], Sequence[Multiplier]]
Rule = Callable[["Walk", fx.Node, Sequence[Value]], tuple[Value, Pull]]


class Walk:
    """Writes the calls.

    Attributes:
        portable: with PyTorch's public operators alone, for torch.compile.
        scales: factors per channel that the layer which made the value has to apply on the way back.
    """

    def __init__(
        self,
        network: fx.GraphModule,
        rows: int,
        count: int,
        *,
        portable: bool,
        scales: Mapping[fx.Node, Tensor],
    ) -> None:
        self.network, self.N, self.K, self.portable, self.scales = network, rows, count, portable, scales
        self.graph, self.root = fx.Graph(), nn.Module()
        self._known: dict[Hashable, int] = {}
        self._constants = 0

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> fx.Node:
        return self.graph.call_function(function, arguments, options)

    def constant(self, value: Tensor) -> fx.Node:
        """A buffer of the written module."""
        name = f"constant_{self._constants}"
        self._constants += 1
        self.root.register_buffer(name, value)
        return self.graph.get_attr(name)

    def form(self, form: Form, x: fx.Node) -> fx.Node:
        """A call of the form, its constants baked."""
        return self.call(form.function, x, *(self.constant(c) for c in form.constants), **form.options)

    def fastest(self, forms: Sequence[Form], x: Tensor, layer: Hashable) -> Form:
        key = (layer, tuple(x.shape))
        return fastest(forms, x, portable=self.portable, known=self._known, key=key)

    # -- the reference axis: rows are [N, K, …] where both meet, which for N = 1 is [K, …] as it is --

    def beside(self, x: fx.Node) -> fx.Node:
        """A value [N, …] that broadcasts against [K, …]."""
        return x if self.N == 1 else self.call(torch.unsqueeze, x, 1)

    def opened(self, m: Multiplier) -> fx.Node:
        """m with the axis of references: [N, K, …], or [N, 1, …] where it has none."""
        if self.N == 1:
            return m.node
        if not m.wide:
            return self.call(torch.unsqueeze, m.node, 1)
        return self.call(torch.unflatten, m.node, 0, (self.N, self.K))

    def closed(self, node: fx.Node) -> Multiplier:
        """[N, K, …] as the rows [N·K, …] that layers take."""
        return Multiplier(node if self.N == 1 else self.call(torch.flatten, node, 0, 1), wide=True)

    def rows_of(self, m: Multiplier) -> int:
        return self.N * self.K if m.wide else self.N

    def add(self, a: Multiplier, b: Multiplier) -> Multiplier:
        """a + b, in place where one of them may be overwritten."""
        if a.wide == b.wide and (a.owned or b.owned):
            into, other = (a, b) if a.owned else (b, a)
            return Multiplier(self.call(torch.Tensor.add_, into.node, other.node), a.wide)
        if a.wide == b.wide:
            return Multiplier(self.call(torch.add, a.node, b.node), a.wide)
        return self.closed(self.call(torch.add, self.opened(a), self.opened(b)))


class Gradients:
    """Collects multipliers on the way back; those of concatenations are kept in one piece.

    DenseNet's layer reads all that came before: the parts of every concatenation are the first parts of the
    next one, so each is added into the one buffer of its block.
    """

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.single: dict[fx.Node, Multiplier] = {}
        self.buffers: list[tuple[tuple[fx.Node, ...], list[int], Multiplier]] = []

    def give(self, node: fx.Node, m: Multiplier) -> None:
        """Adds m to what has come back to a value so far."""
        known = self.single.get(node)
        self.single[node] = m if known is None else self.walk.add(known, m)

    def give_parts(self, parts: tuple[fx.Node, ...], channels: list[int], m: Multiplier) -> None:
        """The same for a concatenation of `parts`, of so many channels each."""
        for whole, _, buffer in self.buffers:
            if whole[: len(parts)] == parts and buffer.wide == m.wide:
                first = self.walk.call(torch.narrow, buffer.node, 1, 0, sum(channels))
                self.walk.call(torch.Tensor.add_, first, m.node)
                return
        if not m.owned:
            m = Multiplier(self.walk.call(torch.clone, m.node), m.wide)
        self.buffers.append((parts, channels, m))

    def take(self, node: fx.Node) -> Multiplier | None:
        """All that has come back to a value; None where nothing has."""
        m = self.single.pop(node, None)
        for parts, channels, buffer in self.buffers:
            if node in parts:
                i = parts.index(node)
                start = sum(channels[:i])
                part = self.walk.call(torch.narrow, buffer.node, 1, start, channels[i])
                slice_ = Multiplier(part, buffer.wide, owned=False)
                m = slice_ if m is None else self.walk.add(m, slice_)
        return m


def write_walk(
    network: fx.GraphModule,
    rules: Callable[[fx.GraphModule, fx.Node], Rule],
    rows: Tensor,
    references: Tensor,
    *,
    portable: bool,
    scales: Mapping[fx.Node, Tensor],
) -> fx.GraphModule:
    """The explanation of `network` as a module from rows [N, …] to (outputs [N, T], attributions [N, …]).

    Args:
        network: of one input and one output [N, T].
        rows: an example; the result takes as many rows as it has.
        references: [K, …].
        portable: for torch.compile.
        scales: see `Walk`.
    """
    walk = Walk(network, len(rows), len(references), portable=portable, scales=scales)
    values: dict[fx.Node, Value] = {}
    pulls: list[tuple[fx.Node, list[fx.Node], Pull]] = []
    out: fx.Node | None = None
    for node in network.graph.nodes:
        if node.op == "placeholder":
            values[node] = Value(walk.graph.placeholder("x"), last(references), last(rows))
        elif node.op == "output":
            (out,) = node.all_input_nodes
        elif node.op != "get_attr":
            inputs = [n for n in node.all_input_nodes if n in values]
            values[node], pull = rules(network, node)(walk, node, [values[n] for n in inputs])
            pulls.append((node, inputs, pull))
    assert out is not None
    _write_back(walk, values, pulls, out)
    walk.graph.lint()
    return fx.GraphModule(walk.root, walk.graph)


def _write_back(
    walk: Walk, values: dict[fx.Node, Value], pulls: list[tuple[fx.Node, list[fx.Node], Pull]], out: fx.Node
) -> None:
    y = values[out]
    chosen = walk.call(torch.argmax, y.x, 1)
    ones = walk.call(nn.functional.one_hot, chosen, y.r.shape[1])
    collected = Gradients(walk)
    collected.give(out, Multiplier(walk.call(torch.Tensor.to, ones, y.r.dtype), wide=False, chosen=chosen))
    for node, inputs, pull in reversed(pulls):
        m = collected.take(node)
        if m is None:
            continue
        handed = pull(m)
        if node.target is torch.cat:
            collected.give_parts(tuple(inputs), [values[n].r.shape[1] for n in inputs], *handed)
            continue
        for given, part in zip(inputs, handed, strict=True):
            collected.give(given, part)
    (source,) = (node for node, value in values.items() if value.x.op == "placeholder")
    m = collected.take(source)
    assert m is not None
    walk.graph.output((y.x, _attributions(walk, values[source], m)))
    walk.graph.eliminate_dead_code(is_impure_node=_is_needed)


def _is_needed(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or node.target is torch.Tensor.add_


def _attributions(walk: Walk, source: Value, m: Multiplier) -> fx.Node:
    """mean over references of m·(x − r)."""
    if not m.wide:
        mean = walk.constant(source.r.mean(dim=0, keepdim=True))
        return walk.call(operator.mul, m.node, walk.call(operator.sub, source.x, mean))
    return walk.call(
        _mean_product, walk.opened(m), walk.beside(source.x), walk.constant(source.r), axis=int(walk.N > 1)
    )


def _mean_product(m: Tensor, x: Tensor, r: Tensor, axis: int) -> Tensor:
    return (x - r).mul_(m).mean(dim=axis, keepdim=axis == 0)
