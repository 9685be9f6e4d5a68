"""Names of models and of their entries."""

import re

from rationale.errors import InvalidOptionError
from rationale.schema.manifest import EXPLAIN_SUFFIX

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_DIGITS = 12  # digits of a digest in an entry's name; explainers made over the API have 16


def check_name(name: str) -> str:
    """Return the name; raise InvalidOptionError for one that Triton or a URL would not take."""
    if not _NAME.fullmatch(name) or ".." in name or name.endswith(EXPLAIN_SUFFIX):
        raise InvalidOptionError(
            f"{name!r} is not a model name: use letters, digits, '.', '_' and '-', beginning with a "
            f"letter or digit, and not ending in {EXPLAIN_SUFFIX!r}."
        )
    return name


def entry_name(model: str, explanation: str) -> str:
    """Return NAME_explain_<digits of its digest>."""
    return f"{model}{EXPLAIN_SUFFIX}_{explanation[:_DIGITS]}"


def is_entry_name(name: str, model: str) -> bool:
    """Tell whether a name is one that `entry_name` gives."""
    digits = name.removeprefix(f"{model}{EXPLAIN_SUFFIX}_")
    return digits != name and re.fullmatch(rf"[0-9a-f]{{{_DIGITS}}}", digits) is not None
