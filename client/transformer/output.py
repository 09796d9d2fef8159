"""`Output`: what a handler of a transformer returns: a record to be written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Output:
    """A record to be written because of an input record.

    When an input record is handled again after a crash, its outputs must be as many, in the same order, with the same topics and the same keys
    (or partitions). Values and headers may differ: what was written first stays.
    """

    topic: str
    value: object = None
    """Bytes, or what the transformer's `value_serializer` takes; None is a tombstone."""
    key: object = None
    """Bytes, or what the transformer's `key_serializer` takes. Chooses the partition."""
    partition: int | None = field(default=None, kw_only=True)
    """Where to write it, instead of where its key belongs."""
    timestamp_ms: int | None = field(default=None, kw_only=True)
    """None: the input record's."""
    headers: Iterable[tuple[str, bytes]] = field(default=(), kw_only=True)
