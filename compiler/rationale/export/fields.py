"""The fields of a page: the form's description, without facts about single reference rows."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rationale.schema.form import FormField, feature_names, knock_out_fields, model_fields
from rationale.schema.manifest import Manifest, Spread, TensorSpec
from rationale.schema.profile import FeatureRule

_STEPS = 200  # approximate number of slider steps
_NO_RULE = FeatureRule()


@dataclass(frozen=True)
class Range:
    """The ends of a slider, and the step to which a typical value is rounded."""

    least: float
    most: float
    step: float


def fields(
    manifest: Manifest, sample: Mapping[str, np.ndarray], spreads: Iterable[Spread]
) -> Iterator[dict[str, Any]]:
    """Yield a field per feature of every input, in order, then one per further column of the knock-outs.

    Args:
        sample: a row of each input, for features without a known spread.
    """
    profile = manifest.decision.profile if manifest.decision else None
    rules = profile.features if profile else {}
    named = [(name, tensor) for tensor, names in feature_names(manifest).items() for name in names]
    rows = {spec.name: iter(_row(spec, sample)) for spec in manifest.inputs}
    for field in model_fields(manifest, named, profile, spreads):
        handed = rounded_field(field, rules.get(field.name, _NO_RULE), next(rows[field.input or ""]))
        yield handed.model_dump(mode="json", exclude_none=True)
    for field in knock_out_fields(profile, {name for pair in named for name in pair}) if profile else ():
        yield field.model_dump(mode="json", exclude_none=True)


def _row(spec: TensorSpec, sample: Mapping[str, np.ndarray]) -> list[float]:
    if spec.name in sample and spec.datatype != "BYTES":
        return [float(value) for value in sample[spec.name].reshape(-1)]
    return [0.0] * math.prod(spec.shape)


def rounded_field(field: FormField, rule: FeatureRule, value: float) -> FormField:
    """Return the field with round numbers in place of the references' own, which stay private.

    Args:
        value: the sample's value, the middle of the range if the spread of the references is unknown.
    """
    private = dict.fromkeys(("quantiles", "missing_share", "categories"))
    if field.kind != "number" or field.choices:
        return field.model_copy(update=private)
    size = max(abs(value), 1.0)
    least, *_, most = field.quantiles or (value - size, value + size)
    limits = range_of(least, most, rule, whole=bool(field.whole))
    begin = field.begin if field.quantiles else value
    if isinstance(begin, float):
        begin = min(max(_plain(round(begin / limits.step) * limits.step), limits.least), limits.most)
    ends = {"least": limits.least, "most": limits.most, "begin": begin}
    return field.model_copy(update=private | ends)


def range_of(least: float, most: float, rule: FeatureRule, *, whole: bool) -> Range:
    """Return a slider's range: the profile's limits, or else the references' range with round ends.

    Round ends lie beyond the outermost references, whose values stay private.
    """
    if least == most:  # all references have the same value
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
    """Return a number without binary rounding noise."""
    return float(f"{number:.12g}")
