"""The ONNX project's own node tests: every differentiable one compiles, and what it answers is exact."""

from collections.abc import Callable

import pytest

from tests.conformance.cases import ConformanceCase
from tests.conformance.evaluate import CaseOutcome
from tests.conformance.verdicts import DISPUTED, PARTLY, STOPPED, Verdict, counts, errors, stopped, verdict
from tests.tolerances import CONFORMANCE_32

pytestmark = pytest.mark.full


def test_every_node_test_compiles(
    cases: dict[str, ConformanceCase],
    reasons: dict[str, str],
    outcomes: list[CaseOutcome],
    record_property: Callable[[str, object], None],
) -> None:
    record_property("summary", f"conformance: {counts(len(cases), reasons, outcomes)}")
    assert {o.case: o.refused for o in outcomes if verdict(o) is Verdict.MISSING} == {}


def test_what_compiles_is_exact(outcomes: list[CaseOutcome]) -> None:
    assert {o.case: errors(o) for o in outcomes if errors(o)} == {}


def test_what_is_disputed_has_two_answers(outcomes: list[CaseOutcome]) -> None:
    """The value in float32 is ONNX Runtime's, that in float64 another one."""
    apart = {o.case for o in outcomes if o.measures.get("value 64", 0.0) > CONFORMANCE_32}
    assert apart & set(DISPUTED) == set(DISPUTED)


def test_every_float_takes_part(outcomes: list[CaseOutcome]) -> None:
    """All inputs vary at once and all outputs are explained, but for those of which it is known why not."""
    partly = {o.operator: o.refused for o in outcomes if o.varying and o.refused}
    assert {name: why for name, why in partly.items() if name not in PARTLY} == {}
    assert set(PARTLY) - set(partly) == set()


def test_each_reason_to_stop_is_met(cases: dict[str, ConformanceCase]) -> None:
    met = {stopped(case) for case in cases.values()}
    assert set(STOPPED.values()) <= met
