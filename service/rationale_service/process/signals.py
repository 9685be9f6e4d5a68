"""SIGTERM and Ctrl-C: the first asks for an orderly stop, the second for one at once, the third kills.

SIGHUP asks for what lies on the disk to be read again.
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
    """Ignore SIGHUP until somebody listens to it: a reload that comes too soon would end the process."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold signals back from a process that is started meanwhile, until its `Signals` listen.

    A process inherits which signals are blocked. Blocked ones wait, whereas without a handler they end it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Signals:
    """Belongs to the running event loop."""

    def __init__(self, reload: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.stop: asyncio.Future[None] = self._loop.create_future()
        self.hurry: asyncio.Future[None] = self._loop.create_future()
        for number in _NUMBERS:
            self._loop.add_signal_handler(number, self._heard)
        self._loop.add_signal_handler(signal.SIGHUP, reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)

    def stop_with(self, pipe: IO[str]) -> None:
        """Take the end of a pipe for the first signal: whoever held the other end is gone."""
        self._loop.add_reader(pipe, self._ended, pipe)

    def show_life(self, pipe: IO[str]) -> None:
        """Write `BEAT` to a pipe every `BEAT_S`, from the event loop: its reader knows that the loop runs."""
        if select.select([], [pipe], [], 0)[1]:  # full where nobody reads
            with contextlib.suppress(OSError):  # the reader is gone
                os.write(pipe.fileno(), BEAT)
        self._loop.call_later(BEAT_S, self.show_life, pipe)

    def _ended(self, pipe: IO[str]) -> None:
        self._loop.remove_reader(pipe)
        if not self.stop.done():
            self.stop.set_result(None)

    async def hurried(self, seconds: float) -> bool:
        """Wait so long, unless a second signal comes; returns whether one has."""
        await asyncio.wait([self.hurry], timeout=seconds)
        return self.hurry.done()

    def _heard(self) -> None:
        if not self.stop.done():
            self.stop.set_result(None)
        elif not self.hurry.done():
            self.hurry.set_result(None)
            for number in _NUMBERS:
                self._loop.remove_signal_handler(number)
