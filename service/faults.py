"""All that is wrong with a request, told in one answer."""

import itertools
import re
from collections.abc import Collection, Sequence
from typing import Never

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.errors import InvalidInputError, MalformedError, ServiceError

_MOST = 10
_LONGEST = 300  # characters of one among several
_LONGEST_NAME = 80
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Faults:
    """Of one request. Nothing more is looked at where ten are found.

    Attributes:
        parts: names of what is at fault.
    """

    def __init__(self) -> None:
        self.parts: set[str] = set()
        self._found: list[ServiceError] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, fault: ServiceError, part: str | None = None) -> None:
        """Raises as `tell` does, once there are ten."""
        self._found.append(fault)
        if part is not None:
            self.parts.add(part)
        if len(self._found) == _MOST:
            self.tell()

    def note(self, text: str, part: str | None = None) -> None:
        """Adds an InvalidInputError."""
        self.add(InvalidInputError(text), part)

    def __enter__(self) -> None:
        """What is wrong within is added."""

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> bool:
        if not isinstance(error, InvalidInputError | MalformedError):
            return False
        self.add(error)
        return True

    def tell(self) -> None:
        """Raises one error for all, of the kind of the first; nothing where there are none.

        It is kept no longer: an error that those keep whom it passes would keep the request.
        """
        if self._found:
            try:
                raise _joined(self._found)
            finally:
                self._found = []

    def end(self, fault: ServiceError) -> Never:
        """Adds a last one, behind which nothing can be found out, and tells."""
        self._found.append(fault)
        del fault
        self.tell()
        raise AssertionError("there is one to tell")


def from_validation(error: ValidationError, kind: type[ServiceError], whole: str) -> ServiceError:
    """What pydantic found wrong, as one error. `whole` is the name of what was validated."""
    details = itertools.islice(error.errors(include_url=False, include_input=False), _MOST)
    return _joined([kind(f"{_place(each) or whole}: {each['msg']}") for each in details])


def _place(detail: ErrorDetails) -> str:
    return ".".join(str(part) for part in detail["loc"])[:_LONGEST_NAME]


def _joined(found: Sequence[ServiceError]) -> ServiceError:
    if len(found) == 1:
        return found[0]
    first = "the first " if len(found) == _MOST else ""
    texts = " ".join(f"({i}) {_shortened(str(fault))}" for i, fault in enumerate(found, 1))
    return type(found[0])(f"{first}{len(found)} problems: {texts}")


def check_name(name: str, whose: str, error: type[ServiceError]) -> str:
    """The name of a resource, which is a file's too. Raises `error`, whose text calls it `whose` name."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise error(
            f"{whose} name is made of letters, digits, '.', '_' and '-', begins with a letter or digit and "
            "has at most 100 characters"
        )
    return name


def listed(names: Collection[str]) -> str:
    """The first ten of them, quoted."""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(f"'{name[:_LONGEST_NAME]}'" for name in itertools.islice(names, _MOST)) + more


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
