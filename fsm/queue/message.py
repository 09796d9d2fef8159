"""A message of a queue partition, as it lives in memory and in its row.

A message has one home row, whose key depends on its state (`rows`). Only the bookkeeping of the memory, at the end of the struct, is
not in the row: rows are equal on every replica, and the content of the memory is not.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec
from raftmq.fsm.row_decoders import row_decoder


class State(IntEnum):
    """Say where a message is. Code in loops uses the plain numbers below. Values are in rows: never reuse one."""

    READY = 1
    DELAYED = 2
    LEASED = 3
    DEAD = 4
    LINED = 5
    """Ready, and behind the head of its key."""


READY: Final = 1
DELAYED: Final = 2
LEASED: Final = 3
DEAD: Final = 4
LINED: Final = 5


class DeadReason(IntEnum):
    """Say why a message was given up. Values are in rows: never reuse one."""

    NONE = 0
    REJECTED = 1
    EXHAUSTED = 2
    EXPIRED = 3


class Message(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """Hold one unfinished message. Times are queue time in milliseconds. It has no references to containers, so `gc=False` is safe."""

    sequence: int
    state: int
    tenant: int
    """Number of its tenant."""
    priority: int
    due: int
    """The time from which it may be leased."""
    enqueued_at: int
    body_bytes: int
    """Stored bytes of the body and the headers: the size of an answer depends on both."""
    expires_at: int = 0
    """0: never."""
    attempts: int = 0
    lease_number: int = 0
    """+1 at every lease, never reset."""
    version: int = 0
    """+1 at every lease, settlement and move."""
    deadline: int = 0
    """While it is leased: the end of its lease. Otherwise: when it last came out of a lease, a line, a delay or the dead. 0 for a
    message that was none of them, or was only delayed until it was due."""
    session: int = 0
    """The session that leased it last; 0 if there was none."""
    id: bytes = b""
    id_until: int = 0
    """End of the window in which its id is recognized."""
    key: bytes = b""
    line: bytes = b""
    """Hash of (tenant, key) if the message takes part in the order of its key, else empty."""
    error: str = ""
    """The last error that a consumer named."""
    progress: str = ""
    """The last progress that a consumer named."""
    dead_number: int = 0
    """Its place among the dead, dense and rising; 0 while it is not dead."""
    dead_at: int = 0
    dead_reason: int = 0
    leased_at: int = 0
    """When its lease was granted or last renewed; 0 while it is not leased."""

    # ------------------------------------------------------------------------------------------- not in the row
    stored_key: bytes = b""
    """Key of its home row on disk, once the rows that were taken are written. Empty: it has no row."""
    stored_expiry: int = 0
    """`expires_at` in its expiry row on disk; 0: it has none."""

    @property
    def ready_since(self) -> int:
        """Return since when it may be leased. It must be ready."""
        return max(self.due, self.enqueued_at, self.deadline)


_ENCODER = msgspec.msgpack.Encoder()
_decode_row = row_decoder(Message)


def encode_message(m: Message) -> bytes:
    """Return the value of a message's home row."""
    return _ENCODER.encode((
        m.sequence, m.state, m.tenant, m.priority, m.due, m.enqueued_at, m.body_bytes, m.expires_at, m.attempts, m.lease_number,
        m.version, m.deadline, m.session, m.id, m.id_until, m.key, m.line, m.error, m.progress, m.dead_number, m.dead_at,
        m.dead_reason, m.leased_at,
    ))  # fmt: skip


def decode_message(key: bytes, value: bytes) -> Message:
    """Return the message of a home row that is on disk under `key`. Raises `msgspec.MsgspecError` if it does not decode."""
    message = _decode_row(value)
    message.stored_key = key
    message.stored_expiry = message.expires_at
    return message
