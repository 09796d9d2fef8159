"""Copy the dead messages of the partitions that this broker leads to their dead letter topics.

It appends each batch at the target's leader as a producer of its own, `~dead/<group>`. The source partition's state has its epoch and its
progress (`partitions/queue/copies.py`), so a batch that is sent twice, by this broker or by the next leader, is written once.

Invariants: one batch of a partition is under way. Nothing is recorded as copied before the target acknowledged it. A message that the target
refuses stays dead, and the attempt is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.request_error import RequestError, timed_out
from raftmq.broker.base.supervisor import Work
from raftmq.broker.partitions.kinds import QUEUE
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.partitions.queue.copies import QueueCopies
from raftmq.broker.partitions.queue.copy_plan import Copied, CopyTarget, Restart, after_answer
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator
from raftmq.broker.services.log import LogService
from raftmq.broker.services.node_calls import NodeCalls
from raftmq.broker.services.producer_ids import ProducerIds
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 0.1
"""Time between two looks for dead messages. A look costs about a microsecond per queue partition."""
TURNS_MAX: Final = 8
"""Partitions that are copied simultaneously: each may hold a batch of up to 3 MiB."""
TURN_BATCHES: Final = 10
"""Batches of one turn. Other partitions come next."""
BATCH_SECONDS: Final = 10.0
"""Time for one batch: its bodies, its append, and the record of it. Afterwards it is repeated."""
CLAIM_SECONDS: Final = 3600.0
"""Time after which the producer's name is used again, so that it is not forgotten (after 14 days)."""


class DeadLetterCopier:
    """Copies the dead messages of one broker's partitions."""

    def __init__(
        self,
        host: ServiceHost,
        partitions: Mapping[GroupId, Partition],
        appends: LogService,
        producer_ids: ProducerIds,
        calls: NodeCalls,
    ) -> None:
        self._host = host
        self._locator = Locator(host, partitions, QUEUE)
        self._appends = appends
        self._producer_ids = producer_ids
        self._calls = calls
        self._queues: list[PartitionQueue] = []
        """The partitions of queues here, as of `_topology_version`."""
        self._topology_version = -1
        self._turns: set[GroupId] = set()
        """The groups of the partitions whose turn it is."""
        self._throttle = LogThrottle()

    async def run(self) -> None:
        """Copy until it is cancelled."""
        self._turns.clear()
        async with asyncio.TaskGroup() as tasks:
            while True:
                with self._host.supervisor.step(Work.DEAD_LETTERS):
                    self._begin_turns(tasks)
                await asyncio.sleep(LOOK_SECONDS)

    def _begin_turns(self, tasks: asyncio.TaskGroup) -> None:
        now, version = self._host.loop.time(), self._host.topology_version()
        if version != self._topology_version:  # so that many partitions of logs are not looked at ten times a second
            self._topology_version, self._queues = version, self._locator.here()
        due = [one for one in self._queues if one.replica.group_id not in self._turns and one.copies.is_due(now)]
        due.sort(key=lambda one: one.copies.begun_at)
        for partition in due[: TURNS_MAX - len(self._turns)]:
            group_id = partition.replica.group_id
            partition.copies.begun_at = now
            self._turns.add(group_id)
            tasks.create_task(self._take_turn(partition))

    async def _take_turn(self, partition: PartitionQueue) -> None:
        has_failed = True
        try:
            with self._host.supervisor.step(Work.DEAD_LETTERS):
                await self.copy_some(partition)
                has_failed = False
            if has_failed:
                partition.copies.pause()
        finally:
            self._turns.discard(partition.replica.group_id)

    async def copy_some(self, partition: PartitionQueue, batches_max: int = TURN_BATCHES) -> None:
        """Copy some of a partition's dead messages, until none is left or the target refuses."""
        for _ in range(batches_max):
            if not partition.copies.is_due(self._host.loop.time()):
                return
            deadline = self._host.loop.time() + BATCH_SECONDS
            try:
                async with asyncio.timeout_at(deadline):
                    await self._copy_one(partition, deadline)
            except TimeoutError:
                self._on_refused(partition, timed_out())
            except RequestError as error:
                self._on_refused(partition, error)

    def _on_refused(self, partition: PartitionQueue, error: RequestError) -> None:
        if not partition.replica.is_leader:
            return  # the next leader goes on
        partition.copies.on_refused(error)
        if self._throttle.is_due(partition.replica.group_id):
            log.warning(
                "dead_letters_not_copied",
                group_id=partition.replica.group_id,
                error_code=pb.ErrorCode.Name(error.code),
                reason=str(error),
            )

    # ------------------------------------------------------------------------------------------------ one batch

    async def _copy_one(self, partition: PartitionQueue, deadline: float) -> None:
        copies = partition.copies
        target = copies.target()
        if not copies.is_aimed_at(target):
            # older metadata could name a topic that was replaced since
            await self._locator.confirm_metadata(deadline)
            target = copies.target()
            if not copies.is_aimed_at(target):
                await copies.aim(target, deadline)
            return
        copy = await copies.next_copy(target, deadline)
        if copy is None:
            return
        producer_id = await self._producer_id(copies, partition.replica.group_id, deadline)
        batch = copy.encode(copies.source(), target, producer_id)
        outcome = after_answer(copy.run, await self._append(target, batch, deadline))
        match outcome:
            case Copied():
                await copies.on_copied(copy.run, outcome.through_number, deadline)
            case Restart():
                await copies.restart(copy.run, outcome, target, deadline)
                log.info("dead_letters_restarted", group_id=partition.replica.group_id)

    async def _producer_id(self, copies: QueueCopies, group_id: GroupId, deadline: float) -> int:
        """Return the producer of a partition's copies. Its name is used from time to time, so that it is not forgotten."""
        now = self._host.loop.time()
        if not copies.producer_id or now >= copies.claimed_at + CLAIM_SECONDS:
            copies.producer_id = await self._producer_ids.broker_producer(f"dead/{group_id}", Call(deadline))
            copies.claimed_at = now
        return copies.producer_id

    async def _append(self, target: CopyTarget, batch: bytes, deadline: float) -> RequestError | None:
        """Append a batch at the target's leader. Return its refusal. Raises RequestError if it was not asked, or did not answer."""
        place = (target.topic_id, target.partition)
        by_node, errors = self._calls.by_leader([place])
        if errors:
            raise errors[0][1]
        (node_id,) = by_node
        request = pb.AppendRequest(
            timeout_ms=max(1, int((deadline - self._host.loop.time()) * 1000)),
            partitions=[pb.PartitionAppend(topic_id=target.topic_id, partition=target.partition, batches=[batch])],
        )
        response = await self._calls.ask(node_id, request, self._appends.append, Call(deadline))
        (result,) = response.partitions
        if not result.HasField("error"):
            return None
        refusal = RequestError(result.error.code, result.error.message)
        refusal.detail.CopyFrom(result.error)
        return refusal
