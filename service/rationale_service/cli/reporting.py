"""Report of the service's errors in one line, including missing packages of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from rationale import terminal
from rationale.errors import InvalidOptionError


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Convert this project's errors, and missing packages, → a line on stderr and exit status 2."""
    with terminal.reporting_errors():
        try:
            yield
        except ModuleNotFoundError as error:
            raise InvalidOptionError(
                f"{error}. This command needs the extra serve: in a checkout, pip install '.[serve]'"
            ) from error
