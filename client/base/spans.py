"""Spans of a client, with the names and attributes of OpenTelemetry's semantic conventions for messaging.

Imported only by programs that trace (`active_tracing`). Nothing is traced that no trace leads to: a send has a span if the program has an
active one, a receipt also if a record carries a context. Only a handler of a worker always has one.

Source: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/ and https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, cast

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.errors import RaftMQError
from raftmq.trace_context import TraceContext, pack_context
from raftmq.types import Record

LINKS_MAX: Final = 128
"""Links of a span to the spans that sent its records, as many as OpenTelemetry's SDK keeps by default."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_FIELDS: Final = ("traceparent", "tracestate")
_ROOT: Final = Context()
_Headers = tuple[tuple[str, bytes | None], ...]


class Traced(Protocol):
    """A record or a message: something with headers."""

    @property
    def headers(self) -> _Headers:
        """Return its headers."""
        ...


def context_of(traced: Traced) -> Context:
    """Return the OpenTelemetry context that a record or a message carries in its headers, or an empty one.

    ::

        with tracer.start_as_current_span("book a flight", context=context_of(record)):
            ...
    """
    return _context_in(traced.headers) or _ROOT


def _context_in(headers: _Headers) -> Context | None:
    carrier = {name: value.decode("latin-1") for name, value in headers if name in _FIELDS and value is not None}
    return _PROPAGATOR.extract(carrier, _ROOT) if _FIELDS[0] in carrier else None


def _link_in(headers: _Headers) -> Link | None:
    context = _context_in(headers)
    found = trace.get_current_span(context).get_span_context() if context is not None else None
    return Link(found) if found is not None and found.is_valid else None


@contextmanager
def entered(carrier: Mapping[str, str]) -> Iterator[None]:
    """Run a block in the context that `Tracing.carrier` returned in another process."""
    token = contexts.attach(_PROPAGATOR.extract(carrier))
    try:
        yield
    finally:
        contexts.detach(token)


def fail(span: Span, kind: str, message: str, error: BaseException | None = None) -> None:
    """Mark a span as failed. `kind` is a short name of the error."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, message))
    if error is not None:
        span.record_exception(error)


def _headers_of(found: SpanContext) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a span's context, as the propagator writes them. It takes four times as long."""
    parent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}".encode()
    if not found.trace_state:
        return (("traceparent", parent),)
    return (("traceparent", parent), ("tracestate", found.trace_state.to_header().encode()))


def _packed(span: Span) -> bytes:
    """Return a span's context for the broker, or nothing if its trace is not sampled."""
    found = span.get_span_context()
    if not found.trace_flags.sampled:
        return b""
    return pack_context(TraceContext(found.trace_id, found.span_id, found.trace_flags))


class SentBatch(Protocol):
    """A batch, as the spans of its records see it."""

    partition: int
    base_offset: int
    error: RaftMQError | None
    spans: tuple[SendSpan, ...]


class SendSpan:
    """The span of one call that sends records or messages, until the last of them is acknowledged. Watches their batches."""

    __slots__ = ("_is_bulk", "_position", "_record_count", "_span", "_waits_for", "headers", "trace_context")

    def __init__(self, span: Span, *, is_bulk: bool) -> None:
        self.trace_context = _packed(span)
        """The context for the broker, or nothing if the trace is not sampled."""
        self._span = span
        self.headers = _headers_of(span.get_span_context())
        """The context for consumers, as headers."""
        self._is_bulk = is_bulk
        self._position = 0
        self._record_count = 0
        self._waits_for = 1
        """Batches without an outcome, and the call itself."""

    def joined(self, headers: Iterable[object]) -> TracedHeaders:
        """Return a record's headers with this span's context instead of one that they may have, such as that of the record's source.

        The headers are not checked yet.
        """
        self._record_count += 1
        own = (pair for pair in headers if not (isinstance(pair, tuple) and pair and pair[0] in _FIELDS))
        return TracedHeaders((*cast("Iterable[tuple[str, bytes]]", own), *self.headers))

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """Run the call. The span ends with it if it raises, and else with the last batch."""
        try:
            yield
        except BaseException as error:
            fail(self._span, name_of(error), str(error), error)
            raise
        finally:
            self._count_down()

    def watch(self, batch: SentBatch, position: int = 0) -> None:
        """Wait for a batch too. `position` is that of the only record."""
        if self not in batch.spans:
            batch.spans = (*batch.spans, self)
            self._waits_for += 1
            self._position = position

    def on_finished(self, batch: SentBatch) -> None:
        """Note the outcome of a batch."""
        if batch.error is not None:
            fail(self._span, name_of(batch.error), str(batch.error), batch.error)
        elif not self._is_bulk:
            self._span.set_attribute("messaging.destination.partition.id", str(batch.partition))
            if batch.base_offset >= 0:
                self._span.set_attribute("messaging.raftmq.offset", batch.base_offset + self._position)
        self._count_down()

    def _count_down(self) -> None:
        self._waits_for -= 1
        if not self._waits_for:
            if self._is_bulk:
                self._span.set_attribute("messaging.batch.message_count", self._record_count)
            self._span.end()


class TracedHeaders(tuple[tuple[str, bytes], ...]):
    """Headers that have the context of their send already."""

    __slots__ = ()


class Tracing:
    """The tracing of one client."""

    traced_headers: Final = TracedHeaders

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("raftmq")
        if not any(isinstance(one, _TraceIds) for one in log.filters):
            log.addFilter(_TraceIds())

    # ------------------------------------------------------------------------------------------------------------ sending

    def begin_send(self, topic: str, client_id: str, *, is_bulk: bool = False) -> SendSpan | None:
        """Begin the span of a send, or return None if the program has no active span."""
        if not trace.get_current_span().get_span_context().is_valid:
            return None
        attributes = _attributes("send", topic) | {"messaging.client.id": client_id}
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        return SendSpan(span, is_bulk=is_bulk)

    def carrier(self) -> dict[str, str]:
        """Return the context of the active span, as metadata of a call. Empty if there is none.

        Background tasks inherit the context in which a client was started. A span that has ended does not record, and is not passed on.
        """
        carrier: dict[str, str] = {}
        if trace.get_current_span().is_recording():
            _PROPAGATOR.inject(carrier)
        return carrier

    def active_context(self) -> bytes:
        """Return the context of the active span for the broker, or nothing, as `carrier` does."""
        span = trace.get_current_span()
        return _packed(span) if span.is_recording() else b""

    # ---------------------------------------------------------------------------------------------------------- receiving

    def received(self, topic: str, records: Sequence[Traced], began_ns: int) -> None:
        """Report records that a call has returned: as a child of the active span, with links to the spans that sent them.

        `began_ns` is the time of the call (`time.time_ns`).
        """
        links: list[Link] = []
        for record in records:
            if record.headers and (link := _link_in(record.headers)) is not None:
                links.append(link)
                if len(links) == LINKS_MAX:
                    break
        parent = trace.get_current_span()
        if not links and not parent.is_recording():
            return
        attributes = _attributes("receive", topic) | {"messaging.batch.message_count": len(records)}
        self._tracer.start_span(
            f"receive {topic}",
            context=None if parent.is_recording() else _ROOT,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=links,
            start_time=began_ns,
        ).end()

    def received_one(self, topic: str, record: Traced) -> None:
        """Report a record that an iteration has returned, as a child of the span that sent it."""
        context = _context_in(record.headers)
        if context is not None:
            attributes = _attributes("receive", topic)
            self._tracer.start_span(
                f"receive {topic}", context=context, kind=SpanKind.CLIENT, attributes=attributes
            ).end()

    # --------------------------------------------------------------------------------------------------------- processing

    @contextmanager
    def processing(self, record: Record, attempt: int, group_id: str | None = None) -> Iterator[None]:
        """Run a handler and what follows from it within a span, a child of the one that sent the record."""
        attributes = _attributes("process", record.topic) | {
            "messaging.destination.partition.id": str(record.partition),
            "messaging.raftmq.offset": record.offset,
            "messaging.raftmq.attempt": attempt,
        }
        if group_id is not None:
            attributes["messaging.consumer.group.name"] = group_id
        with self._tracer.start_as_current_span(
            f"process {record.topic}",
            context=_context_in(record.headers) or _ROOT,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        ):
            yield

    @staticmethod
    def fail_active(kind: str, message: str, error: BaseException | None) -> None:
        """Mark the active span as failed."""
        fail(trace.get_current_span(), kind, message, error)


def _attributes(operation: str, topic: str) -> dict[str, str | int]:
    return {
        "messaging.system": "raftmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


class _TraceIds(logging.Filter):
    """Adds the ids of the active span to the lines of the SDK."""

    def filter(self, record: logging.LogRecord) -> bool:
        span = trace.get_current_span()
        if span.is_recording():
            found = span.get_span_context()
            record.msg = f"{record.msg} trace_id={found.trace_id:032x} span_id={found.span_id:016x}"
        return True
