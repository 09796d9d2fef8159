"""Checks the writes of a state file against its durable meta row, and returns the next one. It is pure, and both stores use it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from raftmq.errors import invariant, violated
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.log_store import STATE_KEY_BYTES_MAX, StateRow, Update
from raftmq.storage.pending_write import PendingWrite, plan_write
from raftmq.storage.replica_codec import ReplicaMeta
from raftmq.storage.row_stream import Row
from raftmq.storage.state_codec import StateMeta
from raftmq.storage.state_store import (
    BODY_TAG,
    EVACUATED_BODIES_MAX,
    LocatedBody,
    StateWrite,
    is_body,
    is_location,
    sequence_of,
)
from raftmq.types import NO_REPLICA, LogIndex


def state_meta_of_new_replica(restored: RestoredState) -> StateMeta:
    """Return the meta of a state file without rows."""
    return _state_meta(SnapshotMeta(restored.position, restored.state_index, restored.membership))


def state_meta_of_snapshot(log_start: LogPosition, snapshot: SnapshotMeta) -> StateMeta:
    """Return the meta of a state file that was replaced by a snapshot. `log_start` is the position of the log before."""
    # otherwise `open` could not tell that the log has not followed yet
    invariant(
        snapshot.position.index >= log_start.index,
        "snapshot_is_newer",
        durable=log_start.index,
        new=snapshot.position.index,
    )
    return _state_meta(snapshot)


def _state_meta(snapshot: SnapshotMeta) -> StateMeta:
    # messages at or after the log's first offset arrive with the log, so their bodies count as not evacuated
    return StateMeta(snapshot.state_index, snapshot.membership, snapshot.position.next_offset - 1, snapshot.position)


def rows_of_snapshot(rows: Iterable[Row], position: LogPosition) -> Iterator[Row]:
    """Yield the rows of a snapshot without the bodies that its log brings, which would otherwise outlive their messages."""
    return (row for row in rows if not is_body(row[0]) or sequence_of(row[0]) < position.next_offset)


def plan_state_write(meta: StateMeta, write: StateWrite) -> StateMeta:
    """Return the meta row after a write-back. Raises `InvariantError` if it is not allowed. Its rows are left to `check_state_rows`."""
    invariant(
        write.state_index >= meta.state_index,
        "state_index_monotone",
        durable=meta.state_index,
        new=write.state_index,
    )
    membership = meta.membership if write.membership is None else write.membership
    return replace(meta, state_index=write.state_index, membership=membership)


def check_state_rows(rows: Iterable[StateRow]) -> None:
    """Check the keys of rows of a write-back. There may be many, so this is one comparison for a row that is right."""
    for key, _ in rows:
        if not 0 < len(key) <= STATE_KEY_BYTES_MAX:
            violated("state_key_fits", key=key)
        if key[0] == BODY_TAG:
            violated("bodies_are_evacuated", key=key)


def body_of_deleted(meta: StateMeta, key: bytes) -> int | None:
    """Return the sequence whose body must be deleted together with this row, or None."""
    if not is_location(key):
        return None
    sequence = sequence_of(key)
    return sequence if sequence <= meta.evacuated_through else None


def check_evacuation(meta: StateMeta, bodies: Sequence[LocatedBody]) -> None:
    """Check that the bodies are few, of one generation, in order, and after those evacuated before."""
    invariant(0 < len(bodies) <= EVACUATED_BODIES_MAX, "evacuation_is_bounded", bodies=len(bodies))
    keys = [key for key, _ in bodies]
    invariant(
        all(map(is_location, keys)) and keys == sorted(set(keys)) and len({key[:-8] for key in keys}) == 1,
        "evacuation_is_ordered",
        first=keys[0],
        last=keys[-1],
    )
    invariant(
        sequence_of(keys[0]) > meta.evacuated_through,
        "evacuation_advances",
        evacuated_through=meta.evacuated_through,
        first=sequence_of(keys[0]),
    )


def bodies_alive(bodies: Sequence[LocatedBody], locations: Collection[bytes]) -> list[LocatedBody]:
    """Return the bodies whose messages still have a location.

    Args:
        bodies: The bodies to evacuate.
        locations: All locations of their generation after `evacuated_through`, up to that of the last body.
    """
    alive = [body for body in bodies if body[0] in locations]
    invariant(len(alive) == len(locations), "evacuation_is_complete", bodies=len(alive), locations=len(locations))
    return alive


def after_evacuation(meta: StateMeta, bodies: Sequence[LocatedBody]) -> StateMeta:
    """Return the meta row after the bodies were evacuated."""
    return replace(meta, evacuated_through=sequence_of(bodies[-1][0]))


# ------------------------------------------------------------------------------------------------------- the log beside it


def plan_log_write(meta: ReplicaMeta, updates: Sequence[Update], state_index: LogIndex) -> PendingWrite:
    """Merge updates of a log whose state is in a file of its own, where it is durable up to `state_index`. See `plan_write`."""
    for update in updates:
        invariant(
            not update.state_rows and update.state_index is None and update.membership is None,
            "state_is_in_its_own_file",
            state_index=update.state_index,
        )
    if meta.state_index != state_index:  # the state was written since the log was
        meta = replace(meta, state_index=state_index)
    return plan_write(meta, updates)


def check_bodies_stay(updates: Sequence[Update], first_location: int | None) -> None:
    """Check that a truncation keeps the entries of all messages whose bodies were not evacuated."""
    for update in updates:
        invariant(
            update.truncation is None or first_location is None or update.truncation.next_offset <= first_location,
            "truncation_keeps_bodies",
            truncation=update.truncation,
            first_location=first_location,
        )


def hard_state_after_snapshot(hard_state: HardState, position: LogPosition) -> HardState:
    """Return the hard state for repeating the second step of an installation: the one stored, or the snapshot's term.

    The term of the sender may not have become durable before the process ended. Nobody was answered in it, and a term in which an
    entry was committed may always be adopted.
    """
    if position.term > hard_state.term:
        return HardState(position.term, NO_REPLICA, position.index)
    return replace(hard_state, commit_index=position.index)
