"""`rationale serve --workers N`: processes that share the ports, watched over by one that only does that.

Each worker listens on the same addresses (SO_REUSEPORT), so that the kernel spreads connections over them.
Each is a replica of the state, as gateways on several machines are. A worker that ends by itself is started
again, and so is one whose event loop stands still for 10 s; the calls that it had are lost, no others.

    python -m rationale_service.workers   is one of them: what to do comes on stdin; at its end nobody waits.
                                          Its stdout has what it announces, and a sign of life each second
"""

import asyncio
import contextlib
import functools
import gc
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator
from pathlib import Path

import typer
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from pydantic import SecretStr

from rationale.errors import InvalidOptionError
from rationale.terminal import reporting_errors
from rationale_service.configuration import unknown_variables
from rationale_service.observability import logs
from rationale_service.observability.otlp import create_metrics_push
from rationale_service.process.listening import port_of, reserve
from rationale_service.process.signals import BEAT, BEAT_S, held_back
from rationale_service.settings import OFF, Settings

log = logging.getLogger(__name__)

Announce = Callable[[str], None]

READY = "ready on "  # begins the last line that a gateway announces
METRICS = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus_client adds up what processes count
_PAUSE_S = 0.5  # before a worker is started again
_SILENT_BEATS = 10  # of one that serves, until it is killed: its callers wait in vain
_STARTING_BEATS = 30  # of one that is to stop before it has served
_FORWARDED = (signal.SIGTERM, signal.SIGINT)


def run_workers(settings: Settings, announce: Announce) -> int:
    """Serve by `settings.workers` processes until SIGTERM or Ctrl-C; returns the status to exit with.

    SIGHUP has each of them read the repository again.

    Raises:
        CannotListenError: an address is taken.
        InvalidOptionError: the system cannot share a port, or what metrics are sent by is not installed.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise InvalidOptionError("this system cannot share a port among processes: serve with one worker")
    logs.configure(settings.log_level, settings.log_format)
    for sentence in unknown_variables():
        log.warning(sentence)
    with _reserved(settings) as settings, tempfile.TemporaryDirectory(prefix="rationale-") as folder:
        metrics = Path(folder) / "metrics"
        metrics.mkdir()
        with _pushing(settings, metrics):
            return asyncio.run(_Supervisor(settings, metrics, Path(folder) / "started", announce).run())


@contextlib.contextmanager
def _pushing(settings: Settings, metrics: Path) -> Iterator[None]:
    """Send what all workers count, where that is asked for: from here, which outlives each of them."""
    if settings.metrics_endpoint is None:
        yield
        return
    together = CollectorRegistry()
    MultiProcessCollector(together, str(metrics))
    push = create_metrics_push(settings.metrics_endpoint, settings.metrics_interval_s, lambda: together)
    push.start()
    try:
        yield
    finally:
        push.close()


@contextlib.contextmanager
def _reserved(settings: Settings) -> Iterator[Settings]:
    """Reserve ports for the workers, which stay ours while none listens; yields the settings with them."""
    ports: dict[str, int | str] = {}
    with contextlib.ExitStack() as sockets:
        for flag, (host, port) in settings.ends.items():
            name = flag.removeprefix("--").replace("-", "_")
            if name == "grpc_port":
                ports[name] = OFF
            if port is not None:
                ports[name] = port_of(sockets.enter_context(reserve(host, port, flag)))
        yield settings.model_copy(update=ports)


class _Supervisor:
    def __init__(self, settings: Settings, metrics: Path, started: Path, announce: Announce) -> None:
        self._settings = settings
        self._metrics = metrics
        self._started = started  # a file that is there once all workers have started
        self._announce = announce
        self._running: dict[int, Process] = {}
        self._beats_left: dict[int, int] = {}  # until a worker is killed, unless it shows life before
        self._stopping = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in _FORWARDED:
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        lines: list[str] = []
        watchdog = asyncio.create_task(self._kill_silent())
        async with asyncio.TaskGroup() as workers:
            for index in range(self._settings.workers):
                ready: asyncio.Future[list[str]] = loop.create_future()
                workers.create_task(self._keep(index, ready))
                # One after the other: what is wrong is told once, and the first puts the state in order.
                started = await ready
                lines = lines or started
            if lines:
                self._started.touch()
                for line in (*lines[:-1], f"{self._settings.workers} workers", lines[-1]):
                    self._announce(line)
        watchdog.cancel()
        return self._status

    async def _keep(self, index: int, ready: "asyncio.Future[list[str]]") -> None:
        """Run a worker, and another one in its place when it ends, until all are to stop."""
        while not self._stopping.is_set():
            process = self._running[index] = await self._start(index)
            if self._stopping.is_set():  # meanwhile
                self._end(index)
            status = await self._watch(index, process, ready)
            del self._running[index]
            self._beats_left.pop(index, None)
            mark_process_dead(process.pid, str(self._metrics))  # what it had under way ended with it
            if not ready.done():  # it cannot start, and would not the next time
                ready.set_result([])
                self._status = self._status or status
                self._stop()
            elif not self._stopping.is_set():
                log.error("worker %d ended with status %d: it is started again", index, status)
                await asyncio.sleep(_PAUSE_S)
            else:
                self._status = self._status or status
        if not ready.done():
            ready.set_result([])

    async def _start(self, index: int) -> Process:
        with held_back():
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "rationale_service.workers"),
                stdin=PIPE,
                stdout=PIPE,
                env={**os.environ, METRICS: str(self._metrics)},
                process_group=0,  # Ctrl-C in a terminal is for this process, which tells them
            )
        if process.stdin is not None:  # always: it was asked for
            order = {
                "index": index,
                "started": str(self._started),
                "settings": _as_json(self._settings),
            }
            process.stdin.write(json.dumps(order).encode() + b"\n")  # and it stays open
        return process

    async def _watch(self, index: int, process: Process, ready: "asyncio.Future[list[str]]") -> int:
        """Set `ready` to what the process announces; returns its status when it has ended."""
        lines: list[str] = []
        while process.stdout is not None and (line := await process.stdout.readline()):
            if index in self._beats_left:
                self._beats_left[index] = _SILENT_BEATS
            if line == BEAT:
                continue
            lines.append(line.decode().rstrip("\n"))
            if lines[-1].startswith(READY):
                self._beats_left[index] = _SILENT_BEATS
                if not ready.done():
                    ready.set_result(lines)
        status = await process.wait()
        return status if status >= 0 else 128 - status  # as a shell tells of a signal

    async def _kill_silent(self) -> None:
        """Kill workers that show no life: one that hangs, or is stopped (SIGSTOP), ends by nothing else.

        It counts beats of its own: if all processes stood still together, no worker is to blame.
        """
        while True:
            await asyncio.sleep(BEAT_S)
            for index in [*self._beats_left]:
                self._beats_left[index] -= 1
                if self._beats_left[index] == 0:
                    log.error("worker %d shows no life, and is killed", index)
                    self._signal(index, signal.SIGKILL)

    def _stop(self) -> None:
        """Stop all workers. A second time has them give up what runs, as a second signal does."""
        self._stopping.set()
        for index in self._running:
            self._end(index)

    def _end(self, index: int) -> None:
        self._beats_left.setdefault(index, _STARTING_BEATS)
        self._signal(index, signal.SIGTERM)

    def _reload(self) -> None:
        for index in self._running:
            self._signal(index, signal.SIGHUP)

    def _signal(self, index: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._running[index].send_signal(number)


def _as_json(settings: Settings) -> dict[str, object]:
    values = settings.model_dump(mode="json", exclude_unset=True)
    return values | {
        name: value.get_secret_value() for name, value in settings if isinstance(value, SecretStr)
    }


def main() -> None:
    order = json.loads(sys.stdin.readline())
    gc.disable()  # as in `rationale serve`
    with reporting_errors():
        from rationale_service.server import run_server

        announce = functools.partial(print, flush=True)
        settings, started = Settings(**order["settings"]), Path(order["started"])
        run_server(settings, announce, started=started, is_first=order["index"] == 0)


if __name__ == "__main__":
    typer.run(main)
