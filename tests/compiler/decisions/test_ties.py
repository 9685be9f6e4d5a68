"""The order of reasons that tie: by the largest of the row, in runs, and then as the profile has them."""

from typing import Any

import pytest

from rationale.decisions.decide import TIE, principal_reasons, ranking
from rationale.decisions.rows import ExplainedRow
from rationale.schema.profile import DecisionProfile

STEP = TIE / 2  # of the largest: within rounding


def profile_of(adverse: str = "above", **members: Any) -> DecisionProfile:
    features = {name: {"reason": code} for name, code in zip("abcd", ("R1", "R2", "R3", "R4"), strict=True)}
    reasons = {code: code for code in ("R1", "R2", "R3", "R4")}
    given = {"output": "y", "threshold": 0.5, "adverse": adverse, "features": features, "reasons": reasons}
    return DecisionProfile.model_validate(given | members)


@pytest.mark.parametrize("adverse", ["above", "below"])
@pytest.mark.parametrize(
    ("sizes", "codes", "tied"),
    [
        ({"a": 1, "b": 2}, ["R2", "R1"], [False, False]),
        ({"a": 1, "b": 1 + STEP}, ["R1", "R2"], [True, False]),
        ({"a": 1, "b": 1 + 3 * TIE}, ["R2", "R1"], [False, False]),
        # two small ones differ by less than rounding of the largest
        ({"d": 1, "a": 1e-3, "b": 1e-3 + STEP}, ["R4", "R1", "R2"], [False, True, False]),
        ({"d": 1, "a": 1e-3, "b": 1e-3 + 3 * TIE}, ["R4", "R2", "R1"], [False, False, False]),
        ({"d": 1000, "a": 1, "b": 1 + 500 * TIE}, ["R4", "R1", "R2"], [False, True, False]),
        # a run reaches from its first: of three steps the last is no part of it
        (
            {"a": 1, "b": 1 + 0.8 * TIE, "c": 1 + 1.6 * TIE},
            ["R2", "R3", "R1"],
            [True, False, False],
        ),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, ["R1", "R2", "R3", "R4"], [True, True, True, False]),
        ({"a": 0, "b": 0, "c": 1}, ["R3"], [False]),
        ({"a": -1, "b": 1}, ["R2"], [False]),
    ],
)
def test_ties_are_as_wide_as_rounding_of_the_largest(
    sizes: dict[str, float], codes: list[str], tied: list[bool], adverse: str
) -> None:
    sign = 1 if adverse == "above" else -1
    attributions = {name: sign * size for name, size in sizes.items()}
    profile = profile_of(adverse, least_share=0)
    for names in (list(attributions), list(attributions)[::-1]):
        ordered = {name: attributions[name] for name in names}
        assert [code for code, _, _ in ranking(profile, ordered)] == codes
        row = ExplainedRow(1.0, 1.0, 0.0, ordered, None, 0.0)
        reasons = principal_reasons(profile, row, dict.fromkeys("abcd", 1.0))
        assert [(reason.code, reason.tied) for reason in reasons] == list(zip(codes, tied, strict=True))


@pytest.mark.parametrize(
    ("least_share", "most", "codes"),
    [
        (0.25, 4, ["R1", "R2"]),  # exactly the least share is one
        (0.2500001, 4, ["R1"]),
        (0.125, 4, ["R1", "R2", "R3", "R4"]),
        (0.125, 2, ["R1", "R2"]),
        (0.126, 4, ["R1", "R2"]),
        (1, 4, ["R1"]),  # the largest is always one
        (0, 1, ["R1"]),
    ],
)
def test_a_reason_has_the_least_share_or_more(least_share: float, most: int, codes: list[str]) -> None:
    profile = profile_of(least_share=least_share, max_reasons=most)
    row = ExplainedRow(1.0, 1.0, 0.0, {"a": 0.5, "b": 0.25, "c": 0.125, "d": 0.125}, None, 0.0)
    assert [reason.code for reason in principal_reasons(profile, row, dict.fromkeys("abcd", 1.0))] == codes
