"""The text form of rules: `gamma:0.25` or `gamma(0.25)`, and with a selector `Conv=gamma:0.25`.

With colons, parameters follow the order of the dataclass's fields; a call also takes them by name, like
Python: `zbox(low=-1, high=1, epsilon=1e-9)`.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from rationale.errors import InvalidOptionError
from rationale.methods.propagation.lrp.composites import Choice, parse_selector
from rationale.methods.propagation.lrp.registry import find_rule_class
from rationale.methods.propagation.lrp.rules import NAME, RelevanceRule, fits, kind_of

_WRITTEN = re.compile(rf"({NAME.pattern})(?::([^()\"']*)|\((.*)\))?", re.DOTALL)
_LONGEST = 10_000  # characters of a call, far below the limits of Python's parser
_PLURALS = {float: "numbers", int: "whole numbers", bool: "true or false", str: "texts"}


def parse_choice(text: str) -> Choice:
    """Parse `Conv=gamma:0.25`, as on the command line; raise the errors of `parse_rule`."""
    equal_signs = [i for i, sign in enumerate(text) if sign == "="]
    rules = [i for i in equal_signs if i and _looks_like_a_rule(text[i + 1 :])]
    split_index = (rules or equal_signs or [0])[-1]
    if not split_index:
        raise InvalidOptionError(
            f"rule {text!r}: give SELECTOR=RULE, such as Conv=gamma:0.25 or 'first=zbox(low=-2, high=2)'."
        )
    selector = text[:split_index].strip()
    parse_selector(selector)
    return selector, parse_rule(text[split_index + 1 :])


def _looks_like_a_rule(text: str) -> bool:
    return text.count("(") == text.count(")") and _WRITTEN.fullmatch(text.strip()) is not None


def parse_rule(text: str) -> RelevanceRule:
    """Return the rule that a text describes.

    Raises:
        InvalidOptionError: if the rule is unknown or its parameters are invalid; the message lists the valid
            ones.
        ExtensionError: if an installed package's rule of that name cannot be used.
    """
    written = _WRITTEN.fullmatch(text.strip())
    if written is None:
        raise InvalidOptionError(
            f"rule {text!r}: write a name alone, or gamma:0.25, or gamma(0.25) with literals as in Python."
        )
    name, values, call_text = written.groups()
    cls = find_rule_class(name)
    parameters = {f.name: f for f in fields(cls) if f.init}
    if call_text is not None:
        parsed = _parse_call(text, call_text, parameters)
    else:
        parsed = _parse_values(text, values.split(":") if values is not None else [], parameters)
    needed = [f.name for f in parameters.values() if f.default is MISSING and f.default_factory is MISSING]
    if not parsed.keys() >= set(needed):
        raise InvalidOptionError(f"rule {text!r} needs {', '.join(needed)}; {_usage(name, parameters)}.")
    try:
        return cls(**parsed)
    except (TypeError, ValueError) as error:
        raise InvalidOptionError(f"rule {text!r}: {error}.") from error


Parameters = Mapping[str, "Field[Any]"]


def _parse_values(text: str, values: Sequence[str], parameters: Parameters) -> dict[str, Any]:
    _check_count(text, len(values), parameters)
    pairs = zip(values, parameters.values(), strict=False)
    try:
        return {f.name: _PARSERS.get(kind_of(f), _parse_any)(value.strip()) for value, f in pairs}
    except ValueError as error:
        raise InvalidOptionError(f"rule {text!r}: give {_describe_values(parameters)}.") from error


def _parse_call(text: str, arguments: str, parameters: Parameters) -> dict[str, Any]:
    positional, named = _literals(text, arguments)
    _check_count(text, len(positional), parameters)
    parsed = dict(zip(parameters, positional, strict=False))
    for name, value in named:
        if name is None or name not in parameters or name in parsed:
            fault = "comes twice" if name in parsed else "is not one of its parameters"
            form = _usage(_name(text), parameters)
            raise InvalidOptionError(f"rule {text!r}: {name or '**'} {fault}; {form}.")
        parsed[name] = value
    for name, value in parsed.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        kind = kind_of(parameters[name])
        parsed[name] = _to_float(value) if number and kind is not int else value
        if not fits(kind, parsed[name]):
            raise InvalidOptionError(f"rule {text!r}: give {_describe_values(parameters)}.")
    return parsed


def _literals(text: str, arguments: str) -> tuple[list[Any], list[tuple[str | None, Any]]]:
    """Return positional and named arguments; only literals are evaluated."""
    try:
        if len(arguments) > _LONGEST:
            raise ValueError(f"more than {_LONGEST} characters")
        call = ast.parse(f"f({arguments})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("more than one call")
        positional = [ast.literal_eval(node) for node in call.args]
        named = [(pair.arg, ast.literal_eval(pair.value)) for pair in call.keywords]
        for value in (*positional, *(value for _, value in named)):
            json.dumps(value)  # a TypeError for sets, bytes, complex numbers …
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise InvalidOptionError(
            f"rule {text[:200]!r}: parameters are literals such as 0.25, True, 'text' or [0, 1] ({error})."
        ) from error
    return positional, named


def _check_count(text: str, count: int, parameters: Parameters) -> None:
    if count > len(parameters):
        kinds = {kind_of(f) for f in parameters.values()}
        many = "numbers" if kinds <= {float} else "values"
        raise InvalidOptionError(f"rule {text!r} has too many {many}; {_usage(_name(text), parameters)}.")


def _name(text: str) -> str:
    return re.split("[:(]", text.strip(), maxsplit=1)[0]


def _usage(name: str, parameters: Parameters) -> str:
    colons = ":".join([name, *(p.upper() for p in parameters)])
    return f"the form is {colons} or {name}({', '.join(f'{p}=…' for p in parameters)})"


def _describe_values(parameters: Parameters) -> str:
    """Return a text that lists the kinds of values and their parameters."""
    kinds: dict[str, list[str]] = {}
    for f in parameters.values():
        kinds.setdefault(_PLURALS.get(kind_of(f), "numbers or lists"), []).append(f.name)
    return ", ".join(f"{type_name} for {', '.join(names)}" for type_name, names in kinds.items())


def _to_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # from a large integer
        return math.inf if number > 0 else -math.inf


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _parse_any(text: str) -> Any:
    """Read a number, a list of numbers, or the text itself; the rule checks the value."""
    for read in (float, json.loads):
        try:
            return read(text)
        except (ValueError, RecursionError):
            continue
    return text


_PARSERS: dict[Any, Callable[[str], Any]] = {float: float, int: int, bool: _parse_bool, str: str}
