"""Whom a batch takes, by cases: of requests that wait, oldest first, with the time that each has left."""

import dataclasses
import math
from typing import Any

import pytest

from rationale_service.engine.scheduling.batch import Batch, PendingRequest, WaitingRequests
from tests.service.scheduling.test_batch_queue import ENTRY, Doubler, queue_of, rows

NOW_S = 100.0


def requests(*rows_and_deadlines: tuple[int, float]) -> list[PendingRequest]:
    """Return requests, by (rows, seconds left)."""
    future: Any = None  # nobody is answered here
    return [
        PendingRequest(rows(*range(count)), ["y"], count, NOW_S, NOW_S + left_s, future)
        for count, left_s in rows_and_deadlines
    ]


def taken_places(
    items: list[PendingRequest], other_queues: int = 0, size: int = 8, **changes: Any
) -> tuple[list[int], ...]:
    """Return the places of those that a batch takes and of those that are late; a row takes a second."""
    line, batch = WaitingRequests(), Batch()
    for item in items:
        line.add(item)
    entry = dataclasses.replace(ENTRY, max_batch_size=size, **changes)
    batch.take(entry, [line], lambda: NOW_S, float, lambda: other_queues)
    places = [[items.index(item) for item in requests_] for requests_ in (batch.members, batch.late)]
    assert len(line) == len(items) - sum(map(len, places))
    assert line.rows == sum(item.rows for item in line)
    assert batch.rows == sum(item.rows for item in batch.members)
    return tuple(places)


LONG = math.inf


@pytest.mark.parametrize(
    ("rows_and_deadlines", "other_queues", "members", "late"),
    [
        ([(1, LONG)] * 3, 0, [0, 1, 2], []),
        ([(4, LONG), (4, LONG), (1, LONG)], 0, [0, 1], []),  # exactly full
        ([(4, LONG), (5, LONG), (1, LONG)], 0, [0], []),  # one row too many: nobody overtakes
        ([(1, LONG)] * 4, 1, [0, 1], []),  # half of those that wait: another batch begins now
        ([(1, LONG)] * 5, 1, [0, 1, 2], []),  # half, rounded up
        ([(1, LONG)] * 4, 3, [0], []),
        ([(1, 5.0), (1, LONG)], 0, [0, 1], []),  # both take 2 s, times 2.5: just in time
        ([(1, 4.99), (1, LONG)], 0, [0], []),
        ([(1, LONG), (1, 5.0)], 0, [0, 1], []),  # the same by the deadline of the one that comes
        ([(1, LONG), (1, 4.99)], 0, [0], []),
        ([(1, LONG), (1, 7.5), (1, LONG)], 0, [0, 1, 2], []),  # and of one that is in already
        ([(1, LONG), (1, 7.49), (1, LONG)], 0, [0, 1], []),
        ([(1, 0.0), (1, LONG)], 0, [1], [0]),  # is past now
        ([(2, 2.0), (1, LONG)], 0, [0], []),  # alone it is just in time
        ([(2, 1.99), (1, LONG)], 0, [1], [0]),
        ([(2, 1.99)], 0, [0], []),  # the last one is tried: an estimate may be wrong
        ([(2, 0.0)], 0, [], [0]),
    ],
)
def test_whom_a_batch_takes(
    rows_and_deadlines: list[tuple[int, float]], other_queues: int, members: list[int], late: list[int]
) -> None:
    assert taken_places(requests(*rows_and_deadlines), other_queues) == (members, late)


@pytest.mark.parametrize(
    ("row_counts", "changes", "wait_s"),
    [
        ((), {}, 0.0),
        ((1,), {}, 1.0),
        ((1, 1, 2, 4), {}, 8.0),  # a row takes a second, in batches of 4
        ((1, 1, 2, 4), {"instances": 2}, 4.0),
        ((1, 1, 1, 1), {"instances": 4, "batching": False}, 1.0),
        ((3, 3), {"batching": False}, 6.0),
    ],
)
async def test_how_long_a_request_would_wait(
    row_counts: tuple[int, ...], changes: dict[str, Any], wait_s: float
) -> None:
    queue = queue_of(Doubler(), **changes)
    queue.times.learn([(1, 1.0), (4, 4.0)] * 20)
    for item in requests(*((count, LONG) for count in row_counts)):
        queue._waiting.add(item)
    assert queue.wait_s() == pytest.approx(wait_s)


def test_without_batching_each_is_alone() -> None:
    assert taken_places(requests((2, LONG), (1, LONG)), batching=False) == ([0], [])


def test_rows_of_another_shape_wait_for_their_own_batch() -> None:
    items = requests((1, LONG), (1, LONG), (1, LONG))
    items[1].inputs = rows(1, width=3)
    assert taken_places(items) == ([0, 2], [])
