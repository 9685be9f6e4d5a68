"""What AttnLRP has to find in a graph: normalisations, activations, and values to hold constant.

Exporters write RMSNorm, GELU and SiLU as several operators. They are found by how values depend on each
other, never by names: by kinds and traits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rationale.errors import UnsupportedModelError
from rationale.graph.tensor import Tensor
from rationale.lowering.rewrites.engine import HELD, UNCHANGED
from rationale.methods.environment import At, Call
from rationale.methods.propagation.lrp.layers import is_plain, is_product
from rationale.rules.rule import Evaluation, Kind, Rule, Trait

Detached = Callable[[Call, int], bool]


def _never_called(*_: object, **__: object) -> Evaluation:
    raise NotImplementedError("an activation is read where it was computed, never called again")


ACTIVATION = Rule("activation", "", Kind.POINTWISE, _never_called)
"""What a call stands for that hands relevance on unchanged: the end of an activation that the graph writes
out, and what takes values to another code."""
LONGEST = 32  # operators of an activation or a deviation that are looked at before the search gives up


def detach(calls: Sequence[Call], detached: Detached) -> list[Call]:
    """Return the calls without constant inputs among what varies, and without those where nothing varies.

    Args:
        detached: whether input i of a call is held constant.
    """
    varies = free_names(calls)
    left = []
    for call in calls:
        varying = tuple(
            v and n in varies and not detached(call, i)
            for i, (n, v) in enumerate(zip(call.inputs, call.varying, strict=True))
        )
        if any(varying):
            varies.update(call.outputs)
            left.append(call if varying == call.varying else replace(call, varying=varying))
    return left


def reaching(calls: Sequence[Call], outputs: Sequence[str]) -> list[Call]:
    """Return the calls from which one of the outputs is reached through what varies."""
    read = set(outputs)
    kept = []
    for call in reversed(calls):
        if read.intersection(call.outputs):
            read.update(call.sources)
            kept.append(call)
    return kept[::-1]


def free_names(calls: Sequence[Call]) -> set[str]:
    """Return the names of what varies and is computed by none of the calls: the explained inputs."""
    computed = {name for call in calls for name in call.outputs}
    return {name for call in calls for name in call.sources} - computed


def refusal(
    method: str, missing: Sequence[Call], calls: Sequence[Call], advice: str
) -> UnsupportedModelError:
    """Return an error that names the operators for which a method has no rule, and what can be done.

    Args:
        calls: those on the way to the explained output.
        advice: what else can be done than to explain a tensor before them.
    """
    nodes = "1 node" if len(missing) == 1 else f"{len(missing)} nodes"
    named = (f"  {c.rule.op_type} node {c.name!r}: {c.inputs[0]} -> {c.outputs[0]}" for c in missing)
    first = missing[0].inputs[0]
    before = "" if first in free_names(calls) else f" Or explain a tensor before them (--output {first})."
    lines = [f"{method} has no rule for {nodes} on the way to the explained output:", *named, advice + before]
    return UnsupportedModelError("\n".join(lines))


def shares(calls: Sequence[Call]) -> Detached:
    """Hold constant what a Softmax computes: attention weights become constants of the average they weigh."""
    shared = {n for call in calls if Trait.SHARING in call.rule.traits for n in call.outputs}
    return lambda call, i: call.inputs[i] in shared


def gates(calls: Sequence[Call]) -> Detached:
    """Hold constant a product's factor that an activation computes, if none computes the other.

    An example is f(g) in f(g)·u.
    """
    producers = {name: call for call in calls for name in call.outputs}
    found: set[tuple[str, int]] = set()
    for call in calls:
        activated = [_is_activated(producers, str(name)) for name in call.inputs]
        if is_product(call) and all(call.varying) and sum(activated) == 1:
            found.add((call.outputs[0], activated.index(True)))
    return lambda call, i: (call.outputs[0], i) in found


def _is_activated(producers: Mapping[str, Call], name: str) -> bool:
    """Tell whether a value is an activation's, moved, scaled or shifted at most."""
    call = producers.get(name)
    while call is not None and is_plain(call):
        call = producers.get(call.sources[0])
    return call is not None and call.rule.kind is Kind.POINTWISE


def constants(calls: Sequence[Call]) -> list[Call]:
    """Hold constant what only chooses among values, and the scales and zero points of quantised ones.

    What takes values to whole steps or back, or a zero point off, hands relevance on unchanged.

    Raises:
        UnsupportedModelError: an explained input decides such constants alone.
    """
    held = {name for call in calls if call.relevance == HELD for name in call.outputs}

    def is_constant(call: Call, i: int) -> bool:
        chooses, recodes = Trait.CHOOSING in call.rule.traits, call.relevance == UNCHANGED
        return call.inputs[i] in held or (i == 0 and chooses) or (i > 0 and recodes)

    left = reaching(detach(calls, is_constant), calls[-1].outputs)
    lost = sorted(free_names(calls) - free_names(left))
    if lost:
        raise UnsupportedModelError(
            f"{', '.join(map(repr, lost))} reaches the explained output through conditions alone, or "
            "through scales of quantised values, which have no relevance. Explain it by DeepSHAP."
        )
    return [_activation(c, str(c.inputs[0]), c.x.first) if c.relevance == UNCHANGED else c for c in left]


def _activation(call: Call, name: str, x: Tensor) -> Call:
    """Return the call as a function of one value alone, which hands relevance on unchanged."""
    at = At((x,), call.x.outputs, (None,))
    return replace(call, rule=ACTIVATION, inputs=(name,), varying=(True,), x=at)


def deviations(calls: Sequence[Call]) -> Detached:
    """Hold constant what written-out normalisations divide by: s in x·s or x/s, a function of norms of x.

    In a quotient the norms may be of what x is computed of: a·b/(‖a‖·‖b‖) is a cosine.
    """
    producers = {name: call for call in calls for name in call.outputs}
    found: set[tuple[str, int]] = set()
    for call in calls:
        if not is_product(call) or not all(call.varying):
            continue
        for i, name in enumerate(call.inputs):
            normed, other = _normed(producers, str(name)), str(call.inputs[1 - i])
            if normed == {other} or (
                normed
                and i == 1
                and Trait.LINEAR_IN_FIRST in call.rule.traits
                and normed <= _behind(producers, other)
            ):
                found.add((call.outputs[0], i))
    return lambda call, i: (call.outputs[0], i) in found


def _normed(producers: Mapping[str, Call], name: str) -> set[str]:
    """Return every v of whose norms alone `name` is a function: f(mean v²), f not linear, or ‖v‖."""
    found: set[str] = set()
    pending = [(name, False)]
    for _ in range(LONGEST):
        if not pending:
            return found
        name, bends = pending.pop()
        call = producers.get(name)
        if call is None:
            return set()
        traits, sources = call.rule.traits, call.sources
        if Trait.LENGTH in traits:
            found.add(sources[0])
        elif Trait.AVERAGING in traits:
            square = _square_of(producers.get(sources[0])) if bends else None
            if square is None:
                return set()
            found.add(square)
        elif {Trait.ELEMENTWISE, Trait.MOVING} & traits and (len(sources) == 1 or is_product(call)):
            pending += [(n, bends or call.rule.kind is Kind.POINTWISE) for n in sources]
        else:
            return set()
    return set()


def _behind(producers: Mapping[str, Call], name: str) -> set[str]:
    """Return the names of what a value is computed of, so far back as is looked."""
    found, pending = {name}, [name]
    while pending and len(found) <= LONGEST:
        call = producers.get(pending.pop(0))
        new = [] if call is None else [n for n in call.sources if n not in found]
        found.update(new)
        pending += new
    return found


def _square_of(call: Call | None) -> str | None:
    """Return v, if the call is v² or another pointwise function of v alone."""
    if call is None or len(set(call.sources)) != 1:
        return None
    squares = call.rule.kind is Kind.POINTWISE or (is_product(call) and all(call.varying))
    return call.sources[0] if squares else None


def activations(calls: Sequence[Call]) -> list[Call]:
    """Read each activation that is written out as one of a single variable.

    GELU is x/2·(1 + erf(x/√2)): a function of x alone, element by element, although a product of two values
    that vary stands at its end. That product becomes an `ACTIVATION` that reads x, and what it was written
    with is left out.
    """
    producers: dict[str, Call] = {}
    order = {name: i for i, call in enumerate(calls) for name in call.outputs}
    joined = []
    for call in calls:
        variable = _single_variable(call, producers, order)
        if variable is not None:
            call = _activation(call, *variable)
        producers.update((name, call) for name in call.outputs)
        joined.append(call)
    return reaching(joined, calls[-1].outputs)


def _single_variable(
    call: Call, producers: Mapping[str, Call], order: Mapping[str, int]
) -> tuple[str, Tensor] | None:
    """Return the nearest value of which the call is an elementwise function, with a bend on the way."""
    if sum(call.varying) < 2 or not _is_elementwise(call):
        return None
    bends = False
    frontier = dict(_reads(call))
    for _ in range(LONGEST):
        if len(frontier) == 1:
            return next(iter(frontier.items())) if bends else None
        last = max(frontier, key=lambda name: order.get(name, -1))
        before = producers.get(last)
        if before is None or not _is_elementwise(before):
            return None
        bends = bends or before.rule.kind is Kind.POINTWISE
        del frontier[last]
        frontier.update(_reads(before))
    return None


def _reads(call: Call) -> Iterator[tuple[str, Tensor]]:
    for name, x, varying in zip(call.inputs, call.x.inputs, call.varying, strict=True):
        if varying and x is not None:
            yield str(name), x


def _is_elementwise(call: Call) -> bool:
    """Tell whether elements of y depend on the elements at their index of inputs that all have y's shape.

    A BatchNormalization does, but it has weights: no part of an activation.
    """
    if Trait.ELEMENTWISE not in call.rule.traits or Trait.NORMALISING in call.rule.traits:
        return False
    shapes = {x.shape for _, x in _reads(call)}
    return shapes == {call.x.y.shape}
