"""Which elements of the explained output are asked about: one by one, or two against each other."""

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import Literal

import numpy as np

from compiler.errors import InvalidOptionError

Target = int | str
"""A flat index into the output's row; or a contrast, "1-0": element 1 less element 0."""
Targets = Sequence[Target] | Literal["all", "predicted"] | None

_CONTRAST = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
_TWO_CLASSES = (2,)  # a row of them: the winner of two would ask another question from row to row


def choose_targets(
    targets: object, output: str, row: tuple[int, ...]
) -> tuple[Target, ...] | Literal["predicted"]:
    """The targets as they are explained.

    Args:
        targets: as they were asked for.
        row: the shape of one row of the output.

    Raises:
        InvalidOptionError: what is no index of an element, and no contrast of two different ones.
    """
    size = prod(row)
    if targets is None and row == _TWO_CLASSES:
        return (1,)
    if targets is None:
        return (0,) if size == 1 else "predicted"
    if targets == "predicted":
        return "predicted"
    if targets == "all":
        return tuple(range(size))
    if isinstance(targets, str) or not isinstance(targets, Iterable):
        raise InvalidOptionError(
            f"targets {targets!r}: give a list of indices (or contrasts such as '1-0'), 'all' or 'predicted'."
        )
    given = list(targets)
    if not given or not all(_is_index(t, size) or _is_contrast(t, size) for t in given):
        raise InvalidOptionError(
            f"targets {given}: output {output!r} has indices 0 to {size - 1}, and contrasts of two different "
            "ones such as '1-0'."
        )
    return tuple(t if isinstance(t, str) else int(t) for t in given)


def _is_index(target: object, size: int) -> bool:
    if isinstance(target, bool) or not isinstance(target, int | np.integer):
        return False
    return 0 <= int(target) < size


def _is_contrast(target: object, size: int) -> bool:
    found = _CONTRAST.fullmatch(target) if isinstance(target, str) else None
    first, second = map(int, found.groups()) if found else (0, 0)
    return first != second and max(first, second) < size
