"""What a gateway without a place answers: the same to many at once, so that most of it is made once.

It takes no task and reads no body: where more is asked than can be answered, refusals must leave the time
for answers.
"""

import time
from dataclasses import dataclass

from starlette.types import Scope

from service.api.body import TIMEOUT, timeout_header
from service.api.hot_routes import likely_entry
from service.api.http_headers import headers_of
from service.api.http_limits import Refusal
from service.api.middleware import HttpMiddleware, Refuser
from service.api.problems import told
from service.errors import QueueFullError, ServiceError
from service.inference.dataplane import DataPlane

_STANDS_S = 0.002  # a place that comes free is given away so much later at most
_MOST = 256  # verdicts; what callers write must not fill the memory

_ASKED = "rationale.asked"
_Asked = tuple[str, bytes | None]  # a path, and how long its caller waits


@dataclass(frozen=True, slots=True)
class _Verdict:
    """That whoever asks the same is refused, until `until_s` of the monotonic clock."""

    refuse: Refuser
    until_s: float


class Refusals:
    """Refuses requests to hot routes, where their headers tell that there is no place for them."""

    def __init__(self, plane: DataPlane, gate: HttpMiddleware) -> None:
        self._plane = plane
        self._gate = gate
        self._verdicts: dict[_Asked, _Verdict] = {}

    def __call__(self, scope: Scope, under_way: int) -> Refusal | None:
        """The answer to a request that is refused; None for any other.

        Args:
            scope: of it as much as `http_headers.scope_of` gives.
            under_way: requests that are not answered yet.
        """
        asked = scope.get(_ASKED)
        if asked is None:
            asked = scope[_ASKED] = scope["path"], headers_of(scope).get(TIMEOUT)
        now_s = time.monotonic()
        verdict = self._verdicts.get(asked)
        if verdict is None or verdict.until_s <= now_s:
            verdict = self._judge(scope, under_way, now_s + _STANDS_S)
            if verdict is None:
                return None
            if len(self._verdicts) >= _MOST:
                self._verdicts.clear()
            self._verdicts[asked] = verdict
        return verdict.refuse(scope)

    def _judge(self, scope: Scope, under_way: int, until_s: float) -> _Verdict | None:
        try:
            entry = likely_entry(self._plane.repository, scope)
        except ServiceError:
            return None  # told on the ordinary way
        if entry is None:
            return None
        try:
            self._plane.admit(entry, self._plane.deadline(timeout_header(scope)), under_way)
        except QueueFullError as error:
            return _Verdict(self._gate.refuser(entry, told(error, scope["path"])), until_s)
        except ServiceError:
            return None  # as above
        return None
