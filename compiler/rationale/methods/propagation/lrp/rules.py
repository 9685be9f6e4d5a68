"""The rules of layer-wise relevance propagation: each calls the operator's own rule in a modified way.

Bach et al., "On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise Relevance
Propagation", 2015; Montavon et al., "Layer-Wise Relevance Propagation: An Overview", 2019.

A layer y = W·x + b hands the relevance R of y back as

    z = Σ ρ(W)·x + ρ(b),  s = R/(z + ε·sign z),  c = ρ(W)ᵀ·s,  R_x = x·c

and a rule says what stands for x, for W and for b: a table of terms. What leaves is c, a multiplier of x,
where every term reads x itself; where a term reads something else (ones, bounds), x may vanish while its
relevance does not, and R_x leaves.
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
from rationale.tables.frames import are_positions, elements_of, frame_of

STABILISER = 1e-6  # as in zennit; RelevancePropagation.jl has 1e-9 for all rules but ε
Bound = npt.ArrayLike | None


Operand = Callable[[Ops, Tensor], Tensor]
"""What stands for x: called as `operand(op, x)`."""


def itself(_: Ops, x: Tensor) -> Tensor:
    return x


def positive(op: Ops, x: Tensor) -> Tensor:
    return op.Max(x, 0.0)


def negative(op: Ops, x: Tensor) -> Tensor:
    return op.Min(x, 0.0)


def ones(op: Ops, v: Tensor) -> Tensor:
    return replace(op.constant(np.ones(v.shape, v.dtype.numpy())), rows=v.rows)


def low(op: Ops, x: Tensor) -> Tensor:
    """Stand for the least value of x, which comes with the rule or the method: never called."""
    raise NotImplementedError


def high(op: Ops, x: Tensor) -> Tensor:
    """Stand for the largest value of x, likewise."""
    raise NotImplementedError


@dataclass(frozen=True)
class Parts:
    """ρ(W) = positive·max(W, 0) + negative·min(W, 0)."""

    positive: float = 1.0
    negative: float = 1.0


Modified = Parts | Callable[[Ops, Tensor], Tensor]
"""ρ: by parts, or called as `modified(op, W)`."""
SAME, POSITIVE, NEGATIVE = Parts(), Parts(1, 0), Parts(0, 1)


def squared(op: Ops, w: Tensor) -> Tensor:
    return op.Mul(w, w)


@dataclass(frozen=True)
class Term:
    """sign·(ρ(W)·operand + ρ(b)); no bias where `bias` is None."""

    operand: Operand
    weight: Modified
    bias: Modified | None = None
    sign: float = 1.0


@dataclass(frozen=True)
class Group:
    """Terms that share a denominator: they get `share` of the relevance, of outputs of one sign if `only`."""

    terms: tuple[Term, ...]
    share: float = 1.0
    only: float = 0.0  # +1: where y > 0, −1: where y < 0


NAME = re.compile(r"[A-Za-z_][\w-]*")
RULES: dict[str, type["RelevanceRule"]] = {}
"""By the names that the command line takes: ours, and those that this process declared."""


@dataclass(frozen=True)
class RelevanceRule:
    """Base of all rules. One without groups modifies no layer: the method knows what it stands for.

    A rule of one's own is a frozen dataclass with a name and `groups`. Its fields are its parameters, in
    their order: floats are checked to be numbers of at least 0, and int, bool and str to be that; one called
    `epsilon` is the stabiliser, which `modify_denominator` adds. The command line knows it by an entry point
    of `rationale.lrp_rules`.

    Raises:
        InvalidOptionError: a subclass with the name of one of ours; a parameter of another type.
    """

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            return
        if not is_own(cls) and cls.name in RULES and is_own(RULES[cls.name]):
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
                raise InvalidOptionError(f"{who} must be {_WANTED[kind]}, not {value!r}.")

    def groups(self) -> tuple[Group, ...]:
        return ()

    def modify_denominator(self, op: Ops, z: Tensor) -> Tensor:
        """Return what relevance is divided by, of z's shape: z + ε·sign z with sign 0 = 1.

        For ε = 0 a 1 stands in place of 0, which divides what is lost anyway.
        """
        epsilon = float(getattr(self, "epsilon", STABILISER))
        if epsilon == 0:
            return op.Where(op.Equal(z, 0.0), 1.0, z)
        return op.Where(op.Less(z, 0.0), op.Sub(z, epsilon), op.Add(z, epsilon))

    def __str__(self) -> str:
        """Return the form that the command line takes, such as `gamma:0.25`, without defaults at its end.

        A call, such as `zbox(epsilon=0.1)`, where values cannot stand between colons.
        """
        given = [(f, getattr(self, f.name)) for f in fields(self) if f.init]
        while given and _equal(given[-1][1], given[-1][0].default):
            given.pop()
        texts = [_text(kind_of(f), value) for f, value in given]
        if None not in texts:
            return ":".join([self.name, *filter(None, texts)])
        named = [f"{f.name}={np.asarray(v).tolist()!r}" for f, v in given if not _equal(v, f.default)]
        return f"{self.name}({', '.join(named)})"


def label(rule: RelevanceRule) -> str:
    """Return what a rule is called where each operator's is listed, those too that nobody can choose."""
    return str(rule) if hasattr(rule, "name") else type(rule).__name__.lower()


def is_own(cls: type[RelevanceRule]) -> bool:
    """Tell whether a rule is one of Rationale's."""
    return cls.__module__ == __name__


_WANTED = {float: "a number of at least 0", int: "a whole number", bool: "True or False", str: "a text"}
_NAMED = {kind.__name__: kind for kind in _WANTED}  # under `from __future__ import annotations`


def kind_of(field: "Field[Any]") -> Any:
    """Return a field's type: float, int, bool or str, or another one, of which only the rule knows more."""
    return _NAMED.get(field.type, field.type) if isinstance(field.type, str) else field.type


def fits(kind: Any, value: Any) -> bool:
    """Tell whether a value is of that type."""
    if kind in (float, int):
        number = int | float if kind is float else int
        return isinstance(value, number) and not isinstance(value, bool)
    return kind not in _WANTED or isinstance(value, kind)


def _equal(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, bool | int | float | str) and bool(value == default))


def _text(kind: Any, value: Any) -> str | None:
    """Write a value as it stands between colons; None where it cannot stand there."""
    if kind in (float, bool):
        return str(kind(value))
    if kind is str:
        return value if NAME.fullmatch(value) else None
    array = np.asarray(value)
    return str(array.tolist()) if array.dtype.kind in "iuf" else None


def _plain(bias: Modified = SAME) -> tuple[Group, ...]:
    return (Group((Term(itself, SAME, bias),)),)


def _same_sign(bias: Modified | None, share: float = 1.0) -> Group:
    """Return what x and W contribute with equal signs: all of it positive."""
    return Group((Term(positive, POSITIVE, bias), Term(negative, NEGATIVE)), share)


def _other_sign(bias: Modified | None, share: float) -> Group:
    """Return what x and W contribute with unequal signs: all of it negative."""
    return Group((Term(positive, NEGATIVE, bias), Term(negative, POSITIVE)), share)


@dataclass(frozen=True)
class Zero(RelevanceRule):
    """LRP-0: z = W·x + b. As a multiplier it divides by nothing."""

    name: ClassVar[str] = "zero"
    epsilon: ClassVar[float] = 0.0

    def groups(self) -> tuple[Group, ...]:
        return _plain()


@dataclass(frozen=True)
class Epsilon(RelevanceRule):
    """LRP-ε: z = W·x + b. What a small z would hand back is damped; ε absorbs it."""

    epsilon: float = STABILISER
    name: ClassVar[str] = "epsilon"

    def groups(self) -> tuple[Group, ...]:
        return _plain()


@dataclass(frozen=True)
class Gamma(RelevanceRule):
    """LRP-γ: W + γ·max(W, 0), and b likewise; for x ≥ 0."""

    gamma: float = 0.25
    epsilon: float = STABILISER
    name: ClassVar[str] = "gamma"

    def groups(self) -> tuple[Group, ...]:
        more = Parts(1 + self.gamma, 1)
        return (Group((Term(itself, more, more),)),)


@dataclass(frozen=True)
class GeneralizedGamma(RelevanceRule):
    """LRP-γ for x of any sign (Andéol et al., 2021): what has the sign of y is favoured."""

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
    """LRP-z⁺: positive contributions alone, max(W, 0)·max(x, 0) + min(W, 0)·min(x, 0)."""

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
    """LRP-w²: z = ΣW² + b², whatever x is (Montavon et al., 2017); for first layers of unbounded inputs."""

    epsilon: float = STABILISER
    name: ClassVar[str] = "wsquare"

    def groups(self) -> tuple[Group, ...]:
        return (Group((Term(ones, squared, squared),)),)


@dataclass(frozen=True)
class Flat(RelevanceRule):
    """LRP-flat: every input of a neuron gets the same (Lapuschkin et al., 2019); for first layers."""

    epsilon: float = STABILISER
    name: ClassVar[str] = "flat"

    def groups(self) -> tuple[Group, ...]:
        return (Group((Term(ones, ones),)),)


@dataclass(frozen=True, eq=False)
class ZBox(RelevanceRule):
    """LRP-zB: z = W·x − max(W, 0)·low − min(W, 0)·high (Montavon et al., 2017); for first layers.

    Args:
        low, high: bounds of what the layer reads, numbers or arrays that broadcast to it. Left out: the
            method's own `low` and `high`, the bounds of the model's input, carried up to the layer.
    """

    low: Bound = None
    high: Bound = None
    epsilon: float = STABILISER
    name: ClassVar[str] = "zbox"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds("ZBox", self.low, self.high)
        bounds = [(elements_of(bound), frame_of(bound)) for bound in (self.low, self.high)]
        if not all(are_positions(labels or (frame.labels if frame else ())) for labels, frame in bounds):
            raise InvalidOptionError(
                "ZBox: low and high have names of features, but a layer may read other values. Give arrays, "
                "or the bounds of the model's input to Lrp(low=…, high=…)."
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
    """R unchanged, from each element of y to the element of x in its place."""

    name: ClassVar[str] = "pass"


@dataclass(frozen=True)
class Taylor(RelevanceRule):
    """The first-order expansion at x: R_x = x·(∂y/∂x)ᵀ·m, of whatever operator."""

    name: ClassVar[str] = "taylor"


@dataclass(frozen=True)
class Own(RelevanceRule):
    """The operator's own relevance form, as AttnLRP uses it."""

    name: ClassVar[str] = "own"


@dataclass(frozen=True)
class GuidedRelu(RelevanceRule):
    """Guided backpropagation (Springenberg et al., 2015): a gradient passes where it and x are positive."""


@dataclass(frozen=True)
class DeconvRelu(RelevanceRule):
    """Deconvnet (Zeiler and Fergus, 2014): a gradient that passes where it is positive, whatever x is."""


def check_bounds(who: str, low: Bound, high: Bound) -> None:
    """Raise InvalidOptionError unless both are given or none, and low ≤ high everywhere."""
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
