"""Layer-wise relevance propagation for transformers: AttnLRP and CP-LRP.

Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers", 2024 (arXiv
2402.05602); Ali et al., "XAI for Transformers: Better Explanations through Conservative Propagation", 2022.
Both are the walk of `Lrp` with the ε-rule for every layer, and these rules:

    softmax           R_i = z_i·(R_i − p_i·Σ R_j); CP-LRP: none, attention weights are constants
    product           half of the relevance to each of two varying factors; 2z + ε if the product sums
    gate f(g)·u       half to each, like any product; CP-LRP: all to u, f(g) is a constant
    normalisation     its deviation is a constant; mean, scale and offset by the ε-rule
    activation        R unchanged
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.methods.engine import Gap
from rationale.methods.environment import Calls
from rationale.methods.propagation.backward import Pull
from rationale.methods.propagation.lrp.attention import (
    calls_reaching,
    detach,
    free_names,
    hold_constants,
    holds_attention,
    holds_deviations,
    holds_gates,
    join_activations,
    no_rule_error,
)
from rationale.methods.propagation.lrp.layers import LinearLayer, is_linear, is_product, join_affine_maps
from rationale.methods.propagation.lrp.lrp import RelevanceMethod, RelevancePull
from rationale.methods.propagation.lrp.modified import InputBounds
from rationale.methods.propagation.lrp.rules import STABILISER, Epsilon, Zero
from rationale.rules.rule import Kind, Trait


@dataclass(frozen=True)
class AttnLrp(RelevanceMethod):
    """Relevance of the inputs for an output of a transformer, through its attention.

    Args:
        epsilon: number added to denominators, with their sign; it absorbs relevance if they are small.

    Raises:
        InvalidOptionError: if epsilon is not a number of at least 0.
    """

    epsilon: float = STABILISER

    name: ClassVar[str] = "attnlrp"
    gap: ClassVar[Gap | None] = Gap.ABSORBED

    def __post_init__(self) -> None:
        Epsilon(self.epsilon)  # raises the error

    @property
    def options(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon}

    def plan(self, op: Ops, calls: Calls, keep: Collection[str] = ()) -> tuple[Calls, Pull]:
        calls = hold_constants(calls)
        read = self.read(join_activations(detach(calls, holds_deviations(calls))))
        _demand_rules(read)
        joined, layers = join_affine_maps(op, read)
        epsilons = _stabilisers(joined, layers, self.epsilon)
        rules = {name: Epsilon(epsilon) for name, epsilon in epsilons.items()}
        return joined, RelevancePull(layers, rules, Zero(), InputBounds(joined, None, None))

    def read(self, calls: Calls) -> Calls:
        """Return the calls through which the walk carries relevance."""
        return calls


@dataclass(frozen=True)
class CpLrp(AttnLrp):
    """AttnLRP with attention weights and gates held constant: no relevance goes through them."""

    name: ClassVar[str] = "cplrp"

    def read(self, calls: Calls) -> Calls:
        detached = detach(detach(calls, holds_attention(calls)), holds_gates(calls))
        remaining = calls_reaching(
            [c for c in detached if Trait.SHARING not in c.rule.traits], calls[-1].outputs
        )
        _demand_reached(calls, remaining)
        return remaining


def _stabilisers(calls: Calls, layers: Mapping[str, LinearLayer], epsilon: float) -> dict[str, float]:
    """Return ε by output, for layers with weights, normalisations that add an offset, and sums.

    The sums are products that sum, such as MatMul. With y + ε/2 and half of the relevance, both factors have
    2y + ε.
    """
    epsilons = {name: epsilon for name, layer in layers.items() if layer.weights is not None}
    for call in calls:
        name, traits = call.outputs[0], call.rule.traits
        if Trait.CENTRING in traits:
            epsilons[name] = epsilon
        elif name not in layers and Trait.PRODUCT in traits and not is_product(call):
            epsilons[name] = epsilon / sum(call.varying)
    return epsilons


def _demand_rules(calls: Calls) -> None:
    """Raise UnsupportedModelError that lists all operators that are not linear and have no rule."""
    missing = [
        call
        for call in calls
        if call.rule.kind is Kind.LOCAL and not is_linear(call) and not call.rule.has_relevance
    ]
    if missing:
        raise no_rule_error("AttnLRP", missing, calls, "Take deepshap, or lrp with a rule of your choice.")


def _demand_reached(calls: Calls, remaining: Calls) -> None:
    """Raise UnsupportedModelError if an explained input reaches the output only through constants."""
    lost = sorted(free_names(calls) - free_names(remaining))
    if lost:
        raise UnsupportedModelError(
            f"CP-LRP passes no relevance through a Softmax or a gate, and {', '.join(map(repr, lost))} "
            "reaches the explained output only through these. Explain the tensor before them (--output), "
            "or use AttnLRP."
        )
