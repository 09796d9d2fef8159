"""What is done from time to time for the replicas here: retention, truncation, map growth, trash, forgetting.

Looks at everything every `Timing.retention_check_seconds`, one replica at a time so that the loop turns in between. Decides
what to delete by rules alone: records by the topic's configuration, log rows below what is trimmed, files by their age in
the trash; never a replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial

import structlog
from raftmq.broker.engine import Engine
from raftmq.broker.group import Group
from raftmq.broker.limits import Timing
from raftmq.broker.local_replicas import LocalReplicas
from raftmq.broker.log_pace import LogPace
from raftmq.broker.map_growth import NEARLY_FULL_FRACTION, grow_map_if_nearly_full, map_fractions
from raftmq.broker.metadata_replica import MetadataReplica
from raftmq.broker.partition_log import PartitionLog
from raftmq.broker.request_error import RequestError
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.ready import Role
from raftmq.storage.errors import CommitFailedError, DamagedReplicaError, ReplicaClosedError, ReplicaStorageError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.types import METADATA_GROUP_ID, GroupId, LogIndex

log = structlog.get_logger(__name__)

METADATA_TAIL_ENTRIES = 1000
"""Metadata entries kept behind the durable state, so that a node away for a moment needs no snapshot."""
METADATA_LOG_ENTRIES_MAX = 50_000
"""Metadata entries kept for a member that is away."""
TRASH_GRACE_SECONDS = 600.0
"""How long a retired replica's file is kept: time to notice a mistake."""


class Housekeeping:
    """See the module. One per node."""

    def __init__(
        self,
        engine: Engine,
        store: LmdbLogStore,
        readers: Executor,
        replicas: LocalReplicas,
        metadata: MetadataReplica,
        partitions: Mapping[GroupId, PartitionLog],
        spared_index: Callable[[Group[StateMachine]], LogIndex | None],
        timing: Timing,
    ) -> None:
        """`spared_index` says up to where the log of a led group may be deleted without cutting off a learner."""
        self._engine = engine
        self._store = store
        self._readers = readers
        self._replicas = replicas
        self._metadata = metadata
        self._partitions = partitions
        self._spared_index = spared_index
        self._timing = timing
        self._postponed_pace = LogPace()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(self._timing.retention_check_seconds)
            await self.round()

    async def round(self) -> None:
        """One look at everything."""
        for partition in list(self._partitions.values()):
            try:
                await self._tend(partition)
            except DamagedReplicaError as error:
                self._engine.break_group(partition.group, error)
            except CommitFailedError:
                raise
            except (RequestError, ReplicaStorageError) as error:  # closed, full or trimmed meanwhile
                if self._postponed_pace.is_due((partition.group.group_id, type(error))):
                    log.info("retention_postponed", group_id=partition.group.group_id, reason=str(error))
            await asyncio.sleep(0)
        await self.tend_maps()
        self._forget_deleted_groups()
        self._trim_metadata()
        await self._engine.loop.run_in_executor(self._readers, self._store.empty_trash, TRASH_GRACE_SECONDS)

    async def _tend(self, partition: PartitionLog) -> None:
        await partition.retention.enforce()
        await self._expire_offsets(partition)
        index = await partition.truncation_index()
        group = partition.group
        spared = self._spared_index(group)
        if index is not None and spared is not None:
            index = min(index, spared)
        if index is not None and not group.is_closed:
            self._engine.commits.flush_state(group)
            self._engine.commits.truncate(group, index)
            await self._replicas.on_writer(group.key, lambda: self._store.compact_if_sparse(group.key))

    async def _expire_offsets(self, partition: PartitionLog) -> None:
        """Forget offsets that nobody touched for the retention, of groups that metadata does not know (any more).

        A group with members is known to it, and one without is, for the same time after its last member left.
        """
        loop = self._engine.loop
        machine = self._metadata.require().machine
        before_ms = self._engine.now_ms() - int(self._timing.offsets_retention_seconds * 1000)
        deadline = loop.time() + self._timing.retention_check_seconds
        count = await partition.offsets.expire(
            lambda name: machine.consumer_group(name) is not None, before_ms, deadline
        )
        if count:
            log.info("offsets_expired", group_id=partition.group.group_id, count=count)

    async def tend_maps(self) -> None:
        """Grow the maps of files that are nearly full, each on its writer."""
        keys = [group.key for group in self._engine.groups.values()]
        fractions = await self._engine.loop.run_in_executor(self._readers, map_fractions, self._store, keys)
        for key, fraction in fractions.items():
            if fraction > NEARLY_FULL_FRACTION:
                try:
                    await self._replicas.on_writer(key, partial(grow_map_if_nearly_full, self._store, key))
                except ReplicaClosedError:  # it went meanwhile
                    continue
        self._engine.map_used_fraction_max = max(fractions.values(), default=0.0)

    def _forget_deleted_groups(self) -> None:
        """A node that held no replica of a deleted partition is not told: it would remember the leader for ever."""
        machine = self._metadata.require().machine
        for group_id in self._engine.leadership.groups():
            # an id not given out yet is a group that this node has not heard of: its leader was quicker
            is_deleted = machine.is_group_given_out(group_id) and machine.partition(group_id) is None
            if group_id != METADATA_GROUP_ID and is_deleted:
                self._engine.leadership.forget(group_id)

    def _trim_metadata(self) -> None:
        """Metadata's log is only needed by members that are behind: keep a tail, the rest is in the state."""
        group = self._metadata.require()
        core = group.core
        index = group.durable_state_index - METADATA_TAIL_ENTRIES
        if core.role is Role.LEADER:
            matches = [match for match in core.match_indexes().values() if match]
            # a member that is away for very long gets a snapshot: it must not make the log grow for ever
            index = max(min([index, *matches]), index - METADATA_LOG_ENTRIES_MAX)
        if index > group.log_start.index + METADATA_TAIL_ENTRIES:
            self._engine.guarded(group, self._engine.commits.truncate, group, LogIndex(index))
