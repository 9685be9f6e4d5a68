"""A deadline that costs nothing where nothing waits."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
Work = Coroutine[Any, Any, T]


@types.coroutine
def until(deadline_s: float | None, work: Work[T]) -> Generator[Any, Any, T]:
    """Awaits `work` as within `asyncio.timeout_at(deadline_s)`, which is entered only where it has to wait.

    A small request is read, run and answered without waiting once: a timer would be set and cancelled for
    nothing, twice.

    Args:
        deadline_s: on the event loop's clock; None waits for ever.

    Raises:
        TimeoutError: at the deadline; `work` is cancelled then.
    """
    try:
        awaited = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    return (yield from _timed(deadline_s, work, awaited).__await__())


async def _timed(deadline_s: float | None, work: Work[T], awaited: Any) -> T:
    async with asyncio.timeout_at(deadline_s):
        return await _rest(work, awaited)


@types.coroutine
def _rest(work: Work[T], awaited: Any) -> Generator[Any, Any, T]:
    """Awaits `work`, which has begun and waits for `awaited`: hands to it whatever the event loop sends."""
    while True:
        step: Callable[[], Any]
        try:
            step = partial(work.send, (yield awaited))
        except BaseException as error:  # a cancellation is the work's to meet
            step = partial(work.throw, error)
        try:
            awaited = step()
        except StopIteration as done:
            result: T = done.value
            return result
