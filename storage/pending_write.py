"""Merges several updates of one replica into one write and checks it against the durable state. It is pure, and both stores use it.

Several updates may become one transaction. Entries that a later update replaces are never written, and the last value of a
state row counts. Nothing is written before all of it has been checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from raftmq.errors import invariant
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import Entry, EntryKind, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.log_store import STATE_KEY_BYTES_MAX, Update
from raftmq.storage.replica_codec import ReplicaMeta
from raftmq.types import LogIndex, Offset


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """The changes of one transaction."""

    meta: ReplicaMeta
    """The meta row after the write."""
    delete_from: LogIndex
    """Log rows from here on are deleted first. It is after the durable log if no rows are replaced."""
    entries: Sequence[Entry]
    state_rows: dict[bytes, bytes | None]
    """A value of None deletes the row."""


def plan_write(meta: ReplicaMeta, updates: Iterable[Update]) -> PendingWrite:
    """Merge the updates, in order, into one write on top of `meta`. Raises `InvariantError` if one of them is not allowed."""
    delete_from = meta.last_index + 1
    entries: list[Entry] = []
    rows: dict[bytes, bytes | None] = {}
    for update in updates:
        if update.entries:
            first = update.entries[0].index
            check_entries(meta, update.entries)
            while entries and entries[-1].index >= first:
                entries.pop()
            delete_from = min(delete_from, first)
            entries.extend(update.entries)
        if update.state_rows:
            invariant(update.state_index is not None, "state_rows_have_index")
            rows.update(update.state_rows)
            for key, _ in update.state_rows:
                invariant(0 < len(key) <= STATE_KEY_BYTES_MAX, "state_key_fits", key=key)
        meta = _advance(meta, update)
    return PendingWrite(meta, LogIndex(delete_from), entries, rows)


def _advance(meta: ReplicaMeta, update: Update) -> ReplicaMeta:
    hard_state = update.hard_state
    if hard_state is None:
        hard_state = meta.hard_state
    else:
        check_hard_state(meta.hard_state, hard_state)
    last_index, last_next_offset, last_time = meta.last_index, meta.last_next_offset, meta.last_append_time_ms
    if update.entries:
        last = update.entries[-1]
        last_index, last_next_offset, last_time = last.index, last.next_offset, last.append_time_ms
    state_index = meta.state_index
    if update.state_index is not None:
        invariant(
            update.state_index >= state_index, "state_index_monotone", durable=state_index, new=update.state_index
        )
        state_index = update.state_index
    position = meta.position
    if update.truncation is not None:
        _check_truncation(position, update.truncation, last_index, last_next_offset, state_index)
        position = update.truncation
    if update.membership is not None:
        invariant(update.state_index is not None, "membership_has_index")
    return ReplicaMeta(
        hard_state,
        position,
        last_index,
        last_next_offset,
        last_time,
        state_index,
        meta.membership if update.membership is None else update.membership,
    )


def check_hard_state(durable: HardState, new: HardState) -> None:
    """Check that the term does not fall and that a vote cast in a term is not changed (thesis 3.4)."""
    invariant(new.term >= durable.term, "term_monotone", durable=durable.term, new=new.term)
    invariant(
        new.term > durable.term or durable.vote in (0, new.vote),
        "vote_kept_within_term",
        term=new.term,
        durable=durable.vote,
        new=new.vote,
    )


def check_entries(meta: ReplicaMeta, entries: Sequence[Entry]) -> None:
    """Check that the entries continue the log without a gap in indexes or offsets, and replace no truncated entry."""
    first = entries[0]
    last_index = meta.last_index
    invariant(
        meta.position.index < first.index <= last_index + 1,
        "log_has_no_gap",
        position=meta.position.index,
        last_index=last_index,
        first=first.index,
    )
    index, next_offset = first.index, first.base_offset
    if first.index == last_index + 1:
        next_offset = meta.last_next_offset
    for entry in entries:
        invariant(
            entry.index == index and entry.base_offset == next_offset,
            "entries_continuous",
            index=entry.index,
            expected_index=index,
            base_offset=entry.base_offset,
            expected_offset=next_offset,
        )
        invariant(
            (entry.record_count > 0) == (entry.kind is EntryKind.DATA),
            "only_data_has_records",
            index=entry.index,
            record_count=entry.record_count,
        )
        index = LogIndex(index + 1)
        next_offset = entry.next_offset


def _check_truncation(
    old: LogPosition, new: LogPosition, last_index: LogIndex, last_next_offset: Offset, state_index: LogIndex
) -> None:
    invariant(
        old.index <= new.index <= min(last_index, state_index),
        "truncation_within_durable_state",
        old=old.index,
        new=new.index,
        last_index=last_index,
        state_index=state_index,
    )
    invariant(
        new.next_offset == last_next_offset if new.index == last_index else new.next_offset <= last_next_offset,
        "truncation_offset_fits",
        new=new,
        last_next_offset=last_next_offset,
    )


def meta_of_new_replica(restored: RestoredState) -> ReplicaMeta:
    """Return the meta of a replica that starts without entries."""
    position = restored.position
    invariant(
        restored.last_index == position.index and not restored.term_starts,
        "new_replica_has_no_entries",
        position=position.index,
        last_index=restored.last_index,
    )
    return ReplicaMeta(
        restored.hard_state,
        position,
        position.index,
        position.next_offset,
        position.append_time_ms,
        restored.state_index,
        restored.membership,
    )


def meta_of_snapshot(current: ReplicaMeta, hard_state: HardState, snapshot: SnapshotMeta) -> ReplicaMeta:
    """Return the meta of a replica that was replaced by a snapshot: no entries, and the state as of the snapshot's index."""
    check_hard_state(current.hard_state, hard_state)
    position = snapshot.position
    return replace(
        current,
        hard_state=hard_state,
        position=position,
        last_index=position.index,
        last_next_offset=position.next_offset,
        last_append_time_ms=position.append_time_ms,
        state_index=snapshot.state_index,
        membership=snapshot.membership,
    )
