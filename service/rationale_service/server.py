"""The gateway in this process until a signal: listen, load, announce, drain."""

import asyncio
import contextlib
import gc
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from rationale_service.app import create_admin_app, create_app, create_backend
from rationale_service.configuration import unknown_variables
from rationale_service.engine.dataplane import DataPlane
from rationale_service.observability import logs
from rationale_service.observability.metrics import Metrics
from rationale_service.process.ending import LastResort
from rationale_service.process.listening import CannotListenError, listen
from rationale_service.process.signals import Signals
from rationale_service.protocols.gateway import Gateway
from rationale_service.protocols.grpc.server import GrpcServer
from rationale_service.protocols.rest.server import HttpServer
from rationale_service.security.keys import is_loopback, read_keys
from rationale_service.security.tls import ServerTls, server_tls
from rationale_service.security.watch import WatchedSource, watch, watched_files
from rationale_service.settings import Settings

log = logging.getLogger(__name__)

Announce = Callable[[str], None]


_Listeners = dict[str, socket.socket]  # sockets by the flag of their port


@dataclass(frozen=True)
class _Servers:
    public: HttpServer
    admin: HttpServer | None
    grpc: GrpcServer | None

    @property
    def all(self) -> list[HttpServer | GrpcServer]:
        """All servers; the public one, which stops the data plane, follows the admin one."""
        return [end for end in (self.admin, self.public, self.grpc) if end is not None]

    @property
    def serving(self) -> list[asyncio.Task[None]]:
        return [end.serving for end in (self.admin, self.public) if end is not None]


# Longest wait of a finished run's thread for a busy event loop; Python's default is 5 ms.
_SWITCH_S = 0.0005
_COLLECT_AFTER = (10_000, 20, 20)  # thresholds of the generations: objects, then collections
_FIRST = asyncio.FIRST_COMPLETED
_UNDRAINED_S = 8.5  # longest time from the end of the drain to the process's end
_STOPPED_S = 3.0  # the same, once all but hanging threads has stopped


def run_server(
    settings: Settings, announce: Announce, *, started: Path | None = None, is_first: bool = True
) -> None:
    """Serve until SIGTERM or Ctrl-C; return after the running requests are answered.

    Args:
        started: file that appears once all processes that share the ports (`workers`) have started; none is
            ready before that. None for a single process.
        is_first: True for the process that logs warnings about the settings.

    Raises:
        RationaleError: if the repository is broken, a model cannot be loaded, Triton does not answer,
            a key or certificate is unusable, or the process cannot listen on an address.
    """
    logs.configure(settings.log_level, settings.log_format)
    is_worker = started is not None
    if not is_worker:
        for sentence in unknown_variables():
            log.warning(sentence)
    metrics = Metrics()
    tls = server_tls(settings)
    all_started = started.exists if started is not None else lambda: True
    app = create_app(settings, create_backend(settings, metrics), metrics, all_started=all_started)
    with _listening(settings, is_shared=is_worker) as listeners:
        if is_first:
            for sentence in _open_doors(settings):
                log.warning(sentence)
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(_serve(app, settings, listeners, tls, announce, is_worker=is_worker))


@contextlib.contextmanager
def _listening(settings: Settings, *, is_shared: bool) -> Iterator[_Listeners]:
    """Listen on every port. Raises CannotListenError, which names every port that fails."""
    listeners: _Listeners = {}
    refused: list[str] = []
    with contextlib.ExitStack() as sockets:
        for flag, (host, port) in settings.ends.items():
            if port is None:
                continue
            try:
                listeners[flag] = sockets.enter_context(listen(host, port, flag, shared=is_shared))
            except CannotListenError as error:
                refused.append(str(error))
        if refused:
            raise CannotListenError("\n".join(dict.fromkeys(refused)))
        yield listeners


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop if it is installed (not on Windows).

    It takes half as long per request as asyncio's own.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _open_doors(settings: Settings) -> list[str]:
    """Return warnings for a gateway that is open to a network without keys."""
    if settings.keys_file or settings.keys or settings.jwt_issuer:
        return []
    doors = []
    if not is_loopback(settings.host):
        doors.append(
            f"everybody who reaches {settings.host} may ask the models: there are no keys. Old decisions are "
            "not read by HTTP without them"
        )
    if not is_loopback(settings.admin_end):
        doors.append(
            f"the admin API is closed on {settings.admin_end} until there are keys (docs/security.md)"
        )
    return doors


async def _serve(
    app: FastAPI,
    settings: Settings,
    listeners: _Listeners,
    tls: ServerTls | None,
    announce: Announce,
    *,
    is_worker: bool,
) -> None:
    sys.setswitchinterval(_SWITCH_S)
    gateway: Gateway = app.state.gateway
    watched = _watched_sources(gateway, tls)
    tasks: set[asyncio.Task[None]] = set()

    def reload() -> None:
        tasks.update(asyncio.ensure_future(each.read()) for each in watched)

    signals = Signals(reload)
    if is_worker:
        signals.stop_with(sys.stdin)
        signals.show_life(sys.stdout)
    ends = await _start(app, settings, listeners, tls)
    tasks.update(asyncio.create_task(watch(each)) for each in watched)
    try:
        await _first_of(asyncio.ensure_future(ends.public.started()), signals.stop)
        await _first_of(gateway.loading, signals.stop, *ends.serving)
        if gateway.loading.done():
            gateway.loading.result()
            if ends.grpc is not None:
                await ends.grpc.start()
            _settle_heap()
            _note_start(gateway.metrics)
            announce_ready(gateway, ends, announce)
            await _first_of(signals.stop, *ends.serving)
    finally:
        for task in tasks:
            task.cancel()
        await _stop(gateway.plane, ends, signals, settings)


async def _start(app: FastAPI, settings: Settings, listeners: _Listeners, tls: ServerTls | None) -> _Servers:
    """Start all servers at once. Each is ready when the models are; gRPC callers wait until then.

    Raises CannotListenError.
    """
    grpc = admin = None
    if "--grpc-port" in listeners:
        shared = settings.workers > 1
        listener = listeners["--grpc-port"]
        grpc = GrpcServer(app.state.gateway, listener, tls, shared=shared)
    public = HttpServer(app, listeners["--port"], tls, lifespan=True)
    if "--admin-port" in listeners:
        admin = HttpServer(create_admin_app(app), listeners["--admin-port"], tls, lifespan=False)
    return _Servers(public, admin, grpc)


def _watched_sources(gateway: Gateway, tls: ServerTls | None) -> list[WatchedSource]:
    """Return the watched repository, certificates and keys."""
    live, settings = gateway.live, gateway.settings
    watched = [WatchedSource(live.look, live.scan, settings.watch_s)]
    if tls is not None:
        watched.append(watched_files(tls.certificates.files, tls.reload))
    if settings.keys_file is not None:
        watched.append(
            watched_files((settings.keys_file,), lambda: gateway.interceptor.take_keys(read_keys(settings)))
        )
    return watched


async def _stop(plane: DataPlane, ends: _Servers, signals: Signals, settings: Settings) -> None:
    """Stop in order: unready, refuse, drain, stop; a second signal abandons running requests.

    After the first step load balancers notice, while requests are still answered. Before it refuses any, the
    gateway sends callers elsewhere: it accepts no new connections and closes each one after its next answer.
    """
    last_resort = LastResort()
    last_resort.set(settings.shutdown_delay_s + settings.drain_timeout_s + _UNDRAINED_S, 1)
    plane.leave()
    if signals.stop.done() and plane.serves:
        await signals.hurried(settings.shutdown_delay_s)
    end_s = time.monotonic() + settings.drain_timeout_s
    if plane.serves:
        leaving = [ends.public.leave()]
        if ends.grpc is not None:
            leaving.append(ends.grpc.leave(settings.drain_timeout_s))
        await asyncio.gather(*leaving)
    plane.refuse_new_work()
    idle = asyncio.ensure_future(plane.idle())
    left_s = max(end_s - time.monotonic(), 0.0)
    await asyncio.wait([idle, signals.hurry], timeout=left_s, return_when=_FIRST)
    idle.cancel()
    left_s = 0.0 if signals.hurry.done() else max(end_s - time.monotonic(), 0.0)
    for end in ends.all:
        signals.hurry.add_done_callback(end.give_up)
    await asyncio.gather(*(end.stop(left_s) for end in ends.all))
    last_resort.set(_STOPPED_S, 0)


async def _first_of(*waited: asyncio.Future[None]) -> None:
    await asyncio.wait(waited, return_when=_FIRST)


def _settle_heap() -> None:
    """Hide all present objects from the garbage collector, since they live until the process ends.

    The collector starts here: during the start it would take a fifth of the time and find nothing. A full
    collection of these objects would stop the event loop for longer than any request takes
    (docs/serving-performance.md). Requests leave little garbage, so it runs less often than by default.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    gc.enable()


def _note_start(metrics: Metrics) -> None:
    """Record the time since the process started, if the system reports it."""
    started_s = metrics.registry.get_sample_value("process_start_time_seconds")
    if started_s is not None:
        metrics.cold_start_s.set(time.time() - started_s)


def announce_ready(gateway: Gateway, ends: _Servers, announce: Announce) -> None:
    """Print the models and, as the last line, the HTTP address, for which scripts wait."""
    plane, remote = gateway.plane, gateway.remote
    registry = plane.repository
    if remote is not None and remote.fault is not None:
        announce(remote.fault)
    for name in registry.unserved:
        announce(f"model {name} is not served: {registry.why_unserved(name)}")
    for entry in registry.entries.values():
        if entry.manifest is None:
            announce(f"model {entry.name}")
        else:
            announce(f"model {entry.name}: explains {entry.manifest.model} by {entry.manifest.method.name}")
    if registry.made_by_others:
        announce(registry.made_by_others)
    if gateway.trail.fault is not None:
        announce(
            "decisions are refused until the audit trail can be written (RATIONALE_STATE or RATIONALE_AUDIT "
            f"say where it is): {gateway.trail.fault}"
        )
    if ends.grpc is not None:
        announce(f"gRPC on {ends.grpc.address}")
    if ends.admin is not None:
        announce(f"admin API on {ends.admin.url}")
    devices = ", ".join(plane.backend.devices())
    where = f" on {devices}" if devices else ""
    announce(f"{plane.backend.name}{where}; API at {ends.public.url}/docs; Ctrl-C stops")
    announce(f"ready on {ends.public.url}")
