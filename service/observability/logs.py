"""Logs: the gateway's own, uvicorn's and gRPC's alike, as lines of JSON or for a terminal.

No line holds a feature's value: what a model or a caller's data brings into a text is taken out of it first
(`without_values`), and what is logged of a request is listed in `log_access`.
"""

import logging
import re
import sys
from typing import IO, Any

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from service.observability import context as exchange
from service.observability.context import RequestContext
from service.observability.metrics import labels_of

ACCESS = logging.getLogger("rationale.access")
_SHOWN = 200  # characters of a path
_NUMBER = re.compile(r"(?<![A-Za-z0-9_./:])[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|nan|inf)(?![A-Za-z_/])")


def configure(level: str, form: str, stream: IO[str] = sys.stderr) -> None:
    """Sends everything that this process logs to `stream`.

    Args:
        level: critical, error, warning, info or debug. Access lines are info.
        form: json, plain, or auto: plain on a terminal.
    """
    plain = form == "plain" or (form == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                _add_request_id,
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(_plain(stream) if plain else _json()),
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def log_access(request: RequestContext, seconds: float) -> None:
    """One line for a request that was answered; nothing but this is logged of it by default."""
    if not ACCESS.isEnabledFor(logging.INFO):
        return
    model, verb = labels_of(request.entry)
    fields: dict[str, Any] = {
        "request_id": request.request_id,
        "protocol": request.protocol,
        "operation": _printable(request.operation),
        "model": model,
        "verb": verb,
        "entry": request.entry.name if request.entry else "",
        "rows": request.rows,
        "status": request.status,
        "problem": request.problem,
        "caller": request.caller.name,
        "duration_ms": round(seconds * 1e3, 3),
        "queue_ms": round(request.queue_s * 1e3, 3),
        "compute_ms": round(request.compute_s * 1e3, 3),
    }
    ACCESS.info("request", extra={name: value for name, value in fields.items() if value not in ("", None)})


def without_values(text: object) -> str:
    """A foreign text, as of an error, with `#` in place of its numbers: they may be somebody's data."""
    return _NUMBER.sub("#", str(text))


def _printable(text: str) -> str:
    shown = text[:_SHOWN]
    return shown if shown.isprintable() else ascii(shown)


def _json() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_dumps)]


def _plain(stream: IO[str]) -> list[Processor]:
    """Tracebacks without local variables: those hold values."""
    return [
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            exception_formatter=structlog.dev.plain_traceback,
            timestamp_key="time",
        )
    ]


def _dumps(event: EventDict, **_: object) -> str:
    return orjson.dumps(event, default=str).decode()


def _add_request_id(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    running = exchange.current()
    if running is not None:
        event.setdefault("request_id", running.request_id)
    return event
