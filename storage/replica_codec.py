"""The bytes of a replica's `meta` database: one row with its identity, and one row with everything that changes.

There is one changing row, rewritten in every transaction, because py-lmdb crosses the GIL once per put. It also holds the
end of the log, so that the next opening detects a log that lost its tail.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from raftmq.raft.entry import LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.storage.checksum import CHECKSUM_BYTES, Buffer, is_intact, seal
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.errors import UnsupportedFormatError
from raftmq.types import GroupId, LogIndex, Offset, ReplicaId, Term

FORMAT_VERSION = 1
"""The format of the whole file: row layouts, databases and keys. Any change that older code would misread raises it."""
FORMAT_WITH_STATE_FILE = 2
"""The same layout. The replica's derived state is in a second file, and without that one the replica is missing."""
FORMATS = (FORMAT_VERSION, FORMAT_WITH_STATE_FILE)

MEMBERSHIPS_KEPT_MAX = 1024
"""Decoded memberships that are kept: nearly every meta row that is read has the membership of an earlier one."""

IDENTITY_KEY = b"identity"
META_KEY = b"replica"

_IDENTITY = struct.Struct("<IQQ")
_META = struct.Struct("<QQ QQQ QQQq QQq Q QB HHHH")
"""transaction_id, verified_index · term, vote, commit · position: index, term, next_offset, time · end: index, next_offset, time · state_index ·
membership: revision, auto_leave, counts of voters, learners, outgoing, learners_next (ids follow, 8 bytes each)."""


@dataclass(frozen=True, slots=True)
class ReplicaMeta:
    """The part of a replica that changes, apart from its entries and state rows."""

    hard_state: HardState
    position: LogPosition
    """The point after which the log starts. Invariant: its index is <= state_index and <= last_index."""
    last_index: LogIndex
    """Index of the last entry, or `position.index` if the log is empty."""
    last_next_offset: Offset
    last_append_time_ms: int
    state_index: LogIndex
    membership: Membership
    """The membership as of `state_index`."""


class CommitNote(NamedTuple):
    """The part of a meta row that describes the transaction that wrote it, not the replica."""

    transaction_id: int
    """LMDB's own number of the transaction. If a meta page has another number, it points to another transaction's tree."""
    verified_index: int
    """The clean point: entries up to here were read back from the file and were intact."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a file. A file copied or renamed to another replica's name is refused."""

    format_version: int
    group_id: GroupId
    replica_id: ReplicaId


def encode_identity(identity: Identity) -> bytes:
    """Return the value of the identity row."""
    return seal(IDENTITY_KEY, _IDENTITY.pack(identity.format_version, identity.group_id, identity.replica_id))


def decode_identity(value: Buffer) -> Identity:
    """Decode the identity row. Raises `CodecError`. Of a later version's longer row, the known fields are read."""
    if not is_intact(IDENTITY_KEY, value) or len(value) < _IDENTITY.size + CHECKSUM_BYTES:
        raise CodecError("the identity row does not match its checksum")
    version, group_id, replica_id = _IDENTITY.unpack_from(value)
    return Identity(version, GroupId(group_id), ReplicaId(replica_id))


def check_identity(key: tuple[GroupId, ReplicaId], value: Buffer, formats: Sequence[int]) -> Identity:
    """Decode the identity row of a file that must be this replica's.

    Raises:
        CodecError: It belongs to another replica, or is damaged.
        UnsupportedFormatError: The file has none of these formats.
    """
    identity = decode_identity(value)
    if identity.format_version not in formats:
        readable = " and ".join(map(str, formats))
        raise UnsupportedFormatError(
            key, f"the file has format {identity.format_version}, but this version reads format {readable}"
        )
    if (identity.group_id, identity.replica_id) != key:
        raise CodecError(f"the file belongs to replica {identity.replica_id} of group {identity.group_id}")
    return identity


def encode_meta(meta: ReplicaMeta, note: CommitNote) -> bytes:
    """Return the value of the meta row that the transaction of `note` writes."""
    hard_state, position = meta.hard_state, meta.position
    body = _META.pack(
        *note,
        hard_state.term,
        hard_state.vote,
        hard_state.commit_index,
        position.index,
        position.term,
        position.next_offset,
        position.append_time_ms,
        meta.last_index,
        meta.last_next_offset,
        meta.last_append_time_ms,
        meta.state_index,
        *membership_fields(meta.membership),
    )
    return seal(META_KEY, body + member_ids(meta.membership))


def decode_meta(value: Buffer) -> ReplicaMeta:
    """Decode the replica's part of the meta row. Raises `CodecError`."""
    if not is_intact(META_KEY, value):
        raise CodecError("the meta row does not match its checksum")
    if len(value) < _META.size + CHECKSUM_BYTES:
        raise CodecError(f"meta row of {len(value)} bytes")
    fields = _META.unpack_from(value)
    return ReplicaMeta(
        HardState(Term(fields[2]), ReplicaId(fields[3]), LogIndex(fields[4])),
        LogPosition(LogIndex(fields[5]), Term(fields[6]), Offset(fields[7]), fields[8]),
        LogIndex(fields[9]),
        Offset(fields[10]),
        fields[11],
        LogIndex(fields[12]),
        membership_from(fields[13:], bytes(value[_META.size : -CHECKSUM_BYTES])),
    )


def membership_fields(membership: Membership) -> tuple[int, ...]:
    """Return the fields of a meta row that describe a membership. The ids (`member_ids`) are at the end of the row."""
    return (
        membership.revision,
        membership.auto_leave,
        len(membership.voters),
        len(membership.learners),
        len(membership.outgoing),
        len(membership.learners_next),
    )


def member_ids(membership: Membership) -> bytes:
    """Return the replica ids of a membership, 8 bytes each."""
    members = membership.voters + membership.learners + membership.outgoing + membership.learners_next
    return struct.pack(f"<{len(members)}Q", *members)


@lru_cache(MEMBERSHIPS_KEPT_MAX)
def membership_from(fields: tuple[int, ...], ids: bytes) -> Membership:
    """Decode a membership from `membership_fields` and `member_ids`. Raises `CodecError` if there are more or fewer ids."""
    revision, auto_leave, *counts = fields
    if len(ids) != 8 * sum(counts):
        raise CodecError(f"meta row with {len(ids)} bytes of ids for {counts} members")
    members = tuple(ReplicaId(number) for number in struct.unpack(f"<{sum(counts)}Q", ids))
    parts: list[tuple[ReplicaId, ...]] = []
    for count in counts:
        parts.append(members[:count])
        members = members[count:]
    voters, learners, outgoing, learners_next = parts
    return Membership(voters, learners, outgoing, learners_next, bool(auto_leave), revision)


def decode_note(value: Buffer) -> CommitNote:
    """Decode the transaction's part of a meta row that `decode_meta` accepts."""
    return CommitNote._make(_META.unpack_from(value)[: len(CommitNote._fields)])


def replica_transaction_id(rows: Mapping[bytes, bytes]) -> int | None:
    """Return the transaction that wrote these rows of the meta database, or None if they have another format.

    Raises `CodecError` for rows that no transaction writes.
    """
    if IDENTITY_KEY not in rows or META_KEY not in rows:
        raise CodecError(f"its {'identity' if IDENTITY_KEY not in rows else 'meta'} row is missing")
    if decode_identity(rows[IDENTITY_KEY]).format_version not in FORMATS:
        return None
    decode_meta(rows[META_KEY])
    return decode_note(rows[META_KEY]).transaction_id
