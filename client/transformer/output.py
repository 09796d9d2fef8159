"""`Output`: a record to write, as returned by a transformer's handler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Output:
    """A record to write because of an input record.

    When an input record is handled again after a crash, the handler must return as many outputs, in the same order, with the same topics and
    the same keys (or partitions). Values and headers may differ: the first version that was written is kept.
    """

    topic: str
    value: object = None
    """Bytes, or a value for the transformer's `value_serializer`. None is a tombstone."""
    key: object = None
    """Bytes, or a key for the transformer's `key_serializer`. It determines the partition unless `partition` is set."""
    partition: int | None = field(default=None, kw_only=True)
    """The output partition. None: the partition of the key."""
    timestamp_ms: int | None = field(default=None, kw_only=True)
    """Milliseconds since 1970. None: the input record's timestamp."""
    headers: Iterable[tuple[str, bytes]] = field(default=(), kw_only=True)
