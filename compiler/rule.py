"""An operator is declared once: its value, its pullback, its kind.

    @rule("Sigmoid", kind=Kind.POINTWISE)
    def sigmoid(op, x):
        y = op.Sigmoid(x)
        def sigmoid_pullback(m):
            return op.Mul(m, op.Mul(y, op.Sub(1.0, y)))
        return y, sigmoid_pullback

A rule is called with the operator's inputs as tensors and its attributes as keywords; defaults stand in
its signature. It returns `y, pullback`; an operator of several inputs returns a tuple of pullbacks, one
for each input, None for those that carry no attribution (axes, shapes, weights whose adjoint would mix
rows). An operator of several outputs returns a tuple for y, and its pullbacks take a tuple.
The value may differ from the operator's own node where the pullback needs more of it (MaxPool's winners).

Methods never know operators. They know kinds (see `Kind`), and choose where a rule is called.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any

from compiler.graph import Ops
from compiler.tensor import Tensor

Pullback = Callable[[Any], Tensor]
Evaluation = tuple[Any, Any]


class Kind(StrEnum):
    """How an operator's output depends on its inputs; methods dispatch on this and on nothing else."""

    BILINEAR = "bilinear"  # linear in each input; jointly linear ones (Add, Concat) included
    POINTWISE = "pointwise"  # one varying input, element by element
    SELECTION = "selection"  # each output is one of the inputs: its pullback is a `Selection`
    LOCAL = "local"  # anything else; DeepLIFT needs a rule of its own (`@rule.deeplift`)


@dataclass(frozen=True)
class Selection:
    """What a selecting operator picked: `scatter(v, winners)` sends v back to where it came from."""

    winners: Tensor
    scatter: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, m: Tensor) -> Tensor:
        return self.scatter(m, self.winners)


class Rule:
    """One operator's entry in the table: see the module."""

    def __init__(self, op_type: str, domain: str, kind: Kind, forward: Callable[..., Evaluation]) -> None:
        self.op_type = op_type
        self.domain = domain
        self.kind = kind
        self.forward = forward
        self.secant_form: Callable[..., Tensor] | None = None
        self.deeplift_form: Callable[..., Any] | None = None

    def __call__(self, op: Ops, *inputs: Tensor | None, **attributes: Any) -> Evaluation:
        return self.forward(op, *inputs, **attributes)

    def secant(self, form: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Decorator: (f(x) − f(r))/(x − r) in a form that does not cancel.

        Called as `form(op, x, r, y, y_r, *other_inputs, **attributes)`.
        """
        self.secant_form = form
        return form

    def deeplift(self, form: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the operator's own complete DeepLIFT rule.

        Called as `form(op, m, xs, rs, y, y_r, **attributes)` with the inputs at x and at r; returns the
        multiplier of each input.
        """
        self.deeplift_form = form
        return form


_RULES: dict[tuple[str, str], Rule] = {}


def rule(op_type: str, *, kind: Kind, domain: str = "") -> Callable[[Callable[..., Evaluation]], Rule]:
    """Declares the rule of an operator. The newest declaration wins."""

    def declare(forward: Callable[..., Evaluation]) -> Rule:
        declared = Rule(op_type, domain, kind, forward)
        _RULES[domain, op_type] = declared
        return declared

    return declare


def find_rule(op_type: str, domain: str = "") -> Rule | None:
    _fill()
    return _RULES.get((domain, op_type))


def all_rules() -> Iterator[Rule]:
    _fill()
    yield from (_RULES[key] for key in sorted(_RULES))


def _fill() -> None:
    """Importing the rules declares them."""
    import_module("compiler.rules")
