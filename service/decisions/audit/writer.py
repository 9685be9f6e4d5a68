"""The trail as the gateway uses it: one thread that writes for all requests.

What waits when the thread is free goes to the disk together: many requests share one wait for it. The
database's libraries are loaded by the thread, so that a gateway that decides nothing has none of them.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from compiler.errors import InvalidOptionError
from service.decisions.trail import AuditTrail, NoTrail, RecordedDecision
from service.errors import QueueFullError, ServiceError, StateUnavailableError
from service.settings import OFF, Settings

if TYPE_CHECKING:
    from service.decisions.audit.ledger import Ledger

log = logging.getLogger(__name__)

_DAY_S = 86_400
_READERS = 2
_Answer = Sequence[RecordedDecision]
_Job = tuple[_Answer, "Future[_Answer]"]


class DatabaseTrail:
    """An `AuditTrail` in a database."""

    def __init__(self, open_ledger: Callable[[], "Ledger"], settings: Settings) -> None:
        """
        Args:
            open_ledger: called by the thread; what it raises refuses decisions, until it does not.
        """
        self._open = open_ledger
        self._months = settings.audit_retention_months
        self._patience_s = settings.drain_timeout_s
        self._jobs: queue.Queue[_Job | None] = queue.Queue(settings.max_queue_size)
        self._searches = threading.BoundedSemaphore(settings.max_queue_size)
        self._readers = ThreadPoolExecutor(_READERS, "audit-reader")
        self._ledger: Ledger | None = None
        self._opening = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Opens the trail now, where there is one, and not by its first use."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit-writer", daemon=True)
            self._thread.start()

    async def find(
        self, model: str, caller: str, key: str, instances: Sequence[Mapping[str, Any]]
    ) -> _Answer:
        self.start()
        if not self._searches.acquire(blocking=False):
            raise _full()

        def search() -> _Answer:
            with _told():
                return self._opened().find(model, caller, key, instances)

        search_ended = self._readers.submit(search)
        search_ended.add_done_callback(lambda _: self._searches.release())
        return await asyncio.wrap_future(search_ended)

    async def record(self, decisions: _Answer) -> _Answer:
        if not decisions:
            return decisions
        self.start()
        written: Future[_Answer] = Future()
        try:
            self._jobs.put_nowait((decisions, written))
        except queue.Full as error:
            raise _full() from error
        return await asyncio.wrap_future(written)

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(self._stop, thread)
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _stop(self, thread: threading.Thread) -> None:
        end_s = time.monotonic() + self._patience_s
        with contextlib.suppress(queue.Full):
            self._jobs.put(None, timeout=self._patience_s)
        thread.join(max(end_s - time.monotonic(), 0))
        if self._ledger is not None and not thread.is_alive():
            self._ledger.store.database.close()

    def _opened(self) -> "Ledger":
        with self._opening:
            if self._ledger is None:
                self._ledger = self._open()
            return self._ledger

    def _run(self) -> None:
        due_s = time.monotonic()
        while True:
            jobs = self._taken(due_s)
            if jobs:
                self._write([job for job in jobs if job is not None])
            if None in jobs:
                return
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + (0 if self._prune() else _DAY_S)

    def _taken(self, due_s: float) -> list[_Job | None]:
        """All that waits; none where there is nothing until the next look at what is too old."""
        jobs: list[_Job | None] = []
        with contextlib.suppress(queue.Empty):
            jobs.append(self._jobs.get(timeout=max(due_s - time.monotonic(), 0)))
            while jobs[-1] is not None:
                jobs.append(self._jobs.get_nowait())
        return jobs

    def _write(self, jobs: Sequence[_Job]) -> None:
        waited_for = [job for job in jobs if job[1].set_running_or_notify_cancel()]
        if not waited_for:
            return
        try:
            with _told():
                answers = self._opened().append([decisions for decisions, _ in waited_for])
        except BaseException as error:
            for _, written in waited_for:
                written.set_exception(error)
            return
        for (_, written), answer in zip(waited_for, answers, strict=True):
            if isinstance(answer, ServiceError):
                written.set_exception(answer)
            else:
                written.set_result(answer)

    def _prune(self) -> int:
        """Opens the trail, too, where there is one. How many rows were deleted: there may be more."""
        try:
            with _told():
                database = self._opened().store.database
                if not database.exists:  # the first decision makes it
                    return 0
                database.open()
                if not self._months:
                    return 0
                from service.decisions.audit.retention import months_ago, prune

                return prune(database, months_ago(self._months))
        except StateUnavailableError:
            return 0
        except Exception:  # the thread has decisions to write
            log.exception("the audit trail could not be pruned")
            return 0


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """The caller learns that the trail is not there, the log why: it may name machines."""
    try:
        yield
    except (StateUnavailableError, InvalidOptionError) as error:
        log.error("%s", error)
        raise StateUnavailableError(
            "the audit trail is not available, and no decision is answered without it: try again later", 5
        ) from error


def _full() -> QueueFullError:
    return QueueFullError("too many decisions wait for the audit trail")


def trail_of(settings: Settings) -> AuditTrail:
    """Raises InvalidOptionError: the URL or the key file makes no sense, or a library for them is missing."""
    if settings.audit is not None and settings.audit.get_secret_value() == OFF:
        return NoTrail()
    if settings.audit is not None or settings.audit_inputs != "plain" or settings.audit_key_file is not None:
        _ledger(settings)  # faults are told before anything is served
    return DatabaseTrail(lambda: _ledger(settings), settings)


def _ledger(settings: Settings) -> "Ledger":
    from service.decisions.audit.ledger import Ledger
    from service.decisions.audit.store import AuditStore

    return Ledger(AuditStore.open(settings, is_made=True))
