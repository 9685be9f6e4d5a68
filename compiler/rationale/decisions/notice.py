"""The statement of a decline for the applicant: principal reasons, and a notice's other contents.

docs/notices.md says which rules ask for what. Templates are Jinja's; two come with Rationale, in each
language that has a folder of them.
"""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path
from typing import Any

import yaml
from jinja2 import ChainableUndefined, FileSystemLoader, TemplateError, Undefined, select_autoescape
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment

from rationale.decisions.decide import reason_in_language
from rationale.errors import InvalidOptionError
from rationale.schema.profile import ENGLISH, DecisionProfile, FeatureRule

ADVERSE_ACTION, EU = "adverse-action", "eu-consumer-credit"
TEMPLATES = (ADVERSE_ACTION, EU)
_DOWN, _UP = Context(prec=3, rounding=ROUND_FLOOR), Context(prec=3, rounding=ROUND_CEILING)
_FOLDER = Path(__file__).parent / "notices"
_LOST = "the profile that decided is not in the repository: put the entry's folder back that was served then"
LOST_PROFILE = f"the notice is in English, and tells no plans: {_LOST}"
_FILLED = ("decision", "reasons", "plans", "language", "review")  # variables that the decision fills
# Reasons that 12 CFR 1002.9(b)(2) calls insufficient.
_GENERIC = re.compile(r"qualifying score|internal (standards?|polic(y|ies))", re.IGNORECASE)


class MissingVariablesError(InvalidOptionError):
    """Variables of a template that nobody gave."""


@dataclass(frozen=True)
class Notice:
    """A notice of adverse action.

    Attributes:
        warnings: points to check before it is sent.
    """

    text: str
    language: str
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class PlannedChange:
    """One change of a plan, with the texts of a profile.

    Attributes:
        value: the new value with its unit, or its label; a flag without a label is true or false.
        least, most: the least and the greatest number that leads to an approval too, the last with its unit;
            None for an open end, and for a value that is no number or has no region.
    """

    title: str
    value: str | bool | None
    least: str | None = None
    most: str | None = None


def notice(
    answer: Mapping[str, Any],
    variables: Mapping[str, Any],
    template: str = ADVERSE_ACTION,
    *,
    person_declined: bool = False,
    first: Mapping[str, Any] | None = None,
    profile: DecisionProfile | None = None,
    language: str | None = None,
) -> Notice:
    """Fill a template with a decision's reasons.

    Args:
        answer: a decision as `:decide` answered it.
        variables: the template's variables besides those that the decision fills, nested by dots. `judgment`
            holds the reasons of the person who declined a referred application.
        template: the name of one that comes with Rationale, or a file; in .html, values are escaped.
        person_declined: whether a person declined a referred application.
        first: the decision that `answer` reviews, if it reviews one.
        profile: the profile that decided; without it, texts stay as they were answered, and the notice tells
            no plans.
        language: the language of the notice; by default the profile's first, or English.

    Raises:
        InvalidOptionError: if there is no adverse action, or none with specific reasons; if the profile or
            the template is not in that language; if the template cannot be read or rendered; or if variables
            are missing, all of which are named.
    """
    clashes = [name for name in _FILLED if name in variables]
    if clashes:
        raise InvalidOptionError(f"variables: {', '.join(clashes)} comes from the decision: leave it out")
    if answer["decision"] == "approve":
        raise InvalidOptionError(
            f"decision {answer['id']} is an approval: a notice needs a decline or a referral"
        )
    judged = _judgment(answer, variables, person_declined=person_declined)
    is_judgment = "reviewer" in answer and "score" not in answer
    if is_judgment:  # where score and person decided together, the reasons of both
        judged = [str(reason["text"]) for reason in answer["reasons"]]
        answer = {**answer, "reasons": first["reasons"] if first and first["decision"] == "refer" else ()}
    plans: list[list[PlannedChange]] = []
    if profile is None:
        if language is not None:
            raise InvalidOptionError(f"language '{language[:80]}': {_LOST}")
        language = ENGLISH[0]
    else:
        language = language or profile.language
        own_reasons = [reason_in_language(profile, language, reason) for reason in answer["reasons"]]
        answer = {**answer, "reasons": own_reasons}
        told = (answer.get("recourse") or {}).get("plans", ()) if profile.notice.recourse else ()
        plans = [planned_changes(profile.in_language(language), plan) for plan in told]
    reasons = _check_specific(answer, [*map(_reason_text, answer["reasons"]), *judged])
    missing: dict[str, None] = {}
    folder, name = _template_file(template, language)
    environment = SandboxedEnvironment(
        loader=FileSystemLoader(folder),
        undefined=_missing_variable_class(missing),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    values = {"date": datetime.date.today().isoformat(), **variables}
    filled: dict[str, Any] = {"decision": answer, "reasons": reasons, "plans": plans, "language": language}
    filled["review"] = {"of": answer["reviews"], "by_person": is_judgment} if "reviews" in answer else None
    context = {**_Variables(values), **filled}
    try:
        text = environment.get_template(name).render(context)
    except (TemplateError, ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
        raise InvalidOptionError(f"template {template}: cannot be rendered: {_message(error)}") from error
    if missing:
        raise MissingVariablesError(
            f"variables are missing: {', '.join(missing)}. Give each in variables; use false for "
            "one that does not exist"
        )
    return Notice(text, language, tuple(_warnings(answer)))


def read_variables(file: Path | None, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Read the variables of a YAML or JSON file, then NAME=VALUE.

    A dot in NAME leads into a nested mapping.

    Raises:
        InvalidOptionError: if the file cannot be read or is no mapping, or a setting is not NAME=VALUE.
    """
    variables: Any = {}
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
            variables = _plain_values(yaml.load(text, yaml.BaseLoader)) or {}  # noqa: S506 (it makes texts alone)
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise InvalidOptionError(f"--variables {file}: cannot be read: {error}") from error
        if not isinstance(variables, dict):
            raise InvalidOptionError(
                f"--variables {file}: must hold names and values, not a {_kind(variables)}"
            )
    for setting in settings:
        name, equals, value = setting.partition("=")
        *parents, last = name.split(".")
        if not equals or not all([*parents, last]):
            raise InvalidOptionError(f"--set {setting}: give NAME=VALUE, such as creditor.name='A Bank'")
        scope = variables
        for parent in parents:
            scope = scope.setdefault(parent, {})
            if not isinstance(scope, dict):
                raise InvalidOptionError(f"--set {setting}: {parent} has a value, so it cannot have parts")
        scope[last] = False if value == "false" else value
    return dict(variables)


def _plain_values(node: Any) -> Any:
    """Return texts as they were written, such as a telephone number's zero; true, false and null as flags."""
    if isinstance(node, dict):
        return {key: _plain_values(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain_values(value) for value in node]
    return {"true": True, "false": False, "null": None, "": None}.get(node, node)


def planned_changes(profile: DecisionProfile, plan: Mapping[str, Any]) -> list[PlannedChange]:
    """Return the changes of a plan in the order of `actionable`, without features that move along."""
    changes, regions = plan["changes"], plan["regions"]
    told = list[PlannedChange]()
    for name in profile.actionable:
        if name in profile.groups:
            member = next((one for one in profile.groups[name].members if changes.get(one) == 1), None)
            told += [] if member is None else [PlannedChange(profile.title(name), profile.title(member))]
        elif name in changes:
            told.append(_planned_change(profile, name, changes[name], regions.get(name)))
    return told


def _planned_change(
    profile: DecisionProfile, name: str, value: Any, region: Sequence[float | None] | None
) -> PlannedChange:
    rule, title = profile.features.get(name, FeatureRule()), profile.title(name)
    label = rule.label(value)
    if label is not None or isinstance(value, str | bool):
        return PlannedChange(title, value if label is None else label)
    least, most = _short_region(value, region or (value, value), (rule.least, rule.most))
    unit = "" if rule.unit is None else f" {rule.unit}"
    texts = [None if number is None else profile.number(number) + unit for number in (value, least, most)]
    if least is not None and most is not None:  # 12 to 30 months
        texts[1] = profile.number(least)
    return PlannedChange(title, *texts)


def _short_region(
    value: float, region: Sequence[float | None], bounds: Sequence[float | None]
) -> Sequence[float | None]:
    """Return a part of a region with short ends: the nearer end is the value, the other has three digits.

    Args:
        bounds: the least and the greatest number that the feature takes; an end that is one of them is open.
    """
    low, high = (None if end == bound else end for end, bound in zip(region, bounds, strict=True))
    if low is not None and low == high:
        return None, None
    if low is None or high is None:
        return None if low is None else value, None if high is None else value
    if value - low <= high - value:
        short = float(_DOWN.create_decimal(repr(high)))
        return value, short if short > value else high
    short = float(_UP.create_decimal(repr(low)))
    return short if short < value else low, value


def _reason_text(reason: Mapping[str, Any]) -> str:
    """Return a reason's text, with the applicant's value if the profile gives its unit or category."""
    text, shown = str(reason["text"]), reason.get("shown")
    if shown is None or reason["code"] in reason["features"]:  # then the text is the feature's title
        return text if shown is None else str(shown)
    return f"{text} ({shown})"


def _check_specific(answer: Mapping[str, Any], reasons: list[str]) -> list[str]:
    """Return the same texts; raise InvalidOptionError if a notice must not hold them."""
    if not reasons or not all(text.strip() for text in reasons):
        raise InvalidOptionError(
            f"decision {answer['id']} has no principal reason: a notice needs at least one specific reason"
        )
    generic = [text for text in reasons if _GENERIC.search(text)]
    if generic:
        raise InvalidOptionError(
            f"'{generic[0]}' is not a specific reason: 12 CFR 1002.9(b)(2) calls such a statement "
            "insufficient. Name in the decision profile what in the application led to the decline"
        )
    return reasons


def _judgment(answer: Mapping[str, Any], variables: Mapping[str, Any], *, person_declined: bool) -> list[str]:
    """Return the reasons of the person who declined a referred application."""
    if answer["decision"] != "refer":
        if person_declined or variables.get("judgment"):
            raise InvalidOptionError(
                f"decision {answer['id']} is an automatic decline: the notice has the decision's reasons, "
                "so leave person_declined and judgment out"
            )
        return []
    if not person_declined:
        raise InvalidOptionError(
            f"decision {answer['id']} is a referral to a person: after the person has declined, write the "
            "notice with person_declined"
        )
    judgment = variables.get("judgment")
    if (
        not isinstance(judgment, list)
        or not judgment
        or not all(isinstance(reason, str) for reason in judgment)
    ):
        raise InvalidOptionError(
            "variable judgment: list the person's reasons for the decline; if score and person decided "
            "together, the notice has the reasons of both"
        )
    return judgment


def _warnings(answer: Mapping[str, Any]) -> Iterator[str]:
    for reason in answer["reasons"]:
        if reason["code"] in reason["features"]:
            yield (
                f"'{reason['text']}' is the title of a feature and no reason: give {reason['code']} a reason "
                "code with a text in the decision profile"
            )
        if reason.get("tied") or reason.get("uncertain"):
            yield f"'{reason['text']}' is as large as the next reason, within rounding or its standard error"
    yield from answer.get("warnings", ())


def _template_file(template: str, language: str) -> tuple[Path, str]:
    """Return folder and name of a template's file; those of Rationale have no regions."""
    if template in TEMPLATES:
        there, own = sorted(each.name for each in _FOLDER.iterdir()), language.partition("-")[0]
        if own not in there:  # a caller of the API chooses it: no path
            raise InvalidOptionError(
                f"template {template}: it is in {', '.join(there)}, and not in '{language[:80]}': choose "
                "another language"
            )
        return _FOLDER / own, f"{template}.txt"
    path = Path(template)
    if not path.is_file():
        raise InvalidOptionError(
            f"template {template}: there is no such file; {' and '.join(TEMPLATES)} come with Rationale"
        )
    return path.parent, path.name


class _Variables(dict[str, Any]):
    """Variables that know their own path in the template; one without a value is missing."""

    def __init__(self, values: Mapping[str, Any], within: str = "") -> None:
        self.within = within
        super().__init__(
            {
                str(name): _Variables(value, f"{within}{name}.") if isinstance(value, dict) else value
                for name, value in values.items()
                if value is not None
            }
        )


def _missing_variable_class(missing: dict[str, None]) -> type[Undefined]:
    """Return a class for missing variables, which notes their names when a template uses them."""

    class MissingVariable(ChainableUndefined):
        __slots__ = ()

        def __getattr__(self, name: str) -> "MissingVariable":
            if name.startswith("__"):
                raise AttributeError(name)
            return type(self)(name=f"{self._undefined_name}.{name}")

        def _note(self) -> None:
            """Record the variable as missing; raise if the sandbox forbids the access."""
            if self._undefined_exception is SecurityError:
                self._fail_with_undefined_error()
            within = self._undefined_obj.within if isinstance(self._undefined_obj, _Variables) else ""
            missing[f"{within}{self._undefined_name}"] = None

        def __str__(self) -> str:
            self._note()
            return ""

        def __iter__(self) -> Iterator[Any]:
            self._note()
            return iter(())

        def __bool__(self) -> bool:
            self._note()
            return False

        def __len__(self) -> int:
            self._note()
            return 0

    return MissingVariable


def _message(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    return f"{error}{f' (line {line})' if line else ''}"


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list) else "single value"
