"""One request on its way through the gateway, over HTTP or gRPC.

Each layer notes its facts here: the protocols the caller, the data plane the entry, the backends the times
of waiting and running. Metrics, logs and traces read them when the request ends.
"""

import itertools
import re
import secrets
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from rationale_service.repository.entry import Entry
from rationale_service.security.keys import ANY_KEY, Caller

REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"
CLIENT_LEFT = 499  # nginx's status for a request whose caller did not wait
_ID = re.compile(r"[!-~]{1,128}")  # visible ASCII: headers and logs contain it unchanged
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PROCESS = secrets.token_hex(8)
_numbers = itertools.count()
_ANYONE = Caller("", ANY_KEY)


@dataclass(eq=False, slots=True)
class RequestContext:
    """A request. Times are `time.monotonic`'s; `waited` and `computed` hold (from, to) of its runs."""

    protocol: str  # http or grpc
    operation: str  # POST /v2/models/credit/infer, or /inference.GRPCInferenceService/ModelInfer
    request_id: str
    traceparent: str | None = None
    caller: Caller = _ANYONE
    entry: Entry | None = None
    decides: bool = False  # True if the explain entry is to decide
    arm: str | None = None  # default or canary, if the model has one
    rows: int = 0
    problem: str | None = None  # slug of the error
    status: int = CLIENT_LEFT  # until the answer
    began_s: float = field(default_factory=time.monotonic)
    waited: list[tuple[float, float]] = field(default_factory=list)
    computed: list[tuple[float, float]] = field(default_factory=list)
    span: Any = None  # tracing's span, if tracing is on

    @classmethod
    def of(cls, protocol: str, operation: str, headers: Mapping[str, str]) -> "RequestContext":
        """Return the context of a request that begins now.

        Args:
            headers: its headers; an id is new unless the caller's is safe in a header and a log, and a trace
                must follow W3C's Trace Context.
        """
        own_id, trace = headers.get(REQUEST_ID, ""), headers.get(TRACEPARENT, "")
        return cls(
            protocol,
            operation,
            own_id if _ID.fullmatch(own_id) else f"{_PROCESS}{next(_numbers):016x}",
            trace if _TRACEPARENT.fullmatch(trace) else None,
        )

    @property
    def trace(self) -> dict[str, str]:
        """Ids of the trace and the span in OpenTelemetry's log format; empty without a trace."""
        if self.traceparent is None:
            return {}
        _, trace, span, _ = self.traceparent.split("-")
        return {"trace_id": trace, "span_id": span}

    @property
    def queue_s(self) -> float:
        """Total waiting time of its runs."""
        return sum(end_s - start_s for start_s, end_s in self.waited)

    @property
    def compute_s(self) -> float:
        return sum(end_s - start_s for start_s, end_s in self.computed)

    def phases(self, seconds: float) -> Mapping[str, float]:
        """Return the request's duration, `seconds`, split into Triton's phases.

        `compute_input` is the time before the queue (reading, decoding, checks), or all of it if nothing ran;
        `compute_output` is the time after the run.
        """
        input_s = self.waited[0][0] - self.began_s if self.waited else seconds
        parts = {"compute_input": input_s, "queue": self.queue_s, "compute_infer": self.compute_s}
        return {**parts, "compute_output": max(seconds - sum(parts.values()), 0.0)}

    def ran(self, arrived_s: float, started_s: float, ended_s: float) -> None:
        """Note a run of (a part of) the request: the times when it entered the queue, started and ended."""
        self.waited.append((arrived_s, started_s))
        self.computed.append((started_s, ended_s))

    def about(self, entry: Entry, rows: int = 0) -> None:
        """Note the request's entry and its number of rows."""
        self.entry = entry
        self.rows = rows


_current: ContextVar[RequestContext | None] = ContextVar("context", default=None)
bind = _current.set
unbind = _current.reset


def current() -> RequestContext | None:
    """Return the running task's context; None outside of a request."""
    return _current.get()


def note_problem(slug: str, status: int) -> None:
    """Note the reason for which the running task's request gets no result; `status` is HTTP's."""
    context = _current.get()
    if context is not None:
        context.problem = slug
        context.status = status


def note_run(arrived_s: float, started_s: float, ended_s: float) -> None:
    """Note a run (`RequestContext.ran`) of the running task's request, if there is one."""
    context = _current.get()
    if context is not None:
        context.ran(arrived_s, started_s, ended_s)


def headers_to_forward() -> dict[str, str]:
    """Return headers for a server behind the gateway: the request's id and its trace."""
    context = _current.get()
    if context is None:
        return {}
    headers = {REQUEST_ID: context.request_id}
    if context.traceparent is not None:
        headers[TRACEPARENT] = context.traceparent
    return headers
