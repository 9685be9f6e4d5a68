"""Compressed bodies: what is large is inflated piece by piece, beside the event loop."""

import asyncio
import gzip
import zlib
from typing import Any

import pytest
from starlette.requests import Request

from rationale_service.engine.large_requests import SMALL, MemoryLimit
from rationale_service.errors import MalformedError, QueueFullError, ServiceError, TooLargeError
from rationale_service.protocols.rest.endpoint import _AT_ONCE, read_body

LARGE = bytes(range(256)) * (5 * _AT_ONCE // 256 + 1)


def request_of(*pieces: bytes, encoding: bytes = b"gzip") -> Request:
    remaining_pieces = list(pieces)

    async def receive() -> Any:
        return {"type": "http.request", "body": remaining_pieces.pop(0), "more_body": bool(remaining_pieces)}

    return Request({"type": "http", "headers": [(b"content-encoding", encoding)]}, receive)


def cut(body: bytes, count: int) -> list[bytes]:
    size = len(body) // count + 1
    return [body[start : start + size] for start in range(0, len(body), size)]


@pytest.mark.parametrize("size", [0, 1, _AT_ONCE - 1, _AT_ONCE, _AT_ONCE + 1, 3 * _AT_ONCE, len(LARGE)])
@pytest.mark.parametrize("count", [1, 3])
async def test_whatever_its_size(size: int, count: int) -> None:
    body = LARGE[:size]
    assert await read_body(request_of(*cut(gzip.compress(body), count)), len(LARGE)) == body
    deflated = request_of(*cut(zlib.compress(body), count), encoding=b"deflate")
    assert await read_body(deflated, len(LARGE)) == body


@pytest.mark.parametrize(("body", "others_ran"), [(LARGE, True), (b"{}", False)])
async def test_the_event_loop_goes_on_beside_a_large_one_alone(body: bytes, others_ran: bool) -> None:
    ran: list[bool] = []
    asyncio.get_running_loop().call_soon(ran.append, True)
    assert await read_body(request_of(gzip.compress(body)), len(LARGE)) == body
    assert bool(ran) == others_ran


@pytest.mark.parametrize(
    ("body", "limit", "error"),
    [
        (gzip.compress(LARGE), len(LARGE) - 1, TooLargeError),
        (gzip.compress(LARGE), 10, TooLargeError),
        (gzip.compress(LARGE)[:-9], len(LARGE), MalformedError),
        (zlib.compress(LARGE, 0)[: 2 * _AT_ONCE] + b"broken" * 99999, len(LARGE), MalformedError),
    ],
)
@pytest.mark.parametrize("count", [1, 3])
async def test_what_is_wrong_with_it(body: bytes, limit: int, error: type[ServiceError], count: int) -> None:
    with pytest.raises(error):
        await read_body(request_of(*cut(body, count)), limit)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("body", [b"{}", LARGE])
@pytest.mark.parametrize("behind", [b"junk", gzip.compress(b"{}")], ids=["junk", "another member"])
async def test_nothing_may_follow_it(body: bytes, behind: bytes, count: int) -> None:
    with pytest.raises(MalformedError, match="send one gzip member"):
        await read_body(request_of(*cut(gzip.compress(body) + behind, count)), 2 * len(LARGE))


async def test_what_follows_in_a_piece_of_its_own() -> None:
    with pytest.raises(MalformedError, match="send one gzip member"):
        await read_body(request_of(gzip.compress(b"{}"), b"junk"), len(LARGE))


async def test_it_counts_beside_what_others_hold() -> None:
    budget = MemoryLimit(3 * _AT_ONCE)
    budget.take(_AT_ONCE)
    with pytest.raises(QueueFullError), budget.growing() as grow:
        await read_body(request_of(gzip.compress(LARGE)), len(LARGE), grow=grow)
    budget.take(2 * _AT_ONCE)  # nothing of it is held any more


async def test_what_only_a_bomb_inflates_to() -> None:
    """8 KB that would be 8 MB are refused when some 1 MB is there; a small body may be as dense."""
    budget = MemoryLimit(2 * SMALL)
    budget.take(1)
    bomb, dense = bytes(8 * SMALL), bytes(SMALL)
    too_much = pytest.raises(TooLargeError, match="200 times")
    with too_much, budget.growing() as grow:
        await read_body(request_of(gzip.compress(bomb)), len(bomb), grow=grow)
    assert await read_body(request_of(gzip.compress(dense)), len(bomb)) == dense
