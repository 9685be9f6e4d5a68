"""A small POST read straight off the wire, where a gateway that is full only wants to say so.

Parsing by callbacks, a cycle, a task and a body cost several times the refusal that they end in. What is
read here is a strict part of HTTP/1.1, so that no proxy in front can see other requests than these: one
whole head, each header once, on one line, and a Content-Length. Anything else is the parser's.
"""

import re
from dataclasses import dataclass

from service.http_headers import HttpHeaders

_HEAD = re.compile(
    rb"POST (/[!$&-;=@-~]*) HTTP/1\.1\r\n"  # no query, and nothing encoded
    rb"((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n)+)\r\n"
)
_LENGTH = b"content-length"
_CONNECTION = b"connection"
_CLOSES = {b"keep-alive": False, b"close": True}
_NOT_PLAIN = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
_MOST_DIGITS = 12
_LONGEST = 4096  # bytes of a head, which a connection keeps


@dataclass(frozen=True, slots=True)
class PlainPost:
    """
    Attributes:
        head: all before its body.
        headers: by lower-case name.
        size: bytes of its head and its body together.
        closes: whether the caller asks for no more on this connection.
    """

    head: bytes
    path: str
    headers: HttpHeaders
    size: int
    closes: bool


def plain_post(data: bytes) -> PlainPost | None:
    """The request that `data` begins with, whose body may still come. None for one that is not plain."""
    head = _HEAD.match(data)
    if head is None or head.end() > _LONGEST:
        return None
    lines = head[2].split(b"\r\n")
    lines.pop()  # behind the last line's end
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip(b" \t")
    length = headers.get(_LENGTH, b"")
    if len(headers) < len(lines) or not length.isdigit() or len(length) > _MOST_DIGITS:
        return None
    closes = _CLOSES.get(headers.get(_CONNECTION, b"keep-alive").lower())
    if closes is None or not _NOT_PLAIN.isdisjoint(headers):
        return None
    return PlainPost(head[0], head[1].decode("ascii"), headers, head.end() + int(length), closes)
