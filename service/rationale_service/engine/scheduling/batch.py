"""Waiting requests of one entry, the batches made of them, and estimates of batch durations.

Requests come and leave on the event loop; a batch takes its members in the thread that runs it.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rationale_service.errors import ModelFailedError
from rationale_service.repository.entry import Entry
from rationale_service.tensors import Tensors

_FORGET = 0.95  # weight of earlier batches at each new one: about the last twenty count
_SURPRISE = 4.0  # times the estimate: a longer batch is a stall and says little about the next
_SURE = 5.0  # number of batches after which estimates are reliable
_LEAST_SPREAD = 1e-3  # variance of sizes per mean square; below it a slope is noise
_BATCH_MARGIN = 2.5  # twice as large a batch is hardly faster per row, but late for all its members

Key = tuple[tuple[str, tuple[int, ...]], ...]
Joined = tuple[Tensors, Sequence[str]]  # inputs of a run, and requested outputs


@dataclass(eq=False)
class PendingRequest:
    """A waiting request. It owns its future, so that its caller may leave without effect on others.

    Times are the event loop's, whose clock may be coarse; `came_s` and `started_s` are measured.
    """

    inputs: Tensors
    outputs: Sequence[str]
    rows: int
    arrived_s: float
    deadline_s: float
    future: asyncio.Future[Tensors]
    came_s: float = field(default_factory=time.monotonic)
    started_s: float = 0.0

    @property
    def key(self) -> Key:
        """Key of the request; requests of one key can be concatenated."""
        return tuple((name, array.shape[1:]) for name, array in sorted(self.inputs.items()))


class WaitingRequests:
    """Waiting requests, oldest first, and their number of rows. Any thread may take from it."""

    def __init__(self) -> None:
        self._items: dict[PendingRequest, None] = {}
        self._lock = threading.Lock()
        self.rows = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[PendingRequest]:
        """Iterate over a copy of the waiting requests."""
        with self._lock:
            return iter(list(self._items))

    def add(self, item: PendingRequest) -> None:
        with self._lock:
            self._items[item] = None
            self.rows += item.rows

    def remove(self, item: PendingRequest) -> bool:
        """Remove a request; return False if another has removed it. The one who removes it answers it."""
        with self._lock:
            if item not in self._items:
                return False
            del self._items[item]
            self.rows -= item.rows
            return True


@dataclass(eq=False)
class Batch:
    """A batch under way. It takes its members as late as possible, when it can run.

    Attributes:
        began_s: time at which it got an instance; at the latest the time at which it took its members.
    """

    began_s: float = math.inf
    taken_s: float = math.inf
    members: list[PendingRequest] = field(default_factory=list)
    late: list[PendingRequest] = field(
        default_factory=list
    )  # removed from the line: they cannot be answered in time
    rows: int = 0
    _until_s: float = math.inf  # earliest deadline of the members
    _share: int = 0  # this batch's share of the waiting rows

    def take(
        self,
        entry: Entry,
        lines: Sequence[WaitingRequests],
        now: Callable[[], float],
        seconds: Callable[[int], float],
        other_queues: Callable[[], int] = lambda: 0,
    ) -> Joined | None:
        """Take the oldest request, and others that may share its run, out of the lines; None without any.

        The batch only grows as long as all its members keep their deadlines.

        Args:
            now: event loop's clock.
            seconds: estimated duration of a batch, from its number of rows.
            other_queues: number of other batches that could begin now and share the waiting requests.
        """
        self.taken_s = now()
        self.began_s = min(self.began_s, self.taken_s)
        self._share = math.ceil(sum(line.rows for line in lines) / (1 + other_queues()))
        for line in lines:
            for item in line:
                if self._is_full(entry):
                    return self._join_members()
                # The last waiting request runs in any case: otherwise a wrong estimate would never be
                # corrected and would refuse for ever.
                others_wait = sum(map(len, lines)) > 1
                left_s = item.deadline_s - self.taken_s
                if left_s <= 0 or (others_wait and seconds(item.rows) > left_s):
                    self._take_late(item, line)
                elif not self.members or item.key == self.members[0].key:
                    if not self._has_room(item, entry, seconds):
                        return self._join_members()
                    self._take_in(item, line)
        return self._join_members()

    def _is_full(self, entry: Entry) -> bool:
        most = min(entry.max_batch_size, self._share) if entry.batching else 1
        return bool(self.members) and self.rows >= most

    def _has_room(self, item: PendingRequest, entry: Entry, seconds: Callable[[int], float]) -> bool:
        if not self.members:
            return True
        rows = self.rows + item.rows
        ends_s = self.taken_s + seconds(rows) * _BATCH_MARGIN
        return rows <= entry.max_batch_size and ends_s <= min(self._until_s, item.deadline_s)

    def _take_in(self, item: PendingRequest, line: WaitingRequests) -> None:
        if line.remove(item):
            item.started_s = time.monotonic()
            self.members.append(item)
            self.rows += item.rows
            self._until_s = min(self._until_s, item.deadline_s)

    def _take_late(self, item: PendingRequest, line: WaitingRequests) -> None:
        if line.remove(item):
            self.late.append(item)

    def _join_members(self) -> Joined | None:
        return join_requests(self.members) if self.members else None


def join_requests(items: Sequence[PendingRequest]) -> Joined:
    """Join requests into one run: their rows one after the other, and every output that any of them wants."""
    if len(items) == 1:
        return items[0].inputs, items[0].outputs
    inputs = {name: np.concatenate([item.inputs[name] for item in items]) for name in items[0].inputs}
    return inputs, list(dict.fromkeys(name for item in items for name in item.outputs))


def split_answer(items: Sequence[PendingRequest], answer: Tensors) -> list[Tensors]:
    """Split a joined answer: each request gets its own rows and outputs."""
    if len(items) == 1:
        return [answer]
    ends = np.cumsum([item.rows for item in items])
    return [
        {name: answer[name][end - item.rows : end] for name in item.outputs}
        for item, end in zip(items, ends, strict=True)
    ]


def check_rows(entry: Entry, outputs: Tensors, rows: int) -> None:
    """Raise ModelFailedError if an output does not have one row per input row."""
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != rows:
            raise ModelFailedError(
                f"model '{entry.name}' mixes the rows of a batch: output '{name}' has shape "
                f"{list(array.shape)} for {rows} rows"
            )


class LatencyModel:
    """A line through the recent batches of one entry: seconds = fixed + rows · slope, by least squares.

    Batches of a single size give no slope; the estimate then takes larger ones as no slower, so that the
    first
    of them runs and gives the slope.
    """

    def __init__(self) -> None:
        self._count = self._rows = self._seconds = self._rows_rows = self._rows_seconds = 0.0
        self._line: tuple[float, float] | None = None

    @property
    def has_measurements(self) -> bool:
        return self._count > 0

    def learn(self, batches: Iterable[tuple[int, float]]) -> None:
        """Take (rows, seconds) of earlier batches as a first estimate."""
        for rows, seconds in batches:
            self.observe(rows, seconds)

    def observe(self, rows: int, seconds: float) -> None:
        if self._count > _SURE and rows * self._count <= self._rows:  # a usual size
            seconds = min(seconds, _SURPRISE * self.estimate(rows))
        self._count = _FORGET * self._count + 1
        self._rows = _FORGET * self._rows + rows
        self._seconds = _FORGET * self._seconds + seconds
        self._rows_rows = _FORGET * self._rows_rows + rows * rows
        self._rows_seconds = _FORGET * self._rows_seconds + rows * seconds
        self._line = None  # last: other threads use the old line until then

    def estimate(self, rows: int) -> float:
        """Return the estimated seconds for a batch of `rows`; 0.0 before the first batch.

        Any thread may call it, while one thread observes.
        """
        line = self._line
        if line is None:
            line = self._line = self._fit()
        fixed, slope = line
        return fixed + rows * slope

    def _fit(self) -> tuple[float, float]:
        if not self.has_measurements:
            return 0.0, 0.0
        mean_rows, mean_seconds = self._rows / self._count, self._seconds / self._count
        square = self._rows_rows / self._count
        spread = square - mean_rows**2
        if spread < _LEAST_SPREAD * square:
            return mean_seconds, 0.0
        slope = (self._rows_seconds / self._count - mean_rows * mean_seconds) / spread
        slope = min(max(slope, 0.0), mean_seconds / mean_rows)  # neither part is negative
        return mean_seconds - slope * mean_rows, slope
