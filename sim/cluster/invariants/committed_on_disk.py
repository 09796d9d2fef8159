"""`CommittedOnDisk`: the entries that a disk names as committed are, at every moment at which the power may fail.

A restart applies the entries up to the commit index on its disk without asking anybody (thesis 3.8). So a disk must hold them all, they must be
those that the other disks of the group name, and the index must not go back. The check reads the rows on the simulated disk after each write, not
the node's own belief.
"""

from __future__ import annotations

import struct
from array import array

from raftmq.storage.entry_codec import KEY
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.replica_codec import META_KEY

from sim.cluster.world.disk import Disk
from sim.core.invariants.violation import InvariantViolation

_META = struct.Struct("<32xQQQ16xQ")
"""Commit index, index and term of the point after which the log starts, and last index, in a meta row. Neither its checksum nor that of an entry
is compared: this runs after every write."""
_ENTRY = struct.Struct("<QQ")
"""Index and term, at the beginning of an entry's row."""


class CommittedOnDisk:
    """The term of each entry that any disk has ever named as committed."""

    def __init__(self) -> None:
        self._terms: dict[int, array[int]] = {}
        """Group -> the terms by index. 0: no disk has named the entry."""
        self._checked: dict[tuple[Disk, ReplicaKey], int] = {}
        """The commit index on a disk after the latest write."""

    def on_written(self, disk: Disk, key: ReplicaKey, first_index: int | None = None) -> None:
        """Check a replica's disk after a write, whose entries begin at `first_index`. Entries that the write did not change were checked before."""
        file = disk.files.get(key)
        if file is None:
            return
        commit, start, start_term, last = _META.unpack_from(file.tables["meta"].rows[META_KEY])
        checked = self._checked.get((disk, key), 0)
        if commit > last:
            raise _broken(key, f"names {commit} as committed, and its log ends at {last}")
        if commit < checked:
            raise _broken(key, f"names {commit} as committed, and named {checked} before")
        self._checked[disk, key] = commit
        terms = self._terms.get(key.group_id)
        if terms is None:
            terms = self._terms[key.group_id] = array("Q")
        missing = max(commit, start) + 1 - len(terms)
        if missing > 0:
            terms.frombytes(bytes(missing * terms.itemsize))
        if terms[start] != start_term:
            self._learn(key, start, start_term)
        first = checked + 1 if first_index is None or first_index > checked else first_index
        rows = file.tables["log"].rows
        for index in range(max(first, start + 1), commit + 1):
            row = rows.get(KEY.pack(index))
            if row is None:
                raise _broken(key, f"lacks entry {index}, and names {commit} as committed")
            named, term = _ENTRY.unpack_from(row)
            if named != index:
                raise _broken(key, f"holds entry {named} as entry {index}")
            if terms[index] != term:
                self._learn(key, index, term)

    def _learn(self, key: ReplicaKey, index: int, term: int) -> None:
        """Remember the term of an entry, unless another one is known."""
        terms = self._terms[key.group_id]
        if terms[index]:
            raise _broken(
                key, f"names entry {index} of term {term} as committed, another one that of term {terms[index]}"
            )
        terms[index] = term


def _broken(key: ReplicaKey, problem: str) -> InvariantViolation:
    return InvariantViolation("CommittedOnDisk", f"the disk of r{key.replica_id} of g{key.group_id} {problem}")
