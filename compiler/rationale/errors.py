"""All errors of this project, as one tree.

RationaleError              carries the HTTP `status` that a server answers with
├── InvalidModelError       the file is no ONNX model, is damaged, or cannot be loaded
├── UnsupportedModelError   a sound model that cannot be explained: the nodes and what to do
├── InvalidReferencesError  wrong shape, dtype, names or values
│   └── LargeReferencesError    more of them than the reader may take
├── InvalidOptionError      a flag or an argument
│   └── InvalidProfileError     a decision profile, or one that does not fit its model; every fault is named
├── ExtensionError          an installed package brings a rule that cannot be used
├── CheckFailedError        the compiled graph did not pass its own check; nothing was written
└── RepositoryError         the model repository cannot be read or written
"""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from itertools import islice

_LONGEST = 300  # characters of what a library says
_LONGEST_NAME, _MOST_NAMES = 80, 10  # characters of an untrusted name, and names of a list


def reason_of(error: Exception) -> str:
    """Return the message of a library's error as one short line."""
    words = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split()  # torch writes some of them in colour
    return " ".join(words).rstrip(".")[:_LONGEST] or type(error).__name__


def quoted(names: Collection[str]) -> str:
    """Return names in quotes, cut short: of many, the first and the number of the others."""
    more = f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES)
    return ", ".join(repr(name[:_LONGEST_NAME]) for name in islice(names, _MOST_NAMES)) + more


def near(word: str, choices: Iterable[str]) -> str:
    """Return a question that follows an unknown name and suggests a similar known one."""
    folded = {name.strip().casefold(): name for name in choices}
    matches = get_close_matches(word.strip().casefold(), folded, 1)
    return f" (do you mean '{folded[matches[0]]}'?)" if matches else ""


class RationaleError(Exception):
    """Base of every error that this project raises on purpose; the text addresses the user."""

    status = 500


class DriftWarning(UserWarning):
    """An entry whose answers to its probe rows have changed since it was compiled; it still serves."""


class InvalidModelError(RationaleError):
    """A file that is no ONNX model, is damaged, or that ONNX Runtime cannot load."""

    status = 422


class UnsupportedModelError(RationaleError):
    """A sound model that cannot be explained; the text names every offending node."""

    status = 422


class InvalidReferencesError(RationaleError):
    """A reference set that does not fit its model: shape, dtype, names, NaN."""

    status = 422


class LargeReferencesError(InvalidReferencesError):
    """References that exceed the memory limit; raised before they are read into memory."""

    status = 413


class InvalidOptionError(RationaleError):
    """A flag, argument or method option that is invalid, or invalid for this model."""

    status = 422


class InvalidProfileError(InvalidOptionError):
    """A decision profile that is invalid, or invalid for its model; the text names every fault."""


class ExtensionError(RationaleError):
    """An extension that cannot be imported or used; the text names the package's entry point."""

    status = 500


class CheckFailedError(RationaleError):
    """A compiled graph that failed its own check and was not written."""

    status = 500


class RepositoryError(RationaleError):
    """A model repository, or an entry of it, that cannot be read or written."""

    status = 500
