"""What a form knows of a feature: the profile comes before the references, and types before both."""

from typing import Any

import pytest

from rationale.schema.form import FormField, feature_names, instance_names, knock_out_fields, model_fields
from rationale.schema.manifest import Category, Manifest, Parity, Spread, TensorSpec, Texts
from rationale.schema.profile import DecisionProfile, FeatureRule, KnockOut
from tests.compiler.export import models

SEEN = tuple(Category(value=value, share=share) for value, share in [("", 0.4), ("pt", 0.3), ("ft", 0.2)])


def described(
    datatype: str = "FP32",
    rule: FeatureRule | None = None,
    known: tuple[str, ...] = (),
    splits: tuple[float, ...] = (),
    languages: tuple[str, ...] = ("en",),
    **spread: Any,
) -> FormField:
    """Return the field of one feature "f"."""
    profile = DecisionProfile(
        output="y",
        threshold=0.5,
        adverse="above",
        features={} if rule is None else {"f": rule},
        languages=languages,
    )
    texts = (Texts(known=known, others="refused", missing=False),) if known else ()
    parts: dict[str, Any] = {
        "inputs": (TensorSpec(name="f", datatype=datatype, shape=(1,)),),
        "explained": (),
        "splits": {"f": splits} if splits else {},
    }
    known_texts: dict[str, Any] = {"texts": {"f": texts} if known else {}}
    manifest = Manifest.model_construct(parity=Parity.model_construct(**known_texts), **parts)
    spreads = [Spread(feature="f", **spread)] if spread else []
    (field,) = model_fields(manifest, [("f", "f")], profile, spreads)
    return field


def test_the_profile_comes_before_the_references() -> None:
    field = described(rule=FeatureRule(most=9), quantiles=(1.0, 2.0, 12.0), whole=True)
    assert (field.least, field.most, field.whole, field.begin) == (1.0, 9, True, 2.0)


def test_a_bound_of_zero_is_a_bound() -> None:
    for rule, ends in (
        (FeatureRule(least=0), (0, 2.0)),
        (FeatureRule(most=0), (-5.0, 0)),
        (FeatureRule(least=0, most=0), (0, 0)),
    ):
        field = described(rule=rule, quantiles=(-5.0, 2.0), whole=True)
        assert (field.least, field.most) == ends


@pytest.mark.parametrize(("datatype", "whole"), [("FP32", None), ("INT32", True)])
def test_without_references_the_type_alone_says_what_is_whole(datatype: str, whole: bool | None) -> None:
    field = described(datatype)
    assert (field.least, field.most, field.whole, field.begin) == (None, None, whole, 0.0)


def test_what_is_not_known_is_absent() -> None:
    assert described().model_dump(exclude_none=True) == {
        "name": "f",
        "input": "f",
        "kind": "number",
        "missing": False,
        "integer": False,
        "begin": 0.0,
    }


@pytest.mark.parametrize(
    ("rule", "choices"),
    [
        (FeatureRule(categories={"ft": "Full time"}, open=True), ("pt", "ft", "x")),
        (FeatureRule(categories={"self": "Own firm"}, open=True), ("pt", "ft", "x", "self")),
        (FeatureRule(open=True), ("pt", "ft", "x")),
        (FeatureRule(categories={"ft": "Full time", "x": "X"}), ("ft", "x")),
        (None, ("pt", "ft", "x")),
    ],
)
def test_texts_to_choose_from(rule: FeatureRule | None, choices: tuple[str, ...]) -> None:
    """Of open categories the references' and the model's texts are offered too; an empty one is none."""
    field = described("BYTES", rule, known=("ft", "x"), categories=SEEN)
    assert (field.choices, field.categories) == (choices, SEEN)
    assert field.value_labels == (dict(rule.categories) if rule and rule.categories else None)
    assert field.begin == ("pt" if "pt" in choices else choices[0])


def test_of_a_text_of_which_nothing_is_known_any_may_be_written() -> None:
    field = described("BYTES")
    assert (field.choices, field.value_labels, field.begin) == (None, None, "")


@pytest.mark.parametrize(
    ("rule", "known", "choices", "labels", "begin"),
    [
        (
            FeatureRule(categories={"1.0": "one", "2.50": "more"}),
            (),
            (1, 2.5),
            {"1": "one", "2.5": "more"},
            1,
        ),
        (FeatureRule(categories={"7": "seven", "2": "two"}), (), (7, 2), {"7": "seven", "2": "two"}, 2),
        (FeatureRule(categories={"-1": "never"}, open=True), (), None, {"-1": "never"}, 2),
        (FeatureRule(categories={"-1": "never"}, open=True), ("2", "3"), (2, 3), {"-1": "never"}, 2),
        (None, ("3", "2"), (3, 2), None, 2),
        (FeatureRule(type="flag"), (), (0, 1), {"0": "no", "1": "yes"}, 0),
        (FeatureRule(type="flag", categories={"1": "x"}), (), (1,), {"1": "x"}, 1),
        (None, (), None, None, 2),
    ],
)
def test_numbers_to_choose_from(
    rule: FeatureRule | None, known: tuple[str, ...], choices: Any, labels: Any, begin: float
) -> None:
    field = described("FP32", rule, known=known, quantiles=(1.0, 2.0, 12.0))
    assert (field.choices, field.value_labels, field.begin) == (choices, labels, begin)


@pytest.mark.parametrize(
    ("categories", "labels"),
    [
        ({}, ["no", "yes"]),
        ({"1": "owner"}, ["no", "owner"]),
        ({"true": "owner", "0": "tenant"}, ["tenant", "owner"]),
    ],
)
def test_a_flag_is_no_or_yes(categories: dict[str, str], labels: list[str]) -> None:
    field = described("BOOL", FeatureRule(categories=categories))
    assert (field.kind, field.choices, field.begin) == ("flag", (False, True), False)
    assert field.value_labels == dict(zip(("false", "true"), labels, strict=True))


@pytest.mark.parametrize(
    ("languages", "labels"),
    [
        (("en-GB",), ["no", "yes"]),
        (("de",), ["nein", "ja"]),
        (("de-AT",), ["nein", "ja"]),
        (("fr",), ["no", "yes"]),
    ],
)
def test_a_flag_is_told_in_the_profile_s_language(languages: tuple[str, ...], labels: list[str]) -> None:
    for datatype, rule in (("BOOL", None), ("FP32", FeatureRule(type="flag"))):
        told = described(datatype, rule, languages=languages).value_labels
        assert told is not None
        assert list(told.values()) == labels


@pytest.mark.parametrize(("share", "begin"), [(0.5, 2.0), (0.6, None)])
def test_a_number_that_most_lack_begins_missing(share: float, begin: float | None) -> None:
    assert described(quantiles=(1.0, 2.0, 3.0), missing=share).begin == begin


def test_without_a_median_it_begins_in_the_middle_of_what_the_profile_takes() -> None:
    assert described(rule=FeatureRule(least=18, most=99)).begin == 58.5
    assert described("INT32", FeatureRule(least=18, most=99)).begin == 59
    assert described(rule=FeatureRule(least=18)).begin == 18


def test_what_knock_outs_alone_look_at() -> None:
    rules = (
        KnockOut(feature="debts", reason="R", above=3),
        KnockOut(feature="debts", reason="R", equals=-1),
        KnockOut(feature="fraud", reason="R", equals=True),
        KnockOut(feature="country", reason="R", equals="XX"),
        KnockOut(feature="age", reason="R", below=18),
        KnockOut(feature="standing", reason="R", above=3),
        KnockOut(feature="standing", reason="R", equals="insolvent"),
        KnockOut(feature="frozen", reason="R", above=0),
        KnockOut(feature="frozen", reason="R", equals=True),
    )
    features = {"fraud": FeatureRule(title="Fraud")}
    profile = DecisionProfile(output="y", threshold=0.5, adverse="above", knock_outs=rules, features=features)
    found = knock_out_fields(profile, {"age"})
    assert [(one.name, one.kind) for one in found] == [
        ("debts", "number"),
        ("fraud", "flag"),
        ("country", "text"),
        ("standing", "text"),
        ("frozen", "flag"),
    ]
    assert all(one.missing and one.input is None and one.begin is None for one in found)
    assert (found[0].least, found[0].most) == (-1, 6)
    assert (found[1].title, found[1].choices) == ("Fraud", (False, True))


def test_fields_are_of_the_named_features_alone() -> None:
    manifest = models.double().manifest
    names = feature_names(manifest)
    (tensor, (first, *_)) = next(iter(names.items()))
    (field,) = model_fields(manifest, [(first, tensor)], None, ())
    assert (field.name, field.input, field.title) == (first, tensor, None)


def test_an_instance_names_features_and_single_inputs() -> None:
    """The network explains x alone."""
    manifest = models.integers().manifest
    features = [("x[0]", "x"), ("x[1]", "x")]
    assert instance_names(manifest) == [*features, ("months", "months"), ("own", "own")]


@pytest.mark.parametrize(
    ("conditions", "rule", "ends"),
    [
        ([{"above": 0}], {}, (0, 1)),  # never a range of one number
        ([{"equals": 0}], {}, (0, 1)),
        ([{"below": 18}], {}, (0, 36)),
        ([{"above": 0.25}], {}, (0, 1)),
        ([{"above": 2, "below": 9}], {}, (0, 18)),
        ([{"below": -2}], {}, (-2, -1)),
        ([{"below": -2}, {"above": 3}], {}, (-2, 6)),
        ([{"above": 0}], {"least": -5}, (-5, 0)),
        ([{"above": 0}], {"least": 7}, (7, 8)),
        ([{"above": 0}], {"most": 12}, (0, 12)),
        ([{"above": 3}], {"least": 1, "most": 2}, (1, 2)),
        ([{"equals": "own"}], {}, (None, None)),
        ([{"equals": True}], {}, (None, None)),
    ],
)
def test_a_feature_of_knock_outs_has_a_range_around_their_bounds(
    conditions: list[dict[str, Any]], rule: dict[str, Any], ends: tuple[float | None, float | None]
) -> None:
    profile = DecisionProfile.model_validate(
        {
            "output": "y",
            "threshold": 0.5,
            "adverse": "above",
            "features": {"cards": rule},
            "knock_outs": [{"feature": "cards", "reason": "R", **condition} for condition in conditions],
        }
    )
    (field,) = knock_out_fields(profile, ())
    assert (field.least, field.most) == ends
