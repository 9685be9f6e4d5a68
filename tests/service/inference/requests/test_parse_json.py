"""JSON: what is counted before it is parsed."""

import pytest

from rationale_service.engine.large_requests import SMALL, parse_json
from rationale_service.errors import MalformedError, TooLargeError

MOST = 2 * SMALL


def many(piece: bytes, count: int) -> bytes:
    return b"[" + b",".join([piece] * count) + b"]"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" + b" " * MOST + b"]", f"the JSON has {MOST + 2} bytes, more than {MOST}"),
        (many(b"0", MOST // 8 + 2) + b" " * SMALL, f"about {MOST // 8 + 1} values, more than {MOST // 8}"),
        (many(b"{}", MOST // 32) + b" " * SMALL, f"about {MOST // 32 + 1} lists and objects, more than"),
        (b"[" * (MOST // 32 + 1) + b" " * SMALL, "lists and objects"),
        (b'{"":0' * (MOST // 16 + 1) + b" " * SMALL, "members of objects"),
    ],
)
def test_too_much_is_refused_before_it_is_parsed(body: bytes, message: str) -> None:
    with pytest.raises(TooLargeError, match=message):
        parse_json(body, MOST)


@pytest.mark.parametrize(
    "body",
    [
        many(b"0", MOST // 8 + 1) + b" " * SMALL,
        many(b"{}", MOST // 32 - 1) + b" " * SMALL,
        b'{"a":"' + b"x" * SMALL + b'"}',
        many(b"{}", MOST // 32),  # below 1 MiB
    ],
)
def test_as_much_as_may_be_is_parsed(body: bytes) -> None:
    assert parse_json(body, MOST)


@pytest.mark.parametrize("json", [b"[1]", b"[1" + b" " * SMALL + b"]"])
@pytest.mark.parametrize("remainder", [b",", b"[", b"{", b":"])
def test_what_follows_the_json_does_not_count(json: bytes, remainder: bytes) -> None:
    """Binary tensors, whose bytes may be any."""
    assert parse_json(bytearray(json + remainder * MOST), MOST, len(json)) == [1]


@pytest.mark.parametrize("body", [b"", b"[1", b"[NaN]", b'"\xff"', b"[" * 3000])
def test_what_is_no_json(body: bytes) -> None:
    with pytest.raises(MalformedError, match="valid JSON"):
        parse_json(body, MOST)
