"""Logs of the gateway, uvicorn and gRPC, as lines of JSON or for a terminal.

No line holds a feature's value: `without_values` first removes numbers from texts of models and callers.
`rationale_service.protocols.interceptor` lists the fields that are logged of a request.
"""

import logging
import re
import sys
from datetime import UTC, datetime
from typing import IO, Any

import orjson

from rationale_service.observability import context

_OF_EVERY_RECORD = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}
_NUMBER = re.compile(r"(?<![A-Za-z0-9_./:])[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|nan|inf)(?![A-Za-z_/])")


def configure(level: str, form: str, stream: IO[str] = sys.stderr) -> None:
    """Send all logs of this process to `stream`.

    Args:
        level: critical, error, warning, info or debug; access lines are info.
        form: json, plain, or auto (plain on a terminal, else json).
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Lines(plain=form == "plain" or (form == "auto" and stream.isatty())))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _Lines(logging.Formatter):
    """Formatter of log lines. Tracebacks omit local variables, which hold values."""

    def __init__(self, *, plain: bool) -> None:
        super().__init__()
        self._written = _plain if plain else _json

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **{
                name: value
                for name, value in record.__dict__.items()
                if name not in _OF_EVERY_RECORD and not name.startswith("_")  # Ray adds one
            },
        }
        running = context.current()
        if running is not None:
            event.setdefault("request_id", running.request_id)
            event.update(running.trace)
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return self._written(event)


def without_values(text: object) -> str:
    """Replace the numbers in a foreign text, such as an error, by `#`: they may be somebody's data."""
    return _NUMBER.sub("#", str(text))


def _json(event: dict[str, Any]) -> str:
    return orjson.dumps(event, default=str).decode()


def _plain(event: dict[str, Any]) -> str:
    time, level, logger, text = (event.pop(name) for name in ("time", "level", "logger", "event"))
    trace = f"\n{event.pop('exception')}" if "exception" in event else ""
    more = "".join(f" {name}={value}" for name, value in event.items())
    return f"{time} [{level}] {text} [{logger}]{more}{trace}"
