"""What values a decision profile takes for a feature, and which of an applicant's lie outside."""

from collections.abc import Iterator, Mapping
from typing import Any

from rationale.schema.profile import DecisionProfile, FeatureRule, near

_SHOWN, _LONGEST = 6, 80  # categories in a sentence, characters of a value


def outside(profile: DecisionProfile, values: Mapping[str, Any], *, with_value: bool = True) -> Iterator[str]:
    """Return a sentence for each feature whose value the profile does not take.

    A value that is missing (None) is none: a reason's `missing` is said of it.

    Args:
        values: by feature; those of one applicant.
        with_value: name the value, which a warning leaves out: it is kept where values are not.
    """
    for name, rule in profile.features.items():
        value = values.get(name)
        if value is not None and (fault := _fault(rule, value)) is not None:
            yield f"feature '{name}' is {fault}" + f": {_shown(rule, value)}" * with_value


def category(rule: FeatureRule, value: Any) -> str | None:
    """Return what the profile calls a value, if it is one of its categories; texts have to be equal."""
    found = rule.categories.get(as_category(value))
    if found is not None or isinstance(value, str):
        return found
    return next((title for key, title in rule.categories.items() if number_of(key) == value), None)


def as_category(value: Any) -> str:
    """Return a value as a key of `categories`: 1 of 1.0, true of True."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def number_of(key: str) -> float | None:
    """Return the number that a key of `categories` writes."""
    try:
        return float(key)
    except ValueError:
        return None


def _shown(rule: FeatureRule, value: Any) -> str:
    if isinstance(value, str):
        return f"'{value[:_LONGEST]}'{near(value, list(rule.categories))}"
    return as_category(value)[:_LONGEST]


def _fault(rule: FeatureRule, value: Any) -> str | None:
    """Return what is wrong with a value."""
    if rule.categories and not rule.open and category(rule, value) is None:
        known = list(rule.categories)
        more = f" and {len(known) - _SHOWN} more" * (len(known) > _SHOWN)
        listed = ", ".join(f"'{key}'" for key in known[:_SHOWN])
        return f"none of the decision profile's categories {listed}{more}"
    least, most = rule.least, rule.most
    is_less = least is not None and not isinstance(value, str) and value < least
    is_more = most is not None and not isinstance(value, str) and value > most
    if least is not None and most is not None and (is_less or is_more):
        return f"outside of the decision profile's {least:g} to {most:g}"
    if is_less:
        return f"less than the decision profile's {least:g}"
    return f"more than the decision profile's {most:g}" if is_more else None
