"""Event loops whose seconds pass when a test says so, however busy the machine is."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

TICK_S = 0.001  # uvloop counts whole milliseconds: by another clock, its timers may end so much sooner


class Clock:
    """Stands in for an event loop's own `time`; it stands still until somebody moves it."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds


@contextlib.contextmanager
def standing_still() -> Iterator[Clock]:
    """The running loop's time stands still within. Sockets, threads and other processes go on as ever."""
    loop = asyncio.get_running_loop()
    clock = Clock(loop.time())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", clock)
        yield clock


@contextlib.contextmanager
def skipping() -> Iterator[Clock]:
    """As `standing_still`, and where nothing is left to do but wait, time jumps to the end of the wait.

    For what happens in this process: the loop's threads are waited for, sockets and other processes are not.
    """
    loop: Any = asyncio.get_running_loop()
    with standing_still() as clock, pytest.MonkeyPatch.context() as patch:
        waits = _Waits(clock, loop._selector.select, loop.run_in_executor)
        patch.setattr(loop._selector, "select", waits.select)
        patch.setattr(loop, "run_in_executor", waits.run_in_executor)
        yield clock


class _Waits:
    """What a loop waits for: threads that work, or its next timer."""

    def __init__(self, clock: Clock, select: Callable[..., Any], run_in_executor: Callable[..., Any]) -> None:
        self._clock = clock
        self._select = select
        self._run_in_executor = run_in_executor
        self._working = 0

    def select(self, timeout_s: float | None = None) -> Any:
        """Events, as a selector's: the loop asks before each of its turns, and says how long it has time."""
        if timeout_s is None or timeout_s <= 0:
            return self._select(timeout_s)
        events = self._select(None if self._working else 0)
        if not events and not self._working:
            self._clock.pass_by(timeout_s)
        return events

    def run_in_executor(self, *arguments: Any) -> "asyncio.Future[Any]":
        self._working += 1
        work: asyncio.Future[Any] = self._run_in_executor(*arguments)
        work.add_done_callback(self._note_end)
        return work

    def _note_end(self, _: object) -> None:
        self._working -= 1
