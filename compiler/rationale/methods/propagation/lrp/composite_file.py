"""Composites in TOML files.

base = "EpsilonPlus"                  # a preset; EpsilonPlus where it is left out
low = -1.0                            # bounds of the model's input, for zbox without its own
high = 1.0

[rules]                               # selector = rule; the last match wins
Conv = "gamma(0.25)"
"name:head.*" = "epsilon(0.1)"
first = "zbox(low=-1, high=1)"
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rationale.errors import InvalidOptionError, RationaleError
from rationale.methods.propagation.lrp.composites import COMPOSITES, Choice, parse_selector
from rationale.methods.propagation.lrp.rules import check_bounds
from rationale.methods.propagation.lrp.texts import parse_rule

_KEYS = ("base", "low", "high", "rules")


def read_composite(path: Path) -> dict[str, Any]:
    """Return `Lrp`'s composite, rules, low and high, as a file gives them.

    Raises:
        InvalidOptionError: the file, the key, and what may stand there.
        ExtensionError: an installed package brings a rule that is named and cannot be used.
    """
    table = _read(path)
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        known = "base, low, high and the table [rules]"
        raise InvalidOptionError(f"{path}: key {unknown[0]!r} is not known; there are {known}.")
    base = table.get("base", "EpsilonPlus")
    if not isinstance(base, str) or base not in COMPOSITES:
        raise InvalidOptionError(f"{path}: base = {base!r} is not known; there are {', '.join(COMPOSITES)}.")
    low, high = table.get("low"), table.get("high")
    if low is not None and high is not None:
        check_bounds(str(path), low, high)
    return {"composite": base, "rules": _rules(path, table.get("rules", {})), "low": low, "high": high}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidOptionError(f"{path}: cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidOptionError(
            f"{path}: no TOML ({error}). A selector of other signs than letters, digits, - and _ stands in "
            'quotes, and so does a rule: "name:head.*" = "epsilon(0.1)".'
        ) from error


def _rules(path: Path, table: object) -> tuple[Choice, ...]:
    """Return the rules in the order of the file, which `tomllib` keeps."""
    if not isinstance(table, Mapping):
        raise InvalidOptionError(
            f'{path}: rules is a table, [rules], with lines such as Conv = "gamma(0.25)".'
        )
    return tuple(_choice(path, selector, rule) for selector, rule in table.items())


def _choice(path: Path, selector: str, rule: object) -> Choice:
    key = f'{path}: rules."{selector}"'
    if not isinstance(rule, str):
        raise InvalidOptionError(
            f'{key} must be a rule as a text, such as "gamma(0.25)", not {rule!r}. A selector with a dot '
            "stands in quotes."
        )
    try:
        parse_selector(selector)
        return selector, parse_rule(rule)
    except RationaleError as error:
        raise type(error)(f"{key}: {error}") from error
