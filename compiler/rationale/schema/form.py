"""The description of a form: each feature with its title, unit, range, words, rule and a typical value."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from rationale.schema.manifest import FLOATS, Category, Frozen, Manifest, Spread, TensorSpec, Texts, names_of
from rationale.schema.profile import DecisionProfile, FeatureRule, KnockOut, as_category, number_of

Kind = Literal["number", "text", "flag"]
Value = bool | float | str
_NO_RULE = FeatureRule()
_KINDS: dict[str, Kind] = {"BYTES": "text", "BOOL": "flag"}
_FLAGS = {"en": {"0": "no", "1": "yes"}, "de": {"0": "nein", "1": "ja"}}


class FormField(Frozen):
    """One feature: the values that the model takes, the profile's texts, the spread of the references.

    The API's answer, the console and exported pages read this description alone. Unknown members are absent.
    """

    name: str
    input: str | None = Field(
        None, description="the model's input; absent for a feature that only knock-outs test"
    )
    kind: Kind
    title: str | None = Field(None, description="title in the decision profile")
    unit: str | None = Field(None, description="unit in the decision profile")
    missing: bool = Field(description="whether null may stand for a missing value")
    integer: bool = Field(False, description="whether the model takes only whole numbers")
    whole: bool | None = Field(None, description="whether its numbers are whole, if that is known")
    least: float | None = Field(
        None,
        description="least value of the decision profile, else of the references, else near knock-outs",
    )
    most: float | None = Field(None, description="largest value, from the same source")
    quantiles: tuple[float, ...] | None = Field(
        None, description="quantiles of the references' numbers at 0, 5 … 100%"
    )
    missing_share: float | None = Field(None, description="share of the references without a value")
    categories: tuple[Category, ...] | None = Field(
        None, description="values of a text, each with its share of the references"
    )
    choices: tuple[Value, ...] | None = Field(
        None,
        description="the values to choose from: categories of the decision profile, else texts of the "
        "references or the model; absent if other values are allowed",
    )
    value_labels: dict[str, str] | None = Field(
        None, description="labels in the decision profile by value (1, true)"
    )
    splits: tuple[float, ...] | None = Field(
        None,
        description="ascending numbers at which the answer of trees that read it directly may change; "
        "between two of them the answer is the same",
    )
    begin: Value | None = Field(
        None,
        description="a typical value: the references' median or most frequent text; absent if most of them "
        "lack one, or only knock-outs test the feature",
    )


def feature_names(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Return the names of the features of every input, as explanations and decisions have them."""
    names = manifest.feature_names
    return {
        spec.name: names_of(spec.name, names.get(spec.name), math.prod(spec.shape))
        for spec in manifest.inputs
    }


def instance_names(manifest: Manifest) -> list[tuple[str, str]]:
    """Return an instance's names, each with its input: features, and single-value inputs without any."""
    owners = [(name, tensor) for name, (tensor, _) in manifest.places.items()]
    named = {tensor for _, tensor in owners}
    single = (spec.name for spec in manifest.inputs if all(size == 1 for size in spec.shape))
    return [*owners, *((name, name) for name in single if name not in named)]


def model_fields(
    manifest: Manifest,
    features: Iterable[tuple[str, str]],
    profile: DecisionProfile | None,
    spreads: Iterable[Spread],
) -> list[FormField]:
    """Return the fields of features that the model takes.

    Args:
        features: each with its input's name, in their order.
    """
    specs = {spec.name: spec for spec in manifest.inputs}
    spreads_by_feature = {spread.feature: spread for spread in spreads}
    rules, texts = profile.features if profile else {}, manifest.texts_by_feature
    flags = _flags(profile)
    return [
        _model_field(
            name,
            specs[tensor],
            tensor in manifest.takes_missing,
            rules.get(name, _NO_RULE),
            spreads_by_feature.get(name, Spread(feature=name)),
            texts.get(name),
            manifest.splits.get(name),
            flags,
        )
        for name, tensor in features
    ]


def knock_out_fields(profile: DecisionProfile, model_names: Collection[str]) -> list[FormField]:
    """Return fields of the features that knock-outs test and the model does not take.

    Args:
        model_names: names of the model's features and inputs.
    """
    compared: dict[str, list[KnockOut]] = {}
    for rule in profile.knock_outs:
        if rule.feature not in model_names:
            compared.setdefault(rule.feature, []).append(rule)
    return [
        _knock_out_field(name, knock_outs, profile.features.get(name, _NO_RULE), _flags(profile))
        for name, knock_outs in compared.items()
    ]


def _model_field(
    name: str,
    spec: TensorSpec,
    missing: bool,
    rule: FeatureRule,
    spread: Spread,
    texts: Texts | None,
    splits: tuple[float, ...] | None,
    flags: Mapping[str, str],
) -> FormField:
    kind = _KINDS.get(spec.datatype, "number")
    integer = kind == "number" and spec.datatype not in FLOATS
    quantiles = spread.quantiles
    options = [each.value for each in spread.categories if each.value] + [*(texts.known if texts else ())]
    choices = _choices(kind, rule, [*dict.fromkeys(options)])
    least, most = (quantiles[0], quantiles[-1]) if quantiles else (None, None)
    return FormField(
        name=name,
        input=spec.name,
        kind=kind,
        title=rule.title,
        unit=rule.unit,
        missing=missing,
        integer=integer,
        whole=True if integer else spread.whole if quantiles else None,
        least=least if rule.least is None else rule.least,
        most=most if rule.most is None else rule.most,
        quantiles=quantiles or None,
        missing_share=spread.missing if quantiles or spread.categories or spread.missing else None,
        categories=spread.categories or None,
        choices=choices,
        value_labels=_labels(kind, rule, flags),
        splits=splits,
        begin=_begin(kind, rule, spread, choices, whole=integer),
    )


def _knock_out_field(
    name: str, knock_outs: Sequence[KnockOut], rule: FeatureRule, flags: Mapping[str, str]
) -> FormField:
    types = {type(each.equals) for each in knock_outs}
    kind: Kind = "flag" if bool in types else "text" if str in types else "number"
    least, most = rule.least, rule.most
    if kind == "number":
        ends = [float(end) for k in knock_outs for end in (k.above, k.below, k.equals) if end is not None]
        least = min(0.0, *ends) if least is None else least
        most = max(2 * max(ends), least + 1) if most is None else most
    return FormField(
        name=name,
        kind=kind,
        title=rule.title,
        unit=rule.unit,
        missing=True,
        least=least,
        most=most,
        choices=_choices(kind, rule, ()),
        value_labels=_labels(kind, rule, flags),
    )


def _choices(kind: Kind, rule: FeatureRule, options: Sequence[str]) -> tuple[Value, ...] | None:
    """Return the values to choose from; None if any may be written.

    Args:
        options: texts, or numbers as texts, of the references and of the model.
    """
    categories = [*rule.categories]
    if kind == "flag":
        return (False, True)
    if kind == "text":
        return tuple(dict.fromkeys([*options, *categories] if rule.open else categories or options)) or None
    if categories and not rule.open:
        return _numbers(categories)
    if options:
        return _numbers(options)
    return (0.0, 1.0) if rule.type == "flag" and not categories else None


def _numbers(keys: Iterable[str]) -> tuple[float, ...] | None:
    numbers = (number_of(key) for key in keys)
    return tuple(number for number in numbers if number is not None and math.isfinite(number)) or None


def _flags(profile: DecisionProfile | None) -> dict[str, str]:
    """Return words for 0 and 1 of a flag in a profile's language; English if there are none in it."""
    language = profile.language.partition("-")[0] if profile else ""
    return _FLAGS.get(language, _FLAGS["en"])


def _labels(kind: Kind, rule: FeatureRule, flags: Mapping[str, str]) -> dict[str, str] | None:
    """Return the labels of values, by the values' texts: "1" for 1.0, "true" for a flag.

    Args:
        flags: words for 0 and 1 of a flag without labels of its own.
    """
    categories = rule.categories
    if kind == "text":
        return dict(categories) or None
    if kind == "flag":
        return {as_category(flag): rule.label(flag) or flags[str(int(flag))] for flag in (False, True)}
    numbers = {
        as_category(number): label
        for key, label in categories.items()
        if (number := number_of(key)) is not None
    }
    return numbers or (dict(flags) if rule.type == "flag" else None)


def _begin(
    kind: Kind, rule: FeatureRule, spread: Spread, choices: Sequence[Value] | None, *, whole: bool
) -> Value | None:
    if kind == "flag":
        return False
    if kind == "number" and spread.missing > 0.5:
        return None
    texts = [each.value for each in spread.categories if each.value]
    usual = texts[:1] if kind == "text" else spread.quantiles[len(spread.quantiles) // 2 :][:1]
    if choices:
        return next((value for value in usual if value in choices), choices[0])
    if usual or kind == "text":
        return usual[0] if usual else ""
    least = rule.least or 0.0
    middle = (least + (least if rule.most is None else rule.most)) / 2
    return float(math.floor(middle + 0.5)) if whole else middle
