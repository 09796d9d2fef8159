"""Run the periodic work on the files of a node: housekeeping, the return of space, and the scrubber."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from raftmq.broker.base.supervisor import Supervisor, Work
from raftmq.broker.cluster.housekeeping import Housekeeping
from raftmq.broker.cluster.metadata_replica import MetadataReplica
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.cluster.scrubber import Scrubber
from raftmq.broker.cluster.space_return import SpaceReturn
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.registry import Registry
from raftmq.types import GroupId, LogIndex


class Upkeep:
    """Runs the periodic work of one node. Each part has a loop of its own, which the supervisor restarts after a defect."""

    def __init__(
        self,
        engine: Engine,
        store: LmdbLogStore,
        registry: Registry,
        threads: Executor,
        replicas: ReplicaManager,
        metadata: MetadataReplica,
        partitions: Mapping[GroupId, Partition],
        deletable_through_index: Callable[[Replica[StateMachine]], LogIndex | None],
        is_disk_short: Callable[[], bool],
        supervisor: Supervisor,
    ) -> None:
        """Create the parts. `deletable_through_index` is explained at `Housekeeping`, `is_disk_short` at `SpaceReturn`."""
        self._supervisor = supervisor
        timing = engine.timing
        self.housekeeping = Housekeeping(
            engine, store, threads, replicas, metadata, partitions, deletable_through_index, timing, supervisor
        )
        self.space_return = SpaceReturn(engine, store, threads, replicas, is_disk_short, timing, supervisor)
        rate = engine.limits.scrub_bytes_per_second
        self.scrubber = Scrubber(engine, store, threads, registry, replicas, rate, timing)

    def start(self) -> None:
        """Start the work, which ends when the supervisor is cancelled."""
        self._supervisor.spawn(Work.HOUSEKEEPING, self.housekeeping.run)
        self._supervisor.spawn(Work.SPACE_RETURN, self.space_return.run)
        self._supervisor.spawn(Work.SCRUBBER, self.scrubber.run)
