"""Layer-wise relevance propagation.

Bach et al., 2015; Montavon et al., 2019 (see `lrp.rules`). The walk starts with the output's own value: with
m = 1, since relevance is m times the value. The walk carries the multiplier m if R = m·x determines R, so
that ReLUs and sums need no denominator, and R itself if x may be 0 where R is not.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.methods.engine import Gap
from rationale.methods.environment import Calls, RuleCall
from rationale.methods.propagation.backward import Carried, PropagationMethod, Pull, Relevance, pull_back
from rationale.methods.propagation.engine import WALK
from rationale.methods.propagation.lrp.attention import hold_constants, join_activations, no_rule_error
from rationale.methods.propagation.lrp.composites import COMPOSITES, Choice, assign, parse_selector, takes
from rationale.methods.propagation.lrp.layers import LinearLayer, is_linear, is_product, join_affine_maps
from rationale.methods.propagation.lrp.modified import (
    InputBounds,
    multiplier,
    relevance_of,
    through_layer,
)
from rationale.methods.propagation.lrp.registry import check_rule, origins
from rationale.methods.propagation.lrp.rules import (
    Bound,
    DeconvRelu,
    Epsilon,
    GuidedRelu,
    Own,
    Pass,
    RelevanceRule,
    Taylor,
    Zero,
    check_bounds,
    label,
)
from rationale.methods.propagation.lrp.texts import parse_choice
from rationale.rules.rule import Kind, Trait
from rationale.schema.manifest import Extension


class RelevanceMethod(PropagationMethod):
    """The base of methods that propagate relevance, layer by layer."""

    engine = WALK
    explains_scores: ClassVar[bool] = True

    def pull(self, op: Ops, call: RuleCall, m: Any) -> Sequence[Tensor | None]:
        raise NotImplementedError("relevance is propagated by layers: see `plan`")

    def attribute(
        self, op: Ops, m: Carried, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        return relevance_of(op, m, x)


@dataclass(frozen=True, eq=False)
class Lrp(RelevanceMethod):
    """Relevance of the inputs for an output, by rules chosen for each operator.

    Args:
        composite: the preset that `rules` refine: EpsilonPlus, EpsilonAlpha2Beta1, EpsilonPlusFlat,
            EpsilonAlpha2Beta1Flat, EpsilonGammaBox or ExcitationBackprop. GuidedBackprop and Deconvnet are
            gradients with modified ReLUs: they take no rules, and their attributions need not add up.
        rules: pairs of selector and rule, such as ("Conv", Gamma(0.25)), ("name:head.*", Epsilon(0.1)) or
            ("first", ZBox()); the last match wins. See `lrp.composites`.
        low: the least values of the model's input, for ZBox: a number, or an array that broadcasts to it.
        high: its largest values, likewise.

    Raises:
        InvalidOptionError: if a composite, selector or rule is unknown, or the bounds are invalid.
    """

    composite: str = "EpsilonPlus"
    rules: Sequence[Choice] = ()
    low: Bound = None
    high: Bound = None

    name: ClassVar[str] = "lrp"

    def __post_init__(self) -> None:
        if self.composite not in COMPOSITES:
            raise InvalidOptionError(
                f"composite {self.composite!r} is not known; there are {', '.join(COMPOSITES)}."
            )
        if COMPOSITES[self.composite].is_gradient and self.rules:
            raise InvalidOptionError(
                f"composite {self.composite} takes no rules, because it computes a gradient."
            )
        if not isinstance(self.rules, Sequence):
            raise InvalidOptionError(f"rules must be a list of selectors and rules, not {self.rules!r}.")
        for choice in self.rules:
            if not isinstance(choice, tuple | list) or len(choice) != 2:
                raise InvalidOptionError(f"rules are pairs of a selector and a rule, not {choice!r}.")
            parse_selector(choice[0])
            check_rule(choice[1])
        check_bounds("Lrp", self.low, self.high)

    @property
    def gap(self) -> Gap | None:
        return None if COMPOSITES[self.composite].is_gradient else Gap.ABSORBED

    @property
    def options(self) -> dict[str, Any]:
        bounds = {
            k: np.asarray(v).tolist() for k, v in (("low", self.low), ("high", self.high)) if v is not None
        }
        rules = [[selector, str(rule)] for selector, rule in self.rules]
        return {"composite": self.composite, "rules": rules, **bounds}

    @property
    def extensions(self) -> tuple[Extension, ...]:
        return origins(rule for _, rule in self.rules)

    def plan(self, op: Ops, calls: Calls, keep: Collection[str] = ()) -> tuple[Calls, Pull]:
        composite = COMPOSITES[self.composite]
        joined, layers = calls, dict[str, LinearLayer]()
        if not composite.is_gradient:
            joined, layers = join_affine_maps(op, join_activations(hold_constants(calls)))
        rules = assign(joined, layers, composite, self.rules)
        default_rule = Taylor() if composite.is_gradient else Zero()
        if not composite.is_gradient:
            _demand_rules(joined, rules)
        return joined, RelevancePull(layers, rules, default_rule, InputBounds(joined, self.low, self.high))

    def attribute(
        self, op: Ops, m: Carried, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        if COMPOSITES[self.composite].is_gradient:
            return op.expand(multiplier(op, m, x, Taylor()), x.shape)
        return super().attribute(op, m, x, r, weights)


def lrp_from_texts(
    rule: Sequence[str] = (),
    composite: str = "EpsilonPlus",
    low: Bound = None,
    high: Bound = None,
) -> Lrp:
    """Make an Lrp from options that are texts.

    Args:
        rule: rules such as "Conv=gamma:0.25".
        composite: the name of a preset.
        low, high: bounds, like those of `Lrp`.
    """
    return Lrp(composite, tuple(parse_choice(text) for text in rule), low, high)


def _demand_rules(calls: Calls, rules: Mapping[str, RelevanceRule]) -> None:
    """Raise UnsupportedModelError that lists all operators without a rule, built in or chosen."""
    missing = [
        call
        for call in calls
        if call.rule.kind is Kind.LOCAL
        and not is_linear(call)
        and Trait.CONSERVING not in call.rule.traits
        and call.outputs[0] not in rules
    ]
    if missing:
        types = sorted({call.rule.op_type for call in missing})
        passing = [t for t in types if all(takes(Pass(), c, None) for c in missing if c.rule.op_type == t)]
        expanded, passed = (
            " ".join(f"--rule {t}={r}" for t in g) for g, r in ((types, "taylor"), (passing, "pass"))
        )
        advice = f"Take attnlrp for attention and normalisations, or first-order expansions ({expanded})"
        advice += f", or hand relevance on unchanged ({passed})." if passing else "."
        raise no_rule_error("LRP", missing, calls, advice)


@dataclass(frozen=True)
class RelevancePull:
    """The way in which relevance leaves each operator; rules and layers by an operator's first output.

    Attributes:
        default_rule: the rule of operators without a chosen rule.
    """

    layers: Mapping[str, LinearLayer]
    rules: Mapping[str, RelevanceRule]
    default_rule: RelevanceRule
    bounds: InputBounds

    def rule_of(self, call: RuleCall) -> str | None:
        """Return the name of an operator's rule; None for an operator that only moves values."""
        rule = self.rules.get(call.outputs[0])
        if rule is None and call.outputs[0] not in self.layers and isinstance(self.default_rule, Zero):
            return _built_in_rule_name(call)
        return label(rule or self.default_rule)

    def __call__(self, op: Ops, call: RuleCall, m: Any) -> Sequence[Carried | None]:
        """Return the multiplier or relevance that each input of an operator receives from its output's, m."""
        rule = self.rules.get(call.outputs[0], self.default_rule)
        layer = self.layers.get(call.outputs[0])
        if isinstance(rule, Pass):
            return _pass_relevance(op, call, m)
        if isinstance(rule, Taylor):
            return pull_back(call.x, call, m if isinstance(m, tuple) else multiplier(op, m, call.x.y, rule))
        if isinstance(rule, GuidedRelu):
            return pull_back(call.x, call, op.Max(m, 0.0))
        if isinstance(rule, DeconvRelu):
            return [op.Max(m, 0.0)]
        if layer is not None:
            other_inputs = [None for _ in call.inputs[1:]]
            return [through_layer(op, rule, layer, m, self.bounds), *other_inputs]
        return _PULL[Kind.BILINEAR if is_linear(call) else call.rule.kind](op, call, m, rule)


def _built_in_rule_name(call: RuleCall) -> str | None:
    """Return the name of the built-in rule of an operator without a chosen one; see `_PULL`."""
    if Trait.MOVING in call.rule.traits:
        return None
    if is_product(call) and is_linear(call):
        return Pass.name if sum(call.varying) == 1 else "halves"
    kind = Kind.BILINEAR if is_linear(call) else call.rule.kind
    names = {Kind.BILINEAR: Zero, Kind.POINTWISE: Pass, Kind.LOCAL: Own}
    return names[kind].name if kind in names else "winner"


def _pass_relevance(op: Ops, call: RuleCall, m: Carried) -> Sequence[Carried | None]:
    """Pass R on unchanged, in equal shares to the varying inputs."""
    relevance = relevance_of(op, m, call.x.y)
    count = sum(call.varying)
    share = Relevance(relevance if count == 1 else op.Mul(relevance, 1 / count))
    return [share if varying else None for varying in call.varying]


def _move_back(op: Ops, call: RuleCall, m: Any) -> Sequence[Carried | None]:
    """Move a multiplier or relevance back to the original places of moved values."""
    parts = m if isinstance(m, tuple) else (m,)
    if not any(isinstance(carried, Relevance) for carried in parts):
        return pull_back(call.x, call, m)
    pairs = zip(parts, call.x.outputs, strict=True)
    tensors = tuple(relevance_of(op, carried, y) for carried, y in pairs)
    leaving = pull_back(call.x, call, tensors if len(tensors) > 1 else tensors[0])
    return [None if r is None else Relevance(r) for r in leaving]


def _linear(op: Ops, call: RuleCall, m: Any, rule: RelevanceRule) -> Sequence[Carried | None]:
    """Carry relevance back through a linear operator without weights to modify.

    Each factor of a product of two varying values gets one half.
    """
    if Trait.MOVING in call.rule.traits:
        return _move_back(op, call, m)
    if isinstance(m, Relevance) and is_product(call) and not isinstance(rule, Epsilon):
        return _pass_relevance(op, call, m)
    m = multiplier(op, m, call.x.y, rule)
    if sum(call.varying) == 1:
        return pull_back(call.x, call, m)
    pairs = zip(call.x.inputs, call.varying, strict=True)
    halves = [op.Mul(x, 0.5) if varying else x for x, varying in pairs]
    return pull_back(call.evaluate(op, halves), call, m)


def _pointwise(op: Ops, call: RuleCall, m: Carried, _: RelevanceRule) -> Sequence[Carried | None]:
    """Pass R on unchanged: multiply the multiplier by f(x)/x.

    This is f'(x) if f is homogeneous; otherwise the function returns R itself.
    """
    if any(call.varying[1:]):
        raise UnsupportedModelError("one of its parameters depends on the explained inputs")
    if isinstance(m, Relevance) or Trait.HOMOGENEOUS not in call.rule.traits:
        return _pass_relevance(op, call, m)
    return pull_back(call.x, call, m)


def _local(op: Ops, call: RuleCall, m: Any, rule: RelevanceRule) -> Sequence[Carried | None]:
    """Carry relevance back by the operator's own rule."""
    form, point = call.rule.relevance_form, call.x
    m = multiplier(op, m, point.y, rule)
    if form is None:
        return pull_back(point, call, m)
    leaving = form(op, m, list(point.inputs), point.y, **call.attributes)
    return [g if varying else None for g, varying in zip(leaving, call.varying, strict=False)]


_PULL: dict[Kind, Callable[[Ops, RuleCall, Any, RelevanceRule], Sequence[Carried | None]]] = {
    Kind.BILINEAR: _linear,
    Kind.POINTWISE: _pointwise,
    Kind.SELECTION: lambda op, call, m, _: _move_back(op, call, m),  # to the winner
    Kind.LOCAL: _local,
}
