"""What values a decision profile takes for a feature, and which of an applicant's lie outside."""

from collections.abc import Iterator, Mapping
from typing import Any

from compiler.profile import DecisionProfile, FeatureRule, near

_SHOWN, _LONGEST = 6, 80  # categories in a sentence, characters of a value


def outside(profile: DecisionProfile, values: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each feature whose value the profile does not take.

    A value that is missing (None) is none: a reason's `missing` is said of it.

    Args:
        values: by feature; those of one applicant.
    """
    for name, rule in profile.features.items():
        value = values.get(name)
        if value is not None and (fault := _fault(rule, value)) is not None:
            shown = f"'{value[:_LONGEST]}'" if isinstance(value, str) else as_category(value)[:_LONGEST]
            yield f"feature '{name}' is {shown}, {fault}"


def has_domain(profile: DecisionProfile) -> bool:
    """Whether it says of any feature what values that takes."""
    return any(rule.is_bounded for rule in profile.features.values())


def category(rule: FeatureRule, value: Any) -> str | None:
    """What a value is called, where it is one of the profile's categories; texts have to be the same."""
    found = rule.categories.get(as_category(value))
    if found is not None or isinstance(value, str):
        return found
    return next((title for key, title in rule.categories.items() if number_of(key) == value), None)


def as_category(value: Any) -> str:
    """A value as a key of `categories`: 1 of 1.0, true of True."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def number_of(key: str) -> float | None:
    """The number that a key of `categories` writes."""
    try:
        return float(key)
    except ValueError:
        return None


def _fault(rule: FeatureRule, value: Any) -> str | None:
    if rule.categories and not rule.open and category(rule, value) is None:
        known = list(rule.categories)
        more = f" and {len(known) - _SHOWN} more" * (len(known) > _SHOWN)
        guess = near(value, known) if isinstance(value, str) else ""
        listed = ", ".join(f"'{key}'" for key in known[:_SHOWN])
        return f"which is none of the decision profile's categories {listed}{more}{guess}"
    if (rule.least is None and rule.most is None) or isinstance(value, str):
        return None
    least, most = rule.least, rule.most
    if (least is None or value >= least) and (most is None or value <= most):
        return None
    if least is not None and most is not None:
        return f"outside of the decision profile's {least:g} to {most:g}"
    return (
        f"less than the decision profile's {least:g}"
        if most is None
        else (f"more than the decision profile's {most:g}")
    )
