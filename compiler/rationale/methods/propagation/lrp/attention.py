"""Patterns that AttnLRP finds in a graph: normalisations, activations, and values to hold constant.

Exporters write RMSNorm, GELU and SiLU as several operators. The search uses the dependencies between values,
and the kinds and traits of operators, never their names.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rationale.errors import UnsupportedModelError
from rationale.graph.tensor import Tensor
from rationale.lowering.rewrites.engine import HELD, UNCHANGED
from rationale.methods.environment import Calls, RuleCall, RulePoint
from rationale.methods.propagation.backward import never_called
from rationale.methods.propagation.lrp.layers import is_plain, is_product
from rationale.rules.rule import Kind, Rule, Trait

Detached = Callable[[RuleCall, int], bool]


ACTIVATION = Rule("activation", "", Kind.POINTWISE, never_called)
"""The rule of a call that passes relevance on unchanged: the end of an activation that is written out as
several operators, or a change of a value's quantised code."""
LONGEST = 32  # operators of an activation or a deviation after which the search gives up


def detach(calls: Calls, detached: Detached) -> list[RuleCall]:
    """Return the calls with detached inputs marked as constant; calls without a varying input are left out.

    Args:
        detached: function that tells whether input i of a call is held constant.
    """
    varies = free_names(calls)
    varying_calls = []
    for call in calls:
        varying = tuple(
            v and n in varies and not detached(call, i)
            for i, (n, v) in enumerate(zip(call.inputs, call.varying, strict=True))
        )
        if any(varying):
            varies.update(call.outputs)
            varying_calls.append(call if varying == call.varying else replace(call, varying=varying))
    return varying_calls


def calls_reaching(calls: Calls, outputs: Sequence[str]) -> list[RuleCall]:
    """Return the calls from which varying values lead to one of the outputs."""
    read = set(outputs)
    reaching_calls = []
    for call in reversed(calls):
        if read.intersection(call.outputs):
            read.update(call.sources)
            reaching_calls.append(call)
    return reaching_calls[::-1]


def free_names(calls: Calls) -> set[str]:
    """Return the varying values that none of the calls computes: the explained inputs."""
    computed = {name for call in calls for name in call.outputs}
    return {name for call in calls for name in call.sources} - computed


def no_rule_error(method: str, missing: Calls, calls: Calls, advice: str) -> UnsupportedModelError:
    """Return an error that names the operators without a rule in a method, with advice.

    Args:
        calls: the calls on the path to the explained output.
        advice: another remedy than explaining a tensor before these operators.
    """
    nodes = "1 node" if len(missing) == 1 else f"{len(missing)} nodes"
    named = (f"  {c.rule.op_type} node {c.name!r}: {c.inputs[0]} -> {c.outputs[0]}" for c in missing)
    first = missing[0].inputs[0]
    before = "" if first in free_names(calls) else f" Or explain a tensor before them (--output {first})."
    lines = [f"{method} has no rule for {nodes} on the way to the explained output:", *named, advice + before]
    return UnsupportedModelError("\n".join(lines))


def holds_attention(calls: Calls) -> Detached:
    """Hold the outputs of a Softmax constant: attention weights become constant weights of an average."""
    shared = {n for call in calls if Trait.SHARING in call.rule.traits for n in call.outputs}
    return lambda call, i: call.inputs[i] in shared


def holds_gates(calls: Calls) -> Detached:
    """Hold one factor of a product constant if an activation computes it, and none computes the other.

    An example is f(g) in f(g)·u.
    """
    producers = {name: call for call in calls for name in call.outputs}
    held: set[tuple[str, int]] = set()
    for call in calls:
        activated = [_is_activated(producers, str(name)) for name in call.inputs]
        if is_product(call) and all(call.varying) and sum(activated) == 1:
            held.add((call.outputs[0], activated.index(True)))
    return lambda call, i: (call.outputs[0], i) in held


def _is_activated(producers: Mapping[str, RuleCall], name: str) -> bool:
    """Tell whether a value is an activation's output, at most moved, scaled or shifted."""
    call = producers.get(name)
    while call is not None and is_plain(call):
        call = producers.get(call.sources[0])
    return call is not None and call.rule.kind is Kind.POINTWISE


def hold_constants(calls: Calls) -> list[RuleCall]:
    """Hold constant the inputs that only choose among values, and scales and zero points of quantised values.

    Quantisation, dequantisation, and the subtraction of a zero point pass relevance on unchanged.

    Raises:
        UnsupportedModelError: if an explained input reaches the output only through such constants.
    """
    held = {name for call in calls if call.relevance == HELD for name in call.outputs}

    def is_constant(call: RuleCall, i: int) -> bool:
        chooses, recodes = Trait.CHOOSING in call.rule.traits, call.relevance == UNCHANGED
        return call.inputs[i] in held or (i == 0 and chooses) or (i > 0 and recodes)

    remaining = calls_reaching(detach(calls, is_constant), calls[-1].outputs)
    lost = sorted(free_names(calls) - free_names(remaining))
    if lost:
        raise UnsupportedModelError(
            f"{', '.join(map(repr, lost))} reaches the explained output only through conditions or scales "
            "of quantised values, and these have no relevance. Use DeepSHAP."
        )
    return [_activation(c, str(c.inputs[0]), c.x.first) if c.relevance == UNCHANGED else c for c in remaining]


def _activation(call: RuleCall, name: str, x: Tensor) -> RuleCall:
    """Return the call as a function of a single value that passes relevance on unchanged."""
    point = RulePoint((x,), call.x.outputs, (None,))
    return replace(call, rule=ACTIVATION, inputs=(name,), varying=(True,), x=point)


def holds_deviations(calls: Calls) -> Detached:
    """Hold constant the divisors of written-out normalisations: s in x·s or x/s, a function of norms of x.

    In a quotient, the norms may be those of values from which x is computed: a·b/(‖a‖·‖b‖) is a cosine.
    """
    producers = {name: call for call in calls for name in call.outputs}
    held: set[tuple[str, int]] = set()
    for call in calls:
        if not is_product(call) or not all(call.varying):
            continue
        for i, name in enumerate(call.inputs):
            normed, other = _normed_values(producers, str(name)), str(call.inputs[1 - i])
            if normed == {other} or (
                normed
                and i == 1
                and Trait.LINEAR_IN_FIRST in call.rule.traits
                and normed <= _ancestors(producers, other)
            ):
                held.add((call.outputs[0], i))
    return lambda call, i: (call.outputs[0], i) in held


def _normed_values(producers: Mapping[str, RuleCall], name: str) -> set[str]:
    """Return every v such that `name` depends only on their norms: f(mean v²), f not linear, or ‖v‖."""
    normed: set[str] = set()
    pending = [(name, False)]
    for _ in range(LONGEST):
        if not pending:
            return normed
        name, bends = pending.pop()
        call = producers.get(name)
        if call is None:
            return set()
        traits, sources = call.rule.traits, call.sources
        if Trait.LENGTH in traits:
            normed.add(sources[0])
        elif Trait.AVERAGING in traits:
            square = _square_of(producers.get(sources[0])) if bends else None
            if square is None:
                return set()
            normed.add(square)
        elif {Trait.ELEMENTWISE, Trait.MOVING} & traits and (len(sources) == 1 or is_product(call)):
            pending += [(n, bends or call.rule.kind is Kind.POINTWISE) for n in sources]
        else:
            return set()
    return set()


def _ancestors(producers: Mapping[str, RuleCall], name: str) -> set[str]:
    """Return the names of the values from which a value is computed, within the search limit."""
    names, pending = {name}, [name]
    while pending and len(names) <= LONGEST:
        call = producers.get(pending.pop(0))
        new = [] if call is None else [n for n in call.sources if n not in names]
        names.update(new)
        pending += new
    return names


def _square_of(call: RuleCall | None) -> str | None:
    """Return v, if the call is v² or another pointwise function of v alone."""
    if call is None or len(set(call.sources)) != 1:
        return None
    squares = call.rule.kind is Kind.POINTWISE or (is_product(call) and all(call.varying))
    return call.sources[0] if squares else None


def join_activations(calls: Calls) -> list[RuleCall]:
    """Read each written-out activation as a function of a single variable.

    GELU is x/2·(1 + erf(x/√2)): an elementwise function of x alone, although its last operator multiplies two
    varying values. That product becomes an `ACTIVATION` that reads x, and the operators between are left out.
    """
    producers: dict[str, RuleCall] = {}
    order = {name: i for i, call in enumerate(calls) for name in call.outputs}
    joined = []
    for call in calls:
        variable = _single_variable(call, producers, order)
        if variable is not None:
            call = _activation(call, *variable)
        producers.update((name, call) for name in call.outputs)
        joined.append(call)
    return calls_reaching(joined, calls[-1].outputs)


def _single_variable(
    call: RuleCall, producers: Mapping[str, RuleCall], order: Mapping[str, int]
) -> tuple[str, Tensor] | None:
    """Return the nearest value of which the call is an elementwise function that is not linear."""
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


def _reads(call: RuleCall) -> Iterator[tuple[str, Tensor]]:
    for name, x, varying in zip(call.inputs, call.x.inputs, call.varying, strict=True):
        if varying and x is not None:
            yield str(name), x


def _is_elementwise(call: RuleCall) -> bool:
    """Tell whether each element of y depends only on the elements at its index; all inputs have y's shape.

    This holds for a BatchNormalization too, but it has weights and is no part of an activation.
    """
    if Trait.ELEMENTWISE not in call.rule.traits or Trait.NORMALISING in call.rule.traits:
        return False
    shapes = {x.shape for _, x in _reads(call)}
    return shapes == {call.x.y.shape}
