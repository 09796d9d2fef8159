"""Find out whether the program traces with OpenTelemetry. Must not import it: a program that does not trace pays nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raftmq.client.base.spans import Tracing


def active_tracing() -> Tracing | None:
    """Return the program's tracing, or None if it has no tracer provider. A client asks once, when it starts."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        return None
    from raftmq.client.base.spans import Tracing

    return Tracing(provider)


def context_without_span() -> Context | None:
    """Return a copy of the current context in which no span is active, or None if no span can be."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from raftmq.client.base.spans import leave_span

    context = copy_context()
    context.run(leave_span)
    return context


@contextmanager
def joined_trace(carrier: Mapping[str, str]) -> Iterator[None]:
    """Run a block within the span of another process. `carrier` is what its `Tracing.carrier` returned, or empty: then nothing changes."""
    if not carrier:
        yield
        return
    from raftmq.client.base.spans import entered

    with entered(carrier):
        yield
