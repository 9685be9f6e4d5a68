"""The rules of layer-wise relevance propagation: each calls the operator's own rule in a modified way.

Bach et al., "On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise Relevance
Propagation", 2015; Montavon et al., "Layer-Wise Relevance Propagation: An Overview", 2019.

A layer y = W·x + b maps the relevance R of y to that of x by

    z = Σ ρ(W)·x + ρ(b),  s = R/(z + ε·sign z),  c = ρ(W)ᵀ·s,  R_x = x·c

A rule replaces x, W and b: it is a table of terms. The layer returns c, a multiplier of x, if every term
reads x itself. If a term reads something else (ones, bounds), x may be 0 although its relevance is not, and
the layer returns R_x.
"""

import re
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rationale.errors import InvalidOptionError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.tables.frames import are_default_labels, frame_of, row_labels

STABILISER = 1e-6  # as in zennit; RelevancePropagation.jl has 1e-9 for all rules but ε
Bound = npt.ArrayLike | None


Operand = Callable[[Ops, Tensor], Tensor]
"""The replacement of x: called as `operand(op, x)`."""


def itself(_: Ops, x: Tensor) -> Tensor:
    return x


def positive(op: Ops, x: Tensor) -> Tensor:
    return op.Max(x, 0.0)


def negative(op: Ops, x: Tensor) -> Tensor:
    return op.Min(x, 0.0)


def ones(op: Ops, v: Tensor) -> Tensor:
    return replace(op.constant(np.ones(v.shape, v.dtype.numpy())), rows=v.rows)


def low(op: Ops, x: Tensor) -> Tensor:
    """Mark the least value of x, which the rule or the method provides; never called."""
    raise NotImplementedError


def high(op: Ops, x: Tensor) -> Tensor:
    """Mark the largest value of x, which the rule or the method provides; never called."""
    raise NotImplementedError


@dataclass(frozen=True)
class Parts:
    """A modification ρ(W) = positive·max(W, 0) + negative·min(W, 0)."""

    positive: float = 1.0
    negative: float = 1.0


Modified = Parts | Callable[[Ops, Tensor], Tensor]
"""The modification ρ of weights: parts, or a function called as `modified(op, W)`."""
SAME, POSITIVE, NEGATIVE = Parts(), Parts(1, 0), Parts(0, 1)


def squared(op: Ops, w: Tensor) -> Tensor:
    return op.Mul(w, w)


@dataclass(frozen=True)
class Term:
    """A term sign·(ρ(W)·operand + ρ(b)); without the bias if `bias` is None."""

    operand: Operand
    weight: Modified
    bias: Modified | None = None
    sign: float = 1.0


@dataclass(frozen=True)
class Group:
    """Terms with a common denominator: with `share` of the relevance, for outputs of one sign if `only`."""

    terms: tuple[Term, ...]
    share: float = 1.0
    only: float = 0.0  # +1: only if y > 0, −1: only if y < 0


NAME = re.compile(r"[A-Za-z_][\w-]*")
RULES: dict[str, type["RelevanceRule"]] = {}
"""Rules by their name on the command line: built-in rules, and those that this process declared."""


@dataclass(frozen=True)
class RelevanceRule:
    """The base of all rules. A rule without groups modifies no layer: the methods themselves implement it.

    A custom rule is a frozen dataclass with a name and `groups`. Its fields are its parameters, in order: a
    float must be a number of at least 0, and an int, bool or str must have that type. A field named `epsilon`
    is the stabiliser that `modify_denominator` adds. An entry point of `rationale.lrp_rules` makes the rule
    known to the command line.

    Raises:
        InvalidOptionError: if a subclass has the name of a built-in rule, or a parameter is invalid.
    """

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            return
        if not is_built_in(cls) and cls.name in RULES and is_built_in(RULES[cls.name]):
            raise InvalidOptionError(
                f"class {cls.__qualname__}: one of Rationale's own rules has the name {cls.name!r}. Choose "
                "another."
            )
        RULES[cls.name] = cls

    def __post_init__(self) -> None:
        for f in fields(self):
            value, kind = getattr(self, f.name), kind_of(f)
            if not fits(kind, value) or (kind is float and not 0 <= value < np.inf):
                who = f"{type(self).__name__}: {f.name}"
                raise InvalidOptionError(f"{who} must be {_TYPE_NAMES[kind]}, not {value!r}.")

    def groups(self) -> tuple[Group, ...]:
        return ()

    def modify_denominator(self, op: Ops, z: Tensor) -> Tensor:
        """Return the denominator of the relevance, in z's shape: z + ε·sign z with sign 0 = 1.

        If ε = 0, a 1 replaces 0; relevance is lost there anyway.
        """
        epsilon = float(getattr(self, "epsilon", STABILISER))
        if epsilon == 0:
            return op.Where(op.Equal(z, 0.0), 1.0, z)
        return op.Where(op.Less(z, 0.0), op.Sub(z, epsilon), op.Add(z, epsilon))

    def __str__(self) -> str:
        """Return the command line's form, such as `gamma:0.25`, without defaults at its end.

        If a value cannot be written between colons, the form is a call, such as `zbox(epsilon=0.1)`.
        """
        parameters = [(f, getattr(self, f.name)) for f in fields(self) if f.init]
        while parameters and _equal(parameters[-1][1], parameters[-1][0].default):
            parameters.pop()
        texts = [_text(kind_of(f), value) for f, value in parameters]
        if None not in texts:
            return ":".join([self.name, *filter(None, texts)])
        named = [f"{f.name}={np.asarray(v).tolist()!r}" for f, v in parameters if not _equal(v, f.default)]
        return f"{self.name}({', '.join(named)})"


def label(rule: RelevanceRule) -> str:
    """Return a rule's name for lists of operators; rules that users cannot choose have one too."""
    return str(rule) if hasattr(rule, "name") else type(rule).__name__.lower()


def is_built_in(cls: type[RelevanceRule]) -> bool:
    """Tell whether a rule is built in."""
    return cls.__module__ == __name__


_TYPE_NAMES = {float: "a number of at least 0", int: "a whole number", bool: "True or False", str: "a text"}
_TYPE_BY_NAME = {kind.__name__: kind for kind in _TYPE_NAMES}  # under `from __future__ import annotations`


def kind_of(field: "Field[Any]") -> Any:
    """Return a field's type: float, int, bool or str, or another type that only the rule checks."""
    return _TYPE_BY_NAME.get(field.type, field.type) if isinstance(field.type, str) else field.type


def fits(kind: Any, value: Any) -> bool:
    """Tell whether a value is of that type."""
    if kind in (float, int):
        number = int | float if kind is float else int
        return isinstance(value, number) and not isinstance(value, bool)
    return kind not in _TYPE_NAMES or isinstance(value, kind)


def _equal(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, bool | int | float | str) and bool(value == default))


def _text(kind: Any, value: Any) -> str | None:
    """Write a value for a place between colons; return None if it cannot be written there."""
    if kind in (float, bool):
        return str(kind(value))
    if kind is str:
        return value if NAME.fullmatch(value) else None
    array = np.asarray(value)
    return str(array.tolist()) if array.dtype.kind in "iuf" else None


def _plain(bias: Modified = SAME) -> tuple[Group, ...]:
    return (Group((Term(itself, SAME, bias),)),)


def _same_sign(bias: Modified | None, share: float = 1.0) -> Group:
    """Return the positive contributions: those of x and W with equal signs."""
    return Group((Term(positive, POSITIVE, bias), Term(negative, NEGATIVE)), share)


def _other_sign(bias: Modified | None, share: float) -> Group:
    """Return the negative contributions: those of x and W with unequal signs."""
    return Group((Term(positive, NEGATIVE, bias), Term(negative, POSITIVE)), share)


@dataclass(frozen=True)
class Zero(RelevanceRule):
    """LRP-0: z = W·x + b. In multiplier form it needs no division."""

    name: ClassVar[str] = "zero"
    epsilon: ClassVar[float] = 0.0

    def groups(self) -> tuple[Group, ...]:
        return _plain()


@dataclass(frozen=True)
class Epsilon(RelevanceRule):
    """LRP-ε: z = W·x + b. ε absorbs relevance if z is small."""

    epsilon: float = STABILISER
    name: ClassVar[str] = "epsilon"

    def groups(self) -> tuple[Group, ...]:
        return _plain()


@dataclass(frozen=True)
class Gamma(RelevanceRule):
    """LRP-γ: W + γ·max(W, 0), and the same for b; for x ≥ 0."""

    gamma: float = 0.25
    epsilon: float = STABILISER
    name: ClassVar[str] = "gamma"

    def groups(self) -> tuple[Group, ...]:
        more = Parts(1 + self.gamma, 1)
        return (Group((Term(itself, more, more),)),)


@dataclass(frozen=True)
class GeneralizedGamma(RelevanceRule):
    """LRP-γ for x of any sign (Andéol et al., 2021): it favours contributions with the sign of y."""

    gamma: float = 0.25
    epsilon: float = STABILISER
    name: ClassVar[str] = "generalizedgamma"

    def groups(self) -> tuple[Group, ...]:
        up, down = Parts(1 + self.gamma, 1), Parts(1, 1 + self.gamma)
        return (
            Group((Term(positive, up, up), Term(negative, down)), only=1),
            Group((Term(positive, down, down), Term(negative, up)), only=-1),
        )


@dataclass(frozen=True)
class ZPlus(RelevanceRule):
    """LRP-z⁺: only positive contributions, max(W, 0)·max(x, 0) + min(W, 0)·min(x, 0)."""

    epsilon: float = STABILISER
    name: ClassVar[str] = "zplus"

    def groups(self) -> tuple[Group, ...]:
        return (_same_sign(POSITIVE),)


@dataclass(frozen=True)
class AlphaBeta(RelevanceRule):
    """LRP-αβ: α shares of the relevance to positive contributions, −β to negative ones; α − β = 1."""

    alpha: float = 2.0
    beta: float = 1.0
    epsilon: float = STABILISER
    name: ClassVar[str] = "alphabeta"

    def __post_init__(self) -> None:
        super().__post_init__()
        if abs(self.alpha - self.beta - 1) > 1e-9:
            raise InvalidOptionError(
                f"AlphaBeta: α − β must be 1, or relevance is lost: {self.alpha} − {self.beta} is not."
            )

    def groups(self) -> tuple[Group, ...]:
        negative = (_other_sign(NEGATIVE, -self.beta),) if self.beta else ()
        return (_same_sign(POSITIVE, self.alpha), *negative)


@dataclass(frozen=True)
class WSquare(RelevanceRule):
    """LRP-w²: z = ΣW² + b², for any x (Montavon et al., 2017); for first layers of unbounded inputs."""

    epsilon: float = STABILISER
    name: ClassVar[str] = "wsquare"

    def groups(self) -> tuple[Group, ...]:
        return (Group((Term(ones, squared, squared),)),)


@dataclass(frozen=True)
class Flat(RelevanceRule):
    """LRP-flat: an equal share for every input of a neuron (Lapuschkin et al., 2019); for first layers."""

    epsilon: float = STABILISER
    name: ClassVar[str] = "flat"

    def groups(self) -> tuple[Group, ...]:
        return (Group((Term(ones, ones),)),)


@dataclass(frozen=True, eq=False)
class ZBox(RelevanceRule):
    """LRP-zB: z = W·x − max(W, 0)·low − min(W, 0)·high (Montavon et al., 2017); for first layers.

    Args:
        low: the least values of the layer's input, a number or an array that broadcasts to it. By default
            the method's own, the bounds of the model's input, mapped to the layer.
        high: its largest values, likewise.
    """

    low: Bound = None
    high: Bound = None
    epsilon: float = STABILISER
    name: ClassVar[str] = "zbox"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds("ZBox", self.low, self.high)
        bounds = [(row_labels(bound), frame_of(bound)) for bound in (self.low, self.high)]
        if not all(are_default_labels(labels or (frame.labels if frame else ())) for labels, frame in bounds):
            raise InvalidOptionError(
                "ZBox: low and high name features, but a layer may read other values. Give arrays, or the "
                "bounds of the model's input to Lrp(low=…, high=…)."
            )

    def groups(self) -> tuple[Group, ...]:
        terms = (
            Term(itself, SAME),
            Term(low, POSITIVE, sign=-1),
            Term(high, NEGATIVE, sign=-1),
        )
        return (Group(terms),)


@dataclass(frozen=True)
class Pass(RelevanceRule):
    """The rule that passes R unchanged, from each element of y to the element of x at its index."""

    name: ClassVar[str] = "pass"


@dataclass(frozen=True)
class Taylor(RelevanceRule):
    """The first-order expansion at x: R_x = x·(∂y/∂x)ᵀ·m, for any operator."""

    name: ClassVar[str] = "taylor"


@dataclass(frozen=True)
class Own(RelevanceRule):
    """The operator's own relevance form, as AttnLRP uses it."""

    name: ClassVar[str] = "own"


@dataclass(frozen=True)
class GuidedRelu(RelevanceRule):
    """Guided backpropagation (Springenberg et al., 2015): a gradient passes if it and x are positive."""


@dataclass(frozen=True)
class DeconvRelu(RelevanceRule):
    """Deconvnet (Zeiler and Fergus, 2014): a gradient passes if it is positive, for any x."""


def check_bounds(who: str, low: Bound, high: Bound) -> None:
    """Raise InvalidOptionError unless both bounds are None, or low ≤ high everywhere."""
    if low is None and high is None:
        return
    try:
        bounds = [np.asarray(b, np.float64) for b in (low, high)]
        fits = bool((bounds[0] <= bounds[1]).all()) and all(np.isfinite(b).all() for b in bounds)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise InvalidOptionError(
            f"{who}: low and high must be given together, as finite numbers with low ≤ high, the smallest "
            f"and largest values an input may take: not {low!r} and {high!r}."
        )
