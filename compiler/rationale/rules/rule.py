"""The declaration of an operator's rule: its value, its pullback, its kind.

    @rule("Sigmoid", kind=Kind.POINTWISE)
    def sigmoid(op, x):
        y = op.Sigmoid(x)
        def sigmoid_pullback(m):
            return op.Mul(m, op.Mul(y, op.Sub(1.0, y)))
        return y, sigmoid_pullback

A rule is called with the operator's inputs as tensors and its attributes as keywords; its signature has the
defaults. It returns `y, pullback`; an operator of several inputs returns a tuple of pullbacks, one per
input, None for inputs that carry no attribution (axes, shapes, weights whose adjoint would mix rows). An
operator of several outputs returns a tuple for y, and its pullbacks take a tuple. The value may differ from
the operator's own node if the pullback needs more of it (MaxPool's winners).

Methods use a rule's kind, its traits, and its optional forms besides pullbacks (`deeplift`, which `secant`
makes for a function of one value; `relevance`; `layer`). A method chooses the points at which it calls a
rule. It does not depend on the operator's name: only messages and LRP's selectors contain names. A rule for
an operator that ONNX does not know also declares the value's shape (`shape`), unless it is elementwise.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from rationale.extensions import RULES, InstalledExtension, extensions_of
from rationale.graph.batching import elementwise
from rationale.graph.ops import Ops
from rationale.graph.shapes import ShapeForm, broadcast_shape, declare_shape, is_custom_domain
from rationale.graph.tensor import Tensor
from rationale.schema.manifest import Extension

Pullback = Callable[[Any], Tensor]
Evaluation = tuple[Any, Any]


class Kind(StrEnum):
    """The dependence of an operator's output on its inputs; it determines a method's default treatment."""

    BILINEAR = "bilinear"  # linear in each input; includes jointly linear operators (Add, Concat)
    POINTWISE = "pointwise"  # one varying input, element by element
    SELECTION = "selection"  # each output is one of the inputs: its pullback is a `Selection`
    LOCAL = "local"  # anything else; DeepLIFT needs a rule of its own (`@rule.deeplift`)


class Trait(StrEnum):
    """A further property of an operator, for which a method treats it differently, or faster."""

    MOVING = "moving"  # bilinear: each element of y is a copy of one of x; values do not choose which
    ELEMENTWISE = "elementwise"  # each element of y depends on one element of each input; all pointwise rules
    PRODUCT = "product"  # y is a product or quotient of two inputs, or a sum of such
    AVERAGING = "averaging"  # bilinear: y is a sum over x with equal positive weights
    LENGTH = "length"  # local: y is a norm of x, with f(t·x) = |t|·f(x)
    NORMALISING = "normalising"  # bilinear: an affine map per channel that is part of the layer beside it
    HOMOGENEOUS = "homogeneous"  # pointwise: f(t·x) = t·f(x) for t > 0, so f(x) = f'(x)·x
    CONSERVING = "conserving"  # local: its relevance form returns all of the relevance
    EXPANDED = "expanded"  # local: its relevance form is its first-order expansion at x, so its pullback
    NONNEGATIVE = "nonnegative"  # y ≥ 0 for any x
    RISING = "rising"  # pointwise: if x rises, y does not fall
    SMOOTH = "smooth"  # pointwise: without kinks, steps or poles, on a scale of about 1
    LINEAR_IN_FIRST = "linear in first"  # local, but linear if only its first input varies
    SHARING = "sharing"  # local: y are shares of 1, the weights of the average that follows
    SPATIAL_MEAN = "spatial mean"  # bilinear: a mean over places, the same for every channel
    DISCRETE = "discrete"  # takes or returns conditions or integers, and has a rule for them
    CHOOSING = "choosing"  # its first input is a condition that only chooses among the others
    MASKED = "masked"  # selection: may choose among values that are −inf at x and at r
    CENTRING = "centring"  # local: subtracts a mean, may add an offset; linear at a constant deviation


@dataclass(frozen=True)
class Weights:
    """The parameters of a layer y = linear(x, weight) + bias, as `Rule.layer` declares them.

    Attributes:
        bias: broadcasts against y; None without a bias.
        axis: the axis of x and of y on which the channels lie.
        inputs, outputs: the shapes in which a vector with one number per channel of x, or of y, is a
            factor of the weight; None if there is no such shape.
        attributes: replacements of the node's own attributes in the linear call.
        placewise: whether each place (beyond the channel axis) is treated independently, in the same way.
    """

    weight: Tensor
    bias: Tensor | None
    axis: int
    inputs: tuple[int, ...] | None
    outputs: tuple[int, ...] | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    placewise: bool = False


@dataclass(frozen=True)
class Selection:
    """A selecting operator's choice: `scatter(v, winners)` sends v back to the selected places."""

    winners: Tensor
    scatter: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, m: Tensor) -> Tensor:
        return self.scatter(m, self.winners)


class Rule:
    """One operator's entry in the table of rules: see the module."""

    def __init__(
        self,
        op_type: str,
        domain: str,
        kind: Kind,
        forward: Callable[..., Evaluation],
        traits: frozenset[Trait] = frozenset(),
    ) -> None:
        self.op_type = op_type
        self.domain = domain
        self.kind = kind
        self.forward = forward
        self.traits = traits | {Trait.ELEMENTWISE} if kind is Kind.POINTWISE else traits
        self.deeplift_form: Callable[..., Any] | None = None
        self.layer_form: Callable[..., Weights | None] | None = None
        self.relevance_form: Callable[..., Any] | None = None

    def __call__(self, op: Ops, *inputs: Tensor | None, **attributes: Any) -> Evaluation:
        return self.forward(op, *inputs, **attributes)

    @property
    def has_relevance(self) -> bool:
        """True if it has its own rule of layer-wise relevance propagation."""
        return self.relevance_form is not None or Trait.EXPANDED in self.traits

    def deeplift(self, form: Callable[..., Any]) -> Callable[..., Any]:
        """Declare the operator's own complete DeepLIFT rule, in place of its kind's; a decorator.

        It is called as `form(op, m, xs, rs, y, y_r, **attributes)` with the inputs at x and at r; it returns
        the multiplier of each input. Inputs after the last of these may not vary. If the operator has several
        outputs, m has all and y the first.
        """
        self.deeplift_form = form
        return form

    def secant(self, form: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Declare the DeepLIFT rule of one value by (f(x) − f(r))/(x − r) in a form that does not cancel.

        A decorator. The form is called as `form(op, x, r, y, y_r, *other_inputs, **attributes)`.
        """

        def multiplier(
            op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor, **attributes: Any
        ) -> tuple[Tensor]:
            return (op.Mul(m, form(op, xs[0], rs[0], y, y_r, *xs[1:], **attributes)),)

        self.deeplift_form = multiplier
        return form

    def shape(self, form: ShapeForm) -> ShapeForm:
        """Declare the shape of the value if ONNX does not know the operator; a decorator.

        The form is called as `form(*shapes, **attributes)`, with a tuple of integers for each input, None for
        an omitted one, and the attributes that it names as keywords. It returns a tuple, or a list of tuples
        for several outputs. Their type is that of the first float input. Elementwise operators need no form:
        their inputs broadcast.
        """
        declare_shape(self.op_type, self.domain, form)
        return form

    def layer(self, form: Callable[..., Weights | None]) -> Callable[..., Weights | None]:
        """Declare that the inputs are x, weight and bias, and `call(x, weight, None)` is linear; a decorator.

        The form is called as `form(op, weight, bias, **attributes)`; it returns None if the node is used
        otherwise.
        """
        self.layer_form = form
        return form

    def relevance(self, form: Callable[..., Any]) -> Callable[..., Any]:
        """Declare the operator's own rule of layer-wise relevance propagation, as a multiplier; a decorator.

        The form is called as `form(op, m, xs, y, **attributes)`; it returns the multiplier of each input.
        """
        self.relevance_form = form
        return form


_RULES: dict[tuple[str, str], Rule] = {}


def rule(
    op_type: str, *, kind: Kind | str, domain: str = "", traits: Iterable[Trait | str] = ()
) -> Callable[[Callable[..., Evaluation]], Rule]:
    """Declare the rule of an operator, or of a model's function of that name. The newest declaration wins.

    Args:
        op_type: the operator's name on nodes, in `domain`.
        kind: the dependence of the output on the inputs; it determines a method's default treatment.
        traits: further properties of the operator.

    Returns:
        A decorator that makes a `Rule` of a function `forward(op, *inputs, **attributes)`, which returns the
        value and its pullback. Its methods declare further forms: `secant`, `deeplift`, `layer`,
        `relevance`, `shape`.

    Raises:
        ValueError: if a kind or trait does not exist.
    """
    kind, known_traits = Kind(kind), frozenset(map(Trait, traits))

    def declare(forward: Callable[..., Evaluation]) -> Rule:
        declared = Rule(op_type, domain, kind, forward, known_traits)
        _RULES[domain, op_type] = declared
        if Trait.ELEMENTWISE in declared.traits:
            elementwise(op_type, domain=domain)
            if is_custom_domain(domain):
                declare_shape(op_type, domain, broadcast_shape)
        return declared

    return declare


def local(
    op_type: str, *, domain: str = "", traits: Iterable[Trait] = ()
) -> Callable[[Callable[..., Tensor]], Rule]:
    """Declare a LOCAL operator of one varying input by its multiplier between x and r.

    The form is called as `form(op, m, x, r, y, y_r, *parameters, **attributes)`. The value is the operator's
    own node; the pullback is the multiplier at r = x, for which a form may have a shorter way.
    """

    def declare(form: Callable[..., Tensor]) -> Rule:
        def forward(op: Ops, x: Tensor, *parameters: Tensor | None, **attributes: Any) -> Evaluation:
            y = op.emit(op_type, (x, *parameters), attributes, domain=domain)[0]

            def pullback(m: Tensor) -> Tensor:
                return form(op, m, x, x, y, y, *parameters, **attributes)

            pullback.__name__ = f"{op_type.lower()}_pullback"
            return y, pullback

        def deeplift(
            op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor, **attributes: Any
        ) -> tuple[Tensor]:
            return (form(op, m, xs[0], rs[0], y, y_r, *xs[1:], **attributes),)

        forward.__doc__, forward.__module__ = form.__doc__, form.__module__
        declared = rule(op_type, kind=Kind.LOCAL, domain=domain, traits=traits)(forward)
        declared.deeplift(deeplift)
        return declared

    return declare


def find_rule(op_type: str, domain: str = "") -> Rule | None:
    return _RULES.get((domain, op_type))


def all_rules() -> Iterator[Rule]:
    yield from (_RULES[key] for key in sorted(_RULES))


@cache
def rule_packages() -> tuple[InstalledExtension, ...]:
    """Return the entry points that name modules with rules, in the order of their packages."""
    return tuple(sorted(extensions_of(RULES), key=lambda p: (p.recorded.package or "", p.point.module)))


def import_packages() -> None:
    """Import the modules, so that their rules are declared.

    Raises:
        ExtensionError: if a module cannot be imported; the message names its package.
    """
    for package in rule_packages():
        package.load()


def package_of(rule: Rule) -> Extension | None:
    """Return the extension that declares a rule; None for Rationale's own rules, and those of scripts."""
    parts = rule.forward.__module__.split(".")
    shared = {p: _shared_names(p.point.module.split("."), parts) for p in rule_packages()}
    nearest = max(shared, key=shared.__getitem__, default=None)
    return nearest.recorded if nearest is not None and shared[nearest] else None


def _shared_names(a: list[str], b: list[str]) -> int:
    """Return the number of leading names that two modules' paths share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
