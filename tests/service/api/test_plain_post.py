"""What is read off the wire without the parser is what the parser would have read."""

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.api.plain_post import _LONGEST, _MOST_KEPT, PlainPost, _read, plain_post

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h:1\r\nContent-Length: 4\r\n\r\n"


class Parsed:
    """The first request of some bytes, as httptools reads it."""

    def __init__(self, data: bytes) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.ended = 0
        self.closes = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1
        self.closes = not self.parser.should_keep_alive()  # afterwards it has forgotten


def test_a_plain_post() -> None:
    found = plain_post(HEAD + b"bo")
    assert found == PlainPost(
        HEAD, "/v2/models/m/infer", {b"host": b"h:1", b"content-length": b"4"}, len(HEAD) + 4, False
    )


def test_what_is_said_in_the_same_words_is_read_once() -> None:
    assert plain_post(HEAD + b"body") is plain_post(HEAD + b"a")
    for number in range(3 * _MOST_KEPT):
        found = plain_post(HEAD.replace(b"h:1", b"h:%d" % number))
        assert found is not None
        assert found.headers[b"host"] == b"h:%d" % number
    assert _read.cache_info().currsize == _MOST_KEPT


@pytest.mark.parametrize("more", [0, 1])
def test_a_head_of_the_longest_length(more: int) -> None:
    name = b"\r\nX: "
    filler = b"a" * (_LONGEST - len(HEAD) - len(name) + more)
    head = HEAD.replace(b"\r\n\r\n", name + filler + b"\r\n\r\n")
    assert len(head) == _LONGEST + more
    assert (plain_post(head + b"body") is None) is bool(more)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"POST", b"GET"),
        (b"POST", b"post"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"HTTP/1.1", b"HTTP/1.1 "),
        (b"/infer", b"/infer?x=1"),
        (b"/infer", b"/inf%65r"),
        (b"/infer", b"/inf\xc3\xa9r"),
        (b"/v2", b"http://h/v2"),
        (b"4\r\n", b"4\r\nContent-Length: 5\r\n"),
        (b"4\r\n", b"4\r\nTransfer-Encoding: chunked\r\n"),
        (b"4\r\n", b"4\r\ntransfer-encoding:\tchunked\r\n"),
        (b"4\r\n", b"4\r\nExpect: 100-continue\r\n"),
        (b"4\r\n", b"4\r\nUpgrade: h2c\r\n"),
        (b"4\r\n", b"4\r\nConnection: upgrade\r\n"),
        (b"4\r\n", b"4\r\nX: a\r\nx: b\r\n"),
        (b"4\r\n", b"4\r\n folded\r\n"),
        (b"4\r\n", b"4\r\nX : a\r\n"),
        (b"4\r\n", b"4\nX: a\r\n"),
        (b"4\r\n", b"4\r\nX: a\x00\r\n"),
        (b"4\r\n", b"4\r\n: a\r\n"),
        (b": 4", b": +4"),
        (b": 4", b": 4, 4"),
        (b": 4", b": -4"),
        (b": 4", b": 0x4"),
        (b": 4", b": "),
        (b": 4", b": " + b"9" * 13),
        (b"4\r\n", b"4\r\nX: " + b"a" * 4096 + b"\r\n"),
        (b"Content-Length: 4\r\n", b""),
        (b"\r\n\r\n", b"\r\n"),
    ],
)
def test_all_else_is_left_to_the_parser(old: bytes, new: bytes) -> None:
    assert old in HEAD
    assert plain_post(HEAD.replace(old, new, 1)) is None


@pytest.mark.parametrize(("said", "closes"), [(b"keep-alive", False), (b"Close", True)])
def test_whether_the_connection_goes_on(said: bytes, closes: bool) -> None:
    found = plain_post(HEAD.replace(b"Host", b"Connection: " + said + b"\r\nHost"))
    assert found is not None
    assert found.closes is closes


SIGNS = b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"/", b"%", b"?", b"a", b"\x80", b"\x00", b"{}"
WORDS = (
    b"POST /v2/models/m/infer HTTP/1.1",
    b"Host: h",
    b"Content-Length: 3",
    b"content-length:2 ",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"X-Request-Timeout-Ms: 5",
    b"Expect: x",
    b"\r\n\r\n",
    b"0\r\n\r\n",
)
PIECES = st.sampled_from(SIGNS + WORDS)


@given(st.lists(PIECES, max_size=12))
@example([b"Host: h", b"\r\n", b"Content-Length: 3", b"\r\n\r\n", b"{}", b"a"])
@example([b"content-length:2 ", b"\r\n", b"X-Request-Timeout-Ms: 5", b"\r\n\r\n", b"{}"])
@example([b"Connection: close", b"\r\n", b"Content-Length: 3", b"\r\n\r\n", b"{}", b"a"])
def test_it_sees_no_other_request_than_the_parser(pieces: list[bytes]) -> None:
    """Or a proxy in front could be made to take one caller's bytes for another's."""
    compare(pieces)


@pytest.mark.slow
@settings(max_examples=20_000, derandomize=False)
@given(st.lists(PIECES, max_size=12))
def test_it_sees_no_other_request_than_the_parser_at_length(pieces: list[bytes]) -> None:
    compare(pieces)


def compare(pieces: list[bytes]) -> None:
    data = b"POST /v2/models/m/infer HTTP/1.1\r\n" + b"".join(pieces)
    found = plain_post(data)
    if found is None:
        return
    whole = data[: found.size] + b"." * (found.size - len(data))
    parsed = Parsed(whole)
    assert parsed.ended == 1
    assert parsed.url.decode() == found.path
    assert {name: value.strip(b" \t") for name, value in parsed.headers} == found.headers
    assert len(found.head) + len(parsed.body) == found.size
    assert parsed.closes is found.closes
