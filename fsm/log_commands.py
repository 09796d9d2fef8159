"""A log partition's commands and their results: msgspec structs, tagged, encoded as MessagePack.

New commands and fields have a feature level (`feature_levels`); new fields are appended with defaults; a tag is never
reused. A command with a field that this version does not know is not readable. All are judged when applied, against the state at their
place in the log, and answered with a result, never an error. Text fields are names below 250 bytes of UTF-8.
"""

from __future__ import annotations

import msgspec
from raftmq.fsm.metadata_commands import Rejected


class LogCommand(msgspec.Struct, frozen=True, tag_field="t", omit_defaults=True, forbid_unknown_fields=True):
    """Base of all commands of a log partition."""


class OpenPartition(LogCommand, frozen=True, tag="open"):
    """A member of a consumer group takes the partition.

    Applies if `owner_epoch` is above the fence, or equal with the same member. From then on only (member, owner_epoch)
    commits. Result `Opened` or `Rejected` FENCED.
    """

    group: str
    member: str
    """Not empty."""
    owner_epoch: int
    """Metadata log index of the assignment, at least 1."""


class CommitOffset(LogCommand, frozen=True, tag="commit"):
    """Sets a group's committed offset (the next one to read) if (member, owner_epoch) is the fence.

    Without a group protocol, in a group that no member may join: member "" and epoch 0, the fence of a group that was
    never opened. Result `Committed`, or `Rejected`: FENCED, or OFFSET_OUT_OF_RANGE above the log's end.
    """

    group: str
    member: str
    owner_epoch: int
    offset: int
    metadata: str = ""
    """The committer's own note, at most 4096 bytes."""
    finished: bytes = b""
    """What is finished beyond the offset: `raftmq.offset_ranges`, which bounds it. A commit replaces what the one before it said."""


class CommitOffsets(LogCommand, frozen=True, tag="commits"):
    """Several commits in one entry, judged one after the other. Result `Results`, in order."""

    commits: tuple[CommitOffset, ...]


class ResetOffset(LogCommand, frozen=True, tag="reset"):
    """An administrator sets a group's offset under a new epoch, which fences the owner.

    Result `Committed` or `Rejected` FENCED (the epoch is not above the fence; the same reset again is `Committed`).
    """

    group: str
    owner_epoch: int
    offset: int


class ForgetOffsets(LogCommand, frozen=True, tag="forget"):
    """Drops offsets and fences of expired or deleted groups.

    Those touched at or after `before_time_ms` (append time) stay. Result `Forgotten`.
    """

    groups: tuple[str, ...]
    before_time_ms: int


class TrimLog(LogCommand, frozen=True, tag="trim"):
    """Records below `before_offset` are gone: retention and DeleteRecords.

    Never goes back, and never past the log's end. Result `Trimmed`.
    """

    before_offset: int


LogPartitionCommand = OpenPartition | CommitOffset | CommitOffsets | ResetOffset | ForgetOffsets | TrimLog


class Opened(msgspec.Struct, frozen=True):
    """Result of OpenPartition."""

    offset: int
    """Committed offset, where the owner starts; -1: none was ever committed."""
    metadata: str
    finished: bytes = b""
    """What earlier owners finished beyond the offset."""


class Committed(msgspec.Struct, frozen=True):
    """Result of CommitOffset and ResetOffset."""

    offset: int


class Results(msgspec.Struct, frozen=True):
    """Result of CommitOffsets, one per commit."""

    results: tuple[Committed | Rejected, ...]


class Forgotten(msgspec.Struct, frozen=True):
    """Result of ForgetOffsets."""

    count: int


class Trimmed(msgspec.Struct, frozen=True):
    """Result of TrimLog."""

    log_start_offset: int


LogResult = Opened | Committed | Results | Forgotten | Trimmed | Rejected

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: msgspec.msgpack.Decoder[LogPartitionCommand] = msgspec.msgpack.Decoder(LogPartitionCommand)


def encode_command(command: LogPartitionCommand) -> bytes:
    """The payload of a COMMAND entry of a log partition."""
    return _ENCODER.encode(command)


def decode_command(payload: bytes) -> LogPartitionCommand | None:
    """The command in a payload, or None if there is none that this version can read."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
