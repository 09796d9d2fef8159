"""`StateMachineSafety`, `OffsetsDense`: all replicas apply the same entry at an index (thesis 3.6.3), and the records of a partition
have offsets without gaps that never change (promise: offsets are dense and permanent).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c
from raftmq.batch_header import parse_header
from raftmq.client.codec.batch import decode_records
from raftmq.raft.entry import Entry, EntryHeader, EntryKind

from sim.core.invariants.violation import InvariantViolation


class Batch(NamedTuple):
    """The records of a committed entry."""

    base_offset: int
    values: tuple[bytes, ...]
    producer: tuple[int, int]
    """Producer id and epoch. Id 0 means a producer that is not idempotent."""
    first_sequence: int


class CommittedLog:
    """Every entry of every group that any replica ever applied."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple[int, int, int, int, int]] = {}
        """(group, index) -> term, kind, base offset, record count, checksum of the payload."""
        self._batches: dict[tuple[int, int], Batch] = {}
        """(group, base offset) -> its batch."""
        self.values: dict[tuple[int, int], bytes] = {}
        """(group, offset) -> value of the record."""
        self.ends: dict[int, int] = {}
        """Group -> offset after its last known record."""
        self.recovered: dict[int, None] = {}
        """Groups that another one replaced after a lost majority, and whose log that one continues under their id here."""
        self._shortened: dict[int, int] = {}
        """Group -> the group whose log it continues without its end."""
        self._last_index: dict[int, int] = {}
        self._next_offset: dict[int, int] = {}

    def on_applied(self, group_id: int, replica_id: int, entry: Entry, *, has_records: bool = True) -> bool:
        """Check an entry that a replica applies. Return True if it is new and has records. A queue's entries have none."""
        key = (group_id, entry.index)
        facts = (entry.term, int(entry.kind), entry.base_offset, entry.record_count, crc32c(entry.payload))
        known = self._entries.get(key)
        if known is not None:
            if known != facts and not (group_id in self.recovered and _is_emptied(known, facts)):
                raise InvariantViolation(
                    "StateMachineSafety",
                    f"r{replica_id} of g{group_id} applies {facts} at {entry.index}, another applied {known}",
                )
            return False
        self._entries[key] = facts
        last = self._last_index.get(group_id)
        if last is not None and entry.index == last + 1:
            expected = self._next_offset[group_id]
            if entry.base_offset != expected:
                raise InvariantViolation(
                    "OffsetsDense",
                    f"g{group_id} entry {entry.index} begins at offset {entry.base_offset}, the one before ends at {expected}",
                )
        if last is None or entry.index > last:
            self._last_index[group_id] = entry.index
            self._next_offset[group_id] = entry.base_offset + entry.record_count
        if entry.kind is not EntryKind.DATA or not has_records:
            return False
        header = parse_header(entry.payload)
        records = decode_records(entry.payload, header, "", 0, entry.base_offset)
        values = tuple(record.value or b"" for record in records)
        if len(values) != entry.record_count:
            raise InvariantViolation(
                "OffsetsDense",
                f"g{group_id} entry {entry.index} counts {entry.record_count} offsets and holds {len(values)} records",
            )
        batch = Batch(entry.base_offset, values, (header.producer_id, header.producer_epoch), header.first_sequence)
        self._batches[group_id, entry.base_offset] = batch
        for number, value in enumerate(values):
            self.values[group_id, entry.base_offset + number] = value
        self.ends[group_id] = max(self.ends.get(group_id, 0), entry.base_offset + len(values))
        return True

    def kept_until(self, group_id: int, first_index: int, entries: Iterable[EntryHeader]) -> int:
        """Return the first known entry of a log, from `first_index` on, that is not among the given ones, which are all that one replica has."""
        kept = {int(entry.index): entry for entry in entries}
        for index in range(first_index, self.last_index(group_id) + 1):
            known, entry = self._entries.get((group_id, index)), kept.get(index)
            if known is not None and (entry is None or not _is_same(known, entry)):
                return index
        return self.last_index(group_id) + 1

    def shorten(self, group_id: int, new_group_id: int, index: int) -> int:
        """Let a group continue another one's log without the entries from `index` on. Return the first offset that it lacks."""
        offset = self._entries[group_id, index][2]
        self._shortened[new_group_id] = group_id
        for (known_id, number), facts in list(self._entries.items()):
            if known_id == group_id and number < index:
                self._entries[new_group_id, number] = facts
        for (known_id, number), value in list(self.values.items()):
            if known_id == group_id and number < offset:
                self.values[new_group_id, number] = value
        for (known_id, number), batch in list(self._batches.items()):
            if known_id == group_id and number < offset:
                self._batches[new_group_id, number] = batch
        self.ends[new_group_id] = offset
        self._last_index[new_group_id], self._next_offset[new_group_id] = index - 1, offset
        return offset

    def batches(self, group_id: int) -> list[Batch]:
        """Return the known batches of a group, in their order."""
        return [self._batches[key] for key in sorted(self._batches) if key[0] == group_id]

    def holds(self, group_id: int, offset: int, value: bytes | None, oldest: int | None = None) -> bool:
        """Return whether a record is, or was, committed: in the group, or in one whose end was lost, back to `oldest`."""
        while self.values.get((group_id, offset)) != value:
            if group_id == oldest or group_id not in self._shortened:
                return False
            group_id = self._shortened[group_id]
        return True

    def last_index(self, group_id: int) -> int:
        """Return the last entry that any replica applied, or 0."""
        return self._last_index.get(group_id, 0)

    def batch_at(self, group_id: int, base_offset: int) -> Batch:
        """Return a committed batch."""
        return self._batches[group_id, base_offset]


def _is_emptied(known: tuple[int, ...], facts: tuple[int, ...]) -> bool:
    """Return whether a change of membership became an empty entry, since it names replicas of the group that was replaced."""
    return (known[1], facts[1]) == (EntryKind.MEMBERSHIP, EntryKind.EMPTY) and (known[0], *known[2:4]) == (
        facts[0],
        *facts[2:4],
    )


def _is_same(known: tuple[int, ...], entry: EntryHeader) -> bool:
    """Return whether a stored entry is a known one. A term has one entry at an index. A change of membership was emptied."""
    return (entry.term, entry.base_offset, entry.record_count) == (known[0], known[2], known[3])
