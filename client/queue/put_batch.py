"""A batch of messages of one partition, from its first message to its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from raftmq.client.codec.queue_batch import EncodedMessages, TimeColumns, encode_messages
from raftmq.client.producer.batch import PendingBatch, SealableBody
from raftmq.client.queue.new_message import CheckedMessage
from raftmq.message_checks import MESSAGE_BYTES_MAX, BatchLimits

T = TypeVar("T")
_LIMITS = BatchLimits(message_bytes_max=MESSAGE_BYTES_MAX)
"""Each message was compared with its topic's limit before."""


class PutResult(msgspec.Struct, frozen=True):
    """The outcome of a put: the message is on disk on a majority of its partition's replicas."""

    topic: str
    partition: int
    sequence: int | None
    """The message's sequence in its partition. None: it was enqueued by an earlier attempt, and the broker no longer remembers where."""
    is_deduplicated: bool = False
    """Whether the topic knew the id, so that nothing was enqueued. `sequence` is that of the earlier message, which may be finished."""
    replaced_sequence: int | None = None
    """The sequence of the earlier message that this one replaced, if it did."""


class MessageBatch(PendingBatch):
    """A batch of messages of a queue topic."""

    __slots__ = ("_known", "_messages")

    def __init__(self, topic: str, partition: int, linger_until: float, deadline: float) -> None:
        super().__init__(topic, partition, linger_until, deadline)
        self._messages: list[CheckedMessage] = []
        self._known: dict[int, tuple[int, bool]] = {}
        """The sequence of the earlier message with the id of a message, by its position, and whether it was replaced."""

    def append(self, message: CheckedMessage) -> int:
        """Add a message and return its position."""
        self._messages.append(message)
        self.count += 1
        self.reserved_bytes += message.size
        return self.count - 1

    def _encode(self, codec: int) -> SealableBody:
        messages, self._messages = self._messages, []
        return encode_checked(messages, codec)

    def record_known(self, position: int, sequence: int, *, is_replaced: bool) -> None:
        """Record that the topic knew the id of a message."""
        self._known[position] = (sequence, is_replaced)

    def result(self, position: int) -> PutResult:
        """Return the outcome of a message of a batch that is done. Raises the batch's error."""
        self.is_observed = True
        self.raise_error()
        own = self.base_offset + position if self.base_offset >= 0 else None
        known = self._known.get(position)
        if known is None:
            return PutResult(self.topic, self.partition, own)
        sequence, is_replaced = known
        if is_replaced:
            return PutResult(self.topic, self.partition, own, replaced_sequence=sequence)
        return PutResult(self.topic, self.partition, sequence, is_deduplicated=True)


def encode_checked(messages: Sequence[CheckedMessage], codec: int) -> EncodedMessages:
    """Encode messages as one batch."""
    values, keys, tenants, priorities, delays, times, ids, expiries, headers, replaces, _ = zip(*messages, strict=True)
    return encode_messages(
        values,
        keys=_unless_all(None, keys),
        tenants=_unless_all("", tenants),
        priorities=_unless_all(0, priorities),
        due=TimeColumns(_unless_all(None, delays), _unless_all(None, times)),
        expiry=TimeColumns(_unless_all(None, expiries)),
        ids=_unless_all(None, ids),
        headers=_unless_all((), headers),
        replaces=_unless_all(False, replaces),
        codec=codec,
        limits=_LIMITS,
    )


def _unless_all(default: T, column: Sequence[T]) -> Sequence[T] | None:
    """Return a column, or None if every message has the default."""
    return None if column.count(default) == len(column) else column
