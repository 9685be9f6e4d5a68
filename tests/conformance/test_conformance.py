"""The ONNX project's own node tests: every differentiable one compiles, and what it answers is exact."""

from tests.conformance.cases import Case
from tests.conformance.evaluate import Outcome
from tests.conformance.verdicts import MISSING, PARTLY, STOPPED, Verdict, errors, stopped, verdict


def test_every_node_test_compiles(outcomes: list[Outcome]) -> None:
    missing = [o for o in outcomes if verdict(o) is Verdict.MISSING]
    assert {o.case: o.refused for o in missing if o.operator not in MISSING} == {}


def test_what_is_noted_as_missing_is_missing(outcomes: list[Outcome]) -> None:
    wrong = {o.operator for o in outcomes if verdict(o) is not Verdict.EXACT}
    partly = {o.operator for o in outcomes if o.refused} - set(PARTLY)
    assert MISSING - wrong - partly == set()


def test_what_compiles_is_exact(outcomes: list[Outcome]) -> None:
    assert {o.case: errors(o) for o in outcomes if errors(o) and o.operator not in MISSING} == {}


def test_every_float_takes_part(outcomes: list[Outcome]) -> None:
    """All inputs vary at once and all outputs are explained, but for those of which it is known why not."""
    partly = {o.operator: o.refused for o in outcomes if o.varying and o.refused}
    assert {name: why for name, why in partly.items() if name not in PARTLY and name not in MISSING} == {}
    assert set(PARTLY) - set(partly) == set()


def test_each_reason_to_stop_is_met(cases: dict[str, Case]) -> None:
    met = {stopped(case) for case in cases.values()}
    assert set(STOPPED.values()) <= met
