"""The queue before one entry: joins waiting requests into batches and gives each caller its own rows."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.backends.base import check_rows
from service.entries import Entry
from service.errors import NotReadyError, QueueFullError
from service.tensors import Tensors

TIMER_S = 0.001  # asyncio's timers are no finer: shorter delays pass in turns of the event loop
Run = Callable[[Tensors, Sequence[str]], Awaitable[Tensors]]
Key = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(eq=False)
class _Item:
    """A waiting request. It owns its future: whoever waits may leave, and nobody else notices."""

    inputs: Tensors
    outputs: Sequence[str]
    rows: int
    arrived_s: float
    future: asyncio.Future[Tensors] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def key(self) -> Key:
        """Requests of one key can be concatenated."""
        return tuple((name, array.shape[1:]) for name, array in sorted(self.inputs.items()))


class BatchQueue:
    """Runs an entry's requests, `entry.instances` batches at a time, oldest first.

    A batch leaves when it is full, when its oldest request has waited `max_queue_delay_s`, and not
    before an instance is free.
    """

    def __init__(self, entry: Entry, run: Run, max_size: int) -> None:
        self._entry = entry
        self._run = run
        self._max_size = max_size
        self._waiting: deque[_Item] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self._workers = [asyncio.create_task(self._work()) for _ in range(entry.instances)]

    async def submit(self, inputs: Tensors, outputs: Sequence[str]) -> Tensors:
        """Waits for the answer to at most `max_batch_size` rows.

        Raises:
            QueueFullError: as many requests wait already as the entry allows.
            NotReadyError: the queue was closed.
        """
        if self._closed:
            raise NotReadyError("the server is stopping")
        if len(self._waiting) >= self._max_size:
            raise QueueFullError(
                f"{len(self._waiting)} requests for '{self._entry.name}' are waiting: try again later"
            )
        rows = next(iter(inputs.values())).shape[0]
        item = _Item(inputs, outputs, rows, asyncio.get_running_loop().time())
        self._waiting.append(item)
        self._changed.set()
        try:
            return await item.future
        finally:
            if item in self._waiting:  # cancelled before its turn
                self._waiting.remove(item)

    async def close(self) -> None:
        """Refuses new requests and returns when the accepted ones are answered."""
        self._closed = True
        self._changed.set()
        await asyncio.gather(*self._workers)

    async def _work(self) -> None:
        while not (self._closed and not self._waiting):
            await self._batch_due()
            batch = self._take()
            if batch:
                await self._answer(batch)

    async def _batch_due(self) -> None:
        """Returns when a batch should leave, or the queue is closed."""
        clock = asyncio.get_running_loop().time
        while not self._closed:
            left_s = None
            if self._waiting:
                left_s = self._waiting[0].arrived_s + self._entry.max_queue_delay_s - clock()
                if left_s <= 0 or not self._entry.batching or self._is_full():
                    return
            await self._change(left_s)

    async def _change(self, left_s: float | None) -> None:
        """Waits for a change, about `left_s` seconds at most."""
        if left_s is not None and left_s < TIMER_S:
            await asyncio.sleep(0)  # one turn of the event loop, in which requests may arrive
            return
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), left_s)

    def _is_full(self) -> bool:
        return sum(item.rows for item in self._waiting) >= self._entry.max_batch_size

    def _take(self) -> list[_Item]:
        """Removes the oldest request and those that may share its batch from the queue."""
        batch: list[_Item] = []
        rows = 0
        for item in list(self._waiting):
            if batch and item.key != batch[0].key:
                continue
            if batch and rows + item.rows > self._entry.max_batch_size:
                break
            batch.append(item)
            rows += item.rows
            self._waiting.remove(item)
            if not self._entry.batching:
                break
        return batch

    async def _answer(self, batch: list[_Item]) -> None:
        """Runs a batch and settles every future in it; one bad request does not spoil its mates."""
        try:
            answers = await self._run_joined(batch)
        except (
            Exception
        ) as error:  # whatever a run raises belongs to its callers, and must not end this worker
            if len(batch) > 1:
                for item in batch:
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
