"""The trace contexts of an `AppendRequest`: W3C's traceparent in 25 bytes, and the fields of a context in headers and metadata.

Clients and brokers share this module, which needs no OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

_CONTEXT: Final = Struct(">16s8sB")
CONTEXT_BYTES: Final = _CONTEXT.size
SAMPLED: Final = 1
"""The flag of a context whose trace is kept."""
CONTEXTS_MAX: Final = 32
"""Contexts of one request that count. A batch may have thousands of traced records, and a span has few links."""
FIELD_BYTES_MAX: Final = {"traceparent": 64, "tracestate": 512}
"""The fields of a context, and their largest values. Anybody may write them, and OpenTelemetry parses them for every record.

A traceparent has 55 bytes. The W3C asks for at least 512 bytes of a tracestate to be passed on.
"""


class TraceContext(NamedTuple):
    """A span, as processes name it to each other."""

    trace_id: int
    span_id: int
    flags: int
    """`SAMPLED`, or 0. The other bits have no meaning here."""


def pack_context(context: TraceContext) -> bytes:
    """Return a context in its packed form."""
    return _CONTEXT.pack(context.trace_id.to_bytes(16), context.span_id.to_bytes(8), context.flags)


def join_contexts(packed: Iterable[bytes]) -> bytes:
    """Return packed contexts, each once, as many as a request may have. Empty ones are left out.

    A context that is not sampled only tells the broker the decision, so there is one at most, and only if none is sampled.
    """
    found = [context for context in dict.fromkeys(packed) if context]
    sampled = [context for context in found if context[-1] & SAMPLED]
    return b"".join(sampled[:CONTEXTS_MAX] or found[:1])


def unpack_contexts(data: bytes) -> list[TraceContext]:
    """Return the first `CONTEXTS_MAX` contexts. Bytes that are none, from any client, are ignored."""
    end = min(len(data) // CONTEXT_BYTES, CONTEXTS_MAX) * CONTEXT_BYTES
    unpacked = (
        TraceContext(int.from_bytes(trace_id), int.from_bytes(span_id), flags)
        for trace_id, span_id, flags in _CONTEXT.iter_unpack(data[:end])
    )
    return [context for context in unpacked if context.trace_id and context.span_id]
