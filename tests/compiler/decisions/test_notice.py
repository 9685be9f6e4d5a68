"""The statement that an applicant reads."""

import copy
from pathlib import Path
from typing import Any

import pytest

from rationale.decisions.notice import ADVERSE_ACTION, EU, TEMPLATES, notice, read_variables
from rationale.errors import InvalidOptionError

ANSWER: dict[str, Any] = {
    "id": "5f",
    "decision": "decline",
    "score": 0.41,
    "reasons": [
        {"code": "R01", "text": "Income insufficient for amount of credit requested", "features": ["income"]},
        {"code": "R02", "text": "Proportion of balances to credit limits is too high", "features": ["use"]},
    ],
}
LENDER: dict[str, Any] = {
    "creditor": {"name": "A Bank", "address": "1 High Street\nSpringfield", "contact": "help@bank.example"},
    "applicant": {"name": "Jo <Doe>", "address": "2 Low Street"},
    "agency": {"name": "Bureau of Consumer Financial Protection", "address": "1700 G Street NW"},
    "application": "personal loan of 3 May 2026",
    "date": "2026-05-07",
    "consumer_report": False,
    "database": False,
    "debt_advice": False,
    "contest": "in writing, within a month",
}
REPORT = {
    "agency": {"name": "An Agency", "address": "3 Side Street", "telephone": "800 555 0100"},
    "credit_score": {
        "value": 612,
        "lowest": 300,
        "highest": 850,
        "date": "2026-05-03",
        "provider": "A Scorer",
        "factors": ["Too many inquiries"],
    },
}


def altered(**members: Any) -> dict[str, Any]:
    return {**copy.deepcopy(ANSWER), **members}


def test_an_adverse_action_notice_is_what_a_clerk_would_write() -> None:
    letter = notice(ANSWER, LENDER)
    assert letter.warnings == ()
    head, _, tail = letter.text.partition("The Federal Equal Credit Opportunity Act prohibits")
    assert head == (
        "A Bank\n1 High Street\nSpringfield\n\n2026-05-07\n\nJo <Doe>\n2 Low Street\n\n"
        "NOTICE OF ACTION TAKEN\n\nApplication: personal loan of 3 May 2026\nAction taken: credit denied\n"
        "Reference: 5f\n\nThank you for your application. We are unable to approve it. The principal reasons "
        "for our decision:\n\n- Income insufficient for amount of credit requested\n"
        "- Proportion of balances to credit limits is too high\n\n"
    )
    assert tail.endswith("is:\n\nBureau of Consumer Financial Protection\n1700 G Street NW\n")
    assert "0.41" not in letter.text


def test_what_the_fair_credit_reporting_act_asks_for_stands_where_a_report_was_used() -> None:
    report: dict[str, Any] = {**REPORT, "credit_score": False}
    letter = notice(ANSWER, {**LENDER, "consumer_report": report}).text
    assert "within 60 days" in letter
    assert "An Agency\n3 Side Street\nTelephone: 800 555 0100\n" in letter
    assert "credit score" not in letter
    scored = notice(ANSWER, {**LENDER, "consumer_report": REPORT}).text
    assert "Your credit score: 612\n" in scored
    assert "from a low of 300 to a high of 850." in scored
    assert "- Too many inquiries\n" in scored
    assert "60 days" not in notice(ANSWER, LENDER).text


def test_the_european_notice_tells_of_the_three_rights() -> None:
    letter = notice(ANSWER, LENDER, EU).text
    for right in ("human intervention", "explanation", "point of view", "review", "within a month"):
        assert right in letter
    base = {"name": "A Register", "contact": "r.example", "result": "two defaults", "categories": "loans"}
    assert "A Register\nr.example\n" in notice(ANSWER, {**LENDER, "database": base}, EU).text


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_missing_variable_is_named_at_once(template: str) -> None:
    needed = {
        ADVERSE_ACTION: "consumer_report, agency.name, agency.address",
        EU: "database, creditor.contact, contest, debt_advice",
    }[template]
    with pytest.raises(InvalidOptionError) as error:
        notice(ANSWER, {"creditor": {"name": "A Bank", "address": None}}, template)
    named = str(error.value).partition(". Give")[0]
    assert named == (
        "variables are missing: creditor.address, applicant.name, applicant.address, application, " + needed
    )


@pytest.mark.parametrize(
    ("answer", "variables", "message"),
    [
        (altered(decision="approve", reasons=[]), {}, "decision 5f is an approval"),
        (altered(reasons=[]), {}, "no principal reason"),
        (altered(decision="refer"), {}, "person_declined"),
        (altered(reasons=[{"text": "Failed to achieve a qualifying score"}]), {}, "12 CFR 1002.9"),
        (altered(reasons=[{"text": "Our internal policies"}]), {}, "12 CFR 1002.9"),
        (ANSWER, {"judgment": ["Too young a company"]}, "person_declined"),
        (ANSWER, {"reasons": ["another"]}, "reasons comes from the decision"),
    ],
)
def test_no_notice_without_an_adverse_action_and_specific_reasons(
    answer: dict[str, Any], variables: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        notice(answer, {**LENDER, **variables})


def test_of_a_referred_application_both_components_are_told() -> None:
    referred = altered(decision="refer")
    letter = notice(referred, {**LENDER, "judgment": ["Length of employment"]}, person_declined=True).text
    assert "too high\n- Length of employment\n" in letter
    alone = altered(decision="refer", reasons=[])
    assert "- Job" in notice(alone, {**LENDER, "judgment": ["Job"]}, person_declined=True).text
    for bad in ("Applicant failed to achieve a qualifying score", " "):
        with pytest.raises(InvalidOptionError, match="specific"):
            notice(referred, {**LENDER, "judgment": [bad]}, person_declined=True)
    for text_ in ([], "Length of employment", None, [1]):
        with pytest.raises(InvalidOptionError, match="judgment"):
            notice(referred, {**LENDER, "judgment": text_}, person_declined=True)


@pytest.mark.parametrize("mark", ["tied", "uncertain"])
def test_a_title_in_place_of_a_reason_is_warned_of(mark: str) -> None:
    reasons = [{"code": "income", "text": "Income", "features": ["income"], mark: True}]
    first, second = notice(altered(reasons=reasons), LENDER).warnings
    assert "income" in first
    assert "'Income'" in second


def test_a_template_of_ones_own(tmp_path: Path) -> None:
    letter = tmp_path / "letter.html"
    letter.write_text("<p>{{ applicant.name }}: {{ reasons | join }}; {{ phone | default('none') }}</p>")
    text_ = notice(ANSWER, LENDER, str(letter)).text
    assert text_.startswith("<p>Jo &lt;Doe&gt;: Income insufficient")
    assert text_.endswith("; none</p>")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% for %}", "line 1"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 / 0 }}", "division"),
        ("{% include 'nowhere.txt' %}", "nowhere.txt"),
        ("{{ reasons.nothing.more }}", "nothing.more"),
        (b"\xff", "decode"),
    ],
)
def test_a_bad_template_is_an_error_for_its_writer(tmp_path: Path, text: str | bytes, message: str) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidOptionError, match=message):
        notice(ANSWER, LENDER, str(letter))
    with pytest.raises(InvalidOptionError, match=r"other\.txt.*adverse-action"):
        notice(ANSWER, LENDER, str(tmp_path / "other.txt"))


def test_variables_come_from_a_file_and_from_flags(tmp_path: Path) -> None:
    file = tmp_path / "lender.yaml"
    file.write_text("telephone: 02071234567\ncountry: NO\nconsumer_report: false\n")
    assert read_variables(file) == {"telephone": "02071234567", "country": "NO", "consumer_report": False}
    file.write_text("creditor: {name: A Bank}\nconsumer_report: true\n")
    variables = read_variables(file, ["creditor.address=1 High Street", "consumer_report=false", "x="])
    assert variables == {
        "creditor": {"name": "A Bank", "address": "1 High Street"},
        "consumer_report": False,
        "x": "",
    }
    for bad in ("=1", "a", "a..b=1", "creditor.name.first=1"):
        with pytest.raises(InvalidOptionError, match="--set"):
            read_variables(file, [bad])
    for content in (b"- a", b"a: [", b"\xff", b"text"):
        file.write_bytes(content)
        with pytest.raises(InvalidOptionError, match="--variables"):
            read_variables(file)


def test_a_reason_with_a_unit_or_a_category_tells_the_value() -> None:
    first, second = ANSWER["reasons"]
    reasons = [
        {**first, "shown": "Monthly income: 1200 EUR"},
        {**second, "shown": None},
        {"code": "home", "text": "Home", "features": ["home"], "shown": "Home: rented"},
    ]
    letter = notice(altered(reasons=reasons), LENDER).text
    assert (
        "- Income insufficient for amount of credit requested (Monthly income: 1200 EUR)\n"
        "- Proportion of balances to credit limits is too high\n"
        "- Home: rented\n"
    ) in letter


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("null", None),
        ("''", None),
        ("true", True),
        ("false", False),
        ("007", "007"),
        ("no", "no"),
    ],
)
def test_a_variable_is_what_was_written(tmp_path: Path, text: str, value: Any) -> None:
    """Nothing and null are missing; a text keeps its zeros, and no word is a flag but true and false."""
    file = tmp_path / "variables.yaml"
    file.write_text(f"creditor:\n  name: {text}\nfactors:\n- {text}\n")
    assert read_variables(file) == {"creditor": {"name": value}, "factors": [value]}
