"""Answers on their way from a batch to those who wait: a few in each turn of the event loop, oldest first.

Each takes the loop a good part of a millisecond, and whoever is refused meanwhile should hear of it soon.
"""

import asyncio
from collections.abc import Callable, Sequence

from service.scheduling.batch import PendingRequest
from service.tensors import Tensors

AT_ONCE = 4
_ENOUGH = 16  # answers: what a next batch is begun beside in any case: the loop must not run dry
_LEARNED = 0.2  # how fast the time of an answer is learned


class HandingOut:
    """Those of one queue."""

    def __init__(self) -> None:
        self._left = 0
        self._each_s = 0.0  # of the event loop's time, all that it does meanwhile included
        self._turn = asyncio.Lock()

    def outlasts(self, seconds: float) -> bool:
        """Whether what is to go out keeps the event loop busy for longer."""
        return self._left > _ENOUGH and self._left * self._each_s > seconds

    def announce(self, count: int) -> None:
        """Counts answers that `give` will be given."""
        self._left += count

    async def give(
        self, items: Sequence[PendingRequest], answers: Sequence[Tensors], moved: Callable[[], None]
    ) -> None:
        """Calls `moved` whenever some have gone out, and there are more.

        It is not kept: a queue that its own parts refer to would be freed, with its model, only by the
        garbage collector, which hardly ever looks.
        """
        left = len(items)
        try:
            async with self._turn:
                loop = asyncio.get_running_loop()
                began_s = loop.time()
                while left:
                    if left < len(items):
                        await asyncio.sleep(0)
                    first = len(items) - left
                    few = slice(first, first + AT_ONCE)
                    settle(items[few], answers[few])
                    left -= len(items[few])
                    self._left -= len(items[few])
                    if self._left:
                        moved()
                if len(items) > AT_ONCE:  # fewer go out in no time: what they cost comes after
                    self._each_s += _LEARNED * ((loop.time() - began_s) / len(items) - self._each_s)
        finally:
            self._left -= left  # given up halfway: no batch waits for them


def settle(items: Sequence[PendingRequest], answers: Sequence[Tensors]) -> None:
    """Answers those who still wait."""
    for item, answer in zip(items, answers, strict=True):
        if not item.future.done():
            item.future.set_result(answer)
