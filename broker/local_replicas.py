"""Makes the replicas on this node be those that metadata says: creates, opens, retires.

Runs only while the metadata replica has confirmed, in this boot, that it is caught up. A file is deleted only when
metadata shows the replica retired; a registry row without its file is a quarantine, never a reason to start empty, and so
is a file that was written to and has no row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import structlog
from raftmq.broker.engine import Engine
from raftmq.broker.founding import born, unborn
from raftmq.broker.group import Group
from raftmq.broker.map_growth import grow_map_if_nearly_full
from raftmq.broker.writers import Writers
from raftmq.errors import InvariantError
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_views import PartitionView, ReplicaView
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.core import RestoredState
from raftmq.raft.membership import Membership
from raftmq.storage.errors import DamagedReplicaError, MissingReplicaError, ReplicaExistsError, StorageUnavailableError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import LOST_NODE_ADVICE, Registry, RegistryError
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId, ReplicaId

log = structlog.get_logger(__name__)

T = TypeVar("T")


def open_replica(store: LmdbLogStore, registry: Registry, key: ReplicaKey, machine: StateMachine) -> RestoredState:
    """Open a replica's file and bring its machine to the durable state. Runs on the replica's writer thread.

    A file that was open at two abnormal exits is first read in a child process: a damaged page can end the reader.

    Raises:
        DamagedReplicaError, MissingReplicaError: quarantine it.
    """
    if registry.needs_verification(key):
        problem = store.verify(key)
        if problem is not None:
            raise DamagedReplicaError(key, problem)
        registry.mark_verified(key)
    restored = store.open(key)
    grow_map_if_nearly_full(store, key)
    try:
        machine.restore(store.state_rows(key), restored.state_index)
    except (ValueError, TypeError, KeyError, LookupError) as error:  # a row that does not decode
        raise DamagedReplicaError(key, f"its state cannot be restored: {error}") from error
    except StorageUnavailableError:
        store.close(key)  # it will be tried again, and no file may be open twice
        raise
    return restored


def create_replica(store: LmdbLogStore, registry: Registry, key: ReplicaKey, state: RestoredState) -> None:
    """Make a new replica durable: first its file, then its registry row; only then may it speak.

    A file without a row that is as it was made is of a crash that came between the two. One that was written to is of a replica that
    spoke: the registry is older than the file.

    Raises:
        DamagedReplicaError: there is a file that was written to, or cannot be read. It stays as it is.
    """
    try:
        store.create(key, state, ())
    except ReplicaExistsError:
        problem = store.verify(key) or _difference(store, key, state)
        if problem is not None:
            raise DamagedReplicaError(key, f"the registry does not know its file: {problem}") from None
    registry.add_replica(key)
    registry.mark_open([key])


def _difference(store: LmdbLogStore, key: ReplicaKey, state: RestoredState) -> str | None:
    """What keeps a closed file from being that of a replica in `state` that never spoke."""
    found = store.open(key)
    store.close(key)
    return None if found == state else "it was written to, so the registry is older than it"


def refuse_lost_registry(store: LmdbLogStore, registry: Registry) -> None:
    """A node has an identity before it has a replica's file, so files without one are of a node whose registry was lost.

    To form or join a cluster with them would put other replicas in their place.

    Raises:
        RegistryError: the registry is closed, the files are as they were.
    """
    if registry.uuid:
        return
    files = store.stored_replicas()
    if files:
        registry.close(is_clean=True)
        raise RegistryError(
            f"node.mdb was lost: there are files of {len(files)} replicas, and nothing says which node of which cluster this is. No "
            f"replica was touched: {LOST_NODE_ADVICE}"
        )


class LocalReplicas:
    """The partition replicas of one node."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        store: LmdbLogStore,
        writers: Writers,
        registry: Registry,
        on_serving: Callable[[Group[LogPartition]], None],
        on_retired: Callable[[GroupId], None],
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._store = store
        self._writers = writers
        self._registry = registry
        self._on_serving = on_serving
        self._on_retired = on_retired
        self.broken: dict[GroupId, str] = {}
        """Replicas that this node has and does not serve, with the reason."""

    async def on_writer(self, key: ReplicaKey, function: Callable[[], T]) -> T:
        """Run on the replica's writer thread."""
        return await asyncio.wrap_future(self._writers.run(key, function), loop=self._loop)

    async def reconcile(self, metadata: Metadata, node_id: NodeId) -> None:
        """One round over everything; safe to repeat. Retires first: that gives room, and the place of a group's old
        replica to its new one.
        """
        me = metadata.node(node_id)
        if me is None or me.uuid != self._registry.uuid:
            return  # what metadata says of this node id is meant for another disk
        wanted = self._wanted(metadata, node_id)
        for key in self._registry.live_replicas():
            is_retired = key not in wanted and metadata.is_replica_retired(*key)
            if is_retired and key != self._engine.groups[METADATA_GROUP_ID].key:
                await self._retire(key)
        missing: list[tuple[PartitionView, ReplicaKey]] = []
        quarantined = self._registry.quarantined()
        for key, partition in self._wanted(metadata, node_id).items():
            if key.group_id not in self._engine.groups and key.group_id not in self.broken:
                if key in quarantined:
                    self.broken[key.group_id] = quarantined[key]
                else:
                    missing.append((partition, key))
        known = [key for _, key in missing if self._registry.has_replica(key)]
        if known:
            await self._loop.run_in_executor(None, self._registry.mark_open, known)
        for partition, key in missing:
            await self._bring_up(partition, key, metadata)

    @staticmethod
    def _wanted(metadata: Metadata, node_id: NodeId) -> dict[ReplicaKey, PartitionView]:
        wanted: dict[ReplicaKey, PartitionView] = {}
        for partition in metadata.partitions_of_node(node_id):
            replica = _replica_on(partition, node_id)
            if replica is not None:
                wanted[ReplicaKey(GroupId(partition.group_id), ReplicaId(replica.replica_id))] = partition
        return wanted

    async def _bring_up(self, partition: PartitionView, key: ReplicaKey, metadata: Metadata) -> None:
        group_id = key.group_id
        try:
            is_new = not self._registry.has_replica(key)
            if is_new:
                await self._create(key, partition)
            machine = LogPartition()
            restored = await self.on_writer(key, lambda: open_replica(self._store, self._registry, key, machine))
            group = self._engine.add_group(key, restored, machine, _node_lookup(metadata, group_id))
        except (DamagedReplicaError, MissingReplicaError, InvariantError) as error:
            self.broken[group_id] = str(error)
            await self._loop.run_in_executor(None, self._registry.quarantine, key, str(error))
            log.error("replica_quarantined", group_id=group_id, replica_id=key.replica_id, reason=str(error))
            return
        self._on_serving(group)  # type: ignore[arg-type]  # its machine is the LogPartition made above
        is_alone = group.core.membership.voters == (key.replica_id,)
        if is_alone or (is_new and partition.creation_replicas[0].replica_id == key.replica_id):
            self._engine.campaigns.begin_first(group)

    async def _create(self, key: ReplicaKey, partition: PartitionView) -> None:
        founders = tuple(sorted(ReplicaId(r.replica_id) for r in partition.creation_replicas))
        state = born(Membership(founders)) if key.replica_id in founders else unborn()
        await self.on_writer(key, lambda: create_replica(self._store, self._registry, key, state))

    async def _retire(self, key: ReplicaKey) -> None:
        hosted = self._engine.groups.get(key.group_id)
        if hosted is None or hosted.key == key:
            self._engine.remove_group(key.group_id)
            self._engine.leadership.forget(key.group_id)
            self.broken.pop(key.group_id, None)
            self._on_retired(key.group_id)
        await self.on_writer(key, lambda: self._store.retire(key))
        self._writers.forget(key)
        await self._loop.run_in_executor(None, self._registry.retire_replica, key)
        log.info("replica_retired", group_id=key.group_id, replica_id=key.replica_id)


def _replica_on(partition: PartitionView, node_id: NodeId) -> ReplicaView | None:
    """The one to be hosted; never one whose disk was lost: what it had on it, votes too, an empty one of its id would deny."""
    for replica in partition.replicas + partition.retiring:
        if replica.node_id == node_id and not replica.is_lost:
            return replica
    return None


def _node_lookup(metadata: Metadata, group_id: GroupId) -> Callable[[ReplicaId], NodeId]:
    def node_of(replica_id: ReplicaId) -> NodeId:
        return NodeId(metadata.replica_node(group_id, replica_id) or 0)

    return node_of
