"""OpenTelemetry traces: a request's span, with its waiting and running in it. An optional extra.

A caller's `traceparent` continues here, and the gateway sends one to the server behind it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rationale.distribution import install
from rationale.errors import InvalidOptionError
from rationale_service.observability import context as contexts
from rationale_service.observability.context import RequestContext
from rationale_service.observability.metrics import labels_of
from rationale_service.observability.otlp import CLOSE_S, resource

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

_SERVER_ERRORS = 500


class Tracing:
    """The spans of an app's requests."""

    def __init__(self, provider: "TracerProvider", exporter: "SpanExporter") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._exporter = exporter
        self._tracer = provider.get_tracer("rationale")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, context: RequestContext) -> None:
        """Open the request's span, a child of the caller's; forwarded requests are its children."""
        from opentelemetry import trace

        carrier = {} if context.traceparent is None else {contexts.TRACEPARENT: context.traceparent}
        above = self._propagator.extract(carrier)
        # The path holds names that callers make up, so the span is named after its protocol until its model
        # is known.
        span = self._tracer.start_span(context.protocol, above, trace.SpanKind.SERVER)
        onward: dict[str, str] = {}
        self._propagator.inject(onward, trace.set_span_in_context(span))
        context.traceparent = onward.get(contexts.TRACEPARENT, context.traceparent)
        context.span = span

    def end(self, context: RequestContext) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import ReadableSpan

        span: Span = context.span
        ended_ns = time.time_ns()
        if isinstance(span, ReadableSpan):  # other spans are not recorded
            self._describe(context, span)
            within_span = trace.set_span_in_context(span)
            epoch_ns = ended_ns - time.monotonic_ns()
            began_ns = span.start_time or 0

            def within(at_s: float) -> int:
                """Keep a part within its request, although the two clocks are not read at one moment."""
                return min(max(epoch_ns + int(at_s * 1e9), began_ns), ended_ns)

            for name, parts in (("queue", context.waited), ("compute", context.computed)):
                for start_s, end_s in parts:
                    span_of_part = self._tracer.start_span(name, within_span, start_time=within(start_s))
                    span_of_part.end(within(end_s))
        span.end(ended_ns)

    def close(self) -> None:
        """Send the remaining spans, within a bounded time.

        The provider itself bounds only each batch, through the exporter.
        """
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_S)
        self._exporter.shutdown()  # ends a running call

    @staticmethod
    def _describe(context: RequestContext, span: "Span") -> None:
        from opentelemetry.trace import StatusCode

        model, verb = labels_of(context.entry, decides=context.decides)
        if model:
            span.update_name(f"{verb} {model}")
            span.set_attribute("rationale.model", model)
            span.set_attribute("rationale.verb", verb)
            span.set_attribute("rationale.rows", context.rows)
        span.set_attribute("rationale.request_id", context.request_id)
        span.set_attribute("http.response.status_code", context.status)
        if context.problem is not None:
            span.set_attribute("error.type", context.problem)
        if context.status >= _SERVER_ERRORS:
            span.set_status(StatusCode.ERROR)


def create_tracing(
    endpoint: str,
    ratio: float,
    count: Callable[[], None] = lambda: None,
    exporter: "SpanExporter | None" = None,
) -> Tracing:
    """Trace to the OpenTelemetry collector at `endpoint`, such as http://localhost:4317 (OTLP over gRPC).

    Args:
        ratio: share of the traces beginning here to keep; a caller's own decision takes precedence.
        count: function that counts each batch of spans that the collector does not take.
        exporter: exporter to use instead of OTLP.

    Raises:
        InvalidOptionError: if the extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        raise InvalidOptionError(f"traces need OpenTelemetry: {install('tracing')}") from error
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(ratio)),
        resource=resource(),
        shutdown_on_exit=False,
    )
    exporter = exporter or OTLPSpanExporter(endpoint, insecure=endpoint.startswith("http://"))
    send = exporter.export

    def export(spans: "Sequence[ReadableSpan]") -> SpanExportResult:
        sent = send(spans)
        if sent is not SpanExportResult.SUCCESS:
            count()
        return sent

    exporter.export = export  # type: ignore[method-assign]
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider, exporter)
