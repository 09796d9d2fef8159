"""Maintain the replicas of a node periodically: the work of their kind (such as retention), truncation, map growth.

Every `Timing.retention_check_seconds` it checks everything, a few replicas at a time, so that other tasks run in between. It deletes only
by rules: records by the topic's configuration, and log rows below the log's start. It never deletes a replica. `SpaceReturn` returns
the space of deleted data to the volume.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial

import structlog
from raftmq.broker.base.limits import Timing
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Supervisor, Work
from raftmq.broker.cluster.map_growth import NEARLY_FULL_FRACTION, grow_map_if_nearly_full, map_fractions
from raftmq.broker.cluster.metadata_replica import MetadataReplica
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.log_tail import index_before_tail
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.errors import (
    CommitFailedError,
    DamagedReplicaError,
    ReplicaClosedError,
    ReplicaStorageError,
    StorageUnavailableError,
)
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.state_store import FilePart
from raftmq.types import METADATA_GROUP_ID, GroupId, LogIndex

log = structlog.get_logger(__name__)

_PARTITIONS_AT_ONCE = 16
"""Partitions that are maintained before other tasks run. If nothing is due, one takes some 20 us."""


class Housekeeping:
    """Maintains all replicas of one node."""

    def __init__(
        self,
        engine: Engine,
        store: LmdbLogStore,
        readers: Executor,
        replicas: ReplicaManager,
        metadata: MetadataReplica,
        partitions: Mapping[GroupId, Partition],
        deletable_through_index: Callable[[Replica[StateMachine]], LogIndex | None],
        timing: Timing,
        supervisor: Supervisor,
    ) -> None:
        """Take `deletable_through_index`, which returns the last index of a led group that may be deleted without cutting off a learner."""
        self._engine = engine
        self._store = store
        self._readers = readers
        self._replicas = replicas
        self._metadata = metadata
        self._partitions = partitions
        self._deletable_through_index = deletable_through_index
        self._timing = timing
        self._step = partial(supervisor.step, Work.HOUSEKEEPING)
        self._postponed_throttle = LogThrottle()

    async def run(self) -> None:
        """Do a round every `Timing.retention_check_seconds`, until cancelled."""
        while True:
            await asyncio.sleep(self._timing.retention_check_seconds)
            await self.round()

    async def round(self) -> None:
        """Do one round. A step that fails, for one partition or for all, does not prevent the others."""
        for number, partition in enumerate(list(self._partitions.values())):
            try:
                await self._maintain(partition)
            except Exception:
                # entering these for every partition would take longer than the work for an idle one
                with self._step(), self._postponing(partition.replica):
                    raise
            if number % _PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
        with self._step():
            await self.grow_maps()
        with self._step():
            self._forget_deleted_groups()
        with self._step():
            await self._trim_metadata()

    @contextmanager
    def _postponing(self, replica: Replica[StateMachine]) -> Iterator[None]:
        """Postpone work that this group cannot do now to the next round. A damaged replica is given up."""
        try:
            yield
        except DamagedReplicaError as error:
            self._engine.break_replica(replica, error)
        except CommitFailedError:
            raise
        except (RequestError, ReplicaStorageError) as error:  # closed, full or trimmed in the meantime
            if self._postponed_throttle.is_due((replica.group_id, type(error))):
                log.info("retention_postponed", group_id=replica.group_id, reason=str(error))

    async def _maintain(self, partition: Partition) -> None:
        await partition.maintain()
        index = await partition.truncation_index()
        replica = partition.replica
        deletable_through = self._deletable_through_index(replica)
        if index is not None and deletable_through is not None:
            index = min(index, deletable_through)
        if index is not None and not replica.is_closed:
            self._engine.commits.flush_state(replica)
            await self._engine.commits.truncate(replica, index)

    async def grow_maps(self) -> None:
        """Grow the maps of files that are nearly full, each on its writer."""
        keys = [replica.key for replica in self._engine.replicas.values()]
        fractions = await self._engine.loop.run_in_executor(self._readers, map_fractions, self._store, keys)
        for (key, part), fraction in fractions.items():
            if fraction > NEARLY_FULL_FRACTION:
                with self._step():
                    await self._grow_map(key, part)
        self._engine.map_used_fraction_max = max(fractions.values(), default=0.0)

    async def _grow_map(self, key: ReplicaKey, part: FilePart) -> None:
        grow = partial(grow_map_if_nearly_full, self._store, key, part)
        replica = self._engine.replicas.get(key.group_id)
        try:
            await self._replicas.on_file(key, part, self._readers, grow)
        except (
            ReplicaClosedError,
            DamagedReplicaError,
        ) as error:  # closed in the meantime, or it could not be opened again
            if replica is not None and replica.key == key:
                self._engine.break_replica(replica, error)
        except StorageUnavailableError as error:
            if self._postponed_throttle.is_due((key.group_id, part)):
                log.error("map_not_grown", group_id=key.group_id, replica_id=key.replica_id, reason=str(error))

    def _forget_deleted_groups(self) -> None:
        """Forget leaders of deleted groups. A node without a replica of such a group is not told, so it must check by itself."""
        machine = self._metadata.require().state_machine
        for group_id in self._engine.leadership.groups():
            # an id that metadata has not assigned belongs to a group that is newer than this node's metadata
            is_deleted = machine.is_group_given_out(group_id) and machine.partition(group_id) is None
            if group_id != METADATA_GROUP_ID and is_deleted:
                self._engine.leadership.forget(group_id)

    async def _trim_metadata(self) -> None:
        """Truncate the metadata log except a tail: only members that are behind need it, and the rest is in the state."""
        replica = self._metadata.require()
        index = index_before_tail(replica)
        if index is not None:
            with self._postponing(replica):
                await self._engine.commits.truncate(replica, index)
