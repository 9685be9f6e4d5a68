"""The queue before one entry: joins waiting requests into batches and gives each caller its own rows.

A request is refused when it comes, which costs nothing, rather than late: when the queue is full, or when
what stands before it will take longer than its caller waits. Callers that leave take their request with them.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import numpy as np

from service.backends.base import check_rows
from service.entries import Entry
from service.errors import DeadlineError, NotReadyError, QueueFullError
from service.estimates import BatchTimes
from service.exchange import note_run
from service.tensors import Tensors

TIMER_S = 0.001  # the event loop's timers are no finer: a shorter delay is one turn of the loop
# An estimate is a mean, but whoever is let in should keep the deadline in nearly every case. A longer queue
# would not keep the machine any busier.
_RUN_MARGIN = 1.25
_WAIT_MARGIN = 2.0
_BATCH_MARGIN = 2.5  # a batch twice as large is hardly faster by row, and late for all in it
_LONGEST_RETRY_S = 60
_COMPANY = 0.2  # how fast the habit of coming alone or in company is learned

Run = Callable[[Tensors, Sequence[str]], Awaitable[Tensors]]
Turn = Callable[[], AbstractAsyncContextManager[None]]
Key = tuple[tuple[str, tuple[int, ...]], ...]


@contextlib.asynccontextmanager
async def no_turn() -> AsyncIterator[None]:
    yield


@dataclass(eq=False)
class _Item:
    """A waiting request. It owns its future: whoever waits may leave, and nobody else notices."""

    inputs: Tensors
    outputs: Sequence[str]
    rows: int
    arrived_s: float
    deadline_s: float
    future: asyncio.Future[Tensors]
    came_s: float = field(default_factory=time.monotonic)  # an event loop's own clock may be coarse
    started_s: float = 0.0

    @property
    def key(self) -> Key:
        """Requests of one key can be concatenated."""
        return tuple((name, array.shape[1:]) for name, array in sorted(self.inputs.items()))


@dataclass(eq=False)
class _Batch:
    """A batch under way; its rows are known once it has its turn."""

    began_s: float
    rows: int = 0


@dataclass
class _Waiting:
    """The requests that wait, oldest first, and their rows."""

    items: dict[_Item, None] = field(default_factory=dict)
    rows: int = 0

    def add(self, item: _Item) -> None:
        self.items[item] = None
        self.rows += item.rows

    def remove(self, item: _Item) -> None:
        """No error where it is not there."""
        if item in self.items:
            del self.items[item]
            self.rows -= item.rows


class BatchQueue:
    """Runs an entry's requests, `entry.instances` batches at a time, oldest first.

    A batch leaves when an instance is free and it has its turn to compute, and then: when it is full, when
    its oldest request has waited `max_queue_delay_s`, or at once where requests do not come in company. Its
    members are chosen as late as that.
    """

    def __init__(
        self,
        entry: Entry,
        run: Run,
        max_size: int,
        *,
        turn: Turn = no_turn,
        run_here: Callable[[Tensors, Sequence[str]], Tensors | None] = lambda _, __: None,
        waited: Callable[[float], None] = lambda _: None,
    ) -> None:
        """
        Args:
            max_size: how many requests may wait.
            turn: held around each run; entering it may wait.
            run_here: runs at once, without a turn, or gives None where that would hold up the event loop.
            waited: told the seconds that each request waited before it was run.
        """
        self._entry = entry
        self._run = run
        self._turn = turn
        self._run_here = run_here
        self._ran_here = False  # in this turn of the event loop
        self._waited = waited
        self._max_size = max_size
        self._waiting = _Waiting()
        self._delayed = _Waiting()  # past the queue's own timeout, where the config says to delay those
        self._running: set[_Batch] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._times = BatchTimes()
        self._company = 0.0  # share of recent requests that found another one here
        self._wakeup: asyncio.TimerHandle | None = None
        self._looked_soon = False
        self._closed = False

    def learn(self, batches: Iterable[tuple[int, float]]) -> None:
        """Takes (rows, seconds) of batches that ran before as a first estimate."""
        for rows, seconds in batches:
            self._times.observe(rows, seconds)

    async def submit(self, inputs: Tensors, outputs: Sequence[str], deadline_s: float = math.inf) -> Tensors:
        """Waits for the answer to at most `max_batch_size` rows.

        Args:
            deadline_s: when the caller leaves, on the event loop's clock.

        Raises:
            QueueFullError: as many requests wait already as the entry allows, or too many for this deadline.
            DeadlineError: the deadline is past, or the request waited longer than the entry's config allows.
            NotReadyError: the queue was closed.
        """
        rows = next(iter(inputs.values())).shape[0]
        self.admit(deadline_s, rows)
        answer = self._answer_here(inputs, outputs, rows)
        if answer is not None:
            return answer
        loop = asyncio.get_running_loop()
        item = _Item(inputs, outputs, rows, loop.time(), deadline_s, loop.create_future())
        found = bool(self._waiting.items or self._running or self._ran_here)
        self._company += _COMPANY * (found - self._company)
        self._waiting.add(item)
        overdue = self._overdue_timer(item)
        self._look_soon()
        try:
            answer = await item.future
        finally:
            if overdue is not None:
                overdue.cancel()
            self._waiting.remove(item)  # cancelled before its turn
            self._delayed.remove(item)
        note_run(item.came_s, item.started_s, time.monotonic())
        return answer

    def _answer_here(self, inputs: Tensors, outputs: Sequence[str], rows: int) -> Tensors | None:
        """The answer to one that comes alone, if it is a matter of an instant; None where it has to queue.

        One in a turn of the event loop: under load the others wait where they can be counted, refused and
        joined.
        """
        if self._ran_here or self._waiting.items or self._delayed.items or self._running:
            return None
        began_s = time.monotonic()
        answer = self._run_here(inputs, outputs)
        if answer is None:
            return None
        note_run(began_s, began_s, time.monotonic())
        self._waited(0.0)
        check_rows(self._entry, answer, rows)
        self._ran_here = True
        asyncio.get_running_loop().call_soon(self._end_turn)
        return answer

    def _end_turn(self) -> None:
        self._ran_here = False

    def admit(self, deadline_s: float = math.inf, rows: int = 1) -> None:
        """Raises what `submit` would raise for such a request now: asked before its body is read."""
        if self._closed:
            raise NotReadyError("the server is stopping")
        count = len(self._waiting.items) + len(self._delayed.items)
        if count >= self._max_size:
            raise QueueFullError(
                f"{count} requests for '{self._entry.name}' are waiting: try again later", self._retry_s()
            )
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise DeadlineError(f"the deadline of this request for '{self._entry.name}' is past")
        if (count or not self._is_free()) and self._needed_s(rows) > left_s:
            raise QueueFullError(
                f"'{self._entry.name}' cannot answer within {left_s:.3g} s, as asked: {count} requests"
                " are waiting; try again later, or wait longer",
                self._retry_s(),
            )

    def wait_s(self) -> float:
        """Estimated seconds until a request that came now would be run."""
        rows = self._waiting.rows + self._delayed.rows
        largest = min(self._entry.max_batch_size if self._entry.batching else 1, max(rows, 1))
        return self._busy_s() + rows / largest * self._times.estimate(largest) / self._entry.instances

    def _needed_s(self, rows: int) -> float:
        """Seconds that a request of `rows` should have left to be let in."""
        return self.wait_s() * _WAIT_MARGIN + self._times.estimate(rows) * _RUN_MARGIN

    async def close(self) -> None:
        """Refuses new requests and returns when the accepted ones are answered."""
        self._closed = True
        self._look()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _busy_s(self) -> float:
        """Estimated seconds until an instance is free."""
        if self._is_free():
            return 0.0
        ends_s = (batch.began_s + self._times.estimate(batch.rows) for batch in self._running)
        return max(min(ends_s) - asyncio.get_running_loop().time(), 0.0)

    def _retry_s(self) -> int:
        return min(math.ceil(self.wait_s()) or 1, _LONGEST_RETRY_S)

    def _is_free(self) -> bool:
        return len(self._running) < self._entry.instances

    def _look_soon(self) -> None:
        """In the next turn of the event loop, so that what arrives in this one shares a batch."""
        if not self._looked_soon:
            self._looked_soon = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Starts every batch that should leave now."""
        self._looked_soon = False
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        free = self._entry.instances - len(self._running)
        for _ in range(min(free, len(self._waiting.items) + len(self._delayed.items))):
            left_s = self._left_s()
            if left_s > 0:
                self._wakeup = asyncio.get_running_loop().call_later(left_s, self._look)
                return
            batch = _Batch(asyncio.get_running_loop().time())
            self._running.add(batch)
            task = asyncio.create_task(self._run_batch(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _left_s(self) -> float:
        """Seconds that the next batch should still wait for company."""
        entry = self._entry
        alone = self._company < 0.5 and len(self._waiting.items) == 1
        if alone or self._closed or not entry.batching or entry.max_queue_delay_s < TIMER_S:
            return 0.0
        if self._delayed.items or self._waiting.rows >= entry.max_batch_size:
            return 0.0
        oldest = next(iter(self._waiting.items))
        return oldest.arrived_s + entry.max_queue_delay_s - asyncio.get_running_loop().time()

    async def _run_batch(self, batch: _Batch) -> None:
        try:
            await self._take_and_answer(batch)
        finally:  # before whoever was answered can ask again: it should find the instance free
            self._running.discard(batch)
            self._look()

    async def _take_and_answer(self, batch: _Batch) -> None:
        async with self._turn():
            items = self._take()
            batch.rows = sum(item.rows for item in items)
            started_s = time.monotonic()
            for item in items:
                item.started_s = started_s
                self._waited(started_s - item.came_s)
            if items:
                await self._answer(items)
                self._times.observe(batch.rows, asyncio.get_running_loop().time() - batch.began_s)

    def _take(self) -> list[_Item]:
        """Removes the oldest request and those that may share its batch from the queue.

        The batch grows no larger than lets all in it keep their deadlines.
        """
        batch: list[_Item] = []
        rows = 0
        until_s = math.inf
        now_s = asyncio.get_running_loop().time()
        for queue in (self._waiting, self._delayed):
            for item in list(queue.items):
                if rows >= self._entry.max_batch_size or (batch and not self._entry.batching):
                    return batch
                if self._is_lost(item):
                    continue
                if batch and item.key != batch[0].key:
                    continue
                if batch and rows + item.rows > self._entry.max_batch_size:
                    return batch
                until_s = min(until_s, item.deadline_s)
                if batch and now_s + self._times.estimate(rows + item.rows) * _BATCH_MARGIN > until_s:
                    return batch
                batch.append(item)
                rows += item.rows
                queue.remove(item)
        return batch

    def _is_lost(self, item: _Item) -> bool:
        """Whether the item's answer would come too late; it is told so, and costs nothing more.

        The last one that waits is tried in any case: an estimate that nothing corrects would refuse for ever.
        """
        left_s = item.deadline_s - asyncio.get_running_loop().time()
        others = len(self._waiting.items) + len(self._delayed.items) > 1
        if left_s > 0 and not (others and self._times.estimate(item.rows) > left_s):
            return False
        self._refuse_late(item)
        return True

    def _refuse_late(self, item: _Item) -> None:
        self._waiting.remove(item)
        self._delayed.remove(item)
        if not item.future.done():
            item.future.set_exception(
                DeadlineError(f"the request for '{self._entry.name}' waited too long to be answered in time")
            )

    def _overdue_timer(self, item: _Item) -> asyncio.TimerHandle | None:
        """Minds the queue policy's own timeout as Triton means it: of the wait in the queue alone."""
        if self._entry.queue_timeout_s is None:
            return None
        action = self._delay if self._entry.delays_overdue else self._refuse_overdue
        return asyncio.get_running_loop().call_later(self._entry.queue_timeout_s, action, item)

    def _delay(self, item: _Item) -> None:
        if item in self._waiting.items:
            self._waiting.remove(item)
            self._delayed.add(item)

    def _refuse_overdue(self, item: _Item) -> None:
        if item in self._waiting.items:
            self._refuse_late(item)

    async def _answer(self, batch: list[_Item]) -> None:
        """Runs a batch and settles every future in it; one bad request does not spoil its mates."""
        try:
            answers = await self._run_joined(batch)
        except (
            Exception
        ) as error:  # whatever a run raises belongs to its callers, and must not end this worker
            if len(batch) > 1:
                for item in batch:
                    if not item.future.done():
                        await self._answer([item])
            elif not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        for item, answer in zip(batch, answers, strict=True):
            if not item.future.done():
                item.future.set_result(answer)

    async def _run_joined(self, batch: list[_Item]) -> list[Tensors]:
        if len(batch) == 1:
            answer = await self._run(batch[0].inputs, batch[0].outputs)
            check_rows(self._entry, answer, batch[0].rows)
            return [answer]
        joined = {name: np.concatenate([item.inputs[name] for item in batch]) for name in batch[0].inputs}
        wanted = list(dict.fromkeys(name for item in batch for name in item.outputs))
        answer = await self._run(joined, wanted)
        check_rows(self._entry, answer, sum(item.rows for item in batch))
        ends = np.cumsum([item.rows for item in batch])
        return [
            {name: answer[name][end - item.rows : end] for name in item.outputs}
            for item, end in zip(batch, ends, strict=True)
        ]
