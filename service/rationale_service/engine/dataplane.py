"""Inference and explanation over a backend, independent of transport: REST and gRPC are thin layers above."""

import asyncio
import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import numpy as np

from rationale_service.engine.backends.base import Backend
from rationale_service.engine.checks import check_answer, check_request
from rationale_service.engine.large_requests import MemoryLimit, OffLoop
from rationale_service.engine.model_cache import ModelCache
from rationale_service.engine.response_cache import ResponseCache
from rationale_service.engine.scheduling.batch import check_rows
from rationale_service.errors import AnswerTooLargeError, DeadlineError, NotReadyError, ServiceError
from rationale_service.observability.context import current
from rationale_service.observability.metrics import Metrics
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import ModelRegistry
from rationale_service.settings import Settings
from rationale_service.tensors import Tensors

log = logging.getLogger(__name__)

_ALWAYS_LOADED = contextlib.nullcontext()
_AT_ONCE = 256  # rows or answers per turn of the event loop: a few milliseconds


class Lifecycle(enum.Enum):
    LOADING = "the models are being loaded"
    READY = "ready"
    LEAVING = "the server is about to stop"
    FAILED = "a model could not be loaded"
    STOPPING = "the server is stopping"


class DataPlane:
    """Executor of requests: check one, split it to the entry's batch size, run it, check the answer."""

    def __init__(
        self,
        repository: ModelRegistry,
        backend: Backend,
        settings: Settings,
        metrics: Metrics,
        cannot_decide: Callable[[], ServiceError | None],
        all_started: Callable[[], bool],
    ) -> None:
        """Take the entries, their backend and the limits.

        Args:
            cannot_decide: function that returns the reason for which no loaded entry can decide now, or None.
            all_started: function that tells whether the other processes that share the ports have started.
        """
        self.metrics = metrics
        metrics.workers.set(settings.workers)
        self._max_answer_bytes = settings.max_answer_bytes
        self.repository = repository
        self.backend = backend
        self.model_cache = ModelCache(backend, settings.max_loaded_explainers, metrics)
        self._state = Lifecycle.LOADING
        self._loaded = asyncio.Event()  # also set if loading has failed
        self.timeout_s = settings.request_timeout_s
        self.budget = MemoryLimit(settings.max_queue_bytes)
        self.off_loop = OffLoop()
        size = settings.answer_cache_bytes
        self._answers = ResponseCache(size, metrics.cache("answers")) if size else None
        self._working = _RunningRequests()
        self._cannot_decide = cannot_decide
        self._all_started = all_started
        self.stopping = asyncio.Event()  # ends tasks that outlive a request

    @property
    def state(self) -> Lifecycle:
        return self._state

    @state.setter
    def state(self, state: Lifecycle) -> None:
        self._state = state
        if state is not Lifecycle.LOADING:
            self._loaded.set()
        self.metrics.ready.set(state is Lifecycle.READY)
        self.metrics.workers_ready.set(state is Lifecycle.READY)

    async def start(self, load_repository: Callable[[], Awaitable[None]]) -> None:
        """Load the entries; ready when they are warm. Raises errors of loading and is then never ready."""
        try:
            await load_repository()
            await self.model_cache.start()
        except BaseException:
            self.state = Lifecycle.FAILED
            raise
        if self.state is Lifecycle.LOADING:  # a stop may have come meanwhile
            self.state = Lifecycle.READY

    async def loaded(self, deadline_s: float | None = None) -> None:
        """Wait until the models are loaded or have failed; until `deadline_s` at the latest."""
        if not self._loaded.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline_s):
                    await self._loaded.wait()

    def leave(self) -> None:
        """Take the first step of a stop: no longer ready, but still answering."""
        if self.state is Lifecycle.READY:
            self.state = Lifecycle.LEAVING

    async def idle(self) -> None:
        """Wait until no request runs."""
        await self._working.none.wait()

    @property
    def serves(self) -> bool:
        return self.state in (Lifecycle.READY, Lifecycle.LEAVING)

    def refuse_new_work(self) -> None:
        """Take the second step of a stop: refuse new work; running requests go on."""
        self.state = Lifecycle.STOPPING
        self.stopping.set()

    async def stop(self) -> None:
        """Wait for running requests of every protocol, then stop the backend."""
        self.refuse_new_work()
        await self._working.none.wait()
        self.off_loop.stop()
        await self.model_cache.stop()
        await self.backend.stop()

    async def ready(self, entry: Entry | None = None) -> bool:
        """Tell whether all entries, or one, can answer; requests load an unloaded explainer, so it can."""
        return await self.why_not_ready(entry) is None

    async def why_not_ready(self, entry: Entry | None = None) -> ServiceError | None:
        """Return the reason for which the gateway, or an entry, is not ready; None if it is."""
        if self.state is not Lifecycle.READY:
            return NotReadyError(self.state.value)
        if not self._all_started():
            return NotReadyError("other workers are being started")
        if entry is None:
            return None if await self.backend.ready(None) else NotReadyError("the backend does not answer")
        if not await self.backend.ready(None if entry in self.model_cache.residents else entry):
            return NotReadyError("the backend does not serve it now")
        return self._cannot_decide() if self.repository.decides(entry) else None

    async def infer(
        self,
        entry: Entry,
        inputs: Tensors,
        outputs: Sequence[str] | None,
        deadline_s: float,
        *,
        by_row: bool = False,
    ) -> Tensors:
        """Run `entry` on [N, …] inputs; return the requested outputs in their order; None requests all.

        A request of more than `max_batch_size` rows runs in pieces, one after the other, so that it
        takes one place in the queue and others get their turn between the pieces.

        Args:
            deadline_s: deadline on the event loop's clock; see `deadline`.
            by_row: True to run each row alone and without the cache: a row's bits may depend on the other
                rows of its batch.

        Raises:
            NotReadyError, InvalidInputError, AnswerTooLargeError, NotFiniteError, QueueFullError,
                DeadlineError, ModelFailedError: if a check or the backend raises it.
        """
        if not self.serves:
            raise NotReadyError(self.state.value)
        manifest = self.repository.manifest_of(entry)
        missing = frozenset[str]() if manifest is None else manifest.takes_missing
        rows, output_names = check_request(entry, inputs, outputs, missing, manifest)
        size = self._answer_bytes(entry, inputs, output_names, rows)
        answers = None if by_row else self._answers
        key = None if answers is None else answers.key(entry, inputs, output_names)
        if answers is not None and key is not None and (cached := answers.find(key)) is not None:
            return cached
        limit_s = deadline_s - asyncio.get_running_loop().time()
        try:
            with self._working, self.budget.reserve(inputs, size):
                async with asyncio.timeout_at(deadline_s):
                    pieces = _pieces(inputs, rows, 1 if by_row else entry.max_batch_size)
                    tensors = await self._run(entry, pieces, output_names, deadline_s)
        except TimeoutError as error:
            raise DeadlineError(f"no answer from '{entry.name}' within {limit_s:.2g} s") from error
        check_rows(entry, tensors, rows)
        check_answer(entry, tensors)
        for block in _pieces(tensors, rows, _AT_ONCE):
            self.metrics.observe_gaps(entry, block)
            if rows > _AT_ONCE:
                await asyncio.sleep(0)
        if answers is not None and key is not None:
            answers.keep(key, tensors)
        return tensors

    def forget_answers(self) -> None:
        """Forget answers, cached and in progress, after an explainer or a reference set was removed."""
        if self._answers is not None:
            self._answers.clear()

    async def _run(
        self, entry: Entry, pieces: Iterable[Tensors], outputs: Sequence[str], deadline_s: float
    ) -> Tensors:
        cache = self.model_cache
        async with cache.pinned(entry) if entry in cache.residents else _ALWAYS_LOADED:
            blocks: list[Tensors] = []
            answers: list[Tensors] = []
            for piece in pieces:
                answers.append(await self.backend.infer(entry, piece, outputs, deadline_s))
                if len(answers) == _AT_ONCE:  # joining thousands of rows at the end would hold the loop
                    blocks.append(_join_pieces(answers))
                    answers = []
        return _join_pieces([*blocks, *answers])

    def deadline(self, timeout_s: float | None = None) -> float:
        """Return the deadline of a request from now (event loop's clock); `timeout_s` can only shorten it."""
        limit_s = self.timeout_s if timeout_s is None else min(self.timeout_s, timeout_s)
        return asyncio.get_running_loop().time() + limit_s

    def admit(self, entry: Entry, deadline_s: float) -> None:
        """Refuse a request that `infer` would refuse anyway. Cheap: servers call it before they read a body.

        Raises:
            NotReadyError, QueueFullError, DeadlineError: if `infer` would.
        """
        if not self.serves:
            raise NotReadyError(self.state.value)
        context = current()
        if context is not None:
            context.about(entry)  # a refusal counts as this model's
        self.budget.check(0)
        self.backend.admit(entry, deadline_s)

    def _answer_bytes(self, entry: Entry, inputs: Tensors, outputs: Sequence[str], rows: int) -> int:
        """Return the size of an answer. Raises AnswerTooLargeError.

        A row's explanation has a value for each feature and target.
        """
        size = rows * _row_bytes(entry, outputs, inputs)
        if size > self._max_answer_bytes:
            raise AnswerTooLargeError(
                f"the answer would have {size} bytes, more than {self._max_answer_bytes}: send fewer than "
                f"{rows} rows, or ask for fewer outputs"
            )
        return size


class _RunningRequests:
    """Counter of running requests, each inside its own `with`."""

    def __init__(self) -> None:
        self._count = 0
        self.none = asyncio.Event()
        self.none.set()

    def __enter__(self) -> None:
        self._count += 1
        self.none.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self.none.set()


def _row_bytes(entry: Entry, outputs: Sequence[str], inputs: Tensors) -> int:
    """Return the size of a row of these outputs; the checked inputs give an open length."""
    open_length = entry.manifest.open_length if entry.manifest is not None else None
    if open_length is None:
        return sum(entry.output_bytes[name] for name in outputs)
    name, axis = open_length.axes[0]
    length = inputs[name].shape[axis]
    specs = [spec for spec in entry.outputs if spec.name in outputs]
    return sum(entry.output_bytes[spec.name] * length ** spec.shape.count(-1) for spec in specs)


def _pieces(tensors: Tensors, rows: int, size: int) -> Iterator[Tensors]:
    if rows <= size:
        yield tensors
        return
    for start in range(0, rows, size):
        yield {name: array[start : start + size] for name, array in tensors.items()}


def _join_pieces(pieces: Sequence[Tensors]) -> Tensors:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
