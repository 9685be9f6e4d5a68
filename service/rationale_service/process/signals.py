"""SIGTERM and Ctrl-C: the first asks for an orderly stop, the second for one at once, the third kills.

SIGHUP asks the process to read its files again.
"""

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_HEARD = {*_NUMBERS, signal.SIGHUP}
BEAT = b"\n"
BEAT_S = 1.0


def ignore_hangup() -> None:
    """Ignore SIGHUP until `Signals` listens: a reload that comes too soon would end the process."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextmanager
def held_back() -> Iterator[None]:
    """Block signals for a process that starts in this context, until its `Signals` listen.

    A process inherits the blocked signals. They wait, whereas an unhandled signal would end the process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Signals:
    """The signals of the running event loop."""

    def __init__(self, reload: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.stop: asyncio.Future[None] = self._loop.create_future()
        self.hurry: asyncio.Future[None] = self._loop.create_future()
        for number in _NUMBERS:
            self._loop.add_signal_handler(number, self._heard)
        self._loop.add_signal_handler(signal.SIGHUP, reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)

    def stop_with(self, pipe: IO[str]) -> None:
        """Treat the end of a pipe as the first signal: the process at its other end has gone."""
        self._loop.add_reader(pipe, self._forget_pipe, pipe)

    def show_life(self, pipe: IO[str]) -> None:
        """Write `BEAT` to a pipe every `BEAT_S` from the event loop: its reader knows that the loop runs."""
        if select.select([], [pipe], [], 0)[1]:  # the pipe is full if nobody reads
            with contextlib.suppress(OSError):  # the reader is gone
                os.write(pipe.fileno(), BEAT)
        self._loop.call_later(BEAT_S, self.show_life, pipe)

    def _forget_pipe(self, pipe: IO[str]) -> None:
        self._loop.remove_reader(pipe)
        if not self.stop.done():
            self.stop.set_result(None)

    async def hurried(self, seconds: float) -> bool:
        """Wait `seconds`, or until a second signal; return True if one has come."""
        await asyncio.wait([self.hurry], timeout=seconds)
        return self.hurry.done()

    def _heard(self) -> None:
        if not self.stop.done():
            self.stop.set_result(None)
        elif not self.hurry.done():
            self.hurry.set_result(None)
            for number in _NUMBERS:
                self._loop.remove_signal_handler(number)
