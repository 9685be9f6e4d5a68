"""The queue of one entry: it joins waiting requests into batches and gives each caller its own rows.

It refuses a request on arrival, which costs nothing, rather than late: if the queue is full, or if the
requests ahead of it will take longer than its caller waits. A caller that leaves withdraws its request.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from rationale_service.engine.scheduling.batch import (
    Batch,
    Joined,
    LatencyModel,
    PendingRequest,
    WaitingRequests,
    check_rows,
    join_requests,
    split_answer,
)
from rationale_service.errors import DeadlineError, NotReadyError, QueueFullError
from rationale_service.observability.context import note_run
from rationale_service.repository.entry import Entry
from rationale_service.tensors import Tensors

TIMER_S = 0.001  # resolution of the event loop's timers: a shorter delay is one turn
# An estimate is a mean, but an admitted request should keep its deadline in nearly every case. A longer
# queue would not keep the machine any busier.
_RUN_MARGIN = 1.25
_WAIT_MARGIN = 2.0
_LONGEST_RETRY_S = 60
_COMPANY = 0.2  # learning rate of `_company`
_WORTH_FOLLOWING_S = 0.002  # a shorter batch ends before its successor could be ready

# `Run` calls its `Compose` as late as it can, in any thread, and runs the inputs that it returns. Both return
# None if there is nothing left to run. The number is the approximate number of rows.
Compose = Callable[[], Joined | None]
Run = Callable[[int, Compose], Awaitable[Tensors | None]]
Turn = Callable[[], AbstractAsyncContextManager[None]]


@contextlib.asynccontextmanager
async def no_turn() -> AsyncIterator[None]:
    yield


class _Lane:
    """An instance's turn to compute, which a batch passes on to its successor.

    Attributes:
        batches: number of its running batches; the starter of a batch increments it.
    """

    def __init__(self, turn: Turn) -> None:
        self.batches = 0
        self._turn = turn()
        self._is_held = False

    async def __aenter__(self) -> None:
        if not self._is_held:
            await self._turn.__aenter__()
            self._is_held = True

    async def __aexit__(self, *error: Any) -> None:
        self.batches -= 1
        if not self.batches:
            await self._turn.__aexit__(*error)


class BatchQueue:
    """Queue that runs an entry's requests, `entry.instances` batches at a time, oldest first.

    A batch needs a free instance and its turn to compute. Then it starts when it is full, when its oldest
    request has waited `max_queue_delay_s`, or at once if requests rarely overlap. It takes its members only
    then.
    """

    def __init__(
        self,
        entry: Entry,
        run: Run,
        max_size: int,
        *,
        turn: Turn = no_turn,
        run_here: Callable[[Tensors, Sequence[str]], Tensors | None] = lambda _, __: None,
        ahead: Callable[[], bool] = lambda: False,
        waited: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Create the queue of an entry.

        Args:
            max_size: maximum number of waiting requests.
            turn: context manager around each run; entering it may wait.
            run_here: function that runs at once, without a turn, or returns None if that would block the
                event
                loop.
            ahead: function that tells whether `run` may get a batch while its instance is still busy. The
                batch
                then takes over its predecessor's turn, without a turn of the event loop in between.
            waited: function that gets the seconds that each request waited before its run.
        """
        self._entry = entry
        self._run = run
        self._turn = turn
        self._run_here = run_here
        self._ahead = ahead
        self._ran_here = False  # True if a request ran here in this turn of the event loop
        self._waited = waited
        self._max_size = max_size
        self._waiting = WaitingRequests()
        self._delayed = WaitingRequests()  # overdue requests, if the config delays them
        self._running: dict[Batch, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.times = LatencyModel()
        self._company = 0.0  # share of recent requests that found another one here
        self._wakeup: asyncio.TimerHandle | None = None
        self._looked_soon = False
        self._closed = False

    async def submit(self, inputs: Tensors, outputs: Sequence[str], deadline_s: float = math.inf) -> Tensors:
        """Wait for the answer to at most `max_batch_size` rows.

        Args:
            deadline_s: deadline of the caller on the event loop's clock.

        Raises:
            QueueFullError: if the queue is full, or too long for this deadline.
            DeadlineError: if the deadline is past, or the request waited longer than the entry's config
                allows.
            NotReadyError: if the queue is closed.
        """
        rows = next(iter(inputs.values())).shape[0]
        self.admit(deadline_s, rows)
        answer = self._answer_here(inputs, outputs)
        if answer is not None:
            return answer
        loop = asyncio.get_running_loop()
        item = PendingRequest(inputs, outputs, rows, loop.time(), deadline_s, loop.create_future())
        has_company = bool(self._waiting or self._running or self._ran_here)
        self._company += _COMPANY * (has_company - self._company)
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

    def _answer_here(self, inputs: Tensors, outputs: Sequence[str]) -> Tensors | None:
        """Return the answer to a request that comes alone, if it takes an instant; None if it must queue.

        Only one runs so in a turn of the event loop: under load the others wait in the queue, which counts,
        refuses and joins them.
        """
        if self._ran_here or self._waiting or self._delayed or self._running:
            return None
        began_s = time.monotonic()
        answer = self._run_here(inputs, outputs)
        if answer is None:
            return None
        note_run(began_s, began_s, time.monotonic())
        self._waited(0.0)
        self._ran_here = True
        asyncio.get_running_loop().call_soon(self._end_turn)
        return answer

    def _end_turn(self) -> None:
        self._ran_here = False

    def admit(self, deadline_s: float = math.inf, rows: int = 1) -> None:
        """Raise the error that `submit` would raise now; called before the request's body is read."""
        if self._closed:
            raise NotReadyError("the server is stopping")
        count = len(self._waiting) + len(self._delayed)
        if count >= self._max_size:
            raise QueueFullError(
                f"{count} requests for '{self._entry.name}' are waiting: try again later",
                _retry_s(self.wait_s()),
            )
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise DeadlineError(f"the deadline of this request for '{self._entry.name}' has passed")
        if not count and self._is_free():
            return
        wait_s = self.wait_s()
        if wait_s * _WAIT_MARGIN + self.times.estimate(rows) * _RUN_MARGIN > left_s:
            raise QueueFullError(
                f"'{self._entry.name}' cannot answer within the requested {left_s:.3g} s: {count} requests "
                "are waiting; try again later, or allow more time",
                _retry_s(wait_s),
            )

    def wait_s(self) -> float:
        """Return the estimated seconds until a request that arrives now would run."""
        rows = self._waiting.rows + self._delayed.rows
        largest = min(self._entry.max_batch_size if self._entry.batching else 1, max(rows, 1))
        return self._busy_s() + rows / largest * self.times.estimate(largest) / self._entry.instances

    async def close(self) -> None:
        """Refuse new requests, and wait until the accepted ones are answered."""
        self._closed = True
        self._look()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _busy_s(self) -> float:
        """Return the estimated seconds until an instance is free."""
        instances = self._entry.instances
        running = [batch for batch in list(self._running) if batch.rows]
        if len(running) < instances:
            return 0.0
        ends_s = sorted(batch.began_s + self.times.estimate(batch.rows) for batch in running)
        return max(ends_s[-instances] - asyncio.get_running_loop().time(), 0.0)

    def _is_free(self) -> bool:
        return len(self._running) < self._entry.instances

    def _look_soon(self) -> None:
        """Look in the next turn of the event loop, so that requests of this turn share a batch."""
        if not self._looked_soon:
            self._looked_soon = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Start every batch that should leave now."""
        self._looked_soon = False
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        untaken = sum(batch.taken_s == math.inf for batch in self._running)
        for _ in range(len(self._waiting) + len(self._delayed) - untaken):
            lane = self._open_lane()
            if lane is None:
                return
            left_s = self._delay_s()
            if left_s > 0:
                self._wakeup = asyncio.get_running_loop().call_later(left_s, self._look)
                return
            self._start(lane)

    def _open_lane(self) -> _Lane | None:
        """Return a lane for the next batch: a free instance's, or one behind a running batch; else None."""
        if self._is_free():
            return _Lane(self._turn)
        for batch, lane in self._running.items():
            alone = batch.rows and lane.batches == 1
            if alone and self.times.estimate(batch.rows) >= _WORTH_FOLLOWING_S and self._ahead():
                return lane
        return None

    def _start(self, lane: _Lane) -> None:
        batch = Batch() if lane.batches else Batch(asyncio.get_running_loop().time())
        lane.batches += 1
        self._running[batch] = lane
        task = asyncio.create_task(self._run_batch(batch, lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _delay_s(self) -> float:
        """Return the seconds that the next batch should still wait for more requests."""
        entry = self._entry
        alone = self._company < 0.5 and len(self._waiting) == 1
        if alone or self._closed or not entry.batching or entry.max_queue_delay_s < TIMER_S:
            return 0.0
        if self._delayed or self._waiting.rows >= entry.max_batch_size:
            return 0.0
        oldest = next(iter(self._waiting))
        return oldest.arrived_s + entry.max_queue_delay_s - asyncio.get_running_loop().time()

    async def _run_batch(self, batch: Batch, lane: _Lane) -> None:
        answers: list[Tensors] = []
        try:
            async with lane:
                answers = await self._answer(batch)
        finally:  # before answered callers ask again: they should find the instance free
            del self._running[batch]
            self._look()
        _settle(batch.members, answers)

    async def _answer(self, batch: Batch) -> list[Tensors]:
        """Run a batch and return each member's answer; one bad request does not affect the others.

        This settles the futures of members whose run failed or came too late.
        """
        lines = (self._waiting, self._delayed)
        rows = min(sum(line.rows for line in lines), self._entry.max_batch_size)
        now = asyncio.get_running_loop().time
        take = partial(batch.take, self._entry, lines, now, self.times.estimate, self._beginning)
        answers: list[Tensors] = []
        try:
            answers = self._split_answer(batch.members, await self._run(rows, take))
        except Exception as error:  # errors of a run go to its callers and must not end this task
            await self._answer_apart(batch.members, error)
        for item in batch.late:
            self._refuse_late(item)
        for item in batch.members:
            self._waited(item.started_s - item.came_s)
        if batch.members:
            self.times.observe(batch.rows, now() - batch.began_s)
        return answers

    async def _answer_apart(self, items: Sequence[PendingRequest], error: Exception) -> None:
        """Run each request of a failed batch alone and answer it."""
        for item in items:
            if len(items) > 1 and not item.future.done():
                try:
                    answer = await self._run(item.rows, partial(join_requests, [item]))
                    _settle([item], self._split_answer([item], answer))
                except Exception as own:  # see `_answer`
                    error = own
            if not item.future.done():
                item.future.set_exception(error)

    def _beginning(self) -> int:
        """Return the number of batches with their own instance that have not taken their members yet."""
        running = list(self._running.items())
        return sum(batch.taken_s == math.inf and lane.batches == 1 for batch, lane in running)

    def _split_answer(self, items: Sequence[PendingRequest], answer: Tensors | None) -> list[Tensors]:
        """Return each request's own answer. Raises ModelFailedError if rows are missing."""
        if answer is None:
            return []
        check_rows(self._entry, answer, sum(item.rows for item in items))
        return split_answer(items, answer)

    def _refuse_late(self, item: PendingRequest) -> None:
        """Refuse a request that has left the line."""
        if not item.future.done():
            item.future.set_exception(
                DeadlineError(f"the request for '{self._entry.name}' waited too long to be answered in time")
            )

    def _overdue_timer(self, item: PendingRequest) -> asyncio.TimerHandle | None:
        """Start a timer for the queue policy's timeout: as in Triton, for the wait in the queue alone."""
        if self._entry.queue_timeout_s is None:
            return None
        action = self._delay if self._entry.delays_overdue else self._refuse_overdue
        return asyncio.get_running_loop().call_later(self._entry.queue_timeout_s, action, item)

    def _delay(self, item: PendingRequest) -> None:
        if self._waiting.remove(item):  # False if a batch has just taken it
            self._delayed.add(item)

    def _refuse_overdue(self, item: PendingRequest) -> None:
        if self._waiting.remove(item):
            self._refuse_late(item)


def _settle(items: Iterable[PendingRequest], answers: Sequence[Tensors]) -> None:
    """Answer requests that still wait; none if the run failed."""
    for item, answer in zip(items, answers, strict=False):
        if not item.future.done():
            item.future.set_result(answer)


def _retry_s(wait_s: float) -> int:
    return min(math.ceil(wait_s) or 1, _LONGEST_RETRY_S)
