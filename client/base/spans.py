"""Spans of a client, with the names and attributes of OpenTelemetry's semantic conventions for messaging.

Imported only by programs that trace (`active_tracing`). Nothing is traced that no trace leads to: a send has a span if the program has an
active one, a receipt also if a record carries a context. Only a handler of a worker always has one.

Invariant: no exception of OpenTelemetry's code, or of an exporter of the program, reaches a caller (`GUARD`).

Source: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/ and https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Protocol

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.errors import RaftMQError
from raftmq.trace_context import FIELD_BYTES_MAX, TraceContext, pack_context
from raftmq.types import Record

LINKS_MAX: Final = 128
"""Links of a span to the spans that sent its records, as many as OpenTelemetry's SDK keeps by default."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_ROOT: Final = Context()
_Headers = tuple[tuple[str, bytes | None], ...]


class _Guard:
    """Runs calls of OpenTelemetry, whose exceptions must not harm a record. Only the first one is logged."""

    def __init__(self) -> None:
        self._has_failed = False

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self._has_failed:
            self._has_failed = True
            log.warning("tracing_failed", exc_info=error)
        return True


GUARD: Final = _Guard()


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
    carrier = {
        name: value.decode("latin-1")
        for name, value in headers
        if value is not None and len(value) <= FIELD_BYTES_MAX.get(name, -1)
    }
    with GUARD:
        return _PROPAGATOR.extract(carrier, _ROOT) if "traceparent" in carrier else None
    return None


def _link_in(headers: _Headers) -> Link | None:
    context = _context_in(headers)
    found = trace.get_current_span(context).get_span_context() if context is not None else None
    return Link(found) if found is not None and found.is_valid else None


@contextmanager
def entered(carrier: Mapping[str, str]) -> Iterator[None]:
    """Run a block in the context that `Tracing.carrier` returned in another process."""
    context = contexts.get_current()
    with GUARD:
        context = _PROPAGATOR.extract(carrier, context)
    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)


def leave_span() -> None:
    """Make no span the active one, until the end of the current `contextvars.Context`."""
    contexts.attach(trace.set_span_in_context(trace.INVALID_SPAN))


def _live_context() -> SpanContext | None:
    """Return the context of the active span, or None if there is none, or it has ended.

    A task goes on after the span in which it was started. A span of a trace that is not sampled never records, so that its end cannot be
    seen.
    """
    span = trace.get_current_span()
    found = span.get_span_context()
    has_ended = found.trace_flags.sampled and not span.is_recording()
    return found if found.is_valid and not has_ended else None


def fail(span: Span, kind: str, message: str, error: BaseException | None = None) -> None:
    """Mark a span as failed. `kind` is a short name of the error."""
    with GUARD:
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, message))
        if error is not None:
            span.record_exception(error)


def _headers_of(found: SpanContext) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a span's context, as the propagator writes them. It takes four times as long."""
    parent = _traceparent(found).encode()
    state = found.trace_state.to_header().encode() if found.trace_state else b""
    if not 0 < len(state) <= FIELD_BYTES_MAX["tracestate"]:
        return (("traceparent", parent),)
    return (("traceparent", parent), ("tracestate", state))


def _traceparent(found: SpanContext) -> str:
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def _packed(found: SpanContext) -> bytes:
    """Return a span's context for the broker."""
    return pack_context(TraceContext(found.trace_id, found.span_id, found.trace_flags))


class SentBatch(Protocol):
    """A batch, as the spans of its records see it."""

    partition: int
    base_offset: int
    error: RaftMQError | None
    is_done: bool
    spans: dict[SendSpan, None]


class SendSpan:
    """The span of one call that sends records or messages, until the last of them is acknowledged. Watches their batches."""

    __slots__ = ("_is_bulk", "_position", "_span", "_waits_for", "headers", "record_count", "trace_context")

    def __init__(self, span: Span, *, is_bulk: bool) -> None:
        found = span.get_span_context()
        self.trace_context = _packed(found)
        """The context for the broker."""
        self.headers = _headers_of(found)
        """The context for consumers, as headers."""
        self.record_count = 0
        """Records or messages of a bulk call. Written by the call."""
        self._span = span
        self._is_bulk = is_bulk
        self._position = 0
        self._waits_for = 1
        """Batches without an outcome, and the call itself."""

    @staticmethod
    def own(headers: _Headers) -> _Headers:
        """Return a record's headers without a context that they may have, such as that of the record's source."""
        return tuple(pair for pair in headers if pair[0] not in FIELD_BYTES_MAX)

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """Run the call. The span ends with it if it raises, and else with the last batch."""
        try:
            yield
        except BaseException as error:
            self.refuse(error)
            raise
        self.accept()

    def refuse(self, error: BaseException) -> None:
        """Note that the call raises. The span ends with the batches that it filled before."""
        with GUARD:
            fail(self._span, name_of(error), str(error), error)
        self._count_down()

    def accept(self) -> None:
        """Note that the call returns. The span ends with the last batch."""
        self._count_down()

    def watch(self, batch: SentBatch, position: int = 0) -> None:
        """Wait for a batch too. `position` is that of the only record."""
        if self in batch.spans:
            return
        self._waits_for += 1
        self._position = position
        if batch.is_done:
            self.on_finished(batch, has_exception=True)
        else:
            batch.spans[self] = None

    def on_finished(self, batch: SentBatch, *, has_exception: bool) -> None:
        """Note the outcome of a batch. An exception takes time, so only one of the batch's spans has it as an event. Never raises."""
        if batch.error is not None:
            fail(self._span, name_of(batch.error), str(batch.error), batch.error if has_exception else None)
        elif not self._is_bulk:
            with GUARD:
                self._span.set_attribute("messaging.destination.partition.id", str(batch.partition))
                if batch.base_offset >= 0:
                    self._span.set_attribute("messaging.raftmq.offset", batch.base_offset + self._position)
        self._count_down()

    def _count_down(self) -> None:
        self._waits_for -= 1
        if not self._waits_for:
            with GUARD:
                if self._is_bulk:
                    self._span.set_attribute("messaging.batch.message_count", self.record_count)
                self._span.end()


class Tracing:
    """The tracing of one client."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("raftmq")
        if not any(isinstance(one, _TraceIds) for one in log.filters):
            log.addFilter(_TraceIds())

    # ------------------------------------------------------------------------------------------------------------ sending

    def begin_send(self, topic: str, client_id: str, *, is_bulk: bool = False) -> SendSpan | None:
        """Begin the span of a send, or return None if the program has no active span."""
        with GUARD:
            if trace.get_current_span().get_span_context().is_valid:
                attributes = _attributes("send", topic) | {"messaging.client.id": client_id}
                span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
                return SendSpan(span, is_bulk=is_bulk)
        return None

    def carrier(self) -> dict[str, str]:
        """Return the context of the active span for another process of the program. Empty if there is none."""
        with GUARD:
            found = _live_context()
            if found is not None:
                return {name: value.decode() for name, value in _headers_of(found)}
        return {}

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the context of the active span for a broker, as metadata of a call. Empty if there is none."""
        with GUARD:
            found = _live_context()
            if found is not None:
                return (("traceparent", _traceparent(found)),)
        return ()

    def active_context(self) -> bytes:
        """Return the context of the active span for a broker, as in `AppendRequest`, or nothing."""
        with GUARD:
            found = _live_context()
            if found is not None:
                return _packed(found)
        return b""

    # ---------------------------------------------------------------------------------------------------------- receiving

    def received(self, topic: str, records: Sequence[Traced], began_ns: int) -> None:
        """Report records that a call has returned: as a child of the active span, with links to the spans that sent them.

        `began_ns` is the time of the call (`time.time_ns`).
        """
        with GUARD:
            links: list[Link] = []
            for record in records:
                if record.headers and (link := _link_in(record.headers)) is not None:
                    links.append(link)
                    if len(links) == LINKS_MAX:
                        break
            has_parent = _live_context() is not None
            if not links and not has_parent:
                return
            attributes = _attributes("receive", topic) | {"messaging.batch.message_count": len(records)}
            self._tracer.start_span(
                f"receive {topic}",
                context=None if has_parent else _ROOT,
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
            with GUARD:
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
        span: Span = trace.INVALID_SPAN
        with GUARD:
            span = self._tracer.start_span(
                f"process {record.topic}",
                context=_context_in(record.headers) or _ROOT,
                kind=SpanKind.CONSUMER,
                attributes=attributes,
            )
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield
        except Exception as error:
            with GUARD:
                fail(span, name_of(error), str(error), error)
            raise
        finally:
            contexts.detach(token)
            with GUARD:
                span.end()

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
