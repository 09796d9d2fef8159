"""Put messages into blocks, as consumers receive them: fields from the state machine, bodies from the log or the state file."""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.broker.partitions.queue.bodies import StoredBody
from raftmq.fsm.queue.message import Message
from raftmq.message_block import MessageBlock, pack_block


class MessageFacts:
    """The fields of messages as of one moment, column by column: the machine changes its messages with the next entry."""

    __slots__ = (
        "attempts", "enqueued_ms", "ids", "keys", "lease_numbers", "lease_remaining_ms", "priorities", "sequences", "tenants",
    )  # fmt: skip

    def __init__(self, messages: Sequence[Message], tenants: Sequence[str], now_ms: int | None) -> None:
        """Take `now_ms`, the queue time from which the rest of the leases counts. None: the messages are not leased."""
        self.sequences = [m.sequence for m in messages]
        self.lease_numbers = [m.lease_number for m in messages]
        self.attempts = [m.attempts for m in messages]
        self.enqueued_ms = [m.enqueued_at for m in messages]
        self.priorities = [m.priority for m in messages] if any(m.priority for m in messages) else None
        self.tenants = [name.encode() for name in tenants] if any(tenants) else None
        self.ids = [m.id or None for m in messages] if any(m.id for m in messages) else None
        self.keys = [m.key or None for m in messages] if any(m.key for m in messages) else None
        self.lease_remaining_ms = None if now_ms is None else [max(0, m.deadline - now_ms) for m in messages]

    def keep(self, places: Sequence[int]) -> None:
        """Forget all messages but those at the places."""
        for name in self.__slots__:
            column = getattr(self, name)
            if column is not None:
                setattr(self, name, [column[place] for place in places])

    def block(self, bodies: Sequence[StoredBody]) -> bytes:
        """Return the block of these messages, given the body of each."""
        codecs = [body.codec for body in bodies]
        headers = [body.headers for body in bodies]
        return pack_block(
            MessageBlock(
                sequences=self.sequences,
                lease_numbers=self.lease_numbers,
                attempts=self.attempts,
                enqueued_ms=self.enqueued_ms,
                bodies=[body.body for body in bodies],
                body_checksums=[body.checksum for body in bodies],
                body_positions=[body.position for body in bodies],
                codecs=codecs if any(codecs) else None,
                lease_remaining_ms=self.lease_remaining_ms,
                priorities=self.priorities,
                tenants=self.tenants,
                ids=self.ids,
                keys=self.keys,
                headers=headers if any(one is not None for one in headers) else None,
            )
        )
