"""The loaded explainers, limited in number; the least recently used one leaves first."""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field

from rationale.errors import RationaleError
from rationale_service.engine.backends.base import Backend
from rationale_service.errors import NotReadyError, ServiceError
from rationale_service.observability.metrics import Metrics
from rationale_service.repository.entry import Entry

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Resident:
    """An entry that may be loaded.

    Attributes:
        ready: True if it is loaded and answers.
        uses: number of requests that need it now.
        turn: lock for loading and unloading it.
        loading: task that loads it, which all its waiting requests share.
    """

    ready: bool = False
    uses: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    loading: "asyncio.Task[None] | None" = None


class ModelCache:
    """Cache that loads an entry when a request needs it, and unloads an unused one for it.

    Attributes:
        residents: admitted entries, least recently used first. All others are always loaded.
    """

    def __init__(self, backend: Backend, capacity: int, metrics: Metrics) -> None:
        self.capacity = capacity
        self._backend = backend
        self._metrics = metrics
        self.residents: OrderedDict[Entry, _Resident] = OrderedDict()
        self._placed = 0  # entries that are loaded, loading or unloading
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def has(self, entry: Entry) -> bool:
        """Tell whether the entry is loaded."""
        return entry in self.residents and self.residents[entry].ready

    def admit(self, entry: Entry) -> None:
        """Admit an entry, which requests then load when they need it."""
        self.residents.setdefault(entry, _Resident())

    async def start(self) -> None:
        """Load as many entries as there is room for. A failure to load one does not affect the others."""
        entries = list(self.residents)
        for entry in entries[self.capacity :]:
            await self._backend.unload(entry)  # a server may hold what an earlier gateway loaded
        for entry in entries[: self.capacity]:
            try:
                await self.load(entry)
            except RationaleError as error:
                log.error("explainer %s cannot be loaded: %s", entry.name, error)

    async def load(self, entry: Entry) -> None:
        """Load and warm an entry now, even beyond the capacity until another one can leave.

        Raises:
            RepositoryError, NotReadyError: if it cannot be loaded.
        """
        self.admit(entry)
        loading = self._spawn(self._bring_in(entry, self.residents[entry], within=False))
        await asyncio.shield(loading)  # never abandon a load in the middle
        self.residents.move_to_end(entry)
        await self._shrink(but=entry)

    @contextlib.asynccontextmanager
    async def pinned(self, entry: Entry) -> AsyncIterator[None]:
        """Keep a resident loaded until the context ends; requests that wait for it share its loading.

        Raises:
            NotReadyError: if it cannot be loaded now.
        """
        resident = self.residents[entry]
        resident.uses += 1
        try:
            if not resident.ready:
                await self._wait_until_loaded(entry, resident)
            if entry in self.residents:
                self.residents.move_to_end(entry)
            yield
        finally:
            resident.uses -= 1
            self._changed.set()
            if self._placed > self.capacity:
                self._spawn(self._shrink())

    async def drop(self, entry: Entry) -> None:
        """Drop an entry: wait until no request uses it, and free it."""
        resident = self.residents.pop(entry, None)
        if resident is None:
            return
        while resident.uses:
            await self._change()
        async with resident.turn:
            if resident.ready:
                await self._take_out(entry, resident)

    async def stop(self) -> None:
        """End loading; the backend frees loaded entries."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _wait_until_loaded(self, entry: Entry, resident: _Resident) -> None:
        if resident.loading is None or resident.loading.done():
            resident.loading = self._spawn(self._bring_in(entry, resident, within=True))
        try:
            await asyncio.shield(resident.loading)
        except ServiceError:
            raise
        except RationaleError as error:
            log.error("explainer %s cannot be loaded: %s", entry.name, error)
            raise NotReadyError(f"'{entry.name}' cannot be loaded now; see the server's log") from error

    async def _bring_in(self, entry: Entry, resident: _Resident, *, within: bool) -> None:
        """Load an entry; if `within`, first wait for room in the capacity."""
        async with resident.turn:
            if resident.ready:
                return
            while within and self._placed >= self.capacity:
                if not await self._let_one_leave():
                    await self._change()
            started_s = time.monotonic()
            self._place(+1)
            try:
                await self._backend.load(entry)
                resident.ready = True
            finally:
                if not resident.ready:
                    self._place(-1)
            self._metrics.time_load(entry, time.monotonic() - started_s)

    async def _shrink(self, but: Entry | None = None) -> None:
        while self._placed > self.capacity and await self._let_one_leave(but):
            pass

    async def _let_one_leave(self, but: Entry | None = None) -> bool:
        """Unload the least recently used entry, except `but`; return False if all are in use."""
        idle = ((e, r) for e, r in self.residents.items() if r.ready and not r.uses and e is not but)
        entry, resident = next(idle, (None, None))
        if entry is None or resident is None:
            return False
        resident.ready = False  # later requests wait for its turn
        async with resident.turn:
            await self._take_out(entry, resident)
        return True

    async def _take_out(self, entry: Entry, resident: _Resident) -> None:
        resident.ready = False
        try:
            await self._backend.unload(entry)
        finally:
            self._place(-1)

    def _place(self, count: int) -> None:
        self._placed += count
        self._metrics.loaded_explainers.set(self._placed)
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.debug("loading: %s", task.exception())  # the waiting requests got the error
