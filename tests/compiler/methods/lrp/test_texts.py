"""Rules as texts, in both spellings: what is read, written and refused."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from rationale.errors import InvalidOptionError
from rationale.methods.propagation.lrp import rules as lrp
from rationale.methods.propagation.lrp.rules import RULES, Group, RelevanceRule, Term, itself, squared
from rationale.methods.propagation.lrp.texts import parse_choice, parse_rule


@pytest.fixture(autouse=True)
def typed() -> Iterator[type[RelevanceRule]]:
    """A rule with parameters of every type; forgotten afterwards."""
    before = dict(RULES)

    @dataclass(frozen=True)
    class Typed(RelevanceRule):
        scale: float
        times: int = 1
        exact: bool = False
        mode: "str" = "mean"
        bounds: list[float] | None = None
        epsilon: "float" = field(default=1e-6, kw_only=True)
        name: ClassVar[str] = "typed"

        def groups(self) -> tuple[Group, ...]:
            return (Group((Term(itself, squared),)),)

    yield Typed
    RULES.clear()
    RULES.update(before)


SAME = [
    ("gamma:0.25", "gamma(0.25)", lrp.Gamma(0.25)),
    ("gamma:0.5:0.001", "gamma(epsilon=1e-3, gamma=0.5)", lrp.Gamma(0.5, 1e-3)),
    ("zplus", "zplus()", lrp.ZPlus()),
    ("alphabeta:2:1", " alphabeta(2, beta=1) ", lrp.AlphaBeta(2, 1)),
    ("epsilon:1e-9", "epsilon(\n    1e-9,\n)", lrp.Epsilon(1e-9)),
]


@pytest.mark.parametrize(("colons", "call", "rule"), SAME)
def test_two_spellings_of_one_rule(colons: str, call: str, rule: RelevanceRule) -> None:
    assert parse_rule(colons) == parse_rule(call) == rule
    assert str(parse_rule(colons)) == str(parse_rule(call))


def test_bounds_in_both_spellings() -> None:
    boxes = [
        parse_rule("zbox:-1:[1.0, 2.5]:0.001"),
        parse_rule("zbox(low=-1, high=[1.0, 2.5], epsilon=1e-3)"),
    ]
    for box in boxes:
        assert isinstance(box, lrp.ZBox)
        assert (box.low, box.high, box.epsilon) == (-1.0, [1.0, 2.5], 1e-3)
        assert str(box) == "zbox:-1.0:[1.0, 2.5]:0.001"


CHOICES = [
    ("first=zbox(low=-1, high=1)", "first", "zbox:-1.0:1.0"),
    ("name:a=b(c)=epsilon(0.1)", "name:a=b(c)", "epsilon:0.1"),
    ("name:a=b=gamma:0.5", "name:a=b", "gamma:0.5"),
    ("last 2 = gamma(gamma=0.5)", "last 2", "gamma:0.5"),
    ("Conv=typed(2, mode='a=b:c')", "Conv", "typed(scale=2.0, mode='a=b:c')"),
]


@pytest.mark.parametrize(("text", "selector", "rule"), CHOICES)
def test_where_a_selector_ends(text: str, selector: str, rule: str) -> None:
    choice = parse_choice(text)
    assert (choice[0], str(choice[1])) == (selector, rule)


WRITTEN = [
    ("typed:2", {"scale": 2.0}),
    ("typed:2:3:true:sum", {"scale": 2.0, "times": 3, "exact": True, "mode": "sum"}),
    ("typed:2:3:FALSE:sum:[0, 1.5]", {"times": 3, "exact": False, "bounds": [0, 1.5]}),
    ("typed(2, 3, True, 'a, b')", {"scale": 2.0, "times": 3, "exact": True, "mode": "a, b"}),
    ("typed(scale=2, bounds=[0, 1.5], epsilon=0.1)", {"scale": 2.0, "bounds": [0, 1.5], "epsilon": 0.1}),
    ("typed:2:1:false:mean:5:0.5", {"bounds": 5.0, "epsilon": 0.5}),
]


@pytest.mark.parametrize(("text", "parameters"), WRITTEN)
def test_parameters_have_their_types_and_are_written_as_they_are_read(
    text: str, parameters: dict[str, Any]
) -> None:
    rule = parse_rule(text)
    assert {name: getattr(rule, name) for name in parameters} == parameters
    assert type(getattr(rule, "scale")) is float  # noqa: B009  # the base class has none
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lrp.ZBox(epsilon=0.1), "zbox(epsilon=0.1)"),
        (lrp.ZBox(np.array([-1.0, -2.0]), np.ones(2)), "zbox:[-1.0, -2.0]:[1.0, 1.0]"),
        (lrp.ZBox(-2, 2.5), "zbox:-2:2.5"),
    ],
)
def test_boxes_can_be_read_again(rule: lrp.ZBox, text: str) -> None:
    assert str(rule) == text
    reread = parse_rule(text)
    assert isinstance(reread, lrp.ZBox)
    assert reread.epsilon == rule.epsilon
    for ours, theirs in ((reread.low, rule.low), (reread.high, rule.high)):
        assert np.array_equal(np.asarray(ours, object), np.asarray(theirs, object))


REFUSED = [
    ("gamma(0.25", "or gamma(0.25) with literals"),
    ("", "write a name alone"),
    ("gamma()(1)", "parameters are literals"),
    ("gamma) + f(", "write a name alone"),
    ("gamma(1) or zero(1)", "more than one call"),
    ("gamma(much)", "parameters are literals"),
    ("gamma(__import__('os').getpid())", "parameters are literals"),
    ("gamma(*[1])", "parameters are literals"),
    ("gamma(**{'gamma': 1})", "** is not one of its parameters"),
    ("gamma(gama=1)", "gama is not one of its parameters; the form is gamma:GAMMA:EPSILON or gamma(gamma=…"),
    ("gamma(1, gamma=2)", "gamma comes twice"),
    ("gamma('1')", "numbers for gamma, epsilon"),
    ("gamma(True)", "numbers for gamma, epsilon"),
    ("gamma(1, 2, 3)", "has too many numbers; the form is gamma:GAMMA:EPSILON"),
    ("gamma(-1)", "at least 0"),
    ("gamma(1e999)", "at least 0"),
    (f"gamma(1{'0' * 400})", "at least 0"),
    (f"zbox(-1{'0' * 400}, 2)", "finite numbers with low ≤ high"),
    (f"zbox(0, [1{'0' * 400}])", "finite numbers with low ≤ high"),
    ("zbox({1}, 2)", "parameters are literals"),
    (f"gamma({'-' * 9000}1)", "parameters are literals"),
    (f"gamma({'[' * 9000})", "parameters are literals"),
    (f"zbox(0, [{'1, ' * 9000}])", "more than 10000 characters"),
    ("typed", "needs scale; the form is typed:SCALE:TIMES:EXACT:MODE:BOUNDS:EPSILON or typed(scale=…"),
    (
        "typed:1:2.5",
        "numbers for scale, epsilon, whole numbers for times, true or false for exact, texts for",
    ),
    ("typed(1, 2.5)", "whole numbers for times"),
    ("typed(1, True)", "whole numbers for times"),
    ("typed:1:2:yes", "true or false for exact"),
    ("typed(1, 2, 1)", "true or false for exact"),
    ("typed(1, mode=3)", "texts for mode"),
    ("typed:1:1:true:a:1:0.1:7", "has too many values"),
]


@pytest.mark.parametrize(("text", "says"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        parse_rule(text)
    assert says in str(caught.value)


def test_types_are_checked_in_python_too(typed: Any) -> None:
    for make, says in (
        ({"scale": "1"}, "Typed: scale must be a number of at least 0, not '1'"),
        ({"scale": float("inf")}, "scale must be a number of at least 0, not inf"),
        ({"scale": float("nan")}, "scale must be a number of at least 0, not nan"),
        ({"scale": 1.0, "times": 1.5}, "times must be a whole number"),
        ({"scale": 1.0, "exact": 1}, "exact must be True or False"),
        ({"scale": 1.0, "mode": None}, "mode must be a text"),
        ({"scale": 1.0, "epsilon": -1.0}, "epsilon must be a number of at least 0"),
    ):
        with pytest.raises(InvalidOptionError, match=says):
            typed(**make)


def test_what_a_rule_refuses_by_itself_is_told() -> None:
    @dataclass(frozen=True)
    class Picky(RelevanceRule):
        scale: Any = None
        name: ClassVar[str] = "picky"

        def __post_init__(self) -> None:
            raise ValueError("scale must be odd")

    with pytest.raises(InvalidOptionError, match=r"'picky:2': scale\b"):
        parse_rule("picky:2")


def test_a_name_of_ours_is_not_taken() -> None:
    with pytest.raises(InvalidOptionError, match=r"Gamma: .*'gamma'"):

        class Gamma(RelevanceRule):
            name: ClassVar[str] = "gamma"

    assert RULES["gamma"] is lrp.Gamma
