"""One node with queue topics over real LMDB files: the harness of the services, with state files, row reads and write-backs.

Queue time is the real time plus an offset, which a test moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import pytest
from raftmq.broker.partitions.kinds import KINDS, QUEUE
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.replica.initial_state import founder_state
from raftmq.broker.replica.replica import Replica
from raftmq.broker.replica.replica_log import ReplicaLog
from raftmq.broker.replica.row_loads import RowLoads
from raftmq.broker.replica.write_backs import WriteBacks
from raftmq.broker.services.node_calls import NodeCalls
from raftmq.broker.services.queue.admin import QueueAdminService
from raftmq.broker.services.queue.browse import QueueBrowseService
from raftmq.broker.services.queue.dead_letters import DeadLetterCopier
from raftmq.broker.services.queue.partitions import QueuePartitions
from raftmq.broker.services.queue.schedules import QueueScheduleService
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.queue.commands import Lease, Operation, Settle, SettleDetail
from raftmq.fsm.queue.limits import MemoryBounds
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Leased, Settled
from raftmq.fsm.row_reads import RowsFound, RowsNeeded
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import MessageColumns, encode, seal_queue_batch
from raftmq.raft.core import RaftCore
from raftmq.raft.membership import Membership
from raftmq.raft.settings import RaftSettings
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import GroupId, ReplicaId

from tests.support.broker.harness import NODE_ID, Harness
from tests.support.fsm.queue.host import messages

T = TypeVar("T")

MS = 1_000_000


class QueueNode(Harness):
    """A harness whose store is LMDB, and whose queue partitions have state files. Implements `EngineHost`, too."""

    def __init__(self, directory: Path, bounds: MemoryBounds | None = None) -> None:
        super().__init__()
        self.store = LmdbLogStore(directory, map_bytes=1 << 28)  # type: ignore[assignment]
        self.bounds = bounds
        self.offset_ms = 0
        self.feature_level_max = FEATURE_LEVEL
        self.median_offset_ms = 0
        """The difference between the other brokers' clocks and this one."""
        self.readers = ThreadPoolExecutor(2)
        self.writer = ThreadPoolExecutor(1)
        self.loads = RowLoads(self.loop, self, self.readers, self.store.read_rows)
        self.write_backs = WriteBacks(self.loop, self, self.store, self.writer, self.loads, self.limits, self.timing)
        self.broken: list[Exception] = []
        queues = QueuePartitions(self, self.partitions)
        self.queue_browse = QueueBrowseService(queues)
        self.queue_admin = QueueAdminService(queues)
        self.queue_schedules = QueueScheduleService(queues)
        self.dead_letters = DeadLetterCopier(
            self, self.partitions, self.log, self.producer_ids, NodeCalls(self, self.forwarder)
        )

    def close(self) -> None:
        super().close()
        self.writer.shutdown()
        self.readers.shutdown()
        for key in self.store.open_replicas():
            self.store.close(key)

    def add_replica(self, group_id: GroupId, replica_id: ReplicaId, machine: StateMachine) -> Replica[StateMachine]:
        if not isinstance(machine, QueuePartition):
            return super().add_replica(group_id, replica_id, machine)
        key = ReplicaKey(group_id, replica_id)
        self.store.create_with_state_file(key, founder_state(Membership((replica_id,))))
        return self._host(key, QueuePartition(self.bounds))

    def _host(self, key: ReplicaKey, machine: QueuePartition) -> Replica[StateMachine]:
        restored = self.store.open(key)
        log = ReplicaLog(key, self.store, self.loop, self.in_thread, self.recent_budget)
        core = RaftCore(key.replica_id, restored, log, random.Random(1), RaftSettings())
        replica = Replica(key, core, restored, machine, log, self, lambda _replica_id: NODE_ID)
        self.replicas[key.group_id] = replica
        self.write_backs.add(replica)
        return replica

    def restart_queue(self, group_id: GroupId) -> PartitionQueue:
        """Close a queue's replica, and open it again from its files. A write-back comes before, so that everything is on disk."""
        replica = self.replicas[group_id]
        replica.close()
        self.write_backs.remove(replica)
        self.store.close(replica.key)
        machine = QueuePartition(self.bounds)
        restored = self.store.open(replica.key)
        machine.restore(
            list(self.store.resident_rows(replica.key, [one[:2] for one in machine.resident_ranges])),
            restored.state_index,
        )
        self.store.close(replica.key)
        self.partitions[group_id] = QUEUE.serve(self._host(replica.key, machine), self, self.store, self._on_damage)
        self.campaign(group_id)
        return cast("PartitionQueue", self.partitions[group_id])

    # ------------------------------------------------------------------------------------------------------------- hosts

    def now_ms(self) -> int:
        return time.time_ns() // MS + self.offset_ms

    def median_ms(self) -> int | None:
        return self.now_ms() + self.median_offset_ms

    def boottime_ns(self) -> int:
        return time.monotonic_ns() + self.offset_ms * MS

    def draw_seed(self) -> int:
        return 7

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        self.reads_in_thread += 1
        return await self.loop.run_in_executor(self.readers, function, *arguments)

    async def in_write_back(self, function: Callable[..., T], *arguments: object) -> T:
        return await self.loop.run_in_executor(self.writer, function, *arguments)

    def read_rows(
        self, replica: Replica[StateMachine], needed: RowsNeeded, on_found: Callable[[RowsFound], None]
    ) -> None:
        self.loads.start(replica, needed, on_found)

    def guarded(self, replica: Replica[StateMachine], action: Callable[..., object], *arguments: object) -> None:
        if not replica.is_closed:
            action(*arguments)

    def break_replica(self, replica: Replica[StateMachine], error: Exception) -> None:
        self.broken.append(error)
        replica.close()

    def on_fatal(self, error: BaseException) -> None:
        raise error

    # ------------------------------------------------------------------------------------------------------------- tests

    async def queue(self, name: str = "jobs", partitions: int = 1, **config: str) -> Queue:
        await self.register(1, "uuid-1", feature_level_max=self.feature_level_max)
        await self.feature_levels.raise_feature_level(pb.RaiseFeatureLevelRequest(), self.call())
        queue = Queue(self, await self.topic(name, partitions, QUEUE.name, **config))
        while queue.machine.state.settings != queue.partition.config().machine:
            queue.partition.upkeep.configure()
            await asyncio.sleep(0.005)  # else it is not ready for messages
        return queue

    def pass_time(self, elapsed_ms: int) -> None:
        """Move the clocks, and tell the partitions, whose timers run in real time."""
        self.offset_ms += elapsed_ms
        for partition in self.partitions.values():
            for listener in partition.replica.progress_listeners:
                listener()


class Queue:
    """A queue topic on the node. Without a number, its first partition is meant."""

    def __init__(self, node: QueueNode, topic: pb.Topic) -> None:
        self.node = node
        self.topic = topic

    @property
    def partition(self) -> PartitionQueue:
        found = self.node.partitions[GroupId(self.topic.partitions[0].group_id)]
        assert isinstance(found, PartitionQueue)
        return found

    @property
    def machine(self) -> QueuePartition:
        return self.partition.replica.state_machine

    @property
    def now_ms(self) -> int:
        return self.partition.clock.read_ms()

    @contextlib.asynccontextmanager
    async def held_reads(self) -> AsyncIterator[list[Callable[[], None]]]:
        """Hold the reads of browsers. Each of the list hands over the rows of the moment in which it began.

        The partition is at rest, and proposes nothing by itself inside the context. A browser that met an entry half applied
        would hold the machine, and everything else would wait for it.
        """
        replica = self.partition.replica
        held: list[Callable[[], None]] = []

        def read_rows(needed: RowsNeeded, on_found: Callable[[RowsFound], None]) -> None:
            held.append(partial(on_found, self.node.store.read_rows(replica.key, needed.ranges)))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.partition.upkeep, "_next_deadline", lambda: None)
            await self._at_rest()
            patch.setattr(replica, "read_rows", read_rows)
            yield held

    async def put(self, count: int = 1, **columns: object) -> int:
        """Put messages and return the sequence of the first one."""
        return await self.put_columns(messages(count, **columns))

    async def put_columns(self, columns: MessageColumns) -> int:
        batch = seal_queue_batch(encode(columns), message_count=len(columns.bodies))
        ticket = self.partition.appends.begin([batch], self._deadline)
        await self.partition.appends.finish(ticket, self._deadline)
        result = ticket.result(0)
        assert not result.HasField("error"), result.error
        return result.base_offsets[0]

    async def lease(self, count: int = 1, lease_ms: int = 60_000, *tenants: str) -> list[tuple[int, int]]:
        """Lease messages and return their tokens."""
        leased = await self.partition.commands.execute(Lease(0, 0, count, lease_ms, tenants), Leased, self._deadline)
        assert isinstance(leased, Leased)
        return [
            (first + at, number)
            for first, run, number in zip(leased.first_sequences, leased.counts, leased.lease_numbers, strict=True)
            for at in range(run)
        ]

    async def settle(self, operation: Operation, *tokens: tuple[int, int], **detail: object) -> tuple[int, ...]:
        runs = len(tokens)
        command = Settle(
            0,
            0,
            (operation,) * runs,
            tuple(sequence for sequence, _ in tokens),
            (1,) * runs,
            tuple(number for _, number in tokens),
            (1,) * runs if detail else (),
            (SettleDetail(**detail),) if detail else (),
        )
        settled = await self.partition.commands.execute(command, Settled, self._deadline)
        assert isinstance(settled, Settled)
        return settled.codes

    async def write_back(self) -> None:
        """Make everything that was applied durable, and wait until the machine knows."""
        replica = self.partition.replica
        while replica.durable_state_index < replica.core.applied_index:
            assert not self.node.broken, self.node.broken
            self.node.write_backs.start(replica)
            await asyncio.sleep(0.001)

    async def restart(self) -> None:
        await self.write_back()
        self.node.restart_queue(self.partition.replica.group_id)
        await self._at_rest()

    async def _at_rest(self) -> None:
        """Wait until this replica leads and has applied every entry."""
        replica = self.partition.replica
        await self.progress_until(lambda: replica.is_leader and replica.core.log.applied == replica.core.log.last_index)

    async def progress_until(self, is_reached: Callable[[], bool]) -> None:
        """Wait for entries until something is so."""
        async with asyncio.timeout(20):
            while not is_reached():
                await asyncio.shield(self.partition.replica.wait_progress())

    @property
    def _deadline(self) -> float:
        return self.node.loop.time() + 10


@contextlib.asynccontextmanager
async def queue_node(directory: Path, bounds: MemoryBounds | None = None) -> AsyncIterator[QueueNode]:
    """Yield a node that serves queues, and close it afterwards."""
    kinds = cast("dict[str, object]", KINDS)
    before = dict(kinds)
    kinds[QUEUE.name] = QUEUE
    node = QueueNode(directory, bounds)
    try:
        await node.start()
        yield node
    finally:
        node.close()
        kinds.clear()
        kinds.update(before)
    assert not node.broken
