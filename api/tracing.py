"""OpenTelemetry for programs that handle records and messages themselves: ``pip install 'raftmq[otel]'``.

Clients trace by themselves as soon as the program has a tracer provider (docs/guides/tracing.md). This module is for consumers' own spans.
"""

from __future__ import annotations

from raftmq.extras import MissingExtraError

try:
    from raftmq.client.base.spans import context_of as context_of
except ModuleNotFoundError as error:
    raise MissingExtraError(f"raftmq.tracing needs {error.name}: pip install 'raftmq[otel]'") from error
