"""What a row of updates of one replica amounts to: one write, checked against what is durable. Pure; both stores use it.

Several updates may become one transaction: entries that a later update replaces are never written, of state rows the
last value counts. Nothing is written before all of it is known to be allowed.
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
    """One transaction's worth of changes."""

    meta: ReplicaMeta
    """As it is when the write is done."""
    delete_from: LogIndex
    """Rows from here on are deleted first; beyond the durable log when none are replaced."""
    entries: Sequence[Entry]
    state_rows: dict[bytes, bytes | None]
    """None deletes."""


def plan_write(meta: ReplicaMeta, updates: Iterable[Update]) -> PendingWrite:
    """The write that brings `meta` through the updates, in order. Raises `InvariantError`; nothing is applied then."""
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
    """Thesis 3.4: a term never falls, and a vote cast in a term is never changed."""
    invariant(new.term >= durable.term, "term_monotone", durable=durable.term, new=new.term)
    invariant(
        new.term > durable.term or durable.vote in (0, new.vote),
        "vote_kept_within_term",
        term=new.term,
        durable=durable.vote,
        new=new.vote,
    )


def check_entries(meta: ReplicaMeta, entries: Sequence[Entry]) -> None:
    """The entries continue the log without a gap, in indexes and in offsets, and replace nothing that was truncated."""
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
    """The meta of a replica that starts without entries."""
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
    """The meta of a replica that was replaced by a snapshot: no entries, state as of its index."""
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
