"""What a page has a field for: each feature, with its title, unit, range or categories, a first value."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rationale.decisions.domain import number_of
from rationale.schema.form import Field, feature_names, knock_out_fields, model_fields
from rationale.schema.manifest import Manifest, Spread, TensorSpec
from rationale.schema.profile import DecisionProfile, FeatureRule

_STEPS = 200  # of a slider, about
_MIDDLE = 10  # of a spread's quantiles at 0, 5 … 100%


@dataclass(frozen=True)
class Range:
    """What a slider goes over."""

    least: float
    most: float
    step: float


def fields(
    manifest: Manifest, sample: Mapping[str, np.ndarray], spreads: Iterable[Spread]
) -> Iterator[dict[str, Any]]:
    """Yield a field for each feature of every input, in their order; then what knock-outs look at besides.

    Args:
        sample: a row of each input, for features of which no spread is known.
    """
    profile = manifest.decision.profile if manifest.decision else None
    named = [(name, tensor) for tensor, names in feature_names(manifest).items() for name in names]
    rows = {spec.name: iter(_row(spec, sample)) for spec in manifest.inputs}
    for field in model_fields(manifest, named, profile, spreads):
        yield {
            **_common(field),
            "input": field.input,
            "integer": field.integer,
            **_control(field, next(rows[field.input or ""])),
        }
    if profile is not None:
        for field in knock_out_fields(profile, {name for pair in named for name in pair}):
            yield {**_common(field), "input": None, **_knock_out(field, profile), "begin": None}


def _row(spec: TensorSpec, sample: Mapping[str, np.ndarray]) -> list[float]:
    if spec.name in sample and spec.datatype != "BYTES":
        return [float(value) for value in sample[spec.name].reshape(-1)]
    return [0.0] * math.prod(spec.shape)


def _common(field: Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "title": field.title or field.name,
        "unit": field.unit,
        "missing": field.missing,
    }


def _control(field: Field, begin: float) -> dict[str, Any]:
    rule = field.rule
    if field.kind == "text":
        shares = {category.value: category.value for category in field.categories if category.value}
        called = shares | {text: text for text in field.texts}
        return _choices({**called, **rule.categories} if rule.open else rule.categories or called)
    if rule.categories and not rule.open:
        numbers = {number_of(key): title for key, title in rule.categories.items()}
        return _choices({number: title for number, title in numbers.items() if number is not None})
    if field.texts:
        return _choices({number_of(text): text for text in field.texts})
    if field.kind == "flag" or (rule.type == "flag" and not rule.categories):
        return _choices({0: "no", 1: "yes"})
    quantiles = field.quantiles
    if not quantiles:
        size = max(abs(begin), 1.0)
        quantiles = (begin - size, begin, begin + size)
    found = range_of(quantiles[0], quantiles[-1], rule, whole=bool(field.whole))
    middle = quantiles[_MIDDLE] if len(quantiles) > _MIDDLE else quantiles[len(quantiles) // 2]
    begin = _plain(round(middle / found.step) * found.step)
    return {"kind": "number", **vars(found), "begin": min(max(begin, found.least), found.most)}


def _knock_out(field: Field, profile: DecisionProfile) -> dict[str, Any]:
    """Return the control of what only knock-outs look at; a number's range is that of their ends."""
    if field.kind == "flag":
        return {"kind": "choice", "choices": [[False, "no"], [True, "yes"]]}
    if field.kind == "text":
        return {"kind": "text"}
    rules = [rule for rule in profile.knock_outs if rule.feature == field.name]
    ends = [float(end) for r in rules for end in (r.above, r.below, r.equals) if end is not None]
    return {"kind": "number", **vars(range_of(min(0.0, *ends), 2 * max(ends), field.rule, whole=False))}


def _choices(categories: Mapping[Any, str]) -> dict[str, Any]:
    """Return a choice of categories, or a text where none are known."""
    if not categories:
        return {"kind": "text", "begin": ""}
    choices = [[value, title] for value, title in categories.items()]
    return {"kind": "choice", "choices": choices, "begin": choices[0][0]}


def range_of(least: float, most: float, rule: FeatureRule, *, whole: bool) -> Range:
    """Return the range of a slider: what the profile takes, else the references' own, made round.

    It ends at round numbers beyond the outermost references: their values are nobody's business.
    """
    if least == most:  # of all references
        least, most = min(0.0, 2 * least), max(0.0, 2 * most) or 1.0
    low = least if rule.least is None else rule.least
    high = max(most if rule.most is None else rule.most, low)
    span = high - low or max(abs(low), 1.0)
    step = 10.0 ** math.floor(math.log10(span / _STEPS))
    step *= next(n for n in (1, 2, 5, 10) if n * step * _STEPS >= span)
    step = max(step, 1.0) if whole else step
    coarse = step if whole and step == 1 else step * 10
    down, up = (math.floor(round(low / coarse, 9)) * coarse, math.ceil(round(high / coarse, 9)) * coarse)
    low = down if rule.least is None else low
    high = up if rule.most is None else high
    return Range(_plain(low), _plain(max(high, low + step)), _plain(step))


def _plain(number: float) -> float:
    """Return a multiple of a power of ten without what binary leaves behind."""
    return float(f"{number:.12g}")
