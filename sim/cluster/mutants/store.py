"""Bugs of the store: durability, and checks of rows that are read back."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from typing import Any

from sim.cluster.mutants.registry import mutant, replace_method


@mutant("store", "a commit is reported before it is on disk, and a crash loses it")
def fsync_skipped() -> None:
    from sim.cluster.world import disk

    finish, crash = disk._Thread._finish, disk._Thread.crash

    def unsynced_finish(self: Any) -> None:
        store = self.writer._work._store
        self.before = {
            key: {name: table.copy() for name, table in file.tables.items()} for key, file in store.disk.files.items()
        }
        finish(self)

    def losing_crash(self: Any) -> None:
        store = self.writer._work._store
        for key, tables in getattr(self, "before", {}).items():
            if key in store.disk.files:
                store.disk.files[key].tables = tables
        crash(self)

    disk._Thread._finish = unsynced_finish  # type: ignore[method-assign]
    disk._Thread.crash = losing_crash  # type: ignore[method-assign]


@mutant(
    "store",
    "a failed commit is reported as one for which there was no room, and tried again",
    fail_commit=6,
    fault_every=0.5,
)
def failed_commit_tried_again() -> None:
    from raftmq.storage.errors import CommitFailedError, StorageFullError
    from raftmq.storage.lmdb_log_store import LmdbLogStore

    def hopeful(original: Any) -> Any:
        def append_batch(self: Any, updates: Any) -> None:
            try:
                original(self, updates)
            except CommitFailedError as error:
                raise StorageFullError(updates[0][0], "perhaps there is room later") from error

        return append_batch

    replace_method(LmdbLogStore, "append_batch", hopeful)


@mutant("store", "rows are not checked when they are read", flip=6, kill=6, fault_every=0.4, replication_factor=3)
def checksums_ignored() -> None:
    from raftmq.storage import entry_codec, lmdb_file, log_scan, replica_codec, row_scrub

    for module in (entry_codec, log_scan, lmdb_file, replica_codec, row_scrub):
        module.is_intact = lambda key, value: True  # type: ignore[attr-defined]


@mutant(
    "store",
    "a missing or damaged file is replaced by an empty one under the same replica id",
    flip=6,
    kill=6,
    fault_every=0.4,
    replication_factor=3,
)
def starts_empty_after_loss() -> None:
    from raftmq.broker.cluster import replica_files
    from raftmq.broker.cluster import replica_manager as local_replicas
    from raftmq.broker.replica.initial_state import joiner_state
    from raftmq.storage.errors import DamagedReplicaError

    open_replica = replica_files.open_replica

    def open_or_begin_anew(store: Any, registry: Any, key: Any, machine: Any) -> Any:
        try:
            return open_replica(store, registry, key, machine)
        except DamagedReplicaError:
            store.retire(key)
            store.create(key, joiner_state(), ())
            return open_replica(store, registry, key, machine)

    local_replicas.open_replica = open_or_begin_anew  # type: ignore[attr-defined]


@mutant("store", "the applied index is written without the state rows", kill=6, fault_every=0.5)
def applied_index_without_rows() -> None:
    from dataclasses import replace

    from raftmq.broker.replica.commits import Commits

    replace_method(
        Commits,
        "_update",
        lambda original: lambda self, replica, work: replace(original(self, replica, work), state_rows=()),
    )


@mutant("store", "opening checks the whole log again and ignores the clean point", kill=6, fault_every=0.5)
def clean_point_ignored() -> None:
    from raftmq.storage import log_scan
    from raftmq.storage.lmdb_replica import LmdbReplica

    def read_all_meta(self: Any, transaction: Any, databases: Any, verify: Any, borders: Any = ()) -> None:
        original(self, transaction, databases, verify, borders)
        self.scanned = log_scan.scan(transaction, databases, self.meta, verify)

    original = LmdbReplica._read_all_meta
    LmdbReplica._read_all_meta = read_all_meta  # type: ignore[method-assign]
