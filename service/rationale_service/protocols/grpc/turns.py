"""Turns on the event loop between large messages and everything else."""

import asyncio
import time
from collections import deque

_LONG_S = 0.01
_PAUSE = 2  # times the duration of the read, for its parsing and for others' turns


class Turns:
    """Turns of calls to be read: the newest and the oldest alternate, with a pause after a long read.

    `grpc.aio` inflates a message on the event loop. Many messages that are large when inflated, but a few
    bytes each on the wire, would otherwise block all other calls until the last is read.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._busy = False
        self._newest = False

    async def turn(self) -> None:
        """Wait until a call may be read; the caller must then read it without another wait."""
        if self._busy:
            turn = self._loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # this call had its turn already
                    self._next()
                raise
        self._busy = True
        self._loop.call_soon(self._has_read, time.monotonic())

    def _has_read(self, began_s: float) -> None:
        took_s = time.monotonic() - began_s
        if took_s > _LONG_S:
            self._loop.call_later(_PAUSE * took_s, self._next)
        else:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            self._newest = not self._newest
            turn = self._waiting.pop() if self._newest else self._waiting.popleft()
            if not turn.done():  # its caller may have left
                turn.set_result(None)
                return
        self._busy = False
