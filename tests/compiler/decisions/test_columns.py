"""The columns that reasons of decisions need in a table: as many as any decision of the profile can have."""

from types import SimpleNamespace
from typing import Any

import pytest

from rationale.decisions.decide import find_knock_outs
from rationale.portfolios.decisions import decision_columns, decision_schema, most_reasons
from rationale.schema.manifest import EmbeddedProfile
from rationale.schema.profile import DecisionProfile

RULES = {"R1": "x", "R2": "x", "R3": "y"}


def profile_of(most: int, inquiry: bool, knock_outs: str) -> DecisionProfile:
    """A profile, with a knock-out for each word such as "R1"; all of them fit x = y = 1."""
    return DecisionProfile.model_validate(
        {
            "output": "y",
            "threshold": 0.5,
            "adverse": "above",
            "max_reasons": most,
            "reasons": {"R1": "one", "R2": {"text": "two", "inquiry": inquiry}, "R3": "three"},
            "knock_outs": [
                {"feature": RULES[code], "above": -i, "reason": code}
                for i, code in enumerate(knock_outs.split())
            ],
        }
    )


@pytest.mark.parametrize(
    ("most", "inquiry", "knock_outs", "count"),
    [
        (4, False, "", 4),
        (4, True, "", 5),
        (1, False, "R1", 1),
        (1, False, "R1 R1 R1", 1),  # rules that share a reason give it once
        (1, False, "R1 R2", 2),
        (1, False, "R1 R2 R1 R3", 3),
        (2, True, "R1 R2 R3", 3),
        (4, False, "R1 R2 R3", 4),
    ],
)
def test_there_is_a_column_for_each_reason_and_no_more(
    most: int, inquiry: bool, knock_outs: str, count: int
) -> None:
    profile = profile_of(most, inquiry, knock_outs)
    assert most_reasons(profile) == count
    assert len({rule.reason for rule in find_knock_outs(profile, {"x": 1, "y": 1})}) <= count
    embedded = EmbeddedProfile.model_construct(
        profile=profile, digest="", output_range=(0.0, 1.0), tolerance=1e-4
    )
    manifest: Any = SimpleNamespace(decision=embedded)
    codes = [f"reason_{k}_code" for k in range(1, count + 1)]
    for names in (decision_schema(manifest).names, decision_columns(manifest)):
        assert [name for name in names if name.endswith("_code")] == codes
