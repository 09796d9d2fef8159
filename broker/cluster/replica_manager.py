"""Create, open and retire the replicas on this node, as metadata demands.

This runs only while the metadata replica has confirmed, in this boot, that it is caught up. A file is deleted only when metadata
shows the replica as retired. A registry row without its file leads to a quarantine, never to an empty start. So does a file that was
written to and has no row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

import structlog
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.supervisor import Supervisor, Work, is_fatal
from raftmq.broker.cluster.replica_files import create_replica, found_replica, open_replica
from raftmq.broker.cluster.unserved import NotServed, NotServedReason, Trouble, reason_of
from raftmq.broker.partitions.kinds import TopicKind, kind_of
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.initial_state import founder_state, joiner_state
from raftmq.broker.replica.replica import Replica
from raftmq.broker.replica.writers import Writers
from raftmq.errors import InvariantError
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_views import PartitionView, RecoveryView, ReplicaView
from raftmq.fsm.state_machine import DiskBackedMachine, StateMachine
from raftmq.raft.core import RestoredState
from raftmq.raft.membership import Membership
from raftmq.storage.errors import DamagedReplicaError, MissingReplicaError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import Registry
from raftmq.storage.registry_codec import ReplicaState
from raftmq.storage.state_store import FilePart
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId, ReplicaId, Term

log = structlog.get_logger(__name__)

T = TypeVar("T")


class ReplicaManager:
    """Manages the partition replicas of one node.

    Each group has at most one task, while it has work. So its old replica is retired before its new one is created, and no file is
    opened twice. Each writer opens one file at a time, so that replicas already served can commit in between. A replica that cannot be
    served delays neither the others nor the work that follows metadata.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        store: LmdbLogStore,
        writers: Writers,
        registry: Registry,
        supervisor: Supervisor,
        in_background: Callable[..., object],
        on_serving: Callable[[Replica[StateMachine], TopicKind[Partition]], None],
        on_changed: Callable[[GroupId], None],
    ) -> None:
        """Take the parts of the node that manage replicas need, and its callbacks.

        Args:
            loop: The node's event loop.
            engine: The engine that hosts the replicas.
            store: The store of their files.
            writers: The writer threads.
            registry: The node's registry.
            supervisor: Counts failures.
            in_background: Runs a short write of the registry off the loop.
            on_serving: Called with a replica that is served from now on.
            on_changed: Called when a replica is no longer served, and when the reason why it is not served changes.
        """
        self._loop = loop
        self._engine = engine
        self._store = store
        self._writers = writers
        self._registry = registry
        self._supervisor = supervisor
        self._in_background = in_background
        self._on_serving = on_serving
        self._on_changed = on_changed
        self.broken: dict[ReplicaKey, str] = {}
        """Replicas here that are silent until they are replaced, with the reason."""
        self._metadata: Metadata | None = None
        """The node's metadata. None until this node has caught up with it."""
        self._node_id = NO_NODE
        self._reconciled_version = -1
        """The changes of metadata up to this version are reconciled."""
        self._unserved_as_of: tuple[Metadata, NodeId, int] | None = None
        """The metadata, this node and the version of changes as of which `_unserved` is correct, except for `_unserved_doubts`."""
        self._unserved: dict[GroupId, ReplicaKey] = {}
        """The replicas that metadata wants here and that are not served."""
        self._unserved_doubts: set[GroupId] = set()
        """Groups whose service ended since then."""
        self._troubles: dict[ReplicaKey, Trouble] = {}
        self._served: dict[GroupId, ReplicaKey] = {}
        """The replica of each group that was served last in this boot."""
        self._working: dict[GroupId, asyncio.Task[None]] = {}
        self._lanes: dict[int, asyncio.Lock] = {}
        """Locks by writer, held while a file is opened there."""
        self._marked: dict[ReplicaKey, asyncio.Future[None]] = {}
        """Files about to be opened. Each future is done when the registry has recorded that its file is open."""
        self._throttle = LogThrottle()
        self._is_closed = False

    async def on_writer(self, key: ReplicaKey, function: Callable[[], T]) -> T:
        """Run a function on the replica's writer thread."""
        return await asyncio.wrap_future(self._writers.run(key, function), loop=self._loop)

    async def on_file(self, key: ReplicaKey, part: FilePart, threads: Executor, function: Callable[[], T]) -> T:
        """Run the maintenance of one of the replica's files: on the replica's writer if it is the log's, else in one of `threads`.

        There it waits for the state's writer and no acknowledgement waits for it. A `CommitFailedError` must then end the process.
        """
        if part is FilePart.LOG:
            return await self.on_writer(key, function)
        return await self._loop.run_in_executor(threads, function)

    def close(self) -> list[asyncio.Task[None]]:
        """Start no further work. Cancel the running tasks and return them."""
        self._is_closed = True
        for task in self._working.values():
            task.cancel()
        return list(self._working.values())

    # ------------------------------------------------------------------------------------------------ what to do

    def reconcile(self, metadata: Metadata, node_id: NodeId) -> None:
        """Start the work that metadata demands, group by group. It does not wait, and may be repeated.

        It looks at the groups that changed since the last time. A group with a task, or a timer for the next attempt, looks after itself.
        """
        me = metadata.node(node_id)
        if me is None or me.uuid != self._registry.uuid:
            return  # metadata's plans for this node id are meant for another disk
        if (metadata, node_id) != (self._metadata, self._node_id):
            self._metadata, self._node_id, self._reconciled_version = metadata, node_id, -1
        changed, version = metadata.group_changes.after(self._reconciled_version), metadata.group_changes.version
        groups = self._all_groups() if changed is None else list(map(GroupId, changed))
        self._forget_unneeded(groups)
        opening: list[ReplicaKey] = []
        for group_id in groups:
            wanted = self._wanted_of(group_id)
            if wanted is None:
                continue
            row = self._registry.replica(wanted)
            if row is not None and row.state is ReplicaState.QUARANTINED:
                self.broken.setdefault(wanted, row.reason)
            elif row is not None and row.state is ReplicaState.RETIRED and wanted not in self.broken:
                # metadata that was recovered by mistake did not know it
                self._give_up(wanted, "this broker gave its files up in another cluster")
            if self._must_open(wanted) and group_id not in self._working:
                opening.append(wanted)
        self._mark_open([key for key in opening if self._registry.has_replica(key) and key not in self._marked])
        opened = {key.group_id for key in opening}
        for group_id in groups:
            if group_id in opened or self._leaving(group_id):
                self._begin(group_id)
        self._reconciled_version = version  # only now: what an exception leaves undone is looked at again

    def _all_groups(self) -> list[GroupId]:
        """Return every group with a replica that is wanted or known here, ascending."""
        assert self._metadata is not None
        wanted = {GroupId(partition.group_id) for partition in self._metadata.partitions_of_node(self._node_id)}
        known = {key.group_id for key in (*self._registry.live_replicas(), *self.broken, *self._troubles)}
        return sorted(wanted | known | self._served.keys())

    def _forget_unneeded(self, groups: Collection[GroupId]) -> None:
        """Forget the replicas of these groups that are neither wanted nor about to leave."""
        kept = {key for group_id in groups for key in (self._wanted_of(group_id), *self._leaving(group_id))}
        looked_at = set(groups)
        for known in (self.broken, self._troubles):
            for key in [key for key in known if key.group_id in looked_at and key not in kept]:
                del known[key]
        for group_id in groups:
            if self._served.get(group_id) not in kept:
                self._served.pop(group_id, None)

    def _partition_of(self, key: ReplicaKey) -> PartitionView | None:
        """Return the partition if metadata wants this replica of it here now, else None."""
        if self._metadata is None or self._wanted_of(key.group_id) != key:
            return None
        return self._metadata.partition(key.group_id)

    def _wanted_of(self, group_id: GroupId) -> ReplicaKey | None:
        """Return the replica of a group that metadata wants here now."""
        return wanted_replica(self._metadata, self._node_id, group_id) if self._metadata is not None else None

    def _leaving(self, group_id: GroupId) -> list[ReplicaKey]:
        """Return the replicas of a group here that metadata shows retired."""
        return [key for key in self._registry.live_replicas_of(group_id) if self._is_leaving(key)]

    def _is_leaving(self, key: ReplicaKey) -> bool:
        row = self._registry.replica(key)
        return (
            self._metadata is not None
            and row is not None
            and row.state is not ReplicaState.RETIRED
            and self._metadata.is_replica_retired(*key)
            and not self._is_to_be_continued(key)
            and key != self._engine.replicas[METADATA_GROUP_ID].key
        )

    def _is_to_be_continued(self, key: ReplicaKey) -> bool:
        """Return whether the founder of a new group still waits for this replica's files, or failed to continue them.

        They may be the last copy of the data, and only the operator can give that up.
        """
        recovery = self._metadata.recovery_from(*key) if self._metadata is not None else None
        if recovery is None:
            return False
        wanted = self._wanted_of(GroupId(recovery.group_id))
        partition = self._partition_of(wanted) if wanted is not None else None
        if wanted is None or partition is None or not _is_founder(wanted, partition):
            return False
        row = self._registry.replica(wanted)
        return row is None or row.state is ReplicaState.QUARANTINED

    def _must_open(self, key: ReplicaKey) -> bool:
        return key not in self.broken and not self._is_served(key) and self._is_due(key)

    def _is_served(self, key: ReplicaKey) -> bool:
        hosted = self._engine.replicas.get(key.group_id)
        return hosted is not None and hosted.key == key

    def _is_due(self, key: ReplicaKey) -> bool:
        trouble = self._troubles.get(key)
        return trouble is None or trouble.is_due

    def _mark_open(self, keys: list[ReplicaKey]) -> None:
        """Have the registry record, in one write for all, that these files are open from now on."""
        if keys:
            marked = self._loop.run_in_executor(None, self._registry.mark_open, keys)
            self._marked |= dict.fromkeys(keys, marked)

    # ------------------------------------------------------------------------------------------------ one group

    def _begin(self, group_id: GroupId) -> None:
        if self._is_closed or group_id in self._working:
            return
        task = self._working[group_id] = self._loop.create_task(self._settle(group_id))
        task.add_done_callback(partial(self._on_settled, group_id))

    async def _settle(self, group_id: GroupId) -> None:
        """Do the work for one group: retire replicas, then open the one that is wanted."""
        for key in self._to_retire(group_id):
            await self._guarded(key, self._retire)
        if (wanted := self._to_open(group_id)) is not None:
            await self._guarded(wanted, self._bring_up)

    def _to_retire(self, group_id: GroupId) -> Iterator[ReplicaKey]:
        """Yield the group's replicas that must be retired now. Each is checked when its turn comes."""
        keys = self._registry.live_replicas_of(group_id)
        return (key for key in keys if self._is_leaving(key) and self._is_due(key))

    def _to_open(self, group_id: GroupId) -> ReplicaKey | None:
        """Return the group's replica that must be opened now, or None while an older one occupies its place."""
        wanted = self._wanted_of(group_id)
        if wanted is None or group_id in self._engine.replicas:
            return None
        return wanted if self._must_open(wanted) else None

    def _on_settled(self, group_id: GroupId, task: asyncio.Task[None]) -> None:
        del self._working[group_id]
        if task.cancelled() or self._is_closed:
            return
        if (error := task.exception()) is not None:
            self._supervisor.record_failure(Work.REPLICAS, error)
            self._reconciled_version = -1  # the next change of metadata tries again
            return
        if any(self._to_retire(group_id)) or self._to_open(group_id) is not None:
            self._begin(group_id)  # metadata changed in the meantime

    async def _guarded(self, key: ReplicaKey, work: Callable[[ReplicaKey], Awaitable[None]]) -> None:
        """Run the work. A failure affects this replica alone."""
        try:
            await work(key)
        except Exception as error:
            if is_fatal(error):
                raise
            self._on_error(key, error)

    async def _bring_up(self, key: ReplicaKey) -> None:
        async with self._lanes.setdefault(self._writers.lane(key), asyncio.Lock()):
            partition = self._partition_of(key)
            if partition is None or self._metadata is None:
                return
            kind = kind_of(self._metadata, partition)
            machine = kind.new_state_machine()
            is_new = not self._registry.has_replica(key)
            recovery = self._metadata.recovery(key.group_id)
            if is_new and recovery is not None and _is_founder(key, partition):
                await self._continue(key, recovery)
            elif is_new:
                await self._create(key, partition, has_state_file=isinstance(machine, DiskBackedMachine))
            else:
                marking = self._marked.pop(key, None)
                await (marking or self._loop.run_in_executor(None, self._registry.mark_open, [key]))
            restored = await self.on_writer(key, lambda: self._open(key, machine))
        if self._partition_of(key) is None or self._metadata is None:  # it was retired while it opened
            await self.on_writer(key, lambda: self._store.close(key))
            return
        replica = self._engine.add_replica(key, restored, machine, partial(self._metadata.replica_node, key.group_id))
        try:
            self._serve(replica, kind)
        except Exception:
            self._engine.remove_group(key.group_id)  # it would lead without being served, and never be opened again
            raise
        if recovery is not None and self._leaving(GroupId(recovery.old_group_id)):
            # an earlier attempt to continue its data failed after the new file was registered
            self._begin(GroupId(recovery.old_group_id))
        is_alone = replica.core.membership.voters == (key.replica_id,)
        if is_alone or (is_new and partition.creation_replicas[0].replica_id == key.replica_id):
            self._engine.campaigns.begin_first(replica)

    def _open(self, key: ReplicaKey, machine: StateMachine) -> RestoredState:
        """Open the file on its writer. An earlier attempt, or an earlier life of the replica, may have left it open."""
        self._store.close(key)
        self._writers.forget_refused(key)
        return open_replica(self._store, self._registry, key, machine)

    async def _create(self, key: ReplicaKey, partition: PartitionView, *, has_state_file: bool) -> None:
        founders = tuple(sorted(ReplicaId(r.replica_id) for r in partition.creation_replicas))
        state = founder_state(Membership(founders)) if key.replica_id in founders else joiner_state()
        create = partial(create_replica, self._store, self._registry, key, state, has_state_file=has_state_file)
        await self.on_writer(key, create)

    async def _continue(self, key: ReplicaKey, recovery: RecoveryView) -> None:
        """Have the founder of a group continue the data of a replica here, whose group has lost its majority."""
        old = _kept_by(recovery)
        if not self._registry.has_replica(old):
            raise MissingReplicaError(key, f"this broker holds no replica {old.replica_id} of group {old.group_id}")
        if self._is_served(old):
            self._end_service(old)
        await self.on_writer(old, lambda: self._store.close(old))
        self._writers.forget(old)
        term = Term(recovery.term)
        await self.on_writer(key, lambda: found_replica(self._store, self._registry, key, old, term))
        await self._loop.run_in_executor(None, self._registry.retire_replica, old)
        self.broken.pop(old, None)
        self._troubles.pop(old, None)
        log.warning(
            "group_recovered", group_id=key.group_id, replica_id=key.replica_id, old_group_id=old.group_id,
            old_replica_id=old.replica_id,
        )  # fmt: skip

    def _serve(self, replica: Replica[StateMachine], kind: TopicKind[Partition]) -> None:
        key = replica.key
        self._on_serving(replica, kind)
        self._served[key.group_id] = key
        if self._unserved.get(key.group_id) == key:
            del self._unserved[key.group_id]
        trouble = self._troubles.get(key)
        if trouble is not None:
            trouble.served_at = self._loop.time()
            log.info("replica_served_again", group_id=key.group_id, replica_id=key.replica_id, attempt=trouble.attempts)

    async def _retire(self, key: ReplicaKey) -> None:
        hosted = self._engine.replicas.get(key.group_id)
        if hosted is None or hosted.key == key:
            self._end_service(key)
        await self.on_writer(key, lambda: self._store.retire(key))
        self._writers.forget(key)
        await self._loop.run_in_executor(None, self._registry.retire_replica, key)
        self.broken.pop(key, None)
        self._troubles.pop(key, None)
        log.info("replica_retired", group_id=key.group_id, replica_id=key.replica_id)

    def _end_service(self, key: ReplicaKey) -> None:
        self._engine.remove_group(key.group_id)
        self._unserved_doubts.add(key.group_id)
        is_deleted = self._metadata is None or self._metadata.partition(key.group_id) is None
        if is_deleted or self._engine.leadership.get(key.group_id).node_id == self._node_id:
            self._engine.leadership.forget(key.group_id)
        self._on_changed(key.group_id)

    # ------------------------------------------------------------------------------------------------ unserved replicas

    def on_broken(self, replica: Replica[StateMachine], error: Exception) -> None:
        """Handle a replica that the engine stopped because of damage, or because of a defect, which says nothing about its data."""
        self._unserved_doubts.add(replica.group_id)
        self._on_error(replica.key, error)

    def _on_error(self, key: ReplicaKey, error: Exception) -> None:
        is_suspect = isinstance(error, DamagedReplicaError | MissingReplicaError | InvariantError)
        if is_suspect and not self._is_leaving(key):
            self._give_up(key, str(error))
        else:
            self._on_failure(key, error)

    def _on_failure(self, key: ReplicaKey, error: Exception) -> None:
        """Try again from the file after a pause. Give the replica up if that has failed for too long."""
        now, reason = self._loop.time(), reason_of(error)
        trouble = self._troubles.get(key)
        if trouble is None or trouble.is_over(now):
            trouble = self._troubles[key] = Trouble(key, now, self._was_served(key))
        trouble.record(reason, f"{type(error).__name__}: {error}", now)
        if reason is NotServedReason.FAILING:
            self._supervisor.record_failure(Work.REPLICAS, error)
        if self._throttle.is_due((key, reason)):
            log.error(
                "replica_not_served", group_id=key.group_id, replica_id=key.replica_id, error_code=reason.value,
                reason=trouble.message, attempt=trouble.attempts,
            )  # fmt: skip
        if trouble.is_hopeless(now) and self._partition_of(key) is not None:
            self._give_up(key, f"could not be served for {now - trouble.began_at:.0f} s: {trouble.message}")
            return
        self._loop.call_at(trouble.retry_at, self._retry, key, trouble)
        self._on_changed(key.group_id)

    def _retry(self, key: ReplicaKey, trouble: Trouble) -> None:
        # comparing with `retry_at` would not do: a timer may fire a little early, and it is the only one
        trouble.is_due = True
        self._begin(key.group_id)

    def _give_up(self, key: ReplicaKey, reason: str) -> None:
        """Keep the replica silent and have it replaced."""
        self.broken[key] = reason
        self._in_background(self._registry.quarantine, key, reason)
        log.error("replica_quarantined", group_id=key.group_id, replica_id=key.replica_id, reason=reason)
        self._on_changed(key.group_id)

    def not_served(self, metadata: Metadata, node_id: NodeId) -> list[NotServed]:
        """Return the replicas that metadata wants here and this node does not serve, by group, each with the reason."""
        return [self._not_served(key) for key in sorted(self._unserved_keys(metadata, node_id))]

    def starting_count(self, metadata: Metadata, node_id: NodeId) -> int:
        """Return for how many replicas the start of this node waits. It is asked after each replica that opens."""
        return sum(map(self._is_starting, self._unserved_keys(metadata, node_id)))

    def _unserved_keys(self, metadata: Metadata, node_id: NodeId) -> Collection[ReplicaKey]:
        as_of, version = self._unserved_as_of, metadata.group_changes.version
        changed = metadata.group_changes.after(
            as_of[2] if as_of is not None and as_of[:2] == (metadata, node_id) else -1
        )
        if changed is None:
            self._unserved = {}
            changed = [partition.group_id for partition in metadata.partitions_of_node(node_id)]
        self._unserved_as_of = (metadata, node_id, version)
        doubts, self._unserved_doubts = self._unserved_doubts, set()
        for group_id in {*map(GroupId, changed), *doubts}:
            key = wanted_replica(metadata, node_id, group_id)
            if key is None or self._is_served(key):
                self._unserved.pop(group_id, None)
            else:
                self._unserved[group_id] = key
        return self._unserved.values()

    def _not_served(self, key: ReplicaKey) -> NotServed:
        broken, trouble, is_starting = self.broken.get(key), self._troubles.get(key), self._is_starting(key)
        if broken is not None:
            return NotServed(key, NotServedReason.QUARANTINED, broken, is_starting)
        if trouble is not None:
            return NotServed(key, trouble.reason, trouble.message, is_starting)
        return NotServed(key, NotServedReason.OPENING, "it is being created or opened", is_starting)

    def _is_starting(self, key: ReplicaKey) -> bool:
        """Return whether a start waits for a replica that is not served."""
        if key in self.broken:
            return False
        trouble = self._troubles.get(key)
        return trouble.is_starting if trouble is not None else not self._was_served(key)

    def _was_served(self, key: ReplicaKey) -> bool:
        """Return whether the replica was served at some time in this boot."""
        return self._served.get(key.group_id) == key


def wanted_replica(metadata: Metadata, node_id: NodeId, group_id: GroupId) -> ReplicaKey | None:
    """Return the replica of a group that metadata wants on a node."""
    partition = metadata.partition(group_id)
    replica = _replica_on(partition, node_id) if partition is not None else None
    return ReplicaKey(group_id, ReplicaId(replica.replica_id)) if replica is not None else None


def _replica_on(partition: PartitionView, node_id: NodeId) -> ReplicaView | None:
    """Return the replica to host. A replica whose disk was lost is never hosted: with its id, an empty one would deny its earlier votes and
    entries.
    """
    for replica in partition.replicas + partition.retiring:
        if replica.node_id == node_id and not replica.is_lost:
            return replica
    return None


def _is_founder(key: ReplicaKey, partition: PartitionView) -> bool:
    return any(founder.replica_id == key.replica_id for founder in partition.creation_replicas)


def _kept_by(recovery: RecoveryView) -> ReplicaKey:
    return ReplicaKey(GroupId(recovery.old_group_id), ReplicaId(recovery.old_replica_id))
