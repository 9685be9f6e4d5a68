"""Large JSON that is parsed piece by piece is what a parser makes of the whole."""

import json
import random
from functools import partial
from typing import Any

import orjson
import pytest

from rationale_service.engine import json_pieces
from rationale_service.engine.large_requests import SMALL, parse_json
from rationale_service.errors import MalformedError, TooLargeError

TEXTS = ["x", '\\"', "[,]{}", '\\\\"', "é€" * 3, '"', "\\"]
NAMES = ["a", "b", '"', "\\", "é", ",", "[", "}{"]


def drawn(draw: random.Random, depth: int) -> Any:
    kind = draw.random()
    if depth and kind < 0.3:
        return [drawn(draw, depth - 1) for _ in range(draw.randrange(5))]
    if depth and kind < 0.6:
        return {draw.choice(NAMES): drawn(draw, depth - 1) for _ in range(draw.randrange(4))}
    return draw.choice([1, 0.5, None, True, *TEXTS])


def damaged(draw: random.Random, text: bytes) -> bytes:
    """`text` with a byte that is gone, added or another one."""
    position, added = draw.randrange(len(text)), bytes([draw.choice(b'[]{},:"\\ 01ax')])
    return (
        text[:position]
        + draw.choice([b"", added, added + text[position : position + 1]])
        + text[position + 1 :]
    )


def parsed(parse: Any, text: bytes) -> Any:
    try:
        return parse(text)
    except ValueError:
        return ValueError


@pytest.mark.parametrize("piece", [1, 2, 5, 20])
@pytest.mark.parametrize("block", [1, 7, 100])
def test_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch, piece: int, block: int) -> None:
    monkeypatch.setattr(json_pieces, "PIECE", piece)
    monkeypatch.setattr(json_pieces, "_BLOCK", block)
    draw = random.Random(piece * block)  # noqa: S311
    for _ in range(300):
        value, indent = drawn(draw, 4), draw.choice([None, 1])
        text = json.dumps(value, ensure_ascii=draw.random() < 0.5, indent=indent).encode()
        assert json_pieces.parse(text) == value
        assert json_pieces.parse(bytearray(text)) == value
        other = damaged(draw, text)
        assert parsed(json_pieces.parse, other) == parsed(orjson.loads, other), other


def test_a_name_in_two_pieces_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "PIECE", 8)
    seen: list[str] = []
    assert json_pieces.parse(b'{"a": 1, "b": [1, 2, 3, 4], "a": 2}', twice=seen.append) == {
        "a": 2,
        "b": [1, 2, 3, 4],
    }
    assert seen == ["a"]


def test_faults_are_told_by_their_place() -> None:
    text = b"[" + b"1," * SMALL + b" x]"
    with pytest.raises(MalformedError, match=f"at byte {len(text) - 2};"):
        parse_json(text, 10 * SMALL)
    with pytest.raises(MalformedError, match=r"at byte .*\bnull\b"):
        parse_json(text.replace(b"x", b"NaN"), 10 * SMALL)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"{" + b",".join(b'"%07d":0' % i for i in range(100_001)) + b"}", TooLargeError, "100001 members"),
        (b"[" * 60 + b"1," * SMALL + b"1" + b"]" * 60, TooLargeError, "nested more than 50 deep"),
        (b'["' + b"x" * SMALL, MalformedError, "ends too early"),
        (b"[" + b"1," * SMALL + b"]", MalformedError, "not valid JSON"),
        (b"[" + b"1," * SMALL + b"1}", MalformedError, "brackets do not match"),
        (b"[" + b"1," * SMALL + b"1]]", MalformedError, "brackets do not match"),
        (b"[" + b"1," * SMALL + b"1] 1", MalformedError, "unexpected text beside"),
        (b"[1[" + b"1," * SMALL + b"1]]", MalformedError, "not valid JSON"),
        (b"[[" + b"1," * SMALL + b"1][1]]", MalformedError, "a comma is missing"),
    ],
)
def test_what_is_refused(text: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_json(text, 100 * SMALL)


def test_other_parsers() -> None:
    loads = partial(json.loads, object_pairs_hook=dict)
    rows = [{"a": i} for i in range(50_000)]
    assert json_pieces.parse(json.dumps(rows).encode(), loads) == rows


def test_small_text_is_refused_as_its_parser_does() -> None:
    with pytest.raises(MalformedError, match=r"line 1 column 4 \(char 3\)"):
        parse_json(b"[1 x]", SMALL)


@pytest.mark.parametrize(("count", "is_taken"), [(99_999, True), (100_000, True), (100_001, False)])
def test_an_object_of_the_most_members_is_taken(count: int, is_taken: bool) -> None:
    text = b"{" + b",".join(b'"%d":0' % i for i in range(count)) + b"}"
    if is_taken:
        assert json_pieces.parse(text) == {str(i): 0 for i in range(count)}
    else:
        with pytest.raises(json_pieces.LimitError, match=f"an object has {count} members, more than 100000"):
            json_pieces.parse(text)
