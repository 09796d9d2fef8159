"""The committed offsets of consumer groups in a log partition, each protected by a fence.

The fence of a consumer group is (member, owner epoch): only that owner may commit. Epochs are metadata log indexes, so
they are never reused, not even by a consumer group that was deleted and created again. Opening and resetting raise the
fence. A commit must match it.

Source: KIP-848 (member epochs), moved into the partition's own log.
"""

from __future__ import annotations

from typing import Final

import msgspec
from raftmq.fsm import codes
from raftmq.fsm.log_commands import (
    CommitOffset,
    Committed,
    ForgetOffsets,
    Forgotten,
    Opened,
    OpenPartition,
    ResetOffset,
)
from raftmq.fsm.metadata_commands import Rejected
from raftmq.fsm.tables import Table, is_key_text, text_table
from raftmq.offset_ranges import OffsetRangesError, decode_ranges

NO_OFFSET: Final = -1
GROUPS_MAX: Final = 10_000
"""Maximum number of consumer groups with state in one partition, about 5 MB. A new group beyond it is refused until
empty groups expire. Workers with slow records add some hundred bytes each, at most `offset_ranges.RANGES_BYTES_MAX`."""
COMMIT_METADATA_BYTES_MAX: Final = 4096
OWNER_EPOCH_MAX: Final = (1 << 63) - 1


class GroupOffset(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The row of a consumer group."""

    member: str = ""
    """The member that may commit. "" with epoch 0 means never opened; "" with a higher epoch means reset and not opened
    since."""
    owner_epoch: int = 0
    offset: int = NO_OFFSET
    """The committed offset: the next offset to read."""
    metadata: str = ""
    touched_time_ms: int = 0
    """Append time of the last command that was applied for the consumer group."""
    finished: bytes = b""
    """Finished records beyond the offset, as encoded by the last commit (`raftmq.offset_ranges`)."""


_NEVER_OPENED: Final = GroupOffset()


class GroupOffsets:
    """Hold the offsets of all consumer groups of one partition."""

    __slots__ = ("table",)

    def __init__(self, tag: int) -> None:
        self.table: Table[str, GroupOffset] = text_table(tag, GroupOffset)

    def get(self, group: str) -> GroupOffset | None:
        """Return the row of a consumer group, or None."""
        return self.table.get(group)

    def groups(self) -> tuple[tuple[str, GroupOffset], ...]:
        """Return all consumer groups by name."""
        return tuple(self.table.ordered())

    def open(self, command: OpenPartition, now_ms: int) -> Opened | Rejected:
        """Raise the fence to a new owner, or confirm it to the present owner."""
        if not is_key_text(command.member) or not 1 <= command.owner_epoch <= OWNER_EPOCH_MAX:
            return Rejected(codes.INVALID_ARGUMENT, "a partition is opened by a named member under an epoch above 0")
        known = self._known(command.group)
        if isinstance(known, Rejected):
            return known
        is_owner = (command.member, command.owner_epoch) == (known.member, known.owner_epoch)
        if command.owner_epoch <= known.owner_epoch and not is_owner:
            return _fenced(command.group, known)
        opened = msgspec.structs.replace(
            known, member=command.member, owner_epoch=command.owner_epoch, touched_time_ms=now_ms
        )
        self.table.put(command.group, opened)
        return Opened(known.offset, known.metadata, known.finished)

    def commit(self, command: CommitOffset, log_end_offset: int, now_ms: int) -> Committed | Rejected:
        """Set the offset if the committer matches the fence. A commit may go back, because a consumer may seek."""
        if (
            len(command.metadata) > COMMIT_METADATA_BYTES_MAX
            or len(command.metadata.encode()) > COMMIT_METADATA_BYTES_MAX
        ):
            return Rejected(codes.INVALID_ARGUMENT, f"a commit's note has at most {COMMIT_METADATA_BYTES_MAX} bytes")
        known = self._known(command.group)
        if isinstance(known, Rejected):
            return known
        if (command.member, command.owner_epoch) != (known.member, known.owner_epoch):
            return _fenced(command.group, known)
        if not 0 <= command.offset <= log_end_offset:
            return _out_of_range(command.offset, log_end_offset)
        fault = _fault_of_finished(command, log_end_offset)
        if fault is not None:
            return fault
        self.table.put(
            command.group,
            GroupOffset(known.member, known.owner_epoch, command.offset, command.metadata, now_ms, command.finished),
        )
        return Committed(command.offset)

    def reset(self, command: ResetOffset, log_end_offset: int, now_ms: int) -> Committed | Rejected:
        """Set the offset under a new epoch that has no owner, so that the previous owner must open the partition again."""
        if not 1 <= command.owner_epoch <= OWNER_EPOCH_MAX:
            return Rejected(codes.INVALID_ARGUMENT, "an offset is reset under an epoch above 0")
        known = self._known(command.group)
        if isinstance(known, Rejected):
            return known
        is_repeated = (known.member, known.owner_epoch) == ("", command.owner_epoch)
        if command.owner_epoch <= known.owner_epoch and not is_repeated:
            return _fenced(command.group, known)
        if not 0 <= command.offset <= log_end_offset:
            return _out_of_range(command.offset, log_end_offset)
        self.table.put(command.group, GroupOffset("", command.owner_epoch, command.offset, "", now_ms))
        return Committed(command.offset)

    def forget(self, command: ForgetOffsets) -> Forgotten:
        """Remove consumer groups that were not touched since the given time."""
        idle = [
            group
            for group in dict.fromkeys(command.groups)
            if (known := self.table.get(group)) is not None and known.touched_time_ms < command.before_time_ms
        ]
        for group in idle:
            self.table.delete(group)
        return Forgotten(len(idle))

    def _known(self, group: str) -> GroupOffset | Rejected:
        """Return the group's row, an empty row for a group that was never opened, or the reason why there can be none."""
        known = self.table.get(group)
        if known is not None:
            return known
        if not is_key_text(group):
            return Rejected(codes.INVALID_ARGUMENT, "a group's name has between 1 and 249 bytes")
        if len(self.table.by_key) >= GROUPS_MAX:
            return Rejected(codes.THROTTLED, f"the partition holds offsets of {GROUPS_MAX} groups")
        return _NEVER_OPENED


def _fault_of_finished(command: CommitOffset, log_end_offset: int) -> Rejected | None:
    if not command.finished:
        return None
    try:
        ranges = decode_ranges(command.offset, command.finished)
    except OffsetRangesError as error:
        return Rejected(codes.INVALID_ARGUMENT, str(error))
    return _out_of_range(ranges[-1][1], log_end_offset) if ranges[-1][1] > log_end_offset else None


def _fenced(group: str, known: GroupOffset) -> Rejected:
    return Rejected(
        codes.FENCED, f"group {group!r} is at owner epoch {known.owner_epoch} here, owned by {known.member!r}"
    )


def _out_of_range(offset: int, log_end_offset: int) -> Rejected:
    return Rejected(codes.OFFSET_OUT_OF_RANGE, f"offset {offset} is not between 0 and {log_end_offset}")
