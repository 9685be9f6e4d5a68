"""Adjacent operators whose DeepLIFT multipliers are one multiplier: fewer passes over the references.

Nothing changes but the time. Where one value alone enters a group of element-by-element operators and one
leaves it, summation to delta allows a single multiplier, Δy/Δx, and walking through the group comes to
the same.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.explain.call import At, Call
from compiler.explain.walk.backward import Readers, readers_of
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.rule import Evaluation, Kind, Rule, Trait

LARGEST_FACTOR = 4.0  # of a group of smooth operators: their secant supposes a scale of about 1


def fuse(calls: Sequence[Call], kept: Collection[str] = ()) -> list[Call]:
    """Return the calls, in their order, with every group that has one multiplier as one call.

    Args:
        kept: values that no group hides.
    """
    fused: list[Call] = []
    taken: set[str] = set()
    readers = readers_of(calls, kept)
    producers = {name: call for call in calls for name in call.outputs}
    order = {call.outputs[0]: i for i, call in enumerate(calls)}
    for call in reversed(calls):
        if call.outputs[0] in taken:
            continue
        group = _smooth_group(call, readers, producers) or _risen_selection(call, readers, producers)
        taken.update(name for member in group for name in member.outputs)
        group.sort(key=lambda member: order[member.outputs[0]])
        fused.append(_one_call(group) if len(group) > 1 else call)
    return fused[::-1]


def _risen_selection(call: Call, readers: Readers, producers: Mapping[str, Call]) -> list[Call]:
    """Return a selection with the function before it, if that never falls.

    x and y rise together, so the function cancels.
    """
    source = producers.get(call.sources[0])
    if call.rule.kind is not Kind.SELECTION or source is None or Trait.RISING not in source.rule.traits:
        return []
    alone = len(readers[source.outputs[0]]) == 1 and sum(source.varying) == 1
    return [source, call] if alone else []


def _smooth_group(call: Call, readers: Readers, producers: Mapping[str, Call]) -> list[Call]:
    """Return the least group that ends in `call` and reads one value: x·σ(x), x·Φ(x) …; else none."""
    if not _is_smooth(call):
        return []
    group = [call]
    while True:
        inside = {name for member in group for name in member.outputs}
        entering = {name for member in group for name in member.sources} - inside
        if len(entering) == 1:
            return group if _has_curvature(group) else []
        joining = _next_member(group, entering, readers, producers)
        if joining is None:
            return []
        group.append(joining)


def _next_member(
    group: list[Call], entering: set[str], readers: Readers, producers: Mapping[str, Call]
) -> Call | None:
    """Return a producer that nobody outside the group reads, and on which no other producer depends."""
    shape = group[0].x.y.shape
    members = {id(member) for member in group}
    candidates = [producers[name] for name in entering if name in producers]
    for candidate in candidates:
        name = candidate.outputs[0]
        private = all(id(reader) in members for reader in readers[name])
        if private and _is_smooth(candidate) and candidate.x.y.shape == shape:
            return candidate
    return None


def _is_smooth(call: Call) -> bool:
    """Tell whether a call works element by element, without kinks, and on a scale of about 1."""
    traits = call.rule.traits
    if call.rule.kind is Kind.POINTWISE:
        return Trait.SMOOTH in traits
    constants = [t for t, v in zip(call.x.inputs, call.varying, strict=True) if not v and t is not None]
    small = all(
        t.constant is not None and np.abs(t.constant).max(initial=0) <= LARGEST_FACTOR for t in constants
    )
    return call.rule.kind is Kind.BILINEAR and Trait.ELEMENTWISE in traits and small


def _has_curvature(group: Sequence[Call]) -> bool:
    """Tell whether a group is worth fusing: sums and factors alone are cheap as they are."""
    return len(group) > 1 and any(member.rule.kind is Kind.POINTWISE for member in group)


def _one_call(group: Sequence[Call]) -> Call:
    """Return the members, in topological order, as one call."""
    first, last = group[0], group[-1]
    if last.rule.kind is Kind.SELECTION:
        return replace(
            last,
            inputs=(first.sources[0], *last.inputs[1:]),
            x=_entering_at(last.x, first.x, first.varying),
            r=_entering_at(last.reference, first.reference, first.varying),
        )
    (name,) = {n for m in group for n in m.sources} - {n for m in group for n in m.outputs}
    reader, i = next((m, m.inputs.index(name)) for m in group if name in m.inputs)
    at_x, at_r = reader.x.inputs[i], reader.reference.inputs[i]
    rule = Rule("group", "", Kind.POINTWISE, _composition(group, name))
    return Call(
        name=last.name,
        rule=rule,
        attributes={},
        inputs=(name,),
        outputs=last.outputs,
        varying=(True,),
        x=At((at_x,), (last.x.y,), (None,)),
        r=At((at_r,), (last.reference.y,), (None,)),
    )


def _entering_at(selection: At, source: At, varying: Sequence[bool]) -> At:
    x = next(t for t, v in zip(source.inputs, varying, strict=True) if v)
    return replace(selection, inputs=(x, *selection.inputs[1:]))


def _composition(group: Sequence[Call], name: str) -> Callable[..., Evaluation]:
    """Return the group as one rule: values forwards, pullbacks backwards."""

    def evaluate(op: Ops, x: Tensor) -> Evaluation:
        values: dict[str | None, Tensor] = {name: x}
        points: list[At] = []
        for call in group:
            held = [values.get(n, t) for n, t in zip(call.inputs, call.x.inputs, strict=True)]
            points.append(call.at(op, held))
            values[call.outputs[0]] = points[-1].y

        def pullback(m: Any) -> Tensor:
            arriving: dict[str | None, Tensor] = {group[-1].outputs[0]: m}
            for call, point in zip(reversed(group), reversed(points), strict=True):
                m_y = arriving[call.outputs[0]]
                for n, v, pull in zip(call.inputs, call.varying, point.pullbacks, strict=True):
                    if v and pull is not None:
                        m_x = pull(m_y)
                        arriving[n] = op.Add(arriving[n], m_x) if n in arriving else m_x
            return arriving[name]

        return points[-1].y, pullback

    return evaluate
