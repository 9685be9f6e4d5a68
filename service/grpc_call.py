"""One gRPC call for a method: its message, its limits, and what its caller is told of what goes wrong."""

import logging
from dataclasses import dataclass
from typing import Any

from service.dataplane import DataPlane
from service.errors import ModelFailedError, ServiceError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Call:
    """A request on its way: the message, and the seconds that the caller still waits (None: no limit)."""

    plane: DataPlane
    message: Any
    left_s: float | None


def refusal_of(error: Exception, what: str) -> ServiceError:
    """What the caller is told of `error`, which came up in `what`. Faults of ours go to the log."""
    if isinstance(error, ServiceError):
        if isinstance(error, ModelFailedError):
            log.error("%s: %s", what, error)
        return error
    log.error("%s", what, exc_info=error)
    return ServiceError("an unexpected fault; the server's log tells more")
