"""SIGTERM and Ctrl-C: the first asks for an orderly stop, the second for one at once, the third kills.

SIGHUP asks for what lies on the disk to be read again.
"""

import asyncio
import signal
from collections.abc import Callable

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Belongs to the running event loop."""

    def __init__(self, reload: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.stop: asyncio.Future[None] = self._loop.create_future()
        self.hurry: asyncio.Future[None] = self._loop.create_future()
        for number in _NUMBERS:
            self._loop.add_signal_handler(number, self._heard)
        self._loop.add_signal_handler(signal.SIGHUP, reload)

    async def hurried(self, seconds: float) -> bool:
        """Waits so long, unless a second signal comes; whether one has."""
        await asyncio.wait([self.hurry], timeout=seconds)
        return self.hurry.done()

    def _heard(self) -> None:
        if not self.stop.done():
            self.stop.set_result(None)
        elif not self.hurry.done():
            self.hurry.set_result(None)
            for number in _NUMBERS:
                self._loop.remove_signal_handler(number)
