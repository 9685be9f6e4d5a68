"""A decision and its principal reasons, by the rules of a profile."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from rationale.decisions.domain import domain_faults
from rationale.decisions.rows import ExplainedRow
from rationale.errors import InvalidOptionError, RationaleError
from rationale.schema.manifest import EmbeddedProfile
from rationale.schema.profile import (
    DecisionProfile,
    FeatureRule,
    KnockOut,
    ReasonText,
    Wording,
)

Outcome = Literal["approve", "refer", "decline"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
# Attributions that differ by less count as tied: float32's resolution of the largest in a row.
TIE = 1e-6
NOTHING_ADVERSE = (
    "no feature speaks against the applicant: the base value is adverse by itself. Compare with references "
    "whose mean score passes"
)
NOTHING_AGAINST = "no feature speaks against the applicant"
_NO_RULE = FeatureRule()


class NoReasonsError(RationaleError):
    """An error for a decision for which no reasons can be given."""

    status = 422


@dataclass(frozen=True)
class PrincipalReason:
    """One reason of a decision.

    Attributes:
        feature: the feature or group; if several share the code, the one with the largest attribution.
            `features` are all of them, largest first.
        value: the feature's value, None if it is missing; a group's values by member.
        unit, category: the value's unit and category in the profile; a group's by member that has one.
        shown: the value as a notice prints it, if it has a unit or a label.
        attribution: the sum over `features`, in units of the explained value; None for a knock-out.
        share: the share of all adverse attributions together, 0 to 1.
        tied: whether it is as large as the reason that follows, given or not, but for rounding.
        uncertain: whether it is nearer to the reason that follows, or to 0, than its standard error.
    """

    code: str
    text: str
    feature: str
    value: Any
    attribution: float | None
    share: float | None
    features: tuple[str, ...]
    unit: str | Mapping[str, str] | None = None
    category: str | Mapping[str, str] | None = None
    shown: str | None = None
    tied: bool = False
    uncertain: bool = False


@dataclass(frozen=True)
class Decision:
    """The decision about one row, with its reasons.

    Attributes:
        reasons: principal reasons, largest first; none for an approval. A knock-out has those of its rules
            alone.
        attributions: attributions of every feature or group.
        warnings: warnings for a reader of the reasons.
    """

    decision: Outcome
    score: float
    threshold: float
    explained_value: float
    base_value: float | None
    reasons: tuple[PrincipalReason, ...]
    attributions: Mapping[str, float]
    standard_errors: Mapping[str, float] | None
    completeness_gap: float | None
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return its members by name; standard errors only if there are any."""
        members = {
            **vars(self),
            "reasons": [{**vars(reason), "features": [*reason.features]} for reason in self.reasons],
        }
        members |= {"attributions": {**self.attributions}, "warnings": [*self.warnings]}
        if self.standard_errors is None:
            del members["standard_errors"]
        return members


def decide(embedded: EmbeddedProfile, row: ExplainedRow, values: Mapping[str, Any]) -> Decision:
    """Decide about one row.

    Args:
        values: values of features, and of columns that knock-outs read.

    Raises:
        NoReasonsError: if the score is no number, attributions do not add up, or a principal reason may not
            be disclosed.
    """
    profile = embedded.profile
    if not math.isfinite(row.score):
        raise NoReasonsError(f"no decision: the score is {row.score}")
    hit = find_knock_outs(profile, values)
    outcome: Outcome = "decline" if hit else outcome_of(profile, row.score)
    reasons: tuple[PrincipalReason, ...] = ()
    warnings = (*domain_faults(profile, values, with_value=False),) if profile.outside == "warn" else ()
    if hit:
        reasons = _knock_out_reasons(profile, hit, values)
    elif outcome != "approve":
        _check_gap(embedded, row)
        reasons = principal_reasons(profile, row, values)
        if not reasons:
            warnings += (NOTHING_ADVERSE if outcome == "decline" else NOTHING_AGAINST,)
    _check_disclosure(profile, reasons)
    return Decision(
        outcome,
        row.score,
        profile.threshold,
        row.explained_value,
        row.base_value,
        reasons,
        row.attributions,
        row.standard_errors,
        row.gap,
        warnings,
    )


def outcome_of(profile: DecisionProfile, score: float) -> Outcome:
    """Return the outcome of a score alone; a score equal to the threshold passes."""
    if profile.refer is not None and profile.refer[0] <= score <= profile.refer[1]:
        return "refer"
    is_adverse = score > profile.threshold if profile.adverse == "above" else score < profile.threshold
    return "decline" if is_adverse else "approve"


def outcomes_of(profile: DecisionProfile, scores: np.ndarray) -> np.ndarray:
    """Return the outcome of each score alone, [N] places in OUTCOMES; see `outcome_of`."""
    adverse = scores > profile.threshold if profile.adverse == "above" else scores < profile.threshold
    outcomes = np.where(adverse, OUTCOMES.index("decline"), OUTCOMES.index("approve"))
    if profile.refer is not None:
        outcomes[(profile.refer[0] <= scores) & (scores <= profile.refer[1])] = OUTCOMES.index("refer")
    return outcomes


def find_knock_outs(profile: DecisionProfile, values: Mapping[str, Any]) -> list[KnockOut]:
    """Return the knock-outs that decline these values."""
    return [rule for rule in profile.knock_outs if meets_condition(rule, values.get(rule.feature))]


def principal_reasons(
    profile: DecisionProfile, row: ExplainedRow, values: Mapping[str, Any]
) -> tuple[PrincipalReason, ...]:
    """Return the largest adverse attributions; those that share a code are one reason, their sum."""
    ranked = ranking(profile, row.attributions)
    sizes = [size for _, size, _ in ranked]
    total = math.fsum(sizes)
    reasons = []
    for i in _principal_indices(profile, [(code, size / total) for code, size, _ in ranked]):
        code, size, features = ranked[i]
        is_last = i + 1 == len(ranked)
        lead = size - (0.0 if is_last else sizes[i + 1])
        reasons.append(
            replace(
                _reason(profile, code, features, values),
                attribution=math.fsum(row.attributions[feature] for feature in features),
                share=size / total,
                tied=not is_last and lead <= TIE * sizes[0],
                uncertain=lead <= _standard_error(row, features),
            )
        )
    return tuple(reasons)


def ranking(
    profile: DecisionProfile, attributions: Mapping[str, float]
) -> list[tuple[str, float, tuple[str, ...]]]:
    """Return (code, size, features) of each adverse reason, largest first; ties in the profile's order.

    Neither sizes nor order depend on the order of `attributions`.
    """
    sign = 1 if profile.adverse == "above" else -1
    adverse = {key: sign * value for key, value in attributions.items() if sign * value > 0}
    by_code: dict[str, list[str]] = {}
    for key in sorted(adverse, key=lambda key: (-adverse[key], key)):
        by_code.setdefault(profile.rule(key).reason or key, []).append(key)
    order = {code: i for i, code in enumerate(profile.reasons)}
    ranked = [(code, math.fsum(adverse[key] for key in keys), tuple(keys)) for code, keys in by_code.items()]
    ranked.sort(key=lambda entry: (-entry[1], *_order(order, entry[0])))
    ranks, first = list[int](), 0
    for i, (_, size, _) in enumerate(ranked):  # those that tie with the first of a run have its rank
        first = first if ranked[first][1] - size <= TIE * ranked[0][1] else i
        ranks.append(first)
    by_rank = sorted(
        zip(ranks, ranked, strict=True), key=lambda entry: (entry[0], _order(order, entry[1][0]))
    )
    return [entry for _, entry in by_rank]


def _order(order: Mapping[str, int], code: str) -> tuple[int, str]:
    return order.get(code, len(order)), code


def _principal_indices(profile: DecisionProfile, shares: list[tuple[str, float]]) -> Iterator[int]:
    """Yield the indices of the principal ones, by (code, share): the first, and one more on inquiries."""
    large = [i for i, (_, share) in enumerate(shares) if not i or share >= profile.least_share]
    yield from large[: profile.max_reasons]
    for i in large[profile.max_reasons :]:
        text = profile.reasons.get(shares[i][0])
        if text is not None and text.inquiry:
            yield i
            return


def _reason(
    profile: DecisionProfile, code: str, features: tuple[str, ...], values: Mapping[str, Any]
) -> PrincipalReason:
    feature = features[0]
    value = _value(profile, feature, values)
    text = profile.reasons.get(code)
    wording = profile.title(feature) if text is None else reason_wording(text, value)
    return PrincipalReason(
        code, wording, feature, value, None, None, features, *_describe_value(profile, feature, value)
    )


def reason_in_language(profile: DecisionProfile, language: str, reason: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reason of an answer, whose value may be hidden, with its texts in a language.

    Args:
        profile: the profile that decided.
    """
    own, feature = profile.in_language(language), reason["feature"]
    ours, theirs = profile.reasons.get(reason["code"]), own.reasons.get(reason["code"])
    if ours is None or theirs is None:
        text: str | None = own.title(feature)
    else:
        text = theirs.wordings[ours.wordings.index(reason["text"])]
    unit, category, shown = _describe_value(own, feature, reason["value"])
    return {**reason, "text": text, "unit": unit, "category": category, "shown": shown}


def _describe_value(profile: DecisionProfile, key: str, value: Any) -> tuple[Any, Any, str | None]:
    """Return the unit and category of a value, and a text of both with the feature's title."""
    values = (value or {}) if key in profile.groups else {key: value}
    group = profile.groups.get(key)
    units, labels = dict[str, str](), dict[str, str]()
    for name, member in values.items():
        rule = profile.features.get(name, _NO_RULE)
        unit = group.unit if rule.unit is None and group is not None else rule.unit
        if unit is not None:
            units[name] = unit
        if member is not None and (title := rule.label(member)) is not None:
            labels[name] = title
    shown = [
        f"{profile.features.get(name, _NO_RULE).title or name}: "
        + labels.get(name, f"{profile.number(member)} {units.get(name)}")
        for name, member in values.items()
        if member is not None and (name in units or name in labels)
    ]
    text = "; ".join(shown) or None
    return (units or None, labels or None, text) if group else (units.get(key), labels.get(key), text)


def _knock_out_reasons(
    profile: DecisionProfile, hit: list[KnockOut], values: Mapping[str, Any]
) -> tuple[PrincipalReason, ...]:
    """Return a reason for each code, in the profile's order. None is left out: each declines by itself."""
    by_code: dict[str, dict[str, None]] = {}
    for rule in hit:
        by_code.setdefault(rule.reason, {})[rule.feature] = None
    return tuple(_reason(profile, code, tuple(features), values) for code, features in by_code.items())


def _value(profile: DecisionProfile, key: str, values: Mapping[str, Any]) -> Any:
    if key in profile.groups:
        return {member: values.get(member) for member in profile.groups[key].members}
    return values.get(key)


def reason_wording(text: ReasonText, value: Any) -> str:
    """Return the text for this value."""
    missing = all(each is None for each in value.values()) if isinstance(value, dict) else value is None
    if missing:
        return text.missing or text.text
    return next((wording.text for wording in text.when if meets_condition(wording, value)), text.text)


def meets_condition(rule: KnockOut | Wording, value: Any) -> bool:
    """Tell whether a value meets a condition; a missing value meets none."""
    if value is None or isinstance(value, dict):
        return False
    if rule.equals is not None:
        return bool(value == rule.equals)
    if isinstance(value, str):
        return False
    return (rule.above is None or value > rule.above) and (rule.below is None or value < rule.below)


def read_cell(cell: Any, feature: str, rules: Sequence[KnockOut]) -> Any:
    """Return a table's cell, which may be text, as the number, flag or text that knock-outs compare.

    Raises:
        InvalidOptionError: if it is no number or flag, and these are needed.
    """
    text = "" if cell is None or cell != cell else str(cell).strip()
    if not text:
        return None
    if any(isinstance(rule.equals, str) for rule in rules if rule.feature == feature):
        return text
    if text.casefold() in ("true", "false"):
        return text.casefold() == "true"
    try:
        return float(text)
    except ValueError as error:
        raise InvalidOptionError(
            f"{feature!r} holds {text[:80]!r}, but its knock-out compares numbers: give a number, true or "
            "false."
        ) from error


def _standard_error(row: ExplainedRow, features: tuple[str, ...]) -> float:
    """Return a sum's standard error, as if its parts were independent.

    If it is unknown, it counts as less than any lead.
    """
    if row.standard_errors is None:
        return -math.inf
    return float(sum(row.standard_errors[feature] ** 2 for feature in features) ** 0.5)


def _check_gap(embedded: EmbeddedProfile, row: ExplainedRow) -> None:
    if row.gap is not None and not abs(row.gap) <= embedded.tolerance:
        raise NoReasonsError(
            f"no reasons: the attributions miss the score by {row.gap:.2g}, more than the decision "
            f"profile's tolerance of {embedded.tolerance:.2g}"
        )


def _check_disclosure(profile: DecisionProfile, reasons: tuple[PrincipalReason, ...]) -> None:
    named = {feature for reason in reasons for feature in reason.features}
    named |= {member for key in named & profile.groups.keys() for member in profile.groups[key].members}
    named |= {group for group, rule in profile.groups.items() if named & {*rule.members}}
    undisclosed = named & {*profile.never_disclose}
    if undisclosed:
        raise NoReasonsError(
            f"no reasons are given: {', '.join(sorted(undisclosed))} is a principal reason, but the "
            "decision profile lists it under never_disclose; without it the reasons would not be the true "
            "ones"
        )
