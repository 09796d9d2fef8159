"""A program that traces: spans are kept in memory, and clients that start find the provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON


class Traced:
    """The spans of a program. A process has only one provider, so this one takes its place for a test."""

    def __init__(self, *, is_sampled: bool = True) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=ALWAYS_ON if is_sampled else ALWAYS_OFF, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))

    @contextmanager
    def active(self, name: str = "program") -> Iterator[trace.SpanContext]:
        """Run a block within a span of the program's own."""
        with self.provider.get_tracer("program").start_as_current_span(name) as span:
            yield span.get_span_context()

    def ended(self, name: str) -> list[ReadableSpan]:
        """Return the ended spans of a name."""
        return [span for span in self._kept.get_finished_spans() if span.name == name]


@contextmanager
def tracing_program(*, is_sampled: bool = True) -> Iterator[Traced]:
    """Give the process a tracer provider."""
    traced = Traced(is_sampled=is_sampled)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trace, "get_tracer_provider", lambda: traced.provider)
        yield traced


def traceparent(context: trace.SpanContext) -> bytes:
    """Return the value of the header that names a span."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}".encode()
