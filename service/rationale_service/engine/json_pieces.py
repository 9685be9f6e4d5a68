"""Parser of large JSON in pieces, so that no step holds Python's lock for long.

A parser in C holds the lock until its text ends. So numpy first finds brackets and commas, block by block;
a list or object larger than a piece is divided at its own commas; and the parser gets the pieces in turn.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from rationale_service.tensors import Array

PIECE = 256 << 10  # bytes, whose parsing holds the lock for 10 ms at most
MOST_MEMBERS = 100_000  # per object: its creation and release cannot be divided
_BLOCK = 512 << 10  # bytes per step
_DEEPEST = 1000  # orjson's limit
_MOST_LARGE = 50  # depth of nested lists or objects larger than a piece
_EMPTY = 2  # number of marks of a container without commas
_BLANK = b" \t\r\n"
_QUOTE, _COMMA, _OPEN, _CLOSE = 1, 2, 3, 4
_KINDS = np.zeros(256, np.uint8)
for _characters, _kind in ((b'"', _QUOTE), (b",", _COMMA), (b"[{", _OPEN), (b"]}", _CLOSE)):
    _KINDS[list(_characters)] = _kind
_STEPS = np.array([0, 0, 0, 1, -1], np.int32)

Loads = Callable[[bytes], Any]


class FaultError(ValueError):
    """A text that is no JSON from byte `position` on."""

    def __init__(self, text: str, position: int) -> None:
        super().__init__(f"{text} at byte {position}")
        self.position = position


class LimitError(ValueError):
    """JSON that cannot be divided: an object with very many members, or large lists in large lists."""


def parse(
    text: bytes | bytearray, loads: Loads = orjson.loads, twice: Callable[[str], None] | None = None
) -> Any:
    """Parse `text` to the same value as `loads`.

    Args:
        loads: parser of a piece; it raises ValueError for invalid JSON, as orjson's and Python's own do.
        twice: function that gets each name that an object has in two pieces.

    Raises:
        FaultError: if the text is no JSON.
        LimitError: if the JSON cannot be divided.
    """
    return _Pieces(text, loads, twice or (lambda _: None)).value(-1, len(text), 0)


class _Pieces:
    """A text and its structure.

    `_marks[d]` holds the positions of the brackets of the containers at depth d, and of their commas.
    """

    def __init__(self, text: bytes | bytearray, loads: Loads, twice: Callable[[str], None]) -> None:
        self._text = memoryview(text)
        self._bytes = np.frombuffer(text, np.uint8)
        self._loads, self._twice = loads, twice
        self._marks = _marks_of(text)

    def value(self, before: int, after: int, depth: int) -> Any:
        """Return the value between two marks, or between a mark and an end of the text."""
        marks = self._between(depth + 1, before, after)
        if after - before <= PIECE or not len(marks):  # or one long number or text
            return self._parse_span(b"", before, after, b"")
        first, last = int(marks[0]), int(marks[-1])
        if (self._bytes[marks[1:-1]] != ord(",")).any():
            raise FaultError("a comma is missing", first)
        around = bytes(self._text[before + 1 : first]), bytes(self._text[last + 1 : after])
        if any(each.strip(_BLANK) for each in around):
            raise FaultError("unexpected text beside a list or object", first)
        if depth == _MOST_LARGE:
            raise LimitError(f"large lists or objects are nested more than {_MOST_LARGE} deep")
        return self._container(marks.astype(np.int64), depth + 1)

    def _container(self, marks: Array, depth: int) -> Any:
        """Return the list or object whose brackets and commas are `marks`."""
        brackets = bytes((self._text[marks[0]], self._text[marks[-1]]))
        if brackets not in (b"[]", b"{}"):
            raise FaultError("brackets do not match", int(marks[-1]))
        if brackets == b"{}" and len(marks) - 1 > MOST_MEMBERS:
            raise LimitError(f"an object has {len(marks) - 1} members, more than {MOST_MEMBERS}")
        members: dict[str, Any] = {}
        elements: list[Any] = []
        start = 0
        while start < len(marks) - 1:
            end = max(int(np.searchsorted(marks, marks[start] + PIECE, "right")) - 1, start + 1)
            before, after = int(marks[start]), int(marks[end])
            piece = self._parse_piece(brackets, before, after, depth)
            if not piece and len(marks) > _EMPTY:
                raise FaultError("a value is missing", before)
            if isinstance(piece, list):
                elements.extend(piece)
            else:
                for name in members.keys() & piece.keys():
                    self._twice(name)
                members.update(piece)
            start = end
        return elements if brackets == b"[]" else members

    def _parse_piece(self, brackets: bytes, before: int, after: int, depth: int) -> Any:
        """Return a list or object of the elements or members between two commas."""
        marks = self._between(depth + 1, before, after)
        if after - before <= PIECE or not len(marks):
            return self._parse_span(brackets[:1], before, after, brackets[1:])
        # A single element larger than a piece: it follows its name, or nothing.
        named_element = self._parse_span(brackets[:1], before, int(marks[0]), b" 0" + brackets[1:])
        value = self.value(int(marks[0]) - 1, after, depth)
        return [value] if isinstance(named_element, list) else dict.fromkeys(named_element, value)

    def _parse_span(self, opening: bytes, before: int, after: int, closing: bytes) -> Any:
        """Parse the text between two positions with `loads`."""
        try:
            return self._loads(b"".join((opening, self._text[before + 1 : after], closing)))
        except json.JSONDecodeError as error:
            position = before + 1 - len(opening) + len(error.doc[: error.pos].encode())
            raise FaultError(error.msg, position) from None

    def _between(self, depth: int, before: int, after: int) -> Array:
        """Return the marks of a depth between two positions."""
        marks = self._marks[min(depth, len(self._marks) - 1)]
        start, end = np.searchsorted(marks, np.array((before + 1, max(after, 0)), marks.dtype))
        return marks[start:end] if depth < len(self._marks) else marks[:0]


def _marks_of(text: bytes | bytearray) -> list[Array]:
    """Return the positions of brackets and commas outside of texts, by depth from 0. Raises FaultError."""
    plain = text.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in text else text
    places, depths = [np.zeros(0, np.uint32)], [np.zeros(0, np.int16)]
    quotes = depth = 0
    for start in range(0, len(plain), _BLOCK):
        kinds = _KINDS[np.frombuffer(plain, np.uint8, min(_BLOCK, len(plain) - start), start)]
        positions = np.flatnonzero(kinds)
        if not len(positions):
            continue
        is_quote = kinds[positions] == _QUOTE
        count = quotes + np.cumsum(is_quote)
        positions = positions[(count % 2 == 0) & ~is_quote]
        quotes = int(count[-1])
        if not len(positions):
            continue
        level = depth + np.cumsum(_STEPS[kinds[positions]])
        depth = int(level[-1])
        level += kinds[positions] == _CLOSE
        wrong = (level < 1) | (level > _DEEPEST)
        if wrong.any():
            raise FaultError(
                "brackets do not match, or are too many,", start + int(positions[wrong.argmax()])
            )
        places.append((positions + start).astype(np.uint32))
        depths.append(level.astype(np.int16))
    if quotes % 2 or depth:
        raise FaultError("it ends too early", len(plain))
    every = np.concatenate(depths)
    order = every.argsort(kind="stable")
    bounds = np.searchsorted(every[order], np.arange(1, every.max(initial=0) + 1))
    return np.split(np.concatenate(places)[order], bounds)
