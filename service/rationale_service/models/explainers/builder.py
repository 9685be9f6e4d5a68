"""Builder of artifacts: never one twice, and a limited number at once."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
import weakref
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rationale.errors import RepositoryError
from rationale_service.errors import CompileFailedError, ConflictError, UnknownResourceError
from rationale_service.models.explainers import records
from rationale_service.models.explainers.artifact_store import ArtifactStore
from rationale_service.models.explainers.records import Artifact, ExplainerRecord, Stage, to_its_end
from rationale_service.models.explainers.spec import ExplainerSpec, PlainModel, entry_name
from rationale_service.models.explainers.worker import CompileOrder
from rationale_service.observability.metrics import Metrics
from rationale_service.repository.entry import demand_kernels_allowed
from rationale_service.settings import Settings

log = logging.getLogger(__name__)

_LINE_BYTES = 1 << 20
_WATCH_S = 0.2
_TAIL_BYTES = 4000  # end of the worker's stderr to keep
_LAST_WORDS_S = 1.0  # to read the stderr of a worker that has ended
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

OnProgress = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """Progress of a compile: `done` of `total` steps of a stage of the compiler."""

    stage: str
    done: int
    total: int


async def compile_entry(order: CompileOrder, timeout_s: float, on_progress: OnProgress) -> int:
    """Run the order in a new process; return the size of the written entry in bytes.

    If cancelled, it ends the process before it returns. The caller cleans up after a failure.

    Raises:
        CompileFailedError: if the compiler refuses, or the process exceeds a limit or is killed.
        UnknownResourceError: if the reference set was deleted meanwhile.
    """
    async with _worker() as process:
        try:
            async with asyncio.timeout(timeout_s):
                return await _outcome(process, order, on_progress)
        except TimeoutError as error:
            raise CompileFailedError(
                f"it took longer than {timeout_s:g} s (setting compile_timeout_s). Use fewer references, "
                "targets or steps"
            ) from error


@contextlib.asynccontextmanager
async def _worker() -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rationale_service.models.explainers.worker",
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=_LINE_BYTES,
        start_new_session=True,  # Ctrl-C in a terminal is for the gateway alone
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()


async def _outcome(process: Process, order: CompileOrder, on_progress: OnProgress) -> int:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise CompileFailedError("the compile process has no pipes")  # never happens
    process.stdin.write(order.to_line())  # stdin stays open: its end stops the worker
    tail = asyncio.create_task(_tail(process.stderr))
    watch = asyncio.create_task(_watch(process, order.memory_bytes))
    last: dict[str, Any] = {}
    try:
        async for line in process.stdout:
            last = json.loads(line)
            if "stage" in last:
                on_progress(Progress(last["stage"], last["done"], last["total"]))
        status = await process.wait()
        await asyncio.wait([tail], timeout=_LAST_WORDS_S)
    finally:  # waits for nothing: the caller kills the process next
        watch.cancel()
        tail.cancel()
    if "written" in last:
        return int(last["written"])
    if last.get("references_gone"):
        raise UnknownResourceError(last["error"])
    if "error" in last:
        raise CompileFailedError(last["error"])
    raise CompileFailedError(_ending(status, watch, tail, order))


def _ending(status: int, watch: "asyncio.Task[bool]", tail: "asyncio.Task[str]", order: CompileOrder) -> str:
    if watch.done() and not watch.cancelled() and watch.result():
        return (
            f"it took more than the {order.memory_bytes >> 20} MB of memory that it may have (setting "
            "compile_memory_bytes). Ask for fewer references or targets, or for a smaller memory_budget"
        )
    if tail.done() and not tail.cancelled():
        log.error("compile worker for %s: status %d: %s", order.name, status, tail.result())
    if status < 0:
        return f"the compile process was ended by {signal.Signals(-status).name}; nothing was changed"
    return "the compile process failed; the server's log tells why"


async def _watch(process: Process, memory_bytes: int) -> bool:
    """Kill the process if it exceeds its memory limit; return True in that case."""
    while (resident := _resident_bytes(process.pid)) is not None:
        if resident > memory_bytes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return True
        await asyncio.sleep(_WATCH_S)
    return False


def _resident_bytes(pid: int) -> int | None:
    """Return the memory of a process; None if it has ended, or the system does not report it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return None


async def _tail(stream: asyncio.StreamReader) -> str:
    """Return the end of a stream, in bounded memory."""
    tail = b""
    while chunk := await stream.read(1 << 16):
        tail = (tail + chunk)[-_TAIL_BYTES:]
    return tail.decode(errors="replace")


Report = Callable[[Stage, Progress | None], None]


class ReferenceFiles(Protocol):
    """Store of reference sets. Both methods may block."""

    def find(self, name: str, model: str) -> str:
        """Return the digest of the set of that name for that model. Raises UnknownResourceError."""

    def path(self, digest: str) -> Path:
        """Return a file of its rows for `rationale compile`. Raises UnknownResourceError."""


class ArtifactBuilder:
    """Builder that supplies artifacts in the repository. It changes nothing that is served."""

    def __init__(
        self, artifacts: ArtifactStore, settings: Settings, references: ReferenceFiles, metrics: Metrics
    ) -> None:
        self._artifacts = artifacts
        self._timeout_s = settings.compile_timeout_s
        self._memory_bytes = settings.compile_memory_bytes
        self._custom_ops = settings.allow_custom_ops
        self._references = references
        self._metrics = metrics
        self._cache = metrics.cache("artifacts")
        self._slots = asyncio.Semaphore(settings.max_compiles)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def turn(self, digest: str) -> asyncio.Lock:
        """Return the lock for making or deleting the artifact."""
        return self._turns.setdefault(digest, asyncio.Lock())

    async def supply(
        self, record: ExplainerRecord, model: PlainModel, recorded: Artifact | None, report: Report
    ) -> Artifact:
        """Return the artifact of `record`, from the repository or compiled into it. Hold its turn.

        Args:
            recorded: recorded artifact, if any.
            report: function that gets each stage and its progress.

        Raises:
            CompileFailedError: if it cannot be made.
            UnknownResourceError: if its reference set was deleted meanwhile.
            StateUnavailableError: if it cannot be written.
        """
        name = entry_name(record.model, record.digest)
        if recorded is not None and await asyncio.to_thread(self._artifacts.fetch, recorded):
            self._cache.hit()
            return recorded
        if self._artifacts.served(name):
            raise ConflictError(
                f"the repository has an entry '{name}' that the gateway did not write: move it away"
            )
        self._cache.miss()
        async with self._slots:
            return await self._make(record, model, name, report)

    async def _make(self, record: ExplainerRecord, model: PlainModel, name: str, report: Report) -> Artifact:
        folder = await to_its_end(asyncio.to_thread(self._artifacts.staging))
        started_s, outcome = time.monotonic(), "failed"
        try:
            report(Stage.COMPILING, None)
            order = await asyncio.to_thread(self._order, record, model, folder / name)
            size = await compile_entry(order, self._timeout_s, lambda step: report(_stage(step), step))
            report(Stage.PUBLISHING, None)
            sha256 = await to_its_end(asyncio.to_thread(self._artifacts.keep, folder / name, record.digest))
            artifact = Artifact(
                record.digest, name, model.name, model.digest, record.references, size, sha256
            )
            await to_its_end(
                asyncio.to_thread(records.write, self._artifacts.state, [artifact])
            )  # record it first: unrecorded entries are foreign
            await to_its_end(asyncio.to_thread(self._artifacts.publish, folder / name))
            outcome = "ready"
        finally:
            self._metrics.time_compile(time.monotonic() - started_s, outcome)
            await to_its_end(asyncio.to_thread(self._artifacts.discard, folder))
        return artifact

    def _order(self, record: ExplainerRecord, model: PlainModel, entry: Path) -> CompileOrder:
        spec = ExplainerSpec.model_validate(record.spec)
        references = None if record.references is None else self._references.path(record.references)
        request = spec.requested(referenced=references is not None).model_dump(mode="json")
        try:
            demand_kernels_allowed(model.custom_ops, allowed=self._custom_ops)
        except RepositoryError as error:
            raise CompileFailedError(str(error)) from error
        request["custom_ops"] = [str(library) for library in model.custom_ops]
        return CompileOrder(
            model=str(model.path),
            name=model.name,
            entry=str(entry),
            request=request,
            references=None if references is None else str(references),
            memory_bytes=self._memory_bytes,
            parity=None if model.parity is None else model.parity.model_dump(mode="json"),
        )


def _stage(step: Progress) -> Stage:
    return Stage.CHECKING if step.stage.startswith("checking") else Stage.COMPILING
