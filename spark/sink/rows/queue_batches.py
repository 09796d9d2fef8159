"""Cut the sorted rows of a queue topic's partition into message batches, and encode them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from raftmq.client.codec.queue_batch import TimeColumns, encode_messages
from raftmq.message_checks import MESSAGE_BYTES_MAX, MESSAGE_COUNT_MAX, BatchLimits
from raftmq.message_headers import decode_headers
from raftmq.spark.sink.columns.queue import DUE_NOW

if TYPE_CHECKING:
    from raftmq.spark.sink.columns.queue import QueueRow
    from raftmq.spark.sink.rows.partition_writer import Identity

MESSAGE_OVERHEAD_BYTES: Final = 32
"""The numbers of a message in the columns of its batch: lengths, checksum, codec, priority, due time and tenant."""
_LIMITS: Final = BatchLimits(message_bytes_max=MESSAGE_BYTES_MAX)
"""Each message was compared with its topic's limit before."""


class QueueBatches:
    """Make the batches of one task for a queue topic."""

    def __init__(self, codec: int, messages_max: int) -> None:
        """Take the maximum number of messages of a batch. A batch never has more than brokers accept."""
        self._codec = codec
        self._messages_max = min(messages_max, MESSAGE_COUNT_MAX)

    def cut(self, rows: Iterator[QueueRow], bytes_max: int) -> Iterator[list[QueueRow]]:
        """Cut rows into pieces of at most `bytes_max` bytes. A larger row is a piece of its own."""
        piece: list[QueueRow] = []
        size = 0
        for row in rows:
            _, _, _, key, name, tenant, _, _, value, headers = row
            row_bytes = len(key) + len(name) + len(tenant) + len(value) + len(headers) + MESSAGE_OVERHEAD_BYTES
            if piece and (len(piece) >= self._messages_max or size + row_bytes > bytes_max):
                yield piece
                piece, size = [], 0
            piece.append(row)
            size += row_bytes
        if piece:
            yield piece

    def seal(self, rows: list[QueueRow], identity: Identity, first_sequence: int) -> bytes:
        """Return the batch of a piece."""
        _, _, _, keys, ids, tenants, priorities, due_times, values, headers = zip(*rows, strict=True)
        messages = encode_messages(
            values,
            keys=[key or None for key in keys] if any(keys) else None,
            tenants=[tenant.decode() for tenant in tenants] if any(tenants) else None,
            priorities=priorities,
            due=_due(due_times),
            ids=[name.decode() or None for name in ids] if any(ids) else None,
            headers=list(map(decode_headers, headers)) if any(headers) else None,
            codec=self._codec,
            limits=_LIMITS,
        )
        return messages.seal(identity.producer_id, identity.epoch, first_sequence)


def groups_of(rows: Iterable[QueueRow]) -> Iterator[tuple[str, int, Iterator[QueueRow]]]:
    """Return each topic and partition of sorted rows with its rows."""
    for (topic, partition), group in groupby(rows, key=itemgetter(0, 1)):
        yield topic.decode(), partition, group


def _due(times_ms: tuple[int, ...]) -> TimeColumns:
    if max(times_ms) == DUE_NOW:
        return TimeColumns()
    return TimeColumns(at_ms=[None if time_ms == DUE_NOW else time_ms for time_ms in times_ms])
