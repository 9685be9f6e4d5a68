"""The assignment of rules to layers: selectors, and the composites of the literature.

A selector is one of

    Conv                 every operator of that type
    name:head.*          nodes in whose name the regular expression is found
    first  last          the first or last layer that has weights
    first 3  last 2  4-6 that many of them; a range, counted from 1
    Conv:first  Gemm:2-3 the same, counted among the layers of one type

The last selector that matches a node decides.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rationale.errors import InvalidOptionError
from rationale.methods.environment import Calls, RuleCall
from rationale.methods.propagation.lrp.layers import LinearLayer, input_preparations, is_linear, summing_calls
from rationale.methods.propagation.lrp.rules import (
    AlphaBeta,
    DeconvRelu,
    Epsilon,
    Flat,
    GeneralizedGamma,
    GuidedRelu,
    Own,
    Pass,
    RelevanceRule,
    Taylor,
    ZBox,
    Zero,
    ZPlus,
)
from rationale.rules.rule import Kind, Trait

Choice = tuple[str, RelevanceRule]
_POSITION = re.compile(r"(first|last)(?:\s+(\d+))?|(\d+)(?:-(\d+))?")
_TYPE = re.compile(r"[A-Z]\w*")


@dataclass(frozen=True)
class Composite:
    """A preset of rules.

    Attributes:
        choices: rules by selector; the last match wins.
        default: the rule of all other layers with weights.
        is_gradient: whether multipliers are gradients with modified ReLUs, rather than relevance over x.
    """

    choices: tuple[Choice, ...]
    default: RelevanceRule = Epsilon()  # noqa: RUF009  # frozen
    is_gradient: bool = False


_NORMS: Choice = ("BatchNormalization", Pass())
"""The rule of a normalisation outside of any layer, as in zennit: relevance passes unchanged."""


def _convolutions(rule: RelevanceRule) -> tuple[Choice, ...]:
    return _NORMS, ("Conv", rule), ("ConvTranspose", rule)


COMPOSITES = {
    "EpsilonPlus": Composite(_convolutions(ZPlus())),
    "EpsilonAlpha2Beta1": Composite(_convolutions(AlphaBeta(2, 1))),
    "EpsilonPlusFlat": Composite((*_convolutions(ZPlus()), ("first", Flat()))),
    "EpsilonAlpha2Beta1Flat": Composite((*_convolutions(AlphaBeta(2, 1)), ("first", Flat()))),
    "EpsilonGammaBox": Composite((*_convolutions(GeneralizedGamma(0.25)), ("Conv:first", ZBox()))),
    "ExcitationBackprop": Composite((_NORMS,), default=ZPlus()),
    "GuidedBackprop": Composite((("Relu", GuidedRelu()),), default=Taylor(), is_gradient=True),
    "Deconvnet": Composite((("Relu", DeconvRelu()),), default=Taylor(), is_gradient=True),
}


@dataclass(frozen=True)
class Selector:
    """A parsed selector. `span` counts layers from 1, or from the end if it is negative."""

    op_type: str | None = None
    name: re.Pattern[str] | None = None
    span: tuple[int, int] | None = None

    def matches(self, call: RuleCall, ordinals: Mapping[str | None, Mapping[str, tuple[int, int]]]) -> bool:
        """Tell whether the selector matches a call.

        Args:
            ordinals: positions of each layer by its output, from 1 and from the end (−1), among the layers of
                an operator type, or among all (None).
        """
        if self.name is not None:
            return bool(self.name.search(call.name))
        if self.op_type is not None and call.rule.op_type != self.op_type:
            return False
        if self.span is None:
            return True
        first, last = self.span
        positions = ordinals.get(self.op_type, {}).get(call.outputs[0])
        return positions is not None and any(first <= position <= last for position in positions)


def parse_selector(text: str) -> Selector:
    """Parse a selector; raise InvalidOptionError, with the known forms, if it is invalid."""
    if not isinstance(text, str):
        raise InvalidOptionError(f"a selector is a text, not {text!r}.")
    if text.startswith("name:"):
        try:
            return Selector(name=re.compile(text.removeprefix("name:")))
        except re.error as error:
            raise InvalidOptionError(
                f"selector {text!r}: no regular expression ({error}). Write a \\ before brackets "
                "and other special characters."
            ) from error
    op_type, _, position = text.rpartition(":") if ":" in text else ("", "", text)
    if not op_type and _TYPE.fullmatch(position):
        return Selector(op_type=position)
    span = _span(position.strip())
    if span is None or (op_type and not _TYPE.fullmatch(op_type)):
        raise InvalidOptionError(
            f"selector {text!r} is not known: give an operator type (Conv), name:REGEX, a place among the "
            "layers (first, last, first 3, last 2, 4-6), or both (Conv:first)."
        )
    return Selector(op_type=op_type or None, span=span)


def _span(position: str) -> tuple[int, int] | None:
    position_match = _POSITION.fullmatch(position)
    if position_match is None:
        return None
    end, count, first, last = position_match.groups()
    if end == "first":
        span = 1, int(count or 1)
    elif end == "last":
        span = -int(count or 1), -1
    else:
        span = int(first), int(last or first)
    return span if span[0] <= span[1] and 0 not in span else None


def assign(
    calls: Calls, layers: Mapping[str, LinearLayer], composite: Composite, chosen: Iterable[Choice]
) -> dict[str, RelevanceRule]:
    """Return the rule of each call that has one, by the call's first output; the last match wins.

    Sums have the ε-rule, and an input's preprocessing passes relevance on unchanged, unless `chosen` says
    otherwise.

    Raises:
        InvalidOptionError: if no operator can take a rule in `chosen`.
    """
    ordinals = _ordinals(layers)
    rules: dict[str, RelevanceRule] = {}
    if not composite.is_gradient:
        rules |= {call.outputs[0]: Epsilon() for call in summing_calls(calls)}
    rules |= dict.fromkeys(ordinals[None], composite.default)
    for text, rule in composite.choices:
        rules |= _matching_rules(parse_selector(text), rule, calls, layers, ordinals)
    if not composite.is_gradient:
        rules |= {call.outputs[0]: Pass() for call in input_preparations(calls)}
    for text, rule in chosen:
        selector = parse_selector(text)
        matching_rules = _matching_rules(selector, rule, calls, layers, ordinals)
        if not matching_rules:
            matched = [c for c in calls if selector.matches(c, ordinals)]
            raise InvalidOptionError(_mismatch_message(text, rule, matched, layers, calls))
        rules |= matching_rules
    return rules


def _ordinals(layers: Mapping[str, LinearLayer]) -> dict[str | None, dict[str, tuple[int, int]]]:
    weighted = [(name, layer) for name, layer in layers.items() if layer.weights is not None]
    groups: dict[str | None, list[str]] = {None: [name for name, _ in weighted]}
    for name, layer in weighted:
        groups.setdefault(layer.call.rule.op_type, []).append(name)
    return {
        key: {name: (i + 1, i - len(names)) for i, name in enumerate(names)} for key, names in groups.items()
    }


def _matching_rules(
    selector: Selector,
    rule: RelevanceRule,
    calls: Calls,
    layers: Mapping[str, LinearLayer],
    ordinals: Mapping[str | None, Mapping[str, tuple[int, int]]],
) -> dict[str, RelevanceRule]:
    return {
        call.outputs[0]: rule
        for call in calls
        if selector.matches(call, ordinals) and takes(rule, call, layers.get(call.outputs[0]))
    }


def takes(rule: RelevanceRule, call: RuleCall, layer: LinearLayer | None) -> bool:
    """Tell whether a rule can be applied to an operator."""
    moving = Trait.MOVING in call.rule.traits
    if isinstance(rule, Taylor | GuidedRelu | DeconvRelu):
        return True
    if isinstance(rule, Own):
        return call.rule.has_relevance
    if isinstance(rule, Pass):
        weighted = layer is not None or moving or len(call.outputs) > 1
        return not weighted and sum(call.varying) == 1 and _keeps_shape(call)
    if isinstance(rule, Zero | Epsilon):
        return is_linear(call) and not moving
    return layer is not None


def _keeps_shape(call: RuleCall) -> bool:
    x = call.x.inputs[call.varying.index(True)]
    return x is not None and call.rule.kind is not Kind.SELECTION and x.shape == call.x.y.shape


def _mismatch_message(
    text: str, rule: RelevanceRule, matched: Calls, layers: Mapping[str, LinearLayer], calls: Calls
) -> str:
    if matched:
        names = ", ".join(f"{c.rule.op_type} {c.name!r}" for c in matched[:5])
        return (
            f"rule {text}={rule}: {names} do not support it. Rules that modify weights work for layers "
            "(Conv, ConvTranspose, Gemm, MatMul by weights) and averages; zero and epsilon for linear "
            "operators; pass if the shape stays the same; own if the operator has its own form; taylor "
            "for any."
        )
    layer_names = [f"{layer.call.rule.op_type} {layer.call.name!r}" for layer in layers.values()]
    more = f" and {len(layer_names) - 20} more" if len(layer_names) > 20 else ""
    types = ", ".join(sorted({c.rule.op_type for c in calls}))
    return (
        f"rule {text}={rule} matches nothing. The layers are, in order: {', '.join(layer_names[:20])}{more}; "
        f"the operator types {types}."
    )
