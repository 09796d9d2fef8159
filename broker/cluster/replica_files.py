"""Open and create the files of single replicas, and refuse data directories that must not be used.

A new replica's file is durable before its registry row. So a file that was written to and has no row belongs to a replica that
the registry has forgotten, and no empty replica may replace it.
"""

from __future__ import annotations

from contextlib import suppress

import structlog
from raftmq.broker.cluster.map_growth import grow_map_if_nearly_full
from raftmq.errors import UnsupportedDataError
from raftmq.fsm.state_machine import DiskBackedMachine, StateMachine
from raftmq.raft.core import RestoredState
from raftmq.storage.errors import (
    DamagedReplicaError,
    MissingReplicaError,
    RegistryError,
    ReplicaExistsError,
    StorageUnavailableError,
)
from raftmq.storage.file_check import CHECK_ERRORS
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import LOST_NODE_ADVICE, STALE_DIRECTORY_ADVICE, Registry
from raftmq.storage.registry_codec import ReplicaState
from raftmq.storage.row_stream import ClosableRows
from raftmq.types import METADATA_GROUP_ID, Term

log = structlog.get_logger(__name__)


def open_replica(store: LmdbLogStore, registry: Registry, key: ReplicaKey, machine: StateMachine) -> RestoredState:
    """Open a replica's file and restore its state machine to the durable state. Runs on the replica's writer thread.

    If a process died of a memory fault while it read the file, a child process checks the file first, because reading a damaged page
    may kill the process.

    Raises:
        DamagedReplicaError, MissingReplicaError: The replica must be quarantined.
        UnsupportedDataError: A newer version wrote the file or its state.
    """
    if registry.needs_verification(key):
        if not store.exists(key):
            raise MissingReplicaError(key, "its file is missing")
        problem = _find_problem(store, key)
        if problem is not None:
            raise DamagedReplicaError(key, problem)
        registry.mark_verified(key)
    restored = store.open(key)
    for part in store.parts(key):
        with suppress(StorageUnavailableError):  # it can be served without, and housekeeping tries again and reports it
            grow_map_if_nearly_full(store, key, part)
    try:
        machine.restore(_rows_in_memory(store, key, machine), restored.state_index)
    except (ValueError, TypeError, KeyError, LookupError) as error:  # a row cannot be decoded
        raise DamagedReplicaError(key, f"its state cannot be restored: {error}") from error
    except (StorageUnavailableError, UnsupportedDataError):
        store.close(key)  # opening will be tried again, and no file may be open twice
        raise
    return restored


def _rows_in_memory(store: LmdbLogStore, key: ReplicaKey, machine: StateMachine) -> ClosableRows:
    """Return the durable rows that the machine's `restore` takes.

    Raises:
        DamagedReplicaError: The replica's files are not those of its kind of topic.
    """
    is_disk_backed = isinstance(machine, DiskBackedMachine)
    if is_disk_backed != store.has_state_file(key):
        raise DamagedReplicaError(key, "its files are not those of its topic's kind")
    if not isinstance(machine, DiskBackedMachine):
        return store.state_rows(key)
    return store.resident_rows(key, [(one.first_key, one.end_key) for one in machine.resident_ranges])


def _find_problem(store: LmdbLogStore, key: ReplicaKey) -> str | None:
    """Have a child process check a closed file. Return the problem found, or None if there is none.

    None is also returned if the check could not be made, because that is no reason to give the replica up or to keep it closed.
    Opening and every read still check what they read.
    """
    try:
        return store.verify(key)
    except CHECK_ERRORS as error:
        log.warning("replica_not_verified", group_id=key.group_id, replica_id=key.replica_id, reason=str(error))
        return None


def create_replica(
    store: LmdbLogStore, registry: Registry, key: ReplicaKey, state: RestoredState, *, has_state_file: bool = False
) -> None:
    """Make a new replica durable: first its files, then its registry row. Only then may it speak.

    A crash between these steps leaves an untouched file without a row, which is reused. A file that was written to belongs to a
    replica that spoke, which shows that the registry is older than the file.

    Raises:
        DamagedReplicaError: A file exists that was written to or cannot be read. It is left unchanged.
    """
    try:
        if has_state_file:
            store.create_with_state_file(key, state)
        else:
            store.create(key, state, ())
    except ReplicaExistsError:
        problem = _find_problem(store, key) or _difference(store, key, state)
        if problem is not None:
            raise DamagedReplicaError(key, f"the registry does not know its file: {problem}") from None
    registry.add_replica(key)
    registry.mark_open([key])


def found_replica(store: LmdbLogStore, registry: Registry, key: ReplicaKey, old: ReplicaKey, term: Term) -> None:
    """Have a replica found a new group with the files of one whose group has lost its majority. Only then may it speak.

    A crash between the steps is harmless: the files say whose they are, and the registry row comes last.

    Raises:
        DamagedReplicaError, MissingReplicaError: The old replica cannot be continued.
    """
    store.close(old)
    store.found(key, old, term)
    registry.add_replica(key)
    registry.mark_open([key])


def _difference(store: LmdbLogStore, key: ReplicaKey, state: RestoredState) -> str | None:
    """Return None if a closed file is that of a replica that was created in `state` and never spoke, else the reason why not."""
    found = store.open(key)
    store.close(key)
    return None if found == state else "it was written to, so the registry is older than it"


def refuse_lost_registry(store: LmdbLogStore, registry: Registry) -> None:
    """Refuse a directory with replica files and an empty registry.

    A node has an identity before its first replica file, so its registry was lost. Forming or joining a cluster would replace these
    replicas by others.

    Raises:
        RegistryError: The registry was lost. It is closed, and no file was changed.
    """
    if registry.uuid:
        return
    files = store.stored_replicas()
    if files:
        registry.close(is_clean=True)
        raise RegistryError(
            f"node.mdb was lost: there are files of {len(files)} replicas, and nothing says which broker of which cluster this is. No "
            f"replica was touched: {LOST_NODE_ADVICE}"
        )


def refuse_stale_directory(registry: Registry) -> None:
    """Refuse a directory that its cluster refused before. Each further start would count a boot and make it look newer than it is.

    Raises:
        RegistryError: The cluster refused the directory. The registry is closed.
    """
    if registry.refusal:
        reason = registry.refusal
        registry.close(is_clean=True)
        raise RegistryError(f"the cluster refuses this data directory permanently: {reason}; {STALE_DIRECTORY_ADVICE}")


def retire_old_metadata(store: LmdbLogStore, registry: Registry) -> None:
    """Move the files of retired metadata replicas to the trash: a crash ended `raftmq recover` after the registry had given them up."""
    for key in store.stored_replicas():
        row = registry.replica(key) if key.group_id == METADATA_GROUP_ID else None
        if row is not None and row.state is ReplicaState.RETIRED:
            store.retire(key)
