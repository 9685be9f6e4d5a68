"""Values that a decision profile accepts for a feature, and an applicant's values that lie outside."""

from collections.abc import Iterator, Mapping
from typing import Any

from rationale.errors import near, quoted
from rationale.schema.profile import DecisionProfile, FeatureRule, as_category

_LONGEST = 80  # characters of a value in a sentence


def domain_faults(
    profile: DecisionProfile, values: Mapping[str, Any], *, with_value: bool = True
) -> Iterator[str]:
    """Yield a sentence for each feature whose value the profile does not accept.

    A missing value (None) is accepted: the `missing` text of a reason covers it.

    Args:
        values: values of one applicant, by feature.
        with_value: name the value. A warning leaves it out, because it is stored even if values are not.
    """
    for name, rule in profile.features.items():
        value = values.get(name)
        if value is not None and (fault := _fault(rule, value)) is not None:
            yield f"feature '{name}' is {fault}" + f": {_shown(rule, value)}" * with_value


def _shown(rule: FeatureRule, value: Any) -> str:
    if isinstance(value, str):
        return f"'{value[:_LONGEST]}'{near(value, list(rule.categories))}"
    return as_category(value)[:_LONGEST]


def _fault(rule: FeatureRule, value: Any) -> str | None:
    """Return the fault of a value."""
    if rule.categories and not rule.open and rule.label(value) is None:
        return f"none of the decision profile's categories {quoted(list(rule.categories))}"
    least, most = rule.least, rule.most
    is_less = least is not None and not isinstance(value, str) and value < least
    is_more = most is not None and not isinstance(value, str) and value > most
    if least is not None and most is not None and (is_less or is_more):
        return f"outside of the decision profile's {least:g} to {most:g}"
    if is_less:
        return f"less than the decision profile's {least:g}"
    return f"more than the decision profile's {most:g}" if is_more else None
