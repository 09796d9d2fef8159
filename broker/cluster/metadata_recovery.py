"""Revive a cluster that has lost the majority of its metadata, from the data directory of one stopped broker.

The kept broker becomes the only voter of a new metadata group under a new cluster id. Every handshake compares cluster ids, so brokers of
the old metadata group and the new one never talk to each other, and none is served by the other. Other surviving brokers leave the old
cluster (`leave_cluster`) and join the new one with their uuid and their partitions' data.

Ids and revisions that the lost voters may have given out after the kept metadata must never be given out again. So all counters and the
index of the new group's first snapshot skip far ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from raftmq.errors import UnsupportedDataError
from raftmq.fsm.metadata import Metadata
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.storage.directory_lock import kept_from_brokers
from raftmq.storage.doctor import NEWER_ADVICE, NoDataDirectoryError
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.errors import (
    DamagedReplicaError,
    DirectoryInUseError,
    MissingReplicaError,
    RegistryError,
    StorageUnavailableError,
)
from raftmq.storage.file_inspection import examine_registry, examine_replica, read_replica
from raftmq.storage.lmdb_log_store import LmdbLogStore, replica_files, replica_path
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.meta_pages import check_commits
from raftmq.storage.registry import Registry
from raftmq.storage.registry_codec import ReplicaState, transaction_id_in
from raftmq.types import METADATA_GROUP_ID, GroupId, LogIndex, ReplicaId, Term

REGISTRY_FILE: Final = "node.mdb"
INDEX_GAP: Final = 1_000_000
"""Entries that the lost voters may have committed after the kept log. Revisions and owner epochs of consumer groups are such indexes."""
TERM_GAP: Final = 1000
"""Terms that the lost voters may have used. Clients take a leader with a lower epoch for an older one."""
_LOST_ADVICE: Final = "keep the directory, and use that of another broker. See raftmq doctor about this one"
_UNUSABLE: Final = "the metadata replica of this broker cannot be used"
_OTHER_ADVICE: Final = "stop the broker first, or use the directory of another broker"
_SLICE_BYTES: Final = 8 * 1024 * 1024


class MetadataRecoveryError(Exception):
    """A data directory cannot be used for a recovery. Nothing was changed."""


class LostMetadataError(MetadataRecoveryError):
    """The metadata of a broker is damaged or missing. The broker can still leave its cluster and get the metadata of another one."""


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """The metadata in the data directory of a stopped broker."""

    data_dir: Path
    cluster_id: str
    broker_id: int
    term: int
    """The term of the last entry. Of several brokers, the one with the highest (term, last_index) has the newest metadata."""
    last_index: int
    voters: tuple[int, ...]
    """The brokers that voted on metadata, as far as this one knows."""
    other_brokers: tuple[int, ...]
    """The other registered brokers."""
    topic_count: int
    partition_count: int
    problem: str = ""
    """Why the metadata is lost. Then only the cluster and the broker are known."""


def read_metadata(data_dir: Path, *, may_be_lost: bool = False) -> StoredMetadata:
    """Read the metadata of a stopped broker. Changes nothing: it may be a copy, which a start would make look newer than it is.

    Args:
        data_dir: The data directory.
        may_be_lost: Whether to describe the broker although its metadata is damaged or missing.

    Raises:
        NoDataDirectoryError: The directory is not a broker's data directory.
        MetadataRecoveryError: There is no usable metadata, the registry is damaged, or a broker is running on the directory.
    """
    if not (data_dir / REGISTRY_FILE).is_file():
        raise NoDataDirectoryError(data_dir)
    _check_registry(data_dir)
    try:
        with kept_from_brokers(data_dir):
            return _read_metadata(data_dir, may_be_lost=may_be_lost)
    except DirectoryInUseError as error:
        raise MetadataRecoveryError(
            f"data directory {data_dir} is in use by another process (a broker): {_OTHER_ADVICE}"
        ) from error
    except OSError as error:
        raise MetadataRecoveryError(f"{error.filename} cannot be read: {error.strerror}") from error


def _read_metadata(data_dir: Path, *, may_be_lost: bool) -> StoredMetadata:
    try:
        registry = examine_registry(data_dir / REGISTRY_FILE)
    except (ValueError, TypeError, KeyError) as error:
        raise MetadataRecoveryError(
            f"{REGISTRY_FILE} in {data_dir} has impossible content ({error!r}): {_LOST_ADVICE}"
        ) from error
    if registry.problems:
        raise MetadataRecoveryError(
            f"{REGISTRY_FILE} in {data_dir} is damaged ({registry.problems[0]}): {_LOST_ADVICE}"
        )
    if registry.newer_format:
        raise MetadataRecoveryError(f"{REGISTRY_FILE} has format {registry.newer_format}: {NEWER_ADVICE}")
    node: dict[str, Any] = registry.node or {}  # JSON, checked by its checksum
    _check_membership(data_dir, uuid=node.get("uuid", ""), cluster_id=node.get("cluster_id", ""))
    live: list[ReplicaKey] = []
    quarantined: set[ReplicaKey] = set()
    for group_id, replica_id, state, *_ in sorted(registry.replicas):
        key = ReplicaKey(GroupId(group_id), ReplicaId(replica_id))
        if state != ReplicaState.RETIRED.value:
            live.append(key)
        if state == ReplicaState.QUARANTINED.value:
            quarantined.add(key)
    try:
        return _read_replica(data_dir, node["node_id"], _newest_metadata(live, quarantined))
    except LostMetadataError as error:
        if not may_be_lost:
            raise
        return StoredMetadata(data_dir, node["cluster_id"], node["node_id"], 0, 0, (), (), 0, 0, str(error))


def _read_replica(data_dir: Path, node_id: int, key: ReplicaKey) -> StoredMetadata:
    path, machine = replica_path(data_dir / "groups", key), Metadata()
    if not path.is_file():
        raise LostMetadataError(f"{_UNUSABLE}: its file is missing")
    try:
        contents = read_replica(path)
        if contents is None:
            raise _problem_of(path)
        machine.restore(iter(contents.state), contents.meta.state_index)
        for entry in contents.entries:
            machine.apply(entry)
    except UnsupportedDataError as error:
        raise MetadataRecoveryError(f"{_UNUSABLE}: {error}") from error
    except ValueError as error:
        raise LostMetadataError(f"{_UNUSABLE}: {error}") from error
    _check_all(machine, contents.meta.state_index, contents.meta.last_index)
    return _describe(data_dir, node_id, machine, contents.last_term, contents.meta.last_index, contents.meta.membership)


def _problem_of(path: Path) -> MetadataRecoveryError:
    report = examine_replica(path)
    if report.newer_format:
        return MetadataRecoveryError(f"{_UNUSABLE}: it has format {report.newer_format}: {NEWER_ADVICE}")
    return LostMetadataError(f"{_UNUSABLE}: {', '.join(report.problems[:1])}")


def recover_metadata(data_dir: Path, new_uuid: Callable[[], str], now_ms: int = 0) -> StoredMetadata:
    """Make the broker the only voter of a new metadata group under a new cluster id. Return the new metadata.

    Its indexes begin at least at the wall clock's milliseconds. An operator may recover a cluster again, on the right broker. Groups of
    partitions that followed the wrong one refuse targets with earlier revisions, and consumers with earlier epochs.

    A crash before the last commit of the registry changes nothing. A crash after it leaves the file of the old group, which nothing uses,
    and which the next start moves to the trash.

    Raises:
        MetadataRecoveryError: As `read_metadata`.
    """
    with _opened(data_dir) as (registry, store):
        old, restored, machine = _load(store, registry)
        index = LogIndex(max(restored.last_index + INDEX_GAP, now_ms))
        replica_id = machine.found_again(new_uuid(), registry.node_id, index)
        if replica_id is None:
            raise MetadataRecoveryError(
                f"the metadata in {data_dir} does not know broker {registry.node_id}: use the directory of another broker"
            )
        key = ReplicaKey(METADATA_GROUP_ID, ReplicaId(replica_id))
        term = Term(restored.hard_state.term + TERM_GAP)
        state = RestoredState(
            hard_state=HardState(term, ReplicaId(0), index),
            position=LogPosition(index, term, restored.last_next_offset, restored.last_append_time_ms),
            last_index=index,
            last_next_offset=restored.last_next_offset,
            last_append_time_ms=restored.last_append_time_ms,
            term_starts=(),
            membership=Membership((key.replica_id,), revision=index),
            state_index=index,
        )
        for rest in store.stored_replicas():
            if rest.group_id == METADATA_GROUP_ID and rest not in registry.live_replicas():
                store.retire(rest)  # the rest of an attempt that a crash ended
        store.create(key, state, machine.rows())
        registry.enter_cluster(machine.cluster_id, created=key, retired=old)
        store.retire(old)
        return _describe(data_dir, registry.node_id, machine, term, index, state.membership)


def leave_cluster(data_dir: Path) -> StoredMetadata:
    """Have a broker forget its cluster, so that it can join the recovered one. Its identity and its partitions stay.

    Return the metadata that it gave up, which stays in the trash for a grace period. It may be damaged.

    Raises:
        MetadataRecoveryError: As `read_metadata`, but not for damaged or missing metadata.
    """
    described = read_metadata(data_dir, may_be_lost=True)
    with _opened(data_dir) as (registry, store):
        live = registry.live_replicas_of(METADATA_GROUP_ID)
        if not live:
            raise MetadataRecoveryError(f"{REGISTRY_FILE} in {data_dir} has no metadata replica: {_LOST_ADVICE}")
        registry.enter_cluster("", created=None, retired=max(live))
        store.retire(max(live))
        return described


@contextmanager
def _opened(data_dir: Path) -> Iterator[tuple[Registry, LmdbLogStore]]:
    if not (data_dir / REGISTRY_FILE).is_file():
        raise NoDataDirectoryError(data_dir)
    _check_registry(data_dir)
    try:
        registry = Registry(data_dir / REGISTRY_FILE)
    except RegistryError as error:
        raise MetadataRecoveryError(f"{error}: {_OTHER_ADVICE}") from error
    try:
        _check_membership(data_dir, uuid=registry.uuid, cluster_id=registry.cluster_id)
        store = LmdbLogStore(data_dir)
        yield registry, store
        for key in store.open_replicas():
            store.close(key)
    finally:
        registry.close(is_clean=not registry.was_abnormal_exit)


def _check_registry(data_dir: Path) -> None:
    """Refuse a registry without a commit: opening it would make a new one of it. Other problems are left to those who open it."""
    with suppress(DirectoryInUseError, OSError), kept_from_brokers(data_dir):
        try:
            check_commits(data_dir / REGISTRY_FILE, b"node", transaction_id_in)
        except CodecError as error:
            raise MetadataRecoveryError(
                f"{REGISTRY_FILE} in {data_dir} is empty or damaged ({error}): {_LOST_ADVICE}"
            ) from error


def _check_membership(data_dir: Path, *, uuid: str, cluster_id: str) -> None:
    if not uuid and replica_files(data_dir / "groups"):
        raise MetadataRecoveryError(f"{REGISTRY_FILE} in {data_dir} was lost, and is a new one: {_LOST_ADVICE}")
    if not cluster_id:
        raise MetadataRecoveryError(f"the broker in {data_dir} belongs to no cluster: start it with --join to join one")


def _newest_metadata(live: Iterable[ReplicaKey], quarantined: Container[ReplicaKey]) -> ReplicaKey:
    """Return the metadata replica to use, of sorted replicas that are not retired."""
    sound = [key for key in live if key.group_id == METADATA_GROUP_ID and key not in quarantined]
    if not sound:
        raise LostMetadataError("the metadata replica of this broker is damaged: use the directory of another broker")
    return sound[-1]


def _load(store: LmdbLogStore, registry: Registry) -> tuple[ReplicaKey, RestoredState, Metadata]:
    """Open the metadata replica and apply its whole log: an entry that was not committed may have been acknowledged by the lost voters."""
    key, machine = _newest_metadata(registry.live_replicas(), registry.quarantined()), Metadata()
    try:
        restored = store.open(key)
        machine.restore(store.state_rows(key), restored.state_index)
        first = LogIndex(restored.state_index + 1)
        while first <= restored.last_index:
            for entry in store.entries(key, first, restored.last_index, _SLICE_BYTES):
                machine.apply(entry)
                first = LogIndex(entry.index + 1)
    except (
        DamagedReplicaError,
        MissingReplicaError,
        StorageUnavailableError,
        UnsupportedDataError,
        ValueError,
    ) as error:
        raise MetadataRecoveryError(f"{_UNUSABLE}: {error}") from error
    _check_all(machine, restored.state_index, restored.last_index)
    return key, restored, machine


def _check_all(machine: Metadata, state_index: LogIndex, last_index: LogIndex) -> None:
    if not machine.cluster_id or state_index > last_index:
        raise LostMetadataError(
            "the metadata replica of this broker never had all metadata: use the directory of another broker"
        )


def _describe(
    data_dir: Path, node_id: int, machine: Metadata, last_term: Term, last_index: LogIndex, membership: Membership
) -> StoredMetadata:
    voters = (machine.replica_node(METADATA_GROUP_ID, replica_id) for replica_id in membership.voters)
    return StoredMetadata(
        data_dir=data_dir,
        cluster_id=machine.cluster_id,
        broker_id=node_id,
        term=last_term,
        last_index=last_index,
        voters=tuple(sorted(node_id for node_id in voters if node_id is not None)),
        other_brokers=tuple(node.node_id for node in machine.nodes() if node.node_id != node_id),
        topic_count=machine.topic_count,
        partition_count=machine.partition_count,
    )
