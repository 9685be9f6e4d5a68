"""Texts of a profile by language, and notices that are in one language alone."""

import re
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, meta

import rationale.decisions.notice
from rationale.decisions.decide import principal_reasons, reason_in_language
from rationale.decisions.notice import ADVERSE_ACTION, TEMPLATES, notice, planned_changes
from rationale.decisions.rows import ExplainedRow
from rationale.errors import InvalidOptionError, InvalidProfileError
from rationale.profiles.faults import profile_faults
from rationale.schema.profile import DecisionProfile, as_profile
from tests.compiler.decisions.test_notice import LENDER, REPORT
from tests.compiler.decisions.test_profile import FEATURES_OF_MODEL, GOOD, changed, written

NOTICES = Path(rationale.decisions.notice.__file__).parent / "notices"
LANGUAGES = sorted(folder.name for folder in NOTICES.iterdir())


def both(text: str, other: str) -> dict[str, str]:
    return {"en": text, "de": other}


PROFILE: dict[str, Any] = {
    "output": "p",
    "threshold": 0.2,
    "adverse": "above",
    "languages": ["en", "de"],
    "notice": {"recourse": True},
    "actionable": {
        "use": {},
        "term": {},
        "home": {},
        "paid": {},
        "savings": {"moves": ["assets"]},
        "car": {},
    },
    "features": {
        "use": {"title": both("Utilisation", "Auslastung"), "unit": both("%", "%"), "reason": "U"},
        "term": {
            "title": both("Term", "Laufzeit"),
            "unit": both("years", "Jahre"),
            "reason": "T",
            "most": 30,
        },
        "home": {
            "title": both("Home", "Wohnung"),
            "categories": {"de": both("in Germany", "in Deutschland"), "A1": both("abroad", "im Ausland")},
            "reason": "H",
        },
        "paid": {"title": both("Paid", "Bezahlt"), "type": "flag", "reason": "U"},
        "savings": {"title": both("Savings", "Erspartes"), "reason": "U"},
        "assets": {"title": both("Assets", "Vermögen"), "reason": "U"},
        "new": {"title": both("new", "neu")},
        "used": {"title": both("used", "gebraucht")},
    },
    "groups": {"car": {"members": ["new", "used"], "title": both("Car", "Auto"), "reason": "U"}},
    "reasons": {
        "U": both("Credit lines are used too much", "Kreditlinien sind zu stark ausgelastet"),
        "T": {
            "text": both("Length of the term", "Länge der Laufzeit"),
            "missing": both("Term not given", "Laufzeit nicht angegeben"),
            "when": [{"above": 20, "text": both("Term above 20 years", "Laufzeit über 20 Jahre")}],
        },
        "H": both("Home", "Wohnung"),
    },
}
PLAN: dict[str, Any] = {
    "changes": {"use": 39.5, "term": 12.0},
    "regions": {"use": [None, 39.5], "term": [12.0, 30.0]},
    "cost": 1.5,
    "score": 0.1,
    "decision": "approve",
}


def profile(**change: Any) -> DecisionProfile:
    return as_profile({**PROFILE, **change})


def answer(values: dict[str, Any], **members: Any) -> dict[str, Any]:
    """Return a decline by every feature, as an entry decides it."""
    attributions = {"use": 0.3, "term": 0.2, "home": 0.1}
    row = ExplainedRow(0.6, 0.6, 0.0, attributions, None, 0.0)
    reasons = [vars(each) for each in principal_reasons(profile(), row, values)]
    return {"id": "5f", "decision": "decline", "score": 0.6, "reasons": reasons, **members}


def test_texts_are_those_of_the_language_and_codes_stay() -> None:
    whole = profile()
    german = whole.in_language("de")
    assert whole.language == "en"
    assert whole.title("use") == "Utilisation"
    assert (german.languages, german.language, german.translations) == (("de",), "de", {})
    assert german.title("car") == "Auto"
    assert german.features["home"].label("de") == "in Deutschland"
    assert german.reasons["T"].wordings == (
        "Länge der Laufzeit",
        "Laufzeit nicht angegeben",
        "Laufzeit über 20 Jahre",
    )
    assert list(german.reasons) == list(whole.reasons)
    assert {name: rule.reason for name, rule in german.features.items()} == {
        name: rule.reason for name, rule in whole.features.items()
    }
    assert whole.in_language("en").title("use") == "Utilisation"
    with pytest.raises(InvalidOptionError, match="'fr': the decision profile has 'en', 'de'"):
        whole.in_language("fr")


def test_an_entry_keeps_every_language_and_the_digest_covers_them() -> None:
    whole = profile()
    for dumped in (whole.model_dump_json(), whole.model_dump_json(exclude_defaults=True)):
        assert DecisionProfile.model_validate_json(dumped) == whole
        assert DecisionProfile.model_validate_json(dumped).digest == whole.digest
    other = {**PROFILE["reasons"], "U": both("Credit lines are used too much", "Anders")}
    assert profile(reasons=other).digest != whole.digest
    assert as_profile(whole) is whole


def test_a_profile_of_one_language_is_as_before() -> None:
    """Its digest, which old decisions carry, is the one of a profile that names no language."""
    assert as_profile(GOOD).digest == as_profile({**GOOD, "languages": ["en"]}).digest
    assert '"languages"' not in as_profile(GOOD).model_dump_json(exclude_defaults=True)
    assert as_profile({**GOOD, "languages": ["de"]}).in_language("de").title("income") == "Monthly income"
    assert as_profile(changed({"reasons.R01": {"en": "Income"}})).reasons["R01"].text == "Income"


def test_all_missing_texts_are_named_at_once(tmp_path: Path) -> None:
    content = """
output: p
threshold: 0.2
adverse: above
languages: [en, de]
features:
  use: {title: Utilisation, unit: {de: Prozent}, categories: {a: {en: A, de: B}, b: B}}
groups: {car: {members: [new, used], title: {en: Car}}}
reasons:
  U: Credit lines
  T: {text: {en: Term, de: Laufzeit}, missing: {en: No term}, when: [{above: 1, text: {en: Long}}]}
  H: {en: Home, de: Wohnung, fr: Maison}
  L: {en: Home, de: 3}
"""
    with pytest.raises(InvalidProfileError) as error:
        as_profile(written(tmp_path, content))
    assert re.findall(r"\(\d+\) (.*?)\.(?= \(|$)", str(error.value)) == [
        "features.use.title is missing in 'de'",
        "features.use.unit is missing in 'en'",
        "features.use.categories.b is missing in 'de'",
        "groups.car.title is missing in 'de'",
        "reasons.U.text is missing in 'de'",
        "reasons.T.missing is missing in 'de'",
        "reasons.T.when.0.text is missing in 'de'",
        "reasons.H.text is given in 'fr': the profile's languages are 'en', 'de'",
    ]
    with pytest.raises(InvalidProfileError, match=r"reasons\.L\.text must be a text, not the number 3"):
        as_profile({**PROFILE, "reasons": {"L": {"en": "Home", "de": 3}}})


@pytest.mark.parametrize(
    ("languages", "fault"),
    [
        ([], "languages must name at least one language, and each once"),
        (["de", "de"], "languages must name at least one language, and each once"),
        ("de", "languages must be a list, not the text 'de'"),
        (["german"], "languages.0 must be a language such as en or de-AT, not the text 'german'"),
        ([3], "languages.0 must be a text, not the number 3"),
        ({"en": "de"}, "languages must be a list, not a mapping"),
    ],
)
def test_languages_are_a_list_of_codes(languages: Any, fault: str) -> None:
    with pytest.raises(InvalidProfileError, match=re.escape(fault)):
        as_profile({**PROFILE, "languages": languages, "features": {}, "groups": {}, "reasons": {}})


def test_a_text_by_language_needs_the_languages() -> None:
    with pytest.raises(
        InvalidProfileError, match=r"reasons\.R01\.text is given in 'de': the profile's languages are 'en'"
    ):
        as_profile(changed({"reasons.R01": both("Income", "Einkommen")}))


NOTICE_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"notice": {"recourse": True}}, "notice.recourse needs plans, and plans need actionable"),
    (
        {"notice": {"recourse": True}, "actionable": {"age": {}}, "never_disclose": ["age"]},
        "notice.recourse: plans name 'age', which never_disclose hides",
    ),
    (
        {"languages": ["en", "de"], "actionable": {"age": {}, "housing": {}}, "notice": {"recourse": True}}
        | {"features": {"age": {"reason": "R02"}}, "knock_outs": []}
        | {"groups": {"housing": {"members": ["own", "rent"], "title": both("H", "W"), "reason": "R02"}}}
        | {"reasons": {"R02": both("Age", "Alter")}},
        "notices name the features 'age', 'own', 'rent': give a title in 'en', 'de'",
    ),
    (
        {"languages": ["en", "de"], "reasons": {}, "knock_outs": [], "groups": {}}
        | {"features": {"income": {"title": both("Income", "Einkommen")}}},
        "notices name the features 'age', 'own', 'rent': give a title in 'en', 'de'",
    ),
    (
        {"languages": ["en", "de"], "reasons": {"R02": both("Age", "Alter")}, "knock_outs": [], "groups": {}}
        | {"features": {"age": {"unit": both("years", "Jahre"), "reason": "R02"}}},
        "notices name the feature 'age': give a title in 'en', 'de'",
    ),
]


@pytest.mark.parametrize(("change", "fault"), NOTICE_FAULTS, ids=range(len(NOTICE_FAULTS)))
def test_what_a_notice_cannot_tell_is_a_fault(change: dict[str, Any], fault: str) -> None:
    faults = profile_faults(as_profile({**GOOD, **change}), FEATURES_OF_MODEL)
    assert any(fault in each for each in faults), faults


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    ("term", "text"),
    [(12, "Länge der Laufzeit"), (25.5, "Laufzeit über 20 Jahre"), (None, "Laufzeit nicht angegeben")],
)
def test_a_recorded_reason_is_told_in_another_language(term: float | None, text: str, hidden: bool) -> None:
    """A trail may hide the value: then the wording follows from the recorded text."""
    for reason in answer({"use": 90, "term": term, "home": "A1"})["reasons"]:
        kept = reason | (dict.fromkeys(("value", "category", "shown")) if hidden else {})
        told = reason_in_language(profile(), "de", kept)
        assert told["code"] == reason["code"]
        assert told["value"] == kept["value"]
        if reason["code"] == "T":
            shown = {12: "Laufzeit: 12 Jahre", 25.5: "Laufzeit: 25,5 Jahre"}.get(term or 0)
            assert (told["text"], told["shown"]) == (text, None if hidden else shown)
        if reason["code"] == "H":
            assert told["category"] == (None if hidden else "im Ausland")
        assert reason_in_language(profile(), "en", reason) == reason


def test_a_group_and_a_feature_without_a_code_are_told_by_their_titles() -> None:
    titled = profile(
        reasons={},
        features={n: {**r, "reason": None} for n, r in PROFILE["features"].items()},
        groups={"car": {**PROFILE["groups"]["car"], "reason": None}},
    )
    reason = {"code": "car", "text": "Car", "feature": "car", "features": ["car"]}
    for value in ({"new": 1.0, "used": 0.0}, None):
        assert reason_in_language(titled, "de", {**reason, "value": value})["text"] == "Auto"


@pytest.mark.parametrize("template", TEMPLATES)
def test_everything_in_a_notice_is_in_its_language(template: str) -> None:
    variables = {**LENDER, "consumer_report": REPORT, "debt_advice": "advice.example"} | {
        "database": {"name": "R", "contact": "r", "result": "x", "categories": "y"}
    }
    told = answer({"use": 90.5, "term": 25, "home": "A1"}, recourse={"plans": [PLAN]})
    letters = {
        language: notice(told, variables, template, profile=profile(), language=language)
        for language in ("en", "de")
    }
    assert [letter.language for letter in letters.values()] == ["en", "de"]
    given = re.compile(r"A Bank|1 High Street|Springfield|[a-z]+@?[a-z]*\.example")
    lines = {name: {*given.sub("", letter.text).splitlines()} for name, letter in letters.items()}
    same = {line for line in lines["en"] & lines["de"] if re.search("[a-z]{2}", line)}
    assert not {line for line in same if line.removeprefix("- ") not in str(variables)}
    assert (
        "- Kreditlinien sind zu stark ausgelastet (Auslastung: 90,5 %)\n- Laufzeit über 20 Jahre"
        in letters["de"].text
    )
    assert "- Auslastung: höchstens 39,5 %; Laufzeit: mindestens 12 Jahre\n" in letters["de"].text
    assert "- Utilisation: at most 39.5 %; Term: at least 12 years\n" in letters["en"].text
    assert "no promise" in letters["en"].text
    assert "keine Zusage" in letters["de"].text
    assert notice(told, variables, template, profile=profile()) == letters["en"]
    first = profile(languages=["de", "en"])
    of_first = {**told, "reasons": [reason_in_language(profile(), "de", each) for each in told["reasons"]]}
    assert notice(of_first, variables, template, profile=first) == letters["de"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_language_has_the_same_templates_and_variables(language: str) -> None:
    assert {"en", "de"} <= {*LANGUAGES}
    files = {file.name for file in (NOTICES / "en").iterdir()}
    assert {file.name for file in (NOTICES / language).iterdir()} == files
    for name in files:
        ours, theirs = (
            set(
                re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+|(?<={% if )[a-z_]+", (NOTICES / each / name).read_text())
            )
            for each in ("en", language)
        )
        assert ours == theirs
        one, other = (
            meta.find_undeclared_variables(
                Environment(autoescape=True).parse((NOTICES / each / name).read_text())
            )
            for each in ("en", language)
        )
        assert one == other


def test_a_language_without_templates_takes_a_template_of_ones_own(tmp_path: Path) -> None:
    polish = as_profile({**GOOD, "languages": ["pl"]})
    reasons = [{"code": "R03", "text": "Housing situation", "feature": "housing", "features": ["housing"]}]
    told = {"id": "5f", "decision": "decline", "reasons": [{**reasons[0], "value": {"own": 0.5, "rent": 1}}]}
    with pytest.raises(InvalidOptionError, match="it is in de, en, and not in 'pl'"):
        notice(told, LENDER, profile=polish)
    letter = tmp_path / "letter.txt"
    letter.write_text("{{ language }}: {{ reasons | join }} {{ plans | length }}")
    assert notice(told, LENDER, str(letter), profile=polish).text == "pl: Housing situation 0"
    austrian = as_profile({**GOOD, "languages": ["de-AT"]})
    assert "ABGELEHNT" in notice(told, LENDER, "eu-consumer-credit", profile=austrian).text
    with pytest.raises(InvalidOptionError, match="language 'de': the profile that decided is not"):
        notice(told, LENDER, language="de")


@pytest.mark.parametrize(
    ("change", "region", "words"),
    [
        ({"use": 39.5}, [None, 39.5], "Utilisation: at most 39.5 %"),
        ({"use": 39.5}, [39.49999, None], "Utilisation: at least 39.5 %"),
        ({"use": 39.5}, [12.3456, 39.5000001], "Utilisation: 12.4 to 39.5 %"),
        ({"use": 39.5}, [39.4999, 97.654], "Utilisation: 39.5 to 97.6 %"),
        ({"use": 39.5}, [39.4999, 39.54], "Utilisation: 39.5 to 39.54 %"),
        ({"use": 39.5}, [39.46, 39.5000001], "Utilisation: 39.46 to 39.5 %"),
        ({"use": 39.5}, [0.13, 39.5], "Utilisation: 0.13 to 39.5 %"),  # 0.13 in binary is a little more
        ({"use": 39.0}, [39.0, 39.0], "Utilisation: 39 %"),
        ({"use": 39.0}, None, "Utilisation: 39 %"),
        ({"term": 24.0}, [24.0, 30.0], "Term: at least 24 years"),  # the profile takes no more than 30
        ({"home": "A1"}, None, "Home: abroad"),
        ({"paid": True}, None, "Paid: yes"),
        ({"savings": 900.0, "assets": 1900.0}, [900.0, None], "Savings: at least 900"),
        ({"new": 0.0, "used": 1.0}, None, "Car: used"),
        ({"use": 39.5, "home": "de"}, [None, 39.5], "Utilisation: at most 39.5 %; Home: in Germany"),
    ],
)
def test_a_plan_in_plain_words(change: dict[str, Any], region: list[float | None] | None, words: str) -> None:
    plan = {"changes": change, "regions": {} if region is None else {next(iter(change)): region}}
    told = answer({"use": 90, "term": 25, "home": "A1"}, recourse={"plans": [plan]})
    assert f"\n- {words}\n" in notice(told, LENDER, profile=profile()).text


def test_what_a_plan_says_lies_within_its_region() -> None:
    for low, high, value in (
        (12.3456, 39.51, 39.5),
        (1e-45, 5.0, 1e-45),
        (-0.9999999, 1.0, 1.0),
        (-7.77, -1.111, -1.2),
    ):
        plan = {"changes": {"savings": value}, "regions": {"savings": [low, high]}}
        (change,) = planned_changes(profile(), plan)
        assert change.least is not None
        assert change.most is not None
        assert low <= float(change.least) <= value <= float(change.most) <= high


@pytest.mark.parametrize(
    "told",
    [
        answer({"use": 90, "term": 25, "home": "A1"}),
        answer({"use": 90, "term": 25, "home": "A1"}, recourse=None),  # its inputs were erased
        answer({"use": 90, "term": 25, "home": "A1"}, recourse={"plans": [], "note": "none"}),
    ],
)
def test_without_recourse_a_notice_says_nothing_of_it(told: dict[str, Any]) -> None:
    text = notice(told, LENDER, profile=profile()).text
    silent = profile(notice={"recourse": False})
    assert "promise" not in text
    assert "approved it" not in text
    with_plans = {**told, "recourse": {"plans": [PLAN]}}
    assert notice(with_plans, LENDER, profile=silent).text == text
    assert notice(with_plans, LENDER, ADVERSE_ACTION, profile=profile()).text != text


@pytest.mark.parametrize(
    ("language", "text"), [("en", "0.5"), ("de", "0,5"), ("de-CH", "0.5"), ("es-US", "0.5"), ("pl", "0,5")]
)
def test_numbers_are_written_as_the_language_does(language: str, text: str) -> None:
    assert as_profile({**GOOD, "languages": [language]}).number(0.5) == text
    assert as_profile({**GOOD, "languages": [language]}).number(2.0) == "2"
    assert as_profile({**GOOD, "languages": [language]}).number("1.5") == "1.5"
