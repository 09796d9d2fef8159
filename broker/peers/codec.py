"""Encode and decode the frames between nodes: Raft messages, packed heartbeats, leadership, clocks, snapshot parts.

A frame is length, type and CRC32C, then a body. All integers are little-endian. Encoding returns lists of buffers, so that a record
batch is never copied when it is sent. Decoding checks every length, and the only error it raises is `FrameError`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c
from raftmq.raft.entry import Entry, EntryKind, LogPosition
from raftmq.raft.membership import Membership
from raftmq.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotMeta,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raftmq.types import GroupId, LogIndex, Offset, ReplicaId, Term

Buffer = bytes | bytearray | memoryview
Parts = list[Buffer]

WIRE_VERSION_MIN = 1
"""The oldest version of this protocol that is spoken. A peer that speaks none from this one to `WIRE_VERSION` is refused."""
WIRE_VERSION = 1
"""The newest version. A connection uses the highest version that both sides speak (`protocol.common_wire_version`)."""

NUMBER_MAX = (1 << 56) - 1
"""The largest id, term, index or offset. No cluster reaches it, and the number after a claimed term still fits into its 64 bits.
Counters of reads and rounds of votes are not limited, because they are only compared."""

FRAME_HEADER = struct.Struct("<IBI")
"""Body length, frame type, CRC32C of the body."""


class FrameType(IntEnum):
    """The type of a frame. Values are on the wire: never reuse one."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    HEARTBEATS = 10
    HEARTBEAT_RESPONSES = 11
    MESSAGE = 12
    LEADERSHIP = 13
    SNAPSHOT_BEGIN = 14
    SNAPSHOT_ROWS = 15
    SNAPSHOT_END = 16
    CLOCK_QUESTION = 17
    CLOCK = 18
    SNAPSHOT_RESUME = 19
    REQUEST = 20
    RESPONSE = 21
    CANCEL = 22


FRAME_TYPES = {int(one): one for one in FrameType}
"""Frame types by number: a lookup takes a fifth of the time of a call of the enumeration."""

LATER_FRAMES: dict[int, int] = {}
"""The wire version that introduced each frame type, by number, for those later than `WIRE_VERSION_MIN`. A connection of an earlier version
neither sends nor accepts them."""


class FrameError(Exception):
    """Raised when a peer sent something that this version does not understand. The connection is closed."""


def frame(frame_type: FrameType, body: Parts) -> Parts:
    """Return a frame around the body's parts."""
    length = 0
    crc = 0
    for part in body:
        length += len(part)
        crc = crc32c(part, crc)
    return [FRAME_HEADER.pack(length, frame_type, crc), *body]


# ---------------------------------------------------------------------------------------------------------- messages

_COMMON = struct.Struct("<QBQQQ")
"""group_id, message kind, source, target, term."""
_VOTE_REQUEST = struct.Struct("<QQQQQBB")
_VOTE_RESPONSE = struct.Struct("<QBBQQ")
_APPEND_REQUEST = struct.Struct("<QQQI")
_APPEND_RESPONSE = struct.Struct("<QBQQ")
_HEARTBEAT = struct.Struct("<QQ")
_COUNTER = struct.Struct("<Q")
_TWO = struct.Struct("<QQ")
_ENTRY = struct.Struct("<QQBQIqI")
"""index, term, kind, base_offset, record_count, append_time_ms, payload length."""


class _Kind(IntEnum):
    VOTE_REQUEST = 1
    VOTE_RESPONSE = 2
    APPEND_REQUEST = 3
    APPEND_RESPONSE = 4
    HEARTBEAT = 5
    HEARTBEAT_RESPONSE = 6
    TIMEOUT_NOW = 7
    READ_INDEX_REQUEST = 8
    READ_INDEX_RESPONSE = 9


_NOTHING = struct.Struct("<")
_LAYOUTS: dict[int, struct.Struct] = {
    _Kind.VOTE_REQUEST: _VOTE_REQUEST,
    _Kind.VOTE_RESPONSE: _VOTE_RESPONSE,
    _Kind.APPEND_RESPONSE: _APPEND_RESPONSE,
    _Kind.HEARTBEAT: _HEARTBEAT,
    _Kind.HEARTBEAT_RESPONSE: _COUNTER,
    _Kind.TIMEOUT_NOW: _NOTHING,
    _Kind.READ_INDEX_REQUEST: _COUNTER,
    _Kind.READ_INDEX_RESPONSE: _TWO,
}
"""The fields after the common part, for messages of fixed length."""


def encode_message(group_id: GroupId, message: Message) -> Parts:
    """Return the body of a MESSAGE frame. InstallSnapshot is not sent this way: see `encode_snapshot_begin`."""
    match message:
        case AppendRequest():
            parts: Parts = [
                _head(group_id, _Kind.APPEND_REQUEST, message)
                + _APPEND_REQUEST.pack(
                    message.prev_index, message.prev_term, message.commit_index, len(message.entries)
                )
            ]
            for entry in message.entries:
                parts.append(
                    _ENTRY.pack(
                        entry.index,
                        entry.term,
                        entry.kind,
                        entry.base_offset,
                        entry.record_count,
                        entry.append_time_ms,
                        len(entry.payload),
                    )
                )
                parts.append(entry.payload)
            return parts
        case AppendResponse():
            return [
                _head(group_id, _Kind.APPEND_RESPONSE, message)
                + _APPEND_RESPONSE.pack(message.index, message.is_rejected, message.hint_index, message.hint_term)
            ]
        case VoteRequest():
            return [
                _head(group_id, _Kind.VOTE_REQUEST, message)
                + _VOTE_REQUEST.pack(
                    message.round,
                    message.last_index,
                    message.last_term,
                    message.commit_index,
                    message.commit_term,
                    message.is_pre_vote,
                    message.is_transfer,
                )
            ]
        case VoteResponse():
            return [
                _head(group_id, _Kind.VOTE_RESPONSE, message)
                + _VOTE_RESPONSE.pack(
                    message.round, message.is_pre_vote, message.is_granted, message.commit_index, message.commit_term
                )
            ]
        case Heartbeat():
            return [
                _head(group_id, _Kind.HEARTBEAT, message) + _HEARTBEAT.pack(message.commit_index, message.read_counter)
            ]
        case HeartbeatResponse():
            return [_head(group_id, _Kind.HEARTBEAT_RESPONSE, message) + _COUNTER.pack(message.read_counter)]
        case TimeoutNow():
            return [_head(group_id, _Kind.TIMEOUT_NOW, message)]
        case ReadIndexRequest():
            return [_head(group_id, _Kind.READ_INDEX_REQUEST, message) + _COUNTER.pack(message.request_id)]
        case ReadIndexResponse():
            return [
                _head(group_id, _Kind.READ_INDEX_RESPONSE, message) + _TWO.pack(message.request_id, message.read_index)
            ]
        case InstallSnapshot():
            raise ValueError("a snapshot is streamed on its own channel")


def _head(group_id: GroupId, kind: _Kind, message: Message) -> bytes:
    return _COMMON.pack(group_id, kind, message.source, message.target, message.term)


def decode_message(body: memoryview) -> tuple[GroupId, Message]:
    """Decode the body of a MESSAGE frame. Payloads are copied out of the buffer."""
    try:
        group, kind, source_number, target_number, term_number = _COMMON.unpack_from(body)
        _check_numbers(group | source_number | target_number | term_number)
        source, target, term = ReplicaId(source_number), ReplicaId(target_number), Term(term_number)
        message = _decode_kind(kind, source, target, term, body)
    except (struct.error, ValueError) as error:
        raise FrameError(f"malformed message: {error}") from error
    return GroupId(group), message


def _check_numbers(union: int) -> None:
    """Check numbers, given their bitwise or: none may be above `NUMBER_MAX`."""
    if union > NUMBER_MAX:
        raise FrameError("a number above the limit")


def _check_columns(data: memoryview) -> None:
    """Check packed columns: the highest byte of every number must be 0."""
    if bytes(data[7::8]).strip(b"\0"):
        raise FrameError("a number above the limit")


def _decode_kind(kind: int, source: ReplicaId, target: ReplicaId, term: Term, body: memoryview) -> Message:
    at = _COMMON.size
    layout = _LAYOUTS.get(kind)
    if layout is not None and len(body) != at + layout.size:
        raise FrameError(f"a message of kind {kind} must have {at + layout.size} bytes, not {len(body)}")
    match kind:
        case _Kind.APPEND_REQUEST:
            prev_index, prev_term, commit, count = _APPEND_REQUEST.unpack_from(body, at)
            _check_numbers(prev_index | prev_term | commit)
            entries = _decode_entries(body, at + _APPEND_REQUEST.size, count)
            return AppendRequest(source, target, term, prev_index, prev_term, entries, commit)
        case _Kind.APPEND_RESPONSE:
            index, rejected, hint_index, hint_term = _APPEND_RESPONSE.unpack_from(body, at)
            _check_numbers(index | hint_index | hint_term)
            return AppendResponse(source, target, term, index, bool(rejected), hint_index, hint_term)
        case _Kind.VOTE_REQUEST:
            round_, last_index, last_term, commit, commit_term, pre, transfer = _VOTE_REQUEST.unpack_from(body, at)
            _check_numbers(last_index | last_term | commit | commit_term)
            return VoteRequest(
                source, target, term, round_, last_index, last_term, commit, commit_term, bool(pre), bool(transfer)
            )
        case _Kind.VOTE_RESPONSE:
            round_, pre, granted, commit, commit_term = _VOTE_RESPONSE.unpack_from(body, at)
            _check_numbers(commit | commit_term)
            return VoteResponse(source, target, term, round_, bool(pre), bool(granted), commit, commit_term)
        case _Kind.HEARTBEAT:
            commit, counter = _HEARTBEAT.unpack_from(body, at)
            _check_numbers(commit)
            return Heartbeat(source, target, term, commit, counter)
        case _Kind.HEARTBEAT_RESPONSE:
            return HeartbeatResponse(source, target, term, _COUNTER.unpack_from(body, at)[0])
        case _Kind.TIMEOUT_NOW:
            return TimeoutNow(source, target, term)
        case _Kind.READ_INDEX_REQUEST:
            return ReadIndexRequest(source, target, term, _COUNTER.unpack_from(body, at)[0])
        case _Kind.READ_INDEX_RESPONSE:
            request_id, index = _TWO.unpack_from(body, at)
            _check_numbers(index)
            return ReadIndexResponse(source, target, term, request_id, index)
        case _:
            raise FrameError(f"unknown message kind {kind}")


def _decode_entries(body: memoryview, at: int, count: int) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    end = len(body)
    for _ in range(count):
        index, term, kind, base_offset, record_count, time_ms, size = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        _check_numbers(index | term | base_offset)
        if at + size > end:
            raise FrameError("an entry's payload ends beyond its frame")
        entries.append(
            Entry(index, term, EntryKind(kind), base_offset, record_count, time_ms, bytes(body[at : at + size]))
        )
        at += size
    if at != end:
        raise FrameError(f"{end - at} bytes after the last entry")
    return tuple(entries)


# ---------------------------------------------------------------------------------------------------------- heartbeats


_BEAT_FIELDS = 6


HeartbeatRow = tuple[GroupId, ReplicaId, ReplicaId, Term, LogIndex, int]
"""One group's heartbeat: group, source, target, term, commit index, read counter."""


class HeartbeatColumns:
    """Heartbeats of many groups to one node. They are sent as columns."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[int] = []
        """The fields of all heartbeats, one heartbeat after another. `encode` turns them into columns."""

    def add(self, group_id: int, source: int, target: int, term: int, commit_index: int, read_counter: int) -> None:
        """Add one group's heartbeat."""
        self._rows += (group_id, source, target, term, commit_index, read_counter)

    def __len__(self) -> int:
        return len(self._rows) // _BEAT_FIELDS

    def encode(self) -> Parts:
        """Return the body of a HEARTBEATS or HEARTBEAT_RESPONSES frame. In a response the commit column is 0."""
        rows, columns = self._rows, array("Q")
        for field in range(_BEAT_FIELDS):
            columns.extend(rows[field::_BEAT_FIELDS])
        return [_packed(columns)]


def decode_heartbeats(body: memoryview) -> Sequence[Sequence[int]]:
    """Return six columns: group, source, target, term, commit, read counter."""
    if len(body) % 48:
        raise FrameError("heartbeat columns of unequal length")
    _check_columns(body[: len(body) // 6 * 5])
    columns = _unpacked(body)
    count = len(columns) // _BEAT_FIELDS
    return [columns[i * count : (i + 1) * count] for i in range(_BEAT_FIELDS)]


def encode_leadership(rows: Sequence[tuple[int, int, int]]) -> Parts:
    """Encode rows of (group id, term, node id or 0) as columns."""
    return [_packed(array("Q", [row[i] for row in rows])) for i in range(3)]


def decode_leadership(body: memoryview) -> list[tuple[int, int, int]]:
    """Decode the body of a LEADERSHIP frame."""
    if len(body) % 24:
        raise FrameError("leadership columns of unequal length")
    _check_columns(body)
    size = len(body) // 3
    columns = [_unpacked(body[i * size : (i + 1) * size]) for i in range(3)]
    return list(zip(*columns, strict=True))


def _packed(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array("Q", column)
        column.byteswap()
    return column.tobytes()


def _unpacked(data: memoryview) -> array[int]:
    column = array("Q")
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column


# ---------------------------------------------------------------------------------------------------------- clocks

_CLOCK_QUESTION = struct.Struct("<Q")
"""The question's number."""
_CLOCK = struct.Struct("<QQ")
"""The question's number, wall clock in milliseconds since the epoch."""


def encode_clock_question(number: int) -> Parts:
    """Return the body of a CLOCK_QUESTION frame."""
    return [_CLOCK_QUESTION.pack(number)]


def decode_clock_question(body: memoryview) -> int:
    """Decode the body of a CLOCK_QUESTION frame."""
    if len(body) != _CLOCK_QUESTION.size:
        raise FrameError(f"a CLOCK_QUESTION must have {_CLOCK_QUESTION.size} bytes, not {len(body)}")
    (number,) = _CLOCK_QUESTION.unpack(body)
    return int(number)


def encode_clock(number: int, wall_ms: int) -> Parts:
    """Return the body of a CLOCK frame. A clock from before the epoch is sent as 0, which is just as wrong."""
    return [_CLOCK.pack(number, max(0, wall_ms))]


def decode_clock(body: memoryview) -> tuple[int, int]:
    """Decode the body of a CLOCK frame."""
    if len(body) != _CLOCK.size:
        raise FrameError(f"a CLOCK must have {_CLOCK.size} bytes, not {len(body)}")
    number, wall_ms = _CLOCK.unpack(body)
    _check_numbers(wall_ms)
    return number, wall_ms


# ---------------------------------------------------------------------------------------------------------- snapshots

_SNAPSHOT_BEGIN = struct.Struct("<QQQQQQQQQqQQB")
"""stream id, group, snapshot id, source, target, term, position (index, term, next_offset, append_time), state_index, revision, auto."""
_COUNT = struct.Struct("<I")
_ROW = struct.Struct("<II")
_STREAM_END = struct.Struct("<QQ")
_STREAM_RESUME = struct.Struct("<QQQ")
SNAPSHOT_KEY_BYTES_MAX = 511
"""The longest key of a row, which is that of the storage."""
NOT_RESUMABLE = 0
"""The id of a snapshot that is streamed once: its rows are gone with the stream."""


class SnapshotBegin(NamedTuple):
    """The opening of a snapshot stream."""

    stream_id: int
    group_id: GroupId
    message: InstallSnapshot
    snapshot_id: int = NOT_RESUMABLE
    """Streams of one source with equal ids carry the same rows. Never reused, except `NOT_RESUMABLE`."""


def encode_snapshot_begin(
    stream_id: int, group_id: GroupId, message: InstallSnapshot, snapshot_id: int = NOT_RESUMABLE
) -> Parts:
    """Return the body of a SNAPSHOT_BEGIN frame."""
    meta = message.meta
    members = meta.membership
    parts: Parts = [
        _SNAPSHOT_BEGIN.pack(
            stream_id,
            group_id,
            snapshot_id,
            message.source,
            message.target,
            message.term,
            meta.position.index,
            meta.position.term,
            meta.position.next_offset,
            meta.position.append_time_ms,
            meta.state_index,
            members.revision,
            members.auto_leave,
        )
    ]
    for ids in (members.voters, members.learners, members.outgoing, members.learners_next):
        parts.append(_COUNT.pack(len(ids)))
        parts.append(_packed(array("Q", ids)))
    return parts


def decode_snapshot_begin(body: memoryview) -> SnapshotBegin:
    """Decode the body of a SNAPSHOT_BEGIN frame. The message's data is an empty list for the rows that follow."""
    try:
        (
            stream_id, group, snapshot_id, source, target, term,
            index, position_term, next_offset, time_ms, state_index, revision, auto_leave,
        ) = _SNAPSHOT_BEGIN.unpack_from(body)  # fmt: skip
        _check_numbers(group | source | target | term | index | position_term | next_offset | state_index | revision)
        at = _SNAPSHOT_BEGIN.size
        lists: list[tuple[ReplicaId, ...]] = []
        for _ in range(4):
            (count,) = _COUNT.unpack_from(body, at)
            at += _COUNT.size
            if at + 8 * count > len(body):
                raise FrameError("membership ends beyond its frame")
            _check_columns(body[at : at + 8 * count])
            lists.append(tuple(ReplicaId(i) for i in _unpacked(body[at : at + 8 * count])))
            at += 8 * count
        if at != len(body):
            raise FrameError(f"{len(body) - at} bytes after the membership")
    except struct.error as error:
        raise FrameError(f"malformed snapshot: {error}") from error
    membership = Membership(lists[0], lists[1], lists[2], lists[3], bool(auto_leave), revision)
    position = LogPosition(LogIndex(index), Term(position_term), Offset(next_offset), time_ms)
    meta = SnapshotMeta(position, LogIndex(state_index), membership)
    message = InstallSnapshot(ReplicaId(source), ReplicaId(target), Term(term), meta, [])
    return SnapshotBegin(stream_id, GroupId(group), message, snapshot_id)


def encode_snapshot_rows(stream_id: int, rows: Sequence[tuple[bytes, bytes]]) -> Parts:
    """Return the body of a SNAPSHOT_ROWS frame."""
    parts: Parts = [_COUNTER.pack(stream_id)]
    for key, value in rows:
        parts.append(_ROW.pack(len(key), len(value)))
        parts.append(key)
        parts.append(value)
    return parts


def snapshot_stream_of(body: memoryview) -> int:
    """Return the id of the stream to which a SNAPSHOT_ROWS frame belongs, without decoding its rows. Raises `FrameError`."""
    try:
        (stream_id,) = _COUNTER.unpack_from(body)
    except struct.error as error:
        raise FrameError(f"malformed rows: {error}") from error
    return int(stream_id)


def decode_snapshot_rows(body: memoryview) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Return (stream id, rows)."""
    rows: list[tuple[bytes, bytes]] = []
    try:
        (stream_id,) = _COUNTER.unpack_from(body)
        at = _COUNTER.size
        while at < len(body):
            key_size, value_size = _ROW.unpack_from(body, at)
            at += _ROW.size
            if at + key_size + value_size > len(body):
                raise FrameError("a row ends beyond its frame")
            rows.append((bytes(body[at : at + key_size]), bytes(body[at + key_size : at + key_size + value_size])))
            at += key_size + value_size
    except struct.error as error:
        raise FrameError(f"malformed rows: {error}") from error
    return stream_id, rows


def encode_snapshot_end(stream_id: int, row_count: int) -> Parts:
    """Return the body of a SNAPSHOT_END frame."""
    return [_STREAM_END.pack(stream_id, row_count)]


def decode_snapshot_end(body: memoryview) -> tuple[int, int]:
    """Return (stream id, number of rows sent)."""
    try:
        stream_id, count = _STREAM_END.unpack(body)
    except struct.error as error:
        raise FrameError(f"malformed end of a snapshot: {error}") from error
    return stream_id, count


class SnapshotResume(NamedTuple):
    """The rows of a snapshot that have arrived on an earlier stream."""

    stream_id: int
    """The stream on which the others are to follow."""
    snapshot_id: int
    """The snapshot of that stream. An id of a stream may be used again after a restart of the sender, and this one never is."""
    row_count: int
    last_key: bytes
    """The key of the last row."""


def encode_snapshot_resume(resume: SnapshotResume) -> Parts:
    """Return the body of a SNAPSHOT_RESUME frame."""
    return [_STREAM_RESUME.pack(resume.stream_id, resume.snapshot_id, resume.row_count), resume.last_key]


def decode_snapshot_resume(body: memoryview) -> SnapshotResume:
    """Decode the body of a SNAPSHOT_RESUME frame."""
    try:
        stream_id, snapshot_id, count = _STREAM_RESUME.unpack_from(body)
    except struct.error as error:
        raise FrameError(f"malformed resumption of a snapshot: {error}") from error
    last_key = bytes(body[_STREAM_RESUME.size :])
    if not last_key or len(last_key) > SNAPSHOT_KEY_BYTES_MAX:
        raise FrameError(f"a snapshot cannot be resumed after a key of {len(last_key)} bytes")
    return SnapshotResume(stream_id, snapshot_id, count, last_key)
