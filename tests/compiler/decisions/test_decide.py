"""Decisions and principal reasons, from attributions written by hand, and their laws on drawn ones."""

import itertools
import json
import math
from collections import defaultdict
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rationale.decisions.decide import (
    NOTHING_ADVERSE,
    TIE,
    Decision,
    NoReasonsError,
    decide,
    meets_condition,
    ranking,
    read_cell,
    reason_wording,
)
from rationale.decisions.rows import ExplainedRow
from rationale.decisions.stability import reason_codes
from rationale.errors import InvalidOptionError
from rationale.portfolios.decisions import most_reasons
from rationale.schema.manifest import EmbeddedProfile
from rationale.schema.profile import ReasonText, as_profile

CODES = {"income": "R01", "debt": "R02", "arrears": "R02", "inquiries": "R04", "age": "R05", "housing": "R03"}
PROFILE: dict[str, Any] = {
    "output": "p",
    "threshold": 0.25,
    "adverse": "above",
    "max_reasons": 2,
    "features": {name: {"reason": code} for name, code in CODES.items() if name != "housing"},
    "groups": {"housing": {"members": ["own", "rent"], "title": "Housing", "reason": "R03"}},
    "reasons": {
        "R01": {
            "text": "Income too low",
            "missing": "Income not stated",
            "when": [{"below": 10, "text": "No regular income"}, {"equals": 99, "text": "Not credible"}],
        },
        "R05": "Age of the oldest account",
        "R02": "Debt or arrears",
        "R03": "Housing situation",
        "R04": {"text": "Recent inquiries", "inquiry": True},
        "R09": "Bankruptcy",
    },
}
VALUES: dict[str, Any] = {"income": 20.0, "debt": 5.0, "arrears": 1.0, "inquiries": 3.0, "age": 2.0}
VALUES |= {"own": 0.0, "rent": 1.0}


def decided(**over: Any) -> EmbeddedProfile:
    profile = as_profile({**PROFILE, **over})
    return EmbeddedProfile(profile=profile, digest=profile.digest, output_range=(0, 1), tolerance=1e-4)


NO_INQUIRY = {**PROFILE["reasons"], "R04": "Recent inquiries"}


@pytest.mark.parametrize(
    ("over", "most"),
    [
        ({}, 3),  # those of the score, then one on inquiries
        ({"reasons": NO_INQUIRY}, 2),
        ({"knock_outs": [{"feature": "age", "below": 1, "reason": "R09"}]}, 3),
        ({"reasons": NO_INQUIRY, "knock_outs": [{"feature": "age", "below": 1, "reason": "R09"}]}, 2),
        ({"knock_outs": [{"feature": "age", "below": 1, "reason": code} for code in sorted(NO_INQUIRY)]}, 6),
        ({"knock_outs": [{"feature": "age", "below": end, "reason": "R09"} for end in (1, 2, 3, 4)]}, 3),
    ],
)
def test_how_many_reasons_a_decision_has_at_most(over: dict[str, Any], most: int) -> None:
    """A table has columns for so many."""
    assert most_reasons(as_profile({**PROFILE, **over})) == most


def explained(
    score: float = 0.5, gap: float | None = 0.0, errors: dict[str, float] | None = None, **attributions: float
) -> ExplainedRow:
    everything = dict.fromkeys(CODES, 0.0) | attributions
    spread = None if errors is None else dict.fromkeys(CODES, 0.0) | errors
    return ExplainedRow(score, score, 0.1, everything, spread, gap)


def decide_by(row: ExplainedRow, values: dict[str, Any] | None = None, **over: Any) -> Decision:
    return decide(decided(**over), row, VALUES if values is None else values)


def codes(decision: Decision) -> list[str]:
    return [reason.code for reason in decision.reasons]


# --- the outcome --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("adverse", "score", "outcome"),
    [
        ("above", 0.2500001, "decline"),
        ("above", 0.25, "approve"),
        ("above", 0.2, "approve"),
        ("below", 0.2499999, "decline"),
        ("below", 0.25, "approve"),
        ("below", 0.3, "approve"),
    ],
)
def test_at_the_threshold_it_passes(adverse: str, score: float, outcome: str) -> None:
    assert decide_by(explained(score), adverse=adverse).decision == outcome


@pytest.mark.parametrize(
    ("score", "outcome"),
    [(0.19, "approve"), (0.2, "refer"), (0.25, "refer"), (0.3, "refer"), (0.31, "decline")],
)
def test_a_person_decides_within_the_band(score: float, outcome: str) -> None:
    decision = decide_by(explained(score, income=0.1), refer=(0.2, 0.3))
    assert decision.decision == outcome
    assert codes(decision) == ([] if outcome == "approve" else ["R01"])


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_approves_nobody(score: float) -> None:
    with pytest.raises(NoReasonsError, match=r"\b(nan|inf)\b"):
        decide_by(explained(score))


# --- reasons ------------------------------------------------------------------------------------------


def test_features_that_share_a_code_are_one_reason() -> None:
    decision = decide_by(explained(income=0.25, debt=0.125, arrears=0.1875, age=-0.5), max_reasons=4)
    assert codes(decision) == ["R02", "R01"]
    together, income = decision.reasons
    assert (together.feature, together.features, together.value) == ("arrears", ("arrears", "debt"), 1.0)
    assert (together.attribution, together.share) == (0.3125, 0.3125 / 0.5625)
    assert (income.attribution, income.text) == (0.25, "Income too low")


def test_what_speaks_for_the_applicant_is_not_set_off_against_a_code() -> None:
    decision = decide_by(explained(debt=0.25, arrears=-0.5))
    assert [(reason.features, reason.attribution) for reason in decision.reasons] == [(("debt",), 0.25)]


def test_adverse_below_has_negative_attributions() -> None:
    decision = decide_by(explained(0.1, income=-0.25, age=-0.5, debt=1.0), adverse="below")
    assert [(r.code, r.attribution, r.share) for r in decision.reasons] == [
        ("R05", -0.5, 2 / 3),
        ("R01", -0.25, 1 / 3),
    ]


def test_a_group_is_told_by_member() -> None:
    (reason,) = decide_by(explained(housing=0.25)).reasons
    assert (reason.feature, reason.value) == ("housing", {"own": 0.0, "rent": 1.0})


def test_one_more_than_the_greatest_number_is_on_inquiries_alone() -> None:
    row = explained(income=0.5, debt=0.4, age=0.3, housing=0.2, inquiries=0.1)
    assert codes(decide_by(row)) == ["R01", "R02", "R04"]
    assert codes(decide_by(explained(income=0.5, inquiries=0.4, age=0.3))) == ["R01", "R04"]
    assert codes(decide_by(row, max_reasons=4)) == ["R01", "R02", "R05", "R03", "R04"]


def test_nothing_adverse_is_said_and_no_reason_made_up() -> None:
    decision = decide_by(explained(0.5, income=-0.1))
    assert (decision.decision, decision.reasons, decision.warnings) == ("decline", (), (NOTHING_ADVERSE,))
    assert decide_by(explained(0.1, income=-0.1)).warnings == ()


def test_without_codes_a_feature_is_its_own_reason() -> None:
    decision = decide_by(
        explained(age=0.25, income=0.5), features={"age": {"title": "Oldest account"}}, reasons={}, groups={}
    )
    assert [(r.code, r.text) for r in decision.reasons] == [("income", "income"), ("age", "Oldest account")]


# --- ties and standard errors -------------------------------------------------------------------------


def test_equal_ones_stand_in_the_order_of_the_profile_and_are_marked() -> None:
    decision = decide_by(explained(age=0.25, income=0.25, housing=0.25))
    assert [(reason.code, reason.tied) for reason in decision.reasons] == [("R01", True), ("R05", True)]


def test_the_last_given_is_held_against_the_first_left_out() -> None:
    row = explained(income=0.5, age=0.25, housing=0.25 - 1e-8, debt=0.1)
    assert [reason.tied for reason in decide_by(row).reasons] == [False, True]
    row = explained(income=0.5, age=0.25, housing=0.2, errors={"income": 0.2, "age": 0.06})
    assert [reason.uncertain for reason in decide_by(row).reasons] == [False, True]


@pytest.mark.parametrize(("size", "tied"), [(1.0, True), (0.05, False)])
def test_a_tie_is_of_the_largest_of_a_row(size: float, tied: bool) -> None:
    """Attributions that differ by less than a float32 step of the largest one are tied."""
    row = explained(income=size, age=2e-7, housing=1e-7)
    reasons = decide_by(row, least_share=0.0).reasons
    assert [reason.tied for reason in reasons] == [False, tied]


@pytest.mark.parametrize(("errors", "uncertain"), [({}, True), ({"income": 0.25}, True)])
def test_a_lead_that_equals_its_standard_error_is_uncertain(errors: Any, uncertain: bool) -> None:
    row = explained(income=0.5, age=0.5 - errors.get("income", 0), errors=errors)
    assert decide_by(row).reasons[0].uncertain is uncertain


def test_the_smallest_of_all_is_held_against_nothing() -> None:
    (reason,) = decide_by(explained(income=0.1, errors={"income": 0.2})).reasons
    assert (reason.tied, reason.uncertain) == (False, True)
    (reason,) = decide_by(explained(income=0.1)).reasons
    assert not reason.uncertain


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e7])
def test_nothing_is_uncertain_without_standard_errors(scale: float) -> None:
    """Nor among those that tie, which stand in the profile's order though the second may be the larger."""
    row = explained(income=scale, age=scale * (1 + TIE / 2), housing=scale / 2)
    first, second = decide_by(row).reasons
    assert [(r.tied, r.uncertain) for r in (first, second)] == [(True, False), (False, False)]


@pytest.mark.parametrize(("income", "uncertain"), [(0.25, True), (0.125, False)])
def test_the_standard_error_of_a_sum(income: float, uncertain: bool) -> None:
    """3, 4 and 5 sixteenths."""
    errors = {"debt": 0.1875, "arrears": 0.25}
    row = explained(income=income, debt=0.3125, arrears=0.25, errors=errors)
    assert decide_by(row).reasons[0].uncertain is uncertain


# --- knock-outs ---------------------------------------------------------------------------------------

KNOCK_OUTS = [
    {"feature": "bankruptcies", "above": 0, "reason": "R09"},
    {"feature": "income", "below": 10, "reason": "R01"},
    {"feature": "status", "equals": "insolvent", "reason": "R09"},
]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        ({"bankruptcies": 0}, []),
        ({"bankruptcies": None}, []),
        ({"bankruptcies": 1}, [("R09", ("bankruptcies",))]),
        ({"bankruptcies": True}, [("R09", ("bankruptcies",))]),
        ({"status": "solvent"}, []),
        ({"status": "insolvent", "income": 5.0}, [("R01", ("income",)), ("R09", ("status",))]),
        ({"status": "insolvent", "bankruptcies": 2}, [("R09", ("bankruptcies", "status"))]),
    ],
)
def test_knock_outs_decline_by_themselves(values: dict[str, Any], expected: list[Any]) -> None:
    decision = decide_by(explained(0.1, age=0.2), {**VALUES, **values}, knock_outs=KNOCK_OUTS)
    assert decision.decision == ("decline" if expected else "approve")
    assert sorted((reason.code, reason.features) for reason in decision.reasons) == expected
    assert {(reason.attribution, reason.share) for reason in decision.reasons} <= {(None, None)}


def test_a_knock_out_s_reasons_stand_alone_and_hold_without_attributions() -> None:
    row = explained(0.9, gap=math.nan, age=0.5)
    decision = decide_by(row, {**VALUES, "bankruptcies": 1}, knock_outs=KNOCK_OUTS)
    assert [(r.code, r.text, r.value) for r in decision.reasons] == [("R09", "Bankruptcy", 1)]
    assert decision.score == 0.9


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [1.1e-4, -1.1e-4, math.nan])
def test_attributions_that_do_not_add_up_give_no_reasons(gap: float) -> None:
    with pytest.raises(NoReasonsError, match=r"tolerance of 0\.0001"):
        decide_by(explained(gap=gap, income=0.5))
    with pytest.raises(NoReasonsError, match=r"\bdraw 1\b.*\b0\.0001\b"):
        reason_codes(decided(), explained(gap=gap, income=0.5), "draw 1")


@pytest.mark.parametrize("gap", [1e-4, -1e-4, None])
def test_attributions_that_add_up(gap: float | None) -> None:
    row = explained(gap=gap, income=0.5)
    assert codes(decide_by(row)) == [*reason_codes(decided(), row, "draw 1")] == ["R01"]


def test_a_principal_reason_that_may_not_be_disclosed() -> None:
    row = explained(income=0.5, arrears=0.3, age=0.2, debt=0.1)
    with pytest.raises(NoReasonsError, match="debt is a principal reason"):
        decide_by(row, never_disclose=["debt", "age"])  # it shares the code of the second
    assert codes(decide_by(row, never_disclose=["age"])) == ["R01", "R02"]
    with pytest.raises(NoReasonsError, match="rent is a principal reason"):
        decide_by(explained(housing=0.5), never_disclose=["rent"])
    with pytest.raises(NoReasonsError, match="bankruptcies is a principal reason"):
        decide_by(row, {"bankruptcies": 1}, knock_outs=KNOCK_OUTS[:1], never_disclose=["bankruptcies"])
    of_member = [{"feature": "rent", "above": 0, "reason": "R03"}]
    with pytest.raises(NoReasonsError, match="housing is a principal reason"):
        decide_by(row, {"rent": 1}, knock_outs=of_member, never_disclose=["housing"])


def test_reasons_that_tie_are_in_the_profile_s_order() -> None:
    row = explained(income=0.1, debt=0.1 + 1e-9, housing=0.1 - 2e-8)
    first, second, third = decide_by(row, max_reasons=3).reasons
    assert [first.code, second.code, third.code] == ["R01", "R02", "R03"]
    assert (first.tied, second.tied) == (True, True)


@pytest.mark.parametrize(
    ("cell", "equals", "expected"),
    [
        ("True", True, True),
        ("false", True, False),
        ("1", 1, 1.0),
        (" 7 ", None, 7.0),
        ("007", "007", "007"),
        ("", None, None),
        (None, "x", None),
        (math.nan, None, None),
    ],
)
def test_cells_are_read_as_knock_outs_ask(cell: Any, equals: Any, expected: Any) -> None:
    condition = {"above": 0} if equals is None else {"equals": equals}
    (rule,) = decided(knock_outs=[{"feature": "f", "reason": "R09", **condition}]).profile.knock_outs
    assert read_cell(cell, "f", [rule]) == expected
    with pytest.raises(InvalidOptionError, match="'f' holds 'often'"):
        read_cell("often", "f", [rule] if not isinstance(equals, str) else [])


# --- wordings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (20.0, "Income too low"),
        (9.0, "No regular income"),
        (99, "Not credible"),
        (None, "Income not stated"),
        ({"a": None, "b": None}, "Income not stated"),
        ({"a": None, "b": 1.0}, "Income too low"),
        ("unemployed", "Income too low"),
    ],
)
def test_a_text_depends_on_the_value(value: Any, text: str) -> None:
    assert reason_wording(as_profile(PROFILE).reasons["R01"], value) == text


@pytest.mark.parametrize(
    ("condition", "meet", "remaining"),
    [
        ({"above": 2}, [2.0000001, 3, True + 2], [2, 2.0, 1, None, "3", {"a": 3}]),
        ({"below": 2}, [1.9999999, -1, True], [2, 2.0, 3, None, "1"]),
        ({"above": 2, "below": 4}, [3], [2, 4]),
        ({"equals": 2}, [2, 2.0], [1, "2", None]),
        ({"equals": "a"}, ["a"], ["A", "", None]),
        ({"equals": True}, [True, 1], [False, 0, 2, None]),
    ],
)
def test_a_condition_at_its_ends(condition: Any, meet: list[Any], remaining: list[Any]) -> None:
    (rule,) = decided(knock_outs=[{"feature": "f", "reason": "R09", **condition}]).profile.knock_outs
    reason = ReasonText.model_validate({"text": "else", "when": [{"text": "meets", **condition}]})
    for value in (*meet, *remaining):
        is_met = value in meet and value is not None
        assert meets_condition(rule, value) is is_met, value
        assert isinstance(value, dict) or reason_wording(reason, value) == ("meets" if is_met else "else")


@pytest.mark.parametrize(("value", "fits"), [(True, True), (False, False), ("yes", False), (None, False)])
def test_a_flag_s_text(value: Any, fits: bool) -> None:
    reason = ReasonText.model_validate({"text": "else", "when": [{"equals": 1, "text": "flagged"}]})
    assert reason_wording(reason, value) == ("flagged" if fits else "else")


# --- a value in words ------------------------------------------------------------------------------------

UNITS: dict[str, Any] = {
    **PROFILE["features"],
    "income": {"reason": "R01", "title": "Monthly income", "unit": "EUR"},
    "arrears": {"reason": "R02", "categories": {"0": "none", "1": "one instalment"}, "unit": "instalments"},
    "age": {"reason": "R05", "title": "Oldest account"},
    "own": {"unit": "homes", "title": "Homes"},
    "rent": {"categories": {"1": "rents"}, "open": True},
    "bankruptcies": {"unit": "in ten years"},
}


@pytest.mark.parametrize(
    ("feature", "values", "unit", "category", "shown"),
    [
        ("income", {"income": 1200.0}, "EUR", None, "Monthly income: 1200 EUR"),
        ("income", {"income": 0.1}, "EUR", None, "Monthly income: 0.1 EUR"),
        ("income", {"income": None}, "EUR", None, None),
        ("arrears", {}, "instalments", "one instalment", "arrears: one instalment"),
        ("arrears", {"arrears": 7.0}, "instalments", None, "arrears: 7 instalments"),
        ("age", {}, None, None, None),
        ("housing", {}, {"own": "homes"}, {"rent": "rents"}, "Homes: 0 homes; rent: rents"),
        ("housing", {"own": None, "rent": 0.0}, {"own": "homes"}, None, None),
    ],
)
def test_a_reason_tells_its_value_by_unit_and_category(
    feature: str, values: dict[str, Any], unit: Any, category: Any, shown: str | None
) -> None:
    (reason,) = decide_by(explained(**{feature: 0.3}), {**VALUES, **values}, features=UNITS).reasons
    assert (reason.unit, reason.category, reason.shown) == (unit, category, shown)


def test_units_of_a_group_and_of_a_knock_out() -> None:
    groups = {"housing": {**PROFILE["groups"]["housing"], "unit": "rooms"}}
    (reason,) = decide_by(explained(housing=0.3), groups=groups).reasons
    assert reason.unit == {"own": "rooms", "rent": "rooms"}
    assert reason.shown == "own: 0 rooms; rent: 1 rooms"
    rules = [{"feature": "bankruptcies", "above": 0, "reason": "R09"}]
    values = {**VALUES, "bankruptcies": 2}
    (reason,) = decide_by(explained(), values, features=UNITS, knock_outs=rules).reasons
    assert (reason.unit, reason.shown) == ("in ten years", "bankruptcies: 2 in ten years")


# --- the least share -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "expected"),
    [({}, ["R01", "R05"]), ({"least_share": 0.0}, ["R01", "R05", "R03"]), ({"least_share": 0.2}, ["R01"])],
)
def test_no_factor_below_the_least_share(least: dict[str, float], expected: list[str]) -> None:
    row = explained(income=0.8, age=0.1, housing=0.0005)
    assert codes(decide_by(row, max_reasons=4, **least)) == expected


@pytest.mark.parametrize(("least", "expected"), [(0.125, ["R01", "R05", "R03"]), (0.1250001, ["R01", "R05"])])
def test_exactly_the_least_share_is_enough(least: float, expected: list[str]) -> None:
    row = explained(income=0.625, age=0.25, housing=0.125)
    assert codes(decide_by(row, max_reasons=4, least_share=least)) == expected


def test_the_largest_is_a_reason_however_small_and_inquiries_are_none_below_it() -> None:
    even = explained(income=0.1, age=0.09, housing=0.08, debt=0.07)
    assert codes(decide_by(even, least_share=0.9)) == ["R01"]
    assert codes(decide_by(explained(income=0.3, age=0.2, inquiries=0.1), least_share=0.01))[-1] == "R04"
    assert "R04" not in codes(decide_by(explained(income=0.3, age=0.2, inquiries=0.001)))


@given(st.fixed_dictionaries({name: st.floats(-1, 1, width=32) for name in CODES}), st.floats(0, 1))
def test_a_least_share_drops_the_last_ones(attributions: dict[str, float], least: float) -> None:
    plain = {**PROFILE["reasons"], "R04": "Recent inquiries"}
    every, actual = (
        decide_by(explained(**attributions), reasons=plain, max_reasons=9, least_share=each).reasons
        for each in (0, least)
    )
    assert actual == every[: len(actual)]
    assert len(actual) >= min(len(every), 1)
    assert all((reason.share or 0) >= least for reason in actual[1:])
    assert all((reason.share or 0) < least for reason in every[len(actual) :])


# --- laws ---------------------------------------------------------------------------------------------

ATTRIBUTIONS = st.fixed_dictionaries({name: st.floats(-1, 1, width=32) for name in CODES})
ADVERSE = st.sampled_from(["above", "below"])


def slow_ranking(attributions: dict[str, float], adverse: str) -> list[tuple[str, float]]:
    """Sizes in exact arithmetic, rounded once; of a run of ties with its first, in the profile's order."""
    exact: dict[str, Fraction] = defaultdict(Fraction)
    for name, value in attributions.items():
        size = Fraction(value) if adverse == "above" else -Fraction(value)
        if size > 0:
            exact[CODES[name]] += size
    order, runs = list(PROFILE["reasons"]), list[list[tuple[str, float]]]()
    sizes = sorted(((code, float(size)) for code, size in exact.items()), key=lambda item: -item[1])
    for entry in sizes:
        if runs and runs[-1][0][1] - entry[1] <= TIE * sizes[0][1]:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return [entry for run in runs for entry in sorted(run, key=lambda entry: order.index(entry[0]))]


NEARLY = dict.fromkeys(CODES, 0.0)


@given(ATTRIBUTIONS, ADVERSE)
@example(NEARLY | {"income": 0.99999994, "age": 1.0}, "above")
@example(NEARLY | {"income": -0.9999981, "age": -1.0, "housing": -0.99999905}, "below")
def test_ranks_as_exact_arithmetic_does(attributions: dict[str, float], adverse: str) -> None:
    actual = ranking(decided(adverse=adverse).profile, attributions)
    assert [(code, size) for code, size, _ in actual] == slow_ranking(attributions, adverse)


@given(ATTRIBUTIONS, ADVERSE)
def test_shares_add_up_to_one_over_all(attributions: dict[str, float], adverse: str) -> None:
    score = 0.5 if adverse == "above" else 0.1
    row = explained(score, **attributions)
    reasons = decide_by(row, adverse=adverse, max_reasons=9, least_share=0).reasons
    shares = [reason.share for reason in reasons]
    assert sum(shares) == pytest.approx(1.0) or not shares
    assert all(0 < share <= 1 for share in shares)
    assert all(share >= follows - TIE * shares[0] for share, follows in itertools.pairwise(shares))


@given(ATTRIBUTIONS, st.permutations(list(CODES)))
def test_the_order_of_features_changes_nothing(attributions: dict[str, float], order: list[str]) -> None:
    here = explained(**attributions)
    there = ExplainedRow(0.5, 0.5, 0.1, {name: attributions[name] for name in order}, None, 0.0)
    assert decide_by(there).reasons == decide_by(here).reasons


@given(ATTRIBUTIONS, st.floats(0, 1, width=32))
def test_a_benign_feature_more_changes_nothing(attributions: dict[str, float], size: float) -> None:
    features = {**PROFILE["features"], "benign": {"reason": "R09"}}
    more = explained(**attributions, benign=-size)
    assert decide_by(more, features=features).reasons == decide_by(explained(**attributions)).reasons


@given(ATTRIBUTIONS, st.integers(1, 4))
def test_fewer_reasons_are_the_first_of_more(attributions: dict[str, float], most: int) -> None:
    plain = {**PROFILE["reasons"], "R04": "Recent inquiries"}
    everything = decide_by(explained(**attributions), reasons=plain, max_reasons=9).reasons
    assert decide_by(explained(**attributions), reasons=plain, max_reasons=most).reasons == everything[:most]


@given(ATTRIBUTIONS)
def test_what_is_answered_is_json(attributions: dict[str, float]) -> None:
    """Equal to itself after a way through text, so that a trail keeps what was said."""
    members = decide_by(explained(**attributions, errors={})).as_json()
    assert json.loads(json.dumps(members)) == members
