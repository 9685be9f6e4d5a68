"""What a page has a field for: each feature, with its title, unit, range or categories, a first value."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.decisions.domain import number_of
from compiler.decisions.rows import feature_names
from compiler.manifest import FLOATS, Manifest, Spread, TensorSpec
from compiler.profile import DecisionProfile, FeatureRule

_STEPS = 200  # of a slider, about
_MIDDLE = 10  # of a spread's quantiles at 0, 5 … 100%


@dataclass(frozen=True)
class Range:
    """What a slider goes over."""

    least: float
    most: float
    step: float


def fields(
    manifest: Manifest, sample: Mapping[str, np.ndarray], spreads: Mapping[str, Spread]
) -> Iterator[dict[str, Any]]:
    """Yield a field for each feature of every input, in their order; then what knock-outs look at besides.

    Args:
        sample: a row of each input, for features of which no spread is known.
        spreads: by feature.
    """
    profile = manifest.decision.profile if manifest.decision else None
    known = set[str]()
    for spec in manifest.inputs:
        for i, name in enumerate(names_of(manifest, spec)):
            known |= {name, spec.name}
            begin = sample[spec.name].reshape(-1)[i] if spec.name in sample else 0
            rule = profile.features.get(name, FeatureRule()) if profile else FeatureRule()
            yield {
                "name": name,
                "title": rule.title or name,
                "unit": rule.unit,
                "input": spec.name,
                "missing": spec.name in manifest.takes_missing and spec.datatype in FLOATS,
                "integer": spec.datatype not in FLOATS,
                **_control(spec, rule, spreads.get(name), float(begin) if spec.datatype != "BYTES" else 0.0),
            }
    if profile is not None:
        yield from _of_rules(profile, known)


def names_of(manifest: Manifest, spec: TensorSpec) -> tuple[str, ...]:
    """Return the names of an input's features, as explanations and decisions have them."""
    given = next((e.feature_names for e in manifest.explained if e.tensor.name == spec.name), None)
    return feature_names(spec.name, given, math.prod(spec.shape))


def _control(spec: TensorSpec, rule: FeatureRule, spread: Spread | None, begin: float) -> dict[str, Any]:
    if spec.datatype == "BYTES":
        called = {c.value: c.value for c in spread.categories} if spread else {}
        return _choices({**called, **rule.categories} if rule.open else rule.categories or called)
    if rule.categories and not rule.open:
        numbers = {number_of(key): title for key, title in rule.categories.items()}
        return _choices({number: title for number, title in numbers.items() if number is not None})
    if spec.datatype == "BOOL" or (rule.type == "flag" and not rule.categories):
        return _choices({0: "no", 1: "yes"})
    whole = not spec.datatype.startswith("FP") or bool(spread and spread.whole)
    quantiles = spread.quantiles if spread else ()
    if not quantiles:
        size = max(abs(begin), 1.0)
        quantiles = (begin - size, begin, begin + size)
    found = range_of(quantiles[0], quantiles[-1], rule, whole=whole)
    middle = quantiles[_MIDDLE] if len(quantiles) > _MIDDLE else quantiles[len(quantiles) // 2]
    begin = _plain(round(middle / found.step) * found.step)
    return {"kind": "number", **vars(found), "begin": min(max(begin, found.least), found.most)}


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


def _of_rules(profile: DecisionProfile, known: set[str]) -> Iterator[dict[str, Any]]:
    """Yield what knock-outs look at and the model does not take; nothing is known of it to begin with."""
    for name in dict.fromkeys(rule.feature for rule in profile.knock_outs if rule.feature not in known):
        rules = [rule for rule in profile.knock_outs if rule.feature == name]
        wanted = [rule.equals for rule in rules if rule.equals is not None]
        about = profile.features.get(name, FeatureRule())
        common = {
            "name": name,
            "title": about.title or name,
            "unit": about.unit,
            "input": None,
            "missing": True,
        }
        if any(isinstance(value, bool) for value in wanted):
            yield {**common, "kind": "choice", "choices": [[False, "no"], [True, "yes"]], "begin": None}
        elif any(isinstance(value, str) for value in wanted):
            yield {**common, "kind": "text", "begin": None}
        else:
            ends = [end for rule in rules for end in (rule.above, rule.below, rule.equals) if end is not None]
            span = range_of(min(0.0, *map(float, ends)), 2 * max(map(float, ends)), about, whole=False)
            yield {**common, "kind": "number", **vars(span), "begin": None}
