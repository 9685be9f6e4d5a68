"""A small POST read straight off the wire, where a gateway that is full only wants to say so.

Parsing by callbacks, a cycle, a task and a body cost several times the refusal that they end in. What is
read here is a strict part of HTTP/1.1, so that no proxy in front can see other requests than these: one
whole head, each header once, on one line, and a Content-Length. Anything else is the parser's.
"""

import functools
import re
from dataclasses import dataclass, field

from starlette.types import Scope

from service.api.http_headers import HttpHeaders, scope_of

_HEAD = re.compile(
    rb"POST (/[!$&-;=@-~]*) HTTP/1\.1\r\n"  # no query, and nothing encoded
    rb"((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n)+)\r\n"
)
_LENGTH = b"content-length"
_CONNECTION = b"connection"
_CLOSES = {b"keep-alive": False, b"close": True}
_NOT_PLAIN = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
_MOST_DIGITS = 12
_END = b"\r\n\r\n"
_LONGEST = 4096  # bytes of a head that is kept
_MOST_KEPT = 256  # heads; who asks again asks in the same words, on whichever connection


@dataclass(frozen=True, slots=True)
class PlainPost:
    """
    Attributes:
        head: all before its body.
        headers: by lower-case name.
        size: bytes of its head and its body together.
        closes: whether the caller asks for no more on this connection.
        scope: as `http_headers.scope_of` gives it; one for all who ask in the same words.
    """

    head: bytes
    path: str
    headers: HttpHeaders
    size: int
    closes: bool
    scope: Scope = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scope", scope_of("POST", self.path, self.headers))


def plain_post(data: bytes) -> PlainPost | None:
    """The request that `data` begins with, whose body may still come. None for one that is not plain."""
    end = data.find(_END, 0, _LONGEST)
    return None if end < 0 else _read(data[: end + len(_END)])


@functools.lru_cache(_MOST_KEPT)
def _read(head: bytes) -> PlainPost | None:
    """Of a whole head alone: what comes behind it changes nothing."""
    found = _HEAD.fullmatch(head)
    if found is None:
        return None
    lines = found[2].split(b"\r\n")
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
    return PlainPost(head, found[1].decode("ascii"), headers, len(head) + int(length), closes)
