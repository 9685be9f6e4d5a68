"""The service's errors as one line, also the lack of the packages that the compiler does not need."""

from collections.abc import Iterator
from contextlib import contextmanager

from rationale import terminal
from rationale.errors import InvalidOptionError


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turn this project's errors into a line on stderr and exit status 2; a package may be missing."""
    with terminal.reporting_errors():
        try:
            yield
        except ModuleNotFoundError as error:
            raise InvalidOptionError(
                f"{error}. This command needs the extra serve: in a checkout, pip install '.[serve]'"
            ) from error
