"""Decision profiles: read from files and mappings of any kind, and held against names of features."""

import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rationale import DeepShap, compile_model
from rationale.errors import InvalidProfileError
from rationale.profiles.faults import ProfiledFeatures, profile_faults, profile_remarks
from rationale.schema.profile import DecisionProfile, as_profile
from tests.compiler.models import parsed

GOOD: Mapping[str, Any] = {
    "output": "score[1]",
    "threshold": 0.2,
    "refer": [0.18, 0.22],
    "adverse": "above",
    "references": {"policy": "near_threshold"},
    "features": {
        "income": {"title": "Monthly income", "unit": "EUR", "reason": "R01"},
        "age": {"reason": "R02"},
    },
    "groups": {"housing": {"members": ["own", "rent"], "title": "Housing", "reason": "R03"}},
    "reasons": {
        "R01": "Income insufficient",
        "R02": {"text": "Age", "missing": "Age not given", "when": [{"text": "Too young", "below": 21}]},
        "R03": "Housing situation",
        "R09": "Bankruptcy",
    },
    "knock_outs": [{"feature": "bankruptcies", "above": 0, "reason": "R09"}],
}
FEATURES_OF_MODEL = ProfiledFeatures(["income", "age", "own", "rent"], inputs=["x"])


def written(folder: Path, content: str | bytes) -> Path:
    file = folder / "decision.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def changed(change: Mapping[str, Any]) -> dict[str, Any]:
    """The good one with other values; a key with dots goes deeper."""
    profile: dict[str, Any] = yaml.safe_load(yaml.safe_dump(dict(GOOD), sort_keys=False))
    for place, value in change.items():
        *parents, last = place.split(".")
        inner = profile
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return profile


def test_a_file_and_a_mapping_say_the_same(tmp_path: Path) -> None:
    profile = as_profile(written(tmp_path, "﻿" + yaml.safe_dump(dict(GOOD), sort_keys=False)))
    assert profile == as_profile(GOOD) == as_profile(profile)
    assert (profile.tensor, profile.index) == ("score", 1)
    assert not profile_faults(profile, FEATURES_OF_MODEL)
    assert not profile_remarks(profile, FEATURES_OF_MODEL)


def test_the_digest_is_of_what_it_says_and_in_which_order() -> None:
    digest = as_profile(GOOD).digest
    same = changed({"version": 1, "max_reasons": 4, "never_disclose": [], "threshold": 0.20})
    assert as_profile(same).digest == digest
    assert DecisionProfile.model_validate_json(as_profile(GOOD).model_dump_json()).digest == digest
    for other in ({"threshold": 0.21}, {"reasons": dict(reversed(GOOD["reasons"].items()))}):
        assert as_profile(changed(other)).digest != digest


# -- files that are none ---------------------------------------------------------------------------------

FILES: list[tuple[str | bytes, str]] = [
    ("", "not empty"),
    ("- output", "not a list of 1"),
    ("output", "not the text 'output'"),
    ("output: [", "is not YAML: .* line 1"),
    ("a: 1\n---\nb: 2", "is not YAML: expected a single document"),
    (b"\xff\xfeo\0", "is not UTF-8: .* at byte 0"),
    (b"a: \0", "is not YAML: unacceptable character"),
    ("a: &a [1, 1]\nb: &b [*a, *a]", r"line 2: aliases \(\*name\) are not supported"),
    ("[" * 100_000, "is nested too deep"),
    ("a: " + "9" * 5000, "is not YAML"),
    ("a: 2026-13-45", "is not YAML: month must be in"),
    ("a: !!bool maybe", "is not YAML: 'maybe'"),
    ("a: !!timestamp x", "is not YAML"),
    ("a: !!int ''", "is not YAML"),
    ("a: !!python/object/apply:os.getcwd []", "is not YAML: could not determine a constructor"),
    ("? [a]\n: b", "is not YAML: .* unhashable key"),
    ("a: " + "b" * (1 << 20), "is larger than 1 MiB"),
]


@pytest.mark.parametrize(("content", "fault"), FILES, ids=range(len(FILES)))
def test_a_file_that_is_no_profile(tmp_path: Path, content: str | bytes, fault: str) -> None:
    with pytest.raises(InvalidProfileError, match=fault) as caught:
        as_profile(written(tmp_path, content))
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("path", ["nowhere.yaml", ".", "a\0b"])
def test_a_path_that_is_no_file(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidProfileError, match=re.escape(str(tmp_path / path))):
        as_profile(tmp_path / path)


def test_what_yaml_takes_for_no_text_is_told(tmp_path: Path) -> None:
    text = yaml.safe_dump(changed({}), sort_keys=False)
    text = (
        text.replace("reason: R01", "reason: 7").replace("R09:", "false:").replace("unit: EUR", "unit: 1e5")
    )
    with pytest.raises(InvalidProfileError) as caught:
        as_profile(written(tmp_path, f"{text}adverse: above\n"))
    message = str(caught.value)
    assert "4 problems" in message
    assert "'adverse' is given twice" in message
    for fault in (
        "features.income.reason must be a text, not the number 7: put it in quotes",
        "features.income.unit must be a text, not the number 100000.0: put it in quotes",
        "reasons.False must be a text, not the flag false: put it in quotes",
    ):
        assert fault in message


@pytest.mark.parametrize("text", ["10:30", "0o17", "017", "1_000"])
def test_what_only_yaml_1_1_takes_for_a_number(tmp_path: Path, text: str) -> None:
    profile = yaml.safe_dump(changed({"threshold": 12345}), sort_keys=False).replace("12345", text)
    with pytest.raises(InvalidProfileError, match=f"threshold .*'{text}'"):
        as_profile(written(tmp_path, profile))


def test_words_and_numbers_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = yaml.safe_dump(changed({}), sort_keys=False).replace("R09", "NO")
    text = text.replace("Age not given", "true story").replace("Too young", "1e3 years")
    profile = as_profile(written(tmp_path, text.replace("above: 0", "equals: on") + "tolerance: 1e-4\n"))
    assert (profile.tolerance, profile.reasons["NO"].text) == (1e-4, "Bankruptcy")
    assert profile.knock_outs[0].equals == "on"
    profile = as_profile(written(tmp_path, text.replace("above: 0", "equals: true")))
    assert profile.knock_outs[0].equals is True
    assert (profile.reasons["R02"].missing, profile.reasons["R02"].when[0].text) == (
        "true story",
        "1e3 years",
    )


KINDS: list[tuple[dict[str, Any], str]] = [
    (
        {"treshold": 0.3},
        r"treshold is not a key of a profile \(do you mean 'threshold'\?\): there are version, out",
    ),
    ({"features.str": {"equals": "x"}}, "features.str.equals is not a key of a profile"),
    ({"features.income.titel": "x"}, r"features.income.titel .*'title'.*: there are title, unit, type"),
    ({"reasons.R02.when": [{"text": "a", "abov": 3}]}, r"reasons.R02.when.0.abov .*'above'"),
    ({"threshold": "0.2"}, "threshold must be a number, not the text '0.2'"),
    ({"threshold": True}, "threshold must be a number, not the flag true"),
    ({"threshold": float("nan")}, "threshold must be a finite number, not the number nan"),
    ({"threshold": 10**400}, "threshold must be a number"),
    ({"tolerance": "1e-4"}, "tolerance must be a number, not the text '1e-4'"),
    ({"tolerance": 0}, "tolerance must be greater than 0, not the number 0"),
    ({"output": "  "}, "output must be a text that is not blank"),
    ({"output": "a\ud800"}, r"output must be a text of Unicode, not the text 'a\\ud800'"),
    ({"reasons.R01": "a\ud800"}, "reasons.R01.text must be a text of Unicode"),
    (
        {"knock_outs": [{"feature": "a", "equals": "\ud800", "reason": "R09"}]},
        "a name or value is not valid Unicode",
    ),
    ({"features.equals": 5}, "features.equals must be a mapping, not the number 5"),
    ({"reasons.R01": {"[key]": {}, "text": "a"}}, r"reasons.R01.\[key\] is not a key"),
    ({"version": 2}, "version must be 1, not the number 2: use the newer Rationale for which"),
    ({"version": "1"}, "version must be 1, not the text '1'\\.$"),
    ({"adverse": "up"}, "adverse must be 'above' or 'below', not the text 'up'"),
    (
        {"references.policy": "nearest"},
        "references.policy must be 'near_threshold', 'all_applicants', 'approved'",
    ),
    ({"features.income.least": "0"}, "features.income.least must be a number, not the text '0'"),
    ({"features.income.open": "yes"}, "features.income.open must be true or false, not the text 'yes'"),
    (
        {"features.income.categories": {"a": ""}},
        "features.income.categories.a must be a text that is not blank",
    ),
    ({"groups.housing.least": 0}, "groups.housing.least is not a key of a profile"),
    ({"outside": "ignore"}, "outside must be 'refuse' or 'warn', not the text 'ignore'"),
    ({"refer": [0.1]}, "refer.1 is missing"),
    ({"refer": [0.1, 0.2, 0.3]}, "refer must be a list of 2, not a list of 3"),
    ({"max_reasons": 0}, "max_reasons must be 1 or more, not the number 0"),
    ({"least_share": 1.5}, "least_share must be 1 or less, not the number 1.5"),
    ({"least_share": -0.1}, "least_share must be 0 or more, not the number -0.1"),
    ({"max_reasons": 2.5}, "max_reasons must be a whole number, not the number 2.5"),
    ({"features": None}, "features must be a mapping, not empty"),
    ({"features.income": "R01"}, "features.income must be a mapping, not the text 'R01'"),
    ({"features": {5: {}}}, "features.5 must be a text, not the number 5: put it in quotes"),
    ({"groups.housing.members": []}, "groups.housing.members must be a list of 1 or more"),
    ({"reasons.R01": 5}, "reasons.R01 must be a text, or a mapping with the key text, not the number 5"),
    ({"reasons.R01": ""}, "reasons.R01.text must be a text that is not blank"),
    ({"reasons.R02.inquiry": "yes"}, "reasons.R02.inquiry must be true or false, not the text 'yes'"),
    ({"knock_outs": {"feature": "a"}}, "knock_outs must be a list, not a mapping"),
    ({"never_disclose": "age"}, "never_disclose must be a list, not the text 'age'"),
    (
        {"knock_outs": [{"feature": "land", "equals": [1], "reason": "R09"}]},
        "knock_outs.0.equals must be a number, a flag or a text, not a list of 1",
    ),
]


@pytest.mark.parametrize(("change", "fault"), KINDS, ids=[", ".join(change) for change, _ in KINDS])
def test_a_value_of_another_kind(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidProfileError, match=f"^decision: {fault}"):
        as_profile(changed(change))


# -- names, codes, groups and conditions -----------------------------------------------------------------

SENSE: list[tuple[dict[str, Any], str]] = [
    (
        {"features.incme": {"reason": "R01"}},
        r"features: the model has no feature 'incme' \(do you mean 'income'",
    ),
    (
        {"features.a": {}, "features.b": {}},
        "the model has no features 'a', 'b': there are 'income', 'age', 'own'",
    ),
    ({"features.age": {}}, "features: no reason code for 'age': give each one, since others have one"),
    ({"features.income.reason": "R1"}, r"reasons: the code 'R1' has no text \(do you mean 'R01'\?\)"),
    ({"features.own": {"reason": "R01"}}, "features.own is explained with the group 'housing'"),
    (
        {"features.age.least": 3, "features.age.most": 2},
        "features.age takes no value: least 3 is more than most 2",
    ),
    ({"features.age.open": True}, "features.age.open: open needs categories"),
    (
        {"features.age.categories": {"1": "one", "old": "old", "true": "yes"}},
        "features.age holds numbers, so that it never is one of the categories 'old'$",
    ),
    ({"features.housing": {"reason": "R03"}}, "features.housing is a group: say it under groups.housing"),
    (
        {"groups.housing.members": ["own", "rnt"]},
        r"groups.housing: the model has no feature 'rnt' \(do you mean 're",
    ),
    ({"groups.housing.members": ["own", "rent", "own"]}, "groups.housing names the member 'own' twice"),
    (
        {"groups.other": {"members": ["rent"], "reason": "R03"}},
        "feature 'rent' is in the groups 'housing', 'other'",
    ),
    (
        {"groups.age": {"members": ["age"], "reason": "R02"}},
        "groups.age is called like a feature of the model",
    ),
    (
        {"knock_outs": [{"feature": "housing", "above": 0, "reason": "R09"}]},
        r"knock_outs.0 \(housing\) tests a gro",
    ),
    (
        {"knock_outs": [{"feature": "x", "above": 0, "reason": "R09"}]},
        r"knock_outs.0 \(x\) tests a whole input",
    ),
    ({"knock_outs": [{"feature": "b", "reason": "R09"}]}, r"knock_outs.0 \(b\) needs one condition"),
    ({"knock_outs": [{"feature": "b", "reason": "R09", "equals": 1, "above": 0}]}, "needs one condition"),
    (
        {"knock_outs": [{"feature": "b", "reason": "R09", "above": 1, "below": 1}]},
        "no value is above 1 and below 1",
    ),
    (
        {"knock_outs": [{"feature": "age", "reason": "R09", "equals": "18"}]},
        "holds numbers, so leave the quotes out",
    ),
    ({"knock_outs": [{"feature": "b", "above": 0, "reason": "R10"}]}, "the code 'R10' has no text"),
    ({"reasons.R02.when": [{"text": "Young"}]}, "reasons.R02.when.0 needs one condition"),
    (
        {"never_disclose": ["rent"]},
        "never_disclose: 'rent' is explained with the group 'housing': name the group",
    ),
    ({"never_disclose": ["ag"]}, r"never_disclose: the model has no feature 'ag' \(do you mean 'age'\?\)"),
    ({"protected": ["Age"]}, "protected: the model has the input 'age': train it without"),
    ({"protected": ["housing"]}, "protected: the model has the input 'housing'"),
    ({"protected": ["X"]}, "protected: the model has the input 'x'"),
    (
        {"protected": ["sex"], "knock_outs": [{"feature": "Sex", "equals": 1, "reason": "R09"}]},
        "protected: a knock-out declines by the attribute 'Sex': leave it out",
    ),
    (
        {"reasons.R03": {"text": "Housing", "when": [{"above": 1, "text": "Rents"}]}},
        "reasons.R03.when is never met: a group has no single value",
    ),
    (
        {"protected": ["age"], "allow_protected": ["age", "agee"]},
        "allow_protected: the name 'agee' is not under prot",
    ),
    ({"refer": [0.22, 0.18]}, r"refer \[0.22, 0.18\] is not from low to high"),
    ({"refer": [0.21, 0.3]}, r"refer \[0.21, 0.3\] does not hold the threshold 0.2"),
]


@pytest.mark.parametrize(("change", "fault"), SENSE, ids=range(len(SENSE)))
def test_what_makes_no_sense_or_fits_no_feature(change: dict[str, Any], fault: str) -> None:
    faults = profile_faults(as_profile(changed(change)), FEATURES_OF_MODEL)
    assert any(re.search(fault, item) for item in faults), faults


def test_conditions_on_text() -> None:
    model_features = ProfiledFeatures(FEATURES_OF_MODEL.features, texts={"age"})
    rules = [
        {"feature": "age", "reason": "R09", key: value}
        for key, value in {"above": 1, "equals": "old"}.items()
    ]
    (fault,) = profile_faults(as_profile(changed({"knock_outs": rules})), model_features)
    assert "knock_outs.0 (age) is never met: the feature holds text" in fault
    (fault,) = profile_faults(as_profile(changed({"features.age.type": "number"})), model_features)
    assert "features.age holds text: its type is category, not number" in fault
    (fault,) = profile_faults(as_profile(changed({"features.age.most": 3})), model_features)
    assert fault == "features.age holds text: least and most are of numbers"


FINE: list[dict[str, Any]] = [
    {"features": {}, "groups": {}},  # no codes at all: features are named by themselves
    {"features.bankruptcies": {"title": "Bankruptcies"}},  # at which a knock-out looks
    {"knock_outs": [{"feature": "age", "above": 10, "below": 18, "reason": "R09"}]},
    {"knock_outs": [{"feature": "own", "equals": 0, "reason": "R09"}]},
    {"never_disclose": ["housing", "age", "bankruptcies"]},
    {"protected": ["age", "sex"], "allow_protected": ["age"]},
    {"refer": [0.2, 0.2]},
    {"features.own": {"least": 0, "most": 1}},  # a member, whose reason is the group's
    {"features.bankruptcies": {"categories": {"none": "None"}, "least": 0}},
]


@pytest.mark.parametrize("change", FINE, ids=range(len(FINE)))
def test_what_is_fine(change: dict[str, Any]) -> None:
    assert not profile_faults(as_profile(changed(change)), FEATURES_OF_MODEL)


REMARKS: list[tuple[dict[str, Any], str]] = [
    ({"knock_outs": []}, "no feature, group or knock-out has the reason 'R09'"),
    ({"references.policy": "approved"}, r"the references are 'approved'; comment 9\(b\)\(2\)-5"),
    ({"references": {}}, "the references are 'custom'"),
    ({"max_reasons": 5}, "up to 5 reasons"),
    (
        {"protected": ["RE"], "groups.housing.members": ["own", "re_nt"]},
        "is the protected 'RE' in the input 're_nt'",
    ),
]


@pytest.mark.parametrize(("change", "remark"), REMARKS, ids=range(len(REMARKS)))
def test_what_is_odd_and_may_be_meant(change: dict[str, Any], remark: str) -> None:
    features = ProfiledFeatures(["income", "age", "own", "rent", "re_nt"])
    (message,) = profile_remarks(as_profile(changed(change)), features)
    assert message.startswith("decision: ")
    assert re.search(remark, message), message


@pytest.mark.parametrize(
    ("bounds", "is_fine"),
    [
        ({"refer": [0.0, 0.3]}, True),  # a band may reach to the ends
        ({"refer": [0.3, 1.0]}, True),
        ({"threshold": 1.0}, True),
        ({"threshold": 0.0, "adverse": "below"}, True),
        ({"refer": [-0.01, 0.3]}, False),
        ({"refer": [0.3, 1.01]}, False),
        ({"threshold": 1.01}, False),
        ({"threshold": 1.01, "space": "margin"}, False),
    ],
)
def test_bounds_lie_where_scores_can(bounds: dict[str, Any], is_fine: bool) -> None:
    model = parsed("g (float[N, 1] x) => (float[N, 1] p) { p = Sigmoid (x) }")
    profile = {"output": "p", "threshold": 0.3, "adverse": "above", **bounds}
    said = nullcontext() if is_fine else pytest.raises(InvalidProfileError, match="is outside of 'p', 0 to 1")
    with said:
        compile_model(
            model, DeepShap(np.array([[-1.0], [1.0]], np.float32)), feature_names=["a"], decision=profile
        )
