"""The statement of a decline for the applicant: principal reasons, and a notice's other contents.

docs/notices.md says which rules ask for what. Templates are Jinja's; two come with Rationale.
"""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import ChainableUndefined, FileSystemLoader, TemplateError, Undefined, select_autoescape
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment

from rationale.errors import InvalidOptionError

ADVERSE_ACTION, EU = "adverse-action", "eu-consumer-credit"
TEMPLATES = (ADVERSE_ACTION, EU)
_FILLED = ("decision", "reasons", "review")  # variables that the decision fills
# Reasons that 12 CFR 1002.9(b)(2) calls insufficient.
_GENERIC = re.compile(r"qualifying score|internal (standards?|polic(y|ies))", re.IGNORECASE)


@dataclass(frozen=True)
class Notice:
    """A notice of adverse action.

    Attributes:
        warnings: points to check before it is sent.
    """

    text: str
    warnings: tuple[str, ...]


def notice(
    answer: Mapping[str, Any],
    variables: Mapping[str, Any],
    template: str = ADVERSE_ACTION,
    *,
    person_declined: bool = False,
    first: Mapping[str, Any] | None = None,
) -> Notice:
    """Fill a template with a decision's reasons.

    Args:
        answer: a decision as `:decide` answered it.
        variables: the template's variables besides `decision` and `reasons`, nested by dots. `judgment` holds
            the reasons of the person who declined a referred application.
        template: the name of one that comes with Rationale, or a file; in .html, values are escaped.
        person_declined: whether a person declined a referred application.
        first: the decision that `answer` reviews, if it reviews one.

    Raises:
        InvalidOptionError: if there is no adverse action, or none with specific reasons; if the template
            cannot
            be read or rendered; or if variables are missing, all of which are named.
    """
    clashes = [name for name in _FILLED if name in variables]
    if clashes:
        raise InvalidOptionError(f"variables: {', '.join(clashes)} is filled from the decision: leave it out")
    if answer["decision"] == "approve":
        raise InvalidOptionError(f"decision {answer['id']} approves: a notice is for a decline or a referral")
    judged = _judgment(answer, variables, person_declined=person_declined)
    scored = first["reasons"] if first and _is_judgment(answer) and first["decision"] == "refer" else ()
    reasons = [*map(_reason_text, (*scored, *answer["reasons"])), *judged]
    reasons = _check_specific(answer, reasons)
    missing: dict[str, None] = {}
    folder, name = _template_file(template)
    environment = SandboxedEnvironment(
        loader=FileSystemLoader(folder),
        undefined=_missing_variable_class(missing),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    values = {"date": datetime.date.today().isoformat(), **variables}
    context = {**_Variables(values), "decision": answer, "reasons": reasons, "review": _review(answer)}
    try:
        text = environment.get_template(name).render(context)
    except (TemplateError, ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
        raise InvalidOptionError(f"template {template}: cannot be rendered: {_message(error)}") from error
    if missing:
        raise InvalidOptionError(
            f"variables are missing: {', '.join(missing)}. Give each in the file of --variables, or by --set "
            "NAME=VALUE; false says that there is no such thing"
        )
    return Notice(text, tuple(_warnings(answer)))


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
                raise InvalidOptionError(f"--set {setting}: {parent} has a value of its own, and no parts")
        scope[last] = False if value == "false" else value
    return dict(variables)


def _plain_values(node: Any) -> Any:
    """Return texts as they were written, such as a telephone number's zero; true, false and null as flags."""
    if isinstance(node, dict):
        return {key: _plain_values(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain_values(value) for value in node]
    return {"true": True, "false": False, "null": None, "": None}.get(node, node)


def _reason_text(reason: Mapping[str, Any]) -> str:
    """Return a reason's text, with the applicant's value if the profile gives its unit or category."""
    text, shown = str(reason["text"]), reason.get("shown")
    if shown is None or _is_untitled(reason):  # then the text is the feature's title
        return text if shown is None else str(shown)
    return f"{text} ({shown})"


def _is_untitled(reason: Mapping[str, Any]) -> bool:
    """Tell whether a feature's title stands for a reason's text. A person's reason has no features."""
    return reason["code"] in reason.get("features", ())


def _is_judgment(answer: Mapping[str, Any]) -> bool:
    """Tell whether a person decided in place of a model."""
    return "reviewer" in answer and "score" not in answer


def _review(answer: Mapping[str, Any]) -> str:
    """Return the sentence of a notice that says what a decision reviews; empty if it reviews nothing."""
    if not answer.get("reviews"):
        return ""
    how = "This decision was made by a person, who reviewed"
    if not _is_judgment(answer):
        how = "A person corrected the data of your application, and with these data this decision replaces"
        return f"{how} our earlier decision {answer['reviews']}."
    return f"{how} our earlier decision {answer['reviews']} and replaces it."


def _check_specific(answer: Mapping[str, Any], reasons: list[str]) -> list[str]:
    """Return the same texts; raise InvalidOptionError if a notice must not hold them."""
    if not reasons or not all(text.strip() for text in reasons):
        raise InvalidOptionError(
            f"decision {answer['id']} has no principal reason: a notice needs at least one that is specific"
        )
    generic = [text for text in reasons if _GENERIC.search(text)]
    if generic:
        raise InvalidOptionError(
            f"'{generic[0]}' is no specific reason: 12 CFR 1002.9(b)(2) calls such a statement insufficient. "
            "Say in the decision profile what of the application speaks against it"
        )
    return reasons


def _judgment(answer: Mapping[str, Any], variables: Mapping[str, Any], *, person_declined: bool) -> list[str]:
    """Return the reasons of the person who declined a referred application."""
    if answer["decision"] != "refer":
        if person_declined or variables.get("judgment"):
            raise InvalidOptionError(
                f"decision {answer['id']} declined by itself: its reasons are those of the notice, and a "
                "person's are not among them"
            )
        return []
    if not person_declined:
        raise InvalidOptionError(
            f"decision {answer['id']} refers to a person: give notice after the person has declined, with "
            "--person-declined"
        )
    judgment = variables.get("judgment")
    if (
        not isinstance(judgment, list)
        or not judgment
        or not all(isinstance(reason, str) for reason in judgment)
    ):
        raise InvalidOptionError(
            "variable judgment: give the list of the reasons for which the person declined; where score and "
            "person decided together, a notice has the reasons of both"
        )
    return judgment


def _warnings(answer: Mapping[str, Any]) -> Iterator[str]:
    for reason in answer["reasons"]:
        if _is_untitled(reason):
            yield (
                f"'{reason['text']}' is the title of a feature and no reason: give {reason['code']} a reason "
                "code with a text in the decision profile"
            )
        if reason.get("tied") or reason.get("uncertain"):
            yield f"'{reason['text']}' is as large as the next reason, within rounding or its standard error"
    yield from answer.get("warnings", ())


def _template_file(template: str) -> tuple[Path, str]:
    """Return folder and name of a template's file."""
    if template in TEMPLATES:
        return Path(__file__).parent / "notices", f"{template}.txt"
    path = Path(template)
    if not path.is_file():
        raise InvalidOptionError(
            f"--template {template}: there is no such file; {' and '.join(TEMPLATES)} come with Rationale"
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
