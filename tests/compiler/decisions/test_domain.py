"""What values a profile takes: bounds, categories to the letter, and missing ones, which are none."""

import math
import re
from typing import Any

import pytest

from rationale.decisions.decide import decide
from rationale.decisions.domain import domain_faults
from rationale.schema.profile import DecisionProfile, FeatureRule
from tests.compiler.decisions.test_decide import VALUES, decided, explained

WORDS = FeatureRule(categories={"A11": "none", "A12": "some"})
NUMBERS = FeatureRule(categories={"1": "owner", "2.50": "tenant", "true": "yes"})

DOMAINS: list[tuple[FeatureRule, Any, str | None]] = [
    (WORDS, "A11", None),
    (
        WORDS,
        "A99",
        r"feature 'f' is none of the decision profile's categories 'A11', 'A12': 'A99'$",
    ),
    (WORDS, "a11", r"is none of .*: 'a11'"),
    (WORDS, "A11 ", r"is none of .*: 'A11 ' \(do you mean 'A11'\?\)$"),
    (WORDS, "", r"is none of .*: ''$"),
    (WORDS, "x" * 100, f": '{'x' * 80}'$"),
    (WORDS, None, None),
    (FeatureRule(categories=WORDS.categories, open=True), "A99", None),
    (NUMBERS, 1, None),
    (NUMBERS, 1.0, None),
    (NUMBERS, 2.5, None),
    (NUMBERS, True, None),
    (NUMBERS, 3.0, r"is none of .*: 3$"),
    (NUMBERS, False, r"is none of .*: false$"),
    (NUMBERS, "1.0", r"is none of .*: '1.0'"),
    (FeatureRule(categories={str(i): "x" for i in range(13)}), 13, "'8', '9' and 3 more: 13$"),
    (FeatureRule(least=18, most=100), 18, None),
    (FeatureRule(least=18, most=100), 100.0, None),
    (FeatureRule(least=18, most=100), 900, "feature 'f' is outside of the decision profile's 18 to 100: 900"),
    (FeatureRule(least=18, most=100), math.inf, r"is outside of .*: inf$"),
    (FeatureRule(least=0), -5.5, "feature 'f' is less than the decision profile's 0: -5.5"),
    (FeatureRule(most=0), 1, "feature 'f' is more than the decision profile's 0: 1"),
    (FeatureRule(most=0), None, None),
]


@pytest.mark.parametrize(("rule", "value", "fault"), DOMAINS, ids=range(len(DOMAINS)))
def test_which_values_a_feature_takes(rule: FeatureRule, value: Any, fault: str | None) -> None:
    profile = DecisionProfile(output="p", threshold=0.5, adverse="above", features={"f": rule})
    warnings = [*domain_faults(profile, {"f": value})]
    assert len(warnings) == (fault is not None)
    assert fault is None or re.search(fault, warnings[0]), warnings
    assert rule.is_bounded is not rule.open


def test_what_a_category_is_called() -> None:
    assert [WORDS.label(value) for value in ("A11", "a11")] == ["none", None]
    assert [NUMBERS.label(value) for value in (1, 2.5, True, 4)] == ["owner", "tenant", "yes", None]


@pytest.mark.parametrize("score", [0.1, 0.5])
def test_a_warning_where_the_profile_says_so(score: float) -> None:
    features = {name: {"reason": code} for name, code in {"income": "R01", "debt": "R02"}.items()}
    features["debt"]["most"] = 4.5
    over = {"features": features, "groups": {}, "outside": "warn"}
    decision = decide(decided(**over), explained(score, income=0.1), VALUES)
    assert decision.decision == ("approve" if score < 0.25 else "decline")
    assert decision.warnings == ("feature 'debt' is more than the decision profile's 4.5",)
