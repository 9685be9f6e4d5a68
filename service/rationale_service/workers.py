"""`rationale serve --workers N`: processes that share the ports, and one that supervises them.

Workers listen on the same addresses (SO_REUSEPORT), so that the kernel spreads connections over them.
Each is a replica of the state, as gateways on several machines are. The supervisor restarts a worker that
ends by itself or whose event loop stands still for 10 s; only the calls of that worker are lost.

    python -m rationale_service.workers   runs one worker: its instructions come on stdin, whose end stops it;
                                          it writes announcements, and a beat each second, to stdout
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
from prometheus_client.multiprocess import mark_process_dead
from pydantic import SecretStr

from rationale.errors import InvalidOptionError
from rationale.terminal import reporting_errors
from rationale_service.configuration import unknown_variables
from rationale_service.observability import logs
from rationale_service.observability.otlp import create_metrics_push
from rationale_service.observability.processes import metrics_of_processes
from rationale_service.process.listening import port_of, reserve
from rationale_service.process.signals import BEAT, BEAT_S, held_back
from rationale_service.settings import OFF, Settings

log = logging.getLogger(__name__)

Announce = Callable[[str], None]

READY = "ready on "  # start of the last line that a gateway announces
METRICS = "PROMETHEUS_MULTIPROC_DIR"  # folder in which prometheus_client adds up the processes' metrics
_PAUSE_S = 0.5  # before a worker restarts
_SILENT_BEATS = 10  # missed beats after which a serving worker is killed
_STARTING_BEATS = 30  # the same for a worker that stops before it has served
_FORWARDED = (signal.SIGTERM, signal.SIGINT)


def run_workers(settings: Settings, announce: Announce) -> int:
    """Serve with `settings.workers` processes until SIGTERM or Ctrl-C; return the exit status.

    On SIGHUP each of them reads the repository again.

    Raises:
        CannotListenError: if an address is taken.
        InvalidOptionError: if the system cannot share a port, or the extra for metrics is not installed.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise InvalidOptionError("this system cannot share a port among processes: serve with one worker")
    logs.configure(settings.log_level, settings.log_format)
    for sentence in unknown_variables():
        log.warning(sentence)
    with _reserved_ports(settings) as settings, tempfile.TemporaryDirectory(prefix="rationale-") as folder:
        metrics = Path(folder) / "metrics"
        metrics.mkdir()
        with _pushing(settings, metrics):
            return asyncio.run(_Supervisor(settings, metrics, Path(folder) / "started", announce).run())


@contextlib.contextmanager
def _pushing(settings: Settings, metrics: Path) -> Iterator[None]:
    """Send all workers' metrics if the settings ask for it; this process outlives each worker."""
    if settings.metrics_endpoint is None:
        yield
        return
    together = metrics_of_processes(str(metrics))
    push = create_metrics_push(settings.metrics_endpoint, settings.metrics_interval_s, lambda: together)
    push.start()
    try:
        yield
    finally:
        push.close()


@contextlib.contextmanager
def _reserved_ports(settings: Settings) -> Iterator[Settings]:
    """Reserve ports for the workers, even while none listens; yield the settings with these ports."""
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
        self._started = started  # file that appears once all workers have started
        self._announce = announce
        self._running: dict[int, Process] = {}
        self._beats_left: dict[int, int] = {}  # beats until a worker is killed, unless it sends one
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
                # One by one: a fault is reported once, and the first worker recovers the state.
                started = await ready
                lines = lines or started
            if lines:
                self._started.touch()
                for line in (*lines[:-1], f"{self._settings.workers} workers", lines[-1]):
                    self._announce(line)
        watchdog.cancel()
        return self._status

    async def _keep(self, index: int, ready: "asyncio.Future[list[str]]") -> None:
        """Run a worker, and replace it whenever it ends, until all workers stop."""
        while not self._stopping.is_set():
            process = self._running[index] = await self._start(index)
            if self._stopping.is_set():  # a stop has come meanwhile
                self._end(index)
            status = await self._watch(index, process, ready)
            del self._running[index]
            self._beats_left.pop(index, None)
            mark_process_dead(process.pid, str(self._metrics))  # its running requests have ended
            if not ready.done():  # it cannot start, and would fail again
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
                process_group=0,  # Ctrl-C in a terminal reaches this process alone, which stops the workers
            )
        if process.stdin is not None:  # always true
            instructions = {
                "index": index,
                "started": str(self._started),
                "settings": _as_json(self._settings),
            }
            process.stdin.write(json.dumps(instructions).encode() + b"\n")  # stdin stays open
        return process

    async def _watch(self, index: int, process: Process, ready: "asyncio.Future[list[str]]") -> int:
        """Set `ready` to the lines that the process announces; return its status after it ends."""
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
        return status if status >= 0 else 128 - status  # a shell's status for a signal

    async def _kill_silent(self) -> None:
        """Kill workers that send no beats: nothing else ends one that hangs or is stopped (SIGSTOP).

        It counts its own beats instead of time: if the whole machine paused, no worker is to blame.
        """
        while True:
            await asyncio.sleep(BEAT_S)
            for index in [*self._beats_left]:
                self._beats_left[index] -= 1
                if self._beats_left[index] == 0:
                    log.error("worker %d shows no life, and is killed", index)
                    self._signal(index, signal.SIGKILL)

    def _stop(self) -> None:
        """Stop all workers. A second call makes them abandon running requests, as a second signal does."""
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
    instructions = json.loads(sys.stdin.readline())
    gc.disable()  # as in `rationale serve`
    with reporting_errors():
        from rationale_service.server import run_server

        announce = functools.partial(print, flush=True)
        settings, started = Settings(**instructions["settings"]), Path(instructions["started"])
        run_server(settings, announce, started=started, is_first=instructions["index"] == 0)


if __name__ == "__main__":
    typer.run(main)
