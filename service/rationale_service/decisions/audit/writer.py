"""The gateway's trail: one thread that writes for all requests, and one that watches it.

The writer puts all waiting decisions on the disk together, so that many requests share one flush. When idle
it probes from time to time, so that the gateway notices a failure before its callers do. The other thread
notices if the writer hangs. The writer loads the database's libraries, so that a gateway without decisions
loads none.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from rationale.errors import InvalidOptionError, RationaleError
from rationale_service.decisions.audit.acts import ActLog
from rationale_service.decisions.audit.rows import time_text
from rationale_service.decisions.audit.trail import AuditTrail, NoTrail, RecordedDecision
from rationale_service.errors import QueueFullError, ServiceError, StateUnavailableError
from rationale_service.observability.metrics import AuditMetrics, Metrics
from rationale_service.settings import OFF, Settings

if TYPE_CHECKING:
    from rationale_service.decisions.audit.ledger import Ledger

log = logging.getLogger(__name__)

_DAY_S = 86_400
_LOOK_S = 10.0  # after a successful write or probe
_LOOK_AGAIN_S = 2.0  # after a failed one
_PRUNE_AGAIN_S = 600.0
_STUCK_S = 5.0  # limit of a transaction, after which decisions are refused at once
_STUCK_AGAIN_S = 1.0  # the same during an outage
_WATCH_S = 0.5
_STOP_S = 5.0  # for waiting decisions, whose callers have left
_LOG_S = 60.0  # between two log lines on one outage
_OPENING_S = 5.0  # longest wait of a start
_NOT_OPEN = "the audit trail is not open yet"
_READERS = 2
_COUNT_S = 60.0  # between two counts of the decisions that wait for a review
_Answer = Sequence[RecordedDecision]
_Job = tuple[_Answer, "Future[_Answer]"]


class DatabaseTrail:
    """An `AuditTrail` in a database."""

    def __init__(
        self, open_ledger: Callable[[], "Ledger"], settings: Settings, metrics: AuditMetrics
    ) -> None:
        """Prepare a writer; `start` begins its thread.

        Args:
            open_ledger: function that the thread calls until it succeeds; its errors refuse decisions.
        """
        self._metrics = metrics
        self._outage = _Outage(metrics)
        self._looked: Future[None] = Future()
        self._open = open_ledger
        self._months = settings.audit_retention_months
        self._jobs: queue.Queue[_Job | None] = queue.Queue(settings.max_queue_size)
        self._searches = threading.BoundedSemaphore(settings.max_queue_size)
        self._readers = ThreadPoolExecutor(_READERS, "audit-reader")
        self._ledger: Ledger | None = None
        self._opening = threading.Lock()
        self._thread: threading.Thread | None = None
        self._busy_since_s: float | None = None  # start of the thread's present transaction
        self._stopping = threading.Event()
        self._count_s = 0.0  # next count of the decisions that wait for a review
        self._count: Future[None] = Future()
        self._count.set_result(None)
        self._models: set[str] = set()

    def start(self) -> None:
        """Open the trail now instead of at its first use; create it if it is missing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit-writer", daemon=True)
            self._thread.start()
            threading.Thread(target=self._watch, name="audit-watchdog", daemon=True).start()

    async def wait_until_open(self) -> None:
        if self._thread is not None:
            await asyncio.wait([asyncio.wrap_future(self._looked)], timeout=_OPENING_S)

    @property
    def fault(self) -> str | None:
        if self._thread is not None and not self._looked.done():
            return _NOT_OPEN
        return self._outage.reason

    async def find(
        self, model: str, caller: str, key: str, instances: Sequence[Mapping[str, Any]]
    ) -> _Answer:
        self.start()
        self._check_not_stuck()
        if not self._searches.acquire(blocking=False):
            raise _full()

        def search() -> _Answer:
            with self._refusing(1):
                return self._get_ledger().find(model, caller, key, instances)

        search_ended = self._readers.submit(search)
        search_ended.add_done_callback(lambda _: self._searches.release())
        return await asyncio.wrap_future(search_ended)

    async def record(self, decisions: _Answer) -> _Answer:
        if not decisions:
            return decisions
        self.start()
        self._check_not_stuck()
        written: Future[_Answer] = Future()
        self._metrics.waiting(len(decisions))
        written.add_done_callback(lambda _: self._metrics.waiting(-len(decisions)))
        try:
            self._jobs.put_nowait((decisions, written))
        except queue.Full as error:
            written.cancel()
            raise _full() from error
        return await asyncio.wrap_future(written)

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(self._stop, thread)
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _stop(self, thread: threading.Thread) -> None:
        self._stopping.set()
        patience_s = 0.0 if self._stuck_s else _STOP_S
        end_s = time.monotonic() + patience_s
        with contextlib.suppress(queue.Full):
            self._jobs.put(None, timeout=patience_s)
        thread.join(max(end_s - time.monotonic(), 0))
        is_counting = bool(wait([self._count], max(end_s - time.monotonic(), 0)).not_done)
        if self._ledger is not None and not thread.is_alive() and not is_counting:
            self._ledger.close()

    @property
    def _stuck_s(self) -> float:
        """Seconds that the thread has hung; 0 if it does not."""
        since_s = self._busy_since_s
        busy_s = 0.0 if since_s is None else time.monotonic() - since_s
        return busy_s if busy_s > (_STUCK_S if self._outage.reason is None else _STUCK_AGAIN_S) else 0.0

    def _watch(self) -> None:
        while not self._stopping.wait(_WATCH_S):
            if self._stuck_s:
                self._outage.begin(self._hang_message(), 0)

    def _hang_message(self) -> str:
        return f"the audit trail has not answered for {self._stuck_s:.0f} s"

    def _check_not_stuck(self) -> None:
        if self._stuck_s:
            with self._refusing(1):
                raise StateUnavailableError(self._hang_message())

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        self._busy_since_s = time.monotonic()
        try:
            yield
        finally:
            self._busy_since_s = None

    def _get_ledger(self) -> "Ledger":
        with self._opening:
            if self._ledger is None:
                try:
                    self._ledger = self._open()
                except RationaleError:
                    raise
                except Exception as error:  # such as a library that needs a free file descriptor
                    raise StateUnavailableError(
                        f"the audit trail cannot be opened: {_line(error)}"
                    ) from error
            return self._ledger

    def _run(self) -> None:
        look_s = prune_s = time.monotonic()
        while True:
            jobs = self._waiting_jobs(min(look_s, prune_s))
            is_due = time.monotonic() >= look_s
            if jobs:
                self._write([job for job in jobs if job is not None])
            elif is_due:
                with self._busy():
                    self._look()
            if None in jobs:
                return
            if jobs or is_due:
                self._count_at_times()
                look_s = time.monotonic() + (_LOOK_S if self._outage.reason is None else _LOOK_AGAIN_S)
                if not self._looked.done():
                    self._looked.set_result(None)
            if time.monotonic() >= prune_s:
                prune_s = time.monotonic() + self._prune()
            if self._outage.reason is not None:  # the watchdog may have begun it meanwhile
                look_s = min(look_s, time.monotonic() + _LOOK_AGAIN_S)

    def _waiting_jobs(self, due_s: float) -> list[_Job | None]:
        """Wait for jobs until `due_s`, and return all that wait."""
        jobs: list[_Job | None] = []
        with contextlib.suppress(queue.Empty):
            jobs.append(self._jobs.get(timeout=max(due_s - time.monotonic(), 0)))
            while jobs[-1] is not None:
                jobs.append(self._jobs.get_nowait())
        return jobs

    def _write(self, jobs: Sequence[_Job]) -> None:
        waited_for = [job for job in jobs if job[1].set_running_or_notify_cancel()]
        if waited_for:
            self._write_together(waited_for)

    def _write_together(self, waited_for: Sequence[_Job]) -> None:
        """Write all jobs in one transaction. If the store refuses one request's rows, write each alone."""
        began_s = time.monotonic()
        try:
            with self._busy():
                answers = self._get_ledger().append([decisions for decisions, _ in waited_for])
        except BaseException as error:
            self._metrics.write_failed()
            if not self._is_there():
                self._refuse(waited_for, error)
            elif len(waited_for) > 1:
                for job in waited_for:
                    self._write_together([job])
            else:
                log.error("the audit trail refuses a decision: %s", _line(error))
                waited_for[0][1].set_exception(StateUnavailableError("the audit trail refuses the decision"))
            return
        self._metrics.write_s(time.monotonic() - began_s)
        self._outage.end()
        for (_, written), answer in zip(waited_for, answers, strict=True):
            if isinstance(answer, ServiceError):
                written.set_exception(answer)
            else:
                written.set_result(answer)

    def _is_there(self) -> bool:
        try:
            with self._busy():
                self._get_ledger().store.probe()
        except Exception:  # any error: the store fails, and no single row is to blame
            return False
        return True

    def _refuse(self, waited_for: Sequence[_Job], error: BaseException) -> None:
        try:
            with self._refusing(len(waited_for)):
                raise error
        except BaseException as told:
            for _, written in waited_for:
                written.set_exception(told)

    def _look(self) -> None:
        """Probe the trail, and begin or end its outage."""
        try:
            with self._refusing(0):
                self._get_ledger().store.probe()
        except StateUnavailableError:
            return
        except Exception as error:  # the thread has decisions to write
            self._outage.begin(_line(error), 0)
            return
        self._outage.end()

    def _count_at_times(self) -> None:
        if self._outage.reason is None and time.monotonic() >= self._count_s:
            self._count_s = time.monotonic() + _COUNT_S
            with contextlib.suppress(RuntimeError):  # the readers have stopped
                self._count = self._readers.submit(self._count_waiting)

    def _count_waiting(self) -> None:
        """Count the decisions that wait for a review, beside the thread that writes."""
        now = time_text()
        try:
            waiting = self._get_ledger().store.waiting(now)
        except Exception as error:  # the next count may succeed; the writer reports outages
            log.warning("decisions that wait for a review could not be counted: %s", _line(error))
            return
        self._models |= waiting.keys()
        for model in self._models:
            self._metrics.set_waiting_reviews(model, *waiting.get(model, (0, 0)))

    def _prune(self) -> float:
        """Prune old rows; return the seconds until the next pruning.

        Each call deletes few enough rows that decisions do not wait long.
        """
        if self._outage.reason is not None:
            return _LOOK_AGAIN_S
        if not self._months:
            return _DAY_S
        try:
            from rationale_service.decisions.audit.evidence.retention import months_ago

            with self._busy():
                return 0 if self._get_ledger().store.prune(months_ago(self._months)) else _DAY_S
        except Exception as error:  # the thread has decisions to write
            log.error("the audit trail could not be pruned, which is tried again: %s", _line(error))
            return _PRUNE_AGAIN_S

    @contextlib.contextmanager
    def _refusing(self, requests: int) -> Iterator[None]:
        """Report an unavailable trail to callers; only the log has the reason, which may name machines."""
        try:
            yield
        except (StateUnavailableError, InvalidOptionError) as error:
            self._outage.begin(str(error), requests)
            raise StateUnavailableError(
                "the audit trail is not available, so the gateway answers no decision: try again later", 5
            ) from error


class _Outage:
    """State of an outage. The log reports it once, then each minute with the number of refused decisions."""

    def __init__(self, metrics: AuditMetrics) -> None:
        self.reason: str | None = None
        self._metrics = metrics
        self._turn = threading.Lock()
        self._refused = 0
        self._logged_s: float | None = None
        self._is_in_log = False

    def begin(self, reason: str, refused: int) -> None:
        """Begin or continue an outage with `refused` more requests."""
        with self._turn:
            is_new = self.reason is None
            self.reason = reason
            self._refused += refused
            self._metrics.unavailable(1)
            now_s = time.monotonic()
            was_long_ago = self._logged_s is None or now_s - self._logged_s >= _LOG_S
            if was_long_ago and (is_new or refused):
                self._is_in_log, self._logged_s = True, now_s
                log.error("decisions are refused: %s%s", reason, self._take_count())

    def end(self) -> None:
        if self.reason is None:
            return
        with self._turn:
            self.reason = None
            self._metrics.unavailable(0)
            if self._is_in_log:
                self._is_in_log = False
                log.warning("the audit trail is back, and decisions are recorded again%s", self._take_count())

    def _take_count(self) -> str:
        """Return the number of refused requests that no log line has reported yet."""
        refused, self._refused = self._refused, 0
        return f" ({refused} refused since the line before)" if refused else ""


def _line(error: BaseException) -> str:
    """Describe an error by its first line, without the statement that failed."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _full() -> QueueFullError:
    return QueueFullError("too many decisions wait for the audit trail")


def trail_of(settings: Settings, metrics: AuditMetrics | None = None) -> AuditTrail:
    """Return the audit trail that the settings name.

    Raises InvalidOptionError if the URL or the key file is invalid, or a library for them is missing.
    """
    if settings.audit is not None and settings.audit.get_secret_value() == OFF:
        return NoTrail()
    if settings.audit is not None or settings.audit_inputs != "plain" or settings.audit_key_file is not None:
        _ledger(settings)  # report faults before serving
    return DatabaseTrail(lambda: _ledger(settings), settings, metrics or Metrics().audit)


def act_log_of(settings: Settings) -> ActLog:
    """Return the log of administrators' acts in the trail that the settings name. Raises as `trail_of`."""
    if settings.audit is not None and settings.audit.get_secret_value() == OFF:
        return ActLog(None)
    return ActLog(lambda: _ledger(settings).store)


def _ledger(settings: Settings) -> "Ledger":
    from rationale_service.decisions.audit.ledger import open_ledger

    return open_ledger(settings, is_made=True)
