"""The commands of a log partition and their results: tagged msgspec structs, encoded as MessagePack.

New commands and fields have a feature level (`feature_levels`). New fields are appended with defaults, and a tag is
never reused. A command with a field that this version does not know is not readable. Each command is checked when it is
applied, against the state at its place in the log, and answered with a result, never an error. Text fields are names
below 250 bytes of UTF-8.
"""

from __future__ import annotations

import msgspec
from raftmq.fsm.metadata_commands import Rejected


class LogCommand(msgspec.Struct, frozen=True, tag_field="t", omit_defaults=True, forbid_unknown_fields=True):
    """Base of all commands of a log partition."""


class OpenPartition(LogCommand, frozen=True, tag="open"):
    """Make a member of a consumer group the owner of the partition.

    It applies if `owner_epoch` is above the fence, or equal with the same member. Afterwards only (member, owner_epoch)
    may commit. Result: `Opened`, or `Rejected` with FENCED.
    """

    group: str
    member: str
    """Not empty."""
    owner_epoch: int
    """Metadata log index of the assignment, at least 1."""


class CommitOffset(LogCommand, frozen=True, tag="commit"):
    """Set a consumer group's committed offset (the next one to read) if (member, owner_epoch) matches the fence.

    Without a group protocol, in a group that no member may join, the committer is member "" with epoch 0: the fence of
    a group that was never opened. Result: `Committed`, or `Rejected` with FENCED, or with OFFSET_OUT_OF_RANGE above the
    log's end.
    """

    group: str
    member: str
    owner_epoch: int
    offset: int
    metadata: str = ""
    """The committer's own note, at most 4096 bytes."""
    finished: bytes = b""
    """Finished records beyond the offset, bounded by `raftmq.offset_ranges`. Each commit replaces the ranges of the
    previous one."""


class CommitOffsets(LogCommand, frozen=True, tag="commits"):
    """Carry several commits in one entry, checked one after the other. Result: `Results`, in the same order."""

    commits: tuple[CommitOffset, ...]


class ResetOffset(LogCommand, frozen=True, tag="reset"):
    """Set a consumer group's offset for an administrator, under a new epoch that fences the owner.

    Result: `Committed`, or `Rejected` with FENCED if the epoch is not above the fence. The same reset again is
    `Committed`.
    """

    group: str
    owner_epoch: int
    offset: int


class ForgetOffsets(LogCommand, frozen=True, tag="forget"):
    """Remove the offsets and fences of expired or deleted consumer groups.

    Groups touched at or after `before_time_ms` (append time) stay. Result: `Forgotten`.
    """

    groups: tuple[str, ...]
    before_time_ms: int


class TrimLog(LogCommand, frozen=True, tag="trim"):
    """Remove the records below `before_offset`, for retention and DeleteRecords.

    The log start never goes back and never passes the log's end. Result: `Trimmed`.
    """

    before_offset: int


LogPartitionCommand = OpenPartition | CommitOffset | CommitOffsets | ResetOffset | ForgetOffsets | TrimLog


class Opened(msgspec.Struct, frozen=True):
    """Result of OpenPartition."""

    offset: int
    """Committed offset, where the owner starts; -1 if none was ever committed."""
    metadata: str
    finished: bytes = b""
    """Ranges beyond the offset that earlier owners finished."""


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
    """Encode the payload of a COMMAND entry of a log partition."""
    return _ENCODER.encode(command)


def decode_command(payload: bytes) -> LogPartitionCommand | None:
    """Decode the command in a payload, or return None if this version cannot read one."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
