"""The bytes of a state file's `meta` table: its identity, as in a log's file, and one row with everything that changes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from raftmq.raft.entry import LogPosition
from raftmq.raft.membership import Membership
from raftmq.storage.checksum import CHECKSUM_BYTES, Buffer, is_intact, seal
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.replica_codec import (
    IDENTITY_KEY,
    decode_identity,
    member_ids,
    membership_fields,
    membership_from,
)
from raftmq.types import LogIndex, Offset, Term

FORMAT_VERSION = 1
"""The format of the whole file: tables, and keys and values of the rows that the store writes."""

STATE_META_KEY = b"state"

_META = struct.Struct("<Q Qq QQQq QB HHHH")
"""transaction_id · state_index, evacuated_through · position: index, term, next_offset, time · membership: revision, auto_leave,
counts of voters, learners, outgoing, learners_next (ids follow, 8 bytes each)."""
_MEMBERSHIP_FIELDS = 6


@dataclass(frozen=True, slots=True)
class StateMeta:
    """The part of a state file that changes, apart from its rows."""

    state_index: LogIndex
    """The exact entry that the rows include."""
    membership: Membership
    """The membership as of `state_index`."""
    evacuated_through: int
    """The bodies of living messages up to this sequence are in the file. -1 or more."""
    position: LogPosition
    """The point after which the log must start at least: the one of the last snapshot installed, or of the replica's creation."""


def encode_state_meta(meta: StateMeta, transaction_id: int) -> bytes:
    """Return the value of the meta row that this transaction writes."""
    position = meta.position
    body = _META.pack(
        transaction_id,
        meta.state_index,
        meta.evacuated_through,
        position.index,
        position.term,
        position.next_offset,
        position.append_time_ms,
        *membership_fields(meta.membership),
    )
    return seal(STATE_META_KEY, body + member_ids(meta.membership))


def decode_state_meta(value: Buffer) -> StateMeta:
    """Decode the meta row. Raises `CodecError`."""
    if not is_intact(STATE_META_KEY, value) or len(value) < _META.size + CHECKSUM_BYTES:
        raise CodecError("the meta row of the state does not match its checksum")
    fields = _META.unpack_from(value)
    _, state_index, evacuated_through, index, term, next_offset, time_ms = fields[:-_MEMBERSHIP_FIELDS]
    return StateMeta(
        LogIndex(state_index),
        membership_from(fields[-_MEMBERSHIP_FIELDS:], bytes(value[_META.size : -CHECKSUM_BYTES])),
        evacuated_through,
        LogPosition(LogIndex(index), Term(term), Offset(next_offset), time_ms),
    )


def state_transaction_id(rows: Mapping[bytes, bytes]) -> int | None:
    """Return the transaction that wrote these rows of the table `meta`, or None if they have another format.

    Raises `CodecError` for rows that no transaction writes.
    """
    if IDENTITY_KEY not in rows or STATE_META_KEY not in rows:
        raise CodecError(f"its {'identity' if IDENTITY_KEY not in rows else 'meta'} row is missing")
    if decode_identity(rows[IDENTITY_KEY]).format_version != FORMAT_VERSION:
        return None
    decode_state_meta(rows[STATE_META_KEY])
    return int(_META.unpack_from(rows[STATE_META_KEY])[0])
