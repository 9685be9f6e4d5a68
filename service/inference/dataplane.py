"""Inference and explanation over a backend. Knows no transport: REST and gRPC are thin over it."""

import asyncio
import enum
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from compiler.manifest import TensorSpec
from compiler.open_references import WEIGHTS, references_name
from service.backends.base import Backend, check_rows
from service.errors import (
    AnswerTooLargeError,
    DeadlineError,
    InvalidInputError,
    NotFiniteError,
    NotReadyError,
    QueueFullError,
)
from service.faults import Faults, listed
from service.inference.loop_turns import LoopTurns
from service.inference.memory_limit import MemoryLimit
from service.inference.model_cache import DEFAULT_LOADED_EXPLAINERS, ModelCache
from service.inference.response_cache import ResponseCache
from service.inference.until import until
from service.observability.context import current
from service.observability.metrics import Metrics
from service.repository.entry import Entry
from service.repository.registry import ModelRegistry
from service.security.keys import needed_by_entry
from service.tensors import DTYPES, Array, Tensors, datatype_of

if TYPE_CHECKING:
    from service.references.resolver import ReferenceResolver

log = logging.getLogger(__name__)

DEFAULT_ANSWER_BYTES = 256 << 20  # as the setting max_answer_bytes
DEFAULT_WAITING_BYTES = 256 << 20  # as the setting max_queue_bytes
_TINY = 32  # values: so few are looked at sooner one by one than by numpy
_TURNS_LEFT = 2  # as much again as it has waited for the event loop, a request may need to be answered
_COMPANY = 2  # what comes after a request shares the event loop with it


class Lifecycle(enum.Enum):
    LOADING = "the models are being loaded"
    READY = "ready"
    LEAVING = "the server is about to stop"
    FAILED = "a model could not be loaded"
    STOPPING = "the server is stopping"


@dataclass(frozen=True)
class Answer:
    """Tensors by name, in the order asked for, and the entry that computed them.

    Attributes:
        references: digest of the reference set that the request brought or named.
    """

    entry: Entry
    tensors: Tensors
    references: str | None = None

    @property
    def identity(self) -> dict[str, str]:
        """What reproduces it."""
        own = self.entry.identity
        return own if self.references is None else {**own, "references": self.references}


class DataPlane:
    """Checks a request, splits it to the entry's batch size, runs it and checks the answer."""

    def __init__(
        self,
        repository: ModelRegistry,
        backend: Backend,
        request_timeout_s: float,
        metrics: Metrics,
        max_waiting_bytes: int = DEFAULT_WAITING_BYTES,
        *,
        max_answer_bytes: int = DEFAULT_ANSWER_BYTES,
        answer_cache_bytes: int = 0,
        max_loaded_explainers: int = DEFAULT_LOADED_EXPLAINERS,
    ) -> None:
        self.metrics = metrics
        self._max_answer_bytes = max_answer_bytes
        self._turns = LoopTurns()
        self.repository = repository
        self.backend = backend
        self.model_cache = ModelCache(backend, max_loaded_explainers, metrics)
        self._state = Lifecycle.LOADING
        self.timeout_s = request_timeout_s
        self.budget = MemoryLimit(max_waiting_bytes)
        self.reference_resolver: ReferenceResolver | None = None  # for requests that bring or name some
        self.answers = ResponseCache(answer_cache_bytes, metrics.cache("answers"))
        self._working = _Working(self._turns.ended)
        self.stopping = asyncio.Event()  # what waits for more than one request ends by it

    @property
    def state(self) -> Lifecycle:
        return self._state

    @state.setter
    def state(self, state: Lifecycle) -> None:
        self._state = state
        self.metrics.ready.set(state is Lifecycle.READY)

    async def start(self) -> None:
        """Loads and warms every entry. Raises what the backend raises, and is never ready then."""
        try:
            entries = self.repository.entries.values()
            await self.backend.start([entry for entry in entries if not self.model_cache.manages(entry)])
            await self.model_cache.start()
        except BaseException:
            self.state = Lifecycle.FAILED
            raise
        if self.state is Lifecycle.LOADING:  # a stop may have come meanwhile
            self.state = Lifecycle.READY

    def leave(self) -> None:
        """The first step of a stop: no longer ready, but still answering."""
        if self.state is Lifecycle.READY:
            self.state = Lifecycle.LEAVING

    async def idle(self) -> None:
        """Waits until nothing runs."""
        await self._working.none.wait()

    @property
    def serves(self) -> bool:
        return self.state in (Lifecycle.READY, Lifecycle.LEAVING)

    def refuse_new_work(self) -> None:
        """The second step of a stop: refuses; what runs goes on."""
        self.state = Lifecycle.STOPPING
        self.stopping.set()

    async def stop(self) -> None:
        """Waits for what runs, whichever end it came by, then stops the backend."""
        self.refuse_new_work()
        await self._working.none.wait()
        await self.model_cache.stop()
        await self.backend.stop()

    async def ready(self, entry: Entry | None = None) -> bool:
        """Whether all, or an entry, can answer. One that is unloaded meanwhile is loaded for a request."""
        asked = None if entry is not None and self.model_cache.manages(entry) else entry
        return self.state is Lifecycle.READY and await self.backend.ready(asked)

    def not_ready_reason(self) -> str:
        return "the backend does not answer" if self.state is Lifecycle.READY else self.state.value

    async def infer(
        self,
        entry: Entry,
        inputs: Tensors,
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
        deadline_s: float = math.inf,
        reference_set: str | None = None,
        faults: Faults | None = None,
    ) -> Answer:
        """Runs `entry` on [N, …] inputs; `outputs` None asks for all.

        Where its end found `faults` in the request they are told, with what is wrong besides.

        References among the inputs, or a `reference_set`, may choose another entry: see `reference_resolver`.

        The soonest of `timeout_s` from now, `deadline_s` (see `deadline`) and the setting is its limit.

        A request of more than `max_batch_size` rows runs in pieces, one after the other, so that it
        takes one place in the queue and others get their turn between them.

        Raises:
            NotReadyError, InvalidInputError, AnswerTooLargeError, NotFiniteError, QueueFullError,
            DeadlineError, ModelFailedError; with references what `ReferenceResolver.choose` raises, too.
        """
        if not self.serves:
            raise NotReadyError(self.state.value)
        if faults:
            _tell(faults, entry, inputs, outputs)
        references = None
        if self.reference_resolver is not None and _says_against_what(entry, inputs, reference_set):
            deadline_s = min(deadline_s, self.deadline(timeout_s))
            chosen = await self.reference_resolver.choose(self, entry, inputs, reference_set, deadline_s)
            entry, inputs, references = chosen.entry, chosen.inputs, chosen.references
        _note(entry, inputs)
        rows, wanted = check_request(entry, inputs, outputs)
        size = self._answer_bytes(entry, inputs, wanted, rows)
        place = self.answers.place(entry, inputs, wanted)
        if place is not None and (found := self.answers.find(place)) is not None:
            return Answer(entry, found, references)
        deadline_s = min(deadline_s, self.deadline(timeout_s))
        limit_s = deadline_s - asyncio.get_running_loop().time()
        try:
            with self._working, self.budget.held(inputs, size):
                tensors = await until(deadline_s, self._run(entry, inputs, wanted, rows, deadline_s))
        except TimeoutError as error:
            raise DeadlineError(f"no answer from '{entry.name}' within {limit_s:.2g} s") from error
        check_rows(entry, tensors, rows)
        for name, array in tensors.items():
            _check_result(entry, name, array)
        self.metrics.explained(entry, tensors)
        if place is not None:
            self.answers.keep(place, tensors)
        return Answer(entry, tensors, references)

    async def _run(
        self, entry: Entry, inputs: Tensors, outputs: Sequence[str], rows: int, deadline_s: float
    ) -> Tensors:
        async with self.model_cache.held(entry):
            pieces = [
                await self.backend.infer(entry, piece, outputs, deadline_s)
                for piece in _pieces(inputs, rows, entry.max_batch_size)
            ]
        return pieces[0] if len(pieces) == 1 else _joined(pieces)

    def deadline(self, timeout_s: float | None = None) -> float:
        """When a request that comes now is over, on the event loop's clock; `timeout_s` can only shorten."""
        limit_s = self.timeout_s if timeout_s is None else min(self.timeout_s, timeout_s)
        return asyncio.get_running_loop().time() + limit_s

    def admit(self, entry: Entry, deadline_s: float = math.inf, under_way: int = 0) -> None:
        """Refuses what `infer` would refuse anyway. Cheap: ends ask before they read a body.

        Args:
            under_way: requests that the end has begun with; they have to be answered before.

        Raises:
            NotReadyError, QueueFullError, DeadlineError.
        """
        if not self.serves:
            raise NotReadyError(self.state.value)
        exchange = current()
        if exchange is not None:
            exchange.about(entry)  # a refusal counts as this model's
        self.budget.check(0)
        self._check_loop(deadline_s, under_way)
        self.backend.admit(entry, deadline_s)

    def _answer_bytes(self, entry: Entry, inputs: Tensors, outputs: Sequence[str], rows: int) -> int:
        """Raises AnswerTooLargeError: a row's explanation has a value for each feature and target."""
        size = rows * entry.row_bytes(outputs, inputs)
        if size > self._max_answer_bytes:
            raise AnswerTooLargeError(
                f"the answer would have {size} bytes, more than {self._max_answer_bytes}: send fewer than "
                f"{rows} rows, or ask for fewer outputs"
            )
        return size

    def _check_loop(self, deadline_s: float, under_way: int) -> None:
        """Where small requests come faster than Python handles them, they wait for it, in no queue."""
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise DeadlineError("the deadline had passed before the request was taken up")
        behind_s = max(self._turns.behind_s(), under_way * self._turns.answer_s() * _COMPANY)
        if behind_s * _TURNS_LEFT > left_s:
            raise QueueFullError(f"the gateway is {behind_s:.2g} s behind: try again later, or wait longer")


class _Working:
    """Counts the requests that run, each within a `with` of its own."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended  # called for each
        self._count = 0
        self.none = asyncio.Event()
        self.none.set()

    def __enter__(self) -> None:
        self._count += 1
        self.none.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        self._ended()
        if not self._count:
            self.none.set()


def _note(entry: Entry, inputs: Tensors) -> None:
    """Notes what the running request is for. Raises ForbiddenError where its caller may not ask for that."""
    exchange = current()
    if exchange is not None:
        rows = next((array.shape[0] for array in inputs.values() if array.ndim), 0)
        exchange.about(entry, rows)
        exchange.caller.require(needed_by_entry(entry))


def _says_against_what(entry: Entry, inputs: Tensors, reference_set: str | None) -> bool:
    """Whether a request may bring references or name a set: cheap, and true for some that do not."""
    if entry.manifest is None:
        return False
    is_open = entry.manifest.open_references is not None
    return reference_set is not None or is_open or len(inputs) != len(entry.inputs)


def _is_of_references(name: str) -> bool:
    return name == WEIGHTS or name.endswith(references_name(""))


def check_request(
    entry: Entry, inputs: Tensors, outputs: Sequence[str] | None = None
) -> tuple[int, tuple[str, ...]]:
    """The number of rows N, and the outputs to compute. Raises InvalidInputError where they do not fit."""
    faults = Faults()
    _check_inputs(entry, inputs, faults)
    wanted = _check_outputs(entry, outputs, faults)
    faults.tell()
    return len(next(iter(inputs.values()))), wanted


def _tell(faults: Faults, entry: Entry, inputs: Tensors, outputs: Sequence[str] | None) -> None:
    """Raises them together with what else is wrong. References are left out: another entry may take those."""
    faults.parts.update(name for name in entry.input_specs if _is_of_references(name))
    own = {name: array for name, array in inputs.items() if not _is_of_references(name)}
    _check_inputs(entry, own, faults)
    _check_outputs(entry, outputs, faults)
    faults.tell()


def _check_inputs(entry: Entry, inputs: Tensors, faults: Faults) -> None:
    known = entry.input_specs
    if inputs.keys() != known.keys():
        named = {
            "unknown": inputs.keys() - known.keys(),
            "missing": known.keys() - inputs.keys() - faults.parts,
        }
        for verb, names in named.items():
            if names:
                faults.note(
                    f"{verb} input {listed(sorted(names))}: model '{entry.name}' takes {listed(known)}"
                )
    for name, array in inputs.items():
        if name in known:
            with faults:
                _check_input(known[name], array)
    if not faults:
        with faults:
            _check_together(entry, inputs)


def _check_together(entry: Entry, inputs: Tensors) -> None:
    counts = {name: len(array) for name, array in inputs.items()}
    if min(counts.values()) != max(counts.values()):
        raise InvalidInputError(f"the inputs differ in their number of rows (axis 0): {counts}")
    opened = entry.manifest.open_length if entry.manifest is not None else None
    if opened is not None and (fault := opened.fault({name: a.shape for name, a in inputs.items()})):
        raise InvalidInputError(fault)


def _check_outputs(entry: Entry, outputs: Sequence[str] | None, faults: Faults) -> tuple[str, ...]:
    """The outputs to compute."""
    known = entry.output_names
    if not outputs:
        return known
    unknown = [name for name in outputs if name not in known]
    if unknown:
        faults.note(f"unknown output {listed(unknown)}: model '{entry.name}' gives {listed(known)}")
    return tuple(dict.fromkeys(outputs))


def _check_input(spec: TensorSpec, array: Array) -> None:
    if array.dtype != DTYPES[spec.datatype]:
        raise InvalidInputError(
            f"input '{spec.name}' is {datatype_of(array)}, but the model takes {spec.datatype}"
        )
    fits = array.ndim == len(spec.shape) + 1 and all(
        size == expected or (expected == -1 and size > 0)
        for size, expected in zip(array.shape[1:], spec.shape, strict=True)
    )
    if not fits:
        raise InvalidInputError(
            f"input '{spec.name}' has shape {list(array.shape)}, but the model takes "
            f"{[-1, *spec.shape]}, where -1 is any size"
        )
    if array.shape[0] == 0:
        raise InvalidInputError(f"input '{spec.name}' is empty: send at least one row")
    index = first_non_finite(array)
    if index is not None:
        raise InvalidInputError(
            f"input '{spec.name}' holds {array[index]} at {list(index)}: send finite numbers "
            f"within the range of {spec.datatype}"
        )


def _check_result(entry: Entry, name: str, array: Array) -> None:
    index = first_non_finite(array)
    if index is not None:
        raise NotFiniteError(
            f"model '{entry.name}' gives {array[index]} for output '{name}' at {list(index)}: "
            "the input lies outside of what it can compute"
        )


def first_non_finite(array: Array) -> tuple[int, ...] | None:
    """Index of the first NaN or infinity of a float array, None where there is none."""
    if array.dtype.kind != "f":
        return None
    if array.size <= _TINY and all(map(math.isfinite, array.reshape(-1).tolist())):
        return None
    finite = np.isfinite(array)
    if finite.all():
        return None
    return tuple(int(axis) for axis in np.unravel_index(int(finite.argmin()), array.shape))


def _pieces(inputs: Tensors, rows: int, size: int) -> list[Tensors]:
    if rows <= size:
        return [inputs]
    return [
        {name: array[start : start + size] for name, array in inputs.items()}
        for start in range(0, rows, size)
    ]


def _joined(pieces: Sequence[Tensors]) -> Tensors:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
