"""Starts the compile worker, hears its progress, holds it to its limits, and leaves nothing of it behind."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.errors import CompileFailedError
from service.explainers.worker import Order

log = logging.getLogger(__name__)

_LINE_BYTES = 1 << 20
_WATCH_S = 0.2
_TAIL_BYTES = 4000  # of what the worker writes on stderr
_LAST_WORDS_S = 1.0  # for those of a worker that has ended
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

OnProgress = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """Where a compile is: `done` of `total` steps of a stage of the compiler."""

    stage: str
    done: int
    total: int


async def compile_entry(order: Order, timeout_s: float, on_progress: OnProgress) -> int:
    """Runs the order in a process of its own; the bytes of the entry it wrote.

    Cancelled, it ends the process before it returns. What a failed one wrote is left to the caller.

    Raises:
        CompileFailedError: the compiler refuses, or the process went over a limit or was killed.
    """
    async with _worker() as process:
        try:
            async with asyncio.timeout(timeout_s):
                return await _outcome(process, order, on_progress)
        except TimeoutError as error:
            raise CompileFailedError(
                f"it took longer than {timeout_s:g} s (setting compile_timeout_s). Ask for less: fewer "
                "references, targets or steps"
            ) from error


@contextlib.asynccontextmanager
async def _worker() -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "service.explainers.worker",
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


async def _outcome(process: Process, order: Order, on_progress: OnProgress) -> int:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise CompileFailedError("the compile process has no pipes")  # never so: they were asked for
    process.stdin.write(order.to_line())  # and it stays open: its end tells the worker that nobody waits
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
    finally:  # nothing to wait for in here: whoever gave up kills the process next
        watch.cancel()
        tail.cancel()
    if "written" in last:
        return int(last["written"])
    if "error" in last:
        raise CompileFailedError(last["error"])
    raise CompileFailedError(_ending(status, watch, tail, order))


def _ending(status: int, watch: "asyncio.Task[bool]", tail: "asyncio.Task[str]", order: Order) -> str:
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
    """Kills the process when it holds more memory than it may, and returns True then."""
    while (held := _resident_bytes(process.pid)) is not None:
        if held > memory_bytes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return True
        await asyncio.sleep(_WATCH_S)
    return False


def _resident_bytes(pid: int) -> int | None:
    """None where the process is gone, or the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return None


async def _tail(stream: asyncio.StreamReader) -> str:
    """The end of what was written, in bounded memory."""
    kept = b""
    while chunk := await stream.read(1 << 16):
        kept = (kept + chunk)[-_TAIL_BYTES:]
    return kept.decode(errors="replace")
