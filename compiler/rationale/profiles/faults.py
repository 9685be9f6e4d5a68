"""Faults of a decision profile, by itself and against the features of its model."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rationale.decisions.decide import outcome_of
from rationale.errors import near, quoted
from rationale.schema.profile import NAMED_BY_REGULATION_B, Condition, DecisionProfile, as_category, number_of

_USUAL_REASONS = 4  # more of them are unlikely to help: comment 9(b)(2)-1 on Regulation B

_FAR = 0.1  # of the output's range: a distance from the threshold that no chance of a draw explains


@dataclass(frozen=True)
class ProfiledFeatures:
    """A model's features, as far as a profile may name them.

    Attributes:
        features: features that get attributions, each once.
        texts: those of them that hold text.
        inputs: names of the model's inputs, which may hold several features or one.
        categories: all values of a feature that the model tells apart, if they are known.
    """

    features: Sequence[str]
    texts: Collection[str] = ()
    inputs: Collection[str] = ()
    categories: Mapping[str, Collection[str | float]] = field(default_factory=dict)

    def has(self, feature: str, key: str) -> bool:
        """Tell whether the model knows a category, which a profile writes as a text."""
        numbers = {_number(category) for category in self.categories[feature]}
        is_text = feature in self.texts
        return key in self.categories[feature] or (not is_text and _number(key) in numbers)


def profile_faults(profile: DecisionProfile, model: ProfiledFeatures) -> list[str]:
    """Return all faults of its names, codes, groups, conditions and band; a sentence each."""
    return [fault for check in _CHECKS for fault in check(profile, model)]


def profile_remarks(profile: DecisionProfile, model: ProfiledFeatures) -> list[str]:
    """Return warnings about valid but unusual settings."""
    unused = [code for code in profile.reasons if code not in _codes_used(profile)]
    remarks = []
    if unused:
        remarks.append(f"decision: no feature, group or knock-out has {_listed('the reason', unused)}")
    if profile.references.policy not in NAMED_BY_REGULATION_B:
        remarks.append(
            f"decision: the references are '{profile.references.policy}'; comment 9(b)(2)-5 on Regulation B "
            "names applicants at or slightly above the threshold (near_threshold), and all_applicants"
        )
    if profile.max_reasons > _USUAL_REASONS:
        remarks.append(
            f"decision: up to {profile.max_reasons} reasons; by comment 9(b)(2)-1 on Regulation B more than "
            f"{_USUAL_REASONS} are not likely to help"
        )
    for name, rule in profile.features.items():
        if not rule.categories or rule.open or name not in model.categories:
            continue
        written = {*rule.categories, *(_number(key) for key in rule.categories)}
        missing = [as_category(category) for category in model.categories[name] if category not in written]
        if missing:
            remarks.append(
                f"decision: the profile does not take {quoted(sorted(missing))} of '{name}', which the "
                "model knows"
            )
    for attribute in _forbidden(profile):
        names = sorted(n for n in _names(profile, model) if _is_encoding(attribute, n))
        if names:
            remarks.append(f"decision: is the protected '{attribute}' in {_listed('the input', names)}?")
    return remarks


def score_remarks(
    profile: DecisionProfile, scores: np.ndarray, weights: np.ndarray, spread: float
) -> Iterator[str]:
    """Yield warnings about the references' scores, compared with threshold and policy.

    Args:
        scores, weights: scores and weights of references, [K] each; weights sum to 1.
        spread: the difference of the largest and the least possible score.
    """
    mean = float(scores @ weights)
    declined = float(weights @ [outcome_of(profile, score) == "decline" for score in scores.tolist()])
    policy, threshold = profile.references.policy, profile.threshold
    beyond = mean - threshold if profile.adverse == "above" else threshold - mean
    if beyond > _FAR * spread:
        yield (
            f"decision: the references stand on the declining side: '{profile.output}' is {mean:g} on "
            f"average, {profile.adverse} {threshold:g}, and {declined:.0%} of them would be declined. Check "
            "output and adverse. If both are right, give references whose mean score passes"
        )
    elif policy == "approved" and declined:
        yield f"decision: the references are 'approved', and the profile declines {declined:.1%} of them"
    elif policy == "near_threshold" and -beyond > _FAR * spread:
        yield (
            f"decision: the references are 'near_threshold', and '{profile.output}' is {mean:g} on average, "
            f"not near {threshold:g}"
        )


def _groups(profile: DecisionProfile, model: ProfiledFeatures) -> Iterator[str]:
    owners: dict[str, list[str]] = {}
    for name, rule in profile.groups.items():
        for member in dict.fromkeys(rule.members):
            owners.setdefault(member, []).append(name)
        if name in model.features:
            yield f"groups.{name} is called like a feature of the model: choose another name"
        if unknown := [member for member in rule.members if member not in model.features]:
            yield f"groups.{name}: {_unknown(unknown, model.features)}"
        if twice := [member for member, count in Counter(rule.members).items() if count > 1]:
            yield f"groups.{name} names {_listed('the member', twice)} twice: name each once"
    for member, names in owners.items():
        if len(names) > 1:
            yield f"feature '{member}' is in {_listed('the group', names)}: leave it in one"


def _features(profile: DecisionProfile, model: ProfiledFeatures) -> Iterator[str]:
    members = {member: name for name, rule in profile.groups.items() for member in rule.members}
    of_knock_outs = {rule.feature for rule in profile.knock_outs}
    unknown = []
    for name, rule in profile.features.items():
        if name in profile.groups:
            yield f"features.{name} is a group: say it under groups.{name}"
        elif name in members and rule.reason is not None:
            yield f"features.{name} is explained with the group '{members[name]}': leave its reason out"
        elif name not in model.features:
            unknown += [name] * (name not in of_knock_outs)
        elif name in model.texts and rule.type in ("number", "flag"):
            yield f"features.{name} holds text: its type is category, not {rule.type}"
    if unknown:
        yield f"features: {_unknown(unknown, model.features)}"


def _domain(profile: DecisionProfile, model: ProfiledFeatures) -> Iterator[str]:
    for name, rule in profile.features.items():
        has_bounds = rule.least is not None or rule.most is not None
        if rule.least is not None and rule.most is not None and rule.least > rule.most:
            yield f"features.{name} takes no value: least {rule.least:g} is more than most {rule.most:g}"
        if rule.open and not rule.categories:
            yield f"features.{name}.open: open needs categories: list them"
        if name in model.texts and has_bounds:
            yield f"features.{name} holds text: least and most are of numbers"
        is_number = name in model.features and name not in model.texts
        if is_number and (words := [key for key in rule.categories if _number(key) is None]):
            yield (
                f"features.{name} holds numbers, so that it never is one of the categories {quoted(words)}"
            )
        elif name in model.categories and (
            unknown := [key for key in rule.categories if not model.has(name, key)]
        ):
            categories = [as_category(value) for value in sorted(model.categories[name], key=str)]
            guess = near(unknown[0], categories) if len(unknown) == 1 else ""
            has = f": there are {quoted(categories)}" if not guess else ""
            kind = "category" if len(unknown) == 1 else "categories"
            yield f"features.{name}: the model has no {kind} {quoted(unknown)}{guess}{has}"


def _number(key: str | float) -> float | None:
    """Return a category as a number, a flag as well; None if it is neither."""
    return {"true": 1.0, "false": 0.0}.get(key, number_of(key)) if isinstance(key, str) else key


def _codes(profile: DecisionProfile, model: ProfiledFeatures) -> Iterator[str]:
    keys = _keys(profile, model)
    uncoded = [key for key in keys if profile.rule(key).reason is None]
    if uncoded and len(uncoded) < len(keys):
        yield f"features: no reason code for {quoted(uncoded)}: give each one, since others have one"
    if untold := [code for code in _codes_used(profile) if code not in profile.reasons]:
        known_codes = list(profile.reasons)
        guess = near(untold[0], known_codes) if len(untold) == 1 else ""
        yield f"reasons: {_listed('the code', untold)} has no text{guess}"


def _conditions(profile: DecisionProfile, model: ProfiledFeatures) -> Iterator[str]:
    for i, rule in enumerate(profile.knock_outs):
        where = f"knock_outs.{i} ({rule.feature})"
        if rule.feature in profile.groups:
            yield f"{where} tests a group: name one of its members"
        if rule.feature in model.inputs and rule.feature not in model.features and len(model.features) > 1:
            yield f"{where} tests a whole input of the model: name one of its features"
        yield from (f"{where} {fault}" for fault in _condition_faults(rule))
        if rule.feature in model.features and (fault := _unmet(rule, rule.feature in model.texts)):
            yield f"{where} {fault}"
    grouped = {rule.reason for rule in profile.groups.values()}
    single = {rule.reason for rule in profile.features.values()}
    single |= {rule.reason for rule in profile.knock_outs}
    for code, text in profile.reasons.items():
        if text.when and code in grouped - single:
            yield f"reasons.{code}.when is never met: a group has no single value"
        for i, wording in enumerate(text.when):
            yield from (f"reasons.{code}.when.{i} {fault}" for fault in _condition_faults(wording))


def _condition_faults(rule: Condition) -> Iterator[str]:
    has_bound = rule.above is not None or rule.below is not None
    if has_bound == (rule.equals is not None):
        yield "needs one condition: above, below, both (for values between them), or equals"
    if rule.above is not None and rule.below is not None and rule.above >= rule.below:
        yield f"is never met: no value is above {rule.above:g} and below {rule.below:g}"


def _unmet(rule: Condition, is_text: bool) -> str | None:
    """Return the reason why no value of a feature of the model meets a condition."""
    if is_text and not isinstance(rule.equals, str):
        return "is never met: the feature holds text, so say equals: 'a text'"
    if not is_text and isinstance(rule.equals, str):
        return "is never met: the feature holds numbers, so leave the quotes out"
    return None


def _undisclosed(profile: DecisionProfile, model: ProfiledFeatures) -> Iterator[str]:
    members = {member: name for name, rule in profile.groups.items() for member in rule.members}
    named = [*_keys(profile, model), *(rule.feature for rule in profile.knock_outs)]
    for name in profile.never_disclose:
        if name in members:
            yield f"never_disclose: '{name}' is explained with the group '{members[name]}': name the group"
    if unknown := [name for name in profile.never_disclose if name not in {*named, *members}]:
        yield f"never_disclose: {_unknown(unknown, named)}"


def _protected(profile: DecisionProfile, model: ProfiledFeatures) -> Iterator[str]:
    names = {name.casefold(): name for name in _names(profile, model)}
    used = [names[a.casefold()] for a in _forbidden(profile) if a.casefold() in names]
    if used:
        yield (
            f"protected: the model has {_listed('the input', used)}: train it without, or say so under "
            "allow_protected"
        )
    looked_at = {rule.feature for rule in profile.knock_outs} - {*names.values()}
    by_rule = {name.casefold(): name for name in sorted(looked_at)}
    if hit := [by_rule[a.casefold()] for a in _forbidden(profile) if a.casefold() in by_rule]:
        yield f"protected: a knock-out declines by {_listed('the attribute', hit)}: leave it out"
    if unlisted := [name for name in profile.allow_protected if name not in profile.protected]:
        guess = near(unlisted[0], profile.protected)
        yield f"allow_protected: {_listed('the name', unlisted)} is not under protected{guess}"


def _actions(profile: DecisionProfile, known: ProfiledFeatures) -> Iterator[str]:
    members = {member: name for name, rule in profile.groups.items() for member in rule.members}
    features = [*known.features, *(rule.feature for rule in profile.knock_outs)]
    changing = {*profile.actionable, *(each for each in members if members[each] in profile.actionable)}
    for name, action in profile.actionable.items():
        where = f"actionable.{name}"
        own = profile.groups[name].members if name in profile.groups else (name,)
        if name in members:
            yield f"{where} is in the group '{members[name]}': name the group"
        elif name not in profile.groups and name not in features:
            yield f"{where}: {_unknown([name], features)}"
        if fixed := [each for each in (name, *own, *action.moves) if each in profile.protected]:
            named = _listed("the protected feature", list(dict.fromkeys(fixed)))
            yield f"{where} changes {named}: leave it out"
        if unknown := [each for each in action.moves if each not in known.features]:
            yield f"{where}.moves: {_unknown(unknown, known.features)}"
        if twice := [each for each in action.moves if each in changing]:
            yield f"{where}.moves names {quoted(twice)}, which has its own entry: remove one of the two"
        words = [each for each in (name, *action.moves) if each in known.texts]
        if words or name in profile.groups:
            limits = {"direction": action.direction != "either", "step": action.step, "most": action.most}
            if given := [key for key, value in {**limits, "moves": action.moves}.items() if value]:
                kind = "a group" if name in profile.groups else f"the text '{words[0]}'"
                yield (
                    f"{where}.{given[0]} works only for numbers, but this entry changes {kind}: leave it out"
                )


def _notices(profile: DecisionProfile, known: ProfiledFeatures) -> Iterator[str]:
    """Yield faults of notices: plans that they cannot print, features without a title in a language."""
    in_plans = {**profile.actionable} if profile.notice.recourse else {}
    if profile.notice.recourse and not in_plans:
        yield "notice.recourse needs plans, and plans need actionable: list the features that can change"
    if hidden := [name for name in in_plans if name in profile.never_disclose]:
        yield f"notice.recourse: plans name {quoted(hidden)}, which never_disclose hides: leave it out"
    if len(profile.languages) == 1:
        return
    rules = {**profile.groups, **profile.features}
    to_name = [
        *in_plans,
        *(member for name in in_plans if name in profile.groups for member in profile.groups[name].members),
    ]
    to_name += [name for name, rule in profile.features.items() if rule.unit or rule.categories]
    to_name += [] if _codes_used(profile) else _keys(profile, known)
    if untitled := [
        name for name in dict.fromkeys(to_name) if name not in rules or rules[name].title is None
    ]:
        yield (
            f"notices name {_listed('the feature', untitled)}: give a title in {quoted(profile.languages)}"
        )


def _band(profile: DecisionProfile, _: ProfiledFeatures) -> Iterator[str]:
    if profile.refer is None:
        return
    low, high = profile.refer
    if not low <= profile.threshold <= high:
        order = (
            "is not from low to high" if low > high else f"does not hold the threshold {profile.threshold:g}"
        )
        yield f"refer [{low:g}, {high:g}] {order}"


_CHECKS: tuple[Callable[[DecisionProfile, ProfiledFeatures], Iterator[str]], ...] = (
    _groups,
    _features,
    _domain,
    _codes,
    _conditions,
    _undisclosed,
    _protected,
    _actions,
    _notices,
    _band,
)


def _keys(profile: DecisionProfile, model: ProfiledFeatures) -> list[str]:
    """Return the keys of attributions: groups, and features in none."""
    members = {member for rule in profile.groups.values() for member in rule.members}
    return [*profile.groups, *(feature for feature in model.features if feature not in members)]


def _codes_used(profile: DecisionProfile) -> dict[str, None]:
    rules = [*profile.features.values(), *profile.groups.values()]
    codes = [*(rule.reason for rule in rules), *(rule.reason for rule in profile.knock_outs)]
    return dict.fromkeys(code for code in codes if code is not None)


def _names(profile: DecisionProfile, model: ProfiledFeatures) -> dict[str, None]:
    """Return the names by which an attribute may be known."""
    return dict.fromkeys([*model.features, *model.inputs, *profile.groups])


def _forbidden(profile: DecisionProfile) -> list[str]:
    return [name for name in profile.protected if name not in profile.allow_protected]


def _is_encoding(attribute: str, name: str) -> bool:
    """Tell whether a name looks like a column made of an attribute: sex_female, sex=female."""
    suffix = name.casefold().removeprefix(attribute.casefold())
    return len(suffix) < len(name) and suffix[:1] in ("_", "=", ".", "-", " ")


def _unknown(names: Sequence[str], choices: Sequence[str]) -> str:
    guesses = near(names[0], choices) if len(names) == 1 else ""
    has = f": there are {quoted(choices)}" if not guesses else ""
    return f"the model has no {_listed('feature', names)}{guesses}{has}"


def _listed(kind: str, names: Sequence[str]) -> str:
    return f"{kind}{'s' * (len(names) > 1)} {quoted(names)}"
