"""Spans of the requests of clients, exported with OpenTelemetry's protocol. Imported only by brokers with a `tracing_endpoint`.

A request that belongs to a trace has a span if that trace is sampled: its client has decided. Of the others, `tracing_sample_ratio` begin a
trace. A request without a span costs a look at its metadata and a comparison.

Source: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from raftmq.broker.base.config import BrokerConfig
from raftmq.trace_context import FIELD_BYTES_MAX, unpack_contexts

EXPORT_SECONDS: Final = 2.0
"""The time for a batch of spans, also for the last one, when the broker ends. Spans are not worth waiting for."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_ROOT: Final = Context()
_OK: Final = "OK"
Attributes = Mapping[str, str | int | float]
NO_ATTRIBUTES: Final[Attributes] = {}


class Tracing:
    """The tracing of one broker."""

    def __init__(
        self, provider: TracerProvider, sample_ratio: float, draw: Callable[[], float] = random.random
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("raftmq.broker")
        self._sample_ratio = sample_ratio
        self._draw = draw
        self.broker_id: Callable[[], int] = lambda: 0
        """Returns the broker's id. Set when the client port is created."""

    # ------------------------------------------------------------------------------------------------------------ requests

    def begin(self, method: str, metadata: Iterable[tuple[str, str | bytes]] = ()) -> Span | None:
        """Begin the span of a call with this metadata, or return None if it has none."""
        carrier = {
            key: value
            for key, value in metadata
            if isinstance(value, str) and len(value) <= FIELD_BYTES_MAX.get(key, -1)
        }
        parent = _PROPAGATOR.extract(carrier, _ROOT) if carrier else _ROOT
        found = trace.get_current_span(parent).get_span_context()
        return self._begin(method, parent, [], is_sampled=found.trace_flags.sampled if found.is_valid else None)

    def begin_linked(self, method: str, trace_contexts: bytes) -> Span | None:
        """Begin the span of a request with these contexts (as in `AppendRequest`), or return None if it has none."""
        found = [
            SpanContext(one.trace_id, one.span_id, is_remote=True, trace_flags=TraceFlags(one.flags))
            for one in unpack_contexts(trace_contexts)
        ]
        sampled = [one for one in found if one.trace_flags.sampled]
        parent = trace.set_span_in_context(NonRecordingSpan(sampled[0]), _ROOT) if sampled else _ROOT
        links = [Link(one) for one in sampled[1:]]
        return self._begin(method, parent, links, is_sampled=bool(sampled) if found else None)

    def _begin(self, method: str, parent: Context, links: list[Link], *, is_sampled: bool | None) -> Span | None:
        """Begin a span. `is_sampled` is the client's decision. None: the request belongs to no trace."""
        if not (self._draw() < self._sample_ratio if is_sampled is None else is_sampled):
            return None
        attributes: dict[str, str | int] = {
            "messaging.system": "raftmq",
            "rpc.method": method,
            "raftmq.broker_id": self.broker_id(),
        }
        return self._tracer.start_span(method, parent, SpanKind.SERVER, attributes, links)

    @staticmethod
    def end(span: Span, code: str, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """End the span of a request, with the name of its error code, or OK."""
        span.set_attributes(attributes)
        if code != _OK:
            span.set_attribute("error.type", code)
            span.set_status(Status(StatusCode.ERROR, code))
        span.end()

    @contextmanager
    def call(self, method: str, metadata: Iterable[tuple[str, str | bytes]] = ()) -> Iterator[None]:
        """Answer a call within its span, if it has one. `record_outcome` and `add_attributes` add to it."""
        span = self.begin(method, metadata)
        if span is None:
            yield
            return
        with self.entered(span):
            try:
                yield
            finally:
                span.end()

    @staticmethod
    @contextmanager
    def entered(span: Span) -> Iterator[None]:
        """Make a span the active one, whose ids are in log lines."""
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield

    @staticmethod
    def record_outcome(code: str) -> None:
        """Record the outcome of the active call."""
        span = trace.get_current_span()
        if code != _OK and span.is_recording():
            span.set_attribute("error.type", code)
            span.set_status(Status(StatusCode.ERROR, code))

    @staticmethod
    def add_attributes(attributes: Callable[[], Attributes]) -> None:
        """Add attributes to the span of the active call, which are computed only if there is one."""
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attributes(attributes())

    def close(self) -> None:
        """Export what is left, in at most `EXPORT_SECONDS`. Blocks.

        OpenTelemetry itself waits for up to 30 s for a collector that does not answer.
        """
        ending = threading.Thread(target=self._provider.shutdown, name="raftmq-tracing-end", daemon=True)
        ending.start()
        ending.join(EXPORT_SECONDS)


def add_trace_ids(logger: object, method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Add the ids of the active span to a log line. A processor of structlog."""
    span = trace.get_current_span()
    if span.is_recording():  # a task that a request has started goes on after its span
        found = span.get_span_context()
        event["trace_id"] = trace.format_trace_id(found.trace_id)
        event["span_id"] = trace.format_span_id(found.span_id)
    return event


def start_tracing(config: BrokerConfig) -> Tracing:
    """Start to export spans in the background. OpenTelemetry's own variables (`OTEL_*`) set everything that `config` does not.

    Raises `ValueError` for a variable with a value that OpenTelemetry does not accept.
    """
    try:
        return Tracing(_exporting_provider(config), config.tracing_sample_ratio)
    except Exception as error:
        raise ValueError(f"OpenTelemetry cannot start; check the variables OTEL_*: {error}") from error


def _exporting_provider(config: BrokerConfig) -> TracerProvider:
    own = Resource({SERVICE_NAME: "raftmq-broker", "service.instance.id": f"{config.host_label()}/{config.listen}"})
    named = own.merge(OTELResourceDetector().detect())
    if os.environ.get("OTEL_SERVICE_NAME"):
        named = named.merge(Resource({SERVICE_NAME: os.environ["OTEL_SERVICE_NAME"]}))
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=config.tracing_endpoint, timeout=EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
