"""What a form knows of a feature: the profile comes before the references, and types before both."""

import pytest

from rationale.schema.form import Field, feature_names, knock_out_fields, model_fields
from rationale.schema.manifest import Spread, TensorSpec
from rationale.schema.profile import DecisionProfile, FeatureRule, KnockOut
from tests.compiler.export import models


def test_the_profile_comes_before_the_references() -> None:
    rule, spread = FeatureRule(most=9), Spread(feature="a", quantiles=(1.0, 2.0, 12.0), whole=True)
    field = Field("a", TensorSpec(name="x", datatype="FP32", shape=(1,)), "number", False, rule, spread)
    assert (field.least, field.most, field.whole) == (1.0, 9, True)


def test_a_bound_of_zero_is_a_bound() -> None:
    spread = Spread(feature="a", quantiles=(-5.0, 2.0), whole=True)
    spec = TensorSpec(name="x", datatype="FP32", shape=(1,))
    for rule, ends in (
        (FeatureRule(least=0), (0, 2.0)),
        (FeatureRule(most=0), (-5.0, 0)),
        (FeatureRule(least=0, most=0), (0, 0)),
    ):
        field = Field("a", spec, "number", False, rule, spread)
        assert (field.least, field.most) == ends


@pytest.mark.parametrize(("datatype", "whole"), [("FP32", None), ("INT32", True)])
def test_without_references_the_type_alone_says_what_is_whole(datatype: str, whole: bool | None) -> None:
    field = Field("a", TensorSpec(name="x", datatype=datatype, shape=(1,)), "number", False)
    assert (field.least, field.most, field.whole) == (None, None, whole)


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
    assert all(one.missing and one.spec is None for one in found)
    assert found[1].rule.title == "Fraud"


def test_fields_are_of_the_named_features_alone() -> None:
    manifest = models.double().manifest
    names = feature_names(manifest)
    (tensor, (first, *_)) = next(iter(names.items()))
    (field,) = model_fields(manifest, [(first, tensor)], None, ())
    assert (field.name, field.spec, field.rule, field.spread) == (
        first,
        manifest.inputs[0],
        FeatureRule(),
        None,
    )
