"""The one tree of errors of this project.

RationaleError              carries an HTTP `status`, for whoever serves it
├── InvalidModelError       the file is no ONNX model, is damaged, or cannot be loaded
├── UnsupportedModelError   a sound model that cannot be explained: the nodes and what to do
├── InvalidReferencesError  wrong shape, dtype, names or values
│   └── LargeReferencesError    more of them than the reader was allowed to take
├── InvalidOptionError      a flag or an argument
│   └── InvalidProfileError     a decision profile, or one that does not fit its model; every fault is named
├── ExtensionError          an installed package brings a rule that cannot be used
├── CheckFailedError        the compiled graph did not pass its own check; nothing was written
└── RepositoryError         the model repository cannot be read or written
"""

_LONGEST = 300  # characters of what a library says


def reason_of(error: Exception) -> str:
    """Return what a library says went wrong, in one line that is not too long."""
    return " ".join(str(error).split()).rstrip(".")[:_LONGEST] or type(error).__name__


class RationaleError(Exception):
    """Base of every error this project raises on purpose; its text is meant for the user."""

    status = 500


class DriftWarning(UserWarning):
    """An entry answers its probe rows otherwise than when it was compiled, and answers all the same."""


class InvalidModelError(RationaleError):
    """The file is no ONNX model, is damaged, or ONNX Runtime cannot load it."""

    status = 422


class UnsupportedModelError(RationaleError):
    """A sound model that cannot be explained; the text names every offending node."""

    status = 422


class InvalidReferencesError(RationaleError):
    """A reference set that does not fit its model: shape, dtype, names, NaN."""

    status = 422


class LargeReferencesError(InvalidReferencesError):
    """More than may be held in memory; found out before it is."""

    status = 413


class InvalidOptionError(RationaleError):
    """A flag, argument or method option that makes no sense, or not for this model."""

    status = 422


class InvalidProfileError(InvalidOptionError):
    """A decision profile that makes no sense, or not for its model; the text names every fault."""


class ExtensionError(RationaleError):
    """An installed package brings something that cannot be imported or used; names its entry point."""

    status = 500


class CheckFailedError(RationaleError):
    """The compiled graph failed its own check, so it was not written."""

    status = 500


class RepositoryError(RationaleError):
    """The model repository, or an entry of it, cannot be read or written."""

    status = 500
