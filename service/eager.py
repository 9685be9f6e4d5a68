"""A coroutine that is begun at once, where a task would begin it in the next turn of the event loop.

What does not wait is over then, without a task and without a turn. Python 3.12 can do it (`eager_start`).
"""

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any

_Work = Coroutine[Any, Any, None]


def begin(loop: asyncio.AbstractEventLoop, work: _Work) -> asyncio.Task[None] | None:
    """Runs `work`, in a context of its own, until it waits; then a task goes on with it. None: it is over."""
    if asyncio.current_task(loop) is not None:
        return loop.create_task(work)
    context = copy_context()
    beginner: Any = _Beginner()
    _enter_task(loop, beginner)
    try:
        awaited = context.run(work.send, None)
    except (StopIteration, asyncio.CancelledError):  # as a task, which would be cancelled now
        return None
    finally:
        _leave_task(loop, beginner)
    if awaited is not None:  # others may await it before the task does
        awaited._asyncio_future_blocking = False
    beginner.task = loop.create_task(_Begun(work, awaited), context=context)
    task: asyncio.Task[None] = beginner.task
    return task


class _Beginner:
    """The current task while there is none yet.

    `asyncio.timeout` keeps the task that it is entered in, to cancel it later.
    """

    task: asyncio.Task[None] | None = None

    def cancelling(self) -> int:
        return 0 if self.task is None else self.task.cancelling()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)


class _Begun(Coroutine[Any, Any, None]):
    """Goes on with `work`, which waits for `awaited`."""

    def __init__(self, work: _Work, awaited: Any) -> None:
        self._work = work
        self._awaited = awaited
        self._is_told = False

    def send(self, value: Any) -> Any:
        if self._is_told:
            return self._work.send(value)
        self._is_told = True
        if self._awaited is not None:
            self._awaited._asyncio_future_blocking = True
        return self._awaited

    def throw(self, *error: Any) -> Any:
        if not self._is_told and self._awaited is not None:  # the task does not know yet what to cancel
            self._awaited.cancel()
        self._is_told = True
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise NotImplementedError  # of tasks alone
